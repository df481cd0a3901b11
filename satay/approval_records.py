"""Approvals as they are recorded: what was asked for, what was decided, and what a journal says of both. Pure.

A request is a wait for the event `satay.approval`, named by its key and with the payload as its value. It is answered
by one message, whose `event_id` belongs to the run and the key: so the inbox lets in either the first decision or the
end of its time, and never both, whichever process posts it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from satay.clock import to_datetime
from satay.codec import ValueCodec
from satay.declarations import value_codec
from satay.errors import ApprovalConflictError, ApprovalTimeoutError, CallConflictError
from satay.model import APPROVAL, Entry, EntryType
from satay.postponements import Postponements
from satay.replay import blob_reference, outcome_call, read_head, value_text
from satay.texts import dump_plain, json_quote, to_plain

EXPIRED: Final = "null"
"""The payload of the message that says that the time of an approval is up; that of a decision is an object."""

REQUEST_HEAD: Final = f'"event":{json_quote(APPROVAL)}'
"""The first member of the entry of a request."""

PAYLOAD_CODEC: Final = value_codec(Any)
"""Writes what an approval is asked for."""

_ANSWERS: Final = frozenset({EntryType.EXTERNAL_EVENT_RECEIVED, EntryType.EVENT_WAIT_TIMED_OUT})


@dataclass(frozen=True, slots=True)
class Approval:
    """A decision about an approval. It is true where it was approved, so that `if decision:` means what it says.

    `by` and `note` are who decided and why, as far as they were told; `value` is what was handed along, such as
    another amount.
    """

    key: str
    approved: bool
    by: str | None
    note: str | None
    value: Any
    at: datetime

    def __bool__(self) -> bool:
        return self.approved

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "key": self.key,
            "approved": self.approved,
            "by": self.by,
            "note": self.note,
            "value": to_plain(PAYLOAD_CODEC.encode(self.value, f"the value of approval {self.key!r}")),
            "at": self.at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """An approval that a run waits for. `payload` is plain JSON data; `deadline` is None where it waits for ever."""

    run_id: str
    workflow: str
    key: str
    payload: Any
    asked_at: datetime
    deadline: datetime | None
    seq: int

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run_id": self.run_id,
            "workflow": self.workflow,
            "key": self.key,
            "payload": self.payload,
            "asked_at": self.asked_at.isoformat(),
            "deadline": None if self.deadline is None else self.deadline.isoformat(),
            "seq": self.seq,
        }


@dataclass(slots=True)
class Request:
    """A request in a journal: its entry, its key, when its time is up, and the entry that answered it, if any.

    `is_withdrawn` says that the run gave it up.
    """

    entry: Entry
    key: str
    due: int | None
    answer: Entry | None = None
    is_withdrawn: bool = False

    @property
    def is_open(self) -> bool:
        return self.answer is None and not self.is_withdrawn


def decision_id(run_id: str, key: str) -> str:
    """The event id of the one message that answers a request.

    It names the run: what a run that goes on as a new one left in its inbox is no answer to what the new one asks.
    """
    return f"{APPROVAL}:{run_id}:{key}"


def request_facts(key: str, due: int | None) -> str:
    """The members that follow the name and the key in the entry of a request."""
    return f'"match":{json_quote(key)},"due":{"null" if due is None else due}'


def decision_codec() -> ValueCodec:
    """Writes and reads decisions."""
    return value_codec(Approval)


def encode_decision(approval: Approval) -> str:
    """The text of a decision. Raises `EncodeError` for a value that cannot be recorded."""
    return decision_codec().encode(approval, f"the decision about approval {approval.key!r}")


def decode_decision(text: str, key: str) -> Approval:
    """A decision that was recorded."""
    decision: Approval = decision_codec().decode(text, f"the decision about approval {key!r}")
    return decision


def verdict_text(text: str | None) -> str | None:
    """What was decided, as text, without the moment and the key: what makes two decisions the same."""
    data = None if text is None else to_plain(text)
    if not isinstance(data, dict):
        return text
    return dump_plain({name: data[name] for name in data if name not in ("key", "at")})


def is_request(entry: Entry) -> bool:
    """Whether an entry asks for an approval."""
    return entry.type == EntryType.EVENT_WAIT_STARTED and entry.payload.startswith(REQUEST_HEAD, 1)


def read_requests(entries: Iterable[Entry]) -> dict[str, Request]:
    """The requests of a journal, by key."""
    requests: dict[str, Request] = {}
    by_seq: dict[int, Request] = {}
    postponed = Postponements()
    for entry in entries:
        if is_request(entry):
            told = read_head(entry)
            request = Request(entry, told["match"], told["due"])
            requests[request.key] = by_seq[entry.seq] = request
        elif by_seq and entry.type in _ANSWERS:
            answered = by_seq.get(outcome_call(entry))
            if answered is not None:
                answered.answer = entry
        elif by_seq and entry.type == EntryType.CALL_CANCELLED:
            given_up = by_seq.get(outcome_call(entry))
            if given_up is not None:
                given_up.is_withdrawn = True
        postponed.take(entry)
    for seq, later in postponed.by_call.items():
        waiting = by_seq.get(seq)
        if waiting is not None and waiting.due is not None:
            waiting.due += later
    return requests


def payload_difference(entry: Entry, text: str) -> str | None:
    """The path of the first difference of what was asked for then and of what is asked for now; None if there is none.

    Where the payload is kept apart it is told by its digest, and the path is that of all of it.
    """
    recorded = value_text(entry)
    if recorded is None:
        is_same = blob_reference(entry) == hashlib.sha256(text.encode()).hexdigest()
        return None if is_same else "$"
    return None if recorded == text else first_difference(recorded, text)


def first_difference(one: str, other: str) -> str | None:
    """The path of the first difference of two payloads; None where they say the same."""
    from satay.differences import find_differences

    differences, _ = find_differences(to_plain(one), to_plain(other), 1)
    return differences[0].path if differences else None


def payload_conflict(run_id: str, key: str, path: str) -> CallConflictError:
    """The error of a key that is used for another payload."""
    return CallConflictError(
        f"run {run_id!r} asked for approval {key!r} with another payload before: it differs at {path}. What was "
        "decided about one holds for no other; give each payload a key of its own",
        run_id=run_id,
        call=f"{APPROVAL}[{key}]",
        path=path,
    )


def contradiction(run_id: str, there: Approval) -> ApprovalConflictError:
    """The error of a decision where there is another one."""
    verdict = "approved" if there.approved else "rejected"
    by = "" if there.by is None else f" by {there.by!r}"
    with_value = "" if there.value is None else f" with the value {there.value!r}"
    return ApprovalConflictError(
        f"approval {there.key!r} of run {run_id!r} was {verdict}{with_value}{by} at {_moment(there.at)}; the first "
        "decision holds. To decide anew, fork the run before it asks",
        run_id=run_id,
        key=there.key,
        approved=there.approved,
        by=there.by,
        at=there.at,
    )


def too_late(run_id: str, request: Request) -> ApprovalConflictError:
    """The error of a decision after the time of a request."""
    at = to_datetime(request.due or request.entry.at)
    return ApprovalConflictError(
        f"approval {request.key!r} of run {run_id!r} timed out at {_moment(at)}; a decision after that changes "
        "nothing. To decide anew, fork the run before it asks",
        run_id=run_id,
        key=request.key,
        approved=None,
        by=None,
        at=at,
    )


def timed_out(key: str) -> ApprovalTimeoutError:
    """The error of a request that nobody decided about in time."""
    return ApprovalTimeoutError(f"nobody decided about approval {key!r} in time", key=key)


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
