"""When a definition replaces an earlier one of its name, and when it is a second function that claims it."""

import importlib
import importlib.util
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import satay
from satay.definitions import tasks, workflows
from satay.errors import RegistrationError

TWICE = """
import satay

@satay.{kind}{options}
async def charged_twice() -> str:
    return "first"

@satay.{kind}{options}
async def charged_twice() -> str:
    return "second"
"""

ONE = """
import satay

@satay.task(name={name!r})
async def {function}() -> str:
    return {result!r}
"""


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to import from, without cached bytecode, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def imported_as(path: Path, name: str) -> ModuleType:
    """The module in a file, executed under a name, as `python -m` and an import of the same file do."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def answer(name: str) -> Any:
    """What the function that is registered as a task says."""
    registered = tasks.get(name)
    assert registered is not None
    return await registered.fn()


def result_of(name: str) -> Any:
    coroutine = answer(name)
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


class Notebook:
    """One namespace in which cells are executed, each compiled by itself under a file name."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", **names}

    def run(self, source: str, file: str) -> None:
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), self.names)


# --- two functions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["task", "workflow"])
@pytest.mark.parametrize("named", [False, True])
def test_two_functions_of_one_name_in_one_file_are_refused_and_the_error_names_both(
    kind: str, named: bool, tmp_path: Path
) -> None:
    name = f"redefinitions.{kind}_twice" if named else "charged_twice"
    path = tmp_path / "twice.py"
    path.write_text(TWICE.format(kind=kind, options=f"(name={name!r})" if named else ""), encoding="utf-8")

    with pytest.raises(RegistrationError, match=f"{kind} {name!r} is defined twice") as caught:
        imported_as(path, f"twice_{kind}_{named}")

    assert f"{path}:4" in str(caught.value)
    assert f"{path}:8" in str(caught.value)
    assert f'@satay.{kind}(name="...")' in str(caught.value)
    registered: Any = (tasks if kind == "task" else workflows).get(name)
    assert registered is not None
    assert 4 == registered.fn.__code__.co_firstlineno


def test_two_functions_that_are_given_one_name_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "named.py"
    one, two = (ONE.format(name="redefinitions.given", function=function, result="x") for function in ("one", "two"))
    path.write_text(one + two, encoding="utf-8")

    with pytest.raises(RegistrationError, match=r"named\.py:4 and at .*named\.py:10; give one of them a name"):
        imported_as(path, "redefinitions_named")


def test_two_local_functions_of_one_name_are_refused() -> None:
    @satay.task
    def step() -> int:
        return 1

    with pytest.raises(RegistrationError, match="is defined twice"):

        @satay.task
        def step() -> int:
            return 2


LOGGED = """
import functools

def logged(fn):
    @functools.wraps(fn)
    async def wrapper():
        return await fn()
    return wrapper
"""


def test_functions_behind_one_decorator_are_told_apart_by_what_they_wrap(importable: Path) -> None:
    (importable / "redefinitions_logged.py").write_text(LOGGED, encoding="utf-8")
    wrapped = ONE.replace("import satay", "import satay\nfrom redefinitions_logged import logged").replace(
        "async def", "@logged\nasync def"
    )
    for module in ("wrapped_one", "wrapped_two"):
        source = wrapped.format(name="redefinitions.wrapped", function="charge", result=module)
        (importable / f"{module}.py").write_text(source, encoding="utf-8")
    one = importlib.import_module("wrapped_one")

    with pytest.raises(RegistrationError, match=r"wrapped_one\.py:5 and at .*wrapped_two\.py:5"):
        importlib.import_module("wrapped_two")

    importlib.reload(one)
    assert "wrapped_one" == result_of("redefinitions.wrapped")


def test_functions_of_one_name_in_two_cells_are_two_functions_where_their_own_names_differ() -> None:
    notebook = Notebook()
    notebook.run(ONE.format(name="redefinitions.cells", function="one", result=1), "<ipython-input-1-aa>")

    with pytest.raises(RegistrationError, match=r"<ipython-input-1-aa>:4 and at <ipython-input-2-bb>:4"):
        notebook.run(ONE.format(name="redefinitions.cells", function="two", result=2), "<ipython-input-2-bb>")


def test_two_functions_of_one_name_in_one_cell_are_refused() -> None:
    options = '(name="redefinitions.cell_twice")'

    with pytest.raises(RegistrationError, match=r"<ipython-input-3-cc>:4 and at <ipython-input-3-cc>:8"):
        Notebook().run(TWICE.format(kind="task", options=options), "<ipython-input-3-cc>")


def test_a_second_file_that_a_module_executes_in_its_namespace_holds_other_functions(importable: Path) -> None:
    included = importable / "included.py"
    included.write_text(ONE.format(name="redefinitions.included", function="charge", result=2), encoding="utf-8")
    includes = ONE.format(name="redefinitions.included", function="charge", result=1) + (
        f"path = {str(included)!r}\nwith open(path) as file:\n    exec(compile(file.read(), path, 'exec'))\n"
    )
    (importable / "redefinitions_includes.py").write_text(includes, encoding="utf-8")

    with pytest.raises(RegistrationError, match=r"redefinitions_includes\.py:4 and at .*included\.py:4"):
        importlib.import_module("redefinitions_includes")


