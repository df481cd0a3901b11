"""Workflows of every shape, on which the invariants are checked.

Each is written so that its result, and the set of its calls and outcomes, is the same however often the process dies:
what takes time takes it on a durable timer, and only losers of a race take longer than others.
"""

import asyncio
import contextlib
import json
import math
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import satay
from satay.clock import to_datetime
from satay.errors import (
    ApprovalNotFoundError,
    ApprovalTimeoutError,
    EventTimeoutError,
    RunEndedError,
    RunExistsError,
    SatayError,
)
from satay.testing import AppUnderTest, Faults, ManualClock, open_app, pause, settle

RUN_ID: Final = "r"

NEVER_SECONDS: Final = 1e6
"""How often the journal is polled: what is woken by polling only would hang here, and so be found."""

began: list[tuple[str, str, int | str | None]] = []
"""The attempts whose body began, in this process: run, task, and ordinal or key."""


def begin() -> None:
    context = satay.task_context()
    began.append((context.run_id, context.task, context.ordinal if context.key is None else context.key))


@satay.task(name="corpus.note")
async def note(text: str) -> str:
    begin()
    return text


@satay.task(name="corpus.add")
async def add(one: int, other: int) -> int:
    begin()
    return one + other


@satay.task(name="corpus.double")
def double(number: int) -> int:
    begin()
    return number * 2


@satay.task(name="corpus.linger")
async def linger(name: str) -> str:
    begin()
    await pause(math.inf)
    return name


@satay.task(name="corpus.break_down")
async def break_down(message: str) -> NoReturn:
    begin()
    raise ValueError(message)


@satay.task(name="corpus.shaky", retries=6, backoff=30.0)
async def shaky(failures: int) -> str:
    begin()
    if satay.task_context().attempt <= failures:
        raise ConnectionError("try again")
    return "came through"


@satay.task(name="corpus.pure", effect="pure")
async def pure(number: int) -> int:
    begin()
    return number + 1


@satay.workflow(name="corpus.sequence")
async def sequence(start: int) -> list[int]:
    found = [start]
    for _ in range(3):
        found.append(await add(found[-1], 1))
    return found


@satay.workflow(name="corpus.nothing")
async def nothing() -> None:
    return None


@satay.workflow(name="corpus.branches")
async def branches() -> list[int]:
    async def branch(number: int) -> int:
        number = await add(number, 10)
        number = await pure(number)
        return await double(number)

    return list(await asyncio.gather(*(branch(number) for number in range(4))))


