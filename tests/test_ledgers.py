"""The ledger of a session: calls of tools are made once, and what came of them is found again."""

import asyncio
import functools
import math
import operator
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.errors import (
    CallConflictError,
    CallInProgressError,
    EncodeError,
    InvalidValueError,
    NeedsDecisionError,
    PickleNotAllowedError,
    RegistrationError,
    TaskBlockedError,
    TaskCrashedError,
    TaskFailedError,
    TaskTimeoutError,
    UnreadableResultError,
    UsageError,
)
from satay.model import EntryType
from satay.testing import AppUnderTest, Faults, ManualClock, abandon, open_app, pause
from tests.driving import entries_of, types_of

pytestmark = pytest.mark.anyio


@satay.task(name="ledgers.forgotten")
async def forgotten() -> None:
    """Called without await."""


class Outbox:
    """A service that is not satay's: what it did is not undone by a crash of who called it."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.has_begun = asyncio.Event()

    def note(self, what: str) -> None:
        self.sent.append(what)
        self.has_begun.set()

    def clear(self) -> None:
        self.sent.clear()
        self.has_begun = asyncio.Event()

    async def send(self, to: str, body: str = "") -> str:
        self.note(to)
        return f"sent to {to}"

    def send_now(self, to: str) -> str:
        self.note(to)
        return f"sent to {to}"

    async def __call__(self, to: str) -> str:
        return await self.send(to)


class NamedOutbox(Outbox):
    """An object that can be called, by what it inherits, with attributes that a task has too."""

    def __init__(self) -> None:
        super().__init__()
        self.name = self.fn = self.timeout = self.effect = self.policy = self.input_codec = "its own"


outbox = Outbox()


@pytest.fixture(autouse=True)
def _outbox_is_empty() -> None:
    outbox.clear()


@satay.task(name="ledgers.send", effect="external")
async def send(to: str) -> str:
    return await outbox.send(to)


@satay.task(name="ledgers.send_in_a_thread")
def send_in_a_thread(to: str) -> str:
    return outbox.send_now(to)


@satay.task(name="ledgers.flaky", retries=2, backoff=satay.Backoff(first=10.0, jitter=False))
async def flaky(failures: int) -> int:
    context = satay.task_context()
    outbox.note(f"attempt {context.attempt}")
    context.record_usage(model="m", input_tokens=1, cost=0.5)
    if context.attempt <= failures:
        raise ConnectionError("no answer")
    return context.attempt


@satay.task(name="ledgers.hang", timeout=5.0)
async def hang() -> None:
    await pause(math.inf)


@satay.task(name="ledgers.hang_outside", effect="external")
async def hang_outside() -> str:
    outbox.note("begun")
    await pause(math.inf)
    return "never"


async def enter_and(work: Callable[[], Any]) -> None:
    """Do something in a session of which it is not known how it ends."""
    async with satay.Session("s"):
        await work()


async def crashed_in(app: AppUnderTest, session_id: str, task: Callable[[], Any]) -> None:
    """Have the app die while a tool of a session runs."""

    async def hold() -> None:
        async with satay.Session(session_id):
            await task()

    holding = asyncio.ensure_future(hold())
    await outbox.has_begun.wait()
    await abandon(app)
    holding.cancel()
    await asyncio.wait((holding,))


# --- once -------------------------------------------------------------------------------------------------------------


async def test_a_call_is_made_once_and_answered_from_the_ledger_after(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        first = await session.call("email.send", outbox.send, "ada", key="welcome")
        second = await session.call("email.send", outbox.send, "ada", key="welcome")

        assert ["ada"] == outbox.sent
        assert ("claimed", "replayed") == (first.status, second.status)
        assert ("sent to ada", "email.send[welcome]", 1) == (second.result, second.call, second.attempts)
        assert first.seq == second.seq


async def test_the_same_key_at_once_is_called_once_and_the_other_waits(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        calls = [session.call("email.send", outbox.send, "ada", key="welcome") for _ in range(3)]
        receipts = await asyncio.gather(*calls)

        assert ["ada"] == outbox.sent
        assert ["claimed", "in_progress", "in_progress"] == [receipt.status for receipt in receipts]
        assert {"sent to ada"} == {receipt.result for receipt in receipts}


async def test_the_same_key_at_once_with_other_arguments_is_a_conflict(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        one = session.call("email.send", outbox.send, "ada", key="welcome")
        other = session.call("email.send", outbox.send, "bob", key="welcome")
        made, refused = await asyncio.gather(one, other, return_exceptions=True)

        assert not isinstance(made, BaseException)
        assert isinstance(refused, CallConflictError)
        assert ("$.to", "email.send[welcome]") == (refused.path, refused.call)
        assert ["ada"] == outbox.sent


async def test_dedup_fields_say_which_arguments_make_it_the_same_call(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        await session.call("email.send", outbox.send, "ada", "hello", key="k", dedup_fields=["to"])
        again = await session.call("email.send", outbox.send, "ada", "HELLO", key="k", dedup_fields=["to"])
        with pytest.raises(CallConflictError):
            await session.call("email.send", outbox.send, "bob", "HELLO", key="k", dedup_fields=["to"])

        assert ("replayed", ["ada"]) == (again.status, outbox.sent)


async def test_large_arguments_that_differ_at_their_end_alone_are_a_conflict(tmp_path: Path) -> None:
    async def count(text: str) -> str:
        outbox.note("counted")
        return text[::-1]

    text = "x" * 600_000
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await session.call("count", count, text, key="k")
            session.pause()
        async with satay.Session("s") as session:
            again = await session.call("count", count, text, key="k")
            with pytest.raises(CallConflictError):
                await session.call("count", count, text + "y", key="k")

        assert ("replayed", 600_000, ["counted"]) == (again.status, len(again.result), outbox.sent)


async def test_dedup_fields_look_into_keyword_options(tmp_path: Path) -> None:
    async def post(**options: str) -> int:
        return len(outbox.sent)

    async with open_app(tmp_path), satay.Session("s") as session:
        await session.call("post", post, key="k", dedup_fields=["to"], to="ada", at="noon")
        again = await session.call("post", post, key="k", dedup_fields=["to"], to="ada", at="night")
        with pytest.raises(CallConflictError):
            await session.call("post", post, key="k", dedup_fields=["to"], to="bob")

        assert "replayed" == again.status


async def test_a_dedup_field_that_the_tool_does_not_have_is_refused(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        with pytest.raises(InvalidValueError, match="'recipient', and the tool has no such argument"):
            await session.call("email.send", outbox.send, "ada", key="k", dedup_fields=["recipient"])

        assert ([], ["SessionCreated", "SessionStarted"]) == (outbox.sent, await types_of(app, "s"))


async def test_dedup_fields_of_which_a_call_with_keyword_options_has_none_are_refused(tmp_path: Path) -> None:
    async def post(**options: str) -> None:
        outbox.note(options["to"])

    async with open_app(tmp_path), satay.Session("s") as session:
        await session.call("post", post, key="k", dedup_fields=["to", "thread"], to="ada")
        for fields in (["too"], ["options"]):
            with pytest.raises(
                InvalidValueError, match=f"'{fields[0]}', and the tool has no such argument; it has 'to'"
            ):
                await session.call("post", post, key="k", dedup_fields=fields, to="bob")

        assert ["ada"] == outbox.sent


async def test_calls_without_a_key_are_found_again_when_their_step_is_begun_anew(tmp_path: Path) -> None:
    async def work(session: satay.Session) -> list[str]:
        return [str(await send_in_a_thread(to)) for to in ("ada", "ada", "bob")]

    async def crash() -> None:
        async with satay.Session("s") as session:
            await send_in_a_thread("first")
            await session.step("one")
            await work(session)
            raise OSError("between")

    async with open_app(tmp_path):
        with pytest.raises(OSError, match="between"):
            await crash()
        async with satay.Session("s") as session:
            results = await work(session)
            more = await session.call("ledgers.send_in_a_thread", send_in_a_thread, "cy")

        assert ["sent to ada", "sent to ada", "sent to bob"] == results
        assert ["first", "ada", "ada", "bob", "cy"] == outbox.sent
        assert "ledgers.send_in_a_thread:4" == more.call


@pytest.mark.parametrize(("asked", "left"), [(["ada", "ada"], 0), (["ada"], 1), ([], 2)])
async def test_a_step_that_leaves_calls_behind_which_were_made_for_it_is_warned_of(
    asked: list[str], left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a loop that begins at its top after a crash and records its first steps once more."""
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await session.step("one")
            await send_in_a_thread("ada")
            await send_in_a_thread("ada")
            session.pause()
        async with satay.Session("s") as session:
            for to in asked:
                await send_in_a_thread(to)
            await session.step("two")
            await session.step("three")

    names = [f"ledgers.send_in_a_thread:{number}" for number in (0, 1)]
    assert (left > 0) == len(caplog.messages)
    assert all(f"'session.calls_left_behind' run_id='s' step=2 calls={names[2 - left :]}" in m for m in caplog.messages)


