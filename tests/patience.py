"""Bounds on waits in tests, which are longer where the machine has less time for them.

On a machine of the usual speed a bound is what is written. It is never shorter.
"""

import os
import time
from typing import Final

_USUAL_SECONDS: Final = 0.6
"""What `_work` takes at most on a machine of the usual speed that is busy with something else too."""

_VARIABLE: Final = "TESTS_SLOWNESS"
"""Hands on what was measured, so that all processes of a session of tests have the same bounds."""


def _work() -> int:
    return sum(number * number for number in range(10_000_000))


def _measured() -> float:
    began = time.monotonic()
    _work()
    return max(1.0, (time.monotonic() - began) / _USUAL_SECONDS)


SLOWNESS: Final = float(os.environ.get(_VARIABLE) or _measured())
"""How many times slower than usual the machine is; at least 1."""

os.environ[_VARIABLE] = str(SLOWNESS)


def patience(seconds: float) -> float:
    """How long to wait on this machine for what takes at most so long on a usual one."""
    return seconds * SLOWNESS
