"""An event that is sent to nobody in particular goes to one run, and costs no other what it has under way."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import NondeterminismError
from satay.model import EntryType
from satay.testing import Faults, ManualClock, abandon, open_app, settle
from tests.driving import entries_of, types_of

pytestmark = pytest.mark.anyio


class Payments:
    """How often it was paid, and what each payment waits for."""

    begun = 0
    go_on = asyncio.Event()
    failing = 0


@pytest.fixture(autouse=True)
def _no_payments() -> None:
    Payments.begun, Payments.go_on, Payments.failing = 0, asyncio.Event(), 0


@satay.task(name="contested.pay", effect="external", retries=1, retry_on=(ValueError,))
async def pay() -> str:
    Payments.begun += 1
    await Payments.go_on.wait()
    if Payments.failing:
        Payments.failing -= 1
        raise ValueError("no money")
    return "paid"


@satay.task(name="contested.at_once", effect="external")
async def at_once(number: int) -> int:
    Payments.begun += 1
    return number


@satay.workflow(name="contested.worker")
async def worker() -> list[object]:
    payment = asyncio.ensure_future(pay())
    jobs: list[object] = [await satay.wait_for_event("job") for _ in range(3)]
    return [*jobs, await payment]


@satay.workflow(name="contested.paying_worker")
async def paying_worker() -> list[object]:
    jobs: list[object] = []
    for number in range(3):
        payment = asyncio.ensure_future(at_once(number))
        jobs += [await satay.wait_for_event("job")]
        await payment
    return jobs


@satay.workflow(name="contested.taker")
async def taker() -> object:
    return await satay.wait_for_event("job")


@pytest.mark.parametrize("workflow", [worker, paying_worker])
@pytest.mark.parametrize("apps", [1, 2])
async def test_runs_that_take_from_one_another_keep_the_attempts_that_they_make(
    apps: int, workflow: satay.Workflow[[], list[object]], tmp_path: Path
) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app, open_app(tmp_path, clock=clock, seed=1) as other:
        for number in range(12):
            await app.send_event("job", number)
        opened = [app, other][:apps]
        runs = [opened[number % apps].start(workflow, run_id=f"r{number}") for number in range(4)]
        for run in runs:
            await run
        await clock.until_idle()
        Payments.go_on.set()
        results = [await run.result() for run in runs]

        assert list(range(12)) == sorted(job for result in results for job in result if isinstance(job, int))
        assert (4 if workflow is worker else 12) == Payments.begun
        for run in runs:
            assert EntryType.WORKFLOW_RESUMED not in await types_of(app, run.run_id)
            assert (await app.verify(run.run_id)).is_intact


@satay.workflow(name="contested.changing")
async def changing() -> object:
    await (satay.sleep(0) if Payments.begun else pay())
    return await satay.wait_for_event("job")


@pytest.mark.parametrize("ends", ["closed", "killed", "stopped"])
@pytest.mark.parametrize("sends", ["the driver", "another process"])
@pytest.mark.parametrize("max_resident", [0, 4096])
async def test_an_event_is_not_left_to_a_run_that_nobody_drives(
    max_resident: int, sends: str, ends: str, tmp_path: Path
) -> None:
    Payments.go_on.set()
    async with open_app(tmp_path) as app:
        app.start(changing, run_id="left")
        await settle(app)
        if ends == "killed":
            await abandon(app)
    async with (
        open_app(tmp_path, clock=ManualClock(), max_resident=max_resident, poll_seconds=0.001) as app,
        open_app(tmp_path, clock=ManualClock(), seed=1) as other,
    ):
        if ends == "stopped":
            with pytest.raises(NondeterminismError):
                await app.resume("left").result()
        run = app.start(taker, run_id="r")
        await settle(app)
        await (app if sends == "the driver" else other).send_event("job", "done")

        assert "done" == await run.result()


@pytest.mark.parametrize("sends", ["the driver", "another process"])
async def test_an_event_is_not_left_to_a_run_whose_driver_stands_still_beyond_its_lease(
    sends: str, tmp_path: Path
) -> None:
    faults, later = Faults(), ManualClock(datetime(2100, 1, 1, tzinfo=UTC))
    async with (
        open_app(tmp_path, clock=ManualClock(), faults=faults, lease_seconds=60.0) as stopped,
        open_app(tmp_path, clock=later, poll_seconds=0.001) as app,
        open_app(tmp_path, clock=later, seed=1) as other,
    ):
        stopped.start(taker, run_id="left")
        await settle(stopped)
        faults.is_stalled = True
        run = app.start(taker, run_id="r")
        await settle(app)
        await (app if sends == "the driver" else other).send_event("job", "done")

        assert "done" == await run.result()
        faults.go_on()
        await app.send_event("job", "done as well")
        assert "done as well" == await stopped.handle("left").result()


class SlowTaker(Faults):
    """A process that stands still when it is about to take a message."""

    def __init__(self) -> None:
        super().__init__()
        self.is_taking = asyncio.Event()

    def pass_on(self, name: str, call: Callable[[], Any], args: tuple[Any, ...]) -> "asyncio.Future[Any]":
        if name == "append" and args[0].taken and not self.is_taking.is_set():
            self.is_taking.set()
            self.is_stalled = True
        return super().pass_on(name, call, args)


async def test_what_is_recorded_while_a_message_is_lost_to_another_run_stays(tmp_path: Path) -> None:
    clock, faults = ManualClock(), SlowTaker()
    async with (
        open_app(tmp_path, clock=clock, faults=faults, poll_seconds=0.001) as app,
        open_app(tmp_path, clock=clock, seed=1) as other,
    ):
        run = app.start(worker, run_id="r")
        await clock.until_idle()
        Payments.failing = 1
        await other.send_event("job", 0)
        await faults.is_taking.wait()
        assert 0 == await other.start(taker, run_id="t").result()
        Payments.go_on.set()
        for _ in range(10):  # The attempt ends.
            await asyncio.sleep(0)
        faults.go_on()
        await clock.until_idle()
        await clock.advance(10)
        for number in (1, 2, 3):
            await other.send_event("job", number)

        assert [1, 2, 3, "paid"] == await run.result()
        assert 2 == Payments.begun
        entries = await entries_of(app, "r")
        assert [EntryType.TASK_ATTEMPT_FAILED, EntryType.TASK_ATTEMPT_STARTED] == [e.type for e in entries[3:5]]
        assert (await app.verify("r")).is_intact
