"""Approvals whose process is killed, and which several processes decide at once."""

import json
from pathlib import Path

import pytest

import satay
from satay.errors import ApprovalPendingError
from satay.testing import open_app
from tests.driving import in_loop
from tests.programs.approving import COUNT, RUN_ID
from tests.programs.starting import Program, all_of, module

pytestmark = pytest.mark.slow


def approving(place: Path, *arguments: str) -> Program:
    return module("approving", place, *arguments, effects=place / "effects")


@pytest.mark.parametrize("kind", ["session", "workflow"])
def test_a_killed_process_has_asked_once_and_the_next_one_gets_what_was_decided(kind: str, tmp_path: Path) -> None:
    for _ in range(2):
        with approving(tmp_path, kind, "refund") as asking:
            asking.wait_for("asked")
            asking.kill()

    async def decide() -> tuple[list[satay.PendingApproval], satay.Approval]:
        async with satay.run_app(data_dir=tmp_path) as app:
            pending = await app.approvals()
            return pending, await app.decide_approval(RUN_ID, "refund", approved=True, by="Mia")

    pending, _ = in_loop(decide())
    with approving(tmp_path, kind, "refund") as asking:
        ended = asking.end()

    assert [("refund", {"key": "refund"})] == [(one.key, one.payload) for one in pending]
    assert (0, "refund approved by Mia") == (ended.status, ended.last_line)
    found = in_loop(recorded(tmp_path))
    assert (1, 1) == (found.count("EventWaitStarted"), found.count("ExternalEventReceived"))


async def recorded(place: Path) -> list[str]:
    async with open_app(place) as app:
        assert (await app.verify(RUN_ID)).is_intact
        return [entry.type for entry in await app.entries_after(RUN_ID, 0)]


@pytest.mark.parametrize("kind", ["session", "workflow"])
def test_a_process_that_waits_is_told_by_another_one(kind: str, tmp_path: Path) -> None:
    async def decide() -> satay.Approval:
        async with satay.run_app(data_dir=tmp_path) as app:
            return await app.decide_approval(RUN_ID, "refund", approved=False, by="Ada")

    with approving(tmp_path, kind, "refund") as asking:
        asking.wait_for("asked")
        in_loop(decide())
        ended = asking.end()

    assert (0, "refund rejected by Ada") == (ended.status, ended.last_line)


def test_of_two_processes_that_decide_at_once_the_first_one_holds_for_both(tmp_path: Path) -> None:
    async def ask() -> None:
        async with satay.run_app(data_dir=tmp_path), satay.Session(RUN_ID) as session:
            for number in range(COUNT):
                with pytest.raises(ApprovalPendingError):
                    await session.require_approval(str(number), wait=False)
            session.pause()

    async def decided() -> list[tuple[bool, str | None]]:
        async with satay.run_app(data_dir=tmp_path), satay.Session(RUN_ID) as session:
            decisions = [await session.require_approval(str(number), wait=False) for number in range(COUNT)]
            return [(decision.approved, decision.by) for decision in decisions]

    in_loop(ask())
    programs = [approving(tmp_path, "decide", verdict) for verdict in ("approve", "reject")]
    with all_of(programs):
        for program in programs:
            program.wait_for("ready")
        (tmp_path / "go").touch()
        ended = [program.end() for program in programs]

    assert [(0, ""), (0, "")] == [(each.status, each.errors) for each in ended]
    told = [json.loads(each.last_line) for each in ended]
    assert told[0] == told[1]
    assert told[0] == [list(one) for one in in_loop(decided())]
