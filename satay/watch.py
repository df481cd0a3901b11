"""Watches the turns of bodies from a thread of its own, and tells of one that blocks the event loop."""

import sys
import sysconfig
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Final

from satay.clock import monotonic

SLOW_TURN_SECONDS: Final = 1.0
"""A turn that runs longer blocks everything else in the process, and is told of."""

_OWN: Final = str(Path(__file__).parent)
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class TurnWatch:
    """`begin` and `end` enclose a turn. `tell` is called, in the watching thread, with run id, seconds and line."""

    def __init__(self, tell: Callable[[str, float, str], None]) -> None:
        self._tell = tell
        self._turn: tuple[str, float] | None = None
        self._watched = threading.get_ident()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="satay-turn-watch", daemon=True)
        self._thread.start()

    def begin(self, run_id: str) -> None:
        self._turn = (run_id, monotonic())

    def end(self) -> None:
        self._turn = None

    def close(self) -> None:
        """End the thread, which does nothing that takes long."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        told: tuple[str, float] | None = None
        while not self._closed.wait(SLOW_TURN_SECONDS / 2):
            turn = self._turn
            if turn is None or turn is told:
                continue
            seconds = monotonic() - turn[1]
            frame = sys._current_frames().get(self._watched)
            if seconds >= SLOW_TURN_SECONDS and frame is not None and self._turn is turn:
                told = turn
                self._tell(turn[0], seconds, _line_of_user(frame))
            del frame


def _line_of_user(innermost: types.FrameType) -> str:
    """The innermost line that is neither satay's nor a library's; the innermost of all where there is none."""
    frame: types.FrameType | None = innermost
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_OWN, *_LIBRARIES, "<frozen")):
            return _line(frame)
        frame = frame.f_back
    return _line(innermost)


def _line(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
