"""Several processes on one file; processes that are stopped, signalled, or end in any way they like."""

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

import pytest

import satay
from satay.app import App
from satay.clock import Chance, SystemClock
from satay.errors import JournalBusyError
from satay.journal import Journal
from satay.model import EntryType, RunStatus
from satay.scheduler import SchedulerSettings
from satay.settings import Settings
from tests.programs.effects import EFFECTS_VARIABLE, read_effects, read_lines
from tests.programs.starting import PATIENCE_SECONDS, Ended, Program, all_of, module, promptly, wait_until
from tests.programs.worker import RESULTS
from tests.programs.workload import countdown, expected, gated, waiting
from tests.test_invariants import History, check_well_formed

pytestmark = pytest.mark.slow

IS_LONG: Final = os.environ.get("SATAY_TORTURE") == "long"

LEASE_SECONDS: Final = 0.5
UNENDING_LEASE_SECONDS: Final = 600.0


def read_history(place: Path) -> History:
    return History.of(place)


# --- several processes on one file ------------------------------------------------------------------------------------


def check_eight_processes(place: Path) -> None:
    """Eight processes start, attach to, and fork the same runs at the same time."""
    count = 24 if IS_LONG else 8
    place.mkdir()
    # None of them dies, so no lease is to run out, however little time a machine has for eight of them.
    options = ["--lease-seconds", UNENDING_LEASE_SECONDS]
    workers = [
        module("worker", place, count, *options, *(["--recover"] if number % 2 else []), effects=place / "effects")
        for number in range(8)
    ]
    with all_of(workers):
        for worker in workers:
            ended = worker.end()
            assert (0, "") == (ended.status, ended.errors), ended
    history = read_history(place)
    handed_over = {(line["run_id"], json.dumps(line["result"])) for line in read_lines(place / RESULTS)}
    began = Counter((effect.call, effect.attempt) for effect in read_effects(place / "effects", ["began"]))
    resumed = [
        run_id
        for run_id, entries in history.entries.items()
        if any(entry.type == EntryType.WORKFLOW_RESUMED for entry in entries)
    ]

    check_well_formed(history)
    assert {(run_id, json.dumps(result)) for run_id, result in expected(count).items()} == handed_over
    assert 8 * len(expected(count)) == len(read_lines(place / RESULTS))
    assert {} == {call: times for call, times in began.items() if times > 1}
    assert [] == resumed


def test_eight_processes_that_start_the_same_runs_share_one_driver_each(tmp_path: Path) -> None:
    check_eight_processes(tmp_path / "place")


@pytest.mark.torture
@pytest.mark.parametrize("number", range(20))
def test_eight_processes_share_one_driver_each_again_and_again(number: int, tmp_path: Path) -> None:
    check_eight_processes(tmp_path / "place")


# --- one process that drives a run with a gate in it ------------------------------------------------------------------

GATED = """
import asyncio, sys
from pathlib import Path
import satay
from tests.programs.workload import gated, guarding, waiting

async def main():
    place = Path(sys.argv[1])
    async with satay.run_app(
        data_dir=place, lease_seconds={lease}, poll_seconds=0.05, grace_seconds={grace}, recover={recover}
    ) as app:
        print("open", flush=True)
        {body}

asyncio.run(main())
"""

RESULT: Final = "[2, 'gate', 3]"

DRIVE: Final = 'print(await app.start(gated, str(place / "gate"), run_id="gated").result(), flush=True)'

RECOVER: Final = """
        while any(run.status in ("running", "waiting") for run in await app.runs()):
            await asyncio.sleep(0.01)
"""


def start_gated(
    place: Path, body: str = DRIVE, *, lease: float = LEASE_SECONDS, grace: float = 5.0, recover: bool = False
) -> Program:
    source = GATED.format(body=body, lease=lease, grace=grace, recover=recover)
    return Program(["-c", source, place], variables={EFFECTS_VARIABLE: place / "effects"})


def wait_for_attempt(place: Path, attempts: int = 1) -> None:
    """Wait until the task that waits for the gate runs."""

    def is_running() -> bool:
        effects = read_effects(place / "effects", ["began"])
        return attempts == sum(effect.task == "workload.wait_for_file" for effect in effects)

    wait_until(is_running)


def open_gate(place: Path) -> None:
    (place / "gate").touch()


def types_of(place: Path, run_id: str = "gated") -> list[str]:
    return [entry.type for entry in read_history(place).entries[run_id]]


