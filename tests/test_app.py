"""The app and the functions of the package: starting, attaching, listing, reading, opening and closing."""

import asyncio
import contextlib
import gc
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_type

import pytest

import satay
from satay import App, ForkHandle, RunEvent
from satay.errors import (
    AppClosedError,
    EncodeError,
    ForkValidationError,
    InvalidValueError,
    JournalError,
    LeaseHeldError,
    RunConflictError,
    RunEndedError,
    RunNotFoundError,
    UsageError,
    WorkflowCancelledError,
)
from satay.model import EntryType
from satay.testing import Faults, ManualClock, open_app, pause, settle
from tests.driving import entries_of, in_loop, types_of

ROOT = Path(__file__).parents[1]

HOSTILE_IDS = [
    "../x", "a/../b", "", "\0", "a\0b", "C:\\x", "x" * 201, "x" * 5000, "%2e%2e%2f", "a b", "a\n", "/etc", "a//b", "a/",
    "-rf", ".hidden", "é", "<script>", "a'b",
]  # fmt: skip

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@satay.task(name="app.step")
async def step(value: Any) -> Any:
    ran.append(value)
    return value


@satay.workflow(name="app.echo")
async def echo(value: Any = None) -> Any:
    return await step(value)


@satay.workflow(name="app.waits")
async def waits(value: Any = None) -> Any:
    return [value, await satay.wait_for_event("go")]


@satay.workflow(name="app.number")
async def number(value: int) -> int:
    return int(await step(value))


@satay.workflow(name="app.steps_and_waits")
async def steps_and_waits() -> Any:
    await step(1)
    return await satay.wait_for_event("go")


@satay.workflow(name="app.goes_on")
async def goes_on(round: int) -> Any:
    if round == 1:
        satay.continue_as_new(2)
    return [round, await satay.wait_for_event("go")]


@satay.workflow(name="app.fails")
async def fails() -> None:
    raise LookupError("gone")


@satay.task(name="app.hangs")
async def hangs_task() -> None:
    await pause(float("inf"))


@satay.workflow(name="app.hangs")
async def hangs() -> None:
    await hangs_task()


# --- starting and attaching -------------------------------------------------------------------------------------------


def test_a_handle_is_there_at_once_and_the_run_when_it_is_awaited(tmp_path: Path) -> None:
    async def run() -> Any:
        async with open_app(tmp_path) as app:
            handle = app.start(echo, 1, run_id="r")
            assert "r" == handle.run_id
            assert handle is await handle
            assert "app.echo" == (await app.run("r")).workflow
            return await handle.result()

    assert 1 == in_loop(run())


def test_a_run_without_an_id_gets_one_of_its_own(tmp_path: Path) -> None:
    async def run() -> set[str]:
        async with open_app(tmp_path) as app:
            return {(await app.start(echo, number)).run_id for number in range(10)}

    assert 10 == len(in_loop(run()))


def test_one_id_started_five_times_at_once_runs_once(tmp_path: Path) -> None:
    async def run() -> tuple[list[Any], list[str]]:
        async with open_app(tmp_path) as app:
            results = await asyncio.gather(*(app.start(echo, "v", run_id="x").result() for _ in range(5)))
            return results, await types_of(app, "x")

    results, types = in_loop(run())

    assert ["v"] * 5 == results
    assert ["v"] == ran
    assert 1 == types.count(EntryType.WORKFLOW_COMPLETED)


def test_one_idempotency_key_started_five_times_at_once_runs_once(tmp_path: Path) -> None:
    async def run() -> tuple[list[Any], set[str], int]:
        async with open_app(tmp_path) as app:
            handles = [app.start(echo, "v", idempotency_key="k") for _ in range(5)]
            results = await asyncio.gather(*(handle.result() for handle in handles))
            return results, {handle.run_id for handle in handles}, len(await app.runs())

    results, ids, count = in_loop(run())

    assert ["v"] * 5 == results
    assert 1 == len(ids) == count
    assert ["v"] == ran


