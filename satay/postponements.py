"""How much later than its entry says a wait is due in a fork: what is outstanding at a cut keeps the time it had left.

The source may have been cut long ago, in a moment that has passed for it. For what was outstanding there the fork
begins in that moment: a timer that had a minute left has a minute left when the fork begins.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from satay.model import Entry, EntryType
from satay.replay import ENDS_OF_CALLS, History, outcome_call, read_head

_WAITS: Final[frozenset[str]] = frozenset({EntryType.TIMER_CREATED, EntryType.EVENT_WAIT_STARTED})
_FORKED: Final = EntryType.RUN_FORKED.value


class Postponements:
    """The fold of what a journal tells of waits and of forks.

    `by_call` is how much later a wait is due, in microseconds, by the seq of its entry; without those that are due when
    their entry says.
    """

    __slots__ = ("_since", "_started", "by_call")

    def __init__(self) -> None:
        self.by_call: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._started: dict[int, int] = {}

    def take(self, entry: Entry) -> None:
        """Go on with an entry of any type."""
        type = entry.type
        if type in _WAITS:
            self._since[entry.seq] = self._started[entry.seq] = entry.at
        elif not self._since:
            pass
        elif type in ENDS_OF_CALLS:
            self._since.pop(outcome_call(entry), None)
        elif type == _FORKED:
            self._postpone(entry)

    def _postpone(self, forked: Entry) -> None:
        told = read_head(forked)
        cut_at, again = told.get("cut_at"), told.get("again")
        for seq, since in self._since.items():
            if seq == again:  # It is made anew: all of its time is left.
                self.by_call[seq] = forked.at - self._started[seq]
            elif cut_at is not None:
                self.by_call[seq] = self.by_call.get(seq, 0) + forked.at - max(cut_at, since)
            self._since[seq] = forked.at


def postponements(entries: Iterable[Entry]) -> Mapping[int, int]:
    """How much later the waits of a journal are due than their entries say, in microseconds, by seq."""
    found = Postponements()
    for entry in entries:
        found.take(entry)
    return found.by_call


def postponements_in(history: History) -> Mapping[int, int]:
    """`postponements` of a journal. Most runs are no forks or have no waits, and then nothing is looked at."""
    has_any = _FORKED in history.types and not _WAITS.isdisjoint(history.types)
    return postponements(history.entries) if has_any else {}


def moment_of_cut(prefix: Sequence[Entry], again: int | None) -> int:
    """The moment in which a fork begins for what is outstanding at its cut.

    That of the last entry; where a call is made again, the moment in which it was made, in a fork that of the fork.
    """
    if again is None:
        return prefix[-1].at
    later_forks = (entry.at for entry in reversed(prefix[again:]) if entry.type == _FORKED)
    return next(later_forks, prefix[again - 1].at)
