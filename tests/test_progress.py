"""The bar that shows how far something is: on a terminal, and nowhere else."""

import io
import sys

import pytest

from satay.progress import terminal_progress
from tests.programs.terminals import on_terminal

SHOWING = """
from satay.progress import terminal_progress
progress = terminal_progress("trials", 3)
for _ in range(3):
    progress.advance()
progress.close()
print("done")
"""


@pytest.mark.slow
def test_on_a_terminal_a_bar_counts_what_is_done_and_goes_away() -> None:
    status, output, shown = on_terminal(["-c", SHOWING])

    assert (0, "done\n") == (status, output)
    assert "3 trials" in shown
    assert "3/3" in shown
    assert "" == shown.splitlines()[-1].strip()


def test_where_stderr_is_no_terminal_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())

    assert terminal_progress("trials", 3) is None
