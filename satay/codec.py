"""Values to recorded text and back: the codec of values of no declared type, which those of declared ones refine.

- Whatever is written was read back first and found equal. So reading never raises what writing did not, and the copy
  that the workflow is handed on the first pass is the one that a replay hands over.
"""

from contextvars import ContextVar
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

from satay.tags import decode_tagged, encode_tagged
from satay.texts import dump_plain

encoding: Final[ContextVar[bool]] = ContextVar("satay_encoding", default=False)
"""Whether the user's validators and defaults are being run to record a value."""


def is_encoding() -> bool:
    """Whether the user's validators and defaults are being run to record a value, which a replay does not do."""
    return encoding.get()


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
    """The recorded text that `to_plain` has parsed, or one that says the same."""
    try:
        return to_json(data).decode()
    except (PydanticSerializationError, ValueError):
        return dump_plain(data)
