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
import builtins
import contextlib
import contextvars
import gc
import inspect
import os
import sys
import threading
import types
import weakref
from asyncio import events, isfuture, tasks
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias, TypeVar, TypeVarTuple

from satay.errors import InvalidValueError, UsageError, WorkflowSideEffectError

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
        raise WorkflowSideEffectError(f"a workflow asked for `loop.{name}`, which no replay can repeat: {remedy}")

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
    """The loop of one workflow body."""

    __slots__ = (
        "_as_completed",
        "_cancelled",
        "_is_dropped",
        "_now_seconds",
        "_order",
        "_prune_at",
        "_ready",
        "_tasks",
        "_timers",
        "_unhandled",
    )

    def __init__(self, timers: TimerSink) -> None:
        self._timers = timers
        self._ready: list[WorkflowHandle | WorkflowTimer] = []
        self._tasks: list[WorkflowTask[Any]] = []
        self._prune_at = 8
        self._now_seconds = 0.0
        self._order = 0
        self._is_dropped = False
        self._unhandled: list[dict[str, Any]] | None = None
        self._cancelled: tuple[list[WorkflowHandle | WorkflowTimer], int, list[int]] | None = None
        self._as_completed: tuple[types.FrameType, dict[int, WorkflowTask[Any]]] | None = None

    # --- for the driver

    def spawn(self, coro: Coroutine[Any, Any, _T], context: contextvars.Context) -> WorkflowTask[_T]:
        """Start the body as a task that runs in `context`; it takes its first step in the next turn."""
        return self._create(coro, None, context)

    def run_turn(self, max_callbacks: int) -> bool:
        """Run until nothing is ready (True) or `max_callbacks` have run (False; call again to continue).

        Call it from a plain callback of the host loop, so that no task of the host is current meanwhile.
        `KeyboardInterrupt` and `SystemExit` of the body pass through; what was ready stays ready.
        """
        previous_loop = events._get_running_loop()
        if previous_loop is self or self._is_dropped:
            raise UsageError("a workflow loop was stepped from its own body, or after it was dropped")
        hooks = sys.get_asyncgen_hooks()
        is_collecting = gc.isenabled()
        gc.disable()
        sys.set_asyncgen_hooks(None, self._finalize_async_generator)
        events._set_running_loop(self)
        try:
            return self._run_ready(max_callbacks)
        finally:
            events._set_running_loop(previous_loop)
            sys.set_asyncgen_hooks(*hooks)
            self._cancelled = None
            if is_collecting:
                gc.enable()

    def _run_ready(self, budget: int) -> bool:
        while batch := self._ready:
            if budget <= 0:
                return False
            self._ready = batch[budget:]
            del batch[budget:]
            budget -= len(batch)
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

    def _report(self, handle: asyncio.Handle, error: Exception) -> None:
        self.call_exception_handler({"message": f"error in {handle!r}", "exception": error, "handle": handle})

    def advance_to(self, seconds: float) -> None:
        """Set the journal time; a moment that has passed already changes nothing."""
        if seconds > self._now_seconds:
            self._now_seconds = seconds

    def fire(self, timer: WorkflowTimer) -> None:
        """Make the callback of `timer` ready, unless it was cancelled or has fired."""
        if timer._scheduled:
            timer._scheduled = False
            self._ready.append(timer)

    def tasks(self) -> list[WorkflowTask[Any]]:
        """The tasks that are not done, in the order of their creation."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return self._tasks.copy()

    def where_waiting(self, task: asyncio.Task[Any]) -> str | None:
        """The innermost line of the user's code in which `task` is suspended, as `file.py:123 in name`, or None.

        Follows what the task awaits, into other tasks and the first pending part of a `gather`, `wait` or `TaskGroup`
        too.
        """
        return _where_waiting(task)

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
        coros = _silenced(known)
        _discard([*coros, known, ready, unhandled], self)
        coros.clear()
        _forget_keys([*known, self])
        known.clear()

    # --- what asyncio asks of a loop

    def time(self) -> float:
        """The journal's time, in seconds since the epoch."""
        return self._now_seconds

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
        return self.call_at(self._now_seconds + delay, callback, *args, context=context)

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
        delay = when - self._now_seconds
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
        if caller.f_code is _ENSURE_FUTURE and (helper := _as_completed_frame(caller)) is not None:
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
            _discard([generator], self)

    # --- asyncio.as_completed

    def _task_of_as_completed(self, helper: types.FrameType, coro: Any) -> WorkflowTask[Any]:
        """The task for one of the awaitables given to `as_completed`, which asks for them in the order of a set.

        That order is by address for raw coroutines. So all tasks are made on the first call, in the caller's order.
        """
        source = _wrapped_awaitable(coro)
        if self._as_completed is None or self._as_completed[0] is not helper:
            self._as_completed = helper, self._tasks_in_order(_argument_of_as_completed(helper), source, coro)
        elif source is not coro:
            coro.close()
        made = self._as_completed[1]
        task = made.pop(id(source))
        if not made:
            self._as_completed = None
        return task

    def _tasks_in_order(self, awaitables: object, source: object, coro: Any) -> dict[int, WorkflowTask[Any]]:
        raw = {id(one): one for one in _in_callers_order(awaitables) if inspect.isawaitable(one) and not isfuture(one)}
        return {
            key: self._create(coro if one is source else _as_coroutine(one), None, None) for key, one in raw.items()
        }


