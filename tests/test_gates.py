"""The gate before attempts, on journals that a store holds and a drive that only takes what arrives."""

from pathlib import Path
from typing import Any, cast

import pytest

import satay
from satay.archive import Archive
from satay.calls import Arrival, TaskCall
from satay.drive import Drive
from satay.effects import WHOLE_SOURCE, ForkTerms, Ruling, ToolPolicy, ruling_for
from satay.gates import Gate
from satay.model import EntryType
from satay.testing import open_app
from tests.driving import in_loop


@satay.task(name="gates.look_up")
async def look_up(word: str) -> str:
    return word.upper()


@satay.workflow(name="gates.lookups")
async def lookups(words: list[str]) -> list[str]:
    return [await look_up(word) for word in words]


class Governed:
    """A drive under some terms, which keeps what arrives."""

    def __init__(self, terms: ForkTerms | None) -> None:
        self.terms = terms
        self.arrived: list[Arrival] = []
        self.stopped: list[BaseException] = []

    def ruling(self, task: "satay.Task[..., Any]") -> Ruling | None:
        return None if self.terms is None else ruling_for(self.terms.policies, task.name, task.effect)

    def arrive(self, arrival: Arrival) -> None:
        self.arrived.append(arrival)

    def stop(self, error: BaseException) -> None:
        self.stopped.append(error)


class GateKeeper:
    """The host of a gate, which does at once what it is asked to do later."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.spawned: list[Any] = []

    def step(self, callback: Any, *args: Any) -> None:
        callback(*args)

    def spawn(self, work: Any) -> None:
        self.spawned.append(work)


def terms(policy: ToolPolicy, source_id: str | None = "s", head: int = WHOLE_SOURCE) -> ForkTerms:
    return ForkTerms("f", source_id, head, "before the call look_up:0", "ab" * 32, {"gates.look_up": policy})


def call(text: str, occurrence: int = 0) -> TaskCall:
    issued = TaskCall(look_up, occurrence)
    issued.seq, issued.input_text = 9, text
    return issued


async def passed(place: Path, terms: ForkTerms | None, *calls: TaskCall) -> tuple[list[bool], Governed]:
    """Ask a gate about calls, beside a source that looked up two words: what it said, and what arrived."""
    async with open_app(place) as app:
        await app.start(lookups, ["one", "two"], run_id="s").result()
        keeper, drive = GateKeeper(await app._archive()), Governed(terms)
        gate = Gate(keeper)
        said = [gate.lets_run(cast(Drive, drive), call) for call in calls]
        for work in keeper.spawned:
            await work
        return said, drive


@pytest.mark.parametrize("given", [None, terms(ToolPolicy.AUTO), terms(ToolPolicy.LIVE)])
def test_attempts_begin_where_no_policy_is_against_it(given: ForkTerms | None, tmp_path: Path) -> None:
    said, drive = in_loop(passed(tmp_path, given, call('{"word":"one"}')))

    assert [True] == said
    assert [] == drive.arrived


def test_a_blocked_attempt_is_refused(tmp_path: Path) -> None:
    said, drive = in_loop(passed(tmp_path, terms(ToolPolicy.BLOCK), call('{"word":"one"}')))

    assert [False] == said
    assert [(EntryType.TASK_BLOCKED, '"call":9')] == [(arrival.type, arrival.facts) for arrival in drive.arrived]


def test_a_replayed_attempt_is_answered_with_the_recorded_outcome_of_the_same_call(tmp_path: Path) -> None:
    calls = [call('{"word":"one"}'), call('{"word":"two"}', 1), call('{"word":"one"}', 1), call('{"word":"x"}', 2)]
    said, drive = in_loop(passed(tmp_path, terms(ToolPolicy.REPLAY), *calls))
    texts = [arrival.text or "" for arrival in drive.arrived]

    assert [False] * 4 == said
    assert ['"ONE"', '"TWO"'] == texts[:2]
    assert "its arguments differ from the source's at $.word" in texts[2]
    assert "the source made no such call" in texts[3]
    assert '"call":9,"reused_from":"s","reused_seq":3' == drive.arrived[0].facts


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (terms(ToolPolicy.REPLAY, None), "the source has no such run"),
        (terms(ToolPolicy.REPLAY, "gone"), "there is no run 'gone' in this journal"),
        (terms(ToolPolicy.REPLAY, head=2), "the call has no outcome in the source"),
        (terms(ToolPolicy.REPLAY, head=1), "the source made no such call"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(given: ForkTerms, reason: str, tmp_path: Path) -> None:
    _, drive = in_loop(passed(tmp_path, given, call('{"word":"one"}')))

    assert [EntryType.TASK_BLOCKED] == [arrival.type for arrival in drive.arrived]
    assert reason in (drive.arrived[0].text or "")
    assert [] == drive.stopped
