"""Which runs cannot go on, and who above them is to hear of it: their parents, and the forks that share them.

A run stops with an error, or waits for somebody's decision. Whoever waits for a run above it is told so once all runs
between do nothing but wait. Some of those may have left memory; what they wait for is in the journal then.
"""

from collections.abc import Coroutine
from typing import Any, Protocol

from satay.archive import Archive
from satay.children import Children
from satay.drive import Drive
from satay.errors import JournalError
from satay.journal import CHILD_ENDED, Journal
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
    """The stopped runs of one scheduler, and the ways that lead down to them.

    `_below` holds, by the id of a run that left memory, the runs it waited for that were stopped, or above one that
    was. It may hold some for which it waits no more.
    """

    def __init__(self, host: StopHost) -> None:
        self._host = host
        self._busy: set[str] = set()
        self._undecided: set[str] = set()
        self._below: dict[str, set[str]] = {}

    def is_undecided(self, run_id: str) -> bool:
        """Whether a run waits for a decision. One that left memory may have been decided by another process."""
        drive = self._host.drive_of(run_id)
        return run_id in self._undecided if drive is None else waits_for_decision(drive)

    async def below(self, run_id: str) -> list[str]:
        """The descendants that cannot go on, where all between do nothing but wait; `tell_of_rest` tells of others."""
        found: list[str] = []
        pending = [run_id]
        while pending:
            child_ids = await self._waited_for(pending.pop())
            found += filter(self._is_stopped, child_ids)
            pending += child_ids
        return found

    async def _waited_for(self, run_id: str) -> list[str]:
        child_ids = self._ways_down(run_id)
        if not child_ids or self._host.drive_of(run_id) is not None:
            return child_ids
        waits = {wait.key for wait in await self._host.journal.waits(run_id) if wait.type == CHILD_ENDED}
        given_up = set(child_ids) - waits
        if given_up and run_id in self._below:
            self._below[run_id] -= given_up
        return [child_id for child_id in child_ids if child_id in waits]

    def _ways_down(self, run_id: str) -> list[str]:
        drive = self._host.drive_of(run_id)
        if drive is None:
            return list(self._below.get(run_id, ()))
        if drive.active or not drive.is_still:
            self._busy.add(run_id)
            return []
        return drive.child_ids()

    def _is_stopped(self, run_id: str) -> bool:
        return self._host.waiters.has_failed(run_id) or self.is_undecided(run_id)

    # --- telling ------------------------------------------------------------------------------------------------------

    def tell_of_rest(self, drive: Drive) -> None:
        """A run does nothing but wait, for now: whoever found it busy is told of what keeps a child from going on."""
        if drive.run_id in self._busy and drive.is_still:
            self._busy.discard(drive.run_id)
            if self._has_stopped_below(drive.run_id):
                self._host.waiters.tell(drive.run_id)
                self.tell_above(drive)

    def _has_stopped_below(self, run_id: str) -> bool:
        pending = [run_id]
        while pending:
            child_ids = self._ways_down(pending.pop())
            if any(map(self._is_stopped, child_ids)):
                return True
            pending += child_ids
        return False

    def tell_above(self, drive: Drive) -> None:
        """Those who wait for the runs above a run also want to know what keeps it from going on."""
        if drive.parent_id is not None or self._host.children.sharers_of(drive.run_id):
            self._host.spawn(self._tell_above(drive))

    async def _tell_above(self, drive: Drive) -> None:
        pending = [(drive.run_id, drive.parent_id)]
        try:
            while pending and not self._host.is_closing:
                run_id, parent_id = pending.pop()
                for above_id in (*self._host.children.sharers_of(run_id), parent_id):
                    if above_id is not None:
                        pending += await self._lead_down(above_id, run_id)
        except JournalError:  # Whoever waits for a run that could not be read looks by himself.
            self._host.waiters.tell_all()

    async def _lead_down(self, above_id: str, run_id: str) -> list[tuple[str, str | None]]:
        """Tell those who wait for a run of one below it; the run and its parent, unless it has ended."""
        above = self._host.drive_of(above_id) or await self._host.journal.record(above_id)
        if above is None or (not isinstance(above, Drive) and above.status.is_terminal):
            return []
        self._below.setdefault(above_id, set()).add(run_id)
        self._host.waiters.tell(above_id)
        return [(above_id, above.parent_id)]

    # --- what becomes of the runs -------------------------------------------------------------------------------------

    def evicted(self, drive: Drive) -> None:
        """A run that only waits leaves memory: keep what it needs to be known of it."""
        run_id = drive.run_id
        if drive.is_undecided:
            self._undecided.add(run_id)
        else:
            self._undecided.discard(run_id)
        below = {child for child in drive.child_ids() if self._is_stopped(child) or child in self._below}
        if below:
            self._below[run_id] = below
        else:
            self._below.pop(run_id, None)

    def forget(self, run_id: str) -> None:
        """A run has ended, or is driven no more."""
        self._busy.discard(run_id)
        self._undecided.discard(run_id)
        self._below.pop(run_id, None)


def waits_for_decision(drive: Drive) -> bool:
    """Whether nothing goes on until someone decides, and the question is on disk."""
    return drive.is_undecided and drive.is_still
