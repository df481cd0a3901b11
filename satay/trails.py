"""The decision trail of a run or a session: where it comes from, what it inherited, and every decision in order.

A trail is read entry by entry, so that what is read of a journal and what is written to it later are items of one kind.
Values that are kept in blobs are not read: an item names the blob.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.accounts import CallSide, CallState, read_failure
from satay.clock import to_datetime
from satay.experiments import Outcome, Promotion
from satay.histories import Reading, RecordedCall
from satay.model import MISSING, SESSION_WORKFLOW, CallId, Entry, EntryType, RunRecord, RunStatus
from satay.phrases import MAX_CELL_CHARACTERS, show_count, show_id, show_outcome, wrapped
from satay.receipts import ForkReceipt
from satay.replay import CALL_KIND, blob_reference, read_head, recorded_call, value_text
from satay.tables import Column, printable, shorten, shorten_middle, show_value, text_table
from satay.texts import to_plain
from satay.transcripts import APPROVAL, SessionStatus

MAX_SHOWN_ITEMS: Final = 200
"""The text of a trail shows at most so many decisions, the last ones."""


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


@dataclass(frozen=True, slots=True)
class TrailCall:
    """A call with all that came of it. `run_id` is the run that made it, or got its outcome last.

    `is_inherited` says that its outcome is from before the cut of the fork, or the call itself where it has none.
    `step` is the step of a session that was being worked on.
    """

    identity: CallId
    side: CallSide
    run_id: str
    is_inherited: bool
    step: int | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        failure = self.side.failure
        return {
            "call": str(self.identity),
            "run_id": self.run_id,
            "is_inherited": self.is_inherited,
            "step": self.step,
            **self.side.to_dict(),
            "input": None if self.side.input is MISSING else self.side.input,
            "result": None if self.side.result is MISSING else self.side.result,
            "error": None if failure is None else {"type": failure.type, "message": failure.message},
        }


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run in the lineage of another, or that run itself.

    `receipt` is what it inherited, None for the root. `status` and `session_status` are None, and `outcome` too, for
    one that is not in the journal any more.
    """

    run_id: str
    workflow: str | None
    status: RunStatus | None
    session_status: SessionStatus | None
    receipt: ForkReceipt | None
    outcome: Outcome | None

    @property
    def intervention(self) -> Any:
        """What the fork was given as `intervention`."""
        return None if self.receipt is None else self.receipt.intervention

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run_id": self.run_id,
            "workflow": self.workflow,
            "status": None if self.status is None else self.status.value,
            "session_status": None if self.session_status is None else self.session_status.value,
            "receipt": None if self.receipt is None else self.receipt.to_dict(),
            "outcome": None if self.outcome is None else _outcome_data(self.outcome),
        }


@dataclass(frozen=True, slots=True)
class DecisionTrail:
    """Where a run or a session comes from, and what was decided in it. `str()` of it is a report.

    `lineage` leads from the root to the run itself, which is the last. `items` are all entries of its journal, `calls`
    its calls, or ledger, in the order in which they were made; both mark what is inherited. `outcomes` are those that
    were recorded of it, oldest first; `promotions` the decisions of the experiment that it was tried in, and of the one
    whose baseline it is.
    """

    lineage: tuple[Ancestor, ...]
    items: tuple[TrailItem, ...]
    calls: tuple[TrailCall, ...]
    outcomes: tuple[Outcome, ...]
    promotions: tuple[Promotion, ...]

    @property
    def run_id(self) -> str:
        """The run whose trail it is."""
        return self.lineage[-1].run_id

    @property
    def root_id(self) -> str:
        """The run that the lineage begins with."""
        return self.lineage[0].run_id

    @property
    def boundary(self) -> ForkReceipt | None:
        """What the run inherited: its receipt, which never changes. None for a run that is no fork."""
        return self.lineage[-1].receipt

    @property
    def steps(self) -> tuple[TrailItem, ...]:
        """The steps of a session, the inherited ones too."""
        return tuple(item for item in self.items if item.kind is TrailKind.STEP)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run_id": self.run_id,
            "lineage": [ancestor.to_dict() for ancestor in self.lineage],
            "boundary": None if self.boundary is None else self.boundary.to_dict(),
            "items": [item.to_dict() for item in self.items],
            "calls": [call.to_dict() for call in self.calls],
            "outcomes": [_outcome_data(outcome) for outcome in self.outcomes],
            "promotions": [_promotion_data(promotion) for promotion in self.promotions],
        }

    def __str__(self) -> str:
        return "\n\n".join(block for block in _blocks(self) if block)


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    return {
        "value": outcome.value.value,
        "score": outcome.score,
        "note": outcome.note,
        "at": outcome.at.isoformat(),
        "decided_in": outcome.decided_in,
    }


