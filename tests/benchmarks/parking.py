"""Parked runs: many runs wait for a far timer, in memory or evicted, in a process of their own; then all are woken."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_least, at_most
from tests.benchmarks.parking_program import Costs

RUNS = 10_000
IDLE_SECONDS = 5.0
NO_BYTES = 64
"""A run that costs less is held to cost nothing: memory is counted in pages."""

ROOT = Path(__file__).parents[2]


async def measure(bench: Bench) -> list[Figure]:
    """Memory, rest and waking, of runs that stay in memory and of runs that do not."""
    runs = bench.scale.of(RUNS)
    resident: list[Costs] = []
    evicted: list[Costs] = []
    for number in range(bench.scale.rounds):
        resident.append(await _costs(bench, f"resident-{number}", runs, 2 * runs))
        evicted.append(await _costs(bench, f"evicted-{number}", runs, 1))
    return [
        Figure(
            f"{runs:,} runs parked on a far timer, in memory",
            "KiB a run",
            [costs.run_bytes / 1024 for costs in resident],
            at_most(8),
        ),
        Figure("the same, evicted", "bytes a run", [costs.run_bytes for costs in evicted], at_most(NO_BYTES)),
        Figure("the same at rest, in memory", "% of a CPU", [costs.idle_cpu * 100 for costs in resident], at_most(0.3)),
        Figure("the same at rest, evicted", "% of a CPU", [costs.idle_cpu * 100 for costs in evicted], at_most(0.3)),
        Figure("waking all, in memory", "wakes/s", [costs.wakes_a_second for costs in resident], at_least(2_000)),
        Figure("waking all, evicted", "wakes/s", [costs.wakes_a_second for costs in evicted], at_least(2_000)),
    ]


async def _costs(bench: Bench, name: str, runs: int, max_resident: int) -> Costs:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.parking_program",
        str(bench.directory / name),
        str(runs),
        str(max_resident),
        str(IDLE_SECONDS / bench.scale.divisor),
        stdout=PIPE,
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"parking {runs} runs failed with exit status {process.returncode}; see above")
    return Costs(**json.loads(output))
