"""Takes over runs that nobody drives: claims them, reads their journals, and makes their drives, many at a time.

What is asked for while batches are on their way piles up, and the next batch takes it. So a lone run is taken over at
once, and thousands that are due together cost few questions each. A run that cannot be driven keeps no other waiting:
it is given back as it was.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from satay.archive import Archive
from satay.children import Children
from satay.definitions import find_workflow
from satay.drive import Drive, DriveHost
from satay.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalUnavailableError,
    SatayError,
)
from satay.journal import CANCEL_REQUESTED, TERMINATION_REQUESTED, Claim, FirstPage
from satay.model import Message, RunRecord, RunStatus
from satay.origin import origin_of
from satay.replay import history_of, needed_blobs, reading
from satay.shields import finish

MAX_BATCH: Final = 32
"""How many runs are taken over together. A lone run waits for no more than the batches that are on their way."""

MAX_BATCHES: Final = 2
"""How many batches are on their way at once: while one is read, the drives of the other are made."""


MAY_PASS: Final = (JournalBusyError, JournalUnavailableError)
"""The errors of a journal that may be usable again a moment later."""


class TakeoverHost(DriveHost, Protocol):
    """What taking runs over needs of the scheduler."""

    archive: Archive
    children: Children
    owner_id: str

    @property
    def is_closing(self) -> bool: ...

    def drive_of(self, run_id: str) -> Drive | None: ...
    def adopt(self, drive: Drive, resumed: bool) -> None: ...
    async def is_gone(self, owner_id: str | None) -> bool: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def try_again(self, run_id: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Wanted:
    """A run that is to be taken over, as it was read. The answer is its drive; None if it is held or has ended."""

    record: RunRecord
    answer: "asyncio.Future[Drive | None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_messages: bool = False


class Takeovers:
    """Takes over runs for one scheduler."""

    def __init__(self, host: TakeoverHost) -> None:
        self._host = host
        self._wanted: dict[str, _Wanted] = {}
        self._queue: deque[_Wanted] = deque()
        self._batches = 0

    def take_over(self, record: RunRecord) -> "asyncio.Future[Drive | None]":
        """Drive a run that nobody drives. The drive, also where it is driven here; None if it is held or has ended.

        It answers as well with `UnknownWorkflowError`, and with what reading the journal raises. The answer may be
        shared, so whoever may be cancelled shields it.
        """
        wanted = self._wanted.get(record.run_id)
        if wanted is None:
            wanted = self._wanted[record.run_id] = _Wanted(record)
            self._begin(wanted)
        return wanted.answer

    def _begin(self, wanted: _Wanted) -> None:
        if self._host.is_closing:
            return self._answer(wanted, None)
        try:
            find_workflow(wanted.record.workflow, wanted.record.run_id)
        except SatayError as error:
            return self._answer(wanted, error)
        self._queue.append(wanted)
        if self._batches < MAX_BATCHES:
            self._batches += 1
            self._host.spawn(self._work())
        return None

    def note_message(self, run_id: str) -> bool:
        """Have a run that is being taken over look into its inbox then. False if it is not being taken over."""
        wanted = self._wanted.get(run_id)
        if wanted is None:
            return False
        wanted.has_messages = True
        return True

    def close(self) -> None:
        """Take nothing over any more, and tell those who wait."""
        self._queue.clear()
        for wanted in list(self._wanted.values()):
            self._answer(wanted, None)

    async def _work(self) -> None:
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
                await self._take_over(batch)
        finally:
            self._batches -= 1

    async def _take_over(self, batch: Sequence[_Wanted]) -> None:
        try:
            await self._claim_and_load(batch)
        except Exception as error:  # whatever it is, those who asked get it
            for wanted in batch:
                self._answer(wanted, error)
        else:
            for wanted in batch:
                self._answer(wanted, self._host.drive_of(wanted.record.run_id))

    async def _claim_and_load(self, batch: Sequence[_Wanted]) -> None:
        wanted = {each.record.run_id: each for each in batch}
        claims: dict[str, Claim] = {}  # Those that are driven, or were given back, leave it.
        try:
            await finish(self._claim(batch, claims))  # Whoever is stopped meanwhile has to know what to give back.
            while claims:
                pages = await self._first_pages(list(claims))
                await asyncio.gather(*(self._load(wanted[page.run_id], claims, page) for page in pages))
        finally:
            await asyncio.gather(*map(self._give_back, claims.values()))

    def _answer(self, wanted: _Wanted, outcome: Drive | Exception | None) -> None:
        if wanted.answer.done():
            return
        del self._wanted[wanted.record.run_id]
        if isinstance(outcome, Exception):
            if isinstance(outcome, MAY_PASS) and wanted.record.owner == self._host.owner_id:
                self._host.try_again(wanted.record.run_id)
            wanted.answer.set_exception(outcome)
            wanted.answer.exception()  # Whoever asked may have been cancelled.
        else:
            wanted.answer.set_result(outcome)

    async def _claim(self, batch: Sequence[_Wanted], claims: dict[str, Claim]) -> None:
        host = self._host
        # A run that waits could be claimed too. But who drove it last wakes it, and its drive may be in memory there.
        drivers = {each.record.owner for each in batch} - {None, host.owner_id}
        alive = {driver for driver in drivers if not await host.is_gone(driver)}
        records = [each.record for each in batch]
        free = [record for record in records if record.owner not in alive and host.drive_of(record.run_id) is None]
        if free:
            for claim in await host.journal.claim(free, host.owner_id, host.clock.now()):
                claims[claim.lease.run_id] = claim

    async def _first_pages(self, run_ids: Sequence[str]) -> Sequence[FirstPage]:
        try:
            return await self._host.journal.first_pages(run_ids)
        except JournalCorruptError:  # It does not say of which run. Each is read by itself then.
            return [FirstPage(run_id, (), is_whole=False, has_messages=True) for run_id in run_ids]

    async def _load(self, wanted: _Wanted, claims: dict[str, Claim], page: FirstPage) -> None:
        claim = claims[page.run_id]
        try:
            drive = await self._make_drive(wanted, claim, page)
        except Exception as error:
            await self._give_back(claims.pop(page.run_id))
            self._answer(wanted, error)
        else:
            del claims[page.run_id]
            self._host.adopt(drive, resumed=claim.before.status == RunStatus.RUNNING and drive.is_replaying)
            self._answer(wanted, drive)

    async def _give_back(self, claim: Claim) -> None:
        with suppress(JournalError):  # Then it is taken over again when this process is known to be gone.
            await self._host.journal.release(claim.lease, claim.before)

    async def _make_drive(self, wanted: _Wanted, claim: Claim, page: FirstPage) -> Drive:
        run_id, host = claim.lease.run_id, self._host
        entries = page.entries
        if not page.is_whole:
            entries = [*entries, *await host.archive.entries(run_id, after=len(entries))]
        blobs = await host.archive.values(run_id, entries, needed_blobs(entries))
        definition = find_workflow(wanted.record.workflow, run_id)
        with reading(run_id):
            origin = origin_of(run_id, entries, blobs)
            drive = Drive(host, claim.lease, definition, origin, history_of(entries), blobs)
        if claim.before.parent_id is not None:
            await host.children.stop_with_parent(run_id, claim.before.parent_id)
        drive.before = claim.before
        if not drive.is_replaying and (page.has_messages or wanted.has_messages):
            drive.requests = await self._requests_to_end(run_id)
        drive.has_messages = page.has_messages or wanted.has_messages  # Last: they may come while others are read.
        return drive

    async def _requests_to_end(self, run_id: str) -> list[Message]:
        """What asks a run to end that has not begun. One that goes on as a new run at once would never look."""
        messages = await self._host.journal.messages(run_id)
        return [message for message in messages if message.type in (CANCEL_REQUESTED, TERMINATION_REQUESTED)]
