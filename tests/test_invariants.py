"""What holds for every run, whatever its shape: on a corpus of workflows, and on programs that are made up.

Short as part of all tests; with SATAY_TORTURE=long also at random pairs of crashes, and on many more programs.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import satay
from satay.clock import to_datetime
from satay.errors import ForkValidationError, RunEndedError
from satay.journal import MAX_PAGE, RunQuery, chain_digest
from satay.model import TERMINAL_ENTRIES, CallKind, Entry, EntryType, RunRecord
from satay.replay import CALL_KIND, ENDS_OF_CALLS, OUTCOME_TYPES, facts, outcome_call, recorded_call
from satay.stores import sqlite_reads as reads
from satay.stores.locations import DATABASE_FILE
from satay.stores.sqlite_schema import SqliteSettings, connect_reader
from satay.testing import AppUnderTest, Faults, ManualClock, open_app, settle
from tests.corpus import NEVER_SECONDS, RUN_ID, SHAPES, Shape, began, begin, no_script, outcome_of, run_until_crash
from tests.driving import HANG_SECONDS
from tests.patience import patience

T = TypeVar("T")

IS_LONG: Final = os.environ.get("SATAY_TORTURE") == "long"
ROOT: Final = Path(__file__).parents[1]

shapes = pytest.mark.parametrize("shape", [pytest.param(shape, id=name) for name, shape in SHAPES.items()])


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(None if IS_LONG else 6 * HANG_SECONDS):
            return await work

    return asyncio.run(bounded())


# --- reading a journal ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """Everything that a journal says: the runs, and the entries of each."""

    records: dict[str, RunRecord]
    entries: dict[str, list[Entry]]

    @classmethod
    def of(cls, place: Path) -> "History":
        connection = connect_reader(SqliteSettings(path=place / DATABASE_FILE))
        with contextlib.closing(connection):
            records = {record.run_id: record for record in reads.runs(connection, RunQuery(limit=MAX_PAGE))}
            return cls(records, {run_id: reads.read(connection, run_id, 0, MAX_PAGE) for run_id in records})

    def digest(self, run_ids: Iterable[str]) -> str:
        """A hash over all rows of these runs."""
        rows = repr([(self.records[run_id], self.entries[run_id]) for run_id in sorted(run_ids)])
        return hashlib.sha256(rows.encode()).hexdigest()


PASSED_OVER: Final = frozenset(
    {
        EntryType.WORKFLOW_RESUMED,
        EntryType.WORKFLOW_SUSPENDED,
        EntryType.TASK_ATTEMPT_STARTED,
        EntryType.TASK_ATTEMPT_FAILED,
        EntryType.RUN_FORKED,
        EntryType.OUTCOME_KEPT,
    }
)
"""What a crash or a fork may add to a journal, and what depends on the number of attempts."""

INCIDENTAL: Final = frozenset(
    {
        "call", "continued_as", "due", "event_id", "kept", "message", "ordinal",
        "retry_at", "root", "run_id", "seed", "started_at", "terms",
    }
)  # fmt: skip
"""Facts that may be others after a crash: moments and numbers. A call is told by its name and its arguments."""


def content(entries: Sequence[Entry]) -> list[str]:
    """What a journal says of a run, one line an entry, without what may be another time or number."""
    calls = {entry.seq: entry for entry in entries if entry.type in CALL_KIND}
    lines = []
    for entry in entries:
        if entry.type in PASSED_OVER:
            continue
        told = [entry.type, _essence(entry)]
        if "call" in facts(entry):
            told.append(_essence(calls[facts(entry)["call"]]))
        lines.append(" ".join(told))
    return lines


def _essence(entry: Entry) -> str:
    known = {name: value for name, value in facts(entry).items() if name not in INCIDENTAL}
    if isinstance(known.get("error"), dict):
        known["error"] = {name: known["error"].get(name) for name in ("type", "message")}
    if isinstance(known.get("payload"), dict):  # A decision about an approval says when it was made.
        known["payload"] = {name: value for name, value in known["payload"].items() if name != "at"}
    return json.dumps(known, sort_keys=True)


# --- the invariants ---------------------------------------------------------------------------------------------------


def check_well_formed(history: History) -> None:
    """Every run has ended, once; entries are numbered without gaps and chained; outcomes answer open calls, once."""
    for run_id, entries in history.entries.items():
        types = [entry.type for entry in entries]

        assert EntryType.WORKFLOW_CREATED == types[0], run_id
        assert list(range(1, len(entries) + 1)) == [entry.seq for entry in entries], run_id
        for before, entry in pairwise(entries):
            assert chain_digest(before.digest, entry.type, entry.at, entry.payload) == entry.digest, (run_id, entry)
            assert before.at <= entry.at or EntryType.RUN_FORKED in types, (run_id, entry)
        assert history.records[run_id].status.is_terminal, (run_id, history.records[run_id].status, types)
        assert 1 == sum(type in TERMINAL_ENTRIES for type in types), (run_id, types)
        assert types[-1] in TERMINAL_ENTRIES, (run_id, types)
        check_calls(run_id, entries)


def check_calls(run_id: str, entries: Sequence[Entry]) -> None:
    outstanding: set[int] = set()
    answered: Counter[int] = Counter()
    for entry in entries:
        if entry.type in CALL_KIND:
            outstanding.add(entry.seq)
        elif entry.type in OUTCOME_TYPES and entry.type != EntryType.WORKFLOW_CANCEL_REQUESTED:
            call = outcome_call(entry)
            assert call in outstanding, (run_id, entry)
            outstanding.discard(call)
            answered[call] += 1
        elif entry.type == EntryType.CALL_CANCELLED:
            assert outcome_call(entry) in outstanding, (run_id, entry)
            outstanding.discard(outcome_call(entry))
    assert all(times == 1 for times in answered.values()), (run_id, answered)


def check_continued(before: History, after: History) -> None:
    """What was written before a crash stands unchanged at the beginning of what there is now."""
    for run_id, entries in before.entries.items():
        assert entries == after.entries[run_id][: len(entries)], run_id


def check_nothing_ran_again(before: History, ran_later: Sequence[tuple[str, str, int | str | None]]) -> None:
    """No body runs whose outcome the journal had."""
    finished = {
        (run_id, known["task"], known["key"] if "key" in known else known["ordinal"])
        for run_id, entries in before.entries.items()
        for entry in entries
        if entry.type in (EntryType.TASK_COMPLETED, EntryType.TASK_FAILED)
        for known in [facts(entries[outcome_call(entry) - 1])]
    }

    assert not finished.intersection(ran_later)


def check_same(expected: History, found: History, *, is_ordered: bool, is_repeatable: bool = True) -> None:
    """Two journals say the same of the same runs."""
    assert sorted(expected.entries) == sorted(found.entries)
    for run_id, entries in expected.entries.items():
        one, other = content(entries), content(found.entries[run_id])
        if not is_repeatable:
            one, other = [line.split()[0] for line in one], [line.split()[0] for line in other]
        if is_ordered:
            assert one == other, run_id
        else:
            assert Counter(one) == Counter(other), run_id


@dataclass(frozen=True)
class Reference:
    """A run that nothing disturbed."""

    place: Path
    outcome: list[Any]
    history: History
    appends: int


async def undisturbed(place: Path, shape: Shape) -> Reference:
    faults = Faults()
    outcome, _ = await run_until_crash(place, shape, faults)
    assert outcome is not None
    history = History.of(place)
    check_well_formed(history)
    return Reference(place, outcome, history, faults.appends_written)


async def check_crashes(place: Path, shape: Shape, reference: Reference, crashes: Sequence[Faults]) -> bool:
    """Crash as told, one after the other, then let the run end: nobody can tell. False if it ended before a crash."""
    shutil.rmtree(place, ignore_errors=True)
    moment = None
    before = History({}, {})
    is_repeatable = True
    try:
        for faults in (*crashes, Faults()):
            began.clear()
            async with asyncio.timeout(HANG_SECONDS):
                outcome, moment = await run_until_crash(place, shape, faults, moment)
            after = History.of(place)
            check_continued(before, after)
            check_nothing_ran_again(before, began)
            if outcome is not None:
                break
            is_repeatable = is_repeatable and RUN_ID in after.entries
            before = after
        check_well_formed(after)
        assert reference.outcome == outcome
        if shape.is_steady:
            check_same(
                reference.history,
                after,
                is_ordered=shape.is_ordered,
                is_repeatable=is_repeatable or shape.name != "chance",
            )
    except BaseException as error:
        error.add_note(f"{shape.name}: {list(crashes)}")
        raise
    return all(faults.is_crashed for faults in crashes)


async def check_crashes_everywhere(place: Path, shape: Shape, reference: Reference) -> None:
    for append in count(1):
        if not await check_crashes(place, shape, reference, [Faults().crash_after(append=append)]):
            break
        await check_crashes(place, shape, reference, [Faults().crash_before(append=append)])


async def check_random_crashes(place: Path, shape: Shape, reference: Reference, seed: int, crashes: int = 2) -> None:
    chance = random.Random(seed)
    faults = []
    for _ in range(crashes):
        append = chance.randint(1, reference.appends)
        kind = Faults().crash_after if chance.random() < 0.5 else Faults().crash_before
        faults.append(kind(append=append))
    await check_crashes(place, shape, reference, faults)


async def check_forks(reference: Reference, shape: Shape, source_id: str, depth: int = 1, step: int = 1) -> None:
    """Fork a run after every entry: the fork ends as its source did, or is refused; the source stays what it is."""
    source = History.of(reference.place).entries[source_id]
    for seq in range(1, len(source) + 1, step):
        fork_id = f"{source_id}+{seq}"
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await check_fork(reference, shape, source_id, source, seq, fork_id)
        except BaseException as error:
            error.add_note(f"{shape.name}: fork {fork_id} after entry {seq} ({source[seq - 1].type})")
            raise
        if depth > 1 and seq < len(source):
            await check_forks(reference, shape, fork_id, depth - 1, step=3)


async def check_fork(
    reference: Reference, shape: Shape, source_id: str, source: Sequence[Entry], seq: int, fork_id: str
) -> None:
    before = History.of(reference.place)
    clock = ManualClock(to_datetime(source[seq - 1].at), autojump=True)
    async with open_app(reference.place, clock=clock, poll_seconds=NEVER_SECONDS) as app:
        try:
            plan = await app.plan_fork(source_id, fork_point_seq=seq)
        except ForkValidationError:
            assert source[seq - 1].type in TERMINAL_ENTRIES
            return
        began.clear()
        fork = await app.fork(source_id, fork_point_seq=seq, run_id=fork_id)
        await shape.script(app, fork_id)
        outcome = await outcome_of(fork.result())
        await settle(app)
        verifications = [await app.verify(run_id) for run_id in (source_id, fork_id)]
    after = History.of(reference.place)
    entries = after.entries[fork_id]

    assert source[seq - 1].type not in TERMINAL_ENTRIES
    assert _without_id(reference.outcome) == _without_id(outcome)
    assert before.digest(before.entries) == after.digest(before.entries)
    assert list(source[1:seq]) == entries[1:seq]
    assert EntryType.RUN_FORKED == entries[seq].type
    assert source[seq - 1].digest.hex() == fork.receipt.prefix_digest
    assert fork.receipt.resolved_seq == seq
    assert [None, None] == [verification.problem for verification in verifications]
    assert not shape.is_steady or shape.name == "chance" or Counter(content(source)) == Counter(content(entries))
    check_well_formed(after)
    check_plan(plan, fork.receipt, entries)


def check_plan(plan: satay.ForkPlan, receipt: satay.ForkReceipt, entries: Sequence[Entry]) -> None:
    """What the plan of a fork told is what its receipt says, and what it did with each call."""
    names = ("cut", "resolved_seq", "resolved_entry", "stale_calls", "tool_policies", "saved_cost", "saved_seconds")
    calls = {str(recorded_call(entry)): entry for entry in entries if entry.type in CALL_KIND}
    ends = {outcome_call(entry): entry for entry in entries if entry.type in ENDS_OF_CALLS}
    ran = {
        f"{task}[{at}]" if isinstance(at, str) else f"{task}:{at}" for run, task, at in began if run == receipt.run_id
    }
    in_flight = {call.call: call.action for call in receipt.in_flight}

    assert [getattr(plan, name) for name in names] == [getattr(receipt, name) for name in names]
    assert plan.divergence is None
    for planned in plan.calls:
        call = calls.get(planned.call)
        if call is None:  # What comes from outside may come in another order, and spare the fork a call.
            assert planned.seq > plan.resolved_seq, planned
            continue
        end = ends.get(call.seq)
        is_given_up = end is None or end.type == EntryType.CALL_CANCELLED
        match planned.action:
            case "inherit":
                is_told = end is not None and end.seq <= plan.resolved_seq
            case "keep":
                is_told = end is None or is_given_up or "kept" in facts(end)
            case "run" | "rerun":
                is_told = is_given_up or planned.call in ran or call.type != EntryType.TASK_SCHEDULED
            case _:
                is_told = True
        assert is_told, planned
        assert planned.action in ("run", "rerun") or planned.call not in ran, planned
        assert planned.seq > plan.resolved_seq or in_flight.get(planned.call, "inherit") == planned.action


async def check_calls_made_again(reference: Reference, shape: Shape) -> None:
    """Make each call of a run again and keep its siblings: the fork ends as its source did, which stays what it is."""
    source = History.of(reference.place).entries[RUN_ID]
    later = to_datetime(source[-1].at)
    for entry in source:
        kind = CALL_KIND.get(entry.type)
        if kind is None or kind is CallKind.TIMER:
            continue
        call = recorded_call(entry)
        how = "key" if isinstance(call.occurrence, str) else "ordinal"
        options: Any = {f"before_{kind}": call.name, f"before_{how}": call.occurrence, "keep_siblings": True}
        fork_id = f"{RUN_ID}+{entry.seq}"
        before = History.of(reference.place)
        try:
            async with (
                asyncio.timeout(HANG_SECONDS),
                open_app(
                    reference.place,
                    clock=ManualClock(later, autojump=True),
                    recover=shape.recover,
                    poll_seconds=NEVER_SECONDS,
                ) as app,
            ):
                plan = await app.plan_fork(RUN_ID, **options)
                began.clear()
                fork = await app.fork(RUN_ID, run_id=fork_id, **options)
                await shape.script(app, fork_id)
                outcome = await outcome_of(fork.result())
                await settle(app)
        except BaseException as error:
            error.add_note(f"{shape.name}: fork {fork_id} that makes {call} again")
            raise
        after = History.of(reference.place)
        entries = after.entries[fork_id]
        cut = fork.receipt.resolved_seq

        assert shape.name == "chance" or _without_id(reference.outcome) == _without_id(outcome), (shape.name, call)
        assert before.digest(before.entries) == after.digest(before.entries)
        assert list(source[1:cut]) == entries[1:cut]
        assert not shape.is_steady or shape.name in MOMENTARY or Counter(content(source)) == Counter(content(entries))
        check_well_formed(after)
        check_plan(plan, fork.receipt, entries)


MOMENTARY: Final = ("chance", "timers", "cancelled")
"""Shapes whose calls tell the time, or how long something took, which a fork that is made later must not repeat."""


async def check_blocked_forks(reference: Reference, shape: Shape) -> None:
    """Fork after every entry with every task blocked: nothing runs, the fork ends, and the source stays what it is."""
    source = History.of(reference.place).entries[RUN_ID]
    before = History.of(reference.place)
    for seq in range(1, len(source)):
        fork_id = f"{RUN_ID}-{seq}"
        began.clear()
        try:
            async with (
                asyncio.timeout(HANG_SECONDS),
                open_app(
                    reference.place,
                    clock=ManualClock(to_datetime(source[-1].at), autojump=True),
                    recover=shape.recover,
                    poll_seconds=NEVER_SECONDS,
                ) as app,
            ):
                fork = await app.fork(RUN_ID, run_id=fork_id, fork_point_seq=seq, tool_policies={"*": "block"})
                with contextlib.suppress(RunEndedError):  # A body that nothing answers may fail before.
                    await shape.script(app, fork_id)
                await outcome_of(fork.result())
                await settle(app)
        except BaseException as error:
            error.add_note(f"{shape.name}: blocked fork {fork_id} after entry {seq} ({source[seq - 1].type})")
            raise
        after = History.of(reference.place)

        assert [] == began, (shape.name, seq)
        assert before.digest(before.entries) == after.digest(before.entries)
        check_well_formed(after)


def _without_id(outcome: Sequence[Any]) -> list[Any]:
    """An outcome without the run's own id, which the text of a cancellation names."""
    return list(outcome[:2] if outcome[1] == "WorkflowCancelledError" else outcome)


