"""How runs that nobody drives are taken over, many at a time."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import satay
from satay.errors import JournalBusyError, WorkflowCancelledError
from satay.journal import FirstPage, Journal
from satay.lookout import RUNS_PER_LOOK
from satay.revivals import CALLBACKS_PER_SLICE
from satay.takeovers import MAX_BATCH
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app, settle
from tests.driving import in_loop, types_of

MINUTE = 60_000_000


@satay.workflow(name="takeovers.nap")
async def nap() -> str:
    await satay.sleep(60)
    return "woke"


@satay.workflow(name="takeovers.waits")
async def waits() -> int:
    return int(await satay.wait_for_event("go"))


async def hand_on(pages: Sequence[FirstPage]) -> Sequence[FirstPage]:
    return pages


class ObservedJournal:
    """A journal that counts what it is asked, and hands first pages on through `on_pages`."""

    def __init__(self, journal: Journal) -> None:
        self.asked: Counter[str] = Counter()
        self.on_pages: Callable[[Sequence[FirstPage]], Awaitable[Sequence[FirstPage]]] = hand_on
        self.failing: set[str] = set()
        self._journal = journal

    async def first_pages(self, run_ids: Sequence[str]) -> Sequence[FirstPage]:
        self.asked["first_pages"] += 1
        return await self.on_pages(await self._journal.first_pages(run_ids))

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.asked[name] += 1
            return self._fail() if name in self.failing else getattr(self._journal, name)(*args, **kwargs)

        return call

    async def _fail(self) -> None:
        raise JournalBusyError("the journal stayed locked")


class Observed(Faults):
    """Stands between an app and its journal."""

    journal: ObservedJournal

    def wrap(self, journal: Journal, on_call: Callable[[], None], on_crash: Callable[[], None]) -> Journal:
        self.journal = ObservedJournal(journal)
        return super().wrap(cast("Journal", self.journal), on_call, on_crash)  # It has every method, by delegation.


async def park(app: AppUnderTest, runs: int) -> None:
    """Runs `r0`, `r1` and so on, which wait for a minute, and are in no memory."""
    for number in range(runs):
        await app.start(nap, run_id=f"r{number}")
    await settle(app)


def rows(place: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(place / "satay.db") as connection:
        found = connection.execute(sql).fetchall()
    connection.close()
    return found


def statuses(place: Path) -> dict[str, int]:
    return dict(rows(place, "SELECT status, count(*) FROM runs GROUP BY status"))


class Stall:
    """Holds first pages back for ever; `begun` is set when it does."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, pages: Sequence[FirstPage]) -> Sequence[FirstPage]:
        self.begun.set()
        await asyncio.get_running_loop().create_future()
        return pages


def test_runs_that_are_due_together_cost_few_questions_and_one_append_each(tmp_path: Path) -> None:
    runs = RUNS_PER_LOOK + MAX_BATCH + 1
    observed = Observed()

    async def run() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, faults=observed, max_resident=0) as app:
            await park(app, runs)
            observed.journal.asked.clear()
            await clock.advance(60)

    in_loop(run())

    asked = observed.journal.asked
    batches = 4
    assert {"completed": runs} == statuses(tmp_path)
    assert (batches, batches, runs) == (asked["claim"], asked["first_pages"], asked["append"])
    assert [0, 0, 0, 0] == [asked[name] for name in ("record", "read", "blobs", "messages")]


@pytest.mark.parametrize("damage", ["CAST(X'7BFF7D' AS TEXT)", "'{'", "7"])
def test_a_run_that_cannot_be_read_keeps_no_other_from_being_woken(damage: str, tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, max_resident=0) as app:
            await park(app, 10)
            rows(tmp_path, f"UPDATE events SET payload = {damage} WHERE run = 4 AND seq = 1")
            await clock.advance(60)

    in_loop(run())

    assert {"completed": 9, "waiting": 1} == statuses(tmp_path)
    ((run_id, wake_at),) = rows(tmp_path, "SELECT run_id, wake_at FROM runs WHERE status = 'waiting'")
    assert "r3" == run_id
    assert wake_at is not None


