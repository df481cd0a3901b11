"""Sweeps: trials are made once whatever dies, within their limits, and are scored and ranked."""

import asyncio
import functools
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

import pytest

import satay
from satay import Budget, RunStatus, Sweep, Trial, Variant
from satay.errors import (
    EncodeError,
    ForkValidationError,
    InvalidValueError,
    NotHereError,
    RunConflictError,
    RunNotFoundError,
    SatayError,
    StalePrefixError,
    UsageError,
    WorkflowCancelledError,
)
from satay.handles import RunOrId
from satay.model import EntryType
from satay.requests import parse_options
from satay.sweeps import SWEEP, ranked, trial_id, wilson_interval
from satay.testing import AppUnderTest, Faults, ManualClock, open_app, pause, settle
from tests.programs.effects import EFFECTS_VARIABLE, read_effects
from tests.programs.starting import Program, wait_until
from tests.programs.terminals import on_terminal

pytestmark = pytest.mark.anyio

ran: list[str] = []
"""What the bodies of tasks and judges did, in this process."""

at_work: list[int] = []
"""How many bodies of `write_slowly` ran at a time, whenever one began."""

began: asyncio.Queue[int] = asyncio.Queue()
"""The numbers with which bodies of `wait_long` began."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _forget_what_ran() -> None:
    global began
    began = asyncio.Queue()  # One belongs to the event loop of its test.
    ran.clear()
    at_work.clear()


@dataclass(frozen=True)
class Brief:
    topic: str
    style: str


@satay.task(name="sweeps.research")
async def research(topic: str) -> list[str]:
    ran.append("research")
    satay.task_context().record_usage(model="fake", input_tokens=9, output_tokens=9, cost=5.0)
    return [f"{topic} is old", f"{topic} is round"]


@satay.task(name="sweeps.write")
async def write(notes: list[str], style: str) -> str:
    ran.append(f"write {style}")
    satay.task_context().record_usage(model="fake", input_tokens=1, output_tokens=1, cost=0.5)
    if style == "broken":
        raise ValueError("it cannot be written\nin this style")
    return f"{style}: {', '.join(notes)}, {satay.intervention()}"


@satay.workflow(name="sweeps.report")
async def report(brief: Brief) -> str:
    return await write(await research(brief.topic), brief.style)


def starts_with_s(text: str) -> bool:
    ran.append(f"judge {text.partition(':')[0]}")
    return text.startswith("s")


def length(text: str) -> int:
    return len(text)


@satay.task(name="sweeps.rate")
async def rate(text: str) -> float:
    ran.append("rate")
    return 0.5 if text.startswith("s") else 0.25


STYLES = {"plain": Brief("acme", "plain"), "sceptical": Brief("acme", "sceptical"), "warm": Brief("acme", "warm")}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    """An app with a finished run `src`."""
    async with open_app(tmp_path) as app:
        await make_source(app)
        yield app


async def make_source(app: AppUnderTest) -> None:
    await app.start(report, Brief("acme", "dull"), run_id="src").result()
    ran.clear()


async def sweep(source: RunOrId = "src", **options: Any) -> Sweep:
    given: dict[str, Any] = {"before_task": write, "variants": STYLES, "run_id": "sw"} | options
    return await satay.sweep(source, **given)


def odd_variant(**options: Any) -> Variant:
    """A variant whose options no type checker would let pass."""
    return Variant(**options)


def everything(place: Path) -> list[Any]:
    """Every row of runs and their journals."""
    connection = sqlite3.connect(place / "satay.db")
    with connection:
        found = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("runs", "events", "inbox")]
    connection.close()
    return found


def rows_of(place: Path, run_id: str) -> list[Any]:
    """Every row of one run."""
    connection = sqlite3.connect(place / "satay.db")
    with connection:
        runs = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchall()
        found = [*runs, *connection.execute("SELECT * FROM events WHERE run = ?", (runs[0][0],)).fetchall()]
    connection.close()
    return found


# --- what comes of a sweep --------------------------------------------------------------------------------------------


async def test_a_sweep_forks_once_for_each_variant_and_repeat_and_pays_for_the_prefix_once(app: AppUnderTest) -> None:
    made = await sweep(repeats=2)

    assert {"write plain": 2, "write sceptical": 2, "write warm": 2} == Counter(ran)
    assert ["plain", "sceptical", "warm"] == sorted(row.variant for row in made.rows)
    assert [2, 2, 2] == [row.completed for row in made.rows]
    assert {f"sw/{name}:{repeat}" for name in STYLES for repeat in range(2)} == {
        trial.run_id for row in made.rows for trial in row.trials
    }


async def test_rows_are_ranked_by_their_mean_score_and_name_their_best_fork(app: AppUnderTest) -> None:
    scores = iter([1, 9, 2, 3, 1, 4])
    made = await sweep(repeats=2, score=lambda text: next(scores), concurrency=1)

    assert [("sceptical", 5.0, "sw/sceptical:0"), ("plain", 2.0, "sw/plain:1"), ("warm", 3.0, "sw/warm:1")] == [
        (row.variant, row.score, row.run_id) for row in sorted(made.rows, key=lambda row: row.variant == "warm")
    ]
    assert ["sceptical", "warm", "plain"] == [row.variant for row in made.rows]
    assert ("sceptical", "sw/sceptical:0") == (made.best.variant, made.best.run_id)
    assert [None, None, None] == [row.pass_rate for row in made.rows]


async def test_a_judge_that_passes_or_fails_gives_a_share_with_its_wilson_interval(app: AppUnderTest) -> None:
    made = await sweep(repeats=2, score=starts_with_s)

    assert ("sceptical", 1.0, 1.0) == (made.best.variant, made.best.score, made.best.pass_rate)
    assert wilson_interval(2, 2) == made.best.interval
    assert [0.0, 0.0] == [row.pass_rate for row in made.rows[1:]]
    assert "100% (34%–100%)" in str(made)


async def test_cost_and_time_are_those_of_the_fork_itself(app: AppUnderTest) -> None:
    made = await sweep(repeats=2)

    assert [1.0, 1.0, 1.0] == [row.cost for row in made.rows]
    assert 3.0 == made.cost
    assert all(trial.cost == 0.5 and trial.seconds >= 0 for row in made.rows for trial in row.trials)


async def test_forks_of_a_sweep_are_its_children_and_forks_of_the_source(app: AppUnderTest) -> None:
    await sweep()
    runs = {run.run_id: run for run in await app.runs()}

    assert {"src", "sw", "sw/plain:0", "sw/sceptical:0", "sw/warm:0"} == runs.keys()
    assert {"sw"} == {run.parent_id for name, run in runs.items() if name.startswith("sw/")}
    assert {"src"} == {run.forked_from for name, run in runs.items() if name.startswith("sw/")}
    assert (SWEEP, RunStatus.COMPLETED) == (runs["sw"].workflow, runs["sw"].status)


async def test_the_source_is_never_touched(app: AppUnderTest) -> None:
    before = rows_of(app.data_dir, "src")
    await sweep(repeats=2, score=length)

    assert before == rows_of(app.data_dir, "src")


async def test_a_sweep_is_plain_data_and_a_table(app: AppUnderTest) -> None:
    made = await sweep(variants={"plain": STYLES["plain"], "broken": Brief("acme", "broken")}, score=length)
    data = made.to_dict()

    assert ("sw", "src", ["plain", "broken"]) == (
        data["run_id"],
        data["source_id"],
        [row["variant"] for row in data["rows"]],
    )
    assert {"run_id", "score", "cost", "error"} < data["rows"][0]["trials"][0].keys()
    assert "sw/plain:0" in str(made)
    assert "broken:0 ValueError: it cannot be written" in str(made)
    assert all(len(line) <= 100 for line in str(made).splitlines())


async def test_a_sweep_without_a_run_id_gets_an_id(app: AppUnderTest) -> None:
    made = await sweep(run_id=None)

    assert RunStatus.COMPLETED == await app.status(made.run_id)


async def test_a_source_may_be_given_by_its_handle(app: AppUnderTest) -> None:
    made = await sweep(app.resume("src"))

    assert "src" == made.source_id


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passed", "of", "low", "high"),
    [  # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 1 - 0.1611, 1.0),
    ],
)
def test_the_wilson_interval_has_its_known_values(passed: int, of: int, low: float, high: float) -> None:
    interval = wilson_interval(passed, of)

    assert pytest.approx((low, high), abs=5e-5) == interval


def test_the_wilson_interval_reaches_the_ends_and_never_passes_them() -> None:
    for of in range(1, 300):
        assert 0.0 == wilson_interval(0, of)[0]
        assert 1.0 == wilson_interval(of, of)[1]
        assert all(0.0 < bound < 1.0 for passed in range(1, of) for bound in wilson_interval(passed, of))


def trial(variant: str, score: float | bool | None, repeat: int = 0, **others: Any) -> Trial:
    return Trial(
        variant, repeat, **({"run_id": f"{variant}:{repeat}", "status": RunStatus.COMPLETED, "score": score} | others)
    )


def test_rows_without_a_score_come_last_those_with_more_completed_trials_first() -> None:
    trials = [
        trial("fails", None, status=RunStatus.FAILED),
        trial("unscored", None),
        trial("low", -3.0),
        trial("none", None, run_id=None, status=None),
        trial("high", 0.5),
        trial("dear", 0.5, cost=2.0),
    ]

    assert ["high", "dear", "low", "unscored", "fails", "none"] == [row.variant for row in ranked(trials)]


def test_scores_that_are_not_all_pass_or_fail_have_no_interval() -> None:
    (row,) = ranked([trial("mixed", True), trial("mixed", 0.5, 1)])

    assert (0.75, None, None) == (row.score, row.pass_rate, row.interval)


def test_a_trial_that_failed_has_not_passed() -> None:
    failed = [trial("crashes", None, repeat, status=RunStatus.FAILED) for repeat in range(1, 4)]
    (row,) = ranked([trial("crashes", True), *failed])

    assert (0.25, 0.25, 1) == (row.pass_rate, row.score, row.completed)
    assert wilson_interval(1, 4) == row.interval


def test_the_best_fork_of_a_row_is_a_scored_one_however_low_its_score() -> None:
    (row,) = ranked([trial("a", None), trial("a", -1.7e308, 1)])

    assert "a:1" == row.run_id


def test_a_sweep_of_which_no_trial_completed_has_no_best() -> None:
    empty = Sweep("sw", "src", ranked([trial("fails", None, status=RunStatus.FAILED)]))

    with pytest.raises(UsageError, match="no trial of sweep 'sw' completed"):
        _ = empty.best


@pytest.mark.parametrize("scored", [True, False, 1.0, 0.0, 3, -2.5, None])
async def test_a_score_is_handed_on_as_what_it_is(app: AppUnderTest, scored: Any) -> None:
    made = await sweep(variants={"plain": STYLES["plain"]}, score=lambda text: scored)
    again = await sweep(variants={"plain": STYLES["plain"]}, score=lambda text: scored)

    for row in (made.best, again.best):
        assert (scored, type(scored) if not isinstance(scored, int) or isinstance(scored, bool) else float) == (
            row.trials[0].score,
            type(row.trials[0].score),
        )


@pytest.mark.parametrize("scored", ["good", nan, inf, [1], 1 + 2j])
async def test_a_score_that_is_no_number_is_told_in_its_trial(app: AppUnderTest, scored: Any) -> None:
    made = await sweep(score=lambda text: scored if text.startswith("plain") else 1.0)
    odd = made.rows[-1]

    assert ("plain", None, 1) == (odd.variant, odd.score, odd.completed)
    assert "could not be scored: InvalidValueError" in str(odd.trials[0].error)
    assert "a score is a finite number, a bool, or None" in str(odd.trials[0].error)


async def test_a_judge_that_fails_is_told_in_its_trial_and_the_others_are_scored(app: AppUnderTest) -> None:
    def fussy(text: str) -> int:
        if text.startswith("plain"):
            raise RuntimeError("too plain\nfor me")
        return 1

    made = await sweep(score=fussy)

    assert ["sceptical", "warm", "plain"] == [row.variant for row in made.rows]
    assert "could not be scored: RuntimeError: too plain" == made.rows[-1].trials[0].error


async def test_a_failing_trial_is_in_its_row_with_its_error_and_is_not_judged(app: AppUnderTest) -> None:
    made = await sweep(variants={"broken": Brief("acme", "broken"), **STYLES}, score=starts_with_s)
    broken = made.rows[-1]

    assert ("broken", 0, None, None) == (broken.variant, broken.completed, broken.score, broken.run_id)
    assert (RunStatus.FAILED, "sw/broken:0", "ValueError: it cannot be written") == (
        broken.trials[0].status,
        broken.trials[0].run_id,
        broken.trials[0].error,
    )
    assert "judge broken" not in ran


async def test_an_async_judge_is_awaited(app: AppUnderTest) -> None:
    async def slow(text: str) -> int:
        await pause(0)
        return len(text)

    made = await sweep(score=slow)

    assert "sceptical" == made.best.variant


async def test_a_judge_may_be_a_task(app: AppUnderTest) -> None:
    made = await sweep(score=rate)

    assert ("sceptical", 0.5) == (made.best.variant, made.best.score)
    assert 3 == ran.count("rate")


class Judge:
    """A judge with a threshold of its own."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def __call__(self, text: str) -> bool:
        return len(text) > self.threshold

    def method(self, text: str) -> bool:
        return self(text)


