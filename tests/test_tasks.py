"""Tasks as a workflow sees them: attempts, timeouts, effects and decisions, keys, usage, threads, and their values."""

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import json
import math
import sqlite3
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NoReturn, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest

import satay
from satay.errors import (
    CodecError,
    EncodeError,
    InvalidValueError,
    JournalCorruptError,
    NeedsDecisionError,
    PayloadTooLargeError,
    PickleNotAllowedError,
    RunNotFoundError,
    TaskCrashedError,
    TaskFailedError,
    TaskTimeoutError,
    UsageError,
)
from satay.journal import BLOB_THRESHOLD_BYTES
from satay.model import EntryType
from satay.testing import Faults, ManualClock, abandon, open_app, pause, settle
from satay.threads import DEFAULT_THREADS
from tests.driving import drive_twice, entries_of, in_loop, types_of

BIG = "x" * (BLOB_THRESHOLD_BYTES + 1)

ran: list[Any] = []
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    seen.clear()


async def result_of(place: Path, workflow: satay.Workflow[..., Any], input: Any = satay.MISSING, **options: Any) -> Any:
    async with open_app(place, **options) as app:
        return await app.start(workflow, input, run_id="r").result()


# --- attempts ---------------------------------------------------------------------------------------------------------


class Refused(Exception):  # noqa: N818
    pass


@satay.task(name="tasks.fails", retries=2, backoff=satay.Backoff(first=10.0, factor=3.0, jitter=False))
async def fails() -> NoReturn:
    ran.append(satay.task_context().attempt)
    raise Refused("no")


@satay.workflow(name="tasks.try_it")
async def try_it() -> list[Any]:
    begun = satay.now()
    try:
        await fails()
    except Refused as error:
        return [str(error), (satay.now() - begun).total_seconds()]
    return []


def test_a_failing_task_is_tried_again_after_growing_delays_and_not_slept_after_the_last(tmp_path: Path) -> None:
    async def run() -> tuple[list[Any], list[satay.RunEvent]]:
        async with open_app(tmp_path) as app:
            result = await app.start(try_it, run_id="r").result()
            return result, await entries_of(app, "r")

    result, entries = in_loop(run())

    assert ["no", 40.0] == result
    assert [1, 2, 3] == ran
    failed = [entry for entry in entries if entry.type == EntryType.TASK_ATTEMPT_FAILED]
    started = [entry for entry in entries if entry.type == EntryType.TASK_ATTEMPT_STARTED]
    assert [10.0, 30.0] == [entry.data["retry_at"] / 1e6 - entry.at.timestamp() for entry in failed]
    assert [10.0, 30.0] == [(one.at - other.at).total_seconds() for one, other in zip(started, failed, strict=True)]
    assert [(1, "Refused"), (2, "Refused")] == [
        (entry.data["attempt"], entry.data["error"]["type"].split(":")[1]) for entry in failed
    ]
    assert 1 == sum(entry.type == EntryType.TASK_FAILED for entry in entries)


def test_delays_have_full_jitter_and_a_ceiling(tmp_path: Path) -> None:
    @satay.task(retries=30, backoff=satay.Backoff(first=4.0, factor=2.0, longest=20.0))
    async def often() -> NoReturn:
        raise Refused

    @satay.workflow
    async def tries() -> None:
        await often()

    async def run() -> list[float]:
        async with open_app(tmp_path) as app:
            with pytest.raises(Refused):
                await app.start(tries, run_id="r").result()
            failed = [entry for entry in await entries_of(app, "r") if entry.type == EntryType.TASK_ATTEMPT_FAILED]
            return [entry.data["retry_at"] / 1e6 - entry.at.timestamp() for entry in failed]

    delays = in_loop(run())

    assert 30 == len(delays)
    assert all(0 <= delay <= min(20.0, 4.0 * 2.0**count) + 1e-3 for count, delay in enumerate(delays))
    assert len({round(delay, 3) for delay in delays}) > 20


def test_a_task_without_retries_is_tried_once(tmp_path: Path) -> None:
    @satay.task
    async def once() -> NoReturn:
        ran.append("once")
        raise Refused

    @satay.workflow
    async def tries() -> None:
        await once()

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            with pytest.raises(Refused):
                await app.start(tries, run_id="r").result()
            return await types_of(app, "r")

    types = in_loop(run())

    assert ["once"] == ran
    assert ["TaskScheduled", "TaskFailed", "WorkflowFailed"] == types[1:]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(ValueError("v"), 3), (KeyError("k"), 1), (ZeroDivisionError("z"), 1), (UnicodeError("u"), 1)],
)
def test_only_the_errors_that_were_asked_for_are_retried(error: Exception, attempts: int, tmp_path: Path) -> None:
    @satay.task(retries=2, backoff=0.1, retry_on=(ValueError, KeyError), no_retry_on=(KeyError, UnicodeError))
    async def raises() -> None:
        ran.append(1)
        raise error

    @satay.workflow
    async def tries() -> None:
        await raises()

    with pytest.raises(type(error)):
        in_loop(result_of(tmp_path, tries))

    assert attempts == len(ran)


def test_the_budget_of_attempts_survives_any_number_of_crashes(tmp_path: Path) -> None:
    async def run() -> tuple[list[Any], list[str]]:
        clock = ManualClock(autojump=True)
        for type, count in (
            (EntryType.TASK_ATTEMPT_FAILED, 1),
            (EntryType.TASK_ATTEMPT_STARTED, 1),
            (EntryType.TASK_ATTEMPT_FAILED, 1),
        ):
            faults = Faults().crash_after(type=type, count=count)
            async with open_app(tmp_path, clock=clock, faults=faults) as app:
                app.start(try_it, run_id="r")
                await faults.crashed
        async with open_app(tmp_path, clock=clock) as app:
            result = await app.resume("r").result()
            return result, await types_of(app, "r")

    result, types = in_loop(run())

    assert "no" == result[0]
    assert 2 == types.count(EntryType.TASK_ATTEMPT_FAILED)
    assert 1 == types.count(EntryType.TASK_FAILED)
    assert 40.0 == pytest.approx(result[1])


def test_what_is_left_of_a_backoff_is_waited_for_after_a_crash(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock) as app:
            await app.start(try_it, run_id="r")
            await settle(app)
            await clock.advance(4.0)
            await abandon(app)
        async with open_app(tmp_path, clock=clock) as app:
            handle = await app.resume("r")
            counts = []
            for seconds in (5.9, 0.1, 29.9, 0.1):
                await clock.advance(seconds)
                counts.append(len(ran))
            return [counts, await handle.result()]

    assert [[1, 2, 2, 3], ["no", 40.0]] == in_loop(run())


@pytest.mark.slow
def test_a_call_during_which_the_process_dies_again_and_again_fails_in_the_end(tmp_path: Path) -> None:
    @satay.task
    async def kills() -> None:
        ran.append(satay.task_context().attempt)
        await pause(math.inf)

    @satay.workflow
    async def crashes() -> str:
        try:
            await kills()
        except TaskCrashedError as error:
            return str(error)
        return "never"

    async def run() -> tuple[str, list[satay.RunEvent]]:
        for _ in range(30):
            async with open_app(tmp_path, clock=ManualClock()) as app:
                handle = await app.start(crashes, run_id="r")
                await settle(app)
                if (await handle.status()).is_terminal:
                    break
                await abandon(app)
        async with open_app(tmp_path) as app:
            return str(await app.resume("r").result()), await entries_of(app, "r")

    result, entries = in_loop(run())

    assert "died 20 times" in result
    assert list(range(1, 22)) == ran
    crashed = [entry for entry in entries if entry.data.get("after") == "crash"]
    assert 20 == len(crashed)