def test_closing_gives_runs_back_that_are_being_taken_over(tmp_path: Path) -> None:
    async def run() -> list[tuple[Any, ...]]:
        clock, observed, stall = ManualClock(), Observed(), Stall()
        async with open_app(tmp_path, clock=clock, faults=observed, max_resident=0) as app:
            await park(app, 100)
            before = rows(tmp_path, ROWS)
            observed.journal.on_pages = stall
            clock.jump_to(clock.now() + MINUTE)
            await stall.begun.wait()
        return before

    before = in_loop(run())

    assert before == rows(tmp_path, ROWS)


ROWS = "SELECT run_id, status, wake_at FROM runs ORDER BY key"


def test_runs_of_a_process_that_dies_while_it_takes_them_over_are_taken_over(tmp_path: Path) -> None:
    async def run() -> list[list[str]]:
        clock, observed, stall = ManualClock(), Observed(), Stall()
        async with open_app(tmp_path, clock=clock, faults=observed, max_resident=0) as app:
            await park(app, 100)
            observed.journal.on_pages = stall
            clock.jump_to(clock.now() + MINUTE)
            await stall.begun.wait()
            await abandon(app)
        claimed = statuses(tmp_path)["running"]
        assert claimed >= MAX_BATCH
        async with open_app(tmp_path, clock=clock, recover=True) as app:
            results = [await app.resume(f"r{number}").result() for number in range(100)]
            assert ["woke"] * 100 == results
            return [await types_of(app, f"r{number}") for number in (0, 99)]

    first, last = in_loop(run())

    assert {"completed": 100} == statuses(tmp_path)
    assert ["WorkflowCreated", "TimerCreated", "WorkflowResumed", "TimerFired", "WorkflowCompleted"] == first
    assert ["WorkflowCreated", "TimerCreated", "TimerFired", "WorkflowCompleted"] == last


def test_a_message_that_comes_while_a_run_is_taken_over_is_delivered(tmp_path: Path) -> None:
    observed = Observed()

    async def run() -> int:
        async with open_app(tmp_path, clock=ManualClock(), faults=observed, max_resident=0) as app:

            async def on_pages(pages: Sequence[FirstPage]) -> Sequence[FirstPage]:
                observed.journal.on_pages = hand_on
                await app.send_event("go", 7, run_id="r")
                return pages

            await app.start(waits, run_id="r")
            await settle(app)
            observed.journal.on_pages = on_pages
            return int(await app.resume("r").result())

    assert 7 == in_loop(run())


def test_a_message_of_before_is_delivered_to_a_run_that_is_taken_over(tmp_path: Path) -> None:
    async def run() -> int:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(waits, run_id="r")
            await settle(app)
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.send_event("go", 7)
            return int(await app.resume("r").result())

    assert 7 == in_loop(run())


def test_a_lone_run_does_not_wait_for_all_that_are_due(tmp_path: Path) -> None:
    runs = 8 * RUNS_PER_LOOK
    ended: list[int] = []
    observed = Observed()

    async def resume(app: AppUnderTest) -> None:
        await app.send_event("go", 7, run_id="lone")
        await app.resume("lone").result()
        ended.append(statuses(tmp_path)["completed"])

    async def run() -> None:
        clock = ManualClock()
        async with (
            open_app(tmp_path, clock=clock, faults=observed, max_resident=0) as app,
            asyncio.TaskGroup() as tasks,
        ):

            async def on_pages(pages: Sequence[FirstPage]) -> Sequence[FirstPage]:
                observed.journal.on_pages = hand_on
                tasks.create_task(resume(app))
                return pages

            await app.start(waits, run_id="lone")
            await park(app, runs)
            observed.journal.on_pages = on_pages
            await clock.advance(60)

    in_loop(run())

    assert {"completed": runs + 1} == statuses(tmp_path)
    assert ended[0] < runs // 2


