"""When runs are to be woken: those in memory, each by its id, and the earliest of those that are not."""

import heapq
from collections.abc import Callable
from typing import Final

from satay.clock import Alarm, Clock

MAX_STALE_WAKES: Final = 256
"""How many moments of runs that left memory may lie about before they are cleared away."""


class Wakes:
    """Sets one alarm for the earliest moment. `ring` is called when it came; `due` and `is_sweep_due` tell for whom.

    A run has one moment at a time: asking for an earlier one replaces it, asking for a later one changes nothing.
    """

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._heap: list[tuple[int, str]] = []
        self._moments: dict[str, int] = {}
        self._sweep: int | None = None
        self._alarm: tuple[int, Alarm] | None = None
        self._is_closed = False

    def wake(self, run_id: str, due: int) -> None:
        """Wake a run that is in memory at `due`, or earlier if that was asked for."""
        moment = self._moments.get(run_id)
        if moment is None or due < moment:
            self._moments[run_id] = due
            heapq.heappush(self._heap, (due, run_id))
            self._set_alarm()

    def sweep(self, due: int) -> None:
        """Look for runs that are not in memory at `due`, or earlier if that was asked for."""
        if self._sweep is None or due < self._sweep:
            self._sweep = due
            self._set_alarm()

    def forget(self, run_id: str) -> None:
        """A run left memory."""
        self._moments.pop(run_id, None)
        if len(self._heap) > MAX_STALE_WAKES + 2 * len(self._moments):
            self._heap = [(due, run_id) for run_id, due in self._moments.items()]
            heapq.heapify(self._heap)

    def due(self, now: int) -> list[str]:
        """The runs in memory whose moment has come, earliest first. Each has no moment then."""
        ids = []
        while self._heap and self._heap[0][0] <= now:
            due, run_id = heapq.heappop(self._heap)
            if self._moments.get(run_id) == due:
                del self._moments[run_id]
                ids.append(run_id)
        return ids

    def is_sweep_due(self, now: int) -> bool:
        """Whether the moment to look for runs that are not in memory has come. It is gone then."""
        if self._sweep is None or self._sweep > now:
            return False
        self._sweep = None
        return True

    def close(self) -> None:
        """Wake nobody any more."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm[1].cancel()

    def _set_alarm(self) -> None:
        moments = [moment for moment in (self._heap[0][0] if self._heap else None, self._sweep) if moment is not None]
        if not moments or self._is_closed:
            return
        earliest = min(moments)
        if self._alarm is not None:
            if self._alarm[0] <= earliest:
                return
            self._alarm[1].cancel()
        self._alarm = (earliest, self._clock.call_at(earliest, self._go_off))

    def _go_off(self) -> None:
        self._alarm = None
        self._ring()
        self._set_alarm()
