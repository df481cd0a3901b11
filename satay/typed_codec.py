"""Values of a declared type, by pydantic: its JSON form, and beside it what that form loses."""

from contextvars import ContextVar
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from satay.codec import ValueCodec, dump_data
from satay.conversions import CONVERSION_ERRORS, HARMLESS_ERRORS, condense, may_convert, misfit, one_shot, refuse_loss
from satay.errors import DecodeError, EncodeError, UsageError
from satay.parts import detach, find_fields_set, find_iterator, restore_fields_set
from satay.schemas import OBJECTS, comparison, schema_nodes
from satay.tags import decode_tagged, encode_tagged
from satay.texts import TAG_HEAD, check_size, dump_plain, to_plain

_encoding: ContextVar[bool] = ContextVar("satay_encoding", default=False)


def is_encoding() -> bool:
    """Whether the user's validators and defaults are being run to record a value, which a replay does not do."""
    return _encoding.get()


class TypedCodec(ValueCodec):
    """By pydantic, in its JSON form; what that form loses goes into the tagged format.

    So do sets, whose order in the JSON form differs from process to process: equal arguments must have equal texts.
    """

    __slots__ = (
        "_converts_itself",
        "_has_models",
        "_has_sets",
        "_is_same",
        "_read",
        "_runs_code",
        "_validate",
        "_write",
    )

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._write = adapter.serializer.to_json
        self._read = adapter.validator.validate_json
        self._validate = adapter.validator.validate_python
        nodes = list(schema_nodes(adapter.core_schema))
        kinds = {node["type"] for node in nodes}
        self._is_same = comparison(nodes)
        self._has_sets = bool(kinds & {"set", "frozenset"})
        self._has_models = "model" in kinds
        self._converts_itself = any(kind.startswith("function-") for kind in kinds)
        self._runs_code = self._converts_itself or bool(kinds & OBJECTS)

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        if hasattr(type(value), "__next__"):
            raise one_shot("$", where)
        if not self._runs_code:
            return self._encode(value, where)
        token = _encoding.set(True)
        try:
            return self._encode(value, where)
        finally:
            _encoding.reset(token)

    def decode(self, text: str, where: str) -> Any:
        if text.startswith(_PARTIAL_HEAD):
            return self._decode_partial(text, where)
        if text.startswith(TAG_HEAD):
            return decode_tagged(text, where)
        try:
            return self._read(text, by_alias=False, by_name=True)
        except ValidationError as error:
            path, reason = condense(error.errors(include_url=False, include_context=False))
            message = f"{where} does not fit the type that the code declares now: at {path}, {reason}"
            raise DecodeError(message) from None

    def _decode_partial(self, text: str, where: str) -> Any:
        data = to_plain(text)
        try:
            recorded, fields_set = data["value"], {tuple(path): set(names) for path, names in data["set"]}
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"{where} cannot be read: its record of fields that were given is damaged") from error
        copy = self.decode(dump_data(recorded), where)
        restore_fields_set(copy, fields_set)
        return copy

    def _encode(self, value: object, where: str) -> tuple[str, Any]:
        pair = self._encode_declared(value)
        if pair is None:
            pair = self._encode_otherwise(value, where)
        check_size(pair[0], where)
        return pair

    def _encode_declared(self, value: object) -> tuple[str, Any] | None:
        """In the form of the declared type, None if that does not bring back the same value."""
        if self._has_sets:
            return None
        try:
            written = self._write(value, by_alias=False, round_trip=True, warnings=False)
            copy = self._read(written, strict=True, by_alias=False, by_name=True)
            text = written.decode()
            if text.startswith(TAG_HEAD):
                return None
            if self._has_models and written != self._write(
                value, by_alias=False, round_trip=True, warnings=False, exclude_unset=True
            ):
                fields_set = find_fields_set(value)
                restore_fields_set(copy, fields_set)
                listed = [[path, sorted(names)] for path, names in fields_set.items()]
                text = f'{_PARTIAL_HEAD}{dump_plain(listed)},"value":{text}}}'
            is_same = self._is_same(value, copy)
        except Exception:  # a user's serializer, validator or __eq__, or pydantic: the other form says what is wrong
            return None
        return (text, copy) if is_same else None

    def _encode_otherwise(self, value: object, where: str) -> tuple[str, Any]:
        """As the declared type if the value only has to be converted to it, else in the tagged format."""
        fitted = self._fit(value, where)
        if fitted is not value:
            pair = self._encode_declared(fitted)
            if pair is not None:
                return pair
        text, copy = encode_tagged(fitted, where)
        if not text.startswith(TAG_HEAD):
            text = f'{TAG_HEAD}"value","value":{text}}}'
        return text, copy

    def _fit(self, value: object, where: str) -> object:
        """`value` as the declared type has it: a dict becomes the model that it spells, by alias or by name.

        What JSON has a form for may come in that form. But no scalar is converted to another one: `"4"` is no int.
        """
        try:
            path = find_iterator(value)
            if path is not None:
                raise one_shot(f"${path}", where)
            own = detach(value)
            fitted = self._validate(own, by_alias=True, by_name=True)
        except EncodeError:
            raise
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            if all(detail["type"] in HARMLESS_ERRORS for detail in details):
                return value
            raise misfit(details, where) from None
        except RecursionError:
            raise EncodeError(f"{where} cannot be recorded: it is nested too deeply, or holds itself") from None
        except UsageError as error:
            raise EncodeError(f"{where} cannot be recorded: {error}") from error
        except Exception as error:  # a user's validator
            raise EncodeError(f"{where} does not fit its declared type: {error!r}") from error
        if may_convert(value, fitted):
            self._refuse_conversion(value, where)
        if not self._converts_itself:
            refuse_loss(value, fitted, where)
        return fitted

    def _refuse_conversion(self, value: object, where: str) -> None:
        """Raise `EncodeError` if a scalar was converted because of the declared type, and not by a user's validator."""
        try:
            self._read(to_json(value), strict=True, by_alias=True, by_name=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            conversions = [detail for detail in details if detail["type"] in CONVERSION_ERRORS]
            if conversions:
                raise misfit(conversions, where) from None
        except Exception:  # a user's validator, or a value with no JSON form of its own, which was no scalar then
            return


_PARTIAL_HEAD: Final = f'{TAG_HEAD}"value","set":'
"""How the text begins of a value of a declared type that holds models which were not given all their fields."""
