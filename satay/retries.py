"""When a failed attempt is tried again, and after how long.

The delay is exponential, capped, with full jitter: uniform between zero and `first * factor ** (failures - 1)`, at most
`longest`. Full jitter spreads callers that failed together best (Marc Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015).
"""

import math
from dataclasses import dataclass

from satay.errors import CodecError, InvalidValueError

MAX_RETRIES = 10_000
"""The largest number of retries that a task may ask for."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait between attempts, in seconds. `jitter=False` waits the full delay each time."""

    first: float = 0.5
    factor: float = 2.0
    longest: float = 60.0
    jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("first", "factor", "longest"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InvalidValueError(f"Backoff({name}={value!r}): it must be a finite number, zero or more")

    def ceiling(self, failures: int) -> float:
        """The longest wait after that many failed attempts, in seconds."""
        try:
            return min(self.longest, self.first * self.factor ** (failures - 1))
        except OverflowError:
            return self.longest


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a task is tried again, and after which errors."""

    retries: int = 0
    backoff: Backoff = Backoff()
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    no_retry_on: tuple[type[BaseException], ...] = ()

    def allows(self, error: BaseException, failures: int) -> bool:
        """Whether to try again after `error`, the last of `failures` failed attempts.

        A value that cannot be encoded fails the same way each time, so it is never tried again.
        """
        if failures > self.retries or isinstance(error, CodecError):
            return False
        return isinstance(error, self.retry_on) and not isinstance(error, self.no_retry_on)
