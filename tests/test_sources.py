"""Which sources stay in memory."""

from typing import cast

from satay.archive import Archive
from satay.journal import GENESIS
from satay.model import Entry, EntryType
from satay.sources import MAX_REMEMBERED_ENTRIES, Sources
from tests.driving import in_loop


class Shelf:
    """Journals by run id, and how often each was read."""

    def __init__(self, **lengths: int) -> None:
        self.lengths = lengths
        self.reads: list[str] = []

    async def entries(self, run_id: str) -> list[Entry]:
        self.reads.append(run_id)
        length = self.lengths[run_id]
        last = EntryType.WORKFLOW_SUSPENDED if run_id.startswith("open") else EntryType.WORKFLOW_COMPLETED
        types = [EntryType.WORKFLOW_CREATED, *[EntryType.WORKFLOW_RESUMED] * (length - 2), last]
        return [Entry(seq, type, 0, "{}", GENESIS) for seq, type in enumerate(types, 1)]


def reads_of(shelf: Shelf, *run_ids: str) -> list[str]:
    async def read() -> None:
        sources = Sources(cast(Archive, shelf))
        for run_id in run_ids:
            await sources.read(run_id)

    in_loop(read())
    return shelf.reads


def test_a_source_that_has_ended_is_read_once() -> None:
    assert ["a"] == reads_of(Shelf(a=3), "a", "a")


def test_a_source_that_goes_on_is_read_each_time() -> None:
    assert ["open", "open"] == reads_of(Shelf(open=3), "open", "open")


def test_the_source_that_was_read_longest_ago_makes_room() -> None:
    half = MAX_REMEMBERED_ENTRIES // 2
    reads = reads_of(Shelf(a=half, b=half, c=half), "a", "b", "a", "c", "a", "b")

    assert ["a", "b", "c", "b"] == reads


def test_a_source_that_is_too_long_drives_nothing_out() -> None:
    reads = reads_of(Shelf(a=3, long=MAX_REMEMBERED_ENTRIES + 1), "a", "long", "a", "long")

    assert ["a", "long", "long"] == reads
