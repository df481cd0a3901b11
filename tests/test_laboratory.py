"""Experiments as users see them: outcomes, members, ranking and promotion, in one process, in several, and reopened."""

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import satay
from satay import Member, OutcomeValue
from satay.errors import (
    ExperimentConflictError,
    ExperimentNotFoundError,
    InvalidValueError,
    PromotionError,
    RunNotFoundError,
    UnsupportedEntryError,
    UsageError,
)
from satay.experiments import MAX_NOTE_CHARACTERS
from satay.journal import BLOB_THRESHOLD_BYTES, GENESIS, Note, chain_digest
from satay.model import EXPERIMENT_WORKFLOW, Entry, EntryType, RunStatus
from satay.stores.sqlite import open_sqlite
from satay.testing import AppUnderTest, ManualClock, open_app, settle
from tests.programs.starting import all_of, module

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Delta:
    model: str
    temperature: float


@satay.task(name="laboratory.draft")
async def draft(style: str) -> str:
    return f"in a {style} style"


@satay.workflow(name="laboratory.write")
async def write(style: str) -> str:
    return await draft(style)


@satay.workflow(name="laboratory.wait")
async def wait_for_ever(style: str) -> str:
    text = await draft(style)
    await satay.wait_for_event("never")
    return text


@satay.workflow(name="laboratory.continue")
async def continue_and_wait(style: str) -> str:
    await draft(style)
    if style == "first":
        satay.continue_as_new("second")
    if style == "second":
        await satay.wait_for_event("end")
    return style


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    async with open_app(tmp_path) as app:
        yield app


async def base(app: satay.App, run_id: str = "base") -> str:
    await app.start(write, "plain", run_id=run_id).result()
    return run_id


async def fork(app: satay.App, run_id: str, source: str = "base") -> satay.ForkHandle[Any]:
    forked = await app.fork(source, before_task="laboratory.draft", workflow_input=run_id, run_id=run_id)
    await forked.result()
    return forked


async def base_and_forks(app: satay.App, *ids: str) -> None:
    await base(app)
    for run_id in ids:
        await fork(app, run_id)


async def value_of(app: satay.App, run_id: str) -> str | None:
    outcome = await app.outcome(run_id)
    return None if outcome is None else outcome.value.value


def ids(members: list[Member]) -> list[str]:
    return [member.run_id for member in members]


def digest_of(place: Path, *, experiments: bool = False) -> str:
    """A hash of every row of every run that is none of an experiment, or of experiments too."""
    which = "TRUE" if experiments else f"workflow <> '{EXPERIMENT_WORKFLOW}'"
    with sqlite3.connect(place / "satay.db") as connection:
        rows = connection.execute(f"SELECT * FROM runs WHERE {which} ORDER BY key").fetchall()
        for table in ("events", "waits", "inbox"):
            rows += connection.execute(
                f"SELECT * FROM {table} WHERE run IN (SELECT key FROM runs WHERE {which}) ORDER BY 1, 2"
            ).fetchall()
        rows += connection.execute("SELECT * FROM blobs ORDER BY 1").fetchall()
    connection.close()
    return hashlib.sha256(repr(rows).encode()).hexdigest()


# --- outcomes ---------------------------------------------------------------------------------------------------------


async def test_an_outcome_is_kept_with_its_score_note_and_time(app: AppUnderTest) -> None:
    await base_and_forks(app, "a")

    assert await app.outcome("a") is None
    await app.set_outcome("a", "inconclusive", score=0.92, note='Terse. "Good" – \ud800')
    outcome = await app.outcome("a")
    assert outcome is not None
    assert ("a", OutcomeValue.INCONCLUSIVE, 0.92) == (outcome.run_id, outcome.value, outcome.score)
    assert 'Terse. "Good" – \ud800' == outcome.note
    assert outcome.decided_in is None
    assert outcome.at.utcoffset() is not None


