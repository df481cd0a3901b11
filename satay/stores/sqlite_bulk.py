"""The common course of a SQLite journal: many creations and appends at once, by few large statements.

What is refused here, or fails, is undone whole; then `sqlite_writes` performs the same calls one by one, and tells why.
So nothing here says more than yes or no.
"""

import functools
import sqlite3
from collections.abc import Sequence
from typing import Final

from satay.journal import CHILD_ENDED, Append, Lease
from satay.model import TERMINAL_STATUSES
from satay.stores import sqlite_writes as writes
from satay.stores.sqlite_schema import LIVE

MAX_LONE_ENTRIES: Final = 32
"""How many entries `append_alone` takes: each number of them is a statement of its own."""

MAX_HEADS: Final = 10_000
"""Of how many runs it is remembered how far they reach."""


class Heads:
    """How far runs are known to reach in the journal.

    Entries are never removed. So one that was committed is there for ever, and a fence need not look for it again.
    """

    def __init__(self) -> None:
        self._seqs: dict[int, int] = {}

    def note(self, key: int, seq: int) -> None:
        """The entries of a run are committed up to this one."""
        if len(self._seqs) >= MAX_HEADS:
            self._seqs.clear()
        self._seqs[key] = seq

    def reach(self, cursor: sqlite3.Cursor, key: int, seq: int) -> bool:
        """Whether the entry is there. Called outside of a transaction, where nothing is seen that may be undone."""
        if 0 < seq <= self._seqs.get(key, 0):
            return True
        row = cursor.execute("SELECT 1 FROM events WHERE run = ? AND seq = ?", (key, seq)).fetchone()
        if row is not None:
            self.note(key, seq)
        return row is not None

    def reach_all(self, cursor: sqlite3.Cursor, appends: Sequence[Append]) -> bool:
        """Whether the entry before each append is there. Called outside of a transaction."""
        places = [(append.lease.key, append.entries[0].seq - 1) for append in appends if append.entries]
        unknown = [(key, seq) for key, seq in places if not 0 < seq <= self._seqs.get(key, 0)]
        return all(_are_there(cursor, chunk) for chunk in writes.chunks(unknown))


def _are_there(cursor: sqlite3.Cursor, places: Sequence[tuple[int, int]]) -> bool:
    there = cursor.execute(
        f"WITH place (run, seq) AS (VALUES {writes.values(2, len(places))}) SELECT count(*) FROM place "
        "CROSS JOIN events ON events.run = place.run AND events.seq = place.seq",
        [number for place in places for number in place],
    ).fetchone()
    return bool(there == (len(places),))


def is_lone(append: Append) -> bool:
    """Whether `append_alone` can perform an append: it adds entries, not too many, and changes nothing else."""
    return append.status is None and _is_simple(append) and 0 < len(append.entries) <= MAX_LONE_ENTRIES


def _is_simple(append: Append) -> bool:
    return not (append.taken or append.closed or append.opened or append.successor)


def append_alone(cursor: sqlite3.Cursor, append: Append) -> None:
    """Perform an append that `is_lone` as one statement, which is its own transaction.

    Whoever calls this knows that the entry before is there. The rest of the fence is where the statement takes the
    run's key from: if the lease does not hold it is NULL, which no entry may have. That costs no statement of its own,
    and reads `events` nowhere: SQLite would copy the rows into a temporary table first.
    """
    lease, entries = append.lease, append.entries
    writes.check_sequence(entries, entries[0].seq, lease.run_id)
    values: list[object] = [lease.key, lease.epoch]
    for entry in entries:
        values += writes.event_row(lease.key, entry)
    del values[2]  # The statement asks `runs` for the key of the first row.
    cursor.execute(_fenced_insert(len(entries)), values)


_LIVES: Final = "CASE status WHEN 'running' THEN 1 WHEN 'waiting' THEN 1 WHEN 'needs_decision' THEN 1 END"
"""Whether a run has not ended. For the list in `LIVE` SQLite makes a temporary index whenever a statement runs."""


