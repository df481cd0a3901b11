"""Group commit: many writing calls in one SQLite transaction, of which none can harm another.

A call that is refused before it wrote anything leaves the transaction as it was. One that fails later spoils it: then
all is rolled back, and every call gets a transaction of its own.
"""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from satay.clock import monotonic
from satay.errors import JournalBusyError, SatayError
from satay.journal import Append, Blob, Lease, NewFork
from satay.stores import sqlite_bulk as bulk
from satay.stores import sqlite_reads as reads
from satay.stores import sqlite_writes as writes
from satay.stores.sqlite_blobs import PackedBlob, pack
from satay.stores.sqlite_errors import explain
from satay.stores.sqlite_schema import SqliteSettings, attach_committed, begin

MAX_NAMED_HOLDERS: Final = 5
"""How many processes an error names that might hold the lock."""


class Write(NamedTuple):
    """A writing call that waits for its transaction. `settle` is told what it returned, or the error to raise."""

    settle: Callable[[Any], None]
    fn: Callable[[sqlite3.Cursor, Any], object]
    argument: Any
    blobs: Sequence[Blob] = ()


Packed = Sequence[PackedBlob] | BaseException
"""The blobs of a call as they are stored, or why they cannot be."""


_IN_BULK: Final = (writes.append, writes.create, writes.claim, writes.fork)


_NOTHING: Final = itertools.repeat(None)


def _are_independent(takeovers: Sequence[writes.Takeover], appends: Sequence[Append]) -> bool:
    """Whether it does not matter which of them come first."""
    if not takeovers:
        return True
    claimed = [record.key for takeover in takeovers for record in takeover.seen]
    return len(set(claimed)) == len(claimed) and not {append.lease.key for append in appends}.intersection(claimed)


