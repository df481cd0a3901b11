"""Claims on calls of tools, and those who take part in a session from another app."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.app import app_of_block
from satay.errors import (
    CallConflictError,
    CallInProgressError,
    ClaimLostError,
    InvalidValueError,
    NeedsDecisionError,
    SessionLostError,
    TaskBlockedError,
    UnreadableResultError,
    UsageError,
)
from satay.model import EntryType
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app, pause
from tests.driving import entries_of, types_of

pytestmark = pytest.mark.anyio

ADA = {"to": "ada"}
LEASE_SECONDS = 30.0


@satay.task(name="claims.double")
async def double(number: int) -> int:
    return 2 * number


@asynccontextmanager
async def two_apps(place: Path, clock: ManualClock) -> AsyncIterator[tuple[AppUnderTest, AppUnderTest]]:
    """Two processes at one journal, as far as that can be had in one process."""
    async with AsyncExitStack() as stack:
        apps = [
            await stack.enter_async_context(open_app(place, clock=clock, lease_seconds=LEASE_SECONDS, poll_seconds=1.0))
            for _ in range(2)
        ]
        yield apps[0], apps[1]


@contextmanager
def used(app: AppUnderTest) -> Iterator[None]:
    """Sessions that are entered in the block are the app's."""
    token = app_of_block.set(app)
    try:
        yield
    finally:
        app_of_block.reset(token)


async def enter(app: AppUnderTest, session: satay.Session) -> satay.Session:
    """Enter a session as the app does."""
    with used(app):
        return await session.__aenter__()


@asynccontextmanager
async def joined(app: AppUnderTest, carrier: dict[str, Any]) -> AsyncIterator[satay.Session]:
    """Take part in a session from another app."""
    session = await enter(app, satay.Session.join(carrier))
    try:
        yield session
    finally:
        await session.__aexit__(None, None, None)


# --- claims in the hand of the caller ---------------------------------------------------------------------------------


async def test_a_claim_is_completed_and_its_result_found_again(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="welcome")
        receipt = await claim.complete({"id": 7})
        again = await session.claim("email.send", ADA, key="welcome")

        assert ("claimed", "replayed") == (claim.status, again.status)
        assert ({"id": 7}, {"id": 7}) == (receipt.result, again.result)
        assert "email.send[welcome]" == claim.call == again.call


async def test_a_claim_and_a_call_with_the_same_arguments_are_the_same_call(tmp_path: Path) -> None:
    async def send(to: str) -> str:
        return f"sent to {to}"

    async with open_app(tmp_path), satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="k")
        await claim.complete("by hand")
        receipt = await session.call("email.send", send, "ada", key="k")
        await double(4)
        session.pause()
    async with open_app(tmp_path), satay.Session("s") as session:
        task_claim = await session.claim("claims.double", {"number": 4})

        assert ("replayed", "by hand") == (receipt.status, receipt.result)
        assert ("replayed", 8) == (task_claim.status, task_claim.result)


async def test_a_claim_with_other_arguments_is_a_conflict(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        await session.claim("email.send", ADA, key="k")
        with pytest.raises(CallConflictError):
            await session.claim("email.send", {"to": "bob"}, key="k")


async def test_a_claim_that_is_held_is_in_progress_for_everybody_else(tmp_path: Path) -> None:
    async def send(to: str) -> str:
        raise AssertionError("it is being made")

    clock = ManualClock(autojump=True)
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="k", ttl=1000)
        other = await session.claim("email.send", ADA, key="k")
        began = clock.now()
        with pytest.raises(CallInProgressError, match=r"email.send\[k\]"):
            await session.call("email.send", send, "ada", key="k")

        assert ("in_progress", claim.expires_at) == (other.status, other.expires_at)
        assert 300_000_000 == clock.now() - began
        for ending in (other.complete("x"), other.fail(OSError()), other.cancel(), other.heartbeat()):
            with pytest.raises(UsageError, match="not the holder's"):
                await ending
        with pytest.raises(UsageError, match="has no result"):
            _ = other.result


