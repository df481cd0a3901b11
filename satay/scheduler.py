"""Drives the runs of one process: makes and evicts drives, runs attempts, wakes what is due, and takes messages.

A drive is stepped from plain callbacks of the event loop only. What needs the journal's answer first is a background
task that ends by scheduling such a callback. A run that only waits stays in memory while there is room; then it is a
row with a wake-up time, and is rebuilt when that comes.
"""

import asyncio
import contextvars
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from satay.approval_inbox import expire
from satay.archive import Archive
from satay.attempts import Attempt
from satay.calls import Arrival, ChildCall, TaskCall
from satay.children import Children
from satay.clock import Chance, Clock
from satay.definitions import Workflow
from satay.drive import Drive
from satay.effects import ForkTerms
from satay.endings import Endings
from satay.errors import (
    JournalConflictError,
    JournalError,
    NotHereError,
)
from satay.gates import Gate
from satay.journal import (
    CANCEL_REQUESTED,
    CHILD_ENDED,
    DECISION,
    TERMINATION_REQUESTED,
    Blob,
    Journal,
    Lease,
    NewRun,
)
from satay.logs import log
from satay.lookout import Lookout
from satay.model import (
    APPROVAL,
    Entry,
    EntryType,
    Message,
    continued_run_id,
)
from satay.origin import Origin, workflow_created
from satay.processes import enter, is_dead, leave
from satay.replay import Divergence, history_of
from satay.revivals import DriveSettings
from satay.stops import Stops, descendants
from satay.takeovers import MAY_PASS, Takeovers
from satay.tenure import Tenure
from satay.threads import DEFAULT_THREADS, ThreadPool
from satay.waiters import Waiters
from satay.wakes import Wakes
from satay.watch import TurnWatch

if TYPE_CHECKING:
    from satay.forks import Forks

STOPPING_SECONDS: Final = 1.0
"""How long attempts that are cancelled at closing may take to end."""


class SchedulerSettings(NamedTuple):
    """How one process drives runs. Times in seconds.

    `lease_seconds`: after this long without a heartbeat other processes may take its runs over. `poll_seconds`: how
    often the journal is asked for messages that other processes sent. `grace_seconds`: how long running attempts may
    take to finish when the app closes. `max_resident`: how many waiting runs stay in memory.
    """

    recover: bool = False
    lease_seconds: float = 15.0
    poll_seconds: float = 0.5
    grace_seconds: float = 5.0
    max_resident: int = 4096
    max_threads: int = DEFAULT_THREADS
    drive: DriveSettings = DriveSettings()


class _RunHold:
    """That a run is driven here and nowhere else."""

    __slots__ = ("_drive", "_journal", "_tenure")

    def __init__(self, tenure: Tenure, journal: Journal, drive: Drive) -> None:
        self._tenure = tenure
        self._journal = journal
        self._drive = drive

    @property
    def is_certain(self) -> bool:
        return self._tenure.is_unbroken_since(self._drive.lapses)

    async def make_certain(self) -> None:
        await self._tenure.renew(only_lapsed=True)
        drive, lapses = self._drive, self._tenure.lapses
        record = await self._journal.record(drive.run_id)
        if record is None or record.epoch != drive.lease.epoch:
            raise JournalConflictError(f"run {drive.run_id!r} was taken over by another process", run_id=drive.run_id)
        drive.lapses = lapses


