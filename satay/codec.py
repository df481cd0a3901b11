"""Values to recorded text and back: by the declared annotation where there is one, else in the tagged format.

- Whatever is written was read back first and found equal. So reading never raises what writing did not, and the copy
  that the workflow is handed on the first pass is the one that a replay hands over.
- The declared type decides: a `StrEnum` in a `list[str]` reads back as the `str` that was promised. Where the
  declaration leaves room (`Any`, a union, a bare `dict`), types are kept exactly, in the tagged format if need be.
- What JSON has a form for may be given in that form: a date as text, a model as a dict. But no scalar becomes another
  one: `"4"` and `True` are no int, `b"x"` is no str. Only an int is a float, if there is a float that equals it.
- Validators and defaults are the user's code: they work on a copy, never on what the caller holds, and draw no chance.
- Fields are written by name, never by alias, so aliases need not be symmetric.
- Pickle is read only by a codec that was made for it and told so.
"""

import base64
import copy as copying
import functools
import inspect
import marshal
import operator
import pickle
import types
import typing
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import date, datetime
from decimal import Decimal
from inspect import Parameter
from typing import Any, Final
from uuid import UUID

import cloudpickle  # type: ignore[import-untyped]  # it has no types
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, SchemaError, to_json

from satay.errors import CodecError, DecodeError, EncodeError, InvalidValueError, PickleNotAllowedError, UsageError
from satay.model import MISSING
from satay.tags import (
    MARSHAL_VERSION,
    MAX_PAYLOAD_BYTES,
    TAG_HEAD,
    check_size,
    decode_tagged,
    dump_plain,
    encode_tagged,
    find_difference,
    forgotten_call,
    instance_state,
    json_quote,
    path_step,
    to_plain,
)

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "InputCodec",
    "PickleCodec",
    "ValueCodec",
    "input_codec",
    "is_encoding",
    "json_quote",
    "pickle_codec",
    "result_codec",
    "to_plain",
    "value_codec",
]


# --- values -----------------------------------------------------------------------------------------------------------

_Path = tuple[int | str, ...]
"""The way to a part of a value: names of fields, and positions in lists and mappings."""

_encoding: ContextVar[bool] = ContextVar("satay_encoding", default=False)


def is_encoding() -> bool:
    """Whether the user's validators and defaults are being run to record a value, which a replay does not do."""
    return _encoding.get()


class ValueCodec:
    """Writes values of one declared type as JSON text and reads them back. This one is for values of no declared type.

    `where` is a phrase for messages, such as `"the result of task 'fetch'"`.
    """

    __slots__ = ()

    def encode(self, value: object, where: str) -> str:
        """The text that records `value`.

        Raises `EncodeError`, which names `where` and the path, if the value does not fit the declared type or would
        not read back equal, and `PayloadTooLargeError` above `MAX_PAYLOAD_BYTES`.
        """
        return self.encode_and_decode(value, where)[0]

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        """The text, and the copy it reads back as, which shares nothing mutable with `value`. Raises as `encode`."""
        return encode_tagged(value, where)

    def decode(self, text: str, where: str) -> Any:
        """The value that `text` records, built afresh. Raises `DecodeError` if it does not fit the declared type."""
        return decode_tagged(text, where)

    def decode_data(self, data: object, where: str) -> Any:
        """`decode` for recorded text that `to_plain` has parsed already."""
        return self.decode(_dump_data(data), where)


def value_codec(annotation: object) -> ValueCodec:
    """The codec for values declared as `annotation`; `Parameter.empty` or `MISSING` stands for none. Cached.

    An annotation that pydantic makes no sense of counts as none.
    """
    try:
        return _cached_value_codec(annotation)
    except TypeError:  # not hashable: Annotated[int, {"unit": "m"}]
        return _make_value_codec(annotation)


def _make_value_codec(annotation: Any) -> ValueCodec:
    if annotation is None or annotation is types.NoneType:
        return _NoneCodec()
    scalar = _SCALAR_CODECS.get(annotation) if isinstance(annotation, type) else None
    if scalar is not None:
        return scalar()
    if _is_loose(annotation):
        return _UNTYPED
    try:
        return _TypedCodec(TypeAdapter(annotation))
    except (PydanticUserError, SchemaError, NameError, TypeError):
        return _UNTYPED


_cached_value_codec = functools.lru_cache(maxsize=4096, typed=True)(_make_value_codec)