async def test_whoever_waits_for_a_claim_gets_its_result(tmp_path: Path) -> None:
    async def send(to: str) -> str:
        raise AssertionError("it is being made")

    async with open_app(tmp_path, clock=ManualClock()), satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="k")
        waiting = asyncio.ensure_future(session.call("email.send", send, "ada", key="k"))
        await asyncio.sleep(0)
        await claim.complete("by hand")
        receipt = await waiting

        assert ("in_progress", "by hand") == (receipt.status, receipt.result)


async def test_a_claim_that_ran_out_is_taken_over_and_the_old_holder_is_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app, satay.Session("s") as session:
        old = await session.claim("email.send", ADA, key="k", ttl=timedelta(seconds=10))
        await clock.advance(9)
        early = await session.claim("email.send", ADA, key="k")
        await clock.advance(1)
        new = await session.claim("email.send", ADA, key="k")
        for ending in (old.complete("old"), old.fail(OSError()), old.cancel(), old.heartbeat()):
            with pytest.raises(ClaimLostError):
                await ending
        await new.complete("new")
        with pytest.raises(ClaimLostError):
            await new.complete("newer")
        last = await session.claim("email.send", ADA, key="k")

        assert ["claimed", "in_progress", "reclaimed", "replayed"] == [c.status for c in (old, early, new, last)]
        assert "new" == last.result
        assert ["TaskScheduled", "TaskAttemptStarted", "TaskCompleted"] == (await types_of(app, "s"))[2:]


async def test_a_claim_that_ran_out_and_was_not_taken_over_is_still_completed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="k", ttl=10)
        await clock.advance(1000)

        assert "late" == (await claim.complete("late")).result


async def test_a_heartbeat_has_a_claim_run_out_later(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app, satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="k", ttl=10)
        await clock.advance(8)
        await claim.heartbeat()
        await clock.advance(8)
        other = await session.claim("email.send", ADA, key="k")
        entries = await entries_of(app, "s")

        assert ("in_progress", claim.expires_at) == (other.status, other.expires_at)
        assert EntryType.CALL_RENEWED == entries[-1].type
        assert (await satay.verify("s")).is_intact


async def test_a_claim_that_failed_raises_its_error_again(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="k")
        await claim.fail(LookupError("no such address"))

        with pytest.raises(LookupError, match="no such address"):
            await session.claim("email.send", ADA, key="k")


