import dataclasses
import json
import math
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from satay import tag_readers
from satay.declarations import value_codec
from satay.errors import DecodeError, EncodeError
from satay.model import MISSING
from tests.samples import (
    PARIS,
    UNTYPED,
    WHERE,
    A,
    B,
    Color,
    Frozen,
    Incomparable,
    Item,
    Loose,
    Node,
    Open,
    Order,
    Pair,
    Private,
    Rights,
    assert_same,
    survives,
    values,
)

GOLDEN: list[tuple[Any, str]] = [
    ("\ud800", '{"$satay":"str","utf8":"7aCA"}'),
    (-(2**16_000), f'{{"$satay":"int","hex":"-0x1{"0" * 4000}"}}'),
    (math.nan, '{"$satay":"float","value":"nan"}'),
    (-math.inf, '{"$satay":"float","value":"-inf"}'),
    (complex(1, math.nan), '{"$satay":"complex","real":1.0,"imag":{"$satay":"float","value":"nan"}}'),
    (b"\xff\x00", '{"$satay":"bytes","base64":"/wA="}'),
    (bytearray(b"ab"), '{"$satay":"bytearray","base64":"YWI="}'),
    ((1, (2.5,)), '{"$satay":"tuple","items":[1,{"$satay":"tuple","items":[2.5]}]}'),
    ({3, 1, 2}, '{"$satay":"set","items":[1,2,3]}'),
    (frozenset({"b", "a"}), '{"$satay":"frozenset","items":["a","b"]}'),
    ({1: "é", (2,): None}, '{"$satay":"dict","items":[[1,"é"],[{"$satay":"tuple","items":[2]},null]]}'),
    ({"$satay": "x"}, '{"$satay":"dict","items":[["$satay","x"]]}'),
    ({"a": [True, (), "\n"]}, '{"a":[true,{"$satay":"tuple","items":[]},"\\n"]}'),
    (OrderedDict(b=1, a=2), '{"$satay":"OrderedDict","items":[["b",1],["a",2]]}'),
    (Counter("aba"), '{"$satay":"Counter","items":[["a",2],["b",1]]}'),
    (defaultdict(list, {"a": [1]}), '{"$satay":"defaultdict","factory":"list","items":[["a",[1]]]}'),
    (defaultdict(None, {}), '{"$satay":"defaultdict","factory":null,"items":[]}'),
    (deque([1, 2], maxlen=3), '{"$satay":"deque","maxlen":3,"items":[1,2]}'),
    (datetime(2024, 1, 2, 3), '{"$satay":"datetime","value":"2024-01-02T03:00:00"}'),  # noqa: DTZ001  # naive
    (
        datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        '{"$satay":"datetime","value":"2024-01-02T03:04:05.000006","zone":{"seconds":0,"microseconds":0}}',
    ),
    (
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PARIS),
        '{"$satay":"datetime","value":"2024-10-27T02:30:00","zone":"Europe/Paris","fold":1}',
    ),
    (
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-1), "CET")),
        '{"$satay":"datetime","value":"2024-01-01T00:00:00","zone":{"seconds":-3600,"microseconds":0,"name":"CET"}}',
    ),
    (date(2024, 1, 2), '{"$satay":"date","value":"2024-01-02"}'),
    (time(23, 59, 59, 1), '{"$satay":"time","value":"23:59:59.000001"}'),
    (time(1, tzinfo=UTC), '{"$satay":"time","value":"01:00:00","zone":{"seconds":0,"microseconds":0}}'),
    (timedelta(days=-1, microseconds=1), '{"$satay":"timedelta","days":-1,"seconds":0,"microseconds":1}'),
    (Decimal("1.10"), '{"$satay":"Decimal","value":"1.10"}'),
    (UUID(int=7), '{"$satay":"UUID","value":"00000000-0000-0000-0000-000000000007"}'),
    (pathlib.PurePosixPath("a/b"), '{"$satay":"path","flavour":"PurePosixPath","path":"a/b"}'),
    (pathlib.PureWindowsPath("C:\\x"), '{"$satay":"path","flavour":"PureWindowsPath","path":"C:\\\\x"}'),
    (pathlib.Path("a"), '{"$satay":"path","flavour":"Path","path":"a"}'),
    (Color.RED, '{"$satay":"enum","type":"tests.samples:Color","name":"RED"}'),
    (Rights.READ | Rights.WRITE, '{"$satay":"flag","type":"tests.samples:Rights","value":3}'),
    (Pair(1, "x"), '{"$satay":"namedtuple","type":"tests.samples:Pair","fields":{"left":1,"right":"x"}}'),
    (Node(1), '{"$satay":"dataclass","type":"tests.samples:Node","fields":{"value":1,"next":null}}'),
    (
        Frozen(name="x", sizes=(1,)),
        '{"$satay":"dataclass","type":"tests.samples:Frozen",'
        '"fields":{"name":"x","sizes":{"$satay":"tuple","items":[1]}}}',
    ),
    (
        Item(name="x"),
        '{"$satay":"model","type":"tests.samples:Item",'
        '"fields":{"name":"x","price":{"$satay":"Decimal","value":"1.50"}},"set":["name"]}',
    ),
    (
        Open(x=1, other=(2,)),
        '{"$satay":"model","type":"tests.samples:Open","fields":{"x":1},"set":["other","x"],'
        '"extra":{"other":{"$satay":"tuple","items":[2]}}}',
    ),
    (
        Private(x=1),
        '{"$satay":"model","type":"tests.samples:Private","fields":{"x":1},"set":["x"],"private":{"_hidden":[]}}',
    ),
]