def test_an_orderly_close_is_no_crash_of_the_attempt(tmp_path: Path) -> None:
    @satay.task
    async def waits() -> str:
        ran.append(satay.task_context().attempt)
        if len(ran) < 23:
            await pause(math.inf)
        return "done"

    @satay.workflow
    async def patient() -> str:
        return await waits()

    async def run() -> str:
        for _ in range(22):
            async with open_app(tmp_path, clock=ManualClock()) as app:
                await app.start(patient, run_id="r")
                await settle(app)
        async with open_app(tmp_path) as app:
            return str(await app.resume("r").result())

    assert "done" == in_loop(run())
    assert 23 == len(ran)


@pytest.mark.parametrize("asked", [-1, 10_001, 1.5, True, "2"])
def test_retries_are_a_whole_number_in_bounds(asked: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"retries of task 'tasks\.odd'"):
        satay.task(name="tasks.odd", retries=asked)(pause)


# --- timeouts ---------------------------------------------------------------------------------------------------------


def test_each_attempt_has_the_whole_timeout(tmp_path: Path) -> None:
    @satay.task(timeout=30.0, retries=2, backoff=satay.Backoff(first=5.0, factor=1.0, jitter=False))
    async def slow() -> str:
        ran.append(satay.task_context().attempt)
        await pause(40.0 if len(ran) < 3 else 29.0)
        return "in time"

    @satay.workflow
    async def bounded() -> list[Any]:
        begun = satay.now()
        return [await slow(), (satay.now() - begun).total_seconds()]

    assert ["in time", 99.0] == in_loop(result_of(tmp_path, bounded))
    assert [1, 2, 3] == ran


def test_a_timeout_is_an_error_that_names_task_attempt_and_bound(tmp_path: Path) -> None:
    @satay.task(name="tasks.too_slow", timeout=timedelta(seconds=1.5))
    async def too_slow() -> None:
        try:
            await pause(math.inf)
        finally:
            ran.append("cleaned up")

    @satay.workflow
    async def bounded() -> list[str]:
        try:
            await too_slow()
        except TimeoutError as error:
            see = [type(error).__name__, str(error)]
            await satay.sleep(1.0)
            seen.append(see)
            return see
        return []

    result = in_loop(drive_twice(tmp_path, bounded))

    assert "TaskTimeoutError" == result[0]
    assert "attempt 1 of task 'tasks.too_slow' ran longer than its timeout, 1.5 s" in result[1]
    assert [result, result] == seen
    assert ["cleaned up"] == ran


def test_a_timeout_error_of_the_task_itself_stays_what_it_is(tmp_path: Path) -> None:
    @satay.task(timeout=30.0)
    async def raises() -> None:
        raise TimeoutError("of the socket")

    @satay.workflow
    async def calls() -> list[str]:
        try:
            await raises()
        except TimeoutError as error:
            return [type(error).__name__, str(error)]
        return []

    assert ["TimeoutError", "of the socket"] == in_loop(result_of(tmp_path, calls))


def test_a_plain_task_that_runs_over_its_timeout_is_given_up(tmp_path: Path) -> None:
    released = threading.Event()

    @satay.task(timeout=5.0)
    def blocks() -> None:
        released.wait(20.0)

    @satay.workflow
    async def bounded() -> str:
        try:
            await blocks()
        except TaskTimeoutError:
            return "given up"
        return "waited"

    try:
        clock = ManualClock(autojump=True, patience_seconds=0.01)
        assert "given up" == in_loop(result_of(tmp_path, bounded, clock=clock))
    finally:
        released.set()


def test_a_call_that_waits_for_a_thread_spends_nothing_of_its_timeout(tmp_path: Path) -> None:
    released = threading.Event()

    @satay.task
    def blocks() -> None:
        released.wait(20.0)

    @satay.task(timeout=5.0)
    def is_quick(number: int) -> int:
        return number

    @satay.workflow
    async def crowded() -> list[int]:
        blocked = [asyncio.ensure_future(blocks()) for _ in range(DEFAULT_THREADS)]
        waiting = [asyncio.ensure_future(is_quick(number)) for number in range(3)]
        await asyncio.gather(*blocked)
        return list(await asyncio.gather(*waiting))

    async def run() -> list[int]:
        clock = ManualClock(patience_seconds=0.01)
        async with open_app(tmp_path, clock=clock) as app:
            handle = app.start(crowded)
            await clock.advance(10.0)
            released.set()
            return await handle.result()

    try:
        assert [0, 1, 2] == in_loop(run())
    finally:
        released.set()


# --- plain tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_plain_wrapper_around_a_coroutine_function_is_refused_and_not_tried_again(
    timeout: float | None, tmp_path: Path
) -> None:
    def traced(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any) -> Any:
            ran.append("wrapper")
            return fn(*args)

        return wrapper

    @satay.task(name="tasks.traced", retries=3, timeout=timeout)
    @traced
    async def fetch(number: int) -> int:
        ran.append("function")
        return number

    @satay.workflow
    async def calls() -> str:
        try:
            return str(await fetch(1))
        except EncodeError as error:
            return str(error)

    message = in_loop(result_of(tmp_path, calls))

    assert "task 'tasks.traced' is a plain function and returned a coroutine" in message
    assert "'async def'" in message
    assert ["wrapper"] == ran


def test_plain_tasks_run_side_by_side_in_threads_of_satay(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    @satay.task
    def meet(number: int) -> list[Any]:
        together.wait(10.0)
        return [number, threading.current_thread().name, satay.task_context().ordinal]

    @satay.workflow
    async def meeting() -> list[list[Any]]:
        return await satay.map(meet, [5, 6, 7])

    result = in_loop(result_of(tmp_path, meeting))

    assert [[5, 0], [6, 1], [7, 2]] == [[number, ordinal] for number, _, ordinal in result]
    names = {name for _, name, _ in result}
    assert 3 == len(names)
    assert all(name.startswith("satay-task") for name in names)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LookupError("gone"), ["LookupError", "gone", "None"]),
        # No coroutine can raise it: asyncio says so in the same words.
        (StopIteration("stop"), ["RuntimeError", "coroutine raised StopIteration", "StopIteration('stop')"]),
    ],
)
def test_what_a_plain_task_raises_reaches_the_body(error: Exception, told: list[str], tmp_path: Path) -> None:
    @satay.task
    def raises() -> None:
        raise error

    @satay.workflow
    async def calls() -> list[str]:
        try:
            await raises()
        except Exception as caught:
            return [type(caught).__name__, str(caught), repr(caught.__cause__)]
        return []

    assert told == in_loop(result_of(tmp_path, calls))


def test_a_task_outside_a_workflow_is_a_plain_call() -> None:
    @satay.task
    async def add(one: int, other: int = 1) -> int:
        return one + other

    @satay.task
    def sub(one: int) -> int:
        return one - 1

    assert 5 == asyncio.run(add(2, other=3))
    assert 4 == sub(5)  # type: ignore[comparison-overlap]  # the type of a task is the one it has in a workflow


def test_task_context_has_a_meaning_in_tasks_only(tmp_path: Path) -> None:
    @satay.workflow
    async def asks() -> str:
        try:
            satay.task_context()
        except UsageError as error:
            return str(error)
        return "answered"

    assert "outside a task" in in_loop(result_of(tmp_path, asks))
    with pytest.raises(UsageError, match="outside a task"):
        satay.task_context()


