"""Forks: planned, rehearsed, written and gone on with.

A fork's entry 1 is its own creation. Entries 2 to the cut are the source's, as stored. Then comes `RunForked`, which
holds the receipt, then the outcomes that the fork keeps or was given. What is outstanding at the cut runs again, unless
its effect or a policy says otherwise.

The prefix is replayed before anything is written, so that the receipt can list the calls whose arguments would be
others now; the same replay then goes on as the drive of the fork. A plan ends before the writing.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import fsum
from typing import Any, Final, NamedTuple, Protocol

from satay.answers import recorded_identity
from satay.archive import Archive
from satay.clock import MICROSECONDS
from satay.context import governing_terms
from satay.cuts import Cut, CutRule, RequestedCut, refusal, resolve_cut
from satay.declarations import value_codec
from satay.definitions import Workflow, declared_effect, find_workflow, tasks
from satay.differences import find_differences
from satay.drive import Drive, DriveHost
from satay.effects import Effect, ForkTerms, ToolPolicy, parse_policies, restrict, ruling_for
from satay.errors import (
    ForkValidationError,
    NondeterminismError,
    RunConflictError,
    RunExistsError,
    StalePrefixError,
)
from satay.histories import reuse_of
from satay.journal import CHILD_ENDED, Blob, Lease, NewFork, NewRun, Wait, chain_digest
from satay.model import (
    APPROVAL,
    MISSING,
    CallId,
    CallKind,
    Entry,
    EntryType,
    RunRecord,
    RunStatus,
)
from satay.origin import Origin, has_input, origin_of, recorded_terms, workflow_created
from satay.overrides import Override, parse_overrides
from satay.plans import ForkPlan, PlannedCall
from satay.receipts import MAX_LISTED_STALE_CALLS, CallInFlight, ForkReceipt, StaleCall
from satay.recorder import lay_out
from satay.rehearsals import Issued, Rehearsal
from satay.replay import (
    CALL_KIND,
    OUTCOME_TYPES,
    SHARE_CHILDREN,
    blob_reference,
    facts,
    inherited_child,
    inherited_children,
    outcome_call,
    read_head,
    reading,
    recorded_call,
    value_text,
    wait_arguments,
)
from satay.requests import ForkRequest
from satay.sources import Prefix, RecordedRun, Sources
from satay.texts import json_quote, to_plain

MAX_NAMED_STALE_CALLS: Final = 5
"""How many stale calls an error names."""

_OPAQUE: Final = value_codec(Any)


class ForkHost(DriveHost, Protocol):
    """What forks need of the scheduler."""

    archive: Archive
    owner_id: str

    def step(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back when no task is current, so that a body may be stepped."""
        ...

    def adopt(self, drive: Drive, resumed: bool) -> None: ...

    def adopt_rehearsed(self, drive: Drive, lease: Lease, origin: Origin, last: Entry) -> None: ...

    async def take_over(self, run_id: str) -> Drive | None: ...


class _Source(NamedTuple):
    """A source, read, and the request made concrete for it."""

    record: RunRecord
    recorded: RecordedRun
    definition: Workflow[..., Any]
    request: ForkRequest
    input_text: str | None
    overrides: Sequence[Override]
    policies: Mapping[str, ToolPolicy]
    as_of: int | None = None

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def entries(self) -> Sequence[Entry]:
        return self.recorded.entries

    @property
    def calls(self) -> Mapping[int, CallId]:
        return self.recorded.calls


class _Governor(NamedTuple):
    """The run that a fork is a child of, if any, and the terms of that run, if they hold for the fork too."""

    parent_id: str | None
    terms: ForkTerms | None


class _Rehearsed(NamedTuple):
    """A fork as it would be: where it is cut, what it inherits, and the drive that has replayed that."""

    cut: Cut
    prefix: Prefix
    blobs: Mapping[str, str]
    origin: Origin
    drive: Drive
    stale: Sequence[StaleCall]
    error: BaseException | None
    at: int


