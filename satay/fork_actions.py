"""What a fork does with the calls that are outstanding at its cut."""

from typing import Final

from satay.accounts import Reuse
from satay.answers import recorded_identity
from satay.cuts import Cut
from satay.definitions import declared_effect
from satay.effects import Effect, ToolPolicy, ruling_for
from satay.fork_drafts import Draft, Rehearsed
from satay.histories import reuse_of
from satay.model import CallId, CallKind, EntryType
from satay.receipts import CallInFlight
from satay.replay import History, outcome_call, read_head

_IN_STORE: Final[frozenset[str]] = frozenset(
    {EntryType.OUTCOME_KEPT, EntryType.OUTCOME_OVERRIDDEN, EntryType.RUN_FORKED}
)
"""The entries that put outcomes in store for a fork, or make a call anew."""


def calls_in_flight(draft: Draft, rehearsed: Rehearsed) -> list[CallInFlight]:
    """The calls that are outstanding at the cut, and what the fork does with each."""
    cut = rehearsed.cut
    answered = answered_calls(draft, cut, rehearsed.prefix.history)
    found = []
    for seq in rehearsed.prefix.outstanding:
        call = draft.calls[seq]
        is_again = seq == cut.again or rehearsed.drive.is_between_attempts(seq)
        action = answered.get(seq) or action_of(draft, call, is_again=is_again)
        found.append(CallInFlight(str(call), seq, action))
    return found


def reuse_in(draft: Draft, rehearsed: Rehearsed) -> Reuse:
    """What the fork is spared: what it inherits and keeps, and what its source had in store and was yet to be given."""
    cut, prefix = rehearsed.cut, rehearsed.prefix
    in_store = [note for note in prefix.history.notes if note.type == EntryType.OUTCOME_KEPT]
    if not (cut.kept or in_store):
        return prefix.reuse
    answered = answered_calls(draft, cut, prefix.history)
    kept = {
        call: note._replace(type=read_head(note)["outcome"])
        for note in in_store
        if (call := outcome_call(note)) in prefix.outstanding and answered.get(call) == "keep"
    }
    kept |= {outcome_call(entry): entry for entry in cut.kept}
    return reuse_of([*prefix.entries, *kept.values()])


def answered_calls(draft: Draft, cut: Cut, prefix: History) -> dict[int, str]:
    """The calls whose outcome is in store at the cut, by seq, and where it is from: what the fork does with them.

    Those that the source made after the cut are among them.
    """
    answered: dict[int, str] = {}
    own = [note for note in prefix.notes if note.type in _IN_STORE]
    seqs = {call: seq for seq, call in draft.calls.items()} if own or draft.overrides else {}
    for entry in own:  # A source that is a fork itself may have had outcomes in store.
        match entry.type:
            case EntryType.OUTCOME_KEPT:
                answered[outcome_call(entry)] = "keep"
            case EntryType.OUTCOME_OVERRIDDEN:
                answered[seqs.get(recorded_identity(read_head(entry)), 0)] = "override"  # It may never be made.
            case EntryType.RUN_FORKED:
                known = read_head(entry)
                answered.pop(known.get("again", 0), None)
                if "anew" in known:
                    answered.pop(seqs.get(recorded_identity(known["anew"]), 0), None)
    answered.pop(cut.again or 0, None)
    if cut.next_call is not None and own:
        answered.pop(seqs.get(cut.next_call, 0), None)
    answered |= dict.fromkeys(map(outcome_call, cut.kept), "keep")
    answered |= dict.fromkeys((seqs[override.call] for override in draft.overrides), "override")
    return answered


def action_of(draft: Draft, call: CallId, *, is_again: bool) -> str:
    """What becomes of a call that is outstanding at the cut, has no outcome in store, and does not answer itself.

    `is_again`: it is made anew there, or by its next attempt, so that no attempt of it was in flight.
    """
    match call.kind:
        case CallKind.TASK:
            effect = declared_effect(call.name)
            policy = ruling_for(draft.policies, call.name, effect).policy
            if policy in (ToolPolicy.BLOCK, ToolPolicy.REPLAY):
                return policy.value
            return "ask" if effect is Effect.EXTERNAL and policy is ToolPolicy.AUTO and not is_again else "rerun"
        case CallKind.CHILD:
            return "rerun" if is_again else draft.request.children
        case CallKind.TIMER | CallKind.EVENT:
            return "wait"
