"""How long this process holds its runs: its lease, which heartbeats renew, and what is known once it has lapsed.

Others may take the runs of a process over that has given no sign of life for the time of its lease. A process whose
loop was blocked, or that slept, does not know: it finds out when it next writes. An effect would be too early for that.
So before one begins the lease is looked at, and where it has lapsed since the run was last known to be held, the
journal is asked first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from satay.clock import MICROSECONDS, Clock
from satay.errors import JournalError
from satay.journal import Journal
from satay.logs import log
from satay.processes import this_process

HEARTBEATS_PER_LEASE: Final = 3
"""How often the owner's row is renewed within the time of a lease."""


class Tenure:
    """The lease of one owner. Whoever keeps it tells `on_lapse` where it had lapsed: others may have taken over.

    `lapses` counts how often that was.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        owner_id: str,
        lease_seconds: float,
        on_lapse: Callable[[], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._owner_id = owner_id
        self._lease_seconds = lease_seconds
        self._on_lapse = on_lapse
        self._until: int | None = None
        self._renewal = asyncio.Lock()
        self._told = 0
        self.lapses = 0

    def is_unbroken_since(self, lapses: int) -> bool:
        """Whether what was held when there were so many lapses is held for certain. May be asked from any thread."""
        return self.lapses == lapses and not self._has_lapsed

    @property
    def _has_lapsed(self) -> bool:
        return self._until is not None and self._clock.now() > self._until

    async def renew(self, *, only_lapsed: bool = False) -> None:
        """Give a sign of life. Nobody takes over from here on; who did while the lease had lapsed has raised the epoch.

        Raises a `JournalError` where that cannot be written.
        """
        async with self._renewal:
            has_lapsed = self._has_lapsed
            if only_lapsed and not has_lapsed:
                return  # Somebody else has renewed it meanwhile.
            owner = this_process(self._owner_id, self._clock.now() + round(self._lease_seconds * MICROSECONDS))
            await self._journal.heartbeat(owner)
            self.lapses += has_lapsed
            self._until = owner.expires_at

    async def keep(self) -> None:
        """Renew the lease again and again."""
        while True:
            await asyncio.sleep(self._lease_seconds / HEARTBEATS_PER_LEASE)
            try:
                await self.renew()
                if self._told < self.lapses:
                    told = self.lapses
                    await self._on_lapse()
                    self._told = told  # Last: where that failed it is told after the next beat.
            except JournalError as error:
                log().warning("lease.not_renewed", owner=self._owner_id, error=str(error))
