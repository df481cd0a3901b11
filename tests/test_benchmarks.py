"""Every benchmark works: it runs once at a tiny size. How fast anything is, is not looked at here."""

import asyncio
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import BENCHMARKS
from tests.benchmarks.bench import TINY, Bench
from tests.benchmarks.figures import PEER, Figure, at_least, at_most
from tests.benchmarks.report import missed, report, table
from tests.benchmarks.rounds import Measure, against, interleaved

MISSING = "it was not asked for"

SLOW = {"importing", "parking"}
"""These start processes."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BENCHMARKS])
def test_every_benchmark_measures_something_positive_once_a_round(name: str, tmp_path: Path) -> None:
    figures = asyncio.run(BENCHMARKS[name](Bench(TINY, tmp_path, None, MISSING)))

    measured = [figure for figure in figures if figure.samples]
    assert measured
    assert all(TINY.rounds == len(figure.samples) for figure in measured)
    assert all(sample > 0 for figure in measured for sample in figure.samples if "evicted" not in figure.work)


def test_a_figure_that_is_on_its_limit_is_not_missed() -> None:
    figures = [Figure("a", "L", [1.0], at_least(1)), Figure("b", "s", [1.0], at_most(1))]

    assert [] == missed(figures)


def test_a_figure_is_judged_by_its_median_and_named_where_it_misses() -> None:
    slow = Figure("slow work", "L", [0.4, 9.0, 0.5], at_least(0.65))
    long = Figure("long work", "s", [0.5, 0.1, 0.9], at_most(0.4))
    fast = Figure("fast work", "L", [0.4, 9.0, 0.7], at_least(0.65))

    assert ["slow work: 0.5 L, must be ≥ 0.65", "long work: 0.5 s, must be ≤ 0.4"] == missed([slow, fast, long])


def test_a_peer_that_is_not_there_is_said_in_the_table_and_misses_no_limit() -> None:
    figure = Figure("work", PEER, (), at_least(5), "DBOS could not be installed: no network")

    assert [] == missed([figure])
    assert "| work | – | × DBOS | DBOS could not be installed: no network | ≥ 5 | not measured |" in table([figure])


def test_the_report_says_how_often_was_measured_and_who_is_missing() -> None:
    text = report([Figure("work", "calls/s", [1234.5, 2.0, 9999.0])], TINY, None, MISSING)

    assert "| work | 1,234 | calls/s | 2 – 9,999 |  |  |" in text
    assert "DBOS was not measured: it was not asked for." in text


def test_rounds_take_turns_and_the_first_one_is_not_counted() -> None:
    order: list[str] = []

    async def one() -> float:
        order.append("one")
        return float(len(order))

    async def two() -> float:
        order.append("two")
        return float(len(order))

    samples = asyncio.run(interleaved(2, {"one": one, "two": two}))

    assert ["one", "two"] * 3 == order
    assert {"one": [3.0, 5.0], "two": [4.0, 6.0]} == samples


def test_a_measure_is_held_against_the_reference_before_and_after_it() -> None:
    rates = iter([100.0, 300.0])

    async def reference() -> float:
        return next(rates)

    async def measure() -> float:
        return 50.0

    assert 0.25 == asyncio.run(_value(against(reference, measure)))


async def _value(measure: Measure) -> float:
    return await measure()