def dump(place: Path) -> list[Any]:
    """All runs and entries, as rows."""
    with sqlite3.connect(place / "satay.db") as connection:
        rows = [
            *connection.execute("SELECT * FROM runs ORDER BY key"),
            *connection.execute("SELECT * FROM events ORDER BY run, seq"),
        ]
    connection.close()
    return rows


def test_a_process_that_was_stopped_beyond_its_lease_writes_nothing_and_answers_with_the_others_result(
    tmp_path: Path,
) -> None:
    with start_gated(tmp_path) as stopped:
        wait_for_attempt(tmp_path)
        stopped.send_signal(signal.SIGSTOP)
        with start_gated(tmp_path, RECOVER, recover=True) as other:
            wait_for_attempt(tmp_path, attempts=2)
            open_gate(tmp_path)
            assert 0 == other.end().status
        before = dump(tmp_path)
        stopped.send_signal(signal.SIGCONT)
        ended = stopped.end()

    assert (0, RESULT) == (ended.status, ended.last_line), ended
    assert "" == ended.errors
    assert before == dump(tmp_path)
    assert 1 == types_of(tmp_path).count(EntryType.WORKFLOW_COMPLETED)


def test_a_process_that_was_stopped_while_its_run_waits_answers_with_the_others_result(tmp_path: Path) -> None:
    wait = 'print(await app.start(waiting, 1, run_id="waiting").result(), flush=True)'
    send = (
        'await app.start(waiting, 1, run_id="waiting"); await app.send_event("workload.go", "came", run_id="waiting")'
    )
    with start_gated(tmp_path, wait) as stopped:
        stopped.wait_for("open")
        wait_until(lambda: [RunStatus.WAITING] == statuses_of(tmp_path))
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_SECONDS)
        with start_gated(tmp_path, f"{send}; {wait}") as other:
            assert "['came', 2]" == other.end().last_line
        before = dump(tmp_path)
        stopped.send_signal(signal.SIGCONT)
        ended = stopped.end()

    assert (0, "['came', 2]") == (ended.status, ended.last_line), ended
    assert before == dump(tmp_path)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_message_for_a_run_of_a_process_that_stopped_is_delivered_by_another(is_killed: bool, tmp_path: Path) -> None:
    """The driver lives when the message comes, so nobody else takes its run then, and dies or is overdue later."""
    wait = 'print(await app.start(waiting, 1, run_id="waiting").result(), flush=True)'
    send = """
        await app.send_event("workload.go", "came", run_id="waiting")
        print("sent", flush=True)
        while not (await app.run("waiting")).status.is_terminal:
            await asyncio.sleep(0.01)
        print(await app.handle("waiting").result(), flush=True)
    """
    with start_gated(tmp_path, wait, lease=60.0 if is_killed else 1.5) as stopped:
        wait_until(lambda: (tmp_path / "satay.db").exists() and [RunStatus.WAITING] == statuses_of(tmp_path))
        stopped.send_signal(signal.SIGSTOP)
        with start_gated(tmp_path, send, recover=True) as other:
            other.wait_for("sent")
            if is_killed:
                time.sleep(0.3)
                stopped.kill()
            assert "['came', 2]" == other.end(PATIENCE_SECONDS / 2).last_line

    check_well_formed(read_history(tmp_path))


def test_a_child_whose_process_dies_is_driven_on_by_who_waits_for_its_parent_in_another(tmp_path: Path) -> None:
    start = 'await app.start(guarding, str(place / "gate"), run_id="top").result()'
    hold = 'await app.resume("top/workload.gated:0").result()'
    wait = 'print(await app.resume("top").result(), flush=True)'
    with start_gated(tmp_path, start, lease=UNENDING_LEASE_SECONDS) as first:
        wait_for_attempt(tmp_path)
        first.kill()
    with start_gated(tmp_path, hold, lease=UNENDING_LEASE_SECONDS) as second:
        wait_for_attempt(tmp_path, attempts=2)
        with start_gated(tmp_path, wait, lease=UNENDING_LEASE_SECONDS) as third:
            wait_until(lambda: ("top", RunStatus.WAITING, third.pid) in holders_of(tmp_path))
            second.kill()
            open_gate(tmp_path)
            assert RESULT == third.end().last_line

    check_well_formed(read_history(tmp_path))


def holders_of(place: Path) -> list[tuple[str, str, int]]:
    connection = sqlite3.connect(place / "satay.db")
    try:
        return connection.execute("SELECT run_id, status, pid FROM runs JOIN owners ON owners.id = owner").fetchall()
    finally:
        connection.close()