def _promotion_data(promotion: Promotion) -> dict[str, Any]:
    return {
        "experiment_id": promotion.experiment_id,
        "run_id": promotion.run_id,
        "at": promotion.at.isoformat(),
        "closed": list(promotion.closed),
    }


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

_STATUS: Final[Mapping[str, CallState]] = {
    EntryType.TASK_COMPLETED: CallState.COMPLETED,
    EntryType.TASK_FAILED: CallState.FAILED,
    EntryType.TASK_BLOCKED: CallState.BLOCKED,
    EntryType.TIMER_FIRED: CallState.COMPLETED,
    EntryType.EXTERNAL_EVENT_RECEIVED: CallState.COMPLETED,
    EntryType.EVENT_WAIT_TIMED_OUT: CallState.TIMED_OUT,
    EntryType.CHILD_WORKFLOW_COMPLETED: CallState.COMPLETED,
    EntryType.CHILD_WORKFLOW_FAILED: CallState.FAILED,
    EntryType.CALL_CANCELLED: CallState.CANCELLED,
}

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
            status=_STATUS.get(entry.type),
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


def trail_call(
    reading: Reading, call: RecordedCall, segments: Sequence[Segment], steps: Mapping[int, int]
) -> TrailCall:
    """A call with all that came of it. `steps` are those that sessions worked on, by the entry of the call."""
    deciding = call.entry if call.outcome is None else call.outcome
    return TrailCall(
        identity=call.identity,
        side=reading.side(call),
        run_id=recorder_of(segments, deciding.seq),
        is_inherited=deciding.seq <= (reading.cut or 0),
        step=steps.get(call.entry.seq),
    )


# --- the report -------------------------------------------------------------------------------------------------------


def _blocks(trail: DecisionTrail) -> Iterator[str]:
    yield _heading(trail)
    if trail.boundary is not None:
        yield _lineage(trail.lineage)
        yield _boundary(trail.boundary)
    yield _decisions(trail)
    yield "\n".join(_outcomes(trail))


def _heading(trail: DecisionTrail) -> str:
    own = trail.lineage[-1]
    parts = [str(_status(own))]
    if own.workflow == SESSION_WORKFLOW:
        parts.append(show_count(len(trail.steps), "step"))
    else:
        parts.insert(0, printable(shorten(own.workflow or "", MAX_CELL_CHARACTERS)))
    return f"{show_id(trail.run_id)}: {', '.join([*parts, show_count(len(trail.calls), 'call')])}"


def _status(run: Ancestor) -> str:
    if run.session_status is not None:
        return run.session_status.value
    return "gone" if run.status is None else run.status.value.replace("_", " ")


def _lineage(lineage: Sequence[Ancestor]) -> str:
    columns = [Column("lineage", is_wide=True), Column("status"), Column("cut"), Column("intervention")]
    columns.append(Column("outcome"))
    rows = []
    for run in lineage:
        cut = "the root" if run.receipt is None else run.receipt.cut
        intervention = "" if run.receipt is None or run.intervention is None else show_value(_plain(run.receipt))
        outcome = "" if run.outcome is None else _outcome(run.outcome)
        rows.append((run.run_id, _status(run), shorten(cut, MAX_CELL_CHARACTERS), shorten(intervention, 30), outcome))
    return text_table(columns, rows)


def _plain(receipt: ForkReceipt) -> Any:
    return receipt.to_dict()["intervention"]


def _outcome(outcome: Outcome) -> str:
    return outcome.value.value + ("" if outcome.score is None else f" {outcome.score}")


def _boundary(receipt: ForkReceipt) -> str:
    text = (
        f"It inherits entries 1 to {receipt.resolved_seq:,} of {show_id(receipt.source_id)}, {receipt.cut}, with "
        f"{show_count(receipt.calls_inherited, 'call')}"
    )
    boundary = receipt.boundary
    if boundary is not None and boundary.state_step is not None:
        text += (
            f" and the state of step {boundary.state_step}, version {boundary.state_version}, "
            f"{(boundary.state_sha256 or '')[:12]}"
        )
    elif boundary is not None:
        text += " and no state"
    return wrapped(f"{text}; digest {receipt.prefix_digest[:12]}, receipt {receipt.receipt_id[:12]}.")


