"""What a check-up of a journal finds."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.clock import MICROSECONDS
from satay.errors import InvalidValueError, JournalNotFoundError
from satay.health import HealthReport, check_health
from satay.journal import RunQuery
from satay.processes import left_behind
from satay.readers import open_reader
from satay.settings import Settings
from satay.stores.locations import DATABASE_FILE
from satay.testing import ManualClock, abandon, open_app, pause, settle
from tests.driving import in_loop


@satay.task(name="health.hang")
async def hang() -> None:
    await pause(math.inf)


@satay.workflow(name="health.working")
async def working() -> None:
    await hang()


@satay.workflow(name="health.sleeping")
async def sleeping() -> None:
    await satay.sleep(10)


@satay.workflow(name="health.quick")
async def quick() -> int:
    return 1


def checked(place: Path, now: int = 0) -> HealthReport:
    return in_loop(check_health(Settings(data_dir=place), now))


async def leave(place: Path, workflow: satay.Workflow[[], Any], *, is_killed: bool = False) -> int:
    """A run whose app has closed, or was killed. The time of the app."""
    async with open_app(place, clock=ManualClock()) as app:
        await app.start(workflow, run_id="r")
        await settle(app)
        if is_killed:
            await abandon(app)
        return app.clock.now()


def test_a_sound_journal_has_no_problems(tmp_path: Path) -> None:
    now = in_loop(leave(tmp_path, quick))
    report = checked(tmp_path, now)

    assert ((), (), ()) == (report.problems, report.stranded, report.overdue)
    assert report.store is not None
    assert {"completed": 1} == report.store.runs
    assert {"satay", "python", "pydantic", "aiosqlite"} == set(report.versions)
    assert str(tmp_path) == report.settings["data_dir"]


def test_a_run_whose_process_was_killed_is_stranded(tmp_path: Path) -> None:
    now = in_loop(leave(tmp_path, working, is_killed=True))
    report = checked(tmp_path, now)

    assert ("r",) == report.stranded
    assert [False] == [is_alive for _, is_alive in report.owners]
    assert "the process of running runs is gone: r; resume them" in report.problems[0]


def test_a_session_whose_process_was_killed_is_to_be_opened_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_app(tmp_path) as app:
            session = await satay.Session("s").__aenter__()
            await session.step("think")
            await abandon(app)

    in_loop(main())
    report = checked(tmp_path, 0)

    assert ("s",) == report.stranded
    assert ["the process of open sessions is gone: s; open them again with satay.Session(id), which goes on after"] == [
        problem.partition(" their last step")[0] for problem in report.problems
    ]


def test_an_experiment_is_not_counted_as_a_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_app(tmp_path) as app:
            await app.start(quick, run_id="r").result()
            await satay.set_outcome("r", "rejected")

    in_loop(main())
    report = checked(tmp_path)

    assert report.store is not None
    assert {"completed": 1} == report.store.runs


def test_a_run_that_is_driven_is_not_stranded(tmp_path: Path) -> None:
    async def main() -> tuple[tuple[str, ...], HealthReport]:
        async with open_app(tmp_path) as app:
            await app.start(working, run_id="r")
            await settle(app)
            async with open_reader(Settings(data_dir=tmp_path)) as reader:
                journal = reader.archive.journal
                running = await journal.runs(RunQuery(status=satay.RunStatus.RUNNING))
                stranded = left_behind(running, await journal.owners(), app.clock.now())
            return stranded, await check_health(Settings(data_dir=tmp_path), app.clock.now())

    stranded, report = in_loop(main())

    assert ((), (), ()) == (stranded, report.stranded, report.problems)
    assert [True] == [is_alive for _, is_alive in report.owners]


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    in_loop(leave(tmp_path, quick))
    settings = Settings(database_url=f"sqlite:///{tmp_path / DATABASE_FILE}?password=hunter2")
    with pytest.raises(InvalidValueError) as refusal:
        in_loop(check_health(settings, 0))

    assert "?password=***" in str(refusal.value)


def test_no_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalNotFoundError):
        checked(tmp_path)

    assert [] == list(tmp_path.iterdir())


def test_a_file_that_is_no_database_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"no database at all " * 100)
    report = checked(tmp_path)

    assert report.store is None
    assert "not a SQLite database" in report.problems[0]


def test_a_run_that_nobody_wakes_is_overdue(tmp_path: Path) -> None:
    now = in_loop(leave(tmp_path, sleeping))
    in_time, late = checked(tmp_path, now), checked(tmp_path, now + 60 * MICROSECONDS)

    assert ((), ()) == (in_time.overdue, in_time.problems)
    assert ("r",) == late.overdue
    assert "nobody is there to wake runs whose time has come: r; resume them" in late.problems[0]


def test_a_damaged_page_is_a_problem(tmp_path: Path) -> None:
    in_loop(leave(tmp_path, quick))
    path = tmp_path / DATABASE_FILE
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs_due'").fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(root - 1) * page_bytes : root * page_bytes] = b"\0" * page_bytes
    path.write_bytes(content)

    assert checked(tmp_path).problems