# --- on the corpus ----------------------------------------------------------------------------------------------------


@shapes
def test_a_crash_anywhere_changes_nothing(shape: Shape, tmp_path: Path) -> None:
    async def check() -> None:
        reference = await undisturbed(tmp_path / "reference", shape)
        await check_crashes_everywhere(tmp_path / "crashed", shape, reference)

    in_loop(check())


@shapes
def test_two_crashes_in_a_row_change_nothing(shape: Shape, tmp_path: Path) -> None:
    async def check() -> None:
        reference = await undisturbed(tmp_path / "reference", shape)
        for seed in range(3):
            await check_random_crashes(tmp_path / "crashed", shape, reference, seed)

    in_loop(check())


@shapes
def test_a_fork_after_any_entry_ends_as_its_source_did(shape: Shape, tmp_path: Path) -> None:
    async def check() -> None:
        reference = await undisturbed(tmp_path / "reference", shape)
        await check_forks(reference, shape, RUN_ID)

    in_loop(check())


@shapes
def test_each_call_made_again_beside_its_siblings_ends_as_its_source_did(shape: Shape, tmp_path: Path) -> None:
    async def check() -> None:
        reference = await undisturbed(tmp_path / "reference", shape)
        await check_calls_made_again(reference, shape)

    in_loop(check())


