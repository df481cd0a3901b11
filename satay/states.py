"""What a run is up to, in words: a label of its own for every state, why it is so, and what to do next.

The status in a run's row has six values. Someone who looks at a run wants to know more: whether a task is being tried
again or the process is gone, and whether anything has to be done about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote
from typing import Any, Final

from satay.approval_records import EXPIRED, Request, decision_id, read_requests
from satay.clock import MICROSECONDS, to_datetime
from satay.decisions import decided_attempts, undecided_in_run
from satay.errors import TaskBlockedError
from satay.failures import read_failure
from satay.journal import CANCEL_REQUESTED, TERMINATION_REQUESTED, Owner
from satay.model import EXPERIMENT_WORKFLOW, SESSION_WORKFLOW, Entry, EntryType, Message, RunRecord, RunStatus
from satay.postponements import postponements
from satay.replay import inherited_children, open_calls, outcome_call, read_head, recorded_call, value_text

OVERDUE_SECONDS: Final = 5
"""A wake-up that is so much late is not on its way."""


_BLOCKED: Final = f"{TaskBlockedError.__module__}:{TaskBlockedError.__qualname__}"


class RunState(StrEnum):
    """Every state that a run or a session can be in. The value is its label."""

    RUNNING = "running"
    RETRYING = "retrying"
    SLEEPING = "sleeping"
    WAITING_FOR_EVENT = "waiting for an event"
    WAITING_FOR_APPROVAL = "waiting for an approval"
    WAITING_FOR_CHILD = "waiting for a child"
    WAITING = "waiting"
    OVERDUE = "overdue"
    CANCELLING = "cancelling"
    NEEDS_DECISION = "needs a decision"
    DECIDED = "decided"
    CRASHED = "crashed"
    SUSPENDED = "suspended"
    STRANDED = "stranded"
    CREATED = "created"
    STEPPING = "stepping"
    PAUSED = "paused"
    COMPLETED = "completed"
    CONTINUED = "continued"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class StateReport:
    """The state of a run, the reason for it, and what can be done: a sentence and the commands that it speaks of."""

    state: RunState
    reason: str
    advice: str
    commands: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "state": self.state.value,
            "reason": self.reason,
            "advice": self.advice,
            "commands": list(self.commands),
        }


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a run at a moment: its row, its journal, who drives it, and what lies in its inbox.

    `driver` is None where nobody drives the run, `is_driver_gone` says that the row names one who is not there any
    more. `now` is in microseconds. `error_text` is the recorded error of a failed run, `continued_as` its successor.
    """

    record: RunRecord
    entries: Sequence[Entry]
    driver: Owner | None
    is_driver_gone: bool
    messages: Sequence[Message]
    now: int
    error_text: str | None = None
    continued_as: str | None = None

    @property
    def is_late(self) -> bool:
        """Whether its wake-up time is over for longer than a wake-up takes."""
        wake_at = self.record.wake_at
        return wake_at is not None and self.now - wake_at > OVERDUE_SECONDS * MICROSECONDS


def report_state(situation: Situation) -> StateReport:
    """The state of a run."""
    match situation.record.status:
        case RunStatus.COMPLETED:
            return _completed(situation)
        case RunStatus.FAILED:
            return _failed(situation)
        case RunStatus.CANCELLED:
            return StateReport(RunState.CANCELLED, "it was cancelled", "nothing to do; it stays as it is")
        case RunStatus.NEEDS_DECISION:
            return _undecided(situation)
        case RunStatus.RUNNING:
            return _running(situation)
        case RunStatus.WAITING:
            return _waiting(situation)


# --- runs that have ended ---------------------------------------------------------------------------------------------


def _completed(situation: Situation) -> StateReport:
    run_id = situation.record.run_id
    if situation.continued_as is not None:
        return StateReport(
            RunState.CONTINUED,
            f"it goes on as {situation.continued_as}",
            "look at the run that goes on",
            (f"satay show {situation.continued_as}",),
        )
    return StateReport(
        RunState.COMPLETED,
        "it ended with a result",
        "nothing to do; to try something else from a point in it, plan a fork",
        (f"satay plan {run_id} --before-task TASK -m MODULE",),
    )


def _failed(situation: Situation) -> StateReport:
    run_id = situation.record.run_id
    failure = read_failure(situation.error_text)
    reason = f"it ended with {failure.type.rpartition(':')[2] or 'an error'}: {failure.message}"
    if failure.type == _BLOCKED and situation.record.forked_from is not None:
        advice = "if the task may run after all, fork the source again with a policy that lets it"
        command = f"satay fork {situation.record.forked_from} --before-task TASK --policy TASK=live -m MODULE"
        return StateReport(RunState.FAILED, reason, advice, (command,))
    return StateReport(
        RunState.FAILED,
        reason,
        "mend the code or the input, and fork the run before the call that failed; what came before is not repeated",
        (
            f"satay plan {run_id} --at failure -m MODULE",
            f"satay fork {run_id} --at failure -m MODULE",
        ),
    )


