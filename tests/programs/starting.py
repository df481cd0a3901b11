"""Starting programs as processes, and making sure that none outlives its test."""

import functools
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.patience import patience
from tests.programs.effects import EFFECTS_VARIABLE

ROOT: Final = Path(__file__).parents[2]

PATIENCE_SECONDS: Final = patience(60.0)
"""After this long a process hangs, and so does what is waited for."""

PROMPT_SECONDS: Final = 2.0
"""Within this time a process ends that has nothing left to do."""

LOOK_SECONDS: Final = 0.005


class Program:
    """A Python process in which satay and the tests can be imported. Leaving its block kills it."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        variables: Mapping[str, str | Path] | None = None,
        is_strict: bool = True,
        directory: Path = ROOT,
        prefix: Sequence[str] = (),
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SATAY_", "COVERAGE"))}
        environment["PYTHONPATH"] = str(ROOT)
        environment |= {name: str(value) for name, value in (variables or {}).items()}
        warnings = ["-W", "error"] if is_strict else []
        self._process = subprocess.Popen(
            [*prefix, sys.executable, *warnings, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=directory,
        )
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        output, errors = self._process.communicate()
        if error is not None:
            error.add_note(f"process {self.pid} wrote {(self._read + output).decode()!r}, and as errors:")
            error.add_note(errors.decode())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait_for(self, word: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the process has written a line that says `word`."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while word.encode() + b"\n" not in self._read:
            left = deadline - time.monotonic()
            assert left > 0, f"the process did not write {word!r}"
            if select.select([self._process.stdout], [], [], left)[0]:
                chunk = os.read(self._process.stdout.fileno(), 65_536)
                assert chunk, f"the process ended, and did not write {word!r}"
                self._read += chunk

    def end(self, seconds: float = PATIENCE_SECONDS) -> "Ended":
        """Wait for the process to end by itself."""
        began = time.monotonic()
        output, errors = self._process.communicate(timeout=seconds)
        return Ended(
            self._process.returncode, (self._read + output).decode(), errors.decode(), time.monotonic() - began
        )


class Ended:
    """How a process ended: `status` is its exit status, or the negative number of the signal that ended it."""

    def __init__(self, status: int, output: str, errors: str, seconds: float) -> None:
        self.status = status
        self.output = output
        self.errors = errors
        self.seconds = seconds

    @property
    def last_line(self) -> str:
        """The last line of its output: satay may have logged something before."""
        return self.output.splitlines()[-1] if self.output else ""

    def __repr__(self) -> str:
        return f"status {self.status} after {self.seconds:.2f} s\n{self.output}\n{self.errors}"


def module(name: str, *arguments: object, effects: Path, is_strict: bool = True) -> Program:
    """A program of this package, whose task bodies append to `effects`."""
    return Program(
        ["-m", f"tests.programs.{name}", *map(str, arguments)],
        variables={EFFECTS_VARIABLE: effects},
        is_strict=is_strict,
    )


@functools.cache
def promptly() -> float:
    """How long a process that has nothing left to do may take to end, its start included, on this machine today."""
    began = time.monotonic()
    with Program(["-c", "import satay"]) as program:
        program.end()
    return PROMPT_SECONDS + 5 * (time.monotonic() - began)


def wait_until(is_so: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something that another process brings about."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(LOOK_SECONDS)


@contextmanager
def all_of(programs: Sequence[Program]) -> Iterator[Sequence[Program]]:
    """Several processes, of which none outlives the block."""
    try:
        yield programs
    except BaseException as error:
        for program in programs:
            program.__exit__(type(error), error, None)
        raise
    for program in programs:
        program.__exit__(None, None, None)
