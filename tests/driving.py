"""Drives runs for tests: within a bound on hangs, and through a crash after which a body runs again."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import satay
from satay.journal import Claim, Journal
from satay.model import MISSING, EntryType
from satay.testing import AppUnderTest, Faults, open_app
from tests.patience import patience

T = TypeVar("T")

HANG_SECONDS: Final = patience(20.0)
"""After this long a test hangs."""


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, with a bound on a hang."""

    async def bounded() -> T:
        async with asyncio.timeout(HANG_SECONDS):
            return await work

    return asyncio.run(bounded())


def crash_before_the_end() -> Faults:
    """A crash when the body is done and nothing of its end is written yet."""
    return (
        Faults()
        .crash_before(type=EntryType.WORKFLOW_COMPLETED)
        .crash_before(type=EntryType.WORKFLOW_FAILED)
        .crash_before(type=EntryType.WORKFLOW_CANCELLED)
    )


async def drive_twice(
    place: Path, workflow: satay.Workflow[..., T], input: Any = MISSING, *, faults: Faults | None = None, **options: Any
) -> T:
    """Drive a run until its body is done, crash, and drive it again from its journal: the result of that.

    The turn that ends the body is lost in the crash. A body whose last outcome is to come from the journal sleeps at
    its end.
    """
    faults = faults or crash_before_the_end()
    async with open_app(place, faults=faults, **options) as app:
        app.start(workflow, input, run_id="r")
        await faults.crashed
    async with open_app(place, **options) as app:
        result: T = await app.resume("r").result()
        return result


async def claim(journal: Journal, run_id: str, owner: str, now: int) -> Claim | None:
    """Take one run over as it is now. None if that is refused."""
    record = await journal.record(run_id)
    claims = [] if record is None else await journal.claim([record], owner, now)
    return claims[0] if claims else None


async def entries_of(app: AppUnderTest, run_id: str) -> list[satay.RunEvent]:
    """The journal of a run as it is now."""
    last = await (await app._ready()).journal.last(run_id)
    assert last is not None
    entries: list[satay.RunEvent] = []
    async for entry in app.events(run_id):
        entries.append(entry)
        if entry.seq == last.seq:
            break
    return entries


async def types_of(app: AppUnderTest, run_id: str) -> list[str]:
    """The types of a run's entries."""
    return [entry.type for entry in await entries_of(app, run_id)]
