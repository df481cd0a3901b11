"""Sessions: executions whose loop the application owns. It says what happened, and satay makes that durable.

A session is a journal like that of a run: with a lease, forks, receipts, policies, comparison and outcomes. The
application records a step when it has made one, and its state with it; it calls tools through the ledger.
"""

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import Token
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast, overload

from satay.approval_records import PAYLOAD_CODEC, Approval
from satay.arguments import (
    checked_approval_key,
    checked_count,
    checked_duration,
    checked_flag,
    checked_run_id,
    name_problem,
    shown,
)
from satay.boundaries import BoundaryMode, parse_mode
from satay.clock import to_datetime
from satay.context import Attempt, ToolCaller, attempt_of_block, current_attempt, session_of_block
from satay.declarations import OPAQUE
from satay.definitions import Task, source_version
from satay.errors import (
    InvalidValueError,
    JournalError,
    RunExistsError,
    SessionLostError,
    UsageError,
)
from satay.experiments import Draft
from satay.failures import message_of
from satay.functions import current_app
from satay.handles import RunOrId, RunReference
from satay.ledgers import Claim, Ledger, ToolReceipt
from satay.logs import log
from satay.model import EntryType, RunStatus
from satay.readers import checked_run
from satay.receipts import ForkReceipt
from satay.scheduler import Scheduler
from satay.session_alarms import SessionAlarm, wake_moment
from satay.session_approvals import ApprovalRequest
from satay.session_carriers import Carrier, read_carrier
from satay.session_cuts import find_state
from satay.session_endings import ending
from satay.session_forks import SessionForkRequest, checked_request, fork_session
from satay.session_journals import (
    SessionJournal,
    create_session,
    hold,
    join_session,
    open_session,
    session_record,
)
from satay.session_openings import SessionOpening
from satay.session_steps import Step, decode_content, encode_content, is_unchanging, recorded_step
from satay.session_tools import SessionTools
from satay.session_wakes import next_wake
from satay.shields import finish
from satay.state_records import StateRecords
from satay.texts import json_quote
from satay.transcripts import MAX_STEP, SessionStatus, Transcript

P = ParamSpec("P")
R = TypeVar("R")


