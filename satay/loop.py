"""The event loop on which one workflow body runs: deterministic, stepped from outside, and cheap to keep parked.

Nothing reaches a body but what the caller of this module hands to its loop: a future that it resolves, a timer that it
fires, a time that it advances. Between two such deliveries `run_turn` runs the body until nothing is ready.

- Callbacks run first in, first out; time is the journal's; tasks and futures hash by the order of their creation. So
  asyncio's helpers, also those that iterate a set, take the same steps under every hash seed and memory layout.
- A timer is an announcement to a `TimerSink`. It never fires by itself.
- Sockets, threads, executors, subprocesses and signals are refused at once.
- `drop` throws a parked body away without running any of it.

The garbage collector is off during a turn: what it finalizes, and when, depends on the rest of the process, and the
cleanup of an async generator must not start at a moment that no replay repeats.
"""

import asyncio
import bisect
import contextvars
import gc
import inspect
import sys
import threading
import types
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar, TypeVarTuple

from satay.await_chains import is_at_await, is_awaited_from
from satay.clock import MICROSECONDS
from satay.completions import ENSURE_FUTURE, as_coroutine, find_as_completed, raw_awaitables, wrapped_awaitable
from satay.errors import InvalidValueError, UsageError, WorkflowSideEffectError
from satay.eviction import discard, forget_keys, silence
from satay.whereabouts import find_calling_line

LONGEST_DELAY_SECONDS: Final = 1_000 * 366 * 86_400.0
"""A timer further ahead than a thousand years is taken for a mistake in units."""

