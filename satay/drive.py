"""One run being driven: its body on a loop, its outstanding calls, and the turns that go into its journal.

A turn is: an outcome reaches the body, the body runs until it is idle, and the outcome with every call that was issued
becomes one append. Replay and live go through the same turns; a replayed turn reads its outcome from the history and
compares the calls instead of recording them. (A turn that nobody could tell from none is left out then: ADR 0036.)
Outcomes are delivered without waiting for the disk; acting on a call (starting an attempt, a child, a wait) waits for
the commit of the turn that recorded it. Only pure tasks need not. A message that another run may take is on disk first
where the body could not be thrown away without loss.

Nothing here awaits: the host calls in from plain callbacks of its event loop, so that no task of the host is current
while the body runs.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from satay.approval_records import EXPIRED, decision_id
from satay.archive import Ending
from satay.calls import Arrival, Call, ChildCall, EventCall, TaskCall, TimerCall
from satay.clock import MICROSECONDS, Chance, Clock
from satay.definitions import Workflow
from satay.effects import Effect
from satay.errors import MessageTakenError, SatayError, TaskCrashedError, WorkflowStuckError
from satay.failures import encode_failure
from satay.journal import CHILD_ENDED, Append, Blob, Commit, Journal, Lease, NewRun, Wait
from satay.model import APPROVAL, Entry, EntryType, Message, RunStatus
from satay.origin import Origin
from satay.replay import Divergence, History, of_run
from satay.revivals import CALLBACKS_PER_SLICE, FINAL, TURNS_PER_SLICE, DriveSettings, Revival, stops_on_error
from satay.texts import json_quote
from satay.watch import TurnWatch
from satay.whereabouts import find_waiting_line

ENTRIES_TO_GATHER: Final = 256
"""So many entries about pure calls are gathered before they are written, at the most."""

GATHERING_SECONDS: Final = 0.005
"""So long pure calls and their results, for which nobody waits, are gathered before they are written."""

MAX_CLEANUP_ROUNDS: Final = 10
"""How often branches that are left over when a body returns are cancelled before they are dropped."""


class ContinueAsNew(BaseException):
    """Leaves a body whose run goes on as a new run with other input."""

    def __init__(self, input_args: tuple[Any, ...]) -> None:
        super().__init__("the run continues as a new one")
        self.input_args = input_args


class DriveHost(Protocol):
    """What a drive needs of the scheduler that steps it. Every method returns at once."""

    clock: Clock
    chance: Chance
    journal: Journal
    drive_settings: DriveSettings
    turn_watch: TurnWatch

    def start_attempt(self, drive: "Drive", call: TaskCall) -> None: ...
    def stop_attempt(self, drive: "Drive", call: TaskCall) -> None: ...
    def start_child(self, drive: "Drive", call: ChildCall) -> None: ...
    def stop_child(self, drive: "Drive", call: ChildCall) -> None: ...
    def look_for_messages(self, drive: "Drive") -> None: ...
    def wake_at(self, drive: "Drive", due: int) -> None: ...
    def turn_committed(self, drive: "Drive") -> None: ...
    def drive_ended(self, drive: "Drive") -> None: ...
    def drive_stopped(self, drive: "Drive", error: BaseException) -> None: ...
    def schedule_differed(self, drive: "Drive", divergence: Divergence) -> None: ...
    def successor(self, drive: "Drive", input_text: str) -> tuple[NewRun, Sequence[Entry], Sequence[Blob]]: ...


class Drive(Revival):
    """Steps one run. Made with the whole journal of the run; `begin` replays it and then goes live."""

    __slots__ = (
        "_arrivals",
        "_host",
        "_in_flight",
        "_in_hand",
        "_is_urgent",
        "_landed",
        "_reserved",
        "_row",
        "_sending_soon",
        "ending",
        "lapses",
        "parent_id",
        "pins",
        "requests",
    )

    def __init__(
        self,
        host: DriveHost,
        lease: Lease,
        definition: Workflow[..., Any],
        origin: Origin,
        history: History,
        blobs: Mapping[str, str],
    ) -> None:
        super().__init__(host.clock, host.turn_watch, host.drive_settings, lease, definition, origin, history, blobs)
        self._host = host
        self._in_flight: _Consequences | None = None
        self._is_urgent = True
        self._sending_soon: asyncio.TimerHandle | None = None
        self._arrivals: deque[Arrival] | None = None
        self._reserved: Arrival | None = None
        self._in_hand: set[int] | None = None
        self._landed: Sequence[int] = ()
        self._row: tuple[RunStatus, int | None] = (RunStatus.RUNNING, None)
        self.pins = 0
        self.lapses = 0
        self.parent_id = origin.parent_id
        self.ending: Ending | None = None
        self.requests: Sequence[Message] = ()

    @property
    def is_ended(self) -> bool:
        """Whether the body is done; its end may not be on disk yet."""
        return self.ending is not None

    # --- after a rehearsal --------------------------------------------------------------------------------------------

    @stops_on_error
    def go_on(self, lease: Lease, origin: Origin, last: Entry) -> None:
        """Go on after a rehearsal: the fork is written, under this lease, and `last` is its last entry."""
        self.rehearsal = None
        self.lease = lease
        self._origin = origin
        self.parent_id = origin.parent_id
        self._recorder.follow(lease, last.digest)
        self._go_live()

    # --- live turns ---------------------------------------------------------------------------------------------------

    @stops_on_error
    def arrive(self, arrival: Arrival) -> None:
        """An outcome is there. It begins a turn of its own, in the order of arrival."""
        if self._is_stepping or self._arrivals or self._reserved is not None:
            if self._arrivals is None:
                self._arrivals = deque()
            self._arrivals.append(arrival)
        elif not self.is_suspended:
            self._accept(arrival)
            self._pump()

    @stops_on_error
    def request_cancel(self, taken: int) -> None:
        """Someone asked for the run to be cancelled. Asking again changes nothing."""
        if self.cancel_requested:
            self._drop_message(taken)
            return
        self.arrive(Arrival(EntryType.WORKFLOW_CANCEL_REQUESTED, None, "", taken=taken))

    @stops_on_error
    def request_termination(self, taken: int) -> None:
        """Someone asked for the run to end at once: it is cancelled, and its cleanup is not waited for."""
        self.arrive(Arrival(EntryType.WORKFLOW_CANCEL_REQUESTED, None, FINAL, taken=taken))

    @stops_on_error
    def fire_due(self, now: int) -> None:
        """Deliver what is due: timers, waits that time out, attempts whose backoff is over."""
        self._take_due(now)
        if not (self._is_stepping or self.is_suspended):
            self._commit(is_urgent=False)

    def _take_due(self, now: int) -> bool:
        """Whether the time of an approval is up of whose end a message is to tell."""
        undecided: list[EventCall] = []
        while not self.is_suspended and (seq := self._dues.pop_due(now)) is not None:
            call = self.calls.get(seq)
            if isinstance(call, TimerCall):
                self.arrive(Arrival(EntryType.TIMER_FIRED, call, f'"call":{seq}'))
            elif isinstance(call, EventCall) and call.name == APPROVAL:
                if not call.is_answered:  # Whoever has not heard of its end yet has to be told first.
                    undecided.append(call)
            elif isinstance(call, EventCall):
                self.arrive(Arrival(EntryType.EVENT_WAIT_TIMED_OUT, call, f'"call":{seq}'))
            elif isinstance(call, TaskCall):
                call.due = None
                self._next_attempt(call, crashed=False)
        for call in undecided:
            self._watch(call)
        return bool(undecided)

    @stops_on_error
    def attempt_failed(self, call: TaskCall, error: BaseException, usage: str) -> None:
        """An attempt of a call failed: record it, and try again later or deliver the failure."""
        if self.calls.get(call.seq) is not call:
            return
        call.failures += 1
        policy = call.task.policy
        text = encode_failure(error)
        if not policy.allows(error, call.failures):
            self.arrive(Arrival(EntryType.TASK_FAILED, call, f'"call":{call.seq}{usage}', text))
            return
        ceiling = policy.backoff.ceiling(call.failures)
        delay = self._host.chance.uniform(0.0, ceiling) if policy.backoff.jitter else ceiling
        call.due = self._clock.now() + round(delay * MICROSECONDS)
        self._recorder.record(
            EntryType.TASK_ATTEMPT_FAILED,
            f'"call":{call.seq},"attempt":{call.attempt},"retry_at":{call.due}{usage}',
            text,
        )
        self._rest(call)
        self._watch(call)
        self._commit()

    @stops_on_error
    def decide(self, decided: dict[str, Any], taken: int) -> None:
        """Someone decided about an external call: run it again, fail it, or take a value as its result."""
        call = self.calls.get(decided["call"])
        if not isinstance(call, TaskCall) or not call.needs_decision or decided["attempt"] != call.attempt:
            self._drop_message(taken)  # It is about an attempt that was decided about.
            return
        decision, text = decided["decision"], decided.get("value")
        self._rest(call)
        self._recorder.record(EntryType.DECISION_MADE, f'"call":{call.seq},"decision":{json_quote(decision)}', text)
        self._recorder.take_message(taken)
        if decision == "rerun":
            self._next_attempt(call, crashed=False)
            self._commit()
        elif decision == "fail":
            failure = encode_failure(TaskCrashedError(f"it was decided that the external call of {call.name!r} failed"))
            self.arrive(Arrival(EntryType.TASK_FAILED, call, f'"call":{call.seq}', failure))
        else:
            self.arrive(Arrival(EntryType.TASK_COMPLETED, call, f'"call":{call.seq}', text))

    def receive(self, message: Message) -> bool:
        """A message from outside: it answers the first wait that matches. False if none does."""
        call = self.event_call(message.type, message.key)
        if call is None:
            return False
        call.is_answered = True
        event_id = "" if message.event_id is None else f',"event_id":{json_quote(message.event_id)}'
        facts = f'"call":{call.seq},"message":{message.id}{event_id}'
        arrival = Arrival(EntryType.EXTERNAL_EVENT_RECEIVED, call, facts, message.payload, taken=message.id)
        self.arrive(arrival if message.run_id is not None else arrival._replace(is_contested=True))
        return True

    def receive_decision(self, message: Message) -> bool:
        """The message that answers a request for an approval: a decision, or the end of its time."""
        call = self.event_call(APPROVAL, message.key)
        if call is None or message.event_id != decision_id(self.run_id, call.key or ""):
            return self.drop_stale_message(message.id)
        if message.payload != EXPIRED:
            return self.receive(message)
        call.is_answered = True
        facts = f'"call":{call.seq},"message":{message.id}'
        self.arrive(Arrival(EntryType.EVENT_WAIT_TIMED_OUT, call, facts, taken=message.id))
        return True

    def look_once_live(self) -> None:
        """Messages came that cannot be delivered before the body has caught up with the history: look for them then."""
        self._wants_messages = True

    def take_in_hand(self, message_id: int) -> bool:
        """Note that a message is being delivered; false if it is already."""
        if self._in_hand is None:
            self._in_hand = set()
        is_new = message_id not in self._in_hand
        self._in_hand.add(message_id)
        return is_new

    def put_back(self, message_id: int) -> None:
        """A message could not be delivered after all."""
        if self._in_hand is not None:
            self._in_hand.discard(message_id)

    def forget_landed_messages(self) -> None:
        """Messages whose delivery is on disk are in the inbox no more, so a look at it will not bring them again."""
        if self._in_hand is not None:
            self._in_hand.difference_update(self._landed)
        self._landed = ()

    def drop_stale_message(self, message_id: int) -> bool:
        """Drop a message that no outstanding call waits for. False if one may still be issued that does."""
        if self._replay is not None:
            return False
        self._drop_message(message_id)
        return True

    def _drop_message(self, message_id: int) -> None:
        if not self.is_ended:  # Nothing extends the journal of a run that has ended.
            self._recorder.take_message(message_id)
            self._commit()

    @stops_on_error
    def follow_child(self, call: ChildCall, ended_id: str, run_id: str, taken: int | None) -> None:
        """The child `ended_id` went on as another run: wait for that one."""
        if self.is_ended:
            return
        if taken is not None:
            self._recorder.take_message(taken)
        if call.run_id == ended_id and self.calls.get(call.seq) is call:
            self._answer_with(call, run_id)
            self._recorder.close_wait(call.seq)
            self._recorder.open_wait(Wait(call.seq, CHILD_ENDED, run_id))
            self._start(call)
        self._commit()

    @stops_on_error
    def child_is_there(self, call: ChildCall, run_id: str) -> None:
        """The child of a call was created, or found. Until then a run is not one that only waits: it has to act."""
        if call.run_id == run_id:  # Else it is yet to be known that the run which goes on in its place is there.
            self._rest(call)
        if not (self._is_stepping or self.is_suspended):
            self._commit(is_urgent=False)

    def _pump(self) -> None:
        """Give the body every outcome that has arrived, a turn each."""
        turns = 0
        while self._arrivals and self._reserved is None and not self._is_stepping and not self.is_suspended:
            if turns == TURNS_PER_SLICE:
                asyncio.get_running_loop().call_soon(self._continue_pump)
                return
            turns += 1
            self._accept(self._arrivals.popleft())

    def _accept(self, arrival: Arrival) -> None:
        """Deliver an outcome, unless the body has ended or given up on the call."""
        call = arrival.call
        if self.ending is None and (call is None or self.calls.get(call.seq) is call):
            if arrival.is_contested and (self.active or not self._recorder.is_empty):
                self._reserved = arrival
                self._commit()
            else:
                self._deliver(arrival)
        elif arrival.taken is not None and self.ending is None:
            self.put_back(arrival.taken)
            self._host.look_for_messages(self)

    @stops_on_error
    def _continue_pump(self) -> None:
        self._pump()

    def _deliver(self, arrival: Arrival) -> None:
        self._hand_to_body(arrival, self._record_arrival(arrival).at)

    def _record_arrival(self, arrival: Arrival) -> Entry:
        entry = self._recorder.record(arrival.type, arrival.facts, arrival.text)
        if arrival.taken is not None:
            self._recorder.take_message(arrival.taken)
        if arrival.call is not None:
            self._close_wait(arrival.call)
        return entry

    def _hand_to_body(self, arrival: Arrival, at: int) -> None:
        self.loop.advance_to(at)
        self._is_stepping = True
        call = arrival.call
        self._is_urgent |= not (isinstance(call, TaskCall) and call.task.effect is Effect.PURE)
        if call is None:
            self._request_cancel(is_final=arrival.facts == FINAL)
        else:
            del self.calls[call.seq]
            self._settle(call)
            self._resolve(call, arrival.type, arrival.text, arrival)
        self._run_turn()

    def _run_turn(self) -> None:
        """Run the body until it is idle and end the turn; or for a slice, and go on later."""
        if not self._turn_is_over():
            asyncio.get_running_loop().call_soon(self._continue_turn)
            return
        self._end_turn()
        self._is_stepping = False

    @stops_on_error
    def _continue_turn(self) -> None:
        if not self.is_suspended:
            self._run_turn()
            self._pump()

    # --- the end of a turn --------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        if self.is_ended:
            pass
        elif self._is_body_done():
            self._end()
        elif self._is_overdue:
            self._finish(RunStatus.CANCELLED, None)
        elif not self.calls and not self._arrivals:
            line = find_waiting_line(self._root) if self._root is not None else None
            self._fail_stuck(
                f"the body of workflow {self.workflow!r} waits at {line or 'an unknown place'} for something that no "
                "task, timer, event or child that is outstanding can bring about"
            )
        self._commit(is_urgent=False)

    def _fail_stuck(self, message: str) -> None:
        self._finish(RunStatus.FAILED, encode_failure(WorkflowStuckError(message)))

    def _end(self) -> None:
        """The body is done: cancel what it left running, and record how it ended."""
        root = self._root
        assert root is not None
        self._is_ending = True
        self._cancel_leftovers()
        error: BaseException | None
        if root.cancelled():
            error = asyncio.CancelledError("the body was cancelled by its own code")
        else:
            error = root.exception()
        if self.cancel_requested:
            self._finish(RunStatus.CANCELLED, None)
        elif (request := _request_to_continue(error)) is not None:
            self._continue_as_new(request)
        elif error is not None:
            self._finish(RunStatus.FAILED, encode_failure(error))
        else:
            self._complete(root.result())

    def _complete(self, result: Any) -> None:
        try:
            text = self.definition.result_codec.encode(result, f"the result of workflow {self.workflow!r}")
        except SatayError as refused:
            self._finish(RunStatus.FAILED, encode_failure(refused))
        else:
            self._finish(RunStatus.COMPLETED, text)

    def _continue_as_new(self, request: ContinueAsNew) -> None:
        if self.requests:  # They were there before the body began, and a new run would take them over, and so on.
            for message in self.requests:
                self._recorder.take_message(message.id)
            return self._finish(RunStatus.CANCELLED, None)
        where = f"the input of workflow {self.workflow!r}"
        try:
            text = self.definition.input_codec.encode(request.input_args, {}, where)
        except SatayError as refused:
            return self._finish(RunStatus.FAILED, encode_failure(refused))
        run, entries, blobs = self._host.successor(self, text)
        self._recorder.continue_as(run, entries, blobs)
        return self._finish(RunStatus.COMPLETED, None, run.run_id)

    def _cancel_leftovers(self) -> None:
        for _ in range(MAX_CLEANUP_ROUNDS):
            left = [task for task in self.loop.tasks() if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_turn(CALLBACKS_PER_SLICE)
        for call in list(self.calls.values()):
            self.cancel_call(call)

    def _finish(self, status: RunStatus, text: str | None, continued_as: str | None = None) -> None:
        """Record the end of the run. What is outstanding is given up."""
        facts = "" if continued_as is None else f'"continued_as":{json_quote(continued_as)}'
        self._recorder.record(_ENDS[status], facts, text)
        self.ending = Ending(status, text, continued_as)
        self._row = (status, None)
        self._stops += self.calls.values()
        self.calls.clear()

    def _commit(self, *, is_urgent: bool = True) -> None:
        """Send what was recorded to the journal, and act on it once it is there.

        At most one append of a run is on its way. Turns that end meanwhile are gathered, and follow as one.
        """
        self._is_urgent |= is_urgent
        if self._in_flight is None and self._reserved is not None and self._is_all_sent():
            self._send_reserved(self._reserved)
        elif self._in_flight is None and not self._is_nothing_to_commit():
            if self._can_wait():
                self._send_soon()
            else:
                self._send()
        if not self.is_ended:
            self._ask_to_be_woken()

    def _can_wait(self) -> bool:
        """Whether all that is to be written are pure calls and their results, for which nobody waits."""
        if self._is_urgent or self._starts or self._stops or self._wants_messages or self.is_ended:
            return False
        return 0 < self._recorder.pending < ENTRIES_TO_GATHER and self._status() == self._row

    def _send_soon(self) -> None:
        if self._sending_soon is None:
            loop = asyncio.get_running_loop()
            self._sending_soon = loop.call_later(GATHERING_SECONDS, self._send_now)

    @stops_on_error
    def _send_now(self) -> None:
        self._sending_soon = None
        if self._in_flight is None and not self.is_suspended and not self._is_nothing_to_commit():
            self._send()

    def _send(self) -> None:
        self._is_urgent = False
        if self._sending_soon is not None:
            self._sending_soon.cancel()
            self._sending_soon = None
        status, wake_at = row = self._row if self.is_ended else self._status()
        changed = self.is_ended or row != self._row
        self._row = row
        append = self._recorder.turn(status if changed else None, wake_at)
        self._in_flight = _Consequences(
            append.taken, self._starts or (), self._stops or (), self._wants_messages, self.is_ended
        )
        if self._starts:
            self._starts = []
        if self._stops:
            self._stops = []
        self._wants_messages = False
        self._host.journal.append(append).tell(self._committed)

    def _is_all_sent(self) -> bool:
        return self._recorder.is_empty and not self._starts and not self._stops

    def _is_nothing_to_commit(self) -> bool:
        if not self._is_all_sent():
            return False
        if self.is_ended:
            return True
        # A run that was taken over is in its row as running; one that only waits has to be written as such again.
        return not self._wants_messages and self._status() == self._row

    def _status(self) -> tuple[RunStatus, int | None]:
        is_delivering = self._arrivals or self._reserved is not None
        if self.active or is_delivering:  # What is about to be delivered is found again by whoever takes over.
            return _RUNNING
        if self.undecided:
            return (RunStatus.NEEDS_DECISION, self.earliest())
        return (RunStatus.WAITING, self.earliest())

    @stops_on_error
    def _committed(self, commit: Commit) -> None:
        consequences, self._in_flight = self._in_flight, None
        assert consequences is not None
        if commit.error is not None:
            if consequences.reserved is None or not isinstance(commit.error, MessageTakenError):
                return self.stop(commit.error)
            return self._wait_on(consequences.reserved)
        self.before = None  # The row is not as it was before any more.
        if self.is_suspended:
            return
        if consequences.taken:
            self._landed = [*self._landed, *consequences.taken]
        for call in consequences.stops:
            self._stop(call)
        for call in consequences.starts:
            if self.calls.get(call.seq) is call:
                self._act(call)
        if consequences.has_ended:
            self._host.drive_ended(self)
            self.loop.drop()
            return
        if consequences.reserved is not None:
            self._reserved = None
            self._hand_to_body(consequences.reserved.arrival, consequences.reserved.entry.at)
            self._pump()
        if not self._is_stepping:
            self._commit(is_urgent=False)
        if consequences.wants_messages:
            self._host.look_for_messages(self)
        self._host.turn_committed(self)

    # --- messages that another run may take ---------------------------------------------------------------------------

    def _send_reserved(self, arrival: Arrival) -> None:
        """Take a message before the body sees it, in an append of its own.

        Another run may be first. What is not on disk would be lost with a body that has seen it: how attempts ended,
        and those that run.
        """
        reserved = _Reserved(
            arrival, self._recorder.head, self._recorder.digest, self._record_arrival(arrival), self._row
        )
        self._send()
        assert self._in_flight is not None
        self._in_flight = self._in_flight._replace(reserved=reserved)

    def _wait_on(self, refused: "_Reserved") -> None:
        """Another run was first to take a message: the call waits for the next one."""
        call, taken = refused.arrival.call, refused.arrival.taken
        if self.is_suspended:
            return
        assert isinstance(call, EventCall)
        assert taken is not None
        self._reserved = None
        self._recorder.retract(refused.head, refused.digest)
        self._row = refused.row
        self._wait_again(call)
        self.put_back(taken)
        self._host.look_for_messages(self)
        self._pump()
        if not self._is_stepping:
            self._commit(is_urgent=False)

    def _start_now(self, call: TaskCall) -> None:
        if self.rehearsal is None:
            self._host.start_attempt(self, call)
        else:
            self._starts.append(call)

    def _act(self, call: Call) -> None:
        if isinstance(call, TaskCall):
            self._host.start_attempt(self, call)
        elif isinstance(call, ChildCall):
            self._host.start_child(self, call)

    def _stop(self, call: Call) -> None:
        if isinstance(call, TaskCall):
            self._host.stop_attempt(self, call)
        elif isinstance(call, ChildCall):
            self._host.stop_child(self, call)

    def _ask_to_be_woken(self) -> None:
        if not self._dues.is_empty and (earliest := self.earliest()) is not None:
            self._host.wake_at(self, earliest)

    def _differed(self, divergence: Divergence) -> None:
        self._host.schedule_differed(self, divergence)

    # --- letting go ---------------------------------------------------------------------------------------------------

    @property
    def is_undecided(self) -> bool:
        """Whether nothing goes on until someone decides about an external call."""
        return bool(self.undecided) and not self.active

    @property
    def is_quiet(self) -> bool:
        """Whether the run only waits and all of it is on disk: then the drive can be thrown away and rebuilt."""
        return self.is_still and not self.active and not self.pins

    @property
    def is_still(self) -> bool:
        """Whether nothing goes on but attempts, and all of it is on disk."""
        is_writing = self._in_flight or self._sending_soon
        is_delivering = self._arrivals or self._reserved is not None or self._is_stepping
        return self.is_live and not (is_writing or is_delivering)

    def stop(self, error: BaseException) -> None:
        """Give the run up because of an error; it stays as the journal has it."""
        if not self.is_suspended:
            if self._in_flight is not None:
                self.before = None  # What is on its way says how the row is to be.
            self.suspend()
            if self.rehearsal is None:
                self._host.drive_stopped(self, of_run(error, self.run_id))
            else:
                self.rehearsal.ended(error)

    def suspend(self) -> None:
        """Throw the body away. None of the user's code runs; the journal keeps the run."""
        if not self.is_suspended:
            self.is_suspended = True
            self._arrivals = self._reserved = None
            if self._sending_soon is not None:
                self._sending_soon.cancel()
            self.loop.drop()

    def surrender(self) -> Append | None:
        """Give the drive up in good order. What is still to be written: turns that wait, and which calls stop here."""
        self.suspend()
        if not self.is_live:
            return None
        running = self.running()
        if running:
            deferred = [call.seq for call in running if call.running is None]
            stopped = [call.seq for call in running if call.running is not None]
            facts = f'"deferred":{_numbers(deferred)},"stopped":{_numbers(stopped)}'
            self._recorder.record(EntryType.WORKFLOW_SUSPENDED, facts)
        if self._recorder.is_empty:
            return None
        if self._is_stepping:
            # The body was left within a turn. Who looks for runs that nobody drives must find it, to go on with that.
            return self._recorder.turn(*_RUNNING)
        status, wake_at = self._row if self.is_ended else self._status()
        return self._recorder.turn(status, wake_at)


class _Consequences(NamedTuple):
    """What is to be done once an append is on disk."""

    taken: Sequence[int]
    starts: Sequence[Call]
    stops: Sequence[Call]
    wants_messages: bool
    has_ended: bool
    reserved: "_Reserved | None" = None


class _Reserved(NamedTuple):
    """A message on its way to the body that is being taken first; and what is the case where it cannot be."""

    arrival: Arrival
    head: int
    digest: bytes
    entry: Entry
    row: tuple[RunStatus, int | None]


def _request_to_continue(error: BaseException | None) -> ContinueAsNew | None:
    """The request with which a body ended; a branch of a task group wraps it in a group of its own."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ContinueAsNew) else None


_RUNNING: Final = (RunStatus.RUNNING, None)

_ENDS: Final = {
    RunStatus.COMPLETED: EntryType.WORKFLOW_COMPLETED,
    RunStatus.FAILED: EntryType.WORKFLOW_FAILED,
    RunStatus.CANCELLED: EntryType.WORKFLOW_CANCELLED,
}


def _numbers(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
