"""Forking: a long run is forked before its last call; the fork inherits all but that one, replays, and ends.

A plan of the same fork replays too, and writes nothing.
"""

import time
from typing import Any, cast

import satay
from satay.app import App
from satay.clock import Chance, SystemClock
from satay.journal import Journal, Lease, NewFork
from satay.scheduler import SchedulerSettings
from satay.settings import Settings
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.rounds import NOISE, Measure, against, interleaved
from tests.benchmarks.workloads import count_purely, tally_purely

CALLS = 10_000
TIMES_LONGER = 10


class StopwatchJournal:
    """A journal that measures how long seeding a fork takes: from the call until it is on disk."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.seeding_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def fork(self, fork: NewFork) -> Lease:
        began = time.perf_counter()
        lease = await self._journal.fork(fork)
        self.seeding_seconds = time.perf_counter() - began
        return lease


class Stopwatches:
    """Apps on one journal whose forks are timed. An app that was just opened has no source in memory."""

    def __init__(self, bench: Bench) -> None:
        self._settings = Settings(data_dir=bench.journal)
        self._latest: StopwatchJournal | None = None

    def app(self) -> App:
        return App(self._settings, SchedulerSettings(), SystemClock(), Chance(), self._watched)

    def _watched(self, journal: Journal) -> Journal:
        self._latest = StopwatchJournal(journal)
        return cast(Journal, self._latest)  # It answers everything else by delegation.

    def fork_seconds(self, calls: int) -> Measure:
        """The first fork of a source in an app, from when it is asked for until its result is there."""

        async def measure() -> float:
            async with self.app():
                return await _fork_seconds(calls)

        return measure

    async def seeding_seconds(self) -> float:
        """What copying the prefix took in the fork that was made last."""
        assert self._latest is not None, "a fork was made"
        return self._latest.seeding_seconds


async def measure(bench: Bench) -> list[Figure]:
    """From `fork` to the fork's result, and of that, the store's copying; again; ten times the calls; and a plan."""
    calls = bench.scale.of(CALLS)
    longer = calls * TIMES_LONGER
    watches = Stopwatches(bench)
    async with watches.app():
        for size in (calls, longer):
            await satay.start(count_purely, size, run_id=f"source-{size}").result()
    fork = watches.fork_seconds(calls)

    async def again_seconds() -> float:
        async with watches.app():
            await _fork_seconds(calls)
            return await _fork_seconds(calls)

    async def plan_seconds() -> float:
        async with watches.app():
            return await _plan_seconds(calls)

    # The second measure reads what the first one has left on the stopwatch.
    measures = {
        "fork": fork,
        "seeding": watches.seeding_seconds,
        "again": again_seconds,
        "plan": plan_seconds,
        "longer": against(fork, watches.fork_seconds(longer)),
    }
    samples = await interleaved(bench.scale.rounds, measures)
    longer_calls = [ratio / TIMES_LONGER for ratio in samples["longer"]]
    unit = f"time of a call in {calls:,}"
    return [
        Figure(f"fork a {calls:,}-call run before its last call, to the end", "s", samples["fork"], at_most(0.4)),
        Figure("of which seeding", "ms", [seconds * 1e3 for seconds in samples["seeding"]], at_most(50)),
        Figure("the same again, the source in memory", "s", samples["again"]),
        Figure(f"plan that fork of a {calls:,}-call run", "s", samples["plan"], at_most(0.3)),
        Figure(f"fork a {longer:,}-call run", unit, longer_calls, at_most(NOISE)),
    ]


async def _fork_seconds(calls: int) -> float:
    began = time.perf_counter()
    fork = await satay.fork(f"source-{calls}", before_task=tally_purely.name, before_ordinal=calls - 1)
    result = await fork.result()
    took = time.perf_counter() - began
    assert result == calls
    return took


async def _plan_seconds(calls: int) -> float:
    began = time.perf_counter()
    plan = await satay.plan_fork(f"source-{calls}", before_task=tally_purely.name, before_ordinal=calls - 1)
    took = time.perf_counter() - began
    assert len(plan.inherited) == calls - 1
    return took