class Session(RunReference):
    """A durable record of an agent that owns its own loop, for an `async with` block.

    Entering makes the session, or goes on with it where it was left: paused, crashed, or by a process that is gone. One
    live owner has it at a time. Leaving the block completes it; leaving it with an error records that it crashed, and
    with an `ApprovalPendingError`, a cancellation or another interruption, such as Ctrl-C, that it was paused.

    `state_fn` gives the state after a step: plain data, or what the codec takes; it is recorded with every
    `state_interval`-th step, in the same transaction. Give it each time: where states were recorded and a step has
    none for want of it, a warning `session.stateless` is logged.

    ```python
    async with satay.Session("run-42", state_fn=lambda: state) as session:
        state = session.state or state  # Where it was, if it was there before.
        await session.step("plan", input=question, output=plan)
    ```
    """

    def __init__(self, session_id: str, *, state_fn: Callable[[], Any] | None = None, state_interval: int = 1) -> None:
        self.run_id = checked_run_id(session_id)
        self._states = StateRecords(self.run_id, state_fn, state_interval)
        self._code: Callable[..., Any] | None = state_fn
        self._reopens = False
        self._epoch: int | None = None
        self._part: str | None = None
        self._carriers: dict[int, int] = {}
        self._receipt: ForkReceipt | None = None
        self._journal: SessionJournal | None = None
        self._tools: SessionTools | None = None
        self._alarm: SessionAlarm | None = None
        self._scheduler: Scheduler | None = None
        self._is_open = False
        self._is_left = False
        self._is_noted_stateless = False
        self._pause_reason: str | None = None
        self._result_text = "null"
        self._token: Token[ToolCaller | None] | None = None
        self._attempt_token: Token[Attempt | None] | None = None

    # --- opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def resume(
        cls,
        session_id: RunOrId,
        *,
        fork_at_step: int | None = None,
        name: str | None = None,
        boundary: Literal["exact", "nearest", "lineage"] = "exact",
        intervention: Any = None,
        tool_policies: Mapping[str, str] | None = None,
        reason: str | None = None,
        state_fn: Callable[[], Any] | None = None,
        state_interval: int = 1,
    ) -> SessionOpening[Self]:
        """A session that is there, to be entered and gone on with, also one that has completed.

        Enter it at once, `async with Session.resume(...) as session`, or await it, and enter what that gives.

        With `fork_at_step` it is a fork of that session, as `fork` makes it; the source may be in any condition, and be
        open in another process. `state_fn` is code and is not recorded: without it, what follows has no states. Raises
        `RunNotFoundError`, `RunConflictError` for a run that is no session, and what `fork` raises.
        """
        if fork_at_step is not None:
            request = checked_request(fork_at_step, boundary, intervention, tool_policies, reason)
            source_id = checked_run_id(checked_run(session_id))
            forking = cls._resume_fork(source_id, name, request, state_fn, state_interval)
            return SessionOpening(forking, "Session.resume")
        options = {"name": name, "intervention": intervention, "tool_policies": tool_policies, "reason": reason}
        given = [option for option, value in options.items() if value is not None]
        if given or parse_mode(boundary) is not BoundaryMode.EXACT:
            raise UsageError(f"Session.resume() takes {', '.join(given) or 'boundary'} only with fork_at_step=")
        session = cls(checked_run(session_id), state_fn=state_fn, state_interval=state_interval)
        session._reopens = True
        return SessionOpening(session._found(), "Session.resume")

    async def _found(self) -> Self:
        scheduler = await current_app().scheduler()
        await session_record(scheduler.archive, self.run_id)
        return self

    @classmethod
    async def _resume_fork(
        cls,
        source_id: str,
        name: str | None,
        request: SessionForkRequest,
        state_fn: Callable[[], Any] | None,
        state_interval: int,
    ) -> Self:
        scheduler = await current_app().scheduler()
        return await cls._fork(scheduler, source_id, name, request, state_fn, state_interval)

    @classmethod
    def join(cls, carrier: dict[str, Any], *, state_fn: Callable[[], Any] | None = None) -> Self:
        """Take part in a session that another process has open, by what its `carrier()` gave.

        Entering raises `SessionLostError` where the session has changed hands since. Leaving ends nothing: the session
        stays with who opened it. Raises `InvalidValueError` for what is no carrier.
        """
        share = read_carrier(carrier)
        session = cls(share.session_id, state_fn=state_fn)
        session._epoch, session._part = share.epoch, share.part
        return session

    async def __aenter__(self) -> Self:
        if self._is_open or self._is_left:
            raise UsageError(
                f"session {self.run_id!r} was entered before with this object; get another one with "
                f"satay.Session.resume({self.run_id!r})"
            )
        scheduler = await current_app().scheduler()
        if self._epoch is None:
            hold(scheduler, self.run_id)
        try:
            await finish(self._begin(scheduler))
        except BaseException as error:
            if self._is_open:  # Only the caller was cancelled.
                await self.__aexit__(type(error), error, None)
            elif self._epoch is None:
                scheduler.open_sessions.discard(self.run_id)
            raise
        self._token = session_of_block.set(self)
        self._attempt_token = attempt_of_block.set(current_attempt.get())
        return self

    async def _begin(self, scheduler: Scheduler) -> None:
        """Open the journal, and read what the session goes on with. To its end: a session is not left half opened."""
        journal = self._journal = await self._open(scheduler)
        try:
            await self._load()
        except Exception as error:
            if self._epoch is None:
                with suppress(JournalError, SessionLostError):  # What kept it from opening is told.
                    await self._leave(journal, scheduler, error)
            raise
        outer = session_of_block.get()
        self._scheduler = scheduler
        self._tools = SessionTools(
            Ledger(scheduler, journal, self._part),
            current_attempt.get(),
            outer._tools if isinstance(outer, Session) else None,
        )
        self._alarm = SessionAlarm(journal, scheduler)
        self._is_open = True
        self._alarm.set()

    async def _open(self, scheduler: Scheduler) -> SessionJournal:
        if self._epoch is not None:
            return await join_session(scheduler, self.run_id, self._epoch)
        if await scheduler.journal.record(self.run_id) is None:
            version = _code_version(self._code)
            try:
                opened = await create_session(scheduler, self.run_id, scheduler.chance.new_seed(), version)
                return SessionJournal(scheduler, opened)
            except RunExistsError:
                pass  # Somebody made it meanwhile, and has it.
        return await open_session(scheduler, self.run_id, reopens=self._reopens)

    async def _load(self) -> None:
        """Read the receipt of a fork, and the states that the session goes on with."""
        journal = self._entered()
        text = await journal.host.archive.receipt_text(self.run_id)
        if text is not None and self._receipt is None:
            self._receipt = ForkReceipt.from_json(text)
        await self._states.load(journal, self._receipt)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        journal, scheduler = self._entered(), self._scheduler
        journal.check_loop()
        if self._token is not None and self._attempt_token is not None:
            with suppress(ValueError):  # It is left in another context than it was entered in.
                attempt_of_block.reset(self._attempt_token)
                session_of_block.reset(self._token)
        assert scheduler is not None, "the session was entered"
        self._is_open, self._is_left = False, True
        if self._alarm is not None:
            self._alarm.turn_off()
        if self._epoch is not None:
            return
        try:
            await finish(self._leave(journal, scheduler, error))
        except (JournalError, SessionLostError) as failure:
            if error is None:
                raise
            if failure is not error:
                error.add_note(f"The end of session {self.run_id!r} could not be recorded: {message_of(failure)}")
        finally:
            scheduler.open_sessions.discard(self.run_id)

    async def _leave(self, journal: SessionJournal, scheduler: Scheduler, error: BaseException | None) -> None:
        if journal.is_lost:
            if isinstance(error, SessionLostError):
                return
            raise journal.lost()
        draft, status = ending(error, self._pause_reason, self._result_text)
        await journal.write(lambda: [draft], status=status)
        wake_at = next_wake(journal.transcript)
        if status is RunStatus.WAITING and wake_at is not None:
            scheduler.sleep_until(wake_at)

    def _entered(self) -> SessionJournal:
        if self._journal is None:
            raise UsageError(f"session {self.run_id!r} was not entered; use it in an 'async with' block")
        return self._journal

    async def _read_on(self) -> SessionJournal:
        """The journal, and of an open session all that is in it by now."""
        journal = self._entered()
        journal.check_loop()
        if self._is_open:
            with suppress(SessionLostError):  # The next write says so; what is there may be read.
                await journal.refresh()
        return journal

    def _open_journal(self) -> SessionJournal:
        journal = self._entered()
        if not self._is_open:
            raise UsageError(
                f"session {self.run_id!r} was left; go on with it in the block of "
                f"'async with satay.Session.resume({self.run_id!r})'"
            )
        if journal.is_lost:
            raise journal.lost()
        return journal

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def status(self) -> SessionStatus:
        """What the session is doing, as far as this process has read its journal. Raises `UsageError` before it is
        entered."""
        return self._entered().transcript.status

    @property
    def last_step(self) -> int:
        """The number of the last step, 0 where there is none. Raises `UsageError` before it is entered."""
        return self._entered().transcript.last_step

    @property
    def state(self) -> Any:
        """The latest state that this object has recorded, or found recorded when it was entered; a copy of it.

        None where there is none, and in a fork that was handed none, until it has recorded its own. What others who
        take part have recorded since, `state_at` tells. Raises `UsageError` before the session is entered.
        """
        return self._states.latest(self._entered().transcript)

    @property
    def receipt(self) -> ForkReceipt | None:
        """What a fork inherited; None for a session that is no fork."""
        return self._receipt

    @property
    def inherited_state(self) -> Any:
        """The state that a fork was handed, a copy of it; None where none was, and for a session that is no fork."""
        return self._states.inherited

    @property
    def intervention(self) -> Any:
        """What the fork was given as `intervention`, a copy of it; None for a session that is no fork."""
        return None if self._receipt is None else self._receipt.stored().intervention

    # --- steps --------------------------------------------------------------------------------------------------------

    async def step(self, name: str, *, input: Any = None, output: Any = None) -> Step:
        """Record a step that was made, and the state after it, in one transaction. Returns once it is on disk.

        Raises `SessionStateError` where `state_fn` fails, `EncodeError` for what cannot be encoded; then nothing is
        recorded. Raises `SessionLostError` where another process has taken the session over.
        """
        problem = name_problem(name)
        if problem:
            raise InvalidValueError(f"step name {shown(name)} cannot be used; {problem}")
        journal = self._open_journal()
        transcript = journal.transcript
        if self._states.state_fn is None:
            self._note_stateless(transcript)
        where = f"step {name!r} of session {self.run_id!r}"
        quoted, content = json_quote(name), encode_content(input, output, where)

        def decide() -> list[Draft]:
            number = transcript.last_step + 1
            step = Draft(EntryType.STEP_RECORDED, f'"step":{number},"name":{quoted}', content)
            state = self._states.draft(transcript, number, where)
            return [step] if state is None else [step, state]

        left_behind = self._opened_tools().ledger.calls_left_behind()
        first, *_ = await journal.write(decide)
        self._states.note_written(transcript)  # Before others, who take part, record another state.
        number = transcript.last_step
        if left_behind:
            log().warning(
                "session.calls_left_behind",
                run_id=self.run_id,
                step=number,
                calls=left_behind,
                hint="they were made before this step was begun anew, were not asked for again, and are behind it now; "
                "a loop that begins at its top has to skip the steps up to session.last_step",
            )
        given, made = input, output
        if not (is_unchanging(input) and is_unchanging(output)):
            given, made = decode_content(content, where)
        return Step(number, name, given, made, to_datetime(first.at), first.seq, False)

    def _note_stateless(self, transcript: Transcript) -> None:
        """Log, once, that states end here: a `state_fn` that was forgotten is noticed when the next fork is refused."""
        if transcript.snapshots.latest is not None and self._part is None and not self._is_noted_stateless:
            self._is_noted_stateless = True
            log().warning(
                "session.stateless",
                run_id=self.run_id,
                hint="states were recorded before, and none is now; pass state_fn= wherever the session is opened",
            )

    async def steps(self) -> list[Step]:
        """All steps in order, the inherited ones too, and what others who take part have recorded.

        Raises `UsageError` before the session is entered.
        """
        journal = await self._read_on()
        marks = list(journal.transcript.steps)
        texts = await journal.host.archive.texts(
            self.run_id, [mark.seq for mark in marks], without_values=(EntryType.STATE_RECORDED,)
        )
        return [recorded_step(journal.transcript, mark, text) for mark, text in zip(marks, texts, strict=True)]

    async def state_at(self, step: int) -> Any:
        """The state that was recorded with a step.

        Raises `NoRestorableStateError` where none was, naming the nearest steps with one; `InvalidValueError` for a
        step that there is not; `UsageError` before the session is entered.
        """
        journal = await self._read_on()
        number = checked_count(step, "step of state_at()", 1, MAX_STEP)
        snapshot = find_state(journal.transcript, number)
        return self._states.decode(await journal.state_text(snapshot))

    # --- time ---------------------------------------------------------------------------------------------------------

    async def wake_at(self, when: datetime | timedelta | float, note: str | None = None) -> datetime:
        """Have an entry appended to the session at a moment: an aware datetime, or a time from now, in seconds.

        `TimerCreated` is recorded now, with the note; `TimerFired`, which names its entry, at that moment: by the
        session while it is open; by the app that paused it, or any app that recovers, while it is paused; else when it
        is opened next. A session that completes or crashes is woken no more until it is opened. What a participant asks
        for, its own process appends while it takes part; the session does, once it has read what others wrote. Returns
        the moment.

        Raises `InvalidValueError` for what is no moment and a note that is no text, `SessionLostError` as `step` does.
        """
        if note is not None and not isinstance(note, str):
            raise InvalidValueError(f"note of wake_at() is {shown(note)}; it must be a text")
        journal, alarm = self._open_journal(), self._alarm
        assert alarm is not None, "the session was entered"
        due = wake_moment(when, journal.host.clock.now())
        transcript = journal.transcript

        def decide() -> list[Draft]:
            noted = "" if note is None else f',"note":{json_quote(note)}'
            return [
                Draft(EntryType.TIMER_CREATED, f'"timer":"wake","ordinal":{transcript.wakes_asked},"due":{due}{noted}')
            ]

        try:
            await journal.write(decide)
        finally:  # A caller that is cancelled may have had it recorded.
            alarm.set()
        return to_datetime(due)

    # --- tools --------------------------------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        tool: str,
        fn: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        key: str | None = None,
        effect: Literal["pure", "idempotent", "external"] | None = None,
        dedup_fields: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> ToolReceipt[R]: ...
    @overload
    async def call(
        self,
        tool: str,
        fn: Callable[..., R],
        /,
        *args: Any,
        key: str | None = None,
        effect: Literal["pure", "idempotent", "external"] | None = None,
        dedup_fields: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> ToolReceipt[R]: ...
    async def call(
        self,
        tool: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        effect: Literal["pure", "idempotent", "external"] | None = None,
        dedup_fields: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> ToolReceipt[Any]:
        """Call a tool through the ledger: once, however often it is asked for.

        `tool` is its name, for policies and receipts; `fn` makes the call, with the arguments that follow. `key` names
        the call; without one it is named by its tool and the number of the call, and found again when its step is
        begun anew, and when it is made again with the same arguments after it was cancelled or put off. `effect` is
        that of `@satay.task`. `dedup_fields` are the arguments that must be equal for the call to be the same; else
        all must.

        A call that somebody else is making is waited for, at most five minutes. Raises what the tool raised;
        `CallConflictError` for a key that names a call with other arguments;
        `TaskBlockedError` where a policy of the fork refuses the call; `NeedsDecisionError` for an external call that
        was lost; `UnreadableResultError` where the call was made and its result could not be recorded;
        `CallInProgressError` where somebody else makes it for longer; `EncodeError` for arguments that cannot be
        recorded.
        """
        tools = self._opened_tools()
        return await tools.call(tool, fn, args, kwargs, key=key, effect=effect, dedup_fields=dedup_fields)

    async def claim(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        key: str | None = None,
        effect: Literal["pure", "idempotent", "external"] | None = None,
        ttl: float | timedelta = 60.0,
    ) -> Claim:
        """Claim a call of a tool that is made by other means than `call`, to say afterwards what came of it.

        `arguments` are those of the call by name, `key` and `effect` are as for `call`; a tool that is a `@satay.task`
        declares its own effect. The claim runs out after `ttl` (seconds or a `timedelta`), unless `heartbeat()` renews
        it; then anybody who takes part may claim the call anew, and what the old holder says is refused. A call that
        somebody else is making is not waited for: its claim says `in_progress`.

        Raises the recorded error of a call that has failed, `CallConflictError`, `TaskBlockedError`,
        `NeedsDecisionError` and `UnreadableResultError` as `call` does.
        """
        return await self._opened_tools().claim(tool, arguments, key=key, effect=effect, ttl=ttl)

    def call_task(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Make the call of a task that is called in the session's block."""
        made: Any = self._result_of(task, args, kwargs)
        made.__qualname__ = task.name  # Python warns by that name where nobody awaits it.
        return cast("Coroutine[Any, Any, Any]", made)

    async def _result_of(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._opened_tools().call_task(task, args, kwargs)

    def _opened_tools(self) -> SessionTools:
        self._open_journal().check_loop()
        assert self._tools is not None, "the session was entered"
        return self._tools

    # --- approvals ----------------------------------------------------------------------------------------------------

    async def require_approval(
        self, key: str, payload: Any = None, *, timeout: float | timedelta | None = None, wait: bool = True
    ) -> Approval:
        """Ask for an approval, once however often the session is opened anew, and return what was decided about it.

        `key` names the request in the session: the same key asks for the same, and gets the same answer. `payload` is
        what is to be approved. Somebody decides with `satay.decide_approval`, from anywhere and at any time, also while
        no process has the session. With `wait=False` a request without an answer raises `ApprovalPendingError`, which
        leaves the session paused where its block ends with it: open it again later, and ask again. A tool that ends
        with it has not failed, and is called again from its top.

        Raises `ApprovalTimeoutError` where nobody decides within `timeout` seconds of the first request, whether a
        process is there or not; `CallConflictError` for a key that stands for another payload; `EncodeError` and
        `InvalidValueError`, with nothing recorded; `SessionLostError`.
        """
        journal, scheduler = self._open_journal(), self._scheduler
        assert scheduler is not None, "the session was entered"
        checked_approval_key(key)
        checked_flag(wait, "wait of require_approval()")
        seconds = None if timeout is None else checked_duration(timeout, f"timeout of approval {key!r}")
        text = PAYLOAD_CODEC.encode(payload, f"the payload of approval {key!r}")
        request = ApprovalRequest(scheduler, journal, key, text, seconds)
        return await (request.decision() if wait else request.decision_by_now())

    # --- forks --------------------------------------------------------------------------------------------------------

    def fork(
        self,
        *,
        at_step: int | None = None,
        name: str | None = None,
        boundary: Literal["exact", "nearest", "lineage"] = "exact",
        intervention: Any = None,
        tool_policies: Mapping[str, str] | None = None,
        reason: str | None = None,
        state_fn: Callable[[], Any] | None = None,
        state_interval: int | None = None,
    ) -> SessionOpening[Self]:
        """Copy the session up to a step into a new one, which goes on after that step once it is entered.

        Enter it at once, `async with session.fork(...) as fork`, or await it, and enter what that gives.

        This session is not touched. `at_step` is the last step that is kept; without it, the last one recorded. `name`
        is the fork's id: asking for the same fork under the same id again returns it. `boundary` says what happens
        where that step has no state: `"exact"` refuses, `"nearest"` takes the latest state before it and goes on after
        the step it belongs to, `"lineage"` hands over no state. `intervention` is kept and handed on as it is.
        `tool_policies` say by tool, or `"*"`, what becomes of calls in the fork. The fork's `state_fn` and
        `state_interval` are this session's, unless given.

        Raises `NoRestorableStateError`, `ForkValidationError` for a step that there is not, `RunConflictError` for an
        id that is taken, `InvalidValueError`; then nothing is written.
        """
        request = checked_request(at_step, boundary, intervention, tool_policies, reason)
        interval = self._states.interval if state_interval is None else state_interval
        chosen = self._states.state_fn if state_fn is None else state_fn
        return SessionOpening(self._forked(name, request, chosen, interval), "Session.fork")

    async def _forked(
        self, name: str | None, request: SessionForkRequest, state_fn: Callable[[], Any] | None, state_interval: int
    ) -> Self:
        scheduler = self._scheduler
        if scheduler is None or self._is_left:  # The app that it was open in may be closed.
            scheduler = await current_app().scheduler()
        live = self._journal if self._is_open else None
        return await self._fork(scheduler, self.run_id, name, request, state_fn, state_interval, live, self._code)

    @classmethod
    async def _fork(
        cls,
        scheduler: Scheduler,
        session_id: str,
        name: str | None,
        request: SessionForkRequest,
        state_fn: Callable[[], Any] | None,
        state_interval: int,
        live: SessionJournal | None = None,
        code: Callable[..., Any] | None = None,
    ) -> Self:
        fork_id = scheduler.chance.new_id() if name is None else checked_run_id(name)
        fork = cls(fork_id, state_fn=state_fn, state_interval=state_interval)
        fork._code = state_fn or code
        fork._receipt = await fork_session(scheduler, session_id, fork_id, request, _code_version(fork._code), live)
        return fork

    async def promote(self) -> None:
        """Say that this fork is the one to keep of the forks of its source; see `App.promote`."""
        await current_app().promote(self.run_id)

    # --- leaving ------------------------------------------------------------------------------------------------------

    def pause(self, reason: str = "paused") -> None:
        """Have the end of the block leave the session paused, to be gone on with, instead of completing it.

        Raises `UsageError` for a session that is not open, and where one takes part in it by `join`.
        """
        self._check_ends_it("pause")
        if not isinstance(reason, str):
            raise InvalidValueError(f"the reason for a pause is {shown(reason)}; it must be a text")
        self._pause_reason = reason

    def complete(self, result: Any = None) -> None:
        """Have the end of the block record a result. Raises `EncodeError` for one that cannot be recorded.

        Raises `UsageError` as `pause` does.
        """
        self._check_ends_it("complete")
        self._result_text = OPAQUE.encode(result, f"the result of session {self.run_id!r}")
        self._pause_reason = None

    def _check_ends_it(self, method: str) -> None:
        self._open_journal()
        if self._epoch is not None:
            raise UsageError(
                f"{method}() says how a session ends, and who takes part in {self.run_id!r} by Session.join() ends "
                "nothing; call it where the session was opened"
            )

    def carrier(self) -> dict[str, Any]:
        """What another process or a queue needs to take part in this session: plain data, for `Session.join`.

        Each is for one share of the work: calls without a key are numbered within it, so that whoever does it again
        finds what was called before.

        Raises `UsageError` for a session that is not open.
        """
        journal = self._open_journal()
        step, completions = journal.transcript.last_step + 1, journal.transcript.completions
        number = self._carriers[step] = self._carriers.get(step, 0) + 1
        begun = f"{step}+{completions}" if completions else str(step)  # After a completion the same work is other work.
        part = f"{begun}.{number}" if self._part is None else f"{self._part}/{begun}.{number}"
        return Carrier(self.run_id, journal.epoch, part).to_dict()

    def __repr__(self) -> str:
        return f"<satay.Session {self.run_id!r}>"


def current_session() -> Session:
    """The session in whose block the caller is. Raises `UsageError` outside of one."""
    session = session_of_block.get()
    if not isinstance(session, Session):
        raise UsageError(
            "satay.current_session() was called where no session is open; use it in the block of a session"
        )
    return session


def session(
    session_id: str | Callable[..., str],
    *,
    state_fn: Callable[[], Any] | None = None,
    state_interval: int = 1,
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Have an async function run in a session: its tasks are ledgered, and `current_session()` is that session.

    `session_id` is the id, or a function that makes it of the arguments. What the function returns is the session's
    result; an error that it raises crashes it. The other options are those of `Session`.

    Raises `UsageError` for what is no async function, and `InvalidValueError` as `Session` does. Calling the function
    raises what entering a `Session` raises.
    """

    if inspect.iscoroutinefunction(session_id):
        raise UsageError(
            f"@satay.session was put on {shown(session_id)} without an id; give the id of the session, or a function "
            "that makes it of the arguments, as in @satay.session('nightly')"
        )

    def decorate(fn: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(fn):
            raise UsageError(f"@satay.session was put on {shown(fn)}, which is no async function")

        @functools.wraps(fn)
        async def run_in_session(*args: P.args, **kwargs: P.kwargs) -> R:
            chosen = session_id if isinstance(session_id, str) else session_id(*args, **kwargs)
            opening = Session(chosen, state_fn=state_fn, state_interval=state_interval)
            opening._code = fn
            async with opening as opened:
                result = await fn(*args, **kwargs)
                opened.complete(result)
                return result

        return run_in_session

    # Raises now what would be raised at the first call.
    Session("session" if callable(session_id) else session_id, state_fn=state_fn, state_interval=state_interval)
    return decorate


def _code_version(state_fn: Callable[[], Any] | None) -> str:
    """What `SATAY_CODE_VERSION` says, else a digest of the source file that defines the state function."""
    return os.environ.get("SATAY_CODE_VERSION") or source_version(state_fn)