# --- system exits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_task_ends_the_process_and_is_no_failure_of_the_call(
    kind: type[BaseException], tmp_path: Path
) -> None:
    @satay.task
    async def leaves() -> str:
        ran.append("leaves")
        if len(ran) == 1:
            raise kind(3)
        return "stayed"

    @satay.workflow
    async def calls() -> str:
        return await leaves()

    async def first() -> None:
        async with open_app(tmp_path) as app:
            await app.start(calls, run_id="r").result()

    with pytest.raises(kind):
        asyncio.run(first())

    async def second() -> tuple[str, list[str]]:
        async with open_app(tmp_path) as app:
            return await app.resume("r").result(), await types_of(app, "r")

    result, types = in_loop(second())

    assert "stayed" == result
    assert EntryType.TASK_FAILED not in types
    assert EntryType.TASK_ATTEMPT_FAILED not in types


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_body_ends_the_process_and_is_no_failure_of_the_run(
    kind: type[BaseException], tmp_path: Path
) -> None:
    @satay.workflow
    async def leaves() -> str:
        ran.append("leaves")
        await satay.sleep(1.0)
        if len(ran) == 1:
            raise kind(3)
        return "stayed"

    async def first() -> None:
        async with open_app(tmp_path) as app:
            await app.start(leaves, run_id="r").result()

    with pytest.raises(kind):
        asyncio.run(first())

    async def second() -> str:
        async with open_app(tmp_path) as app:
            return str(await app.resume("r").result())

    assert "stayed" == in_loop(second())


class Stop(BaseException):
    pass


@pytest.mark.parametrize("place", ["task", "plain task", "body"])
def test_an_odd_base_exception_is_a_failure_and_does_not_hang(place: str, tmp_path: Path) -> None:
    @satay.task(name="tasks.stops", retries=3)
    async def stops() -> None:
        ran.append(1)
        raise Stop("odd")

    @satay.task(name="tasks.stops_plainly", retries=3)
    def stops_plainly() -> None:
        ran.append(1)
        raise Stop("odd")

    @satay.workflow(name="tasks.stopping")
    async def stopping() -> None:
        match place:
            case "task":
                await stops()
            case "plain task":
                await stops_plainly()
            case _:
                raise Stop("odd")

    async def run() -> tuple[str, satay.RunStatus]:
        async with open_app(tmp_path) as app:
            handle = app.start(stopping, run_id="r")
            with pytest.raises(satay.SatayError, match="odd") as caught:
                await handle.result()
            return str(caught.value), await handle.status()

    message, status = in_loop(run())

    assert "Stop: odd" in message
    assert satay.RunStatus.FAILED == status
    assert len(ran) <= 1


def test_a_cancelled_error_that_a_task_raises_itself_is_its_failure(tmp_path: Path) -> None:
    @satay.task
    async def cancels_itself() -> None:
        raise asyncio.CancelledError("mine")

    @satay.workflow
    async def calls() -> str:
        try:
            await cancels_itself()
        except TaskFailedError as error:
            return error.error_type
        return "done"

    assert "CancelledError" in in_loop(result_of(tmp_path, calls))


def test_no_task_of_the_host_is_current_while_a_body_goes_on(tmp_path: Path) -> None:
    @satay.task
    async def host() -> None:
        hosts.append(asyncio.get_running_loop())

    @satay.workflow
    async def looks() -> None:
        for _ in range(2):
            await host()
            current.append(asyncio.current_task(hosts[0]))

    hosts: list[asyncio.AbstractEventLoop] = []
    current: list[object] = []
    in_loop(result_of(tmp_path, looks))

    assert [None, None] == current


def test_an_attempt_leaves_its_variables_to_no_other(tmp_path: Path) -> None:
    @satay.task
    async def leave(value: str) -> str:
        before = variable.get()
        variable.set(value)
        return before

    @satay.workflow
    async def calls() -> list[str]:
        return [await leave("a"), variable.get(), await leave("b"), variable.get()]

    variable = contextvars.ContextVar("variable", default="unset")

    assert ["unset"] * 4 == in_loop(result_of(tmp_path, calls))


# --- effects and decisions --------------------------------------------------------------------------------------------


@satay.task(name="tasks.pay", effect="external", retries=3)
async def pay(amount: int) -> str:
    ran.append(satay.task_context().attempt)
    if len(ran) == 1:
        await pause(math.inf)
    return f"paid {amount}"


@satay.workflow(name="tasks.order")
async def order() -> str:
    try:
        return await pay(7)
    except TaskCrashedError as error:
        return f"gave up: {error}"


async def crash_in_call(place: Path, workflow: satay.Workflow[..., Any]) -> None:
    async with open_app(place, clock=ManualClock()) as app:
        await app.start(workflow, run_id="r")
        await settle(app)
        await abandon(app)


def test_a_crash_during_an_external_call_needs_a_decision(tmp_path: Path) -> None:
    async def run() -> tuple[str, list[str]]:
        await crash_in_call(tmp_path, order)
        for _ in range(2):
            async with open_app(tmp_path) as app:
                handle = app.resume("r")
                with pytest.raises(NeedsDecisionError, match=r"satay\.decide") as caught:
                    await handle.result()
                assert "r" == caught.value.run_id
                assert satay.RunStatus.NEEDS_DECISION == await handle.status()
                assert ["r"] == [run.run_id for run in await app.runs(status="needs_decision")]
        async with open_app(tmp_path) as app:
            return str(await app.handle("r").status()), await types_of(app, "r")

    status, types = in_loop(run())

    assert "needs_decision" == status
    assert 1 == types.count(EntryType.DECISION_REQUESTED)
    assert [1] == ran


@pytest.mark.parametrize(
    ("decision", "result", "attempts"),
    [
        ({"decision": "rerun"}, "paid 7", [1, 2]),
        ({"decision": "fail"}, "gave up: it was decided", [1]),
        ({"value": "paid by hand"}, "paid by hand", [1]),
    ],
)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_decision_is_recorded_and_goes_on_with_the_run(
    decision: dict[str, Any], result: str, attempts: list[int], is_resumed: bool, tmp_path: Path
) -> None:
    async def run() -> tuple[str, list[str]]:
        await crash_in_call(tmp_path, order)
        async with open_app(tmp_path) as app:
            if is_resumed:
                with pytest.raises(NeedsDecisionError):
                    await app.resume("r").result()
            else:
                await app.resume("r")
                await settle(app)
            await app.decide("r", **decision)
            return await app.handle("r").result(), await types_of(app, "r")

    answer, types = in_loop(run())

    assert answer.startswith(result)
    assert attempts == ran
    assert 1 == types.count(EntryType.DECISION_MADE)


def test_a_decision_survives_a_crash_right_after_it(tmp_path: Path) -> None:
    async def run(order_of_crash: dict[str, Any]) -> str:
        place = tmp_path / order_of_crash["type"]
        ran.clear()
        await crash_in_call(place, order)
        async with open_app(place) as app:
            await app.resume("r")
            await settle(app)
        faults = Faults().crash_after(**order_of_crash)
        async with open_app(place, faults=faults) as app:
            await app.decide("r", value="by hand")
            await faults.crashed
        async with open_app(place) as app:
            return str(await app.resume("r").result())

    assert "by hand" == in_loop(run({"type": EntryType.DECISION_MADE}))
    assert "by hand" == in_loop(run({"type": EntryType.WORKFLOW_COMPLETED}))


def test_deciding_twice_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def run() -> tuple[str, list[str]]:
        await crash_in_call(tmp_path, order)
        async with open_app(tmp_path) as app:
            await app.resume("r")
            await settle(app)
            await app.decide("r", value="first")
            with pytest.raises(UsageError, match="waits for no decision"):
                await _settled_decide(app)
            return str(await app.handle("r").result()), await types_of(app, "r")

    async def _settled_decide(app: Any) -> None:
        await settle(app)
        await app.decide("r", value="second")

    result, types = in_loop(run())

    assert "first" == result
    assert 1 == types.count(EntryType.DECISION_MADE)


def test_two_decisions_at_once_leave_one(tmp_path: Path) -> None:
    async def run() -> tuple[str, list[str]]:
        await crash_in_call(tmp_path, order)
        async with open_app(tmp_path) as app:
            await app.resume("r")
            await settle(app)
            await asyncio.gather(
                *(app.decide("r", value=f"by {name}") for name in ("ada", "bob")), return_exceptions=True
            )
            return str(await app.handle("r").result()), await types_of(app, "r")

    result, types = in_loop(run())

    assert result in ("by ada", "by bob")
    assert 1 == types.count(EntryType.DECISION_MADE)


