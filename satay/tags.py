"""The tagged format: JSON that remembers the types which JSON has no words for, for values without a declared type.

- A tag is an object whose first member is `"$satay"`, the kind; plain JSON data stands for itself. A user's object
  that has such a member is written as a tag too, so data that looks like a tag reads back unchanged.
- Writing proves that the text reads back equal, with equal types, or refuses and names the path.
- Reading finds classes among the imported modules only, accepts a dataclass, a pydantic model, an enum or a named
  tuple, fills it without `__init__`, `__new__`, validators or properties, and calls nothing that the text names.
- Sets are written in the order of their texts, so equal sets have equal texts in every process.
"""

import base64
import dataclasses
import functools
import json
import marshal
import math
import pathlib
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from enum import Enum, EnumType, Flag
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, TzInfo, from_json, to_json

from satay.errors import DecodeError, EncodeError, PayloadTooLargeError

TAG: Final = "$satay"
"""The member that makes an object a tag; its value is the tag's kind."""

TAG_HEAD: Final = '{"$satay":'
"""How every text begins that is a tag as a whole."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of UTF-8 that one recorded value may have."""

MAX_DEPTH: Final = 200
"""The most levels that a recorded value may be nested; a value that holds itself is deeper than any limit."""

_TOKEN: Final = '"$satay"'
_MAX_JSON_INTEGER_BITS: Final = 14_000  # Python reads and writes at most 4300 decimal digits
MARSHAL_VERSION: Final = 2  # the last version without back references and flags for interned strings
_FACTORIES: Final[dict[str, Any]] = {
    factory.__name__: factory for factory in (list, dict, set, frozenset, tuple, int, float, str, bool, bytes)
}
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_THIS_PATH: Final = type(pathlib.Path())


# --- text -------------------------------------------------------------------------------------------------------------


def json_quote(text: str) -> str:
    """`text` as a JSON string. What UTF-8 cannot hold, a lone surrogate, is escaped; so are all control characters."""
    quoted = encode_basestring(text)
    if quoted.isascii() or _is_utf8(quoted):
        return quoted
    return encode_basestring_ascii(text)


def dump_plain(data: object) -> str:
    """The JSON text of plain data, which holds no non-finite number and no lone surrogate."""
    return _JSON.encode(data)


