"""Reading a journal without driving: what is there is answered, and nothing is made or changed."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

import satay
from satay.errors import JournalNotFoundError, JournalUnavailableError, JournalVersionError, RunNotFoundError
from satay.model import EntryType
from satay.readers import open_reader
from satay.settings import Settings
from satay.stores.locations import DATABASE_FILE
from satay.testing import open_app
from tests.driving import in_loop


@satay.task(name="readers.double")
async def double(number: int) -> int:
    return 2 * number


@satay.workflow(name="readers.count")
async def count(number: int) -> int:
    return await double(await double(number))


@satay.workflow(name="readers.wait")
async def wait(_: int) -> str:
    answer: str = await satay.wait_for_event("answer")
    return answer


def settings_of(place: Path) -> Settings:
    return Settings(data_dir=place)


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


def test_a_reader_answers_what_an_app_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_app(tmp_path) as app:
            await app.start(count, 3, run_id="source").result()
            await (await app.fork("source", before_task=double, before_ordinal=1, run_id="fork")).result()
            async with open_reader(settings_of(tmp_path)) as reader:
                assert await app.runs() == await reader.runs()
                assert await app.run("fork") == await reader.run("fork")
                assert await app.status("fork") == await reader.status("fork")
                assert await app.receipt("fork") == await reader.receipt("fork")
                assert str(await app.compare("source", "fork")) == str(await reader.compare("source", "fork"))
                assert [event async for event in app.events("fork")] == [e async for e in reader.events("fork")]
                with pytest.raises(RunNotFoundError, match="there is no run 'other'"):
                    await reader.run("other")

    in_loop(main())


def test_a_reader_makes_no_journal(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(JournalNotFoundError, match=r"there is no journal at .*reading makes none"):
            async with open_reader(settings_of(tmp_path / "nowhere")):
                raise AssertionError("the journal is not there")

    in_loop(main())

    assert [] == list(tmp_path.iterdir())


def test_a_reader_leaves_an_empty_file_as_it_is(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).touch()

    async def main() -> None:
        with pytest.raises(JournalNotFoundError, match="holds no journal yet"):
            async with open_reader(settings_of(tmp_path)):
                raise AssertionError("the journal is empty")

    in_loop(main())

    assert [(DATABASE_FILE, 0)] == [(path.name, path.stat().st_size) for path in tmp_path.iterdir()]


@pytest.mark.parametrize(("version", "hint"), [(9999, "newer satay"), (-1, "brings it up to date")])
def test_a_reader_refuses_a_file_of_another_version(tmp_path: Path, version: int, hint: str) -> None:
    async def main() -> None:
        async with open_app(tmp_path) as app:
            await app.start(count, 3, run_id="r").result()
        with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(JournalVersionError, match=hint):
            async with open_reader(settings_of(tmp_path)):
                raise AssertionError("the journal is of another version")

    in_loop(main())


def test_a_reader_refuses_the_database_of_another_program(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")

    async def main() -> None:
        with pytest.raises(JournalUnavailableError, match="another program"):
            async with open_reader(settings_of(tmp_path)):
                raise AssertionError("the file is no journal")

    in_loop(main())


def test_a_reader_sees_what_is_written_while_it_reads(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with satay.run_app(data_dir=tmp_path) as app:
            await app.start(wait, 1, run_id="r")
            async with open_reader(settings_of(tmp_path)) as reader:
                watching = asyncio.ensure_future(_types(reader.events("r")))
                await app.send_event("answer", "yes", run_id="r")
                return await watching

    seen = in_loop(main())

    assert [EntryType.EXTERNAL_EVENT_RECEIVED, EntryType.WORKFLOW_COMPLETED] == seen[-2:]


async def _types(events: AsyncIterator[satay.RunEvent]) -> list[str]:
    return [event.type async for event in events]


def test_reading_leaves_no_file_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_app(tmp_path) as app:
            await app.start(count, 3, run_id="r").result()
        before = contents(tmp_path)
        async with open_reader(settings_of(tmp_path)) as reader:
            await reader.runs()

        assert before == contents(tmp_path)

    in_loop(main())
