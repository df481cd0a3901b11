"""Tampering with a real file: each column of each row, rows taken out, put in and exchanged, receipts and blobs.

And what of a file is read to compare runs.
"""

import hashlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

import satay
from satay.accounts import AnswerSource, CallSide, CallState
from satay.archive import Archive
from satay.audits import compare_many, verify_run
from satay.divergences import CallStatus, Cause
from satay.errors import JournalCorruptError, RunNotFoundError, TaskBlockedError
from satay.journal import BLOB_THRESHOLD_BYTES, MAX_PAGE, Journal, chain_digest
from satay.matrices import ComparisonMatrix
from satay.model import Entry
from satay.stores.locations import DATABASE_FILE
from satay.stores.sqlite import open_sqlite
from satay.testing import ManualClock, open_app, settle
from satay.verification import PrefixCheck, Verification
from tests.driving import in_loop

LARGE = "x" * (BLOB_THRESHOLD_BYTES + 1)
RUNS = ("source", "fork", "fork-of-fork", "orphan", "source/audits.child:0")
"""A run, its fork, the fork of that, a fork whose source is gone, and a child."""


@satay.task(name="audits.note")
async def note(text: str) -> str:
    return text


@satay.task(name="audits.fail")
async def fail() -> None:
    raise ValueError("no luck")


@satay.workflow(name="audits.child")
async def child(text: str) -> str:
    return await note(text)


@satay.workflow(name="audits.everything")
async def everything(text: str) -> str:
    first = await note(text)
    large = await note(LARGE)
    try:
        await fail()
    except ValueError as error:
        first += str(error)
    await satay.sleep(60)
    event = await satay.wait_for_event("go")
    first += await satay.start_child(child, first).result()
    return await note(f"{first} {len(large)} {event}")


@satay.task(name="audits.count", effect="pure")
async def count(number: int) -> int:
    return number


@satay.workflow(name="audits.counting")
async def counting(calls: int) -> int:
    return len(await satay.gather(*[count(number) for number in range(calls)]))


async def write_journal(place: Path) -> None:
    async with open_app(place, clock=ManualClock(autojump=True)) as app:
        run = app.start(everything, "a", run_id="source")
        await run
        await app.send_event("go", 1, run_id="source")
        await run.result()
        for source, fork in (("source", "fork"), ("fork", "fork-of-fork"), ("source", "gone"), ("gone", "orphan")):
            input = "b" if fork == "orphan" else satay.MISSING
            last_call = await app.fork(
                source, before_task="audits.note", before_ordinal=2, run_id=fork, workflow_input=input
            )
            await last_call.result()
    with closing(sqlite3.connect(place / DATABASE_FILE)) as database, database:
        database.execute("DELETE FROM events WHERE run = (SELECT key FROM runs WHERE run_id = 'gone')")
        database.execute("DELETE FROM runs WHERE run_id = 'gone'")


Statement = str | tuple[str, Sequence[Any]]


class Tampering:
    """A file that can be changed behind the journal's back, and is put right again after each look."""

    def __init__(self, place: Path) -> None:
        self._path = place / DATABASE_FILE
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self._sound = sqlite3.connect(":memory:")
        self._database.backup(self._sound)

    def close(self) -> None:
        self._database.close()
        self._sound.close()

    def rows(self, run_id: str) -> list[Entry]:
        """The entries of a run."""
        return list(map(Entry._make, self._database.execute(f"{SELECT} ORDER BY seq", (run_id,))))

    def found_each(self, run_id: str, changes: Sequence[Sequence[Statement]]) -> list[Verification]:
        """What is said of a run after each of these changes alone."""

        async def find() -> list[Verification]:
            journal = await open_sqlite(self._path)
            try:
                return [await self._find(journal, run_id, statements) for statements in changes]
            finally:
                await journal.close()

        return in_loop(find())

    async def _find(self, journal: Journal, run_id: str, statements: Sequence[Statement]) -> Verification:
        for statement in statements:
            self._database.execute(*((statement,) if isinstance(statement, str) else statement))
        try:
            return await verify_run(Archive(journal), run_id)
        finally:
            self._sound.backup(self._database)

    def found(self, run_id: str, *statements: Statement) -> Verification:
        """What is said of a run after these statements."""
        (verification,) = self.found_each(run_id, [statements])
        return verification

    def found_at(self, run_id: str, *statements: Statement) -> int | None:
        """The entry that is said not to fit."""
        (seq,) = self.found_at_each(run_id, [statements])
        return seq

    def found_at_each(self, run_id: str, changes: Sequence[Sequence[Statement]]) -> list[int | None]:
        problems = [verification.problem for verification in self.found_each(run_id, changes)]
        assert None not in problems
        return [problem.seq for problem in problems if problem is not None]


