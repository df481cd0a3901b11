"""Every change to a SQLite journal, as a function of a cursor inside a transaction that others begin and end.

A function that refuses raises an error of satay's; what it wrote before is rolled back by whoever runs it. Refusals
that can be known come before the first write, because a refusal after it costs its neighbours in the transaction a
second attempt.
"""

import functools
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from satay.errors import (
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
    PARENT_ASKS,
    Append,
    Claim,
    Lease,
    NewFork,
    NewRun,
    Note,
    Owner,
    Posted,
    Wait,
)
from satay.model import EXPERIMENT_WORKFLOW, SESSION_WORKFLOW, TERMINAL_STATUSES, Entry, RunRecord, RunStatus
from satay.stores import sqlite_reads as reads
from satay.stores.sqlite_blobs import PackedBlob, to_digest
from satay.stores.sqlite_reads import NOBODY, Pending
from satay.stores.sqlite_schema import COMMITTED, LIVE

FIRST_EPOCH: Final = 1

NO_PAYLOAD: Final = "null"
"""The payload of a message that the store posts by itself."""

MAX_BULK_ROWS: Final = 512
"""How many rows one statement inserts; a power of two, so that few statements serve all."""

INSERT_RUN: Final = (
    "INSERT INTO runs (run_id, workflow, status, created_at, updated_at, owner, epoch, "
    "parent_id, forked_from, fork_seq, start_key, code_version) VALUES"
)

EventRow: TypeAlias = tuple[int, int, str, int, str, bytearray]
"""A row of `events`: the run's key, and an entry."""

T = TypeVar("T")


class NewMessage(NamedTuple):
    """A message to be posted, as the protocol's `post` describes it."""

    run_id: str | None
    type: str
    key: str | None
    event_id: str | None
    payload: str
    at: int


class Takeover(NamedTuple):
    """Runs to be claimed by `owner`, as they were read."""

    seen: Sequence[RunRecord]
    owner: str
    now: int


class Handover(NamedTuple):
    """A run to be given back, and how its row was before it was claimed."""

    lease: Lease
    before: RunRecord | None


class Creation(NamedTuple):
    """A run to be created."""

    run: NewRun
    entries: Sequence[Entry]


def create(cursor: sqlite3.Cursor, creation: Creation) -> Lease:
    run, entries = creation
    check_sequence(entries, 1, run.run_id)
    lease = _insert_run(cursor, run)
    insert_events(cursor, [event_row(lease.key, entry) for entry in entries])
    return lease


def fork(cursor: sqlite3.Cursor, fork: NewFork) -> Lease:
    source = cursor.execute(
        f"SELECT run, digest FROM {COMMITTED}.events "
        f"WHERE run = (SELECT key FROM {COMMITTED}.runs WHERE run_id = ?) AND seq = ?",
        (fork.source_id, fork.through_seq),
    ).fetchone()
    if source is None or source[1] != fork.prefix_digest:
        raise JournalConflictError(
            f"run {fork.source_id!r} does not have the entry {fork.through_seq} that the fork {fork.run.run_id!r} "
            "starts from; read it again and fork from what is there",
            run_id=fork.source_id,
        )
    check_sequence((fork.first,), 1, fork.run.run_id)
    check_sequence(fork.after, fork.through_seq + 1, fork.run.run_id)
    lease = _insert_run(cursor, fork.run)
    insert_events(cursor, [event_row(lease.key, fork.first)])
    cursor.execute(
        "INSERT INTO events (run, seq, type, at, payload, digest) "
        f"SELECT ?, seq, type, at, payload, digest FROM {COMMITTED}.events "
        "WHERE run = ? AND seq BETWEEN 2 AND ? ORDER BY seq",
        (lease.key, source[0], fork.through_seq),
    )
    if cursor.rowcount != fork.through_seq - 1:
        raise _incomplete(cursor, source[0], fork)
    insert_events(cursor, [event_row(lease.key, entry) for entry in fork.after])
    if fork.waits:
        _open_waits(cursor, lease.key, fork.waits, fork.run.created_at)
    return lease


