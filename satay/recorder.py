"""Writes the entries of one run: numbers, digests and payload layout, gathered into one append a turn."""

import hashlib
from collections.abc import Sequence
from typing import Final

from satay.clock import Clock
from satay.journal import BLOB_THRESHOLD_BYTES, Append, Blob, Lease, NewRun, Wait, chain_digest
from satay.model import VALUE_FIELD, Entry, RunStatus

_MARK: Final[dict[str, str]] = {type: f'"{field}":' for type, field in VALUE_FIELD.items()}


def lay_out(type: str, facts: str, text: str | None) -> tuple[str, Blob | None]:
    """A payload in the fixed layout: the facts, then the value, or a reference to the blob that holds it."""
    if text is None:
        return f"{{{facts}}}", None
    comma = "," if facts else ""
    if len(text) <= BLOB_THRESHOLD_BYTES:
        return f"{{{facts}{comma}{_MARK[type]}{text}}}", None
    blob = Blob(hashlib.sha256(text.encode()).hexdigest(), text)
    return f'{{{facts}{comma}"{VALUE_FIELD[type]}_blob":"{blob.sha256}"}}', blob


def first_entry(type: str, at: int, facts: str, text: str | None, digest: bytes) -> tuple[Entry, list[Blob]]:
    """Entry 1 of a journal, whose digest is the same in every journal."""
    payload, blob = lay_out(type, facts, text)
    return Entry(1, str(type), at, payload, digest), [] if blob is None else [blob]


class Recorder:
    """Numbers and chains the entries of one run, and gathers what belongs to the turn at hand."""

    __slots__ = (
        "_blobs",
        "_clock",
        "_closed",
        "_entries",
        "_opened",
        "_successor",
        "_taken",
        "digest",
        "head",
        "lease",
    )

    def __init__(self, lease: Lease, clock: Clock, last: Entry) -> None:
        self.lease = lease
        self.head = last.seq
        self.digest = last.digest
        self._clock = clock
        self._entries: list[Entry] = []
        self._opened: Sequence[Wait] = ()
        self._closed: Sequence[int] = ()
        self._taken: Sequence[int] = ()
        self._blobs: Sequence[Blob] = ()
        self._successor: tuple[NewRun, Sequence[Entry], Sequence[Blob]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the turn at hand has nothing to write."""
        return not (self._entries or self._opened or self._closed or self._taken)

    @property
    def pending(self) -> int:
        """How many entries wait to be written."""
        return len(self._entries)

    def record(self, type: str, facts: str, text: str | None = None) -> Entry:
        """Add an entry to the turn."""
        payload, blob = lay_out(type, facts, text)
        if blob is not None:
            self._blobs = [*self._blobs, blob]
        at = self._clock.now()
        type = str(type)  # A member of `EntryType` is a text too, but `sqlite3` looks in vain for how to adapt it.
        self.head += 1
        self.digest = digest = chain_digest(self.digest, type, at, payload)
        entry = Entry(self.head, type, at, payload, digest)
        self._entries.append(entry)
        return entry

    def follow(self, lease: Lease, digest: bytes) -> None:
        """Write under this lease, and chain what was gathered to the entry with this digest."""
        self.lease = lease
        chained = []
        for entry in self._entries:
            digest = chain_digest(digest, entry.type, entry.at, entry.payload)
            chained.append(entry._replace(digest=digest))
        self._entries = chained
        self.digest = digest

    def retract(self, head: int, digest: bytes) -> None:
        """Take back what was sent after entry `head`, with this digest, and refused. What was gathered since moves up.

        None of that may be a call: its outcomes would name another entry.
        """
        gathered, self._entries = self._entries, []
        self.head, self.digest = head, digest
        for entry in gathered:
            self.head += 1
            self.digest = chain_digest(self.digest, entry.type, entry.at, entry.payload)
            self._entries.append(entry._replace(seq=self.head, digest=self.digest))

    def open_wait(self, wait: Wait) -> None:
        self._opened = [*self._opened, wait]

    def close_wait(self, call: int) -> None:
        self._closed = [*self._closed, call]

    def take_message(self, id: int) -> None:
        self._taken = [*self._taken, id]

    def continue_as(self, run: NewRun, entries: Sequence[Entry], blobs: Sequence[Blob]) -> None:
        self._successor = (run, entries, blobs)

    def turn(self, status: RunStatus | None, wake_at: int | None) -> Append:
        """What was gathered, as one append; the next turn begins empty."""
        entries = self._entries
        append = Append(self.lease, entries, entries[-1].at if entries else self._clock.now(), status, wake_at)
        # Few turns have any of these, and setting all of them by name is a good part of making an append.
        if self._opened or self._closed or self._taken or self._blobs:
            append.opened, append.closed = self._opened, self._closed
            append.taken, append.blobs = self._taken, self._blobs
        if self._successor is not None:
            run, first, blobs = self._successor
            append.successor = (run, first)
            append.blobs = [*append.blobs, *blobs]
        self._entries = []
        self._opened = self._closed = self._taken = self._blobs = ()
        self._successor = None
        return append
