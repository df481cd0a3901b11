"""The SQLite file: its tables, and how a connection makes a file ready for use.

The schema's version is in `PRAGMA user_version`. Migrations go forward only and run once, under the write lock,
whoever opens the file first. A script that was released is never changed: a new one is added after it.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from satay.clock import monotonic
from satay.errors import JournalNotFoundError, JournalUnavailableError, JournalVersionError

T = TypeVar("T")

APPLICATION_ID: Final = 0x73617479
"""Marks a file as satay's (`PRAGMA application_id`; the letters "saty")."""

LOCK_RETRY_SECONDS: Final = 0.005
"""The pause between attempts to get a lock for which SQLite does not wait by itself."""

LOG_SIZE_BYTES: Final = 16 * 1024 * 1024
"""What is left of the write-ahead log's file after a large transaction went through it."""

LOG_PAGES: Final = 2_000
"""So many pages are gathered in the log before they are moved to the database: 8 MB.

A fork of 10,000 calls fills most of SQLite's usual 1,000, and would nearly always wait for the move. With more, those
who do wait would wait longer.
"""

COMMITTED: Final = "committed"
"""The schema of a writer that is the same file once more, as it was when the transaction began.

SQLite copies rows within a table by way of a temporary one, since it reads what it writes. It need not where they are
read from there.
"""

LIVE: Final = "('running', 'waiting', 'needs_decision')"
"""The statuses of runs that have not ended, as a list in SQL."""