def above(threshold: int, text: str) -> bool:
    return len(text) > threshold


@pytest.mark.parametrize(
    "judge", [Judge(40), Judge(40).method, functools.partial(above, 40), lambda text: len(text) > 40]
)
async def test_a_judge_may_be_anything_that_can_be_called(app: AppUnderTest, judge: Callable[[str], bool]) -> None:
    made = await sweep(score=judge)

    assert ("sceptical", True, [True, False, False]) == (
        made.best.variant,
        made.best.trials[0].score,
        [row.trials[0].score for row in made.rows],
    )


async def test_the_judge_is_given_the_result_as_the_workflow_declares_it(app: AppUnderTest) -> None:
    seen: list[object] = []

    await app.start(entitle, Brief("acme", "dull"), run_id="titles").result()
    await sweep("titles", variants={"plain": STYLES["plain"]}, score=lambda title: seen.append(title))

    assert [Title("plain: acme is old, acme is round, None", 3)] == seen


@dataclass(frozen=True)
class Title:
    text: str
    words: int


@satay.workflow(name="sweeps.entitle")
async def entitle(brief: Brief) -> Title:
    return Title(await write(await research(brief.topic), brief.style), 3)


# --- limits -----------------------------------------------------------------------------------------------------------


@satay.task(name="sweeps.write_slowly")
async def write_slowly(number: int) -> int:
    at_work.append(at_work[-1] + 1 if at_work else 1)
    await pause(0.1)
    at_work.append(at_work[-1] - 1)
    return number


