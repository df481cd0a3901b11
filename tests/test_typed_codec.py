import dataclasses
import json
import math
import pathlib
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Generator, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from pydantic import AnyUrl, BaseModel, Field, SecretStr, TypeAdapter

import satay
from satay.codec import is_encoding
from satay.declarations import value_codec
from satay.errors import DecodeError, EncodeError
from satay.model import MISSING
from satay.texts import to_plain
from tests.samples import (
    UNTYPED,
    WHERE,
    A,
    B,
    Box,
    Camel,
    Color,
    Crossed,
    Dog,
    Excluding,
    Frozen,
    Incomparable,
    Item,
    Kennel,
    Level,
    Loose,
    Lopsided,
    Mood,
    Movie,
    Numbers,
    Open,
    OpenNumbers,
    Order,
    Pair,
    Prepared,
    Private,
    Puppy,
    Rights,
    Secret,
    SecretBox,
    Shape,
    Tagged,
    assert_same,
    survives,
    values,
)


@given(values)
def test_a_loose_part_of_a_declared_type_keeps_its_types(value: Any) -> None:
    assert_same(Loose(data=value), survives(Loose, Loose(data=value)))


@pytest.mark.parametrize("annotation", [set[str], dict[str, frozenset[int]], Tagged])
def test_a_declared_set_is_written_in_order_and_checked(annotation: Any) -> None:
    names = {str(number) for number in range(50)}
    value = {set[str]: names, Tagged: Tagged(names=names)}.get(annotation, {"x": frozenset({3, 1, 2})})
    text = value_codec(annotation).encode(value, WHERE)
    items = json.loads(text)

    assert_same(value, survives(annotation, value))
    if annotation == set[str]:
        assert sorted(names) == items["items"]
        assert_same(names, survives(annotation, sorted(names)))
        with pytest.raises(EncodeError, match="does not fit"):
            value_codec(annotation).encode({1}, WHERE)


def test_a_model_may_hold_text_that_pydantic_refuses() -> None:
    model = Item.model_construct(name="\ud800", price=Decimal(1))

    assert model == survives(Item, model)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Counter[str], Counter("abca")),
        (defaultdict[str, list[int]], defaultdict(list, {"a": [1]})),
        (OrderedDict[str, int], OrderedDict(b=1, a=2)),
        (deque[int], deque([1, 2, 3], maxlen=3)),
        (frozenset[int], frozenset({1, 2})),
        (Pair, Pair(1, 2)),
        (Frozen, Frozen(name="x", sizes=(1, 2))),
        (Incomparable, Incomparable(datetime(2024, 1, 1, tzinfo=UTC))),
        (Sequence[int], (1, 2)),
        (tuple[int, str], (1, "x")),
        (bytes, b"\xff\x00"),
        (dict[tuple[int, int], str], {(1, 2): "x"}),
        (dict[Level, int], {Level.HIGH: 1}),
        (float, math.nan),
        (float | None, math.inf),
        (list[float], [math.nan, -math.inf]),
        pytest.param(int, 10**5000, id="huge"),
        (str | Mood, Mood.GOOD),
        (int | float, 1.0),
        (bool | int, True),
        (Rights, Rights.READ | Rights.WRITE),
        (Rights | None, Rights.READ),
        (Shape, Shape.ROUND),
        (list[Shape], [Shape.SQUARE]),
        (Literal["a", Color.RED], Color.RED),
        (pathlib.Path, pathlib.Path("/tmp/x")),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Any, Decimal("NaN")),
        (Movie, {"title": "x", "extra": {"a": (1, 2)}}),
        (dict[str, int], {"$satay": 1}),
    ],
)
def test_declared_containers_and_scalars_read_back_the_same(annotation: Any, value: Any) -> None:
    copy = survives(annotation, value)

    assert_same(value, copy)
    assert copy is not value or not isinstance(value, list | dict | set | deque)


def test_a_declared_dataclass_that_changes_its_own_fields_reads_back_equal() -> None:
    assert Prepared(1, step=2) == survives(Prepared, Prepared(1, step=2))


