"""Values as tagged data: plain JSON data in which every value that JSON has no word for is a tag.

- Sets are written in the order of their texts, so equal sets have equal texts in every process.
"""

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, Final

from satay.classes import (
    FACTORIES,
    DataKind,
    class_name,
    data_kind,
    fields_of,
    find_class,
    instance_state,
)
from satay.refusals import UnencodableError, path_step, way_out
from satay.scalars import SCALAR_TAGGERS, tag_int, tag_text
from satay.texts import TAG, dump_plain, is_utf8

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_DEPTH: Final = 200
"""The most levels that a recorded value may be nested; a value that holds itself is deeper than any limit."""


def tag_value(value: Any, depth: int) -> Any:
    """Plain JSON data for `value`, which is so many levels deep.

    Raises `UnencodableError` for a value that has no recorded form, or holds one.
    """
    kind: Any = type(value)
    if kind is str:
        return value if value.isascii() else tag_text(value)
    if kind is bool or value is None:
        return value
    if kind is int:
        return tag_int(value)
    scalar = SCALAR_TAGGERS.get(kind)
    if scalar is not None:
        return scalar(value)
    if depth > MAX_DEPTH:
        raise UnencodableError(f"it is nested deeper than {MAX_DEPTH} levels, or holds itself")
    tagger = _TAGGERS.get(kind) or _find_tagger(kind)
    return tagger(value, depth + 1)


def _tag_items(items: Iterable[Any], depth: int) -> list[Any]:
    plain: list[Any] = []
    try:
        for item in items:
            plain.append(tag_value(item, depth))
    except UnencodableError as error:
        error.steps.append(f"[{len(plain)}]")
        raise
    return plain


def _tag_pairs(value: dict[Any, Any], depth: int) -> list[list[Any]]:
    pairs: list[list[Any]] = []
    key: Any = None
    try:
        for key, item in value.items():
            pairs.append([tag_value(key, depth), tag_value(item, depth)])
    except UnencodableError as error:
        error.steps.append(path_step(key))
        raise
    return pairs


def _tag_members(value: dict[str, Any], depth: int) -> dict[str, Any]:
    members = {}
    key = ""
    try:
        for key, item in value.items():
            members[key] = tag_value(item, depth)
    except UnencodableError as error:
        error.steps.append(path_step(key))
        raise
    return members


def _tag_dict(value: dict[Any, Any], depth: int) -> Any:
    if TAG not in value and all(type(key) is str and (key.isascii() or is_utf8(key)) for key in value):
        return _tag_members(value, depth)
    return {TAG: "dict", "items": _tag_pairs(value, depth)}


def _tag_mapping(value: OrderedDict[Any, Any] | Counter[Any], depth: int) -> Any:
    if value.__dict__:
        raise UnencodableError(f"a value of type {class_name(type(value))!r} has attributes beside its items")
    return {TAG: type(value).__name__, "items": _tag_pairs(value, depth)}


def _tag_defaultdict(value: defaultdict[Any, Any], depth: int) -> Any:
    factory: Any = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and FACTORIES.get(name) is not factory:
        raise UnencodableError(f"a defaultdict makes its values with {factory!r}, which is not a built-in type")
    return {TAG: "defaultdict", "factory": name, "items": _tag_pairs(value, depth)}


def _tag_deque(value: deque[Any], depth: int) -> Any:
    return {TAG: "deque", "maxlen": value.maxlen, "items": _tag_items(value, depth)}


def tag_set(value: set[Any] | frozenset[Any], depth: int) -> Any:
    """The tag of a set, with its items in the order of their texts."""
    return {TAG: type(value).__name__, "items": sorted(_tag_items(value, depth), key=dump_plain)}


def _tag_enum(value: Enum, depth: int) -> Any:
    return {TAG: "enum", "type": class_name(type(value)), "name": value._name_}


def _tag_flag(value: Flag, depth: int) -> Any:
    return {TAG: "flag", "type": class_name(type(value)), "value": value._value_}


def _tag_namedtuple(value: Any, depth: int) -> Any:
    if getattr(value, "__dict__", None):
        raise UnencodableError(f"a named tuple of type {class_name(type(value))!r} has attributes beside its fields")
    fields = dict(zip(value._fields, tuple.__iter__(value), strict=True))
    return {TAG: "namedtuple", "type": class_name(type(value)), "fields": _tag_members(fields, depth)}


def _tag_dataclass(value: object, depth: int) -> Any:
    state = instance_state(value)
    return {TAG: "dataclass", "type": class_name(type(value)), "fields": _tag_members(state, depth)}


def _tag_model(value: "BaseModel", depth: int) -> Any:
    tag: dict[str, Any] = {TAG: "model", "type": class_name(type(value))}
    tag["fields"] = _tag_members(fields_of(value), depth)
    tag["set"] = sorted(value.__pydantic_fields_set__)
    if value.__pydantic_extra__ is not None:
        tag["extra"] = tag_value(value.__pydantic_extra__, depth)
    if value.__pydantic_private__ is not None:
        tag["private"] = tag_value(value.__pydantic_private__, depth)
    return tag


_TAGGERS: Final[dict[type, Callable[[Any, int], Any]]] = {
    list: _tag_items,
    tuple: lambda value, depth: {TAG: "tuple", "items": _tag_items(value, depth)},
    dict: _tag_dict,
    Counter: _tag_mapping,
    OrderedDict: _tag_mapping,
    defaultdict: _tag_defaultdict,
    deque: _tag_deque,
    set: tag_set,
    frozenset: tag_set,
}


_CLASS_TAGGERS: Final[dict[DataKind, Callable[[Any, int], Any]]] = {
    "enum": _tag_enum,
    "flag": _tag_flag,
    "namedtuple": _tag_namedtuple,
    "dataclass": _tag_dataclass,
    "model": _tag_model,
}


@functools.lru_cache(maxsize=1024)
def _find_tagger(cls: type) -> Callable[[Any, int], Any]:
    """How instances of a user's class are written. Raises for a class that reading could not find or fill."""
    kind = data_kind(cls)
    if kind is None:
        raise UnencodableError(
            f"a value of type {class_name(cls)!r}{_builtin_base(cls)} has no recorded form{way_out(cls)}"
        )
    if find_class(class_name(cls)) is not cls:
        raise UnencodableError(
            f"the type {class_name(cls)!r} cannot be found again by its name; define it at the top of a module"
        )
    return _CLASS_TAGGERS[kind]


def _builtin_base(cls: type) -> str:
    """The phrase that says why an instance is not taken for the text or the list that it also is."""
    known = {str, int, *SCALAR_TAGGERS, *_TAGGERS}
    builtin = next((base for base in cls.__mro__[1:-1] if base in known), None)
    return f", a subclass of {builtin.__name__}," if builtin else ""
