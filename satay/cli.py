"""The command line: `satay`, or `python -m satay`. Each command is a few lines over the library.

Commands that read open the journal for reading only, and import nothing of the user's. Those that drive code import the
modules they are told, and write their answer, and nothing else, to the standard output.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from satay.app import App
from satay.argument_values import decode_input, parse_json, parse_pairs, parse_steps
from satay.clock import SystemClock, to_datetime
from satay.commandline import Desk, MoreRuns, Run, application, command, complete_run, named_modules, open_desk
from satay.console import Output
from satay.definitions import Workflow, find_workflow
from satay.errors import InvalidValueError
from satay.exits import ExitCode
from satay.experiments import OutcomeValue
from satay.fork_arguments import CUT_PANEL, ForkArguments, SessionCut, SessionForkOptions, fork_arguments
from satay.handles import RunHandle
from satay.health import check_health, stranded_runs
from satay.inspections import grow_tree, inspect_run
from satay.lineages import session_status
from satay.model import MISSING, SESSION_WORKFLOW, RunStatus
from satay.modules import find_function, find_target
from satay.readers import JournalReader, RunEnding
from satay.sessions import Session
from satay.sweeps import Budget, run_sweep
from satay.views import (
    approval_line,
    approval_list,
    health_page,
    outcome_data,
    outcome_page,
    receipt_line,
    receipt_page,
    run_list,
    run_page,
    state_block,
    tree,
)
from satay.views import report as text_report

WATCH_SECONDS: Final = 1.0
"""How often `runs --watch` looks."""

MAX_ITEMS: Final = 1000
"""The most items of a timeline that one `show` reads."""

NO_FACTS: Final[Mapping[str, Any]] = MappingProxyType({})

__all__ = ["application", "main"]


def main() -> None:
    """The entry point of the command `satay`."""
    application()


# --- reading ----------------------------------------------------------------------------------------------------------


@command(open_desk)
async def runs(
    desk: Desk,
    status: Annotated[RunStatus | None, typer.Option(help="Only runs of this status.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    forked_from: Annotated[
        str | None,
        typer.Option("--forked-from", metavar="RUN", help="Only forks of this run.", autocompletion=complete_run),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="RUN", help="Only runs created before it.", autocompletion=complete_run),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs at most.")] = 20,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again as they change, until Ctrl-C.")] = False,
) -> None:
    """List runs, newest first."""
    async with desk.reader() as reader:
        query: dict[str, Any] = {
            "status": status,
            "workflow": workflow,
            "forked_from": None if forked_from is None else await reader.find(forked_from),
            "before": None if before is None else await reader.find(before),
            "limit": limit,
        }
        if watch:
            await _watch_runs(reader, query, desk.output)
        else:
            desk.output.show(*await _list_runs(reader, query))


async def _list_runs(reader: JournalReader, query: dict[str, Any]) -> tuple[list[dict[str, Any]], RenderableType]:
    """The runs that match, as data and as they are shown."""
    now = SystemClock().now()
    found = await reader.runs(**query)
    stranded = await stranded_runs(reader.archive, now)
    statuses = {run.run_id: await session_status(reader.archive, run) for run in found}
    sessions = {run_id: status for run_id, status in statuses.items() if status is not None}
    data = [
        run.to_dict() | {"session_status": sessions.get(run.run_id), "is_stranded": run.run_id in stranded}
        for run in found
    ]
    return data, run_list(found, stranded, to_datetime(now), sessions)


async def _watch_runs(reader: JournalReader, query: dict[str, Any], output: Output) -> None:
    with output.changing() as show:
        while True:
            show(*await _list_runs(reader, query))
            await asyncio.sleep(WATCH_SECONDS)


@command(open_desk)
async def show(
    desk: Desk,
    run: Run,
    after: Annotated[int | None, typer.Option(min=0, help="Show what follows this entry; else the end.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="How many lines of the timeline at most.")] = 50,
    as_tree: Annotated[bool, typer.Option("--tree", help="Show the runs that came of it instead.")] = False,
    as_receipt: Annotated[bool, typer.Option("--receipt", help="Show what the fork inherited instead.")] = False,
) -> None:
    """Show a run: its state, what to do about it, and what happened."""
    async with desk.reader() as reader:
        run_id = await reader.find(run)
        if as_tree:
            root = await grow_tree(reader.archive, run_id)
            desk.output.show(root.to_dict(), tree(root))
        elif as_receipt:
            await _show_receipt(reader, run_id, desk.output)
        else:
            found = await inspect_run(reader, run_id, SystemClock().now(), after=after, limit=limit)
            desk.output.show(found.to_dict(), run_page(found))


async def _show_receipt(reader: JournalReader, run_id: str, output: Output) -> None:
    receipt = await reader.receipt(run_id)
    if receipt is None:
        raise InvalidValueError(f"run {run_id!r} is not a fork, so it has no receipt")
    if output.is_json:
        output.write_stored(receipt.to_json())
    else:
        output.render(receipt_page(receipt.to_dict()))


@command(open_desk)
async def compare(desk: Desk, one: Run, other: Run, more: MoreRuns = None) -> ExitCode:
    """Compare two runs, or several with the first of them, call by call. The exit code is 1 where they differ."""
    async with desk.reader() as reader:
        run_ids = [await reader.find(run) for run in (one, other, *(more or ()))]
        found = await reader.compare(*run_ids)
    desk.output.show(found.to_dict(), text_report(str(found)))
    return ExitCode.DONE if found.is_same else ExitCode.NO


@command(open_desk)
async def diff(
    desk: Desk,
    one: Run,
    other: Run,
    at: Annotated[
        str | None, typer.Option(metavar="N[,M]", help="Their states at this step, or at one of each; else the latest.")
    ] = None,
) -> ExitCode:
    """Compare the states of two sessions, and what each made of what both come from. The exit code is 1 where they
    differ."""
    steps = None if at is None else parse_steps(at)
    async with desk.reader() as reader:
        found = await reader.diff_states(await reader.find(one), await reader.find(other), at=steps)
    desk.output.show(found.to_dict(), text_report(str(found)))
    return ExitCode.DONE if found.is_same else ExitCode.NO


@command(open_desk)
async def trail(desk: Desk, run: Run) -> None:
    """Show where a run or a session comes from, what it inherited, and every decision in it."""
    async with desk.reader() as reader:
        found = await reader.decision_trail(await reader.find(run))
    desk.output.show(found.to_dict(), text_report(str(found)))


@command(open_desk)
async def verify(desk: Desk, run: Run) -> ExitCode:
    """Check that a run's journal is what was written into it. The exit code is 1 where it is not."""
    async with desk.reader() as reader:
        found = await reader.verify(await reader.find(run))
    desk.output.show(found.to_dict(), text_report(str(found)))
    return ExitCode.DONE if found.is_intact else ExitCode.NO


