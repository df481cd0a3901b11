"""The functions of the package: their options and defaults, the environment, and the app that they use."""

import asyncio
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.app import App
from satay.errors import InvalidValueError, NondeterminismError, UsageError
from satay.functions import MAX_RESIDENT, MAX_THREADS, current_app
from satay.testing import open_app
from tests.driving import in_loop

is_changed = False


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.upper().startswith("SATAY_"):
            monkeypatch.delenv(name)


@satay.task(name="functions.echo")
async def echo(value: str) -> str:
    return value


@satay.workflow(name="functions.echoes")
async def echoes(value: str = "default") -> str:
    return await echo(value)


@satay.workflow(name="functions.changes")
async def changes() -> str:
    await (satay.sleep(0.0) if is_changed else echo("before"))
    await satay.wait_for_event("go")
    return "changed" if is_changed else "as it was"


# --- options ----------------------------------------------------------------------------------------------------------


def test_every_option_is_given_by_name() -> None:
    given_by_place = {
        name: [
            parameter.name
            for parameter in list(inspect.signature(getattr(satay, name)).parameters.values())[2:]
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        for name in ("cancel", "compare", "decide", "fork", "resume", "run", "run_app", "send_event", "start")
    }

    assert not any(given_by_place.values()), given_by_place


@pytest.mark.parametrize("name", ["start", "resume", "fork", "compare", "send_event", "cancel", "terminate", "decide"])
def test_a_function_takes_what_the_method_of_the_app_takes(name: str) -> None:
    of_function = inspect.signature(getattr(satay, name)).parameters
    of_method = dict(inspect.signature(getattr(App, name)).parameters)
    del of_method["self"]

    assert [(each.name, each.kind, each.default) for each in of_method.values()] == [
        (each.name, each.kind, each.default) for each in of_function.values()
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lease_seconds", 0.0),
        ("lease_seconds", -1.0),
        ("lease_seconds", float("inf")),
        ("lease_seconds", "15"),
        ("poll_seconds", 0.0),
        ("poll_seconds", float("nan")),
        ("grace_seconds", float("inf")),
        ("grace_seconds", None),
        ("max_resident", -1),
        ("max_resident", MAX_RESIDENT + 1),
        ("max_resident", 1.5),
        ("max_threads", 0),
        ("max_threads", MAX_THREADS + 1),
        ("max_threads", True),
        ("nondeterminism", "lax"),
        ("synchronous", "OFF"),
        ("allow_pickle", "perhaps"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name_before_anything_is_opened(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}

    with pytest.raises(InvalidValueError, match=f"{option} is {value!r}"):
        satay.run_app(**options)

    assert [] == list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("option", "value"), [("max_resident", 0), ("max_threads", 1), ("grace_seconds", 0), ("poll_seconds", 0.001)]
)
def test_the_smallest_an_option_can_be_will_do(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}

    assert "default" == satay.run(echoes, **options)


def test_making_an_app_opens_nothing_until_its_block_is_entered() -> None:
    satay.run_app()

    assert [] == list(Path.cwd().iterdir())


# --- the environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text"),
    [("SATAY_NONDETERMINISM", "lax"), ("SATAY_SYNCHRONOUS", "OFF"), ("SATAY_ALLOW_PICKLE", "perhaps")],
)
def test_a_variable_that_cannot_be_used_is_refused_by_name(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)

    with pytest.raises(InvalidValueError, match=f"{variable.removeprefix('SATAY_').lower()} is {text!r}"):
        satay.run_app()


def test_the_environment_says_where_the_journal_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_DATA_DIR", str(tmp_path / "by variable"))
    satay.run(echoes)

    assert (tmp_path / "by variable" / "satay.db").exists()
    assert not (tmp_path / ".satay").exists()


def drive_changed_code(**options: Any) -> str:
    """A run that waits is driven on by code that issues another call first."""
    global is_changed

    async def begin() -> None:
        async with satay.run_app() as app:
            await app.start(changes, run_id="r")
            async for entry in app.events("r"):
                if entry.type == "EventWaitStarted":
                    return

    async def go_on() -> str:
        async with satay.run_app(**options) as app:
            await app.send_event("go", run_id="r")
            return str(await app.resume("r").result())

    in_loop(begin())
    is_changed = True
    try:
        return in_loop(go_on())
    finally:
        is_changed = False


def test_code_that_differs_from_its_journal_is_refused_unless_something_else_is_said() -> None:
    with pytest.raises(NondeterminismError):
        drive_changed_code()


def test_the_environment_says_what_happens_when_code_and_journal_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_NONDETERMINISM", "off")

    assert "changed" == drive_changed_code()


def test_the_argument_wins_over_what_the_environment_says_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_NONDETERMINISM", "off")

    with pytest.raises(NondeterminismError):
        drive_changed_code(nondeterminism="strict")


# --- the app that is used ---------------------------------------------------------------------------------------------


def test_of_two_blocks_the_inner_one_is_used_and_after_it_the_outer_one_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_app(tmp_path / "outer") as outer:
            async with open_app(tmp_path / "inner") as inner:
                assert inner is current_app()
            assert outer is current_app()

    in_loop(run())


def test_a_task_that_is_made_in_a_block_uses_its_app(tmp_path: Path) -> None:
    async def which() -> App:
        return current_app()

    async def run() -> None:
        async with open_app(tmp_path) as app:
            assert app is await asyncio.create_task(which())

    in_loop(run())


def test_without_a_block_the_same_app_is_used_on_one_event_loop_and_another_on_another() -> None:
    async def run() -> App:
        first = current_app()
        await first.runs()
        assert first is current_app()
        return first

    one, other = in_loop(run()), in_loop(run())

    assert one is not other
    assert one.is_closed
    assert other.is_closed


def test_a_workflow_body_cannot_reach_the_app(tmp_path: Path) -> None:
    apps: list[App] = []

    @satay.workflow(name="functions.reaches")
    async def reaches() -> list[str]:
        refused = []
        for ask in (
            lambda: satay.start(echoes),
            lambda: satay.resume("r"),
            lambda: satay.run(echoes),
            current_app,
            lambda: satay.run_app(data_dir=tmp_path / "another").open(),
            lambda: apps[0].start(echoes),
            lambda: apps[0].runs(),
        ):
            try:
                answer: Any = ask()
                await answer
            except UsageError as error:
                refused.append(str(error))
        return refused

    async def run() -> list[str]:
        async with open_app(tmp_path) as app:
            apps.append(app)
            return await app.start(reaches).result()

    refused = in_loop(run())

    assert 7 == len(refused)
    assert all("a workflow body cannot reach the app; start children with" in message for message in refused)


def test_a_task_can_use_the_app_that_runs_it(tmp_path: Path) -> None:
    @satay.task(name="functions.starts_another")
    async def starts_another() -> str:
        return await satay.start(echoes, "from a task").result()

    @satay.workflow(name="functions.has_another_started")
    async def has_another_started() -> str:
        return await starts_another()

    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(has_another_started).result()

    assert "from a task" == in_loop(run())


def test_on_an_event_loop_of_its_own_a_plain_task_uses_the_default_app_of_that_loop(tmp_path: Path) -> None:
    used: list[App] = []

    async def start_another() -> str:
        used.append(current_app())
        return await satay.start(echoes, "from another loop").result()

    @satay.task(name="functions.has_a_loop")
    def has_a_loop() -> str:
        return asyncio.run(start_another())

    @satay.workflow(name="functions.calls_what_has_a_loop")
    async def calls_what_has_a_loop() -> str:
        return await has_a_loop()

    async def run() -> str:
        async with open_app(tmp_path / "block") as app:
            used.append(app)
            return await app.start(calls_what_has_a_loop).result()

    assert "from another loop" == in_loop(run())
    assert used[0] is not used[1]
    assert used[1].is_closed