# --- one function, defined again --------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", ["nothing", "its body", "lines above it", "its own name"])
def test_a_module_that_is_reloaded_replaces_its_functions(edit: str, importable: Path) -> None:
    path = importable / "redefinitions_reloaded.py"
    name = f"redefinitions.reloaded after {edit}"
    path.write_text(ONE.format(name=name, function="charge", result="before"), encoding="utf-8")
    module = importlib.import_module("redefinitions_reloaded")
    edited = {
        "nothing": ONE.format(name=name, function="charge", result="before"),
        "its body": ONE.format(name=name, function="charge", result="after"),
        "lines above it": "import sys\n\n" + ONE.format(name=name, function="charge", result="after"),
        "its own name": ONE.format(name=name, function="charge_card", result="after"),
    }[edit]
    path.write_text(edited, encoding="utf-8")

    importlib.reload(module)

    assert ("before" if edit == "nothing" else "after") == result_of(name)


def test_a_reload_does_not_hide_a_second_function(importable: Path) -> None:
    path = importable / "redefinitions_grown.py"
    source = ONE.format(name="redefinitions.grown", function="charge", result="before")
    path.write_text(source, encoding="utf-8")
    module = importlib.import_module("redefinitions_grown")
    path.write_text(source + source, encoding="utf-8")

    with pytest.raises(RegistrationError, match=r"grown\.py:4 and at .*grown\.py:10"):
        importlib.reload(module)


def test_a_module_that_was_forgotten_is_imported_again(importable: Path) -> None:
    path = importable / "redefinitions_again.py"
    path.write_text(ONE.format(name="redefinitions.again", function="charge", result="before"), encoding="utf-8")
    importlib.import_module("redefinitions_again")
    del sys.modules["redefinitions_again"]
    path.write_text("\n" + ONE.format(name="redefinitions.again", function="charge", result="after"), encoding="utf-8")

    importlib.import_module("redefinitions_again")

    assert "after" == result_of("redefinitions.again")


def test_a_file_that_is_imported_under_two_module_names_defines_its_functions_once(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(ONE.format(name="redefinitions.program", function="charge", result="x"), encoding="utf-8")
    link = tmp_path / "linked.py"
    link.symlink_to(path)

    imported_as(path, "__main__")
    imported_as(path, "redefinitions_program")
    again = imported_as(link, "redefinitions_linked")

    assert tasks.get("redefinitions.program") is again.charge


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("<ipython-input-1-aa>", "<ipython-input-2-bb>"),
        ("/tmp/ipykernel_1/1.py", "/tmp/ipykernel_1/2.py"),
        ("<stdin>", "<stdin>"),
        ("<python-input-0>", "<python-input-1>"),
    ],
)
@pytest.mark.parametrize("result", ["before", "after"])
def test_a_cell_that_is_run_again_replaces_its_functions(first: str, second: str, result: str) -> None:
    name = f"redefinitions.cell {second} {result}"
    notebook = Notebook()
    notebook.run(ONE.format(name=name, function="charge", result="before"), first)

    notebook.run(ONE.format(name=name, function="charge", result=result), first if result == "before" else second)

    assert result == result_of(name)


def test_a_cell_that_keeps_its_file_name_when_it_is_edited_replaces_its_functions() -> None:
    notebook = Notebook()
    source = ONE.format(name="redefinitions.marimo", function="charge", result="before")
    notebook.run(source, "/tmp/marimo_1/__marimo__cell_Hbol_.py")

    edited = "import os\n\n" + source.replace("before", "after")
    notebook.run(edited, "/tmp/marimo_1/__marimo__cell_Hbol_.py")

    assert "after" == result_of("redefinitions.marimo")


def test_a_cell_in_the_namespace_of_an_imported_module_replaces_the_functions_of_the_module(tmp_path: Path) -> None:
    path = tmp_path / "embedding.py"
    path.write_text(ONE.format(name="redefinitions.embedded", function="charge", result="before"), encoding="utf-8")
    module = imported_as(path, "redefinitions_embedding")
    embedded = Notebook()
    embedded.names = vars(module)

    embedded.run(ONE.format(name="redefinitions.embedded", function="charge", result="after"), "<ipython-input-1-dd>")

    assert "after" == result_of("redefinitions.embedded")


def test_a_script_that_is_run_again_in_one_namespace_replaces_its_functions(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for lines_above, result in (("", "before"), ("", "same"), ("import os\n", "after")):
        path.write_text(
            lines_above + ONE.format(name="redefinitions.script", function="charge", result=result), encoding="utf-8"
        )
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)

        assert result == result_of("redefinitions.script")


def test_a_function_that_is_made_again_by_its_factory_replaces_the_earlier_one() -> None:
    made = []
    for number in range(3):

        @satay.task(name="redefinitions.made")
        def step(number: int = number) -> int:
            return number

        made.append(step)

    assert tasks.get("redefinitions.made") is made[-1]