_OF_CALLS: Final = frozenset({TrailKind.CALL, TrailKind.OUTCOME, TrailKind.BLOCKED, TrailKind.ATTEMPT})


def _decisions(trail: DecisionTrail) -> str:
    """What was decided, a line each: a call is one line with all that came of it, a state stands with its step."""
    calls = {call.side.seq: call for call in trail.calls}
    states = {item.step: item for item in trail.items if item.kind is TrailKind.STATE}
    told = [item for item in trail.items if item.kind is not TrailKind.STATE and (_is_told(item, calls))]
    left = max(0, len(told) - MAX_SHOWN_ITEMS)
    columns = [Column("entry", "right"), Column("from"), Column("what"), Column("status")]
    columns.append(Column("value", is_wide=True))
    table = text_table(columns, (_row(item, calls.get(item.seq), states, trail.run_id) for item in told[left:]))
    return f" … {left:,} before these\n{table}" if left else table


def _is_told(item: TrailItem, calls: Mapping[int, TrailCall]) -> bool:
    return item.kind not in _OF_CALLS or item.seq in calls


def _row(
    item: TrailItem, call: TrailCall | None, states: Mapping[int | None, TrailItem], run_id: str
) -> tuple[str, str, str, str, str]:
    recorder = shorten_middle(item.run_id, 20) if item.is_inherited else ""
    if call is not None and item.kind is TrailKind.CALL:
        status = call.side.state.value.replace("_", " ")
        status += "" if call.side.attempts == 1 else f", {call.side.attempts} attempts"
        return str(item.seq), recorder, shorten_middle(item.name, MAX_CELL_CHARACTERS), status, show_outcome(call.side)
    return str(item.seq), recorder, _what(item), _word(item, states), _shown(item)


def _what(item: TrailItem) -> str:
    name = printable(shorten_middle(item.name, MAX_CELL_CHARACTERS))
    match item.kind:
        case TrailKind.STEP:
            return f"step {item.step}: {name}"
        case TrailKind.APPROVAL_REQUESTED | TrailKind.APPROVAL:
            return f"approval {name}"
        case TrailKind.WAKE_UP | TrailKind.WOKEN:
            return f"wake-up {name}".rstrip()
        case TrailKind.FORKED:
            return f"fork {name}"
        case _:
            return name or item.kind.value.replace("_", " ")


_WORDS: Final[Mapping[TrailKind, str]] = {
    TrailKind.APPROVAL_REQUESTED: "requested",
    TrailKind.DECISION_REQUESTED: "undecided",
    TrailKind.WAKE_UP: "set",
    TrailKind.WOKEN: "woken",
    TrailKind.FORKED: "forked",
}


def _word(item: TrailItem, states: Mapping[int | None, TrailItem]) -> str:
    if item.kind is TrailKind.STEP:
        state = states.get(item.step)
        return "no state" if state is None else f"state v{state.facts['version']}"
    if item.kind is TrailKind.APPROVAL:
        return "timed out" if item.status is CallState.TIMED_OUT else "answered"
    if item.kind is TrailKind.DECISION:
        return f"decided: {item.facts.get('decision')}"
    return _WORDS.get(item.kind, "" if not item.name else item.kind.value.replace("_", " "))


def _shown(item: TrailItem) -> str:
    if item.blob is not None:
        return "(a large value)"
    if item.kind is TrailKind.STEP and isinstance(item.value, dict):
        return "" if item.value["output"] is None else show_value(item.value["output"])
    if item.kind is TrailKind.CREATED:
        return ""
    if item.kind is TrailKind.PAUSED and "reason" in item.facts:
        return str(item.facts["reason"])
    if item.kind is TrailKind.RESUMED and "after" in item.facts:
        return f"after {item.facts['after']}"
    return "" if item.value is MISSING or item.value is None else show_value(item.value)


def _outcomes(trail: DecisionTrail) -> Iterator[str]:
    for outcome in trail.outcomes:
        note = "" if outcome.note is None else f": {printable(shorten(outcome.note))}"
        decided = "" if outcome.decided_in is None else f", decided in {printable(outcome.decided_in)}"
        yield f"{outcome.at:%Y-%m-%d %H:%M:%S}  {_outcome(outcome)}{decided}{note}"
    for promotion in trail.promotions:
        closed = f", which closed {', '.join(map(show_id, promotion.closed))}" if promotion.closed else ""
        yield f"{promotion.at:%Y-%m-%d %H:%M:%S}  {show_id(promotion.run_id)} was promoted{closed}"