@satay.workflow(name="sweeps.number")
async def number(value: int) -> int:
    return await write_slowly(value)


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (50, 12)])
async def test_at_most_so_many_trials_run_at_a_time(app: AppUnderTest, concurrency: int, most: int) -> None:
    await app.start(number, 0, run_id="zero").result()
    at_work.clear()
    made = await satay.sweep(
        "zero", before_task=write_slowly, variants={f"v{n}": n for n in range(6)}, repeats=2, concurrency=concurrency
    )

    assert most == max(at_work)
    assert 12 == sum(row.completed for row in made.rows)


async def test_no_trial_begins_once_the_cost_is_spent(app: AppUnderTest) -> None:
    made = await sweep(repeats=3, concurrency=1, budget=Budget(cost=1.6))

    assert 4 == len(ran)
    assert 2.0 == made.cost
    assert 5 == sum(trial.is_skipped for row in made.rows for trial in row.trials)
    assert "Not begun, because the budget was spent: 5." in str(made)
    assert RunStatus.COMPLETED == await app.status("sw")


async def test_what_judges_spend_counts_for_the_budget(app: AppUnderTest) -> None:
    def dear(text: str) -> bool:
        satay.task_context().record_usage(model="judge", cost=4.0)
        return True

    made = await sweep(score=dear, budget=Budget(cost=9.0), concurrency=1)

    assert [1, 1, 0] == [row.completed for row in made.rows]
    assert 1.0 == made.cost


