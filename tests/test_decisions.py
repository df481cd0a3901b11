"""Which calls wait for a decision."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import NeedsDecisionError, UsageError
from satay.testing import ManualClock, abandon, open_app, pause

pytestmark = pytest.mark.anyio


@satay.task(name="decisions.pay", effect="external")
async def pay(to: str) -> str:
    begun[to].set()
    await pause(math.inf)
    return to


begun: dict[str, asyncio.Event] = {}


@satay.workflow(name="decisions.order")
async def order() -> Any:
    return await pay("ada")


async def lose(place: Path, *names: str) -> None:
    """A session that dies while it makes external calls."""

    async def hold() -> None:
        async with satay.Session("s"):
            await asyncio.gather(*map(pay, names))

    begun.update({name: asyncio.Event() for name in names})
    async with open_app(place, clock=ManualClock()) as app:
        holding = asyncio.ensure_future(hold())
        for name in names:
            await begun[name].wait()
        await abandon(app)
        holding.cancel()
        await asyncio.wait((holding,))


async def test_of_several_lost_calls_the_first_is_decided_about_unless_one_is_named(tmp_path: Path) -> None:
    await lose(tmp_path, "ada", "bob")
    async with open_app(tmp_path) as app:
        await app.decide("s", value="first")
        await app.decide("s", value="second", seq=4)
        with pytest.raises(UsageError, match=r"about the call at entry 2; undecided calls: \[3, 4\]"):
            await app.decide("s", "rerun", seq=2)
        async with satay.Session("s"):
            assert ("first", "second") == tuple(await asyncio.gather(pay("ada"), pay("bob")))


async def test_a_workflow_that_was_decided_about_waits_for_no_decision(tmp_path: Path) -> None:
    begun["ada"] = asyncio.Event()
    async with open_app(tmp_path, clock=ManualClock()) as app:
        app.start(order, run_id="r")
        await begun["ada"].wait()
        await abandon(app)
    async with open_app(tmp_path) as app:
        handle = app.resume("r")
        with pytest.raises(NeedsDecisionError):
            await handle.result()
        await app.decide("r", value="paid")

        assert "paid" == await app.resume("r").result()
        with pytest.raises(UsageError, match="waits for no decision"):
            await app.decide("r", "rerun")
