"""The way of a SQLite file from one version of the schema to the next, with runs in it."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import JournalError, JournalVersionError
from satay.journal import Append, RunQuery
from satay.model import RunStatus
from satay.stores.sqlite import SqliteJournal, open_sqlite
from satay.stores.sqlite_schema import MIGRATIONS, SqliteSettings
from tests.driving import claim
from tests.patience import patience
from tests.programs.starting import wait_until
from tests.test_journal import create, entries

ROOT = Path(__file__).parent.parent

SECOND = (
    "ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
    "UPDATE runs SET priority = 7 WHERE status = 'waiting'",
    "CREATE TABLE lengths AS SELECT run, count(*) AS entries FROM events GROUP BY run",
)
"""A second version: a column that old rows get a value for, and a table that is made from old rows."""

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

FAILING = (*SECOND, "INSERT INTO lengths SELECT run, entries FROM no_such_table")


@satay.task(name="schema.grow")
async def grow(size: int) -> str:
    return "x" * size


@satay.workflow(name="schema.large")
async def large() -> int:
    return len(await grow(400_000))


@satay.workflow(name="schema.waiting")
async def waiting() -> Any:
    await grow(3)
    return await satay.wait_for_event("go", timeout=86_400)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of version 1 with a run that ended, its fork, one that waits, an event that nobody took, and a blob."""

    async def fill() -> None:
        async with satay.run_app(data_dir=tmp_path) as app:
            await app.start(large, run_id="large").result()
            await (await app.fork("large", before_task="schema.grow", run_id="fork")).result()
            await app.start(waiting, run_id="waiting")
            async for event in app.events("waiting"):
                if event.type == "EventWaitStarted":
                    break
            await app.send_event("other", "early", run_id="waiting")

    in_time(fill())
    return tmp_path / "satay.db"


