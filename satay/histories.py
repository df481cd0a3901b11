"""One run as its journal tells it: its calls, what they took and used, its fork and its ending.

A journal is read in one pass, and of its values only those that are asked for.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Final

from satay.accounts import (
    NO_USAGE,
    STATE_OF_OUTCOME,
    AnswerSource,
    CallSide,
    CallState,
    ComparedRun,
    Reuse,
    StepSide,
    UsageTotal,
)
from satay.approval_records import verdict_text
from satay.clock import MICROSECONDS, to_datetime
from satay.collector import collector_paused
from satay.failures import read_failure
from satay.model import (
    APPROVAL,
    SESSION_WORKFLOW,
    STATUS_OF_ENDING,
    CallId,
    CallKind,
    Entry,
    EntryType,
    RunRecord,
    RunStatus,
)
from satay.receipts import StaleCall
from satay.replay import (
    CALL_KIND,
    OUTCOME_TYPES,
    blob_reference,
    outcome_call,
    read_head,
    reading,
    value_text,
    wait_arguments,
)
from satay.texts import to_plain
from satay.transcripts import StepMark, Transcript


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run with its whole journal, and the texts of those of its large values that were read."""

    record: RunRecord
    entries: Sequence[Entry]
    blobs: Mapping[str, str]


_ENDS_OF_CALLS: Final = OUTCOME_TYPES - {EntryType.WORKFLOW_CANCEL_REQUESTED}
_TASK_SCHEDULED: Final = EntryType.TASK_SCHEDULED.value

_RESUMPTIONS: Final = frozenset({EntryType.WORKFLOW_RESUMED, EntryType.SESSION_RESUMED})
"""Before them nobody drove the run, or held the session."""

_EVENT: Final = CallKind.EVENT
_OPEN: Final = CallState.OPEN
_MADE: Final = AnswerSource.MADE
_SPARED: Final = frozenset({AnswerSource.KEPT, AnswerSource.REUSED})
"""Outcomes that the run did not pay for."""

_ORDINARY_CALL: Final = re.compile(
    r'\{"(?:task|timer|event|child)":"([^"\\]*)",(?:"ordinal":(\d+)|"key":"([^"\\]*)")'
    r'(?:(?:,"effect":"\w+")?(,"input":)|[,}])'
)
_ORDINARY_OUTCOME: Final = re.compile(r'\{"call":(\d+)(?:(,"(?:result|error|payload)":)|,"\w+_blob":|\})')
"""Most calls and outcomes: those in which nothing has to be parsed. The last group matches right before the value."""


class RecordedCall:
    """A call while the journal is read.

    `input_entry` holds its arguments. Their text begins at `input_at` there, and the outcome's at `outcome_at`, as far
    as that was seen in passing. `used` are the uses of models that the run paid for, each with the entry that
    records it, `spared` those behind an outcome that it kept or reused.
    """

    __slots__ = (
        "answer",
        "attempts",
        "entry",
        "identity",
        "input_at",
        "input_entry",
        "outcome",
        "outcome_at",
        "reason",
        "reused_from",
        "spared",
        "started_at",
        "used",
    )

    def __init__(self, entry: Entry, identity: CallId, input_at: int | None = None) -> None:
        self.entry = self.input_entry = entry
        self.identity = identity
        self.started_at = entry.at
        self.attempts = 1
        self.outcome: Entry | None = None
        self.input_at = input_at
        self.outcome_at: int | None = None
        self.answer = _MADE
        self.reason: str | None = None
        self.reused_from: str | None = None
        self.used: Sequence[tuple[int, Mapping[str, Any]]] = ()
        self.spared: Sequence[Mapping[str, Any]] = ()

    @property
    def is_seen(self) -> bool:
        """Whether it is known where the texts of its arguments and of its outcome are: neither is kept in a blob."""
        return self.input_at is not None and self.outcome_at is not None

    @property
    def usage(self) -> UsageTotal:
        """What was used for the call, whoever paid for it."""
        return _add_up([*self.spared, *(use for _, use in self.used)])


