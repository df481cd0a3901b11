"""What a signal does to a process that drives runs, and that it does nothing of it to the children of the process."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, ClassVar, Self


class TerminationHandler:
    """The first SIGTERM ends the block in good order, a second one ends the process at once.

    Only where nothing else handles the signal: in the main thread, with the default action in place. SIGINT is left to
    asyncio. A forked child inherits nothing of it: there the signal has its default action.
    """

    installed: ClassVar[Self | None] = None
    """The one that handles the signal now."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._block: asyncio.Task[Any] | None = None
        self._is_asked = False
        self._handler: object = None

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
            self._handler = signal.getsignal(signal.SIGTERM)
            TerminationHandler.installed = self

    def remove(self) -> None:
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGTERM)
            self._loop = None
            TerminationHandler.installed = None

    def forget(self) -> None:
        """Undo what a forked child inherits: asyncio would tell the parent of every signal that the child gets."""
        self._loop = self._block = TerminationHandler.installed = None
        self._is_asked = False
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is self._handler:  # Else the program handles it by itself meanwhile.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

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


if sys.platform != "win32":

    class _Fork(threading.local):
        """A fork that this thread makes: the signals that were blocked before it."""

        blocked: set[signal.Signals | int] | None = None

    _fork = _Fork()

    def _hold_signal_back() -> None:
        # Between its birth and the moment at which it forgets the handler, a child would tell its parent of a signal.
        if TerminationHandler.installed is not None:
            _fork.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_signal_through() -> None:
        blocked, _fork.blocked = _fork.blocked, None
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _begin_child() -> None:
        if TerminationHandler.installed is not None:
            TerminationHandler.installed.forget()
        _let_signal_through()

    os.register_at_fork(before=_hold_signal_back, after_in_parent=_let_signal_through, after_in_child=_begin_child)
