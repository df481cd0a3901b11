"""One run as the windows show it: pages of its timeline, and the tree of what came of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.accounts import CallState
from satay.errors import RunNotFoundError
from satay.inspections import MAX_LISTED_FORKS, MAX_RELATIVES, Inspection, Kinship, Relative, grow_tree, inspect_run
from satay.journal import BLOB_THRESHOLD_BYTES
from satay.model import EntryType
from satay.readers import open_reader
from satay.settings import Settings
from satay.testing import AppUnderTest, open_app, settle
from tests.driving import in_loop

LARGE = "x" * (BLOB_THRESHOLD_BYTES + 1)


@satay.task(name="inspections.step", retries=2, backoff=1)
async def step(number: int) -> int:
    context = satay.task_context()
    if number == 1 and context.attempt == 1:
        raise ValueError("once more")
    return number * 10


@satay.task(name="inspections.large")
async def large(text: str) -> str:
    return text


@satay.workflow(name="inspections.count")
async def count(numbers: int) -> list[int]:
    return [await step(number) for number in range(numbers)]


@satay.workflow(name="inspections.enlarge")
async def enlarge() -> int:
    return len(await large(LARGE))


@satay.workflow(name="inspections.leaf")
async def leaf(number: int) -> int:
    return number


@satay.workflow(name="inspections.parent")
async def parent(children: int) -> int:
    for number in range(children):
        await satay.start_child(leaf, number).result()
    return await step(5)


@satay.workflow(name="inspections.again")
async def again(number: int) -> int:
    if number:
        satay.continue_as_new(number - 1)
    return number


async def inspected(app: AppUnderTest, run_id: str, after: int | None = None, limit: int = 100) -> Inspection:
    assert app.data_dir is not None
    async with open_reader(Settings(data_dir=app.data_dir)) as reader:
        return await inspect_run(reader, run_id, app.clock.now(), after=after, limit=limit)


async def grown(app: AppUnderTest, run_id: str) -> Relative:
    assert app.data_dir is not None
    async with open_reader(Settings(data_dir=app.data_dir)) as reader:
        return await grow_tree(reader.archive, run_id)


def shape(tree: Relative) -> list[Any]:
    """The ids and kinds of a tree."""
    mark = "inherited " if tree.is_inherited else ""
    return [f"{mark}{tree.kinship} {tree.record.run_id}", *(shape(relative) for relative in tree.relatives)]


def test_a_timeline_tells_each_call_once_with_all_that_came_of_it(tmp_path: Path) -> None:
    async def main() -> Inspection:
        async with open_app(tmp_path) as app:
            await app.start(count, 2, run_id="r").result()
            return await inspected(app, "r")

    found = in_loop(main())
    items = found.timeline.items

    assert [EntryType.WORKFLOW_CREATED, "inspections.step:0", "inspections.step:1", EntryType.WORKFLOW_COMPLETED] == [
        item.type if item.call is None else str(item.call) for item in items
    ]
    assert [1, 2] == [item.side.attempts for item in items if item.side is not None]
    assert [0, 10] == [item.side.result for item in items if item.side is not None]
    assert (0, 0, 8) == (found.timeline.earlier, found.timeline.later, found.entries)


@pytest.mark.parametrize(
    ("after", "limit", "expected"),
    [
        (None, 2, ([4, 8], 2, 0)),
        (None, 100, ([1, 2, 4, 8], 0, 0)),
        (0, 2, ([1, 2], 0, 2)),
        (2, 1, ([4], 2, 1)),
        (3, 1, ([4], 2, 1)),
        (8, 5, ([], 4, 0)),
        (100, 5, ([], 4, 0)),
    ],
)
def test_a_page_says_how_much_is_before_and_behind_it(
    tmp_path: Path, after: int | None, limit: int, expected: tuple[list[int], int, int]
) -> None:
    async def main() -> Inspection:
        async with open_app(tmp_path) as app:
            await app.start(count, 2, run_id="r").result()
            return await inspected(app, "r", after, limit)

    page = in_loop(main()).timeline

    assert expected == ([item.seq for item in page.items], page.earlier, page.later)


def test_large_values_are_read_for_the_page_only(tmp_path: Path) -> None:
    async def main() -> tuple[Inspection, Inspection]:
        async with open_app(tmp_path) as app:
            await app.start(enlarge, run_id="r").result()
            return await inspected(app, "r"), await inspected(app, "r", limit=1)

    whole, last = in_loop(main())

    assert LARGE == whole.timeline.items[1].side.result  # type: ignore[union-attr]  # it is a call
    assert [None] == [item.side for item in last.timeline.items]


def test_what_a_fork_inherited_is_marked_and_has_no_time_of_its_own(tmp_path: Path) -> None:
    async def main() -> Inspection:
        async with open_app(tmp_path) as app:
            await app.start(count, 3, run_id="source").result()
            await (await app.fork("source", before_task=step, before_ordinal=1, run_id="fork")).result()
            return await inspected(app, "fork")

    found = in_loop(main())
    inherited = [item for item in found.timeline.items if item.is_inherited]

    assert found.receipt is not None
    assert ["inspections.step:0"] == [str(item.call) for item in inherited]
    assert [None] == [item.seconds_in for item in inherited]
    assert all(item.seconds_in is not None for item in found.timeline.items if not item.is_inherited)
    assert "source" == found.to_dict()["run"]["forked_from"]


def test_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_app(tmp_path) as app:
            with pytest.raises(RunNotFoundError):
                await inspected(app, "nobody")
            with pytest.raises(RunNotFoundError):
                await grown(app, "nobody")

    in_loop(main())


def test_a_tree_has_children_forks_and_successors(tmp_path: Path) -> None:
    async def main() -> tuple[Relative, Relative]:
        async with open_app(tmp_path) as app:
            await app.start(parent, 2, run_id="top").result()
            await (await app.fork("top", before_task=step, run_id="fork")).result()
            await (await app.fork("fork", before_task=step, run_id="fork-2")).result()
            await app.start(again, 2, run_id="loop").result()
            await settle(app)
            return await grown(app, "top"), await grown(app, "loop")

    tree, loop = in_loop(main())

    assert [
        "root top",
        ["child top/inspections.leaf:0"],
        ["child top/inspections.leaf:1"],
        ["fork fork", ["fork fork-2"]],
    ] == shape(tree)
    assert ["root loop", ["successor loop~2", ["successor loop~3"]]] == shape(loop)


def test_a_tree_marks_the_children_that_a_fork_shares(tmp_path: Path) -> None:
    async def main() -> Relative:
        async with open_app(tmp_path) as app:
            await app.start(parent, 2, run_id="top").result()
            await (await app.fork("top", before_task=step, run_id="fork")).result()
            return await grown(app, "fork")

    tree = in_loop(main())

    assert [
        "root fork",
        ["inherited child top/inspections.leaf:0"],
        ["inherited child top/inspections.leaf:1"],
    ] == shape(tree)
    assert [True, True] == [relative["is_inherited"] for relative in tree.to_dict()["relatives"]]


def test_a_tree_has_an_end(tmp_path: Path) -> None:
    async def main() -> Relative:
        async with open_app(tmp_path) as app:
            await app.start(count, 1, run_id="source").result()
            for number in range(MAX_RELATIVES + 5):
                await (await app.fork("source", before_task=step, run_id=f"fork-{number}"))
            await settle(app)
            return await grown(app, "source")

    tree = in_loop(main())

    assert MAX_RELATIVES == len(tree.relatives)
    assert tree.is_cut
    assert {Kinship.FORK} == {relative.kinship for relative in tree.relatives}


# --- sessions ---------------------------------------------------------------------------------------------------------


async def walk(session: satay.Session, box: dict[str, Any], values: Sequence[Any]) -> None:
    for value in values:
        box["value"] = value
        await session.step("walk", output=value)


def test_a_session_adds_up_to_its_steps_states_calls_and_forks(tmp_path: Path) -> None:
    async def main() -> Inspection:
        box: dict[str, Any] = {}
        async with open_app(tmp_path) as app:
            async with satay.Session("s", state_fn=lambda: box, state_interval=2) as session:
                await step(5)
                await walk(session, box, [1, 2, 3, 2, LARGE, LARGE])
                await session.fork(at_step=2, name="first")
                async with session.fork(at_step=4, name="second"):
                    pass
            return await inspected(app, "s")

    session = in_loop(main()).session

    assert session is not None
    assert (6, "walk") == (session.steps, session.last_step)
    assert (3, 2, 1) == (session.states, session.versions, session.large_states)
    assert (len('{"value":2}'), 6, len(LARGE) + 12) == (session.stored_bytes, session.state_step, session.state_bytes)
    assert {CallState.COMPLETED: 1} == session.calls
    assert [("second", 4, "completed"), ("first", 2, "created")] == [
        (fork.run_id, fork.after_step, fork.status) for fork in session.forks
    ]
    assert not session.has_more_forks


def test_only_so_many_forks_of_a_session_are_listed(tmp_path: Path) -> None:
    async def main() -> Inspection:
        async with open_app(tmp_path) as app:
            async with satay.Session("s", state_fn=lambda: 1) as session:
                await session.step("only")
                for number in range(MAX_LISTED_FORKS + 1):
                    await session.fork(name=f"fork-{number}")
            return await inspected(app, "s")

    session = in_loop(main()).session

    assert session is not None
    assert (MAX_LISTED_FORKS, True) == (len(session.forks), session.has_more_forks)


def test_a_timeline_tells_what_a_step_gave_and_how_a_state_is_kept(tmp_path: Path) -> None:
    async def main() -> dict[str, Any]:
        box: dict[str, Any] = {}
        async with open_app(tmp_path) as app:
            async with satay.Session("s", state_fn=lambda: box) as session:
                await walk(session, box, [1, 1, LARGE])
            return (await inspected(app, "s")).to_dict()

    items = in_loop(main())["timeline"]["items"]
    told = [item["facts"] for item in items if item["type"] == EntryType.STATE_RECORDED]

    assert [1, 1, LARGE] == [item["facts"]["output"] for item in items if item["type"] == EntryType.STEP_RECORDED]
    assert [("full", 11), ("same", None), ("full", None)] == [(fact["kind"], fact["stored_bytes"]) for fact in told]


def test_a_run_of_a_workflow_is_no_session(tmp_path: Path) -> None:
    async def main() -> Inspection:
        async with open_app(tmp_path) as app:
            await app.start(count, 1, run_id="r").result()
            return await inspected(app, "r")

    inspection = in_loop(main())

    assert inspection.session is None
    assert "session" not in inspection.to_dict()
