from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from satay.declarations import value_codec
from satay.errors import DecodeError, EncodeError
from tests.samples import WHERE, assert_same, survives

SCALARS = [
    (int, st.integers()),
    (float, st.floats()),
    (str, st.text() | st.text(st.characters(categories=("Cs", "Lu", "Cc")))),
    (bool, st.booleans()),
    (None, st.none()),
]


@pytest.mark.parametrize(("annotation", "strategy"), SCALARS)
@given(data=st.data())
def test_a_declared_scalar_reads_back(annotation: Any, strategy: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(strategy)

    assert_same(value, survives(annotation, value))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (int, -(2**62)),
        (float, 1.5),
        (float, -0.0),
        (float, 3),
        (str, "a\n\u2028"),
        (bool, False),
        (None, None),
    ],
)
def test_the_quick_way_writes_what_pydantic_writes(annotation: Any, value: Any) -> None:
    text = value_codec(annotation).encode(value, WHERE)

    assert TypeAdapter(annotation).dump_json(TypeAdapter(annotation).validate_python(value)).decode() == text


@pytest.mark.parametrize("annotation", [int, float, str, bool, None])
@pytest.mark.parametrize("value", [1, 1.5, "x", True, None, b"x", [1]])
def test_a_scalar_codec_takes_what_the_declared_type_takes(annotation: Any, value: Any) -> None:
    is_its_own = type(value) is (annotation or type(None)) or (annotation is float and type(value) is int)
    if is_its_own:
        assert value == survives(annotation, value)
    else:
        with pytest.raises(EncodeError):
            value_codec(annotation).encode(value, WHERE)


@pytest.mark.parametrize("text", ['"', '"a', 'a"', "", "a", '"\\"'])
def test_a_text_that_was_cut_off_is_no_str(text: str) -> None:
    with pytest.raises(DecodeError, match=WHERE):
        value_codec(str).decode(text, WHERE)
