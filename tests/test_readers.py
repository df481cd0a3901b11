"""Reading a journal without driving: what is there is answered, and nothing is made or changed."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import (
    AmbiguousRunError,
    InvalidValueError,
    JournalNotFoundError,
    JournalUnavailableError,
    JournalVersionError,
    RunNotFoundError,
    UsageError,
)
from satay.model import EntryType
from satay.readers import open_reader
from satay.settings import Settings
from satay.stores.locations import DATABASE_FILE
from satay.testing import open_app, settle
from tests.driving import in_loop


@satay.task(name="readers.double")
async def double(number: int) -> int:
    return 2 * number


@satay.workflow(name="readers.count")
async def count(number: int) -> int:
    return await double(await double(number))


@satay.workflow(name="readers.end")
async def end(how: str) -> list[str]:
    if how == "badly":
        raise LookupError("nothing")
    if how == "again":
        satay.continue_as_new("well")
    return [how]


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


# --- naming a run -----------------------------------------------------------------------------------------------------


async def with_runs(place: Path, *run_ids: str) -> None:
    async with open_app(place) as app:
        for run_id in run_ids:
            await app.start(count, 1, run_id=run_id).result()


@pytest.mark.parametrize(
    ("shortened", "found"),
    [("alpha", "alpha"), ("alp", "alpha"), ("alpha/", "alpha/deep"), ("beta", "beta-1"), ("gamma", "gamma/only")],
)
def test_a_shortened_id_names_the_run_that_goes_least_deep(tmp_path: Path, shortened: str, found: str) -> None:
    async def main() -> str:
        await with_runs(tmp_path, "alpha", "alpha/deep", "beta-1", "beta-1/x", "gamma/only")
        async with open_reader(settings_of(tmp_path)) as reader:
            return await reader.find(shortened)

    assert found == in_loop(main())


def test_an_ambiguous_id_is_refused_with_candidates_newest_first(tmp_path: Path) -> None:
    async def main() -> None:
        await with_runs(tmp_path, "run-1", "run-2", "run-3", "run-4", "run-4/child")
        async with open_reader(settings_of(tmp_path)) as reader:
            with pytest.raises(AmbiguousRunError, match=r"'run-4', 'run-3', 'run-2' and more; give more") as refusal:
                await reader.find("run")

        assert ("run-4", "run-3", "run-2", "run-1") == refusal.value.candidates

    in_loop(main())


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("quaterly", "did you mean 'quarterly'"), ("zzz", "satay runs lists"), ("%", "satay runs lists")],
)
def test_an_unknown_id_is_answered_with_what_is_like_it(tmp_path: Path, asked: str, hint: str) -> None:
    async def main() -> None:
        await with_runs(tmp_path, "quarterly", "monthly")
        async with open_reader(settings_of(tmp_path)) as reader:
            with pytest.raises((RunNotFoundError, AmbiguousRunError), match=hint):
                await reader.find(asked)

    in_loop(main())


def test_an_empty_text_names_no_run_even_where_there_is_only_one(tmp_path: Path) -> None:
    async def main() -> None:
        await with_runs(tmp_path, "only")
        async with open_reader(settings_of(tmp_path)) as reader:
            with pytest.raises(InvalidValueError, match="'' names no run"):
                await reader.find("")

    in_loop(main())


# --- how a run ended --------------------------------------------------------------------------------------------------


def test_an_ending_is_plain_data(tmp_path: Path) -> None:
    async def main() -> list[dict[str, Any]]:
        async with open_app(tmp_path) as app:
            for run_id, how in (("good", "well"), ("bad", "badly"), ("loop", "again")):
                await app.start(end, how, run_id=run_id)
            await settle(app)
            async with open_reader(settings_of(tmp_path)) as reader:
                return [(await reader.ending(run_id)).to_dict() for run_id in ("good", "bad", "loop")]

    good, bad, loop = in_loop(main())

    assert {"run_id": "good", "status": "completed", "result": ["well"], "error": None} == good
    assert ("failed", None, {"type": "builtins:LookupError", "message": "nothing"}) == (
        bad["status"],
        bad["result"],
        bad["error"],
    )
    assert ("loop~2", ["well"]) == (loop["run_id"], loop["result"])


def test_a_run_that_goes_on_has_no_ending(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_app(tmp_path) as app:
            await app.start(wait, 1, run_id="r")
            with pytest.raises(UsageError, match="has not ended"):
                await app.ending("r")

    in_loop(main())
