"""What task bodies did, in a file that every process appends to: it outlives whoever is killed."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import satay

EFFECTS_VARIABLE: Final = "SATAY_TEST_EFFECTS"
"""The environment variable that names the file."""


@dataclass(frozen=True)
class Effect:
    """A task body began or ended. `at` is in microseconds since the epoch, as entries of a journal are."""

    what: str
    run_id: str
    task: str
    occurrence: int | str
    attempt: int
    pid: int
    at: int

    @property
    def call(self) -> tuple[str, str, int | str]:
        return (self.run_id, self.task, self.occurrence)


def note(what: str) -> None:
    """Append what the running task body does."""
    context = satay.task_context()
    occurrence = context.ordinal if context.ordinal is not None else context.key
    assert occurrence is not None
    effect = Effect(
        what, context.run_id, context.task, occurrence, context.attempt, os.getpid(), time.time_ns() // 1000
    )
    append_line(Path(os.environ[EFFECTS_VARIABLE]), asdict(effect))


def append_line(path: Path, value: Any) -> None:
    """Append a line of JSON in one write, which the end of the process cannot tear."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(value).encode() + b"\n")
    finally:
        os.close(file)


def read_lines(path: Path) -> list[Any]:
    """The values that were appended to a file, none where there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_effects(path: Path, whats: Iterable[str] = ("began", "ended")) -> list[Effect]:
    """What task bodies did, in the order in which they did it."""
    effects = [Effect(**value) for value in read_lines(path)]
    return [effect for effect in effects if effect.what in whats]