async def test_the_latest_outcome_holds_and_all_are_kept(app: AppUnderTest) -> None:
    await base_and_forks(app, "a")

    await app.set_outcome("a", "crashed", score=0)
    await app.set_outcome("a", "rejected", score=True, note="on a second look")
    await app.set_outcome("a", "inconclusive")
    await app.set_outcome("a", "inconclusive")
    experiment = await app.experiment(baseline="base")
    member = (await experiment.members())[1]

    assert ["crashed", "rejected", "inconclusive"] == [outcome.value for outcome in member.outcomes]
    assert [0, True, True] == [outcome.score for outcome in member.outcomes]
    assert [int, bool, bool] == [type(outcome.score) for outcome in member.outcomes]
    assert [None, "on a second look", None] == [outcome.note for outcome in member.outcomes]
    assert member.outcome == await app.outcome("a")


async def test_a_run_that_is_no_fork_and_one_that_goes_on_can_have_outcomes(app: AppUnderTest) -> None:
    await base(app)
    await app.start(wait_for_ever, "plain", run_id="going-on")

    await app.set_outcome("base", "rejected", score=0.1)
    await app.set_outcome("going-on", "crashed")

    assert "rejected" == await value_of(app, "base")
    assert "crashed" == await value_of(app, "going-on")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda app: app.set_outcome("a", "won"), InvalidValueError, "'won'.* 'promoted', 'rejected', 'inconclusive'"),
        (lambda app: app.set_outcome("a", None), InvalidValueError, "None cannot be recorded"),
        (lambda app: app.set_outcome("a", ["promoted"]), InvalidValueError, "must be one of"),
        (lambda app: app.set_outcome("a", "rejected", score="0.9"), InvalidValueError, "score '0.9'.*finite number"),
        (lambda app: app.set_outcome("a", "rejected", score=float("nan")), InvalidValueError, "score nan"),
        (lambda app: app.set_outcome("a", "rejected", score=float("-inf")), InvalidValueError, "score -inf"),
        (lambda app: app.set_outcome("a", "rejected", score=10**400), InvalidValueError, "finite number"),
        (lambda app: app.set_outcome("a", "rejected", score=1j), InvalidValueError, "finite number"),
        (lambda app: app.set_outcome("a", "rejected", score=[0.9]), InvalidValueError, "finite number"),
        (lambda app: app.set_outcome("a", "rejected", note=7), InvalidValueError, "the note 7"),
        (lambda app: app.set_outcome("a", "rejected", note="x" * (MAX_NOTE_CHARACTERS + 1)), InvalidValueError, "note"),
        (lambda app: app.set_outcome("nowhere", "rejected"), RunNotFoundError, "no run 'nowhere'"),
        (lambda app: app.set_outcome(7, "rejected"), UsageError, "7 names no run"),
        (lambda app: app.set_outcome("base", "promoted"), PromotionError, "'base' is no fork"),
        (lambda app: app.set_outcome("late", "promoted"), PromotionError, "'late' is waiting"),
        (lambda app: app.set_outcome("a~experiment", "rejected"), RunNotFoundError, "there is no run"),
        (lambda app: app.outcome("nowhere"), RunNotFoundError, "no run 'nowhere'"),
        (lambda app: app.outcome(None), UsageError, "names no run"),
        (lambda app: app.promote("nowhere"), RunNotFoundError, "no run 'nowhere'"),
        (lambda app: app.promote(b"a"), UsageError, "names no run"),
        (lambda app: app.promote("base"), PromotionError, "'base' is no fork, and only forks can be promoted"),
        (lambda app: app.promote("late"), PromotionError, "'late' is waiting.*only a run that has completed"),
        (lambda app: app.promote("stopped"), PromotionError, "'stopped' is cancelled"),
        (lambda app: app.promote("a", experiment="none"), ExperimentNotFoundError, "no experiment 'none'"),
        (lambda app: app.promote("a", experiment="tone"), PromotionError, "'a' is no member of experiment .*tone"),
        (lambda app: app.promote("a", experiment=7), InvalidValueError, "experiment name 7"),
        (lambda app: app.experiment("a~b"), InvalidValueError, "experiment name 'a~b'"),
        (lambda app: app.experiment("x" * 101), InvalidValueError, "1 to 100"),
        (lambda app: app.experiment(), UsageError, "takes a name"),
        (lambda app: app.experiment(baseline="base", hypothesis="why"), UsageError, "takes a name"),
        (lambda app: app.experiment("new", baseline="nowhere"), RunNotFoundError, "no run 'nowhere'"),
        (lambda app: app.experiment("new", hypothesis=7), InvalidValueError, "the hypothesis 7"),
        (lambda app: add(app, "tone", "nowhere"), RunNotFoundError, "no run 'nowhere'"),
        (lambda app: add(app, "tone", "a", role=""), InvalidValueError, "role ''"),
        (lambda app: add(app, "tone", "a", role="a\n"), InvalidValueError, "printable"),
        (lambda app: add(app, "tone", "a", delta=object()), satay.SatayError, "the delta of run 'a'"),
        (lambda app: add(app, "tone", "a", delta="x" * BLOB_THRESHOLD_BYTES), InvalidValueError, "the delta of run"),
        (lambda app: add(app, None, "a"), UsageError, "no run can be added to experiment 'base~experiment'"),
    ],
)
async def test_what_makes_no_sense_is_one_clear_error_and_changes_nothing(
    app: AppUnderTest, change: Callable[[Any], Awaitable[Any]], error: type[Exception], message: str
) -> None:
    await base_and_forks(app, "a")
    await app.start(wait_for_ever, "plain", run_id="source")
    await settle(app)
    await app.fork("source", before_task="laboratory.draft", run_id="late", allow_unfinished=True)
    await app.fork("source", before_task="laboratory.draft", run_id="stopped", allow_unfinished=True)
    await app.cancel("stopped")
    with pytest.raises(satay.SatayError):
        await app.handle("stopped").result()
    await app.experiment("tone")
    await app.experiment(baseline="base")
    before = digest_of(app.data_dir, experiments=True)

    with pytest.raises(error, match=message):
        await change(app)

    assert before == digest_of(app.data_dir, experiments=True)