def to_plain(text: str) -> Any:
    """Recorded text as plain JSON data, tags and all, never as a user's type. Raises `DecodeError` if it is no JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        pass  # it may still be JSON, of deeper nesting or with an escaped surrogate
    try:
        return _PLAIN_READER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"recorded text is not valid JSON: {error}") from None


def check_size(text: str, where: str) -> None:
    """Raise `PayloadTooLargeError` if `text` is longer than `MAX_PAYLOAD_BYTES`."""
    if len(text) * 4 <= MAX_PAYLOAD_BYTES:
        return
    size_bytes = len(text) if text.isascii() else len(text.encode())
    if size_bytes > MAX_PAYLOAD_BYTES:
        raise PayloadTooLargeError(
            f"{where} is {size_bytes} bytes long when written, more than the limit of {MAX_PAYLOAD_BYTES}; "
            "keep the data elsewhere and pass a reference to it"
        )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- the two ways through ---------------------------------------------------------------------------------------------


def encode_tagged(value: object, where: str) -> tuple[str, Any]:
    """The tagged text of `value`, and the equal, fresh value that it reads back as.

    Raises `EncodeError`, naming `where` and the path, for a value that does not survive; `PayloadTooLargeError`.
    """
    simple = _encode_plain(value)
    if simple is not None:
        check_size(simple[0], where)
        return simple
    try:
        text = _JSON.encode(_tag(value, 0))
        check_size(text, where)
        copy = _TAG_READER.decode(text)
        difference = find_difference(value, copy)
    except _UnencodableError as error:
        path = "$" + "".join(reversed(error.steps))
        raise EncodeError(f"{where} cannot be recorded: at {path}, {error.reason}", path=path) from None
    except RecursionError:
        raise EncodeError(f"{where} cannot be recorded: it is nested too deeply to be written from here") from None
    except _MalformedTagError as error:
        raise EncodeError(f"{where} cannot be recorded: it would not read back: {error}") from None
    if difference is not None:
        path = f"${difference}"
        raise EncodeError(f"{where} cannot be recorded: at {path}, it would not read back equal", path=path)
    return text, copy


def decode_tagged(text: str, where: str) -> Any:
    """The value that `text` records. Raises `DecodeError` for what is no JSON, an unknown tag, a class that is gone."""
    try:
        if _TOKEN not in text:
            return to_plain(text)
        return _TAG_READER.decode(text)
    except RecursionError:
        raise DecodeError(f"{where} cannot be read: it is nested too deeply to be read from here") from None
    except (_MalformedTagError, DecodeError, ValueError) as error:
        raise DecodeError(f"{where} cannot be read: {error}") from None


def _encode_plain(value: object) -> tuple[str, Any] | None:
    """Text and copy of a value that is plain JSON data through and through, else None; all of it runs at C speed.

    `marshal` refuses whatever is not exactly a built-in type, and its bytes tell `True` from `1`, a tuple from a list
    and one order of members from another. So equal bytes prove that JSON lost nothing.
    """
    try:
        original = marshal.dumps(value, MARSHAL_VERSION)  # type: ignore[arg-type]  # it refuses what it cannot take
        written = to_json(value, inf_nan_mode="null")
        copy = from_json(written)
        if marshal.dumps(copy, MARSHAL_VERSION) != original:
            return None
    except (ValueError, TypeError, RecursionError):  # PydanticSerializationError is a ValueError
        return None
    text = written.decode()
    return None if _TOKEN in text else (text, copy)


def path_step(key: object) -> str:
    """One step of a path: `.name`, or `['any other key']`."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_short(key)}]"


def _short(key: object) -> str:
    try:
        text = repr(key)
    except Exception:  # a user's __repr__; the path only loses one step's name
        text = f"<{type(key).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def forgotten_call(cls: type) -> str:
    """What ends a message about a value that is the beginning of a call instead of its result."""
    if issubclass(cls, Awaitable):
        return "; did you forget 'await'?"
    return "; did you forget to call it, with 'await'?" if issubclass(cls, Callable) else ""  # type: ignore[arg-type]  # an abstract class


