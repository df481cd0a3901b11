"""A journal that cannot be used, and requests that cannot be met: one clear error each, nothing half-written."""

import asyncio
import functools
import os
import random
import shutil
import sqlite3
import subprocess
import textwrap
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from satay.errors import (
    EncodeError,
    ForkValidationError,
    InvalidValueError,
    JournalCorruptError,
    JournalError,
    JournalUnavailableError,
    JournalVersionError,
    RunNotFoundError,
    UnknownWorkflowError,
    UsageError,
)
from satay.journal import chain_digest
from tests.programs.starting import Program
from tests.test_invariants import History

DATABASE: Final = "satay.db"


@satay.task(name="disks.add")
async def add(number: int) -> int:
    return number + 1


@satay.task(name="disks.grow")
async def grow(size: int) -> str:
    return "x" * size


@satay.workflow(name="disks.quick")
async def quick(number: int) -> int:
    return await add(await add(number))


@satay.workflow(name="disks.growing")
async def growing(times: int) -> int:
    return sum([len(await grow(4_000)) for _ in range(times)])


def in_app(place: Path, work: Callable[[satay.App], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Do something in an app, within bounds of time."""

    async def main() -> None:
        async with asyncio.timeout(30), satay.run_app(data_dir=place, **options) as app:
            await work(app)

    asyncio.run(main())


async def make_a_run(app: satay.App) -> None:
    assert 3 == await app.start(quick, 1, run_id="there").result()


async def nothing(app: satay.App) -> None:
    pass


def change(place: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(place / DATABASE, isolation_level=None)) as connection:
        connection.execute(statement, values)


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}


def rows(place: Path) -> list[Any]:
    with closing(sqlite3.connect(place / DATABASE)) as connection:
        return [
            row
            for table in ("runs", "events", "inbox", "waits")
            for row in connection.execute(f"SELECT * FROM {table}")
        ]


def check_whole(place: Path) -> None:
    """The file is sound, and every journal in it is numbered and chained without a gap."""
    with closing(sqlite3.connect(place / DATABASE)) as connection:
        assert [("ok",)] == connection.execute("PRAGMA integrity_check").fetchall()
    for run_id, entries in History.of(place).entries.items():
        assert list(range(1, len(entries) + 1)) == [entry.seq for entry in entries], run_id
        for before, entry in pairwise(entries):
            assert chain_digest(before.digest, entry.type, entry.at, entry.payload) == entry.digest, (run_id, entry)


# --- files that are no journal ----------------------------------------------------------------------------------------


def refused(place: Path, kind: type[JournalError], match: str) -> None:
    """Opening is refused, twice with the same words, and nothing is changed."""
    before = contents(place)
    for _ in range(2):
        with pytest.raises(kind, match=match):
            in_app(place, nothing)
    after = contents(place)

    assert before[DATABASE] == after[DATABASE]
    assert set(after) <= set(before) | {f"{DATABASE}-wal", f"{DATABASE}-shm"}


@pytest.mark.parametrize("size", [20, 100, 5_000])
def test_a_file_of_garbage_is_left_as_it_is(size: int, tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(random.Random(size).randbytes(size))
    refused(tmp_path, JournalUnavailableError, "is not a SQLite database and was left as it is; name another file")


def test_the_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    change(tmp_path, "CREATE TABLE customers (name TEXT)")
    refused(tmp_path, JournalUnavailableError, "is a database of another program and was left as it is")


def test_a_journal_of_a_newer_satay_is_left_as_it_is(tmp_path: Path) -> None:
    in_app(tmp_path, make_a_run)
    change(tmp_path, "PRAGMA user_version = 99")
    refused(tmp_path, JournalVersionError, r"has schema version 99, .* written by a newer satay, so update this one")


def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    (tmp_path / DATABASE).touch()
    in_app(tmp_path, make_a_run)
    check_whole(tmp_path)


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(JournalUnavailableError, match=r"cannot be used: .*name a file in a directory"):
            in_app(place, nothing)


def test_a_journal_that_is_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / DATABASE).mkdir()
    with pytest.raises(JournalUnavailableError, match="cannot be opened; check that it is a file"):
        in_app(tmp_path, nothing)


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_truncated_file_is_reported_as_damaged(kept: float, tmp_path: Path) -> None:
    in_app(tmp_path, make_a_run)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file = tmp_path / DATABASE
    os.truncate(file, int(file.stat().st_size * kept))

    async def use(app: satay.App) -> None:
        await app.runs()
        await app.resume("there").result()
        await app.start(quick, 1).result()

    with pytest.raises(JournalCorruptError, match=r"is damaged .*; restore it from a copy"):
        in_app(tmp_path, use)


def test_an_entry_that_is_damaged_is_reported_and_the_app_goes_on(tmp_path: Path) -> None:
    in_app(tmp_path, make_a_run)
    change(tmp_path, "UPDATE events SET payload = 'nonsense' WHERE type = 'WorkflowCompleted'")

    async def use(app: satay.App) -> None:
        with pytest.raises(JournalCorruptError, match=r"entry 6 \(WorkflowCompleted\) is not valid JSON"):
            await app.resume("there").result()
        assert 4 == await app.start(quick, 2).result()

    in_app(tmp_path, use)


@pytest.mark.parametrize("ask", ["drive", "fork", "compare", "events", "result"])
@pytest.mark.parametrize("damage", ["nonsense", "[]"])
def test_an_entry_that_is_damaged_is_told_with_its_number_and_the_run(ask: str, damage: str, tmp_path: Path) -> None:
    in_app(tmp_path, make_a_run)
    damaged = {"drive": "WorkflowCreated", "result": "WorkflowCompleted"}.get(ask, "TaskScheduled")
    change(tmp_path, f"UPDATE events SET payload = '{damage}' WHERE type = '{damaged}'")
    if ask == "drive":
        change(tmp_path, "DELETE FROM events WHERE type = 'WorkflowCompleted'")
        change(tmp_path, "UPDATE runs SET status = 'running', owner = NULL")

    async def use(app: satay.App) -> None:
        if ask in ("drive", "result"):
            await app.resume("there").result()
        elif ask == "fork":
            await app.fork("there", before_task="disks.add")
        elif ask == "compare":
            await app.compare("there", "there")
        else:
            [event async for event in app.events("there")]

    with pytest.raises(
        JournalCorruptError, match=rf"run 'there' cannot be read: entry \d \({damaged}\) is not"
    ) as caught:
        in_app(tmp_path, use)
    assert ("there", {"WorkflowCreated": 1, "WorkflowCompleted": 6}.get(damaged, 2)) == (
        caught.value.run_id,
        caught.value.seq,
    )


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET payload = 'nonsense' WHERE seq = 1",
        "UPDATE events SET payload = 'nonsense' WHERE seq = 2",
        "UPDATE events SET payload = '[]' WHERE seq = 3",
        "DELETE FROM events WHERE seq = 1",
        "DELETE FROM events WHERE seq = 3",
        "DELETE FROM events",
        "UPDATE events SET type = 'FromTheFuture' WHERE seq = 3",
    ],
)
def test_a_run_with_a_damaged_journal_stops_with_an_error_and_the_app_goes_on(damage: str, tmp_path: Path) -> None:
    in_app(tmp_path, make_a_run)
    change(tmp_path, "DELETE FROM events WHERE type = 'WorkflowCompleted'")
    change(tmp_path, "UPDATE runs SET status = 'running', owner = NULL")
    change(tmp_path, damage)
    before = rows(tmp_path)[1:]

    async def use(app: satay.App) -> None:
        with pytest.raises(satay.SatayError, match=r"'there'|'FromTheFuture'|entry \d"):
            await app.resume("there").result()
        await make_another_run(app)

    in_app(tmp_path, use)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute("DELETE FROM events WHERE run = (SELECT key FROM runs WHERE run_id = 'other')")
        connection.execute("DELETE FROM runs WHERE run_id = 'other'")
        connection.commit()

    assert before == rows(tmp_path)[1:]


async def make_another_run(app: satay.App) -> None:
    assert 4 == await app.start(quick, 2, run_id="other").result()


# --- disks that are full, or cannot be written ------------------------------------------------------------------------


@functools.cache
def namespace() -> tuple[str, ...]:
    """The words that run a command where it may mount, or none where this system does not allow that."""
    for words in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
        if shutil.which("unshare") and 0 == subprocess.run([*words, "true"], capture_output=True).returncode:
            return words
    return ()


may_mount = pytest.mark.skipif(not namespace(), reason="this system lets nobody but root mount a disk")

PROGRAM: Final = """
import asyncio, resource, sys
from pathlib import Path
import satay
from tests.test_failing_disks import *

place = Path(sys.argv[1])
"""


def run_program(source: str, place: Path, *mount: str) -> str:
    """Run a program in which `place` is mounted as told; answers what it wrote."""
    prefix = [*namespace(), "sh", "-c", f'{" ".join(mount)} && exec "$@"', "sh"] if mount else []
    with Program(["-c", PROGRAM + textwrap.dedent(source), place], prefix=prefix) as program:
        ended = program.end()

        assert 0 == ended.status, ended
        assert "Traceback" not in ended.errors, ended
    return ended.output


FILL: Final = """
    async def main(ballast):
        async with asyncio.timeout(30), satay.run_app(data_dir=place) as app:
            assert 3 == await app.start(quick, 1, run_id="before").result()
            handle = app.start(growing, 200, run_id="growing")
            try:
                await handle.result()
            except JournalUnavailableError as error:
                assert FULL in str(error), error
            else:
                raise AssertionError("the disk was not full")
            try:
                await app.start(growing, 200).result()
            except JournalUnavailableError as error:
                assert FULL in str(error), error
            assert 3 == await app.resume("before").result()
            make_room()
            assert 800_000 == await app.resume("growing").result()
            assert 4 == await app.start(quick, 2).result()
"""


@may_mount
def test_a_disk_that_is_full_stops_a_run_that_goes_on_when_there_is_room(tmp_path: Path) -> None:
    source = """
    FULL = "is full; make room, and write again"

    def make_room():
        (place / "ballast").unlink()

    for kilobytes in (250, 301, 400, 555):
        ballast = place / "ballast"
        for path in place.glob("satay.db*"):
            path.unlink()
        ballast.write_bytes(bytes(8_192_000 - kilobytes * 1024))
        asyncio.run(main(ballast))
        check_whole(place)
    """
    place = tmp_path / "place"
    place.mkdir()
    run_program(FILL + source, place, f"mount -t tmpfs -o size=8000k tmpfs '{place}'")


def test_a_file_that_may_not_grow_stops_a_run_that_goes_on_when_it_may(tmp_path: Path) -> None:
    source = """
    FULL = "check the disk, its space and its quota"
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)

    def make_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    for kilobytes in (200, 211, 400):
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, most))
        place = place / str(kilobytes)
        asyncio.run(main(None))
        check_whole(place)
    """
    run_program(FILL + source, tmp_path / "place")


@may_mount
def test_a_disk_without_room_for_a_journal_is_named(tmp_path: Path) -> None:
    source = """
    (place / "ballast").write_bytes(bytes(64 * 1024))
    try:
        in_app(place, nothing)
    except JournalUnavailableError as error:
        print(error)
    (place / "ballast").unlink()
    """
    place = tmp_path / "place"
    place.mkdir()
    output = run_program(source, place, f"mount -t tmpfs -o size=64k tmpfs '{place}'")

    assert "is full; make room, and write again" in output


@may_mount
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = """
    for directory in (place, place / "below", place / "there"):
        try:
            in_app(directory, nothing)
        except JournalUnavailableError as error:
            print(error)
    """
    place = tmp_path / "place"
    in_app(place / "there", make_a_run)
    before = contents(place / "there")
    output = run_program(source, place, f"mount --bind -o ro '{place}' '{place}'").splitlines()

    assert 3 == len(output), output
    assert "check that it is a file in a directory that this user may write" in output[0]
    assert "Read-only file system; name a file in a directory that this user may write" in output[1]
    assert "check that it is a file in a directory that this user may write" in output[2]
    assert before == contents(place / "there")


# --- requests that cannot be met --------------------------------------------------------------------------------------


@contextmanager
def nothing_is_written(place: Path) -> Iterator[None]:
    before = rows(place)
    yield

    assert before == rows(place)


async def all_events(app: satay.App, run_id: str) -> list[satay.RunEvent]:
    return [event async for event in app.events(run_id)]


REQUESTS: Final[dict[str, Callable[[satay.App, Any], Any]]] = {
    "resume": lambda app, run_id: app.resume(run_id).result(),
    "result": lambda app, run_id: app.handle(run_id).result(),
    "status": lambda app, run_id: app.handle(run_id).status(),
    "run": lambda app, run_id: app.run(run_id),
    "cancel": lambda app, run_id: app.cancel(run_id),
    "fork": lambda app, run_id: app.fork(run_id, before_task="disks.add"),
    "send_event": lambda app, run_id: app.send_event("any", run_id=run_id),
    "events": all_events,
    "receipt": lambda app, run_id: app.receipt(run_id),
    "compare": lambda app, run_id: app.compare("there", run_id),
    "compare_many": lambda app, run_id: app.compare("there", "there", run_id),
    "verify": lambda app, run_id: app.verify(run_id),
    "decide": lambda app, run_id: app.decide(run_id, "rerun"),
    "runs": lambda app, run_id: app.runs(before=run_id),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("run_id", ["nobody", "", "there "])
def test_a_run_that_is_not_there_is_named(name: str, run_id: Any, tmp_path: Path) -> None:
    async def use(app: satay.App) -> None:
        await make_a_run(app)
        with nothing_is_written(tmp_path), pytest.raises(RunNotFoundError, match=f"there is no (such )?run|{run_id!r}"):
            await REQUESTS[name](app, run_id)
        await make_another_run(app)

    in_app(tmp_path, use)


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_no_id_of_a_run_is_named(name: str, tmp_path: Path) -> None:
    async def use(app: satay.App) -> None:
        await make_a_run(app)
        with nothing_is_written(tmp_path), pytest.raises(UsageError, match="5 names no run; give the id of a run"):
            await REQUESTS[name](app, 5)
        await make_another_run(app)

    in_app(tmp_path, use)


def test_a_run_whose_workflow_is_not_imported_is_named_and_left_alone(tmp_path: Path) -> None:
    in_app(tmp_path, make_a_run)
    change(tmp_path, "DELETE FROM events WHERE type = 'WorkflowCompleted'")
    change(tmp_path, "UPDATE runs SET status = 'running', owner = NULL, workflow = 'gone'")

    async def use(app: satay.App) -> None:
        with nothing_is_written(tmp_path):
            resumed = app.resume("there").result()
            forked = app.fork("there", before_task="disks.add", allow_unfinished=True)
            for request in (resumed, forked):
                with pytest.raises(UnknownWorkflowError, match=r"'there' belongs to workflow 'gone', .* not imported"):
                    await request
            await asyncio.sleep(0.05)
        await make_another_run(app)

    in_app(tmp_path, use, recover=True, poll_seconds=0.01)


WRONG: Final[dict[str, tuple[type[Exception], str, Callable[[Any], Any]]]] = {
    "a function": (UsageError, r"functions decorated with @satay\.workflow", lambda app: app.start(make_a_run)),
    "a task": (UsageError, r"functions decorated with @satay\.workflow", lambda app: app.start(add, 1)),
    "an input of another type": (
        EncodeError,
        "'number' .* should be a valid integer",
        lambda app: app.start(quick, "x"),
    ),
    "an input without a form": (EncodeError, "'number' .* integer", lambda app: app.start(quick, object())),
    "no input": (InvalidValueError, "missing a required argument: 'number'", lambda app: app.start(quick)),
    "a run id": (InvalidValueError, "run id 5 cannot be used", lambda app: app.start(quick, 1, run_id=5)),
    "an idempotency key": (
        InvalidValueError,
        "idempotency_key is 5, which cannot be used; a key is a text",
        lambda app: app.start(quick, 1, idempotency_key=5),
    ),
    "no cut": (
        ForkValidationError,
        "pass exactly one of before_task=, .* and fork_point_seq=, and none was given",
        lambda app: app.fork("there"),
    ),
    "a task that never ran": (
        ForkValidationError,
        r"never scheduled a task named 'disk\.add'; it ran 'disks\.add'; did you mean 'disks\.add'\?",
        lambda app: app.fork("there", before_task="disk.add"),
    ),
    "what is no task": (UsageError, "before_task=5 names no task", lambda app: app.fork("there", before_task=5)),
    "a cut that is a text": (
        ForkValidationError,
        "fork_point_seq='2' is not an entry",
        lambda app: app.fork("there", fork_point_seq="2"),
    ),
    "an input of the fork": (
        EncodeError,
        "should be a valid integer",
        lambda app: app.fork("there", before_task="disks.add", workflow_input="x"),
    ),
    "a key of an event": (InvalidValueError, "a key is a text, not int", lambda app: app.send_event("any", key=5)),
    "a payload without a form": (EncodeError, "no recorded form", lambda app: app.send_event("any", object())),
    "a status": (InvalidValueError, "it must be one of 'running', 'waiting'", lambda app: app.runs(status="x")),
    "a limit": (InvalidValueError, "it must be a whole number from 1 to 1000", lambda app: app.runs(limit="1")),
    "no decision": (InvalidValueError, r'takes "rerun", "fail" or value=', lambda app: app.decide("there")),
    "nothing to decide": (UsageError, "waits for no decision", lambda app: app.decide("there", "rerun")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    kind, match, request = WRONG[name]

    async def use(app: satay.App) -> None:
        await make_a_run(app)
        with nothing_is_written(tmp_path), pytest.raises(kind, match=match):
            await request(app)
        await make_another_run(app)

    in_app(tmp_path, use)


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("lease_seconds", -1, "must be at least 0.001 seconds"),
        ("lease_seconds", float("nan"), "must be finite"),
        ("lease_seconds", "x", "must be a number of seconds"),
        ("poll_seconds", 0, "must be at least 0.001 seconds"),
        ("grace_seconds", float("inf"), "must be finite"),
        ("max_resident", -1, "must be a whole number from 0"),
        ("max_threads", 0, "must be a whole number from 1"),
        ("nondeterminism", "x", "nondeterminism is 'x': Input should be 'strict', 'warn' or 'off'"),
        ("synchronous", "OFF", "synchronous is 'OFF': Input should be 'FULL' or 'NORMAL'"),
        ("data_dir", 5, "data_dir is 5: "),
        ("url", "postgres://there", "PostgreSQL is not supported yet: it has the form sqlite:///"),
        ("url", "sqlite://", "it has the form sqlite:///"),
        ("url", "sqlite:///:memory:", "a journal is a file, and ':memory:' names none"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    option: str, value: Any, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def open_it() -> None:
        async with satay.run_app(**{option: value}):
            pass

    with pytest.raises(InvalidValueError, match=match):
        asyncio.run(open_it())
    assert [] == list(tmp_path.iterdir())


def test_a_setting_of_the_environment_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_NONDETERMINISM", "lax")
    with pytest.raises(InvalidValueError, match="nondeterminism is 'lax'"):
        satay.run_app()