def statuses_of(place: Path) -> list[str]:
    connection = sqlite3.connect(place / "satay.db")
    try:
        return [status for (status,) in connection.execute("SELECT status FROM runs")]
    except sqlite3.OperationalError:  # There are no tables yet.
        return []
    finally:
        connection.close()


def test_a_process_that_was_stopped_takes_its_run_back_if_nobody_took_it(tmp_path: Path) -> None:
    with start_gated(tmp_path) as stopped:
        wait_for_attempt(tmp_path)
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_SECONDS)
        open_gate(tmp_path)
        stopped.send_signal(signal.SIGCONT)
        ended = stopped.end()

    assert (0, RESULT) == (ended.status, ended.last_line), ended
    assert EntryType.WORKFLOW_RESUMED not in types_of(tmp_path)


def test_a_process_that_is_stopped_and_goes_on_again_and_again_shares_the_runs_with_another(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    chance = random.Random("stop and go")
    workers = [module("worker", place, 16, "--recover", effects=place / "effects") for _ in range(2)]
    with all_of(workers):
        for worker in workers:
            worker.wait_for("ready")
        while any(worker.is_running for worker in workers):
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0, 0.03))
                worker.send_signal(signal.SIGCONT)
                time.sleep(chance.uniform(0, 0.03))
        ends = [worker.end() for worker in workers]

    assert [(0, ""), (0, "")] == [(ended.status, ended.errors) for ended in ends]
    check_well_formed(read_history(place))
    assert expected(16) == {line["run_id"]: line["result"] for line in read_lines(place / RESULTS)}


# --- signals ----------------------------------------------------------------------------------------------------------


def test_sigterm_lets_a_running_attempt_finish_and_ends_the_process_as_the_signal_does(tmp_path: Path) -> None:
    with start_gated(tmp_path) as program:
        wait_for_attempt(tmp_path)
        program.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        assert program.is_running
        open_gate(tmp_path)
        ended = program.end(promptly())
    types = types_of(tmp_path)

    assert (-signal.SIGTERM, "open\n", "") == (ended.status, ended.output, ended.errors), ended
    assert 2 == types.count(EntryType.TASK_COMPLETED)
    with start_gated(tmp_path) as second:
        assert RESULT == second.end().last_line
    assert {1} == set(attempts_by_call(tmp_path).values())
    check_well_formed(read_history(tmp_path))


def attempts_by_call(place: Path) -> Counter[tuple[str, str, int | str]]:
    return Counter(effect.call for effect in read_effects(place / "effects", ["began"]))


