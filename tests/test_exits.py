"""The exit codes of commands."""

import re
from pathlib import Path
from typing import Final

import pytest

from satay.errors import (
    AmbiguousRunError,
    ExperimentNotFoundError,
    ForkValidationError,
    InvalidValueError,
    JournalBusyError,
    JournalConflictError,
    JournalCorruptError,
    JournalNotFoundError,
    LeaseHeldError,
    ModuleImportError,
    NeedsDecisionError,
    OutputError,
    PipeClosedError,
    RunConflictError,
    RunEndedError,
    RunNotFoundError,
    SatayError,
    UnknownWorkflowError,
    UsageError,
)
from satay.exits import MEANINGS, ExitCode, exit_code_of

README: Final = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidValueError("x"), ExitCode.USAGE),
        (UsageError("x"), ExitCode.USAGE),
        (ModuleImportError("x"), ExitCode.USAGE),
        (AmbiguousRunError("x", candidates=["a", "b"]), ExitCode.USAGE),
        (RunNotFoundError("x", run_id="r"), ExitCode.NOT_FOUND),
        (ExperimentNotFoundError("x", name="e"), ExitCode.NOT_FOUND),
        (UnknownWorkflowError("x"), ExitCode.NOT_FOUND),
        (RunConflictError("x", run_id="r"), ExitCode.REFUSED),
        (RunEndedError("x", run_id="r"), ExitCode.REFUSED),
        (ForkValidationError("x", run_id="r"), ExitCode.REFUSED),
        (LeaseHeldError("x", run_id="r"), ExitCode.REFUSED),
        (NeedsDecisionError("x", run_id="r"), ExitCode.REFUSED),
        (JournalConflictError("x", run_id="r"), ExitCode.REFUSED),
        (JournalNotFoundError("x"), ExitCode.JOURNAL),
        (OutputError("x"), ExitCode.OUTPUT),
        (PipeClosedError("x"), ExitCode.PIPE_CLOSED),
        (JournalBusyError("x"), ExitCode.JOURNAL),
        (JournalCorruptError("x"), ExitCode.JOURNAL),
        (SatayError("x"), ExitCode.REFUSED),
    ],
)
def test_an_error_leads_to_the_code_that_says_what_kind_it_is(error: SatayError, expected: ExitCode) -> None:
    assert expected is exit_code_of(error)


def test_every_code_has_a_meaning() -> None:
    assert set(ExitCode) == set(MEANINGS)


def test_the_readme_says_what_every_code_means() -> None:
    rows = re.findall(r"^\| (\d+) +\| (.*?) +\|$", README.read_text(encoding="utf-8"), re.MULTILINE)

    assert {str(code.value): meaning for code, meaning in MEANINGS.items()} == dict(rows)
