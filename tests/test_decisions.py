"""Which calls wait for a decision."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.endings import Endings
from satay.errors import NeedsDecisionError, UsageError
from satay.journal import DECISION
from satay.model import EntryType
from satay.testing import Faults, ManualClock, abandon, open_app, pause, settle
from tests.corpus import NEVER_SECONDS

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


async def leave_undecided(place: Path, *decisions: Any) -> None:
    """A run that waits for a decision. Others have decided about it, and its process died before it heard of that."""
    begun["ada"] = asyncio.Event()
    async with open_app(place, clock=ManualClock()) as app:
        app.start(order, run_id="r")
        await begun["ada"].wait()
        await abandon(app)
    async with open_app(place, poll_seconds=NEVER_SECONDS) as app, open_app(place, seed=1) as other:
        with pytest.raises(NeedsDecisionError):
            await app.resume("r").result()
        for decision in decisions:
            await other.decide("r", decision)
        await abandon(app)


async def test_a_decision_that_was_made_twice_is_not_one_about_the_next_attempt(tmp_path: Path) -> None:
    await leave_undecided(tmp_path, "rerun", "rerun")
    faults = Faults().crash_after(type=EntryType.DECISION_MADE)
    async with open_app(tmp_path, faults=faults) as app:
        app.resume("r")
        await faults.crashed
    begun["ada"] = asyncio.Event()
    async with open_app(tmp_path, clock=ManualClock()) as app:
        with pytest.raises(NeedsDecisionError):
            await app.resume("r").result()

    assert not begun["ada"].is_set()


async def lose_second_attempt(place: Path) -> None:
    """A run that dies in the attempt that somebody decided to make."""
    await leave_undecided(place, "rerun")
    async with open_app(place, clock=ManualClock()) as app:
        begun["ada"] = asyncio.Event()
        app.resume("r")
        await begun["ada"].wait()
        await abandon(app)


async def test_a_decision_about_an_attempt_is_none_about_the_next_one(tmp_path: Path) -> None:
    """As one that was on its way while somebody else's was taken."""
    await lose_second_attempt(tmp_path)
    async with open_app(tmp_path, poll_seconds=NEVER_SECONDS) as app:
        late = json.dumps({"call": 2, "attempt": 1, "decision": "rerun"})
        await (await app.scheduler()).journal.post("r", DECISION, None, None, late, 0)
        begun["ada"] = asyncio.Event()
        with pytest.raises(NeedsDecisionError):
            await app.resume("r").result()

        assert not begun["ada"].is_set()


async def test_what_becomes_of_a_decision_while_somebody_reads_of_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale one is dropped just after whoever waits for the result has seen it in the inbox."""
    await lose_second_attempt(tmp_path)
    async with open_app(tmp_path, poll_seconds=NEVER_SECONDS) as app:
        refuse = Endings._refuse_undecided

        async def refuse_slowly(self: Endings, run_id: str) -> None:
            await refuse(self, run_id)
            await settle(app)

        journal = (await app.scheduler()).journal
        await journal.post("r", DECISION, None, None, json.dumps({"call": 2, "attempt": 1, "decision": "rerun"}), 0)
        monkeypatch.setattr(Endings, "_refuse_undecided", refuse_slowly)
        with pytest.raises(NeedsDecisionError):
            await app.resume("r").result()


@pytest.mark.parametrize("run_id", ["r", "s"])
async def test_the_first_decision_holds_and_another_one_is_refused(run_id: str, tmp_path: Path) -> None:
    async def decide(app: satay.App) -> None:
        for _ in range(2):
            await app.decide(run_id, value="paid")
        for decision in ("rerun", "fail"):
            with pytest.raises(UsageError, match="before: the decision is 'value', and the first one holds"):
                await app.decide(run_id, decision)
        with pytest.raises(UsageError, match="the first one holds"):
            await app.decide(run_id, value="not paid")

    await (leave_undecided(tmp_path) if run_id == "r" else lose(tmp_path, "ada"))
    async with open_app(tmp_path, poll_seconds=NEVER_SECONDS) as app, open_app(tmp_path, seed=1) as other:
        if run_id == "r":
            with pytest.raises(NeedsDecisionError):
                await app.resume("r").result()
        await decide(other)
    async with open_app(tmp_path) as app:
        if run_id == "r":
            assert "paid" == await app.resume("r").result()
        else:
            async with satay.Session("s"):
                assert "paid" == await pay("ada")
