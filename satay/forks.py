"""Forks: planned, rehearsed, written and gone on with.

A fork's entry 1 is its own creation. Entries 2 to the cut are the source's, as stored. Then comes `RunForked`, which
holds the receipt, then the outcomes that the fork keeps or was given. What is outstanding at the cut runs again, unless
its effect or a policy says otherwise.

The prefix is replayed before anything is written, so that the receipt can list the calls whose arguments would be
others now; the same replay then goes on as the drive of the fork. A plan ends before the writing.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from satay.archive import Archive
from satay.context import governing_terms
from satay.cuts import Cut, CutRule, RequestedCut, refusal, resolve_cut
from satay.definitions import declared_effect, find_workflow, tasks
from satay.differences import find_differences
from satay.drive import Drive, DriveHost
from satay.effects import ForkTerms, ToolPolicy, parse_policies, restrict
from satay.errors import ForkValidationError, RunConflictError, RunExistsError
from satay.fork_actions import answered_calls
from satay.fork_drafts import Draft, Rehearsed
from satay.fork_entries import (
    after_prefix,
    inherited_policies,
    origin_of_fork,
    receipt_of,
    reissued_for,
    terms_of,
    waits_of,
)
from satay.fork_plans import plan_of
from satay.fork_refusals import changed_approval, differing_options, stale_error
from satay.journal import Lease, NewFork, NewRun
from satay.model import APPROVAL, MISSING, CallKind, Entry, EntryType, RunRecord, RunStatus
from satay.origin import Origin, origin_of, workflow_created
from satay.overrides import parse_overrides
from satay.plans import ForkPlan
from satay.receipts import ForkReceipt, StaleCall
from satay.rehearsals import Issued, Rehearsal
from satay.replay import (
    CALL_KIND,
    SHARE_CHILDREN,
    blob_reference,
    facts,
    reading,
    recorded_call,
    referenced_blobs,
    value_text,
    wait_arguments,
)
from satay.requests import ForkRequest
from satay.sources import Sources
from satay.texts import to_plain


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


class _Governor(NamedTuple):
    """The run that a fork is a child of, if any, and the terms of that run, if they hold for the fork too."""

    parent_id: str | None
    terms: ForkTerms | None


class Forks:
    """Plans and makes the forks of one scheduler."""

    def __init__(self, host: ForkHost) -> None:
        self._host = host
        self._sources = Sources(host.archive)

    async def plan(self, record: RunRecord, request: ForkRequest) -> ForkPlan:
        """What a fork would be. Writes nothing; raises what making the fork would raise before it writes."""
        with reading(record.run_id):
            draft = await self._read(record, request)
            rehearsed = await self._rehearse(draft, f"{record.run_id}~plan", is_plan=True)
        rehearsed.drive.suspend()
        return plan_of(draft, rehearsed)

    async def check(self, record: RunRecord, request: ForkRequest) -> None:
        """Raise what is wrong with a request. The prefix is replayed only where stale calls are to be refused."""
        draft = await self._read(record, request)
        if request.cut.on_stale == "error":
            rehearsed = await self._rehearse(draft, f"{record.run_id}~plan")
            rehearsed.drive.suspend()
        else:
            self._resolve_cut(draft)

    async def make(
        self, record: RunRecord, request: ForkRequest, fork_id: str, parent_id: str | None = None
    ) -> ForkReceipt:
        """Write the fork and drive it. The receipt, also of a fork that was there and was asked for the same.

        A run with `parent_id` started it: the fork is asked to cancel when that run ends.
        """
        with reading(record.run_id):
            return await self._make(record, request, fork_id, parent_id)

    async def _make(self, record: RunRecord, request: ForkRequest, fork_id: str, parent_id: str | None) -> ForkReceipt:
        draft = await self._read(record, request)
        if await self._host.journal.record(fork_id) is not None:
            return await self._same_fork(fork_id, draft)
        rehearsed = await self._rehearse(draft, fork_id)
        try:
            return await self._write_or_drop(draft, rehearsed, fork_id, _Governor(parent_id, None))
        except RunExistsError:
            return await self._same_fork(fork_id, draft)

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
        draft = (await self._read(record, request))._replace(policies=terms.policies, as_of=at)
        rehearsed = await self._rehearse(draft, run_id)
        await self._write_or_drop(draft, rehearsed, run_id, _Governor(parent_id, terms))

    async def _write_or_drop(
        self, draft: Draft, rehearsed: Rehearsed, fork_id: str, governor: _Governor
    ) -> ForkReceipt:
        try:
            return await self._write(draft, rehearsed, fork_id, governor)
        except BaseException:
            rehearsed.drive.suspend()
            raise

    # --- the source ---------------------------------------------------------------------------------------------------

    async def _read(self, record: RunRecord, request: ForkRequest) -> Draft:
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
        policies = {**inherited_policies(recorded.entries), **own}
        within = governing_terms()
        if within is not None:  # A task of a fork makes this one: it lets nothing run that the task may not.
            policies = restrict(policies, within.policies, declared_effect)
        return Draft(
            record,
            recorded,
            definition,
            request,
            text,
            parse_overrides(run_id, list(calls.values()), request.overrides, request.raises),
            policies,
        )

    def _resolve_cut(self, draft: Draft) -> Cut:
        expected, head = draft.request.expected_head, len(draft.entries)
        if expected is not None and expected != head:
            raise refusal(
                draft.run_id,
                f"expected_head={expected!r}, and its last entry is {head}: it has moved on, so look at it again",
            )
        overridden = [override.call for override in draft.overrides]
        return resolve_cut(draft.run_id, draft.entries, draft.calls, draft.request.cut, overridden)

    # --- the rehearsal ------------------------------------------------------------------------------------------------

    async def _rehearse(self, draft: Draft, fork_id: str, *, is_plan: bool = False) -> Rehearsed:
        """Find the cut and replay what it keeps; again before the first stale call where that is asked for.

        A call that the first cut was to make again, with the arguments of today, is merely outstanding at an earlier
        one, with those that are recorded for it: it may be stale in turn.
        """
        cut, on_stale = self._resolve_cut(draft), draft.request.cut.on_stale
        while True:
            await self._check_children(draft, cut)
            rehearsed = await self._replay(draft, cut, fork_id, is_plan=is_plan)
            if not rehearsed.stale or on_stale != "rerun":
                break
            rehearsed.drive.suspend()
            first = rehearsed.stale[0]
            cut = Cut(CutRule.STALE, first.seq - 1, draft.calls[first.seq])
        if on_stale == "error" and rehearsed.stale:
            rehearsed.drive.suspend()
            raise stale_error(draft.run_id, rehearsed.stale)
        approvals = [call for call in rehearsed.stale if call.call.startswith(f"{APPROVAL}[")]
        if approvals and not is_plan:
            rehearsed.drive.suspend()
            raise changed_approval(draft.run_id, approvals)
        return rehearsed

    async def _check_children(self, draft: Draft, cut: Cut) -> None:
        """Refuse to share a child that was cancelled with its parent: that is no outcome of the call."""
        if draft.request.children != SHARE_CHILDREN:
            return
        prefix = draft.recorded.prefix(cut.through_seq)
        before = prefix.history.inherited_children()
        answered = answered_calls(draft, cut, prefix.history)
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
                    draft.run_id, f"its child {child_id!r} {state} and cannot be shared; pass children='fork'"
                )

    async def _replay(self, draft: Draft, cut: Cut, fork_id: str, *, is_plan: bool) -> Rehearsed:
        host = self._host
        prefix = draft.recorded.prefix(cut.through_seq)
        references = prefix.references | referenced_blobs([*cut.kept, *reissued_for(draft, cut).values()])
        blobs = await host.archive.values(draft.run_id, draft.entries, references)
        at = host.clock.now()
        first = prefix.entries[0]._replace(at=at)
        terms = terms_of(draft, fork_id, cut, "")
        origin = origin_of_fork(draft, origin_of(draft.run_id, prefix.entries, blobs), terms, at, len(prefix))
        after, own_blobs = after_prefix(draft, cut, fork_id, prefix.last, at, blobs, "null")
        blobs = {**blobs, **{blob.sha256: blob.text for blob in own_blobs}}
        same = prefix.same_arguments if prefix.history.answered else None  # Most prefixes are inherited once.
        history = prefix.history.of_fork(first, after)
        drive = Drive(host, Lease(fork_id, 0, 0), draft.definition, origin, history, blobs)
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        rehearsal = Rehearsal(
            lambda error: None if ended.done() else ended.set_result(error), is_plan=is_plan, same=same
        )
        try:
            host.step(drive.rehearse, rehearsal)
            error = await ended
            given = {override.call for override in draft.overrides}
            differing = [
                each
                for each in rehearsal.differing
                if draft.calls[each.entry.seq] not in given and not drive.has_arguments_of_today(each.entry.seq)
            ]
            stale = await self._stale(draft, differing)
        except BaseException:
            drive.suspend()
            raise
        return Rehearsed(cut, prefix, blobs, origin, drive, stale, error, at)

    async def _stale(self, draft: Draft, differing: Sequence[Issued]) -> list[StaleCall]:
        entries = [issued.entry for issued in differing]
        references = {digest for entry in entries if (digest := blob_reference(entry))}
        blobs = await self._host.archive.values(draft.run_id, entries, references)
        stale = []
        for entry, issued, reissued in sorted(differing):
            recorded = reissued or value_text(entry) or blobs.get(blob_reference(entry) or "", "null")
            if CALL_KIND[entry.type] is CallKind.EVENT and recorded == "null":
                recorded = wait_arguments(facts(entry)["match"])
            differences, _ = find_differences(to_plain(recorded), to_plain(issued), 1)
            if differences:
                stale.append(StaleCall(str(recorded_call(entry)), entry.seq, differences[0].path))
        return stale

    # --- the writing --------------------------------------------------------------------------------------------------

    async def _write(self, draft: Draft, rehearsed: Rehearsed, fork_id: str, governor: _Governor) -> ForkReceipt:
        host = self._host
        prefix, cut = rehearsed.prefix, rehearsed.cut
        receipt = receipt_of(draft, rehearsed, fork_id)
        if governor.terms is None:
            terms = terms_of(draft, fork_id, cut, receipt.receipt_id)
        else:
            terms = replace(governor.terms, source_id=draft.run_id, source_head=len(draft.entries))
        origin = rehearsed.origin._replace(terms=terms, parent_id=governor.parent_id)
        first, blobs = workflow_created(draft.definition, origin, rehearsed.at)
        after, more = after_prefix(draft, cut, fork_id, prefix.last, rehearsed.at, rehearsed.blobs, receipt.to_json())
        run = NewRun(
            run_id=fork_id,
            workflow=draft.definition.name,
            created_at=rehearsed.at,
            owner=host.owner_id,
            code_version=draft.definition.code_version,
            parent_id=origin.parent_id,
            forked_from=draft.run_id,
            fork_seq=len(prefix),
        )
        lease = await host.journal.fork(
            NewFork(
                run=run,
                source_id=draft.run_id,
                through_seq=len(prefix),
                prefix_digest=prefix.last.digest,
                first=first,
                after=after,
                waits=waits_of(draft, rehearsed, fork_id),
                blobs=[*blobs, *more],
            )
        )
        if rehearsed.error is None:
            host.adopt_rehearsed(rehearsed.drive, lease, origin, after[-1])
        else:  # The fork stops with this error; whoever waits for its result is told.
            history = prefix.history.of_fork(first, after)
            every_blob = {**rehearsed.blobs, **{blob.sha256: blob.text for blob in more}}
            host.adopt(Drive(host, lease, draft.definition, origin, history, every_blob), resumed=False)
        return receipt

    async def _same_fork(self, fork_id: str, draft: Draft) -> ForkReceipt:
        """The receipt of the fork that has the id, if it was asked for the same."""
        archive = self._host.archive
        text = await archive.receipt_text(fork_id)
        if text is None:
            raise RunConflictError(f"run {fork_id!r} is there already; a fork needs an id of its own", run_id=fork_id)
        receipt = ForkReceipt.from_json(text)
        first = (await self._host.journal.read(fork_id, limit=1))[0]
        differing = differing_options(receipt, first, draft)
        if differing:
            raise RunConflictError(
                f"fork {fork_id!r} is there already and was asked for differently: "
                f"{', '.join(differing)} {'differs' if len(differing) == 1 else 'differ'}; "
                "choose another id",
                run_id=fork_id,
            )
        await self._host.take_over(fork_id)
        return receipt.as_replayed()