@pytest.mark.parametrize("bad", [{}, {"decision": "maybe"}, {"decision": "rerun", "value": 1}])
def test_a_decision_is_one_of_three(bad: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            await app.decide("r", **bad)

    with pytest.raises(InvalidValueError, match="rerun"):
        in_loop(run())


def test_a_decision_about_a_run_that_needs_none_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            ran.append("not the first time")
            await app.start(order, run_id="r").result()
            with pytest.raises(UsageError, match="waits for no decision"):
                await app.decide("r", "rerun")
            with pytest.raises(RunNotFoundError):
                await app.decide("nobody", "rerun")

    in_loop(run())


def test_a_decided_value_that_does_not_fit_is_refused_and_can_be_corrected(tmp_path: Path) -> None:
    @satay.task(effect="external")
    async def count() -> int:
        await pause(math.inf)
        return 1

    @satay.workflow
    async def counts() -> int:
        return await count()

    async def run() -> int:
        await crash_in_call(tmp_path, counts)
        async with open_app(tmp_path) as app:
            await app.resume("r")
            await settle(app)
            with pytest.raises(EncodeError, match=r"decided result of task '.*count'"):
                await app.decide("r", value=object())
            await app.decide("r", value=3)
            return int(await app.handle("r").result())

    assert 3 == in_loop(run())


def test_a_decided_value_arrives_as_the_annotation_says(tmp_path: Path) -> None:
    @satay.task(effect="external")
    async def hire() -> Job:
        await pause(math.inf)
        return Job("never")

    @satay.workflow
    async def hires() -> list[Any]:
        job = await hire()
        return [type(job).__name__, job.name]

    async def run() -> list[Any]:
        await crash_in_call(tmp_path, hires)
        async with open_app(tmp_path) as app:
            await app.resume("r")
            await settle(app)
            await app.decide("r", value=Job("by hand"))
            return list(await app.handle("r").result())

    assert ["Job", "by hand"] == in_loop(run())


def test_one_of_several_undecided_calls_is_named_by_its_entry(tmp_path: Path) -> None:
    @satay.task(effect="external")
    async def send(name: str) -> str:
        await pause(math.inf)
        return name

    @satay.workflow
    async def sends() -> list[str]:
        return await satay.map(send, ["a", "b"])

    async def run() -> list[str]:
        await crash_in_call(tmp_path, sends)
        async with open_app(tmp_path) as app:
            await app.resume("r")
            await settle(app)
            requests = [entry for entry in await entries_of(app, "r") if entry.type == EntryType.DECISION_REQUESTED]
            first, second = (entry.data["call"] for entry in requests)
            await app.decide("r", value="two", seq=second)
            await settle(app)
            with pytest.raises(UsageError, match=f"call at entry {second}"):
                await app.decide("r", value="two", seq=second)
            assert satay.RunStatus.NEEDS_DECISION == await app.handle("r").status()
            await app.decide("r", value="one", seq=first)
            return list(await app.handle("r").result())

    assert ["one", "two"] == in_loop(run())


def test_a_run_that_needs_a_decision_can_be_cancelled(tmp_path: Path) -> None:
    async def run() -> satay.RunStatus:
        await crash_in_call(tmp_path, order)
        async with open_app(tmp_path) as app:
            handle = await app.resume("r")
            await settle(app)
            await handle.cancel()
            await settle(app)
            return await handle.status()

    assert satay.RunStatus.CANCELLED == in_loop(run())
    assert [1] == ran


def test_other_branches_go_on_while_a_decision_is_waited_for(tmp_path: Path) -> None:
    @satay.task(effect="external")
    async def send() -> str:
        await pause(math.inf)
        return "sent"

    @satay.workflow
    async def both() -> list[Any]:
        async def nap() -> str:
            await satay.sleep(50.0)
            seen.append("woke")
            return "woke"

        return list(await asyncio.gather(send(), nap()))

    async def run() -> list[Any]:
        await crash_in_call(tmp_path, both)
        async with open_app(tmp_path) as app:
            handle = await app.resume("r")
            await settle(app)
            woke = seen.copy()
            await app.decide("r", value="by hand")
            return [woke, await handle.result()]

    assert [["woke"], ["by hand", "woke"]] == in_loop(run())


def test_an_error_of_an_external_call_is_retried_and_needs_no_decision(tmp_path: Path) -> None:
    @satay.task(effect="external", retries=1, backoff=1.0)
    async def flaky() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise Refused
        return "sent"

    @satay.workflow
    async def sends() -> str:
        return await flaky()

    assert "sent" == in_loop(result_of(tmp_path, sends))


@pytest.mark.parametrize("is_async", [True, False])
def test_an_external_call_that_ran_out_of_time_is_not_made_again(is_async: bool, tmp_path: Path) -> None:
    go_on = threading.Event()

    async def pay() -> None:
        ran.append(satay.task_context().attempt)
        await pause(math.inf)

    def pay_in_thread() -> None:
        ran.append(satay.task_context().attempt)
        go_on.wait(30)

    @satay.workflow(name=f"tasks.pays_{is_async}")
    async def pays() -> str:
        name = f"tasks.pay_in_time_{is_async}"
        once = satay.task(name=name, effect="external", retries=3, backoff=1.0, timeout=2.0)(
            pay if is_async else pay_in_thread
        )
        try:
            await once()
        except TimeoutError as error:
            return str(error)
        return "paid"

    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(pays).result()

    try:
        said = in_loop(run())
    finally:
        go_on.set()

    assert [1] == ran
    assert "ran longer than its timeout, 2 s; it is external, so nobody knows whether it took effect" in said


@pytest.mark.parametrize("effect", [None, "pure", "idempotent"])
def test_other_effects_run_again_after_a_timeout(effect: Any, tmp_path: Path) -> None:
    @satay.task(name="tasks.again_in_time", effect=effect, retries=1, backoff=1.0, timeout=2.0)
    async def again() -> str:
        ran.append(satay.task_context().attempt)
        if len(ran) == 1:
            await pause(math.inf)
        return "done"

    @satay.workflow(name="tasks.runs_again_in_time")
    async def runs_again() -> str:
        return await again()

    assert "done" == in_loop(result_of(tmp_path, runs_again))
    assert [1, 2] == ran


@pytest.mark.parametrize("effect", [None, "pure", "idempotent"])
def test_other_effects_run_again_after_a_crash(effect: Any, tmp_path: Path) -> None:
    @satay.task(name="tasks.again", effect=effect)
    async def again() -> str:
        ran.append(satay.task_context().idempotency_key)
        if len(ran) == 1:
            await pause(math.inf)
        return "done"

    @satay.workflow(name="tasks.runs_again")
    async def runs_again() -> str:
        return await again()

    async def run() -> str:
        await crash_in_call(tmp_path, runs_again)
        async with open_app(tmp_path) as app:
            return str(await app.resume("r").result())

    assert "done" == in_loop(run())
    assert 2 == len(ran)
    assert ran[0] == ran[1]


@pytest.mark.parametrize(
    ("effect", "is_begun"), [("pure", True), (None, False), ("idempotent", False), ("external", False)]
)
def test_only_a_pure_task_begins_before_its_call_is_on_disk(effect: Any, is_begun: bool, tmp_path: Path) -> None:
    @satay.task(name="tasks.eager", effect=effect)
    async def eager() -> str:
        ran.append("began")
        return "done"

    @satay.workflow(name="tasks.calls_eager")
    async def calls_eager() -> str:
        return await eager()

    async def run() -> tuple[list[Any], str]:
        faults = Faults().stall_after(type=EntryType.WORKFLOW_CREATED)
        async with open_app(tmp_path, faults=faults) as app:
            handle = app.start(calls_eager, run_id="r")
            await faults.stalled
            for _ in range(50):
                await asyncio.sleep(0)
            begun = ran.copy()
            faults.go_on()
            return begun, await handle.result()

    assert (["began"] if is_begun else [], "done") == in_loop(run())


def test_a_result_is_handed_over_only_when_it_is_on_disk(tmp_path: Path) -> None:
    async def run() -> tuple[bool, list[Any]]:
        faults = Faults().stall_after(type=EntryType.TASK_ATTEMPT_STARTED, count=2)
        async with open_app(tmp_path, faults=faults) as app:
            result = asyncio.ensure_future(app.start(try_it, run_id="r").result())
            await faults.stalled
            for _ in range(50):
                await asyncio.sleep(0)
            was_done = result.done()
            faults.go_on()
            return was_done, await result

    assert (False, ["no", 40.0]) == in_loop(run())


def test_an_external_call_that_an_orderly_close_stopped_is_undecided_too(tmp_path: Path) -> None:
    async def run() -> str:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(order, run_id="r")
            await settle(app)
        async with open_app(tmp_path) as app:
            with pytest.raises(NeedsDecisionError):
                await app.resume("r").result()
            await app.decide("r", "rerun")
            return str(await app.handle("r").result())

    assert "paid 7" == in_loop(run())


# --- keys and usage ---------------------------------------------------------------------------------------------------


def test_the_idempotency_key_is_the_same_for_attempts_resumes_and_forks(tmp_path: Path) -> None:
    @satay.task(name="tasks.keyed", retries=1, backoff=1.0)
    async def keyed(name: str) -> list[str]:
        context = satay.task_context()
        keys = [name, context.idempotency_key, context.fork_idempotency_key]
        ran.append(keys)
        if context.attempt == 1 and name == "fails":
            raise Refused
        return keys

    @satay.workflow
    async def keys() -> list[list[str]]:
        return [await keyed("fails"), await keyed("second"), *await satay.map(keyed, ["m"], key=str)]

    async def run() -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
        faults = Faults().crash_before(type=EntryType.TASK_COMPLETED, count=2)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(keys, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            source = await app.resume("r").result()
            attempts = ran.copy()
            fork = await app.fork("r", before_task="tasks.keyed")
            return source, attempts, await fork.result()

    source, attempts, fork = in_loop(run())

    assert [source[0], source[0], source[1], source[1], source[2]] == attempts
    assert [own for _, own, _ in source] == [own for _, own, _ in fork]
    assert all(mine != theirs for (_, _, mine), (_, _, theirs) in zip(source, fork, strict=True))
    assert 3 == len({own for _, own, _ in source})


def test_two_runs_have_other_idempotency_keys(tmp_path: Path) -> None:
    @satay.task
    async def key() -> str:
        return satay.task_context().idempotency_key

    @satay.workflow
    async def asks() -> str:
        return await key()

    async def run() -> set[str]:
        async with open_app(tmp_path) as app:
            return {await app.start(asks).result() for _ in range(3)}

    assert 3 == len(in_loop(run()))


def test_the_context_tells_run_task_and_position(tmp_path: Path) -> None:
    @satay.task(name="tasks.tells")
    async def tells(_: str) -> list[Any]:
        context = satay.task_context()
        return [context.run_id, context.task, context.ordinal, context.key, context.attempt]

    @satay.workflow
    async def asks() -> list[Any]:
        return [await tells("a"), await tells("b"), *await satay.map(tells, ["k"], key=str)]

    expected = [["r", "tasks.tells", 0, None, 1], ["r", "tasks.tells", 1, None, 1], ["r", "tasks.tells", None, "k", 1]]
    assert expected == in_loop(result_of(tmp_path, asks))


def test_usage_is_recorded_with_each_attempt(tmp_path: Path) -> None:
    @satay.task(retries=1, backoff=1.0)
    def spends() -> str:
        context = satay.task_context()
        context.record_usage(model="m", input_tokens=10 * context.attempt, output_tokens=1, cost=0.5)
        if context.attempt == 1:
            raise Refused
        context.record_usage(model="n", cost=2)
        return "done"

    @satay.workflow
    async def calls() -> str:
        return await spends()

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            await app.start(calls, run_id="r").result()
            entries = [entry for entry in await entries_of(app, "r") if "usage" in entry.data]
            return [[entry.type, entry.data["usage"]] for entry in entries]

    failed, completed = in_loop(run())

    assert ["TaskAttemptFailed", [{"model": "m", "input_tokens": 10, "output_tokens": 1, "cost": 0.5}]] == failed
    assert "TaskCompleted" == completed[0]
    assert [("m", 20, 0.5), ("n", 0, 2.0)] == [(use["model"], use["input_tokens"], use["cost"]) for use in completed[1]]


@pytest.mark.parametrize("use", [{"input_tokens": -1}, {"output_tokens": -1}, {"cost": -0.1}, {"cost": math.nan}])
def test_usage_below_zero_or_no_number_is_refused(use: dict[str, Any], tmp_path: Path) -> None:
    @satay.task
    async def spends() -> None:
        satay.task_context().record_usage(model="m", **use)

    @satay.workflow
    async def calls() -> None:
        await spends()

    with pytest.raises(InvalidValueError, match=r"of record_usage\(\) is .*; it must be a"):
        in_loop(result_of(tmp_path, calls))


# --- values: the same live and again ----------------------------------------------------------------------------------


class Color(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plain(Enum):
    ONE = (1, 2)


class Permission(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    name: str
    tags: frozenset[str] = frozenset()


@dataclass
class WithInit:
    base: int
    factor: InitVar[int] = 2
    product: int = field(init=False, default=0)

    def __post_init__(self, factor: int) -> None:
        self.product = self.base * factor


@dataclass
class Job:
    name: str
    size: int = 1


@dataclass
class Left:
    x: int


@dataclass
class Right:
    x: int


class Model(pydantic.BaseModel):
    uid: int = pydantic.Field(alias="id")
    when: datetime | None = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Pets(pydantic.RootModel[list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]]):
    pass


T = TypeVar("T")


class Box(pydantic.BaseModel, Generic[T]):
    content: T


class Secret(pydantic.BaseModel):
    token: pydantic.SecretStr
    hidden: int = pydantic.Field(default=0, exclude=True)


VALUES: dict[str, Any] = {
    "nothing": None,
    "text with NUL": "a\x00b",
    "lone surrogate": "\ud800x",
    "emoji": "\U0001f600",
    "decomposed": "e\u0301",
    "bytes": b"\x00\xff",
    "infinities": [math.inf, -math.inf],
    "int keys": {1: "a", (2, 3): "b"},
    "a tag": {"$satay": "bytes", "value": "x"},
    "str enum": Color.RED,
    "int enum": Level.HIGH,
    "enum": Plain.ONE,
    "flag": Permission.READ | Permission.WRITE,
    "nested enums": {"c": [Color.RED, Level.HIGH]},
    "named tuple": Point(1, 2),
    "tuple": (1, (2, 3)),
    "set": {1, 2},
    "frozenset": frozenset({"a"}),
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
    "path": Path("a/b"),
    "pure path": PurePosixPath("a/b"),
    "date": date(2024, 2, 29),
    "naive": datetime(2024, 1, 1, 12, 0),  # noqa: DTZ001
    "aware": datetime(2024, 1, 1, 12, 0, tzinfo=UTC),
    "year one": datetime(1, 1, 1, tzinfo=UTC),
    "offset": datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "Paris, first fold": datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Paris")),
    "Paris, second fold": datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1),
    "timedelta": timedelta(days=999_999, microseconds=1),
    "frozen dataclass": Frozen(name="a", tags=frozenset({"t"})),
    "dataclass with InitVar": WithInit(3),
    "model": Model(id=4, when=datetime(2024, 1, 1, tzinfo=UTC)),
    "root model": Pets([Cat(), Dog()]),
    "generic model": Box[int](content=1),
    "secret": Secret(token=pydantic.SecretStr("s")),
    "hidden field": Secret(token=pydantic.SecretStr("s"), hidden=5),
    "Counter": Counter("aab"),
    "OrderedDict": OrderedDict([("b", 1), ("a", 2)]),
    "defaultdict": defaultdict(list, {"a": [1]}),
    "deque": deque([1, 2, 3], maxlen=3),
    "big text": BIG,
    "huge int": 10**400,
}


def _facts(value: Any) -> list[Any]:
    """What a body could tell two values apart by."""
    facts: list[Any] = [type(value).__name__, value]
    if isinstance(value, datetime):
        facts += [value.utcoffset(), value.fold, str(value.tzinfo), value + timedelta(days=180)]
    if isinstance(value, deque):
        facts.append(value.maxlen)
    if isinstance(value, dict):
        facts += [list(value), [type(key).__name__ for key in value]]
    if isinstance(value, Secret):
        facts.append(value.token.get_secret_value())
    return facts


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_the_same_live_and_from_the_journal_or_refused_at_once(name: str, tmp_path: Path) -> None:
    value = VALUES[name]

    @satay.task
    async def unannotated():  # type: ignore[no-untyped-def]  # that there is no annotation is the point
        return value

    @satay.task
    async def loose() -> Any:
        return value

    @satay.workflow
    async def both() -> str:
        told: list[Any] = []
        for task in (unannotated, loose):
            try:
                told.append(_facts(await task()))
            except EncodeError as error:
                told.append(["refused", str(error)])
        seen.append(told)
        await satay.sleep(1.0)
        return "done"

    assert "done" == in_loop(drive_twice(tmp_path, both))
    live, again = seen
    assert live == again
    for told in live:
        assert "refused" == told[0] or _facts(value) == told


def test_nan_is_nan_again(tmp_path: Path) -> None:
    @satay.task
    async def nan() -> dict[str, Any]:
        return {"x": math.nan, "y": math.inf}

    @satay.workflow
    async def asks() -> list[Any]:
        value = await nan()
        seen.append([math.isnan(value["x"]), value["y"]])
        await satay.sleep(1.0)
        return [math.isnan(value["x"]), value["y"]]

    async def run() -> tuple[Any, list[str]]:
        result = await drive_twice(tmp_path, asks)
        async with open_app(tmp_path) as app:
            journal = (await app._ready()).journal
            return result, [entry.payload for entry in await journal.read("r")]

    result, payloads = in_loop(run())

    assert [True, math.inf] == result
    assert [result, result] == seen
    for payload in payloads:
        json.loads(payload, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def test_a_union_keeps_its_member_in_run_fork_and_fork_of_a_fork(tmp_path: Path) -> None:
    @satay.task(name="tasks.either")
    async def either() -> Left | Right:
        return Right(1)

    @satay.task(name="tasks.after")
    async def after() -> int:
        return 1

    @satay.workflow
    async def asks() -> str:
        name = type(await either()).__name__
        await after()
        seen.append(name)
        return name

    async def run() -> tuple[list[str], set[str]]:
        async with open_app(tmp_path) as app:
            results = [await app.start(asks, run_id="r0").result()]
            for number in (1, 2):
                fork = await app.fork(f"r{number - 1}", before_task="tasks.after", run_id=f"r{number}")
                results.append(await fork.result())
            journal = (await app._ready()).journal
            return results, {(await journal.read(f"r{number}"))[2].payload for number in range(3)}

    results, payloads = in_loop(run())

    assert ["Right"] * 3 == results
    assert 1 == len(payloads)


def test_a_task_that_changes_its_argument_changes_nothing(tmp_path: Path) -> None:
    @satay.task(retries=1, backoff=1.0)
    async def push(items: list[int]) -> list[int]:
        items.append(len(items) + 1)
        ran.append(items)
        if len(ran) == 1:
            raise Refused
        return items

    @satay.workflow
    async def pushes() -> list[Any]:
        mine = [1]
        first = await push(mine)
        first.append(99)
        second = await push(mine)
        seen.append([mine, first, second])
        await satay.sleep(1.0)
        return [mine, first, second]

    result = in_loop(drive_twice(tmp_path, pushes))

    assert [[1], [1, 2, 99], [1, 2]] == result
    assert [result, result] == seen
    assert [[1, 2]] * 3 == ran


def test_a_result_that_the_task_changes_later_is_not_changed_for_the_body(tmp_path: Path) -> None:
    kept: list[int] = []

    @satay.task
    async def gives() -> list[int]:
        kept.append(1)
        return kept

    @satay.workflow
    async def asks() -> list[int]:
        first = await gives()
        await gives()
        return first

    assert [1] == in_loop(result_of(tmp_path, asks))


def test_arguments_arrive_as_their_annotations_say(tmp_path: Path) -> None:
    @satay.task
    async def takes(
        color: Color, maybe: Color | None, many: list[Level], counts: dict[Color, int], job: Job, flag: Permission
    ) -> list[str]:
        return [type(color).__name__, type(maybe).__name__, type(many[0]).__name__, type(next(iter(counts))).__name__,
                type(job).__name__, type(flag).__name__]  # fmt: skip

    @satay.workflow
    async def calls() -> list[str]:
        return await takes(Color.RED, None, [Level.HIGH], {Color.RED: 1}, job=Job("a"), flag=Permission.READ)

    assert ["Color", "NoneType", "Level", "Color", "Job", "Permission"] == in_loop(result_of(tmp_path, calls))


def test_the_input_is_typed_whatever_other_parameters_there_are(tmp_path: Path) -> None:
    @satay.workflow
    async def works(job: Job, dry: bool = False) -> list[Any]:
        return [type(job).__name__, job.size, dry]

    @satay.workflow
    async def paints(color: Color) -> str:
        return f"{type(color).__name__} {color.value}"

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            results: list[Any] = [await app.start(works, Job("a", 2)).result()]
            results.append(await app.start(paints, Color.RED).result())
            results.append(await app.start(paints, "red").result())
            for bad in (7, {"nome": "a"}, "text", None, object()):
                with pytest.raises((CodecError, InvalidValueError), match="the input of workflow"):
                    app.start(works, bad)
            with pytest.raises((CodecError, InvalidValueError), match="the input of workflow"):
                app.start(paints, "mauve")
            with pytest.raises((CodecError, InvalidValueError), match="the input of workflow"):
                app.start(works)
            results.append(len(await app.runs()))
            return results

    assert [["Job", 2, False], "Color red", "Color red", 3] == in_loop(run())


# --- values that cannot be written ------------------------------------------------------------------------------------


class Unwritable:
    pass


@satay.task(name="tasks.echo", retries=3)
async def echo(value: Any) -> Any:
    ran.append("echo")
    return value


@satay.task(name="tasks.gives_unwritable", retries=3)
async def gives_unwritable() -> Any:
    ran.append("gives")
    return {"deep": [1, Unwritable()]}


@satay.workflow(name="tasks.child_of_anything")
async def child_of_anything(value: Any = None) -> Any:
    return value


@satay.workflow(name="tasks.child_gives_unwritable")
async def child_gives_unwritable() -> Any:
    return {"deep": Unwritable()}


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("argument", ["the input of task 'tasks.echo'", "value", "[1]", "Unwritable"]),
        ("result", ["the result of task 'tasks.gives_unwritable'", "deep", "[1]", "Unwritable"]),
        ("child input", ["the input of child workflow 'tasks.child_of_anything'", "Unwritable"]),
        ("child result", ["the result of workflow 'tasks.child_gives_unwritable'", "deep", "Unwritable"]),
    ],
)
def test_a_value_that_cannot_be_written_is_an_error_at_the_call_and_never_retried(
    place: str, names: list[str], tmp_path: Path
) -> None:
    @satay.workflow(name="tasks.writes")
    async def writes() -> list[str]:
        try:
            match place:
                case "argument":
                    await echo([0, Unwritable()])
                case "result":
                    await gives_unwritable()
                case "child input":
                    await satay.start_child(child_of_anything, Unwritable()).result()
                case _:
                    await satay.start_child(child_gives_unwritable).result()
        except EncodeError as error:
            told = [type(error).__name__, str(error)]
            seen.append(told)
            await satay.sleep(1.0)
            return [*told, str(await echo("the run goes on"))]
        return []

    result = in_loop(drive_twice(tmp_path, writes, faults=Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)))

    assert "EncodeError" == result[0]
    for name in names:
        assert name in result[1]
    assert "the run goes on" == result[2]
    assert 2 == len(seen)
    assert seen[0] == seen[1]
    assert 1 >= ran.count("gives")