def _in_callers_order(awaitables: object) -> Iterable[Any]:
    if isinstance(awaitables, (Sequence, Mapping, KeysView, ValuesView)):
        return awaitables
    if isinstance(awaitables, Set) and sum(not isfuture(one) for one in awaitables) == 1:
        return awaitables
    raise UsageError(
        "asyncio.as_completed was given coroutines in a set or an iterator, which have no order that a replay could "
        "repeat: pass a list, or wrap each in asyncio.create_task first"
    )


_ENSURE_FUTURE: Final[types.CodeType] = getattr(tasks, "_ensure_future", tasks.ensure_future).__code__
# A class since 3.13, a generator function before.
_AS_COMPLETED: Final[types.CodeType] = (
    vars(getattr(tasks, "_AsCompletedIterator"))["__init__"]  # noqa: B009  # it has no type before 3.13
    if hasattr(tasks, "_AsCompletedIterator")
    else tasks.as_completed
).__code__


def _as_completed_frame(ensure_future: types.FrameType) -> types.FrameType | None:
    """The frame of `asyncio.as_completed`, if that called `ensure_future`."""
    frame = ensure_future.f_back
    # 3.11: the set comprehension, and the wrapper of `ensure_future`, have frames of their own. A frame of the user in
    # between is a generator that was passed to `as_completed` and makes its own tasks.
    while frame is not None and frame.f_code.co_filename == _ENSURE_FUTURE.co_filename:
        if frame.f_code is _AS_COMPLETED:
            return frame
        frame = frame.f_back
    return None


def _argument_of_as_completed(helper: types.FrameType) -> object:
    variables = helper.f_locals
    return variables["aws"] if "aws" in variables else variables["fs"]


def _wrapped_awaitable(coro: Any) -> object:
    """What the caller passed: the coroutine itself, or the awaitable that `ensure_future` wrapped in one."""
    frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
    if frame is None:
        return coro
    code = frame.f_code
    is_wrapper = code.co_name == "_wrap_awaitable" and code.co_filename == _ENSURE_FUTURE.co_filename
    return frame.f_locals["awaitable"] if is_wrapper else coro


def _as_coroutine(awaitable: Any) -> Coroutine[Any, Any, Any]:
    if asyncio.iscoroutine(awaitable):
        return awaitable

    async def wait() -> object:
        return await awaitable

    return wait()


# --- throwing a body away ---------------------------------------------------------------------------------------------
#
# A suspended coroutine or generator that is freed, or closed, runs its `finally` blocks first: the interpreter enters
# its frame with GeneratorExit. It cannot enter a frame at the recursion limit. There, closing one fails before its
# first instruction, and leaves it finished and its frame cleared. An async generator runs nothing by itself when it is
# freed; that is up to the finalizer hook, which is ours.
#
# Only closing happens at the limit. Everything that the frames refer to is kept until the stack is short again, because
# freeing it may run Python code that must not fail, such as the callbacks of weak dictionaries. And what is suspended
# must be found, not just let go: one that is part of a cycle would be closed later, by the garbage collector.

_Closable: TypeAlias = "types.CoroutineType[Any, Any, Any] | types.GeneratorType[Any, Any, Any]"

MOST_OWNED: Final = 50_000
"""Objects of a body that `drop` looks at; what is suspended behind more than these is freed at the limit, unseen."""

MOST_SPECULATED: Final = 2_000
"""Objects that `drop` looks at besides, in search of cycles: they may turn out to belong to the rest of the process."""

_MOST_SHARED: Final = 256
"""An object with more references than this belongs to the process, not to one body."""

_SPARE_LEVELS: Final = 1 if sys.version_info < (3, 12) else 0
"""Levels that the call of `close` takes itself: until 3.11, calls of C functions count towards the recursion limit."""

_LEAVES: Final = (
    type,
    types.ModuleType,
    types.CodeType,
    asyncio.AbstractEventLoop,
    contextvars.Context,
    contextvars.ContextVar,
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
)


