"""Chains of awaits: whether a frame is awaited all the way from the step of the task that runs, and by nothing else.

Where it is, to suspend there is to give control back to the loop at once. Where something in between drives a coroutine
by hand, has a task of its own start eagerly, or is not Python, it is not known who would go on.
"""

import asyncio
from collections.abc import Iterator
from opcode import opmap
from types import CodeType, FrameType
from typing import Final

_SEND: Final = opmap.get("SEND", -1)
"""The instruction at which a frame is while it awaits another one (also `yield from`); an interpreter without it has no
chains that are known."""

_CACHE: Final = opmap.get("CACHE", -1)
"""What follows an instruction that keeps something for itself. Some interpreters count it in, some do not."""


def is_at_await(frame: FrameType) -> bool:
    """Whether a frame that is running another one awaits that."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while code[at] == _CACHE and at > 0:
        at -= 2
    return code[at] == _SEND


def is_awaited_from(frame: FrameType, step: CodeType) -> bool:
    """Whether `frame` is the end of a chain of awaits that begins with the coroutine of the current task.

    `step` is the code of the loop's method that takes the steps of its tasks.
    """
    first = frame
    for outer in _outwards(frame):
        if outer.f_code is step:
            task = asyncio.current_task()
            # A task that was started eagerly, within the step of another one, has a chain that begins further inside.
            return task is not None and getattr(task.get_coro(), "cr_frame", None) is first
        if not is_at_await(outer):
            return False
        first = outer
    return False


def _outwards(frame: FrameType) -> Iterator[FrameType]:
    while (outer := frame.f_back) is not None:
        yield outer
        frame = outer
