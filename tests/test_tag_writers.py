import dataclasses
import enum
import threading
from collections import Counter, OrderedDict
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satay.declarations import value_codec
from satay.errors import EncodeError
from satay.model import MISSING
from satay.tag_writers import MAX_DEPTH
from tests.samples import UNTYPED, WHERE, Bag, Batch, Html, Loose, Node, Pair, RicherPair, Whole, assert_same, survives


@given(st.sets(st.text()))
def test_equal_sets_have_equal_texts(value: set[str]) -> None:
    backwards: set[str] = set()
    backwards.update(sorted(value, reverse=True))

    assert UNTYPED.encode(value, WHERE) == UNTYPED.encode(backwards, WHERE)


def test_a_named_tuple_with_attributes_of_its_own_is_refused() -> None:
    value = RicherPair(1)
    value.__dict__["memo"] = 1

    with pytest.raises(EncodeError, match="attributes beside its fields"):
        UNTYPED.encode(value, WHERE)


@pytest.mark.parametrize("value", [Html("x"), Whole(1), Bag(), Batch(), type("Local", (), {})(), threading.Lock()])
def test_what_cannot_be_rebuilt_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(
        EncodeError, match=r"the result of task 'fetch' cannot be recorded: at \$\.items\[1\]"
    ) as caught:
        UNTYPED.encode({"items": [0, value]}, WHERE)

    assert "$.items[1]" == caught.value.path


def test_a_class_inside_a_function_is_refused_because_it_cannot_be_found_again() -> None:
    @dataclasses.dataclass
    class Hidden:
        x: int

    with pytest.raises(EncodeError, match="define it at the top of a module"):
        UNTYPED.encode(Hidden(1), WHERE)


def test_the_path_leads_through_every_kind_of_container() -> None:
    with pytest.raises(EncodeError) as caught:
        UNTYPED.encode({"a b": [Node(Pair(1, {2: {object()}}))]}, WHERE)

    assert "$['a b'][0].value.right[2][0]" == caught.value.path


def test_an_unencodable_field_of_a_declared_model_is_named() -> None:
    with pytest.raises(EncodeError) as caught:
        value_codec(Loose).encode(Loose(data=object()), WHERE)

    assert "$.data" == caught.value.path


@pytest.mark.parametrize("annotation", [MISSING, list[Any], Node, Loose])
def test_a_value_that_holds_itself_is_refused(annotation: Any) -> None:
    loop: list[Any] = []
    loop.append(loop)
    node = Node(1)
    node.next = node
    holder = {Node: node, Loose: Loose(data=loop)}.get(annotation, loop)

    with pytest.raises(EncodeError):
        value_codec(annotation).encode(holder, WHERE)


OddName = enum.Enum("OddName", {"\udc00": 1})
ODD_NODE = Node(1)
setattr(ODD_NODE, "\ud800", 2)
ODD_ZONE = timezone(timedelta(hours=1), "\ud800")


@pytest.mark.parametrize("value", [ODD_NODE, OddName["\udc00"], datetime(2024, 1, 1, tzinfo=ODD_ZONE)], ids=ascii)
@pytest.mark.parametrize("annotation", [MISSING, list[Any], list[int | Any]])
def test_a_name_that_utf_8_cannot_hold_is_escaped(annotation: Any, value: Any) -> None:
    assert_same([value], survives(annotation, [value]))


@pytest.mark.parametrize("leaf", [1, "x", None, 1.5, b"x", date(2024, 1, 1)], ids=repr)
def test_a_scalar_is_no_level_of_its_own(leaf: Any) -> None:
    deep = nested(leaf, MAX_DEPTH + 1)

    assert_same(deep, UNTYPED.encode_and_decode(deep, WHERE)[1])
    with pytest.raises(EncodeError, match="nested deeper than 200 levels"):
        UNTYPED.encode((deep,), WHERE)


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = (value,)
    return value


@pytest.mark.parametrize("value", [Counter("a"), OrderedDict(a=1)])
def test_a_mapping_with_attributes_of_its_own_is_refused(value: Any) -> None:
    value.note = "mine"

    with pytest.raises(EncodeError, match="has attributes beside its"):
        UNTYPED.encode(value, WHERE)