async def add(app: satay.App, name: str | None, run_id: str, **declared: Any) -> None:
    experiment = await app.experiment(name, baseline="base" if name is None else None)
    await experiment.add(run_id, **declared)


# --- promotion --------------------------------------------------------------------------------------------------------


async def test_an_outcome_is_recorded_and_then_the_fork_is_promoted(app: AppUnderTest) -> None:
    await base(app)
    forked = await fork(app, "b")

    await app.set_outcome("b", "promoted", score=0.92, note="best tone")
    before = await (await app.experiment(baseline="base")).winner()
    await forked.promote()
    winner = await (await app.experiment(baseline="base")).winner()
    outcome = await app.outcome("b")

    assert before is None
    assert winner is not None
    assert ("base~experiment", "b", ()) == (winner.experiment_id, winner.run_id, winner.closed)
    assert outcome is not None
    assert ("promoted", 0.92, "best tone") == (outcome.value, outcome.score, outcome.note)
    assert "base~experiment" == outcome.decided_in


async def test_promoting_a_fork_closes_the_others(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b", "c", "d", "e")
    await app.set_outcome("e", "inconclusive", score=0.1)
    await app.set_outcome("a", "promoted", score=0.5, note="nice")
    await app.set_outcome("b", "inconclusive", score=0.7)
    await app.set_outcome("c", "crashed")

    await app.promote("b")

    experiment = await app.experiment(baseline="base")
    found = {member.run_id: member.outcome for member in await experiment.members()}
    winner = await experiment.winner()
    assert winner is not None
    assert ("a", "c", "d", "e") == winner.closed
    assert found.pop("base") is None
    values = {run_id: (outcome.value, outcome.score) for run_id, outcome in found.items() if outcome is not None}
    assert {
        "a": ("rejected", 0.5),
        "b": ("promoted", 0.7),
        "c": ("crashed", None),
        "d": ("rejected", None),
        "e": ("rejected", 0.1),
    } == values


async def test_promoting_the_winner_again_changes_nothing(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    await app.promote("a")
    before = digest_of(app.data_dir, experiments=True)

    await app.promote("a")
    await app.promote("a", experiment=await app.experiment(baseline="base"))

    assert before == digest_of(app.data_dir, experiments=True)


async def test_a_second_winner_is_refused_by_the_name_and_time_of_the_first(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    await app.promote("a")
    later = await fork(app, "later")
    before = digest_of(app.data_dir, experiments=True)
    winner = await (await app.experiment(baseline="base")).winner()
    assert winner is not None

    for refused in (app.promote("b"), later.promote(), app.set_outcome("b", "promoted", score=1)):
        with pytest.raises(ExperimentConflictError, match=r"run 'a' was promoted at 2\d{3}-") as refusal:
            await refused
        assert ("base~experiment", "a") == (refusal.value.experiment_id, refusal.value.winner)
        assert winner.at.isoformat(timespec="seconds") in str(refusal.value)

    assert before == digest_of(app.data_dir, experiments=True)


async def test_what_is_learned_after_a_promotion_is_recorded_and_takes_nothing_back(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    await app.promote("a")

    await app.set_outcome("a", "promoted", score=0.1, note="worse than we thought")
    await app.set_outcome("b", "crashed", note="it had crashed")
    with pytest.raises(ExperimentConflictError, match=r"'a' cannot be 'rejected'.*that stands"):
        await app.set_outcome("a", "rejected")
    with pytest.raises(ExperimentConflictError, match="'b' cannot be 'promoted'"):
        await app.set_outcome("b", "promoted")

    outcomes = [await app.outcome("a"), await app.outcome("b")]
    told = [outcome and (outcome.value, outcome.note, outcome.decided_in) for outcome in outcomes]
    assert [
        ("promoted", "worse than we thought", "base~experiment"),
        ("crashed", "it had crashed", None),
    ] == told


async def test_a_fork_of_a_fork_is_promoted_among_the_forks_of_its_source(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    await fork(app, "a/1", "a")
    await fork(app, "a/2", "a")

    await app.promote("a/1")
    await app.promote("b")

    told = {run_id: await value_of(app, run_id) for run_id in ("a", "b", "a/1", "a/2", "base")}
    assert {"a": "rejected", "b": "promoted", "a/1": "promoted", "a/2": "rejected", "base": None} == told
    assert ["a", "a/1", "a/2"] == ids(await (await app.experiment(baseline="a")).members())


async def test_a_fork_that_goes_on_as_another_run_is_promoted_when_that_one_has_completed(app: AppUnderTest) -> None:
    await app.start(continue_and_wait, "last", run_id="source").result()
    forked = await app.fork("source", before_task="laboratory.draft", workflow_input="first", run_id="f")
    await settle(app)

    assert RunStatus.COMPLETED == (await app.run("f")).status
    with pytest.raises(PromotionError, match="'f' is waiting"):
        await forked.promote()
    await app.send_event("end", run_id="f")
    await forked.result()
    await forked.promote()
    assert "promoted" == await value_of(app, "f")


async def test_no_journal_of_a_run_is_written(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b", "c")
    before = digest_of(app.data_dir)

    experiment = await app.experiment("tone", baseline="base", hypothesis="a is better")
    for run_id, score in (("a", 1), ("b", 0.5)):
        await experiment.add(run_id, delta={"style": run_id})
        await app.set_outcome(run_id, "inconclusive", score=score)
    await app.set_outcome("base", "rejected")
    await experiment.promote("a")
    await app.promote("b")
    await app.set_outcome("c", "crashed")

    assert before == digest_of(app.data_dir)
    assert {"base", "a", "b", "c"} == {run.run_id for run in await app.runs()}


# --- named experiments ------------------------------------------------------------------------------------------------


async def test_an_experiment_has_a_baseline_members_roles_and_declared_deltas(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    running = app.start(wait_for_ever, "plain", run_id="running")

    experiment = await app.experiment("tone/2026", baseline="base", hypothesis="sceptical is better")
    await experiment.add("a", delta={"style": ("sceptical", None)})
    await experiment.add(running, role="control", delta=Delta("tiny", 0.5))
    again = await app.experiment("tone/2026", baseline="base", hypothesis="sceptical is better")
    members = await again.members()

    assert ("tone/2026", "sceptical is better", "experiment~:tone/2026") == (
        again.name, again.hypothesis, again.experiment_id
    )  # fmt: skip
    assert [("base", "baseline", None), ("a", "candidate", {"style": ("sceptical", None)})] == [
        (member.run_id, member.role, member.delta) for member in members[:2]
    ]
    assert ("running", "control", Delta("tiny", 0.5)) == (members[2].run_id, members[2].role, members[2].delta)
    assert members[0] == await again.baseline()
    assert await again.winner() is None
    assert [EntryType.EXPERIMENT_CREATED, *[EntryType.MEMBER_ADDED] * 3] == [
        entry.type for entry in await again.history()
    ]


async def test_what_was_declared_stays(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    experiment = await app.experiment("tone", hypothesis="why")
    await experiment.add("a", delta={"x": 1})
    await experiment.add("base", role="baseline")
    before = digest_of(app.data_dir, experiments=True)

    await experiment.add("a", delta={"x": 1})
    await app.experiment("tone", baseline="base")
    for change in (
        experiment.add("a", delta={"x": True}),
        experiment.add("a", role="control", delta={"x": 1}),
        experiment.add("b", role="baseline"),
        app.experiment("tone", baseline="b"),
        app.experiment("tone", hypothesis="why not"),
    ):
        with pytest.raises(ExperimentConflictError, match="tone") as refusal:
            await change
        assert refusal.value.winner is None

    assert before == digest_of(app.data_dir, experiments=True)


async def test_members_are_ranked_by_score_then_in_the_order_in_which_they_came(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b", "c", "d", "e", "f")
    for run_id, score in {"base": 9, "a": None, "b": 0.5, "c": True, "d": 1.0, "e": -2, "f": None}.items():
        await app.set_outcome(run_id, "inconclusive", score=score)
    named = await app.experiment("tone", baseline="base")
    for run_id in ("f", "e", "d", "c", "b", "a"):
        await named.add(run_id)

    assert ["c", "d", "b", "e", "a", "f"] == ids(await (await app.experiment(baseline="base")).rank())
    assert ["d", "c", "b", "e", "f", "a"] == ids(await named.rank())


async def test_a_named_experiment_is_decided_for_itself(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b", "c")
    one, other = await app.experiment("one", baseline="base"), await app.experiment("other", baseline="base")
    for experiment in (one, other):
        for run_id in ("a", "b"):
            await experiment.add(run_id)

    await one.promote("a")
    first = {run_id: await value_of(app, run_id) for run_id in ("a", "b", "c", "base")}
    with pytest.raises(ExperimentConflictError, match="another run was promoted there"):
        await app.set_outcome("b", "promoted")
    with pytest.raises(ExperimentConflictError, match="is decided: run 'a' was promoted"):
        await one.add("c")
    await app.promote("b", experiment="other")

    assert {"a": "promoted", "b": "rejected", "c": None, "base": None} == first
    assert ["promoted", "promoted"] == [await value_of(app, run_id) for run_id in ("a", "b")]
    winners = [await experiment.winner() for experiment in (one, other)]
    assert [("a", ("b",)), ("b", ("a",))] == [winner and (winner.run_id, winner.closed) for winner in winners]
    assert await (await app.experiment(baseline="base")).winner() is None


async def test_a_promotion_reaches_members_of_several_lineages_at_once(app: AppUnderTest) -> None:
    await base_and_forks(app, "a")
    await base(app, "other")
    await fork(app, "other/1", "other")
    await base(app, "third")
    experiment = await app.experiment("across", baseline="base")
    for run_id in ("a", "other/1", "third"):
        await experiment.add(run_id)

    await experiment.promote("other/1")

    told = {run_id: await value_of(app, run_id) for run_id in ("base", "a", "other/1", "third")}
    assert {"base": None, "a": "rejected", "other/1": "promoted", "third": "rejected"} == told


async def test_names_of_runs_and_of_experiments_do_not_meet(app: AppUnderTest) -> None:
    await base(app, "experiment")
    await fork(app, "experiment/1", "experiment")
    await app.promote("experiment/1")
    long = "x" * 195
    await base(app, long)
    await fork(app, "long/1", long)

    named = await app.experiment("experiment")
    await app.set_outcome("long/1", "rejected")

    assert [] == await named.members()
    assert await named.winner() is None
    assert [long, "long/1"] == ids(await (await app.experiment(baseline=long)).members())


# --- many at once, reopened, and as a journal -------------------------------------------------------------------------


async def test_many_outcomes_at_once_are_all_kept(app: AppUnderTest) -> None:
    forks = [f"f{number}" for number in range(12)]
    await base_and_forks(app, *forks)

    await asyncio.gather(*(app.set_outcome(run_id, "inconclusive", score=n) for n, run_id in enumerate(forks)))

    ranked = await (await app.experiment(baseline="base")).rank()
    assert forks[::-1] == ids(ranked)


async def test_of_two_promotions_at_once_one_is_refused(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")

    outcomes = await asyncio.gather(app.promote("a"), app.promote("b"), return_exceptions=True)

    assert [type(None), ExperimentConflictError] == [type(outcome) for outcome in outcomes]


async def test_everything_is_there_when_the_journal_is_opened_again(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await base_and_forks(app, "a", "b")
        experiment = await app.experiment("tone", baseline="base", hypothesis="why")
        await experiment.add("a", delta={"x": 1})
        await experiment.add("b")
        await app.set_outcome("a", "inconclusive", score=0.25, note="so so")
        await experiment.promote("a")
        before = [await experiment.members(), await experiment.winner(), await experiment.history()]
    async with open_app(tmp_path) as app:
        experiment = await app.experiment("tone")
        after = [await experiment.members(), await experiment.winner(), await experiment.history()]

    assert before == after
    assert "why" == experiment.hypothesis


async def test_the_journals_of_experiments_are_chained(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    experiment = await app.experiment("tone", baseline="base")
    await experiment.add("a")
    await experiment.promote("a")
    journal = await open_sqlite(app.data_dir / "satay.db")
    try:
        for experiment_id in ("base~experiment", "experiment~:tone"):
            entries = await journal.read(experiment_id)
            digest = GENESIS
            assert len(entries) > 1
            for seq, entry in enumerate(entries, 1):
                if seq > 1:
                    digest = chain_digest(digest, entry.type, entry.at, entry.payload)
                assert (seq, digest) == (entry.seq, entry.digest)
            assert (await app.verify(experiment_id)).is_intact
    finally:
        await journal.close()


async def test_an_experiment_that_a_later_version_wrote_to_is_refused_by_its_name(app: AppUnderTest) -> None:
    await base_and_forks(app, "a")
    await app.set_outcome("a", "rejected")
    journal = await open_sqlite(app.data_dir / "satay.db")
    await journal.note([Note("base~experiment", [Entry(3, "MemberBanned", 0, '{"needs":"9.9"}', b"")])])
    await journal.close()

    for use in (app.outcome("a"), app.set_outcome("a", "crashed"), app.promote("a")):
        with pytest.raises(UnsupportedEntryError, match=r"'base~experiment'.*entry 3 \(MemberBanned\).*satay 9.9"):
            await use


async def test_an_experiment_is_no_run(app: AppUnderTest) -> None:
    await base_and_forks(app, "a")
    await app.promote("a")
    before = digest_of(app.data_dir, experiments=True)
    experiment_id = "base~experiment"

    for use in (
        app.resume(experiment_id),
        app.resume(experiment_id).result(),
        app.handle(experiment_id).result(),
        app.cancel(experiment_id),
        app.terminate(experiment_id),
        app.send_event("go", run_id=experiment_id),
        app.fork(experiment_id, fork_point_seq=1, allow_unfinished=True),
        app.plan_fork(experiment_id, fork_point_seq=1),
        app.set_outcome(experiment_id, "rejected"),
        app.promote(experiment_id),
        app.outcome(experiment_id),
        app.compare(experiment_id, "base"),
    ):
        with pytest.raises(RunNotFoundError, match=f"'{experiment_id}'.*is an experiment and no run") as refusal:
            await use
        assert experiment_id == refusal.value.run_id

    assert before == digest_of(app.data_dir, experiments=True)
    assert RunStatus.WAITING == (await app.run(experiment_id)).status
    assert [experiment_id] == [run.run_id for run in await app.runs(workflow=EXPERIMENT_WORKFLOW)]


async def test_an_app_that_recovers_leaves_experiments_alone(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await base_and_forks(app, "a")
        await app.promote("a")
    before = digest_of(tmp_path, experiments=True)

    async with open_app(tmp_path, recover=True, clock=ManualClock(autojump=True)) as app:
        await app.clock.advance(3600)

    assert before == digest_of(tmp_path, experiments=True)


async def test_the_functions_of_the_package_use_the_app_of_the_block(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")

    await satay.set_outcome("a", "promoted", score=0.5)
    experiment = await satay.experiment("tone", baseline="base")
    await experiment.add("a")
    await satay.promote("a", experiment=experiment)
    await satay.promote("a")
    outcome = await satay.outcome("a")

    assert outcome is not None
    assert ("promoted", 0.5) == (outcome.value, outcome.score)


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_of_two_processes_that_promote_different_winners_at_once_one_is_refused(tmp_path: Path) -> None:
    rounds = 30
    async with open_app(tmp_path) as app:
        for number in range(rounds):
            await base(app, f"run-{number}")
            for suffix in ("a", "b"):
                await fork(app, f"run-{number}/{suffix}", f"run-{number}")
    before = digest_of(tmp_path)

    programs = [module("promoting", tmp_path, rounds, suffix, effects=tmp_path / "effects") for suffix in ("a", "b")]
    with all_of(programs):
        for program in programs:
            program.wait_for("ready")
        (tmp_path / "go").touch()
        ended = [program.end() for program in programs]

    assert [(0, ""), (0, "")] == [(each.status, each.errors) for each in ended]
    told = [json.loads(each.last_line) for each in ended]
    assert told[0] == told[1]
    assert before == digest_of(tmp_path)
    async with open_app(tmp_path) as app:
        for number, winner_id in enumerate(told[0]):
            winner = await (await app.experiment(baseline=f"run-{number}")).winner()
            assert winner is not None
            assert winner_id == winner.run_id
            values = {await value_of(app, f"run-{number}/{suffix}") for suffix in ("a", "b")}
            assert {"promoted", "rejected"} == values


async def test_an_outcome_that_another_process_was_first_to_note_is_noted_after_it(app: AppUnderTest) -> None:
    await base_and_forks(app, "a", "b")
    await app.set_outcome("a", "crashed")
    async with open_app(app.data_dir) as other:
        await asyncio.gather(
            *(
                each.set_outcome(run_id, "rejected", score=n)
                for n in range(5)
                for each, run_id in ((app, "a"), (other, "b"))
            )
        )
        members = await (await other.experiment(baseline="base")).members()

    assert [0, 6, 5] == [len(member.outcomes) for member in members]
    assert [None, 4, 4] == [member.score for member in members]
