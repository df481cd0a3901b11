"""Reading what a journal holds of runs. Nothing is driven for it, and nothing is written."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from satay.approval_inbox import list_pending
from satay.approval_records import PendingApproval
from satay.archive import Archive, Ending
from satay.arguments import checked_count, shown
from satay.clock import SystemClock, to_datetime
from satay.codec import ValueCodec
from satay.declarations import OPAQUE
from satay.definitions import Workflow, workflows
from satay.errors import AmbiguousRunError, InvalidValueError, RunNotFoundError, UsageError, WorkflowCancelledError
from satay.failures import Failure, read_failure, rebuilt_workflow_failure
from satay.handles import RunEvent, RunOrId, RunReference, RunSummary
from satay.journal import RunQuery
from satay.model import (
    SESSION_WORKFLOW,
    TERMINAL_ENTRIES,
    Entry,
    EntryType,
    RunRecord,
    RunStatus,
)
from satay.replay import facts, reading
from satay.settings import Settings
from satay.stores.locations import open_journal_for_reading
from satay.texts import to_plain

if TYPE_CHECKING:
    from satay.experiments import Outcome
    from satay.matrices import ComparisonMatrix
    from satay.receipts import ForkReceipt
    from satay.reports import Comparison
    from satay.state_diffs import StateDiff
    from satay.trail_items import TrailItem
    from satay.trails import DecisionTrail
    from satay.verification import Verification

MAX_LISTED_RUNS: Final = 1000
"""The most runs that one `runs()` returns."""

MAX_SEQ: Final = (1 << 63) - 1
"""The largest number that an entry can have."""

EVENTS_PER_PAGE: Final = 500
"""How many entries `events()` reads at a time."""

POLL_SECONDS: Final = 0.5
"""How often a reader that drives nothing looks for entries that other processes write."""

MAX_CANDIDATES: Final = 20
"""At most so many ids are listed that begin with a shortened one."""

MAX_COMPARED_IDS: Final = 1000
"""So many ids are compared with one that does not exist, to find the one that was meant."""

MAX_NAMED_IDS: Final = 3
"""So many ids are named in an error."""


_ENDS: Final = TERMINAL_ENTRIES | {EntryType.SESSION_COMPLETED}
"""The entries after which nobody waits for more."""


class RunEnding(NamedTuple):
    """How a run ended. `text` is the recorded text of its result, or of the error of a failed run."""

    run_id: str
    status: RunStatus
    text: str | None

    @property
    def result(self) -> Any:
        """The result as plain JSON data, never as a user's type; None unless the run completed."""
        return to_plain(self.text or "null") if self.status is RunStatus.COMPLETED else None

    @property
    def failure(self) -> Failure | None:
        """What was recorded of the error of a failed run."""
        return read_failure(self.text) if self.status is RunStatus.FAILED else None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        data: dict[str, Any] = {"run_id": self.run_id, "status": self.status.value, "result": self.result}
        failure = self.failure
        error = None if failure is None else {"type": failure.type, "message": failure.message}
        return data | {"error": error}


