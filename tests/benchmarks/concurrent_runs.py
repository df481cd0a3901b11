"""Many short runs at the same time: their turns share commits, so together they are faster than the reference."""

import asyncio
import time

import satay
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import REFERENCE, Figure, at_least
from tests.benchmarks.reference import INSERTS, open_reference
from tests.benchmarks.rounds import interleaved, ratios
from tests.benchmarks.workloads import count, seconds_of

RUNS = 500
CALLS_PER_RUN = 5


async def measure(bench: Bench) -> list[Figure]:
    """Against L and the peer."""
    runs = bench.scale.of(RUNS)

    async def rate() -> float:
        began = time.perf_counter()
        await asyncio.gather(*[seconds_of(count, CALLS_PER_RUN) for _ in range(runs)])
        return runs * CALLS_PER_RUN / (time.perf_counter() - began)

    async with (
        open_reference(bench.directory, bench.scale.of(INSERTS)) as reference,
        satay.run_app(data_dir=bench.journal),
    ):
        peer_rates = bench.peer_rates("sequential", CALLS_PER_RUN, runs=runs)
        samples = await interleaved(bench.scale.rounds, {"concurrent": rate, "reference": reference.rate, **peer_rates})
    work = f"{runs:,} concurrent runs of {CALLS_PER_RUN} tasks"
    rates = samples["concurrent"]
    return [
        Figure(work, "calls/s", rates),
        Figure(work, REFERENCE, ratios(rates, samples["reference"]), at_least(4)),
        *bench.peer_figures(work, rates, samples),
    ]
