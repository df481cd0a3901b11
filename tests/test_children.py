"""Child runs: created once, attached to, followed when they go on as another run, heard of, and stopped."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import satay
from satay.archive import Archive
from satay.calls import ChildCall, TaskCall
from satay.children import Children
from satay.clock import Chance, Clock
from satay.drive import Drive
from satay.effects import ForkTerms
from satay.errors import JournalBusyError, RunExistsError
from satay.failures import encode_failure, parse_failure
from satay.forks import Forks
from satay.journal import CANCEL_REQUESTED, GENESIS, PARENT_ASKS, Append, Blob, Commit, Journal, Lease, NewRun
from satay.model import Entry, EntryType, Message, RunRecord, RunStatus
from satay.origin import Origin, workflow_created
from satay.replay import Divergence, history_of, value_text
from satay.revivals import DriveSettings
from satay.testing import Faults, ManualClock, open_app, settle
from satay.watch import TurnWatch
from tests.driving import in_loop, types_of

CHILD = "r/children.counts:0"


@satay.workflow(name="children.counts")
async def counts(number: int) -> str:
    if number < 3:
        satay.continue_as_new(number + 1)
    await satay.wait_for_event("go")
    return f"counted to {number}"


@satay.workflow(name="children.parent")
async def parent() -> str:
    return await satay.start_child(counts, 1).result()


class Records:
    """A journal in memory: rows, last entries, and what is appended. Readers of the last entry wait at the gate."""

    def __init__(self) -> None:
        self.rows: dict[str, RunRecord] = {}
        self.lasts: dict[str, Entry] = {}
        self.entries: list[Entry] = []
        self.taken: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.go_on_when_asked = False
        self.is_broken = False

    def add(self, run_id: str, last: Entry | None = None, status: RunStatus = RunStatus.RUNNING, **row: Any) -> None:
        made = RunRecord(1, run_id, "story", status, 0, 0, None, None, 1, "r", None, None, None, "v")
        self.rows[run_id] = made._replace(**row)
        self.lasts[run_id] = last or Entry(1, EntryType.WORKFLOW_CREATED, 0, '{"input":{}}', GENESIS)

    def end(self, run_id: str, type: str, status: RunStatus, members: str = "") -> None:
        self.add(run_id, Entry(2, type, 0, f"{{{members}}}", GENESIS), status)

    def go_on(self, run_id: str, continued_as: str) -> None:
        self.end(run_id, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, f'"continued_as":"{continued_as}"')

    async def record(self, run_id: str) -> RunRecord | None:
        return self.rows.get(run_id)

    async def last(self, run_id: str) -> Entry | None:
        await self.gate.wait()
        if self.is_broken:
            raise JournalBusyError("the journal stayed locked")
        return self.lasts.get(run_id)

    def append(self, append: Append) -> Commit:
        self.entries += append.entries
        self.taken += append.taken
        commit = Commit()
        commit.settle(None)
        return commit


class Nursery:
    """The host of one parent and its children, which notes what is asked of it."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.journal = cast(Journal, records)  # No other method of a journal is called here.
        self.archive = Archive(self.journal)
        self.clock: Clock = ManualClock()
        self.chance = Chance(7)
        self.drive_settings = DriveSettings()
        self.turn_watch = TurnWatch(lambda run_id, seconds, line: None)
        self.forks = cast(Forks, None)  # No child is inherited here.
        self.children = Children(self)
        self.created: list[str] = []
        self.taken_over: list[str] = []
        self.posted: list[tuple[Any, ...]] = []
        self.stopped: list[BaseException] = []
        self._work: set[asyncio.Task[None]] = set()

    # --- what children ask for

    async def wake_if_ours(self, run_id: str) -> None:
        raise AssertionError("no child is shared here")

    async def create(
        self,
        definition: satay.Workflow[..., Any],
        run_id: str,
        input_text: str,
        *,
        parent_id: str | None = None,
        terms: ForkTerms | None = None,
    ) -> None:
        if self.records.is_broken:
            raise JournalBusyError("the journal stayed locked")
        if run_id in self.records.rows:
            raise RunExistsError("there is one", run_id=run_id)
        self.records.add(run_id, parent_id=parent_id)
        self.created.append(run_id)

    async def take_over(self, run_id: str) -> Drive | None:
        self.taken_over.append(run_id)
        return None

    async def take_over_quietly(self, run_id: str) -> None:
        self.taken_over.append(run_id)

    async def post(self, run_id: str | None, type: str, key: str | None, event_id: str | None, payload: str) -> bool:
        self.posted.append((run_id, type, event_id))
        if self.records.go_on_when_asked:
            self.records.go_on_when_asked = False
            self.records.go_on(str(run_id), f"{run_id}~2")
            self.records.add(f"{run_id}~2")
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._work.add(asyncio.ensure_future(work))

    def step(self, callback: Callable[..., None], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(callback, *args)

    def unpin(self, drive: Drive) -> None:
        drive.pins -= 1

    def child_is_away(self, child_id: str) -> None: ...

    def child_has_ended(self, child_id: str) -> None: ...

    # --- what the drive of the parent asks for

    def start_child(self, drive: Drive, call: ChildCall) -> None:
        self.children.start(drive, call)

    def stop_child(self, drive: Drive, call: ChildCall) -> None:
        self.spawn(self.children.stop(drive.run_id, call.run_id))

    def drive_stopped(self, drive: Drive, error: BaseException) -> None:
        self.stopped.append(error)

    def start_attempt(self, drive: Drive, call: TaskCall) -> None: ...
    def stop_attempt(self, drive: Drive, call: TaskCall) -> None: ...
    def look_for_messages(self, drive: Drive) -> None: ...
    def wake_at(self, drive: Drive, due: int) -> None: ...
    def turn_committed(self, drive: Drive) -> None: ...
    def drive_ended(self, drive: Drive) -> None: ...
    def schedule_differed(self, drive: Drive, divergence: Divergence) -> None: ...

    def successor(self, drive: Drive, input_text: str) -> tuple[NewRun, Sequence[Entry], Sequence[Blob]]:
        raise AssertionError("the parent goes on as itself")

    # --- the test's own

    async def drive_parent(self) -> Drive:
        """A parent that has begun, with its child on the way."""
        origin = Origin("r", 7, self.clock.now(), "{}")
        entry, _ = workflow_created(parent, origin, self.clock.now())
        drive = Drive(self, Lease("r", 1, 1), parent, origin, history_of([entry]), {})
        self.step(drive.begin, False)
        await passes()
        return drive

    async def settle(self) -> None:
        """Wait for the background, whose errors are the test's."""
        await passes()
        while self._work:
            await asyncio.gather(*self._work)
            self._work = {work for work in self._work if not work.done()}
            await passes()

    def types(self) -> list[str]:
        return [entry.type for entry in self.records.entries]


async def passes(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def in_nursery(test: Callable[[Nursery], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        nursery = Nursery(Records())
        try:
            await test(nursery)
        finally:
            nursery.turn_watch.close()

    in_loop(run())


def only_call(drive: Drive) -> ChildCall:
    (call,) = drive.calls.values()
    assert isinstance(call, ChildCall)
    return call


# --- started and attached to ------------------------------------------------------------------------------------------


def test_a_child_is_created_as_a_run_of_its_parent_and_waited_for() -> None:
    async def test(nursery: Nursery) -> None:
        drive = await nursery.drive_parent()
        await nursery.settle()

        assert [CHILD] == nursery.created
        assert "r" == nursery.records.rows[CHILD].parent_id
        assert CHILD == only_call(drive).run_id
        assert [] == nursery.taken_over

    in_nursery(test)


def test_a_child_that_is_there_and_goes_on_is_driven_and_not_created_again() -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.add(CHILD)
        drive = await nursery.drive_parent()
        await nursery.settle()

        assert [] == nursery.created
        assert [CHILD] == nursery.taken_over
        assert CHILD == only_call(drive).run_id

    in_nursery(test)


def test_the_result_of_a_child_that_has_ended_already_is_delivered() -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.end(CHILD, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, '"result":"counted"')
        await nursery.drive_parent()
        await nursery.settle()

        assert [EntryType.CHILD_WORKFLOW_COMPLETED, EntryType.WORKFLOW_COMPLETED] == nursery.types()[-2:]
        assert '"counted"' == value_text(nursery.records.entries[-1])

    in_nursery(test)


@pytest.mark.parametrize(
    ("type", "status", "members", "told"),
    [
        (
            EntryType.WORKFLOW_FAILED,
            RunStatus.FAILED,
            f'"error":{encode_failure(LookupError("gone"))}',
            ("builtins:LookupError", "gone"),
        ),
        (
            EntryType.WORKFLOW_CANCELLED,
            RunStatus.CANCELLED,
            "",
            ("satay.errors:WorkflowCancelledError", f"child run '{CHILD}' was cancelled"),
        ),
    ],
)
def test_the_failure_of_a_child_is_delivered_and_its_cancellation_is_one(
    type: str, status: RunStatus, members: str, told: tuple[str, str]
) -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.end(CHILD, type, status, members)
        await nursery.drive_parent()
        await nursery.settle()

        assert [EntryType.CHILD_WORKFLOW_FAILED, EntryType.WORKFLOW_FAILED] == nursery.types()[-2:]
        failure = parse_failure(value_text(nursery.records.entries[-2]) or "")
        assert told[0].endswith(failure.type.rpartition(":")[2].rpartition(".")[2])
        assert told[1] == failure.message

    in_nursery(test)


def test_a_run_of_another_parent_under_the_childs_id_is_a_conflict_that_names_it() -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.add(CHILD, parent_id=None)
        await nursery.drive_parent()
        await nursery.settle()

        assert EntryType.CHILD_WORKFLOW_FAILED in nursery.types()
        failure = parse_failure(value_text(nursery.records.entries[-2]) or "")
        assert f"would be run '{CHILD}', which is another run already; give the call a key" in failure.message

    in_nursery(test)


def test_a_parent_whose_child_cannot_be_created_stops() -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.is_broken = True
        drive = await nursery.drive_parent()
        await nursery.settle()

        assert ["the journal stayed locked"] == [str(error) for error in nursery.stopped]
        assert 0 == drive.pins

    in_nursery(test)


def test_a_parent_is_not_dropped_while_its_child_is_being_created() -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.add(CHILD)
        creating = asyncio.Event()

        async def take_over(run_id: str) -> None:
            await creating.wait()

        nursery.take_over = take_over  # type: ignore[method-assign]  # It is this test's own host.
        drive = await nursery.drive_parent()
        assert not drive.is_quiet
        creating.set()
        await nursery.settle()
        assert drive.is_quiet

    in_nursery(test)


# --- heard of ---------------------------------------------------------------------------------------------------------


def test_the_end_of_a_run_of_another_parent_is_no_end_of_the_child_also_where_a_message_is_first() -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.end(CHILD, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, '"result":"theirs"')
        nursery.records.rows[CHILD] = nursery.records.rows[CHILD]._replace(parent_id=None)
        creating = asyncio.Event()

        async def create(*args: Any, **kwargs: Any) -> None:
            await creating.wait()
            raise RunExistsError("there is one", run_id=CHILD)

        nursery.create = create  # type: ignore[method-assign]  # It is this test's own host.
        drive = await nursery.drive_parent()
        nursery.children.hear(drive, only_call(drive), 11)
        await passes()
        creating.set()
        await nursery.settle()

        (failed,) = [entry for entry in nursery.records.entries if entry.type == EntryType.CHILD_WORKFLOW_FAILED]
        failure = parse_failure(value_text(failed) or "")
        assert f"would be run '{CHILD}', which is another run already; give the call a key" in failure.message
        assert [11] == nursery.records.taken

    in_nursery(test)


def test_a_parent_that_cannot_read_how_its_child_ended_stops() -> None:
    async def test(nursery: Nursery) -> None:
        drive = await nursery.drive_parent()
        nursery.records.is_broken = True
        nursery.children.hear(drive, only_call(drive), 11)
        await nursery.settle()

        assert ["the journal stayed locked"] == [str(error) for error in nursery.stopped]
        assert 0 == drive.pins

    in_nursery(test)


def test_the_end_of_a_child_that_a_message_tells_of_is_delivered_and_the_message_taken() -> None:
    async def test(nursery: Nursery) -> None:
        drive = await nursery.drive_parent()
        nursery.records.end(CHILD, EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, '"result":"counted"')
        nursery.children.hear(drive, only_call(drive), 11)
        assert 1 == drive.pins
        await nursery.settle()

        assert [EntryType.CHILD_WORKFLOW_COMPLETED, EntryType.WORKFLOW_COMPLETED] == nursery.types()[-2:]
        assert [11] == nursery.records.taken
        assert 0 == drive.pins

    in_nursery(test)


def test_a_child_that_goes_on_as_another_run_is_waited_for_there() -> None:
    async def test(nursery: Nursery) -> None:
        drive = await nursery.drive_parent()
        nursery.records.go_on(CHILD, f"{CHILD}~2")
        nursery.records.add(f"{CHILD}~2")
        nursery.children.hear(drive, only_call(drive), 11)
        await nursery.settle()

        assert f"{CHILD}~2" == only_call(drive).run_id
        assert [f"{CHILD}~2"] == nursery.taken_over
        assert [11] == nursery.records.taken

    in_nursery(test)


def all_go_on(nursery: Nursery) -> None:
    """The child has gone on twice; the third run is the one that still goes on."""
    nursery.records.go_on(CHILD, f"{CHILD}~2")
    nursery.records.go_on(f"{CHILD}~2", f"{CHILD}~3")
    nursery.records.add(f"{CHILD}~3")


@pytest.mark.parametrize("messages", [1, 2, 3])
def test_an_end_that_is_heard_of_more_than_once_is_never_taken_for_the_end_of_a_later_run(messages: int) -> None:
    async def test(nursery: Nursery) -> None:
        all_go_on(nursery)
        nursery.records.gate.clear()  # Whoever attaches and whoever hears is to have asked before either is answered.
        drive = await nursery.drive_parent()
        for number in range(messages):
            nursery.children.hear(drive, only_call(drive), 11 + number)
        await passes()
        nursery.records.gate.set()
        await nursery.settle()

        assert f"{CHILD}~3" == only_call(drive).run_id
        assert f"{CHILD}~3" == nursery.taken_over[-1]
        assert [] == nursery.stopped
        assert [EntryType.CHILD_WORKFLOW_SCHEDULED] == nursery.types()
        assert [11 + number for number in range(messages)] == sorted(nursery.records.taken)
        assert 0 == drive.pins

    in_nursery(test)


def test_an_end_that_is_followed_before_its_message_is_read_is_not_looked_for_in_the_later_run() -> None:
    async def test(nursery: Nursery) -> None:
        drive = await nursery.drive_parent()
        await nursery.settle()
        call = only_call(drive)
        nursery.records.go_on(CHILD, f"{CHILD}~2")
        nursery.records.add(f"{CHILD}~2")
        nursery.children.hear(drive, call, 11)
        drive.follow_child(call, CHILD, f"{CHILD}~2", None)
        await nursery.settle()

        assert f"{CHILD}~2" == call.run_id
        assert [f"{CHILD}~2"] == nursery.taken_over
        assert [11] == nursery.records.taken
        assert [EntryType.CHILD_WORKFLOW_SCHEDULED] == nursery.types()

    in_nursery(test)


def test_following_an_end_that_was_followed_already_only_takes_its_message() -> None:
    async def test(nursery: Nursery) -> None:
        drive = await nursery.drive_parent()
        await nursery.settle()
        call = only_call(drive)
        all_go_on(nursery)
        nursery.children.hear(drive, call, 11)
        await nursery.settle()
        drive.follow_child(call, CHILD, f"{CHILD}~2", 12)

        assert f"{CHILD}~3" == call.run_id
        await nursery.settle()
        assert [f"{CHILD}~3"] == nursery.taken_over
        assert [11, 12] == nursery.records.taken

    in_nursery(test)


def test_the_end_of_the_last_run_is_the_end_of_the_child_also_when_the_first_is_heard_of_again() -> None:
    async def test(nursery: Nursery) -> None:
        drive = await nursery.drive_parent()
        call = only_call(drive)
        all_go_on(nursery)
        nursery.children.hear(drive, call, 11)
        nursery.children.hear(drive, call, 12)
        await nursery.settle()
        nursery.records.end(f"{CHILD}~3", EntryType.WORKFLOW_COMPLETED, RunStatus.COMPLETED, '"result":"counted"')
        nursery.children.hear(drive, call, 13)
        nursery.children.hear(drive, call, 14)
        await nursery.settle()

        assert [
            EntryType.CHILD_WORKFLOW_SCHEDULED,
            EntryType.CHILD_WORKFLOW_COMPLETED,
            EntryType.WORKFLOW_COMPLETED,
        ] == nursery.types()
        assert '"counted"' == value_text(nursery.records.entries[-1])

    in_nursery(test)


@pytest.mark.parametrize("ended", [1, 2])
def test_a_parent_that_died_while_its_child_went_on_waits_for_the_run_that_still_goes_on(
    ended: int, tmp_path: Path
) -> None:
    async def run() -> tuple[str, list[str], set[str]]:
        faults = Faults().crash_after(type=EntryType.WORKFLOW_COMPLETED, count=ended)
        async with open_app(tmp_path, faults=faults) as app:
            app.start(parent, run_id="r")
            await faults.crashed
        async with open_app(tmp_path, recover=True) as app:
            handle = app.resume("r")
            await settle(app)
            assert satay.RunStatus.WAITING == await handle.status()
            assert EntryType.CHILD_WORKFLOW_FAILED not in await types_of(app, "r")
            await app.send_event("go")
            result = await handle.result()
            return result, await types_of(app, "r"), {run.run_id for run in await app.runs()}

    result, types, runs = in_loop(run())

    assert "counted to 3" == result
    assert 1 == types.count(EntryType.CHILD_WORKFLOW_COMPLETED)
    assert {"r", CHILD, f"{CHILD}~2", f"{CHILD}~3"} == runs


# --- stopped ----------------------------------------------------------------------------------------------------------


def stopping(prepare: Callable[[Records], None]) -> tuple[list[tuple[Any, ...]], list[str]]:
    """What is asked for where the child of `r` is to stop."""
    asked: list[tuple[Any, ...]] = []
    taken_over: list[str] = []

    async def test(nursery: Nursery) -> None:
        prepare(nursery.records)
        await nursery.children.stop("r", CHILD)
        asked.extend(nursery.posted)
        taken_over.extend(nursery.taken_over)

    in_nursery(test)
    return asked, taken_over


def test_a_child_is_asked_once_to_cancel_and_woken_for_it() -> None:
    asked, taken_over = stopping(lambda records: records.add(CHILD))

    assert [(CHILD, CANCEL_REQUESTED, PARENT_ASKS)] == asked
    assert [CHILD] == taken_over


def test_the_run_that_goes_on_in_place_of_a_child_is_asked() -> None:
    def prepare(records: Records) -> None:
        records.go_on(CHILD, f"{CHILD}~2")
        records.go_on(f"{CHILD}~2", f"{CHILD}~3")
        records.add(f"{CHILD}~3")

    asked, taken_over = stopping(prepare)

    assert [(f"{CHILD}~3", CANCEL_REQUESTED, PARENT_ASKS)] == asked
    assert [f"{CHILD}~3"] == taken_over


def test_a_child_that_goes_on_as_another_run_before_the_request_is_there_is_asked_again() -> None:
    def end_when_asked(records: Records) -> None:
        records.add(CHILD)
        records.go_on_when_asked = True

    asked, taken_over = stopping(end_when_asked)

    assert [(CHILD, CANCEL_REQUESTED, PARENT_ASKS), (f"{CHILD}~2", CANCEL_REQUESTED, PARENT_ASKS)] == asked
    assert [CHILD, f"{CHILD}~2"] == taken_over


def prepare_nothing(records: Records) -> None: ...


def prepare_ended(records: Records) -> None:
    records.end(CHILD, EntryType.WORKFLOW_CANCELLED, RunStatus.CANCELLED)


def prepare_of_another_parent(records: Records) -> None:
    records.add(CHILD, parent_id="another")


@pytest.mark.parametrize("prepare", [prepare_nothing, prepare_ended, prepare_of_another_parent])
def test_nobody_is_asked_where_there_is_no_child_that_goes_on(prepare: Callable[[Records], None]) -> None:
    assert ([], []) == stopping(prepare)


@pytest.mark.parametrize("status", RunStatus)
def test_a_run_whose_parent_has_ended_is_asked_to_cancel_and_another_is_not(status: RunStatus) -> None:
    async def test(nursery: Nursery) -> None:
        nursery.records.add("parent", status=status)
        await nursery.children.stop_with_parent("r", "parent")
        await nursery.children.stop_with_parent("r", "nobody")

        expected = [("r", CANCEL_REQUESTED, PARENT_ASKS)] if status.is_terminal else []
        assert expected == nursery.posted

    in_nursery(test)


# --- messages that change nothing -------------------------------------------------------------------------------------


@satay.workflow(name="children.tidies")
async def tidies() -> None:
    try:
        await satay.wait_for_event("never")
    finally:
        await satay.wait_for_event("go")


def test_a_request_that_is_dropped_leaves_the_inbox_although_nothing_is_recorded(tmp_path: Path) -> None:
    async def run() -> tuple[list[Message], list[str], list[str]]:
        async with open_app(tmp_path) as app:
            handle = await app.start(tidies, run_id="r")
            await settle(app)
            await handle.cancel()
            await settle(app)
            before = await types_of(app, "r")
            await handle.cancel()
            await handle.cancel()
            await settle(app)
            left = await (await app._ready()).journal.messages("r")
            return left, before, await types_of(app, "r")

    left, before, after = in_loop(run())

    assert [] == left
    assert before == after
