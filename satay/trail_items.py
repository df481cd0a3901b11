"""The items of a decision trail: entries of a journal, as what they are and with what they belong to.

A trail is read entry by entry, so that what is read of a journal and what is written to it later are items of one kind.
Values that are kept in blobs are not read: an item names the blob.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.accounts import STATE_OF_OUTCOME, CallState
from satay.clock import to_datetime
from satay.failures import read_failure
from satay.model import APPROVAL, MISSING, SESSION_WORKFLOW, Entry, EntryType, RunRecord
from satay.replay import CALL_KIND, blob_reference, read_head, recorded_call, value_text
from satay.texts import to_plain


class TrailKind(StrEnum):
    """What an item of a trail is.

    `CALL` is the claim of a call, `OUTCOME` what came of it and `BLOCKED` its refusal by a tool policy; `ATTEMPT` is an
    attempt that was begun or failed. `WAKE_UP` and `WOKEN` are the timers of sessions. `CRASHED` is the end of a
    session's block with an error, `FAILED` that of a workflow. `OVERRIDE` is what a fork says of calls that it does not
    make as its source did. `NOTE` is everything else.
    """

    CREATED = "created"
    FORKED = "forked"
    STARTED = "started"
    RESUMED = "resumed"
    PAUSED = "paused"
    COMPLETED = "completed"
    CRASHED = "crashed"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    STEP = "step"
    STATE = "state"
    CALL = "call"
    ATTEMPT = "attempt"
    OUTCOME = "outcome"
    BLOCKED = "blocked"
    DECISION_REQUESTED = "decision_requested"
    DECISION = "decision"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL = "approval"
    WAKE_UP = "wake_up"
    WOKEN = "woken"
    OVERRIDE = "override"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class TrailItem:
    """One entry of a journal, as part of a trail.

    `type` is the entry's type. `run_id` is the run that recorded it: for an inherited one an ancestor. `name` is that
    of the step, of the call (`email.send[welcome]`), the key of an approval or the note of a wake-up; empty for others.
    `step` is the step that was recorded, or being worked on where a session made the call. `status` is how a call
    ended. `value` is plain JSON data: the input and output of a step, the input or the result of a call, the type and
    message of an error, the value of a decision; `MISSING` where there is none, and where it was not read because it
    is large: then `blob` is its SHA-256. `facts` is what else the entry says.
    """

    seq: int
    kind: TrailKind
    type: str
    at: datetime
    run_id: str
    is_inherited: bool
    name: str
    step: int | None
    status: CallState | None
    value: Any
    blob: str | None
    facts: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data; a value that there is not is left out."""
        plain = ("seq", "type", "run_id", "is_inherited", "name", "step", "blob", "facts")
        data = {name: getattr(self, name) for name in plain}
        data |= {"kind": self.kind.value, "at": self.at.isoformat()}
        data["status"] = None if self.status is None else self.status.value
        return data if self.value is MISSING else data | {"value": self.value}


# --- reading ----------------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """The part of a journal that a run of the lineage recorded: up to `last_seq`, None for the part that is written."""

    run_id: str
    last_seq: int | None


_KINDS: Final[Mapping[str, TrailKind]] = {
    EntryType.WORKFLOW_CREATED: TrailKind.CREATED,
    EntryType.SESSION_CREATED: TrailKind.CREATED,
    EntryType.RUN_FORKED: TrailKind.FORKED,
    EntryType.SESSION_STARTED: TrailKind.STARTED,
    EntryType.WORKFLOW_RESUMED: TrailKind.RESUMED,
    EntryType.SESSION_RESUMED: TrailKind.RESUMED,
    EntryType.WORKFLOW_SUSPENDED: TrailKind.PAUSED,
    EntryType.SESSION_PAUSED: TrailKind.PAUSED,
    EntryType.WORKFLOW_COMPLETED: TrailKind.COMPLETED,
    EntryType.SESSION_COMPLETED: TrailKind.COMPLETED,
    EntryType.WORKFLOW_FAILED: TrailKind.FAILED,
    EntryType.SESSION_CRASHED: TrailKind.CRASHED,
    EntryType.WORKFLOW_CANCEL_REQUESTED: TrailKind.CANCEL_REQUESTED,
    EntryType.WORKFLOW_CANCELLED: TrailKind.CANCELLED,
    EntryType.STEP_RECORDED: TrailKind.STEP,
    EntryType.STATE_RECORDED: TrailKind.STATE,
    EntryType.TASK_SCHEDULED: TrailKind.CALL,
    EntryType.TIMER_CREATED: TrailKind.CALL,
    EntryType.EVENT_WAIT_STARTED: TrailKind.CALL,
    EntryType.CHILD_WORKFLOW_SCHEDULED: TrailKind.CALL,
    EntryType.TASK_ATTEMPT_STARTED: TrailKind.ATTEMPT,
    EntryType.TASK_ATTEMPT_FAILED: TrailKind.ATTEMPT,
    EntryType.TASK_COMPLETED: TrailKind.OUTCOME,
    EntryType.TASK_FAILED: TrailKind.OUTCOME,
    EntryType.TASK_BLOCKED: TrailKind.BLOCKED,
    EntryType.TIMER_FIRED: TrailKind.OUTCOME,
    EntryType.EXTERNAL_EVENT_RECEIVED: TrailKind.OUTCOME,
    EntryType.EVENT_WAIT_TIMED_OUT: TrailKind.OUTCOME,
    EntryType.CHILD_WORKFLOW_COMPLETED: TrailKind.OUTCOME,
    EntryType.CHILD_WORKFLOW_FAILED: TrailKind.OUTCOME,
    EntryType.CALL_CANCELLED: TrailKind.OUTCOME,
    EntryType.DECISION_REQUESTED: TrailKind.DECISION_REQUESTED,
    EntryType.DECISION_MADE: TrailKind.DECISION,
    EntryType.OUTCOME_KEPT: TrailKind.OVERRIDE,
    EntryType.OUTCOME_OVERRIDDEN: TrailKind.OVERRIDE,
    EntryType.CALL_REISSUED: TrailKind.OVERRIDE,
}

