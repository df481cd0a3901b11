"""Checks of what users hand in."""

import math
from datetime import timedelta
from typing import Any

import pytest

from satay.arguments import (
    LONGEST_DURATION_SECONDS,
    MAX_KEY_LENGTH,
    MAX_NAME_LENGTH,
    checked_count,
    checked_duration,
    checked_key,
    checked_run_id,
    key_problem,
    name_problem,
    shown,
)
from satay.errors import InvalidValueError


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (0, 0.0),
        (3, 3.0),
        (0.25, 0.25),
        (timedelta(minutes=2), 120.0),
        (-1, 0.0),
        (timedelta(days=-1), 0.0),
        (-(10**400), 0.0),
        (LONGEST_DURATION_SECONDS, LONGEST_DURATION_SECONDS),
    ],
)
def test_a_duration_is_in_seconds_and_never_below_zero(duration: object, seconds: float) -> None:
    checked = checked_duration(duration, "the timeout")

    assert seconds == checked
    assert type(checked) is float


@pytest.mark.parametrize("duration", ["3", None, True, [1], 3j])
def test_a_duration_is_a_number_or_a_timedelta(duration: object) -> None:
    with pytest.raises(InvalidValueError, match=r"^the timeout is .*; it must be a number of seconds or a timedelta$"):
        checked_duration(duration, "the timeout")


@pytest.mark.parametrize(
    "duration", [math.inf, math.nan, -math.inf, LONGEST_DURATION_SECONDS + 1, 10**400, timedelta.max]
)
def test_a_duration_is_finite_and_at_most_a_hundred_years(duration: object) -> None:
    with pytest.raises(InvalidValueError, match="it must be finite and at most a hundred years"):
        checked_duration(duration, "the timeout")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_count_may_be_either_bound(count: int) -> None:
    assert count == checked_count(count, "the limit", 1, 3)


@pytest.mark.parametrize("count", [0, 4, 2.0, "2", None, True])
def test_a_count_outside_of_its_bounds_or_no_whole_number_is_refused(count: object) -> None:
    with pytest.raises(InvalidValueError, match=r"^the limit is .*; it must be a whole number from 1 to 3$"):
        checked_count(count, "the limit", 1, 3)


@pytest.mark.parametrize("name", ["a", "email.send", "two words", "été", "x" * MAX_NAME_LENGTH, "satayed", "satay"])
def test_a_name_of_printable_characters_can_be_used(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_LENGTH + 1), "a\nb", "a\0", "\ud800", 3, None])
def test_a_name_that_cannot_be_used_is_told_why(name: object) -> None:
    assert "a name is 1 to 200 printable characters" == name_problem(name)


def test_names_that_satay_uses_itself_are_kept_for_it() -> None:
    assert "names that begin with 'satay.' are satay's own" == name_problem("satay.child")


@pytest.mark.parametrize("key", [None, "a", "page 7", "été", "satay.child", "x" * MAX_KEY_LENGTH])
def test_a_key_that_can_be_used_stays_as_it_is(key: str | None) -> None:
    assert key == checked_key(key, "the key")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (7, "a key is a text, not int"),
        (b"7", "a key is a text, not bytes"),
        ("", "a key is not empty"),
        ("x" * (MAX_KEY_LENGTH + 1), "a key has at most 200 characters, this one has 201"),
        ("a\nb", "a key has printable characters only"),
        ("\ud800", "a key has printable characters only"),
    ],
)
def test_a_key_that_cannot_be_used_is_told_why(key: Any, problem: str) -> None:
    assert problem == key_problem(key)
    with pytest.raises(InvalidValueError, match=f"^the key is .*, which cannot be used; {problem}$"):
        checked_key(key, "the key")


@pytest.mark.parametrize("run_id", ["r", "7", "_", "a/b:c=d@e+f-g.h", "x" * 200, "child-0", "r/line:0"])
def test_a_run_id_of_the_pattern_can_be_used(run_id: str) -> None:
    assert run_id == checked_run_id(run_id)


@pytest.mark.parametrize("run_id", ["", "x" * 201, "a b", "a..b", "a//b", "a/", "-a", ".a", "/a", "é", "a\n", 7, None])
def test_another_run_id_is_refused_and_the_pattern_is_told(run_id: object) -> None:
    with pytest.raises(InvalidValueError, match="a run id is 1 to 200 letters, digits and"):
        checked_run_id(run_id)


def test_a_value_in_a_message_is_its_repr_shortened() -> None:
    assert "'short'" == shown("short")
    assert 80 == len(shown("x" * 500))
    assert shown("x" * 500).endswith("...")
