import dataclasses
import pathlib
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BeforeValidator

from satay.declarations import value_codec
from satay.errors import EncodeError
from tests.samples import WHERE, Color, Html, Item, Level, Mood, Order, assert_same, survives


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (list[str], [Mood.GOOD], ["good"]),
        (int, Level.HIGH, 3),
        (str, Html("x"), "x"),
        (float, 3, 3.0),
        (list[int], (1, 2), [1, 2]),
        (Order, {"id": 7}, Order(id=7)),
        (Order, {"id": 7, "items": [{"name": "x"}]}, Order(id=7, items=[Item(name="x")])),
    ],
)
def test_a_value_becomes_the_type_that_was_declared(annotation: Any, value: Any, expected: Any) -> None:
    assert_same(expected, survives(annotation, value))


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (int, "many", "$"),
        (type(None), 5, "$"),
        (str, 5, "$"),
        (Order, {"id": 1, "items": [{"name": 5}]}, "$.items[0].name"),
        (list[Color], ["red", "green"], "$[1]"),
        (bool, "perhaps", "$"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_path(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(EncodeError, match="'fetch' does not fit its declared type") as caught:
        value_codec(annotation).encode(value, WHERE)

    assert path == caught.value.path
    assert "\n" not in str(caught.value)


@dataclasses.dataclass
class Spot:
    x: float


@dataclasses.dataclass
class Reading:
    count: int
    when: date
    level: Level = Level.HIGH


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (int, "4", "$"),
        (int, True, "$"),
        (int, 4.0, "$"),
        (bool, "yes", "$"),
        (bool, 1, "$"),
        (float, "1e3", "$"),
        (float, True, "$"),
        (list[int], [1, "2"], "$[1]"),
        (list[int], [1, True], "$[1]"),
        (tuple[int, bool], (1, 1), "$[1]"),
        (list[float], [1, False], "$[1]"),
        (set[int], {"1"}, "$[0]"),
        (dict[str, int], {"a": "4"}, "$.a"),
        (int | None, "4", "$"),
        (Order, {"id": "7"}, "$.id"),
        (Order, {"id": True}, "$.id"),
        (list[Reading], [{"count": "7", "when": "2024-01-02"}], "$[0].count"),
        (str, b"x", "$"),
        (bytes, "x", "$"),
        (list[str], ["x", b"x"], "$[1]"),
        (list[bytes], ["x"], "$[0]"),
        (set[str], {b"x"}, "$[0]"),
        (dict[str, str], {"a": b"x"}, "$.a"),
        (dict[str, int], {b"a": 1}, "$[b'a']"),
        (Item, {"name": b"x"}, "$.name"),
        (set[float], [2**53 + 1], "$[0]"),
        pytest.param(float, 10**5000, "$", id="huge"),
        (float, 2**53 + 1, "$"),
        (float | None, 2**53 + 1, "$"),
        (list[float], [1.0, 2**53 + 1], "$[1]"),
        (dict[str, float], {"a": -(2**53) - 1}, "$.a"),
        (Spot, {"x": 2**53 + 1}, "$.x"),
    ],
)
def test_a_scalar_of_another_type_is_refused_and_never_converted(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(EncodeError, match="'fetch' does not fit its declared type") as caught:
        value_codec(annotation).encode(value, WHERE)

    assert path == caught.value.path


@pytest.mark.parametrize("count", ["7", 7.5])
def test_an_object_that_breaks_its_own_annotation_is_kept_as_it_is(count: Any) -> None:
    value = Reading(count, date(2024, 1, 2))

    assert_same(value, survives(Reading, value))
    assert_same([value], survives(list[Reading], [value]))


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, 4, 4.0),
        (float, 2**53 + 2, 2.0**53 + 2),
        (list[float], [2**60], [2.0**60]),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (date, "2024-01-02", date(2024, 1, 2)),
        (timedelta, "PT5S", timedelta(seconds=5)),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        (Decimal, "1.5", Decimal("1.5")),
        (Decimal, 2, Decimal(2)),
        (pathlib.Path, "a/b", pathlib.Path("a/b")),
        (Level, 3, Level.HIGH),
        (Color, "red", Color.RED),
        (list[Color], ["red"], [Color.RED]),
        (set[int], [1, 2], {1, 2}),
        (set[str | bytes], ["a", b"b"], {"a", b"b"}),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (dict[Color, int], {"red": 1}, {Color.RED: 1}),
        (Annotated[int, BeforeValidator(int)], "4", 4),
        (list[Annotated[int, BeforeValidator(int)]], ["4"], [4]),
        (Reading, {"count": 1, "when": "2024-01-02", "level": 3}, Reading(1, date(2024, 1, 2))),
        (list[Reading], [{"count": 1, "when": date(2024, 1, 2)}], [Reading(1, date(2024, 1, 2))]),
        (list[str], (Mood.GOOD,), ["good"]),
        (list[int], (Level.HIGH,), [3]),
    ],
)
def test_the_json_form_of_a_declared_type_becomes_that_type(annotation: Any, value: Any, expected: Any) -> None:
    assert_same(expected, survives(annotation, value))
