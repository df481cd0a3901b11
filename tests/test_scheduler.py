"""What the scheduler asks of the journal, and when."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

import satay
from satay.app import App
from satay.journal import Journal
from satay.scheduler import SchedulerSettings
from satay.settings import Settings
from satay.testing import Chance, ManualClock
from tests.driving import in_loop

DAY = 86_400_000_000


@satay.workflow(name="scheduler.naps")
async def naps() -> str:
    await satay.sleep(10 * 86_400)
    return "woke"


class CountedJournal:
    """A journal that counts what it is asked, by method."""

    def __init__(self, journal: Journal) -> None:
        self.asked: Counter[str] = Counter()
        self._journal = journal
        self._news = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        self._news.set()
        return getattr(self._journal, name)

    async def until_asked(self, name: str, times: int) -> None:
        while self.asked[name] < times:
            self._news.clear()
            await self._news.wait()


@pytest.mark.parametrize("max_resident", [0, 10])
def test_the_next_wake_up_is_slept_to_and_not_polled_for(max_resident: int, tmp_path: Path) -> None:
    journals: list[CountedJournal] = []

    def counted(journal: Journal) -> Journal:
        journals.append(CountedJournal(journal))
        return cast(Journal, journals[0])

    async def run() -> list[Any]:
        clock = ManualClock()
        begun = clock.now()
        scheduling = SchedulerSettings(poll_seconds=0.001, lease_seconds=1e9, max_resident=max_resident)
        async with App(Settings(data_dir=tmp_path), scheduling, clock, Chance(1), counted) as app:
            handle = await app.start(naps)
            async for entry in app.events(handle.run_id):
                if entry.type == "TimerCreated":
                    break
            asked = journals[0].asked
            await journals[0].until_asked("deliverable", asked["deliverable"] + 10)
            before = [clock.next_due, asked["due"], asked["next_wake"]]
            clock.jump_to(begun + 10 * DAY - 1)
            await journals[0].until_asked("deliverable", asked["deliverable"] + 10)
            early = [clock.next_due, asked["due"], asked["next_wake"]]
            clock.jump_to(begun + 10 * DAY)
            result = await handle.result()
            assert clock.next_due is None or clock.next_due > begun + 10 * DAY
            return [before, early, result, asked["due"], begun + 10 * DAY]

    before, early, result, looks, due = in_loop(run())

    assert [due, 0, 0] == before == early
    assert ("woke", 1 if max_resident == 0 else 0) == (result, looks)
