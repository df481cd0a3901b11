"""Every question that is asked of a SQLite journal, as a function of a connection.

Each is one statement, so it sees one state of the database, or needs no more than what it says.
"""

import functools
import sqlite3
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Final, NamedTuple

from satay.collector import collector_paused
from satay.errors import JournalCorruptError
from satay.journal import CHILD_ENDED, MANY_CHARACTERS, MAX_PAGE, FirstPage, Owner, RunQuery, Wait
from satay.model import (
    EXPERIMENT_WORKFLOW,
    SESSION_WORKFLOW,
    VALUE_FIELD,
    Entry,
    EntryType,
    Message,
    RunRecord,
    RunStatus,
)
from satay.stores.sqlite_blobs import PackedBlob, to_digest, unpack
from satay.stores.sqlite_schema import LIVE

NOBODY: Final = 0
"""Stands in `inbox.run` for a message that goes to whoever waits; the keys of runs start at 1."""

RUN_COLUMNS: Final = """
    runs.key, runs.run_id, runs.workflow, runs.status, runs.created_at, runs.updated_at, runs.wake_at, runs.owner,
    runs.epoch, runs.parent_id, runs.forked_from, runs.fork_seq, runs.start_key, runs.code_version
"""

_HAS_WAIT: Final = """EXISTS (
    SELECT 1 FROM waits WHERE waits.run = inbox.run AND waits.type = inbox.type AND waits.key IS inbox.key)"""

_KEY: Final = "(SELECT key FROM runs WHERE run_id = :run_id)"

_IS_FOR_DRIVER: Final = "(inbox.type >= 'satay.' AND inbox.type < 'satay/')"


_to_entry: Final = functools.partial(tuple.__new__, Entry)
"""`Entry._make` without its look at how many columns there are, which is most of what it costs."""


class Pending(NamedTuple):
    """A message of the inbox as far as it matters for who can receive it; `run` is a key or `NOBODY`."""

    id: int
    run: int
    type: str
    key: str | None


def record(connection: sqlite3.Connection, run_id: str) -> RunRecord | None:
    rows = connection.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = ?", (run_id,))
    return _first_run(rows)


