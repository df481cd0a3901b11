"""Workflows and tasks as they are defined: names, the registry, and what cannot be decorated."""

import functools
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

import satay
from satay.definitions import tasks, workflows
from satay.errors import InvalidValueError, RegistrationError, UnknownWorkflowError
from satay.model import EntryType
from satay.testing import Faults, open_app
from tests.driving import drive_twice, in_loop

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


def load(path: Path, source: str) -> ModuleType:
    """A module from source, as an import would make it."""
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"definitions_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# --- decorating -------------------------------------------------------------------------------------------------------


def test_decorators_work_bare_and_with_options(tmp_path: Path) -> None:
    @satay.task
    async def bare(x: int) -> int:
        """What it does."""
        return x

    @satay.task(retries=1, timeout=timedelta(seconds=5))
    async def with_options(x: int) -> int:
        return x + 1

    @satay.task()
    def plain(x: int) -> int:
        return x + 2

    @satay.workflow
    async def bare_workflow() -> list[int]:
        return [await bare(1), await with_options(1), await plain(1)]

    @satay.workflow(name="definitions.named")
    async def named() -> int:
        return 4

    async def run() -> list[Any]:
        async with open_app(tmp_path) as app:
            return [await app.start(bare_workflow).result(), await app.start(named).result()]

    assert [[1, 2, 3], 4] == in_loop(run())
    assert "What it does." == bare.__doc__
    assert "bare" == vars(bare)["__name__"]
    assert (1, 5.0) == (with_options.policy.retries, with_options.timeout)
    assert "<satay.workflow 'definitions.named'>" == repr(named)


def test_a_name_is_the_qualified_name_without_noise() -> None:
    @satay.task
    async def inner() -> None: ...

    assert "test_a_name_is_the_qualified_name_without_noise.inner" == inner.name


def test_a_static_method_is_a_function_like_any_other(tmp_path: Path) -> None:
    class Holder:
        @staticmethod
        @satay.task
        async def fetch(x: int) -> int:
            return x * 2

    @satay.workflow
    async def uses() -> int:
        return await Holder.fetch(4)

    assert Holder.fetch.name.endswith("Holder.fetch")
    assert 8 == in_loop(drive_twice(tmp_path, uses))


@pytest.mark.parametrize("kind", ["task", "workflow"])
def test_a_method_is_refused_with_a_way_out(kind: str) -> None:
    decorate: Callable[..., Any] = satay.task if kind == "task" else satay.workflow

    with pytest.raises(RegistrationError, match=r"is a method.*make it a function") as caught:

        class Multiplier:
            @decorate
            async def go(self, x: int) -> int:
                return x

    assert "Multiplier.go" in str(caught.value)


@pytest.mark.parametrize("decorate", [satay.task, satay.workflow])
@pytest.mark.parametrize("thing", [7, "text", print, functools.partial(print), object(), int])
def test_only_functions_can_be_decorated(decorate: Any, thing: Any) -> None:
    with pytest.raises(RegistrationError, match="decorates plain functions"):
        decorate(thing)


def generates() -> Iterator[int]:
    yield 1


async def generates_async() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("decorate", [satay.task, satay.workflow])
@pytest.mark.parametrize("fn", [generates, generates_async])
def test_a_generator_is_refused_at_decoration(decorate: Any, fn: Any) -> None:
    with pytest.raises(RegistrationError, match=r"generates\w*' yields.*return a list"):
        decorate(fn)


def test_a_forgotten_await_is_warned_of_under_the_name_of_the_task(tmp_path: Path) -> None:
    @satay.task(name="definitions.charge")
    async def charge() -> None: ...

    @satay.workflow
    async def forgets() -> str:
        charge()  # type: ignore[unused-coroutine]  # what a user can do wrong
        return "done"

    async def run() -> str:
        async with open_app(tmp_path) as app:
            return await app.start(forgets).result()

    with pytest.warns(RuntimeWarning, match=r"coroutine 'satay\.task definitions\.charge' was never awaited"):
        assert "done" == in_loop(run())


def test_a_workflow_is_async() -> None:
    def plain() -> int:
        return 1

    with pytest.raises(RegistrationError, match="async def"):
        satay.workflow(plain)  # type: ignore[arg-type]  # what a user can do wrong


async def two(_a: int, _b: int) -> None: ...
async def keyword_only(*, _a: int) -> None: ...
async def default_first(_a: int = 1, *, _b: int) -> None: ...


