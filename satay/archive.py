"""Reads what a journal holds of whole runs: all entries, large values, how a run ended."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from satay.arguments import check_is_run
from satay.errors import JournalCorruptError, RunNotFoundError
from satay.journal import MAX_PAGE, ReadableJournal
from satay.model import SESSION_WORKFLOW, STATUS_OF_ENDING, Entry, EntryType, RunRecord, RunStatus, continued_run_id
from satay.replay import blob_reference, check_understood, facts, reading, value_text

if TYPE_CHECKING:
    from satay.snapshots import Snapshot
    from satay.transcripts import SessionStatus, Transcript

MAX_GAP: Final = 256
"""So many entries that are not wanted are read at most to save another question to the store."""

ENTRIES_PER_STEP: Final = 2
"""So many entries a step is taken to have where it is looked for first: its own, and that of its state."""

_OTHER_THAN_STEPS: Final = frozenset(EntryType) - {EntryType.STEP_RECORDED}


class Ending(NamedTuple):
    """How a run ended: its status, the text of its result or error, and the run that goes on in its place."""

    status: RunStatus
    text: str | None
    continued_as: str | None


class Archive:
    """Reads runs of one journal."""

    def __init__(self, journal: ReadableJournal) -> None:
        self.journal = journal

    async def record(self, run_id: str) -> RunRecord:
        """The row of a run. Raises `RunNotFoundError`."""
        record = await self.journal.record(run_id)
        if record is None:
            raise RunNotFoundError(
                f"there is no run {run_id!r} in this journal; app.runs() lists the runs that there are", run_id=run_id
            )
        return record

    async def run(self, run_id: str) -> RunRecord:
        """The row of a run that can be driven, or was. Raises `RunNotFoundError`, also for an experiment."""
        record = await self.record(run_id)
        check_is_run(run_id, record.workflow)
        return record

    async def latest(self, run_id: str) -> RunRecord:
        """The row of a run, or of the one that goes on in its place. Raises `RunNotFoundError`."""
        return await self.latest_of(await self.record(run_id))

    async def latest_of(self, record: RunRecord) -> RunRecord:
        """The row of a run that was read, or of the one that goes on in its place."""
        while record.status == RunStatus.COMPLETED:
            continued_as = (await self.ending(record.run_id)).continued_as
            if continued_as is None:
                break
            record = await self._furthest(continued_as)
        return record

    async def _furthest(self, run_id: str) -> RunRecord:
        """The last of the runs that went on from this one. They are numbered without a gap, so few are looked at."""
        found = await self.record(run_id)
        known, leap = 0, 1
        while (record := await self.journal.record(continued_run_id(run_id, known + leap))) is not None:
            found, known, leap = record, known + leap, leap * 2
        while leap > 1:
            leap //= 2
            record = await self.journal.record(continued_run_id(run_id, known + leap))
            if record is not None:
                found, known = record, known + leap
        return found

    async def entries(
        self, run_id: str, after: int = 0, *, without: Collection[str] = (), without_values: Collection[str] = ()
    ) -> list[Entry]:
        """The journal of a run, from the entry after `after` on; without entries of some types, or their values."""
        entries: list[Entry] = []
        while True:
            page = await self.journal.read(
                run_id, after=after, limit=MAX_PAGE, without=without, without_values=without_values
            )
            entries += page
            if len(page) < MAX_PAGE:
                return entries
            after = page[-1].seq

    async def values(self, run_id: str, entries: Sequence[Entry], digests: Collection[str]) -> dict[str, str]:
        """The texts of blobs that entries of a run refer to. An error about one that is lost names the entry."""
        if not digests:  # Most runs have none, and then the store need not be asked.
            return {}
        try:
            return await self.journal.blobs(digests)
        except JournalCorruptError as error:
            referring = (
                entry for entry in entries if (digest := blob_reference(entry)) is not None and digest in str(error)
            )
            entry = next(referring, None)
            named = "an entry" if entry is None else f"entry {entry.seq} ({entry.type})"
            raise JournalCorruptError(
                f"{named} of run {run_id!r} cannot be read: {error}",
                run_id=run_id,
                seq=None if entry is None else entry.seq,
            ) from error

    async def texts(self, run_id: str, seqs: Sequence[int], *, without_values: Collection[str] = ()) -> list[str]:
        """The texts of the values of some entries of a run, which are in order.

        `without_values` are types of entries between them, whose values need not be read.
        """
        found: list[Entry] = []
        wanted = set(seqs)
        for first, last in _stretches(seqs):
            after = first - 1
            while after < last:
                limit = min(MAX_PAGE, last - after)
                page = await self.journal.read(run_id, after=after, limit=limit, without_values=without_values)
                if not page:
                    break
                found += (entry for entry in page if entry.seq in wanted)
                after = page[-1].seq
        if len(found) != len(wanted):
            raise JournalCorruptError(f"run {run_id!r} lacks entries among {seqs[0]} to {seqs[-1]}", run_id=run_id)
        references = {digest for entry in found if (digest := blob_reference(entry)) is not None}
        blobs = await self.values(run_id, found, references)
        return [value_text(entry) or blobs[blob_reference(entry) or ""] for entry in found]

    async def session_status(self, record: RunRecord) -> "SessionStatus | None":
        """What a session is doing, as far as its row and its last entry tell; None for a run of a workflow.

        A session whose process is gone is still stepping in the eyes of its journal.
        """
        if record.workflow != SESSION_WORKFLOW:
            return None
        from satay.transcripts import SessionStatus

        match record.status:
            case RunStatus.COMPLETED:
                return SessionStatus.COMPLETED
            case RunStatus.FAILED:
                return SessionStatus.CRASHED
        last = await self.journal.last(record.run_id)
        if last is not None and last.type == EntryType.RUN_FORKED:
            return SessionStatus.CREATED
        if record.status is RunStatus.WAITING:
            return SessionStatus.PAUSED
        is_new = last is not None and last.type == EntryType.SESSION_STARTED
        return SessionStatus.STARTED if is_new else SessionStatus.STEPPING

    async def step_entry(self, run_id: str, number: int | None) -> Entry | None:
        """The entry of a step of a session, or of its last step, without its value; None where there is none.

        It is looked for by halving, because steps are numbered as their entries are. So few entries are read.
        """
        from satay.transcripts import step_number

        last = await self.journal.last(run_id)
        found, low, high = None, 0, 0 if last is None else last.seq
        guess = high - ENTRIES_PER_STEP if number is None else ENTRIES_PER_STEP * number
        middle = min(max(guess, 0), high - 1)
        while low < high:
            entry = await self._first_step(run_id, middle)
            there = 0 if entry is None else step_number(entry)
            if entry is not None and there == number:
                return entry
            if entry is None or (number is not None and there > number):
                high = middle
            else:
                found, low = entry, entry.seq
            middle = (low + high) // 2
        return found if number is None else None

    async def _first_step(self, run_id: str, after: int) -> Entry | None:
        """The first step behind an entry, without its value."""
        while True:
            page = await self.journal.read(
                run_id, after=after, limit=1, without=_OTHER_THAN_STEPS, without_values=(EntryType.STEP_RECORDED,)
            )
            check_understood(page)
            if not page or page[0].type == EntryType.STEP_RECORDED:
                return page[0] if page else None
            after = page[0].seq

    async def state_text(self, transcript: "Transcript", snapshot: "Snapshot") -> str:
        """The text of a state that a session's journal holds. Raises `JournalCorruptError` where it is damaged."""
        from satay.snapshots import rebuild_state

        seqs = [one.seq for one in transcript.snapshots.chain(snapshot)]
        texts = await self.texts(transcript.run_id, seqs, without_values=(EntryType.STEP_RECORDED,))
        with reading(transcript.run_id):
            return rebuild_state(texts[0], texts[1:], snapshot.sha256)

    async def receipt_text(self, run_id: str) -> str | None:
        """The stored receipt of a fork; None for a run that is no fork."""
        record = await self.record(run_id)
        if record.fork_seq is None:
            return None
        entries = await self.journal.read(run_id, after=record.fork_seq, limit=1)
        if not entries or entries[0].type != EntryType.RUN_FORKED:
            raise JournalCorruptError(f"fork {run_id!r} has no receipt after entry {record.fork_seq}")
        text, reference = value_text(entries[0]), blob_reference(entries[0])
        return text if reference is None else (await self.values(run_id, entries, {reference}))[reference]

    async def ending(self, run_id: str) -> Ending:
        """How a run that has ended did. The last entry alone says so: a row that was read before it may be older."""
        last = await self.journal.last(run_id)
        status = None if last is None else STATUS_OF_ENDING.get(last.type)
        if last is None or status is None:
            raise JournalCorruptError(
                f"run {run_id!r} is said to have ended, but its journal does not end so", run_id=run_id
            )
        text = value_text(last)
        reference = blob_reference(last) if text is None else None
        if reference is not None:
            text = (await self.values(run_id, [last], {reference}))[reference]
        with reading(run_id):
            return Ending(status, text, facts(last).get("continued_as") if text is None else None)


def _stretches(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """From where to where to read so that all are read, and not many others."""
    stretches: list[tuple[int, int]] = []
    for seq in seqs:
        if stretches and seq - stretches[-1][1] <= MAX_GAP:
            stretches[-1] = stretches[-1][0], seq
        else:
            stretches.append((seq, seq))
    return stretches
