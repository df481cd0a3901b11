"""What a call of a tool meets in the ledger of its session: its claim, an outcome, or somebody who is making it.

A call is claimed in the journal before the tool runs. A claim is held by whoever has the session open, as long as it
has; or for a time, which can be renewed. A claim that nobody holds any more is taken over, with the next number of an
attempt. That number is the fence: who held the claim before can write nothing more under it.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from satay.attempts import Hold
from satay.calls import TaskCall
from satay.clock import MICROSECONDS, Chance, Clock, to_datetime
from satay.definitions import Task
from satay.differences import find_differences
from satay.effects import Effect, ForkTerms, Ruling, ToolPolicy, ruling_for
from satay.errors import (
    CallConflictError,
    CallInProgressError,
    ClaimLostError,
    JournalError,
    NeedsDecisionError,
    SessionLostError,
    TaskCrashedError,
)
from satay.experiments import Draft
from satay.failures import encode_failure
from satay.journal import DECISION
from satay.model import CallId, Entry, EntryType, Message
from satay.outcomes import encode_refusal
from satay.replay import blob_reference, value_text
from satay.revivals import MAX_CRASHES
from satay.scheduler import SchedulerSettings
from satay.session_calls import LedgerCall
from satay.session_journals import SessionHost, SessionJournal
from satay.shields import finish
from satay.texts import json_quote, to_plain
from satay.threads import ThreadPool
from satay.transcripts import Transcript

MAX_WAIT_SECONDS: Final = 300.0
"""How long a call waits for the outcome of the same call, which somebody else is making."""

LOST: Final = (ClaimLostError, JournalError, SessionLostError)
"""What becomes of writing under a claim that others have taken, and in a process that cannot write any more."""


class ClaimStatus(StrEnum):
    """What a call of a tool met.

    `claimed`: it is new, and is to be made. `replayed`: it had an outcome. `in_progress`: it was being made by somebody
    else. `reclaimed`: whoever made it before is gone, and it is made again, or its outcome was decided.
    """

    CLAIMED = "claimed"
    REPLAYED = "replayed"
    IN_PROGRESS = "in_progress"
    RECLAIMED = "reclaimed"


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
    settings: SchedulerSettings
    threads: ThreadPool
    tool_attempts: set[asyncio.Task[Any]]

    @property
    def allow_pickle(self) -> bool: ...


class Met:
    """What a call met. `seq` and `attempt` are the claim, where the call is to be made: it is `mine`.

    Else `answer` is what the ledger has of it, or `refusal` why a policy refuses it.
    """

    __slots__ = ("answer", "attempt", "failures", "identity", "lost", "refusal", "seq", "status")

    def __init__(self, identity: CallId, status: ClaimStatus) -> None:
        self.identity = identity
        self.status = status
        self.seq = 0
        self.attempt = 1
        self.failures = 0
        self.answer: LedgerCall | None = None
        self.refusal: str | None = None
        self.lost: LedgerCall | None = None

    @property
    def is_mine(self) -> bool:
        return self.answer is None and self.refusal is None and self.lost is None


class Claims:
    """Claims the calls of tools of one session."""

    def __init__(self, host: LedgerHost, journal: SessionJournal) -> None:
        self._host = host
        self._journal = journal

    @property
    def _transcript(self) -> Transcript:
        return self._journal.transcript

    @property
    def _terms(self) -> ForkTerms | None:
        return self._journal.origin.terms

    def ruling(self, task: Task[..., Any]) -> Ruling | None:
        """Which tool policy holds for a task; None in a session that no fork has to do with."""
        return None if self._terms is None else ruling_for(self._terms.policies, task.name, task.effect)

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def claim(self, asked: ToolCall, identity: CallId, ttl: int | None, patience_seconds: float) -> Met:
        """Claim a call, or find what stands in the way. Nobody else may claim it in this process meanwhile.

        Without `ttl`, in microseconds, the claim lasts as long as the session stays open. A call that somebody else is
        making is waited for with so much patience.
        """
        deadline = self._host.clock.now() + round(patience_seconds * MICROSECONDS)
        while True:
            known = self._transcript.ledger.get(identity)
            path = None if known is None else await self._difference(asked, known)
            if known is None:
                met = await self._try(asked, identity, ttl, None, matches=False)
            elif path is not None:
                self._check_same(asked, known, path)
                met = await self._try(asked, identity, ttl, known, matches=False)
            elif self._is_answer(asked, known):
                return _answered(identity, ClaimStatus.REPLAYED, known)
            elif self._is_held(known):
                ended = await self._wait(known, deadline)
                if ended or (self._host.clock.now() >= deadline and self._is_held(known)):
                    return _answered(identity, ClaimStatus.IN_PROGRESS, known)
                continue
            else:
                await self._wait_for_retry(asked, known)
                met = await self._try(asked, identity, ttl, known, matches=True)
            if met is not None:
                return met

    async def _try(
        self, asked: ToolCall, identity: CallId, ttl: int | None, known: LedgerCall | None, *, matches: bool
    ) -> Met | None:
        """Write the claim; None where the call is not any more what it was taken for."""
        before = _condition(known)
        message = None if known is None or not matches else await self._decision(asked, known)
        met = Met(identity, ClaimStatus.CLAIMED)
        is_stale = False

        def decide() -> list[Draft]:
            nonlocal is_stale
            is_stale = _condition(self._transcript.ledger.get(identity)) != before
            if is_stale:
                return []
            if known is None or not matches or self._is_begun_anew(asked, known):
                return self._begin(asked, met, ttl)
            return self._reclaim(asked, met, ttl, known, message)

        entries = await self._write(decide, met, () if message is None else (message.id,))
        if is_stale:
            return None
        if met.lost is not None:
            raise self._undecided(met.lost)
        met.seq = met.seq or entries[0].seq
        return met

    async def _write(self, decide: Callable[[], list[Draft]], met: Met, taken: Sequence[int]) -> list[Entry]:
        """Write a claim. A caller that is cancelled meanwhile leaves none behind."""
        entries: list[Entry] = []

        async def write() -> None:
            entries.extend(await self._journal.write(decide, taken=taken))

        try:
            await finish(write())
        except asyncio.CancelledError:
            if entries and met.is_mine:
                seq = met.seq or entries[0].seq
                given_back = Draft(EntryType.CALL_CANCELLED, f'"call":{seq}')
                with suppress(*LOST):
                    await finish(self.write(met.identity, seq, met.attempt, given_back))
            raise
        return entries

    # --- what stands in the ledger ------------------------------------------------------------------------------------

    def _is_answer(self, asked: ToolCall, known: LedgerCall) -> bool:
        """Whether what is recorded of the same call answers it."""
        return known.outcome is not None and not self._is_begun_anew(asked, known)

    def _is_begun_anew(self, asked: ToolCall, known: LedgerCall) -> bool:
        """Whether the same call is made as if it were new.

        It was cancelled, or refused in the source of a fork; or the fork has every call made anew that it inherits.
        """
        if known.outcome is not None and known.outcome.type == EntryType.CALL_CANCELLED:
            return True
        if not self._transcript.is_inherited(known.entry.seq):
            return False
        if known.outcome is not None and known.outcome.type == EntryType.TASK_BLOCKED:
            return self._transcript.is_inherited(known.outcome.seq)
        ruling = self.ruling(asked.task)
        return ruling is not None and ruling.policy is ToolPolicy.LIVE

    def _is_held(self, known: LedgerCall) -> bool:
        """Whether somebody else may be making a call."""
        if known.outcome is not None or known.is_asked or self._transcript.is_lost(known):
            return False
        if known.expires_at is not None:
            return self._host.clock.now() < known.expires_at
        return self._journal.is_participant  # Else it is a claim of this process, which gave it up.

    async def _wait(self, known: LedgerCall, deadline: int) -> bool:
        """Wait for news of a call that somebody else is making, one look long; whether it has ended."""
        news = self._host.waiters.next_entry(self._journal.run_id)  # What is written while it is read is not missed.
        try:
            await self._journal.refresh()
        except SessionLostError:
            if known.outcome is None:
                raise
        if known.outcome is None and self._is_held(known) and self._host.clock.now() < deadline:
            look = self._host.clock.now() + round(self._host.settings.poll_seconds * MICROSECONDS)
            moments = [look, deadline] if known.expires_at is None else [look, deadline, known.expires_at]
            await self.sleep_until(min(moments), news)
        return known.outcome is not None and known.outcome.type != EntryType.CALL_CANCELLED

    async def _wait_for_retry(self, asked: ToolCall, known: LedgerCall) -> None:
        """An attempt failed, and the next one is due at a time that outlives whoever waited for it."""
        if known.retry_at is not None and self._refusal_of_inherited(asked, known) is None:
            await self.sleep_until(known.retry_at)

    async def sleep_until(self, moment: int, news: "asyncio.Future[None] | None" = None) -> None:
        """Wait for a moment, or for news if they come first."""
        is_due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self._host.clock.call_at(moment, lambda: None if is_due.done() else is_due.set_result(None))
        try:
            await asyncio.wait((is_due,) if news is None else (is_due, news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()

    async def _decision(self, asked: ToolCall, known: LedgerCall) -> Message | None:
        """What somebody has decided about this very attempt, and nobody has taken note of yet."""
        if asked.task.effect is not Effect.EXTERNAL or known.outcome is not None:
            return None
        for message in await self._host.journal.messages(self._journal.run_id):
            if message.type == DECISION:
                told = json.loads(message.payload)
                if (told["call"], told["attempt"]) == (known.entry.seq, known.attempt):
                    return message
        return None

    # --- what a claim writes ------------------------------------------------------------------------------------------

    def _begin(self, asked: ToolCall, met: Met, ttl: int | None) -> list[Draft]:
        """Claim a call as a new one, unless a policy refuses it."""
        dedup = "" if asked.dedup_fields is None else f',"dedup":{json.dumps(asked.dedup_fields)}'
        occurrence = met.identity.occurrence
        named = f'"ordinal":{occurrence}' if isinstance(occurrence, int) else f'"key":{json_quote(occurrence)}'
        task = asked.task
        head = f'{task.head},{named},"step":{self._transcript.last_step + 1}{task.tail}{dedup}{self.holding(ttl)}'
        scheduled = Draft(EntryType.TASK_SCHEDULED, head, asked.input_text)
        met.refusal = self._refusal(task)
        if met.refusal is None:
            return [scheduled]
        return [scheduled, Draft(EntryType.TASK_BLOCKED, f'"call":{self._transcript.head + 1}', met.refusal)]

    def _reclaim(
        self, asked: ToolCall, met: Met, ttl: int | None, known: LedgerCall, message: Message | None
    ) -> list[Draft]:
        """Go on with a call whose maker is gone."""
        call, task = f'"call":{known.entry.seq}', asked.task
        met.status, met.seq = ClaimStatus.RECLAIMED, known.entry.seq
        met.attempt, met.failures = known.attempt + 1, known.failures
        met.answer = met.lost = None
        met.refusal = self._refusal_of_inherited(asked, known)
        if met.refusal is not None:
            return [Draft(EntryType.TASK_BLOCKED, call, met.refusal)]
        has_crashed = known.retry_at is None and not self._transcript.is_inherited(known.held_since)
        again = f'{call},"attempt":{met.attempt}{self.holding(ttl)}'
        if known.retry_at is not None:  # The attempt before has failed: nothing is unclear.
            return [Draft(EntryType.TASK_ATTEMPT_STARTED, again)]
        if task.effect is Effect.EXTERNAL:
            return self._as_decided(task, met, known, message, Draft(EntryType.TASK_ATTEMPT_STARTED, again))
        if known.crashes >= MAX_CRASHES:
            met.answer = known
            error = TaskCrashedError(
                f"the process died {known.crashes} times during attempts of task {task.name!r}; find out why before "
                "the call is made again, and fork the session before it"
            )
            return [Draft(EntryType.TASK_FAILED, call, encode_failure(error))]
        return [Draft(EntryType.TASK_ATTEMPT_STARTED, again + (',"after":"crash"' if has_crashed else ""))]

    def _as_decided(
        self, task: Task[..., Any], met: Met, known: LedgerCall, message: Message | None, again: Draft
    ) -> list[Draft]:
        """Go on with an external call as somebody has decided, or ask for that."""
        call = f'"call":{known.entry.seq}'
        if message is None:
            met.lost = known
            asks = Draft(EntryType.DECISION_REQUESTED, f'{call},"attempt":{known.attempt}')
            return [] if known.is_asked else [asks]
        told = json.loads(message.payload)
        decision, text = told["decision"], told.get("value")
        made = Draft(EntryType.DECISION_MADE, f'{call},"decision":{json_quote(decision)}', text)
        if decision == "rerun":
            return [made, again]
        met.answer = known
        if decision == "fail":
            error = TaskCrashedError(f"it was decided that the external call of {task.name!r} failed")
            return [made, Draft(EntryType.TASK_FAILED, call, encode_failure(error))]
        return [made, Draft(EntryType.TASK_COMPLETED, call, text)]

    def holding(self, ttl: int | None) -> str:
        """Who holds a claim, and until when, as payload members."""
        if ttl is None:
            return ""
        by = f',"by":{json_quote(self._host.owner_id)}' if self._journal.is_participant else ""
        return f',"expires_at":{self._host.clock.now() + ttl}{by}'

    # --- tool policies ------------------------------------------------------------------------------------------------

    def _refusal_of_inherited(self, asked: ToolCall, known: LedgerCall) -> str | None:
        """Why a call that was outstanding at the cut is refused; None for one that may be made or is not inherited."""
        return self._refusal(asked.task) if self._transcript.is_inherited(known.entry.seq) else None

    def _refusal(self, task: Task[..., Any]) -> str | None:
        ruling = self.ruling(task)
        if ruling is None or self._terms is None or ruling.policy in (ToolPolicy.AUTO, ToolPolicy.LIVE):
            return None
        reason = ruling.reason
        if ruling.policy is ToolPolicy.REPLAY:
            reason = f"{reason}, and no result of such a call with equal arguments is inherited"
        return encode_refusal(self._terms, ruling, reason)

    # --- claims that are held -----------------------------------------------------------------------------------------

    async def write(self, identity: CallId, seq: int, attempt: int, draft: Draft) -> LedgerCall:
        """Write an entry under a claim, and answer what the ledger then has of the call.

        Raises `ClaimLostError` where the claim does not hold any more.
        """

        def decide() -> Sequence[Draft]:
            known = self._transcript.ledger.get(identity)
            if known is None or (known.entry.seq, known.attempt) != (seq, attempt) or known.outcome is not None:
                raise ClaimLostError(
                    f"the claim on call {identity} of session {self._journal.run_id!r} does not hold any more: the "
                    "call has ended, or was claimed by somebody else; what came of it here was not recorded",
                    run_id=self._journal.run_id,
                )
            return [draft]

        await self._journal.write(decide)
        return self._transcript.ledger[identity]

    async def renew(self, identity: CallId, seq: int, attempt: int, ttl: int) -> int:
        """Have a claim run out later: when. Raises `ClaimLostError`."""
        expires_at = self._host.clock.now() + ttl
        facts = f'"call":{seq},"attempt":{attempt},"expires_at":{expires_at}'
        await self.write(identity, seq, attempt, Draft(EntryType.CALL_RENEWED, facts))
        return expires_at

    def hold_of(self, call: TaskCall, ttl: int | None) -> Hold:
        """That a claim holds for as long as `ttl`; without one, that the session is open here and nowhere else."""
        return _SessionHold(self._host, self._journal) if ttl is None else _ClaimHold(self, call, ttl)

    def is_running_out(self, call: TaskCall) -> bool:
        """Whether a claim may be taken over by now, as far as is known here."""
        expires_at = self._transcript.ledger[call.identity].expires_at
        return expires_at is None or self._host.clock.now() >= expires_at

    # --- arguments ----------------------------------------------------------------------------------------------------

    def _check_same(self, asked: ToolCall, known: LedgerCall, path: str) -> None:
        """Raise `CallConflictError` where a call was made with other arguments in this very session."""
        was_cancelled = known.outcome is not None and known.outcome.type == EntryType.CALL_CANCELLED
        if self._transcript.is_inherited(known.entry.seq) or was_cancelled:
            return
        run_id = self._journal.run_id
        advice = (
            "give the call a key of its own, or name in dedup_fields the arguments that make it the same call"
            if asked.key is not None
            else "give the call a key, or record what leads to it with a call too, so that the same calls follow"
        )
        raise CallConflictError(
            f"call {known.identity} of session {run_id!r} was made with other arguments before, at entry "
            f"{known.entry.seq}: they differ at {path}; {advice}",
            run_id=run_id,
            call=str(known.identity),
            path=path,
        )

    async def _difference(self, asked: ToolCall, known: LedgerCall) -> str | None:
        """The path of the first argument that differs; None where the calls are the same."""
        return first_difference(asked, await self.text(known.entry))

    async def text(self, entry: Entry) -> str:
        """The text of the value that an entry holds."""
        text, reference = value_text(entry), blob_reference(entry)
        if reference is None:
            return text or "null"
        return (await self._host.archive.values(self._journal.run_id, [entry], {reference}))[reference]

    # --- errors -------------------------------------------------------------------------------------------------------

    def in_progress(self, identity: CallId, expires_at: int | None = None) -> CallInProgressError:
        """The error of a call that somebody else is making for longer than it was waited for."""
        until = "" if expires_at is None else f" until {to_datetime(expires_at).isoformat()}"
        return CallInProgressError(
            f"call {identity} of session {self._journal.run_id!r} is being made by somebody else, who has "
            f"claimed it{until}; make the call again to wait on for its outcome",
            run_id=self._journal.run_id,
            call=str(identity),
        )

    def _undecided(self, call: LedgerCall) -> NeedsDecisionError:
        run_id = self._journal.run_id
        return NeedsDecisionError(
            f"session {run_id!r} stopped at the external call {call.identity}, entry {call.entry.seq}: whoever "
            "made it is gone, and nobody knows whether it took effect. Find out, then call "
            f"satay.decide({run_id!r}, 'rerun'), 'fail' or value=..., and make the call again",
            run_id=run_id,
        )


class _SessionHold:
    """That a session is open here and nowhere else: so are the claims on its calls."""

    __slots__ = ("_host", "_journal")

    def __init__(self, host: LedgerHost, journal: SessionJournal) -> None:
        self._host = host
        self._journal = journal

    @property
    def is_certain(self) -> bool:
        return self._host.tenure.is_unbroken_since(self._journal.lapses)

    async def make_certain(self) -> None:
        await self._host.tenure.renew(only_lapsed=True)
        lapses = self._host.tenure.lapses
        await self._journal.refresh()
        self._journal.lapses = lapses


class _ClaimHold:
    """That a claim that runs out has not run out."""

    __slots__ = ("_call", "_claims", "_ttl")

    def __init__(self, claims: Claims, call: TaskCall, ttl: int) -> None:
        self._claims = claims
        self._call = call
        self._ttl = ttl

    @property
    def is_certain(self) -> bool:
        return not self._claims.is_running_out(self._call)

    async def make_certain(self) -> None:
        call = self._call
        await self._claims.renew(call.identity, call.seq, call.attempt, self._ttl)


def first_difference(asked: ToolCall, arguments: str) -> str | None:
    """The path of the first argument that differs from those of another call; None where the calls are the same."""
    if arguments == asked.input_text:
        return None
    one, other = to_plain(arguments), to_plain(asked.input_text)
    if asked.dedup_fields is not None:
        one, other = _only(one, asked.dedup_fields), _only(other, asked.dedup_fields)
    differences, _ = find_differences(one, other, 1)
    return differences[0].path if differences else None


def _answered(identity: CallId, status: ClaimStatus, known: LedgerCall) -> Met:
    met = Met(identity, status)
    met.answer = known
    return met


def _condition(known: LedgerCall | None) -> tuple[object, ...] | None:
    """What a decision about a call rests on."""
    if known is None:
        return None
    return known.entry.seq, known.attempt, known.outcome, known.is_asked, known.retry_at, known.expires_at


def _only(arguments: Any, names: Sequence[str]) -> Any:
    """Of the arguments of a call, those that make it the same call. `**options` count one by one."""
    if not isinstance(arguments, dict):
        return arguments
    named = {
        name: value
        for label, given in arguments.items()
        for name, value in (given.items() if label.startswith("**") and isinstance(given, dict) else [(label, given)])
    }
    return {name: named[name] for name in names if name in named}
