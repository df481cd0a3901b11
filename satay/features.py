"""The public names that are not loaded with the package, but when they are first asked for.

Most programs run workflows, and need none of what compares, explains, forks and sweeps them, or of sessions. All of it
is in modules of its own. The engine imports them where it comes to use them, and from here on they stay.
"""

from collections.abc import Mapping
from typing import Final

FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "satay.accounts": (
        "AnswerSource",
        "CallSide",
        "CallState",
        "ComparedRun",
        "Reuse",
        "StepSide",
        "UsageTotal",
    ),
    "satay.boundaries": ("BoundaryMode", "Reproducibility", "SessionBoundary"),
    "satay.claims": ("ClaimStatus",),
    "satay.cuts": ("RequestedCut",),
    "satay.differences": ("Difference", "DifferenceKind"),
    "satay.divergences": ("CallComparison", "CallStatus", "Cause", "StepComparison"),
    "satay.experiments": ("Member", "Outcome", "OutcomeValue", "Promotion"),
    "satay.laboratory": ("Experiment",),
    "satay.ledgers": ("Claim", "ToolReceipt"),
    "satay.matrices": ("ComparisonMatrix", "MatrixRow"),
    "satay.plans": ("ForkPlan", "PlannedCall"),
    "satay.receipts": ("CallInFlight", "ForkReceipt", "OverriddenCall", "StaleCall"),
    "satay.reports": ("Comparison",),
    "satay.requests": ("ForkOptions",),
    "satay.session_openings": ("SessionOpening",),
    "satay.session_steps": ("Step",),
    "satay.sessions": ("Session", "current_session", "session"),
    "satay.state_diffs": ("CommonAncestor", "ListEdit", "StateDiff", "StateSide"),
    "satay.sweeps": ("BestRow", "Budget", "Sweep", "SweepRow", "Trial", "Variant"),
    "satay.trail_items": ("TrailItem", "TrailKind"),
    "satay.trails": ("Ancestor", "DecisionTrail", "TrailCall"),
    "satay.transcripts": ("SessionStatus",),
    "satay.verification": ("PrefixCheck", "Problem", "Verification"),
}
"""The modules, and the public names of each."""

DEFINED_IN: Final[Mapping[str, str]] = {"satay.sweep": "satay.sweeps"}
"""The modules of the workflows of satay's own, which are loaded when somebody asks for a run of one."""

_MODULES: Final = {name: module for module, names in FEATURES.items() for name in names}


def module_of(name: str) -> str | None:
    """The module that has a public name which is loaded on demand; None for every other name."""
    return _MODULES.get(name)
