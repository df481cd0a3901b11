"""The laboratory: reads the journals of experiments and extends them, and the handle on one of them.

A change reads what is there, decides what follows, and notes it in all journals that it concerns, or in none. Where
another writer was first, it begins again with what is there now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from satay.archive import Archive
from satay.clock import Clock, to_datetime
from satay.errors import (
    ExperimentNotFoundError,
    JournalConflictError,
    PromotionError,
    RunConflictError,
    RunExistsError,
    UsageError,
)
from satay.experiments import (
    BASELINE,
    CANDIDATE,
    Declaration,
    Draft,
    ExperimentState,
    Member,
    Outcome,
    OutcomeValue,
    Promotion,
    Score,
    baseline_experiment_id,
    baseline_of,
    check_same_hypothesis,
    check_undecided,
    checked_note,
    checked_outcome,
    checked_role,
    checked_score,
    encode_delta,
    experiment_created,
    experiment_label,
    fold,
    member_added,
    named_experiment_id,
    new_member,
    new_outcome,
    new_promotion,
    ranked,
    to_member,
)
from satay.handles import RunEvent, RunOrId
from satay.journal import GENESIS, MAX_PAGE, Journal, Lease, NewRun, Note, RunQuery
from satay.model import EXPERIMENT_WORKFLOW, Entry, RunRecord, RunStatus
from satay.recorder import Recorder, first_entry
from satay.replay import facts, reading

MAX_CONFLICTS: Final = 100
"""How often a change begins again because another process was first, before it gives up."""

MAX_REMEMBERED: Final = 64
"""How many experiments an app remembers, so that it reads only what was written to them since."""

Changes: TypeAlias = tuple[Sequence[ExperimentState], Mapping[str, Sequence[Draft]]]
"""What is to be written: the experiments as they were read, and the drafts by the experiment that they go to."""


class OpenJournal(Protocol):
    """A journal that is open, and the archive that reads it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def archive(self) -> Archive: ...


