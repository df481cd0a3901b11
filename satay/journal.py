"""The journal: the protocol that every store keeps, and the records it is spoken to with.

Every store promises: an append is all or nothing and is fenced by the lease's epoch and the entry numbers it names;
creating is insert-or-fail; a fork exists whole or not at all and copies its prefix as stored bytes; a caller that is
cancelled leaves no transaction open; closing ends every thread. Times come from the caller: a store has no clock.

Messages travel through the inbox. A run opens a *wait* for `(type, key)` when it records an event wait or starts a
child; the wait's row lives exactly as long as the call is unresolved. Whoever posts learns which run waits.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from satay.model import Entry, Message, RunRecord, RunStatus
from satay.resumptions import Resumption

GENESIS = b"\0" * 32
"""The digest of every first entry, which belongs to its run alone; so a fork's prefix digests like its source's."""

BLOB_THRESHOLD_BYTES = 256 * 1024
"""A value whose text is longer than this is kept in `blobs`, once for each content."""

MAX_PAGE = 10_000
"""The most rows that one read returns."""

MANY_CHARACTERS = 4_000_000
"""A read of many runs stops after the one with which their payloads are as long as this."""

CHILD_ENDED = "satay.child"
"""The message type that a store posts, with the ended run's id as key, to every run that waits for it."""

CANCEL_REQUESTED = "satay.cancel"
"""The message type that asks a run's driver to cancel it."""

TERMINATION_REQUESTED = "satay.terminate"
"""The message type that asks a run's driver to end it at once, as cancelled."""

PARENT_ASKS = "satay.parent"
"""The event id of a request to cancel that comes from the parent, so that it is made once."""

DECISION = "satay.decision"
"""The message type that carries a decision about an external call."""


def chain_digest(previous: bytes, type: str, at: int, payload: str) -> bytes:
    """The digest of an entry: SHA-256 over the one before it and over the bytes that are stored."""
    return hashlib.sha256(previous + f"{type}\n{at}\n{payload}".encode()).digest()


class Lease(NamedTuple):
    """The right to extend one run. It ends when another owner takes the run over, which raises the epoch."""

    run_id: str
    key: int
    epoch: int


class Owner(NamedTuple):
    """A process that drives runs. `started_at` tells it from a later process with the same `pid`."""

    id: str
    host: str
    pid: int
    started_at: str
    expires_at: int


class Commit:
    """An append on its way to the disk. Await it, or have it tell you.

    It tells from the store's own callback on the event loop, with no task current and without another turn of the loop
    between, which is what makes a sequence of calls fast; whoever awaits it goes on likewise.
    """

    __slots__ = ("_tell", "_waiting", "error", "is_done")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.is_done = False
        self._tell: Callable[[Commit], None] | None = None
        self._waiting: list[Resumption] | None = None

    def tell(self, callback: "Callable[[Commit], None]") -> None:
        """Call `callback` once the append is on disk, or was refused with `error`. It must not raise."""
        if self.is_done:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._tell = callback

    def settle(self, error: BaseException | None) -> None:
        """The store's part: say how the append ended, where no task is running."""
        self.is_done = True
        self.error = error
        for waiting in self._waiting or ():
            waiting.resume()
        if self._tell is not None:
            self._tell(self)

    def __await__(self) -> Generator[Any, None, None]:
        if not self.is_done:
            yield from self._end()
        if self.error is not None:
            raise self.error

    async def settled(self) -> None:
        """Return once it is known how the append ended. Only then is it passed on that the caller was cancelled."""
        cancellation: asyncio.CancelledError | None = None
        while not self.is_done:
            try:
                await self._end()
            except asyncio.CancelledError as error:
                cancellation = error
        if cancellation is not None:
            raise cancellation from self.error

    def _end(self) -> Resumption:
        resumption = Resumption(loop=asyncio.get_running_loop())
        self._waiting = [*(self._waiting or ()), resumption]
        return resumption


class Wait(NamedTuple):
    """An unresolved call that a message resolves. `call` is the seq of the entry that recorded the call."""

    call: int
    type: str
    key: str | None


class Blob(NamedTuple):
    """A large value: the SHA-256 of its UTF-8 text in hexadecimal, and the text."""

    sha256: str
    text: str


class NewRun(NamedTuple):
    """A run to be created, at epoch 1: `running` and owned by `owner` from the start; `waiting` where that is None."""

    run_id: str
    workflow: str
    created_at: int
    owner: str | None
    code_version: str
    parent_id: str | None = None
    forked_from: str | None = None
    fork_seq: int | None = None
    start_key: str | None = None


