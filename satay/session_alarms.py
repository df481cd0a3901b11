"""The alarm of an open session: it appends what its next wake-up says, when that is due."""

from datetime import UTC, datetime, timedelta

from satay.arguments import checked_duration, shown
from satay.clock import MICROSECONDS, Alarm, to_microseconds
from satay.errors import InvalidValueError, JournalClosedError, JournalError, SessionLostError
from satay.scheduler import Scheduler
from satay.session_journals import SessionJournal
from satay.session_wakes import due_wakes, next_wake


class SessionAlarm:
    """Wakes an open session, from `set` on until it is turned off."""

    def __init__(self, journal: SessionJournal, scheduler: Scheduler) -> None:
        self._journal = journal
        self._scheduler = scheduler
        self._alarm: Alarm | None = None
        self._is_off = False
        journal.when_others_wrote = self.set

    def set(self) -> None:
        """Wait for the next moment at which the session is to be woken, if there is one."""
        if self._alarm is not None:
            self._alarm.cancel()
        due = next_wake(self._journal.transcript)
        if due is not None and not self._is_off:
            self._wait_until(due)

    def turn_off(self) -> None:
        """Append nothing more."""
        self._is_off = True
        if self._alarm is not None:
            self._alarm.cancel()

    def _wait_until(self, moment: int) -> None:
        scheduler = self._scheduler
        self._alarm = scheduler.clock.call_at(moment, lambda: scheduler.spawn(self._wake()))

    async def _wake(self) -> None:
        now = self._scheduler.clock.now()
        try:
            await self._journal.write(lambda: [] if self._is_off else due_wakes(self._journal.transcript, now))
        except (JournalClosedError, SessionLostError):
            return  # The next write of the session says so.
        except JournalError:
            if not self._is_off:  # The disk may have room again later.
                self._wait_until(now + round(self._scheduler.settings.poll_seconds * MICROSECONDS))
            return
        self.set()


def wake_moment(when: object, now: int) -> int:
    """The moment that `wake_at` was given, an aware datetime or a time from now. Raises `InvalidValueError`."""
    if isinstance(when, bool) or not isinstance(when, datetime | timedelta | int | float):
        raise InvalidValueError(
            f"when of wake_at() is {shown(when)}; it must be an aware datetime, or a time from now, in seconds or as a "
            "timedelta"
        )
    if not isinstance(when, datetime):
        return now + round(checked_duration(when, "when of wake_at()") * MICROSECONDS)
    if when.utcoffset() is None:
        raise InvalidValueError(f"when of wake_at() is {shown(when)}, which has no time zone; pass an aware datetime")
    try:
        return to_microseconds(when.astimezone(UTC))
    except OverflowError:
        raise InvalidValueError(
            f"when of wake_at() is {shown(when)}, which is no moment of the years 1 to 9999"
        ) from None
