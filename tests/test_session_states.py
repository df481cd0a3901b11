"""What is said of a session: its state, why it is so, and what to do."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

import satay
from satay.clock import MICROSECONDS
from satay.errors import ApprovalPendingError, JournalClosedError, NeedsDecisionError
from satay.inspections import inspect_run
from satay.model import EntryType
from satay.readers import open_reader
from satay.settings import Settings
from satay.states import RunState, StateReport
from satay.testing import AppUnderTest, Faults, abandon, open_app

pytestmark = pytest.mark.anyio


@satay.task(name="session_states.send", effect="external")
async def send() -> str:
    return "sent"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def look(app: AppUnderTest, run_id: str = "s") -> StateReport:
    assert app.data_dir is not None
    async with open_reader(Settings(data_dir=app.data_dir)) as reader:
        now = app.clock.now() + MICROSECONDS
        return (await inspect_run(reader, run_id, now, after=None, limit=1)).state


async def leave_in_a_call(place: Path) -> None:
    """A session whose process died in the middle of an external call."""
    faults = Faults().crash_before(type=EntryType.TASK_COMPLETED)
    async with open_app(place, faults=faults):
        with pytest.raises(JournalClosedError):
            async with satay.Session("s"):
                await send()


async def test_an_open_session_is_stepping(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        await session.step("first")
        report = await look(app)

        assert (RunState.STEPPING, "nothing to do") == (report.state, report.advice)
        assert "has it open, after step 1" in report.reason


async def test_a_session_whose_process_is_gone_is_crashed_and_can_be_opened(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        session = await satay.Session("s").__aenter__()
        await session.step("first")
        await abandon(app)
        report = await look(app)

    assert RunState.CRASHED is report.state
    assert "the process that had it open is gone, after step 1" == report.reason
    assert "satay.Session.resume('s')" in report.advice


async def test_a_session_whose_block_failed_says_with_what(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        with pytest.raises(ValueError, match="no idea"):
            async with satay.Session("s"):
                raise ValueError("no idea")
        report = await look(app)

    assert RunState.CRASHED is report.state
    assert "its block ended with ValueError: no idea, before its first step" == report.reason
    assert ("satay fork s --at-step 0 --boundary lineage --name NAME",) == report.commands


async def test_a_session_that_was_left_says_why(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            session.pause("waits for Ada")
        report = await look(app)

    assert (RunState.PAUSED, "it was left, before its first step: waits for Ada") == (report.state, report.reason)


async def test_a_fork_that_nobody_has_opened_says_with_which_step_it_goes_on(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s", state_fn=lambda: None) as session:
            await session.step("first")
            await session.fork(name="fork")
        report = await look(app, "fork")

    assert RunState.CREATED is report.state
    assert report.advice.endswith("it goes on with step 2")


async def test_a_completed_session_is_forked_after_a_step_that_has_a_state(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s", state_fn=lambda: None, state_interval=2) as session:
            for _ in range(3):
                await session.step("walk")
        report = await look(app)

    assert RunState.COMPLETED is report.state
    assert ("satay fork s --at-step 2 --name NAME",) == report.commands


async def test_a_decision_that_a_session_has_not_taken_says_how_it_is_taken(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            with pytest.raises(ApprovalPendingError):
                await session.require_approval("refund", wait=False)
            await satay.decide_approval("s", "refund", approved=True)
            opened = await look(app)
            session.pause()
        left = await look(app)

    assert (RunState.DECIDED, RunState.DECIDED) == (opened.state, left.state)
    assert "nothing to do; it takes the decision when it asks for the approval" == opened.advice
    assert "open it with 'async with satay.Session.resume('s')'; it takes the decision" in left.advice


async def test_a_lost_external_call_has_to_be_decided(tmp_path: Path) -> None:
    await leave_in_a_call(tmp_path)
    async with open_app(tmp_path) as app:
        with pytest.raises(NeedsDecisionError):
            async with satay.Session("s"):
                await send()
        asked = await look(app)
        await satay.decide("s", "rerun")
        decided = await look(app)

    assert (RunState.NEEDS_DECISION, RunState.DECIDED) == (asked.state, decided.state)
    assert "session_states.send:0" in asked.reason
    assert ("satay decide s rerun", "satay decide s fail", "satay decide s --value JSON") == asked.commands


async def test_of_several_lost_calls_those_are_told_that_nobody_has_decided_about(tmp_path: Path) -> None:
    faults = Faults().crash_before(type=EntryType.TASK_COMPLETED)
    async with open_app(tmp_path, faults=faults):
        with suppress(JournalClosedError):
            async with satay.Session("s"):
                await asyncio.gather(send(), send())
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            await asyncio.gather(send(), send(), return_exceptions=True)
            session.pause()
        both = await look(app)
        await satay.decide("s", "rerun")
        other = await look(app)
        await satay.decide("s", "fail", seq=4)
        none = await look(app)

    assert "session_states.send:0, session_states.send:1" in both.reason
    assert "satay decide s rerun --seq 3" == both.commands[0]
    assert RunState.NEEDS_DECISION is other.state
    assert "whoever made session_states.send:1 is gone" in other.reason
    assert "satay decide s rerun --seq 4" == other.commands[0]
    assert RunState.DECIDED is none.state