async def test_options_may_be_any_mapping(app: AppUnderTest) -> None:
    policies = MappingProxyType({"sweeps.write": "block"})
    overrides: Mapping[tuple[str, int | str], Any] = MappingProxyType({("sweeps.research", 0): ["nothing"]})
    variants = {"blocked": Variant(tool_policies=policies), "given": Variant(overrides=overrides)}
    made = await satay.sweep("src", fork_point_seq=1, variants=variants, run_id="sw")

    assert {"blocked": 0, "given": 1} == {row.variant: row.completed for row in made.rows}


async def test_no_more_trials_begin_than_the_budget_has_runs_and_every_variant_gets_its_first(
    app: AppUnderTest,
) -> None:
    made = await sweep(repeats=3, concurrency=4, budget=Budget(runs=4))

    assert {"write plain": 2, "write sceptical": 1, "write warm": 1} == Counter(ran)
    assert {"plain": 2, "sceptical": 1, "warm": 1} == {row.variant: row.completed for row in made.rows}


async def test_a_budget_of_nothing_begins_nothing(app: AppUnderTest) -> None:
    made = await sweep(budget=Budget(runs=0))

    assert [] == ran
    assert [None, None, None] == [row.run_id for row in made.rows]


@pytest.mark.parametrize(
    "budget",
    [
        {"cost": -1.0},
        {"cost": nan},
        {"cost": inf},
        {"cost": "1"},
        {"cost": True},
        {"runs": -1},
        {"runs": 1.5},
        {"runs": True},
        {"runs": 10**9},
    ],
)
def test_a_budget_is_numbers_that_are_not_negative(budget: Any) -> None:
    with pytest.raises(InvalidValueError, match="of a budget is"):
        Budget(**budget)


# --- variants ---------------------------------------------------------------------------------------------------------


class Order(TypedDict):
    style: str


@satay.workflow(name="sweeps.typed")
async def typed(order: Order) -> str:
    return await write(["typed"], order["style"])


@satay.workflow(name="sweeps.plain")
async def plain(style: str) -> str:
    return await write(["plain"], style)


async def test_inputs_may_be_typed_dicts_and_plain_values(app: AppUnderTest) -> None:
    await app.start(typed, {"style": "dull"}, run_id="typed").result()
    await app.start(plain, "dull", run_id="plain").result()
    typed_sweep = await sweep("typed", variants={"warm": {"style": "warm"}}, run_id="a")
    plain_sweep = await sweep("plain", variants={"warm": "warm"}, run_id="b")

    assert "warm: typed, None" == await app.resume(typed_sweep.best.run_id).result()
    assert "warm: plain, None" == await app.resume(plain_sweep.best.run_id).result()