def test_sigint_is_a_keyboard_interrupt_and_lets_a_running_attempt_finish(tmp_path: Path) -> None:
    with start_gated(tmp_path) as program:
        wait_for_attempt(tmp_path)
        program.send_signal(signal.SIGINT)
        time.sleep(0.1)
        assert program.is_running
        open_gate(tmp_path)
        ended = program.end(promptly())

    assert -signal.SIGINT == ended.status, ended
    assert ended.errors.endswith("\nKeyboardInterrupt\n"), ended
    assert 2 == types_of(tmp_path).count(EntryType.TASK_COMPLETED)
    with start_gated(tmp_path) as second:
        assert RESULT == second.end().last_line
    assert {1} == set(attempts_by_call(tmp_path).values())
    check_well_formed(read_history(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_attempt_that_lasts_longer_than_the_grace_time_is_stopped_and_made_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    with start_gated(tmp_path, grace=0.1) as program:
        wait_for_attempt(tmp_path)
        program.send_signal(number)
        ended = program.end(promptly())
    types = types_of(tmp_path)

    assert -number == ended.status, ended
    assert types[-1] == EntryType.WORKFLOW_SUSPENDED
    open_gate(tmp_path)
    with start_gated(tmp_path) as second:
        assert RESULT == second.end().last_line
    assert 2 == attempts_by_call(tmp_path)["gated", "workload.wait_for_file", 0]
    check_well_formed(read_history(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number: signal.Signals, tmp_path: Path) -> None:
    with start_gated(tmp_path, grace=60.0) as program:
        wait_for_attempt(tmp_path)
        program.send_signal(number)
        time.sleep(0.1)
        assert program.is_running
        program.send_signal(number)
        ended = program.end(promptly())

    assert ended.status in (-number, 128 + number), ended
    open_gate(tmp_path)
    with start_gated(tmp_path) as second:
        assert RESULT == second.end().last_line
    check_well_formed(read_history(tmp_path))


def test_a_signal_while_the_block_ends_cuts_the_grace_time_short(tmp_path: Path) -> None:
    start = """
        await app.start(gated, str(place / "gate"), run_id="gated")
        while not (place / "effects").exists() or "file" not in (place / "effects").read_text():
            await asyncio.sleep(0.01)
        print("ends", flush=True)
    """
    with start_gated(tmp_path, start, grace=60.0) as program:
        program.wait_for("ends")
        time.sleep(0.1)
        assert program.is_running
        program.send_signal(signal.SIGTERM)
        ended = program.end(promptly())

    assert (-signal.SIGTERM, "") == (ended.status, ended.errors), ended
    assert EntryType.WORKFLOW_SUSPENDED == types_of(tmp_path)[-1]
    assert [] == owners_of(tmp_path)


def test_a_process_that_drains_keeps_its_runs_until_it_is_done(tmp_path: Path) -> None:
    with start_gated(tmp_path, grace=60.0) as draining:
        wait_for_attempt(tmp_path)
        draining.send_signal(signal.SIGTERM)
        with start_gated(tmp_path, RECOVER, recover=True) as other:
            other.wait_for("open")
            time.sleep(3 * LEASE_SECONDS)
            assert draining.is_running
            assert 1 == attempts_by_call(tmp_path)["gated", "workload.wait_for_file", 0]
            open_gate(tmp_path)
            assert -signal.SIGTERM == draining.end(promptly()).status
            assert 0 == other.end().status

    pids = {effect.task: effect.pid for effect in read_effects(tmp_path / "effects")}
    assert draining.pid == pids["workload.wait_for_file"]
    assert other.pid == pids["workload.step"]
    assert {1} == set(attempts_by_call(tmp_path).values())
    check_well_formed(read_history(tmp_path))


def test_a_run_can_be_cancelled_while_its_process_drains(tmp_path: Path) -> None:
    cancel = 'await app.cancel("gated")'
    with start_gated(tmp_path, grace=60.0) as draining:
        wait_for_attempt(tmp_path)
        draining.send_signal(signal.SIGTERM)
        with start_gated(tmp_path, cancel) as other:
            assert 0 == other.end().status
        ended = draining.end(promptly())

    assert -signal.SIGTERM == ended.status, ended
    assert EntryType.WORKFLOW_CANCELLED == types_of(tmp_path)[-1]


POOL: Final = """
import asyncio, multiprocessing, sys
import satay

@satay.task
def spread(number: int) -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-number, number])

@satay.workflow
async def spreading(number: int) -> list[int]:
    return await spread(number)

async def main():
    async with satay.run_app(data_dir=sys.argv[1]) as app:
        for number in range(5):
            print(await app.start(spreading, number).result(), flush=True)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_task_may_end_the_processes_that_it_forked_by_signal(tmp_path: Path) -> None:
    with Program(["-c", POOL, tmp_path], is_strict=False) as program:  # Python 3.12 warns of threads at a fork.
        ended = program.end()

    assert (0, "[4, 4]") == (ended.status, ended.last_line), ended


# --- the end of a script ----------------------------------------------------------------------------------------------

SCRIPT: Final = """
import asyncio, sys, threading, time
from pathlib import Path
import satay

@satay.task
async def add(number: int) -> int:
    return number + 1

@satay.task
def add_in_thread(number: int) -> int:
    return number + 1

@satay.task
async def last_for_ever() -> None:
    await asyncio.get_running_loop().create_future()

@satay.task
def block_for_ever() -> None:
    threading.Event().wait()

@satay.task
async def leave(status: int) -> None:
    sys.exit(status)

@satay.task
def leave_from_thread(status: int) -> None:
    sys.exit(status)

@satay.workflow
async def quick(number: int) -> int:
    return await add_in_thread(await add(number))

@satay.workflow
async def endless() -> None:
    await last_for_ever()

@satay.workflow
async def blocking() -> None:
    await block_for_ever()

@satay.workflow
async def sleepy() -> None:
    await satay.sleep(1_000)

@satay.workflow
async def waiting() -> None:
    await satay.wait_for_event("never")

@satay.workflow
async def leaving(status: int) -> None:
    await leave(status)

@satay.workflow
async def leaving_at_once(status: int) -> None:
    await satay.sleep(0.01)
    sys.exit(status)

@satay.workflow
async def interrupted() -> None:
    await satay.sleep(0.01)
    raise KeyboardInterrupt

@satay.workflow
async def leaving_from_thread(status: int) -> None:
    await leave_from_thread(status)

def app():
    return satay.run_app(grace_seconds=0.1)
"""
"""What each of the scripts below begins with. Their directory is their own, and so is the default journal in it."""

ENDED_WELL: Final = 0
FAILED: Final = 1

SCRIPTS: Final[dict[str, tuple[int, str]]] = {
    "the result of a run in a block": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                assert 3 == await satay.start(quick, 1).result()
        asyncio.run(main())
        """,
    ),
    "the result of a run in the default app": (
        ENDED_WELL,
        """
        async def main():
            assert 3 == await satay.start(quick, 1).result()
        asyncio.run(main())
        """,
    ),
    "satay.run": (ENDED_WELL, "assert 3 == satay.run(quick, 1)"),
    "satay.run twice": (ENDED_WELL, "assert 3 == satay.run(quick, 1)\nassert 4 == satay.run(quick, 2)"),
    "two loops in one process": (
        ENDED_WELL,
        """
        async def main():
            assert 3 == await satay.start(quick, 1).result()
        asyncio.run(main())
        asyncio.run(main())
        """,
    ),
    "a handle that nobody awaits, in a block": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                satay.start(quick, 1)
        asyncio.run(main())
        """,
    ),
    "a handle that nobody awaits, on a run that cannot be": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                satay.resume("no-such-run")
        asyncio.run(main())
        """,
    ),
    "runs of every kind that go on, in a block": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                for workflow in (endless, blocking, sleepy, waiting):
                    await satay.start(workflow)
                await asyncio.sleep(0.05)
        asyncio.run(main())
        """,
    ),
    "a run that sleeps in the default app": (
        ENDED_WELL,
        """
        async def main():
            await satay.start(sleepy)
            await satay.start(waiting)
        asyncio.run(main())
        """,
    ),
    "a task in a thread that never returns": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                await satay.start(blocking)
                await asyncio.sleep(0.05)
        asyncio.run(main())
        """,
    ),
    "an exception before the block": (
        FAILED,
        """
        async def main():
            block = app()
            raise LookupError("mine")
            async with block:
                pass
        asyncio.run(main())
        """,
    ),
    "an exception in the block": (
        FAILED,
        """
        async def main():
            async with app():
                await satay.start(endless)
                await satay.start(sleepy)
                raise LookupError("mine")
        asyncio.run(main())
        """,
    ),
    "an exception after the block": (
        FAILED,
        """
        async def main():
            async with app():
                satay.start(quick, 1)
            raise LookupError("mine")
        asyncio.run(main())
        """,
    ),
    "an exception with the default app": (
        FAILED,
        """
        async def main():
            handle = satay.start(sleepy)
            await handle
            raise LookupError("mine")
        asyncio.run(main())
        """,
    ),
    "an exception while a result is awaited": (
        FAILED,
        """
        async def main():
            async with app():
                async with asyncio.TaskGroup() as group:
                    group.create_task(satay.start(sleepy).result())
                    await asyncio.sleep(0.05)
                    raise LookupError("mine")
        try:
            asyncio.run(main())
        except* LookupError:
            raise LookupError("mine") from None
        """,
    ),
    "sys.exit in the block": (
        7,
        """
        async def main():
            async with app():
                await satay.start(sleepy)
                sys.exit(7)
        asyncio.run(main())
        """,
    ),
    "sys.exit with the default app": (
        7,
        """
        async def main():
            await satay.start(sleepy)
            sys.exit(7)
        asyncio.run(main())
        """,
    ),
    "sys.exit before anything": (7, "async def main():\n    sys.exit(7)\nasyncio.run(main())"),
    "sys.exit in a task, in a block": (
        7,
        """
        async def main():
            async with app():
                await satay.start(leaving, 7).result()
        asyncio.run(main())
        """,
    ),
    "sys.exit in a task, in the default app": (
        7,
        """
        async def main():
            await satay.start(leaving, 7).result()
        asyncio.run(main())
        """,
    ),
    "sys.exit in a task in a thread": (
        7,
        """
        async def main():
            async with app():
                await satay.start(leaving_from_thread, 7).result()
        asyncio.run(main())
        """,
    ),
    "sys.exit in a workflow, in a block": (
        7,
        """
        async def main():
            async with app():
                await satay.start(leaving_at_once, 7).result()
        asyncio.run(main())
        """,
    ),
    "sys.exit in a workflow, in the default app": (
        7,
        """
        async def main():
            await satay.start(leaving_at_once, 7).result()
        asyncio.run(main())
        """,
    ),
    "KeyboardInterrupt in a workflow": (
        -signal.SIGINT,
        """
        async def main():
            async with app():
                await satay.start(interrupted).result()
        asyncio.run(main())
        """,
    ),
    "an app that is opened by hand and never closed": (
        ENDED_WELL,
        """
        async def main():
            opened = app()
            await opened.open()
            await opened.start(sleepy)
        asyncio.run(main())
        """,
    ),
    "an app that is opened by hand and closed twice": (
        ENDED_WELL,
        """
        async def main():
            opened = app()
            await opened.open()
            assert 3 == await opened.start(quick, 1).result()
            await opened.close()
            await opened.close()
        asyncio.run(main())
        """,
    ),
    "an app that is never opened": (ENDED_WELL, "opened = app()"),
    "a loop run by hand": (
        ENDED_WELL,
        """
        async def main():
            assert 3 == await satay.start(quick, 1).result()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        """,
    ),
    "a loop run by hand and only closed": (
        ENDED_WELL,
        """
        async def main():
            assert 3 == await satay.start(quick, 1).result()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        """,
    ),
    "a block in a loop run by hand": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                assert 3 == await satay.start(quick, 1).result()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        """,
    ),
    "a loop run by hand, in two goes": (
        ENDED_WELL,
        """
        async def begin():
            return await satay.start(quick, 1)
        loop = asyncio.new_event_loop()
        handle = loop.run_until_complete(begin())
        assert 3 == loop.run_until_complete(handle.result())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        """,
    ),
    "a block inside the default app": (
        ENDED_WELL,
        """
        async def main():
            assert 3 == await satay.start(quick, 1).result()
            async with app():
                assert 4 == await satay.start(quick, 2).result()
            assert 5 == await satay.start(quick, 3).result()
        asyncio.run(main())
        """,
    ),
    "two blocks side by side": (
        ENDED_WELL,
        """
        async def one(number):
            async with app():
                assert number + 2 == await satay.start(quick, number).result()
        async def main():
            await asyncio.gather(*map(one, range(5)))
        asyncio.run(main())
        """,
    ),
    "a loop in another thread": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                assert 3 == await satay.start(quick, 1).result()
        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        thread.join()
        """,
    ),
    "a daemon thread that still runs": (
        ENDED_WELL,
        """
        ready = threading.Event()
        async def main():
            async with app():
                await satay.start(sleepy)
                ready.set()
                await asyncio.sleep(1_000)
        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        ready.wait()
        """,
    ),
    "an iteration of events that is left open": (
        ENDED_WELL,
        """
        async def main():
            async with app() as opened:
                handle = await satay.start(sleepy)
                async for event in opened.events(handle.run_id):
                    break
        asyncio.run(main())
        """,
    ),
    "a result that is awaited when the block ends": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                waiter = asyncio.create_task(satay.start(sleepy).result())
                await asyncio.sleep(0.05)
            try:
                await waiter
            except satay.SatayError as error:
                assert "was closed" in str(error), error
            else:
                raise AssertionError("it has no result")
        asyncio.run(main())
        """,
    ),
    "a result that nobody awaits to its end": (
        ENDED_WELL,
        """
        async def main():
            async with app():
                waiter = asyncio.create_task(satay.start(sleepy).result())
                await asyncio.sleep(0.05)
                waiter.cancel()
        asyncio.run(main())
        """,
    ),
    "KeyboardInterrupt raised in the block": (
        -signal.SIGINT,
        """
        async def main():
            async with app():
                await satay.start(endless)
                raise KeyboardInterrupt
        asyncio.run(main())
        """,
    ),
    "os._exit in the block": (
        9,
        """
        import os
        async def main():
            async with app():
                await satay.start(endless)
                os._exit(9)
        asyncio.run(main())
        """,
    ),
}


def run_script(directory: Path, source: str) -> Ended:
    directory.mkdir(exist_ok=True)
    script = directory / "script.py"
    script.write_text(SCRIPT + textwrap.dedent(source), encoding="utf-8")
    with Program([script], directory=directory) as program:
        return program.end()


def check_errors(status: int, ended: Ended) -> None:
    """Nothing is written as an error but the traceback of the script's own exception."""
    if status == FAILED:
        assert ended.errors.startswith("Traceback (most recent call last):\n"), ended
        assert ended.errors.endswith("\nLookupError: mine\n"), ended
        assert 1 == ended.errors.count("Traceback"), ended
    elif status == -signal.SIGINT:
        assert ended.errors.endswith("\nKeyboardInterrupt\n"), ended
        assert "never" not in ended.errors, ended
        assert "destroyed" not in ended.errors, ended
    else:
        assert "" == ended.errors, ended


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_promptly_and_silently_however_it_ends(name: str, tmp_path: Path) -> None:
    status, source = SCRIPTS[name]
    ended = run_script(tmp_path / "place", source)

    assert status == ended.status, ended
    check_errors(status, ended)
    assert ended.seconds < promptly(), ended


