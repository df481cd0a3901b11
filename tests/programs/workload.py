"""Workflows of several shapes, whose results are known beforehand however often their processes die."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import satay
from satay.errors import EventTimeoutError, UsageError
from tests.programs.effects import note

EVENT: Final = "workload.go"

CANCELLED: Final = "cancelled"
"""Stands for the result of a run that was cancelled."""

QUICK: Final = satay.Backoff(first=0.005, longest=0.02)


@satay.task(name="workload.step", retries=50, backoff=QUICK)
async def step(number: int, failures: int = 0) -> int:
    note("began")
    await asyncio.sleep(0.002)
    if satay.task_context().attempt <= failures:
        raise ConnectionError(f"attempt {satay.task_context().attempt} of {number} fails")
    note("ended")
    return number + 1


@satay.task(name="workload.plain")
def plain(number: int) -> int:
    note("began")
    time.sleep(0.003)
    note("ended")
    return number + 1


@satay.task(name="workload.pure", effect="pure")
async def pure(number: int) -> int:
    note("began")
    return number + 1


@satay.task(name="workload.large")
async def large(number: int) -> list[int]:
    note("began")
    return [number] * 150_000


@satay.task(name="workload.wait_for_file")
async def wait_for_file(path: str) -> str:
    note("began")
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240  # Another process makes it.
        await asyncio.sleep(0.005)
    note("ended")
    return Path(path).name


@satay.workflow(name="workload.chain")
async def chain(number: int) -> int:
    found = number
    for _ in range(3):
        found = await step(found)
        found = await pure(found)
    await satay.sleep(0.01)
    return await plain(found)


@satay.workflow(name="workload.fan")
async def fan(number: int) -> list[int]:
    together = await asyncio.gather(*(step(number + each, failures=each % 3) for each in range(5)))
    keyed = await satay.map(plain, together, key=str, concurrency=2)
    return list(await satay.map(pure, keyed))


@satay.workflow(name="workload.twig")
async def twig(number: int) -> int:
    await satay.sleep(0.005)
    return await step(number)


@satay.workflow(name="workload.family")
async def family(number: int) -> list[int]:
    children = [satay.start_child(twig, number + each) for each in range(3)]
    keyed = satay.start_child(chain, number, key="keyed")
    return [await step(number), *[await child.result() for child in children], await keyed.result()]


@satay.workflow(name="workload.patient")
async def patient(number: int) -> list[Any]:
    found: list[Any] = [await satay.wait_for_event(EVENT, key="a"), await step(number)]
    try:
        await satay.wait_for_event("workload.never", timeout=0.01)
    except EventTimeoutError:
        found.append("nobody came")
    found.append(await satay.wait_for_event(EVENT, key="b", timeout=600))
    return found


@satay.workflow(name="workload.countdown")
async def countdown(number: int) -> str:
    await step(number)
    await satay.sleep(0.005)
    if number % 3:
        satay.continue_as_new(number - 1)
    return "lift-off"


@satay.workflow(name="workload.racing")
async def racing(number: int) -> str:
    quick, slow = asyncio.create_task(step(number)), asyncio.create_task(satay.sleep(600))
    await asyncio.wait({quick, slow}, return_when=asyncio.FIRST_COMPLETED)
    slow.cancel()
    failed: list[Any] = await satay.map(break_down, [number, number + 1], return_exceptions=True)
    return f"{quick.result()} {[str(error) for error in failed]} {len(await large(number))}"


@satay.task(name="workload.break_down")
async def break_down(number: int) -> int:
    note("began")
    raise ValueError(f"{number} breaks down")


@satay.task(name="workload.send_money", effect="external")
async def send_money(number: int) -> int:
    note("began")
    await asyncio.sleep(0.002)
    note("ended")
    return number


@satay.workflow(name="workload.careful")
async def careful(number: int) -> list[int]:
    return [await send_money(number), await step(number), await send_money(number + 1)]


@satay.workflow(name="workload.hopeless")
async def hopeless(number: int) -> None:
    try:
        await asyncio.gather(satay.wait_for_event("workload.never"), step(number), satay.sleep(600))
    finally:
        await step(number)
        await satay.sleep(0.005)
        await plain(number)


@satay.workflow(name="workload.waiting")
async def waiting(number: int) -> list[Any]:
    return [await satay.wait_for_event(EVENT), await step(number)]


@satay.workflow(name="workload.gated")
async def gated(path: str) -> list[Any]:
    """A step, a task that lasts until a file is there, and another step."""
    return [await step(1), await wait_for_file(path), await step(2)]


@satay.workflow(name="workload.guarding")
async def guarding(path: str) -> list[Any]:
    return await satay.start_child(gated, path).result()


SHAPES: Final[tuple[tuple[Any, Callable[[int], Any]], ...]] = (
    (chain, lambda number: number + 7),
    (fan, lambda number: [number + each + 3 for each in range(5)]),
    (family, lambda number: [number + 1, number + 1, number + 2, number + 3, number + 7]),
    (patient, lambda number: ["a", number + 1, "nobody came", "b"]),
    (countdown, lambda number: "lift-off"),
    (careful, lambda number: [number, number + 1, number + 1]),
    (hopeless, lambda number: CANCELLED),
    (racing, lambda number: f"{number + 1} ['{number} breaks down', '{number + 1} breaks down'] 150000"),
)
"""Each workflow, and its result for an input."""

FORKABLE: Final = 0
"""The shape that is forked when it has ended: `chain`."""


def run_id_of(number: int) -> str:
    return f"run-{number}"


def fork_id_of(number: int) -> str:
    return f"fork-of-{number}"


def expected(count: int) -> dict[str, Any]:
    """The results of so many runs, and of their forks."""
    results: dict[str, Any] = {}
    for number in range(count):
        _, result = SHAPES[number % len(SHAPES)]
        results[run_id_of(number)] = result(number)
        if number % len(SHAPES) == FORKABLE:
            results[fork_id_of(number)] = result(number + 100)
    return results


async def send_events(app: satay.App, number: int) -> None:
    """Send what the run waits for, or cancel it. It may be repeated without a change."""
    workflow = SHAPES[number % len(SHAPES)][0]
    if workflow is patient:
        for key in "ab":
            await app.send_event(EVENT, key, key=key, run_id=run_id_of(number), event_id=key)
    elif workflow is hopeless:
        await app.cancel(run_id_of(number))


async def decide(app: satay.App, run_id: str) -> None:
    """Have an external call repeated of which nobody knows whether it happened; someone else may have decided."""
    with suppress(UsageError):
        await app.decide(run_id, "rerun")


async def fork(app: satay.App, number: int) -> satay.ForkHandle[Any]:
    """Fork a run that has ended, with another input, so that all of it runs again from the second step on."""
    return await app.fork(
        run_id_of(number),
        before_task="workload.step",
        before_ordinal=0,
        workflow_input=number + 100,
        run_id=fork_id_of(number),
    )
