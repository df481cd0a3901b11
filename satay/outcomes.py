"""Outcomes: how a recorded one becomes what the branch that waits for it sees. The same live and on replay."""

import json
from typing import Any

from satay.approval_records import timed_out
from satay.calls import Arrival, Call, ChildCall, EventCall, TaskCall, TimerCall
from satay.effects import ForkTerms, Ruling
from satay.errors import EventTimeoutError, PickleNotAllowedError, SatayError, TaskBlockedError
from satay.failures import rebuilt_child_failure, rebuilt_task_failure
from satay.loop import WorkflowLoop
from satay.model import APPROVAL, EntryType
from satay.pickles import PickleCodec


def resolve(
    loop: WorkflowLoop, call: Call, type: str, text: str | None, arrival: Arrival | None, allow_pickle: bool
) -> None:
    """Hand an outcome to the branch that waits for it. A value that cannot be read back is an error there."""
    future = call.future
    if future.done():
        return
    if isinstance(call, TimerCall):
        loop.fire(call.timer)
    elif arrival is not None and arrival.has_value:
        future.set_result(arrival.value)
    elif type in _SUCCESSES:
        try:
            future.set_result(_decoded(call, text or "null", allow_pickle))
        except PickleNotAllowedError:
            raise  # It says nothing about the call: the run goes on in a process that may read the value.
        except SatayError as error:
            future.set_exception(error)
    else:
        future.set_exception(_failure(call, type, text or "{}"))


_SUCCESSES = frozenset(
    {EntryType.TASK_COMPLETED, EntryType.EXTERNAL_EVENT_RECEIVED, EntryType.CHILD_WORKFLOW_COMPLETED}
)


def _decoded(call: Call, text: str, allow_pickle: bool) -> Any:
    if isinstance(call, TaskCall):
        codec = call.task.result_codec
        if isinstance(codec, PickleCodec):
            return codec.decode(text, call.task.result_where, allow_pickle=allow_pickle)
        return codec.decode(text, call.task.result_where)
    if isinstance(call, EventCall):
        return call.codec.decode(text, f"the payload of event {call.name!r}")
    assert isinstance(call, ChildCall)
    return call.workflow.result_codec.decode(text, f"the result of child workflow {call.name!r}")


def _failure(call: Call, type: str, text: str) -> BaseException:
    if type == EntryType.EVENT_WAIT_TIMED_OUT and isinstance(call, EventCall) and call.name == APPROVAL:
        return timed_out(str(call.key))
    if type == EntryType.EVENT_WAIT_TIMED_OUT:
        key = "" if not isinstance(call, EventCall) or call.key is None else f" with key {call.key!r}"
        return EventTimeoutError(f"no event {call.name!r}{key} came before the wait timed out")
    if type == EntryType.TASK_BLOCKED:
        return blocked_error(call.name, text)
    if isinstance(call, ChildCall):
        return rebuilt_child_failure(text, call.name, call.run_id)
    return rebuilt_task_failure(text, call.name)


def encode_refusal(terms: ForkTerms, ruling: Ruling, reason: str) -> str:
    """What is recorded of a call that a tool policy refused."""
    refusal = {
        "policy": ruling.policy,
        "reason": reason,
        "cut": terms.cut,
        "fork_id": terms.fork_id,
        "receipt_id": terms.receipt_id,
    }
    return json.dumps(refusal, separators=(",", ":"))


def blocked_error(task: str, text: str) -> TaskBlockedError:
    """The error of a refused call, from what was recorded of it."""
    refusal: dict[str, str] = json.loads(text)
    return TaskBlockedError(
        f"fork {refusal['fork_id']!r} did not run task {task!r}: {refusal['reason']}. It was cut {refusal['cut']} "
        f"(receipt {refusal['receipt_id'][:16]}); to have the task run, fork with tool_policies={{{task!r}: 'live'}}",
        task=task,
        **refusal,
    )
