"""The ledger of a session: its calls of tools, each made once.

A call is claimed in the journal before the tool runs, and its outcome is recorded after. The same call made again,
after a crash, in a fork, or side by side, meets what is recorded:

- an outcome answers it, under the same arguments; under others it is an error, in a fork a new call;
- a call that runs in this process is waited for;
- a call whose maker is gone is lost. It is made again, unless it is external: then somebody has to decide.

In a fork the tool policies rule over every call that the fork does not inherit with equal arguments.
"""

import asyncio
import json
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from satay.attempts import Attempt
from satay.calls import TaskCall
from satay.clock import MICROSECONDS, Chance, Clock, to_datetime
from satay.definitions import Task
from satay.differences import find_differences
from satay.effects import Effect, ForkTerms, Ruling, ToolPolicy, ruling_for
from satay.errors import (
    CallConflictError,
    CallInProgressError,
    ClaimLostError,
    CodecError,
    NeedsDecisionError,
    TaskCrashedError,
    TaskFailedError,
    UnreadableResultError,
)
from satay.experiments import Draft
from satay.failures import encode_failure, message_of, rebuilt_task_failure
from satay.journal import DECISION
from satay.model import CallId, CallKind, Entry, EntryType, Message
from satay.outcomes import blocked_error, encode_refusal
from satay.pickles import PickleCodec
from satay.replay import blob_reference, read_head, value_text
from satay.session_journals import SessionHost, SessionJournal
from satay.texts import json_quote, to_plain
from satay.threads import ThreadPool
from satay.transcripts import LedgerCall, Transcript

R = TypeVar("R")


