"""The functions of the package. Each uses the app in whose `async with satay.run_app()` block it is called.

Without a block they open the default app of the running event loop, which closes when that loop shuts down.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from satay.app import App, app_of_block
from satay.approval_records import Approval, PendingApproval
from satay.arguments import checked_count, checked_duration, checked_flag, shown
from satay.clock import Chance, Clock, SystemClock
from satay.context import refuse_in_body
from satay.definitions import P, Workflow
from satay.errors import InvalidValueError, UsageError
from satay.handles import ForkHandle, RunHandle, RunOrId
from satay.model import MISSING, Missing
from satay.revivals import DriveSettings
from satay.scheduler import SchedulerSettings
from satay.settings import make_settings
from satay.threads import DEFAULT_THREADS

if TYPE_CHECKING:
    from satay.experiments import Outcome
    from satay.laboratory import Experiment
    from satay.matrices import ComparisonMatrix
    from satay.plans import ForkPlan
    from satay.receipts import ForkReceipt
    from satay.reports import Comparison
    from satay.requests import ForkOptions
    from satay.state_diffs import StateDiff
    from satay.sweeps import Budget, Judge, Sweep
    from satay.trails import DecisionTrail
    from satay.verification import Verification

R = TypeVar("R")

MAX_RESIDENT: Final = 10_000_000
"""The largest `max_resident` of an app."""

MAX_THREADS: Final = 10_000
"""The largest `max_threads` of an app."""

SHORTEST_PERIOD_SECONDS: Final = 0.001
"""The shortest lease, and the shortest time between two looks at the journal."""

_default_apps: "WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[App, AsyncGenerator[None, None]]]" = (
    WeakKeyDictionary()
)


def run_app(
    url: str | None = None,
    *,
    data_dir: str | Path | None = None,
    recover: bool = False,
    nondeterminism: Literal["strict", "warn", "off"] | None = None,
    synchronous: Literal["FULL", "NORMAL"] | None = None,
    allow_pickle: bool | None = None,
    lease_seconds: float = 15.0,
    poll_seconds: float = 0.5,
    grace_seconds: float = 5.0,
    max_resident: int = 4096,
    max_threads: int = DEFAULT_THREADS,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> App:
    """An app for an `async with` block: it opens a journal and drives runs in it until the block ends.

    `url` is `sqlite:///path`; else `SATAY_DATABASE_URL`, else the file in `data_dir`, else in `./.satay`. `recover`
    also takes over runs whose driver died, and wakes waiting runs of any process. After `lease_seconds` without a sign
    of life others may take this process's runs over; `poll_seconds` is how often messages of other processes are looked
    for; `grace_seconds` is what running attempts get when the block ends; `max_resident` waiting runs stay in memory;
    `max_threads` plain tasks run at a time. `clock` and `chance` are for tests.

    Raises `InvalidValueError` for a setting, given or in the environment, that cannot be used. Entering the block
    raises a `JournalError` where the journal cannot be opened.
    """
    if url is not None and not isinstance(url, str):
        raise InvalidValueError(f"url is {shown(url)}; it must be a text like 'sqlite:///path'")
    settings = make_settings(
        url, data_dir, nondeterminism=nondeterminism, synchronous=synchronous, allow_pickle=allow_pickle
    )
    scheduling = SchedulerSettings(
        recover=checked_flag(recover, "recover"),
        lease_seconds=_checked_period(lease_seconds, "lease_seconds"),
        poll_seconds=_checked_period(poll_seconds, "poll_seconds"),
        grace_seconds=checked_duration(grace_seconds, "grace_seconds"),
        max_resident=checked_count(max_resident, "max_resident", 0, MAX_RESIDENT),
        max_threads=checked_count(max_threads, "max_threads", 1, MAX_THREADS),
        drive=DriveSettings(settings.nondeterminism, settings.allow_pickle),
    )
    if chance is not None and not isinstance(chance, Chance):
        raise InvalidValueError(f"chance is {shown(chance)}; it must be a satay.testing.Chance")
    if clock is not None and not (hasattr(clock, "now") and hasattr(clock, "call_at")):
        raise InvalidValueError(f"clock is {shown(clock)}; it must have the methods of a satay.testing.ManualClock")
    return App(settings, scheduling, clock or SystemClock(), chance or Chance())


def _checked_period(seconds: float, name: str) -> float:
    period = checked_duration(seconds, name)
    if period < SHORTEST_PERIOD_SECONDS:
        raise InvalidValueError(f"{name} is {shown(seconds)}; it must be at least {SHORTEST_PERIOD_SECONDS} seconds")
    return period


def run(
    workflow: Workflow[P, R],
    input: Any = MISSING,
    *,
    run_id: str | None = None,
    idempotency_key: str | None = None,
    url: str | None = None,
    data_dir: str | Path | None = None,
    recover: bool = False,
    nondeterminism: Literal["strict", "warn", "off"] | None = None,
    synchronous: Literal["FULL", "NORMAL"] | None = None,
    allow_pickle: bool | None = None,
    lease_seconds: float = 15.0,
    poll_seconds: float = 0.5,
    grace_seconds: float = 5.0,
    max_resident: int = 4096,
    max_threads: int = DEFAULT_THREADS,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> R:
    """Run a workflow to its end and return its result: the one-line form for scripts.

    `run_id` and `idempotency_key` are those of `start`, the rest are those of `run_app`. Raises what `result()` of a
    handle raises, and `UsageError` where an event loop runs already: there it is `await satay.start(...).result()`.
    """
    refuse_in_body()
    if is_in_loop():
        raise UsageError(
            "satay.run() was called where an event loop runs already, and would block it; write "
            "'await satay.start(workflow, input).result()' instead"
        )
    app = run_app(
        url,
        data_dir=data_dir,
        recover=recover,
        nondeterminism=nondeterminism,
        synchronous=synchronous,
        allow_pickle=allow_pickle,
        lease_seconds=lease_seconds,
        poll_seconds=poll_seconds,
        grace_seconds=grace_seconds,
        max_resident=max_resident,
        max_threads=max_threads,
        clock=clock,
        chance=chance,
    )
    return asyncio.run(_run(app, workflow, input, run_id, idempotency_key))


async def _run(app: App, workflow: Workflow[P, R], input: Any, run_id: str | None, idempotency_key: str | None) -> R:
    async with app:
        return await app.start(workflow, input, run_id=run_id, idempotency_key=idempotency_key).result()


def is_in_loop() -> bool:
    """Whether an event loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def start(
    workflow: Workflow[P, R], input: Any = MISSING, *, run_id: str | None = None, idempotency_key: str | None = None
) -> RunHandle[R]:
    """Begin a run in the background and return its handle at once; see `App.start`."""
    return current_app().start(workflow, input, run_id=run_id, idempotency_key=idempotency_key)


