"""Classes by name, and the state of their instances.

- Classes are found among the imported modules only, and nothing that a name leads past is called.
- Instances are read and filled past every property, `__setattr__` and `__init__`.
"""

import functools
import sys
import types
from enum import EnumType, Flag
from typing import Any, Final

from pydantic import BaseModel


def class_name(cls: type) -> str:
    """`module:qualname`, the name under which `find_class` finds a class again."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: str) -> type | None:
    """The class of that `module:qualname` if its module is imported, else None. Runs no code of the module."""
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    if not issubclass(type(module), types.ModuleType):
        return None
    # Past any __getattr__, of the module or of a lazy loader, that would import something.
    namespace: Any = object.__getattribute__(module, "__dict__")
    plain_name, bracket, _ = qualname.partition("[")
    found: Any = None
    for part in plain_name.split("."):
        found = namespace.get(part)
        if not issubclass(type(found), type):  # isinstance would ask a lazy proxy for its __class__
            return None
        namespace = type.__dict__["__dict__"].__get__(found)
    if found.__qualname__ != plain_name:
        return None
    cls: type = found
    return _find_parametrized(cls, qualname) if bracket else cls


def _find_parametrized(origin: type, qualname: str) -> type | None:
    """The class that pydantic made for `Box[int]`, which is in no module, if exactly one such has been declared."""
    subclasses: list[type] = type.__subclasses__(origin)
    made = [cls for cls in subclasses if cls.__qualname__ == qualname]
    return made[0] if len(made) == 1 and issubclass(origin, BaseModel) else None


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


def model_fields_of(value: BaseModel) -> dict[str, Any]:
    """The fields alone: a cached property stores its value beside them."""
    declared = type(value).model_fields
    return {name: item for name, item in value.__dict__.items() if name in declared}


def is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def has_plain_layout(cls: type) -> bool:
    """Whether an instance stores attributes only, and nothing that a built-in base keeps inside."""
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def has_standard_lookup(cls: type[Flag]) -> bool:
    missing: Any = cls._missing_
    standard: Any = Flag._missing_
    return missing.__func__ is standard.__func__ and type(cls).__call__ is EnumType.__call__


FACTORIES: Final[dict[str, Any]] = {
    factory.__name__: factory for factory in (list, dict, set, frozenset, tuple, int, float, str, bool, bytes)
}