async def test_inputs_may_be_of_a_local_class(app: AppUnderTest) -> None:
    @dataclass
    class Local:
        style: str

    @satay.workflow(name="sweeps.local")
    async def local(order: Local) -> str:
        return await write(["local"], order.style)

    await app.start(local, Local("dull"), run_id="local").result()
    made = await sweep("local", variants={"warm": Local("warm"), "cold": Local("cold")}, score=length)

    assert "warm: local, None" == await app.resume("sw/warm:0").result()
    assert [1, 1] == [row.completed for row in made.rows]


async def test_a_variant_may_differ_in_any_option_of_a_fork(app: AppUnderTest) -> None:
    made = await sweep(
        variants={
            "input": Variant(workflow_input=Brief("acme", "warm")),
            "intervention": Variant(intervention={"model": "b"}),
            "blocked": Variant(tool_policies={"sweeps.write": "block"}),
            "override": Variant(overrides={("sweeps.write", 0): "given"}),
            "later": odd_variant(before_task=None, fork_point_seq=3),
        },
        workflow_input=Brief("acme", "cold"),
    )
    results = {row.variant: row.trials[0] for row in made.rows}
    texts = {
        name: await app.resume(f"sw/{name}:0").result()
        for name, trial in results.items()
        if trial.status is RunStatus.COMPLETED
    }

    assert {
        "input": "warm: acme is old, acme is round, None",
        "intervention": "cold: acme is old, acme is round, {'model': 'b'}",
        "override": "given",
        "later": "cold: acme is old, acme is round, None",
    } == texts
    assert (RunStatus.FAILED, True) == (
        results["blocked"].status,
        str(results["blocked"].error).startswith("TaskBlockedError: "),
    )


async def test_options_of_a_variant_win_over_those_of_the_sweep(app: AppUnderTest) -> None:
    await sweep(variants={"a": Variant(intervention=1), "b": Variant()}, intervention=2)

    assert (1, 2) == (
        (await satay.receipt("sw/a:0")).intervention,  # type: ignore[union-attr]  # it is a fork
        (await satay.receipt("sw/b:0")).intervention,  # type: ignore[union-attr]  # it is a fork
    )


async def test_a_name_of_a_variant_may_be_whatever_a_run_id_may_have(app: AppUnderTest) -> None:
    names = ["a", "openai/mini", "v=1", "a:0", "1", "x.y@z+w-v_u"]
    made = await sweep(variants=dict.fromkeys(names, STYLES["plain"]))

    assert {trial_id("sw", name, 0) for name in names} == {row.run_id for row in made.rows}


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"variants": {}}, InvalidValueError, "give a mapping of names to inputs"),
        ({"variants": [1, 2]}, InvalidValueError, "give a mapping of names to inputs"),
        ({"variants": None}, InvalidValueError, "give a mapping of names to inputs"),
        ({"variants": {1: STYLES["plain"]}}, InvalidValueError, "variant 1 cannot be part of a run id"),
        ({"variants": {"": STYLES["plain"]}}, InvalidValueError, "variant '' cannot be part of a run id"),
        ({"variants": {"a b": STYLES["plain"]}}, InvalidValueError, "variant 'a b' cannot"),
        ({"variants": {"a~2": STYLES["plain"]}}, InvalidValueError, "variant 'a~2' cannot"),
        ({"variants": {"../a": STYLES["plain"]}}, InvalidValueError, "variant '../a' cannot"),
        ({"variants": {"a/": STYLES["plain"]}}, InvalidValueError, "variant 'a/' cannot"),
        ({"variants": {"ä": STYLES["plain"]}}, InvalidValueError, "variant 'ä' cannot"),
        ({"variants": {"a" * 198: STYLES["plain"]}}, InvalidValueError, "which is no run id; give a shorter name"),
        ({"variants": {"a": STYLES["plain"], "b": "no brief"}}, SatayError, "the input of workflow 'sweeps.report'"),
        ({"variants": {"a": STYLES["plain"], "b": "no brief"}}, EncodeError, "variant 'b' cannot be: argument 'brief'"),
        ({"variants": {"a": Variant(before_task="wriet")}}, ForkValidationError, "never scheduled a task named"),
        ({"variants": {"a": odd_variant(before_tsk="write")}}, UsageError, "did you mean 'before_task'"),
        ({"variants": {"a": odd_variant(run_id="x")}}, UsageError, "a fork has no option 'run_id'"),
        ({"variants": {"a": Variant(tool_policies={"write": "blok"})}}, SatayError, "blok"),
        ({"variants": {"a": Variant(raises={("sweeps.write", 0): ValueError()})}}, InvalidValueError, "raises="),
        ({"repeats": 0}, InvalidValueError, "repeats of a sweep is 0"),
        ({"repeats": 1.5}, InvalidValueError, "repeats of a sweep is 1.5"),
        ({"repeats": 4_000}, InvalidValueError, "trials of a sweep is 12000"),
        ({"concurrency": 0}, InvalidValueError, "concurrency of a sweep is 0"),
        ({"concurrency": True}, InvalidValueError, "concurrency of a sweep is True"),
        ({"budget": 5}, InvalidValueError, "budget=5 is no budget"),
        ({"score": 5}, InvalidValueError, "score=5 scores nothing"),
        ({"run_id": "sw~2"}, InvalidValueError, "run id 'sw~2' cannot be used"),
        ({"run_id": "a" * 195}, InvalidValueError, "which is no run id; give a shorter name"),
        ({"before_task": "wriet"}, ForkValidationError, "never scheduled a task named 'wriet'"),
        ({"before_ordinal": 7}, ForkValidationError, "has the ordinal 7"),
        ({"nonsense": 7}, UsageError, "a fork has no option 'nonsense'"),
        ({"tool_policies": {"sweeps.wriet": "block"}}, SatayError, "sweeps.wriet"),
        ({"source": "scr"}, RunNotFoundError, "there is no run 'scr'"),
        ({"on_stale": "error", "before_task": write, "variants": {"a": Brief("other", "warm")}}, StalePrefixError, ""),
        ({"expected_head": 3}, ForkValidationError, "expected_head=3"),
    ],
)
async def test_what_cannot_be_is_one_clear_error_and_nothing_is_written(
    app: AppUnderTest, options: dict[str, Any], error: type[Exception], told: str
) -> None:
    await settle(app)
    before = everything(app.data_dir)
    with pytest.raises(error) as raised:
        await sweep(**options)
    await settle(app)

    assert told in str(raised.value)
    assert before == everything(app.data_dir)


