"""Recorded text: JSON in UTF-8, of a bounded size.

- A tag is an object whose first member is `"$satay"`, the kind. What the kinds mean is said elsewhere.
"""

import json
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final

from pydantic_core import from_json, to_json

from satay.errors import DecodeError, PayloadTooLargeError

TAG: Final = "$satay"
"""The member that makes an object a tag; its value is the tag's kind."""

TAG_HEAD: Final = '{"$satay":'
"""How every text begins that is a tag as a whole."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of UTF-8 that one recorded value may have."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII_JSON: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


LONG_TEXT: Final = 1_000
"""From so many characters on, pydantic's writer quotes a text faster than the one of `json`, with the same result."""


def json_quote(text: str) -> str:
    """`text` as a JSON string. What UTF-8 cannot hold, a lone surrogate, is escaped; so are all control characters."""
    if len(text) >= LONG_TEXT:
        try:
            return to_json(text).decode()
        except ValueError:
            return encode_basestring_ascii(text)
    quoted = encode_basestring(text)
    if quoted.isascii() or is_utf8(quoted):
        return quoted
    return encode_basestring_ascii(text)


def dump_plain(data: object) -> str:
    """The JSON text of plain data, which holds no non-finite number. What UTF-8 cannot hold is escaped."""
    text = _JSON.encode(data)
    return text if text.isascii() or is_utf8(text) else _ASCII_JSON.encode(data)


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


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold `text`: whether it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_constant(name: str) -> None:
    """Raise `ValueError` for `NaN` and the infinities, which Python's reader of JSON would take."""
    raise ValueError(f"{name} is not JSON")


_PLAIN_READER: Final = json.JSONDecoder(parse_constant=refuse_constant)
