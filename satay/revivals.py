"""A run brought back to where it was: its history is replayed, and what is outstanding is taken up.

A replay goes through the same turns as the first time. It reads the outcome that begins each from the history, and has
the calls compared instead of recorded. What a drive before this one left outstanding is then begun again, waited for,
or put to somebody for a decision.
"""

import asyncio
import contextvars
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, Literal, NamedTuple, ParamSpec, TypeVar

from satay.answers import ANSWER_NOTES, Answers, recorded_identity
from satay.calls import (
    ATTEMPT_NOTES,
    UNRECORDED,
    Arrival,
    AttemptHistory,
    Call,
    ChildCall,
    EventCall,
    TaskCall,
    note_attempt,
)
from satay.clock import Clock
from satay.definitions import Workflow
from satay.effects import Effect, ToolPolicy
from satay.errors import TaskCrashedError
from satay.failures import encode_failure
from satay.journal import Lease
from satay.loop import NO_MORE
from satay.model import Entry, EntryType, RunRecord
from satay.origin import Origin
from satay.outcomes import resolve
from satay.rehearsals import Rehearsal
from satay.replay import (
    Divergence,
    History,
    LooseReplay,
    StrictReplay,
    blob_reference,
    divergence_error,
    facts,
    read_outcome,
    value_text,
)
from satay.schedule import MAX_CLEANUP_CALLS, Schedule
from satay.watch import TurnWatch
from satay.whereabouts import find_waiting_line

P = ParamSpec("P")

MAX_TURN_CALLBACKS: Final = 1_000_000
"""A body that runs this many callbacks without waiting for anything outside of it is stuck in a loop of its own."""

CALLBACKS_PER_SLICE: Final = 5_000
"""After this many callbacks of one body, the host's other callbacks get their turn."""

TURNS_PER_SLICE: Final = 500
"""After this many turns of one body, replayed or live, the host's other callbacks get their turn."""

MAX_CRASHES: Final = 20
"""How often the process may die during attempts of one call before the call fails."""

FINAL: Final = '"is_final":true'
"""The fact that tells a request to end at once from a request to cancel."""

RevivedT = TypeVar("RevivedT", bound="Revival")