class Reader(ABC):
    """Answers what is recorded of the runs of one journal."""

    @abstractmethod
    async def _archive(self) -> Archive:
        """The journal's archive, once it is open."""

    async def _id_of(self, run: RunOrId) -> str:
        """The id of a run that a caller names."""
        return checked_run(run)

    def _next_entry(self, run_id: str) -> "asyncio.Future[None]":
        """Done when this process next writes to the run's journal."""
        return asyncio.get_running_loop().create_future()

    @property
    def _poll_seconds(self) -> float:
        """How often to look for entries that other processes write."""
        return POLL_SECONDS

    async def runs(
        self,
        *,
        status: RunStatus | str | None = None,
        workflow: str | Workflow[..., Any] | None = None,
        forked_from: RunOrId | None = None,
        limit: int = 100,
        before: RunOrId | None = None,
    ) -> list[RunSummary]:
        """Runs that match, newest first, at most `limit`; with `before`, those created before that run.

        Raises `InvalidValueError` for a status that there is none of, what names no workflow, and a limit that is not 1
        to 1000; `RunNotFoundError` for a run in `before` that is not there.
        """
        if workflow is not None and not isinstance(workflow, str | Workflow):
            raise InvalidValueError(
                f"runs(workflow={shown(workflow)}) names no workflow; give a @satay.workflow, or its name"
            )
        checked_count(limit, "limit of runs()", 1, MAX_LISTED_RUNS)
        try:
            wanted = None if status is None else RunStatus(status)
        except ValueError:
            choices = ", ".join(repr(choice.value) for choice in RunStatus)
            raise InvalidValueError(f"runs(status={status!r}): it must be one of {choices}") from None
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        archive = await self._archive()
        source_id = None if forked_from is None else await self._id_of(forked_from)
        before_id = None if before is None else await self._id_of(before)
        if before_id is not None:
            await self._record(before_id)
        query = RunQuery(status=wanted, workflow=name, forked_from=source_id, before=before_id, limit=limit)
        return [summary_of(record) for record in await archive.journal.runs(query)]

    async def run(self, run_id: RunOrId) -> RunSummary:
        """One run. Raises `RunNotFoundError`."""
        await self._archive()
        return summary_of(await self._record(await self._id_of(run_id)))

    async def status(self, run: RunOrId) -> RunStatus:
        """What a run, or the run that goes on in its place, is doing. Raises `RunNotFoundError`."""
        return (await self._last_of(await self._id_of(run))).status

    async def _last_of(self, run_id: str) -> RunRecord:
        """The run itself, or the one that goes on in its place."""
        return await (await self._archive()).latest(run_id)

    async def approvals(self, run_id: RunOrId | None = None) -> list[PendingApproval]:
        """The approvals that a run waits for, or all runs, in the order in which they were asked for.

        Those that have been decided, or whose time is up, are not among them. Raises `RunNotFoundError`.
        """
        archive = await self._archive()
        chosen = None if run_id is None else await self._id_of(run_id)
        return await list_pending(archive, chosen, self._now())

    def _now(self) -> int:
        """The moment, in microseconds since the epoch."""
        return SystemClock().now()

    async def outcome(self, run: RunOrId) -> "Outcome | None":
        """The outcome of a run that was recorded last, or None. Raises `RunNotFoundError`."""
        from satay.laboratory import read_outcome

        archive = await self._archive()
        return await read_outcome(archive, await archive.run(await self._id_of(run)))

    async def receipt(self, run_id: RunOrId) -> "ForkReceipt | None":
        """What a fork inherited, as it was written when the fork was made; None for a run that is not a fork.

        Raises `RunNotFoundError`.
        """
        from satay.receipts import ForkReceipt

        archive = await self._archive()
        text = await archive.receipt_text(await self._id_of(run_id))
        return None if text is None else ForkReceipt.from_json(text)

    async def events(self, run_id: RunOrId, *, after: int = 0) -> AsyncIterator[RunEvent]:
        """The entries of a run with `seq > after`: what is recorded, then each as it is written, until the run ends.

        A session ends when it has completed, and nobody has gone on with it when that was read. One that was paused or
        crashed may be gone on with and is waited for; whoever does not want to stops at `SessionCrashed`.

        Raises `RunNotFoundError`, and `InvalidValueError` where `after` is no number of an entry, or 0.
        """
        checked_count(after, "after of events()", 0, MAX_SEQ)
        journal = (await self._archive()).journal
        run_id = await self._id_of(run_id)
        await self._record(run_id)
        has_ended = False
        while True:
            news = self._next_entry(run_id)
            page = await journal.read(run_id, after=after, limit=EVENTS_PER_PAGE)
            for entry in page:
                with reading(run_id):
                    known = facts(entry)
                yield RunEvent(entry.seq, entry.type, to_datetime(entry.at), known)
                after = entry.seq
            if page and page[-1].type in TERMINAL_ENTRIES:
                return
            if page:
                has_ended = False  # What was read may say that a session goes on.
                continue
            if has_ended:
                return
            # It may have ended after the page was read: then its last entries are still to come.
            record = await self._record(run_id)
            is_crashed_session = record.workflow == SESSION_WORKFLOW and record.status is RunStatus.FAILED
            has_ended = record.status.is_terminal and not is_crashed_session
            if not has_ended:
                await asyncio.wait((news,), timeout=self._poll_seconds)

    async def follow(self, run: RunOrId, *, after: int = 0) -> "AsyncIterator[TrailItem]":
        """The decision trail of a run or a session, item by item: what is recorded, then each as it is written.

        Every entry is one item, without a gap and none twice; with `after`, those behind that entry. It ends with a run
        that has ended and with a session that has completed, where nothing follows. A session that is paused or has
        crashed, and a run that waits, can be gone on with, also by other processes: it is followed on until the caller
        stops.

        Raises `RunNotFoundError`, `InvalidValueError` where `after` is no number of an entry, or 0, and
        `JournalCorruptError` for an entry that cannot be read.
        """
        from satay.lineages import open_trail

        checked_count(after, "after of follow()", 0, MAX_SEQ)
        archive = await self._archive()
        run_id = await self._id_of(run)
        trail = await open_trail(archive, run_id)
        last: Entry | None = None
        while True:
            news = self._next_entry(run_id)
            page = await archive.journal.read(run_id, after=0 if last is None else last.seq, limit=EVENTS_PER_PAGE)
            for entry in page:
                with reading(run_id):
                    item = trail.read(entry)
                last = entry
                if entry.seq > after:
                    yield item
            if len(page) == EVENTS_PER_PAGE:
                continue
            if last is not None and last.type in _ENDS:
                return
            await asyncio.wait((news,), timeout=self._poll_seconds)

    async def diff_states(
        self, one: RunOrId, other: RunOrId, /, *, at: int | tuple[int, int] | None = None
    ) -> "StateDiff":
        """Compare the states of two sessions: the latest of each, or those of a step. Printing the result shows it.

        `at` is a step of both, or two steps: `at=(7, 9)`; `one` and `other` may be the same session then. The state is
        that of exactly this step. What both come from is told too, and where each of them left it.

        Raises `RunNotFoundError`; `UsageError` for a run that is no session; `InvalidValueError` for a step that there
        is not; `NoRestorableStateError` where no state was recorded, naming the nearest steps with one.
        """
        from satay.lineages import diff_two_states

        run_ids = [await self._id_of(run) for run in (one, other)]
        return await diff_two_states(await self._archive(), run_ids[0], run_ids[1], at)

    async def decision_trail(self, run: RunOrId) -> "DecisionTrail":
        """Where a run or a session comes from, what it inherited, and every decision in it. Printing it shows tables.

        Raises `RunNotFoundError`, and `JournalCorruptError` for a journal that cannot be read.
        """
        from satay.lineages import read_trail

        archive = await self._archive()
        return await read_trail(archive, await self._id_of(run))

    async def entries_after(self, run_id: str, seq: int) -> list[Entry]:
        """The entries of a run behind entry `seq`. Raises `JournalError` where they cannot be read."""
        return await (await self._archive()).entries(run_id, after=seq)

    async def verify(self, run: RunOrId) -> "Verification":
        """Check that a run's journal is what was written: digests, order, receipt, large values, inherited entries.

        A journal that is damaged is an answer, which names the first entry that does not fit. Raises
        `RunNotFoundError`.
        """
        from satay.audits import verify_run

        archive = await self._archive()
        return await verify_run(archive, await self._id_of(run))

    @overload
    async def compare(self, one: RunOrId, other: RunOrId, /) -> "Comparison": ...
    @overload
    async def compare(self, one: RunOrId, other: RunOrId, third: RunOrId, /, *more: RunOrId) -> "ComparisonMatrix": ...
    async def compare(self, one: RunOrId, other: RunOrId, /, *more: RunOrId) -> "Comparison | ComparisonMatrix":
        """Compare two runs call by call, or several with the first of them. Printing the result shows tables.

        Raises `RunNotFoundError`, or `JournalCorruptError` for a journal that cannot be read.
        """
        from satay.audits import compare_many, compare_two

        run_ids = [await self._id_of(run) for run in (one, other, *more)]
        archive = await self._archive()
        return await (compare_many(archive, run_ids) if more else compare_two(archive, *run_ids))

    async def _record(self, run_id: str) -> RunRecord:
        return await (await self._archive()).record(run_id)

    async def ending(self, run: RunOrId) -> "RunEnding":
        """How a run, or the one that goes on in its place, has ended. Raises `UsageError` for one that has not."""
        record = await self._last_of(await self._id_of(run))
        if not record.status.is_terminal:
            raise UsageError(f"run {record.run_id!r} is {record.status} and has not ended; wait for its result")
        ending = await (await self._archive()).ending(record.run_id)
        return RunEnding(record.run_id, ending.status, ending.text)

    async def _value_of(self, run_id: str, ending: Ending, codec: ValueCodec | None) -> Any:
        """The result of a run that ended so, or its error, raised."""
        if ending.status == RunStatus.CANCELLED:
            raise WorkflowCancelledError(f"run {run_id!r} was cancelled", run_id=run_id)
        if ending.status == RunStatus.FAILED:
            raise rebuilt_workflow_failure(ending.text or "{}", run_id)
        if codec is None:
            known = workflows.get((await self._record(run_id)).workflow)
            codec = OPAQUE if known is None else known.result_codec
        return codec.decode(ending.text or "null", f"the result of run {run_id!r}")


