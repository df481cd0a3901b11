"""The conversion of a value to its declared type, and which ones are refused.

- What JSON has a form for may come in that form: a date as text, a model as a dict. But no scalar becomes another one:
  `"4"` and `True` are no int, `b"x"` is no str. Only an int is a float, if there is a float that equals it.
- Validators are the user's code: they work on a copy, never on what the caller holds.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_json

from satay.classes import instance_state
from satay.equality import find_difference
from satay.errors import EncodeError, UsageError
from satay.parts import detach, find_iterator, without_surrogates
from satay.refusals import forgotten_call, misfit, path_step, unrecordable

_SCALARS: Final = frozenset({int, float, str, bool})

_HARMLESS_ERRORS: Final = frozenset({"string_unicode"})
"""What pydantic refuses and the tagged format can hold: text with lone surrogates. It says so of an int, too."""

_CONVERSION_ERRORS: Final = frozenset({"int_type", "float_type", "bool_type", "string_type"})
"""What pydantic says of a scalar of another type when it may not convert it."""


class Converter:
    """Makes of a value what a declared type has for it: of a dict the model that it spells, by alias or by name.

    `validate` is pydantic's validation of Python values for the type, `read` that of JSON text. `converts_itself` says
    that functions of the user's take part, which may make what they like of what they are given.
    """

    __slots__ = ("_converts_itself", "_read", "_validate")

    def __init__(self, validate: Callable[..., Any], read: Callable[..., Any], *, converts_itself: bool) -> None:
        self._validate = validate
        self._read = read
        self._converts_itself = converts_itself

    def convert(self, value: object, where: str) -> object:
        """What `value` is as the declared type, or `value` itself if there is nothing to convert.

        Raises `EncodeError` if it does not fit, or only if something in it were lost.
        """
        try:
            fitted = self._validated(value, where)
        except EncodeError:
            raise
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            if all(detail["type"] in _HARMLESS_ERRORS for detail in details) and self._fits_as_it_is(value):
                return value
            raise _misfit_of(details, where) from None
        except RecursionError:
            raise EncodeError(f"{where} cannot be recorded: it is nested too deeply, or holds itself") from None
        except UsageError as error:
            raise EncodeError(f"{where} cannot be recorded: {error}") from error
        except Exception as error:  # a user's validator
            raise EncodeError(f"{where} does not fit its declared type: {error!r}") from error
        self._refuse_loss(value, fitted, where)
        return fitted

    def _fits_as_it_is(self, value: object) -> bool:
        """Whether the declared type would take the value unchanged, if its text had no lone surrogates."""
        stand_in = without_surrogates(value)
        try:
            return find_difference(stand_in, self._validate(stand_in, by_alias=True, by_name=True)) is None
        except Exception:  # a value that does not fit for other reasons too, or a user's validator
            return False

    def _validated(self, value: object, where: str) -> object:
        path = find_iterator(value)
        if path is not None:
            raise iterator_refusal(where, path=f"${path}")
        return self._validate(detach(value), by_alias=True, by_name=True)

    def _refuse_loss(self, value: object, fitted: object, where: str) -> None:
        if _may_convert(value, fitted):
            self._refuse_conversion(value, where)
        loss = None if self._converts_itself else _find_loss(value, fitted)
        if loss is not None:
            raise misfit(where, loss[1], path=f"${loss[0]}")

    def _refuse_conversion(self, value: object, where: str) -> None:
        """Raise `EncodeError` if a scalar was converted because of the declared type, and not by a user's validator."""
        try:
            self._read(to_json(value), strict=True, by_alias=True, by_name=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            conversions = [detail for detail in details if detail["type"] in _CONVERSION_ERRORS]
            if conversions:
                raise _misfit_of(conversions, where) from None
        except Exception:  # a user's validator, or a value with no JSON form of its own, which was no scalar then
            return


def iterator_refusal(where: str, *, path: str) -> EncodeError:
    """The refusal of an iterator, which nobody could read after it was recorded."""
    return unrecordable(where, "an iterator can be read once only; pass list(...)", path=path)


def condense(details: Sequence[ErrorDetails]) -> tuple[str, str]:
    """Where a value failed first, and the sentence that says why."""
    first = details[0]
    path = "$" + "".join(map(path_step, first["loc"]))
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    kind = type(first["input"])
    is_about_type = first["type"].endswith("_type") or first["type"] in ("none_required", "is_instance_of")
    given = f", not {kind.__name__}" if is_about_type else ""
    return path, first["msg"] + given + more + forgotten_call(kind)


def _misfit_of(details: Sequence[ErrorDetails], where: str) -> EncodeError:
    path, reason = condense(details)
    return misfit(where, reason, path=path)


def _find_loss(value: Any, fitted: Any) -> tuple[str, str] | None:
    """The path to the first conversion that JSON has no sign of, and why it is one: a rounded int, bytes as text."""
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
            yield from _pair_fields(value, fitted)
        case dict(), _ if is_dataclass(type(fitted)):
            yield from ((name, value[name], item) for name, item in instance_state(fitted).items() if name in value)
        case list() | tuple() | deque(), list() | tuple() | deque():
            yield from ((index, *pair) for index, pair in enumerate(zip(value, fitted, strict=False)))
        case list() | tuple() | set() | frozenset(), set() | frozenset():
            yield from _pair_with_set(value, fitted)
        case _:
            return


def _pair_fields(value: dict[Any, Any], model: BaseModel) -> Iterator[tuple[Any, Any, Any]]:
    for name, field in type(model).model_fields.items():
        for key in (name, field.alias, field.validation_alias):
            if isinstance(key, str) and key in value:
                yield key, value[key], vars(model)[name]


def _pair_with_set(value: Iterable[Any], fitted: Collection[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """A set does not tell which of its items an item has become: any one of a type that it may have been lost in."""
    for index, item in enumerate(value):
        if type(item) in (str, bytes, int) and item not in fitted:
            yield from ((index, item, other) for other in fitted if type(other) in (str, bytes, float))


def _may_convert(value: Any, fitted: Any) -> bool:
    """Whether a scalar in `value` may have become one of another type in `fitted`. An int for a float is none."""
    kind = type(fitted)
    if value is fitted or kind in _SCALARS:
        is_scalar = type(value) in _SCALARS and type(value) is not kind
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