async def test_calls_after_a_completion_are_new_ones(tmp_path: Path) -> None:
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await session.step("one")
            await send("ada")
        async with satay.Session.resume("s"):
            await send("ada")

        assert ["ada", "ada"] == outbox.sent


async def test_concurrent_calls_without_a_key_each_are_made_and_found_again(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(20)]
    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            first = await asyncio.gather(*(send_in_a_thread(name) for name in names))
            session.pause()
        async with satay.Session("s"):
            second = await asyncio.gather(*(send_in_a_thread(name) for name in names))

        assert first == second == [f"sent to {name}" for name in names]
        assert sorted(names) == sorted(outbox.sent)


# --- what can be a tool -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["ada", "bob"])
async def test_a_call_that_is_asked_for_while_a_step_is_being_recorded_keeps_its_number_to_itself(
    second: str, tmp_path: Path
) -> None:
    faults = Faults().stall_after(type=EntryType.SESSION_STARTED)
    async with open_app(tmp_path, faults=faults):
        async with satay.Session("s") as session:
            stepping = asyncio.ensure_future(session.step("plan"))
            calling = asyncio.ensure_future(session.call("email.send", outbox.send, "ada"))
            for _ in range(5):
                await asyncio.sleep(0)
            faults.go_on()
            await stepping
            live = [await calling, await session.call("email.send", outbox.send, second)]
            session.pause()
        async with satay.Session("s") as session:
            again = [await session.call("email.send", outbox.send, to) for to in ("ada", second)]

    assert ["email.send:0", "email.send:1"] == [receipt.call for receipt in live]
    assert [("replayed", receipt.result) for receipt in live] == [(found.status, found.result) for found in again]
    assert ["ada", second] == outbox.sent