@satay.workflow(name="corpus.race")
async def race() -> str:
    quick = asyncio.create_task(note("quick"))
    slow = asyncio.create_task(linger("slow"))
    done, pending = await asyncio.wait({quick, slow}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    return await note("".join(task.result() for task in done))


@satay.workflow(name="corpus.race_of_timers")
async def race_of_timers() -> list[str]:
    async def after(seconds: float, name: str) -> str:
        await satay.sleep(seconds)
        return await note(name)

    tasks = [asyncio.create_task(after(seconds, f"{seconds}")) for seconds in (30.0, 10.0, 20.0)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    first = [task.result() for task in done]
    rest = await asyncio.gather(*pending)
    return first + sorted(rest)


@satay.workflow(name="corpus.as_completed")
async def as_completed() -> list[str]:
    async def after(seconds: float) -> str:
        await satay.sleep(seconds)
        return f"{seconds}"

    return [await note(await each) for each in asyncio.as_completed([after(9.0), after(3.0), after(6.0)])]


@satay.workflow(name="corpus.mapped")
async def mapped() -> list[list[int]]:
    keyed = await satay.map(double, [3, 1, 2, 5], key=str, concurrency=2)
    plain = await satay.map(pure, keyed)
    return [keyed, plain]


@satay.workflow(name="corpus.map_with_failures")
async def map_with_failures() -> list[str]:
    found: list[Any] = await satay.map(break_down, ["a", "b"], return_exceptions=True)
    return [repr(error) for error in found]


@satay.workflow(name="corpus.leaf")
async def leaf(number: int) -> int:
    await satay.sleep(5)
    return await add(number, 100)


@satay.workflow(name="corpus.twig")
async def twig(number: int) -> int:
    return await satay.start_child(leaf, number).result() + await add(number, 0)


@satay.workflow(name="corpus.failing_twig")
async def failing_twig(number: int) -> int:
    return await break_down(f"twig {number}")


@satay.workflow(name="corpus.children")
async def children() -> list[Any]:
    nested = satay.start_child(twig, 1)
    keyed = satay.start_child(leaf, 2, key="two")
    failing = satay.start_child(failing_twig, 3)
    found: list[Any] = [await nested.result(), await keyed.result()]
    try:
        found.append(await failing.result())
    except ValueError as error:
        found.append(str(error))
    return found


@satay.workflow(name="corpus.hopeless_child")
async def hopeless_child() -> str:
    try:
        return await linger("child")
    finally:
        await note("child cleaned up")


@satay.workflow(name="corpus.cancelled_child")
async def cancelled_child() -> str:
    child = satay.start_child(hopeless_child)
    await satay.sleep(1)
    child.cancel()
    try:
        return await child.result()
    except asyncio.CancelledError:
        await satay.sleep(60)
        return await note("cancelled the child")


@satay.workflow(name="corpus.timers")
async def timers() -> list[float]:
    first = satay.now()
    moments: list[float] = []
    for seconds in (86_400.0 * 14, 0.0, 1.5):
        await satay.sleep(seconds)
        moments.append((satay.now() - first).total_seconds())
    return moments


@satay.workflow(name="corpus.timeouts")
async def timeouts() -> list[str]:
    found: list[str] = []
    try:
        async with asyncio.timeout(60):
            await linger("too long")
    except TimeoutError:
        found.append(await note("timed out"))
    async with asyncio.timeout(60):
        found.append(await note("in time"))
    try:
        await asyncio.wait_for(satay.sleep(600), 5)
    except TimeoutError:
        found.append(await note("timed out again"))
    return found


@satay.workflow(name="corpus.events")
async def events() -> list[Any]:
    found = [await satay.wait_for_event("corpus.go", key="a"), await note("between")]
    try:
        await satay.wait_for_event("corpus.never", timeout=3_600)
    except EventTimeoutError:
        found.append("nobody came")
    found += await asyncio.gather(
        satay.wait_for_event("corpus.go", key="b", timeout=86_400), satay.wait_for_event("corpus.go", key="c")
    )
    return found


async def send_events(app: AppUnderTest, run_id: str) -> None:
    for key in "abc":
        await app.send_event("corpus.go", {"key": key}, key=key, run_id=run_id, event_id=key)


@satay.workflow(name="corpus.approvals")
async def approvals() -> list[Any]:
    found: list[Any] = []
    try:
        await satay.require_approval("never", timeout=3_600)
    except ApprovalTimeoutError:
        found.append(await note("nobody decided"))
    asked = (satay.require_approval("one", {"number": 1}), satay.require_approval("two"))
    for decision in await asyncio.gather(*asked):
        found.append([decision.key, decision.approved, decision.by, await note(decision.value)])
    return [*found, (await satay.require_approval("one", {"number": 1})).approved]


async def decide_when_asked(app: AppUnderTest, run_id: str) -> None:
    await settle(app)
    for key in ("one", "two"):
        with contextlib.suppress(ApprovalNotFoundError, RunEndedError):
            await app.decide_approval(run_id, key, approved=key == "one", by="Mia", value=key)


@satay.workflow(name="corpus.caught")
async def caught() -> list[str]:
    found: list[str] = []
    for name in ("one", "two"):
        try:
            await break_down(name)
        except ValueError as error:
            found.append(await note(f"caught {error}"))
    return found


@satay.workflow(name="corpus.failing")
async def failing() -> str:
    await note("before")
    return await break_down("for good")


@satay.workflow(name="corpus.retrying")
async def retrying() -> list[str]:
    return [await shaky(2), await shaky(0)]


@satay.workflow(name="corpus.cancelled")
async def cancelled() -> str:
    try:
        await note("before")
        return await linger("until cancelled")
    finally:
        await note("cleaning up")
        await satay.sleep(10)
        await note("cleaned up")


async def cancel_when_waiting(app: AppUnderTest, run_id: str) -> None:
    await settle(app)
    await app.cancel(run_id)


@satay.workflow(name="corpus.group_of_failures")
async def group_of_failures() -> None:
    async def fail_after(seconds: float, message: str) -> None:
        await satay.sleep(seconds)
        await break_down(message)

    async with asyncio.TaskGroup() as group:
        group.create_task(fail_after(2, "first"))
        group.create_task(fail_after(4, "never"))
        await asyncio.gather(note("inner one"), note("inner two"))


@satay.workflow(name="corpus.nested_groups")
async def nested_groups() -> list[str]:
    found: list[str] = []
    try:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(linger("a sibling"))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(break_down("inner"))
                inner.create_task(linger("another sibling"))
    except* ValueError as group:
        found.append(f"{len(group.exceptions)} failed")
    return [*found, await note("after the group")]


@satay.workflow(name="corpus.given_up_at_once")
async def given_up_at_once() -> list[str]:
    """Gives up on a call in the very turn that issued it."""
    found = [await note("before")]
    hasty = asyncio.create_task(linger("given up"))
    await asyncio.sleep(0)
    hasty.cancel()
    return [*found, await note("after")]


@satay.workflow(name="corpus.countdown")
async def countdown(left: int) -> str:
    await note(f"{left} left")
    await satay.sleep(60)
    if left:
        satay.continue_as_new(left - 1)
    return "lift-off"


@satay.workflow(name="corpus.producer_and_consumers")
async def producer_and_consumers() -> list[str]:
    queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=2)
    taken: list[str] = []

    async def produce() -> None:
        for number in range(4):
            await queue.put(await note(f"item {number}"))
        await queue.put(None)
        await queue.put(None)

    async def consume() -> None:
        while (item := await queue.get()) is not None:
            taken.append(await note(f"{item} consumed"))

    await asyncio.gather(produce(), consume(), consume())
    return sorted(taken)


@satay.workflow(name="corpus.locks")
async def locks() -> list[str]:
    lock, gate, opened = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()
    order: list[str] = []

    async def visit(name: str) -> None:
        await opened.wait()
        async with gate:
            await note(f"{name} inside")
            async with lock:
                order.append(await note(f"{name} alone"))

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(visit(name))
        await satay.sleep(1)
        opened.set()
    return sorted(order)


@satay.workflow(name="corpus.generators")
async def generators() -> list[str]:
    @contextlib.asynccontextmanager
    async def scope(name: str) -> AsyncIterator[str]:
        await note(f"enter {name}")
        try:
            yield name
        finally:
            await note(f"leave {name}")

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(10):
                yield await add(number, 1)
        finally:
            await note("generator closed")

    found: list[str] = []
    async with scope("outer"), contextlib.aclosing(numbers()) as stream:
        async for number in stream:
            found.append(str(number))
            if number == 2:
                break
    return found


@dataclass(frozen=True)
class Command:
    """What the loop of `commanded` is told."""

    text: str


@satay.workflow(name="corpus.commanded")
async def commanded() -> list[str]:
    done: list[str] = []
    for number in range(3):
        command = await satay.wait_for_event(Command, key=str(number))
        done.append(await note(command.text))
    return done


async def send_commands(app: AppUnderTest, run_id: str) -> None:
    for number in (2, 0, 1):
        await app.send_event(Command(f"command {number}"), key=str(number), run_id=run_id, event_id=str(number))


@satay.workflow(name="corpus.chance")
async def chance() -> list[bool]:
    numbers = [satay.random().random() for _ in range(3)]
    identity = satay.uuid4()
    moment = satay.now()
    told = await note(json.dumps([numbers, str(identity), moment.isoformat()]))
    await satay.sleep(5)
    later = satay.now()
    return [
        json.loads(told) == [numbers, str(identity), moment.isoformat()],
        later - moment == timedelta(seconds=5),
        await note(later.isoformat()) == later.isoformat(),
    ]


@satay.workflow(name="corpus.shielded")
async def shielded() -> list[str]:
    inner = asyncio.create_task(note("goes on"))
    try:
        async with asyncio.timeout(0):
            await asyncio.shield(inner)
    except TimeoutError:
        return ["timed out", await inner]
    return ["in time"]


@satay.workflow(name="corpus.leftovers")
async def leftovers() -> str:
    async def left_behind() -> None:
        try:
            await linger("left behind")
        finally:
            await note("too late")

    task = asyncio.create_task(left_behind())
    await satay.sleep(1)
    assert not task.done()
    return await note("the result")


@satay.workflow(name="corpus.abandoned_child")
async def abandoned_child() -> str:
    satay.start_child(hopeless_child)
    await satay.sleep(1)
    return "the parent is done"


async def no_script(app: AppUnderTest, run_id: str) -> None:
    pass


@dataclass(frozen=True)
class Shape:
    """A workflow, its input, and what happens to its run from outside. `script` may be repeated without a change.

    `is_ordered`: the entries come in one order only. `is_steady`: they are always the same entries. `recover`: a child
    may be left when its parent ends, so it takes an app that recovers all runs to end them all.
    """

    workflow: satay.Workflow[..., Any]
    input: Any = satay.MISSING
    script: Callable[[AppUnderTest, str], Awaitable[None]] = no_script
    is_ordered: bool = False
    is_steady: bool = True
    recover: bool = False

    @property
    def name(self) -> str:
        return self.workflow.name.removeprefix("corpus.")


SHAPES: Final = {
    shape.name: shape
    for shape in (
        Shape(nothing, is_ordered=True),
        Shape(sequence, 5, is_ordered=True),
        Shape(branches),
        Shape(race),
        Shape(race_of_timers),
        Shape(as_completed, is_ordered=True),
        Shape(mapped),
        Shape(map_with_failures),
        Shape(children),
        Shape(cancelled_child),
        Shape(abandoned_child, recover=True),
        Shape(timers, is_ordered=True),
        Shape(timeouts, is_ordered=True),
        Shape(events, script=send_events),
        Shape(approvals, script=decide_when_asked),
        Shape(caught, is_ordered=True),
        Shape(failing, is_ordered=True),
        Shape(retrying, is_ordered=True),
        Shape(cancelled, script=cancel_when_waiting, is_ordered=True),
        Shape(group_of_failures),
        Shape(nested_groups),
        Shape(given_up_at_once),
        Shape(countdown, 2, is_ordered=True),
        Shape(producer_and_consumers),
        Shape(locks),
        Shape(generators, is_ordered=True),
        Shape(commanded, script=send_commands, is_ordered=True),
        Shape(chance, is_ordered=True),
        Shape(shielded),
        Shape(leftovers),
    )
}


# --- running them -----------------------------------------------------------------------------------------------------


async def outcome_of(result: Awaitable[Any]) -> list[Any]:
    """How a run ended, as plain data: its result, or the type and text of its error."""
    try:
        return ["returned", await result]
    except Exception as error:
        members = [f"{type(each).__name__}: {each}" for each in getattr(error, "exceptions", ())]
        return ["raised", type(error).__name__, str(error), *members]


async def run_until_crash(
    place: Path, shape: Shape, faults: Faults, start: datetime | None = None
) -> tuple[list[Any] | None, datetime]:
    """Start or go on with the run of a shape. How it ended, or None where the app crashed; and what time it is then."""
    clock = ManualClock(start, autojump=True)
    async with open_app(place, clock=clock, faults=faults, recover=shape.recover, poll_seconds=NEVER_SECONDS) as app:
        ending = asyncio.ensure_future(_run(app, shape))
        await asyncio.wait((ending, faults.crashed), return_when=asyncio.FIRST_COMPLETED)
        if not faults.is_crashed:
            await settle(app)
        if not ending.done():
            ending.cancel()
        with contextlib.suppress(asyncio.CancelledError, SatayError):
            outcome = await ending
        return (None if faults.is_crashed else outcome), to_datetime(app.clock.now())


async def _run(app: AppUnderTest, shape: Shape) -> list[Any]:
    handle = app.start(shape.workflow, shape.input, run_id=RUN_ID)
    with contextlib.suppress(RunExistsError):
        await handle
    await shape.script(app, RUN_ID)
    return await outcome_of(handle.result())


# --- as processes of their own ----------------------------------------------------------------------------------------


async def crash_all(place: Path, appends: dict[str, int]) -> None:
    """Run every shape up to the given append and crash there; print what time it was, and end without cleaning up."""
    moments = {}
    for name, append in appends.items():
        _, moment = await run_until_crash(place / name, SHAPES[name], Faults().crash_after(append=append))
        moments[name] = moment.isoformat()
    sys.stdout.write(json.dumps(moments))
    sys.stdout.flush()
    os._exit(9)


async def resume_all(place: Path, moments: dict[str, str]) -> None:
    """Go on with every shape at its moment, and print how each ended."""
    outcomes = {}
    for name, moment in moments.items():
        start = datetime.fromisoformat(moment)
        outcomes[name], _ = await run_until_crash(place / name, SHAPES[name], Faults(), start)
    sys.stdout.write(json.dumps(outcomes))


def main() -> None:
    """`crash DIRECTORY APPENDS`, or `resume DIRECTORY MOMENTS`."""
    what, place, arguments = sys.argv[1:]
    work = crash_all if what == "crash" else resume_all
    asyncio.run(work(Path(place), json.loads(arguments)))
