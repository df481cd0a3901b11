"""A body that runs again from its journal takes the same steps and sees the same values, or stops before it acts."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

import satay
from satay.errors import EventTimeoutError, JournalCorruptError, NondeterminismError, UnsupportedEntryError
from satay.model import Entry, EntryType
from satay.recorder import Recorder
from satay.replay import facts
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app, pause, settle
from tests.driving import claim, drive_twice, entries_of, in_loop, types_of
from tests.patience import patience

ROOT = Path(__file__).parents[1]

ran: list[str] = []
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    seen.clear()


def see(value: Any) -> None:
    """Note what a body sees, once a drive."""
    seen.append(value)


@satay.task(name="replay.step")
async def step(name: str) -> str:
    ran.append(name)
    return name


@satay.task(name="replay.other")
async def other(name: str) -> str:
    ran.append(f"other {name}")
    return name


@satay.task(name="replay.hop")
async def hop(name: str, seconds: float) -> str:
    ran.append(name)
    await pause(seconds)
    return name


# --- the same order ---------------------------------------------------------------------------------------------------


def test_chains_that_overtake_each_other_keep_their_own_results(tmp_path: Path) -> None:
    async def chain(name: str, seconds: float) -> list[str]:
        first = await hop(name, seconds)
        return [first, await hop(first + "2", 0.0)]

    @satay.workflow
    async def chains() -> list[list[str]]:
        both = await asyncio.gather(chain("slow", 80.0), chain("fast", 10.0))
        see(both)
        await satay.sleep(1.0)
        return list(both)

    result = in_loop(drive_twice(tmp_path, chains))

    assert [["slow", "slow2"], ["fast", "fast2"]] == result
    assert [result, result] == seen
    assert ["slow", "fast", "fast2", "slow2"] == ran


@pytest.mark.parametrize("when", [asyncio.FIRST_COMPLETED, asyncio.ALL_COMPLETED])
def test_what_wait_returns_is_the_same_again(when: str, tmp_path: Path) -> None:
    @satay.workflow
    async def waits() -> None:
        calls = {asyncio.ensure_future(hop(str(number), float(5 - number))) for number in range(5)}
        done, pending = await asyncio.wait(calls, return_when=when)
        see([[task.result() for task in done], len(pending)])
        for task in pending:
            task.cancel()
        await satay.sleep(1.0)

    in_loop(drive_twice(tmp_path, waits))

    assert seen[0] == seen[1]
    assert 2 == len(seen)


def test_as_completed_yields_in_the_recorded_order(tmp_path: Path) -> None:
    @satay.workflow
    async def completes() -> list[str]:
        order = [await each for each in asyncio.as_completed([hop(name, 9.0 - int(name)) for name in "12345"])]
        see(order)
        await satay.sleep(1.0)
        return order

    assert list("54321") == in_loop(drive_twice(tmp_path, completes))
    assert [list("54321"), list("54321")] == seen
    assert 5 == len(ran)


_OTHER_HASHES = """
import asyncio, sys
import satay
from satay.testing import Faults, open_app

@satay.task
async def number(n: int) -> int:
    return n

@satay.task
async def name(n: str) -> str:
    return n

@satay.workflow
async def sets() -> list:
    done, _ = await asyncio.wait({asyncio.ensure_future(number(n)) for n in range(8)})
    order = [task.result() for task in done]
    later = [await each for each in asyncio.as_completed([name(str(n)) for n in order])]
    return [order, later]

async def begin(place, run_id):
    faults = Faults().crash_before(type="WorkflowCompleted")
    async with open_app(place, faults=faults) as app:
        app.start(sets, run_id=run_id)
        await faults.crashed

async def resume(place, run_ids):
    async with open_app(place) as app:
        for run_id in run_ids:
            print(await app.resume(run_id).result())

place, which, *run_ids = sys.argv[1:]
asyncio.run(begin(place, run_ids[0]) if which == "begin" else resume(place, run_ids))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_resume_under_another_hash_seed_follows_the_same_schedule(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_OTHER_HASHES, encoding="utf-8")

    def drive(seed: int, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-W", "error", str(program), str(tmp_path / "data"), *arguments]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=patience(60.0)
        ).stdout

    run_ids = [f"r{seed}" for seed in range(20)]
    for seed, run_id in enumerate(run_ids):
        drive(seed, "begin", run_id)

    order = list(range(8))
    assert f"{[order, [str(n) for n in order]]}\n" * 20 == drive(4242, "resume", *run_ids)


