"""Outcomes that are given with a fork."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

import satay
from satay.errors import EncodeError, ForkValidationError
from satay.model import CallId, CallKind
from satay.overrides import Override, parse_overrides


@satay.task(name="overrides.count")
async def count(number: int) -> int:
    return number


@satay.workflow(name="overrides.child")
async def child(number: int) -> int:
    return number


@dataclass(frozen=True)
class Told:
    text: str


TASK = CallId(CallKind.TASK, "overrides.count", 0)
KEYED = CallId(CallKind.TASK, "overrides.count", "k")
EVENT = CallId(CallKind.EVENT, satay.definitions.default_name(Told), 0)
CHILD = CallId(CallKind.CHILD, "overrides.child", 0)
UNKNOWN = CallId(CallKind.TASK, "overrides.gone", 0)
TIMER = CallId(CallKind.TIMER, "timer", 0)
CALLS = [TASK, KEYED, EVENT, CHILD, UNKNOWN, TIMER]


def parsed(values: Any = None, errors: Any = None) -> list[Override]:
    return parse_overrides("r", CALLS, values, errors)


@pytest.mark.parametrize(
    ("name", "value", "call", "type"),
    [
        (("overrides.count", 0), 7, TASK, "TaskCompleted"),
        (("overrides.count", "k"), 7, KEYED, "TaskCompleted"),
        ((EVENT.name, 0), Told("x"), EVENT, "ExternalEventReceived"),
        (("overrides.child", 0), 7, CHILD, "ChildWorkflowCompleted"),
        (("overrides.gone", 0), {"any": "thing"}, UNKNOWN, "TaskCompleted"),
    ],
)
def test_a_value_is_encoded_as_the_call_would_record_it(
    name: tuple[str, int | str], value: Any, call: CallId, type: str
) -> None:
    (override,) = parsed({name: value})

    assert (call, type, False) == (override.call, override.type, override.is_error)
    assert "value" == override.noted().kind


@pytest.mark.parametrize(("call", "type"), [(TASK, "TaskFailed"), (CHILD, "ChildWorkflowFailed")])
def test_an_error_is_recorded_as_the_failure_of_the_call(call: CallId, type: str) -> None:
    (override,) = parsed(None, {(call.name, call.occurrence): ValueError("no")})

    assert (type, True, "error") == (override.type, override.is_error, override.noted().kind)
    assert "no" == json.loads(override.text)["message"]


def test_the_entry_names_the_call_and_the_reason() -> None:
    one, other = parsed({("overrides.count", 0): 1, ("overrides.count", "k"): 2})

    assert {
        "task": "overrides.count", "ordinal": 0, "outcome": "TaskCompleted", "reason": 'a "why"',
    } == json.loads("{" + one.facts('a "why"') + "}")  # fmt: skip
    assert {"key": "k", "reason": None}.items() <= json.loads("{" + other.facts(None) + "}").items()


def test_nothing_given_is_nothing_overridden() -> None:
    assert [] == parsed() == parsed({}, {})


@pytest.mark.parametrize(
    ("values", "errors", "text"),
    [
        ({("overrides.cuont", 0): 1}, None, r"it made overrides.count:0, overrides.count\[k\]"),
        ({("overrides.count", 1): 1}, None, r"it made overrides.count:0, overrides.count\[k\]"),
        ({("timer", 0): 1}, None, "never made"),
        ({"overrides.count": 1}, None, "a call is named by"),
        ({("overrides.count", 0, 1): 1}, None, "a call is named by"),
        ({("overrides.count", False): 1}, None, "a call is named by"),
        ([], None, "mapping"),
        (None, {("overrides.count", 0): "no"}, "it takes an error"),
        (None, {("overrides.count", 0): ValueError}, "it takes an error"),
        (None, {("overrides.count", 0): SystemExit(1)}, "it takes an error"),
        (None, {(EVENT.name, 0): ValueError()}, "for a call of a task or a child workflow"),
        ({("overrides.count", 0): 1}, {("overrides.count", 0): ValueError()}, "one outcome"),
    ],
)
def test_what_cannot_be_an_outcome_is_refused(values: Any, errors: Any, text: str) -> None:
    with pytest.raises(ForkValidationError, match=text):
        parsed(values, errors)


@pytest.mark.parametrize(("name", "value"), [(("overrides.count", 0), "seven"), (("overrides.child", 0), None)])
def test_a_value_that_does_not_fit_the_annotation_is_refused(name: tuple[str, int], value: Any) -> None:
    with pytest.raises(EncodeError, match=r"the overridden outcome of overrides\."):
        parsed({name: value})


def test_a_name_of_two_kinds_is_ambiguous() -> None:
    twice = [CallId(CallKind.TASK, "same", 0), CallId(CallKind.EVENT, "same", 0)]
    with pytest.raises(ForkValidationError, match="name of a task and a event"):
        parse_overrides("r", twice, {("same", 0): 1}, None)
