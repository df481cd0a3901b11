"""The app: an open journal, and the scheduler that drives runs in it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from satay.approval_inbox import Verdict, decide
from satay.approval_records import Approval
from satay.archive import Archive
from satay.arguments import (
    check_is_no_session,
    check_is_run,
    checked_approval_key,
    checked_flag,
    checked_key,
    checked_run_id,
    shown,
)
from satay.clock import Chance, Clock
from satay.codec import ValueCodec
from satay.context import governing_terms, refuse_in_body
from satay.declarations import OPAQUE, value_codec
from satay.definitions import P, Workflow, check_is_workflow, find_workflow, tasks, workflows
from satay.errors import (
    AppClosedError,
    InvalidValueError,
    JournalClosedError,
    JournalError,
    RunConflictError,
    RunEndedError,
    RunExistsError,
    UsageError,
)
from satay.handles import ForkHandle, RunHandle, RunOrId, check_loop, wait_created
from satay.journal import DECISION, Journal
from satay.logs import log
from satay.model import MISSING, EntryType, Missing, RunRecord, RunStatus
from satay.origin import has_input
from satay.primitives import event_name
from satay.readers import Reader, checked_run
from satay.replay import facts, reading
from satay.scheduler import Scheduler, SchedulerSettings
from satay.settings import Settings
from satay.signals import TerminationHandler
from satay.stores.locations import open_journal
from satay.waiters import closed_meanwhile

if TYPE_CHECKING:
    from satay.laboratory import Experiment, Laboratory
    from satay.plans import ForkPlan
    from satay.receipts import ForkReceipt
    from satay.requests import ForkOptions, ForkRequest

R = TypeVar("R")


app_of_block: ContextVar["App | None"] = ContextVar("satay_app_of_block", default=None)
"""The app in whose `async with` block, or in whose task, the code runs."""


class App(Reader):
    """An open journal and the scheduler that drives runs in it: a reader that can also do. Made by `run_app`."""

    def __init__(
        self,
        settings: Settings,
        scheduling: SchedulerSettings,
        clock: Clock,
        chance: Chance,
        wrap_journal: Callable[[Journal], Journal] | None = None,
    ) -> None:
        self._wrap_journal = wrap_journal
        self._settings = settings
        self._scheduling = scheduling
        self._clock = clock
        self._chance = chance
        self._loop: asyncio.AbstractEventLoop | None = None
        self._journal: Journal | None = None
        self._scheduler: Scheduler | None = None
        self._opening: asyncio.Task[None] | None = None
        self._starting: set[asyncio.Task[Any]] = set()
        self._creations: dict[str, asyncio.Task[str]] = {}
        self._token: Token[App | None] | None = None
        self._signals: TerminationHandler | None = None
        self.is_closed = False

    async def __aenter__(self) -> Self:
        _running_loop()
        signals = TerminationHandler()
        signals.install()
        try:
            await self.open()
        except BaseException:
            signals.remove()
            raise
        self._signals = signals
        self._token = app_of_block.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            app_of_block.reset(self._token)
        signals = self._signals
        try:
            await self.close()
        finally:
            if signals is not None:
                signals.remove()
                signals.end_process_if_asked()

    def open_later(self, opening: "asyncio.Task[None]") -> None:
        """Everything that is asked of the app waits for this task, which opens it."""
        self._loop = opening.get_loop()
        self._opening = opening
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def open(self) -> None:
        """Open the journal and begin to drive. Raises `UsageError` for an app that was opened before, and in a body."""
        refuse_in_body()
        if self.is_closed or self._journal is not None:
            raise UsageError(
                "this app was opened before; an app is opened once, so call satay.run_app() for another one"
            )
        self._loop = _running_loop()
        token = app_of_block.set(self)  # The scheduler's context is copied when it is made: task bodies find this app.
        try:
            self._journal = await open_journal(self._settings)
            if self._wrap_journal is not None:
                self._journal = self._wrap_journal(self._journal)
            try:
                self._scheduler = Scheduler(self._journal, self._clock, self._chance, self._scheduling)
                await self._scheduler.open()
            except BaseException:
                with suppress(JournalError):  # What ended the opening is told, not what followed from it.
                    await self.close()
                raise
        finally:
            app_of_block.reset(token)

    async def close(self) -> None:
        """Let running attempts finish within the grace time, give every run back, and close the journal.

        Closing twice is allowed.
        """
        if self.is_closed:
            return
        try:
            if self._starting:  # What was asked for before the end is done: nobody has to await a handle.
                await asyncio.wait(self._starting)
        finally:
            self.is_closed = True
            try:
                if self._scheduler is not None:
                    await self._scheduler.close()
            finally:
                if self._journal is not None:
                    await self._journal.close()

    def is_open_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the app was opened on this event loop, and is not closed."""
        return self._loop is loop and not self.is_closed

    async def scheduler(self) -> Scheduler:
        """What drives runs, and holds sessions, once the journal is open. Raises `AppClosedError`."""
        return await self._ready()

    async def _ready(self) -> Scheduler:
        if self._loop is not None and not self.is_closed:
            check_loop(self._loop)
        if self._opening is not None:
            await asyncio.shield(self._opening)
        if self.is_closed:
            raise AppClosedError("this app is closed; open one with satay.run_app()")
        if self._scheduler is None:
            raise AppClosedError("this app is not open yet; use it in the block of 'async with'")
        return self._scheduler

    def _begin(self, work: "Coroutine[Any, Any, R]") -> "asyncio.Task[R]":
        try:
            task = _running_loop().create_task(work)
        except UsageError:
            work.close()
            raise
        self._starting.add(task)
        task.add_done_callback(self._begun)
        return task

    def _begun(self, task: "asyncio.Task[Any]") -> None:
        self._starting.discard(task)
        if not task.cancelled():
            task.exception()  # Whoever awaits the handle sees it; nobody has to.

    async def _archive(self) -> Archive:
        return (await self._ready()).archive

    def _next_entry(self, run_id: str) -> "asyncio.Future[None]":
        assert self._scheduler is not None, "the archive was opened"
        return self._scheduler.waiters.next_entry(run_id)

    def _now(self) -> int:
        return self._clock.now()

    @property
    def _poll_seconds(self) -> float:
        return self._scheduling.poll_seconds

    async def _id_of(self, run: RunOrId) -> str:
        """The id of a run that a caller names. A run that this app was asked to start is there when this returns."""
        run_id = checked_run(run)
        if isinstance(run, RunHandle):
            return (await run).run_id
        creation = self._creations.get(run_id)
        return run_id if creation is None else await wait_created(creation, run_id)

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(
        self,
        workflow: Workflow[P, R],
        input: Any = MISSING,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunHandle[R]:
        """Begin a run in the background and return its handle at once.

        An id that is there already attaches to that run, if it is of the same workflow and input, and drives it if
        nobody does; else awaiting the handle raises `RunConflictError`. A known `idempotency_key` attaches whatever the
        input.

        Raises `EncodeError` for an input that does not fit, `InvalidValueError` for an id that cannot be used and for
        an input that the workflow does not take or lacks, `UsageError` for what is no workflow.
        """
        check_is_workflow(workflow, "satay.start")
        text = workflow.encode_input(input)
        chosen = checked_run_id(run_id) if run_id is not None else self._chance.new_id()
        checked_key(idempotency_key, "idempotency_key")
        work = self._start(workflow, chosen, text, idempotency_key, has_own_id=run_id is not None)
        creation = self._begin(work)
        creation.add_done_callback(lambda ended: self._tell_of_loss(ended, chosen))
        if chosen not in self._creations:
            self._creations[chosen] = creation
            creation.add_done_callback(lambda _: self._creations.pop(chosen))
        return RunHandle(self, chosen, workflow.result_codec, creation)

    async def _start(
        self, workflow: Workflow[..., Any], run_id: str, text: str, start_key: str | None, *, has_own_id: bool
    ) -> str:
        scheduler = await self._ready()
        terms = governing_terms()
        try:
            await scheduler.create(
                workflow,
                run_id,
                text,
                start_key=start_key,
                terms=None if terms is None else terms.for_other_run(),
            )
        except RunExistsError as there:
            if start_key is None or there.run_id == run_id:
                await self._check_same(there.run_id, workflow, text)
            elif has_own_id:
                raise RunConflictError(
                    f"idempotency key {start_key!r} started run {there.run_id!r}, not {run_id!r}; leave run_id= away "
                    "to attach to it",
                    run_id=there.run_id,
                ) from None
            else:
                await self._check_workflow(there.run_id, workflow)
            await scheduler.take_over(there.run_id)
            return there.run_id
        return run_id

    def _tell_of_loss(self, creation: "asyncio.Task[str]", run_id: str) -> None:
        if creation.cancelled() and not self.is_closed:  # By the end of the event loop, and nobody may have waited.
            log().warning(
                "run.not_created",
                run_id=run_id,
                error="the event loop ended before the run was on disk; await what satay.start() returns",
            )

    async def _check_workflow(self, run_id: str, workflow: Workflow[..., Any]) -> None:
        record = await self._record(run_id)
        check_is_no_session(run_id, record.workflow)
        if record.workflow != workflow.name:
            raise RunConflictError(
                f"run {run_id!r} is there already: it is a run of workflow {record.workflow!r}, not {workflow.name!r}; "
                "choose another id or key",
                run_id=run_id,
            )

    async def _check_same(self, run_id: str, workflow: Workflow[..., Any], text: str) -> None:
        await self._check_workflow(run_id, workflow)
        entries = await (await self._ready()).journal.read(run_id, limit=1)
        if not has_input(entries[0], text):
            raise RunConflictError(
                f"run {run_id!r} is there already: it was started with another input; choose another id, or resume it "
                "with satay.resume",
                run_id=run_id,
            )

    def resume(self, run_id: RunOrId) -> RunHandle[Any]:
        """Go on with a run that nobody drives, and return its handle. A run that has ended answers from its journal.

        Awaiting the handle raises `RunNotFoundError`, `UnknownWorkflowError` where its code is not imported, or
        `RunConflictError` for a session.
        """
        return RunHandle(self, checked_run(run_id), None, self._begin(self._resume(run_id)))

    async def _resume(self, run: RunOrId) -> str:
        scheduler = await self._ready()
        run_id = await self._id_of(run)
        record = await self._record(run_id)
        check_is_no_session(run_id, record.workflow)
        if not record.status.is_terminal:
            find_workflow(record.workflow, run_id)
            await scheduler.retry(run_id)
        return run_id

    @overload
    async def fork(
        self, source: RunHandle[R], /, *, run_id: str | None = None, **options: Unpack["ForkOptions"]
    ) -> ForkHandle[R]: ...
    @overload
    async def fork(
        self, source: str, /, *, run_id: str | None = None, **options: Unpack["ForkOptions"]
    ) -> ForkHandle[Any]: ...
    async def fork(
        self, source: RunOrId, /, *, run_id: str | None = None, **options: Unpack["ForkOptions"]
    ) -> ForkHandle[Any]:
        """Copy a run's journal up to a cut into a new run, and drive that one under today's code and input.

        `source` is the id of the run or a handle on it; it is never touched. `run_id` is the fork's id: asking for the
        same fork under the same id again returns it, and its receipt says `replayed`.

        The cut is one of: `before_task`, a task or its name, before its earliest call or the one that `before_ordinal`
        or `before_key` names; `before_event` and `before_child` likewise; `after_task`, after the outcome of that call
        (`after_ordinal`, `after_key`); `at="failure"`, before the call that failed the run; `fork_point_seq`, which
        keeps entries up to and including that one. With `keep_siblings` only the call that `before_…` names runs again:
        what was issued before its outcome is kept, with its outcomes. `overrides` and `raises` give calls, named by
        `(name, ordinal or key)`, another value or an error; without another cut the fork is cut there.

        `workflow_input` is the input of the fork; without it, the source's. `intervention` is kept and handed to the
        code as it is. `tool_policies` say by task name, or `"*"`, what becomes of calls after the cut: `"auto"`,
        `"replay"`, `"block"` or `"live"`; a task with `effect="external"` is blocked unless they name it or `"*"`.
        They hold for whatever the fork brings about: its children, its forks, and runs that its tasks start or fork.
        `on_stale` says what happens where inherited calls would have other arguments now: `"keep"`, `"error"`, or
        `"rerun"`, which cuts before the first of them. `children` that are outstanding at the cut are forked too
        (`"fork"`), or answer from the source's own runs (`"share"`). `expected_head` is the last entry that the source
        must have; `reason` is recorded. `allow_unfinished` takes a source that has not ended, as it is committed now.

        Raises `ForkValidationError`, with nothing written, for a cut that does not exist, that would leave nothing to
        run, or a source that has not ended; `StalePrefixError`; `RunConflictError` for an id that is taken;
        `InvalidValueError` and `UsageError` for options that cannot be.
        """
        from satay.requests import parse_options

        request = parse_options(options)
        scheduler = await self._ready()
        record = await self._record(await self._id_of(source))
        fork_id = checked_run_id(run_id) if run_id is not None else self._chance.new_id()
        definition = find_workflow(record.workflow, record.run_id)
        work = self._begin(scheduler.forks.make(record, request, fork_id))
        try:
            receipt = await asyncio.shield(work)  # A caller that is cancelled leaves no fork that nobody drives.
        except asyncio.CancelledError:
            if work.cancelled():
                raise AppClosedError("the app was closed while it made a fork") from None
            raise
        return ForkHandle(self, fork_id, definition.result_codec, receipt)

    async def find_source(self, source: RunOrId) -> tuple[RunRecord, Workflow[..., Any]]:
        """The row of a run to fork, and its workflow. Raises `UnknownWorkflowError` where it is not imported."""
        record = await self._record(await self._id_of(source))
        return record, find_workflow(record.workflow, record.run_id)

    async def check_fork(self, source: RunRecord, request: "ForkRequest") -> None:
        """Raise what is wrong with a fork that is asked for, before anything is made. Raises what `fork` raises."""
        scheduler = await self._ready()
        await scheduler.forks.check(source, request)

    async def fork_for(
        self, parent_id: str, source: RunRecord, definition: Workflow[..., Any], run_id: str, request: "ForkRequest"
    ) -> ForkHandle[Any]:
        """Fork a run as the child of another one, which asks it to cancel when it ends. Raises what `fork` raises."""
        work = self._begin(self._fork_for(parent_id, source, run_id, request))
        receipt = await asyncio.shield(work)  # A caller that is cancelled leaves no fork that goes on without its run.
        return ForkHandle(self, run_id, definition.result_codec, receipt)

    async def _fork_for(self, parent_id: str, source: RunRecord, run_id: str, request: "ForkRequest") -> "ForkReceipt":
        scheduler = await self._ready()
        receipt = await scheduler.forks.make(source, request, run_id, parent_id)
        await scheduler.children.stop_with_parent(run_id, parent_id)
        return receipt

    def new_id(self) -> str:
        """An id for a run."""
        return self._chance.new_id()

    async def plan_fork(self, source: RunOrId, /, **options: Unpack["ForkOptions"]) -> "ForkPlan":
        """What `fork` with these options would inherit, run again, refuse and save. Writes nothing.

        The prefix is replayed under today's code and input. Raises what `fork` raises.
        """
        from satay.requests import parse_options

        request = parse_options(options)
        scheduler = await self._ready()
        record = await self._record(await self._id_of(source))
        check_is_no_session(record.run_id, record.workflow)
        return await scheduler.forks.plan(record, request)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def send_event(
        self,
        event: object,
        payload: Any = MISSING,
        *,
        key: str | None = None,
        run_id: RunOrId | None = None,
        event_id: str | None = None,
    ) -> bool:
        """Send an event to one run, or to whoever waits for it first.

        `event` is an object, whose class is the type, or the name of a type with a `payload`. It is delivered once; one
        that nobody waits for yet stays in the inbox. False where an event with the same `event_id` was sent to the same
        receiver before. A run that goes on as a new one hands its events on. Raises `RunNotFoundError` for a `run_id`
        that does not exist, `RunEndedError` for a run that has ended, `RunConflictError` for a session.
        """
        if isinstance(event, str):
            name, value, codec = event_name(event), None if payload is MISSING else payload, OPAQUE
        else:
            if payload is not MISSING:
                raise UsageError(
                    "send_event() takes a payload only with the name of an event; an object is its own payload"
                )
            name, value, codec = event_name(type(event)), event, value_codec(type(event))
        text = codec.encode(value, f"the payload of event {name!r}")
        checked_key(key, f"key of event {name!r}")
        checked_key(event_id, f"event_id of event {name!r}")
        scheduler = await self._ready()
        if run_id is None:
            return await scheduler.post(None, name, key, event_id, text)
        receiver = await self._receiver(await self._id_of(run_id), event_id)
        while receiver is not None:
            try:
                return await scheduler.post(receiver, name, key, event_id, text)
            except RunEndedError:  # It ended between the look and the post; another run may go on in its place.
                receiver = await self._receiver(receiver, event_id)
        return False

    async def _receiver(self, run_id: str, event_id: str | None) -> str | None:
        """The run that takes the events to a run: itself, or what goes on in its place. None if it took this one."""
        archive = (await self._ready()).archive
        check_is_no_session(run_id, (await archive.record(run_id)).workflow)
        if event_id is None:  # Else each of the runs may be the one that took it.
            run_id = (await archive.latest(run_id)).run_id
        while (record := await archive.record(run_id)).status.is_terminal:
            if event_id is not None and await self._has_taken(run_id, event_id):
                return None
            continued_as = (await archive.ending(run_id)).continued_as
            if continued_as is None:
                raise RunEndedError(
                    f"run {run_id!r} has ended: it is {record.status}; it takes no more events", run_id=run_id
                )
            run_id = continued_as
        return run_id

    async def _has_taken(self, run_id: str, event_id: str) -> bool:
        entries = await (await self._ready()).archive.entries(run_id)
        received = (entry for entry in entries if entry.type == EntryType.EXTERNAL_EVENT_RECEIVED)
        with reading(run_id):
            return any(facts(entry).get("event_id") == event_id for entry in received)

    async def cancel(self, run_id: RunOrId) -> None:
        """Ask for a run to be cancelled. A run that has ended stays as it ended; asking again changes nothing.

        Raises `RunNotFoundError`, `RunConflictError` for a session.
        """
        await self._ask_to_end(run_id, (await self._ready()).cancel)

    async def terminate(self, run_id: RunOrId) -> None:
        """Ask for a run to end at once, as cancelled: its body is dropped, and its cleanup does not run.

        Raises `RunNotFoundError`, `RunConflictError` for a session.
        """
        await self._ask_to_end(run_id, (await self._ready()).terminate)

    async def _ask_to_end(self, run: RunOrId, ask: Callable[[str], Awaitable[None]]) -> None:
        scheduler = await self._ready()
        record = await self._last_of(await self._id_of(run))
        check_is_no_session(record.run_id, record.workflow)
        asked = None
        while record.run_id != asked and not record.status.is_terminal:
            asked = record.run_id
            await ask(asked)
            if workflows.get(record.workflow) is not None:
                await scheduler.take_over(asked)
            record = await self._last_of(asked)  # It may have gone on as another run before it could be asked.

    async def decide(
        self,
        run_id: RunOrId,
        decision: Literal["rerun", "fail"] | Missing = MISSING,
        *,
        value: Any = MISSING,
        seq: int | None = None,
    ) -> None:
        """Say what became of an external call that a crash left unfinished, and go on with the run.

        `"rerun"` makes the call again, `"fail"` fails it, `value=` is taken as its result. `seq` names the call by its
        entry where several are undecided; else it is the first. Where the run's code is not imported, whoever resumes
        it goes on; in a session, whoever makes the call again. The first decision holds; the same again is no error.
        Raises `UsageError` where nothing is to be decided, and where somebody decided otherwise.
        """
        from satay.decisions import check_is_same, find_undecided

        if (decision is MISSING) == (value is MISSING) or decision not in ("rerun", "fail", MISSING):
            raise InvalidValueError('satay.decide() takes "rerun", "fail" or value=, and one of them only')
        scheduler = await self._ready()
        chosen = await self._id_of(run_id)
        record = await self._record(chosen)
        entries = await scheduler.archive.entries(chosen)
        is_held = record.status == RunStatus.RUNNING and not await scheduler.is_gone(record.owner)
        call = find_undecided(record, entries, seq, scheduler.clock.now(), is_held=is_held)
        decided: dict[str, Any] = {
            "call": call.seq,
            "attempt": call.attempt,
            "decision": "value" if decision is MISSING else decision,
        }
        if value is not MISSING:
            known = tasks.get(call.task)
            codec = OPAQUE if known is None else known.result_codec
            decided["value"] = codec.encode(value, f"the decided result of task {call.task!r}")
        text = json.dumps(decided)
        if not await scheduler.post(chosen, DECISION, None, call.decision_id, text):
            messages = await scheduler.journal.messages(chosen)
            there = next((message for message in messages if message.event_id == call.decision_id), None)
            check_is_same(there, text, chosen, call)
        if workflows.get(record.workflow) is not None:  # Else it is for a process that knows it.
            await scheduler.take_over(chosen)

    async def decide_approval(
        self,
        run_id: RunOrId,
        key: str,
        *,
        approved: bool,
        by: str | None = None,
        note: str | None = None,
        value: Any = None,
    ) -> Approval:
        """Decide about an approval that a run or a session asked for, and return the decision that holds.

        It is decided once it is on disk, wherever the run is, and whether or not a process has it. `by` says who
        decided, `note` why; `value` is handed along. The same decision again changes nothing, and answers the first.

        Raises `ApprovalConflictError` where somebody decided otherwise before, or the time is up;
        `ApprovalNotFoundError` for what was never asked for; `RunEndedError`; `RunNotFoundError`; `EncodeError`.
        """
        checked_approval_key(key)
        checked_flag(approved, "approved of decide_approval()")
        for name, text in (("by", by), ("note", note)):
            if text is not None and not isinstance(text, str):
                raise InvalidValueError(f"{name} of decide_approval() is {shown(text)}; it must be a text")
        verdict = Verdict(approved, by, note, value)
        scheduler = await self._ready()
        record = await self._last_of(await self._id_of(run_id))
        check_is_run(record.run_id, record.workflow)
        decision = await decide(scheduler, record, key, verdict)
        if workflows.get(record.workflow) is not None:  # Else it is for a process that knows it.
            await scheduler.take_over(record.run_id)
        return decision

    # --- experiments --------------------------------------------------------------------------------------------------

    @cached_property
    def _laboratory(self) -> "Laboratory":
        from satay.laboratory import Laboratory

        return Laboratory(self._ready, self._id_of, self._clock)

    async def set_outcome(
        self,
        run: RunOrId,
        value: Literal["promoted", "rejected", "inconclusive", "crashed"],
        /,
        *,
        score: float | None = None,
        note: str | None = None,
    ) -> None:
        """Record what became of a run, which need not have ended. The latest outcome holds; all are kept.

        `score` is a finite number, the higher the better, or True or False; without one, the score that was recorded
        before stays. `note` is a text. The journals of runs are not touched. To call several forks `"promoted"` is to
        nominate them: which of them is the one to keep is decided by `promote`.

        Raises `InvalidValueError` for another value, or a score that is none; `RunNotFoundError`; for `"promoted"`,
        `PromotionError` for a run that is no fork or has not completed; `ExperimentConflictError` for an outcome that
        contradicts a promotion. Then nothing is written.
        """
        await self._laboratory.set_outcome(run, value, score, note)

    async def experiment(
        self, name: str | None = None, *, baseline: RunOrId | None = None, hypothesis: str | None = None
    ) -> "Experiment":
        """A named experiment, which is created where there is none; or, for a baseline alone, that run and its forks.

        Raises `InvalidValueError` for a name that cannot be used; `ExperimentConflictError` where the experiment is
        there with another baseline or another hypothesis.
        """
        return await self._laboratory.open(name, baseline, hypothesis)

    async def promote(self, run: RunOrId, *, experiment: "str | Experiment | None" = None) -> None:
        """Decide an experiment for a fork that has completed: it won, and the other members lost.

        The experiment is a named one, or that of the run that the fork was made of, with all forks of that run. The
        fork's outcome becomes `promoted`. Members that have no outcome, an inconclusive one, or were called `promoted`
        by hand, become `rejected`; scores stay. It is written at once and for ever, in the journals of experiments
        alone. Promoting the same run again changes nothing.

        Raises `ExperimentConflictError` where another run was promoted, also by another process at the same moment;
        `PromotionError` for a run that is no fork, has not completed, or is no member; `ExperimentNotFoundError` for a
        name that no experiment has.
        """
        await self._laboratory.promote(run, experiment)

    # --- reading ------------------------------------------------------------------------------------------------------

    def handle(self, run_id: RunOrId) -> RunHandle[Any]:
        """A handle on a run that is there, without driving it.

        Raises `UsageError` for what names no run; whether there is one, what is asked of the handle tells.
        """
        creation = self._begin(self._id_of(run_id)) if isinstance(run_id, RunHandle) else None
        return RunHandle(self, checked_run(run_id), None, creation, drives=False)

    async def result(self, run_id: str, codec: ValueCodec | None, *, drive: bool) -> Any:
        """Wait for a run to end and return its result. With `drive`, drive the run if nobody does.

        Raises as `RunHandle.result`.
        """
        scheduler = await self._ready()
        run_id = await self._id_of(run_id)
        try:
            while True:
                ending = await scheduler.endings.wait(run_id, drive=drive)
                if ending.continued_as is None:
                    break
                run_id = (await scheduler.archive.latest(ending.continued_as)).run_id
            return await self._value_of(run_id, ending, codec)
        except JournalClosedError:  # Whoever waited was about to ask the journal.
            raise closed_meanwhile(run_id) from None


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an app was used where no event loop of asyncio runs; make the call from code that asyncio runs, on the "
            "loop of the app"
        ) from None
