"""One session as its journal tells it: its steps, its states, its ledger of tool calls, and what it is doing.

A transcript is read in one pass and goes on with each entry that is written. Of values it keeps none. Of steps and
states, which are most of it, it keeps the entries, and reads what they say when it is asked for.

What was recorded at or before the cut of a fork is *inherited*.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from satay.errors import JournalCorruptError
from satay.model import CREATION_ENTRIES, VALUE_FIELD, Entry, EntryType
from satay.replay import check_understood, facts, outcome_call, read_head, reading
from satay.session_calls import SessionCalls
from satay.snapshots import Snapshots

MAX_STEP: Final = 2**53
"""The largest number of a step that can be asked for."""

STEPS_AND_STATES: Final = (EntryType.STEP_RECORDED, EntryType.STATE_RECORDED)
"""The types of entries that record those. A transcript has no need of their values."""

_STEP_RECORDED: Final = EntryType.STEP_RECORDED.value
_STATE_RECORDED: Final = EntryType.STATE_RECORDED.value

_VALUE_MARK: Final = f',"{VALUE_FIELD[EntryType.STEP_RECORDED]}":'
_STEP: Final = re.compile(r'\{"step":(\d+),"name":"((?:[^"\\]|\\.)*)"')


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


class WakeUp(NamedTuple):
    """A moment at which the session is to be woken: its entry, when, and what was noted with it."""

    seq: int
    due: int
    note: str | None


class Transcript(SessionCalls):
    """The fold of a session's journal. Raises `JournalCorruptError` for a journal that is none of a session."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.status = SessionStatus.CREATED
        self.last: Entry | None = None
        self.snapshots = Snapshots(run_id)
        self.wake_ups: dict[int, WakeUp] = {}
        self.wakes_asked = 0
        self.fork_step = 0
        self.completions = 0
        self._steps: list[Entry] = []
        self._marks: list[StepMark] = []
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

    def read(self, entries: Sequence[Entry]) -> None:
        """Go on with the entries that follow."""
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
                self.take(entry)
            self.last = entry

    def take(self, entry: Entry) -> None:
        super().take(entry)
        take = _TAKEN.get(entry.type)
        if take is not None:
            take(self, entry)

    def _count_claim(self, entry: Entry) -> None:
        """Note which ordinals of a tool are taken, and which was the first in a step."""
        call = self._calls[entry.seq]
        tool, ordinal = call.identity.name, call.identity.occurrence
        if isinstance(ordinal, int):
            if self._first_in_step.get(tool, (0, 0))[0] != call.step:
                self._first_in_step[tool] = call.step, ordinal
            self._counts[tool] = max(ordinal + 1, self._counts.get(tool, 0))

    def _read_timer(self, entry: Entry) -> None:
        told = facts(entry)
        self.wake_ups[entry.seq] = WakeUp(entry.seq, told["due"], told.get("note"))
        self.wakes_asked += 1

    def _read_waking(self, entry: Entry) -> None:
        self.wake_ups.pop(outcome_call(entry), None)

    def _go_on(self, entry: Entry) -> None:
        self.status = SessionStatus.STEPPING if self.last_step > self.fork_step else SessionStatus.STARTED

    def _become_fork(self, entry: Entry) -> None:
        self.status, self.fork_step = SessionStatus.CREATED, self.last_step

    def _end(self, entry: Entry) -> None:
        self.status = _ENDS[entry.type]
        if self.status is SessionStatus.COMPLETED:
            self.completions += 1
            self._first_in_step.clear()  # What is called after this is not what was called before it.

    def _read_step(self, entry: Entry) -> None:
        number = len(self._steps) + 1
        payload = entry.payload
        if not payload.startswith(f'{{"step":{number},'):
            raise JournalCorruptError(
                f"entry {entry.seq} ({entry.type}) is step {step_number(entry)}, and step {number - 1} was before it",
                seq=entry.seq,
            )
        end = payload.find(_VALUE_MARK)
        self._steps.append(
            entry if end < 0 else Entry(entry.seq, entry.type, entry.at, payload[:end] + "}", entry.digest)
        )
        self.status = _STEPPING

    def first_ordinal(self, tool: str) -> int:
        """The ordinal of the first call of a tool without a key in the step that is being worked on.

        It is the same however often that step is begun anew: so the same call has the same name after a crash.
        """
        step, ordinal = self._first_in_step.get(tool, (0, 0))
        return ordinal if step == self.last_step + 1 else self._counts.get(tool, 0)


def step_number(step: Entry) -> int:
    """The number of the step that an entry records. Raises `JournalCorruptError`."""
    number = read_head(step)["step"]
    if not isinstance(number, int):
        raise JournalCorruptError(
            f"entry {step.seq} ({step.type}) is step {number!r}, which is no number", seq=step.seq
        )
    return number


_ENDS: Final[dict[str, SessionStatus]] = {
    EntryType.SESSION_PAUSED: SessionStatus.PAUSED,
    EntryType.SESSION_COMPLETED: SessionStatus.COMPLETED,
    EntryType.SESSION_CRASHED: SessionStatus.CRASHED,
}

_TAKEN: Final[dict[str, Callable[[Transcript, Entry], None]]] = {
    EntryType.SESSION_STARTED: Transcript._go_on,
    EntryType.SESSION_RESUMED: Transcript._go_on,
    **dict.fromkeys(_ENDS, Transcript._end),
    EntryType.RUN_FORKED: Transcript._become_fork,
    EntryType.TASK_SCHEDULED: Transcript._count_claim,
    EntryType.TIMER_CREATED: Transcript._read_timer,
    EntryType.TIMER_FIRED: Transcript._read_waking,
}
