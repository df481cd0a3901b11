"""The schedule of one run: the calls that its body issues, matched with the history or recorded, until settled.

The body reaches this through its event loop. A drive, which delivers the outcomes, is a schedule that can also be
stepped.
"""

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, Final, NamedTuple

from satay.answers import Answers
from satay.approval_records import (
    PAYLOAD_CODEC,
    REQUEST_HEAD,
    decision_codec,
    first_difference,
    payload_conflict,
    payload_difference,
    request_facts,
)
from satay.calls import Arrival, AttemptHistory, Call, ChildCall, EventCall, TaskCall, TimerCall
from satay.clock import MICROSECONDS, Clock, to_datetime
from satay.codec import ValueCodec
from satay.context import NOT_RECALLED, ScheduledLoop
from satay.definitions import PickledInputCodec, Task, Workflow
from satay.dues import Dues
from satay.effects import Effect, ForkTerms, Ruling, ruling_for
from satay.errors import DuplicateKeyError, SatayError
from satay.failures import encode_failure
from satay.inputs import InputCodec
from satay.journal import CHILD_ENDED, Lease, Wait
from satay.loop import WorkflowTimer
from satay.model import APPROVAL, Entry, EntryType, child_run_id
from satay.origin import Origin, fresh_fork
from satay.postponements import postponements_in
from satay.recorder import Recorder
from satay.rehearsals import Rehearsal
from satay.replay import (
    Divergence,
    History,
    InheritedChild,
    LooseReplay,
    MadeAgain,
    StrictReplay,
    calls_made_again,
    cancelled_calls,
    facts,
    read_head,
)
from satay.texts import json_quote

MAX_CLEANUP_CALLS: Final = 100
"""How many durable calls a body may issue after it was asked to cancel; at the next one it is dropped."""

MAX_PENDING_ENTRIES: Final = 2_000
"""How many entries a body may run ahead of the disk; beyond it, pure tasks wait for the commit too."""


