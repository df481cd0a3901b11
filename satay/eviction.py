"""Throwing a suspended body away without running any of its code, and freeing what only it holds.

A suspended coroutine or generator that is freed, or closed, runs its `finally` blocks first: the interpreter enters
its frame with GeneratorExit. It cannot enter a frame at the recursion limit. There, closing one fails before its
first instruction, and leaves it finished and its frame cleared. An async generator runs nothing by itself when it is
freed; that is up to the finalizer hook, which is ours.

Only closing happens at the limit. Everything that the frames refer to is kept until the stack is short again, because
freeing it may run Python code that must not fail, such as the callbacks of weak dictionaries. And what is suspended
must be found, not just let go: one that is part of a cycle would be closed later, by the garbage collector.
"""

import asyncio
import builtins
import contextvars
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

_Closable: TypeAlias = "types.CoroutineType[Any, Any, Any] | types.GeneratorType[Any, Any, Any]"

MOST_OWNED: Final = 50_000
"""Objects of a body that `discard` looks at; what is suspended behind more than these is freed at the limit, unseen."""

MOST_SPECULATED: Final = 2_000
"""Objects that `discard` looks at besides, in search of cycles: they may belong to the rest of the process."""

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

_OF_A_LOOP: Final = (asyncio.Future, asyncio.Handle)
"""What a body holds of the engine, and what holds the body: tasks, futures and callbacks of its loop."""


class LoopTask(Protocol):
    """A task of a loop whose body can be thrown away."""

    _log_destroy_pending: bool

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def get_coro(self) -> object:
        """Its coroutine."""
        ...


def discard(roots: Sequence[Any], loop: asyncio.AbstractEventLoop) -> None:
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

    def __init__(self, roots: Sequence[Any], loop: asyncio.AbstractEventLoop | None) -> None:
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
    return str(kind.__module__).startswith("satay.") and not issubclass(kind, _OF_A_LOOP)


def silence(known: Iterable[LoopTask]) -> list[Any]:
    """The coroutines of those that are not done, which will not be reported when they are freed."""
    coros = []
    for task in known:
        task._log_destroy_pending = False
        if not task.done():
            coros.append(task.get_coro())
    return coros


def forget_keys(keys: Iterable[object]) -> None:
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


def _is_pending_on(one: Any, loop: asyncio.AbstractEventLoop | None) -> bool:
    return isinstance(one, asyncio.Future) and not one.done() and one.get_loop() is loop
