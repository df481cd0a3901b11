"""Tagged text as values again.

- Reading finds classes among the imported modules only, accepts a dataclass, a pydantic model, an enum or a named
  tuple, fills it without `__init__`, `__new__`, validators or properties, and calls nothing that the text names.
"""

import dataclasses
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticUndefined

from satay.classes import FACTORIES, DataKind, data_kind, find_class, restore_state
from satay.refusals import MalformedTagError
from satay.scalars import SCALAR_READERS
from satay.texts import TAG, refuse_constant

if TYPE_CHECKING:
    from pydantic import BaseModel


def read_tagged(text: str) -> Any:
    """The value that `text` records.

    Raises `MalformedTagError` for a tag that cannot be read, `ValueError` for what is no JSON.
    """
    return _READER.decode(text)


def _untag(data: dict[str, Any]) -> Any:
    """The value of one object, whose members were read already."""
    if TAG not in data:
        return data
    kind = data[TAG]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise MalformedTagError(f"{kind!r} is not a kind of tag that may be read here")
    try:
        return reader(data)
    except (MalformedTagError, RecursionError):
        raise
    except Exception as error:  # besides what is wrong with the tag, a class may have its own code for == and for hash
        raise MalformedTagError(f"a tag of kind {kind!r} is damaged: {error!r}") from None


_READER: Final = json.JSONDecoder(parse_constant=refuse_constant, object_hook=_untag)


def _read_class(data: dict[str, Any], kind: DataKind) -> Any:
    """The class that a tag names, once it is known to be of that kind."""
    name = data["type"]
    cls = find_class(name)
    if cls is None:
        script = (
            "; '__main__' was the script that was run: run that one, or define the type in a module that is imported"
        )
        raise MalformedTagError(
            f"no imported module defines the type {name!r}{script if name.startswith('__main__:') else ''}"
        )
    if data_kind(cls) != kind:
        raise MalformedTagError(f"the type {name!r} is not a {kind}")
    return cls


def _read_enum(data: dict[str, Any]) -> Enum:
    cls: type[Enum] = _read_class(data, "enum")
    member = cls.__members__.get(data["name"])
    if member is None:
        raise MalformedTagError(f"the enum {data['type']!r} has no member {data['name']!r}")
    return member


def _read_flag(data: dict[str, Any]) -> Flag:
    cls: type[Flag] = _read_class(data, "flag")
    if type(data["value"]) is not int:
        raise MalformedTagError(f"{data['value']!r} is no value of the flag {data['type']!r}")
    return cls(data["value"])


def _read_namedtuple(data: dict[str, Any]) -> Any:
    cls = _read_class(data, "namedtuple")
    fields = cls._field_defaults | data["fields"]
    if set(fields) != set(cls._fields):
        raise MalformedTagError(_misfit(data["type"], set(cls._fields), set(fields)))
    return tuple.__new__(cls, [fields[name] for name in cls._fields])


def _read_dataclass(data: dict[str, Any]) -> Any:
    cls = _read_class(data, "dataclass")
    state: dict[str, Any] = data["fields"]
    declared = dataclasses.fields(cls)
    absent = [field for field in declared if field.name not in state and field.init]
    added = {field.name: _default_of(data["type"], field.name, field.default) for field in absent}
    instance = object.__new__(cls)
    restore_state(instance, added | state)
    return instance


def _read_model(data: dict[str, Any]) -> "BaseModel":
    cls: type[BaseModel] = _read_class(data, "model")
    fields: dict[str, Any] = data["fields"]
    declared = cls.model_fields
    if not fields.keys() <= declared.keys():
        raise MalformedTagError(_misfit(data["type"], set(declared), set(fields)))
    for name in declared.keys() - fields.keys():
        fields[name] = _default_of(data["type"], name, declared[name].default)
    model = object.__new__(cls)
    object.__setattr__(model, "__dict__", {name: fields[name] for name in declared})
    object.__setattr__(model, "__pydantic_fields_set__", set(data["set"]))
    object.__setattr__(model, "__pydantic_extra__", data.get("extra"))
    object.__setattr__(model, "__pydantic_private__", data.get("private"))
    return model


def _default_of(type_name: str, name: str, default: Any) -> Any:
    """The default of a field that the class has gained since. A factory is the user's code, so it is not called."""
    if default is dataclasses.MISSING or default is PydanticUndefined:
        raise MalformedTagError(f"it was recorded before {type_name!r} had the field {name!r}, which has no default")
    return default


def _misfit(type_name: str, declared: set[str], recorded: set[str]) -> str:
    return f"{type_name!r} has the fields {sorted(declared)} now, and {sorted(recorded)} were recorded"


def _read_counter(data: dict[str, Any]) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    dict.update(counter, data["items"])
    return counter


def _read_defaultdict(data: dict[str, Any]) -> defaultdict[Any, Any]:
    name = data["factory"]
    return defaultdict(None if name is None else FACTORIES[name], data["items"])


_READERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    **SCALAR_READERS,
    "value": lambda data: data["value"],
    "tuple": lambda data: tuple(data["items"]),
    "set": lambda data: set(data["items"]),
    "frozenset": lambda data: frozenset(data["items"]),
    "dict": lambda data: dict(data["items"]),
    "OrderedDict": lambda data: OrderedDict(data["items"]),
    "Counter": _read_counter,
    "defaultdict": _read_defaultdict,
    "deque": lambda data: deque(data["items"], data["maxlen"]),
    "enum": _read_enum,
    "flag": _read_flag,
    "namedtuple": _read_namedtuple,
    "dataclass": _read_dataclass,
    "model": _read_model,
}
