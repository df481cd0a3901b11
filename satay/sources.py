"""Sources: the journals of runs that are forked, with what follows from each prefix that is inherited.

A run that has ended does not change, and a sweep forks one many times. So some are remembered, within limits.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from satay.accounts import Reuse
from satay.archive import Archive
from satay.collector import collector_paused
from satay.histories import reuse_of
from satay.model import TERMINAL_ENTRIES, CallId, CallKind, Entry
from satay.rehearsals import SameArguments
from satay.replay import CALL_KIND, History, history_of, needed_blobs, open_calls, recorded_call

MAX_REMEMBERED_ENTRIES: Final = 50_000
"""How many entries of sources that have ended stay in memory, to be forked again."""

MAX_REMEMBERED_PREFIXES: Final = 4
"""How many prefixes of one source stay in memory, to be inherited again."""


class Prefix:
    """What a fork inherits of a source. `outstanding` are the calls without an outcome, by seq.

    `same_arguments` is what rehearsals have found out of its calls.
    """

    @collector_paused()
    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.last = entries[-1]
        self.outstanding: Mapping[int, Entry] = open_calls(entries)
        self.references = needed_blobs(entries)
        self.same_arguments: SameArguments = {}

    @cached_property
    def history(self) -> History:
        """What a replay of the prefix follows. Raises `UnsupportedEntryError`."""
        return history_of(self.entries)._replace(answered={})

    @cached_property
    def reuse(self) -> Reuse:
        """What a fork is spared that inherits this."""
        return reuse_of(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class RecordedRun:
    """The journal of a source, the calls in it by seq, and the names of the tasks that it called."""

    @collector_paused()
    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.calls: Mapping[int, CallId] = {
            entry.seq: recorded_call(entry) for entry in entries if entry.type in CALL_KIND
        }
        self.tasks = frozenset(call.name for call in self.calls.values() if call.kind is CallKind.TASK)
        self._prefixes: dict[int, Prefix] = {}

    def prefix(self, through_seq: int) -> Prefix:
        """The entries 1 to `through_seq`."""
        known = self._prefixes.get(through_seq)
        if known is None:
            if len(self._prefixes) >= MAX_REMEMBERED_PREFIXES:
                self._prefixes.clear()
            known = self._prefixes[through_seq] = Prefix(self.entries[:through_seq])
        return known


class Sources:
    """Reads sources, and remembers those that have ended."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._finished: OrderedDict[str, RecordedRun] = OrderedDict()

    async def read(self, run_id: str) -> RecordedRun:
        """The journal of a run."""
        known = self._finished.get(run_id)
        if known is not None:
            self._finished.move_to_end(run_id)
            return known
        recorded = RecordedRun(await self._archive.entries(run_id))
        has_ended = recorded.entries[-1].type in TERMINAL_ENTRIES
        if (
            has_ended and len(recorded.entries) <= MAX_REMEMBERED_ENTRIES
        ):  # A longer one would only drive out the others.
            self._finished[run_id] = recorded
            while sum(len(kept.entries) for kept in self._finished.values()) > MAX_REMEMBERED_ENTRIES:
                self._finished.popitem(last=False)
        return recorded
