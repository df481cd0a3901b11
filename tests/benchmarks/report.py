"""The table: what was measured, on which settings, and which limits were missed."""

import os
import platform
import sqlite3
from collections.abc import Sequence

from tests.benchmarks.bench import Scale
from tests.benchmarks.figures import Figure
from tests.benchmarks.peer import Peer

INTRODUCTION = """\
# Benchmarks

Written by `make bench`. All numbers come from one run of it, in which the things that are compared took turns: each
line is the median of {rounds} rounds after one that warmed up, and what a rate is compared with is measured just before
and just after it. What the disk or the neighbours did to one side, they did to the other.

- L is the rate of bare one-row autocommit inserts through aiosqlite, into a file beside the journal and on its
  settings: WAL, synchronous=FULL. Its connection stays open, so its log is not a new file each time.
- {machine}. Times are those of this machine at that time; its speed is in the first line.
- {peer}
"""


def report(figures: Sequence[Figure], scale: Scale, peer: Peer | None, missing_peer: str) -> str:
    """The content of BENCHMARKS.md."""
    introduction = INTRODUCTION.format(rounds=scale.rounds, machine=_machine(), peer=_peer(peer, missing_peer))
    return f"{introduction}\n{table(figures)}\n"


def table(figures: Sequence[Figure]) -> str:
    """The figures in markdown."""
    lines = ["| work | median | | lowest – highest | must be | |", "| --- | ---: | --- | --- | --- | --- |"]
    return "\n".join([*lines, *map(_line, figures)])


def missed(figures: Sequence[Figure]) -> list[str]:
    """A sentence for every limit that was missed."""
    return [
        f"{figure.work}: {number(figure.median)} {figure.unit}, must be {_limit(figure)}"
        for figure in figures
        if figure.is_missed
    ]


def number(value: float) -> str:
    """A number with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _line(figure: Figure) -> str:
    if not figure.samples:
        return f"| {figure.work} | – | {figure.unit} | {figure.missing} | {_limit(figure)} | not measured |"
    spread = f"{number(min(figure.samples))} – {number(max(figure.samples))}"
    verdict = "" if figure.limit is None else "**missed**" if figure.is_missed else "met"
    return f"| {figure.work} | {number(figure.median)} | {figure.unit} | {spread} | {_limit(figure)} | {verdict} |"


def _limit(figure: Figure) -> str:
    if figure.limit is None:
        return ""
    return f"{'≥' if figure.limit.is_floor else '≤'} {number(figure.limit.bound)}"


def _machine() -> str:
    return (
        f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{platform.system()}, {os.cpu_count()} CPUs"
    )


def _peer(peer: Peer | None, missing_peer: str) -> str:
    if peer is None:
        return f"DBOS was not measured: {missing_peer}."
    alike, as_it_comes = peer.settings
    return (
        f"The peer does the same work in a process of its own, twice: {alike} (the journal's settings, given to its "
        f"connections from outside); and as it comes: {as_it_comes}."
    )
