"""One run that fans out: its calls are scheduled by one commit, and their outcomes share commits."""

import satay
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import REFERENCE, Figure, at_least
from tests.benchmarks.reference import INSERTS, open_reference
from tests.benchmarks.rounds import against, interleaved
from tests.benchmarks.workloads import fan_out, rate_of

CALLS = 1_000


async def measure(bench: Bench) -> list[Figure]:
    """Against L and the peer."""
    calls = bench.scale.of(CALLS)
    rate = rate_of(fan_out, calls)
    async with (
        open_reference(bench.directory, bench.scale.of(INSERTS)) as reference,
        satay.run_app(data_dir=bench.journal),
    ):
        samples = await interleaved(
            bench.scale.rounds,
            {
                "rate": rate,
                "against reference": against(reference.rate, rate),
                **bench.against_peer(rate, "parallel", calls),
            },
        )
    work = f"{calls:,} parallel tasks (asyncio.gather), one run"
    return [
        Figure(work, "calls/s", samples["rate"]),
        Figure(work, REFERENCE, samples["against reference"], at_least(4)),
        *bench.peer_figures(work, samples),
    ]