def test_a_script_that_ends_before_its_run_is_on_disk_says_so_and_ends_promptly(tmp_path: Path) -> None:
    source = """
    async def main():
        satay.start(quick, 1)
    asyncio.run(main())
    """
    ended = run_script(tmp_path / "place", source)

    assert ENDED_WELL == ended.status, ended
    assert ["run.not_created"] == re.findall(r"event='([\w.]+)'", ended.errors), ended
    assert 1 == ended.errors.count("\n"), ended
    assert ended.seconds < promptly(), ended


def test_a_run_whose_workflow_ended_the_process_goes_on_when_the_code_is_corrected(tmp_path: Path) -> None:
    leave = """
    @satay.workflow(name="faulty")
    async def faulty() -> int:
        await satay.sleep(0.01)
        {line}
    async def main():
        async with satay.run_app(recover=True, poll_seconds=0.01) as opened:
            if {is_first}:
                await opened.start(faulty, run_id="faulty").result()
            while not (await opened.run("faulty")).status.is_terminal:
                await asyncio.sleep(0.01)
            print(await opened.handle("faulty").result())
    asyncio.run(main())
    """
    ended = run_script(tmp_path / "place", leave.format(line="sys.exit(7)", is_first=True))
    corrected = run_script(tmp_path / "place", leave.format(line="return 3", is_first=False))

    assert (7, "") == (ended.status, ended.errors), ended
    assert (0, "3") == (corrected.status, corrected.last_line), corrected


