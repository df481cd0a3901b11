"""Two runs side by side: which calls one inherited from the other, which ran again, and where they part.

- Calls are aligned by identity. A call is `replayed` if both runs hold the very same entries for it: their digests
  agree from the start of the journals to its outcome, and the runs are of one lineage.
- Everything else is compared by what was recorded, but for tracebacks, which every moved line of code changes.
- It takes either order of the runs, runs that have not ended, and runs that have nothing to do with each other.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from itertools import islice
from math import fsum
from typing import Any, Final

from satay.clock import MICROSECONDS, to_datetime
from satay.codec import to_plain
from satay.errors import DecodeError, JournalCorruptError
from satay.failures import Failure, parse_failure
from satay.model import MISSING, TERMINAL_ENTRIES, CallId, CallKind, Entry, EntryType, RunRecord, RunStatus
from satay.replay import CALL_KIND, OUTCOME_TYPES, blob_reference, facts, outcome_call, value_text
from satay.tables import (
    MAX_VALUE_CHARACTERS,
    WIDTH,
    Column,
    printable,
    shorten,
    shorten_middle,
    show_cost,
    show_pair,
    show_seconds,
    show_value,
    text_table,
)
from satay.tags import TAG, dump_plain

MAX_DIFFERENCES: Final = 100
"""How many differences between two values are listed."""

MAX_SHOWN_DIFFERENCES: Final = 10
"""How many differences between two values are shown in text."""

MAX_SHOWN_CALLS: Final = 200
"""How many calls are shown in text."""

CALLS_BEFORE_DIVERGENCE: Final = 20
"""Where not all calls are shown, so many before the first divergence are."""

MAX_ID_CHARACTERS: Final = 32
"""A run id is shown with at most this many characters."""

MAX_CELL_CHARACTERS: Final = 26
"""A call, or one of two outcomes, is shown in the table of calls with at most this many characters."""


# --- differences between two values -----------------------------------------------------------------------------------


class DifferenceKind(StrEnum):
    """How a place differs: only the other value has it, only the one has it, or both do."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    TYPE_CHANGED = "type_changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two values differ, such as `$.notes[2].text`. Both sides are plain JSON data, or `MISSING`.

    Tags add no step to a path: `$.when` is a datetime. Indices count in the value that has the item, so items that
    were put into a list or taken out of it are listed with the index they have there.
    """

    path: str
    one: Any
    other: Any
    kind: DifferenceKind

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data; a side that is missing is left out."""
        sides = {side: value for side, value in (("one", self.one), ("other", self.other)) if value is not MISSING}
        return {"path": self.path, "kind": self.kind.value, **sides}


def find_differences(one: Any, other: Any, limit: int = MAX_DIFFERENCES) -> tuple[tuple[Difference, ...], bool]:
    """The first `limit` differences between two values, which are plain JSON data or `MISSING`; whether there are more.

    The order of an object's members does not matter; `1`, `1.0` and `true` are different.
    """
    try:
        found = tuple(islice(_walk("$", one, other), limit + 1))
    except RecursionError:  # nested more deeply than can be followed from here
        found = (Difference("$", one, other, DifferenceKind.CHANGED),)
    return found[:limit], len(found) > limit


def _walk(path: str, one: Any, other: Any) -> Iterator[Difference]:
    kind, other_kind = type(one), type(other)
    if kind is not other_kind:
        yield Difference(path, one, other, _kind_of_change(one, other))
    elif kind is dict:
        yield from _walk_objects(path, one, other)
    elif kind is list:
        yield from _walk_lists(path, one, other)
    elif one != other:
        yield Difference(path, one, other, DifferenceKind.CHANGED)


def _kind_of_change(one: Any, other: Any) -> DifferenceKind:
    if one is MISSING:
        return DifferenceKind.ADDED
    if other is MISSING:
        return DifferenceKind.REMOVED
    are_numbers = {type(one), type(other)} == {int, float}
    return DifferenceKind.CHANGED if are_numbers and one != other else DifferenceKind.TYPE_CHANGED


