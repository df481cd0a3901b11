"""Bounds on waits in tests, which are longer where the machine has less time for them.

On a machine of the usual speed a bound is what is written. It is never shorter.
"""

import os
import time
from typing import Final

_USUAL_SECONDS: Final = 0.6
"""What all of `_work` takes at most on a machine of the usual speed that is busy with something else too."""

_VARIABLE: Final = "TESTS_SLOWNESS"
"""Hands on what was measured, so that all processes of a session of tests have the same bounds."""


_ALL: Final = 10_000_000

_SOME: Final = 1_000_000


def _work(numbers: int) -> int:
    return sum(number * number for number in range(numbers))


def _measured(numbers: int) -> float:
    began = time.monotonic()
    _work(numbers)
    return max(1.0, (time.monotonic() - began) / _USUAL_SECONDS * (_ALL / numbers))


SLOWNESS: Final = float(os.environ.get(_VARIABLE) or _measured(_ALL))
"""How many times slower than usual the machine is; at least 1."""

os.environ[_VARIABLE] = str(SLOWNESS)


def patience(seconds: float) -> float:
    """How long to wait on this machine for what takes at most so long on a usual one."""
    return seconds * SLOWNESS


def patience_now(seconds: float) -> float:
    """`patience`, on a machine that at this moment may have even less time than when the tests began."""
    return seconds * max(SLOWNESS, _measured(_SOME))
