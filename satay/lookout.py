"""Looks into the journal for what concerns this process: runs that are due or were left behind, messages of others.

Each run that is found is taken over, or looks into its inbox where it is driven here already.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from satay.archive import Archive
from satay.clock import MICROSECONDS, Clock
from satay.definitions import workflows
from satay.drive import Drive
from satay.errors import JournalError, SatayError
from satay.journal import Journal
from satay.logs import log
from satay.model import SESSION_WORKFLOW, RunRecord
from satay.processes import is_dead
from satay.takeovers import MAY_PASS, Takeovers
from satay.waiters import Waiters

RUNS_PER_LOOK: Final = 64
"""How many runs that are due, or were left behind, are read at once. Whoever wants another run waits for no more."""

RECEIVERS_PER_LOOK: Final = 500
"""To how many runs messages of other processes are delivered by one look at the journal."""

LOOKS_PER_REVIEW: Final = 120
"""After so many looks for new messages some that were seen are looked at again: by now they may be for another run."""


class LookoutHost(Protocol):
    """What a lookout needs of the scheduler."""

    archive: Archive
    clock: Clock
    journal: Journal
    owner_id: str
    takeovers: Takeovers
    waiters: Waiters

    def drive_of(self, run_id: str) -> Drive | None: ...
    def look_for_messages(self, drive: Drive) -> None: ...
    def sleep_until(self, due: int) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Lookout:
    """Keeps looking for one scheduler. With `recovers` for runs of others too, whose driver is gone."""

    def __init__(self, host: LookoutHost, *, recovers: bool, poll_seconds: float) -> None:
        self._host = host
        self._recovers = recovers
        self._poll_seconds = poll_seconds
        self._seen_message = 0
        self._reviewed_message = 0
        self._looks = 0
        self._is_to_look_again = False
        self._to_try_again: set[str] = set()
        self._living: set[str] = set()

    async def open(self) -> None:
        """Pass over the messages of before, unless what nobody took while its run had no driver is for this process."""
        if not self._recovers:
            self._seen_message, _ = await self._host.journal.deliverable(1 << 62, 1, self._host.clock.now())

    async def keep_looking(self) -> None:
        """Find what other processes left in the journal: messages for runs of this one, and runs whose driver died."""
        if self._recovers:
            await self._look_around(self._recover)
        while True:
            await asyncio.sleep(self._poll_seconds)
            await self._look_around(self._find_messages)
            await self._look_around(self._try_again)
            if self._recovers:
                await self._look_around(self._recover)

    async def _look_around(self, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await look()
        except JournalError as error:
            log().warning("sweep.failed", error=str(error))

    async def _recover(self) -> None:
        host = self._host
        now = host.clock.now()
        living: set[str] = set()
        for owner in await host.journal.owners():
            if owner.id != host.owner_id and is_dead(owner):
                await host.journal.retire(owner.id)
            elif owner.expires_at >= now:
                living.add(owner.id)
        if not self._living <= living:
            self.look_again()  # Messages may have been left to an owner which lives no more.
        self._living = living
        await _go_through(partial(host.journal.abandoned, now, RUNS_PER_LOOK), self.take_over_all)
        await self._plan_next_sweep(None)

    # --- what is due --------------------------------------------------------------------------------------------------

    async def wake_sleepers(self) -> None:
        """Rebuild the waiting runs that are due and not in memory."""
        whose = None if self._recovers else self._host.owner_id
        now = self._host.clock.now()
        try:
            await _go_through(partial(self._host.journal.due, now, whose, RUNS_PER_LOOK), self._wake_all)
            await self._plan_next_sweep(whose)
        except JournalError as error:
            log().warning("sweep.failed", error=str(error))
            self._host.sleep_until(self._next_look())

    async def _wake_all(self, due: Sequence[RunRecord]) -> None:
        await self.take_over_all(due)
        for record in due:
            if record.workflow == SESSION_WORKFLOW:
                await self._wake_session(record)

    async def _wake_session(self, record: RunRecord) -> None:
        from satay.session_wakes import wake_session

        try:
            await wake_session(self._host, record)
        except JournalError as error:
            log().warning("session.not_woken", run_id=record.run_id, error=str(error))

    async def _plan_next_sweep(self, whose: str | None) -> None:
        next_wake = await self._host.journal.next_wake(whose)
        if next_wake is not None and next_wake <= self._host.clock.now():  # Nobody here can drive it: look again later.
            next_wake = self._next_look()
        if next_wake is not None:
            self._host.sleep_until(next_wake)

    def _next_look(self) -> int:
        return self._host.clock.now() + round(self._poll_seconds * MICROSECONDS)

    # --- messages -----------------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Look at all messages once more, also those that were seen: one of them could not be delivered."""
        self._is_to_look_again = True

    async def _find_messages(self) -> None:
        if self._is_to_look_again:
            self._is_to_look_again, self._seen_message = False, 0
        self._seen_message = await self._wake_receivers(self._seen_message)
        self._looks += 1
        if self._looks % LOOKS_PER_REVIEW == 0:
            # A message to nobody in particular was for the run that waited first, which may wait no more.
            through = await self._wake_receivers(self._reviewed_message)
            self._reviewed_message = through if through < self._seen_message else 0

    async def _wake_receivers(self, after: int) -> int:
        through, receivers = await self._host.journal.deliverable(after, RECEIVERS_PER_LOOK, self._host.clock.now())
        for record in receivers:
            self.wake_for_message(record)
        await self._retire_dead({record.owner for record in receivers})
        return through

    async def _retire_dead(self, owner_ids: set[str | None]) -> None:
        """A message is not left to a run whose driver is known to be dead where another run waits for it, too."""
        if owner_ids - {None, self._host.owner_id}:
            for owner in await self._host.journal.owners():
                if owner.id in owner_ids and is_dead(owner):
                    await self._host.journal.retire(owner.id)
                    self.look_again()

    def wake_for_message(self, record: RunRecord) -> None:
        """A message to a run was posted; look for it where this process drives the run, or is to drive it."""
        host = self._host
        drive = host.drive_of(record.run_id)
        if drive is not None:
            host.look_for_messages(drive)
        elif record.workflow == SESSION_WORKFLOW:
            host.waiters.tell_of_entry(record.run_id)  # Whoever waits in it looks by itself.
        elif host.takeovers.note_message(record.run_id):
            pass  # It is about to be driven, and looks then.
        elif record.owner == host.owner_id or self._recovers:
            host.spawn(self.take_over_all([record]))

    # --- taking over --------------------------------------------------------------------------------------------------

    async def take_over_all(self, records: Iterable[RunRecord]) -> None:
        """Take over those of the runs that can be driven here. That one cannot be is no error, and is logged."""
        wanted = [record for record in records if self._is_to_be_driven(record)]
        answers = [self._host.takeovers.take_over(record) for record in wanted]
        if answers:
            await asyncio.wait(answers)
        for record, answer in zip(wanted, answers, strict=True):
            error = answer.exception()
            if isinstance(error, MAY_PASS):
                self.try_again(record.run_id)
            if isinstance(error, JournalError):
                self.look_again()  # A message may have been the reason.
            if isinstance(error, SatayError):
                log().warning("run.not_taken_over", error=str(error))

    def try_again(self, run_id: str) -> None:
        """A run of this process could not be taken over, for want of the journal: nobody else would wake it."""
        self._to_try_again.add(run_id)

    async def _try_again(self) -> None:
        for run_id in list(islice(self._to_try_again, RUNS_PER_LOOK)):
            record = await self._host.journal.record(run_id)
            self._to_try_again.discard(run_id)
            if record is not None:
                await self.take_over_all([record])

    def _is_to_be_driven(self, record: RunRecord) -> bool:
        return (
            self._host.drive_of(record.run_id) is None
            and not record.status.is_terminal
            and not self._host.waiters.has_failed(record.run_id)
            and workflows.get(record.workflow) is not None
        )


async def _go_through(
    read: Callable[[RunRecord | None], Awaitable[Sequence[RunRecord]]],
    serve: Callable[[Sequence[RunRecord]], Awaitable[None]],
) -> None:
    """Serve all that a question to the journal finds, `RUNS_PER_LOOK` at once: those that cannot be hide no other."""
    page = await read(None)
    while page:
        await serve(page)
        page = await read(page[-1]) if len(page) == RUNS_PER_LOOK else ()
