"""Whether two values are the same, in value and in type, all the way down."""

import dataclasses
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from satay.classes import fields_of, has_plain_layout, instance_state, is_model, is_namedtuple
from satay.refusals import UnencodableError, path_step
from satay.scalars import tag_zone
from satay.tag_writers import tag_set
from satay.texts import dump_plain

if TYPE_CHECKING:
    from pydantic import BaseModel

MARSHAL_VERSION: Final = 2
"""The last version without back references and flags for interned strings: equal bytes mean equal data."""

_ATOMS: Final[Set[type]] = frozenset({type(None), int, str, bytes, date, timedelta, UUID})
"""Types of which two values are the same if they are equal, and of which no value equals one of another."""


def find_difference(left: Any, right: Any) -> str | None:
    """The path to the first place where two values differ in value or type, None if they are the same.

    NaN is the same as NaN; a fixed offset is the same as an equal one; an object without `__eq__` is its state.
    """
    kind: Any = type(left)
    other: Any = type(right)
    if kind is not other:
        return ""
    comparer = _COMPARERS.get(kind) or _find_comparer(kind)
    return comparer(left, right)


def _compare_equal(left: Any, right: Any) -> str | None:
    try:
        return None if left == right else ""
    except Exception:  # a user's __eq__; what cannot be compared is not known to be the same
        return ""


def _compare_repr(left: Any, right: Any) -> str | None:
    """For numbers: tells -0.0 from 0.0 and 1.0 from 1.00, and knows NaN."""
    return None if repr(left) == repr(right) else ""


def _compare_items(left: Any, right: Any) -> str | None:
    if len(left) != len(right):
        return ""
    for index, (ours, theirs) in enumerate(zip(left, right, strict=True)):
        difference = find_difference(ours, theirs)
        if difference is not None:
            return f"[{index}]{difference}"
    return None


def _compare_deque(left: deque[Any], right: deque[Any]) -> str | None:
    return _compare_items(left, right) if left.maxlen == right.maxlen else ""


def _compare_dict(left: dict[Any, Any], right: dict[Any, Any]) -> str | None:
    """Members in order, so that iterating gives the same on both sides."""
    if len(left) != len(right):
        return ""
    for (key, ours), (other_key, theirs) in zip(left.items(), right.items(), strict=True):
        difference = "" if find_difference(key, other_key) is not None else find_difference(ours, theirs)
        if difference is not None:
            return f"{path_step(key)}{difference}"
    return None


def _compare_mapping(
    left: OrderedDict[Any, Any] | Counter[Any], right: OrderedDict[Any, Any] | Counter[Any]
) -> str | None:
    """Such a mapping may have attributes too."""
    difference = _compare_dict(left, right)
    return _compare_members(left.__dict__, right.__dict__) if difference is None else difference


def _compare_defaultdict(left: defaultdict[Any, Any], right: defaultdict[Any, Any]) -> str | None:
    return _compare_dict(left, right) if left.default_factory is right.default_factory else ""


def _compare_set(left: Any, right: Any) -> str | None:
    """By the texts of the items, in which every type shows; where they have none, by type and value."""
    types = set(map(type, left))
    if types <= _ATOMS:
        return None if left == right and types == set(map(type, right)) else ""
    try:
        return None if dump_plain(tag_set(left, 0)) == dump_plain(tag_set(right, 0)) else ""
    except UnencodableError:
        return _compare_typed_items(left, right)


def _compare_typed_items(left: Any, right: Any) -> str | None:
    try:
        is_same = {(type(item), item) for item in left} == {(type(item), item) for item in right}
    except Exception:  # a user's __eq__, as above
        return ""
    return None if is_same else ""


def _compare_moment(left: datetime | time, right: datetime | time) -> str | None:
    if left.fold != right.fold or left.replace(tzinfo=None) != right.replace(tzinfo=None):
        return ""
    if left.tzinfo is right.tzinfo:
        return None
    try:
        return None if _tag_zone_of(left) == _tag_zone_of(right) else ""
    except UnencodableError:
        return ""


def _tag_zone_of(value: datetime | time) -> Any:
    return None if value.tzinfo is None else tag_zone(value.tzinfo)


def _compare_model(left: "BaseModel", right: "BaseModel") -> str | None:
    if left.__pydantic_fields_set__ != right.__pydantic_fields_set__:
        return ""
    for ours, theirs in (
        (fields_of(left), fields_of(right)),
        (left.__pydantic_extra__ or {}, right.__pydantic_extra__ or {}),
        (left.__pydantic_private__ or {}, right.__pydantic_private__ or {}),
    ):
        difference = _compare_members(ours, theirs)
        if difference is not None:
            return difference
    return None


def _compare_state(left: object, right: object) -> str | None:
    return _compare_members(instance_state(left), instance_state(right))


def _compare_members(left: dict[str, Any], right: dict[str, Any]) -> str | None:
    """Attributes by name: their order means nothing."""
    if left.keys() != right.keys():
        return ""
    return _compare_dict(left, {name: right[name] for name in left})


_COMPARERS: Final[dict[type, Callable[[Any, Any], str | None]]] = {
    float: _compare_repr,
    complex: _compare_repr,
    Decimal: _compare_repr,
    list: _compare_items,
    tuple: _compare_items,
    deque: _compare_deque,
    dict: _compare_dict,
    OrderedDict: _compare_mapping,
    Counter: _compare_mapping,
    defaultdict: _compare_defaultdict,
    set: _compare_set,
    frozenset: _compare_set,
    datetime: _compare_moment,
    time: _compare_moment,
    str: _compare_equal,
    int: _compare_equal,
}


@functools.lru_cache(maxsize=1024)
def _find_comparer(cls: Any) -> Callable[[Any, Any], str | None]:
    if issubclass(cls, Enum):
        return _compare_equal
    if is_model(cls):
        return _compare_model
    if is_namedtuple(cls):
        return _compare_items
    compares_by_identity = cls.__eq__ is object.__eq__
    if compares_by_identity or dataclasses.is_dataclass(cls):
        return _compare_state if has_plain_layout(cls) else _compare_equal
    return _compare_equal