def _incomplete(cursor: sqlite3.Cursor, source: int, fork: NewFork) -> JournalCorruptError:
    rows = cursor.execute("SELECT seq FROM events WHERE run = ? ORDER BY seq LIMIT ?", (source, fork.through_seq))
    missing = next(seq for seq, (there,) in enumerate(rows, 1) if seq != there)
    return JournalCorruptError(
        f"run {fork.source_id!r} cannot be forked: its entry {missing} is missing", run_id=fork.source_id, seq=missing
    )


def append(cursor: sqlite3.Cursor, append: Append) -> None:
    extend(cursor, append)
    change(cursor, append)


def change(cursor: sqlite3.Cursor, append: Append) -> None:
    """Write what an append changes beside its entries."""
    key = append.lease.key
    if append.status is not None:
        cursor.execute(
            "UPDATE runs SET status = ?, wake_at = ?, updated_at = ? WHERE key = ?",
            (append.status, append.wake_at, append.at, key),
        )
    if append.taken:
        _take(cursor, append)
    if append.closed:
        cursor.executemany("DELETE FROM waits WHERE run = ? AND call = ?", [(key, call) for call in append.closed])
    if append.opened:
        _open_waits(cursor, key, append.opened, append.at)
    if append.status in TERMINAL_STATUSES:
        end(cursor, append.lease, append.at)
    if append.successor is not None:
        _succeed(cursor, key, Creation(*append.successor))


def note(cursor: sqlite3.Cursor, notes: Sequence[Note]) -> None:
    places: dict[str, tuple[int, int]] = {}
    rows: list[EventRow] = []
    for run_id, entries in notes:
        key, last_seq = places[run_id] if run_id in places else _find_undriven(cursor, run_id)
        check_sequence(entries, last_seq + 1, run_id)
        places[run_id] = (key, last_seq + len(entries))
        rows += [event_row(key, entry) for entry in entries]
    insert_events(cursor, rows)