def test_recorded_text_that_no_longer_fits_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match=r"fetch.* does not fit the type that the code declares now: at \$\.name"):
        value_codec(Item).decode('{"price":"1"}', WHERE)
    for annotation in (int, float, bool, str, None):
        with pytest.raises(DecodeError):
            value_codec(annotation).decode('{"a":[]}', WHERE)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order(id=7, items=[Item(name="x")])),
        (Crossed, Crossed(b=1, a=2)),
        (Lopsided, Lopsided(userName="x")),
        (Camel, Camel(LONG_NAME=1)),
        (Kennel, Kennel(pet=Dog())),
        (Numbers, Numbers([1, 2])),
        (Box[int], Box[int](content=1)),
        (Box[set[int]], Box[set[int]](content={1})),
        (Box[bytes], Box[bytes](content=b"\xff")),
        (Open, Open(x=1, other=(1, 2))),
        (list[Dog], [Puppy(age=3)]),
        (Excluding, Excluding(x=1, hidden="kept")),
        (A | B, B(1)),
        (list[A | B], [B(1), A(1)]),
        (dict[str, A | B], {"x": B(1)}),
    ],
)
def test_models_and_unions_read_back_the_same(annotation: Any, value: Any) -> None:
    assert_same(value, survives(annotation, value))


def test_private_attributes_read_back() -> None:
    model = Private(x=1)
    model._hidden.append(5)

    assert [5] == survives(Private, model)._hidden
    assert [5] == survives(MISSING, model)._hidden


@pytest.mark.parametrize("annotation", [Secret, SecretBox, SecretStr, MISSING])
def test_a_masked_secret_never_slips_through(annotation: Any) -> None:
    secret = SecretStr("hunter2")
    value = {Secret: Secret(token=secret), SecretBox: SecretBox(secret)}.get(annotation, secret)

    with pytest.raises(EncodeError, match="SecretStr") as caught:
        value_codec(annotation).encode(value, WHERE)
    assert "hunter2" not in str(caught.value)


def test_the_text_of_a_model_is_readable_json_by_field_name() -> None:
    order = Order(id=7, items=[], when=None)

    assert '{"uid":7,"items":[],"when":null}' == value_codec(Order).encode(order, WHERE)


class Page(BaseModel):
    address: AnyUrl
    note: str = ""
    next: "Page | None" = None


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order(id=7)),
        (Order, Order(id=7, items=[Item(name="x"), Item(name="y", price=Decimal(1))], when=None)),
        (list[Item], [Item(name="x", price=Decimal(1)), Item(name="y")]),
        (dict[str, tuple[Item, ...]], {"a b": (Item(name="y"),)}),
        (Open, Open(other=1)),
        (Open, Open(x=1, other=1)),
        (Kennel, Kennel(pet=Dog())),
        (Private, Private(x=1)),
        (Tagged | Order, Order(id=1)),
        (list[Dog], [Puppy()]),
        (Page, Page(address=AnyUrl("http://a/"), next=Page(address=AnyUrl("http://b/"), note="x"))),
        (MISSING, Order(id=7)),
    ],
)
def test_a_model_still_knows_which_fields_it_was_given(annotation: Any, value: Any) -> None:
    copy = survives(annotation, value)

    assert_same(value, copy)
    adapter: TypeAdapter[Any] = TypeAdapter(Any)
    assert adapter.dump_python(value, exclude_unset=True) == adapter.dump_python(copy, exclude_unset=True)
    text = value_codec(annotation).encode(value, WHERE)
    again = value_codec(annotation).decode(text, WHERE)
    assert adapter.dump_python(value, exclude_unset=True) == adapter.dump_python(again, exclude_unset=True)


def test_an_extra_attribute_that_was_set_later_counts_as_it_did() -> None:
    value = Open(x=1)
    value.other = 2  # type: ignore[attr-defined]  # that is what extra="allow" is for
    closed: Any = OpenNumbers(x=1)
    closed.other = 2

    for model in (value, closed):
        assert model.model_fields_set == survives(type(model), model).model_fields_set


def test_the_fields_that_a_model_was_given_are_recorded_beside_its_json() -> None:
    text = value_codec(list[Item]).encode([Item(name="x")], WHERE)

    value = [{"name": "x", "price": "1.50"}]
    assert {"$satay": "value", "set": [[[0], ["name"]]], "value": value} == to_plain(text)
    assert value == UNTYPED.decode(text, WHERE)


def test_a_field_that_the_type_has_gained_or_lost_since_does_not_count_as_given() -> None:
    text = '{"$satay":"value","set":[[[],["name","size"]],[["maker"],["x"]]],"value":{"name":"x","size":1}}'

    assert {"name"} == value_codec(Item).decode(text, WHERE).model_fields_set


@pytest.mark.parametrize("rest", ['"set":[]', '"set":1,"value":{"name":"x"}', '"set":[[[[]],[]]],"value":{"name":"x"}'])
def test_a_damaged_record_of_the_fields_given_is_a_decode_error(rest: str) -> None:
    with pytest.raises(DecodeError):
        value_codec(Item).decode(f'{{"$satay":"value",{rest}}}', WHERE)


class Drawing(BaseModel):
    n: int
    id: bool = Field(default_factory=is_encoding)