def started(connection: sqlite3.Connection, start_key: str) -> RunRecord | None:
    return _first_run(connection.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE start_key = ?", (start_key,)))


def runs(connection: sqlite3.Connection, query: RunQuery) -> list[RunRecord]:
    filters = (
        ("status = ?", query.status),
        ("workflow = ?", query.workflow),
        ("forked_from = ?", query.forked_from),
        ("parent_id = ?", query.parent_id),
        ("key IN (SELECT run FROM waits WHERE type = ?)", query.waits_for),
        ("key < (SELECT key FROM runs WHERE run_id = ?)", query.before),
    )
    given = [(condition, value) for condition, value in filters if value is not None]
    conditions = [condition for condition, _ in given]
    if query.workflow is None:
        conditions.append(f"workflow <> '{EXPERIMENT_WORKFLOW}'")
    where = " AND ".join(conditions)
    sql = f"SELECT {RUN_COLUMNS} FROM runs WHERE {where} ORDER BY key DESC LIMIT ?"
    return _to_runs(connection.execute(sql, (*(value for _, value in given), page(query.limit))))


def ids(connection: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    # Ids are ASCII, so "\x7f" comes after everything that can follow the prefix.
    rest = "substr(run_id, length(:prefix) + 1)"
    sql = f"""
        SELECT run_id FROM runs WHERE run_id >= :prefix AND run_id < :prefix || char(127)
        ORDER BY length({rest}) - length(replace(replace({rest}, '/', ''), '~', '')), key DESC LIMIT :limit
    """
    return [run_id for (run_id,) in connection.execute(sql, {"prefix": prefix, "limit": page(limit)})]


def read(
    connection: sqlite3.Connection,
    run_id: str,
    after: int,
    limit: int,
    without: Collection[str] = (),
    without_values: Collection[str] = (),
) -> list[Entry]:
    unwanted = [str(type) for type in without]
    wanted = f"AND type NOT IN ({', '.join('?' * len(unwanted))}) " if unwanted else ""
    rows = connection.execute(
        f"SELECT seq, type, at, {_payload_without_values(frozenset(without_values))}, digest FROM events "
        f"WHERE run = (SELECT key FROM runs WHERE run_id = ?) AND seq > ? {wanted}ORDER BY seq LIMIT ?",
        (run_id, after, *unwanted, page(limit)),
    )
    with collector_paused():
        return list(map(_to_entry, rows))


@functools.cache
def _payload_without_values(types: frozenset[str]) -> str:
    """The payload; for these types, up to the value: facts are satay's own text, in which its name is not quoted."""
    cases = []
    for type, field in VALUE_FIELD.items():
        if type in types:
            head = f"""substr(payload, 1, instr(payload, ',"{field}":') - 1)"""  # empty where there is no value
            cases.append(f"WHEN '{EntryType(type).value}' THEN coalesce(nullif({head}, '') || '}}', payload)")
    return f"CASE type {' '.join(cases)} ELSE payload END" if cases else "payload"


def first_pages(connection: sqlite3.Connection, run_ids: Sequence[str]) -> list[FirstPage]:
    wanted = run_ids[:MAX_PAGE]
    receivers = _with_messages(connection, wanted)
    pages: list[FirstPage] = []
    rows = characters = 0
    for run_id in wanted:
        if pages and (rows >= MAX_PAGE or characters >= MANY_CHARACTERS):
            break
        entries = read(connection, run_id, 0, MAX_PAGE - rows)
        rows += len(entries)
        characters += sum(len(entry.payload) for entry in entries)
        pages.append(FirstPage(run_id, entries, rows < MAX_PAGE, run_id in receivers))
    return pages


def _with_messages(connection: sqlite3.Connection, run_ids: Sequence[str]) -> set[str]:
    """Those of the runs for which `messages` would find something."""
    sql = f"""
        SELECT run_id FROM runs WHERE run_id IN ({", ".join("?" * len(run_ids))}) AND (
            EXISTS (SELECT 1 FROM inbox WHERE inbox.run = runs.key AND inbox.is_taken = 0 AND {_IS_FOR_DRIVER})
            OR EXISTS (
                SELECT 1 FROM waits CROSS JOIN inbox
                ON inbox.run IN ({NOBODY}, runs.key) AND inbox.type = waits.type AND inbox.key IS waits.key
                AND inbox.is_taken = 0
                WHERE waits.run = runs.key))
    """
    return {run_id for (run_id,) in connection.execute(sql, run_ids)}


def last(connection: sqlite3.Connection, run_id: str) -> Entry | None:
    row = connection.execute(
        "SELECT seq, type, at, payload, digest FROM events "
        "WHERE run = (SELECT key FROM runs WHERE run_id = ?) ORDER BY seq DESC LIMIT 1",
        (run_id,),
    ).fetchone()
    return None if row is None else Entry._make(row)


def blobs(connection: sqlite3.Connection, digests: Collection[str]) -> dict[str, str]:
    return {digest: _blob(connection, digest) for digest in digests}


def due(
    connection: sqlite3.Connection, now: int, owner: str | None, limit: int, after: RunRecord | None = None
) -> list[RunRecord]:
    whose, values = ("TRUE", ()) if owner is None else ("owner = ?", (owner,))
    rest, place = ("TRUE", ()) if after is None else ("(wake_at, key) > (?, ?)", (after.wake_at, after.key))
    sql = (
        f"SELECT {RUN_COLUMNS} FROM runs WHERE {whose} AND status = 'waiting' AND wake_at <= ? AND {rest} "
        "ORDER BY wake_at, key LIMIT ?"
    )
    return _to_runs(connection.execute(sql, (*values, now, *place, page(limit))))


def next_wake(connection: sqlite3.Connection, owner: str | None) -> int | None:
    whose, values = ("TRUE", ()) if owner is None else ("owner = ?", (owner,))
    sql = f"SELECT min(wake_at) FROM runs WHERE {whose} AND status = 'waiting' AND wake_at IS NOT NULL"
    wake_at: int | None = connection.execute(sql, values).fetchone()[0]
    return wake_at


def abandoned(connection: sqlite3.Connection, now: int, limit: int, after: RunRecord | None = None) -> list[RunRecord]:
    sql = (
        f"SELECT {RUN_COLUMNS} FROM runs LEFT JOIN owners ON owners.id = runs.owner "
        f"WHERE status = 'running' AND workflow <> '{SESSION_WORKFLOW}' "
        "AND (owners.id IS NULL OR owners.expires_at < ?) AND key > ? ORDER BY key LIMIT ?"
    )
    return _to_runs(connection.execute(sql, (now, NOBODY if after is None else after.key, page(limit))))


def owners(connection: sqlite3.Connection) -> list[Owner]:
    rows = connection.execute("SELECT id, host, pid, started_at, expires_at FROM owners ORDER BY id")
    return list(map(Owner._make, rows))


def waits(connection: sqlite3.Connection, run_id: str) -> list[Wait]:
    rows = connection.execute(
        "SELECT call, type, key FROM waits WHERE run = (SELECT key FROM runs WHERE run_id = ?) ORDER BY call, id",
        (run_id,),
    )
    return list(map(Wait._make, rows))


def waited_for(connection: sqlite3.Connection, run_id: str) -> list[RunRecord]:
    sql = f"""
        WITH RECURSIVE below (key) AS (
            SELECT key FROM runs WHERE run_id = ?
            UNION
            SELECT child.key FROM below
            CROSS JOIN runs AS above ON above.key = below.key AND above.status = 'waiting'
            CROSS JOIN waits ON waits.run = above.key AND waits.type = '{CHILD_ENDED}'
            CROSS JOIN runs AS child ON child.run_id = waits.key
        )
        SELECT {RUN_COLUMNS} FROM below CROSS JOIN runs ON runs.key = below.key
        WHERE runs.run_id <> ? AND runs.status IN {LIVE} LIMIT {MAX_PAGE}
    """
    return _to_runs(connection.execute(sql, (run_id, run_id)))


def messages(connection: sqlite3.Connection, run_id: str, limit: int) -> list[Message]:
    sql = f"""
        SELECT id, CASE run WHEN {NOBODY} THEN NULL ELSE :run_id END, type, key, event_id, payload, at
        FROM inbox WHERE id IN (
            SELECT id FROM inbox WHERE run = {_KEY} AND is_taken = 0 AND {_IS_FOR_DRIVER}
            UNION
            SELECT inbox.id FROM waits CROSS JOIN inbox
            ON inbox.run IN ({NOBODY}, {_KEY}) AND inbox.type = waits.type AND inbox.key IS waits.key
            AND inbox.is_taken = 0
            WHERE waits.run = {_KEY}
        ) ORDER BY id LIMIT :limit
    """
    return list(map(Message._make, connection.execute(sql, {"run_id": run_id, "limit": page(limit)})))


def deliverable(connection: sqlite3.Connection, after: int, limit: int, now: int) -> tuple[int, list[RunRecord]]:
    """As the protocol says. Where there are more than `limit`, the id is the one to go on from."""
    wanted = max(page(limit), 1)
    # The highest id that there ever was: that of the newest row falls when the row is taken.
    highest: int = connection.execute(
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'inbox'), 0)"
    ).fetchone()[0]
    sql = f"""
        SELECT id, run, type, key FROM inbox
        WHERE id > ? AND id <= ? AND is_taken = 0 AND (
            run <> {NOBODY} AND (
                {_HAS_WAIT} OR {_IS_FOR_DRIVER} AND EXISTS (
                    SELECT 1 FROM runs WHERE runs.key = inbox.run AND runs.status IN {LIVE}))
            OR run = {NOBODY} AND EXISTS (
                SELECT 1 FROM waits WHERE waits.type = inbox.type AND waits.key IS inbox.key))
        ORDER BY id LIMIT ?
    """
    pending = [Pending(*row) for row in connection.execute(sql, (after, highest, wanted))]
    receivers = ((receiver(connection, one), driven_receiver(connection, one, now)) for one in pending)
    found = dict.fromkeys(chain.from_iterable(receivers))
    through = highest if len(pending) < wanted else pending[-1].id
    return through, [run for run in found if run is not None]