SELECT = "SELECT seq, type, at, payload, digest FROM events WHERE run = (SELECT key FROM runs WHERE run_id = ?)"


def change(run_id: str, seq: int, assignment: str) -> tuple[str, Sequence[Any]]:
    where = "WHERE run = (SELECT key FROM runs WHERE run_id = ?) AND seq = ?"
    return f"UPDATE events SET {assignment} {where}", (run_id, seq)


def rewrite(run_id: str, entries: Sequence[Entry]) -> list[tuple[str, Sequence[Any]]]:
    """Statements that write entries over those that are there, with digests that fit."""
    statements: list[tuple[str, Sequence[Any]]] = []
    digest = entries[0].digest
    for entry in entries[1:]:
        digest = chain_digest(digest, entry.type, entry.at, entry.payload)
        set = "UPDATE events SET type = ?, at = ?, payload = ?, digest = ?"
        where = "WHERE run = (SELECT key FROM runs WHERE run_id = ?) AND seq = ?"
        values = (entry.type, entry.at, entry.payload, digest, run_id, entry.seq)
        statements.append((f"{set} {where}", values))
    return statements


def with_payload(entries: Sequence[Entry], seq: int, payload: Any) -> list[Entry]:
    return [entry._replace(payload=payload) if entry.seq == seq else entry for entry in entries]


@pytest.fixture(scope="module")
def tampering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tampering]:
    place = tmp_path_factory.mktemp("audits")
    in_loop(write_journal(place))
    with closing(Tampering(place)) as tampering:
        yield tampering


each_run = pytest.mark.parametrize("run_id", RUNS)

# --- what was not touched ---------------------------------------------------------------------------------------------


@each_run
def test_a_journal_that_nobody_touched_is_intact(tampering: Tampering, run_id: str) -> None:
    verification = tampering.found(run_id)
    last = tampering.rows(run_id)[-1]

    assert verification.problem is None
    assert verification.is_intact
    assert (last.seq, last.digest.hex()) == (verification.entries, verification.head_digest)


def test_a_fork_is_held_against_its_source_where_that_is_there(tampering: Tampering) -> None:
    fork, orphan, source = (tampering.found(run_id) for run_id in ("fork", "orphan", "source"))

    assert ("source", 13, PrefixCheck.SOURCE) == (fork.source_id, fork.inherited, fork.prefix)
    assert ("gone", 14, PrefixCheck.SOURCE_GONE) == (orphan.source_id, orphan.inherited, orphan.prefix)
    assert (None, None, None, None) == (source.source_id, source.inherited, source.prefix, source.receipt_id)


def test_the_receipt_has_the_digest_of_its_stored_text_as_id(tampering: Tampering) -> None:
    payload = tampering.rows("fork")[13].payload
    text = payload[payload.index('"receipt":') + len('"receipt":') : -1]

    assert hashlib.sha256(text.encode()).hexdigest() == tampering.found("fork").receipt_id


def test_a_run_that_goes_on_is_intact_as_far_as_it_is_written(tmp_path: Path) -> None:
    async def check() -> Verification:
        async with open_app(tmp_path) as app:
            await app.start(everything, "a", run_id="source")
            await settle(app)
            return await app.verify("source")

    verification = in_loop(check())

    assert verification.is_intact
    assert 0 < verification.entries < 16