class ClaimStatus(StrEnum):
    """What a call of a tool met.

    `claimed`: it is new, and was made. `replayed`: it had an outcome. `in_progress`: it was being made elsewhere.
    `reclaimed`: whoever made it before is gone, and it was made again, or its outcome was decided.
    """

    CLAIMED = "claimed"
    REPLAYED = "replayed"
    IN_PROGRESS = "in_progress"
    RECLAIMED = "reclaimed"


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


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool as it is asked for: the task that makes it, the text of its arguments, and its own key, if any.

    `dedup_fields` are the arguments that must be equal for two calls to be the same; None where all must.
    """

    task: Task[..., Any]
    input_text: str
    key: str | None = None
    dedup_fields: tuple[str, ...] | None = None


class LedgerHost(SessionHost, Protocol):
    """What calls of tools need of the scheduler."""

    chance: Chance
    clock: Clock
    threads: ThreadPool

    @property
    def allow_pickle(self) -> bool: ...


@dataclass(slots=True)
class _Claim:
    """A claim that was decided: what it met, and the call in the ledger once that is written."""

    identity: CallId
    status: ClaimStatus
    attempt: int = 1
    seq: int = 0
    answer: LedgerCall | None = None
    refusal: str | None = None
    lost: LedgerCall | None = None


class Ledger:
    """Makes the calls of tools of one session."""

    def __init__(self, host: LedgerHost, journal: SessionJournal) -> None:
        self._host = host
        self._journal = journal
        self._made_in_step: dict[tuple[str, int], int] = {}
        self._running: dict[CallId, asyncio.Future[None]] = {}

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
        return None if self.terms is None else ruling_for(self.terms.policies, task.name, task.effect)

    @property
    def _transcript(self) -> Transcript:
        return self._journal.transcript

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call(self, asked: ToolCall) -> ToolReceipt[Any]:
        """Make a call, or find what became of it. Raises what the tool raised, live and later alike."""
        identity = self._identify(asked)
        while (running := self._running.get(identity)) is not None:
            await self._check_same(asked, self._transcript.ledger[identity])
            await asyncio.shield(running)
            known = self._transcript.ledger.get(identity)
            if known is not None and known.outcome is not None and known.outcome.type != EntryType.CALL_CANCELLED:
                return await self._answer(asked, known, ClaimStatus.IN_PROGRESS)
        done = self._running[identity] = asyncio.get_running_loop().create_future()
        try:
            return await self._call(asked, identity)
        finally:
            del self._running[identity]
            done.set_result(None)

    def _identify(self, asked: ToolCall) -> CallId:
        """The name of a call: its own key, or which call of its tool it is."""
        tool = asked.task.name
        if asked.key is not None:
            return CallId(CallKind.TASK, tool, asked.key)
        counted = tool, self._transcript.last_step
        made = self._made_in_step.get(counted, 0)
        self._made_in_step[counted] = made + 1
        return CallId(CallKind.TASK, tool, self._transcript.first_ordinal(tool) + made)

    async def _call(self, asked: ToolCall, identity: CallId) -> ToolReceipt[Any]:
        claim = await self._claim(asked, identity)
        if claim.answer is not None:
            return await self._answer(asked, claim.answer, claim.status)
        if claim.refusal is not None:
            raise blocked_error(asked.task.name, claim.refusal)
        call = TaskCall(asked.task, identity.occurrence)
        call.seq, call.input_text, call.attempt = claim.seq, asked.input_text, claim.attempt
        known = await self._make(call)
        return await self._answer(asked, known, claim.status)

    async def _claim(self, asked: ToolCall, identity: CallId) -> _Claim:
        """Decide what the call meets, and claim it where it is to be made."""
        while True:
            known = self._transcript.ledger.get(identity)
            matches = known is None or await self._mismatch(asked, known) is None
            message = None if known is None else await self._decision(known)
            claim = _Claim(identity, ClaimStatus.CLAIMED)
            is_stale = False

            def decide(
                known: LedgerCall | None = known,
                matches: bool = matches,
                message: Message | None = message,
                claim: _Claim = claim,
            ) -> list[Draft]:
                nonlocal is_stale
                is_stale = self._transcript.ledger.get(identity) is not known
                return [] if is_stale else self._decide(asked, claim, known, matches, message)

            if known is not None and not matches and not self._is_new(known):
                await self._check_same(asked, known)
            if known is not None and self._is_elsewhere(known):
                raise self._in_progress(known)
            entries = await self._journal.write(decide, taken=() if message is None else (message.id,))
            if is_stale:
                continue
            if claim.lost is not None:
                raise self._undecided(claim.lost)
            if entries and claim.answer is None:
                claim.seq = claim.seq or entries[0].seq
            return claim

    def _decide(
        self, asked: ToolCall, claim: _Claim, known: LedgerCall | None, matches: bool, message: Message | None
    ) -> list[Draft]:
        """What a claim writes. It says in `claim` what the call met."""
        if known is None or self._is_new(known) or not matches:
            return self._begin(asked, claim)
        is_inherited = self._transcript.is_inherited(known.entry.seq)
        ruling = self.ruling(asked.task) if is_inherited else None
        if ruling is not None and ruling.policy is ToolPolicy.LIVE:
            return self._begin(asked, claim)
        if known.outcome is not None:
            claim.status, claim.answer = ClaimStatus.REPLAYED, known
            return []
        return self._reclaim(asked, claim, known, ruling, message)

    def _is_new(self, known: LedgerCall) -> bool:
        """Whether what is recorded leaves the call to be made: it was cancelled, or refused in the source of a fork."""
        if known.outcome is None:
            return False
        if known.outcome.type == EntryType.CALL_CANCELLED:
            return True
        return known.outcome.type == EntryType.TASK_BLOCKED and self._transcript.is_inherited(known.outcome.seq)

    def _begin(self, asked: ToolCall, claim: _Claim) -> list[Draft]:
        """Claim a call that is to be made, unless a policy refuses it."""
        claim.status = ClaimStatus.CLAIMED
        dedup = "" if asked.dedup_fields is None else f',"dedup":{json.dumps(asked.dedup_fields)}'
        occurrence = claim.identity.occurrence
        named = f'"ordinal":{occurrence}' if isinstance(occurrence, int) else f'"key":{json_quote(occurrence)}'
        task = asked.task
        head = f'{task.head},{named},"step":{self._transcript.last_step + 1}{task.tail}{dedup}'
        scheduled = Draft(EntryType.TASK_SCHEDULED, head, asked.input_text)
        refusal = self._refusal(task)
        if refusal is None:
            return [scheduled]
        claim.refusal = refusal
        return [scheduled, Draft(EntryType.TASK_BLOCKED, f'"call":{self._transcript.head + 1}', refusal)]

    def _refusal(self, task: Task[..., Any]) -> str | None:
        ruling = self.ruling(task)
        if ruling is None or self.terms is None or ruling.policy in (ToolPolicy.AUTO, ToolPolicy.LIVE):
            return None
        reason = ruling.reason
        if ruling.policy is ToolPolicy.REPLAY:
            reason = f"{reason}, and no such call with equal arguments is inherited"
        return encode_refusal(self.terms, ruling, reason)

    def _reclaim(
        self, asked: ToolCall, claim: _Claim, known: LedgerCall, ruling: Ruling | None, message: Message | None
    ) -> list[Draft]:
        """Go on with a call whose maker is gone."""
        claim.status, claim.seq, claim.attempt = ClaimStatus.RECLAIMED, known.entry.seq, known.attempt + 1
        refusal = self._refusal(asked.task) if ruling is not None else None
        if refusal is not None:
            claim.refusal = refusal
            return [Draft(EntryType.TASK_BLOCKED, f'"call":{known.entry.seq}', refusal)]
        again = Draft(EntryType.TASK_ATTEMPT_STARTED, f'"call":{known.entry.seq},"attempt":{claim.attempt}')
        if asked.task.effect is not Effect.EXTERNAL:
            return [again]
        if message is None:
            claim.lost = known
            asks = f'"call":{known.entry.seq},"attempt":{known.attempt}'
            return [] if known.is_asked else [Draft(EntryType.DECISION_REQUESTED, asks)]
        decided = json.loads(message.payload)
        made = Draft(
            EntryType.DECISION_MADE,
            f'"call":{known.entry.seq},"decision":{json_quote(decided["decision"])}',
            None if decided.get("value") is None else decided["value"],
        )
        match decided["decision"]:
            case "rerun":
                return [made, again]
            case "fail":
                error = TaskCrashedError(f"it was decided that the external call of {asked.task.name!r} failed")
                failed = Draft(EntryType.TASK_FAILED, f'"call":{known.entry.seq}', encode_failure(error))
            case _:
                failed = Draft(EntryType.TASK_COMPLETED, f'"call":{known.entry.seq}', decided["value"])
        claim.answer = known
        return [made, failed]

    async def _decision(self, known: LedgerCall) -> Message | None:
        """What somebody has decided about a lost call, and nobody has taken note of yet."""
        if known.outcome is not None or not known.is_asked:
            return None
        for message in await self._host.journal.messages(self.run_id):
            if message.type == DECISION and json.loads(message.payload)["call"] == known.entry.seq:
                return message
        return None

    def _is_elsewhere(self, known: LedgerCall) -> bool:
        """Whether a call is being made by somebody else who takes part in the session, or holds a claim on it."""
        if known.outcome is not None or known.is_asked or self._transcript.is_lost(known):
            return False
        return known.expires_at is None or self._host.clock.now() < known.expires_at

    def _in_progress(self, known: LedgerCall) -> CallInProgressError:
        until = "" if known.expires_at is None else f" until {to_datetime(known.expires_at).isoformat()}"
        return CallInProgressError(
            f"call {known.identity} of session {self.run_id!r} is being made by somebody else, who has claimed it"
            f"{until}; wait for its outcome",
            run_id=self.run_id,
            call=str(known.identity),
        )

    def _undecided(self, call: LedgerCall) -> NeedsDecisionError:
        return NeedsDecisionError(
            f"session {self.run_id!r} stopped at the external call {call.identity}, entry {call.entry.seq}: whoever "
            "made it is gone, and nobody knows whether it took effect. Find out, then call "
            f"satay.decide({self.run_id!r}, 'rerun'), 'fail' or value=..., and make the call again",
            run_id=self.run_id,
        )

    # --- what is recorded ---------------------------------------------------------------------------------------------

    async def _check_same(self, asked: ToolCall, known: LedgerCall) -> None:
        """Raise `CallConflictError` where a call was made with other arguments in this very session."""
        path = await self._mismatch(asked, known)
        if path is None or self._transcript.is_inherited(known.entry.seq):
            return
        advice = (
            "give the call a key of its own, or name in dedup_fields the arguments that make it the same call"
            if asked.key is not None
            else "give the call a key, or record what leads to it with a call too, so that the same calls follow"
        )
        raise CallConflictError(
            f"call {known.identity} of session {self.run_id!r} was made with other arguments before, at entry "
            f"{known.entry.seq}: they differ at {path}; {advice}",
            run_id=self.run_id,
            call=str(known.identity),
            path=path,
        )

    async def _mismatch(self, asked: ToolCall, known: LedgerCall) -> str | None:
        """The path of the first argument that differs; None where the calls are the same."""
        recorded = await self._text(known.entry)
        if recorded == asked.input_text:
            return None
        one, other = to_plain(recorded), to_plain(asked.input_text)
        if asked.dedup_fields is not None:
            one, other = _only(one, asked.dedup_fields), _only(other, asked.dedup_fields)
        differences, _ = find_differences(one, other, 1)
        return differences[0].path if differences else None

    async def _text(self, entry: Entry) -> str:
        text, reference = value_text(entry), blob_reference(entry)
        if reference is None:
            return text or "null"
        return (await self._host.archive.values(self.run_id, [entry], {reference}))[reference]

    async def _answer(self, asked: ToolCall, known: LedgerCall, status: ClaimStatus) -> ToolReceipt[Any]:
        """The recorded outcome of a call, as a result or as an error."""
        outcome = known.outcome
        assert outcome is not None, "the call has ended"
        text = await self._text(outcome)
        match outcome.type:
            case EntryType.TASK_COMPLETED:
                pass
            case EntryType.TASK_BLOCKED:
                raise blocked_error(asked.task.name, text)
            case _:
                raise rebuilt_task_failure(text, asked.task.name)
        unreadable = read_head(outcome).get("unreadable")
        if unreadable is not None:
            raise UnreadableResultError(
                f"call {known.identity} of session {self.run_id!r} was made and is not made again, but its result "
                f"could not be recorded: {unreadable}",
                run_id=self.run_id,
            )
        task = asked.task
        if isinstance(task.result_codec, PickleCodec):
            result = task.result_codec.decode(text, task.result_where, allow_pickle=self._host.allow_pickle)
        else:
            result = task.result_codec.decode(text, task.result_where)
        is_inherited = self._transcript.is_inherited(outcome.seq)
        return ToolReceipt(
            self.run_id, task.name, str(known.identity), known.entry.seq, status, result, known.attempt, is_inherited
        )

    # --- making a call ------------------------------------------------------------------------------------------------

    async def _make(self, call: TaskCall) -> LedgerCall:
        """Run the tool until it has succeeded or failed for good, and record that."""
        while True:
            attempt = Attempt(self, call)
            try:
                text, _ = await self._attempt(attempt)
            except asyncio.CancelledError:
                await asyncio.shield(self._give_up(call))
                raise
            except CodecError as error:
                if attempt.has_returned:
                    why = f',"unreadable":{json_quote(message_of(error))}'
                    return await self._end(call, EntryType.TASK_COMPLETED, attempt.usage_facts() + why, "null")
                return await self._end(call, EntryType.TASK_FAILED, attempt.usage_facts(), encode_failure(error))
            except Exception as error:
                call.failures += 1
                if not call.task.policy.allows(error, call.failures):
                    return await self._end(call, EntryType.TASK_FAILED, attempt.usage_facts(), encode_failure(error))
                await self._pause(call, attempt, error)
            else:
                return await self._end(call, EntryType.TASK_COMPLETED, attempt.usage_facts(), text)

    async def _attempt(self, attempt: Attempt) -> tuple[str, Any]:
        """One attempt, in a task and a context of its own."""
        host = self._host
        work = attempt.run(host.clock, host.threads, host.allow_pickle)
        task = asyncio.get_running_loop().create_task(work, name=attempt.call.name, context=copy_context())
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise TaskFailedError(f"tool {attempt.call.name!r} cancelled itself") from None
            task.cancel()
            await asyncio.wait((task,))
            raise

    async def _pause(self, call: TaskCall, attempt: Attempt, error: Exception) -> None:
        """Record a failed attempt, wait, and begin the next one."""
        backoff, clock = call.task.policy.backoff, self._host.clock
        ceiling = backoff.ceiling(call.failures)
        delay = self._host.chance.uniform(0.0, ceiling) if backoff.jitter else ceiling
        due = clock.now() + round(delay * MICROSECONDS)
        failed = Draft(
            EntryType.TASK_ATTEMPT_FAILED,
            f'"call":{call.seq},"attempt":{call.attempt},"retry_at":{due}{attempt.usage_facts()}',
            encode_failure(error),
        )
        await self._journal.write(lambda: self._fenced(call, [failed]))
        is_due = asyncio.get_running_loop().create_future()
        alarm = clock.call_at(due, lambda: None if is_due.done() else is_due.set_result(None))
        try:
            await is_due
        finally:
            alarm.cancel()
        call.attempt += 1
        again = Draft(EntryType.TASK_ATTEMPT_STARTED, f'"call":{call.seq},"attempt":{call.attempt}')
        await self._journal.write(lambda: self._fenced(call, [again], attempt=call.attempt - 1))

    async def _end(self, call: TaskCall, type: EntryType, more: str, text: str) -> LedgerCall:
        await self._journal.write(lambda: self._fenced(call, [Draft(type, f'"call":{call.seq}{more}', text)]))
        return self._transcript.ledger[call.identity]

    async def _give_up(self, call: TaskCall) -> None:
        """The caller was cancelled. An external call may have taken effect: somebody has to decide."""
        if call.task.effect is Effect.EXTERNAL:
            draft = Draft(EntryType.DECISION_REQUESTED, f'"call":{call.seq},"attempt":{call.attempt}')
        else:
            draft = Draft(EntryType.CALL_CANCELLED, f'"call":{call.seq}')
        await self._journal.write(lambda: self._fenced(call, [draft]))

    def _fenced(self, call: TaskCall, drafts: Sequence[Draft], attempt: int | None = None) -> Sequence[Draft]:
        """The drafts, if this process still has the claim. Raises `ClaimLostError`."""
        known = self._transcript.ledger.get(call.identity)
        expected = call.attempt if attempt is None else attempt
        if known is None or known.entry.seq != call.seq or known.outcome is not None or known.attempt != expected:
            raise ClaimLostError(
                f"the claim on call {call.identity} of session {self.run_id!r} does not hold any more: the call has "
                "ended, or was claimed by somebody else; what came of it here was not recorded",
                run_id=self.run_id,
            )
        return drafts


def _only(arguments: Any, names: Sequence[str]) -> Any:
    """Of the arguments of a call, those that make it the same call."""
    return {name: arguments[name] for name in names if name in arguments} if isinstance(arguments, dict) else arguments
