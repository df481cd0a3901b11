"""What a run spent, with all that it set going: its tasks, its children, and the runs that went on in its place.

What a fork inherited, kept, or was answered from its source was spent there, and not again.
"""

from collections.abc import Iterator, Sequence
from math import fsum

from satay.archive import Archive
from satay.journal import MAX_PAGE, RunQuery
from satay.model import STATUS_OF_ENDING, Entry, EntryType
from satay.replay import read_head, reading


async def spent_cost(archive: Archive, run_id: str) -> float:
    """The cost that a run recorded, with that of its descendants. Raises `JournalError`, `RunNotFoundError`."""
    costs: list[float] = []
    seen: set[str] = set()
    waiting = [run_id]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        own = await archive.entries(current, after=(await archive.record(current)).fork_seq or 0)
        with reading(current):
            costs += _costs(own)
            waiting += _successors(own)
        waiting += await _children(archive, current)
    return fsum(costs)


def _costs(entries: Sequence[Entry]) -> Iterator[float]:
    for entry in entries:
        # What an entry of its own keeps is told again by the outcome that it leads to.
        if '"usage":' not in entry.payload or entry.type == EntryType.OUTCOME_KEPT:
            continue
        head = read_head(entry)
        if "kept" not in head and "reused_from" not in head:
            yield from (use["cost"] for use in head.get("usage", ()))


def _successors(entries: Sequence[Entry]) -> Iterator[str]:
    last = entries[-1] if entries else None
    if last is not None and last.type in STATUS_OF_ENDING and '"continued_as":' in last.payload:
        continued_as = read_head(last).get("continued_as")
        if continued_as is not None:
            yield continued_as


async def _children(archive: Archive, run_id: str) -> list[str]:
    children: list[str] = []
    while True:
        before = children[-1] if children else None
        page = await archive.journal.runs(RunQuery(parent_id=run_id, before=before, limit=MAX_PAGE))
        children += [child.run_id for child in page]
        if len(page) < MAX_PAGE:
            return children
