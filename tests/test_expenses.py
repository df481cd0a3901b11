"""What a run spent: its own attempts, its children and successors, and nothing that its source had paid for."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import satay
from satay import Variant
from satay.expenses import spent_cost
from satay.model import RunStatus
from satay.testing import AppUnderTest, ManualClock, open_app, pause

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path, clock=ManualClock(autojump=True)) as app:
        yield app


@satay.task(name="expenses.spend")
async def spend(cost: float) -> str:
    satay.task_context().record_usage(model="fake", cost=cost)
    return f"for {cost}"


@satay.task(name="expenses.spend_and_wait")
async def spend_and_wait(cost: float) -> None:
    satay.task_context().record_usage(model="fake", cost=cost)
    await pause(60)


@satay.task(name="expenses.fail", retries=1)
async def fail(cost: float) -> None:
    satay.task_context().record_usage(model="fake", cost=cost)
    raise ValueError("no luck")


@satay.workflow(name="expenses.side_by_side")
async def side_by_side() -> list[str]:
    drafts = await satay.gather(*(spend(1.0) for _ in range(4)))
    return [*drafts, await spend(0.25)]


@satay.workflow(name="expenses.child")
async def child(depth: int) -> None:
    await spend(0.5)
    if depth:
        await satay.start_child(child, depth - 1).result()


@satay.workflow(name="expenses.with_children")
async def with_children(depth: int) -> None:
    await spend(0.25)
    await satay.start_child(child, depth).result()


@satay.workflow(name="expenses.in_rounds")
async def in_rounds(rounds: int) -> str:
    await spend(1.0)
    await satay.sleep(10)
    if rounds < 0:
        raise ValueError("it fails in the end")
    if rounds != 1:
        satay.continue_as_new(rounds - 1)
    return "done"


@satay.workflow(name="expenses.with_rounds")
async def with_rounds() -> str:
    return await satay.start_child(in_rounds, 3).result()


@satay.workflow(name="expenses.wasteful")
async def wasteful() -> None:
    try:
        await fail(1.0)
    except ValueError:
        await spend(0.5)


async def cost_of(app: AppUnderTest, run_id: str) -> float:
    archive = (await app.scheduler()).archive
    return await spent_cost(archive, await archive.record(run_id))


async def test_every_attempt_is_paid_for(app: AppUnderTest) -> None:
    await app.start(wasteful, run_id="src").result()

    assert 2.5 == await cost_of(app, "src")


async def test_what_a_fork_inherits_and_keeps_is_not_paid_for_again(app: AppUnderTest) -> None:
    await app.start(side_by_side, run_id="src").result()
    fork = await app.fork("src", before_task=spend, before_ordinal=2, keep_siblings=True, run_id="fork")
    await fork.result()

    assert 4.25 == await cost_of(app, "src")
    assert 1.25 == await cost_of(app, "fork")


async def test_what_a_policy_answers_is_not_paid_for_again(app: AppUnderTest) -> None:
    await app.start(side_by_side, run_id="src").result()
    fork = await app.fork("src", fork_point_seq=1, tool_policies={"*": "replay"}, run_id="fork")
    await fork.result()

    assert 0.0 == await cost_of(app, "fork")


async def test_children_are_paid_for_at_any_depth(app: AppUnderTest) -> None:
    await app.start(with_children, 2, run_id="src").result()

    assert 0.25 + 3 * 0.5 == await cost_of(app, "src")


async def test_runs_that_go_on_in_place_of_others_are_paid_for_once(app: AppUnderTest) -> None:
    await app.start(in_rounds, 3, run_id="rounds").result()
    await app.start(with_rounds, run_id="parent").result()

    assert 3.0 == await cost_of(app, "rounds")
    assert 3.0 == await cost_of(app, "parent")


async def test_a_sweep_pays_for_what_its_forks_set_going(app: AppUnderTest) -> None:
    await app.start(with_children, 1, run_id="src").result()
    made = await satay.sweep("src", before_task=spend, variants={"one": 0, "two": 1}, run_id="sw")

    assert {"one": 0.75, "two": 1.25} == {row.variant: row.cost for row in made.rows}


async def test_a_budget_sees_what_children_spend(app: AppUnderTest) -> None:
    await app.start(with_children, 1, run_id="src").result()
    made = await satay.sweep(
        "src", before_task=spend, variants={"one": 1}, repeats=5, concurrency=1, budget=satay.Budget(cost=2.0)
    )

    assert 2 == made.rows[0].completed


async def test_a_sweep_pays_for_no_sibling_that_is_kept(app: AppUnderTest) -> None:
    await app.start(side_by_side, run_id="src").result()
    variants = {"one": Variant(intervention=1)}
    made = await satay.sweep("src", before_task=spend, before_ordinal=1, keep_siblings=True, variants=variants)

    assert 1.25 == made.cost


async def test_a_trial_that_goes_on_as_a_new_run_ends_as_that_one_does(app: AppUnderTest) -> None:
    await app.start(in_rounds, 1, run_id="src").result()
    made = await satay.sweep("src", fork_point_seq=1, variants={"good": 2, "bad": 0}, score=lambda text: True)
    good, bad = made.rows

    assert ("good", 1, 1.0) == (good.variant, good.completed, good.pass_rate)
    assert ("bad", 0, None) == (bad.variant, bad.completed, bad.pass_rate)
    assert (RunStatus.FAILED, "ValueError: it fails in the end") == (bad.trials[0].status, bad.trials[0].error)
    assert [20.0, 20.0] == [row.seconds for row in made.rows]


async def test_a_plan_tells_the_cost_of_a_kept_sibling_once(app: AppUnderTest) -> None:
    await app.start(side_by_side, run_id="src").result()
    fork = await app.fork("src", before_task=spend, before_ordinal=1, keep_siblings=True, run_id="fork")
    await fork.result()
    plan = await app.plan_fork("fork", before_task=spend)

    assert [1.0, 1.0, 1.0, 1.0, 0.25] == [call.cost for call in plan.calls]
    assert 4.25 == plan.expected_cost


@satay.workflow(name="expenses.race")
async def race() -> str:
    try:
        async with asyncio.timeout(5):
            await spend_and_wait(2.0)
    except TimeoutError:
        pass
    return await spend(0.5)


async def test_what_a_call_had_spent_when_it_was_given_up_is_paid_for(app: AppUnderTest) -> None:
    await app.start(race, run_id="src").result()
    comparison = await satay.compare("src", "src")

    assert 2.5 == await cost_of(app, "src")
    assert [0.0, 2.0, 0.5] == [call.one.usage.cost for call in comparison.calls if call.one is not None]