MOST_UNHANDLED: Final = 100
"""Reports of unhandled errors beyond this many are counted out, so that a body in a loop cannot fill the memory."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_IN_TASK: Final = "do it in a function decorated with `@satay.task` and await that"
_OWNED: Final = "satay steps this loop from the journal; await what you wait for instead"

_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "add_reader", "add_signal_handler", "add_writer", "call_soon_threadsafe", "connect_accepted_socket",
            "connect_read_pipe", "connect_write_pipe", "create_connection", "create_datagram_endpoint",
            "create_server", "create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo",
            "remove_reader", "remove_signal_handler", "remove_writer", "run_in_executor", "sendfile",
            "set_default_executor", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom",
            "sock_recvfrom_into", "sock_sendall", "sock_sendfile", "sock_sendto", "start_tls", "subprocess_exec",
            "subprocess_shell",
        ),
        _IN_TASK,
    ),
    **dict.fromkeys(
        (
            "close", "run_forever", "run_until_complete", "set_debug", "set_exception_handler", "set_task_factory",
            "stop",
        ),
        _OWNED,
    ),
}  # fmt: skip


def _refusal(name: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        line, called = find_calling_line(sys._getframe(1), WorkflowLoop._run_ready.__code__)
        by = "" if called is None else f", by `{called}`"
        at = "" if line is None else f" at {line}"
        raise WorkflowSideEffectError(
            f"a workflow asked for `loop.{name}`{by}{at}, which no replay can repeat: {remedy}"
        )

    return refuse


if TYPE_CHECKING:
    # The table fills in every abstract method, which a type checker cannot see; this base has them all.
    _RefusingLoop = asyncio.BaseEventLoop
else:
    _RefusingLoop = type(
        "_RefusingLoop",
        (asyncio.AbstractEventLoop,),
        {"__slots__": (), **{name: _refusal(name, remedy) for name, remedy in _REFUSED.items()}},
    )


# --- what a body holds ------------------------------------------------------------------------------------------------


class WorkflowHandle(asyncio.Handle):
    """A callback that is ready, or was cancelled."""

    __slots__ = ()

    # `asyncio.Handle` also asks for debug mode and takes a stack; this runs for every step of every body.
    def __init__(
        self,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class WorkflowTimer(asyncio.TimerHandle):
    """A durable timer: due at `when()`, in seconds of journal time, and run only by `WorkflowLoop.fire`.

    `call` belongs to the sink, which may keep the durable call of the timer there; it is -1 until then.
    """

    __slots__ = ("call",)
    call: int
    _args: Sequence[Any]
    _callback: Callable[..., object]
    _context: contextvars.Context
    _loop: "WorkflowLoop"
    _scheduled: bool

    def cancel(self) -> None:
        """Call the timer off, and tell the sink unless the timer has fired already."""
        is_outstanding = self._scheduled
        self._scheduled = False
        asyncio.Handle.cancel(self)
        if is_outstanding:
            self._loop._timers.timer_cancelled(self)


class TimerSink(Protocol):
    """Who records the timers of a loop."""

    def timer_created(self, timer: WorkflowTimer) -> None:
        """The body set a timer, just now."""
        ...

    def timer_cancelled(self, timer: WorkflowTimer) -> None:
        """The body called off a timer that had not fired."""
        ...


class _Nobody:
    """The sink of a loop that was dropped."""

    def timer_created(self, timer: WorkflowTimer) -> None: ...

    def timer_cancelled(self, timer: WorkflowTimer) -> None: ...


_NOBODY: Final = _Nobody()
NO_MORE: Final[Iterator[None]] = iter(())
"""No turns to come."""


class WorkflowFuture(asyncio.Future[_T]):
    """A future that hashes by the order of creation in its loop and equals only itself."""

    __slots__ = ("_order",)
    _order: int

    def __hash__(self) -> int:
        return self._order


class WorkflowTask(asyncio.Task[_T]):
    """A task that hashes by the order of creation in its loop and equals only itself."""

    __slots__ = ("_order",)
    _order: int
    _log_destroy_pending: bool

    def __init__(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        loop: "WorkflowLoop",
        name: object,
        context: contextvars.Context | None,
    ) -> None:
        # asyncio puts every task of the process into one set. A thousand loops that each count from one would all
        # collide there, so while asyncio registers the task it hashes by address.
        self._order = id(self) >> 4
        order = loop._next_order()
        super().__init__(coro, loop=loop, name=f"Task-{order}" if name is None else str(name), context=context)
        self._order = order

    def __hash__(self) -> int:
        return self._order

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # A worker thread of anyio takes the loop from here when it is made, which is the last moment to refuse it: it
        # would run, and its result could never be delivered.
        if isinstance(sys._getframe(1).f_locals.get("self"), threading.Thread):
            _refusal("run_in_executor", _IN_TASK)()
        return self.get_loop()

    def cancel(self, msg: object = None) -> bool:
        """Ask the task to stop, as `asyncio.Task.cancel` does."""
        if sys._getframe(1).f_code.co_name in _CANCELS_A_SET:
            loop = self.get_loop()
            assert isinstance(loop, WorkflowLoop)
            return loop._cancel_in_order(self._order, super().cancel, msg)
        return super().cancel(msg)


_CANCELS_A_SET: Final = frozenset(
    (
        "_abort",  # of asyncio.TaskGroup
        "_deliver_cancellation",  # of anyio.CancelScope, which has a set of scopes, and those hash by address
    )
)


# --- the loop ---------------------------------------------------------------------------------------------------------


class WorkflowLoop(_RefusingLoop):
    """The loop of one workflow body. `now` is the journal's time, in microseconds since the epoch."""

    __slots__ = (
        "_as_completed",
        "_awaiting",
        "_awaiting_at",
        "_cancelled",
        "_is_alone",
        "_is_dropped",
        "_order",
        "_prune_at",
        "_ready",
        "_tasks",
        "_timers",
        "_unhandled",
        "now",
    )

    def __init__(self, timers: TimerSink) -> None:
        self._timers = timers
        self._ready: list[WorkflowHandle | WorkflowTimer] = []
        self._tasks: list[WorkflowTask[Any]] = []
        self._prune_at = 8
        self.now = 0
        self._order = 0
        self._is_dropped = False
        self._is_alone = False
        self._awaiting: types.FrameType | None = None
        self._awaiting_at = -1
        self._unhandled: list[dict[str, Any]] | None = None
        self._cancelled: tuple[list[WorkflowHandle | WorkflowTimer], int, list[int]] | None = None
        self._as_completed: tuple[types.FrameType, dict[int, WorkflowTask[Any]]] | None = None

    # --- for the driver

    def spawn(self, coro: Coroutine[Any, Any, _T], context: contextvars.Context) -> WorkflowTask[_T]:
        """Start the body as a task that runs in `context`; it takes its first step in the next turn."""
        return self._create(coro, None, context)

    def run_turn(self, max_callbacks: int, later: Iterator[None] = NO_MORE) -> bool:
        """Run until nothing is ready (True) or `max_callbacks` have run (False; call again to continue).

        Then the next of `later` is drawn, outside of this loop, and what that made ready is run likewise, until there
        are no more. Call it from a plain callback of the host loop, so that no task of the host is current meanwhile.
        `KeyboardInterrupt` and `SystemExit` of the body pass through; what was ready stays ready.
        """
        previous_loop = events._get_running_loop()
        if previous_loop is self or self._is_dropped:
            raise UsageError("a workflow loop was stepped from its own body, or after it was dropped")
        hooks = sys.get_asyncgen_hooks()
        is_collecting = gc.isenabled()
        gc.disable()
        sys.set_asyncgen_hooks(None, self._finalize_async_generator)
        try:
            while True:
                events._set_running_loop(self)
                if not self._run_ready(max_callbacks):
                    return False
                events._set_running_loop(previous_loop)
                self._cancelled = None
                if next(later, NO_MORE) is NO_MORE:
                    return True
        finally:
            events._set_running_loop(previous_loop)
            sys.set_asyncgen_hooks(*hooks)
            self._cancelled = self._awaiting = None
            if is_collecting:
                gc.enable()

    def _run_ready(self, budget: int) -> bool:
        while batch := self._ready:
            if budget <= 0:
                return False
            if len(batch) > budget:
                self._ready = batch[budget:]
                del batch[budget:]
            else:
                self._ready = []
            budget -= len(batch)
            self._is_alone = len(batch) == 1
            self._awaiting = None
            pending = iter(batch)
            try:
                for handle in pending:
                    if not handle._cancelled:
                        try:
                            handle._context.run(handle._callback, *handle._args)
                        except Exception as error:
                            self._report(handle, error)
            except BaseException:
                self._ready[:0] = pending
                raise
        return True

    def would_be_idle(self, frame: types.FrameType) -> bool:
        """Whether nothing would be ready, and nobody else go on, if what `frame` awaits suspended it now."""
        if self._ready or not self._is_alone:
            return False
        if frame is self._awaiting and frame.f_lasti == self._awaiting_at:
            return True
        if not is_at_await(frame) or not (
            frame is self._awaiting or is_awaited_from(frame, WorkflowLoop._run_ready.__code__)
        ):
            return False
        # A coroutine that has not been suspended since is still awaited by the same ones. An async generator may have
        # been, by whoever iterates it.
        self._awaiting = frame if frame.f_code.co_flags & inspect.CO_COROUTINE else None
        self._awaiting_at = frame.f_lasti
        return True

    def _report(self, handle: asyncio.Handle, error: Exception) -> None:
        self.call_exception_handler({"message": f"error in {handle!r}", "exception": error, "handle": handle})

    def advance_to(self, at: int) -> None:
        """Set the journal's time; a moment that has passed already changes nothing, as where a clock was set back."""
        if at > self.now:
            self.now = at

    def fire(self, timer: WorkflowTimer) -> None:
        """Make the callback of `timer` ready, unless it was cancelled or has fired."""
        if timer._scheduled:
            timer._scheduled = False
            self._ready.append(timer)

    def tasks(self) -> list[WorkflowTask[Any]]:
        """The tasks that are not done, in the order of their creation."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return self._tasks.copy()

    @property
    def unhandled(self) -> list[dict[str, Any]]:
        """What asyncio would have logged: the first contexts given to `call_exception_handler`, oldest first."""
        return [] if self._unhandled is None else self._unhandled

    def drop(self) -> None:
        """Throw the body and the loop away: none of the body's code runs, nothing is reported, memory is freed."""
        if events._get_running_loop() is self:
            raise UsageError("a workflow loop was dropped from its own body")
        self._is_dropped = True
        known, ready, unhandled = self._tasks, self._ready, self._unhandled
        self._tasks, self._ready, self._unhandled, self._as_completed = [], [], None, None
        self._timers = _NOBODY
        if not ready and all(task.done() for task in known):
            return
        coros = silence(known)
        discard([*coros, known, ready, unhandled], self)
        coros.clear()
        forget_keys([*known, self])
        known.clear()

    # --- what asyncio asks of a loop

    def time(self) -> float:
        """The journal's time, in seconds since the epoch."""
        return self.now / MICROSECONDS

    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> WorkflowHandle:
        """Run `callback` in this turn, after everything that is ready now."""
        handle = WorkflowHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> WorkflowTimer:
        """Set a durable timer `delay` seconds from now; zero or less means in this turn, without a timer."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> WorkflowTimer:
        """Set a durable timer for the moment `when` of `time()`; a moment that is not ahead means in this turn.

        Raises `InvalidValueError` for NaN, infinity, and moments more than a thousand years ahead.
        """
        delay = when - self.time()
        # Written so that NaN, which compares false with everything, is refused as well.
        if not delay <= LONGEST_DELAY_SECONDS:
            raise InvalidValueError(f"a timer was asked for in {delay!r} seconds; give a number under a thousand years")
        timer = WorkflowTimer(when, callback, args, self, context)
        timer.call = -1
        if delay <= 0:
            self._ready.append(timer)
        else:
            timer._scheduled = True
            self._timers.timer_created(timer)
        return timer

    def create_future(self) -> WorkflowFuture[Any]:
        """A future of this loop."""
        future: WorkflowFuture[Any] = WorkflowFuture(loop=self)
        self._order = future._order = self._order + 1
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> WorkflowTask[_T]:
        """A task of this loop, which takes its first step in this turn."""
        caller = sys._getframe(1)
        if caller.f_code is ENSURE_FUTURE and (helper := find_as_completed(caller)) is not None:
            return self._task_of_as_completed(helper, coro)
        return self._create(coro, name, context)

    def _create(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        name: object,
        context: contextvars.Context | None,
    ) -> WorkflowTask[_T]:
        task = WorkflowTask(coro, loop=self, name=name, context=context)
        if len(self._tasks) >= self._prune_at:
            self._prune_at = 8 + 2 * len(self.tasks())
        self._tasks.append(task)
        return task

    def skip_turn(self, at: int) -> None:
        """Take a turn as done: count the future as made that nobody needs, and set the time to when it was resolved."""
        self._order += 1
        if at > self.now:
            self.now = at

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _cancel_in_order(self, order: int, cancel: Callable[[object], bool], msg: object) -> bool:
        """Cancel one task of a set of them, so that they are woken in the order of their creation.

        What cancelling one makes ready moves before what cancelling a later one made ready just before.
        """
        ready = self._ready
        start = len(ready)
        is_cancelling = cancel(msg)
        woken = ready[start:]
        if self._cancelled is None or self._cancelled[0] is not ready or self._cancelled[1] != start:
            self._cancelled = ready, start, []
        orders = self._cancelled[2]
        place = bisect.bisect(orders, order)
        first = start - len(orders)
        del ready[start:]
        ready[first + place : first + place] = woken
        orders[place:place] = [order] * len(woken)
        self._cancelled = ready, len(ready), orders
        return is_cancelling

    def get_task_factory(self) -> None:
        """None: tasks are always made by this loop."""
        return None

    def get_debug(self) -> bool:
        """False: debug mode would report to the log, and slow down every step."""
        return False

    def get_exception_handler(self) -> None:
        """None: unhandled errors are collected in `unhandled`."""
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect the report, as `call_exception_handler` does."""
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect the report of an error that nobody handled."""
        if self._is_dropped:
            return
        if self._unhandled is None:
            self._unhandled = []
        if len(self._unhandled) < MOST_UNHANDLED:
            self._unhandled.append(context)

    def is_running(self) -> bool:
        """Whether the body is being stepped right now."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Whether the loop was dropped."""
        return self._is_dropped

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: an async generator is closed when the body lets go of it."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: there is no executor."""

    def _finalize_async_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        # Outside a turn it is the garbage collector, or `drop`, that lets go: no replay would do it at this moment.
        if events._get_running_loop() is self:
            self.create_task(generator.aclose())
        elif not self._is_dropped:
            discard([generator], self)

    # --- asyncio.as_completed

    def _task_of_as_completed(self, helper: types.FrameType, coro: Any) -> WorkflowTask[Any]:
        """The task for one of the awaitables given to `as_completed`, which asks for them in the order of a set.

        That order is by address for raw coroutines. So all tasks are made on the first call, in the caller's order.
        """
        source = wrapped_awaitable(coro)
        if self._as_completed is None or self._as_completed[0] is not helper:
            self._as_completed = helper, self._tasks_in_order(raw_awaitables(helper), source, coro)
        elif source is not coro:
            coro.close()
        made = self._as_completed[1]
        task = made.pop(id(source))
        if not made:
            self._as_completed = None
        return task

    def _tasks_in_order(self, awaitables: Mapping[int, Any], source: object, coro: Any) -> dict[int, WorkflowTask[Any]]:
        return {
            key: self._create(coro if one is source else as_coroutine(one), None, None)
            for key, one in awaitables.items()
        }