@pytest.mark.parametrize(("value", "text"), GOLDEN, ids=[text[:40] for _, text in GOLDEN])
def test_the_recorded_text_of_a_value_never_changes(value: Any, text: str) -> None:
    assert text == UNTYPED.encode(value, WHERE)
    assert_same(value, UNTYPED.decode(text, WHERE))


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (float, 2, "2.0"),
        (str, "é\x7f\n", '"é\x7f\\n"'),
        (set[int], {2, 1}, '{"$satay":"set","items":[1,2]}'),
        (dict[str, int], {"$satay": 1}, '{"$satay":"dict","items":[["$satay",1]]}'),
        (list[float], [math.nan], '{"$satay":"value","value":[{"$satay":"float","value":"nan"}]}'),
        (Order, Order(id=7, items=[], when=None), '{"uid":7,"items":[],"when":null}'),
        (
            list[Item],
            [Item(name="x")],
            '{"$satay":"value","set":[[[0],["name"]]],"value":[{"name":"x","price":"1.50"}]}',
        ),
        (Incomparable, Incomparable(datetime(2024, 1, 2, tzinfo=UTC)), '{"when":"2024-01-02T00:00:00Z","note":""}'),
        (tuple[bytes, ...], (b"a",), '["a"]'),
        (
            A | B,
            B(1),
            '{"$satay":"dataclass","type":"tests.samples:B","fields":{"x":1}}',
        ),
    ],
)
def test_the_recorded_text_of_a_declared_type_never_changes(annotation: Any, value: Any, text: str) -> None:
    codec = value_codec(annotation)

    assert text == codec.encode(value, WHERE)
    assert_same(codec.encode_and_decode(value, WHERE)[1], codec.decode(text, WHERE))


def test_the_text_of_every_kind_of_tag_is_pinned() -> None:
    pinned = {json.loads(text).get("$satay") for _, text in GOLDEN} - {None}

    assert set(tag_readers._READERS) - {"value"} == pinned


@given(values)
def test_every_supported_value_reads_back_the_same_with_the_same_types(value: Any) -> None:
    assert_same(value, survives(MISSING, value))


def test_plain_data_is_written_as_plain_json() -> None:
    assert '{"a":[1,2.5,"é",null,true]}' == UNTYPED.encode({"a": [1, 2.5, "é", None, True]}, WHERE)


@pytest.mark.parametrize(
    "value",
    [
        {"$satay": "tuple", "items": [1]},
        [{"$satay": 1, "x": {"$satay": None}}],
        {"a": {"$satay": "dataclass", "type": "subprocess:Popen", "fields": {}}},
        "$satay",
        ['{"$satay":"bytes"}'],
    ],
)
def test_user_data_that_looks_like_a_tag_reads_back_unchanged(value: Any) -> None:
    assert value == survives(MISSING, value)


@pytest.mark.parametrize("depth", [300, 100_000])
def test_deep_nesting_is_refused_and_never_a_recursion_error(depth: int) -> None:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]

    for annotation in (MISSING, list[Any], Loose):
        with pytest.raises(EncodeError):
            value_codec(annotation).encode(Loose(data=value) if annotation is Loose else value, WHERE)
    with pytest.raises(DecodeError):
        UNTYPED.decode("[" * 100_000, WHERE)


def test_moderate_nesting_of_any_kind_reads_back() -> None:
    value: Any = ()
    for _ in range(150):
        value = (value,)

    assert value == UNTYPED.encode_and_decode(value, WHERE)[1]


@dataclasses.dataclass(frozen=True)
class Touchy:
    x: int

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass
class Fickle:
    x: int

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise OSError("not now")
        return object.__getattribute__(self, name)


@dataclasses.dataclass(frozen=True)
class Moody:
    x: int

    def __hash__(self) -> int:
        if self.x not in MOODS:
            raise OSError("not now")
        return 1


MOODS = {1}


def test_a_set_of_what_cannot_be_compared_reads_back() -> None:
    copy = UNTYPED.encode_and_decode({Touchy(1)}, WHERE)[1]

    assert [1] == [item.x for item in copy]


@pytest.mark.parametrize("value", [[Fickle(1)], Item.__new__(Item)])
def test_an_object_whose_own_code_raises_while_it_is_written_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="the result of task 'fetch' cannot be recorded"):
        UNTYPED.encode(value, WHERE)


def test_an_object_whose_own_code_raises_while_it_is_read_is_a_decode_error() -> None:
    text = UNTYPED.encode({Moody(1)}, WHERE).replace('"x":1', '"x":2')

    with pytest.raises(DecodeError, match="the result of task 'fetch' cannot be read"):
        UNTYPED.decode(text, WHERE)
