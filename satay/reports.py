"""What a comparison of two runs found, as records and as text for people.

The text shows at most so much of a value, of the calls and of the differences as the constants say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from satay.differences import Difference, DifferenceKind
from satay.failures import Failure
from satay.histories import CallSide, CallState, ComparedRun, Reuse, read_failure
from satay.model import CallId, CallKind, RunStatus
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


# --- records ----------------------------------------------------------------------------------------------------------


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


def _state(side: CallSide | None) -> CallState | None:
    return None if side is None else side.state


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
            return _failure_line(read_failure(side.outcome_text), limit)
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