class Scheduler:
    """Drives runs on the running event loop. Made by an app, which opens and closes it."""

    def __init__(self, journal: Journal, clock: Clock, chance: Chance, settings: SchedulerSettings) -> None:
        self.journal = journal
        self.clock = clock
        self.chance = chance
        self.settings = settings
        self.drive_settings = settings.drive
        self.archive = Archive(journal)
        self.waiters = Waiters()
        self.stops = Stops(self)
        self.endings = Endings(self, settings.poll_seconds)
        self.owner_id = chance.new_id()
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self.tenure = Tenure(journal, clock, self.owner_id, settings.lease_seconds, self._stop_lost)
        self.threads = ThreadPool(settings.max_threads)
        self.turn_watch = TurnWatch(_tell_of_slow_turn)
        self.open_sessions: set[str] = set()
        self._drives: dict[str, Drive] = {}
        self._parked: OrderedDict[str, Drive] = OrderedDict()
        self._looking: set[str] = set()
        self._look_again: set[str] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._attempts: set[asyncio.Task[Any]] = set()
        self.tool_attempts: set[asyncio.Task[Any]] = set()
        self._wakes = Wakes(clock, self._ring)
        self.children = Children(self)
        self.takeovers = Takeovers(self)
        self._gate = Gate(self)
        self._lookout = Lookout(self, recovers=settings.recover, poll_seconds=settings.poll_seconds)
        self.is_closing = False
        self._beat: asyncio.Task[None] | None = None
        self._poll: asyncio.Task[None] | None = None

    @cached_property
    def forks(self) -> "Forks":
        """What makes and plans forks here."""
        from satay.forks import Forks

        return Forks(self)

    @property
    def allow_pickle(self) -> bool:
        """Whether recorded pickles may be read here."""
        return self.drive_settings.allow_pickle

    # --- opening and closing ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Register as an owner, and begin to look for what is due."""
        enter(self.owner_id)
        await self.tenure.renew()
        await self._lookout.open()
        self._beat = self._loop.create_task(self.tenure.keep(), context=self._context.copy())
        self._poll = self._loop.create_task(self._lookout.keep_looking(), context=self._context.copy())

    async def close(self) -> None:
        """Let running attempts finish within the grace time, write what they brought, and give every run back."""
        self.is_closing = True
        self._wakes.close()
        try:
            await self._drain()
        finally:
            leave(self.owner_id)
            for task in (self._beat, self._poll):
                if task is not None:
                    task.cancel()
            self._let_go()

    async def _drain(self) -> None:
        try:
            if self._attempts:
                await asyncio.wait(self._attempts, timeout=self.settings.grace_seconds)
        finally:  # Whoever has no time to wait cancels this, and the runs are given back all the same.
            appends = [append for drive in self._drives.values() if (append := drive.surrender()) is not None]
            await _ended({*self._attempts, *self._background})
            await asyncio.gather(*map(self.journal.append, appends), return_exceptions=True)
            if self._beat is not None:
                await _ended({self._beat})  # A beat after this would bring the owner's row back.
            await self.journal.retire(self.owner_id)

    def _let_go(self) -> None:
        """Drop what is in memory, and tell those who wait that nothing more will come."""
        self.threads.close()
        self.turn_watch.close()
        for drive in self._drives.values():
            drive.suspend()
        self._drives.clear()
        self._parked.clear()
        self.takeovers.close()
        self.waiters.close()

    # --- for tests ----------------------------------------------------------------------------------------------------

    @property
    def is_still(self) -> bool:
        """Whether nothing goes on but attempts: the rest waits for them, for time, or for a message."""
        is_working = self._background or self._looking
        return not is_working and all(drive.is_still for drive in self._drives.values())

    @property
    def attempts(self) -> int:
        """How many attempts run, those of tools of sessions included."""
        return len(self._attempts) + len(self.tool_attempts)

    def working(self) -> "set[asyncio.Task[Any]]":
        """The tasks of attempts and of background work."""
        return {*self._attempts, *self.tool_attempts, *self._background}

    def abandon(self) -> "set[asyncio.Task[Any]]":
        """Stop as a process does that is killed: no body runs on, nothing is given back. Returns the tasks left to end.

        Its runs belong to a dead owner from here on.
        """
        self.is_closing = True
        leave(self.owner_id)
        self._wakes.close()
        ending = {*self.working(), *(task for task in (self._beat, self._poll) if task is not None)}
        for task in ending:
            task.cancel()
        self._let_go()
        return ending

    # --- this process as an owner -------------------------------------------------------------------------------------

    async def _stop_lost(self) -> None:
        """Stop drives whose runs others took over while the lease had lapsed.

        One that only waits writes nothing, and would never notice by itself. Neither would those who wait for a run
        that is in no memory.
        """
        self.waiters.tell_all()
        for drive in list(self._drives.values()):
            for child_id in drive.child_ids():
                self.stops.note_away(child_id)
            record = await self.journal.record(drive.run_id)
            if record is not None and record.epoch != drive.lease.epoch:
                drive.stop(
                    JournalConflictError(f"run {drive.run_id!r} was taken over while it waited", run_id=drive.run_id)
                )

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def create(
        self,
        definition: Workflow[..., Any],
        run_id: str,
        input_text: str,
        *,
        start_key: str | None = None,
        parent_id: str | None = None,
        terms: ForkTerms | None = None,
    ) -> None:
        """Create a run and drive it. Raises `RunExistsError`."""
        now = self.clock.now()
        origin = Origin(run_id, self.chance.new_seed(), now, input_text, parent_id, terms)
        entry, blobs = workflow_created(definition, origin, now)
        lease = await self.journal.create(self._new_run(definition, origin, now, start_key), [entry], blobs)
        self.adopt(Drive(self, lease, definition, origin, history_of([entry]), {}), resumed=False)

    def adopt(self, drive: Drive, resumed: bool) -> None:
        """Begin a drive whose lease this scheduler holds."""
        self._drives[drive.run_id] = drive
        drive.lapses = self.tenure.lapses
        self.waiters.forget_failure(drive.run_id)
        self.step(self._begin, drive, resumed)

    def adopt_rehearsed(self, drive: Drive, lease: Lease, origin: Origin, last: Entry) -> None:
        """Go on with the drive of a fork that was written after it had replayed what it inherits."""
        self._drives[drive.run_id] = drive
        drive.lapses = self.tenure.lapses
        self.waiters.forget_failure(drive.run_id)
        self.step(self._go_on, drive, lease, origin, last)

    def _go_on(self, drive: Drive, lease: Lease, origin: Origin, last: Entry) -> None:
        if not (self.is_closing or drive.is_suspended):
            drive.go_on(lease, origin, last)

    def _begin(self, drive: Drive, resumed: bool) -> None:
        if self.is_closing or drive.is_suspended:
            return
        drive.begin(resumed)
        self._hand_over(drive, drive.requests)

    def drive_of(self, run_id: str) -> Drive | None:
        """The drive of a run that is driven here."""
        return self._drives.get(run_id)

    async def take_over(self, run_id: str) -> Drive | None:
        """Drive a run that nobody drives. The drive, also where it is driven here already; None if it is held or ended.

        Raises `UnknownWorkflowError` and what reading the journal raises.
        """
        if run_id not in self._drives:
            record = await self.journal.record(run_id)
            if record is not None and not record.status.is_terminal:
                return await asyncio.shield(self.takeovers.take_over(record))
        return self._drives.get(run_id)

    async def is_gone(self, owner_id: str | None) -> bool:
        """Whether an owner drives no more, or may have its runs taken; one that is known to be dead is retired."""
        for owner in await self.journal.owners():
            if owner.id == owner_id:
                if not is_dead(owner):
                    return owner.expires_at < self.clock.now()
                await self.journal.retire(owner.id)
        return True

    async def retry(self, run_id: str) -> None:
        """Take a run over, also one that stopped here with an error before, or waits for one that did."""
        self.waiters.forget_failure(run_id)
        await self.take_over(run_id)
        for record in descendants(run_id, await self.journal.waited_for(run_id)):
            if self.waiters.has_failed(record.run_id):
                self.waiters.forget_failure(record.run_id)
                await self.take_over(record.run_id)

    async def take_over_quietly(self, run_id: str) -> None:
        """Take a run over if that can be done here; if not, that is no error."""
        try:
            record = await self.archive.record(run_id)
        except MAY_PASS:
            self.try_again(run_id)
            raise
        await self._lookout.take_over_all([record])

    def child_is_away(self, child_id: str) -> None:
        """Another process drives a child of a run that is driven here, or one that it shares."""
        self.stops.note_away(child_id)

    def child_has_ended(self, child_id: str) -> None:
        """A child has ended, wherever that was."""
        self.stops.forget(child_id)

    def try_again(self, run_id: str) -> None:
        """Take a run over as soon as the journal can be used again."""
        self._lookout.try_again(run_id)

    async def wake_if_ours(self, run_id: str) -> None:
        """A message to a run was posted; look for it where this process drives the run."""
        try:
            record = await self.journal.record(run_id)
        except MAY_PASS:
            self._lookout.look_again()
            raise
        if record is not None and not record.status.is_terminal:
            self._lookout.wake_for_message(record)

    async def cancel(self, run_id: str) -> None:
        """Ask for a run to be cancelled. Raises `RunNotFoundError`."""
        await self.post(run_id, CANCEL_REQUESTED, None, None, "null")

    async def terminate(self, run_id: str) -> None:
        """Ask for a run to end at once. Raises `RunNotFoundError`."""
        await self.post(run_id, TERMINATION_REQUESTED, None, None, "null")

    async def post(self, run_id: str | None, type: str, key: str | None, event_id: str | None, payload: str) -> bool:
        """Put a message in the inbox, and wake the run that it can be delivered to, if this process drives it."""
        posted = await self.journal.post(run_id, type, key, event_id, payload, self.clock.now())
        for receiver in (posted.receiver, posted.driven):
            if receiver is not None:
                self._lookout.wake_for_message(receiver)
        return posted.id is not None

    # --- what drives ask for ------------------------------------------------------------------------------------------

    def start_attempt(self, drive: Drive, call: TaskCall) -> None:
        if self.is_closing or not self._gate.lets_run(drive, call):
            return
        attempt = Attempt(drive, call, _RunHold(self.tenure, self.journal, drive))
        on_end = partial(self._attempt_ended, drive, attempt)
        task = self._loop.create_task(self._make(drive, attempt, on_end), name=call.name, context=self._context.copy())
        call.running, call.used = task, attempt.usage_facts
        self._attempts.add(task)
        task.add_done_callback(on_end, context=self._context)

    async def _make(self, drive: Drive, attempt: Attempt, on_end: Callable[[Any], None]) -> tuple[str, Any]:
        """Make an attempt, and deliver its result from here: a callback of its task comes one turn of the loop later.

        No task of the host may be current while a body runs, so for that moment this one is not
        (https://docs.python.org/3/library/asyncio-extending.html).
        """
        outcome = await attempt.run(self.clock, self.threads, self.drive_settings.allow_pickle)
        task = attempt.call.running
        if task is None:  # A factory of the host's started it at once, and it is not known yet: the callback delivers.
            return outcome
        task.remove_done_callback(on_end)
        asyncio.tasks._leave_task(self._loop, task)
        try:
            self._context.run(self._attempt_succeeded, drive, attempt, task, outcome)
        finally:
            asyncio.tasks._enter_task(self._loop, task)
        return outcome

    def _attempt_succeeded(
        self, drive: Drive, attempt: Attempt, task: "asyncio.Task[tuple[str, Any]]", outcome: tuple[str, Any]
    ) -> None:
        call = attempt.call
        self._attempts.discard(task)
        call.running = call.used = None
        if not drive.is_suspended:
            facts = f'"call":{call.seq}{attempt.usage_facts()}'
            drive.arrive(Arrival(EntryType.TASK_COMPLETED, call, facts, outcome[0], outcome[1], True))

    def _attempt_ended(self, drive: Drive, attempt: Attempt, task: "asyncio.Task[tuple[str, Any]]") -> None:
        call = attempt.call
        if task.cancelled():
            self._attempts.discard(task)
            call.running = call.used = None
            is_outstanding = drive.calls.get(call.seq) is call and not drive.is_suspended
            if is_outstanding and not self._is_loop_ending:  # Nobody but its own code has cancelled it.
                drive.attempt_failed(call, asyncio.CancelledError("the task cancelled itself"), attempt.usage_facts())
            return
        error = task.exception()
        if error is None:
            self._attempt_succeeded(drive, attempt, task, task.result())
            return
        self._attempts.discard(task)
        call.running = call.used = None
        if drive.is_suspended or isinstance(error, KeyboardInterrupt | SystemExit):
            return
        if isinstance(error, NotHereError) or (isinstance(error, JournalError) and not attempt.has_begun):
            drive.stop(error)
        else:
            drive.attempt_failed(call, error, attempt.usage_facts())

    @property
    def _is_loop_ending(self) -> bool:
        """Whether the app closes, or all tasks of the loop are being cancelled, as `asyncio.run` does at its end."""
        return self.is_closing or self._beat is None or self._beat.done() or bool(self._beat.cancelling())

    def stop_attempt(self, drive: Drive, call: TaskCall) -> None:
        if call.running is not None:
            call.running.cancel()

    def start_child(self, drive: Drive, call: ChildCall) -> None:
        if not self.is_closing:
            self.children.start(drive, call)

    def stop_child(self, drive: Drive, call: ChildCall) -> None:
        self.spawn(self._stop_child(drive.run_id, call.run_id))

    async def _stop_child(self, parent_id: str, child_id: str) -> None:
        while not self.is_closing:  # Then whoever drives the parent next asks the child.
            try:
                return await self.children.stop(parent_id, child_id)
            except MAY_PASS as error:
                log().warning("child.not_stopped", run_id=child_id, error=str(error))
                await self._let_pass()

    def look_for_messages(self, drive: Drive) -> None:
        if drive.is_suspended:
            return
        if drive.run_id in self._looking:
            # What is asked for now may have been committed after the look that is under way.
            self._look_again.add(drive.run_id)
            return
        self._looking.add(drive.run_id)
        drive.pins += 1
        self.spawn(self._look_for_messages(drive))

    def wake_at(self, drive: Drive, due: int) -> None:
        self._wakes.wake(drive.run_id, due)

    def turn_committed(self, drive: Drive) -> None:
        self.waiters.tell_of_entry(drive.run_id)
        if drive.active:
            self._parked.pop(drive.run_id, None)
            return
        if drive.undecided:
            self.waiters.tell(drive.run_id)
            self.stops.tell_above(drive)
        self.stops.tell_of_rest(drive)
        self._park(drive)

    def _park(self, drive: Drive) -> None:
        if not drive.is_quiet:
            self._parked.pop(drive.run_id, None)
            return
        self._parked[drive.run_id] = drive
        self._parked.move_to_end(drive.run_id)
        while len(self._parked) > self.settings.max_resident:
            _, oldest = self._parked.popitem(last=False)
            if oldest.is_quiet:
                self._evict(oldest)

    def _evict(self, drive: Drive) -> None:
        due = drive.earliest()
        self.stops.evicted(drive)
        drive.suspend()
        self._drives.pop(drive.run_id, None)
        self._wakes.forget(drive.run_id)
        if due is not None:
            self._wakes.sweep(due)

    def drive_ended(self, drive: Drive) -> None:
        self._forget(drive)
        self.waiters.tell_of_entry(drive.run_id)
        assert drive.ending is not None
        self.waiters.tell(drive.run_id, drive.ending)
        if drive.ending.continued_as is not None:
            self.spawn(self.take_over_quietly(drive.ending.continued_as))
        self.children.wake_sharers(drive.run_id)
        if drive.parent_id is not None:
            parent = self._drives.get(drive.parent_id)
            if parent is None:
                self.spawn(self.wake_if_ours(drive.parent_id))
            elif not parent.is_live or parent.child_call(drive.run_id) is not None:
                self.look_for_messages(parent)  # What a task of the parent has started ends without a message.

    def drive_stopped(self, drive: Drive, error: BaseException) -> None:
        self._forget(drive)
        for call in drive.running():
            if call.running is not None:
                call.running.cancel()
        if isinstance(error, JournalConflictError):
            log().info("run.lost", run_id=drive.run_id, error=str(error))
            self.spawn(self._try_again(drive))
            return
        log().error("run.stopped", run_id=drive.run_id, workflow=drive.workflow, error=str(error))
        self.spawn(self._give_back(drive, error))

    def schedule_differed(self, drive: Drive, divergence: Divergence) -> None:
        if self.drive_settings.nondeterminism == "warn":
            log().warning(
                "run.diverged",
                run_id=drive.run_id,
                position=divergence.position,
                issued=None if divergence.issued is None else str(divergence.issued),
            )

    def successor(self, drive: Drive, input_text: str) -> tuple[NewRun, Sequence[Entry], Sequence[Blob]]:
        now = self.clock.now()
        run_id = continued_run_id(drive.run_id)
        terms = None if drive.terms is None else drive.terms.for_successor()
        origin = Origin(run_id, self.chance.new_seed(), now, input_text, drive.parent_id, terms)
        entry, blobs = workflow_created(drive.definition, origin, now)
        return self._new_run(drive.definition, origin, now, None), [entry], blobs

    def _new_run(self, definition: Workflow[..., Any], origin: Origin, now: int, start_key: str | None) -> NewRun:
        return NewRun(
            run_id=origin.root_run_id,
            workflow=definition.name,
            created_at=now,
            owner=self.owner_id,
            code_version=definition.code_version,
            parent_id=origin.parent_id,
            start_key=start_key,
        )

    # --- background ---------------------------------------------------------------------------------------------------

    def step(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back when no task of the host is current, so that a body may be stepped."""
        self._loop.call_soon(callback, *args, context=self._context)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background."""
        task = self._loop.create_task(work, context=self._context.copy())
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log().error("background.failed", error=repr(task.exception()))

    def _forget(self, drive: Drive) -> None:
        if self._drives.get(drive.run_id) is drive:
            del self._drives[drive.run_id]
        self._parked.pop(drive.run_id, None)
        self._wakes.forget(drive.run_id)
        self.stops.forget(drive.run_id)

    async def _give_back(self, drive: Drive, error: BaseException) -> None:
        """Tell of a drive's error once the run is free again, so that whoever hears of it can act on the run."""
        try:
            with suppress(JournalError):
                await self.journal.release(drive.lease, drive.before)
        finally:
            self.waiters.note_failure(drive.run_id, error)
            self.stops.tell_above(drive)

    async def _try_again(self, drive: Drive) -> None:
        """A drive lost its run to another writer; if nobody has it now, go on with what the journal holds."""
        run_id = drive.run_id
        try:
            await self.take_over(run_id)
        except MAY_PASS:
            self.try_again(run_id)
            raise
        finally:
            self.waiters.tell(run_id)
            self.stops.tell_above(drive)

    async def _look_for_messages(self, drive: Drive) -> None:
        drive.forget_landed_messages()
        messages: Sequence[Message] = ()
        try:
            messages = await self.journal.messages(drive.run_id)
        except JournalError as error:
            log().warning("messages.not_read", run_id=drive.run_id, error=str(error))
            self._lookout.look_again()
            await self._let_pass()
        finally:
            self.step(self._looked, drive, messages)

    def _looked(self, drive: Drive, messages: Sequence[Message]) -> None:
        self._looking.discard(drive.run_id)
        self._hand_over(drive, messages)
        if drive.run_id in self._look_again:
            self._look_again.discard(drive.run_id)
            self.look_for_messages(drive)
        self.unpin(drive)

    def unpin(self, drive: Drive) -> None:
        """Something is over for which the drive had to stay in memory."""
        drive.pins -= 1
        if self._drives.get(drive.run_id) is drive:
            self._park(drive)

    def _hand_over(self, drive: Drive, messages: Sequence[Message]) -> None:
        if messages and not drive.is_live:
            drive.look_once_live()
        if drive.is_suspended or drive.is_ended or not drive.is_live:
            return
        for message in messages:
            if self.is_closing and message.type not in (CANCEL_REQUESTED, TERMINATION_REQUESTED):
                continue  # The rest is for whoever drives the run next, but an attempt that drains can be stopped.
            if drive.take_in_hand(message.id) and not self._hand_over_one(drive, message):
                drive.put_back(message.id)

    def _hand_over_one(self, drive: Drive, message: Message) -> bool:
        """Give a message to the drive; false if nothing there can use it now."""
        if message.type == TERMINATION_REQUESTED:
            drive.request_termination(message.id)
        elif message.type == CANCEL_REQUESTED:
            drive.request_cancel(message.id)
        elif message.type == CHILD_ENDED:
            call = drive.child_call(message.key)
            if call is None:
                return drive.drop_stale_message(message.id)
            self.children.hear(drive, call, message.id)
        elif message.type == DECISION:
            drive.decide(json.loads(message.payload), message.id)
        elif message.type == APPROVAL:
            return drive.receive_decision(message)
        else:
            return drive.receive(message)
        return True

    # --- waking -------------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        now = self.clock.now()
        for run_id in self._wakes.due(now):
            drive = self._drives.get(run_id)
            if drive is not None and not drive.is_suspended:
                self._fire(drive)
        if self._wakes.is_sweep_due(now):
            self.spawn(self._lookout.wake_sleepers())

    def _fire(self, drive: Drive) -> None:
        """Deliver what is due. A message that is there wins over a timeout, so a drive that waits looks first.

        That the time of an approval is up is a message too, which comes too late where a decision is there.
        """
        if drive.open_waits:
            # A wait that is not on disk yet finds no message. A drive that is not still asks to be woken again.
            if drive.is_still:
                drive.pins += 2  # One is for the look at the inbox.
                self.spawn(self._look_then_fire(drive))
        else:
            drive.fire_due(self.clock.now())

    async def _look_then_fire(self, drive: Drive) -> None:
        try:
            for key in drive.expired_approvals(self.clock.now()):
                await expire(self.journal, self.clock, drive.run_id, key)
        except JournalError as error:
            log().warning("approvals.not_expired", run_id=drive.run_id, error=str(error))
            await self._let_pass()
        finally:
            try:
                await self._look_for_messages(drive)
            finally:
                self.step(self._fire_now, drive)

    async def _let_pass(self) -> None:
        """The journal cannot be used. A run whose time is up would ask it again without end."""
        await asyncio.sleep(self.settings.poll_seconds)

    def _fire_now(self, drive: Drive) -> None:
        if not drive.is_suspended and not drive.is_ended:
            drive.fire_due(self.clock.now())
        self.unpin(drive)

    def sleep_until(self, due: int) -> None:
        """Look at this moment for what is to be woken and is not in memory: a session was paused until then."""
        self._wakes.sweep(due)


def _tell_of_slow_turn(run_id: str, seconds: float, line: str) -> None:
    log().warning("turn.blocks", run_id=run_id, seconds=round(seconds, 1), line=line)


async def _ended(tasks: "set[asyncio.Task[Any]]") -> None:
    """Cancel tasks, and wait for them to end, but not for ever: a task's body may refuse."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOPPING_SECONDS)