@pytest.mark.parametrize("fn", [two, keyword_only, default_first])
def test_a_workflow_takes_one_input(fn: Any) -> None:
    with pytest.raises(RegistrationError, match="takes one input"):
        satay.workflow(fn)


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 201, "two\nlines", "satay.own", 7])
@pytest.mark.parametrize("decorate", [satay.task, satay.workflow])
def test_a_name_that_cannot_be_used_is_refused(decorate: Any, name: Any) -> None:
    async def fn() -> None: ...

    with pytest.raises(RegistrationError, match="cannot be used"):
        decorate(name=name)(fn)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"effect": "loud"}, RegistrationError),
        ({"effect": "undeclared"}, RegistrationError),
        ({"codec": "yaml"}, RegistrationError),
        ({"timeout": float("nan")}, InvalidValueError),
        ({"timeout": "soon"}, InvalidValueError),
        ({"timeout": 0}, InvalidValueError),
        ({"timeout": -1.0}, InvalidValueError),
        ({"timeout": timedelta(0)}, InvalidValueError),
        ({"backoff": -float("inf")}, InvalidValueError),
        ({"retries": -1}, InvalidValueError),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_at_decoration(
    options: dict[str, Any], error: type[Exception]
) -> None:
    async def fn() -> None: ...

    with pytest.raises(error, match="fn"):
        satay.task(**options)(fn)


@pytest.mark.parametrize("bad", [{"first": -1.0}, {"factor": float("nan")}, {"longest": float("inf")}])
def test_a_backoff_has_finite_numbers(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match="finite"):
        satay.Backoff(**bad)


# --- one name, one function -------------------------------------------------------------------------------------------

_CREATE_USER = """
import satay

@satay.{kind}{options}
async def create_user(x: int = 0) -> str:
    return {result!r}
"""


@pytest.mark.parametrize("kind", ["task", "workflow"])
def test_two_functions_under_one_name_are_refused_and_the_error_names_both_and_the_fix(
    kind: str, tmp_path: Path
) -> None:
    one, other = tmp_path / f"one_{kind}.py", tmp_path / f"other_{kind}.py"
    load(one, _CREATE_USER.format(kind=kind, options="", result="one"))

    with pytest.raises(RegistrationError, match=f"{kind} 'create_user' is defined twice") as caught:
        load(other, _CREATE_USER.format(kind=kind, options="", result="other"))

    assert f"{one}:4" in str(caught.value)
    assert f"{other}:4" in str(caught.value)
    assert f'@satay.{kind}(name="...")' in str(caught.value)
    first: Any = (tasks if kind == "task" else workflows).get("create_user")
    assert str(one) == first.fn.__code__.co_filename


def test_a_name_of_its_own_keeps_two_functions_apart(tmp_path: Path) -> None:
    one = load(tmp_path / "apart_one.py", _CREATE_USER.format(kind="task", options='(name="apart.one")', result="one"))
    two = load(tmp_path / "apart_two.py", _CREATE_USER.format(kind="task", options='(name="apart.two")', result="two"))

    @satay.workflow
    async def uses() -> list[str]:
        return [await one.create_user(), await two.create_user()]

    assert ["one", "two"] == in_loop(drive_twice(tmp_path / "data", uses))


def test_classes_with_steps_of_the_same_name_do_not_meet(tmp_path: Path) -> None:
    class One:
        @staticmethod
        @satay.task
        async def fetch() -> str:
            return "one"

    class Two:
        @staticmethod
        @satay.task
        async def fetch() -> str:
            return "two"

    @satay.workflow
    async def uses() -> list[str]:
        return [await One.fetch(), await Two.fetch()]

    assert ["one", "two"] == in_loop(drive_twice(tmp_path, uses))


def test_a_module_that_is_loaded_again_replaces_its_functions(tmp_path: Path) -> None:
    path = tmp_path / "reloaded.py"
    options = '(name="definitions.reloaded")'
    load(path, _CREATE_USER.format(kind="task", options=options, result="before"))
    module = load(path, _CREATE_USER.format(kind="task", options=options, result="after"))

    @satay.workflow
    async def uses() -> str:
        return str(await module.create_user())

    assert "after" == in_loop(drive_twice(tmp_path / "data", uses))


