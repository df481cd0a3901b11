"""What a signal does to a process that drives runs."""

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import Any


class TerminationHandler:
    """The first SIGTERM ends the block in good order, a second one ends the process at once.

    Only where nothing else handles the signal: in the main thread, with the default action in place. SIGINT is left to
    asyncio.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._block: asyncio.Task[Any] | None = None
        self._is_asked = False

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        self._block = asyncio.current_task()
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(signal.SIGTERM, self._on_signal)
            self._loop = loop

    def remove(self) -> None:
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGTERM)
            self._loop = None

    def end_process_if_asked(self) -> None:
        """End as the signal would have ended the process, now that everything is written."""
        if self._is_asked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _on_signal(self) -> None:
        if self._is_asked:
            os._exit(128 + signal.SIGTERM)
        self._is_asked = True
        if self._block is not None:
            self._block.cancel()
