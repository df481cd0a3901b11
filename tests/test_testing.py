"""What satay offers to tests: a clock that moves by hand, an app on it, and faults at a chosen entry."""

import asyncio
import gc
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import satay
from satay.errors import AppClosedError, InvalidValueError, TaskTimeoutError, UsageError
from satay.model import EntryType
from satay.testing import AppUnderTest, Chance, Faults, ManualClock, abandon, open_app, pause, settle
from tests.driving import HANG_SECONDS
from tests.patience import patience

T = TypeVar("T")

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3_600.0

ran: list[str] = []
cleaned_up: list[str] = []


@pytest.fixture(autouse=True)
def _forget_what_ran() -> None:
    ran.clear()
    cleaned_up.clear()


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, with a bound on a hang."""

    async def bounded() -> T:
        async with asyncio.timeout(HANG_SECONDS):
            return await work

    return asyncio.run(bounded())


async def wait_for_crash(faults: Faults) -> None:
    await faults.crashed


@satay.task(name="testing.step")
async def step(name: str) -> str:
    ran.append(name)
    return name.upper()


@satay.task(name="testing.flaky", retries=4, backoff=60.0)
async def flaky() -> int:
    ran.append("flaky")
    if ran.count("flaky") < 4:
        raise ValueError("not yet")
    return ran.count("flaky")


@satay.task(name="testing.slow", timeout=30.0)
async def slow(seconds: float) -> str:
    await pause(seconds)
    return "done"


@satay.task(name="testing.hanging", timeout=30.0)
async def hanging() -> str:
    await asyncio.get_running_loop().create_future()
    return "never"


@satay.task(name="testing.threaded")
def threaded() -> str:
    return threading.current_thread().name


@satay.workflow(name="testing.remind")
async def remind(name: str) -> str:
    first = await step(name)
    await satay.sleep(14 * DAY_SECONDS)
    return first + await step("later")


@satay.workflow(name="testing.retry")
async def retry() -> int:
    return await flaky()


@satay.workflow(name="testing.wait_slow")
async def wait_slow(seconds: float) -> str:
    return await slow(seconds)


@satay.workflow(name="testing.wait_hanging")
async def wait_hanging() -> str:
    return await hanging()


@satay.workflow(name="testing.wait_thread")
async def wait_thread() -> str:
    return await threaded()


@satay.workflow(name="testing.two_timers")
async def two_timers() -> list[float]:
    begin = satay.now()
    elapsed: list[float] = []
    for seconds in (10.0, 5.0):
        await satay.sleep(seconds)
        elapsed.append((satay.now() - begin).total_seconds())
    return elapsed


@satay.workflow(name="testing.approve")
async def approve() -> str:
    try:
        return str(await satay.wait_for_event("approval", timeout=HOUR_SECONDS))
    except satay.errors.EventTimeoutError:
        return "nobody came"


@satay.workflow(name="testing.tidy")
async def tidy() -> str:
    try:
        await step("one")
        await satay.sleep(HOUR_SECONDS)
        return await step("two")
    finally:
        cleaned_up.append("body")


async def entry_types(app: AppUnderTest, run_id: str) -> list[str]:
    return [event.type async for event in app.events(run_id)]


# --- the clock --------------------------------------------------------------------------------------------------------


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))

    async def advance() -> tuple[int, int]:
        before = clock.now()
        await clock.advance(timedelta(minutes=1))
        return before, clock.now()

    before, after = in_loop(advance())

    assert 1_893_456_000_000_000 == before
    assert 60_000_000 == after - before


def test_alarms_ring_at_their_own_moments_and_in_order() -> None:
    clock = ManualClock()
    rang: list[tuple[str, int]] = []
    start = clock.now()

    def ring(name: str) -> None:
        rang.append((name, clock.now() - start))

    async def advance() -> None:
        for name, seconds in (("late", 5), ("early", 1), ("early too", 1), ("never", 11)):
            clock.call_at(start + seconds * 1_000_000, partial(ring, name))
        clock.call_at(start + 2_000_000, partial(ring, "called off")).cancel()
        await clock.advance(10)

    in_loop(advance())

    assert [("early", 1_000_000), ("early too", 1_000_000), ("late", 5_000_000)] == rang
    assert clock.next_due is not None


def test_an_alarm_that_is_due_already_rings_without_time_passing() -> None:
    clock = ManualClock()
    rang: list[int] = []

    async def ring() -> None:
        clock.call_at(clock.now() - 1, lambda: rang.append(clock.now()))
        assert not rang
        await asyncio.sleep(0)

    in_loop(ring())

    assert [clock.now()] == rang


@pytest.mark.parametrize("duration", [-1.0, math.nan, math.inf])
def test_time_does_not_run_backwards_or_for_ever(duration: float) -> None:
    with pytest.raises(InvalidValueError, match="cannot advance"):
        in_loop(ManualClock().advance(duration))


def test_a_clock_starts_at_an_aware_moment_only() -> None:
    with pytest.raises(InvalidValueError, match="no time zone"):
        ManualClock(datetime(2030, 1, 1))  # noqa: DTZ001


def test_a_sleep_of_two_weeks_takes_no_time_when_the_clock_jumps() -> None:
    async def run() -> tuple[str, int]:
        async with open_app() as app:
            begin = app.clock.now()
            return await app.start(remind, "ada").result(), app.clock.now() - begin

    assert ("ADALATER", 14 * 86_400_000_000) == in_loop(run())


def test_a_whole_schedule_of_retries_takes_no_time_when_the_clock_jumps() -> None:
    async def run() -> int:
        async with open_app() as app:
            return await app.start(retry).result()

    assert 4 == in_loop(run())


def test_advancing_lets_the_app_do_what_each_timer_sets_off() -> None:
    async def run() -> tuple[list[str], list[float]]:
        async with open_app(clock=ManualClock()) as app:
            handle = await app.start(two_timers)
            statuses = []
            for seconds in (14.0, 1.0):
                await app.clock.advance(seconds)
                statuses.append(str(await handle.status()))
            return statuses, await handle.result()

    assert (["waiting", "completed"], [10.0, 15.0]) == in_loop(run())


def test_a_task_can_take_its_time_on_the_clock_of_the_app() -> None:
    async def run(seconds: float) -> tuple[str, int]:
        async with open_app() as app:
            begin = app.clock.now()
            return await app.start(wait_slow, seconds).result(), app.clock.now() - begin

    assert ("done", 20_000_000) == in_loop(run(20.0))
    with pytest.raises(TaskTimeoutError):
        in_loop(run(math.inf))


def test_a_task_that_hangs_runs_into_its_timeout() -> None:
    async def run() -> None:
        async with open_app(clock=ManualClock(autojump=True, patience_seconds=0.005)) as app:
            with pytest.raises(TaskTimeoutError):
                await app.start(wait_hanging).result()

    in_loop(run())


def test_a_task_in_a_thread_holds_time_up() -> None:
    async def run() -> str:
        async with open_app() as app:
            return await app.start(wait_thread).result()

    assert in_loop(run()).startswith("satay-task")


def test_pausing_is_for_tasks_of_an_app_under_test() -> None:
    with pytest.raises(UsageError, match="open_app"):
        in_loop(pause(1))


# --- the app ----------------------------------------------------------------------------------------------------------


def test_the_functions_of_satay_use_the_app_in_its_block() -> None:
    async def run() -> str:
        async with open_app():
            return await satay.start(remind, "ada").result()

    assert "ADALATER" == in_loop(run())


def test_an_app_is_settled_when_it_waits_for_the_outside() -> None:
    async def run() -> tuple[satay.RunStatus, str]:
        async with open_app(clock=ManualClock()) as app:
            handle = app.start(approve)
            await settle(app)
            status = await handle.status()
            await app.send_event("approval", "granted", run_id=handle.run_id)
            await settle(app)
            assert await handle.status() == satay.RunStatus.COMPLETED
            return status, await handle.result()

    assert (satay.RunStatus.WAITING, "granted") == in_loop(run())


def test_settling_on_a_clock_that_jumps_leaves_nothing_that_is_due() -> None:
    async def run() -> tuple[satay.RunStatus, int | None]:
        async with open_app() as app:
            handle = app.start(approve)
            await settle(app)
            return await handle.status(), app.clock.next_due

    assert (satay.RunStatus.COMPLETED, None) == in_loop(run())


def test_the_same_seed_gives_the_same_ids_and_apps_on_one_directory_differ(tmp_path: Path) -> None:
    async def ids(place: Path) -> list[str]:
        found = []
        for _ in range(2):
            async with open_app(place, seed=7) as app:
                found.append((await app.start(remind, "ada")).run_id)
        return found

    first, second = in_loop(ids(tmp_path / "one")), in_loop(ids(tmp_path / "two"))

    assert first == second
    assert 2 == len(set(first))
    assert Chance(7).new_id() == Chance(7).new_id()


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_crash_after_an_entry_leaves_that_entry_and_nothing_more(tmp_path: Path) -> None:
    async def run() -> tuple[list[str], list[str], str]:
        faults = Faults().crash_after(type=EntryType.TASK_SCHEDULED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(remind, "ada", run_id="r")
            await faults.crashed
            seen = list(ran)
        async with open_app(tmp_path) as app:
            result = await app.resume("r").result()
            return seen, await entry_types(app, "r"), result

    seen, types, result = in_loop(run())

    assert [] == seen
    assert ["WorkflowCreated", "TaskScheduled", "WorkflowResumed", "TaskAttemptStarted"] == types[:4]
    assert "ADALATER" == result


def test_a_crash_before_an_entry_leaves_no_trace_of_it(tmp_path: Path) -> None:
    async def run() -> tuple[list[str], str]:
        faults = Faults().crash_before(type=EntryType.TASK_COMPLETED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(remind, "ada", run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            return list(ran), await app.resume("r").result()

    assert (["ada"], "ADALATER") == in_loop(run())
    assert ["ada", "ada", "later"] == ran


def test_a_crash_before_the_first_append_leaves_no_run(tmp_path: Path) -> None:
    async def run() -> list[satay.RunSummary]:
        faults = Faults().crash_before(append=1)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(remind, "ada", run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            return await app.runs()

    assert [] == in_loop(run())


def test_whoever_waits_for_a_crashed_app_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        faults = Faults().crash_after(entries=2)
        async with open_app(tmp_path, faults=faults) as app:
            with pytest.raises(AppClosedError):
                await app.start(remind, "ada").result()
            with pytest.raises(AppClosedError):
                await app.start(remind, "bob")

    in_loop(run())


def test_a_crash_runs_no_cleanup_of_the_body(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(tidy, run_id="r")
            await settle(app)
            await abandon(app)
            await abandon(app)
        gc.collect()
        return list(cleaned_up)

    assert [] == in_loop(run())
    assert ["one"] == ran


def test_a_run_of_an_abandoned_app_is_taken_over_at_once(tmp_path: Path) -> None:
    async def run() -> tuple[str, int]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(remind, "ada", run_id="r")
            await abandon(app)
        threads = sum(thread.name.startswith("satay") for thread in threading.enumerate())
        async with open_app(tmp_path) as app:
            return await app.resume("r").result(), threads

    assert ("ADALATER", 0) == in_loop(run())


def test_a_stalled_app_writes_nothing_until_it_goes_on(tmp_path: Path) -> None:
    async def run() -> tuple[int, str]:
        faults = Faults().stall_after(type=EntryType.TASK_SCHEDULED)
        async with open_app(tmp_path, faults=faults) as app:
            handle = app.start(remind, "ada", run_id="r")
            await faults.stalled
            stored = len(await (await app._ready()).journal.read("r"))
            faults.go_on()
            return stored, await handle.result()

    assert (2, "ADALATER") == in_loop(run())


def test_a_stalled_app_that_lost_its_lease_cannot_write(tmp_path: Path) -> None:
    async def run() -> tuple[str, list[str]]:
        clock = ManualClock(autojump=True)
        faults = Faults().stall_after(type=EntryType.TASK_SCHEDULED)
        async with open_app(tmp_path, faults=faults, clock=ManualClock(), lease_seconds=15.0) as stalled:
            stalled.start(remind, "ada", run_id="r")
            await faults.stalled
            clock.jump_to(clock.now() + 60_000_000)
            async with open_app(tmp_path, clock=clock) as app:
                result = await app.resume("r").result()
                faults.go_on()
                await settle(stalled)
                return result, await entry_types(app, "r")

    result, types = in_loop(run())

    assert "ADALATER" == result
    assert 1 == types.count("WorkflowCompleted")
    assert 1 == types.count("TimerFired")


@pytest.mark.parametrize("order", [{}, {"entries": 0}, {"entries": 1, "type": "TaskCompleted"}])
def test_a_fault_is_ordered_for_one_place(order: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="where to crash after"):
        Faults().crash_after(**order)


@pytest.mark.parametrize("order", [Faults.crash_after, Faults.crash_before, Faults.stall_after])
def test_a_fault_at_a_type_of_entry_that_does_not_exist_is_refused(order: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"no type of entry is called 'TaskComplete'; did you mean 'TaskCompleted'\?"):
        order(Faults(), type="TaskComplete")
    with pytest.raises(UsageError, match=r"no type of entry is called 'x'; satay\.model\.EntryType lists them"):
        order(Faults(), type="x")


def test_whoever_waits_for_a_fault_is_told_when_the_app_has_closed_without_it() -> None:
    async def run() -> None:
        faults = Faults().crash_after(type=EntryType.CHILD_WORKFLOW_SCHEDULED)
        crashed = asyncio.ensure_future(wait_for_crash(faults))
        async with open_app(faults=faults) as app:
            await app.start(remind, "ada").result()
        with pytest.raises(
            UsageError, match=r"closed and never crashed: <Faults crash after 1 ChildWorkflowScheduled>"
        ):
            await crashed
        with pytest.raises(UsageError, match="closed and never crashed"):
            await faults.crashed
        with pytest.raises(UsageError, match="closed and never stood still"):
            await faults.stalled

    in_loop(run())


def test_a_crash_is_known_after_the_app_has_closed() -> None:
    async def run() -> None:
        faults = Faults().crash_after(type=EntryType.TASK_SCHEDULED)
        async with open_app(faults=faults) as app:
            with pytest.raises(AppClosedError):
                await app.start(remind, "ada").result()
        await faults.crashed
        with pytest.raises(UsageError, match="closed and never stood still"):
            await faults.stalled

    in_loop(run())


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"clock": ManualClock}, "ManualClock"), ({"faults": 3}, "Faults"), ({"faults": Faults}, "Faults")],
)
def test_what_is_no_clock_and_no_faults_is_refused(options: dict[str, Any], wanted: str) -> None:
    async def run() -> None:
        with pytest.raises(InvalidValueError, match=rf"give it a satay\.testing\.{wanted}\(\)"):
            async with open_app(**options):
                pass

    asyncio.run(run())


# --- the fixtures -----------------------------------------------------------------------------------------------------

_USERS_TESTS = """
import asyncio
import pytest
import satay

@satay.workflow
async def two_weeks(name: str) -> str:
    await satay.sleep(14 * 86_400)
    return name

def test_plainly(satay_run):
    assert satay_run(two_weeks, "ada") == "ada"

def test_with_a_loop_of_its_own(satay_app):
    async def run():
        async with satay_app() as app:
            return await app.start(two_weeks, "bob").result()

    assert asyncio.run(run()) == "bob"

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_under_anyio(satay_app, satay_run, anyio_backend):
    async with satay_app() as app:
        assert await satay.start(two_weeks, "eve").result() == "eve"
    with pytest.raises(satay.errors.UsageError, match="async with satay_app"):
        satay_run(two_weeks, "ada")
"""


@pytest.mark.slow
def test_the_fixtures_fit_plain_tests_and_async_ones(tmp_path: Path) -> None:
    (tmp_path / "test_of_a_user.py").write_text(_USERS_TESTS, encoding="utf-8")
    # The plugin by its module, so that this holds also where satay is not installed with its entry points.
    arguments = ["-q", "-p", "no:satay", "-p", "satay.testing.plugin", "-p", "no:cacheprovider", "-W", "error"]

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "test_of_a_user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(60.0),
        check=False,
    )

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout
