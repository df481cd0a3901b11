"""What only the SQLite store promises: how files are opened, what goes wrong with them, and what an entry costs."""

import asyncio
import gc
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from satay.errors import (
    InvalidValueError,
    JournalBusyError,
    JournalConflictError,
    JournalCorruptError,
    JournalError,
    JournalUnavailableError,
    JournalVersionError,
    PayloadTooLargeError,
)
from satay.journal import GENESIS, Append, Lease, NewRun, Owner, RunQuery, chain_digest
from satay.model import Entry, RunStatus
from satay.stores.sqlite import SqliteJournal, open_sqlite, open_sqlite_for_reading
from satay.stores.sqlite_schema import MIGRATIONS
from tests.patience import patience
from tests.test_journal import FIRST, T0, anyio_backend, blob, create, entries, new_fork, record, seqs

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[SqliteJournal]:
    journal = await open_sqlite(path, busy_timeout_seconds=0.05)
    yield journal
    await journal.close()


def listing(path: Path) -> list[Path]:
    return list(path.iterdir())


def content(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def make_directory(path: Path) -> None:
    path.mkdir()


def run_script(script: str, *flags: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *flags, "-c", script], cwd=ROOT, capture_output=True, text=True, **({"timeout": 60} | options)
    )


# --- opening ----------------------------------------------------------------------------------------------------------


async def test_the_directory_and_the_file_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "j #1?x=%20 ü.db"

    journal = await open_sqlite(str(path))
    await create(journal)
    await journal.close()

    assert [path] == listing(path.parent)


async def test_a_file_is_kept_as_a_write_ahead_log_with_full_synchronisation(path: Path) -> None:
    journal = await open_sqlite(path)
    normal = await open_sqlite(path, synchronous="NORMAL")

    found = [await _pragma(each, name) for each in (journal, normal) for name in ("journal_mode", "synchronous")]
    await journal.close()
    await normal.close()

    assert ["wal", 2, "wal", 1] == found


async def _pragma(journal: SqliteJournal, text: str) -> object:
    """Ask or set a pragma of the writer's connection, which no public call can."""
    writer = journal._writer
    return await writer.run(lambda: writer.connected().execute(f"PRAGMA {text}").fetchone()[0])


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (":memory:", {}),
        ("a\0b", {}),
        ("j.db", {"synchronous": "OFF"}),
        ("j.db", {"busy_timeout_seconds": -1.0}),
        ("j.db", {"busy_timeout_seconds": float("nan")}),
        ("j.db", {"busy_timeout_seconds": float("inf")}),
    ],
)
async def test_settings_that_no_file_could_honour_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidValueError):
        await open_sqlite(path, **options)

    assert [] == listing(tmp_path)


