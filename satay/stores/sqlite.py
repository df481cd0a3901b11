"""The journal in a SQLite file: one writer connection that commits in groups, and one reader beside it.

A writing call is put in a queue when it is made. While the writer commits, calls pile up; the next transaction takes
all of them. So a lone writer pays one hop to the thread for each call, and a thousand writers share one commit.
"""

import asyncio
import sqlite3
import traceback
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, TypeVarTuple

from satay.clock import monotonic
from satay.errors import InvalidValueError, JournalClosedError, JournalUnavailableError
from satay.journal import (
    MAX_PAGE,
    Append,
    Blob,
    Claim,
    Commit,
    FirstPage,
    Lease,
    NewFork,
    NewRun,
    Note,
    Owner,
    Posted,
    RunQuery,
    StoreHealth,
    Wait,
)
from satay.model import Entry, Message, RunRecord
from satay.stores import sqlite_reads as reads
from satay.stores import sqlite_writes as writes
from satay.stores.sqlite_connection import ThreadConnection, report
from satay.stores.sqlite_errors import CAUSES, explain
from satay.stores.sqlite_file import OpenFile
from satay.stores.sqlite_groups import GroupCommit, Write
from satay.stores.sqlite_schema import (
    SqliteSettings,
    connect_reader,
    connect_to_existing,
    connect_writer,
    wait_for_lock,
)

A = TypeVar("A")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_GROUP: Final = 1_000
"""The most writing calls that share one transaction."""


async def open_sqlite(
    path: Path | str, *, synchronous: Literal["FULL", "NORMAL"] = "FULL", busy_timeout_seconds: float = 30.0
) -> "SqliteJournal":
    """Open the journal in a file, which is made, with its directory, where there is none.

    Raises `JournalUnavailableError` if that is not possible, `JournalVersionError` if a newer satay wrote the file,
    `JournalCorruptError` if it is damaged, `JournalBusyError` if it stays locked.
    """
    journal = SqliteJournal(_checked_settings(path, synchronous, busy_timeout_seconds))
    try:
        await journal.open()
    except BaseException:
        await journal.close()
        raise
    return journal


async def open_sqlite_for_reading(path: Path | str, *, busy_timeout_seconds: float = 30.0) -> "ReadableSqlite":
    """Open the journal in a file that is there, for reading only; other processes may write to it meanwhile.

    Raises `JournalNotFoundError` where there is none, and what `open_sqlite` raises; also for a file whose tables are
    of an older version, which only a writer brings up to date.
    """
    journal = ReadableSqlite(_checked_settings(path, "FULL", busy_timeout_seconds), connect_to_existing)
    try:
        await journal.open()
    except BaseException:
        await journal.close()
        raise
    return journal


def _checked_settings(
    path: Path | str, synchronous: Literal["FULL", "NORMAL"], busy_timeout_seconds: float
) -> SqliteSettings:
    if str(path) == ":memory:":
        raise InvalidValueError("a journal is a file, and ':memory:' names none; give a path in a temporary directory")
    if synchronous not in ("FULL", "NORMAL"):
        raise InvalidValueError(f"synchronous is {synchronous!r}; it can be 'FULL' or 'NORMAL'")
    if "\0" in str(path):
        raise InvalidValueError(f"the path {str(path)!r} has a NUL character, which no file name can have")
    if not 0 <= busy_timeout_seconds <= 86_400:
        raise InvalidValueError(f"busy_timeout_seconds is {busy_timeout_seconds!r}; it can be 0 up to 86400, a day")
    return SqliteSettings(path=_absolute(path), synchronous=synchronous, busy_timeout_seconds=busy_timeout_seconds)


def _absolute(path: Path | str) -> Path:
    """The path as it reads from everywhere: the program may change its working directory."""
    try:
        return Path(path).absolute()
    except OSError:
        raise JournalUnavailableError(
            f"the journal {str(path)!r} cannot be used: it is named from the working directory, which was deleted; go "
            "to one that is there, or name the journal by an absolute path"
        ) from None


