"""The codec of values of a declared type: the JSON form that pydantic has for it.

- The declared type decides: a `StrEnum` in a `list[str]` reads back as the `str` that was promised. Where the
  declaration leaves room (`Any`, a union, a bare `dict`), types are kept exactly, in the tagged format if need be.
- Fields are written by name, never by alias, so aliases need not be symmetric.
- Validators and defaults are the user's code, and draw no chance while a value is recorded.
"""

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaSerializer, SchemaValidator

from satay.codec import ValueCodec, dump_data, encoding
from satay.conversions import Converter, condense, iterator_refusal
from satay.errors import DecodeError
from satay.parts import find_fields_set, restore_fields_set
from satay.schemas import has_iterables, schema_facts, with_containers
from satay.tags import decode_tagged, encode_tagged
from satay.texts import TAG_HEAD, check_size, dump_plain, to_plain


class TypedCodec(ValueCodec):
    """By pydantic, in its JSON form; what that form loses goes into the tagged format.

    So do sets, whose order in the JSON form differs from process to process: equal arguments must have equal texts.
    """

    __slots__ = ("_converter", "_facts", "_read", "_write")

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        schema, validator, serializer = adapter.core_schema, adapter.validator, adapter.serializer
        if has_iterables(schema):
            schema = with_containers(schema)
            validator, serializer = SchemaValidator(schema), SchemaSerializer(schema)
        self._write = serializer.to_json
        self._read = validator.validate_json
        self._facts = schema_facts(schema)
        self._converter = Converter(validator.validate_python, self._read, converts_itself=self._facts.converts_itself)

    def encode_and_decode(self, value: object, where: str) -> tuple[str, Any]:
        if hasattr(type(value), "__next__"):
            raise iterator_refusal(where, path="$")
        if not self._facts.runs_code:
            return self._encode(value, where)
        token = encoding.set(True)
        try:
            return self._encode(value, where)
        finally:
            encoding.reset(token)

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
        if self._facts.has_sets:
            return None
        try:
            written = self._write(value, by_alias=False, round_trip=True, warnings=False)
            copy = self._read(written, strict=True, by_alias=False, by_name=True)
            text = written.decode()
            if text.startswith(TAG_HEAD):
                return None
            if self._facts.has_models and not self._gives_all_fields(value, written):
                text = _partial_text(value, copy, text)
            is_same = self._facts.is_same(value, copy)
        except Exception:  # a user's serializer, validator or __eq__, or pydantic: the other form says what is wrong
            return None
        return (text, copy) if is_same else None

    def _encode_otherwise(self, value: object, where: str) -> tuple[str, Any]:
        """As the declared type if the value only has to be converted to it, else in the tagged format."""
        fitted = self._converter.convert(value, where)
        if fitted is not value:
            pair = self._encode_declared(fitted)
            if pair is not None:
                return pair
        text, copy = encode_tagged(fitted, where)
        if not text.startswith(TAG_HEAD):
            text = f'{TAG_HEAD}"value","value":{text}}}'
        return text, copy

    def _gives_all_fields(self, value: object, written: bytes) -> bool:
        """Whether every model in `value` was given all its fields, so that leaving out the others changes nothing."""
        given = self._write(value, by_alias=False, round_trip=True, warnings=False, exclude_unset=True)
        return written == given


_PARTIAL_HEAD: Final = f'{TAG_HEAD}"value","set":'
"""How the text begins of a value of a declared type that holds models which were not given all their fields."""


def _partial_text(value: object, copy: object, text: str) -> str:
    """The text that tells which fields the models in `value` were given too; the models in `copy` are told as well."""
    fields_set = find_fields_set(value)
    restore_fields_set(copy, fields_set)
    listed = [[path, sorted(names)] for path, names in fields_set.items()]
    return f'{_PARTIAL_HEAD}{dump_plain(listed)},"value":{text}}}'
