"""With what a command ends, so that a script can tell why."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from satay.errors import (
    EncodeError,
    ExperimentNotFoundError,
    InvalidValueError,
    JournalConflictError,
    JournalError,
    OutputError,
    PipeClosedError,
    RunNotFoundError,
    SatayError,
    UnknownWorkflowError,
    UsageError,
)


class ExitCode(IntEnum):
    """The exit codes of the command line."""

    DONE = 0
    NO = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    JOURNAL = 5
    OUTPUT = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.DONE: "done",
    ExitCode.NO: "the answer is no: the run failed or was cancelled, the runs differ, something is damaged",
    ExitCode.USAGE: "the command was not understood, or an argument cannot be used",
    ExitCode.NOT_FOUND: "there is no such run or experiment, or its workflow was not imported",
    ExitCode.REFUSED: "refused, and nothing was changed: a conflict, a cut that does not exist, a run that has ended",
    ExitCode.JOURNAL: "there is no journal, or it cannot be used",
    ExitCode.OUTPUT: "done, but the answer could not be written: the disk is full, or the output is closed",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C; the run can be resumed",
    ExitCode.PIPE_CLOSED: "whoever read the output stopped reading",
}
"""What the exit codes mean."""

_CODES: Final[tuple[tuple[type[SatayError], ExitCode], ...]] = (
    (RunNotFoundError, ExitCode.NOT_FOUND),
    (ExperimentNotFoundError, ExitCode.NOT_FOUND),
    (UnknownWorkflowError, ExitCode.NOT_FOUND),
    (JournalConflictError, ExitCode.REFUSED),
    (JournalError, ExitCode.JOURNAL),
    (PipeClosedError, ExitCode.PIPE_CLOSED),
    (OutputError, ExitCode.OUTPUT),
    (UsageError, ExitCode.USAGE),
    (InvalidValueError, ExitCode.USAGE),
    (EncodeError, ExitCode.USAGE),
)
"""Which code an error leads to, the first that fits; every other one was a refusal."""


def exit_code_of(error: SatayError) -> ExitCode:
    """The code with which a command ends that raised this."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.REFUSED)
