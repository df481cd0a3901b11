"""Who waits for a run to end or for its next entry."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from satay.archive import Ending
from satay.errors import AppClosedError
from satay.model import RunStatus
from satay.waiters import Waiters
from tests.driving import HANG_SECONDS, in_loop

DONE = Ending(RunStatus.COMPLETED, '"done"', None)


def with_waiters(test: Callable[[Waiters], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Waiters())

    in_loop(run())


async def waiting(waiters: Waiters, run_id: str = "r", seconds: float = HANG_SECONDS) -> "asyncio.Task[Ending | None]":
    """Someone who has begun to wait."""
    task = asyncio.ensure_future(waiters.wait(run_id, seconds))
    await asyncio.sleep(0)
    return task


def test_everyone_who_waits_for_a_run_is_told_how_it_ended() -> None:
    async def test(waiters: Waiters) -> None:
        one, two, other = await waiting(waiters), await waiting(waiters), await waiting(waiters, "other")
        waiters.tell("r", DONE)

        assert DONE == await one
        assert DONE == await two
        assert not other.done()
        other.cancel()

    with_waiters(test)


def test_who_is_told_of_no_ending_has_none() -> None:
    async def test(waiters: Waiters) -> None:
        task = await waiting(waiters)
        waiters.tell("r")

        assert await task is None

    with_waiters(test)


def test_who_waits_no_longer_than_a_time_has_no_ending_then() -> None:
    async def test(waiters: Waiters) -> None:
        assert await waiters.wait("r", 0.0) is None

    with_waiters(test)


def test_who_gives_up_does_not_disturb_the_others() -> None:
    async def test(waiters: Waiters) -> None:
        one, two = await waiting(waiters), await waiting(waiters)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        waiters.tell("r", DONE)

        assert DONE == await two

    with_waiters(test)


def test_an_ending_is_for_those_who_wait_and_not_for_those_who_come_later() -> None:
    async def test(waiters: Waiters) -> None:
        waiters.tell("r", DONE)

        assert await waiters.wait("r", 0.0) is None

    with_waiters(test)


def test_who_waits_when_the_app_closes_is_told_to_resume_the_run() -> None:
    async def test(waiters: Waiters) -> None:
        one, two = await waiting(waiters), await waiting(waiters, "other")
        waiters.close()

        with pytest.raises(AppClosedError, match="the result of run 'r' was awaited; resume the run"):
            await one
        with pytest.raises(AppClosedError, match="'other'"):
            await two

    with_waiters(test)


def test_the_next_entry_is_announced_to_everyone_and_the_one_after_it_anew() -> None:
    async def test(waiters: Waiters) -> None:
        one, two, other = waiters.next_entry("r"), waiters.next_entry("r"), waiters.next_entry("other")
        waiters.tell_of_entry("r")
        later = waiters.next_entry("r")

        assert [True, True, False, False] == [news.done() for news in (one, two, other, later)]
        waiters.tell_of_entry("r")
        assert later.done()

    with_waiters(test)


def test_an_entry_that_nobody_waits_for_is_announced_to_nobody() -> None:
    async def test(waiters: Waiters) -> None:
        waiters.tell_of_entry("r")

        assert not waiters.next_entry("r").done()

    with_waiters(test)


def test_an_announcement_that_was_given_up_is_made_anew() -> None:
    async def test(waiters: Waiters) -> None:
        waiters.next_entry("r").cancel()
        again = waiters.next_entry("r")
        waiters.tell_of_entry("r")

        assert again.done()
        assert not again.cancelled()

    with_waiters(test)


def test_a_failure_wakes_who_waits_and_is_raised_until_the_run_is_driven_anew() -> None:
    async def test(waiters: Waiters) -> None:
        waiters.raise_failure("r")
        task = await waiting(waiters)
        waiters.note_failure("r", LookupError("no such code"))

        assert await task is None
        assert waiters.has_failed("r")
        assert not waiters.has_failed("other")
        waiters.raise_failure("other")
        with pytest.raises(LookupError, match="no such code"):
            waiters.raise_failure("r")
        waiters.forget_failure("r")
        waiters.forget_failure("was never there")
        waiters.raise_failure("r")
        assert not waiters.has_failed("r")

    with_waiters(test)