class Forks:
    """Plans and makes the forks of one scheduler."""

    def __init__(self, host: ForkHost) -> None:
        self._host = host
        self._sources = Sources(host.archive)

    async def plan(self, record: RunRecord, request: ForkRequest) -> ForkPlan:
        """What a fork would be. Writes nothing; raises what making the fork would raise before it writes."""
        with reading(record.run_id):
            source = await self._read(record, request)
            rehearsed = await self._rehearse(source, f"{record.run_id}~plan", is_plan=True)
        rehearsed.drive.suspend()
        return _plan(source, rehearsed)

    async def check(self, record: RunRecord, request: ForkRequest) -> None:
        """Raise what is wrong with a request. The prefix is replayed only where stale calls are to be refused."""
        source = await self._read(record, request)
        if request.cut.on_stale == "error":
            rehearsed = await self._rehearse(source, f"{record.run_id}~plan")
            rehearsed.drive.suspend()
        else:
            self._resolve_cut(source)

    async def make(
        self, record: RunRecord, request: ForkRequest, fork_id: str, parent_id: str | None = None
    ) -> ForkReceipt:
        """Write the fork and drive it. The receipt, also of a fork that was there and was asked for the same.

        A run with `parent_id` started it: the fork is asked to cancel when that run ends.
        """
        with reading(record.run_id):
            return await self._make(record, request, fork_id, parent_id)

    async def _make(self, record: RunRecord, request: ForkRequest, fork_id: str, parent_id: str | None) -> ForkReceipt:
        source = await self._read(record, request)
        if await self._host.journal.record(fork_id) is not None:
            return await self._same_fork(fork_id, source)
        rehearsed = await self._rehearse(source, fork_id)
        try:
            return await self._write_or_drop(source, rehearsed, fork_id, _Governor(parent_id, None))
        except RunExistsError:
            return await self._same_fork(fork_id, source)

    async def make_child(self, record: RunRecord, at: int, run_id: str, parent_id: str, terms: ForkTerms) -> None:
        """Fork a child of the source as it stood at a moment, as a child of the fork. Raises `RunExistsError`."""
        if await self._host.journal.record(run_id) is not None:
            raise RunExistsError(f"child run {run_id!r} is there already", run_id=run_id)
        entries = (await self._sources.read(record.run_id)).entries
        last = len(entries) - 1 if record.status.is_terminal else len(entries)
        # The creation of a child that is a fork itself is younger than what it inherits.
        point = 1 + sum(1 for _ in takewhile(lambda entry: entry.at < at, entries[1:last]))
        request = ForkRequest(
            RequestedCut(fork_point_seq=point), allow_unfinished=True, intervention=terms.intervention
        )
        source = (await self._read(record, request))._replace(policies=terms.policies, as_of=at)
        rehearsed = await self._rehearse(source, run_id)
        await self._write_or_drop(source, rehearsed, run_id, _Governor(parent_id, terms))

    async def _write_or_drop(
        self, source: _Source, rehearsed: _Rehearsed, fork_id: str, governor: _Governor
    ) -> ForkReceipt:
        try:
            return await self._write(source, rehearsed, fork_id, governor)
        except BaseException:
            rehearsed.drive.suspend()
            raise

    # --- the source ---------------------------------------------------------------------------------------------------

    async def _read(self, record: RunRecord, request: ForkRequest) -> _Source:
        run_id = record.run_id
        definition = find_workflow(record.workflow, run_id)
        if not record.status.is_terminal and not request.allow_unfinished:
            raise ForkValidationError(
                f"run {run_id!r} is {record.status}; a fork is made of a run that has ended. Wait for it, cancel "
                "it, or pass allow_unfinished=True to fork what is committed now",
                run_id=run_id,
            )
        given = request.workflow_input
        text = None if given is MISSING else definition.encode_input(given)
        recorded = await self._sources.read(run_id)
        calls = recorded.calls
        own: dict[str, ToolPolicy] = {}
        if request.tool_policies is not None:
            own = parse_policies(request.tool_policies, {*tasks.names(), *recorded.tasks})
        policies = {**_inherited_policies(recorded.entries), **own}
        within = governing_terms()
        if within is not None:  # A task of a fork makes this one: it lets nothing run that the task may not.
            policies = restrict(policies, within.policies, declared_effect)
        return _Source(
            record,
            recorded,
            definition,
            request,
            text,
            parse_overrides(run_id, list(calls.values()), request.overrides, request.raises),
            policies,
        )

    def _resolve_cut(self, source: _Source) -> Cut:
        expected, head = source.request.expected_head, len(source.entries)
        if expected is not None and expected != head:
            raise refusal(
                source.run_id,
                f"expected_head={expected!r}, and its last entry is {head}: it has moved on, so look at it again",
            )
        overridden = [override.call for override in source.overrides]
        return resolve_cut(source.run_id, source.entries, source.calls, source.request.cut, overridden)

    # --- the rehearsal ------------------------------------------------------------------------------------------------

    async def _rehearse(self, source: _Source, fork_id: str, *, is_plan: bool = False) -> _Rehearsed:
        """Find the cut and replay what it keeps; again before the first stale call where that is asked for."""
        cut = self._resolve_cut(source)
        await self._check_children(source, cut)
        rehearsed = await self._replay(source, cut, fork_id, is_plan=is_plan)
        if not rehearsed.stale:
            return rehearsed
        match source.request.cut.on_stale:
            case "error":
                rehearsed.drive.suspend()
                raise _stale_error(source.run_id, rehearsed.stale)
            case "rerun":
                rehearsed.drive.suspend()
                first = rehearsed.stale[0]
                earlier = Cut(CutRule.STALE, first.seq - 1, source.calls[first.seq])
                await self._check_children(source, earlier)
                return await self._replay(source, earlier, fork_id, is_plan=is_plan)
            case _:
                approvals = [call for call in rehearsed.stale if call.call.startswith(f"{APPROVAL}[")]
                if approvals and not is_plan:
                    rehearsed.drive.suspend()
                    raise _changed_approval(source.run_id, approvals)
                return rehearsed

    async def _check_children(self, source: _Source, cut: Cut) -> None:
        """Refuse to share a child that was cancelled with its parent: that is no outcome of the call."""
        if source.request.children != SHARE_CHILDREN:
            return
        prefix = source.recorded.prefix(cut.through_seq)
        before = inherited_children(prefix.entries)
        answered = _answered(source, cut, prefix.entries)
        for seq, entry in prefix.outstanding.items():
            if entry.type != EntryType.CHILD_WORKFLOW_SCHEDULED or seq == cut.again or seq in answered:
                continue
            child_id = before[seq].run_id if seq in before else facts(entry)["run_id"]
            record = await self._host.journal.record(child_id)
            if record is not None:
                record = await self._host.archive.latest(child_id)
            if record is None or record.status == RunStatus.CANCELLED:
                state = "is not in this journal" if record is None else "was cancelled with its parent"
                raise refusal(
                    source.run_id, f"its child {child_id!r} {state} and cannot be shared; pass children='fork'"
                )

    async def _replay(self, source: _Source, cut: Cut, fork_id: str, *, is_plan: bool) -> _Rehearsed:
        host = self._host
        prefix = source.recorded.prefix(cut.through_seq)
        references = prefix.references | {digest for entry in cut.kept if (digest := blob_reference(entry))}
        blobs = await host.archive.values(source.run_id, source.entries, references)
        at = host.clock.now()
        first = prefix.entries[0]._replace(at=at)
        terms = _terms(source, fork_id, cut, "")
        origin = _origin(source, origin_of(source.run_id, prefix.entries, blobs), terms, at, len(prefix))
        after, own_blobs = _after_prefix(source, cut, fork_id, prefix.last, at, blobs, "null")
        blobs = {**blobs, **{blob.sha256: blob.text for blob in own_blobs}}
        entries = [first, *prefix.entries[1:], *after]
        drive = Drive(host, Lease(fork_id, 0, 0), source.definition, origin, entries, blobs)
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        rehearsal = Rehearsal(lambda error: None if ended.done() else ended.set_result(error), is_plan=is_plan)
        try:
            host.step(drive.rehearse, rehearsal)
            error = await ended
            stale = await self._stale(source, rehearsal.differing)
        except BaseException:
            drive.suspend()
            raise
        return _Rehearsed(cut, prefix, blobs, origin, drive, stale, error, at)

    async def _stale(self, source: _Source, differing: Sequence[Issued]) -> list[StaleCall]:
        entries = [issued.entry for issued in differing]
        references = {digest for entry in entries if (digest := blob_reference(entry))}
        blobs = await self._host.archive.values(source.run_id, entries, references)
        stale = []
        for entry, issued in sorted(differing):
            recorded = value_text(entry) or blobs.get(blob_reference(entry) or "", "null")
            if CALL_KIND[entry.type] is CallKind.EVENT and recorded == "null":
                recorded = wait_arguments(facts(entry)["match"])
            differences, _ = find_differences(to_plain(recorded), to_plain(issued), 1)
            if differences:
                stale.append(StaleCall(str(recorded_call(entry)), entry.seq, differences[0].path))
        return stale

    # --- the writing --------------------------------------------------------------------------------------------------

    async def _write(self, source: _Source, rehearsed: _Rehearsed, fork_id: str, governor: _Governor) -> ForkReceipt:
        host = self._host
        prefix, cut = rehearsed.prefix, rehearsed.cut
        receipt = _receipt(source, rehearsed, fork_id)
        if governor.terms is None:
            terms = _terms(source, fork_id, cut, receipt.receipt_id)
        else:
            terms = replace(governor.terms, source_id=source.run_id, source_head=len(source.entries))
        origin = rehearsed.origin._replace(terms=terms, parent_id=governor.parent_id)
        first, blobs = workflow_created(source.definition, origin, rehearsed.at)
        after, more = _after_prefix(source, cut, fork_id, prefix.last, rehearsed.at, rehearsed.blobs, receipt.to_json())
        run = NewRun(
            run_id=fork_id,
            workflow=source.definition.name,
            created_at=rehearsed.at,
            owner=host.owner_id,
            code_version=source.definition.code_version,
            parent_id=origin.parent_id,
            forked_from=source.run_id,
            fork_seq=len(prefix),
        )
        lease = await host.journal.fork(
            NewFork(
                run=run,
                source_id=source.run_id,
                through_seq=len(prefix),
                prefix_digest=prefix.last.digest,
                first=first,
                after=after,
                waits=_waits(source, rehearsed, fork_id),
                blobs=[*blobs, *more],
            )
        )
        if rehearsed.error is None:
            host.adopt_rehearsed(rehearsed.drive, lease, origin, after[-1])
        else:  # The fork stops with this error; whoever waits for its result is told.
            entries = [first, *prefix.entries[1:], *after]
            every_blob = {**rehearsed.blobs, **{blob.sha256: blob.text for blob in more}}
            host.adopt(Drive(host, lease, source.definition, origin, entries, every_blob), resumed=False)
        return receipt

    async def _same_fork(self, fork_id: str, source: _Source) -> ForkReceipt:
        """The receipt of the fork that has the id, if it was asked for the same."""
        archive = self._host.archive
        text = await archive.receipt_text(fork_id)
        if text is None:
            raise RunConflictError(f"run {fork_id!r} is there already; a fork needs an id of its own", run_id=fork_id)
        receipt = ForkReceipt.from_json(text)
        first = (await self._host.journal.read(fork_id, limit=1))[0]
        differing = _differing(receipt, first, source)
        if differing:
            raise RunConflictError(
                f"fork {fork_id!r} is there already and was asked for differently: "
                f"{', '.join(differing)} {'differs' if len(differing) == 1 else 'differ'}; "
                "choose another id",
                run_id=fork_id,
            )
        await self._host.take_over(fork_id)
        return receipt.as_replayed()


