"""`python -m tests.benchmarks [--only name] [--short]`: measure, report, and fail where a limit is missed."""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    concurrent_runs,
    disk,
    forking,
    importing,
    judging,
    large_results,
    listing,
    parallel,
    parking,
    resuming,
    sequential,
    sessions,
    sweeping,
)
from tests.benchmarks.bench import FULL, SHORT, Bench, Scale
from tests.benchmarks.figures import Figure
from tests.benchmarks.machine import machine_figure, turns
from tests.benchmarks.peer import Peer, PeerError, install, open_peer
from tests.benchmarks.report import missed, report, table

RESULTS = Path(__file__).parents[2] / "BENCHMARKS.md"

BENCHMARKS: dict[str, Callable[[Bench], Coroutine[Any, Any, list[Figure]]]] = {
    "sequential": sequential.measure,
    "concurrent": concurrent_runs.measure,
    "parallel": parallel.measure,
    "resuming": resuming.measure,
    "forking": forking.measure,
    "sweeping": sweeping.measure,
    "judging": judging.measure,
    "sessions": sessions.measure,
    "importing": importing.measure,
    "listing": listing.measure,
    "parking": parking.measure,
    "large_results": large_results.measure,
    "disk": disk.measure,
}


async def measure_all(names: Sequence[str], scale: Scale, directory: Path) -> tuple[list[Figure], str]:
    """Measure, showing each table as it is there. Answers all figures, and the report on them."""
    async with contextlib.AsyncExitStack() as stack:
        peer: Peer | None = None
        missing_peer = ""
        try:
            python = await asyncio.to_thread(install)
            peer = await stack.enter_async_context(open_peer(python, directory))
        except PeerError as error:
            missing_peer = str(error)
        figures: list[Figure] = []
        speeds = [turns()]
        for name in names:
            place = directory / name
            place.mkdir()
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            news = await BENCHMARKS[name](Bench(scale, place, peer, missing_peer))
            if scale is not FULL:  # The limits are for the full sizes.
                news = [replace(figure, limit=None) for figure in news]
            print(table(news), flush=True)
            figures += news
            speeds.append(turns())
        speed = machine_figure(speeds)
        print(table([speed]), flush=True)
        figures = [speed, *figures]
        return figures, report(figures, scale, peer, missing_peer)


def main() -> int:
    """Measure what the command line asks for. A full run writes BENCHMARKS.md; only full sizes are held to limits."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="one benchmark; may be given several times")
    parser.add_argument("--short", action="store_true", help="small sizes, to see that everything works")
    arguments = parser.parse_args()
    names = arguments.only or list(BENCHMARKS)
    scale = SHORT if arguments.short else FULL
    # An installed package has its byte code beside it, so the processes that are measured may write theirs.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # In the directory at hand, because the system's temporary one may be in memory, where no disk is waited for.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=RESULTS.parent) as directory:
        figures, text = asyncio.run(measure_all(names, scale, Path(directory)))
    if not arguments.only and not arguments.short:
        RESULTS.write_text(text)
    misses = missed(figures)
    if misses:
        print("limits missed:", *misses, sep="\n  ", file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
