import ast
import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satay.codec import to_plain, value_codec
from satay.comparison import (
    MAX_DIFFERENCES,
    MAX_SHOWN_CALLS,
    MAX_SHOWN_DIFFERENCES,
    CallComparison,
    CallState,
    CallStatus,
    Comparison,
    Difference,
    DifferenceKind,
    RunHistory,
    compare_runs,
    find_differences,
)
from satay.errors import JournalCorruptError
from satay.failures import encode_failure
from satay.journal import GENESIS, chain_digest
from satay.model import MISSING, CallKind, Entry, EntryType, RunRecord, RunStatus
from satay.tables import (
    WIDTH,
    Column,
    printable,
    shorten_middle,
    show_cost,
    show_pair,
    show_seconds,
    show_value,
    text_table,
)

START = 1_767_225_600_000_000
SECOND = 1_000_000


# --- journals written by hand -----------------------------------------------------------------------------------------


class Book:
    """A journal in the making. Every entry comes one second after the one before it, but for `pass_seconds`."""

    def __init__(self, run_id: str = "a", *, input: Any = None, root: str | None = None, at: int = START) -> None:
        self.run_id = run_id
        self.root = root or run_id
        self.at = at
        self.entries: list[Entry] = []
        self.blobs: dict[str, str] = {}
        self.status = RunStatus.RUNNING
        self.workflow = "brief"
        self.code_version = "v1"
        self.forked_from: str | None = None
        self._occurrences: dict[str, int] = {}
        self._create({"topic": "acme"} if input is None else input)

    def _create(self, input: Any) -> None:
        facts = {"workflow": "brief", "code_version": "v1", "root": self.root, "seed": 7, "started_at": START}
        self.add(EntryType.WORKFLOW_CREATED, **facts, input=input)

    def add(self, type: str, **members: Any) -> int:
        payload = json.dumps(members, separators=(",", ":"))
        if not self.entries:
            self.entries.append(Entry(1, type, self.at, payload, GENESIS))
            return 1
        self.at += SECOND
        digest = chain_digest(self.entries[-1].digest, type, self.at, payload)
        self.entries.append(Entry(len(self.entries) + 1, type, self.at, payload, digest))
        return len(self.entries)

    def pass_seconds(self, seconds: int) -> None:
        self.at += (seconds - 1) * SECOND

    def next_occurrence(self, name: str) -> int:
        self._occurrences[name] = self._occurrences.get(name, -1) + 1
        return self._occurrences[name]

    def schedule(self, name: str, input: Any = None, key: str | None = None) -> int:
        index = {"ordinal": self.next_occurrence(name)} if key is None else {"key": key}
        return self.add(EntryType.TASK_SCHEDULED, task=name, **index, input={} if input is None else input)

    def complete(self, call: int, result: Any, **facts: Any) -> int:
        return self.add(EntryType.TASK_COMPLETED, call=call, **facts, result=result)

    def fail(self, call: int, error: BaseException, **facts: Any) -> int:
        return self.add(EntryType.TASK_FAILED, call=call, **facts, error=json.loads(encode_failure(error)))

    def task(self, name: str, result: Any, input: Any = None, key: str | None = None, **facts: Any) -> int:
        return self.complete(self.schedule(name, input, key), result, **facts)

    def finish(self, result: Any = None) -> "Book":
        self.add(EntryType.WORKFLOW_COMPLETED, result=result)
        self.status = RunStatus.COMPLETED
        return self

    def break_down(self, error: BaseException) -> "Book":
        self.add(EntryType.WORKFLOW_FAILED, error=json.loads(encode_failure(error)))
        self.status = RunStatus.FAILED
        return self

    def keep_in_blob(self, text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.blobs[digest] = text
        return digest

    def fork(self, run_id: str, cut: int, *, input: Any = None, intervention: Any = None) -> "Book":
        """A fork made a day later, with the entries 2 to `cut` of this run."""
        book = Book(run_id, input=input, root=self.root, at=self.entries[-1].at + 86_400 * SECOND)
        book.entries += self.entries[1:cut]
        book.blobs = dict(self.blobs)
        book.forked_from = self.run_id
        for entry in book.entries:
            if entry.type == EntryType.TASK_SCHEDULED:
                book.next_occurrence(json.loads(entry.payload)["task"])
        receipt = {"input_overridden": input is not None, "intervention": intervention}
        book.add(EntryType.RUN_FORKED, run_id=run_id, source_id=self.run_id, receipt=receipt)
        return book

    def history(self) -> RunHistory:
        at = self.entries[0].at
        record = RunRecord(
            1, self.run_id, self.workflow, self.status, at, self.at, None, None, 1, None, self.forked_from, None, None,
            self.code_version,
        )  # fmt: skip
        return RunHistory(record, self.entries, self.blobs)


def compare(one: Book, other: Book) -> Comparison:
    return compare_runs(one.history(), other.history())


def statuses(comparison: Comparison) -> dict[str, str]:
    return {str(call.identity): call.status.value for call in comparison.calls}


def only_call(comparison: Comparison) -> CallComparison:
    (call,) = comparison.calls
    return call


def usage(cost: float, model: str = "m1") -> list[dict[str, Any]]:
    return [{"model": model, "input_tokens": 100, "output_tokens": 10, "cost": cost}]


def source() -> Book:
    """plan, two calls of research, draft: entries 2 to 9."""
    book = Book("source")
    book.task("plan", ["q1", "q2"], usage=usage(0.001))
    book.task("research", {"text": "one"}, {"question": "q1"}, usage=usage(0.02))
    book.task("research", {"text": "two"}, {"question": "q2"}, usage=usage(0.02))
    book.task("draft", "plain", {"topic": "acme"}, usage=usage(0.05))
    return book.finish("plain")


def sceptical_fork() -> Book:
    """A fork of `source()` before its draft."""
    book = source().fork("sceptic", 7, input={"topic": "acme corp"})
    book.task("draft", "sceptical", {"topic": "acme corp"}, usage=usage(0.04))
    return book.finish("sceptical")


# --- status of a call -------------------------------------------------------------------------------------------------


def test_calls_of_the_common_prefix_are_replayed_and_the_others_compared() -> None:
    comparison = compare(source(), sceptical_fork())

    assert {
        "plan:0": "replayed",
        "research:0": "replayed",
        "research:1": "replayed",
        "draft:0": "different",
    } == statuses(comparison)


def test_the_same_comparison_the_other_way_round_mirrors_every_side() -> None:
    forth, back = compare(source(), sceptical_fork()), compare(sceptical_fork(), source())

    assert statuses(forth) == statuses(back)
    assert [(call.one, call.other) for call in forth.calls] == [(call.other, call.one) for call in back.calls]
    assert "sceptical" == forth.result_differences[0].other == back.result_differences[0].one
    assert forth.other == back.one


def test_a_call_that_ran_again_to_the_same_outcome_is_the_same() -> None:
    one, other = Book("a"), Book("b")
    one.task("draft", {"x": 1, "y": 2})
    other.task("draft", {"y": 2, "x": 1})

    call = only_call(compare(one, other))

    assert CallStatus.SAME is call.status
    assert () == call.result_differences
    assert not call.is_divergent


def test_another_input_alone_does_not_make_a_call_different() -> None:
    one, other = Book("a"), Book("b")
    one.task("draft", "x", {"topic": "acme"})
    other.task("draft", "x", {"topic": "acme corp"})

    call = only_call(compare(one, other))

    assert CallStatus.SAME is call.status
    assert (Difference("$.topic", "acme", "acme corp", DifferenceKind.CHANGED),) == call.input_differences


def test_runs_of_different_lineage_share_nothing_even_if_their_entries_are_alike() -> None:
    one, other = Book("a"), Book("b")
    one.task("draft", "x")
    other.task("draft", "x")

    assert one.entries[1:] == other.entries[1:]
    assert CallStatus.SAME is only_call(compare(one, other)).status


def test_a_call_in_flight_at_the_cut_is_compared_and_timed_from_the_fork() -> None:
    origin = Book("a")
    call = origin.schedule("draft", {"topic": "acme"})
    cut = origin.add(EntryType.TASK_ATTEMPT_FAILED, call=call, attempt=1, retry_at=0, usage=usage(0.5), error={})
    origin.complete(call, "x")
    fork = origin.fork("b", cut)
    fork.complete(call, "y")

    compared = only_call(compare(origin, fork))

    assert CallStatus.DIFFERENT is compared.status
    assert compared.one is not None
    assert compared.other is not None
    assert (2.0, 1.0) == (compared.one.seconds, compared.other.seconds)
    assert (2, 2) == (compared.one.seq, compared.other.seq)
    assert (4, 5) == (compared.one.outcome_seq, compared.other.outcome_seq)


def test_a_call_without_an_outcome_on_one_side_is_unfinished_and_where_the_runs_part() -> None:
    one, other = Book("a"), Book("b")
    one.task("draft", "x")
    other.schedule("draft", {"topic": "else"})

    comparison = compare(one, other)

    call = only_call(comparison)
    assert CallStatus.UNFINISHED is call.status
    assert call is comparison.first_divergence
    assert call.other is not None
    assert (CallState.OPEN, None, None) == (call.other.state, call.other.seconds, call.other.outcome_seq)
    assert ["$.topic"] == [difference.path for difference in call.input_differences]
    assert () == call.result_differences


def test_calls_outstanding_on_both_sides_have_not_parted() -> None:
    one, other = Book("a"), Book("b")
    one.schedule("draft")
    other.schedule("draft")

    comparison = compare(one, other)

    assert CallStatus.UNFINISHED is only_call(comparison).status
    assert comparison.first_divergence is None


def test_a_renamed_call_is_in_one_run_each_and_its_neighbours_stay_aligned() -> None:
    one, other = Book("a"), Book("b")
    for book, name in ((one, "polish"), (other, "shorten")):
        book.task("draft", "x")
        book.task(name, "y")
        book.task("send", "z")
        book.finish()

    comparison = compare(one, other)

    assert [("draft:0", "same"), ("polish:0", "only_one"), ("shorten:0", "only_other"), ("send:0", "same")] == list(
        statuses(comparison).items()
    )
    assert comparison.first_divergence is comparison.calls[1]


def test_calls_that_only_the_other_run_made_stand_where_they_occur() -> None:
    one, other = Book("a"), Book("b")
    for name in ("b", "d"):
        one.task(name, 1)
    for name in ("a", "b", "c", "d", "e"):
        other.task(name, 1)

    assert ["a:0", "b:0", "c:0", "d:0", "e:0"] == [str(call.identity) for call in compare(one, other).calls]


def test_calls_in_another_order_are_aligned_and_listed_once_each() -> None:
    one, other = Book("a"), Book("b")
    for name in ("a", "b", "c"):
        one.task(name, 1)
    for name in ("c", "x", "a", "b"):
        other.task(name, 1)

    names = [str(call.identity) for call in compare(one, other).calls]

    assert {"a:0", "b:0", "c:0", "x:0"} == set(names)
    assert ["a:0", "b:0", "c:0"] == [name for name in names if name != "x:0"]


def test_an_ordinal_and_a_key_of_the_same_text_are_different_calls() -> None:
    one, other = Book("a"), Book("b")
    one.task("page", 1)
    other.task("page", 1, key="0")

    assert {"page:0": "only_one", "page[0]": "only_other"} == statuses(compare(one, other))


def test_a_caught_failure_equals_another_one_whatever_their_tracebacks() -> None:
    one, other = Book("a"), Book("b")
    for book in (one, other):
        error = ValueError("no luck")
        error.__cause__ = KeyError("k")
        book.fail(book.schedule("shaky"), error)
        book.finish("fine")
    failure = json.loads(other.entries[2].payload)
    failure["error"]["traceback"] = failure["error"]["cause"]["traceback"] = "elsewhere"
    other.entries[2] = other.entries[2]._replace(payload=json.dumps(failure, separators=(",", ":")))

    call = only_call(compare(one, other))

    assert CallStatus.SAME is call.status
    assert call.one is not None
    assert call.one.failure is not None
    assert "no luck" == call.one.failure.message
    assert call.one.result is MISSING


def test_failures_with_other_messages_differ_in_the_message() -> None:
    one, other = Book("a"), Book("b")
    one.fail(one.schedule("shaky"), RuntimeError("left"))
    other.fail(other.schedule("shaky"), RuntimeError("right"))

    call = only_call(compare(one, other))

    assert CallStatus.DIFFERENT is call.status
    assert Difference("$.message", "left", "right", DifferenceKind.CHANGED) in call.result_differences


def test_a_call_that_failed_in_one_run_only_has_lost_or_gained_its_result() -> None:
    one, other = Book("a"), Book("b")
    one.task("shaky", "fine")
    other.fail(other.schedule("shaky"), RuntimeError("right"))

    call = only_call(compare(one, other))

    assert CallStatus.DIFFERENT is call.status
    assert (Difference("$", "fine", MISSING, DifferenceKind.REMOVED),) == call.result_differences


@pytest.mark.parametrize(("both", "status"), [(True, CallStatus.SAME), (False, CallStatus.DIFFERENT)])
def test_a_cancelled_call_equals_a_cancelled_call_only(both: bool, status: CallStatus) -> None:
    one, other = Book("a"), Book("b")
    one.add(EntryType.CALL_CANCELLED, call=one.schedule("slow"))
    call = other.schedule("slow")
    if both:
        other.add(EntryType.CALL_CANCELLED, call=call)
    else:
        other.complete(call, None)

    compared = only_call(compare(one, other))

    assert status is compared.status
    assert compared.one is not None
    assert CallState.CANCELLED is compared.one.state


def test_timers_waits_and_children_take_part() -> None:
    books = Book("a"), Book("b")
    for book, message in zip(books, ("yes", "no"), strict=True):
        timer = book.add(EntryType.TIMER_CREATED, timer="timer", ordinal=0, due=book.at)
        wait = book.add(EntryType.EVENT_WAIT_STARTED, event="approval", ordinal=0, match="k", due=None)
        late = book.add(EntryType.EVENT_WAIT_STARTED, event="late", ordinal=0, match=None, due=book.at)
        child = book.add(
            EntryType.CHILD_WORKFLOW_SCHEDULED, child="page", key="p1", run_id=f"{book.run_id}/page=p1", input={"n": 1}
        )
        book.add(EntryType.TIMER_FIRED, call=timer)
        book.add(EntryType.EXTERNAL_EVENT_RECEIVED, call=wait, message=3, event_id="e", payload={"answer": message})
        book.add(EntryType.EVENT_WAIT_TIMED_OUT, call=late)
        book.add(EntryType.CHILD_WORKFLOW_COMPLETED, call=child, result=10)

    comparison = compare(*books)

    assert {"timer:0": "same", "approval:0": "different", "late:0": "same", "page[p1]": "same"} == statuses(comparison)
    assert [CallKind.TIMER, CallKind.EVENT, CallKind.EVENT, CallKind.CHILD] == [call.kind for call in comparison.calls]
    assert ["$.answer"] == [difference.path for difference in comparison.calls[1].result_differences]
    late_side = comparison.calls[2].one
    assert late_side is not None
    assert CallState.TIMED_OUT is late_side.state


def test_a_wait_for_another_key_has_another_input() -> None:
    one, other = Book("a"), Book("b")
    one.add(EntryType.EVENT_WAIT_STARTED, event="approval", ordinal=0, match="k1", due=None)
    other.add(EntryType.EVENT_WAIT_STARTED, event="approval", ordinal=0, match="k2", due=None)

    assert (Difference("$.match", "k1", "k2", DifferenceKind.CHANGED),) == only_call(
        compare(one, other)
    ).input_differences


def test_a_failed_child_is_compared_by_its_error() -> None:
    one, other = Book("a"), Book("b")
    for book in (one, other):
        call = book.add(EntryType.CHILD_WORKFLOW_SCHEDULED, child="page", ordinal=0, run_id="x", input={})
        error = json.loads(encode_failure(ValueError(book.run_id)))
        book.add(EntryType.CHILD_WORKFLOW_FAILED, call=call, error=error)

    call_comparison = only_call(compare(one, other))

    assert CallStatus.DIFFERENT is call_comparison.status
    assert "$.message" in {difference.path for difference in call_comparison.result_differences}


# --- lineage ----------------------------------------------------------------------------------------------------------


def test_siblings_share_the_shorter_of_their_prefixes() -> None:
    early = source().fork("early", 5)
    early.task("research", {"text": "two"}, {"question": "q2"})
    early.task("draft", "early")
    late = source().fork("late", 7)
    late.task("draft", "late")

    comparison = compare(early, late)

    assert {"plan:0": "replayed", "research:0": "replayed", "research:1": "same", "draft:0": "different"} == statuses(
        comparison
    )
    assert comparison.one.reused is not None
    assert comparison.other.reused is not None
    assert (2, 3) == (comparison.one.reused.calls, comparison.other.reused.calls)


def test_a_fork_of_a_fork_is_compared_with_the_first_source() -> None:
    first = source().fork("first", 5)
    first.task("research", {"text": "other"}, {"question": "q2"})
    cut = first.task("draft", "first draft")
    second = first.fork("second", cut)
    second.task("send", "sent")

    comparison = compare(source(), second)

    assert {
        "plan:0": "replayed",
        "research:0": "replayed",
        "research:1": "different",
        "draft:0": "different",
        "send:0": "only_other",
    } == statuses(comparison)
    assert ("first", cut) == (comparison.other.forked_from, comparison.other.fork_seq)
    assert comparison.other.reused is not None
    assert (4, 4.0) == (comparison.other.reused.calls, comparison.other.reused.seconds)
    assert {"replayed"} == set(statuses(compare(first, second)).values()) - {"only_other"}


def test_a_run_compared_with_itself_is_replayed_throughout() -> None:
    comparison = compare(source(), source())

    assert {"replayed"} == set(statuses(comparison).values())
    assert comparison.first_divergence is None
    assert comparison.one == comparison.other


def test_a_fresh_fork_has_replayed_what_it_holds_and_lacks_the_rest() -> None:
    comparison = compare(source(), source().fork("fresh", 7))

    assert "only_one" == statuses(comparison)["draft:0"]
    assert "fresh has not made it so far" in str(comparison)
    assert comparison.other.ended_at is None


# --- totals -----------------------------------------------------------------------------------------------------------


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


# --- inputs and results of the runs -----------------------------------------------------------------------------------


def test_inputs_and_results_of_the_runs_are_compared_by_path() -> None:
    one = Book("a", input={"topic": "acme", "depth": 1}).finish({"notes": [{"text": "x"}, {"text": "y"}]})
    other = Book("b", input={"topic": "acme corp"}).finish({"notes": [{"text": "x"}, {"text": "z"}], "n": 2})

    comparison = compare(one, other)

    assert (
        Difference("$.topic", "acme", "acme corp", DifferenceKind.CHANGED),
        Difference("$.depth", 1, MISSING, DifferenceKind.REMOVED),
    ) == comparison.input_differences
    assert (
        Difference("$.notes[1].text", "y", "z", DifferenceKind.CHANGED),
        Difference("$.n", MISSING, 2, DifferenceKind.ADDED),
    ) == comparison.result_differences


def test_failed_runs_are_compared_by_their_errors() -> None:
    comparison = compare(Book("a").break_down(ValueError("x")), Book("b").break_down(ValueError("y")))

    assert "$.message" in {difference.path for difference in comparison.result_differences}
    assert "Error of the run" in str(comparison)
    assert "       ValueError: x" in str(comparison).splitlines()
    assert {"type": "builtins:ValueError", "message": "x"} == comparison.to_dict()["one"]["failure"]


def test_a_run_that_failed_where_the_other_completed_has_no_result() -> None:
    comparison = compare(Book("a").break_down(ValueError("x")), Book("b").finish(5))

    assert (Difference("$", MISSING, 5, DifferenceKind.ADDED),) == comparison.result_differences


def test_cancelled_and_continued_runs_have_no_result_to_compare() -> None:
    one, other = Book("a"), Book("b")
    one.add(EntryType.WORKFLOW_CANCELLED)
    other.add(EntryType.WORKFLOW_COMPLETED, continued_as="b~2")

    comparison = compare(one, other)

    assert () == comparison.result_differences
    assert "b~2" == comparison.other.continued_as


def test_values_kept_in_blobs_are_compared_like_others() -> None:
    one, other = Book("a"), Book("b")
    for book, text in ((one, "x" * 50), (other, "y" * 50)):
        call = book.add(
            EntryType.TASK_SCHEDULED, task="draft", ordinal=0, input_blob=book.keep_in_blob(json.dumps({"text": text}))
        )
        book.add(EntryType.TASK_COMPLETED, call=call, result_blob=book.keep_in_blob(json.dumps([1, text])))
        book.add(EntryType.WORKFLOW_COMPLETED, result_blob=book.keep_in_blob(json.dumps(text)))

    comparison = compare(one, other)

    assert ["$.text"] == [difference.path for difference in only_call(comparison).input_differences]
    assert ["$[1]"] == [difference.path for difference in only_call(comparison).result_differences]
    assert ["$"] == [difference.path for difference in comparison.result_differences]


def test_a_blob_that_is_not_there_is_named() -> None:
    book = Book("a")
    book.add(EntryType.TASK_SCHEDULED, task="draft", ordinal=0, input_blob="0" * 64)

    with pytest.raises(JournalCorruptError, match=r"entry 2 \(TaskScheduled\) of run 'a' keeps its value in the blob"):
        compare(book, Book("b"))


# --- differences of values --------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab'\\ $.[]0\n", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text("ab'\\ $.[]0\n", max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def is_equal(one: Any, other: Any) -> bool:
    """Equality that tells `1`, `1.0` and `True` apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)


def apply_differences(value: Any, differences: Sequence[Difference]) -> Any:
    """What `value` becomes: changes and removals by the indices of the one, then additions by those of the other."""
    holder = [copy.deepcopy(value)]
    added = [difference for difference in differences if difference.kind is DifferenceKind.ADDED]
    others = [difference for difference in differences if difference.kind is not DifferenceKind.ADDED]
    for difference in [*reversed(others), *added]:
        *way, last = steps(difference.path)
        target: Any = holder
        for step in way:
            target = target[step]
        if difference.kind is DifferenceKind.REMOVED:
            del target[last]
        elif difference.kind is DifferenceKind.ADDED and isinstance(target, list):
            target.insert(last, difference.other)
        else:
            target[last] = difference.other
    return holder[0]


def steps(path: str) -> list[Any]:
    pattern = r"\.(?P<name>\w+)|\[(?P<index>\d+)\]|\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
    matches = list(re.finditer(pattern, path[1:]))
    assert path[1:] == "".join(match[0] for match in matches)
    return [
        0,
        *(
            match["name"] or (int(match["index"]) if match["index"] else ast.literal_eval(match["key"]))
            for match in matches
        ),
    ]


@given(PLAIN)
def test_a_value_does_not_differ_from_its_copy(value: Any) -> None:
    assert ((), False) == find_differences(value, copy.deepcopy(value))


@given(PLAIN, PLAIN)
def test_values_differ_exactly_if_they_are_not_equal(one: Any, other: Any) -> None:
    differences, _ = find_differences(one, other)

    assert is_equal(one, other) == (not differences)


@given(PLAIN, PLAIN)
def test_the_differences_turn_one_value_into_the_other(one: Any, other: Any) -> None:
    differences, is_truncated = find_differences(one, other)

    assert not is_truncated
    assert is_equal(other, apply_differences(one, differences))


@given(PLAIN, PLAIN)
def test_differences_the_other_way_round_are_the_same_places(one: Any, other: Any) -> None:
    forth, _ = find_differences(one, other)
    back, _ = find_differences(other, one)

    assert sorted(difference.path for difference in forth) == sorted(difference.path for difference in back)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (1, 2, DifferenceKind.CHANGED),
        (1, 1.5, DifferenceKind.CHANGED),
        (1, 1.0, DifferenceKind.TYPE_CHANGED),
        (1, True, DifferenceKind.TYPE_CHANGED),
        (None, "x", DifferenceKind.TYPE_CHANGED),
        ([], {}, DifferenceKind.TYPE_CHANGED),
        (MISSING, None, DifferenceKind.ADDED),
        (None, MISSING, DifferenceKind.REMOVED),
    ],
)
def test_a_difference_has_a_kind(one: Any, other: Any, kind: DifferenceKind) -> None:
    assert ((Difference("$", one, other, kind),), False) == find_differences(one, other)


def test_an_item_put_at_the_front_of_a_list_is_one_difference() -> None:
    assert ((Difference("$[0]", MISSING, "new", DifferenceKind.ADDED),), False) == find_differences(
        ["a", "b"], ["new", "a", "b"]
    )


def test_no_more_differences_are_listed_than_the_limit() -> None:
    numbers = list(range(MAX_DIFFERENCES))

    exact = find_differences(numbers, [-1 - number for number in numbers])
    over = find_differences([*numbers, 0], [-1 - number for number in [*numbers, 0]])

    assert (MAX_DIFFERENCES, False) == (len(exact[0]), exact[1])
    assert (MAX_DIFFERENCES, True) == (len(over[0]), over[1])


def test_values_too_deep_to_follow_differ_as_a_whole() -> None:
    one: Any = 1
    other: Any = 2
    for _ in range(5_000):
        one, other = [one], [other]

    differences, _ = find_differences(one, other)

    assert [("$", DifferenceKind.CHANGED)] == [(difference.path, difference.kind) for difference in differences]


# --- tagged values ----------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


def plain(value: Any) -> Any:
    return to_plain(value_codec(Any).encode(value, "a value"))


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ((1, 2), (1, 3), "$[1]"),
        ({1: "a"}, {1: "b"}, "$[1]"),
        ({"a"}, {"a", "b"}, "$['b']"),
        (Point(1, 2), Point(1, 3), "$.y"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, {"at": datetime(2026, 1, 2, tzinfo=UTC)}, "$.at"),
        (Decimal("1.0"), Decimal("1.00"), "$"),
        ((1, 2), [1, 2], "$"),
        (Point(1, 2), (1, 2), "$"),
        (float("nan"), 1.0, "$"),
    ],
)
def test_tags_add_nothing_to_a_path(one: Any, other: Any, path: str) -> None:
    differences, _ = find_differences(plain(one), plain(other))

    assert [path] == [difference.path for difference in differences]


@pytest.mark.parametrize(
    "value", [float("nan"), (1, {2, 3}), Point(1, 2), Colour.RED, {1: {"$satay": 1}}, b"x", datetime.now(UTC)]
)
def test_equal_tagged_values_do_not_differ(value: Any) -> None:
    assert ((), False) == find_differences(plain(value), plain(value))


@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass", "timedelta", "nonsense", 7, None])
def test_an_object_that_only_looks_like_a_tag_is_an_object(kind: Any) -> None:
    one, other = {"$satay": kind, "a": 1}, {"a": 2, "$satay": kind}

    differences, _ = find_differences(one, other)

    assert ((), False) == find_differences(one, dict(reversed(one.items())))
    assert 1 == len(differences)
    assert show_value(one)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("it's", '"it\'s"'),
        (None, "None"),
        ([1, {"a": True}], "[1, {'a': True}]"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))), "2026-01-02T00:00:00-03:30"),
        (timedelta(seconds=90), "0:01:30"),
        (Decimal("1.50"), "1.50"),
        (float("inf"), "inf"),
        (Colour.RED, "Colour.RED"),
        (Point(1, 2), "Point(x=1, y=2)"),
        ((1,), "(1,)"),
        ((1, "x"), "(1, 'x')"),
        ({"b", "a"}, "{'a', 'b'}"),
        (set(), "set()"),
        (frozenset({1}), "frozenset([1])"),
        ({1: 2}, "{1: 2}"),
        (b"abc", "<bytes, 3 bytes>"),
        (PurePosixPath("/tmp/x"), "/tmp/x"),
        pytest.param(2**20_000, "0x1" + "0" * 56 + "…", id="large"),
    ],
)
def test_a_recorded_value_reads_as_what_it_stands_for(value: Any, text: str) -> None:
    assert text == show_value(plain(value))


@given(PLAIN, st.integers(1, 40))
def test_a_shown_value_is_printable_and_keeps_its_limit(value: Any, limit: int) -> None:
    text = show_value(value, limit)

    assert text.isprintable()
    assert len(text) <= limit


def test_no_more_of_a_long_value_is_read_than_is_shown() -> None:
    class Endless(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("nothing is looked up by index")

    assert show_value(Endless(range(10**6)), 10) == "[0, 1, 2, …"[:9] + "…"


# --- text -------------------------------------------------------------------------------------------------------------


def test_a_pair_of_long_texts_is_shown_where_they_part() -> None:
    shown = show_pair("the same words again and again, then left", "the same words again and again, then right", 20)

    assert "left" in shown
    assert "right" in shown
    assert "the same" not in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0124, "12 ms"),
        (0.9999, "1.0 s"),
        (3.21, "3.2 s"),
        (59.99, "1 min"),
        (302, "5 min 2 s"),
        (7_500, "2 h 5 min"),
        (86_400 * 3 + 7_200, "3 d 2 h"),
    ],
)
def test_durations_are_shown_in_the_units_that_suit_them(seconds: float, text: str) -> None:
    assert text == show_seconds(seconds)


@pytest.mark.parametrize(
    ("cost", "text"), [(0.0, "0"), (0.0412, "0.0412"), (12.5, "12.5"), (100.0, "100"), (1e-9, "<0.000001")]
)
def test_costs_are_shown_without_needless_zeros(cost: float, text: str) -> None:
    assert text == show_cost(cost)


def test_text_that_steers_a_terminal_is_escaped() -> None:
    assert r"a\x1b[31m\u202eb\n" == printable("a\x1b[31m\u202eb\n")


def test_long_ids_keep_their_ends() -> None:
    assert "abcd…xyz" == shorten_middle("abcdefghijklmnopqrstuvwxyz", 8)


def test_a_table_has_no_colours_no_markup_and_no_wrapped_lines() -> None:
    rows = [("[red]x[/red]", "word " * 50), (":smile:", "漢" * 80)]

    table = text_table([Column("name"), Column("text", is_wide=True)], rows)

    lines = table.splitlines()
    assert 4 == len(lines)
    assert lines[2].startswith("[red]x[/red]")
    assert lines[3].startswith(":smile:")
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[2].endswith("…")


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_of_a_fork_says_what_differs_and_what_was_saved() -> None:
    lines = str(compare(source(), sceptical_fork())).splitlines()

    assert "one    source: brief, completed in 9.0 s, 4 calls, 440 tokens, cost 0.091" == lines[0]
    assert "       forked from source after entry 7 with another input" == lines[2]
    assert "The runs part at draft:0: with another input, it gave another result." in lines
    assert "  ~ $.topic: 'acme' → 'acme corp'" in lines
    assert "  ~ $: 'plain' → 'sceptical'" in lines
    assert "3 of 4 calls reused; saved 0.041 and 3.0 s" == lines[-1]
    (row,) = [line for line in lines if line.startswith("draft:0")]
    assert ["draft:0", "different", "'plain'", "→", "'sceptical'", "1.0", "s", "0.05", "→", "0.04"] == row.split()


def test_the_report_of_two_forks_names_what_each_saved() -> None:
    one, other = source().fork("one", 3), source().fork("other", 1)

    lines = str(compare(one, other)).splitlines()

    assert ["one: 1 of 1 call reused; saved 0.001 and 1.0 s", "other: 0 of 0 calls reused; saved nothing"] == lines[-2:]


def test_the_report_escapes_what_users_recorded() -> None:
    one, other = Book("a"), Book("b")
    one.workflow = "evil\x1b[2J"
    one.task("na\nme", "\x1b[31mred", {"k\x07": "\x1b"})
    other.fail(other.schedule("na\nme"), ValueError("\x1b[31mred\nsecond line"))

    assert all(line.isprintable() for line in str(compare(one, other)).splitlines())
    assert r"na\nme:0" in str(compare(one, other))


def test_the_report_of_many_calls_shows_those_around_the_first_divergence() -> None:
    one, other = Book("a"), Book("b")
    for index in range(MAX_SHOWN_CALLS * 2):
        one.task("page", index)
        other.task("page", index if index < 300 else -1)

    text = str(compare(one, other))

    assert " … 280 calls before these, none of which differs" in text
    assert "page:300" in text
    assert "page:279 " not in text
    assert MAX_SHOWN_CALLS * 2 > text.count("page:")


def test_the_report_shows_a_few_differences_and_counts_the_others() -> None:
    one = Book("a").finish(list(range(MAX_SHOWN_DIFFERENCES + 3)))
    other = Book("b").finish([-1] * (MAX_SHOWN_DIFFERENCES + 3))
    many = Book("c").finish([0] * (MAX_DIFFERENCES + 1))
    more = Book("d").finish([1] * (MAX_DIFFERENCES + 1))

    assert "  … and 3 more differences" in str(compare(one, other))
    assert "  … and at least 90 more differences" in str(compare(many, more))


def test_the_report_covers_every_way_to_end() -> None:
    one, other = Book("a"), Book("b")
    other.code_version = "v2"
    for book in (one, other):
        book.add(EntryType.TIMER_FIRED, call=book.add(EntryType.TIMER_CREATED, timer="timer", ordinal=0, due=0))
    wait = one.add(EntryType.EVENT_WAIT_STARTED, event="go", ordinal=0, match=None, due=1)
    one.add(EntryType.EVENT_WAIT_TIMED_OUT, call=wait)
    other.add(EntryType.EVENT_WAIT_STARTED, event="go", ordinal=0, match=None, due=1)
    one.fail(one.schedule("shaky"), ValueError("x"))
    other.add(EntryType.CALL_CANCELLED, call=other.schedule("shaky"))

    text = str(compare(one, other))

    assert "(fired)" in text
    assert "(timed out) → (no outcome)" in text
    assert "ValueError: x → (cancelled)" in text
    assert "The runs part at go:0: it timed out in a and has no outcome in b." in text
    assert "code   v1 → v2" in text
    assert "reused" not in text


def test_the_report_of_runs_alike_says_so() -> None:
    assert "No call differs." in str(compare(source(), source()))
    assert "No call differs so far." in str(compare(Book("a"), Book("b")))
    assert "Neither run made a durable call." in str(compare(Book("a"), Book("b")))


def test_the_report_shows_the_interventions_of_forks() -> None:
    one, other = source().fork("one", 7, intervention={"model": "m2"}), source().fork("other", 7)

    assert "intervention  {'model': 'm2'} → None" in str(compare(one, other))


def test_a_receipt_too_large_for_its_entry_is_read_from_its_blob() -> None:
    fork = source().fork("a", 7)
    receipt = json.dumps({"input_overridden": True, "intervention": "large"})
    fork.entries.pop()
    fork.add(EntryType.RUN_FORKED, run_id="a", source_id="source", receipt_blob=fork.keep_in_blob(receipt))

    comparison = compare(source(), fork)

    assert ("large", True) == (comparison.other.intervention, comparison.other.input_overridden)


def test_the_report_says_nothing_of_the_result_while_a_run_goes_on() -> None:
    assert "of the run" not in str(compare(Book("a").finish(1), Book("b")))


def test_a_recorded_failure_that_cannot_be_read_is_reported_all_the_same() -> None:
    one, other = Book("a"), Book("b")
    one.task("shaky", 1)
    other.add(EntryType.TASK_FAILED, call=other.schedule("shaky"), error=[])

    assert "1 → unknown error: no error" in str(compare(one, other))


def test_a_comparison_is_json() -> None:
    comparison = compare(source(), sceptical_fork())
    data: Mapping[str, Any] = json.loads(json.dumps(comparison.to_dict()))

    assert "draft:0" == data["first_divergence"]
    assert ["replayed", "replayed", "replayed", "different"] == [call["status"] for call in data["calls"]]
    assert {"path": "$.topic", "kind": "changed", "one": "acme", "other": "acme corp"} == data["input_differences"][0]
    assert 3 == data["other"]["reused"]["calls"]
    assert "2026-01-01T00:00:00+00:00" == data["one"]["created_at"]
    assert ["m1"] == data["calls"][0]["one"]["usage"]["models"]
    assert "completed" == data["calls"][0]["one"]["state"]


def test_a_side_that_is_missing_is_left_out_of_json() -> None:
    comparison = compare(Book("a").finish({}), Book("b").finish({"x": None}))

    assert [{"path": "$.x", "kind": "added", "other": None}] == comparison.to_dict()["result_differences"]