# --- what a fork is made of -------------------------------------------------------------------------------------------


def _inherited_policies(entries: Sequence[Entry]) -> Mapping[str, ToolPolicy]:
    terms = recorded_terms(entries[0])
    return {} if terms is None else {name: ToolPolicy(policy) for name, policy in terms["policies"].items()}


def _terms(source: _Source, fork_id: str, cut: Cut, receipt_id: str) -> ForkTerms:
    return ForkTerms(
        fork_id=fork_id,
        source_id=source.run_id,
        source_head=len(source.entries),
        cut=str(cut),
        receipt_id=receipt_id,
        policies=source.policies,
        intervention=_copied(source.request.intervention),
    )


def _copied(intervention: Any) -> Any:
    """A copy that went through the codec: the caller may change what it gave."""
    where = "the intervention of a fork"
    return _OPAQUE.decode(_OPAQUE.encode(intervention, where), where)


def _origin(source: _Source, inherited: Origin, terms: ForkTerms, at: int, through_seq: int) -> Origin:
    return inherited._replace(
        # Where nothing but the creation is inherited, no time of the source's has passed.
        started_at=at if through_seq == 1 else inherited.started_at,
        input_text=inherited.input_text if source.input_text is None else source.input_text,
        parent_id=None,
        terms=terms,
    )


