"""Whole runs, read from the journal."""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from satay.archive import MAX_GAP, Archive, Ending
from satay.errors import JournalCorruptError, RunNotFoundError, UnsupportedEntryError
from satay.journal import BLOB_THRESHOLD_BYTES, GENESIS, MAX_PAGE, Append, Journal, NewRun
from satay.model import Entry, EntryType, RunRecord, RunStatus, continued_run_id
from satay.recorder import Recorder
from satay.stores.sqlite import open_sqlite
from satay.testing import ManualClock
from tests.driving import in_loop

FIRST = Entry(1, EntryType.WORKFLOW_CREATED, 0, '{"input":{}}', GENESIS)
LARGE = f'"{"x" * BLOB_THRESHOLD_BYTES}"'


def with_journal(place: Path, test: Callable[[Journal], Awaitable[None]]) -> None:
    async def run() -> None:
        journal = await open_sqlite(place / "journal.db", synchronous="NORMAL")
        try:
            await test(journal)
        finally:
            await journal.close()

    in_loop(run())


async def ended(
    journal: Journal, type: str, status: RunStatus, facts: str = "", text: str | None = None, **changes: object
) -> Append:
    """A run `r` that ended so. `changes` are made to the append that ends it."""
    lease = await journal.create(NewRun("r", "story", 0, "o", "v"), [FIRST])
    recorder = Recorder(lease, ManualClock(), FIRST)
    recorder.record(type, facts, text)
    append = recorder.turn(status, None)
    for name, value in changes.items():
        setattr(append, name, value)
    await journal.append(append)
    return append


def test_a_run_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        with pytest.raises(RunNotFoundError, match="there is no run 'nobody'") as caught:
            await Archive(journal).record("nobody")

        assert "nobody" == caught.value.run_id

    with_journal(tmp_path, test)


@pytest.mark.parametrize(
    ("type", "text", "status"),
    [
        (EntryType.WORKFLOW_COMPLETED, "[1]", RunStatus.COMPLETED),
        (EntryType.WORKFLOW_COMPLETED, "null", RunStatus.COMPLETED),
        (EntryType.WORKFLOW_FAILED, '{"type":"E"}', RunStatus.FAILED),
        (EntryType.WORKFLOW_CANCELLED, None, RunStatus.CANCELLED),
    ],
)
def test_how_a_run_ended_is_read_from_its_last_entry(
    type: str, text: str | None, status: RunStatus, tmp_path: Path
) -> None:
    async def test(journal: Journal) -> None:
        await ended(journal, type, status, text=text)

        assert Ending(status, text, None) == await Archive(journal).ending("r")
        assert status == (await Archive(journal).record("r")).status

    with_journal(tmp_path, test)


def test_the_run_that_goes_on_in_place_of_another_is_told(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        successor = NewRun("r~2", "story", 0, "o", "v"), [FIRST]
        facts = '"continued_as":"r~2"'
        await ended(journal, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, facts, successor=successor)

        assert Ending(RunStatus.COMPLETED, None, "r~2") == await Archive(journal).ending("r")

    with_journal(tmp_path, test)


class Chain:
    """A journal of runs each of which went on as the next one, but for the last. It counts what it is asked."""

    def __init__(self, run_id: str, length: int, last: RunStatus) -> None:
        self._rows: dict[str, RunRecord] = {}
        for number in range(1, length + 1):
            status = last if number == length else RunStatus.COMPLETED
            self._rows[run_id] = RunRecord(
                number, run_id, "s", status, 0, 0, None, None, 1, None, None, None, None, "v"
            )
            run_id = continued_run_id(run_id)
        self.last_id = list(self._rows)[-1]
        self.reads = 0

    async def record(self, run_id: str) -> RunRecord | None:
        self.reads += 1
        return self._rows.get(run_id)

    async def last(self, run_id: str) -> Entry:
        self.reads += 1
        text = ',"result":null' if run_id == self.last_id else f'"continued_as":"{continued_run_id(run_id)}"'
        return Entry(2, EntryType.WORKFLOW_COMPLETED, 0, f"{{{text.lstrip(',')}}}", GENESIS)


@pytest.mark.parametrize("last", [RunStatus.WAITING, RunStatus.COMPLETED, RunStatus.CANCELLED])
@pytest.mark.parametrize("run_id", ["r", "r~7", "r" * 197])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 1000])
def test_the_run_that_goes_on_after_any_number_of_others_is_found_in_few_reads(
    length: int, run_id: str, last: RunStatus
) -> None:
    async def run() -> tuple[RunRecord, int]:
        chain = Chain(run_id, length, last)
        latest = await Archive(cast(Journal, chain)).latest(run_id)
        assert chain.last_id == latest.run_id
        return latest, chain.reads

    latest, reads = in_loop(run())

    assert last == latest.status
    assert reads <= 30