def stops_on_error(
    method: Callable[Concatenate[RevivedT, P], None],
) -> Callable[Concatenate[RevivedT, P], None]:
    """An error of satay's own ends the drive, and reaches whoever waits for the run, instead of leaving it hanging."""

    @wraps(method)
    def guarded(self: RevivedT, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.stop(error)

    return guarded  # type: ignore[return-value]  # what `wraps` returns has a name for the first parameter


class DriveSettings(NamedTuple):
    """How runs are driven. `nondeterminism` says what happens when code and journal part."""

    nondeterminism: Literal["strict", "warn", "off"] = "strict"
    allow_pickle: bool = False


class Revival(Schedule):
    """A schedule that begins with the history of a run. `begin` replays it, then the drive goes on, live."""

    __slots__ = (
        "_blobs",
        "_clock",
        "_history_head",
        "_is_fresh_fork",
        "_is_replayed",
        "_is_stepping",
        "_root",
        "_turn_callbacks",
        "_turn_watch",
        "before",
        "drive_settings",
        "has_messages",
        "is_suspended",
    )

    def __init__(
        self,
        clock: Clock,
        turn_watch: TurnWatch,
        drive_settings: DriveSettings,
        lease: Lease,
        definition: Workflow[..., Any],
        origin: Origin,
        history: History,
        blobs: Mapping[str, str],
    ) -> None:
        super().__init__(clock, lease, definition, origin, history)
        self._clock = clock
        self._turn_watch = turn_watch
        self.drive_settings = drive_settings
        self._history_head = history.entries[-1].seq
        self._blobs = blobs
        self._replay = self._new_replay(history)
        self._is_replayed = False
        self._is_stepping = False
        self._turn_callbacks = 0
        self._root: asyncio.Task[Any] | None = None
        self.before: RunRecord | None = None
        self.has_messages = True  # As long as nobody has looked.
        self.is_suspended = False

    # --- what the drive adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def stop(self, error: BaseException) -> None:
        """Give the run up because of an error."""

    @abstractmethod
    def _differed(self, divergence: Divergence) -> None:
        """Code and history have parted, and go on all the same."""

    @abstractmethod
    def _end_turn(self) -> None:
        """The body is idle: see what that means, and record what the turn added."""

    @abstractmethod
    def _pump(self) -> None:
        """Give the body every outcome that has arrived."""

    @abstractmethod
    def _fail_stuck(self, message: str) -> None:
        """The body cannot go on."""

    @abstractmethod
    def _take_due(self, now: int) -> bool:
        """Deliver what is due; say whether messages are to be looked for first."""

    # --- replay -------------------------------------------------------------------------------------------------------

    @stops_on_error
    def begin(self, resumed: bool) -> None:
        """Start the body and replay the history, in slices; then go live. `resumed` records that a drive was lost."""
        self._is_fresh_fork = self._forked_at is not None and not resumed
        if resumed:
            self._recorder.record(EntryType.WORKFLOW_RESUMED, "")
        args, kwargs = self.definition.input_codec.decode(
            self._origin.input_text, f"the input of workflow {self.workflow!r}"
        )
        self._is_stepping = True
        self._root = self.loop.spawn(self.definition.fn(*args, **kwargs), contextvars.Context())
        self._replay_slice()

    def _new_replay(self, history: History) -> StrictReplay | LooseReplay | None:
        if len(history.entries) == 1:
            return None
        if self.drive_settings.nondeterminism == "strict":
            return StrictReplay(history, self._note)
        self._early = {}
        return LooseReplay(history, self._note, self._differed)

    def _note(self, entry: Entry) -> None:
        """Keep what an entry that does not reach the body says of attempts, or has in store for a call."""
        if entry.type in ANSWER_NOTES:
            if self._answers is None:
                self._answers = Answers()
            self._answers.note(entry, self._recorded_value)
        if entry.type in ATTEMPT_NOTES:
            if self._attempts is None:
                self._attempts = {}
            note_attempt(self._attempts, entry)
        if entry.type == EntryType.RUN_FORKED and (self._again or self._answers is not None):
            self._forget_before(facts(entry))

    def _forget_before(self, forked: dict[str, Any]) -> None:
        """A fork makes a call anew: attempts and answers of before are no part of that."""
        if self._answers is not None and "anew" in forked:
            self._answers.forget(UNRECORDED, recorded_identity(forked["anew"]))
        seq = forked.get("again")
        if seq is None:
            return
        if self._attempts is not None:
            self._attempts.pop(seq, None)
        if self._answers is not None:
            self._answers.forget(seq, self._again[seq].call)

    def _replay_slice(self) -> None:
        self._turns_left = TURNS_PER_SLICE
        turns = self._recorded_turns()
        while self._turn_is_over(turns):
            is_slice_over = next(turns, NO_MORE) is NO_MORE  # Not yet where the body was stuck in a turn.
            if self._divergence is not None:
                return self._diverge(self._divergence)
            if self._is_replayed:
                return self._end_replay()
            if is_slice_over:
                break
        asyncio.get_running_loop().call_soon(self._continue_replay)
        return None

    def _recorded_turns(self) -> Iterator[None]:
        """Deliver recorded outcomes, one a turn: a slice of them, at most all, and none once code and history part."""
        replay = self._replay
        if replay is None:
            self._is_replayed = True
            return
        assert self._root is not None
        is_body_done = self._root.done
        while self._turns_left > 0:
            self._turns_left -= 1
            if self._divergence is not None:
                return
            outcome = replay.next_outcome(is_body_done())
            if outcome is None:
                self._is_replayed = True
                return
            if type(outcome) is not Entry:
                self._divergence = outcome  # type: ignore[assignment]  # the third possibility
                return
            self._resolve_from_history(outcome)
            yield

    @stops_on_error
    def _continue_replay(self) -> None:
        if not self.is_suspended:
            self._replay_slice()

    def _resolve_from_history(self, entry: Entry) -> None:
        self.loop.advance_to(entry.at)
        if entry.type == EntryType.WORKFLOW_CANCEL_REQUESTED:
            self._request_cancel(is_final=FINAL in entry.payload)
            return
        seq, text = read_outcome(entry)
        call = self.calls.pop(seq, None)
        if call is None:
            if self._early is not None:
                self._early[seq] = entry
            return
        self._settle(call)
        self._resolve(call, entry.type, self._recorded_value(entry) if text is None else text)

    def _diverge(self, divergence: Divergence | None) -> None:
        assert divergence is not None
        line = find_waiting_line(self._root) if self._root is not None else None
        is_done = self._is_body_done()
        ending = None
        if self._root is not None and is_done and not self._root.cancelled():
            ending = self._root.exception()
        self.stop(divergence_error(divergence, self.run_id, line, is_done, ending))

    @stops_on_error
    def rehearse(self, rehearsal: Rehearsal) -> None:
        """Replay the history of a fork that is yet to be written, and tell the rehearsal when that is done."""
        self.rehearsal = rehearsal
        self.begin(resumed=False)

    def _end_replay(self) -> None:
        if self.rehearsal is None:
            self._go_live()
        else:
            self.rehearsal.ended(None)

    def _go_live(self) -> None:
        """The history is used up: take up what is outstanding, and record what the last turn added."""
        self.is_replaying = False
        self.is_live = True
        # Messages may have come while nobody drove the run, such as a request to cancel it.
        self._wants_messages |= self.before is not None and self.has_messages
        attempts = self._attempts or {}
        for call in sorted(self.calls.values(), key=self._answer_seq):
            if call.seq <= self._history_head:
                self._take_up(call, attempts.get(call.seq))
        if not self._wants_messages:  # A message that is there wins over a moment that has come.
            self._wants_messages = self._take_due(self._clock.now())
        # Calls that the body has issued beyond the history are there already; attempts begin in the order of the calls.
        self._starts.sort(key=lambda call: call.seq)
        if not isinstance(self._replay, LooseReplay) or self._replay.is_used_up:
            self._replay = None
            self._attempts = None
            self._blobs = {}
        self._end_turn()
        self._cancelled = frozenset()  # Only now: a body that is done gives up on what it left behind.
        self._is_stepping = False
        self._pump()

    def _answer_seq(self, call: Call) -> int:
        """Calls with an outcome in store are taken up first, in the order in which they got it."""
        answer = None if self._answers is None else self._answers.find(call)
        return call.seq + self._history_head if answer is None else answer.seq

    # --- what is outstanding ------------------------------------------------------------------------------------------

    def _take_up(self, call: Call, history: AttemptHistory | None) -> None:
        """Go on with a call that a drive before this one left outstanding."""
        if self._answers is not None and self._answer(call):
            pass
        elif isinstance(call, TaskCall):
            self._take_up_task(call, history or AttemptHistory())
        elif isinstance(call, ChildCall):
            self._take_up_input(call)
            if call.refusal is not None:
                self.arrive(Arrival(EntryType.CHILD_WORKFLOW_FAILED, call, f'"call":{call.seq}', call.refusal))
            elif call.input_text is None:
                self._fail_refused(call, EntryType.CHILD_WORKFLOW_FAILED)
            else:
                self._start(call)
        else:
            self._watch(call)
            self._wants_messages |= self.has_messages and isinstance(call, EventCall)
        call.entry = None

    def _take_up_input(self, call: TaskCall | ChildCall) -> None:
        """Find the arguments of a call from the history: the recorded ones, or today's where a fork makes it again."""
        recorded = self._recorded_value(call.entry)
        reissued = None if self._answers is None else self._answers.input_text(call.seq)
        call.input_text = recorded if reissued is None else reissued
        if reissued is None and call.issued_text is not None and call.issued_text != recorded:
            call.input_text = call.issued_text
            self._recorder.record(EntryType.CALL_REISSUED, f'"call":{call.seq}', call.input_text)

    def _take_up_task(self, call: TaskCall, history: AttemptHistory) -> None:
        self._take_up_input(call)
        call.attempt, call.failures = history.attempt, history.failures
        ruling = self.ruling(call.task)
        policy = None if ruling is None else ruling.policy
        if call.refusal is not None:
            self.arrive(Arrival(EntryType.TASK_FAILED, call, f'"call":{call.seq}', call.refusal))
        elif call.input_text is None:
            self._fail_refused(call, EntryType.TASK_FAILED)
        elif policy in (ToolPolicy.BLOCK, ToolPolicy.REPLAY):
            self._start(call)  # Nothing is executed: the call is refused, or answered from the source.
        elif history.retry_at is not None:
            call.due = history.retry_at
            self._watch(call)
        elif history.is_deferred or call.task.effect is Effect.PURE:
            self._start(call)
        elif self._is_fresh_fork and (
            call.task.effect is not Effect.EXTERNAL or policy is ToolPolicy.LIVE or self._is_made_anew(call)
        ):
            self._start(call)  # It began in the source; `RunForked` stands for its first attempt here.
        elif history.decision == "rerun" and not history.is_undecided:
            self._next_attempt(call, crashed=False)
        elif call.task.effect is Effect.EXTERNAL:
            self._ask_for_decision(call, history)
        elif history.crashes >= MAX_CRASHES:
            failure = encode_failure(
                TaskCrashedError(
                    f"the process died {history.crashes} times during attempts of task {call.name!r}; "
                    "find out why before the call is made again, and fork the run before it"
                )
            )
            self.arrive(Arrival(EntryType.TASK_FAILED, call, f'"call":{call.seq}', failure))
        else:
            self._next_attempt(call, crashed=not history.is_stopped)

    def is_between_attempts(self, seq: int) -> bool:
        """Whether the history left a call waiting for its next attempt: after one that failed, or by a decision."""
        history = None if self._attempts is None else self._attempts.get(seq)
        return history is not None and (history.retry_at is not None or history.decision == "rerun")

    def _fail_refused(self, call: Call, failed: str) -> None:
        """A call that could not be made when it was issued fails again, as it did then."""
        assert call.entry is not None
        failure = json.dumps(facts(call.entry)["refused"], separators=(",", ":"))
        self.arrive(Arrival(failed, call, f'"call":{call.seq}', failure))

    def _recorded_value(self, entry: Entry | None) -> str | None:
        assert entry is not None
        text = value_text(entry)
        if text is None:
            reference = blob_reference(entry)
            text = None if reference is None else self._blobs[reference]
        return text

    def _ask_for_decision(self, call: TaskCall, history: AttemptHistory) -> None:
        call.needs_decision = True
        self.undecided += 1
        if not history.is_undecided:
            self._recorder.record(EntryType.DECISION_REQUESTED, f'"call":{call.seq},"attempt":{call.attempt}')
        self._wants_messages = True

    # --- steps of the body --------------------------------------------------------------------------------------------

    def _turn_is_over(self, later: Iterator[None] = NO_MORE) -> bool:
        """Run the body for a slice, then through more turns; say whether it is idle."""
        assert self._root is not None
        watch = self._turn_watch
        watch.begin(self.run_id)
        try:
            is_idle = self.loop.run_turn(CALLBACKS_PER_SLICE, later)
        finally:
            watch.end()
        if is_idle:
            self._turn_callbacks = 0
            return True
        self._turn_callbacks += CALLBACKS_PER_SLICE
        if self._turn_callbacks >= MAX_TURN_CALLBACKS:
            self._turn_callbacks = 0
            self._fail_stuck(
                f"the body of workflow {self.workflow!r} ran {MAX_TURN_CALLBACKS} steps without waiting for a task, a "
                "timer or an event; a loop that polls must await one of these"
            )
            return True
        return False

    def _resolve(self, call: Call, type: str, text: str | None, arrival: Arrival | None = None) -> None:
        resolve(self.loop, call, type, text, arrival, self.drive_settings.allow_pickle)

    def _request_cancel(self, *, is_final: bool) -> None:
        self.cancel_requested = True
        assert self._root is not None
        if is_final:
            self._cleanup_calls = MAX_CLEANUP_CALLS + 1
        else:
            self._root.cancel()

    def _is_body_done(self) -> bool:
        return self._root is not None and self._root.done()
