"""When a failed attempt is tried again, and after how long.

The delay is exponential, capped, with full jitter: uniform between zero and `first * factor ** (failures - 1)`, at most
`longest`. Full jitter spreads callers that failed together best (Marc Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015).
"""

from dataclasses import dataclass
from typing import NamedTuple

from satay.arguments import checked_amount, checked_flag
from satay.errors import CodecError

MAX_RETRIES = 10_000
"""The largest number of retries that a task may ask for."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait between attempts, in seconds. `jitter=False` waits the full delay each time.

    Raises `InvalidValueError` for what is no finite number, zero or more.
    """

    first: float = 0.5
    factor: float = 2.0
    longest: float = 60.0
    jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("first", "factor", "longest"):
            checked_amount(getattr(self, name), f"{name} of Backoff()")
        checked_flag(self.jitter, "jitter of Backoff()")

    def ceiling(self, failures: int) -> float:
        """The longest wait after that many failed attempts, in seconds."""
        try:
            return min(self.longest, self.first * self.factor ** (failures - 1))
        except OverflowError:
            return self.longest


class RetryPolicy(NamedTuple):
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