@pytest.mark.parametrize("effect", [None, "external"])
async def test_a_call_without_a_key_that_was_given_up_is_the_same_call_when_it_is_made_again(
    effect: Any, tmp_path: Path
) -> None:
    async def work(to: str) -> str:
        outbox.note(to)
        if len(outbox.sent) == 1:
            await pause(math.inf)
        return to

    async with open_app(tmp_path, clock=ManualClock()):
        async with satay.Session("s") as session:
            calling = asyncio.ensure_future(session.call("work", work, "ada", effect=effect))
            await outbox.has_begun.wait()
            calling.cancel()
            await asyncio.wait((calling,))
            other = await session.call("work", work, "bob", effect=effect)
            if effect == "external":
                with pytest.raises(NeedsDecisionError, match="external call work:0"):
                    await session.call("work", work, "ada", effect=effect)
                await session.step("one")
                with pytest.raises(NeedsDecisionError, match="external call work:0"):
                    await session.call("work", work, "ada", effect=effect)
                await satay.decide("s", "rerun")
            again = await session.call("work", work, "ada", effect=effect)
            session.pause()
        if effect is None:
            async with satay.Session("s") as session:
                assert "replayed" == (await session.call("work", work, "ada")).status

    assert ["work:1", "work:0"] == [other.call, again.call]
    assert ["ada", "bob", "ada"] == outbox.sent