def test_a_result_of_a_workflow_that_cannot_be_written_fails_the_run(tmp_path: Path) -> None:
    @satay.workflow(name="tasks.returns_unwritable")
    async def returns_unwritable() -> Any:
        return {"deep": Unwritable()}

    async def run() -> satay.RunStatus:
        async with open_app(tmp_path) as app:
            for _ in range(2):
                with pytest.raises(EncodeError, match=r"the result of workflow 'tasks\.returns_unwritable'.*deep"):
                    await app.start(returns_unwritable, run_id="r").result()
            return await app.handle("r").status()

    assert satay.RunStatus.FAILED == in_loop(run())


def test_a_result_that_does_not_fit_its_annotation_is_refused(tmp_path: Path) -> None:
    @satay.task(name="tasks.wrong", retries=2)
    async def wrong() -> Job:
        ran.append(1)
        return "not a job"  # type: ignore[return-value]  # what a user can do wrong

    @satay.workflow
    async def calls() -> None:
        await wrong()

    with pytest.raises(EncodeError, match=r"the result of task 'tasks\.wrong'"):
        in_loop(result_of(tmp_path, calls))

    assert [1] == ran


def test_arguments_that_do_not_fit_the_signature_are_an_error_at_the_call(tmp_path: Path) -> None:
    @satay.workflow
    async def calls() -> str:
        try:
            await cast(Any, echo)()
        except satay.SatayError as error:
            return str(error)
        return "called"

    assert "the input of task 'tasks.echo'" in in_loop(result_of(tmp_path, calls))
    assert [] == ran


