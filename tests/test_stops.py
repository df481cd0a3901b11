"""Whoever waits for a run hears what keeps a run below it from going on, in whatever memory the runs between are."""

import asyncio
from pathlib import Path

import pytest

import satay
from satay.errors import NeedsDecisionError, NondeterminismError, SatayError
from satay.testing import AppUnderTest, ManualClock, abandon, open_app, pause, settle

pytestmark = pytest.mark.anyio


class World:
    """What the bodies and the tasks do: it changes between two processes."""

    is_changed = False
    busy_seconds = 0.0


@pytest.fixture(autouse=True)
def _new_world() -> None:
    World.is_changed, World.busy_seconds = False, 0.0


@satay.task(name="stops.note")
async def note() -> None: ...


@satay.task(name="stops.busy")
async def busy() -> None:
    await pause(World.busy_seconds)


@satay.task(name="stops.pay", effect="external")
async def pay() -> str:
    if not World.is_changed:
        await pause(float("inf"))
    return "paid"


@satay.workflow(name="stops.diverging")
async def diverging() -> str:
    await (satay.sleep(1.0) if World.is_changed else note())
    await satay.wait_for_event("go on")
    return "went on"


@satay.workflow(name="stops.paying")
async def paying() -> str:
    return await pay()


LEAVES = {"diverging": diverging, "paying": paying}
ERRORS: dict[str, type[SatayError]] = {"diverging": NondeterminismError, "paying": NeedsDecisionError}


@satay.workflow(name="stops.above")
async def above(what: tuple[str, int]) -> str:
    kind, depth = what
    child = satay.start_child(LEAVES[kind]) if depth == 1 else satay.start_child(above, (kind, depth - 1))
    result, _ = await asyncio.gather(child.result(), busy())
    return str(result)


@satay.workflow(name="stops.listening")
async def listening() -> str:
    return str(await satay.wait_for_event("nothing"))


async def push_out(app: AppUnderTest, count: int) -> None:
    """Have every run leave memory: so many others wait in it now."""
    for _ in range(count):
        await app.start(listening)
    await settle(app)


async def lose(place: Path, workflow: satay.Workflow[..., str], *input: object) -> None:
    """A process dies while everything waits; the code is another one from then on."""
    async with open_app(place, clock=ManualClock()) as app:
        app.start(workflow, *input, run_id="r")
        await settle(app)
        await abandon(app)
    World.is_changed = True


