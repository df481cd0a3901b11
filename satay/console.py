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
from typing import TYPE_CHECKING, Any, Final, TextIO

from satay.errors import ModuleImportError, OutputError, PipeClosedError, SatayError
from satay.exits import ExitCode, exit_code_of
from satay.tables import printable
from satay.translation import translate

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
        write_answer(json.dumps(data, indent=2 if is_terminal() else None) + "\n")

    def write_stored(self, text: str) -> None:
        """Write JSON as it is stored, byte for byte: in UTF-8, whatever the encoding of the output is."""
        output = _open_output()
        with answering():
            output.flush()
            output.buffer.write(f"{text}\n".encode())
            output.flush()

    def render(self, view: "RenderableType") -> None:
        """Write what rich renders, without spaces at the ends of lines."""
        console = make_console()
        with answering(), console.capture() as capture:
            console.print(view)
        write_answer("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))

    def write_value(self, value: object) -> None:
        """Write plain JSON data for people."""
        lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
        write_answer("".join(f"{printable(line)}\n" for line in lines))

    @contextmanager
    def changing(self) -> "Iterator[Callable[[Sequence[Mapping[str, Any]], Callable[[], RenderableType]], None]]":
        """A function that shows rows as they are now, each time it is called.

        On a terminal the view takes the place of the one before. Elsewhere, rows that are new or have changed are
        written as lines of JSON.
        """
        if is_terminal() and not self.is_json:
            from rich.live import Live

            with Live(console=make_console(), auto_refresh=False) as live:

                def show(_: object, view: "Callable[[], RenderableType]") -> None:
                    with answering():
                        live.update(view(), refresh=True)

                yield show
        else:
            yield _Ticker().show

    def tell(self, text: str) -> None:
        """Tell people what goes on, beside the answer. Programs are not told."""
        if not self.is_json:
            _tell(f"{printable(text)}\n")


class _Ticker:
    """Writes rows that are not as they were written last."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def show(self, rows: Sequence[Mapping[str, Any]], _: "Callable[[], RenderableType]") -> None:
        lines = [json.dumps(row) for row in reversed(rows)]
        write_answer("".join(f"{line}\n" for line in lines if line not in self._written))
        self._written = set(lines)


def write_answer(text: str) -> None:
    """Write to the standard output at once. Raises `OutputError`, or `PipeClosedError` where nobody reads it."""
    output = _open_output()
    with answering():
        output.write(text)
        output.flush()


def _open_output() -> TextIO:
    if _is_closed(sys.stdout):
        raise OutputError("the answer cannot be written: the standard output is closed")
    return sys.stdout


@contextmanager
def answering() -> Iterator[None]:
    """A block that writes to the standard output. That it cannot be written is an `OutputError` there.

    Where nobody reads it any more, that is a `PipeClosedError`, also of what rich writes by itself.
    """
    try:
        yield
    except BrokenPipeError:
        raise _closed_pipe() from None
    except SystemExit as left:
        if left.code == 0:  # So typer ends once it has told how a shell completes.
            raise
        raise _closed_pipe() from None  # So rich ends where nobody reads.
    except OSError as error:
        raise OutputError(f"the answer cannot be written to the standard output: {error.strerror}") from None


def _closed_pipe() -> PipeClosedError:
    return PipeClosedError("the answer cannot be written: nobody reads it any more")


def is_terminal() -> bool:
    """Whether the standard output is for a person."""
    return not _is_closed(sys.stdout) and sys.stdout.isatty()


def _is_closed(stream: TextIO | None) -> bool:
    """Whether a standard stream was closed when the process began: Python has none then."""
    return stream is None


def _tell(text: str) -> None:
    """Write to the standard error. Where that cannot be written, nobody can be told, and the command goes on."""
    if _is_closed(sys.stderr):
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _leave(sys.stderr)


def make_console() -> "Console":
    """A console on the standard output."""
    from rich.console import Console

    width = None if is_terminal() else UNBOUNDED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def report_error(error: SatayError, *, is_json: bool) -> ExitCode:
    """Say on the standard error why a command ends, and answer the code with which it does."""
    code = exit_code_of(error)
    if isinstance(error, ModuleImportError) and error.__cause__ is not None and not is_json:
        traceback.print_exception(error.__cause__)
    report_problem(type(error).__name__, translate(error), code, is_json=is_json, facts=_facts(error))
    return code


def report_problem(kind: str, message: str, code: ExitCode, *, is_json: bool, facts: dict[str, Any]) -> None:
    """Say on the standard error what is wrong."""
    if is_json:
        _tell(json.dumps({"error": kind, "message": message, "exit_code": code, **facts}) + "\n")
    else:
        _tell(f"satay: {printable(message)}\n")


def _facts(error: SatayError) -> dict[str, Any]:
    """The attributes of an error that are plain data."""
    return {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | tuple)}


def leave_output() -> None:
    """Write nothing more of what could not be written to the standard output, not even when the interpreter ends."""
    if not _is_closed(sys.stdout):
        _leave(sys.stdout)


def _leave(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
