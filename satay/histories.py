"""One run as its journal tells it: its calls, what they took and used, its fork and its ending.

A journal is read in one pass, and of its values only those that are asked for. What is reported of calls and runs are
records that know nothing of the run that they are compared with.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from math import fsum
from typing import Any, Final

from satay.clock import MICROSECONDS, to_datetime
from satay.errors import DecodeError, JournalCorruptError
from satay.failures import Failure, parse_failure
from satay.model import MISSING, TERMINAL_ENTRIES, CallId, CallKind, Entry, EntryType, RunRecord, RunStatus
from satay.replay import CALL_KIND, OUTCOME_TYPES, blob_reference, facts, outcome_call, reading, value_text
from satay.texts import dump_plain, to_plain


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run with its whole journal and the texts of the blobs that it refers to."""

    record: RunRecord
    entries: Sequence[Entry]
    blobs: Mapping[str, str]


# --- records ----------------------------------------------------------------------------------------------------------


class CallState(StrEnum):
    """How a call ended in one run; `OPEN` has no outcome."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """What was recorded of models used, added up. `models` are in the order of their first use."""

    models: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


NO_USAGE: Final = UsageTotal()


@dataclass(frozen=True, slots=True)
class CallSide:
    """A call as one run recorded it.

    `seq` and `outcome_seq` are the entries that hold the call and its outcome. `usage` counts failed attempts too.
    `seconds` go from the call to its outcome; where the call was outstanding at a fork's cut, from the fork.
    """

    seq: int
    outcome_seq: int | None
    state: CallState
    attempts: int
    usage: UsageTotal
    seconds: float | None
    input_text: str | None = field(repr=False)
    outcome_text: str | None = field(repr=False)

    @property
    def input(self) -> Any:
        """The recorded input as plain JSON data, or `MISSING`."""
        return to_plain_or_missing(self.input_text)

    @property
    def result(self) -> Any:
        """The recorded result, or an event's payload, as plain JSON data; `MISSING` if there is none."""
        return to_plain_or_missing(self.outcome_text) if self.state is CallState.COMPLETED else MISSING

    @property
    def failure(self) -> Failure | None:
        """What was recorded of the error, if the call failed."""
        return read_failure(self.outcome_text) if self.state is CallState.FAILED else None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, without input and result."""
        return _record_data(self, leave_out={"input_text", "outcome_text"})


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a fork did not spend again: calls whose outcome it inherited, usage recorded in the inherited entries.

    `seconds` is the time during which at least one of these calls was outstanding.
    """

    calls: int
    usage: UsageTotal
    seconds: float


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run as far as a comparison needs it.

    `fork_seq` is the last entry that a fork inherited, `reused` what that saved; None for a run that is no fork.
    `calls` and `usage` count the whole journal, inherited entries too; `seconds` go from the creation of this very run
    to its last entry. `intervention` is plain JSON data; `failure` is what was recorded of the error of a failed run.
    """

    run_id: str
    workflow: str
    status: RunStatus
    created_at: datetime
    ended_at: datetime | None
    code_version: str
    forked_from: str | None
    fork_seq: int | None
    input_overridden: bool
    intervention: Any
    continued_as: str | None
    failure: Failure | None
    calls: int
    usage: UsageTotal
    seconds: float
    reused: Reuse | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return _record_data(self)


def _record_data(record: Any, leave_out: Collection[str] = ()) -> dict[str, Any]:
    names = [part.name for part in fields(record) if part.name not in leave_out]
    return {name: _data(getattr(record, name)) for name in names}


def _data(value: Any) -> Any:
    match value:
        case UsageTotal() | Reuse():
            return _record_data(value)
        case Failure():
            return {"type": value.type, "message": value.message}
        case datetime():
            return value.isoformat()
        case StrEnum():
            return value.value
        case tuple():
            return list(value)
        case _:
            return value


def to_plain_or_missing(text: str | None) -> Any:
    """A recorded text as plain JSON data; `MISSING` for None."""
    return MISSING if text is None else to_plain(text)


def read_failure(text: str | None) -> Failure:
    """What was recorded of an error, or that it cannot be read."""
    try:
        return parse_failure(text or "")
    except DecodeError:
        return Failure(type="", message="no error was recorded")


# --- reading a journal ------------------------------------------------------------------------------------------------

_STATE: Final[dict[str, CallState]] = {
    EntryType.TASK_COMPLETED: CallState.COMPLETED,
    EntryType.TASK_FAILED: CallState.FAILED,
    EntryType.TIMER_FIRED: CallState.COMPLETED,
    EntryType.EXTERNAL_EVENT_RECEIVED: CallState.COMPLETED,
    EntryType.EVENT_WAIT_TIMED_OUT: CallState.TIMED_OUT,
    EntryType.CHILD_WORKFLOW_COMPLETED: CallState.COMPLETED,
    EntryType.CHILD_WORKFLOW_FAILED: CallState.FAILED,
    EntryType.CALL_CANCELLED: CallState.CANCELLED,
}


class RecordedCall:
    """A call while the journal is read. `used` are the uses of models, each with the entry that records it."""

    __slots__ = ("attempts", "ended_at", "entry", "identity", "outcome", "started_at", "used")

    def __init__(self, entry: Entry, identity: CallId) -> None:
        self.entry = entry
        self.identity = identity
        self.started_at = entry.at
        self.ended_at = entry.at
        self.attempts = 1
        self.outcome: Entry | None = None
        self.used: Sequence[tuple[int, Mapping[str, Any]]] = ()


class Reading:
    """What one pass over the journal of a run finds: its calls, its own fork and its ending."""

    def __init__(self, history: RunHistory) -> None:
        self.history = history
        self.calls: dict[CallId, RecordedCall] = {}
        self.inputs: dict[CallId, str | None] = {}
        self.own_fork: Entry | None = None
        self.end: Entry | None = None
        self._by_seq: dict[int, RecordedCall] = {}
        with reading(history.record.run_id):
            for entry in history.entries:
                self._read(entry)

    def _read(self, entry: Entry) -> None:
        type = entry.type
        kind = CALL_KIND.get(type)
        if kind is not None:
            self._begin(entry, kind)
        elif type in _STATE:
            self._finish(entry)
        elif type == EntryType.TASK_ATTEMPT_FAILED or type == EntryType.TASK_ATTEMPT_STARTED:
            self._note_attempt(entry)
        elif type == EntryType.RUN_FORKED:
            self._fork(entry)
        elif type == EntryType.WORKFLOW_RESUMED:
            self._resume(entry)
        elif type in TERMINAL_ENTRIES:
            self.end = entry

    def _begin(self, entry: Entry, kind: CallKind) -> None:
        known = read_head(entry)
        identity = CallId(kind, known[kind.value], known["key"] if "key" in known else known["ordinal"])
        self.calls[identity] = self._by_seq[entry.seq] = RecordedCall(entry, identity)
        if kind is CallKind.EVENT:
            self.inputs[identity] = dump_plain({"match": known.get("match")})

    def _finish(self, entry: Entry) -> None:
        call = self._by_seq.pop(outcome_call(entry), None)
        if call is not None:
            call.outcome = entry
            call.ended_at = entry.at
            _note_usage(call, entry)

    def _note_attempt(self, entry: Entry) -> None:
        call = self._by_seq.get(outcome_call(entry))
        if call is not None:
            call.attempts = max(call.attempts, read_head(entry)["attempt"])
            _note_usage(call, entry)

    def _resume(self, entry: Entry) -> None:
        """Nobody drove the run until now, so what the calls of tasks took begins anew."""
        for call in self._by_seq.values():
            if call.outcome is None and call.identity.kind is CallKind.TASK:
                call.started_at = entry.at

    def _fork(self, entry: Entry) -> None:
        """Calls that were outstanding at the cut run anew from here."""
        if read_head(entry)["run_id"] == self.history.record.run_id:
            self.own_fork = entry
        for call in self._by_seq.values():
            call.started_at = entry.at

    def text(self, entry: Entry | None) -> str | None:
        """The recorded value of an entry, wherever it is kept."""
        if entry is None:
            return None
        text = value_text(entry)
        reference = blob_reference(entry) if text is None else None
        if reference is None:
            return text
        if reference not in self.history.blobs:
            raise JournalCorruptError(
                f"entry {entry.seq} ({entry.type}) of run {self.history.record.run_id!r} keeps its value in the blob "
                f"{reference!r}, which is not there",
                run_id=self.history.record.run_id,
                seq=entry.seq,
            )
        return self.history.blobs[reference]

    def side(self, call: RecordedCall) -> CallSide:
        """The call as it is reported."""
        outcome = call.outcome
        is_event = call.identity.kind is CallKind.EVENT
        return CallSide(
            seq=call.entry.seq,
            outcome_seq=None if outcome is None else outcome.seq,
            state=CallState.OPEN if outcome is None else _STATE[outcome.type],
            attempts=call.attempts,
            usage=_add_up(use for _, use in call.used) if call.used else NO_USAGE,
            seconds=None if outcome is None else (call.ended_at - call.started_at) / MICROSECONDS,
            input_text=self.inputs[call.identity] if is_event else self.text(call.entry),
            outcome_text=self.text(outcome),
        )

    def run(self) -> ComparedRun:
        """The run as it is reported."""
        record, entries = self.history.record, self.history.entries
        created, last = (entries[0].at, entries[-1].at) if entries else (record.created_at, record.created_at)
        receipt = to_plain(self.text(self.own_fork) or "{}")
        cut = None if self.own_fork is None else self.own_fork.seq - 1
        return ComparedRun(
            run_id=record.run_id,
            workflow=record.workflow,
            status=record.status,
            created_at=to_datetime(record.created_at),
            ended_at=None if self.end is None else to_datetime(self.end.at),
            code_version=record.code_version,
            forked_from=record.forked_from,
            fork_seq=cut,
            input_overridden=bool(receipt.get("input_overridden")),
            intervention=receipt.get("intervention"),
            continued_as=None if self.end is None else read_head(self.end).get("continued_as"),
            failure=read_failure(self.text(self.end)) if record.status is RunStatus.FAILED else None,
            calls=len(self.calls),
            usage=_add_up(use for call in self.calls.values() for _, use in call.used),
            seconds=(last - created) / MICROSECONDS,
            reused=None if cut is None else reuse_of(entry for entry in self.history.entries if entry.seq <= cut),
        )


def reuse_of(prefix: Iterable[Entry]) -> Reuse:
    """What a run that inherits these entries is spared: calls with an outcome, their usage, and the time they took.

    The time of a task's call does not count in which nobody drove the run.
    """
    started: dict[int, int] = {}
    running: set[int] = set()
    intervals: list[tuple[int, int]] = []
    uses: list[Mapping[str, Any]] = []
    for entry in prefix:
        if entry.type in CALL_KIND:
            started[entry.seq] = entry.at
            if entry.type == EntryType.TASK_SCHEDULED:
                running.add(entry.seq)
        elif entry.type in OUTCOME_TYPES and entry.type != EntryType.WORKFLOW_CANCEL_REQUESTED:
            call = outcome_call(entry)
            running.discard(call)
            intervals.append((started.pop(call), entry.at))
        elif entry.type == EntryType.RUN_FORKED:
            started = dict.fromkeys(started, entry.at)
        elif entry.type == EntryType.WORKFLOW_RESUMED:
            started |= dict.fromkeys(running & started.keys(), entry.at)
        if '"usage":' in entry.payload:
            used = read_head(entry).get("usage")
            uses += used if isinstance(used, list) else ()
    return Reuse(calls=len(intervals), usage=_add_up(uses), seconds=_covered(intervals) / MICROSECONDS)


def read_head(entry: Entry) -> dict[str, Any]:
    """The facts of an entry, without parsing the value that follows them, which may be large."""
    text = value_text(entry)
    if text is None:
        return facts(entry)
    end = entry.payload.rfind(",", 0, len(entry.payload) - len(text) - 1)
    return {} if end < 0 else facts(entry._replace(payload=entry.payload[:end] + "}"))


def _note_usage(call: RecordedCall, entry: Entry) -> None:
    if '"usage":' in entry.payload:
        used = read_head(entry).get("usage")
        if isinstance(used, list):
            call.used = [*call.used, *((entry.seq, use) for use in used)]


def _add_up(uses: Iterable[Mapping[str, Any]]) -> UsageTotal:
    known = list(uses)
    if not known:
        return NO_USAGE
    return UsageTotal(
        models=tuple(dict.fromkeys(use["model"] for use in known)),
        input_tokens=sum(use["input_tokens"] for use in known),
        output_tokens=sum(use["output_tokens"] for use in known),
        cost=fsum(use["cost"] for use in known),
    )


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """How much time the intervals cover together."""
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