def receiver(connection: sqlite3.Connection, message: Pending) -> RunRecord | None:
    """The run that a pending message can be delivered to now."""
    if message.run == NOBODY:
        return _first_waiting(connection, message)
    sql = f"""
        SELECT {RUN_COLUMNS} FROM runs WHERE key = :run AND (
            :is_for_driver AND status IN {LIVE}
            OR EXISTS (SELECT 1 FROM waits WHERE run = :run AND type = :type AND waits.key IS :key))
    """
    values = message._asdict() | {"is_for_driver": message.type.startswith("satay.")}
    return _first_run(connection.execute(sql, values))


def driven_receiver(connection: sqlite3.Connection, message: Pending, now: int) -> RunRecord | None:
    """As `receiver`, where runs that nobody drives at `now` are left out; None for a message that is addressed."""
    return _first_waiting(connection, message, now, _DRIVEN) if message.run == NOBODY else None


_ALL: Final = "SELECT run FROM waits WHERE type = :type AND key IS :key ORDER BY id LIMIT :most"

_DRIVEN: Final = f"""
    SELECT run FROM (SELECT id, run FROM waits WHERE type = :type AND key IS :key ORDER BY id LIMIT {MAX_PAGE})
    WHERE EXISTS (
        SELECT 1 FROM runs JOIN owners ON owners.id = runs.owner WHERE runs.key = run AND owners.expires_at >= :now)
    ORDER BY id LIMIT :most
"""


