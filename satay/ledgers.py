"""The ledger of a session: its calls of tools, each made once.

A call is claimed in the journal before the tool runs, and its outcome is recorded after. The same call made again,
after a crash, in a fork, or side by side, meets what is recorded:

- an outcome answers it, under the same arguments; under others it is an error, in a fork a new call;
- a call that is being made is waited for;
- a call whose maker is gone is lost. It is made again, unless it is external: then somebody has to decide.

A tool that ends with an error because it waits for somebody, to approve or to decide, is given back: it has no outcome.

In a fork the tool policies rule over every call that the fork does not inherit with equal arguments.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, Final, Generic, TypeVar

from satay.arguments import shown
from satay.attempts import Attempt
from satay.calls import TaskCall
from satay.claims import LOST, MAX_WAIT_SECONDS, Claims, ClaimStatus, LedgerHost, Met, ToolCall, first_difference
from satay.clock import MICROSECONDS, to_datetime
from satay.context import current_attempt
from satay.definitions import Task
from satay.differences import find_differences
from satay.effects import Effect, ForkTerms, Ruling
from satay.errors import (
    ApprovalPendingError,
    CallInProgressError,
    ClaimLostError,
    CodecError,
    InvalidValueError,
    JournalError,
    NeedsDecisionError,
    SessionLostError,
    UnreadableResultError,
    UsageError,
)
from satay.experiments import Draft
from satay.failures import encode_failure, is_made_of, message_of, rebuilt_task_failure
from satay.model import CallId, CallKind, Entry, EntryType
from satay.outcomes import blocked_error
from satay.pickles import PickleCodec
from satay.replay import blob_reference, read_head, value_text
from satay.session_calls import LedgerCall
from satay.session_journals import SessionJournal
from satay.shields import finish
from satay.tenure import HEARTBEATS_PER_LEASE
from satay.texts import json_quote, to_plain
from satay.transcripts import Transcript

R = TypeVar("R")

NOT_YET: Final = (ApprovalPendingError, CallInProgressError, NeedsDecisionError)
"""What a tool may meet that somebody else has to do first. It has not failed: it is called again, from its top."""

_WITHOUT_OUTCOME: Final = (asyncio.CancelledError, CallInProgressError, NeedsDecisionError, *LOST)
"""What a caller may be told instead of what came of the call."""


@dataclass(frozen=True, slots=True)
class ToolReceipt(Generic[R]):
    """What the ledger says of a call that has succeeded.

    `call` names it (`email.send[welcome]`, or `search:2` for one without a key), `seq` is the entry that claimed it.
    `attempts` counts how often the tool was begun. `is_inherited` says that the outcome is from before the cut of the
    fork that the session is.
    """

    run_id: str
    tool: str
    call: str
    seq: int
    status: ClaimStatus
    result: R
    attempts: int
    is_inherited: bool


class Ledger:
    """Makes the calls of tools of one session.

    `part` names the share of a participant: its calls without a key are numbered within that.
    """

    def __init__(self, host: LedgerHost, journal: SessionJournal, part: str | None) -> None:
        self._host = host
        self._journal = journal
        self._part = part
        self._claims = Claims(host, journal)
        self._next: dict[str, int] = {}
        self._put_off: dict[tuple[str, int], dict[CallId, ToolCall]] = {}
        self._running: dict[CallId, asyncio.Future[None]] = {}
        self._begun_step = () if part is not None else _calls_of_begun_step(journal.transcript)

    # --- the session that attempts belong to --------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._journal.run_id

    @property
    def root_run_id(self) -> str:
        return self._journal.origin.root_run_id

    @property
    def terms(self) -> ForkTerms | None:
        return self._journal.origin.terms

    @property
    def intervention(self) -> Any:
        return None if self.terms is None else self.terms.intervention

    def ruling(self, task: Task[..., Any]) -> Ruling | None:
        """Which tool policy holds for a task; None in a session that no fork has to do with."""
        return self._claims.ruling(task)

    @property
    def _transcript(self) -> Transcript:
        return self._journal.transcript

    def calls_left_behind(self) -> list[str]:
        """Calls without a key that an earlier block made for the step at hand, and this one has not asked for again.

        Once that step is recorded they are behind it, and are not found again.
        """
        step = self._transcript.last_step
        return [
            str(call.identity)
            for call, ordinal in self._begun_step
            if call.step == step + 1 and ordinal >= self._next_ordinal(call.identity.name)
        ]

    def _next_ordinal(self, tool: str) -> int:
        """The number of the next call of a tool without a key.

        None is given twice: while a call waits to be claimed, somebody else may record the step that it is counted in.
        """
        first = 0 if self._part is not None else self._transcript.first_ordinal(tool)
        return max(first, self._next.get(tool, 0))

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call(self, asked: ToolCall) -> ToolReceipt[Any]:
        """Make a call, or find what became of it. Raises what the tool raised, live and later alike."""
        identity = self._identify(asked)
        try:
            known, status = await self._ended(asked, identity)
        except _WITHOUT_OUTCOME:
            self._keep_number(asked, identity)
            raise
        return await self._answer(asked, known, status)

    async def _ended(self, asked: ToolCall, identity: CallId) -> tuple[LedgerCall, ClaimStatus]:
        """The call once it has ended, and what it met. Raises `TaskBlockedError` for one that is refused."""
        has_waited = await self._wait_for_running(identity)
        ttl = self._participant_ttl
        with_claim = TaskCall(asked.task, identity.occurrence)
        done = self._running[identity] = asyncio.get_running_loop().create_future()
        try:
            met = await self._claimed(asked, identity, ttl)
            if not met.is_mine:
                return _found(asked, met, has_waited)
            with_claim.seq, with_claim.attempt, with_claim.failures = met.seq, met.attempt, met.failures
            with_claim.input_text = asked.input_text
            async with self._renewing(with_claim, ttl):
                return await self._make(asked, with_claim), met.status
        finally:
            del self._running[identity]
            done.set_result(None)

    async def claim(self, asked: ToolCall, ttl_seconds: float) -> "Claim":
        """Claim a call that somebody makes by other means; see `Session.claim`."""
        identity = self._identify(asked)
        ttl = round(ttl_seconds * MICROSECONDS)
        if identity in self._running:
            known = self._transcript.ledger.get(identity)
            return Claim(self, asked, Met(identity, ClaimStatus.IN_PROGRESS), known, ttl, None)
        done = self._running[identity] = asyncio.get_running_loop().create_future()
        try:
            met = await self._claims.claim(asked, identity, ttl, 0.0)
        except _WITHOUT_OUTCOME:
            self._keep_number(asked, identity)
            raise
        finally:
            del self._running[identity]
            done.set_result(None)
        if met.answer is not None and met.answer.outcome is None:
            self._keep_number(asked, identity)
            return Claim(self, asked, met, met.answer, ttl, None)
        if met.status is ClaimStatus.IN_PROGRESS:
            met.status = ClaimStatus.REPLAYED  # It has ended by now.
        receipt = None if met.is_mine else await self._answer(asked, *_found(asked, met, has_waited=False))
        return Claim(self, asked, met, self._transcript.ledger[identity], ttl, receipt)

    async def _claimed(self, asked: ToolCall, identity: CallId, ttl: int | None) -> Met:
        """What the call met, once nobody else is making it."""
        met = await self._claims.claim(asked, identity, ttl, MAX_WAIT_SECONDS)
        if met.answer is not None and met.answer.outcome is None:
            raise self._claims.in_progress(identity, met.answer.expires_at)
        return met

    def _keep_number(self, asked: ToolCall, identity: CallId) -> None:
        """Have the next call of the tool with these arguments be this one, which was put off."""
        if asked.key is not None:
            return
        counted = self._counted(asked.task.name)
        if counted not in self._put_off:  # Those of steps that are behind are not found again.
            self._put_off = {other: calls for other, calls in self._put_off.items() if other[1] == counted[1]}
        self._put_off.setdefault(counted, {})[identity] = asked

    def _identify(self, asked: ToolCall) -> CallId:
        """The name of a call: its own key, or which call of its tool it is."""
        tool = asked.task.name
        if asked.key is not None:
            return CallId(CallKind.TASK, tool, asked.key)
        put_off = self._put_off.get(self._counted(tool))
        if put_off:
            same = [identity for identity, before in put_off.items() if _is_same(asked, before)]
            if same:
                del put_off[min(same)]
                return min(same)
        lost = self._lost_before(asked)
        if lost is not None:
            return lost
        ordinal = self._next_ordinal(tool)
        self._next[tool] = ordinal + 1
        return CallId(CallKind.TASK, tool, ordinal if self._part is None else f"{self._part}/{ordinal}")

    def _lost_before(self, asked: ToolCall) -> CallId | None:
        """A call of an earlier step that was lost, has the same arguments, and must not be made twice, if there is one.

        A loop that begins at its top again records its steps anew, so that the number of the call would be another one.
        """
        if self._part is not None or asked.task.effect not in (Effect.EXTERNAL, Effect.IDEMPOTENT):
            return None
        transcript = self._transcript
        for call in transcript.outstanding(asked.task.name):
            is_behind = isinstance(call.identity.occurrence, int) and call.step <= transcript.last_step
            is_unclear = call.is_asked or transcript.is_lost(call)
            is_free = is_behind and is_unclear and call.identity not in self._running
            if is_free and _is_given(call.entry, asked.input_text):
                return call.identity
        return None

    def _counted(self, tool: str) -> tuple[str, int]:
        """Calls without a key are counted by tool: in the step that is being worked on, or in a participant's share."""
        return tool, 0 if self._part is not None else self._transcript.last_step

    async def _wait_for_running(self, identity: CallId) -> bool:
        """Wait until the call does not run in this process; whether it did.

        Raises `UsageError` for its own tool, and `CallInProgressError` where it runs for too long: two tools may wait
        for each other.
        """
        attempt = current_attempt.get()
        if identity in self._running and isinstance(attempt, Attempt) and attempt.is_part_of(self, identity):
            raise UsageError(
                f"call {identity} of session {self.run_id!r} was made within itself: its tool would wait for its own "
                "outcome; give the inner call a key of its own"
            )
        has_waited = False
        deadline = self._host.clock.now() + round(MAX_WAIT_SECONDS * MICROSECONDS)
        while (running := self._running.get(identity)) is not None:
            await self._claims.sleep_until(deadline, running)
            if not running.done():
                raise self._claims.in_progress(identity)
            has_waited = True
        return has_waited

    async def _answer(self, asked: ToolCall, known: LedgerCall, status: ClaimStatus) -> ToolReceipt[Any]:
        """The recorded outcome of a call, as a result or as an error."""
        task, outcome = asked.task, known.outcome
        assert outcome is not None, "the call has ended"
        try:
            text = await self._claims.text(outcome)
        except _WITHOUT_OUTCOME:
            self._keep_number(asked, known.identity)
            raise
        match outcome.type:
            case EntryType.TASK_COMPLETED:
                pass
            case EntryType.TASK_BLOCKED:
                raise blocked_error(task.name, text)
            case _:
                raise rebuilt_task_failure(text, task.name)
        unreadable = read_head(outcome).get("unreadable")
        if unreadable is not None:
            raise UnreadableResultError(
                f"call {known.identity} of session {self.run_id!r} was made and is not made again, but its result "
                f"could not be recorded: {unreadable}",
                run_id=self.run_id,
            )
        if isinstance(task.result_codec, PickleCodec):
            result = task.result_codec.decode(text, task.result_where, allow_pickle=self._host.allow_pickle)
        else:
            result = task.result_codec.decode(text, task.result_where)
        is_inherited = self._transcript.is_inherited(outcome.seq)
        return ToolReceipt(
            self.run_id, task.name, str(known.identity), known.entry.seq, status, result, known.attempt, is_inherited
        )

    # --- making a call ------------------------------------------------------------------------------------------------

    async def _make(self, asked: ToolCall, call: TaskCall) -> LedgerCall:
        """Run the tool until it has succeeded or failed for good, and record that.

        Where it met what is to be waited for, it has no outcome: the call is given back, and the error raised.
        """
        while True:
            attempt = Attempt(self, call, self._claims.hold_of(call, self._participant_ttl))
            ended = await self._attempt(attempt)
            usage = attempt.usage_facts()
            if isinstance(ended, str):
                return await self._record(call, EntryType.TASK_COMPLETED, usage, ended)
            if isinstance(ended, LOST) and not attempt.has_begun:
                raise ended
            if attempt.has_returned:
                return await self._record(call, EntryType.TASK_COMPLETED, usage + _unreadable(ended), "null")
            if is_made_of(ended, NOT_YET):
                self._keep_number(asked, call.identity)
                await self._record(call, EntryType.CALL_CANCELLED, usage, None)
                raise ended
            failed = await self._record_failure(call, usage, ended)
            if failed.outcome is not None:
                return failed
            await self._begin_again(call, failed)

    async def _attempt(self, attempt: Attempt) -> str | BaseException:
        """One attempt, in a task and a context of its own: the text of the result, or the error."""
        host = self._host
        work = attempt.run(host.clock, host.threads, host.allow_pickle)
        task = asyncio.get_running_loop().create_task(work, name=attempt.call.name, context=copy_context())
        host.tool_attempts.add(task)
        task.add_done_callback(host.tool_attempts.discard)
        try:
            text, _ = await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                return asyncio.CancelledError("the task cancelled itself")
            await finish(self._give_up(attempt, task))
            raise
        except Exception as error:
            return error
        return text

    async def _give_up(self, attempt: Attempt, task: "asyncio.Task[tuple[str, Any]]") -> None:
        """The caller was cancelled. An external call may have taken effect: somebody has to decide.

        Whoever lost the claim meanwhile, or cannot write, has nothing to record: the cancellation goes on.
        """
        call, has_ended = attempt.call, task.done()
        task.cancel()
        await asyncio.wait((task,))
        with suppress(*LOST):
            error = None if task.cancelled() else task.exception()
            if not task.cancelled() and error is None:
                await self._record(call, EntryType.TASK_COMPLETED, attempt.usage_facts(), task.result()[0])
            elif attempt.has_returned and isinstance(error, Exception):
                more = attempt.usage_facts() + _unreadable(error)
                await self._record(call, EntryType.TASK_COMPLETED, more, "null")
            elif has_ended and isinstance(error, Exception) and not is_made_of(error, NOT_YET):
                await self._record_failure(call, attempt.usage_facts(), error)
            elif call.task.effect is Effect.EXTERNAL:
                await self._record(call, EntryType.DECISION_REQUESTED, f',"attempt":{call.attempt}', None)
            else:
                await self._record(call, EntryType.CALL_CANCELLED, attempt.usage_facts(), None)

    async def _record_failure(self, call: TaskCall, usage: str, error: BaseException) -> LedgerCall:
        """Record a failed attempt: that the call has failed for good, or when the next one is due."""
        call.failures += 1
        text = encode_failure(error)
        if not call.task.policy.allows(error, call.failures):
            return await self._record(call, EntryType.TASK_FAILED, usage, text)
        backoff = call.task.policy.backoff
        ceiling = backoff.ceiling(call.failures)
        delay = self._host.chance.uniform(0.0, ceiling) if backoff.jitter else ceiling
        due = self._host.clock.now() + round(delay * MICROSECONDS)
        more = f',"attempt":{call.attempt},"retry_at":{due}{usage}'
        return await self._record(call, EntryType.TASK_ATTEMPT_FAILED, more, text)

    async def _begin_again(self, call: TaskCall, failed: LedgerCall) -> None:
        """Wait for the next attempt, and begin it."""
        assert failed.retry_at is not None, "it is tried again"
        await self._claims.sleep_until(failed.retry_at)
        holding = self._claims.holding(self._participant_ttl)
        begins = f',"attempt":{call.attempt + 1}{holding}'
        try:
            await self._record(call, EntryType.TASK_ATTEMPT_STARTED, begins, None)
        except asyncio.CancelledError:
            call.attempt += 1
            with suppress(*LOST):  # It was not begun.
                await self._record(call, EntryType.CALL_CANCELLED, "", None)
            raise
        call.attempt += 1

    async def _record(self, call: TaskCall, type: EntryType, more: str, text: str | None) -> LedgerCall:
        """Record what became of a call, also where its caller is cancelled: else nobody knew it any more."""
        draft = Draft(type, f'"call":{call.seq}{more}', text)
        return await finish(self._claims.write(call.identity, call.seq, call.attempt, draft))

    # --- claims that run out ------------------------------------------------------------------------------------------

    @property
    def _participant_ttl(self) -> int | None:
        """How long the claims of a participant hold; None for whoever has the session open, as whose they hold."""
        if not self._journal.is_participant:
            return None
        return round(self._host.settings.lease_seconds * MICROSECONDS)

    @asynccontextmanager
    async def _renewing(self, call: TaskCall, ttl: int | None) -> AsyncIterator[None]:
        """Renew a claim as long as the block runs."""
        if ttl is None:
            yield
            return
        renewing = asyncio.get_running_loop().create_task(self._keep_renewing(call, ttl))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait((renewing,))

    async def _keep_renewing(self, call: TaskCall, ttl: int) -> None:
        while True:
            await self._claims.sleep_until(self._host.clock.now() + ttl // HEARTBEATS_PER_LEASE)
            try:
                await self._claims.renew(call.identity, call.seq, call.attempt, ttl)
            except (ClaimLostError, JournalError):
                continue  # It may go well the next time, also where the next attempt has just begun.
            except SessionLostError:
                return  # Whoever records the outcome of the call is told.

    # --- claims in the hand of the caller -----------------------------------------------------------------------------

    async def renew(self, met: Met, ttl: int) -> int:
        """See `Claim.heartbeat`."""
        return await self._claims.renew(met.identity, met.seq, met.attempt, ttl)

    async def complete(self, asked: ToolCall, met: Met, result: Any) -> ToolReceipt[Any]:
        """See `Claim.complete`."""
        task = asked.task
        try:
            text, more = task.result_codec.encode(result, task.result_where), ""
        except CodecError as error:
            text, more = "null", _unreadable(error)
        draft = Draft(EntryType.TASK_COMPLETED, f'"call":{met.seq}{more}', text)
        return await self._answer(asked, await self._end(asked, met, draft), met.status)

    async def fail(self, asked: ToolCall, met: Met, error: Exception) -> None:
        """See `Claim.fail`."""
        await self._end(asked, met, Draft(EntryType.TASK_FAILED, f'"call":{met.seq}', encode_failure(error)))

    async def cancel(self, asked: ToolCall, met: Met) -> None:
        """See `Claim.cancel`."""
        await self._end(asked, met, Draft(EntryType.CALL_CANCELLED, f'"call":{met.seq}'))
        self._keep_number(asked, met.identity)

    async def _end(self, asked: ToolCall, met: Met, draft: Draft) -> LedgerCall:
        """Record what the holder of a claim says of the call, also where he is cancelled: else nobody knew it."""
        try:
            return await finish(self._claims.write(met.identity, met.seq, met.attempt, draft))
        except _WITHOUT_OUTCOME:
            self._keep_number(asked, met.identity)
            raise


class Claim:
    """A claim on a call of a tool, which the holder makes by its own means and says what came of it.

    `status` says what was met: with `claimed` and `reclaimed` the call is the holder's to make. `call` names it, `seq`
    is the entry that claimed it first, `attempts` counts the claims on it. Made by `Session.claim`.
    """

    __slots__ = ("_asked", "_expires_at", "_known", "_ledger", "_met", "_receipt", "_ttl", "call", "status")

    def __init__(
        self,
        ledger: Ledger,
        asked: ToolCall,
        met: Met,
        known: LedgerCall | None,
        ttl: int,
        receipt: ToolReceipt[Any] | None,
    ) -> None:
        self.status = met.status
        self.call = str(met.identity)
        self._ledger = ledger
        self._asked = asked
        self._met = met
        self._known = known
        self._ttl = ttl
        self._receipt = receipt
        self._expires_at = None if known is None else known.expires_at

    @property
    def result(self) -> Any:
        """The recorded result of a call that was made before. Raises `UsageError` for one that was not."""
        if self._receipt is None:
            raise UsageError(f"{self!r} has no result: the call was not made when it was claimed")
        return self._receipt.result

    @property
    def expires_at(self) -> datetime | None:
        """When the claim runs out; None for one that lasts as long as the session is open, or holds no more."""
        return None if self._expires_at is None else to_datetime(self._expires_at)

    async def heartbeat(self) -> None:
        """Have the claim run out later: its `ttl` from now. Raises `ClaimLostError` where it was lost."""
        self._check_mine()
        self._expires_at = await self._ledger.renew(self._met, self._ttl)

    async def complete(self, result: Any = None) -> ToolReceipt[Any]:
        """Record the result of the call.

        Raises `ClaimLostError` where the claim was lost, and then the result is not recorded;
        `UnreadableResultError` for a result that cannot be: the call counts as made.
        """
        self._check_mine()
        return await self._ledger.complete(self._asked, self._met, result)

    async def fail(self, error: Exception) -> None:
        """Record that the call failed for good. Raises `ClaimLostError` where the claim was lost."""
        self._check_mine()
        if not isinstance(error, Exception):
            raise InvalidValueError(f"fail() was given {shown(error)}; it takes the error with which the call failed")
        await self._ledger.fail(self._asked, self._met, error)

    async def cancel(self) -> None:
        """Give the claim back: the call was not made, and may be claimed anew. Raises `ClaimLostError`."""
        self._check_mine()
        await self._ledger.cancel(self._asked, self._met)

    def _check_mine(self) -> None:
        if self.status in (ClaimStatus.REPLAYED, ClaimStatus.IN_PROGRESS) or not self._met.is_mine:
            raise UsageError(f"{self!r} is not the holder's: only a call that is claimed or reclaimed can be ended")

    def __repr__(self) -> str:
        return f"<satay.Claim {self.call} {self.status.value}>"


def _unreadable(error: BaseException) -> str:
    return f',"unreadable":{json_quote(message_of(error))}'


def _calls_of_begun_step(transcript: Transcript) -> tuple[tuple[LedgerCall, int], ...]:
    """The calls without a key that were made for the step which is not recorded yet, with their ordinals."""
    step = transcript.last_step + 1
    latest = takewhile(lambda call: call.step == step, reversed(tuple(transcript.calls)))
    return tuple(
        (call, call.identity.occurrence)
        for call in reversed(tuple(latest))
        if isinstance(call.identity.occurrence, int)
        and not transcript.is_inherited(call.entry.seq)
        and (call.outcome is None or call.outcome.type != EntryType.CALL_CANCELLED)
    )


def _found(asked: ToolCall, met: Met, has_waited: bool) -> tuple[LedgerCall, ClaimStatus]:
    """What the ledger has of a call that is not made, and what was met. Raises `TaskBlockedError` for a refusal."""
    if met.refusal is not None:
        raise blocked_error(asked.task.name, met.refusal)
    assert met.answer is not None, "it is not refused either"
    return met.answer, ClaimStatus.IN_PROGRESS if has_waited and met.status is ClaimStatus.REPLAYED else met.status


def _is_same(asked: ToolCall, before: ToolCall) -> bool:
    """Whether a call is asked for as one was before."""
    return first_difference(asked, before.input_text) is None


def _is_given(claim: Entry, input_text: str) -> bool:
    """Whether a call was claimed with these arguments."""
    reference, recorded = blob_reference(claim), value_text(claim) or "null"
    if reference is not None:
        return reference == hashlib.sha256(input_text.encode()).hexdigest()
    return recorded == input_text or not find_differences(to_plain(recorded), to_plain(input_text), 1)[0]
