import dataclasses
import io
import itertools
import json
import math
import pathlib
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from inspect import Parameter
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AnyUrl,
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    TypeAdapter,
    model_validator,
)

import satay
from satay import scalar_codecs, texts
from satay.codec import ValueCodec
from satay.declarations import result_codec, value_codec
from satay.errors import DecodeError, EncodeError, InvalidValueError, PayloadTooLargeError
from satay.inputs import InputCodec, input_codec
from satay.model import MISSING
from satay.pickles import pickle_codec
from satay.texts import json_quote, to_plain
from satay.typed_codec import is_encoding
from tests.samples import (
    CALLS,
    PARIS,
    UNTYPED,
    WHERE,
    A,
    B,
    Bag,
    Batch,
    Box,
    Camel,
    Color,
    Crossed,
    Dog,
    Excluding,
    Frozen,
    Html,
    Incomparable,
    Item,
    Kennel,
    Level,
    Loose,
    Lopsided,
    Mood,
    Movie,
    Node,
    Numbers,
    Open,
    OpenNumbers,
    Order,
    Pair,
    Prepared,
    Private,
    Puppy,
    RicherPair,
    Rights,
    Secret,
    SecretBox,
    Shape,
    Tagged,
    Whole,
    assert_same,
    survives,
    values,
)

# --- the tagged format ------------------------------------------------------------------------------------------------


@given(values)
def test_every_supported_value_reads_back_the_same_with_the_same_types(value: Any) -> None:
    assert_same(value, survives(MISSING, value))


@given(values)
def test_a_loose_part_of_a_declared_type_keeps_its_types(value: Any) -> None:
    assert_same(Loose(data=value), survives(Loose, Loose(data=value)))


@given(st.sets(st.text()))
def test_equal_sets_have_equal_texts(value: set[str]) -> None:
    backwards: set[str] = set()
    backwards.update(sorted(value, reverse=True))

    assert UNTYPED.encode(value, WHERE) == UNTYPED.encode(backwards, WHERE)


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


@pytest.mark.parametrize("value", ["a\x00b", "\ud800x", "\ud83d\ude00", "\U0001f600", "e\u0301", {"\udfff": 1}])
def test_any_text_reads_back_whether_or_not_a_type_is_declared(value: Any) -> None:
    assert value == survives(MISSING, value)
    assert value == survives(type(value) if isinstance(value, str) else dict[str, int], value)


def test_a_model_may_hold_text_that_pydantic_refuses() -> None:
    model = Item.model_construct(name="\ud800", price=Decimal(1))

    assert model == survives(Item, model)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2024, 1, 1),  # noqa: DTZ001  # naive on purpose
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 10, 27, 2, 30, tzinfo=PARIS),
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PARIS),
        datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001
        datetime(1, 1, 1),  # noqa: DTZ001
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
        date(1, 1, 1),
        time(23, 59, 59, 1),
        time(1, tzinfo=UTC),
        timedelta(days=999_999, microseconds=1),
        timedelta(days=-1, microseconds=1),
    ],
)
def test_moments_and_spans_read_back_exactly(value: Any) -> None:
    for annotation in (MISSING, type(value), type(value) | None, list[Any]):
        given_value = [value] if annotation == list[Any] else value
        copy = survives(annotation, given_value)

        assert_same(given_value, copy)
        if isinstance(value, datetime):
            moment = copy[0] if isinstance(copy, list) else copy
            assert value.utcoffset() == moment.utcoffset()
            assert isinstance(moment.tzinfo, ZoneInfo) == isinstance(value.tzinfo, ZoneInfo)


def test_a_zone_still_knows_its_daylight_saving_time_in_a_model() -> None:
    order = Order(id=1, when=datetime(2024, 1, 1, tzinfo=PARIS))
    copy = survives(Order, order)

    assert timedelta(hours=2) == (copy.when + timedelta(days=180)).utcoffset()


@pytest.mark.parametrize("annotation", [MISSING, Any, object, list, dict, list[Any], dict[str, Any]])
@pytest.mark.parametrize("value", [Mood.GOOD, Level.HIGH, Color.RED, Shape.ROUND, Rights.READ, Pair(1), RicherPair(1)])
def test_enums_and_named_tuples_keep_their_type_whatever_the_annotation(annotation: Any, value: Any) -> None:
    in_list = annotation in (list, list[Any])
    in_dict = annotation in (dict, dict[str, Any])
    holder = [value] if in_list else {"value": value} if in_dict else value

    assert_same(holder, survives(annotation, holder))


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