def test_a_large_result_is_read_from_its_blob(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        await ended(journal, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, text=LARGE)

        assert Ending(RunStatus.COMPLETED, LARGE, None) == await Archive(journal).ending("r")

    with_journal(tmp_path, test)


def test_a_large_value_that_is_lost_is_an_error_that_names_the_entry_and_the_run(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        await ended(journal, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, text=LARGE, blobs=())

        with pytest.raises(JournalCorruptError, match=r"entry 2 \(WorkflowCompleted\) of run 'r' cannot be read"):
            await Archive(journal).ending("r")

    with_journal(tmp_path, test)


def test_a_run_that_goes_on_has_no_ending(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        await journal.create(NewRun("r", "story", 0, "o", "v"), [FIRST])

        with pytest.raises(JournalCorruptError, match="run 'r' is said to have ended"):
            await Archive(journal).ending("r")
        with pytest.raises(JournalCorruptError, match="run 'nobody' is said to have ended"):
            await Archive(journal).ending("nobody")

    with_journal(tmp_path, test)


def test_texts_are_found_by_their_digests(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        append = await ended(journal, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, text=LARGE)
        digests = {blob.sha256 for blob in append.blobs}

        assert dict.fromkeys(digests, LARGE) == await Archive(journal).values("r", append.entries, digests)
        assert {} == await Archive(journal).values("r", append.entries, ())

    with_journal(tmp_path, test)


class Shelf:
    """A journal of one long run, for what is read page by page."""

    def __init__(self, length: int) -> None:
        self.run = [Entry(seq, EntryType.TIMER_FIRED, 0, "{}", GENESIS) for seq in range(1, length + 1)]
        self.pages = 0

    async def read(
        self, run_id: str, *, after: int, limit: int, without: Collection[str], without_values: Collection[str]
    ) -> list[Entry]:
        self.pages += 1
        return self.run[after : after + limit]


@pytest.mark.parametrize(("length", "pages"), [(0, 1), (1, 1), (MAX_PAGE - 1, 1), (MAX_PAGE, 2), (MAX_PAGE + 1, 2)])
def test_a_run_longer_than_a_page_is_read_whole(length: int, pages: int) -> None:
    shelf = Shelf(length)
    archive = Archive(cast(Journal, shelf))  # It is asked for entries only.

    assert shelf.run == in_loop(archive.entries("r"))
    assert pages == shelf.pages


def test_texts_of_entries_are_read_however_far_they_are_apart(tmp_path: Path) -> None:
    seqs = [2, 3, 3 + MAX_GAP, 4 + 3 * MAX_GAP, MAX_GAP * 7]

    async def test(journal: Journal) -> None:
        lease = await journal.create(NewRun("r", "story", 0, "o", "v"), [FIRST])
        recorder = Recorder(lease, ManualClock(), FIRST)
        for seq in range(2, MAX_GAP * 8):
            recorder.record(EntryType.STEP_RECORDED, f'"step":{seq}', LARGE if seq == 3 else str(seq))
        await journal.append(recorder.turn(None, None))

        assert ["2", LARGE, *map(str, seqs[2:])] == await Archive(journal).texts("r", seqs)
        assert [] == await Archive(journal).texts("r", [])
        with pytest.raises(JournalCorruptError, match="lacks entries among 2 to 99999"):
            await Archive(journal).texts("r", [2, 99_999])

    with_journal(tmp_path, test)


STEP_SEQS = [3, 4, 6, 40, 41, 300, 302, 304]
"""Where the steps of the session are that is searched. The entries between them are of other types."""


class CountingJournal:
    """Counts how many entries are read from a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.last = journal.last
        self.entries = 0

    async def read(self, run_id: str, **options: Any) -> list[Entry]:
        page = await self._journal.read(run_id, **options)
        self.entries += len(page)
        return page


def test_a_step_is_found_wherever_it_is_and_few_others_are_read(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        lease = await journal.create(NewRun("s", "satay.session", 0, "o", "v"), [FIRST])
        recorder = Recorder(lease, ManualClock(), FIRST)
        for seq in range(2, 400):
            if seq in STEP_SEQS:
                recorder.record(EntryType.STEP_RECORDED, f'"step":{STEP_SEQS.index(seq) + 1},"name":"work"', LARGE)
            else:
                recorder.record("NotedOfLate" if seq % 50 == 0 else EntryType.CALL_RENEWED, f'"call":{seq}')
        await journal.append(recorder.turn(None, None))
        counting = CountingJournal(journal)
        archive = Archive(cast(Journal, counting))  # It is asked for entries only.
        found = [await archive.step_entry("s", number) for number in (*range(1, 9), None)]

        assert [*STEP_SEQS, STEP_SEQS[-1]] == [None if entry is None else entry.seq for entry in found]
        assert counting.entries < len(found) * 12
        assert [None] * 4 == [
            await archive.step_entry(*asked) for asked in (("s", 0), ("s", 9), ("s", 2**53), ("t", 1))
        ]

    with_journal(tmp_path, test)


def test_a_session_without_a_step_has_none_to_be_found(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        await journal.create(NewRun("s", "satay.session", 0, "o", "v"), [FIRST])

        assert [None, None] == [await Archive(journal).step_entry("s", number) for number in (1, None)]

    with_journal(tmp_path, test)


def test_an_entry_that_is_not_understood_is_not_passed_over_in_a_search(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        unknown = Entry(2, "StepUndone", 0, '{"needs":"9"}', GENESIS)
        await journal.create(NewRun("s", "satay.session", 0, "o", "v"), [FIRST, unknown])

        with pytest.raises(UnsupportedEntryError, match="satay 9"):
            await Archive(journal).step_entry("s", None)

    with_journal(tmp_path, test)
