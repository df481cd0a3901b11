"""What a session is up to, in words: a label, why it is so, and what to do next.

Nobody drives a session but the application that has it open, so what is to be done is mostly to open it again.
"""

from typing import Final

from satay.clock import to_datetime
from satay.decisions import decided_attempts
from satay.failures import read_failure
from satay.model import EntryType, RunStatus
from satay.replay import read_head
from satay.session_calls import LedgerCall
from satay.states import RunState, Situation, StateReport, decide_commands, report_state
from satay.transcripts import SessionStatus, Transcript

_WHERE_IT_WAS: Final = "its last_step and state say where it was, and calls that are recorded are not made again"

_UNTAKEN: Final = "the decision lies in its inbox, and nobody has taken it yet"


def report_session(situation: Situation, transcript: Transcript) -> StateReport:
    """The state of a session."""
    if situation.record.status is RunStatus.COMPLETED:
        return _completed(transcript)
    if _waits_for_approval(situation, transcript):
        report = report_state(situation)  # It is decided as that of a run is.
        return _approved(situation, transcript) if report.state is RunState.DECIDED else report
    undecided = [call for call in transcript.ledger.values() if call.is_asked and call.outcome is None]
    if undecided:
        return _undecided(situation, transcript, undecided)
    match situation.record.status:
        case RunStatus.FAILED:
            return _crashed(situation, transcript)
        case RunStatus.RUNNING if situation.driver is not None:
            where = f"process {situation.driver.pid} on {situation.driver.host} has it open"
            return StateReport(RunState.STEPPING, f"{where}, {_progress(transcript)}", "nothing to do")
        case RunStatus.RUNNING:
            reason = f"the process that had it open is gone, {_progress(transcript)}"
            return StateReport(RunState.CRASHED, reason, _again(transcript, _WHERE_IT_WAS))
    if transcript.status is SessionStatus.CREATED:
        reason = f"it is a fork that nobody has opened, {_progress(transcript)}"
        return StateReport(RunState.CREATED, reason, _again(transcript, f"it goes on with step {_next(transcript)}"))
    return _paused(transcript)


def _waits_for_approval(situation: Situation, transcript: Transcript) -> bool:
    is_there = situation.record.status is RunStatus.WAITING or situation.driver is not None
    return is_there and any(mark.answer is None for mark in transcript.approvals.values())


def _approved(situation: Situation, transcript: Transcript) -> StateReport:
    takes = "it takes the decision when it asks for the approval"
    is_open = situation.record.status is RunStatus.RUNNING
    advice = f"nothing to do; {takes}" if is_open else _again(transcript, takes)
    return StateReport(RunState.DECIDED, _UNTAKEN, advice)


def _completed(transcript: Transcript) -> StateReport:
    return StateReport(
        RunState.COMPLETED,
        f"its block ended in good order, {_progress(transcript)}",
        "nothing to do; to try something else from a step of it, fork it",
        (_fork(transcript),),
    )


def _crashed(situation: Situation, transcript: Transcript) -> StateReport:
    failure = read_failure(situation.error_text)
    kind = failure.type.rpartition(":")[2] or "an error"
    return StateReport(
        RunState.CRASHED,
        f"its block ended with {kind}: {failure.message}, {_progress(transcript)}",
        f"{_again(transcript, _WHERE_IT_WAS)}; or fork it before what led there",
        (_fork(transcript),),
    )


def _undecided(situation: Situation, transcript: Transcript, undecided: list[LedgerCall]) -> StateReport:
    decided = decided_attempts(situation.messages)
    waiting = [call for call in undecided if (call.entry.seq, call.attempt) not in decided]
    if not waiting:
        return StateReport(
            RunState.DECIDED, _UNTAKEN, _again(transcript, "it takes the decision when it makes the call")
        )
    calls = ", ".join(str(call.identity) for call in waiting)
    return StateReport(
        RunState.NEEDS_DECISION,
        f"whoever made {calls} is gone, and nobody knows whether that took effect",
        "find out whether it did; then have it made again, fail it, or give its result",
        decide_commands(transcript.run_id, waiting[0].entry.seq if len(undecided) > 1 else None),
    )


def _paused(transcript: Transcript) -> StateReport:
    waits = [f"it is to be woken at {_moment(wake.due)}" for wake in transcript.wake_ups.values()]
    last = transcript.last
    if not waits and last is not None and last.type == EntryType.SESSION_PAUSED:
        waits = [str(read_head(last).get("reason", "paused"))]
    reason = f"it was left, {_progress(transcript)}" + (f": {'; '.join(waits)}" if waits else "")
    return StateReport(RunState.PAUSED, reason, _again(transcript, "it goes on where it was"))


def _fork(transcript: Transcript) -> str:
    """The command that forks a session after its last step with a state; without any, from its beginning."""
    latest = transcript.snapshots.latest
    where = "--at-step 0 --boundary lineage" if latest is None else f"--at-step {latest.step}"
    return f"satay fork {transcript.run_id} {where} --name NAME"


def _progress(transcript: Transcript) -> str:
    last = transcript.last_step
    return f"after step {last}" if last else "before its first step"


def _next(transcript: Transcript) -> int:
    return transcript.last_step + 1


def _again(transcript: Transcript, then: str) -> str:
    return f"open it with 'async with satay.Session.resume({transcript.run_id!r})'; {then}"


def _moment(at: int) -> str:
    return f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"
