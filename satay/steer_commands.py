"""The commands that tell runs something, or say what became of them. Who drives a run acts on it."""

from typing import Annotated

import typer

from satay.argument_values import parse_json
from satay.clock import SystemClock
from satay.commandline import Desk, Run, command, complete_run, open_desk
from satay.errors import InvalidValueError
from satay.experiments import OutcomeValue
from satay.inspections import inspect_run
from satay.markup import report
from satay.model import MISSING
from satay.views import approval_line, outcome_data, outcome_page, state_block


@command(open_desk)
async def outcome(
    desk: Desk,
    run: Run,
    value: Annotated[
        OutcomeValue | None, typer.Argument(metavar="VALUE", help="What became of it; without it, that is shown.")
    ] = None,
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
    desk.output.show(None if found is None else outcome_data(found), lambda: outcome_page(found))


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
    await desk.require_journal()
    run_id = None if run is None else (await desk.find(run))[0]
    async with desk.app() as app:
        is_new = await app.send_event(event, data, key=key, run_id=run_id, event_id=event_id)
    text = "sent" if is_new else f"not sent again: an event with the id {event_id!r} was sent before"
    desk.output.show({"is_sent": is_new, "run_id": run_id}, lambda: report(text))


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
    desk.output.show({"run_id": run_id} | decision.to_dict(), lambda: approval_line(run_id, decision))


async def _tell_state(desk: Desk, run_id: str) -> None:
    """What a run is up to now, after something was asked of it."""
    async with desk.reader() as reader:
        found = await inspect_run(reader, run_id, SystemClock().now(), after=None, limit=1)
    desk.output.show({"run_id": run_id} | found.state.to_dict(), lambda: state_block(found.state))