class Reading:
    """What one pass over the journal of a run finds: its calls, its own fork and its ending.

    `calls` has each call as it was made last, `made` all of them in order: a session may make one anew. `transcript` is
    what a session's journal says besides, None for a run of a workflow. `state_text` is the latest state of a session,
    once somebody has read it.
    """

    @collector_paused()
    def __init__(self, history: RunHistory) -> None:
        self.history = history
        self.calls: dict[CallId, RecordedCall] = {}
        self.made: list[RecordedCall] = []
        self.own_fork: Entry | None = None
        self.end: Entry | None = None
        self.is_cancel_requested = False
        self.state_text: str | None = None
        self._by_seq: dict[int, RecordedCall] = {}
        self._reasons: dict[int, str | None] = {}
        with reading(history.record.run_id):
            for entry in history.entries:
                read = _READERS.get(entry.type)
                if read is not None:
                    read(self, entry)
            self.transcript = self._read_session() if history.record.workflow == SESSION_WORKFLOW else None

    def _read_session(self) -> Transcript:
        transcript = Transcript(self.history.record.run_id)
        transcript.read(self.history.entries)
        return transcript

    def _begin(self, entry: Entry) -> None:
        seq, type, _, payload, _ = entry
        kind = CALL_KIND[type]
        match = _ORDINARY_CALL.match(payload)
        if match is not None:
            name, ordinal, key, has_input = match.groups()
            identity = CallId(kind, name, key if ordinal is None else int(ordinal))
            call = RecordedCall(entry, identity, match.end() if has_input else None)
        else:
            known = read_head(entry)
            identity = CallId(kind, known[kind.value], known["key"] if "key" in known else known["ordinal"])
            call = RecordedCall(entry, identity)
        self.calls[identity] = self._by_seq[seq] = call
        self.made.append(call)

    def _finish(self, entry: Entry) -> None:
        match = _ORDINARY_OUTCOME.match(entry.payload)
        call = self._by_seq.pop(outcome_call(entry) if match is None else int(match[1]), None)
        if call is not None:
            call.outcome = entry
            if match is None:
                self._note_answer(call, entry)
            elif match[2]:
                call.outcome_at = match.end()

    def _note_answer(self, call: RecordedCall, entry: Entry) -> None:
        """What an outcome says besides its call and its value."""
        known = read_head(entry)
        call.answer = _answer(known)
        call.reused_from = known.get("reused_from")
        if "override" in known:
            call.reason = self._reasons.get(known["override"])
        if entry.type == EntryType.TASK_BLOCKED:
            refusal = to_plain(self.text(entry) or "{}")
            call.reason = refusal.get("reason") if isinstance(refusal, dict) else None
        uses = _uses(known)
        if call.answer in _SPARED:
            call.spared = uses
        else:
            call.used = [*call.used, *((entry.seq, use) for use in uses)]

    def _note_attempt(self, entry: Entry) -> None:
        call = self._by_seq.get(outcome_call(entry))
        if call is not None:
            known = read_head(entry)
            call.attempts = max(call.attempts, known["attempt"])
            call.used = [*call.used, *((entry.seq, use) for use in _uses(known))]

    def _request_cancel(self, entry: Entry) -> None:
        self.is_cancel_requested = True

    def _override(self, entry: Entry) -> None:
        self._reasons[entry.seq] = read_head(entry).get("reason")

    def _end(self, entry: Entry) -> None:
        self.end = entry

    def _reissue(self, entry: Entry) -> None:
        call = self._by_seq.get(outcome_call(entry))
        if call is not None:
            call.input_entry, call.input_at = entry, None

    def _resume(self, entry: Entry) -> None:
        """Nobody drove the run until now, so what the calls of tasks took begins anew."""
        self.end = None  # A session can be gone on with after its end.
        for call in self._by_seq.values():
            if call.outcome is None and call.identity.kind is CallKind.TASK:
                call.started_at = entry.at

    def _fork(self, entry: Entry) -> None:
        """Calls that were outstanding at the cut run anew from here, and what had ended has not."""
        self.end = None
        known = read_head(entry)
        if known["run_id"] == self.history.record.run_id:
            self.own_fork = entry
        for call in self._by_seq.values():
            call.started_at = entry.at
        again = self._by_seq.get(known.get("again", 0))
        if again is not None:  # With the recorded arguments, unless it is said that they are others.
            again.input_entry, again.input_at = again.entry, None

    @property
    def steps(self) -> Sequence[StepMark]:
        """The steps of a session, in order."""
        return () if self.transcript is None else self.transcript.steps

    def step_entry(self, mark: StepMark) -> Entry:
        """The entry of a step."""
        return self.history.entries[mark.seq - 1]

    def step_side(self, mark: StepMark) -> StepSide:
        """The step as it is reported."""
        entry = self.step_entry(mark)
        text = self.text(entry)
        return StepSide(mark.number, mark.name, mark.seq, blob_reference(entry) if text is None else None, text)

    @property
    def cut(self) -> int | None:
        """The last entry that a fork inherited."""
        return None if self.own_fork is None else self.own_fork.seq - 1

    def text(self, entry: Entry | None) -> str | None:
        """The recorded value of an entry, wherever it is kept; None for a large one that was not read."""
        if entry is None:
            return None
        text = value_text(entry)
        if text is not None:
            return text
        reference = blob_reference(entry)
        return None if reference is None else self.history.blobs.get(reference)

    def side(self, call: RecordedCall) -> CallSide:
        """The call as it is reported."""
        outcome, asked = call.outcome, call.input_entry
        kind, name, _ = call.identity
        if kind is _EVENT and name != APPROVAL:
            input_text: str | None = wait_arguments(read_head(asked).get("match"))
        else:
            input_text = self.text(asked) if call.input_at is None else asked.payload[call.input_at : -1]
        if outcome is None:
            outcome_seq, state, seconds, outcome_text = None, _OPEN, None, None
        else:
            outcome_seq, type, at, payload, _ = outcome
            state = STATE_OF_OUTCOME[type]
            seconds = (at - call.started_at) / MICROSECONDS
            outcome_text = self.text(outcome) if call.outcome_at is None else payload[call.outcome_at : -1]
        if name == APPROVAL:
            outcome_text = verdict_text(outcome_text)
        return CallSide(
            call.entry.seq,
            outcome_seq,
            state,
            call.answer,
            call.attempts,
            call.usage if call.used or call.spared else NO_USAGE,
            seconds,
            call.reason,
            call.reused_from,
            blob_reference(asked) if input_text is None else None,
            blob_reference(outcome) if outcome_text is None and outcome is not None else None,
            input_text,
            outcome_text,
        )

    def run(self) -> ComparedRun:
        """The run as it is reported."""
        record, entries = self.history.record, self.history.entries
        created, last = (entries[0].at, entries[-1].at) if entries else (record.created_at, record.created_at)
        receipt = to_plain(self.text(self.own_fork) or "{}")
        stale = tuple(StaleCall(**call) for call in receipt.get("stale_calls", ()))
        cut = self.cut or 0
        accounted = [call for call in self.made if call.used or call.spared]
        own = [use for call in accounted for seq, use in call.used if seq > cut]
        return ComparedRun(
            run_id=record.run_id,
            workflow=record.workflow,
            status=record.status,
            created_at=to_datetime(record.created_at),
            ended_at=None if self.end is None else to_datetime(self.end.at),
            code_version=record.code_version,
            forked_from=record.forked_from,
            fork_seq=self.cut,
            input_overridden=bool(receipt.get("input_overridden")),
            intervention=receipt.get("intervention"),
            stale_calls=stale,
            stale_count=receipt.get("stale_count", len(stale)),
            is_cancel_requested=self.is_cancel_requested,
            continued_as=None if self.end is None else read_head(self.end).get("continued_as"),
            failure=read_failure(self.text(self.end)) if record.status is RunStatus.FAILED else None,
            calls=len(self.calls),
            usage=_add_up(use for call in accounted for use in [*call.spared, *(use for _, use in call.used)]),
            own_usage=_add_up(own),
            seconds=(last - created) / MICROSECONDS,
            reused=self._reused(),
            session_status=None if self.transcript is None else self.transcript.status,
            steps=len(self.steps),
        )

    def _reused(self) -> Reuse | None:
        """What was inherited, and what came with it or by policy after the cut."""
        cut = self.cut or 0
        late = [
            call
            for call in self.calls.values()
            if call.answer in _SPARED and call.outcome is not None and call.outcome.seq > cut
        ]
        if self.own_fork is None and not late:
            return None
        inherited = reuse_of(entry for entry in self.history.entries if entry.seq <= cut)
        kept = sum(call.answer is AnswerSource.KEPT for call in late)
        return Reuse(
            calls=inherited.calls + len(late),
            usage=_joined(inherited.usage, _add_up(use for call in late for use in call.spared)),
            seconds=inherited.seconds,
            kept=kept,
            by_policy=len(late) - kept,
        )


