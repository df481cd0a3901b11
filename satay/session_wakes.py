"""Wake-ups of sessions: what is appended when the moment has come at which a session asked to be woken.

A session that is open wakes itself. One that was paused is woken by the scheduler that finds it due, without being
opened: the append names the epoch and the last entry that were read, so whoever opens the session meanwhile goes first.
"""

from typing import Protocol

from satay.archive import Archive
from satay.clock import Clock
from satay.errors import JournalConflictError
from satay.experiments import Draft
from satay.journal import Journal, Lease
from satay.model import EntryType, RunRecord, RunStatus
from satay.recorder import Recorder
from satay.replay import reading
from satay.transcripts import STEPS_AND_STATES, Transcript
from satay.waiters import Waiters


class WakingHost(Protocol):
    """What waking a session needs of the scheduler."""

    archive: Archive
    clock: Clock
    journal: Journal
    waiters: Waiters


def due_wakes(transcript: Transcript, now: int) -> list[Draft]:
    """What is to be appended to a session, because the moments of its wake-ups have come, the earliest first."""
    due = sorted((wake.due, wake.seq) for wake in transcript.wake_ups.values() if wake.due <= now)
    return [Draft(EntryType.TIMER_FIRED, f'"call":{seq}') for _, seq in due]


def next_wake(transcript: Transcript, after: int = -1) -> int | None:
    """The moment of the earliest wake-up of a session, of those later than `after`."""
    return min((wake.due for wake in transcript.wake_ups.values() if wake.due > after), default=None)


async def wake_session(host: WakingHost, record: RunRecord) -> None:
    """Append to a session that nobody has open what is due. Raises a `JournalError` where that cannot be done.

    Where somebody was first, and has opened or woken it, nothing is written.
    """
    entries = await host.archive.entries(record.run_id, without_values=STEPS_AND_STATES)
    transcript = Transcript(record.run_id)
    with reading(record.run_id):
        transcript.read(entries)
    recorder = Recorder(Lease(record.run_id, record.key, record.epoch), host.clock, entries[-1])
    now = host.clock.now()
    for type, facts, text in due_wakes(transcript, now):
        recorder.record(type, facts, text)
    try:
        await host.journal.append(recorder.turn(RunStatus.WAITING, next_wake(transcript, now)))
    except JournalConflictError:
        return
    host.waiters.tell_of_entry(record.run_id)
