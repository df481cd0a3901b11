"""What is written of a fork: its terms and receipt, the entries that follow the prefix, and the waits that it needs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from satay.answers import recorded_identity
from satay.cuts import Cut
from satay.declarations import OPAQUE
from satay.effects import ForkTerms, ToolPolicy
from satay.fork_actions import answered_calls, calls_in_flight, reuse_in
from satay.fork_drafts import Draft, Rehearsed
from satay.journal import CHILD_ENDED, Blob, Wait, chain_digest
from satay.model import CallKind, Entry, EntryType
from satay.origin import Origin, recorded_terms
from satay.postponements import moment_of_cut
from satay.receipts import MAX_LISTED_STALE_CALLS, ForkReceipt
from satay.recorder import lay_out
from satay.replay import (
    CALL_KIND,
    SHARE_CHILDREN,
    blob_reference,
    facts,
    identity_facts,
    inherited_child,
    outcome_call,
    read_head,
    reissued_calls,
    value_text,
)
from satay.texts import json_quote


def inherited_policies(entries: Sequence[Entry]) -> Mapping[str, ToolPolicy]:
    """The tool policies of a source that is a fork itself."""
    terms = recorded_terms(entries[0])
    return {} if terms is None else {name: ToolPolicy(policy) for name, policy in terms["policies"].items()}


def terms_of(draft: Draft, fork_id: str, cut: Cut, receipt_id: str) -> ForkTerms:
    """What the fork imposes on what runs in it."""
    return ForkTerms(
        fork_id=fork_id,
        source_id=draft.run_id,
        source_head=len(draft.entries),
        cut=str(cut),
        receipt_id=receipt_id,
        policies=draft.policies,
        intervention=_copied(draft.request.intervention),
    )


def _copied(intervention: Any) -> Any:
    """A copy that went through the codec: the caller may change what it gave."""
    where = "the intervention of a fork"
    return OPAQUE.decode(OPAQUE.encode(intervention, where), where)


def origin_of_fork(draft: Draft, inherited: Origin, terms: ForkTerms, at: int, through_seq: int) -> Origin:
    """Where the fork comes from, and with which input it begins."""
    return inherited._replace(
        # Where nothing but the creation is inherited, no time of the source's has passed.
        started_at=at if through_seq == 1 else inherited.started_at,
        input_text=inherited.input_text if draft.input_text is None else draft.input_text,
        parent_id=None,
        terms=terms,
    )


def after_prefix(
    draft: Draft, cut: Cut, fork_id: str, last: Entry, at: int, blobs: Mapping[str, str], receipt_text: str
) -> tuple[list[Entry], list[Blob]]:
    """The entries that making the fork writes, with the values that are kept as blobs."""
    entries: list[Entry] = []
    own_blobs: list[Blob] = []
    seq, digest = last.seq, last.digest
    for type, members, text in _records(draft, cut, fork_id, blobs, receipt_text):
        payload, blob = lay_out(type, members, text)
        seq += 1
        digest = chain_digest(digest, type, at, payload)
        entries.append(Entry(seq, type, at, payload, digest))
        own_blobs += [] if blob is None else [blob]
    return entries, own_blobs


def _records(draft: Draft, cut: Cut, fork_id: str, blobs: Mapping[str, str], receipt_text: str) -> "list[_Record]":
    request = draft.request
    again = "" if cut.again is None else f',"again":{cut.again}'
    shares = f',"children":"{SHARE_CHILDREN}"' if request.children == SHARE_CHILDREN else ""
    moment = _moment(draft, cut)
    as_of = "" if moment is None else f',"as_of":{moment}'
    anew = _anew(draft, cut)
    cut_at = f',"cut_at":{_moment_of_cut(draft, cut)}'
    forked = (
        f'"run_id":{json_quote(fork_id)},"source_id":{json_quote(draft.run_id)}{again}{anew}{shares}{as_of}{cut_at}'
    )
    records = [_Record(EntryType.RUN_FORKED, forked, receipt_text)]
    for override in draft.overrides:
        records.append(_Record(EntryType.OUTCOME_OVERRIDDEN, override.facts(request.reason), override.text))
    reissued = reissued_for(draft, cut)
    for outcome in cut.kept:
        call = outcome_call(outcome)
        if call in reissued:
            records.append(_Record(EntryType.CALL_REISSUED, f'"call":{call}', _text(reissued[call], blobs)))
        records.append(_Record(EntryType.OUTCOME_KEPT, *_kept(outcome, blobs)))
    return records


def reissued_for(draft: Draft, cut: Cut) -> dict[int, Entry]:
    """The calls whose kept outcome is of other arguments than the prefix tells: the entries with those, by seq.

    The source is a fork then that made them again, after the cut.
    """
    if draft.record.forked_from is None:
        return {}
    told, made = reissued_calls(draft.entries[: cut.through_seq]), reissued_calls(draft.entries)
    differing = {}
    for call in map(outcome_call, cut.kept):
        scheduled = draft.entries[call - 1]
        if told.get(call, scheduled) is not made.get(call, scheduled):
            differing[call] = made.get(call, scheduled)
    return differing


def _anew(draft: Draft, cut: Cut) -> str:
    """The fact that names the call after the cut, where an ancestor was given an outcome that it is not to have."""
    if draft.record.forked_from is None or cut.next_call is None:
        return ""
    given = (entry for entry in draft.entries[: cut.through_seq] if entry.type == EntryType.OUTCOME_OVERRIDDEN)
    if all(recorded_identity(read_head(entry)) != cut.next_call for entry in given):
        return ""
    return f',"anew":{{{identity_facts(cut.next_call)}}}'


def _moment_of_cut(draft: Draft, cut: Cut) -> int:
    """The moment in which the fork begins for what is outstanding: a child stood where its parent was cut."""
    if draft.as_of is not None and cut.again is None:
        return draft.as_of
    return moment_of_cut(draft.entries[: cut.through_seq], cut.again)


def _moment(draft: Draft, cut: Cut) -> int | None:
    """When the first entry was written that the cut leaves out; None where no child is outstanding at the cut.

    Until then, no child can depend on it. Where that entry made the source a fork, all that is kept is of an ancestor,
    and so are the children.
    """
    outstanding = draft.recorded.prefix(cut.through_seq).outstanding.values()
    if all(entry.type != EntryType.CHILD_WORKFLOW_SCHEDULED for entry in outstanding):
        return None
    left_out = draft.entries[cut.through_seq] if cut.through_seq < len(draft.entries) else None
    if left_out is not None and left_out.type == EntryType.RUN_FORKED:
        return read_head(left_out).get("as_of")
    if draft.as_of is not None or left_out is None:
        return draft.as_of
    return left_out.at


class _Record(NamedTuple):
    """An entry before it has a place: its type, its facts and its value."""

    type: str
    facts: str
    text: str | None


def _kept(outcome: Entry, blobs: Mapping[str, str]) -> tuple[str, str | None]:
    """The members and the value of the entry that keeps an outcome."""
    members = {"call": outcome_call(outcome), "outcome": outcome.type, "source_seq": outcome.seq}
    for name, fact in read_head(outcome).items():
        if name != "call" and not name.endswith("_blob"):
            members[name] = fact
    return json.dumps(members, separators=(",", ":"))[1:-1], _text(outcome, blobs)


def _text(entry: Entry, blobs: Mapping[str, str]) -> str | None:
    reference = blob_reference(entry)
    return value_text(entry) if reference is None else blobs[reference]


def receipt_of(draft: Draft, rehearsed: Rehearsed, fork_id: str) -> ForkReceipt:
    """What proves to others what the fork has inherited, and under which rules."""
    cut, prefix = rehearsed.cut, rehearsed.prefix
    reuse = reuse_in(draft, rehearsed)
    request, stale = draft.request, rehearsed.stale
    receipt = ForkReceipt(
        run_id=fork_id,
        source_id=draft.run_id,
        root_id=rehearsed.origin.root_run_id,
        requested=request.cut,
        cut=str(cut),
        resolved_seq=prefix.last.seq,
        resolved_entry=prefix.last.type,
        source_head=len(draft.entries),
        prefix_digest=prefix.last.digest.hex(),
        calls_inherited=reuse.calls,
        in_flight=tuple(calls_in_flight(draft, rehearsed)),
        is_restorable=True,
        input_overridden=draft.input_text is not None,
        intervention=request.intervention,
        tool_policies=draft.policies,
        overrides=tuple(override.noted() for override in draft.overrides),
        reason=request.reason,
        children=request.children,
        stale_calls=tuple(stale[:MAX_LISTED_STALE_CALLS]),
        stale_count=len(stale),
        source_code_version=draft.record.code_version,
        code_version=draft.definition.code_version,
        saved_cost=reuse.usage.cost,
        saved_seconds=reuse.seconds,
    )
    return receipt.stored()


def waits_of(draft: Draft, rehearsed: Rehearsed, fork_id: str) -> list[Wait]:
    """The waits that the outstanding calls of the prefix need in the fork, but for those with an outcome in store."""
    waits = []
    prefix = rehearsed.prefix
    before = prefix.history.inherited_children()
    answered = answered_calls(draft, rehearsed.cut, prefix.history)
    for seq, entry in prefix.outstanding.items():
        if seq in answered:
            continue
        kind = CALL_KIND[entry.type]
        known = facts(entry) if kind in (CallKind.EVENT, CallKind.CHILD) else {}
        if kind is CallKind.EVENT:
            waits.append(Wait(seq, known["event"], known["match"]))
        elif kind is CallKind.CHILD:
            source_id = before[seq].run_id if seq in before else known["run_id"]
            child = inherited_child(
                fork_id, entry, None if seq == rehearsed.cut.again else source_id, draft.request.children, 0
            )
            waits.append(Wait(seq, CHILD_ENDED, child.run_id))
    return waits
