"""The plan of a fork: what it would do with each call of its source, and what that saves and costs."""

from collections.abc import Sequence
from math import fsum
from typing import Final

from satay.clock import MICROSECONDS
from satay.collector import collector_paused
from satay.errors import NondeterminismError
from satay.fork_actions import action_of, answered_calls, calls_in_flight, reuse_in
from satay.fork_drafts import Draft, Rehearsed
from satay.model import Entry, EntryType
from satay.plans import ForkPlan, PlannedCall
from satay.replay import OUTCOME_TYPES, outcome_call, read_head


@collector_paused()
def plan_of(draft: Draft, rehearsed: Rehearsed) -> ForkPlan:
    """What the fork would be. Raises what its rehearsal met, unless that is the code of today on another way."""
    cut, prefix = rehearsed.cut, rehearsed.prefix
    if rehearsed.error is not None and not isinstance(rehearsed.error, NondeterminismError):
        raise rehearsed.error
    divergence = None
    if rehearsed.error is not None:  # The run that it names is there for the rehearsal only.
        divergence = str(rehearsed.error).replace(f"run {rehearsed.drive.run_id!r}", "the fork")
    calls = _planned_calls(draft, rehearsed)
    reuse = reuse_in(draft, rehearsed)
    again = [call for call in calls if call.action in _MADE_AGAIN]
    return ForkPlan(
        source_id=draft.run_id,
        cut=str(cut),
        resolved_seq=prefix.last.seq,
        resolved_entry=prefix.last.type,
        calls=tuple(calls),
        stale_calls=tuple(rehearsed.stale),
        tool_policies=draft.policies,
        input_overridden=draft.input_text is not None,
        divergence=divergence,
        saved_cost=reuse.usage.cost,
        saved_seconds=reuse.seconds,
        expected_cost=fsum(call.cost for call in again),
        expected_seconds=sum(call.seconds or 0.0 for call in again),
    )


_MADE_AGAIN: Final = frozenset({"run", "rerun", "ask", "fork", "wait"})


def _planned_calls(draft: Draft, rehearsed: Rehearsed) -> list[PlannedCall]:
    actions = {call.seq: call.action for call in calls_in_flight(draft, rehearsed)}
    answered = answered_calls(draft, rehearsed.cut, rehearsed.prefix.history)
    through = len(rehearsed.prefix)
    paths = {stale.seq: stale.path for stale in rehearsed.stale}
    spent = _spent(draft.entries)
    planned = []
    for seq, call in draft.calls.items():
        if seq in actions:
            action = actions[seq]
        elif seq <= through:
            action = "inherit"
        elif seq in answered:
            action = answered[seq]
        else:
            action = action_of(draft, call, is_again=True)
            action = "run" if action == "rerun" else action
        cost, seconds = spent.get(seq, (0.0, None))
        planned.append(PlannedCall(str(call), seq, action, cost, seconds, paths.get(seq)))
    return planned


def _spent(entries: Sequence[Entry]) -> dict[int, tuple[float, float | None]]:
    """What was recorded of cost and time, by the seq of the call."""
    spent: dict[int, tuple[float, float | None]] = {}
    for entry in entries:
        _, type, at, payload, _ = entry
        # What an entry of its own keeps is told again by the outcome that it leads to.
        if not payload.startswith('{"call":') or type == EntryType.OUTCOME_KEPT:
            continue
        call = outcome_call(entry)
        cost, seconds = spent.get(call, (0.0, None))
        if '"usage":' in payload:
            cost += fsum(use["cost"] for use in read_head(entry).get("usage", ()))
        if type in OUTCOME_TYPES:
            seconds = (at - entries[call - 1].at) / MICROSECONDS
        spent[call] = (cost, seconds)
    return spent