# --- opening, closing and recovering in any interleaving --------------------------------------------------------------


def test_what_was_asked_for_before_a_block_ends_is_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EFFECTS_VARIABLE, str(tmp_path / "effects"))

    async def main() -> None:
        async with satay.run_app(data_dir=tmp_path) as app:
            handles = [app.start(waiting, number, run_id=f"run-{number}") for number in range(100)]
            assert 100 == len(handles)
        async with satay.run_app(data_dir=tmp_path) as app:
            assert 100 == len(await app.runs())

    asyncio.run(main())


def test_an_app_whose_closing_is_cancelled_gives_its_runs_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EFFECTS_VARIABLE, str(tmp_path / "effects"))

    async def block() -> None:
        async with satay.run_app(data_dir=tmp_path, grace_seconds=60) as app:
            await app.start(gated, str(tmp_path / "never"), run_id="gated")
            await asyncio.sleep(0.1)

    async def main() -> None:
        task = asyncio.create_task(block())
        await asyncio.sleep(0.3)
        assert not task.done()
        task.cancel()
        async with asyncio.timeout(promptly()):
            await asyncio.wait({task})

        assert task.cancelled()
        assert {asyncio.current_task()} == asyncio.all_tasks()

    asyncio.run(main())

    assert [] == owners_of(tmp_path)
    assert EntryType.WORKFLOW_SUSPENDED == types_of(tmp_path)[-1]


