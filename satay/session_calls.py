"""The calls of tools and the requests for approvals of a session, as its journal tells of them.

They can be read without the session's steps and states. A call that is outstanding where the session was opened anew is
*lost*: nobody knows what became of it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from satay.effects import Effect
from satay.errors import JournalCorruptError
from satay.model import APPROVAL, CallId, Entry, EntryType
from satay.postponements import Postponements
from satay.replay import check_understood, facts, outcome_call, read_head, recorded_call


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


class SessionCalls:
    """The fold of what a session's journal tells of calls and approvals.

    `ledger` holds the calls by their name, `approvals` the requests by their key. `openings` counts how often the
    session was opened, `fork_seq` is the cut of the fork that it is.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.ledger: dict[CallId, LedgerCall] = {}
        self.approvals: dict[str, ApprovalMark] = {}
        self.openings = 0
        self.fork_seq: int | None = None
        self._calls: dict[int, LedgerCall] = {}
        self._outstanding: dict[int, LedgerCall] = {}
        self._waits: dict[int, ApprovalMark] = {}
        self._postponements = Postponements()

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

    def calls_through(self, seq: int) -> list[Entry]:
        """The claims and outcomes of the calls of tools that had an outcome after an entry, in order."""
        ended = [call for call in self._calls.values() if call.outcome is not None and call.outcome.seq <= seq]
        both = [entry for call in ended for entry in (call.entry, call.outcome) if entry is not None]
        return sorted(both, key=lambda entry: entry.seq)

    def read(self, entries: Sequence[Entry]) -> None:
        """Go on with the entries that follow. Those of steps and states may be left out."""
        entries = list(entries)
        check_understood(entries)
        for entry in entries:
            self.take(entry)

    def take(self, entry: Entry) -> None:
        """Go on with an entry of any type that is understood."""
        self._postponements.take(entry)
        take = _TAKEN.get(entry.type)
        if take is not None:
            take(self, entry)

    def _read_claim(self, entry: Entry) -> None:
        told = read_head(entry)
        call = LedgerCall(entry, recorded_call(entry), told["step"])
        call.hold(told, entry.seq, self.openings)
        self.ledger[call.identity] = self._calls[entry.seq] = self._outstanding[entry.seq] = call

    def _read_attempt(self, entry: Entry) -> None:
        call = self._call(entry)
        told = facts(entry)
        call.attempt, call.retry_at = told["attempt"], None
        call.crashes += told.get("after") == "crash"
        call.hold(told, entry.seq, self.openings)

    def _read_failure(self, entry: Entry) -> None:
        call = self._call(entry)
        call.failures, call.retry_at = call.failures + 1, read_head(entry)["retry_at"]

    def _read_renewal(self, entry: Entry) -> None:
        self._call(entry).expires_at = facts(entry)["expires_at"]

    def _read_question(self, entry: Entry) -> None:
        self._call(entry).is_asked = True

    def _read_decision(self, entry: Entry) -> None:
        call = self._call(entry)
        call.decision, call.is_asked = entry, False

    def _read_outcome(self, entry: Entry) -> None:
        call = self._calls.get(outcome_call(entry))
        self._outstanding.pop(outcome_call(entry), None)
        if call is not None:
            call.outcome = entry

    def _read_request(self, entry: Entry) -> None:
        told = read_head(entry)
        if told["event"] == APPROVAL:
            mark = ApprovalMark(entry, told["match"], told["due"])
            self.approvals[mark.key] = self._waits[entry.seq] = mark

    def _read_answer(self, entry: Entry) -> None:
        mark = self._waits.get(outcome_call(entry))
        if mark is not None:
            mark.answer = entry

    def _read_opening(self, entry: Entry) -> None:
        self.openings += 1

    def _read_fork(self, entry: Entry) -> None:
        self.openings, self.fork_seq = self.openings + 1, entry.seq - 1
        for seq, later in self._postponements.by_call.items():
            mark = self._waits.get(seq)
            if mark is not None and mark.deadline is not None:
                mark.deadline = read_head(mark.entry)["due"] + later

    def _call(self, entry: Entry) -> LedgerCall:
        try:
            return self._calls[outcome_call(entry)]
        except KeyError:
            raise JournalCorruptError(
                f"entry {entry.seq} ({entry.type}) answers a call that is not there", seq=entry.seq
            ) from None


def _is_external(call: LedgerCall) -> bool:
    return bool(read_head(call.entry).get("effect") == Effect.EXTERNAL)


_TAKEN: Final[dict[str, Callable[[SessionCalls, Entry], None]]] = {
    EntryType.TASK_SCHEDULED: SessionCalls._read_claim,
    EntryType.TASK_ATTEMPT_STARTED: SessionCalls._read_attempt,
    EntryType.TASK_ATTEMPT_FAILED: SessionCalls._read_failure,
    EntryType.CALL_RENEWED: SessionCalls._read_renewal,
    EntryType.DECISION_REQUESTED: SessionCalls._read_question,
    EntryType.DECISION_MADE: SessionCalls._read_decision,
    EntryType.TASK_COMPLETED: SessionCalls._read_outcome,
    EntryType.TASK_FAILED: SessionCalls._read_outcome,
    EntryType.TASK_BLOCKED: SessionCalls._read_outcome,
    EntryType.CALL_CANCELLED: SessionCalls._read_outcome,
    EntryType.EVENT_WAIT_STARTED: SessionCalls._read_request,
    EntryType.EXTERNAL_EVENT_RECEIVED: SessionCalls._read_answer,
    EntryType.EVENT_WAIT_TIMED_OUT: SessionCalls._read_answer,
    EntryType.SESSION_STARTED: SessionCalls._read_opening,
    EntryType.SESSION_RESUMED: SessionCalls._read_opening,
    EntryType.RUN_FORKED: SessionCalls._read_fork,
}
