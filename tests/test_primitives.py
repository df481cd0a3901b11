"""What a body calls: sleeping, waiting for events, mapping, gathering, children, and going on as a new run."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, assert_type

import pytest

import satay
from satay.errors import (
    ChildWorkflowError,
    DecodeError,
    DuplicateKeyError,
    EncodeError,
    EventTimeoutError,
    InvalidValueError,
    NondeterminismError,
    RunConflictError,
    RunNotFoundError,
    UsageError,
    WorkflowSideEffectError,
    WorkflowStuckError,
)
from satay.model import EntryType
from satay.testing import Faults, ManualClock, abandon, open_app, pause, settle
from tests.driving import drive_twice, entries_of, in_loop, types_of

ran: list[Any] = []
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    seen.clear()


@satay.task(name="primitives.note")
async def note(value: Any) -> Any:
    ran.append(value)
    return value


async def result_of(place: Path, workflow: satay.Workflow[..., Any], input: Any = satay.MISSING, **options: Any) -> Any:
    async with open_app(place, **options) as app:
        return await app.start(workflow, input, run_id="r").result()


# --- sleeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duration", [0, 0.0, -1, -0.5, timedelta(0), timedelta(days=-1)])
def test_a_sleep_of_nothing_or_less_returns_at_once_and_is_not_recorded(duration: Any, tmp_path: Path) -> None:
    @satay.workflow
    async def sleeps() -> str:
        await satay.sleep(duration)
        return "at once"

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            return await app.start(sleeps, run_id="r").result(), await types_of(app, "r")

    result, types = in_loop(run())

    assert "at once" == result
    assert EntryType.TIMER_CREATED not in types


@pytest.mark.parametrize(
    "duration", [math.nan, math.inf, -math.inf, timedelta.max, 1e12, "1", None, True, complex(1, 1)]
)
@pytest.mark.parametrize("place", ["sleep", "timeout"])
def test_an_odd_duration_is_refused_before_anything_is_written(duration: Any, place: str, tmp_path: Path) -> None:
    @satay.workflow
    async def sleeps() -> str:
        if place == "sleep":
            await satay.sleep(duration)
        elif duration is not None:
            await satay.wait_for_event("go", timeout=duration)
        else:
            raise InvalidValueError("no timeout is no odd one")
        return "slept"

    async def run() -> list[str]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            with pytest.raises(ValueError, match=r"duration|timeout"):
                await app.start(sleeps, run_id="r").result()
            return await types_of(app, "r")

    assert [EntryType.WORKFLOW_CREATED, EntryType.WORKFLOW_FAILED] == in_loop(run())


@pytest.mark.parametrize("sleep", [satay.sleep, asyncio.sleep])
def test_every_way_to_sleep_is_a_durable_timer(sleep: Callable[[float], Any], tmp_path: Path) -> None:
    @satay.workflow(name="primitives.sleeps")
    async def sleeps() -> float:
        begun = satay.now()
        await sleep(3600.0)
        return (satay.now() - begun).total_seconds()

    async def run() -> float:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(sleeps, run_id="r")
            await settle(app)
        async with open_app(tmp_path) as app:
            return float(await app.resume("r").result())

    assert 3600.0 == in_loop(run())


@pytest.mark.parametrize(
    "start",
    [
        datetime(2024, 3, 30, 12, tzinfo=UTC),
        datetime(2024, 10, 26, 12, tzinfo=UTC),
        datetime(2024, 2, 28, 12, tzinfo=UTC),
    ],
)
def test_a_day_is_a_day_of_elapsed_time_across_changes_of_the_clock(start: datetime, tmp_path: Path) -> None:
    @satay.workflow
    async def naps() -> float:
        begun = satay.now()
        await satay.sleep(timedelta(days=1))
        return (satay.now() - begun).total_seconds()

    assert 86_400.0 == in_loop(result_of(tmp_path, naps, clock=ManualClock(start, autojump=True)))


def test_timers_fire_in_the_order_in_which_they_are_due(tmp_path: Path) -> None:
    @satay.workflow
    async def naps() -> list[int]:
        order: list[int] = []

        async def nap(seconds: int) -> None:
            await satay.sleep(seconds)
            order.append(seconds)

        await satay.gather(*(nap(seconds) for seconds in (5, 1, 9, 3, 1)))
        seen.append(order)
        await satay.sleep(1.0)
        return order

    assert [1, 1, 3, 5, 9] == in_loop(drive_twice(tmp_path, naps))
    assert seen[0] == seen[1]


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass
class Approval:
    by: str
    is_given: bool


@satay.workflow(name="primitives.approve")
async def approve(key: str | None) -> list[Any]:
    approval = await satay.wait_for_event(Approval, key=key)
    return [type(approval).__name__, approval.by, approval.is_given]


@satay.workflow(name="primitives.hear")
async def hear(timeout: float | None) -> list[Any]:
    try:
        return ["heard", await satay.wait_for_event("word", timeout=timeout)]
    except EventTimeoutError as error:
        return ["silence", str(error)]


def test_an_event_is_sent_by_class_or_by_name(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            one = await app.start(approve, None)
            two = await app.start(approve, "k")
            await app.send_event(Approval("ada", True), run_id=one.run_id)
            await app.send_event("Approval", {"by": "bob", "is_given": False}, key="k")
            return [await one.result(), await two.result()]

    assert [["Approval", "ada", True], ["Approval", "bob", False]] == in_loop(run())


def test_an_event_that_is_sent_before_the_wait_is_kept_for_it(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            await app.send_event(Approval("ada", True), key="early")
        async with open_app(tmp_path) as app:
            return await app.start(approve, "early").result()

    assert ["Approval", "ada", True] == in_loop(run())


@pytest.mark.parametrize("event", [int | str, 5, None])
def test_what_has_no_name_is_no_event(event: Any, tmp_path: Path) -> None:
    @satay.workflow
    async def misuses() -> None:
        with pytest.raises(InvalidValueError, match="give the class of the event, or its name"):
            await satay.wait_for_event(event)

    in_loop(result_of(tmp_path, misuses))


def test_keys_keep_events_apart(tmp_path: Path) -> None:
    @satay.workflow
    async def both() -> list[Any]:
        return list(await satay.gather(satay.wait_for_event("e", key="a"), satay.wait_for_event("e", key="b")))

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            handle = await app.start(both, run_id="r")
            await app.send_event("e", "no key")
            await app.send_event("e", "for b", key="b")
            await settle(app)
            waits = await (await app._ready()).journal.waits("r")
            await app.send_event("e", "for a", key="a")
            return [[(wait.type, wait.key) for wait in waits], await handle.result()]

    assert [[("e", "a")], ["for a", "for b"]] == in_loop(run())


def test_equal_waits_are_served_in_call_order_and_so_again(tmp_path: Path) -> None:
    @satay.workflow
    async def many() -> list[Any]:
        waits = [satay.wait_for_event("ok") for _ in range(3)]
        waits += [satay.wait_for_event("ok", key=key) for key in ("x", "x", "y")]
        got = list(await satay.gather(*waits))
        seen.append(got)
        await satay.sleep(1.0)
        return got

    async def run() -> list[Any]:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
        async with open_app(tmp_path, faults=faults) as app:
            await app.start(many, run_id="r")
            for number in range(3):
                await app.send_event("ok", number)
            for key, value in (("y", "y1"), ("x", "x1"), ("x", "x2")):
                await app.send_event("ok", value, key=key)
            await faults.crashed
        async with open_app(tmp_path) as app:
            return list(await app.resume("r").result())

    expected = [0, 1, 2, "x1", "x2", "y1"]
    assert expected == in_loop(run())
    assert [expected, expected] == seen


def test_events_are_delivered_first_in_first_out(tmp_path: Path) -> None:
    @satay.workflow
    async def listens() -> list[int]:
        return [await satay.wait_for_event("n") for _ in range(20)]

    async def run() -> list[int]:
        async with open_app(tmp_path) as app:
            for number in range(10):
                await app.send_event("n", number)
            handle = await app.start(listens, run_id="r")
            for number in range(10, 20):
                await app.send_event("n", number, run_id="r")
            return await handle.result()

    assert list(range(20)) == in_loop(run())


def test_an_event_to_nobody_in_particular_goes_to_the_run_that_waits_first(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handles = []
            for name in "abc":
                handles.append(await app.start(approve, None, run_id=name))
                await settle(app)
            for name in ("one", "two"):
                await app.send_event(Approval(name, True))
                await settle(app)
            return [str(await handle.status()) for handle in handles] + [(await handles[0].result())[1]]

    assert ["completed", "completed", "waiting", "one"] == in_loop(run())


def test_an_event_for_a_run_goes_to_no_other(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handles = [await app.start(approve, None, run_id=name) for name in "ab"]
            await app.send_event(Approval("x", True), run_id="b")
            await settle(app)
            return [str(await handle.status()) for handle in handles]

    assert ["waiting", "completed"] == in_loop(run())


def test_an_event_with_an_id_that_was_sent_before_is_dropped(tmp_path: Path) -> None:
    @satay.workflow
    async def listens() -> list[Any]:
        first = await satay.wait_for_event("e")
        try:
            return [first, await satay.wait_for_event("e", timeout=5.0)]
        except EventTimeoutError:
            return [first, "no other"]

    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(listens, run_id="r")
            sent = [await app.send_event("e", 1, run_id="r", event_id="m1")]
            sent.append(await app.send_event("e", 2, run_id="r", event_id="m1"))
            await settle(app)
            sent.append(await app.send_event("e", 3, run_id="r", event_id="m1"))
            await app.clock.advance(10.0)
            fork = await app.fork("r", fork_point_seq=2)
            sent.append(await app.send_event("e", 4, run_id=fork.run_id, event_id="m1"))
            sent.append(await app.send_event("e", 5, run_id=fork.run_id, event_id="m1"))
            await app.clock.advance(10.0)
            return [sent, await handle.result(), await fork.result()]

    assert [[True, False, False, True, False], [1, "no other"], [4, "no other"]] == in_loop(run())


def test_an_event_to_nobody_in_particular_is_sent_once_an_id(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handles = [await app.start(hear, 5.0, run_id=name) for name in "ab"]
            await settle(app)
            sent = [await app.send_event("word", number, event_id="once") for number in range(2)]
            await app.clock.advance(10.0)
            return [sent, *[(await handle.result())[0] for handle in handles]]

    assert [[True, False], "heard", "silence"] == in_loop(run())


def test_an_event_for_a_run_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(RunNotFoundError, match="'nobody'"):
                await app.send_event("e", run_id="nobody")

    in_loop(run())


def test_an_event_that_is_there_wins_over_a_timeout_that_is_due(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock) as app:
            await app.start(hear, 60.0, run_id="r")
            await settle(app)
        async with open_app(tmp_path, clock=clock) as app:
            await (await app._ready()).journal.post("r", "word", None, None, '"in time"', clock.now())
        clock.jump_to(clock.now() + 3_600_000_000)
        async with open_app(tmp_path, clock=clock) as app:
            return list(await app.resume("r").result())

    assert ["heard", "in time"] == in_loop(run())


@pytest.mark.parametrize("max_resident", [0, 4096])
def test_an_event_of_the_same_moment_wins_over_the_timeout(max_resident: int, tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock(), max_resident=max_resident) as app:
            handle = await app.start(hear, 60.0, run_id="r")
            await app.clock.advance(59.0)
            journal = (await app._ready()).journal
            await journal.post("r", "word", None, None, '"in time"', app.clock.now())
            await app.clock.advance(1.0)
            return await handle.result()

    assert ["heard", "in time"] == in_loop(run())


@pytest.mark.parametrize("timeout", [0, -1, 0.0])
def test_a_timeout_of_nothing_takes_what_is_there_and_does_not_wait(timeout: float, tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            nothing = await app.start(hear, timeout).result()
            await app.send_event("word", "there")
            return [nothing[0], await app.start(hear, timeout).result()]

    assert ["silence", ["heard", "there"]] == in_loop(run())


def test_a_timeout_is_recorded_as_such_and_told_from_an_empty_event(tmp_path: Path) -> None:
    @satay.workflow
    async def listens() -> list[Any]:
        heard: list[Any] = []
        for number in range(3):
            try:
                heard.append([await satay.wait_for_event("wake", key=str(number), timeout=20.0)])
            except EventTimeoutError as error:
                heard.append(str(error))
            await note(number)
        seen.append(heard)
        await satay.sleep(1.0)
        return heard

    async def run() -> tuple[list[Any], list[str]]:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock) as app:
            await app.start(listens, run_id="r")
            await app.clock.advance(30.0)
            await abandon(app)
        async with open_app(tmp_path, clock=clock) as app:
            await app.resume("r")
            await app.send_event("wake", None, key="1", run_id="r")
            await settle(app)
            await app.clock.advance(30.0)
            await abandon(app)
        async with open_app(tmp_path, clock=clock) as app:
            handle = await app.resume("r")
            await clock.advance(5.0)
            return await handle.result(), await types_of(app, "r")

    heard, types = in_loop(run())

    assert ["no event 'wake' with key '0' came before the wait timed out", [None]] == heard[:2]
    assert "'2'" in heard[2]
    assert 2 == types.count(EntryType.EVENT_WAIT_TIMED_OUT)
    assert all(heard == again for again in seen)
    assert [0, 1, 2] == ran


def test_an_event_after_the_timeout_is_for_the_next_wait(tmp_path: Path) -> None:
    @satay.workflow
    async def listens() -> list[Any]:
        try:
            first = await satay.wait_for_event("e", timeout=20.0)
        except EventTimeoutError:
            first = "silence"
        await satay.sleep(60.0)
        return [first, await satay.wait_for_event("e")]

    async def run() -> list[Any]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(listens, run_id="r")
            await app.clock.advance(30.0)
            await app.send_event("e", "late", run_id="r")
            await app.clock.advance(60.0)
            return await handle.result()

    assert ["silence", "late"] == in_loop(run())


def test_a_payload_that_does_not_fit_the_waiters_type_is_an_error_there_and_again(tmp_path: Path) -> None:
    @satay.workflow
    async def listens() -> str:
        try:
            await satay.wait_for_event(Approval)
        except DecodeError as error:
            seen.append(str(error))
            await satay.sleep(1.0)
            return str(error)
        return "fits"

    async def run() -> str:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
        async with open_app(tmp_path, faults=faults) as app:
            await app.start(listens, run_id="r")
            await app.send_event("Approval", {"by": 7})
            await faults.crashed
        async with open_app(tmp_path) as app:
            return str(await app.resume("r").result())

    assert "the payload of event 'Approval'" in in_loop(run())
    assert 2 == len(seen)
    assert seen[0] == seen[1]


def test_a_payload_that_cannot_be_written_is_refused_where_it_is_sent(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(EncodeError, match="the payload of event 'e'"):
                await app.send_event("e", {"x": object()})
            with pytest.raises(UsageError, match="its own payload"):
                await app.send_event(Approval("a", True), "payload")

    in_loop(run())


@pytest.mark.parametrize("bad", ["", "a\x00b", "x" * 201, "a\nb", "satay.cancel"])
def test_a_name_or_key_that_cannot_be_used_is_refused_on_both_sides(bad: str, tmp_path: Path) -> None:
    @satay.workflow
    async def waits(by: str) -> str:
        try:
            await satay.wait_for_event(bad if by == "name" else "e", key=bad if by == "key" else None)
        except InvalidValueError as error:
            return str(error)
        return "waited"

    async def run() -> None:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            with pytest.raises(InvalidValueError, match="cannot be used"):
                await app.send_event(bad)
            assert "cannot be used" in await app.start(waits, "name").result()
            if bad != "satay.cancel":
                with pytest.raises(InvalidValueError, match="cannot be used"):
                    await app.send_event("e", key=bad)
                with pytest.raises(InvalidValueError, match="cannot be used"):
                    await app.send_event("e", event_id=bad)
                assert "cannot be used" in await app.start(waits, "key").result()

    in_loop(run())


@pytest.mark.parametrize("key", ["../x", "a/b", "C:\\x", "%2e%2e%2f", "'; drop table runs --", "\U0001f600", "<b>"])
def test_odd_but_printable_keys_are_just_keys(key: str, tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            handle = await app.start(approve, key)
            await app.send_event(Approval("ada", True), key=key)
            return await handle.result()

    assert ["Approval", "ada", True] == in_loop(run())


@satay.workflow(name="primitives.collects")
async def collects(count: int) -> list[int]:
    got: list[int] = []
    while len(got) < count:
        try:
            if len(got) % 2:
                got.append(await satay.wait_for_event("n", timeout=3.0))
            else:
                async with asyncio.timeout(2.0):
                    got.append(await satay.wait_for_event("n"))
        except TimeoutError:
            continue
    return got


@pytest.mark.parametrize("max_resident", [0, 1, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_no_event_is_lost_or_delivered_twice_between_timeouts_and_crashes(
    max_resident: int, seed: int, tmp_path: Path
) -> None:
    chance = Random(seed)

    async def run() -> list[int]:
        clock = ManualClock()
        sent = 0
        for _ in range(4):
            async with open_app(tmp_path, clock=clock, max_resident=max_resident) as app:
                handle = await app.start(collects, 24, run_id="r")
                await app.start(waits_for_ever)
                for _ in range(6):
                    await app.send_event("n", sent, run_id="r")
                    sent += 1
                    for _ in range(chance.randrange(20)):
                        await asyncio.sleep(0)
                    if chance.random() < 0.8:
                        await clock.advance(chance.choice([0.0, 1.0, 2.0, 3.0, 5.0]))
                if chance.random() < 0.5:
                    await abandon(app)
        async with open_app(tmp_path, clock=clock, max_resident=max_resident) as app:
            handle = app.resume("r")
            await handle
            await clock.advance(60.0)
            return list(await handle.result())

    assert list(range(24)) == in_loop(run())


@satay.workflow(name="primitives.waits_for_ever")
async def waits_for_ever() -> None:
    await satay.wait_for_event("never")


def test_side_work_before_a_wait_runs_once_in_a_task(tmp_path: Path) -> None:
    @satay.workflow
    async def announces() -> str:
        seen.append("drove")
        await note("told")
        return str(await satay.wait_for_event("go"))

    async def run() -> str:
        for _ in range(3):
            async with open_app(tmp_path, clock=ManualClock()) as app:
                await app.start(announces, run_id="r")
                await settle(app)
        async with open_app(tmp_path) as app:
            await app.send_event("go", "on")
            return await app.start(announces, run_id="r").result()

    assert "on" == in_loop(run())
    assert ["told"] == ran
    assert 4 == len(seen)


def test_five_equal_waits_and_five_events_are_all_done(tmp_path: Path) -> None:
    @satay.workflow
    async def five() -> list[int]:
        return list(await asyncio.gather(*(satay.wait_for_event("e") for _ in range(5))))

    async def run() -> list[int]:
        async with open_app(tmp_path) as app:
            handle = await app.start(five, run_id="r")
            await asyncio.gather(*(app.send_event("e", number, run_id="r") for number in range(5)))
            return await handle.result()

    assert list(range(5)) == sorted(in_loop(run()))


# --- map and gather ---------------------------------------------------------------------------------------------------


@satay.task(name="primitives.double")
async def double(number: int) -> int:
    ran.append(number)
    await pause(10.0 - number)
    return number * 2


def test_map_returns_results_in_the_order_of_the_items(tmp_path: Path) -> None:
    @satay.workflow
    async def maps() -> list[list[int]]:
        return [await satay.map(double, range(5)), await satay.map(double, iter([3, 1])), await satay.map(double, [])]

    assert [[0, 2, 4, 6, 8], [6, 2], []] == in_loop(result_of(tmp_path, maps))


@pytest.mark.parametrize("thing", [lambda number: number, 7])
def test_what_is_no_task_cannot_be_mapped_and_what_is_no_workflow_is_no_child(thing: Any, tmp_path: Path) -> None:
    @satay.workflow
    async def misuses() -> None:
        with pytest.raises(UsageError, match=r"satay\.map\(\) was given .*decorated with @satay\.task"):
            await satay.map(thing, [1])
        with pytest.raises(UsageError, match=r"satay\.start_child\(\) was given .*decorated with @satay\.workflow"):
            satay.start_child(thing, 1)

    in_loop(result_of(tmp_path, misuses))


def test_map_keeps_to_its_concurrency(tmp_path: Path) -> None:
    running: set[int] = set()

    @satay.task
    async def busy(number: int) -> int:
        running.add(number)
        most = len(running)
        await pause(5.0)
        running.discard(number)
        return most

    @satay.workflow
    async def maps() -> int:
        return max(await satay.map(busy, range(10), concurrency=3))

    assert 3 == in_loop(result_of(tmp_path, maps))


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "2"])
def test_a_concurrency_that_no_call_could_honour_is_refused(concurrency: Any, tmp_path: Path) -> None:
    @satay.workflow
    async def maps() -> None:
        await satay.map(double, [1], concurrency=concurrency)

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            with pytest.raises(ValueError, match="concurrency"):
                await app.start(maps, run_id="r").result()
            return await types_of(app, "r")

    assert EntryType.TASK_SCHEDULED not in in_loop(run())


def test_a_failed_item_cancels_the_others_and_raises(tmp_path: Path) -> None:
    @satay.task
    async def picky(number: int) -> int:
        await pause(float(number))
        if number == 2:
            raise ValueError(number)
        ran.append(number)
        return number

    @satay.workflow
    async def maps() -> None:
        await satay.map(picky, range(1, 6))

    with pytest.raises(ValueError, match="2"):
        in_loop(result_of(tmp_path, maps))

    assert [1] == ran


def test_errors_take_the_place_of_results_where_that_is_asked_for(tmp_path: Path) -> None:
    @satay.task
    async def picky(number: int) -> int:
        if number == 2:
            raise ValueError(number)
        return number

    @satay.workflow
    async def maps() -> list[str]:
        results = await satay.map(picky, range(4), return_exceptions=True)
        assert_type(results, list[int | BaseException])
        results += await satay.gather(picky(2), picky(3), return_exceptions=True)
        return [repr(result) for result in results]

    expected = ["0", "1", "ValueError(2)", "3", "ValueError(2)", "3"]
    assert expected == in_loop(result_of(tmp_path, maps))


@dataclass
class Item:
    id: Any


def _key_of(item: Item) -> Any:
    if isinstance(item.id, Exception):
        raise item.id
    return item.id


def test_keys_that_cannot_be_used_are_all_listed_before_any_item_is_scheduled(tmp_path: Path) -> None:
    bad = [KeyError("gone"), None, "", 7, "twice", "k" * 10_000, "a\nb"]

    @satay.workflow
    async def maps() -> str:
        items = [Item("good"), Item("twice"), *map(Item, bad)]
        try:
            await satay.map(note, items, key=_key_of)
        except DuplicateKeyError as error:
            return str(error)
        return "mapped"

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path) as app:
            return await app.start(maps, run_id="r").result(), await types_of(app, "r")

    message, types = in_loop(run())

    for position in range(2, 9):
        assert f"item {position}:" in message, message
    assert "item 0:" not in message
    assert len(message) < 2_000
    assert EntryType.TASK_SCHEDULED not in types


def test_a_key_that_was_used_by_an_earlier_map_is_refused(tmp_path: Path) -> None:
    @satay.workflow
    async def maps() -> list[Any]:
        first = await satay.map(note, [1, 2], key=str)
        try:
            await satay.map(note, [11, 12], key=lambda item: str(item - 10))
        except DuplicateKeyError as error:
            return [first, list(error.keys)]
        return []

    assert [[1, 2], ["1", "2"]] == in_loop(result_of(tmp_path, maps))
    assert [1, 2] == ran


def test_calls_in_a_loop_have_an_identity_each(tmp_path: Path) -> None:
    @satay.workflow
    async def loops() -> list[Any]:
        results = [await note(number) for number in range(3)]
        seen.append(results)
        await satay.sleep(1.0)
        return results

    assert [0, 1, 2] == in_loop(drive_twice(tmp_path, loops))
    assert [0, 1, 2] == ran


def test_what_is_gathered_keeps_its_types(tmp_path: Path) -> None:
    @satay.task
    async def text() -> str:
        return "a"

    @satay.task
    def number() -> int:
        return 1

    @satay.workflow
    async def inner() -> float:
        return 0.5

    @satay.workflow
    async def gathers() -> list[Any]:
        three = await satay.gather(text(), number(), inner())
        assert_type(three, tuple[str, int, float])
        pair = await asyncio.gather(text(), number())
        assert_type(pair, tuple[str, int])
        return [*three, *pair]

    assert ["a", 1, 0.5, "a", 1] == in_loop(result_of(tmp_path, gathers))


def test_gather_leaves_nothing_behind_when_one_fails(tmp_path: Path) -> None:
    @satay.task
    async def fails() -> None:
        raise ValueError("one")

    async def lingers() -> None:
        try:
            await satay.sleep(500.0)
        finally:
            await note("tidied")

    @satay.workflow
    async def gathers() -> list[Any]:
        try:
            await satay.gather(fails(), lingers())
        except ValueError as error:
            return [str(error), list(ran)]
        return []

    assert ["one", ["tidied"]] == in_loop(result_of(tmp_path, gathers))


# --- children ---------------------------------------------------------------------------------------------------------


@satay.workflow(name="primitives.child")
async def child_of(number: int) -> list[int]:
    return [number, await note(number)]


@satay.workflow(name="primitives.failing_child")
async def failing_child(kind: str) -> None:
    if kind == "known":
        raise LookupError("gone")

    class Local(Exception):  # noqa: N818
        pass

    raise Local("why")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (lambda: [note(1)], r"unpack what a list holds, satay\.gather\(\*calls\)"),
        (lambda: note, "call it, with its arguments"),
        (lambda: child_of, "call it, with its arguments"),
        (lambda: satay.start_child(child_of, 1), r"hand over its child\.result\(\)"),
    ],
)
def test_what_cannot_be_gathered_is_refused_with_what_was_meant(
    given: Callable[[], Any], hint: str, tmp_path: Path
) -> None:
    @satay.workflow
    async def gathers() -> None:
        things = given()
        with pytest.raises(InvalidValueError, match=f"which cannot be awaited; {hint}"):
            await satay.gather(things)
        for call in things if isinstance(things, list) else []:
            call.close()

    in_loop(result_of(tmp_path, gathers))


def test_a_child_is_a_run_of_its_own_that_knows_its_parent(tmp_path: Path) -> None:
    @satay.workflow
    async def parent() -> list[Any]:
        child = satay.start_child(child_of, 7)
        result = await child.result()
        seen.append(result)
        await satay.sleep(1.0)
        return [child.run_id, result]

    async def run() -> tuple[list[Any], satay.RunSummary, list[str]]:
        faults = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED, count=2)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(parent, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            result = await app.resume("r").result()
            return result, await app.run(result[0]), await types_of(app, "r")

    (child_id, result), summary, types = in_loop(run())

    assert [7, 7] == result
    assert ("r", "primitives.child", satay.RunStatus.COMPLETED) == (
        summary.parent_id,
        summary.workflow,
        summary.status,
    )
    assert child_id.startswith("r/")
    assert 1 == types.count(EntryType.CHILD_WORKFLOW_SCHEDULED)
    assert [7] == ran
    assert [[7, 7], [7, 7]] == seen


def test_children_are_named_by_ordinal_or_key(tmp_path: Path) -> None:
    @satay.workflow
    async def parent() -> list[Any]:
        children = [satay.start_child(child_of, number) for number in range(2)]
        children.append(satay.start_child(child_of, 5, key="five"))
        try:
            satay.start_child(child_of, 6, key="five")
        except DuplicateKeyError as error:
            seen.append(list(error.keys))
        return [[child.run_id, (await child.result())[0]] for child in children]

    result = in_loop(result_of(tmp_path, parent))

    assert [0, 1, 5] == [number for _, number in result]
    assert 3 == len({run_id for run_id, _ in result})
    assert [["five"]] == seen


def test_the_error_of_a_child_is_an_error_in_its_parent(tmp_path: Path) -> None:
    @satay.workflow
    async def parent(kind: str) -> list[str]:
        child = satay.start_child(failing_child, kind)
        try:
            await child.result()
        except LookupError as error:
            return [type(error).__name__, str(error)]
        except ChildWorkflowError as error:
            return [type(error).__name__, str(error), error.run_id == child.run_id and error.error_type]  # type: ignore[list-item]
        return []

    async def run() -> list[list[str]]:
        async with open_app(tmp_path) as app:
            return [await app.start(parent, kind).result() for kind in ("known", "unknown")]

    known, unknown = in_loop(run())

    assert ["LookupError", "gone"] == known
    assert "ChildWorkflowError" == unknown[0]
    assert "child workflow 'primitives.failing_child'" in unknown[1]
    assert unknown[2].endswith("Local")


def test_a_child_can_be_cancelled_by_its_parent(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.sleeper")
    async def sleeper() -> None:
        await satay.sleep(500.0)

    @satay.workflow
    async def parent() -> str:
        child = satay.start_child(sleeper)
        await satay.sleep(5.0)
        child.cancel()
        try:
            await child.result()
        except asyncio.CancelledError:
            return "cancelled it"
        return "waited"

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path) as app:
            result = await app.start(parent, run_id="r").result()
            await settle(app)
            return result, [str(run.status) for run in await app.runs(workflow="primitives.sleeper")]

    assert ("cancelled it", ["cancelled"]) == in_loop(run())


def test_a_fork_before_a_child_starts_a_child_of_its_own(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.parent_with_key")
    async def parent(number: int) -> list[int]:
        return await satay.start_child(child_of, number, key="k").result()

    async def run() -> tuple[list[int], list[str | None]]:
        async with open_app(tmp_path) as app:
            await app.start(parent, 3, run_id="src").result()
            fork = await app.fork("src", fork_point_seq=1, workflow_input=10, run_id="f")
            return await fork.result(), [run.parent_id for run in await app.runs(workflow=child_of)]

    result, parents = in_loop(run())

    assert [10, 10] == result
    assert ["f", "src"] == parents


def test_a_parent_that_is_not_in_memory_hears_of_its_child(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.slow_child")
    async def slow_child(seconds: float) -> float:
        await satay.sleep(seconds)
        return seconds

    @satay.workflow
    async def parent() -> list[float]:
        children = [satay.start_child(slow_child, seconds) for seconds in (5.0, 3.0, 1.0)]
        return [await child.result() for child in children]

    assert [5.0, 3.0, 1.0] == in_loop(result_of(tmp_path, parent, max_resident=0))


def test_a_child_whose_id_is_taken_by_another_run_is_an_error_in_its_parent(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.robbed")
    async def robbed() -> list[Any]:
        try:
            await satay.start_child(child_of, 1).result()
        except RunConflictError as error:
            seen.append(str(error))
            return [str(error), await satay.start_child(child_of, 2, key="own").result()]
        return []

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            await app.start(child_of, 9, run_id="r/primitives.child:0").result()
            return await app.start(robbed, run_id="r").result()

    message, result = in_loop(run())

    assert "another run already; give the call a key" in message
    assert [2, 2] == result


# --- going on as a new run --------------------------------------------------------------------------------------------


@satay.workflow(name="primitives.countdown")
async def countdown(left: int) -> str:
    await note(left)
    if left:
        satay.continue_as_new(left - 1)
    return "done"


def test_an_endless_run_goes_on_as_a_new_one(tmp_path: Path) -> None:
    async def run() -> tuple[str, list[str], str]:
        async with open_app(tmp_path) as app:
            handle = app.start(countdown, 3, run_id="r")
            result = await handle.result()
            return result, [run.run_id for run in await app.runs()], await app.resume("r").result()

    result, runs, again = in_loop(run())

    assert "done" == result == again
    assert ["r~4", "r~3", "r~2", "r"] == runs
    assert [3, 2, 1, 0] == ran


@satay.task(name="primitives.refused")
async def refused(value: object) -> object:
    return value


@satay.task(name="primitives.same", effect="pure")
async def same(number: int) -> int:
    return number


def test_any_number_of_outcomes_that_arrive_within_one_turn_is_delivered(tmp_path: Path) -> None:
    @satay.workflow
    async def refuses(count: int) -> int:
        calls = [refused(object()) for _ in range(count)]
        return len(await asyncio.gather(*calls, return_exceptions=True))

    @satay.workflow
    async def steps_beside(count: int) -> int:
        async def step() -> None:
            for _ in range(count * 10):
                await asyncio.sleep(0)

        results = await asyncio.gather(step(), *[same(number) for number in range(count)])
        return len(results)

    async def run() -> list[int]:
        async with open_app(tmp_path) as app:
            return [await app.start(refuses, 1_000).result(), await app.start(steps_beside, 1_000).result()]

    assert [1_000, 1_001] == in_loop(run())


def test_calls_of_different_kinds_with_one_name_are_counted_apart(tmp_path: Path) -> None:
    @satay.task(name="timer")
    async def timer() -> str:
        return "task"

    @satay.workflow
    async def mixes() -> None:
        await timer()
        await satay.sleep(1.0)
        await timer()
        await satay.sleep(1.0)

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            handle = app.start(mixes, run_id="r")
            await handle.result()
            return [event.data["ordinal"] async for event in app.events("r") if "ordinal" in event.data]

    assert [0, 0, 1, 1] == in_loop(run())


def test_a_branch_of_a_task_group_can_continue_the_run_as_new(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.goes_on_in_group")
    async def goes_on(count: int) -> str:
        async def branch() -> None:
            await satay.sleep(1.0)
            if count:
                satay.continue_as_new(count - 1)

        async with asyncio.TaskGroup() as group:
            group.create_task(branch())
            group.create_task(satay.sleep(2.0))
        return "done"

    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(goes_on, 2, run_id="r").result()

    assert "done" == in_loop(run())


def test_a_parent_follows_a_child_that_goes_on_as_new_runs(tmp_path: Path) -> None:
    @satay.workflow
    async def parent() -> str:
        return await satay.start_child(countdown, 3).result()

    async def run(append: int) -> tuple[Any, list[str]]:
        place = tmp_path / str(append)
        faults = Faults().crash_after(append=append)
        async with open_app(place, faults=faults) as app:
            waiting: asyncio.Future[Any] = asyncio.ensure_future(app.start(parent, run_id="r").result())
            await asyncio.wait([waiting, faults.crashed], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await asyncio.wait([waiting])
        async with open_app(place, recover=True) as app:
            result = await app.start(parent, run_id="r").result()
            await settle(app)
            return result, [str(run.status) for run in await app.runs()]

    for append in range(1, 16):
        ran.clear()
        assert ("done", ["completed"] * 5) == in_loop(run(append)), append
        assert {3, 2, 1, 0} == set(ran), append


def test_a_parent_that_is_cancelled_takes_the_run_with_it_in_which_its_child_goes_on(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.endless")
    async def endless(count: int) -> None:
        await satay.sleep(10.0)
        satay.continue_as_new(count + 1)

    @satay.workflow
    async def parent() -> None:
        await satay.start_child(endless, 0).result()

    async def run() -> dict[str, str]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            handle = await app.start(parent, run_id="r")
            await app.clock.advance(35.0)
            await handle.cancel()
            await settle(app)
            await app.clock.advance(35.0)
            return {run.run_id: str(run.status) for run in await app.runs()}

    statuses = in_loop(run())

    assert 5 == len(statuses)
    assert "cancelled" == statuses["r"]
    assert "cancelled" == statuses["r/primitives.endless:0~4"]


def test_events_that_were_not_taken_go_over_to_the_new_run(tmp_path: Path) -> None:
    @satay.workflow
    async def listens(count: int) -> list[Any]:
        first = await satay.wait_for_event("e")
        if count:
            satay.continue_as_new(count - 1)
        return [first]

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            handle = await app.start(listens, 1, run_id="r")
            await asyncio.gather(*(app.send_event("e", number, run_id="r") for number in (1, 2)))
            return await handle.result()

    assert [2] == in_loop(run())


# --- what is refused --------------------------------------------------------------------------------------------------


def test_primitives_have_a_meaning_in_bodies_only() -> None:
    async def outside() -> None:
        calls: list[Awaitable[Any]] = [
            satay.sleep(1.0),
            satay.wait_for_event("e"),
            satay.map(note, [1]),
            satay.gather(),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="outside a workflow"):
                await call
        plain: dict[str, Callable[[], Any]] = {
            "now": satay.now,
            "random": satay.random,
            "uuid4": satay.uuid4,
            "start_child": lambda: satay.start_child(child_of, 1),
            "intervention": satay.intervention,
        }
        for name, use in plain.items():
            with pytest.raises(UsageError, match=rf"satay\.{name}\(\) was called outside a workflow"):
                use()

    asyncio.run(outside())


def test_the_app_is_out_of_a_bodys_reach(tmp_path: Path) -> None:
    @satay.workflow
    async def reaches() -> str:
        try:
            satay.start(child_of, 1)
        except UsageError as error:
            return str(error)
        return "reached"

    assert "start_child" in in_loop(result_of(tmp_path, reaches))


@pytest.mark.parametrize("what", ["thread", "executor", "socket", "subprocess"])
def test_a_body_that_reaches_outside_is_told_where_that_belongs(what: str, tmp_path: Path) -> None:
    @satay.workflow(name="primitives.reaches_out")
    async def reaches_out() -> None:
        loop = asyncio.get_running_loop()
        match what:
            case "thread":
                await asyncio.to_thread(json.dumps, {})
            case "executor":
                await loop.run_in_executor(None, json.dumps, {})
            case "socket":
                await asyncio.open_connection("localhost", 1)
            case _:
                await asyncio.create_subprocess_exec("true")

    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(WorkflowSideEffectError, match=r"@satay\.task"):
                await app.start(reaches_out).result()

    in_loop(run())


def test_a_body_that_waits_for_what_can_never_come_fails_and_names_the_line(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.stuck")
    async def stuck() -> None:
        await note("before")
        await asyncio.Event().wait()  # this line

    async def run() -> tuple[str, satay.RunStatus]:
        async with open_app(tmp_path) as app:
            handle = app.start(stuck, run_id="r")
            with pytest.raises(WorkflowStuckError) as caught:
                await handle.result()
            return str(caught.value), await handle.status()

    message, status = in_loop(run())

    line = Path(__file__).read_text().splitlines().index("        await asyncio.Event().wait()  # this line") + 1
    assert "primitives.stuck" in message
    assert f"test_primitives.py:{line}" in message
    assert satay.RunStatus.FAILED == status


@pytest.mark.slow
def test_a_body_that_never_waits_at_all_is_stuck_too(tmp_path: Path) -> None:
    @satay.workflow
    async def spins() -> None:
        while True:  # noqa: ASYNC110  # that it polls is the point
            await asyncio.sleep(0)

    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(WorkflowStuckError, match="without waiting"):
                await app.start(spins).result()

    in_loop(run())


@pytest.mark.slow
def test_a_body_that_never_waits_again_is_stuck_after_a_crash_too(tmp_path: Path) -> None:
    @satay.workflow
    async def spins_later() -> None:
        await satay.sleep(1.0)
        while True:  # noqa: ASYNC110  # that it polls is the point
            await asyncio.sleep(0)

    async def run() -> None:
        faults = Faults().crash_after(type=EntryType.TIMER_CREATED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(spins_later, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            with pytest.raises(WorkflowStuckError, match="without waiting"):
                await app.resume("r").result()

    in_loop(run())


def test_two_branches_that_wait_for_each_other_are_stuck(tmp_path: Path) -> None:
    @satay.workflow
    async def deadlock() -> None:
        one, other = asyncio.Lock(), asyncio.Lock()

        async def take(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await satay.sleep(1.0)
                async with second:
                    pass

        await asyncio.gather(take(one, other), take(other, one))

    async def run() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(WorkflowStuckError):
                await app.start(deadlock).result()

    in_loop(run())


def test_the_journal_shows_what_a_wait_waits_for(tmp_path: Path) -> None:
    async def run() -> satay.RunEvent:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(hear, 60.0, run_id="r")
            await settle(app)
            return (await entries_of(app, "r"))[1]

    entry = in_loop(run())

    assert EntryType.EVENT_WAIT_STARTED == entry.type
    assert ("word", 0, None) == (entry.data["event"], entry.data["ordinal"], entry.data["match"])


def test_a_parent_tells_what_keeps_its_child_from_going_on(tmp_path: Path) -> None:
    order = ["first"]

    @satay.workflow(name="primitives.changing")
    async def changing() -> str:
        if order[0] == "first":
            await note("a")
        await satay.sleep(1.0)
        await note("b")
        return "done"

    @satay.workflow(name="primitives.waits_for_changing")
    async def waits() -> str:
        return await satay.start_child(changing).result()

    async def run() -> None:
        faults = Faults().crash_after(type=EntryType.TIMER_CREATED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(waits, run_id="r")
            await faults.crashed
        order[0] = "second"
        async with open_app(tmp_path) as app:
            with pytest.raises(NondeterminismError, match=r"journal recorded 'primitives\.note'"):
                await app.start(waits, run_id="r").result()

    in_loop(run())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("busy_seconds", [0.0, 5.0])
def test_a_run_that_was_busy_when_its_child_stopped_tells_of_it_once_it_waits(
    busy_seconds: float, depth: int, tmp_path: Path
) -> None:
    order = ["first"]

    @satay.task(name="primitives.busy")
    async def busy() -> None:
        await pause(busy_seconds)

    @satay.workflow(name="primitives.stops")
    async def stops() -> None:
        await (note("a") if order[0] == "first" else satay.sleep(1.0))
        await satay.sleep(1.0)

    @satay.workflow(name="primitives.busy_parent")
    async def parent(depth: int) -> None:
        child = satay.start_child(stops) if depth == 1 else satay.start_child(parent, depth - 1)
        await asyncio.gather(child.result(), busy())

    async def run() -> None:
        faults = Faults().crash_after(type=EntryType.TIMER_CREATED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(parent, depth, run_id="r")
            await faults.crashed
        order[0] = "second"
        async with open_app(tmp_path, clock=ManualClock()) as app:
            waiting = asyncio.ensure_future(app.start(parent, depth, run_id="r").result())
            await settle(app)
            await app.clock.advance(busy_seconds)
            with pytest.raises(NondeterminismError, match=r"journal recorded 'primitives\.note'"):
                await waiting

    in_loop(run())


def test_a_call_that_cannot_be_made_fails_the_same_in_a_fork_at_every_cut(tmp_path: Path) -> None:
    @satay.workflow(name="primitives.taker")
    async def taker(value: object) -> None: ...

    @satay.workflow(name="primitives.gives_badly")
    async def gives_badly() -> list[str]:
        found = []
        for call in (satay.start_child(taker, object()).result(), refused(object())):
            try:
                await call
            except satay.SatayError as error:
                found.append(type(error).__name__)
        return found

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            source = app.start(gives_badly, run_id="r")
            results = [await source.result()]
            last = len([event async for event in app.events("r")])
            for seq in range(1, last):
                results.append(await (await app.fork("r", fork_point_seq=seq)).result())
            return results

    results = in_loop(run())

    assert [["EncodeError", "EncodeError"]] * len(results) == results
