"""Sweeps: one cut, several variants, several trials of each, scored and ranked.

A sweep is a workflow itself. Each trial is a fork with an id of its own and a child of the sweep; making it again finds
it, so a trial that has ended is never repeated. What a trial needs may be missing in the process that takes a sweep
over: then the sweep stops there, and goes on where the source's workflow and the judge are known.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf, isfinite, sqrt
from statistics import fmean
from typing import Any, Final, Unpack
from weakref import WeakKeyDictionary

from satay.app import App, app_of_block
from satay.arguments import checked_count, checked_run_id, shown
from satay.clock import MICROSECONDS
from satay.context import require_schedule, task_context
from satay.definitions import Task, Workflow, find_workflow, tasks, workflows
from satay.effects import Effect
from satay.errors import (
    EncodeError,
    ForkValidationError,
    InvalidValueError,
    NeedsDecisionError,
    NondeterminismError,
    NotHereError,
    RunConflictError,
    SatayError,
    UsageError,
)
from satay.expenses import spent_cost
from satay.handles import RunHandle, RunOrId
from satay.model import MISSING, RUN_ID_PATTERN, EntryType, RunRecord, RunStatus
from satay.progress import Progress, terminal_progress
from satay.requests import ForkOptions, parse_options
from satay.retries import RetryPolicy
from satay.tables import Column, printable, show_cost, show_seconds, text_table

Score = float | bool | None
Judge = Callable[[Any], Score | Awaitable[Score]]
"""What scores the result of a trial: pass or fail as a bool, or a number, the higher the better."""

SWEEP: Final = "satay.sweep"
"""The workflow of a sweep."""

MAX_TRIALS: Final = 10_000
"""The most trials of one sweep."""

MAX_TRIALS_AT_A_TIME: Final = 1_000
"""The most trials at a time."""

Z_95: Final = 1.959963984540054
"""The number of standard deviations on either side that holds 95 % of a normal distribution."""


# --- what is asked for ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Budget:
    """What a sweep may spend: no trial begins once `cost` was recorded as spent, or `runs` trials were begun.

    What judges record counts, too.
    """

    cost: float | None = None
    runs: int | None = None

    def __post_init__(self) -> None:
        is_number = isinstance(self.cost, int | float) and not isinstance(self.cost, bool)
        if self.cost is not None and not (is_number and 0 <= self.cost < inf):
            raise InvalidValueError(f"the cost of a budget is {shown(self.cost)}; it is a number that is not negative")
        if self.runs is not None:
            checked_count(self.runs, "runs of a budget", 0, MAX_TRIALS)


class Variant:
    """The options by which one variant of a sweep differs: those of `satay.fork`."""

    def __init__(self, **options: Unpack[ForkOptions]) -> None:
        self.options = options


@dataclass(frozen=True, slots=True)
class VariantOrder:
    """A variant as it is recorded: what it forks, its input, as the workflow records it, and its other options."""

    source_id: str
    name: str
    input_text: str | None
    options: Any


@dataclass(frozen=True, slots=True)
class Order:
    """A sweep as it is recorded."""

    variants: tuple[VariantOrder, ...]
    repeats: int
    concurrency: int
    budget: Budget
    judge: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said of one trial, and what it recorded as its own cost."""

    score: Score
    cost: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One fork of a sweep. `run_id` is None for one that the budget did not allow, or that could not be made.

    `cost` is what the fork itself recorded, with its children and the runs that went on in its place; `status` is that
    of the last of them. `seconds` is how long it all took. `error` says why there is no fork, no result or no score.
    """

    variant: str
    repeat: int
    run_id: str | None = None
    status: RunStatus | None = None
    score: Score = None
    cost: float = 0.0
    seconds: float = 0.0
    error: str | None = None

    @property
    def is_skipped(self) -> bool:
        """Whether the budget was spent before it began."""
        return self.run_id is None and self.error is None


# --- what comes of it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A variant with its trials. `run_id` is the fork with the best score, None where none completed.

    `score` is the mean of the scores. Where they are pass or fail, `pass_rate` is the share that passed, of trials that
    failed too, and `interval` its Wilson interval at 95 %. `cost` is added up, `seconds` is the mean.
    """

    variant: str
    trials: tuple[Trial, ...]
    run_id: str | None
    score: float | None
    pass_rate: float | None
    interval: tuple[float, float] | None
    completed: int
    cost: float
    seconds: float


