"""Calls of tools in sessions of real processes, which are killed on the way."""

import signal
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from tests.driving import in_loop
from tests.programs.dispatching import LEASE_SECONDS
from tests.programs.effects import read_lines
from tests.programs.starting import Program, module

pytestmark = pytest.mark.slow

EFFECTS: Final = ("undeclared", "pure", "idempotent", "external")

STATUS: Final[dict[str, Any]] = {"before": "reclaimed 2", "during": "reclaimed 2", "after": "replayed 1"}


def dispatching(tmp_path: Path, *, role: str = "open", point: str = "nowhere", effect: str = "undeclared") -> Program:
    return module("dispatching", tmp_path / "journal", role, point, effect, effects=tmp_path / "outbox")


def kill_at(point: str, tmp_path: Path, effect: str) -> None:
    with dispatching(tmp_path, point=point, effect=effect) as program:
        program.wait_for(point)
        program.kill()


def sent(tmp_path: Path) -> int:
    return len(read_lines(tmp_path / "outbox"))


def check_intact(tmp_path: Path) -> None:
    async def check() -> None:
        async with satay.run_app(data_dir=tmp_path / "journal"):
            assert (await satay.verify("letters")).is_intact

    in_loop(check())


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("point", ["before", "during", "after"])
def test_a_call_is_found_again_in_another_process_wherever_the_first_was_killed(
    point: str, effect: str, tmp_path: Path
) -> None:
    kill_at(point, tmp_path, effect)
    at_the_kill = sent(tmp_path)
    with dispatching(tmp_path, effect=effect) as program:
        ended = program.end()

    assert (0 if point == "before" else 1) == at_the_kill
    assert 0 == ended.status
    if effect == "external" and point != "after":
        assert ("undecided", at_the_kill) == (ended.last_line, sent(tmp_path))
    else:
        assert f"{STATUS[point]} sent to ada" == ended.last_line
        assert at_the_kill + (point != "after") == sent(tmp_path)
    check_intact(tmp_path)


@pytest.mark.parametrize(
    ("decision", "line", "letters"),
    [("rerun", "reclaimed 2 sent to ada", 2), ("value", "reclaimed 1 found in the outbox", 1)],
)
def test_an_external_call_that_was_lost_is_decided_from_a_third_process(
    decision: str, line: str, letters: int, tmp_path: Path
) -> None:
    async def decide() -> None:
        async with satay.run_app(data_dir=tmp_path / "journal"):
            if decision == "rerun":
                await satay.decide("letters", "rerun")
            else:
                await satay.decide("letters", value="found in the outbox")

    kill_at("during", tmp_path, "external")
    with dispatching(tmp_path, point="after", effect="external") as asking:
        asking.wait_for("undecided")
        asking.kill()
    in_loop(decide())
    with dispatching(tmp_path, effect="external") as program:
        ended = program.end()

    assert (line, letters) == (ended.last_line, sent(tmp_path))
    check_intact(tmp_path)


def test_what_a_tool_brings_in_a_process_that_has_lost_the_session_is_not_recorded(tmp_path: Path) -> None:
    with dispatching(tmp_path, point="slow", effect="idempotent") as stopped:
        stopped.wait_for("sending")
        stopped.send_signal(signal.SIGSTOP)
        with dispatching(tmp_path, effect="idempotent") as other:
            ended = other.end()
        stopped.send_signal(signal.SIGCONT)
        refused = stopped.end()

    assert ("reclaimed 2 sent to ada", 2) == (ended.last_line, sent(tmp_path))
    assert (1, "sending") == (refused.status, refused.last_line)
    assert "SessionLostError" in refused.errors
    check_intact(tmp_path)


def test_processes_that_make_the_same_call_at_once_make_it_once(tmp_path: Path) -> None:
    with dispatching(tmp_path, role="lend") as owner:
        owner.wait_for("lent")
        with dispatching(tmp_path, role="join", point="held") as one:
            one.wait_for("sending")
            with dispatching(tmp_path, role="join") as other:
                other.wait_for("joined")
                (tmp_path / "journal" / "go on").touch()
                (tmp_path / "journal" / "finish").touch()
                lines = [program.end().last_line for program in (one, owner, other)]

    assert 3 * ["1 sent to ada"] == [line.partition(" ")[2] for line in lines]
    assert "claimed 1 sent to ada" == lines[0]
    assert {line.partition(" ")[0] for line in lines[1:]} <= {"in_progress", "replayed"}
    assert 1 == sent(tmp_path)
    check_intact(tmp_path)


@pytest.mark.parametrize("point", ["before", "during"])
def test_a_call_of_a_participant_that_is_killed_is_made_by_another_once_its_claim_ran_out(
    point: str, tmp_path: Path
) -> None:
    with dispatching(tmp_path, role="lend") as owner:
        owner.wait_for("lent")
        with dispatching(tmp_path, role="join", point=point) as participant:
            participant.wait_for(point)
            participant.kill()
        (tmp_path / "journal" / "go on").touch()
        ended = owner.end()

    assert "reclaimed 2 sent to ada" == ended.last_line
    assert (1 if point == "before" else 2) == sent(tmp_path)
    assert ended.seconds < 10 * LEASE_SECONDS
    check_intact(tmp_path)


def test_an_external_call_of_a_participant_that_is_killed_waits_for_a_decision(tmp_path: Path) -> None:
    with dispatching(tmp_path, role="lend", effect="external") as owner:
        owner.wait_for("lent")
        with dispatching(tmp_path, role="join", point="during", effect="external") as participant:
            participant.wait_for("during")
            participant.kill()
        (tmp_path / "journal" / "go on").touch()
        ended = owner.end()

    assert ("undecided", 1) == (ended.last_line, sent(tmp_path))
    check_intact(tmp_path)


def test_a_participant_goes_on_while_the_owner_is_killed_and_is_refused_once_another_has_the_session(
    tmp_path: Path,
) -> None:
    with dispatching(tmp_path, role="lend") as owner:
        owner.wait_for("lent")
        with dispatching(tmp_path, role="join", point="held") as participant:
            participant.wait_for("sending")
            owner.kill()
            with dispatching(tmp_path) as reopening:
                ended = reopening.end()
            (tmp_path / "journal" / "finish").touch()
            refused = participant.end()

    assert "reclaimed 2 sent to ada" == ended.last_line
    assert 2 == sent(tmp_path)
    assert (1, "sending") == (refused.status, refused.last_line)
    assert "SessionLostError" in refused.errors
    check_intact(tmp_path)
