"""Values to compare and to show."""

from enum import Enum
from typing import Any, NamedTuple

from hypothesis import strategies as st

from satay.declarations import value_codec
from satay.texts import to_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab'\\ $.[]0\n", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text("ab'\\ $.[]0\n", max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


def plain(value: Any) -> Any:
    return to_plain(value_codec(Any).encode(value, "a value"))