def test_a_run_that_is_not_there_is_an_error(tampering: Tampering) -> None:
    with pytest.raises(RunNotFoundError, match="'nobody'"):
        tampering.found("nobody")


# --- one column -------------------------------------------------------------------------------------------------------


@each_run
@pytest.mark.parametrize(
    "assignment",
    [
        "payload = replace(payload, '}', ' }')",
        "payload = CAST(payload AS BLOB)",
        "payload = CAST(x'7bff7d' AS TEXT)",
        "type = 'NotedSomething'",
        "at = at + 1",
        "at = 'noon'",
        "digest = zeroblob(31)",
        "digest = hex(digest)",
        "seq = 1000",
        "seq = -seq",
        "seq = 'last'",
    ],
)
def test_a_change_of_any_column_of_any_entry_is_found_there(tampering: Tampering, run_id: str, assignment: str) -> None:
    seqs = [entry.seq for entry in tampering.rows(run_id)]
    first = 2 if assignment.startswith("payload = replace") else 1

    found = tampering.found_at_each(run_id, [[change(run_id, seq, assignment)] for seq in seqs[first - 1 :]])

    expected = [1 for _ in seqs] if assignment == "seq = -seq" else seqs
    assert expected[first - 1 :] == found


@each_run
@pytest.mark.parametrize(
    "assignment",
    [
        "workflow = 'other'",
        "code_version = 'other'",
        "created_at = created_at + 1",
        "parent_id = 'other'",
        "status = 'failed'",
        "status = 'running'",
        "status = 'waiting'",
        "status = 'lost'",
        "forked_from = 'child'",
        "fork_seq = 2",
        "fork_seq = 'two', forked_from = 'child'",
        "forked_from = 'child', fork_seq = 2",
    ],
)
def test_a_change_of_what_the_row_repeats_is_found(tampering: Tampering, run_id: str, assignment: str) -> None:
    verification = tampering.found(run_id, (f"UPDATE runs SET {assignment} WHERE run_id = ?", (run_id,)))

    assert not verification.is_intact


@pytest.mark.parametrize("run_id", ["fork", "fork-of-fork", "orphan"])
@pytest.mark.parametrize("assignment", ["forked_from = NULL, fork_seq = NULL", "forked_from = NULL", "fork_seq = NULL"])
def test_a_fork_that_is_made_to_look_like_none_is_found(tampering: Tampering, run_id: str, assignment: str) -> None:
    assert not tampering.found(run_id, (f"UPDATE runs SET {assignment} WHERE run_id = ?", (run_id,))).is_intact


@pytest.mark.parametrize(
    ("run_id", "old", "new", "is_found"),
    [
        ("fork", '"text":"a"', '"text":"b"', True),
        ("fork", '"root":"source"', '"root":"other"', True),
        ("fork", '"seed":', '"seed":1', True),
        ("fork", '"workflow"', '"workflaw"', True),
        ("fork", '"workflow"', "workflow", True),
        ("fork", r"\"policies\":{}", r"\"policies\":{\"*\":\"live\"}", True),
        ("orphan", r"\"cut\":\"before", r"\"cut\":\"after", True),
        ("source", '"root":"source"', '"root":"other"', True),
        ("source/audits.child:0", '"parent":"source"', '"parent":"other"', True),
        # No digest covers the first entry, and nothing repeats these.
        ("source", '"text":"a"', '"text":"b"', False),
        ("source", '"seed":', '"seed":1', False),
        ("orphan", '"text":"b"', '"text":"c"', False),
    ],
)
def test_of_the_first_entry_is_found_what_the_row_or_the_source_repeats(
    tampering: Tampering, run_id: str, old: str, new: str, is_found: bool
) -> None:
    assert old in tampering.rows(run_id)[0].payload

    verification = tampering.found(run_id, change(run_id, 1, f"payload = replace(payload, '{old}', '{new}')"))

    assert is_found is not verification.is_intact
    assert not is_found or (verification.problem is not None and verification.problem.seq == 1)


# --- rows -------------------------------------------------------------------------------------------------------------


