"""The whole loop of a session: run, fail, fork at the decision, change it, compare, score, promote."""

from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import TaskBlockedError
from satay.testing import open_app
from tests.test_invariants import History

pytestmark = pytest.mark.anyio

ROOT_ID = "research-7f2a"
FORK_ID = "research-7f2a/model-b"


class Agent:
    """An agent of eleven steps that mails at the fifth and the eleventh, and decides at the eighth. It counts."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"notes": [], "mails": 0, "verdict": None}
        self.made: list[int] = []
        self.mailed: list[str] = []

    async def send(self, to: str) -> str:
        self.mailed.append(to)
        return f"sent to {to}"

    async def work(self, session: satay.Session) -> None:
        model = (session.intervention or {"model": "first"})["model"]
        for number in range(session.last_step + 1, 12):
            self.made.append(number)
            if number in (5, 11):
                try:
                    await session.call("email.send", self.send, f"{number}@example.org", effect="external")
                    self.state["mails"] += 1
                except TaskBlockedError:
                    self.state["notes"].append("not mailed")
            if number == 8:
                self.state["verdict"] = "good" if model == "candidate" else "bad"
            self.state["notes"].append(f"{number} by {model}")
            await session.step(f"step {number}", output=self.state["verdict"])


async def test_a_run_that_went_wrong_is_forked_at_the_decision_and_the_fork_promoted(tmp_path: Path) -> None:
    agent = Agent()
    async with open_app(tmp_path):
        async with satay.Session(ROOT_ID, state_fn=lambda: agent.state) as s:
            await agent.work(s)
            assert "bad" == agent.state["verdict"]
            agent.made.clear()

            fork = await s.fork(
                at_step=7,
                name=FORK_ID,
                intervention={"model": "candidate"},
                tool_policies={"email.send": "block", "*": "auto"},
            )
        before = History.of(tmp_path).digest([ROOT_ID])
        async with fork:
            agent.state = fork.inherited_state
            await agent.work(fork)

        diff = await satay.diff_states(ROOT_ID, FORK_ID)
        trail = await satay.decision_trail(FORK_ID)
        await satay.set_outcome(FORK_ID, "promoted", score=0.92)
        await fork.promote()
        outcome = await satay.outcome(FORK_ID)

        assert [8, 9, 10, 11] == agent.made
        assert ["5@example.org", "11@example.org"] == agent.mailed
        assert diff.ancestor is not None
        assert 7 == diff.ancestor.step
        assert {"$.verdict", "$.mails"} <= {difference.path for difference in diff.differences}
        assert [ROOT_ID, FORK_ID] == [ancestor.run_id for ancestor in trail.lineage]
        assert ["email.send:1"] == [item.name for item in trail.items if item.kind == "blocked"]
        assert outcome is not None
        assert (satay.OutcomeValue.PROMOTED, 0.92) == (outcome.value, outcome.score)
        assert before == History.of(tmp_path).digest([ROOT_ID])


async def test_a_session_is_forked_by_its_id_when_its_object_is_gone(tmp_path: Path) -> None:
    agent = Agent()
    async with open_app(tmp_path), satay.Session("run-42", state_fn=lambda: agent.state) as s:
        await agent.work(s)
    async with open_app(tmp_path, seed=1):
        session = await satay.Session.resume("run-42", fork_at_step=7, name="run-42/fallback-tool")
        async with session:
            notes = session.inherited_state["notes"]
            step = await session.step("with another tool")

    assert (8, 7) == (step.number, len(notes))