def test_the_winner_of_an_event_against_a_timer_is_fixed_in_the_journal(tmp_path: Path) -> None:
    @satay.workflow
    async def races() -> list[Any]:
        event = asyncio.ensure_future(satay.wait_for_event("go"))
        timer = asyncio.ensure_future(satay.sleep(30.0))
        await asyncio.wait([event, timer], return_when=asyncio.FIRST_COMPLETED)
        winner = "event" if event.done() else "timer"
        see(winner)
        event.cancel()
        timer.cancel()
        return [winner, await satay.wait_for_event("second")]

    async def run() -> tuple[Any, list[str]]:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(races, run_id="r")
            await app.clock.advance(10.0)
            await app.send_event("go", run_id="r")
            await app.clock.advance(40.0)
            await abandon(app)
        async with open_app(tmp_path) as app:
            handle = app.resume("r")
            await app.send_event("second", 2, run_id="r")
            return await handle.result(), await types_of(app, "r")

    result, types = in_loop(run())

    assert ["event", 2] == result
    assert ["event", "event"] == seen
    assert EntryType.TIMER_FIRED not in types


def test_the_loser_of_a_race_that_the_timer_won_stays_the_loser(tmp_path: Path) -> None:
    @satay.workflow
    async def races() -> list[Any]:
        try:
            async with asyncio.timeout(30.0):
                first = await satay.wait_for_event("go")
        except TimeoutError:
            first = "timer"
        see(first)
        return [first, await satay.wait_for_event("second")]

    async def run() -> Any:
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await app.start(races, run_id="r")
            await app.clock.advance(40.0)
            await app.send_event("go", "too late", run_id="r")
            await abandon(app)
        async with open_app(tmp_path) as app:
            handle = app.resume("r")
            await app.send_event("second", 2, run_id="r")
            return await handle.result()

    assert ["timer", 2] == in_loop(run())
    assert ["timer", "timer"] == seen


def test_completions_and_events_reach_the_body_in_journal_order(tmp_path: Path) -> None:
    @satay.workflow
    async def listens() -> list[str]:
        states: list[str] = []
        busy = False

        async def work() -> None:
            nonlocal busy
            for seconds in (10.0, 20.0):
                busy = True
                await hop("work", seconds)
                busy = False
                await satay.sleep(5.0)

        async def listen() -> None:
            for _ in range(4):
                await satay.wait_for_event("tick")
                states.append("busy" if busy else "idle")
                if not busy:
                    await step("answer")

        await satay.gather(work(), listen())
        see(states)
        await satay.sleep(1.0)
        return states

    async def run() -> tuple[list[str], list[str], list[str]]:
        async with open_app(tmp_path, clock=ManualClock(), faults=(faults := Faults())) as app:
            faults.crash_before(type=EntryType.WORKFLOW_COMPLETED)
            await app.start(listens, run_id="r")
            for seconds in (5.0, 7.0, 5.0, 20.0):
                await app.clock.advance(seconds)
                await app.send_event("tick", run_id="r")
                await app.clock.until_idle()
            await app.clock.advance(60.0)
            await faults.crashed
        async with open_app(tmp_path) as app:
            result = await app.resume("r").result()
            return result, await types_of(app, "r"), ran.copy()

    result, _, done = in_loop(run())

    assert ["busy", "idle", "busy", "idle"] == result
    assert [result, result] == seen
    assert ["work", "answer", "work", "answer"] == done


def test_retries_of_one_call_do_not_shift_another_ones_identity(tmp_path: Path) -> None:
    @satay.task(retries=3, backoff=satay.Backoff(first=7.0, jitter=True))
    async def flaky(number: int) -> int:
        ran.append(str(number))
        if ran.count(str(number)) <= number % 3:
            raise ValueError(number)
        return number * 10

    @satay.workflow
    async def side_by_side() -> list[int]:
        results = await asyncio.gather(*[flaky(number) for number in range(5)])
        see(list(results))
        return list(results)

    async def run(append: int) -> list[int]:
        place = tmp_path / str(append)
        async with open_app(place, faults=Faults().crash_before(append=append), seed=append) as app:
            handle = app.start(side_by_side, run_id="r")
            result = asyncio.ensure_future(_quietly(handle.result()))
            await asyncio.wait([app.faults.crashed, result], return_when=asyncio.FIRST_COMPLETED)
        async with open_app(place, seed=append) as app:
            return await app.start(side_by_side, run_id="r").result()

    for append in range(1, 14):
        ran.clear()
        assert [0, 10, 20, 30, 40] == in_loop(run(append)), append


async def _quietly(result: Awaitable[Any]) -> Any:
    try:
        return await result
    except satay.SatayError as error:
        return error


