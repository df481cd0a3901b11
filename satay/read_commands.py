"""The commands that read runs and a journal. They open it for reading only, and import nothing of the user's."""

from typing import Annotated, Final

import typer

from satay.argument_values import parse_steps
from satay.clock import SystemClock
from satay.commandline import Desk, MoreRuns, Run, command, open_desk
from satay.console import Output
from satay.errors import InvalidValueError
from satay.exits import ExitCode
from satay.health import check_health
from satay.inspections import grow_tree, inspect_run
from satay.markup import report
from satay.readers import JournalReader
from satay.views import health_page, receipt_page, run_page, tree

MAX_ITEMS: Final = 1000
"""The most items of a timeline that one `show` reads."""

SHOWN_ITEMS: Final = 50
"""How many items one shows without `--limit`."""


@command(open_desk)
async def show(
    desk: Desk,
    run: Run,
    after: Annotated[int | None, typer.Option(min=0, help="Show what follows this entry; else the end.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_ITEMS, help=f"How many lines of the timeline at most; else {SHOWN_ITEMS}."),
    ] = None,
    as_tree: Annotated[bool, typer.Option("--tree", help="Show the runs that came of it instead.")] = False,
    as_receipt: Annotated[bool, typer.Option("--receipt", help="Show what the fork inherited instead.")] = False,
) -> None:
    """Show a run: its state, what to do about it, and what happened."""
    if as_tree and as_receipt:
        raise InvalidValueError("--tree and --receipt each show something instead of the run; give one of them")
    if (as_tree or as_receipt) and (after, limit) != (None, None):
        raise InvalidValueError("--after and --limit are for the timeline, which --tree and --receipt do not show")
    async with desk.reader() as reader:
        run_id = await reader.find(run)
        if as_tree:
            root = await grow_tree(reader.archive, run_id)
            desk.output.show(root.to_dict(), lambda: tree(root))
        elif as_receipt:
            await _show_receipt(reader, run_id, desk.output)
        else:
            found = await inspect_run(reader, run_id, SystemClock().now(), after=after, limit=limit or SHOWN_ITEMS)
            desk.output.show(found.to_dict(), lambda: run_page(found))


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
    desk.output.show(found.to_dict(), lambda: report(str(found)))
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
    desk.output.show(found.to_dict(), lambda: report(str(found)))
    return ExitCode.DONE if found.is_same else ExitCode.NO


@command(open_desk)
async def trail(desk: Desk, run: Run) -> None:
    """Show where a run or a session comes from, what it inherited, and every decision in it."""
    async with desk.reader() as reader:
        found = await reader.decision_trail(await reader.find(run))
    desk.output.show(found.to_dict(), lambda: report(str(found)))


@command(open_desk)
async def verify(desk: Desk, run: Run) -> ExitCode:
    """Check that a run's journal is what was written into it. The exit code is 1 where it is not."""
    async with desk.reader() as reader:
        found = await reader.verify(await reader.find(run))
    desk.output.show(found.to_dict(), lambda: report(str(found)))
    return ExitCode.DONE if found.is_intact else ExitCode.NO


@command(open_desk)
async def doctor(desk: Desk) -> ExitCode:
    """Check the database, the settings and the processes. The exit code is 1 where something is wrong."""
    found = await check_health(desk.settings, SystemClock().now())
    desk.output.show(found.to_dict(), lambda: health_page(found))
    if found.store is None:
        return ExitCode.JOURNAL
    return ExitCode.NO if found.problems else ExitCode.DONE
