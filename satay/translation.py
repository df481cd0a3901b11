"""What the library says, in the words of the command line: options instead of parameters, commands instead of calls.

A message of the library names what a program gives. What stands in quotes there is somebody's value, and is left alone.
"""

import re
import shlex
from ast import literal_eval
from collections.abc import Mapping
from typing import Final

from satay.errors import ModuleImportError, SatayError

OPTIONS: Final[Mapping[str, str]] = {
    "fork_point_seq": "--at-entry",
    "fork_at_step": "--at-step",
    "overrides": "--override",
    "raises": "--fail",
    "tool_policies": "--policy",
    "workflow_input": "--input",
} | {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("before_task", "before_event", "before_child", "before_ordinal", "before_key"),
        *("after_task", "after_ordinal", "after_key", "at", "at_step", "boundary", "keep_siblings"),
        *("intervention", "reason", "on_stale", "children", "expected_head", "allow_unfinished"),
        *("run_id", "idempotency_key", "event_id", "seq", "value", "score"),
    )
}
"""The options of the command line, by the parameters that they stand for."""

COMMANDS: Final[Mapping[str, str]] = {
    "approvals": "approvals",
    "compare": "compare",
    "decide": "decide",
    "decide_approval": "approve",
    "outcome": "outcome",
    "runs": "runs",
    "sweep": "sweep",
}
"""The commands, by the functions that they stand for, as far as messages name them."""

_PLACEHOLDERS: Final[Mapping[str, str]] = {
    "run_id": "RUN",
    "...": "",
    "approved=...": "",
    "score=...": "--score MODULE:FUNCTION",
    "value=...": "--value JSON",
}
"""What stands for a value that is still to be chosen."""

_TEXT: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ALONE: Final = "|".join(name for name in OPTIONS if "_" in name and name != "run_id")  # No word of English.

_WORDS: Final = re.compile(
    rf"""
    (?P<code> 'async\ with\ [^']*'[^']*'\)' )
    | (?:satay|app) \. (?P<function> {"|".join(COMMANDS)} ) \( (?P<arguments> [^()]*) \)
    | satay\.(?P<plain> resume ) \b (?!\()
    | satay\.Session\.resume\( (?P<session> {_TEXT} ),\ fork_at_step=\.\.\. \)
    | \( (?P<call> {_TEXT} ),\ (?P<occurrence> \d+|{_TEXT} ) \)
    | (?<!\w) (?: {_TEXT} )
    | \b (?P<side> before|after )_…=
    | \b tool_policies = \{{ (?P<task> {_TEXT} ):\ (?P<policy> {_TEXT} ) \}}
    | \b tool_policies \[ (?P<named> {_TEXT} ) \]
    | \b (?P<option> {"|".join(OPTIONS)} ) = (?P<given> {_TEXT} | -?\d+ | True | \.\.\. )?
    | \b (?P<alone> {_ALONE} ) \b
    """,
    re.VERBOSE,
)


def translate(error: SatayError) -> str:
    """The message of an error, as the command line says it."""
    if isinstance(error, ModuleImportError):  # It ends with what the user's code raised, in his words.
        return str(error)
    return to_command_line(str(error), getattr(error, "run_id", None))


def to_command_line(message: str, run_id: object = None) -> str:
    """A message of the library, as the command line says it. `run_id` is the run that it is about, where one is."""
    return _WORDS.sub(lambda found: _said(found, run_id), message)


def option_for(name: str) -> str | None:
    """The option that was meant by one that is named as its parameter is, `--fork-point-seq`; None for any other."""
    meant = OPTIONS.get(name.removeprefix("--").replace("-", "_"))
    return None if meant == name else meant


def _said(found: re.Match[str], run_id: object) -> str:
    match found.groupdict():
        case {"function": str(function), "arguments": str(arguments)}:
            words = [_argument(each, run_id) for each in arguments.split(", ") if each]
            return " ".join(["satay", COMMANDS[function], *(word for word in words if word)])
        case {"plain": str(plain)}:
            return f"satay {plain} {_argument('run_id', run_id)}"
        case {"session": str(session)}:
            return f"satay fork {_typed(session)} --at-step N"
        case {"call": str(call), "occurrence": str(occurrence)}:
            name, number = literal_eval(call), literal_eval(occurrence)
            return f"{name}:{number}" if isinstance(number, int) else f"{name}[{number}]"
        case {"side": str(side)}:
            return f"--{side}-…"
        case {"task": str(task), "policy": str(policy)}:
            return f"--policy {shlex.quote(f'{literal_eval(task)}={literal_eval(policy)}')}"
        case {"named": str(named)}:
            return f"--policy of {named}"
        case {"option": str(option), "given": given}:
            return OPTIONS[option] if given in (None, "True", "...") else f"{OPTIONS[option]} {_typed(given)}"
        case {"alone": str(alone)}:
            return OPTIONS[alone]
        case _:
            return found[0]


def _argument(text: str, run_id: object) -> str:
    """An argument of a call, as a word of a command."""
    if text == "run_id" and isinstance(run_id, str):
        return shlex.quote(run_id)
    if text in _PLACEHOLDERS:
        return _PLACEHOLDERS[text]
    return _typed(text) if text[0] in "'\"" else to_command_line(text)


def _typed(literal: str) -> str:
    """A number or a text in Python, as it is typed in a shell."""
    return shlex.quote(str(literal_eval(literal)))