class GroupCommit:
    """Runs groups of writing calls on one connection. Belongs to the connection's thread."""

    def __init__(self, connection: sqlite3.Connection, settings: SqliteSettings) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._settings = settings
        self._heads = bulk.Heads()
        self._has_committed = False

    def commit(self, group: Sequence[Write]) -> list[object]:
        """Perform the calls in order. Answers, for each, what it returned or the error that it is to raise."""
        if len(group) == 1 and self._commit_alone(group[0]):
            return [None]
        outcomes = self._commit_in_bulk(group)
        return self._commit_in_turn(group) if outcomes is None else outcomes

    def _commit_alone(self, write: Write) -> bool:
        """Perform a lone append of entries alone: one statement, which is its own transaction.

        False if that did not succeed; then nothing was written, and a transaction of the usual kind tells why.
        """
        append = write.argument
        if write.fn is not writes.append or write.blobs or not bulk.is_lone(append):
            return False
        key, entries = append.lease.key, append.entries
        try:
            self._roll_back()
            if not self._heads.reach(self._cursor, key, entries[0].seq - 1):
                return False
            bulk.append_alone(self._cursor, append)
        except Exception:  # whatever it is, the transaction that follows meets it again, and tells the caller
            return False
        self._heads.note(key, entries[-1].seq)
        return True

    def _commit_in_bulk(self, group: Sequence[Write]) -> list[object] | None:
        """Perform creations and appends by as few statements as can be, forks and claims as they are: they take few.

        None if that did not succeed; then nothing was written, and a transaction of the usual kind tells why.
        """
        if any(write.blobs or write.fn not in _IN_BULK for write in group):
            return None
        appends: list[Append] = [write.argument for write in group if write.fn is writes.append]
        creations: list[writes.Creation] = [write.argument for write in group if write.fn is writes.create]
        takeovers: list[writes.Takeover] = [write.argument for write in group if write.fn is writes.claim]
        forks: list[NewFork] = [write.argument for write in group if write.fn is writes.fork]
        if not _are_independent(takeovers, appends):
            return None
        try:
            self._roll_back()
            if not self._heads.reach_all(self._cursor, appends):
                return None
            self._begin(has_forks=bool(forks))
            leases = bulk.create_all(self._cursor, creations)
            # Before appends: one that ends a run asks its children to cancel, and tells those who wait for it.
            forked = [writes.fork(self._cursor, fork) for fork in forks]
            if not bulk.append_all(self._cursor, appends):
                self._roll_back()
                return None
            claims = [writes.claim(self._cursor, takeover) for takeover in takeovers]
            self._cursor.execute("COMMIT")
        except Exception:  # whatever it is, the transaction that follows meets it again, and tells the callers
            with contextlib.suppress(sqlite3.Error):
                self._roll_back()
            return None
        self._note_heads(creations, leases, appends)
        for fork, lease in zip(forks, forked, strict=True):
            self._heads.note(lease.key, fork.through_seq + len(fork.after))
        outcomes: dict[object, Iterator[object]] = {
            writes.create: iter(leases),
            writes.claim: iter(claims),
            writes.fork: iter(forked),
        }
        return [next(outcomes.get(write.fn, _NOTHING)) for write in group]

    def _note_heads(
        self, creations: Sequence[writes.Creation], leases: Sequence[Lease], appends: Sequence[Append]
    ) -> None:
        for creation, lease in zip(creations, leases, strict=True):
            self._heads.note(lease.key, len(creation.entries))
        for append in appends:
            if append.entries:
                self._heads.note(append.lease.key, append.entries[-1].seq)

    def _commit_in_turn(self, group: Sequence[Write]) -> list[object]:
        """Perform the calls one after the other, in one transaction if that can be."""
        packed = [self._pack(write) if write.blobs else () for write in group]
        try:
            self._roll_back()
            self._begin(has_forks=any(write.fn is writes.fork for write in group))
        except sqlite3.Error as error:
            return [self._explain(error) for _ in group]
        try:
            outcomes = list(map(self._perform, group, packed))
            self._cursor.execute("COMMIT")
        except BaseException as error:  # the callers wait for whatever it is, and the next group for a free connection
            with contextlib.suppress(sqlite3.Error):  # what fails now is tried again before the next transaction
                self._roll_back()
            return [self._explain(error)] if len(group) == 1 else self._commit_each(group)
        return outcomes

    def _commit_each(self, group: Sequence[Write]) -> list[object]:
        outcomes: list[object] = []
        for write in group:
            if outcomes and isinstance(outcomes[-1], JournalBusyError):
                # The lock did not come within the timeout: nobody waits for that again behind one who did.
                outcomes.append(JournalBusyError(str(outcomes[-1])))
            else:
                outcomes += self.commit([write])
        return outcomes

    def _perform(self, write: Write, packed: Packed) -> object:
        """The outcome of one call in the transaction; raises if the call failed after it had written something."""
        changes = self._connection.total_changes
        try:
            if packed:
                self._store(packed)
            return write.fn(self._cursor, write.argument)
        except (SatayError, UnicodeEncodeError) as error:
            if self._connection.total_changes != changes:
                raise
            return self._explain(error)

    def _pack(self, write: Write) -> Packed:
        """Compress before the transaction, so that nobody waits for the lock meanwhile."""
        try:
            return [pack(blob) for blob in write.blobs if not writes.has_blob(self._cursor, blob.sha256)]
        except (SatayError, UnicodeEncodeError, sqlite3.Error) as error:
            return error

    def _store(self, packed: Packed) -> None:
        if isinstance(packed, BaseException):
            raise packed
        writes.store_blobs(self._cursor, packed)

    def _begin(self, *, has_forks: bool) -> None:
        deadline = monotonic() + self._settings.busy_timeout_seconds
        if has_forks and not self._has_committed:
            attach_committed(self._connection, self._settings, deadline)
            self._has_committed = True
        begin(self._connection, deadline)

    def _roll_back(self) -> None:
        # SQLite may have rolled back by itself, where the disk failed or is full.
        if self._connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    def _explain(self, error: BaseException) -> BaseException:
        return explain(error, self._settings, self._name_holders)

    def _name_holders(self) -> str:
        """Who drives runs in this file beside this process, as far as the file tells."""
        try:
            others = [owner for owner in reads.owners(self._connection) if owner.pid != os.getpid()]
        except sqlite3.Error:  # then it tells nothing
            return ""
        names = [f"{owner.id!r} (process {owner.pid} on {owner.host})" for owner in others[:MAX_NAMED_HOLDERS]]
        return ", ".join(names)
