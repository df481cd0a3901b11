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

from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from satay.tags import decode_tagged, encode_tagged
from satay.texts import dump_plain


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
        return self.decode(dump_data(data), where)


def dump_data(data: object) -> str:
    try:
        return to_json(data).decode()
    except (PydanticSerializationError, ValueError):
        return dump_plain(data)
