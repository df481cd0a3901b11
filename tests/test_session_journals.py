"""A session's journal while it is held: decided, written and read one append at a time, and by one holder."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from satay.errors import (
    JournalConflictError,
    JournalUnavailableError,
    LeaseHeldError,
    RunExistsError,
    SessionLostError,
)
from satay.experiments import Draft
from satay.journal import Append, Lease
from satay.model import Entry, EntryType, RunStatus
from satay.recorder import Recorder
from satay.scheduler import Scheduler
from satay.session_journals import (
    MAX_CONFLICTS,
    SessionJournal,
    create_session,
    hold,
    join_session,
    open_session,
)
from satay.testing import AppUnderTest, open_app
from tests.driving import claim
from tests.test_invariants import History

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path) as app:
        yield app


@pytest.fixture
async def host(app: AppUnderTest) -> Scheduler:
    return await app.scheduler()


async def created(host: Scheduler) -> SessionJournal:
    return SessionJournal(host, await create_session(host, "s", 1, "v"))


def step(journal: SessionJournal) -> list[Draft]:
    number = journal.transcript.last_step + 1
    return [Draft(EntryType.STEP_RECORDED, f'"step":{number},"name":"work"', "{}")]


async def write_as_another(host: Scheduler, journal: SessionJournal, number: int) -> None:
    """Write a step as another process does that takes part in the session."""
    last = await host.journal.last("s")
    assert last is not None
    recorder = Recorder(journal.lease, host.clock, last)
    recorder.record(EntryType.STEP_RECORDED, f'"step":{number},"name":"theirs"', "{}")
    await host.journal.append(recorder.turn(None, None))


def names(place: Path) -> list[str]:
    entries = History.of(place).entries["s"]
    return [json.loads(entry.payload)["name"] for entry in entries if entry.type == EntryType.STEP_RECORDED]


async def test_a_session_is_made_once(host: Scheduler) -> None:
    await created(host)
    with pytest.raises(RunExistsError):
        await create_session(host, "s", 1, "v")


async def test_what_was_decided_is_written_and_read(host: Scheduler, tmp_path: Path) -> None:
    journal = await created(host)
    (entry,) = await journal.write(lambda: step(journal))

    assert (3, 1, 3) == (entry.seq, journal.transcript.last_step, journal.transcript.head)
    assert ["work"] == names(tmp_path)


async def test_deciding_for_nothing_writes_nothing(host: Scheduler) -> None:
    journal = await created(host)

    assert [] == await journal.write(list)
    assert 2 == journal.transcript.head


async def test_a_decision_is_made_again_where_somebody_else_wrote_meanwhile(host: Scheduler, tmp_path: Path) -> None:
    journal = await created(host)
    await write_as_another(host, journal, 1)
    decided: list[int] = []

    def decide() -> Sequence[Draft]:
        decided.append(journal.transcript.last_step)
        return step(journal)

    await journal.write(decide)

    assert [0, 1] == decided
    assert ["theirs", "work"] == names(tmp_path)


async def test_a_refusal_to_decide_writes_nothing(host: Scheduler) -> None:
    journal = await created(host)

    def refuse() -> Sequence[Draft]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await journal.write(refuse)
    await journal.write(lambda: step(journal))

    assert 1 == journal.transcript.last_step


async def test_one_that_is_always_second_gives_up_in_the_end(host: Scheduler) -> None:
    journal = await created(host)
    rounds = 0

    def decide() -> Sequence[Draft]:
        nonlocal rounds
        rounds += 1
        recorder = Recorder(journal.lease, host.clock, last_of(journal))
        recorder.record(EntryType.STEP_RECORDED, f'"step":{journal.transcript.last_step + 1},"name":"theirs"', "{}")
        host.journal.append(recorder.turn(None, None))
        return step(journal)

    with pytest.raises(JournalConflictError, match=f"{MAX_CONFLICTS} times in a row"):
        await journal.write(decide)

    assert MAX_CONFLICTS == rounds


def last_of(journal: SessionJournal) -> Entry:
    assert journal.transcript.last is not None
    return journal.transcript.last


async def test_writes_side_by_side_follow_each_other(host: Scheduler, tmp_path: Path) -> None:
    journal = await created(host)
    await asyncio.gather(*(journal.write(lambda: step(journal)) for _ in range(20)))

    assert 20 == journal.transcript.last_step
    assert 20 == len(names(tmp_path))


async def test_a_session_that_was_taken_over_is_lost_for_good(host: Scheduler, tmp_path: Path) -> None:
    journal = await created(host)
    claimed = await claim(host.journal, "s", host.owner_id, host.clock.now())
    for _ in range(2):
        with pytest.raises(SessionLostError, match="taken over"):
            await journal.write(lambda: step(journal))

    assert claimed is not None
    assert journal.is_lost
    assert [] == names(tmp_path)


async def test_only_one_holder_in_an_app(host: Scheduler) -> None:
    hold(host, "s")
    with pytest.raises(LeaseHeldError, match="in this very app"):
        hold(host, "s")


async def test_opening_that_fails_gives_the_session_back_as_it_was(app: AppUnderTest, host: Scheduler) -> None:
    journal = await created(host)
    await journal.write(lambda: [Draft(EntryType.SESSION_COMPLETED, "", "null")], status=RunStatus.COMPLETED)

    class Failing:
        """The scheduler, but that nothing can be appended."""

        def __init__(self) -> None:
            self.journal = self

        def append(self, append: Append) -> None:
            raise JournalUnavailableError("the disk is full")

        def __getattr__(self, name: str) -> object:
            return getattr(host, name) if hasattr(host, name) else getattr(host.journal, name)

    with pytest.raises(JournalUnavailableError):
        await open_session(Failing(), "s", reopens=True)  # type: ignore[arg-type]  # It has what is needed, by delegation.

    assert RunStatus.COMPLETED is await app.status("s")
    assert (await open_session(host, "s", reopens=True)).transcript.openings == 2


async def test_a_participant_reads_what_the_owner_wrote_and_the_owner_what_it_wrote(host: Scheduler) -> None:
    owner = await created(host)
    participant = await join_session(host, "s", owner.epoch)
    await owner.write(lambda: step(owner))
    await participant.write(lambda: step(participant))
    await owner.refresh()

    assert (2, 2) == (owner.transcript.last_step, participant.transcript.last_step)


@pytest.mark.parametrize("status", [RunStatus.WAITING, RunStatus.COMPLETED])
async def test_a_participant_stops_when_the_owner_has_left(status: RunStatus, host: Scheduler) -> None:
    owner = await created(host)
    participant = await join_session(host, "s", owner.epoch)
    left = Draft(EntryType.SESSION_PAUSED, '"reason":"r"')
    if status is RunStatus.COMPLETED:
        left = Draft(EntryType.SESSION_COMPLETED, "", "null")
    await owner.write(lambda: [left], status=status)
    with pytest.raises(SessionLostError, match=f"was left by whoever had it open: it is {status}"):
        await participant.write(lambda: step(participant))
    with pytest.raises(SessionLostError, match="was left"):
        await join_session(host, "s", owner.epoch)


async def test_a_participant_that_has_read_that_the_session_was_left_writes_nothing_more(host: Scheduler) -> None:
    owner = await created(host)
    participant = await join_session(host, "s", owner.epoch)
    await owner.write(lambda: [Draft(EntryType.SESSION_PAUSED, '"reason":"r"')], status=RunStatus.WAITING)
    for use in (participant.refresh, lambda: participant.write(lambda: step(participant))):
        with pytest.raises(SessionLostError, match="was left by whoever had it open: it is waiting"):
            await use()
    last = await host.journal.last("s")

    assert last is not None
    assert EntryType.SESSION_PAUSED == last.type


async def test_a_lease_of_another_epoch_is_not_taken_part_in(host: Scheduler) -> None:
    owner = await created(host)
    with pytest.raises(SessionLostError):
        await join_session(host, "s", owner.epoch + 1)

    assert Lease("s", owner.lease.key, 1) == owner.lease
