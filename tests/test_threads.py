"""The threads of plain tasks."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from satay.threads import MAX_ABANDONED, ThreadPool
from tests.driving import HANG_SECONDS, in_loop

where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


def with_pool(test: Callable[[ThreadPool], Awaitable[Any]], size: int = 2) -> Any:
    async def run() -> Any:
        pool = ThreadPool(size)
        try:
            return await test(pool)
        finally:
            pool.close()

    return in_loop(run())


def this_thread() -> threading.Thread:
    return threading.current_thread()


async def in_thread(pool: ThreadPool, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await pool.run(partial(fn, *args, **kwargs), "a task")


def test_a_function_is_called_with_its_arguments_and_its_result_returned() -> None:
    async def test(pool: ThreadPool) -> Any:
        return await in_thread(pool, lambda *args, **kwargs: (args, kwargs), 1, 2, a=3)

    assert ((1, 2), {"a": 3}) == with_pool(test)


def test_a_function_runs_in_a_thread_that_keeps_no_process_from_ending() -> None:
    async def test(pool: ThreadPool) -> Any:
        return await in_thread(pool, this_thread)

    thread = with_pool(test)

    assert thread is not threading.current_thread()
    assert thread.daemon
    assert thread.name.startswith("satay-task-")


def test_a_function_sees_a_copy_of_the_callers_context() -> None:
    def move() -> str:
        before = where.get()
        where.set("there")
        return before

    async def test(pool: ThreadPool) -> Any:
        where.set("here")
        return await in_thread(pool, move), where.get()

    assert ("here", "here") == with_pool(test)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no"), asyncio.CancelledError("no")])
def test_what_a_function_raises_reaches_its_caller_and_the_thread_goes_on(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def test(pool: ThreadPool) -> Any:
        try:
            await in_thread(pool, fail)
        except BaseException as caught:
            return caught, await in_thread(pool, lambda: "goes on")

    caught, after = with_pool(test, size=1)

    assert error is caught
    assert "goes on" == after


def test_a_thread_that_is_idle_is_used_again() -> None:
    async def test(pool: ThreadPool) -> Any:
        return {await in_thread(pool, this_thread) for _ in range(10)}

    assert 1 == len(with_pool(test, size=5))


def test_as_many_functions_run_at_a_time_as_there_are_threads() -> None:
    together = threading.Barrier(3)

    async def test(pool: ThreadPool) -> Any:
        return await asyncio.gather(*(in_thread(pool, together.wait, HANG_SECONDS) for _ in range(6)))

    turns = with_pool(test, size=3)

    assert [0, 0, 1, 1, 2, 2] == sorted(turns)


def test_no_more_functions_run_at_a_time_than_there_are_threads() -> None:
    running: list[int] = []
    most: list[int] = []

    def work(number: int) -> threading.Thread:
        running.append(number)
        most.append(len(running))
        running.remove(number)
        return threading.current_thread()

    async def test(pool: ThreadPool) -> Any:
        return await asyncio.gather(*(in_thread(pool, work, number) for number in range(50)))

    threads = with_pool(test, size=2)

    assert len(set(threads)) <= 2
    assert max(most) <= 2


def test_a_function_whose_caller_gave_up_before_it_began_is_not_called() -> None:
    go_on = threading.Event()
    called: list[str] = []

    async def test(pool: ThreadPool) -> None:
        busy = asyncio.ensure_future(in_thread(pool, go_on.wait, HANG_SECONDS))
        queued = asyncio.ensure_future(in_thread(pool, called.append, "given up"))
        await asyncio.sleep(0)
        queued.cancel()
        await asyncio.wait([queued])
        go_on.set()
        await busy
        await in_thread(pool, called.append, "after")

    with_pool(test, size=1)

    assert ["after"] == called


def test_a_caller_that_gives_up_leaves_the_function_running_to_its_end() -> None:
    has_begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        go_on.wait(HANG_SECONDS)
        ended.set()

    async def test(pool: ThreadPool) -> Any:
        task = asyncio.ensure_future(in_thread(pool, work))
        await asyncio.to_thread(has_begun.wait, HANG_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        had_ended = ended.is_set()
        go_on.set()
        return had_ended, await in_thread(pool, ended.wait, HANG_SECONDS)

    assert (False, True) == with_pool(test, size=1)


async def give_up(pool: ThreadPool, fn: Callable[..., Any], name: str = "a task") -> None:
    """Call a function, and give it up when it has begun."""
    has_begun = asyncio.Event()
    caller = asyncio.ensure_future(pool.run(fn, name, has_begun.set))
    await has_begun.wait()
    caller.cancel()
    await asyncio.wait([caller])


def test_a_thread_whose_function_was_given_up_is_replaced_and_ends_with_the_function() -> None:
    go_on = threading.Event()
    abandoned: list[threading.Thread] = []

    def block() -> None:
        abandoned.append(this_thread())
        go_on.wait(HANG_SECONDS)

    async def test(pool: ThreadPool) -> Any:
        await give_up(pool, block)
        await give_up(pool, block)
        return [await in_thread(pool, this_thread) for _ in range(3)]

    try:
        threads = with_pool(test, size=1)
        were_alive = [thread.is_alive() for thread in abandoned]
    finally:
        go_on.set()
    for thread in abandoned:
        thread.join(HANG_SECONDS)

    assert [True, True] == were_alive
    assert 1 == len(set(threads))
    assert not set(threads) & set(abandoned)
    assert not any(thread.is_alive() for thread in abandoned)


def test_a_call_that_waits_for_a_thread_gets_one_when_another_is_given_up() -> None:
    go_on = threading.Event()

    async def test(pool: ThreadPool) -> Any:
        has_begun = asyncio.Event()
        blocked = asyncio.ensure_future(pool.run(partial(go_on.wait, HANG_SECONDS), "blocks", has_begun.set))
        await has_begun.wait()
        waiting = asyncio.ensure_future(in_thread(pool, lambda: "its turn"))
        await asyncio.sleep(0)
        blocked.cancel()
        return await waiting

    try:
        assert "its turn" == with_pool(test, size=1)
    finally:
        go_on.set()


def test_a_thread_that_is_replaced_is_told_of_with_the_names_of_what_keeps_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = threading.Event()

    async def test(pool: ThreadPool) -> list[int]:
        told = []
        for name in ("shop.charge", "shop.charge", "shop.ask"):
            await give_up(pool, partial(go_on.wait, HANG_SECONDS), name)
            told.append(len(caplog.records))
        await in_thread(pool, this_thread)
        return told

    try:
        told = with_pool(test, size=2)
    finally:
        go_on.set()

    assert [0, 0, 1] == told
    assert [
        "event='thread.replaced' abandoned=2 limit=256 tasks=['shop.charge']",
        "event='thread.replaced' abandoned=3 limit=256 tasks=['shop.ask', 'shop.charge']",
    ] == [record.getMessage() for record in caplog.records]


def test_threads_are_replaced_up_to_a_limit() -> None:
    go_on = threading.Event()

    async def test(pool: ThreadPool) -> Any:
        for _ in range(MAX_ABANDONED + 1):
            await give_up(pool, partial(go_on.wait, HANG_SECONDS))
        waiting = asyncio.ensure_future(in_thread(pool, lambda: "its turn"))
        await asyncio.sleep(0)
        is_waiting = not waiting.done()
        go_on.set()
        return is_waiting, await waiting

    try:
        assert (True, "its turn") == with_pool(test, size=1)
    finally:
        go_on.set()


def test_the_caller_is_told_when_a_thread_begins_and_not_while_the_call_waits() -> None:
    go_on = threading.Event()
    told: list[str] = []

    async def test(pool: ThreadPool) -> list[str]:
        has_begun = asyncio.Event()
        first = asyncio.ensure_future(pool.run(partial(go_on.wait, HANG_SECONDS), "first", has_begun.set))
        second, given_up = (
            asyncio.ensure_future(pool.run(lambda: None, name, partial(told.append, name)))
            for name in ("second", "given up")
        )
        await has_begun.wait()
        told_before = list(told)
        given_up.cancel()
        go_on.set()
        await asyncio.wait([first, second, given_up])
        return told_before

    assert [] == with_pool(test, size=1)
    assert ["second"] == told


def test_idle_threads_end_when_the_pool_is_closed() -> None:
    async def test(pool: ThreadPool) -> Any:
        together = threading.Barrier(2)

        def meet() -> threading.Thread:
            together.wait(HANG_SECONDS)
            return threading.current_thread()

        return await asyncio.gather(in_thread(pool, meet), in_thread(pool, meet))

    threads = with_pool(test)
    for thread in threads:
        thread.join(HANG_SECONDS)

    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_that_is_busy_when_its_loop_is_closed_ends_quietly_with_its_function() -> None:
    go_on = threading.Event()
    threads: list[threading.Thread] = []
    has_begun = threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        has_begun.set()
        go_on.wait(HANG_SECONDS)

    async def test(pool: ThreadPool) -> None:
        task = asyncio.ensure_future(in_thread(pool, work))
        await asyncio.to_thread(has_begun.wait, HANG_SECONDS)
        task.cancel()

    with_pool(test)
    was_alive = threads[0].is_alive()
    go_on.set()
    threads[0].join(HANG_SECONDS)

    assert was_alive
    assert not threads[0].is_alive()
