"""Sessions."""

from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import NoRestorableStateError, RunEndedError

pytestmark = pytest.mark.anyio


async def test_a_session_is_forked_at_a_step_and_goes_on_after_it(tmp_path: Path) -> None:
    state: dict[str, Any] = {"n": 0}
    async with satay.run_app(data_dir=tmp_path):
        async with satay.Session("run-42", state_fn=lambda: state) as session:
            for number in range(1, 8):
                state["n"] = number
                await session.step("count", input=number, output={"doubled": 2 * number})
            fork = await session.fork(at_step=5, name="run-42/b", intervention={"model": "candidate"})
        async with fork:
            state["n"] = 60
            step = await fork.step("own")

        assert (6, {"n": 5}, {"model": "candidate"}) == (step.number, fork.inherited_state, fork.intervention)
        assert {"n": 60} == await fork.state_at(6)
        assert (await satay.verify("run-42")).is_intact
        assert (await satay.verify("run-42/b")).is_intact


async def test_a_step_without_a_state_cannot_be_restored_exactly(tmp_path: Path) -> None:
    async with (
        satay.run_app(data_dir=tmp_path),
        satay.Session("s", state_fn=lambda: 1, state_interval=3) as session,
    ):
        for _ in range(9):
            await session.step("step")
        with pytest.raises(NoRestorableStateError) as refused:
            await session.fork(at_step=7, name="s/b")

        assert (6, 9) == (refused.value.before, refused.value.after)


async def test_a_completed_session_is_gone_on_with_only_when_asked(tmp_path: Path) -> None:
    async with satay.run_app(data_dir=tmp_path):
        async with satay.Session("s") as session:
            await session.step("first")
        with pytest.raises(RunEndedError):
            await satay.Session("s").__aenter__()
        async with await satay.Session.resume("s") as again:
            step = await again.step("second")

        assert 2 == step.number
