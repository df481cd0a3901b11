import pytest

from satay.divergences import Cause
from satay.model import EntryType
from satay.reports import Comparison
from tests.books import Book, compare, source


def cause_of(comparison: Comparison) -> tuple[Cause | None, str | None]:
    return comparison.cause, comparison.explanation


def refused(book: Book, call: int, reason: str = "its policy is block") -> Book:
    book.add(EntryType.TASK_BLOCKED, call=call, refusal={"policy": "block", "reason": reason})
    return book


# --- nothing to explain -----------------------------------------------------------------------------------------------


def test_runs_that_are_alike_need_no_cause() -> None:
    comparison = compare(source(), source())

    assert (None, None) == cause_of(comparison)
    assert comparison.is_same
    assert not comparison.has_divergence


def test_a_run_that_has_not_come_that_far_needs_no_cause() -> None:
    ahead, behind = source(), source().fork("fresh", 7, input={"topic": "acme corp"})
    waiting = Book("b")
    waiting.schedule("plan")

    assert (None, None) == cause_of(compare(ahead, behind))
    assert (None, None) == cause_of(compare(Book("a"), waiting))
    assert (None, None) == cause_of(compare(source(), Book("c")))
    assert compare(ahead, behind).has_divergence


def test_a_call_without_an_outcome_so_far_needs_no_cause_unless_its_arguments_differ() -> None:
    done, waiting, other = Book("a"), Book("b"), Book("c", input={"topic": "else"})
    done.task("draft", "x", {"topic": "acme"})
    waiting.schedule("draft", {"topic": "acme"})
    other.schedule("draft", {"topic": "else"})

    assert (None, None) == cause_of(compare(done, waiting))
    assert Cause.INPUT is compare(done, other).cause


# --- what a fork was given --------------------------------------------------------------------------------------------


def test_an_override_is_the_cause_whatever_else_differs() -> None:
    fork = source().fork("b", 7, input={"topic": "else"}, intervention="x")
    fork.code_version = "v2"
    override = fork.add(
        EntryType.OUTCOME_OVERRIDDEN, task="draft", ordinal=0, outcome="TaskCompleted", reason="a test", value="y"
    )
    fork.complete(fork.schedule("draft", {"topic": "else"}), "y", override=override)

    forth, back = compare(source(), fork), compare(fork, source())

    assert (Cause.OVERRIDE, "its outcome was given to b, because: a test") == cause_of(forth) == cause_of(back)


def test_an_override_without_a_reason_is_told_without_one() -> None:
    fork = source().fork("b", 7)
    fork.complete(fork.schedule("draft"), "y", override=8)

    assert (Cause.OVERRIDE, "its outcome was given to b") == cause_of(compare(source(), fork))


def test_an_overridden_event_is_an_override_and_no_event() -> None:
    one, other = Book("a"), Book("b")
    for book, facts in ((one, {}), (other, {"override": 1})):
        wait = book.add(EntryType.EVENT_WAIT_STARTED, event="go", ordinal=0, match=None, due=None)
        book.add(EntryType.EXTERNAL_EVENT_RECEIVED, call=wait, **facts, payload=book.run_id)

    assert Cause.OVERRIDE is compare(one, other).cause


# --- policies ---------------------------------------------------------------------------------------------------------


def test_a_policy_that_refused_the_call_is_the_cause() -> None:
    fork = source().fork("b", 7, intervention="x")
    refused(fork, fork.schedule("draft", {"topic": "else"}))

    assert (Cause.POLICY, "a tool policy refused it in b: its policy is block") == cause_of(compare(source(), fork))


def test_a_policy_that_answered_the_call_is_the_cause() -> None:
    one, other = source().fork("a", 7), source().fork("b", 7)
    one.task("draft", "x", {"topic": "acme"})
    other.complete(other.schedule("draft", {"topic": "acme"}), "plain", reused_from="source", reused_seq=9)

    assert (Cause.POLICY, "a tool policy answered it in b from source") == cause_of(compare(one, other))


def test_two_forks_that_are_refused_the_same_call_do_not_part_there() -> None:
    one, other, strict = (source().fork(name, 7) for name in ("a", "b", "c"))
    for book in (one, other):
        refused(book, book.schedule("draft")).finish()
    refused(strict, strict.schedule("draft"), "another reason")

    assert compare(one, other).is_same
    assert Cause.POLICY is compare(one, strict).cause


# --- what differs between the runs ------------------------------------------------------------------------------------


