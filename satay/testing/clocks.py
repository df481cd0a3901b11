"""A clock that moves by hand, or by itself as soon as nothing happens without it.

The idea of a clock that jumps is that of trio's `MockClock`.
"""

import asyncio
import contextvars
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

from satay.clock import MICROSECONDS, to_microseconds
from satay.context import current_attempt
from satay.errors import InvalidValueError

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Where a clock begins that was told nothing else."""

STILL_PASSES: Final = 8
"""In so many passes of the event loop nothing may happen before an app counts as idle."""

GLANCE_SECONDS: Final = 0.001
"""How long, of real time, the clock waits for a sign before it looks again by itself."""


class Watched(Protocol):
    """What a clock has to know of an app that lives by it."""

    @property
    def is_still(self) -> bool:
        """Whether nothing goes on there but attempts."""
        ...

    @property
    def attempts(self) -> int:
        """How many attempts run."""
        ...

    def signs(self) -> "Iterable[asyncio.Future[Any]]":
        """Futures of which one is done when something has happened."""
        ...


class ManualClock:
    """A `satay.clock.Clock` whose time stands still until `advance`, or with `autojump`, until nothing else happens.

    With `autojump` time jumps to the next moment at which something is due whenever the apps on this clock are idle: a
    sleep of two weeks and a schedule of retries take milliseconds. An attempt that runs holds time up, unless it waits
    in `satay.testing.pause`, or has not brought anything for `patience_seconds` of real time, so that a task that hangs
    runs into its timeout. Test code that sends events between timers wants a clock without `autojump`.
    """

    def __init__(self, start: datetime | None = None, *, autojump: bool = False, patience_seconds: float = 0.1) -> None:
        if start is not None and start.tzinfo is None:
            raise InvalidValueError(
                f"a clock cannot start at {start!r}, which has no time zone; pass an aware datetime"
            )
        self.autojump = autojump
        self._now = to_microseconds(start or EPOCH)
        self._patience_seconds = patience_seconds
        self._alarms: list[ManualAlarm] = []
        self._alarm_count = 0
        self._jumps = 0
        self._pausing: Counter[object] = Counter()
        self._change: asyncio.Future[None] | None = None
        self._apps: list[Watched] = []
        self._stirred: asyncio.Event | None = None
        self._jumper: asyncio.Task[None] | None = None

    def now(self) -> int:
        """The moment, in microseconds since the epoch."""
        return self._now

    def call_at(self, due: int, callback: Callable[[], None]) -> "ManualAlarm":
        """Call `callback` on the running loop once `now()` has reached `due`."""
        self._alarm_count += 1
        alarm = ManualAlarm(due, self._alarm_count, callback)
        if due <= self._now:
            alarm.ring()
        else:
            heapq.heappush(self._alarms, alarm)
            self.stir()
        return alarm

    @property
    def next_due(self) -> int | None:
        """The earliest moment at which something is due, or None."""
        while self._alarms and self._alarms[0].is_off:
            heapq.heappop(self._alarms)
        return self._alarms[0].due if self._alarms else None

    async def advance(self, duration: float | timedelta) -> None:
        """Let time pass, in seconds: each alarm on the way rings at its moment, and what it sets off is waited for.

        Raises `InvalidValueError` for a duration below zero and for NaN and infinity.
        """
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InvalidValueError(f"time cannot advance by {duration!r}; it takes zero or more seconds")
        target = self._now + round(seconds * MICROSECONDS)
        await self.until_idle()
        while (due := self.next_due) is not None and due <= target:
            self.jump_to(due)
            await self.until_idle()
        self._now = max(self._now, target)

    async def sleep(self, duration: float) -> None:
        """Return after `duration` seconds of this clock; infinity is for ever. An attempt that sleeps here is idle."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = None
        if duration != math.inf:
            alarm = self.call_at(self._now + round(duration * MICROSECONDS), partial(_wake, done))
        attempt = current_attempt.get()
        self._pausing[attempt] += 1
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        try:
            await done
        finally:
            self._pausing[attempt] -= 1
            if not self._pausing[attempt]:
                del self._pausing[attempt]
            if alarm is not None:
                alarm.cancel()

    def jump_to(self, moment: int) -> None:
        """Set the time, never back, and ring everything that is due then, earliest first."""
        self._now = max(self._now, moment)
        self._jumps += 1
        while (due := self.next_due) is not None and due <= self._now:
            heapq.heappop(self._alarms).ring()

    # --- the apps that live by this clock -----------------------------------------------------------------------------

    def attach(self, app: Watched) -> None:
        """Time has to wait for this app from now on."""
        self._apps.append(app)
        if self.autojump and self._jumper is None:
            self._stirred = asyncio.Event()
            self._jumper = asyncio.get_running_loop().create_task(self._keep_jumping(), context=contextvars.Context())

    async def detach(self, app: Watched) -> None:
        """Time waits for this app no more."""
        if app in self._apps:
            self._apps.remove(app)
        if not self._apps:
            self._change = None
        if not self._apps and self._jumper is not None:
            jumper, self._jumper, self._stirred = self._jumper, None, None
            jumper.cancel()
            with suppress(asyncio.CancelledError):
                await jumper

    def stir(self) -> None:
        """Something happens: a clock that jumps has to look again."""
        if self._stirred is not None:
            self._stirred.set()

    async def until_idle(self, *, is_patient: bool = False) -> None:
        """Return when nothing goes on in any app but what waits for time or the outside.

        Attempts that hang are waited for as long as they take if `is_patient`, else for this clock's patience.
        """
        passes = 0
        while passes < STILL_PASSES:
            if all(app.is_still for app in self._apps):
                if self._busy_attempts() <= 0:
                    passes += 1
                    await asyncio.sleep(0)
                    continue
                if not await self._has_sign(None if is_patient else self._patience_seconds):
                    return
            else:
                await self._has_sign(GLANCE_SECONDS)
            passes = 0

    def _busy_attempts(self) -> int:
        pausing = sum(attempt is not None for attempt in self._pausing)
        return sum(app.attempts for app in self._apps) - pausing

    async def _has_sign(self, timeout: float | None) -> bool:
        signs: set[asyncio.Future[Any]] = {sign for app in self._apps for sign in app.signs()}
        if not signs:
            await asyncio.sleep(0)
            return True
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        signs.add(self._change)  # An attempt that begins to pause gives no other sign.
        done, _ = await asyncio.wait(signs, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    async def until_nothing_is_due(self) -> None:
        """Return when all apps are idle, and where time jumps by itself, when there is nothing left to jump to."""
        while True:
            jumps = self._jumps
            await self.until_idle(is_patient=True)
            # What an alarm sets off begins one pass after the jump, and the alarm is not due any more then.
            if jumps == self._jumps and not (self.autojump and self.next_due is not None):
                return
            await asyncio.sleep(0)

    async def _keep_jumping(self) -> None:
        assert self._stirred is not None
        while True:
            self._stirred.clear()
            await self.until_idle()
            due = self.next_due
            if due is not None:
                self.jump_to(due)
            else:
                await self._stirred.wait()


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class ManualAlarm:
    """A callback that is due at a moment of a `ManualClock`."""

    __slots__ = ("_callback", "_context", "_count", "_handle", "_loop", "due", "is_off")

    def __init__(self, due: int, count: int, callback: Callable[[], None]) -> None:
        self.due = due
        self.is_off = False
        self._count = count
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._handle: asyncio.Handle | None = None

    def __lt__(self, other: "ManualAlarm") -> bool:
        return (self.due, self._count) < (other.due, other._count)

    def ring(self) -> None:
        """Call the callback in the next pass of its event loop: from no task, as a timer would."""
        self.is_off = True
        if not self._loop.is_closed():
            self._handle = self._loop.call_soon(self._callback, context=self._context)

    def cancel(self) -> None:
        self.is_off = True
        if self._handle is not None:
            self._handle.cancel()
