"""Outstanding calls, and what the journal says of their attempts."""

import json
from typing import Any

import satay
from satay.calls import ATTEMPT_NOTES, AttemptHistory, ChildCall, EventCall, TaskCall, TimerCall, note_attempt
from satay.declarations import value_codec
from satay.journal import GENESIS
from satay.loop import WorkflowLoop
from satay.model import CallId, CallKind, Entry, EntryType
from tests.stages import Timers

CALL = 2


@satay.task(name="calls.send")
async def send() -> None: ...


@satay.workflow(name="calls.child")
async def child() -> None: ...


def noted(*notes: tuple[str, dict[str, Any]]) -> dict[int, AttemptHistory]:
    attempts: dict[int, AttemptHistory] = {}
    for type, members in notes:
        assert type in ATTEMPT_NOTES
        note_attempt(attempts, Entry(9, type, 0, json.dumps(members, separators=(",", ":")), GENESIS))
    return attempts


def failed(attempt: int, retry_at: int = 50) -> tuple[str, dict[str, Any]]:
    return EntryType.TASK_ATTEMPT_FAILED, {"call": CALL, "attempt": attempt, "retry_at": retry_at, "error": {}}


def started(attempt: int, **members: Any) -> tuple[str, dict[str, Any]]:
    return EntryType.TASK_ATTEMPT_STARTED, {"call": CALL, "attempt": attempt, **members}


def suspended(deferred: list[int], stopped: list[int]) -> tuple[str, dict[str, Any]]:
    return EntryType.WORKFLOW_SUSPENDED, {"deferred": deferred, "stopped": stopped}


def decided(decision: str) -> tuple[str, dict[str, Any]]:
    return EntryType.DECISION_MADE, {"call": CALL, "decision": decision}


ASKED = (EntryType.DECISION_REQUESTED, {"call": CALL, "attempt": 1})
RESUMED: tuple[str, dict[str, Any]] = (EntryType.WORKFLOW_RESUMED, {})
FORKED = (EntryType.RUN_FORKED, {"run_id": "fork"})


def test_a_call_is_identified_by_kind_name_and_occurrence() -> None:
    timer = WorkflowLoop(Timers()).call_later(1.0, print)
    calls = [
        TaskCall(send, "page-1"),
        TimerCall(3, timer),
        EventCall("go", 1, None, value_codec(Any)),
        ChildCall(child, 0, "r/calls.child:0"),
    ]

    assert [
        CallId(CallKind.TASK, "calls.send", "page-1"),
        CallId(CallKind.TIMER, "timer", 3),
        CallId(CallKind.EVENT, "go", 1),
        CallId(CallKind.CHILD, "calls.child", 0),
    ] == [call.identity for call in calls]


def test_nothing_is_known_of_calls_that_no_entry_is_about() -> None:
    assert {} == noted(RESUMED, FORKED)


def test_an_attempt_that_failed_is_counted_and_tells_when_the_next_is_due() -> None:
    history = noted(failed(1, 50), failed(2, 70))[CALL]

    assert (2, 2, 70, 0) == (history.attempt, history.failures, history.retry_at, history.crashes)


def test_an_attempt_that_started_is_due_no_more_and_keeps_the_failures() -> None:
    history = noted(failed(1), started(2))[CALL]

    assert (2, 1, None, 0) == (history.attempt, history.failures, history.retry_at, history.crashes)


def test_attempts_that_follow_a_crash_are_counted() -> None:
    history = noted(started(2, after="crash"), started(3), started(4, after="crash"))[CALL]

    assert (4, 2, 0) == (history.attempt, history.crashes, history.failures)


def test_an_orderly_close_tells_which_attempts_had_not_begun_and_which_it_stopped() -> None:
    attempts = noted(suspended([2, 5], [3]))

    assert [(True, False), (False, True), (True, False)] == [
        (attempts[seq].is_deferred, attempts[seq].is_stopped) for seq in (2, 3, 5)
    ]


def test_what_an_orderly_close_left_holds_until_the_run_is_resumed_or_forked_or_the_next_attempt() -> None:
    for after in (RESUMED, FORKED, started(2), failed(1)):
        history = noted(suspended([CALL], [CALL]), after)[CALL]

        assert not history.is_deferred
        assert not history.is_stopped


def test_a_fork_forgets_the_crashes_of_its_source_and_a_resumed_run_does_not() -> None:
    assert 1 == noted(started(2, after="crash"), RESUMED)[CALL].crashes
    assert 0 == noted(started(2, after="crash"), FORKED)[CALL].crashes


def test_a_fork_keeps_the_failures_and_attempts_of_its_source() -> None:
    history = noted(failed(1, 50), FORKED)[CALL]

    assert (1, 1, 50) == (history.attempt, history.failures, history.retry_at)


def test_a_call_is_undecided_from_the_question_to_the_decision() -> None:
    asked, answered = noted(ASKED)[CALL], noted(ASKED, decided("rerun"))[CALL]

    assert (True, None) == (asked.is_undecided, asked.decision)
    assert (False, "rerun") == (answered.is_undecided, answered.decision)


def test_a_decision_holds_for_one_attempt() -> None:
    assert noted(ASKED, decided("rerun"), started(2))[CALL].decision is None
    again = noted(ASKED, decided("rerun"), ASKED)[CALL]
    assert (True, None) == (again.is_undecided, again.decision)


def test_calls_are_noted_apart() -> None:
    attempts = noted(failed(1), (EntryType.TASK_ATTEMPT_STARTED, {"call": 7, "attempt": 3}))

    assert {2: (1, 1), 7: (3, 0)} == {seq: (history.attempt, history.failures) for seq, history in attempts.items()}
