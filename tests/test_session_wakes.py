"""What wakes a paused session: fenced, so that whoever opens it meanwhile goes first."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import satay
from satay.errors import InvalidValueError
from satay.model import EntryType, RunStatus
from satay.scheduler import Scheduler
from satay.session_alarms import wake_moment
from satay.session_wakes import due_wakes, next_wake, wake_session
from satay.testing import AppUnderTest, ManualClock, open_app
from tests.test_invariants import History
from tests.test_transcripts import CREATED, STARTED, Line, transcript_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def asked(ordinal: int, due: int) -> Line:
    return EntryType.TIMER_CREATED, f'{{"timer":"wake","ordinal":{ordinal},"due":{due}}}'


FIRED: Line = (EntryType.TIMER_FIRED, '{"call":3}')


def test_what_is_due_is_fired_once_the_earliest_first() -> None:
    transcript = transcript_of(CREATED, STARTED, asked(0, 30), asked(1, 20), asked(2, 40))

    assert ['"call":4', '"call":3'] == [draft.facts for draft in due_wakes(transcript, 30)]
    assert [] == due_wakes(transcript, 19)
    assert [] == due_wakes(transcript_of(CREATED, STARTED, asked(0, 30), FIRED), 99)


def test_the_next_moment_is_the_earliest_of_those_to_come() -> None:
    transcript = transcript_of(CREATED, STARTED, asked(0, 30), asked(1, 20), asked(2, 40))

    assert (20, 30, None) == (next_wake(transcript), next_wake(transcript, 20), next_wake(transcript, 40))
    assert next_wake(transcript_of(CREATED, STARTED)) is None


@pytest.mark.parametrize("when", ["tomorrow", None, True])
def test_what_is_no_moment_is_refused_with_all_that_would_be_one(when: object) -> None:
    with pytest.raises(InvalidValueError, match="it must be an aware datetime, or a time from now, in seconds or as a"):
        wake_moment(when, 0)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path, clock=ManualClock(), poll_seconds=3600) as app:
        yield app


@pytest.fixture
async def host(app: AppUnderTest) -> Scheduler:
    """The scheduler of an app in which a session is paused that asked to be woken in an hour."""
    async with satay.Session("s") as session:
        await session.wake_at(3600, "look")
        session.pause()
    return await app.scheduler()


def fired(place: Path) -> list[int]:
    entries = History.of(place).entries["s"]
    return [json.loads(entry.payload)["call"] for entry in entries if entry.type == EntryType.TIMER_FIRED]


async def test_a_session_is_woken_without_being_opened(app: AppUnderTest, host: Scheduler, tmp_path: Path) -> None:
    before = await host.archive.record("s")
    app.clock.jump_to(before.wake_at or 0)
    await wake_session(host, before)
    after = await host.archive.record("s")

    assert [3] == fired(tmp_path)
    assert (before.epoch, RunStatus.WAITING, None) == (after.epoch, after.status, after.wake_at)


async def test_two_that_wake_a_session_wake_it_once(app: AppUnderTest, host: Scheduler, tmp_path: Path) -> None:
    record = await host.archive.record("s")
    app.clock.jump_to(record.wake_at or 0)
    async with open_app(tmp_path, clock=app.clock, seed=1) as other:
        await wake_session(host, record)
        await wake_session(await other.scheduler(), record)

    assert [3] == fired(tmp_path)


async def test_whoever_opens_a_session_goes_before_who_wakes_it(
    app: AppUnderTest, host: Scheduler, tmp_path: Path
) -> None:
    record = await host.archive.record("s")
    async with satay.Session("s") as session:
        app.clock.jump_to(record.wake_at or 0)
        await wake_session(host, record)
        await session.step("work")

        assert RunStatus.RUNNING is await app.status("s")
    assert fired(tmp_path) in ([], [3])
    assert (await satay.verify("s")).is_intact


async def test_a_session_with_nothing_due_is_planned_anew(host: Scheduler, tmp_path: Path) -> None:
    record = await host.archive.record("s")
    await wake_session(host, record)

    assert [] == fired(tmp_path)
    assert record.wake_at == (await host.archive.record("s")).wake_at
