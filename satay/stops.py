"""Which runs cannot go on, and who above them is to hear of it: their parents, and the forks that share them.

A run stops with an error, or waits for somebody's decision. Whoever waits for a run above it is told so once all runs
between do nothing but wait. Some of those may be in no memory, or in that of another process; what they wait for is in
the journal then.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from satay.archive import Archive
from satay.children import Children
from satay.drive import Drive
from satay.errors import JournalError
from satay.journal import Journal
from satay.model import RunRecord
from satay.waiters import Waiters


class StopHost(Protocol):
    """What knowing of stopped runs needs of the scheduler."""

    archive: Archive
    children: Children
    journal: Journal
    waiters: Waiters

    @property
    def is_closing(self) -> bool: ...

    def drive_of(self, run_id: str) -> Drive | None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Stops:
    """The ways that lead down from the runs of one scheduler to runs that cannot go on.

    `_away` holds runs that are not in memory here and of which the journal has to be asked: those that stopped or that
    others drive, and those through which a way leads to one. It may hold some of which it need not be asked any more.
    """

    def __init__(self, host: StopHost) -> None:
        self._host = host
        self._busy: set[str] = set()
        self._away: set[str] = set()

    def undecided_below(self, run_id: str) -> list[str]:
        """The descendants that wait for a decision, where all between are in memory and do nothing but wait.

        `tell_of_rest` tells of others.
        """
        found: list[str] = []
        pending = [run_id]
        while pending:
            drive = self._host.drive_of(pending.pop())
            if drive is None:
                continue
            if waits_for_decision(drive):
                found.append(drive.run_id)
            if drive.active or not drive.is_still:
                self._busy.add(drive.run_id)
            else:
                pending += drive.child_ids()
        return found

    def leads_away(self, run_id: str) -> bool:
        """Whether the journal has to be asked what keeps those from going on for which a run waits."""
        pending = [run_id]
        while pending:
            below_id = pending.pop()
            drive = self._host.drive_of(below_id)
            if drive is not None:
                pending += drive.child_ids()
            elif below_id in self._away:
                return True
        return False

    # --- telling ------------------------------------------------------------------------------------------------------

    def tell_of_rest(self, drive: Drive) -> None:
        """A run does nothing but wait, for now: whoever found it busy is told of what keeps a child from going on."""
        if drive.run_id in self._busy and drive.is_still:
            self._busy.discard(drive.run_id)
            if self.leads_away(drive.run_id) or self.undecided_below(drive.run_id):
                self._host.waiters.tell(drive.run_id)
                self.tell_above(drive)

    def tell_above(self, drive: Drive) -> None:
        """Those who wait for the runs above a run also want to know what keeps it from going on."""
        if drive.parent_id is not None or self._host.children.sharers_of(drive.run_id):
            self._host.spawn(self._tell_above(drive))

    async def _tell_above(self, drive: Drive) -> None:
        pending = [(drive.run_id, drive.parent_id)]
        self.note_away(drive.run_id)
        try:
            while pending and not self._host.is_closing:
                run_id, parent_id = pending.pop()
                for above_id in (*self._host.children.sharers_of(run_id), parent_id):
                    if above_id is not None:
                        pending += await self._tell(above_id)
        except JournalError:  # Whoever waits for a run that could not be read looks by himself.
            self._host.waiters.tell_all()

    async def _tell(self, run_id: str) -> list[tuple[str, str | None]]:
        """Tell those who wait for a run of one below it; the run and its parent, unless it has ended."""
        self.note_away(run_id)  # First: perhaps it cannot be read now.
        run = self._host.drive_of(run_id) or await self._host.journal.record(run_id)
        if run is None or (not isinstance(run, Drive) and run.status.is_terminal):
            self._away.discard(run_id)
            return []
        self._host.waiters.tell(run_id)
        return [(run_id, run.parent_id)]

    # --- what becomes of the runs -------------------------------------------------------------------------------------

    def note_away(self, run_id: str) -> None:
        """A run is perhaps driven by others, or by nobody; or it waits for one that is."""
        if self._host.drive_of(run_id) is None:
            self._away.add(run_id)

    def evicted(self, drive: Drive) -> None:
        """A run that only waits leaves memory."""
        run_id = drive.run_id
        if self.undecided_below(run_id) or self.leads_away(run_id):
            self._away.add(run_id)
        else:
            self._away.discard(run_id)

    def forget(self, run_id: str) -> None:
        """A run has ended, or is driven no more."""
        self._busy.discard(run_id)
        self._away.discard(run_id)


def descendants(run_id: str, below: Sequence[RunRecord]) -> list[RunRecord]:
    """Those of the runs below a run that are its own, and not those of another that it shares."""
    parents = {record.run_id: record.parent_id for record in below}

    def is_own(id: str | None) -> bool:
        while id is not None and id != run_id:
            id = parents.get(id)
        return id is not None

    return [record for record in below if is_own(record.run_id)]


def waits_for_decision(drive: Drive) -> bool:
    """Whether nothing goes on until someone decides, and the question is on disk."""
    return drive.is_undecided and drive.is_still