def test_journals_that_come_in_pieces_are_read_to_their_ends(tmp_path: Path) -> None:
    observed = Observed()

    async def shorten(pages: Sequence[FirstPage]) -> Sequence[FirstPage]:
        first = pages[0]
        return [first._replace(entries=first.entries[:1], is_whole=False), *pages[1:3]]

    async def run() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, faults=observed, max_resident=0) as app:
            await park(app, 10)
            observed.journal.asked.clear()
            observed.journal.on_pages = shorten
            await clock.advance(60)

    in_loop(run())

    assert {"completed": 10} == statuses(tmp_path)
    assert 4 == observed.journal.asked["first_pages"] == observed.journal.asked["read"]


def test_due_runs_that_cannot_be_driven_here_hide_no_others_and_are_not_looked_at_without_end(tmp_path: Path) -> None:
    unknown = 2 * RUNS_PER_LOOK
    observed = Observed()

    async def run() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, faults=observed, max_resident=0) as app:
            await park(app, unknown + 1)
            rows(tmp_path, f"UPDATE runs SET workflow = 'elsewhere' WHERE run_id <> 'r{unknown}'")
            observed.journal.asked.clear()
            await clock.advance(60)

    in_loop(run())

    assert {"completed": 1, "waiting": unknown} == statuses(tmp_path)
    assert 3 == observed.journal.asked["due"]


def test_abandoned_runs_that_cannot_be_driven_here_hide_no_others(tmp_path: Path) -> None:
    unknown = 2 * RUNS_PER_LOOK

    async def run() -> None:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await park(app, unknown + 1)
        rows(tmp_path, f"UPDATE runs SET workflow = 'elsewhere' WHERE run_id <> 'r{unknown}'")
        rows(tmp_path, "UPDATE runs SET status = 'running'")
        async with open_app(tmp_path, recover=True):
            while "completed" not in statuses(tmp_path):  # noqa: ASYNC110  # Nothing tells when it has found the run.
                await asyncio.sleep(0.01)

    in_loop(run())

    assert {"completed": 1, "running": unknown} == statuses(tmp_path)


def test_a_sweep_that_fails_is_made_again(tmp_path: Path) -> None:
    observed = Observed()

    async def run() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, faults=observed, max_resident=0, poll_seconds=1.0) as app:
            await park(app, 1)
            observed.journal.failing.add("due")
            await clock.advance(60)
            assert {"waiting": 1} == statuses(tmp_path)
            observed.journal.failing.clear()
            await clock.advance(1)

    in_loop(run())

    assert {"completed": 1} == statuses(tmp_path)


@satay.task(name="takeovers.works")
async def works() -> str:
    for act in on_work:
        await act()
    return "worked"


@satay.workflow(name="takeovers.goes_on")
async def goes_on() -> str:
    await satay.wait_for_event("go", timeout=7 * 86_400)
    return await works()


on_work: list[Callable[[], Awaitable[None]]] = []
"""What the task does."""


def test_a_run_that_went_on_before_it_stopped_is_not_given_back_as_it_was_before(tmp_path: Path) -> None:
    observed = Observed()

    async def break_writing() -> None:
        observed.journal.failing.add("append")

    async def run() -> list[tuple[Any, ...]]:
        clock = ManualClock()
        on_work.append(break_writing)
        async with open_app(tmp_path, clock=clock, faults=observed, max_resident=0) as app:
            handle = await app.start(goes_on, run_id="r")
            await settle(app)
            await app.send_event("go")
            with pytest.raises(JournalBusyError):
                await handle.result()
            there = rows(tmp_path, ROWS)
        on_work.clear()
        async with open_app(tmp_path, clock=clock, recover=True, poll_seconds=0.01):
            while {"completed": 1} != statuses(tmp_path):  # noqa: ASYNC110  # The row tells nobody.
                await asyncio.sleep(0.01)
        return there

    assert [("r", "running", None)] == in_loop(run())


@satay.workflow(name="takeovers.has_child")
async def has_child() -> str:
    return await satay.start_child(nap).result()


def test_a_run_that_died_before_its_child_was_there_is_found(tmp_path: Path) -> None:
    async def run() -> list[tuple[Any, ...]]:
        faults = Faults().crash_after(type="ChildWorkflowScheduled")
        async with open_app(tmp_path, faults=faults) as app:
            app.start(has_child, run_id="r")
            await faults.crashed
        there = rows(tmp_path, ROWS)
        async with open_app(tmp_path, recover=True, poll_seconds=0.01):
            while {"completed": 2} != statuses(tmp_path):  # noqa: ASYNC110  # The row tells nobody.
                await asyncio.sleep(0.01)
        return there

    assert [("r", "running", None)] == in_loop(run())