def test_another_task_inside_a_task_is_a_plain_call(tmp_path: Path) -> None:
    @satay.task
    async def inner(number: int) -> int:
        ran.append("inner")
        return number

    @satay.task
    async def outer() -> int:
        return await inner(1) + 1

    @satay.task
    def sync_inner(number: int) -> int:
        return number

    @satay.task
    def sync_outer() -> int:
        # Here it is a plain call, although the type of a task says that a workflow has to await it.
        return cast(int, sync_inner(1)) + 1

    @satay.workflow
    async def nests() -> list[int]:
        see(both := [await outer(), await sync_outer()])
        await satay.sleep(1.0)
        return both

    async def run() -> tuple[list[int], list[str]]:
        result = await drive_twice(tmp_path, nests)
        async with open_app(tmp_path) as app:
            return result, await types_of(app, "r")

    result, types = in_loop(run())

    assert [2, 2] == result
    assert ["inner"] == ran
    assert 2 == types.count(EntryType.TASK_SCHEDULED)


def test_nothing_follows_the_terminal_entry_and_leftover_calls_are_cancelled(tmp_path: Path) -> None:
    @satay.task
    async def slow() -> None:
        ran.append("began")
        try:
            await pause(1000.0)
        except asyncio.CancelledError:
            ran.append("cancelled")
            raise

    @satay.workflow
    async def leaves_behind() -> str:
        left = asyncio.create_task(slow())
        await asyncio.sleep(0)
        await satay.sleep(1.0)
        del left
        return "done"

    async def run() -> tuple[str, list[str]]:
        async with open_app(tmp_path) as app:
            result = await app.start(leaves_behind, run_id="r").result()
            await settle(app)
            return result, await types_of(app, "r")

    result, types = in_loop(run())

    assert "done" == result
    assert [EntryType.CALL_CANCELLED, EntryType.WORKFLOW_COMPLETED] == types[-2:]
    assert ["began", "cancelled"] == ran


def test_a_call_that_nobody_awaits_when_the_body_returns_is_not_lost_silently(tmp_path: Path) -> None:
    @satay.workflow
    async def leaves_at_once() -> str:
        asyncio.create_task(step("left"))  # noqa: RUF006
        await asyncio.sleep(0)
        return "done"

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            assert "done" == await app.start(leaves_at_once, run_id="r").result()
            return await types_of(app, "r")

    types = in_loop(run())

    assert EntryType.WORKFLOW_COMPLETED == types[-1]
    assert types.count(EntryType.TASK_SCHEDULED) == types.count(EntryType.CALL_CANCELLED)
    assert [] == ran


# --- the schedule check -----------------------------------------------------------------------------------------------

Body = Callable[[], Awaitable[Any]]


def deploy(body: Body) -> satay.Workflow[[], Any]:
    """The same workflow with another body, as after an edit."""

    @satay.workflow(name="replay.edited")
    async def edited() -> Any:
        return await body()

    return edited


async def a_then_b() -> str:
    return await step("a") + await other("b")


async def b_then_a() -> str:
    return await other("b") + await step("a")


async def a_then_sleep() -> str:
    first = await step("a")
    await satay.sleep(1.0)
    return first


async def a_then_wait() -> str:
    return await step("a") + str(await satay.wait_for_event("never"))


async def a_then_child() -> str:
    first = await step("a")
    return first + str(await satay.start_child(leaf).result())


@satay.workflow(name="replay.leaf")
async def leaf() -> str:
    return await step("leaf")


async def a_and_b() -> str:
    return "".join(await asyncio.gather(step("a"), other("b")))


async def a_only() -> str:
    return await step("a")


def then_rest(body: Body) -> Body:
    """The body with a timer after it, so that a crash at the end leaves all outcomes of the body recorded."""

    async def rests() -> Any:
        result = await body()
        await satay.sleep(1.0)
        return result

    return rests


async def a_then_a() -> str:
    return await step("a") + await step("b")


async def a_then_b_then_a() -> str:
    return await step("a") + await other("b") + await step("c")


async def crash_and_edit(
    place: Path, before: Body, after: Body, fault: Faults | None = None, **options: Any
) -> tuple[Any, list[str]]:
    """Drive a body until it is done, crash, and resume with another one: its result or error, and what that recorded.

    The outcome of the last call is lost in the crash.
    """
    faults = fault or Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
    async with open_app(place, faults=faults) as app:
        app.start(deploy(before), run_id="r")
        await faults.crashed
    ran.clear()
    deploy(after)
    async with open_app(place, **options) as app:
        count = len(await types_of(app, "r"))
        result = await _quietly(app.resume("r").result())
        return result, (await types_of(app, "r"))[count:]