def test_a_defaultdict_still_makes_values() -> None:
    copy = survives(MISSING, defaultdict(list, {"a": [1]}))
    copy["new"].append(1)

    assert {"a": [1], "new": [1]} == copy


def test_a_dataclass_is_filled_without_running_its_code() -> None:
    value = Prepared(1, step=2)
    CALLS.clear()
    copy = UNTYPED.encode_and_decode(value, WHERE)[1]

    assert value == copy
    assert "kept" == copy.extra
    assert [] == CALLS


def test_a_declared_dataclass_that_changes_its_own_fields_reads_back_equal() -> None:
    assert Prepared(1, step=2) == survives(Prepared, Prepared(1, step=2))


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


@pytest.mark.parametrize("annotation", [Any, int, Order, list[int], dict[str, Any]])
def test_a_forgotten_await_is_named(annotation: Any) -> None:
    async def charge() -> int:
        return 1

    coroutine = charge()
    codec = value_codec(annotation)
    with pytest.raises(EncodeError, match="did you forget 'await'"):
        codec.encode({"id": coroutine} if annotation in (Order, dict[str, Any]) else coroutine, WHERE)
    with pytest.raises(EncodeError, match="did you forget to call it"):
        codec.encode({"id": charge} if annotation in (Order, dict[str, Any]) else charge, WHERE)
    coroutine.close()


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


@pytest.mark.parametrize("value", [10**18, -(2**70), 10**4000, -(10**5000)], ids=["18", "22", "4000", "5000"])
def test_integers_of_any_size_read_back(value: int) -> None:
    assert value == survives(int, value)
    assert value == survives(MISSING, [value])[0]


@pytest.mark.parametrize("annotation", [str, MISSING, list[str]])
def test_a_payload_above_the_limit_has_its_own_error(annotation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_PAYLOAD_BYTES", 1000)
    monkeypatch.setattr(scalar_codecs, "_SHORT_TEXT", 100)
    value: Any = ["é" * 500] if annotation == list[str] else "é" * 500

    with pytest.raises(PayloadTooLargeError, match="the limit of 1000"):
        value_codec(annotation).encode(value, WHERE)
    with pytest.raises(PayloadTooLargeError):
        input_codec(lambda a, b: None).encode(("x" * 600, "x" * 600), {}, WHERE)


# --- decoding is inert ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["subprocess.Popen", "subprocess:Popen", "os:system", "builtins:eval", "io:StringIO", ""]
)
@pytest.mark.parametrize("kind", ["dataclass", "model", "enum", "flag", "namedtuple"])
def test_a_tag_that_names_anything_but_a_data_class_is_inert(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    witness = tmp_path / "x"
    fields = {"args": f"touch {witness}", "shell": True}
    text = json.dumps({"$satay": kind, "type": name, "fields": fields, "name": "x", "value": 1, "set": []})

    with pytest.raises(DecodeError, match="the result of task 'fetch' cannot be read"):
        UNTYPED.decode(text, WHERE)
    with pytest.raises(DecodeError):
        value_codec(Item).decode(text, WHERE)
    assert not witness.exists()


def test_a_tag_never_imports_a_module() -> None:
    assert "this" not in sys.modules
    with pytest.raises(DecodeError, match="no imported module"):
        UNTYPED.decode('{"$satay":"dataclass","type":"this:Zen","fields":{}}', WHERE)

    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        '{"$satay":"pickle","data":"gASVAAAA"}',
        '{"$satay":"unheard of"}',
        '{"$satay":["list"]}',
        '{"$satay":"bytes","base64":"!"}',
        '{"$satay":"set","items":[[1]]}',
        '{"$satay":"datetime","value":"yesterday"}',
        '{"$satay":"time","value":"1","zone":"../../etc/passwd"}',
        '{"$satay":"Decimal","value":"x"}',
        '{"$satay":"deque","items":1,"maxlen":-1}',
        '{"$satay":"int","hex":[]}',
        '{"$satay":"value","set":[]}',
        '{"$satay":"defaultdict","factory":"eval","items":[]}',
        '{"$satay":"enum","type":"tests.samples:Color","name":"GREEN"}',
        '{"$satay":"model","type":"tests.samples:Item","fields":{"x":1},"set":[]}',
        '{"$satay":"namedtuple","type":"tests.samples:Pair","fields":{"up":1}}',
        '{"$satay":"dataclass","type":"tests.samples:Node","fields":{}}',
    ],
)
def test_damaged_text_is_a_decode_error(text: str) -> None:
    with pytest.raises(DecodeError):
        UNTYPED.decode(text, WHERE)


