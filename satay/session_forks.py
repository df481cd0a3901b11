"""Forks of sessions: a journal is copied up to a step, and whoever opens the fork goes on after it.

A step that a session inherits is forked where it was recorded, in the ancestor at whatever depth, as long as that is
there; what the fork is made of is the same bytes either way.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from satay.arguments import checked_count, checked_run_id, shown
from satay.boundaries import BoundaryMode, SessionBoundary, parse_mode
from satay.cuts import RequestedCut
from satay.definitions import tasks
from satay.effects import Effect, ForkTerms, ToolPolicy, parse_effect, parse_tool_policies, ruling_for
from satay.errors import (
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
from satay.session_calls import SessionCalls
from satay.session_cuts import Boundary, boundary_at, find_boundary, judge, open_calls_at
from satay.session_journals import SessionHost, SessionJournal, session_record
from satay.texts import json_quote
from satay.transcripts import MAX_STEP, STEPS_AND_STATES, Transcript

MAX_ATTEMPTS: Final = 10
"""How often a fork is begun again because its source was written meanwhile."""


@dataclass(frozen=True, slots=True)
class SessionForkRequest:
    """What a fork of a session is asked to be. `at_step` is None for the last step that is recorded."""

    at_step: int | None
    mode: BoundaryMode
    intervention: Any = None
    tool_policies: object = None
    reason: str | None = None


def checked_request(
    at_step: int | None, boundary: object, intervention: Any, tool_policies: object, reason: object
) -> SessionForkRequest:
    """A request that can be made, as far as that does not depend on the session. Raises `InvalidValueError`."""
    if at_step is not None:
        checked_count(at_step, "at_step of a fork", 0, MAX_STEP)
    if reason is not None and not isinstance(reason, str):
        raise InvalidValueError(f"reason={shown(reason)} is not a text")
    return SessionForkRequest(at_step, parse_mode(boundary), intervention, tool_policies, reason)


class _Found(NamedTuple):
    """What a journal says of a session that is to be forked: where it is cut, and the step that was asked for."""

    origin: Origin
    calls: SessionCalls
    step: int
    boundary: Boundary


class _Source(NamedTuple):
    """A session that is to be forked, and the policies that hold in the fork."""

    asked: RunRecord
    found: _Found
    policies: Mapping[str, ToolPolicy]


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
        if await host.journal.record(fork_id) is not None:
            return await _same_fork(host, session_id, fork_id, request)
        source = await _read(host, session_id, request, live)
        recording = await _find_recording(host, source)
        try:
            return await _write(host, source, recording, fork_id, request, code_version)
        except RunExistsError:
            return await _same_fork(host, session_id, fork_id, request)
        except JournalConflictError:
            continue
    raise JournalConflictError(f"session {session_id!r} could not be forked: its journal changes", run_id=session_id)


async def _read(
    host: SessionHost, session_id: str, request: SessionForkRequest, live: SessionJournal | None
) -> _Source:
    asked = await session_record(host.archive, session_id)
    found = (
        await _read_live(live, request)
        or await _read_around(host, session_id, request)
        or await _read_whole(host, session_id, request)
    )
    tools = {*tasks.names(), *(call.name for call in found.calls.ledger)}
    return _Source(asked, found, _policies(found.origin, request, tools))


def _policies(origin: Origin, request: SessionForkRequest, tools: Collection[str]) -> Mapping[str, ToolPolicy]:
    inherited = {} if origin.terms is None else origin.terms.policies
    own = {} if request.tool_policies is None else parse_tool_policies(request.tool_policies, tools)
    return {**inherited, **own}


async def _read_live(live: SessionJournal | None, request: SessionForkRequest) -> _Found | None:
    if live is not None:
        with suppress(SessionLostError):  # A session that was taken over can be forked like any other.
            await live.refresh()
            return _find(live.origin, live.transcript, request)
    return None


async def _read_around(host: SessionHost, run_id: str, request: SessionForkRequest) -> _Found | None:
    """Read the step, its state and the calls, and no other steps and states; None where that does not tell enough."""
    with reading(run_id):
        step = await host.archive.step_entry(run_id, request.at_step)
        boundary = None if step is None else boundary_at(step, await _entry(host, run_id, step.seq + 1), request.mode)
        if boundary is None:
            return None
        entries = await host.archive.entries(run_id, without=STEPS_AND_STATES)
        calls = SessionCalls(run_id)
        calls.read(entries)
        return _Found(origin_of(run_id, entries, {}), calls, boundary.step, boundary)


async def _read_whole(host: SessionHost, run_id: str, request: SessionForkRequest) -> _Found:
    entries = await host.archive.entries(run_id, without_values=STEPS_AND_STATES)
    transcript = Transcript(run_id)
    with reading(run_id):
        transcript.read(entries)
        return _find(origin_of(run_id, entries, {}), transcript, request)


def _find(origin: Origin, transcript: Transcript, request: SessionForkRequest) -> _Found:
    step = transcript.last_step if request.at_step is None else request.at_step
    return _Found(origin, transcript, step, find_boundary(transcript, step, request.mode))


async def _find_recording(host: SessionHost, source: _Source) -> _Recording:
    """Who recorded the step at a boundary: the session itself or, for a step that it inherits, an ancestor.

    Where that is gone, or does not hold what it handed down, it is whoever has it from there, byte for byte.
    """
    through = source.found.boundary.through_seq
    last = await _entry(host, source.asked.run_id, through)
    if last is None:
        raise JournalCorruptError(f"session {source.asked.run_id!r} lacks entry {through}", run_id=source.asked.run_id)
    head = await host.journal.last(source.asked.run_id)
    found = _Recording(source.asked, last.seq if head is None else head.seq, last)
    while found.record.forked_from is not None and through <= (found.record.fork_seq or 0):
        ancestor_id = found.record.forked_from
        ancestor, head = await host.journal.record(ancestor_id), await host.journal.last(ancestor_id)
        entry = await _entry(host, ancestor_id, through)
        if ancestor is None or head is None or entry is None or entry.digest != last.digest:
            break
        found = _Recording(ancestor, head.seq, entry)
    return found


async def _entry(host: SessionHost, run_id: str, seq: int) -> Entry | None:
    entries = await host.journal.read(run_id, after=seq - 1, limit=1, without_values=STEPS_AND_STATES)
    return entries[0] if entries and entries[0].seq == seq else None


async def _write(
    host: SessionHost,
    source: _Source,
    recording: _Recording,
    fork_id: str,
    request: SessionForkRequest,
    code_version: str,
) -> ForkReceipt:
    at = host.clock.now()
    inherited, boundary = source.found.origin, source.found.boundary
    last, source_id = recording.last, recording.record.run_id
    receipt = _receipt(source, recording, fork_id, request, code_version)
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
    head = f'"run_id":{json_quote(fork_id)},"source_id":{json_quote(source_id)},"cut_at":{last.at}'
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
            waits=_open_approvals(source.found.calls, boundary.through_seq),
            blobs=[] if blob is None else [blob],
        )
    )
    return receipt


def _open_approvals(calls: SessionCalls, through_seq: int) -> list[Wait]:
    return [
        Wait(mark.entry.seq, APPROVAL, mark.key)
        for mark in calls.approvals.values()
        if mark.entry.seq <= through_seq and (mark.answer is None or mark.answer.seq > through_seq)
    ]


def _receipt(
    source: _Source,
    recording: _Recording,
    fork_id: str,
    request: SessionForkRequest,
    code_version: str,
) -> ForkReceipt:
    origin, calls, step, boundary = source.found
    snapshot = boundary.snapshot
    reuse = reuse_of(calls.calls_through(boundary.through_seq))
    grade, missing = judge(calls, boundary, step, (recording.record.code_version, code_version))
    receipt = ForkReceipt(
        run_id=fork_id,
        source_id=recording.record.run_id,
        root_id=origin.root_run_id,
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
            requested_step=step,
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
        for wait in _open_approvals(source.found.calls, through_seq)
    ]
    for call in open_calls_at(source.found.calls, through_seq):
        told = read_head(call.entry)
        effect = Effect.UNDECLARED if "effect" not in told else parse_effect(told["effect"], call.identity.name)
        policy = ruling_for(source.policies, call.identity.name, effect).policy
        if policy in (ToolPolicy.BLOCK, ToolPolicy.REPLAY):
            action = policy.value
        else:
            action = "ask" if effect is Effect.EXTERNAL and policy is ToolPolicy.AUTO else "rerun"
        found.append(CallInFlight(str(call.identity), call.entry.seq, action))
    return found


async def _same_fork(host: SessionHost, session_id: str, fork_id: str, request: SessionForkRequest) -> ForkReceipt:
    """The receipt of the fork that has the id, if it was asked for the same.

    Its policies were checked by what was known when it was made.
    """
    asked = await session_record(host.archive, session_id)
    with reading(session_id):
        origin = origin_of(session_id, await host.journal.read(session_id, limit=1), {})
    policies = _policies(origin, request, ())
    text = await host.archive.receipt_text(fork_id)
    receipt = None if text is None else ForkReceipt.from_json(text)
    if receipt is None or receipt.boundary is None:
        raise RunConflictError(f"run {fork_id!r} is there already; a fork needs an id of its own", run_id=fork_id)
    there = receipt.boundary
    pairs: dict[str, tuple[Any, Any]] = {
        "session": (there.asked_of, asked.run_id),
        "at_step": (receipt.requested.at_step, request.at_step),
        "boundary": (there.mode, request.mode),
        "intervention": (intervention_key(receipt.intervention), intervention_key(request.intervention)),
        "tool_policies": (receipt.tool_policies, policies),
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