def _after_prefix(
    source: _Source, cut: Cut, fork_id: str, last: Entry, at: int, blobs: Mapping[str, str], receipt_text: str
) -> tuple[list[Entry], list[Blob]]:
    """The entries that making the fork writes, with the values that are kept as blobs."""
    entries: list[Entry] = []
    own_blobs: list[Blob] = []
    seq, digest = last.seq, last.digest
    for type, members, text in _records(source, cut, fork_id, blobs, receipt_text):
        payload, blob = lay_out(type, members, text)
        seq += 1
        digest = chain_digest(digest, type, at, payload)
        entries.append(Entry(seq, type, at, payload, digest))
        own_blobs += [] if blob is None else [blob]
    return entries, own_blobs


def _records(source: _Source, cut: Cut, fork_id: str, blobs: Mapping[str, str], receipt_text: str) -> "list[_Record]":
    request = source.request
    again = "" if cut.again is None else f',"again":{cut.again}'
    shares = f',"children":"{SHARE_CHILDREN}"' if request.children == SHARE_CHILDREN else ""
    moment = _moment(source, cut)
    as_of = "" if moment is None else f',"as_of":{moment}'
    forked = f'"run_id":{json_quote(fork_id)},"source_id":{json_quote(source.run_id)}{again}{shares}{as_of}'
    records = [_Record(EntryType.RUN_FORKED, forked, receipt_text)]
    for override in source.overrides:
        records.append(_Record(EntryType.OUTCOME_OVERRIDDEN, override.facts(request.reason), override.text))
    for outcome in cut.kept:
        records.append(_Record(EntryType.OUTCOME_KEPT, *_kept(outcome, blobs)))
    return records