def _find_undriven(cursor: sqlite3.Cursor, run_id: str) -> tuple[int, int]:
    """The key and the last seq of a run that lives and that nobody drives."""
    row = cursor.execute(
        "SELECT key, owner, status, (SELECT max(seq) FROM events WHERE run = key) FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    match row:
        case None:
            reason = "is not in this journal"
        case (_, _, status, _) if RunStatus(status).is_terminal:
            reason = f"has ended: it is {status}"
        case (key, None, _, last_seq):
            return key, last_seq
        case (_, owner, _, _):
            reason = f"belongs to the owner {owner!r}, who alone extends it"
    raise JournalConflictError(f"run {run_id!r} {reason}; nothing was written, read it again", run_id=run_id)


def claim(cursor: sqlite3.Cursor, takeover: Takeover) -> list[Claim]:
    return [claim for chunk in chunks(takeover.seen) for claim in _claim(cursor, takeover._replace(seen=chunk))]


_IS_FREE: Final = f"""
    runs.workflow <> '{EXPERIMENT_WORKFLOW}' AND CASE
        WHEN runs.status NOT IN {LIVE} THEN runs.workflow = '{SESSION_WORKFLOW}'
        ELSE runs.owner IS NULL OR runs.owner = ? OR runs.status IN ('waiting', 'needs_decision')
        OR NOT EXISTS (SELECT 1 FROM owners WHERE owners.id = runs.owner AND owners.expires_at >= ?)
    END
"""


def _claim(cursor: sqlite3.Cursor, takeover: Takeover) -> list[Claim]:
    seen, owner, now = takeover
    free = cursor.execute(
        f"WITH seen (key, epoch) AS (VALUES {values(2, len(seen))}) SELECT {reads.RUN_COLUMNS} FROM seen "
        f"CROSS JOIN runs ON runs.key = seen.key AND runs.epoch = seen.epoch WHERE {_IS_FREE}",
        [*(number for record in seen for number in (record.key, record.epoch)), owner, now],
    )
    before = list(map(reads.to_run, free))
    for records in chunks(before):
        cursor.execute(
            "UPDATE runs SET owner = ?, epoch = epoch + 1, status = 'running', wake_at = NULL, updated_at = ? "
            f"WHERE key IN ({', '.join('?' * len(records))})",
            (owner, now, *(record.key for record in records)),
        )
    return [Claim(Lease(record.run_id, record.key, record.epoch + 1), record) for record in before]


def release(cursor: sqlite3.Cursor, handover: Handover) -> None:
    lease, before = handover
    whose = f"WHERE key = ? AND epoch = ? AND status IN {LIVE}"
    if before is None:
        cursor.execute(f"UPDATE runs SET owner = NULL {whose}", (lease.key, lease.epoch))
    else:
        cursor.execute(
            f"UPDATE runs SET owner = NULL, status = ?, wake_at = ? {whose}",
            (before.status, before.wake_at, lease.key, lease.epoch),
        )


def heartbeat(cursor: sqlite3.Cursor, owner: Owner) -> None:
    cursor.execute(
        "INSERT INTO owners (id, host, pid, started_at, expires_at) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, "
        "started_at = excluded.started_at, expires_at = excluded.expires_at",
        owner,
    )


def retire(cursor: sqlite3.Cursor, owner_id: str) -> None:
    cursor.execute("DELETE FROM owners WHERE id = ?", (owner_id,))
    cursor.execute(f"UPDATE runs SET owner = NULL WHERE owner = ? AND status IN {LIVE}", (owner_id,))


def post(cursor: sqlite3.Cursor, message: NewMessage) -> Posted:
    run = NOBODY if message.run_id is None else _find_run(cursor, message.run_id)
    is_for_body = message.run_id is not None and not str(message.type).startswith("satay.")
    cursor.execute(
        "INSERT INTO inbox (run, type, key, event_id, payload, at) SELECT ?, ?, ?, ?, ?, ? "
        f"WHERE NOT ? OR EXISTS (SELECT 1 FROM runs WHERE key = ? AND status IN {LIVE}) ON CONFLICT DO NOTHING",
        (run, *message[1:], is_for_body, run),
    )
    if cursor.rowcount == 0:
        if is_for_body and not _was_posted(cursor, run, message.event_id):
            raise RunEndedError(
                f"run {message.run_id!r} has ended and takes no more events", run_id=str(message.run_id)
            )
        return _posted_earlier(cursor, run, message.event_id, message.at)
    id = cursor.lastrowid
    assert id is not None
    return _posted(cursor, id, Pending(id, run, message.type, message.key), message.at)


def _posted(cursor: sqlite3.Cursor, id: int | None, message: Pending, now: int) -> Posted:
    first, driven = reads.receiver(cursor.connection, message), reads.driven_receiver(cursor.connection, message, now)
    return Posted(id, first, None if driven == first else driven)


def _was_posted(cursor: sqlite3.Cursor, run: int, event_id: str | None) -> bool:
    row = cursor.execute("SELECT 1 FROM inbox WHERE run = ? AND event_id = ?", (run, event_id)).fetchone()
    return row is not None


def has_blob(cursor: sqlite3.Cursor, sha256: str) -> bool:
    digest = to_digest(sha256)
    return cursor.execute("SELECT 1 FROM blobs WHERE sha256 = ?", (digest,)).fetchone() is not None


def store_blobs(cursor: sqlite3.Cursor, blobs: Sequence[PackedBlob]) -> None:
    """Store blobs, each content once."""
    cursor.executemany("INSERT INTO blobs (sha256, is_compressed, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", blobs)


def extend(cursor: sqlite3.Cursor, append: Append) -> None:
    """Insert the entries if the lease holds, the run lives and they follow its last one; else say why not."""
    lease, entries = append.lease, append.entries
    first = entries[0].seq if entries else None
    if first is not None:
        check_sequence(entries, first, lease.run_id)
    row = cursor.execute(
        "SELECT epoch, status, (SELECT max(seq) FROM events WHERE run = key) FROM runs WHERE key = ?", (lease.key,)
    ).fetchone()
    problem = _conflict(row, lease, first)
    if problem is not None:
        raise JournalConflictError(
            f"run {lease.run_id!r} {problem}; nothing was written, read the run again", run_id=lease.run_id
        )
    insert_events(cursor, [event_row(lease.key, entry) for entry in entries])


def _conflict(row: tuple[int, str, int | None] | None, lease: Lease, first: int | None) -> str | None:
    """Why entries that begin with `first` cannot be added to a run with this epoch, status and last seq."""
    match row:
        case None:
            return "is not in this journal"
        case (epoch, _, _) if epoch != lease.epoch:
            return f"was taken over: its epoch is {epoch}, this lease is of epoch {lease.epoch}"
        case (_, status, _) if RunStatus(status).is_terminal:
            return f"has ended: it is {status}"
        case (_, _, last_seq) if first is not None and (last_seq is None or first != last_seq + 1):
            return f"ends at seq {last_seq}, so seq {first} does not follow"
    return None


def event_row(key: int, entry: Entry) -> EventRow:
    """The row of an entry of the run with this key."""
    # For `bytes`, `sqlite3` (as of CPython 3.11) looks for an adapter first; for a `bytearray` it does not.
    return (key, entry[0], entry[1], entry[2], entry[3], bytearray(entry[4]))


def insert_events(cursor: sqlite3.Cursor, rows: Sequence[EventRow]) -> None:
    """Insert entries by few large statements."""
    insert_all(cursor, "INSERT INTO events (run, seq, type, at, payload, digest) VALUES", rows)


def insert_all(cursor: sqlite3.Cursor, sql: str, rows: Sequence[Sequence[object]]) -> None:
    """Finish the statement with a list of values and execute it, in chunks.

    A statement gives up the interpreter's lock and has to get it back from the busy event loop, so few large ones are
    worth much more than their work.
    """
    for chunk in chunks(rows):
        cursor.execute(f"{sql} {values(len(chunk[0]), len(chunk))}", [one for row in chunk for one in row])


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts whose sizes are powers of two, so that few statements, which are prepared once, serve all sizes."""
    done = 0
    while done < len(rows):
        size = min(1 << ((len(rows) - done).bit_length() - 1), MAX_BULK_ROWS)
        yield rows[done : done + size]
        done += size


@functools.cache
def values(columns: int, rows: int) -> str:
    """A list of so many rows of parameters."""
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)


def check_sequence(entries: Sequence[Entry], first: int, run_id: str) -> None:
    for seq, entry in enumerate(entries, first):
        if entry[0] != seq:
            raise JournalConflictError(
                f"an entry for run {run_id!r} has seq {entry[0]} where {seq} follows; nothing was written",
                run_id=run_id,
            )


def run_row(run: NewRun) -> Sequence[object]:
    """The values for `INSERT_RUN`. A run that is nobody's waits until someone claims it."""
    status = RunStatus.WAITING if run.owner is None else RunStatus.RUNNING
    return (
        run.run_id, run.workflow, status.value, run.created_at, run.created_at, run.owner, FIRST_EPOCH,
        run.parent_id, run.forked_from, run.fork_seq, run.start_key, run.code_version,
    )  # fmt: skip


def _insert_run(cursor: sqlite3.Cursor, run: NewRun) -> Lease:
    try:
        insert_all(cursor, INSERT_RUN, [run_row(run)])
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            raise
        raise _explain_existing(cursor, run) from error
    key = cursor.lastrowid
    assert key is not None
    return Lease(run.run_id, key, FIRST_EPOCH)


def _explain_existing(cursor: sqlite3.Cursor, run: NewRun) -> RunExistsError:
    if reads.record(cursor.connection, run.run_id) is not None:
        return RunExistsError(f"a run {run.run_id!r} is there already; use another id", run_id=run.run_id)
    assert run.start_key is not None, "only the id and the start key are unique"
    there = reads.started(cursor.connection, run.start_key)
    assert there is not None
    return RunExistsError(
        f"the run {there.run_id!r} was started under the key {run.start_key!r} already; use another key",
        run_id=there.run_id,
    )


def _take(cursor: sqlite3.Cursor, append: Append) -> None:
    """Take messages out of the inbox. Those with an event id leave a mark, by which a second one is known for ever."""
    rows = [(id, append.lease.key) for id in append.taken]
    whose = f"id = ? AND run IN ({NOBODY}, ?) AND is_taken = 0"
    cursor.executemany(f"UPDATE inbox SET is_taken = 1, payload = '' WHERE {whose} AND event_id IS NOT NULL", rows)
    marked = cursor.rowcount
    cursor.executemany(f"DELETE FROM inbox WHERE {whose} AND event_id IS NULL", rows)
    if marked + cursor.rowcount != len(rows):
        raise MessageTakenError(
            f"a message that run {append.lease.run_id!r} was to take is gone from the inbox; read its messages again",
            run_id=append.lease.run_id,
        )


def _open_waits(cursor: sqlite3.Cursor, key: int, waits: Sequence[Wait], at: int) -> None:
    cursor.executemany("INSERT INTO waits (run, call, type, key) VALUES (?, ?, ?, ?)", [(key, *wait) for wait in waits])
    # A child that ended before anyone waited for it has nobody else to tell of it.
    children = [(key, wait.key, at, wait.key) for wait in waits if wait.type == CHILD_ENDED]
    cursor.executemany(
        f"INSERT INTO inbox (run, type, key, payload, at) SELECT ?, '{CHILD_ENDED}', ?, '{NO_PAYLOAD}', ? "
        f"WHERE EXISTS (SELECT 1 FROM runs WHERE run_id = ? AND status NOT IN {LIVE})",
        children,
    )


def end(cursor: sqlite3.Cursor, lease: Lease, at: int) -> None:
    """Close the waits of a run that ended, tell the runs that wait for it, and ask its children to cancel.

    Those of a session stay: it can be gone on with.
    """
    cursor.execute(
        "DELETE FROM waits WHERE run = ? "
        f"AND NOT EXISTS (SELECT 1 FROM runs WHERE key = waits.run AND workflow = '{SESSION_WORKFLOW}')",
        (lease.key,),
    )
    cursor.execute(
        f"INSERT INTO inbox (run, type, key, payload, at) SELECT run, type, key, '{NO_PAYLOAD}', ? "
        f"FROM waits WHERE type = '{CHILD_ENDED}' AND key = ? GROUP BY run ORDER BY min(id)",
        (at, lease.run_id),
    )
    cursor.execute(
        "INSERT INTO inbox (run, type, event_id, payload, at) "
        f"SELECT key, '{CANCEL_REQUESTED}', '{PARENT_ASKS}', '{NO_PAYLOAD}', ? "
        f"FROM runs WHERE parent_id = ? AND status IN {LIVE} ON CONFLICT DO NOTHING",
        (at, lease.run_id),
    )


def _succeed(cursor: sqlite3.Cursor, key: int, creation: Creation) -> None:
    """Create the successor, and hand it the messages that its predecessor did not take."""
    successor = create(cursor, creation)
    cursor.execute("UPDATE inbox SET run = ? WHERE run = ? AND is_taken = 0", (successor.key, key))
    # The predecessor remembers them too: a second one that is addressed to it is still a second one.
    cursor.execute(
        "INSERT INTO inbox (run, type, key, event_id, payload, at, is_taken) "
        "SELECT ?, type, key, event_id, '', at, 1 FROM inbox WHERE run = ? AND event_id IS NOT NULL",
        (key, successor.key),
    )


def _find_run(cursor: sqlite3.Cursor, run_id: str) -> int:
    row = cursor.execute("SELECT key, workflow FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        raise RunNotFoundError(f"a message was addressed to run {run_id!r}, and there is no such run", run_id=run_id)
    key, workflow = row
    if workflow == EXPERIMENT_WORKFLOW:
        raise RunNotFoundError(
            f"a message was addressed to {run_id!r}, which is an experiment and no run; address one of its members",
            run_id=run_id,
        )
    return int(key)


def _posted_earlier(cursor: sqlite3.Cursor, run: int, event_id: str | None, now: int) -> Posted:
    """The receivers of the message that was posted first, as long as nobody took it."""
    row = cursor.execute(
        "SELECT id, run, type, key FROM inbox WHERE run = ? AND event_id = ? AND is_taken = 0", (run, event_id)
    ).fetchone()
    return Posted(None, None) if row is None else _posted(cursor, None, Pending(*row), now)
