"""What callers ask of a fork, checked."""

from typing import Any

import pytest

import satay
from satay.errors import InvalidValueError, UsageError
from satay.requests import parse_options


@satay.task(name="requests.draft")
async def draft(topic: str) -> str:
    return topic


def test_a_task_stands_for_its_name() -> None:
    assert "requests.draft" == parse_options({"before_task": draft}).cut.before_task


def test_what_is_at_its_default_is_no_option() -> None:
    options = {"before_task": "requests.draft", "before_ordinal": 2, "workflow_input": None, "reason": "to see"}

    assert options == parse_options(options).to_options()


def test_a_misspelled_option_is_named_with_what_it_may_have_meant() -> None:
    with pytest.raises(UsageError, match="no option 'before_taks'; did you mean 'before_task'"):
        parse_options({"before_taks": "x"})


@pytest.mark.parametrize("option", ["input", "inputs"])
def test_the_input_is_found_by_the_name_that_it_has_elsewhere(option: str) -> None:
    with pytest.raises(UsageError, match="did you mean 'workflow_input'"):
        parse_options({option: 1})


def test_an_id_where_no_fork_is_named_says_why() -> None:
    with pytest.raises(UsageError, match="no option 'run_id'; a plan makes no run, and a sweep names its forks itself"):
        parse_options({"run_id": "r"})


@pytest.mark.parametrize("option", ["at_step", "fork_at_step", "boundary"])
def test_an_option_of_a_session_says_how_sessions_are_forked(option: str) -> None:
    with pytest.raises(UsageError, match=r"only sessions have steps: session.fork\(at_step="):
        parse_options({option: 1})


@pytest.mark.parametrize(
    ("option", "value"),
    [("on_stale", "later"), ("children", "adopt"), ("reason", 5), ("allow_unfinished", "yes"), ("keep_siblings", 1)],
)
def test_a_value_that_is_no_choice_is_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=option):
        parse_options({"before_task": "requests.draft", option: value})
