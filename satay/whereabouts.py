"""Where a body is: the line of the user's code in which a task waits, or from which something was called.

Code of asyncio, contextlib and satay itself is passed over. Looking changes nothing, and ends after so many steps.
"""

import asyncio
import contextlib
import gc
import os
import sys
import sysconfig
import types
from asyncio import isfuture
from collections.abc import Iterable, Iterator
from typing import Any, Final

_PLUMBING: Final = (
    os.path.dirname(asyncio.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    contextlib.__file__,
)

_LIBRARIES: Final = tuple(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib", "platlib"))
"""Where code lives that a body calls into, but is not written in, as a rule."""

_MOST_HOPS: Final = 1_000


def find_calling_line(frame: types.FrameType | None, end: types.CodeType) -> tuple[str | None, str | None]:
    """Who called, looking outwards from `frame` as far as a frame of `end`: `file.py:123 in name`, and what it called.

    The line is the innermost outside of the libraries. The call is such as `asyncio.to_thread`; None where the line
    itself did what `frame` does. Either is None where it cannot be told.
    """
    called: str | None = None
    for _ in range(_MOST_HOPS):
        if frame is None or frame.f_code is end:
            break
        if not frame.f_code.co_filename.startswith((*_PLUMBING, *_LIBRARIES)):
            return _place(frame), called
        called = _public_name(frame)
        frame = frame.f_back
    return None, called


def _public_name(frame: types.FrameType) -> str:
    """The name of a frame's function: in the package that exports it, else in its module."""
    module, code = str(frame.f_globals.get("__name__")), frame.f_code
    package = module.partition(".")[0]
    exported = getattr(sys.modules.get(package), "__dict__", {}).get(code.co_name)
    return f"{package if getattr(exported, '__code__', None) is code else module}.{code.co_qualname}"


def _place(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def find_waiting_line(task: asyncio.Task[Any]) -> str | None:
    """The innermost line of the user's code in which `task` is suspended, as `file.py:123 in name`, or None.

    Follows what the task awaits, into other tasks and the first pending part of a `gather`, `wait` or `TaskGroup` too.
    """
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
                    place = _place(frame)
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
