"""The records that every floor speaks of: entries, runs, messages and calls. Data only; nothing here acts.

An entry's payload is one JSON object that satay wrote itself, and its layout is fixed: facts first, the user's value
last, under the name that `VALUE_FIELD` gives for the entry's type. So a value can be cut out, and a recorded call can
be compared with an issued one, without parsing. A value that is kept in `blobs` stands there as `<field>_blob`, the
SHA-256 of its text.
"""

import hashlib
import re
from enum import Enum, StrEnum
from typing import Final, Literal, NamedTuple


class RunStatus(StrEnum):
    """What a run is doing, folded from its journal."""

    RUNNING = "running"
    WAITING = "waiting"
    NEEDS_DECISION = "needs_decision"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended: it completed, failed, or was cancelled."""
        return self in TERMINAL_STATUSES


TERMINAL_STATUSES: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class EntryType(StrEnum):
    """Every type of entry that this version writes."""

    WORKFLOW_CREATED = "WorkflowCreated"
    WORKFLOW_RESUMED = "WorkflowResumed"
    WORKFLOW_SUSPENDED = "WorkflowSuspended"
    WORKFLOW_COMPLETED = "WorkflowCompleted"
    WORKFLOW_FAILED = "WorkflowFailed"
    WORKFLOW_CANCEL_REQUESTED = "WorkflowCancelRequested"
    WORKFLOW_CANCELLED = "WorkflowCancelled"
    RUN_FORKED = "RunForked"
    TASK_SCHEDULED = "TaskScheduled"
    TASK_ATTEMPT_STARTED = "TaskAttemptStarted"
    TASK_ATTEMPT_FAILED = "TaskAttemptFailed"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    TASK_BLOCKED = "TaskBlocked"
    TIMER_CREATED = "TimerCreated"
    TIMER_FIRED = "TimerFired"
    EVENT_WAIT_STARTED = "EventWaitStarted"
    EVENT_WAIT_TIMED_OUT = "EventWaitTimedOut"
    EXTERNAL_EVENT_RECEIVED = "ExternalEventReceived"
    CHILD_WORKFLOW_SCHEDULED = "ChildWorkflowScheduled"
    CHILD_WORKFLOW_COMPLETED = "ChildWorkflowCompleted"
    CHILD_WORKFLOW_FAILED = "ChildWorkflowFailed"
    CALL_CANCELLED = "CallCancelled"
    CALL_RENEWED = "CallRenewed"
    DECISION_REQUESTED = "DecisionRequested"
    DECISION_MADE = "DecisionMade"
    OUTCOME_KEPT = "OutcomeKept"
    OUTCOME_OVERRIDDEN = "OutcomeOverridden"
    CALL_REISSUED = "CallReissued"
    EXPERIMENT_CREATED = "ExperimentCreated"
    MEMBER_ADDED = "MemberAdded"
    OUTCOME_RECORDED = "OutcomeRecorded"
    RUN_PROMOTED = "RunPromoted"
    SESSION_CREATED = "SessionCreated"
    SESSION_STARTED = "SessionStarted"
    SESSION_RESUMED = "SessionResumed"
    SESSION_PAUSED = "SessionPaused"
    SESSION_COMPLETED = "SessionCompleted"
    SESSION_CRASHED = "SessionCrashed"
    STEP_RECORDED = "StepRecorded"
    STATE_RECORDED = "StateRecorded"


VALUE_FIELD: Final[dict[str, str]] = {
    EntryType.WORKFLOW_CREATED: "input",
    EntryType.WORKFLOW_COMPLETED: "result",
    EntryType.WORKFLOW_FAILED: "error",
    EntryType.RUN_FORKED: "receipt",
    EntryType.TASK_SCHEDULED: "input",
    EntryType.TASK_ATTEMPT_FAILED: "error",
    EntryType.TASK_COMPLETED: "result",
    EntryType.TASK_FAILED: "error",
    EntryType.TASK_BLOCKED: "refusal",
    EntryType.EVENT_WAIT_STARTED: "request",
    EntryType.EXTERNAL_EVENT_RECEIVED: "payload",
    EntryType.CHILD_WORKFLOW_SCHEDULED: "input",
    EntryType.CHILD_WORKFLOW_COMPLETED: "result",
    EntryType.CHILD_WORKFLOW_FAILED: "error",
    EntryType.DECISION_MADE: "value",
    EntryType.OUTCOME_KEPT: "value",
    EntryType.OUTCOME_OVERRIDDEN: "value",
    EntryType.CALL_REISSUED: "input",
    EntryType.MEMBER_ADDED: "delta",
    EntryType.SESSION_CREATED: "input",
    EntryType.SESSION_COMPLETED: "result",
    EntryType.SESSION_CRASHED: "error",
    EntryType.STEP_RECORDED: "content",
    EntryType.STATE_RECORDED: "state",
}
"""The last member of a payload, by entry type: the one that holds a user's value."""

