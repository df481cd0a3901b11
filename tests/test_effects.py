"""What tasks declare about their effects, and idempotency keys."""

from collections.abc import Callable, Collection

import pytest

import satay
from satay.effects import (
    Effect,
    ToolPolicy,
    idempotency_key,
    parse_effect,
    parse_policies,
    parse_tool_policies,
    restrict,
)
from satay.errors import InvalidValueError, RegistrationError
from satay.model import CallId, CallKind

CALL = CallId(CallKind.TASK, "send", 0)


@satay.task(name="effects.send")
async def send() -> None: ...


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT, Effect.EXTERNAL])
def test_an_effect_is_declared_by_its_name(effect: Effect) -> None:
    assert effect is parse_effect(effect.value, "send")


def test_nothing_declared_is_an_effect_of_its_own() -> None:
    assert Effect.UNDECLARED is parse_effect(None, "send")


@pytest.mark.parametrize("effect", ["", "PURE", "side", "pure ", "undeclared"])
def test_an_effect_that_there_is_not_is_refused_and_the_choices_are_named(effect: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        parse_effect(effect, "send")

    assert f"task 'send' declares effect={effect!r}, which is none of 'pure', 'idempotent', 'external'" == str(
        caught.value
    )


def test_the_key_of_a_call_is_the_same_each_time() -> None:
    assert idempotency_key("r", CALL) == idempotency_key("r", CallId(CallKind.TASK, "send", 0))


def test_another_run_name_kind_or_occurrence_has_another_key() -> None:
    calls = [
        ("r", CALL),
        ("s", CALL),
        ("r", CALL._replace(name="sent")),
        ("r", CALL._replace(kind=CallKind.CHILD)),
        ("r", CALL._replace(occurrence=1)),
        ("r", CALL._replace(occurrence="0")),
        ("r", CALL._replace(occurrence="page-1")),
    ]

    keys = {idempotency_key(root, call) for root, call in calls}

    assert len(calls) == len(keys)


def test_parts_that_run_together_have_keys_of_their_own() -> None:
    assert idempotency_key("r", CALL._replace(name="ab")) != idempotency_key("r", CALL._replace(name="a"))
    assert idempotency_key("ra", CALL._replace(name="b")) != idempotency_key("r", CALL._replace(name="ab"))


def test_a_key_can_be_made_of_any_text() -> None:
    key = idempotency_key("r", CALL._replace(occurrence="\ud800 é 文"))

    assert 64 == len(key)
    assert set(key) <= set("0123456789abcdef")


BLOCK, REPLAY, AUTO, LIVE = ToolPolicy.BLOCK, ToolPolicy.REPLAY, ToolPolicy.AUTO, ToolPolicy.LIVE


@pytest.mark.parametrize(
    ("policies", "within", "expected"),
    [
        ({}, {}, {}),
        ({"a": LIVE}, {}, {"a": AUTO}),
        ({"out": LIVE}, {}, {"out": BLOCK}),
        ({"a": LIVE}, {"a": REPLAY}, {"a": REPLAY}),
        ({"a": BLOCK}, {"a": REPLAY}, {"a": BLOCK}),
        ({"a": LIVE}, {"*": BLOCK}, {"*": BLOCK, "a": BLOCK}),
        ({"*": LIVE}, {"*": AUTO}, {"*": AUTO}),
        ({"*": LIVE}, {}, {}),
        ({"*": AUTO}, {"out": LIVE}, {"out": AUTO}),
        ({}, {"*": REPLAY}, {"*": REPLAY}),
    ],
)
def test_of_two_policies_for_a_task_the_stricter_one_holds(
    policies: dict[str, ToolPolicy], within: dict[str, ToolPolicy], expected: dict[str, ToolPolicy]
) -> None:
    effects = {"out": Effect.EXTERNAL}
    restricted = restrict(policies, within, lambda name: effects.get(name, Effect.UNDECLARED))

    assert expected == restricted
    assert expected == restrict(within, policies, lambda name: effects.get(name, Effect.UNDECLARED))


def test_a_policy_may_name_a_tool_that_was_never_called() -> None:
    assert {"email.send": ToolPolicy.BLOCK, "*": ToolPolicy.AUTO} == parse_tool_policies(
        {"email.send": "block", "*": "auto"}, {"search", "email"}
    )


def test_a_policy_for_a_tool_whose_name_looks_misspelled_is_refused_unless_that_one_has_a_policy_too() -> None:
    with pytest.raises(InvalidValueError, match=r"a tool 'email\.sned'.*did you mean 'email\.send'\?"):
        parse_tool_policies({"email.sned": "block"}, {"email.send"})

    assert 2 == len(parse_tool_policies({"email.send": "block", "email.sent": "auto"}, {"email.send"}))


@pytest.mark.parametrize("parse", [parse_policies, parse_tool_policies])
def test_a_policy_stands_under_the_name_of_its_task(parse: Callable[[object, Collection[str]], object]) -> None:
    with pytest.raises(InvalidValueError, match=r"has the key <satay\.task 'effects\.send'>; a key is the name"):
        parse({send: "block"}, ("effects.send",))


@pytest.mark.parametrize(
    "given", [None, "block", ["block"], {"": "block"}, {3: "block"}, {"a\n": "block"}, {"a": "no"}]
)
def test_policies_for_what_is_no_tool_are_refused(given: object) -> None:
    with pytest.raises(InvalidValueError, match="tool_policies"):
        parse_tool_policies(given, ())