_ERRORS: Final = frozenset(
    {
        EntryType.TASK_ATTEMPT_FAILED,
        EntryType.TASK_FAILED,
        EntryType.CHILD_WORKFLOW_FAILED,
        EntryType.WORKFLOW_FAILED,
        EntryType.SESSION_CRASHED,
    }
)
"""Entries whose value is a recorded error, of which a trail tells the type and the message."""

_WITHOUT_VALUE: Final = frozenset({EntryType.RUN_FORKED, EntryType.STATE_RECORDED})
"""Entries whose value is told elsewhere, or says nothing by itself."""

_APPROVALS: Final = {TrailKind.CALL: TrailKind.APPROVAL_REQUESTED, TrailKind.OUTCOME: TrailKind.APPROVAL}
_WAKE_UPS: Final = {TrailKind.CALL: TrailKind.WAKE_UP, TrailKind.OUTCOME: TrailKind.WOKEN}
_ORDINARY: Final[Mapping[TrailKind, TrailKind]] = {}


class _Opened(NamedTuple):
    """A call that an entry recorded: its name, its step, and what its entries are where it is no ordinary call."""

    name: str
    step: int | None
    kinds: Mapping[TrailKind, TrailKind]


_UNKNOWN: Final = _Opened("", None, _ORDINARY)


class TrailReader:
    """Makes items of the entries of a journal, given in order and from the first one on.

    `segments` say who recorded which part of it, from the root of the lineage to the run itself.
    """

    def __init__(self, record: RunRecord, segments: Sequence[Segment]) -> None:
        self._record = record
        self._segments = segments
        self._last_step = 0
        self._opened: dict[int, _Opened] = {}

    def read(self, entry: Entry) -> TrailItem:
        """The item of an entry. Raises `JournalCorruptError` for one that cannot be read."""
        kind = _KINDS.get(entry.type, TrailKind.NOTE)
        told = read_head(entry)
        opened = self._call_of(entry, told)
        name, step = opened.name, opened.step
        if kind is TrailKind.STEP:
            name, step = told["name"], told["step"]
            self._last_step = told["step"]
        elif kind is TrailKind.STATE:
            step = told["step"]
        elif kind is TrailKind.FORKED:
            name = told["run_id"]
        value, blob = _value(entry)
        return TrailItem(
            seq=entry.seq,
            kind=opened.kinds.get(kind, kind),
            type=entry.type,
            at=to_datetime(entry.at),
            run_id=self._recorder(entry.seq),
            is_inherited=1 < entry.seq <= (self._record.fork_seq or 0),
            name=name,
            step=step,
            status=STATE_OF_OUTCOME.get(entry.type),
            value=value,
            blob=blob,
            facts=told,
        )

    def _call_of(self, entry: Entry, told: Mapping[str, Any]) -> _Opened:
        """The call that an entry records, or that it belongs to."""
        if entry.type not in CALL_KIND:
            return self._opened.get(told.get("call", 0), _UNKNOWN)
        is_session = self._record.workflow == SESSION_WORKFLOW
        step = told.get("step", self._last_step + 1) if is_session else None
        opened = _Opened(str(recorded_call(entry)), step, _ORDINARY)
        if entry.type == EntryType.EVENT_WAIT_STARTED and told["event"] == APPROVAL:
            opened = _Opened(told["match"], step, _APPROVALS)
        elif entry.type == EntryType.TIMER_CREATED and is_session:
            opened = _Opened(told.get("note") or "", step, _WAKE_UPS)
        self._opened[entry.seq] = opened
        return opened

    def _recorder(self, seq: int) -> str:
        return recorder_of(self._segments, seq)


def recorder_of(segments: Sequence[Segment], seq: int) -> str:
    """The run of a lineage that recorded an entry. Entry 1 is the run's own."""
    if seq > 1:
        for run_id, last_seq in segments:
            if last_seq is not None and seq <= last_seq:
                return run_id
    return segments[-1].run_id


def _value(entry: Entry) -> tuple[Any, str | None]:
    if entry.type in _WITHOUT_VALUE:
        return MISSING, None
    text = value_text(entry)
    if text is None:
        return MISSING, blob_reference(entry)
    if entry.type in _ERRORS:
        failure = read_failure(text)
        return {"type": failure.type, "message": failure.message}, None
    return to_plain(text), None
