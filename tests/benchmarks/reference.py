"""The reference L: bare one-row autocommit inserts through aiosqlite, beside the journal and on its settings."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite

from satay.stores.sqlite_schema import LOG_PAGES

INSERTS = 1_000
"""How many rows one measure of L inserts."""


class Reference:
    """A table to insert into. Made by `open_reference`."""

    def __init__(self, connection: aiosqlite.Connection, inserts: int) -> None:
        self._connection = connection
        self._inserts = inserts

    async def rate(self) -> float:
        """L as it is now: inserts a second, each a transaction that is on disk before the next one begins."""
        payload = "x" * 50
        began = time.perf_counter()
        for _ in range(self._inserts):
            await self._connection.execute("INSERT INTO rows (payload) VALUES (?)", (payload,))
        return self._inserts / (time.perf_counter() - began)


@asynccontextmanager
async def open_reference(directory: Path, inserts: int = INSERTS) -> AsyncIterator[Reference]:
    """A reference in a file of its own in the directory, WAL with as long a log and synchronous=FULL like a journal."""
    async with aiosqlite.connect(directory / "reference.db", isolation_level=None) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        await connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        await connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, payload TEXT NOT NULL)")
        yield Reference(connection, inserts)