@command(open_desk)
async def doctor(desk: Desk) -> ExitCode:
    """Check the database, the settings and the processes. The exit code is 1 where something is wrong."""
    report = await check_health(desk.settings, SystemClock().now())
    desk.output.show(report.to_dict(), health_page(report))
    if report.store is None:
        return ExitCode.JOURNAL
    return ExitCode.NO if report.problems else ExitCode.DONE


# --- driving ----------------------------------------------------------------------------------------------------------


@command(open_desk, named_modules)
async def run(
    desk: Desk,
    modules: list[str],
    target: Annotated[str, typer.Argument(metavar="MODULE:WORKFLOW", help="The workflow to run.")],
    given: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="Its input: JSON, @file, or - for the standard input.")
    ] = None,
    run_id: Annotated[str | None, typer.Option(help="The id of the run; a known one is gone on with.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Start under this key once only.")] = None,
) -> ExitCode:
    """Run a workflow to its end, and print its result."""
    data = MISSING if given is None else parse_json(given, "INPUT")
    async with desk.drive([*modules, target]) as app:
        workflow = find_target(target)
        input = MISSING if data is MISSING else decode_input(workflow, data)
        handle = await app.start(workflow, input, run_id=run_id, idempotency_key=idempotency_key)
        ending = await _end(app, handle, desk.output)
    return _show_ending(ending, desk.output)


@command(open_desk, named_modules, fork_arguments)
async def fork(
    desk: Desk,
    modules: list[str],
    arguments: ForkArguments,
    run: Run,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", "--name", help="The id of the fork; asking again for the same returns it."),
    ] = None,
    at_step: Annotated[
        int | None, typer.Option(metavar="N", help="Of a session: after this step.", rich_help_panel=CUT_PANEL)
    ] = None,
    boundary: Annotated[
        str | None,
        typer.Option(
            metavar="exact|nearest|lineage",
            help="Of a session: where no state was recorded.",
            rich_help_panel=CUT_PANEL,
        ),
    ] = None,
) -> ExitCode | None:
    """Fork a run, drive the fork to its end, and print its result. A fork of a session is only made: code opens it."""
    (source_id,) = await desk.find(run)
    cut = SessionCut(at_step, boundary)
    async with desk.reader() as reader:
        is_session = (await reader.run(source_id)).workflow == SESSION_WORKFLOW
    if is_session:
        await _fork_session(desk, source_id, run_id, cut.options(arguments))
        return None
    cut.refuse(source_id)
    async with desk.drive(modules) as app:
        options = arguments.options_for(await _workflow_of(app, source_id))
        handle = await app.fork(source_id, run_id=run_id, **options)
        desk.output.tell(f"fork {handle.run_id}: {receipt_line(handle.receipt)}")
        ending = await _end(app, handle, desk.output)
    receipt = handle.receipt
    return _show_ending(ending, desk.output, {"receipt": receipt.to_dict(), "replayed": receipt.replayed})


