"""Tool policies: what is sent is counted in the file that the tasks write."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from satay.errors import InvalidValueError, NeedsDecisionError, TaskBlockedError
from satay.model import EntryType
from satay.replay import facts
from satay.testing import AppUnderTest, Faults, ManualClock, open_app, settle
from tests.corpus import NEVER_SECONDS
from tests.driving import in_loop
from tests.mailings import (
    FORK_ID,
    SENDER_NAMES,
    SOURCE_ID,
    STARTERS,
    WAYS,
    Order,
    draft,
    fork_crashing_everywhere,
    fork_until_crash,
    letters,
    mailing,
    one_letter,
    run_source,
    send_external,
    through_a_task,
    through_runs,
    with_a_slow_child,
)

LATER: Final = datetime(2027, 1, 1, tzinfo=UTC)
EFFECTS: Final = ("pure", "idempotent", "external", "undeclared")

ways = pytest.mark.parametrize("way", list(WAYS))
effects = pytest.mark.parametrize("effect", EFFECTS)


def order_in(tmp_path: Path, effect: str, way: str) -> Order:
    return Order(str(tmp_path / "outbox"), effect, way)


def blocked(result: list[str], policy: str) -> list[str]:
    """The result of a mailing of which no letter was sent."""
    return [letter.replace("sent ", f"{policy}: ") if letter.startswith("sent ") else letter for letter in result]


def policies_for(effect: str, policy: str) -> dict[str, str]:
    return {SENDER_NAMES[effect]: policy, "mailings.send_pair": policy}


# --- block ------------------------------------------------------------------------------------------------------------


@ways
@effects
def test_nothing_is_sent_under_block_whatever_crashes(way: str, effect: str, tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "journal", mailing, order_in(tmp_path, effect, way))
        sent = letters(tmp_path / "outbox")
        expected = [result[0], "block: mapped", "block: mapped"] if way == "map" else blocked(result, "block")
        crashes = await fork_crashing_everywhere(
            tmp_path / "journal", expected, before_task="mailings.draft", tool_policies=policies_for(effect, "block")
        )

        assert 3 <= crashes
        assert sent
        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


@ways
def test_external_tasks_are_blocked_unless_they_are_named_whatever_crashes(way: str, tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "journal", mailing, order_in(tmp_path, "external", way))
        sent = letters(tmp_path / "outbox")
        expected = [result[0], "block: mapped", "block: mapped"] if way == "map" else blocked(result, "block")
        await fork_crashing_everywhere(tmp_path / "journal", expected, before_task="mailings.draft")

        assert sent
        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


@ways
@effects
def test_nothing_is_sent_under_replay_and_the_sources_results_come_back(way: str, effect: str, tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "journal", mailing, order_in(tmp_path, effect, way))
        sent = letters(tmp_path / "outbox")
        crashes = await fork_crashing_everywhere(
            tmp_path / "journal", result, before_task="mailings.draft", tool_policies=policies_for(effect, "replay")
        )

        assert 3 <= crashes
        assert sent
        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


@ways
@pytest.mark.parametrize("policy", ["auto", "live"])
def test_every_letter_is_sent_once_more_where_that_is_allowed(way: str, policy: str, tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "journal", mailing, order_in(tmp_path, "external", way))
        sent = letters(tmp_path / "outbox")
        forked = await fork_until_crash(
            tmp_path / "journal", Faults(), ManualClock(autojump=True), SOURCE_ID, FORK_ID,
            before_task="mailings.draft", tool_policies={"*": policy},
        )  # fmt: skip

        assert result == forked
        assert sorted([*sent, *sent]) == sorted(letters(tmp_path / "outbox"))

    in_loop(check())


@pytest.mark.parametrize("policy", ["block", "replay"])
@pytest.mark.parametrize("way", ["gather", "children"])
def test_policies_hold_in_forks_of_forks_at_every_entry(policy: str, way: str, tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        result = await run_source(place, mailing, order_in(tmp_path, "undeclared", way))
        sent = letters(tmp_path / "outbox")
        expected = blocked(result, "block") if policy == "block" else result
        async with open_app(place, poll_seconds=NEVER_SECONDS, recover=True) as app:
            fork = await app.fork(
                SOURCE_ID, run_id="f1", before_task="mailings.draft", tool_policies=policies_for("undeclared", policy)
            )
            assert expected == await fork.result()
            last = len([entry async for entry in app.events("f1")])
            for seq in range(1, last):
                again = await app.fork("f1", run_id=f"f1+{seq}", fork_point_seq=seq)
                assert expected == await again.result()
                assert policies_for("undeclared", policy) == again.receipt.tool_policies

        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


def test_a_fork_of_a_fork_may_override_a_policy(tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        result = await run_source(place, mailing, order_in(tmp_path, "undeclared", "children"))
        sent = letters(tmp_path / "outbox")
        async with open_app(place, recover=True) as app:
            one = await app.fork(SOURCE_ID, run_id="f1", before_task="mailings.draft", tool_policies={"*": "block"})
            with pytest.raises(TaskBlockedError):
                await one.result()
            two = await app.fork("f1", run_id="f2", fork_point_seq=2, tool_policies={"mailings.draft": "live"})
            assert blocked(result, "block") == await two.result()
            assert sent == letters(tmp_path / "outbox")
            three = await app.fork("f2", run_id="f3", before_task="mailings.draft", tool_policies={"*": "auto"})
            assert result == await three.result()

        assert {"*": "auto", "mailings.draft": "live"} == three.receipt.tool_policies
        assert 2 * len(sent) == len(letters(tmp_path / "outbox"))

    in_loop(check())


def test_no_retry_gets_around_a_policy(tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        await run_source(place, mailing, order_in(tmp_path, "retried", "sequence"))
        sent = letters(tmp_path / "outbox")
        async with open_app(place) as app:
            entries = [entry.type async for entry in app.events(SOURCE_ID)]
        for seq, type in enumerate(entries, 1):
            if type == EntryType.TASK_ATTEMPT_FAILED:
                await fork_crashing_everywhere(
                    place, ["dear all", "block: one", "block: two"], fork_point_seq=seq,
                    tool_policies={"*": "block", "mailings.draft": "auto"},
                ) if seq < 8 else None  # fmt: skip

        assert 6 == len(sent)
        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


@pytest.mark.parametrize("starter", list(STARTERS))
@pytest.mark.parametrize("policy", ["block", "replay"])
@pytest.mark.parametrize("effect", ["external", "undeclared"])
def test_runs_that_a_task_brings_about_obey_the_policies(
    effect: str, policy: str, starter: str, tmp_path: Path
) -> None:
    async def check() -> None:
        place, order = tmp_path / "journal", order_in(tmp_path, effect, starter)
        async with open_app(place) as app:
            await app.start(one_letter, order, run_id="other").result()
            result = await app.start(through_runs, order, run_id=SOURCE_ID).result()
            sent = letters(tmp_path / "outbox")
            # A fork of another run has the result of that one to replay; other runs have none.
            is_answered = policy == "replay" and starter in ("fork", "sweep")
            fork = await app.fork(
                SOURCE_ID, run_id="f", before_task="mailings.draft", tool_policies={SENDER_NAMES[effect]: policy}
            )
            assert (result if is_answered else blocked(result, policy)) == await fork.result()
            assert sent == letters(tmp_path / "outbox")
            if effect == "external":
                unnamed = await app.fork(SOURCE_ID, run_id="g", before_task="mailings.draft")
                assert blocked(result, "block") == await unnamed.result()
                assert sent == letters(tmp_path / "outbox")
            free = await app.fork(
                SOURCE_ID, run_id="h", before_task="mailings.draft", tool_policies={SENDER_NAMES[effect]: "live"}
            )
            assert result == await free.result()
            assert len(sent) + 1 == len(letters(tmp_path / "outbox"))
            for run in await app.runs():
                assert (await app.verify(run.run_id)).is_intact

    in_loop(check())


def test_a_run_that_a_task_starts_obeys_the_policies_after_any_crash(tmp_path: Path) -> None:
    async def check() -> None:
        order = order_in(tmp_path, "undeclared", "start")
        result = await run_source(tmp_path / "journal", through_runs, order)
        sent = letters(tmp_path / "outbox")
        crashes = await fork_crashing_everywhere(
            tmp_path / "journal", blocked(result, "block"), before_task="mailings.draft",
            tool_policies={SENDER_NAMES["undeclared"]: "block"},
        )  # fmt: skip

        assert 3 <= crashes
        assert sent
        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


@pytest.mark.parametrize("policy", ["block", "replay"])
@effects
def test_a_task_that_another_task_calls_itself_is_not_run_either(effect: str, policy: str, tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        assert ["sent nested", "sent again"] == await run_source(place, through_a_task, order_in(tmp_path, effect, ""))
        sent = letters(tmp_path / "outbox")
        name = SENDER_NAMES[effect]
        async with open_app(place) as app:
            options: dict[str, Any] = {"before_task": "mailings.draft"}
            fork = await app.fork(SOURCE_ID, run_id="f", tool_policies={name: policy}, **options)
            assert [f"{policy}: {name}"] == await fork.result()
            assert sent == letters(tmp_path / "outbox")
            free = await app.fork(SOURCE_ID, run_id="g", tool_policies={"*": "live"}, **options)
            assert ["sent nested", "sent again"] == await free.result()

        assert 2 * len(sent) == len(letters(tmp_path / "outbox"))

    in_loop(check())


# --- in flight at the cut ---------------------------------------------------------------------------------------------


ACTIONS: Final[dict[tuple[str, str | None], str]] = {
    ("pure", "auto"): "rerun",
    ("idempotent", "auto"): "rerun",
    ("undeclared", "auto"): "rerun",
    ("external", "auto"): "ask",
    ("pure", None): "rerun",
    ("idempotent", None): "rerun",
    ("undeclared", None): "rerun",
    ("external", None): "block",
    **{(effect, policy): policy for effect in EFFECTS for policy in ("block", "replay")},
    **{(effect, "live"): "rerun" for effect in EFFECTS},
}


@effects
@pytest.mark.parametrize("policy", [None, "auto", "live", "block", "replay"])
def test_a_call_in_flight_at_the_cut_does_what_effect_and_policy_say(
    effect: str, policy: str | None, tmp_path: Path
) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        result = await run_source(place, mailing, order_in(tmp_path, effect, "gather"))
        sent = letters(tmp_path / "outbox")
        options: dict[str, Any] = {} if policy is None else {"tool_policies": {SENDER_NAMES[effect]: policy}}
        action = ACTIONS[effect, policy]
        async with open_app(place) as app:
            entries = [entry.type async for entry in app.events(SOURCE_ID)]
            seq = [seq for seq, type in enumerate(entries, 1) if type == EntryType.TASK_SCHEDULED][-1]
            plan = await app.plan_fork(SOURCE_ID, fork_point_seq=seq, **options)
            fork = await app.fork(SOURCE_ID, run_id="f", fork_point_seq=seq, **options)
            match action:
                case "ask":
                    with pytest.raises(NeedsDecisionError):
                        await fork.result()
                    for _ in range(3):
                        await app.decide("f", value="decided")
                        await settle(app)
                    assert [result[0], *["decided"] * 3] == await fork.result()
                case "block":
                    assert blocked(result, "block") == await fork.result()
                case _:
                    assert result == await fork.result()

        in_flight = [call.action for call in fork.receipt.in_flight]
        assert [action] * 3 == in_flight
        assert [action] * 3 == [call.action for call in plan.calls if call.call.startswith(SENDER_NAMES[effect])]
        assert len(sent) + (3 if action == "rerun" else 0) == len(letters(tmp_path / "outbox"))

    in_loop(check())


@satay.task(name="policies.post", effect="external", retries=2)
async def post() -> int:
    attempt = satay.task_context().attempt
    if attempt == 1:
        raise ConnectionError("not sent")
    return attempt


@satay.workflow(name="policies.posted")
async def posted() -> int:
    return await post()


def test_an_external_call_that_was_between_two_attempts_at_the_cut_is_not_asked_about(tmp_path: Path) -> None:
    async def action_at(app: AppUnderTest, source_id: str, type: EntryType, fork_id: str) -> str:
        """What plan and receipt say of the call in a fork after that entry, where the fork does that."""
        seq = 1 + [entry.type async for entry in app.events(source_id)].index(type)
        policies = {"policies.post": "auto"}
        plan = await app.plan_fork(source_id, fork_point_seq=seq, tool_policies=policies)
        fork = await app.fork(source_id, run_id=fork_id, fork_point_seq=seq, tool_policies=policies)
        actions = [call.action for call in plan.calls]
        assert actions == [call.action for call in fork.receipt.in_flight]
        if actions == ["ask"]:
            with pytest.raises(NeedsDecisionError):
                await fork.result()
            await app.decide(fork_id, "rerun")
            await settle(app)
        assert await fork.result() >= 2
        return actions[0]

    async def check() -> None:
        async with open_app(tmp_path) as app:
            await app.start(posted, run_id=SOURCE_ID).result()
            cuts = (
                (SOURCE_ID, EntryType.TASK_SCHEDULED, "ask"),
                (SOURCE_ID, EntryType.TASK_ATTEMPT_FAILED, "rerun"),
                (SOURCE_ID, EntryType.TASK_ATTEMPT_STARTED, "ask"),
                ("f0", EntryType.DECISION_REQUESTED, "ask"),
                ("f0", EntryType.DECISION_MADE, "rerun"),
            )
            found = [await action_at(app, source, type, f"f{n}") for n, (source, type, _) in enumerate(cuts)]

        assert [action for *_, action in cuts] == found

    in_loop(check())


@pytest.mark.parametrize("policy", ["block", "replay"])
def test_children_in_flight_at_the_cut_obey_the_policies(policy: str, tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        order = order_in(tmp_path, "undeclared", "")
        result = await run_source(place, with_a_slow_child, order)
        sent = letters(tmp_path / "outbox")
        expected = [
            "sent early",
            *(["block: late"] if policy == "block" else ["sent late"]),
            "sent early from the grandchild",
            *(["block: late from the grandchild"] if policy == "block" else ["sent late from the grandchild"]),
        ]
        crashes = await fork_crashing_everywhere(
            place, expected, before_task="mailings.draft", start=LATER, tool_policies={"mailings.send": policy}
        )

        assert 10 <= crashes
        assert 4 == len(sent) == len(result)
        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


def test_a_child_in_flight_at_the_cut_goes_on_from_where_it_stood(tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        result = await run_source(place, with_a_slow_child, order_in(tmp_path, "undeclared", ""))
        async with open_app(place, clock=ManualClock(LATER, autojump=True)) as app:
            fork = await app.fork(SOURCE_ID, run_id="f", before_task="mailings.draft")
            assert result == await fork.result()
            of_fork = await app.fork("f", run_id="ff", before_task="mailings.draft")
            assert result == await of_fork.result()

        assert ["early", "early from the grandchild", *["late", "late from the grandchild"] * 3] == letters(
            tmp_path / "outbox"
        )

    in_loop(check())


# --- replay -----------------------------------------------------------------------------------------------------------


@satay.task(name="policies.look_up")
async def look_up(question: dict[str, Any]) -> str:
    looked_up.append(str(question["q"]))
    if question["q"] == "broken":
        raise LookupError("no such page")
    return f"{question['q']}!" * int(question.get("times", 1))


looked_up: list[str] = []


@satay.workflow(name="policies.ask")
async def ask(questions: list[dict[str, Any]]) -> list[str]:
    found = []
    await wait_a_moment()
    for question in questions:
        try:
            found.append(await look_up(question))
        except (LookupError, TaskBlockedError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@satay.task(name="policies.wait_a_moment")
async def wait_a_moment() -> None:
    return None


async def replayed(place: Path, questions: list[Any], now: Any = satay.MISSING, **options: Any) -> tuple[Any, Any]:
    """The results of a source and of a fork of it under `replay`."""
    looked_up.clear()
    async with open_app(place) as app:
        result = await app.start(ask, questions, run_id="s").result()
        count = len(looked_up)
        given = {} if now is satay.MISSING else {"workflow_input": now}
        options = {"before_task": "policies.wait_a_moment"} | given | options
        fork = await app.fork("s", run_id="f", tool_policies={"policies.look_up": "replay"}, **options)
        forked = await fork.result()
        assert count == len(looked_up)
        return result, forked


def test_replay_answers_with_the_recorded_results_and_failures(tmp_path: Path) -> None:
    result, forked = in_loop(replayed(tmp_path, [{"q": "a"}, {"q": "broken"}, {"q": "b"}]))

    assert ["a!", "LookupError: no such page", "b!"] == result == forked


def test_replay_refuses_other_arguments_and_says_where_they_differ(tmp_path: Path) -> None:
    _, forked = in_loop(replayed(tmp_path, [{"q": "a"}, {"q": "b"}], [{"q": "a"}, {"q": "b", "times": 2}]))

    assert "a!" == forked[0]
    assert "TaskBlockedError" in forked[1]
    assert "its arguments differ from the source's at $" in forked[1]
    assert "times" in forked[1]


def test_replay_takes_equal_arguments_in_another_order_of_members(tmp_path: Path) -> None:
    _, forked = in_loop(replayed(tmp_path, [{"q": "a", "times": 2}], [{"times": 2, "q": "a"}]))

    assert ["a!a!"] == forked


def test_replay_refuses_a_call_that_the_source_never_made(tmp_path: Path) -> None:
    _, forked = in_loop(replayed(tmp_path, [{"q": "a"}], [{"q": "a"}, {"q": "b"}]))

    assert "the source made no such call" in forked[1]


def test_replay_reads_large_arguments_and_results(tmp_path: Path) -> None:
    large = {"q": "x" * 300_000, "times": 2}
    result, forked = in_loop(replayed(tmp_path, [large, {"q": "a"}]))

    assert result == forked


def test_replay_tells_large_arguments_apart(tmp_path: Path) -> None:
    one, other = {"q": "x" * 300_000}, {"q": "x" * 300_000 + "y"}
    _, forked = in_loop(replayed(tmp_path, [one], [other]))

    assert "its arguments differ from the source's at $" in forked[0]


def test_an_answer_from_the_source_says_where_it_comes_from(tmp_path: Path) -> None:
    async def check() -> None:
        await replayed(tmp_path, [{"q": "a"}, {"q": "broken"}])
        async with open_app(tmp_path) as app:
            journal = (await app._ready()).journal
            entries, source = await journal.read("f"), await journal.read("s")
        answers = [facts(entry) for entry in entries if "reused_from" in entry.payload]

        assert ["s", "s"] == [answer["reused_from"] for answer in answers]
        assert [EntryType.TASK_COMPLETED, EntryType.TASK_FAILED] == [
            source[answer["reused_seq"] - 1].type for answer in answers
        ]

    in_loop(check())


def test_replay_from_a_source_that_is_a_fork_itself(tmp_path: Path) -> None:
    async def check() -> None:
        await replayed(tmp_path, [{"q": "a"}, {"q": "broken"}])
        async with open_app(tmp_path) as app:
            second = await app.fork("f", run_id="ff", before_task="policies.wait_a_moment")
            assert ["a!", "LookupError: no such page"] == await second.result()
            cut_later = await app.fork("ff", run_id="fff", before_task="policies.look_up", before_ordinal=1)
            assert ["a!", "LookupError: no such page"] == await cut_later.result()

        assert ["a", "broken"] == looked_up

    in_loop(check())


def test_replay_refuses_a_call_without_an_outcome_in_an_unfinished_source(tmp_path: Path) -> None:
    async def check() -> None:
        looked_up.clear()
        faults = Faults().crash_before(type=EntryType.TASK_COMPLETED, count=2)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(ask, [{"q": "a"}, {"q": "b"}], run_id="s")
            await faults.crashed
        async with open_app(tmp_path) as app:
            options: dict[str, Any] = {"tool_policies": {"policies.look_up": "replay"}, "allow_unfinished": True}
            fork = await app.fork("s", run_id="f", before_task="policies.wait_a_moment", **options)
            forked = await fork.result()
            last = len([entry async for entry in app.events("f")])
            assert 1 < last

        assert "the call has no outcome in the source" in forked[0]

    in_loop(check())


def test_replay_in_continued_runs_and_children_answers_from_the_same_run_of_the_source(tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        result = await run_source(place, mailing, order_in(tmp_path, "undeclared", "continued"))
        sent = letters(tmp_path / "outbox")
        async with open_app(place, recover=True) as app:
            fork = await app.fork(
                SOURCE_ID, run_id="f", before_task="mailings.draft", tool_policies={"mailings.send": "replay"}
            )
            assert result == await fork.result()
            again = await app.fork("f", run_id="ff", before_task="mailings.draft")
            assert result == await again.result()

        assert sent == letters(tmp_path / "outbox")

    in_loop(check())


# --- what a refusal says ----------------------------------------------------------------------------------------------


@satay.workflow(name="policies.refused")
async def refused(outbox: str) -> dict[str, Any]:
    await draft("first")
    try:
        await send_external(outbox, "letter")
    except TaskBlockedError as error:
        told = {name: getattr(error, name) for name in ("task", "policy", "reason", "cut", "fork_id", "receipt_id")}
        await satay.sleep(1)
        return told | {"text": str(error)}
    return {}


def test_a_refusal_is_journalled_and_says_the_same_live_and_on_replay(tmp_path: Path) -> None:
    async def check() -> None:
        outbox = str(tmp_path / "outbox")
        async with open_app(tmp_path / "journal") as app:
            await app.start(refused, outbox, run_id="s").result()
            fork = await app.fork("s", run_id="f", before_task="mailings.draft")
            told = await fork.result()
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
        async with open_app(tmp_path / "journal", faults=faults) as app:
            await app.fork("s", run_id="g", before_task="mailings.draft")
            await faults.crashed
        async with open_app(tmp_path / "journal") as app:
            again = await app.resume("g").result()
            receipt = await app.receipt("g")
            entries = await (await app._ready()).journal.read("f")
            refusals = [facts(entry) for entry in entries if entry.type == EntryType.TASK_BLOCKED]

        assert fork.receipt.receipt_id == told["receipt_id"]
        assert ("mailings.send_external", "block", "f") == (told["task"], told["policy"], told["fork_id"])
        assert "effect='external'" in told["reason"]
        assert fork.receipt.cut == told["cut"]
        assert "tool_policies={'mailings.send_external': 'live'}" in told["text"]
        assert receipt is not None
        assert receipt.receipt_id == again["receipt_id"]
        assert {**told, "fork_id": "", "receipt_id": "", "text": ""} == {
            **again, "fork_id": "", "receipt_id": "", "text": ""
        }  # fmt: skip
        assert [("block", told["cut"], "f", told["receipt_id"])] == [
            tuple(each["refusal"][name] for name in ("policy", "cut", "fork_id", "receipt_id")) for each in refusals
        ]
        assert ["letter"] == letters(tmp_path / "outbox")

    in_loop(check())


@satay.workflow(name="policies.unguarded")
async def unguarded(outbox: str) -> str:
    await draft("first")
    return await send_external(outbox, "letter")


def test_a_refusal_that_nobody_catches_is_the_runs_error(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_app(tmp_path / "journal") as app:
            await app.start(unguarded, str(tmp_path / "outbox"), run_id="s").result()
            fork = await app.fork("s", run_id="f", before_task="mailings.draft")
            with pytest.raises(TaskBlockedError) as caught:
                await fork.result()
        async with open_app(tmp_path / "journal") as app:
            with pytest.raises(TaskBlockedError) as later:
                await app.handle("f").result()

        assert "mailings.send_external" == caught.value.task == later.value.task
        assert "f" == caught.value.fork_id == later.value.fork_id
        assert str(caught.value) == str(later.value)

    in_loop(check())


# --- bad policies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policies",
    [
        {"mailings.sned": "block"},
        {"mailings.send": "blok"},
        {"mailings.send": None},
        {"mailings.send": 1},
        {"mailings.send": "Block"},
        {5: "block"},
        {None: "block"},
        ["block"],
        "block",
        7,
        {"": "block"},
    ],
)
def test_bad_policies_are_one_clear_error_and_nothing_is_written(policies: Any, tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        await run_source(place, mailing, order_in(tmp_path, "undeclared", "sequence"))
        async with open_app(place) as app:
            before = [run.run_id for run in await app.runs()]
            for act in (app.fork, app.plan_fork):
                with pytest.raises(InvalidValueError, match="tool_policies"):
                    await act(SOURCE_ID, before_task="mailings.draft", tool_policies=policies)

            assert before == [run.run_id for run in await app.runs()]

    in_loop(check())


def test_policies_that_are_changed_after_the_fork_was_made_change_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        place = tmp_path / "journal"
        result = await run_source(place, mailing, order_in(tmp_path, "undeclared", "sequence"))
        policies = {"mailings.send": "block"}
        async with open_app(place) as app:
            fork = await app.fork(SOURCE_ID, run_id="f", before_task="mailings.draft", tool_policies=policies)
            policies["mailings.send"] = "live"
            assert blocked(result, "block") == await fork.result()

        assert {"mailings.send": "block"} == fork.receipt.tool_policies

    in_loop(check())


def test_a_cancelled_fork_sends_nothing_while_it_cleans_up(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_app(tmp_path / "journal") as app:
            source = app.start(cleaning, str(tmp_path / "outbox"), run_id="s")
            await source
            await app.cancel("s")
            with pytest.raises(satay.errors.WorkflowCancelledError):
                await source.result()
            assert ["goodbye"] == letters(tmp_path / "outbox")
            await app.fork("s", run_id="f", fork_point_seq=1)
            await app.cancel("f")
            with pytest.raises(satay.errors.WorkflowCancelledError):
                await app.handle("f").result()

        assert ["goodbye"] == letters(tmp_path / "outbox")

    in_loop(check())


@satay.workflow(name="policies.cleaning")
async def cleaning(outbox: str) -> None:
    try:
        await satay.wait_for_event("never")
    finally:
        await send_external(outbox, "goodbye")


# --- costs ------------------------------------------------------------------------------------------------------------


@satay.task(name="policies.ask_model")
async def ask_model(question: str) -> str:
    satay.task_context().record_usage(model="m", input_tokens=10, output_tokens=5, cost=0.25)
    return question.upper()


@satay.workflow(name="policies.asking")
async def asking(question: str) -> str:
    return await ask_model(await draft_question(question))


@satay.task(name="policies.draft_question")
async def draft_question(question: str) -> str:
    return question


def test_what_a_replayed_call_cost_in_the_source_is_saved_and_not_the_forks_own(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_app(tmp_path) as app:
            await app.start(asking, "why", run_id="src").result()
            policies = {"policies.ask_model": "replay"}
            fork = await satay.fork("src", before_task=draft_question, tool_policies=policies)
            assert "WHY" == await fork.result()
            comparison = await satay.compare("src", fork.run_id)

        assert comparison.other.reused is not None
        assert (1, 0.25) == (comparison.other.reused.by_policy, comparison.other.reused.usage.cost)
        assert 0.0 == comparison.other.own_usage.cost

    in_loop(check())