def _first_waiting(
    connection: sqlite3.Connection, message: Pending, now: int = 0, waiting_sql: str = _ALL
) -> RunRecord | None:
    """The first run that waits. While earlier messages are on their way to it, the one after it, up to the last."""
    values = message._asdict() | {"most": MAX_PAGE, "now": now}
    ahead_sql = f"""
        SELECT count(*) FROM (
            SELECT 1 FROM inbox
            WHERE run = {NOBODY} AND type = :type AND key IS :key AND is_taken = 0 AND id < :id LIMIT :most)
    """
    waiting = connection.execute(waiting_sql, values | {"most": 1}).fetchall()
    if not waiting:
        return None
    ahead: int = connection.execute(ahead_sql, values).fetchone()[0]
    if ahead > 0:
        waiting = connection.execute(waiting_sql, values | {"most": ahead + 1}).fetchall()
    return _first_run(connection.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE key = ?", waiting[-1]))


def page(limit: int) -> int:
    """A limit within `MAX_PAGE`; SQLite would take a negative one for none at all."""
    return min(max(limit, 0), MAX_PAGE)


def to_run(row: tuple[object, ...]) -> RunRecord:
    """The record of a row that was read with `RUN_COLUMNS`."""
    run = RunRecord._make(row)
    try:
        return run._replace(status=RunStatus(run.status))
    except ValueError:
        raise JournalCorruptError(
            f"the row of run {run.run_id!r} has the status {run.status!r}, which no run can have; restore the database "
            "from a copy"
        ) from None


def _first_run(rows: sqlite3.Cursor) -> RunRecord | None:
    row = rows.fetchone()
    return None if row is None else to_run(row)


def _to_runs(rows: sqlite3.Cursor) -> list[RunRecord]:
    return list(map(to_run, rows))


def _blob(connection: sqlite3.Connection, sha256: str) -> str:
    digest = to_digest(sha256)
    row = connection.execute("SELECT sha256, is_compressed, data FROM blobs WHERE sha256 = ?", (digest,)).fetchone()
    if row is None:
        raise JournalCorruptError(f"the value {sha256!r} is lost from the journal; restore the database from a copy")
    text = unpack(PackedBlob(*row))
    if text is None:
        raise JournalCorruptError(f"the value {sha256!r} is damaged in the journal; restore the database from a copy")
    return text
