"""Every change to a SQLite journal, as a function of a cursor inside a transaction that others begin and end.

A function that refuses raises an error of satay's; what it wrote before is rolled back by whoever runs it. Refusals
that can be known come before the first write, because a refusal after it costs its neighbours in the transaction a
second attempt.
"""

import functools
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from satay.errors import JournalConflictError, MessageTakenError, RunEndedError, RunExistsError, RunNotFoundError
from satay.journal import (
    CANCEL_REQUESTED,
    CHILD_ENDED,
    PARENT_ASKS,
    Append,
    Blob,
    Claim,
    Lease,
    NewFork,
    NewRun,
    Note,
    Owner,
    Posted,
    Wait,
)
from satay.model import EXPERIMENT_WORKFLOW, TERMINAL_STATUSES, Entry, RunRecord, RunStatus
from satay.stores import sqlite_reads as reads
from satay.stores.sqlite_reads import NOBODY, Pending
from satay.stores.sqlite_schema import LIVE

FIRST_EPOCH: Final = 1

NO_PAYLOAD: Final = "null"
"""The payload of a message that the store posts by itself."""

COMPRESSION_LEVEL: Final = 1
"""The cheapest level of zlib."""

SAMPLE_BYTES: Final = 16 * 1024
"""How much of a blob is compressed to see whether it shrinks."""

WORTHWHILE_RATIO: Final = 0.5
"""A blob whose sample does not shrink to this part of its size is stored as it is: compressing it takes too long."""

_IS_HELD: Final = f"EXISTS (SELECT 1 FROM runs WHERE key = ? AND epoch = ? AND status IN {LIVE})"

MAX_FENCED_ROWS: Final = 32
"""How many entries one fenced statement inserts; more of the same append follow it in the transaction."""


EVENT_COLUMNS: Final = 6
"""The columns of an event, each a parameter of its statement."""

MAX_BULK_ROWS: Final = 512
"""How many entries one statement inserts in a group of appends; a power of two, so that few statements serve all."""

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
    """A run to be claimed by `owner`."""

    run_id: str
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


class PackedBlob(NamedTuple):
    """A blob as it is stored."""

    sha256: bytes
    is_compressed: bool
    data: bytes


def create(cursor: sqlite3.Cursor, creation: Creation) -> Lease:
    run, entries = creation
    _check_sequence(entries, 1, run.run_id)
    lease = _insert_run(cursor, run)
    _insert_events(cursor, lease.key, entries)
    return lease


def fork(cursor: sqlite3.Cursor, fork: NewFork) -> Lease:
    source = cursor.execute(
        "SELECT run, digest FROM events WHERE run = (SELECT key FROM runs WHERE run_id = ?) AND seq = ?",
        (fork.source_id, fork.through_seq),
    ).fetchone()
    if source is None or source[1] != fork.prefix_digest:
        raise JournalConflictError(
            f"run {fork.source_id!r} does not have the entry {fork.through_seq} that the fork {fork.run.run_id!r} "
            "starts from; read it again and fork from what is there",
            run_id=fork.source_id,
        )
    _check_sequence((fork.first,), 1, fork.run.run_id)
    _check_sequence(fork.after, fork.through_seq + 1, fork.run.run_id)
    lease = _insert_run(cursor, fork.run)
    _insert_events(cursor, lease.key, (fork.first,))
    cursor.execute(
        "INSERT INTO events (run, seq, type, at, payload, digest) "
        "SELECT ?, seq, type, at, payload, digest FROM events WHERE run = ? AND seq BETWEEN 2 AND ? ORDER BY seq",
        (lease.key, source[0], fork.through_seq),
    )
    _insert_events(cursor, lease.key, fork.after)
    _open_waits(cursor, lease.key, fork.waits, fork.run.created_at)
    return lease


def append(cursor: sqlite3.Cursor, append: Append) -> None:
    extend(cursor, append)
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
        _end(cursor, append.lease, append.at)
    if append.successor is not None:
        _succeed(cursor, key, Creation(*append.successor))


def note(cursor: sqlite3.Cursor, notes: Sequence[Note]) -> None:
    places: dict[str, tuple[int, int]] = {}
    rows: list[tuple[object, ...]] = []
    for run_id, entries in notes:
        key, last_seq = places[run_id] if run_id in places else _find_undriven(cursor, run_id)
        _check_sequence(entries, last_seq + 1, run_id)
        places[run_id] = (key, last_seq + len(entries))
        rows += [(key, *entry) for entry in entries]
    cursor.executemany(_bulk_insert(1), rows)


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


