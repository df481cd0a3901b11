"""How a command answers: as text for people or as JSON for programs, and its errors in the same form.

Text that is not for a terminal is as wide as it needs to be and has no colours, so that it can be searched and cut.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from satay.errors import ModuleImportError, SatayError
from satay.exits import ExitCode, exit_code_of
from satay.tables import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

UNBOUNDED_WIDTH: Final = 10_000
"""How wide text may be that is not for a terminal."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's answer goes, and in which form."""

    is_json: bool

    def show(self, data: object, view: "Callable[[], RenderableType]") -> None:
        """Answer: `data` for programs, and for people what `view` makes."""
        if self.is_json:
            self.write_json(data)
        else:
            self.render(view())

    def write_json(self, data: object) -> None:
        """Write data as JSON, of one line where it is not for a terminal. Characters beyond ASCII are escaped."""
        sys.stdout.write(json.dumps(data, indent=2 if sys.stdout.isatty() else None) + "\n")
        sys.stdout.flush()

    def write_stored(self, text: str) -> None:
        """Write JSON as it is stored, byte for byte."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def render(self, view: "RenderableType") -> None:
        """Write what rich renders, without spaces at the ends of lines."""
        console = make_console()
        with console.capture() as capture:
            console.print(view)
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
        sys.stdout.flush()

    def write_value(self, value: object) -> None:
        """Write plain JSON data for people."""
        lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
        sys.stdout.flush()

    @contextmanager
    def changing(self) -> "Iterator[Callable[[Sequence[Mapping[str, Any]], Callable[[], RenderableType]], None]]":
        """A function that shows rows as they are now, each time it is called.

        On a terminal the view takes the place of the one before. Elsewhere, rows that are new or have changed are
        written as lines of JSON.
        """
        if sys.stdout.isatty() and not self.is_json:
            from rich.live import Live

            with Live(console=make_console(), auto_refresh=False) as live:
                yield lambda _, view: live.update(view(), refresh=True)
        else:
            yield _Ticker().show

    def tell(self, text: str) -> None:
        """Tell people what goes on, beside the answer. Programs are not told."""
        if not self.is_json:
            sys.stderr.write(f"{printable(text)}\n")
            sys.stderr.flush()


class _Ticker:
    """Writes rows that are not as they were written last."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def show(self, rows: Sequence[Mapping[str, Any]], _: "Callable[[], RenderableType]") -> None:
        lines = [json.dumps(row) for row in reversed(rows)]
        sys.stdout.write("".join(f"{line}\n" for line in lines if line not in self._written))
        sys.stdout.flush()
        self._written = set(lines)


def make_console() -> "Console":
    """A console on the standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNBOUNDED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def report_error(error: SatayError, *, is_json: bool) -> ExitCode:
    """Say on the standard error why a command ends, and answer the code with which it does."""
    code = exit_code_of(error)
    if isinstance(error, ModuleImportError) and error.__cause__ is not None and not is_json:
        traceback.print_exception(error.__cause__)
    report_problem(type(error).__name__, str(error), code, is_json=is_json, facts=_facts(error))
    return code


def report_problem(kind: str, message: str, code: ExitCode, *, is_json: bool, facts: dict[str, Any]) -> None:
    """Say on the standard error what is wrong."""
    if is_json:
        sys.stderr.write(json.dumps({"error": kind, "message": message, "exit_code": code, **facts}) + "\n")
    else:
        sys.stderr.write(f"satay: {printable(message)}\n")


def _facts(error: SatayError) -> dict[str, Any]:
    """The attributes of an error that are plain data."""
    return {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | tuple)}


def leave_closed_pipe() -> ExitCode:
    """Whoever read the output has left: write nothing more, not even when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.PIPE_CLOSED
