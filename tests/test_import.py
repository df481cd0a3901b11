"""What `import satay` loads, and the names that the package gives."""

import ast
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import satay
import satay.errors
import satay.testing
from satay.features import FEATURES
from satay.tags import encode_tagged

ROOT: Path = Path(__file__).parents[1]

UPPER_FLOORS = {
    "satay.adapters",
    "satay.cli",
    "satay.commandline",
    "satay.console",
    "satay.health",
    "satay.inspections",
    "satay.server",
    "satay.session_states",
    "satay.states",
    "satay.testing",
    "satay.views",
}


ONLY_FOR_FEATURES = set(FEATURES) | {
    "satay.audits",
    "satay.comparison",
    "satay.decisions",
    "satay.expenses",
    "satay.fork_drafts",
    "satay.fork_plans",
    "satay.forks",
    "satay.histories",
    "satay.lineages",
    "satay.overrides",
    "satay.phrases",
    "satay.session_approvals",
    "satay.session_cuts",
    "satay.session_forks",
    "satay.session_journals",
    "satay.session_wakes",
    "satay.snapshots",
    "satay.sources",
    "satay.stores.sqlite_health",
    "satay.tables",
}
"""The modules that no program needs which only runs workflows."""

RARELY_USED = {"cloudpickle", "importlib.metadata", "pydantic", "rich", "shutil", "structlog"}
"""The modules of others that no program needs which runs workflows of scalars, and prints nothing."""

RUN_OF_ONE_TASK = """
import sys
before = set(sys.modules)
import satay

@satay.task
async def greet(name: str) -> str:
    return f"hello {name}"

@satay.workflow
async def welcome(name: str) -> str:
    return await greet(name)

assert satay.run(welcome, "ada", data_dir=sys.argv[1]) == "hello ada"
print(*(set(sys.modules) - before))
"""


def answer_of(script: str, *arguments: str | Path) -> str:
    """What a fresh process prints that runs a script."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that a fresh process has after `import satay`, beyond those it had before."""
    script = "import sys; before = set(sys.modules); import satay; print(*(set(sys.modules) - before))"
    return set(answer_of(script).split())


def modules_of_extras() -> dict[str, str]:
    """The importable names of what only extras need, and which extra that is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = {distribution(requirement) for requirement in project["dependencies"]}
    by_distribution: dict[str, list[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for each in distributions:
            by_distribution.setdefault(distribution(each), []).append(module)
    return {
        module: extra
        for extra, requirements in project["optional-dependencies"].items()
        for name in {distribution(requirement) for requirement in requirements} - core
        for module in by_distribution.get(name, [])
        if module not in sys.stdlib_module_names
    }


def distribution(requirement: str) -> str:
    """The name that a requirement begins with, normalised."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_import_loads_no_command_line(loaded: set[str]) -> None:
    assert "satay" in loaded
    assert not {"typer", "click"} & loaded


def test_import_loads_nothing_of_an_extra(loaded: set[str]) -> None:
    extras = modules_of_extras()

    assert "pytest" in extras
    assert {} == {module: extra for module, extra in extras.items() if module in loaded}


def test_import_loads_none_of_the_upper_floors(loaded: set[str]) -> None:
    assert not {module for module in loaded if any(f"{module}.".startswith(f"{floor}.") for floor in UPPER_FLOORS)}


def test_import_loads_no_feature(loaded: set[str]) -> None:
    assert set() == ONLY_FOR_FEATURES & loaded
    assert set() == RARELY_USED & loaded


def test_a_run_loads_no_feature(tmp_path: Path) -> None:
    used = set(answer_of(RUN_OF_ONE_TASK, tmp_path).split())

    assert "satay.stores.sqlite" in used
    assert set() == ONLY_FOR_FEATURES & used
    assert set() == RARELY_USED & used


def test_a_feature_is_loaded_when_it_is_first_asked_for() -> None:
    script = "import satay, sys; satay.Budget; print(*sys.modules)"

    assert {"satay.sweeps"} == {"satay.sweeps", "satay.sessions"} & set(answer_of(script).split())


def test_type_checkers_are_told_of_the_features_that_there_are() -> None:
    (block,) = [part for part in ast.parse(inspect.getsource(satay)).body if isinstance(part, ast.If)]
    told = {
        part.module: tuple(alias.name for alias in part.names)
        for part in block.body
        if isinstance(part, ast.ImportFrom)
    }

    assert told == FEATURES


def test_models_are_recorded_as_such_though_pydantic_was_loaded_last() -> None:
    script = """
import sys, satay
from satay.codec import ValueCodec
assert "pydantic" not in sys.modules
ValueCodec().encode({"when": satay.RunStatus.RUNNING}, "a status")
from pydantic import BaseModel
class Box(BaseModel):
    item: int
print(ValueCodec().encode_and_decode(Box(item=1), "a box")[1])
"""

    assert "item=1\n" == answer_of(script)


def test_the_package_lists_its_features_before_they_are_loaded() -> None:
    script = (
        "import satay; print(*(set(satay.__all__) - set(dir(satay)))); from satay import *; print(Sweep.__module__)"
    )

    assert "\nsatay.sweeps\n" == answer_of(script)


def test_a_name_that_there_is_not_is_told() -> None:
    with pytest.raises(AttributeError, match="module 'satay' has no attribute 'Sweeep'"):
        _ = satay.Sweeep  # type: ignore[attr-defined]  # that is the point


