"""What a branch sees of a recorded outcome."""

import asyncio
from typing import Any

import pytest

import satay
from satay.calls import Arrival, Call, ChildCall, EventCall, TaskCall, TimerCall
from satay.declarations import value_codec
from satay.errors import (
    ChildWorkflowError,
    DecodeError,
    EventTimeoutError,
    PickleNotAllowedError,
    SatayError,
    TaskFailedError,
)
from satay.failures import encode_failure
from satay.loop import WorkflowLoop
from satay.model import EntryType
from satay.outcomes import resolve
from tests.stages import PLENTY, Timers


@satay.task(name="outcomes.pair")
async def pair() -> tuple[int, str]:
    return 1, "a"


@satay.task(name="outcomes.pickled", codec="pickle")
async def pickled() -> Any: ...


@satay.workflow(name="outcomes.child")
async def child() -> set[int]:
    return {1}


def outcome(
    call: Call, type: str, text: str | None, arrival: Arrival | None = None, *, allow_pickle: bool = False
) -> "asyncio.Future[Any]":
    """The future of a call after an outcome was handed over."""
    loop = WorkflowLoop(Timers())
    call.future = loop.create_future()
    resolve(loop, call, type, text, arrival, allow_pickle)
    return call.future


def event(name: str = "go", key: str | None = None, type: object = int) -> EventCall:
    return EventCall(name, 0, key, value_codec(type))


def test_a_recorded_result_has_the_type_that_the_task_declares() -> None:
    result = outcome(TaskCall(pair, 0), EntryType.TASK_COMPLETED, '[1,"a"]').result()

    assert (1, "a") == result
    assert type(result) is tuple


def test_a_value_that_was_decoded_already_is_handed_over_itself() -> None:
    value = object()
    call = TaskCall(pair, 0)
    arrival = Arrival(EntryType.TASK_COMPLETED, call, '"call":2', "unread", value, True)

    assert value is outcome(call, EntryType.TASK_COMPLETED, "unread", arrival).result()


def test_a_none_that_was_decoded_already_is_a_value_too() -> None:
    call = TaskCall(pair, 0)
    arrival = Arrival(EntryType.TASK_COMPLETED, call, '"call":2', "unread", None, True)

    assert outcome(call, EntryType.TASK_COMPLETED, "unread", arrival).result() is None


def test_an_event_and_the_result_of_a_child_have_the_types_that_are_declared() -> None:
    assert 7 == outcome(event(), EntryType.EXTERNAL_EVENT_RECEIVED, "7").result()
    assert {1, 2} == outcome(ChildCall(child, 0, "c"), EntryType.CHILD_WORKFLOW_COMPLETED, "[1,2]").result()


def test_a_value_that_does_not_fit_is_an_error_of_the_branch_that_names_the_value() -> None:
    cases: list[tuple[Call, str, str]] = [
        (TaskCall(pair, 0), EntryType.TASK_COMPLETED, "the result of task 'outcomes.pair'"),
        (event(), EntryType.EXTERNAL_EVENT_RECEIVED, "the payload of event 'go'"),
        (ChildCall(child, 0, "c"), EntryType.CHILD_WORKFLOW_COMPLETED, "the result of child workflow 'outcomes.child'"),
    ]
    for call, type, named in cases:
        error = outcome(call, type, '"no number"').exception()

        assert isinstance(error, DecodeError)
        assert named in str(error)


def test_a_pickle_that_may_not_be_read_is_no_error_of_the_branch() -> None:
    text = pickled.result_codec.encode({1j}, "a value")
    call = TaskCall(pickled, 0)

    with pytest.raises(PickleNotAllowedError):
        outcome(call, EntryType.TASK_COMPLETED, text)

    assert not call.future.done()
    assert {1j} == outcome(call, EntryType.TASK_COMPLETED, text, allow_pickle=True).result()


def test_a_failure_is_the_error_that_was_recorded_where_that_can_be_built() -> None:
    error = outcome(TaskCall(pair, 0), EntryType.TASK_FAILED, encode_failure(KeyError("gone"))).exception()

    assert isinstance(error, KeyError)
    assert ("gone",) == error.args


def test_another_failure_names_what_failed() -> None:
    class LocalError(Exception):
        pass

    text = encode_failure(LocalError("odd"))
    of_task = outcome(TaskCall(pair, 0), EntryType.TASK_FAILED, text).exception()
    of_child = outcome(ChildCall(child, 0, "the/child"), EntryType.CHILD_WORKFLOW_FAILED, text).exception()

    assert isinstance(of_task, TaskFailedError)
    assert "task 'outcomes.pair' failed with" in str(of_task)
    assert isinstance(of_child, ChildWorkflowError)
    assert "child workflow 'outcomes.child', run 'the/child', failed with" in str(of_child)


@pytest.mark.parametrize("text", [None, "{}", "[]", '{"type":7}'])
def test_a_failure_that_says_nothing_is_an_error_all_the_same(text: str | None) -> None:
    error = outcome(TaskCall(pair, 0), EntryType.TASK_FAILED, text).exception()

    assert isinstance(error, SatayError)


def test_a_wait_that_timed_out_names_event_and_key() -> None:
    plain = outcome(event("go"), EntryType.EVENT_WAIT_TIMED_OUT, None).exception()
    keyed = outcome(event("go", "k"), EntryType.EVENT_WAIT_TIMED_OUT, None).exception()

    assert isinstance(plain, EventTimeoutError)
    assert isinstance(plain, TimeoutError)
    assert "no event 'go' came before the wait timed out" == str(plain)
    assert "no event 'go' with key 'k' came before the wait timed out" == str(keyed)


def test_a_timer_that_fired_calls_back_in_the_next_turn() -> None:
    rang: list[str] = []
    loop = WorkflowLoop(Timers())
    call = TimerCall(0, loop.call_later(1.0, rang.append, "rang"))
    call.future = loop.create_future()
    resolve(loop, call, EntryType.TIMER_FIRED, None, None, False)
    before = list(rang)
    assert loop.run_turn(PLENTY)

    assert ([], ["rang"]) == (before, rang)


def test_a_branch_that_gave_up_is_left_alone() -> None:
    loop = WorkflowLoop(Timers())
    call = TaskCall(pair, 0)
    call.future = loop.create_future()
    call.future.cancel()
    resolve(loop, call, EntryType.TASK_COMPLETED, '[1,"a"]', None, False)

    assert call.future.cancelled()