def test_a_field_that_was_added_since_takes_its_default() -> None:
    node = UNTYPED.decode('{"$satay":"dataclass","type":"tests.samples:Node","fields":{"value":1}}', WHERE)
    item = UNTYPED.decode('{"$satay":"model","type":"tests.samples:Item","fields":{"name":"x"},"set":["name"]}', WHERE)

    assert Node(1) == node
    assert Item(name="x") == item


def test_recorded_text_that_no_longer_fits_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match=r"fetch.* does not fit the type that the code declares now: at \$\.name"):
        value_codec(Item).decode('{"price":"1"}', WHERE)
    for annotation in (int, float, bool, str, None):
        with pytest.raises(DecodeError):
            value_codec(annotation).decode('{"a":[]}', WHERE)


def test_plain_data_shows_tags_and_builds_no_type() -> None:
    text = UNTYPED.encode([Node(math.nan)], WHERE)

    fields = {"value": {"$satay": "float", "value": "nan"}, "next": None}
    assert [{"$satay": "dataclass", "type": "tests.samples:Node", "fields": fields}] == to_plain(text)


# --- declared types ---------------------------------------------------------------------------------------------------


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


def test_a_generic_model_reads_back_without_an_annotation() -> None:
    value = Box[int](content=1)

    assert_same(value, survives(MISSING, value))
    with pytest.raises(DecodeError, match="no imported module defines"):
        UNTYPED.decode('{"$satay":"model","type":"tests.samples:Box[Nothing]","fields":{},"set":[]}', WHERE)


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