async def test_any_callable_can_be_a_tool(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s") as session:
        results = [
            (await session.call("t", outbox.send, "method", key="1")).result,
            (await session.call("t", outbox.send_now, "plain method", key="2")).result,
            (await session.call("t", functools.partial(outbox.send, "partial"), key="3")).result,
            (await session.call("t", Outbox(), "object", key="4")).result,
            (await session.call("t", NamedOutbox(), "inherited", key="5")).result,
            (await session.call("t", lambda to: outbox.send(to), "lambda", key="6")).result,
            (await session.call("t", max, 3, 9, 4, key="7")).result,
            (await session.call("t", operator.add, 3, 9, key="8")).result,
            (await session.call("t", " ".join, ["a", "b"], key="9")).result,
        ]

        assert [
            "sent to method",
            "sent to plain method",
            "sent to partial",
            "sent to object",
            "sent to inherited",
            "sent to lambda",
            9,
            12,
            "a b",
        ] == results


async def test_a_tool_is_the_object_that_is_given_and_not_one_that_equals_it(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Sender:
        name: str
        sent: list[str] = field(default_factory=list, compare=False)

        def __call__(self, to: str) -> None:
            self.sent.append(to)

    one, other = Sender("mail"), Sender("mail")
    async with open_app(tmp_path), satay.Session("s") as session:
        await session.call("send", one, "ada")
        await session.call("send", other, "bob")

    assert (["ada"], ["bob"]) == (one.sent, other.sent)


async def test_a_wrapped_callable_is_ledgered_where_it_is_called(tmp_path: Path) -> None:
    notify = satay.effect(NamedOutbox(), name="notify", effect="external")
    async with open_app(tmp_path) as app:
        assert "sent to eve" == await notify("eve")
        async with satay.Session("s"):
            assert "sent to ada" == await notify("ada")
        entries = await entries_of(app, "s")

        assert ["notify", "external"] == [entries[2].data["task"], entries[2].data["effect"]]


def test_a_task_is_not_wrapped_again() -> None:
    with pytest.raises(RegistrationError, match="is a task already"):
        satay.effect(send, name="other")


async def test_a_plain_task_that_gives_something_to_await_has_failed_and_was_not_made(tmp_path: Path) -> None:
    @satay.task(name="ledgers.forgetful")
    def forgetful() -> Any:
        return outbox.send("ada")

    async with open_app(tmp_path) as app, satay.Session("s"):
        with pytest.raises(EncodeError, match="which nothing awaits"):
            await forgetful()

        assert "TaskFailed" == (await types_of(app, "s"))[-1]


async def test_a_tool_sees_its_context_and_a_task_that_it_calls_is_a_plain_call(tmp_path: Path) -> None:
    @satay.task(name="ledgers.outer")
    async def outer() -> list[Any]:
        context = satay.task_context()
        return [context.run_id, context.key, context.ordinal, context.attempt, await send("inner")]

    async with open_app(tmp_path) as app, satay.Session("s"):
        seen = await outer()

        assert ["s", None, 0, 1, "sent to inner"] == seen
        assert ["TaskScheduled", "TaskCompleted"] == (await types_of(app, "s"))[2:]


async def test_a_session_that_a_tool_opens_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    @satay.task(name="ledgers.sub_agent")
    async def sub_agent() -> str:
        async with satay.Session("s/sub"):
            return str(await send("ada"))

    async with open_app(tmp_path) as app, satay.Session("s"):
        await sub_agent()

        assert "TaskScheduled" in await types_of(app, "s/sub")


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool": None},
        {"tool": ""},
        {"tool": ["t"]},
        {"tool": "satay.own"},
        {"fn": None},
        {"fn": "send"},
        {"key": 3},
        {"key": ""},
        {"effect": "sometimes"},
        {"effect": ["pure"]},
        {"dedup_fields": "to"},
        {"dedup_fields": [3]},
        {"dedup_fields": {"to"}},
    ],
    ids=str,
)
async def test_a_call_that_cannot_be_made_is_refused_with_nothing_written(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        given: dict[str, Any] = {"tool": "t", "fn": outbox.send, **wrong}
        tool, fn = given.pop("tool"), given.pop("fn")
        with pytest.raises(satay.SatayError):
            await session.call(tool, fn, "ada", **given)

        assert (2, []) == (len(await types_of(app, "s")), outbox.sent)


async def test_a_call_that_was_begun_instead_of_named_says_how_a_tool_is_given(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        with pytest.raises(InvalidValueError, match="give the function itself, then its arguments, as in"):
            await session.call("t", outbox.send("ada"))  # type: ignore[call-overload]
        with pytest.raises(InvalidValueError, match=r"give the tool's name, then the function$"):
            await session.call(outbox.send, "ada")  # type: ignore[call-overload]

        assert (2, []) == (len(await types_of(app, "s")), outbox.sent)


async def test_a_task_that_nobody_awaits_is_warned_of_by_its_name(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s"):
        with pytest.warns(RuntimeWarning, match=r"^coroutine 'ledgers\.forgotten' was never awaited$"):
            forgotten()  # type: ignore[unused-coroutine]


# --- outcomes ---------------------------------------------------------------------------------------------------------


async def test_an_error_is_recorded_and_raised_again_without_a_call(tmp_path: Path) -> None:
    async def fail(to: str) -> None:
        outbox.note(to)
        raise LookupError("nobody of that name")

    async with open_app(tmp_path), satay.Session("s") as session:
        for _ in range(2):
            with pytest.raises(LookupError, match="nobody of that name"):
                await session.call("fail", fail, "ada", key="k")

        assert ["ada"] == outbox.sent


async def test_a_result_that_cannot_be_recorded_counts_as_made_and_is_not_repeated(tmp_path: Path) -> None:
    async def open_socket(to: str) -> object:
        outbox.note(to)
        return object()

    async with open_app(tmp_path):
        with pytest.raises(UnreadableResultError):
            async with satay.Session("s") as session:
                await session.call("open", open_socket, "ada", key="k")
        async with satay.Session("s") as session:
            with pytest.raises(UnreadableResultError, match="is not made again"):
                await session.call("open", open_socket, "ada", key="k")

        assert ["ada"] == outbox.sent


async def test_arguments_that_cannot_be_recorded_are_refused_with_nothing_written(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        with pytest.raises(EncodeError):
            await session.call("email.send", outbox.send, object(), key="k")
        with pytest.raises(InvalidValueError):
            await session.call("email.send", outbox.send, key="k")

        assert ["SessionCreated", "SessionStarted"] == await types_of(app, "s")


async def test_attempts_are_tried_again_after_their_backoff_with_their_usage_recorded(tmp_path: Path) -> None:
    clock = ManualClock(autojump=True)
    async with open_app(tmp_path, clock=clock) as app, satay.Session("s") as session:
        began = clock.now()
        receipt = await session.call("ledgers.flaky", flaky, 2)
        entries = (await entries_of(app, "s"))[2:]

        assert (3, 3) == (receipt.result, receipt.attempts)
        assert 30_000_000 == clock.now() - began
        assert [
            "TaskScheduled",
            "TaskAttemptFailed",
            "TaskAttemptStarted",
            "TaskAttemptFailed",
            "TaskAttemptStarted",
            "TaskCompleted",
        ] == [entry.type for entry in entries]
        assert 3 == sum("usage" in entry.data for entry in entries)


async def test_a_tool_that_runs_too_long_fails_with_its_timeout(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s"):
        with pytest.raises(TaskTimeoutError):
            await hang()


@satay.task(name="ledgers.give_up", retries=2, backoff=satay.Backoff(first=0.0))
async def give_up() -> None:
    outbox.note("begun")
    raise asyncio.CancelledError


async def test_a_tool_that_cancels_itself_has_failed_and_is_not_tried_again(tmp_path: Path) -> None:
    async with open_app(tmp_path), satay.Session("s"):
        for _ in range(2):
            with pytest.raises(
                TaskFailedError, match=r"'ledgers\.give_up' failed with CancelledError: the task cancelled"
            ):
                await satay.current_session().call("ledgers.give_up", give_up, key="k")

        assert ["begun"] == outbox.sent


async def test_a_clock_that_jumps_waits_for_a_tool_that_is_at_work(tmp_path: Path) -> None:
    clock = ManualClock(autojump=True, patience_seconds=10.0)
    at_work = satay.effect(lambda: asyncio.sleep(0.05, "done"), name="at work", timeout=5.0)
    async with open_app(tmp_path, clock=clock), satay.Session("s"):
        began = clock.now()

        assert "done" == await at_work()
        assert began == clock.now()


async def test_failed_attempts_count_on_after_a_crash_and_the_backoff_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    faults = Faults().crash_after(type=EntryType.TASK_ATTEMPT_FAILED, count=2)
    async with open_app(tmp_path, clock=ManualClock(autojump=True), faults=faults):

        async def hold() -> None:
            async with satay.Session("s"):
                await flaky(9)

        holding = asyncio.ensure_future(hold())
        await faults.crashed
        holding.cancel()
        await asyncio.wait((holding,))
    async with open_app(tmp_path, clock=clock), satay.Session("s"):
        again = asyncio.ensure_future(flaky(9))
        await clock.advance(29)
        before = list(outbox.sent)
        await clock.advance(60)
        with pytest.raises(ConnectionError):
            await again

        assert ["attempt 1", "attempt 2"] == before
        assert ["attempt 1", "attempt 2", "attempt 3"] == outbox.sent


async def test_a_loop_that_begins_at_its_top_again_does_not_repeat_a_lost_call(tmp_path: Path) -> None:
    async def work_then_call() -> None:
        await satay.current_session().step("work")
        await hang_outside()

    async with open_app(tmp_path) as app:
        await crashed_in(app, "s", work_then_call)
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        await session.step("work")
        with pytest.raises(NeedsDecisionError, match=r"ledgers\.hang_outside:0"):
            await hang_outside()
        await satay.decide("s", value="found out")
        found = await hang_outside()

        assert "found out" == found
        assert ["begun"] == outbox.sent


async def test_a_lost_call_under_an_idempotency_key_is_made_again_under_the_same_one(tmp_path: Path) -> None:
    async def pay(cents: int) -> int:
        outbox.note(satay.task_context().idempotency_key)
        if len(outbox.sent) == 1:
            await pause(math.inf)
        return cents

    async def work_then_pay() -> None:
        session = satay.current_session()
        await session.step("work")
        await session.call("pay", pay, 5, effect="idempotent")

    async with open_app(tmp_path) as app:
        await crashed_in(app, "s", work_then_pay)
    async with open_app(tmp_path), satay.Session("s") as session:
        await session.step("work")
        again = await session.call("pay", pay, 5, effect="idempotent")
        other = await session.call("pay", pay, 5, effect="idempotent")

        assert ("reclaimed", "claimed") == (again.status, other.status)
        assert 2 == len(set(outbox.sent))
        assert outbox.sent[0] == outbox.sent[1]


async def test_a_call_whose_caller_is_cancelled_is_given_back(tmp_path: Path) -> None:
    async def wait(to: str) -> str:
        outbox.note(to)
        if len(outbox.sent) == 1:
            await pause(math.inf)
        return to

    async with open_app(tmp_path, clock=ManualClock()) as app, satay.Session("s") as session:
        calling = asyncio.ensure_future(session.call("wait", wait, "ada", key="k"))
        waiting = asyncio.ensure_future(session.call("wait", wait, "ada", key="k"))
        await outbox.has_begun.wait()
        calling.cancel()

        assert "claimed" == (await waiting).status
        assert calling.cancelled()
        assert ["TaskScheduled", "CallCancelled", "TaskScheduled", "TaskCompleted"] == (await types_of(app, "s"))[2:]


async def test_a_call_that_is_cancelled_while_it_is_claimed_leaves_no_claim(tmp_path: Path) -> None:
    faults = Faults().stall_after(type=EntryType.SESSION_STARTED)
    async with open_app(tmp_path, clock=ManualClock(), faults=faults) as app, satay.Session("s") as session:
        calling = asyncio.ensure_future(session.call("email.send", outbox.send, "ada", key="k"))
        for _ in range(5):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.sleep(0)
        faults.go_on()
        await asyncio.wait((calling,))
        again = await session.call("email.send", outbox.send, "ada", key="k")

        assert calling.cancelled()
        assert ("claimed", ["ada"]) == (again.status, outbox.sent)
        assert ["TaskScheduled", "CallCancelled", "TaskScheduled", "TaskCompleted"] == (await types_of(app, "s"))[2:]


async def test_a_call_that_is_cancelled_between_its_attempts_goes_on_with_the_next(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:
        calling = asyncio.ensure_future(session.call("ledgers.flaky", flaky, 1, key="k"))
        await clock.advance(5)
        calling.cancel()
        await asyncio.wait((calling,))
        again = asyncio.ensure_future(session.call("ledgers.flaky", flaky, 1, key="k"))
        await clock.advance(5)

        assert ("reclaimed", 2) == ((await again).status, (await again).result)
        assert ["attempt 1", "attempt 2"] == outbox.sent


async def test_a_result_that_comes_with_the_cancellation_of_the_caller_is_recorded(tmp_path: Path) -> None:
    callers: list[asyncio.Task[Any]] = []

    async def work(to: str) -> str:
        outbox.note(to)
        asyncio.get_running_loop().call_soon(callers[0].cancel)
        return "done"

    async with open_app(tmp_path, clock=ManualClock()), satay.Session("s") as session:
        calling = asyncio.create_task(session.call("work", work, "ada", key="k"))
        callers.append(calling)
        await asyncio.wait((calling,))
        again = await session.call("work", work, "ada", key="k")

        assert calling.cancelled()
        assert ("replayed", "done", ["ada"]) == (again.status, again.result, outbox.sent)


@pytest.mark.parametrize("effect", [None, "external"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_an_error_that_comes_with_the_cancellation_of_the_caller_is_recorded(
    retries: int, effect: Any, tmp_path: Path
) -> None:
    callers: list[asyncio.Task[Any]] = []

    async def work() -> str:
        outbox.note(f"attempt {satay.task_context().attempt}")
        if len(outbox.sent) > 1:
            return "done"
        asyncio.get_running_loop().call_soon(callers[0].cancel)
        raise ValueError("no such address")

    backoff = satay.Backoff(first=0.0)
    task = satay.task(name=f"ledgers.fails_{retries}_{effect}", effect=effect, retries=retries, backoff=backoff)(work)
    async with open_app(tmp_path), satay.Session("s") as session:
        calling = asyncio.create_task(session.call(task.name, task, key="k"))
        callers.append(calling)
        await asyncio.wait((calling,))
        if retries:
            assert "done" == (await session.call(task.name, task, key="k")).result
        else:
            with pytest.raises(ValueError, match="no such address"):
                await session.call(task.name, task, key="k")

        assert calling.cancelled()
        assert ["attempt 1", "attempt 2"][: retries + 1] == outbox.sent


@pytest.mark.parametrize("effect", [None, "external"])
@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_tool_brought_is_recorded_also_where_its_caller_is_cancelled_meanwhile(
    fails: bool, effect: Any, tmp_path: Path
) -> None:
    async def work(to: str) -> str:
        outbox.note(to)
        if fails:
            raise ValueError("no such address")
        return "done"

    faults = Faults()
    async with open_app(tmp_path, faults=faults, clock=ManualClock()), satay.Session("s") as session:
        faults.stall_after(type=EntryType.TASK_SCHEDULED, count=2)
        calls = [
            asyncio.create_task(session.call("work", work, to, key=to, effect=effect)) for to in ("ada", "bob", "cleo")
        ]
        await faults.stalled
        await outbox.has_begun.wait()
        for _ in range(3):
            calls[0].cancel()
            await asyncio.sleep(0)
        faults.go_on()
        await asyncio.gather(*calls, return_exceptions=True)
        before = outbox.sent.count("ada")
        with pytest.raises(ValueError, match="no such address") if fails else nullcontext():
            await session.call("work", work, "ada", key="ada", effect=effect)

        assert calls[0].cancelled()
        assert (1, 1) == (before, outbox.sent.count("ada"))


async def test_a_retry_whose_caller_is_cancelled_as_it_begins_is_given_back(tmp_path: Path) -> None:
    faults, clock = Faults().stall_after(type=EntryType.TASK_ATTEMPT_STARTED), ManualClock()
    async with open_app(tmp_path, faults=faults, clock=clock), satay.Session("s") as session:
        calling = asyncio.ensure_future(session.call("ledgers.flaky", flaky, 1, key="k"))
        advancing = asyncio.ensure_future(clock.advance(10))
        await faults.stalled
        for _ in range(2):
            calling.cancel()
            await asyncio.sleep(0)
        faults.go_on()
        await asyncio.wait((calling, advancing))
        again = await session.call("ledgers.flaky", flaky, 0, key="k")

        assert calling.cancelled()
        assert ("claimed", 1) == (again.status, again.result)
        assert ["attempt 1", "attempt 1"] == outbox.sent


async def test_a_tool_that_makes_its_own_call_is_told_so_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app, satay.Session("s") as session:

        async def outer() -> str:
            return (await session.call("inner", inner, key="k")).result

        async def inner() -> str:
            return (await session.call("outer", outer, key="k")).result

        with pytest.raises(UsageError, match=r"call outer\[k\] of session 's' was made within itself"):
            await session.call("outer", outer, key="k")

        assert 2 == (await types_of(app, "s")).count("TaskFailed")


async def test_tools_that_wait_for_each_other_are_told_so_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    clock = ManualClock(autojump=True, patience_seconds=0.01)
    have_begun = asyncio.Barrier(2)

    async with open_app(tmp_path, clock=clock), satay.Session("s") as session:

        async def one() -> object:
            await have_begun.wait()
            return (await session.call("other", other, key="k")).result

        async def other() -> object:
            await have_begun.wait()
            return (await session.call("one", one, key="k")).result

        calls = [session.call("one", one, key="k"), session.call("other", other, key="k")]
        ended = await asyncio.gather(*calls, return_exceptions=True)

        assert [CallInProgressError] * 2 == [type(one) for one in ended]


async def test_values_that_are_pickled_are_read_back_only_where_that_is_allowed(tmp_path: Path) -> None:
    @satay.task(name="ledgers.conjugate", codec="pickle")
    async def conjugate(number: complex) -> complex:
        outbox.note("conjugated")
        return number.conjugate()

    async with open_app(tmp_path, allow_pickle=True):
        async with satay.Session("s") as session:
            assert 1 - 2j == await conjugate(1 + 2j)
            session.pause()
        async with satay.Session("s") as session:
            assert 1 - 2j == await conjugate(1 + 2j)
            session.pause()
    async with open_app(tmp_path):
        with pytest.raises(PickleNotAllowedError):
            await enter_and(lambda: conjugate(1 + 2j))

    assert ["conjugated"] == outbox.sent


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [None, "pure", "idempotent"])
async def test_a_lost_call_that_may_be_repeated_is_made_again(effect: Any, tmp_path: Path) -> None:
    keys: list[str] = []

    async def work(to: str) -> str:
        keys.append(satay.task_context().idempotency_key)
        outbox.note(to)
        if len(keys) == 1:
            await pause(math.inf)
        return to

    async with open_app(tmp_path, clock=ManualClock()) as app:
        await crashed_in(app, "s", lambda: satay.current_session().call("work", work, "ada", key="k", effect=effect))
    async with open_app(tmp_path) as app, satay.Session("s") as session:
        receipt = await session.call("work", work, "ada", key="k", effect=effect)
        entries = await entries_of(app, "s")

        assert ("reclaimed", 2, "ada") == (receipt.status, receipt.attempts, receipt.result)
        assert 1 == len(set(keys))
        assert "crash" == entries[-2].data["after"]


async def test_a_tool_that_kills_its_process_again_and_again_fails_in_the_end(tmp_path: Path) -> None:
    async def kill() -> None:
        outbox.note("killed")
        await pause(math.inf)

    for _ in range(21):
        outbox.clear()
        async with open_app(tmp_path, clock=ManualClock()) as app:
            await crashed_in(app, "s", lambda: satay.current_session().call("kill", kill))
    outbox.clear()
    async with open_app(tmp_path), satay.Session("s") as session:
        with pytest.raises(TaskCrashedError, match="died 20 times"):
            await session.call("kill", kill)

        assert [] == outbox.sent


async def test_a_lost_external_call_waits_for_a_decision_in_the_same_block(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app:
        await crashed_in(app, "s", hang_outside)
    async with open_app(tmp_path), satay.Session("s"):
        with pytest.raises(NeedsDecisionError, match=r"ledgers\.hang_outside:0"):
            await hang_outside()
        await satay.decide("s", value="found out")
        decided = await hang_outside()

        assert ("found out", ["begun"]) == (decided, outbox.sent)


async def test_a_lost_external_call_keeps_no_other_call_of_the_tool_from_being_made(tmp_path: Path) -> None:
    async def call(to: str) -> str:
        return (await satay.current_session().call("email.send", outbox.send, to, effect="external")).call

    async with open_app(tmp_path, clock=ManualClock()):
        async with satay.Session("s") as session:
            await session.claim("email.send", {"to": "ada"}, effect="external")
            session.pause()
        async with satay.Session("s"):
            with pytest.raises(NeedsDecisionError):
                await call("ada")
            others = [await call("bob"), await call("cleo")]
            await satay.decide("s", "rerun")

            assert ["email.send:1", "email.send:2", "email.send:0"] == [*others, await call("ada")]


@pytest.mark.parametrize(("decision", "sent"), [("rerun", 2), ("fail", 1), ("value", 1)])
async def test_a_lost_external_call_is_gone_on_with_as_somebody_decides(
    decision: Any, sent: int, tmp_path: Path
) -> None:
    async def pay(to: str) -> str:
        outbox.note(to)
        if len(outbox.sent) == 1:
            await pause(math.inf)
        return "paid"

    def call() -> Any:
        return satay.current_session().call("pay", pay, "ada", key="k", effect="external")

    async with open_app(tmp_path, clock=ManualClock()) as app:
        await crashed_in(app, "s", call)
    async with open_app(tmp_path):
        with pytest.raises(NeedsDecisionError):
            async with satay.Session("s"):
                await call()
    async with open_app(tmp_path) as app:
        await (app.decide("s", value="it was paid") if decision == "value" else app.decide("s", decision))
    async with open_app(tmp_path), satay.Session("s"):
        if decision == "fail":
            with pytest.raises(TaskCrashedError, match="it was decided"):
                await call()
        else:
            receipt = await call()
            assert ("reclaimed", "paid" if decision == "rerun" else "it was paid") == (receipt.status, receipt.result)
            assert "replayed" == (await call()).status

        assert sent == len(outbox.sent)
        with pytest.raises(UsageError, match="waits for no decision"):
            await satay.decide("s", "rerun")


async def test_a_tool_that_makes_a_lost_external_call_has_not_failed_while_nobody_has_decided(tmp_path: Path) -> None:
    async def notify(to: str) -> str:
        session = satay.current_session()
        return (await session.call("mail", hang_outside_once, to, key="inner", effect="external")).result

    async def hang_outside_once(to: str) -> str:
        outbox.note(to)
        if len(outbox.sent) == 1:
            await pause(math.inf)
        return f"sent to {to}"

    async def call_notify() -> satay.ToolReceipt[str]:
        return await satay.current_session().call("notify", notify, "ada")

    async with open_app(tmp_path, clock=ManualClock()) as app:
        await crashed_in(app, "s", call_notify)
    async with open_app(tmp_path, seed=1):
        with pytest.raises(NeedsDecisionError):
            await enter_and(call_notify)
        await satay.decide("s", "rerun")
        async with satay.Session("s"):
            receipt = await call_notify()

    assert ("notify:0", "sent to ada") == (receipt.call, receipt.result)
    assert ["ada", "ada"] == outbox.sent


async def test_a_lost_external_call_can_be_decided_before_it_is_made_again(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app:
        await crashed_in(app, "s", hang_outside)
    async with open_app(tmp_path) as app:
        await app.decide("s", value="found out")
    async with open_app(tmp_path), satay.Session("s"):
        assert "found out" == await hang_outside()
        with pytest.raises(UsageError, match="waits for no decision"):
            await satay.decide("s", "rerun")


async def test_an_external_call_that_is_being_made_is_not_decided_about(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()), satay.Session("s") as session:
        calling = asyncio.ensure_future(session.call("hang", hang_outside, key="k"))
        await outbox.has_begun.wait()
        with pytest.raises(UsageError, match="waits for no decision"):
            await satay.decide("s", "rerun")
        calling.cancel()
        await asyncio.wait((calling,))


async def test_a_decision_is_about_one_attempt_and_not_about_the_next(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()) as app:
        await crashed_in(app, "s", hang_outside)
    outbox.clear()
    async with open_app(tmp_path, clock=ManualClock()) as app:
        await app.decide("s", "rerun")
        await app.decide("s", "rerun")
        await crashed_in(app, "s", hang_outside)
    async with open_app(tmp_path), satay.Session("s"):
        with pytest.raises(NeedsDecisionError):
            await hang_outside()

        assert ["begun"] == outbox.sent


async def test_an_external_call_whose_caller_is_cancelled_waits_for_a_decision(tmp_path: Path) -> None:
    async with open_app(tmp_path, clock=ManualClock()), satay.Session("s") as session:
        calling = asyncio.ensure_future(session.call("hang", hang_outside, key="k"))
        await outbox.has_begun.wait()
        calling.cancel()
        await asyncio.wait((calling,))
        with pytest.raises(NeedsDecisionError):
            await session.call("hang", hang_outside, key="k")
        await satay.decide("s", value="it went out")

        assert "it went out" == (await session.call("hang", hang_outside, key="k")).result


async def test_nothing_is_repeated_that_was_recorded_whatever_entry_a_crash_comes_after(tmp_path: Path) -> None:
    async def work() -> None:
        async with satay.Session("s") as session:
            for number in range(session.last_step, 2):
                await send_in_a_thread(f"{number}")
                await session.call("email.send", outbox.send, f"{number}", key=f"k{number}")
                await session.step("step")

    crashes = 0
    while True:
        outbox.clear()
        place = tmp_path / str(crashes)
        faults = Faults().crash_after(entries=crashes + 1)
        async with open_app(place, faults=faults):
            working = asyncio.ensure_future(work())
            await asyncio.wait((working, faults.crashed), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            await asyncio.wait((working,))
        if not faults.is_crashed:
            break
        crashes += 1
        async with open_app(place) as app:
            if "SessionCompleted" not in await types_of(app, "s"):
                await work()
            completed = (await types_of(app, "s")).count("TaskCompleted")

        assert (4, {"0", "1"}) == (completed, set(outbox.sent))
        assert len(outbox.sent) <= 5  # At most the call that was being made is made again.

    assert 12 < crashes


# --- forks ------------------------------------------------------------------------------------------------------------


async def test_the_intervention_is_seen_in_the_session_and_in_its_tools(tmp_path: Path) -> None:
    @satay.task(name="ledgers.look")
    def look() -> Any:
        return [satay.intervention(), satay.task_context().intervention]

    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            assert satay.intervention() is None
            await session.step("one")
            fork = await session.fork(boundary="lineage", name="f", intervention={"model": "b"})
        async with fork:
            assert {"model": "b"} == satay.intervention()
            assert [{"model": "b"}, {"model": "b"}] == await look()


async def test_a_session_that_a_tool_opens_does_not_call_what_the_fork_may_not(tmp_path: Path) -> None:
    @satay.task(name="ledgers.delegate")
    async def delegate(name: str) -> str:
        async with satay.Session(name) as inner:
            return str((await inner.call("ledgers.send", send, "ada")).result)

    async with open_app(tmp_path):
        async with satay.Session("s") as session:
            await session.step("one")
            fork = await session.fork(
                boundary="lineage", name="f", tool_policies={"ledgers.send": "block", "*": "auto"}
            )
        async with fork:
            with pytest.raises(TaskBlockedError):
                await delegate("sub")

        assert [] == outbox.sent