def test_other_arguments_come_from_the_input_then_the_intervention_then_the_code() -> None:
    def book(run_id: str, topic: str, intervention: object, version: str) -> Book:
        fork = source().fork(run_id, 7, input={"topic": topic}, intervention=intervention)
        fork.code_version = version
        fork.task("draft", run_id, {"for": run_id})
        return fork

    first = book("a", "acme", None, "v1")

    assert (Cause.INPUT, "the input of the workflow differs at $.topic") == cause_of(
        compare(first, book("b", "else", "x", "v2"))
    )
    assert (Cause.INTERVENTION, "the interventions differ") == cause_of(compare(first, book("b", "acme", "x", "v2")))
    assert (Cause.CODE, "the code differs: v1 and v2") == cause_of(compare(first, book("b", "acme", None, "v2")))
    assert Cause.ANSWER is compare(first, book("b", "acme", None, "v1")).cause


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_call_that_only_one_run_made_is_explained_likewise(is_turned: bool) -> None:
    books = source().finish(), source().fork("b", 7, input={"topic": "else"}).finish()
    one, other = books[::-1] if is_turned else books

    assert Cause.INPUT is compare(one, other).cause


def test_runs_of_different_workflows_differ_in_code() -> None:
    one, other = Book("a").finish(1), Book("b", input={"topic": "else"}).finish(2)
    other.workflow = "another"

    assert (Cause.CODE, "they are runs of different workflows, brief and another") == cause_of(compare(one, other))


def test_the_same_arguments_and_another_outcome_are_the_intervention_the_code_or_the_answer_but_not_the_input() -> None:
    def book(run_id: str, topic: str, intervention: object, version: str) -> Book:
        fork = source().fork(run_id, 7, input={"topic": topic}, intervention=intervention)
        fork.code_version = version
        fork.task("draft", run_id, {"topic": "acme"})
        return fork

    first = book("a", "acme", None, "v1")

    assert Cause.INTERVENTION is compare(first, book("b", "else", "x", "v2")).cause
    assert Cause.CODE is compare(first, book("b", "else", None, "v2")).cause
    assert (Cause.ANSWER, "the same call, with the same arguments, was answered differently") == cause_of(
        compare(first, book("b", "else", None, "v1"))
    )


# --- from outside -----------------------------------------------------------------------------------------------------


def test_another_payload_is_another_event_though_the_code_differs() -> None:
    one, other, late = Book("a"), Book("b"), Book("c")
    other.code_version = "v2"
    for book in (one, other, late):
        wait = book.add(EntryType.EVENT_WAIT_STARTED, event="go", ordinal=0, match=None, due=5)
        if book is not late:
            book.add(EntryType.EXTERNAL_EVENT_RECEIVED, call=wait, message=1, payload={"by": book.run_id})
    waiting = compare(one, late)
    late.add(EntryType.EVENT_WAIT_TIMED_OUT, call=2)

    assert (Cause.EVENT, "another event came: it differs at $.by") == cause_of(compare(one, other))
    assert (Cause.EVENT, "the event came in one of the runs only") == cause_of(waiting) == cause_of(compare(one, late))


def test_a_request_to_cancel_is_an_event() -> None:
    one, other = Book("a"), Book("b")
    one.task("draft", "x")
    call = other.schedule("draft")
    other.add(EntryType.WORKFLOW_CANCEL_REQUESTED)
    other.add(EntryType.CALL_CANCELLED, call=call)

    assert (Cause.EVENT, "b was asked to cancel") == cause_of(compare(one, other))


# --- the end ----------------------------------------------------------------------------------------------------------


def test_another_result_after_the_same_calls_is_explained_too() -> None:
    one, other, coded, same = Book("a"), Book("b", input={"topic": "else"}), Book("c"), Book("d")
    coded.code_version = "v2"
    for book in (one, other, coded, same):
        book.task("draft", "x")
        book.finish(book.run_id)

    assert Cause.INPUT is compare(one, other).cause
    assert Cause.CODE is compare(one, coded).cause
    assert Cause.ANSWER is compare(one, same).cause
    assert compare(one, same).has_divergence
    assert not compare(one, same).is_same


def test_another_status_is_a_divergence_though_no_call_and_no_result_differs() -> None:
    one, other = Book("a").break_down(ValueError("x")), Book("b")
    other.add(EntryType.WORKFLOW_CANCEL_REQUESTED)
    other.cancel()

    comparison = compare(one, other)

    assert comparison.has_divergence
    assert Cause.EVENT is comparison.cause
    assert "No call differs, but the ending does." in str(comparison)
