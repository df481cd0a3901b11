"""An app for tests: on a directory of its own, with a clock that jumps, seeded chance, and faults on order."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from satay.app import App, app_of_block
from satay.arguments import shown
from satay.clock import Chance
from satay.errors import InvalidValueError, UsageError
from satay.journal import Journal
from satay.revivals import DriveSettings
from satay.scheduler import SchedulerSettings
from satay.settings import Settings, make_settings
from satay.testing.clocks import ManualClock
from satay.testing.faults import Faults

LONG_SECONDS: Final = 3e9
"""The lease of an app under test: time that jumps must not take its runs away."""

_COUNT_FILE: Final = "apps-under-test"


class AppUnderTest(App):
    """An `App` whose time and faults a test holds in its hand. Made by `open_app`.

    `clock` is its time, `faults` what was ordered to go wrong, `data_dir` where its journal is.
    """

    def __init__(
        self,
        data_dir: Path,
        scheduling: SchedulerSettings,
        settings: Settings,
        clock: ManualClock,
        chance: Chance,
        faults: Faults,
    ) -> None:
        super().__init__(settings, scheduling, clock, chance, self._wrap)
        self.clock = clock
        self.faults = faults
        self.data_dir = data_dir
        self.is_abandoned = False
        self._ending: list[asyncio.Task[Any]] = []

    def _wrap(self, journal: Journal) -> Journal:
        return self.faults.wrap(journal, self.clock.stir, self._stop_dead)

    async def open(self) -> None:
        await super().open()
        self.clock.attach(self)

    async def close(self) -> None:
        try:
            await self.clock.detach(self)
            if self.is_abandoned:
                await self._close_abandoned()
            else:
                await super().close()
        finally:
            self.faults.close()

    async def _close_abandoned(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending)
        if self._journal is not None:
            await self._journal.close()

    def _stop_dead(self) -> None:
        self.is_abandoned = self.is_closed = True
        self._ending = list(self._starting)
        if self._scheduler is not None:
            self._ending += self._scheduler.abandon()
        for task in self._starting:
            task.cancel()

    # --- what the clock asks ------------------------------------------------------------------------------------------

    @property
    def is_still(self) -> bool:
        """Whether nothing goes on but attempts."""
        if self.is_abandoned or self._scheduler is None:
            return True
        return self._scheduler.is_still and not self._starting and not self.faults.calls_in_flight()

    @property
    def attempts(self) -> int:
        """How many attempts run."""
        return 0 if self._scheduler is None else self._scheduler.attempts

    def signs(self) -> "set[asyncio.Future[Any]]":
        """Futures of which one is done when something has happened."""
        working = set() if self._scheduler is None else self._scheduler.working()
        return {*self.faults.calls_in_flight(), *self._starting, *working}


@asynccontextmanager
async def open_app(
    data_dir: Path | str | None = None,
    *,
    clock: ManualClock | None = None,
    faults: Faults | None = None,
    seed: int = 0,
    max_resident: int = 4096,
    recover: bool = False,
    grace_seconds: float = 0.0,
    lease_seconds: float = LONG_SECONDS,
    poll_seconds: float = 0.5,
    nondeterminism: Literal["strict", "warn", "off"] = "strict",
    allow_pickle: bool = False,
) -> AsyncIterator[AppUnderTest]:
    """An app for the block, which the functions of `satay` use there too.

    Without `data_dir` its journal is in a temporary directory that goes with the block. Without `clock` its time jumps
    (`ManualClock(autojump=True)`). Ids, seeds and delays come from `seed`; each app that is opened on a directory has
    its own. The other options are those of `satay.run_app`. An app that has crashed is abandoned when the block ends.

    Raises `InvalidValueError` for another clock than a `ManualClock`, and for faults that are none.
    """
    for given, kind in ((clock, ManualClock), (faults, Faults)):
        if given is not None and not isinstance(given, kind):
            raise InvalidValueError(f"open_app() was given {shown(given)}; give it a satay.testing.{kind.__name__}()")
    async with AsyncExitStack() as stack:
        if data_dir is None:
            data_dir = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        place = Path(data_dir)
        settings = make_settings(data_dir=place, synchronous="NORMAL", nondeterminism=nondeterminism)
        scheduling = SchedulerSettings(
            recover=recover,
            lease_seconds=lease_seconds,
            poll_seconds=poll_seconds,
            grace_seconds=grace_seconds,
            max_resident=max_resident,
            drive=DriveSettings(settings.nondeterminism, allow_pickle),
        )
        yield await stack.enter_async_context(
            AppUnderTest(
                place,
                scheduling,
                settings,
                clock or ManualClock(autojump=True),
                Chance(seed * 1_000_003 + _count_app(place)),
                faults or Faults(),
            )
        )


def _count_app(place: Path) -> int:
    """How many apps were opened on a directory before: two apps with the same ids would take each other's runs."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / _COUNT_FILE
    count = int(file.read_text(encoding="ascii")) if file.exists() else 0
    file.write_text(str(count + 1), encoding="ascii")
    return count


async def settle(app: AppUnderTest) -> None:
    """Return when nothing goes on in the app without time passing or a message from outside.

    No attempt runs (but for those that `pause`), nothing is left to write. Where the clock jumps by itself, it has
    nothing left to jump to. While the app stalls this does not return.
    """
    await app.clock.until_nothing_is_due()


async def abandon(app: AppUnderTest) -> None:
    """End the app as `kill -9` would, now: nothing is written any more, no body of a workflow runs on.

    Its runs belong to an owner that is known to be dead, so the next app takes them over at once. Its threads and tasks
    have ended when this returns.
    """
    app.faults.crash()
    await app.close()


async def pause(duration: float | timedelta) -> None:
    """For task bodies: take so many seconds of the app's clock. Infinity stands for a task that hangs."""
    app = app_of_block.get()
    if not isinstance(app, AppUnderTest):
        raise UsageError("satay.testing.pause() was called where no app of satay.testing.open_app() is in use")
    await app.clock.sleep(duration.total_seconds() if isinstance(duration, timedelta) else duration)