class _UnencodableError(Exception):
    """Why a value cannot be written; `steps` is the path to it, innermost step first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


class _MalformedTagError(Exception):
    """A recorded tag that cannot be read here."""


# --- classes by name --------------------------------------------------------------------------------------------------


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


# --- writing ----------------------------------------------------------------------------------------------------------


def _tag(value: Any, depth: int) -> Any:
    """Plain JSON data for `value`."""
    kind: Any = type(value)
    if kind is str:
        return value if value.isascii() or _is_utf8(value) else _tag_surrogates(value)
    if kind is bool or value is None:
        return value
    if kind is int:
        return value if value.bit_length() <= _MAX_JSON_INTEGER_BITS else {TAG: "int", "hex": hex(value)}
    if depth > MAX_DEPTH:
        raise _UnencodableError(f"it is nested deeper than {MAX_DEPTH} levels, or holds itself")
    tagger = _TAGGERS.get(kind) or _find_tagger(kind)
    return tagger(value, depth + 1)


def _tag_surrogates(value: str) -> dict[str, Any]:
    return {TAG: "str", "utf8": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def _tag_float(value: float, depth: int) -> Any:
    return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}


def _tag_complex(value: complex, depth: int) -> Any:
    return {TAG: "complex", "real": _tag_float(value.real, depth), "imag": _tag_float(value.imag, depth)}


def _tag_bytes(value: bytes | bytearray, depth: int) -> Any:
    return {TAG: type(value).__name__, "base64": base64.b64encode(value).decode()}


def _tag_items(items: Iterable[Any], depth: int) -> list[Any]:
    plain: list[Any] = []
    try:
        for item in items:
            plain.append(_tag(item, depth))
    except _UnencodableError as error:
        error.steps.append(f"[{len(plain)}]")
        raise
    return plain


def _tag_pairs(value: dict[Any, Any], depth: int) -> list[list[Any]]:
    pairs: list[list[Any]] = []
    key: Any = None
    try:
        for key, item in value.items():
            pairs.append([_tag(key, depth), _tag(item, depth)])
    except _UnencodableError as error:
        error.steps.append(path_step(key))
        raise
    return pairs


def _tag_members(value: dict[str, Any], depth: int) -> dict[str, Any]:
    members = {}
    key = ""
    try:
        for key, item in value.items():
            members[key] = _tag(item, depth)
    except _UnencodableError as error:
        error.steps.append(path_step(key))
        raise
    return members


def _tag_dict(value: dict[Any, Any], depth: int) -> Any:
    if TAG not in value and all(type(key) is str and (key.isascii() or _is_utf8(key)) for key in value):
        return _tag_members(value, depth)
    return {TAG: "dict", "items": _tag_pairs(value, depth)}


def _tag_mapping(value: dict[Any, Any], depth: int) -> Any:
    return {TAG: type(value).__name__, "items": _tag_pairs(value, depth)}


def _tag_defaultdict(value: defaultdict[Any, Any], depth: int) -> Any:
    factory: Any = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and _FACTORIES.get(name) is not factory:
        raise _UnencodableError(f"a defaultdict makes its values with {factory!r}, which is not a built-in type")
    return {TAG: "defaultdict", "factory": name, "items": _tag_pairs(value, depth)}


def _tag_deque(value: deque[Any], depth: int) -> Any:
    return {TAG: "deque", "maxlen": value.maxlen, "items": _tag_items(value, depth)}


def _tag_set(value: set[Any] | frozenset[Any], depth: int) -> Any:
    return {TAG: type(value).__name__, "items": sorted(_tag_items(value, depth), key=_JSON.encode)}


def _tag_timedelta(value: timedelta, depth: int) -> Any:
    return {TAG: "timedelta", "days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}


def _tag_moment(value: datetime | time, depth: int) -> Any:
    tag: dict[str, Any] = {TAG: type(value).__name__, "value": value.replace(tzinfo=None).isoformat()}
    if value.tzinfo is not None:
        tag["zone"] = _tag_zone(value.tzinfo)
    if value.fold:
        tag["fold"] = value.fold
    return tag


def _tag_zone(zone: tzinfo) -> Any:
    """The key of a named zone; seconds, microseconds and name of a fixed offset."""
    if type(zone) is ZoneInfo and zone.key:
        return zone.key
    offset = zone.utcoffset(None) if type(zone) in (timezone, TzInfo) else None
    if offset is None:
        raise _UnencodableError(f"a time zone of type {class_name(type(zone))!r} has no recorded form; use ZoneInfo")
    tag: dict[str, Any] = {"seconds": offset.days * 86_400 + offset.seconds, "microseconds": offset.microseconds}
    name = zone.tzname(None)
    if type(zone) is timezone and name != timezone(offset).tzname(None):
        tag["name"] = name
    return tag


def _tag_path(value: pathlib.PurePath, depth: int) -> Any:
    kind = "Path" if type(value) is _THIS_PATH else type(value).__name__
    return {TAG: "path", "flavour": kind, "path": _tag(str(value), depth)}


def _tag_text_of(value: object, depth: int) -> Any:
    return {TAG: type(value).__name__, "value": str(value)}


def _tag_date(value: date, depth: int) -> Any:
    return {TAG: "date", "value": value.isoformat()}


def _tag_enum(value: Enum, depth: int) -> Any:
    return {TAG: "enum", "type": class_name(type(value)), "name": value._name_}


def _tag_flag(value: Flag, depth: int) -> Any:
    return {TAG: "flag", "type": class_name(type(value)), "value": value._value_}


def _tag_namedtuple(value: Any, depth: int) -> Any:
    if getattr(value, "__dict__", None):
        raise _UnencodableError(f"a named tuple of type {class_name(type(value))!r} has attributes beside its fields")
    fields = dict(zip(value._fields, tuple.__iter__(value), strict=True))
    return {TAG: "namedtuple", "type": class_name(type(value)), "fields": _tag_members(fields, depth)}


def _tag_dataclass(value: object, depth: int) -> Any:
    state = instance_state(value)
    return {TAG: "dataclass", "type": class_name(type(value)), "fields": _tag_members(state, depth)}


def _tag_model(value: BaseModel, depth: int) -> Any:
    tag: dict[str, Any] = {TAG: "model", "type": class_name(type(value))}
    tag["fields"] = _tag_members(_model_fields(value), depth)
    tag["set"] = sorted(value.__pydantic_fields_set__)
    if value.__pydantic_extra__ is not None:
        tag["extra"] = _tag(value.__pydantic_extra__, depth)
    if value.__pydantic_private__ is not None:
        tag["private"] = _tag(value.__pydantic_private__, depth)
    return tag


def _model_fields(value: BaseModel) -> dict[str, Any]:
    """The fields alone: a cached property stores its value beside them."""
    declared = type(value).model_fields
    return {name: item for name, item in value.__dict__.items() if name in declared}


_TAGGERS: Final[dict[type, Callable[[Any, int], Any]]] = {
    float: _tag_float,
    complex: _tag_complex,
    bytes: _tag_bytes,
    bytearray: _tag_bytes,
    list: _tag_items,
    tuple: lambda value, depth: {TAG: "tuple", "items": _tag_items(value, depth)},
    dict: _tag_dict,
    Counter: _tag_mapping,
    OrderedDict: _tag_mapping,
    defaultdict: _tag_defaultdict,
    deque: _tag_deque,
    set: _tag_set,
    frozenset: _tag_set,
    timedelta: _tag_timedelta,
    datetime: _tag_moment,
    time: _tag_moment,
    date: _tag_date,
    Decimal: _tag_text_of,
    UUID: _tag_text_of,
    _THIS_PATH: _tag_path,
    pathlib.PurePosixPath: _tag_path,
    pathlib.PureWindowsPath: _tag_path,
}


@functools.lru_cache(maxsize=1024)
def _find_tagger(cls: type) -> Callable[[Any, int], Any]:
    """How instances of a user's class are written. Raises for a class that reading could not find or fill."""
    tagger = _tagger_by_kind(cls)
    if tagger is None:
        builtin = next((base for base in cls.__mro__[1:-1] if base in _TAGGERS or base in (str, int)), None)
        subclass = f", a subclass of {builtin.__name__}," if builtin else ""
        raise _UnencodableError(
            f"a value of type {class_name(cls)!r}{subclass} has no recorded form{forgotten_call(cls)}"
        )
    if find_class(class_name(cls)) is not cls:
        raise _UnencodableError(
            f"the type {class_name(cls)!r} cannot be found again by its name; define it at the top of a module"
        )
    return tagger


