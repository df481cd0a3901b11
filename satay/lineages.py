"""Reads what runs come from: the lineage of one and its decision trail, and where two states come from."""

from collections.abc import Sequence
from typing import NamedTuple

from satay.archive import Archive
from satay.arguments import checked_count, shown
from satay.comparison import shared_entries
from satay.errors import InvalidValueError, UsageError
from satay.experiments import ExperimentState, Outcome, Promotion, baseline_experiment_id, baseline_of
from satay.histories import Reading, RunHistory
from satay.laboratory import read_on, read_outcome
from satay.model import SESSION_WORKFLOW, Entry, EntryType, RunRecord
from satay.receipts import ForkReceipt
from satay.replay import blob_reference, read_head, reading, value_text
from satay.session_cuts import find_state
from satay.snapshots import Snapshot
from satay.state_diffs import Departure, RecordedState, SharedStep, StateDiff, compare_states
from satay.trail_items import Segment, TrailKind, TrailReader, recorder_of
from satay.trails import Ancestor, DecisionTrail, trail_call
from satay.transcripts import MAX_STEP, Transcript

# --- lineages ---------------------------------------------------------------------------------------------------------


class Link(NamedTuple):
    """A run of a lineage: its row, None where it is gone, and what it inherited, None for the root."""

    run_id: str
    record: RunRecord | None
    receipt: ForkReceipt | None


async def read_lineage(archive: Archive, run_id: str) -> list[Link]:
    """A run and what it comes from, the root first. Of ancestors that are gone, the run's own journal tells.

    Raises `RunNotFoundError` for a run that is not there.
    """
    record: RunRecord | None = await archive.run(run_id)
    own_entries: list[Entry] | None = None
    links: list[Link] = []
    there: str | None = run_id
    while there is not None:
        if record is not None:
            text = await archive.receipt_text(there)
        else:
            if own_entries is None:
                own_entries = await archive.entries(run_id)
            text = await _inherited_receipt(archive, run_id, own_entries, there)
        receipt = None if text is None else ForkReceipt.from_json(text)
        links.append(Link(there, record, receipt))
        there = None if receipt is None else receipt.source_id
        record = None if there is None else await archive.journal.record(there)
    return links[::-1]


async def _inherited_receipt(archive: Archive, run_id: str, entries: Sequence[Entry], fork_id: str) -> str | None:
    """The receipt of an ancestor, if a run has inherited that too."""
    with reading(run_id):
        forked = (entry for entry in entries if entry.type == EntryType.RUN_FORKED)
        entry = next((one for one in forked if read_head(one)["run_id"] == fork_id), None)
    if entry is None:
        return None
    text, reference = value_text(entry), blob_reference(entry)
    return text if reference is None else (await archive.values(run_id, [entry], {reference}))[reference]


def segments_of(links: Sequence[Link]) -> list[Segment]:
    """Who of a lineage recorded which part of the journal of the youngest."""
    segments: list[Segment] = []
    last_seq: int | None = None
    for link in reversed(links):
        segments.append(Segment(link.run_id, last_seq))
        if link.receipt is not None:
            cut = link.receipt.resolved_seq
            last_seq = cut if last_seq is None else min(cut, last_seq)
    return segments[::-1]


# --- decision trails --------------------------------------------------------------------------------------------------


async def read_trail(archive: Archive, run_id: str) -> DecisionTrail:
    """The decision trail of a run or a session.

    Raises `RunNotFoundError`, and `JournalCorruptError` for a journal that cannot be read.
    """
    links = await read_lineage(archive, run_id)
    record = links[-1].record
    assert record is not None, "the lineage of a run ends with it"
    entries = await archive.entries(run_id)
    segments = segments_of(links)
    told = Reading(RunHistory(record, entries, {}))
    trail = TrailReader(record, segments)
    with reading(run_id):
        items = [trail.read(entry) for entry in entries]
        steps = {item.seq: item.step for item in items if item.kind is TrailKind.CALL and item.step is not None}
        calls = [trail_call(told, call, segments, steps) for call in told.made]
    home = await _home(archive, baseline_of(record))
    return DecisionTrail(
        lineage=tuple([await _ancestor(archive, link) for link in links]),
        items=tuple(items),
        calls=tuple(calls),
        outcomes=tuple(home.outcomes.get(run_id, ())),
        promotions=tuple(await _promotions(archive, record, home)),
    )


async def _home(archive: Archive, baseline_id: str) -> ExperimentState:
    return await read_on(archive, ExperimentState(baseline_experiment_id(baseline_id)))


async def _promotions(archive: Archive, record: RunRecord, home: ExperimentState) -> list[Promotion]:
    homes = [home] if record.forked_from is None else [home, await _home(archive, record.run_id)]
    return [home.promotion for home in homes if home.promotion is not None]


