import io
import sys
from inspect import Parameter
from typing import Annotated, Any

import pytest
from typing_extensions import TypeAliasType

from satay.codec import ValueCodec
from satay.declarations import value_codec
from satay.errors import EncodeError
from tests.samples import WHERE, A, B, Order, assert_same


@pytest.mark.parametrize(
    "annotation", [None, Parameter.empty, int, "unresolvable", Annotated[int, {"unit": "m"}], io.IOBase]
)
def test_any_annotation_has_a_codec(annotation: Any) -> None:
    assert isinstance(value_codec(annotation), ValueCodec)


def test_codecs_are_made_once() -> None:
    assert value_codec(list[Order]) is value_codec(list[Order])


@pytest.mark.parametrize(
    ("first", "second"),
    [(A | B, B | A), (list[A | B], list[B | A]), (dict[str, A | B | None], dict[str, B | A | None])],
)
def test_a_union_reads_in_its_own_order_whichever_was_asked_for_first(first: Any, second: Any) -> None:
    value = {list[A | B]: [A(1)], dict[str, A | B | None]: {"a": A(1)}}.get(first, A(1))
    text = value_codec(first).encode(value, WHERE)

    assert "$satay" not in text
    assert_same(value, value_codec(first).decode(text, WHERE))
    assert "B(x=1)" in repr(value_codec(second).decode(text, WHERE))


def test_a_type_alias_may_name_itself() -> None:
    codec = value_codec(recursive_alias())

    assert {"a": [1, {"b": 2}]} == codec.encode_and_decode({"a": [1, {"b": 2}]}, WHERE)[1]
    with pytest.raises(EncodeError, match="does not fit"):
        codec.encode({"a": "x"}, WHERE)


def recursive_alias() -> Any:
    """`type Json = dict[str, Json] | list[Json] | int`, which is evaluated when it is first asked for."""
    if sys.version_info >= (3, 12):
        namespace: dict[str, Any] = {}
        exec("type Json = dict[str, Json] | list[Json] | int", namespace)
        return namespace["Json"]
    alias: Any = TypeAliasType("Json", int)
    object.__setattr__(alias, "__value__", dict[str, alias] | list[alias] | int)
    return alias
