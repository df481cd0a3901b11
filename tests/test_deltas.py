"""What turns one value into another: it leads there, whatever the two are, and is short where little changed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satay.deltas import apply_delta, apply_text_delta, is_text_delta, make_delta, make_text_delta
from satay.errors import DecodeError
from satay.texts import dump_plain, to_plain
from tests.values import PLAIN

LONG = "the quick brown fox jumps over the lazy dog, again and again and again, and then rests"


def copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(PLAIN, PLAIN)
def test_a_delta_leads_from_any_value_to_any_other(one: Any, other: Any) -> None:
    delta = to_plain(dump_plain(make_delta(one, other)))

    assert other == apply_delta(copy(one), delta)


@given(PLAIN, PLAIN)
def test_a_delta_of_texts_leads_to_the_very_text(one: Any, other: Any) -> None:
    old, new = dump_plain(one), dump_plain(other)
    delta = to_plain(dump_plain(make_text_delta(old, new)))

    assert is_text_delta(delta)
    assert new == apply_text_delta(old, delta)


@given(st.text(), st.text(), st.text(), st.text())
def test_a_delta_of_texts_holds_no_more_than_what_changed(start: str, old: str, new: str, end: str) -> None:
    _, _, inserted = make_text_delta(start + old + end, start + new + end)["text"]

    assert len(inserted) <= len(new)


@pytest.mark.parametrize(
    ("one", "other", "delta"),
    [
        (1, 2, {"replace": 2}),
        ({"a": 1}, [1], {"replace": [1]}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"members": {"b": {"replace": 3}}}),
        ({"a": 1}, {"b": 1}, {"members": {"b": {"replace": 1}}, "removed": ["a"]}),
        ([1, 2, 3], [1, 5, 3], {"items": {"1": {"replace": 5}}}),
        ([1, 2, 3], [1, 2, 3, 4], {"splice": [3, 0, [4]]}),
        ([1, 2, 3, 4], [1, 4], {"splice": [1, 2, []]}),
        (LONG, LONG + "!", {"splice": [len(LONG), 0, "!"]}),
        ("short", "shirt", {"replace": "shirt"}),
    ],
)
def test_a_delta_holds_what_changed_and_where(one: Any, other: Any, delta: Any) -> None:
    assert delta == make_delta(one, other)


@pytest.mark.parametrize(
    "value", [{"replace": 1}, {"members": {}}, {"items": {"0": 1}}, {"splice": [0, 0, ""]}, {"text": [0, 0, ""]}]
)
def test_data_that_looks_like_a_delta_is_data(value: Any) -> None:
    delta = make_delta({"state": LONG}, {"state": value})

    assert not is_text_delta(delta)
    assert {"state": value} == apply_delta({"state": LONG}, delta)


@pytest.mark.parametrize(
    "delta",
    [None, {}, {"members": 1}, {"items": {"9": {"replace": 1}}}, {"removed": ["a"]}, {"members": {}, "removed": ["a"]}],
)
def test_what_is_no_delta_or_does_not_fit_is_refused(delta: Any) -> None:
    with pytest.raises(DecodeError, match="does not fit the state"):
        apply_delta([1], delta)


@pytest.mark.parametrize("delta", [None, {}, {"text": [5, 0, ""]}, {"text": [0, -1, ""]}, {"text": [0, 9, ""]}])
def test_a_delta_of_texts_that_does_not_fit_is_refused(delta: Any) -> None:
    with pytest.raises(DecodeError, match="does not fit the text"):
        apply_text_delta("text", delta)