def claim(cursor: sqlite3.Cursor, takeover: Takeover) -> Claim | None:
    before = reads.record(cursor.connection, takeover.run_id)
    if before is None:
        return None
    cursor.execute(
        f"""
        UPDATE runs SET owner = :owner, epoch = epoch + 1, status = 'running', wake_at = NULL, updated_at = :now
        WHERE key = :key AND status IN {LIVE} AND workflow <> '{EXPERIMENT_WORKFLOW}' AND (
            owner IS NULL OR owner = :owner OR status IN ('waiting', 'needs_decision')
            OR NOT EXISTS (SELECT 1 FROM owners WHERE owners.id = runs.owner AND owners.expires_at >= :now))
        """,
        {"key": before.key, "owner": takeover.owner, "now": takeover.now},
    )
    if cursor.rowcount == 0:
        return None
    return Claim(Lease(before.run_id, before.key, before.epoch + 1), before)


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
        return Posted(None, _receiver_of_earlier(cursor, run, message.event_id))
    id = cursor.lastrowid
    assert id is not None
    return Posted(id, reads.receiver(cursor.connection, Pending(id, run, message.type, message.key)))


def _was_posted(cursor: sqlite3.Cursor, run: int, event_id: str | None) -> bool:
    row = cursor.execute("SELECT 1 FROM inbox WHERE run = ? AND event_id = ?", (run, event_id)).fetchone()
    return row is not None


def pack(blob: Blob) -> PackedBlob:
    """Compress a blob for the store, unless a sample of it does not shrink."""
    digest = reads.to_digest(blob.sha256)
    content = blob.text.encode()
    middle = len(content) // 2
    sample = content[middle : middle + SAMPLE_BYTES]
    if len(zlib.compress(sample, COMPRESSION_LEVEL)) > len(sample) * WORTHWHILE_RATIO:
        return PackedBlob(digest, False, content)
    return PackedBlob(digest, True, zlib.compress(content, COMPRESSION_LEVEL))


def has_blob(cursor: sqlite3.Cursor, sha256: str) -> bool:
    digest = reads.to_digest(sha256)
    return cursor.execute("SELECT 1 FROM blobs WHERE sha256 = ?", (digest,)).fetchone() is not None


def store_blobs(cursor: sqlite3.Cursor, blobs: Sequence[PackedBlob]) -> None:
    """Store blobs, each content once."""
    cursor.executemany("INSERT INTO blobs (sha256, is_compressed, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", blobs)


def is_plain(append: Append) -> bool:
    """Whether an append adds entries and changes nothing else."""
    changes = append.status or append.taken or append.closed or append.opened or append.blobs or append.successor
    return not changes and len(append.entries) > 0


def extend(cursor: sqlite3.Cursor, append: Append) -> None:
    """Insert the entries if the lease holds, the run lives and they follow its last one; else say why not.

    The fence is part of the inserting statement, and reads only: the row of the run is not written for every append.
    """
    lease, entries = append.lease, append.entries
    if not entries:
        if cursor.execute(f"SELECT {_IS_HELD}", (lease.key, lease.epoch)).fetchone() != (1,):
            raise _explain_conflict(cursor, lease, None)
        return
    first = entries[0].seq
    _check_sequence(entries, first, lease.run_id)
    fenced = entries[:MAX_FENCED_ROWS]
    values: list[object] = []
    for entry in fenced:
        values.append(lease.key)
        values += entry
    values += (lease.key, lease.epoch, lease.key, first - 1)
    try:
        inserted = cursor.execute(_fenced_insert(len(fenced)), values).rowcount
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
            raise
        inserted = 0
    if inserted != len(fenced):
        raise _explain_conflict(cursor, lease, first)
    if len(entries) > MAX_FENCED_ROWS:
        _insert_events(cursor, lease.key, entries[MAX_FENCED_ROWS:])