def owners_of(place: Path) -> list[Any]:
    if not (place / "satay.db").exists():
        return []
    connection = sqlite3.connect(place / "satay.db")
    try:
        return connection.execute("SELECT * FROM owners").fetchall()
    except sqlite3.OperationalError:  # It was cancelled before there were tables.
        return []
    finally:
        connection.close()


@pytest.mark.parametrize("tick_seconds", [0, 0.0005])
def test_an_app_that_is_cancelled_after_any_number_of_ticks_leaves_nothing_behind(
    tick_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EFFECTS_VARIABLE, str(tmp_path / "effects"))

    async def live(place: Path) -> None:
        async with satay.run_app(data_dir=place, recover=True, grace_seconds=0) as app:
            await app.start(gated, str(tmp_path / "never"), run_id="gated")
            await asyncio.get_running_loop().create_future()

    async def cancel_after(ticks: int, place: Path) -> None:
        task = asyncio.create_task(live(place))
        for _ in range(ticks):
            await asyncio.sleep(tick_seconds)
        task.cancel()
        async with asyncio.timeout(promptly()):
            await asyncio.wait({task})

        assert task.cancelled(), ticks
        assert {asyncio.current_task()} == asyncio.all_tasks(), ticks
        wait_until(lambda: threads == set(threading.enumerate()), promptly())
        assert [] == owners_of(place), ticks

    async def main() -> None:
        for ticks in range(30):
            await cancel_after(ticks, tmp_path / "shared")
            await cancel_after(ticks, tmp_path / f"own-{ticks}")

    threads = set(threading.enumerate())
    asyncio.run(main())


