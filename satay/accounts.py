"""What is reported of a run and of its calls: records that know nothing of the run that they are compared with."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.failures import Failure, read_failure
from satay.model import MISSING, EntryType, RunStatus
from satay.receipts import StaleCall
from satay.texts import to_plain
from satay.transcripts import SessionStatus


class CallState(StrEnum):
    """How a call ended in one run; `OPEN` has no outcome, `BLOCKED` was refused by a tool policy."""

    COMPLETED = "completed"
    FAILED = "failed"
    BLOCKED = "blocked"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    OPEN = "open"


STATE_OF_OUTCOME: Final[Mapping[str, CallState]] = {
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
"""The entries that end a call, and how each of them ends it."""


class AnswerSource(StrEnum):
    """Where the outcome of a call comes from.

    `MADE`: the call was made. A fork may instead have `KEPT` the outcome that its source got after the cut, have
    `REUSED` the source's by a tool policy, or have been given one (`OVERRIDDEN`).
    """

    MADE = "made"
    KEPT = "kept"
    REUSED = "reused"
    OVERRIDDEN = "overridden"


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """What was recorded of models used, added up. `models` are in the order of their first use."""

    models: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


NO_USAGE: Final = UsageTotal()


class CallSide(NamedTuple):
    """A call as one run recorded it.

    `seq` and `outcome_seq` are the entries that hold the call and its outcome. `usage` counts failed attempts too, and
    that of an outcome which was kept or reused; these are no cost of the run's own. `seconds` go from the call to its
    outcome; where the call was outstanding at a fork's cut, from the fork. `reason` is why the call was refused, or
    its outcome overridden; `reused_from` the run whose outcome a tool policy gave it.

    A large value that need not be read to compare the runs is not read: its text is None then, and `input_blob` or
    `outcome_blob` the SHA-256 of it.
    """

    seq: int
    outcome_seq: int | None
    state: CallState
    answer: AnswerSource
    attempts: int
    usage: UsageTotal
    seconds: float | None
    reason: str | None
    reused_from: str | None
    input_blob: str | None
    outcome_blob: str | None
    input_text: str | None
    outcome_text: str | None

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items() if name not in _TEXTS)
        return f"CallSide({told})"

    @property
    def input(self) -> Any:
        """The recorded input as plain JSON data, or `MISSING`."""
        return to_plain_or_missing(self.input_text)

    @property
    def result(self) -> Any:
        """The recorded result, or an event's payload, as plain JSON data; `MISSING` if there is none, or not read."""
        return to_plain_or_missing(self.outcome_text) if self.state is CallState.COMPLETED else MISSING

    @property
    def failure(self) -> Failure | None:
        """What was recorded of the error, if the call failed."""
        return read_failure(self.outcome_text) if self.state is CallState.FAILED else None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, without input and result."""
        return {name: _data(value) for name, value in self._asdict().items() if name not in _TEXTS}


_TEXTS: Final = frozenset({"input_text", "outcome_text"})
"""What is not told of a call unless it is asked for: it may be long, and a secret."""


@dataclass(frozen=True, slots=True)
class StepSide:
    """A step as one session recorded it: its number, its name and its entry.

    A large content that need not be read to compare the sessions is not read: its text is None then, and
    `content_blob` the SHA-256 of it.
    """

    number: int
    name: str
    seq: int
    content_blob: str | None
    content_text: str | None = field(repr=False)

    @property
    def input(self) -> Any:
        """The recorded input as plain JSON data; `MISSING` where it was not read."""
        return self._part("input")

    @property
    def output(self) -> Any:
        """The recorded output as plain JSON data; `MISSING` where it was not read."""
        return self._part("output")

    def _part(self, name: str) -> Any:
        content = to_plain_or_missing(self.content_text)
        return content.get(name, MISSING) if isinstance(content, dict) else MISSING

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, without input and output."""
        return _record_data(self, leave_out={"content_text"})


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a fork did not spend again: calls whose outcome it inherited, kept or reused, and their recorded usage.

    `kept` and `by_policy` are how many of the `calls` were not inherited. `seconds` is the time during which at least
    one of the inherited calls was outstanding.
    """

    calls: int
    usage: UsageTotal
    seconds: float
    kept: int = 0
    by_policy: int = 0


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run as far as a comparison needs it.

    `fork_seq` is the last entry that a fork inherited; None for a run that is no fork. `reused` is what that, and the
    tool policies, saved; None for a run that reused nothing and is no fork. `calls` and `usage` count the whole
    journal, inherited entries too; `own_usage` leaves out what is reused. `seconds` go from the creation of this very
    run to its last entry. `intervention` is plain JSON data; `failure` is what was recorded of the error of a failed
    run. `stale_calls` are the first of `stale_count` that the fork's receipt names. `session_status` and `steps` are
    those of a session; None and 0 for a run of a workflow.
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
    stale_calls: tuple[StaleCall, ...]
    stale_count: int
    is_cancel_requested: bool
    continued_as: str | None
    failure: Failure | None
    calls: int
    usage: UsageTotal
    own_usage: UsageTotal
    seconds: float
    reused: Reuse | None
    session_status: SessionStatus | None
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return _record_data(self)


def _record_data(record: Any, leave_out: Collection[str] = ()) -> dict[str, Any]:
    names = [part.name for part in fields(record) if part.name not in leave_out]
    return {name: _data(getattr(record, name)) for name in names}


def _data(value: Any) -> Any:
    match value:
        case UsageTotal() | Reuse() | StaleCall():
            return _record_data(value)
        case Failure():
            return {"type": value.type, "message": value.message}
        case datetime():
            return value.isoformat()
        case StrEnum():
            return value.value
        case tuple():
            return [_data(item) for item in value]
        case _:
            return value


def to_plain_or_missing(text: str | None) -> Any:
    """A recorded text as plain JSON data; `MISSING` for None."""
    return MISSING if text is None else to_plain(text)