class ReadableSqlite:
    """The `ReadableJournal` in a SQLite file. Made by `open_sqlite_for_reading`, for the event loop that runs then."""

    def __init__(self, settings: SqliteSettings, connect: Callable[[SqliteSettings], sqlite3.Connection]) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._reader = ThreadConnection(partial(connect, settings))
        self._is_reader_started = False
        self._is_closed = False

    async def open(self) -> None:
        """Connect."""
        await self._read(lambda connection: None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def owners(self) -> "asyncio.Future[list[Owner]]":
        return self._read(reads.owners)

    def record(self, run_id: str) -> "asyncio.Future[RunRecord | None]":
        return self._read(reads.record, run_id)

    def started(self, start_key: str) -> "asyncio.Future[RunRecord | None]":
        return self._read(reads.started, start_key)

    def runs(self, query: RunQuery) -> "asyncio.Future[list[RunRecord]]":
        return self._read(reads.runs, query)

    def ids(self, prefix: str, limit: int) -> "asyncio.Future[list[str]]":
        return self._read(reads.ids, prefix, limit)

    def read(
        self,
        run_id: str,
        *,
        after: int = 0,
        limit: int = MAX_PAGE,
        without: Collection[str] = (),
        without_values: Collection[str] = (),
    ) -> "asyncio.Future[list[Entry]]":
        return self._read(reads.read, run_id, after, limit, without, without_values)

    def first_pages(self, run_ids: Sequence[str]) -> "asyncio.Future[list[FirstPage]]":
        return self._read(reads.first_pages, run_ids)

    def last(self, run_id: str) -> "asyncio.Future[Entry | None]":
        return self._read(reads.last, run_id)

    def blobs(self, digests: Collection[str]) -> "asyncio.Future[dict[str, str]]":
        return self._read(reads.blobs, digests)

    def due(
        self, now: int, owner: str | None, limit: int, after: RunRecord | None = None
    ) -> "asyncio.Future[list[RunRecord]]":
        return self._read(reads.due, now, owner, limit, after)

    def next_wake(self, owner: str | None) -> "asyncio.Future[int | None]":
        return self._read(reads.next_wake, owner)

    def abandoned(self, now: int, limit: int, after: RunRecord | None = None) -> "asyncio.Future[list[RunRecord]]":
        return self._read(reads.abandoned, now, limit, after)

    def messages(self, run_id: str, limit: int = MAX_PAGE) -> "asyncio.Future[list[Message]]":
        return self._read(reads.messages, run_id, limit)

    def deliverable(self, after: int, limit: int, now: int) -> "asyncio.Future[tuple[int, list[RunRecord]]]":
        return self._read(reads.deliverable, after, limit, now)

    def waits(self, run_id: str) -> "asyncio.Future[list[Wait]]":
        return self._read(reads.waits, run_id)

    def waited_for(self, run_id: str) -> "asyncio.Future[list[RunRecord]]":
        return self._read(reads.waited_for, run_id)

    def health(self) -> "asyncio.Future[StoreHealth]":
        from satay.stores.sqlite_health import store_health

        return self._read(store_health, self._settings.path)

    async def close(self) -> None:
        self._is_closed = True
        await self._reader.end()

    def _read(self, fn: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        self._check_open()
        if not self._is_reader_started:
            self._is_reader_started = True
            self._reader.start()
        return self._reader.run(self._answer, fn, *args)

    def _check_open(self) -> None:
        if self._is_closed:
            raise JournalClosedError(f"the journal {str(self._settings.path)!r} is closed; open it again to use it")

    def _answer(self, fn: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> T:
        deadline = monotonic() + self._settings.busy_timeout_seconds
        try:
            return wait_for_lock(lambda: fn(self._reader.connected(), *args), deadline)
        except CAUSES as error:
            # A statement that failed half-way stays open while its cursor lives, and with it the state of the database
            # that it saw: the connection would not see what is written from now on.
            traceback.clear_frames(error.__traceback__)
            raise explain(error, self._settings) from error


class SqliteJournal(ReadableSqlite):
    """The `Journal` in a SQLite file. Made by `open_sqlite`, for the event loop that runs then."""

    def __init__(self, settings: SqliteSettings) -> None:
        super().__init__(settings, connect_reader)
        self._writer = ThreadConnection(partial(connect_writer, settings))
        self._queue: list[Write] = []
        self._is_writing = False
        self._idle: asyncio.Future[None] | None = None
        self._groups: GroupCommit | None = None
        self._file: OpenFile | None = None

    async def open(self) -> None:
        """Connect, and bring the file up to date."""
        self._writer.start()
        await self._writer.run(self._prepare_writer)

    # --- writing ------------------------------------------------------------------------------------------------------

    def create(self, run: NewRun, entries: Sequence[Entry], blobs: Sequence[Blob] = ()) -> "asyncio.Future[Lease]":
        return self._write(writes.create, writes.Creation(run, entries), blobs)

    def fork(self, fork: NewFork) -> "asyncio.Future[Lease]":
        return self._write(writes.fork, fork, fork.blobs)

    def append(self, append: Append) -> Commit:
        self._check_open()
        commit = Commit()
        self._queue_write(Write(commit.settle, writes.append, append, append.blobs))
        return commit

    def note(self, notes: Sequence[Note]) -> "asyncio.Future[None]":
        return self._write(writes.note, notes)

    def claim(self, seen: Sequence[RunRecord], owner: str, now: int) -> "asyncio.Future[list[Claim]]":
        return self._write(writes.claim, writes.Takeover(seen, owner, now))

    def release(self, lease: Lease, before: RunRecord | None = None) -> "asyncio.Future[None]":
        return self._write(writes.release, writes.Handover(lease, before))

    def heartbeat(self, owner: Owner) -> "asyncio.Future[None]":
        return self._write(writes.heartbeat, owner)

    def retire(self, owner_id: str) -> "asyncio.Future[None]":
        return self._write(writes.retire, owner_id)

    def post(
        self, run_id: str | None, type: str, key: str | None, event_id: str | None, payload: str, now: int
    ) -> "asyncio.Future[Posted]":
        return self._write(writes.post, writes.NewMessage(run_id, type, key, event_id, payload, now))

    # --- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._is_closed = True
        if self._is_writing:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)
        # The writer last: whoever disconnects last empties the write-ahead log into the file.
        await super().close()
        await self._writer.end()

    # --- the machinery, on the event loop -----------------------------------------------------------------------------

    def _write(
        self, fn: Callable[[sqlite3.Cursor, A], T], argument: A, blobs: Sequence[Blob] = ()
    ) -> "asyncio.Future[T]":
        """Queue a writing call. A caller that is cancelled has nobody to be told."""
        self._check_open()
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue_write(Write(partial(_settle, future), fn, argument, blobs))
        return future

    def _queue_write(self, write: Write) -> None:
        """Queue a writing call. Where the writer rests it is sent at once, without a turn of the loop between."""
        self._queue.append(write)
        if not self._is_writing:
            self._write_next()

    def _write_next(self) -> None:
        self._is_writing = True
        group, self._queue = self._queue[:MAX_GROUP], self._queue[MAX_GROUP:]
        self._writer.send(partial(self._commit, group))

    def _finish(self, group: list[Write], outcomes: list[object]) -> None:
        """Tell the callers, and keep the writer going."""
        if self._queue:
            self._write_next()
        else:
            self._is_writing = False
        for write, outcome in zip(group, outcomes, strict=True):
            write.settle(outcome)
        if not self._is_writing and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    # --- the machinery, on the threads --------------------------------------------------------------------------------

    def _prepare_writer(self) -> None:
        try:
            self._groups = GroupCommit(self._writer.connected(), self._settings)
            self._file = OpenFile(self._settings.path)
        except CAUSES as error:
            raise explain(error, self._settings) from error

    def _commit(self, group: list[Write]) -> None:
        assert self._groups is not None, "the journal was opened"
        assert self._file is not None, "the journal was opened"
        try:
            self._file.check()
            outcomes = self._groups.commit(group)
        except BaseException as error:  # also a MemoryError: the callers wait, and the thread cannot raise it
            outcomes = [error for _ in group]
        report(self._loop, self._finish, group, outcomes)


def _settle(future: "asyncio.Future[Any]", outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
