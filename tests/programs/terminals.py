"""Programs whose stderr is a terminal."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.programs.starting import PATIENCE_SECONDS, ROOT

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(arguments: Sequence[str | Path]) -> tuple[int, str, str]:
    """Run Python with a terminal as stderr: the exit status, the output, and what the terminal was told to show."""
    terminal, far_side = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SATAY_", "COVERAGE"))}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=far_side,
        env=environment,
        cwd=ROOT,
    )
    os.close(far_side)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 65_536)
        except OSError:  # Linux says so when the other side has closed.
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output.decode(), _ESCAPES.sub("", shown.decode())