def _tagger_by_kind(cls: type) -> Callable[[Any, int], Any] | None:
    if issubclass(cls, Flag):
        # Reading builds an unnamed combination through the class, which must run nobody else's code.
        return _tag_flag if _has_standard_lookup(cls) else None
    if issubclass(cls, Enum):
        return _tag_enum
    if issubclass(cls, BaseModel):
        return _tag_model
    if _is_namedtuple(cls):
        return _tag_namedtuple
    if dataclasses.is_dataclass(cls) and _has_plain_layout(cls):
        return _tag_dataclass
    return None


def _has_standard_lookup(cls: type[Flag]) -> bool:
    missing: Any = cls._missing_
    standard: Any = Flag._missing_
    return missing.__func__ is standard.__func__ and type(cls).__call__ is EnumType.__call__


def _is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def _has_plain_layout(cls: type) -> bool:
    """Whether an instance stores attributes only, and nothing that a built-in base keeps inside."""
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


# --- reading ----------------------------------------------------------------------------------------------------------


def _untag(data: dict[str, Any]) -> Any:
    """The value of one object, whose members were read already."""
    if TAG not in data:
        return data
    kind = data[TAG]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise _MalformedTagError(f"{kind!r} is not a kind of tag that may be read here")
    try:
        return reader(data)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _MalformedTagError(f"a tag of kind {kind!r} is damaged: {error!r}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_PLAIN_READER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_TAG_READER: Final = json.JSONDecoder(parse_constant=_refuse_constant, object_hook=_untag)


def _read_class(data: dict[str, Any], kind: str) -> Any:
    """The class that a tag names, once it is known to be of that kind."""
    name = data["type"]
    cls = find_class(name)
    if cls is None:
        raise _MalformedTagError(f"no imported module defines the type {name!r}")
    tagger = _tagger_by_kind(cls)
    if tagger is not _CLASS_TAGGERS[kind]:
        raise _MalformedTagError(f"the type {name!r} is not a {kind}")
    return cls


def _read_enum(data: dict[str, Any]) -> Enum:
    cls: type[Enum] = _read_class(data, "enum")
    member = cls.__members__.get(data["name"])
    if member is None:
        raise _MalformedTagError(f"the enum {data['type']!r} has no member {data['name']!r}")
    return member


def _read_flag(data: dict[str, Any]) -> Flag:
    cls: type[Flag] = _read_class(data, "flag")
    if type(data["value"]) is not int:
        raise _MalformedTagError(f"{data['value']!r} is no value of the flag {data['type']!r}")
    return cls(data["value"])


def _read_namedtuple(data: dict[str, Any]) -> Any:
    cls = _read_class(data, "namedtuple")
    fields = cls._field_defaults | data["fields"]
    if set(fields) != set(cls._fields):
        raise _MalformedTagError(_misfit(data["type"], set(cls._fields), set(fields)))
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


def _read_model(data: dict[str, Any]) -> BaseModel:
    cls: type[BaseModel] = _read_class(data, "model")
    fields: dict[str, Any] = data["fields"]
    declared = cls.model_fields
    if not fields.keys() <= declared.keys():
        raise _MalformedTagError(_misfit(data["type"], set(declared), set(fields)))
    for name in declared.keys() - fields.keys():
        fields[name] = _default_of(data["type"], name, declared[name].default)
    model = object.__new__(cls)
    state = {
        "__dict__": {name: fields[name] for name in declared},
        "__pydantic_fields_set__": set(data["set"]),
        "__pydantic_extra__": data.get("extra"),
        "__pydantic_private__": data.get("private"),
    }
    for name, item in state.items():
        object.__setattr__(model, name, item)
    return model


def _default_of(type_name: str, name: str, default: Any) -> Any:
    """The default of a field that the class has gained since. A factory is the user's code, so it is not called."""
    if default is dataclasses.MISSING or default is PydanticUndefined:
        raise _MalformedTagError(f"it was recorded before {type_name!r} had the field {name!r}, which has no default")
    return default


def _misfit(type_name: str, declared: set[str], recorded: set[str]) -> str:
    return f"{type_name!r} has the fields {sorted(declared)} now, and {sorted(recorded)} were recorded"


def _read_pairs(data: dict[str, Any]) -> dict[Any, Any]:
    return dict(data["items"])


def _read_counter(data: dict[str, Any]) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    dict.update(counter, data["items"])
    return counter


def _read_defaultdict(data: dict[str, Any]) -> defaultdict[Any, Any]:
    name = data["factory"]
    return defaultdict(None if name is None else _FACTORIES[name], data["items"])


def _read_datetime(data: dict[str, Any]) -> datetime:
    moment = datetime.fromisoformat(data["value"])
    return moment.replace(tzinfo=_read_zone(data), fold=data.get("fold", 0))


def _read_time(data: dict[str, Any]) -> time:
    moment = time.fromisoformat(data["value"])
    return moment.replace(tzinfo=_read_zone(data), fold=data.get("fold", 0))


def _read_zone(data: dict[str, Any]) -> tzinfo | None:
    zone = data.get("zone")
    if zone is None:
        return None
    if isinstance(zone, str):
        return ZoneInfo(zone)
    offset = timedelta(seconds=zone["seconds"], microseconds=zone["microseconds"])
    return timezone(offset, zone["name"]) if "name" in zone else timezone(offset)


def _read_path(data: dict[str, Any]) -> pathlib.PurePath:
    path: pathlib.PurePath = _PATHS[data["flavour"]](data["path"])
    return path


def _read_decimal(data: dict[str, Any]) -> Decimal:
    try:
        return Decimal(data["value"])
    except InvalidOperation:
        raise _MalformedTagError(f"{data['value']!r} is no decimal number") from None


_CLASS_TAGGERS: Final[dict[str, Callable[[Any, int], Any]]] = {
    "enum": _tag_enum,
    "flag": _tag_flag,
    "namedtuple": _tag_namedtuple,
    "dataclass": _tag_dataclass,
    "model": _tag_model,
}

_PATHS: Final[dict[str, Any]] = {
    "Path": pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}

_READERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "value": lambda data: data["value"],
    "str": lambda data: base64.b64decode(data["utf8"]).decode("utf-8", "surrogatepass"),
    "int": lambda data: int(data["hex"], 16),
    "float": lambda data: float(data["value"]),
    "complex": lambda data: complex(data["real"], data["imag"]),
    "bytes": lambda data: base64.b64decode(data["base64"], validate=True),
    "bytearray": lambda data: bytearray(base64.b64decode(data["base64"], validate=True)),
    "tuple": lambda data: tuple(data["items"]),
    "set": lambda data: set(data["items"]),
    "frozenset": lambda data: frozenset(data["items"]),
    "dict": _read_pairs,
    "OrderedDict": lambda data: OrderedDict(data["items"]),
    "Counter": _read_counter,
    "defaultdict": _read_defaultdict,
    "deque": lambda data: deque(data["items"], data["maxlen"]),
    "datetime": _read_datetime,
    "date": lambda data: date.fromisoformat(data["value"]),
    "time": _read_time,
    "timedelta": lambda data: timedelta(data["days"], data["seconds"], data["microseconds"]),
    "Decimal": _read_decimal,
    "UUID": lambda data: UUID(data["value"]),
    "path": _read_path,
    "enum": _read_enum,
    "flag": _read_flag,
    "namedtuple": _read_namedtuple,
    "dataclass": _read_dataclass,
    "model": _read_model,
}


