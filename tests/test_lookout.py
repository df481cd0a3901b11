"""A journal that cannot be used for a moment leaves no run behind that this process is to wake."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import ApprovalTimeoutError, JournalConflictError, JournalUnavailableError, WorkflowCancelledError
from satay.model import EntryType
from satay.testing import Faults, ManualClock, open_app, pause, settle
from tests.driving import HANG_SECONDS

pytestmark = pytest.mark.anyio


class Failing(Faults):
    """Fails the next calls of a journal by their names, each so many times."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self.times: dict[str, int] = {}
        self.is_lost_with: str | None = None

    def pass_on(self, name: str, call: Callable[[], Any], args: tuple[Any, ...]) -> "asyncio.Future[Any]":
        if name == "append" and any(entry.type == self.is_lost_with for entry in args[0].entries):
            self.is_lost_with = None
            return self._refuse(JournalConflictError("somebody else was first", run_id="r"))
        if self.is_lost_with is None and self.times.get(name, 0) > 0:
            self.times[name] -= 1
            self.refused += 1
            return self._refuse(JournalUnavailableError("the disk is away"))
        return super().pass_on(name, call, args)

    def _refuse(self, error: Exception) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(error)
        return answer


@satay.task(name="lookout.work")
async def work() -> str:
    await pause(1.0)
    return "worked"


@satay.workflow(name="lookout.sleeping")
async def sleeping() -> str:
    await satay.sleep(1.0)
    return "slept"


@satay.workflow(name="lookout.working")
async def working() -> str:
    return await work()


@satay.workflow(name="lookout.going_on")
async def going_on(left: int = 1) -> str:
    await satay.sleep(1.0)
    if left:
        satay.continue_as_new(left - 1)
    return "went on"


@satay.workflow(name="lookout.parent")
async def parent(kind: str) -> str:
    return str(await satay.start_child(CHILDREN[kind]).result())


@satay.workflow(name="lookout.asking")
async def asking() -> bool:
    return bool(await satay.require_approval("refund", 40, timeout=1.0))


async def until_done(waiting: "asyncio.Future[str]", clock: ManualClock) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not waiting.done():
            await clock.advance(1.0)
            await asyncio.wait((waiting,), timeout=0.001)


CHILDREN: dict[str, Any] = {"sleeping": sleeping, "working": working, "going on": going_on}