async def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(path: Path) -> None:
    await (await open_sqlite(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    before = content(path)

    with pytest.raises(JournalVersionError, match=f"version {len(MIGRATIONS) + 1}.*newer satay"):
        await open_sqlite(path)

    assert before == content(path)


async def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = content(path)

    with pytest.raises(JournalUnavailableError, match="another program"):
        await open_sqlite(path)

    assert before == content(path)


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    write(path, b"dear diary, " * 1000)

    with pytest.raises(JournalUnavailableError, match="not a SQLite database"):
        await open_sqlite(path)

    assert content(path).startswith(b"dear diary")


@pytest.mark.parametrize("open_file", [open_sqlite, open_sqlite_for_reading])
@pytest.mark.parametrize("size", [1, 15, 16, 100, 511, 512, 4095])
@pytest.mark.parametrize("beginning", ["of a journal", "of something else"])
async def test_a_file_that_is_cut_off_is_never_taken_for_an_empty_one(
    path: Path, size: int, beginning: str, open_file: Callable[[Path], Awaitable[Any]]
) -> None:
    await create(journal := await open_sqlite(path))
    await journal.close()
    kept = content(path)[:size] if beginning == "of a journal" else b"!" * size
    write(path, kept)

    with pytest.raises(JournalError, match=r"(cannot be used: it is not a SQLite database|is damaged)"):
        await open_file(path)

    assert kept == content(path)


@pytest.mark.parametrize("open_file", [open_sqlite, open_sqlite_for_reading])
async def test_an_empty_file_whose_log_is_there_is_not_taken_for_a_new_one(
    path: Path, open_file: Callable[[Path], Awaitable[Any]]
) -> None:
    journal = await open_sqlite(path)
    await create(journal)
    log = path.with_name("journal.db-wal")
    written = content(log)
    await journal.close()
    write(path, b"")
    write(log, written)

    with pytest.raises(JournalUnavailableError, match=r"is empty, and its log .* is not; restore it from a copy"):
        await open_file(path)

    assert (b"", written) == (content(path), content(log))


async def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    write(path, b"")

    journal = await open_sqlite(path)
    await create(journal)
    await journal.close()

    assert len(content(path)) > 0


async def test_a_directory_in_place_of_the_file_is_refused(path: Path) -> None:
    make_directory(path)

    with pytest.raises(JournalUnavailableError, match=r"journal\.db.*cannot be opened"):
        await open_sqlite(path)


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(JournalUnavailableError, match=r"cannot be used: .*name a file"):
        await open_sqlite(tmp_path / "file" / "journal.db")


@pytest.fixture
def unowned_directory() -> Iterator[Path]:
    """A directory that every user can enter, unlike `tmp_path`: the child gives up its rights."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


def make_read_only(directory: Path) -> None:
    for path in directory.iterdir():
        path.chmod(0o444)
    directory.chmod(0o555)


UNPRIVILEGED = """
import asyncio, os, sys
import urllib.parse  # pathlib of Python 3.13 imports it late, and an unprivileged user may not read the library
from satay.errors import JournalUnavailableError
from satay.stores.sqlite import open_sqlite
if os.geteuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(open_sqlite(os.environ["JOURNAL"]))
except JournalUnavailableError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX")
@pytest.mark.parametrize("exists", [True, False])
async def test_a_directory_without_the_right_to_write_is_refused(unowned_directory: Path, exists: bool) -> None:
    path = unowned_directory / "journal.db"
    if exists:
        await (await open_sqlite(path)).close()
    make_read_only(unowned_directory)

    result = run_script(UNPRIVILEGED, env={**os.environ, "JOURNAL": str(path)})

    assert "" == result.stderr
    assert "journal.db" in result.stdout
    assert "this user" in result.stdout


async def test_many_openings_of_a_new_file_set_it_up_once(path: Path) -> None:
    journals = await asyncio.gather(*(open_sqlite(path) for _ in range(8)))
    for n, journal in enumerate(journals):
        await create(journal, f"r{n}")

    assert 8 == len(await journals[0].runs(RunQuery()))
    for journal in journals:
        await journal.close()


async def test_an_opening_that_fails_leaves_no_thread(path: Path) -> None:
    make_directory(path)
    before = set(threading.enumerate())

    with pytest.raises(JournalUnavailableError):
        await open_sqlite(path)

    assert before == set(threading.enumerate())


# --- damage -----------------------------------------------------------------------------------------------------------


async def test_a_damaged_file_is_an_error_of_satays(path: Path) -> None:
    journal = await open_sqlite(path)
    await journal.create(NewRun("r1", "w", T0, "o", "v"), [FIRST, *entries(2, 2000)])
    await journal.close()
    sound = content(path)
    write(path, sound[: 4096 * 4] + os.urandom(len(sound) - 4096 * 4))

    damaged = await open_sqlite(path)
    with pytest.raises(JournalCorruptError, match=r"journal\.db.*restore"):
        await damaged.read("r1")
    await damaged.close()


@pytest.mark.parametrize("text", ["ab" * 10_000, "short"])
@pytest.mark.parametrize("damage", [b"?", b"", b"x\x9c garbage", "text", 7])
async def test_a_damaged_blob_is_named(journal: SqliteJournal, path: Path, text: str, damage: object) -> None:
    kept = blob(text)
    await journal.create(NewRun("r1", "w", T0, "o", "v"), [FIRST], [kept])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE blobs SET data = ?", (damage,))
    connection.close()

    with pytest.raises(JournalCorruptError, match=kept.sha256):
        await journal.blobs([kept.sha256])


async def test_text_that_is_not_unicode_is_damage_and_is_seen_no_longer_than_it_is_there(
    journal: SqliteJournal, path: Path
) -> None:
    await journal.create(NewRun("r1", "w", T0, "o", "v"), [FIRST, *entries(2, 3)])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET payload = CAST(x'ff' AS TEXT) WHERE seq = 2")
    with pytest.raises(JournalCorruptError, match="not valid UTF-8"):
        await journal.read("r1")
    with connection:
        connection.execute("UPDATE events SET payload = '{}' WHERE seq = 2")
    connection.close()

    assert [1, 2, 3, 4] == await seqs(journal)


async def test_a_prefix_that_lacks_an_entry_is_not_inherited_and_its_neighbours_are(
    journal: SqliteJournal, path: Path
) -> None:
    history = [FIRST, *entries(2, 9)]
    await journal.create(NewRun("r1", "w", T0, "o", "v"), history)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM events WHERE seq = 4")
    connection.close()
    forks = [new_fork(history, through, f"f{through}") for through in (3, 6, 4, 1)]
    made = await asyncio.gather(*map(journal.fork, forks), return_exceptions=True)

    assert [Lease, JournalCorruptError, JournalConflictError, Lease] == [type(one) for one in made]
    assert "run 'r1' cannot be forked: its entry 4 is missing" == str(made[1])
    assert ["f1", "f3", "r1"] == sorted(run.run_id for run in await journal.runs(RunQuery()))


async def test_a_status_that_no_run_can_have_is_damage(journal: SqliteJournal, path: Path) -> None:
    await journal.create(NewRun("r1", "w", T0, "o", "v"), [FIRST])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET status = 'lost'")
    connection.close()

    with pytest.raises(JournalCorruptError, match="run 'r1' has the status 'lost'"):
        await journal.record("r1")


# --- a file that is taken away ----------------------------------------------------------------------------------------


def remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def move_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def put_file_in_place_of_directory(path: Path) -> None:
    move_directory(path)
    path.parent.touch()


def replace_file(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


@pytest.fixture
def moving_path(tmp_path: Path) -> Path:
    return tmp_path / "place" / "journal.db"


@pytest.mark.skipif(sys.platform == "win32", reason="what is open cannot be taken away")
@pytest.mark.parametrize("take_away", [Path.unlink, remove_directory, move_directory, put_file_in_place_of_directory])
async def test_nothing_is_written_to_a_file_that_was_deleted_or_moved(
    moving_path: Path, take_away: Callable[[Path], None]
) -> None:
    journal = await open_sqlite(moving_path)
    lease = await create(journal)
    take_away(moving_path)

    said = re.escape(f"the journal {str(moving_path)!r} was deleted or moved")
    with pytest.raises(JournalUnavailableError, match=said):
        await journal.append(Append(lease, entries(), T0))
    with pytest.raises(JournalUnavailableError, match=said):
        await create(journal, "r2")
    with pytest.raises(JournalUnavailableError, match=said):
        await journal.heartbeat(Owner("o", "here", 1, "", T0))
    await journal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="what is open cannot be replaced")
async def test_nothing_is_written_to_a_file_that_was_replaced_by_another(moving_path: Path) -> None:
    journal = await open_sqlite(moving_path)
    lease = await create(journal)
    replace_file(moving_path)

    with pytest.raises(JournalUnavailableError, match="another file has taken the place of the journal"):
        await journal.append(Append(lease, entries(), T0))
    await journal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="what is open cannot be moved")
async def test_a_file_that_is_put_back_is_written_again(moving_path: Path) -> None:
    journal = await open_sqlite(moving_path)
    lease = await create(journal)
    move_directory(moving_path)
    with pytest.raises(JournalUnavailableError):
        await journal.append(Append(lease, entries(), T0))
    moving_path.parent.with_name("moved").rename(moving_path.parent)
    await journal.append(Append(lease, entries(), T0))
    await journal.close()

    journal = await open_sqlite(moving_path)
    found = await seqs(journal)
    await journal.close()

    assert [1, 2] == found


async def test_a_journal_with_a_relative_path_is_the_same_file_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    journal = await open_sqlite("journal.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    lease = await create(journal)
    await journal.append(Append(lease, entries(), T0))
    found = await seqs(journal)
    await journal.close()

    assert [1, 2] == found
    assert [] == listing(tmp_path / "elsewhere")


# --- full, locked -----------------------------------------------------------------------------------------------------


async def test_a_full_disk_loses_nothing_and_is_survived(journal: SqliteJournal) -> None:
    lease, other = await create(journal), await create(journal, "r2")
    await _pragma(journal, f"max_page_count = {await _pragma(journal, 'page_count')}")
    large = [entries(2)[0]._replace(payload="x" * 100_000)]
    before = await record(journal)

    outcomes = await asyncio.gather(
        journal.append(Append(lease, large, T0 + 1, RunStatus.COMPLETED)),
        journal.append(Append(other, entries(2), T0)),
        journal.append(Append(lease, entries(3), T0)),
        return_exceptions=True,
    )
    with pytest.raises(JournalUnavailableError, match="full; make room"):
        await journal.append(Append(lease, large, T0))
    unchanged = await record(journal)
    await _pragma(journal, "max_page_count = 1000000")
    await journal.append(Append(lease, large, T0))

    assert isinstance(outcomes[0], JournalUnavailableError)
    assert outcomes[1] is None
    assert isinstance(outcomes[2], JournalError)
    assert before == unchanged
    assert [1, 2] == await seqs(journal) == await seqs(journal, "r2")


FILL_THE_DISK = """
import asyncio, os, resource
from tests.test_journal import *
async def main():
    journal = await open_sqlite(os.environ["JOURNAL"])
    lease = await create(journal)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    seq = 2
    try:
        while True:
            await journal.append(Append(lease, [entries(seq)[0]._replace(payload="x" * 20_000)], T0))
            seq += 1
    except Exception as error:
        print(type(error).__name__, error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await journal.append(Append(lease, entries(seq), T0))
    assert list(range(1, seq + 1)) == await seqs(journal)
    await journal.close()
    journal = await open_sqlite(os.environ["JOURNAL"])
    assert list(range(1, seq + 1)) == await seqs(journal)
    await journal.close()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX")
async def test_a_write_that_the_system_cuts_short_loses_nothing_and_is_survived(path: Path) -> None:
    result = run_script(FILL_THE_DISK, env={**os.environ, "JOURNAL": str(path)})

    assert "" == result.stderr
    assert result.stdout.startswith("JournalUnavailableError")


def lock(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_a_file_that_stays_locked_is_an_error_that_names_who_may_hold_it(
    journal: SqliteJournal, path: Path
) -> None:
    lease = await create(journal)
    await journal.heartbeat(Owner("them", "elsewhere", os.getpid() + 1, "boot", T0))
    await journal.heartbeat(Owner("us", "here", os.getpid(), "boot", T0))
    holder = lock(path)

    with pytest.raises(JournalBusyError, match=rf"0\.05 s.*'them' \(process {os.getpid() + 1} on elsewhere\)") as busy:
        await journal.append(Append(lease, entries(), T0))
    holder.close()
    await journal.append(Append(lease, entries(), T0))

    assert "'us'" not in str(busy.value)
    assert [1, 2] == await seqs(journal)


async def test_all_who_wait_for_one_lock_hear_of_it_after_one_timeout(journal: SqliteJournal, path: Path) -> None:
    leases = [await create(journal, f"r{n}") for n in range(100)]
    holder = lock(path)

    # One goes first, and the others share the second transaction: two timeouts, not a hundred.
    async with asyncio.timeout(2):
        outcomes = await asyncio.gather(
            *(journal.append(Append(lease, entries(), T0)) for lease in leases), return_exceptions=True
        )
    holder.close()

    assert {JournalBusyError} == {type(outcome) for outcome in outcomes}
    assert 100 == len({id(outcome) for outcome in outcomes})


async def test_a_lock_that_is_given_back_in_time_is_waited_for(path: Path) -> None:
    journal = await open_sqlite(path)
    lease = await create(journal)
    holder = lock(path)

    waiting = journal.append(Append(lease, entries(), T0))
    await journal.read("r1")
    holder.execute("ROLLBACK")
    holder.close()
    await waiting

    assert [1, 2] == await seqs(journal)
    await journal.close()


async def test_readers_do_not_wait_for_the_lock(journal: SqliteJournal, path: Path) -> None:
    await create(journal)
    holder = lock(path)

    assert [1] == await seqs(journal)
    holder.close()


async def test_a_caller_that_is_cancelled_while_the_file_is_locked_leaves_no_transaction(path: Path) -> None:
    journal = await open_sqlite(path)
    lease = await create(journal)
    holder = lock(path)

    waiting = asyncio.ensure_future(journal.append(Append(lease, entries(), T0)))
    waiting.cancel()
    await asyncio.wait([waiting])
    holder.close()
    await journal.append(Append(lease, entries(3), T0))
    lock(path).close()

    assert [1, 2, 3] == await seqs(journal)
    await journal.close()


async def test_a_value_beyond_the_limits_of_sqlite_is_refused(journal: SqliteJournal) -> None:
    lease = await create(journal)
    writer = journal._writer
    await writer.run(lambda: writer.connected().setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000))

    with pytest.raises(PayloadTooLargeError):
        await journal.append(Append(lease, [entries()[0]._replace(payload="x" * 20_000)], T0))

    assert [1] == await seqs(journal)


odd: Any = Entry
odd_none: Any = None


@pytest.mark.parametrize(
    "call",
    [
        lambda journal, lease: journal.append(Append(lease, [odd(2, "t", T0, None, b"")], T0)),
        lambda journal, lease: journal.append(Append(lease, [odd(2, "t", T0, {}, b"")], T0)),
        lambda journal, _: journal.create(NewRun("r2", odd_none, T0, "o", "v"), [FIRST]),
        lambda journal, _: journal.post("r1", None, None, None, "1", T0),
        lambda journal, _: journal.record(object()),
    ],
)
async def test_a_value_of_a_wrong_type_is_an_error_of_satays(
    journal: SqliteJournal, call: Callable[[SqliteJournal, Lease], Awaitable[object]]
) -> None:
    lease = await create(journal)

    with pytest.raises(InvalidValueError):
        await call(journal, lease)

    assert [1] == await seqs(journal)


async def test_an_error_that_is_not_foreseen_reaches_the_caller_and_harms_nobody(journal: SqliteJournal) -> None:
    lease, other = await create(journal), await create(journal, "r2")
    broken: Any = [object()]

    outcomes = await asyncio.gather(
        journal.append(Append(other, entries(2), T0)),
        journal.append(Append(lease, broken, T0)),
        journal.append(Append(other, entries(3), T0)),
        return_exceptions=True,
    )

    assert [type(None), AttributeError, type(None)] == [type(outcome) for outcome in outcomes]
    assert [1, 2, 3] == await seqs(journal, "r2")


# --- the end of a process ---------------------------------------------------------------------------------------------

FORGET = """
import asyncio
from tests.test_journal import *
async def main():
    journal = await open_sqlite({path!r})
    lease = await create(journal)
    await journal.read("r1")
    {ending}
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", ["pass", "journal.append(Append(lease, entries(), T0))", "global kept; kept = journal", "del journal"]
)
async def test_a_journal_that_is_forgotten_is_closed_without_a_word(path: Path, ending: str) -> None:
    result = run_script(FORGET.format(path=str(path), ending=ending), "-W", "error", "-X", "dev")

    assert ("", 0) == (result.stderr, result.returncode)
    journal = await open_sqlite(path)
    assert await seqs(journal) in ([1], [1, 2])
    await journal.close()


WAIT_FOR_LOCK = """
import asyncio, os, sys
from tests.test_journal import *
async def main():
    journal = await open_sqlite(os.environ["JOURNAL"], busy_timeout_seconds=3600.0)
    creating = journal.create(new_run(), [FIRST])
    await journal.read("r1")
    sys.exit(7)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_process_that_waits_for_a_lock_can_end(path: Path) -> None:
    await (await open_sqlite(path)).close()
    holder = lock(path)

    result = run_script(WAIT_FOR_LOCK, env={**os.environ, "JOURNAL": str(path)}, timeout=patience(10.0))
    holder.close()

    assert ("", 7) == (result.stderr, result.returncode)


async def test_a_journal_that_nobody_holds_any_more_ends_its_threads(path: Path) -> None:
    before = set(threading.enumerate())
    journal = await open_sqlite(path)
    await create(journal)
    await journal.read("r1")
    threads = set(threading.enumerate()) - before

    del journal
    gc.collect()
    for thread in threads:
        thread.join(patience(10.0))

    assert 2 == len(threads)
    assert not any(thread.is_alive() for thread in threads)


# --- costs ------------------------------------------------------------------------------------------------------------


async def test_a_blob_that_shrinks_is_kept_small_and_one_that_does_not_as_it_is(
    journal: SqliteJournal, path: Path
) -> None:
    small, large = blob("draft " * 50_000), blob(os.urandom(50_000).hex())

    await journal.create(NewRun("r1", "w", T0, "o", "v"), [FIRST], [small, large, small])

    with sqlite3.connect(path) as connection:
        sizes = dict(connection.execute("SELECT lower(hex(sha256)), length(data) FROM blobs"))
    connection.close()
    assert len(small.text) > 20 * sizes[small.sha256]
    assert 100_000 == sizes[large.sha256]
    assert 2 == len(sizes)


@pytest.mark.slow
async def test_a_sequential_call_takes_about_250_bytes(path: Path) -> None:
    journal = await open_sqlite(path)
    lease = await create(journal)
    await journal.close()
    before = len(content(path))
    journal = await open_sqlite(path)
    payloads = ('{"task":"draft","index":12,"input":{"page":12,"lang":"en"}}', '{"call":12,"result":"ok-12"}')
    previous = GENESIS
    for n in range(1000):
        turn = []
        for seq, (type, payload) in enumerate(
            zip(("TaskScheduled", "TaskCompleted"), payloads, strict=True), 2 + 2 * n
        ):
            previous = chain_digest(previous, type, T0 + seq, payload)
            turn.append(Entry(seq, type, T0 + seq, payload, previous))
        await journal.append(Append(lease, turn, T0))

    await journal.close()

    assert (len(content(path)) - before) / 1000 < 260


async def test_no_question_of_the_scheduler_reads_every_run(journal: SqliteJournal, path: Path) -> None:
    await create(journal)
    seen_run = (await record(journal))._replace(wake_at=T0)
    seen: list[str] = []
    reader = journal._reader
    await journal.owners()
    await reader.run(lambda: reader.connected().set_trace_callback(seen.append))
    await journal.due(T0, None, 10)
    await journal.due(T0, "o1", 10)
    await journal.next_wake(None)
    await journal.next_wake("o1")
    await journal.abandoned(T0, 10)
    await journal.due(T0, None, 10, seen_run)
    await journal.due(T0, "o1", 10, seen_run)
    await journal.abandoned(T0, 10, seen_run)
    await journal.first_pages(["r1", "r2"])
    await journal.runs(RunQuery(status=RunStatus.RUNNING))
    await journal.runs(RunQuery(forked_from="r1"))
    await journal.runs(RunQuery(parent_id="r1"))
    await journal.started("k")
    await journal.record("r1")
    await journal.messages("r1")
    await journal.waits("r1")
    await journal.read("r1")

    with sqlite3.connect(path) as connection:
        plans = {sql: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")] for sql in seen}
    connection.close()
    assert len(plans) > 10
    assert {} == {sql: plan for sql, plan in plans.items() if any(step.startswith("SCAN") for step in plan)}
