"""Many short runs at the same time: their turns share commits, so together they are faster than the reference."""

import asyncio
import time

import satay
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import REFERENCE, Figure, at_least
from tests.benchmarks.reference import INSERTS, open_reference
from tests.benchmarks.rounds import against, interleaved
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
        samples = await interleaved(
            bench.scale.rounds,
            {
                "rate": rate,
                "against reference": against(reference.rate, rate),
                **bench.against_peer(rate, "sequential", CALLS_PER_RUN, runs=runs),
            },
        )
    work = f"{runs:,} concurrent runs of {CALLS_PER_RUN} tasks"
    return [
        Figure(work, "calls/s", samples["rate"]),
        Figure(work, REFERENCE, samples["against reference"], at_least(4)),
        *bench.peer_figures(work, samples),
    ]
