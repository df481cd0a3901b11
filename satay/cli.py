"""The command line: `satay`, or `python -m satay`. Each command is a few lines over the library.

Its modules are loaded for the command that is asked for, and only that command is built: typer takes a while for each.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Final

import typer

from satay.commandline import make_application

MODULES: Final[Mapping[str, str]] = {
    "runs": "satay.list_commands",
    "show": "satay.read_commands",
    "compare": "satay.read_commands",
    "diff": "satay.read_commands",
    "trail": "satay.read_commands",
    "verify": "satay.read_commands",
    "doctor": "satay.read_commands",
    "run": "satay.drive_commands",
    "fork": "satay.drive_commands",
    "plan": "satay.drive_commands",
    "sweep": "satay.drive_commands",
    "resume": "satay.drive_commands",
    "outcome": "satay.steer_commands",
    "promote": "satay.steer_commands",
    "cancel": "satay.steer_commands",
    "send": "satay.steer_commands",
    "decide": "satay.steer_commands",
    "approvals": "satay.list_commands",
    "approve": "satay.steer_commands",
}
"""The commands, in the order in which the help lists them, and the module that has each."""

_COMPLETION: Final = "_SATAY_COMPLETE"
"""The variable that a shell sets to be told how a line goes on."""

_LINES: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""The variables in which that line may be."""


def main() -> None:
    """The entry point of the command `satay`."""
    if isinstance(sys.stdout, TextIOWrapper):  # What its encoding lacks is written as an escape, as on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    application_for(_completed_words() if _COMPLETION in os.environ else sys.argv[1:])()


def application_for(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that the arguments name; with all of them where they name none."""
    asked = arguments[0] if arguments else ""
    names = [asked] if asked in MODULES else list(MODULES)
    for module in {MODULES[name]: None for name in names}:
        import_module(module)
    return make_application(names)


def _completed_words() -> list[str]:
    """The words of the line that a shell completes, after the program, and without the last: it is not complete."""
    line = next((os.environ[name] for name in _LINES if name in os.environ), "")
    return line.split(" ")[1:-1]
