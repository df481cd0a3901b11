"""Forks: where they are cut, what they inherit, what runs again, and that the source stays what it is."""

import asyncio
import random
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

import satay
from satay import ForkReceipt, RunStatus
from satay.divergences import CallStatus
from satay.errors import (
    AppClosedError,
    DecodeError,
    EncodeError,
    EventTimeoutError,
    ForkValidationError,
    InvalidValueError,
    JournalCorruptError,
    NeedsDecisionError,
    NondeterminismError,
    RunConflictError,
    RunNotFoundError,
    SatayError,
    UnknownWorkflowError,
    UnsupportedEntryError,
    WorkflowCancelledError,
)
from satay.journal import Append
from satay.model import Entry, EntryType
from satay.replay import facts
from satay.requests import ForkOptions
from satay.stores.locations import DATABASE_FILE
from satay.stores.sqlite import open_sqlite
from satay.testing import AppUnderTest, Faults, ManualClock, open_app, settle
from tests.driving import claim

pytestmark = pytest.mark.anyio

ran: list[str] = []
"""What the bodies of tasks did, in this process."""

effects: list[tuple[str, str]] = []
"""The keys under which tasks would act: the lineage's, and the fork's own."""


LATER = datetime(2027, 1, 1, tzinfo=UTC)
"""Long after every clock began."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _forget_what_ran() -> None:
    ran.clear()
    effects.clear()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path) as app:
        yield app


# --- reading what is stored -------------------------------------------------------------------------------------------


async def entries_of(app: AppUnderTest, run_id: str) -> list[Entry]:
    """The entries of a run, as stored."""
    journal = await open_sqlite(app.data_dir / "satay.db")
    try:
        return list(await journal.read(run_id))
    finally:
        await journal.close()


async def types_of(app: AppUnderTest, run_id: str) -> list[str]:
    return [entry.type for entry in await entries_of(app, run_id)]


async def seq_of(app: AppUnderTest, run_id: str, type: EntryType, nth: int = 0) -> int:
    """The seq of the `nth` entry of a type, from zero."""
    return [entry.seq for entry in await entries_of(app, run_id) if entry.type == type][nth]


def rows_of(app: AppUnderTest, run_id: str) -> list[Any]:
    """Every row that the database holds about a run."""
    with sqlite3.connect(app.data_dir / "satay.db") as connection:
        found: list[Any] = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchall()
        for table in ("events", "inbox", "waits"):
            found += connection.execute(f"SELECT * FROM {table} WHERE run = ?", (found[0][0],)).fetchall()
    connection.close()
    return found


def run_ids(app: AppUnderTest) -> list[str]:
    with sqlite3.connect(app.data_dir / "satay.db") as connection:
        found = [row[0] for row in connection.execute("SELECT run_id FROM runs ORDER BY key")]
    connection.close()
    return found


@contextmanager
def untouched(app: AppUnderTest, *ids: str) -> Iterator[None]:
    """The rows of these runs are the same, byte for byte, before and after."""
    before = [rows_of(app, run_id) for run_id in ids]
    yield
    assert before == [rows_of(app, run_id) for run_id in ids]


async def check_prefix(app: AppUnderTest, source_id: str, receipt: ForkReceipt) -> None:
    """What the fork inherited is what the source holds, byte for byte, and digests the same."""
    source, fork = await entries_of(app, source_id), await entries_of(app, receipt.run_id)
    cut = receipt.resolved_seq

    assert source[1:cut] == fork[1:cut]
    assert receipt.prefix_digest == source[cut - 1].digest.hex() == fork[cut - 1].digest.hex()
    assert EntryType.RUN_FORKED == fork[cut].type
    assert source[cut - 1].type == receipt.resolved_entry


# --- the programs that are forked -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brief:
    topic: str
    style: str = "plain"


@satay.task(name="forks.plan")
async def plan(topic: str) -> str:
    ran.append("plan")
    return f"plan of {topic}"


@satay.task(name="forks.research")
async def research(topic: str) -> list[str]:
    ran.append("research")
    return [f"{topic} one", f"{topic} two"]


@satay.task(name="forks.synthesize")
def synthesize(notes: list[str], style: str) -> str:
    ran.append("synthesize")
    return f"{style}: {', '.join(notes)}"


@satay.workflow(name="forks.report")
async def report(brief: Brief) -> str:
    await plan(brief.topic)
    notes = await research(brief.topic)
    return await synthesize(notes, brief.style)


@satay.task(name="forks.draft")
async def draft(number: int) -> str:
    ran.append(f"draft {number}")
    return f"draft {number}"


@satay.workflow(name="forks.drafts")
async def drafts(count: int) -> list[str]:
    return [await draft(number) for number in range(count)]


@satay.task(name="forks.step")
async def step(name: str) -> str:
    ran.append(name)
    return name


@satay.workflow(name="forks.no_task")
async def no_task() -> str:
    await satay.sleep(1)
    return "done"


async def finished(app: AppUnderTest, workflow: "satay.Workflow[Any, Any]", input: Any = satay.MISSING) -> Any:
    """Run a source to its end, under the id `src`, and forget what it did."""
    result = await app.start(workflow, input, run_id="src").result()
    ran.clear()
    effects.clear()
    return result


# --- choosing where to cut --------------------------------------------------------------------------------------------


async def test_a_fork_before_a_task_runs_that_task_again_and_nothing_before_it(app: AppUnderTest) -> None:
    expected = await finished(app, report, Brief("acme"))
    with untouched(app, "src"):
        fork = await satay.fork("src", before_task="forks.synthesize")
        result = await fork.result()

    assert expected == result
    assert ["synthesize"] == ran
    await check_prefix(app, "src", fork.receipt)


async def test_the_prefix_ends_immediately_before_the_task_was_scheduled(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    scheduled = await seq_of(app, "src", EntryType.TASK_SCHEDULED, 2)
    fork = await satay.fork("src", before_task="forks.synthesize")

    assert scheduled - 1 == fork.receipt.resolved_seq
    assert EntryType.TASK_COMPLETED == fork.receipt.resolved_entry


async def test_a_fork_works_on_the_default_app_of_a_directory(tmp_path: Path) -> None:
    async with satay.run_app(data_dir=tmp_path) as app:
        handle = satay.start(report, Brief("acme"))
        expected = await handle.result()
        fork = await satay.fork(handle.run_id, before_task="forks.synthesize")

        assert expected == await fork.result()
        assert fork.receipt == await app.receipt(fork.run_id)


async def test_without_an_ordinal_a_task_that_ran_often_is_cut_at_its_earliest_call(app: AppUnderTest) -> None:
    await finished(app, drafts, 4)
    fork = await satay.fork("src", before_task="forks.draft")
    await fork.result()

    assert ["draft 0", "draft 1", "draft 2", "draft 3"] == ran
    assert fork.receipt.resolved_seq == 1


@pytest.mark.parametrize("ordinal", [0, 1, 2, 3])
async def test_before_ordinal_names_a_call_counting_from_zero(app: AppUnderTest, ordinal: int) -> None:
    await finished(app, drafts, 4)
    fork = await satay.fork("src", before_task="forks.draft", before_ordinal=ordinal)
    await fork.result()
    comparison = await satay.compare("src", fork.run_id)

    assert [f"draft {number}" for number in range(ordinal, 4)] == ran
    assert [f"forks.draft:{number}" for number in range(4)] == [str(call.identity) for call in comparison.calls]
    assert [CallStatus.REPLAYED] * ordinal + [CallStatus.SAME] * (4 - ordinal) == [
        call.status for call in comparison.calls
    ]


async def test_a_task_that_never_ran_is_refused_with_the_names_that_did(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    with pytest.raises(ForkValidationError) as caught:
        await satay.fork("src", before_task="sythesize")

    assert (
        "run 'src' never scheduled a task named 'sythesize'; it ran 'forks.plan', 'forks.research', "
        "'forks.synthesize'; did you mean 'forks.synthesize'?" == str(caught.value)
    )
    assert "src" == caught.value.run_id
    assert ["src"] == run_ids(app)


async def test_a_task_is_not_found_in_a_run_that_called_none(app: AppUnderTest) -> None:
    await finished(app, no_task)
    with pytest.raises(ForkValidationError, match="never scheduled a task named 'timer'; it ran no task"):
        await satay.fork("src", before_task="timer")


@pytest.mark.parametrize("ordinal", [4, 99, -1])
async def test_an_ordinal_that_never_ran_is_refused_with_the_ordinals_that_did(app: AppUnderTest, ordinal: int) -> None:
    await finished(app, drafts, 3)
    with pytest.raises(ForkValidationError, match=r"forks\.draft:0, forks\.draft:1, forks\.draft:2"):
        await satay.fork("src", before_task="forks.draft", before_ordinal=ordinal)

    assert ["src"] == run_ids(app)


@pytest.mark.parametrize(
    ("seq", "again"),
    [
        (1, ["plan", "research", "synthesize"]),
        (2, ["plan", "research", "synthesize"]),
        (3, ["research", "synthesize"]),
        (4, ["research", "synthesize"]),
        (5, ["synthesize"]),
        (6, ["synthesize"]),
        (7, []),
    ],
)
async def test_fork_point_seq_keeps_entries_up_to_and_including_that_one(
    app: AppUnderTest, seq: int, again: list[str]
) -> None:
    expected = await finished(app, report, Brief("acme"))
    with untouched(app, "src"):
        fork = await satay.fork("src", fork_point_seq=seq)
        result = await fork.result()

    assert expected == result
    assert seq == fork.receipt.resolved_seq
    assert again == ran
    await check_prefix(app, "src", fork.receipt)


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"before_task": "forks.draft", "fork_point_seq": 2},
        {"before_ordinal": 1},
        {"before_key": "a"},
        {"fork_point_seq": 2, "before_ordinal": 0},
        {"fork_point_seq": 2, "before_key": "a"},
        {"before_task": "forks.draft", "before_ordinal": 0, "before_key": "a"},
        {"fork_point_seq": 0},
        {"fork_point_seq": -1},
        {"fork_point_seq": True},
        {"fork_point_seq": 2.0},
        {"fork_point_seq": "2"},
        {"before_task": "forks.draft", "before_ordinal": True},
        {"before_task": "forks.draft", "before_ordinal": "0"},
        {"before_task": "forks.draft", "before_key": 0},
    ],
    ids=str,
)
async def test_a_cut_that_says_nothing_or_two_things_is_refused_and_nothing_is_written(
    app: AppUnderTest, cut: dict[str, Any]
) -> None:
    await finished(app, drafts, 2)
    with untouched(app, "src"), pytest.raises(ForkValidationError, match="'src'"):
        await satay.fork("src", **cut)

    assert ["src"] == run_ids(app)


@satay.workflow(name="forks.pages")
async def pages(names: list[str]) -> list[str]:
    return await satay.map(step, names, key=lambda name: f"key {name}")


async def test_an_item_of_a_map_is_cut_at_by_its_key(app: AppUnderTest) -> None:
    await finished(app, pages, ["a", "b", "c"])
    fork = await satay.fork("src", before_task="forks.step", before_key="key b")

    assert ["a", "b", "c"] == await fork.result()
    assert ["forks.step[key a]"] == list(fork.receipt.calls_in_flight)
    assert ["a", "b", "c"] == sorted(ran)


async def test_an_item_of_a_map_has_no_ordinal(app: AppUnderTest) -> None:
    await finished(app, pages, ["a", "b"])
    with pytest.raises(ForkValidationError, match=r"forks\.step\[key a\], forks\.step\[key b\]"):
        await satay.fork("src", before_task="forks.step", before_ordinal=1)
    with pytest.raises(ForkValidationError, match="the key 'key z'"):
        await satay.fork("src", before_task="forks.step", before_key="key z")
    fork = await satay.fork("src", fork_point_seq=await seq_of(app, "src", EntryType.TASK_COMPLETED))

    assert ["a", "b"] == await fork.result()
    assert ["b"] == ran


async def test_a_key_that_looks_like_an_ordinal_is_a_key(app: AppUnderTest) -> None:
    await finished(app, numbered_pages, 3)
    with pytest.raises(ForkValidationError, match="the ordinal 1"):
        await satay.fork("src", before_task="forks.step", before_ordinal=1)
    fork = await satay.fork("src", before_task="forks.step", before_key="1")

    assert ("forks.step[0]",) == fork.receipt.calls_in_flight


@satay.workflow(name="forks.numbered_pages")
async def numbered_pages(count: int) -> list[str]:
    return await satay.map(step, [str(number) for number in range(count)], key=str)


@pytest.mark.parametrize("past", [0, 1, 1000])
@pytest.mark.parametrize("override", [{}, {"workflow_input": 3}], ids=["same input", "other input"])
async def test_a_cut_at_or_past_the_end_is_refused_because_nothing_would_run_again(
    app: AppUnderTest, past: int, override: dict[str, Any]
) -> None:
    await finished(app, drafts, 2)
    last = len(await entries_of(app, "src"))
    with pytest.raises(ForkValidationError, match="nothing would run again"):
        await satay.fork("src", fork_point_seq=last + past, **override)

    assert ["src"] == run_ids(app)


async def test_an_unknown_source_is_refused(app: AppUnderTest) -> None:
    with pytest.raises(RunNotFoundError, match="there is no run 'nowhere'"):
        await satay.fork("nowhere", fork_point_seq=1)


async def test_a_source_whose_code_is_not_imported_is_refused_and_nothing_is_written(app: AppUnderTest) -> None:
    await finished(app, drafts, 1)
    with sqlite3.connect(app.data_dir / "satay.db") as connection:
        connection.execute("UPDATE runs SET workflow = 'forks.gone' WHERE run_id = 'src'")
    connection.close()
    with pytest.raises(UnknownWorkflowError, match=r"forks\.gone"):
        await satay.fork("src", fork_point_seq=1)

    assert ["src"] == run_ids(app)


# --- another input ----------------------------------------------------------------------------------------------------


async def test_calls_after_the_cut_see_the_new_input_and_calls_before_it_are_reused(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.synthesize", workflow_input=Brief("other", "sceptical"))

    assert "sceptical: acme one, acme two" == await fork.result()
    assert ["synthesize"] == ran


async def test_a_cut_before_the_first_call_that_should_see_the_new_input_runs_it_again(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.research", workflow_input=Brief("other"))

    assert "plain: other one, other two" == await fork.result()
    assert ["research", "synthesize"] == ran


async def test_the_new_input_is_in_the_forks_own_creation_and_the_source_keeps_its_own(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.synthesize", workflow_input=Brief("other"))
    await fork.result()
    own, source = (await entries_of(app, fork.run_id))[0], (await entries_of(app, "src"))[0]

    assert {"brief": {"topic": "other", "style": "plain"}} == facts(own)["input"]
    assert {"brief": {"topic": "acme", "style": "plain"}} == facts(source)["input"]
    assert fork.receipt.input_overridden
    receipt = facts((await entries_of(app, fork.run_id))[fork.receipt.resolved_seq])["receipt"]
    assert receipt["input_overridden"] is True


async def test_a_fork_without_an_input_has_its_sources(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", fork_point_seq=1)
    await fork.result()

    assert facts((await entries_of(app, "src"))[0])["input"] == facts((await entries_of(app, fork.run_id))[0])["input"]
    assert not fork.receipt.input_overridden


@satay.workflow(name="forks.optional")
async def optional(name: str | None = "default") -> str:
    return await step(f"{name}")


async def test_a_missing_input_and_none_are_different_requests(app: AppUnderTest) -> None:
    await finished(app, optional, "given")
    kept = await satay.fork("src", before_task="forks.step")
    none = await satay.fork("src", before_task="forks.step", workflow_input=None)

    assert "given" == await kept.result()
    assert "None" == await none.result()
    assert [False, True] == [kept.receipt.input_overridden, none.receipt.input_overridden]


async def test_an_input_that_is_falsy_is_an_input(app: AppUnderTest) -> None:
    await finished(app, drafts, 2)
    fork = await satay.fork("src", before_task="forks.draft", workflow_input=0)

    assert [] == await fork.result()
    assert fork.receipt.input_overridden


async def test_an_input_equal_to_the_sources_is_an_override_all_the_same(app: AppUnderTest) -> None:
    await finished(app, drafts, 2)
    fork = await satay.fork("src", before_task="forks.draft", workflow_input=2)

    assert fork.receipt.input_overridden


@pytest.mark.parametrize(
    "wrong", ["acme", 7, None, {"topic": 1}, object()], ids=["text", "number", "none", "dict", "object"]
)
async def test_an_input_of_another_type_is_refused_and_nothing_is_written(app: AppUnderTest, wrong: object) -> None:
    await finished(app, report, Brief("acme"))
    with untouched(app, "src"), pytest.raises(EncodeError, match=r"the input of workflow 'forks\.report'"):
        await satay.fork("src", before_task="forks.synthesize", workflow_input=wrong)

    assert ["src"] == run_ids(app)


async def test_an_input_for_a_workflow_that_takes_none_is_refused(app: AppUnderTest) -> None:
    await finished(app, no_task)
    with pytest.raises(SatayError, match=r"forks\.no_task"):
        await satay.fork("src", fork_point_seq=1, workflow_input=3)

    assert ["src"] == run_ids(app)


@satay.workflow(name="forks.naps")
async def naps(name: str) -> str:
    await step("before")
    await satay.sleep(60)
    return await step(name)


async def test_a_fork_that_parks_and_wakes_in_another_process_has_its_own_input(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, naps, "old")
    async with open_app(tmp_path, clock=ManualClock()) as app:
        fork = await satay.fork("src", fork_point_seq=3, workflow_input="new", run_id="fork")
        await settle(app)

        assert RunStatus.WAITING == await fork.status()
    async with open_app(tmp_path, recover=True) as app:
        assert "new" == await app.resume("fork").result()
        assert ["new"] == ran


async def test_a_fork_that_crashes_and_is_resumed_has_its_own_input(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, report, Brief("acme"))
    faults = Faults().crash_after(type=EntryType.TASK_SCHEDULED)
    async with open_app(tmp_path, faults=faults):
        await satay.fork("src", before_task="forks.research", workflow_input=Brief("b", "new"), run_id="fork")
        await faults.crashed
    async with open_app(tmp_path) as app:
        assert "new: b one, b two" == await app.resume("fork").result()
        assert "plan" not in ran


# --- data may change, the schedule may not ----------------------------------------------------------------------------


@satay.task(name="polish")
async def polish(text: str) -> str:
    ran.append("polish")
    return f"polished {text}"


@satay.task(name="shorten")
async def shorten(text: str) -> str:
    ran.append("shorten")
    return text[:3]


@satay.workflow(name="forks.edit")
async def edit(mode: dict[str, str]) -> str:
    text = await step(mode.get("text", "a long text"))
    text = await (polish(text) if mode["mode"] == "polish" else shorten(text))
    return await step(text)


async def test_an_input_that_changes_the_schedule_of_the_prefix_diverges(app: AppUnderTest) -> None:
    await finished(app, edit, {"mode": "polish"})
    cut = await seq_of(app, "src", EntryType.TASK_COMPLETED, 1)
    fork = await satay.fork("src", fork_point_seq=cut, workflow_input={"mode": "shorten"})
    before = rows_of(app, fork.run_id)[1:]
    with pytest.raises(NondeterminismError) as caught:
        await fork.result()
    await settle(app)

    assert str(caught.value).startswith("durable call 1 diverged: journal recorded 'polish', code issued 'shorten'")
    assert (fork.run_id, 1, "'polish'", "'shorten'") == (
        caught.value.run_id,
        caught.value.position,
        caught.value.recorded,
        caught.value.issued,
    )
    assert [] == ran
    assert before == rows_of(app, fork.run_id)[1:]
    assert not (await fork.status()).is_terminal


async def test_forks_of_one_prefix_are_each_held_to_its_schedule(app: AppUnderTest) -> None:
    await finished(app, edit, {"mode": "polish", "text": "one"})
    cut = await seq_of(app, "src", EntryType.TASK_COMPLETED, 1)
    inputs = [{"mode": mode, "text": text} for mode in ("polish", "shorten") for text in ("two", "one")]
    forks = [await satay.fork("src", fork_point_seq=cut, workflow_input=input) for input in inputs]
    results = await asyncio.gather(*[fork.result() for fork in forks], return_exceptions=True)

    assert ["polished one", "polished one"] == results[:2]
    assert ["durable call 1 diverged"] * 2 == [str(error).partition(":")[0] for error in results[2:]]
    assert [1, 0, 1, 0] == [fork.receipt.stale_count for fork in forks]


async def test_a_fork_before_the_branch_takes_the_other_one(app: AppUnderTest) -> None:
    await finished(app, edit, {"mode": "polish"})
    fork = await satay.fork("src", before_task="polish", workflow_input={"mode": "shorten"})

    assert "a l" == await fork.result()
    assert ["shorten", "a l"] == ran


async def test_an_input_that_changes_only_arguments_of_the_prefix_does_not_diverge(app: AppUnderTest) -> None:
    await finished(app, edit, {"mode": "polish", "text": "one"})
    cut = await seq_of(app, "src", EntryType.TASK_COMPLETED, 1)
    fork = await satay.fork("src", fork_point_seq=cut, workflow_input={"mode": "polish", "text": "two"})

    assert "polished one" == await fork.result()
    assert ["polished one"] == ran


async def test_an_input_with_which_the_code_stops_inside_the_prefix_diverges(app: AppUnderTest) -> None:
    await finished(app, drafts, 4)
    cut = await seq_of(app, "src", EntryType.TASK_COMPLETED, 2)
    fork = await satay.fork("src", fork_point_seq=cut, workflow_input=2)
    with pytest.raises(NondeterminismError) as caught:
        await fork.result()

    assert str(caught.value).startswith("durable call 2 diverged: journal recorded 'forks.draft', code ended")
    assert [] == ran


async def test_an_input_with_which_the_code_asks_for_more_after_the_cut_runs_more(app: AppUnderTest) -> None:
    await finished(app, drafts, 2)
    cut = await seq_of(app, "src", EntryType.TASK_COMPLETED, 1)
    fork = await satay.fork("src", fork_point_seq=cut, workflow_input=4)

    assert ["draft 0", "draft 1", "draft 2", "draft 3"] == await fork.result()
    assert ["draft 2", "draft 3"] == ran


@satay.workflow(name="forks.fan")
async def fan(names: list[str]) -> list[str]:
    return [*await satay.gather(*(step(name) for name in names)), await draft(1)]


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]], ids=["fewer", "more"])
async def test_another_number_of_calls_in_a_turn_of_the_prefix_diverges(app: AppUnderTest, names: list[str]) -> None:
    await finished(app, fan, ["a", "b"])
    cut = await seq_of(app, "src", EntryType.TASK_COMPLETED, 1)
    fork = await satay.fork("src", fork_point_seq=cut, workflow_input=names)
    with pytest.raises(NondeterminismError, match="diverged"):
        await fork.result()

    assert [] == ran


@satay.workflow(name="forks.kinds")
async def kinds(kind: str) -> str:
    if kind == "timer":
        await satay.sleep(1)
    elif kind == "event":
        await satay.wait_for_event("go")
    elif kind == "child":
        await satay.start_child(leaf, 1).result()
    else:
        await polish(kind)
    return await step("end")


@satay.workflow(name="forks.leaf")
async def leaf(number: int) -> int:
    ran.append(f"leaf {number}")
    return int(await draft(number) == f"draft {number}") * number


@pytest.mark.parametrize("recorded", ["timer", "event", "child", "task"])
@pytest.mark.parametrize("issued", ["timer", "event", "child", "task"])
async def test_every_kind_of_call_takes_part_in_the_check(app: AppUnderTest, recorded: str, issued: str) -> None:
    source = app.start(kinds, recorded, run_id="src")
    await source
    if recorded == "event":
        await satay.send_event("go", run_id="src")
    await source.result()
    ran.clear()
    cut = await seq_of(app, "src", EntryType.TASK_SCHEDULED, -1) - 1
    fork = await satay.fork("src", fork_point_seq=cut, workflow_input=issued)
    if recorded == issued:
        assert "end" == await fork.result()
        return
    words = {
        "timer": "a timer",
        "event": "a wait for 'go'",
        "child": "child workflow 'forks.leaf'",
        "task": "'polish'",
    }
    with pytest.raises(NondeterminismError) as caught:
        await fork.result()

    assert str(caught.value).startswith(
        f"durable call 0 diverged: journal recorded {words[recorded]}, code issued {words[issued]}"
    )
    assert [] == ran


def define_wording(*, order: Literal["first", "second"], version: str) -> "satay.Workflow[Any, str]":
    """The same workflow with code that was changed."""

    @satay.workflow(name="forks.wording")
    async def wording() -> str:
        if order == "first":
            await polish("x")
            return await step(f"first {version}")
        await shorten("x")
        return await step(f"second {version}")

    return wording


async def test_a_fork_that_diverged_goes_on_with_corrected_code(app: AppUnderTest) -> None:
    await finished(app, define_wording(order="first", version="1"))
    define_wording(order="second", version="2")
    fork = await satay.fork("src", before_task="forks.step")
    with pytest.raises(NondeterminismError, match="durable call 0 diverged"):
        await fork.result()
    define_wording(order="first", version="3")

    assert "first 3" == await app.resume(fork.run_id).result()
    assert ["first 3"] == ran


def define_growing(input_type: type[str] | type[Brief]) -> "satay.Workflow[Any, str]":
    """The same workflow, before and after its input became a record."""

    async def growing(given: Any) -> str:
        return await step(given.topic if isinstance(given, Brief) else given)

    growing.__annotations__["given"] = input_type
    return satay.workflow(name="forks.growing")(growing)


async def test_an_old_input_that_does_not_fit_the_code_of_today_is_replaced_in_a_fork(app: AppUnderTest) -> None:
    await finished(app, define_growing(str), "old")
    define_growing(Brief)
    kept = await satay.fork("src", before_task="forks.step")
    with pytest.raises(DecodeError, match=r"the input of workflow 'forks\.growing'"):
        await kept.result()
    replaced = await satay.fork("src", before_task="forks.step", workflow_input=Brief("new"))

    assert "new" == await replaced.result()
    assert ["new"] == ran


@pytest.mark.parametrize("policy", ["warn", "off"])
async def test_a_policy_that_tolerates_divergence_runs_the_other_branch(
    tmp_path: Path, policy: Literal["warn", "off"]
) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, edit, {"mode": "polish"})
        cut = await seq_of(app, "src", EntryType.TASK_COMPLETED, 1)
    async with open_app(tmp_path, nondeterminism=policy) as app:
        with untouched(app, "src"):
            fork = await satay.fork("src", fork_point_seq=cut, workflow_input={"mode": "shorten"})

            assert "a l" == await fork.result()
        assert ["shorten", "a l"] == ran
        await check_prefix(app, "src", fork.receipt)


# --- what is inherited ------------------------------------------------------------------------------------------------


async def test_a_fork_is_stamped_with_the_code_of_today(app: AppUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_CODE_VERSION", "old")
    await finished(app, define_wording(order="first", version="1"))
    monkeypatch.setenv("SATAY_CODE_VERSION", "new")
    define_wording(order="first", version="2")
    fork = await satay.fork("src", before_task="forks.step")

    assert "first 2" == await fork.result()
    assert ["old", "new"] == [fork.receipt.source_code_version, fork.receipt.code_version]
    assert ["old", "new"] == [(await app.run(run_id)).code_version for run_id in ("src", fork.run_id)]
    assert "new" == facts((await entries_of(app, fork.run_id))[0])["code_version"]


async def test_a_fresh_fork_records_no_resume(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.research")
    await fork.result()

    assert EntryType.WORKFLOW_RESUMED not in await types_of(app, fork.run_id)
    assert EntryType.TASK_ATTEMPT_STARTED not in await types_of(app, fork.run_id)


async def test_lineage_is_in_the_header_of_the_run(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.synthesize")
    await fork.result()
    header = await app.run(fork.run_id)

    assert ("src", fork.receipt.resolved_seq) == (header.forked_from, header.fork_seq)
    assert [fork.run_id] == [run.run_id for run in await app.runs(forked_from="src")]
    assert (None, None) == ((await app.run("src")).forked_from, await app.receipt("src"))


async def test_events_show_the_prefix_the_fork_and_what_ran_after_it(app: AppUnderTest) -> None:
    await finished(app, drafts, 2)
    fork = await satay.fork("src", before_task="forks.draft", before_ordinal=1)
    shown = [event.type async for event in app.events(fork.run_id)]

    assert [
        EntryType.WORKFLOW_CREATED,
        EntryType.TASK_SCHEDULED,
        EntryType.TASK_COMPLETED,
        EntryType.RUN_FORKED,
        EntryType.TASK_SCHEDULED,
        EntryType.TASK_COMPLETED,
        EntryType.WORKFLOW_COMPLETED,
    ] == shown


async def test_the_receipt_is_the_same_for_ever(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, report, Brief("acme"))
        fork = await satay.fork("src", before_task="forks.synthesize", intervention={"why": ("a", 1)}, run_id="fork")
        at_once = await app.receipt("fork")
        await fork.result()
        stored = (await entries_of(app, "fork"))[fork.receipt.resolved_seq]
    async with open_app(tmp_path) as app:
        again = await app.receipt("fork")

        assert fork.receipt == at_once == again
        assert again is not None
        assert fork.receipt.to_json() == again.to_json()
        assert again.to_json() in stored.payload
        assert stored == (await entries_of(app, "fork"))[fork.receipt.resolved_seq]
        with pytest.raises(AttributeError):
            again.run_id = "other"  # type: ignore[misc]  # a receipt is frozen


async def test_the_receipt_counts_what_was_inherited(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    receipt = (await satay.fork("src", before_task="forks.synthesize", run_id="fork")).receipt

    assert ("fork", "src", "src") == (receipt.run_id, receipt.source_id, receipt.root_id)
    assert "forks.synthesize" == receipt.requested.before_task
    assert (None, None, None) == (
        receipt.requested.before_ordinal,
        receipt.requested.before_key,
        receipt.requested.fork_point_seq,
    )
    assert (2, ()) == (receipt.calls_inherited, receipt.calls_in_flight)
    assert receipt.is_restorable


@satay.task(name="forks.priced")
async def priced(cost: float) -> float:
    satay.task_context().record_usage(model="m", input_tokens=3, cost=cost)
    return cost


@satay.workflow(name="forks.bill")
async def bill() -> float:
    return await priced(1.5) + await priced(0.25) + await priced(8.0)


async def test_the_receipt_says_what_the_prefix_saved(app: AppUnderTest) -> None:
    await finished(app, bill)
    costs = [
        (await satay.fork("src", before_task="forks.priced", before_ordinal=ordinal)).receipt.saved_cost
        for ordinal in range(3)
    ]

    assert [0.0, 1.5, 1.75] == costs


@satay.task(name="forks.look")
async def look() -> Any:
    return satay.intervention()


@satay.workflow(name="forks.intervened")
async def intervened() -> list[Any]:
    return [satay.intervention(), await look()]


@pytest.mark.parametrize("given", ["text", 0, {"a": [1, None]}, (1, 2), b"raw", datetime(2026, 1, 1)], ids=repr)  # noqa: DTZ001
async def test_an_intervention_reaches_body_and_tasks_as_it_was_given(app: AppUnderTest, given: Any) -> None:
    assert [None, None] == await finished(app, intervened)
    fork = await satay.fork("src", before_task="forks.look", intervention=given)
    result = await fork.result()
    known = await app.receipt(fork.run_id)

    assert [given, given] == result
    assert known is not None
    assert given == known.intervention


async def test_an_intervention_is_taken_as_it_is_when_the_fork_is_made(app: AppUnderTest) -> None:
    await finished(app, intervened)
    given = ["a"]
    fork = await satay.fork("src", before_task="forks.look", intervention=given)
    given.append("b")

    assert [["a"], ["a"]] == await fork.result()
    assert fork.receipt == await app.receipt(fork.run_id)


async def test_an_intervention_that_cannot_be_recorded_is_refused_and_nothing_is_written(app: AppUnderTest) -> None:
    await finished(app, intervened)
    with pytest.raises(EncodeError, match="the intervention of a fork"):
        await satay.fork("src", before_task="forks.look", intervention=object())

    assert ["src"] == run_ids(app)


async def test_a_large_intervention_is_kept(tmp_path: Path) -> None:
    faults = Faults().crash_after(type=EntryType.TASK_SCHEDULED, count=2)
    async with open_app(tmp_path, faults=faults) as app:
        await finished(app, intervened)
        fork = await satay.fork("src", before_task="forks.look", intervention=BIG, run_id="fork")
        await faults.crashed
    async with open_app(tmp_path) as app:
        assert [BIG, BIG] == await app.resume("fork").result()
        assert fork.receipt == await app.receipt("fork")
        again = await satay.fork("src", before_task="forks.look", intervention=BIG, run_id="fork")
        assert fork.receipt == again.receipt
        with pytest.raises(RunConflictError, match="intervention"):
            await satay.fork("src", before_task="forks.look", intervention=BIG + "y", run_id="fork")


async def test_an_intervention_is_not_inherited_by_a_fork_of_the_fork(app: AppUnderTest) -> None:
    await finished(app, intervened)
    fork = await satay.fork("src", before_task="forks.look", intervention="mine")
    await fork.result()
    further = await satay.fork(fork.run_id, before_task="forks.look")

    assert [None, None] == await further.result()


@satay.workflow(name="forks.chance")
async def chance() -> list[Any]:
    found: list[Any] = [satay.random().random(), str(satay.uuid4()), satay.now()]
    await step("middle")
    return [*found, satay.random().random(), str(satay.uuid4())]


async def test_chance_ids_and_time_of_the_prefix_are_inherited(app: AppUnderTest) -> None:
    source = await finished(app, chance)
    inside = await satay.fork("src", fork_point_seq=await seq_of(app, "src", EntryType.TASK_COMPLETED))
    before = await satay.fork("src", fork_point_seq=1)
    again = await app.start(chance).result()

    assert source == await inside.result()
    assert source == await before.result()
    assert source[:2] != again[:2]
    assert uuid.UUID(source[1]).version == 4


async def test_the_global_source_of_chance_is_left_alone(app: AppUnderTest) -> None:
    await finished(app, chance)
    random.seed(1)
    state = random.getstate()
    fork = await satay.fork("src", before_task="forks.step")
    await fork.result()

    assert state == random.getstate()


@satay.workflow(name="forks.clocked")
async def clocked() -> list[datetime]:
    first = satay.now()
    await satay.sleep(3600)
    second = satay.now()
    await step("end")
    return [first, second, satay.now()]


async def test_time_in_the_prefix_is_the_sources_and_after_it_the_forks(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        source = await finished(app, clocked)
        await app.clock.advance(86_400)
        fork = await satay.fork("src", before_task="forks.step")
        result = await fork.result()

    assert source[:2] == result[:2]
    assert result[2] > source[2]
    assert result == sorted(result)


BIG = "x" * 300_000
"""A text that is kept in a blob."""


@satay.task(name="forks.big")
async def big(name: str) -> str:
    ran.append(name)
    return name + BIG


@satay.workflow(name="forks.large")
async def large(text: str) -> list[int]:
    first = await big("one")
    second = await big(first[:2])
    return [len(text), len(first), len(second), len(await step("end"))]


async def test_large_values_in_the_prefix_are_shared_with_the_source(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        expected = await finished(app, large, BIG)
        count = blob_count(app)
        fork = await satay.fork("src", before_task="forks.big", before_ordinal=1, run_id="fork")
        result = await fork.result()
        other = await satay.fork("src", before_task="forks.step", workflow_input=BIG + "y", run_id="other")

        assert expected == result
        assert ["on", "end"] == ran
        assert [300_001, *expected[1:]] == await other.result()
        assert count + 1 == blob_count(app)
        await check_prefix(app, "src", fork.receipt)
    async with open_app(tmp_path) as app:
        assert expected == await app.handle("fork").result()


def blob_count(app: AppUnderTest) -> int:
    with sqlite3.connect(app.data_dir / "satay.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM blobs").fetchone()
    connection.close()
    return int(count)


@dataclass(frozen=True)
class One:
    value: int


@dataclass(frozen=True)
class Two:
    value: int


@satay.task(name="forks.ambiguous")
async def ambiguous() -> Any:
    ran.append("ambiguous")
    return Two(1)


@satay.workflow(name="forks.typed")
async def typed() -> str:
    value = await ambiguous()
    await step("after")
    return type(value).__name__


async def test_values_keep_their_type_through_forks_of_forks(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, typed)
        for source_id, fork_id in (("src", "f1"), ("f1", "f2"), ("f2", "f3")):
            fork = await satay.fork(source_id, before_task="forks.step", run_id=fork_id)

            assert "Two" == await fork.result()
        results = [
            next(entry.payload for entry in await entries_of(app, run_id) if entry.type == EntryType.TASK_COMPLETED)
            for run_id in ("src", "f1", "f2", "f3")
        ]

        assert 1 == len(set(results))
        assert "ambiguous" not in ran
    async with open_app(tmp_path) as app:
        assert "Two" == await app.handle("f3").result()


@satay.task(name="forks.broken")
async def broken(what: str) -> str:
    ran.append(f"broken {what}")
    raise LookupError(what)


@satay.workflow(name="forks.caught")
async def caught() -> str:
    try:
        await broken("x")
    except LookupError as error:
        found = str(error)
    return await step(found)


async def test_a_failure_in_the_prefix_is_inherited(app: AppUnderTest) -> None:
    expected = await finished(app, caught)
    fork = await satay.fork("src", before_task="forks.step")

    assert expected == await fork.result()
    assert [expected] == ran


@satay.task(name="forks.shaky", retries=3, backoff=10.0)
async def shaky() -> int:
    ran.append("shaky")
    if satay.task_context().attempt < 3:
        raise ConnectionError("again")
    return satay.task_context().attempt


@satay.workflow(name="forks.retried")
async def retried() -> int:
    return await shaky()


async def test_a_cut_between_attempts_goes_on_with_the_next_attempt(app: AppUnderTest) -> None:
    await finished(app, retried)
    cut = await seq_of(app, "src", EntryType.TASK_ATTEMPT_FAILED)
    fork = await satay.fork("src", fork_point_seq=cut)

    assert 3 == await fork.result()
    assert ["shaky", "shaky"] == ran


# --- the source -------------------------------------------------------------------------------------------------------


@satay.workflow(name="forks.failing")
async def failing(name: str) -> str:
    await step("before")
    if name == "bad":
        raise LookupError(name)
    return await broken(name) if name == "task" else await step(name)


@pytest.mark.parametrize("how", ["bad", "task"])
async def test_a_failed_run_is_forked(app: AppUnderTest, how: str) -> None:
    with pytest.raises(LookupError):
        await finished(app, failing, how)
    ran.clear()
    with untouched(app, "src"):
        fork = await satay.fork("src", fork_point_seq=3, workflow_input="good")

        assert "good" == await fork.result()
    assert ["good"] == ran
    with pytest.raises(ForkValidationError, match="ends with WorkflowFailed"):
        await satay.fork("src", fork_point_seq=len(await entries_of(app, "src")))


@satay.workflow(name="forks.waiting")
async def waiting() -> str:
    await step("before")
    answer: str = await satay.wait_for_event("answer")
    return await step(answer)


async def test_a_cancelled_run_is_forked_before_the_request_and_goes_on(app: AppUnderTest) -> None:
    source = app.start(waiting, run_id="src")
    await source
    await settle(app)
    await source.cancel()
    with pytest.raises(WorkflowCancelledError):
        await source.result()
    ran.clear()
    cut = await seq_of(app, "src", EntryType.WORKFLOW_CANCEL_REQUESTED)
    with untouched(app, "src"):
        fork = await satay.fork("src", fork_point_seq=cut - 1)
        await satay.send_event("answer", "yes", run_id=fork.run_id)

        assert "yes" == await fork.result()
        after = await satay.fork("src", fork_point_seq=cut)
        with pytest.raises(WorkflowCancelledError):
            await after.result()


async def test_a_run_that_has_not_ended_is_refused_unless_that_is_allowed(app: AppUnderTest) -> None:
    source = app.start(waiting, run_id="src")
    await source
    await settle(app)
    with untouched(app, "src"), pytest.raises(ForkValidationError, match="run 'src' is waiting"):
        await satay.fork("src", before_task="forks.step")
    assert ["src"] == run_ids(app)
    with untouched(app, "src"):
        fork = await satay.fork("src", before_task="forks.step", allow_unfinished=True)
        await settle(app)

        assert RunStatus.WAITING == await fork.status()
        await satay.send_event("answer", "fork", run_id=fork.run_id)
        assert "fork" == await fork.result()
    await satay.send_event("answer", "source", run_id="src")

    assert "source" == await source.result()


async def test_an_unfinished_source_is_cut_at_its_last_committed_entry(app: AppUnderTest) -> None:
    await app.start(waiting, run_id="src")
    await settle(app)
    last = len(await entries_of(app, "src"))
    with pytest.raises(ForkValidationError):
        await satay.fork("src", fork_point_seq=last + 1, allow_unfinished=True)
    fork = await satay.fork("src", fork_point_seq=last, allow_unfinished=True)
    await settle(app)

    assert RunStatus.WAITING == await fork.status()
    assert ("answer:0",) == fork.receipt.calls_in_flight


async def test_a_run_that_is_being_driven_is_not_disturbed_by_forks_of_it(app: AppUnderTest) -> None:
    source = app.start(drafts, 20, run_id="src")
    await source
    forks = []
    while not (await source.status()).is_terminal:
        forks.append(await satay.fork("src", fork_point_seq=1, allow_unfinished=True, workflow_input=1))
    results = [await fork.result() for fork in forks]

    assert [["draft 0"]] * len(forks) == results
    assert [f"draft {number}" for number in range(20)] == await source.result()


async def test_a_fork_is_readable_as_soon_as_its_id_is_known(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.synthesize", workflow_input=Brief("acme", "new"))
    status = await app.handle(fork.run_id).status()
    shown = await app.receipt(fork.run_id)

    assert status in (RunStatus.RUNNING, RunStatus.COMPLETED)
    assert shown == fork.receipt
    assert "new: acme one, acme two" == await app.handle(fork.run_id).result()


async def test_forks_of_one_source_do_not_see_each_other(app: AppUnderTest) -> None:
    expected = await finished(app, report, Brief("acme"))
    with untouched(app, "src"):
        forks = [
            await satay.fork("src", before_task="forks.synthesize", workflow_input=Brief("acme", f"style {number}"))
            for number in range(5)
        ]
        results = await asyncio.gather(*(fork.result() for fork in forks))
        third = await satay.fork("src", before_task="forks.synthesize")

        assert [f"style {number}: acme one, acme two" for number in range(5)] == results
        assert expected == await third.result()


async def test_the_events_of_a_long_fork_are_all_shown(app: AppUnderTest) -> None:
    await finished(app, drafts, 300)
    fork = await satay.fork("src", before_task="forks.draft", before_ordinal=290)
    shown = [event.seq async for event in app.events(fork.run_id)]

    assert list(range(1, len(await entries_of(app, fork.run_id)) + 1)) == shown
    assert [f"draft {number}" for number in range(290, 300)] == ran


async def test_a_run_that_stands_still_for_its_code_is_forked_before_the_trouble(app: AppUnderTest) -> None:
    await app.start(define_wording(order="first", version="1"), run_id="whole").result()
    define_wording(order="second", version="2")
    stuck = await satay.fork("whole", before_task="forks.step", run_id="src")
    with pytest.raises(NondeterminismError):
        await stuck.result()
    ran.clear()
    with untouched(app, "src"):
        fork = await satay.fork("src", before_task="polish", allow_unfinished=True)

        assert "second 2" == await fork.result()
    assert ["shorten", "second 2"] == ran


async def test_a_run_that_another_process_drives_is_forked_as_far_as_it_is_committed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock, seed=1) as one, open_app(tmp_path, clock=clock, seed=2) as two:
        source = one.start(waiting, run_id="src")
        await source
        await settle(one)
        with untouched(one, "src"):
            fork = await two.fork("src", before_task="forks.step", allow_unfinished=True)
            await two.send_event("answer", "fork", run_id=fork.run_id)

            assert "fork" == await fork.result()
        await one.send_event("answer", "source", run_id="src")

        assert "source" == await source.result()


async def test_a_closed_app_makes_no_fork(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, drafts, 1)
    with pytest.raises(AppClosedError):
        await app.fork("src", before_task="forks.draft")

    assert ["src"] == run_ids(app)


@satay.workflow(name="forks.rounds")
async def rounds(left: int) -> int:
    await draft(left)
    if left:
        satay.continue_as_new(left - 1)
    return left


async def test_a_run_that_went_on_as_another_is_forked_with_a_continuation_of_its_own(app: AppUnderTest) -> None:
    assert 0 == await finished(app, rounds, 2)
    chain = run_ids(app)
    with untouched(app, *chain):
        fork = await satay.fork("src", before_task="forks.draft", run_id="fork")

        assert 0 == await fork.result()
    assert ["src", "src~2", "src~3"] == chain
    assert [*chain, "fork", "fork~2", "fork~3"] == run_ids(app)
    assert ["draft 2", "draft 1", "draft 0"] == ran
    with pytest.raises(ForkValidationError, match="nothing would run again"):
        await satay.fork("src", fork_point_seq=len(await entries_of(app, "src")))


# --- calls in flight at the cut ---------------------------------------------------------------------------------------


@satay.task(name="forks.pure", effect="pure")
async def pure(name: str) -> int:
    ran.append(name)
    return satay.task_context().attempt


@satay.task(name="forks.idempotent", effect="idempotent")
async def idempotent(name: str) -> int:
    ran.append(name)
    context = satay.task_context()
    effects.append((context.idempotency_key, context.fork_idempotency_key))
    return satay.task_context().attempt


@satay.task(name="forks.external", effect="external")
async def external(name: str) -> int:
    ran.append(name)
    return satay.task_context().attempt


@satay.task(name="forks.undeclared")
async def undeclared(name: str) -> int:
    ran.append(name)
    return satay.task_context().attempt


TASKS: dict[str, "satay.Task[[str], int]"] = {
    "pure": pure,
    "idempotent": idempotent,
    "external": external,
    "undeclared": undeclared,
}

NAMES = {2: "one", 3: "two", 4: "three", 8: "end"}
"""What each call of `side_by_side` does, by the entry that records it."""


def in_flight_at(entries: list[Entry], seq: int) -> list[int]:
    """The calls of `side_by_side` that are recorded and not answered after an entry."""
    answered = [facts(entry)["call"] for entry in entries[:seq] if entry.type == EntryType.TASK_COMPLETED]
    return [call for call in NAMES if call <= seq and call not in answered]


@satay.workflow(name="forks.side_by_side")
async def side_by_side(effect: str) -> list[int]:
    task = TASKS[effect]
    one, two, three = await satay.gather(task("one"), task("two"), task("three"))
    return [one, two, three, await undeclared("end")]


@pytest.mark.parametrize("effect", ["pure", "idempotent", "undeclared"])
@pytest.mark.parametrize("seq", range(1, 9))
async def test_calls_in_flight_at_the_cut_run_again_as_if_they_had_never_begun(
    app: AppUnderTest, effect: str, seq: int
) -> None:
    expected = await finished(app, side_by_side, effect)
    source = await entries_of(app, "src")
    in_flight = in_flight_at(source, seq)
    with untouched(app, "src"):
        fork = await satay.fork("src", fork_point_seq=seq)
        result = await fork.result()

    assert expected == result == [1, 1, 1, 1]
    assert sorted(NAMES[call] for call in NAMES if call > seq or call in in_flight) == sorted(ran)
    assert len(in_flight) == len(fork.receipt.calls_in_flight)
    assert sum(call <= seq for call in NAMES) - len(in_flight) == fork.receipt.calls_inherited
    assert {EntryType.TASK_ATTEMPT_STARTED, EntryType.DECISION_REQUESTED}.isdisjoint(await types_of(app, fork.run_id))
    await check_prefix(app, "src", fork.receipt)


async def test_the_receipt_names_the_calls_in_flight(app: AppUnderTest) -> None:
    await finished(app, side_by_side, "pure")
    names = [(await satay.fork("src", fork_point_seq=seq)).receipt.calls_in_flight for seq in (1, 2, 4, 7)]

    assert [(), ("forks.pure:0",), ("forks.pure:0", "forks.pure:1", "forks.pure:2"), ()] == names


@pytest.mark.parametrize("seq", range(1, 8))
async def test_an_external_call_in_flight_at_the_cut_is_not_repeated_blindly(app: AppUnderTest, seq: int) -> None:
    await finished(app, side_by_side, "external")
    in_flight = in_flight_at(await entries_of(app, "src"), seq)
    with untouched(app, "src"):
        fork = await satay.fork("src", fork_point_seq=seq, tool_policies={"*": "auto"})
        await settle(app)
        began = list(ran)
        for call in in_flight:
            with pytest.raises(NeedsDecisionError):
                await fork.result()
            await satay.decide(fork.run_id, "rerun", seq=call)
            await settle(app)
        result = await fork.result()

    assert {NAMES[call] for call in in_flight}.isdisjoint(began)
    assert [2 if call in in_flight else 1 for call in NAMES] == result
    assert sorted(NAMES[call] for call in NAMES if call > seq or call in in_flight) == sorted(ran)


@satay.task(name="forks.measure")
async def measure(text: str) -> int:
    ran.append("measure")
    return len(text)


@satay.workflow(name="forks.measured")
async def measured(text: str) -> list[int]:
    one, two = await satay.gather(measure(text), satay.start_child(measured_child, text).result())
    return [one, two]


@satay.workflow(name="forks.measured_child")
async def measured_child(text: str) -> int:
    return await measure(text)


async def test_calls_in_flight_with_large_arguments_run_again(app: AppUnderTest) -> None:
    expected = await finished(app, measured, BIG)
    last = len(await entries_of(app, "src"))
    for seq in range(1, last):
        fork = await satay.fork("src", fork_point_seq=seq)

        assert expected == await fork.result()


async def test_a_large_value_that_was_lost_after_the_cut_is_not_needed(app: AppUnderTest) -> None:
    await finished(app, large, "small")
    payload = (await entries_of(app, "src"))[4].payload
    digest = payload.rpartition('_blob":"')[2].removesuffix('"}')
    with sqlite3.connect(app.data_dir / "satay.db") as connection:
        connection.execute("DELETE FROM blobs WHERE sha256 = ?", (bytes.fromhex(digest),))
    connection.close()
    with pytest.raises(JournalCorruptError):
        await satay.fork("src", before_task="forks.step")
    fork = await satay.fork("src", before_task="forks.big", before_ordinal=1)

    assert [5, 300_003, 300_002, 3] == await fork.result()


async def test_a_fork_before_an_external_call_makes_it_again(app: AppUnderTest) -> None:
    await finished(app, side_by_side, "external")
    fork = await satay.fork("src", before_task="forks.external", tool_policies={"forks.external": "auto"})

    assert [1, 1, 1, 1] == await fork.result()


async def test_an_external_call_in_flight_at_the_cut_needs_one_decision_also_if_the_fork_crashes(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, side_by_side, "external")
    faults = Faults().crash_after(type=EntryType.RUN_FORKED)
    async with open_app(tmp_path, faults=faults):
        making = asyncio.ensure_future(satay.fork("src", fork_point_seq=2, run_id="fork", tool_policies={"*": "auto"}))
        await faults.crashed
        await asyncio.wait([making])
        making.exception()
    async with open_app(tmp_path) as app:
        with pytest.raises(NeedsDecisionError):
            await app.resume("fork").result()
        await satay.decide("fork", "rerun")

        assert [2, 1, 1, 1] == await app.handle("fork").result()


@satay.workflow(name="forks.undecided")
async def undecided() -> list[int]:
    return [await external("send"), await undeclared("end")]


async def need_a_decision(place: Path) -> None:
    faults = Faults().crash_after(type=EntryType.TASK_SCHEDULED)
    async with open_app(place, faults=faults) as app:
        app.start(undecided, run_id="src")
        await faults.crashed
    async with open_app(place) as app:
        with pytest.raises(NeedsDecisionError):
            await app.resume("src").result()
    ran.clear()


async def test_a_run_that_needs_a_decision_is_forked_before_the_call(tmp_path: Path) -> None:
    await need_a_decision(tmp_path)
    async with open_app(tmp_path) as app:
        with pytest.raises(ForkValidationError, match="is needs_decision"):
            await satay.fork("src", before_task="forks.external")
        with untouched(app, "src"):
            options = ForkOptions(before_task="forks.external", allow_unfinished=True, tool_policies={"*": "auto"})
            fork = await satay.fork("src", **options)

            assert [1, 1] == await fork.result()
        assert RunStatus.NEEDS_DECISION == (await app.run("src")).status


async def test_a_cut_after_the_question_inherits_the_question(tmp_path: Path) -> None:
    await need_a_decision(tmp_path)
    async with open_app(tmp_path) as app:
        last = len(await entries_of(app, "src"))
        with untouched(app, "src"):
            policies = {"forks.external": "auto"}
            fork = await satay.fork("src", fork_point_seq=last, allow_unfinished=True, tool_policies=policies)
            with pytest.raises(NeedsDecisionError):
                await fork.result()
            await settle(app)
            assert [] == ran
            await satay.decide(fork.run_id, value=41)

            assert [41, 1] == await fork.result()
        with pytest.raises(NeedsDecisionError):
            await app.handle("src").result()


async def test_a_decision_in_the_prefix_is_inherited(tmp_path: Path) -> None:
    await need_a_decision(tmp_path)
    async with open_app(tmp_path) as app:
        await satay.decide("src", value=7)
        assert [7, 1] == await app.handle("src").result()
        ran.clear()
        fork = await satay.fork("src", before_task="forks.undeclared")

        assert [7, 1] == await fork.result()
        assert ["end"] == ran


async def interrupted(place: Path, workflow: "satay.Workflow[Any, Any]", input: Any) -> Any:
    """A source that crashed twice and was resumed, so that its journal holds resumes and repeated attempts."""
    for _ in range(2):
        faults = Faults().crash_after(type=EntryType.TASK_COMPLETED)
        async with open_app(place, faults=faults) as app:
            app.start(workflow, input, run_id="src")
            await faults.crashed
    async with open_app(place) as app:
        result = await app.resume("src").result()
    ran.clear()
    return result


@pytest.mark.parametrize("effect", ["pure", "idempotent", "undeclared"])
async def test_every_cut_of_a_source_that_crashed_can_be_forked(tmp_path: Path, effect: str) -> None:
    await interrupted(tmp_path, side_by_side, effect)
    async with open_app(tmp_path) as app:
        source = await entries_of(app, "src")
        for seq in range(1, len(source)):
            fork = await satay.fork("src", fork_point_seq=seq)

            assert 4 == len(await fork.result())
            own = (await types_of(app, fork.run_id))[seq:]
            assert {EntryType.WORKFLOW_RESUMED, EntryType.TASK_ATTEMPT_STARTED}.isdisjoint(own)
            await check_prefix(app, "src", fork.receipt)
        assert {EntryType.WORKFLOW_RESUMED, EntryType.TASK_ATTEMPT_STARTED} <= {entry.type for entry in source}


# --- identity of effects ----------------------------------------------------------------------------------------------


@satay.workflow(name="forks.keyed")
async def keyed() -> list[Any]:
    return [await idempotent("a"), await idempotent("b"), await satay.map(idempotent, ["c"], key=str)]


async def test_idempotency_keys_are_the_same_across_a_lineage_and_fork_keys_are_not(app: AppUnderTest) -> None:
    await app.start(keyed, run_id="src").result()
    source = list(effects)
    effects.clear()
    fork = await satay.fork("src", fork_point_seq=1)
    await fork.result()
    one = list(effects)
    effects.clear()
    further = await satay.fork(fork.run_id, before_task="forks.idempotent")
    await further.result()
    two = list(effects)
    effects.clear()
    await app.start(keyed, run_id="other").result()

    lineages, forks = zip(*source, strict=True)
    assert 3 == len(set(lineages))
    assert lineages == tuple(key for key, _ in one) == tuple(key for key, _ in two)
    assert 9 == len({*forks, *(key for _, key in one), *(key for _, key in two)})
    assert set(lineages).isdisjoint(key for key, _ in effects)


async def test_ordinals_count_inherited_and_new_calls(app: AppUnderTest) -> None:
    await finished(app, drafts, 2)
    fork = await satay.fork("src", before_task="forks.draft", before_ordinal=1, workflow_input=4)
    await fork.result()
    named = [
        facts(entry)["ordinal"]
        for entry in await entries_of(app, fork.run_id)
        if entry.type == EntryType.TASK_SCHEDULED
    ]

    assert [0, 1, 2, 3] == named


async def test_a_start_key_keeps_naming_the_original_run(app: AppUnderTest) -> None:
    source = app.start(drafts, 2, idempotency_key="K")
    await source.result()
    fork = await satay.fork(source.run_id, before_task="forks.draft")
    await fork.result()
    again = await app.start(drafts, 5, idempotency_key="K")

    assert source.run_id == again.run_id
    assert fork.run_id != again.run_id


# --- timers, events and children of the prefix ------------------------------------------------------------------------


@satay.workflow(name="forks.approval")
async def approval() -> list[str]:
    first = await step("ask")
    answer: str = await satay.wait_for_event("approval", key="k")
    await satay.sleep(600)
    return [first, answer, await step(f"done {answer}")]


async def approved(app: AppUnderTest) -> list[str]:
    source = app.start(approval, run_id="src")
    await source
    await satay.send_event("approval", "yes", key="k", run_id="src", event_id="m")
    result = await source.result()
    ran.clear()
    return result


async def test_an_event_and_a_timer_of_the_prefix_are_inherited(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        expected = await approved(app)
    async with open_app(tmp_path, clock=ManualClock()) as app:
        with untouched(app, "src"):
            fork = await satay.fork("src", before_task="forks.step", before_ordinal=1)

            assert expected == await fork.result()
        assert ["done yes"] == ran
        assert [] == rows_of(app, fork.run_id)[1 + len(await entries_of(app, fork.run_id)) :]


async def test_a_fork_before_the_event_waits_again_for_one_of_its_own(app: AppUnderTest) -> None:
    await approved(app)
    with untouched(app, "src"):
        fork = await satay.fork("src", before_task="forks.step")
        sibling = await satay.fork("src", before_task="forks.step")
        await settle(app)

        assert [RunStatus.WAITING] * 2 == [await fork.status(), await sibling.status()]
        await satay.send_event("approval", "no", key="k", run_id=fork.run_id)
        assert ["ask", "no", "done no"] == await fork.result()
        assert RunStatus.WAITING == await sibling.status()
        await satay.send_event("approval", "later", key="k", run_id=sibling.run_id)
        assert ["ask", "later", "done later"] == await sibling.result()


async def test_a_wait_that_is_open_at_the_cut_is_open_in_the_fork(app: AppUnderTest) -> None:
    await approved(app)
    cut = await seq_of(app, "src", EntryType.EVENT_WAIT_STARTED)
    with untouched(app, "src"):
        fork = await satay.fork("src", fork_point_seq=cut)
        await settle(app)

        assert RunStatus.WAITING == await fork.status()
        await satay.send_event("approval", "wrong key", key="other", run_id=fork.run_id)
        await satay.send_event("approval", "no", key="k", run_id=fork.run_id)
        assert ["ask", "no", "done no"] == await fork.result()
    assert ["done no"] == ran


async def test_a_cut_at_the_event_keeps_the_event(app: AppUnderTest) -> None:
    expected = await approved(app)
    fork = await satay.fork("src", fork_point_seq=await seq_of(app, "src", EntryType.EXTERNAL_EVENT_RECEIVED))

    assert expected == await fork.result()
    assert EntryType.TIMER_CREATED in (await types_of(app, fork.run_id))[fork.receipt.resolved_seq :]


async def test_events_to_an_unfinished_source_never_reach_its_fork_nor_the_other_way_round(app: AppUnderTest) -> None:
    source = app.start(approval, run_id="src")
    await source
    await settle(app)
    fork = await satay.fork(
        "src", fork_point_seq=len(await entries_of(app, "src")), allow_unfinished=True, run_id="fork"
    )
    await satay.send_event("approval", "fork", key="k", run_id="fork")

    assert "fork" == (await fork.result())[1]
    assert RunStatus.WAITING == await source.status()
    await satay.send_event("approval", "source", key="k", run_id="src")
    assert "source" == (await source.result())[1]
    assert "fork" == (await fork.result())[1]


async def test_an_event_waiting_in_the_inbox_of_the_source_stays_there(app: AppUnderTest) -> None:
    source = app.start(waiting, run_id="src")
    await source
    await satay.send_event("never", "unread", run_id="src")
    await satay.send_event("answer", "yes", run_id="src")
    await source.result()
    with untouched(app, "src"):
        fork = await satay.fork("src", fork_point_seq=3)
        await settle(app)

        assert RunStatus.WAITING == await fork.status()
        await fork.cancel()
        with pytest.raises(WorkflowCancelledError):
            await fork.result()


async def test_an_event_for_a_fork_that_nobody_drives_is_there_when_it_is_resumed(tmp_path: Path) -> None:
    faults = Faults().crash_after(type=EntryType.RUN_FORKED)
    async with open_app(tmp_path) as app:
        await approved(app)
        cut = await seq_of(app, "src", EntryType.EVENT_WAIT_STARTED)
    async with open_app(tmp_path, faults=faults):
        making = asyncio.ensure_future(satay.fork("src", fork_point_seq=cut, run_id="fork"))
        await faults.crashed
        await asyncio.wait([making])
        making.exception()
    async with open_app(tmp_path) as app:
        await satay.send_event("approval", "no", key="k", run_id="fork")

        assert ["ask", "no", "done no"] == await app.resume("fork").result()
        assert ["done no"] == ran


async def test_event_ids_are_told_apart_by_receiver(app: AppUnderTest) -> None:
    await approved(app)
    fork = await satay.fork("src", before_task="forks.step")
    first = await satay.send_event("approval", "no", key="k", run_id=fork.run_id, event_id="m")
    second = await satay.send_event("approval", "twice", key="k", run_id=fork.run_id, event_id="m")

    assert [True, False] == [first, second]
    assert ["ask", "no", "done no"] == await fork.result()


async def test_an_event_to_whoever_waits_goes_to_one_of_source_and_fork(app: AppUnderTest) -> None:
    source = app.start(waiting, run_id="src")
    await source
    await settle(app)
    fork = await satay.fork(
        "src", fork_point_seq=len(await entries_of(app, "src")), allow_unfinished=True, run_id="fork"
    )
    await settle(app)
    await satay.send_event("answer", "first")

    assert "first" == await source.result()
    await settle(app)
    assert RunStatus.WAITING == await fork.status()
    await satay.send_event("answer", "second")
    assert "second" == await fork.result()


@satay.workflow(name="forks.patient")
async def patient() -> str:
    try:
        found: str = await satay.wait_for_event("answer", timeout=60)
    except EventTimeoutError:
        found = "timed out"
    return await step(found)


async def test_a_wait_that_timed_out_in_the_prefix_has_timed_out_in_the_fork(app: AppUnderTest) -> None:
    await finished(app, patient)
    fork = await satay.fork("src", before_task="forks.step")

    assert "timed out" == await fork.result()
    assert 1 == (await types_of(app, fork.run_id)).count(EntryType.EVENT_WAIT_TIMED_OUT)


async def test_a_wait_that_is_open_at_the_cut_times_out_in_the_fork(app: AppUnderTest) -> None:
    await finished(app, patient)
    fork = await satay.fork("src", fork_point_seq=2)

    assert "timed out" == await fork.result()
    assert 2 == fork.receipt.resolved_seq


async def test_a_timer_that_is_open_at_the_cut_has_the_time_that_it_had_left(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, naps, "end")
        cut = await seq_of(app, "src", EntryType.TIMER_CREATED)
        now = app.clock.now()
        fork = await satay.fork("src", fork_point_seq=cut)

        assert "end" == await fork.result()
        assert now + 60_000_000 == app.clock.now()


async def test_a_timer_that_is_open_at_the_cut_and_due_in_the_future_is_waited_for(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app:
        await app.start(naps, "end", run_id="src")
        await settle(app)
        last = len(await entries_of(app, "src"))
        fork = await satay.fork("src", fork_point_seq=last, allow_unfinished=True)
        await settle(app)
        wake_ats = [(await app.run(run_id)).wake_at for run_id in ("src", fork.run_id)]

        assert wake_ats[0] is not None
        assert wake_ats[0] == wake_ats[1]
        await app.clock.advance(59)
        assert RunStatus.WAITING == await fork.status()
        await app.clock.advance(1)
        assert ["end", "end"] == [await app.handle("src").result(), await fork.result()]


async def test_a_cut_at_a_fired_timer_does_not_sleep_again(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, naps, "end")
    async with open_app(tmp_path, clock=ManualClock()) as app:
        fork = await satay.fork("src", fork_point_seq=await seq_of(app, "src", EntryType.TIMER_FIRED))

        assert "end" == await fork.result()
        assert ["end"] == ran


async def test_a_timeout_after_the_cut_counts_from_the_fork(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, patient)
    async with open_app(tmp_path, clock=ManualClock(start=LATER)) as app:
        fork = await satay.fork("src", fork_point_seq=1)
        await settle(app)
        assert RunStatus.WAITING == await fork.status()
        await satay.send_event("answer", "in time", run_id=fork.run_id)

        assert "in time" == await fork.result()


async def test_a_cut_before_a_sleep_sleeps_again(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, naps, "end")
        now = app.clock.now()
        fork = await satay.fork("src", fork_point_seq=await seq_of(app, "src", EntryType.TIMER_CREATED) - 1)
        await fork.result()

        assert now + 60_000_000 == app.clock.now()


@satay.workflow(name="forks.parent")
async def parent(number: int) -> list[Any]:
    child = satay.start_child(leaf, number, key="k")
    found = await child.result()
    return [child.run_id, found, await step("end")]


async def test_a_child_of_the_prefix_is_shared_with_the_source(app: AppUnderTest) -> None:
    expected = await finished(app, parent, 3)
    child_id = expected[0]
    with untouched(app, "src", child_id):
        fork = await satay.fork("src", before_task="forks.step")

        assert expected == await fork.result()
    assert ["end"] == ran
    assert ["src", child_id, fork.run_id] == run_ids(app)


async def test_a_child_after_the_cut_is_a_fresh_one_with_the_new_input(app: AppUnderTest) -> None:
    source = await finished(app, parent, 3)
    with untouched(app, "src", source[0]):
        fork = await satay.fork("src", fork_point_seq=1, workflow_input=10)
        child_id, found, _ = await fork.result()

    assert 10 == found
    assert child_id != source[0]
    assert ["leaf 10", "draft 10", "end"] == ran
    assert fork.run_id == (await app.run(child_id)).parent_id


async def test_a_child_in_flight_at_the_cut_is_a_fresh_one(app: AppUnderTest) -> None:
    source = await finished(app, parent, 3)
    cut = await seq_of(app, "src", EntryType.CHILD_WORKFLOW_SCHEDULED)
    with untouched(app, "src", source[0]):
        fork = await satay.fork("src", fork_point_seq=cut)
        child_id, found, _ = await fork.result()

    assert 3 == found
    assert child_id != source[0]
    assert fork.run_id == (await app.run(child_id)).parent_id
    assert ["leaf 3", "draft 3", "end"] == ran


async def test_a_cut_at_the_completion_of_a_child_keeps_it(app: AppUnderTest) -> None:
    expected = await finished(app, parent, 3)
    cut = await seq_of(app, "src", EntryType.CHILD_WORKFLOW_COMPLETED)
    fork = await satay.fork("src", fork_point_seq=cut)

    assert expected == await fork.result()
    assert ["end"] == ran


@satay.workflow(name="forks.long_parent")
async def long_parent() -> list[Any]:
    child = satay.start_child(leaf, 1)
    slow = satay.start_child(slow_child)
    found = await child.result()
    await satay.sleep(10)
    answer: str = await satay.wait_for_event("answer")
    return [found, answer, await slow.result()]


@satay.workflow(name="forks.slow_child")
async def slow_child() -> str:
    await satay.wait_for_event("release")
    return "slow"


async def test_cancelling_a_fork_never_touches_the_children_of_its_source(app: AppUnderTest) -> None:
    source = app.start(long_parent, run_id="src")
    await source
    await settle(app)
    children = [run_id for run_id in run_ids(app) if run_id != "src"]
    last = len(await entries_of(app, "src"))
    with untouched(app, "src", *children):
        fork = await satay.fork("src", fork_point_seq=last, allow_unfinished=True)
        await settle(app)
        own = [run.run_id for run in await app.runs() if run.parent_id == fork.run_id]
        await fork.cancel()
        with pytest.raises(WorkflowCancelledError):
            await fork.result()
        await settle(app)

    assert 1 == len(own)
    assert RunStatus.CANCELLED == (await app.run(own[0])).status
    assert [RunStatus.COMPLETED, RunStatus.WAITING] == [(await app.run(child)).status for child in children]
    await satay.send_event("answer", "yes", run_id="src")
    await satay.send_event("release", run_id=children[1])
    assert [1, "yes", "slow"] == await source.result()


async def test_a_fork_of_a_child_is_a_run_of_its_own(app: AppUnderTest) -> None:
    child_id = (await finished(app, parent, 3))[0]
    with untouched(app, "src", child_id):
        fork = await satay.fork(child_id, before_task="forks.draft", workflow_input=5)

        assert 5 == await fork.result()
    assert (await app.run(fork.run_id)).parent_id is None


# --- asking for a fork twice ------------------------------------------------------------------------------------------


async def test_the_same_fork_under_the_same_id_is_the_same_fork(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    asked: dict[str, Any] = {
        "before_task": "forks.synthesize",
        "workflow_input": Brief("acme", "new"),
        "intervention": {"a": 1},
        "run_id": "fork",
    }
    first = await satay.fork("src", **asked)
    second = await satay.fork("src", **asked)
    results = [await first.result(), await second.result()]
    third = await satay.fork("src", **asked)

    assert first.receipt == second.receipt == third.receipt
    assert ["new: acme one, acme two"] * 3 == [*results, await third.result()]
    assert ["synthesize"] == ran
    assert ["src", "fork"] == run_ids(app)


@pytest.mark.parametrize(
    "other",
    [
        {"before_task": "forks.research"},
        {"before_task": "forks.synthesize", "before_ordinal": 0},
        {"fork_point_seq": 5},
        {"before_task": "forks.synthesize", "workflow_input": Brief("acme")},
        {"before_task": "forks.synthesize", "intervention": 1},
    ],
    ids=str,
)
async def test_another_fork_under_the_same_id_is_a_conflict(app: AppUnderTest, other: dict[str, Any]) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.synthesize", run_id="fork")
    await fork.result()
    with untouched(app, "src", "fork"), pytest.raises(RunConflictError, match="'fork'"):
        await satay.fork("src", run_id="fork", **other)

    assert ["src", "fork"] == run_ids(app)


async def test_a_fork_with_another_override_under_the_same_id_is_a_conflict(app: AppUnderTest) -> None:
    await finished(app, optional, "given")
    await satay.fork("src", before_task="forks.step", workflow_input=None, run_id="fork")
    others: list[dict[str, Any]] = [{}, {"workflow_input": "else"}]
    for asked in others:
        with pytest.raises(RunConflictError):
            await satay.fork("src", before_task="forks.step", run_id="fork", **asked)
    again = await satay.fork("src", before_task="forks.step", workflow_input=None, run_id="fork")

    assert "None" == await again.result()


async def test_a_fork_of_another_source_under_the_same_id_is_a_conflict(app: AppUnderTest) -> None:
    await finished(app, drafts, 2)
    await app.start(drafts, 2, run_id="twin").result()
    await satay.fork("src", before_task="forks.draft", run_id="fork")
    with pytest.raises(RunConflictError, match="source"):
        await satay.fork("twin", before_task="forks.draft", run_id="fork")


async def test_a_large_override_is_compared_too(app: AppUnderTest) -> None:
    await finished(app, large, "small")
    first = await satay.fork("src", before_task="forks.step", workflow_input=BIG, run_id="fork")
    await first.result()
    with pytest.raises(RunConflictError):
        await satay.fork("src", before_task="forks.step", workflow_input=BIG[:-1] + "y", run_id="fork")
    again = await satay.fork("src", before_task="forks.step", workflow_input=BIG, run_id="fork")

    assert await first.result() == await again.result()


@pytest.mark.parametrize("taken", ["src", "bystander"])
async def test_a_fork_onto_a_run_that_is_there_is_refused(app: AppUnderTest, taken: str) -> None:
    await finished(app, drafts, 2)
    await app.start(drafts, 1, run_id="bystander").result()
    with untouched(app, "src", "bystander"), pytest.raises(RunConflictError, match=f"run '{taken}' is there already"):
        await satay.fork("src", before_task="forks.draft", run_id=taken)


@pytest.mark.parametrize("bad", ["", "a b", "../up", "a" * 300, 3])
async def test_an_id_that_cannot_be_used_is_refused(app: AppUnderTest, bad: Any) -> None:
    await finished(app, drafts, 1)
    with pytest.raises(InvalidValueError):
        await satay.fork("src", before_task="forks.draft", run_id=bad)

    assert ["src"] == run_ids(app)


async def test_a_run_started_under_the_id_of_a_fork_does_not_attach_to_another_request(app: AppUnderTest) -> None:
    await finished(app, drafts, 2)
    fork = await satay.fork("src", before_task="forks.draft", run_id="fork", workflow_input=1)
    await fork.result()
    with pytest.raises(RunConflictError):
        await app.start(drafts, 9, run_id="fork").result()


async def test_of_two_forks_at_once_with_the_same_id_and_request_one_is_made_and_both_have_it(
    app: AppUnderTest,
) -> None:
    await finished(app, report, Brief("acme"))
    one, two = await asyncio.gather(
        *(satay.fork("src", before_task="forks.synthesize", run_id="fork") for _ in range(2))
    )

    assert one.receipt == two.receipt
    assert await one.result() == await two.result()
    assert ["synthesize"] == ran


async def test_of_two_forks_at_once_with_the_same_id_and_other_requests_one_is_refused(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    found = await asyncio.gather(
        *(
            satay.fork("src", before_task="forks.synthesize", run_id="fork", workflow_input=Brief("acme", style))
            for style in ("one", "two")
        ),
        return_exceptions=True,
    )
    made = [fork for fork in found if not isinstance(fork, BaseException)]
    refused = [error for error in found if isinstance(error, BaseException)]

    assert ([1, 1], RunConflictError) == ([len(made), len(refused)], type(refused[0]))
    assert 1 == (await types_of(app, "fork")).count(EntryType.WORKFLOW_CREATED)
    assert facts((await entries_of(app, "fork"))[0])["input"]["brief"]["style"] in await made[0].result()


async def test_two_processes_that_make_the_same_fork_share_it(tmp_path: Path) -> None:
    clock = ManualClock(autojump=True)
    async with open_app(tmp_path, clock=clock, seed=1) as one, open_app(tmp_path, clock=clock, seed=2) as two:
        await finished(one, report, Brief("acme"))
        forks = await asyncio.gather(
            *(app.fork("src", before_task="forks.synthesize", run_id="fork") for app in (one, two))
        )
        results = [await fork.result() for fork in forks]

    assert results[0] == results[1]
    assert forks[0].receipt.to_json() == forks[1].receipt.to_json()
    assert ["synthesize"] == ran


@satay.task(name="forks.fork_source")
async def fork_source(is_first: bool) -> str:
    fork = await satay.fork("src", before_task="forks.draft", run_id=satay.task_context().idempotency_key)
    await fork.result()
    app = satay.functions.current_app()
    assert isinstance(app, AppUnderTest)
    if is_first and "crashed" not in ran:
        ran.append("crashed")
        app.faults.crash()
        await asyncio.sleep(0)
    return fork.run_id


@satay.workflow(name="forks.forking")
async def forking() -> str:
    return await fork_source(True)


async def test_a_task_that_forks_under_its_own_key_makes_one_fork_however_often_it_is_repeated(
    tmp_path: Path,
) -> None:
    faults = Faults()
    async with open_app(tmp_path, faults=faults) as app:
        await finished(app, drafts, 2)
        app.start(forking, run_id="forker")
        await faults.crashed
    async with open_app(tmp_path) as app:
        fork_id = await app.resume("forker").result()

        assert ["src", "forker", fork_id] == run_ids(app)
        assert ["draft 0", "draft 1", "crashed"] == ran


async def test_a_workflow_body_cannot_fork(app: AppUnderTest) -> None:
    await finished(app, drafts, 1)
    with pytest.raises(SatayError, match="a workflow body cannot reach the app"):
        await app.start(forking_body).result()


@satay.workflow(name="forks.forking_body")
async def forking_body() -> None:
    await satay.fork("src", before_task="forks.draft")


# --- forks of forks ---------------------------------------------------------------------------------------------------


async def test_forks_of_forks_compose_with_cuts_in_inherited_and_own_parts(app: AppUnderTest) -> None:
    await finished(app, drafts, 4)
    first = await satay.fork("src", before_task="forks.draft", before_ordinal=2, run_id="f1")
    await first.result()
    ran.clear()
    second = await satay.fork("f1", before_task="forks.draft", before_ordinal=3, run_id="f2")
    await second.result()
    third = await satay.fork("f2", before_task="forks.draft", before_ordinal=1, run_id="f3", workflow_input=3)

    assert ["draft 0", "draft 1", "draft 2"] == await third.result()
    assert ["draft 3", "draft 1", "draft 2"] == ran
    for source_id, fork in (("src", first), ("f1", second), ("f2", third)):
        await check_prefix(app, source_id, fork.receipt)
        assert (source_id, "src") == (fork.receipt.source_id, fork.receipt.root_id)
        assert source_id == (await app.run(fork.run_id)).forked_from
        assert fork.receipt == await app.receipt(fork.run_id)
    assert 2 == (await types_of(app, "f2")).count(EntryType.RUN_FORKED)
    assert 1 == (await types_of(app, "f3")).count(EntryType.RUN_FORKED)


async def test_every_cut_of_a_fork_of_a_fork_gives_the_same_answer(app: AppUnderTest) -> None:
    expected = await finished(app, side_by_side, "undeclared")
    source_id = "src"
    for depth, seq in enumerate((3, 6, 7)):
        fork = await satay.fork(source_id, fork_point_seq=seq, run_id=f"f{depth}")
        assert expected == await fork.result()
        source_id = fork.run_id
    last = len(await entries_of(app, source_id))
    with untouched(app, "src", "f0", "f1", "f2"):
        for seq in range(1, last):
            fork = await satay.fork(source_id, fork_point_seq=seq)

            assert expected == await fork.result()
            await check_prefix(app, source_id, fork.receipt)


async def test_a_fork_of_a_fork_inherits_from_the_nearest_parent(app: AppUnderTest) -> None:
    await approved(app)
    fork = await satay.fork("src", before_task="forks.step", run_id="f1")
    await satay.send_event("approval", "no", key="k", run_id="f1")
    await fork.result()
    ran.clear()
    further = await satay.fork("f1", before_task="forks.step", before_ordinal=1)

    assert ["ask", "no", "done no"] == await further.result()
    assert ["done no"] == ran


async def test_an_overridden_input_is_inherited_by_a_fork_of_the_fork(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    fork = await satay.fork("src", before_task="forks.synthesize", workflow_input=Brief("acme", "new"))
    await fork.result()
    further = await satay.fork(fork.run_id, before_task="forks.synthesize")

    assert "new: acme one, acme two" == await further.result()
    assert not further.receipt.input_overridden


async def test_a_child_is_inherited_through_a_fork_of_a_fork(app: AppUnderTest) -> None:
    await finished(app, parent, 3)
    first = await satay.fork("src", fork_point_seq=2, run_id="f1")
    own = await first.result()
    ran.clear()
    with untouched(app, "f1", own[0]):
        second = await satay.fork("f1", before_task="forks.step", run_id="f2")

        assert own == await second.result()
    assert ["end"] == ran


async def test_a_fork_lives_on_without_its_source_being_driven_again(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app:
        source = app.start(stations, run_id="src")
        await source
        await app.clock.advance(100)
        await satay.send_event("go", run_id="src")
        await source.result()
        ran.clear()
        await satay.fork("src", before_task="forks.step", run_id="f1")
        await settle(app)
    async with open_app(tmp_path, clock=ManualClock(start=LATER)) as app:
        app.resume("f1")
        await settle(app)
        await satay.send_event("go", run_id="f1")
        assert ["A", "B", "C"] == await app.handle("f1").result()
        assert ["A", "B", "C"] == ran
        ran.clear()
        further = await satay.fork("f1", before_task="forks.step", before_ordinal=2)

        assert ["A", "B", "C"] == await further.result()
        assert ["C"] == ran
        await check_prefix(app, "f1", further.receipt)


@satay.workflow(name="forks.stations")
async def stations() -> list[str]:
    one = await step("A")
    await satay.sleep(10)
    two = await step("B")
    await satay.wait_for_event("go")
    return [one, two, await step("C")]


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_written", [False, True], ids=["before", "after"])
async def test_a_crash_while_a_fork_is_made_leaves_it_whole_or_not_there(tmp_path: Path, is_written: bool) -> None:
    async with open_app(tmp_path) as app:
        expected = await finished(app, report, Brief("acme"))
    faults = Faults()
    kind = EntryType.RUN_FORKED
    faults = faults.crash_after(type=kind) if is_written else faults.crash_before(type=kind)
    async with open_app(tmp_path, faults=faults):
        making = asyncio.ensure_future(satay.fork("src", before_task="forks.synthesize", run_id="fork"))
        await faults.crashed
        await asyncio.wait([making])
        error = making.exception()

        assert is_written or isinstance(error, SatayError)
    async with open_app(tmp_path, recover=True) as app:
        assert (["src", "fork"] if is_written else ["src"]) == run_ids(app)
        fork = await satay.fork("src", before_task="forks.synthesize", run_id="fork")

        assert expected == await fork.result()
        assert is_written == fork.receipt.replayed
        assert {"plan", "research"}.isdisjoint(ran)
        await check_prefix(app, "src", fork.receipt)


async def test_a_caller_that_is_cancelled_leaves_no_fork_that_nobody_drives(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        expected = await finished(app, report, Brief("acme"))
    faults = Faults().stall_after(type=EntryType.RUN_FORKED)
    async with open_app(tmp_path, faults=faults) as app:
        making = asyncio.ensure_future(satay.fork("src", before_task="forks.synthesize", run_id="fork"))
        await faults.stalled
        making.cancel()
        await asyncio.wait([making])
        faults.go_on()
        await settle(app)

        assert making.cancelled()
        assert RunStatus.COMPLETED == (await app.run("fork")).status
        assert expected == await app.handle("fork").result()


async def test_a_child_in_flight_at_the_cut_is_started_once_also_if_the_fork_crashes(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, parent, 3)
        cut = await seq_of(app, "src", EntryType.CHILD_WORKFLOW_SCHEDULED)
    faults = Faults().crash_after(type=EntryType.WORKFLOW_CREATED, count=2)
    async with open_app(tmp_path, faults=faults) as app:
        making = asyncio.ensure_future(satay.fork("src", fork_point_seq=cut, run_id="fork"))
        await faults.crashed
        await asyncio.wait([making])
        making.exception()
    async with open_app(tmp_path) as app:
        child_id, found, _ = await app.resume("fork").result()

        assert 3 == found
        assert ["src", "src/forks.leaf=k", "fork", child_id] == run_ids(app)


@pytest.mark.parametrize("entries", range(1, 8))
async def test_a_fork_that_crashes_anywhere_is_resumed_to_the_same_end(tmp_path: Path, entries: int) -> None:
    async with open_app(tmp_path) as app:
        expected = await finished(app, side_by_side, "undeclared")
    faults = Faults().crash_after(entries=entries)
    async with open_app(tmp_path, faults=faults):
        making = asyncio.ensure_future(satay.fork("src", fork_point_seq=3, run_id="fork"))
        await faults.crashed
        await asyncio.wait([making])
        making.exception()
    async with open_app(tmp_path) as app:
        with untouched(app, "src"):
            result = await app.resume("fork").result()
        receipt = await app.receipt("fork")

        assert expected == [value and 1 for value in result]
        assert receipt is not None
        await check_prefix(app, "src", receipt)


async def add_entry(place: Path, run_id: str, type: str) -> None:
    """Add an entry of another version of satay to a journal."""
    journal = await open_sqlite(place / "satay.db")
    try:
        record = await journal.record(run_id)
        last = await journal.last(run_id)
        claimed = await claim(journal, run_id, "another version", 1 << 60)
        assert record is not None
        assert last is not None
        assert claimed is not None
        payload = "{}"
        digest = satay.journal.chain_digest(last.digest, type, last.at, payload)
        entry = Entry(last.seq + 1, type, last.at, payload, digest)
        await journal.append(Append(claimed.lease, [entry], last.at))
        await journal.release(claimed.lease, claimed.before)
    finally:
        await journal.close()


async def waiting_chain(place: Path) -> None:
    """A source, and forks of forks of it; the last one, `f2`, waits for an event."""
    async with open_app(place) as app:
        source = app.start(waiting, run_id="src")
        await source
        await satay.send_event("answer", "yes", run_id="src")
        await source.result()
        for source_id, fork_id in (("src", "f0"), ("f0", "f1"), ("f1", "f2")):
            fork = await satay.fork(source_id, fork_point_seq=4, run_id=fork_id)
            if fork_id != "f2":
                await satay.send_event("answer", fork_id, run_id=fork_id)
                assert fork_id == await fork.result()
        await settle(app)
    ran.clear()


async def test_entries_that_mean_nothing_to_a_replay_are_passed_over(tmp_path: Path) -> None:
    await waiting_chain(tmp_path)
    await add_entry(tmp_path, "f2", "NotedByALaterVersion")
    async with open_app(tmp_path) as app:
        await satay.send_event("answer", "f2", run_id="f2")

        assert "f2" == await app.resume("f2").result()
        fork = await satay.fork("f2", before_task="forks.step", before_ordinal=1)
        assert "f2" == await fork.result()


async def test_entries_that_would_mean_something_make_the_run_refuse_to_be_driven(tmp_path: Path) -> None:
    await waiting_chain(tmp_path)
    await add_entry(tmp_path, "f2", "WorkflowSplit")
    async with open_app(tmp_path) as app:
        with pytest.raises(UnsupportedEntryError, match=r"run 'f2' cannot be read: entry \d+ \(WorkflowSplit\)"):
            await app.resume("f2").result()

        assert [] == ran


async def test_a_fork_that_would_inherit_an_entry_which_is_not_understood_is_not_made(tmp_path: Path) -> None:
    await waiting_chain(tmp_path)
    await add_entry(tmp_path, "f2", "WorkflowSplit")
    async with open_app(tmp_path) as app:
        last = len(await (await app._ready()).archive.entries("f2"))
        with pytest.raises(UnsupportedEntryError, match=r"run 'f2' cannot be read: entry \d+ \(WorkflowSplit\)"):
            await satay.fork("f2", fork_point_seq=last, run_id="f3", allow_unfinished=True)

        with pytest.raises(RunNotFoundError):
            await app.run("f3")


# --- comparing a fork with its source ---------------------------------------------------------------------------------


async def test_a_comparison_tells_replayed_calls_from_those_that_ran_again(app: AppUnderTest) -> None:
    await finished(app, report, Brief("acme"))
    same = await satay.fork("src", before_task="forks.research")
    other = await satay.fork("src", before_task="forks.research", workflow_input=Brief("acme", "new"))
    await same.result()
    await other.result()
    comparisons = [await satay.compare("src", fork.run_id) for fork in (same, other)]

    assert [
        [CallStatus.REPLAYED, CallStatus.SAME, CallStatus.SAME],
        [CallStatus.REPLAYED, CallStatus.SAME, CallStatus.DIFFERENT],
    ] == [[call.status for call in comparison.calls] for comparison in comparisons]
    assert comparisons[0].first_divergence is None
    assert comparisons[1].first_divergence is not None
    assert "forks.synthesize:0" == str(comparisons[1].first_divergence.identity)
    assert "forks.synthesize" in str(comparisons[1])
    assert comparisons[1].input_differences
    assert comparisons[1].result_differences
    assert comparisons[1].other.input_overridden


async def test_a_comparison_shows_calls_that_only_one_run_made(app: AppUnderTest) -> None:
    await finished(app, edit, {"mode": "polish"})
    fork = await satay.fork("src", before_task="polish", workflow_input={"mode": "shorten"})
    await fork.result()
    statuses = {str(call.identity): call.status for call in (await satay.compare("src", fork.run_id)).calls}

    assert CallStatus.ONLY_ONE == statuses["polish:0"]
    assert CallStatus.ONLY_OTHER == statuses["shorten:0"]


async def test_a_comparison_shows_what_a_fork_inherited_and_what_that_saved(app: AppUnderTest) -> None:
    await finished(app, bill)
    fork = await satay.fork("src", before_task="forks.priced", before_ordinal=2)
    await fork.result()
    other = (await satay.compare("src", fork.run_id)).other

    assert ("src", fork.receipt.resolved_seq) == (other.forked_from, other.fork_seq)
    assert other.reused is not None
    assert (2, 1.75, 6) == (other.reused.calls, other.reused.usage.cost, other.reused.usage.input_tokens)
    assert other.reused.usage.cost == fork.receipt.saved_cost


async def test_a_comparison_shows_an_inherited_child_as_replayed_and_a_fresh_one_as_run_again(
    app: AppUnderTest,
) -> None:
    await finished(app, parent, 3)
    shared = await satay.fork("src", before_task="forks.step")
    fresh = await satay.fork("src", fork_point_seq=2)
    await shared.result()
    await fresh.result()
    statuses = [[call.status for call in (await satay.compare("src", fork.run_id)).calls] for fork in (shared, fresh)]

    assert [CallStatus.REPLAYED, CallStatus.SAME] == statuses[0]
    assert [CallStatus.SAME, CallStatus.SAME] == statuses[1]


@satay.workflow(name="forks.measures")
async def measures() -> float:
    began = satay.now()
    await satay.sleep(60.0)
    return (satay.now() - began).total_seconds()


async def test_a_fork_that_inherits_only_the_creation_begins_at_its_own_time(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await app.start(measures, run_id="src").result()
        fork = await app.fork("src", fork_point_seq=1, run_id="fork")
        elapsed = [await fork.result()]
        again = await app.fork("fork", fork_point_seq=1)
        elapsed.append(await again.result())

    assert [60.0, 60.0] == elapsed


async def test_an_app_that_made_a_fork_leaves_no_log_behind(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await finished(app, naps, "end")
        await (await satay.fork("src", before_task="forks.step", before_ordinal=1)).result()

    assert not (tmp_path / f"{DATABASE_FILE}-wal").exists()
