"""Judging runs: two long ones that share nothing are compared, and a longer one is verified."""

import time
from collections.abc import Awaitable, Callable

import satay
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_least, at_most
from tests.benchmarks.rounds import Measure, interleaved
from tests.benchmarks.workloads import count_purely

CALLS = 10_000
TIMES_LONGER = 10


async def measure(bench: Bench) -> list[Figure]:
    """From `compare` to the comparison, the same to its text, and from `verify` to the verdict."""
    calls = bench.scale.of(CALLS)
    async with satay.run_app(data_dir=bench.journal):
        for run_id, size in (("one", calls), ("other", calls), ("long", calls * TIMES_LONGER)):
            await satay.start(count_purely, size, run_id=run_id).result()
        verification = await satay.verify("long")
        assert verification.is_intact

        async def report() -> str:
            return str(await satay.compare("one", "other"))

        measures = {
            "compare": _seconds(lambda: satay.compare("one", "other")),
            "report": _seconds(report),
            "verify": _seconds(lambda: satay.verify("long")),
        }
        samples = await interleaved(bench.scale.rounds, measures)
    rates = [verification.entries / seconds for seconds in samples["verify"]]
    return [
        Figure(f"compare two {calls:,}-call runs", "s", samples["compare"], at_most(0.5)),
        Figure("the same, with the report", "s", samples["report"]),
        Figure(f"verify a {calls * TIMES_LONGER:,}-call run", "entries/s", rates, at_least(100_000)),
    ]


def _seconds(work: Callable[[], Awaitable[object]]) -> Measure:
    async def measure() -> float:
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began

    return measure
