"""When a failed attempt is tried again, and after how long."""

import math
from typing import Any

import pytest

from satay.errors import EncodeError, InvalidValueError, PayloadTooLargeError
from satay.retries import Backoff, RetryPolicy


def test_the_wait_grows_by_a_factor_from_the_first_to_the_longest() -> None:
    backoff = Backoff(first=0.5, factor=3.0, longest=10.0)

    assert [0.5, 1.5, 4.5, 10.0, 10.0] == [backoff.ceiling(failures) for failures in range(1, 6)]


def test_a_wait_after_very_many_failures_is_the_longest() -> None:
    assert 60.0 == Backoff().ceiling(1_000_000)


def test_a_factor_of_one_waits_the_same_each_time() -> None:
    assert {2.0} == {Backoff(first=2.0, factor=1.0).ceiling(failures) for failures in range(1, 100)}


def test_a_first_wait_of_zero_never_waits() -> None:
    assert {0.0} == {Backoff(first=0.0).ceiling(failures) for failures in range(1, 100)}


def test_a_first_wait_beyond_the_longest_is_the_longest() -> None:
    assert 1.0 == Backoff(first=5.0, longest=1.0).ceiling(1)


@pytest.mark.parametrize("name", ["first", "factor", "longest"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, -math.inf])
def test_a_backoff_has_finite_numbers_of_zero_or_more(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}

    with pytest.raises(InvalidValueError, match=rf"{name} of Backoff\(\) is"):
        Backoff(**options)


def test_an_attempt_is_tried_again_as_often_as_was_asked_for() -> None:
    policy = RetryPolicy(retries=2)

    assert [True, True, False] == [policy.allows(ValueError(), failures) for failures in (1, 2, 3)]


def test_nothing_is_tried_again_unless_it_was_asked_for() -> None:
    assert not RetryPolicy().allows(ValueError(), 1)


def test_only_errors_that_were_asked_for_are_tried_again() -> None:
    policy = RetryPolicy(retries=9, retry_on=(LookupError,), no_retry_on=(KeyError,))

    assert policy.allows(IndexError(), 1)
    assert not policy.allows(KeyError(), 1)
    assert not policy.allows(ValueError(), 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_what_is_no_exception_is_not_tried_again(error: BaseException) -> None:
    assert not RetryPolicy(retries=9).allows(error, 1)


@pytest.mark.parametrize("error", [EncodeError("no"), PayloadTooLargeError("no")])
def test_a_value_that_cannot_be_encoded_is_never_tried_again(error: Exception) -> None:
    assert not RetryPolicy(retries=9, retry_on=(Exception, type(error))).allows(error, 1)
