"""What a comparison of several runs found: each of them beside the first one, call by call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from satay.accounts import CallSide, ComparedRun
from satay.divergences import CallComparison, CallStatus, StepComparison
from satay.model import CallId, CallKind
from satay.phrases import (
    MAX_CELL_CHARACTERS,
    run_status,
    savings_lines,
    show_call,
    show_differences,
    show_outcome,
    show_parting,
    shown_calls,
    stale_lines,
    status_word,
    step_parting,
    step_word,
    with_left_out,
    wrapped,
)
from satay.reports import Comparison, ending_noun
from satay.tables import Column, printable, shorten_middle, show_cost, show_seconds, text_table

RUNS_PER_TABLE: Final = 5
"""How many runs stand beside the reference in one table of calls; further ones get a table of their own."""

DIFFERENCES_PER_RUN: Final = 3
"""How many differences of a run's result are shown."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One call in all runs.

    `reference` is the call in the first run, None where that did not make it. `cells` are the comparisons with it, one
    for each other run; None where neither made the call.
    """

    identity: CallId
    reference: CallSide | None
    cells: tuple[CallComparison | None, ...]

    @property
    def kind(self) -> CallKind:
        """The kind of the call."""
        return self.identity.kind

    @property
    def is_divergent(self) -> bool:
        """Whether some run has not come to the same here as the reference."""
        return any(cell is not None and cell.is_divergent for cell in self.cells)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "call": str(self.identity),
            "kind": self.kind.value,
            "name": self.identity.name,
            "occurrence": self.identity.occurrence,
            "reference": None if self.reference is None else self.reference.to_dict(),
            "cells": [_cell_data(cell) for cell in self.cells],
        }


@dataclass(frozen=True, slots=True)
class ComparisonMatrix:
    """Several runs compared with the first of them, the reference. `str()` of it is a report.

    `pairs` are the comparisons of the reference with each other run, in order; `rows` have a call each, in the order of
    the reference, with what only others made where it occurs there.
    """

    pairs: tuple[Comparison, ...]
    rows: tuple[MatrixRow, ...]

    @property
    def reference(self) -> ComparedRun:
        """The first run."""
        return self.pairs[0].one

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """All runs, the reference first."""
        return (self.reference, *(pair.other for pair in self.pairs))

    @property
    def has_divergence(self) -> bool:
        """Whether some run differs from the reference in a call, or in how it ended."""
        return any(pair.has_divergence for pair in self.pairs)

    @property
    def is_same(self) -> bool:
        """Whether all runs have ended and nothing differs."""
        return all(pair.is_same for pair in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data. The pairs are without their calls, which are in `calls`."""
        return {
            "runs": [run.to_dict() for run in self.runs],
            "is_same": self.is_same,
            "has_divergence": self.has_divergence,
            "calls": [row.to_dict() for row in self.rows],
            "pairs": [_pair_data(pair) for pair in self.pairs],
        }

    def __str__(self) -> str:
        return "\n\n".join(block for block in _blocks(self) if block)