@dataclass(slots=True)
class Append:
    """One turn of one run: what must become true together.

    `entries` are consecutive and begin after the last one the writer knows. `status` is None where it stays as it is;
    `wake_at` goes with it. `taken` are ids of messages that leave the inbox; `closed` are calls whose wait ends.
    `successor`, with its first entries, is a run created in the same transaction; messages addressed to this run and
    not taken go over to it. When `status` is terminal, the store closes all waits of the run, unless it is a session,
    which can be gone on with, posts `CHILD_ENDED` to every run that waits for it, and `CANCEL_REQUESTED`, as
    `PARENT_ASKS`, to each of its children that has not ended and was not asked before.
    """

    lease: Lease
    entries: Sequence[Entry]
    at: int
    status: RunStatus | None = None
    wake_at: int | None = None
    opened: Sequence[Wait] = ()
    closed: Sequence[int] = ()
    taken: Sequence[int] = ()
    blobs: Sequence[Blob] = ()
    successor: "tuple[NewRun, Sequence[Entry]] | None" = None


class Note(NamedTuple):
    """Entries for a journal that nobody drives, which begin after the last one that the writer read."""

    run_id: str
    entries: Sequence[Entry]


@dataclass(slots=True)
class NewFork:
    """A fork to be created in one transaction.

    `first` is the fork's own entry 1. Entries 2 to `through_seq` are copied from the source as stored; the source's
    entry there must have `prefix_digest`. `after` follows the copy. `waits` are the unresolved waits in the prefix.
    """

    run: NewRun
    source_id: str
    through_seq: int
    prefix_digest: bytes
    first: Entry
    after: Sequence[Entry]
    waits: Sequence[Wait] = ()
    blobs: Sequence[Blob] = ()


class Claim(NamedTuple):
    """A run that was taken over: the lease, and the row as it was before."""

    lease: Lease
    before: RunRecord


class FirstPage(NamedTuple):
    """A journal from its first entry on. There may be more entries where `is_whole` is false.

    `has_messages` says whether there are messages that the run can take now.
    """

    run_id: str
    entries: Sequence[Entry]
    is_whole: bool
    has_messages: bool


class Posted(NamedTuple):
    """What became of a posted message.

    `id` is None where an equal `event_id` had been posted to the same receiver before. `receiver` is the run it can be
    delivered to now: the addressee if it waits for the message, else the first run that waits, else None. `driven` is
    the same among the runs that have a driver whose lease has not run out, where that is another one: the first may be
    left to itself.
    """

    id: int | None
    receiver: RunRecord | None
    driven: RunRecord | None = None


class RunQuery(NamedTuple):
    """Which runs to list, newest first. `before` is a run id: only runs created before that one. `waits_for` is a type
    of message: only runs with an open wait for one.

    Experiments are listed only where `workflow` asks for them, as `EXPERIMENT_WORKFLOW`.
    """

    status: RunStatus | None = None
    workflow: str | None = None
    forked_from: str | None = None
    parent_id: str | None = None
    waits_for: str | None = None
    before: str | None = None
    limit: int = 100


class StoreHealth(NamedTuple):
    """How a store is. `place` says where it is, `log_bytes` is what was written and not yet moved into the database.

    `problems` are what a check of the whole database found; `runs` counts runs by status; `pending` are messages that
    nobody has taken; `free_bytes` is what the disk has left.
    """

    place: str
    schema_version: int
    size_bytes: int
    log_bytes: int
    free_bytes: int
    runs: Mapping[str, int]
    pending: int
    problems: tuple[str, ...]