class Once:
    def __iter__(self) -> "Once":
        return self

    def __next__(self) -> int:
        raise StopIteration


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (list[int], (x for x in [1]), "$"),
        (list[int], map(int, "12"), "$"),
        (tuple[int, ...], filter(None, [1]), "$"),
        (set[int], iter([1]), "$"),
        (Sequence[int], zip([1], strict=True), "$"),
        (Iterable[int], iter([1]), "$"),
        (list[int], itertools.count(), "$"),
        (list[int], Once(), "$"),
        (list[int] | None, iter([1]), "$"),
        (int, iter([1]), "$"),
        (list[list[int]], [[1], iter([1])], "$[1]"),
        (dict[str, list[int]], {"a b": iter([1])}, "$['a b']"),
        (dict[str, list[int]], OrderedDict(a=iter([1])), "$.a"),
        (Order, {"id": 1, "items": iter([])}, "$.items"),
        (list[Order], [Order.model_construct(uid=1, items=iter([]))], "$[0].items"),  # type: ignore[arg-type]  # wrong on purpose
        (Frozen, Frozen(name="x", sizes=iter([1])), "$.sizes"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_an_iterator_is_refused_where_a_type_is_declared(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(EncodeError, match=r"an iterator can be read once only; pass list\(\.\.\.\)") as caught:
        value_codec(annotation).encode(value, WHERE)

    assert path == caught.value.path


class Options(BaseModel):
    n: int
    mode: str = "none"

    @model_validator(mode="before")
    @classmethod
    def rename(cls, data: Any) -> Any:
        if isinstance(data, dict) and "type" in data:
            data["mode"] = data.pop("type")
        elif isinstance(data, Options):
            data.n += 1
        return data


@pytest.mark.parametrize("annotation", [Options, list[Options], dict[str, Options], set[int] | Options])
def test_a_validator_that_changes_its_input_changes_a_copy(annotation: Any) -> None:
    options: Any = {"n": 1, "type": "fast"}
    value = {list[Options]: [options], dict[str, Options]: {"a": options}}.get(annotation, options)
    copy = survives(annotation, value)

    assert {"n": 1, "type": "fast"} == options
    assert "fast" in repr(copy)


def test_a_validator_that_changes_an_object_changes_a_copy() -> None:
    options = Options(n=1)
    value_codec(set[int] | list[Options]).encode([options], WHERE)

    assert 1 == options.n


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


@pytest.mark.parametrize(
    "annotation", [None, Parameter.empty, int, "unresolvable", Annotated[int, {"unit": "m"}], io.IOBase]
)
def test_any_annotation_has_a_codec(annotation: Any) -> None:
    assert isinstance(value_codec(annotation), ValueCodec)


def test_codecs_are_made_once() -> None:
    assert value_codec(list[Order]) is value_codec(list[Order])


def test_the_copy_shares_nothing_with_the_original() -> None:
    for annotation in (MISSING, list[list[int]], list[Any]):
        value = [[1]]
        copy = value_codec(annotation).encode_and_decode(value, WHERE)[1]
        copy[0].append(2)

        assert [[1]] == value


@given(st.text())
def test_quoted_text_is_json_in_utf_8(text: str) -> None:
    assert text == json.loads(json_quote(text).encode())


def test_quoting_escapes_a_lone_surrogate() -> None:
    assert '"\\ud800"' == json_quote("\ud800")


# --- inputs -----------------------------------------------------------------------------------------------------------


class Job(BaseModel):
    name: str = Field(alias="jobName")
    tries: int = 1


async def run_job(job: Job, dry: bool = False) -> None: ...


def every_kind(a: int, /, b: str = "b", *rest: Color, c: Any = None, **options: Decimal) -> None: ...


def paint(x: Color, others: Sequence[Color] = (), by: dict[Color, int] | None = None) -> None: ...


def forward(
    x: "Later",
    y: "Nowhere",  # type: ignore[name-defined]  # noqa: F821  # a name for type checkers only
    z: Color,
) -> "list[Later]":
    return [x]


@dataclasses.dataclass
class Later:
    x: int


@pytest.mark.parametrize(
    ("args", "kwargs", "text", "call"),
    [
        ((1,), {}, '{"a":1}', ((1,), {})),
        ((1, "x"), {}, '{"a":1,"b":"x"}', ((1, "x"), {})),
        ((1,), {"b": "x"}, '{"a":1,"b":"x"}', ((1, "x"), {})),
        ((1,), {"c": [2]}, '{"a":1,"c":[2]}', ((1,), {"c": [2]})),
        (
            (1, "x", "red", Color.BLUE),
            {"c": 1, "d": Decimal("1.5")},
            '{"a":1,"b":"x","*rest":["red","blue"],"c":1,"**options":{"d":"1.5"}}',
            ((1, "x", Color.RED, Color.BLUE), {"c": 1, "d": Decimal("1.5")}),
        ),
    ],
)
def test_a_call_is_recorded_by_parameter(args: Any, kwargs: Any, text: str, call: Any) -> None:
    codec = input_codec(every_kind)

    assert text == codec.encode(args, kwargs, WHERE)
    assert_same(call, codec.decode(text, WHERE))
    assert_same((text, *call), codec.encode_and_decode(args, kwargs, WHERE))


def test_a_parameter_after_a_gap_is_passed_by_keyword() -> None:
    codec = input_codec(lambda a, b=1, c=2: None)

    assert ((1,), {"c": 3}) == codec.decode(codec.encode((1,), {"c": 3}, WHERE), WHERE)


def test_the_order_of_keywords_does_not_change_the_text() -> None:
    codec = input_codec(lambda a, b: None)

    assert codec.encode((), {"a": 1, "b": 2}, WHERE) == codec.encode((), {"b": 2, "a": 1}, WHERE)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"job": 2}), ((1,), {"wet": True}), ((), {"dry": True})]
)
def test_a_call_that_python_refuses_is_an_invalid_value(args: Any, kwargs: Any) -> None:
    with pytest.raises(InvalidValueError, match="the input of 'run_job' does not fit the function: "):
        input_codec(run_job).encode(args, kwargs, "the input of 'run_job'")


@pytest.mark.parametrize("value", [Job(jobName="x"), {"jobName": "x"}, {"name": "x", "tries": 1}])
def test_typing_applies_to_each_parameter_whatever_the_others_are(value: Any) -> None:
    codec = input_codec(run_job)
    args, kwargs = codec.decode(codec.encode((value,), {}, WHERE), WHERE)

    assert ((Job(jobName="x"),), {}) == (args, kwargs)


