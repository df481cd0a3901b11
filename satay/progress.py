"""How far something is, on a terminal."""

import sys
from typing import Final

REFRESHES_PER_SECOND: Final = 5


class Progress:
    """A bar on stderr, which goes away when it is closed."""

    def __init__(self, noun: str, total: int) -> None:
        # Loaded when a bar is shown: it brings more code than the engine, and most programs show none.
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        columns = (TextColumn(f"{{task.completed:>4}} {noun}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bar = RichProgress(*columns, console=console, transient=True, refresh_per_second=REFRESHES_PER_SECOND)
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def advance(self) -> None:
        """One more is done."""
        self._bar.advance(self._task)

    def close(self) -> None:
        self._bar.stop()


def terminal_progress(noun: str, total: int) -> Progress | None:
    """A bar, if stderr is a terminal."""
    return Progress(noun, total) if sys.stderr.isatty() else None
