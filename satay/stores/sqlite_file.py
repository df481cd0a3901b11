"""The file that a journal has open, and whether its path still leads there.

A file that is deleted, moved or replaced stays open, and takes everything that is written: nobody would find it again.
"""

import os
from pathlib import Path

from satay.errors import JournalUnavailableError


class OpenFile:
    """The file that a path leads to now. Whoever makes this has it open."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        found = os.stat(self._path)
        self._identity = found.st_ino, found.st_dev

    def check(self) -> None:
        """Raise `JournalUnavailableError` if the path leads to another file by now, or to none."""
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise self._lost(f"the journal {self._path!r} was deleted or moved while it was open") from None
        except OSError:  # Nobody may look, so nobody knows; SQLite tells what is wrong with the file that it has open.
            return
        if (found.st_ino, found.st_dev) != self._identity:
            raise self._lost(f"another file has taken the place of the journal {self._path!r} while it was open")

    def _lost(self, what: str) -> JournalUnavailableError:
        return JournalUnavailableError(
            f"{what}; nothing was written, because it would be lost. Put the file back, or open the journal again"
        )
