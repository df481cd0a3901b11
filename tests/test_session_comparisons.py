"""Sessions compared: with their forks, with each other, several at a time, and with a run of a workflow."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import satay
from satay import CallStatus, Cause, SessionStatus
from satay.errors import TaskBlockedError
from satay.journal import BLOB_THRESHOLD_BYTES
from satay.testing import AppUnderTest, open_app

pytestmark = pytest.mark.anyio


@satay.task(name="comparisons.search")
async def search(text: str) -> str:
    return f"found {text}"


@satay.task(name="comparisons.send", effect="external")
async def send(text: str) -> str:
    return f"sent {text}"


@satay.workflow(name="comparisons.agent")
async def agent(text: str) -> str:
    return await send(await search(text))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path) as app:
        yield app


Steps = Sequence[tuple[str, Any]]
"""The steps of a session: their names and outputs."""


async def walk(session: satay.Session, box: dict[str, Any], steps: Steps) -> None:
    for name, output in steps:
        box["latest"] = output
        await search(name)
        await session.step(name, input=name, output=output)


async def record(run_id: str, steps: Steps) -> None:
    box: dict[str, Any] = {}
    async with satay.Session(run_id, state_fn=lambda: box) as session:
        await walk(session, box, steps)


async def fork(source: str, at_step: int, name: str, steps: Steps, **options: Any) -> None:
    box: dict[str, Any] = {}
    made = await satay.Session.resume(source, fork_at_step=at_step, name=name, state_fn=lambda: box, **options)
    async with made:
        await walk(made, box, steps)


def statuses(comparison: satay.Comparison) -> list[tuple[int, str]]:
    return [(step.number, step.status.value) for step in comparison.steps]


async def test_steps_that_a_fork_inherits_are_replayed_and_the_others_compared(app: AppUnderTest) -> None:
    await record("a", [("plan", 1), ("draft", 2), ("send", 3)])
    await fork("a", 1, "b", [("draft", 20), ("send", 3), ("rest", 4)], intervention={"model": "m"})
    found = await satay.compare("a", "b")

    assert [(1, "replayed"), (2, "different"), (3, "same"), (4, "only_other")] == statuses(found)
    assert found.first_divergent_step is not None
    assert 2 == found.first_divergent_step.number
    assert [("$", 2, 20)] == [(one.path, one.one, one.other) for one in found.first_divergent_step.output_differences]
    assert [("$.latest", 3, 4)] == [(one.path, one.one, one.other) for one in found.state_differences]
    assert (Cause.INTERVENTION, False) == (found.cause, found.is_same)


async def test_calls_of_sessions_are_compared_as_those_of_workflows(app: AppUnderTest) -> None:
    async with satay.Session("a", state_fn=lambda: None) as session:
        await session.step("first")
        await send("ada")
    made = await satay.Session.resume("a", fork_at_step=1, name="b", tool_policies={"*": "block"})
    async with made:
        with pytest.raises(TaskBlockedError):
            await send("ada")
    (call,) = (await satay.compare("a", "b")).calls

    assert CallStatus.DIFFERENT is call.status
    assert call.other is not None
    assert satay.CallState.BLOCKED is call.other.state


async def test_sessions_that_went_the_same_way_are_the_same(app: AppUnderTest) -> None:
    await record("a", [("plan", 1), ("draft", 2)])
    await record("b", [("plan", 1), ("draft", 2)])
    found = await satay.compare("a", "b")

    assert [(1, "same"), (2, "same")] == statuses(found)
    assert found.is_same
    assert () == found.state_differences


async def test_another_name_or_another_input_is_another_step(app: AppUnderTest) -> None:
    async with satay.Session("a") as session:
        await session.step("plan", input="a" * 1000 + "1")
    async with satay.Session("b") as session:
        await session.step("plan", input="a" * 1000 + "2")
    async with satay.Session("c") as session:
        await session.step("think", input="a" * 1000 + "1")

    assert [(1, "different")] == statuses(await satay.compare("a", "b"))
    assert [(1, "different")] == statuses(await satay.compare("a", "c"))
    assert "it is 'plan' in a and 'think' in c" in str(await satay.compare("a", "c"))


async def test_large_steps_are_compared_by_their_values(app: AppUnderTest) -> None:
    large = "x" * BLOB_THRESHOLD_BYTES
    await record("a", [("large", [large, 1])])
    await record("b", [("large", [large, 2])])
    found = await satay.compare("a", "b")

    assert ["$[1]"] == [one.path for one in found.steps[0].output_differences]


async def test_a_session_is_compared_with_a_run_of_a_workflow_by_their_calls(app: AppUnderTest) -> None:
    await app.start(agent, "acme", run_id="run").result()
    async with satay.Session("s", state_fn=lambda: 1) as session:
        session.complete(await send(await search("acme")))
        await session.step("done")
    found = await satay.compare("run", "s")

    assert [("comparisons.search:0", "same"), ("comparisons.send:0", "same")] == [
        (str(call.identity), call.status.value) for call in found.calls
    ]
    assert found.is_same
    assert () == found.steps
    assert (None, SessionStatus.COMPLETED) == (found.one.session_status, found.other.session_status)
    assert "s: session, completed" in str(found)


async def test_a_session_that_parts_from_a_workflow_is_said_to_be_one(app: AppUnderTest) -> None:
    await app.start(agent, "acme", run_id="run").result()
    async with satay.Session("s"):
        await search("acme")
    found = await satay.compare("s", "run")

    assert "comparisons.send:0" == str(found.first_divergence.identity if found.first_divergence else None)
    assert "s is a session, run a run of workflow comparisons.agent" == found.explanation


async def test_sessions_that_crashed_are_compared_by_their_errors(app: AppUnderTest) -> None:
    for run_id, message in (("a", "no idea"), ("b", "no idea"), ("c", "no time")):
        with pytest.raises(ValueError, match=message):
            async with satay.Session(run_id):
                raise ValueError(message)
    same, other = await satay.compare("a", "b"), await satay.compare("a", "c")

    assert same.is_same
    assert ["$.message", "$.args[0]"] == [one.path for one in other.result_differences]
    assert "crashed in" in str(other)


async def test_a_session_that_is_gone_on_with_has_not_ended(app: AppUnderTest) -> None:
    await record("a", [("plan", 1)])
    async with satay.Session.resume("a"):
        found = await satay.compare("a", "a")

    assert found.one.ended_at is None
    assert SessionStatus.STEPPING is found.one.session_status
    assert not found.is_same
    assert not found.has_divergence


async def test_a_step_that_is_still_to_come_has_no_cause(app: AppUnderTest) -> None:
    await record("a", [("plan", 1), ("draft", 2)])
    await satay.Session.resume("a", fork_at_step=1, name="b", intervention={"model": "m"})
    found = await satay.compare("a", "b")

    assert [(1, "replayed"), (2, "only_one")] == statuses(found)
    assert found.cause is None
    assert "a recorded it, b has not so far" in str(found)


async def test_a_step_alone_makes_sessions_differ(app: AppUnderTest) -> None:
    for run_id in ("a", "b"):
        async with satay.Session(run_id) as session:
            await session.step("plan", output=run_id)
    found = await satay.compare("a", "b")

    assert (True, None, Cause.ANSWER) == (found.has_divergence, found.first_divergence, found.cause)
    assert "No call differs, but a step does." in str(found)


async def test_several_sessions_are_compared_with_the_first(app: AppUnderTest) -> None:
    await record("a", [("plan", 1), ("draft", 2)])
    await fork("a", 1, "b", [("draft", 20)])
    await fork("a", 1, "c", [])
    found = await satay.compare("a", "b", "c")
    lines = [" ".join(line.split()) for line in str(found).splitlines()]

    assert [[(1, "replayed"), (2, "different")], [(1, "replayed"), (2, "only_one")]] == [
        statuses(pair) for pair in found.pairs
    ]
    assert "2 draft different missing" in lines
    assert any("Run 2 parts at step 2: it has another output." in line for line in lines)


async def test_the_text_shows_steps_and_states(app: AppUnderTest) -> None:
    await record("a", [("plan", 1), ("draft", "\x1b[2J")])
    await fork("a", 1, "b", [("draft", "\x9b")])
    text = str(await satay.compare("a", "b"))
    lines = [" ".join(line.split()) for line in text.splitlines()]

    assert "1 plan replayed 1" in lines
    assert "2 draft different '\\x1b[2J' → '\\x9b'" in lines
    assert "The sessions part at step 2: it has another output." in lines
    assert "Latest state" in lines
    assert all(line.isprintable() for line in text.split("\n"))


async def test_a_comparison_of_sessions_is_plain_data(app: AppUnderTest) -> None:
    await record("a", [("plan", 1)])
    await record("b", [("plan", 2)])
    data = json.loads(json.dumps((await satay.compare("a", "b")).to_dict()))

    assert ("different", "plan") == (data["steps"][0]["status"], data["steps"][0]["one"]["name"])
    assert (1, "completed") == (data["first_divergent_step"], data["one"]["session_status"])
    assert "$.latest" == data["state_differences"][0]["path"]
