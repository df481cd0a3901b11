"""Messages of the library in the words of the command line, and that no command says a parameter."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer.main

import satay
from satay.cli import MODULES, application_for
from satay.errors import InvalidValueError, ModuleImportError, NeedsDecisionError
from satay.requests import ForkOptions
from satay.translation import COMMANDS, OPTIONS, option_for, to_command_line, translate

PACKAGE: Final = Path(satay.__file__).parent


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "pass exactly one of before_task=, at= and fork_point_seq=",
            "pass exactly one of --before-task, --at and --at-entry",
        ),
        ("pass allow_unfinished=True to fork it", "pass --allow-unfinished to fork it"),
        ("pass on_stale='rerun', which does", "pass --on-stale rerun, which does"),
        ("at='no place' is no place; at='failure' is", "--at 'no place' is no place; --at failure is"),
        ("fork_point_seq=-1 is not an entry", "--at-entry -1 is not an entry"),
        ("after_ordinal= goes with a after_…= that names", "--after-ordinal goes with a --after-… that names"),
        ("overrides= names the call ('a', 0)", "--override names the call a:0"),
        ("raises= names the call ('a', 'k')", "--fail names the call a[k]"),
        ("tool_policies names a task 'x'", "--policy names a task 'x'"),
        ("tool_policies['x'] is 'y'", "--policy of 'x' is 'y'"),
        ("fork with tool_policies={'a b': 'live'}", "fork with --policy 'a b=live'"),
        ("workflow_input, reason differ", "--input, reason differ"),
        ('satay.decide() takes "rerun" or value=', 'satay decide takes "rerun" or --value'),
        (
            'call satay.decide(run_id, "rerun") or satay.decide(run_id, value=...)',
            "call satay decide RUN rerun or satay decide RUN --value JSON",
        ),
        ("with satay.decide_approval('s', 'k 1', approved=...), open", "with satay approve s 'k 1', open"),
        ("call satay.sweep(..., run_id='s', score=...)", "call satay sweep --run-id s --score MODULE:FUNCTION"),
        ("resume it with satay.resume, or go", "resume it with satay resume RUN, or go"),
        ("app.runs() lists the runs", "satay runs lists the runs"),
        (
            "enter 'async with satay.Session.resume('s')'; use satay.Session.resume('s', fork_at_step=...)",
            "enter 'async with satay.Session.resume('s')'; use satay fork s --at-step N",
        ),
    ],
)
def test_parameters_are_options_and_calls_are_commands(message: str, said: str) -> None:
    assert said == to_command_line(message)


@pytest.mark.parametrize(
    "message",
    [
        "run 'at=1' has the name \"seq=2\"",
        "there is no run 'tool_policies' in this journal",
        "a reason, a value and a score at entry 3",
        "start a process with satay.run_app(recover=True)",
        "status == 3, format=7",
    ],
)
def test_a_value_and_what_is_no_parameter_is_left_as_it_is(message: str) -> None:
    assert message == to_command_line(message)


def test_an_error_about_a_run_names_it_in_the_command() -> None:
    error = NeedsDecisionError('call satay.decide(run_id, "fail")', run_id="pays=1 2")

    assert "call satay decide 'pays=1 2' fail" == translate(error)
    assert "pass --reason" == translate(InvalidValueError("pass reason="))


def test_what_the_users_code_raised_is_told_as_it_is() -> None:
    message = "module 'm' cannot be imported: ValueError: value=3"

    assert message == translate(ModuleImportError(message))


def test_the_option_of_a_parameter_is_known() -> None:
    assert ["--at-entry", "--policy"] == [option_for("--fork-point-seq"), option_for("--tool-policies")]
    assert [None, None, None] == [option_for("--before-task"), option_for("--nonsense"), option_for("")]


def test_what_is_said_instead_is_there() -> None:
    group = typer.main.get_command(application_for(()))
    commands = group.commands  # type: ignore[attr-defined]  # it is a group, which typer does not say
    there = {option for command in commands.values() for parameter in command.params for option in parameter.opts}

    assert set() == set(COMMANDS.values()) - set(MODULES)
    assert set() == set(OPTIONS.values()) - there
    assert set() == set(ForkOptions.__annotations__) - set(OPTIONS)


# --- every message ----------------------------------------------------------------------------------------------------

_PARAMETER: Final = re.compile(
    r"\b[a-z_]+=(?![=\w])|\b[a-z_]+=(?:'|True|\d)|\b(?:satay|app)\.[a-z_]+\(|\bsatay\.resume"
)


def messages() -> Iterator[tuple[str, str]]:
    """The texts in the code that hold a parameter or a call, with `'x'` for what is filled in; by their module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            if " " in text and _PARAMETER.search(text):
                yield path.stem, text


def texts(node: ast.AST) -> Iterator[str]:
    """The texts in some code, without its docstrings."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "'x'" for part in parts)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from texts(child)


OF_CODE: Final = {"definitions", "functions", "primitives", "session_tools", "sessions", "translation"}
"""Modules whose messages are about the user's code, where parameters are what he writes."""

ELSEWHERE: Final = [
    r"satay.run_app\(\)$",  # An app that code opens.
    r"with satay.run_app\(recover=True\)",  # A process, which is a program.
    r"call satay.run_app\(\) for another one",
    r"open it once with satay.run_app\(\)",
    r"satay.experiment\(",  # No command makes an experiment, or reads one.
    r"satay.start\(\)",  # What is no workflow and no run; a command finds one, and names one by a text.
    r"^runs\(",  # What typer has checked.
    r"declares effect=|with effect=",  # What a task declares.
    r"satay.Budget\(|satay.Variant\(",  # What a command makes itself.
    r"^What satay.intervention\(\) answers",  # The help of an option.
]
"""What is said of code, or cannot be said by a command."""


def test_no_message_that_a_command_can_end_with_names_a_parameter() -> None:
    said = [to_command_line(text) for module, text in messages() if module not in OF_CODE]

    assert [] == [text for text in said if _PARAMETER.search(text) and not re.search("|".join(ELSEWHERE), text)]