def extend_all(cursor: sqlite3.Cursor, appends: Sequence[Append]) -> bool:
    """Insert the entries of several plain appends if all of their fences hold. False, and nothing is written, if not.

    A statement gives up the interpreter's lock and has to get it back from the busy event loop, so few large ones are
    worth much more than their work.
    """
    rows: list[object] = []
    for append in appends:
        lease, entries = append.lease, append.entries
        _check_sequence(entries, entries[0].seq, lease.run_id)
        for entry in entries:
            rows.append(lease.key)
            rows += entry
    if not all(_are_held(cursor, chunk) for chunk in _chunks(appends, MAX_BULK_ROWS)):
        return False
    for values in _chunks(rows, MAX_BULK_ROWS * EVENT_COLUMNS):
        done = 0
        while done < len(values):
            size = 1 << (((len(values) - done) // EVENT_COLUMNS).bit_length() - 1)
            cursor.execute(_bulk_insert(size), values[done : done + size * EVENT_COLUMNS])
            done += size * EVENT_COLUMNS
    return True


def _are_held(cursor: sqlite3.Cursor, appends: Sequence[Append]) -> bool:
    fences = [
        number for append in appends for number in (append.lease.key, append.lease.epoch, append.entries[0].seq - 1)
    ]
    held = cursor.execute(
        f"WITH fence (run, epoch, seq) AS (VALUES {_rows(3, len(appends))}) "
        "SELECT count(*) FROM fence JOIN runs ON runs.key = fence.run AND runs.epoch = fence.epoch "
        f"JOIN events ON events.run = fence.run AND events.seq = fence.seq WHERE runs.status IN {LIVE} "
        "AND NOT EXISTS (SELECT 1 FROM events AS next WHERE next.run = fence.run AND next.seq = fence.seq + 1)",
        fences,
    ).fetchone()
    return bool(held == (len(appends),))


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _rows(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)


@functools.cache
def _bulk_insert(rows: int) -> str:
    return f"INSERT INTO events (run, seq, type, at, payload, digest) VALUES {_rows(EVENT_COLUMNS, rows)}"


@functools.cache
def _fenced_insert(rows: int) -> str:
    return (
        "INSERT INTO events (run, seq, type, at, payload, digest) "
        f"SELECT * FROM (VALUES {_rows(EVENT_COLUMNS, rows)}) "
        f"WHERE {_IS_HELD} AND EXISTS (SELECT 1 FROM events WHERE run = ? AND seq = ?)"
    )


def _explain_conflict(cursor: sqlite3.Cursor, lease: Lease, seq: int | None) -> JournalConflictError:
    row = cursor.execute(
        "SELECT epoch, status, (SELECT max(seq) FROM events WHERE run = key) FROM runs WHERE key = ?", (lease.key,)
    ).fetchone()
    name = f"run {lease.run_id!r}"
    match row:
        case None:
            reason = f"{name} is not in this journal"
        case (epoch, _, _) if epoch != lease.epoch:
            reason = f"{name} was taken over: its epoch is {epoch}, this lease is of epoch {lease.epoch}"
        case (_, status, _) if RunStatus(status).is_terminal:
            reason = f"{name} has ended: it is {status}"
        case (_, _, last_seq):
            reason = f"{name} ends at seq {last_seq}, so seq {seq} does not follow"
    return JournalConflictError(f"{reason}; nothing was written, read the run again", run_id=lease.run_id)


def _check_sequence(entries: Sequence[Entry], first: int, run_id: str) -> None:
    for seq, entry in enumerate(entries, first):
        if entry[0] != seq:
            raise JournalConflictError(
                f"an entry for run {run_id!r} has seq {entry[0]} where {seq} follows; nothing was written",
                run_id=run_id,
            )


def _insert_events(cursor: sqlite3.Cursor, key: int, entries: Sequence[Entry]) -> None:
    cursor.executemany(_bulk_insert(1), [(key, *entry) for entry in entries])


def _insert_run(cursor: sqlite3.Cursor, run: NewRun) -> Lease:
    status = RunStatus.WAITING if run.owner is None else RunStatus.RUNNING
    try:
        cursor.execute(
            """
            INSERT INTO runs (
                run_id, workflow, status, created_at, updated_at, owner, epoch,
                parent_id, forked_from, fork_seq, start_key, code_version)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            """,
            (
                run.run_id, run.workflow, status, run.created_at, run.created_at, run.owner, FIRST_EPOCH,
                run.parent_id, run.forked_from, run.fork_seq, run.start_key, run.code_version,
            ),
        )  # fmt: skip
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


def _end(cursor: sqlite3.Cursor, lease: Lease, at: int) -> None:
    """Close the waits of a run that ended, tell the runs that wait for it, and ask its children to cancel."""
    cursor.execute("DELETE FROM waits WHERE run = ?", (lease.key,))
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


def _receiver_of_earlier(cursor: sqlite3.Cursor, run: int, event_id: str | None) -> RunRecord | None:
    """The receiver of the message that was posted first, as long as nobody took it."""
    row = cursor.execute(
        "SELECT id, run, type, key FROM inbox WHERE run = ? AND event_id = ? AND is_taken = 0", (run, event_id)
    ).fetchone()
    return None if row is None else reads.receiver(cursor.connection, Pending(*row))
