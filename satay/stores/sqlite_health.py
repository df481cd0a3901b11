"""How a SQLite journal is: its size, its integrity, and the disk it is on."""

import shutil
import sqlite3
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from satay.journal import StoreHealth
from satay.model import EXPERIMENT_WORKFLOW

MAX_PROBLEMS: Final = 20
"""The most problems that a check of the database lists."""

_COUNT_RUNS: Final = f"SELECT status, count(*) FROM runs WHERE workflow <> '{EXPERIMENT_WORKFLOW}' GROUP BY status"


def store_health(connection: sqlite3.Connection, path: Path) -> StoreHealth:
    """Check the whole database and measure its files."""
    runs = Counter(dict(connection.execute(_COUNT_RUNS).fetchall()))
    (pending,) = connection.execute("SELECT count(*) FROM inbox WHERE is_taken = 0").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return StoreHealth(
        place=str(path),
        schema_version=version,
        size_bytes=path.stat().st_size,
        log_bytes=_log_bytes(path),
        free_bytes=shutil.disk_usage(path.parent).free,
        runs=runs,
        pending=pending,
        problems=_problems(connection),
    )


def _problems(connection: sqlite3.Connection) -> tuple[str, ...]:
    try:
        found = [text for (text,) in connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return (str(error),)  # A page that cannot be read at all ends the check.
    return () if found == ["ok"] else tuple(found)


def _log_bytes(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.with_name(f"{path.name}-wal").stat().st_size
    return 0
