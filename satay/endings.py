"""Waits for runs to end, and tells those who wait what keeps a run from going on.

A run that is driven here tells of its end by itself; for one that is driven elsewhere the journal is asked now and
then.
"""

from collections.abc import Iterator
from typing import Protocol

from satay.archive import Archive, Ending
from satay.clock import Clock
from satay.drive import Drive
from satay.errors import LeaseHeldError, NeedsDecisionError
from satay.journal import DECISION, Journal
from satay.model import SESSION_WORKFLOW, RunRecord, RunStatus
from satay.processes import is_dead
from satay.waiters import Waiters


class EndingHost(Protocol):
    """What waiting for an end needs of the scheduler."""

    archive: Archive
    clock: Clock
    journal: Journal
    owner_id: str
    waiters: Waiters

    def drive_of(self, run_id: str) -> Drive | None: ...
    async def take_over(self, run_id: str) -> Drive | None: ...


class Endings:
    """Waits for the ends of runs, for the callers of one scheduler. `poll_seconds`: how often the journal is asked."""

    def __init__(self, host: EndingHost, poll_seconds: float) -> None:
        self._host = host
        self._poll_seconds = poll_seconds
        self._busy: set[str] = set()

    async def wait(self, run_id: str, *, drive: bool) -> Ending:
        """Wait until a run has ended. With `drive`, take it over when nobody drives it.

        Raises what keeps the run from going on: `NondeterminismError`, `NeedsDecisionError`, `UnknownWorkflowError`, a
        `JournalError`, or `LeaseHeldError` where nobody drives the run and `drive` is false.
        """
        while True:
            if self._host.drive_of(run_id) is None:
                record = await self._host.archive.run(run_id)
                if record.status.is_terminal:
                    return await self._host.archive.ending(run_id)
                if record.status == RunStatus.NEEDS_DECISION:
                    raise _undecided(run_id)
                self._host.waiters.raise_failure(run_id)
                if drive:
                    await self._host.take_over(run_id)
                elif await self._is_nobodys(record):
                    raise _driven_by_nobody(record)
            ending = await self._wait_for_ending(run_id)
            if ending is not None:
                return ending
            self._host.waiters.raise_failure(run_id)

    async def _wait_for_ending(self, run_id: str) -> Ending | None:
        """Wait for a drive of this process to end or stop, or, for a run driven elsewhere, for a while."""
        waiters = self._host.waiters
        with waiters.listening(run_id) as news:  # What is told while the inbox is read is not missed.
            driven, seconds = self._host.drive_of(run_id), None
            if driven is None:
                seconds = self._poll_seconds
            elif _waits_for_decision(driven):
                await self._refuse_undecided(driven)
                if not _waits_for_decision(driven):
                    return None
                seconds = self._poll_seconds
            else:
                await self._raise_for_children(driven)
                if self._host.drive_of(run_id) is not driven or _waits_for_decision(driven):
                    return None  # Something happened meanwhile, and was told to nobody.
            return await waiters.hear(run_id, news, seconds)

    async def _raise_for_children(self, drive: Drive) -> None:
        """Raise what keeps a child from going on, where a run does nothing but wait."""
        for child_id in self._stopped_below(drive):
            self._host.waiters.raise_failure(child_id)
            child = self._host.drive_of(child_id)
            if child is not None and _waits_for_decision(child):
                await self._refuse_undecided(child)

    def _stopped_below(self, drive: Drive) -> Iterator[str]:
        """The descendants that cannot go on, where all between do nothing but wait; `tell_of_rest` looks again else."""
        if drive.active or not drive.is_still:
            self._busy.add(drive.run_id)
            return
        for child_id in drive.child_ids():
            child = self._host.drive_of(child_id)
            if self._host.waiters.has_failed(child_id) or (child is not None and _waits_for_decision(child)):
                yield child_id
            if child is not None:
                yield from self._stopped_below(child)

    def tell_of_rest(self, drive: Drive) -> None:
        """A run does nothing but wait, for now: whoever found it busy is told of what keeps a child from going on."""
        if drive.run_id in self._busy and drive.is_still:
            self._busy.discard(drive.run_id)
            if next(self._stopped_below(drive), None) is not None:
                self._host.waiters.tell(drive.run_id)
                self.tell_ancestors(drive)

    def forget(self, run_id: str) -> None:
        """A run is driven no more."""
        self._busy.discard(run_id)

    def tell_ancestors(self, drive: Drive) -> None:
        """Those who wait for a run also want to know what keeps its children from going on."""
        parent_id = drive.parent_id
        while parent_id is not None:
            self._host.waiters.tell(parent_id)
            parent = self._host.drive_of(parent_id)
            parent_id = None if parent is None else parent.parent_id

    async def _refuse_undecided(self, drive: Drive) -> None:
        """Raise `NeedsDecisionError`, unless the decision is in the inbox."""
        messages = await self._host.journal.messages(drive.run_id)
        # A decision that was taken meanwhile is no longer in the inbox, but then the drive waits for it no more.
        if _waits_for_decision(drive) and all(message.type != DECISION for message in messages):
            raise _undecided(drive.run_id)

    async def _is_nobodys(self, record: RunRecord) -> bool:
        if record.owner == self._host.owner_id or record.status == RunStatus.NEEDS_DECISION:
            return False
        now = self._host.clock.now()
        owners = await self._host.journal.owners()
        return not any(owner.id == record.owner and owner.expires_at > now and not is_dead(owner) for owner in owners)


def _undecided(run_id: str) -> NeedsDecisionError:
    return NeedsDecisionError(
        f"run {run_id!r} stopped at an external call of which nobody knows whether it took effect; find out, then "
        'call satay.decide(run_id, "rerun"), satay.decide(run_id, "fail") or satay.decide(run_id, value=...)',
        run_id=run_id,
    )


def _driven_by_nobody(record: RunRecord) -> LeaseHeldError:
    run_id = record.run_id
    told = (
        f"session {run_id!r} is {record.status} and nobody has it open; go on with it in the block of "
        f"'async with satay.Session.resume({run_id!r})'"
        if record.workflow == SESSION_WORKFLOW
        else f"run {run_id!r} is {record.status} and no process drives it; continue it with satay.resume"
    )
    return LeaseHeldError(told, run_id=run_id)


def _waits_for_decision(drive: Drive) -> bool:
    """Whether nothing goes on until someone decides, and the question is on disk."""
    return drive.is_undecided and drive.is_still