async def test_a_claim_that_is_given_back_is_claimed_anew(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        claim = await session.claim("email.send", ADA, key="k", effect="external")
        await claim.cancel()
        again = await session.claim("email.send", ADA, key="k", effect="external")

        assert "claimed" == again.status
        assert claim.call == again.call


async def test_a_claim_that_somebody_else_has_given_back_meanwhile_is_claimed_anew(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session, satay.Session.join(session.carrier()) as part:
        claim = await part.claim("email.send", ADA, key="k")
        early = await session.claim("email.send", ADA, key="k")
        await claim.cancel()
        late = await session.claim("email.send", ADA, key="k")

    assert ("in_progress", "claimed") == (early.status, late.status)


async def test_a_completed_claim_whose_result_cannot_be_recorded_counts_as_made(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        claim = await session.claim("open", {}, key="k")
        with pytest.raises(UnreadableResultError):
            await claim.complete(object())

        with pytest.raises(UnreadableResultError):
            await session.claim("open", {}, key="k")


async def test_an_external_claim_that_ran_out_waits_for_a_decision(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        claim = await session.claim("pay", {"cents": 5}, key="k", effect="external", ttl=10)
        await clock.advance(10)
        with pytest.raises(NeedsDecisionError):
            await session.claim("pay", {"cents": 5}, key="k", effect="external")
        await satay.decide("s", "rerun")
        again = await session.claim("pay", {"cents": 5}, key="k", effect="external")
        with pytest.raises(ClaimLostError):
            await claim.complete("late")

        assert "reclaimed" == again.status


async def test_the_holder_of_an_external_claim_can_say_what_came_of_it_before_somebody_decides(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        claim = await session.claim("pay", {"cents": 5}, key="k", effect="external", ttl=10)
        await clock.advance(10)
        with pytest.raises(NeedsDecisionError):
            await session.claim("pay", {"cents": 5}, key="k", effect="external")
        await claim.complete("paid")

        assert "paid" == (await session.claim("pay", {"cents": 5}, key="k", effect="external")).result
        with pytest.raises(UsageError, match="waits for no decision"):
            await satay.decide("s", "rerun")


@pytest.mark.parametrize("way", ["complete", "fail", "cancel"])
async def test_what_the_holder_of_a_claim_says_is_recorded_also_where_he_is_cancelled(way: str, tmp_path: Path) -> None:
    faults = Faults()
    async with open_app(tmp_path, faults=faults) as app, satay.Session("s") as session:
        claim = await session.claim("pay", {"cents": 5})
        faults.stall_after(type=EntryType.STEP_RECORDED)
        await session.step("one")
        waiting = asyncio.ensure_future(session.step("two"))
        await asyncio.sleep(0)
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "complete": claim.complete,
            "fail": lambda: claim.fail(LookupError()),
            "cancel": claim.cancel,
        }
        ending = asyncio.ensure_future(ways[way]())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.sleep(0)
        faults.go_on()
        await waiting
        await asyncio.wait((ending,))
        last = (await entries_of(app, "s"))[-1]
        with pytest.raises(LookupError) if way == "fail" else nullcontext():
            assert claim.call == (await session.claim("pay", {"cents": 5})).call

        assert ending.cancelled()
        assert {"complete": "TaskCompleted", "fail": "TaskFailed", "cancel": "CallCancelled"}[way] == last.type


async def test_a_claim_without_a_key_that_has_to_be_decided_is_the_same_when_it_is_claimed_again(
    tmp_path: Path,
) -> None:
    async def claim() -> satay.Claim:
        return await satay.current_session().claim("pay", {"cents": 5}, effect="external")

    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await claim()
            session.pause()
        async with satay.Session("s"):
            for _ in range(2):
                with pytest.raises(NeedsDecisionError):
                    await claim()
            await satay.decide("s", "rerun")
            again = await claim()

    assert ("pay:0", "reclaimed") == (again.call, again.status)


async def test_a_claim_without_a_key_that_was_given_back_is_found_again_under_its_number(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await (await session.claim("pay", {"cents": 5})).cancel()
            await (await session.claim("pay", {"cents": 5})).complete("paid")
            session.pause()
        async with satay.Session("s") as session:
            assert "replayed" == (await session.claim("pay", {"cents": 5})).status


async def test_a_claim_without_a_key_that_somebody_holds_is_asked_for_until_he_is_done(tmp_path: Path) -> None:
    async with two_apps(tmp_path, ManualClock()) as (first, second), satay.Session("s") as session:
        carrier = session.carrier()
        async with joined(first, carrier) as holder, joined(second, carrier) as other:
            held = await holder.claim("pay", {"cents": 5})
            asked = [await other.claim("pay", {"cents": 5}) for _ in range(2)]
            await held.complete("paid")
            found = await other.claim("pay", {"cents": 5})

    assert ["in_progress", "in_progress", "replayed"] == [claim.status for claim in (*asked, found)]


async def test_a_claim_of_a_process_that_is_gone_is_taken_over_with_the_session(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        session = satay.Session("s")
        await session.__aenter__()
        await session.claim("work", {}, key="k", ttl=1000)
        await abandon(app)
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        assert "reclaimed" == (await session.claim("work", {}, key="k")).status


async def test_a_policy_refuses_a_claim(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            await (await session.claim("email.send", ADA, key="sent")).complete("sent")
            await session.step("one")
            fork = await session.fork(boundary="lineage", name="f", tool_policies={"email.send": "block"})
        async with fork:
            inherited = await fork.claim("email.send", ADA, key="sent")
            with pytest.raises(TaskBlockedError):
                await fork.claim("email.send", ADA, key="new")

        assert ("replayed", "sent") == (inherited.status, inherited.result)
        assert "TaskBlocked" in await types_of(app, "f")


@pytest.mark.parametrize("arguments", [None, 3, "to", ["to"], {1: 2}])
async def test_arguments_of_a_claim_are_a_dict_by_name(arguments: Any, tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        with pytest.raises(InvalidValueError, match="give a dict of them by name"):
            await session.claim("email.send", arguments)

        assert 2 == len(await types_of(app, "s"))


async def test_a_task_declares_its_effect_for_claims_too(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        with pytest.raises(UsageError, match="declares its own effect"):
            await session.claim("claims.double", {"number": 1}, effect="pure")
        with pytest.raises(InvalidValueError, match="does not fit"):
            await session.claim("claims.double", {"numbers": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool": None},
        {"tool": 3},
        {"tool": ""},
        {"tool": ["t"]},
        {"tool": "satay.own"},
        {"key": 3},
        {"key": ""},
        {"key": ["k"]},
        {"effect": "sometimes"},
        {"effect": ["pure"]},
        {"ttl": "soon"},
        {"ttl": None},
        {"ttl": math.inf},
        {"ttl": True},
        {"arguments": {"to": ...}},
    ],
    ids=str,
)
async def test_a_claim_that_cannot_be_made_is_refused_with_nothing_written(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        given: dict[str, Any] = {"tool": "t", "arguments": {}, **wrong}
        with pytest.raises(satay.SatayError):
            await session.claim(**given)

        assert 2 == len(await types_of(app, "s"))


@pytest.mark.parametrize("error", [None, "broken", KeyboardInterrupt(), OSError])
async def test_a_claim_fails_with_an_error_and_nothing_else(error: Any, tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        claim = await session.claim("t", {})
        with pytest.raises(InvalidValueError, match="takes the error"):
            await claim.fail(error)

        assert 3 == len(await types_of(app, "s"))


# --- those who take part ----------------------------------------------------------------------------------------------


async def test_the_same_key_in_two_processes_is_called_once_and_the_other_waits(tmp_path: Path) -> None:
    made: list[str] = []
    clock = ManualClock()

    async def send(to: str) -> str:
        made.append(to)
        await pause(2)
        return f"sent to {to}"

    async with two_apps(tmp_path, clock) as (_, app), satay.Session("s") as session:
        async with joined(app, session.carrier()) as part:
            one = asyncio.ensure_future(session.call("send", send, "ada", key="k"))
            other = asyncio.ensure_future(part.call("send", send, "ada", key="k"))
            await clock.advance(3)
            receipts = [await one, await other]

        assert ["ada"] == made
        assert ["claimed", "in_progress"] == sorted(receipt.status for receipt in receipts)
        assert {"sent to ada"} == {receipt.result for receipt in receipts}


async def test_a_long_call_of_a_participant_keeps_its_claim_and_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    clock = ManualClock()

    async def work(to: str) -> str:
        made.append(to)
        await pause(95)
        return "done"

    async with two_apps(tmp_path, clock) as (app, other_app), satay.Session("s") as session:
        async with joined(other_app, session.carrier()) as part:
            one = asyncio.ensure_future(part.call("work", work, "ada", key="k"))
            await clock.advance(1)
            other = asyncio.ensure_future(session.call("work", work, "ada", key="k"))
            await clock.advance(101)
            receipts = [await one, await other]
        renewals = (await types_of(app, "s")).count("CallRenewed")

        assert ["ada"] == made
        assert ["claimed", "in_progress"] == [receipt.status for receipt in receipts]
        assert 9 == renewals


@pytest.mark.parametrize("passes", range(2, 6))
async def test_a_participant_keeps_the_claim_of_an_attempt_that_begins_as_it_is_renewed(
    passes: int, tmp_path: Path
) -> None:
    made: list[int] = []
    clock = ManualClock()

    @satay.task(name="claims.flaky", retries=1, backoff=satay.Backoff(first=9.9, jitter=False))
    async def flaky() -> str:
        made.append(len(made))
        if len(made) == 1:
            raise OSError
        await pause(100)
        return "done"

    async with (
        two_apps(tmp_path, clock) as (_, app),
        satay.Session("s") as session,
        joined(app, session.carrier()) as part,
    ):
        call = asyncio.ensure_future(part.call("claims.flaky", flaky, key="k"))
        await clock.until_idle()
        clock.jump_to(clock.now() + 9_900_000)
        for _ in range(passes):  # The second attempt is being recorded.
            await asyncio.sleep(0)
        clock.jump_to(clock.now() + 100_000)  # The claim is to be renewed.
        await clock.advance(60)
        claim = await session.claim("claims.flaky", {}, key="k")
        await clock.advance(60)

        assert ("in_progress", "done") == (claim.status, (await call).result)
        assert 2 == len(made)


async def test_a_call_of_a_participant_that_died_is_made_again_once_its_claim_ran_out(tmp_path: Path) -> None:
    made: list[str] = []
    has_begun = asyncio.Event()
    clock = ManualClock()

    async def work(to: str) -> str:
        made.append(to)
        has_begun.set()
        if len(made) == 1:
            await pause(math.inf)
        return "done"

    async with two_apps(tmp_path, clock) as (other_app, _), satay.Session("s") as session:
        part = await enter(other_app, satay.Session.join(session.carrier()))
        dying = asyncio.ensure_future(part.call("work", work, "ada", key="k"))
        await has_begun.wait()
        await abandon(other_app)
        dying.cancel()
        await asyncio.wait((dying,))
        again = asyncio.ensure_future(session.call("work", work, "ada", key="k"))
        await clock.advance(LEASE_SECONDS - 1)
        before = list(made)
        await clock.advance(2)
        receipt = await again

        assert (["ada"], ["ada", "ada"]) == (before, made)
        assert ("reclaimed", 2) == (receipt.status, receipt.attempts)
        assert (await satay.verify("s")).is_intact


async def test_a_claim_of_a_participant_outlives_the_process_that_opened_the_session(tmp_path: Path) -> None:
    clock = ManualClock()
    async with two_apps(tmp_path, clock) as (app, other_app):
        session = await enter(app, satay.Session("s"))
        async with joined(other_app, session.carrier()) as part:
            claim = await part.claim("work", {}, key="k", ttl=50)
            await abandon(app)
            reopened = satay.Session("s")
            async with reopened:
                early = await reopened.claim("work", {}, key="k")
                with pytest.raises(SessionLostError):
                    await claim.complete("of a session that changed hands")
                await clock.advance(50)
                late = await reopened.claim("work", {}, key="k")

        assert ("in_progress", "reclaimed") == (early.status, late.status)


async def test_calls_of_a_participant_without_a_key_are_its_own_and_found_again(tmp_path: Path) -> None:
    made: list[str] = []

    async def work(to: str) -> str:
        made.append(to)
        return to

    async with two_apps(tmp_path, ManualClock()) as (_, app), satay.Session("s") as session:
        carriers = [session.carrier(), session.carrier()]
        for carrier in [*carriers, carriers[0]]:
            async with joined(app, carrier) as part:
                await part.call("work", work, carrier["part"])
                await part.call("work", work, "twice")
        mine = await session.call("work", work, "mine")

        assert [carriers[0]["part"], "twice", carriers[1]["part"], "twice", "mine"] == made
        assert "work:0" == mine.call


async def test_calls_of_a_participant_after_a_completion_are_new_ones(tmp_path: Path) -> None:
    made: list[str] = []

    async def work(to: str) -> str:
        made.append(to)
        return to

    async def take_part(session: satay.Session) -> str:
        async with satay.Session.join(session.carrier()) as part:
            return (await part.call("work", work, "ada")).status

    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            statuses = [await take_part(session)]
        for _ in range(2):
            async with satay.Session.resume("s") as session:
                statuses.append(await take_part(session))
                session.pause()

    assert ["claimed", "claimed", "replayed"] == statuses
    assert 2 == len(made)


async def test_steps_and_calls_of_a_participant_are_read_by_whoever_has_the_session_open(tmp_path: Path) -> None:
    async def work(to: str) -> str:
        return to

    async with two_apps(tmp_path, ManualClock()) as (_, app), satay.Session("s") as session:
        async with joined(app, session.carrier()) as part:
            await part.call("work", work, "ada", key="k")
            await part.step("theirs")
        receipt = await session.call("work", work, "ada", key="k")
        step = await session.step("mine")

        assert ("replayed", 2) == (receipt.status, step.number)


async def test_a_session_that_is_paused_is_woken_when_a_participant_has_asked_for_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with two_apps(tmp_path, clock) as (one, other):
        with used(one):
            async with satay.Session("s") as session:
                async with joined(other, session.carrier()) as part:
                    due = await part.wake_at(3600)
                session.pause()
        waiting = (await one.run("s")).wake_at
        await clock.advance(3600)

        assert due == waiting
        assert ["SessionPaused", "TimerFired"] == (await types_of(one, "s"))[-2:]


async def test_an_open_session_that_has_read_what_a_participant_wrote_wakes_itself_when_that_says(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with two_apps(tmp_path, clock) as (_, app), satay.Session("s") as session:
        async with joined(app, session.carrier()) as part:
            await part.wake_at(3600)
        await session.step("mine")
        await clock.advance(3600)

        assert ["StepRecorded", "TimerFired"] == (await types_of(app, "s"))[-2:]


@pytest.mark.parametrize("part", [3, None, "", "x" * 10_000])
def test_a_carrier_with_a_part_that_is_none_is_refused(part: Any) -> None:
    with pytest.raises(InvalidValueError):
        satay.Session.join({"satay_session": "s", "epoch": 1, "part": part})


async def test_a_participant_that_waits_gets_the_result_although_the_session_has_ended_meanwhile(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    has_begun = asyncio.Event()

    async def work(to: str) -> str:
        has_begun.set()
        await pause(0.5)
        return to

    async with two_apps(tmp_path, clock) as (_, app):
        async with satay.Session("s") as session:
            part = await enter(app, satay.Session.join(session.carrier()))
            calling = asyncio.ensure_future(session.call("work", work, "ada", key="k"))
            await has_begun.wait()
            waiting = asyncio.ensure_future(part.call("work", work, "ada", key="k"))
            await clock.advance(0.5)
            await calling
        await clock.advance(10)
        receipt = await waiting
        await part.__aexit__(None, None, None)

        assert ("in_progress", "ada") == (receipt.status, receipt.result)


async def test_a_decision_is_taken_once_also_where_two_make_the_call_at_once(tmp_path: Path) -> None:
    made: list[str] = []
    clock = ManualClock()

    async def pay(to: str) -> str:
        made.append(to)
        return f"paid {to}"

    async with two_apps(tmp_path, clock) as (_, app), satay.Session("s") as session:
        part = await enter(app, satay.Session.join(session.carrier()))
        await session.claim("pay", ADA, key="k", effect="external", ttl=10)
        await clock.advance(10)
        await satay.decide("s", "rerun")
        one = asyncio.ensure_future(session.call("pay", pay, "ada", key="k", effect="external"))
        other = asyncio.ensure_future(part.call("pay", pay, "ada", key="k", effect="external"))
        await clock.advance(5)
        receipts = [await one, await other]
        types = await types_of(app, "s")
        await part.__aexit__(None, None, None)

        assert ["ada"] == made
        assert {"paid ada"} == {receipt.result for receipt in receipts}
        assert "reclaimed" in {receipt.status for receipt in receipts}
        assert 1 == types.count("DecisionMade")


async def test_a_fork_does_not_wait_for_a_claim_that_was_held_at_its_cut(tmp_path: Path) -> None:
    async def work(to: str) -> str:
        return to

    async with two_apps(tmp_path, ManualClock()) as (_, app):
        async with satay.Session("s") as session, joined(app, session.carrier()) as part:
            held = await part.claim("work", ADA, key="k", ttl=1000)
            own = await session.claim("work", ADA, key="own", ttl=1000)
            await session.step("one")
            fork = await session.fork(boundary="lineage", name="f")
            await held.complete("in the source")
            await own.complete("in the source")
        async with fork:
            receipts = [await fork.call("work", work, "ada", key=key) for key in ("k", "own")]

        assert 2 * [("reclaimed", "ada")] == [(receipt.status, receipt.result) for receipt in receipts]
        assert fork.receipt is not None
        assert ["work[k]", "work[own]"] == [call.call for call in fork.receipt.in_flight]