def in_time(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(patience(30.0)):
            return await work

    return asyncio.run(bounded())


async def opened(path: Path, *later: tuple[str, ...]) -> SqliteJournal:
    """A file opened by a satay that knows further versions."""
    journal = SqliteJournal(SqliteSettings(path=path, migrations=(*MIGRATIONS, *later)))
    try:
        await journal.open()
    except BaseException:
        await journal.close()
        raise
    return journal


def migrate(path: Path, *later: tuple[str, ...]) -> None:
    async def open_and_close() -> None:
        await (await opened(path, *later)).close()

    in_time(open_and_close())


def version(path: Path) -> int:
    return int(rows(path, "PRAGMA user_version")[0][0])


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


COLUMNS = {
    "runs": "run_id, workflow, status, created_at, updated_at, wake_at, epoch, parent_id, forked_from, fork_seq",
    "events": "*",
    "inbox": "*",
    "waits": "*",
    "blobs": "*",
}


def content(path: Path) -> dict[str, list[Any]]:
    """What version 1 holds."""
    return {table: rows(path, f"SELECT {columns} FROM {table} ORDER BY 1, 2") for table, columns in COLUMNS.items()}


def layout(path: Path) -> list[Any]:
    return rows(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name")


def test_the_file_that_is_migrated_here_has_something_of_everything(path: Path) -> None:
    assert {"runs": 3, "events": 13, "inbox": 1, "waits": 1, "blobs": 1} == {
        table: len(there) for table, there in content(path).items()
    }
    assert 1 == version(path)


def test_a_migration_keeps_what_is_in_the_file_and_makes_the_new_of_it(path: Path) -> None:
    before = content(path)

    migrate(path, SECOND)

    assert 2 == version(path)
    assert before == content(path)
    assert [("fork", 0), ("large", 0), ("waiting", 7)] == rows(path, "SELECT run_id, priority FROM runs ORDER BY 1")
    assert 13 == rows(path, "SELECT sum(entries) FROM lengths")[0][0]


def test_a_journal_that_was_migrated_is_read_and_extended_as_before(path: Path) -> None:
    async def use() -> tuple[Any, ...]:
        journal = await opened(path, SECOND)
        try:
            claimed = await claim(journal, "waiting", "o2", 1 << 60)
            assert claimed is not None
            last = await journal.last("waiting")
            assert last is not None
            await journal.append(Append(claimed.lease, entries(last.seq + 1), last.at, RunStatus.WAITING))
            await create(journal, "new")
            digests = [sha256.hex() for (sha256,) in rows(path, "SELECT sha256 FROM blobs")]
            return (
                {record.run_id for record in await journal.runs(RunQuery())},
                [wait.type for wait in await journal.waits("waiting")],
                [len(text) for text in (await journal.blobs(digests)).values()],
                (await journal.read("waiting"))[-1].seq - last.seq,
            )
        finally:
            await journal.close()

    assert ({"large", "fork", "waiting", "new"}, ["go"], [400_002], 1) == in_time(use())


def test_a_new_file_goes_through_every_version(tmp_path: Path) -> None:
    migrate(tmp_path / "new.db", SECOND)

    assert 2 == version(tmp_path / "new.db")
    assert [] == rows(tmp_path / "new.db", "SELECT priority FROM runs")


def test_a_migration_is_made_once(path: Path) -> None:
    migrate(path, SECOND)
    after = layout(path)

    migrate(path, SECOND)

    assert after == layout(path)


def test_a_migration_that_fails_leaves_the_version_before_it(path: Path) -> None:
    before, layout_before = content(path), layout(path)

    with pytest.raises(JournalError, match="no_such_table"):
        migrate(path, FAILING)

    assert (1, before, layout_before) == (version(path), content(path), layout(path))
    migrate(path, SECOND)
    assert 2 == version(path)


def test_of_several_migrations_all_are_made_or_none(path: Path) -> None:
    before, layout_before = content(path), layout(path)

    with pytest.raises(JournalError, match="no_such_table"):
        migrate(path, SECOND, ("DROP TABLE waits", "DROP TABLE no_such_table"))

    assert (1, before, layout_before) == (version(path), content(path), layout(path))


def test_an_older_satay_refuses_a_file_that_was_migrated_and_leaves_it_as_it_is(path: Path) -> None:
    migrate(path, SECOND)
    before = path.read_bytes()

    with pytest.raises(JournalVersionError, match=r"has schema version 2, and this satay knows versions up to 1"):
        in_time(open_sqlite(path))

    assert before == path.read_bytes()


MIGRATE = """
import asyncio, sys
from pathlib import Path
from tests.test_stores_sqlite_schema import migrate
print("opens", flush=True)
migrate(Path(sys.argv[1]), tuple(sys.argv[2:]))
"""


def start_migrating(path: Path, script: tuple[str, ...]) -> "subprocess.Popen[str]":
    """A process that opens the file and migrates it; it is about to when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-c", MIGRATE, str(path), *script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "opens\n" == process.stdout.readline()
    return process


def is_locked(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_process_that_is_killed_within_a_migration_leaves_the_version_before_it(path: Path) -> None:
    before, layout_before = content(path), layout(path)
    # So small a cache is written to the log before the end of the transaction.
    spilling = ("PRAGMA cache_size = 1", *SECOND, "UPDATE events SET payload = payload || ' '", ENDLESS)
    process = start_migrating(path, spilling)
    log = path.with_name(path.name + "-wal")
    wait_until(lambda: log.exists() and log.stat().st_size > 0 and is_locked(path))

    os.kill(process.pid, signal.SIGKILL)

    assert -signal.SIGKILL == finish(process)
    assert (1, before, layout_before) == (version(path), content(path), layout(path))
    migrate(path, SECOND)
    assert (2, before) == (version(path), content(path))


@pytest.mark.slow
def test_processes_that_open_one_file_at_once_migrate_it_once(path: Path) -> None:
    before = content(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # So that each of them looks at the version before one can migrate.
        processes = [start_migrating(path, SECOND) for _ in range(4)]
        connection.execute("ROLLBACK")

    assert [0, 0, 0, 0] == [finish(process) for process in processes]
    assert (2, before) == (version(path), content(path))
    assert [("fork", 0), ("large", 0), ("waiting", 7)] == rows(path, "SELECT run_id, priority FROM runs ORDER BY 1")


def finish(process: "subprocess.Popen[str]") -> int:
    with process:
        return process.wait(timeout=patience(60.0))
