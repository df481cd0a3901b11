"""Disk: what one sequential call adds to the journal's file."""

from pathlib import Path

import satay
from satay.stores.locations import DATABASE_FILE
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.workloads import count, seconds_of

CALLS = 10_000


async def measure(bench: Bench) -> list[Figure]:
    """The growth of a closed journal by one run, with its digests, for each call."""
    calls = bench.scale.of(CALLS)
    samples = []
    for number in range(bench.scale.rounds):
        directory = bench.directory / str(number)
        before = await _size_bytes_after(directory, 1)
        samples.append((await _size_bytes_after(directory, calls) - before) / calls)
    return [Figure("disk for one sequential call of tally(number), digests included", "bytes", samples, at_most(250))]


async def _size_bytes_after(directory: Path, calls: int) -> int:
    async with satay.run_app(data_dir=directory):
        await seconds_of(count, calls)
    return (directory / DATABASE_FILE).stat().st_size
