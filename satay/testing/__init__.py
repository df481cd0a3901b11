"""For tests of workflows: time that moves by hand, seeded chance, crashes at a chosen entry, and an app that has them.

    async def test_a_reminder_goes_out_after_two_weeks():
        async with open_app() as app:
            assert await app.start(remind, "ada").result() == "reminded"

Two weeks pass in milliseconds there: the app's clock jumps to the next moment at which something is due. pytest finds
the fixtures of `satay.testing.plugin` by itself.
"""

from satay.clock import Chance
from satay.testing.apps import AppUnderTest, abandon, open_app, pause, settle
from satay.testing.clocks import ManualClock
from satay.testing.faults import Faults

__all__ = ["AppUnderTest", "Chance", "Faults", "ManualClock", "abandon", "open_app", "pause", "settle"]
