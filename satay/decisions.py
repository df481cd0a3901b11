"""Which external calls of a run or session wait for somebody to say what became of them.

A decision is about one attempt, and the inbox lets in one message about it: the first holds, and none is left for the
attempt after.
"""

import json
from collections.abc import Iterable, Sequence

from satay.errors import UsageError
from satay.journal import DECISION
from satay.model import SESSION_WORKFLOW, TERMINAL_ENTRIES, Entry, EntryType, Message, RunRecord
from satay.replay import facts, outcome_call, read_head, reading
from satay.transcripts import Transcript

_DECIDED = frozenset(
    {
        EntryType.DECISION_MADE,
        EntryType.CALL_CANCELLED,
        EntryType.TASK_BLOCKED,
        EntryType.TASK_COMPLETED,
        EntryType.TASK_FAILED,
    }
)
"""The entries after which a call waits for no decision any more."""


class Undecided:
    """A call that waits for a decision: the entry that records it, its task, and the attempt in question.

    `decision_id` is the event id of the one message that decides about it: about the next attempt somebody has to
    decide anew.
    """

    __slots__ = ("attempt", "decision_id", "seq", "task")

    def __init__(self, run_id: str, entry: Entry, attempt: int) -> None:
        self.seq = entry.seq
        self.task: str = read_head(entry)["task"]
        self.attempt = attempt
        self.decision_id = f"{DECISION}:{run_id}:{entry.seq}:{attempt}"


def find_undecided(
    record: RunRecord, entries: Sequence[Entry], seq: int | None, now: int, *, is_held: bool
) -> Undecided:
    """The call that a decision is about: the one at `seq`, else the first. `is_held`: a live process has the run.

    A workflow asks for a decision when it is driven again. Nobody drives a session: there a call that was lost can be
    decided about before somebody makes it again. Raises `UsageError` where nothing is to be decided.
    """
    with reading(record.run_id):
        if record.workflow == SESSION_WORKFLOW:
            undecided = _undecided_in_session(record.run_id, entries, now, is_held=is_held)
        else:
            undecided = undecided_in_run(record.run_id, entries)
    if not undecided or (seq is not None and seq not in undecided):
        asked = "" if seq is None else f" about the call at entry {seq}"
        raise UsageError(
            f"run {record.run_id!r} waits for no decision{asked}; undecided calls: {sorted(undecided) or 'none'}"
        )
    return undecided[min(undecided) if seq is None else seq]


def undecided_in_run(run_id: str, entries: Sequence[Entry]) -> dict[int, Undecided]:
    """The calls of a run of a workflow that wait for a decision, by their entry."""
    asked: dict[int, Undecided] = {}
    for entry in entries:
        if entry.type == EntryType.DECISION_REQUESTED:
            told = facts(entry)
            asked[told["call"]] = Undecided(run_id, entries[told["call"] - 1], told["attempt"])
        elif entry.type in _DECIDED:
            asked.pop(outcome_call(entry), None)
    return {} if entries[-1].type in TERMINAL_ENTRIES else asked


def decided_attempts(messages: Iterable[Message]) -> set[tuple[int, int]]:
    """The calls, and their attempts, about which there is a decision in an inbox."""
    told = [json.loads(message.payload) for message in messages if message.type == DECISION]
    return {(decided["call"], decided["attempt"]) for decided in told}


def check_is_same(there: Message | None, decided: str, run_id: str, call: Undecided) -> None:
    """Raise `UsageError` unless what was decided before, as the message tells that is `there`, is the same."""
    if there is None or there.payload != decided:
        what = "was taken already" if there is None else f"is {json.loads(there.payload)['decision']!r}"
        raise UsageError(
            f"somebody decided about the call of {call.task!r} at entry {call.seq} of run {run_id!r} before: the "
            f"decision {what}, and the first one holds. To decide about another call, name it with seq="
        )


def _undecided_in_session(run_id: str, entries: Sequence[Entry], now: int, *, is_held: bool) -> dict[int, Undecided]:
    transcript = Transcript(run_id)
    transcript.read(entries)
    calls = transcript.undecided_calls(now, is_held=is_held)
    return {call.entry.seq: Undecided(run_id, call.entry, call.attempt) for call in calls}
