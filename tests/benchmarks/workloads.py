"""The workflows that are measured, and a stopwatch around one run of them. The peer's program does the same."""

import asyncio
import time

import satay
from satay import Workflow
from tests.benchmarks.rounds import Measure


@satay.task
async def tally(number: int) -> int:
    return number + 1


@satay.task(effect="pure")
async def tally_purely(number: int) -> int:
    return number + 1


@satay.workflow(name="benchmarks.count")
async def count(calls: int) -> int:
    """Sequential calls, each of which needs the result of the one before."""
    number = 0
    for _ in range(calls):
        number = await tally(number)
    return number


@satay.workflow(name="benchmarks.count_purely")
async def count_purely(calls: int) -> int:
    """The same with a task that may run again at will."""
    number = 0
    for _ in range(calls):
        number = await tally_purely(number)
    return number


@satay.workflow(name="benchmarks.fan_out")
async def fan_out(calls: int) -> int:
    """Parallel calls."""
    return sum(await asyncio.gather(*[tally(number) for number in range(calls)]))


async def seconds_of(workflow: Workflow[[int], int], calls: int) -> float:
    """How long one run with so many calls takes, from its start to its result."""
    began = time.perf_counter()
    await satay.start(workflow, calls).result()
    return time.perf_counter() - began


def rate_of(workflow: Workflow[[int], int], calls: int) -> Measure:
    """A measure of how many calls a second such a run makes."""

    async def measure() -> float:
        return calls / await seconds_of(workflow, calls)

    return measure
