"""The threads that plain `def` tasks run in.

They are daemons: a task that never returns must not keep a script from ending, and the executor of the standard library
waits for its threads at exit.
"""

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

DEFAULT_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""How many plain tasks run at the same time, unless the app says otherwise."""


class _Work(NamedTuple):
    fn: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[Any]"


class ThreadPool:
    """Runs functions in threads, started when they are first needed."""

    def __init__(self, size: int = DEFAULT_THREADS) -> None:
        self._size = size
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    async def run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `fn` in a thread, in a copy of this context. A caller that is cancelled abandons it."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        done = loop.create_future()
        self._queue.put(_Work(partial(context.run, fn, *args, **kwargs), loop, done))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._size:
            thread = threading.Thread(target=self._work, name=f"satay-task-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        result, error = await done
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let idle threads end. A thread that is still busy ends with its function, or with the process."""
        for _ in self._threads:
            self._queue.put(None)
        self._threads = []

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            outcome: tuple[Any, BaseException | None]
            if work.done.cancelled():
                outcome = (None, None)
            else:
                try:
                    outcome = (work.fn(), None)
                except BaseException as error:
                    outcome = (None, error)
            self._idle.release()
            with suppress(RuntimeError):  # The loop was closed meanwhile; nobody waits for the outcome.
                work.loop.call_soon_threadsafe(_settle, work.done, outcome)
            del work, outcome


def _settle(done: "asyncio.Future[Any]", outcome: tuple[Any, BaseException | None]) -> None:
    if not done.done():
        done.set_result(outcome)
