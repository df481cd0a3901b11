"""Finer cuts, through the app: one call made again and its siblings kept, outcomes given, stale calls, children."""

import asyncio
import hashlib
import math
import shutil
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import structlog
from structlog.testing import capture_logs

import satay
from satay.errors import (
    EncodeError,
    EventTimeoutError,
    ForkValidationError,
    InvalidValueError,
    RunConflictError,
    SatayError,
    StalePrefixError,
    TaskBlockedError,
    UsageError,
    WorkflowCancelledError,
)
from satay.model import EntryType
from satay.replay import facts
from satay.stores.locations import DATABASE_FILE
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app, pause, settle
from tests.corpus import NEVER_SECONDS
from tests.driving import in_loop

LATER: Final = datetime(2027, 1, 1, tzinfo=UTC)

ran: list[str] = []
"""What the bodies of tasks did, in this process."""


@pytest.fixture(autouse=True)
def _forget_what_ran() -> None:
    ran.clear()
    Mood.text = ""


class Mood:
    """What tasks answer with besides: the world has changed since the source ran."""

    text = ""


def later_clock() -> ManualClock:
    return ManualClock(LATER, autojump=True)


def rows_of_everything(place: Path) -> str:
    """A hash over every row of every table that says something of runs."""
    digest = hashlib.sha256()
    with sqlite3.connect(place / DATABASE_FILE) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in sorted(set(tables) - {"owners"}):
            digest.update(table.encode())
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2"):
                digest.update(repr(row).encode())
    connection.close()
    return digest.hexdigest()


def rows_of_run(place: Path, run_id: str) -> list[Any]:
    with sqlite3.connect(place / DATABASE_FILE) as connection:
        found: list[Any] = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchall()
        for table in ("events", "inbox", "waits"):
            found += connection.execute(f"SELECT * FROM {table} WHERE run = ?", (found[0][0],)).fetchall()
    connection.close()
    return found


@contextmanager
def untouched(place: Path, *run_ids: str) -> Iterator[None]:
    """The rows of these runs are the same before and after."""
    before = [rows_of_run(place, run_id) for run_id in run_ids]
    yield
    assert before == [rows_of_run(place, run_id) for run_id in run_ids]


async def run_source(place: Path, workflow: "satay.Workflow[..., Any]", input: Any = satay.MISSING) -> Any:
    async with open_app(place) as app:
        return await app.start(workflow, input, run_id="s").result()


async def fork_of(place: Path, run_id: str = "f", source: str = "s", **options: Any) -> tuple[Any, satay.ForkReceipt]:
    """The result and the receipt of a fork that is made long after."""
    async with open_app(place, clock=later_clock(), recover=True) as app:
        fork = await app.fork(source, run_id=run_id, **options)
        return await fork.result(), fork.receipt


async def crash_everywhere(place: Path, expected: Any, run_id: str = "f", source: str = "s", **options: Any) -> int:
    """Fork with a crash after each entry in turn, and go on: the result is always the same. How many crashes."""
    crashes = 0
    while True:
        copy = place.with_name(f"{place.name}-crashed")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        faults = Faults().crash_after(entries=crashes + 1)
        clock = later_clock()
        found: Any = None
        async with open_app(copy, clock=clock, faults=faults, recover=True, poll_seconds=NEVER_SECONDS) as app:
            ending = asyncio.ensure_future(result_of_fork(app, run_id, source, options))
            await asyncio.wait((ending, faults.crashed), return_when=asyncio.FIRST_COMPLETED)
            if faults.is_crashed:
                ending.cancel()
                await asyncio.wait({ending})
                ending.cancelled() or ending.exception()
            else:
                found = await ending
        if not faults.is_crashed:
            assert expected == found
            return crashes
        crashes += 1
        async with open_app(copy, clock=ManualClock(LATER + timedelta(days=1), autojump=True), recover=True) as app:
            found = await result_of_fork(app, run_id, source, options)
            assert expected == found, crashes


async def result_of_fork(app: AppUnderTest, run_id: str, source: str, options: dict[str, Any]) -> Any:
    fork = await app.fork(source, run_id=run_id, **options)
    result = await fork.result()
    await settle(app)
    return result


# --- four drafts ------------------------------------------------------------------------------------------------------


@satay.task(name="finer.draft")
async def draft(style: str, topic: str = "tea") -> str:
    ran.append(f"draft {style} {topic}")
    return f"{style} {topic}{Mood.text}"


@satay.task(name="finer.pick")
async def pick(drafts: list[str]) -> str:
    ran.append("pick")
    return " | ".join(drafts)


@satay.workflow(name="finer.four_drafts")
async def four_drafts(topic: str) -> str:
    drafts = await asyncio.gather(*(draft(style, topic) for style in "abcd"))
    return await pick(list(drafts))


