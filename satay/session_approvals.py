"""Approvals of a session: a request is recorded once, and its answer when the session, open again or still, sees it."""

import asyncio
from typing import Final

from satay.approval_inbox import expire, find_answer
from satay.approval_records import (
    EXPIRED,
    REQUEST_HEAD,
    Approval,
    decode_decision,
    payload_conflict,
    payload_difference,
    request_facts,
    timed_out,
)
from satay.clock import MICROSECONDS
from satay.errors import ApprovalPendingError
from satay.experiments import Draft
from satay.model import Entry, EntryType, Message
from satay.scheduler import Scheduler
from satay.session_calls import ApprovalMark
from satay.session_journals import SessionJournal
from satay.texts import json_quote

_TIMED_OUT: Final = EntryType.EVENT_WAIT_TIMED_OUT


class ApprovalRequest:
    """What a session asks an approval for: the text of the payload, and how long the request is open, if not for ever.

    Both ways to have the decision raise `ApprovalTimeoutError`, `CallConflictError` and `SessionLostError`.
    """

    def __init__(self, host: Scheduler, journal: SessionJournal, key: str, text: str, seconds: float | None) -> None:
        self._host = host
        self._journal = journal
        self._key = key
        self._text = text
        self._seconds = seconds

    async def decision(self) -> Approval:
        """Ask, and wait for the decision."""
        mark = await self._ask()
        while True:
            news = self._host.waiters.next_entry(self._journal.run_id)
            answer = await self._look(mark)
            if answer is not None:
                return await self._read(answer)
            await self._until(news, mark.deadline)

    async def decision_by_now(self) -> Approval:
        """Ask, and answer what was decided. Raises `ApprovalPendingError` where nothing was."""
        answer = await self._look(await self._ask())
        if answer is not None:
            return await self._read(answer)
        run_id, key = self._journal.run_id, self._key
        raise ApprovalPendingError(
            f"session {run_id!r} waits for approval {key!r}; once somebody has decided, with "
            f"satay.decide_approval({run_id!r}, {key!r}, approved=...), open the session again and ask again",
            run_id=run_id,
            key=key,
        )

    async def _ask(self) -> ApprovalMark:
        """Record the request, unless it is there."""
        journal, key = self._journal, self._key

        def decide() -> list[Draft]:
            mark = journal.transcript.approvals.get(key)
            if mark is None:
                due = None
                if self._seconds is not None:
                    due = self._host.clock.now() + round(self._seconds * MICROSECONDS)
                facts = f'{REQUEST_HEAD},"key":{json_quote(key)},{request_facts(key, due)}'
                return [Draft(EntryType.EVENT_WAIT_STARTED, facts, self._text)]
            path = payload_difference(mark.entry, self._text)
            if path is not None:
                raise payload_conflict(journal.run_id, key, path)
            return []

        await journal.write(decide)
        return journal.transcript.approvals[key]

    async def _look(self, mark: ApprovalMark) -> Entry | None:
        """The recorded answer. One that is in the inbox is recorded, and so is the end of the time."""
        if mark.answer is None:
            message = await self._find(mark)
            if message is None:
                await self._journal.refresh()  # Another who takes part may have recorded it, or taken the session.
            else:
                await self._journal.write(lambda: _answer(mark, message), taken=(message.id,))
        return mark.answer

    async def _find(self, mark: ApprovalMark) -> Message | None:
        journal, run_id = self._host.journal, self._journal.run_id
        if mark.deadline is not None and self._host.clock.now() >= mark.deadline:
            await expire(journal, self._host.clock, run_id, self._key)
        return await find_answer(journal, run_id, self._key)

    async def _read(self, answer: Entry) -> Approval:
        if answer.type == _TIMED_OUT:
            raise timed_out(self._key)
        (text,) = await self._host.archive.texts(self._journal.run_id, [answer.seq])
        return decode_decision(text, self._key)

    async def _until(self, news: "asyncio.Future[None]", deadline: int | None) -> None:
        """Wait until there may be an answer. What another process posts is found by looking again."""
        is_due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = None
        if deadline is not None:
            alarm = self._host.clock.call_at(deadline, lambda: None if is_due.done() else is_due.set_result(None))
        seconds = self._host.settings.poll_seconds
        try:
            await asyncio.wait((news, is_due), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if alarm is not None:
                alarm.cancel()


def _answer(mark: ApprovalMark, message: Message) -> list[Draft]:
    """What a message that answers a request writes; nothing where the answer is there."""
    if mark.answer is not None:
        return []
    told = f'"call":{mark.entry.seq},"message":{message.id}'
    if message.payload == EXPIRED:
        return [Draft(_TIMED_OUT, told)]
    told += f',"event_id":{json_quote(message.event_id or "")}'
    return [Draft(EntryType.EXTERNAL_EVENT_RECEIVED, told, message.payload)]
