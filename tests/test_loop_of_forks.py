"""The whole loop: run, fail, plan, fork with policies, sweep, compare, promote. E-mails are counted in a file."""

import hashlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import satay
from satay.divergences import Cause
from satay.errors import ExperimentConflictError, PromotionError, TaskBlockedError
from satay.model import RunStatus
from satay.testing import AppUnderTest, open_app

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path) as app:
        yield app


@dataclass(frozen=True)
class Campaign:
    topic: str
    voice: str
    place: str

    @property
    def outbox(self) -> Path:
        return Path(self.place) / "outbox"


@satay.task(name="loop_of_forks.research")
async def research(topic: str, place: str) -> str:
    write_line(Path(place) / "researched", topic)
    satay.task_context().record_usage(model="fake", input_tokens=90, output_tokens=9, cost=0.4)
    return f"{topic} is round"


@satay.task(name="loop_of_forks.draft")
async def draft(facts: str, voice: str) -> str:
    satay.task_context().record_usage(model="fake", input_tokens=9, output_tokens=9, cost=0.1)
    return f"{voice}: {facts}"


@satay.task(name="loop_of_forks.send", effect="external")
def send(text: str, to: str, place: str) -> int:
    write_line(Path(place) / "outbox", f"{to} {text}")
    return len(text)


@satay.task(name="loop_of_forks.archive")
async def archive(text: str) -> str:
    if text.startswith("shouting"):
        raise ValueError("the archive takes no shouting")
    return text


@satay.workflow(name="loop_of_forks.campaign")
async def campaign(order: Campaign) -> str:
    text = await draft(await research(order.topic, order.place), order.voice)
    try:
        await satay.gather(send(text, "ada", order.place), send(text, "bob", order.place))
    except TaskBlockedError:
        text += " (not sent)"
    return await archive(text)


def write_line(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def fingerprint(place: Path, run_id: str) -> str:
    """The SHA-256 of every row that belongs to a run."""
    connection = sqlite3.connect(place / "satay.db")
    try:
        rows = connection.execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchall()
        for table in ("events", "inbox", "waits"):
            rows += connection.execute(f"SELECT * FROM {table} WHERE run = ?", (rows[0][0],)).fetchall()
    finally:
        connection.close()
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def is_calm(text: str) -> bool:
    return text.startswith("calm")


async def test_the_whole_loop_sends_nothing_twice_and_leaves_the_parent_as_it_was(
    app: AppUnderTest, tmp_path: Path
) -> None:
    order = Campaign("the earth", "shouting", str(tmp_path))
    sent = ["ada shouting: the earth is round", "bob shouting: the earth is round"]

    # run, and fail
    with pytest.raises(ValueError, match="takes no shouting"):
        await app.start(campaign, order, run_id="parent").result()
    parent = fingerprint(tmp_path, "parent")
    assert sent == sorted(lines_of(order.outbox))

    # plan
    calm = replace(order, voice="calm")
    block = {"loop_of_forks.send": "block", "*": "auto"}
    plan = await satay.plan_fork("parent", workflow_input=calm, before_task=draft, tool_policies=block)
    assert ["loop_of_forks.research:0"] == [call.call for call in plan.inherited]
    assert ["loop_of_forks.send:0", "loop_of_forks.send:1"] == [call.call for call in plan.blocked]
    assert ["loop_of_forks.draft:0", "loop_of_forks.archive:0"] == [call.call for call in plan.rerun]
    assert 0.4 == plan.saved_cost
    assert ["parent"] == [run.run_id for run in await app.runs()]

    # fork with policies
    fork = await satay.fork(
        "parent",
        workflow_input=calm,
        run_id="parent/calm",
        intervention={"n": 1},
        before_task=draft,
        tool_policies=block,
    )
    assert "calm: the earth is round (not sent)" == await fork.result()
    assert ({"n": 1}, 1, 0.4) == (fork.receipt.intervention, fork.receipt.calls_inherited, fork.receipt.saved_cost)
    by_default = await satay.fork("parent", before_task=draft, workflow_input=calm, run_id="parent/default")
    assert "calm: the earth is round (not sent)" == await by_default.result()
    fork_of_fork = await satay.fork("parent/calm", before_task=draft, run_id="parent/calm/again")
    assert "calm: the earth is round (not sent)" == await fork_of_fork.result()
    reused = await satay.fork(
        "parent", before_task=draft, tool_policies={"loop_of_forks.send": "replay"}, run_id="reuse"
    )
    with pytest.raises(ValueError, match="takes no shouting"):
        await reused.result()

    # sweep
    variants = {voice: replace(order, voice=voice) for voice in ("calm", "sober", "shouting")}
    sweep = await satay.sweep(
        "parent", variants=variants, repeats=2, score=is_calm, run_id="voices", before_task=draft, tool_policies=block
    )
    assert [("calm", 1.0, 2), ("sober", 0.0, 2), ("shouting", None, 0)] == [
        (row.variant, row.pass_rate, row.completed) for row in sweep.rows
    ]
    assert 0.6 == pytest.approx(sweep.cost)

    # compare
    comparison = await satay.compare("parent", sweep.best.run_id)
    assert Cause.INPUT == comparison.cause
    matrix = await satay.compare("parent", "voices/calm:0", "voices/sober:0")
    assert ["parent", "voices/calm:0", "voices/sober:0"] == [run.run_id for run in matrix.runs]
    assert [Cause.INPUT, Cause.INPUT] == [pair.cause for pair in matrix.pairs]

    # promote
    await satay.promote(sweep.best.run_id)
    promoted = await satay.outcome(sweep.best.run_id)
    assert promoted is not None
    assert "promoted" == promoted.value
    with pytest.raises(ExperimentConflictError, match="'voices/calm:0' was promoted"):
        await satay.promote("parent/calm")
    with pytest.raises(PromotionError):
        await satay.promote("parent")

    assert sent == sorted(lines_of(order.outbox))
    assert ["the earth"] == lines_of(tmp_path / "researched")
    assert parent == fingerprint(tmp_path, "parent")
    assert RunStatus.FAILED == await app.status("parent")
    for run_id in ("parent", "parent/calm", "parent/calm/again", "reuse", *(f"voices/{name}:1" for name in variants)):
        assert (await satay.verify(run_id)).is_intact
