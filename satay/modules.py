"""The user's modules: imported by name, so that their workflows are known to this process."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any, cast

from satay.definitions import Workflow, workflows
from satay.errors import ModuleImportError, UsageError


def import_modules(names: Sequence[str]) -> None:
    """Import modules, each named `module` or `module:workflow`; the errors are those of `find_target`."""
    for name in names:
        if ":" in name:
            find_target(name)
        else:
            _import(name)


def find_target(target: str) -> Workflow[..., Any]:
    """The workflow that `module:workflow` names: by its variable in the module, or by its name as a workflow.

    Where a module has one workflow, `module` names it too. Raises `ModuleImportError`, and `UsageError` that lists
    what the module has.
    """
    module_name, colon, name = target.partition(":")
    module = _import(module_name)
    there = _workflows_of(module)
    if not colon and len(there) == 1:
        return next(iter(there.values()))
    found = there.get(name) or _by_workflow_name(module, name)
    if found is not None:
        return found
    close = get_close_matches(name, there)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, there)) or 'none'}"
    asked = f"named {name!r}" if colon else f"chosen in {target!r}, as in 'module:workflow'"
    raise UsageError(f"module {module_name!r} has no workflow {asked}; {hint}")


def find_function(target: str) -> Callable[..., Any]:
    """The function or task that `module:function` names. Raises `ModuleImportError` and `UsageError`."""
    module_name, _, name = target.partition(":")
    module = _import(module_name)
    found = getattr(module, name, None) if name else None
    if not callable(found):
        there = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        close = get_close_matches(name, there, 1)
        asked = f"module {module_name!r} has none of that name" if name else "write it as 'module:function'"
        hint = f"did you mean {close[0]!r}?" if close else asked
        raise UsageError(f"{target!r} names no function; {hint}")
    return cast("Callable[..., Any]", found)


def _workflows_of(module: ModuleType) -> dict[str, Workflow[..., Any]]:
    """The workflows of a module by the name of their variable, those that it defines before those that it imports."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, Workflow)}
    own = {name: value for name, value in found.items() if value.fn.__module__ == module.__name__}
    return own or found


def _by_workflow_name(module: ModuleType, name: str) -> Workflow[..., Any] | None:
    known = workflows.get(name)
    is_own = known is not None and known.fn.__module__ == module.__name__
    return cast("Workflow[..., Any]", known) if is_own else None


def _import(name: str) -> ModuleType:
    if not name or name.startswith("."):
        raise ModuleImportError(
            f"{name!r} names no module; write it as it is imported: 'first' for the file ./first.py"
        )
    here = _working_directory()
    if here is not None and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # As for `python -m`: an installed command has its own directory.
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ModuleImportError(f"module {name!r} needs {error.name!r}, which is not installed here") from error
        hint = " (a module is named without its .py)" if name.endswith(".py") else ""
        place = "where Python looks" if here is None else f"in {here!r} or where Python looks"
        gone = ", and the working directory was deleted" if here is None else ""
        raise ModuleImportError(f"there is no module {name!r} {place}{gone}{hint}") from None
    except (Exception, SystemExit) as error:  # A module is the user's code, and may raise anything.
        raise ModuleImportError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _working_directory() -> str | None:
    """The working directory; None where it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