_READERS: Final[dict[str, Callable[[Reading, Entry], None]]] = {
    **dict.fromkeys(CALL_KIND, Reading._begin),
    **dict.fromkeys(STATE_OF_OUTCOME, Reading._finish),
    **dict.fromkeys(STATUS_OF_ENDING, Reading._end),
    **dict.fromkeys(_RESUMPTIONS, Reading._resume),
    EntryType.TASK_ATTEMPT_FAILED: Reading._note_attempt,
    EntryType.TASK_ATTEMPT_STARTED: Reading._note_attempt,
    EntryType.RUN_FORKED: Reading._fork,
    EntryType.WORKFLOW_CANCEL_REQUESTED: Reading._request_cancel,
    EntryType.OUTCOME_OVERRIDDEN: Reading._override,
    EntryType.CALL_REISSUED: Reading._reissue,
}
"""What a reading does with an entry, by its type. It passes over the others."""


def _answer(known: Mapping[str, Any]) -> AnswerSource:
    if "override" in known:
        return AnswerSource.OVERRIDDEN
    if "kept" in known:
        return AnswerSource.KEPT
    return AnswerSource.REUSED if "reused_from" in known else AnswerSource.MADE


@collector_paused()
def reuse_of(prefix: Iterable[Entry]) -> Reuse:
    """What a run that inherits these entries is spared: calls with an outcome, their usage, and the time they took.

    The time of a task's call does not count in which nobody drove the run.
    """
    started: dict[int, int] = {}
    running: set[int] = set()
    intervals: list[tuple[int, int]] = []
    uses: list[Mapping[str, Any]] = []
    for entry in prefix:
        seq, type, at, payload, _ = entry
        if type in _ENDS_OF_CALLS:
            call = outcome_call(entry)
            running.discard(call)
            intervals.append((started.pop(call), at))
        elif type in CALL_KIND:
            started[seq] = at
            if type == _TASK_SCHEDULED:
                running.add(seq)
        elif type == EntryType.RUN_FORKED:
            started = dict.fromkeys(started, at)
        elif type in _RESUMPTIONS:
            started |= dict.fromkeys(running & started.keys(), at)
        # What an entry of its own keeps is told again by the outcome that it leads to.
        if '"usage":' in payload and type != EntryType.OUTCOME_KEPT:
            uses += _uses(read_head(entry))
    return Reuse(calls=len(intervals), usage=_add_up(uses), seconds=_covered(intervals) / MICROSECONDS)


def _uses(known: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    used = known.get("usage")
    return used if isinstance(used, list) else ()


def _add_up(uses: Iterable[Mapping[str, Any]]) -> UsageTotal:
    known = list(uses)
    if not known:
        return NO_USAGE
    return UsageTotal(
        models=tuple(dict.fromkeys(use["model"] for use in known)),
        input_tokens=sum(use["input_tokens"] for use in known),
        output_tokens=sum(use["output_tokens"] for use in known),
        cost=fsum(use["cost"] for use in known),
    )


def _joined(one: UsageTotal, other: UsageTotal) -> UsageTotal:
    return UsageTotal(
        models=tuple(dict.fromkeys((*one.models, *other.models))),
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cost=one.cost + other.cost,
    )


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """How much time the intervals cover together."""
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
