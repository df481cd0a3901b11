"""Which conversions to a declared type are refused, and what is said of them."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from satay.classes import instance_state
from satay.errors import EncodeError
from satay.refusals import forgotten_call, path_step

_SCALARS: Final = frozenset({int, float, str, bool})

HARMLESS_ERRORS: Final = frozenset({"string_unicode"})
"""What pydantic refuses and the tagged format can hold: text with lone surrogates."""

CONVERSION_ERRORS: Final = frozenset({"int_type", "float_type", "bool_type", "string_type"})
"""What pydantic says of a scalar of another type when it may not convert it."""


def misfit(details: Sequence[ErrorDetails], where: str) -> EncodeError:
    path, reason = condense(details)
    return EncodeError(f"{where} does not fit its declared type: at {path}, {reason}", path=path)


def one_shot(path: str, where: str) -> EncodeError:
    reason = "an iterator can be read once only; pass list(...)"
    return EncodeError(f"{where} cannot be recorded: at {path}, {reason}", path=path)


def condense(details: Sequence[ErrorDetails]) -> tuple[str, str]:
    """Where a value failed first, and the sentence that says why."""
    first = details[0]
    path = "$" + "".join(map(path_step, first["loc"]))
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    kind = type(first["input"])
    given = f", not {kind.__name__}" if first["type"] in CONVERSION_ERRORS else ""
    return path, first["msg"] + given + more + forgotten_call(kind)


def refuse_loss(value: Any, fitted: Any, where: str) -> None:
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


def may_convert(value: Any, fitted: Any) -> bool:
    """Whether a scalar in `value` may have become one of another type in `fitted`. An int for a float is none."""
    kind = type(fitted)
    if value is fitted or kind in _SCALARS:
        is_scalar = type(value) in _SCALARS and type(value) is not kind
        return is_scalar and (type(value), kind) != (int, float)
    match value, fitted:
        case dict(), dict():
            return any(key not in value or may_convert(value[key], item) for key, item in fitted.items())
        case list() | tuple() | set() | frozenset(), set() | frozenset():
            return not {type(item) for item in fitted} <= {type(item) for item in value}
        case list() | tuple() | deque(), list() | tuple() | deque():
            return any(map(may_convert, value, fitted))
        case _:
            return isinstance(value, dict | list | tuple | set | frozenset)
