"""One SQLite connection on a thread of its own, on which whole functions run.

The thread never keeps the interpreter alive: it is a daemon, and whoever forgets to close is closed at exit.
"""

import asyncio
import atexit
import contextlib
import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import aiosqlite
from aiosqlite import core

from satay.stores.sqlite_schema import detach_committed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EXIT_PATIENCE_SECONDS: Final = 0.5
"""How long the end of the interpreter waits for a connection that was never closed."""

ITERATION_CHUNK: Final = 64
"""What aiosqlite asks for; rows are fetched whole here."""

_connections: "weakref.WeakSet[ThreadConnection]" = weakref.WeakSet()
_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


class ThreadConnection(aiosqlite.Connection):
    """An `aiosqlite.Connection` that runs a function of ours in one hop.

    aiosqlite's public methods make one hop to the thread for each statement, and a coroutine for each hop. A
    transaction of ours is four statements, so it uses the protected parts that these methods are made of (as of
    aiosqlite 0.22): `_tx`, the queue of the thread, and `_connection`, which only functions on the thread touch here.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connect, ITERATION_CHUNK)
        self._is_ending = False
        self._ended: asyncio.Future[None] | None = None
        # aiosqlite 0.22 makes a thread that is no daemon: a script that forgot to close would never end.
        self._thread.daemon = True

    def start(self) -> None:
        """Start the thread. It connects when the first function asks for the connection."""
        self._thread.start()
        _connections.add(self)
        _threads.add(self._thread)

    def send(self, fn: Callable[[], object]) -> None:
        """Run `fn` on the thread. It reports by itself, and must not raise."""
        # The thread of aiosqlite 0.22 keeps a reference to the last function that it ran while it waits for the next.
        # Through that, a journal that was forgotten would live for ever; so what it keeps is an empty list.
        calls = [fn]
        self._tx.put_nowait((None, lambda: calls.pop()()))

    def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Run `fn(*args)` on the thread; the future answers what it returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                result = fn(*args)
            except BaseException as error:  # the caller gets it, whatever it is
                report(loop, core.set_exception, future, error)
            else:
                report(loop, core.set_result, future, result)

        self.send(call)
        return future

    def connected(self) -> sqlite3.Connection:
        """The connection, made at the first use. Called on the thread only."""
        if self._connection is None:
            self._connection = self._connector()
        return self._connection

    async def end(self) -> None:
        """Run what was sent, disconnect, and wait for the thread's end. May be called again, also after a cancel."""
        if self._thread.ident is None:
            return
        if not self._is_ending:
            self._is_ending = True
            self._ended = self.run(self._disconnect)
            self.send(_stop)
        if self._ended is not None:
            await asyncio.shield(self._ended)
        # The thread has nothing left to do but to return.
        self._thread.join()

    def end_soon(self) -> None:
        """Disconnect when everything that was sent has run, without an event loop."""
        if not self._is_ending:
            self._is_ending = True
            self.send(self._disconnect)
            self.send(_stop)

    def _disconnect(self) -> None:
        connection, self._connection, self._running = self._connection, None, False
        _close(connection)

    def __del__(self) -> None:
        # aiosqlite 0.22 warns here and asks for the event loop; a forgotten connection is simply closed.
        if self._thread.ident is not None and not self._is_ending:
            connection = self._connection
            self.send(lambda: _close(connection))
            self.send(_stop)


def report(loop: asyncio.AbstractEventLoop, fn: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call `fn` on the loop, from the thread. Where the loop is closed, nobody is left to tell."""
    try:  # noqa: SIM105  # Every commit reports, and contextlib.suppress is three calls.
        loop.call_soon_threadsafe(fn, *args)
    except RuntimeError:
        pass


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        # A connection that cannot even be closed has nothing left to lose, and the thread must end.
        with contextlib.suppress(sqlite3.Error):
            detach_committed(connection)
            connection.close()


def _stop() -> object:
    """What ends the thread of aiosqlite 0.22 when a function returns it."""
    return core._STOP_RUNNING_SENTINEL


@atexit.register
def _end_forgotten() -> None:
    for connection in list(_connections):
        connection.end_soon()
    # A thread that waits for a lock, or for a disk that does not answer, is left behind.
    for thread in list(_threads):
        thread.join(EXIT_PATIENCE_SECONDS)
