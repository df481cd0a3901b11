"""Waits for runs to end, and raises what keeps a run from going on.

A run that is driven here tells of its end by itself; for one that is driven elsewhere the journal is asked now and
then.
"""

import asyncio
from contextlib import suppress
from typing import Protocol

from satay.archive import Archive, Ending
from satay.clock import Clock
from satay.drive import Drive
from satay.errors import LeaseHeldError, NeedsDecisionError
from satay.journal import DECISION, Journal
from satay.model import SESSION_WORKFLOW, RunRecord, RunStatus
from satay.processes import is_dead, left_behind
from satay.stops import Stops, descendants, waits_for_decision
from satay.takeovers import MAY_PASS
from satay.waiters import Waiters


class EndingHost(Protocol):
    """What waiting for an end needs of the scheduler."""

    archive: Archive
    clock: Clock
    journal: Journal
    owner_id: str
    stops: Stops
    waiters: Waiters

    def drive_of(self, run_id: str) -> Drive | None: ...
    async def take_over(self, run_id: str) -> Drive | None: ...


class Endings:
    """Waits for the ends of runs, for the callers of one scheduler. `poll_seconds`: how often the journal is asked."""

    def __init__(self, host: EndingHost, poll_seconds: float) -> None:
        self._host = host
        self._poll_seconds = poll_seconds

    async def wait(self, run_id: str, *, drive: bool) -> Ending:
        """Wait until a run has ended. With `drive`, take it, and its children, over when nobody drives them.

        Raises what keeps the run, or a child for which it waits, from going on: `NondeterminismError`,
        `NeedsDecisionError`, `UnknownWorkflowError`, a `JournalError`, or `LeaseHeldError` where nobody drives the run
        and `drive` is false.
        """
        while True:
            with self._host.waiters.listening(run_id) as news:  # What is told while the journal is read is not missed.
                if self._host.drive_of(run_id) is None:
                    record = await self._host.archive.run(run_id)
                    if record.status.is_terminal:
                        return await self._host.archive.ending(run_id)
                    await self._look(record, drive=drive)
                ending = await self._wait_for_ending(run_id, news)
            if ending is not None:
                return ending
            self._host.waiters.raise_failure(run_id)

    async def _look(self, record: RunRecord, *, drive: bool) -> None:
        """Raise what keeps a run from going on that is not driven here, or drive it."""
        run_id = record.run_id
        if record.status == RunStatus.NEEDS_DECISION:
            await self._refuse_undecided(run_id)
        await self._raise_failure(record)
        if record.status == RunStatus.WAITING:
            await self._look_below(run_id, drive=drive)
        if not drive and await self._is_nobodys(record):
            raise _driven_by_nobody(record)
        # One that left memory is made anew when something comes. Before that it would only leave it again.
        if drive and (record.status != RunStatus.WAITING or record.owner != self._host.owner_id):
            await self._host.take_over(run_id)

    async def _wait_for_ending(self, run_id: str, news: "asyncio.Future[Ending | None]") -> Ending | None:
        """Wait for a drive of this process to end or stop, or, for a run driven elsewhere, for a while."""
        driven, seconds = self._host.drive_of(run_id), None
        if driven is None:
            seconds = self._poll_seconds
        elif waits_for_decision(driven):
            await self._refuse_undecided(run_id)
            if not waits_for_decision(driven):
                return None
            seconds = self._poll_seconds
        else:
            for child_id in self._host.stops.undecided_below(run_id):
                await self._refuse_undecided(child_id)
            if self._host.stops.leads_away(run_id):
                await self._look_below(run_id, drive=True)
                seconds = self._poll_seconds  # Nobody here is told of what becomes of runs that others drive.
            if self._host.drive_of(run_id) is not driven or waits_for_decision(driven):
                return None  # Something happened meanwhile, and was told to nobody.
        return await self._host.waiters.hear(run_id, news, seconds)

    async def _look_below(self, run_id: str, *, drive: bool) -> None:
        """Raise what keeps those from going on for which a run waits, as the journal has it.

        With `drive`, take those over that nobody drives, but for those of other runs, which are shared.
        """
        host = self._host
        below = await host.journal.waited_for(run_id)
        for record in below:
            if record.status == RunStatus.NEEDS_DECISION:
                await self._refuse_undecided(record.run_id)
        away = [record for record in below if host.drive_of(record.run_id) is None]
        if not away:
            return
        left = left_behind(away, await host.journal.owners(), host.clock.now())
        own = descendants(run_id, below)
        for record in away:
            await self._raise_failure(record)
            if drive and record.run_id in left and record in own:
                with suppress(*MAY_PASS):  # It is looked at again soon.
                    await host.take_over(record.run_id)

    async def _raise_failure(self, record: RunRecord) -> None:
        """Raise the error with which a run stopped here, unless another process drives it by now."""
        waiters = self._host.waiters
        if waiters.has_failed(record.run_id):
            if record.owner != self._host.owner_id and not await self._is_nobodys(record):
                waiters.forget_failure(record.run_id)
            waiters.raise_failure(record.run_id)

    async def _refuse_undecided(self, run_id: str) -> None:
        """Raise `NeedsDecisionError` where a run waits for a decision that is not in the inbox."""
        messages = await self._host.journal.messages(run_id)
        if any(message.type == DECISION for message in messages):
            return
        # A decision that was taken meanwhile is no longer in the inbox, but then the run waits for it no more.
        drive = self._host.drive_of(run_id)
        if drive is not None:
            is_undecided = waits_for_decision(drive)
        else:
            record = await self._host.journal.record(run_id)
            is_undecided = record is not None and record.status == RunStatus.NEEDS_DECISION
        if is_undecided:
            raise _undecided(run_id)

    async def _is_nobodys(self, record: RunRecord) -> bool:
        if record.owner == self._host.owner_id:
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
