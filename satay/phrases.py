"""How runs, calls, outcomes and differences read in a report.

The text shows at most so much of a value and of the differences as the constants say, and no control character.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from satay.accounts import AnswerSource, CallSide, CallState, ComparedRun, Reuse
from satay.differences import Difference, DifferenceKind
from satay.divergences import CallComparison, CallStatus, StepComparison, state_of
from satay.failures import Failure, read_failure
from satay.model import MISSING, CallId, CallKind
from satay.tables import (
    MAX_VALUE_CHARACTERS,
    WIDTH,
    printable,
    shorten,
    shorten_middle,
    show_cost,
    show_pair,
    show_seconds,
    show_value,
)

MAX_SHOWN_DIFFERENCES: Final = 10
"""How many differences between two values, and how many stale calls of a run, are shown in text."""

MAX_SHOWN_CALLS: Final = 200
"""How many calls are shown in text."""

CALLS_BEFORE_DIVERGENCE: Final = 20
"""Where not all calls are shown, so many before the first divergence are."""

MAX_ID_CHARACTERS: Final = 32
"""A run id is shown with at most this many characters."""

MAX_CELL_CHARACTERS: Final = 26
"""A call, or one of two outcomes, is shown in the table of calls with at most this many characters."""


def show_id(run_id: str) -> str:
    """A run id, shortened in its middle."""
    return shorten_middle(run_id, MAX_ID_CHARACTERS)


def show_call(identity: CallId) -> str:
    """The name of a call, shortened in its middle."""
    return printable(shorten_middle(str(identity), MAX_CELL_CHARACTERS))


def show_count(number: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def wrapped(sentence: str) -> str:
    """A sentence on as many lines as it needs."""
    return "\n".join(textwrap.wrap(printable(sentence), WIDTH))


def run_status(run: ComparedRun) -> str:
    """What a run or a session is doing, in a word or two."""
    return run.status.value.replace("_", " ") if run.session_status is None else run.session_status.value


def shown_calls(first_divergence: int | None, total: int) -> range:
    """Which of so many calls are shown: all, or those from shortly before the first divergence on."""
    start = 0
    if total > MAX_SHOWN_CALLS and first_divergence is not None:
        start = max(0, first_divergence - CALLS_BEFORE_DIVERGENCE)
    return range(start, min(total, start + MAX_SHOWN_CALLS))


def with_left_out(table: str, shown: range, total: int, noun: str = "call") -> str:
    """A table of calls, or of steps, with a line for those before it and one for those after it."""
    before = f" … {show_count(shown.start, noun)} before these, none of which differs\n" if shown.start else ""
    left = total - shown.stop
    after = f"\n … and {show_count(left, f'more {noun}')}" if left else ""
    return f"{before}{table}{after}"


# --- outcomes ---------------------------------------------------------------------------------------------------------


def status_word(call: CallComparison) -> str:
    """What became of a call, in a word or two; how it got its outcome, where that is out of the ordinary."""
    if call.status in _TOLD_BY_STATUS:
        return _STATUS_WORDS[call.status]
    sides = call.sides[::-1]
    if any(side.state is CallState.BLOCKED for side in sides):
        return "blocked"
    answers = [side.answer.value for side in sides if side.answer is not AnswerSource.MADE]
    return answers[0] if answers else _STATUS_WORDS[call.status]


_TOLD_BY_STATUS: Final = frozenset({CallStatus.REPLAYED, CallStatus.ONLY_ONE, CallStatus.ONLY_OTHER})
_STATUS_WORDS: Final[dict[CallStatus, str]] = {
    CallStatus.REPLAYED: "replayed",
    CallStatus.SAME: "same",
    CallStatus.DIFFERENT: "different",
    CallStatus.ONLY_ONE: "only in one",
    CallStatus.ONLY_OTHER: "only in other",
    CallStatus.UNFINISHED: "unfinished",
}


def show_outcomes(call: CallComparison) -> str:
    """One outcome where both are the same, else `one → other`."""
    match (call.one, call.other):
        case (CallSide() as one, CallSide() as other):
            if not call.is_divergent:
                return show_outcome(other)
            if _is_value(one) and _is_value(other):
                return show_pair(one.result, other.result, MAX_CELL_CHARACTERS)
            return f"{show_outcome(one, MAX_CELL_CHARACTERS)} → {show_outcome(other, MAX_CELL_CHARACTERS)}"
        case (CallSide() as side, None) | (None, CallSide() as side):
            return show_outcome(side)
        case _:
            raise AssertionError("a call is in one run at least")


def _is_value(side: CallSide) -> bool:
    return side.state is CallState.COMPLETED and side.outcome_text is not None


def show_outcome(side: CallSide, limit: int = MAX_VALUE_CHARACTERS) -> str:
    """The outcome of a call in one run, in at most so many characters."""
    if side.outcome_blob is not None:
        return "(a large value)" if side.state is CallState.COMPLETED else "(a large error)"
    match side.state:
        case CallState.COMPLETED:
            return "(fired)" if side.outcome_text is None else show_value(side.result, limit)
        case CallState.FAILED:
            return failure_line(read_failure(side.outcome_text), limit)
        case CallState.BLOCKED:
            return shorten(printable(f"(blocked: {side.reason})"), limit)
        case CallState.TIMED_OUT:
            return "(timed out)"
        case CallState.CANCELLED:
            return "(cancelled)"
        case CallState.OPEN:
            return "(no outcome)"


def failure_line(failure: Failure, limit: int) -> str:
    """An error in one line."""
    name = failure.type.rpartition(":")[2].rpartition(".")[2] or "unknown error"
    return shorten(printable(f"{name}: {failure.message[: limit + 1]}"), limit)


# --- steps ------------------------------------------------------------------------------------------------------------


def step_word(step: StepComparison) -> str:
    """What became of a step, in a word or two."""
    return _STATUS_WORDS[step.status]


def step_name(step: StepComparison) -> str:
    """The name of a step; both names where it has another one in the other session."""
    names = dict.fromkeys(side.name for side in (step.one, step.other) if side is not None)
    return " → ".join(printable(shorten_middle(name, MAX_CELL_CHARACTERS)) for name in names)


def step_output(step: StepComparison) -> str:
    """The output of a step, or `one → other`."""
    sides = [side for side in (step.one, step.other) if side is not None]
    if any(side.content_blob is not None for side in sides):
        return "(a large value)"
    if step.output_differences and len(sides) == 2:
        return show_pair(sides[0].output, sides[1].output, MAX_CELL_CHARACTERS)
    return "" if sides[0].output in (None, MISSING) else show_value(sides[0].output)


def step_parting(step: StepComparison, one: ComparedRun, other: ComparedRun) -> str:
    """What differs at a step, as a clause."""
    if step.one is None or step.other is None:
        has, without = (other, one) if step.one is None else (one, other)
        absent = "did not" if without.status.is_terminal else "has not so far"
        return f"{show_id(has.run_id)} recorded it, {show_id(without.run_id)} {absent}"
    if step.one.name != step.other.name:
        return f"it is {step.one.name!r} in {show_id(one.run_id)} and {step.other.name!r} in {show_id(other.run_id)}"
    parts = [part for part, found in (("input", step.input_differences), ("output", step.output_differences)) if found]
    return f"it has another {' and another '.join(parts) or 'content'}"


# --- where runs part --------------------------------------------------------------------------------------------------


def show_parting(call: CallComparison, one: ComparedRun, other: ComparedRun) -> str:
    """What differs at a call, as a clause."""
    match (call.one, call.other):
        case (CallSide(), None):
            return _only_in(one, other)
        case (None, CallSide()):
            return _only_in(other, one)
        case (CallSide() as side, CallSide() as other_side):
            parting = _parting(side, other_side, one, other)
            if call.kind in (CallKind.TIMER, CallKind.EVENT):
                return parting
            return f"with {'another' if call.has_other_input else 'the same'} input, {parting}"
        case _:
            raise AssertionError("a call is in one run at least")


def _only_in(run: ComparedRun, without: ComparedRun) -> str:
    absent = "did not make it" if without.status.is_terminal else "has not made it so far"
    return f"{show_id(run.run_id)} made this call, {show_id(without.run_id)} {absent}"


def _parting(side: CallSide, other_side: CallSide, one: ComparedRun, other: ComparedRun) -> str:
    if side.state is other_side.state:
        return _ANOTHER.get(side.state, "it gave another result")
    said, other_said = _STATE_WORDS[side.state], _STATE_WORDS[other_side.state]
    return f"it {said} in {show_id(one.run_id)} and {other_said} in {show_id(other.run_id)}"


_ANOTHER: Final[dict[CallState, str]] = {
    CallState.FAILED: "it failed with another error",
    CallState.BLOCKED: "it was blocked for another reason",
}
_STATE_WORDS: Final[dict[CallState, str]] = {
    CallState.COMPLETED: "completed",
    CallState.FAILED: "failed",
    CallState.BLOCKED: "was blocked",
    CallState.TIMED_OUT: "timed out",
    CallState.CANCELLED: "was cancelled",
    CallState.OPEN: "has no outcome",
}


def outcome_noun(call: CallComparison) -> str:
    """What the outcomes of a call are called."""
    are_failed = state_of(call.one) is state_of(call.other) is CallState.FAILED
    return "Error" if are_failed else "Result"


# --- differences ------------------------------------------------------------------------------------------------------


def show_differences(
    title: str, differences: Sequence[Difference], is_truncated: bool, limit: int = MAX_SHOWN_DIFFERENCES
) -> str:
    """A title and a line for each difference, up to a limit; nothing where there is none."""
    if not differences:
        return ""
    lines = [title, *(_difference(difference) for difference in differences[:limit])]
    left = len(differences) - limit
    if left > 0:
        plus = "at least " if is_truncated else ""
        lines.append(f"  … and {plus}{show_count(left, 'more difference')}")
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


# --- what a fork inherited --------------------------------------------------------------------------------------------


def stale_lines(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """The inherited calls whose arguments would be others now, for each run that has some."""
    for run in runs:
        if not run.stale_calls:
            continue
        yield f"Inherited by {show_id(run.run_id)}, though the arguments would differ now"
        for call in run.stale_calls[:MAX_SHOWN_DIFFERENCES]:
            name = printable(shorten_middle(call.call, MAX_CELL_CHARACTERS))
            yield f"  ! {name}: first at {printable(shorten(call.path))}"
        left = run.stale_count - min(len(run.stale_calls), MAX_SHOWN_DIFFERENCES)
        if left > 0:
            yield f"  … and {show_count(left, 'more call')}"


def savings_lines(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """A line for each run that reused something or is a fork; it names the run only where there are several."""
    forks = [run for run in runs if run.reused is not None]
    for run in forks:
        assert run.reused is not None
        prefix = f"{show_id(run.run_id)}: " if len(forks) > 1 else ""
        own = f"; spent {show_cost(run.own_usage.cost)} itself" if run.usage.cost else ""
        calls = f"{_reused(run.reused)} of {show_count(run.calls, 'call')} reused"
        yield f"{prefix}{calls}; saved {_saved(run.reused)}{own}"


def _reused(reuse: Reuse) -> str:
    ways = [(reuse.kept, "kept"), (reuse.by_policy, "by policy")]
    told = ", ".join(f"{number} {way}" for number, way in ways if number)
    return f"{reuse.calls} ({told})" if told else f"{reuse.calls}"


def _saved(reuse: Reuse) -> str:
    if not reuse.calls:
        return "nothing"
    cost = show_cost(reuse.usage.cost) if reuse.usage.cost else ""
    time = show_seconds(reuse.seconds) if reuse.seconds or not cost else ""
    return " and ".join(part for part in (cost, time) if part)
