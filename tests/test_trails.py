"""The decision trail: every entry as an item, what is inherited and what is own, live and afterwards alike."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import satay
from satay import TrailItem, TrailKind
from satay.errors import JournalClosedError, NeedsDecisionError, RunNotFoundError, TaskBlockedError
from satay.journal import BLOB_THRESHOLD_BYTES, GENESIS
from satay.model import MISSING, SESSION_WORKFLOW, Entry, EntryType, RunRecord, RunStatus
from satay.testing import AppUnderTest, Faults, open_app, settle
from satay.trail_items import Segment, TrailReader

pytestmark = pytest.mark.anyio


@satay.task(name="trails.send", effect="external")
async def send(to: str) -> str:
    return f"sent to {to}"


@satay.task(name="trails.flaky", retries=1, backoff=0)
async def flaky() -> str:
    if satay.task_context().attempt == 1:
        raise ValueError("out of order")
    return "worked"


@satay.task(name="trails.broken")
async def broken() -> None:
    raise ValueError("broken for good")


@satay.workflow(name="trails.mail")
async def mail(to: str) -> str:
    await satay.sleep(1)
    return await send(to)


@satay.workflow(name="trails.wait")
async def wait() -> Any:
    return await satay.wait_for_event("answer")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path) as app:
        yield app


async def record(run_id: str = "run-42") -> None:
    """A session with two steps and a call in each."""
    async with satay.Session(run_id, state_fn=lambda: {"n": session.last_step}) as session:
        for number in (1, 2):
            await send(f"n{number}")
            await session.step("mail", input=number, output={"sent": number})


def kinds(items: Any) -> list[str]:
    return [item.kind.value for item in items]


def brief(items: Any) -> list[tuple[str, str, bool]]:
    return [(item.kind.value, item.name, item.is_inherited) for item in items]


# --- what a trail holds -----------------------------------------------------------------------------------------------


async def test_every_entry_of_a_session_is_an_item(app: AppUnderTest) -> None:
    await record()
    trail = await satay.decision_trail("run-42")

    turn = ["call", "outcome", "step", "state"]
    assert ["created", "started", *turn, *turn, "completed"] == kinds(trail.items)
    assert list(range(1, 12)) == [item.seq for item in trail.items]
    assert [{"input": 1, "output": {"sent": 1}}, {"input": 2, "output": {"sent": 2}}] == [
        step.value for step in trail.steps
    ]


async def test_a_call_is_told_with_its_name_its_step_and_its_outcome(app: AppUnderTest) -> None:
    await record()
    trail = await satay.decision_trail("run-42")
    call, outcome = trail.items[6], trail.items[7]

    assert ("trails.send:1", 2, {"to": "n2"}) == (call.name, call.step, call.value)
    assert ("trails.send:1", 2, "sent to n2") == (outcome.name, outcome.step, outcome.value)
    assert satay.CallState.COMPLETED is outcome.status
    assert ["trails.send:0", "trails.send:1"] == [str(call.identity) for call in trail.calls]
    assert [(1, "sent to n1"), (2, "sent to n2")] == [(call.step, call.side.result) for call in trail.calls]


async def test_what_a_fork_inherits_is_marked_and_what_it_did_is_its_own(app: AppUnderTest) -> None:
    await record()
    fork = await satay.Session.resume(
        "run-42",
        fork_at_step=1,
        name="run-42/b",
        intervention={"model": "candidate"},
        tool_policies={"trails.send": "block", "*": "auto"},
    )
    async with fork:
        with pytest.raises(TaskBlockedError):
            await send("nobody")
        await fork.step("gave up")
    trail = await satay.decision_trail("run-42/b")

    assert [
        ("created", "", False),
        ("started", "", True),
        ("call", "trails.send:0", True),
        ("outcome", "trails.send:0", True),
        ("step", "mail", True),
        ("state", "", True),
        ("forked", "run-42/b", False),
        ("started", "", False),
        ("call", "trails.send:1", False),
        ("blocked", "trails.send:1", False),
        ("step", "gave up", False),
        ("completed", "", False),
    ] == brief(trail.items)
    assert [("run-42", True, "completed"), ("run-42/b", False, "blocked")] == [
        (call.run_id, call.is_inherited, call.side.state.value) for call in trail.calls
    ]
    assert {"run-42"} == {item.run_id for item in trail.items if item.is_inherited}


async def test_a_lineage_leads_from_the_root_to_the_session_with_what_each_was_given(app: AppUnderTest) -> None:
    await record()
    for source, at_step, name in (("run-42", 1, "b"), ("b", 2, "c")):
        given = {"of": name}
        fork = await satay.Session.resume(
            source, fork_at_step=at_step, name=name, intervention=given, state_fn=lambda: None
        )
        async with fork:
            await fork.step("own")
    await satay.set_outcome("b", "inconclusive", score=0.5, note="halfway")
    trail = await satay.decision_trail("c")

    assert ("run-42", "c") == (trail.root_id, trail.run_id)
    assert [None, {"of": "b"}, {"of": "c"}] == [one.intervention for one in trail.lineage]
    assert [None, 0.5, None] == [None if one.outcome is None else one.outcome.score for one in trail.lineage]
    assert trail.boundary == await satay.receipt("c")
    assert ["after step 1", "after step 2"] == [one.receipt.cut for one in trail.lineage if one.receipt is not None]


async def test_outcomes_and_the_decision_of_the_experiment_are_told(app: AppUnderTest) -> None:
    await record()
    for name in ("b", "c"):
        async with satay.Session.resume("run-42", fork_at_step=1, name=name) as fork:
            await fork.step("own")
    await satay.set_outcome("b", "promoted", score=0.92)
    await satay.promote("b")
    won, lost, source = [await satay.decision_trail(run_id) for run_id in ("b", "c", "run-42")]

    assert [("promoted", None), ("promoted", "run-42~experiment")] == [
        (outcome.value.value, outcome.decided_in) for outcome in won.outcomes
    ]
    assert ["rejected"] == [outcome.value.value for outcome in lost.outcomes]
    assert [["b"]] * 3 == [[one.run_id for one in trail.promotions] for trail in (won, lost, source)]
    assert ("c",) == won.promotions[0].closed


async def test_a_crash_a_pause_and_what_followed_are_told(app: AppUnderTest) -> None:
    with pytest.raises(ValueError, match="no idea"):
        async with satay.Session("s"):
            raise ValueError("no idea")
    async with satay.Session("s") as again:
        again.pause("waits for Ada")
    async with satay.Session("s"):
        pass
    items = (await satay.decision_trail("s")).items

    assert ["created", "started", "crashed", "resumed", "paused", "resumed", "completed"] == kinds(items)
    assert {"type": "builtins:ValueError", "message": "no idea"} == items[2].value
    assert ["crash", "pause"] == [item.facts["after"] for item in items if item.kind is TrailKind.RESUMED]


async def test_attempts_and_failures_are_told_without_tracebacks(app: AppUnderTest) -> None:
    async with satay.Session("s"):
        await flaky()
        with pytest.raises(ValueError, match="for good"):
            await broken()
    trail = await satay.decision_trail("s")

    assert ["call", "attempt", "attempt", "outcome", "call", "outcome"] == kinds(trail.items[2:-1])
    assert {"type": "builtins:ValueError", "message": "broken for good"} == trail.items[-2].value
    assert [2, 1] == [call.side.attempts for call in trail.calls]


async def test_a_decision_about_a_lost_call_is_told(tmp_path: Path) -> None:
    faults = Faults().crash_before(type=EntryType.TASK_COMPLETED)
    async with open_app(tmp_path, faults=faults):
        with pytest.raises(JournalClosedError):
            async with satay.Session("s"):
                await send("ada")
    async with open_app(tmp_path):
        with pytest.raises(NeedsDecisionError):
            async with satay.Session("s"):
                await send("ada")
        await satay.decide("s", value="sent by hand")
        async with satay.Session("s"):
            await send("ada")
        trail = await satay.decision_trail("s")

        told = [(item.kind.value, item.name) for item in trail.items if item.kind.value.startswith("decision")]
        assert [("decision_requested", "trails.send:0"), ("decision", "trails.send:0")] == told
        assert "decided: value" in str(trail)


async def test_the_trail_of_a_workflow_has_its_calls(app: AppUnderTest) -> None:
    await app.start(mail, "ada", run_id="r").result()
    fork = await app.fork("r", before_task=send, workflow_input="bob", tool_policies={"*": "live"}, run_id="fork")
    await fork.result()
    trail = await satay.decision_trail("fork")

    assert ["created", "call", "outcome", "forked", "call", "outcome", "completed"] == kinds(trail.items)
    assert [("timer:0", True), ("trails.send:0", False)] == [
        (str(call.identity), call.is_inherited) for call in trail.calls
    ]
    assert ["r", "fork"] == [one.run_id for one in trail.lineage]
    assert [None, None] == [call.step for call in trail.calls]


async def test_approvals_and_wake_ups_are_told_as_what_they_are(app: AppUnderTest) -> None:
    record = RunRecord(1, "s", SESSION_WORKFLOW, RunStatus.RUNNING, 0, 0, None, None, 0, None, None, None, None, "")
    written: list[tuple[str, dict[str, Any]]] = [
        (EntryType.SESSION_CREATED, {"input": {}}),
        (EntryType.EVENT_WAIT_STARTED, {"event": "satay.approval", "ordinal": 0, "match": "refund", "due": None}),
        (EntryType.EXTERNAL_EVENT_RECEIVED, {"call": 2, "payload": {"approved": True}}),
        (EntryType.TIMER_CREATED, {"timer": "wake", "ordinal": 0, "due": 9, "note": "tea"}),
        (EntryType.TIMER_FIRED, {"call": 4}),
        ("NotedLater", {"what": "ever"}),
    ]
    trail = TrailReader(record, [Segment("s", None)])
    items = [
        trail.read(Entry(seq, type, seq, json.dumps(payload, separators=(",", ":")), GENESIS))
        for seq, (type, payload) in enumerate(written, 1)
    ]

    assert [
        ("approval_requested", "refund", False),
        ("approval", "refund", False),
        ("wake_up", "tea", False),
        ("woken", "tea", False),
        ("note", "", False),
    ] == brief(items[1:])
    assert {"approved": True} == items[2].value
    assert {"what": "ever"} == items[-1].facts


async def test_a_large_value_is_named_and_not_read(app: AppUnderTest) -> None:
    async with satay.Session("s") as session:
        await session.step("large", output="x" * BLOB_THRESHOLD_BYTES)
    trail = await satay.decision_trail("s")
    (step,) = trail.steps

    assert step.value is MISSING
    assert step.blob is not None
    assert 64 == len(step.blob)
    assert "(a large value)" in str(trail)


async def test_a_trail_is_plain_data(app: AppUnderTest) -> None:
    await record()
    async with satay.Session.resume("run-42", fork_at_step=1, name="b", intervention={"m": 1}):
        pass
    await satay.set_outcome("b", "rejected", note="no better")
    trail = await satay.decision_trail("b")
    data = json.loads(json.dumps(trail.to_dict()))

    assert data == trail.to_dict()
    assert ["run-42", "b"] == [one["run_id"] for one in data["lineage"]]
    assert "after step 1" == data["boundary"]["cut"]
    assert ("rejected", "no better") == (data["outcomes"][0]["value"], data["outcomes"][0]["note"])
    assert ("trails.send:0", "sent to n1", True) == tuple(
        data["calls"][0][name] for name in ("call", "result", "is_inherited")
    )


async def test_the_text_of_a_trail_tells_it_line_by_line(app: AppUnderTest) -> None:
    await record()
    async with satay.Session.resume("run-42", fork_at_step=1, name="run-42/b", intervention={"m": 1}) as fork:
        await fork.step("own", output="\x1b[31m")
    await satay.set_outcome("run-42/b", "rejected", note="no better")
    text = str(await satay.decision_trail("run-42/b"))
    lines = [" ".join(line.split()) for line in text.splitlines()]

    assert "run-42/b: completed, 2 steps, 1 call" == lines[0]
    assert "run-42/b completed after step 1 {'m': 1} rejected" in lines
    assert "3 run-42 trails.send:0 completed 'sent to n1'" in lines
    assert "5 run-42 step 1: mail state v1 {'sent': 1}" in lines
    assert "It inherits entries 1 to 6 of run-42, after step 1, with 1 call and the state of step 1" in text
    assert lines[-1].endswith("rejected: no better")
    assert all(line.isprintable() for line in text.split("\n"))


async def test_a_long_trail_shows_its_end(app: AppUnderTest) -> None:
    async with satay.Session("s") as session:
        for number in range(250):
            await session.step(f"n{number}")
    text = str(await satay.decision_trail("s"))

    assert " … 53 before these\n" in text
    assert "step 250: n249" in text
    assert "step 1: n0" not in text


async def test_a_run_that_is_not_there_has_no_trail(app: AppUnderTest) -> None:
    with pytest.raises(RunNotFoundError):
        await satay.decision_trail("nowhere")


# --- following --------------------------------------------------------------------------------------------------------


class Follower:
    """Collects what `follow` gives, in the background."""

    def __init__(self, app: satay.App, run_id: str, after: int = 0) -> None:
        self.items: list[TrailItem] = []
        self.has_news = asyncio.Event()
        self.task = asyncio.ensure_future(self._collect(app, run_id, after))

    async def _collect(self, app: satay.App, run_id: str, after: int) -> None:
        async for item in app.follow(run_id, after=after):
            self.items.append(item)
            self.has_news.set()

    async def seen(self, seq: int) -> None:
        """Wait until the item of an entry was seen."""
        while not self.items or self.items[-1].seq < seq:
            self.has_news.clear()
            await self.has_news.wait()


async def test_following_gives_what_is_recorded_and_then_what_is_written(app: AppUnderTest) -> None:
    async with satay.Session("s") as session:
        await session.step("first")
        follower = Follower(app, "s")
        await follower.seen(3)
        assert ["created", "started", "step"] == kinds(follower.items)
        await session.step("second")
        await send("ada")
        await follower.seen(6)
        assert not follower.task.done()
    await follower.task

    assert list(range(1, 8)) == [item.seq for item in follower.items]
    assert list((await satay.decision_trail("s")).items) == follower.items


async def test_following_begins_behind_an_entry(app: AppUnderTest) -> None:
    await record()
    follower = Follower(app, "run-42", after=7)
    await follower.task

    assert list((await satay.decision_trail("run-42")).items)[7:] == follower.items
    assert "trails.send:1" == follower.items[0].name


async def test_following_goes_on_after_a_pause_and_a_crash_and_ends_with_the_session(app: AppUnderTest) -> None:
    with pytest.raises(ValueError, match="no idea"):
        async with satay.Session("s"):
            raise ValueError("no idea")
    follower = Follower(app, "s")
    await follower.seen(3)
    async with satay.Session("s") as again:
        again.pause()
    await follower.seen(5)
    assert not follower.task.done()
    async with satay.Session("s"):
        pass
    await follower.task

    assert ["created", "started", "crashed", "resumed", "paused", "resumed", "completed"] == kinds(follower.items)


async def test_following_passes_an_end_that_was_gone_on_after(app: AppUnderTest) -> None:
    await record()
    async with satay.Session.resume("run-42") as again:
        await again.step("more")
    follower = Follower(app, "run-42")
    await follower.task

    assert ["completed", "resumed", "step", "completed"] == kinds(follower.items[-4:])


async def test_following_a_run_of_a_workflow_ends_with_it(app: AppUnderTest) -> None:
    await app.start(wait, run_id="r")
    follower = Follower(app, "r")
    await follower.seen(2)
    await satay.send_event("answer", 42, run_id="r")
    await follower.task

    assert ["created", "call", "outcome", "completed"] == kinds(follower.items)


async def test_following_shows_what_another_app_writes(app: AppUnderTest) -> None:
    async with satay.Session("s") as session, satay.run_app(data_dir=app.data_dir, poll_seconds=0.01) as other:
        follower = Follower(other, "s")
        await follower.seen(2)
        await session.step("first")
        await follower.seen(3)

        assert ["created", "started", "step"] == kinds(follower.items)
        follower.task.cancel()
        await asyncio.wait((follower.task,))


# --- approvals --------------------------------------------------------------------------------------------------------


async def test_an_approval_is_told_with_who_decided_what(app: AppUnderTest) -> None:
    async with satay.Session("s") as session:
        for key, approved in (("refund", True), ("gift", False)):
            asking = asyncio.ensure_future(session.require_approval(key, {"amount": 5}))
            await settle(app)
            await satay.decide_approval("s", key, approved=approved, by="ada")
            await asking
        follower = Follower(app, "s")
        await follower.seen(6)
        follower.task.cancel()
    trail = await satay.decision_trail("s")
    told = [item for item in trail.items if item.kind.value.startswith("approval")]
    lines = [" ".join(line.split()) for line in str(trail).splitlines()]

    assert ["refund", "refund", "gift", "gift"] == [item.name for item in told]
    assert told == [item for item in follower.items if item in told]
    assert {"amount": 5} == told[0].value
    assert (True, "ada") == (told[1].value["approved"], told[1].value["by"])
    assert any(line.startswith("3 approval refund requested {'amount': 5}") for line in lines)
    assert any(line.startswith("4 approval refund approved") for line in lines)
    assert any(line.startswith("6 approval gift rejected") for line in lines)
