"""The tagged format: JSON that remembers the types which JSON has no words for, for values without a declared type.

- A tag is an object whose first member is `"$satay"`, the kind; plain JSON data stands for itself. A user's object
  that has such a member is written as a tag too, so data that looks like a tag reads back unchanged.
- Writing proves that the text reads back equal, with equal types, or refuses and names the path.
"""

import marshal
from typing import Any, Final

from pydantic_core import from_json, to_json

from satay.equality import MARSHAL_VERSION, find_difference
from satay.errors import DecodeError, EncodeError, PayloadTooLargeError
from satay.refusals import MalformedTagError, UnencodableError, unrecordable
from satay.tag_readers import read_tagged
from satay.tag_writers import tag_value
from satay.texts import check_size, dump_plain, to_plain

_TOKEN: Final = '"$satay"'


def encode_tagged(value: object, where: str) -> tuple[str, Any]:
    """The tagged text of `value`, and the equal, fresh value that it reads back as.

    Raises `EncodeError`, naming `where` and the path, for a value that does not survive; `PayloadTooLargeError`.
    """
    simple = _encode_plain(value)
    if simple is not None:
        check_size(simple[0], where)
        return simple
    text, copy, difference = _write_and_read(value, where)
    if difference is not None:
        raise unrecordable(where, "it would not read back equal", path=f"${difference}")
    return text, copy


def decode_tagged(text: str, where: str) -> Any:
    """The value that `text` records. Raises `DecodeError` for what is no JSON, an unknown tag, a class that is gone."""
    try:
        if _TOKEN not in text:
            return to_plain(text)
        return read_tagged(text)
    except RecursionError:
        raise DecodeError(f"{where} cannot be read: it is nested too deeply to be read from here") from None
    except (MalformedTagError, DecodeError, ValueError) as error:
        raise DecodeError(f"{where} cannot be read: {error}") from None


def _write_and_read(value: object, where: str) -> tuple[str, Any, str | None]:
    """The text, the copy, and the path to what differs in the copy."""
    try:
        text = dump_plain(tag_value(value, 0))
        check_size(text, where)
        copy = read_tagged(text)
        return text, copy, find_difference(value, copy)
    except PayloadTooLargeError:
        raise
    except UnencodableError as error:
        raise unrecordable(where, error.reason, path=error.path) from None
    except RecursionError:
        raise EncodeError(f"{where} cannot be recorded: it is nested too deeply to be written from here") from None
    except MalformedTagError as error:
        raise EncodeError(f"{where} cannot be recorded: it would not read back: {error}") from None
    except Exception as error:  # a class may have its own code for reading an attribute, for == and for hash
        raise EncodeError(f"{where} cannot be recorded: looking at it raised {error!r}") from error


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
