from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from satay.model import MISSING
from tests.samples import PARIS, Order, assert_same, survives


@pytest.mark.parametrize("value", ["a\x00b", "\ud800x", "\ud83d\ude00", "\U0001f600", "e\u0301", {"\udfff": 1}])
def test_any_text_reads_back_whether_or_not_a_type_is_declared(value: Any) -> None:
    assert value == survives(MISSING, value)
    assert value == survives(type(value) if isinstance(value, str) else dict[str, int], value)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2024, 1, 1),  # noqa: DTZ001  # naive on purpose
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 10, 27, 2, 30, tzinfo=PARIS),
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PARIS),
        datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001
        datetime(1, 1, 1),  # noqa: DTZ001
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
        date(1, 1, 1),
        time(23, 59, 59, 1),
        time(1, tzinfo=UTC),
        timedelta(days=999_999, microseconds=1),
        timedelta(days=-1, microseconds=1),
    ],
)
def test_moments_and_spans_read_back_exactly(value: Any) -> None:
    for annotation in (MISSING, type(value), type(value) | None, list[Any]):
        given_value = [value] if annotation == list[Any] else value
        copy = survives(annotation, given_value)

        assert_same(given_value, copy)
        if isinstance(value, datetime):
            moment = copy[0] if isinstance(copy, list) else copy
            assert value.utcoffset() == moment.utcoffset()
            assert isinstance(moment.tzinfo, ZoneInfo) == isinstance(value.tzinfo, ZoneInfo)


@pytest.mark.parametrize("value", [10**18, -(2**70), 10**4000, -(10**5000)], ids=["18", "22", "4000", "5000"])
def test_integers_of_any_size_read_back(value: int) -> None:
    assert value == survives(int, value)
    assert value == survives(MISSING, [value])[0]


def test_a_zone_still_knows_its_daylight_saving_time_in_a_model() -> None:
    order = Order(id=1, when=datetime(2024, 1, 1, tzinfo=PARIS))
    copy = survives(Order, order)

    assert timedelta(hours=2) == (copy.when + timedelta(days=180)).utcoffset()
