"""Where a run is cut, on journals that are written by hand."""

from typing import Any

import pytest

from satay.cuts import Cut, CutRule, RequestedCut, resolve_cut
from satay.errors import ForkValidationError
from satay.model import CallId, CallKind, Entry, EntryType
from satay.replay import CALL_KIND, recorded_call
from tests.books import Book


def calls_of(entries: list[Entry]) -> dict[int, CallId]:
    return {entry.seq: recorded_call(entry) for entry in entries if entry.type in CALL_KIND}


def cut_of(book: Book, *overridden: CallId, **options: Any) -> Cut:
    return resolve_cut(book.run_id, book.entries, calls_of(book.entries), RequestedCut(**options), overridden)


def draft(occurrence: int | str) -> CallId:
    return CallId(CallKind.TASK, "draft", occurrence)


def side_by_side() -> Book:
    """Entries 2 to 4 are drafts, of which 3 ends first, then 2, whose review is 7, then 4; 9 ends the review."""
    book = Book("s")
    one, two, three = book.schedule("draft"), book.schedule("draft"), book.schedule("draft")
    book.complete(two, "two")
    book.complete(one, "one")
    review = book.schedule("review")
    book.complete(three, "three")
    book.complete(review, "fine")
    return book.finish("all")


def raced() -> Book:
    """A draft (2) and an event (3); the draft ends (4) and the wait is given up in the same turn (5)."""
    book = Book("s")
    call = book.schedule("draft")
    wait = book.add(EntryType.EVENT_WAIT_STARTED, event="word", ordinal=0, match=None, due=None)
    book.complete(call, "quick")
    book.add(EntryType.CALL_CANCELLED, call=wait)
    return book.finish()


@pytest.mark.parametrize(
    ("options", "rule", "through"),
    [
        ({"before_task": "draft"}, CutRule.BEFORE, 1),
        ({"before_task": "draft", "before_ordinal": 2}, CutRule.BEFORE, 3),
        ({"before_task": "review"}, CutRule.BEFORE, 6),
        ({"after_task": "draft"}, CutRule.AFTER, 6),
        ({"after_task": "draft", "after_ordinal": 1}, CutRule.AFTER, 5),
        ({"fork_point_seq": 1}, CutRule.POINT, 1),
        ({"fork_point_seq": 9}, CutRule.POINT, 9),
    ],
)
def test_a_cut_keeps_the_entries_before_a_call_or_through_its_outcome(
    options: dict[str, Any], rule: CutRule, through: int
) -> None:
    cut = cut_of(side_by_side(), **options)

    assert (rule, through) == (cut.rule, cut.through_seq)
    assert (None, []) == (cut.again, list(cut.kept))


@pytest.mark.parametrize(
    ("ordinal", "through", "again", "kept"),
    [(0, 5, 2, [8]), (1, 4, 3, [6, 8]), (2, 7, 4, [9])],
)
def test_siblings_keep_the_outcomes_of_what_was_outstanding_when_the_calls_own_came(
    ordinal: int, through: int, again: int, kept: list[int]
) -> None:
    cut = cut_of(side_by_side(), before_task="draft", before_ordinal=ordinal, keep_siblings=True)

    assert (CutRule.KEEP_SIBLINGS, through, again) == (cut.rule, cut.through_seq, cut.again)
    assert kept == [entry.seq for entry in cut.kept]


def test_a_call_without_an_outcome_is_made_again_at_the_end_of_the_run() -> None:
    book = Book("s")
    book.schedule("draft")
    book.task("review", "fine")
    unfinished = cut_of(book, before_task="draft", keep_siblings=True)
    finished = cut_of(book.break_down(ValueError("x")), before_task="draft", keep_siblings=True)

    assert (4, 2) == (unfinished.through_seq, unfinished.again)
    assert (4, 2) == (finished.through_seq, finished.again)


def test_an_outcome_for_a_call_that_was_given_up_comes_before_the_turn_in_which_it_was() -> None:
    word = CallId(CallKind.EVENT, "word", 0)
    cut = cut_of(raced(), word)
    again = cut_of(raced(), before_event="word", keep_siblings=True)

    assert (CutRule.OVERRIDE, 3, [4]) == (cut.rule, cut.through_seq, [entry.seq for entry in cut.kept])
    assert (3, 3, [4]) == (again.through_seq, again.again, [entry.seq for entry in again.kept])


def test_a_call_that_hung_when_the_run_was_terminated_is_made_again_before_that_was_asked_for() -> None:
    book = Book("s")
    book.schedule("draft")
    book.task("review", "fine")
    book.add(EntryType.WORKFLOW_CANCEL_REQUESTED, is_final=True)
    book.add(EntryType.WORKFLOW_CANCELLED)
    again = cut_of(book, before_task="draft", keep_siblings=True)

    assert (4, 2) == (again.through_seq, again.again)
    assert 4 == cut_of(book, draft(0)).through_seq


def test_a_call_that_was_given_up_in_the_turn_that_issued_it_is_made_again_there() -> None:
    book = Book("s")
    call = book.schedule("draft")
    book.complete(call, "done")
    hasty = book.schedule("review")
    book.add(EntryType.CALL_CANCELLED, call=hasty)
    again = cut_of(book.break_down(ValueError("x")), before_task="review", keep_siblings=True)

    assert (4, 4, []) == (again.through_seq, again.again, list(again.kept))


