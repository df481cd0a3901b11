"""The commands that drive runs: they import the modules that they are told, and print what a run comes to.

They write their answer, and nothing else, to the standard output.
"""

import asyncio
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from satay.app import App
from satay.argument_values import decode_input, parse_json, parse_pairs
from satay.commandline import Desk, Run, command, named_modules, open_desk
from satay.console import Output
from satay.definitions import Workflow, find_workflow
from satay.errors import InvalidValueError, SatayError
from satay.exits import ExitCode
from satay.fork_arguments import CUT_PANEL, ForkArguments, SessionCut, SessionForkOptions, fork_arguments
from satay.handles import RunHandle
from satay.markup import report
from satay.model import MISSING, SESSION_WORKFLOW, RunStatus
from satay.modules import find_function, find_target
from satay.readers import RunEnding
from satay.sessions import Session
from satay.sweeps import Budget, run_sweep
from satay.translation import to_command_line
from satay.views import receipt_line

NO_FACTS: Final[Mapping[str, Any]] = MappingProxyType({})


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
        input = MISSING if data is MISSING else decode_input(workflow, data, "INPUT")
        handle = await app.start(workflow, input, run_id=run_id, idempotency_key=idempotency_key)
        ending = await _end(app, handle, desk.output, [*modules, target.partition(":")[0]])
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
        ending = await _end(app, handle, desk.output, modules)
    receipt = handle.receipt
    return _show_ending(ending, desk.output, {"receipt": receipt.to_dict(), "replayed": receipt.replayed})


async def _fork_session(desk: Desk, session_id: str, name: str | None, options: SessionForkOptions) -> None:
    async with desk.app():
        made = await Session.resume(session_id, name=name, **options)
    receipt = made.receipt
    assert receipt is not None, "a fork has a receipt"
    desk.output.show({"run_id": made.run_id, "receipt": receipt.to_dict()}, lambda: report(str(receipt)))


@command(open_desk, named_modules, fork_arguments)
async def plan(desk: Desk, modules: list[str], arguments: ForkArguments, run: Run) -> None:
    """Show what a fork would inherit, run again and refuse, and what it would save. Nothing is written."""
    (source_id,) = await desk.find(run)
    async with desk.drive(modules) as app:
        options = arguments.options_for(await _workflow_of(app, source_id))
        found = await app.plan_fork(source_id, **options)
    desk.output.show(found.to_dict(), lambda: report(str(found)))


@command(open_desk, named_modules, fork_arguments)
async def sweep(
    desk: Desk,
    modules: list[str],
    arguments: ForkArguments,
    run: Run,
    variant: Annotated[
        list[str],
        typer.Option(metavar="NAME=JSON", help="A variant: its name and the input of its forks, or @file."),
    ],
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
    if arguments.input is not MISSING:
        raise InvalidValueError("each --variant of a sweep is an input of its own; leave --input away")
    (source_id,) = await desk.find(run)
    inputs = {name: parse_json(text, f"--variant {name}") for name, text in parse_pairs(variant, "--variant").items()}
    async with desk.drive(modules) as app:
        workflow = await _workflow_of(app, source_id)
        sweep_id = app.new_id() if run_id is None else run_id
        judges = [] if score is None else [score.partition(":")[0]]
        with _told_how_to_go_on(sweep_id, [*modules, *judges], desk.output):
            found = await run_sweep(
                app,
                source_id,
                variants={name: decode_input(workflow, data, f"--variant {name}") for name, data in inputs.items()},
                repeats=repeats,
                score=None if score is None else find_function(score),
                concurrency=concurrency,
                budget=Budget(budget_cost, budget_runs),
                run_id=sweep_id,
                options=arguments.options_for(workflow),
            )
    desk.output.show(found.to_dict(), lambda: report(str(found)))
    return ExitCode.DONE if any(row.completed for row in found.rows) else ExitCode.NO


async def _workflow_of(app: App, run_id: str) -> Workflow[..., Any]:
    return find_workflow((await app.run(run_id)).workflow, run_id)


@command(open_desk, named_modules)
async def resume(desk: Desk, modules: list[str], run: Run) -> ExitCode:
    """Go on with a run that nobody drives, and print its result."""
    (run_id,) = await desk.find(run)
    async with desk.drive(modules) as app:
        ending = await _end(app, app.resume(run_id), desk.output, modules)
    return _show_ending(ending, desk.output)


async def _end(app: App, handle: RunHandle[Any], output: Output, modules: Sequence[str]) -> RunEnding:
    """Wait for a run to end. What keeps it from ending is raised; that it failed is an ending.

    `modules` have its code, and whoever goes on with it has to name them.
    """
    await handle
    output.tell(f"run {handle.run_id}")
    try:
        with _told_how_to_go_on(handle.run_id, modules, output):
            await handle.result()
    except Exception:  # The workflow's own error, of any type, where the run has ended with it.
        if not (await app.status(handle)).is_terminal:
            raise
    return await app.ending(handle)


@contextmanager
def _told_how_to_go_on(run_id: str, modules: Sequence[str], output: Output) -> Iterator[None]:
    """A block that waits for a run to end. Whoever interrupts it is told the command that goes on with the run."""
    try:
        yield
    except asyncio.CancelledError:
        named = "".join(f" -m {shlex.quote(module)}" for module in dict.fromkeys(modules))
        output.tell(f"interrupted; satay resume {shlex.quote(run_id)}{named} goes on with it")
        raise


def _show_ending(ending: RunEnding, output: Output, more: Mapping[str, Any] = NO_FACTS) -> ExitCode:
    """Answer with how a run ended, and for programs with `more`."""
    if output.is_json:
        output.write_json(ending.to_dict() | dict(more))
    elif ending.status is RunStatus.COMPLETED:
        output.write_value(ending.result)
    elif ending.failure is not None:
        module, _, kind = ending.failure.type.rpartition(":")
        message = ending.failure.message
        said = to_command_line(message, ending.run_id) if module == SatayError.__module__ else message
        output.tell(f"run {ending.run_id} failed with {kind}: {said}")
    else:
        output.tell(f"run {ending.run_id} was cancelled")
    return ExitCode.DONE if ending.status is RunStatus.COMPLETED else ExitCode.NO