def _discard(roots: Sequence[Any], loop: WorkflowLoop) -> None:
    """Finish what is suspended among `roots`, or held by nothing but them, without running any of it."""
    hook, trace, profile, is_collecting = sys.unraisablehook, sys.gettrace(), sys.getprofile(), gc.isenabled()
    gc.disable()
    reach = _Reach(roots, loop if loop.is_closed() else None)
    suspended = reach.suspended()
    sys.unraisablehook = _IGNORE
    sys.settrace(None)
    # A profiler written in C is not callable, cannot be put back, and needs no level of the stack.
    has_profile_function = callable(profile)
    if has_profile_function:
        sys.setprofile(None)
    try:
        _close_at_recursion_limit(suspended, {} if reach.is_complete else reach.found)
        for future in reach.futures:
            # Forgets its callbacks, and with them the cycles through the tasks and futures that wait for each other.
            asyncio.Future.__init__(future, loop=loop)
    finally:
        reach.futures.clear()
        # A frame that a traceback keeps alive also keeps the frames from which it was closed, and so these variables.
        reach.found.clear()
        if has_profile_function:
            sys.setprofile(profile)
        sys.settrace(trace)
        sys.unraisablehook = hook
        if is_collecting:
            gc.enable()


_IGNORE: Final[Callable[[Any], None]] = deque[Any](maxlen=0).append
"""An unraisable hook that is C code: at the recursion limit nothing else can be called."""


def _close_at_recursion_limit(suspended: list[_Closable], to_free: dict[int, Any]) -> int:
    """Call itself to the limit, close all of `suspended` and empty `to_free` there; returns the levels from here down.

    The limit itself is not touched, because it belongs to every thread of the process.
    """
    try:
        levels = _close_at_recursion_limit(suspended, to_free)
    except RecursionError:
        levels = 0
    if levels == _SPARE_LEVELS:
        while suspended:
            try:  # noqa: SIM105  # contextlib.suppress is Python code, which cannot run here
                suspended.pop().close()
            except (RecursionError, ValueError):  # ValueError: it is running
                pass
        to_free.clear()
    return levels + 1


_CLOSABLE: Final = (types.CoroutineType, types.GeneratorType)


class _Reach:
    """What some roots reach, and which of it would be freed with them.

    An object would be freed if every reference to it comes from what would be freed: it is the trial deletion of the
    garbage collector (https://devguide.python.org/internals/garbage-collector), for one small part of the heap. What
    counting references alone would free is followed first, to its end. The rest is in cycles, or is not the body's.

    The pending futures of `loop` count as roots: the driver may hold them, but has no claim on what waits for them.
    """

    def __init__(self, roots: Sequence[Any], loop: WorkflowLoop | None) -> None:
        self.found = {id(root): root for root in roots}
        self._roots = set(self.found)
        self._counts = dict.fromkeys(self.found, 0)
        self._kinds: dict[type, bool] = {}
        followed = set(self.found)
        self._follow(list(roots), followed, MOST_OWNED, is_speculative=False)
        self.is_complete = len(followed) < MOST_OWNED
        rest = [one for key, one in self.found.items() if key not in followed]
        self._follow(rest, followed, len(followed) + MOST_SPECULATED, is_speculative=True)
        self.futures = [one for one in self.found.values() if _is_pending_on(one, loop)]
        self._roots.update(map(id, self.futures))

    def _follow(self, pending: list[Any], followed: set[int], limit: int, *, is_speculative: bool) -> None:
        found, counts = self.found, self._counts
        for one in pending:
            if len(followed) >= limit:
                return
            followed.add(id(one))
            for referent in _referents(one):
                key = id(referent)
                if key not in counts:
                    if self._is_foreign(referent):
                        continue
                    counts[key] = 0
                    found[key] = referent
                    if is_speculative:
                        pending.append(referent)
                counts[key] += 1
                # Besides those counted: from `found`, the list of referents, the variable and the argument.
                if not is_speculative and key not in followed and sys.getrefcount(referent) - 4 == counts[key]:
                    pending.append(referent)

    def suspended(self) -> list[_Closable]:
        """The coroutines and generators that would be freed."""
        kept = self._kept()
        return [one for key, one in self.found.items() if isinstance(one, _CLOSABLE) and key not in kept]

    def _kept(self) -> set[int]:
        """The ids of those that something else refers to, directly or through others of them; never a root."""
        probe = object()
        self.found[id(probe)] = probe
        references = [sys.getrefcount(one) for one in self.found.values()]
        del self.found[id(probe)]
        # `probe` has a reference from a variable of its own, and all those that counting adds.
        own = references.pop() - 1
        outside = [
            one
            for (key, one), total in zip(self.found.items(), references, strict=True)
            if total - own > self._counts[key] and key not in self._roots
        ]
        kept = set(map(id, outside))
        for one in outside:
            for referent in _referents(one):
                key = id(referent)
                if key in self.found and key not in kept and key not in self._roots:
                    kept.add(key)
                    outside.append(referent)
        return kept

    def _is_foreign(self, one: Any) -> bool:
        """Whether `one` holds nothing of a body, or belongs to the process or to the engine."""
        kind = type(one)
        is_foreign = self._kinds.get(kind)
        if is_foreign is None:
            is_foreign = self._kinds[kind] = _is_foreign_kind(kind)
        return is_foreign or sys.getrefcount(one) > _MOST_SHARED