# --- comparing --------------------------------------------------------------------------------------------------------


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


def _compare_defaultdict(left: defaultdict[Any, Any], right: defaultdict[Any, Any]) -> str | None:
    return _compare_dict(left, right) if left.default_factory is right.default_factory else ""


def _compare_set(left: Any, right: Any) -> str | None:
    """By type and value; what equality cannot match, NaN in a set, by its text."""
    if {(type(item), item) for item in left} == {(type(item), item) for item in right}:
        return None
    try:
        return None if _tag_set(left, 0) == _tag_set(right, 0) else ""
    except _UnencodableError:
        return ""


def _compare_moment(left: datetime | time, right: datetime | time) -> str | None:
    if left.fold != right.fold or left.replace(tzinfo=None) != right.replace(tzinfo=None):
        return ""
    if left.tzinfo is right.tzinfo:
        return None
    try:
        return None if _tag_zone_of(left) == _tag_zone_of(right) else ""
    except _UnencodableError:
        return ""


def _tag_zone_of(value: datetime | time) -> Any:
    return None if value.tzinfo is None else _tag_zone(value.tzinfo)


def _compare_model(left: BaseModel, right: BaseModel) -> str | None:
    if left.__pydantic_fields_set__ != right.__pydantic_fields_set__:
        return ""
    for ours, theirs in (
        (_model_fields(left), _model_fields(right)),
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
    OrderedDict: _compare_dict,
    Counter: _compare_dict,
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
    if issubclass(cls, BaseModel):
        return _compare_model
    if _is_namedtuple(cls):
        return _compare_items
    compares_by_identity = cls.__eq__ is object.__eq__
    if compares_by_identity or dataclasses.is_dataclass(cls):
        return _compare_state if _has_plain_layout(cls) else _compare_equal
    return _compare_equal
