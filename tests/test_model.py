"""The words: statuses, identities of calls, and ids of runs."""

import pytest

from satay.model import (
    MISSING,
    RUN_ID_PATTERN,
    TERMINAL_ENTRIES,
    VALUE_FIELD,
    CallId,
    CallKind,
    EntryType,
    RunStatus,
    child_run_id,
    continued_run_id,
)


def test_a_run_that_completed_failed_or_was_cancelled_has_ended_and_no_other_has() -> None:
    ended = {status.value for status in RunStatus if status.is_terminal}

    assert {"completed", "failed", "cancelled"} == ended


def test_the_entries_that_end_a_run_are_of_the_workflow() -> None:
    assert {"WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled"} == {str(type) for type in TERMINAL_ENTRIES}


def test_every_entry_with_a_value_is_of_a_known_type() -> None:
    assert set(VALUE_FIELD) <= set(EntryType)


def test_a_call_is_shown_with_its_ordinal_or_its_key() -> None:
    assert "draft:2" == str(CallId(CallKind.TASK, "draft", 2))
    assert "draft[page-7]" == str(CallId(CallKind.TASK, "draft", "page-7"))


def test_an_ordinal_and_a_key_of_the_same_digits_name_two_calls() -> None:
    assert CallId(CallKind.TASK, "draft", 2) != CallId(CallKind.TASK, "draft", "2")


def test_missing_is_false_and_shown_by_its_name() -> None:
    assert not MISSING
    assert "MISSING" == repr(MISSING)


@pytest.mark.parametrize(
    ("occurrence", "run_id"), [(0, "r/line:0"), (12, "r/line:12"), ("a", "r/line=a"), ("0", "r/line=0")]
)
def test_the_id_of_a_child_is_readable(occurrence: int | str, run_id: str) -> None:
    assert run_id == child_run_id("r", "line", occurrence)


@pytest.mark.parametrize(
    ("parent_id", "workflow", "occurrence"),
    [("r" * 200, "line", 0), ("r", "two words", 0), ("r", "line", "é"), ("r", "line", "a/"), ("r", "line", "..")],
)
def test_the_id_of_a_child_is_a_digest_where_it_cannot_be_readable(
    parent_id: str, workflow: str, occurrence: int | str
) -> None:
    run_id = child_run_id(parent_id, workflow, occurrence)

    assert run_id.startswith("child-")
    assert RUN_ID_PATTERN.fullmatch(run_id)
    assert run_id == child_run_id(parent_id, workflow, occurrence)


def test_two_calls_that_cannot_be_readable_have_other_children() -> None:
    keys = [f"é{number}" for number in range(100)]

    assert len(keys) == len({child_run_id("r", "line", key) for key in keys})


def test_a_grandchild_of_a_long_line_still_has_an_id_that_can_be_used() -> None:
    run_id = "r"
    for _ in range(50):
        run_id = child_run_id(run_id, "a.workflow.of.some.module", 0)

    assert RUN_ID_PATTERN.fullmatch(run_id)


@pytest.mark.parametrize(
    ("run_id", "next_id"),
    [
        ("nightly", "nightly~2"),
        ("nightly~2", "nightly~3"),
        ("nightly~9", "nightly~10"),
        ("a~b", "a~b~2"),
        ("a~", "a~~2"),
        ("a~2~b", "a~2~b~2"),
    ],
)
def test_the_run_that_goes_on_is_counted(run_id: str, next_id: str) -> None:
    assert next_id == continued_run_id(run_id)


@pytest.mark.parametrize("run_id", ["r", "r~4", "r" * 196, "r" * 197, "r" * 198, "r" * 200])
def test_a_run_that_goes_on_later_is_counted_as_if_one_by_one(run_id: str) -> None:
    one_by_one = run_id
    for number in range(1, 120):
        one_by_one = continued_run_id(one_by_one)

        assert one_by_one == continued_run_id(run_id, number)