@functools.cache
def _fenced_insert(entries: int) -> str:
    first = f"((SELECT key FROM runs WHERE key = ? AND epoch = ? AND {_LIVES}), ?, ?, ?, ?, ?)"
    rest = f", {writes.values(6, entries - 1)}" if entries > 1 else ""
    return f"INSERT INTO events (run, seq, type, at, payload, digest) VALUES {first}{rest}"


def create_all(cursor: sqlite3.Cursor, creations: Sequence[writes.Creation]) -> list[Lease]:
    """Create runs, in a transaction. Raises `IntegrityError` if one of them is there."""
    leases: list[Lease] = []
    for chunk in writes.chunks([creation.run for creation in creations]):
        writes.insert_all(cursor, writes.INSERT_RUN, [writes.run_row(run) for run in chunk])
        last = cursor.lastrowid
        assert last is not None
        # One statement under the write lock: SQLite numbers its rows one after the other.
        leases += [Lease(run.run_id, key, writes.FIRST_EPOCH) for key, run in enumerate(chunk, last - len(chunk) + 1)]
    rows: list[writes.EventRow] = []
    for creation, lease in zip(creations, leases, strict=True):
        writes.check_sequence(creation.entries, 1, lease.run_id)
        rows += [writes.event_row(lease.key, entry) for entry in creation.entries]
    writes.insert_events(cursor, rows)
    return leases


def append_all(cursor: sqlite3.Cursor, appends: Sequence[Append]) -> bool:
    """Perform appends of different runs, in a transaction. False if one of them is refused.

    Whoever calls this knows that the entry before each is there.
    """
    if len({append.lease.key for append in appends}) < len(appends):
        return False  # What the first does decides whether the second may.
    if not all(_are_held(cursor, chunk) for chunk in writes.chunks(appends)):
        return False
    rows: list[writes.EventRow] = []
    for append in appends:
        if append.entries:
            writes.check_sequence(append.entries, append.entries[0].seq, append.lease.run_id)
            rows += [writes.event_row(append.lease.key, entry) for entry in append.entries]
    writes.insert_events(cursor, rows)
    _change_statuses(cursor, [append for append in appends if append.status is not None and _is_simple(append)])
    for append in appends:
        if not _is_simple(append):
            writes.change(cursor, append)
    return True


def _are_held(cursor: sqlite3.Cursor, appends: Sequence[Append]) -> bool:
    held = cursor.execute(
        f"WITH fence (run, epoch) AS (VALUES {writes.values(2, len(appends))}) SELECT count(*) FROM fence "
        f"CROSS JOIN runs ON runs.key = fence.run AND runs.epoch = fence.epoch WHERE runs.status IN {LIVE}",
        [number for append in appends for number in (append.lease.key, append.lease.epoch)],
    ).fetchone()
    return bool(held == (len(appends),))


def _change_statuses(cursor: sqlite3.Cursor, appends: Sequence[Append]) -> None:
    for chunk in writes.chunks(appends):
        cursor.execute(
            f"WITH news (run, status, wake_at, at) AS (VALUES {writes.values(4, len(chunk))}) "
            "UPDATE runs SET status = news.status, wake_at = news.wake_at, updated_at = news.at "
            "FROM news WHERE runs.key = news.run",
            [one for append in chunk for one in (append.lease.key, append.status, append.wake_at, append.at)],
        )
    for chunk in writes.chunks([append for append in appends if append.status in TERMINAL_STATUSES]):
        concerned = _concerning_others(cursor, chunk)
        for append in chunk:
            if append.lease.key in concerned:
                writes.end(cursor, append.lease, append.at)


def _concerning_others(cursor: sqlite3.Cursor, appends: Sequence[Append]) -> set[int]:
    """Those of the runs that wait for something, that others wait for, or that have children. Few do."""
    rows = cursor.execute(
        f"WITH ended (run, id) AS (VALUES {writes.values(2, len(appends))}) SELECT run FROM ended "
        "WHERE EXISTS (SELECT 1 FROM waits WHERE waits.run = ended.run) "
        f"OR EXISTS (SELECT 1 FROM waits WHERE type = '{CHILD_ENDED}' AND waits.key = ended.id) "
        "OR EXISTS (SELECT 1 FROM runs WHERE parent_id = ended.id)",
        [one for append in appends for one in (append.lease.key, append.lease.run_id)],
    )
    return {run for (run,) in rows}