def _cell_data(cell: CallComparison | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    data = cell.to_dict()
    return {name: data[name] for name in ("status", "other", "input_differences", "result_differences", "is_truncated")}


def _pair_data(pair: Comparison) -> dict[str, Any]:
    data = pair.to_dict()
    return {"one": pair.one.run_id, "other": pair.other.run_id} | {
        name: value for name, value in data.items() if name not in ("one", "other", "calls")
    }


# --- the report -------------------------------------------------------------------------------------------------------


def _blocks(matrix: ComparisonMatrix) -> Iterator[str]:
    yield _runs(matrix)
    if matrix.rows:
        for start in range(0, len(matrix.pairs), RUNS_PER_TABLE):
            yield _calls(matrix, range(start, min(start + RUNS_PER_TABLE, len(matrix.pairs))))
    else:
        yield "No run made a durable call."
    yield _steps(matrix)
    yield "\n".join(line for number, pair in enumerate(matrix.pairs, 2) for line in _divergence(number, pair))
    for number, pair in enumerate(matrix.pairs, 2):
        if pair.one.status.is_terminal and pair.other.status.is_terminal:
            title = f"{ending_noun(pair)} of run {number}"
            yield show_differences(title, pair.result_differences, pair.is_truncated, DIFFERENCES_PER_RUN)
    yield "\n".join(stale_lines(matrix.runs))
    yield "\n".join(savings_lines(matrix.runs))


def _runs(matrix: ComparisonMatrix) -> str:
    """A line for each run, with the number that the other tables call it by."""
    has_cost = any(run.usage.cost for run in matrix.runs)
    columns = [Column("", "right"), Column("run", is_wide=True), Column("status"), Column("time", "right")]
    columns += [Column("cost", "right"), Column("own cost", "right")] if has_cost else []
    columns += [Column("parts at"), Column("cause")]
    pairs: Sequence[Comparison | None] = (None, *matrix.pairs)
    rows = []
    for number, (run, pair) in enumerate(zip(matrix.runs, pairs, strict=True), 1):
        costs = (show_cost(run.usage.cost), show_cost(run.own_usage.cost)) if has_cost else ()
        rows.append((str(number), run.run_id, run_status(run), show_seconds(run.seconds), *costs, *_parting(pair)))
    return text_table(columns, rows)


def _parting(pair: Comparison | None) -> tuple[str, str]:
    if pair is None:
        return "(reference)", ""
    cause = "" if pair.cause is None else pair.cause.value
    if pair.first_divergence is not None:
        return show_call(pair.first_divergence.identity), cause
    if pair.first_divergent_step is not None:
        return f"step {pair.first_divergent_step.number}", cause
    return ("the end" if pair.has_divergence else "nowhere" if pair.is_same else "nowhere so far"), cause


def _calls(matrix: ComparisonMatrix, places: range) -> str:
    rows = matrix.rows
    first = next((index for index, row in enumerate(rows) if row.is_divergent), None)
    shown = shown_calls(first, len(rows))
    columns = [Column("call"), Column("1", is_wide=True), *(Column(str(place + 2)) for place in places)]
    table = text_table(columns, (_row(rows[index], places) for index in shown))
    return with_left_out(table, shown, len(rows))


def _steps(matrix: ComparisonMatrix) -> str:
    """The steps of sessions: a line for each that some session does not have as the reference has it."""
    by_number = [{step.number: step for step in pair.steps} for pair in matrix.pairs]
    numbers = sorted({step.number for pair in matrix.pairs for step in pair.steps if step.is_divergent})
    if not numbers:
        return ""
    shown = shown_calls(None, len(numbers))
    places = range(min(len(matrix.pairs), RUNS_PER_TABLE))
    columns = [Column("step", "right"), Column("name", is_wide=True), *(Column(str(place + 2)) for place in places)]
    rows = []
    for number in (numbers[index] for index in shown):
        steps = [by_number[place].get(number) for place in places]
        side = next(side for step in steps if step is not None for side in (step.one, step.other) if side is not None)
        rows.append([str(number), side.name, *(_step_cell(step) for step in steps)])
    return with_left_out(text_table(columns, rows), shown, len(numbers), "step")


def _step_cell(step: StepComparison | None) -> str:
    return "–" if step is None else _ALONE.get(step.status) or step_word(step)


def _row(row: MatrixRow, places: range) -> list[str]:
    name = printable(shorten_middle(str(row.identity), MAX_CELL_CHARACTERS))
    reference = "–" if row.reference is None else show_outcome(row.reference)
    return [name, reference, *(_cell(row.cells[place]) for place in places)]


def _cell(cell: CallComparison | None) -> str:
    if cell is None:
        return "–"
    return _ALONE.get(cell.status) or status_word(cell)


_ALONE: Final[dict[CallStatus, str]] = {CallStatus.ONLY_ONE: "missing", CallStatus.ONLY_OTHER: "added"}


def _divergence(number: int, pair: Comparison) -> Iterator[str]:
    call = pair.first_divergence
    if call is not None:
        yield wrapped(f"Run {number} parts at {show_call(call.identity)}: {show_parting(call, pair.one, pair.other)}.")
    step = pair.first_divergent_step
    if step is not None:
        yield wrapped(f"Run {number} parts at step {step.number}: {step_parting(step, pair.one, pair.other)}.")
    if pair.cause is not None:
        yield wrapped(f"Cause: {pair.cause}: {pair.explanation}.")