@dataclasses.dataclass
class DrawingToo:
    id: bool = dataclasses.field(default_factory=is_encoding)


def test_defaults_know_that_they_run_to_record_a_value() -> None:
    assert value_codec(Drawing).encode_and_decode({"n": 1}, WHERE)[1].id
    assert value_codec(DrawingToo).encode_and_decode({}, WHERE)[1].id
    with pytest.raises(EncodeError):
        value_codec(Drawing).encode({}, WHERE)
    assert not is_encoding()
    assert not Drawing(n=1).id


class Chancy(BaseModel):
    n: int
    id: UUID = Field(default_factory=satay.uuid4)


@satay.task
async def use_chancy(order: Chancy) -> int:
    return order.n


@satay.workflow
async def draw_in_a_default() -> list[str]:
    try:
        await use_chancy({"n": 1})  # type: ignore[arg-type]  # the JSON form
    except EncodeError as error:
        return [str(error), str(await use_chancy(Chancy(n=2)))]
    return []


def test_a_default_that_draws_chance_while_a_call_is_recorded_is_refused(tmp_path: pathlib.Path) -> None:
    message, result = satay.run(draw_in_a_default, data_dir=tmp_path)

    assert "draw chance in the body" in message
    assert "2" == result


def test_a_union_member_keeps_its_type_through_recorded_text() -> None:
    text = value_codec(A | B).encode(B(1), WHERE)

    assert "B" == type(value_codec(A | B).decode(text, WHERE)).__name__


@pytest.mark.parametrize(
    ("annotation", "value", "copy"),
    [
        (Iterable[int], [1, 2], [1, 2]),
        (Iterable[int], [], []),
        (Iterable[int], (1, 2), (1, 2)),
        (Iterable[int], {1, 2}, {1, 2}),
        (Iterable[int], range(3), [0, 1, 2]),
        (Iterable[int], {1: "a"}.keys(), [1]),
        (Iterable, [1, "a"], [1, "a"]),
        (Iterable[Iterable[int]], [[1], (2,)], [[1], (2,)]),
        (Iterable[Item], [{"name": "a", "price": "1"}], [Item(name="a", price=Decimal(1))]),
        (Iterable[int] | None, [1], [1]),
        (dict[str, Iterable[int]], {"a": [1]}, {"a": [1]}),
        (typing.Iterable[int], [1], [1]),
        (Generator[int, None, None], [1], [1]),
        (Sequence[int], [1], [1]),
        (Sequence[int], (1,), (1,)),
        (Collection[int], [1], [1]),
        (Collection[int], (1,), (1,)),
    ],
)
def test_a_container_is_taken_where_something_to_iterate_over_is_declared(
    annotation: Any, value: Any, copy: Any
) -> None:
    codec = value_codec(annotation)

    text, first = codec.encode_and_decode(value, WHERE)

    assert (copy, type(copy)) == (first, type(first))
    assert (copy, type(copy)) == (codec.decode(text, WHERE), type(codec.decode(text, WHERE)))


@pytest.mark.parametrize("value", [["1"], [True], "12", 5, None, {1: 2}])
def test_what_does_not_fit_an_iterable_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="does not fit its declared type"):
        value_codec(Iterable[int]).encode(value, WHERE)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "\ud800"),
        (float, "\ud800"),
        (bytes, "\ud800"),
        (datetime, "\ud800"),
        (Literal["a"], "\ud800"),
        (list[int], [1, "\ud800"]),
        (dict[str, int], {"a": "\ud800"}),
        (Item, {"name": "a", "price": "\ud800"}),
        (int | None, "\ud800"),
    ],
)
def test_text_with_a_lone_surrogate_is_no_way_around_the_declared_type(annotation: Any, value: Any) -> None:
    with pytest.raises(EncodeError, match="does not fit its declared type"):
        value_codec(annotation).encode(value, WHERE)


@pytest.mark.parametrize(
    ("annotation", "value", "copy"),
    [
        (list[str], ["\ud800", "a"], ["\ud800", "a"]),
        (dict[str, str], {"a": "\ud800"}, {"a": "\ud800"}),
        (tuple[str, int], ("\ud800", 1), ("\ud800", 1)),
        (tuple[str, ...], ["\ud800"], ("\ud800",)),
        (str | int, "\ud800", "\ud800"),
        (Item, {"name": "\ud800", "price": "1"}, Item.model_construct(name="\ud800", price=Decimal(1))),
    ],
)
def test_text_with_a_lone_surrogate_is_kept_where_text_is_declared(annotation: Any, value: Any, copy: Any) -> None:
    codec = value_codec(annotation)

    assert copy == codec.decode(codec.encode(value, WHERE), WHERE)
