"""Durable calls that are outstanding, and the outcomes on their way to them. Records; the drive acts on them."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from satay.codec import ValueCodec
from satay.definitions import Task, Workflow
from satay.loop import WorkflowTimer
from satay.model import CallId, CallKind, Entry, EntryType
from satay.replay import InheritedChild, facts

UNRECORDED: Final = -1
"""The seq of a call that the journal does not hold."""


class Call:
    """A durable call whose outcome is still to come.

    `seq` is the entry that records it; the branch that issued it waits on `future`. `due` is the moment, if any, at
    which the call is looked at again. `entry` is the recorded entry, where the call was found in the history.
    """

    __slots__ = ("due", "entry", "future", "name", "occurrence", "seq")

    kind: CallKind
    future: "asyncio.Future[Any]"

    def __init__(self, name: str, occurrence: int | str) -> None:
        self.name = name
        self.occurrence = occurrence
        self.seq = UNRECORDED
        self.due: int | None = None
        self.entry: Entry | None = None

    @property
    def identity(self) -> CallId:
        return CallId(self.kind, self.name, self.occurrence)


class TaskCall(Call):
    """A call of a task. `attempt` counts from 1; `is_active` while an attempt runs or is about to.

    `running` is the attempt, while it runs, and `used` tells what it recorded of models used, as members of a payload.
    `issued_text` are the arguments that the code gives today to a call of the
    history which a fork makes again; `refusal` records why they cannot be encoded.
    """

    __slots__ = (
        "attempt",
        "failures",
        "input_text",
        "is_active",
        "issued_text",
        "needs_decision",
        "refusal",
        "running",
        "task",
        "used",
    )

    kind = CallKind.TASK

    def __init__(self, task: Task[..., Any], occurrence: int | str) -> None:
        super().__init__(task.name, occurrence)
        self.task = task
        self.attempt = 1
        self.failures = 0
        self.is_active = False
        self.needs_decision = False
        self.input_text: str | None = None
        self.issued_text: str | None = None
        self.refusal: str | None = None
        self.running: asyncio.Task[Any] | None = None
        self.used: Callable[[], str] | None = None


class TimerCall(Call):
    """A timer of the body's loop."""

    __slots__ = ("timer",)

    kind = CallKind.TIMER

    def __init__(self, occurrence: int, timer: WorkflowTimer) -> None:
        super().__init__("timer", occurrence)
        self.timer = timer


class EventCall(Call):
    """A wait for a message of type `name` with `key`. `due` is when it times out; `is_answered` once one is coming."""

    __slots__ = ("codec", "is_answered", "key")

    kind = CallKind.EVENT

    def __init__(self, name: str, occurrence: int | str, key: str | None, codec: ValueCodec) -> None:
        super().__init__(name, occurrence)
        self.key = key
        self.codec = codec
        self.is_answered = False


class ChildCall(Call):
    """A child run. `run_id` is the run that answers the call; `issued_text` and `refusal` are as for a task.

    `is_active` until the child is known to be there. `inherited` says what a fork makes of a child that was started
    before its cut.
    """

    __slots__ = ("inherited", "input_text", "is_active", "issued_text", "refusal", "run_id", "workflow")

    kind = CallKind.CHILD

    def __init__(self, workflow: Workflow[..., Any], occurrence: int | str, run_id: str) -> None:
        super().__init__(workflow.name, occurrence)
        self.workflow = workflow
        self.run_id = run_id
        self.is_active = False
        self.input_text: str | None = None
        self.issued_text: str | None = None
        self.refusal: str | None = None
        self.inherited: InheritedChild | None = None


class Arrival(NamedTuple):
    """An outcome on its way to the body.

    `facts` are the members of the payload before the value. `text` is the value as recorded; `value` is the same,
    decoded, where `has_value` says so. `taken` is the message that brought the outcome; it `is_contested` where it is
    addressed to nobody, so that another run may take it.
    """

    type: str
    call: Call | None
    facts: str
    text: str | None = None
    value: Any = None
    has_value: bool = False
    taken: int | None = None
    is_contested: bool = False


class AttemptHistory:
    """What the journal says of the attempts of one call, beyond that it was scheduled.

    `is_deferred`: an orderly close came before the attempt began; `is_stopped`: it ended the attempt.
    """

    __slots__ = ("attempt", "crashes", "decision", "failures", "is_deferred", "is_stopped", "is_undecided", "retry_at")

    def __init__(self) -> None:
        self.attempt = 1
        self.failures = 0
        self.crashes = 0
        self.retry_at: int | None = None
        self.is_deferred = False
        self.is_stopped = False
        self.is_undecided = False
        self.decision: str | None = None


ATTEMPT_NOTES: Final[frozenset[str]] = frozenset(
    {
        EntryType.TASK_ATTEMPT_FAILED,
        EntryType.TASK_ATTEMPT_STARTED,
        EntryType.DECISION_REQUESTED,
        EntryType.DECISION_MADE,
        EntryType.WORKFLOW_SUSPENDED,
        EntryType.WORKFLOW_RESUMED,
        EntryType.RUN_FORKED,
    }
)
"""The entry types that say something of attempts."""


def note_attempt(attempts: dict[int, AttemptHistory], entry: Entry) -> None:
    """Fold an entry about attempts into what is known of them, by the seq of their call."""
    if entry.type in (EntryType.WORKFLOW_RESUMED, EntryType.RUN_FORKED):
        for history in attempts.values():
            history.is_deferred = history.is_stopped = False
            history.crashes = 0 if entry.type == EntryType.RUN_FORKED else history.crashes
        return
    known = facts(entry)
    if entry.type == EntryType.WORKFLOW_SUSPENDED:
        for seq in known["deferred"]:
            attempts.setdefault(seq, AttemptHistory()).is_deferred = True
        for seq in known["stopped"]:
            attempts.setdefault(seq, AttemptHistory()).is_stopped = True
        return
    history = attempts.setdefault(known["call"], AttemptHistory())
    history.is_deferred = history.is_stopped = False
    match entry.type:
        case EntryType.TASK_ATTEMPT_FAILED:
            history.attempt, history.retry_at = known["attempt"], known["retry_at"]
            history.failures += 1
        case EntryType.TASK_ATTEMPT_STARTED:
            history.attempt, history.retry_at, history.decision = known["attempt"], None, None
            history.crashes += known.get("after") == "crash"
        case EntryType.DECISION_REQUESTED:
            history.is_undecided, history.decision = True, None
        case EntryType.DECISION_MADE:
            history.is_undecided, history.decision = False, known["decision"]
