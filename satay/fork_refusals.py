"""Why a fork is not made: calls that are stale, and another request under its id."""

from collections.abc import Sequence
from typing import Any, Final

from satay.errors import StalePrefixError
from satay.fork_drafts import Draft
from satay.model import Entry
from satay.origin import has_input
from satay.receipts import ForkReceipt, StaleCall, intervention_key

MAX_NAMED_STALE_CALLS: Final = 5
"""How many stale calls an error names."""


def stale_error(run_id: str, stale: Sequence[StaleCall]) -> StalePrefixError:
    """A fork that was to have no stale calls would inherit some."""
    named = ", ".join(f"{call.call} at {call.path}" for call in stale[:MAX_NAMED_STALE_CALLS])
    more = "" if len(stale) <= MAX_NAMED_STALE_CALLS else f" and {len(stale) - MAX_NAMED_STALE_CALLS} more"
    return StalePrefixError(
        f"a fork of run {run_id!r} would inherit calls whose arguments would be others now: {named}{more}; cut before "
        "the first of them, or pass on_stale='rerun', which does, or on_stale='keep'",
        run_id=run_id,
        calls=[call.call for call in stale],
    )


def changed_approval(run_id: str, stale: Sequence[StaleCall]) -> StalePrefixError:
    """What was decided about one payload is not inherited for another."""
    named = ", ".join(f"{call.call} at {call.path}" for call in stale[:MAX_NAMED_STALE_CALLS])
    return StalePrefixError(
        f"a fork of run {run_id!r} would inherit approvals of another payload than its code asks for now: {named}; cut "
        "before the first of them, or pass on_stale='rerun', which does",
        run_id=run_id,
        calls=[call.call for call in stale],
    )


def differing_options(there: ForkReceipt, first: Entry, draft: Draft) -> list[str]:
    """What a fork that is there was asked for differently."""
    request = draft.request
    pairs: dict[str, tuple[Any, Any]] = {
        "source": (there.source_id, draft.run_id),
        "workflow_input": (there.input_overridden, draft.input_text is not None),
        "intervention": (intervention_key(there.intervention), intervention_key(request.intervention)),
        "tool_policies": (there.tool_policies, draft.policies),
        "overrides": (set(there.overrides), {override.noted() for override in draft.overrides}),
        "reason": (there.reason, request.reason),
        "children": (there.children, request.children),
    }
    cuts = (there.requested.to_dict(), request.cut.to_dict())
    pairs |= {name: (cuts[0].get(name), cuts[1].get(name)) for name in {**cuts[0], **cuts[1]}}
    differing = [name for name, (one, other) in pairs.items() if one != other]
    if "workflow_input" not in differing and draft.input_text is not None and not has_input(first, draft.input_text):
        differing.append("workflow_input")
    return differing
