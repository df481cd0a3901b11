"""What turns one text into another: it leads there, whatever the two are, and is short where little changed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satay.deltas import MAX_SPLICES, apply_delta, dump_delta, make_delta
from satay.errors import DecodeError
from satay.texts import dump_plain, to_plain
from tests.values import PLAIN

LINES = [f"{number:04d} what was found there, and why it matters" for number in range(500)]


def led(old: str, new: str) -> str:
    """Where the delta leads, once it was written and read."""
    return apply_delta(old, to_plain(dump_delta(make_delta(old, new))))


@given(PLAIN, PLAIN)
def test_a_delta_leads_from_any_value_to_any_other(one: Any, other: Any) -> None:
    old, new = dump_plain(one), dump_plain(other)

    assert new == led(old, new)


@given(
    st.lists(st.sampled_from(["a", "b", "abc", "x" * 30, "y" * 80, "\u00e9\U0001f600", "\n"]), max_size=30), st.data()
)
def test_a_delta_leads_from_any_text_to_one_that_is_like_it(parts: list[str], data: st.DataObject) -> None:
    changed = data.draw(st.permutations(parts)) if data.draw(st.booleans()) else list(parts)
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(changed)))
        changed[place : place + data.draw(st.integers(0, 2))] = [data.draw(st.text(max_size=5))]

    assert "".join(changed) == led("".join(parts), "".join(changed))


@pytest.mark.parametrize(
    ("old", "new", "delta"),
    [
        ("", "", []),
        ("same", "same", []),
        ("", "new", [(0, 0, "new")]),
        ("old", "", [(0, 3, "")]),
        ("one two three", "one 2 three", [(4, 3, "2")]),
        ("one two", "one two three", [(7, 0, " three")]),
    ],
)
def test_a_delta_holds_what_changed_and_where(old: str, new: str, delta: Any) -> None:
    assert delta == make_delta(old, new)


def state(**members: Any) -> str:
    return json.dumps(members)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (state(n=1, log=LINES), state(n=2, log=LINES)),
        (state(n=1, log=LINES, last="a"), state(n=2, log=LINES, last="b")),
        (state(n=99, log=LINES, last="a"), state(n=100, log=[*LINES[1:], "a new line"], last="b")),
        (state(n=1, log=LINES), state(n=2, log=[*LINES[:200], "a" * 100, *LINES[300:]])),
        (state(log=LINES), state(log=["changed" if number % 50 == 7 else line for number, line in enumerate(LINES)])),
        (state(a=LINES, b=1, c=LINES), state(a=LINES, b=2, more=3, c=LINES)),
    ],
)
def test_small_changes_in_several_places_make_a_short_delta(old: str, new: str) -> None:
    delta = dump_delta(make_delta(old, new))

    assert new == led(old, new)
    assert len(delta) < 1000


def test_a_delta_has_a_bounded_number_of_splices() -> None:
    changed = [line.replace("found", "lost") for line in LINES]
    splices = make_delta(state(log=LINES), state(log=changed))

    assert MAX_SPLICES == len(splices)
    assert state(log=changed) == led(state(log=LINES), state(log=changed))


@pytest.mark.parametrize(
    "delta",
    [None, 1, "text", {}, [None], [[0, 1]], [[0, 1, 2]], [["0", 1, ""]], [[5, 0, ""]], [[0, -1, ""]], [[0, 9, ""]],
     [[2, 1, ""], [1, 1, ""]]],
)  # fmt: skip
def test_what_is_no_delta_or_does_not_fit_is_refused(delta: Any) -> None:
    with pytest.raises(DecodeError, match="does not fit the text"):
        apply_delta("text", delta)