# --- errors -----------------------------------------------------------------------------------------------------------


class OwnInit(Exception):  # noqa: N818
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}:{detail}")
        self.code = code


class Holds(Exception):  # noqa: N818
    pass


def _cycle() -> Exception:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


ERRORS: dict[str, Exception] = {
    "own init": OwnInit(7, detail="x"),
    "unwritable argument": Holds(Unwritable()),
    "cycle of causes": _cycle(),
    "group": ExceptionGroup("several", [ValueError(1), OwnInit(2, detail="y")]),
    "a megabyte": ValueError("m" * 1_000_000),
    "NUL and surrogate": ValueError("a\x00\ud800"),
    "os error": FileNotFoundError(2, "no such file", "name"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_the_same_live_and_from_the_journal(name: str, tmp_path: Path) -> None:
    error = ERRORS[name]

    @satay.task
    async def raises() -> None:
        ran.append(1)
        raise error

    @satay.workflow(name=f"tasks.catches {name}")  # The errors keep the workflows of the other cases in use.
    async def catches() -> list[Any]:
        try:
            await raises()
        except Exception as caught:
            told = [
                type(caught).__name__,
                str(caught),
                getattr(caught, "code", None),
                repr(caught.__cause__),
                repr(getattr(caught, "exceptions", None)),
            ]
            seen.append(told)
            await satay.sleep(1.0)
            return told
        return []

    result = in_loop(drive_twice(tmp_path, catches))

    assert [result, result] == seen
    assert [1] == ran
    if name == "own init":
        assert ["OwnInit", "7:x", 7] == result[:3]
    elif name == "unwritable argument":
        assert "TaskFailedError" == result[0]
        assert "Holds" in result[1]
    else:
        assert type(error).__name__ == result[0]


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_of_a_run_is_the_one_its_body_raised(name: str, tmp_path: Path) -> None:
    error = ERRORS[name]

    @satay.workflow
    async def raises() -> None:
        raise error

    async def run() -> list[BaseException]:
        errors: list[BaseException] = []
        for _ in range(2):
            async with open_app(tmp_path) as app:
                try:
                    await app.start(raises, run_id="r").result()
                except Exception as caught:
                    errors.append(caught)
        return errors

    first, second = in_loop(run())

    assert type(first) is type(second)
    assert str(first) == str(second)
    is_carried = name == "unwritable argument"
    assert ("WorkflowFailedError" if is_carried else type(error).__name__) == type(first).__name__
    if isinstance(first, satay.errors.WorkflowFailedError):
        assert "r" == first.run_id
        assert first.error_type.endswith(":Holds")
        assert "raise error" in first.error_traceback


def test_an_error_class_of_a_function_is_carried_with_type_message_and_traceback(tmp_path: Path) -> None:
    class Local(Exception):  # noqa: N818
        pass

    @satay.task(name="tasks.raises_local")
    async def raises_local() -> None:
        raise Local("why")

    @satay.workflow
    async def catches() -> list[str]:
        try:
            await raises_local()
        except TaskFailedError as error:
            return [str(error), error.error_type, error.error_message, error.error_traceback]
        return []

    message, kind, text, trace = in_loop(result_of(tmp_path, catches))

    assert "task 'tasks.raises_local' failed with Local: why" == message
    assert kind.endswith("Local")
    assert "why" == text
    assert "raise Local" in trace


# --- large values -----------------------------------------------------------------------------------------------------


@satay.workflow(name="tasks.big_child")
async def big_child(text: str) -> str:
    return text + "c"


@satay.workflow(name="tasks.big")
async def big(text: str) -> str:
    echoed = await echo(text)
    event = await satay.wait_for_event("big")
    child = await satay.start_child(big_child, text).result()
    seen.append([len(text), len(echoed), len(event), child[-1]])
    await satay.sleep(1.0)
    return text + "!"


def test_values_beyond_the_threshold_go_through_every_place_and_are_stored_once(tmp_path: Path) -> None:
    async def run() -> tuple[str, list[str], int]:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED, count=2)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(big, BIG, run_id="r")
            await app.send_event("big", BIG)
            await faults.crashed
        async with open_app(tmp_path) as app:
            result = await app.resume("r").result()
            fork = await app.fork("r", before_task="tasks.echo")
            await app.send_event("big", BIG, run_id=fork.run_id)
            assert result == await fork.result()
            payloads = [entry.data for run in await app.runs() for entry in await entries_of(app, run.run_id)]
            blobs = {value for data in payloads for name, value in data.items() if name.endswith("_blob")}
            return result, [name for data in payloads for name in data if name.endswith("_blob")], len(blobs)

    result, fields, blobs = in_loop(run())

    assert BIG + "!" == result
    assert [[len(BIG), len(BIG), len(BIG), "c"]] * 3 == seen
    assert {"input_blob", "result_blob", "payload_blob"} == set(fields)
    # The text itself and as an argument list or result, not one for each entry.
    assert blobs < len(fields) / 2


@pytest.mark.slow
def test_five_megabytes_go_through(tmp_path: Path) -> None:
    @satay.task
    async def gives() -> bytes:
        return b"\x00" * 5_000_000

    @satay.workflow
    async def asks() -> int:
        data = await gives()
        await satay.sleep(1.0)
        return len(data)

    assert 5_000_000 == in_loop(drive_twice(tmp_path, asks))


HUGE = 100_000_000


@satay.task(name="tasks.give_huge", retries=3)
async def give_huge(size: int) -> str:
    ran.append("gave")
    return "x" * size


@satay.task(name="tasks.take_huge", retries=3)
async def take_huge(text: str) -> int:
    ran.append("took")
    return len(text)


@satay.workflow(name="tasks.asks_for_huge")
async def asks_for_huge() -> int:
    return len(await give_huge(HUGE))


@satay.workflow(name="tasks.hands_over_huge")
async def hands_over_huge() -> int:
    return await take_huge("x" * HUGE)


@satay.workflow(name="tasks.returns_huge")
async def returns_huge() -> str:
    return "x" * HUGE


@satay.workflow(name="tasks.waits_for_text")
async def waits_for_text(text: str = "") -> int:
    return len(text) + len(await satay.wait_for_event("text"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workflow", "named", "bodies"),
    [
        (asks_for_huge, "the result of task 'tasks.give_huge'", ["gave"]),
        (hands_over_huge, "argument 'text' of the input of task 'tasks.take_huge'", []),
        (returns_huge, "the result of workflow 'tasks.returns_huge'", []),
    ],
)
def test_a_value_above_the_limit_is_refused_by_name_and_not_tried_again(
    workflow: Any, named: str, bodies: list[str], tmp_path: Path
) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            await app.start(workflow).result()

    with pytest.raises(PayloadTooLargeError, match="more than the limit of 67108864") as caught:
        in_loop(run())

    assert named in str(caught.value)
    assert bodies == ran
    assert (tmp_path / "satay.db").stat().st_size < 1_000_000


@pytest.mark.slow
def test_an_input_and_an_event_above_the_limit_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            with pytest.raises(PayloadTooLargeError, match=r"of workflow 'tasks\.waits_for_text'.* is \d+ bytes long"):
                app.start(waits_for_text, "x" * HUGE)
            runs = await app.runs()
            handle = await app.start(waits_for_text, run_id="r")
            with pytest.raises(PayloadTooLargeError, match=r"the payload of event 'text' is \d+ bytes long"):
                await app.send_event("text", "x" * HUGE, run_id="r")
            await app.send_event("text", "abc", run_id="r")
            return [runs, await handle.result()]

    assert [[], 3] == in_loop(run())


@pytest.mark.slow
def test_five_megabytes_go_through_as_input_argument_and_event(tmp_path: Path) -> None:
    large = "x" * 5_000_000

    @satay.workflow(name="tasks.all_large")
    async def all_large(text: str) -> list[int]:
        event = await satay.wait_for_event("text")
        lengths = [len(text), await take_huge(text), len(event)]
        await satay.sleep(1.0)
        return lengths

    async def run() -> list[int]:
        faults = Faults().crash_after(type=EntryType.TIMER_CREATED)
        async with open_app(tmp_path, faults=faults) as app:
            await app.start(all_large, large, run_id="r")
            await app.send_event("text", large, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            result: list[int] = await app.resume("r").result()
            return result

    assert [5_000_000] * 3 == in_loop(run())
    assert ["took"] == ran


def test_a_blob_that_is_lost_is_an_error_that_names_it_and_harms_nothing(tmp_path: Path) -> None:
    @satay.workflow
    async def asks() -> int:
        text = await echo(BIG)
        await satay.wait_for_event("go")
        return len(text)

    async def run() -> str:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(asks, run_id="r")
            await settle(app)
            count = len(await entries_of(app, "r"))
        with contextlib.closing(sqlite3.connect(tmp_path / "satay.db")) as database, database:
            database.execute("DELETE FROM blobs")
        async with open_app(tmp_path) as app:
            with pytest.raises(JournalCorruptError) as caught:
                await app.resume("r").result()
            assert count == len(await entries_of(app, "r"))
            return str(caught.value)

    assert "entry 3 (TaskCompleted) of run 'r' cannot be read" in in_loop(run())


def test_a_large_error_is_recorded_and_read_back(tmp_path: Path) -> None:
    @satay.task
    async def raises() -> None:
        raise ValueError(BIG)

    @satay.workflow
    async def catches() -> int:
        try:
            await raises()
        except ValueError as error:
            await satay.sleep(1.0)
            return len(str(error))
        return 0

    assert len(BIG) == in_loop(drive_twice(tmp_path, catches))


# --- pickled values ---------------------------------------------------------------------------------------------------


@satay.task(name="tasks.pickles", codec="pickle")
async def pickles(value: Any) -> Any:
    ran.append(type(value).__name__)
    return value


@satay.workflow(name="tasks.pickled")
async def pickled() -> list[str]:
    value = await pickles(Unwritable())
    seen.append(type(value).__name__)
    await satay.sleep(1.0)
    return [type(value).__name__]


def test_pickled_values_go_through_where_pickle_is_allowed(tmp_path: Path) -> None:
    assert ["Unwritable"] == in_loop(drive_twice(tmp_path, pickled, allow_pickle=True))
    assert ["Unwritable"] == ran
    assert ["Unwritable", "Unwritable"] == seen


def test_pickled_values_are_not_read_where_pickle_is_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match="SATAY_ALLOW_PICKLE=1"):
        in_loop(result_of(tmp_path, pickled))

    assert [] == ran


@pytest.mark.parametrize("is_allowed", [False, True])
def test_the_environment_allows_pickle(is_allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SATAY_ALLOW_PICKLE", raising=False)
    if is_allowed:
        monkeypatch.setenv("SATAY_ALLOW_PICKLE", "1")

    @satay.workflow(name="tasks.pickled_in_real_time")
    async def pickled_in_real_time() -> list[str]:
        return [type(await pickles(Unwritable())).__name__]

    async def run() -> Any:
        async with satay.run_app(data_dir=tmp_path) as app:
            try:
                return await app.start(pickled_in_real_time).result()
            except CodecError as error:
                return str(error)

    assert is_allowed == (["Unwritable"] == in_loop(run()))


def test_a_pickle_that_was_recorded_is_not_opened_by_a_process_that_may_not(tmp_path: Path) -> None:
    async def run() -> None:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
        async with open_app(tmp_path, faults=faults, allow_pickle=True) as app:
            app.start(pickled, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            with pytest.raises(PickleNotAllowedError, match="SATAY_ALLOW_PICKLE=1"):
                await app.resume("r").result()
            assert not (await app.handle("r").status()).is_terminal
        async with open_app(tmp_path, allow_pickle=True) as app:
            assert ["Unwritable"] == await app.resume("r").result()

    in_loop(run())

    assert ["Unwritable", "Unwritable"] == seen


def test_the_journal_marks_a_pickle_and_shows_it_as_data(tmp_path: Path) -> None:
    async def run() -> list[satay.RunEvent]:
        async with open_app(tmp_path, allow_pickle=True) as app:
            await app.start(pickled, run_id="r").result()
            return await entries_of(app, "r")

    scheduled = in_loop(run())[1]

    assert "pickle" == scheduled.data["codec"]
    assert "Unwritable" not in repr(type(scheduled.data["input"]))


def test_dataclasses_fields_are_untouched_by_the_trip(tmp_path: Path) -> None:
    @satay.task
    async def gives() -> Frozen:
        return Frozen(name="n", tags=frozenset({"a", "b"}))

    @satay.workflow
    async def asks() -> list[Any]:
        value = await gives()
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.name = "m"  # type: ignore[misc]  # that it is frozen is the point
        return [value.name, sorted(value.tags)]

    assert ["n", ["a", "b"]] == in_loop(result_of(tmp_path, asks))


@satay.task(name="tasks.cancels_itself")
async def cancels_itself(how: str) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if how == "and waits":
        await asyncio.sleep(0)
    return "done"


@satay.workflow(name="tasks.asks_one_that_cancels_itself")
async def asks_one_that_cancels_itself(how: str) -> str:
    try:
        return await cancels_itself(how)
    except TaskFailedError as error:
        return error.error_type


@pytest.mark.parametrize(
    ("how", "expected"),
    [("and returns", "done"), ("and waits", "asyncio.exceptions:CancelledError")],
)
def test_a_task_that_cancels_itself_has_an_outcome(how: str, expected: str, tmp_path: Path) -> None:
    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(asks_one_that_cancels_itself, how).result()

    assert expected == in_loop(run())