def test_a_run_whose_child_is_there_only_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path, clock=ManualClock(), max_resident=0) as app:
            await app.start(has_child, run_id="r")
            await settle(app)
            assert {"waiting": 2} == statuses(tmp_path)
            await app.clock.advance(60)

    in_loop(run())

    assert {"completed": 2} == statuses(tmp_path)


def test_an_event_that_the_run_which_waited_first_leaves_goes_to_the_next(tmp_path: Path) -> None:
    observed = Observed()

    async def run() -> int:
        async with (
            open_app(tmp_path, clock=ManualClock(), poll_seconds=1e6) as slow,
            open_app(tmp_path, clock=ManualClock(), faults=observed, poll_seconds=0.001) as app,
        ):
            await slow.start(waits, run_id="first")
            await settle(slow)
            second = await app.start(waits, run_id="second")
            await settle(app)
            await app.cancel("first")
            await app.send_event("go", 7)
            seen = observed.journal.asked["deliverable"]
            while observed.journal.asked["deliverable"] < seen + 2:  # noqa: ASYNC110  # Nothing tells of a look.
                await asyncio.sleep(0.001)
            await slow.cancel("first")
            return int(await second.result())

    assert 7 == in_loop(run())
    assert {"cancelled": 1, "completed": 1} == statuses(tmp_path)


def test_an_event_that_could_not_be_looked_for_is_looked_for_again(tmp_path: Path) -> None:
    observed = Observed()

    async def run() -> int:
        async with open_app(tmp_path, clock=ManualClock(), faults=observed, poll_seconds=0.001) as app:
            handle = await app.start(waits, run_id="r")
            await settle(app)
            observed.journal.failing.add("messages")
            await app.send_event("go", 7)
            seen = observed.journal.asked["deliverable"]
            while observed.journal.asked["deliverable"] < seen + 2:  # noqa: ASYNC110  # Nothing tells of a look.
                await asyncio.sleep(0.001)
            observed.journal.failing.clear()
            return int(await handle.result())

    assert 7 == in_loop(run())


def test_who_waits_for_a_run_in_no_memory_hears_of_its_end_where_another_process_took_it(tmp_path: Path) -> None:
    faults = Faults().stall_after(type="EventWaitStarted")

    async def run() -> tuple[int, int]:
        clock = ManualClock()
        async with (
            open_app(
                tmp_path, clock=clock, faults=faults, max_resident=0, lease_seconds=0.3, poll_seconds=1e6
            ) as stopped,
            open_app(tmp_path, clock=clock) as other,
        ):
            waiting = asyncio.create_task(stopped.start(waits, run_id="r").result())
            await faults.stalled
            scheduler = await stopped.scheduler()
            while scheduler.drive_of("r") is not None:  # noqa: ASYNC110  # Nothing tells when it leaves memory.
                await asyncio.sleep(0.001)
            clock.jump_to(clock.now() + MINUTE)
            await other.send_event("go", 7, run_id="r")
            result = int(await other.resume("r").result())
            faults.go_on()
            return result, int(await waiting)

    assert (7, 7) == in_loop(run())


@satay.workflow(name="takeovers.long_turn")
async def long_turn() -> None:
    for _ in range(40 * CALLBACKS_PER_SLICE):
        await asyncio.sleep(0)
    await satay.sleep(60)


@pytest.mark.parametrize("max_resident", [0, 10])
def test_a_message_that_comes_before_a_body_has_caught_up_is_delivered(max_resident: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path, clock=ManualClock(), max_resident=max_resident, poll_seconds=1e6) as app:
            for attempt in range(2):
                handle = app.start(long_turn, run_id=f"r{attempt}")
                await handle
                if attempt:
                    await settle(app)
                await handle.cancel()
                with pytest.raises(WorkflowCancelledError):
                    await handle.result()

    in_loop(run())

    assert {"cancelled": 2} == statuses(tmp_path)