@pytest.mark.parametrize(
    ("after", "position", "recorded", "issued"),
    [
        pytest.param(b_then_a, 0, "'replay.step'", "'replay.other'", id="another order"),
        pytest.param(a_then_a, 1, "'replay.other'", "'replay.step'", id="another task"),
        pytest.param(a_then_sleep, 1, "'replay.other'", "a timer", id="a timer instead"),
        pytest.param(a_then_wait, 1, "'replay.other'", "a wait for 'never'", id="a wait instead"),
        pytest.param(a_then_child, 1, "'replay.other'", "child workflow 'replay.leaf'", id="a child instead"),
    ],
)
def test_another_schedule_is_refused_before_anything_is_executed_or_recorded(
    after: Body, position: int, recorded: str, issued: str, tmp_path: Path
) -> None:
    error, recorded_then = in_loop(crash_and_edit(tmp_path, a_then_b, after))

    assert isinstance(error, NondeterminismError)
    assert f"durable call {position} diverged: journal recorded {recorded}, code issued {issued}" in str(error)
    assert ("r", position, recorded, issued) == (error.run_id, error.position, error.recorded, error.issued)
    assert error.source_line is not None
    assert Path(__file__).name in error.source_line
    assert [] == ran
    assert [] == recorded_then


def test_code_that_stops_early_is_refused(tmp_path: Path) -> None:
    error, recorded_then = in_loop(crash_and_edit(tmp_path, a_then_b, a_only))

    assert isinstance(error, NondeterminismError)
    assert "durable call 1 diverged: journal recorded 'replay.other', code ended" in str(error)
    assert error.issued is None
    assert [] == recorded_then


def test_code_that_asks_for_more_in_a_recorded_turn_is_refused(tmp_path: Path) -> None:
    error, recorded_then = in_loop(crash_and_edit(tmp_path, a_then_b, a_and_b))

    assert isinstance(error, NondeterminismError)
    assert "durable call 1 diverged: journal recorded" in str(error)
    assert "code issued 'replay.other'" in str(error)
    assert [] == ran
    assert [] == recorded_then


def test_code_that_asks_for_less_in_a_recorded_turn_is_refused(tmp_path: Path) -> None:
    error, _ = in_loop(crash_and_edit(tmp_path, a_and_b, a_then_b))

    assert isinstance(error, NondeterminismError)
    assert "durable call 1 diverged: journal recorded 'replay.other', code issued nothing" in str(error)


def test_code_that_waits_for_nothing_at_all_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    async def hangs() -> None:
        await step("a")
        await asyncio.get_running_loop().create_future()

    error, _ = in_loop(crash_and_edit(tmp_path, a_then_b, hangs))

    assert isinstance(error, NondeterminismError)
    assert "code issued nothing" in str(error)


def test_an_error_of_the_edited_body_before_the_recorded_end_is_a_divergence(tmp_path: Path) -> None:
    async def breaks() -> None:
        raise ValueError("edited")

    error, recorded_then = in_loop(crash_and_edit(tmp_path, a_then_b, breaks))

    assert isinstance(error, NondeterminismError)
    assert "code ended with ValueError: edited" in str(error)
    assert isinstance(error.__cause__, ValueError)
    assert [] == recorded_then


def test_calls_after_the_recorded_ones_are_made(tmp_path: Path) -> None:
    async def then_c() -> str:
        first = await then_rest(a_then_b)()
        return str(first) + await step("c")

    result, recorded_then = in_loop(crash_and_edit(tmp_path, then_rest(a_then_b), then_c))

    assert "abc" == result
    assert ["c"] == ran
    assert EntryType.WORKFLOW_COMPLETED == recorded_then[-1]


@pytest.mark.parametrize(("count", "is_refused"), [(2, True), (3, False), (4, False)])
def test_a_loop_with_another_count_is_refused_where_it_falls_short(
    count: int, is_refused: bool, tmp_path: Path
) -> None:
    def loop(times: int) -> Body:
        async def body() -> str:
            return "".join([await step(str(number)) for number in range(times)])

        return body

    result, _ = in_loop(crash_and_edit(tmp_path, loop(3), loop(count)))

    assert is_refused == isinstance(result, NondeterminismError)
    assert is_refused or "0123"[:count] == result


def test_other_arguments_are_no_divergence(tmp_path: Path) -> None:
    async def x_then_y() -> str:
        return await step("x") + await other("y")

    result, _ = in_loop(crash_and_edit(tmp_path, a_then_b, x_then_y))

    assert "ab" == result


def test_keys_and_ordinals_are_compared(tmp_path: Path) -> None:
    def mapped(keys: str) -> Body:
        async def body() -> list[str]:
            return await satay.map(step, list(keys), key=str)

        return body

    error, _ = in_loop(crash_and_edit(tmp_path, mapped("ab"), mapped("ac")))

    assert isinstance(error, NondeterminismError)
    assert "journal recorded 'replay.step[b]', code issued 'replay.step[c]'" in str(error)


