"""Child runs, from their parents' side: started, attached to after a crash, heard of when they end, and stopped."""

from collections.abc import Awaitable, Callable, Coroutine, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from satay.archive import Archive
from satay.calls import Arrival, ChildCall
from satay.definitions import Workflow
from satay.drive import Drive
from satay.effects import ForkTerms, ToolPolicy
from satay.errors import RunConflictError, RunExistsError, SatayError, WorkflowCancelledError
from satay.failures import encode_failure
from satay.journal import CANCEL_REQUESTED, PARENT_ASKS, Journal
from satay.model import EntryType, RunRecord, RunStatus
from satay.replay import facts, inherited_children, recorded_call

if TYPE_CHECKING:
    from satay.forks import Forks


class ChildHost(Protocol):
    """What children need of the scheduler."""

    journal: Journal
    archive: Archive

    @property
    def forks(self) -> "Forks": ...

    async def create(
        self,
        definition: Workflow[..., Any],
        run_id: str,
        input_text: str,
        *,
        parent_id: str | None = None,
        terms: ForkTerms | None = None,
    ) -> None: ...

    async def take_over(self, run_id: str) -> Drive | None: ...

    async def take_over_quietly(self, run_id: str) -> None: ...

    async def post(
        self, run_id: str | None, type: str, key: str | None, event_id: str | None, payload: str
    ) -> bool: ...

    async def wake_if_ours(self, run_id: str) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def step(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back when no task is current, so that a body may be stepped."""
        ...

    def unpin(self, drive: Drive) -> None: ...

    def stop_child(self, drive: Drive, call: ChildCall) -> None: ...

    def child_is_away(self, child_id: str) -> None: ...

    def child_has_ended(self, child_id: str) -> None: ...


class Children:
    """Acts on the child calls of the runs that one scheduler drives."""

    def __init__(self, host: ChildHost) -> None:
        self._host = host
        self._sharers: dict[str, set[str]] = {}

    def start(self, drive: Drive, call: ChildCall) -> None:
        """Create the child of a call, or attach to the one that a drive before this one created, or that is shared."""
        drive.pins += 1
        self._host.spawn(self._work_for(drive, call, partial(self._start, drive, call)))

    async def _work_for(self, drive: Drive, call: ChildCall, work: Callable[[], Awaitable[None]]) -> None:
        """Do something for a call. An error stops its run, because nothing else would tell of the child any more."""
        try:
            await work()
        except SatayError as error:
            if drive.calls.get(call.seq) is not call:
                raise
            self._host.step(drive.stop, error)
        finally:
            self._host.step(self._host.unpin, drive)

    async def _start(self, drive: Drive, call: ChildCall) -> None:
        child_id = call.run_id
        if call.inherited is not None and call.inherited.is_shared:
            await self._share(drive, call)
            self._host.step(drive.child_is_there, call, child_id)
            return
        try:
            await self._create(drive, call)
        except RunExistsError:
            await self._attach(drive, call)
        if drive.calls.get(call.seq) is not call and not drive.is_suspended:
            self._host.stop_child(drive, call)
        self._host.step(drive.child_is_there, call, child_id)

    async def _create(self, drive: Drive, call: ChildCall) -> None:
        inherited = call.inherited
        if inherited is not None and inherited.source_id is not None:
            source = await self._host.journal.record(inherited.source_id)
            if source is not None and drive.terms is not None:
                await self._host.forks.make_child(source, inherited.at, call.run_id, drive.run_id, drive.terms)
                return
        assert call.input_text is not None
        terms = await self._terms(drive, call)
        await self._host.create(call.workflow, call.run_id, call.input_text, parent_id=drive.run_id, terms=terms)

    async def _terms(self, drive: Drive, call: ChildCall) -> ForkTerms | None:
        """The terms of a fork hold for the children that it starts; their source is the same child of its source."""
        terms = drive.terms
        if terms is None or ToolPolicy.REPLAY not in terms.policies.values() or terms.source_id is None:
            return terms
        entries = (await self._host.archive.entries(terms.source_id))[: terms.source_head]
        for entry in entries:
            if entry.type == EntryType.CHILD_WORKFLOW_SCHEDULED and recorded_call(entry) == call.identity:
                inherited = inherited_children(entries).get(entry.seq)
                child_id = facts(entry)["run_id"] if inherited is None else inherited.run_id
                head = await self._host.journal.last(child_id)
                return replace(terms, source_id=child_id, source_head=0 if head is None else head.seq)
        return replace(terms, source_id=None, source_head=0)

    async def _share(self, drive: Drive, call: ChildCall) -> None:
        """Let the child of the source answer. It is never driven or stopped from here."""
        child_id = call.run_id
        self._sharers.setdefault(child_id, set()).add(drive.run_id)  # First: it may end before the answer is there.
        record = await self._host.archive.record(child_id)
        if record.status.is_terminal:
            await self._deliver(drive, call, child_id, None)
        else:
            self._host.child_is_away(child_id)

    def sharers_of(self, child_id: str) -> Set[str]:
        """The forks that wait for a run that is not their child."""
        return self._sharers.get(child_id, frozenset())

    def wake_sharers(self, child_id: str) -> None:
        """A run has ended: look for what it has posted to the forks that share it, and are not its parent."""
        for run_id in self._sharers.pop(child_id, ()):
            self._host.spawn(self._host.wake_if_ours(run_id))

    async def stop(self, parent_id: str, run_id: str) -> None:
        """Ask a child, or the run that goes on in its place, to cancel."""
        asked = None
        record = await self._live(run_id)
        while record is not None and record.parent_id == parent_id and record.run_id != asked:
            asked = record.run_id
            await self._host.post(asked, CANCEL_REQUESTED, None, PARENT_ASKS, "null")
            await self._host.take_over_quietly(asked)
            record = await self._live(asked)  # It may have gone on as another run before the request was there.

    async def _live(self, run_id: str) -> RunRecord | None:
        """The run, or the one that goes on in its place; None if that has ended, or there is none."""
        if await self._host.journal.record(run_id) is None:
            return None
        latest = await self._host.archive.latest(run_id)
        return None if latest.status.is_terminal else latest

    async def stop_with_parent(self, run_id: str, parent_id: str) -> None:
        """Ask a run to cancel whose parent ended before the run was there to be asked."""
        parent = await self._host.journal.record(parent_id)
        if parent is not None and parent.status.is_terminal:
            await self._host.post(run_id, CANCEL_REQUESTED, None, PARENT_ASKS, "null")

    def hear(self, drive: Drive, call: ChildCall, message_id: int) -> None:
        """A message says that the child that answers a call has ended."""
        drive.pins += 1
        self._host.spawn(self._work_for(drive, call, partial(self._hear, drive, call, call.run_id, message_id)))

    async def _hear(self, drive: Drive, call: ChildCall, child_id: str, message_id: int) -> None:
        is_shared = call.inherited is not None and call.inherited.is_shared
        if call.is_active and not is_shared:  # The message was first: it is not known yet whose run that is.
            record = await self._host.archive.record(child_id)
            if record.parent_id != drive.run_id:
                self._refuse(drive, call, child_id, message_id)
                return
        await self._deliver(drive, call, child_id, message_id)

    async def _attach(self, drive: Drive, call: ChildCall) -> None:
        child_id = call.run_id  # A message may move the call on to another run meanwhile.
        record = await self._host.archive.record(child_id)
        if record.parent_id != drive.run_id:
            self._refuse(drive, call, child_id, None)
        elif record.status.is_terminal:
            await self._deliver(drive, call, child_id, None)
        elif await self._host.take_over(child_id) is None:
            self._host.child_is_away(child_id)

    def _refuse(self, drive: Drive, call: ChildCall, child_id: str, taken: int | None) -> None:
        error = RunConflictError(
            f"child workflow {call.name!r} of run {drive.run_id!r} would be run {child_id!r}, which is another "
            "run already; give the call a key",
            run_id=child_id,
        )
        facts = f'"call":{call.seq}'
        arrival = Arrival(EntryType.CHILD_WORKFLOW_FAILED, call, facts, encode_failure(error), taken=taken)
        self._host.step(drive.arrive, arrival)

    async def _deliver(self, drive: Drive, call: ChildCall, child_id: str, taken: int | None) -> None:
        """Hand the end of a child to its parent, or follow to the run that goes on in its place.

        The call may have gone on to another run meanwhile; then this end was followed already.
        """
        self._sharers.pop(child_id, None)
        self._host.child_has_ended(child_id)
        ending = await self._host.archive.ending(child_id)
        if ending.continued_as is not None:
            self._host.step(drive.follow_child, call, child_id, ending.continued_as, taken)
            return
        is_completed = ending.status == RunStatus.COMPLETED
        type = EntryType.CHILD_WORKFLOW_COMPLETED if is_completed else EntryType.CHILD_WORKFLOW_FAILED
        text = ending.text
        if ending.status == RunStatus.CANCELLED:
            error = WorkflowCancelledError(f"child run {child_id!r} was cancelled", run_id=child_id)
            text = encode_failure(error)
        self._host.step(drive.arrive, Arrival(type, call, f'"call":{call.seq}', text, taken=taken))