@shapes
def test_a_fork_with_every_task_blocked_runs_none(shape: Shape, tmp_path: Path) -> None:
    async def check() -> None:
        reference = await undisturbed(tmp_path / "reference", shape)
        await check_blocked_forks(reference, shape)

    in_loop(check())


@pytest.mark.parametrize("name", ["sequence", "race_of_timers", "children", "generators", "events", "cancelled"])
def test_a_fork_of_a_fork_ends_as_its_source_did(name: str, tmp_path: Path) -> None:
    async def check() -> None:
        shape = SHAPES[name]
        reference = await undisturbed(tmp_path / "reference", shape)
        await check_forks(reference, shape, RUN_ID, depth=2, step=4)

    in_loop(check())


@pytest.mark.slow
def test_a_process_with_other_hashes_goes_on_where_another_was_killed(tmp_path: Path) -> None:
    async def references() -> dict[str, Reference]:
        return {name: await undisturbed(tmp_path / "reference" / name, shape) for name, shape in SHAPES.items()}

    def process(*arguments: str, hash_seed: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", "from tests import corpus; corpus.main()", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=patience(60.0),
            check=False,
        )

    expected = in_loop(references())
    middles = {name: max(1, reference.appends // 2) for name, reference in expected.items()}
    killed = process("crash", str(tmp_path / "killed"), json.dumps(middles), hash_seed="1")
    resumed = process("resume", str(tmp_path / "killed"), killed.stdout, hash_seed="2")

    assert 9 == killed.returncode, killed.stderr
    assert 0 == resumed.returncode, resumed.stderr
    assert {name: reference.outcome for name, reference in expected.items()} == json.loads(resumed.stdout)
    for name, reference in expected.items():
        history = History.of(tmp_path / "killed" / name)
        check_well_formed(history)
        check_same(reference.history, history, is_ordered=SHAPES[name].is_ordered)


@pytest.mark.torture
@pytest.mark.skipif(not IS_LONG, reason="SATAY_TORTURE is not long")
@shapes
def test_crashes_at_random_change_nothing(shape: Shape, tmp_path: Path) -> None:
    async def check() -> None:
        reference = await undisturbed(tmp_path / "reference", shape)
        for seed in range(20):
            await check_random_crashes(tmp_path / "crashed", shape, reference, seed, crashes=1 + seed % 4)
        await check_forks(reference, shape, RUN_ID, depth=2)

    in_loop(check())


# --- on programs that are made up -------------------------------------------------------------------------------------

Program = list[Any]
"""A small program: the name of its form, then what belongs to it."""


@satay.task(name="invariants.value")
async def value(text: str) -> str:
    begin()
    return text


@satay.task(name="invariants.failure")
async def failure(text: str) -> str:
    begin()
    raise LookupError(text)


@satay.workflow(name="invariants.interpret")
async def interpret(program: Program) -> Any:
    return await evaluate(program)


async def evaluate(program: Program) -> Any:
    match program:
        case ["value", text]:
            return await value(text)
        case ["failure", text]:
            return await failure(text)
        case ["sleep", seconds]:
            return await satay.sleep(seconds)
        case ["event", key]:
            return await satay.wait_for_event("invariants.event", key=key)
        case ["seq", *parts]:
            return [await evaluate(part) for part in parts]
        case ["gather", *parts]:
            return list(await satay.gather(*map(evaluate, parts)))
        case ["group", *parts]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(evaluate(part)) for part in parts]
            return [task.result() for task in tasks]
        case ["map", concurrency, *texts]:
            return await satay.map(value, texts, concurrency=concurrency)
        case ["race", *parts]:
            return await first_of(parts)
        case ["timeout", seconds, part]:
            return await bounded(seconds, part)
        case ["child", part]:
            return await satay.start_child(interpret, part).result()
        case ["try", part]:
            return await attempt(part)
    raise AssertionError(f"no such form: {program!r}")


async def first_of(parts: Sequence[Program]) -> Any:
    tasks = [asyncio.ensure_future(evaluate(part)) for part in parts]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)
    return [await task for task in tasks if task in done]


