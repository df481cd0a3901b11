"""Sessions of real processes, which are killed, stopped and forked by others while they go on."""

import json
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.model import RunStatus
from tests.programs.agents import LEASE_SECONDS, STEPS, state_after
from tests.programs.effects import read_lines
from tests.programs.starting import Program, all_of, module, wait_until
from tests.test_invariants import History

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


KILLS = 3
"""How many processes die on the way to the end of a session."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def start(place: Path, what: str, *arguments: object) -> Program:
    return module("agents", place, what, *arguments, effects=place / "effects")


def finish(place: Path, what: str, *arguments: object) -> str:
    """Run a program to its end, and return what it said."""
    with start(place, what, *arguments) as program:
        ended = program.end()
        assert 0 == ended.status, ended
    return ended.output


def steps_of(place: Path, session_id: str) -> list[int]:
    entries = History.of(place).entries[session_id]
    return [json.loads(entry.payload)["step"] for entry in entries if entry.type == "StepRecorded"]


def made(place: Path, session_id: str) -> list[int]:
    """The steps that processes made, recorded or not, in order."""
    return [line["step"] for line in read_lines(place / "effects") if line["session"] == session_id]


def has_completed(place: Path, session_id: str) -> bool:
    record = History.of(place).records.get(session_id)
    return record is not None and record.status is RunStatus.COMPLETED


def pass_time(seconds: float) -> None:
    """Let processes go on for so long."""
    time.sleep(seconds)


def kill_after(program: Program, seconds: float) -> None:
    time.sleep(seconds)
    program.kill()


async def states_of(place: Path, session_id: str) -> list[Any]:
    async with satay.run_app(data_dir=place), satay.Session.resume(session_id) as session:
        return [await session.state_at(number) for number in range(1, session.last_step + 1)]


async def is_intact(place: Path, *session_ids: str) -> bool:
    async with satay.run_app(data_dir=place):
        return all([(await satay.verify(session_id)).is_intact for session_id in session_ids])


@pytest.mark.parametrize("seed", range(3))
async def test_a_session_whose_processes_are_killed_comes_to_its_end_and_makes_nothing_recorded_twice(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    for _ in range(KILLS):
        with start(tmp_path, "work", "s") as program:
            program.wait_for("ready")
            word = chance.choice(["open", *(f"made {number}" for number in range(1, STEPS))])
            wait_until(partial(is_past, program, word))
            kill_after(program, chance.uniform(0, 0.004))
    if steps_of(tmp_path, "s") != list(range(1, STEPS + 1)):
        finish(tmp_path, "work", "s")

    assert list(range(1, STEPS + 1)) == steps_of(tmp_path, "s")
    assert len(made(tmp_path, "s")) <= STEPS + KILLS
    assert [state_after(number) for number in range(1, STEPS + 1)] == await states_of(tmp_path, "s")
    assert await is_intact(tmp_path, "s")


def is_past(program: Program, word: str) -> bool:
    """Whether a process has said a word, or has ended: one that goes on with a session begins behind some words."""
    try:
        program.wait_for(word, seconds=0.05)
    except AssertionError:
        return not program.is_running
    return True


@pytest.mark.parametrize("status", ["completed", "crashed", "killed", "stepping"])
async def test_a_session_is_forked_by_another_process_whatever_became_of_it(status: str, tmp_path: Path) -> None:
    role = {"completed": "work", "crashed": "crash"}.get(status, "hold")
    with start(tmp_path, role, "s", *([] if role == "work" else [7])) as program:
        if status in ("completed", "crashed"):
            program.end()
        else:
            program.wait_for("holding")
        if status == "killed":
            program.kill()
        before = History.of(tmp_path).digest(["s"])
        finish(tmp_path, "fork-and-work", "s", 5, "f")
        after = History.of(tmp_path).digest(["s"])
        is_alive = program.is_running

    assert (status == "stepping") == is_alive
    assert before == after
    assert list(range(6, STEPS + 1)) == made(tmp_path, "f")
    assert list(range(1, STEPS + 1)) == steps_of(tmp_path, "f")
    assert [state_after(number) for number in range(1, STEPS + 1)] == await states_of(tmp_path, "f")
    assert await is_intact(tmp_path, "s", "f")


async def test_a_fork_whose_process_is_killed_before_its_first_step_goes_on_after_the_boundary(tmp_path: Path) -> None:
    finish(tmp_path, "work", "s")
    with start(tmp_path, "fork", "s", 5, "f", "x") as program:
        program.end()
    with start(tmp_path, "hold", "f", 5) as program:
        program.wait_for("holding")
        program.kill()
    finish(tmp_path, "work", "f")

    assert list(range(6, STEPS + 1)) == made(tmp_path, "f")
    async with satay.run_app(data_dir=tmp_path), satay.Session.resume("f") as fork:
        assert ("x", state_after(5), STEPS) == (fork.intervention, fork.inherited_state, fork.last_step)


async def test_processes_that_ask_for_the_same_fork_at_once_get_one(tmp_path: Path) -> None:
    finish(tmp_path, "work", "s")
    with all_of([start(tmp_path, "fork", "s", 5, "f", "same") for _ in range(3)]) as programs:
        told = [program.end().last_line.split() for program in programs]

    assert 1 == len({words[1] for words in told})
    assert [1, 2] == [[words[2] for words in told].count(word) for word in ("made", "replayed")]
    assert await is_intact(tmp_path, "f")


async def test_of_processes_that_ask_for_different_forks_under_one_name_one_gets_it(tmp_path: Path) -> None:
    finish(tmp_path, "work", "s")
    with all_of([start(tmp_path, "fork", "s", 5, "f", f"asked-{each}") for each in "abc"]) as programs:
        told = [program.end().last_line.split()[0] for program in programs]

    assert [1, 2] == [told.count(word) for word in ("fork", "conflict")]


async def test_a_process_that_is_killed_while_it_forks_leaves_a_fork_that_is_whole_or_none(tmp_path: Path) -> None:
    finish(tmp_path, "work", "s")
    for delay in (0.01, 0.03, 0.06):
        with start(tmp_path, "fork-and-work", "s", 5, f"f{delay}") as program:
            program.wait_for("ready")
            kill_after(program, delay)
        if not has_completed(tmp_path, f"f{delay}"):
            finish(tmp_path, "fork-and-work", "s", 5, f"f{delay}")

        assert list(range(1, STEPS + 1)) == steps_of(tmp_path, f"f{delay}")
        assert await is_intact(tmp_path, "s", f"f{delay}")


async def test_a_second_live_process_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, "hold", "s", 2) as owner:
        owner.wait_for("holding")
        with start(tmp_path, "work", "s") as other:
            refused = other.end()
        pass_time(3 * LEASE_SECONDS)
        with start(tmp_path, "work", "s") as other:
            refused_later = other.end()
        is_alive = owner.is_running

    assert is_alive
    assert "LeaseHeldError" in refused.errors
    assert "LeaseHeldError" in refused_later.errors
    assert [1, 2] == steps_of(tmp_path, "s")


async def test_a_process_that_stood_still_for_longer_than_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    with start(tmp_path, "step-for-ever", "s") as stopped:
        stopped.wait_for("made 3")
        stopped.send_signal(signal.SIGSTOP)
        try:
            told = finish(tmp_path, "take", "s").splitlines()[-1]
            before = History.of(tmp_path).digest(["s"])
        finally:
            stopped.send_signal(signal.SIGCONT)
        ended = stopped.end()

    assert before == History.of(tmp_path).digest(["s"])
    assert f"took at {steps_of(tmp_path, 's')[-1]}" == told
    assert ["lost in the block", "lost at the exit"] == ended.output.splitlines()[-2:]
    assert await is_intact(tmp_path, "s")


async def test_a_session_is_followed_while_other_processes_step_crash_and_go_on(tmp_path: Path) -> None:
    with start(tmp_path, "hold", "s", 2) as owner:
        owner.wait_for("holding")
        with Program(
            ["-m", "tests.programs.agents", tmp_path, "follow", "s"], variables={"SATAY_PLACE": tmp_path}
        ) as follower:
            follower.wait_for("4 StateRecorded")
            owner.kill()
            with start(tmp_path, "crash", "s", 4) as crashing:
                crashing.end()
            follower.wait_for(f"{len(History.of(tmp_path).entries['s'])} SessionCrashed")
            finish(tmp_path, "work", "s")
            followed = follower.end()

    entries = History.of(tmp_path).entries["s"]
    assert ["ready", *(f"{entry.seq} {entry.type}" for entry in entries)] == followed.output.splitlines()


async def test_siblings_are_forked_and_worked_on_by_processes_at_once(tmp_path: Path) -> None:
    with start(tmp_path, "hold", "s", 5) as owner:
        owner.wait_for("holding")
        with all_of([start(tmp_path, "fork-and-work", "s", 3, f"f{each}") for each in range(4)]) as programs:
            ended = [program.end() for program in programs]
        async with satay.run_app(data_dir=tmp_path) as app:
            statuses = {run.run_id: run.status for run in await app.runs()}

    assert [0, 0, 0, 0] == [one.status for one in ended], ended
    assert {f"f{each}": RunStatus.COMPLETED for each in range(4)} | {"s": RunStatus.RUNNING} == statuses
    assert [list(range(4, STEPS + 1))] * 4 == [made(tmp_path, f"f{each}") for each in range(4)]
    assert await is_intact(tmp_path, "s", "f0", "f1", "f2", "f3")
