"""The codec that a declaration asks for: of an annotation, or of what a function returns."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any, Final

from satay.codec import ValueCodec
from satay.model import MISSING
from satay.scalar_codecs import SCALAR_CODECS, NoneCodec


def value_codec(annotation: object) -> ValueCodec:
    """The codec for values declared as `annotation`; `Parameter.empty` or `MISSING` stands for none. Cached.

    An annotation that pydantic makes no sense of counts as none.
    """
    try:
        return _cached_value_codec(annotation, _arguments(annotation))
    except TypeError:  # not hashable: Annotated[int, {"unit": "m"}]
        return _make_value_codec(annotation)


@functools.lru_cache(maxsize=4096, typed=True)
def _cached_value_codec(annotation: Any, arguments: tuple[Any, ...]) -> ValueCodec:
    return _make_value_codec(annotation)


def _arguments(annotation: object) -> tuple[Any, ...]:
    """What tells equal annotations apart: `A | B` equals `B | A`, and each reads a text of both as another type."""
    return tuple((argument, _arguments(argument)) for argument in typing.get_args(annotation))


def _make_value_codec(annotation: Any) -> ValueCodec:
    if annotation is None or annotation is types.NoneType:
        return NoneCodec()
    scalar = SCALAR_CODECS.get(annotation) if isinstance(annotation, type) else None
    if scalar is not None:
        return scalar()
    if _is_loose(annotation):
        return _UNTYPED
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic_core import SchemaError

    from satay.typed_codec import TypedCodec

    try:
        return TypedCodec(TypeAdapter(annotation))
    except (PydanticUserError, SchemaError, NameError, TypeError):
        return _UNTYPED


_UNTYPED: Final = ValueCodec()
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


def _is_loose(annotation: object, seen: frozenset[int] = frozenset()) -> bool:
    """Whether the annotation leaves the type of some part open, so that only a tag can tell it.

    `seen` has the ids of what the aliases that it stands in name: an alias may name itself.
    """
    if any(annotation is loose for loose in _LOOSE_TYPES):
        return True
    inner = getattr(annotation, "__value__", None)  # what a `type` statement names
    if inner is not None and not isinstance(annotation, type):
        return id(inner) not in seen and _is_loose(inner, seen | {id(inner)})
    return any(_is_loose(argument, seen) for argument in typing.get_args(annotation))


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


OPAQUE: Final = value_codec(Any)
"""The codec for values of which satay knows nothing, such as an intervention."""
