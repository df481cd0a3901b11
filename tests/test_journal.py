"""What every store promises, as `satay.journal.Journal` says it; run over each store there is."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from satay.errors import (
    InvalidValueError,
    JournalClosedError,
    JournalConflictError,
    JournalCorruptError,
    MessageTakenError,
    RunEndedError,
    RunExistsError,
    RunNotFoundError,
)
from satay.journal import (
    CANCEL_REQUESTED,
    CHILD_ENDED,
    DECISION,
    GENESIS,
    MANY_CHARACTERS,
    MAX_PAGE,
    Append,
    Blob,
    FirstPage,
    Journal,
    Lease,
    NewFork,
    NewRun,
    Note,
    Owner,
    Posted,
    RunQuery,
    Wait,
    chain_digest,
)
from satay.model import (
    EXPERIMENT_WORKFLOW,
    SESSION_WORKFLOW,
    TERMINAL_STATUSES,
    Entry,
    EntryType,
    Message,
    RunRecord,
    RunStatus,
)
from satay.stores.sqlite import open_sqlite
from tests.driving import claim
from tests.patience import patience

pytestmark = pytest.mark.anyio

T0 = 1_764_000_000_000_000
"""A moment in microseconds since the epoch."""

SECOND = 1_000_000

CHILD_TIMEOUT_SECONDS = patience(60.0)

EXIT_TIMEOUT_SECONDS = patience(2.0)
"""How long a process may take to end that never closed its journal."""


@dataclass
class Database:
    """A database that is empty when the test begins. `open_journal` is the code by which another process opens it."""

    connect: Callable[[], Awaitable[Journal]]
    open_journal: str
    opened: list[Journal] = field(default_factory=list)

    async def open(self) -> Journal:
        journal = await self.connect()
        self.opened.append(journal)
        return journal

    def spawn(self, body: str, *args: str) -> "subprocess.Popen[str]":
        """Run `body`, the inside of an async function in which `journal` is open, in a process of its own."""
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        script = (
            f"import asyncio, sys\nfrom tests.test_journal import *\n{self.open_journal}\n"
            f"async def main():\n    journal = await open_journal()\n{lines}\n    await journal.close()\n"
            "asyncio.run(main())\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", script, *args],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    assert request.param == "sqlite"
    path = tmp_path / "journal.db"
    database = Database(
        connect=lambda: open_sqlite(path),
        open_journal=f"from satay.stores.sqlite import open_sqlite\nopen_journal = lambda: open_sqlite({str(path)!r})",
    )
    yield database
    for journal in database.opened:
        await journal.close()


@pytest.fixture
async def journal(database: Database) -> Journal:
    return await database.open()


def new_run(run_id: str = "r1", **fields: Any) -> NewRun:
    return NewRun(run_id, workflow="story", created_at=T0, owner="o1", code_version="v1")._replace(**fields)


def entries(first: int = 2, count: int = 1, previous: bytes = GENESIS) -> list[Entry]:
    """Consecutive entries whose digests chain on from `previous`."""
    made = []
    for seq in range(first, first + count):
        payload = f'{{"task":"draft","index":{seq}}}'
        previous = chain_digest(previous, EntryType.TASK_SCHEDULED, T0 + seq, payload)
        made.append(Entry(seq, EntryType.TASK_SCHEDULED, T0 + seq, payload, previous))
    return made


FIRST = Entry(1, EntryType.WORKFLOW_CREATED, T0, '{"input":null}', GENESIS)


async def create(journal: Journal, run_id: str = "r1", **fields: Any) -> Lease:
    return await journal.create(new_run(run_id, **fields), [FIRST])


async def create_waiting(journal: Journal, run_id: str, *waits: Wait, **fields: Any) -> Lease:
    """A run with one more entry, which opened `waits`."""
    lease = await create(journal, run_id, **fields)
    await journal.append(Append(lease, entries(), T0, RunStatus.WAITING, opened=waits))
    return lease


async def end(journal: Journal, lease: Lease, seq: int = 2, status: RunStatus = RunStatus.COMPLETED) -> None:
    await journal.append(Append(lease, entries(seq), T0, status))


async def record(journal: Journal, run_id: str = "r1") -> RunRecord:
    found = await journal.record(run_id)
    assert found is not None
    return found


async def seqs(journal: Journal, run_id: str = "r1") -> list[int]:
    return [entry.seq for entry in await journal.read(run_id)]


def ids(runs: Sequence[RunRecord]) -> list[str]:
    return [run.run_id for run in runs]


async def post(
    journal: Journal, run_id: str | None, type: str = "approval", key: str | None = None, event_id: str | None = None
) -> Posted:
    return await journal.post(run_id, type, key, event_id, '"yes"', T0)


def receiver(posted: Posted) -> str | None:
    return None if posted.receiver is None else posted.receiver.run_id


def blob(text: str) -> Blob:
    return Blob(hashlib.sha256(text.encode()).hexdigest(), text)


def assert_sound(history: Sequence[Entry]) -> None:
    """No gap, and every digest chains on from the one before."""
    previous = GENESIS
    for seq, entry in enumerate(history, 1):
        assert seq == entry.seq
        if seq > 1:
            previous = chain_digest(previous, entry.type, entry.at, entry.payload)
        assert previous == entry.digest


# --- create -----------------------------------------------------------------------------------------------------------


async def test_a_created_run_is_running_and_belongs_to_its_creator(journal: Journal) -> None:
    run = new_run(parent_id="p", forked_from="s", fork_seq=7, start_key="k")

    lease = await journal.create(run, [FIRST])

    assert lease == Lease("r1", lease.key, 1)
    assert (
        RunRecord(lease.key, "r1", "story", RunStatus.RUNNING, T0, T0, None, "o1", 1, "p", "s", 7, "k", "v1")
        == await record(journal)
    )  # fmt: skip


async def test_a_created_run_has_its_entries_in_order(journal: Journal) -> None:
    history = [FIRST, *entries(2, 5)]

    await journal.create(new_run(), history)

    assert history == await journal.read("r1")


async def test_runs_are_numbered_in_the_order_of_their_creation(journal: Journal) -> None:
    leases = await asyncio.gather(*(create(journal, f"r{n}") for n in range(5)))

    assert sorted(lease.key for lease in leases) == [lease.key for lease in leases]


async def test_a_second_run_with_the_same_id_is_refused_and_the_first_is_untouched(journal: Journal) -> None:
    await create(journal)
    before = await record(journal)

    with pytest.raises(RunExistsError, match="'r1'") as refusal:
        await journal.create(new_run(workflow="other", start_key="k"), [FIRST, *entries()])

    assert "r1" == refusal.value.run_id
    assert before == await record(journal)
    assert [1] == await seqs(journal)
    assert await journal.started("k") is None


async def test_a_second_run_under_the_same_start_key_is_refused_by_the_name_of_the_first(journal: Journal) -> None:
    await create(journal, "r1", start_key="k")

    with pytest.raises(RunExistsError, match=r"'r1'.*'k'") as refusal:
        await create(journal, "r2", start_key="k")

    assert "r1" == refusal.value.run_id
    assert await journal.record("r2") is None


async def test_a_run_is_found_by_its_start_key(journal: Journal) -> None:
    await create(journal, "r1", start_key="k")

    assert await record(journal) == await journal.started("k")
    assert await journal.started("other") is None


async def test_runs_without_a_start_key_do_not_meet(journal: Journal) -> None:
    await create(journal, "r1")
    await create(journal, "r2")

    assert ["r2", "r1"] == ids(await journal.runs(RunQuery()))


@pytest.mark.parametrize("history", [entries(2, 1), [FIRST, *entries(3, 1)], [FIRST, FIRST]])
async def test_a_run_is_not_created_with_a_gap(journal: Journal, history: list[Entry]) -> None:
    with pytest.raises(JournalConflictError):
        await journal.create(new_run(), history)

    assert await journal.record("r1") is None
    assert [] == await journal.read("r1")


async def test_of_many_creations_of_one_run_one_succeeds(database: Database) -> None:
    journals = [await database.open() for _ in range(2)]

    outcomes = await asyncio.gather(*(create(journals[n % 2]) for n in range(10)), return_exceptions=True)

    assert 1 == sum(isinstance(outcome, Lease) for outcome in outcomes)
    assert 9 == sum(isinstance(outcome, RunExistsError) for outcome in outcomes)
    assert [1] == await seqs(journals[0])


# --- append -----------------------------------------------------------------------------------------------------------


async def test_what_was_appended_is_read_as_it_was_given(journal: Journal) -> None:
    lease = await create(journal)
    texts = ['{"a":"\\u0000\\ud800"}', '{"a":"😀 e\u0301 ß"}', '{"a":""}', "null", "x" * 70_000]
    history = [Entry(seq, "Kind", -seq, text, bytes([seq]) * 32) for seq, text in enumerate(texts, 2)]

    await journal.append(Append(lease, history, T0))

    assert [FIRST, *history] == await journal.read("r1")


async def test_what_was_awaited_is_seen_by_every_reader(database: Database) -> None:
    writer, reader = await database.open(), await database.open()
    lease = await create(writer)

    for seq in range(2, 12):
        await writer.append(Append(lease, entries(seq), T0))

        assert list(range(1, seq + 1)) == await seqs(writer) == await seqs(reader)


async def test_appends_are_queued_when_called_in_call_order(journal: Journal) -> None:
    lease = await create(journal)

    queued = [journal.append(Append(lease, entries(seq), T0)) for seq in range(2, 102)]
    await queued[-1]

    assert list(range(1, 102)) == await seqs(journal)
    await asyncio.gather(*queued)


async def test_a_status_comes_with_its_wake_up_time_and_stays_where_none_is_given(journal: Journal) -> None:
    lease = await create(journal)

    await journal.append(Append(lease, entries(2), T0 + 1, RunStatus.WAITING, wake_at=T0 + SECOND))
    first = await record(journal)
    await journal.append(Append(lease, entries(3), T0 + 2))
    second = await record(journal)
    await journal.append(Append(lease, entries(4), T0 + 3, RunStatus.NEEDS_DECISION))
    third = await record(journal)

    assert (RunStatus.WAITING, T0 + SECOND, T0 + 1) == (first.status, first.wake_at, first.updated_at)
    assert (RunStatus.WAITING, T0 + SECOND, T0 + 1) == (second.status, second.wake_at, second.updated_at)
    assert (RunStatus.NEEDS_DECISION, None, T0 + 3) == (third.status, third.wake_at, third.updated_at)


async def test_an_append_without_entries_changes_the_status(journal: Journal) -> None:
    lease = await create(journal)

    await journal.append(Append(lease, (), T0 + 1, RunStatus.WAITING, wake_at=T0 + SECOND))
    await journal.append(Append(lease, entries(2), T0 + 2))

    assert RunStatus.WAITING == (await record(journal)).status
    assert [1, 2] == await seqs(journal)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(entries(1), id="a seq that is taken"),
        pytest.param(entries(3), id="a seq that leaves a gap"),
        pytest.param([*entries(2), *entries(4)], id="a gap within"),
        pytest.param([*entries(2), *entries(2)], id="a seq twice"),
        pytest.param([*entries(2), *entries(4), *entries(3)], id="a wrong order"),
        pytest.param(entries(0), id="zero"),
    ],
)
async def test_an_append_that_does_not_follow_is_refused_whole(journal: Journal, history: list[Entry]) -> None:
    lease = await create(journal)
    before = await record(journal)

    with pytest.raises(JournalConflictError, match="'r1'") as refusal:
        await journal.append(Append(lease, history, T0 + 1, RunStatus.COMPLETED))

    assert "r1" == refusal.value.run_id
    assert before == await record(journal)
    assert [1] == await seqs(journal)


async def test_an_append_with_the_lease_of_an_earlier_epoch_is_refused(journal: Journal) -> None:
    lease = await create(journal)
    claimed = await claim(journal, "r1", "o1", T0)
    assert claimed is not None

    with pytest.raises(JournalConflictError, match="epoch is 2"):
        await journal.append(Append(lease, entries(), T0))
    await journal.append(Append(claimed.lease, entries(), T0))

    assert [1, 2] == await seqs(journal)


@pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
async def test_a_run_that_ended_is_not_extended(journal: Journal, status: RunStatus) -> None:
    lease = await create(journal)
    await end(journal, lease, status=status)

    with pytest.raises(JournalConflictError, match=f"ended: it is {status}"):
        await journal.append(Append(lease, entries(3), T0))

    assert status == (await record(journal)).status
    assert [1, 2] == await seqs(journal)


async def test_a_run_that_is_not_there_is_not_extended(journal: Journal) -> None:
    with pytest.raises(JournalConflictError, match="'nowhere'"):
        await journal.append(Append(Lease("nowhere", 99, 1), entries(), T0))


async def test_after_an_append_that_failed_later_ones_of_the_lease_fail_too(journal: Journal) -> None:
    lease, other = await create(journal), await create(journal, "r2")

    outcomes = await asyncio.gather(
        journal.append(Append(lease, entries(2), T0)),
        journal.append(Append(lease, entries(3), T0, taken=[12345])),
        journal.append(Append(lease, entries(4), T0)),
        journal.append(Append(other, entries(2), T0)),
        journal.append(Append(lease, entries(5), T0)),
        return_exceptions=True,
    )

    kinds = [type(outcome) for outcome in outcomes]
    assert [type(None), MessageTakenError, JournalConflictError, type(None), JournalConflictError] == kinds
    assert [1, 2] == await seqs(journal) == await seqs(journal, "r2")


async def test_a_failure_does_not_harm_what_is_queued_beside_it(journal: Journal) -> None:
    leases = [await create(journal, f"r{n}") for n in range(10)]

    def one(n: int) -> Awaitable[None]:
        return journal.append(Append(leases[n], entries(), T0, taken=[999] if n % 3 == 0 else []))

    outcomes = await asyncio.gather(*map(one, range(10)), return_exceptions=True)

    assert [0, 3, 6, 9] == [n for n, outcome in enumerate(outcomes) if isinstance(outcome, MessageTakenError)]
    assert [[1], [1, 2], [1, 2], [1]] == [await seqs(journal, f"r{n}") for n in range(4)]


async def test_two_writers_never_both_extend_a_run(database: Database) -> None:
    journals = [await database.open() for _ in range(2)]
    lease = await create(journals[0])

    async def extend(journal: Journal) -> int:
        won = 0
        for seq in range(2, 42):
            try:
                await journal.append(Append(lease, entries(seq), T0))
                won += 1
            except JournalConflictError:
                pass
        return won

    won = await asyncio.gather(*map(extend, journals))

    assert list(range(1, 42)) == await seqs(journals[0])
    assert 40 == sum(won)


async def test_fifty_runs_are_extended_at_once_while_others_read(journal: Journal) -> None:
    async def drive(run_id: str) -> None:
        lease = await create(journal, run_id)
        for seq in range(2, 22):
            await journal.append(Append(lease, entries(seq), T0))

    async def watch(run_id: str) -> None:
        while len(found := await seqs(journal, run_id)) < 21:
            assert list(range(1, len(found) + 1)) == found

    names = [f"r{n}" for n in range(50)]
    await asyncio.gather(*map(drive, names), *map(watch, names[:5]))

    assert [list(range(1, 22))] * 50 == [await seqs(journal, name) for name in names]


# --- notes ------------------------------------------------------------------------------------------------------------


async def create_undriven(journal: Journal, run_id: str = "r1", **fields: Any) -> Lease:
    return await create(journal, run_id, owner=None, **fields)


async def test_a_run_that_is_created_without_an_owner_waits_for_nothing(journal: Journal) -> None:
    lease = await create_undriven(journal)

    row = await record(journal)
    assert (RunStatus.WAITING, None, None, 1) == (row.status, row.owner, row.wake_at, row.epoch)
    assert Lease("r1", row.key, 1) == lease


async def test_a_note_extends_a_journal_that_nobody_drives_and_leaves_the_row(journal: Journal) -> None:
    await create_undriven(journal)
    before = await record(journal)
    history = entries(2, 3)

    await journal.note([Note("r1", history[:1])])
    await journal.note([Note("r1", history[1:])])

    assert [FIRST, *history] == await journal.read("r1")
    assert_sound(await journal.read("r1"))
    assert before == await record(journal)


async def test_a_run_that_was_given_back_can_be_noted_and_then_be_driven(journal: Journal) -> None:
    await journal.release(await create(journal))

    await journal.note([Note("r1", entries(2))])
    claimed = await claim(journal, "r1", "o2", T0)
    assert claimed is not None
    await journal.append(Append(claimed.lease, entries(3), T0))

    assert [1, 2, 3] == await seqs(journal)


async def test_notes_for_several_journals_are_written_together(journal: Journal) -> None:
    for run_id in ("a", "b", "c"):
        await create_undriven(journal, run_id)

    await journal.note([Note("a", entries(2, 2)), Note("b", entries(2)), Note("a", entries(4)), Note("c", [])])

    assert [[1, 2, 3, 4], [1, 2], [1]] == [await seqs(journal, run_id) for run_id in ("a", "b", "c")]
    await journal.note([])


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        pytest.param(Note("free", entries(1)), "seq 1 where 2 follows", id="a seq that is taken"),
        pytest.param(Note("free", entries(3)), "seq 3 where 2 follows", id="a seq that leaves a gap"),
        pytest.param(Note("free", [*entries(2), *entries(4)]), "seq 4 where 3 follows", id="a gap within"),
        pytest.param(Note("other", entries(2)), "seq 2 where 3 follows", id="a seq that the same call took"),
        pytest.param(Note("driven", entries(2)), "the owner 'o1'", id="a run that is driven"),
        pytest.param(Note("waiting", entries(3)), "the owner 'o1'", id="a run that waits and has an owner"),
        pytest.param(Note("ended", entries(3)), "ended: it is completed", id="a run that has ended"),
        pytest.param(Note("nowhere", entries(2)), "not in this journal", id="a run that was never created"),
    ],
)
async def test_of_several_notes_none_is_written_where_one_is_refused(
    journal: Journal, refused: Note, reason: str
) -> None:
    await create_undriven(journal, "free")
    await create_undriven(journal, "other")
    await create(journal, "driven")
    await create_waiting(journal, "waiting")
    await end(journal, await create(journal, "ended"))
    before = {run.run_id: await journal.read(run.run_id) for run in await journal.runs(RunQuery())}

    with pytest.raises(JournalConflictError, match=reason) as refusal:
        await journal.note([Note("other", entries(2)), refused])

    assert refused.run_id == refusal.value.run_id
    assert before == {run.run_id: await journal.read(run.run_id) for run in await journal.runs(RunQuery())}


async def test_of_two_notes_that_follow_the_same_entry_the_second_loses(database: Database) -> None:
    journals = [await database.open() for _ in range(2)]
    await create_undriven(journals[0])

    outcomes = await asyncio.gather(
        *(journals[n % 2].note([Note("r1", entries(2, n + 1))]) for n in range(6)), return_exceptions=True
    )

    assert 1 == outcomes.count(None)
    assert 5 == sum(isinstance(outcome, JournalConflictError) for outcome in outcomes)
    assert_sound(await journals[0].read("r1"))


async def test_a_note_that_is_refused_does_not_harm_what_is_queued_beside_it(journal: Journal) -> None:
    await create_undriven(journal)
    lease = await create(journal, "driven")

    outcomes = await asyncio.gather(
        journal.note([Note("r1", entries(2))]),
        journal.append(Append(lease, entries(2), T0)),
        journal.note([Note("r1", entries(2))]),
        journal.append(Append(lease, entries(3), T0)),
        journal.note([Note("r1", entries(3))]),
        return_exceptions=True,
    )

    kinds = [type(outcome) for outcome in outcomes]
    assert [type(None), type(None), JournalConflictError, type(None), type(None)] == kinds
    assert [1, 2, 3] == await seqs(journal) == await seqs(journal, "driven")


async def test_nobody_picks_an_experiment_up(journal: Journal) -> None:
    await create_undriven(journal, "x~experiment", workflow=EXPERIMENT_WORKFLOW)
    before = await record(journal, "x~experiment")

    assert await claim(journal, "x~experiment", "o1", T0) is None
    assert [] == await journal.due(T0 + SECOND, None, 10) == await journal.abandoned(T0 + SECOND, 10)
    assert await journal.next_wake(None) is None
    for type in ("approval", CANCEL_REQUESTED):
        with pytest.raises(RunNotFoundError, match=r"'x~experiment'.*is an experiment"):
            await post(journal, "x~experiment", type)
    assert (0, []) == await journal.deliverable(0, 10, T0)
    assert before == await record(journal, "x~experiment")


async def test_an_experiment_is_listed_only_where_it_is_asked_for(journal: Journal) -> None:
    await create_undriven(journal, "x~experiment", workflow=EXPERIMENT_WORKFLOW)
    await create(journal, "x")

    assert ["x"] == ids(await journal.runs(RunQuery()))
    assert [] == await journal.runs(RunQuery(status=RunStatus.WAITING))
    assert ["x~experiment"] == ids(await journal.runs(RunQuery(workflow=EXPERIMENT_WORKFLOW)))


async def test_runs_that_wait_for_a_type_of_message_are_found(journal: Journal) -> None:
    await create_waiting(journal, "r1", Wait(2, "go", "a"), Wait(2, "go", "b"))
    await create_waiting(journal, "r2", Wait(2, "stop", None))
    await create_waiting(journal, "r3", Wait(2, "go", None))
    await create(journal, "r4")

    assert ["r3", "r1"] == ids(await journal.runs(RunQuery(waits_for="go")))
    assert ["r1"] == ids(await journal.runs(RunQuery(waits_for="go", before="r3")))
    assert [] == await journal.runs(RunQuery(waits_for="come"))


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED])
async def test_the_waits_of_a_session_outlast_its_end(journal: Journal, status: RunStatus) -> None:
    lease = await create_waiting(journal, "s", Wait(2, "satay.approval", "refund"), workflow=SESSION_WORKFLOW)
    await end(journal, lease, 3, status)

    assert [Wait(2, "satay.approval", "refund")] == await journal.waits("s")
    assert ["s"] == ids(await journal.runs(RunQuery(waits_for="satay.approval")))


# What waits for the writer shares a transaction, so these begin with a call that keeps the writer busy.


def keep_busy(journal: Journal) -> Awaitable[None]:
    return journal.heartbeat(Owner("busy", "h", 1, "t", T0))


async def test_runs_that_are_created_at_once_are_numbered_in_call_order(journal: Journal) -> None:
    names = [f"r{n}" for n in range(70)]

    busy = keep_busy(journal)
    leases = await asyncio.gather(*[create(journal, name) for name in names])
    await busy
    keys = [(await record(journal, name)).key for name in names]

    assert [(name, 1) for name in names] == [(lease.run_id, lease.epoch) for lease in leases]
    assert sorted(keys) == keys == [lease.key for lease in leases]
    assert [[1]] * 70 == [await seqs(journal, name) for name in names]


async def test_a_creation_that_is_refused_does_not_harm_what_is_queued_beside_it(journal: Journal) -> None:
    lease = await create(journal, "there")

    outcomes = await asyncio.gather(
        keep_busy(journal),
        create(journal, "r1"),
        create(journal, "there"),
        journal.append(Append(lease, entries(), T0)),
        create(journal, "r2"),
        return_exceptions=True,
    )

    assert [2] == [n for n, outcome in enumerate(outcomes) if isinstance(outcome, RunExistsError)]
    assert [[1], [1, 2], [1]] == [await seqs(journal, name) for name in ("r1", "there", "r2")]


async def test_what_is_queued_behind_the_end_of_a_run_is_refused(journal: Journal) -> None:
    lease = await create(journal)

    outcomes = await asyncio.gather(
        keep_busy(journal),
        journal.append(Append(lease, entries(), T0, RunStatus.COMPLETED)),
        journal.append(Append(lease, entries(3), T0)),
        journal.append(Append(lease, (), T0, RunStatus.WAITING)),
        return_exceptions=True,
    )

    kinds = [type(None), type(None), JournalConflictError, JournalConflictError]
    assert kinds == [type(outcome) for outcome in outcomes]
    assert (RunStatus.COMPLETED, [1, 2]) == ((await record(journal)).status, await seqs(journal))


async def test_ends_that_are_queued_together_are_told_in_call_order(journal: Journal) -> None:
    children = ["c2", "c0", "c1"]
    leases = [await create(journal, child) for child in sorted(children)]
    await create_waiting(journal, "parent", *[Wait(n, CHILD_ENDED, f"c{n}") for n in range(3)])

    await asyncio.gather(keep_busy(journal), *[end(journal, leases[int(child[1])]) for child in children])

    assert children == [message.key for message in await journal.messages("parent")]


@pytest.mark.parametrize("is_child_first", [True, False])
async def test_a_wait_that_is_queued_beside_the_end_of_its_child_is_told_once(
    journal: Journal, is_child_first: bool
) -> None:
    child, parent = await create(journal, "child"), await create(journal, "parent")
    appends = [
        Append(child, entries(), T0, RunStatus.COMPLETED),
        Append(parent, entries(), T0, RunStatus.WAITING, opened=[Wait(2, CHILD_ENDED, "child")]),
    ]

    queued = appends if is_child_first else appends[::-1]
    await asyncio.gather(keep_busy(journal), *map(journal.append, queued))

    assert ["child"] == [message.key for message in await journal.messages("parent")]


# --- waits ------------------------------------------------------------------------------------------------------------


async def test_a_wait_is_open_until_it_is_closed(journal: Journal) -> None:
    lease = await create(journal)
    opened = [Wait(3, "approval", "b"), Wait(2, "approval", None)]

    await journal.append(Append(lease, entries(2, 2), T0, opened=opened))
    before = await journal.waits("r1")
    await journal.append(Append(lease, entries(4), T0, closed=[3]))
    after = await journal.waits("r1")

    assert [Wait(2, "approval", None), Wait(3, "approval", "b")] == before
    assert [Wait(2, "approval", None)] == after
    assert [] == await journal.waits("nowhere")


async def test_closing_a_wait_leaves_those_of_other_runs(journal: Journal) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))
    await create_waiting(journal, "r2", Wait(2, "approval", None))

    await journal.append(Append(lease, entries(3), T0, closed=[2]))

    assert [] == await journal.waits("r1")
    assert [Wait(2, "approval", None)] == await journal.waits("r2")


@pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
async def test_the_end_of_a_run_closes_its_waits(journal: Journal, status: RunStatus) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))

    await end(journal, lease, 3, status)

    assert [] == await journal.waits("r1")


async def test_an_append_that_fails_opens_and_closes_no_wait(journal: Journal) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))

    with pytest.raises(MessageTakenError):
        await journal.append(
            Append(lease, entries(3), T0, opened=[Wait(3, "other", None)], closed=[2], taken=[1], blobs=[blob("lost")])
        )

    assert [Wait(2, "approval", None)] == await journal.waits("r1")
    with pytest.raises(JournalCorruptError):
        await journal.blobs([blob("lost").sha256])


# --- children ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
async def test_the_end_of_a_run_is_told_to_every_run_that_waits_for_it(journal: Journal, status: RunStatus) -> None:
    child = await create(journal, "child")
    await create_waiting(journal, "parent", Wait(2, CHILD_ENDED, "child"))
    await create_waiting(journal, "fork", Wait(2, CHILD_ENDED, "child"))
    await create_waiting(journal, "stranger", Wait(2, CHILD_ENDED, "another"))

    await end(journal, child, status=status)

    for run_id in ("parent", "fork"):
        (message,) = await journal.messages(run_id)
        assert (run_id, CHILD_ENDED, "child", None) == (message.run_id, message.type, message.key, message.event_id)
    assert [] == await journal.messages("stranger")


async def test_a_run_that_has_ended_takes_no_more_events(journal: Journal) -> None:
    lease = await create(journal)
    await journal.post("r1", "approval", None, "m1", "1", T0)
    await end(journal, lease)

    with pytest.raises(RunEndedError, match="'r1' has ended"):
        await journal.post("r1", "approval", None, "m2", "2", T0)
    again = await journal.post("r1", "approval", None, "m1", "1", T0)
    request = await journal.post("r1", CANCEL_REQUESTED, None, None, "null", T0)

    assert again.id is None
    assert request.id is not None


async def test_the_end_of_a_run_asks_its_live_children_to_cancel(journal: Journal) -> None:
    parent = await create(journal, "parent")
    await journal.create(NewRun("child", "w", T0, "o", "v", parent_id="parent"), [FIRST])
    ended = await journal.create(NewRun("ended", "w", T0, "o", "v", parent_id="parent"), [FIRST])
    await journal.create(NewRun("stranger", "w", T0, "o", "v", parent_id="another"), [FIRST])
    await end(journal, ended)

    await end(journal, parent)

    (message,) = await journal.messages("child")
    assert ("child", CANCEL_REQUESTED, None) == (message.run_id, message.type, message.key)
    assert [] == await journal.messages("ended")
    assert [] == await journal.messages("stranger")


async def test_a_run_that_waits_twice_for_a_child_is_told_once(journal: Journal) -> None:
    child = await create(journal, "child")
    await create_waiting(journal, "parent", Wait(2, CHILD_ENDED, "child"), Wait(3, CHILD_ENDED, "child"))

    await end(journal, child)

    assert 1 == len(await journal.messages("parent"))


async def test_a_run_that_waits_for_a_child_that_ended_before_is_told_at_once(journal: Journal) -> None:
    await end(journal, await create(journal, "child"))

    await create_waiting(journal, "parent", Wait(2, CHILD_ENDED, "child"), Wait(3, CHILD_ENDED, "unborn"))

    assert ["child"] == [message.key for message in await journal.messages("parent")]


# --- successors -------------------------------------------------------------------------------------------------------


async def test_a_successor_is_created_with_the_end_of_its_predecessor(journal: Journal) -> None:
    lease = await create(journal, "r1")
    successor = (new_run("r2", workflow="next", owner="o2", start_key="k"), [FIRST, *entries(2)])

    await journal.append(Append(lease, entries(2), T0, RunStatus.COMPLETED, successor=successor))

    there = await record(journal, "r2")
    assert ("next", RunStatus.RUNNING, "o2", 1, "k") == (
        there.workflow,
        there.status,
        there.owner,
        there.epoch,
        there.start_key,
    )
    assert [1, 2] == await seqs(journal, "r2")
    assert RunStatus.COMPLETED == (await record(journal, "r1")).status


async def test_a_successor_gets_the_messages_that_were_not_taken(journal: Journal) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))
    taken, left, plain = [await post(journal, "r1", event_id=id) for id in ("m1", "m2", None)]
    assert taken.id is not None
    successor = (new_run("r2"), [FIRST])

    append = Append(lease, entries(3), T0, RunStatus.COMPLETED, taken=[taken.id], successor=successor)
    await journal.append(append)
    claimed = await claim(journal, "r2", "o1", T0)
    assert claimed is not None
    await journal.append(Append(claimed.lease, entries(2), T0, opened=[Wait(2, "approval", None)]))

    found = await journal.messages("r2")
    assert [(left.id, "r2"), (plain.id, "r2")] == [(message.id, message.run_id) for message in found]
    assert [] == await journal.messages("r1")


async def test_a_message_that_went_to_the_successor_is_known_by_both(journal: Journal) -> None:
    lease = await create(journal, "r1")
    await post(journal, "r1", event_id="m1")

    append = Append(lease, entries(2), T0, RunStatus.COMPLETED, successor=(new_run("r2"), [FIRST]))
    await journal.append(append)

    assert (await post(journal, "r1", event_id="m1")).id is None
    assert (await post(journal, "r2", event_id="m1")).id is None


async def test_a_successor_whose_id_is_taken_leaves_the_predecessor_as_it_was(journal: Journal) -> None:
    lease = await create(journal, "r1")
    await create(journal, "r2")
    before = await record(journal, "r1")

    with pytest.raises(RunExistsError) as refusal:
        await journal.append(Append(lease, entries(2), T0, RunStatus.COMPLETED, successor=(new_run("r2"), [FIRST])))

    assert "r2" == refusal.value.run_id
    assert before == await record(journal, "r1")
    assert [1] == await seqs(journal, "r1")


# --- blobs ------------------------------------------------------------------------------------------------------------


async def test_a_blob_reads_back_as_it_was(journal: Journal) -> None:
    lease = await create(journal)
    kept = [blob("ab" * 200_000), blob("ß😀\0" * 100_000), blob(os.urandom(200_000).hex()), blob("short"), blob("")]

    await journal.append(Append(lease, entries(), T0, blobs=kept))

    assert {each.sha256: each.text for each in kept} == await journal.blobs([each.sha256 for each in kept])
    assert {} == await journal.blobs([])


async def test_a_blob_may_be_stored_again(journal: Journal) -> None:
    kept = blob("x" * 1000)

    first, second = await asyncio.gather(
        journal.create(new_run("r1"), [FIRST], [kept]), journal.create(new_run("r2"), [FIRST], [kept, kept])
    )
    await journal.append(Append(first, entries(), T0, blobs=[kept]))
    await journal.append(Append(second, entries(), T0, blobs=[kept]))

    assert {kept.sha256: kept.text} == await journal.blobs([kept.sha256])


async def test_a_blob_that_is_lost_is_named(journal: Journal) -> None:
    lost = blob("lost").sha256

    with pytest.raises(JournalCorruptError, match=lost):
        await journal.blobs([lost])


async def test_a_digest_that_is_none_is_refused(journal: Journal) -> None:
    with pytest.raises(InvalidValueError, match="'nonsense'"):
        await journal.blobs(["nonsense"])
    with pytest.raises(InvalidValueError, match="'nonsense'"):
        await journal.create(new_run(), [FIRST], [Blob("nonsense", "text")])

    assert await journal.record("r1") is None


# --- fork -------------------------------------------------------------------------------------------------------------


def new_fork(history: Sequence[Entry], through: int, run_id: str = "f1", **fields: Any) -> NewFork:
    """A fork of `r1`, whose entries are `history`, with one entry of its own after the prefix."""
    digest = history[through - 1].digest
    settings: dict[str, Any] = {
        "run": new_run(run_id, owner="o2", forked_from="r1", fork_seq=through),
        "source_id": "r1",
        "through_seq": through,
        "prefix_digest": digest,
        "first": FIRST._replace(payload='{"input":"mine"}'),
        "after": entries(through + 1, 1, digest),
    }
    return NewFork(**(settings | fields))


async def test_a_fork_has_its_own_first_entry_the_prefix_as_stored_and_what_follows(journal: Journal) -> None:
    history = [FIRST, *entries(2, 9)]
    await journal.create(new_run(), history)
    fork = new_fork(history, 6, waits=[Wait(4, "approval", "k")], blobs=[blob("forked")])

    lease = await journal.fork(fork)

    assert [fork.first, *history[1:6], *fork.after] == await journal.read("f1")
    assert Lease("f1", lease.key, 1) == lease
    there = await record(journal, "f1")
    assert ("r1", 6, "o2", RunStatus.RUNNING) == (there.forked_from, there.fork_seq, there.owner, there.status)
    assert [Wait(4, "approval", "k")] == await journal.waits("f1")
    assert [blob("forked").text] == list((await journal.blobs([blob("forked").sha256])).values())


async def test_a_fork_leaves_its_source_as_it_was(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)
    before = await record(journal)

    await journal.fork(new_fork(history, 3))

    assert before == await record(journal)
    assert history == await journal.read("r1")


async def test_a_fork_is_extended_from_its_last_entry(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)
    lease = await journal.fork(new_fork(history, 3))

    await journal.append(Append(lease, entries(5), T0))

    assert [1, 2, 3, 4, 5] == await seqs(journal, "f1")


async def test_an_append_that_leaves_a_gap_behind_a_fork_is_refused(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)
    lease = await journal.fork(new_fork(history, 3))

    with pytest.raises(JournalConflictError, match="ends at seq 4, so seq 6 does not follow"):
        await journal.append(Append(lease, entries(6), T0))

    assert [1, 2, 3, 4] == await seqs(journal, "f1")


async def test_a_fork_of_a_fork_inherits_from_both(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)
    await journal.fork(new_fork(history, 3))
    middle = await journal.read("f1")

    await journal.fork(new_fork(middle, 4, "f2", source_id="f1"))

    assert middle[1:4] == (await journal.read("f2"))[1:4]


async def test_a_fork_after_the_first_entry_inherits_nothing(journal: Journal) -> None:
    await create(journal)
    fork = new_fork([FIRST], 1)

    await journal.fork(fork)

    assert [fork.first, *fork.after] == await journal.read("f1")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"prefix_digest": b"?" * 32}, id="another digest"),
        pytest.param({"through_seq": 5, "after": entries(6)}, id="an entry beyond the end"),
        pytest.param({"source_id": "nowhere"}, id="no such source"),
    ],
)
async def test_a_fork_of_what_is_not_there_is_refused_whole(journal: Journal, change: dict[str, Any]) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)

    with pytest.raises(JournalConflictError):
        await journal.fork(new_fork(history, 3, **change))

    assert await journal.record("f1") is None
    assert [] == await journal.read("f1")


@pytest.mark.parametrize("change", [{"after": entries(5)}, {"first": FIRST._replace(seq=2)}])
async def test_a_fork_with_a_gap_is_refused_whole(journal: Journal, change: dict[str, Any]) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)

    with pytest.raises(JournalConflictError):
        await journal.fork(new_fork(history, 3, **change))

    assert await journal.record("f1") is None


async def test_of_two_forks_with_one_id_one_is_refused(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)

    outcomes = await asyncio.gather(
        journal.fork(new_fork(history, 3)), journal.fork(new_fork(history, 2)), return_exceptions=True
    )

    assert [Lease, RunExistsError] == [type(outcome) for outcome in outcomes]
    assert [1, 2, 3, 4] == await seqs(journal, "f1")


async def test_forks_and_what_is_queued_beside_them_are_written_whole(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    lease = await journal.create(new_run(), history)

    outcomes = await asyncio.gather(
        keep_busy(journal),
        journal.fork(new_fork(history, 3)),
        journal.append(Append(lease, entries(5), T0)),
        create(journal, "r2"),
        journal.fork(new_fork(history, 2, "f2")),
    )
    forks = [outcome for outcome in outcomes if isinstance(outcome, Lease) and outcome.run_id.startswith("f")]
    await asyncio.gather(
        keep_busy(journal),
        *(journal.append(Append(fork, entries(seq), T0)) for fork, seq in zip(forks, (5, 4), strict=True)),
    )

    assert ["f1", "r2", "f2"] == [outcome.run_id for outcome in outcomes if isinstance(outcome, Lease)]
    assert [(await record(journal, name)).key for name in ("f1", "f2")] == [fork.key for fork in forks]
    assert [[1, 2, 3, 4, 5], [1], [1, 2, 3, 4], [1, 2, 3, 4, 5]] == [
        await seqs(journal, name) for name in ("r1", "r2", "f2", "f1")
    ]


async def test_a_fork_that_is_refused_does_not_harm_what_is_queued_beside_it(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    lease = await journal.create(new_run(), history)

    outcomes = await asyncio.gather(
        keep_busy(journal),
        journal.fork(new_fork(history, 3)),
        journal.fork(new_fork(history, 2, "f2", prefix_digest=b"?" * 32)),
        journal.append(Append(lease, entries(5), T0)),
        return_exceptions=True,
    )

    assert [type(None), Lease, JournalConflictError, type(None)] == [type(outcome) for outcome in outcomes]
    assert await journal.record("f2") is None
    assert [[1, 2, 3, 4], [1, 2, 3, 4, 5]] == [await seqs(journal, name) for name in ("f1", "r1")]


async def test_a_fork_that_is_queued_before_the_end_of_its_parent_is_asked_to_cancel(journal: Journal) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)
    parent = await create(journal, "parent")
    run = new_run("f1", owner="o2", parent_id="parent", forked_from="r1", fork_seq=3)

    await asyncio.gather(keep_busy(journal), journal.fork(new_fork(history, 3, run=run)), end(journal, parent))

    assert [CANCEL_REQUESTED] == [message.type for message in await journal.messages("f1")]


@pytest.mark.parametrize("is_child_first", [True, False])
async def test_a_fork_that_is_queued_beside_the_end_of_what_it_waits_for_is_told_once(
    journal: Journal, is_child_first: bool
) -> None:
    history = [FIRST, *entries(2, 3)]
    await journal.create(new_run(), history)
    child = await create(journal, "child")

    async def fork() -> None:
        await journal.fork(new_fork(history, 3, waits=[Wait(2, CHILD_ENDED, "child")]))

    queued = [end(journal, child), fork()]
    await asyncio.gather(keep_busy(journal), *(queued if is_child_first else queued[::-1]))

    assert ["child"] == [message.key for message in await journal.messages("f1")]


# --- claim, release, owners -------------------------------------------------------------------------------------------


async def beat(journal: Journal, owner_id: str, expires_at: int) -> Owner:
    owner = Owner(owner_id, "host", 4711, "boot", expires_at)
    await journal.heartbeat(owner)
    return owner


async def test_a_claim_changes_hands_and_tells_how_the_run_was(journal: Journal) -> None:
    lease = await create(journal)
    await journal.append(Append(lease, entries(), T0, RunStatus.WAITING, wake_at=T0 + SECOND))
    before = await record(journal)

    claimed = await claim(journal, "r1", "o2", T0 + 5)

    assert claimed is not None
    assert (Lease("r1", lease.key, 2), before) == claimed
    after = await record(journal)
    assert ("o2", 2, RunStatus.RUNNING, None) == (after.owner, after.epoch, after.status, after.wake_at)


async def test_a_run_whose_owner_lives_is_held(journal: Journal) -> None:
    await create(journal)
    await beat(journal, "o1", T0 + SECOND)

    assert await claim(journal, "r1", "o2", T0 + SECOND) is None
    assert ("o1", 1) == ((await record(journal)).owner, (await record(journal)).epoch)


async def test_a_run_whose_owner_expired_can_be_claimed(journal: Journal) -> None:
    await create(journal)
    await beat(journal, "o1", T0 + SECOND)

    assert await claim(journal, "r1", "o2", T0 + SECOND + 1) is not None


async def test_a_run_whose_owner_has_no_row_can_be_claimed(journal: Journal) -> None:
    await create(journal)

    assert await claim(journal, "r1", "o2", T0) is not None


async def test_an_owner_can_claim_its_own_run_again(journal: Journal) -> None:
    await create(journal)
    await beat(journal, "o1", T0 + SECOND)

    claimed = await claim(journal, "r1", "o1", T0)

    assert claimed is not None
    assert 2 == claimed.lease.epoch


@pytest.mark.parametrize("status", [RunStatus.WAITING, RunStatus.NEEDS_DECISION])
async def test_a_run_that_waits_can_be_claimed_while_its_owner_lives(journal: Journal, status: RunStatus) -> None:
    lease = await create(journal)
    await beat(journal, "o1", T0 + SECOND)
    await journal.append(Append(lease, entries(), T0, status))

    assert await claim(journal, "r1", "o2", T0) is not None


async def test_a_run_that_was_given_back_can_be_claimed(journal: Journal) -> None:
    lease = await create(journal)
    await beat(journal, "o1", T0 + SECOND)

    await journal.release(lease)

    assert (await record(journal)).owner is None
    assert await claim(journal, "r1", "o2", T0) is not None


@pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
async def test_a_run_that_ended_or_is_unknown_cannot_be_claimed(journal: Journal, status: RunStatus) -> None:
    await end(journal, await create(journal), status=status)
    before = await record(journal)

    unknown = before._replace(run_id="nowhere", key=4711)
    assert [] == await journal.claim([before, unknown], "o1", T0)
    assert before == await record(journal)


async def test_of_many_runs_those_are_claimed_that_can_be(journal: Journal) -> None:
    names = ["free", "held", "ended", *(f"r{n}" for n in range(70)), "waits", "taken"]
    leases = {name: await create(journal, name, owner="alive") for name in names}
    await beat(journal, "alive", T0 + SECOND)
    await end(journal, leases["ended"])
    await journal.append(Append(leases["waits"], entries(), T0, RunStatus.WAITING, wake_at=T0 + 1))
    for name in names:
        if name not in ("held", "ended", "waits"):
            await journal.release(leases[name])
    seen = [await record(journal, name) for name in names]
    taken = await claim(journal, "taken", "o3", T0)
    assert taken is not None
    await journal.release(taken.lease, taken.before)

    claims = await journal.claim(seen, "o2", T0)

    free = [run for run in seen if run.run_id not in ("held", "ended", "taken")]
    assert {run.run_id: (Lease(run.run_id, run.key, 2), run) for run in free} == {
        claimed.lease.run_id: claimed for claimed in claims
    }
    assert len(free) == len(claims)
    owners = [(await record(journal, name)).owner for name in names]
    assert [None if name == "taken" else "alive" if name in ("held", "ended") else "o2" for name in names] == owners


async def test_claiming_nothing_claims_nothing(journal: Journal) -> None:
    assert [] == await journal.claim([], "o1", T0)


async def test_claims_share_their_transaction_with_other_writes(journal: Journal) -> None:
    leases = [await create(journal, f"r{n}", owner="o1") for n in range(40)]
    seen = [await record(journal, f"r{n}") for n in range(40)]
    extends = [journal.append(Append(lease, entries(), T0, RunStatus.WAITING)) for lease in leases[:10]]
    claiming = journal.claim(seen[5:30], "o2", T0)
    creating = journal.create(new_run("new"), [FIRST])
    refused = [journal.append(Append(lease, entries(), T0)) for lease in leases[20:25]]
    last = journal.append(Append(leases[39], entries(), T0))

    outcomes = await asyncio.gather(*extends, claiming, creating, *refused, last, return_exceptions=True)

    claims = outcomes[10]
    assert isinstance(claims, list)
    assert {f"r{n}" for n in range(5, 30)} == {claimed.lease.run_id for claimed in claims}
    assert [None] * 10 == outcomes[:10]
    assert [JournalConflictError] * 5 == [type(outcome) for outcome in outcomes[12:17]]
    assert outcomes[17] is None
    assert [1] == await seqs(journal, "new")
    assert [[1, 2]] * 10 + [[1]] * 29 + [[1, 2]] == [await seqs(journal, f"r{n}") for n in range(40)]


async def test_of_many_claims_one_succeeds(database: Database) -> None:
    journals = [await database.open() for _ in range(2)]
    lease = await create(journals[0])
    for name in ("a", "b"):
        await beat(journals[0], name, T0 + SECOND)
    await journals[0].release(lease)

    claims = await asyncio.gather(*(claim(each, "r1", name, T0) for each, name in zip(journals, "ab", strict=True)))

    assert 1 == sum(claimed is not None for claimed in claims)


async def test_a_run_is_given_back_as_it_was_before_it_was_claimed(journal: Journal) -> None:
    lease = await create(journal)
    await journal.append(Append(lease, entries(), T0, RunStatus.WAITING, wake_at=T0 + SECOND))
    claimed = await claim(journal, "r1", "o2", T0)
    assert claimed is not None

    await journal.release(claimed.lease, claimed.before)

    after = await record(journal)
    assert (None, RunStatus.WAITING, T0 + SECOND, 2) == (after.owner, after.status, after.wake_at, after.epoch)


async def test_a_run_that_ended_is_not_given_back(journal: Journal) -> None:
    lease = await create(journal)
    before = await record(journal)
    await end(journal, lease)

    await journal.release(lease, before)

    assert RunStatus.COMPLETED == (await record(journal)).status


async def test_giving_back_a_run_that_was_taken_over_changes_nothing(journal: Journal) -> None:
    lease = await create(journal)
    before = await record(journal)
    await claim(journal, "r1", "o2", T0)

    await journal.release(lease)
    await journal.release(lease, before._replace(status=RunStatus.WAITING))

    after = await record(journal)
    assert ("o2", RunStatus.RUNNING) == (after.owner, after.status)


async def test_a_heartbeat_writes_the_row_of_its_owner(journal: Journal) -> None:
    await beat(journal, "o1", T0)
    second = await beat(journal, "o2", T0)
    first = await beat(journal, "o1", T0 + SECOND)

    assert {first, second} == set(await journal.owners())


async def test_an_owner_that_retires_leaves_its_runs_to_others(journal: Journal) -> None:
    await create(journal, "r1", owner="o1")
    await create(journal, "r2", owner="o2")
    await beat(journal, "o1", T0 + SECOND)
    second = await beat(journal, "o2", T0 + SECOND)

    await journal.retire("o1")
    await journal.retire("nobody")

    assert [second] == await journal.owners()
    assert (await record(journal, "r1")).owner is None
    assert "o2" == (await record(journal, "r2")).owner


# --- reading ----------------------------------------------------------------------------------------------------------


async def test_what_is_not_there_reads_as_nothing(journal: Journal) -> None:
    assert await journal.record("nowhere") is None
    assert await journal.started("nowhere") is None
    assert [] == await journal.read("nowhere")
    assert await journal.last("nowhere") is None
    assert [] == await journal.messages("nowhere")
    assert [] == await journal.waits("nowhere")
    assert [] == await journal.runs(RunQuery(before="nowhere"))


async def test_entries_are_read_in_pages(journal: Journal) -> None:
    history = [FIRST, *entries(2, 9)]
    await journal.create(new_run(), history)

    assert history[4:7] == await journal.read("r1", after=4, limit=3)
    assert history[8:] == await journal.read("r1", after=8)
    assert [] == await journal.read("r1", after=10)
    assert [] == await journal.read("r1", limit=0)


STEP = '{"step":1,"name":"say \\",\\"content\\":\\"","content":{"input":"x","output":[1,",\\"content\\":"]}}'
STEP_HEAD = '{"step":1,"name":"say \\",\\"content\\":\\""}'


@pytest.mark.parametrize(
    ("type", "payload", "head"),
    [
        (EntryType.STEP_RECORDED, STEP, STEP_HEAD),
        (EntryType.STATE_RECORDED, '{"step":1,"kind":"full","state":{"a":1}}', '{"step":1,"kind":"full"}'),
        (EntryType.STATE_RECORDED, '{"step":1,"kind":"same"}', '{"step":1,"kind":"same"}'),
        (EntryType.STATE_RECORDED, '{"step":1,"state_blob":"00"}', '{"step":1,"state_blob":"00"}'),
        (EntryType.TASK_COMPLETED, '{"call":1,"result":5}', '{"call":1,"result":5}'),
        ("Other", '{"call":1,"state":5}', '{"call":1,"state":5}'),
    ],
)
async def test_entries_are_read_without_the_values_that_are_not_wanted(
    type: str, payload: str, head: str, journal: Journal
) -> None:
    entry = Entry(2, type, T0, payload, chain_digest(GENESIS, type, T0, payload))
    await journal.create(new_run(), [FIRST, entry])
    unwanted = [EntryType.STEP_RECORDED, EntryType.STATE_RECORDED]

    assert [FIRST, entry._replace(payload=head)] == await journal.read("r1", without_values=unwanted)
    assert [entry] == await journal.read("r1", after=1, limit=1)


async def test_entries_of_types_that_are_not_wanted_are_left_out(journal: Journal) -> None:
    types = [EntryType.STEP_RECORDED, EntryType.STATE_RECORDED, EntryType.TASK_SCHEDULED, "Unknown"]
    history = [FIRST]
    for seq in range(2, 14):
        type = str(types[seq % 4])
        history.append(Entry(seq, type, T0, "{}", chain_digest(history[-1].digest, type, T0, "{}")))
    await journal.create(new_run(), history)
    unwanted = frozenset({EntryType.STEP_RECORDED, EntryType.STATE_RECORDED})
    wanted = [entry for entry in history if entry.type not in unwanted]

    assert wanted == await journal.read("r1", without=unwanted)
    assert wanted[2:4] == await journal.read("r1", after=wanted[1].seq, limit=2, without=unwanted)
    assert [] == await journal.read("r1", without={entry.type for entry in history})


async def test_the_last_entry_is_read_alone(journal: Journal) -> None:
    history = [FIRST, *entries(2, 12)]
    await journal.create(new_run(), history)
    await create(journal, "r2")

    assert history[-1] == await journal.last("r1")
    assert FIRST == await journal.last("r2")


@pytest.mark.slow
async def test_a_page_is_never_larger_than_the_largest(journal: Journal) -> None:
    await journal.create(new_run(), [FIRST, *entries(2, MAX_PAGE)])

    assert MAX_PAGE == len(await journal.read("r1", limit=MAX_PAGE * 2)) == len(await journal.read("r1"))
    assert MAX_PAGE == len(await journal.read("r1", limit=10**30))


async def test_runs_are_listed_newest_first_whatever_the_clock_said(journal: Journal) -> None:
    for n in range(5):
        await create(journal, f"r{n}", created_at=T0 - n)

    assert ["r4", "r3", "r2", "r1", "r0"] == ids(await journal.runs(RunQuery()))
    assert ["r4", "r3"] == ids(await journal.runs(RunQuery(limit=2)))
    assert ["r2", "r1"] == ids(await journal.runs(RunQuery(limit=2, before="r3")))
    assert [] == await journal.runs(RunQuery(limit=-1))


async def test_ids_are_found_by_their_beginning_those_that_go_less_deep_first(journal: Journal) -> None:
    for run_id in ("run-1", "run-1/child:0", "run-1~2", "run-2", "run-2/a/b", "other", "ru", "run_1"):
        await create(journal, run_id)

    assert ["run-2", "run-1", "run-1~2", "run-1/child:0", "run-2/a/b"] == await journal.ids("run-", 10)
    assert ["run-2", "run-1"] == await journal.ids("run-", 2)
    assert ["run-2/a/b"] == await journal.ids("run-2/", 10)
    assert ["run_1", "ru", "other"] == (await journal.ids("", 5))[:3]
    assert [] == await journal.ids("run-3", 10)
    assert [] == await journal.ids("run-", -1)


@pytest.mark.parametrize("prefix", ["%", "_", "run%", "'", "x' OR 1=1 --", "[r]*", "\x7f", "\u00e9"])
async def test_a_beginning_of_ids_is_text_and_no_pattern(journal: Journal, prefix: str) -> None:
    await create(journal, "run-1")

    assert [] == await journal.ids(prefix, 10)


async def test_a_sound_store_says_how_it_is(journal: Journal) -> None:
    await create(journal, "a")
    await end(journal, await create(journal, "b"))
    await post(journal, "a")

    health = await journal.health()

    assert ({"running": 1, "completed": 1}, 1, ()) == (dict(health.runs), health.pending, health.problems)
    assert health.size_bytes > 0
    assert health.log_bytes >= 0
    assert health.free_bytes > 0
    assert health.schema_version > 0
    assert health.place


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (RunQuery(status=RunStatus.COMPLETED), ["b"]),
        (RunQuery(status=RunStatus.RUNNING), ["c", "a"]),
        (RunQuery(workflow="other"), ["c"]),
        (RunQuery(forked_from="a"), ["b"]),
        (RunQuery(parent_id="a"), ["c", "b"]),
        (RunQuery(parent_id="a", workflow="other"), ["c"]),
        (RunQuery(parent_id="a", before="c"), ["b"]),
        (RunQuery(workflow="nothing"), []),
    ],
)
async def test_runs_are_listed_by_what_they_are(journal: Journal, query: RunQuery, expected: list[str]) -> None:
    await create(journal, "a")
    await end(journal, await create(journal, "b", forked_from="a", parent_id="a"))
    await create(journal, "c", workflow="other", parent_id="a")

    assert expected == ids(await journal.runs(query))


async def wait_until(journal: Journal, run_id: str, wake_at: int | None, owner: str = "o1") -> Lease:
    lease = await create(journal, run_id, owner=owner)
    await journal.append(Append(lease, (), T0, RunStatus.WAITING, wake_at=wake_at))
    return lease


async def test_runs_that_are_due_come_earliest_first(journal: Journal) -> None:
    await wait_until(journal, "later", T0 + 3)
    await wait_until(journal, "second", T0 + 2)
    await wait_until(journal, "first", T0 + 1, owner="o2")
    await wait_until(journal, "never", None)
    await create(journal, "running")

    assert ["first", "second"] == ids(await journal.due(T0 + 2, None, 10))
    assert ["first"] == ids(await journal.due(T0 + 2, None, 1))
    assert ["second"] == ids(await journal.due(T0 + 2, "o1", 10))
    assert [] == await journal.due(T0, None, 10)
    assert [] == await journal.due(T0 + 9, "nobody", 10)


async def test_due_runs_are_read_page_by_page(journal: Journal) -> None:
    names = [f"r{n}" for n in range(7)]
    for n, name in enumerate(names):
        await wait_until(journal, name, T0 + n // 3)

    for owner in (None, "o1"):
        found: list[RunRecord] = []
        while page := await journal.due(T0 + 9, owner, 2, found[-1] if found else None):
            found += page
        assert names == ids(found)


async def test_abandoned_runs_are_read_page_by_page(journal: Journal) -> None:
    names = [f"r{n}" for n in range(5)]
    for name in names:
        await create(journal, name)

    found: list[RunRecord] = []
    while page := await journal.abandoned(T0, 2, found[-1] if found else None):
        found += page

    assert names == ids(found)


async def test_the_next_wake_up_is_the_earliest_of_those_that_wait(journal: Journal) -> None:
    assert await journal.next_wake(None) is None

    await wait_until(journal, "later", T0 + 3)
    await wait_until(journal, "sooner", T0 + 2, owner="o2")
    await wait_until(journal, "never", None)
    before = await journal.next_wake(None)
    await claim(journal, "sooner", "o2", T0)

    assert T0 + 2 == before
    assert T0 + 3 == await journal.next_wake(None) == await journal.next_wake("o1")
    assert await journal.next_wake("o2") is None


async def test_a_run_that_was_given_back_is_due_for_anyone_only(journal: Journal) -> None:
    await journal.release(await wait_until(journal, "r1", T0 + 1))

    assert ["r1"] == ids(await journal.due(T0 + 1, None, 10))
    assert [] == await journal.due(T0 + 1, "o1", 10)


async def test_running_runs_without_a_living_owner_are_abandoned(journal: Journal) -> None:
    await journal.release(await create(journal, "released", owner="alive"))
    await create(journal, "orphaned", owner="gone")
    await create(journal, "expired", owner="late")
    await create(journal, "held", owner="alive")
    await wait_until(journal, "waiting", None, owner="gone")
    await end(journal, await create(journal, "ended", owner="gone"))
    await beat(journal, "late", T0)
    await beat(journal, "alive", T0 + 1)

    assert ["released", "orphaned", "expired"] == ids(await journal.abandoned(T0 + 1, 10))
    assert ["released"] == ids(await journal.abandoned(T0 + 1, 1))
    assert ["released", "orphaned"] == ids(await journal.abandoned(T0, 10))


async def test_the_first_pages_of_runs_are_what_reading_each_says(journal: Journal) -> None:
    names = [f"r{n}" for n in range(40)]
    for n, name in enumerate(names):
        lease = await create(journal, name)
        await journal.append(Append(lease, entries(2, n), T0))

    pages = await journal.first_pages([*reversed(names), "nowhere"])

    expected = [FirstPage(name, await journal.read(name), True, False) for name in reversed(names)]
    assert [*expected, FirstPage("nowhere", [], True, False)] == pages
    assert [] == await journal.first_pages([])


async def test_first_pages_end_where_they_hold_as_many_entries_as_a_read(journal: Journal) -> None:
    lengths = {"a": 2, "b": MAX_PAGE, "c": 1, "d": MAX_PAGE}
    for name, length in lengths.items():
        lease = await create(journal, name)
        await journal.append(Append(lease, entries(2, length - 1), T0))

    found = [await journal.first_pages(list(names)) for names in ("abc", "bc", "cd", "dc", "ac")]

    told = [[(page.run_id, len(page.entries), page.is_whole) for page in pages] for pages in found]
    assert [
        [("a", 2, True), ("b", MAX_PAGE - 2, False)],
        [("b", MAX_PAGE, False)],
        [("c", 1, True), ("d", MAX_PAGE - 1, False)],
        [("d", MAX_PAGE, False)],
        [("a", 2, True), ("c", 1, True)],
    ] == told


async def test_first_pages_end_after_the_run_with_which_they_are_long(journal: Journal) -> None:
    payload = f'{{"task":"draft","input":"{"x" * (MANY_CHARACTERS // 4)}"}}'
    for name in "abcdef":
        lease = await create(journal, name)
        long = [entry._replace(payload=payload) for entry in entries(2, 2)]
        await journal.append(Append(lease, long, T0))

    found = [await journal.first_pages(list(names)) for names in ("abcdef", "cdef", "ef")]

    assert [["a", "b"], ["c", "d"], ["e", "f"]] == [[page.run_id for page in pages] for pages in found]
    assert all(page.is_whole for pages in found for page in pages)


async def test_a_first_page_tells_whether_the_run_can_take_a_message_now(journal: Journal) -> None:
    for name in ("asked", "waits", "waits for another", "gets what nobody was named for", "took"):
        key = None if name != "waits for another" else "k"
        type = "open" if name.startswith("gets") else "approval"
        await create_waiting(journal, name, Wait(2, type, key))
    await post(journal, "asked", CANCEL_REQUESTED)
    await post(journal, "waits")
    await post(journal, "waits for another")
    await post(journal, None, "open")
    posted = await post(journal, "took")
    assert posted.id is not None
    took = await record(journal, "took")
    await journal.append(Append(Lease("took", took.key, 1), entries(3), T0, taken=[posted.id]))
    names = [run.run_id for run in await journal.runs(RunQuery())]

    pages = await journal.first_pages(names)

    having = {page.run_id for page in pages if page.has_messages}
    assert {"asked", "waits", "gets what nobody was named for"} == having
    assert having == {name for name in names if await journal.messages(name)}


# --- messages ---------------------------------------------------------------------------------------------------------


async def test_a_message_for_a_run_that_does_not_exist_is_refused(journal: Journal) -> None:
    with pytest.raises(RunNotFoundError, match="'nowhere'") as refusal:
        await post(journal, "nowhere")

    assert "nowhere" == refusal.value.run_id


async def test_a_message_is_read_as_it_was_posted(journal: Journal) -> None:
    await create_waiting(journal, "r1", Wait(2, "approval", "k"))

    addressed = await journal.post("r1", "approval", "k", "m1", '{"a":1}', T0 + 1)
    broadcast = await journal.post(None, "approval", "k", None, "null", T0 + 2)

    assert addressed.id is not None
    assert broadcast.id is not None
    assert [
        Message(addressed.id, "r1", "approval", "k", "m1", '{"a":1}', T0 + 1),
        Message(broadcast.id, None, "approval", "k", None, "null", T0 + 2),
    ] == await journal.messages("r1")
    assert [addressed.id] == [message.id for message in await journal.messages("r1", 1)]


@pytest.mark.parametrize("run_id", ["r1", None])
@pytest.mark.parametrize(
    ("type", "key", "is_match"),
    [
        ("approval", "k", True),
        ("approval", None, False),
        ("approval", "", False),
        ("approval", "K", False),
        ("approval ", "k", False),
        ("other", None, True),
        ("other", "k", False),
        ("other", "None", False),
    ],
)
async def test_a_wait_matches_equal_type_and_key(
    journal: Journal, run_id: str | None, type: str, key: str | None, is_match: bool
) -> None:
    await create_waiting(journal, "r1", Wait(2, "approval", "k"), Wait(3, "other", None))

    posted = await post(journal, run_id, type, key)

    assert ("r1" if is_match else None) == receiver(posted)
    assert ([posted.id] if is_match else []) == [message.id for message in await journal.messages("r1")]


async def test_an_addressed_message_is_never_for_another_run(journal: Journal) -> None:
    await create(journal, "r1")
    await create_waiting(journal, "r2", Wait(2, "approval", None))

    posted = await post(journal, "r1")

    assert posted.receiver is None
    assert [] == await journal.messages("r1") == await journal.messages("r2")


async def test_a_message_that_came_first_is_there_for_the_wait_that_comes_later(journal: Journal) -> None:
    lease = await create(journal)
    addressed, broadcast = await post(journal, "r1"), await post(journal, None)

    await journal.append(Append(lease, entries(), T0, opened=[Wait(2, "approval", None)]))

    assert [addressed.id, broadcast.id] == [message.id for message in await journal.messages("r1")]


@pytest.mark.parametrize("type", [CANCEL_REQUESTED, DECISION, CHILD_ENDED])
async def test_what_satay_tells_a_run_needs_no_wait(journal: Journal, type: str) -> None:
    await create(journal)

    posted = await post(journal, "r1", type)

    assert "r1" == receiver(posted)
    assert [posted.id] == [message.id for message in await journal.messages("r1")]


async def test_only_the_prefix_of_satay_needs_no_wait(journal: Journal) -> None:
    await create(journal)

    posted = [await post(journal, "r1", type) for type in ("satayx", "Satay.cancel", "satay")]

    assert [None, None, None] == [receiver(each) for each in posted]
    assert [] == await journal.messages("r1")


async def test_a_run_that_ended_receives_nothing(journal: Journal) -> None:
    await end(journal, await create_waiting(journal, "r1", Wait(2, "approval", None)), 3)

    with pytest.raises(RunEndedError):
        await post(journal, "r1")
    assert (await post(journal, "r1", CANCEL_REQUESTED)).receiver is None
    assert (await post(journal, None)).receiver is None


async def test_a_message_to_nobody_goes_to_the_run_that_waits_longest(journal: Journal) -> None:
    await create(journal, "oldest")
    first = await create_waiting(journal, "r1", Wait(2, "approval", None))
    await create_waiting(journal, "r2", Wait(2, "approval", None))
    posted = await post(journal, None)
    assert posted.id is not None

    await journal.append(Append(first, entries(3), T0, taken=[posted.id], closed=[2]))
    second = await post(journal, None)

    assert "r1" == receiver(posted)
    assert "r2" == receiver(second)


async def test_as_many_messages_as_waits_go_to_one_run_each(journal: Journal) -> None:
    for n in range(3):
        await create_waiting(journal, f"r{n}", Wait(2, "approval", None))

    posted = [await post(journal, None) for _ in range(5)]

    assert ["r0", "r1", "r2", "r2", "r2"] == [receiver(each) for each in posted]


async def test_a_message_to_nobody_can_be_read_by_all_who_wait_and_taken_by_one(journal: Journal) -> None:
    first = await create_waiting(journal, "r1", Wait(2, "approval", None))
    second = await create_waiting(journal, "r2", Wait(2, "approval", None))
    posted = await post(journal, None)
    assert posted.id is not None
    assert await journal.messages("r1") == await journal.messages("r2") != []

    await journal.append(Append(second, entries(3), T0, taken=[posted.id], closed=[2]))
    with pytest.raises(MessageTakenError) as refusal:
        await journal.append(Append(first, entries(3), T0 + 9, RunStatus.RUNNING, taken=[posted.id], closed=[2]))

    assert "r1" == refusal.value.run_id
    assert [1, 2] == await seqs(journal, "r1")
    assert [Wait(2, "approval", None)] == await journal.waits("r1")
    assert (RunStatus.WAITING, T0) == ((await record(journal)).status, (await record(journal)).updated_at)
    assert [] == await journal.messages("r1")


@pytest.mark.parametrize("event_id", ["m1", None])
async def test_a_message_is_taken_once(journal: Journal, event_id: str | None) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))
    posted = await post(journal, "r1", event_id=event_id)
    assert posted.id is not None

    with pytest.raises(MessageTakenError):
        await journal.append(Append(lease, entries(3), T0, taken=[posted.id, posted.id]))
    await journal.append(Append(lease, entries(3), T0, taken=[posted.id]))
    with pytest.raises(MessageTakenError):
        await journal.append(Append(lease, entries(4), T0, taken=[posted.id]))

    assert [] == await journal.messages("r1")
    assert [1, 2, 3] == await seqs(journal)


async def test_a_message_for_another_run_cannot_be_taken(journal: Journal) -> None:
    lease = await create(journal, "r1")
    await create_waiting(journal, "r2", Wait(2, "approval", None))
    posted = await post(journal, "r2")
    assert posted.id is not None

    with pytest.raises(MessageTakenError):
        await journal.append(Append(lease, entries(), T0, taken=[posted.id]))

    assert 1 == len(await journal.messages("r2"))


@pytest.mark.parametrize("run_id", ["r1", None])
async def test_a_second_message_with_the_same_event_id_is_dropped_for_ever(
    journal: Journal, run_id: str | None
) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))
    first = await post(journal, run_id, event_id="m1")
    assert first.id is not None

    before = await post(journal, run_id, event_id="m1")
    await journal.append(Append(lease, entries(3), T0, taken=[first.id]))
    after = await post(journal, run_id, "other type", "other key", event_id="m1")

    assert before.id is None
    assert "r1" == receiver(before)
    assert Posted(None, None) == after
    assert [] == await journal.messages("r1")


async def test_the_same_event_id_to_another_receiver_is_another_message(journal: Journal) -> None:
    await create(journal, "r1")
    await create(journal, "r2")

    posted = [await post(journal, run_id, event_id="m1") for run_id in ("r1", "r2", None)]

    assert None not in [each.id for each in posted]


async def test_messages_without_an_event_id_are_all_different(journal: Journal) -> None:
    await create_waiting(journal, "r1", Wait(2, "approval", None))

    for _ in range(3):
        await post(journal, "r1")

    assert 3 == len(await journal.messages("r1"))


async def test_the_numbers_of_messages_rise_for_ever(journal: Journal) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))
    first = await post(journal, "r1")
    assert first.id is not None

    await journal.append(Append(lease, entries(3), T0, taken=[first.id]))
    second = await post(journal, "r1")

    assert second.id is not None
    assert second.id > first.id


async def test_what_can_be_delivered_is_found_from_a_number_on(journal: Journal) -> None:
    assert (0, []) == await journal.deliverable(0, 10, T0)

    await create_waiting(journal, "r1", Wait(2, "approval", None))
    await create_waiting(journal, "r2", Wait(2, "other", None))
    await create(journal, "r3")
    posted = [
        await post(journal, None),
        await post(journal, "r2", "other"),
        await post(journal, "r2", "unwanted"),
        await post(journal, "r3", CANCEL_REQUESTED),
        await post(journal, None, "unwanted"),
    ]
    highest = posted[-1].id
    second = posted[1].id
    assert highest is not None
    assert second is not None

    through, found = await journal.deliverable(0, 10, T0)
    assert (highest, ["r1", "r2", "r3"]) == (through, ids(found))
    through, found = await journal.deliverable(second, 10, T0)
    assert (highest, ["r3"]) == (through, ids(found))
    assert (highest, []) == await journal.deliverable(highest, 10, T0) == await journal.deliverable(1 << 62, 1, T0)


async def test_the_runs_for_which_a_run_waits_are_found_at_any_depth_as_long_as_all_between_wait(
    journal: Journal,
) -> None:
    def on(run_id: str) -> Wait:
        return Wait(2, CHILD_ENDED, run_id)

    await create_waiting(journal, "top", on("a"), on("b"), on("ended"), on("not there"), Wait(2, "approval", "c"))
    await create_waiting(journal, "a", on("a1"))
    await create_waiting(journal, "a1", on("top"))
    working = await create_waiting(journal, "b", on("b1"))
    await journal.append(Append(working, entries(3), T0, RunStatus.RUNNING))
    for run_id in ("b1", "c"):
        await create(journal, run_id)
    await end(journal, await create(journal, "ended"))

    assert {"a", "a1", "b"} == set(ids(await journal.waited_for("top")))
    assert {"top", "a", "b"} == set(ids(await journal.waited_for("a1")))
    for run_id in ("b", "ended", "nowhere"):
        assert [] == await journal.waited_for(run_id)


@pytest.mark.parametrize("has_lapsed", [False, True])
async def test_a_message_to_nobody_is_told_to_a_run_that_is_driven_where_the_first_is_not(
    has_lapsed: bool, journal: Journal
) -> None:
    await create_waiting(journal, "left", Wait(2, "approval", None), owner="gone")
    if has_lapsed:
        await journal.heartbeat(Owner("gone", "h", 1, "t", T0 - 1))
    for n in (1, 2):
        await create_waiting(journal, f"driven{n}", Wait(2, "approval", None))

    nobody = await post(journal, None)
    await journal.heartbeat(Owner("o1", "h", 1, "t", T0))
    earlier = await post(journal, None, event_id="m1")
    again = await post(journal, None, event_id="m1")
    _, found = await journal.deliverable(0, 10, T0)

    assert ("left", None) == (receiver(nobody), nobody.driven)
    for posted in (earlier, again):
        assert posted.receiver is not None
        assert posted.driven is not None
        assert ["driven1", "driven2"] == ids([posted.receiver, posted.driven])
    assert ["left", "driven1", "driven2"] == ids(found)


async def test_whoever_goes_on_from_the_number_of_a_short_page_misses_nothing(journal: Journal) -> None:
    for n in range(5):
        await create_waiting(journal, f"r{n}", Wait(2, "approval", str(n)))
        await post(journal, None, "unwanted")
        await post(journal, None, key=str(n))

    after, seen = 0, list[str]()
    for _ in range(3):
        after, found = await journal.deliverable(after, 2, T0)
        seen += ids(found)

    assert [f"r{n}" for n in range(5)] == seen


async def test_what_was_taken_cannot_be_delivered_any_more(journal: Journal) -> None:
    lease = await create_waiting(journal, "r1", Wait(2, "approval", None))
    posted = [await post(journal, "r1", event_id=id) for id in ("m1", None)]
    taken = [each.id for each in posted if each.id is not None]

    await journal.append(Append(lease, entries(3), T0, taken=taken))

    assert (max(taken), []) == await journal.deliverable(0, 10, T0)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a\0b", "😀", "e\u0301", "' OR 1=1 --", "../x", "%", "x" * 5000])
async def test_any_text_can_be_an_id_or_a_key(journal: Journal, text: str) -> None:
    await create(journal, "plain")
    lease = await journal.create(new_run(text, start_key=text, workflow=text), [FIRST])
    await journal.append(Append(lease, entries(), T0, opened=[Wait(2, "approval", text)]))
    posted = await post(journal, text, key=text, event_id=text)

    assert text == receiver(posted)
    assert [text] == [message.key for message in await journal.messages(text)]
    assert (await post(journal, text, key=text, event_id=text)).id is None
    assert [text] == ids(await journal.runs(RunQuery(workflow=text)))
    assert [1, 2] == await seqs(journal, text)
    started = await journal.started(text)
    assert started is not None
    assert text == started.run_id


SURROGATE = "\ud800x"


@pytest.mark.parametrize(
    "call",
    [
        lambda journal, _: journal.create(new_run(SURROGATE), [FIRST]),
        lambda journal, _: journal.create(new_run("new", start_key=SURROGATE), [FIRST]),
        lambda journal, lease: journal.append(Append(lease, entries(), T0, opened=[Wait(2, "approval", SURROGATE)])),
        lambda journal, lease: journal.append(Append(lease, [FIRST._replace(seq=2, payload=SURROGATE)], T0)),
        lambda journal, lease: journal.append(Append(lease, entries(), T0, blobs=[Blob("00" * 32, SURROGATE)])),
        lambda journal, _: claim(journal, "r1", SURROGATE, T0),
        lambda journal, _: journal.note([Note(SURROGATE, entries())]),
        lambda journal, _: journal.note([Note("free", [FIRST._replace(seq=2, payload=SURROGATE)])]),
        lambda journal, _: journal.post("r1", "approval", SURROGATE, None, "1", T0),
        lambda journal, _: journal.post("r1", "approval", None, SURROGATE, "1", T0),
        lambda journal, _: journal.post(SURROGATE, "approval", None, None, "1", T0),
        lambda journal, _: journal.record(SURROGATE),
        lambda journal, _: journal.started(SURROGATE),
        lambda journal, _: journal.read(SURROGATE),
        lambda journal, _: journal.first_pages(["r1", SURROGATE]),
        lambda journal, _: journal.messages(SURROGATE),
        lambda journal, _: journal.runs(RunQuery(workflow=SURROGATE)),
    ],
)
async def test_a_lone_surrogate_is_one_clear_error(
    journal: Journal, call: Callable[[Journal, Lease], Awaitable[object]]
) -> None:
    lease = await create(journal)
    await create_undriven(journal, "free")

    with pytest.raises(InvalidValueError, match="surrogate"):
        await call(journal, lease)

    assert [1] == await seqs(journal) == await seqs(journal, "free")
    assert ["free", "r1"] == ids(await journal.runs(RunQuery()))
    assert [] == await journal.waits("r1")


@pytest.mark.parametrize(
    "call",
    [
        lambda journal, lease: journal.append(Append(lease, [FIRST._replace(seq=2, at=2**63)], T0)),
        lambda journal, lease: journal.append(Append(lease, entries(), 2**64, RunStatus.WAITING)),
        lambda journal, _: journal.due(2**63, None, 10),
    ],
)
async def test_a_number_beyond_sixty_four_bits_is_one_clear_error(
    journal: Journal, call: Callable[[Journal, Lease], Awaitable[object]]
) -> None:
    lease = await create(journal)

    with pytest.raises(InvalidValueError, match="64 bits"):
        await call(journal, lease)

    assert [1] == await seqs(journal)


# --- cancelling and closing -------------------------------------------------------------------------------------------


async def test_a_caller_that_is_cancelled_loses_no_write_and_harms_nobody(journal: Journal) -> None:
    leases = [await create(journal, f"r{n}") for n in range(20)]

    async def extend(lease: Lease) -> None:
        await journal.append(Append(lease, entries(), T0))

    tasks = [asyncio.ensure_future(extend(lease)) for lease in leases]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [asyncio.CancelledError, type(None)] * 10 == [type(outcome) for outcome in outcomes]
    await end(journal, leases[0], 3)
    assert [[1, 2, 3], *[[1, 2]] * 19] == [await seqs(journal, f"r{n}") for n in range(20)]


async def test_a_reader_that_is_cancelled_harms_nobody(journal: Journal) -> None:
    lease = await create(journal)

    reading = [asyncio.ensure_future(journal.read("r1")) for _ in range(5)]
    for each in reading:
        each.cancel()
    await journal.append(Append(lease, entries(), T0))

    assert [1, 2] == await seqs(journal)


async def test_closing_writes_what_was_queued(database: Database) -> None:
    journal = await database.open()
    lease = await create(journal)

    queued = [journal.append(Append(lease, entries(seq), T0)) for seq in range(2, 52)]
    await journal.close()

    assert all(each.is_done for each in queued)
    assert list(range(1, 52)) == await seqs(await database.open())


async def test_closing_twice_is_allowed(database: Database) -> None:
    journal = await database.open()
    await create(journal)

    await journal.close()
    await journal.close()
    other = await database.open()
    await asyncio.gather(other.close(), other.close())


async def test_closing_that_was_cancelled_can_be_finished(database: Database) -> None:
    journal = await database.open()
    lease = await create(journal)
    journal.append(Append(lease, entries(), T0))

    closing = asyncio.ensure_future(journal.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await journal.close()

    assert [1, 2] == await seqs(await database.open())


@pytest.mark.parametrize(
    "call",
    [
        lambda journal: journal.create(new_run("r2"), [FIRST]),
        lambda journal: journal.append(Append(Lease("r1", 1, 1), entries(), T0)),
        lambda journal: journal.note([Note("r1", entries())]),
        lambda journal: journal.record("r1"),
        lambda journal: journal.owners(),
        lambda journal: journal.post("r1", "approval", None, None, "1", T0),
    ],
)
async def test_a_journal_that_was_closed_says_so(
    database: Database, call: Callable[[Journal], Awaitable[object]]
) -> None:
    journal = await database.open()
    await create(journal)
    await journal.close()

    with pytest.raises(JournalClosedError):
        await call(journal)


# --- processes --------------------------------------------------------------------------------------------------------

EXTEND_ONE_RUN = """
lease = Lease(sys.argv[1], int(sys.argv[2]), 1)
won = 0
print("ready", flush=True)
sys.stdin.read(1)
for seq in range(2, 152):
    try:
        await journal.append(Append(lease, entries(seq), T0))
        won += 1
    except JournalConflictError:
        pass