class _TypedCodec(ValueCodec):
    """By pydantic, in its JSON form; what that form loses goes into the tagged format.

    So do sets, whose order in the JSON form differs from process to process: equal arguments must have equal texts.
    """

    __slots__ = (
        "_converts_itself",
        "_has_models",
        "_has_sets",
        "_is_same",
        "_read",
        "_runs_code",
        "_validate",
        "_write",
    )

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._write = adapter.serializer.to_json
        self._read = adapter.validator.validate_json
        self._validate = adapter.validator.validate_python
        nodes = list(_schema_nodes(adapter.core_schema))
        kinds = {node["type"] for node in nodes}
        self._is_same = _comparison(nodes)
        self._has_sets = bool(kinds & {"set", "frozenset"})
        self._has_models = "model" in kinds
        self._converts_itself = any(kind.startswith("function-") for kind in kinds)
        self._runs_code = self._converts_itself or bool(kinds & _OBJECTS)

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        if hasattr(type(value), "__next__"):
            raise _one_shot("$", where)
        if not self._runs_code:
            return self._encode(value, where)
        token = _encoding.set(True)
        try:
            return self._encode(value, where)
        finally:
            _encoding.reset(token)

    def decode(self, text: str, where: str) -> Any:
        if text.startswith(_PARTIAL_HEAD):
            return self._decode_partial(text, where)
        if text.startswith(TAG_HEAD):
            return decode_tagged(text, where)
        try:
            return self._read(text, by_alias=False, by_name=True)
        except ValidationError as error:
            path, reason = _condense(error.errors(include_url=False, include_context=False))
            message = f"{where} does not fit the type that the code declares now: at {path}, {reason}"
            raise DecodeError(message) from None

    def _decode_partial(self, text: str, where: str) -> Any:
        data = to_plain(text)
        try:
            recorded, fields_set = data["value"], {tuple(path): set(names) for path, names in data["set"]}
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"{where} cannot be read: its record of fields that were given is damaged") from error
        copy = self.decode(_dump_data(recorded), where)
        _restore_fields_set(copy, fields_set)
        return copy

    def _encode(self, value: object, where: str) -> tuple[str, Any]:
        pair = self._encode_declared(value)
        if pair is None:
            pair = self._encode_otherwise(value, where)
        check_size(pair[0], where)
        return pair

    def _encode_declared(self, value: object) -> tuple[str, Any] | None:
        """In the form of the declared type, None if that does not bring back the same value."""
        if self._has_sets:
            return None
        try:
            written = self._write(value, by_alias=False, round_trip=True, warnings=False)
            copy = self._read(written, strict=True, by_alias=False, by_name=True)
            text = written.decode()
            if text.startswith(TAG_HEAD):
                return None
            if self._has_models and written != self._write(
                value, by_alias=False, round_trip=True, warnings=False, exclude_unset=True
            ):
                fields_set = _find_fields_set(value)
                _restore_fields_set(copy, fields_set)
                listed = [[path, sorted(names)] for path, names in fields_set.items()]
                text = f'{_PARTIAL_HEAD}{dump_plain(listed)},"value":{text}}}'
            is_same = self._is_same(value, copy)
        except Exception:  # a user's serializer, validator or __eq__, or pydantic: the other form says what is wrong
            return None
        return (text, copy) if is_same else None

    def _encode_otherwise(self, value: object, where: str) -> tuple[str, Any]:
        """As the declared type if the value only has to be converted to it, else in the tagged format."""
        fitted = self._fit(value, where)
        if fitted is not value:
            pair = self._encode_declared(fitted)
            if pair is not None:
                return pair
        text, copy = encode_tagged(fitted, where)
        if not text.startswith(TAG_HEAD):
            text = f'{TAG_HEAD}"value","value":{text}}}'
        return text, copy

    def _fit(self, value: object, where: str) -> object:
        """`value` as the declared type has it: a dict becomes the model that it spells, by alias or by name.

        What JSON has a form for may come in that form. But no scalar is converted to another one: `"4"` is no int.
        """
        try:
            one_shot = _find_iterator(value)
            if one_shot is not None:
                raise _one_shot(f"${one_shot}", where)
            own = _detach(value)
            fitted = self._validate(own, by_alias=True, by_name=True)
        except EncodeError:
            raise
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            if all(detail["type"] in _HARMLESS_ERRORS for detail in details):
                return value
            raise _misfit(details, where) from None
        except RecursionError:
            raise EncodeError(f"{where} cannot be recorded: it is nested too deeply, or holds itself") from None
        except UsageError as error:
            raise EncodeError(f"{where} cannot be recorded: {error}") from error
        except Exception as error:  # a user's validator
            raise EncodeError(f"{where} does not fit its declared type: {error!r}") from error
        if _may_convert(value, fitted):
            self._refuse_conversion(value, where)
        if not self._converts_itself:
            _refuse_loss(value, fitted, where)
        return fitted

    def _refuse_conversion(self, value: object, where: str) -> None:
        """Raise `EncodeError` if a scalar was converted because of the declared type, and not by a user's validator."""
        try:
            self._read(to_json(value), strict=True, by_alias=True, by_name=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            conversions = [detail for detail in details if detail["type"] in _CONVERSION_ERRORS]
            if conversions:
                raise _misfit(conversions, where) from None
        except Exception:  # a user's validator, or a value with no JSON form of its own, which was no scalar then
            return


def _misfit(details: Sequence[ErrorDetails], where: str) -> EncodeError:
    path, reason = _condense(details)
    return EncodeError(f"{where} does not fit its declared type: at {path}, {reason}", path=path)


def _one_shot(path: str, where: str) -> EncodeError:
    reason = "an iterator can be read once only; pass list(...)"
    return EncodeError(f"{where} cannot be recorded: at {path}, {reason}", path=path)


def _find_iterator(value: Any) -> str | None:
    """The path to an iterator in `value`, None if there is none: writing it may have exhausted it already."""
    kind = type(value)
    if kind in _IMMUTABLE_TYPES:
        return None
    if hasattr(kind, "__next__"):
        return ""
    for step, item in _parts(value):
        path = _find_iterator(item)
        if path is not None:
            return f"{path_step(step)}{path}"
    return None


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a container or an object holds, each with the key, position or field name that leads there."""
    if isinstance(value, list | tuple | set | frozenset | deque):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, BaseModel):
        yield from value.__dict__.items()
        yield from (value.__pydantic_extra__ or {}).items()
    elif is_dataclass(type(value)):
        yield from instance_state(value).items()


def _detach(value: Any) -> Any:
    """A copy for the user's validators, which may change what they are given."""
    kind = type(value)
    if kind in _IMMUTABLE_TYPES:
        return value
    if kind is dict:
        return {_detach(key): _detach(item) for key, item in value.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(map(_detach, value))
    try:
        return copying.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # a lock, a file, a coroutine: there is no second one, and what to say of it is not said here
        return value


def _find_fields_set(value: Any) -> dict[_Path, set[str]]:
    """The fields that were given to each model in `value`, where those are not all, by the way to the model."""
    return {
        path: model.__pydantic_fields_set__
        for path, model in _find_models(value).items()
        if model.__pydantic_fields_set__ != _field_names(model)
    }


def _restore_fields_set(copy: Any, fields_set: Mapping[_Path, set[str]]) -> None:
    """Mark as given what `_find_fields_set` found. What the type of `copy` has lost since then is passed over."""
    models = _find_models(copy)
    for path, names in fields_set.items():
        model = models.get(path)
        if model is not None:
            object.__setattr__(model, "__pydantic_fields_set__", _field_names(model) & names)


def _field_names(model: BaseModel) -> set[str]:
    return vars(model).keys() | (model.__pydantic_extra__ or {}).keys()


def _find_models(value: Any) -> dict[_Path, BaseModel]:
    """Every model in `value`, itself included, by the way to it. A member of a mapping is told by its position."""
    models: dict[_Path, BaseModel] = {}
    _collect_models(value, (), models)
    return models


def _collect_models(value: Any, path: _Path, models: dict[_Path, BaseModel]) -> None:
    if isinstance(value, BaseModel):
        models[path] = value
    are_keys = isinstance(value, Mapping)
    for position, (step, item) in enumerate(_parts(value)):
        if type(item) not in _IMMUTABLE_TYPES:
            _collect_models(item, (*path, position if are_keys else step), models)


def _refuse_loss(value: Any, fitted: Any, where: str) -> None:
    """Raise `EncodeError` for a conversion that JSON has no sign of: between bytes and text, and a rounded int."""
    loss = _find_loss(value, fitted)
    if loss is not None:
        path = f"${loss[0]}"
        raise EncodeError(f"{where} does not fit its declared type: at {path}, {loss[1]}", path=path)


def _find_loss(value: Any, fitted: Any) -> tuple[str, str] | None:
    """The path to the first such conversion, and the sentence that says what is wrong."""
    match value, fitted:
        case int(), float():
            return ("", "no float equals this int") if value != fitted else None
        case (bytes() | bytearray(), str()) | (str(), bytes() | bytearray()):
            return "", f"Input should be a valid {type(fitted).__name__}, not {type(value).__name__}"
        case _:
            pass
    for step, ours, theirs in _pair_parts(value, fitted):
        loss = _find_loss(ours, theirs)
        if loss is not None:
            return f"{path_step(step)}{loss[0]}", loss[1]
    return None


def _pair_parts(value: Any, fitted: Any) -> Iterator[tuple[Any, Any, Any]]:
    """What `value` holds, each with the step to it and with what has become of it in `fitted`."""
    match value, fitted:
        case dict(), dict() if len(value) == len(fitted):
            for (key, item), (other_key, other) in zip(value.items(), fitted.items(), strict=True):
                yield key, key, other_key
                yield key, item, other
        case dict(), BaseModel():
            for name, field in type(fitted).model_fields.items():
                for key in (name, field.alias, field.validation_alias):
                    if isinstance(key, str) and key in value:
                        yield key, value[key], vars(fitted)[name]
        case dict(), _ if is_dataclass(type(fitted)):
            yield from ((name, value[name], item) for name, item in instance_state(fitted).items() if name in value)
        case list() | tuple() | deque(), list() | tuple() | deque():
            yield from ((index, *pair) for index, pair in enumerate(zip(value, fitted, strict=False)))
        case list() | tuple() | set() | frozenset(), set() | frozenset():
            for index, item in enumerate(value):
                if type(item) in (str, bytes, int) and item not in fitted:
                    yield from ((index, item, other) for other in fitted if type(other) in (str, bytes, float))
        case _:
            return


def _may_convert(value: Any, fitted: Any) -> bool:
    """Whether a scalar in `value` may have become one of another type in `fitted`. An int for a float is none."""
    kind = type(fitted)
    if value is fitted or kind in _SCALAR_CODECS:
        is_scalar = type(value) in _SCALAR_CODECS and type(value) is not kind
        return is_scalar and (type(value), kind) != (int, float)
    match value, fitted:
        case dict(), dict():
            return any(key not in value or _may_convert(value[key], item) for key, item in fitted.items())
        case list() | tuple() | set() | frozenset(), set() | frozenset():
            return not {type(item) for item in fitted} <= {type(item) for item in value}
        case list() | tuple() | deque(), list() | tuple() | deque():
            return any(map(_may_convert, value, fitted))
        case _:
            return isinstance(value, dict | list | tuple | set | frozenset)


_HARMLESS_ERRORS: Final = frozenset({"string_unicode"})
"""What pydantic refuses and the tagged format can hold: text with lone surrogates."""

_CONVERSION_ERRORS: Final = frozenset({"int_type", "float_type", "bool_type", "string_type"})
"""What pydantic says of a scalar of another type when it may not convert it."""

_IMMUTABLE_TYPES: Final = frozenset({type(None), bool, int, float, complex, str, bytes, date, datetime, Decimal, UUID})
"""The common types of which no copy needs to be made."""

_PARTIAL_HEAD: Final = f'{TAG_HEAD}"value","set":'
"""How the text begins of a value of a declared type that holds models which were not given all their fields."""

_UNTYPED: Final = ValueCodec()


# --- scalars, the quick way -------------------------------------------------------------------------------------------


@functools.cache
def _typed_codec(annotation: Any) -> _TypedCodec:
    return _TypedCodec(TypeAdapter(annotation))


class _ScalarCodec(ValueCodec):
    """The exact type goes the quick way, and everything else the way of any declared type."""

    __slots__ = ()
    kind: Any = None

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        return _typed_codec(self.kind).encode_and_decode(value, where)

    def decode(self, text: str, where: str) -> Any:
        return _typed_codec(self.kind).decode(text, where)

    def decode_data(self, data: object, where: str) -> Any:
        return data if type(data) is self.kind else super().decode_data(data, where)


class _IntCodec(_ScalarCodec):
    __slots__ = ()
    kind = int

    def encode(self, value: object, where: str) -> str:
        if type(value) is int and -_BIG < value < _BIG:
            return repr(value)
        return super().encode(value, where)

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        if type(value) is int and -_BIG < value < _BIG:
            return repr(value), value
        return super().encode_and_decode(value, where)

    def decode(self, text: str, where: str) -> Any:
        try:
            return int(text)
        except ValueError:
            return super().decode(text, where)


class _FloatCodec(_ScalarCodec):
    __slots__ = ()
    kind = float

    def encode(self, value: object, where: str) -> str:
        if type(value) is float and -_INFINITY < value < _INFINITY:
            return repr(value)
        return self.encode_and_decode(value, where)[0]

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        if type(value) is float and -_INFINITY < value < _INFINITY:
            return repr(value), value
        if type(value) is int and -_BIG_FLOAT < value < _BIG_FLOAT:
            return f"{value}.0", float(value)
        return super().encode_and_decode(value, where)

    def decode(self, text: str, where: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return super().decode(text, where)


class _StrCodec(_ScalarCodec):
    __slots__ = ()
    kind = str

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        if type(value) is not str or not value.isascii() or len(value) > _SHORT_TEXT:
            return super().encode_and_decode(value, where)
        return json_quote(value), value

    def decode(self, text: str, where: str) -> Any:
        if text[:1] == '"' and text[-1:] == '"' and "\\" not in text:
            return text[1:-1]
        return super().decode(text, where)


class _BoolCodec(_ScalarCodec):
    __slots__ = ()
    kind = bool

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        if value is True:
            return "true", True
        if value is False:
            return "false", False
        return super().encode_and_decode(value, where)

    def decode(self, text: str, where: str) -> Any:
        if text == "true":
            return True
        return False if text == "false" else super().decode(text, where)


class _NoneCodec(_ScalarCodec):
    __slots__ = ()
    kind = types.NoneType

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        return ("null", None) if value is None else super().encode_and_decode(value, where)

    def decode(self, text: str, where: str) -> Any:
        return None if text == "null" else super().decode(text, where)


_BIG: Final = 2**63
_BIG_FLOAT: Final = 2**53  # below it, every int is a float
_INFINITY: Final = float("inf")
_SHORT_TEXT: Final = MAX_PAYLOAD_BYTES // 8  # even if every character is written as six, it is below the limit
_SCALAR_CODECS: Final[dict[object, type[_ScalarCodec]]] = {
    int: _IntCodec,
    float: _FloatCodec,
    str: _StrCodec,
    bool: _BoolCodec,
}


# --- what an annotation promises --------------------------------------------------------------------------------------

_LOOSE_TYPES: Final = (
    Any,
    object,
    Parameter.empty,
    MISSING,
    dict,
    list,
    tuple,
    set,
    frozenset,
    typing.Dict,  # noqa: UP006  # the bare old spelling is as loose as the new one
    typing.List,  # noqa: UP006
    typing.Tuple,  # noqa: UP006
    typing.Set,  # noqa: UP006
    typing.FrozenSet,  # noqa: UP006
)

_EXACT_SCHEMAS: Final = frozenset(
    {"none", "bool", "int", "float", "str", "bytes", "date", "timedelta", "uuid", "decimal", "enum", "nullable"}
    | {"list", "tuple", "dict", "default", "definitions", "definition-ref"}
    | {"typed-dict", "typed-dict-field", "model", "model-fields", "model-field"}
    | {"dataclass", "dataclass-args", "dataclass-field"}
)
"""Kinds of pydantic schema that leave one type for each place, so that `==` is enough to prove a round trip."""

_NUMBERS: Final = frozenset({"bool", "int", "float"})
_OBJECTS: Final = frozenset({"model", "dataclass"})
_NO_SCHEMAS: Final = frozenset({"metadata", "default", "config", "cls", "members", "ref"})


def _is_loose(annotation: object) -> bool:
    """Whether the annotation leaves the type of some part open, so that only a tag can tell it."""
    if any(annotation is loose for loose in _LOOSE_TYPES):
        return True
    inner = getattr(annotation, "__value__", None)  # what a `type` statement names
    if inner is not None and not isinstance(annotation, type):
        return _is_loose(inner)
    return any(_is_loose(argument) for argument in typing.get_args(annotation))


def _comparison(nodes: Sequence[Mapping[str, Any]]) -> Callable[[Any, Any], bool]:
    """The quickest way to prove that a value of a schema was read back as it was."""
    kinds = {node["type"] for node in nodes}
    if not all(_is_exact_node(node) for node in nodes):
        return lambda value, copy: find_difference(value, copy) is None
    if kinds & _NUMBERS and not kinds & _OBJECTS:
        return _is_same_data
    return operator.eq


def _is_same_data(value: Any, copy: Any) -> bool:
    """`True == 1 == 1.0`, and pydantic writes the one for the other; the bytes of `marshal` tell them apart.

    It refuses what is of no built-in type, such as an `IntEnum` for an int: there the declared type decides.
    """
    if copy != value:
        return False
    try:
        return marshal.dumps(copy, MARSHAL_VERSION) == marshal.dumps(value, MARSHAL_VERSION)
    except ValueError:
        return True


def _is_exact_node(node: Mapping[str, Any]) -> bool:
    if node["type"] not in _EXACT_SCHEMAS or "serialization" in node:
        return False
    if node["type"] == "model":
        return bool(node["cls"].__eq__ is BaseModel.__eq__)
    if node["type"] == "dataclass":
        return _has_generated_equality(node["cls"])
    return True


def _has_generated_equality(cls: type) -> bool:
    """Whether `==` is the one that `dataclass` wrote, which it compiles from a string, and compares every field."""
    code = getattr(vars(cls).get("__eq__"), "__code__", None)
    return code is not None and code.co_filename == "<string>" and all(f.compare for f in dataclass_fields(cls))


def _schema_nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """Every schema inside a pydantic schema, itself included."""
    if isinstance(schema, list | tuple):
        for item in schema:
            yield from _schema_nodes(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
            parts = [part for name, part in schema.items() if name not in _NO_SCHEMAS]
        else:
            parts = list(schema.values())  # fields by name
        yield from _schema_nodes(parts)


def _condense(details: Sequence[ErrorDetails]) -> tuple[str, str]:
    """Where a value failed first, and the sentence that says why."""
    first = details[0]
    path = "$" + "".join(map(path_step, first["loc"]))
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    kind = type(first["input"])
    given = f", not {kind.__name__}" if first["type"] in _CONVERSION_ERRORS else ""
    return path, first["msg"] + given + more + forgotten_call(kind)


def _dump_data(data: object) -> str:
    try:
        return to_json(data).decode()
    except (PydanticSerializationError, ValueError):
        return dump_plain(data)


# --- inputs -----------------------------------------------------------------------------------------------------------


class InputCodec:
    """Writes the arguments of one function as a JSON object by parameter name, and reads them back as a call.

    Each parameter goes by its own annotation. `*rest` and `**options` are members of those names, stars included.
    Defaults that were not passed are not recorded. Hints are resolved at the first use, when every name in the module
    is there; a hint that cannot be resolved counts as none.
    """

    __slots__ = ("_fn", "_plan")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._plan: _CallPlan | None = None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> str:
        """The text that records the call.

        Raises `InvalidValueError` where Python would raise `TypeError` for the call, and `EncodeError`, naming the
        parameter and the path, for an argument that does not fit its annotation or cannot be recorded.
        """
        return self.encode_and_decode(args, kwargs, where)[0]

    def encode_and_decode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The text, and the arguments that it reads back as. Raises as `encode`."""
        plan = self._plan or self._prepare()
        if not kwargs and plan.fewest <= len(args) <= plan.most:
            try:
                return self._encode_positional(plan, args, where)
            except CodecError:
                pass  # the long way round says which parameter it is
        bound = plan.bind(args, kwargs, where)
        members: list[str] = []
        copies: dict[str, Any] = {}
        for parameter in plan.parameters:
            name = parameter.name
            if name in bound:
                text, copies[name] = parameter.encode(bound[name], where)
                members.append(parameter.head + text)
        text = "{" + ",".join(members) + "}"
        if len(members) > 1:
            check_size(text, where)
        return text, *plan.spread(copies)

    def decode(self, text: str, where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh arguments for the recorded call. Raises `DecodeError` if they do not fit the function as it is now."""
        plan = self._plan or self._prepare()
        members = to_plain(text)
        if not isinstance(members, dict):
            raise DecodeError(f"{where} does not record a call: it is not an object with one member for each parameter")
        values = {
            parameter.name: parameter.decode(members.pop(parameter.label), where)
            for parameter in plan.parameters
            if parameter.label in members
        }
        absent = sorted(plan.required - values.keys())
        if members or absent:
            raise DecodeError(f"{where} does not fit the function now: {_mismatch(sorted(members), absent)}")
        return plan.spread(values)

    def _encode_positional(
        self, plan: "_CallPlan", args: tuple[Any, ...], where: str
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The common call, that passes everything by position, at half the price."""
        members: list[str] = []
        copies: list[Any] = []
        for parameter, value in zip(plan.parameters, args, strict=False):
            text, copy = parameter.codec.encode_and_decode(value, where)
            members.append(parameter.head + text)
            copies.append(copy)
        text = "{" + ",".join(members) + "}"
        if len(members) > 1:
            check_size(text, where)
        return text, tuple(copies), {}

    def _prepare(self) -> "_CallPlan":
        self._plan = _CallPlan(self._fn)
        return self._plan


class _CallPlan:
    """The parameters of a function, sorted for quick binding.

    From `fewest` to `most` arguments by position, and nothing else, make a call that needs no binding at all.
    """

    __slots__ = ("_is_fixed", "_keywords", "_positional", "_signature", "fewest", "most", "parameters", "required")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._signature = inspect.signature(fn)
        hints = resolve_hints(fn)
        declared = list(self._signature.parameters.values())
        self.parameters = [_make_parameter(item, value_codec(hints.get(item.name, MISSING))) for item in declared]
        self.required = frozenset(p.name for p in declared if p.default is Parameter.empty and p.kind not in _VARIADIC)
        self._positional = tuple(p.name for p in declared if p.kind in _POSITIONAL)
        self._keywords = frozenset(p.name for p in declared if p.kind in _BY_KEYWORD)
        self._is_fixed = not any(p.kind in _VARIADIC for p in declared)
        self.fewest = len(self.required)
        self.most = len(self._positional) if self.required <= set(self._positional) else -1

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """The arguments by parameter, without defaults. `Signature.bind` is ten times slower, so it gets the rest."""
        if self._is_fixed and len(args) <= len(self._positional):
            bound = dict(zip(self._positional, args, strict=False))
            if kwargs:
                bound.update((name, value) for name, value in kwargs.items() if name in self._keywords)
            if len(bound) == len(args) + len(kwargs) and self.required <= bound.keys():
                return bound
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidValueError(f"{where} does not fit the function: {error}") from None

    def spread(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call that passes `values`: by position as far as there is no gap, then by keyword."""
        if self._is_fixed and len(values) == len(self._positional) and self._positional == tuple(values):
            return tuple(values.values()), {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name not in values:
                continue
            value = values[parameter.name]
            match parameter.kind:
                case Parameter.VAR_POSITIONAL:
                    args.extend(value)
                case Parameter.VAR_KEYWORD:
                    kwargs.update(value)
                case Parameter.KEYWORD_ONLY:
                    kwargs[parameter.name] = value
                case _ if len(args) < len(self._positional) and self._positional[len(args)] == parameter.name:
                    args.append(value)
                case _:
                    kwargs[parameter.name] = value
        return tuple(args), kwargs


class _Parameter:
    """One parameter, and how its argument is written."""

    __slots__ = ("codec", "head", "kind", "label", "name")

    def __init__(self, declared: Parameter, codec: ValueCodec) -> None:
        self.codec = codec
        self.name = declared.name
        self.kind = declared.kind
        self.label = _STARS.get(declared.kind, "") + declared.name
        self.head = f"{json_quote(self.label)}:"

    def encode(self, value: Any, where: str) -> tuple[str, Any]:
        try:
            return self.codec.encode_and_decode(value, where)
        except CodecError:
            # Building the phrase for every argument would cost more than writing most of them.
            return self.codec.encode_and_decode(value, self._phrase(where))

    def decode(self, data: Any, where: str) -> Any:
        try:
            return self.codec.decode_data(data, where)
        except CodecError:
            return self.codec.decode_data(data, self._phrase(where))

    def _phrase(self, where: str) -> str:
        return f"argument {self.label!r} of {where}"


class _RestParameter(_Parameter):
    """`*rest`: a JSON array."""

    __slots__ = ()

    def encode(self, value: Any, where: str) -> tuple[str, Any]:
        pairs = [super(_RestParameter, self).encode(item, where) for item in value]
        return "[" + ",".join(text for text, _ in pairs) + "]", tuple(copy for _, copy in pairs)

    def decode(self, data: Any, where: str) -> Any:
        if not isinstance(data, list):
            raise DecodeError(f"{self._phrase(where)} is recorded as something else than an array")
        return tuple(super(_RestParameter, self).decode(item, where) for item in data)


class _OptionsParameter(_Parameter):
    """`**options`: a JSON object."""

    __slots__ = ()

    def encode(self, value: Any, where: str) -> tuple[str, Any]:
        pairs = {name: super(_OptionsParameter, self).encode(item, where) for name, item in value.items()}
        text = "{" + ",".join(f"{json_quote(name)}:{text}" for name, (text, _) in pairs.items()) + "}"
        return text, {name: copy for name, (_, copy) in pairs.items()}

    def decode(self, data: Any, where: str) -> Any:
        if not isinstance(data, dict):
            raise DecodeError(f"{self._phrase(where)} is recorded as something else than an object")
        return {name: super(_OptionsParameter, self).decode(item, where) for name, item in data.items()}


_VARIADIC: Final = frozenset({Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD})
_POSITIONAL: Final = frozenset({Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD})
_BY_KEYWORD: Final = frozenset({Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD})
_STARS: Final[dict[object, str]] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def _make_parameter(declared: Parameter, codec: ValueCodec) -> _Parameter:
    match declared.kind:
        case Parameter.VAR_POSITIONAL:
            return _RestParameter(declared, codec)
        case Parameter.VAR_KEYWORD:
            return _OptionsParameter(declared, codec)
        case _:
            return _Parameter(declared, codec)


def _mismatch(unknown: list[str], absent: list[str]) -> str:
    phrases = []
    if unknown:
        phrases.append(f"it takes no parameter named {', '.join(map(repr, unknown))}")
    if absent:
        phrases.append(f"nothing was recorded for {', '.join(map(repr, absent))}")
    return "; ".join(phrases)


def input_codec(fn: Callable[..., Any]) -> InputCodec:
    """The codec for the arguments of `fn`."""
    return InputCodec(fn)


def result_codec(fn: Callable[..., Any]) -> ValueCodec:
    """The codec for what `fn` returns. Call it at the first use of `fn`: a hint may name what is defined after it."""
    return value_codec(resolve_hints(fn).get("return", MISSING))


def resolve_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of `fn` with their extras, without those that cannot be resolved."""
    target = inspect.unwrap(fn)
    annotations: dict[str, Any] = getattr(target, "__annotations__", {})
    namespace: dict[str, Any] = getattr(target, "__globals__", {})
    hints = _resolve(annotations, namespace)
    if hints is not None:
        return hints
    single = [_resolve({name: annotation}, namespace) for name, annotation in annotations.items()]
    return {name: hint for resolved in single if resolved for name, hint in resolved.items()}


def _resolve(annotations: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any] | None:
    try:
        holder = types.SimpleNamespace(__annotations__=annotations)
        return typing.get_type_hints(holder, namespace, include_extras=True)
    except Exception:  # a hint is the user's code, and may name what exists for type checkers only
        return None


# --- pickle -----------------------------------------------------------------------------------------------------------


class PickleCodec(ValueCodec):
    """For values that have no better form: cloudpickle, marked as such. Reads only with `allow_pickle`,
    which a codec is made with, or told at the call.
    """

    __slots__ = ("_allow_pickle",)

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle

    def encode(self, value: object, where: str) -> str:
        try:
            data = cloudpickle.dumps(value)
        except Exception as error:  # the value's own code runs, and refuses in its own words
            raise EncodeError(f"{where} cannot be pickled: {error!r}") from error
        text = f'{_PICKLE_HEAD}{base64.b64encode(data).decode()}"}}'
        check_size(text, where)
        return text

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        # What this process has written a moment ago needs no permission to be read.
        text = self.encode(value, where)
        try:
            return text, self.decode(text, where, allow_pickle=True)
        except DecodeError as error:
            raise EncodeError(f"{where} cannot be recorded: {error}") from error

    def decode(self, text: str, where: str, *, allow_pickle: bool = False) -> Any:
        if not text.startswith(_PICKLE_HEAD):
            return decode_tagged(text, where)
        if not (allow_pickle or self._allow_pickle):
            raise PickleNotAllowedError(f"{where} is a pickle and is not read: {_NOT_ALLOWED}")
        try:
            return pickle.loads(base64.b64decode(text[len(_PICKLE_HEAD) : -2]))
        except Exception as error:  # unpickling runs whatever the value's classes do
            raise DecodeError(f"{where} cannot be unpickled: {error!r}") from error


_PICKLE_HEAD: Final = f'{TAG_HEAD}"pickle","data":"'
_NOT_ALLOWED: Final = "set SATAY_ALLOW_PICKLE=1 if everyone who can write to the journal may run code here"


def pickle_codec(*, allow_pickle: bool = False) -> PickleCodec:
    """The codec of a task with `codec="pickle"`; `allow_pickle` is what the environment says."""
    return PickleCodec(allow_pickle=allow_pickle)
