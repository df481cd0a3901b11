"""Going on at once: a task runs on within the call that tells it, and is a task like any other in all else."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from satay.journal import Commit
from satay.resumptions import Resumption

pytestmark = pytest.mark.anyio

place: ContextVar[str] = ContextVar("place", default="nowhere")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Waiting:
    """A task that awaits a resumption, and notes what happens."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.resumption = Resumption(loop=asyncio.get_running_loop())
        self.noted: list[object] = []
        self.task = asyncio.create_task(self._wait(then))

    async def _wait(self, then: Callable[[], object]) -> str:
        place.set("in the task")
        try:
            await self.resumption
        except asyncio.CancelledError:
            self.noted.append("cancelled")
            raise
        self.noted.append((place.get(), asyncio.current_task() is self.task))
        then()
        await asyncio.sleep(0)
        return "done"


async def call(fn: Callable[[], object]) -> None:
    """Call it as a store does: from a callback of the loop, where no task is running. Return once that has ended."""
    loop, called = asyncio.get_running_loop(), asyncio.Event()

    def callback() -> None:
        assert asyncio.current_task() is None
        fn()
        called.set()

    loop.call_soon(callback)
    await called.wait()


async def test_the_task_goes_on_within_the_call_in_its_own_context() -> None:
    waiting = Waiting()
    await asyncio.sleep(0)
    seen: list[object] = []

    def resume() -> None:
        waiting.resumption.resume()
        seen.extend([*waiting.noted, asyncio.current_task(), place.get()])

    await call(resume)

    assert [("in the task", True), None, "nowhere"] == seen
    assert "done" == await waiting.task


async def test_a_task_that_was_cancelled_is_told_once_and_not_resumed() -> None:
    waiting = Waiting()
    await asyncio.sleep(0)
    waiting.task.cancel()
    await call(waiting.resumption.resume)

    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert ["cancelled"] == waiting.noted


async def test_a_task_that_was_resumed_is_cancelled_where_it_waits_next() -> None:
    waiting = Waiting()
    await asyncio.sleep(0)

    def resume() -> None:
        waiting.resumption.resume()
        waiting.task.cancel()

    await call(resume)

    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert [("in the task", True)] == waiting.noted


async def test_who_comes_late_does_not_wait() -> None:
    resumption = Resumption(loop=asyncio.get_running_loop())
    await call(resumption.resume)
    await call(resumption.resume)

    await resumption
    assert resumption.done()


async def test_all_who_await_a_commit_go_on_and_hear_of_its_error() -> None:
    commit = Commit()

    async def wait() -> None:
        await commit

    tasks = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await call(lambda: commit.settle(OSError("no disk")))
    ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert [OSError, asyncio.CancelledError, OSError] == [type(one) for one in ended]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_does_not_keep_others_from_being_told(kind: type[BaseException]) -> None:
    told: list[str] = []

    def end() -> None:
        raise kind

    async def main() -> None:
        first, second = Waiting(end), Waiting(lambda: told.append("second"))
        await asyncio.sleep(0)

        def resume_both() -> None:
            first.resumption.resume()
            second.resumption.resume()

        await call(resume_both)
        await asyncio.sleep(10)

    with pytest.raises(kind):
        asyncio.run(main())
    assert ["second"] == told
