"""Who waits for a run to end, or for its next entry, and what keeps a run from going on."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from satay.archive import Ending
from satay.errors import AppClosedError


class Waiters:
    """Futures of those who wait, by run id, and the errors with which drives stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._endings: dict[str, list[asyncio.Future[Ending | None]]] = {}
        self._news: dict[str, asyncio.Future[None]] = {}
        self._failures: dict[str, BaseException] = {}
        self._is_closed = False

    async def wait(self, run_id: str, seconds: float | None) -> Ending | None:
        """Wait until a run has ended, something keeps it from going on, or the time is over; the ending, if it is that.

        Without a time it is for a run that is driven here, whose drive tells of either.

        Raises `AppClosedError` where the app is closed meanwhile.
        """
        with self.listening(run_id) as news:
            return await self.hear(run_id, news, seconds)

    @contextmanager
    def listening(self, run_id: str) -> "Iterator[asyncio.Future[Ending | None]]":
        """What `hear` waits for; whatever is told of the run from here on is not missed."""
        news: asyncio.Future[Ending | None] = self._loop.create_future()
        self._endings.setdefault(run_id, []).append(news)
        try:
            yield news
        finally:
            waiting = self._endings.get(run_id, [])
            if news in waiting:
                waiting.remove(news)
            if not waiting:
                self._endings.pop(run_id, None)

    async def hear(self, run_id: str, news: "asyncio.Future[Ending | None]", seconds: float | None) -> Ending | None:
        """As `wait`, from where `listening` began."""
        if seconds is None:
            await news
        else:
            await asyncio.wait((news,), timeout=seconds)
        ending = news.result() if news.done() else None
        if ending is None and self._is_closed:
            raise closed_meanwhile(run_id)
        return ending

    def next_entry(self, run_id: str) -> "asyncio.Future[None]":
        """Done when this process next writes to the run's journal; never, where another process drives the run."""
        news = self._news.get(run_id)
        if news is None or news.done():
            news = self._news[run_id] = self._loop.create_future()
        return news

    def tell_of_entry(self, run_id: str) -> None:
        """Something was written to a run's journal."""
        if self._news:
            news = self._news.pop(run_id, None)
            if news is not None and not news.done():
                news.set_result(None)

    def tell(self, run_id: str, ending: Ending | None = None) -> None:
        """A run has ended, or something keeps it from going on."""
        for news in self._endings.pop(run_id, ()):
            if not news.done():
                news.set_result(ending)

    def note_failure(self, run_id: str, error: BaseException) -> None:
        """The drive of a run stopped with an error. The run stays as it was."""
        self._failures[run_id] = error
        self.tell(run_id)

    def forget_failure(self, run_id: str) -> None:
        """A run is driven anew."""
        self._failures.pop(run_id, None)

    def has_failed(self, run_id: str) -> bool:
        return run_id in self._failures

    def raise_failure(self, run_id: str) -> None:
        """Raise the error with which the last drive of a run stopped, if it did."""
        failure = self._failures.get(run_id)
        if failure is not None:
            raise failure

    def tell_all(self) -> None:
        """Any of the runs may be in other hands by now."""
        for run_id in list(self._endings):
            self.tell(run_id)

    def close(self) -> None:
        """Nothing more will come."""
        self._is_closed = True
        self.tell_all()


def closed_meanwhile(run_id: str) -> AppClosedError:
    """The error for whoever waits for a run when the app closes."""
    return AppClosedError(f"the app was closed while the result of run {run_id!r} was awaited; resume the run")