class Laboratory:
    """The experiments of one app. `ready` answers when its journal is open, `id_of` says which run a caller names."""

    def __init__(
        self,
        ready: Callable[[], Awaitable[OpenJournal]],
        id_of: Callable[[RunOrId], Awaitable[str]],
        clock: Clock,
    ) -> None:
        self._ready = ready
        self._id_of = id_of
        self._clock = clock
        self._turn = asyncio.Lock()
        self._remembered: dict[str, ExperimentState] = {}

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def set_outcome(self, run: RunOrId, value: object, score: object, note: object) -> None:
        """Record what became of a run."""
        outcome, number, text = checked_outcome(value), checked_score(score), checked_note(note, "the note")
        record = await self._run(run)
        if outcome is OutcomeValue.PROMOTED:
            await self._check_promotable(record)
        await self._change(partial(self._plan_outcome, record, outcome, number, text))

    async def _plan_outcome(
        self, record: RunRecord, value: OutcomeValue, score: Score | None, note: str | None
    ) -> Changes:
        home = await self._opened_home(baseline_of(record))
        return [home], {home.experiment_id: new_outcome(home, record.run_id, value, score, note)}

    # --- promotion ----------------------------------------------------------------------------------------------------

    async def promote(self, run: RunOrId, experiment: "str | Experiment | None") -> None:
        """Promote a run, in a named experiment or in that of the run it was forked from."""
        named = experiment.experiment_id if isinstance(experiment, Experiment) else None
        if experiment is not None and named is None:
            named = named_experiment_id(experiment)
        record = await self._run(run)
        experiment_id = baseline_experiment_id(baseline_of(record)) if named is None else named
        await self._check_promotable(record)
        await self._change(partial(self._plan_promotion, record, experiment_id))

    async def _check_promotable(self, record: RunRecord) -> None:
        if record.forked_from is None:
            raise PromotionError(
                f"run {record.run_id!r} is no fork, and only forks can be promoted: promoting says which of several "
                "ways to go on from a run is the one to keep",
                run_id=record.run_id,
            )
        latest = await (await self._ready()).archive.latest(record.run_id)
        if latest.status is not RunStatus.COMPLETED:
            raise PromotionError(
                f"run {record.run_id!r} is {latest.status.value} and cannot be promoted; only a run that has completed "
                "can be",
                run_id=record.run_id,
            )

    async def _plan_promotion(self, record: RunRecord, experiment_id: str) -> Changes:
        baseline_id = baseline_of(record)
        if experiment_id == baseline_experiment_id(baseline_id):
            experiment = await self._opened_home(baseline_id)
        else:
            experiment = await self.there(experiment_id)
        check_undecided(experiment, record.run_id)
        if experiment.promotion is not None:
            return [], {}
        declared = await self._declared(experiment)
        if all(member.run_id != record.run_id for member in declared):
            raise PromotionError(
                f"run {record.run_id!r} is no member of experiment {experiment_label(experiment_id)!r}; add it first",
                run_id=record.run_id,
            )
        candidates = [member for member in declared if member.role != BASELINE]
        homes = {experiment_id: experiment}
        for member in candidates:
            if member.home not in homes:
                homes[member.home] = await self._opened_home_of(member)
        members = [(member.run_id, homes[member.home]) for member in candidates]
        return list(homes.values()), new_promotion(experiment, record.run_id, members)

    async def _opened_home_of(self, member: Declaration) -> ExperimentState:
        home = await self.state(member.home)
        return home if home.last is not None else await self._opened_home(baseline_of(await self._run(member.run_id)))

    # --- experiments --------------------------------------------------------------------------------------------------

    async def open(self, name: str | None, baseline: RunOrId | None, hypothesis: object) -> "Experiment":
        """The handle on an experiment, which is created where there is none."""
        text = checked_note(hypothesis, "the hypothesis")
        if name is None:
            return await self._open_home(baseline, text)
        experiment_id = named_experiment_id(name)
        declared = None if baseline is None else await self._declaration(baseline, BASELINE, None)
        state = await self.state(experiment_id)
        if state.last is None:
            drafts = [] if declared is None else [member_added(declared)]
            state = await self._create(experiment_id, experiment_created(name, None, text), drafts)
        check_same_hypothesis(state, text)
        if declared is not None:
            await self._change(partial(self._plan_member, experiment_id, declared))
        return Experiment(self, experiment_id, name, state.hypothesis)

    async def _open_home(self, baseline: RunOrId | None, hypothesis: str | None) -> "Experiment":
        if baseline is None or hypothesis is not None:
            raise UsageError(
                "satay.experiment() takes a name, with which it may take a baseline and a hypothesis; or a baseline "
                "alone, for the experiment that consists of that run and its forks"
            )
        state = await self._opened_home((await self._run(baseline)).run_id)
        return Experiment(self, state.experiment_id, None, None)

    async def add(self, experiment_id: str, run: RunOrId, role: object, delta: object) -> None:
        """Add a member to a named experiment."""
        if (await self.there(experiment_id)).name is None:
            raise UsageError(
                f"no run can be added to experiment {experiment_id!r}, whose members are the forks of its baseline; "
                "give an experiment of your own a name"
            )
        declared = await self._declaration(run, checked_role(role), delta)
        await self._change(partial(self._plan_member, experiment_id, declared))

    async def _declaration(self, run: RunOrId, role: str, delta: object) -> Declaration:
        record = await self._run(run)
        text = encode_delta(delta, record.run_id)
        return Declaration(record.run_id, role, baseline_experiment_id(baseline_of(record)), text)

    async def _plan_member(self, experiment_id: str, declared: Declaration) -> Changes:
        experiment = await self.there(experiment_id)
        return [experiment], {experiment_id: new_member(experiment, declared)}

    async def members(self, experiment_id: str) -> list[Member]:
        """The members with their outcomes: the baseline of a home first, then in the order in which they came."""
        experiment = await self.there(experiment_id)
        homes = {experiment_id: experiment}
        members = []
        for declared in await self._declared(experiment):
            if declared.home not in homes:
                homes[declared.home] = await self.state(declared.home)
            members.append(to_member(declared, homes[declared.home]))
        return members

    async def _declared(self, experiment: ExperimentState) -> list[Declaration]:
        """The members as they were added; those of a home were added by being forked."""
        if experiment.name is not None or experiment.baseline_id is None:
            return list(experiment.declared.values())
        baseline = await self._run(experiment.baseline_id)
        home = baseline_experiment_id(baseline_of(baseline))
        forks = await self._forks(experiment.baseline_id)
        return [
            Declaration(baseline.run_id, BASELINE, home, "null"),
            *(Declaration(fork.run_id, CANDIDATE, experiment.experiment_id, "null") for fork in forks),
        ]

    async def _forks(self, run_id: str) -> list[RunRecord]:
        """The forks of a run in the order of their creation."""
        journal = (await self._ready()).journal
        forks: list[RunRecord] = []
        while True:
            before = forks[-1].run_id if forks else None
            page = await journal.runs(RunQuery(forked_from=run_id, before=before, limit=MAX_PAGE))
            forks += page
            if len(page) < MAX_PAGE:
                return forks[::-1]

    # --- reading ------------------------------------------------------------------------------------------------------

    async def history(self, experiment_id: str) -> list[RunEvent]:
        """The entries of an experiment's journal."""
        entries = await (await self._ready()).archive.entries(experiment_id)
        return [RunEvent(entry.seq, entry.type, to_datetime(entry.at), facts(entry)) for entry in entries]

    async def state(self, experiment_id: str) -> ExperimentState:
        """What the journal of an experiment says, if there is one."""
        known = self._remembered.get(experiment_id, ExperimentState(experiment_id))
        state = await read_on((await self._ready()).archive, known)
        if state.last is not None:
            self._remembered.pop(experiment_id, None)
            self._remembered[experiment_id] = state
            if len(self._remembered) > MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        return state

    async def there(self, experiment_id: str) -> ExperimentState:
        """What the journal of an experiment says that was created. Raises `ExperimentNotFoundError`."""
        state = await self.state(experiment_id)
        if state.last is None:
            raise await self._not_found(experiment_label(experiment_id))
        return state

    async def _not_found(self, name: str) -> ExperimentNotFoundError:
        query = RunQuery(workflow=EXPERIMENT_WORKFLOW, limit=MAX_PAGE)
        ids = [there.run_id for there in await (await self._ready()).journal.runs(query)]
        named = [experiment_label(each) for each in ids if experiment_label(each) != each]
        close = get_close_matches(name, named, 1)
        hint = f"did you mean {close[0]!r}?" if close else "satay.experiment(name) creates one"
        return ExperimentNotFoundError(f"there is no experiment {name!r} in this journal; {hint}", name=name)

    async def _run(self, run: RunOrId) -> RunRecord:
        archive = (await self._ready()).archive
        return await archive.run(await self._id_of(run))

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _change(self, plan: Callable[[], Awaitable[Changes]]) -> None:
        """Read, plan and note. Raises what the plan raises, with nothing written."""
        async with self._turn:  # Held while one change is made: those of one process would only meet in conflicts.
            await self._try_change(plan)

    async def _try_change(self, plan: Callable[[], Awaitable[Changes]]) -> None:
        journal = (await self._ready()).journal
        conflicts = 0
        while True:
            states, drafts = await plan()
            notes = [self._note(state, there) for state in states if (there := drafts.get(state.experiment_id))]
            if not notes:
                return
            try:
                return await journal.note(notes)
            except JournalConflictError:
                conflicts += 1
                if conflicts >= MAX_CONFLICTS:
                    raise

    def _note(self, state: ExperimentState, drafts: Sequence[Draft]) -> Note:
        assert state.last is not None, "an experiment is created before it is extended"
        return Note(state.experiment_id, self._entries(state.experiment_id, state.last, drafts))

    def _entries(self, experiment_id: str, last: Entry, drafts: Sequence[Draft]) -> Sequence[Entry]:
        recorder = Recorder(Lease(experiment_id, 0, 0), self._clock, last)
        return [recorder.record(*draft) for draft in drafts]

    async def _opened_home(self, baseline_id: str) -> ExperimentState:
        experiment_id = baseline_experiment_id(baseline_id)
        state = await self.state(experiment_id)
        if state.last is not None:
            return state
        return await self._create(experiment_id, experiment_created(None, baseline_id, None), [])

    async def _create(self, experiment_id: str, first: Draft, more: Sequence[Draft]) -> ExperimentState:
        """Create an experiment, unless somebody did so meanwhile."""
        ready = await self._ready()
        now = self._clock.now()
        entry, _ = first_entry(first.type, now, first.facts, first.text, GENESIS)
        new_run = NewRun(experiment_id, EXPERIMENT_WORKFLOW, created_at=now, owner=None, code_version="")
        try:
            await ready.journal.create(new_run, [entry, *self._entries(experiment_id, entry, more)])
        except RunExistsError:
            if (await ready.archive.record(experiment_id)).workflow != EXPERIMENT_WORKFLOW:
                raise RunConflictError(
                    f"the id {experiment_id!r}, which an experiment needs, is that of a run", run_id=experiment_id
                ) from None
        return await self.state(experiment_id)