def test_an_idempotency_key_keeps_pointing_at_its_run_whatever_the_input(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            first = await app.start(echo, "one", idempotency_key="k")
            await first.result()
            await app.fork(first.run_id, before_task="app.step")
        async with open_app(tmp_path) as app:
            second = await app.start(echo, "two", idempotency_key="k")
            return [first.run_id == second.run_id, await second.result()]

    assert [True, "one"] == in_loop(run())


def test_an_idempotency_key_with_another_run_id_is_a_conflict(tmp_path: Path) -> None:
    async def run() -> str:
        async with open_app(tmp_path) as app:
            await app.start(echo, run_id="one", idempotency_key="k").result()
            with pytest.raises(RunConflictError, match="idempotency key 'k' started run 'one'") as caught:
                await app.start(echo, run_id="two", idempotency_key="k")
            assert ["one"] == [run.run_id for run in await app.runs()]
            return caught.value.run_id

    assert "one" == in_loop(run())


async def read_to_the_end(app: App, run_id: str) -> list[RunEvent]:
    return [event async for event in app.events(run_id)]


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.send_event("go", "on", run_id="r"),
        lambda app: app.cancel("r"),
        lambda app: app.terminate("r"),
        lambda app: app.fork("r", before_task="app.step", allow_unfinished=True),
        lambda app: app.resume("r"),
        lambda app: app.handle("r").status(),
        lambda app: app.run("r"),
        lambda app: app.receipt("r"),
        lambda app: app.runs(before="r"),
        lambda app: app.compare("r", "r"),
        lambda app: app.compare("r", "r", "r"),
        lambda app: app.verify("r"),
    ],
)
def test_an_id_that_was_just_started_can_be_used_at_once(use: Callable[[App], Awaitable[Any]], tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            app.start(steps_and_waits, run_id="r")
            with contextlib.suppress(ForkValidationError):  # Nothing is scheduled yet, and the error says so.
                await use(app)
            assert "r" == (await app.run("r")).run_id

    in_loop(run())


def test_the_result_and_the_events_of_an_id_that_was_just_started_are_there(tmp_path: Path) -> None:
    async def run() -> tuple[Any, int]:
        async with open_app(tmp_path) as app:
            app.start(echo, 1, run_id="one")
            result = await app.handle("one").result()
            app.start(echo, 2, run_id="two")
            return result, len(await read_to_the_end(app, "two"))

    result, count = in_loop(run())

    assert 1 == result
    assert count > 3


def test_whoever_uses_an_id_whose_creation_fails_is_told_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            await app.start(echo, 1, run_id="r").result()
            app.start(echo, 2, run_id="r")
            with pytest.raises(RunConflictError, match="another input"):
                await app.run("r")
            assert 1 == await app.handle("r").result()

    in_loop(run())


def test_a_run_is_named_by_its_id_or_by_a_handle_and_a_task_by_its_name_or_itself(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            handle = app.start(number, 1, idempotency_key="k")
            await handle.result()
            fork = await satay.fork(handle, before_task=step, workflow_input=2)
            assert_type(fork, ForkHandle[int])
            assert_type(await app.fork(handle.run_id, before_task=step), ForkHandle[Any])
            same = app.start(number, 1, idempotency_key="k")
            assert handle.run_id == (await app.run(same)).run_id == same.run_id
            with pytest.raises(RunEndedError):
                await satay.send_event("go", run_id=handle)
            await satay.cancel(handle)
            await satay.terminate(handle)
            comparison = await satay.compare(handle, fork)
            assert handle.run_id in str(comparison)
            assert fork.receipt == await app.receipt(fork)
            assert {fork.run_id} <= {run.run_id for run in await app.runs(forked_from=handle)}
            return [await fork.result(), await app.handle(same).result(), await satay.resume(handle).result()]

    assert [2, 1, 1] == in_loop(run())


@pytest.mark.parametrize("thing", [5, None, b"r", echo])
def test_what_names_no_run_or_no_task_is_refused(thing: Any, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            await app.start(echo, 1, run_id="r").result()
            uses: list[Callable[[], Awaitable[Any]]] = [
                lambda: app.fork(thing, before_task="app.step"),
                lambda: app.compare("r", thing),
                lambda: app.compare("r", "r", thing),
                lambda: app.verify(thing),
                lambda: app.cancel(thing),
                lambda: app.resume(thing),
                lambda: app.handle(thing),
            ]
            for use in uses:
                with pytest.raises(UsageError, match="names no run; give the id of a run, the handle"):
                    await use()
            if thing is not None:
                with pytest.raises(UsageError, match=r"names no task; give a @satay\.task, or its name"):
                    await app.fork("r", before_task=thing)

    in_loop(run())


def test_an_event_to_a_run_that_has_ended_is_refused_and_not_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            app.start(waits, 1, run_id="r")
            assert await app.send_event("go", "on", run_id="r", event_id="e1")
            await app.handle("r").result()
            with pytest.raises(RunEndedError, match="run 'r' has ended: it is completed; it takes no more events"):
                await app.send_event("go", "on", run_id="r", event_id="e2")
            assert not await app.send_event("go", "on", run_id="r", event_id="e1")
            assert [] == await (await app._ready()).journal.messages("r")

    in_loop(run())


def test_an_event_to_a_run_that_goes_on_as_a_new_one_reaches_that(tmp_path: Path) -> None:
    async def run() -> Any:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            app.start(goes_on, 1, run_id="r")
            await settle(app)
            assert await app.send_event("go", "on", run_id="r")
            return await app.handle("r").result()

    assert [2, "on"] == in_loop(run())


@pytest.mark.parametrize("key", ["", "\0", "a\nb", "x" * 201, 7])
def test_an_idempotency_key_that_cannot_be_used_is_refused(key: Any, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(InvalidValueError, match="key"):
                await app.start(echo, idempotency_key=key)
            assert [] == await app.runs()

    in_loop(run())


def test_an_id_that_is_there_attaches_where_workflow_and_input_are_the_same(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(waits, {"a": 1}, run_id="r")
            await settle(app)
        async with open_app(tmp_path) as app:
            handle = app.start(waits, {"a": 1}, run_id="r")
            await handle
            await app.send_event("go", "on", run_id="r")
            return list(await handle.result())

    assert [{"a": 1}, "on"] == in_loop(run())


@pytest.mark.parametrize("big", ["", "x" * 300_000])
@pytest.mark.parametrize("is_ended", [False, True])
def test_an_id_that_is_there_with_another_input_or_workflow_is_a_conflict(
    big: str, is_ended: bool, tmp_path: Path
) -> None:
    async def run() -> None:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(echo if is_ended else waits, f"{big}1", run_id="r")
            await settle(app)
            count = len(await entries_of(app, "r"))
            with pytest.raises(RunConflictError, match="another input"):
                await app.start(echo if is_ended else waits, f"{big}2", run_id="r")
            with pytest.raises(RunConflictError, match=r"a run of workflow 'app\.(echo|waits)'"):
                await app.start(waits if is_ended else echo, f"{big}1", run_id="r")
            with pytest.raises(RunConflictError):
                await app.start(waits if is_ended else echo, f"{big}1", run_id="r").result()
            assert count == len(await entries_of(app, "r"))

    in_loop(run())


def test_no_input_and_none_are_other_inputs(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            await app.start(echo, run_id="r").result()
            with pytest.raises(RunConflictError, match="another input"):
                await app.start(echo, None, run_id="r")

    in_loop(run())


@pytest.mark.parametrize("run_id", HOSTILE_IDS)
def test_a_hostile_run_id_is_refused_at_once(run_id: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(InvalidValueError, match="cannot be used") as caught:
                app.start(echo, run_id=run_id)
            assert len(str(caught.value)) < 500
            for ask in (
                lambda: app.resume(run_id).result(),
                lambda: app.run(run_id),
                lambda: app.cancel(run_id),
                lambda: app.send_event("e", run_id=run_id),
                lambda: app.fork(run_id, before_task="x"),
                lambda: app.receipt(run_id),
                lambda: app.decide(run_id, "rerun"),
                lambda: app.compare(run_id, run_id),
                lambda: app.verify(run_id),
                lambda: anext(app.events(run_id)),
            ):
                with pytest.raises((InvalidValueError, RunNotFoundError)):
                    await ask()
            assert [] == await app.runs()

    in_loop(run())
    assert {"satay.db", "satay.db-wal", "satay.db-shm", "apps-under-test"} >= {file.name for file in tmp_path.iterdir()}


def test_a_key_that_started_another_workflow_is_a_conflict(tmp_path: Path) -> None:
    @satay.workflow(name="app.charges")
    async def charges() -> str:
        return "charged"

    @satay.workflow(name="app.refunds")
    async def refunds() -> str:
        return "refunded"

    async def run() -> None:
        async with open_app(tmp_path) as app:
            await app.start(charges, idempotency_key="order-1").result()
            with pytest.raises(RunConflictError, match="it is a run of workflow"):
                await app.start(refunds, idempotency_key="order-1").result()

    in_loop(run())


def test_an_input_in_another_order_is_the_same_input(tmp_path: Path) -> None:
    @satay.workflow(name="app.takes_dict")
    async def takes(value: dict[str, int]) -> int:
        return len(value)

    async def run() -> int:
        async with open_app(tmp_path) as app:
            await app.start(takes, {"a": 1, "b": 2}, run_id="r").result()
            with pytest.raises(RunConflictError):
                await app.start(takes, {"a": 1, "b": 3}, run_id="r")
            return await app.start(takes, {"b": 2, "a": 1}, run_id="r").result()

    assert 2 == in_loop(run())


def test_a_run_that_goes_on_as_a_new_one_is_reached_by_its_first_id(tmp_path: Path) -> None:
    @satay.workflow(name="app.goes_on_once")
    async def goes_on(is_second: bool) -> None:
        if not is_second:
            satay.continue_as_new(True)
        await satay.wait_for_event("never")

    async def run() -> list[satay.RunStatus]:
        async with open_app(tmp_path) as app:
            handle = await app.start(goes_on, False, run_id="r")
            await settle(app)
            before = await handle.status()
            await handle.cancel()
            with pytest.raises(WorkflowCancelledError):
                await handle.result()
            return [before, await handle.status()]

    assert [satay.RunStatus.WAITING, satay.RunStatus.CANCELLED] == in_loop(run())


@pytest.mark.parametrize("run_id", ["a", "A-1.b:c=d@e+f/g", "a/b/c", "0", "_", "x" * 200])
def test_an_id_of_the_pattern_is_taken(run_id: str, tmp_path: Path) -> None:
    async def run() -> Any:
        async with open_app(tmp_path) as app:
            await app.start(echo, 1, run_id=run_id).result()
            fork = await app.fork(run_id, before_task="app.step")
            return await fork.result()

    assert 1 == in_loop(run())


def test_what_is_no_workflow_cannot_be_started(tmp_path: Path) -> None:
    async def plain() -> None: ...

    async def run() -> None:
        async with open_app(tmp_path) as app:
            for bad in (plain, step, "app.echo", None):
                with pytest.raises(UsageError, match=r"@satay\.workflow"):
                    app.start(bad)  # type: ignore[arg-type]  # what a user can do wrong
            with pytest.raises(UsageError, match=r"calls them itself: satay\.start\(workflow, input\)"):
                app.start(echo(1))  # type: ignore[arg-type]  # what a user can do wrong

    in_loop(run())


def test_an_input_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(EncodeError, match=r"the input of workflow 'app\.echo'"):
                app.start(echo, object())
            assert [] == await app.runs()

    in_loop(run())


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_finished_run_answers_from_the_journal(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            await app.start(echo, "v", run_id="r").result()
            with pytest.raises(LookupError):
                await app.start(fails, run_id="f").result()
        async with open_app(tmp_path) as app:
            results = [await app.handle("r").result(), await app.resume("r").result()]
            for ask in (app.handle("f"), app.resume("f")):
                with pytest.raises(LookupError, match="gone"):
                    await ask.result()
            return results

    assert ["v", "v"] == in_loop(run())
    assert ["v"] == ran


def test_a_run_that_does_not_exist_is_an_error_everywhere(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            for ask in (
                lambda: app.resume("no").result(),
                lambda: app.handle("no").result(),
                lambda: app.handle("no").status(),
                lambda: app.run("no"),
                lambda: app.cancel("no"),
                lambda: app.fork("no", before_task="x"),
                lambda: app.compare("no", "no"),
                lambda: app.compare("no", "no", "no"),
                lambda: app.verify("no"),
                lambda: anext(app.events("no")),
                lambda: app.runs(before="no"),
            ):
                with pytest.raises(RunNotFoundError, match="'no'") as caught:
                    await ask()
                assert "no" == caught.value.run_id

    in_loop(run())


def test_a_second_app_waits_for_the_result_of_a_run_that_the_first_drives(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with satay.run_app(data_dir=tmp_path, poll_seconds=0.01) as one:
            first = await one.start(waits, 1, run_id="r")
            async with satay.run_app(data_dir=tmp_path, poll_seconds=0.01) as two:
                second = two.start(waits, 1, run_id="r")
                await second
                await two.send_event("go", "on", run_id="r")
                return [await second.result(), await first.result(), await types_of_any(one, "r")]

    one, two, types = in_loop(run())

    assert [1, "on"] == one == two
    assert 1 == types.count(EntryType.WORKFLOW_COMPLETED)
    assert 1 == types.count(EntryType.EXTERNAL_EVENT_RECEIVED)


async def types_of_any(app: satay.App, run_id: str) -> list[str]:
    return [event.type async for event in app.events(run_id)]


def test_a_handle_that_does_not_drive_says_when_nobody_does(tmp_path: Path) -> None:
    async def run() -> None:
        faults = Faults().crash_after(type=EntryType.TASK_SCHEDULED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(echo, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            with pytest.raises(LeaseHeldError, match=r"satay\.resume"):
                await app.handle("r").result()

    in_loop(run())


class HeldAnswers(Faults):
    """Keeps the answer back that the journal gave about a run, once it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.go_ahead = asyncio.Event(), asyncio.Event()

    def pass_on(self, name: str, call: Callable[[], Any], args: tuple[Any, ...]) -> "asyncio.Future[Any]":
        answer = super().pass_on(name, call, args)
        return asyncio.ensure_future(self._hold_back(answer)) if name == "record" else answer

    async def _hold_back(self, answer: "asyncio.Future[Any]") -> Any:
        record = await answer
        self.is_asked.set()
        await self.go_ahead.wait()
        return record


def test_who_asks_for_the_result_of_a_run_when_the_app_closes_is_told_so(tmp_path: Path) -> None:
    async def run() -> None:
        faults = HeldAnswers()
        async with open_app(tmp_path, clock=ManualClock()) as other:
            await other.start(waits, run_id="r")
            async with open_app(tmp_path, clock=ManualClock(), faults=faults) as app:
                waiting = asyncio.create_task(app.handle("r").result())
                await faults.is_asked.wait()
            faults.go_ahead.set()

            with pytest.raises(AppClosedError, match="the result of run 'r' was awaited; resume the run"):
                await waiting

    in_loop(run())


def test_the_result_of_a_run_that_an_app_leaves_open_is_refused_when_it_closes(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(waits)
            waiting = asyncio.create_task(handle.result())
            await settle(app)
        with pytest.raises(AppClosedError, match="resume"):
            await waiting
        with pytest.raises(AppClosedError):
            await handle.result()

    in_loop(run())


# --- listing and reading ----------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_and_filtered(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            for number in range(3):
                await app.start(echo, number, run_id=f"e{number}").result()
            await app.start(waits, run_id="w")
            with pytest.raises(LookupError):
                await app.start(fails, run_id="f").result()
            fork = await app.fork("e0", before_task="app.step", run_id="fork")
            await fork.result()
            await settle(app)

            async def ids(**filters: Any) -> list[str]:
                return [run.run_id for run in await app.runs(**filters)]

            return [
                await ids(),
                await ids(status="completed"),
                await ids(status=satay.RunStatus.WAITING),
                await ids(status="failed"),
                await ids(workflow="app.echo", limit=2),
                await ids(workflow=echo, before="e1"),
                await ids(workflow=waits, status="waiting"),
                await ids(forked_from="e0"),
                await ids(limit=2, before="f"),
                await ids(workflow="no such"),
                await ids(workflow="x') OR 1=1 --"),
                await ids(workflow="app.%"),
            ]

    expected = [
        ["fork", "f", "w", "e2", "e1", "e0"],
        ["fork", "e2", "e1", "e0"],
        ["w"],
        ["f"],
        ["fork", "e2"],
        ["e0"],
        ["w"],
        ["fork"],
        ["w", "e2"],
        [],
        [],
        [],
    ]
    assert expected == in_loop(run())


@pytest.mark.parametrize(
    "bad",
    [
        {"status": "done"},
        {"status": "completed' --"},
        {"limit": 0},
        {"limit": -1},
        {"limit": 1001},
        {"limit": "1;drop table runs"},
        {"limit": True},
    ],
)
def test_a_filter_that_cannot_be_is_refused(bad: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(InvalidValueError, match=r"runs\(\)|status="):
                await app.runs(**bad)

    in_loop(run())


def test_a_page_after_a_page_reaches_every_run_once(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            await asyncio.gather(*(app.start(echo, n, run_id=f"r{n:02}").result() for n in range(25)))
            listed: list[str] = []
            while page := await app.runs(limit=10, before=listed[-1] if listed else None):
                listed += [run.run_id for run in page]
            return listed

    listed = in_loop(run())

    assert 25 == len(listed) == len(set(listed))


def test_a_summary_tells_what_a_run_does_and_when_it_wakes(tmp_path: Path) -> None:
    @satay.workflow
    async def sleeps() -> None:
        await satay.sleep(60.0)

    async def run() -> satay.RunSummary:
        async with open_app(tmp_path, clock=ManualClock(datetime(2030, 1, 1, tzinfo=UTC))) as app:
            await app.start(sleeps, run_id="r")
            await settle(app)
            return await app.run("r")

    summary = in_loop(run())

    assert satay.RunStatus.WAITING == summary.status
    assert datetime(2030, 1, 1, 0, 1, tzinfo=UTC) == summary.wake_at
    assert datetime(2030, 1, 1, tzinfo=UTC) == summary.created_at
    assert (None, None, None) == (summary.parent_id, summary.forked_from, summary.fork_seq)


def test_events_yields_what_is_there_and_then_what_comes(tmp_path: Path) -> None:
    async def run() -> tuple[list[str], list[str]]:
        async with open_app(tmp_path) as app:
            await app.start(waits, run_id="r")
            await settle(app)
            heard: list[str] = []

            async def listen() -> None:
                async for event in app.events("r"):
                    heard.append(event.type)

            listening = asyncio.create_task(listen())
            await settle(app)
            before = heard.copy()
            await app.send_event("go", run_id="r")
            await listening
            return before, heard

    before, heard = in_loop(run())

    assert [EntryType.WORKFLOW_CREATED, EntryType.EVENT_WAIT_STARTED] == before
    assert [*before, EntryType.EXTERNAL_EVENT_RECEIVED, EntryType.WORKFLOW_COMPLETED] == heard


def test_events_begins_after_an_entry(tmp_path: Path) -> None:
    async def run() -> list[tuple[int, str]]:
        async with open_app(tmp_path) as app:
            await app.start(echo, run_id="r").result()
            return [(event.seq, event.type) async for event in app.events("r", after=2)]

    assert [(3, EntryType.TASK_COMPLETED), (4, EntryType.WORKFLOW_COMPLETED)] == in_loop(run())


def test_a_reader_that_pauses_holds_nobody_up(tmp_path: Path) -> None:
    @satay.workflow
    async def many() -> int:
        return len(await satay.map(step, range(300)))

    async def run() -> tuple[int, int]:
        async with open_app(tmp_path) as app:
            await app.start(many, run_id="r").result()
            reader = app.events("r")
            await anext(reader)
            other = await app.start(many, run_id="other").result()
            rest = len([event async for event in reader])
            left = app.events("r")
            await anext(left)
            del left
            gc.collect()
            await app.start(echo).result()
            return other, rest

    assert (300, 601) == in_loop(run())


# --- order ------------------------------------------------------------------------------------------------------------


def test_order_is_the_sequence_number_also_when_the_clock_runs_backwards(tmp_path: Path) -> None:
    @satay.workflow
    async def steps(count: int) -> list[int]:
        return [await step(number) for number in range(count)]

    class Backwards(ManualClock):
        def now(self) -> int:
            self._now -= 1_000_000
            return self._now

    async def run() -> tuple[list[satay.RunEvent], list[str], list[int]]:
        async with satay.run_app(data_dir=tmp_path, clock=Backwards()) as app:
            for name in ("a", "b", "c"):
                await app.start(steps, 10, run_id=name).result()
            events = [event async for event in app.events("a")]
            fork = await app.fork("a", before_task="app.step", before_ordinal=5)
            return events, [run.run_id for run in await app.runs(limit=4)], await fork.result()

    events, listed, again = in_loop(run())

    assert list(range(1, len(events) + 1)) == [event.seq for event in events]
    results = [event.data["result"] for event in events if event.type == EntryType.TASK_COMPLETED]
    assert list(range(10)) == results == again
    assert ["c", "b", "a"] == listed[1:]


def test_a_constant_clock_changes_no_order(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            for number in range(5):
                await app.start(echo, number, run_id=f"r{number}").result()
            return [run.run_id for run in await app.runs()]

    assert ["r4", "r3", "r2", "r1", "r0"] == in_loop(run())


# --- many at once -----------------------------------------------------------------------------------------------------


def test_fifty_runs_side_by_side_have_gap_free_journals_while_readers_poll(tmp_path: Path) -> None:
    @satay.workflow
    async def twenty(number: int) -> int:
        return sum([await step(number) for _ in range(20)])

    async def run() -> tuple[list[int], list[list[int]]]:
        async with open_app(tmp_path) as app:
            handles = [app.start(twenty, number, run_id=f"r{number}") for number in range(50)]
            is_done = False

            async def poll() -> int:
                count = 0
                while not is_done:
                    for summary in await app.runs():
                        count += len(await (await app._ready()).journal.read(summary.run_id))
                return count

            polling = asyncio.create_task(poll())
            results = await asyncio.gather(*(handle.result() for handle in handles))
            is_done = True
            assert await polling > 0
            return results, [[event.seq async for event in app.events(f"r{number}")] for number in range(50)]

    results, seqs = in_loop(run())

    assert [20 * number for number in range(50)] == results
    assert all(list(range(1, 43)) == each for each in seqs)


def test_one_path_is_opened_from_many_places_at_once(tmp_path: Path) -> None:
    async def use(number: int) -> Any:
        async with satay.run_app(data_dir=tmp_path / "new", poll_seconds=0.01) as app:
            return await app.start(echo, number).result()

    async def run() -> list[Any]:
        return await asyncio.gather(*(use(number) for number in range(8)))

    assert list(range(8)) == in_loop(run())


def test_recovery_leaves_a_run_alone_that_was_just_started_here(tmp_path: Path) -> None:
    async def run() -> list[str]:
        for number in range(20):
            async with satay.run_app(data_dir=tmp_path, recover=True, synchronous="NORMAL") as app:
                assert number == await app.start(echo, number, run_id=f"r{number}").result()
        async with satay.run_app(data_dir=tmp_path) as app:
            return [event.type for number in range(20) for event in [e async for e in app.events(f"r{number}")]]

    types = in_loop(run())

    assert list(range(20)) == ran
    assert EntryType.WORKFLOW_RESUMED not in types
    assert EntryType.TASK_ATTEMPT_STARTED not in types


# --- opening and closing ----------------------------------------------------------------------------------------------


def test_satay_run_is_the_one_line_form(tmp_path: Path) -> None:
    assert "v" == satay.run(echo, "v", data_dir=tmp_path)
    with pytest.raises(LookupError, match="gone"):
        satay.run(fails, data_dir=tmp_path)


def test_an_error_out_of_satay_run_comes_alone_and_shows_the_line_that_raised(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="gone") as caught:
        satay.run(fails, data_dir=tmp_path, run_id="r")

    assert caught.value.__context__ is None
    assert any("run 'r'" in note and 'raise LookupError("gone")' in note for note in caught.value.__notes__)


def test_satay_run_takes_the_identity_of_the_run_and_the_options_of_an_app(tmp_path: Path) -> None:
    first = satay.run(echo, 1, run_id="r", data_dir=tmp_path, synchronous="NORMAL", grace_seconds=0.0)
    again = satay.run(echo, 1, run_id="r", url=f"sqlite:///{tmp_path}/satay.db")
    by_key = [satay.run(echo, number, idempotency_key="k", data_dir=tmp_path) for number in (2, 3)]
    run_options, app_options = (
        {name: (option.default, option.annotation) for name, option in inspect.signature(fn).parameters.items()}
        for fn in (satay.run, satay.run_app)
    )

    assert (1, 1, [2, 2]) == (first, again, by_key)
    assert [1, 2] == ran
    assert app_options.items() <= run_options.items()
    assert {"workflow", "input", "run_id", "idempotency_key"} == run_options.keys() - app_options.keys()


def test_satay_run_inside_a_loop_is_refused_and_names_the_async_form(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(UsageError, match=r"await satay\.start"):
            satay.run(echo, data_dir=tmp_path)

    in_loop(run())
    assert not (tmp_path / "satay.db").exists()


def test_the_functions_outside_a_loop_say_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"satay\.run\(\)"):
        satay.start(echo)


def test_an_app_is_used_on_its_own_event_loop_only(tmp_path: Path) -> None:
    def use_elsewhere(use: Callable[[], Awaitable[Any]]) -> None:
        async def call() -> None:
            await use()

        in_loop(call())

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            handle = await app.start(waits, run_id="w")
            uses: list[Callable[[], Awaitable[Any]]] = [
                lambda: app.start(echo, run_id="e"),
                lambda: app.runs(),
                lambda: app.send_event("go", run_id="w"),
                handle.result,
                handle.status,
                app.start(echo, run_id="just_started").result,
            ]
            told = []
            for use in uses:
                with pytest.raises(UsageError) as raised:
                    await asyncio.to_thread(use_elsewhere, use)
                told.append(str(raised.value))
            assert ["just_started", "w"] == sorted(each.run_id for each in await app.runs())
            return told

    told = in_loop(run())

    assert all("another event loop" in message for message in told)


def test_an_app_in_a_thread_without_an_event_loop_says_what_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            for use in (lambda: app.start(echo), lambda: app.resume("r")):
                with pytest.raises(UsageError, match="where no event loop of asyncio runs"):
                    await asyncio.to_thread(use)

    in_loop(run())


@pytest.mark.parametrize("open_one", [lambda app: app.__aenter__(), lambda app: app.open()])
def test_an_app_is_opened_by_asyncio_only(open_one: Callable[[App], Coroutine[Any, Any, Any]], tmp_path: Path) -> None:
    opening = open_one(satay.run_app(data_dir=tmp_path / "new"))

    with pytest.raises(UsageError, match="where no event loop of asyncio runs"):
        opening.send(None)  # As another library would, that has an event loop of its own.

    assert [] == list(tmp_path.iterdir())


def test_the_functions_use_the_app_of_the_block(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path / "outer") as outer:
            async with open_app(tmp_path / "inner") as inner:
                one = await satay.start(echo, 1, run_id="one").result()
                assert ["one"] == [run.run_id for run in await inner.runs()]
            two = await satay.start(echo, 2, run_id="two").result()
            assert ["two"] == [run.run_id for run in await outer.runs()]
            fork = await satay.fork("two", before_task="app.step")
            assert 2 == await fork.result()
            assert await satay.compare("two", fork.run_id) is not None
            handle = satay.start(waits, run_id="w")
            await handle
            await satay.send_event("go", run_id="w")
            await handle.result()
            assert 2 == await satay.resume("two").result()
            return [one, two]

    assert [1, 2] == in_loop(run())


def test_the_default_app_opens_when_it_is_needed_and_closes_with_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SATAY_DATABASE_URL", raising=False)

    async def run() -> Any:
        return await satay.start(echo, "v", run_id="r").result()

    assert ["v", "v"] == [in_loop(run()) for _ in range(2)]
    assert ["v"] == ran
    assert (tmp_path / ".satay" / "satay.db").exists()
    assert not (tmp_path / ".satay" / "satay.db-wal").exists()


def test_a_run_that_is_lost_because_the_loop_ended_at_once_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SATAY_DATABASE_URL", raising=False)

    async def run() -> None:
        satay.start(echo, "v", run_id="lost")

    in_loop(run())

    (told,) = caplog.messages
    assert "event='run.not_created' run_id='lost'" in told
    assert "await what satay.start() returns" in told


def test_a_run_that_a_crash_under_test_prevents_is_none_that_the_loop_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        faults = Faults().crash_before(append=1)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(echo, "v", run_id="r")
            await faults.crashed

    in_loop(run())

    assert [] == caplog.messages


def test_the_default_app_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SATAY_DATABASE_URL", f"sqlite:///{tmp_path}/named.db")

    async def run() -> Any:
        return await satay.start(echo, "v").result()

    assert "v" == in_loop(run())
    assert (tmp_path / "named.db").exists()
    assert not (tmp_path / ".satay").exists()


def test_an_argument_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_DATABASE_URL", f"sqlite:///{tmp_path}/named.db")

    satay.run(echo, data_dir=tmp_path / "given")
    satay.run(echo, url=f"sqlite:///{tmp_path}/by_url.db")

    assert (tmp_path / "given" / "satay.db").exists()
    assert (tmp_path / "by_url.db").exists()
    assert not (tmp_path / "named.db").exists()


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite:", "sqlite://host/x", "sqlite://[x", "x.db", "sqlite:///"])
def test_a_url_that_cannot_be_opened_is_refused(url: str) -> None:
    async def run() -> None:
        async with satay.run_app(url):
            pass

    with pytest.raises(InvalidValueError, match="sqlite:///"):
        in_loop(run())


@pytest.mark.parametrize("query", ["?mode=ro", "?", "?immutable=1#x"])
def test_a_url_with_options_is_refused_because_a_journal_takes_none(tmp_path: Path, query: str) -> None:
    async def run() -> None:
        async with satay.run_app(f"sqlite:///{tmp_path}/a.db{query}"):
            pass

    with pytest.raises(InvalidValueError, match=r"has options behind its '\?', and a journal in SQLite takes none"):
        in_loop(run())
    assert [] == list(tmp_path.iterdir())


def test_a_question_mark_in_the_name_of_a_file_is_written_as_an_escape(tmp_path: Path) -> None:
    satay.run(echo, url=f"sqlite:///{tmp_path}/a%3Fb.db")

    assert (tmp_path / "a?b.db").exists()


def test_a_url_names_the_whole_path_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "team#1").mkdir()
    satay.run(echo, url=f"sqlite:///{tmp_path}/team#1/satay.db")

    assert ["team#1"] == [path.name for path in tmp_path.iterdir()]
    assert (tmp_path / "team#1" / "satay.db").exists()


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")

    async def run() -> None:
        async with satay.run_app(data_dir=tmp_path / "file"):
            pass

    with pytest.raises(JournalError, match="file"):
        in_loop(run())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada@db.example:5432/runs", "postgresql://ada@db.example:5432/runs"),
        ("postgres://ada:s3cret@db.example/runs", "postgres://ada:***@db.example/runs"),
        ("postgresql+asyncpg://ada:s3@cret://x@db.example/runs", "postgresql+asyncpg://ada:***@db.example/runs"),
        ("postgresql://db.example/runs?user=ada&password=s3cret&x=1", "db.example/runs?user=ada&password=***&x=1"),
    ],
)
def test_a_url_of_postgresql_is_refused_as_not_supported_yet_without_its_password(url: str, shown: str) -> None:
    async def run() -> None:
        async with satay.run_app(url):
            pytest.fail("it opened")

    with pytest.raises(InvalidValueError, match=r"PostgreSQL is not supported yet") as caught:
        in_loop(run())

    assert shown in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_url_without_a_scheme_is_not_repeated_where_it_could_hold_a_password() -> None:
    async def run() -> None:
        async with satay.run_app("ada:s3cret@db.example/runs"):
            pytest.fail("it opened")

    with pytest.raises(InvalidValueError, match=r"database URL '\*\*\*' cannot be opened"):
        in_loop(run())


def test_an_app_that_is_not_open_yet_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        app = satay.run_app(data_dir=tmp_path)
        with pytest.raises(AppClosedError, match=r"not open yet.*async with"):
            await app.start(echo, 1)
        with pytest.raises(AppClosedError, match=r"not open yet.*async with"):
            await app.runs()

    in_loop(run())


def test_an_app_that_is_entered_inside_itself_is_refused_and_leaves_no_signal_handler(tmp_path: Path) -> None:
    async def run() -> None:
        app = satay.run_app(data_dir=tmp_path)
        async with app:
            with pytest.raises(UsageError, match="opened before"):
                await app.__aenter__()
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    in_loop(run())


def test_a_closed_app_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            pass
        asks: list[Awaitable[Any]] = [app.start(echo), app.runs(), app.send_event("e"), app.resume("r").result()]
        for ask in asks:
            with pytest.raises(AppClosedError):
                await ask

    in_loop(run())


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_app_closes_whatever_ends_its_block(kind: type[BaseException], tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(waits, run_id="r")
            await settle(app)
            raise kind("the end")

    with pytest.raises(kind):
        asyncio.run(run())

    async def again() -> list[Any]:
        async with open_app(tmp_path) as app:
            await app.send_event("go", 1, run_id="r")
            return list(await app.resume("r").result())

    assert [None, 1] == in_loop(again())


def test_an_app_that_closes_lets_attempts_finish_within_the_grace_time(tmp_path: Path) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @satay.task
    async def slow() -> str:
        ran.append("began")
        has_begun.set()
        await may_end.wait()
        ran.append("ended")
        return "done"

    @satay.workflow
    async def works() -> str:
        return await slow()

    async def run() -> str:
        async with open_app(tmp_path, grace_seconds=10.0) as app:
            await app.start(works, run_id="r")
            await has_begun.wait()
            asyncio.get_running_loop().call_soon(may_end.set)
        async with open_app(tmp_path) as app:
            return str(await app.resume("r").result())

    assert "done" == in_loop(run())
    assert ["began", "ended"] == ran


def test_an_app_that_closes_stops_attempts_that_do_not_finish(tmp_path: Path) -> None:
    async def run() -> satay.RunStatus:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(hangs, run_id="r")
            await settle(app)
        async with open_app(tmp_path) as app:
            return await app.handle("r").status()

    assert satay.RunStatus.RUNNING == in_loop(run())


@satay.task(name="app.plain_step")
def plain_step(value: Any) -> Any:
    return value


@satay.workflow(name="app.child")
async def child(value: Any) -> Any:
    await satay.sleep(1.0)
    return await step(value)


@satay.workflow(name="app.many_kinds")
async def many_kinds(value: int) -> list[Any]:
    first = await step(value)
    plain = await plain_step(value + 1)
    await satay.sleep(1.0)
    mapped = await satay.map(step, [value + 2, value + 3], key=str)
    event = await satay.wait_for_event("go")
    return [first, plain, mapped, event, await satay.start_child(child, value + 4).result()]


@pytest.mark.parametrize("is_recovering", [False, True])
@pytest.mark.parametrize("passes", range(0, 100, 9))
def test_an_app_that_closes_at_any_moment_leaves_a_run_that_goes_on(
    passes: int, is_recovering: bool, tmp_path: Path
) -> None:
    async def run() -> tuple[list[Any], list[str]]:
        clock = ManualClock(autojump=True)
        for number in range(3):
            async with open_app(tmp_path, clock=clock, recover=is_recovering) as app:
                handle = app.start(many_kinds, 1, run_id="r")
                if number == 1:
                    await handle
                    await app.send_event("go", "now", run_id="r", event_id="once")
                for _ in range(passes):
                    await asyncio.sleep(0)
        async with open_app(tmp_path, clock=clock, recover=is_recovering) as app:
            return await app.resume("r").result(), await types_of(app, "r")

    result, types = in_loop(run())

    assert [1, 2, [3, 4], "now", 5] == result
    assert 1 == types.count(EntryType.WORKFLOW_COMPLETED)
    assert 1 == types.count(EntryType.EXTERNAL_EVENT_RECEIVED)
    assert 1 == types.count(EntryType.CHILD_WORKFLOW_SCHEDULED)
    assert 4 == types.count(EntryType.TASK_COMPLETED)


def test_nothing_is_left_of_an_app_that_has_closed(tmp_path: Path) -> None:
    async def run() -> set[Any]:
        before = asyncio.all_tasks()
        async with satay.run_app(data_dir=tmp_path) as app:
            await app.start(waits, run_id="r")
            waiter = asyncio.create_task(app.handle("r").result())
            await asyncio.sleep(0)
        with contextlib.suppress(AppClosedError):
            await waiter
        return asyncio.all_tasks() - before

    assert set() == in_loop(run())


_SCRIPT = """
import asyncio, sys
import satay

@satay.task
async def leave(how: str) -> str:
    if how == "exit in task":
        sys.exit(3)
    return how

@satay.workflow
async def work(how: str) -> str:
    return await leave(how)

async def main(how):
    result = await satay.start(work, how).result()
    if how == "error":
        raise ValueError(result)
    if how == "exit":
        sys.exit(4)
    print(result)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [("without closing", 0), ("error", 1), ("exit", 4), ("exit in task", 3)], ids=str
)
def test_a_script_ends_promptly_and_with_the_right_code(how: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    ended = subprocess.run(
        [sys.executable, str(script), how],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert code == ended.returncode, ended.stderr
    assert "never retrieved" not in ended.stderr
    assert "was never awaited" not in ended.stderr
    assert "Task was destroyed" not in ended.stderr


@satay.task(name="app.one")
async def one() -> int:
    return 1


@satay.workflow(name="app.counts")
async def counts() -> int:
    return await one() + await one()


def test_runs_that_have_ended_are_not_left_to_the_garbage_collector(tmp_path: Path) -> None:
    async def unreachable_after(runs: int) -> int:
        async with open_app(tmp_path) as app:
            await app.start(counts).result()
            gc.collect()
            gc.disable()
            try:
                for _ in range(runs):
                    await app.start(counts).result()
                return gc.collect()
            finally:
                gc.enable()

    assert in_loop(unreachable_after(50)) < 50
