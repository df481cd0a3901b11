from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satay.tables import (
    WIDTH,
    Column,
    printable,
    shorten_middle,
    show_cost,
    show_pair,
    show_seconds,
    show_value,
    text_table,
)
from tests.values import PLAIN, Colour, Point, plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("it's", '"it\'s"'),
        (None, "None"),
        ([1, {"a": True}], "[1, {'a': True}]"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))), "2026-01-02T00:00:00-03:30"),
        (timedelta(seconds=90), "0:01:30"),
        (Decimal("1.50"), "1.50"),
        (float("inf"), "inf"),
        (Colour.RED, "Colour.RED"),
        (Point(1, 2), "Point(x=1, y=2)"),
        ((1,), "(1,)"),
        ((1, "x"), "(1, 'x')"),
        ({"b", "a"}, "{'a', 'b'}"),
        (set(), "set()"),
        (frozenset({1}), "frozenset([1])"),
        ({1: 2}, "{1: 2}"),
        (b"abc", "<bytes, 3 bytes>"),
        (PurePosixPath("/tmp/x"), "/tmp/x"),
        pytest.param(2**20_000, "0x1" + "0" * 56 + "…", id="large"),
    ],
)
def test_a_recorded_value_reads_as_what_it_stands_for(value: Any, text: str) -> None:
    assert text == show_value(plain(value))


@given(PLAIN, st.integers(1, 40))
def test_a_shown_value_is_printable_and_keeps_its_limit(value: Any, limit: int) -> None:
    text = show_value(value, limit)

    assert text.isprintable()
    assert len(text) <= limit


def test_no_more_of_a_long_value_is_read_than_is_shown() -> None:
    class Endless(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("nothing is looked up by index")

    assert show_value(Endless(range(10**6)), 10) == "[0, 1, 2, …"[:9] + "…"


def test_a_pair_of_long_texts_is_shown_where_they_part() -> None:
    shown = show_pair("the same words again and again, then left", "the same words again and again, then right", 20)

    assert "left" in shown
    assert "right" in shown
    assert "the same" not in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0124, "12 ms"),
        (0.9999, "1.0 s"),
        (3.21, "3.2 s"),
        (59.99, "1 min"),
        (302, "5 min 2 s"),
        (7_500, "2 h 5 min"),
        (86_400 * 3 + 7_200, "3 d 2 h"),
    ],
)
def test_durations_are_shown_in_the_units_that_suit_them(seconds: float, text: str) -> None:
    assert text == show_seconds(seconds)


@pytest.mark.parametrize(
    ("cost", "text"), [(0.0, "0"), (0.0412, "0.0412"), (12.5, "12.5"), (100.0, "100"), (1e-9, "<0.000001")]
)
def test_costs_are_shown_without_needless_zeros(cost: float, text: str) -> None:
    assert text == show_cost(cost)


def test_text_that_steers_a_terminal_is_escaped() -> None:
    assert r"a\x1b[31m\u202eb\n" == printable("a\x1b[31m\u202eb\n")


def test_long_ids_keep_their_ends() -> None:
    assert "abcd…xyz" == shorten_middle("abcdefghijklmnopqrstuvwxyz", 8)


def test_a_table_has_no_colours_no_markup_and_no_wrapped_lines() -> None:
    rows = [("[red]x[/red]", "word " * 50), (":smile:", "漢" * 80)]

    table = text_table([Column("name"), Column("text", is_wide=True)], rows)

    lines = table.splitlines()
    assert 4 == len(lines)
    assert lines[2].startswith("[red]x[/red]")
    assert lines[3].startswith(":smile:")
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[2].endswith("…")
