"""One run as the windows show it: its state, its place among other runs, and a page of what happened in it.

Large values are read for the page that is shown only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeGuard

from satay.accounts import CallSide, CallState, ComparedRun
from satay.archive import Archive
from satay.clock import MICROSECONDS, to_datetime
from satay.histories import Reading, RecordedCall, RunHistory
from satay.journal import Owner, RunQuery
from satay.model import MISSING, CallId, Entry, EntryType, RunRecord, RunStatus, continued_run_id
from satay.processes import is_dead
from satay.readers import JournalReader
from satay.receipts import ForkReceipt
from satay.replay import (
    CALL_KIND,
    OUTCOME_TYPES,
    blob_reference,
    inherited_children,
    read_head,
    referenced_blobs,
    value_text,
)
from satay.session_states import report_session
from satay.states import Situation, StateReport, report_state
from satay.texts import to_plain
from satay.transcripts import SessionStatus, Transcript

MAX_RELATIVES: Final = 200
"""The most runs that one tree holds."""

MAX_GENERATIONS: Final = 10
"""The most generations that one tree goes down."""

MAX_LISTED_FORKS: Final = 20
"""The most forks of a session that are listed with it, the newest."""

_PARTS_OF_CALLS: Final = (OUTCOME_TYPES - {EntryType.WORKFLOW_CANCEL_REQUESTED}) | {
    EntryType.TASK_ATTEMPT_STARTED,
    EntryType.TASK_ATTEMPT_FAILED,
    EntryType.CALL_CANCELLED,
}
"""Entries that are told with the call that they belong to."""


# --- a run ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimelineItem:
    """A call, or another entry of the journal that is told by itself.

    `seq` is its entry; `seconds_in` goes from the creation of the run to it, None for what a fork inherited. `call` and
    `side` are None for other entries, of which `type` and `facts` tell.
    """

    seq: int
    type: str
    at: int
    seconds_in: float | None
    is_inherited: bool
    call: CallId | None
    side: CallSide | None
    facts: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        data: dict[str, Any] = {
            "seq": self.seq,
            "type": self.type,
            "at": to_datetime(self.at).isoformat(),
            "is_inherited": self.is_inherited,
        }
        if self.call is None or self.side is None:
            return data | {"facts": self.facts}
        return data | {"call": str(self.call)} | self.side.to_dict() | _values(self.side)


def _values(side: CallSide) -> dict[str, Any]:
    data: dict[str, Any] = {"input": None if side.input is MISSING else side.input}
    failure = side.failure
    if failure is not None:
        return data | {"error": {"type": failure.type, "message": failure.message}}
    return data | {"result": side.result} if side.result is not MISSING else data


@dataclass(frozen=True, slots=True)
class Timeline:
    """A page of what happened in a run: `earlier` items are before it and `later` ones behind it."""

    items: tuple[TimelineItem, ...]
    earlier: int
    later: int

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {"items": [item.to_dict() for item in self.items], "earlier": self.earlier, "later": self.later}


@dataclass(frozen=True, slots=True)
class SessionFork:
    """A fork of a session: the last step that it inherited, and what it is doing."""

    run_id: str
    after_step: int
    status: SessionStatus | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        status = None if self.status is None else self.status.value
        return {"run_id": self.run_id, "after_step": self.after_step, "status": status}


@dataclass(frozen=True, slots=True)
class SessionOverview:
    """What a session adds up to: its steps, its states, its ledger and its forks.

    `states` counts the states that were recorded, `versions` how many of them were others than the one before.
    `stored_bytes` is what they take in the journal, where most are differences to the one before, without the
    `large_states` that are kept beside it. `state_bytes` is the size of the latest one, which belongs to `state_step`;
    both are None where none was recorded. `calls` counts the ledger's calls by what became of them.
    """

    status: SessionStatus
    steps: int
    last_step: str | None
    states: int
    versions: int
    stored_bytes: int
    large_states: int
    state_step: int | None
    state_bytes: int | None
    calls: dict[CallState, int]
    forks: tuple[SessionFork, ...]
    has_more_forks: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "status": self.status.value,
            "steps": self.steps,
            "last_step": self.last_step,
            "states": self.states,
            "versions": self.versions,
            "stored_bytes": self.stored_bytes,
            "large_states": self.large_states,
            "state_step": self.state_step,
            "state_bytes": self.state_bytes,
            "calls": {state.value: number for state, number in self.calls.items()},
            "forks": [fork.to_dict() for fork in self.forks],
            "has_more_forks": self.has_more_forks,
        }


@dataclass(frozen=True, slots=True)
class Inspection:
    """A run: its row, what its journal adds up to, its state, its receipt if it is a fork, and a page of it.

    `session` is None for a run of a workflow.
    """

    record: RunRecord
    run: ComparedRun
    entries: int
    state: StateReport
    receipt: ForkReceipt | None
    timeline: Timeline
    session: SessionOverview | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run": self.run.to_dict() | {"parent_id": self.record.parent_id, "entries": self.entries},
            "state": self.state.to_dict(),
            "receipt": None if self.receipt is None else self.receipt.to_dict(),
            "timeline": self.timeline.to_dict(),
        } | ({} if self.session is None else {"session": self.session.to_dict()})


async def inspect_run(reader: JournalReader, run_id: str, now: int, *, after: int | None, limit: int) -> Inspection:
    """Read a run and one page of it: the items behind the entry `after`, or the last ones; at most `limit`.

    Raises `RunNotFoundError`, and `JournalCorruptError` for a journal that cannot be read.
    """
    archive = reader.archive
    record = await archive.record(run_id)
    entries = await archive.entries(run_id)
    blobs: dict[str, str] = {}
    reading = Reading(RunHistory(record, entries, blobs))
    calls = {call.entry.seq: call for call in reading.calls.values()}
    told = [entry for entry in entries if _is_told(entry)]
    first = _first_of_page(told, after, limit)
    page = told[first : first + limit]
    outcomes = [call.outcome for entry in page if (call := calls.get(entry.seq)) is not None]
    shown = [entry for entry in (reading.own_fork, reading.end, *page, *outcomes) if _has_shown_value(entry)]
    blobs.update(await archive.values(run_id, entries, referenced_blobs(shown)))
    run = reading.run()
    situation = await _situation(archive, record, reading, now)
    transcript = reading.transcript
    return Inspection(
        record=record,
        run=run,
        entries=len(entries),
        state=report_state(situation) if transcript is None else report_session(situation, transcript),
        receipt=await reader.receipt(run_id),
        timeline=Timeline(
            items=tuple(_item(reading, entry, calls.get(entry.seq), run.fork_seq or 0) for entry in page),
            earlier=first,
            later=len(told) - first - len(page),
        ),
        session=None if transcript is None else await _overview(archive, reading, transcript),
    )


def _has_shown_value(entry: Entry | None) -> TypeGuard[Entry]:
    """Whether an entry is there, and its value is shown: of a state it is not."""
    return entry is not None and entry.type != EntryType.STATE_RECORDED


async def _overview(archive: Archive, reading: Reading, transcript: Transcript) -> SessionOverview:
    """What a session adds up to."""
    entries = [entry for entry in reading.history.entries if entry.type == EntryType.STATE_RECORDED]
    latest = transcript.snapshots.latest
    text = None if latest is None else await archive.state_text(transcript, latest)
    states = [reading.side(call).state for call in reading.calls.values()]
    query = RunQuery(forked_from=transcript.run_id, limit=MAX_LISTED_FORKS + 1)
    forks = await archive.journal.runs(query)
    return SessionOverview(
        status=transcript.status,
        steps=transcript.last_step,
        last_step=transcript.steps[-1].name if transcript.steps else None,
        states=len(transcript.snapshots),
        versions=len({snapshot.version for snapshot in transcript.snapshots}),
        stored_bytes=sum(len((value_text(entry) or "").encode()) for entry in entries),
        large_states=sum(blob_reference(entry) is not None for entry in entries),
        state_step=None if latest is None else latest.step,
        state_bytes=None if text is None else len(text.encode()),
        calls={state: states.count(state) for state in CallState if state in states},
        forks=tuple([await _session_fork(archive, transcript, fork) for fork in forks[:MAX_LISTED_FORKS]]),
        has_more_forks=len(forks) > MAX_LISTED_FORKS,
    )


async def _session_fork(archive: Archive, transcript: Transcript, fork: RunRecord) -> SessionFork:
    inherited = sum(transcript.end_of(mark) <= (fork.fork_seq or 0) for mark in transcript.steps)
    return SessionFork(fork.run_id, inherited, await archive.session_status(fork))


def _is_told(entry: Entry) -> bool:
    """Whether an entry is an item of the timeline by itself: a call, which has its outcome in it, or no part of one."""
    return entry.type in CALL_KIND or entry.type not in _PARTS_OF_CALLS


def _first_of_page(told: Sequence[Entry], after: int | None, limit: int) -> int:
    if after is None:
        return max(0, len(told) - limit)
    return sum(entry.seq <= after for entry in told)


def _item(reading: Reading, entry: Entry, call: RecordedCall | None, inherited: int) -> TimelineItem:
    created_at = reading.history.entries[0].at
    is_inherited = 1 < entry.seq <= inherited
    return TimelineItem(
        seq=entry.seq,
        type=entry.type,
        at=entry.at,
        seconds_in=None if is_inherited else (entry.at - created_at) / MICROSECONDS,
        is_inherited=is_inherited,
        call=None if call is None else call.identity,
        side=None if call is None else reading.side(call),
        facts={} if call is not None else read_head(entry) | _told_of_session(reading, entry),
    )


def _told_of_session(reading: Reading, entry: Entry) -> dict[str, Any]:
    """What an entry of a session says besides its facts: what a step took and gave, how much a state takes."""
    text = reading.text(entry)
    if entry.type == EntryType.STATE_RECORDED:
        return {"stored_bytes": None if text is None else len(text.encode())}
    content = to_plain(text) if entry.type == EntryType.STEP_RECORDED and text is not None else None
    return content if isinstance(content, dict) else {}


async def _situation(archive: Archive, record: RunRecord, reading: Reading, now: int) -> Situation:
    driver = await _driver(archive, record)
    is_gone = driver is not None and (is_dead(driver) or driver.expires_at < now)
    is_over = (
        record.status.is_terminal and reading.transcript is None
    )  # A session that has crashed can be gone on with.
    return Situation(
        record=record,
        entries=reading.history.entries,
        driver=None if is_gone else driver,
        is_driver_gone=record.owner is not None and (driver is None or is_gone),
        messages=() if is_over else await archive.journal.messages(record.run_id),
        now=now,
        error_text=reading.text(reading.end) if record.status is RunStatus.FAILED else None,
        continued_as=None if reading.end is None else read_head(reading.end).get("continued_as"),
    )


async def _driver(archive: Archive, record: RunRecord) -> Owner | None:
    owners = await archive.journal.owners() if record.owner is not None else []
    return next((owner for owner in owners if owner.id == record.owner), None)


# --- its family -------------------------------------------------------------------------------------------------------


class Kinship(StrEnum):
    """How a run in a tree is related to the one above it."""

    ROOT = "root"
    CHILD = "child"
    FORK = "fork"
    SUCCESSOR = "successor"


@dataclass(frozen=True, slots=True)
class Relative:
    """A run in a tree. `is_inherited` marks a child that the source of a fork started, and that the fork shares.

    `is_cut` says that it has relatives which are not shown.
    """

    record: RunRecord
    kinship: Kinship
    is_inherited: bool
    is_cut: bool
    relatives: "tuple[Relative, ...]"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run_id": self.record.run_id,
            "workflow": self.record.workflow,
            "status": self.record.status.value,
            "kinship": self.kinship.value,
            "fork_seq": self.record.fork_seq,
            "is_inherited": self.is_inherited,
            "is_cut": self.is_cut,
            "relatives": [relative.to_dict() for relative in self.relatives],
        }


async def grow_tree(archive: Archive, run_id: str) -> Relative:
    """A run, its children, forks and successors, and theirs, as far as `MAX_RELATIVES` and `MAX_GENERATIONS` go.

    A fork's children that its source started are marked; those of its own forks are not looked for.
    """
    root = await archive.record(run_id)
    inherited = [] if root.fork_seq is None else await _inherited_children(archive, root)
    room = _Room(MAX_RELATIVES)
    tree = await _grow(archive, root, Kinship.ROOT, room, MAX_GENERATIONS)
    shared = tuple(Relative(record, Kinship.CHILD, True, False, ()) for record in inherited)
    return replace(tree, relatives=(*shared, *tree.relatives))


class _Room:
    """How many more runs a tree takes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, records: Sequence[RunRecord]) -> Sequence[RunRecord]:
        taken = records[: self.left]
        self.left -= len(taken)
        return taken