def _moment(source: _Source, cut: Cut) -> int | None:
    """When the first entry was written that the cut leaves out; None where no child is outstanding at the cut.

    Until then, no child can depend on it. Where that entry made the source a fork, all that is kept is of an ancestor,
    and so are the children.
    """
    outstanding = source.recorded.prefix(cut.through_seq).outstanding.values()
    if all(entry.type != EntryType.CHILD_WORKFLOW_SCHEDULED for entry in outstanding):
        return None
    left_out = source.entries[cut.through_seq] if cut.through_seq < len(source.entries) else None
    if left_out is not None and left_out.type == EntryType.RUN_FORKED:
        return read_head(left_out).get("as_of")
    if source.as_of is not None or left_out is None:
        return source.as_of
    return left_out.at


class _Record(NamedTuple):
    """An entry before it has a place: its type, its facts and its value."""

    type: str
    facts: str
    text: str | None


def _kept(outcome: Entry, blobs: Mapping[str, str]) -> tuple[str, str | None]:
    """The members and the value of the entry that keeps an outcome."""
    reference = blob_reference(outcome)
    members = {"call": outcome_call(outcome), "outcome": outcome.type, "source_seq": outcome.seq}
    for name, fact in read_head(outcome).items():
        if name != "call" and not name.endswith("_blob"):
            members[name] = fact
    text = value_text(outcome) if reference is None else blobs[reference]
    return json.dumps(members, separators=(",", ":"))[1:-1], text


def _receipt(source: _Source, rehearsed: _Rehearsed, fork_id: str) -> ForkReceipt:
    cut, prefix = rehearsed.cut, rehearsed.prefix
    reuse = reuse_of([*prefix.entries, *cut.kept]) if cut.kept else prefix.reuse
    request, stale = source.request, rehearsed.stale
    receipt = ForkReceipt(
        run_id=fork_id,
        source_id=source.run_id,
        root_id=rehearsed.origin.root_run_id,
        requested=request.cut,
        cut=str(cut),
        resolved_seq=prefix.last.seq,
        resolved_entry=prefix.last.type,
        source_head=len(source.entries),
        prefix_digest=prefix.last.digest.hex(),
        calls_inherited=reuse.calls,
        in_flight=tuple(_in_flight(source, rehearsed)),
        is_restorable=True,
        input_overridden=source.input_text is not None,
        intervention=request.intervention,
        tool_policies=source.policies,
        overrides=tuple(override.noted() for override in source.overrides),
        reason=request.reason,
        children=request.children,
        stale_calls=tuple(stale[:MAX_LISTED_STALE_CALLS]),
        stale_count=len(stale),
        source_code_version=source.record.code_version,
        code_version=source.definition.code_version,
        saved_cost=reuse.usage.cost,
        saved_seconds=reuse.seconds,
    )
    return receipt.stored()


# --- what is outstanding at the cut -----------------------------------------------------------------------------------