async def _fork_session(desk: Desk, session_id: str, name: str | None, options: SessionForkOptions) -> None:
    async with desk.app():
        made = await Session.resume(session_id, name=name, **options)
    receipt = made.receipt
    assert receipt is not None, "a fork has a receipt"
    desk.output.show({"run_id": made.run_id, "receipt": receipt.to_dict()}, text_report(str(receipt)))


@command(open_desk, named_modules, fork_arguments)
async def plan(desk: Desk, modules: list[str], arguments: ForkArguments, run: Run) -> None:
    """Show what a fork would inherit, run again and refuse, and what it would save. Nothing is written."""
    (source_id,) = await desk.find(run)
    async with desk.drive(modules) as app:
        options = arguments.options_for(await _workflow_of(app, source_id))
        found = await app.plan_fork(source_id, **options)
    desk.output.show(found.to_dict(), text_report(str(found)))


@command(open_desk, named_modules, fork_arguments)
async def sweep(
    desk: Desk,
    modules: list[str],
    arguments: ForkArguments,
    run: Run,
    variant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="A variant: its name and the input of its forks, or @file."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How many forks of each variant.")] = 1,
    score: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What scores a result, the higher the better.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many forks at a time.")] = 4,
    budget_cost: Annotated[float | None, typer.Option(help="Begin none once so much was spent.")] = None,
    budget_runs: Annotated[int | None, typer.Option(min=0, help="Make so many forks at most.")] = None,
    run_id: Annotated[str | None, typer.Option(help="The id of the sweep; a known one is gone on with.")] = None,
) -> ExitCode:
    """Fork a run once for each variant and repeat, score the results, and rank the variants."""
    (source_id,) = await desk.find(run)
    inputs = parse_pairs(variant or (), "--variant", lambda text: parse_json(text, "--variant"))
    async with desk.drive(modules) as app:
        workflow = await _workflow_of(app, source_id)
        found = await run_sweep(
            app,
            source_id,
            variants={name: decode_input(workflow, data) for name, data in inputs.items()},
            repeats=repeats,
            score=None if score is None else find_function(score),
            concurrency=concurrency,
            budget=Budget(budget_cost, budget_runs),
            run_id=run_id,
            options=arguments.options_for(workflow),
        )
    desk.output.show(found.to_dict(), text_report(str(found)))
    return ExitCode.DONE if any(row.completed for row in found.rows) else ExitCode.NO


async def _workflow_of(app: App, run_id: str) -> Workflow[..., Any]:
    return find_workflow((await app.run(run_id)).workflow, run_id)


@command(open_desk, named_modules)
async def resume(desk: Desk, modules: list[str], run: Run) -> ExitCode:
    """Go on with a run that nobody drives, and print its result."""
    (run_id,) = await desk.find(run)
    async with desk.drive(modules) as app:
        ending = await _end(app, app.resume(run_id), desk.output)
    return _show_ending(ending, desk.output)


async def _end(app: App, handle: RunHandle[Any], output: Output) -> RunEnding:
    """Wait for a run to end. What keeps it from ending is raised; that it failed is an ending."""
    await handle
    output.tell(f"run {handle.run_id}")
    try:
        await handle.result()
    except asyncio.CancelledError:
        output.tell(f"interrupted; satay resume {handle.run_id} goes on with it")
        raise
    except Exception:  # The workflow's own error, of any type, where the run has ended with it.
        if not (await app.status(handle)).is_terminal:
            raise
    return await app.ending(handle)


def _show_ending(ending: RunEnding, output: Output, more: Mapping[str, Any] = NO_FACTS) -> ExitCode:
    """Answer with how a run ended, and for programs with `more`."""
    if output.is_json:
        output.write_json(ending.to_dict() | dict(more))
    elif ending.status is RunStatus.COMPLETED:
        output.write_value(ending.result)
    elif ending.failure is not None:
        kind = ending.failure.type.rpartition(":")[2]
        output.tell(f"run {ending.run_id} failed with {kind}: {ending.failure.message}")
    else:
        output.tell(f"run {ending.run_id} was cancelled")
    return ExitCode.DONE if ending.status is RunStatus.COMPLETED else ExitCode.NO


# --- experiments ------------------------------------------------------------------------------------------------------


@command(open_desk)
async def outcome(
    desk: Desk,
    run: Run,
    value: Annotated[OutcomeValue | None, typer.Argument(help="What became of it; without it, that is shown.")] = None,
    score: Annotated[float | None, typer.Option(help="How good it was: the higher the better.")] = None,
    note: Annotated[str | None, typer.Option(help="Why.")] = None,
) -> None:
    """Record what became of a run, or show what was recorded."""
    (run_id,) = await desk.find(run)
    if value is None and (score is not None or note is not None):
        raise InvalidValueError("a score and a note belong to an outcome; give one, such as rejected")
    if value is not None:
        async with desk.app() as app:
            await app.set_outcome(run_id, value.value, score=score, note=note)
    await _show_outcome(desk, run_id)


