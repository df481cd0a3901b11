"""Classes by name, which of them are data classes, and the state of their instances.

- Classes are found among the imported modules only, of which satay's features are, and nothing on the way to them is
  called.
- Instances are filled past every property and `__setattr__`.
"""

import dataclasses
import functools
import sys
import types
from enum import Enum, EnumType, Flag
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from satay.features import FEATURES

if TYPE_CHECKING:
    from pydantic import BaseModel

FACTORIES: Final[dict[str, Any]] = {
    factory.__name__: factory for factory in (list, dict, set, frozenset, tuple, int, float, str, bool, bytes)
}
"""What a recorded `defaultdict` may make its values with, by name."""

DataKind = Literal["enum", "flag", "namedtuple", "dataclass", "model"]
"""The kinds of class whose instances are recorded by what they hold."""


def class_name(cls: type) -> str:
    """`module:qualname`, the name under which `find_class` finds a class again."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: str) -> type | None:
    """The class of that `module:qualname` if its module is imported, else None. Runs no code of a user's module."""
    module_name, _, qualname = name.partition(":")
    module = import_module(module_name) if module_name in FEATURES else sys.modules.get(module_name)
    if not issubclass(type(module), types.ModuleType):
        return None
    plain_name, bracket, _ = qualname.partition("[")
    # Past any __getattr__, of the module or of a lazy loader, that would import something.
    cls = _descend(object.__getattribute__(module, "__dict__"), plain_name.split("."))
    if cls is None or cls.__qualname__ != plain_name:
        return None
    return _find_parametrized(cls, qualname) if bracket else cls


def _descend(namespace: Any, names: list[str]) -> type | None:
    found: Any = None
    for name in names:
        found = namespace.get(name)
        if not issubclass(type(found), type):  # isinstance would ask a lazy proxy for its __class__
            return None
        namespace = type.__dict__["__dict__"].__get__(found)
    cls: type = found
    return cls


def _find_parametrized(origin: type, qualname: str) -> type | None:
    """The class that pydantic made for `Box[int]`, which is in no module, if exactly one such has been declared."""
    subclasses: list[type] = type.__subclasses__(origin)
    made = [cls for cls in subclasses if cls.__qualname__ == qualname]
    return made[0] if len(made) == 1 and is_model(origin) else None


def instance_state(instance: object) -> dict[str, Any]:
    """Every attribute that is stored in the instance itself, in its `__dict__` or in slots."""
    state = {}
    cls: Any = type(instance)
    for name, slot in _slots(cls).items():
        try:
            state[name] = slot.__get__(instance)
        except AttributeError:
            continue
    return state | getattr(instance, "__dict__", {})


def restore_state(instance: object, state: dict[str, Any]) -> None:
    """Store attributes in the instance itself, past every property and `__setattr__`."""
    cls: Any = type(instance)
    slots = _slots(cls)
    for name, value in state.items():
        if name in slots:
            slots[name].__set__(instance, value)
        else:
            object.__getattribute__(instance, "__dict__")[name] = value


@functools.lru_cache(maxsize=1024)
def _slots(cls: type) -> dict[str, types.MemberDescriptorType]:
    return {
        name: attribute
        for base in reversed(cls.__mro__)
        if base.__module__ != "builtins"
        for name, attribute in vars(base).items()
        if isinstance(attribute, types.MemberDescriptorType)
    }


def fields_of(model: "BaseModel") -> dict[str, Any]:
    """The values of the declared fields alone: a cached property stores its value beside them."""
    declared = type(model).model_fields
    return {name: item for name, item in model.__dict__.items() if name in declared}


@functools.lru_cache(maxsize=1024)
def data_kind(cls: type) -> DataKind | None:
    """What kind of data class that is, None if its instances cannot be rebuilt without running its code."""
    if issubclass(cls, Flag):
        # Reading builds an unnamed combination through the class, which must run nobody else's code.
        return "flag" if _has_standard_lookup(cls) else None
    if issubclass(cls, Enum):
        return "enum"
    if is_model(cls):
        return "model"
    if is_namedtuple(cls):
        return "namedtuple"
    return "dataclass" if dataclasses.is_dataclass(cls) and has_plain_layout(cls) else None


def is_model(cls: type) -> bool:
    """Whether that is a model of pydantic's. Where nobody has loaded pydantic there is none, and it stays unloaded."""
    main = sys.modules.get("pydantic.main")
    return main is not None and issubclass(cls, main.BaseModel)


def _has_standard_lookup(cls: type[Flag]) -> bool:
    missing: Any = cls._missing_
    standard: Any = Flag._missing_
    return missing.__func__ is standard.__func__ and type(cls).__call__ is EnumType.__call__


def is_namedtuple(cls: type) -> bool:
    """Whether instances are tuples whose items have names."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def has_plain_layout(cls: type) -> bool:
    """Whether an instance stores attributes only, and nothing that a built-in base keeps inside."""
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True
