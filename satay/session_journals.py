"""A session's journal while it is held: everything that is written to it goes through here, in order.

Entries are decided on, written and read into the transcript one append at a time. Where another process that takes part
in the session was first, what it wrote is read, and the decision is made again. A session that was taken over writes
nothing more.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from satay.archive import Archive
from satay.arguments import checked_run_id
from satay.clock import Clock
from satay.errors import (
    JournalConflictError,
    LeaseHeldError,
    RunConflictError,
    RunEndedError,
    SessionLostError,
    UsageError,
)
from satay.experiments import Draft
from satay.journal import Journal, Lease, NewRun, Wait
from satay.model import SESSION_WORKFLOW, Entry, EntryType, RunRecord, RunStatus
from satay.origin import Origin, origin_of, session_created
from satay.recorder import Recorder
from satay.replay import outcome_call, read_head, reading
from satay.session_wakes import due_wakes, next_wake
from satay.snapshots import Snapshot
from satay.tenure import Tenure
from satay.transcripts import STEPS_AND_STATES, SessionStatus, Transcript
from satay.waiters import Waiters

MAX_CONFLICTS: Final = 100
"""How often a write begins again because another process that takes part in the session was first."""

_AFTER: Final = {
    SessionStatus.PAUSED: "pause",
    SessionStatus.COMPLETED: "completion",
    SessionStatus.CRASHED: "crash",
}

_WAIT_BEGINS: Final = EntryType.EVENT_WAIT_STARTED.value
_WAIT_ENDS: Final = frozenset({EntryType.EXTERNAL_EVENT_RECEIVED, EntryType.EVENT_WAIT_TIMED_OUT})


class SessionHost(Protocol):
    """What sessions need of the scheduler: the journal, and the owner in whose name they hold theirs."""

    archive: Archive
    clock: Clock
    journal: Journal
    owner_id: str
    open_sessions: set[str]
    tenure: Tenure
    waiters: Waiters

    async def is_gone(self, owner_id: str | None) -> bool: ...


class Opened(NamedTuple):
    """What a session's journal says where it is opened."""

    lease: Lease
    entries: Sequence[Entry]
    origin: Origin


