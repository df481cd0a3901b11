"""Sessions as users see them: steps, states, ends, and going on where one was left."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import (
    ApprovalPendingError,
    EncodeError,
    InvalidValueError,
    JournalClosedError,
    JournalCorruptError,
    LeaseHeldError,
    NoRestorableStateError,
    RunConflictError,
    RunEndedError,
    RunNotFoundError,
    SatayError,
    SessionLostError,
    SessionStateError,
    UsageError,
)
from satay.journal import BLOB_THRESHOLD_BYTES
from satay.model import RunStatus
from satay.stores.locations import DATABASE_FILE
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app
from tests.test_invariants import History

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Note:
    text: str
    tags: tuple[str, ...] = ()


@satay.workflow(name="sessions.workflow")
async def workflow(value: int = 1) -> int:
    return value


async def three_steps(session: satay.Session) -> None:
    for number in range(session.last_step + 1, 4):
        await session.step("count", input=number, output={"doubled": 2 * number})


async def crash(session: satay.Session) -> None:
    """Make a step, and crash."""
    async with session:
        await session.step("plan")
        raise ValueError("oh")


def types_of(place: Path, run_id: str) -> list[str]:
    return [entry.type for entry in History.of(place).entries[run_id]]


# --- the life of a session --------------------------------------------------------------------------------------------


async def test_a_session_is_created_started_stepping_and_completed_in_one_journal(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            began = session.status
            await session.step("plan")
            stepping = session.status
            running = await app.status("s")
            session.complete({"answer": 42})
        run = await app.run("s")

        assert ["started", "stepping", "completed"] == [began, stepping, session.status]
        assert (RunStatus.RUNNING, RunStatus.COMPLETED) == (running, run.status)
        assert {"answer": 42} == (await app.ending("s")).result
    assert ["SessionCreated", "SessionStarted", "StepRecorded", "SessionCompleted"] == types_of(tmp_path, "s")


async def test_an_error_that_leaves_the_block_is_recorded_as_a_crash(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        session = satay.Session("s")
        with pytest.raises(ValueError, match="oh"):
            await crash(session)
        ending = await app.ending("s")

        assert "crashed" == session.status
        assert ending.failure is not None
        assert ("failed", "builtins:ValueError") == (ending.status, ending.failure.type)


async def test_a_cancellation_that_leaves_the_block_pauses_the_session(tmp_path: Path) -> None:
    async def run(reached: asyncio.Event) -> None:
        async with satay.Session("s") as session:
            await session.step("plan")
            reached.set()
            await asyncio.Event().wait()

    async with open_app(tmp_path) as app:
        reached = asyncio.Event()
        task = asyncio.create_task(run(reached))
        await reached.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

        assert RunStatus.WAITING is await app.status("s")
        async with satay.Session("s") as session:
            assert 1 == session.last_step


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_an_interruption_that_is_no_error_pauses_the_session(
    interruption: type[BaseException], tmp_path: Path
) -> None:
    async def be_interrupted() -> None:
        async with satay.Session("s") as session:
            await session.step("one")
            raise interruption

    async with open_app(tmp_path) as app:
        with pytest.raises(interruption):
            await be_interrupted()
        async with satay.Session("s") as again:
            last = again.last_step

        paused = History.of(tmp_path).entries["s"][3]
        assert ("SessionPaused", {"reason": interruption.__name__}) == (paused.type, json.loads(paused.payload))
        assert (1, RunStatus.COMPLETED) == (last, await app.status("s"))


async def test_a_session_whose_end_is_cancelled_too_is_paused_all_the_same(tmp_path: Path) -> None:
    async def run(reached: asyncio.Event) -> None:
        async with satay.Session("s") as session:
            stepping = asyncio.ensure_future(session.step("plan"))
            reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                background.append(stepping)

    background: list[asyncio.Future[satay.Step]] = []
    faults = Faults().stall_after(type="SessionStarted")
    async with open_app(tmp_path, faults=faults) as app:
        reached = asyncio.Event()
        task = asyncio.create_task(run(reached))
        await reached.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        faults.go_on()
        await asyncio.gather(task, *background, return_exceptions=True)

        assert task.cancelled()
        assert RunStatus.WAITING is await app.status("s")
        assert ["SessionStarted", "StepRecorded", "SessionPaused"] == types_of(tmp_path, "s")[1:]


@pytest.mark.parametrize("type", ["SessionCreated", "SessionResumed"])
async def test_a_session_that_is_cancelled_twice_while_it_is_opened_can_be_opened_again(
    type: str, tmp_path: Path
) -> None:
    faults = Faults()
    async with open_app(tmp_path, faults=faults):
        if type == "SessionResumed":
            async with satay.Session("s") as session:
                session.pause()
        faults.stall_after(type=type)
        opening = asyncio.create_task(satay.Session("s").__aenter__())
        await faults.stalled
        for _ in range(2):
            opening.cancel()
            await asyncio.sleep(0)
        faults.go_on()
        await asyncio.wait((opening,))
        async with satay.Session("s") as again:
            await again.step("plan")

    assert opening.cancelled()
    assert "SessionPaused" in types_of(tmp_path, "s")


async def test_a_cancellation_while_it_is_opened_leaves_the_session_to_be_opened_again(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            await session.step("plan")
        for passes in range(12):
            opening = asyncio.create_task((await satay.Session.resume("s")).__aenter__())
            for _ in range(passes):
                await asyncio.sleep(0)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                opened = await opening
                await opened.__aexit__(None, None, None)
        run = await app.run("s")
        async with satay.Session.resume("s") as again:
            step = await again.step("more")

        assert run.status in (RunStatus.COMPLETED, RunStatus.WAITING)
        assert 2 == step.number
        assert (await satay.verify("s")).is_intact


async def test_a_session_that_was_paused_goes_on_where_it_was(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            await session.step("plan")
            session.pause("a person has to look")
        paused, status = session.status, await app.status("s")
        async with satay.Session("s") as again:
            step = await again.step("act")

        assert ("paused", RunStatus.WAITING, 2) == (paused, status, step.number)
    reasons = [json.loads(entry.payload) for entry in History.of(tmp_path).entries["s"] if "Paused" in entry.type]
    assert [{"reason": "a person has to look"}] == reasons


async def test_a_session_that_crashed_goes_on_where_it_was(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        with pytest.raises(ValueError, match="oh"):
            await crash(satay.Session("s", state_fn=lambda: {"n": 1}))
        async with satay.Session("s", state_fn=lambda: {"n": 2}) as again:
            state = again.state
            step = await again.step("act")

        assert ({"n": 1}, 2) == (state, step.number)
    resumed = [entry.payload for entry in History.of(tmp_path).entries["s"] if entry.type == "SessionResumed"]
    assert ['{"after":"crash"}'] == resumed


async def test_a_completed_session_is_gone_on_with_only_when_asked(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await session.step("first")
        with pytest.raises(RunEndedError, match=r"Session\.resume\('s'\)"):
            await satay.Session("s").__aenter__()
        async with satay.Session.resume("s") as again:
            step = await again.step("second")

        assert 2 == step.number


async def test_a_session_is_used_in_its_block_and_once(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        session = satay.Session("s")
        with pytest.raises(UsageError, match="was not entered"):
            await session.step("early")
        with pytest.raises(UsageError, match="was not entered"):
            _ = session.status
        async with session:
            await session.step("in time")
        with pytest.raises(UsageError, match="was left"):
            await session.step("late")
        with pytest.raises(UsageError, match="entered before"):
            await session.__aenter__()

        assert ["in time"] == [step.name for step in await session.steps()]


@pytest.mark.parametrize("opener", [satay.Session, satay.Session.join])
async def test_a_run_of_a_workflow_is_no_session(opener: Any, tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await app.start(workflow, run_id="w").result()
        session = (
            satay.Session("w") if opener is satay.Session else opener({"satay_session": "w", "epoch": 1, "part": "1.1"})
        )
        with pytest.raises(RunConflictError, match="no session"):
            await session.__aenter__()
        with pytest.raises(RunConflictError, match="no session"):
            await satay.Session.resume("w")


async def test_what_is_not_there_is_not_resumed(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        with pytest.raises(RunNotFoundError):
            await satay.Session.resume("nowhere")
        with pytest.raises(RunNotFoundError):
            await satay.Session.resume("nowhere", fork_at_step=1)

        assert [] == await app.runs()


async def test_resuming_takes_the_options_of_a_fork_only_for_a_fork(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s"):
            pass
        with pytest.raises(UsageError, match="name, intervention"):
            await satay.Session.resume("s", name="t", intervention=1)
        with pytest.raises(UsageError, match="boundary"):
            await satay.Session.resume("s", boundary="nearest")


# --- steps and states -------------------------------------------------------------------------------------------------


async def test_a_step_and_its_state_are_one_append(tmp_path: Path) -> None:
    faults = Faults()
    async with open_app(tmp_path, faults=faults), satay.Session("s", state_fn=lambda: {"n": 1}) as session:
        before = faults.appends_written, faults.entries_written
        await session.step("plan")

        assert (before[0] + 1, before[1] + 2) == (faults.appends_written, faults.entries_written)


async def test_steps_are_read_back_as_they_were_given(tmp_path: Path) -> None:
    note = Note("look", ("a", "b"))
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            given = await session.step("plan", input=note, output=datetime(2026, 1, 1, tzinfo=UTC))
        async with satay.Session.resume("s") as again:
            (step,) = await again.steps()

        assert given == step
        assert (1, "plan", note, False) == (step.number, step.name, step.input, step.is_inherited)


async def test_the_state_at_every_step_is_the_same_after_reopening(tmp_path: Path) -> None:
    state: dict[str, Any] = {"log": ["x" * 40] * 200}
    states: list[Any] = []
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: state) as session:
            for number in range(30):
                state[f"n{number % 3}"] = number // 2
                state["log"] = [*state["log"][number % 2 :], f"line {number}"]
                await session.step("work")
                states.append(json.loads(json.dumps(state)))
            live = [await session.state_at(number) for number in range(1, 31)]
        async with satay.Session.resume("s") as again:
            reopened = [await again.state_at(number) for number in range(1, 31)]
            latest = again.state

    assert states == live
    assert states == reopened
    assert states[-1] == latest


async def test_a_state_is_recorded_with_every_so_manyth_step(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1, state_interval=3) as session:
        for _ in range(7):
            await session.step("work")
        found = []
        for number in range(1, 8):
            with suppress(NoRestorableStateError):
                found.append((number, await session.state_at(number)))

        assert [(3, 1), (6, 1)] == found


async def test_a_state_that_was_not_recorded_is_refused_as_what_it_is(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1, state_interval=2) as session:
        for _ in range(5):
            await session.step("work")
        with pytest.raises(NoRestorableStateError) as refused:
            await session.state_at(3)
        with pytest.raises(InvalidValueError, match="session 's' has no step 6; its steps are 1 to 5"):
            await session.state_at(6)
        with pytest.raises(InvalidValueError, match=r"step of state_at\(\) is 0"):
            await session.state_at(0)

    told = "session 's' has recorded no state with step 3; the nearest with a state: step 2 and step 4"
    assert (told, 3, 2, 4) == (str(refused.value), refused.value.step, refused.value.before, refused.value.after)


@pytest.mark.parametrize("is_given", [True, False])
async def test_a_session_whose_states_end_for_want_of_a_function_says_so_once(
    is_given: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: 1) as session:
            await session.step("think")
        again = await satay.Session.resume("s", state_fn=(lambda: 2) if is_given else None)
        async with again:
            await again.step("think")
            await again.step("think")

    expected = [] if is_given else ["session.stateless"]
    assert expected == [message.split("'")[1] for message in caplog.messages]


async def test_a_session_that_never_had_a_state_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        await three_steps(session)

    assert [] == caplog.messages


async def test_a_step_is_as_it_was_recorded_also_where_what_it_was_given_changes_later(tmp_path: Path) -> None:
    notes = ["first"]
    async with open_app(tmp_path), satay.Session("s") as session:
        step = await session.step("plan", input=notes, output={"notes": notes})
        notes.append("second")

        assert (["first"], {"notes": ["first"]}) == (step.input, step.output)
        assert [step] == await session.steps()


async def test_a_state_that_changes_later_is_recorded_as_it_was(tmp_path: Path) -> None:
    state = {"n": 1}
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: state) as session:
        await session.step("work")
        state["n"] = 2
        session.state["n"] = 3

        assert {"n": 1} == session.state == await session.state_at(1)


async def test_a_state_keeps_its_exact_types(tmp_path: Path) -> None:
    state = {
        "note": Note("first", ("a", "b")),
        "seen": {1, 2},
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "raw": b"\x00\xff",
        "by number": {1: (None, float("inf"))},
        "text": "snow \u2603, half a pair \ud83d, and \0",
        "like a tag": {"$satay": "datetime", "value": "no moment"},
    }
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: state) as session:
            await session.step("one")
            found = [session.state, await session.state_at(1)]
        fork = await session.fork(at_step=1)
        async with fork:
            found.append(fork.inherited_state)

    assert [state] * 3 == found
    assert [type(value) for value in state.values()] == [type(value) for value in found[-1].values()]


async def test_a_state_that_did_not_change_takes_no_room(tmp_path: Path) -> None:
    state = {"text": "x" * 100_000}
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: state) as session:
        for _ in range(5):
            await session.step("work")
    sizes = [len(entry.payload) for entry in History.of(tmp_path).entries["s"] if entry.type == "StateRecorded"]

    assert 100_000 < sizes[0]
    assert max(sizes[1:]) < 200


async def test_a_large_state_that_changes_little_takes_little_room(tmp_path: Path) -> None:
    state = {"n": 0, "log": ["x" * 100] * 1000, "last": ""}
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: state) as session:
        for number in range(50):
            state |= {"n": number, "last": f"{number:0100d}"}
            await session.step("work")
    sizes = [len(entry.payload) for entry in History.of(tmp_path).entries["s"] if entry.type == "StateRecorded"]

    assert max(sizes[1:]) < 1000


async def test_a_state_over_the_size_of_a_blob_is_kept_as_one(tmp_path: Path) -> None:
    state = {"text": "x" * (BLOB_THRESHOLD_BYTES + 1)}
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: state) as session:
            await session.step("work")
            state["more"] = "y"
            await session.step("work")
            fork = await session.fork(at_step=2, name="f")
        async with fork:
            inherited = fork.inherited_state

        assert state == inherited
        assert (await satay.verify("f")).is_intact
    sizes = [len(entry.payload) for entry in History.of(tmp_path).entries["s"] if entry.type == "StateRecorded"]
    assert max(sizes) < 1000


async def test_long_contents_that_differ_only_at_the_end_are_different(tmp_path: Path) -> None:
    one, other = "x" * 300_000 + "1", "x" * 300_000 + "2"
    state = [one]
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: state[0]) as session:
        await session.step("work", input=one, output=one)
        state[0] = other
        await session.step("work", input=other, output=other)
        first, second = await session.steps()

        assert (one, one, other, other) == (first.input, first.output, second.input, second.output)
        assert (one, other) == (await session.state_at(1), await session.state_at(2))
    assert 2 == len({json.loads(e.payload)["sha256"] for e in History.of(tmp_path).entries["s"] if "State" in e.type})


def raising() -> Any:
    raise OSError("no memory")


async def awaiting() -> Any:
    return 1


@pytest.mark.parametrize(
    ("state_fn", "told"),
    [
        (raising, "state_fn raised OSError: no memory"),
        (lambda: object(), "cannot be encoded"),
        (lambda: {"a": {1, object()}}, "cannot be encoded"),
        (awaiting, "something to await"),
    ],
)
async def test_a_step_whose_state_cannot_be_had_is_not_recorded(
    state_fn: Callable[[], Any], told: str, tmp_path: Path
) -> None:
    async with open_app(tmp_path), satay.Session("s", state_fn=state_fn) as session:
        with pytest.raises(SessionStateError, match=told):
            await session.step("work")

        assert (0, "started") == (session.last_step, session.status)
    assert "StepRecorded" not in types_of(tmp_path, "s")


async def test_a_step_after_one_that_failed_has_its_number(tmp_path: Path) -> None:
    states: list[Any] = [object(), 1]
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: states.pop(0)) as session:
        with pytest.raises(SessionStateError):
            await session.step("work")
        step = await session.step("work")

        assert 1 == step.number


@pytest.mark.parametrize(("side", "told"), [("input", "the input of step"), ("output", "the output of step")])
async def test_a_step_that_cannot_be_encoded_says_which_side_and_is_not_recorded(
    side: str, told: str, tmp_path: Path
) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        with pytest.raises(EncodeError, match=told):
            await session.step("work", **{side: object()})

        assert 0 == session.last_step


async def test_a_step_whose_caller_was_cancelled_is_recorded_or_not_and_the_next_one_follows(tmp_path: Path) -> None:
    state: dict[str, Any] = {"n": 0, "text": "x" * 1000}
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: state) as session:
            for passes in range(6):
                state["n"] += 1
                step = asyncio.create_task(session.step("cancelled"))
                for _ in range(passes):
                    await asyncio.sleep(0)
                step.cancel()
                with suppress(asyncio.CancelledError):
                    await step
            state["n"] = 99
            last = await session.step("kept")
            versions = [snapshot["version"] for snapshot in snapshots_of(tmp_path)]
            states = [await session.state_at(number) for number in range(1, last.number + 1)]

        assert list(range(1, last.number + 1)) == versions
        assert {"n": 99, "text": "x" * 1000} == states[-1] == session.state
        assert (await satay.verify("s")).is_intact


async def test_a_session_knows_whether_a_step_was_recorded_whose_caller_was_cancelled(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1) as session:
        for passes in range(12):
            step = asyncio.create_task(session.step("cancelled"))
            for _ in range(passes):
                await asyncio.sleep(0)
            step.cancel()
            step.cancel()
            with suppress(asyncio.CancelledError):
                await step
            known = session.last_step
            following = await session.step("next")

            assert known + 1 == following.number


async def test_a_wake_up_whose_caller_was_cancelled_comes_if_it_was_recorded(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s"):
        for passes in range(1, 4):
            asking = asyncio.create_task(satay.current_session().wake_at(60))
            for _ in range(passes):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            await clock.advance(60)

            types = types_of(tmp_path, "s")
            assert types.count("TimerCreated") == types.count("TimerFired") > 0


def snapshots_of(place: Path) -> list[dict[str, Any]]:
    return [json.loads(entry.payload) for entry in History.of(place).entries["s"] if entry.type == "StateRecorded"]


async def test_steps_made_side_by_side_have_numbers_of_their_own(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1) as session:
        steps = await asyncio.gather(*(session.step("work", input=number) for number in range(20)))

        assert [(number, number - 1) for number in range(1, 21)] == sorted((one.number, one.input) for one in steps)


# --- one owner --------------------------------------------------------------------------------------------------------


async def test_a_second_owner_is_refused_in_this_app_and_in_another(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        with pytest.raises(LeaseHeldError, match="in this very app"):
            await satay.Session("s").__aenter__()
        async with open_app(tmp_path, seed=1):
            with pytest.raises(LeaseHeldError, match="another process"):
                await satay.Session("s").__aenter__()
            with pytest.raises(LeaseHeldError, match="another process"):
                await (await satay.Session.resume("s")).__aenter__()
        step = await session.step("work")

        assert 1 == step.number


async def test_a_session_that_was_resumed_is_as_protected(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s"):
            pass
        async with satay.Session.resume("s"), open_app(tmp_path, seed=1):
            with pytest.raises(LeaseHeldError):
                await (await satay.Session.resume("s")).__aenter__()


async def test_of_many_that_open_a_session_at_once_one_has_it(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        opened = await asyncio.gather(*(satay.Session("s").__aenter__() for _ in range(8)), return_exceptions=True)
        owners = [one for one in opened if isinstance(one, satay.Session)]
        refused = [one for one in opened if isinstance(one, LeaseHeldError)]
        await owners[0].__aexit__(None, None, None)

        assert (1, 7) == (len(owners), len(refused))


async def test_a_session_that_was_taken_over_stops_at_its_next_write(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock, lease_seconds=10):
        session = await satay.Session("s").__aenter__()
        await session.step("early")
        await take_over(clock, tmp_path)
        for _ in range(2):
            with pytest.raises(SessionLostError, match="taken over"):
                await session.step("late")
    assert ["early", "other"] == step_names(tmp_path, "s")


async def test_leaving_does_not_hide_that_a_session_was_lost(tmp_path: Path) -> None:
    clock = ManualClock()

    async def pass_over_the_loss() -> None:
        async with satay.Session("s") as session:
            await session.step("early")
            await take_over(clock, tmp_path)
            with suppress(SessionLostError):
                await session.step("late")

    async with open_app(tmp_path, clock=clock, lease_seconds=10):
        with pytest.raises(SessionLostError, match="taken over"):
            await pass_over_the_loss()
    assert ["early", "other"] == step_names(tmp_path, "s")


async def test_a_session_that_was_lost_unnoticed_says_so_when_it_is_left(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock, lease_seconds=10):
        with pytest.raises(SessionLostError, match="taken over"):
            async with satay.Session("s"):
                await take_over(clock, tmp_path)
    assert "SessionCompleted" == types_of(tmp_path, "s")[-1]
    assert 1 == types_of(tmp_path, "s").count("SessionCompleted")


async def test_an_error_of_a_session_that_was_lost_says_both(tmp_path: Path) -> None:
    clock = ManualClock()

    async def fail_after_the_loss() -> None:
        async with satay.Session("s"):
            await take_over(clock, tmp_path)
            raise ValueError("oh")

    async with open_app(tmp_path, clock=clock, lease_seconds=10):
        with pytest.raises(ValueError, match="oh") as raised:
            await fail_after_the_loss()
    assert "could not be recorded" in raised.value.__notes__[0]
    assert "taken over" in raised.value.__notes__[0]


async def take_over(clock: ManualClock, place: Path) -> None:
    """Have another app go on with the session, whose owner was not heard of for longer than its lease."""
    await clock.advance(60)
    async with open_app(place, clock=clock, seed=1), satay.Session("s") as other:
        await other.step("other")


def step_names(place: Path, run_id: str) -> list[str]:
    entries = History.of(place).entries[run_id]
    return [json.loads(entry.payload)["name"] for entry in entries if entry.type == "StepRecorded"]


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", range(1, 10))
async def test_whatever_was_written_last_a_session_goes_on_and_no_step_is_made_twice(
    entries: int, tmp_path: Path
) -> None:
    state: dict[str, int] = {}
    made: list[int] = []

    async def work() -> None:
        async with satay.Session("s", state_fn=lambda: state) as session:
            state.clear()
            state.update(session.state or {"n": 0})
            assert session.last_step == state["n"]
            for number in range(session.last_step + 1, 4):
                state["n"] = number
                await session.step("work")
                made.append(number)

    async with open_app(tmp_path, faults=Faults().crash_after(entries=entries)) as app:
        with suppress(JournalClosedError):
            await work()
    if app.faults.is_crashed:
        async with open_app(tmp_path):
            with suppress(RunEndedError):
                await work()

    assert sorted(set(made)) == made
    assert [1, 2, 3] == [json.loads(e.payload)["step"] for e in History.of(tmp_path).entries["s"] if "Step" in e.type]
    assert "SessionCompleted" == types_of(tmp_path, "s")[-1]


async def test_a_session_whose_process_died_is_there_for_the_next_at_once(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        session = await satay.Session("s").__aenter__()
        await session.step("early")
        await abandon(app)
    async with open_app(tmp_path), satay.Session("s") as again:
        step = await again.step("late")

    assert 2 == step.number
    assert '{"after":"loss"}' in [entry.payload for entry in History.of(tmp_path).entries["s"]]


async def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        session = await satay.Session("s").__aenter__()
        await session.step("early")
        app.faults.crash()
        with pytest.raises(JournalClosedError):
            await session.step("late")
        with pytest.raises(JournalClosedError):
            await session.__aexit__(None, None, None)
    assert ["early"] == step_names(tmp_path, "s")


def change(place: Path, statement: str) -> None:
    with closing(sqlite3.connect(place / DATABASE_FILE, isolation_level=None)) as connection:
        connection.execute(statement)


async def test_a_session_whose_state_is_lost_crashes_where_it_is_opened_and_can_be_forked_without_it(
    tmp_path: Path,
) -> None:
    large = "x" * (BLOB_THRESHOLD_BYTES + 1)
    async with open_app(tmp_path) as app:
        async with satay.Session("s", state_fn=lambda: large) as session:
            await session.step("plan")
        change(tmp_path, "DELETE FROM blobs")
        with pytest.raises(JournalCorruptError, match="is lost from the journal"):
            await (await satay.Session.resume("s")).__aenter__()
        fork = await satay.Session.resume("s", fork_at_step=1, name="f", boundary="lineage", state_fn=lambda: "small")
        async with fork:
            await fork.step("go on")

            assert "small" == await fork.state_at(2)
        assert RunStatus.FAILED is await app.status("s")
    assert ["SessionResumed", "SessionCrashed"] == types_of(tmp_path, "s")[-2:]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["{}", '{"call":99999}', '{"step":"x"}', "null", "{"])
async def test_a_damaged_entry_is_told_as_such_whatever_is_asked_of_a_session(damage: str, tmp_path: Path) -> None:
    async with open_app(tmp_path / "there"), satay.Session("s", state_fn=lambda: 1) as session:
        await session.step("plan")
        await session.wake_at(100)
        await (await session.claim("tool", {}, key="k")).heartbeat()
        with suppress(ApprovalPendingError):
            await session.require_approval("go", wait=False)
        await session.step("act")
        await session.fork(at_step=2, name="f")
    whole = History.of(tmp_path / "there").entries
    entries = {(run_id, entry.seq) for run_id in whole for entry in whole[run_id] if entry.payload != damage}

    async def use() -> None:
        async with satay.Session.resume("s") as opened:
            await opened.steps()
            await opened.state_at(1)

    asks: list[Callable[[], Any]] = [
        lambda: satay.Session.resume("s", fork_at_step=2, name="g"),
        lambda: satay.decision_trail("s"),
        lambda: satay.decision_trail("f"),
        lambda: satay.diff_states("s", "f"),
        lambda: satay.compare("s", "f"),
        lambda: satay.approvals("s"),
        lambda: satay.decide_approval("s", "go", approved=True),
        lambda: satay.verify("s"),
        use,
    ]
    for run_id, seq in sorted(entries):
        place = tmp_path / f"{run_id}{seq}"
        shutil.copytree(tmp_path / "there", place)
        run = f"(SELECT key FROM runs WHERE run_id = '{run_id}')"
        change(place, f"UPDATE events SET payload = '{damage}' WHERE seq = {seq} AND run = {run}")
        async with open_app(place):
            for ask in asks:
                with suppress(SatayError):
                    await ask()
            assert not (await satay.verify(run_id)).is_intact
        shutil.rmtree(place)


async def test_a_wake_up_that_cannot_be_written_is_written_when_it_can(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        await session.wake_at(10)
        change(tmp_path, "CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(FAIL, 'no room'); END")
        await clock.advance(11)
        before = types_of(tmp_path, "s")[-1]
        change(tmp_path, "DROP TRIGGER full")
        await clock.advance(10)

        assert ["TimerCreated", "TimerFired"] == [before, types_of(tmp_path, "s")[-1]]


# --- taking part ------------------------------------------------------------------------------------------------------


async def test_a_participant_writes_to_the_same_session(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: 1) as session:
            await session.step("one")
            carrier = json.loads(json.dumps(session.carrier()))
            async with open_app(tmp_path, seed=1), satay.Session.join(carrier) as part:
                there = await part.step("two")
            here = await session.step("three")

        assert [2, 3] == [there.number, here.number]
        assert ["one", "two", "three"] == [step.name for step in await session.steps()]
        assert (await satay.verify("s")).is_intact


async def test_what_a_participant_has_recorded_is_read_where_the_session_is_open(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        session = await satay.Session("s").__aenter__()
        async with satay.Session.join(session.carrier(), state_fn=lambda: "theirs") as part:
            await part.step("one")

            assert "theirs" == await session.state_at(1)
            await part.step("two")
            assert ["one", "two"] == [step.name for step in await session.steps()]
        await session.__aexit__(None, None, None)


async def test_the_state_is_the_last_one_of_this_object_also_where_a_participant_records_another(
    tmp_path: Path,
) -> None:
    state = {"n": 1}
    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: state) as session:
        await session.step("one")
        state["n"] = 2
        await session.step("two")
        async with satay.Session.join(session.carrier(), state_fn=lambda: "theirs") as part:
            await part.step("three")
        await session.steps()

        assert {"n": 2} == session.state
        assert "theirs" == await session.state_at(3)


async def test_on_another_event_loop_a_session_is_refused_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    @satay.task(name="sessions.on_another_loop")
    async def ledgered() -> int:
        return 1

    async with open_app(tmp_path), satay.Session("s", state_fn=lambda: 1) as session:
        await session.step("here")
        uses: list[Callable[[], Any]] = [
            lambda: session.step("there"),
            lambda: session.call("tool", ledgered),
            lambda: session.claim("tool", {}),
            lambda: session.require_approval("key"),
            lambda: session.wake_at(5),
            lambda: session.steps(),
            lambda: session.state_at(1),
            lambda: session.fork(name="f"),
            ledgered,
        ]

        def use(one: Callable[[], Any]) -> None:
            async def call() -> None:
                await one()

            asyncio.run(call())

        for one in uses:
            with pytest.raises(UsageError, match="on another event loop"):
                await asyncio.to_thread(use, one)

    assert ["SessionStarted", "StepRecorded", "StateRecorded", "SessionCompleted"] == types_of(tmp_path, "s")[1:]


async def test_a_call_on_another_event_loop_waits_for_none_and_takes_no_number(tmp_path: Path) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        has_begun.set()
        await may_end.wait()
        return 1

    async with open_app(tmp_path), satay.Session("s") as session:
        making = asyncio.create_task(session.call("tool", work, key="k"))
        await has_begun.wait()
        for key in ("k", None):
            with pytest.raises(UsageError, match="on another event loop"):
                await asyncio.to_thread(asyncio.run, session.call("tool", work, key=key))
        with pytest.raises(UsageError, match="on another event loop"):
            await asyncio.to_thread(asyncio.run, session.__aexit__(None, None, None))
        may_end.set()
        await making
        receipt = await session.call("tool", work)

        assert "tool:0" == receipt.call
    assert "SessionCompleted" == types_of(tmp_path, "s")[-1]


async def test_a_participant_ends_nothing_and_writes_nothing_once_the_session_was_left(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            carrier = session.carrier()
            part = await satay.Session.join(carrier).__aenter__()
            session.pause()
        for _ in range(2):
            with pytest.raises(SessionLostError, match="was left"):
                await part.step("late")
        await part.__aexit__(None, None, None)
        with pytest.raises(SessionLostError, match="was left"):
            await satay.Session.join(carrier).__aenter__()

        assert RunStatus.WAITING is await app.status("s")


async def test_a_participant_does_not_say_how_the_session_ends(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session, satay.Session.join(session.carrier()) as part:
            with pytest.raises(UsageError, match=r"pause\(\) says how a session ends"):
                part.pause()
            with pytest.raises(UsageError, match=r"complete\(\) says how a session ends"):
                part.complete("theirs")
            session.complete("ours")

        assert "ours" == await app.handle("s").result()


async def test_a_participant_of_a_session_that_changed_hands_is_refused(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            carrier = session.carrier()
            session.pause()
        async with satay.Session("s"):
            with pytest.raises(SessionLostError, match="taken over"):
                await satay.Session.join(carrier).__aenter__()


@pytest.mark.parametrize("carrier", [None, {}, "s", {"satay_session": 1}, {"satay_session": "s"}])
def test_what_is_no_carrier_is_refused(carrier: Any) -> None:
    with pytest.raises(InvalidValueError, match="carrier"):
        satay.Session.join(carrier)


# --- ambient use ------------------------------------------------------------------------------------------------------


async def test_a_function_runs_in_a_session_that_nested_code_finds(tmp_path: Path) -> None:
    async def think(about: str) -> None:
        await satay.current_session().step("think", input=about)

    @satay.session(lambda topic: f"agent/{topic}")
    async def agent(topic: str) -> str:
        await asyncio.gather(think(topic), think("more"))
        return f"about {topic}"

    async with open_app(tmp_path) as app:
        result = await agent("tides")

        assert "about tides" == result == (await app.ending("agent/tides")).result
        assert ["think", "think"] == step_names(tmp_path, "agent/tides")
        with pytest.raises(UsageError):
            satay.current_session()


async def test_a_function_that_raises_crashes_its_session(tmp_path: Path) -> None:
    @satay.session("agent")
    async def agent() -> None:
        raise ValueError("oh")

    async with open_app(tmp_path) as app:
        with pytest.raises(ValueError, match="oh"):
            await agent()

        assert RunStatus.FAILED is await app.status("agent")


async def test_what_cannot_run_in_a_session_is_refused_where_it_is_decorated() -> None:
    async def agent() -> None: ...

    decorate: Any = satay.session
    with pytest.raises(UsageError, match=r"put on <function .* without an id; give the id of the session"):
        decorate(agent)
    with pytest.raises(UsageError, match=r"put on <function .*, which is no async function"):
        decorate("agent")(lambda: None)
    for options in ({"session_id": 3}, {"session_id": "a b"}, {"session_id": "a", "state_interval": 0}):
        with pytest.raises(InvalidValueError):
            decorate(**options)


async def test_the_inner_of_two_sessions_is_the_current_one(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("outer") as outer:
        async with satay.Session("inner") as inner:
            within = satay.current_session()
        after = satay.current_session()

        assert (inner, outer) == (within, after)


# --- time -------------------------------------------------------------------------------------------------------------


async def test_an_open_session_is_woken_at_its_moment(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        due = await session.wake_at(60, "look again")
        await session.wake_at(timedelta(seconds=30))
        await clock.advance(30)
        half = types_of(tmp_path, "s")
        await clock.advance(30)
        await session.step("awake")

        assert due == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    entries = History.of(tmp_path).entries["s"]
    assert 1 == half.count("TimerFired")
    assert [3, 4] == [json.loads(entry.payload)["call"] for entry in entries if entry.type == "TimerFired"][::-1]
    assert ["look again", None] == [json.loads(e.payload).get("note") for e in entries if e.type == "TimerCreated"]


async def test_a_moment_that_is_over_wakes_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        await session.wake_at(datetime(2025, 1, 1, tzinfo=UTC))
        await clock.until_idle()

        assert "TimerFired" == types_of(tmp_path, "s")[-1]


async def test_a_paused_session_is_woken_by_the_app_that_paused_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        async with satay.Session("s") as session:
            await session.wake_at(3600, "one")
            await session.wake_at(7200, "two")
            session.pause()
        waiting = (await app.run("s")).wake_at
        await clock.advance(3600)
        later = await app.run("s")
        await clock.advance(3600)
        done = await app.run("s")

        assert (datetime(2026, 1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 2, tzinfo=UTC)) == (waiting, later.wake_at)
        assert (None, RunStatus.WAITING) == (done.wake_at, done.status)
        assert ["SessionPaused", "TimerFired", "TimerFired"] == types_of(tmp_path, "s")[-3:]
        assert (await satay.verify("s")).is_intact
        async with satay.Session("s") as again:
            assert "started" == again.status


async def test_a_paused_session_is_woken_by_an_app_that_recovers(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()), satay.Session("s") as session:
        await session.wake_at(3600)
        session.pause()
    async with open_app(tmp_path, recover=True) as app, asyncio.timeout(30):
        async for event in app.events("s"):
            if event.type == "TimerFired":
                break

        assert "TimerFired" == types_of(tmp_path, "s")[-1]
        assert RunStatus.WAITING is await app.status("s")


async def test_a_session_that_nobody_woke_is_woken_when_it_is_opened(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        await session.wake_at(3600)
        session.pause()
    await clock.advance(7200)
    async with open_app(tmp_path, clock=clock, seed=1), satay.Session("s"):
        assert ["SessionPaused", "SessionResumed", "TimerFired"] == types_of(tmp_path, "s")[-3:]


async def test_a_session_that_is_open_again_wakes_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock):
        async with satay.Session("s") as session:
            await session.wake_at(3600)
            session.pause()
        async with satay.Session("s"):
            await clock.advance(3600)

            assert 1 == types_of(tmp_path, "s").count("TimerFired")
            assert "TimerFired" == types_of(tmp_path, "s")[-1]


async def test_a_completed_session_is_not_woken(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        async with satay.Session("s") as session:
            await session.wake_at(3600)
        await clock.advance(7200)

        assert "SessionCompleted" == types_of(tmp_path, "s")[-1]
        assert (await app.run("s")).wake_at is None


async def test_a_fork_inherits_a_wake_up_that_was_to_come(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock):
        async with satay.Session("s", state_fn=lambda: 1) as session:
            await session.wake_at(3600)
            await session.step("work")
            await clock.advance(3600)
            fork = await session.fork(at_step=1, name="f")
        async with fork:
            assert ["RunForked", "SessionStarted", "TimerFired"] == types_of(tmp_path, "f")[-3:]


@pytest.mark.parametrize(
    "when",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001
        "soon",
        None,
        float("nan"),
        True,
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
async def test_what_is_no_moment_is_refused(when: Any, tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        with pytest.raises(InvalidValueError, match="wake_at"):
            await session.wake_at(when)

        assert ["SessionCreated", "SessionStarted"] == types_of(tmp_path, "s")


# --- following --------------------------------------------------------------------------------------------------------


async def test_a_session_is_followed_while_it_goes_on_over_a_pause_and_a_crash(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    async def follow(app: AppUnderTest) -> None:
        async for event in app.events("s"):
            seen.append((event.seq, event.type))

    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            following = asyncio.create_task(follow(app))
            await session.step("one")
            session.pause()
        with suppress(ValueError):
            async with satay.Session("s"):
                raise ValueError("oh")
        async with satay.Session("s") as again:
            await again.step("two")
        async with asyncio.timeout(30):
            await following

    assert list(enumerate(types_of(tmp_path, "s"), 1)) == seen


async def test_following_goes_on_after_any_entry(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            await three_steps(session)
        async with asyncio.timeout(30):
            seqs = [event.seq async for event in app.events("s", after=3)]

    assert [4, 5, 6] == seqs


async def test_the_result_of_a_session_is_waited_for_by_its_id(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            waiting = asyncio.create_task(app.handle("s").result())
            await session.step("work")
            session.complete({"answer": 42})
        async with asyncio.timeout(30):
            result = await waiting

        assert {"answer": 42} == result == await app.handle("s").result()


async def test_waiting_for_a_session_that_nobody_has_open_says_how_it_goes_on(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await satay.Session("s").__aenter__()
        await abandon(app)
    async with open_app(tmp_path) as app:
        with pytest.raises(LeaseHeldError, match=r"nobody has it open; .*Session\.resume\('s'\)"):
            await app.handle("s").result()


async def test_entries_that_were_taken_off_the_end_are_missed(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        await three_steps(session)
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection, connection:
        connection.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
    async with open_app(tmp_path):
        assert not (await satay.verify("s")).is_intact


# --- what is for runs of workflows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda: satay.start(workflow, run_id="s"),
        lambda: satay.resume("s"),
        lambda: satay.fork("s", fork_point_seq=1),
        lambda: satay.plan_fork("s", fork_point_seq=1),
        lambda: satay.cancel("s"),
        lambda: satay.terminate("s"),
        lambda: satay.send_event("go", run_id="s"),
    ],
)
async def test_what_is_for_runs_of_workflows_says_what_to_do_with_a_session(
    ask: Callable[[], Any], tmp_path: Path
) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await three_steps(session)
            before = History.of(tmp_path).digest(["s"])
            with pytest.raises(RunConflictError, match=r"'s' is a session .*Session\.resume\('s'"):
                await ask()
        with pytest.raises(RunConflictError, match="is a session"):
            await ask()

    assert before != History.of(tmp_path).digest(["s"])
    assert ["s"] == list(History.of(tmp_path).records)


async def test_the_code_of_a_decorated_session_is_known_without_a_state_function(tmp_path: Path) -> None:
    @satay.session("decorated")
    async def work() -> None:
        await satay.current_session().step("one")

    async with open_app(tmp_path) as app:
        await work()
        run = await app.run("decorated")

    assert "unknown" != run.code_version