def test_a_task_and_a_workflow_may_share_a_name(tmp_path: Path) -> None:
    @satay.task(name="definitions.shared")
    async def shared_task() -> str:
        return "task"

    @satay.workflow(name="definitions.shared")
    async def shared_workflow() -> str:
        return await shared_task()

    assert "task" == in_loop(drive_twice(tmp_path, shared_workflow))


# --- finding the code of a run ----------------------------------------------------------------------------------------


def test_a_run_whose_code_is_not_imported_says_so_and_waits_for_it(tmp_path: Path) -> None:
    @satay.workflow(name="definitions.forgotten")
    async def forgotten() -> str:
        return "remembered"

    async def run() -> str:
        faults = Faults().crash_after(append=1)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(forgotten, run_id="r")
            await faults.crashed
        known = workflows._by_name.pop("definitions.forgotten")
        try:
            async with open_app(tmp_path) as app:
                with pytest.raises(
                    UnknownWorkflowError,
                    match=r"@satay\.workflow\(name='definitions\.forgotten'\); else import the module",
                ):
                    await app.resume("r").result()
                assert satay.RunStatus.RUNNING == await app.handle("r").status()
        finally:
            workflows.add(known)
        async with open_app(tmp_path) as app:
            return str(await app.resume("r").result())

    assert "remembered" == in_loop(run())


def test_the_code_version_is_recorded_and_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(workflow: satay.Workflow[[], int]) -> str:
        async with open_app(tmp_path) as app:
            handle = await app.start(workflow)
            await handle.result()
            return (await app.run(handle.run_id)).code_version

    @satay.workflow(name="definitions.versioned")
    async def versioned() -> int:
        return 1

    own = in_loop(run(versioned))
    monkeypatch.setenv("SATAY_CODE_VERSION", "2026.11")

    @satay.workflow(name="definitions.versioned_by_hand")
    async def versioned_by_hand() -> int:
        return 1

    assert 12 == len(own)
    assert "2026.11" == in_loop(run(versioned_by_hand))


def test_a_workflow_called_in_a_body_runs_as_part_of_it(tmp_path: Path) -> None:
    @satay.task
    async def step() -> str:
        ran.append(1)
        return "step"

    @satay.workflow
    async def part() -> str:
        return await step()

    @satay.workflow
    async def whole() -> str:
        result = await part()
        await satay.sleep(1.0)
        return result

    async def run() -> tuple[str, int]:
        result = await drive_twice(tmp_path, whole)
        async with open_app(tmp_path) as app:
            return result, len(await app.runs())

    assert ("step", 1) == in_loop(run())
    assert [1] == ran


def test_further_parameters_take_their_defaults(tmp_path: Path) -> None:
    @satay.workflow
    async def works(number: int, factor: int = 3, *, offset: int = 4) -> int:
        return number * factor + offset

    assert 10 == in_loop(drive_twice(tmp_path, works, 2))


@pytest.mark.parametrize("given", ["missing", "none"])
def test_no_input_and_an_input_of_none_are_not_the_same(given: str, tmp_path: Path) -> None:
    @satay.workflow(name="definitions.optional")
    async def optional(value: str | None = "default") -> str | None:
        return value

    result = in_loop(drive_twice(tmp_path, optional, satay.MISSING if given == "missing" else None))

    assert {"missing": "default", "none": None}[given] == result


def test_a_run_of_one_of_several_functions_of_a_factory_is_not_resumed_with_another(tmp_path: Path) -> None:
    def make(number: int) -> Any:
        @satay.workflow(name="definitions.made")
        async def made() -> int:
            await satay.sleep(1.0)
            return number

        return made

    one, two = make(1), make(2)

    async def run() -> int:
        faults = Faults().crash_after(type=EntryType.TIMER_CREATED)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(one, run_id="r")
            await faults.crashed
        async with open_app(tmp_path) as app:
            with pytest.raises(RegistrationError, match="defined 2 times"):
                await app.resume("r")
            return cast(int, await app.start(two).result())

    assert 2 == in_loop(run())
    assert one is not two


def test_a_workflow_knows_the_name_of_its_input() -> None:
    async def none() -> None: ...
    async def one(brief: str, *, verbose: bool = False) -> None: ...
    async def optional(brief: str | None = None) -> None: ...

    assert [None, "brief", "brief"] == [satay.workflow(fn).input_name for fn in (none, one, optional)]