def _in_flight(source: _Source, rehearsed: _Rehearsed) -> list[CallInFlight]:
    cut = rehearsed.cut
    answered = _answered(source, cut, rehearsed.prefix.entries)
    found = []
    for seq in rehearsed.prefix.outstanding:
        call = source.calls[seq]
        action = answered.get(seq) or _action(source, call, is_again=seq == cut.again)
        found.append(CallInFlight(str(call), seq, action))
    return found


def _answered(source: _Source, cut: Cut, prefix: Sequence[Entry]) -> dict[int, str]:
    """The calls whose outcome is in store at the cut, by seq, and where it is from: what the fork does with them."""
    answered: dict[int, str] = {}
    own = [entry for entry in prefix if entry.type in _IN_STORE]
    seqs = {call: seq for seq, call in source.calls.items()} if own or source.overrides else {}
    for entry in own:  # A source that is a fork itself may have had outcomes in store.
        match entry.type:
            case EntryType.OUTCOME_KEPT:
                answered[outcome_call(entry)] = "keep"
            case EntryType.OUTCOME_OVERRIDDEN:
                answered[seqs.get(recorded_identity(read_head(entry)), 0)] = "override"  # It may never be made.
            case EntryType.RUN_FORKED:
                answered.pop(read_head(entry).get("again", 0), None)
    answered.pop(cut.again or 0, None)
    answered |= dict.fromkeys(map(outcome_call, cut.kept), "keep")
    answered |= dict.fromkeys((seqs[override.call] for override in source.overrides), "override")
    return answered


_IN_STORE: Final[frozenset[str]] = frozenset(
    {EntryType.OUTCOME_KEPT, EntryType.OUTCOME_OVERRIDDEN, EntryType.RUN_FORKED}
)


def _action(source: _Source, call: CallId, *, is_again: bool) -> str:
    """What becomes of a call that is outstanding at the cut, has no outcome in store, and does not answer itself."""
    match call.kind:
        case CallKind.TASK:
            effect = declared_effect(call.name)
            policy = ruling_for(source.policies, call.name, effect).policy
            if policy in (ToolPolicy.BLOCK, ToolPolicy.REPLAY):
                return policy.value
            return "ask" if effect is Effect.EXTERNAL and policy is ToolPolicy.AUTO and not is_again else "rerun"
        case CallKind.CHILD:
            return "rerun" if is_again else source.request.children
        case CallKind.TIMER | CallKind.EVENT:
            return "wait"


def _waits(source: _Source, rehearsed: _Rehearsed, fork_id: str) -> list[Wait]:
    """The waits that the outstanding calls of the prefix need in the fork."""
    waits = []
    before = inherited_children(rehearsed.prefix.entries)
    for seq, entry in rehearsed.prefix.outstanding.items():
        kind = CALL_KIND[entry.type]
        known = facts(entry) if kind in (CallKind.EVENT, CallKind.CHILD) else {}
        if kind is CallKind.EVENT:
            waits.append(Wait(seq, known["event"], known["match"]))
        elif kind is CallKind.CHILD:
            source_id = before[seq].run_id if seq in before else known["run_id"]
            child = inherited_child(
                fork_id, entry, None if seq == rehearsed.cut.again else source_id, source.request.children, 0
            )
            waits.append(Wait(seq, CHILD_ENDED, child.run_id))
    return waits


# --- the plan ---------------------------------------------------------------------------------------------------------


def _plan(source: _Source, rehearsed: _Rehearsed) -> ForkPlan:
    cut, prefix = rehearsed.cut, rehearsed.prefix
    if rehearsed.error is not None and not isinstance(rehearsed.error, NondeterminismError):
        raise rehearsed.error
    calls = _planned_calls(source, rehearsed)
    reuse = reuse_of([*prefix.entries, *cut.kept]) if cut.kept else prefix.reuse
    again = [call for call in calls if call.action in _MADE_AGAIN]
    return ForkPlan(
        source_id=source.run_id,
        cut=str(cut),
        resolved_seq=prefix.last.seq,
        resolved_entry=prefix.last.type,
        calls=tuple(calls),
        stale_calls=tuple(rehearsed.stale),
        tool_policies=source.policies,
        input_overridden=source.input_text is not None,
        divergence=None if rehearsed.error is None else str(rehearsed.error),
        saved_cost=reuse.usage.cost,
        saved_seconds=reuse.seconds,
        expected_cost=fsum(call.cost for call in again),
        expected_seconds=sum(call.seconds or 0.0 for call in again),
    )


