"""Which process drives runs, and whether one that did is known to be dead."""

import asyncio
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from satay.journal import Owner
from satay.model import RunRecord

_ENDED = frozenset("ZX")
"""The states, in /proc, of a process that has ended and was not waited for."""


_here: "WeakValueDictionary[str, asyncio.AbstractEventLoop]" = WeakValueDictionary()
"""The event loops of this process on which owners drive runs, by owner id."""


def enter(owner_id: str) -> None:
    """Note that an owner drives runs on the running event loop."""
    _here[owner_id] = asyncio.get_running_loop()


def leave(owner_id: str) -> None:
    """Note that an owner of this process drives no more."""
    _here.pop(owner_id, None)


def this_process(owner_id: str, expires_at: int) -> Owner:
    """The owner row of the process that asks."""
    pid = os.getpid()
    return Owner(owner_id, socket.gethostname(), pid, _started_at(pid), expires_at)


def is_dead(owner: Owner) -> bool:
    """Whether the owner's process has certainly ended. A process on another machine may always live."""
    if owner.host != socket.gethostname():
        return False
    if owner.pid == os.getpid():
        loop = _here.get(owner.id)
        return loop is None or loop.is_closed()
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return owner.started_at != _started_at(owner.pid)


def _started_at(pid: int) -> str:
    """When a process began, in the kernel's own words; empty where it has ended or the system does not tell.

    A later process with the same pid has another start time, so the pair names a process for good.
    """
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = stat.rpartition(")")[2].split()
        return "" if state in _ENDED else rest[18]
    return ""


def is_alive(owner: Owner, now: int) -> bool:
    """Whether an owner drives runs, as far as is known here. `now` is in microseconds."""
    return owner.expires_at >= now and not is_dead(owner)


def left_behind(runs: Iterable[RunRecord], owners: Iterable[Owner], now: int) -> tuple[str, ...]:
    """The ids of those runs of which no owner is alive."""
    alive = {owner.id for owner in owners if is_alive(owner, now)}
    return tuple(run.run_id for run in runs if run.owner not in alive)
