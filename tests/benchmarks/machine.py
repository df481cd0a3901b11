"""How fast the machine is at the moment: times in seconds mean little without it, where it is shared with others."""

import time
from collections.abc import Sequence
from typing import Final

from tests.benchmarks.figures import Figure

SECONDS: Final = 0.3
"""How long the loop turns."""


def turns() -> float:
    """How many million times a second Python looks at the clock and counts that."""
    began = now = time.perf_counter()
    count = 0
    while now - began < SECONDS:
        now = time.perf_counter()
        count += 1
    return count / (now - began) / 1e6


def machine_figure(samples: Sequence[float]) -> Figure:
    """The speed of the machine, before each benchmark and after the last one."""
    return Figure("looks at the clock in a loop of Python: how fast the machine is", "million/s", samples)
