"""Faults of a process, at a chosen entry of the journal: it dies, or it stands still for a while.

Both are played on the journal: what a dead process would not have written is not written. Entries count over all runs
of the app, in the order in which the app writes them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, Self, cast

from satay.errors import JournalClosedError, UsageError
from satay.journal import Append, Commit, Journal, NewFork, Note
from satay.model import Entry, EntryType

WRITES: Final = frozenset({"create", "fork", "append", "note", "claim", "release", "heartbeat", "retire", "post"})
"""The methods of a journal that write."""


_TYPES: Final = tuple(type.value for type in EntryType)


class _Place(Enum):
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    STALL_AFTER = "stall after"


@dataclass(slots=True)
class _Trigger:
    """Goes off at the entry (of a type), or append, with this number. `left` counts down to it."""

    place: _Place
    type: str | None
    unit: Literal["entry", "append"]
    number: int
    left: int

    def is_set_off_by(self, entries: Sequence[Entry]) -> bool:
        was_waiting = self.left > 0
        if self.unit == "append":
            self.left -= 1
        elif self.type is None:
            self.left -= len(entries)
        else:
            self.left -= sum(entry.type == self.type for entry in entries)
        return was_waiting and self.left <= 0


class Faults:
    """What goes wrong in one app under test, and when. Given to `open_app`, for one app.

        faults = Faults().crash_after(type="TaskScheduled", count=3)
        async with open_app(directory, faults=faults) as app:
            app.start(report, "acme", run_id="r")
            await faults.crashed
        async with open_app(directory) as app:
            assert await app.resume("r").result() == "..."

    A crash is like `kill -9` at that moment: what was committed stays, nothing else is written, no body runs on, no
    lease is given back. Whoever awaits something of the app gets `AppClosedError` or `JournalClosedError`. Task bodies
    in the process of the test cannot be killed: they are cancelled, and what they clean up is not in any journal.
    """

    def __init__(self) -> None:
        self.is_crashed = False
        self.is_stalled = False
        self.entries_written = 0
        self.appends_written = 0
        self._triggers: list[_Trigger] = []
        self._crashed: asyncio.Future[None] | None = None
        self._stalled: asyncio.Future[None] | None = None
        self._on_crash: Callable[[], None] = lambda: None
        self._held: list[Callable[[], None]] = []
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._lost: list[asyncio.Future[Any]] = []
        self._is_dying = False
        self._is_closed = False

    def crash_after(
        self, *, entries: int | None = None, append: int | None = None, type: str | None = None, count: int = 1
    ) -> Self:
        """Crash when so many entries, the given append (from 1), or the `count`-th entry of a type, is committed."""
        return self._add(_Place.CRASH_AFTER, entries, append, type, count)

    def crash_before(self, *, append: int | None = None, type: str | None = None, count: int = 1) -> Self:
        """Crash before the given append (from 1; a creation is one), or the `count`-th entry of a type, is written."""
        return self._add(_Place.CRASH_BEFORE, None, append, type, count)

    def stall_after(self, *, entries: int | None = None, type: str | None = None, count: int = 1) -> Self:
        """Stand still after an entry, as a process does that is stopped: writing waits until `go_on`."""
        return self._add(_Place.STALL_AFTER, entries, None, type, count)

    def _add(self, place: _Place, entries: int | None, append: int | None, type: str | None, count: int) -> Self:
        numbers = [number for number in (entries, append, None if type is None else count) if number is not None]
        if len(numbers) != 1 or numbers[0] < 1:
            raise UsageError(f"say where to {place.value}: at a number from 1, or at the count-th entry of a type")
        if type is not None:
            _check_type(type)
        self._triggers.append(_Trigger(place, type, "entry" if append is None else "append", numbers[0], numbers[0]))
        return self

    @property
    def crashed(self) -> "asyncio.Future[None]":
        """Done when the app has crashed. Raises `UsageError` when it has closed and never did."""
        self._crashed = _future(self._crashed, self.is_crashed)
        if self._is_closed:
            self._give_up(self._crashed, "crashed")
        return self._crashed

    @property
    def stalled(self) -> "asyncio.Future[None]":
        """Done when the app stands still. Raises `UsageError` when it has closed and does not."""
        self._stalled = _future(self._stalled, self.is_stalled)
        if self._is_closed:
            self._give_up(self._stalled, "stood still")
        return self._stalled

    def __repr__(self) -> str:
        orders = [f"{order.place.value} {order.number} {order.type or order.unit}" for order in self._triggers]
        return f"<Faults {', '.join(orders) or 'none'}>"

    def go_on(self) -> None:
        """End a stall: what was to be written meanwhile is written now, in order."""
        self.is_stalled = False
        self._stalled = None
        held, self._held = self._held, []
        for send in held:
            send()

    def crash(self) -> None:
        """Crash now. What is on its way to the disk may still arrive there, as it might when a process is killed."""
        if self.is_crashed:
            return
        self._is_dying = self.is_crashed = True
        self._on_crash()
        if self._crashed is not None and not self._crashed.done():
            self._crashed.set_result(None)
        for future in self._lost:
            _refuse(future)

    def close(self) -> None:
        """The app has closed: what has not gone wrong by now never will."""
        self._is_closed = True
        for future, what in ((self._crashed, "crashed"), (self._stalled, "stood still")):
            if future is not None:
                self._give_up(future, what)

    def _give_up(self, future: "asyncio.Future[None]", what: str) -> None:
        if not future.done():
            future.set_exception(
                UsageError(
                    f"the app has closed and never {what}: {self!r}; it wrote {self.entries_written} entries in "
                    f"{self.appends_written} appends"
                )
            )
            future.exception()  # Nobody may be there to see it.

    # --- between the app and its journal ------------------------------------------------------------------------------

    def wrap(self, journal: Journal, on_call: Callable[[], None], on_crash: Callable[[], None]) -> Journal:
        """The journal as the app sees it. `on_call` is told of every call, `on_crash` stops the app."""
        self._on_crash = on_crash
        return cast("Journal", _Watch(self, journal, on_call))  # It has every method, by delegation.

    def calls_in_flight(self) -> "set[asyncio.Future[Any]]":
        """The calls of the journal that are not answered yet."""
        return self._in_flight

    def pass_on(self, name: str, call: Callable[[], Any], args: tuple[Any, ...]) -> "asyncio.Future[Any]":
        """Make a call, or keep it back as the faults ask."""
        if self.is_crashed or (self._is_dying and name in WRITES):
            return self._lose()
        if name not in WRITES:
            return self._send(call)
        if self.is_stalled:
            return self._hold(call)
        entries = _entries(name, args)
        if entries is None:
            return self._send(call)
        places = {trigger.place for trigger in self._triggers if trigger.is_set_off_by(entries)}
        if _Place.CRASH_BEFORE in places:
            self._die_after(self._in_flight)
            return self._lose()
        self.entries_written += len(entries)
        self.appends_written += 1
        answer = self._send(call)
        if _Place.CRASH_AFTER in places:
            self._die_after({answer})
        elif _Place.STALL_AFTER in places:
            self.is_stalled = True
            answer.add_done_callback(self._stand_still)
        return answer

    def _stand_still(self, _: "asyncio.Future[Any]") -> None:
        if not self.stalled.done():
            self.stalled.set_result(None)

    def _send(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.ensure_future(call())
        self._in_flight.add(answer)
        answer.add_done_callback(self._in_flight.discard)
        return answer

    def _hold(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._held.append(lambda: self._send(call).add_done_callback(partial(_hand_on, answer)))
        return answer

    def _lose(self) -> "asyncio.Future[Any]":
        """The answer of a journal to a process that is dead."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_crashed:
            _refuse(future)
        else:
            self._lost.append(future)
        return future

    def _die_after(self, writes: "set[asyncio.Future[Any]]") -> None:
        """Write nothing from here on, and crash when what is on its way has arrived, before the app learns of it."""
        self._is_dying = True
        waiting = {write for write in writes if not write.done()}
        if not waiting:
            asyncio.get_running_loop().call_soon(self.crash)
            return

        def arrived(write: "asyncio.Future[Any]") -> None:
            waiting.discard(write)
            if not waiting:
                self.crash()

        for write in list(waiting):
            write.add_done_callback(arrived)


