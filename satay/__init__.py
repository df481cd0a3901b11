"""satay: durable workflows for Python in which an execution is an object you can fork."""

import importlib
import typing

from satay import features
from satay.app import App
from satay.approval_records import Approval, PendingApproval
from satay.context import TaskContext, Usage, task_context
from satay.definitions import Task, Workflow, effect, task, workflow
from satay.effects import ToolPolicy
from satay.errors import SatayError
from satay.failures import Failure
from satay.functions import (
    approvals,
    cancel,
    compare,
    decide,
    decide_approval,
    decision_trail,
    diff_states,
    experiment,
    fork,
    outcome,
    plan_fork,
    promote,
    receipt,
    resume,
    run,
    run_app,
    send_event,
    set_outcome,
    start,
    sweep,
    terminate,
    verify,
)
from satay.handles import ForkHandle, RunEvent, RunHandle, RunOrId, RunReference, RunSummary
from satay.model import MISSING, CallId, CallKind, Missing, RunStatus
from satay.primitives import (
    ChildHandle,
    continue_as_new,
    gather,
    get_logger,
    intervention,
    map,
    now,
    random,
    require_approval,
    sleep,
    start_child,
    uuid4,
    wait_for_event,
)
from satay.retries import Backoff

if typing.TYPE_CHECKING:
    from satay.accounts import AnswerSource, CallSide, CallState, ComparedRun, Reuse, StepSide, UsageTotal
    from satay.boundaries import BoundaryMode, Reproducibility, SessionBoundary
    from satay.claims import ClaimStatus
    from satay.cuts import RequestedCut
    from satay.differences import Difference, DifferenceKind
    from satay.divergences import CallComparison, CallStatus, Cause, StepComparison
    from satay.experiments import Member, Outcome, OutcomeValue, Promotion
    from satay.laboratory import Experiment
    from satay.ledgers import Claim, ToolReceipt
    from satay.matrices import ComparisonMatrix, MatrixRow
    from satay.plans import ForkPlan, PlannedCall
    from satay.receipts import CallInFlight, ForkReceipt, OverriddenCall, StaleCall
    from satay.reports import Comparison
    from satay.requests import ForkOptions
    from satay.session_openings import SessionOpening
    from satay.session_steps import Step
    from satay.sessions import Session, current_session, session
    from satay.state_diffs import CommonAncestor, ListEdit, StateDiff, StateSide
    from satay.sweeps import BestRow, Budget, Sweep, SweepRow, Trial, Variant
    from satay.trail_items import TrailItem, TrailKind
    from satay.trails import Ancestor, DecisionTrail, TrailCall
    from satay.transcripts import SessionStatus
    from satay.verification import PrefixCheck, Problem, Verification

else:  # A type checker that saw a __getattr__ would take every name.

    def __getattr__(name):
        module = features.module_of(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(module), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = [
    "MISSING",
    "Ancestor",
    "AnswerSource",
    "App",
    "Approval",
    "Backoff",
    "BestRow",
    "BoundaryMode",
    "Budget",
    "CallComparison",
    "CallId",
    "CallInFlight",
    "CallKind",
    "CallSide",
    "CallState",
    "CallStatus",
    "Cause",
    "ChildHandle",
    "Claim",
    "ClaimStatus",
    "CommonAncestor",
    "ComparedRun",
    "Comparison",
    "ComparisonMatrix",
    "DecisionTrail",
    "Difference",
    "DifferenceKind",
    "Experiment",
    "Failure",
    "ForkHandle",
    "ForkOptions",
    "ForkPlan",
    "ForkReceipt",
    "ListEdit",
    "MatrixRow",
    "Member",
    "Missing",
    "Outcome",
    "OutcomeValue",
    "OverriddenCall",
    "PendingApproval",
    "PlannedCall",
    "PrefixCheck",
    "Problem",
    "Promotion",
    "Reproducibility",
    "RequestedCut",
    "Reuse",
    "RunEvent",
    "RunHandle",
    "RunOrId",
    "RunReference",
    "RunStatus",
    "RunSummary",
    "SatayError",
    "Session",
    "SessionBoundary",
    "SessionOpening",
    "SessionStatus",
    "StaleCall",
    "StateDiff",
    "StateSide",
    "Step",
    "StepComparison",
    "StepSide",
    "Sweep",
    "SweepRow",
    "Task",
    "TaskContext",
    "ToolPolicy",
    "ToolReceipt",
    "TrailCall",
    "TrailItem",
    "TrailKind",
    "Trial",
    "Usage",
    "UsageTotal",
    "Variant",
    "Verification",
    "Workflow",
    "approvals",
    "cancel",
    "compare",
    "continue_as_new",
    "current_session",
    "decide",
    "decide_approval",
    "decision_trail",
    "diff_states",
    "effect",
    "experiment",
    "fork",
    "gather",
    "get_logger",
    "intervention",
    "map",
    "now",
    "outcome",
    "plan_fork",
    "promote",
    "random",
    "receipt",
    "require_approval",
    "resume",
    "run",
    "run_app",
    "send_event",
    "session",
    "set_outcome",
    "sleep",
    "start",
    "start_child",
    "sweep",
    "task",
    "task_context",
    "terminate",
    "uuid4",
    "verify",
    "wait_for_event",
    "workflow",
]
