"""The only place that asks the system for time, ids or chance.

Time is an integer: microseconds since 1970-01-01 UTC. Everything above takes a `Clock` and a `Chance`, so a test can
hand in its own.
"""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROSECONDS = 1_000_000
"""Microseconds in a second."""

LONGEST_NAP_SECONDS = 60.0
"""A system timer is never set further ahead, so that a clock that jumps or a machine that slept is noticed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Alarm(Protocol):
    """A callback that is due at a moment and can be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Where the engine takes the time from, and what wakes it."""

    def now(self) -> int:
        """The moment, in microseconds since the epoch."""
        ...

    def call_at(self, due: int, callback: Callable[[], None]) -> Alarm:
        """Call `callback` on the running loop, once `now()` has reached `due`."""
        ...


class SystemClock:
    """The wall clock of this machine and the timers of the running event loop.

    What is due is a moment of the wall clock, because it outlives the process and is shared with others. So a machine
    that slept wakes what came due meanwhile, and a clock that is set back by an hour delays by an hour what waits.
    """

    def now(self) -> int:
        return time.time_ns() // 1000

    def call_at(self, due: int, callback: Callable[[], None]) -> Alarm:
        return _SystemAlarm(self, due, callback)


class _SystemAlarm:
    """Sleeps in naps, because loop timers follow the monotonic clock and `due` is on the wall clock."""

    __slots__ = ("_callback", "_clock", "_due", "_loop", "_timer")

    def __init__(self, clock: SystemClock, due: int, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._nap()

    def _nap(self) -> None:
        left = self._due - self._clock.now()
        if left <= 0 and self._timer is not None:
            self._callback()
            return
        seconds = min(max(left, 0) / MICROSECONDS, LONGEST_NAP_SECONDS)
        self._timer = self._loop.call_later(seconds, self._nap)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Chance:
    """Ids, seeds and jitter: from the system's entropy, or repeatable from `seed`."""

    def __init__(self, seed: int | None = None) -> None:
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)

    def new_id(self) -> str:
        """A fresh id: 128 random bits as 32 hexadecimal digits."""
        return f"{self._random.getrandbits(128):032x}"

    def new_seed(self) -> int:
        """A fresh seed for a run's own random numbers."""
        return self._random.getrandbits(63)

    def uniform(self, low: float, high: float) -> float:
        """A number between `low` and `high`."""
        return self._random.uniform(low, high)


def monotonic() -> float:
    """Seconds on a clock that never goes back, for measuring how long something takes."""
    return time.monotonic()


def to_datetime(at: int) -> datetime:
    """The aware UTC datetime of a moment."""
    return _EPOCH + timedelta(microseconds=at)


def to_microseconds(moment: datetime) -> int:
    """The moment of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