class JournalReader(Reader):
    """Reads a journal and does nothing else: no process learns of it. Made by `open_reader`."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive

    async def _archive(self) -> Archive:
        return self.archive

    async def find(self, shortened: str) -> str:
        """The id of the run that has this id, or whose id alone begins with it.

        Where several do, ids that go on with `/` or `~` do not count: so a run is found beside its children. Raises
        `AmbiguousRunError`, `InvalidValueError` for an empty text, and `RunNotFoundError` that names ids which are like
        it.
        """
        journal = self.archive.journal
        if not shortened:  # It is the beginning of every id, and what a variable of a shell gives that is not set.
            raise InvalidValueError("'' names no run; give the id of one, or the beginning of it")
        if await journal.record(shortened) is not None:
            return shortened
        found = await journal.ids(shortened, MAX_CANDIDATES)
        nearest = [run_id for run_id in found if _depth(run_id, shortened) == _depth(found[0], shortened)]
        if not nearest:
            raise _not_found(shortened, await journal.ids("", MAX_COMPARED_IDS))
        if len(nearest) > 1:
            names = ", ".join(map(repr, nearest[:MAX_NAMED_IDS]))
            more = " and more" if len(nearest) > MAX_NAMED_IDS else ""
            raise AmbiguousRunError(
                f"{shortened!r} is the beginning of several run ids: {names}{more}; give more of the one you mean",
                candidates=nearest,
            )
        return nearest[0]


def _depth(run_id: str, prefix: str) -> int:
    rest = run_id[len(prefix) :]
    return rest.count("/") + rest.count("~")


def _not_found(run_id: str, known: Sequence[str]) -> RunNotFoundError:
    close = get_close_matches(run_id, known, n=MAX_NAMED_IDS)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "satay runs lists the runs that there are"
    return RunNotFoundError(f"there is no run {run_id!r} in this journal; {hint}", run_id=run_id)


@asynccontextmanager
async def open_reader(settings: Settings) -> AsyncGenerator[JournalReader, None]:
    """A reader of the journal that settings name, for an `async with` block. Other processes may write meanwhile.

    Raises `JournalNotFoundError` where there is no journal, and makes none; else a `JournalError` where it cannot be
    read.
    """
    journal = await open_journal_for_reading(settings)
    try:
        yield JournalReader(Archive(journal))
    finally:
        await journal.close()


def checked_run(run: RunOrId) -> str:
    """The id of a run as far as it is known now. Raises `UsageError` for what names no run."""
    if isinstance(run, RunReference):
        return run.run_id
    if not isinstance(run, str):
        raise UsageError(
            f"{shown(run)} names no run; give the id of a run, the handle that satay.start() returned, or a session"
        )
    return run


def summary_of(record: RunRecord) -> RunSummary:
    """The row of a run, as it is shown."""
    return RunSummary(
        run_id=record.run_id,
        workflow=record.workflow,
        status=record.status,
        created_at=to_datetime(record.created_at),
        updated_at=to_datetime(record.updated_at),
        wake_at=None if record.wake_at is None else to_datetime(record.wake_at),
        parent_id=record.parent_id,
        forked_from=record.forked_from,
        fork_seq=record.fork_seq,
        code_version=record.code_version,
    )