_MADE_AGAIN: Final = frozenset({"run", "rerun", "ask", "fork", "wait"})


def _planned_calls(source: _Source, rehearsed: _Rehearsed) -> list[PlannedCall]:
    actions = {call.seq: call.action for call in _in_flight(source, rehearsed)}
    overridden = {override.call for override in source.overrides}
    through = len(rehearsed.prefix)
    paths = {stale.seq: stale.path for stale in rehearsed.stale}
    spent = _spent(source.entries)
    planned = []
    for seq, call in source.calls.items():
        if seq in actions:
            action = actions[seq]
        elif seq <= through:
            action = "inherit"
        elif call in overridden:
            action = "override"
        else:
            action = _action(source, call, is_again=True)
            action = "run" if action == "rerun" else action
        cost, seconds = spent.get(seq, (0.0, None))
        planned.append(PlannedCall(str(call), seq, action, cost, seconds, paths.get(seq)))
    return planned


def _spent(entries: Sequence[Entry]) -> dict[int, tuple[float, float | None]]:
    """What was recorded of cost and time, by the seq of the call."""
    spent: dict[int, tuple[float, float | None]] = {}
    for entry in entries:
        # What an entry of its own keeps is told again by the outcome that it leads to.
        if entry.type == EntryType.OUTCOME_KEPT or not entry.payload.startswith('{"call":'):
            continue
        call = outcome_call(entry)
        cost, seconds = spent.get(call, (0.0, None))
        if '"usage":' in entry.payload:
            cost += fsum(use["cost"] for use in read_head(entry).get("usage", ()))
        if entry.type in OUTCOME_TYPES:
            seconds = (entry.at - entries[call - 1].at) / MICROSECONDS
        spent[call] = (cost, seconds)
    return spent


# --- refusals ---------------------------------------------------------------------------------------------------------


def _stale_error(run_id: str, stale: Sequence[StaleCall]) -> StalePrefixError:
    named = ", ".join(f"{call.call} at {call.path}" for call in stale[:MAX_NAMED_STALE_CALLS])
    more = "" if len(stale) <= MAX_NAMED_STALE_CALLS else f" and {len(stale) - MAX_NAMED_STALE_CALLS} more"
    return StalePrefixError(
        f"a fork of run {run_id!r} would inherit calls whose arguments would be others now: {named}{more}; cut before "
        "the first of them, or pass on_stale='rerun', which does, or on_stale='keep'",
        run_id=run_id,
        calls=[call.call for call in stale],
    )


def _changed_approval(run_id: str, stale: Sequence[StaleCall]) -> StalePrefixError:
    """What was decided about one payload is not inherited for another."""
    named = ", ".join(f"{call.call} at {call.path}" for call in stale[:MAX_NAMED_STALE_CALLS])
    return StalePrefixError(
        f"a fork of run {run_id!r} would inherit approvals of another payload than its code asks for now: {named}; cut "
        "before the first of them, or pass on_stale='rerun', which does",
        run_id=run_id,
        calls=[call.call for call in stale],
    )


def _sorted(intervention: Any) -> str:
    """An intervention as text, with its members in order: that does not matter."""
    return json.dumps(json.loads(_OPAQUE.encode(intervention, "")), sort_keys=True)


def _differing(there: ForkReceipt, first: Entry, source: _Source) -> list[str]:
    """What a fork that is there was asked for differently."""
    request = source.request
    pairs: dict[str, tuple[Any, Any]] = {
        "source": (there.source_id, source.run_id),
        "workflow_input": (there.input_overridden, source.input_text is not None),
        "intervention": (_sorted(there.intervention), _sorted(request.intervention)),
        "tool_policies": (there.tool_policies, source.policies),
        "overrides": (set(there.overrides), {override.noted() for override in source.overrides}),
        "reason": (there.reason, request.reason),
        "children": (there.children, request.children),
    }
    cuts = (there.requested.to_dict(), request.cut.to_dict())
    pairs |= {name: (cuts[0].get(name), cuts[1].get(name)) for name in {**cuts[0], **cuts[1]}}
    differing = [name for name, (one, other) in pairs.items() if one != other]
    if "workflow_input" not in differing and source.input_text is not None and not has_input(first, source.input_text):
        differing.append("workflow_input")
    return differing