@command(open_desk)
async def promote(
    desk: Desk,
    run: Run,
    experiment: Annotated[str | None, typer.Option(help="The experiment that it won; else that of its source.")] = None,
) -> None:
    """Say that a fork is the one to keep of the forks of its source. That is said once."""
    (run_id,) = await desk.find(run)
    async with desk.app() as app:
        await app.promote(run_id, experiment=experiment)
    await _show_outcome(desk, run_id)


async def _show_outcome(desk: Desk, run_id: str) -> None:
    async with desk.reader() as reader:
        found = await reader.outcome(run_id)
    desk.output.show(None if found is None else outcome_data(found), outcome_page(found))


# --- messages ---------------------------------------------------------------------------------------------------------


@command(open_desk)
async def cancel(
    desk: Desk,
    run: Run,
    at_once: Annotated[bool, typer.Option("--now", help="End it at once: its cleanup does not run.")] = False,
) -> None:
    """Ask for a run to be cancelled. Whoever drives it cancels it."""
    (run_id,) = await desk.find(run)
    async with desk.app() as app:
        await (app.terminate(run_id) if at_once else app.cancel(run_id))
    await _tell_state(desk, run_id)


@command(open_desk)
async def send(
    desk: Desk,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The name of the event.")],
    payload: Annotated[str | None, typer.Argument(metavar="[PAYLOAD]", help="JSON, @file, or -.")] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="The run; else whoever waits.", autocompletion=complete_run),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key that the run waits for.")] = None,
    event_id: Annotated[str | None, typer.Option(help="Deliver events of this id once only.")] = None,
) -> None:
    """Send an event to a run, or to whoever waits for it first."""
    data = None if payload is None else parse_json(payload, "PAYLOAD")
    run_id = None if run is None else (await desk.find(run))[0]
    async with desk.app() as app:
        is_new = await app.send_event(event, data, key=key, run_id=run_id, event_id=event_id)
    text = "sent" if is_new else f"not sent again: an event with the id {event_id!r} was sent before"
    desk.output.show({"is_sent": is_new, "run_id": run_id}, Text(text))


@command(open_desk)
async def decide(
    desk: Desk,
    run: Run,
    decision: Annotated[str | None, typer.Argument(metavar="[rerun|fail]", help="What to do with the call.")] = None,
    value: Annotated[str | None, typer.Option(metavar="JSON", help="Take this as the result of the call.")] = None,
    seq: Annotated[int | None, typer.Option(help="The entry of the call, where several are undecided.")] = None,
) -> None:
    """Say what became of an external call that a crash left unfinished."""
    (run_id,) = await desk.find(run)
    made = MISSING if decision is None else decision
    data = MISSING if value is None else parse_json(value, "--value")
    async with desk.app() as app:
        await app.decide(run_id, made, value=data, seq=seq)  # type: ignore[arg-type]  # decide() checks it
    await _tell_state(desk, run_id)


@command(open_desk)
async def approvals(
    desk: Desk,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run; else all runs.", autocompletion=complete_run)
    ] = None,
) -> None:
    """List the approvals that a run, or any run, waits for."""
    async with desk.reader() as reader:
        pending = await reader.approvals(None if run is None else await reader.find(run))
    desk.output.show([approval.to_dict() for approval in pending], approval_list(pending))


@command(open_desk)
async def approve(
    desk: Desk,
    run: Run,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the approval.")],
    is_rejected: Annotated[bool, typer.Option("--reject", help="Say no.")] = False,
    by: Annotated[str | None, typer.Option(help="Who decides.")] = None,
    note: Annotated[str | None, typer.Option(help="Why.")] = None,
    value: Annotated[str | None, typer.Option(metavar="JSON", help="What is handed along.")] = None,
) -> None:
    """Approve what a run or a session asked for, or reject it. The first decision holds."""
    (run_id,) = await desk.find(run)
    data = None if value is None else parse_json(value, "--value")
    async with desk.app() as app:
        decision = await app.decide_approval(run_id, key, approved=not is_rejected, by=by, note=note, value=data)
    desk.output.show({"run_id": run_id} | decision.to_dict(), approval_line(run_id, decision))


async def _tell_state(desk: Desk, run_id: str) -> None:
    """What a run is up to now, after something was asked of it."""
    async with desk.reader() as reader:
        found = await inspect_run(reader, run_id, SystemClock().now(), after=None, limit=1)
    desk.output.show({"run_id": run_id} | found.state.to_dict(), state_block(found.state))