_TABLES: Final = (
    """
    CREATE TABLE runs (
        key INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        workflow TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        wake_at INTEGER,
        owner TEXT,
        epoch INTEGER NOT NULL,
        parent_id TEXT,
        forked_from TEXT,
        fork_seq INTEGER,
        start_key TEXT UNIQUE,
        code_version TEXT NOT NULL
    )
    """,
    "CREATE INDEX runs_status ON runs (status)",
    "CREATE INDEX runs_owner ON runs (owner, status, wake_at)",
    "CREATE INDEX runs_due ON runs (wake_at) WHERE status = 'waiting'",
    "CREATE INDEX runs_parent ON runs (parent_id) WHERE parent_id IS NOT NULL",
    "CREATE INDEX runs_forked ON runs (forked_from) WHERE forked_from IS NOT NULL",
    """
    CREATE TABLE events (
        run INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        type TEXT NOT NULL,
        at INTEGER NOT NULL,
        payload TEXT NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (run, seq)
    ) WITHOUT ROWID
    """,
    # AUTOINCREMENT: ids rise for ever, so that whoever has seen an id never misses a message after it.
    # `run` is 0 for a message to whoever waits, because a unique index treats two NULLs as different.
    """
    CREATE TABLE inbox (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run INTEGER NOT NULL,
        type TEXT NOT NULL,
        key TEXT,
        event_id TEXT,
        payload TEXT NOT NULL,
        at INTEGER NOT NULL,
        is_taken INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE UNIQUE INDEX inbox_event ON inbox (run, event_id) WHERE event_id IS NOT NULL",
    "CREATE INDEX inbox_pending ON inbox (run, type, key) WHERE is_taken = 0",
    """
    CREATE TABLE waits (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        call INTEGER NOT NULL,
        type TEXT NOT NULL,
        key TEXT
    )
    """,
    "CREATE INDEX waits_run ON waits (run, call)",
    "CREATE INDEX waits_message ON waits (type, key)",
    "CREATE INDEX waits_match ON waits (run, type, key)",
    "CREATE TABLE blobs (sha256 BLOB PRIMARY KEY, is_compressed INTEGER NOT NULL, data BLOB NOT NULL)",
    """
    CREATE TABLE owners (
        id TEXT PRIMARY KEY,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started_at TEXT NOT NULL,
        expires_at INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_TABLES,)
"""The scripts that lead from each version to the next; script 0 makes version 1 out of an empty file."""


class SqliteSettings(NamedTuple):
    """Where a journal is and how it is kept.

    `synchronous` is `FULL` (what was awaited survives a power cut) or `NORMAL` (it survives the end of the process;
    a power cut may take the newest turns, and never leaves half of one). A locked database is waited for, for
    `busy_timeout_seconds`. `migrations` lead to the version that is read and written; as many make up its number.
    """

    path: Path
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    busy_timeout_seconds: float = 30.0
    migrations: Sequence[Sequence[str]] = MIGRATIONS

    @property
    def version(self) -> int:
        return len(self.migrations)


def connect_writer(settings: SqliteSettings) -> sqlite3.Connection:
    """Connect to the file, make it if it is not there, and bring it up to date.

    Raises `JournalVersionError`, `JournalUnavailableError`, an error of `sqlite3` or an `OSError`.
    """
    settings.path.parent.mkdir(parents=True, exist_ok=True)
    _refuse_lost_file(settings.path)
    connection = _connect(settings, "rwc")
    try:
        _prepare(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_existing(settings: SqliteSettings) -> sqlite3.Connection:
    """Connect to a file for reading only, whatever state it is in.

    Raises `JournalNotFoundError` where there is no file or nothing in it yet, `JournalVersionError` where its tables
    are of another version, `JournalUnavailableError`, an error of `sqlite3` or an `OSError`.
    """
    path, deadline = settings.path, monotonic() + settings.busy_timeout_seconds
    if not path.exists():
        raise _not_found(f"there is no journal at {str(path)!r}")
    _refuse_lost_file(path)
    connection = connect_reader(settings)
    try:
        version = wait_for_lock(lambda: _look_at_version(connection, settings), deadline)
        if version == 0:
            raise _not_found(f"the file {str(path)!r} holds no journal yet")
        if version < settings.version:
            raise JournalVersionError(
                f"the journal {str(path)!r} has schema version {version} and is read as version {settings.version}; "
                "open it once with satay.run_app(), which brings it up to date"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _not_found(what: str) -> JournalNotFoundError:
    return JournalNotFoundError(
        f"{what}, and reading makes none; name the place of one, or run a workflow, which makes the journal"
    )


def _refuse_lost_file(path: Path) -> None:
    """Refuse a file that is gone or empty while its log is not: SQLite would delete the log and begin anew."""
    log = path.with_name(f"{path.name}-wal")
    if _size(log) and not _size(path):
        raise JournalUnavailableError(
            f"the journal {str(path)!r} is empty, and its log {log.name!r} is not; restore it from a copy, or remove "
            "the log to begin anew"
        )


def _size(path: Path) -> int:
    # Never by opening the file: closing it would release the locks that this process holds on it through SQLite.
    try:
        return path.stat().st_size
    except OSError:
        return 0


def connect_reader(settings: SqliteSettings) -> sqlite3.Connection:
    """Connect to a file that a writer made ready. Raises an error of `sqlite3`."""
    connection = _connect(settings, "rw")
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(settings: SqliteSettings, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(_uri(settings, mode), uri=True, timeout=settings.busy_timeout_seconds, isolation_level=None)


def _uri(settings: SqliteSettings, mode: str) -> str:
    # As a URI, because only so does SQLite take a mode; `as_uri` quotes what would be special in one.
    return f"{settings.path.absolute().as_uri()}?mode={mode}"


def _prepare(connection: sqlite3.Connection, settings: SqliteSettings) -> None:
    deadline = monotonic() + settings.busy_timeout_seconds
    if wait_for_lock(lambda: _look_at_version(connection, settings), deadline) < settings.version:
        _migrate(connection, settings, deadline)
    _enable_wal(connection, settings.path, deadline)
    connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_SIZE_BYTES}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")


def attach_committed(connection: sqlite3.Connection, settings: SqliteSettings, deadline: float) -> None:
    """Make what is committed readable as `COMMITTED`, outside of a transaction. Raises an error of `sqlite3`."""
    wait_for_lock(lambda: connection.execute(f"ATTACH ? AS {COMMITTED}", (_uri(settings, "ro"),)), deadline)


def detach_committed(connection: sqlite3.Connection) -> None:
    """Before a connection is closed: the last to close a file removes its log, which one that may only read cannot."""
    with contextlib.suppress(sqlite3.OperationalError):  # It may never have been attached.
        connection.execute(f"DETACH {COMMITTED}")


def begin(connection: sqlite3.Connection, deadline: float) -> None:
    """Begin a transaction that holds the write lock."""
    wait_for_lock(lambda: connection.execute("BEGIN IMMEDIATE"), deadline)


def wait_for_lock(fn: Callable[[], T], deadline: float) -> T:
    """Try until nobody else holds the lock, or until the deadline, a moment of `clock.monotonic()`.

    SQLite's own busy timeout covers the common wait. It does not cover the change to WAL, nor a log that another
    process is recovering or has just replaced: these are reported at once.
    """
    while True:
        try:
            return fn()
        except sqlite3.OperationalError as error:
            if not is_lock(error) or monotonic() >= deadline:
                raise
            time.sleep(LOCK_RETRY_SECONDS)


def is_lock(error: sqlite3.Error) -> bool:
    """Whether the error says that somebody else holds a lock. The low byte of an extended code is the plain code."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _look_at_version(connection: sqlite3.Connection, settings: SqliteSettings) -> int:
    # In a transaction, so that what is read is of one moment: another process may be migrating.
    connection.execute("BEGIN")
    try:
        return _read_version(connection, settings)
    finally:
        connection.execute("ROLLBACK")


def _read_version(connection: sqlite3.Connection, settings: SqliteSettings) -> int:
    name = repr(str(settings.path))
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if connection.execute("PRAGMA page_count").fetchone()[0] == 0 and _size(settings.path):
        # SQLite takes what is shorter than a page for an empty database, and would write over it.
        raise JournalUnavailableError(
            f"the journal {name} cannot be used: it is not a SQLite database, or what is left of one, and was left as "
            "it is; restore it from a copy, or name another file for the journal"
        )
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID and _has_tables(connection):
        raise JournalUnavailableError(
            f"{name} is a database of another program and was left as it is; name another file for the journal"
        )
    if version > settings.version:
        raise JournalVersionError(
            f"the journal {name} has schema version {version}, and this satay knows versions up to "
            f"{settings.version}; it was written by a newer satay, so update this one"
        )
    return version


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _migrate(connection: sqlite3.Connection, settings: SqliteSettings, deadline: float) -> None:
    begin(connection, deadline)
    try:
        # Read again: another process may have migrated while this one waited for the lock.
        for script in settings.migrations[_read_version(connection, settings) :]:
            for statement in script:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {settings.version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _enable_wal(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Switch to WAL; the file remembers it."""
    mode: str = wait_for_lock(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], deadline)
    if mode != "wal":
        raise JournalUnavailableError(
            f"the file system of {str(path)!r} cannot hold a write-ahead log (SQLite answered {mode!r}); "
            "keep the journal on a local disk"
        )