async def bounded(seconds: float, part: Program) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await evaluate(part)
    except TimeoutError:
        return "timed out"


async def attempt(part: Program) -> Any:
    try:
        return await evaluate(part)
    except* Exception as group:
        caught = [type(error).__name__ for error in group.exceptions]
    return caught


def labelled(program: Program) -> Program:
    """The same form, with texts, keys and durations that are each there once: no two moments coincide.

    What comes from outside of the run, events and children, does not compete with what the run does itself: there is
    no telling which is first.
    """
    numbers = count(1)

    def label(part: Program, is_raced: bool) -> Program:
        match part:
            case ["sleep", _]:
                return ["sleep", float(2 ** (next(numbers) % 40))]
            case ["timeout", _, inner]:
                return ["timeout", 2 ** (next(numbers) % 40) + 0.5, label(inner, True)]
            case ["event", _] if is_raced:
                return ["value", f"value {next(numbers)}"]
            case [("value" | "failure" | "event") as form, _]:
                return [form, f"{form} {next(numbers)}"]
            case ["map", concurrency, *texts]:
                return ["map", concurrency, *(f"item {next(numbers)}" for _ in texts)]
            case ["child", inner] if is_raced:
                return ["seq", label(inner, True)]
            case [form, *parts]:
                return [form, *(label(inner, is_raced or form == "race") for inner in parts)]
        raise AssertionError(f"no such form: {part!r}")

    return label(program, False)


