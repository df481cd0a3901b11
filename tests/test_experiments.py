"""The rules of experiments: what their journals say, and what is written because of it."""

import pytest

from satay.errors import ExperimentConflictError, InvalidValueError, JournalCorruptError, UnsupportedEntryError
from satay.experiments import (
    Declaration,
    Draft,
    ExperimentState,
    Member,
    Outcome,
    OutcomeValue,
    Score,
    baseline_experiment_id,
    checked_score,
    experiment_created,
    fold,
    member_added,
    named_experiment_id,
    new_member,
    new_outcome,
    new_promotion,
    ranked,
)
from satay.model import RUN_ID_PATTERN, Entry, EntryType, child_run_id, continued_run_id

T0 = 1_764_000_000_000_000
HOME = "base~experiment"


def written(*drafts: Draft) -> list[Entry]:
    """The entries of drafts, without digests."""
    payloads = ["{" + draft.facts + ("" if draft.text is None else f',"delta":{draft.text}') + "}" for draft in drafts]
    return [
        Entry(seq, draft.type, T0 + seq, payload, b"")
        for seq, (draft, payload) in enumerate(zip(drafts, payloads, strict=True), 1)
    ]


def home(*drafts: Draft) -> ExperimentState:
    return fold(ExperimentState(HOME), written(experiment_created(None, "base", None), *drafts))


def outcome(run_id: str, value: OutcomeValue, score: Score | None = None, note: str | None = None) -> list[Draft]:
    return new_outcome(home(), run_id, value, score, note)


def member(run_id: str, score: Score | None) -> Member:
    state = home(*outcome(run_id, OutcomeValue.INCONCLUSIVE, score))
    return Member(run_id, "candidate", None, state.outcomes[run_id])


def test_a_journal_that_is_not_there_says_nothing() -> None:
    state = fold(ExperimentState(HOME), [])

    assert ExperimentState(HOME) == state
    assert state.outcome_of("a") is None


def test_a_journal_says_name_hypothesis_members_and_baseline() -> None:
    quoted = 'why "this", not that?\n'
    one = Declaration("a", "candidate", HOME, '{"delta":",\\"delta\\":1"}')
    base = Declaration("base", "baseline", "base~experiment", "null")
    state = fold(
        ExperimentState("e"), written(experiment_created("tone", None, quoted), member_added(one), member_added(base))
    )

    assert ("tone", quoted, "base") == (state.name, state.hypothesis, state.baseline_id)
    assert {"a": one, "base": base} == state.declared


def test_a_journal_says_the_same_whether_it_is_read_at_once_or_piece_by_piece() -> None:
    state = home(*outcome("a", OutcomeValue.REJECTED))
    promotion = new_promotion(state, "b", [("a", state), ("b", state)])[HOME]
    drafts = [experiment_created(None, "base", None), *outcome("a", OutcomeValue.REJECTED), *promotion]
    entries = written(*drafts, member_added(Declaration("c", "baseline", HOME, "1")))
    pieces = ExperimentState(HOME)
    for entry in entries:
        pieces = fold(pieces, [entry])

    assert fold(ExperimentState(HOME), entries) == pieces
    assert "c" == pieces.baseline_id
    assert pieces.promotion is not None


@pytest.mark.parametrize("type", [EntryType.WORKFLOW_CREATED, EntryType.MEMBER_ADDED])
def test_a_journal_of_something_else_is_refused(type: EntryType) -> None:
    with pytest.raises(JournalCorruptError, match="'e' does not begin"):
        fold(ExperimentState("e"), [Entry(1, type, T0, "{}", b"")])


def test_an_entry_of_a_later_version_is_refused_unless_it_says_that_it_may_be_passed_over() -> None:
    created = written(experiment_created("tone", None, None))

    with pytest.raises(UnsupportedEntryError, match=r"entry 2 \(MemberBanned\)"):
        fold(ExperimentState("e"), [*created, Entry(2, "MemberBanned", T0, "{}", b"")])
    assert fold(ExperimentState("e"), [*created, Entry(2, "NotedWeather", T0, "{}", b"")]).declared == {}


def test_an_outcome_that_says_what_holds_already_writes_nothing() -> None:
    first = outcome("a", OutcomeValue.REJECTED, 1, "so")
    state = home(*first)

    assert [] == new_outcome(state, "a", OutcomeValue.REJECTED, 1, "so")
    assert [] == new_outcome(state, "a", OutcomeValue.REJECTED, None, "so")
    assert [] != new_outcome(state, "a", OutcomeValue.REJECTED, True, "so")
    assert [] != new_outcome(state, "a", OutcomeValue.REJECTED, 1, None)
    assert [] != new_outcome(state, "b", OutcomeValue.REJECTED, 1, "so")


