"""Which external calls of a run or session wait for somebody to say what became of them."""

from collections.abc import Sequence

from satay.errors import UsageError
from satay.model import SESSION_WORKFLOW, TERMINAL_ENTRIES, Entry, EntryType, RunRecord
from satay.replay import outcome_call, read_head, reading
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

    `attempt` is None for a call of a workflow, where it is always the last.
    """

    __slots__ = ("attempt", "seq", "task")

    def __init__(self, entry: Entry, attempt: int | None) -> None:
        self.seq = entry.seq
        self.task: str = read_head(entry)["task"]
        self.attempt = attempt


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
            undecided = {call: Undecided(entries[call - 1], None) for call in _undecided_in_run(entries)}
    if not undecided or (seq is not None and seq not in undecided):
        asked = "" if seq is None else f" about the call at entry {seq}"
        raise UsageError(
            f"run {record.run_id!r} waits for no decision{asked}; undecided calls: {sorted(undecided) or 'none'}"
        )
    return undecided[min(undecided) if seq is None else seq]


def _undecided_in_run(entries: Sequence[Entry]) -> set[int]:
    asked: set[int] = set()
    for entry in entries:
        if entry.type == EntryType.DECISION_REQUESTED:
            asked.add(outcome_call(entry))
        elif entry.type in _DECIDED:
            asked.discard(outcome_call(entry))
    return set() if entries[-1].type in TERMINAL_ENTRIES else asked


def _undecided_in_session(run_id: str, entries: Sequence[Entry], now: int, *, is_held: bool) -> dict[int, Undecided]:
    transcript = Transcript(run_id)
    transcript.read(entries)
    calls = transcript.undecided_calls(now, is_held=is_held)
    return {call.entry.seq: Undecided(call.entry, call.attempt) for call in calls}