async def _grow(archive: Archive, record: RunRecord, kinship: Kinship, room: _Room, depth: int) -> Relative:
    found = await _relatives(archive, record) if room.left and depth else []
    taken = room.take([relative for relative, _ in found])
    kinds = [kind for _, kind in found]
    relatives = [await _grow(archive, each, kind, room, depth - 1) for each, kind in zip(taken, kinds, strict=False)]
    return Relative(record, kinship, False, len(taken) < len(found) or not (room.left and depth), tuple(relatives))


async def _relatives(archive: Archive, record: RunRecord) -> list[tuple[RunRecord, Kinship]]:
    """The runs that came of a run, oldest first."""
    journal, limit = archive.journal, MAX_RELATIVES + 1
    children = await journal.runs(RunQuery(parent_id=record.run_id, limit=limit))
    forks = await journal.runs(RunQuery(forked_from=record.run_id, limit=limit))
    successor = await journal.record(continued_run_id(record.run_id))
    found = {child.run_id: (child, Kinship.CHILD) for child in children}
    found |= {fork.run_id: (fork, Kinship.FORK) for fork in forks}
    if successor is not None:
        found[successor.run_id] = (successor, Kinship.SUCCESSOR)
    return sorted(found.values(), key=lambda relative: relative[0].key)


async def _inherited_children(archive: Archive, fork: RunRecord) -> list[RunRecord]:
    """The runs of other parents that a fork's prefix names, as far as they are still there."""
    entries = await archive.entries(fork.run_id)
    anew = inherited_children(entries)
    names = [
        read_head(entry)["run_id"]
        for entry in entries[: fork.fork_seq]
        if entry.type == EntryType.CHILD_WORKFLOW_SCHEDULED and entry.seq not in anew
    ]
    records = [await archive.journal.record(name) for name in names[:MAX_RELATIVES]]
    return [record for record in records if record is not None]