def test_a_promotion_writes_the_decision_first_and_only_what_it_changes() -> None:
    drafts = [
        *outcome("a", OutcomeValue.INCONCLUSIVE, 0.5),
        *outcome("b", OutcomeValue.REJECTED, 0.1),
        *outcome("c", OutcomeValue.CRASHED),
        *outcome("d", OutcomeValue.PROMOTED, 0.9),
    ]
    state = home(*drafts)
    promotion = new_promotion(state, "b", [(run_id, state) for run_id in ("a", "b", "c", "d", "e")])
    decided = home(*drafts, *promotion.pop(HOME))

    assert {} == promotion
    assert decided.promotion is not None
    assert ("b", ("a", "c", "d", "e")) == (decided.promotion.run_id, decided.promotion.closed)
    assert {"a": 2, "b": 2, "c": 1, "d": 2, "e": 1} == {name: len(told) for name, told in decided.outcomes.items()}
    latest = {run_id: told[-1].value for run_id, told in decided.outcomes.items()}
    assert {"a": "rejected", "b": "promoted", "c": "crashed", "d": "rejected", "e": "rejected"} == latest


def test_what_one_experiment_promoted_another_does_not_reject() -> None:
    first = home()
    won = new_promotion(first, "a", [("a", first)])[HOME]
    state = home(*won)
    other = fold(ExperimentState("experiment~:other"), written(experiment_created("other", None, None)))

    drafts = new_promotion(other, "b", [("a", state), ("b", state)])

    assert [EntryType.RUN_PROMOTED] == [draft.type for draft in drafts["experiment~:other"]]
    assert ['"run_id":"b","outcome":"promoted"'] == [
        draft.facts[: len('"run_id":"b","outcome":"promoted"')] for draft in drafts[HOME]
    ]


def test_an_experiment_has_only_so_many_members() -> None:
    one = Declaration("a", "candidate", HOME, "null")
    full = ExperimentState("e", declared={str(number): one for number in range(10_000)})

    with pytest.raises(InvalidValueError, match="10000 members"):
        new_member(full, one)


def test_a_member_is_not_added_to_what_is_decided() -> None:
    state = home()
    decided = home(*new_promotion(state, "a", [("a", state)])[HOME])

    with pytest.raises(ExperimentConflictError, match="run 'a' was promoted at") as refusal:
        new_member(decided, Declaration("b", "candidate", HOME, "null"))
    assert "a" == refusal.value.winner


def test_scores_rank_from_high_to_low_and_missing_ones_last() -> None:
    scores: dict[str, Score | None] = {"a": None, "b": False, "c": 0.5, "d": True, "e": 1, "f": -(10**30), "g": None}
    members = [member(run_id, score) for run_id, score in scores.items()]
    base = Member("base", "baseline", None, members[3].outcomes)

    assert ["d", "e", "c", "b", "f", "a", "g"] == [each.run_id for each in ranked([base, *members])]


@pytest.mark.parametrize("score", [0, 1, -3, 0.5, -0.0, 1e300, True, False, None, 2**70])
def test_a_score_is_kept_as_it_was_given(score: Score | None) -> None:
    drafts = new_outcome(home(), "a", OutcomeValue.REJECTED, checked_score(score), None)
    told: Outcome | None = home(*drafts).outcome_of("a")

    assert told is not None
    assert (type(score), score) == (type(told.score), told.score)


def test_ids_of_experiments_are_ids_that_no_run_can_have() -> None:
    long = "x" * 200
    of_runs = {
        "experiment",
        long,
        *(continued_run_id(run_id) for run_id in ("experiment", long, "a")),
        *(child_run_id(run_id, "experiment", n) for run_id in ("experiment", "a") for n in (0, "a", "1")),
    }
    of_experiments = [baseline_experiment_id(run_id) for run_id in of_runs]
    of_experiments += [named_experiment_id(name) for name in ("experiment", "2", "a/experiment:0", "experiment=1")]

    assert len(of_experiments) == len(set(of_experiments))
    assert not of_runs & set(of_experiments)
    assert all(RUN_ID_PATTERN.fullmatch(experiment_id) for experiment_id in of_experiments)
