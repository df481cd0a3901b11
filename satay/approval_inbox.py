"""Decides approvals and ends their time: both are messages, of which the inbox of a run lets in the first.

A decision is refused once the time of the request is up, by the clock of who decides; nobody has to have noticed. The
end of the time is posted like a decision before it is recorded: one that was let in before wins, however late it is
delivered.
"""

from typing import Any, Final, NamedTuple, Protocol

from satay.approval_records import (
    EXPIRED,
    PAYLOAD_CODEC,
    Approval,
    PendingApproval,
    Request,
    contradiction,
    decision_id,
    decode_decision,
    encode_decision,
    read_requests,
    too_late,
)
from satay.archive import Archive
from satay.clock import Clock, to_datetime
from satay.errors import ApprovalNotFoundError, JournalConflictError, RunEndedError
from satay.journal import MAX_PAGE, Journal, ReadableJournal, RunQuery
from satay.model import APPROVAL, SESSION_WORKFLOW, Entry, EntryType, Message, RunRecord, RunStatus
from satay.replay import blob_reference, reading, value_text
from satay.texts import to_plain

MAX_LOOKS: Final = 10
"""How often a decision is tried again because the answer that was first is on its way from the inbox to the journal."""


class Verdict(NamedTuple):
    """What somebody wants to decide."""

    approved: bool
    by: str | None
    note: str | None
    value: Any


class DecisionHost(Protocol):
    """What deciding needs of the scheduler."""

    archive: Archive
    clock: Clock
    journal: Journal

    async def post(self, run_id: str | None, type: str, key: str | None, event_id: str | None, payload: str) -> bool:
        """Put a message in the inbox; false where one with the event id was there."""
        ...


async def decide(host: DecisionHost, record: RunRecord, key: str, verdict: Verdict) -> Approval:
    """Decide about what a run asked for, or find the same decision. Answers the decision that holds.

    Raises `ApprovalNotFoundError`, `ApprovalConflictError`, and `RunEndedError` where the run waits no more.
    """
    run_id = record.run_id
    for _ in range(MAX_LOOKS):
        request = _find(run_id, await _requests(host.archive, run_id), key)
        now = host.clock.now()
        decision = Approval(key, verdict.approved, verdict.by, verdict.note, verdict.value, to_datetime(now))
        text = encode_decision(decision)
        there = await _answer_text(host.archive, run_id, request)
        if there is None and (not request.is_open or is_over(record)):
            raise _withdrawn(run_id, key)
        if there is None:
            message = await find_answer(host.journal, run_id, key)
            there = None if message is None else message.payload
        if there is not None:
            return _settle(run_id, request, there, decision)
        if request.due is not None and now >= request.due:
            raise too_late(run_id, request)
        if await host.post(run_id, APPROVAL, key, decision_id(run_id, key), text):
            return decision
    raise JournalConflictError(f"the decision about approval {key!r} of run {run_id!r} cannot be read", run_id=run_id)


async def _requests(archive: Archive, run_id: str) -> dict[str, Request]:
    entries = await archive.entries(run_id)
    with reading(run_id):
        return read_requests(entries)


def _find(run_id: str, requests: dict[str, Request], key: str) -> Request:
    request = requests.get(key)
    if request is None:
        pending = [other.key for other in requests.values() if other.is_open]
        waits = f"it waits for {', '.join(map(repr, pending))}" if pending else "it waits for none"
        raise ApprovalNotFoundError(
            f"run {run_id!r} never asked for approval {key!r}; {waits}", run_id=run_id, key=key, pending=pending
        )
    return request


def _withdrawn(run_id: str, key: str) -> RunEndedError:
    return RunEndedError(f"run {run_id!r} has ended and does not wait for approval {key!r} any more", run_id=run_id)


async def _answer_text(archive: Archive, run_id: str, request: Request) -> str | None:
    if request.answer is None:
        return None
    if request.answer.type == EntryType.EVENT_WAIT_TIMED_OUT:
        return EXPIRED
    return await _value(archive, run_id, request.answer)


async def _value(archive: Archive, run_id: str, entry: Entry) -> str:
    text, reference = value_text(entry), blob_reference(entry)
    return text or (await archive.values(run_id, [entry], {reference or ""}))[reference or ""]


def _settle(run_id: str, request: Request, there: str, decision: Approval) -> Approval:
    """The decision that holds, where the one that is made says the same."""
    if there == EXPIRED:
        raise too_late(run_id, request)
    holds = decode_decision(there, request.key)
    if (holds.approved, _written(holds)) != (decision.approved, _written(decision)):
        raise contradiction(run_id, holds)
    return holds


def _written(decision: Approval) -> str:
    return PAYLOAD_CODEC.encode(decision.value, f"the value of approval {decision.key!r}")


def is_over(record: RunRecord) -> bool:
    """Whether a run waits for nothing any more. A session that crashed may be gone on with."""
    return record.status.is_terminal and not (record.workflow == SESSION_WORKFLOW and record.status is RunStatus.FAILED)


async def find_answer(journal: ReadableJournal, run_id: str, key: str) -> Message | None:
    """The message in a run's inbox that answers a request, if it is there."""
    for message in await journal.messages(run_id):
        if message.type == APPROVAL and message.event_id == decision_id(run_id, key):
            return message
    return None


async def expire(journal: Journal, clock: Clock, run_id: str, key: str) -> None:
    """Say that the time of a request is up. A decision that is in the inbox stays."""
    await journal.post(run_id, APPROVAL, key, decision_id(run_id, key), EXPIRED, clock.now())


async def list_pending(archive: Archive, run_id: str | None, now: int) -> list[PendingApproval]:
    """The approvals that a run, or any run, waits for, in the order of the requests."""
    records = [await archive.latest(run_id)] if run_id is not None else await _waiting_runs(archive.journal)
    found = [pending for record in records if not is_over(record) for pending in await _pending(archive, record, now)]
    return sorted(found, key=lambda pending: (pending.asked_at, pending.run_id, pending.seq))


async def _waiting_runs(journal: ReadableJournal) -> list[RunRecord]:
    records: list[RunRecord] = []
    while True:
        before = records[-1].run_id if records else None
        page = await journal.runs(RunQuery(waits_for=APPROVAL, before=before, limit=MAX_PAGE))
        records += page
        if len(page) < MAX_PAGE:
            return records


async def _pending(archive: Archive, record: RunRecord, now: int) -> list[PendingApproval]:
    run_id = record.run_id
    # First: a decision goes from the inbox into the journal, and read in this order it is in one of them.
    answered = {message.event_id for message in await archive.journal.messages(run_id) if message.type == APPROVAL}
    requests = await _requests(archive, run_id)
    return [
        PendingApproval(
            run_id=run_id,
            workflow=record.workflow,
            key=request.key,
            payload=to_plain(await _value(archive, run_id, request.entry)),
            asked_at=to_datetime(request.entry.at),
            deadline=None if request.due is None else to_datetime(request.due),
            seq=request.entry.seq,
        )
        for request in requests.values()
        if request.is_open
        and (request.due is None or request.due > now)
        and decision_id(run_id, request.key) not in answered
    ]