def _referents(one: Any) -> Iterable[Any]:
    if isinstance(one, types.FunctionType):
        # Its globals would lead to the whole module.
        outer = (id(one.__globals__), id(vars(builtins)))
        return [referent for referent in gc.get_referents(one) if id(referent) not in outer]
    return gc.get_referents(one)


def _is_foreign_kind(kind: type) -> bool:
    if kind is type(None) or kind in (asyncio.Task, asyncio.Future) or issubclass(kind, _LEAVES):
        return True
    module = str(kind.__module__)
    return module.startswith("satay.") and module != __name__


def _silenced(known: Iterable[WorkflowTask[Any]]) -> list[Any]:
    """The coroutines of those that are not done, which will not be reported when they are freed."""
    coros = []
    for task in known:
        task._log_destroy_pending = False
        if not task.done():
            coros.append(task.get_coro())
    return coros


def _forget_keys(keys: Iterable[object]) -> None:
    """Take `keys` out of every weak dictionary: an entry whose value leads back to its key is never freed otherwise.

    anyio keeps the cancel scope of a task in such an entry, which the code of the task would remove when it ends.
    """
    for key in keys:
        for reference in weakref.getweakrefs(key):
            # The callback has a weak reference to its dictionary as the default of its last parameter.
            for default in getattr(reference.__callback__, "__defaults__", None) or ():
                owner = default() if isinstance(default, weakref.ref) else None
                if isinstance(owner, weakref.WeakKeyDictionary):
                    owner.pop(key, None)


def _is_pending_on(one: Any, loop: WorkflowLoop | None) -> bool:
    return isinstance(one, asyncio.Future) and not one.done() and one.get_loop() is loop


# --- where a body waits -----------------------------------------------------------------------------------------------

_PLUMBING: Final = (
    os.path.dirname(asyncio.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    contextlib.__file__,
)

_MOST_HOPS: Final = 1_000


def _where_waiting(task: asyncio.Task[Any]) -> str | None:
    place: str | None = None
    seen: set[int] = set()
    current: Any = task
    for _ in range(_MOST_HOPS):
        if current is None or id(current) in seen:
            break
        seen.add(id(current))
        inner: Any = None
        if isinstance(current, asyncio.Task):
            for frame in _suspended_frames(current.get_coro()):
                if frame.f_code.co_filename.startswith(_PLUMBING):
                    inner = _first_pending_in(frame) or inner
                else:
                    place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                    inner = None
            inner = inner or _waiter_of(current)
        else:
            inner = _first_pending(getattr(current, "_children", ()))
        current = inner
    return place


def _waiter_of(task: asyncio.Task[Any]) -> Any:
    return getattr(task, "_fut_waiter", None)


def _suspended_frames(awaitable: Any) -> Iterator[types.FrameType]:
    """The frames from `awaitable` inwards."""
    for _ in range(_MOST_HOPS):
        for prefix in ("cr", "gi", "ag"):
            frame = getattr(awaitable, f"{prefix}_frame", None)
            if frame is not None:
                yield frame
                awaitable = getattr(awaitable, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await")
                break
        else:
            # Awaitables made in C, such as `__anext__` of an async generator, show what they wait for to nobody else.
            inside = (one for one in gc.get_referents(awaitable) if isinstance(one, _SUSPENDABLE))
            awaitable = next(inside, None)
        if awaitable is None or isinstance(awaitable, asyncio.Future):
            return


_SUSPENDABLE: Final = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


def _first_pending_in(frame: types.FrameType) -> Any:
    """The first pending task for which a frame of `asyncio.wait` or of a `TaskGroup` waits."""
    variables = frame.f_locals
    candidates = variables.get("fs") or getattr(variables.get("self"), "_tasks", None)
    return _first_pending(candidates if isinstance(candidates, Iterable) else ())


def _first_pending(futures: Iterable[Any]) -> Any:
    return next((future for future in futures if isfuture(future) and not future.done()), None)