def test_overrides_are_cut_where_the_first_of_them_reached_the_body() -> None:
    cut = cut_of(side_by_side(), draft(2), draft(0))

    assert (CutRule.OVERRIDE, 5, draft(0)) == (cut.rule, cut.through_seq, cut.call)
    assert [] == list(cut.kept)


def test_overridden_calls_without_an_outcome_may_have_keys_and_ordinals() -> None:
    book = Book("s")
    book.schedule("draft")
    book.schedule("draft", key="k")
    cut = cut_of(book, draft("k"), draft(0))

    assert 3 == cut.through_seq


def test_an_overridden_sibling_is_not_kept() -> None:
    cut = cut_of(side_by_side(), draft(2), before_task="draft", before_ordinal=1, keep_siblings=True)

    assert [6] == [entry.seq for entry in cut.kept]


def test_a_cut_that_keeps_what_is_to_be_overridden_is_refused() -> None:
    with pytest.raises(ForkValidationError, match=r"entry 6, which is to be overridden; cut before entry 6"):
        cut_of(side_by_side(), draft(0), fork_point_seq=7)


def broken(*, error: BaseException, then: str | None = None) -> Book:
    book = Book("s")
    book.task("draft", "one")
    book.fail(book.schedule("draft"), ValueError("caught"))
    book.fail(book.schedule("draft"), ValueError("the cause"))
    if then is not None:
        book.task(then, "done")
    return book.break_down(error)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "then", "rule", "through"),
    [
        (ValueError("the cause"), None, CutRule.FAILURE, 5),
        (ValueError("the cause"), "tidy", CutRule.FAILURE, 5),
        (ValueError("caught"), "tidy", CutRule.FAILURE, 3),
        (caused(RuntimeError("wrapped"), ValueError("the cause")), "tidy", CutRule.FAILURE, 5),
        (ExceptionGroup("some", [KeyError("x"), ValueError("the cause")]), "tidy", CutRule.FAILURE, 5),
        (RuntimeError("the body's own"), "tidy", CutRule.BODY_FAILURE, 8 + 1),
        (RuntimeError("right after a failure"), None, CutRule.FAILURE, 5),
    ],
)
def test_the_failure_of_a_run_is_that_of_the_call_whose_error_it_holds(
    error: BaseException, then: str | None, rule: CutRule, through: int
) -> None:
    cut = cut_of(broken(error=error, then=then), at="failure")

    assert (rule, through) == (cut.rule, cut.through_seq)


def test_a_body_that_fails_at_once_is_cut_after_its_creation() -> None:
    cut = cut_of(Book("s").break_down(ValueError("x")), at="failure")

    assert (CutRule.BODY_FAILURE, 1) == (cut.rule, cut.through_seq)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "none was given"),
        ({"before_task": "draft", "at": "failure"}, "not before_task= and at="),
        ({"before_key": "k"}, "none was given"),
        ({"before_task": "draft", "after_key": "k"}, "after_key= goes with a after_"),
        ({"before_task": "drfat"}, "did you mean 'draft'"),
        ({"before_event": "word"}, "it waited for no event"),
        ({"before_child": "word"}, "it started no child workflow"),
        ({"before_task": "draft", "before_ordinal": 3}, "it ran draft:0, draft:1, draft:2"),
        ({"before_task": "draft", "before_ordinal": "0"}, "is not a whole number"),
        ({"before_task": "draft", "before_key": 0}, "is not a text"),
        ({"after_task": "draft", "after_key": 0}, "after_key=0 is not a text"),
        ({"before_task": "draft", "before_key": "0", "before_ordinal": 0}, "not both"),
        ({"after_task": "draft", "keep_siblings": True}, "keep_siblings=True goes with"),
        ({"at": "end"}, "at='failure' is the only one"),
        ({"at": "failure"}, "needs a run that failed"),
        ({"fork_point_seq": 10}, "keeps the whole run"),
        ({"fork_point_seq": 0}, "entries count from 1"),
    ],
)
def test_a_cut_that_does_not_exist_is_refused_in_a_sentence(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ForkValidationError, match=r"^run 's' ") as caught:
        cut_of(side_by_side(), **options)

    assert text in str(caught.value)


def test_of_many_calls_a_refusal_names_the_first_and_the_last() -> None:
    book = Book("s")
    for _ in range(1000):
        book.schedule("draft")

    with pytest.raises(ForkValidationError, match=r"it ran draft:0, draft:1, .*, 990 more, and draft:999$"):
        cut_of(book, before_task="draft", before_ordinal=1000)


def test_a_given_up_call_has_no_outcome_to_cut_after() -> None:
    book = Book("s")
    call = book.schedule("draft")
    book.add(EntryType.CALL_CANCELLED, call=call)
    with pytest.raises(ForkValidationError, match="has no outcome there"):
        cut_of(book.finish(), after_task="draft")


def test_a_request_tells_what_was_asked_for_and_nothing_else() -> None:
    request = RequestedCut(before_task="draft", before_ordinal=0, keep_siblings=True)

    assert {"before_task": "draft", "before_ordinal": 0, "keep_siblings": True} == request.to_dict()


@pytest.mark.parametrize("rule", list(CutRule))
def test_every_cut_can_be_told(rule: CutRule) -> None:
    told = str(Cut(rule, 7, draft(2)))

    assert told
    assert "None" not in told
