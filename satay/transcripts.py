"""One session as its journal tells it: its steps, its states, its ledger of tool calls, and what it is doing.

A transcript is read in one pass and goes on with each entry that is written. Of values it keeps none. Of steps and
states, which are most of it, it keeps the entries, and reads what they say when it is asked for.

What was recorded at or before the cut of a fork is *inherited*. A call that is outstanding where the session was opened
anew is *lost*: nobody knows what became of it.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.effects import Effect
from satay.errors import JournalCorruptError
from satay.model import APPROVAL, CREATION_ENTRIES, VALUE_FIELD, CallId, Entry, EntryType
from satay.replay import check_understood, facts, outcome_call, read_head, reading, recorded_call
from satay.snapshots import Snapshots

MAX_STEP: Final = 2**53
"""The largest number of a step that can be asked for."""

UNREAD_VALUES: Final = (EntryType.STEP_RECORDED, EntryType.STATE_RECORDED)
"""The types of entries of whose values a transcript has no need."""

_STEP_RECORDED: Final = EntryType.STEP_RECORDED.value
_STATE_RECORDED: Final = EntryType.STATE_RECORDED.value

_VALUE_MARK: Final = f',"{VALUE_FIELD[EntryType.STEP_RECORDED]}":'
_STEP: Final = re.compile(r'\{"step":(\d+),"name":"((?:[^"\\]|\\.)*)"')
_OUTCOMES: Final = frozenset(
    {EntryType.TASK_COMPLETED, EntryType.TASK_FAILED, EntryType.TASK_BLOCKED, EntryType.CALL_CANCELLED}
)
_OPENINGS: Final = frozenset({EntryType.SESSION_STARTED, EntryType.SESSION_RESUMED})


class SessionStatus(StrEnum):
    """What a session is doing, as its journal tells it.

    `created`: it was made and not begun yet, as a fork is at first. `started`: it was begun and has no step of its own.
    `stepping`: it has. `paused`: it was left, to be gone on with. `crashed`: its block ended with an error.
    """

    CREATED = "created"
    STARTED = "started"
    STEPPING = "stepping"
    PAUSED = "paused"
    COMPLETED = "completed"
    CRASHED = "crashed"


_STEPPING: Final = SessionStatus.STEPPING
"""Looked up once: asking the class of an enumeration for a member costs more than reading a step."""


class StepMark(NamedTuple):
    """A step: its number, its name, its entry, and when it was recorded."""

    number: int
    name: str
    seq: int
    at: int


class LedgerCall:
    """A call of a tool, from its claim on. `opening` counts how often the session had been opened when it was claimed.

    `holder` is who claimed it, where that is a participant and not whoever has the session open; `held_since` is the
    entry of that claim, and `expires_at` when it runs out. `attempt` counts from 1; `failures` and `crashes` count how
    attempts ended, and `retry_at` is set while the next one is waited for. `outcome` is the entry that ended the call,
    `step` the step that was being worked on. `decision` is the entry that says what is to become of it, where it was
    lost and somebody has said so.
    """

    __slots__ = (
        "attempt",
        "crashes",
        "decision",
        "entry",
        "expires_at",
        "failures",
        "held_since",
        "holder",
        "identity",
        "is_asked",
        "opening",
        "outcome",
        "retry_at",
        "step",
    )

    def __init__(self, entry: Entry, identity: CallId, step: int) -> None:
        self.entry = entry
        self.identity = identity
        self.step = step
        self.opening = 0
        self.held_since = entry.seq
        self.holder: str | None = None
        self.expires_at: int | None = None
        self.attempt = 1
        self.failures = 0
        self.crashes = 0
        self.retry_at: int | None = None
        self.outcome: Entry | None = None
        self.decision: Entry | None = None
        self.is_asked = False

    def hold(self, told: dict[str, Any], seq: int, opening: int) -> None:
        """Somebody claims it, as an entry tells."""
        self.opening, self.held_since = opening, seq
        self.holder, self.expires_at = told.get("by"), told.get("expires_at")


class ApprovalMark:
    """A request for an approval: its entry, its key, when it runs out, and the entry that answered it."""

    __slots__ = ("answer", "deadline", "entry", "key")

    def __init__(self, entry: Entry, key: str, deadline: int | None) -> None:
        self.entry = entry
        self.key = key
        self.deadline = deadline
        self.answer: Entry | None = None


class WakeUp(NamedTuple):
    """A moment at which the session is to be woken: its entry, when, and what was noted with it."""

    seq: int
    due: int
    note: str | None


class Transcript:
    """The fold of a session's journal. Raises `JournalCorruptError` for a journal that is none of a session."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.status = SessionStatus.CREATED
        self.last: Entry | None = None
        self.snapshots = Snapshots(run_id)
        self.ledger: dict[CallId, LedgerCall] = {}
        self.approvals: dict[str, ApprovalMark] = {}
        self.wake_ups: dict[int, WakeUp] = {}
        self.wakes_asked = 0
        self.openings = 0
        self.fork_seq: int | None = None
        self.fork_step = 0
        self._steps: list[Entry] = []
        self._marks: list[StepMark] = []
        self._calls: dict[int, LedgerCall] = {}
        self._outstanding: dict[int, LedgerCall] = {}
        self._waits: dict[int, ApprovalMark] = {}
        self._counts: dict[str, int] = {}
        self._first_in_step: dict[str, tuple[int, int]] = {}

    @property
    def last_step(self) -> int:
        """The number of the last step; 0 where there is none."""
        return len(self._steps)

    @property
    def steps(self) -> Sequence[StepMark]:
        """The steps, in order."""
        self._marks += map(self._mark, self._steps[len(self._marks) :])
        return self._marks

    @property
    def head(self) -> int:
        """The number of the last entry."""
        return 0 if self.last is None else self.last.seq

    def is_inherited(self, seq: int) -> bool:
        """Whether an entry is at or before the cut of the fork that the session is."""
        return self.fork_seq is not None and seq <= self.fork_seq

    def is_lost(self, call: LedgerCall) -> bool:
        """Whether a call is outstanding, and whoever made it is gone, as far as that does not depend on the time.

        A participant outlives the process that has the session open; its claims run out by themselves.
        """
        if call.outcome is not None:
            return False
        return call.opening < self.openings if call.holder is None else self.is_inherited(call.held_since)

    @property
    def calls(self) -> Iterable[LedgerCall]:
        """All calls of tools in the order of their claims, also those that were made anew later under their name."""
        return self._calls.values()

    def outstanding(self, tool: str) -> list[LedgerCall]:
        """The calls of a tool that have no outcome, in the order of their claims."""
        return [call for call in self._outstanding.values() if call.identity.name == tool]

    def undecided_calls(self, now: int, *, is_held: bool) -> list[LedgerCall]:
        """The external calls of which nobody knows what became of them. `is_held`: a live process has the session."""
        return [
            call
            for call in self._calls.values()
            if call.outcome is None
            and call.retry_at is None
            and (call.is_asked or (_is_external(call) and not self._may_be_made(call, now, is_held=is_held)))
        ]

    def _may_be_made(self, call: LedgerCall, now: int, *, is_held: bool) -> bool:
        """Whether somebody may be at an outstanding call."""
        if self.is_lost(call) or (call.holder is None and not is_held):
            return False
        return call.expires_at is None or now < call.expires_at

    def step_mark(self, number: int) -> StepMark | None:
        """A step by its number. Steps are numbered from 1 without a gap."""
        return self._mark(self._steps[number - 1]) if 1 <= number <= len(self._steps) else None

    def _mark(self, step: Entry) -> StepMark:
        match = _STEP.match(step.payload)
        if match is not None and "\\" not in match[2]:
            return StepMark(int(match[1]), match[2], step.seq, step.at)
        with reading(self.run_id):
            told = read_head(step)
            return StepMark(told["step"], told["name"], step.seq, step.at)

    def end_of(self, mark: StepMark) -> int:
        """The last entry that was written with a step: that of its state, which follows it, or its own."""
        return mark.seq + 1 if mark.seq + 1 in self.snapshots else mark.seq

    def calls_through(self, seq: int) -> list[Entry]:
        """The claims and outcomes of the calls of tools that had an outcome after an entry, in order."""
        ended = [call for call in self._calls.values() if call.outcome is not None and call.outcome.seq <= seq]
        both = [entry for call in ended for entry in (call.entry, call.outcome) if entry is not None]
        return sorted(both, key=lambda entry: entry.seq)

    def read(self, entries: Iterable[Entry]) -> None:
        """Go on with the entries that follow."""
        entries = list(entries)
        check_understood(entries)
        if self.last is None and entries and entries[0].type not in CREATION_ENTRIES:
            raise JournalCorruptError(f"the journal of {self.run_id!r} does not begin with its creation", seq=1)
        for seq, entry in enumerate(entries, self.head + 1):
            if entry.seq != seq:
                raise JournalCorruptError(f"entry {seq} is missing before entry {entry.seq}", seq=entry.seq)
            type = entry.type
            if type == _STEP_RECORDED:  # Most entries are of these two types.
                self._read_step(entry)
            elif type == _STATE_RECORDED:
                self.snapshots.read(entry)
            else:
                self._read(entry)
            self.last = entry

    def _read(self, entry: Entry) -> None:
        type = entry.type
        if type == EntryType.TASK_SCHEDULED:
            self._read_claim(entry)
        elif type in _OUTCOMES:
            self._read_outcome(entry)
        elif type == EntryType.TASK_ATTEMPT_STARTED:
            self._read_attempt(entry)
        elif type == EntryType.TASK_ATTEMPT_FAILED:
            call = self._call(entry)
            call.failures, call.retry_at = call.failures + 1, read_head(entry)["retry_at"]
        elif type == EntryType.CALL_RENEWED:
            self._call(entry).expires_at = facts(entry)["expires_at"]
        elif type == EntryType.DECISION_REQUESTED:
            self._call(entry).is_asked = True
        elif type == EntryType.DECISION_MADE:
            call = self._call(entry)
            call.decision, call.is_asked = entry, False
        elif type == EntryType.EVENT_WAIT_STARTED:
            self._read_request(entry)
        elif type in (EntryType.EXTERNAL_EVENT_RECEIVED, EntryType.EVENT_WAIT_TIMED_OUT):
            mark = self._waits.get(outcome_call(entry))
            if mark is not None:
                mark.answer = entry
        elif type == EntryType.TIMER_CREATED:
            told = facts(entry)
            self.wake_ups[entry.seq] = WakeUp(entry.seq, told["due"], told.get("note"))
            self.wakes_asked += 1
        elif type == EntryType.TIMER_FIRED:
            self.wake_ups.pop(outcome_call(entry), None)
        elif type in _STATUS:
            self._read_status(entry)
        elif type == EntryType.RUN_FORKED:
            self.status, self.openings = SessionStatus.CREATED, self.openings + 1
            self.fork_seq, self.fork_step = entry.seq - 1, self.last_step

    def _read_status(self, entry: Entry) -> None:
        self.status = _STATUS[entry.type]
        if self.status is SessionStatus.COMPLETED:
            self._first_in_step.clear()  # What is called after this is not what was called before it.
        if entry.type in _OPENINGS:
            self.openings += 1
            if self.last_step > self.fork_step:
                self.status = SessionStatus.STEPPING

    def _read_step(self, entry: Entry) -> None:
        number = len(self._steps) + 1
        payload = entry.payload
        if not payload.startswith(f'{{"step":{number},'):
            raise JournalCorruptError(
                f"entry {entry.seq} ({entry.type}) is step {read_head(entry)['step']}, and step {number - 1} was "
                "before it",
                seq=entry.seq,
            )
        end = payload.find(_VALUE_MARK)
        self._steps.append(entry if end < 0 else entry._replace(payload=payload[:end] + "}"))
        self.status = _STEPPING

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def first_ordinal(self, tool: str) -> int:
        """The ordinal of the first call of a tool without a key in the step that is being worked on.

        It is the same however often that step is begun anew: so the same call has the same name after a crash.
        """
        step, ordinal = self._first_in_step.get(tool, (0, 0))
        return ordinal if step == self.last_step + 1 else self._counts.get(tool, 0)

    def _read_claim(self, entry: Entry) -> None:
        identity = recorded_call(entry)
        told = read_head(entry)
        step = told.get("step", self.last_step + 1)
        call = LedgerCall(entry, identity, step)
        call.hold(told, entry.seq, self.openings)
        self.ledger[identity] = self._calls[entry.seq] = self._outstanding[entry.seq] = call
        ordinal = identity.occurrence
        if isinstance(ordinal, int):
            if self._first_in_step.get(identity.name, (0, 0))[0] != step:
                self._first_in_step[identity.name] = step, ordinal
            self._counts[identity.name] = max(ordinal + 1, self._counts.get(identity.name, 0))

    def _read_attempt(self, entry: Entry) -> None:
        call = self._call(entry)
        told = facts(entry)
        call.attempt, call.retry_at = told["attempt"], None
        call.crashes += told.get("after") == "crash"
        call.hold(told, entry.seq, self.openings)

    def _read_outcome(self, entry: Entry) -> None:
        call = self._calls.get(outcome_call(entry))
        self._outstanding.pop(outcome_call(entry), None)
        if call is not None:
            call.outcome = entry

    def _call(self, entry: Entry) -> LedgerCall:
        try:
            return self._calls[outcome_call(entry)]
        except KeyError:
            raise JournalCorruptError(
                f"entry {entry.seq} ({entry.type}) answers a call that is not there", seq=entry.seq
            ) from None

    def _read_request(self, entry: Entry) -> None:
        told = read_head(entry)
        if told["event"] == APPROVAL:
            mark = ApprovalMark(entry, told["match"], told["due"])
            self.approvals[mark.key] = self._waits[entry.seq] = mark


def _is_external(call: LedgerCall) -> bool:
    return bool(read_head(call.entry).get("effect") == Effect.EXTERNAL)


_STATUS: Final[dict[str, SessionStatus]] = {
    EntryType.SESSION_CREATED: SessionStatus.CREATED,
    EntryType.SESSION_STARTED: SessionStatus.STARTED,
    EntryType.SESSION_RESUMED: SessionStatus.STARTED,
    EntryType.SESSION_PAUSED: SessionStatus.PAUSED,
    EntryType.SESSION_COMPLETED: SessionStatus.COMPLETED,
    EntryType.SESSION_CRASHED: SessionStatus.CRASHED,
}
