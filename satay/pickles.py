"""Values that have no better form, as pickles, which are read only by a codec that was made for it and told so."""

import base64
from typing import Any, Final

from satay.codec import ValueCodec
from satay.errors import DecodeError, EncodeError, PickleNotAllowedError
from satay.tags import decode_tagged
from satay.texts import TAG_HEAD, check_size


class PickleCodec(ValueCodec):
    """For values that have no better form: cloudpickle, marked as such. Reads only with `allow_pickle`,
    which a codec is made with, or told at the call.
    """

    __slots__ = ("_allow_pickle",)

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle

    def encode(self, value: object, where: str) -> str:
        import cloudpickle  # type: ignore[import-untyped]  # it has no types

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
        import pickle

        try:
            return pickle.loads(base64.b64decode(text[len(_PICKLE_HEAD) : -2]))
        except Exception as error:  # unpickling runs whatever the value's classes do
            raise DecodeError(f"{where} cannot be unpickled: {error!r}") from error


_PICKLE_HEAD: Final = f'{TAG_HEAD}"pickle","data":"'
_NOT_ALLOWED: Final = "set SATAY_ALLOW_PICKLE=1 if everyone who can write to the journal may run code here"
