"""What a run spent, with all that it set going: its tasks, its children, and the runs that went on in its place.

What a fork inherited, kept, or was answered from its source was spent there, and not again.
"""

from collections.abc import Iterator, Sequence
from math import fsum

from satay.archive import Archive
from satay.journal import MAX_PAGE, RunQuery
from satay.model import STATUS_OF_ENDING, Entry, EntryType, RunRecord
from satay.replay import read_head, reading


async def spent_cost(archive: Archive, run: RunRecord) -> float:
    """The cost that a run recorded, with that of its descendants. Raises `JournalError`, `RunNotFoundError`."""
    costs: list[float] = []
    seen: set[str] = set()
    waiting = [run]
    while waiting:
        current = waiting.pop()
        if current.run_id in seen:
            continue
        seen.add(current.run_id)
        own = await archive.entries(current.run_id, after=current.fork_seq or 0)
        with reading(current.run_id):
            costs += _costs(own)
            successors = list(_successors(own))
        waiting += [await archive.record(successor) for successor in successors]
        waiting += await _children(archive, current.run_id)
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


async def _children(archive: Archive, run_id: str) -> list[RunRecord]:
    children: list[RunRecord] = []
    while True:
        before = children[-1].run_id if children else None
        page = await archive.journal.runs(RunQuery(parent_id=run_id, before=before, limit=MAX_PAGE))
        children += page
        if len(page) < MAX_PAGE:
            return children
