"""Values of every kind that can be recorded, classes to make them of, and what must hold for each of them."""

import dataclasses
import enum
import json
import pathlib
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field

from satay.declarations import value_codec
from satay.equality import find_difference
from satay.model import MISSING
from satay.texts import to_plain

WHERE = "the result of task 'fetch'"
UNTYPED = value_codec(MISSING)
PARIS = ZoneInfo("Europe/Paris")


class Color(str, enum.Enum):  # noqa: UP042  # the older spelling is what this is about
    RED = "red"
    BLUE = "blue"


class Mood(enum.StrEnum):
    GOOD = "good"


class Level(enum.IntEnum):
    HIGH = 3


class Shape(enum.Enum):
    ROUND = ("round", 0)
    SQUARE = ("square", 4)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: Any = None


class RicherPair(Pair):
    def total(self) -> int:
        return self.left + 1


@dataclasses.dataclass
class A:
    x: int


@dataclasses.dataclass
class B:
    x: int


@dataclasses.dataclass
class Node:
    value: Any
    next: "Node | None" = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    name: str
    sizes: tuple[int, ...] = ()


CALLS: list[str] = []


@dataclasses.dataclass
class Prepared:
    total: int
    step: dataclasses.InitVar[int] = 1
    seen: int = dataclasses.field(init=False, default=0)

    def __post_init__(self, step: int) -> None:
        CALLS.append("post_init")
        self.total += step
        self.extra = "kept"


@dataclasses.dataclass(eq=False)
class Incomparable:
    when: datetime
    note: str = ""


class Item(BaseModel):
    name: str
    price: Decimal = Decimal("1.50")


class Order(BaseModel):
    uid: int = Field(alias="id")
    items: list[Item] = []
    when: datetime | None = None


class Crossed(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Lopsided(BaseModel):
    user_name: str = Field(validation_alias="userName", serialization_alias="user-name")

    @computed_field  # type: ignore[prop-decorator]  # pydantic's documented order
    @property
    def shout(self) -> str:
        return self.user_name.upper()


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.upper(), extra="forbid")
    long_name: int


class Private(BaseModel):
    x: int
    _hidden: list[int] = PrivateAttr(default_factory=list)


class Loose(BaseModel):
    data: Any = None
    bag: dict = Field(default_factory=dict)  # type: ignore[type-arg]  # bare on purpose


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = 0


class OpenNumbers(BaseModel):
    __pydantic_extra__: dict[str, int]
    model_config = ConfigDict(extra="allow")
    x: int


class Tagged(BaseModel):
    names: set[str]


class Secret(BaseModel):
    token: SecretStr


class Excluding(BaseModel):
    x: int
    hidden: str = Field(default="", exclude=True)


@dataclasses.dataclass(eq=False)
class SecretBox:
    token: SecretStr


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Kennel(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Puppy(Dog):
    age: int = 0


class Numbers(RootModel[list[int]]):
    pass


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T


class Movie(typing.TypedDict):
    title: str
    extra: dict[str, Any]


class Html(str):
    pass


class Whole(int):
    pass


class Bag(dict[str, int]):
    pass


class Batch(list[int]):
    pass


def survives(annotation: object, value: Any) -> Any:
    """The copy, once it is known that the text is strict JSON in UTF-8 and reads back as the same copy."""
    codec = value_codec(annotation)
    text, copy = codec.encode_and_decode(value, WHERE)
    text.encode()
    json.loads(text, parse_constant=pytest.fail)
    assert text == codec.encode(value, WHERE)
    assert find_difference(copy, codec.decode(text, WHERE)) is None
    assert find_difference(copy, codec.decode_data(to_plain(text), WHERE)) is None
    return copy


def assert_same(expected: Any, actual: Any) -> None:
    assert find_difference(expected, actual) is None, f"{expected!r} became {actual!r}"


zones = st.none() | st.sampled_from([UTC, PARIS, ZoneInfo("UTC"), timezone(timedelta(hours=-3, seconds=7))])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=("Cs", "Lu", "Cc")))
    | st.binary()
    | st.binary().map(bytearray)
    | st.decimals()
    | st.uuids()
    | st.complex_numbers()
    | st.dates()
    | st.timedeltas()
    | st.datetimes(timezones=zones)
    | st.times(timezones=st.none() | st.just(UTC))
    | st.sampled_from([*Color, *Mood, *Level, *Shape, *Rights, Rights(0), Rights(3)])
    | st.sampled_from([pathlib.Path("/a/b"), pathlib.PurePosixPath("x"), pathlib.PureWindowsPath("C:\\x")])
)
hashables = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=3)
    return (
        items
        | items.map(tuple)
        | items.map(lambda found: deque(found, maxlen=5))
        | st.dictionaries(st.text() | st.just("$satay"), inner, max_size=3)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.dictionaries(hashables, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(hashables, inner, max_size=3).map(lambda found: defaultdict(list, found))
        | st.lists(hashables, max_size=3).map(Counter)
        | st.sets(hashables, max_size=3)
        | st.frozensets(hashables, max_size=3)
        | st.builds(Node, inner)
        | st.builds(Pair, st.integers(), inner)
        | st.builds(Loose, data=inner)
    )


values = st.recursive(scalars, containers, max_leaves=8)
