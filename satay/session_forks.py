"""Forks of sessions: a journal is copied up to a step, and whoever opens the fork goes on after it.

A step that a session inherits is forked where it was recorded, in the ancestor at whatever depth, as long as that is
there; what the fork is made of is the same bytes either way.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from satay.arguments import checked_run_id
from satay.boundaries import BoundaryMode, SessionBoundary
from satay.cuts import RequestedCut
from satay.definitions import tasks
from satay.effects import Effect, ForkTerms, ToolPolicy, parse_effect, parse_tool_policies, ruling_for
from satay.errors import (
    ForkValidationError,
    InvalidValueError,
    JournalConflictError,
    JournalCorruptError,
    RunConflictError,
    RunExistsError,
    SessionLostError,
)
from satay.histories import reuse_of
from satay.journal import NewFork, NewRun, Wait, chain_digest
from satay.model import APPROVAL, SESSION_WORKFLOW, Entry, EntryType, RunRecord
from satay.origin import Origin, origin_of, session_created
from satay.receipts import CallInFlight, ForkReceipt, intervention_key
from satay.recorder import lay_out
from satay.replay import read_head, reading
from satay.session_cuts import Boundary, find_boundary, judge, open_calls_at
from satay.session_journals import SessionHost, SessionJournal, session_record
from satay.texts import json_quote
from satay.transcripts import UNREAD_VALUES, Transcript

MAX_ATTEMPTS: Final = 10
"""How often a fork is begun again because its source was written meanwhile."""

ENTRIES_PER_PAGE: Final = 2_000
"""How many entries of a session are read at a time, at most."""

ENTRIES_PER_STEP: Final = 2
"""So many entries are read for each step that is not there yet: that of the step, and that of its state."""

ENTRIES_AT_LEAST: Final = 64
"""How many entries of a session are read at a time, at least."""


@dataclass(frozen=True, slots=True)
class SessionForkRequest:
    """What a fork of a session is asked to be. `at_step` is None for the last step that is recorded."""

    at_step: int | None
    mode: BoundaryMode
    intervention: Any = None
    tool_policies: object = None
    reason: str | None = None


class _Source(NamedTuple):
    """A session that is to be forked, read, and the policies that hold in the fork."""

    asked: RunRecord
    origin: Origin
    transcript: Transcript
    policies: Mapping[str, ToolPolicy]
    step: int


class _Recording(NamedTuple):
    """The session that recorded a step, how many entries it has, and its entry at the boundary."""

    record: RunRecord
    head: int
    last: Entry


async def fork_session(
    host: SessionHost,
    session_id: str,
    fork_id: str,
    request: SessionForkRequest,
    code_version: str,
    live: SessionJournal | None = None,
) -> ForkReceipt:
    """Make a fork of a session, or find the one that was made for the same request under the id.

    `live` is the session's journal where this process has it open, so that it need not be read again.

    Raises `RunNotFoundError`, `RunConflictError`, `ForkValidationError`, `NoRestorableStateError` and
    `InvalidValueError`, with nothing written.
    """
    checked_run_id(fork_id)
    for _ in range(MAX_ATTEMPTS):
        is_there = await host.journal.record(fork_id) is not None
        try:
            source = await _read(host, session_id, request, live, through=request.at_step, is_there=is_there)
            boundary = None if is_there else find_boundary(source.transcript, source.step, request.mode)
        except (ForkValidationError, InvalidValueError):  # What is refused is refused knowing all of the session.
            source = await _read(host, session_id, request, live, through=None, is_there=is_there)
            boundary = None if is_there else find_boundary(source.transcript, source.step, request.mode)
        if boundary is None:
            return await _same_fork(host, fork_id, source, request)
        recording = await _find_recording(host, source, boundary)
        try:
            return await _write(host, source, recording, boundary, fork_id, request, code_version)
        except RunExistsError:
            return await _same_fork(host, fork_id, source, request)
        except JournalConflictError:
            continue
    raise JournalConflictError(f"session {session_id!r} could not be forked: its journal changes", run_id=session_id)


async def _read(
    host: SessionHost,
    session_id: str,
    request: SessionForkRequest,
    live: SessionJournal | None,
    *,
    through: int | None,
    is_there: bool,
) -> _Source:
    """Read a session, or as much of it as tells of the steps `through` one.

    Where the fork `is_there` its policies were checked by what was known then.
    """
    asked = await session_record(host.archive, session_id)
    origin, transcript = await _read_live(live) or await _read_journal(host, session_id, through)
    tools = set() if is_there else {*tasks.names(), *(call.name for call in transcript.ledger)}
    inherited = {} if origin.terms is None else origin.terms.policies
    own = {} if request.tool_policies is None else parse_tool_policies(request.tool_policies, tools)
    step = transcript.last_step if request.at_step is None else request.at_step
    return _Source(asked, origin, transcript, {**inherited, **own}, step)


async def _read_live(live: SessionJournal | None) -> tuple[Origin, Transcript] | None:
    if live is not None:
        with suppress(SessionLostError):  # A session that was taken over can be forked like any other.
            await live.refresh()
            return live.origin, live.transcript
    return None


async def _read_journal(host: SessionHost, run_id: str, through: int | None) -> tuple[Origin, Transcript]:
    """Read a session whole, or until a step behind `through` is read."""
    transcript, origin = Transcript(run_id), None
    while True:
        limit = ENTRIES_PER_PAGE
        if through is not None:
            missing = through - transcript.last_step
            limit = min(limit, ENTRIES_PER_STEP * missing + ENTRIES_AT_LEAST)
        page = await host.journal.read(run_id, after=transcript.head, limit=limit, without_values=UNREAD_VALUES)
        with reading(run_id):
            transcript.read(page)
            origin = origin_of(run_id, page, {}) if origin is None else origin
        if len(page) < limit or (through is not None and transcript.last_step > through):
            return origin, transcript


async def _find_recording(host: SessionHost, source: _Source, boundary: Boundary) -> _Recording:
    """Who recorded the step at a boundary: the session itself or, for a step that it inherits, an ancestor.

    Where that is gone, or does not hold what it handed down, it is whoever has it from there, byte for byte.
    """
    last = await _entry(host, source.asked.run_id, boundary.through_seq)
    if last is None:
        raise JournalCorruptError(
            f"session {source.asked.run_id!r} lacks entry {boundary.through_seq}", run_id=source.asked.run_id
        )
    head = await host.journal.last(source.asked.run_id)
    found = _Recording(source.asked, last.seq if head is None else head.seq, last)
    while found.record.forked_from is not None and boundary.through_seq <= (found.record.fork_seq or 0):
        ancestor_id = found.record.forked_from
        ancestor, head = await host.journal.record(ancestor_id), await host.journal.last(ancestor_id)
        entry = await _entry(host, ancestor_id, boundary.through_seq)
        if ancestor is None or head is None or entry is None or entry.digest != last.digest:
            break
        found = _Recording(ancestor, head.seq, entry)
    return found


async def _entry(host: SessionHost, run_id: str, seq: int) -> Entry | None:
    entries = await host.journal.read(run_id, after=seq - 1, limit=1, without_values=UNREAD_VALUES)
    return entries[0] if entries and entries[0].seq == seq else None


async def _write(
    host: SessionHost,
    source: _Source,
    recording: _Recording,
    boundary: Boundary,
    fork_id: str,
    request: SessionForkRequest,
    code_version: str,
) -> ForkReceipt:
    at = host.clock.now()
    inherited, last, source_id = source.origin, recording.last, recording.record.run_id
    receipt = _receipt(source, recording, boundary, fork_id, request, code_version)
    terms = ForkTerms(
        fork_id=fork_id,
        source_id=source_id,
        source_head=recording.head,
        cut=receipt.cut,
        receipt_id=receipt.receipt_id,
        policies=source.policies,
        intervention=receipt.intervention,
    )
    origin = Origin(inherited.root_run_id, inherited.seed, inherited.started_at, "{}", terms=terms)
    head = f'"run_id":{json_quote(fork_id)},"source_id":{json_quote(source_id)}'
    payload, blob = lay_out(EntryType.RUN_FORKED, head, receipt.to_json())
    type = EntryType.RUN_FORKED.value
    forked = Entry(last.seq + 1, type, at, payload, chain_digest(last.digest, type, at, payload))
    run = NewRun(
        run_id=fork_id,
        workflow=SESSION_WORKFLOW,
        created_at=at,
        owner=None,
        code_version=code_version,
        forked_from=source_id,
        fork_seq=boundary.through_seq,
    )
    await host.journal.fork(
        NewFork(
            run=run,
            source_id=source_id,
            through_seq=boundary.through_seq,
            prefix_digest=last.digest,
            first=session_created(code_version, origin, at),
            after=[forked],
            waits=_open_approvals(source.transcript, boundary.through_seq),
            blobs=[] if blob is None else [blob],
        )
    )
    return receipt


def _open_approvals(transcript: Transcript, through_seq: int) -> list[Wait]:
    return [
        Wait(mark.entry.seq, APPROVAL, mark.key)
        for mark in transcript.approvals.values()
        if mark.entry.seq <= through_seq and (mark.answer is None or mark.answer.seq > through_seq)
    ]


def _receipt(
    source: _Source,
    recording: _Recording,
    boundary: Boundary,
    fork_id: str,
    request: SessionForkRequest,
    code_version: str,
) -> ForkReceipt:
    snapshot, transcript = boundary.snapshot, source.transcript
    reuse = reuse_of(transcript.calls_through(boundary.through_seq))
    grade, missing = judge(transcript, boundary, source.step, (recording.record.code_version, code_version))
    receipt = ForkReceipt(
        run_id=fork_id,
        source_id=recording.record.run_id,
        root_id=source.origin.root_run_id,
        requested=RequestedCut(at_step=request.at_step, boundary=request.mode.value),
        cut=f"after step {boundary.step}",
        resolved_seq=boundary.through_seq,
        resolved_entry=recording.last.type,
        source_head=recording.head,
        prefix_digest=recording.last.digest.hex(),
        calls_inherited=reuse.calls,
        in_flight=tuple(_in_flight(source, boundary.through_seq)),
        is_restorable=snapshot is not None,
        input_overridden=False,
        intervention=request.intervention,
        tool_policies=source.policies,
        overrides=(),
        reason=request.reason,
        children="fork",
        stale_calls=(),
        stale_count=0,
        source_code_version=recording.record.code_version,
        code_version=code_version,
        saved_cost=reuse.usage.cost,
        saved_seconds=reuse.seconds,
        boundary=SessionBoundary(
            asked_of=source.asked.run_id,
            requested_step=source.step,
            resolved_step=boundary.step,
            mode=request.mode,
            state_step=None if snapshot is None else snapshot.step,
            state_version=None if snapshot is None else snapshot.version,
            state_sha256=None if snapshot is None else snapshot.sha256,
            reproducibility=grade,
            missing=missing,
        ),
    )
    return receipt.stored()


def _in_flight(source: _Source, through_seq: int) -> list[CallInFlight]:
    """The approvals and calls of tools that were outstanding at the cut, and what becomes of each in the fork."""
    found = [
        CallInFlight(f"{APPROVAL}[{wait.key}]", wait.call, "wait")
        for wait in _open_approvals(source.transcript, through_seq)
    ]
    for call in open_calls_at(source.transcript, through_seq):
        told = read_head(call.entry)
        effect = Effect.UNDECLARED if "effect" not in told else parse_effect(told["effect"], call.identity.name)
        policy = ruling_for(source.policies, call.identity.name, effect).policy
        if policy in (ToolPolicy.BLOCK, ToolPolicy.REPLAY):
            action = policy.value
        else:
            action = "ask" if effect is Effect.EXTERNAL and policy is ToolPolicy.AUTO else "rerun"
        found.append(CallInFlight(str(call.identity), call.entry.seq, action))
    return found


async def _same_fork(host: SessionHost, fork_id: str, source: _Source, request: SessionForkRequest) -> ForkReceipt:
    """The receipt of the fork that has the id, if it was asked for the same."""
    text = await host.archive.receipt_text(fork_id)
    receipt = None if text is None else ForkReceipt.from_json(text)
    if receipt is None or receipt.boundary is None:
        raise RunConflictError(f"run {fork_id!r} is there already; a fork needs an id of its own", run_id=fork_id)
    there = receipt.boundary
    pairs: dict[str, tuple[Any, Any]] = {
        "session": (there.asked_of, source.asked.run_id),
        "at_step": (receipt.requested.at_step, request.at_step),
        "boundary": (there.mode, request.mode),
        "intervention": (intervention_key(receipt.intervention), intervention_key(request.intervention)),
        "tool_policies": (receipt.tool_policies, source.policies),
        "reason": (receipt.reason, request.reason),
    }
    differing = [name for name, (one, other) in pairs.items() if one != other]
    if differing:
        raise RunConflictError(
            f"fork {fork_id!r} is there already and was asked for differently: {', '.join(differing)} "
            f"{'differs' if len(differing) == 1 else 'differ'}; choose another id",
            run_id=fork_id,
        )
    return receipt.as_replayed()
