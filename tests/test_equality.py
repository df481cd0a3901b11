import math
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from pydantic import SecretStr

from satay.equality import find_difference
from tests.samples import PARIS, A, B, Color, Item, Node, Open, Pair, Rights, SecretBox, values


def noted(value: Any) -> Any:
    value.note = "mine"
    return value


@given(values)
def test_a_value_is_the_same_as_itself(value: Any) -> None:
    assert find_difference(value, value) is None


@pytest.mark.parametrize(
    ("left", "right", "path"),
    [
        (1, True, ""),
        (1, 1.0, ""),
        ("red", Color.RED, ""),
        (0.0, -0.0, ""),
        (Decimal("1.0"), Decimal("1.00"), ""),
        ([1, 2], [1], ""),
        ([1, [2]], [1, [2.0]], "[1][0]"),
        ((1,), [1], ""),
        ({"a": 1}, {"a": True}, ".a"),
        ({1: 0}, {True: 0}, "[1]"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ".a"),
        ({1}, {2}, ""),
        ({1}, {True}, ""),
        ({1.5, 2}, {1.5, 2.0}, ""),
        ({0.0}, {-0.0}, ""),
        ({(1, "a")}, {(True, "a")}, ""),
        (frozenset({frozenset({1})}), frozenset({frozenset({1.0})}), ""),
        ({object}, {int}, ""),
        (deque([1], maxlen=1), deque([1], maxlen=2), ""),
        (defaultdict(list), defaultdict(set), ""),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), ""),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")), ""),
        (datetime(2024, 10, 27, 2, tzinfo=PARIS), datetime(2024, 10, 27, 2, tzinfo=PARIS, fold=1), ""),
        (OrderedDict(), noted(OrderedDict()), ""),
        (Counter(), noted(Counter()), ""),
        (A(1), B(1), ""),
        (A(1), A(True), ".x"),
        (Node(Node(1)), Node(Node(2)), ".value.value"),
        (Item(name="x"), Item(name="x", price=Decimal("1.50")), ""),
        (Item(name="x"), Item(name="y"), ".name"),
        (Open(x=1, other=(2,)), Open(x=1, other=[2]), ".other"),
        (Pair(1, 2), Pair(1, 3), "[1]"),
    ],
)
def test_the_first_difference_in_value_or_type_is_named(left: Any, right: Any, path: str) -> None:
    assert path == find_difference(left, right)
    assert find_difference(right, left) is not None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (math.nan, float("nan")),
        ({math.nan}, {float("nan")}),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=timezone(timedelta(0)))),
        (SecretBox(SecretStr("x")), SecretBox(SecretStr("x"))),
        ({(math.nan, 1)}, {(float("nan"), 1)}),
        ({object, int}, {int, object}),
        (Rights(3), Rights.READ | Rights.WRITE),
    ],
)
def test_what_equality_alone_would_tell_apart_is_the_same(left: Any, right: Any) -> None:
    assert find_difference(left, right) is None
