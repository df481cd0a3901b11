"""Cancelling: the request is sticky, reaches the body at a recorded point, and takes tasks and children with it."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import satay
from satay.errors import RunNotFoundError, SatayError, WorkflowCancelledError
from satay.model import EntryType
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app, pause, settle
from tests.driving import entries_of, in_loop, types_of
from tests.patience import patience

SOON_SECONDS = patience(5.0)
"""Within this time a run ends that was asked to cancel."""

ran: list[str] = []
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    seen.clear()


@satay.task(name="cancellation.note")
async def note(text: str) -> str:
    ran.append(text)
    return text


@satay.task(name="cancellation.lasts")
async def lasts(seconds: float) -> str:
    ran.append("began")
    try:
        await pause(seconds)
    except asyncio.CancelledError:
        ran.append("stopped")
        raise
    ran.append("ended")
    return "ended"


async def cancelled_at(
    place: Path, workflow: satay.Workflow[..., Any], *, after: float = 0.0, input: Any = satay.MISSING
) -> list[satay.RunEvent]:
    """Cancel a run some time after its start, see it end as cancelled, and return its journal."""
    async with open_app(place, clock=ManualClock()) as app:
        handle = await app.start(workflow, input, run_id="r")
        await app.clock.advance(after)
        await handle.cancel()
        await end_of(app, handle)
        return await entries_of(app, "r")


async def end_of(app: AppUnderTest, handle: satay.RunHandle[Any]) -> None:
    """Let time pass until a run has ended, which must be as cancelled."""
    await settle(app)
    for _ in range(20):
        if app.clock.autojump or (await handle.status()).is_terminal:
            break
        await app.clock.advance(60.0)

    assert satay.RunStatus.CANCELLED == await handle.status()
    with pytest.raises(WorkflowCancelledError, match=f"run '{handle.run_id}' was cancelled") as caught:
        await handle.result()
    assert handle.run_id == caught.value.run_id


# --- the request ------------------------------------------------------------------------------------------------------


@satay.workflow(name="cancellation.waits")
async def waits() -> str:
    try:
        await satay.wait_for_event("never")
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    return "done"


def test_a_cancelled_run_ends_cancelled_and_its_result_says_so(tmp_path: Path) -> None:
    entries = in_loop(cancelled_at(tmp_path, waits))

    types = [entry.type for entry in entries]
    assert [EntryType.WORKFLOW_CANCEL_REQUESTED, EntryType.CALL_CANCELLED, EntryType.WORKFLOW_CANCELLED] == types[-3:]
    assert ["cancelled"] == seen


def test_a_body_that_swallows_the_request_in_a_loop_still_ends_cancelled(tmp_path: Path) -> None:
    @satay.workflow
    async def swallows() -> str:
        for number in range(1000):
            try:
                await lasts(10.0)
            except asyncio.CancelledError:
                seen.append(number)
        return "done"

    entries = in_loop(cancelled_at(tmp_path, swallows, after=25.0))

    assert EntryType.WORKFLOW_CANCELLED == entries[-1].type
    assert sum(entry.type == EntryType.TASK_SCHEDULED for entry in entries) <= 110


def test_a_body_that_swallows_the_request_and_returns_is_cancelled_all_the_same(tmp_path: Path) -> None:
    @satay.workflow
    async def returns() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await lasts(math.inf)
        return "as if nothing had happened"

    entries = in_loop(cancelled_at(tmp_path, returns))

    assert EntryType.WORKFLOW_CANCELLED == entries[-1].type
    assert ["began", "stopped"] == ran


def test_a_body_that_answers_the_request_with_an_error_is_cancelled_all_the_same(tmp_path: Path) -> None:
    @satay.workflow
    async def raises() -> None:
        try:
            await lasts(math.inf)
        finally:
            raise ValueError("in the cleanup")

    entries = in_loop(cancelled_at(tmp_path, raises))

    assert EntryType.WORKFLOW_CANCELLED == entries[-1].type


@pytest.mark.parametrize("seconds", [0.0, 3.0, 7.0, 10.0, 15.0, 19.0, 20.0, 33.0])
def test_a_request_at_any_moment_ends_the_run_within_a_call(seconds: float, tmp_path: Path) -> None:
    @satay.workflow
    async def loops() -> None:
        while True:
            await lasts(7.0)
            await satay.sleep(3.0)

    entries = in_loop(cancelled_at(tmp_path, loops, after=seconds))
    types = [entry.type for entry in entries]

    asked = types.index(EntryType.WORKFLOW_CANCEL_REQUESTED)
    assert 1 >= sum(type == EntryType.TASK_SCHEDULED for type in types[asked:])
    assert EntryType.WORKFLOW_CANCELLED == types[-1]


@pytest.mark.parametrize("passes", range(0, 90, 6))
def test_a_request_after_any_number_of_passes_of_the_event_loop_ends_the_run(passes: int, tmp_path: Path) -> None:
    @satay.task
    def plain() -> None:
        ran.append("plain")

    @satay.workflow
    async def loops() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await note("async")
                await satay.sleep(1.0)
                await plain()

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            handle = app.start(loops, run_id="r")
            for _ in range(passes):
                await asyncio.sleep(0)
            await handle.cancel()
            with pytest.raises(WorkflowCancelledError):
                await handle.result()
            return await types_of(app, "r")

    types = in_loop(run())

    assert EntryType.WORKFLOW_CANCELLED == types[-1]
    assert 1 == types.count(EntryType.WORKFLOW_CANCEL_REQUESTED)


def test_a_request_at_the_moment_at_which_the_call_ends_is_not_lost(tmp_path: Path) -> None:
    @satay.task
    async def cancels_its_run() -> str:
        await satay.cancel(satay.task_context().run_id)
        return "ended"

    @satay.workflow
    async def loops() -> None:
        while True:
            await cancels_its_run()
            await satay.sleep(1.0)

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            handle = app.start(loops, run_id="r")
            with pytest.raises(WorkflowCancelledError):
                await handle.result()
            return await types_of(app, "r")

    assert EntryType.WORKFLOW_CANCELLED == in_loop(run())[-1]


def test_asking_again_changes_nothing(tmp_path: Path) -> None:
    @satay.workflow
    async def tidies() -> None:
        try:
            await satay.wait_for_event("never")
        finally:
            await satay.sleep(10.0)
            await note("tidied")

    async def run() -> list[str]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(tidies, run_id="r")
            for _ in range(3):
                await handle.cancel()
                await app.clock.advance(2.0)
            await end_of(app, handle)
            await handle.cancel()
            return await types_of(app, "r")

    types = in_loop(run())

    assert 1 == types.count(EntryType.WORKFLOW_CANCEL_REQUESTED)
    assert EntryType.WORKFLOW_CANCELLED == types[-1]
    assert ["tidied"] == ran


def test_a_run_whose_cleanup_never_ends_can_be_terminated(tmp_path: Path) -> None:
    @satay.workflow
    async def lingers() -> None:
        try:
            await satay.wait_for_event("never")
        finally:
            await note("began to tidy")
            await satay.wait_for_event("never either")
            await note("tidied")

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            handle = await app.start(lingers, run_id="r")
            await settle(app)
            await handle.cancel()
            await settle(app)
            assert satay.RunStatus.WAITING == await handle.status()
            await handle.terminate()
            with pytest.raises(WorkflowCancelledError):
                await handle.result()
            await handle.terminate()
            return await types_of(app, "r")

    types = in_loop(run())

    assert [EntryType.WORKFLOW_CANCEL_REQUESTED, EntryType.WORKFLOW_CANCELLED] == types[-2:]
    assert ["began to tidy"] == ran


def test_cancelling_a_run_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    @satay.workflow
    async def ends() -> str:
        return await note("done")

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path) as app:
            handle = app.start(ends, run_id="r")
            await handle.result()
            await handle.cancel()
            await settle(app)
            return await handle.result(), await types_of(app, "r")

    result, types = in_loop(run())

    assert "done" == result
    assert EntryType.WORKFLOW_CANCEL_REQUESTED not in types


def test_cancelling_a_run_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(RunNotFoundError, match="'nobody'"):
                await app.cancel("nobody")

    in_loop(run())


def test_a_run_that_no_process_drives_is_cancelled_by_the_one_that_asks(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(waits, run_id="r")
            await settle(app)
        async with open_app(tmp_path) as app:
            await satay.cancel("r")
            await end_of(app, app.handle("r"))
            return await types_of(app, "r")

    assert EntryType.WORKFLOW_CANCELLED == in_loop(run())[-1]


def test_a_request_that_was_recorded_survives_a_crash(tmp_path: Path) -> None:
    @satay.workflow
    async def tidies() -> None:
        try:
            await lasts(math.inf)
        finally:
            await note("one")
            await satay.sleep(5.0)
            await note("two")

    async def run(crash: Faults) -> list[str]:
        async with open_app(tmp_path, clock=ManualClock(), faults=crash) as app:
            handle = await app.start(tidies, run_id="r")
            await settle(app)
            with contextlib.suppress(satay.SatayError):
                await handle.cancel()
            await crash.crashed
        async with open_app(tmp_path) as app:
            await end_of(app, app.resume("r"))
            return await types_of(app, "r")

    types = in_loop(run(Faults().crash_after(type=EntryType.TIMER_CREATED)))

    assert ["began", "stopped", "one", "two"] == ran
    assert 1 == types.count(EntryType.WORKFLOW_CANCEL_REQUESTED)


@pytest.mark.parametrize("append", range(1, 9))
def test_a_crash_anywhere_in_a_cancellation_still_ends_it(append: int, tmp_path: Path) -> None:
    @satay.workflow
    async def tidies() -> None:
        try:
            await lasts(math.inf)
        finally:
            await note("one")
            await satay.sleep(5.0)
            await note("two")

    async def run() -> list[str]:
        faults = Faults().crash_after(append=append)
        async with open_app(tmp_path, faults=faults) as app:
            handle = app.start(tidies, run_id="r")
            with contextlib.suppress(satay.SatayError, asyncio.CancelledError):
                await handle
                settling = asyncio.ensure_future(settle(app))
                await asyncio.wait([settling, faults.crashed], return_when=asyncio.FIRST_COMPLETED)
                await handle.cancel()
                await handle.result()
        async with open_app(tmp_path) as app:
            handle = app.start(tidies, run_id="r")
            await handle
            await app.cancel("r")
            await end_of(app, handle)
            return await types_of(app, "r")

    types = in_loop(run())

    assert 1 == types.count(EntryType.WORKFLOW_CANCELLED)
    assert 1 == types.count(EntryType.WORKFLOW_CANCEL_REQUESTED)
    assert "two" == ran[-1]


def test_a_run_is_cancelled_before_its_body_has_begun(tmp_path: Path) -> None:
    async def run() -> list[str]:
        faults = Faults().crash_after(append=1)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(waits, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            await app.cancel("r")
            await end_of(app, app.handle("r"))
            return await types_of(app, "r")

    assert EntryType.WORKFLOW_CANCELLED == in_loop(run())[-1]


# --- runs that go on as new ones --------------------------------------------------------------------------------------


@satay.workflow(name="cancellation.goes_on")
async def goes_on(waiting: str) -> None:
    if waiting == "task":
        await note("again")
    elif waiting == "timer":
        await satay.sleep(1.0)
    satay.continue_as_new(waiting)


async def after_three_runs(app: AppUnderTest) -> None:
    """Return when `r` has gone on as a new run, and that as another, and again."""
    for run_id in ("r", "r~2", "r~3"):
        async for _ in app.events(run_id):
            pass


@pytest.mark.parametrize("ask", [satay.RunHandle.cancel, satay.RunHandle.terminate], ids=["cancel", "terminate"])
@pytest.mark.parametrize("waiting", ["nothing", "task", "timer"])
def test_an_endless_run_that_never_stops_going_on_as_a_new_one_ends_when_it_is_asked_to(
    tmp_path: Path, waiting: str, ask: Callable[[satay.RunHandle[None]], Awaitable[None]]
) -> None:
    async def run() -> tuple[list[str], list[str]]:
        async with open_app(tmp_path) as app:
            handle = await app.start(goes_on, waiting, run_id="r")
            await after_three_runs(app)
            await ask(handle)
            with pytest.raises(WorkflowCancelledError):
                await asyncio.wait_for(handle.result(), SOON_SECONDS)
            await settle(app)
            return [run.run_id for run in await app.runs()], [str(run.status) for run in await app.runs()]

    ids, statuses = in_loop(run())

    assert [f"r~{len(ids)}", "r"] == [ids[0], ids[-1]]
    assert ["cancelled"] + ["completed"] * (len(ids) - 1) == statuses


def test_a_request_to_a_run_that_another_app_drives_ends_it_however_fast_it_goes_on_as_a_new_one(
    tmp_path: Path,
) -> None:
    async def run() -> str:
        async with open_app(tmp_path, poll_seconds=0.01) as driver, open_app(tmp_path, poll_seconds=0.01) as asker:
            handle = await driver.start(goes_on, "nothing", run_id="r")
            await after_three_runs(driver)
            await asker.cancel("r")
            with pytest.raises(WorkflowCancelledError):
                await asyncio.wait_for(handle.result(), SOON_SECONDS)
            return str((await driver.runs(limit=1))[0].status)

    assert "cancelled" == in_loop(run())


@pytest.mark.parametrize("waiting", ["nothing", "task", "timer"])
@pytest.mark.parametrize("append", range(1, 8))
def test_a_request_to_an_endless_run_survives_a_crash_anywhere_after_it(
    tmp_path: Path, append: int, waiting: str
) -> None:
    async def run() -> str:
        faults = Faults()
        async with open_app(tmp_path, faults=faults) as app:
            handle = await app.start(goes_on, waiting, run_id="r")
            await after_three_runs(app)
            asked = asyncio.ensure_future(handle.cancel())
            faults.crash_after(append=faults.appends_written + append)
            ended = asyncio.ensure_future(handle.result())
            await asyncio.wait([ended, faults.crashed], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(asked, return_exceptions=True)
            ended.cancel()
            await asyncio.wait([ended])
        async with open_app(tmp_path, recover=True) as app:
            if isinstance(asked.exception(), SatayError):
                await app.cancel("r")
            with pytest.raises(WorkflowCancelledError):
                await asyncio.wait_for(app.handle("r").result(), SOON_SECONDS)
            await settle(app)
            return str((await app.runs(limit=1))[0].status)

    assert "cancelled" == in_loop(run())


def test_an_endless_child_is_cancelled_with_its_parent_however_fast_it_goes_on_as_a_new_one(tmp_path: Path) -> None:
    @satay.workflow
    async def parent() -> None:
        await satay.start_child(goes_on, "nothing").result()

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            handle = await app.start(parent, run_id="r")
            while len(await app.runs()) < 4:
                pass
            await handle.cancel()
            with pytest.raises(WorkflowCancelledError):
                await asyncio.wait_for(handle.result(), SOON_SECONDS)
            await asyncio.wait_for(settle(app), SOON_SECONDS)
            return [str(run.status) for run in await app.runs()]

    statuses = in_loop(run())

    assert ["cancelled", "cancelled"] == [statuses[0], statuses[-1]]


# --- what the body can still do ---------------------------------------------------------------------------------------


def test_cleanup_may_make_durable_calls(tmp_path: Path) -> None:
    @satay.workflow
    async def tidies() -> None:
        try:
            await satay.wait_for_event("never")
        finally:
            ran.append(await note("one"))
            await satay.sleep(30.0)
            seen.extend(await satay.map(note, ["x", "y"]))

    in_loop(cancelled_at(tmp_path, tidies))

    assert ["one", "one", "x", "y"] == ran
    assert ["x", "y"] == seen


def test_cleanup_without_end_is_bounded(tmp_path: Path) -> None:
    @satay.workflow
    async def never_done() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await note("again")
                await satay.sleep(1.0)

    entries = in_loop(cancelled_at(tmp_path, never_done, after=3.0))

    assert EntryType.WORKFLOW_CANCELLED == entries[-1].type


def test_branches_are_torn_down_in_call_order_and_so_again(tmp_path: Path) -> None:
    async def branch(name: str, wait: Callable[[], Awaitable[Any]]) -> None:
        try:
            await wait()
        finally:
            await note(name)

    @satay.workflow
    async def side_by_side() -> None:
        try:
            await asyncio.gather(
                branch("task", lambda: lasts(math.inf)),
                branch("timer", lambda: satay.sleep(500.0)),
                branch("event", lambda: satay.wait_for_event("never")),
            )
        finally:
            await satay.sleep(1.0)
            seen.append([name for name in ran if name in ("task", "timer", "event")])
            await satay.sleep(1.0)

    async def run() -> list[list[str]]:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_CANCELLED)
        async with open_app(tmp_path, faults=faults, clock=ManualClock()) as app:
            handle = await app.start(side_by_side, run_id="r")
            await app.clock.until_idle()
            await handle.cancel()
            await app.clock.advance(1.0)
            await asyncio.wait([asyncio.ensure_future(app.clock.advance(1.0)), faults.crashed])
        for _ in range(3):
            async with open_app(tmp_path, faults=Faults().crash_before(type=EntryType.WORKFLOW_CANCELLED)) as app:
                app.resume("r")
                await app.faults.crashed
        async with open_app(tmp_path) as app:
            await end_of(app, app.resume("r"))
            notes = [entry for entry in await entries_of(app, "r") if entry.type == EntryType.TASK_SCHEDULED]
            return [entry.data["input"] for entry in notes]

    notes = in_loop(run())

    assert 4 == len(notes)
    assert ["task", "timer", "event"] == [name for name in ran if name in ("task", "timer", "event")]
    assert [["task", "timer", "event"]] * 5 == seen


def test_a_body_can_shield_work_from_a_timeout_of_its_own(tmp_path: Path) -> None:
    @satay.workflow
    async def shields() -> str:
        work = asyncio.ensure_future(lasts(20.0))
        try:
            async with asyncio.timeout(10.0):
                await asyncio.shield(work)
        except TimeoutError:
            return f"late but {await work}"
        return "in time"

    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(shields).result()

    assert "late but ended" == in_loop(run())


def test_a_cancellation_of_the_bodys_own_is_no_cancellation_of_the_run(tmp_path: Path) -> None:
    @satay.workflow
    async def cancels_a_branch() -> str:
        branch = asyncio.ensure_future(lasts(math.inf))
        await satay.sleep(1.0)
        branch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await branch
        return await note("went on")

    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(cancels_a_branch).result()

    assert "went on" == in_loop(run())
    assert ["began", "stopped", "went on"] == ran


def test_a_body_that_cancels_itself_fails_and_does_not_hang(tmp_path: Path) -> None:
    @satay.workflow
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await satay.sleep(1.0)

    async def run() -> satay.RunStatus:
        async with open_app(tmp_path) as app:
            handle = app.start(cancels_itself)
            with pytest.raises(satay.SatayError, match="cancelled by its own code"):
                await handle.result()
            return await handle.status()

    assert satay.RunStatus.FAILED == in_loop(run())


# --- what goes with the run -------------------------------------------------------------------------------------------


def test_a_running_task_is_stopped_and_cannot_write_its_result(tmp_path: Path) -> None:
    @satay.workflow
    async def works() -> None:
        await lasts(50.0)

    entries = in_loop(cancelled_at(tmp_path, works, after=10.0))

    assert ["began", "stopped"] == ran
    assert EntryType.TASK_COMPLETED not in [entry.type for entry in entries]


def test_timers_and_waits_go_with_the_run(tmp_path: Path) -> None:
    @satay.workflow
    async def waits_long() -> None:
        await asyncio.gather(satay.sleep(60.0), satay.wait_for_event("never", timeout=60.0))

    async def run() -> tuple[Any, list[Any], int | None, int]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(waits_long, run_id="r")
            await app.clock.advance(10.0)
            await handle.cancel()
            await settle(app)
            count = len(await entries_of(app, "r"))
            journal = (await app._ready()).journal
            waiting = list(await journal.waits("r"))
            wake = (await app.run("r")).wake_at
            next_wake = await journal.next_wake(None)
            await app.clock.advance(120.0)
            return wake, waiting, next_wake, len(await entries_of(app, "r")) - count

    assert (None, [], None, 0) == in_loop(run())


def test_the_timer_of_a_wait_goes_when_the_event_came(tmp_path: Path) -> None:
    @satay.workflow
    async def waits_once() -> None:
        await satay.wait_for_event("go", timeout=60.0)
        await satay.wait_for_event("never")

    async def run() -> tuple[Any, Any, list[str]]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(waits_once, run_id="r")
            await settle(app)
            before = (await app.run("r")).wake_at
            await app.send_event("go")
            await settle(app)
            after = (await app.run("r")).wake_at
            await app.clock.advance(120.0)
            return before, after, await types_of(app, "r")

    before, after, types = in_loop(run())

    assert before is not None
    assert after is None
    assert EntryType.EVENT_WAIT_TIMED_OUT not in types


@satay.workflow(name="cancellation.leaf")
async def leaf(name: str) -> str:
    try:
        await satay.wait_for_event("never")
    finally:
        await note(f"leaf {name}")
    return name


@satay.workflow(name="cancellation.branch")
async def branch_of(name: str) -> str:
    return await satay.start_child(leaf, name).result()


@satay.workflow(name="cancellation.tree")
async def tree() -> list[str]:
    children = [satay.start_child(branch_of, str(number)) for number in range(4)]
    return [await child.result() for child in children]


def test_descendants_are_cancelled_with_their_ancestor(tmp_path: Path) -> None:
    async def run() -> dict[str, str]:
        async with open_app(tmp_path) as app:
            handle = await app.start(tree, run_id="r")
            await settle(app)
            await handle.cancel()
            await settle(app)
            return {run.run_id: str(run.status) for run in await app.runs()}

    statuses = in_loop(run())

    assert 9 == len(statuses)
    assert {"cancelled"} == set(statuses.values())
    assert sorted(f"leaf {number}" for number in range(4)) == sorted(ran)


@pytest.mark.parametrize("append", range(1, 12))
def test_descendants_are_cancelled_also_when_the_process_dies_in_between(append: int, tmp_path: Path) -> None:
    async def run() -> dict[str, str]:
        faults = Faults()
        async with open_app(tmp_path, faults=faults) as app:
            handle = await app.start(tree, run_id="r")
            await settle(app)
            faults.crash_after(append=append)
            with contextlib.suppress(satay.SatayError):
                await handle.cancel()
            settling = asyncio.ensure_future(settle(app))
            await asyncio.wait([faults.crashed, settling], return_when=asyncio.FIRST_COMPLETED)
            settling.cancel()
        async with open_app(tmp_path, recover=True) as app:
            await app.cancel("r")
            await settle(app)
            for run in await app.runs():
                if not run.status.is_terminal:
                    app.resume(run.run_id)
            await settle(app)
            return {run.run_id: str(run.status) for run in await app.runs()}

    statuses = in_loop(run())

    assert 9 == len(statuses)
    assert {"cancelled"} == set(statuses.values()), statuses


def test_a_child_that_is_started_at_the_moment_of_the_request_is_cancelled_too(tmp_path: Path) -> None:
    @satay.workflow
    async def starts_late() -> None:
        await satay.wait_for_event("go")
        await asyncio.gather(*(satay.start_child(leaf, str(number)).result() for number in range(10)))

    async def run() -> set[str]:
        async with open_app(tmp_path) as app:
            handle = await app.start(starts_late, run_id="r")
            await settle(app)
            await asyncio.gather(app.send_event("go"), handle.cancel())
            await settle(app)
            return {str(run.status) for run in await app.runs()}

    assert {"cancelled"} == in_loop(run())


def test_a_child_that_is_cancelled_by_itself_is_an_error_in_its_parent(tmp_path: Path) -> None:
    @satay.workflow
    async def parent() -> str:
        child = satay.start_child(leaf, "a")
        try:
            return await child.result()
        except WorkflowCancelledError as error:
            return f"lost {error.run_id == child.run_id}"

    async def run() -> str:
        async with open_app(tmp_path) as app:
            handle = await app.start(parent, run_id="r")
            await settle(app)
            child = next(run for run in await app.runs() if run.parent_id == "r")
            await app.cancel(child.run_id)
            return await handle.result()

    assert "lost True" == in_loop(run())


def test_a_parent_that_ends_first_takes_its_children_with_it(tmp_path: Path) -> None:
    @satay.workflow
    async def leaves() -> str:
        satay.start_child(leaf, "a")
        await satay.sleep(5.0)
        return "left"

    async def run() -> dict[str, str]:
        async with open_app(tmp_path) as app:
            assert "left" == await app.start(leaves, run_id="r").result()
            await settle(app)
            return {run.workflow: str(run.status) for run in await app.runs()}

    statuses = in_loop(run())

    assert "cancelled" == statuses["cancellation.leaf"]


def test_a_fork_cut_in_a_cancelled_wait_gets_the_childs_result(tmp_path: Path) -> None:
    @satay.workflow(name="cancellation.slow_child")
    async def slow_child() -> str:
        await satay.sleep(50.0)
        return "from the child"

    @satay.workflow(name="cancellation.awaits_child")
    async def awaits_child() -> str:
        return await satay.start_child(slow_child).result()

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(awaits_child, run_id="r")
            await app.clock.advance(10.0)
            await handle.cancel()
            await end_of(app, handle)
            entries = await entries_of(app, "r")
            cut = next(entry.seq for entry in entries if entry.type == EntryType.CHILD_WORKFLOW_SCHEDULED)
            fork = await app.fork("r", fork_point_seq=cut)
            await app.clock.advance(100.0)
            return await fork.result(), [entry.type for entry in entries]

    result, types = in_loop(run())

    assert "from the child" == result
    assert EntryType.CHILD_WORKFLOW_FAILED not in types


# --- waiters ----------------------------------------------------------------------------------------------------------


def test_giving_up_a_result_does_not_disturb_the_run(tmp_path: Path) -> None:
    @satay.workflow
    async def naps() -> str:
        await satay.sleep(50.0)
        return await note("rested")

    async def run() -> tuple[str, int]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(naps, run_id="r")
            waiters = [asyncio.create_task(handle.result()) for _ in range(50)]
            await settle(app)
            for waiter in waiters[1:]:
                waiter.cancel()
            await asyncio.wait(waiters[1:])
            await app.clock.advance(60.0)
            assert "rested" == await handle.result()
            return await waiters[0], sum(waiter.cancelled() for waiter in waiters)

    assert ("rested", 49) == in_loop(run())
    assert ["rested"] == ran


@pytest.mark.parametrize("passes", [0, 1, 2, 5, 10, 20])
def test_giving_up_the_start_does_not_disturb_the_run(passes: int, tmp_path: Path) -> None:
    @satay.workflow
    async def works() -> str:
        return await note("done")

    async def run() -> str:
        async with open_app(tmp_path) as app:
            handle = app.start(works, run_id="r")

            async def wait() -> None:
                await handle

            waiter = asyncio.create_task(wait())
            for _ in range(passes):
                await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait([waiter])
            return await handle.result()

    assert "done" == in_loop(run())
    assert ["done"] == ran


@pytest.mark.parametrize("passes", range(0, 30, 3))
def test_an_app_whose_opening_is_cancelled_leaves_nothing_behind(passes: int, tmp_path: Path) -> None:
    async def use() -> None:
        async with satay.run_app(data_dir=tmp_path):
            await asyncio.get_running_loop().create_future()

    async def run() -> str:
        before = asyncio.all_tasks()
        using = asyncio.create_task(use())
        for _ in range(passes):
            await asyncio.sleep(0)
        using.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await using
        assert asyncio.all_tasks() == before
        async with open_app(tmp_path) as app:
            return await app.start(ends_at_once).result()

    assert "done" == in_loop(run())


@satay.workflow(name="cancellation.ends_at_once")
async def ends_at_once() -> str:
    return await note("done")


# --- groups and scopes ------------------------------------------------------------------------------------------------


@satay.task(name="cancellation.fails")
async def fails(text: str) -> None:
    raise ValueError(text)


def test_a_task_group_fails_the_run_with_all_its_members(tmp_path: Path) -> None:
    @satay.workflow
    async def groups() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails("one"))
            group.create_task(lasts(math.inf))
            group.create_task(fails("two"))

    async def run() -> tuple[BaseException, satay.RunStatus, list[str]]:
        async with open_app(tmp_path) as app:
            handle = app.start(groups, run_id="r")
            with pytest.raises(ExceptionGroup) as caught:
                await handle.result()
            return caught.value, await handle.status(), await types_of(app, "r")

    error, status, types = in_loop(run())

    assert isinstance(error, ExceptionGroup)
    assert ["ValueError('one')"] == [repr(member) for member in error.exceptions][:1]
    assert satay.RunStatus.FAILED == status
    assert EntryType.WORKFLOW_FAILED == types[-1]
    assert ["began", "stopped"] == ran


def test_except_star_takes_a_group_apart_the_same_again(tmp_path: Path) -> None:
    @satay.workflow
    async def groups() -> list[str]:
        caught: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails("one"))
                group.create_task(lasts(math.inf))
        except* ValueError as errors:
            caught = [str(error) for error in errors.exceptions]
        seen.append(caught)
        await satay.sleep(1.0)
        return caught

    async def run() -> list[str]:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(groups, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            return list(await app.resume("r").result())

    assert ["one"] == in_loop(run())
    assert [["one"], ["one"]] == seen


def test_a_group_with_a_cancellation_in_it_fails_the_run_and_names_it(tmp_path: Path) -> None:
    @satay.workflow
    async def groups() -> None:
        raise BaseExceptionGroup("mixed", [ValueError("v"), asyncio.CancelledError("c")])

    async def run() -> tuple[str, satay.RunStatus]:
        async with open_app(tmp_path) as app:
            handle = app.start(groups, run_id="r")
            with pytest.raises(satay.errors.WorkflowFailedError, match="mixed") as caught:
                await handle.result()
            return caught.value.error_type, await handle.status()

    assert ("builtins:BaseExceptionGroup", satay.RunStatus.FAILED) == in_loop(run())


def test_anyio_runs_in_a_body(tmp_path: Path) -> None:
    @satay.workflow
    async def uses_anyio() -> list[Any]:
        results: list[Any] = []

        async def add(text: str, seconds: float) -> None:
            await anyio.sleep(seconds)
            results.append(await note(text))

        async with anyio.create_task_group() as group:
            group.start_soon(add, "late", 5.0)
            group.start_soon(add, "early", 1.0)
        with anyio.move_on_after(10.0) as scope:
            await lasts(math.inf)
        results.append(scope.cancelled_caught)
        try:
            with anyio.fail_after(3.0):
                await satay.wait_for_event("never")
        except TimeoutError:
            results.append("timed out")
        send, receive = anyio.create_memory_object_stream[str](1)
        async with send, receive:
            await send.send("message")
            results.append(await receive.receive())
        seen.append(results)
        await satay.sleep(1.0)
        return results

    async def run() -> list[Any]:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(uses_anyio, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            return list(await app.resume("r").result())

    expected = ["early", "late", True, "timed out", "message"]
    assert expected == in_loop(run())
    assert [expected, expected] == seen
    assert ["early", "late", "began", "stopped"] == ran


def test_a_cancelled_run_with_an_anyio_scope_ends(tmp_path: Path) -> None:
    @satay.workflow
    async def scoped() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lasts, math.inf)
            group.start_soon(satay.sleep, 500.0)
            with anyio.CancelScope(shield=True):
                await satay.sleep(20.0)
                await note("shielded")

    entries = in_loop(cancelled_at(tmp_path, scoped, after=1.0))

    assert EntryType.WORKFLOW_CANCELLED == entries[-1].type


# --- leftovers and eviction -------------------------------------------------------------------------------------------


def test_coroutines_that_are_left_over_at_return_are_cancelled(tmp_path: Path) -> None:
    @satay.workflow
    async def leaves_behind() -> str:
        async def left() -> None:
            try:
                await satay.sleep(500.0)
            finally:
                seen.append("cleaned up")

        branch = asyncio.create_task(left())
        await satay.sleep(1.0)
        assert not branch.done()
        return "done"

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path) as app:
            return await app.start(leaves_behind, run_id="r").result(), await types_of(app, "r")

    result, types = in_loop(run())

    assert "done" == result
    assert ["cleaned up"] == seen
    assert EntryType.WORKFLOW_COMPLETED == types[-1]
    assert 1 == types.count(EntryType.CALL_CANCELLED)


def test_cleanup_of_a_leftover_makes_no_durable_calls_and_may_refuse_to_end(tmp_path: Path) -> None:
    @satay.workflow
    async def leaves_behind() -> str:
        async def left() -> None:
            while True:
                try:
                    await satay.sleep(500.0)
                except asyncio.CancelledError:
                    await note("never made")

        branch = asyncio.create_task(left())
        await satay.sleep(1.0)
        assert not branch.done()
        return "done"

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path) as app:
            return await app.start(leaves_behind, run_id="r").result(), await types_of(app, "r")

    result, types = in_loop(run())

    assert "done" == result
    assert [] == ran
    assert EntryType.WORKFLOW_COMPLETED == types[-1]


@pytest.mark.parametrize("max_resident", [0, 1])
def test_a_run_that_is_dropped_from_memory_cleans_nothing_up_and_goes_on(max_resident: int, tmp_path: Path) -> None:
    @satay.workflow
    async def parks(name: str) -> str:
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(lambda: seen.append(f"left {name}"))
                first = await note(f"first {name}")
                await satay.wait_for_event("go", key=name)
                seen.append(f"went on {name}")
        except BaseException as error:
            seen.append(repr(error))
            raise
        finally:
            seen.append(f"finally {name}")
        return first

    async def run() -> list[str]:
        async with open_app(tmp_path, max_resident=max_resident) as app:
            handles = [await app.start(parks, name, run_id=name) for name in "abc"]
            await settle(app)
            parked = seen.copy()
            for name in "cab":
                await app.send_event("go", key=name)
            results = [await handle.result() for handle in handles]
            await settle(app)
            return [*parked, *results]

    assert ["first a", "first b", "first c"] == in_loop(run())
    assert sorted(f"{what} {name}" for what in ("went on", "left", "finally") for name in "abc") == sorted(seen)
    assert ["first a", "first b", "first c"] == ran


def test_of_the_runs_in_memory_the_least_recently_used_is_dropped_first(tmp_path: Path) -> None:
    @satay.workflow
    async def rests(name: str) -> None:
        seen.append(name)
        while True:
            await satay.wait_for_event("go", key=name)

    async def run() -> list[str]:
        async with open_app(tmp_path, max_resident=2) as app:
            for name in ("+a", "+b", "a", "+c", "a", "b", "a", "c"):
                if name.startswith("+"):
                    await app.start(rests, name[1], run_id=name[1])
                else:
                    await app.send_event("go", key=name)
                await settle(app)
            begun = seen.copy()
            seen.clear()
            return begun

    # `c` drops `b`, which was used before `a`; `b` drops `c`, and `c` drops `b`. A body that is rebuilt begins again.
    assert ["a", "b", "c", "b", "c"] == in_loop(run())


@pytest.mark.parametrize("max_resident", [0, 1])
def test_runs_that_are_not_in_memory_wake_when_their_timers_are_due(max_resident: int, tmp_path: Path) -> None:
    @satay.workflow
    async def naps(seconds: float) -> float:
        begun = satay.now()
        await satay.sleep(seconds)
        await satay.sleep(seconds)
        return (satay.now() - begun).total_seconds()

    async def run() -> list[float]:
        async with open_app(tmp_path, max_resident=max_resident) as app:
            handles = [app.start(naps, float(seconds)) for seconds in (30, 10, 20)]
            return [await handle.result() for handle in handles]

    results = in_loop(run())

    for asked, slept in zip((60.0, 20.0, 40.0), results, strict=True):
        assert asked <= slept <= asked + 1.0


def test_a_run_that_is_not_in_memory_can_be_cancelled(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with open_app(tmp_path, max_resident=0) as app:
            handle = await app.start(waits, run_id="r")
            await settle(app)
            await handle.cancel()
            await end_of(app, handle)
            return await types_of(app, "r")

    assert EntryType.WORKFLOW_CANCELLED == in_loop(run())[-1]
    assert ["cancelled"] == seen


def test_a_crash_runs_no_cleanup_of_the_body(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(waits, run_id="r")
            await settle(app)
            await abandon(app)
        return seen.copy()

    assert [] == in_loop(run())
