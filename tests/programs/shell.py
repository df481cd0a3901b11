"""Workflows for tests of the command line, which imports them by the name of this module."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import satay
from satay.testing import pause

outages: list[str] = []
"""While there is one, the next payment hangs, so that it can be stopped on the way."""


@dataclass(frozen=True)
class Brief:
    """An input with a declared shape."""

    topic: str
    style: str


@satay.task(name="shell.research")
async def research(topic: str) -> list[str]:
    sys.stdout.write(f"researching {topic}\n")
    return [f"{topic} grew", f"{topic} shrank"]


@satay.task(name="shell.write")
async def write(notes: list[str], style: str) -> str:
    if style == "none":
        raise ValueError("no such style: \x1b[31m")
    return notes[0] if style == "friendly" else notes[-1]


@satay.workflow(name="shell.report")
async def report(brief: Brief) -> str:
    return await write(await research(brief.topic), brief.style)


@satay.workflow(name="shell.await_answer")
async def await_answer() -> Any:
    return await satay.wait_for_event("answer", key="k")


@satay.workflow(name="shell.refund")
async def refund() -> str:
    decision = await satay.require_approval("refund", {"dollars": 40})
    return f"{'approved' if decision else 'rejected'} by {decision.by}"


@satay.workflow(name="shell.ask")
async def ask(question: str) -> str:
    return f"{question} {await satay.wait_for_event('answer', key='k')}"


@satay.task(name="shell.pay", effect="external")
async def pay() -> str:
    if outages:
        outages.pop()
        await pause(math.inf)
    return "paid"


@satay.workflow(name="shell.order")
async def order() -> str:
    return await pay()


@satay.workflow(name="shell.echo")
async def echo(value: Any = None) -> Any:
    return value


@satay.workflow(name="shell.parent")
async def parent() -> Any:
    return await satay.start_child(echo, "from the child").result()


def judge(text: str) -> bool:
    """Scores a report."""
    return text.endswith("grew")
