import json

import pytest

from satay.accounts import CallState
from satay.comparison import MAX_LARGE_VALUES, wanted_values
from satay.differences import Difference, DifferenceKind
from satay.divergences import CallStatus
from satay.failures import encode_failure
from satay.histories import Reading
from satay.model import MISSING, CallKind, EntryType
from tests.books import Book, compare, only_call, sceptical_fork, source, statuses, usage

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


def test_beyond_the_limit_large_values_with_other_bytes_are_other_values() -> None:
    one, other = Book("a"), Book("b")
    texts = {one: '{"x":1,"y":2}', other: '{"y":2,"x":1}'}
    for book, text in texts.items():
        for number in range(MAX_LARGE_VALUES + 1):
            call = book.schedule("draft")
            book.add(EntryType.TASK_COMPLETED, call=call, result_blob=book.keep_in_blob(text[:-1] + f',"n":{number}}}'))
    readings = Reading(one.history()), Reading(other.history())
    wanted = wanted_values(*readings)
    read = {digest: text for digest, text in (one.blobs | other.blobs).items() if digest in wanted.one | wanted.other}
    one.blobs, other.blobs = read, read

    calls = compare(one, other).calls

    assert MAX_LARGE_VALUES == len(wanted.one) == len(wanted.other)
    assert {CallStatus.SAME} == {call.status for call in calls[:-1]}
    assert CallStatus.DIFFERENT is calls[-1].status
    assert calls[-1].is_truncated
    assert () == calls[-1].result_differences


def test_large_values_of_the_common_prefix_are_not_wanted() -> None:
    origin = Book("a")
    call = origin.schedule("draft")
    cut = origin.add(EntryType.TASK_COMPLETED, call=call, result_blob=origin.keep_in_blob('"large"'))
    fork = origin.fork("b", cut)

    assert (set(), set()) == wanted_values(Reading(origin.history()), Reading(fork.history()))


def test_a_large_error_and_a_large_ending_are_compared_like_others() -> None:
    one, other = Book("a"), Book("b")
    for book in (one, other):
        text = encode_failure(ValueError(book.run_id))
        book.add(EntryType.TASK_FAILED, call=book.schedule("draft"), error_blob=book.keep_in_blob(text))
        book.add(EntryType.WORKFLOW_FAILED, error_blob=book.keep_in_blob(text))
    read = compare(one, other)
    one.blobs, other.blobs = {}, {}
    unread = compare(one, other)

    assert [CallStatus.DIFFERENT] * 2 == [only_call(comparison).status for comparison in (read, unread)]
    assert "$.message" in {difference.path for difference in read.result_differences}
    assert unread.is_truncated
    assert "(a large error)" in str(unread)
