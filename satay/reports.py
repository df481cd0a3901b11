"""What a comparison of two runs found, as a record and as text for people."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from satay.accounts import ComparedRun
from satay.differences import Difference
from satay.divergences import CallComparison, Cause, StepComparison
from satay.model import RunStatus
from satay.phrases import (
    MAX_CELL_CHARACTERS,
    failure_line,
    outcome_noun,
    run_status,
    savings_lines,
    show_call,
    show_count,
    show_differences,
    show_id,
    show_outcomes,
    show_parting,
    shown_calls,
    stale_lines,
    status_word,
    step_name,
    step_output,
    step_parting,
    step_word,
    with_left_out,
    wrapped,
)
from satay.tables import WIDTH, Column, printable, shorten, show_cost, show_pair, show_seconds, text_table

STATE_DIFFERENCES: Final = 5
"""How many differences between the latest states of two sessions are shown."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared. `str()` of it is a report.

    `calls` are in the order of `one`, with those that only `other` made where they occur there. `cause` is why they
    part at `first_divergence`, or end differently although no call differs, and `explanation` a clause that says what
    it is; both are None where they do not part, or one of them goes on and has only not come that far. The differences
    are those between the runs' inputs and results, or errors where both failed; `is_truncated` says that there are
    more. `has_divergence` says that a call or a step differs, or how the runs ended.

    `steps` are those of two sessions by their number, and `first_divergent_step` the first that differs;
    `state_differences` are those between their latest states. All are empty unless both are sessions.
    """

    one: ComparedRun
    other: ComparedRun
    calls: tuple[CallComparison, ...]
    first_divergence: CallComparison | None
    cause: Cause | None
    explanation: str | None
    has_divergence: bool
    input_differences: tuple[Difference, ...]
    result_differences: tuple[Difference, ...]
    is_truncated: bool
    steps: tuple[StepComparison, ...]
    first_divergent_step: StepComparison | None
    state_differences: tuple[Difference, ...]

    @property
    def is_same(self) -> bool:
        """Whether both runs have ended and nothing differs: no call, no step, and not how they ended."""
        return not self.has_divergence and self.one.status.is_terminal and self.other.status.is_terminal

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "one": self.one.to_dict(),
            "other": self.other.to_dict(),
            "calls": [call.to_dict() for call in self.calls],
            "is_same": self.is_same,
            "has_divergence": self.has_divergence,
            "first_divergence": None if self.first_divergence is None else str(self.first_divergence.identity),
            "cause": None if self.cause is None else self.cause.value,
            "explanation": self.explanation,
            "input_differences": [difference.to_dict() for difference in self.input_differences],
            "result_differences": [difference.to_dict() for difference in self.result_differences],
            "is_truncated": self.is_truncated,
            "steps": [step.to_dict() for step in self.steps],
            "first_divergent_step": None if self.first_divergent_step is None else self.first_divergent_step.number,
            "state_differences": [difference.to_dict() for difference in self.state_differences],
        }

    def __str__(self) -> str:
        return "\n\n".join(block for block in _blocks(self) if block)


# --- the report -------------------------------------------------------------------------------------------------------


def _blocks(comparison: Comparison) -> Iterator[str]:
    yield "\n".join(_headings(comparison))
    yield _table(comparison)
    yield _steps(comparison)
    yield "\n".join(_divergence(comparison))
    first = comparison.first_divergence
    if first is not None:
        name = show_call(first.identity)
        yield show_differences(f"Input of {name}", first.input_differences, first.is_truncated)
        yield show_differences(f"{outcome_noun(first)} of {name}", first.result_differences, first.is_truncated)
    step = comparison.first_divergent_step
    if step is not None:
        yield show_differences(f"Input of step {step.number}", step.input_differences, step.is_truncated)
        yield show_differences(f"Output of step {step.number}", step.output_differences, step.is_truncated)
    yield show_differences("Latest state", comparison.state_differences, comparison.is_truncated, STATE_DIFFERENCES)
    yield show_differences("Input of the run", comparison.input_differences, comparison.is_truncated)
    if comparison.one.status.is_terminal and comparison.other.status.is_terminal:
        title = f"{ending_noun(comparison)} of the run"
        yield show_differences(title, comparison.result_differences, comparison.is_truncated)
    yield "\n".join(stale_lines([comparison.one, comparison.other]))
    yield "\n".join(savings_lines([comparison.one, comparison.other]))


def ending_noun(comparison: Comparison) -> str:
    """What the runs' endings are called."""
    are_failed = comparison.one.status is comparison.other.status is RunStatus.FAILED
    return "Error" if are_failed else "Result"


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
    what = "session" if run.session_status is not None else printable(shorten(run.workflow, MAX_CELL_CHARACTERS))
    text = f"{show_id(run.run_id)}: {what}, {run_status(run)} {ended} {show_seconds(run.seconds)}"
    text += "" if run.session_status is None else f", {show_count(run.steps, 'step')}"
    text += f", {show_count(run.calls, 'call')}"
    if tokens := run.usage.input_tokens + run.usage.output_tokens:
        text += f", {show_count(tokens, 'token')}"
    if run.usage.cost:
        text += f", cost {show_cost(run.usage.cost)}"
    if run.forked_from is not None:
        text += f"\n       forked from {show_id(run.forked_from)} after entry {run.fork_seq}"
        text += " with another input" if run.input_overridden else ""
    if run.failure is not None:
        text += f"\n       {failure_line(run.failure, WIDTH - 7)}"
    return text


