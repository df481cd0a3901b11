"""What is shown: complete, plain where it is not for a terminal, and without a control character of the user's."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console, RenderableType

import satay
from satay.accounts import CallState
from satay.health import HealthReport
from satay.inspections import Inspection, Kinship, Relative, Timeline, grow_tree, inspect_run
from satay.journal import Owner, StoreHealth
from satay.lists import run_list
from satay.markup import report
from satay.readers import open_reader
from satay.settings import Settings
from satay.states import RunState, StateReport
from satay.stores.locations import DATABASE_FILE
from satay.testing import open_app
from satay.transcripts import SessionStatus
from satay.views import health_page, receipt_line, receipt_page, run_page, state_block, timeline, tree
from tests.driving import in_loop

NASTY: Final = "\x1b[31mred\x1b[0m\r\n\x07\x9b\u202e[bold]not bold[/bold]\ud800"
NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


@satay.task(name="views.[bold]hand[/bold]")
async def nasty_task(value: Any) -> Any:
    return value


@satay.task(name="views.fail")
async def fail() -> None:
    raise ValueError("\x1b[31m\n[red]x[/red]")


@satay.workflow(name="views.nasty")
async def nasty(value: Any) -> Any:
    await nasty_task(value)
    await fail()


@satay.task(name="views.note")
async def note(value: int) -> int:
    return value


@satay.workflow(name="views.side_by_side")
async def side_by_side() -> list[int]:
    return list(await satay.gather(*(note(value) for value in range(4))))


@satay.workflow(name="views.plain")
async def plain(value: int) -> int:
    return value


def rendered(view: RenderableType, *, width: int = 10_000, is_terminal: bool = False) -> str:
    console = Console(
        file=StringIO(),
        width=width,
        force_terminal=is_terminal,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )
    with console.capture() as capture:
        console.print(view)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def summary(run_id: str, **changes: Any) -> satay.RunSummary:
    run = satay.RunSummary(
        run_id=run_id,
        workflow="story",
        status=satay.RunStatus.COMPLETED,
        created_at=NOW - timedelta(minutes=5),
        updated_at=NOW,
        wake_at=None,
        parent_id=None,
        forked_from=None,
        fork_seq=None,
        code_version="v1",
    )
    return replace(run, **changes)


async def inspected(place: Path) -> tuple[Inspection, Relative]:
    """A run and a tree of it in which every text is as bad as it gets."""
    async with open_app(place) as app:
        handle = await app.start(nasty, {"key \x1b[2J": "value \r\n\x9b"}, run_id="r")
        with pytest.raises(ValueError, match="x"):
            await handle.result()
        fork = await app.fork("r", before_task=fail, intervention={"\x1b": "\x07"}, run_id="fork")
        with pytest.raises(ValueError, match="x"):
            await fork.result()
        async with open_reader(Settings(data_dir=place)) as reader:
            inspection = await inspect_run(reader, "fork", app.clock.now(), after=None, limit=100)
            return inspection, await grow_tree(reader.archive, "r")


async def inspected_session(place: Path) -> Inspection:
    """A session in which every text is as bad as it gets."""
    state = {NASTY: NASTY}
    async with open_app(place) as app:
        async with satay.Session("s", state_fn=lambda: state) as session:
            await nasty_task(NASTY.replace("\ud800", ""))
            await session.step("[red]x[/red]", input=NASTY, output=state)
            await session.fork(name="s/b")
        async with open_reader(Settings(data_dir=place)) as reader:
            return await inspect_run(reader, "s", app.clock.now(), after=None, limit=100)


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_no_control_character_of_the_users_reaches_the_terminal(tmp_path: Path) -> None:
    inspection, family = in_loop(inspected(tmp_path))
    bad_state = StateReport(RunState.FAILED, NASTY, NASTY, (NASTY,))
    bad_run = summary("r", workflow=NASTY, parent_id=NASTY)
    owner = Owner(NASTY, NASTY, 1, NASTY, 0)
    store = StoreHealth(NASTY, 1, 1, 1, 1, {NASTY: 1}, 1, (NASTY,))
    health = HealthReport({NASTY: NASTY}, {"data_dir": NASTY}, store, ((owner, True),), (NASTY,), (NASTY,), (NASTY,))
    assert inspection.receipt is not None
    views: Sequence[RenderableType] = [
        run_page(inspection),
        tree(family),
        receipt_page(json.loads(inspection.receipt.to_json())),
        state_block(bad_state),
        run_list([bad_run, replace(bad_run, forked_from=NASTY, fork_seq=1)], [NASTY], NOW),
        health_page(health),
        report(f"one\n{NASTY}"),
    ]

    assert [] == [rendered(view) for view in views if not is_harmless(rendered(view))]
    assert "[red]x[/red]" in rendered(views[0])


def test_a_list_of_runs_shows_what_each_is_and_comes_of() -> None:
    runs = [
        summary("a"),
        summary("b", forked_from="a", fork_seq=7, status=satay.RunStatus.NEEDS_DECISION),
        summary("c", parent_id="a", status=satay.RunStatus.RUNNING),
    ]
    lines = rendered(run_list(runs, ["c"], NOW)).splitlines()

    assert ["run", "workflow", "status", "age", "comes", "of"] == lines[0].split()
    assert "a story completed 5 min" == " ".join(lines[2].split())
    assert "needs decision" in lines[3]
    assert lines[3].endswith("fork of a @7")
    assert "stranded" in lines[4]
    assert lines[4].endswith("child of a")


def test_a_session_is_shown_without_control_characters(tmp_path: Path) -> None:
    shown = rendered(run_page(in_loop(inspected_session(tmp_path))))

    assert is_harmless(shown)
    assert "1 step, the last one '[red]x[/red]'" in shown
    assert "step 1: [red]x[/red]" in shown
    assert "s/b, after step 1, created" in shown


def test_sessions_are_listed_with_what_they_are_doing_and_what_to_do() -> None:
    runs = [summary(run_id, workflow="satay.session") for run_id in ("a", "b", "c", "d")]
    sessions = {
        "a": SessionStatus.CRASHED,
        "b": SessionStatus.PAUSED,
        "c": SessionStatus.STEPPING,
        "d": SessionStatus.COMPLETED,
    }
    lines = [" ".join(line.split()) for line in rendered(run_list(runs, ["c"], NOW, sessions)).splitlines()]

    assert "a satay.session crashed 5 min open it again, or fork it" == lines[2]
    assert "b satay.session paused 5 min open it again" == lines[3]
    assert "c satay.session stranded 5 min open it again" == lines[4]
    assert "d satay.session completed 5 min" == lines[5]


def test_no_runs_are_said_to_be_none() -> None:
    assert "no runs" == rendered(run_list([], [], NOW))


def test_nothing_is_cut_where_the_output_is_no_terminal() -> None:
    run_id = "r" * 200

    assert run_id in rendered(run_list([summary(run_id, workflow="w" * 150)], [], NOW))


def test_a_terminal_gets_colours_and_what_matters_in_its_width() -> None:
    run_id = "0123456789abcdef0123456789abcdef"
    run = summary(run_id, workflow="w" * 100, forked_from="s" * 100, fork_seq=3)
    shown = rendered(run_list([run], [], NOW), width=80, is_terminal=True)

    assert all(word in shown for word in (run_id, "\x1b[32mcompleted", "5 min"))
    assert "w" * 100 in re.sub(r"[^w]", "", shown)
    assert "s" * 100 in re.sub(r"[^s]", "", shown)


def test_a_long_id_is_broken_into_lines_on_a_terminal_and_never_cut() -> None:
    shown = rendered(run_list([summary("r" * 200)], [], NOW), width=80, is_terminal=True)

    assert "r" * 200 in re.sub(r"[^r]", "", shown)


def test_a_page_of_a_timeline_says_how_to_see_the_rest(tmp_path: Path) -> None:
    inspection, _ = in_loop(inspected(tmp_path))
    items = inspection.timeline.items
    shown = rendered(timeline(Timeline(items[:2], earlier=3, later=1_204)))

    assert "3 earlier not shown; --after 0 shows the first" in shown
    assert f"1,204 later not shown; --after {items[1].seq} shows the next" in shown


def test_a_call_that_was_tried_several_times_says_so(tmp_path: Path) -> None:
    inspection, _ = in_loop(inspected(tmp_path))
    call = next(item for item in inspection.timeline.items if item.side is not None)
    assert call.side is not None
    side = call.side._replace(attempts=3, state=CallState.OPEN)
    shown = rendered(timeline(Timeline((replace(call, side=side),), 0, 0)))

    assert "open, 3 attempts" in shown


def test_an_inherited_run_and_a_cut_are_marked_in_a_tree(tmp_path: Path) -> None:
    _, family = in_loop(inspected(tmp_path))
    child = replace(family.relatives[0], kinship=Kinship.CHILD, is_inherited=True, is_cut=True)
    shown = rendered(tree(replace(family, relatives=(child, family.relatives[0]))))

    assert "fork  views.nasty  failed  child, inherited: it belongs to the source" in shown
    assert "fork  views.nasty  failed  fork after entry 3" in shown
    assert "… more are not shown" in shown


def test_a_check_up_shows_sizes_that_can_be_read() -> None:
    store = StoreHealth("/here/satay.db", 1, 2048, 5 * 1024**2, 7 * 1024**3, {"failed": 1, "completed": 1_200}, 1, ())
    shown = rendered(health_page(HealthReport({"satay": "1"}, {}, store, (), (), (), ())))

    assert "2.0 KiB, write-ahead log 5.0 MiB" in shown
    assert "7.0 GiB" in shown
    assert "1,200 completed, 1 failed" in shown
    assert "no problems" in shown


def test_a_journal_without_runs_is_shown(tmp_path: Path) -> None:
    store = StoreHealth(str(tmp_path / DATABASE_FILE), 1, 0, 0, 0, {}, 0, ())

    assert "none" in rendered(health_page(HealthReport({}, {}, store, (), (), (), ())))


def test_the_line_of_a_receipt_says_what_becomes_of_each_call_in_flight(tmp_path: Path) -> None:
    async def lines() -> list[str]:
        async with open_app(tmp_path) as app:
            await app.start(side_by_side, run_id="r").result()
            forks = [
                await app.fork("r", run_id="f", before_task=note, before_ordinal=1, keep_siblings=True)
                for _ in range(2)
            ]
            return [receipt_line(fork.receipt) for fork in forks]

    first, again = in_loop(lines())

    assert first.startswith("only the call views.note:1 runs again: entries 1 to ")
    assert "in flight 1 rerun, 2 keep, saved" in first
    assert f"there already, {first}" == again
