"""satay: durable workflows for Python in which an execution is an object you can fork."""

from satay.app import App
from satay.context import TaskContext, Usage, task_context
from satay.definitions import Task, Workflow, task, workflow
from satay.divergences import Cause
from satay.effects import ToolPolicy
from satay.errors import SatayError
from satay.functions import (
    cancel,
    compare,
    decide,
    fork,
    plan_fork,
    receipt,
    resume,
    run,
    run_app,
    send_event,
    start,
    sweep,
    terminate,
    verify,
)
from satay.handles import ForkHandle, RunEvent, RunHandle, RunSummary
from satay.matrices import ComparisonMatrix
from satay.model import MISSING, RunStatus
from satay.plans import ForkPlan, PlannedCall
from satay.primitives import (
    ChildHandle,
    continue_as_new,
    gather,
    get_logger,
    intervention,
    map,
    now,
    random,
    sleep,
    start_child,
    uuid4,
    wait_for_event,
)
from satay.receipts import CallInFlight, ForkReceipt, StaleCall
from satay.reports import Comparison
from satay.retries import Backoff
from satay.sweeps import Budget, Sweep, SweepRow, Trial, Variant
from satay.verification import Verification

__all__ = [
    "MISSING",
    "App",
    "Backoff",
    "Budget",
    "CallInFlight",
    "Cause",
    "ChildHandle",
    "Comparison",
    "ComparisonMatrix",
    "ForkHandle",
    "ForkPlan",
    "ForkReceipt",
    "PlannedCall",
    "RunEvent",
    "RunHandle",
    "RunStatus",
    "RunSummary",
    "SatayError",
    "StaleCall",
    "Sweep",
    "SweepRow",
    "Task",
    "TaskContext",
    "ToolPolicy",
    "Trial",
    "Usage",
    "Variant",
    "Verification",
    "Workflow",
    "cancel",
    "compare",
    "continue_as_new",
    "decide",
    "fork",
    "gather",
    "get_logger",
    "intervention",
    "map",
    "now",
    "plan_fork",
    "random",
    "receipt",
    "resume",
    "run",
    "run_app",
    "send_event",
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
