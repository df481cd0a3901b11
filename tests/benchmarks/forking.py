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


async def measure(bench: Bench) -> list[Figure]:
    """From `fork` to the fork's result, and of that, the store's copying; ten times the calls; and a plan of it."""
    calls = bench.scale.of(CALLS)
    longer = calls * TIMES_LONGER
    watches: list[StopwatchJournal] = []

    def watched(journal: Journal) -> Journal:
        watches.append(StopwatchJournal(journal))
        return cast(Journal, watches[-1])  # It answers everything else by delegation.

    async with App(Settings(data_dir=bench.journal), SchedulerSettings(), SystemClock(), Chance(), watched):
        for size in (calls, longer):
            await satay.start(count_purely, size, run_id=f"source-{size}").result()

        async def seeding_seconds() -> float:
            return watches[0].seeding_seconds

        fork = _fork_seconds(calls)
        # The second measure reads what the first one has left on the stopwatch.
        measures = {
            "fork": fork,
            "seeding": seeding_seconds,
            "plan": _plan_seconds(calls),
            "longer": against(fork, _fork_seconds(longer)),
        }
        samples = await interleaved(bench.scale.rounds, measures)
    longer_calls = [ratio / TIMES_LONGER for ratio in samples["longer"]]
    unit = f"time of a call in {calls:,}"
    return [
        Figure(f"fork a {calls:,}-call run before its last call, to the end", "s", samples["fork"], at_most(0.4)),
        Figure("of which seeding", "ms", [seconds * 1e3 for seconds in samples["seeding"]], at_most(50)),
        Figure(f"plan that fork of a {calls:,}-call run", "s", samples["plan"], at_most(0.3)),
        Figure(f"fork a {longer:,}-call run", unit, longer_calls, at_most(NOISE)),
    ]


def _fork_seconds(calls: int) -> Measure:
    async def measure() -> float:
        began = time.perf_counter()
        fork = await satay.fork(f"source-{calls}", before_task=tally_purely.name, before_ordinal=calls - 1)
        result = await fork.result()
        took = time.perf_counter() - began
        assert result == calls
        return took

    return measure


def _plan_seconds(calls: int) -> Measure:
    async def measure() -> float:
        began = time.perf_counter()
        plan = await satay.plan_fork(f"source-{calls}", before_task=tally_purely.name, before_ordinal=calls - 1)
        took = time.perf_counter() - began
        assert len(plan.inherited) == calls - 1
        return took

    return measure
