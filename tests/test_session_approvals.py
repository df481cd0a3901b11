"""Approvals in sessions: asked for once however often the session is opened anew, and decided while nobody has it."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import (
    ApprovalConflictError,
    ApprovalNotFoundError,
    ApprovalPendingError,
    ApprovalTimeoutError,
    CallConflictError,
    EncodeError,
    InvalidValueError,
    RunEndedError,
    SessionLostError,
)
from satay.model import RunStatus
from satay.testing import AppUnderTest, ManualClock, abandon, open_app
from tests.driving import claim, entries_of, types_of
from tests.test_wrong_types import VALUES

pytestmark = pytest.mark.anyio

DAY = 86_400
PAYLOAD = {"dollars": 40}


async def ask(payload: Any = PAYLOAD, *, wait: bool = False, timeout: float | None = None) -> satay.Approval:
    async with satay.Session.resume("s") as session:
        return await session.require_approval("refund", payload, wait=wait, timeout=timeout)


async def plan_and_ask(payload: Any = PAYLOAD, timeout: float | None = None) -> None:
    async with satay.Session("s", state_fn=lambda: 1) as session:
        await session.step("plan")
        await session.require_approval("refund", payload, wait=False, timeout=timeout)


async def asked(payload: Any = PAYLOAD, timeout: float | None = None) -> None:
    """A session that has asked, and was left."""
    with pytest.raises(ApprovalPendingError):
        await plan_and_ask(payload, timeout)


async def crash() -> None:
    async with satay.Session("s"):
        raise ZeroDivisionError


async def ask_in(fork: satay.Session, payload: Any = PAYLOAD) -> satay.Approval:
    async with fork:
        return await fork.require_approval("refund", payload, wait=False)


async def count_of(app: AppUnderTest, type: str) -> int:
    return (await types_of(app, "s")).count(type)


async def pending() -> list[tuple[str, str]]:
    return [(approval.run_id, approval.key) for approval in await satay.approvals()]


async def request(app: AppUnderTest) -> None:
    """Return once the request is on disk."""
    async for event in app.events("s"):
        if event.type == "EventWaitStarted":
            return


# --- deciding ---------------------------------------------------------------------------------------------------------


async def test_a_session_waits_until_somebody_decides(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app, satay.Session("s") as session:
        waiting = asyncio.create_task(session.require_approval("refund", PAYLOAD))
        await request(app)
        made = await satay.decide_approval("s", "refund", approved=True, by="Mia", note="fine", value=[35])

        assert made == await waiting
        assert ("Mia", "fine", [35]) == (made.by, made.note, made.value)
        assert [] == await pending()


async def test_a_session_notices_what_another_process_decided(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        open_app(tmp_path, clock=clock) as other,
        open_app(tmp_path, clock=clock, poll_seconds=0.01) as app,
        satay.Session("s") as session,
    ):
        waiting = asyncio.create_task(session.require_approval("refund"))
        await request(app)
        await other.decide_approval("s", "refund", approved=False, by="Ada")

        assert "Ada" == (await waiting).by


async def test_a_request_that_is_not_waited_for_leaves_the_session_paused(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await asked()

        assert RunStatus.WAITING == await app.status("s")
        assert "SessionPaused" == (await types_of(app, "s"))[-1]
        assert [("s", "refund")] == await pending()
        await satay.decide_approval("s", "refund", approved=True, by="Mia")
        assert "Mia" == (await ask()).by
        assert (1, 1) == (await count_of(app, "EventWaitStarted"), await count_of(app, "ExternalEventReceived"))
        assert (await satay.verify("s")).is_intact


async def test_a_function_that_is_a_session_is_paused_and_goes_on_when_it_is_called_again(tmp_path: Path) -> None:
    @satay.session("s")
    async def refund() -> str:
        decision = await satay.current_session().require_approval("refund", PAYLOAD, wait=False)
        return f"approved by {decision.by}"

    async with open_app(tmp_path) as app:
        with pytest.raises(ApprovalPendingError):
            await refund()
        status = await app.status("s")
        await satay.decide_approval("s", "refund", approved=True, by="Mia")

        assert RunStatus.WAITING == status
        assert "approved by Mia" == await refund()


async def test_a_request_that_is_pending_in_a_group_pauses_the_session_too(tmp_path: Path) -> None:
    async def ask_in_a_group() -> satay.Approval:
        async with satay.Session("s") as session, asyncio.TaskGroup() as group:
            asking = group.create_task(session.require_approval("refund", wait=False))
        return asking.result()

    async with open_app(tmp_path) as app:
        with pytest.raises(ExceptionGroup):
            await ask_in_a_group()
        paused = (await entries_of(app, "s"))[-1]
        await satay.decide_approval("s", "refund", approved=True)

        assert ("SessionPaused", {"reason": "ApprovalPendingError"}) == (paused.type, paused.data)
        assert await ask_in_a_group()


async def test_a_group_with_another_error_than_that_of_a_pending_request_crashes_the_session(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        with pytest.raises(ExceptionGroup):
            async with satay.Session("s"):
                raise ExceptionGroup("both", [ApprovalPendingError("pending", run_id="s", key="k"), ValueError("oh")])

        assert RunStatus.FAILED == await app.status("s")


@pytest.mark.parametrize("key", ["r", None])
@pytest.mark.parametrize("effect", [None, "external"])
async def test_a_tool_that_asks_has_not_failed_while_nobody_has_decided(
    effect: Any, key: str | None, tmp_path: Path
) -> None:
    made = []

    async def refund(dollars: int) -> str:
        made.append("begun")
        decision = await satay.current_session().require_approval("refund", dollars, wait=False)
        made.append("refunded")
        return f"approved by {decision.by}"

    async def call() -> satay.ToolReceipt[str]:
        async with satay.Session("s") as session:
            with pytest.raises(ApprovalPendingError) if not made else nullcontext():
                await session.call("refund", refund, 40, key=key, effect=effect)
            return await session.call("refund", refund, 40, key=key, effect=effect)

    async with open_app(tmp_path) as app:
        with pytest.raises(ApprovalPendingError):
            await call()
        status = await app.status("s")
        await satay.decide_approval("s", "refund", approved=True, by="Mia")
        receipt = await call()

        assert RunStatus.WAITING == status
        assert (["begun", "begun", "begun", "refunded"], "approved by Mia") == (made[:4], receipt.result)
        assert [] == await pending()
        assert (await satay.verify("s")).is_intact


async def test_an_answer_is_the_same_however_often_it_is_asked_for(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await asked()
        await satay.decide_approval("s", "refund", approved=True, by="Mia")
        answers = [await ask(), await ask(wait=True), await ask(timeout=1)]

        assert 1 == len({answer.at for answer in answers})
        assert (1, 1) == (await count_of(app, "EventWaitStarted"), await count_of(app, "ExternalEventReceived"))


async def test_two_who_wait_for_the_same_share_the_answer(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app, satay.Session("s") as session:
        waiting = [asyncio.create_task(session.require_approval("refund", PAYLOAD)) for _ in range(3)]
        await request(app)
        made = await satay.decide_approval("s", "refund", approved=True)

        assert [made] * 3 == await asyncio.gather(*waiting)
        assert 1 == await count_of(app, "ExternalEventReceived")


async def test_the_first_decision_holds(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await asked()
        first = await satay.decide_approval("s", "refund", approved=True, by="Mia")
        for _ in range(2):  # It lies in the inbox, then it is in the journal.
            assert first == await satay.decide_approval("s", "refund", approved=True, by="Ada")
            with pytest.raises(ApprovalConflictError, match="was approved by 'Mia'"):
                await satay.decide_approval("s", "refund", approved=False, by="Ada")
            assert first == await ask()


async def test_what_a_session_never_asked_for_cannot_be_decided(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await asked()
        with pytest.raises(ApprovalNotFoundError, match="it waits for 'refund'"):
            await satay.decide_approval("s", "other", approved=True)


async def test_a_session_that_has_completed_takes_no_decision(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await asked()
        async with satay.Session("s"):
            pass
        listed = await pending()
        with pytest.raises(RunEndedError):
            await satay.decide_approval("s", "refund", approved=True)

        assert [] == listed
        with pytest.raises(ApprovalPendingError):
            await ask()
        assert [("s", "refund")] == await pending()


async def test_a_session_that_crashed_can_still_be_given_its_decision(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await asked()
        with pytest.raises(ZeroDivisionError):
            await crash()
        listed = await pending()
        await satay.decide_approval("s", "refund", approved=True, by="Mia")

        assert [("s", "refund")] == listed
        assert "Mia" == (await ask()).by


async def test_another_payload_under_the_same_key_is_an_error(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await asked()
        await satay.decide_approval("s", "refund", approved=True)
        with pytest.raises(CallConflictError, match=r"with another payload before: it differs at \$\.dollars"):
            await ask({"dollars": 4_000})

        assert 1 == await count_of(app, "EventWaitStarted")


async def test_a_payload_that_cannot_be_recorded_asks_for_nothing(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        with pytest.raises(EncodeError):
            await asked(object())

        assert 0 == await count_of(app, "EventWaitStarted")


async def test_large_payloads_and_notes_are_kept(tmp_path: Path) -> None:
    large = "x" * 300_000
    async with open_app(tmp_path):
        await asked(large)
        (listed,) = await satay.approvals()
        await satay.decide_approval("s", "refund", approved=True, note=large)

        assert large == listed.payload
        assert large == (await ask(large)).note
        with pytest.raises(CallConflictError):
            await ask(large + "x")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_a_wrong_type_is_refused_and_asks_for_nothing(tmp_path: Path, value: Any) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        wrong = [session.require_approval(value)]
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or value != value):
            wrong.append(session.require_approval("k", timeout=value))
        if not isinstance(value, bool):
            wrong.append(session.require_approval("k", wait=value))
        for call in wrong:
            with pytest.raises(InvalidValueError):
                await call

        assert 0 == await count_of(app, "EventWaitStarted")


# --- time -------------------------------------------------------------------------------------------------------------


async def test_a_request_times_out_while_the_session_waits(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        async with satay.Session("s") as session:
            with pytest.raises(ApprovalTimeoutError) as over:
                await session.require_approval("refund", PAYLOAD, timeout=2 * DAY)

        assert "refund" == over.value.key
        assert 1 == await count_of(app, "EventWaitTimedOut")
        with pytest.raises(ApprovalTimeoutError):
            await ask(wait=True)
        with pytest.raises(ApprovalConflictError, match="timed out at 2026-01-03 00:00:00 UTC"):
            await satay.decide_approval("s", "refund", approved=True)


async def test_the_deadline_is_that_of_the_first_request_and_holds_without_a_process(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        await asked(timeout=2 * DAY)
        await clock.advance(DAY)
        with pytest.raises(ApprovalPendingError):
            await ask(timeout=30 * DAY)
    await clock.advance(DAY)
    async with open_app(tmp_path, clock=clock) as app:
        with pytest.raises(ApprovalConflictError, match="timed out"):
            await satay.decide_approval("s", "refund", approved=True)

        assert 0 == await count_of(app, "EventWaitTimedOut")
        assert [] == await pending()
        with pytest.raises(ApprovalTimeoutError):
            await ask()
        assert 1 == await count_of(app, "EventWaitTimedOut")


async def test_a_decision_in_time_holds_though_the_session_comes_back_after_the_deadline(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock):
        await asked(timeout=2 * DAY)
        await clock.advance(2 * DAY - 1)
        await satay.decide_approval("s", "refund", approved=True, by="Mia")
    await clock.advance(30 * DAY)
    async with open_app(tmp_path, clock=clock):
        assert "Mia" == (await ask()).by


# --- processes --------------------------------------------------------------------------------------------------------


async def test_a_session_whose_process_was_killed_while_it_waited_is_given_its_decision(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        session = satay.Session("s")
        await session.__aenter__()
        waiting = asyncio.create_task(session.require_approval("refund", PAYLOAD, timeout=30 * DAY))
        await request(app)
        await abandon(app)
        waiting.cancel()
    await clock.advance(7 * DAY)
    async with open_app(tmp_path, clock=clock) as app:
        listed = await pending()
        await satay.decide_approval("s", "refund", approved=True, by="Mia")

        assert [("s", "refund")] == listed
        assert "Mia" == (await ask()).by
        assert 1 == await count_of(app, "EventWaitStarted")


async def test_whoever_takes_part_in_a_session_can_ask_and_is_answered_too(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock(), poll_seconds=0.01) as app:
        async with satay.Session("s") as session, satay.Session.join(session.carrier()) as other:
            waiting = [asyncio.create_task(one.require_approval("refund", PAYLOAD)) for one in (session, other)]
            await request(app)
            made = await satay.decide_approval("s", "refund", approved=True)

            assert [made, made] == await asyncio.gather(*waiting)
        assert (1, 1) == (await count_of(app, "EventWaitStarted"), await count_of(app, "ExternalEventReceived"))


async def test_a_session_that_is_lost_while_it_waits_waits_no_more(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock, poll_seconds=0.01, lease_seconds=60) as app:
        session = satay.Session("s")
        await session.__aenter__()
        waiting = asyncio.create_task(session.require_approval("refund", PAYLOAD))
        await request(app)
        journal = (await app.scheduler()).journal
        await journal.retire((await app.scheduler()).owner_id)
        await claim(journal, "s", "another", clock.now())

        with pytest.raises(SessionLostError):
            await waiting
        with pytest.raises(SessionLostError):
            await session.__aexit__(None, None, None)


# --- forks ------------------------------------------------------------------------------------------------------------


async def decided_session() -> None:
    """Step 1, a request and its answer, step 2."""
    await asked()
    await satay.decide_approval("s", "refund", approved=True, by="Mia")
    async with satay.Session("s", state_fn=lambda: 2) as session:
        await session.require_approval("refund", PAYLOAD)
        await session.step("pay")


async def test_a_fork_before_the_request_asks_anew(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await decided_session()
        fork = await satay.Session.resume("s", fork_at_step=1, name="f")
        with pytest.raises(ApprovalPendingError):
            await ask_in(fork, {"dollars": 50})
        listed = await pending()
        await satay.decide_approval("f", "refund", approved=False, by="Ada")

        assert [("f", "refund")] == listed
        assert "Ada" == (await ask_in(satay.Session("f"), {"dollars": 50})).by
        assert "Mia" == (await ask()).by


async def test_a_fork_after_the_decision_inherits_it(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        await decided_session()
        inherited = await ask_in(await satay.Session.resume("s", fork_at_step=2, name="f"))

        assert "Mia" == inherited.by
        with pytest.raises(ApprovalConflictError, match="approval 'refund' of run 'f' was approved by 'Mia'"):
            await satay.decide_approval("f", "refund", approved=False)


async def test_a_fork_between_the_request_and_the_decision_waits_for_a_decision_of_its_own(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: 1) as session:
            with pytest.raises(ApprovalPendingError):
                await session.require_approval("refund", PAYLOAD, wait=False)
            await session.step("ask")
            session.pause()
        await satay.decide_approval("s", "refund", approved=True, by="Mia")
        await ask()
        fork = await satay.Session.resume("s", fork_at_step=1, name="f")
        listed = await pending()
        await satay.decide_approval("f", "refund", approved=False, by="Ada")

        assert [("f", "refund")] == listed
        assert fork.receipt is not None
        assert [("satay.approval[refund]", "wait")] == [(call.call, call.action) for call in fork.receipt.in_flight]
        assert "Ada" == (await ask_in(fork)).by
        assert "Mia" == (await ask()).by