class _Watch:
    """A journal of which every call goes through the faults."""

    def __init__(self, faults: Faults, journal: Journal, on_call: Callable[[], None]) -> None:
        self._faults = faults
        self._journal = journal
        self._on_call = on_call

    def close(self) -> Any:
        return self._journal.close()

    def append(self, append: Append) -> Commit:
        self._on_call()
        commit = Commit()
        answer = self._faults.pass_on("append", partial(self._journal.append, append), (append,))
        answer.add_done_callback(lambda done: None if done.cancelled() else commit.settle(done.exception()))
        return commit

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._journal, name)

        def call(*args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
            self._on_call()
            return self._faults.pass_on(name, partial(method, *args, **kwargs), args)

        setattr(self, name, call)
        return call


def _check_type(type: str) -> None:
    if type not in _TYPES:
        close = get_close_matches(type, _TYPES, 1)
        hint = f"did you mean {close[0]!r}?" if close else "satay.model.EntryType lists them"
        raise UsageError(f"no type of entry is called {type!r}; {hint}")


def _entries(name: str, args: tuple[Any, ...]) -> Sequence[Entry] | None:
    """The entries that a call writes, or None for a call that extends no journal."""
    match name, args:
        case "append", (Append() as append, *_):
            successor = () if append.successor is None else append.successor[1]
            return [*append.entries, *successor]
        case "create", (_, entries, *_):
            return cast("Sequence[Entry]", entries)
        case "note", (notes, *_):
            return [entry for note in cast("Sequence[Note]", notes) for entry in note.entries]
        case "fork", (NewFork() as fork, *_):
            return [fork.first, *fork.after]
        case _:
            return None


def _future(there: "asyncio.Future[None] | None", is_done: bool) -> "asyncio.Future[None]":
    if there is None:
        there = asyncio.get_running_loop().create_future()
        if is_done:
            there.set_result(None)
    return there


def _refuse(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(JournalClosedError("the process of this app has crashed, as its test asked"))
        future.exception()  # Nobody may be there to see it.


def _hand_on(answer: "asyncio.Future[Any]", done: "asyncio.Future[Any]") -> None:
    if answer.done() or done.cancelled():
        return
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)
