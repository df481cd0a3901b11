"""Where sessions come from: the common ancestor of two states, and lineages whose ancestors are gone."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import InvalidValueError, NoRestorableStateError, RunNotFoundError, UsageError
from satay.journal import BLOB_THRESHOLD_BYTES
from satay.model import MISSING
from satay.testing import AppUnderTest, open_app

pytestmark = pytest.mark.anyio


@satay.workflow(name="lineages.plain")
async def plain() -> str:
    return "done"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path) as app:
        yield app


async def walk(session: satay.Session, box: dict[str, Any], values: Sequence[Any]) -> None:
    """Steps that leave the session with one state each."""
    for value in values:
        box["n"] = value
        await session.step(f"to {value}")


async def record(run_id: str, values: Sequence[Any], *, interval: int = 1) -> None:
    box: dict[str, Any] = {}
    async with satay.Session(run_id, state_fn=lambda: box, state_interval=interval) as session:
        await walk(session, box, values)


async def fork(source: str, at_step: int, name: str, values: Sequence[Any], **options: Any) -> None:
    box: dict[str, Any] = {}
    made = await satay.Session.resume(
        source, fork_at_step=at_step, name=name, state_fn=lambda: box, state_interval=1, **options
    )
    async with made:
        await walk(made, box, values)


def ancestor(diff: satay.StateDiff) -> tuple[str, int, Any]:
    assert diff.ancestor is not None
    state = diff.ancestor.state
    return diff.ancestor.run_id, diff.ancestor.step, state if state is MISSING else state["n"]


def left(diff: satay.StateDiff) -> tuple[int | None, int | None]:
    return diff.one.left_at, diff.other.left_at


# --- states -----------------------------------------------------------------------------------------------------------


async def test_a_fork_and_its_source_come_from_the_step_that_was_forked(app: AppUnderTest) -> None:
    await record("run-42", [1, 2, 3, 4, 5])
    await fork("run-42", 3, "run-42/b", [3, 40])
    diff = await satay.diff_states("run-42", "run-42/b")

    assert ("run-42", 3, 3) == ancestor(diff)
    assert (4, 5) == left(diff)
    assert ("$.n", 5, 40) == (diff.changed[0].path, diff.changed[0].one, diff.changed[0].other)
    assert ([(3, 5)], [(3, 40)]) == tuple(
        [(change.one, change.other) for change in side.changes] for side in (diff.one, diff.other)
    )


async def test_siblings_come_from_where_the_earlier_one_was_forked(app: AppUnderTest) -> None:
    await record("root", [1, 2, 3, 4])
    await fork("root", 2, "root/a", [20])
    await fork("root", 4, "root/b", [40])

    assert ("root", 2, 2) == ancestor(await satay.diff_states("root/a", "root/b"))
    assert (3, 3) == left(await satay.diff_states("root/a", "root/b"))


async def test_the_common_ancestor_is_found_at_any_depth(app: AppUnderTest) -> None:
    await record("g0", [1])
    for depth in range(1, 12):
        await fork(f"g{depth - 1}", depth, f"g{depth}", [depth + 1])
    await fork("g11", 12, "left", [-1])
    await fork("g5", 6, "right", [-2])
    diff = await satay.diff_states("left", "right")

    assert ("g5", 6, 6) == ancestor(diff)
    assert (7, 7) == left(diff)
    assert ("g11", 12, 12) == ancestor(await satay.diff_states("g11", "left"))
    assert ("g0", 1, 1) == ancestor(await satay.diff_states("left", "g0"))


async def test_an_ancestor_itself_is_where_both_come_from(app: AppUnderTest) -> None:
    await record("root", [1, 2])
    await fork("root", 2, "root/b", [2, 3])
    diff = await satay.diff_states("root", "root/b")

    assert ("root", 2, 2) == ancestor(diff)
    assert (None, 4) == left(diff)
    assert () == diff.one.changes


async def test_states_are_those_of_the_steps_that_are_asked_for(app: AppUnderTest) -> None:
    await record("a", [1, 2, 3, 4])
    await fork("a", 2, "b", [30, 40])
    both, each = await satay.diff_states("a", "b", at=3), await satay.diff_states("a", "b", at=(1, 4))

    assert (3, 30) == (both.one.state["n"], both.other.state["n"])
    assert ("a", 2, 2) == ancestor(both)
    assert (1, 40) == (each.one.state["n"], each.other.state["n"])
    assert ("a", 1, 1) == ancestor(each)
    assert (None, 2) == left(each)


async def test_two_steps_of_one_session_are_compared(app: AppUnderTest) -> None:
    await record("a", [1, 1, 2])
    diff = await satay.diff_states("a", "a", at=(1, 3))

    assert (1, 2) == (diff.one.state["n"], diff.other.state["n"])
    assert ("a", 1, 1) == ancestor(diff)
    assert (None, 3) == left(diff)


async def test_sessions_of_different_lineage_have_no_ancestor(app: AppUnderTest) -> None:
    await record("a", [1])
    await record("b", [1])
    diff = await satay.diff_states("a", "b")

    assert diff.ancestor is None
    assert (None, None) == left(diff)
    assert diff.is_same


async def test_the_ancestors_state_is_never_a_later_one(app: AppUnderTest) -> None:
    await record("a", [1, 2, 3, 4], interval=2)
    await fork("a", 3, "b", [30], boundary="lineage")
    diff = await satay.diff_states("a", "b")

    assert ("a", 3, 2) == ancestor(diff)
    assert diff.ancestor is not None
    assert 2 == diff.ancestor.state_step
    assert "that of step 2" in str(diff)


async def test_a_fork_of_the_beginning_has_no_step_in_common(app: AppUnderTest) -> None:
    await record("a", [1])
    await fork("a", 0, "b", [2], boundary="lineage")
    diff = await satay.diff_states("b", "a")

    assert ("a", 0, MISSING) == ancestor(diff)
    assert (1, 1) == left(diff)
    assert "a, before its first step, where no state was recorded" in str(diff)


async def test_a_state_that_was_not_recorded_is_not_replaced_by_another(app: AppUnderTest) -> None:
    await record("a", [1, 2, 3, 4, 5], interval=2)
    with pytest.raises(NoRestorableStateError, match="no state with step 3; the nearest with a state: step 2 and ste"):
        await satay.diff_states("a", "a", at=(3, 4))
    with pytest.raises(InvalidValueError, match="session 'a' has no step 6; its steps are 1 to 5"):
        await satay.diff_states("a", "a", at=6)
    async with satay.Session("bare") as bare:
        await bare.step("only")
    with pytest.raises(NoRestorableStateError, match="session 'bare' has recorded no state; give it a state_fn"):
        await satay.diff_states("a", "bare")


async def test_only_sessions_have_states(app: AppUnderTest) -> None:
    await app.start(plain, run_id="run").result()
    await record("a", [1])
    with pytest.raises(UsageError, match=r"run 'run' is a run of workflow 'lineages.plain', and only sessions record"):
        await satay.diff_states("a", "run")
    with pytest.raises(RunNotFoundError):
        await satay.diff_states("a", "nowhere")


async def test_large_states_and_states_that_are_stored_as_differences_are_compared(app: AppUnderTest) -> None:
    box: dict[str, Any] = {"text": "x" * BLOB_THRESHOLD_BYTES, "n": 0}
    async with satay.Session("a", state_fn=lambda: box) as session:
        for number in range(5):
            box["n"] = number
            await session.step("count")
    diff = await satay.diff_states("a", "a", at=(2, 5))

    assert [("$.n", 1, 4)] == [(one.path, one.one, one.other) for one in diff.differences]


# --- lineages ---------------------------------------------------------------------------------------------------------


def forget(place: Path, run_id: str) -> None:
    """Take a run out of the journal, as if it had been deleted."""
    with sqlite3.connect(place / "satay.db") as connection:
        (key,) = connection.execute("SELECT key FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        connection.execute("DELETE FROM events WHERE run = ?", (key,))
        connection.execute("DELETE FROM runs WHERE key = ?", (key,))
    connection.close()


async def test_a_trail_reaches_the_root_although_its_ancestors_are_gone(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record("root", [1, 2])
        await fork("root", 2, "middle", [3], intervention={"model": "m"})
        await fork("middle", 3, "leaf", [4])
    forget(tmp_path, "middle")
    forget(tmp_path, "root")
    async with open_app(tmp_path):
        trail = await satay.decision_trail("leaf")

        assert ["root", "middle", "leaf"] == [one.run_id for one in trail.lineage]
        assert [None, None, "completed"] == [one.status for one in trail.lineage]
        assert {"model": "m"} == trail.lineage[1].intervention
        assert ["root", "root", "middle", "leaf"] == [step.run_id for step in trail.steps]
        assert "gone" in str(trail)


async def test_a_step_is_told_of_whoever_recorded_it(app: AppUnderTest) -> None:
    await record("root", [1, 2, 3])
    await fork("root", 3, "middle", [4, 5])
    await fork("middle", 2, "leaf", [30])
    trail = await satay.decision_trail("leaf")

    assert ["root", "leaf"] == [one.run_id for one in trail.lineage]
    assert [("root", True), ("root", True), ("leaf", False)] == [(one.run_id, one.is_inherited) for one in trail.steps]


async def test_a_fork_whose_nearest_state_is_inherited_is_of_whoever_recorded_that(app: AppUnderTest) -> None:
    await record("root", [1, 2, 3])
    async with satay.Session.resume("root", fork_at_step=2, name="middle") as middle:
        await middle.step("without a state")
    await fork("middle", 3, "leaf", [30], boundary="nearest")
    trail = await satay.decision_trail("leaf")

    assert ("root", "leaf") == (trail.root_id, trail.run_id)
    assert [("root", True), ("root", True), ("leaf", False)] == [(one.run_id, one.is_inherited) for one in trail.steps]
    assert ("root", 2, 2) == ancestor(await satay.diff_states("leaf", "root"))