def _walk_objects(path: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    if TAG not in one and TAG not in other:
        yield from _walk_members(path, one, other)
        return
    opened, other_opened = _open_tag(one), _open_tag(other)
    if opened is None and other_opened is None:
        yield from _walk_members(path, one, other)
    elif opened is None or other_opened is None or opened.frame != other_opened.frame:
        yield Difference(path, one, other, DifferenceKind.TYPE_CHANGED)
    elif isinstance(opened.content, _Steps) and isinstance(other_opened.content, _Steps):
        yield from _walk_members(path, opened.content.by_step, other_opened.content.by_step, are_steps=True)
    elif isinstance(opened.content, _Atom):
        if next(_walk_members("", one, other), None) is not None:
            yield Difference(path, one, other, DifferenceKind.CHANGED)
    else:
        yield from _walk(path, opened.content, other_opened.content)


def _walk_members(
    path: str, one: Mapping[str, Any], other: Mapping[str, Any], *, are_steps: bool = False
) -> Iterator[Difference]:
    for name, value in one.items():
        theirs = other.get(name, MISSING)
        if value is not theirs:
            yield from _walk(path + (name if are_steps else _step(name)), value, theirs)
    for name, value in other.items():
        if name not in one:
            yield Difference(path + (name if are_steps else _step(name)), MISSING, value, DifferenceKind.ADDED)


def _walk_lists(path: str, one: list[Any], other: list[Any]) -> Iterator[Difference]:
    """Pairs by position; where one list is longer, what both have at the end is paired from the end."""
    length, other_length = len(one), len(other)
    start, tail = 0, 0
    shorter = min(length, other_length)
    if length != other_length:
        while start < shorter and _is_same(one[start], other[start]):
            start += 1
        while tail < shorter - start and _is_same(one[-1 - tail], other[-1 - tail]):
            tail += 1
    paired = shorter - tail
    for index in range(start, paired):
        yield from _walk(f"{path}[{index}]", one[index], other[index])
    for index in range(paired, length - tail):
        yield Difference(f"{path}[{index}]", one[index], MISSING, DifferenceKind.REMOVED)
    for index in range(paired, other_length - tail):
        yield Difference(f"{path}[{index}]", MISSING, other[index], DifferenceKind.ADDED)


def _is_same(one: Any, other: Any) -> bool:
    return next(_walk("", one, other), None) is None


def _step(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{name!r}]"


@dataclass(frozen=True, slots=True)
class _Steps:
    """Parts of a value by the step that leads to each, for what is neither an object nor a list in JSON."""

    by_step: dict[str, Any]


class _Atom:
    """A value without parts."""


@dataclass(frozen=True, slots=True)
class _OpenedTag:
    """A tag taken apart. Only tags with the same frame are of one type and compared by content."""

    frame: object
    content: Any


def _open_tag(tag: dict[str, Any]) -> _OpenedTag | None:
    """None for an object that is no tag, though it may look like one."""
    match tag:
        case {"$satay": "value", "value": value}:
            return _OpenedTag("value", value)
        case {"$satay": ("tuple" | "deque") as kind, "items": list(items)}:
            return _OpenedTag((kind, tag.get("maxlen")), items)
        case {"$satay": ("set" | "frozenset") as kind, "items": list(items)}:
            return _OpenedTag(kind, _Steps({_item_step(item): item for item in items}))
        case {"$satay": ("dict" | "OrderedDict" | "Counter" | "defaultdict") as kind, "items": list(pairs)}:
            if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                return None
            return _OpenedTag((kind, tag.get("factory")), _Steps({_key_step(key): value for key, value in pairs}))
        case {"$satay": ("dataclass" | "namedtuple" | "model") as kind, "type": str(type), "fields": dict(parts)}:
            return _OpenedTag((kind, type), {**parts, **_rest_of_model(tag)})
        case {"$satay": str(kind)} if kind in _ATOMS:
            return _OpenedTag((kind, tag.get("type")), _Atom())
        case _:
            return None


_ATOMS: Final = frozenset(
    {"float", "complex", "int", "str", "bytes", "bytearray", "datetime", "date", "time", "timedelta", "Decimal", "UUID"}
    | {"path", "enum", "flag", "pickle"}
)


def _key_step(key: Any) -> str:
    return _step(key) if isinstance(key, str) else _item_step(key)


def _item_step(item: Any) -> str:
    return f"[{item!r}]" if isinstance(item, str) else f"[{dump_plain(item)}]"


def _rest_of_model(tag: dict[str, Any]) -> dict[str, Any]:
    return {f"model_{name}": tag[name] for name in ("set", "extra", "private") if tag.get(name)}


# --- records ----------------------------------------------------------------------------------------------------------


class CallState(StrEnum):
    """How a call ended in one run; `OPEN` has no outcome."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    OPEN = "open"


class CallStatus(StrEnum):
    """What became of a call in the other run.

    `REPLAYED`: both runs hold the same entries for it. `SAME`, `DIFFERENT`: it ran in both, to the same outcome or not.
    `UNFINISHED`: one run, or both, has no outcome for it.
    """

    REPLAYED = "replayed"
    SAME = "same"
    DIFFERENT = "different"
    ONLY_ONE = "only_one"
    ONLY_OTHER = "only_other"
    UNFINISHED = "unfinished"


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
        return _plain(self.input_text)

    @property
    def result(self) -> Any:
        """The recorded result, or an event's payload, as plain JSON data; `MISSING` if there is none."""
        return _plain(self.outcome_text) if self.state is CallState.COMPLETED else MISSING

    @property
    def failure(self) -> Failure | None:
        """What was recorded of the error, if the call failed."""
        return _failure(self.outcome_text) if self.state is CallState.FAILED else None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, without input and result."""
        return _record_data(self, leave_out={"input_text", "outcome_text"})


@dataclass(frozen=True, slots=True)
class CallComparison:
    """One call in both runs. A side is None where the run did not make the call.

    The differences lead from `one` to `other`; `is_truncated` says that there are more than are listed. They are empty
    unless the call ran in both runs, and those of the results also where an outcome is still to come.
    """

    identity: CallId
    status: CallStatus
    one: CallSide | None
    other: CallSide | None
    input_differences: tuple[Difference, ...] = ()
    result_differences: tuple[Difference, ...] = ()
    is_truncated: bool = False

    @property
    def kind(self) -> CallKind:
        return self.identity.kind

    @property
    def is_divergent(self) -> bool:
        """Whether the runs have not come to the same here. Two calls that are both outstanding have not parted."""
        if self.status is CallStatus.UNFINISHED:
            return _state(self.one) is not _state(self.other)
        return self.status not in (CallStatus.REPLAYED, CallStatus.SAME)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "call": str(self.identity),
            "kind": self.kind.value,
            "name": self.identity.name,
            "occurrence": self.identity.occurrence,
            "status": self.status.value,
            "one": None if self.one is None else self.one.to_dict(),
            "other": None if self.other is None else self.other.to_dict(),
            "input_differences": [difference.to_dict() for difference in self.input_differences],
            "result_differences": [difference.to_dict() for difference in self.result_differences],
            "is_truncated": self.is_truncated,
        }


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared. `str()` of it is a report.

    `calls` are in the order of `one`, with those that only `other` made where they occur there. The differences are
    those between the runs' inputs and results, or errors where both failed; `is_truncated` says that there are more.
    """

    one: ComparedRun
    other: ComparedRun
    calls: tuple[CallComparison, ...]
    first_divergence: CallComparison | None
    input_differences: tuple[Difference, ...]
    result_differences: tuple[Difference, ...]
    is_truncated: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "one": self.one.to_dict(),
            "other": self.other.to_dict(),
            "calls": [call.to_dict() for call in self.calls],
            "first_divergence": None if self.first_divergence is None else str(self.first_divergence.identity),
            "input_differences": [difference.to_dict() for difference in self.input_differences],
            "result_differences": [difference.to_dict() for difference in self.result_differences],
            "is_truncated": self.is_truncated,
        }

    def __str__(self) -> str:
        return "\n\n".join(block for block in _blocks(self) if block)


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run with its whole journal and the texts of the blobs that it refers to."""

    record: RunRecord
    entries: Sequence[Entry]
    blobs: Mapping[str, str]


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


def _plain(text: str | None) -> Any:
    return MISSING if text is None else to_plain(text)


def _failure(text: str | None) -> Failure:
    try:
        return parse_failure(text or "")
    except DecodeError:
        return Failure(type="", message="no error was recorded")


def _state(side: CallSide | None) -> CallState | None:
    return None if side is None else side.state


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


class _RecordedCall:
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


class _Reading:
    """What one pass over the journal of a run finds: its calls, its own fork and its ending."""

    def __init__(self, history: RunHistory) -> None:
        self.history = history
        self.calls: dict[CallId, _RecordedCall] = {}
        self.inputs: dict[CallId, str | None] = {}
        self.own_fork: Entry | None = None
        self.end: Entry | None = None
        self._by_seq: dict[int, _RecordedCall] = {}
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
        elif type in TERMINAL_ENTRIES:
            self.end = entry

    def _begin(self, entry: Entry, kind: CallKind) -> None:
        known = _head(entry)
        identity = CallId(kind, known[kind.value], known["key"] if "key" in known else known["ordinal"])
        self.calls[identity] = self._by_seq[entry.seq] = _RecordedCall(entry, identity)
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
            call.attempts = max(call.attempts, _head(entry)["attempt"])
            _note_usage(call, entry)

    def _fork(self, entry: Entry) -> None:
        """Calls that were outstanding at the cut run anew from here."""
        if _head(entry)["run_id"] == self.history.record.run_id:
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
                f"{reference!r}, which is not there"
            )
        return self.history.blobs[reference]

    def side(self, call: _RecordedCall) -> CallSide:
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
            continued_as=None if self.end is None else _head(self.end).get("continued_as"),
            failure=_failure(self.text(self.end)) if record.status is RunStatus.FAILED else None,
            calls=len(self.calls),
            usage=_add_up(use for call in self.calls.values() for _, use in call.used),
            seconds=(last - created) / MICROSECONDS,
            reused=None if cut is None else reuse_of(entry for entry in self.history.entries if entry.seq <= cut),
        )


def reuse_of(prefix: Iterable[Entry]) -> Reuse:
    """What a run that inherits these entries is spared: calls with an outcome, their usage, and the time they took."""
    started: dict[int, int] = {}
    intervals: list[tuple[int, int]] = []
    uses: list[Mapping[str, Any]] = []
    for entry in prefix:
        if entry.type in CALL_KIND:
            started[entry.seq] = entry.at
        elif entry.type in OUTCOME_TYPES and entry.type != EntryType.WORKFLOW_CANCEL_REQUESTED:
            intervals.append((started[outcome_call(entry)], entry.at))
        elif entry.type == EntryType.RUN_FORKED:
            started = dict.fromkeys(started, entry.at)
        if '"usage":' in entry.payload:
            used = _head(entry).get("usage")
            uses += used if isinstance(used, list) else ()
    return Reuse(calls=len(intervals), usage=_add_up(uses), seconds=_covered(intervals) / MICROSECONDS)


def _head(entry: Entry) -> dict[str, Any]:
    """The facts of an entry, without parsing the value that follows them, which may be large."""
    text = value_text(entry)
    if text is None:
        return facts(entry)
    end = entry.payload.rfind(",", 0, len(entry.payload) - len(text) - 1)
    return {} if end < 0 else facts(entry._replace(payload=entry.payload[:end] + "}"))


def _note_usage(call: _RecordedCall, entry: Entry) -> None:
    if '"usage":' in entry.payload:
        used = _head(entry).get("usage")
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


# --- comparing --------------------------------------------------------------------------------------------------------


def compare_runs(one: RunHistory, other: RunHistory) -> Comparison:
    """Compare two runs. Raises `JournalCorruptError` for a journal that cannot be read.

    It takes time in proportion to the entries and to the values that differ.
    """
    shared = _shared_entries(one.entries, other.entries)
    ours, theirs = _Reading(one), _Reading(other)
    calls = tuple(_compare_call(identity, ours, theirs, shared) for identity in _merged(ours, theirs))
    inputs, more_inputs = _compare_texts(_input_text(ours), _input_text(theirs))
    results, more_results = _compare_endings(ours, theirs)
    return Comparison(
        one=ours.run(),
        other=theirs.run(),
        calls=calls,
        first_divergence=next((call for call in calls if call.is_divergent), None),
        input_differences=inputs,
        result_differences=results,
        is_truncated=more_inputs or more_results,
    )


def _shared_entries(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """The seq of the last entry that both journals have in common; 1 if there is none.

    Digests prove equal content. That it is one history, and not two that happen to be alike, is said by the root.
    """
    if not one or not other or _head(one[0]).get("root") != _head(other[0]).get("root"):
        return 1
    shared = 1
    for ours, theirs in zip(one[1:], other[1:], strict=False):
        if ours.digest != theirs.digest:
            break
        shared = ours.seq
    return shared


def _merged(one: _Reading, other: _Reading) -> Iterator[CallId]:
    """All calls in the order of `one`; what only `other` has comes before the next call that both have."""
    followers: dict[CallId | None, list[CallId]] = {None: []}
    anchor: CallId | None = None
    for identity in other.calls:
        if identity in one.calls:
            anchor = identity
            followers[anchor] = []
        else:
            followers[anchor].append(identity)
    waiting = followers[None]
    for identity in one.calls:
        if identity in followers:
            yield from waiting
            waiting = followers[identity]
        yield identity
    yield from waiting


def _compare_call(identity: CallId, one: _Reading, other: _Reading, shared: int) -> CallComparison:
    ours, theirs = one.calls.get(identity), other.calls.get(identity)
    if ours is None or theirs is None:
        status = CallStatus.ONLY_OTHER if ours is None else CallStatus.ONLY_ONE
        return CallComparison(identity, status, _side(one, ours), _side(other, theirs))
    side, other_side = one.side(ours), other.side(theirs)
    if ours.outcome is not None and ours.outcome.seq <= shared:
        return CallComparison(identity, CallStatus.REPLAYED, side, other_side)
    inputs, more_inputs = _compare_texts(side.input_text, other_side.input_text)
    if side.outcome_seq is None or other_side.outcome_seq is None:
        return CallComparison(identity, CallStatus.UNFINISHED, side, other_side, inputs, (), more_inputs)
    results, more_results = _compare_outcomes(side, other_side)
    is_same = side.state is other_side.state and not results
    status = CallStatus.SAME if is_same else CallStatus.DIFFERENT
    return CallComparison(identity, status, side, other_side, inputs, results, more_inputs or more_results)


def _side(reading: _Reading, call: _RecordedCall | None) -> CallSide | None:
    return None if call is None else reading.side(call)


_Found = tuple[tuple[Difference, ...], bool]
_NOTHING: Final[_Found] = ((), False)


def _compare_texts(one: str | None, other: str | None) -> _Found:
    return _NOTHING if one == other else find_differences(_plain(one), _plain(other))


def _compare_outcomes(one: CallSide, other: CallSide) -> _Found:
    if one.state is other.state is CallState.FAILED:
        return _compare_failures(one.outcome_text, other.outcome_text)
    texts = [side.outcome_text if side.state is CallState.COMPLETED else None for side in (one, other)]
    return _compare_texts(*texts)


def _compare_endings(one: _Reading, other: _Reading) -> _Found:
    ends = (one.end, other.end)
    texts = (one.text(one.end), other.text(other.end))
    if all(end is not None and end.type == EntryType.WORKFLOW_FAILED for end in ends):
        return _compare_failures(*texts)
    is_result = [end is not None and end.type == EntryType.WORKFLOW_COMPLETED for end in ends]
    return _compare_texts(texts[0] if is_result[0] else None, texts[1] if is_result[1] else None)


def _compare_failures(one: str | None, other: str | None) -> _Found:
    if one == other:
        return _NOTHING
    return find_differences(_without_traceback(_plain(one)), _without_traceback(_plain(other)))


def _without_traceback(failure: Any) -> Any:
    if not isinstance(failure, dict):
        return failure
    kept = {name: value for name, value in failure.items() if name != "traceback"}
    if "cause" in kept:
        kept["cause"] = _without_traceback(kept["cause"])
    if isinstance(kept.get("members"), list):
        kept["members"] = [_without_traceback(member) for member in kept["members"]]
    return kept


def _input_text(reading: _Reading) -> str | None:
    return reading.text(reading.history.entries[0]) if reading.history.entries else None


# --- the report -------------------------------------------------------------------------------------------------------


def _blocks(comparison: Comparison) -> Iterator[str]:
    yield "\n".join(_headings(comparison))
    yield _table(comparison)
    yield "\n".join(_divergence(comparison))
    first = comparison.first_divergence
    if first is not None:
        yield _differences(f"Input of {_name(first.identity)}", first.input_differences, first.is_truncated)
        title = f"{_outcome_noun(first)} of {_name(first.identity)}"
        yield _differences(title, first.result_differences, first.is_truncated)
    yield _differences("Input of the run", comparison.input_differences, comparison.is_truncated)
    if comparison.one.status.is_terminal and comparison.other.status.is_terminal:
        are_failed = comparison.one.status is comparison.other.status is RunStatus.FAILED
        noun = "Error" if are_failed else "Result"
        yield _differences(f"{noun} of the run", comparison.result_differences, comparison.is_truncated)
    yield "\n".join(_savings(comparison))


def _headings(comparison: Comparison) -> Iterator[str]:
    yield f"one    {_heading(comparison.one)}"
    yield f"other  {_heading(comparison.other)}"
    versions = (comparison.one.code_version, comparison.other.code_version)
    if versions[0] != versions[1]:
        yield f"code   {' → '.join(printable(shorten(version)) for version in versions)}"
    interventions = (comparison.one.intervention, comparison.other.intervention)
    if interventions[0] != interventions[1]:
        yield f"intervention  {show_pair(*interventions, MAX_CELL_CHARACTERS)}"


def _heading(run: ComparedRun) -> str:
    ended = "in" if run.status.is_terminal else "for"
    text = f"{_id(run.run_id)}: {printable(shorten(run.workflow, MAX_CELL_CHARACTERS))}, "
    text += f"{run.status.value.replace('_', ' ')} {ended} {show_seconds(run.seconds)}, {_count(run.calls, 'call')}"
    if tokens := run.usage.input_tokens + run.usage.output_tokens:
        text += f", {_count(tokens, 'token')}"
    if run.usage.cost:
        text += f", cost {show_cost(run.usage.cost)}"
    if run.forked_from is not None:
        text += f"\n       forked from {_id(run.forked_from)} after entry {run.fork_seq}"
        text += " with another input" if run.input_overridden else ""
    if run.failure is not None:
        text += f"\n       {_failure_line(run.failure, WIDTH - 7)}"
    return text


def _id(run_id: str) -> str:
    return shorten_middle(run_id, MAX_ID_CHARACTERS)


def _name(identity: CallId) -> str:
    return printable(shorten_middle(str(identity), MAX_CELL_CHARACTERS))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# --- the report: calls ------------------------------------------------------------------------------------------------


def _table(comparison: Comparison) -> str:
    calls = comparison.calls
    if not calls:
        return "Neither run made a durable call."
    start = 0
    if len(calls) > MAX_SHOWN_CALLS and comparison.first_divergence is not None:
        start = max(0, calls.index(comparison.first_divergence) - CALLS_BEFORE_DIVERGENCE)
    shown = calls[start : start + MAX_SHOWN_CALLS]
    has_cost = any(side.usage.cost for call in shown for side in _sides(call))
    columns = [Column("call"), Column("status"), Column("outcome", is_wide=True), Column("time", "right")]
    if has_cost:
        columns.append(Column("cost", "right"))
    lines = [text_table(columns, (_row(call)[: len(columns)] for call in shown))]
    if start:
        lines.insert(0, f" … {_count(start, 'call')} before these, none of which differs")
    if left := len(calls) - start - len(shown):
        lines.append(f" … and {_count(left, 'more call')}")
    return "\n".join(lines)


def _row(call: CallComparison) -> tuple[str, str, str, str, str]:
    return (_name(call.identity), _STATUS_WORDS[call.status], _outcomes(call), _times(call), _costs(call))


_STATUS_WORDS: Final[dict[CallStatus, str]] = {
    CallStatus.REPLAYED: "replayed",
    CallStatus.SAME: "same",
    CallStatus.DIFFERENT: "different",
    CallStatus.ONLY_ONE: "only in one",
    CallStatus.ONLY_OTHER: "only in other",
    CallStatus.UNFINISHED: "unfinished",
}


def _outcomes(call: CallComparison) -> str:
    """One outcome where both are the same, else `one → other`."""
    match (call.one, call.other):
        case (CallSide() as one, CallSide() as other):
            if not call.is_divergent:
                return _outcome(other)
            if one.state is other.state is CallState.COMPLETED and other.outcome_text is not None:
                return show_pair(one.result, other.result, MAX_CELL_CHARACTERS)
            return f"{_outcome(one, MAX_CELL_CHARACTERS)} → {_outcome(other, MAX_CELL_CHARACTERS)}"
        case (CallSide() as side, None) | (None, CallSide() as side):
            return _outcome(side)
        case _:
            raise AssertionError("a call is in one run at least")


def _outcome(side: CallSide, limit: int = MAX_VALUE_CHARACTERS) -> str:
    match side.state:
        case CallState.COMPLETED:
            return "(fired)" if side.outcome_text is None else show_value(side.result, limit)
        case CallState.FAILED:
            return _failure_line(_failure(side.outcome_text), limit)
        case CallState.TIMED_OUT:
            return "(timed out)"
        case CallState.CANCELLED:
            return "(cancelled)"
        case CallState.OPEN:
            return "(no outcome)"


def _failure_line(failure: Failure, limit: int) -> str:
    name = failure.type.rpartition(":")[2].rpartition(".")[2] or "unknown error"
    return shorten(printable(f"{name}: {failure.message[: limit + 1]}"), limit)


def _times(call: CallComparison) -> str:
    return _once(["…" if side.seconds is None else show_seconds(side.seconds) for side in _sides(call)])


def _costs(call: CallComparison) -> str:
    return _once([show_cost(side.usage.cost) for side in _sides(call)])


def _once(shown: Sequence[str]) -> str:
    return shown[0] if shown[0] == shown[-1] else " → ".join(shown)


def _sides(call: CallComparison) -> list[CallSide]:
    return [side for side in (call.one, call.other) if side is not None]


# --- the report: words ------------------------------------------------------------------------------------------------


def _divergence(comparison: Comparison) -> Iterator[str]:
    call = comparison.first_divergence
    if call is None:
        is_open = not (comparison.one.status.is_terminal and comparison.other.status.is_terminal)
        yield "No call differs so far." if is_open else "No call differs."
        return
    yield f"The runs part at {_name(call.identity)}: {_reason(comparison, call)}."


def _reason(comparison: Comparison, call: CallComparison) -> str:
    one, other = comparison.one, comparison.other
    match (call.one, call.other):
        case (CallSide(), None):
            return _only_in(one, other)
        case (None, CallSide()):
            return _only_in(other, one)
        case (CallSide() as side, CallSide() as other_side):
            parting = _parting(comparison, side, other_side)
            if call.kind in (CallKind.TIMER, CallKind.EVENT):
                return parting
            return f"with {'another' if call.input_differences else 'the same'} input, {parting}"
        case _:
            raise AssertionError("a call is in one run at least")


def _only_in(run: ComparedRun, without: ComparedRun) -> str:
    absent = "did not make it" if without.status.is_terminal else "has not made it so far"
    return f"{_id(run.run_id)} made this call, {_id(without.run_id)} {absent}"


def _parting(comparison: Comparison, one: CallSide, other: CallSide) -> str:
    if one.state is other.state:
        return "it failed with another error" if one.state is CallState.FAILED else "it gave another result"
    said, other_said = _STATE_WORDS[one.state], _STATE_WORDS[other.state]
    return f"it {said} in {_id(comparison.one.run_id)} and {other_said} in {_id(comparison.other.run_id)}"


_STATE_WORDS: Final[dict[CallState, str]] = {
    CallState.COMPLETED: "completed",
    CallState.FAILED: "failed",
    CallState.TIMED_OUT: "timed out",
    CallState.CANCELLED: "was cancelled",
    CallState.OPEN: "has no outcome",
}


def _outcome_noun(call: CallComparison) -> str:
    are_failed = _state(call.one) is _state(call.other) is CallState.FAILED
    return "Error" if are_failed else "Result"


def _differences(title: str, differences: Sequence[Difference], is_truncated: bool) -> str:
    if not differences:
        return ""
    lines = [title, *(_difference(difference) for difference in differences[:MAX_SHOWN_DIFFERENCES])]
    left = len(differences) - MAX_SHOWN_DIFFERENCES
    if left > 0:
        plus = "at least " if is_truncated else ""
        lines.append(f"  … and {plus}{_count(left, 'more difference')}")
    return "\n".join(lines)


_MARKS: Final[dict[DifferenceKind, str]] = {
    DifferenceKind.ADDED: "+",
    DifferenceKind.REMOVED: "-",
    DifferenceKind.CHANGED: "~",
    DifferenceKind.TYPE_CHANGED: "~",
}


def _difference(difference: Difference) -> str:
    path = printable(shorten(difference.path, WIDTH // 3))
    width = (WIDTH - len(path) - 8) // 2
    match difference.kind:
        case DifferenceKind.ADDED:
            shown = show_value(difference.other, width * 2)
        case DifferenceKind.REMOVED:
            shown = show_value(difference.one, width * 2)
        case DifferenceKind.CHANGED | DifferenceKind.TYPE_CHANGED:
            shown = show_pair(difference.one, difference.other, width)
    return f"  {_MARKS[difference.kind]} {path}: {shown}"


def _savings(comparison: Comparison) -> Iterator[str]:
    """A line for each fork; it names the fork only where there are two."""
    forks = [run for run in (comparison.one, comparison.other) if run.reused is not None]
    for run in forks:
        assert run.reused is not None
        prefix = f"{_id(run.run_id)}: " if len(forks) > 1 else ""
        yield f"{prefix}{run.reused.calls} of {_count(run.calls, 'call')} reused; saved {_saved(run.reused)}"


def _saved(reuse: Reuse) -> str:
    if not reuse.calls:
        return "nothing"
    cost = f"{show_cost(reuse.usage.cost)} and " if reuse.usage.cost else ""
    return f"{cost}{show_seconds(reuse.seconds)}"
