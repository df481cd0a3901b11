import ast
import copy
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from satay.differences import MAX_DIFFERENCES, Difference, DifferenceKind, find_differences
from satay.model import MISSING
from satay.tables import (
    show_value,
)
from tests.values import PLAIN, Colour, Point, plain


def is_equal(one: Any, other: Any) -> bool:
    """Equality that tells `1`, `1.0` and `True` apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)


def apply_differences(value: Any, differences: Sequence[Difference]) -> Any:
    """What `value` becomes: changes and removals by the indices of the one, then additions by those of the other."""
    holder = [copy.deepcopy(value)]
    added = [difference for difference in differences if difference.kind is DifferenceKind.ADDED]
    others = [difference for difference in differences if difference.kind is not DifferenceKind.ADDED]
    for difference in [*reversed(others), *added]:
        *way, last = steps(difference.path)
        target: Any = holder
        for step in way:
            target = target[step]
        if difference.kind is DifferenceKind.REMOVED:
            del target[last]
        elif difference.kind is DifferenceKind.ADDED and isinstance(target, list):
            target.insert(last, difference.other)
        else:
            target[last] = difference.other
    return holder[0]


def steps(path: str) -> list[Any]:
    pattern = r"\.(?P<name>\w+)|\[(?P<index>\d+)\]|\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
    matches = list(re.finditer(pattern, path[1:]))
    assert path[1:] == "".join(match[0] for match in matches)
    return [
        0,
        *(
            match["name"] or (int(match["index"]) if match["index"] else ast.literal_eval(match["key"]))
            for match in matches
        ),
    ]


@given(PLAIN)
def test_a_value_does_not_differ_from_its_copy(value: Any) -> None:
    assert ((), False) == find_differences(value, copy.deepcopy(value))


@given(PLAIN, PLAIN)
def test_values_differ_exactly_if_they_are_not_equal(one: Any, other: Any) -> None:
    differences, _ = find_differences(one, other)

    assert is_equal(one, other) == (not differences)


@given(PLAIN, PLAIN)
def test_the_differences_turn_one_value_into_the_other(one: Any, other: Any) -> None:
    differences, is_truncated = find_differences(one, other)

    assert not is_truncated
    assert is_equal(other, apply_differences(one, differences))


@given(PLAIN, PLAIN)
def test_differences_the_other_way_round_are_the_same_places(one: Any, other: Any) -> None:
    forth, _ = find_differences(one, other)
    back, _ = find_differences(other, one)

    assert sorted(difference.path for difference in forth) == sorted(difference.path for difference in back)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (1, 2, DifferenceKind.CHANGED),
        (1, 1.5, DifferenceKind.CHANGED),
        (1, 1.0, DifferenceKind.TYPE_CHANGED),
        (1, True, DifferenceKind.TYPE_CHANGED),
        (None, "x", DifferenceKind.TYPE_CHANGED),
        ([], {}, DifferenceKind.TYPE_CHANGED),
        (MISSING, None, DifferenceKind.ADDED),
        (None, MISSING, DifferenceKind.REMOVED),
    ],
)
def test_a_difference_has_a_kind(one: Any, other: Any, kind: DifferenceKind) -> None:
    assert ((Difference("$", one, other, kind),), False) == find_differences(one, other)


def test_an_item_put_at_the_front_of_a_list_is_one_difference() -> None:
    assert ((Difference("$[0]", MISSING, "new", DifferenceKind.ADDED),), False) == find_differences(
        ["a", "b"], ["new", "a", "b"]
    )


def test_a_window_that_slides_over_a_list_is_what_left_it_and_what_came() -> None:
    differences, _ = find_differences(["a", "b", {"c": 1}, "d"], ["b", {"c": 1}, "x", "d", "e"])

    assert [("$[0]", "removed", 0), ("$[2]", "added", 2), ("$[4]", "added", 4)] == [
        (difference.path, difference.kind.value, difference.index) for difference in differences
    ]


def test_lists_in_lists_are_compared_in_time_that_can_be_waited_for() -> None:
    one: Any = [1, "same"]
    other: Any = [2, "same"]
    for _ in range(100):
        one, other = ["head", one, "tail"], ["head", other, "tail"]
    differences, _ = find_differences(one, other)

    assert ["$" + "[1]" * 100 + "[0]"] == [difference.path for difference in differences]


def test_no_more_differences_are_listed_than_the_limit() -> None:
    numbers = list(range(MAX_DIFFERENCES))

    exact = find_differences(numbers, [-1 - number for number in numbers])
    over = find_differences([*numbers, 0], [-1 - number for number in [*numbers, 0]])

    assert (MAX_DIFFERENCES, False) == (len(exact[0]), exact[1])
    assert (MAX_DIFFERENCES, True) == (len(over[0]), over[1])


def test_values_too_deep_to_follow_differ_as_a_whole() -> None:
    one: Any = 1
    other: Any = 2
    for _ in range(5_000):
        one, other = [one], [other]

    differences, _ = find_differences(one, other)

    assert [("$", DifferenceKind.CHANGED)] == [(difference.path, difference.kind) for difference in differences]


# --- tagged values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ((1, 2), (1, 3), "$[1]"),
        ({1: "a"}, {1: "b"}, "$[1]"),
        ({"a"}, {"a", "b"}, "$['b']"),
        (Point(1, 2), Point(1, 3), "$.y"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, {"at": datetime(2026, 1, 2, tzinfo=UTC)}, "$.at"),
        (Decimal("1.0"), Decimal("1.00"), "$"),
        ((1, 2), [1, 2], "$"),
        (Point(1, 2), (1, 2), "$"),
        (float("nan"), 1.0, "$"),
    ],
)
def test_tags_add_nothing_to_a_path(one: Any, other: Any, path: str) -> None:
    differences, _ = find_differences(plain(one), plain(other))

    assert [path] == [difference.path for difference in differences]


@pytest.mark.parametrize(
    "value", [float("nan"), (1, {2, 3}), Point(1, 2), Colour.RED, {1: {"$satay": 1}}, b"x", datetime.now(UTC)]
)
def test_equal_tagged_values_do_not_differ(value: Any) -> None:
    assert ((), False) == find_differences(plain(value), plain(value))


@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass", "timedelta", "nonsense", 7, None])
def test_an_object_that_only_looks_like_a_tag_is_an_object(kind: Any) -> None:
    one, other = {"$satay": kind, "a": 1}, {"a": 2, "$satay": kind}

    differences, _ = find_differences(one, other)

    assert ((), False) == find_differences(one, dict(reversed(one.items())))
    assert 1 == len(differences)
    assert show_value(one)
