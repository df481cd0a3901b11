import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from satay.accounts import AnswerSource, CallState
from satay.model import MISSING, EntryType
from satay.receipts import StaleCall
from tests.books import Book, compare, only_call, sceptical_fork, source, usage


def test_a_fork_saves_the_calls_usage_and_time_that_it_inherited() -> None:
    reused = compare(source(), sceptical_fork()).other.reused

    assert reused is not None
    assert 3 == reused.calls
    assert (300, 30, 0.041) == (reused.usage.input_tokens, reused.usage.output_tokens, reused.usage.cost)
    assert 3.0 == reused.seconds


def test_time_of_parallel_calls_is_saved_once() -> None:
    origin = Book("a")
    calls = [origin.schedule("page") for _ in range(3)]
    for call in calls:
        origin.complete(call, call)
    origin.pass_seconds(3_600)
    cut = origin.task("draft", "x")
    fork = origin.fork("b", cut)

    reused = compare(origin, fork).other.reused

    assert reused is not None
    assert (4, 6.0) == (reused.calls, reused.seconds)


def test_the_night_in_which_no_process_ran_is_not_counted() -> None:
    origin = Book("a")
    call = origin.schedule("draft")
    origin.pass_seconds(30_000)
    origin.add(EntryType.WORKFLOW_RESUMED)
    cut = origin.complete(call, "x")
    fork = origin.fork("b", cut)

    comparison = compare(origin, fork)

    assert comparison.other.reused is not None
    assert comparison.other.reused.seconds < 10
    side = only_call(comparison).one
    assert side is not None
    assert side.seconds is not None
    assert side.seconds < 10


def test_usage_counts_failed_attempts_and_names_the_models() -> None:
    book = Book("a")
    call = book.schedule("draft")
    book.add(EntryType.TASK_ATTEMPT_FAILED, call=call, attempt=1, retry_at=0, usage=usage(0.1, "m2"), error={})
    book.add(EntryType.TASK_ATTEMPT_STARTED, call=call, attempt=2)
    book.complete(call, {"usage": "a value with that name"}, usage=usage(0.2) + usage(0.3))

    comparison = compare(book, Book("b"))

    side = only_call(comparison).one
    assert side is not None
    assert 2 == side.attempts
    assert (("m2", "m1"), 300, 30) == (side.usage.models, side.usage.input_tokens, side.usage.output_tokens)
    assert pytest.approx(0.6) == side.usage.cost
    assert side.usage == comparison.one.usage


def test_a_result_that_speaks_of_usage_is_not_taken_for_usage() -> None:
    book = Book("a")
    book.task("meter", {"usage": [{"model": "x"}]})

    side = only_call(compare(book, Book("b"))).one

    assert side is not None
    assert 0 == side.usage.input_tokens


def test_the_time_of_a_run_is_its_own_life_and_not_that_of_its_prefix() -> None:
    comparison = compare(source(), sceptical_fork())

    assert (9.0, 4.0) == (comparison.one.seconds, comparison.other.seconds)
    assert datetime(2026, 1, 1, tzinfo=UTC) == comparison.one.created_at
    assert datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=9) == comparison.one.ended_at


def test_the_arguments_of_a_call_that_was_made_again_are_those_of_today() -> None:
    origin = Book("a")
    call = origin.schedule("draft", {"topic": "acme"})
    fork = origin.fork("b", call)
    fork.add(EntryType.CALL_REISSUED, call=call, input={"topic": "acme corp"})

    side = only_call(compare(origin, fork)).other

    assert side is not None
    assert {"topic": "acme corp"} == side.input


# --- what a fork does not pay for -------------------------------------------------------------------------------------


def kept_fork() -> Book:
    """A fork of `side_by_side()` that keeps one of two outcomes and makes the other call again."""
    origin = side_by_side()
    fork = origin.fork("kept", 3)
    kept = fork.add(
        EntryType.OUTCOME_KEPT, call=3, outcome="TaskCompleted", source_seq=5, usage=usage(0.2, "m2"), value="b"
    )
    fork.complete(3, "b", kept=kept, usage=usage(0.2, "m2"))
    fork.complete(2, "c", usage=usage(0.1))
    return fork.finish("c b")


def side_by_side() -> Book:
    """Two calls that are outstanding at the same time: entries 2 to 5."""
    book = Book("a")
    calls = book.schedule("draft"), book.schedule("check")
    book.complete(calls[0], "a", usage=usage(0.1))
    book.complete(calls[1], "b", usage=usage(0.2, "m2"))
    return book.finish("a b")


def test_an_outcome_that_was_kept_is_no_cost_of_the_fork() -> None:
    comparison = compare(side_by_side(), kept_fork())

    other, side = comparison.other, comparison.calls[1].other
    assert other.reused is not None
    assert side is not None
    assert AnswerSource.KEPT is side.answer
    assert pytest.approx(0.3) == other.usage.cost
    assert pytest.approx(0.1) == other.own_usage.cost
    assert (1, 1, 0, 0.2) == (other.reused.calls, other.reused.kept, other.reused.by_policy, other.reused.usage.cost)


def test_a_fork_of_a_fork_is_spared_a_kept_outcome_once() -> None:
    first = kept_fork()
    second = first.fork("second", len(first.entries) - 1)

    reused = compare(first, second).other.reused

    assert reused is not None
    assert (2, 0) == (reused.calls, reused.kept)
    assert pytest.approx(0.3) == reused.usage.cost


