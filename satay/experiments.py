"""Experiments: what their journals say of runs, and what is written next. Pure: it reads entries and answers drafts.

- An experiment is a journal of its own. The journals of the runs that it speaks of are never written.
- Each run has a *home*, the experiment of the run that it was forked from, or of itself; its outcomes are kept there.
- The members of a home are the forks of its baseline. A named experiment has the members that were added to it.
- A promotion is the one decision of an experiment. It names the winner and closes the other members. Outcomes that it
  brings about say so, and no later word takes them back.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from satay.arguments import MAX_KEY_LENGTH, shown
from satay.clock import to_datetime
from satay.declarations import OPAQUE
from satay.errors import DecodeError, ExperimentConflictError, InvalidValueError, JournalCorruptError
from satay.journal import BLOB_THRESHOLD_BYTES
from satay.model import RUN_ID_PATTERN, Entry, EntryType, RunRecord
from satay.replay import check_understood, facts, value_text
from satay.texts import dump_plain, json_quote, to_plain

MAX_EXPERIMENT_NAME_LENGTH: Final = 100
"""The longest name of an experiment, in characters."""

MAX_EXPERIMENT_MEMBERS: Final = 10_000
"""The most members that are added to one experiment."""

MAX_NOTE_CHARACTERS: Final = 10_000
"""The longest note of an outcome, and the longest hypothesis of an experiment."""

BASELINE: Final = "baseline"
"""The role of the member that the others are measured against; it takes no part in the ranking."""

CANDIDATE: Final = "candidate"
"""The role of a member that is measured, unless it is given another one."""


_NAMED: Final = "experiment~:"
"""What the id of a named experiment begins with."""


Score: TypeAlias = bool | int | float
"""How good a run is, the higher the better; where it only passes or fails, True or False."""


class OutcomeValue(StrEnum):
    """What can become of a run."""

    PROMOTED = "promoted"
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was recorded of a run, in the eyes of those who tried it.

    `score` is as it was given, True and False included. `decided_in` is the id of the experiment whose promotion
    brought it about, or None.
    """

    run_id: str
    value: OutcomeValue
    score: Score | None
    note: str | None
    at: datetime
    decided_in: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A run in an experiment: its role, what was declared to differ in it, and its outcomes, oldest first.

    `delta` is None where nothing was declared.
    """

    run_id: str
    role: str
    delta: Any
    outcomes: tuple[Outcome, ...]

    @property
    def outcome(self) -> Outcome | None:
        """The outcome that holds: the latest."""
        return self.outcomes[-1] if self.outcomes else None

    @property
    def score(self) -> Score | None:
        """The score of the outcome that holds."""
        return None if self.outcome is None else self.outcome.score


@dataclass(frozen=True, slots=True)
class Promotion:
    """The decision of an experiment: `run_id` won, and the runs in `closed` lost."""

    experiment_id: str
    run_id: str
    at: datetime
    closed: tuple[str, ...]


class Declaration(NamedTuple):
    """A member as it was added. `home` is the experiment that keeps its outcomes."""

    run_id: str
    role: str
    home: str
    delta_text: str


class Draft(NamedTuple):
    """An entry that is to be written: its type, its facts, and the text of its value, if it has one."""

    type: str
    facts: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """What the journal of an experiment says. `last` is None where there is no such journal yet."""

    experiment_id: str
    last: Entry | None = None
    name: str | None = None
    baseline_id: str | None = None
    hypothesis: str | None = None
    declared: Mapping[str, Declaration] = field(default_factory=dict)
    outcomes: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    promotion: Promotion | None = None

    @property
    def label(self) -> str:
        """What it is called in a message: by its name, or by its id where it has none."""
        return experiment_label(self.experiment_id)

    def outcome_of(self, run_id: str) -> Outcome | None:
        """The outcome of a run that has its home here."""
        known = self.outcomes.get(run_id)
        return known[-1] if known else None


# --- ids --------------------------------------------------------------------------------------------------------------


def baseline_experiment_id(baseline_id: str) -> str:
    """The id of the experiment that consists of a run and its forks. No user can give a run such an id."""
    readable = f"{baseline_id}~experiment"
    if RUN_ID_PATTERN.fullmatch(readable):
        return readable
    return f"run-{hashlib.sha256(baseline_id.encode()).hexdigest()[:32]}~experiment"


def named_experiment_id(name: object) -> str:
    """The id of a named experiment. Raises `InvalidValueError` for a name that cannot be used.

    Runs are numbered and named with a bare `~`, so that a run called `experiment` cannot meet an experiment.
    """
    if (
        not isinstance(name, str)
        or len(name) > MAX_EXPERIMENT_NAME_LENGTH
        or "~" in name
        or not RUN_ID_PATTERN.fullmatch(name)
    ):
        raise InvalidValueError(
            f"experiment name {shown(name)} cannot be used; a name is 1 to {MAX_EXPERIMENT_NAME_LENGTH} letters, "
            "digits and _.:=@+/-, begins with a letter, a digit or _, has no '..' and no '//', does not end with '/'"
        )
    return f"{_NAMED}{name}"


def experiment_label(experiment_id: str) -> str:
    """What an experiment is called in a message: by its name, or by the id of one that has none."""
    return experiment_id.removeprefix(_NAMED)


def baseline_of(run: RunRecord) -> str:
    """The run whose home is the home of `run` too: the one that it was forked from, or itself."""
    return run.run_id if run.forked_from is None else run.forked_from


# --- reading ----------------------------------------------------------------------------------------------------------


def fold(known: ExperimentState, entries: Sequence[Entry]) -> ExperimentState:
    """What a journal says, given what it said up to `known.last`, and the entries after that.

    Raises `JournalCorruptError` for a journal that is none of an experiment.
    """
    if not entries:
        return known
    if known.last is None and entries[0].type != EntryType.EXPERIMENT_CREATED:
        raise JournalCorruptError(f"the journal {known.experiment_id!r} does not begin as one of an experiment does")
    check_understood(entries)
    name, baseline_id, hypothesis, promotion = known.name, known.baseline_id, known.hypothesis, known.promotion
    declared, outcomes = dict(known.declared), dict(known.outcomes)
    for entry in entries:
        told = facts(entry)
        match entry.type:
            case EntryType.EXPERIMENT_CREATED:
                name, baseline_id, hypothesis = told["name"], told["baseline"], told["hypothesis"]
            case EntryType.MEMBER_ADDED:
                member = Declaration(told["run_id"], told["role"], told["home"], value_text(entry) or "null")
                declared[member.run_id] = member
                baseline_id = member.run_id if member.role == BASELINE else baseline_id
            case EntryType.OUTCOME_RECORDED:
                outcome = _outcome(told, entry.at)
                outcomes[outcome.run_id] = (*outcomes.get(outcome.run_id, ()), outcome)
            case EntryType.RUN_PROMOTED:
                promotion = Promotion(known.experiment_id, told["run_id"], to_datetime(entry.at), tuple(told["closed"]))
    return ExperimentState(
        known.experiment_id, entries[-1], name, baseline_id, hypothesis, declared, outcomes, promotion
    )


def _outcome(told: Mapping[str, Any], at: int) -> Outcome:
    value = OutcomeValue(told["outcome"])
    return Outcome(told["run_id"], value, told["score"], told["note"], to_datetime(at), told.get("decided_in"))


def to_member(declared: Declaration, home: ExperimentState) -> Member:
    """A member with its outcomes, which its home holds."""
    return Member(declared.run_id, declared.role, _read_delta(declared), tuple(home.outcomes.get(declared.run_id, ())))


def _read_delta(declared: Declaration) -> Any:
    """A delta as it was given, or as plain data where its type is not known in this process."""
    try:
        return OPAQUE.decode(declared.delta_text, f"the delta of run {declared.run_id!r}")
    except DecodeError:
        return to_plain(declared.delta_text)


def ranked(members: Iterable[Member]) -> list[Member]:
    """Members by score, the highest first and those without one last; equal ones stay in the order in which they are.

    The baseline is left out.
    """
    candidates = [member for member in members if member.role != BASELINE]
    return sorted(candidates, key=lambda member: (0, -member.score) if member.score is not None else (1, 0))


# --- what users hand in -----------------------------------------------------------------------------------------------


def checked_outcome(value: object) -> OutcomeValue:
    """An outcome that can be recorded. Raises `InvalidValueError` naming the choices."""
    values = {choice.value: choice for choice in OutcomeValue}
    if isinstance(value, str) and value in values:
        return values[value]
    choices = ", ".join(map(repr, values))
    raise InvalidValueError(f"outcome {shown(value)} cannot be recorded; it must be one of {choices}")


def checked_score(score: object) -> Score | None:
    """A score that can be recorded, or None. Raises `InvalidValueError` for what is no finite number."""
    if score is None or isinstance(score, bool):
        return score
    if isinstance(score, int | float):
        try:
            if math.isfinite(score):
                return float(score) if isinstance(score, float) else int(score)
        except OverflowError:  # An int beyond every float: it could be written, and few could read it.
            pass
    raise InvalidValueError(f"score {shown(score)} cannot be recorded; it must be a finite number, or True or False")


def checked_note(note: object, what: str) -> str | None:
    """A note or a hypothesis that can be recorded, or None. `what` begins the message of a refusal."""
    if note is None or (isinstance(note, str) and len(note) <= MAX_NOTE_CHARACTERS):
        return note
    raise InvalidValueError(
        f"{what} {shown(note)} cannot be recorded; it must be a text of at most {MAX_NOTE_CHARACTERS} characters"
    )


def checked_role(role: object) -> str:
    """A role that a member can have. Raises `InvalidValueError`."""
    if not isinstance(role, str) or not 1 <= len(role) <= MAX_KEY_LENGTH or not role.isprintable():
        raise InvalidValueError(
            f"role {shown(role)} cannot be used; a role is a text of 1 to {MAX_KEY_LENGTH} printable characters"
        )
    return role


def encode_delta(delta: object, run_id: str) -> str:
    """The text that records a delta. Raises `EncodeError`, or `InvalidValueError` for one that is too large."""
    text = OPAQUE.encode(delta, f"the delta of run {run_id!r}")
    if len(text) > BLOB_THRESHOLD_BYTES:
        raise InvalidValueError(
            f"the delta of run {run_id!r} is {len(text)} characters long when written; it can have at most "
            f"{BLOB_THRESHOLD_BYTES}: say what differs, and keep the data elsewhere"
        )
    return text


# --- what is written --------------------------------------------------------------------------------------------------


def experiment_created(name: str | None, baseline_id: str | None, hypothesis: str | None) -> Draft:
    """The first entry of an experiment: of a named one, or of the home of a baseline."""
    return Draft(
        EntryType.EXPERIMENT_CREATED,
        f'"name":{_text(name)},"baseline":{_text(baseline_id)},"hypothesis":{_text(hypothesis)}',
    )


def member_added(member: Declaration) -> Draft:
    """A member, as it is added."""
    return Draft(
        EntryType.MEMBER_ADDED,
        f'"run_id":{json_quote(member.run_id)},"role":{json_quote(member.role)},"home":{json_quote(member.home)}',
        member.delta_text,
    )


def new_member(experiment: ExperimentState, member: Declaration) -> list[Draft]:
    """What adding a member writes: nothing where it was added so before.

    Raises `ExperimentConflictError` where it was added otherwise, where there is another baseline, or where the
    experiment is decided; `InvalidValueError` where it has too many members.
    """
    there = experiment.declared.get(member.run_id)
    if there == member:
        return []
    problem = None
    if there is not None:
        problem = f"it is there as {there.role!r} with the delta {shown(_read_delta(there))}, and stays what it is"
    elif experiment.promotion is not None:
        problem = f"the experiment is decided: {_won(experiment.promotion)}"
    elif member.role == BASELINE and experiment.baseline_id is not None:
        problem = f"the baseline is {experiment.baseline_id!r}"
    if problem is not None:
        raise _conflict(
            experiment,
            f"run {member.run_id!r} cannot be added as {member.role!r} with the delta {shown(_read_delta(member))} to "
            f"experiment {experiment.label!r}: {problem}; begin another experiment",
        )
    if len(experiment.declared) >= MAX_EXPERIMENT_MEMBERS:
        raise InvalidValueError(
            f"experiment {experiment.label!r} has {MAX_EXPERIMENT_MEMBERS} members and can have no more; begin "
            "another one"
        )
    return [member_added(member)]


def new_outcome(
    home: ExperimentState, run_id: str, value: OutcomeValue, score: Score | None, note: str | None
) -> list[Draft]:
    """What recording an outcome by hand writes: nothing where it says what holds already.

    Without a score, the one that was recorded before stays. Raises `ExperimentConflictError` for an outcome that a
    promotion rules out.
    """
    there = home.outcome_of(run_id)
    _check_decided(home, run_id, there, value)
    if there is not None and score is None:
        score = there.score
    is_same_value = there is not None and there.value is value
    decided_in = there.decided_in if there is not None and is_same_value else None
    if there is not None and is_same_value and _is_same(there.score, score) and there.note == note:
        return []
    return [_recorded(run_id, value, score, note, decided_in)]


def _check_decided(home: ExperimentState, run_id: str, there: Outcome | None, value: OutcomeValue) -> None:
    """Refuse an outcome that contradicts a promotion."""
    decided_in = None if there is None else there.decided_in
    if decided_in is not None and there is not None and there.value is OutcomeValue.PROMOTED:
        if value is OutcomeValue.PROMOTED:
            return
        raise ExperimentConflictError(
            f"the outcome of run {run_id!r} cannot be {value.value!r}: it was promoted in experiment {decided_in!r}, "
            "and that stands; say what was learned since in a note",
            experiment_id=decided_in,
            winner=run_id,
        )
    if value is not OutcomeValue.PROMOTED:
        return
    refused = f"the outcome of run {run_id!r} cannot be 'promoted': experiment"
    if home.promotion is not None:
        raise _conflict(home, f"{refused} {home.label!r} is decided, {_won(home.promotion)}")
    if decided_in is not None:
        raise ExperimentConflictError(
            f"{refused} {decided_in!r} is decided, and another run was promoted there",
            experiment_id=decided_in,
            winner=None,
        )


def check_same_hypothesis(experiment: ExperimentState, hypothesis: str | None) -> None:
    """Raise `ExperimentConflictError` where an experiment was begun with another hypothesis than the one given."""
    if hypothesis is not None and experiment.hypothesis != hypothesis:
        raise _conflict(
            experiment,
            f"experiment {experiment.name!r} is there already: its hypothesis is {shown(experiment.hypothesis)}, not "
            f"{shown(hypothesis)}, and stays what it is; choose another name",
        )


def check_undecided(experiment: ExperimentState, run_id: str) -> None:
    """Raise `ExperimentConflictError` where another run was promoted."""
    promotion = experiment.promotion
    if promotion is not None and promotion.run_id != run_id:
        raise _conflict(
            experiment,
            f"run {run_id!r} cannot be promoted in experiment {experiment.label!r}, which is decided: "
            f"{_won(promotion)}; a promotion stands, so decide again in another experiment",
        )


def new_promotion(
    experiment: ExperimentState, winner_id: str, members: Sequence[tuple[str, ExperimentState]]
) -> dict[str, list[Draft]]:
    """What promoting a member writes, by the experiment whose journal it goes to. `members` are runs with their homes.

    The winner becomes `promoted`. Others whose outcome is open, see `_is_open`, become `rejected`. Scores stay.
    """
    closed = [run_id for run_id, _ in members if run_id != winner_id]
    names = ",".join(map(json_quote, closed))
    decision = Draft(EntryType.RUN_PROMOTED, f'"run_id":{json_quote(winner_id)},"closed":[{names}]')
    drafts = {experiment.experiment_id: [decision]}
    for run_id, home in members:
        there = home.outcome_of(run_id)
        is_winner = run_id == winner_id
        if _is_open(there) or (is_winner and there is not None and there.value is not OutcomeValue.PROMOTED):
            value = OutcomeValue.PROMOTED if is_winner else OutcomeValue.REJECTED
            score = None if there is None else there.score
            note = there.note if there is not None and there.value is value else None
            draft = _recorded(run_id, value, score, note, experiment.experiment_id)
            drafts.setdefault(home.experiment_id, []).append(draft)
    return drafts


def _is_open(outcome: Outcome | None) -> bool:
    """Whether a promotion has the last word: no outcome, an inconclusive one, or `promoted` by hand."""
    if outcome is None or outcome.value is OutcomeValue.INCONCLUSIVE:
        return True
    return outcome.value is OutcomeValue.PROMOTED and outcome.decided_in is None


def _recorded(run_id: str, value: OutcomeValue, score: Score | None, note: str | None, decided_in: str | None) -> Draft:
    decided = "" if decided_in is None else f',"decided_in":{json_quote(decided_in)}'
    return Draft(
        EntryType.OUTCOME_RECORDED,
        f'"run_id":{json_quote(run_id)},"outcome":"{value.value}","score":{dump_plain(score)}{decided},'
        f'"note":{_text(note)}',
    )


def _text(text: str | None) -> str:
    return "null" if text is None else json_quote(text)


def _is_same(one: Score | None, other: Score | None) -> bool:
    """Whether two scores are one: 1 and True are not."""
    return type(one) is type(other) and one == other


def _won(promotion: Promotion) -> str:
    return f"run {promotion.run_id!r} was promoted at {promotion.at.isoformat(timespec='seconds')}"


def _conflict(experiment: ExperimentState, message: str) -> ExperimentConflictError:
    winner = None if experiment.promotion is None else experiment.promotion.run_id
    return ExperimentConflictError(message, experiment_id=experiment.experiment_id, winner=winner)