async def test_a_source_that_has_not_ended_is_refused_unless_that_is_allowed(app: AppUnderTest) -> None:
    @satay.workflow(name="sweeps.waits")
    async def waits(style: str) -> str:
        text = await write([], style)
        await satay.wait_for_event("never", timeout=1_000)
        return text

    await app.start(waits, "dull", run_id="waiting")
    with pytest.raises(ForkValidationError, match="pass allow_unfinished=True"):
        await sweep("waiting", variants={"a": "warm"})


async def test_another_sweep_under_the_same_id_is_refused_and_changes_nothing(app: AppUnderTest) -> None:
    await sweep()
    await settle(app)
    before = everything(app.data_dir)
    for other in ({"repeats": 2}, {"score": length}, {"intervention": 1}, {"concurrency": 3}, {"source": "sw/warm:0"}):
        with pytest.raises(RunConflictError, match="run 'sw' is there already"):
            await sweep(**other)

    assert before == everything(app.data_dir)


async def test_a_trial_whose_id_is_taken_is_told_in_its_row_and_the_others_are_made(app: AppUnderTest) -> None:
    await app.start(plain, "dull", run_id="sw/plain:0").result()
    made = await sweep(score=length)
    taken = made.rows[-1].trials[0]

    assert ("plain", None, False) == (taken.variant, taken.run_id, taken.is_skipped)
    assert "RunConflictError: run 'sw/plain:0' is there already" in str(taken.error)
    assert [1, 1, 0] == [row.completed for row in made.rows]


# --- crashes ----------------------------------------------------------------------------------------------------------


async def swept(place: Path, faults: Faults) -> Sweep | None:
    """Sweep until it ends, or the app crashes."""
    async with open_app(place, faults=faults) as app:
        sweeping = asyncio.ensure_future(sweep(score=starts_with_s, concurrency=1, repeats=1))
        await asyncio.wait([sweeping])
        return None if sweeping.exception() is not None and app.faults.is_crashed else sweeping.result()


async def ended_runs(place: Path) -> set[str]:
    async with open_app(place) as app:
        return {run.run_id for run in await app.runs(status=RunStatus.COMPLETED)}


async def test_a_sweep_that_crashes_after_any_entry_goes_on_and_repeats_no_finished_trial(tmp_path: Path) -> None:
    expected = ["sceptical", "plain", "warm"]
    entries = 0
    while True:
        entries += 1
        place = tmp_path / str(entries)
        async with open_app(place) as app:
            await make_source(app)
        faults = Faults().crash_after(entries=entries)
        made = await swept(place, faults)
        if made is not None and not faults.is_crashed:
            break
        before = list(ran)
        ended = await ended_runs(place)
        if entries % 2:
            again = await swept(place, Faults())
            assert again is not None
            rows = again.rows
        else:
            async with open_app(place) as app:
                if "sw" not in {run.run_id for run in await app.runs()}:
                    continue
                rows = ranked(await app.resume("sw").result())
        repeated = [what for what in ran[len(before) :] if what.startswith("write ")]

        assert expected == [row.variant for row in rows]
        assert [1.0, 0.0, 0.0] == [row.pass_rate for row in rows]
        assert [] == [style for style in STYLES if f"sw/{style}:0" in ended and f"write {style}" in repeated]
        assert len([what for what in ran if what.startswith("write ")]) <= len(STYLES) + 1
        assert len([what for what in ran if what.startswith("judge ")]) <= len(STYLES) + 1
    assert entries > 25


