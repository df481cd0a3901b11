"""Which awaitables `asyncio.as_completed` was given, and in which order.

It puts them into a set before it makes their tasks, and a set of coroutines is in the order of their addresses. So the
loop, which is asked for each task, looks up in the caller's frame what the body passed.
"""

import asyncio
import inspect
import types
from asyncio import isfuture, tasks
from collections.abc import Coroutine, Iterable, KeysView, Mapping, Sequence, Set, ValuesView
from typing import Any, Final

from satay.errors import UsageError

ENSURE_FUTURE: Final[types.CodeType] = getattr(tasks, "_ensure_future", tasks.ensure_future).__code__
# A class since 3.13, a generator function before.
_AS_COMPLETED: Final[types.CodeType] = (
    vars(getattr(tasks, "_AsCompletedIterator"))["__init__"]  # noqa: B009  # it has no type before 3.13
    if hasattr(tasks, "_AsCompletedIterator")
    else tasks.as_completed
).__code__


def find_as_completed(ensure_future: types.FrameType) -> types.FrameType | None:
    """The frame of `asyncio.as_completed`, if that called `ensure_future`."""
    frame = ensure_future.f_back
    # 3.11: the set comprehension, and the wrapper of `ensure_future`, have frames of their own. A frame of the user in
    # between is a generator that was passed to `as_completed` and makes its own tasks.
    while frame is not None and frame.f_code.co_filename == ENSURE_FUTURE.co_filename:
        if frame.f_code is _AS_COMPLETED:
            return frame
        frame = frame.f_back
    return None


def raw_awaitables(helper: types.FrameType) -> dict[int, Any]:
    """By their ids: what `as_completed`, of the frame `helper`, makes tasks of, in the order of its caller.

    Raises `UsageError` if the caller gave no order.
    """
    awaitables = _in_callers_order(_argument(helper))
    return {id(one): one for one in awaitables if inspect.isawaitable(one) and not isfuture(one)}


def _in_callers_order(awaitables: object) -> Iterable[Any]:
    if isinstance(awaitables, (Sequence, Mapping, KeysView, ValuesView)):
        return awaitables
    if isinstance(awaitables, Set) and sum(not isfuture(one) for one in awaitables) == 1:
        return awaitables
    raise UsageError(
        "asyncio.as_completed was given coroutines in a set or an iterator, which have no order that a replay could "
        "repeat: pass a list, or wrap each in asyncio.create_task first"
    )


def _argument(helper: types.FrameType) -> object:
    variables = helper.f_locals
    return variables["aws"] if "aws" in variables else variables["fs"]


def wrapped_awaitable(coro: Any) -> object:
    """What the caller passed: the coroutine itself, or the awaitable that `ensure_future` wrapped in one."""
    frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
    if frame is None:
        return coro
    code = frame.f_code
    is_wrapper = code.co_name == "_wrap_awaitable" and code.co_filename == ENSURE_FUTURE.co_filename
    return frame.f_locals["awaitable"] if is_wrapper else coro


def as_coroutine(awaitable: Any) -> Coroutine[Any, Any, Any]:
    """`awaitable` as what a task can run."""
    if asyncio.iscoroutine(awaitable):
        return awaitable

    async def wait() -> object:
        return await awaitable

    return wait()