def test_a_call_that_a_policy_answers_costs_the_fork_nothing() -> None:
    fork = source().fork("b", 7)
    fork.complete(fork.schedule("draft"), "plain", reused_from="source", reused_seq=9, usage=usage(0.05))

    comparison = compare(source(), fork)

    reused, side = comparison.other.reused, comparison.calls[-1].other
    assert reused is not None
    assert side is not None
    assert (AnswerSource.REUSED, "source") == (side.answer, side.reused_from)
    assert (4, 0, 1) == (reused.calls, reused.kept, reused.by_policy)
    assert pytest.approx(0.091) == reused.usage.cost
    assert 0 == comparison.other.own_usage.cost


def test_a_run_that_is_no_fork_may_reuse_by_policy_too() -> None:
    child = Book("child")
    child.complete(child.schedule("send"), "sent", reused_from="source", reused_seq=3)

    reused = compare(Book("a"), child).other.reused

    assert reused is not None
    assert (1, 0, 1) == (reused.calls, reused.kept, reused.by_policy)


def test_failed_attempts_before_a_kept_outcome_are_the_forks_own_cost() -> None:
    fork = source().fork("b", 7)
    call = fork.schedule("draft")
    fork.add(EntryType.TASK_ATTEMPT_FAILED, call=call, attempt=1, retry_at=0, usage=usage(0.5), error={})
    fork.complete(call, "plain", reused_from="source", reused_seq=9)

    assert 0.5 == compare(source(), fork).other.own_usage.cost


def test_what_a_run_inherited_is_not_its_own_cost() -> None:
    comparison = compare(source(), sceptical_fork())

    assert comparison.one.usage == comparison.one.own_usage
    assert (0.04, 100) == (comparison.other.own_usage.cost, comparison.other.own_usage.input_tokens)


# --- policies and overrides -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [{"ordinal": 12}, {"key": "page-7"}, {"key": ""}, {"key": 'a "key"\n'}, {"key": "ü"}])
@pytest.mark.parametrize("facts", [{}, {"effect": "pure"}, {"codec": "pickle"}, {"effect": "pure", "codec": "pickle"}])
@pytest.mark.parametrize("name", ["draft", 'a "draft"'])
def test_a_call_is_read_alike_whatever_stands_before_its_arguments(
    index: dict[str, Any], facts: dict[str, Any], name: str
) -> None:
    book = Book("a")
    seq = book.add(EntryType.TASK_SCHEDULED, task=name, **index, **facts, input={"text": ',"input":1'})
    book.complete(seq, 1)

    call = only_call(compare(book, Book("b")))

    assert call.one is not None
    assert (name, next(iter(index.values()))) == (call.identity.name, call.identity.occurrence)
    assert {"text": ',"input":1'} == call.one.input
    assert (seq, 1) == (call.one.seq, call.one.result)


def test_a_large_argument_of_a_call_with_an_effect_is_read_from_its_blob() -> None:
    book = Book("a")
    digest = book.keep_in_blob('{"text":"large"}')
    book.add(EntryType.TASK_SCHEDULED, task="draft", ordinal=0, effect="pure", input_blob=digest)

    side = only_call(compare(book, Book("b"))).one

    assert side is not None
    assert {"text": "large"} == side.input


def test_the_repr_of_a_call_tells_no_value() -> None:
    book = Book("a")
    book.task("draft", "a secret", {"password": "another"})

    told = repr(only_call(compare(book, Book("b"))))

    assert "CallSide(seq=2, outcome_seq=3" in told
    assert "a secret" not in told
    assert "another" not in told


def test_a_blocked_call_says_why() -> None:
    book = Book("a")
    refusal = {"policy": "block", "reason": "the policy of 'send' is block", "cut": "x", "receipt_id": "y"}
    book.add(EntryType.TASK_BLOCKED, call=book.schedule("send"), refusal=refusal)

    side = only_call(compare(book, Book("b"))).one

    assert side is not None
    assert (CallState.BLOCKED, "the policy of 'send' is block") == (side.state, side.reason)
    assert MISSING is side.result
    assert side.failure is None


def test_an_overridden_call_says_why() -> None:
    fork = source().fork("b", 7)
    override = fork.add(
        EntryType.OUTCOME_OVERRIDDEN, task="draft", ordinal=0, outcome="TaskCompleted", reason="a better one", value="x"
    )
    fork.complete(fork.schedule("draft"), "x", override=override)

    side = compare(source(), fork).calls[-1].other

    assert side is not None
    assert (AnswerSource.OVERRIDDEN, "a better one") == (side.answer, side.reason)


def test_stale_calls_are_those_of_the_receipt() -> None:
    stale = [{"call": "plan:0", "seq": 2, "path": "$.topic"}]
    fork = source().fork("b", 7, stale_calls=stale, stale_count=3)

    comparison = compare(source(), fork)

    assert (StaleCall("plan:0", 2, "$.topic"),) == comparison.other.stale_calls
    assert (3, 0) == (comparison.other.stale_count, comparison.one.stale_count)


# --- large values -----------------------------------------------------------------------------------------------------


def test_a_receipt_too_large_for_its_entry_is_read_from_its_blob() -> None:
    fork = source().fork("a", 7)
    receipt = json.dumps({"input_overridden": True, "intervention": "large"})
    fork.entries.pop()
    fork.add(EntryType.RUN_FORKED, run_id="a", source_id="source", receipt_blob=fork.keep_in_blob(receipt))

    comparison = compare(source(), fork)

    assert ("large", True) == (comparison.other.intervention, comparison.other.input_overridden)
