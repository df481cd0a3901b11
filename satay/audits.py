"""Reads what is needed to judge runs: a journal page by page to verify it, whole ones to compare them.

No large value is read that need not be. Where there is much to think about, others run in between.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from satay.archive import Archive
from satay.comparison import compare_all, compare_readings, wanted_values
from satay.errors import JournalCorruptError
from satay.histories import Reading, RunHistory
from satay.journal import MAX_PAGE, ReadableJournal
from satay.matrices import ComparisonMatrix
from satay.model import Entry, EntryType, RunRecord
from satay.replay import blob_reference
from satay.reports import Comparison
from satay.verification import JournalCheck, Verification, doubt_of_row, unreadable

BEFORE_ALL: Final = -(2**63)
"""Before every number that an entry can have, also one that it must not have."""


async def verify_run(archive: Archive, run_id: str) -> Verification:
    """Check a run's journal. Raises `RunNotFoundError`; a journal that is damaged is an answer.

    It holds one page of entries, or one large value, at a time, and lets others run between pages.
    """
    journal = archive.journal
    try:
        record = await archive.record(run_id)
        doubt = doubt_of_row(record)
        if doubt is not None:
            return unreadable(run_id, doubt)
        has_source = record.forked_from is not None and await journal.record(record.forked_from) is not None
        check = JournalCheck(record, has_source=has_source)
        await _read_through(journal, record, check, has_source=has_source)
        return check.finish(await archive.record(run_id))
    except JournalCorruptError as error:
        return unreadable(run_id, str(error))


async def _read_through(journal: ReadableJournal, record: RunRecord, check: JournalCheck, *, has_source: bool) -> None:
    after, seen = BEFORE_ALL, set[str]()
    while not check.is_settled:
        page, why = await _page(journal, record.run_id, after)
        inherited: Sequence[Entry] = ()
        if has_source and page and after < (record.fork_seq or 0):
            inherited, _ = await _page(journal, record.forked_from or "", after)
        for entry in check.read(page, inherited):
            await _look_up(journal, entry, check, seen)
        if why is not None:
            check.stop(why)
        if not page:
            return
        after = page[-1].seq


async def _page(journal: ReadableJournal, run_id: str, after: int) -> tuple[list[Entry], str | None]:
    """The next entries; fewer where one cannot be read. If that is the first of them, why it cannot."""
    limit = MAX_PAGE
    while True:
        try:
            return await journal.read(run_id, after=after, limit=limit), None
        except JournalCorruptError as error:
            if limit == 1:
                return [], str(error)
            limit //= 2


async def _look_up(journal: ReadableJournal, entry: Entry, check: JournalCheck, seen: set[str]) -> None:
    digest = blob_reference(entry)
    assert digest is not None
    if digest in seen and entry.type != EntryType.RUN_FORKED:
        return
    seen.add(digest)
    try:
        check.read_value(entry, (await journal.blobs({digest}))[digest])
    except JournalCorruptError as error:
        check.lose(entry, str(error))


async def compare_two(archive: Archive, one: str, other: str) -> Comparison:
    """Compare two runs. Raises `RunNotFoundError`, or `JournalCorruptError` where one cannot be read."""
    blobs: dict[str, str] = {}
    readings = [await _reading(archive, run_id, blobs) for run_id in (one, other)]
    await _read_values(archive, readings, blobs)
    return compare_readings(*readings)


async def compare_many(archive: Archive, run_ids: Sequence[str]) -> ComparisonMatrix:
    """Compare runs with the first of them. Raises as `compare_two`."""
    blobs: dict[str, str] = {}
    readings = [await _reading(archive, run_id, blobs) for run_id in run_ids]
    await _read_values(archive, readings, blobs)
    return compare_all(readings[0], readings[1:])


async def _reading(archive: Archive, run_id: str, blobs: dict[str, str]) -> Reading:
    record = await archive.run(run_id)
    entries = await archive.entries(run_id)
    await asyncio.sleep(0)
    found = Reading(RunHistory(record, entries, blobs))
    transcript = found.transcript
    if transcript is not None and transcript.snapshots.latest is not None:
        found.state_text = await archive.state_text(transcript, transcript.snapshots.latest)
    return found


async def _read_values(archive: Archive, readings: Sequence[Reading], blobs: dict[str, str]) -> None:
    """Read the large values that are compared."""
    for other in readings[1:]:
        await asyncio.sleep(0)
        wanted = wanted_values(readings[0], other)
        for reading, digests in ((readings[0], wanted.one), (other, wanted.other)):
            history = reading.history
            blobs |= await archive.values(history.record.run_id, history.entries, digests - blobs.keys())
