"""The arguments of a call as one JSON object, and back."""

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final

from satay.codec import ValueCodec
from satay.declarations import resolve_hints, value_codec
from satay.errors import CodecError, DecodeError, InvalidValueError
from satay.model import MISSING
from satay.texts import check_size, json_quote, to_plain


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
        plan = self._plan or self._prepare()
        if not kwargs and plan.fewest <= len(args) <= plan.most:
            try:
                if len(args) == 1:  # Most calls, at a third of the price.
                    only = plan.parameters[0]
                    return f"{{{only.head}{only.codec.encode_and_decode(args[0], where)[0]}}}"
                pairs = zip(plan.parameters, args, strict=False)
                return _join(
                    [known.head + known.codec.encode_and_decode(value, where)[0] for known, value in pairs], where
                )
            except CodecError:
                pass  # the long way round says which parameter it is
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
        return self._encode_bound(plan, plan.bind(args, kwargs, where), where)

    def _encode_bound(
        self, plan: "_CallPlan", bound: Mapping[str, Any], where: str
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        members: list[str] = []
        copies: dict[str, Any] = {}
        for parameter in plan.parameters:
            name = parameter.name
            if name in bound:
                text, copies[name] = parameter.encode(bound[name], where)
                members.append(parameter.head + text)
        return _join(members, where), *plan.spread(copies)

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
        if members or not plan.required <= values.keys():
            absent = sorted(plan.required - values.keys())
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
        return _join(members, where), tuple(copies), {}

    def _prepare(self) -> "_CallPlan":
        self._plan = _CallPlan(self._fn)
        return self._plan


def _join(members: list[str], where: str) -> str:
    text = "{" + ",".join(members) + "}"
    if len(members) > 1:
        check_size(text, where)
    return text


class _CallPlan:
    """The parameters of a function, sorted for quick binding.

    From `fewest` to `most` arguments by position, and nothing else, make a call that needs no binding at all.
    """

    __slots__ = ("_is_fixed", "_keywords", "_positional", "_signature", "fewest", "most", "parameters", "required")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._signature = signature_of(fn)
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


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The parameters of `fn`; any arguments for a builtin, such as `max`, of which Python does not know them."""
    try:
        return inspect.signature(fn)
    except ValueError:
        return inspect.Signature(
            [Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)]
        )


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
