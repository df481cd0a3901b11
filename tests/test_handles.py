"""Handles on runs."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from satay.codec import ValueCodec
from satay.declarations import value_codec
from satay.errors import AppClosedError, RunConflictError
from satay.handles import RunHandle
from satay.model import RunStatus
from tests.driving import in_loop

THEN = datetime(2026, 1, 1, tzinfo=UTC)
CODEC = value_codec(str)


class Desk:
    """An app that notes what handles ask of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def status(self, run: str) -> RunStatus:
        self.asked.append(("status", run))
        return RunStatus.WAITING

    async def cancel(self, run_id: str) -> None:
        self.asked.append(("cancel", run_id))

    async def terminate(self, run_id: str) -> None:
        self.asked.append(("terminate", run_id))

    async def promote(self, run: str) -> None:
        self.asked.append(("promote", run))

    async def result(self, run_id: str, codec: ValueCodec | None, *, drive: bool) -> Any:
        self.asked.append(("result", run_id, codec, drive))
        return "done"


def created_as(run_id: str) -> "asyncio.Task[str]":
    async def create() -> str:
        await asyncio.sleep(0)
        return run_id

    return asyncio.ensure_future(create())


def handle(desk: Desk, creation: "asyncio.Task[str] | None" = None, **options: Any) -> RunHandle[str]:
    return RunHandle(desk, "r", CODEC, creation, **options)


QUESTIONS: list[Callable[[RunHandle[str]], Awaitable[Any]]] = [
    RunHandle.result,
    RunHandle.status,
    RunHandle.cancel,
    RunHandle.terminate,
]


def test_awaiting_a_handle_returns_it_once_the_run_is_there() -> None:
    async def run() -> None:
        creation = created_as("r")
        made = handle(Desk(), creation)

        assert made is await made
        assert creation.done()
        assert made is await made

    in_loop(run())


def test_a_handle_has_the_id_of_the_run_that_an_idempotency_key_was_used_for_before() -> None:
    async def run() -> str:
        return (await handle(Desk(), created_as("the first"))).run_id

    assert "the first" == in_loop(run())


def test_everything_is_asked_of_the_run_that_was_created() -> None:
    async def run() -> list[tuple[Any, ...]]:
        desk = Desk()
        for ask in QUESTIONS:
            await ask(handle(desk, created_as("the first")))
        return desk.asked

    assert [
        ("result", "the first", CODEC, True),
        ("status", "the first"),
        ("cancel", "the first"),
        ("terminate", "the first"),
    ] == in_loop(run())


def test_a_handle_that_does_not_drive_asks_for_the_result_only() -> None:
    async def run() -> list[tuple[Any, ...]]:
        desk = Desk()
        assert "done" == await handle(desk, drives=False).result()
        return desk.asked

    assert [("result", "r", CODEC, False)] == in_loop(run())


@pytest.mark.parametrize("ask", QUESTIONS)
def test_what_keeps_a_run_from_being_created_is_raised_by_whatever_is_asked(
    ask: Callable[[RunHandle[str]], Awaitable[Any]],
) -> None:
    async def refuse() -> str:
        raise RunConflictError("there is another", run_id="r")

    async def run() -> list[tuple[Any, ...]]:
        desk = Desk()
        with pytest.raises(RunConflictError, match="there is another"):
            await ask(handle(desk, asyncio.ensure_future(refuse())))
        return desk.asked

    assert [] == in_loop(run())


def test_a_caller_that_gives_up_does_not_disturb_the_creation() -> None:
    async def run() -> str:
        creation = created_as("r")
        made = handle(Desk(), creation)
        caller = asyncio.ensure_future(made.result())
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return await creation

    assert "r" == in_loop(run())


def test_a_creation_that_ends_with_its_app_says_that_the_app_was_closed() -> None:
    async def run() -> None:
        creation = created_as("r")
        made = handle(Desk(), creation)
        caller = asyncio.ensure_future(made.result())
        await asyncio.sleep(0)
        creation.cancel()

        with pytest.raises(AppClosedError, match="before run 'r' was created"):
            await caller

    in_loop(run())


def test_a_handle_is_shown_with_its_kind_and_run() -> None:
    assert "<RunHandle 'r'>" == repr(handle(Desk()))