@each_run
def test_a_row_that_was_taken_out_is_found_where_it_was(tampering: Tampering, run_id: str) -> None:
    seqs = [entry.seq for entry in tampering.rows(run_id)]
    delete = "DELETE FROM events WHERE run = (SELECT key FROM runs WHERE run_id = ?) AND seq = ?"

    found = tampering.found_at_each(run_id, [[(delete, (run_id, seq))] for seq in seqs])

    assert seqs == found


@each_run
def test_rows_that_were_exchanged_are_found_at_the_first_of_them(tampering: Tampering, run_id: str) -> None:
    seqs = [entry.seq for entry in tampering.rows(run_id)]

    exchanges = [
        [
            change(run_id, seq, "seq = 1000"),
            change(run_id, seq + 1, f"seq = {seq}"),
            change(run_id, 1000, f"seq = {seq + 1}"),
        ]
        for seq in seqs[:-1]
    ]

    assert seqs[:-1] == tampering.found_at_each(run_id, exchanges)


@each_run
@pytest.mark.parametrize("seq", [-1, 0, "next"])
def test_a_row_that_was_put_in_is_found(tampering: Tampering, run_id: str, seq: int | str) -> None:
    last = tampering.rows(run_id)[-1]
    number = last.seq + 1 if seq == "next" else int(seq)
    digest = chain_digest(last.digest, "NotedSomething", 5, "{}")
    insert = "INSERT INTO events SELECT key, ?, 'NotedSomething', 5, '{}', ? FROM runs WHERE run_id = ?"

    assert (last.seq + 1 if seq == "next" else 1) == tampering.found_at(run_id, (insert, (number, digest, run_id)))


@each_run
def test_a_journal_without_entries_is_damaged(tampering: Tampering, run_id: str) -> None:
    delete = "DELETE FROM events WHERE run = (SELECT key FROM runs WHERE run_id = ?)"

    assert 1 == tampering.found_at(run_id, (delete, (run_id,)))


# --- digests that were computed again ---------------------------------------------------------------------------------


def test_a_prefix_with_digests_that_fit_is_found_by_the_source(tampering: Tampering) -> None:
    entries = with_payload(tampering.rows("fork"), 3, '{"call":2,"result":"b"}')
    statements = rewrite("fork", entries)

    assert 3 == tampering.found_at("fork", *statements)
    assert 3 == tampering.found_at("fork-of-fork", *statements)
    assert tampering.found("source", *statements).is_intact


def test_a_source_with_digests_that_fit_is_found_by_its_forks(tampering: Tampering) -> None:
    statements = rewrite("source", with_payload(tampering.rows("source"), 3, '{"call":2,"result":"b"}'))

    assert tampering.found("source", *statements).is_intact
    assert 3 == tampering.found_at("fork", *statements)
    assert "verify the source too" in str(tampering.found("fork", *statements))


def test_a_prefix_with_digests_that_fit_is_found_by_the_receipt_where_the_source_is_gone(tampering: Tampering) -> None:
    entries = with_payload(tampering.rows("orphan"), 3, '{"call":2,"result":"b"}')

    assert 14 == tampering.found_at("orphan", *rewrite("orphan", entries))


def test_a_source_that_lost_what_was_inherited_is_found(tampering: Tampering) -> None:
    delete = "DELETE FROM events WHERE run = (SELECT key FROM runs WHERE run_id = 'source') AND seq = 5"

    assert 5 == tampering.found_at("fork", delete)
    assert 5 == tampering.found_at("fork", change("source", 5, "payload = CAST(x'ff' AS TEXT)"))


