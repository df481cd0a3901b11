import asyncio
from collections.abc import AsyncIterator

import pytest

from satay.whereabouts import find_waiting_line
from tests.stages import Body, Stage, hop, parked


async def wait_in_gather() -> None:
    async def inner() -> None:
        await asyncio.sleep(1)  # here

    await asyncio.gather(inner(), hop("later", 9))


async def wait_in_group() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()  # here

    async with asyncio.TaskGroup() as group:
        group.create_task(inner())


async def wait_in_wait() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()  # here

    await asyncio.wait({asyncio.create_task(inner())})


async def wait_in_task() -> None:
    async def inner() -> None:
        async with asyncio.timeout(5):
            await asyncio.Queue[int]().get()  # here

    await asyncio.create_task(inner())


async def wait_in_generator() -> None:
    async def inner() -> AsyncIterator[int]:
        await asyncio.get_running_loop().create_future()  # here
        yield 1

    async for _ in inner():
        pass


@pytest.mark.parametrize("body", [wait_in_gather, wait_in_group, wait_in_wait, wait_in_task, wait_in_generator])
def test_the_line_that_waits_is_the_innermost_one_of_the_user(body: Body) -> None:
    stage = parked(body)
    place = find_waiting_line(stage.task)
    stage.loop.drop()

    assert place is not None
    name, _, function = place.partition(" in ")
    file, _, line = name.rpartition(":")
    with open(file, encoding="utf-8") as source:
        text = source.read().splitlines()[int(line) - 1]
    assert (file, function) == (__file__, "inner")
    assert text.endswith("# here")


def test_a_task_that_is_done_waits_nowhere() -> None:
    stage = Stage(lambda: hop("x"))
    stage.finish()

    assert find_waiting_line(stage.task) is None
