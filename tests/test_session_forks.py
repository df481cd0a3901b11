"""Forks of sessions: of every step, in every mode, of sessions in every condition, and never changed afterwards."""

import asyncio
import dataclasses
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import satay
from satay import BoundaryMode, ForkReceipt, Reproducibility
from satay.app import app_of_block
from satay.errors import (
    ForkValidationError,
    InvalidValueError,
    JournalClosedError,
    NoRestorableStateError,
    RunConflictError,
    RunEndedError,
    SessionLostError,
)
from satay.journal import chain_digest
from satay.model import Entry, RunStatus
from satay.snapshots import sha256_of
from satay.stores.locations import DATABASE_FILE
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app, pause
from tests.test_invariants import History

pytestmark = pytest.mark.anyio

STEPS = 9


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Agent:
    """A loop that counts to nine, and how often it made each step."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.state: dict[str, Any] = {"n": 0, "notes": []}
        self.made: list[int] = []

    def session(self, session_id: str) -> satay.Session:
        return satay.Session(session_id, state_fn=lambda: self.state, state_interval=self.every)

    async def work(self, session: satay.Session, through: int = STEPS) -> None:
        for number in range(session.last_step + 1, through + 1):
            self.made.append(number)
            self.state["n"] = number
            self.state["notes"] = [*self.state["notes"], f"note {number}"]
            await session.step("work", input=number, output=f"note {number}")

    def state_after(self, number: int) -> dict[str, Any]:
        return {"n": number, "notes": [f"note {each}" for each in range(1, number + 1)]}


async def record_nine(session_id: str = "s", every: int = 1) -> Agent:
    agent = Agent(every)
    async with agent.session(session_id) as session:
        await agent.work(session)
    return agent


def types_of(place: Path, run_id: str) -> list[str]:
    return [entry.type for entry in History.of(place).entries[run_id]]


# --- what a fork is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_step", range(1, STEPS + 1))
async def test_the_prefix_is_never_made_again(at_step: int, tmp_path: Path) -> None:
    async with open_app(tmp_path):
        agent = await record_nine()
        agent.made.clear()
        fork = await satay.Session.resume("s", fork_at_step=at_step, name="f", state_fn=lambda: agent.state)
        async with fork:
            agent.state = fork.inherited_state
            await agent.work(fork)
            steps = await fork.steps()
            states = [await fork.state_at(number) for number in range(1, STEPS + 1)]

    assert list(range(at_step + 1, STEPS + 1)) == agent.made
    assert [number <= at_step for number in range(1, STEPS + 1)] == [step.is_inherited for step in steps]
    assert [agent.state_after(number) for number in range(1, STEPS + 1)] == states


UNRESTORABLE = [("exact", None), ("exact", 1), ("exact", STEPS), ("nearest", 1)]
"""Which forks there cannot be of nine steps of which every second has a state."""


@pytest.mark.parametrize("at_step", [None, 1, 4, 6, 8, STEPS])
@pytest.mark.parametrize("boundary", ["exact", "nearest", "lineage"])
async def test_a_fork_by_id_is_the_fork_of_the_live_session(at_step: int | None, boundary: Any, tmp_path: Path) -> None:
    agent = Agent(every=2)
    made: list[ForkReceipt | str] = []
    async with open_app(tmp_path), agent.session("s") as session:
        await session.call("send", len, "before", key="first")
        await agent.work(session)
        await session.call("late", len, "after", key="last")
        for source in (session, agent.session("s")):
            try:
                fork = await source.fork(at_step=at_step, boundary=boundary)
                assert fork.receipt is not None
                made.append(dataclasses.replace(fork.receipt, run_id=""))
            except NoRestorableStateError as refused:
                made.append(str(refused))

    assert made[0] == made[1]
    assert isinstance(made[0], str) == ((boundary, at_step) in UNRESTORABLE)


async def test_a_fork_of_a_live_session_leaves_it_as_it_was(tmp_path: Path) -> None:
    agent = Agent()
    async with open_app(tmp_path):
        async with agent.session("s") as session:
            await agent.work(session, 7)
            before = History.of(tmp_path).digest(["s"])
            fields = fields_of(session)
            fork = await session.fork(at_step=5, name="f", intervention={"model": "b"}, tool_policies={"*": "block"})
            async with fork:
                await fork.step("own")
            after = History.of(tmp_path).digest(["s"])

            assert fields == fields_of(session)
            assert before == after
            await agent.work(session, 8)

            assert (8, agent.state_after(8)) == (session.last_step, session.state)
        assert (await satay.verify("s")).is_intact
        assert (await satay.verify("f")).is_intact


def fields_of(session: satay.Session) -> tuple[Any, ...]:
    return (
        session.run_id,
        session.status,
        session.last_step,
        session.state,
        session.receipt,
        session.inherited_state,
        session.intervention,
    )


async def test_a_fork_that_is_worked_on_never_changes_its_source(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        before = History.of(tmp_path).digest(["s"])
        for name in ("a", "b"):
            fork = await satay.Session.resume("s", fork_at_step=3, name=name, state_fn=lambda: 1)
            async with fork:
                await fork.step("own")
                await (await fork.fork(name=f"{name}/c")).__aenter__()

    assert before == History.of(tmp_path).digest(["s"])


async def test_a_fork_goes_on_with_a_copy_of_the_state_and_the_intervention(tmp_path: Path) -> None:
    intervention = {"model": "b", "seeds": [1, 2]}
    async with open_app(tmp_path):
        agent = await record_nine()
        fork = await satay.Session.resume("s", fork_at_step=5, name="f", intervention=intervention)
        intervention["model"] = "changed"
        async with fork:
            fork.inherited_state["n"] = 99
            fork.intervention["seeds"].append(3)

            assert agent.state_after(5) == fork.inherited_state == fork.state
            assert {"model": "b", "seeds": [1, 2]} == fork.intervention


async def test_the_intervention_and_the_state_survive_a_crash_and_a_resumption(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        agent = await record_nine()
        fork = await satay.Session.resume("s", fork_at_step=5, name="f", intervention={"model": "b"})
        await fork.__aenter__()
        await fork.step("own")
        await abandon(app)
    async with open_app(tmp_path), satay.Session("f") as again:
        assert {"model": "b"} == again.intervention
        assert agent.state_after(5) == again.inherited_state
        assert fork.receipt == again.receipt
        assert 6 == again.last_step


async def test_the_fork_of_a_fork_has_its_own_intervention_and_the_policies_of_both(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        one = await satay.Session.resume(
            "s", fork_at_step=5, name="one", intervention=1, tool_policies={"*": "block"}, state_fn=lambda: 1
        )
        async with one:
            await one.step("own")
        other = await satay.Session.resume("one", fork_at_step=6, name="other")

        assert other.intervention is None
        assert other.receipt is not None
        assert {"*": "block"} == other.receipt.tool_policies
        assert ("one", "s") == (other.receipt.source_id, other.receipt.root_id)


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_fork_that_crashed_before_its_first_step_goes_on_after_the_boundary(
    crashes: int, tmp_path: Path
) -> None:
    async with open_app(tmp_path):
        agent = await record_nine()
        await satay.Session.resume("s", fork_at_step=5, name="f")
    for _ in range(crashes):
        async with open_app(tmp_path) as app:
            await satay.Session("f").__aenter__()
            await abandon(app)
    async with open_app(tmp_path), satay.Session("f") as again:
        step = await again.step("own")

        assert 6 == step.number
        assert agent.state_after(5) == again.inherited_state


async def test_a_fork_that_completed_is_gone_on_with_only_when_asked(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        async with satay.Session.resume("s", fork_at_step=5, name="f") as fork:
            await fork.step("own")
        again = await satay.Session.resume("s", fork_at_step=5, name="f")
        with pytest.raises(RunEndedError):
            await again.__aenter__()
        async with satay.Session.resume("f") as reopened:
            assert 6 == reopened.last_step


async def test_siblings_are_made_and_worked_on_side_by_side(tmp_path: Path) -> None:
    async def explore(parent: satay.Session, number: int) -> tuple[int, Any]:
        own = {"n": number}
        fork = await parent.fork(at_step=3, name=f"s/{number}", intervention=number, state_fn=lambda: own)
        async with fork:
            await asyncio.gather(*(fork.step("own") for _ in range(3)))
            return fork.last_step, fork.state

    async with open_app(tmp_path):
        agent = Agent()
        async with agent.session("s") as session:
            await agent.work(session, 3)
            found = await asyncio.gather(*(explore(session, number) for number in range(12)), agent.work(session))

        assert [(6, {"n": number}) for number in range(12)] == found[:12]
        for name in ("s", *(f"s/{number}" for number in range(12))):
            assert (await satay.verify(name)).is_intact


# --- boundaries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_step", [3, 6, 9])
@pytest.mark.parametrize("boundary", ["exact", "nearest"])
async def test_the_state_that_is_handed_over_is_that_of_the_very_step(
    at_step: int, boundary: Any, tmp_path: Path
) -> None:
    async with open_app(tmp_path):
        agent = await record_nine(every=3)
        fork = await satay.Session.resume("s", fork_at_step=at_step, boundary=boundary, name="f")
        async with fork:
            assert (agent.state_after(at_step), at_step) == (fork.inherited_state, fork.last_step)
        told = boundary_of(fork)
        text = json.dumps(agent.state_after(at_step), separators=(",", ":"))

        assert (at_step, at_step, at_step) == (told.requested_step, told.resolved_step, told.state_step)
        assert (at_step // 3, sha256_of(text)) == (told.state_version, told.state_sha256)
        assert told.mode == boundary


def boundary_of(fork: satay.Session) -> satay.SessionBoundary:
    assert fork.receipt is not None
    assert fork.receipt.boundary is not None
    return fork.receipt.boundary


@pytest.mark.parametrize("at_step", [1, 2, 4, 5, 7, 8])
async def test_exact_makes_nothing_where_there_is_no_state(at_step: int, tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine(every=3)
        before = History.of(tmp_path).digest(["s"])
        with pytest.raises(NoRestorableStateError) as refused:
            await satay.Session.resume("s", fork_at_step=at_step, name="f")

    assert (at_step // 3 * 3 or None, at_step // 3 * 3 + 3) == (refused.value.before, refused.value.after)
    assert ["s"] == list(History.of(tmp_path).records)
    assert before == History.of(tmp_path).digest(["s"])


@pytest.mark.parametrize("at_step", [4, 5, 7, 8])
async def test_nearest_goes_on_after_the_step_whose_state_it_takes_and_says_so(at_step: int, tmp_path: Path) -> None:
    resolved = at_step // 3 * 3
    async with open_app(tmp_path):
        agent = await record_nine(every=3)
        async with satay.Session.resume("s", fork_at_step=at_step, boundary="nearest", name="f") as fork:
            step = await fork.step("own")

            assert agent.state_after(resolved) == fork.inherited_state
            assert resolved + 1 == step.number
        told = boundary_of(fork)

        assert (at_step, resolved, resolved) == (told.requested_step, told.resolved_step, told.state_step)
        assert Reproducibility.APPROXIMATE is told.reproducibility
        assert f"step {at_step} has no state; the state is that of step {resolved}" in told.missing


@pytest.mark.parametrize("at_step", [1, 2])
async def test_nearest_never_hands_over_a_later_state(at_step: int, tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine(every=3)
        with pytest.raises(NoRestorableStateError):
            await satay.Session.resume("s", fork_at_step=at_step, boundary="nearest", name="f")

    assert ["s"] == list(History.of(tmp_path).records)


@pytest.mark.parametrize("at_step", range(STEPS + 1))
async def test_lineage_hands_over_no_state_and_goes_on_after_the_step(at_step: int, tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine(every=3)
        fork = await satay.Session.resume("s", fork_at_step=at_step, boundary="lineage", name="f", state_fn=lambda: 5)
        async with fork:
            handed = fork.inherited_state, fork.state
            step = await fork.step("own")

            assert (None, None) == handed
            assert (at_step + 1, 5) == (step.number, fork.state)
        told = boundary_of(fork)

        assert (BoundaryMode.LINEAGE, at_step, None, None) == (
            told.mode,
            told.resolved_step,
            told.state_step,
            told.state_sha256,
        )
        assert fork.receipt is not None
        assert not fork.receipt.is_restorable


@pytest.mark.parametrize("at_step", [10, 99])
@pytest.mark.parametrize("boundary", ["exact", "nearest", "lineage"])
async def test_a_step_that_there_is_not_is_refused(at_step: int, boundary: Any, tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        with pytest.raises(ForkValidationError, match="steps are 1 to 9"):
            await satay.Session.resume("s", fork_at_step=at_step, boundary=boundary, name="f")

    assert ["s"] == list(History.of(tmp_path).records)


async def test_without_a_step_a_live_session_is_forked_at_its_last_one(tmp_path: Path) -> None:
    agent = Agent()
    async with open_app(tmp_path), agent.session("s") as session:
        await agent.work(session, 4)
        fork = await session.fork(name="f")
        await agent.work(session, 6)
        again = await session.fork(name="f")

        assert (4, 4) == (boundary_of(fork).resolved_step, boundary_of(again).resolved_step)
        assert again.receipt is not None
        assert again.receipt.replayed


# --- lineage ----------------------------------------------------------------------------------------------------------


async def test_forks_of_forks_are_nested_deeper_than_ten(tmp_path: Path) -> None:
    depth = 14
    async with open_app(tmp_path):
        parent = Agent()
        async with parent.session("g0") as session:
            await parent.work(session, 1)
        for level in range(1, depth + 1):
            await go_one_further(level)
        async with satay.Session.resume(f"g{depth}") as deepest:
            states = [await deepest.state_at(number) for number in range(1, depth + 2)]
        for step in range(1, depth + 2):
            fork = await satay.Session.resume(f"g{depth}", fork_at_step=step, name=f"of-{step}")

            assert fork.receipt is not None
            assert f"g{step - 1}" == fork.receipt.source_id
            assert (f"g{depth}", "g0") == (boundary_of(fork).asked_of, fork.receipt.root_id)
            assert (await satay.verify(f"of-{step}")).is_intact
            async with fork:
                assert Agent().state_after(step) == fork.inherited_state

    assert [Agent().state_after(number) for number in range(1, depth + 2)] == states


async def go_one_further(level: int) -> None:
    """Fork a generation at its last step, and make one step more."""
    agent = Agent()
    fork = await satay.Session.resume(
        f"g{level - 1}", fork_at_step=level, name=f"g{level}", state_fn=lambda: agent.state
    )
    async with fork:
        agent.state = fork.inherited_state
        await agent.work(fork, level + 1)


async def test_a_step_whose_ancestor_is_gone_is_forked_from_the_copy(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        agent = await record_nine()
        async with satay.Session.resume("s", fork_at_step=5, name="f", state_fn=lambda: 1) as fork:
            await fork.step("own")
    remove(tmp_path, "s")
    async with open_app(tmp_path):
        child = await satay.Session.resume("f", fork_at_step=3, name="g")
        verification = await satay.verify("f")
        trail = await satay.receipt("f")
        async with satay.Session.resume("f") as read:
            steps = [step.number for step in await read.steps()]
        async with child:
            assert agent.state_after(3) == child.inherited_state

        assert child.receipt is not None
        assert "f" == child.receipt.source_id
        assert verification.is_intact
        assert trail == fork.receipt
        assert list(range(1, 7)) == steps


def remove(place: Path, run_id: str) -> None:
    with closing(sqlite3.connect(place / DATABASE_FILE)) as connection, connection:
        connection.execute("DELETE FROM events WHERE run = (SELECT key FROM runs WHERE run_id = ?)", (run_id,))
        connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))


async def test_a_step_whose_ancestor_was_changed_is_forked_from_the_copy(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        agent = await record_nine()
        await satay.Session.resume("s", fork_at_step=5, name="f")
    tamper(tmp_path, "s", "note 2", "n0te 2", is_chained=True)
    async with open_app(tmp_path):
        child = await satay.Session.resume("f", fork_at_step=3, name="g")
        async with child:
            assert agent.state_after(3) == child.inherited_state

        assert child.receipt is not None
        assert "f" == child.receipt.source_id
        assert not (await satay.verify("f")).is_intact


def tamper(place: Path, run_id: str, old: str, new: str, *, is_chained: bool = False) -> int:
    """Change a text in the first entry of a run that has it, and with `is_chained` all digests from there on."""
    entries = History.of(place).entries[run_id]
    seq = next(entry.seq for entry in entries if old in entry.payload)
    changed: list[Entry] = []
    for entry in entries:
        payload = entry.payload.replace(old, new) if entry.seq == seq else entry.payload
        digest = entry.digest
        if is_chained and entry.seq >= seq:
            digest = chain_digest(changed[-1].digest, entry.type, entry.at, payload)
        changed.append(entry._replace(payload=payload, digest=digest))
    with closing(sqlite3.connect(place / DATABASE_FILE)) as connection, connection:
        connection.executemany(
            "UPDATE events SET payload = ?, digest = ? WHERE seq = ? AND run = (SELECT key FROM runs WHERE run_id = ?)",
            [(entry.payload, entry.digest, entry.seq, run_id) for entry in changed],
        )
    return seq


# --- receipts ---------------------------------------------------------------------------------------------------------


async def test_a_receipt_is_the_same_bytes_for_ever_and_shares_nothing(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        fork = await satay.Session.resume("s", fork_at_step=5, name="f", intervention={"a": [1]}, reason="to see")
        assert fork.receipt is not None
        text = fork.receipt.to_json()
        fork.receipt.intervention["a"].append(2)
        fork.receipt.to_dict()["cut"] = "elsewhere"
        async with fork:
            await fork.step("own")
        async with satay.Session.resume("s"):
            pass
    async with open_app(tmp_path):
        stored = await satay.receipt("f")

        assert stored is not None
        assert text == stored.to_json() == fork.receipt.to_json()
        assert stored == ForkReceipt.from_json(text)
        assert {"a": [1]} == stored.intervention


async def test_a_receipt_cannot_be_assigned_to(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        fork = await satay.Session.resume("s", fork_at_step=5, name="f")
        with pytest.raises(dataclasses.FrozenInstanceError):
            fork.receipt.cut = "elsewhere"  # type: ignore[misc, union-attr]  # It is what is refused.
        with pytest.raises(dataclasses.FrozenInstanceError):
            boundary_of(fork).state_step = 6  # type: ignore[misc]  # It is what is refused.


async def test_a_receipt_says_what_was_asked_for_and_what_was_inherited(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        fork = await satay.Session.resume(
            "s", fork_at_step=5, name="f", intervention=1, tool_policies={"*": "auto"}, reason="to see"
        )
        receipt = fork.receipt
        entries = History.of(tmp_path).entries

        assert receipt is not None
        assert ("f", "s", "s", 5, "exact") == (
            receipt.run_id,
            receipt.source_id,
            receipt.root_id,
            receipt.requested.at_step,
            receipt.requested.boundary,
        )
        assert ("after step 5", 12, "StateRecorded", len(entries["s"])) == (
            receipt.cut,
            receipt.resolved_seq,
            receipt.resolved_entry,
            receipt.source_head,
        )
        assert entries["s"][11].digest.hex() == receipt.prefix_digest == entries["f"][11].digest.hex()
        assert ({"*": "auto"}, 1, "to see", True) == (
            receipt.tool_policies,
            receipt.intervention,
            receipt.reason,
            receipt.is_restorable,
        )


async def test_a_receipt_says_what_the_calls_before_the_cut_cost_and_which_code_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    async def think(cost: float) -> float:
        satay.task_context().record_usage(model="m", input_tokens=10, cost=cost)
        await pause(4)
        return cost

    async def work() -> None:
        async with satay.Session("s", state_fn=lambda: 1) as session:
            await session.call("think", think, 0.25)
            await session.step("one")
            await session.call("think", think, 2.0)
            await session.step("two")

    async with open_app(tmp_path, clock=clock):
        monkeypatch.setenv("SATAY_CODE_VERSION", "v1")
        working = asyncio.ensure_future(work())
        await clock.advance(10)
        await working
        monkeypatch.setenv("SATAY_CODE_VERSION", "v2")
        receipt = (await satay.Session.resume("s", fork_at_step=1)).receipt

    assert receipt is not None
    assert (1, 0.25, 4.0) == (receipt.calls_inherited, receipt.saved_cost, receipt.saved_seconds)
    assert ("v1", "v2") == (receipt.source_code_version, receipt.code_version)


@pytest.mark.parametrize(
    ("effect", "policy", "action"),
    [
        (None, "auto", "rerun"),
        ("external", "auto", "ask"),
        ("external", "live", "rerun"),
        ("external", "block", "block"),
        (None, "replay", "replay"),
        ("external", None, "block"),
        ("idempotent", None, "rerun"),
    ],
)
async def test_a_receipt_says_what_becomes_of_a_call_that_was_outstanding_at_the_cut(
    effect: Any, policy: str | None, action: str, tmp_path: Path
) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def outlast() -> None:
        has_begun.set()
        await may_end.wait()

    policies = None if policy is None else {"outlast": policy}
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1) as session:
        calling = asyncio.ensure_future(session.call("outlast", outlast, key="k", effect=effect))
        await has_begun.wait()
        await session.step("one")
        fork = await session.fork(at_step=1, tool_policies=policies)
        may_end.set()
        await calling
        late = await session.fork(at_step=1, tool_policies=policies)

        for receipt in (fork.receipt, late.receipt):
            assert receipt is not None
            assert [("outlast[k]", 3, action)] == [(call.call, call.seq, call.action) for call in receipt.in_flight]
            assert 0 == receipt.calls_inherited


@pytest.mark.parametrize(
    ("old", "new"), [("after step 5", "after step 6"), ('\\"model\\"', '\\"m0del\\"'), ("note 2", "n0te 2")]
)
async def test_tampering_with_a_fork_is_found_and_the_entry_is_named(old: str, new: str, tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        await satay.Session.resume("s", fork_at_step=5, name="f", intervention={"model": "b"})
    seq = tamper(tmp_path, "f", old, new)
    async with open_app(tmp_path):
        verification = await satay.verify("f")

        assert verification.problem is not None
        assert seq == verification.problem.seq


async def test_tampering_with_a_receipt_and_all_digests_after_it_is_found(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        async with satay.Session.resume("s", fork_at_step=5, name="f", intervention={"model": "b"}) as fork:
            await fork.step("own")
    seq = tamper(tmp_path, "f", '"resolved_step":5', '"resolved_step":4', is_chained=True)
    async with open_app(tmp_path):
        verification = await satay.verify("f")

        assert verification.problem is not None
        assert verification.problem.seq in (1, seq)


async def test_a_state_that_was_tampered_with_is_not_handed_over(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        await satay.Session.resume("s", fork_at_step=1, name="f")
    tamper(tmp_path, "f", '"state":{"n":1', '"state":{"n":7', is_chained=True)
    async with open_app(tmp_path):
        with pytest.raises(satay.errors.JournalCorruptError, match="fingerprint"):
            await satay.Session("f").__aenter__()


# --- asking again -----------------------------------------------------------------------------------------------------


async def test_the_same_fork_is_made_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        asked: dict[str, Any] = {
            "fork_at_step": 5,
            "name": "f",
            "intervention": {"a": 1},
            "tool_policies": {"*": "block"},
        }
        forks = await asyncio.gather(*(satay.Session.resume("s", **asked) for _ in range(6)))
        receipts = [fork.receipt for fork in forks if fork.receipt is not None]

        assert 1 == len({receipt.to_json() for receipt in receipts})
        assert 1 == [receipt.replayed for receipt in receipts].count(False)
        assert {"s", "f"} == set(History.of(tmp_path).records)


@pytest.mark.parametrize(
    "other",
    [
        {"fork_at_step": 4},
        {"intervention": {"a": 2}},
        {"intervention": None},
        {"intervention": {"a": True}},
        {"tool_policies": {"*": "auto"}},
        {"tool_policies": None},
        {"boundary": "nearest"},
        {"reason": "another"},
    ],
)
async def test_another_request_under_the_same_name_is_a_conflict(other: dict[str, Any], tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        asked: dict[str, Any] = {"fork_at_step": 5, "intervention": {"a": 1}, "tool_policies": {"*": "block"}}
        await satay.Session.resume("s", name="f", **asked)
        before = History.of(tmp_path).digest(["s", "f"])
        with pytest.raises(RunConflictError, match=f"differently: {next(iter(other)).removeprefix('fork_')} differs"):
            await satay.Session.resume("s", name="f", **asked | other)

    assert before == History.of(tmp_path).digest(["s", "f"])


async def test_the_order_of_members_makes_no_other_request(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        for intervention in ({"model": "b", "heat": 1}, {"heat": 1, "model": "b"}):
            fork = await satay.Session.resume("s", fork_at_step=5, name="f", intervention=intervention)

    assert fork.receipt is not None
    assert fork.receipt.replayed


async def test_another_source_under_the_same_name_is_a_conflict(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine("s")
        await record_nine("t")
        await satay.Session.resume("s", fork_at_step=5, name="f")
        with pytest.raises(RunConflictError, match="session differs"):
            await satay.Session.resume("t", fork_at_step=5, name="f")


@pytest.mark.parametrize("name", ["s", "t"])
async def test_a_fork_onto_what_is_there_is_refused(name: str, tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine("s")
        await record_nine("t")
        before = History.of(tmp_path).digest(["s", "t"])
        with pytest.raises(RunConflictError, match="needs an id of its own"):
            await satay.Session.resume("s", fork_at_step=5, name=name)

    assert before == History.of(tmp_path).digest(["s", "t"])


@pytest.mark.parametrize(
    "make_faults", [lambda: Faults().crash_before(type="RunForked"), lambda: Faults().crash_after(type="RunForked")]
)
async def test_a_fork_is_there_whole_or_not_at_all_and_asking_again_makes_it_be_there_once(
    make_faults: Callable[[], Faults], tmp_path: Path
) -> None:
    async with open_app(tmp_path):
        agent = await record_nine()
    async with open_app(tmp_path, faults=make_faults()):
        with suppress(JournalClosedError):
            await satay.Session.resume("s", fork_at_step=5, name="f", intervention=1)
    async with open_app(tmp_path):
        fork = await satay.Session.resume("s", fork_at_step=5, name="f", intervention=1)
        async with fork:
            assert (5, agent.state_after(5)) == (fork.last_step, fork.inherited_state)
    assert 1 == types_of(tmp_path, "f").count("RunForked")
    assert {"s", "f"} == set(History.of(tmp_path).records)


# --- sources in every condition ---------------------------------------------------------------------------------------


async def completed(app: AppUnderTest) -> None:
    await record_nine()


async def paused(app: AppUnderTest) -> None:
    agent = Agent()
    async with agent.session("s") as session:
        await agent.work(session)
        session.pause()


async def crashed(app: AppUnderTest) -> None:
    with suppress(ValueError):
        async with Agent().session("s") as session:
            await Agent().work(session)
            raise ValueError("oh")


async def died(app: AppUnderTest) -> None:
    agent = Agent()
    await agent.work(await agent.session("s").__aenter__())
    await abandon(app)


async def stepping(app: AppUnderTest) -> None:
    agent = Agent()
    await agent.work(await agent.session("s").__aenter__())


@pytest.mark.parametrize("bring_about", [completed, paused, crashed, died, stepping])
async def test_a_session_in_any_condition_is_forked_by_its_id(
    bring_about: Callable[[AppUnderTest], Awaitable[None]], tmp_path: Path
) -> None:
    async with open_app(tmp_path) as source, open_app(tmp_path, seed=1):
        with in_use(source):
            await bring_about(source)
        before = History.of(tmp_path).digest(["s"])
        fork = await satay.Session.resume("s", fork_at_step=5, name="f", state_fn=lambda: 1)
        async with fork:
            await fork.step("own")

        assert 6 == fork.last_step
        assert before == History.of(tmp_path).digest(["s"])


@contextmanager
def in_use(app: AppUnderTest) -> Iterator[None]:
    """Have what is called in the block use an app that is not the one of the innermost block."""
    token = app_of_block.set(app)
    try:
        yield
    finally:
        app_of_block.reset(token)


async def test_a_session_that_was_only_begun_and_a_fork_that_was_never_entered_are_forked(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s"):
            begun = await satay.Session.resume("s", fork_at_step=0, boundary="lineage", name="f")
        created = await satay.Session.resume("f", fork_at_step=0, boundary="lineage", name="g")
        async with created as fork:
            step = await fork.step("first")

        assert begun.receipt is not None
        assert created.receipt is not None
        assert ("s", "s", 1) == (begun.receipt.source_id, created.receipt.source_id, step.number)


async def test_a_session_that_was_taken_over_can_be_forked_by_the_old_owner(tmp_path: Path) -> None:
    clock, agent = ManualClock(), Agent()
    async with open_app(tmp_path, clock=clock, lease_seconds=10):
        session = await agent.session("s").__aenter__()
        await agent.work(session, 5)
        await clock.advance(60)
        async with open_app(tmp_path, clock=clock, seed=1), satay.Session("s", state_fn=lambda: 1) as other:
            await other.step("other")
            fork = await session.fork(name="f", state_fn=lambda: 1)
        with pytest.raises(SessionLostError):
            await session.step("late")

        assert 6 == boundary_of(fork).resolved_step


async def test_a_fork_knows_what_participants_wrote(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1) as session:
        async with satay.Session.join(session.carrier(), state_fn=lambda: 2) as part:
            await part.step("theirs")
            fork = await session.fork(at_step=1, name="f")
        async with fork:
            assert 2 == fork.inherited_state


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tool_policies": {"": "block"}}, "tool_policies"),
        ({"tool_policies": {"*": "maybe"}}, "maybe"),
        ({"tool_policies": ["*"]}, "tool_policies"),
        ({"boundary": "latest"}, "latest"),
        ({"name": "not an id"}, "not an id"),
        ({"reason": 5}, "reason"),
        ({"fork_at_step": True}, "at_step"),
        ({"fork_at_step": -1}, "at_step"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_made(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    async with open_app(tmp_path):
        await record_nine()
        with pytest.raises(InvalidValueError, match=told):
            await satay.Session.resume("s", **{"fork_at_step": 5} | options)

    assert ["s"] == list(History.of(tmp_path).records)


async def test_what_a_long_session_did_late_counts_for_a_fork_at_an_early_step(tmp_path: Path) -> None:
    steps = 100
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: 1, state_interval=steps) as session:
            for _ in range(steps):
                await session.step("work")
            await session.call("late.tool", len, "five")
        with pytest.raises(NoRestorableStateError) as refused:
            await satay.Session.resume("s", fork_at_step=3)
        policies = {"late.tool": "block"}
        fork = await satay.Session.resume("s", fork_at_step=3, boundary="lineage", tool_policies=policies)

        assert (None, steps) == (refused.value.before, refused.value.after)
        assert fork.receipt is not None
        assert (policies, len(History.of(tmp_path).entries["s"])) == (
            fork.receipt.tool_policies,
            fork.receipt.source_head,
        )


async def test_an_intervention_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        with pytest.raises(satay.errors.EncodeError, match="intervention"):
            await satay.Session.resume("s", fork_at_step=5, name="f", intervention=object())

    assert ["s"] == list(History.of(tmp_path).records)


# --- experiments ------------------------------------------------------------------------------------------------------


async def test_forks_are_ranked_and_the_best_is_promoted(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
        forks = []
        for number, score in enumerate((0.5, 0.92, 0.1)):
            fork = await satay.Session.resume("s", fork_at_step=7, name=f"s/{number}", intervention=number)
            async with fork:
                await fork.step("own")
            await satay.set_outcome(fork.run_id, "inconclusive", score=score)
            forks.append(fork)
        ranking = await (await satay.experiment(baseline="s")).rank()
        await forks[1].promote()
        outcomes = [(await satay.outcome(fork.run_id)).value for fork in forks]  # type: ignore[union-attr]  # Recorded above.

        assert ["s/1", "s/0", "s/2"] == [member.run_id for member in ranking if member.run_id != "s"]
        assert ["rejected", "promoted", "rejected"] == outcomes


async def test_a_session_stands_for_its_id_wherever_a_run_is_named(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await record_nine()
        async with satay.Session.resume("s", state_fn=lambda: 0) as session:
            fork = await session.fork(at_step=6, name="f")
        async with fork:
            await fork.step("own")
        await satay.set_outcome(fork, "inconclusive", score=0.5)
        outcome = await satay.outcome(fork)
        await satay.promote(fork)
        async with satay.Session.resume(fork, fork_at_step=3, name="g") as again:
            asked_of = boundary_of(again).asked_of

        assert ("f", 0.5) == (fork.run_id, outcome.score if outcome else None)
        assert "f" == asked_of
        difference = await satay.diff_states(session, fork)
        assert (9, 7) == (difference.one.step, difference.other.step)
        assert "f" == (await satay.decision_trail(fork)).lineage[-1].run_id
        assert (await satay.verify(fork)).is_intact
        assert fork.receipt == await satay.receipt(fork)
        assert "f" in str(await satay.compare(session, fork))
        assert {"f", "g"} == {run.run_id for run in await app.runs(forked_from=session)}
        assert RunStatus.COMPLETED == await app.handle(fork).status()
        no_run: Any = session
        with pytest.raises(RunConflictError, match="fork_at_step="):
            await satay.fork(no_run, before_task="any")


async def test_a_fork_that_has_not_completed_is_not_promoted(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await record_nine()
        fork = await satay.Session.resume("s", fork_at_step=7, name="f")
        with pytest.raises(satay.errors.PromotionError):
            await fork.promote()

        assert RunStatus.WAITING is await app.status("f")


async def test_a_source_that_lacks_an_entry_is_said_to_be_damaged(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_nine()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection, connection:
        connection.execute("DELETE FROM events WHERE seq = 10")
    async with open_app(tmp_path):
        with pytest.raises(satay.errors.JournalCorruptError, match="entry 10 is missing") as refused:
            await satay.Session.resume("s", fork_at_step=5, name="f")

    assert ("s", 10, ["s"]) == (refused.value.run_id, refused.value.seq, list(History.of(tmp_path).records))


async def test_a_session_that_was_left_is_forked_in_whatever_app_is_open_then(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1) as session:
        await session.step("one")
    async with open_app(tmp_path, seed=1):
        fork = await session.fork(at_step=1, name="f")

    assert fork.receipt is not None
    assert "s" == fork.receipt.source_id
