"""Fixtures for pytest, which finds them by itself. None is used unless a test asks for it.

They hand out functions, so they fit every kind of test: plain ones, and async ones of anyio and pytest-asyncio. An app
belongs to the event loop and the task that open it, so a fixture could not open it for all of them.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from satay.definitions import Workflow
from satay.errors import UsageError
from satay.functions import is_in_loop
from satay.model import MISSING
from satay.testing.apps import AppUnderTest, open_app


@pytest.fixture
def satay_app(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[AppUnderTest]]:
    """`satay.testing.open_app` on the test's own directory: `async with satay_app() as app`. Each call opens an app."""
    return partial(open_app, tmp_path / "satay")


@pytest.fixture
def satay_run(tmp_path: Path) -> Callable[..., Any]:
    """Run a workflow to its end in a plain test and return its result: `satay_run(report, "acme")`.

    Raises `UsageError` in an async test: that has an event loop already, and opens an app with `satay_app`.
    """

    async def run(workflow: Workflow[..., Any], input: Any, options: dict[str, Any]) -> Any:
        async with open_app(tmp_path / "satay", **options) as app:
            return await app.start(workflow, input).result()

    def run_here(workflow: Workflow[..., Any], input: Any = MISSING, **options: Any) -> Any:
        if is_in_loop():
            raise UsageError(
                "satay_run() was called in an async test, and would block its event loop; write 'async with "
                "satay_app() as app' there, and start the workflow by the app"
            )
        return asyncio.run(run(workflow, input, options))

    return run_here