TERMINAL_ENTRIES: Final = frozenset(
    {EntryType.WORKFLOW_COMPLETED, EntryType.WORKFLOW_FAILED, EntryType.WORKFLOW_CANCELLED}
)


STATUS_OF_ENDING: Final[dict[str, RunStatus]] = {
    EntryType.WORKFLOW_COMPLETED: RunStatus.COMPLETED,
    EntryType.WORKFLOW_FAILED: RunStatus.FAILED,
    EntryType.WORKFLOW_CANCELLED: RunStatus.CANCELLED,
    EntryType.SESSION_COMPLETED: RunStatus.COMPLETED,
    EntryType.SESSION_CRASHED: RunStatus.FAILED,
}
"""The entries with which journals end, and the status of a run that ends so. A session can go on after them."""


CREATION_ENTRIES: Final = frozenset({EntryType.WORKFLOW_CREATED, EntryType.SESSION_CREATED})
"""The entries with which the journals of runs and sessions begin."""


FORK_ENTRIES: Final = frozenset({EntryType.RUN_FORKED, EntryType.OUTCOME_KEPT, EntryType.OUTCOME_OVERRIDDEN})
"""The entries that making a fork writes after what the fork inherits."""


EXPERIMENT_WORKFLOW: Final = "satay.experiment"
"""Stands in the row of an experiment, which is a journal like that of a run and which nobody ever drives."""


SESSION_WORKFLOW: Final = "satay.session"
"""Stands in the row of a session, whose loop the application owns: it is held by whoever has it open, not driven."""


APPROVAL: Final = "satay.approval"
"""The event that an approval waits for, and the type of the message that brings the decision or the end of its time."""


UNKNOWN_VERSION: Final = "unknown"
"""The version of code whose source cannot be read."""


class Entry(NamedTuple):
    """One entry of a journal, as stored.

    `seq` starts at 1; `at` is in microseconds since the epoch; `payload` is JSON text; `digest` links the entry to all
    entries before it.
    """

    seq: int
    type: str
    at: int
    payload: str
    digest: bytes


class CallKind(StrEnum):
    """The kinds of durable call; each value is also the name of the member that opens the call's payload."""

    TASK = "task"
    TIMER = "timer"
    EVENT = "event"
    CHILD = "child"


class CallId(NamedTuple):
    """What names a durable call within its run: kind and name, and the ordinal among its equals or its own key."""

    kind: CallKind
    name: str
    occurrence: int | str

    def __str__(self) -> str:
        """`draft:2`, or `draft[page-7]` for a call with a key."""
        return (
            f"{self.name}:{self.occurrence}" if isinstance(self.occurrence, int) else f"{self.name}[{self.occurrence}]"
        )


RUN_ID_PATTERN: Final = re.compile(r"(?!.*(\.\.|//))[A-Za-z0-9_][A-Za-z0-9_.:=@+~/-]{0,199}(?<!/)", re.ASCII)
"""What a run id looks like: 1 to 200 letters, digits and `_.:=@+~/-`, beginning with a letter, digit or `_`, with no
`..`, no `//` and no `/` at the end."""


class RunRecord(NamedTuple):
    """A run's row: what can be known of a run without reading its journal.

    `key` is the store's own number for the run; rows are created in ascending order of it. `owner` is the process
    that drove the run last, `epoch` counts changes of hands. Times are microseconds since the epoch; `updated_at` is
    when the status was written last.
    """

    key: int
    run_id: str
    workflow: str
    status: RunStatus
    created_at: int
    updated_at: int
    wake_at: int | None
    owner: str | None
    epoch: int
    parent_id: str | None
    forked_from: str | None
    fork_seq: int | None
    start_key: str | None
    code_version: str


class Message(NamedTuple):
    """A message in the inbox, not yet taken. `run_id` is None for one that goes to whoever waits.

    `event_id` makes a second message with the same id to the same receiver disappear.
    """

    id: int
    run_id: str | None
    type: str
    key: str | None
    event_id: str | None
    payload: str
    at: int


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> Literal[False]:
        return False


MISSING: Final = Missing.MISSING
"""Stands for an argument that was not given, where None is a value."""


def child_run_id(parent_id: str, workflow: str, occurrence: int | str) -> str:
    """The id of a child run: readable where it fits the pattern, else a digest of the same."""
    readable = f"{parent_id}/{workflow}" + (f":{occurrence}" if isinstance(occurrence, int) else f"={occurrence}")
    if RUN_ID_PATTERN.fullmatch(readable):
        return readable
    return "child-" + hashlib.sha256(readable.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def continued_run_id(run_id: str, steps: int = 1) -> str:
    """The id of the run that goes on where this one ended, or some steps later: `nightly`, `nightly~2`, `nightly~3`."""
    stem, tilde, number = run_id.rpartition("~")
    if not tilde or not number.isdigit():
        stem, number = run_id, "1"
    readable = f"{stem}~{int(number) + steps}"
    if RUN_ID_PATTERN.fullmatch(readable):
        return readable
    return f"run-{hashlib.sha256(stem.encode()).hexdigest()[:32]}~{int(number) + steps}"