@pytest.mark.parametrize("is_settled", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("busy_seconds", [0.0, 5.0])
@pytest.mark.parametrize("max_resident", [0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", LEAVES)
async def test_what_stops_a_run_is_told_to_those_above_it_that_have_left_memory(
    kind: str, depth: int, max_resident: int, busy_seconds: float, is_settled: bool, tmp_path: Path
) -> None:
    World.busy_seconds = busy_seconds
    await lose(tmp_path, above, (kind, depth))
    async with open_app(tmp_path, clock=ManualClock(), max_resident=max_resident) as app:
        run = await app.resume("r")
        if is_settled:
            await settle(app)
        waiting = asyncio.ensure_future(run.result())
        await settle(app)
        await app.clock.advance(busy_seconds)

        with pytest.raises(ERRORS[kind]):
            await waiting
        with pytest.raises(ERRORS[kind]):
            await app.handle("r").result()


@satay.workflow(name="stops.napping")
async def napping() -> str:
    if World.is_changed:
        await note()
    await satay.sleep(60.0)
    return "slept"


@satay.workflow(name="stops.above_napping")
async def above_napping(depth: int) -> str:
    child = satay.start_child(napping) if depth == 1 else satay.start_child(above_napping, depth - 1)
    return await child.result()


@pytest.mark.parametrize("max_resident", [0, 1, 3])
@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_run_that_stops_as_it_wakes_is_told_of_all_the_way_up(
    depth: int, max_resident: int, tmp_path: Path
) -> None:
    async with open_app(tmp_path, clock=ManualClock(), max_resident=max_resident) as app:
        run = app.start(above_napping, depth, run_id="r")
        waiting = asyncio.ensure_future(run.result())
        await settle(app)
        await push_out(app, max_resident)
        World.is_changed = True
        await app.clock.advance(60.0)

        with pytest.raises(NondeterminismError):
            await waiting


@satay.workflow(name="stops.giving_up")
async def giving_up() -> str:
    try:
        async with asyncio.timeout(1.0):
            await satay.start_child(stubborn).result()
    except TimeoutError:
        pass
    return str(await satay.wait_for_event("answer"))


@satay.workflow(name="stops.stubborn")
async def stubborn() -> None:
    try:
        await satay.wait_for_event("nothing")
    finally:
        if World.is_changed:
            await note()
        await satay.sleep(60.0)


@pytest.mark.parametrize("max_resident", [0, 1, 4096])
async def test_what_stops_a_child_that_its_parent_has_given_up_is_not_told(max_resident: int, tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock(), max_resident=max_resident) as app:
        run = app.start(giving_up, run_id="r")
        waiting = asyncio.ensure_future(run.result())
        await settle(app)
        await app.clock.advance(1.0)
        World.is_changed = True
        await app.clock.advance(60.0)
        later = asyncio.ensure_future(app.handle("r").result())
        await settle(app)
        await app.send_event("answer", "42", run_id="r")

        assert "42" == await waiting
        assert "42" == await later


@satay.workflow(name="stops.source")
async def source() -> str:
    child = satay.start_child(napping)
    await note()
    return await child.result()


@pytest.mark.parametrize("max_resident", [0, 1, 3])
async def test_what_stops_a_run_is_told_to_those_who_wait_for_a_fork_that_shares_it(
    max_resident: int, tmp_path: Path
) -> None:
    async with open_app(tmp_path, clock=ManualClock(), max_resident=max_resident) as app:
        app.start(source, run_id="s")
        await settle(app)
        fork = await app.fork("s", run_id="f", before_task=note, children="share", allow_unfinished=True)
        waiting = asyncio.ensure_future(fork.result())
        await settle(app)
        await push_out(app, max_resident)
        World.is_changed = True
        await app.clock.advance(60.0)

        with pytest.raises(NondeterminismError):
            await waiting
        with pytest.raises(NondeterminismError):
            await fork.result()


async def test_a_run_that_left_memory_and_was_decided_about_elsewhere_is_waited_for(tmp_path: Path) -> None:
    await lose(tmp_path, paying)
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock, max_resident=0) as app, open_app(tmp_path, clock=clock, seed=1) as other:
        await app.resume("r")
        await settle(app)
        await other.decide("r", value="paid")

        assert "paid" == await app.handle("r").result()


@pytest.mark.parametrize("max_resident", [0, 1])
async def test_a_child_that_left_memory_and_was_decided_about_elsewhere_is_waited_for(
    max_resident: int, tmp_path: Path
) -> None:
    await lose(tmp_path, above, ("paying", 1))
    clock = ManualClock()
    async with (
        open_app(tmp_path, clock=clock, max_resident=max_resident) as app,
        open_app(tmp_path, clock=clock, seed=1) as other,
    ):
        await app.resume("r")
        await settle(app)
        await other.decide("r/stops.paying:0", value="paid")

        assert "paid" == await app.handle("r").result()


@pytest.mark.parametrize("who_waits", ["the driver of the parent", "a third process"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("is_waiting_before", [False, True])
async def test_a_child_that_waits_for_a_decision_in_another_process_is_told_of(
    is_waiting_before: bool, depth: int, who_waits: str, tmp_path: Path
) -> None:
    await lose(tmp_path, above, ("paying", depth))
    clock = ManualClock()
    async with (
        open_app(tmp_path, clock=clock, poll_seconds=0.001) as other,
        open_app(tmp_path, clock=clock, seed=1, poll_seconds=0.001) as app,
        open_app(tmp_path, clock=clock, seed=2, poll_seconds=0.001) as third,
    ):
        waiter = app if who_waits == "the driver of the parent" else third
        leaf = "r" + "/stops.above:0" * (depth - 1) + "/stops.paying:0"
        if not is_waiting_before:
            await other.resume(leaf)
            await settle(other)
        await app.resume("r")
        waiting = asyncio.ensure_future(waiter.handle("r").result())

        with pytest.raises(NeedsDecisionError, match=leaf):
            await waiting
        await third.decide(leaf, value="paid")
        assert "paid" == await waiter.handle("r").result()


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_child_that_stops_in_another_process_is_told_of(depth: int, tmp_path: Path) -> None:
    clock = ManualClock()
    await lose(tmp_path, above_napping, depth)
    World.is_changed = False
    async with (
        open_app(tmp_path, clock=clock, max_resident=0, poll_seconds=0.001) as other,
        open_app(tmp_path, clock=clock, seed=1, poll_seconds=0.001) as app,
    ):
        child_id = "r/stops.napping:0" if depth == 1 else "r/stops.above_napping:0"
        await other.resume(child_id)
        await settle(other)
        run = await app.resume("r")
        waiting = asyncio.ensure_future(run.result())
        await settle(app)
        World.is_changed = True
        await clock.advance(60.0)

        with pytest.raises(NondeterminismError):
            await waiting


@pytest.mark.parametrize("ends", ["closed", "killed"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_child_that_another_process_leaves_behind_is_driven_by_who_drives_its_parent(
    depth: int, ends: str, tmp_path: Path
) -> None:
    clock = ManualClock()
    await lose(tmp_path, above_napping, depth)
    World.is_changed = False
    async with open_app(tmp_path, clock=clock, seed=1, poll_seconds=0.001) as app:
        async with open_app(tmp_path, clock=clock, poll_seconds=0.001) as other:
            await other.resume("r/stops.napping:0" if depth == 1 else "r/stops.above_napping:0")
            await settle(other)
            run = await app.resume("r")
            await settle(app)
            if ends == "killed":
                await abandon(other)
        await clock.advance(60.0)

        assert "slept" == await run.result()


@pytest.mark.parametrize("depth", [0, 1])
async def test_a_run_that_stopped_and_goes_on_in_another_process_is_waited_for(depth: int, tmp_path: Path) -> None:
    await lose(tmp_path, *((above, ("diverging", depth)) if depth else (diverging,)))
    clock = ManualClock()
    async with (
        open_app(tmp_path, clock=clock, poll_seconds=0.001) as app,
        open_app(tmp_path, clock=clock, seed=1, poll_seconds=0.001) as other,
    ):
        with pytest.raises(NondeterminismError):
            await app.resume("r").result()
        World.is_changed = False
        stopped = "r/stops.diverging:0" if depth else "r"
        await other.resume(stopped)
        await settle(other)
        waiting = asyncio.ensure_future(app.handle("r").result())
        await settle(app)
        await other.send_event("go on", run_id=stopped)

        assert "went on" == await waiting


@pytest.mark.parametrize("max_resident", [0, 3])
async def test_a_shared_run_that_nobody_drives_is_left_so_by_who_waits_for_the_fork(
    max_resident: int, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock, seed=1, max_resident=max_resident, poll_seconds=0.001) as app:
        async with open_app(tmp_path, clock=clock) as other:
            other.start(source, run_id="s")
            await settle(other)
            fork = await app.fork("s", run_id="f", before_task=note, children="share", allow_unfinished=True)
            waiting = asyncio.ensure_future(fork.result())
            await settle(app)
        await asyncio.wait((waiting,), timeout=0.05)
        await clock.advance(60.0)
        await asyncio.wait((waiting,), timeout=0.05)

        assert "waiting" == await app.handle("s/stops.napping:0").status()
        assert await app.resume("s").result() == await waiting
