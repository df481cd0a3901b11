"""Where the running code is."""

import contextvars
import math
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.context import Attempt, TaskContext, current_attempt, current_schedule, require_schedule, task_context
from satay.effects import ForkTerms
from satay.errors import InvalidValueError, UsageError
from satay.loop import WorkflowLoop
from satay.testing import open_app
from tests.driving import in_loop
from tests.stages import PLENTY, Timers


def helper() -> str | None:
    """Called from anywhere; it was handed nothing."""
    schedule = current_schedule()
    return None if schedule is None else schedule.run_id


@satay.task(name="context.task")
async def tells_from_a_task() -> tuple[str | None, str]:
    return helper(), task_context().run_id


@satay.task(name="context.plain_task")
def tells_from_a_thread() -> tuple[str | None, str]:
    return helper(), task_context().run_id


@satay.workflow(name="context.body")
async def tells_from_a_body() -> list[Any]:
    with pytest.raises(UsageError, match="outside a task"):
        task_context()
    return [helper(), require_schedule("this").run_id, await tells_from_a_task(), await tells_from_a_thread()]


def context() -> TaskContext:
    return TaskContext("r", "send", 0, None, 1, "key", "fork key")


class Running:
    """An attempt that makes its context when that is asked for."""

    def __init__(self) -> None:
        self.made = 0

    @property
    def terms(self) -> ForkTerms | None:
        return None

    def task_context(self) -> TaskContext:
        self.made += 1
        return context()

    def check_policy(self, task: object) -> None:
        raise AssertionError("no task is called here")


def in_attempt(attempt: Attempt, call: Any) -> Any:
    def run() -> Any:
        current_attempt.set(attempt)
        return call()

    return contextvars.copy_context().run(run)


def test_the_context_is_that_of_the_attempt_that_runs() -> None:
    attempt = Running()

    assert context() == in_attempt(attempt, task_context)
    assert 1 == attempt.made


def test_outside_of_an_attempt_there_is_no_context() -> None:
    with pytest.raises(UsageError, match=r"task_context\(\) was called outside a task"):
        task_context()


def test_code_finds_its_run_in_a_body_and_its_attempt_in_a_task(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            return await app.start(tells_from_a_body, run_id="r").result()

    assert ["r", "r", (None, "r"), (None, "r")] == in_loop(run())


def test_elsewhere_code_is_in_no_body() -> None:
    async def run() -> str | None:
        return helper()

    assert helper() is None
    assert in_loop(run()) is None


def test_a_loop_that_no_run_is_driven_on_is_in_no_body() -> None:
    loop = WorkflowLoop(Timers())
    told: list[Any] = []
    loop.call_soon(lambda: told.append(helper()))
    assert loop.run_turn(PLENTY)

    assert [None] == told


def test_what_has_a_meaning_in_a_body_only_is_named_where_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^satay.sleep\(\) was called outside a workflow body"):
        require_schedule("satay.sleep()")


def test_what_has_a_meaning_in_a_body_only_says_in_a_session_what_to_use_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_app(tmp_path), satay.Session("s"):
            await satay.require_approval("refund")

    with pytest.raises(UsageError, match=r"^satay.require_approval\(\) was .* such as session.require_approval\(\)$"):
        in_loop(main())


def test_usage_is_gathered_in_the_order_of_its_recording() -> None:
    made = context()
    made.record_usage(model="m1", input_tokens=3, output_tokens=4, cost=0.5)
    made.record_usage(model="m2")

    assert [("m1", 3, 4, 0.5), ("m2", 0, 0, 0.0)] == [
        (use.model, use.input_tokens, use.output_tokens, use.cost) for use in made.usage
    ]


@pytest.mark.parametrize(
    "use",
    [{"input_tokens": -1}, {"output_tokens": -1}, {"cost": -0.1}, {"cost": math.inf}, {"cost": math.nan}],
)
def test_usage_is_finite_and_not_below_zero(use: dict[str, Any]) -> None:
    made = context()

    with pytest.raises(InvalidValueError, match=r"of record_usage\(\) is .*; it must be a (whole|finite) number"):
        made.record_usage(model="m1", **use)

    assert [] == made.usage


def test_two_contexts_have_usage_of_their_own() -> None:
    one, other = context(), context()
    one.record_usage(model="m1")

    assert [] == other.usage
