"""Every state that a run can be in has a label of its own, a reason and an advice."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from satay.clock import MICROSECONDS
from satay.errors import ApprovalPendingError, TaskBlockedError
from satay.inspections import inspect_run
from satay.model import RunStatus
from satay.readers import open_reader
from satay.settings import Settings
from satay.states import RunState, StateReport
from satay.testing import AppUnderTest, ManualClock, abandon, open_app, pause, settle
from tests.driving import in_loop

State = Callable[[Path], Coroutine[Any, Any, StateReport]]


@satay.task(name="states.hang")
async def hang() -> None:
    await pause(math.inf)


@satay.task(name="states.fail", retries=3, backoff=600)
async def fail() -> None:
    raise ValueError("out of order")


@satay.task(name="states.charge", effect="external")
async def charge() -> None:
    await pause(math.inf)


@satay.task(name="states.reply", effect="external")
async def reply() -> str:
    return "sent"


@satay.workflow(name="states.replying")
async def replying() -> str:
    return await reply()


@satay.workflow(name="states.working")
async def working() -> None:
    await hang()


@satay.workflow(name="states.failing")
async def failing() -> None:
    await fail()


@satay.workflow(name="states.charging")
async def charging() -> None:
    await charge()


@satay.workflow(name="states.charging_twice")
async def charging_twice() -> None:
    await asyncio.gather(charge(), charge())


@satay.workflow(name="states.sleeping")
async def sleeping() -> None:
    await satay.sleep(timedelta(days=1))


@satay.workflow(name="states.approving")
async def approving() -> None:
    await satay.require_approval("it's", {"dollars": 40}, timeout=timedelta(days=1))


@satay.workflow(name="states.waiting")
async def waiting() -> Any:
    return await satay.wait_for_event("answer", key="it's", timeout=timedelta(days=2))


@satay.workflow(name="states.parent")
async def parent() -> Any:
    return await satay.start_child(waiting).result()


@satay.workflow(name="states.ending")
async def ending(how: str) -> str:
    if how == "error":
        raise LookupError("nothing found")
    if how == "again":
        satay.continue_as_new("done")
    return how


def stopped_clock() -> ManualClock:
    return ManualClock()


async def look(app: AppUnderTest, run_id: str = "r", *, later_seconds: float = 0) -> StateReport:
    """What a reader says of a run, at the time of the app."""
    assert app.data_dir is not None
    now = app.clock.now() + round(later_seconds * MICROSECONDS)
    async with open_reader(Settings(data_dir=app.data_dir)) as reader:
        return (await inspect_run(reader, run_id, now, after=None, limit=1)).state


async def started(place: Path, workflow: satay.Workflow[[], Any]) -> StateReport:
    async with open_app(place, clock=stopped_clock()) as app:
        await app.start(workflow, run_id="r")
        await settle(app)
        return await look(app)


async def ended(place: Path, how: str) -> StateReport:
    async with open_app(place) as app:
        await app.start(ending, how, run_id="r")
        await settle(app)
        return await look(app)


async def left(place: Path, workflow: satay.Workflow[[], Any], *, later_seconds: float = 0) -> StateReport:
    """A run that was there when its app closed in good order."""
    async with open_app(place, clock=stopped_clock()) as app:
        await app.start(workflow, run_id="r")
        await settle(app)
    return await look(app, later_seconds=later_seconds)


async def crashed(place: Path) -> StateReport:
    async with open_app(place, clock=stopped_clock()) as app:
        await app.start(working, run_id="r")
        await settle(app)
        await abandon(app)
    return await look(app)


async def given_up(place: Path) -> StateReport:
    """A run whose driver found that code and journal part."""
    async with open_app(place, clock=stopped_clock()) as app:
        await app.start(working, run_id="r")
        await settle(app)
        await abandon(app)
    async with open_app(place, clock=stopped_clock()) as app:
        journal = (await app._ready()).journal
        for owner in await journal.owners():
            if owner.id != app._scheduler.owner_id:  # type: ignore[union-attr]  # it is open
                await journal.retire(owner.id)
        return await look(app)


async def undecided(
    place: Path, *, is_decided: bool = False, workflow: satay.Workflow[[], None] = charging
) -> StateReport:
    async with open_app(place, clock=stopped_clock()) as app:
        await app.start(workflow, run_id="r")
        await settle(app)
        await abandon(app)
    async with open_app(place, clock=stopped_clock()) as app:
        app.resume("r")
        await settle(app)
        assert RunStatus.NEEDS_DECISION is await app.status("r")
    if is_decided:
        async with satay.run_app(data_dir=place) as real:
            scheduler = await real._ready()
            decided = '{"call":2,"attempt":1,"decision":"rerun"}'
            await scheduler.journal.post("r", "satay.decision", None, None, decided, 0)
    return await look(app)


async def asked_to_end(place: Path) -> StateReport:
    async with open_app(place, clock=stopped_clock()) as app:
        await app.start(waiting, run_id="r")
        await settle(app)
    async with satay.run_app(data_dir=place) as real:
        scheduler = await real._ready()
        await scheduler.journal.post("r", "satay.cancel", None, None, "null", 0)
    return await look(app)


async def cancelled(place: Path) -> StateReport:
    async with open_app(place) as app:
        handle = await app.start(sleeping, run_id="r")
        await handle.cancel()
        await settle(app)
        return await look(app)


async def session(place: Path, state: RunState) -> StateReport:
    """A session that is open, that was left, or that was forked and never opened."""
    async with open_app(place, clock=stopped_clock()) as app:
        async with satay.Session("r", state_fn=lambda: None) as opened:
            await opened.step("only")
            if state is RunState.STEPPING:
                return await look(app)
            opened.pause("waits for Ada")
        if state is RunState.PAUSED:
            return await look(app)
        await opened.fork(name="fork")
        return await look(app, "fork")


STATES: Final[dict[RunState, State]] = {
    RunState.RUNNING: lambda place: started(place, working),
    RunState.RETRYING: lambda place: started(place, failing),
    RunState.SLEEPING: lambda place: started(place, sleeping),
    RunState.WAITING_FOR_EVENT: lambda place: started(place, waiting),
    RunState.WAITING_FOR_APPROVAL: lambda place: started(place, approving),
    RunState.WAITING_FOR_CHILD: lambda place: started(place, parent),
    RunState.OVERDUE: lambda place: left(place, sleeping, later_seconds=90_000),
    RunState.CANCELLING: asked_to_end,
    RunState.NEEDS_DECISION: undecided,
    RunState.DECIDED: lambda place: undecided(place, is_decided=True),
    RunState.CRASHED: crashed,
    RunState.SUSPENDED: lambda place: left(place, working),
    RunState.STRANDED: given_up,
    RunState.CREATED: lambda place: session(place, RunState.CREATED),
    RunState.STEPPING: lambda place: session(place, RunState.STEPPING),
    RunState.PAUSED: lambda place: session(place, RunState.PAUSED),
    RunState.COMPLETED: lambda place: ended(place, "well"),
    RunState.CONTINUED: lambda place: ended(place, "again"),
    RunState.FAILED: lambda place: ended(place, "error"),
    RunState.CANCELLED: cancelled,
}


def test_every_state_can_be_told() -> None:
    assert set(RunState) - {RunState.WAITING} == set(STATES)


@pytest.mark.parametrize("state", STATES)
def test_a_state_has_a_label_a_reason_and_an_advice(tmp_path: Path, state: RunState) -> None:
    report = in_loop(STATES[state](tmp_path))

    assert state is report.state
    assert report.reason
    assert report.advice
    assert all(command.startswith("satay ") for command in report.commands)


def test_labels_reasons_and_advice_are_told_apart(tmp_path: Path) -> None:
    reports = {}
    for state, reach in STATES.items():
        (tmp_path / state.name).mkdir()
        reports[state] = in_loop(reach(tmp_path / state.name))

    assert len(STATES) == len({report.state.value for report in reports.values()})
    assert len(STATES) == len({report.reason for report in reports.values()})


def test_a_wait_for_an_event_is_told_with_the_command_that_ends_it(tmp_path: Path) -> None:
    report = in_loop(started(tmp_path, waiting))

    assert report.reason.startswith("it waits for event 'answer' with key \"it's\", until ")
    assert ("satay send answer JSON --run r --key 'it'\"'\"'s'",) == report.commands


@pytest.mark.parametrize("receiver", ["r", None])
def test_an_event_that_nobody_has_taken_is_not_asked_for_again(receiver: str | None, tmp_path: Path) -> None:
    async def run() -> StateReport:
        async with open_app(tmp_path, clock=stopped_clock()) as app:
            await app.start(waiting, run_id="r")
            await settle(app)
            await abandon(app)
        async with open_app(tmp_path, clock=stopped_clock()) as app:
            scheduler = await app.scheduler()
            await scheduler.journal.post(receiver, "answer", "it's", None, "1", scheduler.clock.now())
            return await look(app)

    report = in_loop(run())

    assert "which lies in its inbox, and nobody has taken it yet" in report.reason
    assert report.advice.startswith("nothing to send")
    assert ("satay resume r -m MODULE",) == report.commands


def test_a_wait_for_an_approval_is_told_with_the_commands_that_decide_it(tmp_path: Path) -> None:
    report = in_loop(started(tmp_path, approving))

    assert report.reason.startswith('it waits for approval "it\'s", until ')
    approve = "satay approve r 'it'\"'\"'s'"
    assert (approve, f"{approve} --reject") == report.commands


@pytest.mark.parametrize("is_decided", [True, False])
def test_an_approval_whose_answer_nobody_has_taken_is_not_asked_for_again(tmp_path: Path, is_decided: bool) -> None:
    async def run() -> StateReport:
        clock = stopped_clock()
        async with open_app(tmp_path, clock=clock) as app:
            await app.start(approving, run_id="r")
            await settle(app)
            await abandon(app)
        await clock.advance(0 if is_decided else timedelta(days=2))
        async with open_app(tmp_path, clock=clock) as app:
            if is_decided:
                scheduler = await app.scheduler()
                await scheduler.journal.post("r", "satay.approval", "it's", "satay.approval:r:it's", "{}", clock.now())
            return await look(app)

    report = in_loop(run())

    assert is_decided is (report.state is RunState.DECIDED)
    assert not [command for command in report.commands if "approve" in command]


async def session_that_asked(place: Path, *, is_left: bool) -> StateReport:
    async with open_app(place, clock=stopped_clock()) as app:
        async with satay.Session("s") as session:
            with pytest.raises(ApprovalPendingError):
                await session.require_approval("refund", wait=False)
            session.pause()
            report = await look(app, "s")
        return await look(app, "s") if is_left else report


@pytest.mark.parametrize("is_left", [True, False])
def test_a_session_that_waits_for_an_approval_says_so(tmp_path: Path, is_left: bool) -> None:
    report = in_loop(session_that_asked(tmp_path, is_left=is_left))

    assert (RunState.WAITING_FOR_APPROVAL, "it waits for approval 'refund'") == (report.state, report.reason)
    assert ("satay approve s refund", "satay approve s refund --reject") == report.commands
    assert is_left is ("opens the session again" in report.advice)


def test_a_task_that_is_tried_again_is_told_with_its_error(tmp_path: Path) -> None:
    report = in_loop(started(tmp_path, failing))

    assert report.reason.startswith(
        "attempt 1 of states.fail:0 failed: ValueError: out of order; the next attempt is at"
    )
    assert "nothing to do" in report.advice


def test_a_wait_that_no_process_would_end_says_so(tmp_path: Path) -> None:
    report = in_loop(left(tmp_path, sleeping))

    assert RunState.SLEEPING is report.state
    assert "no process is there" in report.reason
    assert ("satay resume r -m MODULE",) == report.commands


def test_a_call_that_is_undecided_is_named(tmp_path: Path) -> None:
    report = in_loop(undecided(tmp_path))

    assert "its process died during states.charge:0" in report.reason
    assert "satay decide r rerun" == report.commands[0]


def test_of_several_undecided_calls_those_are_named_that_nobody_has_decided_about(tmp_path: Path) -> None:
    both = in_loop(undecided(tmp_path / "both", workflow=charging_twice))
    other = in_loop(undecided(tmp_path / "other", workflow=charging_twice, is_decided=True))

    assert "states.charge:0, states.charge:1" in both.reason
    assert "satay decide r rerun --seq 2" == both.commands[0]
    assert RunState.NEEDS_DECISION is other.state
    assert "its process died during states.charge:1, and" in other.reason
    assert "satay decide r rerun --seq 3" == other.commands[0]


def test_a_fork_that_waits_for_a_child_in_flight_names_the_child_of_its_own(tmp_path: Path) -> None:
    async def look_at_fork() -> StateReport:
        async with open_app(tmp_path, clock=stopped_clock()) as app:
            await app.start(parent, run_id="r")
            await settle(app)
            await app.fork("r", run_id="f", fork_point_seq=2, allow_unfinished=True)
            await settle(app)
            return await look(app, "f")

    report = in_loop(look_at_fork())

    assert "it waits for f/states.waiting:0" == report.reason
    assert ("satay show f/states.waiting:0",) == report.commands


def test_a_fork_that_a_policy_stopped_is_told_how_to_let_it_run(tmp_path: Path) -> None:
    async def main() -> StateReport:
        async with open_app(tmp_path) as app:
            await app.start(replying, run_id="source").result()
            fork = await app.fork("source", before_task=reply, run_id="r")
            with pytest.raises(TaskBlockedError):
                await fork.result()
            return await look(app)

    report = in_loop(main())

    assert RunState.FAILED is report.state
    assert "TaskBlockedError" in report.reason
    assert ("satay fork source --before-task TASK --policy TASK=live -m MODULE",) == report.commands


def test_an_experiment_is_no_run_that_somebody_has_to_resume(tmp_path: Path) -> None:
    async def main() -> StateReport:
        async with open_app(tmp_path) as app:
            await app.start(ending, "well", run_id="r").result()
            await app.set_outcome("r", "rejected")
            return await look(app, "r~experiment")

    report = in_loop(main())

    assert ((), "it is an experiment: a record, which nobody drives") == (report.commands, report.reason)


def test_a_report_is_plain_data(tmp_path: Path) -> None:
    report = in_loop(ended(tmp_path, "again"))

    assert {
        "state": "continued",
        "reason": "it goes on as r~2",
        "advice": "look at the run that goes on",
        "commands": ["satay show r~2"],
    } == report.to_dict()
