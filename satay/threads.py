"""The threads that plain `def` tasks run in.

They are daemons: a task that never returns must not keep a script from ending, and the executor of the standard library
waits for its threads at exit.

Nothing can stop a function in a thread. One that its caller gave up, because it ran over its timeout or its run was
cancelled, keeps its thread; another thread takes the place, and the abandoned one ends with its function.
"""

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from satay.logs import log

DEFAULT_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""How many plain tasks run at the same time, unless the app says otherwise."""

MAX_ABANDONED: Final = 256
"""How many abandoned threads are replaced. One more keeps its place until its function returns."""


class _Work:
    """A call, from when it is asked for until its function returns or nobody waits for it any more."""

    __slots__ = ("call", "done", "is_abandoned", "is_running", "loop", "name", "on_begin")

    def __init__(
        self,
        call: Callable[[], Any],
        name: str,
        on_begin: Callable[[], None] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.call = call
        self.name = name
        self.on_begin = on_begin
        self.loop = loop
        self.done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        self.is_running = False
        self.is_abandoned = False


class ThreadPool:
    """Runs functions in threads, started when they are first needed."""

    def __init__(self, size: int = DEFAULT_THREADS) -> None:
        self._size = size
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Under the lock: the calls that have, or wait for, a thread of the pool; its threads; those it gave up.
        self._calls = 0
        self._threads = 0
        self._abandoned: list[_Work] = []
        self._started = 0
        self._is_closed = False

    async def run(self, call: Callable[[], Any], name: str, on_begin: Callable[[], None] | None = None) -> Any:
        """Run `call` in a thread, in a copy of this context. A caller that is cancelled abandons it.

        `name` is what a warning calls it. `on_begin` is called on the loop when a thread has begun with it.
        """
        context = contextvars.copy_context()
        work = _Work(partial(context.run, call), name, on_begin, asyncio.get_running_loop())
        with self._lock:
            replaced = self._start_thread_if_short(self._calls + 1)
            self._calls += 1
            self._queue.put(work)
        _warn_of_replaced(replaced)
        try:
            result, error = await work.done
        except BaseException:  # the caller is cancelled, or its loop ends
            self._abandon(work)
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let idle threads end. A thread that is still busy ends with its function, or with the process."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._threads):
                self._queue.put(None)

    def _start_thread_if_short(self, calls: int) -> list[str]:
        """See to it that so many calls have a thread each, within the size. Raises where the system has no more.

        Answers the names of the calls that keep the threads in whose place one was started.
        """
        if self._threads >= min(calls, self._size):
            return []
        self._started += 1
        threading.Thread(target=self._work, name=f"satay-task-{self._started}", daemon=True).start()
        self._threads += 1
        is_in_place_of_another = self._threads + len(self._abandoned) > self._size
        return [work.name for work in self._abandoned] if is_in_place_of_another else []

    def _abandon(self, work: _Work) -> None:
        """Give up a call. If a thread is in it, that thread counts no more, and who waits gets another one."""
        replaced: list[str] = []
        with self._lock:
            if not work.is_running or self._is_closed or len(self._abandoned) == MAX_ABANDONED:
                return
            work.is_abandoned = True
            self._abandoned.append(work)
            self._calls -= 1
            self._threads -= 1
            with suppress(RuntimeError):  # The system has no thread left now; the next call asks again.
                replaced = self._start_thread_if_short(self._calls)
        _warn_of_replaced(replaced)

    def _work(self) -> None:
        is_abandoned = False
        while not is_abandoned:
            work = self._queue.get()
            if work is None:
                return
            outcome = self._begin_and_call(work)
            with self._lock:
                work.is_running = False
                is_abandoned = work.is_abandoned
                if is_abandoned:
                    self._abandoned.remove(work)
                else:
                    self._calls -= 1
            _tell(work, _settle, outcome)
            del work, outcome

    def _begin_and_call(self, work: _Work) -> tuple[Any, BaseException | None]:
        with self._lock:
            if work.done.cancelled():
                return None, None
            work.is_running = True
        if work.on_begin is not None:
            _tell(work, _begin)
        try:
            return work.call(), None
        except BaseException as error:
            return None, error


def _warn_of_replaced(names: list[str]) -> None:
    if names:
        log().warning("thread.replaced", abandoned=len(names), limit=MAX_ABANDONED, tasks=sorted(set(names)))


def _tell(work: _Work, what: Callable[..., None], *args: Any) -> None:
    with suppress(RuntimeError):  # The loop was closed meanwhile; nobody waits for the call.
        work.loop.call_soon_threadsafe(what, work, *args)


def _begin(work: _Work) -> None:
    if not work.done.done() and work.on_begin is not None:
        work.on_begin()


def _settle(work: _Work, outcome: tuple[Any, BaseException | None]) -> None:
    if not work.done.done():
        work.done.set_result(outcome)