def _table(comparison: Comparison) -> str:
    calls, first = comparison.calls, comparison.first_divergence
    if not calls:
        return "Neither run made a durable call."
    shown = shown_calls(None if first is None else calls.index(first), len(calls))
    rows = [calls[index] for index in shown]
    columns = [Column("call"), Column("status"), Column("outcome", is_wide=True), Column("time", "right")]
    if any(side.usage.cost for call in rows for side in call.sides):
        columns.append(Column("cost", "right"))
    return with_left_out(text_table(columns, (_row(call)[: len(columns)] for call in rows)), shown, len(calls))


def _steps(comparison: Comparison) -> str:
    steps, first = comparison.steps, comparison.first_divergent_step
    if not steps:
        return ""
    shown = shown_calls(None if first is None else first.number - 1, len(steps))
    columns = [Column("step", "right"), Column("name"), Column("status"), Column("output", is_wide=True)]
    rows = (
        (str(step.number), step_name(step), step_word(step), step_output(step))
        for step in (steps[index] for index in shown)
    )
    return with_left_out(text_table(columns, rows), shown, len(steps), "step")


def _row(call: CallComparison) -> tuple[str, str, str, str, str]:
    times = _once(["…" if side.seconds is None else show_seconds(side.seconds) for side in call.sides])
    costs = _once([show_cost(side.usage.cost) for side in call.sides])
    return (show_call(call.identity), status_word(call), show_outcomes(call), times, costs)


def _once(shown: Sequence[str]) -> str:
    return shown[0] if shown[0] == shown[-1] else " → ".join(shown)


def _divergence(comparison: Comparison) -> Iterator[str]:
    one, other, call = comparison.one, comparison.other, comparison.first_divergence
    if call is not None:
        yield f"The runs part at {show_call(call.identity)}: {show_parting(call, one, other)}."
    elif comparison.first_divergent_step is not None:
        yield "No call differs, but a step does."
    elif comparison.has_divergence:
        yield "No call differs, but the ending does."
    else:
        yield "No call differs." if comparison.is_same else "No call differs so far."
    step = comparison.first_divergent_step
    if step is not None:
        yield wrapped(f"The sessions part at step {step.number}: {step_parting(step, one, other)}.")
    if comparison.cause is not None:
        yield wrapped(f"Cause: {comparison.cause}: {comparison.explanation}.")