@pytest.mark.parametrize("run_id", ["fork", "fork-of-fork", "orphan"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda receipt: receipt | {"run_id": "other"},
        lambda receipt: receipt | {"source_id": "other"},
        lambda receipt: receipt | {"resolved_seq": 2},
        lambda receipt: receipt | {"resolved_entry": "TimerFired"},
        lambda receipt: receipt | {"prefix_digest": "0" * 64},
        lambda receipt: {},
        lambda receipt: [receipt],
        lambda receipt: None,
    ],
)
def test_a_receipt_that_does_not_fit_is_found(
    tampering: Tampering, run_id: str, edit: Callable[[dict[str, Any]], Any]
) -> None:
    entries = tampering.rows(run_id)
    (seq,) = [entry.seq for entry in entries if entry.payload.startswith(f'{{"run_id":"{run_id}"')]
    head, mark, text = entries[seq - 1].payload.partition('"receipt":')
    payload = f"{head}{mark}{json.dumps(edit(json.loads(text[:-1])))}}}"

    assert seq == tampering.found_at(run_id, *rewrite(run_id, with_payload(entries, seq, payload)))


@pytest.mark.parametrize("payload", ['{"run_id":"fork","source_id":"source","receipt":nonsense}', "nonsense", "{}"])
def test_a_receipt_that_cannot_be_read_is_found(tampering: Tampering, payload: str) -> None:
    statements = rewrite("fork", with_payload(tampering.rows("fork"), 14, payload))

    assert 14 == tampering.found_at("fork", *statements)


def test_a_receipt_that_says_the_input_was_kept_is_held_against_the_input(tampering: Tampering) -> None:
    entries = tampering.rows("fork")
    payload = entries[13].payload.replace('"input_overridden":false', '"input_overridden":true')
    new_input = change("fork", 1, 'payload = replace(payload, \'"text":"a"\', \'"text":"b"\')')

    assert 1 == tampering.found_at("fork", new_input)
    rewritten = tampering.found("fork", new_input, *rewrite("fork", with_payload(entries, 14, payload)))
    assert rewritten.problem is not None
    assert (1, "receipt_id") == (rewritten.problem.seq, rewritten.problem.expected.split()[1])


def test_an_end_with_digests_that_fit_must_be_the_one_in_the_row(tampering: Tampering) -> None:
    last = tampering.rows("source")[-1]
    digest = chain_digest(tampering.rows("source")[-2].digest, "WorkflowCancelled", last.at, "{}")
    cancelled = "UPDATE events SET type = 'WorkflowCancelled', payload = '{}', digest = ? WHERE run = 1 AND seq = ?"

    assert last.seq == tampering.found_at("source", (cancelled, (digest, last.seq)))


def test_bytes_in_the_place_of_text_are_found_though_their_digest_fits(tampering: Tampering) -> None:
    entries = tampering.rows("source")
    statements = rewrite("source", with_payload(entries, 3, entries[2].payload.encode()))

    assert 3 == tampering.found_at("source", *statements)


# --- large values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM blobs",
        "UPDATE blobs SET data = zeroblob(100)",
        "UPDATE blobs SET data = 'text'",
        "UPDATE blobs SET data = 7, is_compressed = 0",
        "UPDATE blobs SET is_compressed = 1 - is_compressed",
        "UPDATE blobs SET sha256 = CAST(substr(hex(sha256), 1, 32) AS BLOB)",
    ],
)
@pytest.mark.parametrize("run_id", ["source", "fork", "orphan"])
def test_a_large_value_that_is_lost_or_damaged_is_found_at_its_first_entry(
    tampering: Tampering, run_id: str, statement: str
) -> None:
    assert 4 == tampering.found_at(run_id, statement)
    assert tampering.found("source/audits.child:0", statement).is_intact


def test_the_first_of_several_damages_is_told(tampering: Tampering) -> None:
    late, early = change("fork", 12, "at = 5"), change("fork", 3, "at = 5")

    assert 4 == tampering.found_at("fork", "DELETE FROM blobs", late)
    assert 3 == tampering.found_at("fork", "DELETE FROM blobs", late, early)


def test_a_large_receipt_is_read_from_its_blob(tmp_path: Path) -> None:
    async def fork_with_much_in_mind() -> None:
        async with open_app(tmp_path) as app:
            await app.start(child, "a", run_id="source").result()
            fork = await app.fork("source", before_task=note, run_id="fork", intervention=LARGE)
            await fork.result()

    in_loop(fork_with_much_in_mind())
    with closing(Tampering(tmp_path)) as tampering:
        intact = tampering.found("fork")
        lost = tampering.found_at("fork", "DELETE FROM blobs")

    assert intact.receipt_id is not None
    assert intact.is_intact
    assert 2 == lost