def has_form(program: Program, forms: Iterable[str]) -> bool:
    return program[0] in forms or any(has_form(part, forms) for part in program[1:] if isinstance(part, list))


def event_keys(program: Any) -> list[str]:
    match program:
        case ["event", key]:
            return [key]
        case [_, *parts]:
            return [key for part in parts if isinstance(part, list) for key in event_keys(part)]
    return []


def forms() -> st.SearchStrategy[Program]:
    leaves: st.SearchStrategy[Any] = st.sampled_from([["value", ""], ["failure", ""], ["sleep", 0], ["event", ""]])
    maps: st.SearchStrategy[Any] = st.builds(
        lambda concurrency, size: ["map", concurrency, *[""] * size], st.sampled_from([None, 1, 2]), st.integers(0, 3)
    )

    def larger(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(parts, min_size=1, max_size=3)
        return st.one_of(
            st.builds(lambda form, inner: [form, *inner], st.sampled_from(["seq", "gather", "group", "race"]), several),
            st.builds(lambda inner: ["timeout", 0, inner], parts),
            st.builds(lambda form, inner: [form, inner], st.sampled_from(["child", "try"]), parts),
        )

    return st.recursive(st.one_of(leaves, maps), larger, max_leaves=8).map(labelled)


def shape_of(program: Program) -> Shape:
    keys = event_keys(program)

    async def send(app: AppUnderTest, run_id: str) -> None:
        for key in keys:
            await app.send_event("invariants.event", f"sent to {key}", key=key, event_id=f"{run_id} {key}")

    is_alone = not has_form(program, ("event", "child"))
    script = send if keys else no_script
    return Shape(interpret, program, script=script, is_steady=is_alone, recover=has_form(program, ("child",)))


async def check_program(place: Path, program: Program) -> None:
    shape = shape_of(program)
    shutil.rmtree(place, ignore_errors=True)
    async with asyncio.timeout(HANG_SECONDS):
        reference = await undisturbed(place / "reference", shape)
    chance = random.Random(json.dumps(program))
    appends = range(1, reference.appends + 1)
    for append in appends if IS_LONG else sorted(chance.sample(appends, min(3, len(appends)))):
        await check_crashes(place / "crashed", shape, reference, [Faults().crash_after(append=append)])
        await check_crashes(place / "crashed", shape, reference, [Faults().crash_before(append=append)])
    await check_forks(reference, shape, RUN_ID, step=1 if IS_LONG else chance.randint(2, 4))


@settings(
    max_examples=1000 if IS_LONG else 20,
    deadline=None,
    derandomize=not IS_LONG,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(program=forms())
def test_made_up_programs_survive_crashes_and_forks(program: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "program"
    in_loop(check_program(place, program))