class Schedule(ABC):
    """What a body has asked for. `calls` are outstanding, by the seq of the entry that records them.

    `active` counts calls of tasks of which an attempt runs or is about to, and children that are yet to be there;
    `undecided` the calls that wait for a decision, `open_waits` the waits for events.
    """

    __slots__ = (
        "_again",
        "_answers",
        "_approvals",
        "_attempts",
        "_cancelled",
        "_child_calls",
        "_cleanup_calls",
        "_counts",
        "_divergence",
        "_dues",
        "_early",
        "_forked_at",
        "_inherited_children",
        "_is_ending",
        "_keys",
        "_origin",
        "_postponements",
        "_random",
        "_recorder",
        "_replay",
        "_starts",
        "_stops",
        "_turns_left",
        "_waiting",
        "_wants_messages",
        "active",
        "calls",
        "cancel_requested",
        "definition",
        "is_live",
        "is_replaying",
        "lease",
        "loop",
        "open_waits",
        "rehearsal",
        "undecided",
    )

    def __init__(
        self, clock: Clock, lease: Lease, definition: Workflow[..., Any], origin: Origin, history: History
    ) -> None:
        self.lease = lease
        self.definition = definition
        self.calls: dict[int, Call] = {}
        self.active = 0
        self.undecided = 0
        self.open_waits = 0
        self.cancel_requested = False
        self.is_live = False
        self.is_replaying = len(history.entries) > 1
        self._origin = origin
        self._recorder = Recorder(lease, clock, history.entries[-1])
        fork = fresh_fork(history.entries)
        self._forked_at = None if fork is None else fork.at
        self._again: Mapping[int, MadeAgain] = calls_made_again(history)
        self._answers: Answers | None = None
        self._approvals: dict[str, _AskedFor] | None = None
        self.rehearsal: Rehearsal | None = None
        self._inherited_children: Mapping[int, InheritedChild] = history.inherited_children()
        self._postponements: Mapping[int, int] = postponements_in(history)
        self._attempts: dict[int, AttemptHistory] | None = None
        self._cancelled = cancelled_calls(history)
        self._early: dict[int, Entry] | None = None
        self._replay: StrictReplay | LooseReplay | None = None
        self._counts: dict[str, int] = {}
        self._keys: set[tuple[str, str]] | None = None
        self._dues = Dues()
        self._starts: list[Call] = []
        self._stops: list[Call] = []
        self._waiting: dict[tuple[str, str | None], deque[EventCall]] | None = None
        self._child_calls: dict[str, ChildCall] | None = None
        self._wants_messages = False
        self._divergence: Divergence | None = None
        self._random: Random | None = None
        self._is_ending = False
        self._turns_left = 0
        self._cleanup_calls = 0
        self.loop = ScheduledLoop(self)
        self.loop.schedule = self
        self.loop.advance_to(origin.started_at)

    # --- what the drive adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def arrive(self, arrival: Arrival) -> None:
        """An outcome is there."""

    @abstractmethod
    def _start_now(self, call: TaskCall) -> None:
        """Start an attempt that need not wait for the disk."""

    @abstractmethod
    def _take_up(self, call: Call, history: AttemptHistory | None) -> None:
        """Go on with a call that a drive before this one left outstanding."""

    @abstractmethod
    def _resolve_from_history(self, entry: Entry) -> None:
        """Deliver a recorded outcome."""

    # --- what the body sees -------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self.lease.run_id

    @property
    def root_run_id(self) -> str:
        return self._origin.root_run_id

    @property
    def workflow(self) -> str:
        return self.definition.name

    @property
    def intervention(self) -> Any:
        return None if self._origin.terms is None else self._origin.terms.intervention

    @property
    def terms(self) -> ForkTerms | None:
        return self._origin.terms

    def ruling(self, task: Task[..., Any]) -> Ruling | None:
        """Which tool policy holds for a task; None in a run that no fork has to do with."""
        terms = self._origin.terms
        return None if terms is None else ruling_for(terms.policies, task.name, task.effect)

    @property
    def random(self) -> Random:
        if self._random is None:
            self._random = Random(self._origin.seed)
        return self._random

    def now(self) -> datetime:
        """The moment of the turn at hand."""
        return to_datetime(self.loop.now)

    def check_keys(self, name_fact: str, keys: Sequence[str]) -> None:
        """Refuse keys that calls of this kind and name have used before in this run."""
        used = self._keys or ()
        again = [key for key in keys if (name_fact, key) in used]
        if again:
            raise DuplicateKeyError(
                f"{_readable(name_fact)} was called with the keys {again!r} before in this run; a key names one call, "
                "so give each call a key of its own",
                keys=again,
            )

    def recall_result(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call of a task that the history answers next; `NOT_RECALLED` where it is to be opened.

        That takes no turn of its own: it is what a turn would come to, where the branch that awaits the call is all
        that goes on. For `Task.call_durably` alone, whose caller is looked at.
        """
        replay = self._replay
        if (
            type(replay) is not StrictReplay
            or self._turns_left <= 0
            or self._is_ending
            or self.cancel_requested
            or self._divergence is not None
            or task.codec_name != "json"
            or not self.loop.would_be_idle(sys._getframe(2))
        ):
            return NOT_RECALLED
        ordinal = self._counts.get(task.head, 0)
        answered = replay.take_answered(task.head, ordinal, self._again)
        if answered is None:
            return NOT_RECALLED
        _, _, entry, outcome, text = answered
        self._counts[task.head] = ordinal + 1
        self._turns_left -= 1
        if self.rehearsal is not None:
            self.rehearsal.compare_arguments(entry, task.input_codec, args, kwargs, task.input_where)
        self.loop.skip_turn(outcome.at)
        return task.result_codec.decode(text, task.result_where)

    def open_task(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None
    ) -> TaskCall:
        """Issue a call of a task. A call that cannot be encoded is recorded too, as one that failed at once."""
        occurrence, head = self._head(task.head, key)
        call = TaskCall(task, occurrence)
        if not self._is_new(call, EntryType.TASK_SCHEDULED, head):
            if call.entry is not None and (self.rehearsal is not None or self._again):
                self._note_arguments(call, call.entry, task.input_codec, args, kwargs, task.input_where)
            return call
        try:
            call.input_text = task.input_codec.encode(args, kwargs, task.input_where)
        except SatayError as error:
            self._refuse(call, EntryType.TASK_SCHEDULED, EntryType.TASK_FAILED, head + task.tail, error)
            return call
        self._record_call(call, EntryType.TASK_SCHEDULED, head + task.tail, call.input_text)
        if self._answers is not None and self._answer(call):
            return call
        call.is_active = True
        self.active += 1
        if task.effect is Effect.PURE and self._recorder.pending < MAX_PENDING_ENTRIES:
            self._start_now(call)
        else:
            self._starts.append(call)
        return call

    def open_event_wait(self, name: str, codec: ValueCodec, key: str | None, timeout: float | None) -> EventCall:
        """Issue a wait for a message."""
        occurrence, head = self._head(f'"event":{json_quote(name)}', None)
        call = EventCall(name, int(occurrence), key, codec)
        self.open_waits += 1
        if self._is_new(call, EntryType.EVENT_WAIT_STARTED, head):
            call.due = None if timeout is None else self._from_now(self.loop.now + round(timeout * MICROSECONDS))
            match = "null" if key is None else json_quote(key)
            due = "null" if call.due is None else str(call.due)
            self._record_call(call, EntryType.EVENT_WAIT_STARTED, f'{head},"match":{match},"due":{due}', None)
            if self._answers is not None and self._answer(call):
                return call
            self._recorder.open_wait(Wait(call.seq, name, key))
            self._wants_messages = True
            self._watch(call)
        elif call.entry is not None:
            known = facts(call.entry)
            if self.rehearsal is not None:
                self.rehearsal.compare_key(call.entry, known["match"], key)
            call.key, call.due = known["match"], self._due(call, known["due"])
        if self._waiting is None:
            self._waiting = {}
        self._waiting.setdefault((name, call.key), deque()).append(call)
        return call

    def open_approval(self, key: str, payload: Any, timeout: float | None) -> EventCall:
        """Issue a request for an approval, or find the one with that key. Raises `CallConflictError`, `EncodeError`."""
        text = PAYLOAD_CODEC.encode(payload, f"the payload of approval {key!r}")
        if self._approvals is None:
            self._approvals = {}
        asked = self._approvals.get(key)
        if asked is not None:
            path = None if asked.text == text else first_difference(asked.text, text)
            if path is not None:
                raise payload_conflict(self.run_id, key, path)
            return asked.call
        occurrence, head = self._head(REQUEST_HEAD, key)
        call = EventCall(APPROVAL, occurrence, key, decision_codec())
        self._approvals[key] = _AskedFor(call, text)
        self.open_waits += 1
        if self._is_new(call, EntryType.EVENT_WAIT_STARTED, head):
            call.due = None if timeout is None else self._from_now(self.loop.now + round(timeout * MICROSECONDS))
            self._record_call(call, EntryType.EVENT_WAIT_STARTED, f"{head},{request_facts(key, call.due)}", text)
            if self._answers is not None and self._answer(call):
                return call
            self._recorder.open_wait(Wait(call.seq, APPROVAL, key))
            self._wants_messages = True
            self._watch(call)
        elif call.entry is not None:
            self._compare_payload(call, key, text)
            call.due = self._due(call, read_head(call.entry)["due"])
        if self._waiting is None:
            self._waiting = {}
        self._waiting.setdefault((APPROVAL, key), deque()).append(call)
        return call

    def _compare_payload(self, call: EventCall, key: str, text: str) -> None:
        """What was decided about one payload holds for no other: code that asks for another one has diverged."""
        assert call.entry is not None
        path = payload_difference(call.entry, text)
        if path is None:
            return
        if self.rehearsal is not None:
            self.rehearsal.compare(call.entry, text)
        elif self._replay is not None and not self.is_live:
            recorded, issued = f"approval {key!r} for another payload, at {path}", f"approval {key!r}"
            self._divergence = Divergence(self._replay.matched - 1, recorded, issued)
        else:
            raise payload_conflict(self.run_id, key, path)

    def expired_approvals(self, now: int) -> list[str]:
        """The keys of the requests whose time is up, and to which no answer is on its way."""
        return [
            key
            for key, (call, _) in (self._approvals or {}).items()
            if call.due is not None and call.due <= now and not call.is_answered and self.calls.get(call.seq) is call
        ]

    def open_child(self, workflow: Workflow[..., Any], args: tuple[Any, ...], key: str | None) -> ChildCall:
        """Issue a child run. Its id derives from this run's, so that starting it again finds the same child."""
        occurrence, head = self._head(f'"child":{json_quote(workflow.name)}', key)
        call = ChildCall(workflow, occurrence, child_run_id(self.run_id, workflow.name, occurrence))
        where = f"the input of child workflow {workflow.name!r}"
        if not self._is_new(call, EntryType.CHILD_WORKFLOW_SCHEDULED, head):
            if call.entry is not None:
                call.inherited = self._inherited_children.get(call.seq)
                recorded = facts(call.entry)["run_id"] if call.inherited is None else call.inherited.run_id
                self._answer_with(call, recorded)
                self._note_arguments(call, call.entry, workflow.input_codec, args, {}, where)
            return call
        head = f'{head},"run_id":{json_quote(call.run_id)}'
        try:
            call.input_text = workflow.input_codec.encode(args, {}, where)
        except SatayError as error:
            scheduled, failed = EntryType.CHILD_WORKFLOW_SCHEDULED, EntryType.CHILD_WORKFLOW_FAILED
            self._refuse(call, scheduled, failed, head, error)
            return call
        self._record_call(call, EntryType.CHILD_WORKFLOW_SCHEDULED, head, call.input_text)
        if self._answers is not None and self._answer(call):
            return call
        self._recorder.open_wait(Wait(call.seq, CHILD_ENDED, call.run_id))
        self._answer_with(call, call.run_id)
        self._start(call)
        return call

    def _note_arguments(
        self,
        call: TaskCall | ChildCall,
        entry: Entry,
        codec: InputCodec | PickledInputCodec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        where: str,
    ) -> None:
        """Note the arguments of a call from the history, where the fork makes it again or they are asked for."""
        if entry.seq in self._again:
            try:
                call.issued_text = codec.encode(args, kwargs, where)
            except SatayError as error:
                call.refusal = encode_failure(error)
            else:
                if self.rehearsal is not None and not self._is_made_anew(call):
                    reissued = None if self._answers is None else self._answers.input_text(call.seq)
                    self.rehearsal.compare(entry, call.issued_text, reissued)
        elif self.rehearsal is not None:
            self.rehearsal.compare_arguments(entry, codec, args, kwargs, where)

    def has_arguments_of_today(self, seq: int) -> bool:
        """Whether a call of the history is outstanding, and will be made with the arguments of today."""
        call = self.calls.get(seq)
        if not isinstance(call, TaskCall | ChildCall) or call.issued_text is None:
            return False
        return self._answers is None or (self._answers.input_text(seq) is None and self._answers.find(call) is None)

    def _is_made_anew(self, call: Call) -> bool:
        """Whether this very run, a fork, makes a call of its prefix anew."""
        again = self._again.get(call.seq)
        return again is not None and again.fork_id == self.run_id

    def _answer(self, call: Call) -> bool:
        """Deliver the outcome that a fork has in store for a call; false if it has none."""
        answer = None if self._answers is None else self._answers.find(call)
        if answer is None:
            return False
        self.arrive(answer.arrival(call))
        return True

    def timer_created(self, timer: WorkflowTimer) -> None:
        """The loop asks for a timer: a durable call like the others."""
        occurrence, head = self._head('"timer":"timer"', None)
        call = TimerCall(int(occurrence), timer)
        if self._is_new(call, EntryType.TIMER_CREATED, head):
            call.due = self._from_now(round(timer.when() * MICROSECONDS))
            self._record_call(call, EntryType.TIMER_CREATED, f'{head},"due":{call.due}', None)
            self._watch(call)
        elif call.entry is not None:
            call.due = self._due(call, facts(call.entry)["due"])
        timer.call = call.seq

    def _from_now(self, due: int) -> int:
        """A moment that the body reckons from the turn at hand. What follows the cut of a fork begins with the fork."""
        if self._forked_at is None or self._replay is None:
            return due
        return due + max(0, self._forked_at - self.loop.now)

    def _due(self, call: Call, recorded: int | None) -> int | None:
        """When a wait from the history is due, in this run."""
        return None if recorded is None else recorded + self._postponements.get(call.seq, 0)

    def timer_cancelled(self, timer: WorkflowTimer) -> None:
        call = self.calls.get(timer.call)
        if call is not None:
            self.cancel_call(call)

    def cancel_call(self, call: Call) -> None:
        """The body has given up on a call. Nothing happens if its outcome was there already."""
        if self.calls.pop(call.seq, None) is None:
            return
        if call.seq not in self._cancelled:
            used = call.used() if isinstance(call, TaskCall) and call.used is not None else ""
            self._recorder.record(EntryType.CALL_CANCELLED, f'"call":{call.seq}{used}')
            self._close_wait(call)
            self._stops.append(call)
        elif isinstance(call, ChildCall):
            self._stops.append(call)  # The process may have died before the child was told.
        self._settle(call)

    def _settle(self, call: Call) -> None:
        """Keep the counts right when a call is outstanding no more."""
        if isinstance(call, TaskCall):
            self._rest(call)
        elif isinstance(call, EventCall):
            self.open_waits -= 1
        elif isinstance(call, ChildCall):
            self._rest(call)
            if self._child_calls is not None:
                self._child_calls.pop(call.run_id, None)

    def _head(self, name_fact: str, key: str | None) -> tuple[int | str, str]:
        """The occurrence of a call among its equals, and the beginning of the payload that records it."""
        if key is None:
            ordinal = self._counts.get(name_fact, 0)
            self._counts[name_fact] = ordinal + 1
            return ordinal, f'{name_fact},"ordinal":{ordinal}'
        if self._keys is None:
            self._keys = set()
        self.check_keys(name_fact, (key,))
        self._keys.add((name_fact, key))
        return key, f'{name_fact},"key":{json_quote(key)}'

    def _is_new(self, call: Call, entry_type: str, head: str) -> bool:
        """Give the call its future, and say whether it is to be recorded; else the history holds it, or nothing may."""
        call.future = self.loop.create_future()
        if self.cancel_requested and not self._is_ending:
            self._cleanup_calls += 1
        if self._is_ending or self._cleanup_calls > MAX_CLEANUP_CALLS or self._divergence is not None:
            return False  # The branch waits for ever. Were it cancelled, one that swallows this would run for ever.
        if self._replay is not None:
            found = self._replay.match(entry_type, head, call)
            if type(found) is Entry:
                self._take_from_history(call, found)
                return False
            if type(found) is Divergence:
                self._divergence = found
                return False
            self.is_replaying = self.rehearsal is not None and self.rehearsal.is_plan
        return True

    @property
    def _is_overdue(self) -> bool:
        """Whether the body was asked to cancel and goes on regardless."""
        return self._cleanup_calls > MAX_CLEANUP_CALLS

    def _record_call(self, call: Call, entry_type: str, facts: str, text: str | None) -> None:
        call.seq = seq = self._recorder.record(entry_type, facts, text).seq
        self.calls[seq] = call

    def _refuse(self, call: Call, scheduled: str, failed: str, facts: str, error: SatayError) -> None:
        """Record a call that cannot be made, with the reason, and let it fail, unless it was given an outcome."""
        failure = encode_failure(error)
        self._record_call(call, scheduled, f'{facts},"refused":{failure}', None)
        if self._answers is None or not self._answer(call):
            self.arrive(Arrival(failed, call, f'"call":{call.seq}', failure))

    def _take_from_history(self, call: Call, entry: Entry) -> None:
        call.seq = entry.seq
        call.entry = entry
        self.calls[entry.seq] = call
        if self._early is not None and entry.seq in self._early:
            self.loop.call_soon(self._resolve_from_history, self._early.pop(entry.seq))
        elif self.is_live:
            self.loop.call_soon(self._take_up, call, (self._attempts or {}).get(call.seq))

    # --- what is outstanding ------------------------------------------------------------------------------------------

    def event_call(self, type: str, key: str | None) -> EventCall | None:
        """The first outstanding wait for a message of that type and key that no message is on its way to."""
        waiting = None if self._waiting is None else self._waiting.get((type, key))
        while waiting:
            call = waiting[0]
            if not call.is_answered and self.calls.get(call.seq) is call:
                return call
            waiting.popleft()
        return None

    def _wait_again(self, call: EventCall) -> None:
        """A message that was on its way to a wait does not come: the wait is the first of its equals again."""
        call.is_answered = False
        assert self._waiting is not None
        waiting = self._waiting[call.name, call.key]
        if call not in waiting:
            waiting.appendleft(call)

    def child_call(self, run_id: str | None) -> ChildCall | None:
        """The outstanding call that a child run answers."""
        if run_id is None or self._child_calls is None:
            return None
        return self._child_calls.get(run_id)

    def child_ids(self) -> list[str]:
        """The child runs that outstanding calls wait for."""
        return list(self._child_calls or ())

    def _answer_with(self, call: ChildCall, run_id: str) -> None:
        """Have a call be answered by a child run, and by no other."""
        if self._child_calls is None:
            self._child_calls = {}
        self._child_calls.pop(call.run_id, None)
        call.run_id = run_id
        self._child_calls[run_id] = call

    def running(self) -> list[TaskCall]:
        """The calls of which an attempt runs or is about to."""
        return [call for call in self.calls.values() if isinstance(call, TaskCall) and call.is_active]

    def _start(self, call: TaskCall | ChildCall) -> None:
        if not call.is_active:
            call.is_active = True
            self.active += 1
        self._starts.append(call)

    def _rest(self, call: TaskCall | ChildCall) -> None:
        if call.is_active:
            call.is_active = False
            self.active -= 1
        if isinstance(call, TaskCall) and call.needs_decision:
            call.needs_decision = False
            self.undecided -= 1

    def _next_attempt(self, call: TaskCall, *, crashed: bool) -> None:
        call.attempt += 1
        after = ',"after":"crash"' if crashed else ""
        self._recorder.record(EntryType.TASK_ATTEMPT_STARTED, f'"call":{call.seq},"attempt":{call.attempt}{after}')
        self._start(call)

    def _close_wait(self, call: Call) -> None:
        if isinstance(call, EventCall | ChildCall):
            self._recorder.close_wait(call.seq)

    def _watch(self, call: Call) -> None:
        if call.due is not None:
            self._dues.add(call.due, call.seq)

    def earliest(self) -> int | None:
        """When the run is to be looked at next, if it waits for a moment."""
        return self._dues.earliest(self.calls)


class _AskedFor(NamedTuple):
    """A request for an approval, and the text of what it is asked for."""

    call: EventCall
    text: str


def _readable(name_fact: str) -> str:
    """`task "draft"`, from the member that opens a payload."""
    return name_fact[1:].replace('":', " ", 1)
