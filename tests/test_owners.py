"""Whether the process that drove a run is known to be dead: `satay.processes`."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from satay.journal import Owner
from satay.processes import enter, is_dead, leave, this_process
from tests.driving import in_loop

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")


def owner(**changes: Any) -> Owner:
    return this_process("o", 99)._replace(**changes)


@contextmanager
def other_process() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that lives until its input is closed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        yield process


def started(pid: int) -> str:
    """When a process began, in clock ticks since the machine did: the 22nd field of its line."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]


def test_the_row_of_a_process_tells_host_and_pid_and_when_it_expires() -> None:
    row = this_process("o", 99)

    assert ("o", os.getpid(), 99) == (row.id, row.pid, row.expires_at)
    assert row.host
    assert row == this_process("o", 99)


def test_an_owner_of_this_process_lives_while_it_drives_and_is_dead_when_it_left() -> None:
    async def run() -> list[bool]:
        enter("o")
        lives = is_dead(owner())
        leave("o")
        leave("o")
        return [lives, is_dead(owner())]

    assert [False, True] == in_loop(run())


def test_an_owner_of_this_process_is_dead_when_its_event_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()

    async def run() -> bool:
        enter("o")
        return is_dead(owner())

    lives = loop.run_until_complete(run())
    loop.close()

    assert not lives
    assert is_dead(owner())
    leave("o")


def test_an_owner_that_never_was_in_this_process_is_dead() -> None:
    assert is_dead(owner(id="nobody"))


def test_two_owners_of_this_process_live_and_die_apart() -> None:
    async def run() -> list[bool]:
        enter("a")
        enter("b")
        leave("a")
        try:
            return [is_dead(owner(id="a")), is_dead(owner(id="b"))]
        finally:
            leave("b")

    assert [True, False] == in_loop(run())


def test_a_process_of_another_machine_may_always_live() -> None:
    assert not is_dead(owner(host="elsewhere", id="nobody"))
    assert not is_dead(owner(host="elsewhere", pid=2**22 + 7))


def test_a_pid_that_nobody_has_is_of_a_dead_process() -> None:
    with other_process() as process:
        pid = process.pid

    assert is_dead(owner(pid=pid))


@needs_proc
def test_a_process_that_lives_is_told_from_an_earlier_one_with_its_pid() -> None:
    with other_process() as process:
        started_at = started(process.pid)

        assert not is_dead(owner(pid=process.pid, started_at=started_at))
        assert is_dead(owner(pid=process.pid, started_at=f"{int(started_at) - 1}"))


@needs_proc
def test_a_process_that_has_ended_and_was_not_waited_for_is_dead() -> None:
    with other_process() as process:
        started_at = started(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert is_dead(owner(pid=process.pid, started_at=started_at))
