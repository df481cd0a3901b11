"""A session that is resumed or forked is entered at once, or awaited and entered later."""

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import pytest

import satay
from satay.errors import InvalidValueError, NoRestorableStateError, RunNotFoundError
from satay.model import RunStatus
from satay.testing import open_app

pytestmark = pytest.mark.anyio


class OwnSession(satay.Session):
    """A session of an application that has a class for it."""


async def record_two(session_id: str = "s") -> satay.Session:
    async with satay.Session(session_id, state_fn=lambda: 1) as session:
        await session.step("one")
        await session.step("two")
    return session


async def test_a_session_is_resumed_and_entered_at_once(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await record_two()
        async with satay.Session.resume("s") as session:
            assert_type(session, satay.Session)
            opened = (session.run_id, session.last_step, session.status)

        assert ("s", 2, "stepping") == opened
        assert RunStatus.COMPLETED == await app.status("s")


async def test_a_session_is_resumed_and_entered_later(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await record_two()
        session = await satay.Session.resume("s")
        before = await app.status("s")
        async with session as entered:
            during = await app.status("s")

        assert_type(session, satay.Session)
        assert entered is session
        assert (RunStatus.COMPLETED, RunStatus.RUNNING) == (before, during)


async def test_a_fork_is_made_and_entered_at_once(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        session = await record_two()
        async with session.fork(at_step=1, name="s/b") as fork, satay.Session.resume("s", fork_at_step=1) as other:
            steps = await fork.step("two"), await other.step("two")

        assert_type(fork, satay.Session)
        assert [2, 2] == [step.number for step in steps]


async def test_an_own_class_of_sessions_is_what_it_gives(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await record_two()
        async with OwnSession.resume("s") as session, session.fork(at_step=1) as fork:
            assert_type(fork, OwnSession)

        assert [OwnSession, OwnSession] == [type(session), type(fork)]


async def test_an_error_of_the_block_crashes_the_session_and_goes_on(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await record_two()
        with pytest.raises(ZeroDivisionError):
            async with satay.Session.resume("s"):
                raise ZeroDivisionError

        assert RunStatus.FAILED == await app.status("s")


async def test_what_cannot_be_opened_is_refused_either_way(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        session = await record_two()
        with pytest.raises(RunNotFoundError):
            await satay.Session.resume("nowhere")
        with pytest.raises(RunNotFoundError):
            async with satay.Session.resume("nowhere"):
                pass
        with pytest.raises(NoRestorableStateError):
            async with session.fork(at_step=0):
                pass
        with pytest.raises(InvalidValueError):
            session.fork(at_step=-1)


async def test_it_is_a_coroutine_for_who_takes_one(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        session = await record_two()
        async with asyncio.TaskGroup() as group:
            forking = group.create_task(session.fork(at_step=1, name="a"))
        gathered = await asyncio.gather(session.fork(at_step=1, name="b"), satay.Session.resume("s"))
        in_time = await asyncio.wait_for(session.fork(at_step=2, name="c"), 10)

        assert ["a", "b", "s", "c"] == [one.run_id for one in (forking.result(), *gathered, in_time)]


async def test_making_a_fork_is_cancelled_like_a_coroutine(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        session = await record_two()
        forking = asyncio.create_task(session.fork(at_step=1))
        await asyncio.sleep(0)
        forking.cancel()
        await asyncio.wait((forking,))

        assert forking.cancelled()


@pytest.mark.parametrize("open_and_forget", [lambda: satay.Session.resume("s"), lambda: satay.Session("s").fork()])
def test_one_that_nobody_awaits_is_warned_of_by_its_name(open_and_forget: Callable[[], object]) -> None:
    with pytest.warns(RuntimeWarning, match=r"coroutine 'Session\.(resume|fork)' was never awaited"):
        open_and_forget()


def test_one_that_is_closed_is_not_warned_of() -> None:
    opening = satay.Session.resume("s")
    with warnings.catch_warnings(record=True) as warned:
        opening.close()
        del opening

    assert [] == warned
