"""The codecs of declared scalars: the quick way for a value of exactly the declared type, past pydantic."""

import functools
import types
from typing import TYPE_CHECKING, Any, Final

from satay.codec import ValueCodec
from satay.texts import MAX_PAYLOAD_BYTES, json_quote

if TYPE_CHECKING:
    from satay.typed_codec import TypedCodec


@functools.cache
def _typed_codec(annotation: Any) -> "TypedCodec":
    from pydantic import TypeAdapter

    from satay.typed_codec import TypedCodec

    return TypedCodec(TypeAdapter(annotation))


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
        if text[:1] == '"' == text[-1:] and text != '"' and "\\" not in text:
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


class NoneCodec(_ScalarCodec):
    """The codec of what is declared as `None`."""

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


SCALAR_CODECS: Final[dict[object, type[_ScalarCodec]]] = {
    int: _IntCodec,
    float: _FloatCodec,
    str: _StrCodec,
    bool: _BoolCodec,
}
"""The scalars that have a codec of their own."""