@pytest.mark.parametrize("before", ["timer", "event", "child"])
def test_all_kinds_of_calls_take_part_in_the_check(before: str, tmp_path: Path) -> None:
    async def body() -> None:
        match before:
            case "timer":
                await satay.sleep(1.0)
            case "event":
                with pytest.raises(EventTimeoutError):
                    await satay.wait_for_event("go", timeout=1.0)
            case _:
                await satay.start_child(leaf).result()

    error, _ = in_loop(crash_and_edit(tmp_path, body, a_only))

    assert isinstance(error, NondeterminismError)
    assert (0, "'replay.step'") == (error.position, error.issued)


def test_a_run_that_was_refused_goes_on_under_corrected_code(tmp_path: Path) -> None:
    async def run() -> tuple[Any, Any, Any, list[str]]:
        refused, _ = await crash_and_edit(tmp_path, a_then_b, b_then_a)
        async with open_app(tmp_path) as app:
            again = await _quietly(app.resume("r").result())
            deploy(a_then_b_then_a)
            return refused, again, await app.resume("r").result(), await types_of(app, "r")

    refused, again, result, types = in_loop(run())

    assert isinstance(refused, NondeterminismError)
    assert str(refused) == str(again)
    assert "abc" == result
    assert 1 == types.count(EntryType.WORKFLOW_COMPLETED)


def test_attaching_to_a_run_that_diverged_says_so(tmp_path: Path) -> None:
    async def run() -> Any:
        await crash_and_edit(tmp_path, a_then_b, b_then_a)
        async with open_app(tmp_path) as app:
            return await _quietly(app.start(deploy(b_then_a), run_id="r").result())

    assert isinstance(in_loop(run()), NondeterminismError)


def test_the_schedule_check_survives_a_call_whose_outcome_was_not_recorded(tmp_path: Path) -> None:
    fault = Faults().crash_after(type=EntryType.TASK_SCHEDULED, count=2)

    error, recorded_then = in_loop(crash_and_edit(tmp_path, a_then_b, a_then_a, fault))

    assert isinstance(error, NondeterminismError)
    assert [] == recorded_then


