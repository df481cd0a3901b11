"""A sweep for processes that are killed: a source, four variants, two trials of each, one at a time."""

import asyncio
from dataclasses import dataclass

import satay
from satay import Sweep
from satay.errors import RunNotFoundError
from tests.programs.effects import note

__all__ = ["report", "sweep"]


@dataclass(frozen=True)
class Brief:
    topic: str
    style: str


@satay.task(name="sweeping.research")
async def research(topic: str) -> str:
    note("began")
    return f"{topic} is old"


@satay.task(name="sweeping.write")
async def write(notes: str, style: str) -> str:
    note("began")
    await asyncio.sleep(0.02)
    note("ended")
    return f"{style}: {notes}"


@satay.workflow(name="sweeping.report")
async def report(brief: Brief) -> str:
    return await write(await research(brief.topic), brief.style)


def starts_with_s(text: str) -> bool:
    return text.startswith("s")


async def sweep(app: satay.App) -> Sweep:
    """Sweep over a source that is made at first."""
    try:
        await app.run("src")
    except RunNotFoundError:
        await app.start(report, Brief("acme", "dull"), run_id="src").result()
    return await satay.sweep(
        "src",
        before_task=write,
        variants={style: Brief("acme", style) for style in ("plain", "sceptical", "warm", "cold")},
        repeats=2,
        score=starts_with_s,
        concurrency=1,
        run_id="sw",
    )