@pytest.mark.parametrize("which", range(4))
def test_of_four_drafts_only_the_named_one_runs_again(which: int, tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        ran.clear()
        Mood.text = "!"
        with untouched(tmp_path, "s"):
            result, receipt = await fork_of(tmp_path, before_task=draft, before_ordinal=which, keep_siblings=True)
        expected = [f"{style} tea" + ("!" if number == which else "") for number, style in enumerate("abcd")]

        assert " | ".join(expected) == result
        assert [f"draft {'abcd'[which]} tea", "pick"] == ran
        assert f"only the call finer.draft:{which} runs again" == receipt.cut
        assert 3 == receipt.calls_inherited
        assert [f"finer.draft:{which}"] == [call.call for call in receipt.in_flight if call.action == "rerun"]
        assert all(call.action == "keep" for call in receipt.in_flight if call.action != "rerun")

    in_loop(check())


def test_a_draft_that_runs_again_gets_the_arguments_of_today(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path / "j", four_drafts, "tea")
        ran.clear()
        options: dict[str, Any] = {
            "before_task": draft, "before_ordinal": 1, "keep_siblings": True, "workflow_input": "cake"
        }  # fmt: skip
        result, receipt = await fork_of(tmp_path / "j", **options)
        await crash_everywhere(tmp_path / "j", result, "g", **options)

        assert "a tea | b cake | c tea | d tea" == result
        assert {"draft b cake", "pick"} == set(ran)
        assert ["finer.draft:0", "finer.draft:2", "finer.draft:3"] == [call.call for call in receipt.stale_calls]

    in_loop(check())


def test_new_arguments_of_a_call_that_is_made_again_are_recorded(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        await fork_of(tmp_path, before_task=draft, before_ordinal=1, keep_siblings=True, workflow_input="cake")
        await fork_of(tmp_path, "g", before_task=draft, before_ordinal=1, keep_siblings=True)
        async with open_app(tmp_path) as app:
            journal = (await app._ready()).journal
            changed = [entry for entry in await journal.read("f") if entry.type == EntryType.CALL_REISSUED]
            unchanged = [entry for entry in await journal.read("g") if entry.type == EntryType.CALL_REISSUED]

        assert ["cake"] == [facts(entry)["input"]["topic"] for entry in changed]
        assert [] == unchanged

    in_loop(check())


def test_a_fork_with_kept_siblings_survives_a_crash_anywhere(tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "j", four_drafts, "tea")
        ran.clear()
        crashes = await crash_everywhere(
            tmp_path / "j", result, before_task=draft, before_ordinal=0, keep_siblings=True
        )

        assert 8 <= crashes
        assert {"draft a tea", "pick"} == set(ran)

    in_loop(check())


@pytest.mark.parametrize("options", [{}, {"workflow_input": "cake"}])
def test_forks_of_a_fork_with_kept_siblings_end_alike_at_every_entry(options: dict[str, Any], tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        result, receipt = await fork_of(tmp_path, before_task=draft, before_ordinal=2, keep_siblings=True, **options)
        async with open_app(tmp_path, clock=later_clock()) as app:
            types = [entry.type async for entry in app.events("f")]
            ran.clear()
            for seq in range(receipt.resolved_seq + 1, len(types)):
                fork = await app.fork("f", run_id=f"f+{seq}", fork_point_seq=seq)
                found = await fork.result()
                if options and seq < receipt.resolved_seq + 4:  # Some of what it keeps is not in the prefix.
                    assert "c cake" in found
                else:
                    assert result == found

        assert {"draft c cake" if options else "draft c tea", "pick"} >= {
            each for each in ran if each[6:7] not in "abd"
        }

    in_loop(check())


def test_a_kept_sibling_of_a_fork_can_be_made_again_in_a_fork_of_it(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path / "j", four_drafts, "tea")
        await fork_of(tmp_path / "j", before_task=draft, before_ordinal=1, keep_siblings=True)
        ran.clear()
        Mood.text = "?"
        options: dict[str, Any] = {"before_task": draft, "before_ordinal": 3, "keep_siblings": True}
        result, receipt = await fork_of(tmp_path / "j", "ff", "f", **options)
        await crash_everywhere(tmp_path / "j", result, "fff", "f", **options)

        assert "a tea | b tea | c tea | d tea?" == result
        assert {"draft d tea", "pick"} == set(ran)
        assert "rerun" in [call.action for call in receipt.in_flight if call.call == "finer.draft:3"]

    in_loop(check())


@satay.task(name="finer.priced")
async def priced(cost: float) -> float:
    satay.task_context().record_usage(model="m", cost=cost)
    return cost


@satay.workflow(name="finer.bill")
async def bill() -> float:
    return sum(await asyncio.gather(priced(0.5), priced(1.0), priced(2.0), priced(4.0)))


@satay.task(name="finer.hang")
async def hang() -> str:
    if not Mood.text:
        await pause(math.inf)
    return Mood.text


@satay.workflow(name="finer.hung")
async def hung() -> list[str]:
    return list(await asyncio.gather(draft("a"), hang()))


@pytest.mark.parametrize("ask", [satay.RunHandle.cancel, satay.RunHandle.terminate], ids=["cancel", "terminate"])
def test_a_call_that_hung_until_the_run_was_stopped_is_made_again_or_given_an_outcome(
    ask: Callable[[Any], Awaitable[None]], tmp_path: Path
) -> None:
    async def check() -> None:
        async with open_app(tmp_path) as app:
            handle = app.start(hung, run_id="s")
            await handle
            await settle(app)
            await ask(handle)
            with pytest.raises(WorkflowCancelledError):
                await handle.result()
        ran.clear()
        given, _ = await fork_of(tmp_path, "given", overrides={("finer.hang", 0): "given"})
        Mood.text = "done"
        again, _ = await fork_of(tmp_path, "again", before_task=hang, keep_siblings=True)

        assert [["a tea", "given"], ["a tea", "done"]] == [given, again]
        assert [] == ran

    in_loop(check())


def test_siblings_that_the_source_was_yet_to_be_given_count_as_inherited(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, bill)
        again: dict[str, Any] = {"before_task": priced, "before_ordinal": 1, "keep_siblings": True}
        _, receipt = await fork_of(tmp_path, **again)
        assert (3, 6.5) == (receipt.calls_inherited, receipt.saved_cost)
        async with open_app(tmp_path, clock=later_clock()) as app:
            types = [entry.type async for entry in app.events("f")]
            found = []
            for seq in range(receipt.resolved_seq + 1, len(types)):
                plan = await app.plan_fork("f", fork_point_seq=seq)
                fork = await app.fork("f", fork_point_seq=seq)
                assert (len(plan.inherited), plan.saved_cost) == (fork.receipt.calls_inherited, fork.receipt.saved_cost)
                found.append(plan.saved_cost)
            made_again = await app.fork("f", before_task=priced, before_ordinal=3, keep_siblings=True)
            given = await app.fork("f", fork_point_seq=receipt.resolved_seq + 3, overrides={("finer.priced", 3): 0.0})

        assert [0.5, 2.5, 6.5, 6.5, 6.5, 7.5] == found
        assert 3.5 == made_again.receipt.saved_cost
        assert (2, 2.5) == (given.receipt.calls_inherited, given.receipt.saved_cost)

    in_loop(check())


def test_a_call_that_is_made_again_twice_gets_the_arguments_of_the_last_fork(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        again: dict[str, Any] = {"before_task": draft, "before_ordinal": 1, "keep_siblings": True}
        await fork_of(tmp_path, workflow_input="cake", **again)
        result, _ = await fork_of(tmp_path, "ff", "f", workflow_input="pie", **again)
        same, _ = await fork_of(tmp_path, "fff", "ff", **again)

        assert "a tea | b pie | c tea | d tea" == result == same

    in_loop(check())


def test_a_call_that_was_made_again_counts_with_the_arguments_that_it_was_made_with(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        again: dict[str, Any] = {"before_task": draft, "before_ordinal": 1, "keep_siblings": True}
        await fork_of(tmp_path, workflow_input="cake", **again)
        await fork_of(tmp_path, "back", "f", workflow_input="tea", **again)
        ran.clear()
        found = []
        async with open_app(tmp_path, clock=later_clock()) as app:
            for source in ("f", "back"):
                for topic in ("cake", "tea"):
                    fork = await app.fork(
                        source, before_task=draft, before_ordinal=1, workflow_input=topic,
                        tool_policies={"finer.draft": "replay"},
                        overrides={("finer.draft", 2): "", ("finer.draft", 3): ""},
                    )  # fmt: skip
                    try:
                        found.append((await fork.result()).split(" | ")[1])
                    except TaskBlockedError as error:
                        found.append(error.reason.rpartition(" ")[2])
            compared = await app.compare("s", "f"), await app.compare("s", "back")
        there = [call for comparison in compared for call in comparison.calls if "finer.draft:1" == str(call.identity)]

        assert ["b cake", "$.topic", "$.topic", "b tea"] == found
        assert ["pick"] * 2 == ran
        assert [["$.topic"], []] == [[difference.path for difference in call.input_differences] for call in there]

    in_loop(check())


def test_a_kept_outcome_of_a_call_that_the_source_made_again_comes_with_the_arguments_it_is_of(tmp_path: Path) -> None:
    """The cut of the second fork lies before that of the first."""

    async def check() -> None:
        await run_source(tmp_path / "j", four_drafts, "tea")
        await fork_of(tmp_path / "j", before_task=draft, before_ordinal=1, keep_siblings=True, workflow_input="cake")
        first: dict[str, Any] = {"before_task": draft, "before_ordinal": 0, "keep_siblings": True}
        await crash_everywhere(tmp_path / "j", "a cake | b cake | c tea | d tea", "g", "f", **first)
        kept, receipt = await fork_of(tmp_path / "j", "g", "f", **first)
        back, back_receipt = await fork_of(tmp_path / "j", "h", "f", workflow_input="tea", **first)
        _, later_receipt = await fork_of(tmp_path / "j", "i", "h", before_task=pick)
        mended, _ = await fork_of(tmp_path / "j", "m", "f", workflow_input="tea", on_stale="rerun", **first)
        found = []
        async with open_app(tmp_path / "j", clock=later_clock()) as app:
            compared = await app.compare("s", "h")
            for topic in ("cake", "tea"):
                fork = await app.fork(
                    "h", before_task=draft, before_ordinal=1, workflow_input=topic,
                    tool_policies={"finer.draft": "replay"},
                    overrides={("finer.draft", 2): "", ("finer.draft", 3): ""},
                )  # fmt: skip
                try:
                    found.append((await fork.result()).split(" | ")[1])
                except TaskBlockedError as error:
                    found.append(error.reason.rpartition(" ")[2])
        there = [call for call in compared.calls if "finer.draft:1" == str(call.identity)]

        assert ["a cake | b cake | c tea | d tea", "a tea | b cake | c tea | d tea"] == [kept, back]
        assert ["finer.draft:2", "finer.draft:3"] == [stale.call for stale in receipt.stale_calls]
        assert ["finer.draft:1"] == [stale.call for stale in back_receipt.stale_calls]
        assert ["finer.draft:1"] == [stale.call for stale in later_receipt.stale_calls]
        assert "a tea | b tea | c tea | d tea" == mended
        assert [["$.topic"]] == [[difference.path for difference in call.input_differences] for call in there]
        assert ["b cake", "$.topic"] == found

    in_loop(check())


def test_a_kept_call_that_the_source_made_again_as_it_was_is_stale_as_any_other(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        await fork_of(tmp_path, before_task=draft, before_ordinal=0, keep_siblings=True)
        last: dict[str, Any] = {"before_task": draft, "before_ordinal": 3, "keep_siblings": True}
        result, receipt = await fork_of(tmp_path, "g", "f", workflow_input="cake", **last)
        mended, _ = await fork_of(tmp_path, "h", "f", workflow_input="cake", on_stale="rerun", **last)

        assert "a tea | b tea | c tea | d cake" == result
        assert [f"finer.draft:{number}" for number in range(3)] == [stale.call for stale in receipt.stale_calls]
        assert "a cake | b cake | c cake | d cake" == mended

    in_loop(check())


@satay.workflow(name="finer.mapped_drafts")
async def mapped_drafts(topic: str) -> str:
    drafts = await satay.map(draft, list("abcd"), key=lambda style: f"page-{style}")
    return await pick(list(drafts))


def test_an_item_of_a_map_is_made_again_by_its_key(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, mapped_drafts, "tea")
        ran.clear()
        Mood.text = "!"
        result, receipt = await fork_of(tmp_path, before_task=draft, before_key="page-c", keep_siblings=True)
        plain, plain_receipt = await fork_of(tmp_path, "g", before_task=draft, before_key="page-c")

        assert "a tea | b tea | c tea! | d tea" == result
        assert "before the call finer.draft[page-c]" == plain_receipt.cut
        assert plain.endswith("c tea! | d tea!")
        assert "only the call finer.draft[page-c] runs again" == receipt.cut

    in_loop(check())


# --- siblings of every kind -------------------------------------------------------------------------------------------


@satay.workflow(name="finer.small")
async def small(name: str) -> str:
    await satay.sleep(20)
    return await draft(f"child {name}")


@satay.workflow(name="finer.mixed")
async def mixed(topic: str) -> list[Any]:
    """A draft that takes ten seconds, beside siblings that end before it and after it, and go on."""

    async def reviewed(style: str) -> str:
        first = await draft(style, topic)
        await satay.sleep(3)
        return await draft(f"review of {first}", topic)

    async def slow() -> str:
        await satay.sleep(8)
        return await draft("slow", topic)

    async def told() -> str:
        try:
            return str(await satay.wait_for_event("finer.word", timeout=15))
        except EventTimeoutError:
            return "no word"

    async def nested() -> list[str]:
        return list(await asyncio.gather(slow(), reviewed("n")))

    return list(
        await asyncio.gather(
            reviewed("a"), slow(), told(), nested(), satay.start_child(small, "x").result(), reviewed("b")
        )
    )


def named(call: str) -> dict[str, Any]:
    """The options that name a call, `task x:1` or `event y`, for a cut before it."""
    kind, _, rest = call.partition(" ")
    name, _, ordinal = rest.partition(":")
    return {f"before_{kind}": name, "before_ordinal": int(ordinal or 0), "keep_siblings": True}


MIXED_CALLS: Final = [*(f"task finer.draft:{number}" for number in range(7)), "event finer.word", "child finer.small"]


@pytest.mark.parametrize("call", MIXED_CALLS)
def test_siblings_of_every_kind_are_kept_over_any_crash(call: str, tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "j", mixed, "tea")
        times = len(ran)
        ran.clear()
        found, _ = await fork_of(tmp_path / "j", "g", **named(call))
        again = len(ran)
        await crash_everywhere(tmp_path / "j", result, **named(call))

        assert result == found
        assert again < times

    in_loop(check())


@pytest.mark.parametrize("call", ["task finer.draft:2", "child finer.small", "event finer.word"])
def test_forks_of_forks_with_kept_siblings_of_every_kind_end_alike_at_every_entry(call: str, tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path, mixed, "tea")
        await fork_of(tmp_path, **named(call))
        async with open_app(tmp_path, clock=later_clock(), recover=True) as app:
            types = [entry.type async for entry in app.events("f")]
            for seq in range(2, len(types)):
                fork = await app.fork("f", run_id=f"f+{seq}", fork_point_seq=seq)
                assert result == await fork.result(), (seq, types[seq - 1])

    in_loop(check())


@pytest.mark.parametrize("policy", ["warn", "off"])
@pytest.mark.parametrize("call", ["task finer.draft:2", "child finer.small", "event finer.word"])
def test_siblings_are_kept_also_where_divergence_is_tolerated(
    call: str, policy: Literal["warn", "off"], tmp_path: Path
) -> None:
    async def check() -> None:
        result = await run_source(tmp_path, mixed, "tea")
        async with open_app(tmp_path, clock=later_clock(), recover=True, nondeterminism=policy) as app:
            fork = await app.fork("s", run_id="f", **named(call))
            assert result == await fork.result()
            last = len([entry async for entry in app.events("f")])
            for seq in range(fork.receipt.resolved_seq, last):
                again = await app.fork("f", run_id=f"f+{seq}", fork_point_seq=seq)
                assert result == await again.result(), seq

    in_loop(check())


def test_a_child_that_is_made_again_is_another_run(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, mixed, "tea")
        Mood.text = "!"
        for run_id, children in (("f", "fork"), ("g", "share")):
            with untouched(tmp_path, "s", "s/finer.small:0"):
                result, receipt = await fork_of(tmp_path, run_id, children=children, **named("child finer.small"))

            assert "child x tea!" in result
            assert [("finer.small:0", "rerun")] == [
                (call.call, call.action) for call in receipt.in_flight if call.call == "finer.small:0"
            ]

    in_loop(check())


def test_an_event_is_waited_for_anew_for_as_long_as_it_was(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, mixed, "tea")
        clock = ManualClock(LATER)
        async with open_app(tmp_path, clock=clock) as app:
            await app.fork("s", run_id="f", **named("event finer.word"))
            await settle(app)
            await clock.advance(14)
            await app.send_event("finer.word", "hello", run_id="f")
            result = await app.handle("f").result()

        assert "hello" == result[2]

    in_loop(check())


@satay.task(name="finer.attempted", retries=2, backoff=5.0)
async def attempted() -> str:
    ran.append("attempted")
    if satay.task_context().attempt < 3:
        raise ConnectionError("no answer")
    return "came through"


@satay.workflow(name="finer.persistent")
async def persistent() -> list[Any]:
    return list(await asyncio.gather(attempted(), draft("a")))


def test_a_call_that_is_made_again_has_all_its_attempts_again(tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "j", persistent)
        ran.clear()
        found, _ = await fork_of(tmp_path / "j", before_task=attempted, keep_siblings=True)
        attempts = list(ran)
        await crash_everywhere(tmp_path / "j", result, "g", before_task=attempted, keep_siblings=True)

        assert ["came through", "a tea"] == result == found
        assert ["attempted"] * 3 == attempts

    in_loop(check())


@satay.task(name="finer.mail", effect="external")
async def mail(text: str) -> str:
    ran.append(f"mail {text}")
    return text


@satay.workflow(name="finer.mails")
async def mails() -> list[Any]:
    found = await asyncio.gather(mail("one"), mail("two"), return_exceptions=True)
    return [each if isinstance(each, str) else type(each).__name__ for each in found]


def test_a_named_external_call_runs_again_where_the_policy_lets_it(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, mails)
        ran.clear()
        again: dict[str, Any] = {"before_task": mail, "before_ordinal": 1, "keep_siblings": True}
        blocked, _ = await fork_of(tmp_path, **again)
        assert ["one", "TaskBlockedError"] == blocked
        assert [] == ran
        result, receipt = await fork_of(tmp_path, "g", tool_policies={"*": "auto"}, **again)

        assert ["one", "two"] == result
        assert ["mail two"] == ran
        assert {"finer.mail:1": "rerun"} == {
            call.call: call.action for call in receipt.in_flight if call.call == "finer.mail:1"
        }

    in_loop(check())


# --- other cuts -------------------------------------------------------------------------------------------------------


@satay.task(name="finer.fail")
async def fail(message: str) -> str:
    ran.append(f"fail {message}")
    if Mood.text:
        return f"mended {message}"
    raise ValueError(message)


class OddError(Exception):
    """An error that cannot be made again from its record."""

    def __init__(self, one: object, other: object) -> None:
        super().__init__("odd")
        self.one = object()


@satay.task(name="finer.fail_oddly")
async def fail_oddly() -> str:
    if Mood.text:
        return "mended"
    raise OddError(1, 2)


@satay.workflow(name="finer.failing_child")
async def failing_child() -> str:
    await draft("c")
    return await fail("in the child")


@satay.workflow(name="finer.failing")
async def failing(how: str) -> Any:
    await draft("first")
    try:
        await fail("caught")
    except ValueError:
        await draft("second")
    match how:
        case "task":
            return await fail("for good")
        case "cause":
            try:
                return await fail("the cause")
            except ValueError as error:
                await draft("cleanup")
                raise RuntimeError("wrapped") from error
        case "cleanup":
            try:
                return await fail("then cleaned up")
            finally:
                await draft("cleanup")
        case "odd":
            try:
                return await fail_oddly()
            finally:
                await draft("cleanup")
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(sleeping())
                group.create_task(fail("in the group"))
        case "child":
            try:
                return await satay.start_child(failing_child).result()
            finally:
                await draft("cleanup")
        case "event":
            return await satay.wait_for_event("finer.word", timeout=5)
        case "body":
            await draft("last")
            if not Mood.text:
                raise KeyError("the body's own")
    return None


async def sleeping() -> None:
    await satay.sleep(100)


@pytest.mark.parametrize(
    ("how", "cut"),
    [
        ("task", "before the call finer.fail:1, which failed the run"),
        ("cause", "before the call finer.fail:1, which failed the run"),
        ("cleanup", "before the call finer.fail:1, which failed the run"),
        ("odd", "before the call finer.fail_oddly:0, which failed the run"),
        ("group", "before the call finer.fail:1, which failed the run"),
        ("child", "before the call finer.failing_child:0, which failed the run"),
        ("event", "before the call finer.word:0, which failed the run"),
        ("body", "before the turn in which the body failed"),
    ],
)
def test_a_cut_at_the_failure_finds_the_call_that_failed_the_run(how: str, cut: str, tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises((Exception, BaseExceptionGroup)):
            await run_source(tmp_path, failing, how)
        ran.clear()
        Mood.text = "!"
        if how == "event":
            async with open_app(tmp_path, clock=ManualClock(LATER)) as app:
                fork = await app.fork("s", run_id="f", at="failure")
                receipt = fork.receipt
        else:
            _, receipt = await fork_of(tmp_path, at="failure")

        assert cut == receipt.cut
        assert "draft first tea" not in ran
        assert "fail caught" not in ran

    in_loop(check())


@satay.workflow(name="finer.mailing")
async def mailing() -> str:
    await draft("a")
    return await mail("hello")


def test_a_cut_at_the_failure_finds_the_refused_call(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, mailing)
        async with open_app(tmp_path) as app:
            blocked = await app.fork("s", run_id="f", before_task=mail)
            with pytest.raises(satay.errors.TaskBlockedError):
                await blocked.result()
        result, receipt = await fork_of(tmp_path, "ff", "f", at="failure", tool_policies={"finer.mail": "live"})

        assert "hello" == result
        assert "before the call finer.mail:0, which failed the run" == receipt.cut

    in_loop(check())


def test_cuts_after_a_task_and_before_events_and_children(tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path, mixed, "tea")
        async with open_app(tmp_path) as app:
            entries = list(await (await app._ready()).journal.read("s"))
        first = {type: [entry.seq for entry in entries if entry.type == type] for type in EntryType}
        after, after_receipt = await fork_of(tmp_path, "f1", after_task=draft, after_ordinal=1)
        event, event_receipt = await fork_of(tmp_path, "f2", before_event="finer.word")
        child, child_receipt = await fork_of(tmp_path, "f3", before_child=small)

        assert result == after == event == child
        assert EntryType.TASK_COMPLETED == after_receipt.resolved_entry
        assert "after the outcome of the call finer.draft:1" == after_receipt.cut
        assert first[EntryType.EVENT_WAIT_STARTED][0] - 1 == event_receipt.resolved_seq
        assert first[EntryType.CHILD_WORKFLOW_SCHEDULED][0] - 1 == child_receipt.resolved_seq

    in_loop(check())


# --- overrides --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Word:
    text: str


@satay.task(name="finer.count")
async def count(number: int) -> int:
    ran.append(f"count {number}")
    return number


@satay.workflow(name="finer.everything")
async def everything() -> list[Any]:
    found: list[Any] = [await count(1)]
    found += await satay.map(count, [2, 3], key=str)
    found.append((await satay.wait_for_event(Word)).text)
    found.append(await satay.start_child(small, "y").result())
    try:
        found.append(await count(4))
    except (ValueError, SatayError) as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


async def run_everything(place: Path) -> list[Any]:
    async with open_app(place) as app:
        handle = app.start(everything, run_id="s")
        await app.send_event(Word("hello"), run_id=handle)
        result: list[Any] = await handle.result()
        return result


EVERYTHING: Final = [1, 2, 3, "hello", "child y tea", 4]


async def fork_everything(place: Path, run_id: str, **options: Any) -> tuple[list[Any], satay.ForkReceipt]:
    async with open_app(place, clock=later_clock()) as app:
        fork = await app.fork("s", run_id=run_id, **options)
        await settle(app)
        if not (await app.runs())[0].status.is_terminal:
            await app.send_event(Word("again"), run_id=run_id)
        result: list[Any] = await fork.result()
        return result, fork.receipt


@pytest.mark.parametrize(
    ("options", "position", "value"),
    [
        ({"overrides": {("finer.count", 0): 10}}, 0, 10),
        ({"overrides": {("finer.count", "3"): 30}}, 2, 30),
        ({"overrides": {("tests.test_finer_cuts.Word", 0): Word("other")}}, 3, "other"),
        ({"overrides": {("finer.small", 0): "no child"}}, 4, "no child"),
        ({"overrides": {("finer.count", 1): 40}}, 5, 40),
        ({"raises": {("finer.count", 1): ValueError("given")}}, 5, "ValueError: given"),
    ],
)
def test_an_outcome_is_replaced_at_the_cut(options: dict[str, Any], position: int, value: Any, tmp_path: Path) -> None:
    async def check() -> None:
        assert EVERYTHING == await run_everything(tmp_path)
        name = satay.definitions.default_name(Word)
        options_now = {
            what: {(name if key[0].endswith("Word") else key[0], key[1]): given for key, given in calls.items()}
            for what, calls in options.items()
        }
        with untouched(tmp_path, "s", "s/finer.small:0"):
            result, receipt = await fork_everything(tmp_path, "f", reason="what if", **options_now)
        async with open_app(tmp_path) as app:
            entries = list(await (await app._ready()).journal.read("f"))
        given = [entry for entry in entries if entry.type == EntryType.OUTCOME_OVERRIDDEN]
        outcomes = [entry for entry in entries if '"override":' in entry.payload]

        expected = list(EVERYTHING)
        expected[position] = value
        if position < 3:
            expected[3] = "again"
        assert expected == result
        assert "where the outcome of" in receipt.cut
        assert ["what if"] == [facts(entry)["reason"] for entry in given]
        assert [given[0].seq] == [facts(entry)["override"] for entry in outcomes]
        assert ["error" if "raises" in options else "value"] == [call.kind for call in receipt.overrides]

    in_loop(check())


def test_several_overrides_hold_at_once_and_over_any_crash(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path / "j", four_drafts, "tea")
        ran.clear()
        options: dict[str, Any] = {
            "overrides": {("finer.draft", 1): "B", ("finer.draft", 3): "D"},
            "raises": {},
        }
        result, receipt = await fork_of(tmp_path / "j", **options)
        assert ["pick"] == ran
        await crash_everywhere(tmp_path / "j", result, "g", **options)

        assert "a tea | B | c tea | D" == result
        assert "override" in [call.action for call in receipt.in_flight]

    in_loop(check())


def test_an_override_of_a_call_after_the_cut_waits_for_it(tmp_path: Path) -> None:
    async def check() -> None:
        await run_everything(tmp_path)
        result, _ = await fork_everything(
            tmp_path, "f", before_task=count, overrides={("finer.count", "3"): 33, ("finer.small", 0): "mine"}
        )

        assert [1, 2, 33, "again", "mine", 4] == result

    in_loop(check())


@satay.workflow(name="finer.odd_arguments")
async def odd_arguments() -> list[str]:
    """Its draft and its child get arguments that have no recorded form."""
    found = [await draft("plain")]
    for making in (draft, small):
        call = draft(threading.Lock()) if making is draft else satay.start_child(small, threading.Lock()).result()  # type: ignore[arg-type]  # that is the point
        try:
            found.append(await call)
        except EncodeError:
            found.append("refused")
    return found


def test_an_override_also_answers_a_call_that_could_not_be_made(tmp_path: Path) -> None:
    async def check() -> None:
        overrides = {("finer.draft", 1): "mine", ("finer.small", 0): "yours"}
        assert ["plain tea", "refused", "refused"] == await run_source(tmp_path / "j", odd_arguments)
        expected = ["plain tea", "mine", "yours"]
        cuts: tuple[dict[str, Any], ...] = ({}, {"before_task": draft})
        for options in cuts:
            await crash_everywhere(tmp_path / "j", expected, overrides=overrides, **options)

    in_loop(check())


def test_an_override_inherited_by_a_fork_of_the_fork_still_holds_or_is_replaced(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        result, receipt = await fork_of(tmp_path, overrides={("finer.draft", 1): "B"})
        types = receipt.resolved_seq + 2
        same, _ = await fork_of(tmp_path, "ff", "f", fork_point_seq=types)
        other, _ = await fork_of(tmp_path, "fff", "f", overrides={("finer.draft", 1): "C"})
        made, _ = await fork_of(tmp_path, "ffff", "f", before_task=draft, before_ordinal=1, keep_siblings=True)

        assert "a tea | B | c tea | d tea" == result == same
        assert "a tea | C | c tea | d tea" == other
        assert "a tea | b tea | c tea | d tea" == made

    in_loop(check())


@satay.workflow(name="finer.two_drafts")
async def two_drafts() -> str:
    return await pick([await draft("a"), await draft("b")])


@pytest.mark.parametrize(
    ("given", "cut"),
    [
        ({"overrides": {("finer.draft", 1): "B"}}, {"before_task": draft, "before_ordinal": 1}),
        ({"raises": {("finer.draft", 1): ValueError("given")}}, {"at": "failure"}),
    ],
)
def test_a_fork_before_a_call_makes_it_although_the_source_was_given_its_outcome(
    given: dict[str, Any], cut: dict[str, Any], tmp_path: Path
) -> None:
    async def check() -> None:
        place = tmp_path / "j"
        await run_source(place, two_drafts)
        async with open_app(place, clock=later_clock()) as app:
            given_fork = await app.fork("s", run_id="f", before_task=draft, **given)
            await asyncio.wait([asyncio.ensure_future(given_fork.result())])
            plans = [await app.plan_fork("f", **options) for options in (cut, {"fork_point_seq": 4})]
            later = await app.plan_fork("f", **cut, overrides={("finer.draft", 1): "C"})
        ran.clear()
        result, receipt = await fork_of(place, "g", "f", **cut)
        other, _ = await fork_of(place, "h", "f", **cut, overrides={("finer.draft", 1): "C"})
        assert ["draft b tea", "pick", "pick"] == ran
        async with open_app(place, clock=later_clock()) as app:
            for seq in (receipt.resolved_seq + 1, receipt.resolved_seq + 2):
                assert "a tea | b tea" == await (await app.fork("g", fork_point_seq=seq)).result()
        await crash_everywhere(place, "a tea | b tea", "i", "f", **cut)

        assert ("a tea | b tea", "a tea | C") == (result, other)
        actions = [{call.call: call.action for call in plan.calls}["finer.draft:1"] for plan in (*plans, later)]
        assert ["run", "override", "override"] == actions

    in_loop(check())


@satay.workflow(name="finer.race")
async def race() -> str:
    async def slow() -> str:
        await satay.sleep(60)
        return await draft("slow")

    sides = {asyncio.create_task(slow()), asyncio.create_task(waiting())}
    done, pending = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
    for side in pending:
        side.cancel()
    await asyncio.wait(pending)
    return next(iter(done)).result()


async def waiting() -> str:
    return str(await satay.wait_for_event("finer.word"))


@satay.workflow(name="finer.hears")
async def hears() -> str:
    return await waiting()


def test_a_fork_that_was_given_an_event_takes_none_that_is_sent_to_whoever_waits(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, race)
        faults = Faults().crash_after(type=EntryType.RUN_FORKED)
        async with open_app(tmp_path, faults=faults, clock=later_clock()) as app:
            forking = asyncio.ensure_future(app.fork("s", run_id="f", overrides={("finer.word", 0): "given"}))
            await faults.crashed
            forking.cancel()
            await asyncio.gather(forking, return_exceptions=True)
        async with open_app(tmp_path, clock=later_clock()) as app:
            hearing = app.start(hears, run_id="h")
            await settle(app)
            await app.send_event("finer.word", "sent")

            assert "sent" == await hearing.result()
            assert "given" == await app.resume("f").result()

    in_loop(check())


def test_the_loser_of_a_race_wins_where_it_is_given_an_outcome(tmp_path: Path) -> None:
    async def check() -> None:
        assert "slow tea" == await run_source(tmp_path / "j", race)
        result, _ = await fork_of(tmp_path / "j", overrides={("finer.word", 0): "first"})
        await crash_everywhere(tmp_path / "j", "first", "g", overrides={("finer.word", 0): "first"})
        again, _ = await fork_of(tmp_path / "j", "h", before_event="finer.word", keep_siblings=True)

        assert "first" == result
        assert "slow tea" == again

    in_loop(check())


BAD_OUTCOMES: Final[list[tuple[dict[str, Any], type[Exception], str]]] = [
    ({"overrides": {("finer.count", 9): 1}}, ForkValidationError, "never made"),
    ({"overrides": {("finer.cuont", 0): 1}}, ForkValidationError, "never made"),
    ({"overrides": {"finer.count": 1}}, ForkValidationError, "named by"),
    ({"overrides": {("finer.count", None): 1}}, ForkValidationError, "named by"),
    ({"overrides": {("finer.count", True): 1}}, ForkValidationError, "named by"),
    ({"overrides": [1]}, ForkValidationError, "mapping"),
    ({"overrides": {("finer.count", 0): "one"}}, EncodeError, "finer.count"),
    ({"overrides": {("finer.count", 0): object()}}, EncodeError, "finer.count"),
    ({"raises": {("finer.count", 0): "no error"}}, ForkValidationError, "takes an error"),
    ({"raises": {("finer.count", 0): ValueError}}, ForkValidationError, "takes an error"),
    ({"raises": {("finer.count", 0): KeyboardInterrupt()}}, ForkValidationError, "takes an error"),
    ({"raises": 5}, ForkValidationError, "mapping"),
    (
        {"overrides": {("finer.count", 0): 1}, "raises": {("finer.count", 0): ValueError()}},
        ForkValidationError,
        "one outcome",
    ),
    ({"overrides": {("finer.count", 0): 1}, "after_task": "finer.count"}, ForkValidationError, "keeps the outcome"),
    ({"overrides": {("finer.count", 0): 1}, "before_task": "finer.small"}, ForkValidationError, "never scheduled"),
]


@pytest.mark.parametrize(("options", "kind", "text"), BAD_OUTCOMES)
def test_outcomes_that_cannot_be_given_are_refused(
    options: dict[str, Any], kind: type[Exception], text: str, tmp_path: Path
) -> None:
    async def check() -> None:
        await run_everything(tmp_path)
        async with open_app(tmp_path) as app:
            before = rows_of_everything(tmp_path)
            for act in (app.fork, app.plan_fork):
                with pytest.raises(kind, match=text):
                    await act("s", **options)

            assert before == rows_of_everything(tmp_path)

    in_loop(check())


BAD_OPTIONS: Final[list[tuple[dict[str, Any], type[Exception]]]] = [
    ({}, ForkValidationError),
    ({"before_task": "finer.count", "before_event": "x"}, ForkValidationError),
    ({"before_task": "finer.count", "fork_point_seq": 2}, ForkValidationError),
    ({"before_task": 5}, UsageError),
    ({"before_task": small}, UsageError),
    ({"before_child": draft}, UsageError),
    ({"before_child": "finer.smal"}, ForkValidationError),
    ({"before_event": 5}, UsageError),
    ({"before_event": "finer.none"}, ForkValidationError),
    ({"before_task": "finer.count", "before_ordinal": 9}, ForkValidationError),
    ({"before_task": "finer.count", "before_ordinal": -1}, ForkValidationError),
    ({"before_task": "finer.count", "before_ordinal": "2"}, ForkValidationError),
    ({"before_task": "finer.count", "before_ordinal": True}, ForkValidationError),
    ({"before_task": "finer.count", "before_ordinal": 1.0}, ForkValidationError),
    ({"before_task": "finer.count", "before_key": 2}, ForkValidationError),
    ({"before_task": "finer.count", "before_key": "9"}, ForkValidationError),
    ({"before_task": "finer.count", "before_key": "2", "before_ordinal": 0}, ForkValidationError),
    ({"before_key": "2"}, ForkValidationError),
    ({"after_task": "finer.count", "before_ordinal": 0}, ForkValidationError),
    ({"before_task": "finer.count", "after_ordinal": 0}, ForkValidationError),
    ({"after_task": "finer.none"}, ForkValidationError),
    ({"at": "failure"}, ForkValidationError),
    ({"at": "start"}, ForkValidationError),
    ({"fork_point_seq": 0}, ForkValidationError),
    ({"fork_point_seq": 10_000}, ForkValidationError),
    ({"after_task": "finer.count", "keep_siblings": True}, ForkValidationError),
    ({"before_task": "finer.count", "keep_siblings": "yes"}, InvalidValueError),
    ({"before_task": "finer.count", "keep_siblings": 1}, InvalidValueError),
    ({"before_task": "finer.count", "allow_unfinished": "yes"}, InvalidValueError),
    ({"before_task": "finer.count", "on_stale": "ignore"}, InvalidValueError),
    ({"before_task": "finer.count", "on_stale": None}, InvalidValueError),
    ({"before_task": "finer.count", "children": "adopt"}, InvalidValueError),
    ({"before_task": "finer.count", "children": ["fork"]}, InvalidValueError),
    ({"before_task": "finer.count", "reason": 5}, InvalidValueError),
    ({"before_task": "finer.count", "expected_head": 3}, ForkValidationError),
    ({"before_task": "finer.count", "expected_head": "3"}, InvalidValueError),
    ({"before_task": "finer.count", "intervention": object()}, EncodeError),
    ({"before_task": "finer.count", "before_tsk": 1}, UsageError),
]


@pytest.mark.parametrize(("options", "kind"), BAD_OPTIONS)
def test_bad_options_are_one_clear_error_and_nothing_is_written(
    options: dict[str, Any], kind: type[Exception], tmp_path: Path
) -> None:
    async def check() -> None:
        await run_everything(tmp_path)
        async with open_app(tmp_path) as app:
            before = rows_of_everything(tmp_path)
            for act in (app.fork, app.plan_fork):
                with pytest.raises(kind) as caught:
                    await act("s", **options)
                assert kind is type(caught.value)

            assert before == rows_of_everything(tmp_path)

    in_loop(check())


# --- stale prefixes ---------------------------------------------------------------------------------------------------


@satay.workflow(name="finer.steps")
async def steps(topic: str) -> str:
    one = await draft("plain")
    two = await draft(f"on {topic}")
    three = await draft(f"{two} with {satay.intervention()}")
    return await pick([one, two, three])


def test_stale_calls_are_listed_with_the_path_of_the_first_difference(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, steps, "tea")
        async with open_app(tmp_path) as app:
            before = rows_of_everything(tmp_path)
            plan = await app.plan_fork("s", before_task=pick, workflow_input="cake")
            assert before == rows_of_everything(tmp_path)
        _, receipt = await fork_of(tmp_path, before_task=pick, workflow_input="cake")
        _, fresh = await fork_of(tmp_path, "g", before_task=pick)
        _, changed = await fork_of(tmp_path, "h", before_task=pick, intervention="milk")

        assert [("finer.draft:1", "$.style")] == [(call.call, call.path) for call in receipt.stale_calls]
        assert receipt.stale_calls == plan.stale_calls
        assert {"finer.draft:1": receipt.stale_calls[0].path} == {
            call.call: call.stale_path for call in plan.calls if call.stale_path
        }
        assert () == fresh.stale_calls
        assert ["finer.draft:2"] == [call.call for call in changed.stale_calls]

    in_loop(check())


def test_a_stale_prefix_is_refused_or_run_again_where_that_is_asked_for(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, steps, "tea")
        async with open_app(tmp_path) as app:
            before = rows_of_everything(tmp_path)
            for act in (app.fork, app.plan_fork):
                with pytest.raises(StalePrefixError, match=r"finer\.draft:1") as caught:
                    await act("s", before_task=pick, workflow_input="cake", on_stale="error")
                assert ("finer.draft:1",) == tuple(caught.value.calls)
            assert before == rows_of_everything(tmp_path)
        ran.clear()
        result, receipt = await fork_of(tmp_path, before_task=pick, workflow_input="cake", on_stale="rerun")
        _, same_receipt = await fork_of(tmp_path, "g", before_task=pick, on_stale="rerun")

        assert "on cake tea" in result
        assert "draft plain tea" not in ran
        assert "before the call finer.draft:1, which would have other arguments now" == receipt.cut
        assert () == receipt.stale_calls
        assert "before the call finer.pick:0" == same_receipt.cut

    in_loop(check())


def test_a_call_that_is_made_again_has_no_stale_arguments_where_a_stale_sibling_moves_the_cut(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        result, receipt = await fork_of(
            tmp_path, before_task=draft, before_ordinal=1, keep_siblings=True, workflow_input="cake", on_stale="rerun"
        )
        ran.clear()
        later, later_receipt = await fork_of(
            tmp_path, "g", before_task=draft, before_ordinal=0, keep_siblings=True, workflow_input="cake",
            on_stale="rerun", overrides={("finer.draft", 1): "mine"},
        )  # fmt: skip

        assert "a cake | b cake | c cake | d cake" == result
        assert "a cake | mine | c cake | d cake" == later
        assert "before the call finer.draft:0, which would have other arguments now" == receipt.cut == later_receipt.cut
        assert () == receipt.stale_calls == later_receipt.stale_calls

    in_loop(check())


def test_a_call_whose_outcome_is_given_is_not_stale(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        given: dict[str, Any] = {"overrides": {("finer.draft", number): "mine" for number in range(4)}}
        async with open_app(tmp_path, clock=later_clock()) as app:
            plan = await app.plan_fork("s", workflow_input="cake", **given)
            fork = await app.fork("s", run_id="f", workflow_input="cake", on_stale="error", **given)
            del given["overrides"][("finer.draft", 3)]
            with pytest.raises(StalePrefixError, match=r"finer\.draft:3"):
                await app.fork("s", workflow_input="cake", on_stale="error", **given)

            assert "mine | mine | mine | mine" == await fork.result()
            assert () == plan.stale_calls == fork.receipt.stale_calls

    in_loop(check())


@satay.workflow(name="finer.stale_of_all_kinds")
async def stale_of_all_kinds(topic: str) -> list[str]:
    child = satay.start_child(small, topic)
    large = draft("x" * 300_000, topic)
    pending = asyncio.ensure_future(large)
    other = asyncio.ensure_future(draft("other"))
    return [await pending, await other, await child.result(), await pick(["end"])]


def test_a_call_that_the_source_made_again_is_stale_where_it_would_have_other_arguments_than_then(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        again: dict[str, Any] = {"before_task": draft, "before_ordinal": 1, "keep_siblings": True}
        _, receipt = await fork_of(tmp_path, workflow_input="cake", **again)
        await fork_of(tmp_path, "same", **again)
        async with open_app(tmp_path, clock=later_clock()) as app:
            pie = await app.plan_fork("f", before_task=pick, workflow_input="pie")
            cake = await app.plan_fork("f", before_task=pick)
            tea = await app.plan_fork("same", before_task=pick)
            other = await app.plan_fork("same", before_task=pick, workflow_input="pie")
            ahead = await app.plan_fork("same", fork_point_seq=receipt.resolved_seq + 1, workflow_input="pie")
            anew = await app.plan_fork("f", workflow_input="pie", **again)

        everyone = [f"finer.draft:{number}" for number in range(4)]
        siblings = [everyone[0], *everyone[2:]]
        found = [[call.call for call in plan.stale_calls] for plan in (pie, cake, tea, other, ahead, anew)]
        assert [everyone, siblings, [], everyone, siblings, siblings] == found

    in_loop(check())


def test_stale_calls_in_flight_large_arguments_and_inputs_of_children_are_listed(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, stale_of_all_kinds, "tea")
        async with open_app(tmp_path) as app:
            plan = await app.plan_fork("s", fork_point_seq=4, workflow_input="cake")
            later = await app.plan_fork("s", before_task=pick, workflow_input="cake")

        assert ["finer.small:0", "finer.draft:0"] == [call.call for call in plan.stale_calls]
        assert ["finer.small:0", "finer.draft:0"] == [call.call for call in later.stale_calls]
        assert all(call.path.startswith("$") for call in later.stale_calls)

    in_loop(check())


@satay.workflow(name="finer.awaiting")
async def awaiting(key: str | None) -> list[str]:
    got = await satay.wait_for_event("go", key=key)
    return [got, await pick(["end"])]


def test_a_wait_for_another_key_is_stale(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_app(tmp_path) as app:
            run = await app.start(awaiting, "tea", run_id="s")
            await app.send_event("go", "came", key="tea", run_id="s")
            await run.result()
            same = await app.plan_fork("s", before_task=pick, workflow_input="tea")
            plans = [await app.plan_fork("s", before_task=pick, workflow_input=key) for key in ("cake", None)]
            with pytest.raises(StalePrefixError, match=r"go:0 at \$\.match"):
                await app.fork("s", before_task=pick, workflow_input="cake", on_stale="error")
            earlier = await app.plan_fork("s", before_task=pick, workflow_input="cake", on_stale="rerun")

        assert () == same.stale_calls
        assert [[("go:0", "$.match")]] * 2 == [[(call.call, call.path) for call in plan.stale_calls] for plan in plans]
        assert "before the call go:0, which would have other arguments now" == earlier.cut

    in_loop(check())


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"before_task": "finer.draft"},
        {"before_task": "finer.draft", "before_ordinal": 2, "keep_siblings": True},
        {"fork_point_seq": 6},
        {"overrides": {("finer.draft", 1): "B"}},
        {"before_task": "finer.pick", "tool_policies": {"*": "block"}},
        {"before_task": "finer.draft", "tool_policies": {"*": "replay"}},
    ],
)
def test_a_plan_writes_nothing_and_runs_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        ran.clear()
        async with open_app(tmp_path) as app:
            before = rows_of_everything(tmp_path)
            plan = await app.plan_fork("s", **options)
            await settle(app)
            assert before == rows_of_everything(tmp_path)

        assert [] == ran
        assert 5 == len(plan.calls)
        assert str(plan)
        assert plan.to_dict()["resolved_seq"] == plan.resolved_seq

    in_loop(check())


@satay.workflow(name="finer.talkative")
async def talkative() -> str:
    await draft("a")
    pending = asyncio.ensure_future(draft("b"))
    await asyncio.sleep(0)
    satay.get_logger().info("finer.told")
    return await pending


@pytest.fixture
def _structlog_as_it_was() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_structlog_as_it_was")
def test_a_plan_logs_nothing_of_what_the_body_would_do(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, talkative)
        async with open_app(tmp_path) as app:
            with capture_logs() as planned:
                await app.plan_fork("s", after_task=draft)
            with capture_logs() as forked:
                fork = await app.fork("s", run_id="f", after_task=draft)
                await fork.result()

        assert [] == [line for line in planned if line["event"] == "finer.told"]
        assert 1 == len([line for line in forked if line["event"] == "finer.told"])

    in_loop(check())


def test_a_plan_of_a_prefix_that_the_code_does_not_follow_says_so(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, choosing, "one")
        async with open_app(tmp_path) as app:
            plan = await app.plan_fork("s", before_task=pick, workflow_input="other")

        assert plan.divergence is not None
        assert "durable call 0 diverged" in plan.divergence
        assert "drive the fork with code" in plan.divergence
        assert "~plan" not in plan.divergence
        assert "It would stop" in str(plan)

    in_loop(check())


@satay.workflow(name="finer.choosing")
async def choosing(which: str) -> str:
    if which == "one":
        await draft("one")
    else:
        await count(1)
    return await pick([which])


# --- children that are shared -----------------------------------------------------------------------------------------


@satay.workflow(name="finer.with_child")
async def with_child() -> list[Any]:
    child = satay.start_child(hundred)
    await satay.sleep(10)
    await draft("meanwhile")
    return [await child.result()]


@satay.workflow(name="finer.hundred")
async def hundred() -> str:
    await satay.sleep(100)
    return await draft("hundred")


def test_a_shared_child_answers_from_the_sources_run(tmp_path: Path) -> None:
    async def check() -> None:
        result = await run_source(tmp_path / "j", with_child)
        ran.clear()
        with untouched(tmp_path / "j", "s", "s/finer.hundred:0"):
            found, receipt = await fork_of(tmp_path / "j", before_task=draft, children="share")
        await crash_everywhere(tmp_path / "j", result, "g", before_task=draft, children="share")
        async with open_app(tmp_path / "j") as app:
            ids = [run.run_id for run in await app.runs()]

        assert result == found
        assert {"draft meanwhile tea"} == set(ran)
        assert [("finer.hundred:0", "share")] == [(call.call, call.action) for call in receipt.in_flight]
        assert {"s", "f", "s/finer.hundred:0"} == set(ids)

    in_loop(check())


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_a_shared_child_that_still_runs_is_waited_for_and_never_stopped(how: str, tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, poll_seconds=NEVER_SECONDS) as app:
            source = app.start(with_child, run_id="s")
            await source
            await settle(app)
            await clock.advance(20)
            options: dict[str, Any] = {"before_task": draft, "children": "share", "allow_unfinished": True}
            await app.fork("s", run_id="f", **options)
            ended = await app.fork("s", run_id="g", **options)
            await settle(app)
            child = rows_of_run(tmp_path, "s/finer.hundred:0")
            await getattr(app, how)("g")
            with pytest.raises(WorkflowCancelledError):
                await ended.result()
            await settle(app)
            assert child == rows_of_run(tmp_path, "s/finer.hundred:0")
            waits = {run.run_id: run.status for run in await app.runs()}["f"]
            await clock.advance(200)
            assert ["hundred tea"] == await source.result()
            assert ["hundred tea"] == await app.handle("f").result()

        assert satay.RunStatus.WAITING == waits

    in_loop(check())


def test_a_cancelled_child_cannot_be_shared(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock) as app:
            source = app.start(with_child, run_id="s")
            await source
            await settle(app)
            await clock.advance(20)
            await app.cancel("s")
            with pytest.raises(WorkflowCancelledError):
                await source.result()
            await settle(app)
            cuts: list[dict[str, Any]] = [{"before_task": draft}, {"after_task": draft}]
            for options in cuts:
                before = rows_of_everything(tmp_path)
                with pytest.raises(ForkValidationError, match="cannot be shared"):
                    await app.fork("s", run_id="f", children="share", **options)
                assert before == rows_of_everything(tmp_path)

    in_loop(check())


def test_forks_that_share_a_child_are_told_of_its_end_also_where_they_were_dropped(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, poll_seconds=NEVER_SECONDS, max_resident=1) as app:
            await app.start(with_child, run_id="s")
            await settle(app)
            await clock.advance(20)
            for number in range(3):
                await app.fork("s", run_id=f"f{number}", before_task=draft, children="share", allow_unfinished=True)
            await settle(app)
            await clock.advance(200)
            for number in range(3):
                assert ["hundred tea"] == await app.handle(f"f{number}").result()

    in_loop(check())


def test_a_fork_that_shares_a_child_is_told_of_its_end_after_a_crash(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock) as app:
            await app.start(with_child, run_id="s")
            await settle(app)
            await clock.advance(20)
            await app.fork("s", run_id="f", before_task=draft, children="share", allow_unfinished=True)
            await settle(app)
            await abandon(app)
        async with open_app(tmp_path, clock=later_clock(), recover=True, poll_seconds=NEVER_SECONDS) as app:
            assert ["hundred tea"] == await app.resume("f").result()

    in_loop(check())


@satay.workflow(name="finer.goes_on")
async def goes_on(left: int) -> str:
    await satay.sleep(50)
    if left:
        satay.continue_as_new(left - 1)
    return await draft("the end")


@satay.workflow(name="finer.with_child_that_goes_on")
async def with_child_that_goes_on() -> str:
    child = satay.start_child(goes_on, 2)
    await satay.sleep(10)
    await draft("meanwhile")
    return await child.result()


def test_a_shared_child_that_goes_on_as_a_new_run_is_followed(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, poll_seconds=NEVER_SECONDS) as app:
            await app.start(with_child_that_goes_on, run_id="s")
            await settle(app)
            options: dict[str, Any] = {"before_task": draft, "children": "share", "allow_unfinished": True}
            for run_id in ("f", "g"):  # One before the child goes on, one after.
                await clock.advance(30)
                await app.fork("s", run_id=run_id, **options)
                await settle(app)
            await clock.advance(300)
            results = [await app.handle(run_id).result() for run_id in ("s", "f", "g")]
            ids = {run.run_id for run in await app.runs()}

        assert ["the end tea"] * 3 == results
        assert {"s", "f", "g", *(f"s/finer.goes_on:0{number}" for number in ("", "~2", "~3"))} == ids

    in_loop(check())


# --- the same fork twice ----------------------------------------------------------------------------------------------


OTHERS: Final[dict[str, dict[str, Any]]] = {
    "before_ordinal": {"before_ordinal": 2},
    "before_task": {"before_task": "finer.pick", "before_ordinal": None},
    "fork_point_seq": {"before_task": None, "before_ordinal": None, "fork_point_seq": 4},
    "keep_siblings": {"keep_siblings": True},
    "workflow_input": {"workflow_input": "pie"},
    "intervention": {"intervention": {"model": 2}},
    "tool_policies": {"tool_policies": {"*": "live"}},
    "overrides": {"overrides": {("finer.pick", 0): "other"}},
    "reason": {"reason": "another"},
    "on_stale": {"on_stale": "rerun"},
    "children": {"children": "share"},
}


@pytest.mark.parametrize("what", list(OTHERS))
def test_another_request_under_the_same_id_is_a_conflict_that_names_what_differs(what: str, tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        request: dict[str, Any] = {
            "before_task": "finer.draft", "before_ordinal": 1, "workflow_input": "cake", "reason": "why",
            "intervention": {"model": 1}, "tool_policies": {"*": "auto"}, "overrides": {("finer.pick", 0): "mine"},
        }  # fmt: skip
        async with open_app(tmp_path) as app:
            fork = await app.fork("s", run_id="f", **request)
            await fork.result()
            before = rows_of_everything(tmp_path)
            same = await app.fork("s", run_id="f", **request)
            assert same.receipt.replayed
            assert not fork.receipt.replayed
            assert fork.receipt.to_json() == same.receipt.to_json()
            with pytest.raises(RunConflictError, match=rf"differently: (.*, )?{what}[ ,]"):
                await app.fork("s", run_id="f", **(request | OTHERS[what]))
            assert before == rows_of_everything(tmp_path)
        async with open_app(tmp_path) as app:
            again = await app.receipt("f")
            assert again is not None
            assert fork.receipt.to_json() == again.to_json()
            assert fork.receipt.receipt_id == again.receipt_id

    in_loop(check())


def test_the_order_of_members_and_where_an_error_was_raised_make_no_other_request(tmp_path: Path) -> None:
    def raised(message: str) -> ValueError:
        try:
            raise ValueError(message)
        except ValueError as error:
            return error

    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        call = ("finer.pick", 0)
        async with open_app(tmp_path) as app:
            fork = await app.fork("s", run_id="f", intervention={"a": 1, "b": 2}, raises={call: ValueError("no")})
            same = await app.fork("s", run_id="f", intervention={"b": 2, "a": 1}, raises={call: raised("no")})
            with pytest.raises(RunConflictError, match="overrides differs"):
                await app.fork("s", run_id="f", intervention={"a": 1, "b": 2}, raises={call: raised("never")})

        assert (False, True) == (fork.receipt.replayed, same.receipt.replayed)

    in_loop(check())


def test_the_same_fork_asked_for_at_once_is_one_fork(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, four_drafts, "tea")
        ran.clear()
        async with open_app(tmp_path) as app:
            options: dict[str, Any] = {"run_id": "f", "before_task": draft, "before_ordinal": 3, "keep_siblings": True}
            forks = await asyncio.gather(*(app.fork("s", **options) for _ in range(5)))
            results = [await fork.result() for fork in forks]

        assert 1 == len(set(results))
        assert 1 == len({fork.receipt.to_json() for fork in forks})
        assert 4 == sum(fork.receipt.replayed for fork in forks)
        assert ["draft d tea", "pick"] == ran

    in_loop(check())


def test_expected_head_guards_against_a_source_that_has_moved_on(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock) as app:
            await app.start(with_child, run_id="s")
            await settle(app)
            head = len(list(await (await app._ready()).journal.read("s")))
            options: dict[str, Any] = {"fork_point_seq": 2, "allow_unfinished": True, "expected_head": head}
            fork = await app.fork("s", run_id="f", **options)
            await settle(app)
            await clock.advance(20)
            with pytest.raises(ForkValidationError, match=f"expected_head={head}"):
                await app.fork("s", run_id="g", **options)
            with pytest.raises(ForkValidationError, match=f"expected_head={head}"):
                await app.plan_fork("s", **options)
            same = await app.fork("s", run_id="f", **options)
            assert ["s", "f"] == [run.run_id for run in reversed(await app.runs()) if "/" not in run.run_id]

        assert same.receipt.replayed
        assert head == fork.receipt.source_head

    in_loop(check())


# --- intervention -----------------------------------------------------------------------------------------------------


@satay.task(name="finer.look")
async def look() -> Any:
    return satay.intervention()


@satay.workflow(name="finer.looking_child")
async def looking_child() -> list[Any]:
    await satay.sleep(1)
    return [satay.intervention(), await look()]


@satay.workflow(name="finer.looking")
async def looking(left: int) -> list[Any]:
    await draft("a")
    child = satay.start_child(looking_child)
    found = [satay.intervention(), await look(), *await child.result()]
    await satay.sleep(3600)
    found += [satay.intervention(), await look()]
    if left and all(each == found[0] for each in found):
        satay.continue_as_new(left - 1)
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"model": "candidate", "input": {"args": [1]}, "terms": {"input": 1}},
        {"a": 1, "input": 2},
        [1, (2, "x"), None],
        Word("hello"),
        'a text with "input": and ,"input":{} in it',
        "x" * 300_000,
    ],
)
def test_an_intervention_is_read_everywhere_after_any_crash(given: Any, tmp_path: Path) -> None:
    async def check() -> None:
        assert [None] * 6 == await run_source(tmp_path / "j", looking, 1)
        expected = [given] * 6
        options: dict[str, Any] = {"before_task": draft, "intervention": given}
        result, _ = await fork_of(tmp_path / "j", **options)
        again, _ = await fork_of(tmp_path / "j", "ff", "f~2", before_task=draft)

        assert expected == restored(result, given)
        assert [None] * 6 == again
        if not isinstance(given, str):
            crashes = await crash_everywhere(tmp_path / "j", result, "g", **options)
            assert 15 <= crashes

    in_loop(check())


def restored(result: list[Any], given: Any) -> list[Any]:
    """The result as it was returned: in a list without a declared type, a dataclass stays one."""
    return [type(given)(*each) if isinstance(given, tuple) else each for each in result]


def test_policies_with_names_that_look_like_facts_do_not_disturb_the_journal(tmp_path: Path) -> None:
    async def check() -> None:
        await run_source(tmp_path, with_oddly_named_tasks, "in")
        result, receipt = await fork_of(
            tmp_path, before_task="input", tool_policies={"terms": "auto", "input": "live", "result": "block"}
        )

        assert "in!" == result
        assert {"terms": "auto", "input": "live", "result": "block"} == receipt.tool_policies

    in_loop(check())


@satay.task(name="input")
async def named_input(text: str) -> str:
    return f"{text}!"


@satay.task(name="terms")
async def named_terms(text: str) -> str:
    return text


@satay.task(name="result")
async def named_result(text: str) -> str:
    return text


@satay.workflow(name="finer.with_oddly_named_tasks")
async def with_oddly_named_tasks(text: str) -> str:
    return await named_input(await named_terms(text))
