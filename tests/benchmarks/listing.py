"""The command line on a large file: how long `satay runs` takes, from the start of its process to its end."""

import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from satay.clock import SystemClock
from satay.journal import GENESIS, NewRun
from satay.model import Entry, EntryType
from satay.stores.locations import DATABASE_FILE
from satay.stores.sqlite import open_sqlite
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.rounds import interleaved

ROOT = Path(__file__).parents[2]

RUNS = 100_000
RUNS_AT_ONCE = 1_000


async def measure(bench: Bench) -> list[Figure]:
    """A file that holds so many runs, listed and filtered by a process of its own."""
    runs = bench.scale.of(RUNS)
    await _fill(bench.journal, runs)

    async def list_seconds() -> float:
        return await _seconds("runs", "--data-dir", str(bench.journal))

    async def filter_seconds() -> float:
        return await _seconds("runs", "--workflow", "story-7", "--json", "--data-dir", str(bench.journal))

    samples = await interleaved(bench.scale.rounds, {"list": list_seconds, "filter": filter_seconds})
    return [
        Figure(f"satay runs on a file with {runs:,} runs", "s", samples["list"], at_most(0.6)),
        Figure("the same, of one workflow", "s", samples["filter"], at_most(0.6)),
    ]


async def _fill(place: Path, runs: int) -> None:
    now = SystemClock().now()
    first = Entry(1, EntryType.WORKFLOW_CREATED, now, '{"input":null}', GENESIS)
    journal = await open_sqlite(place / DATABASE_FILE, synchronous="NORMAL")
    try:
        for start in range(0, runs, RUNS_AT_ONCE):
            numbers = range(start, min(start + RUNS_AT_ONCE, runs))
            new = [NewRun(f"run-{number:06}", f"story-{number % 20}", now, "nobody", "v1") for number in numbers]
            await asyncio.gather(*(journal.create(run, [first]) for run in new))
    finally:
        await journal.close()


async def _seconds(*arguments: str) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "satay", *arguments, stdout=PIPE, stderr=DEVNULL, cwd=ROOT
    )
    output, _ = await process.communicate()
    took = time.perf_counter() - began
    assert process.returncode == 0
    assert output
    return took
