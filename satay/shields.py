"""Keeps work going to its end whose caller is cancelled: what is half done is worse than what is late."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


async def finish(work: Coroutine[Any, Any, R]) -> R:
    """Do work to its end, however often the caller is cancelled meanwhile, and hand on what it returns or raises.

    A cancellation of the caller is passed on then, whatever came of the work.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        raise cancellation from failure
    raise cancellation