def test_an_argument_that_does_not_fit_is_named_with_its_field() -> None:
    with pytest.raises(EncodeError, match=r"argument 'job' of the input of 'w' does not fit.*\$\.tries") as caught:
        input_codec(run_job).encode(({"jobName": "x", "tries": "many"},), {}, "the input of 'w'")

    assert "$.tries" == caught.value.path


def test_an_enum_argument_is_the_member_or_an_error_and_never_its_letters() -> None:
    codec = input_codec(paint)
    for red in (Color.RED, "red"):
        args, _ = codec.decode(codec.encode((red, [red], {red: 1}), {}, WHERE), WHERE)

        assert (Color.RED, [Color.RED], {Color.RED: 1}) == args
        assert all(isinstance(item, Color) for item in (args[0], *args[1], *args[2]))
    with pytest.raises(EncodeError, match="argument 'x'"):
        codec.encode(("green",), {}, WHERE)


def test_an_unencodable_argument_is_named() -> None:
    with pytest.raises(EncodeError, match=r"argument '\*\*options' of the input"):
        input_codec(every_kind).encode((1,), {"d": object()}, "the input")


def test_a_hint_that_cannot_be_resolved_counts_as_none_and_spares_the_others() -> None:
    codec = input_codec(forward)
    args, _ = codec.decode(codec.encode(({"x": 1}, {1, 2}, "red"), {}, WHERE), WHERE)

    assert (Later(1), {1, 2}, Color.RED) == args
    assert [Later(1)] == result_codec(forward).decode('[{"x":1}]', WHERE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"dry":true}', "nothing was recorded for 'job'"),
        ('{"job":{"name":"x"},"fast":1}', "takes no parameter named 'fast'"),
        ('{"job":{}}', "argument 'job'"),
        ("[]", "not an object"),
        ("[", "not valid JSON"),
    ],
)
def test_a_recorded_call_that_no_longer_fits_is_a_decode_error(text: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        input_codec(run_job).decode(text, WHERE)


@pytest.mark.parametrize("text", ['{"a":1,"*rest":5}', '{"a":1,"**options":[]}'])
def test_damaged_variadic_arguments_are_decode_errors(text: str) -> None:
    with pytest.raises(DecodeError):
        input_codec(every_kind).decode(text, WHERE)


def test_each_decoding_gives_fresh_arguments() -> None:
    codec = input_codec(lambda xs: None)
    original = [1]
    text, (copy,), _ = codec.encode_and_decode((original,), {}, WHERE)
    copy.append(2)
    codec.decode(text, WHERE)[0][0].append(3)

    assert [1] == original
    assert (([1],), {}) == codec.decode(text, WHERE)


@given(st.lists(values, max_size=3), st.dictionaries(st.sampled_from("xyz"), values, max_size=2))
def test_any_arguments_read_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    codec = InputCodec(lambda *args, **kwargs: None)

    assert_same((tuple(args), kwargs), codec.decode(codec.encode(tuple(args), kwargs, WHERE), WHERE))


# --- pickle -----------------------------------------------------------------------------------------------------------


def test_a_pickle_is_marked_and_read_only_where_it_is_allowed() -> None:
    text = pickle_codec().encode({1: Html("x")}, WHERE)

    assert "pickle" == to_plain(text)["$satay"]
    assert_same({1: Html("x")}, pickle_codec(allow_pickle=True).decode(text, WHERE))
    for codec in (UNTYPED, value_codec(int), value_codec(Item), pickle_codec()):
        with pytest.raises(DecodeError):
            codec.decode(text, WHERE)


def test_a_pickle_made_a_moment_ago_needs_no_permission_and_a_recorded_one_does() -> None:
    codec = pickle_codec()
    text, copy = codec.encode_and_decode([Html("x")], WHERE)

    assert_same([Html("x")], copy)
    assert_same([Html("x")], codec.decode(text, WHERE, allow_pickle=True))
    with pytest.raises(DecodeError, match="SATAY_ALLOW_PICKLE"):
        codec.decode(text, WHERE)


def test_an_unpicklable_value_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="cannot be pickled"):
        pickle_codec().encode(threading.Lock(), WHERE)


def test_a_damaged_pickle_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="cannot be unpickled"):
        pickle_codec(allow_pickle=True).decode('{"$satay":"pickle","data":"AAAA"}', WHERE)
