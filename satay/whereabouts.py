"""Where a suspended task waits: the line of the user's code, found through the frames and tasks that it awaits.

Code of asyncio, contextlib and satay itself is passed over. Looking changes nothing, and ends after so many steps.
"""

import asyncio
import contextlib
import gc
import os
import types
from asyncio import isfuture
from collections.abc import Iterable, Iterator
from typing import Any, Final

_PLUMBING: Final = (
    os.path.dirname(asyncio.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    contextlib.__file__,
)

_MOST_HOPS: Final = 1_000


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