def resume(run_id: RunOrId) -> RunHandle[Any]:
    """Go on with a run that nobody drives; see `App.resume`."""
    return current_app().resume(run_id)


@overload
async def fork(
    source: RunHandle[R], /, *, run_id: str | None = None, **options: Unpack["ForkOptions"]
) -> ForkHandle[R]: ...
@overload
async def fork(source: str, /, *, run_id: str | None = None, **options: Unpack["ForkOptions"]) -> ForkHandle[Any]: ...
async def fork(
    source: str | RunHandle[Any], /, *, run_id: str | None = None, **options: Unpack["ForkOptions"]
) -> ForkHandle[Any]:
    """Copy a run's journal up to a cut into a new run, and drive that under today's code and input; see `App.fork`."""
    return await current_app().fork(source, run_id=run_id, **options)


async def sweep(
    source: RunOrId,
    /,
    *,
    variants: Mapping[str, Any],
    repeats: int = 1,
    score: "Judge | None" = None,
    concurrency: int = 4,
    budget: "Budget | None" = None,
    run_id: str | None = None,
    **options: Unpack["ForkOptions"],
) -> "Sweep":
    """Fork a run once for each variant and repeat, score the results, and rank the variants.

    `variants` are by name the inputs of the forks, or `Variant`s, which differ in other options; the other options are
    those of `fork`. `score` is called with each result, in a task: a function or a `@satay.task` that returns a number,
    the higher the better, a bool, or None. At most `concurrency` trials are made at a time, and none is begun once the
    `budget` is spent. A sweep is a run with children: with `run_id`, asking again goes on where it was, and no trial
    that has ended is made again.

    Raises `InvalidValueError`, `ForkValidationError` and `RunConflictError` before anything is made. A trial that fails
    is in its row.
    """
    from satay.sweeps import run_sweep

    return await run_sweep(
        current_app(),
        source,
        variants=variants,
        repeats=repeats,
        score=score,
        concurrency=concurrency,
        budget=budget,
        run_id=run_id,
        options=options,
    )


async def plan_fork(source: RunOrId, /, **options: Unpack["ForkOptions"]) -> "ForkPlan":
    """What a fork would inherit, run again, refuse and save; see `App.plan_fork`."""
    return await current_app().plan_fork(source, **options)


async def receipt(run_id: RunOrId) -> "ForkReceipt | None":
    """What a fork inherited; None for a run that is not a fork; see `App.receipt`."""
    return await current_app().receipt(run_id)


