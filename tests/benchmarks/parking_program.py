"""Parks runs on a far timer in a process of its own, and says what they cost; then wakes all of them at once.

`python -m tests.benchmarks.parking_program <directory> <runs> <max_resident> <idle seconds>` prints one JSON object.
"""

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import satay
from satay import App, RunStatus
from satay.clock import MICROSECONDS, Alarm, SystemClock

FAR_SECONDS = 30 * 86_400.0
BATCH = 250
"""So many runs are started at a time, so that starting them takes little memory besides."""

PAGE = 1_000
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 120
STATEMENT = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Costs:
    """Memory for each run, the share of one CPU while nothing is due, and how many runs were woken a second."""

    run_bytes: float
    idle_cpu: float
    wakes_a_second: float


class SkippableClock:
    """The system's clock, which can be set forward: then what has become due rings at once."""

    def __init__(self) -> None:
        self.system = SystemClock()
        self.skipped = 0
        self.alarms: set[SkippableAlarm] = set()

    def now(self) -> int:
        return self.system.now() + self.skipped

    def call_at(self, due: int, callback: Callable[[], None]) -> Alarm:
        return SkippableAlarm(self, due, callback)

    def skip(self, seconds: float) -> None:
        self.skipped += round(seconds * MICROSECONDS)
        for alarm in list(self.alarms):
            alarm.cancel()
            alarm.set()


class SkippableAlarm:
    """An alarm of the system's clock that is set again when its clock is set forward."""

    def __init__(self, clock: SkippableClock, due: int, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._callback = callback
        self.set()

    def set(self) -> None:
        self._clock.alarms.add(self)
        self._alarm = self._clock.system.call_at(self._due - self._clock.skipped, self._ring)

    def cancel(self) -> None:
        self._clock.alarms.discard(self)
        self._alarm.cancel()

    def _ring(self) -> None:
        self._clock.alarms.discard(self)
        self._callback()


@satay.workflow(name="benchmarks.nap")
async def nap(seconds: float) -> float:
    await satay.sleep(seconds)
    return seconds


async def park_and_wake(directory: Path, runs: int, max_resident: int, idle_seconds: float) -> Costs:
    """Park so many runs twice; rest; wake all of them. Memory is measured the second time, when all caches are full."""
    clock = SkippableClock()
    async with satay.run_app(data_dir=directory, clock=clock, max_resident=max_resident) as app:
        await _park(app, runs)
        before = memory_bytes()
        await _park(app, runs)
        run_bytes = (memory_bytes() - before) / runs
        idle_cpu = await _cpu_of_resting(idle_seconds)
        began = time.perf_counter()
        clock.skip(FAR_SECONDS)
        await _until_none_lives(app)
        wakes_a_second = 2 * runs / (time.perf_counter() - began)
        await _until(app, RunStatus.COMPLETED, 2 * runs)
        return Costs(run_bytes, idle_cpu, wakes_a_second)


async def _park(app: App, runs: int) -> None:
    parked = await _count(app, RunStatus.WAITING)
    for begun in range(0, runs, BATCH):
        handles = [app.start(nap, FAR_SECONDS) for _ in range(min(BATCH, runs - begun))]
        for handle in handles:
            await handle
    await _until(app, RunStatus.WAITING, parked + runs)


async def _cpu_of_resting(seconds: float) -> float:
    began, spent = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - spent) / (time.perf_counter() - began)


async def _until(app: App, status: RunStatus, number: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await _count(app, status) < number:  # noqa: ASYNC110  # the journal is asked, and rings no bell
            await asyncio.sleep(LOOK_SECONDS)


async def _until_none_lives(app: App) -> None:
    """Return when every run has ended. To count them on the way would take as long as to wake them."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        for status in (RunStatus.WAITING, RunStatus.RUNNING):
            while await app.runs(status=status, limit=1):  # noqa: ASYNC110  # the journal is asked, and rings no bell
                await asyncio.sleep(LOOK_SECONDS)


async def _count(app: App, status: RunStatus) -> int:
    count, before = 0, None
    while True:
        page = await app.runs(status=status, limit=PAGE, before=before)
        count += len(page)
        if len(page) < PAGE:
            return count
        before = page[-1].run_id


def memory_bytes() -> int:
    """The memory of this process as the system sees it; where it does not say what is used now, the most that was."""
    gc.collect()
    if STATEMENT.exists():
        return int(STATEMENT.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    directory, runs, max_resident, idle_seconds = sys.argv[1:]
    costs = asyncio.run(park_and_wake(Path(directory), int(runs), int(max_resident), float(idle_seconds)))
    print(json.dumps(asdict(costs)))


if __name__ == "__main__":
    main()
