"""A loop with one body on it, stepped by hand."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from satay.clock import MICROSECONDS
from satay.loop import WorkflowLoop, WorkflowTask, WorkflowTimer

Body = Callable[[], Coroutine[Any, Any, Any]]

PLENTY = 10_000


class Timers:
    """A sink that keeps the outstanding timers, and what it was told."""

    def __init__(self) -> None:
        self.outstanding: list[WorkflowTimer] = []
        self.told: list[str] = []

    def timer_created(self, timer: WorkflowTimer) -> None:
        self.outstanding.append(timer)
        self.told.append(f"created {timer.when():g}")

    def timer_cancelled(self, timer: WorkflowTimer) -> None:
        self.outstanding.remove(timer)
        self.told.append(f"cancelled {timer.when():g}")


class Stage:
    """A loop with one body on it, and a journal that only knows timers."""

    def __init__(self, body: Body) -> None:
        self.timers = Timers()
        self.loop = WorkflowLoop(self.timers)
        self.task: WorkflowTask[Any] = self.loop.spawn(body(), contextvars.copy_context())

    def turn(self) -> None:
        assert self.loop.run_turn(PLENTY)

    def fire_next(self) -> None:
        timer = min(self.timers.outstanding, key=lambda timer: timer.when())
        self.timers.outstanding.remove(timer)
        self.loop.advance_to(round(timer.when() * MICROSECONDS))
        self.loop.fire(timer)
        self.turn()

    def finish(self) -> Any:
        self.turn()
        while not self.task.done():
            self.fire_next()
        return self.task.result()


def run(body: Body) -> Any:
    stage = Stage(body)
    try:
        return stage.finish()
    finally:
        stage.loop.drop()


def parked(body: Body) -> Stage:
    stage = Stage(body)
    stage.turn()
    assert not stage.task.done()
    return stage


async def hop(name: str, seconds: float = 1) -> str:
    await asyncio.sleep(seconds)
    return name