print(won)
"""


@pytest.mark.slow
async def test_two_processes_never_both_extend_a_run(database: Database) -> None:
    journal = await database.open()
    lease = await create(journal)

    children = [database.spawn(EXTEND_ONE_RUN, lease.run_id, str(lease.key)) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        assert "ready\n" == child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go")
        child.stdin.flush()
    results = [child.communicate(timeout=CHILD_TIMEOUT_SECONDS) for child in children]

    assert ["", ""] == [errors for _, errors in results]
    assert 150 == sum(int(output.split()[-1]) for output, _ in results)
    assert list(range(1, 152)) == await seqs(journal)


NOTE_IN_TWO_JOURNALS = """
print("ready", flush=True)
sys.stdin.read(1)
won = 0
while won < 50:
    lasts = [await journal.last(run_id) for run_id in ("a", "b")]
    turns = [entries(last.seq + 1, 1, last.digest) for last in lasts]
    try:
        await journal.note([Note("a", turns[0]), Note("b", turns[1])])
        won += 1
    except JournalConflictError:
        pass
print(won)
"""


@pytest.mark.slow
async def test_two_processes_that_note_at_once_lose_nothing_and_write_both_journals_or_none(database: Database) -> None:
    journal = await database.open()
    for run_id in ("a", "b"):
        await create_undriven(journal, run_id)

    children = [database.spawn(NOTE_IN_TWO_JOURNALS) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        assert "ready\n" == child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go")
        child.stdin.flush()
    results = [child.communicate(timeout=CHILD_TIMEOUT_SECONDS) for child in children]

    assert [("50\n", "")] * 2 == results
    history = await journal.read("a")
    assert history == await journal.read("b")
    assert 101 == len(history)
    assert_sound(history)


EXTEND_FOR_EVER = """
lease = await journal.create(new_run("r1"), [FIRST])
previous, seq = GENESIS, 2
while True:
    turn = entries(seq, 3, previous)
    kept = [blob(f"{seq}" * 100)]
    await journal.append(Append(lease, turn, T0, RunStatus.WAITING, opened=[Wait(seq, "t", None)], blobs=kept))
    previous, seq = turn[-1].digest, seq + 3
    print(seq - 1, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
async def test_a_process_that_is_killed_leaves_whole_turns(database: Database) -> None:
    child = database.spawn(EXTEND_FOR_EVER)
    assert child.stdout is not None
    for _ in range(60):
        last = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate(timeout=CHILD_TIMEOUT_SECONDS)
    told = int([str(last), *rest.split()][-1])

    journal = await database.open()
    history = await journal.read("r1")

    assert_sound(history)
    assert len(history) >= told
    assert 1 == len(history) % 3
    assert list(range(2, len(history), 3)) == [wait.call for wait in await journal.waits("r1")]
    kept = [blob(f"{seq}" * 100) for seq in range(2, len(history), 3)]
    assert {each.sha256: each.text for each in kept} == await journal.blobs([each.sha256 for each in kept])
    assert await claim(journal, "r1", "o2", T0) is not None


@pytest.mark.slow
async def test_a_new_database_can_be_opened_by_many_at_once(database: Database) -> None:
    children = [database.spawn("print(await journal.record('r1'))") for _ in range(3)]
    journals = await asyncio.gather(*(database.open() for _ in range(8)))
    results = [child.communicate(timeout=CHILD_TIMEOUT_SECONDS) for child in children]

    assert [("None\n", "")] * 3 == results
    for n, journal in enumerate(journals):
        await create(journal, f"r{n}")
    assert 8 == len(await journals[0].runs(RunQuery()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(3)", 3),
        ("raise KeyError('mine')", 1),
        ("asyncio.get_running_loop().stop(); await asyncio.Future()", 1),
    ],
)
async def test_a_script_that_never_closes_ends_at_once(database: Database, ending: str, code: int) -> None:
    child = database.spawn(f"await create(journal)\njournal.read('r1')\nprint('ending', flush=True)\n{ending}")
    assert child.stdout is not None
    assert "ending\n" == child.stdout.readline()

    _, errors = child.communicate(timeout=EXIT_TIMEOUT_SECONDS)

    assert code == child.returncode
    assert "ResourceWarning" not in errors
    assert "thread" not in errors.lower()
    assert [1] == await seqs(await database.open())