async def _ancestor(archive: Archive, link: Link) -> Ancestor:
    record = link.record
    if record is None:
        return Ancestor(link.run_id, None, None, None, link.receipt, None)
    outcome: Outcome | None = await read_outcome(archive, record)
    status = await archive.session_status(record)
    return Ancestor(link.run_id, record.workflow, record.status, status, link.receipt, outcome)


async def open_trail(archive: Archive, run_id: str) -> TrailReader:
    """A reader of the trail of a run, from its first entry on. Raises `RunNotFoundError`."""
    links = await read_lineage(archive, run_id)
    record = links[-1].record
    assert record is not None, "the lineage of a run ends with it"
    return TrailReader(record, segments_of(links))


# --- states -----------------------------------------------------------------------------------------------------------


class _Session(NamedTuple):
    """A session that was read."""

    run_id: str
    entries: Sequence[Entry]
    transcript: Transcript


def checked_steps(at: object) -> tuple[int | None, int | None]:
    """The steps at which two states are compared. Raises `InvalidValueError`."""
    if at is None:
        return None, None
    given = at if isinstance(at, tuple | list) else (at, at)
    if len(given) != 2:
        raise InvalidValueError(f"at={shown(at)} must be the number of a step, or two of them, one for each session")
    one, other = (checked_count(step, "step in at= of diff_states()", 1, MAX_STEP) for step in given)
    return one, other


async def diff_two_states(archive: Archive, one_id: str, other_id: str, at: object) -> StateDiff:
    """Compare two states; see `Reader.diff_states`."""
    steps = checked_steps(at)
    one = await _read_session(archive, one_id)
    other = one if one_id == other_id else await _read_session(archive, other_id)
    snapshots = (find_state(one.transcript, steps[0]), find_state(other.transcript, steps[1]))
    states = [
        await _recorded(archive, session.transcript, snapshot)
        for session, snapshot in zip((one, other), snapshots, strict=True)
    ]
    common = await _shared_step(archive, one, other, min(snapshot.step for snapshot in snapshots))
    departures = (_departure(one, states[0], common), _departure(other, states[1], common))
    return compare_states(states[0], states[1], common, departures)


async def _read_session(archive: Archive, run_id: str) -> _Session:
    record = await archive.run(run_id)
    if record.workflow != SESSION_WORKFLOW:
        raise UsageError(
            f"run {run_id!r} is a run of workflow {record.workflow!r}, and only sessions record states; compare it "
            "with satay.compare()"
        )
    entries = await archive.entries(run_id)
    transcript = Transcript(run_id)
    with reading(run_id):
        transcript.read(entries)
    return _Session(run_id, entries, transcript)


async def _recorded(archive: Archive, transcript: Transcript, snapshot: Snapshot) -> RecordedState:
    mark = transcript.step_mark(snapshot.step)
    name = "" if mark is None else mark.name
    text = await archive.state_text(transcript, snapshot)
    return RecordedState(transcript.run_id, snapshot.step, name, snapshot.version, snapshot.sha256, text)


async def _shared_step(archive: Archive, one: _Session, other: _Session, before: int) -> SharedStep | None:
    """The last step that both sessions have in common, of those up to `before`, in the session that recorded it."""
    if one.run_id == other.run_id:
        shared = one.transcript.head
    elif _root(one) == _root(other):
        shared = shared_entries(one.entries, other.entries)
    else:
        return None
    marks = [mark for mark in one.transcript.steps[:before] if one.transcript.end_of(mark) <= shared]
    seq = marks[-1].seq if marks else 1
    links = await read_lineage(archive, one.run_id)
    run_id = recorder_of(segments_of(links), seq) if marks else links[0].run_id
    step, name = (marks[-1].number, marks[-1].name) if marks else (0, "")
    found = [snapshot for snapshot in one.transcript.snapshots if snapshot.step <= step]
    state = await _recorded(archive, one.transcript, found[-1]) if found else None
    return SharedStep(run_id, step, name, state)


def _root(session: _Session) -> object:
    return read_head(session.entries[0]).get("root")


def _departure(session: _Session, state: RecordedState, common: SharedStep | None) -> Departure | None:
    """Where a session left the state of the common ancestor."""
    if common is None:
        return None
    transcript = session.transcript
    sha256 = None if common.state is None else common.state.sha256
    for snapshot in transcript.snapshots:
        if common.step < snapshot.step <= state.step and snapshot.sha256 != sha256:
            mark = transcript.step_mark(snapshot.step)
            return Departure(snapshot.step, "" if mark is None else mark.name)
    return None