def test_a_recorded_value_of_a_feature_is_read_though_nobody_asked_for_the_feature() -> None:
    text = encode_tagged(satay.Budget(cost=0.5), "a budget")[0]
    script = "import sys; from satay.tags import decode_tagged; print(decode_tagged(sys.argv[1], 'a budget'))"

    assert f"{satay.Budget(cost=0.5)}\n" == answer_of(script, text)


def module_names() -> Iterator[str]:
    for module in pkgutil.walk_packages(satay.__path__, "satay."):
        yield module.name.removeprefix("satay.")


def test_no_module_has_the_name_of_a_public_function() -> None:
    assert not set(satay.__all__) & set(module_names())
    assert not set(satay.testing.__all__) & {name.removeprefix("testing.") for name in module_names()}


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("package", [satay, satay.testing])
def test_all_is_sorted_and_complete(package: Any) -> None:
    public = {
        name for name in dir(package) if not name.startswith("_") and not inspect.ismodule(getattr(package, name))
    }

    assert sorted(set(package.__all__), key=order) == package.__all__
    assert public == set(package.__all__)


OF_THE_ENGINE = {
    "Alarm",
    "Chance",
    "Clock",
    "Entry",
    "ForkRequest",
    "PendingCall",
    "PendingChild",
    "RunRecord",
    "Schedule",
    "Scheduler",
    "ValueCodec",
}
"""What the engine and its tests speak of, in hints of public names, and users of satay do not."""


NAMES_OF_FEATURES: dict[str, Any] = {}
"""What hints speak of that are read by type checkers alone."""
for feature in FEATURES:
    NAMES_OF_FEATURES |= vars(importlib.import_module(feature))


def named_in(thing: Any) -> Iterator[Any]:
    """The classes of satay's that are named in the hints of a function, or of the members of a class."""
    if inspect.isclass(thing):
        members = [getattr(member, "fget", member) for name, member in vars(thing).items() if not name.startswith("_")]
        for member in (thing, *filter(inspect.isfunction, members)):
            yield from classes_in(typing.get_type_hints(member, localns=NAMES_OF_FEATURES))
    elif inspect.isfunction(thing):
        yield from classes_in(typing.get_type_hints(thing, localns=NAMES_OF_FEATURES))


def classes_in(hint: Any) -> Iterator[type]:
    for part in hint.values() if isinstance(hint, dict) else (typing.get_origin(hint), hint, *typing.get_args(hint)):
        if inspect.isclass(part) and part.__module__.startswith("satay."):
            yield part
        elif part is not hint and part is not None:
            yield from classes_in(part)


def test_every_type_that_a_public_name_speaks_of_can_be_imported() -> None:
    public = {getattr(satay, name) for name in satay.__all__ if not isinstance(getattr(satay, name), types.UnionType)}
    unknown = {named.__name__ for thing in public for named in named_in(thing) if named not in public}

    assert set() == unknown - OF_THE_ENGINE


RAISING_NOTHING = {"get_logger", "App.close", "App.is_open_on", "App.new_id", "App.open_later"}


def test_every_public_function_says_what_it_raises() -> None:
    functions = {name: getattr(satay, name) for name in satay.__all__}
    for cls in (satay.App, satay.RunHandle, satay.ChildHandle, satay.TaskContext):
        members = inspect.getmembers(cls, inspect.isfunction)
        functions |= {f"{cls.__name__}.{name}": value for name, value in members if not name.startswith("_")}
    silent = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function)
        and not re.search(r"[Rr]aises|see `App\.|is raised", inspect.getdoc(function) or "")
    }

    assert silent == RAISING_NOTHING


def test_every_error_is_in_one_tree() -> None:
    errors = [value for name, value in vars(satay.errors).items() if name.endswith("Error") and inspect.isclass(value)]

    assert len(errors) > 20
    assert [] == [error for error in errors if not issubclass(error, satay.SatayError)]


def public_things() -> Iterator[tuple[str, Any]]:
    """Every public function and class, and every public method of one, with the name it is found under."""
    for package in (satay, satay.testing, satay.errors):
        for name in dir(package):
            value = getattr(package, name)
            if name.startswith("_") or not getattr(value, "__module__", "").startswith("satay"):
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{package.__name__}.{name}", value


def generated(cls: type) -> str:
    """The beginning of the docstring that a dataclass or an enumeration without one is given."""
    return f"{cls.__name__}("


@pytest.mark.parametrize(("name", "value"), [pytest.param(*thing, id=thing[0]) for thing in public_things()])
def test_every_public_function_and_class_has_a_docstring(name: str, value: Any) -> None:
    doc = value.__doc__

    assert doc
    assert not (inspect.isclass(value) and doc.startswith(generated(value)))
    assert doc.split("\n\n")[0].rstrip().endswith((".", ":")), doc


def test_every_public_method_of_an_app_and_of_handles_has_a_docstring() -> None:
    without = [
        f"{cls.__name__}.{name}"
        for cls in (
            satay.App,
            satay.RunHandle,
            satay.ForkHandle,
            satay.ChildHandle,
            satay.TaskContext,
            satay.Experiment,
        )
        for name, method in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property))
        if not inspect.getdoc(method)
    ]

    assert [] == without