@pytest.mark.parametrize("failing", ["due", "claim", "first_pages", "first_pages release", "next_wake", "messages"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_run_that_is_due_while_the_journal_cannot_be_used_is_woken_later(
    times: int, failing: str, tmp_path: Path
) -> None:
    faults, clock = Failing(), ManualClock()
    async with open_app(tmp_path, clock=clock, faults=faults, max_resident=0, poll_seconds=0.001) as app:
        waiting = asyncio.ensure_future(app.start(parent, "sleeping", run_id="r").result())
        await settle(app)
        faults.times = dict.fromkeys(failing.split(), times)
        await until_done(waiting, clock)

        assert "slept" == await waiting


@pytest.mark.parametrize("failing", ["record", "claim", "first_pages", "first_pages release"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_run_whose_drive_was_lost_goes_on_though_the_journal_could_not_be_read_then(
    times: int, failing: str, tmp_path: Path
) -> None:
    faults, clock = Failing(), ManualClock()
    async with open_app(tmp_path, clock=clock, faults=faults, poll_seconds=0.001) as app:
        waiting = asyncio.ensure_future(app.start(parent, "working", run_id="r").result())
        await settle(app)
        faults.times = dict.fromkeys(failing.split(), times)
        faults.is_lost_with = EntryType.TASK_COMPLETED
        await until_done(waiting, clock)

        assert "worked" == await waiting


@pytest.mark.parametrize("max_resident", [0, 1, 4096])
async def test_the_run_that_goes_on_in_the_place_of_another_is_driven_though_it_could_not_be_read_at_once(
    max_resident: int, tmp_path: Path
) -> None:
    faults, clock = Failing(), ManualClock()
    async with open_app(tmp_path, clock=clock, faults=faults, max_resident=max_resident, poll_seconds=0.001) as app:
        waiting = asyncio.ensure_future(app.start(parent, "going on", run_id="r").result())
        await settle(app)
        faults.times = {"record": 1}
        await until_done(waiting, clock)

        assert "went on" == await waiting


@satay.workflow(name="lookout.patient")
async def patient() -> None:
    await satay.wait_for_event("nothing")


@satay.workflow(name="lookout.giving_up")
async def giving_up() -> str:
    child = satay.start_child(patient)
    await satay.sleep(1.0)
    child.cancel()
    await satay.wait_for_event("go")
    return "gave up"


@pytest.mark.parametrize("failing", ["record", "post"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_child_that_is_given_up_is_cancelled_though_it_could_not_be_asked_at_once(
    times: int, failing: str, tmp_path: Path
) -> None:
    faults, clock = Failing(), ManualClock()
    async with open_app(tmp_path, clock=clock, faults=faults, poll_seconds=0.001) as app:
        run = await app.start(giving_up, run_id="r")
        await settle(app)
        faults.times = {failing: times}
        await clock.advance(1.0)
        with pytest.raises(WorkflowCancelledError):
            await asyncio.wait_for(app.handle("r/lookout.patient:0").result(), HANG_SECONDS)

        assert times == faults.refused
        await app.send_event("go", run_id="r")
        assert "gave up" == await run.result()


@pytest.mark.parametrize("failing", ["post", "messages"])
async def test_the_end_of_a_time_is_not_told_without_a_pause_to_a_journal_that_cannot_be_used(
    failing: str, tmp_path: Path
) -> None:
    faults, clock = Failing(), ManualClock()
    async with open_app(tmp_path, clock=clock, faults=faults, poll_seconds=1e6) as app:
        await app.start(asking, run_id="r")
        await settle(app)
        faults.times = {failing: 1000}
        clock.jump_to(clock.now() + 1_000_000)
        for _ in range(5000):
            await asyncio.sleep(0)

        assert 1 == faults.refused


@pytest.mark.parametrize("failing", ["post", "messages"])
async def test_the_end_of_a_time_is_told_once_the_journal_can_be_used_again(failing: str, tmp_path: Path) -> None:
    faults, clock = Failing(), ManualClock()
    async with open_app(tmp_path, clock=clock, faults=faults, poll_seconds=0.001) as app:
        run = app.start(asking, run_id="r")
        await run
        await settle(app)
        faults.times = {failing: 3}
        clock.jump_to(clock.now() + 1_000_000)

        with pytest.raises(ApprovalTimeoutError):
            async with asyncio.timeout(HANG_SECONDS):
                await run.result()


@satay.workflow(name="lookout.above")
async def above(depth: int) -> str:
    child = satay.start_child(above, depth - 1) if depth else satay.start_child(sleeping)
    return await child.result()


@pytest.mark.parametrize("max_resident", [0, 4096])
@pytest.mark.parametrize("depth", [0, 1])
async def test_a_run_is_resumed_together_with_the_child_that_could_not_write(
    depth: int, max_resident: int, tmp_path: Path
) -> None:
    faults, clock = Failing(), ManualClock()
    async with open_app(tmp_path, clock=clock, faults=faults, max_resident=max_resident, poll_seconds=0.001) as app:
        waiting = asyncio.ensure_future(app.start(above, depth, run_id="r").result())
        await settle(app)
        faults.times = {"append": 1}
        await clock.advance(1.0)
        with pytest.raises(JournalUnavailableError):
            await waiting

        assert "slept" == await app.resume("r").result()


@satay.workflow(name="lookout.waiting")
async def waiting_for_go() -> str:
    return str(await satay.wait_for_event("go"))


async def test_a_run_that_another_process_took_is_let_go_though_it_could_not_be_read_at_once(tmp_path: Path) -> None:
    faults, clock = Failing(), ManualClock()
    async with (
        open_app(tmp_path, clock=clock, faults=faults, lease_seconds=0.3, poll_seconds=1e6) as app,
        open_app(tmp_path, clock=clock, seed=1) as other,
    ):
        waiting = asyncio.ensure_future(app.start(waiting_for_go, run_id="r").result())
        await settle(app)
        faults.is_stalled = True
        clock.jump_to(clock.now() + 60_000_000)
        await other.send_event("go", "went", run_id="r")
        assert "went" == await other.resume("r").result()
        faults.times = {"record": 1}
        faults.go_on()

        assert "went" == await waiting
        assert 1 == faults.refused
