"""Group commit: many writing calls in one SQLite transaction, of which none can harm another.

A call that is refused before it wrote anything leaves the transaction as it was. One that fails later spoils it: then
all is rolled back, and every call gets a transaction of its own.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from satay.clock import monotonic
from satay.errors import JournalBusyError, SatayError
from satay.journal import Append, Blob
from satay.stores import sqlite_reads as reads
from satay.stores import sqlite_writes as writes
from satay.stores.sqlite_errors import explain
from satay.stores.sqlite_schema import SqliteSettings, begin

MAX_NAMED_HOLDERS: Final = 5
"""How many processes an error names that might hold the lock."""


class Write(NamedTuple):
    """A writing call that waits for its transaction. `settle` is told what it returned, or the error to raise."""

    settle: Callable[[Any], None]
    fn: Callable[[sqlite3.Cursor, Any], object]
    argument: Any
    blobs: Sequence[Blob] = ()


Packed = Sequence[writes.PackedBlob] | BaseException
"""The blobs of a call as they are stored, or why they cannot be."""


class GroupCommit:
    """Runs groups of writing calls on one connection. Belongs to the connection's thread."""

    def __init__(self, connection: sqlite3.Connection, settings: SqliteSettings) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._settings = settings

    def commit(self, group: Sequence[Write]) -> list[object]:
        """Perform the calls in order. Answers, for each, what it returned or the error that it is to raise."""
        are_plain = all(write.fn is writes.append and writes.is_plain(write.argument) for write in group)
        if are_plain and self._commit_plainly([write.argument for write in group]):
            return [None] * len(group)
        packed = [self._pack(write) if write.blobs else () for write in group]
        try:
            self._roll_back()
            begin(self._connection, monotonic() + self._settings.busy_timeout_seconds)
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

    def _commit_plainly(self, appends: Sequence[Append]) -> bool:
        """Perform appends of entries alone: one as a single statement, its own transaction; several in bulk.

        False if that did not succeed; then nothing was written, and a transaction of the usual kind tells why.
        """
        try:
            self._roll_back()
            if len(appends) == 1 and len(appends[0].entries) <= writes.MAX_FENCED_ROWS:
                writes.extend(self._cursor, appends[0])
                return True
            begin(self._connection, monotonic() + self._settings.busy_timeout_seconds)
            if writes.extend_all(self._cursor, appends):
                self._cursor.execute("COMMIT")
                return True
            self._roll_back()
        except Exception:  # whatever it is, the transaction that follows meets it again, and tells the callers
            with contextlib.suppress(sqlite3.Error):
                self._roll_back()
        return False

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
            return [writes.pack(blob) for blob in write.blobs if not writes.has_blob(self._cursor, blob.sha256)]
        except (SatayError, UnicodeEncodeError, sqlite3.Error) as error:
            return error

    def _store(self, packed: Packed) -> None:
        if isinstance(packed, BaseException):
            raise packed
        writes.store_blobs(self._cursor, packed)

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
