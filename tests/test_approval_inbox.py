"""Approvals in workflows: asked for once, decided from anywhere, by whoever is first and in time."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.approval_inbox import expire
from satay.errors import (
    ApprovalConflictError,
    ApprovalNotFoundError,
    ApprovalTimeoutError,
    CallConflictError,
    EncodeError,
    InvalidValueError,
    NondeterminismError,
    RunEndedError,
    StalePrefixError,
    UsageError,
)
from satay.model import Message, RunStatus
from satay.testing import AppUnderTest, ManualClock, abandon, open_app, settle
from tests.corpus import NEVER_SECONDS
from tests.driving import entries_of, types_of

pytestmark = pytest.mark.anyio

DAY = 86_400
DECIDED = '{"key":"refund","approved":true,"by":"Mia","note":null,"value":null,"at":"2026-01-01T00:00:00Z"}'
"""A decision as it lies in an inbox."""

amount: list[int] = []
paid: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    amount[:] = [40]
    paid.clear()


@satay.task(name="approvals.pay")
async def pay(dollars: int) -> int:
    paid.append(dollars)
    return dollars


@satay.workflow(name="approvals.refund")
async def refund(timeout: float | None = None) -> str:
    await pay(0)
    decision = await satay.require_approval("refund", {"dollars": amount[0]}, timeout=timeout)
    if not decision:
        return f"rejected by {decision.by}"
    return f"paid {await pay(decision.value or amount[0])}, says {decision.by}"


@satay.workflow(name="approvals.patient")
async def patient(timeout: float) -> str:
    try:
        await satay.require_approval("refund", timeout=timeout)
    except ApprovalTimeoutError as error:
        return f"{type(error).__name__} of {error.key}"
    return "decided"


def clock_after(days: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=days)


async def waiting(app: AppUnderTest, workflow: Any = refund, input: Any = None, run_id: str = "r") -> Any:
    handle = app.start(workflow, input, run_id=run_id)
    await handle
    await settle(app)
    return handle


# --- deciding ---------------------------------------------------------------------------------------------------------


async def test_a_run_goes_on_with_what_was_decided(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        decision = await satay.decide_approval("r", "refund", approved=True, by="Mia", note="fine", value=35)

        assert "paid 35, says Mia" == await handle.result()
        assert ("refund", True, "Mia", "fine", 35) == (
            decision.key,
            decision.approved,
            decision.by,
            decision.note,
            decision.value,
        )
        assert (await satay.verify("r")).is_intact


async def test_a_rejection_is_an_answer_and_is_false(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        decision = await satay.decide_approval("r", "refund", approved=False, by="Mia")

        assert "rejected by Mia" == await handle.result()
        assert not decision


async def test_the_same_decision_again_answers_the_first_and_another_one_is_refused(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        first = await satay.decide_approval("r", "refund", approved=True, by="Mia", value=35)
        early = await satay.decide_approval("r", "refund", approved=True, by="Ada", value=35)
        await handle.result()
        late = await satay.decide_approval("r", "refund", approved=True, by="Ada", value=35)
        with pytest.raises(ApprovalConflictError) as other_verdict:
            await satay.decide_approval("r", "refund", approved=False, by="Ada")
        with pytest.raises(ApprovalConflictError, match="with the value 35 by 'Mia' at 2026-01-01 00:00:00 UTC"):
            await satay.decide_approval("r", "refund", approved=True, value=36)

        assert (first, first) == (early, late)
        refused = other_verdict.value
        assert ("r", "refund", True, "Mia") == (refused.run_id, refused.key, refused.approved, refused.by)
        assert [0, 35] == paid


async def test_of_many_decisions_at_once_one_holds(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, open_app(tmp_path, clock=app.clock) as other:
        handle = await waiting(app)
        tries = [
            asker.decide_approval("r", "refund", approved=number % 2 == 0, by=str(number))
            for number, asker in enumerate([app, other] * 10)
        ]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        holding = {outcome for outcome in outcomes if isinstance(outcome, satay.Approval)}
        refused = [outcome for outcome in outcomes if isinstance(outcome, ApprovalConflictError)]

        assert (1, 10) == (len(holding), len(refused))
        assert {(decision.approved, decision.by) for decision in holding} == {
            (error.approved, error.by) for error in refused
        }
        assert str(holding.pop().by) in await handle.result()


async def test_what_was_never_asked_for_cannot_be_decided_and_what_is_pending_is_named(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await waiting(app)
        with pytest.raises(
            ApprovalNotFoundError, match="never asked for approval 'refnud'; it waits for 'refund'"
        ) as no:
            await satay.decide_approval("r", "refnud", approved=True)

        assert ("refund",) == no.value.pending
        assert [] == await (await app.scheduler()).journal.messages("r")


async def test_what_a_run_that_ended_had_asked_for_cannot_be_decided(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        await handle.cancel()
        await settle(app)

        assert RunStatus.CANCELLED == await handle.status()
        with pytest.raises(RunEndedError, match="does not wait for approval 'refund' any more"):
            await satay.decide_approval("r", "refund", approved=True)
        assert [] == await satay.approvals()


async def test_a_value_that_cannot_be_recorded_decides_nothing(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await waiting(app)
        with pytest.raises(EncodeError):
            await satay.decide_approval("r", "refund", approved=True, value=object())

        assert ["refund"] == [pending.key for pending in await satay.approvals("r")]


# --- asking -----------------------------------------------------------------------------------------------------------


async def test_pending_approvals_are_listed_with_what_they_are_about(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        await waiting(app)
        await clock.advance(60)
        await waiting(app, input=2.0 * DAY, run_id="s")
        listed = await satay.approvals()
        await satay.decide_approval("r", "refund", approved=True)

        assert [("r", {"dollars": 40}, None), ("s", {"dollars": 40}, timedelta(days=2))] == [
            (one.run_id, one.payload, one.deadline and one.deadline - one.asked_at) for one in listed
        ]
        assert ["s"] == [pending.run_id for pending in await satay.approvals()]
        assert [] == await satay.approvals("r")


async def test_a_decision_that_is_taken_while_the_inbox_is_read_is_not_listed_as_pending(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await waiting(app)
        journal = (await app.scheduler()).archive.journal
        read = journal.messages

        async def read_slowly(run_id: str) -> list[Message]:
            journal.messages = read  # type: ignore[method-assign]
            await satay.decide_approval("r", "refund", approved=True)
            await settle(app)
            return await read(run_id)

        journal.messages = read_slowly  # type: ignore[assignment,method-assign]
        assert [] == await satay.approvals()


async def test_one_key_is_asked_for_once_in_a_run(tmp_path: Path) -> None:
    @satay.workflow(name="approvals.twice")
    async def twice() -> list[Any]:
        asked = [satay.require_approval("refund", {"a": 1, "b": 2}), satay.require_approval("refund", {"b": 2, "a": 1})]
        decisions = await asyncio.gather(*asked)
        return [*(decision.by for decision in decisions), (await satay.require_approval("refund", {"a": 1, "b": 2})).by]

    async with open_app(tmp_path) as app:
        handle = await waiting(app, twice, satay.MISSING)
        await satay.decide_approval("r", "refund", approved=True, by="Mia")

        assert ["Mia", "Mia", "Mia"] == await handle.result()
        assert 1 == (await types_of(app, "r")).count("EventWaitStarted")


async def test_one_key_with_another_payload_is_an_error_in_the_body(tmp_path: Path) -> None:
    @satay.workflow(name="approvals.changing")
    async def changing() -> str:
        first = asyncio.ensure_future(satay.require_approval("refund", {"dollars": 40}))
        await asyncio.sleep(0)
        try:
            await satay.require_approval("refund", {"dollars": 41})
        except CallConflictError as error:
            return f"{error.call} {error.path}"
        finally:
            first.cancel()
        return ""

    async with open_app(tmp_path) as app:
        assert "satay.approval[refund] $.dollars" == await app.start(changing).result()


async def test_giving_up_the_wait_does_not_take_the_request_back(tmp_path: Path) -> None:
    @satay.workflow(name="approvals.hasty")
    async def hasty() -> str:
        try:
            async with asyncio.timeout(5):
                await satay.require_approval("refund")
        except TimeoutError:
            pass
        return str((await satay.require_approval("refund")).by)

    async with open_app(tmp_path) as app:
        handle = await waiting(app, hasty, satay.MISSING)
        await satay.decide_approval("r", "refund", approved=True, by="Mia")

        assert "Mia" == await handle.result()
        assert 1 == (await types_of(app, "r")).count("EventWaitStarted")


async def test_a_payload_that_cannot_be_recorded_is_an_error_at_the_call(tmp_path: Path) -> None:
    @satay.workflow(name="approvals.unwritable")
    async def unwritable() -> str:
        try:
            await satay.require_approval("refund", object())
        except EncodeError:
            return "refused"
        return ""

    async with open_app(tmp_path) as app:
        assert "refused" == await app.start(unwritable, run_id="r").result()
        assert ["WorkflowCreated", "WorkflowCompleted"] == await types_of(app, "r")


async def test_an_approval_is_asked_for_in_a_body_only(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        await satay.require_approval("refund")


async def test_a_large_payload_is_kept_and_shown(tmp_path: Path) -> None:
    @satay.workflow(name="approvals.large")
    async def large() -> bool:
        return (await satay.require_approval("refund", "x" * 300_000)).approved

    async with open_app(tmp_path) as app:
        await waiting(app, large, satay.MISSING)
        (pending,) = await satay.approvals()
        await abandon(app)
    async with open_app(tmp_path) as app:
        await satay.decide_approval("r", "refund", approved=True, note="y" * 300_000)

        assert await app.resume("r").result()
        assert "x" * 300_000 == pending.payload
        assert 300_000 == len((await satay.decide_approval("r", "refund", approved=True)).note or "")


async def test_code_that_asks_for_something_else_is_not_given_what_was_decided(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await waiting(app)
        await abandon(app)
    amount[:] = [4_000]
    async with open_app(tmp_path) as app:
        await satay.decide_approval("r", "refund", approved=True, by="Mia")
        with pytest.raises(NondeterminismError, match=r"approval 'refund' for another payload, at \$\.dollars"):
            await app.resume("r").result()
        amount[:] = [40]

        assert "paid 40, says Mia" == await app.resume("r").result()
        assert [0, 40] == paid


# --- time -------------------------------------------------------------------------------------------------------------


async def test_a_request_times_out_and_that_is_recorded(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        assert "ApprovalTimeoutError of refund" == await app.start(patient, 2.0 * DAY, run_id="r").result()
        assert "EventWaitTimedOut" in await types_of(app, "r")
        with pytest.raises(ApprovalConflictError, match="timed out at 2026-01-03 00:00:00 UTC") as late:
            await satay.decide_approval("r", "refund", approved=True)
        assert (None, None) == (late.value.approved, late.value.by)


async def test_a_decision_after_the_deadline_is_refused_though_nobody_has_noticed_that_it_is_over(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        await waiting(app, patient, 2.0 * DAY)
        await abandon(app)
    await clock.advance(2 * DAY)
    async with open_app(tmp_path, clock=clock) as app:
        with pytest.raises(ApprovalConflictError, match="timed out"):
            await satay.decide_approval("r", "refund", approved=True)

        assert [] == await satay.approvals()
        assert "EventWaitTimedOut" not in await types_of(app, "r")
        assert "ApprovalTimeoutError of refund" == await app.resume("r").result()


async def test_a_decision_before_the_deadline_wins_though_it_is_delivered_after_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        await waiting(app, patient, 2.0 * DAY)
        await abandon(app)
    await clock.advance(2 * DAY - 1)
    async with open_app(tmp_path, clock=clock) as app:
        journal = (await app.scheduler()).journal
        await journal.post("r", "satay.approval", "refund", "satay.approval:r:refund", DECIDED, clock.now())
    await clock.advance(5 * DAY)
    async with open_app(tmp_path, clock=clock) as app:
        assert "decided" == await app.resume("r").result()


async def test_a_decision_that_a_live_process_has_not_heard_of_wins_over_its_timeout(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock, poll_seconds=NEVER_SECONDS) as app:
        handle = await waiting(app, patient, 2.0 * DAY)
        async with open_app(tmp_path, clock=clock, poll_seconds=NEVER_SECONDS) as other:
            await clock.advance(2 * DAY - 1)
            await other.decide_approval("r", "refund", approved=True)
        await clock.advance(DAY)

        assert "decided" == await handle.result()


async def test_nobody_decides_by_sending_an_event(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await waiting(app)
        with pytest.raises(InvalidValueError, match="satay's own"):
            await satay.send_event("satay.approval", {"approved": True}, key="refund", run_id="r")


async def test_the_end_of_the_time_that_was_posted_first_refuses_a_decision(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        handle = await waiting(app, patient, 2.0 * DAY)
        await abandon(app)
    async with open_app(tmp_path, clock=clock) as app:
        await expire((await app.scheduler()).journal, clock, "r", "refund")
        with pytest.raises(ApprovalConflictError, match="timed out"):
            await satay.decide_approval("r", "refund", approved=True)

        assert "ApprovalTimeoutError of refund" == await app.resume("r").result()
        assert "r" == handle.run_id


# --- across processes -------------------------------------------------------------------------------------------------


async def test_a_run_whose_process_is_gone_is_decided_days_later_and_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        await waiting(app, input=30.0 * DAY)
        await abandon(app)
    await clock.advance(7 * DAY)
    async with open_app(tmp_path, clock=clock) as app:
        await satay.decide_approval("r", "refund", approved=True, by="Mia")

        assert "paid 40, says Mia" == await app.resume("r").result()
        assert 1 == (await types_of(app, "r")).count("EventWaitStarted")


async def test_a_recovering_process_goes_on_with_what_another_one_decided(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, open_app(tmp_path, clock=app.clock, poll_seconds=0.01) as other:
        handle = await waiting(app)
        await other.decide_approval("r", "refund", approved=True, by="Mia")

        assert "paid 40, says Mia" == await handle.result()


async def test_a_decision_that_a_run_left_untaken_is_no_answer_to_the_run_that_goes_on(tmp_path: Path) -> None:
    @satay.workflow(name="approvals.nightly")
    async def nightly(night: int) -> str:
        asked = asyncio.ensure_future(satay.require_approval("deploy"))
        if night == 1:
            await satay.wait_for_event("go")
            satay.continue_as_new(2)
        return str((await asked).by)

    async with open_app(tmp_path) as app:
        handle = await waiting(app, nightly, 1)
        await abandon(app)
    async with open_app(tmp_path) as app:
        scheduler = await app.scheduler()
        await satay.send_event("go", run_id="r")
        journal = scheduler.journal
        await journal.post("r", "satay.approval", "deploy", "satay.approval:r:deploy", DECIDED, app.clock.now())
        handle = app.resume("r")
        await handle
        await settle(app)

        assert ["r~2"] == [pending.run_id for pending in await satay.approvals()]
        await satay.decide_approval("r", "deploy", approved=True, by="Ada")
        assert "Ada" == await handle.result()


# --- forks ------------------------------------------------------------------------------------------------------------


async def test_a_fork_before_the_request_asks_anew(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        await satay.decide_approval("r", "refund", approved=True, by="Mia")
        await handle.result()
        fork = await satay.fork("r", before_event="satay.approval", before_key="refund", run_id="f")
        await settle(app)
        pending = [approval.run_id for approval in await satay.approvals()]
        await satay.decide_approval("f", "refund", approved=False, by="Ada")

        assert ["f"] == pending
        assert "rejected by Ada" == await fork.result()


async def test_a_fork_after_the_decision_inherits_it(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        await satay.decide_approval("r", "refund", approved=True, by="Mia")
        await handle.result()
        fork = await satay.fork("r", before_task=pay, before_ordinal=1, run_id="f", tool_policies={"*": "live"})

        assert "paid 40, says Mia" == await fork.result()
        with pytest.raises(ApprovalConflictError, match="run 'f' was approved by 'Mia'"):
            await satay.decide_approval("f", "refund", approved=False)


async def test_a_fork_between_the_request_and_the_decision_waits_for_a_decision_of_its_own(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        request = next(entry.seq for entry in await entries_of(app, "r") if entry.type == "EventWaitStarted")
        await satay.decide_approval("r", "refund", approved=True, by="Mia")
        await handle.result()
        fork = await satay.fork("r", fork_point_seq=request, run_id="f")
        await settle(app)
        pending = [approval.run_id for approval in await satay.approvals()]
        await satay.decide_approval("f", "refund", approved=False, by="Ada")

        assert (["f"], ["wait"]) == (pending, [call.action for call in fork.receipt.in_flight])
        assert "rejected by Ada" == await fork.result()
        assert "paid 40, says Mia" == await handle.result()


async def test_a_fork_that_would_have_a_decision_about_something_else_is_refused_or_asks_anew(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        await satay.decide_approval("r", "refund", approved=True, by="Mia")
        await handle.result()
        amount[:] = [4_000]
        with pytest.raises(StalePrefixError, match=r"satay.approval\[refund\] at \$\.dollars"):
            await satay.fork("r", before_task=pay, before_ordinal=1, run_id="f")
        plan = await satay.plan_fork("r", before_task=pay, before_ordinal=1)
        await satay.fork("r", before_task=pay, before_ordinal=1, run_id="f", on_stale="rerun")
        await settle(app)

        assert ["satay.approval[refund]"] == [call.call for call in plan.stale_calls]
        assert [("f", {"dollars": 4_000})] == [(one.run_id, one.payload) for one in await satay.approvals()]


async def test_a_request_that_a_fork_makes_anew_is_open_for_as_long_as_the_first_one(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        handle = await waiting(app, input=2.0 * DAY)
        await satay.decide_approval("r", "refund", approved=True, by="Mia")
        await handle.result()
        await clock.advance(30 * DAY)
        fork = await satay.fork("r", before_event="satay.approval", keep_siblings=True, run_id="f")
        await clock.advance(2 * DAY - 1)
        (pending,) = await satay.approvals()
        await satay.decide_approval("f", "refund", approved=False, by="Ada")

        assert clock_after(32) == pending.deadline
        assert "rejected by Ada" == await fork.result()


async def test_a_fork_can_be_given_a_decision(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        handle = await waiting(app)
        first = await satay.decide_approval("r", "refund", approved=True, by="Mia")
        await handle.result()
        other = satay.Approval("refund", False, "the experiment", None, None, first.at)
        fork = await satay.fork("r", overrides={("satay.approval", "refund"): other})

        assert "rejected by the experiment" == await fork.result()


async def test_compare_names_approvals_with_what_was_asked_and_decided(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        for run_id, approved in (("r", True), ("s", False)):
            handle = await waiting(app, run_id=run_id)
            await satay.decide_approval(run_id, "refund", approved=approved)
            await handle.result()
        compared = await satay.compare("r", "s")
        call = next(call for call in compared.calls if call.kind is satay.CallKind.EVENT)

        assert "satay.approval[refund]" == str(call.identity)
        assert [{"dollars": 40}] * 2 == [side.input for side in call.sides]
        assert ["$.approved"] == [difference.path for difference in call.result_differences]
        assert "The runs part at satay.approval[refund]: it gave another result." in str(compared)


async def test_the_same_decision_at_another_time_is_the_same_for_compare(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock) as app:
        for run_id in ("r", "s"):
            handle = await waiting(app, run_id=run_id)
            await clock.advance(60)
            await satay.decide_approval(run_id, "refund", approved=True)
            await handle.result()

        assert (await satay.compare("r", "s")).is_same
