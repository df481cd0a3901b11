"""One run of sequential calls: every call waits for the disk, so its rate is held against the reference's."""

import satay
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import REFERENCE, Figure, at_least, at_most
from tests.benchmarks.reference import INSERTS, open_reference
from tests.benchmarks.rounds import NOISE, against, beyond, interleaved
from tests.benchmarks.workloads import count, count_purely, rate_of

CALLS = 1_000
TIMES_LONGER = 10


async def measure(bench: Bench) -> list[Figure]:
    """Against L and the peer; with a pure task; and ten times as long."""
    calls = bench.scale.of(CALLS)
    longer = calls * TIMES_LONGER
    rate, longer_rate = rate_of(count, calls), rate_of(count, longer)
    async with (
        open_reference(bench.directory, bench.scale.of(INSERTS)) as reference,
        satay.run_app(data_dir=bench.journal),
    ):
        samples = await interleaved(
            bench.scale.rounds,
            {
                "rate": rate,
                "reference": reference.rate,
                "against reference": against(reference.rate, rate),
                "beyond reference": beyond(reference.rate, rate),
                "pure against reference": against(reference.rate, rate_of(count_purely, calls)),
                "against longer": against(longer_rate, rate),
                **bench.against_peer(rate, "sequential", calls),
            },
        )
    work = f"{calls:,} sequential async tasks, one run"
    return [
        Figure("bare inserts through aiosqlite", "inserts/s = L", samples["reference"]),
        Figure(work, "calls/s", samples["rate"]),
        Figure(work, REFERENCE, samples["against reference"], at_least(0.65)),
        Figure("a call takes more than a bare insert", "µs", samples["beyond reference"]),
        *bench.peer_figures(work, samples, at_least(5)),
        Figure(f'{work}, effect="pure"', REFERENCE, samples["pure against reference"], at_least(4)),
        Figure(f"{longer:,} sequential", f"time of a call in {calls:,}", samples["against longer"], at_most(NOISE)),
    ]
