"""The options of a fork on the command line are those of the library, and are read before anything is done."""

import inspect
from typing import Any, Final

import pytest

from satay.errors import InvalidValueError
from satay.fork_arguments import SessionCut, fork_arguments
from satay.model import MISSING
from satay.requests import ForkOptions
from tests.programs.shell import Brief, report

EVERY: Final[dict[str, Any]] = {
    "before_task": "a",
    "before_event": "b",
    "before_child": "c",
    "before_ordinal": 1,
    "before_key": "d",
    "after_task": "e",
    "after_ordinal": 2,
    "after_key": "f",
    "at": "failure",
    "at_entry": 3,
    "keep_siblings": True,
    "input": '{"topic": "t", "style": "s"}',
    "intervention": '{"model": "m"}',
    "override": ["draft:1=[1]", 'draft[k]={"a=b": 1}'],
    "fail": ["fetch=no network = no data"],
    "reason": "why",
    "policy": ["*=auto", "email.send=block"],
    "on_stale": "error",
    "children": "share",
    "expected_head": 9,
    "allow_unfinished": True,
}


def test_every_option_of_a_fork_has_an_option_on_the_command_line() -> None:
    asked = fork_arguments(**EVERY)

    assert set(EVERY) == set(inspect.signature(fork_arguments).parameters)
    assert set(ForkOptions.__annotations__) == set(asked.options_for(report))


def test_what_was_typed_is_what_is_asked_for() -> None:
    options = fork_arguments(**EVERY).options_for(report)

    assert Brief("t", "s") == options["workflow_input"]
    assert 3 == options["fork_point_seq"]
    assert {"model": "m"} == options["intervention"]
    assert {("draft", 1): [1], ("draft", "k"): {"a=b": 1}} == options["overrides"]
    assert {("fetch", 0): "RuntimeError('no network = no data')"} == {
        call: repr(error) for call, error in options["raises"].items()
    }
    assert {"*": "auto", "email.send": "block"} == options["tool_policies"]


def test_what_was_not_typed_is_not_asked_for() -> None:
    asked = fork_arguments()

    assert {} == asked.options_for(report)
    assert MISSING is asked.input


def test_an_input_of_null_is_an_input() -> None:
    assert fork_arguments(input="null").input is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": "{"},
        {"intervention": "text"},
        {"override": ["draft"]},
        {"override": ["draft=text"]},
        {"override": ["draft=1", "draft=2"]},
        {"override": ["draft=1", "draft:0=2"]},
        {"fail": ["=x"]},
        {"policy": ["email.send"]},
    ],
)
def test_what_cannot_be_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        fork_arguments(**wrong)


def test_the_options_of_a_fork_of_a_session_are_what_was_typed() -> None:
    typed = fork_arguments(intervention='{"m": 1}', policy=["email.send=block"], reason="why")

    assert {
        "fork_at_step": 7,
        "boundary": "nearest",
        "intervention": {"m": 1},
        "tool_policies": {"email.send": "block"},
        "reason": "why",
    } == SessionCut(7, "nearest").options(typed)


@pytest.mark.parametrize(
    ("cut", "typed", "problem"),
    [
        (SessionCut(None, None), {}, "say which with --at-step"),
        (SessionCut(1, "close"), {}, "boundary='close' is none of"),
        (SessionCut(1, None), {"before_task": "a", "input": "1"}, "--before-task, --input is for a run of a workflow"),
    ],
)
def test_a_fork_of_a_session_that_cannot_be_is_refused(cut: SessionCut, typed: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        cut.options(fork_arguments(**typed))


@pytest.mark.parametrize("cut", [SessionCut(1, None), SessionCut(None, "exact")])
def test_a_run_of_a_workflow_has_no_steps(cut: SessionCut) -> None:
    with pytest.raises(InvalidValueError, match="run 'r' is no session and has no steps"):
        cut.refuse("r")
