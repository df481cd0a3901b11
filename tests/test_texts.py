import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satay import scalar_codecs, texts
from satay.declarations import value_codec
from satay.errors import PayloadTooLargeError
from satay.inputs import input_codec
from satay.model import MISSING
from satay.texts import LONG_TEXT, json_quote, to_plain
from tests.samples import UNTYPED, WHERE, Node


@given(st.text())
def test_quoted_text_is_json_in_utf_8(text: str) -> None:
    assert text == json.loads(json_quote(text).encode())


def test_quoting_escapes_a_lone_surrogate() -> None:
    assert '"\\ud800"' == json_quote("\ud800")


@pytest.mark.parametrize("annotation", [str, MISSING, list[str]])
def test_a_payload_above_the_limit_has_its_own_error(annotation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_PAYLOAD_BYTES", 1000)
    monkeypatch.setattr(scalar_codecs, "_SHORT_TEXT", 100)
    value: Any = ["é" * 500] if annotation == list[str] else "é" * 500

    with pytest.raises(PayloadTooLargeError, match="the limit of 1000"):
        value_codec(annotation).encode(value, WHERE)
    with pytest.raises(PayloadTooLargeError):
        input_codec(lambda a, b: None).encode(("x" * 600, "x" * 600), {}, WHERE)


def test_plain_data_shows_tags_and_builds_no_type() -> None:
    text = UNTYPED.encode([Node(math.nan)], WHERE)

    fields = {"value": {"$satay": "float", "value": "nan"}, "next": None}
    assert [{"$satay": "dataclass", "type": "tests.samples:Node", "fields": fields}] == to_plain(text)


@pytest.mark.parametrize("start", range(0, 0x110000, 0x10000))
def test_a_long_text_is_quoted_as_a_short_one(start: int) -> None:
    characters = [chr(code) for code in range(start, start + 0x10000, 1 if start == 0 else 17)]
    short = [json_quote(character) for character in characters if not "\ud800" <= character < "\ue000"]
    long = json_quote("".join(character for character in characters if not "\ud800" <= character < "\ue000"))

    assert "".join(quoted[1:-1] for quoted in short) == long[1:-1]


def test_a_long_text_with_what_utf8_cannot_hold_is_escaped_as_a_short_one() -> None:
    text = "\ud800\u00e9\n" * LONG_TEXT

    assert f'"{json_quote(text[:3])[1:-1] * LONG_TEXT}"' == json_quote(text)
