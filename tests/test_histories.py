import json
from datetime import UTC, datetime, timedelta

import pytest

from satay.errors import JournalCorruptError
from satay.model import EntryType
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


def test_a_blob_that_is_not_there_is_named() -> None:
    book = Book("a")
    book.add(EntryType.TASK_SCHEDULED, task="draft", ordinal=0, input_blob="0" * 64)

    with pytest.raises(JournalCorruptError, match=r"entry 2 \(TaskScheduled\) of run 'a' keeps its value in the blob"):
        compare(book, Book("b"))


def test_a_receipt_too_large_for_its_entry_is_read_from_its_blob() -> None:
    fork = source().fork("a", 7)
    receipt = json.dumps({"input_overridden": True, "intervention": "large"})
    fork.entries.pop()
    fork.add(EntryType.RUN_FORKED, run_id="a", source_id="source", receipt_blob=fork.keep_in_blob(receipt))

    comparison = compare(source(), fork)

    assert ("large", True) == (comparison.other.intervention, comparison.other.input_overridden)
