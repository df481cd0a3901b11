"""Pauses of the garbage collector.

It looks at all that was made lately whenever so many objects were made. Code that makes tens of thousands of them, and
drops none, spends a quarter of its time on that, for nothing.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No object that only a cycle keeps is freed in the block. For short blocks that do not await and make no such.

    Blocks of several threads may overlap: the collector goes on when the first of them ends, at the latest with the
    last. One that was off stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