async def set_outcome(
    run: RunOrId,
    value: Literal["promoted", "rejected", "inconclusive", "crashed"],
    /,
    *,
    score: float | None = None,
    note: str | None = None,
) -> None:
    """Record what became of a run; see `App.set_outcome`."""
    await current_app().set_outcome(run, value, score=score, note=note)


async def outcome(run: RunOrId) -> "Outcome | None":
    """The latest outcome of a run, or None; see `App.outcome`."""
    return await current_app().outcome(run)


async def experiment(
    name: str | None = None, *, baseline: RunOrId | None = None, hypothesis: str | None = None
) -> "Experiment":
    """A named experiment, or that of a baseline and its forks; see `App.experiment`."""
    return await current_app().experiment(name, baseline=baseline, hypothesis=hypothesis)


async def promote(run: RunOrId, *, experiment: "str | Experiment | None" = None) -> None:
    """Decide an experiment for a fork; see `App.promote`."""
    await current_app().promote(run, experiment=experiment)


@overload
async def compare(one: RunOrId, other: RunOrId, /) -> "Comparison": ...
@overload
async def compare(one: RunOrId, other: RunOrId, third: RunOrId, /, *more: RunOrId) -> "ComparisonMatrix": ...
async def compare(one: RunOrId, other: RunOrId, /, *more: RunOrId) -> "Comparison | ComparisonMatrix":
    """Compare two runs call by call, or several with the first of them; see `App.compare`."""
    return await current_app().compare(one, other, *more)


async def diff_states(one: RunOrId, other: RunOrId, /, *, at: int | tuple[int, int] | None = None) -> "StateDiff":
    """Compare the states of two sessions, the latest or those of a step; see `App.diff_states`."""
    return await current_app().diff_states(one, other, at=at)


async def decision_trail(run: RunOrId) -> "DecisionTrail":
    """Where a run or a session comes from, and every decision in it; see `App.decision_trail`."""
    return await current_app().decision_trail(run)


async def verify(run: RunOrId) -> "Verification":
    """Check that a run's journal is what was written into it; see `App.verify`."""
    return await current_app().verify(run)


async def send_event(
    event: object,
    payload: Any = MISSING,
    *,
    key: str | None = None,
    run_id: RunOrId | None = None,
    event_id: str | None = None,
) -> bool:
    """Send an event to one run, or to whoever waits for it first; see `App.send_event`."""
    return await current_app().send_event(event, payload, key=key, run_id=run_id, event_id=event_id)


async def cancel(run_id: RunOrId) -> None:
    """Ask for a run to be cancelled; see `App.cancel`."""
    await current_app().cancel(run_id)


async def terminate(run_id: RunOrId) -> None:
    """Ask for a run to end at once, without its cleanup; see `App.terminate`."""
    await current_app().terminate(run_id)


async def decide(
    run_id: RunOrId,
    decision: Literal["rerun", "fail"] | Missing = MISSING,
    *,
    value: Any = MISSING,
    seq: int | None = None,
) -> None:
    """Say what became of an external call that a crash left unfinished; see `App.decide`."""
    await current_app().decide(run_id, decision, value=value, seq=seq)


async def decide_approval(
    run_id: RunOrId, key: str, *, approved: bool, by: str | None = None, note: str | None = None, value: Any = None
) -> Approval:
    """Decide about an approval that a run or a session asked for; see `App.decide_approval`."""
    return await current_app().decide_approval(run_id, key, approved=approved, by=by, note=note, value=value)


async def approvals(run_id: RunOrId | None = None) -> list[PendingApproval]:
    """The approvals that a run waits for, or all runs; see `App.approvals`."""
    return await current_app().approvals(run_id)


def current_app() -> App:
    """The app in whose block the caller is, else the default app of the running event loop, which this opens.

    A block on another event loop does not count.
    """
    refuse_in_body()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "this satay function was called where no event loop of asyncio runs; call it from code that asyncio runs, "
            "or use satay.run()"
        ) from None
    app = app_of_block.get()
    if app is not None and app.is_open_on(loop):  # A task in a thread inherits the app, and may run a loop of its own.
        return app
    known = _default_apps.get(loop)
    if known is not None and not known[0].is_closed:
        return known[0]
    return _open_default_app(loop)


def _open_default_app(loop: asyncio.AbstractEventLoop) -> App:
    app = run_app()
    life = _default_app_life(app)
    app.open_later(loop.create_task(_first_step(life)))
    _default_apps[loop] = (app, life)
    return app


async def _default_app_life(app: App) -> AsyncGenerator[None, None]:
    """Open; close when the event loop finalizes its async generators, which `asyncio.run` does at its end."""
    await app.open()
    try:
        yield
    finally:
        await app.close()


async def _first_step(life: AsyncGenerator[None, None]) -> None:
    await anext(life)