async def test_a_sweep_that_has_ended_answers_from_its_journal(app: AppUnderTest) -> None:
    first = await sweep(score=starts_with_s, repeats=2)
    await settle(app)
    before = everything(app.data_dir)
    ran.clear()
    again = await sweep(score=starts_with_s, repeats=2)

    assert first == again
    assert [] == ran
    assert before == everything(app.data_dir)


async def test_the_same_sweep_asked_for_twice_at_once_is_made_once(app: AppUnderTest) -> None:
    judge: Callable[[str], bool] = lambda text: text.startswith("s")  # noqa: E731  # A judge without a name.
    one, other = await asyncio.gather(sweep(score=judge), sweep(score=judge))

    assert one == other
    assert {"write plain": 1, "write sceptical": 1, "write warm": 1} == Counter(ran)


async def test_a_caller_that_gives_up_does_not_disturb_the_sweep(app: AppUnderTest) -> None:
    sweeping: asyncio.Future[Sweep] = asyncio.ensure_future(sweep(score=lambda text: sweeping.cancel(), concurrency=1))
    with pytest.raises(asyncio.CancelledError):
        await sweeping
    trials = await app.handle("sw").result()

    assert [True, False, False] == [trial.score for trial in trials]


async def test_what_only_the_caller_can_give_is_missed_by_another_process_and_taken_when_it_is_given_again(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path) as app:
        await make_source(app)
    judge = functools.partial(above, 40)
    faults = Faults().crash_after(type=EntryType.RUN_FORKED)
    async with open_app(tmp_path, faults=faults):
        lost = asyncio.ensure_future(sweep(score=judge, concurrency=1))
        await faults.crashed
        await asyncio.wait([lost])
        lost.exception()
    async with open_app(tmp_path) as app:
        with pytest.raises(NotHereError, match=r"sweep 'sw' cannot go on in this process: it does not know the judge"):
            await app.resume("sw").result()
        made = await sweep(score=judge, concurrency=1)

    assert [True, False, False] == [row.trials[0].score for row in made.rows]
    assert {"write plain": 1, "write sceptical": 1, "write warm": 1} == Counter(ran)