# --- runs that go on --------------------------------------------------------------------------------------------------


def _undecided(situation: Situation) -> StateReport:
    run_id, outstanding = situation.record.run_id, open_calls(situation.entries)
    undecided, decided = undecided_in_run(run_id, situation.entries), decided_attempts(situation.messages)
    waiting = [call.seq for call in undecided.values() if (call.seq, call.attempt) not in decided]
    if not waiting:
        return _decided(situation)
    calls = ", ".join(str(recorded_call(outstanding[seq])) for seq in waiting if seq in outstanding)
    return StateReport(
        RunState.NEEDS_DECISION,
        f"its process died during {calls or 'an external call'}, and nobody knows whether that took effect",
        "find out whether it did; then have it made again, fail it, or give its result",
        decide_commands(run_id, waiting[0] if len(undecided) > 1 else None),
    )


def decide_commands(run_id: str, seq: int | None) -> tuple[str, str, str]:
    """The commands that decide about a call. `seq` is its entry, where it has to be named."""
    which = "" if seq is None else f" --seq {seq}"
    return (
        f"satay decide {run_id} rerun{which}",
        f"satay decide {run_id} fail{which}",
        f"satay decide {run_id} --value JSON{which}",
    )


def _decided(situation: Situation) -> StateReport:
    return StateReport(
        RunState.DECIDED,
        "the decision lies in its inbox, and nobody has taken it yet",
        "go on with the run, unless a process drives it, which takes the decision by itself",
        () if situation.record.workflow == SESSION_WORKFLOW else (_resume(situation.record.run_id),),
    )


def _running(situation: Situation) -> StateReport:
    if situation.is_driver_gone:
        return StateReport(
            RunState.CRASHED,
            "the process that drove it is gone",
            "resume it, or start a process with satay.run_app(recover=True); no recorded call is made again",
            (_resume(situation.record.run_id),),
        )
    if situation.driver is None:
        return _undriven(situation)
    where = f"process {situation.driver.pid} on {situation.driver.host} drives it"
    if _is_to_end(situation):
        return _cancelling(situation, where)
    request = _open_request(situation)
    if request is not None and situation.record.workflow == SESSION_WORKFLOW:
        return _waiting_for_approval(situation, request)
    failed = _last_failed_attempt(situation)
    if failed is not None:
        return StateReport(RunState.RETRYING, f"{failed}; {where}", "nothing to do; it is tried again by itself")
    return StateReport(RunState.RUNNING, where, "nothing to do", (f"satay cancel {situation.record.run_id}",))


def _undriven(situation: Situation) -> StateReport:
    run_id = situation.record.run_id
    if situation.entries and situation.entries[-1].type == EntryType.WORKFLOW_SUSPENDED:
        reason = "its process closed in good order while calls of it ran"
        return StateReport(RunState.SUSPENDED, reason, "resume it", (_resume(run_id),))
    return StateReport(
        RunState.STRANDED,
        "nobody drives it: its process ended, or gave it up because of an error, such as code that does not fit it",
        "resume it; that goes on with it, or says what is in the way",
        (_resume(run_id),),
    )


def _waiting(situation: Situation) -> StateReport:
    record = situation.record
    if record.workflow == EXPERIMENT_WORKFLOW:
        return StateReport(RunState.WAITING, "it is an experiment: a record, which nobody drives", "nothing to do")
    if _is_to_end(situation):
        return _cancelling(situation, "it has not ended yet")
    if situation.is_late and situation.driver is None:
        return StateReport(
            RunState.OVERDUE,
            f"it should have gone on at {_moment(record.wake_at)}, and no process is there that would wake it",
            "start a process that imports its code, with satay.run_app(recover=True), or resume it",
            (_resume(record.run_id),),
        )
    failed = _last_failed_attempt(situation)
    if failed is not None:
        reason = f"{failed}; the next attempt is at {_moment(record.wake_at)}"
        return _patient(situation, RunState.RETRYING, reason, "nothing to do; it is tried again by itself")
    return _waiting_for_a_call(situation)