class ReadableJournal(Protocol):
    """What can be asked of a store of runs. Its methods may be called from one event loop."""

    def owners(self) -> Awaitable[list[Owner]]:
        """Every owner with a row."""
        ...

    def record(self, run_id: str) -> Awaitable[RunRecord | None]:
        """A run's row."""
        ...

    def started(self, start_key: str) -> Awaitable[RunRecord | None]:
        """The run that was started under an idempotency key."""
        ...

    def runs(self, query: RunQuery) -> Awaitable[list[RunRecord]]:
        """Runs that match, newest first, at most `MAX_PAGE`."""
        ...

    def ids(self, prefix: str, limit: int) -> Awaitable[list[str]]:
        """Run ids that begin with `prefix`, at most `limit`.

        Those come first that have the fewest `/` and `~` after it, which set children and successors apart; of these
        the newest.
        """
        ...

    def read(
        self,
        run_id: str,
        *,
        after: int = 0,
        limit: int = MAX_PAGE,
        without: Collection[str] = (),
        without_values: Collection[str] = (),
    ) -> Awaitable[list[Entry]]:
        """Entries with `seq > after`, in order, at most `limit` and at most `MAX_PAGE`.

        Those of the types in `without` are left out, and do not count. Those of the types in `without_values` come
        without the value that follows their facts; their digest is that of the whole entry.
        """
        ...

    def first_pages(self, run_ids: Sequence[str]) -> Awaitable[list[FirstPage]]:
        """The journals of many runs, in this order; of fewer than were asked for, where they are long.

        One that is asked for is answered at least. All together are at most `MAX_PAGE` entries; and no more runs
        follow the one with which their payloads have `MANY_CHARACTERS`.
        """
        ...

    def last(self, run_id: str) -> Awaitable[Entry | None]:
        """The last entry of a run."""
        ...

    def blobs(self, digests: Collection[str]) -> Awaitable[dict[str, str]]:
        """The texts of blobs. Raises `JournalCorruptError` naming one that is lost or damaged."""
        ...

    def due(
        self, now: int, owner: str | None, limit: int, after: RunRecord | None = None
    ) -> Awaitable[list[RunRecord]]:
        """Waiting runs whose `wake_at` has come, earliest first; those of `owner`, or of anyone where it is None.

        `after` is the last run that was read: only those that come later in this order.
        """
        ...

    def next_wake(self, owner: str | None) -> Awaitable[int | None]:
        """The earliest `wake_at` of the waiting runs of `owner`, or of anyone."""
        ...

    def abandoned(self, now: int, limit: int, after: RunRecord | None = None) -> Awaitable[list[RunRecord]]:
        """Runs with status `running` that have no owner, or one without a row, or one that expired before `now`.

        Oldest first; only those that come after the run `after`. Sessions are not among them: whoever owns their loop
        opens them anew.
        """
        ...

    def messages(self, run_id: str, limit: int = MAX_PAGE) -> Awaitable[list[Message]]:
        """Messages that this run can take now, in the order they were posted.

        Those addressed to it whose type begins with `satay.`, and those addressed to it or to nobody which match, in
        type and key, one of its open waits.
        """
        ...

    def deliverable(self, after: int, limit: int, now: int) -> Awaitable[tuple[int, list[RunRecord]]]:
        """The runs that messages with an id above `after` can be delivered to now, and the highest id there is.

        They are those of which `Posted` tells, also the first that is driven at `now`.
        """
        ...

    def waits(self, run_id: str) -> Awaitable[list[Wait]]:
        """The open waits of a run, in call order."""
        ...

    def waited_for(self, run_id: str) -> Awaitable[list[RunRecord]]:
        """The runs that live and for whose end a run waits, or waits one of them; at most `MAX_PAGE`.

        Only runs that do nothing but wait count as waiting.
        """
        ...

    def health(self) -> Awaitable[StoreHealth]:
        """How the store is. It reads the whole database."""
        ...

    def close(self) -> Awaitable[None]:
        """Write what was queued, then end. Further calls raise `JournalClosedError`. Closing twice is allowed."""
        ...


class Journal(ReadableJournal, Protocol):
    """A store of runs, which can be asked and extended. Many journals may share one database."""

    def create(self, run: NewRun, entries: Sequence[Entry], blobs: Sequence[Blob] = ()) -> Awaitable[Lease]:
        """Create a run. Raises `RunExistsError` naming the run that has the id or the `start_key`."""
        ...

    def fork(self, fork: NewFork) -> Awaitable[Lease]:
        """Create a fork whole.

        Raises `RunExistsError`, `JournalConflictError` if the source is not as told, and `JournalCorruptError` if it
        lacks an entry of the prefix.
        """
        ...

    def append(self, append: Append) -> Commit:
        """Extend a run by one turn. It is queued when called, in call order; awaiting waits for the disk.

        Raises `JournalConflictError` if the lease's epoch is not the run's, if an entry's seq is taken or leaves a gap,
        or if the run has ended; `MessageTakenError` if a message in `taken` is gone. Then nothing of it is written,
        and later appends with the same lease fail too where their seq does not follow.
        """
        ...

    def note(self, notes: Sequence[Note]) -> Awaitable[None]:
        """Extend journals that nobody drives, without a lease: all of them, or none.

        Raises `JournalConflictError` if a run is not there, has an owner or has ended, or if an entry's seq is taken or
        leaves a gap. Then nothing is written: whoever was first has won, and the other reads again.
        """
        ...

    def claim(self, seen: Sequence[RunRecord], owner: str, now: int) -> Awaitable[list[Claim]]:
        """Take over those of these runs that can be, in one transaction: epoch + 1, status `running`, `wake_at` empty.

        Allowed if the run has no owner, or is `waiting` or `needs_decision`, or its owner is `owner`, or its owner has
        no row or one that expired before `now`. Left out are runs that have ended, are unknown, are held, are
        experiments, or were taken over since they were read: their epoch is not the one of the record. A session that
        has ended can be taken over too: it is gone on with.
        """
        ...

    def release(self, lease: Lease, before: RunRecord | None = None) -> Awaitable[None]:
        """Give a run back: no owner, and status and `wake_at` as in `before`, if that is given.

        A lease that is not the run's any more is ignored.
        """
        ...

    def heartbeat(self, owner: Owner) -> Awaitable[None]:
        """Write the owner's row."""
        ...

    def retire(self, owner_id: str) -> Awaitable[None]:
        """Remove an owner: its row goes, its runs have no owner."""
        ...

    def post(
        self, run_id: str | None, type: str, key: str | None, event_id: str | None, payload: str, now: int
    ) -> Awaitable[Posted]:
        """Put a message in the inbox.

        Raises `RunNotFoundError` for an addressee that does not exist or is an experiment, and `RunEndedError` for one
        that has ended, unless the type begins with `satay.` or the same `event_id` was posted to it before.
        """
        ...