# --- long journals ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_entries_that_cannot_be_read_are_told_from_those_beside_them(tmp_path: Path) -> None:
    async def many() -> None:
        async with open_app(tmp_path) as app:
            await app.start(counting, MAX_PAGE // 2 + 10, run_id="source").result()

    in_loop(many())
    with closing(Tampering(tmp_path)) as tampering:
        whole = tampering.found("source")
        unreadable = tampering.found_at("source", change("source", 7_777, "payload = CAST(x'ff' AS TEXT)"))
        late = tampering.found_at("source", change("source", MAX_PAGE + 5, "at = 5"))

    assert whole.is_intact
    assert MAX_PAGE < whole.entries
    assert (7_777, MAX_PAGE + 5) == (unreadable, late)


# --- comparing --------------------------------------------------------------------------------------------------------


class ReadBlobs:
    """A journal that notes which large values are read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.read_digests: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def blobs(self, digests: Collection[str]) -> Awaitable[dict[str, str]]:
        self.read_digests |= set(digests)
        return self._journal.blobs(digests)


def compared(place: Path, *run_ids: str) -> tuple[ComparisonMatrix, set[str]]:
    async def compare() -> tuple[ComparisonMatrix, set[str]]:
        journal = await open_sqlite(place / DATABASE_FILE)
        watched = ReadBlobs(journal)
        try:
            matrix = await compare_many(Archive(cast(Journal, watched)), run_ids)  # It answers all else by delegation.
        finally:
            await journal.close()
        return matrix, watched.read_digests

    return in_loop(compare())


@satay.workflow(name="audits.large")
async def large(texts: list[str]) -> int:
    return len([await note(text * BLOB_THRESHOLD_BYTES) for text in texts])


async def write_large_runs(place: Path) -> None:
    async with open_app(place) as app:
        for run_id, texts in (("a", ["ax", "bx"]), ("b", ["ax", "cx"]), ("c", ["ax"])):
            await app.start(large, texts, run_id=run_id).result()


def test_only_large_values_that_differ_are_read(tmp_path: Path) -> None:
    in_loop(write_large_runs(tmp_path))

    matrix, read_digests = compared(tmp_path, "a", "b")

    first, second = (row.cells[0] for row in matrix.rows)
    assert first is not None
    assert second is not None
    assert first.one is not None
    assert first.one.outcome_blob is not None
    assert [CallStatus.SAME, CallStatus.DIFFERENT] == [first.status, second.status]
    assert ["$"] == [difference.path for difference in second.result_differences]
    assert ["$.text"] == [difference.path for difference in second.input_differences]
    assert first.one.outcome_blob not in read_digests
    assert 4 == len(read_digests)
    assert "(a large value)" in str(matrix)


def test_a_large_value_of_a_call_that_only_one_run_made_is_not_read(tmp_path: Path) -> None:
    in_loop(write_large_runs(tmp_path))

    matrix, read_digests = compared(tmp_path, "a", "c")

    assert set() == read_digests
    assert [CallStatus.SAME, CallStatus.ONLY_ONE] == [row.cells[0].status for row in matrix.rows if row.cells[0]]


def test_a_large_value_that_is_needed_and_lost_is_named(tmp_path: Path) -> None:
    in_loop(write_large_runs(tmp_path))
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database, database:
        database.execute("DELETE FROM blobs")

    assert compared(tmp_path, "a", "c")
    with pytest.raises(JournalCorruptError, match=r"entry [45] \(Task\w+\) of run 'a' cannot be read"):
        compared(tmp_path, "a", "b")


# --- forks of every kind ----------------------------------------------------------------------------------------------


@satay.task(name="audits.write")
async def write(topic: str, place: int) -> str:
    satay.task_context().record_usage(model="m", input_tokens=1, output_tokens=1, cost=1.0)
    tone = satay.intervention()
    return f"{topic} {place}{'' if tone is None else f' {tone}'}"


@satay.task(name="audits.send", effect="external")
async def send(text: str) -> str:
    return f"sent {text}"


@satay.workflow(name="audits.publish")
async def publish(topic: str) -> str:
    await note("begun")
    drafts = await satay.gather(write(topic, 0), write(topic, 1))
    approval = await satay.wait_for_event("approval")
    try:
        return await send(f"{' and '.join(drafts)} by {approval}")
    except TaskBlockedError:
        return "not sent"


class Judged(NamedTuple):
    """A fork of `publish`, beside its source."""

    comparison: satay.Comparison
    verification: Verification

    def side(self, call: str) -> CallSide:
        (side,) = [found.other for found in self.comparison.calls if call == str(found.identity)]
        assert side is not None
        return side


def judged(place: Path, *, event: str | None = None, **options: Any) -> Judged:
    async def fork_and_judge() -> Judged:
        async with open_app(place) as app:
            source = app.start(publish, "acme", run_id="source")
            await source
            await app.send_event("approval", "ada", run_id="source")
            await source.result()
            fork = await app.fork("source", run_id="fork", **options)
            if event is not None:
                await app.send_event("approval", event, run_id="fork")
            await fork.result()
            return Judged(await app.compare("source", "fork"), await app.verify("fork"))

    judged = in_loop(fork_and_judge())
    assert judged.verification.problem is None
    return judged


def test_a_fork_that_may_not_send_parts_by_policy(tmp_path: Path) -> None:
    found = judged(tmp_path, before_task=send)

    assert Cause.POLICY is found.comparison.cause
    assert CallState.BLOCKED is found.side("audits.send:0").state
    assert "  blocked  " in str(found.comparison)


def test_a_fork_that_replays_what_was_sent_does_not_part(tmp_path: Path) -> None:
    found = judged(tmp_path, before_task=send, tool_policies={"audits.send": "replay"})

    assert found.comparison.is_same
    assert (AnswerSource.REUSED, "source") == (
        found.side("audits.send:0").answer,
        found.side("audits.send:0").reused_from,
    )
    assert "5 (1 by policy) of 5 calls reused; saved 2" in str(found.comparison)


def test_a_fork_that_was_given_an_outcome_parts_by_override(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        before_task=send,
        overrides={("audits.send", 0): "lost"},
        reason="what if it is lost",
    )

    assert Cause.OVERRIDE is found.comparison.cause
    assert "what if it is lost" in str(found.comparison)
    assert AnswerSource.OVERRIDDEN is found.side("audits.send:0").answer


def test_a_fork_that_keeps_siblings_pays_for_the_call_that_runs_again(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        before_task=write,
        keep_siblings=True,
        intervention="politely",
        event="ada",
        tool_policies={"*": "live"},
    )

    assert Cause.INTERVENTION is found.comparison.cause
    assert AnswerSource.KEPT is found.side("audits.write:1").answer
    assert (2.0, 1.0) == (found.comparison.other.usage.cost, found.comparison.other.own_usage.cost)
    assert found.comparison.other.reused is not None
    assert (1.0, 1) == (found.comparison.other.reused.usage.cost, found.comparison.other.reused.kept)


def test_a_fork_that_gets_another_event_parts_there(tmp_path: Path) -> None:
    found = judged(tmp_path, before_event="approval", event="bob", tool_policies={"*": "live"})

    assert Cause.EVENT is found.comparison.cause


def test_a_fork_with_stale_calls_lists_them(tmp_path: Path) -> None:
    found = judged(tmp_path, before_task=send, workflow_input="globex")

    assert ["audits.write:0", "audits.write:1"] == [call.call for call in found.comparison.other.stale_calls]
    assert "  ! audits.write:0: first at $.topic" in str(found.comparison)


def test_a_fork_with_another_input_parts_by_input(tmp_path: Path) -> None:
    found = judged(tmp_path, before_task=write, workflow_input="globex", event="ada", tool_policies={"*": "live"})

    assert Cause.INPUT is found.comparison.cause
