"""The commands that list: runs, and approvals that are waited for. They load rich when they print for people."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from satay.archive import Archive
from satay.clock import SystemClock, to_datetime
from satay.commandline import Desk, command, complete_run, open_desk
from satay.console import Output
from satay.journal import RunQuery
from satay.model import RunStatus
from satay.processes import left_behind
from satay.readers import summary_of

if TYPE_CHECKING:
    from rich.console import RenderableType

WATCH_SECONDS: Final = 1.0
"""How often `runs --watch` looks."""


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
        query = RunQuery(
            status=status,
            workflow=workflow,
            forked_from=None if forked_from is None else await reader.find(forked_from),
            before=None if before is None else await reader.find(before),
            limit=limit,
        )
        if watch:
            await _watch_runs(reader.archive, query, desk.output)
        else:
            desk.output.show(*await _list_runs(reader.archive, query))


async def _list_runs(archive: Archive, query: RunQuery) -> "tuple[list[dict[str, Any]], Callable[[], RenderableType]]":
    """The runs that match, as data, and what shows them."""
    now = SystemClock().now()
    records = await archive.journal.runs(query)
    running = [record for record in records if record.status is RunStatus.RUNNING]
    stranded = left_behind(running, await archive.journal.owners(), now)
    statuses = {record.run_id: await archive.session_status(record) for record in records}
    sessions = {run_id: status.value for run_id, status in statuses.items() if status is not None}
    found = [summary_of(record) for record in records]
    data = [
        run.to_dict() | {"session_status": sessions.get(run.run_id), "is_stranded": run.run_id in stranded}
        for run in found
    ]

    def view() -> "RenderableType":
        from satay.lists import run_list

        return run_list(found, stranded, to_datetime(now), sessions)

    return data, view


async def _watch_runs(archive: Archive, query: RunQuery, output: Output) -> None:
    with output.changing() as show:
        while True:
            show(*await _list_runs(archive, query))
            await asyncio.sleep(WATCH_SECONDS)


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

    def view() -> "RenderableType":
        from satay.lists import approval_list

        return approval_list(pending)

    desk.output.show([approval.to_dict() for approval in pending], view)
