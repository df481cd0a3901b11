"""What is outstanding at a cut keeps the time it had left: timers, timeouts, waits for events, approvals."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from satay.clock import MICROSECONDS
from satay.errors import ApprovalConflictError, ApprovalPendingError, ApprovalTimeoutError, EventTimeoutError
from satay.inspections import inspect_run
from satay.model import Entry, EntryType
from satay.postponements import moment_of_cut, postponements
from satay.readers import open_reader
from satay.replay import facts
from satay.settings import Settings
from satay.testing import AppUnderTest, ManualClock, abandon, open_app, pause, settle
from tests.books import Book
from tests.driving import entries_of

pytestmark = pytest.mark.anyio

LATER: Final = datetime(2027, 1, 1, tzinfo=UTC)
"""Long after the sources ran."""


class Pace:
    """How long an attempt takes, in seconds: in the source, and then in the fork."""

    seconds = 0.0


@pytest.fixture(autouse=True)
def _at_once() -> None:
    Pace.seconds = 0.0


@satay.task(name="postponed.draft")
async def draft() -> str:
    await pause(Pace.seconds)
    return "a draft"


@satay.workflow(name="postponed.hurried")
async def hurried() -> str:
    try:
        async with asyncio.timeout(60):
            return await draft()
    except TimeoutError:
        return "timed out"


@satay.workflow(name="postponed.listening")
async def listening() -> str:
    try:
        first = asyncio.ensure_future(satay.wait_for_event("word", timeout=60))
        await asyncio.sleep(0)
        text = await draft()
        return f"{text}, {await first}"
    except EventTimeoutError:
        return "timed out"


@satay.workflow(name="postponed.two_drafts")
async def two_drafts() -> str:
    try:
        async with asyncio.timeout(60):
            return f"{await draft()}, {await draft()}"
    except TimeoutError:
        return "timed out"


@satay.workflow(name="postponed.child")
async def napping() -> str:
    await satay.sleep(60)
    return "slept"


@satay.workflow(name="postponed.parent")
async def parent() -> str:
    child = satay.start_child(napping)
    await draft()
    return f"{await draft()}, {await child.result()}"


@satay.workflow(name="postponed.asking")
async def asking() -> str:
    asked = asyncio.ensure_future(satay.require_approval("refund", 40, timeout=60))
    await asyncio.sleep(0)
    await draft()
    return "approved" if await asked else "rejected"


async def source(place: Path, workflow: satay.Workflow[[], Any], seconds: float = 0.0) -> Any:
    """The result of a run that nobody has to do with any more."""
    Pace.seconds = seconds
    async with open_app(place) as app:
        return await app.start(workflow, run_id="s").result()


async def fork_later(place: Path, seconds: float, **cut: Any) -> tuple[Any, float]:
    """The result of a fork in which each draft takes so long, and how many seconds the fork took."""
    Pace.seconds = seconds
    async with open_app(place, clock=ManualClock(LATER, autojump=True)) as app:
        fork = await app.fork("s", run_id="later", **cut)
        result = await fork.result()
        return result, app.clock.now() / MICROSECONDS - LATER.timestamp()


async def left(app: AppUnderTest, run_id: str) -> float:
    """So many seconds does a run wait, as its row tells."""
    wake_at = (await app.run(run_id)).wake_at
    assert wake_at is not None
    return wake_at.timestamp() - app.clock.now() / MICROSECONDS


# --- in the fork ------------------------------------------------------------------------------------------------------

CUTS: Final[dict[str, dict[str, Any]]] = {
    "the call alone": {"before_task": draft, "keep_siblings": True},
    "before the call": {"before_task": draft},
    "after the timer": {"fork_point_seq": 2},
    "after the call": {"fork_point_seq": 3},
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("seconds", [50.0, 70.0], ids=["in time", "too late"])
@pytest.mark.parametrize("in_source", [1.0, 70.0], ids=["answered", "timed out"])
async def test_a_timeout_at_the_cut_begins_anew_with_the_fork(
    cut: dict[str, Any], seconds: float, in_source: float, tmp_path: Path
) -> None:
    assert ("a draft" if in_source < 60 else "timed out") == await source(tmp_path, hurried, in_source)

    found = await fork_later(tmp_path, seconds, **cut)

    assert ("a draft" if seconds < 60 else "timed out", min(seconds, 60.0)) == found


async def test_a_timer_has_the_time_that_it_had_left_at_the_cut(tmp_path: Path) -> None:
    await source(tmp_path, two_drafts, 25.0)

    async with open_app(tmp_path, clock=ManualClock(LATER)) as app:
        await app.fork("s", run_id="f", before_task=draft, before_ordinal=1)
        await settle(app)
        await app.clock.advance(25)

        assert "a draft, a draft" == await app.handle("f").result()

    assert ("timed out", 35) == await fork_later(tmp_path, 36.0, before_task=draft, before_ordinal=1)


async def test_a_call_that_is_made_again_has_the_time_that_it_had_when_it_was_made(tmp_path: Path) -> None:
    await source(tmp_path, two_drafts, 25.0)

    again: dict[str, Any] = {"before_task": draft, "before_ordinal": 1, "keep_siblings": True}
    assert ("timed out", 35) == await fork_later(tmp_path, 36.0, **again)


async def test_it_is_due_at_the_same_moment_however_often_the_fork_is_resumed(tmp_path: Path) -> None:
    await source(tmp_path, napping)
    clock = ManualClock(LATER)
    async with open_app(tmp_path, clock=clock) as app:
        await app.fork("s", run_id="f", fork_point_seq=2)
        await settle(app)
        assert 60 == await left(app, "f")
        await clock.advance(10)
        await abandon(app)
    for seconds in (50, 40):
        clock = ManualClock(LATER + timedelta(seconds=60 - seconds))
        async with open_app(tmp_path, clock=clock, recover=True) as app:
            await settle(app)
            assert seconds == await left(app, "f")
            await abandon(app)
    async with open_app(tmp_path, clock=ManualClock(LATER + timedelta(seconds=60)), recover=True) as app:
        assert "slept" == await app.resume("f").result()


async def test_a_fork_of_the_fork_goes_on_with_what_was_left_there(tmp_path: Path) -> None:
    await source(tmp_path, listening)
    async with open_app(tmp_path, clock=ManualClock(LATER)) as app:
        await app.fork("s", run_id="f", before_task=draft)
        await settle(app)
        await app.clock.advance(50)
        assert 10 == await left(app, "f")
        entries = await entries_of(app, "f")
        whole = await app.fork("f", run_id="whole", fork_point_seq=2, allow_unfinished=True)
        draft_is_there = next(entry.seq for entry in entries if entry.type == EntryType.TASK_COMPLETED)
        same = await app.fork("f", run_id="same", fork_point_seq=draft_is_there, allow_unfinished=True)
        anew = await app.fork("f", run_id="anew", before_event="word", keep_siblings=True, allow_unfinished=True)
        await settle(app)

        assert [60, 60, 60] == [await left(app, run.run_id) for run in (whole, same, anew)]
        await app.clock.advance(59)
        assert "timed out" == await app.handle("f").result()
        for run in (whole, same, anew):
            await app.send_event("word", "hello", run_id=run.run_id)
            assert "a draft, hello" == await run.result()


async def test_a_child_in_flight_sleeps_for_what_was_left_when_its_parent_was_cut(tmp_path: Path) -> None:
    await source(tmp_path, parent, 25.0)

    assert ("a draft, slept", 35) == await fork_later(tmp_path, 0.0, before_task=draft, before_ordinal=1)


async def test_a_plan_finds_what_the_fork_will_be(tmp_path: Path) -> None:
    await source(tmp_path, hurried, 70.0)
    async with open_app(tmp_path, clock=ManualClock(LATER)) as app:
        plan = await app.plan_fork("s", before_task=draft, keep_siblings=True)

        assert ["wait", "rerun"] == [call.action for call in plan.calls]


async def test_what_waits_in_a_fork_says_until_when(tmp_path: Path) -> None:
    await source(tmp_path, listening)
    async with open_app(tmp_path, clock=ManualClock(LATER)) as app:
        await app.fork("s", run_id="f", fork_point_seq=2)
        await settle(app)
        async with open_reader(Settings(data_dir=app.data_dir)) as reader:
            report = (await inspect_run(reader, "f", app.clock.now(), after=None, limit=1)).state

        assert "until 2027-01-01 00:01:00 UTC" in report.reason


# --- requests for approval --------------------------------------------------------------------------------------------


async def test_an_approval_that_is_asked_for_at_the_cut_can_be_decided_in_the_time_that_was_left(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app:
        run = app.start(asking, run_id="s")
        await run
        await settle(app)
        await app.decide_approval("s", "refund", approved=False)
        assert "rejected" == await run.result()
    async with open_app(tmp_path, clock=ManualClock(LATER)) as app:
        fork = await app.fork("s", run_id="f", before_task=draft)
        late = await app.fork("s", run_id="late", before_task=draft)
        await settle(app)
        (pending,) = await app.approvals("f")
        assert LATER + timedelta(seconds=60) == pending.deadline
        await app.clock.advance(59)
        await app.decide_approval("f", "refund", approved=True)
        assert "approved" == await fork.result()
        await app.clock.advance(1)

        with pytest.raises(ApprovalTimeoutError):
            await late.result()
        with pytest.raises(ApprovalConflictError, match="timed out at 2027-01-01 00:01:00 UTC"):
            await app.decide_approval("late", "refund", approved=True)


async def test_a_session_asks_in_the_time_that_was_left_at_its_cut(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app, satay.Session("s", state_fn=lambda: 1) as session:
        with pytest.raises(ApprovalPendingError):
            await session.require_approval("refund", 40, timeout=60, wait=False)
        await app.clock.advance(20)
        await session.step("asked")
        await app.decide_approval("s", "refund", approved=False)
        assert not await session.require_approval("refund", 40)
    async with open_app(tmp_path, clock=ManualClock(LATER)) as app:
        fork = await satay.Session.resume("s", fork_at_step=1, name="f")
        (pending,) = await app.approvals("f")
        assert LATER + timedelta(seconds=40) == pending.deadline
        of_fork = await satay.Session.resume("f", fork_at_step=1, name="ff")
        await app.clock.advance(39)
        async with fork:
            with pytest.raises(ApprovalPendingError):
                await fork.require_approval("refund", 40, wait=False)
            await app.decide_approval("f", "refund", approved=True)
            assert await fork.require_approval("refund", 40)
        await app.clock.advance(1)
        async with of_fork:
            with pytest.raises(ApprovalTimeoutError):
                await of_fork.require_approval("refund", 40)


# --- as it is recorded ------------------------------------------------------------------------------------------------


def wait(book: Book, seconds: int) -> int:
    """A wait that is due so many seconds after its entry."""
    seq = book.add(EntryType.EVENT_WAIT_STARTED, event="word", ordinal=0, match=None, due=0)
    entry = book.entries[-1]
    book.entries[-1] = entry._replace(
        payload=entry.payload.replace('"due":0', f'"due":{entry.at + seconds * MICROSECONDS}')
    )
    return seq


def fork(book: Book, **told: Any) -> None:
    book.pass_seconds(100)
    book.add(EntryType.RUN_FORKED, run_id="f", source_id="a", **told, receipt=None)


def left_at_end(entries: list[Entry], seq: int) -> float:
    """How many seconds a wait has left at the last entry."""
    due: int = facts(entries[seq - 1])["due"] + postponements(entries).get(seq, 0)
    return (due - entries[-1].at) / MICROSECONDS


def test_a_run_that_is_no_fork_postpones_nothing() -> None:
    book = Book()
    wait(book, 60)
    book.task("draft", "tea")

    assert {} == postponements(book.entries)


def test_what_was_outstanding_keeps_what_it_had_left_over_any_number_of_forks() -> None:
    book = Book()
    seq = wait(book, 60)
    book.task("draft", "tea")
    fork(book, cut_at=moment_of_cut(book.entries, None))
    assert 58 == left_at_end(book.entries, seq)
    fork(book, cut_at=moment_of_cut(book.entries, None))
    assert 58 == left_at_end(book.entries, seq)
    book.task("draft", "tea")
    fork(book, cut_at=moment_of_cut(book.entries, None))

    assert 56 == left_at_end(book.entries, seq)


def test_a_wait_that_began_after_the_call_that_is_made_again_has_all_its_time() -> None:
    book = Book()
    call = book.schedule("draft")
    book.pass_seconds(10)
    seq = wait(book, 60)
    fork(book, cut_at=moment_of_cut(book.entries, call), again=call)

    assert 60 == left_at_end(book.entries, seq)


def test_a_wait_that_is_made_again_has_all_its_time_also_in_a_fork_of_a_fork() -> None:
    book = Book()
    seq = wait(book, 60)
    book.task("draft", "tea")
    fork(book, cut_at=moment_of_cut(book.entries, None))
    book.task("draft", "tea")
    fork(book, cut_at=moment_of_cut(book.entries, seq), again=seq)

    assert 60 == left_at_end(book.entries, seq)


def test_a_call_that_a_fork_of_a_fork_makes_again_began_there_with_the_fork() -> None:
    book = Book()
    seq = wait(book, 60)
    book.pass_seconds(10)
    call = book.schedule("draft")
    fork(book, cut_at=moment_of_cut(book.entries, None))
    book.pass_seconds(20)
    book.task("other", "tea")
    fork(book, cut_at=moment_of_cut(book.entries, call), again=call)

    assert 50 == left_at_end(book.entries, seq)


def test_what_had_ended_before_the_cut_is_not_postponed() -> None:
    book = Book()
    seq = wait(book, 60)
    book.add(EntryType.EVENT_WAIT_TIMED_OUT, call=seq)
    other = wait(book, 60)
    book.add(EntryType.CALL_CANCELLED, call=other)
    fork(book, cut_at=moment_of_cut(book.entries, None))

    assert {} == postponements(book.entries)


def test_a_fork_that_does_not_say_when_it_was_cut_postpones_nothing() -> None:
    book = Book()
    wait(book, 60)
    fork(book)

    assert {} == postponements(book.entries)