class SessionJournal:
    """A journal that is held. `is_participant`: another process holds it, and lets this one write too.

    `when_others_wrote` is called where entries may have been read that were not written here.
    """

    def __init__(self, host: SessionHost, opened: Opened, *, is_participant: bool = False) -> None:
        self.host = host
        self.origin = opened.origin
        self.is_participant = is_participant
        self.lease = opened.lease
        self.lapses = host.tenure.lapses
        self.transcript = Transcript(self.run_id)
        with reading(self.run_id):
            self.transcript.read(opened.entries)
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._is_behind = False
        self._lost_as: RunRecord | None = None
        self.when_others_wrote: Callable[[], None] = lambda: None

    @property
    def run_id(self) -> str:
        return self.lease.run_id

    @property
    def epoch(self) -> int:
        """How often the session changed hands."""
        return self.lease.epoch

    @property
    def is_lost(self) -> bool:
        """Whether it is known that this process has the session no more."""
        return self._lost_as is not None

    async def write(
        self,
        decide: Callable[[], Sequence[Draft]],
        *,
        status: RunStatus | None = None,
        taken: Sequence[int] = (),
    ) -> list[Entry]:
        """Write what `decide` makes of the transcript as it is then, in one append; answers the entries, once on disk.

        `decide` may refuse by raising; it is asked again where somebody else wrote meanwhile. Raises `SessionLostError`
        where another process has taken the session over, and a `JournalError` where the journal cannot be written.
        """
        self.check_loop()
        async with self._turn:  # Held until the disk has it: what is decided next builds on it.
            for _ in range(MAX_CONFLICTS):
                if self.is_lost:
                    raise self.lost()
                if self._is_behind:
                    await self.catch_up()
                drafts = decide()
                if not drafts and status is None:
                    return []
                entries = await self._append(drafts, status, taken)
                if entries is not None:
                    return entries
            raise JournalConflictError(
                f"session {self.run_id!r} was written by others {MAX_CONFLICTS} times in a row; try again",
                run_id=self.run_id,
            )

    async def _append(
        self, drafts: Sequence[Draft], status: RunStatus | None, taken: Sequence[int]
    ) -> list[Entry] | None:
        """Write; None where somebody else was first."""
        last = self.transcript.last
        assert last is not None, "a session has at least its creation"
        recorder = Recorder(self.lease, self.host.clock, last)
        entries = [recorder.record(type, facts, text) for type, facts, text in drafts]
        append = recorder.turn(status, next_wake(self.transcript) if status is RunStatus.WAITING else None)
        append.taken = taken
        append.opened = [_wait_of(entry) for entry in entries if entry.type == _WAIT_BEGINS]
        append.closed = [outcome_call(entry) for entry in entries if entry.type in _WAIT_ENDS]
        self._is_behind = True  # Until it is known how it ended.
        commit = self.host.journal.append(append)
        try:
            await commit.settled()
        finally:  # Also where the caller is cancelled, who may look at what was recorded.
            if commit.is_done and commit.error is None:
                self._is_behind = False
                self.transcript.read(entries)
                self.host.waiters.tell_of_entry(self.run_id)
        if isinstance(commit.error, JournalConflictError):
            return None
        if commit.error is not None:
            raise commit.error
        return entries

    async def refresh(self) -> None:
        """Read what others wrote. Raises `SessionLostError` where the session was taken over, or was left."""
        self.check_loop()
        async with self._turn:
            await self.catch_up()

    def check_loop(self) -> None:
        """Raise `UsageError` on another event loop than that on which the session was opened: nobody would answer."""
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                f"session {self.run_id!r} was used on another event loop than the one on which it was opened, such as "
                "one in a thread; make the call on its own loop, or take part from the other one with "
                "satay.Session.join(), by its carrier()"
            )

    async def catch_up(self) -> None:
        """Read what was written since. Raises `SessionLostError` where the session was taken over, or was left."""
        record = await self.host.archive.record(self.run_id)
        entries = await self.host.archive.entries(
            self.run_id, after=self.transcript.head, without_values=STEPS_AND_STATES
        )
        with reading(self.run_id):
            self.transcript.read(entries)
        if entries:
            self.when_others_wrote()
        was_left = record.status.is_terminal or (self.is_participant and record.status == RunStatus.WAITING)
        if record.epoch != self.lease.epoch or was_left:
            raise self.lose(record)
        self._is_behind = False

    def lose(self, record: RunRecord) -> SessionLostError:
        """Write nothing more, because this process has the session no more, as its row tells; the error of that."""
        self._lost_as = record
        return self.lost()

    def lost(self) -> SessionLostError:
        """The error of a session that this process has no more."""
        record = self._lost_as
        assert record is not None, "it is lost"
        if record.epoch == self.lease.epoch:
            what = f"was left by whoever had it open: it is {record.status}"
        else:
            what = "was taken over" + ("" if record.owner is None else f", by the owner {record.owner!r}")
        return SessionLostError(
            f"session {self.run_id!r} {what}; this process writes nothing more to it. What it wrote before is kept; "
            "fork the session, or open it again when nobody has it open",
            run_id=self.run_id,
        )

    async def state_text(self, snapshot: Snapshot) -> str:
        """The text of a state."""
        return await self.host.archive.state_text(self.transcript, snapshot)


def _wait_of(request: Entry) -> Wait:
    """The wait that a request opens."""
    told = read_head(request)
    return Wait(request.seq, told["event"], told["match"])


