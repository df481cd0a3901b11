"""Work that comes to its end whatever becomes of its caller."""

import asyncio

import pytest

from satay.shields import finish

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Work:
    """Something that takes until it may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def do(self, error: Exception | None = None) -> str:
        await self.may_end.wait()
        self.has_ended = True
        if error is not None:
            raise error
        return "done"


async def cancel_twice(caller: asyncio.Task[str]) -> None:
    for _ in range(2):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)


async def test_what_is_left_in_peace_returns_and_raises_as_it_is() -> None:
    work = Work()
    work.may_end.set()

    assert "done" == await finish(work.do())
    with pytest.raises(ValueError, match="oh"):
        await finish(work.do(ValueError("oh")))


async def test_what_is_cancelled_time_and_again_ends_first_and_the_caller_is_cancelled_then() -> None:
    work = Work()
    caller = asyncio.create_task(finish(work.do()))
    await cancel_twice(caller)
    is_waiting = not caller.done()
    work.may_end.set()
    await asyncio.wait((caller,))

    assert is_waiting
    assert work.has_ended
    assert caller.cancelled()


async def test_a_cancellation_is_passed_on_also_where_the_work_fails() -> None:
    work = Work()
    caller = asyncio.create_task(finish(work.do(ValueError("oh"))))
    await cancel_twice(caller)
    work.may_end.set()
    await asyncio.wait((caller,))

    assert caller.cancelled()


async def test_a_timeout_of_the_caller_is_one() -> None:
    work = Work()
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(work.may_end.set))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await finish(work.do())

    assert work.has_ended