async def test_the_judge_of_a_sweep_that_was_refused_scores_no_other_sweep_of_that_id(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await make_source(app)
    faults = Faults().crash_after(type=EntryType.RUN_FORKED)
    async with open_app(tmp_path, faults=faults):
        lost = asyncio.ensure_future(sweep(score=length, concurrency=1))
        await faults.crashed
        await asyncio.wait([lost])
        lost.exception()
    async with open_app(tmp_path) as app:
        with pytest.raises(RunConflictError):
            await sweep(score=lambda text: -1, concurrency=1)
        trials = await app.resume("sw").result()

    assert all(trial.score > 0 for trial in trials)


# --- cancelling -------------------------------------------------------------------------------------------------------


@satay.task(name="sweeps.wait_long")
async def wait_long(number: int) -> int:
    began.put_nowait(number)
    if number:
        await pause(1_000_000.0)
    return number


@satay.workflow(name="sweeps.long")
async def long(number: int) -> int:
    return await wait_long(number)


BEFORE_WAIT = parse_options({"before_task": wait_long, "workflow_input": 1})


async def test_cancelling_a_sweep_cancels_its_forks(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock(), poll_seconds=0.01) as app:
        await app.start(long, 0, run_id="long").result()
        assert 0 == await began.get()
        sweeping = asyncio.ensure_future(
            sweep("long", before_task=wait_long, variants={"a": 1, "b": 2, "c": 3}, concurrency=2)
        )
        assert {1, 2} == {await began.get(), await began.get()}
        await app.cancel("sw")
        with pytest.raises(WorkflowCancelledError):
            await sweeping
        for run_id in ("sw/a:0", "sw/b:0"):
            with pytest.raises(WorkflowCancelledError):
                await app.handle(run_id).result()

        assert began.empty()
        assert [RunStatus.CANCELLED] * 3 == [await app.status(run_id) for run_id in ("sw", "sw/a:0", "sw/b:0")]


async def test_a_fork_that_is_there_only_after_its_parent_has_ended_is_cancelled(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock(), poll_seconds=0.01) as app:
        await app.start(long, 0, run_id="long").result()
        fork = await app.fork_for("long", *await app.find_source("long"), "f", BEFORE_WAIT)
        with pytest.raises(WorkflowCancelledError):
            await fork.result()

        assert RunStatus.CANCELLED == await app.status("f")


async def test_a_trial_that_is_cancelled_is_told_in_its_row(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock(), poll_seconds=0.01) as app:
        await app.start(long, 0, run_id="long").result()
        assert 0 == await began.get()
        sweeping = asyncio.ensure_future(sweep("long", before_task=wait_long, variants={"a": 1, "b": 0}))
        assert {0, 1} == {await began.get(), await began.get()}
        await app.cancel("sw/a:0")
        made = await sweeping

        assert {"a": RunStatus.CANCELLED, "b": RunStatus.COMPLETED} == {
            row.variant: row.trials[0].status for row in made.rows
        }


# --- processes --------------------------------------------------------------------------------------------------------

SWEEPING = """
import asyncio, sys
from pathlib import Path
import satay
{imports}

async def main():
    async with satay.run_app(data_dir=Path(sys.argv[1]), lease_seconds=1, poll_seconds=0.02, grace_seconds=0) as app:
        try:
            {body}
        except satay.errors.NotHereError as error:
            print("not here:", error, flush=True)

asyncio.run(main())
"""

KNOWING = "from tests.programs.sweeping import *"
SWEEP_AGAIN = "print(*[f'{row.variant} {row.pass_rate}' for row in (await sweep(app)).rows], sep=', ', flush=True)"
RESUME = "print(len(await app.resume('sw').result()), flush=True)"


def program(place: Path, body: str, imports: str = KNOWING) -> Program:
    return Program(
        ["-c", SWEEPING.format(body=body, imports=imports), place], variables={EFFECTS_VARIABLE: place / "effects"}
    )


def bodies_that(place: Path, what: str, task: str) -> list[str]:
    """In which runs bodies of a task began or ended, in order."""
    return [effect.run_id for effect in read_effects(place / "effects", [what]) if effect.task == task]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "answer"),
    [(SWEEP_AGAIN, "sceptical 1.0, plain 0.0, warm 0.0, cold 0.0"), (RESUME, "8")],
    ids=["asked for again", "resumed"],
)
async def test_a_sweep_whose_process_is_killed_goes_on_in_another_and_repeats_no_finished_trial(
    tmp_path: Path, body: str, answer: str
) -> None:
    with program(tmp_path, SWEEP_AGAIN) as first:
        wait_until(lambda: len(bodies_that(tmp_path, "ended", "sweeping.write")) >= 4)
        first.kill()
    async with open_app(tmp_path) as app:
        finished = {run.run_id for run in await app.runs(status="completed", forked_from="src")}
    before = bodies_that(tmp_path, "began", "sweeping.write")
    with program(tmp_path, body) as second:
        ended = second.end()
    after = bodies_that(tmp_path, "began", "sweeping.write")[len(before) :]

    assert (0, answer) == (ended.status, ended.last_line), ended
    assert finished
    assert set() == finished & set(after)
    assert 1 == len(bodies_that(tmp_path, "began", "sweeping.research"))
    assert {"src"} | {f"sw/{style}:{n}" for style in ("plain", "sceptical", "warm", "cold") for n in (0, 1)} == {
        *before,
        *after,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    ["", "import tests.programs.sweeping as module; del module.starts_with_s"],
    ids=["without the workflow", "without the judge"],
)
async def test_a_process_that_lacks_the_code_stops_and_loses_nothing_and_another_goes_on(
    tmp_path: Path, imports: str
) -> None:
    with program(tmp_path, SWEEP_AGAIN) as first:
        wait_until(lambda: len(bodies_that(tmp_path, "ended", "sweeping.write")) >= 3)
        first.kill()
    with program(tmp_path, RESUME, imports) as second:
        stopped = second.end()
    async with open_app(tmp_path) as app:
        status = await app.status("sw")
    with program(tmp_path, SWEEP_AGAIN) as third:
        ended = third.end()

    assert 0 == stopped.status, stopped
    assert stopped.last_line.startswith("not here: sweep 'sw' cannot go on in this process"), stopped
    assert not status.is_terminal
    assert (0, "sceptical 1.0, plain 0.0, warm 0.0, cold 0.0") == (ended.status, ended.last_line), ended


@pytest.mark.slow
def test_a_sweep_on_a_terminal_shows_how_many_trials_are_made_and_its_output_is_the_same(tmp_path: Path) -> None:
    source = SWEEPING.format(
        body=SWEEP_AGAIN, imports=f"import os; os.environ[{EFFECTS_VARIABLE!r}] = sys.argv[1] + '/effects'; {KNOWING}"
    )
    status, output, shown = on_terminal(["-c", source, tmp_path / "a"])
    with Program(["-c", source, tmp_path / "b"]) as elsewhere:
        ended = elsewhere.end()

    assert (0, "sceptical 1.0, plain 0.0, warm 0.0, cold 0.0\n") == (status, output)
    assert "8/8" in shown
    assert (output, "") == (ended.output, ended.errors)