@dataclass(frozen=True, slots=True)
class BestRow(SweepRow):
    """The row that ranks first, where a trial of it completed: it has a best fork."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """A finished sweep. `rows` are ranked: the best score first, variants without one last."""

    run_id: str
    source_id: str
    rows: tuple[SweepRow, ...]

    @property
    def best(self) -> BestRow:
        """The row that ranks first. Raises `UsageError` where no trial completed."""
        if not self.rows or self.rows[0].run_id is None:
            raise UsageError(f"no trial of sweep {self.run_id!r} completed, so none is the best; look at its rows")
        return BestRow(**{name: getattr(self.rows[0], name) for name in SweepRow.__slots__})

    @property
    def cost(self) -> float:
        """What all trials recorded as their cost."""
        return fsum(row.cost for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {"run_id": self.run_id, "source_id": self.source_id, "rows": [_row_data(row) for row in self.rows]}

    def __str__(self) -> str:
        """The rows as a table."""
        is_passing = any(row.pass_rate is not None for row in self.rows)
        scored = "passed" if is_passing else "score"
        columns = [
            Column("variant"),
            Column("trials", "right"),
            Column(scored, "right"),
            Column("cost", "right"),
            Column("time", "right"),
            Column("best run", is_wide=True),
        ]
        lines = [
            f"Sweep {self.run_id} of {self.source_id}",
            "",
            text_table(columns, [_shown(row) for row in self.rows]),
        ]
        errors = [trial for row in self.rows for trial in row.trials if trial.error is not None]
        lines += [printable(f"{trial.variant}:{trial.repeat} {trial.error}") for trial in errors[:MAX_SHOWN_ERRORS]]
        skipped = sum(trial.is_skipped for row in self.rows for trial in row.trials)
        lines += [f"Not begun, because the budget was spent: {skipped}."] if skipped else []
        return "\n".join(lines)


MAX_SHOWN_ERRORS: Final = 5
"""How many errors of trials the table of a sweep is followed by."""


def _shown(row: SweepRow) -> tuple[str, ...]:
    if row.pass_rate is not None and row.interval is not None:
        low, high = row.interval
        score = f"{row.pass_rate:.0%} ({low:.0%}–{high:.0%})"
    else:
        score = "" if row.score is None else f"{row.score:.4g}"
    begun = sum(not trial.is_skipped for trial in row.trials)
    return (
        row.variant,
        f"{row.completed}/{begun}",
        score,
        show_cost(row.cost) if row.cost else "",
        show_seconds(row.seconds),
        row.run_id or "",
    )


def _row_data(row: SweepRow) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(row, name) for name in row.__slots__}
    data["trials"] = [{name: getattr(trial, name) for name in trial.__slots__} for trial in row.trials]
    data["interval"] = None if row.interval is None else list(row.interval)
    return data


def wilson_interval(passed: int, of: int) -> tuple[float, float]:
    """The interval that holds the true share with 95 % (E. B. Wilson, 1927), of `passed` in `of` trials."""
    share, square = passed / of, Z_95 * Z_95
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z_95 * sqrt(share * (1 - share) / of + square / (4 * of * of)) / (1 + square / of)
    # At the ends the bound is the end itself, which rounding would miss.
    return 0.0 if passed == 0 else middle - half, 1.0 if passed == of else middle + half


def ranked(trials: Sequence[Trial]) -> tuple[SweepRow, ...]:
    """The variants of trials: best mean score first, those without a score last; then more completed, less cost."""
    variants = dict.fromkeys(trial.variant for trial in trials)
    rows = [_row(variant, [trial for trial in trials if trial.variant == variant]) for variant in variants]
    return tuple(sorted(rows, key=lambda row: (row.score is None, -(row.score or 0.0), -row.completed, row.cost)))


def _row(variant: str, trials: Sequence[Trial]) -> SweepRow:
    begun = [trial for trial in trials if not trial.is_skipped]
    completed = [trial for trial in begun if trial.status is RunStatus.COMPLETED]
    scores = [trial.score for trial in completed if trial.score is not None]
    is_passing = bool(scores) and all(isinstance(score, bool) for score in scores)
    if is_passing:
        scores += [False for trial in begun if trial.status is RunStatus.FAILED]
    passed = sum(1 for score in scores if score)
    best = max(completed, key=lambda trial: -inf if trial.score is None else trial.score, default=None)
    return SweepRow(
        variant=variant,
        trials=tuple(trials),
        run_id=None if best is None else best.run_id,
        score=fmean(scores) if scores else None,
        pass_rate=passed / len(scores) if is_passing else None,
        interval=wilson_interval(passed, len(scores)) if is_passing else None,
        completed=len(completed),
        cost=fsum(trial.cost for trial in begun),
        seconds=fmean(trial.seconds for trial in begun) if begun else 0.0,
    )


# --- the workflow -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Spent:
    cost: float = 0.0
    runs: int = 0

    def is_enough(self, budget: Budget) -> bool:
        has_cost = budget.cost is not None and self.cost >= budget.cost
        return has_cost or (budget.runs is not None and self.runs >= budget.runs)


async def _make_trial(variant: VariantOrder, repeat: int, run_id: str) -> Trial:
    """Fork the source for one trial, or find the fork, and wait for its end."""
    sweep_id = task_context().run_id
    try:
        return await _trial(_app(), sweep_id, variant, repeat, run_id)
    except (ForkValidationError, RunConflictError) as error:
        return Trial(variant.name, repeat, error=_told(error))
    except SatayError as error:  # The request was checked, so what is wrong with it is wrong in this process only.
        raise NotHereError(f"sweep {sweep_id!r} cannot go on in this process: {error}") from error


async def _trial(app: App, sweep_id: str, variant: VariantOrder, repeat: int, run_id: str) -> Trial:
    source, definition = await app.find_source(variant.source_id)
    options = dict(variant.options)
    if variant.input_text is not None:
        options["workflow_input"] = definition.decode_input(variant.input_text)
    fork = await app.fork_for(sweep_id, source, definition, run_id, parse_options(options))
    try:
        await fork.result()
    except Exception as error:
        trial = await _ended_trial(app, variant.name, repeat, run_id, _told(error))
        if (trial.status is not None and trial.status.is_terminal) or isinstance(error, _STOPS_A_TRIAL):
            return trial
        raise
    return await _ended_trial(app, variant.name, repeat, run_id, None)


_STOPS_A_TRIAL: Final = (NondeterminismError, NeedsDecisionError)
"""What keeps a fork from going on in any process. A sweep does not wait for someone to mend it."""


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


async def _ended_trial(app: App, variant: str, repeat: int, run_id: str, error: str | None) -> Trial:
    archive = (await app.scheduler()).archive
    first = await archive.record(run_id)
    latest = await archive.latest_of(first)
    cost = await spent_cost(archive, first)
    seconds = (latest.updated_at - first.created_at) / MICROSECONDS
    return Trial(variant, repeat, run_id, latest.status, None, cost, seconds, error)


async def _judge_trial(reference: str, run_id: str) -> Judgement:
    """Have the judge score the result of a fork."""
    context = task_context()
    sweep_id = context.run_id
    app = _app()
    judge = _find_judge(app, sweep_id, reference)
    if judge is None:
        raise NotHereError(
            f"sweep {sweep_id!r} cannot go on in this process: it does not know the judge, {reference}; import it, or "
            f"call satay.sweep(..., run_id={sweep_id!r}, score=...) again"
        )
    scored: object = judge(await app.handle(run_id).result())
    score: object = await scored if inspect.isawaitable(scored) else scored
    cost = fsum(use.cost for use in context.usage)
    if score is None or isinstance(score, bool):
        return Judgement(score, cost)
    if not (isinstance(score, float | int) and isfinite(score)):
        raise InvalidValueError(f"the judge scored {shown(score)}; a score is a finite number, a bool, or None")
    return Judgement(float(score), cost)


make_trial: Final[Task[[VariantOrder, int, str], Trial]] = tasks.add(
    Task(_make_trial, f"{SWEEP}.trial", Effect.IDEMPOTENT, RetryPolicy(), None, "json")
)
judge_trial: Final[Task[[str, str], Judgement]] = tasks.add(
    Task(_judge_trial, f"{SWEEP}.judge", Effect.UNDECLARED, RetryPolicy(), None, "json")
)


async def sweep_body(order: Order) -> tuple[Trial, ...]:
    """Make the trials, the first of each variant first, as many at a time as are allowed."""
    sweep_id = require_schedule("a sweep").run_id
    gate = asyncio.Semaphore(order.concurrency)
    spent = _Spent()
    planned = [(variant, repeat) for repeat in range(order.repeats) for variant in order.variants]
    trials = (_one(order, variant, repeat, sweep_id, gate, spent) for variant, repeat in planned)
    return tuple(await asyncio.gather(*trials))


async def _one(
    order: Order, variant: VariantOrder, repeat: int, sweep_id: str, gate: asyncio.Semaphore, spent: _Spent
) -> Trial:
    async with gate:
        if spent.is_enough(order.budget):
            return Trial(variant.name, repeat)
        spent.runs += 1
        trial = await make_trial(variant, repeat, trial_id(sweep_id, variant.name, repeat))
        spent.cost += trial.cost
        if order.judge is None or trial.status is not RunStatus.COMPLETED or trial.run_id is None:
            return trial
        try:
            judgement = await judge_trial(order.judge, trial.run_id)
            spent.cost += judgement.cost
            return replace(trial, score=judgement.score)
        except Exception as error:
            return replace(trial, error=f"could not be scored: {_told(error)}")


def trial_id(sweep_id: str, variant: str, repeat: int) -> str:
    """The id of the fork that is one trial."""
    return f"{sweep_id}/{variant}:{repeat}"


sweep_workflow: Final = Workflow(sweep_body, SWEEP)
workflows.offer(sweep_workflow)


# --- judges -----------------------------------------------------------------------------------------------------------


_judges: "WeakKeyDictionary[App, dict[str, Judge]]" = WeakKeyDictionary()
"""What scores the sweeps that were asked for in this process, by the id of the sweep."""

_GIVEN: Final = "given"
"""How a judge is referred to that only the caller of `sweep` can give."""


def _reference(judge: Judge) -> str:
    """How a judge is named in the journal, so that another process can find it, or knows that it cannot."""
    if isinstance(judge, Task):
        return f"task {judge.name}"
    named = getattr(judge, "__qualname__", type(judge).__qualname__)
    place = f"{getattr(judge, '__module__', '')}:{named}"
    return f"function {place}" if _found(place) is judge else f"{_GIVEN} {place}"


def _found(place: str) -> Any:
    """What an imported module has under a name; None if it has nothing."""
    module, _, path = place.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _find_judge(app: App, sweep_id: str, reference: str) -> Judge | None:
    """The judge: as it was given here, else the task or the function of an imported module that has the name."""
    given = _judges.get(app, {}).get(sweep_id)
    if given is not None:
        return given
    kind, _, place = reference.partition(" ")
    match kind:
        case "task":
            named: Judge | None = tasks.get(place)
            return named
        case "function":
            found = _found(place)
            return found if callable(found) else None
        case _:
            return None


# --- the call ---------------------------------------------------------------------------------------------------------


async def run_sweep(
    app: App,
    source: RunOrId,
    variants: Mapping[str, Any],
    repeats: int,
    score: Judge | None,
    concurrency: int,
    budget: Budget | None,
    run_id: str | None,
    options: Mapping[str, Any],
) -> Sweep:
    """Make a sweep, or go on with it, and wait for its end; see `satay.sweep`."""
    if score is not None and not callable(score):
        raise InvalidValueError(f"score={shown(score)} scores nothing; give a function, or a @satay.task")
    found, definition = await app.find_source(source)
    sweep_id = app.new_id() if run_id is None else checked_run_id(run_id)
    checked_count(repeats, "repeats of a sweep", 1, MAX_TRIALS)
    order = Order(
        variants=tuple(await _variants(app, found, definition, variants, options)),
        repeats=repeats,
        concurrency=checked_count(concurrency, "concurrency of a sweep", 1, MAX_TRIALS_AT_A_TIME),
        budget=Budget() if budget is None else _checked_budget(budget),
        judge=None if score is None else _reference(score),
    )
    checked_count(len(order.variants) * repeats, "trials of a sweep", 1, MAX_TRIALS)
    _check_ids(sweep_id, order)
    handle = app.start(find_workflow(SWEEP, sweep_id), order, run_id=sweep_id)
    if score is None:
        trials = await _followed(app, handle, len(order.variants) * repeats)
    else:
        judges = _judges.setdefault(app, {})
        is_first = sweep_id not in judges
        judges.setdefault(sweep_id, score)
        try:
            await handle  # Only now is it known that the sweep of that id is this one, and not another's.
        except SatayError:
            if is_first:  # It is another's, and is not to be scored by this judge.
                judges.pop(sweep_id, None)
            raise
        judges[sweep_id] = score
        trials = await _followed(app, handle, len(order.variants) * repeats)
        judges.pop(sweep_id, None)  # It stays where the caller gives up: the sweep goes on.
    return Sweep(sweep_id, found.run_id, ranked(trials))


def _check_ids(sweep_id: str, order: Order) -> None:
    for variant in order.variants:
        longest = trial_id(sweep_id, variant.name, order.repeats - 1)
        if not RUN_ID_PATTERN.fullmatch(longest):
            raise InvalidValueError(
                f"variant {shown(variant.name)} of sweep {sweep_id!r} would be run {shown(longest)}, which is no run "
                "id; give a shorter name of letters, digits and _.=@+-"
            )


def _checked_budget(budget: object) -> Budget:
    if not isinstance(budget, Budget):
        raise InvalidValueError(f"budget={shown(budget)} is no budget; give satay.Budget(cost=...) or (runs=...)")
    return budget


async def _variants(
    app: App, source: RunRecord, definition: Workflow[..., Any], variants: object, options: Mapping[str, Any]
) -> list[VariantOrder]:
    if not isinstance(variants, Mapping) or not variants:
        raise InvalidValueError(f"variants={shown(variants)}; give a mapping of names to inputs or satay.Variant(...)")
    ordered = []
    for name, given in variants.items():
        if not isinstance(name, str) or "~" in name or not RUN_ID_PATTERN.fullmatch(name):
            raise InvalidValueError(f"variant {shown(name)} cannot be part of a run id; use letters, digits and _.=@+-")
        own = given.options if isinstance(given, Variant) else {"workflow_input": given}
        request = parse_options({**options, **own})
        if request.raises is not None:
            raise InvalidValueError("a sweep takes no raises=; fork with it, or give an override")
        plain = request.to_options()
        given_input = plain.pop("workflow_input", MISSING)
        try:
            text = None if given_input is MISSING else definition.encode_input(given_input)
        except EncodeError as error:
            raise EncodeError(f"variant {name!r} cannot be: {error}", path=error.path) from None
        await app.check_fork(source, request)
        ordered.append(VariantOrder(source.run_id, name, text, plain))
    return ordered


async def _followed(app: App, handle: RunHandle[tuple[Trial, ...]], trials: int) -> tuple[Trial, ...]:
    """Wait for the result; meanwhile a terminal shows how far it is."""
    progress = terminal_progress("trials", trials)
    if progress is None:
        return await handle.result()
    watching = asyncio.ensure_future(_count(app, handle, progress))
    try:
        return await handle.result()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        progress.close()


async def _count(app: App, handle: RunHandle[Any], progress: Progress) -> None:
    await handle
    made: set[int] = set()
    async for event in app.events(handle.run_id):
        if event.type == EntryType.TASK_SCHEDULED and event.data["task"] == make_trial.name:
            made.add(event.seq)
        elif event.type == EntryType.TASK_COMPLETED and event.data["call"] in made:
            progress.advance()


def _app() -> App:
    app = app_of_block.get()
    if app is None:
        raise UsageError("a trial of a sweep was made outside an app; call satay.sweep()")
    return app