async def read_on(archive: Archive, known: ExperimentState) -> ExperimentState:
    """What the journal of an experiment says now, given what it said before."""
    after = 0 if known.last is None else known.last.seq
    entries = await archive.entries(known.experiment_id, after=after)
    with reading(known.experiment_id):
        return fold(known, entries)


async def read_outcome(archive: Archive, run: RunRecord) -> Outcome | None:
    """The outcome of a run that holds: the latest."""
    home = await read_on(archive, ExperimentState(baseline_experiment_id(baseline_of(run))))
    return home.outcome_of(run.run_id)


class Experiment:
    """An experiment: runs side by side under one question. Made by `satay.experiment()`.

    `name` is None for the experiment that consists of a run and its forks. `experiment_id` is the id of its journal.
    """

    def __init__(self, laboratory: Laboratory, experiment_id: str, name: str | None, hypothesis: str | None) -> None:
        self._laboratory = laboratory
        self.experiment_id = experiment_id
        self.name = name
        self.hypothesis = hypothesis

    async def add(self, run: RunOrId, *, role: str = CANDIDATE, delta: Any = None) -> None:
        """Add a run, which need not have ended. `delta` is any value that says what differs in it.

        What was declared stays: adding it so again changes nothing, adding it otherwise raises
        `ExperimentConflictError`, as does adding one more baseline, or adding to an experiment that is decided.
        """
        await self._laboratory.add(self.experiment_id, run, role, delta)

    async def members(self) -> list[Member]:
        """All members with their outcomes, in the order in which they were added, or forked."""
        return await self._laboratory.members(self.experiment_id)

    async def baseline(self) -> Member | None:
        """The member that the others are measured against."""
        return next((member for member in await self.members() if member.role == BASELINE), None)

    async def rank(self) -> list[Member]:
        """The members but the baseline, the highest score first.

        Those without a score come last. Equal ones are in the order in which they were added, or forked.
        """
        return ranked(await self.members())

    async def promote(self, run: RunOrId) -> None:
        """Decide the experiment for a member; see `App.promote`."""
        await self._laboratory.promote(run, self)

    async def winner(self) -> Promotion | None:
        """The decision, once there is one."""
        return (await self._laboratory.there(self.experiment_id)).promotion

    async def history(self) -> list[RunEvent]:
        """The entries of the experiment's journal, oldest first.

        The outcomes of members of a named experiment are kept with the run that they were forked from, and are in
        `Member.outcomes`.
        """
        return await self._laboratory.history(self.experiment_id)

    def __repr__(self) -> str:
        return f"<Experiment {self.experiment_id!r}>"