@pytest.mark.parametrize("policy", ["warn", "off"])
def test_other_policies_drive_on_with_what_was_recorded(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit = crash_and_edit(tmp_path, then_rest(a_then_b), then_rest(b_then_a), nondeterminism=policy)
    result, recorded_then = in_loop(edit)

    assert "ba" == result
    assert [] == ran
    assert EntryType.WORKFLOW_COMPLETED == recorded_then[-1]
    assert (policy == "warn") == ("run.diverged" in caplog.text)


def test_other_policies_make_the_calls_that_were_never_recorded(tmp_path: Path) -> None:
    async def other_then_a() -> str:
        return await other("x") + await step("a") + await step("c")

    async def a_then_a_again() -> str:
        return await step("a") + await step("c")

    edit = crash_and_edit(tmp_path, then_rest(a_then_a_again), then_rest(other_then_a), nondeterminism="off")
    result, _ = in_loop(edit)

    assert "xac" == result
    assert ["other x"] == ran


@pytest.mark.parametrize("policy", ["warn", "off"])
def test_other_policies_go_on_with_calls_that_were_in_flight(policy: str, tmp_path: Path) -> None:
    async def new_then_both() -> str:
        new = await step("new")
        return new + "".join(await satay.gather(other("b"), hop("c", 0.0)))

    async def both() -> str:
        return "".join(await satay.gather(other("b"), hop("c", 0.0)))

    async def run() -> tuple[Any, list[str]]:
        faults = Faults().crash_after(type=EntryType.TASK_SCHEDULED)
        result, _ = await crash_and_edit(tmp_path, both, new_then_both, faults, nondeterminism=policy)
        async with open_app(tmp_path) as app:
            return result, await types_of(app, "r")

    result, types = in_loop(run())

    assert "newbc" == result
    assert ["b", "c", "new"] == sorted(name.removeprefix("other ") for name in ran)
    assert 3 == types.count(EntryType.TASK_SCHEDULED) == types.count(EntryType.TASK_COMPLETED)


def test_what_a_loose_policy_recorded_is_followed_strictly_from_then_on_or_refused(tmp_path: Path) -> None:
    async def run() -> tuple[Any, Any]:
        fault = Faults().crash_before(type=EntryType.WORKFLOW_COMPLETED)
        first, _ = await crash_and_edit(tmp_path, then_rest(a_then_b), then_rest(b_then_a), fault, nondeterminism="off")
        async with open_app(tmp_path) as app:
            return first, await app.resume("r").result()

    assert ("ba", "ba") == in_loop(run())


def test_a_run_that_ends_early_under_a_loose_policy_completes(tmp_path: Path) -> None:
    result, _ = in_loop(crash_and_edit(tmp_path, a_then_b, a_only, nondeterminism="warn"))

    assert "a" == result


@pytest.mark.parametrize(
    ("argument", "variable", "is_refused"),
    [(None, None, True), (None, "off", False), ("strict", "off", True), ("off", "strict", False)],
)
def test_the_policy_is_the_argument_then_the_environment_then_strict(
    argument: Any, variable: str | None, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SATAY_NONDETERMINISM", raising=False)
    if variable is not None:
        monkeypatch.setenv("SATAY_NONDETERMINISM", variable)

    async def run() -> Any:
        await crash_and_edit(tmp_path, a_then_b, b_then_a)
        async with satay.run_app(data_dir=tmp_path, nondeterminism=argument) as app:
            return await _quietly(app.resume("r").result())

    assert is_refused == isinstance(in_loop(run()), NondeterminismError)


def test_a_policy_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nondeterminism"):
        satay.run_app(data_dir=tmp_path, nondeterminism="lenient")  # type: ignore[arg-type]  # what a user can do wrong


# --- informational and unknown entries --------------------------------------------------------------------------------


@satay.workflow(name="replay.waits_in_between")
async def waits_in_between() -> str:
    first = await step("a")
    await satay.wait_for_event("go")
    return first + await step("b")


async def insert_entry(app: AppUnderTest, type: str, facts: str) -> None:
    """Add an entry to the run "r" as another version of satay might have written it."""
    journal = (await app._ready()).journal
    claimed = await claim(journal, "r", "another version", app.clock.now())
    assert claimed is not None
    last = await journal.last("r")
    assert last is not None
    recorder = Recorder(claimed.lease, app.clock, last)
    recorder.record(type, facts)
    await journal.append(recorder.turn(None, None))
    await journal.release(claimed.lease, claimed.before)


async def resume_after_entry(place: Path, type: str, facts: str = '"about":"something"') -> Any:
    async with open_app(place, clock=ManualClock()) as app:
        await app.start(waits_in_between, run_id="r")
        await settle(app)
    async with open_app(place) as app:
        await insert_entry(app, type, facts)
        handle = app.resume("r")
        await app.send_event("go", run_id="r")
        return await _quietly(handle.result())


def test_unknown_informational_entries_are_passed_over(tmp_path: Path) -> None:
    assert "ab" == in_loop(resume_after_entry(tmp_path, "NotedSomethingNew"))


def test_an_unknown_entry_that_changes_meaning_stops_the_drive(tmp_path: Path) -> None:
    error = in_loop(resume_after_entry(tmp_path, "TaskTeleported"))

    assert isinstance(error, UnsupportedEntryError)
    assert (
        "run 'r' cannot be read: entry 5 (TaskTeleported) is of a type that this version of satay does not know and "
        "must not ignore; it does not say which version it needs; drive the run with the version that wrote it, or a "
        "later one"
    ) == str(error)
    assert ("r", 5, "TaskTeleported", None) == (error.run_id, error.seq, error.type, error.needs)
    assert ["a"] == ran


def test_an_unknown_entry_that_says_which_version_it_needs_is_refused_with_that_version(tmp_path: Path) -> None:
    error = in_loop(resume_after_entry(tmp_path, "TaskTeleported", '"call":2,"needs":"0.3"'))

    assert isinstance(error, UnsupportedEntryError)
    assert "it needs satay 0.3 or later; update satay, and drive the run again" in str(error)
    assert "0.3" == error.needs
    assert ["a"] == ran


# --- logging ----------------------------------------------------------------------------------------------------------


def test_a_line_is_logged_once_however_often_the_body_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @satay.task
    async def loud() -> None:
        satay.get_logger().info("in the task")

    @satay.workflow(name="replay.logs")
    async def logs() -> None:
        logger = satay.get_logger()
        logger.info("one")
        await loud()
        logger.warning("two", about="this")
        await satay.wait_for_event("go")
        logger.info("three")

    async def run() -> None:
        for _ in range(3):
            async with open_app(tmp_path, clock=ManualClock()) as app:
                await app.start(logs, run_id="r")
                await settle(app)
        async with open_app(tmp_path) as app:
            await app.send_event("go", run_id="r")
            await app.start(logs, run_id="r").result()

    in_loop(run())
    lines = capsys.readouterr().out

    for text in ("one", "in the task", "two", "three"):
        assert 1 == sum(text in line for line in lines.splitlines()), text
    two = next(line for line in lines.splitlines() if "two" in line)
    assert "run_id" in two
    assert "replay.logs" in two
    assert "about" in two


def test_the_logger_honours_how_structlog_is_configured(tmp_path: Path) -> None:
    @satay.workflow
    async def logs() -> None:
        satay.get_logger().info("said", number=1)

    before = structlog.get_config()
    with structlog.testing.capture_logs() as captured:

        async def run() -> None:
            async with open_app(tmp_path) as app:
                await app.start(logs, run_id="r").result()

        in_loop(run())

    assert before == structlog.get_config()
    said = [line for line in captured if line["event"] == "said"]
    assert [("r", 1, "info")] == [(line["run_id"], line["number"], line["log_level"]) for line in said]


def test_the_standard_librarys_logging_works_in_a_body(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @satay.workflow
    async def logs() -> str:
        logging.getLogger("user").warning("by the standard library")
        return "done"

    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(logs).result()

    assert "done" == in_loop(run())
    assert "by the standard library" in caplog.text


# --- time, chance and ids ---------------------------------------------------------------------------------------------


def test_time_chance_and_ids_are_the_same_again(tmp_path: Path) -> None:
    @satay.workflow
    async def tells() -> None:
        facts: list[Any] = [satay.now(), satay.random().random(), satay.uuid4(), asyncio.get_running_loop().time()]
        await satay.sleep(3600.0)
        facts += [satay.now(), satay.random().randint(1, 10**9), satay.uuid4(), asyncio.get_running_loop().time()]
        see(facts)

    in_loop(drive_twice(tmp_path, tells))

    first, second = seen
    assert first == second
    assert 3600.0 == (first[4] - first[0]).total_seconds()
    assert 3600.0 == pytest.approx(first[7] - first[3])
    assert first[2] != first[6]
    assert 4 == first[2].version
    assert "UTC" == first[0].tzname()


def test_two_runs_have_chance_of_their_own(tmp_path: Path) -> None:
    @satay.workflow
    async def draws() -> str:
        return str(satay.uuid4())

    async def run() -> tuple[str, str]:
        async with open_app(tmp_path) as app:
            return await app.start(draws).result(), await app.start(draws).result()

    one, two = in_loop(run())

    assert one != two


def test_a_fork_inherits_the_seed_and_the_moment_of_its_source(tmp_path: Path) -> None:
    @satay.workflow
    async def draws() -> list[str]:
        begun = satay.now()
        drawn = str(satay.uuid4())
        await step("a")
        return [begun.isoformat(), drawn, str(satay.uuid4())]

    async def run() -> tuple[list[str], list[str]]:
        async with open_app(tmp_path) as app:
            source = await app.start(draws, run_id="src").result()
            fork = await app.fork("src", before_task="replay.step")
            return source, await fork.result()

    source, fork = in_loop(run())

    assert source == fork


# --- crashes ----------------------------------------------------------------------------------------------------------


@satay.workflow(name="replay.all_kinds_child")
async def all_kinds_child(name: str) -> str:
    await satay.sleep(1.0)
    return await step(f"child {name}")


@satay.task(name="replay.fork_off")
async def fork_off(source: str) -> str:
    fork_id = f"fork-{satay.task_context().idempotency_key[:8]}"
    return (await satay.fork(source, before_task="replay.step", run_id=fork_id)).run_id


@satay.workflow(name="replay.all_kinds")
async def all_kinds() -> list[Any]:
    first = await step("a")
    await satay.sleep(60.0)
    event = await satay.wait_for_event("go", timeout=3600.0)
    mapped = await satay.map(step, ["x", "y"], key=str)
    child = await satay.start_child(all_kinds_child, first).result()
    fork = await fork_off("src")
    return [first, event, mapped, child, fork]


async def drive_all_kinds(place: Path, faults: Faults | None, clock: ManualClock) -> Any:
    async with open_app(place, faults=faults, clock=clock, recover=True) as app:
        crashed = app.faults.crashed
        work = asyncio.ensure_future(_quietly(_drive_all_kinds(app)))
        await asyncio.wait([work, crashed], return_when=asyncio.FIRST_COMPLETED)
        if not app.faults.is_crashed:
            result = await work
            await settle(app)
        if not app.faults.is_crashed:
            return result, await _all_entries(app)
    work.cancel()
    return None, {}


async def _drive_all_kinds(app: AppUnderTest) -> Any:
    assert "leaf" == await app.start(leaf, run_id="src").result()
    handle = app.start(all_kinds, run_id="r")
    await handle
    await app.send_event("go", "now", run_id="r", event_id="once")
    return await handle.result()


async def _all_entries(app: AppUnderTest) -> dict[str, list[satay.RunEvent]]:
    return {run.run_id: await entries_of(app, run.run_id) for run in await app.runs()}


@pytest.mark.slow
def test_a_crash_before_or_after_any_append_loses_nothing_and_ends_once(tmp_path: Path) -> None:
    async def run(faults: Faults | None, place: Path) -> tuple[Any, dict[str, list[satay.RunEvent]], bool]:
        clock = ManualClock(autojump=True)
        result, entries = await drive_all_kinds(place, faults, clock)
        if faults is not None and faults.is_crashed:
            result, entries = await drive_all_kinds(place, None, clock)
        return result, entries, faults is not None and faults.is_crashed

    expected, entries, _ = in_loop(run(None, tmp_path / "undisturbed"))
    assert ["a", "now", ["x", "y"], "child a"] == expected[:4]
    assert 4 == len(entries)
    append, is_crashed = 0, True

    while is_crashed:
        append += 1
        for place, faults in (
            ("before", Faults().crash_before(append=append)),
            ("after", Faults().crash_after(append=append)),
        ):
            result, entries, is_crashed = in_loop(run(faults, tmp_path / f"{place} {append}"))
            assert expected == result, (place, append)
            assert 4 == len(entries), (place, append)
            for run_id, journal in entries.items():
                ends = [entry.type for entry in journal if entry.type.startswith("WorkflowCompleted")]
                assert 1 == len(ends), (place, append, run_id)
                assert list(range(1, len(journal) + 1)) == [entry.seq for entry in journal]
            timers = [entry for entry in entries["r"] if entry.type == EntryType.TIMER_CREATED]
            assert 1 == len(timers), (place, append)

    assert append > 15


def test_a_timer_keeps_the_moment_it_was_created_for(tmp_path: Path) -> None:
    @satay.workflow
    async def naps() -> str:
        begun = satay.now()
        await satay.sleep(100.0)
        return str((satay.now() - begun).total_seconds())

    async def run(fault: Faults) -> tuple[str, list[str]]:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock, faults=fault) as app:
            app.start(naps, run_id="r")
            await fault.crashed
        await clock.advance(40.0)
        async with open_app(tmp_path, clock=clock) as app:
            handle = await app.resume("r")
            await clock.advance(59.0)
            assert satay.RunStatus.WAITING == await handle.status()
            await clock.advance(1.0)
            return await handle.result(), await types_of(app, "r")

    result, types = in_loop(run(Faults().crash_after(type=EntryType.TIMER_CREATED)))

    assert "100.0" == result
    assert 1 == types.count(EntryType.TIMER_CREATED)


def test_a_timer_that_came_due_while_no_process_ran_fires_at_once(tmp_path: Path) -> None:
    @satay.workflow
    async def naps() -> float:
        begun = satay.now()
        await satay.sleep(100.0)
        return (satay.now() - begun).total_seconds()

    async def run() -> float:
        clock = ManualClock()
        async with open_app(tmp_path, clock=clock) as app:
            await app.start(naps, run_id="r")
            await settle(app)
        clock.jump_to(clock.now() + 500_000_000)
        async with open_app(tmp_path, clock=clock) as app:
            return float(await app.resume("r").result())

    assert 500.0 == in_loop(run())


def test_a_failure_that_the_body_caught_is_caught_again(tmp_path: Path) -> None:
    @satay.task
    async def fails_once() -> str:
        ran.append("fails_once")
        if len(ran) == 1:
            raise LookupError("the first time")
        return "the second time"

    @satay.workflow
    async def catches() -> str:
        try:
            value = await fails_once()
        except LookupError as error:
            value = f"caught {type(error).__name__} {error}"
        see(value)
        await satay.sleep(1.0)
        return value

    assert "caught LookupError the first time" == in_loop(drive_twice(tmp_path, catches))
    assert seen[0] == seen[1]
    assert ["fails_once"] == ran


def test_a_completed_run_answers_from_its_journal_and_never_runs_again(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            results = [await app.start(deploy(a_then_b), run_id="r").result()]
        deploy(b_then_a)
        async with open_app(tmp_path) as app:
            results.append(await app.resume("r").result())
            results.append(await app.start(deploy(b_then_a), run_id="r").result())
            return [*results, await types_of(app, "r")]

    *results, types = in_loop(run())

    assert ["ab"] * 3 == results
    assert ["a", "other b"] == ran
    assert EntryType.WORKFLOW_RESUMED not in types


def test_a_failed_run_answers_with_the_same_error_for_ever(tmp_path: Path) -> None:
    @satay.workflow
    async def fails() -> None:
        await step("a")
        raise LookupError("gone", 7)

    async def run() -> list[Any]:
        errors = []
        for _ in range(2):
            async with open_app(tmp_path) as app:
                with pytest.raises(LookupError) as caught:
                    await app.start(fails, run_id="r").result()
                errors.append(caught.value.args)
        return errors

    assert [("gone", 7), ("gone", 7)] == in_loop(run())
    assert ["a"] == ran


def test_a_fact_that_an_entry_lacks_is_told_with_the_entry() -> None:
    entry = Entry(7, "TimerCreated", 0, '{"timer":"wake"}', b"")

    assert "wake" == facts(entry)["timer"]
    assert facts(entry).get("due") is None
    with pytest.raises(JournalCorruptError, match=r"entry 7 \(TimerCreated\) does not say its 'due'"):
        facts(entry)["due"]
