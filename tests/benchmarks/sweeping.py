"""Sweeping: a long run is forked many times before its last call, which is cheap; the sweep ends when all have."""

import itertools
import time
from dataclasses import dataclass

import satay
from satay.app import App
from satay.clock import Chance, SystemClock
from satay.scheduler import SchedulerSettings
from satay.settings import Settings
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_least
from tests.benchmarks.rounds import Measure, interleaved
from tests.benchmarks.workloads import tally

CALLS = 1_000
FORKS = 100


@dataclass(frozen=True)
class Letter:
    """How many calls are made before it is signed, and with which name."""

    calls: int
    name: str


@satay.task
async def sign(number: int, name: str) -> str:
    return f"{number} {name}"


@satay.workflow(name="benchmarks.count_and_sign")
async def count_and_sign(letter: Letter) -> str:
    number = 0
    for _ in range(letter.calls):
        number = await tally(number)
    return await sign(number, letter.name)


async def measure(bench: Bench) -> list[Figure]:
    """From `sweep` to its rows."""
    calls, forks = bench.scale.of(CALLS), bench.scale.of(FORKS)
    async with App(Settings(data_dir=bench.journal), SchedulerSettings(), SystemClock(), Chance()):
        await satay.start(count_and_sign, Letter(calls, "source"), run_id="source").result()
        samples = await interleaved(bench.scale.rounds, {"sweep": _forks_per_second(calls, forks)})
    work = f"sweep of {forks:,} forks of a {calls:,}-call run that re-run one cheap call each"
    return [Figure(work, "forks/s", samples["sweep"], at_least(60))]


def _forks_per_second(calls: int, forks: int) -> Measure:
    numbers = itertools.count()

    async def measure() -> float:
        variants = {f"v{number}": Letter(calls, f"v{number}") for number in range(forks)}
        run_id = f"sweep-{next(numbers)}"
        began = time.perf_counter()
        sweep = await satay.sweep("source", before_task=sign, variants=variants, run_id=run_id)
        took = time.perf_counter() - began
        assert sum(row.completed for row in sweep.rows) == forks
        return forks / took

    return measure