def test_a_run_that_is_started_while_the_app_recovers_is_driven_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EFFECTS_VARIABLE, str(tmp_path / "effects"))

    async def main() -> None:
        for number in range(1000 if IS_LONG else 50):
            async with satay.run_app(data_dir=tmp_path, recover=True, poll_seconds=0.001) as app:
                result = await app.start(countdown, 3, run_id=f"run-{number}").result()

                assert "lift-off" == result

    asyncio.run(main())

    assert {1} == set(attempts_by_call(tmp_path).values())


def live_runs(place: Path) -> list[str]:
    connection = sqlite3.connect(place / "satay.db")
    try:
        query = "SELECT run_id FROM runs WHERE status NOT IN ('completed', 'failed', 'cancelled')"
        return [run_id for (run_id,) in connection.execute(query)]
    except sqlite3.OperationalError:  # There are no tables yet.
        return []
    finally:
        connection.close()


def check_a_recoverer_ends_what_killed_processes_leave(place: Path, chance: random.Random, kills: int) -> None:
    place.mkdir()
    with module("worker", place, 16, "--keep-recovering", effects=place / "effects") as recoverer:
        recoverer.wait_for("open")
        for _ in range(kills):
            with module("worker", place, 16, effects=place / "effects") as killed:
                killed.wait_for("ready")
                time.sleep(chance.uniform(0, 0.3))
                killed.kill()
            wait_until(lambda: not live_runs(place), seconds=2 + promptly())  # The lease, and then some.
        assert recoverer.is_running
    check_well_formed(read_history(place))


def test_what_killed_processes_leave_is_ended_by_one_that_runs_all_the_time(tmp_path: Path) -> None:
    check_a_recoverer_ends_what_killed_processes_leave(tmp_path / "place", random.Random("recover"), kills=3)


@pytest.mark.torture
@pytest.mark.parametrize("number", range(20))
def test_what_killed_processes_leave_is_always_ended_by_one_that_runs_all_the_time(number: int, tmp_path: Path) -> None:
    check_a_recoverer_ends_what_killed_processes_leave(tmp_path / "place", random.Random(number), kills=8)


def test_a_database_that_is_locked_while_a_process_recovers_loses_nothing(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with module("worker", place, 16, effects=place / "effects") as killed:
        killed.wait_for("ready")
        wait_until(lambda: bool(read_effects(place / "effects")))
        killed.kill()
    lock = sqlite3.connect(place / "satay.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    with module("worker", place, 16, "--only-recover", effects=place / "effects") as recoverer:
        recoverer.wait_for("ready")
        time.sleep(2.0)
        assert recoverer.is_running
        lock.execute("ROLLBACK")
        lock.close()
        ended = recoverer.end()

    assert (0, "") == (ended.status, ended.errors), ended
    check_well_formed(read_history(place))


class UnreliableJournal:
    """A journal whose database is out of reach at times: so many calls of each kind fail, and then none."""

    def __init__(self, journal: Journal, failures: int) -> None:
        self._journal = journal
        self._left = dict.fromkeys(("abandoned", "owners", "record", "claim", "read", "due", "deliverable"), failures)
        self.is_reliable = True

    def __getattr__(self, name: str) -> Any:
        if not self.is_reliable and self._left.get(name, 0) > 0:
            self._left[name] -= 1
            return self._fail
        return getattr(self._journal, name)

    async def _fail(self, *_: Any, **__: Any) -> None:
        raise JournalBusyError("the journal stayed locked")


def test_a_database_that_cannot_be_read_for_a_while_delays_recovery_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EFFECTS_VARIABLE, str(tmp_path / "effects"))
    unreliable: list[UnreliableJournal] = []

    def wrap(journal: Journal) -> Journal:
        unreliable.append(UnreliableJournal(journal, failures=10))
        return cast("Journal", unreliable[0])  # It has every method, by delegation.

    async def main() -> None:
        async with satay.run_app(data_dir=tmp_path, grace_seconds=0) as app:
            for number in range(20):
                await app.start(gated, str(tmp_path / "gate"), run_id=f"run-{number}")
            await asyncio.sleep(0.1)
        (tmp_path / "gate").touch()
        settings = Settings(data_dir=tmp_path, database_url=None)
        scheduling = SchedulerSettings(recover=True, poll_seconds=0.01)
        async with App(settings, scheduling, SystemClock(), Chance(), wrap) as app, asyncio.timeout(20):
            unreliable[0].is_reliable = False
            while live_runs(tmp_path):  # noqa: ASYNC110  # Nothing tells when another app's runs have ended.
                await asyncio.sleep(0.01)

    asyncio.run(main())

    check_well_formed(read_history(tmp_path))