def _waiting_for_a_call(situation: Situation) -> StateReport:
    request = _open_request(situation)
    if request is not None:
        return _waiting_for_approval(situation, request)
    outstanding = list(open_calls(situation.entries).values())
    for entry in outstanding:
        if entry.type == EntryType.EVENT_WAIT_STARTED:
            return _waiting_for_event(situation, entry)
    inherited = inherited_children(situation.entries)
    children = [
        inherited[entry.seq].run_id if entry.seq in inherited else read_head(entry)["run_id"]
        for entry in outstanding
        if entry.type == EntryType.CHILD_WORKFLOW_SCHEDULED
    ]
    if children:
        more = f" and {len(children) - 1} more" if len(children) > 1 else ""
        reason, show = f"it waits for {children[0]}{more}", f"satay show {children[0]}"
        return _patient(situation, RunState.WAITING_FOR_CHILD, reason, "look at what it waits for", show)
    if situation.record.wake_at is not None:
        reason = f"it sleeps until {_moment(situation.record.wake_at)}"
        return _patient(situation, RunState.SLEEPING, reason, "nothing to do; it wakes by itself")
    return _patient(situation, RunState.WAITING, "it waits for nothing that its journal names", "nothing to do")


def _open_request(situation: Situation) -> Request | None:
    """The first request for an approval that has no answer in the journal."""
    return next((request for request in read_requests(situation.entries).values() if request.is_open), None)


def _waiting_for_approval(situation: Situation, request: Request) -> StateReport:
    run_id, key, due = situation.record.run_id, request.key, request.due
    answers = [message for message in situation.messages if message.event_id == decision_id(run_id, key)]
    if any(message.payload != EXPIRED for message in answers):
        return _decided(situation)
    reason = f"it waits for approval {key!r}" + ("" if due is None else f", until {_moment(due)}")
    if answers or (due is not None and due <= situation.now):
        reason = f"approval {key!r} was not decided until {_moment(due)}, which it has not noticed yet"
        return _patient(situation, RunState.WAITING_FOR_APPROVAL, reason, "nothing to do")
    approve = f"satay approve {run_id} {quote(key)}"
    commands = (approve, f"{approve} --reject")
    return _patient(situation, RunState.WAITING_FOR_APPROVAL, reason, "decide about it", *commands)


def _waiting_for_event(situation: Situation, entry: Entry) -> StateReport:
    known = read_head(entry)
    name, key = known["event"], known.get("match")
    reason = f"it waits for event {name!r}" + ("" if key is None else f" with key {key!r}")
    if any(message.type == name and message.key == key for message in situation.messages):
        reason += ", which lies in its inbox, and nobody has taken it yet"
        return _patient(situation, RunState.WAITING_FOR_EVENT, reason, "nothing to send")
    if known.get("due") is not None:
        reason += f", until {_moment(known['due'] + postponements(situation.entries).get(entry.seq, 0))}"
    send = f"satay send {quote(name)} JSON --run {situation.record.run_id}"
    send += "" if key is None else f" --key {quote(key)}"
    return _patient(situation, RunState.WAITING_FOR_EVENT, reason, "send it the event", send)


def _patient(situation: Situation, state: RunState, reason: str, advice: str, *commands: str) -> StateReport:
    """The report on a run that waits, which somebody has to wake when the time comes."""
    if situation.record.workflow == SESSION_WORKFLOW:
        advice += (
            "" if situation.record.status is RunStatus.RUNNING else "; whoever opens the session again goes on with it"
        )
    elif situation.driver is None:
        reason += "; no process is there that would go on with it then"
        advice += ", and have a process there that imports its code, with satay.run_app(recover=True)"
        commands = (*commands, _resume(situation.record.run_id))
    return StateReport(state, reason, advice, commands)


def _cancelling(situation: Situation, reason: str) -> StateReport:
    reason = f"it was asked to end; {reason}"
    if situation.driver is not None:
        return StateReport(RunState.CANCELLING, reason, "nothing to do; it ends after its cleanup")
    advice = "resume it, so that it ends in good order"
    return StateReport(RunState.CANCELLING, reason, advice, (_resume(situation.record.run_id),))


# --- what the journal and the inbox say -------------------------------------------------------------------------------


def _is_to_end(situation: Situation) -> bool:
    return any(message.type in (CANCEL_REQUESTED, TERMINATION_REQUESTED) for message in situation.messages) or any(
        entry.type == EntryType.WORKFLOW_CANCEL_REQUESTED for entry in situation.entries
    )


def _last_failed_attempt(situation: Situation) -> str | None:
    """What became of the last attempt of a call that is tried again; None if there is none such."""
    outstanding = open_calls(situation.entries)
    failed = {outcome_call(entry): entry for entry in situation.entries if entry.type == EntryType.TASK_ATTEMPT_FAILED}
    for seq, call in outstanding.items():
        if seq in failed:
            failure = read_failure(value_text(failed[seq]))
            attempts = read_head(failed[seq])["attempt"]
            times = "attempt 1" if attempts == 1 else f"{attempts} attempts"
            return f"{times} of {recorded_call(call)} failed: {failure.type.rpartition(':')[2]}: {failure.message}"
    return None


def _resume(run_id: str) -> str:
    return f"satay resume {run_id} -m MODULE"


def _moment(at: int | None) -> str:
    return "an unknown time" if at is None else f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"