async def create_session(host: SessionHost, run_id: str, seed: int, code_version: str) -> Opened:
    """Make a session and hold it. Raises `RunExistsError`."""
    now = host.clock.now()
    origin = Origin(checked_run_id(run_id), seed, now, "{}")
    first = session_created(code_version, origin, now)
    run = NewRun(run_id, SESSION_WORKFLOW, now, host.owner_id, code_version)
    recorder = Recorder(Lease(run_id, 0, 1), host.clock, first)
    started = recorder.record(EntryType.SESSION_STARTED, "")
    lease = await host.journal.create(run, [first, started])
    return Opened(lease, [first, started], origin)


async def open_session(host: SessionHost, run_id: str, *, reopens: bool) -> SessionJournal:
    """Hold a session that is there, and begin it or go on with it.

    Raises `RunNotFoundError`, `RunConflictError` for a run that is none of a session, `LeaseHeldError` while somebody
    else holds it, and `RunEndedError` for one that has completed, unless it `reopens`.
    """
    record = await session_record(host.archive, run_id)
    if record.status == RunStatus.COMPLETED and not reopens:
        raise RunEndedError(
            f"session {run_id!r} has completed; to go on with it, open it with satay.Session.resume({run_id!r}), or "
            "fork it",
            run_id=run_id,
        )
    is_free = record.owner is None or record.owner == host.owner_id or record.status != RunStatus.RUNNING
    if not is_free and not await host.is_gone(record.owner):
        raise _held(run_id, "by another process that is alive")
    claims = await host.journal.claim([record], host.owner_id, host.clock.now())
    if not claims:
        raise _held(run_id, "by another process, which was first")
    claim = claims[0]
    try:
        journal = SessionJournal(host, await _read(host, claim.lease))
        await journal.write(lambda: _opening(journal.transcript, host.clock.now()))
    except Exception:
        await host.journal.release(claim.lease, claim.before)
        raise
    return journal


async def _read(host: SessionHost, lease: Lease) -> Opened:
    entries = await host.archive.entries(lease.run_id, without_values=STEPS_AND_STATES)
    with reading(lease.run_id):
        return Opened(lease, entries, origin_of(lease.run_id, entries, {}))


def _opening(transcript: Transcript, now: int) -> list[Draft]:
    """What opening a session writes: that it is open, and the wake-ups whose moment came meanwhile."""
    if transcript.status is SessionStatus.CREATED:
        begun = Draft(EntryType.SESSION_STARTED, "")
    else:
        begun = Draft(EntryType.SESSION_RESUMED, f'"after":"{_AFTER.get(transcript.status, "loss")}"')
    return [begun, *due_wakes(transcript, now)]


async def join_session(host: SessionHost, run_id: str, epoch: int) -> SessionJournal:
    """Take part in a session that another process holds. Raises `SessionLostError` where it changed hands since."""
    record = await session_record(host.archive, run_id)
    journal = SessionJournal(host, await _read(host, Lease(run_id, record.key, epoch)), is_participant=True)
    if record.epoch != epoch or record.status != RunStatus.RUNNING:
        raise journal.lose(record)
    return journal


async def session_record(archive: Archive, run_id: str) -> RunRecord:
    """The row of a session. Raises `RunNotFoundError`, or `RunConflictError` for a run that is none of a session."""
    record = await archive.record(run_id)
    if record.workflow != SESSION_WORKFLOW:
        raise RunConflictError(
            f"run {run_id!r} is there already: it is a run of workflow {record.workflow!r} and no session; choose "
            "another id",
            run_id=run_id,
        )
    return record


def _held(run_id: str, by: str) -> LeaseHeldError:
    return LeaseHeldError(
        f"session {run_id!r} is open already, {by}: it has one owner at a time. Wait until it is left, or fork it",
        run_id=run_id,
    )


def hold(host: SessionHost, run_id: str) -> None:
    """Take note that this app has a session open. Raises `LeaseHeldError` where it has."""
    if run_id in host.open_sessions:
        raise _held(run_id, "in this very app")
    host.open_sessions.add(run_id)
