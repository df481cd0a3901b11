"""Sessions against a model of them: steps, states, calls, crashes and forks of forks at random, under every policy."""

import copy
import json
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import pytest

import satay
from satay.errors import CallConflictError, NoRestorableStateError, SessionLostError, TaskBlockedError
from satay.testing import AppUnderTest, abandon, open_app

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

VISITS: Final = 50
"""How often a session is opened."""

MAX_FORKS: Final = 20

Mode = Literal["exact", "nearest", "lineage"]
MODES: Final[tuple[Mode, ...]] = ("exact", "nearest", "lineage")
POLICIES: Final = (
    None,
    {"*": "block"},
    {"tool": "live"},
    {"*": "replay"},
    {"tool": "block", "*": "auto"},
    {"*": "auto"},
)


@dataclass(frozen=True)
class Call:
    """What the ledger has under a key: what it was asked for, before which step, and whether it was refused."""

    argument: int
    step: int
    is_refused: bool = False
    is_inherited: bool = False


@dataclass
class Model:
    """What a session has to be."""

    steps: list[str] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)
    written: list[tuple[str, Call]] = field(default_factory=list)
    policies: dict[str, str] = field(default_factory=dict)
    boundary: int | None = None
    handed: Any = None
    intervention: Any = None

    @property
    def state(self) -> Any:
        latest = max(self.states, default=0)
        is_withheld = self.boundary is not None and self.handed is None and latest <= self.boundary
        return None if is_withheld else self.states.get(latest)

    @property
    def policy(self) -> str:
        return self.policies.get("tool", self.policies.get("*", "auto"))

    def state_step(self, at_step: int, mode: Mode) -> int | None:
        """The step whose state a fork is handed."""
        found = [step for step in self.states if step == at_step or (mode == "nearest" and step < at_step)]
        return None if mode == "lineage" else max(found, default=None)

    def fork(self, boundary: int, handed: Any, policies: dict[str, str] | None, intervention: Any) -> "Model":
        return Model(
            self.steps[:boundary],
            {step: state for step, state in self.states.items() if step <= boundary},
            [(key, replace(call, is_inherited=True)) for key, call in self.written if call.step <= boundary],
            {**self.policies, **(policies or {})},
            boundary,
            handed,
            intervention,
        )

    def fate(self, key: str, argument: int) -> str:
        """What becomes of a call."""
        may_run = self.boundary is None or self.policy in ("auto", "live")
        known = dict(self.written).get(key)
        if known is not None and known.argument == argument and not (known.is_refused and known.is_inherited):
            if known.is_inherited and self.policy == "live":
                return "made"
            return "refused" if known.is_refused else "replayed"
        if known is not None and not known.is_inherited:
            return "conflict"
        return "made" if may_run else "refused"

    def note(self, key: str, argument: int, fate: str) -> None:
        known = dict(self.written).get(key)
        is_new = known is None or known.is_inherited
        if fate == "made" or (fate == "refused" and is_new):
            self.written.append((key, Call(argument, len(self.steps) + 1, is_refused=fate == "refused")))


class World:
    """Sessions, their models, and what is done to them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.models = {"root": Model()}
        self.effects = 0
        self.state: Any = None

    async def tool(self, argument: int) -> dict[str, int]:
        self.effects += 1
        return {"argument": argument}

    async def visit(self, app: AppUnderTest) -> bool:
        """Open a session, do something with it, and leave it somehow; whether the app died."""
        session_id = self.chance.choice(list(self.models))
        model, interval = self.models[session_id], self.chance.choice([1, 1, 2, 3])
        self.state = copy.deepcopy(model.states.get(max(model.states, default=0)))
        session = await satay.Session.resume(session_id, state_fn=lambda: self.state, state_interval=interval)
        await session.__aenter__()
        await self.check(session, model)
        for _ in range(self.chance.randint(0, 5)):
            what = self.chance.choices([self.step, self.call, self.look, self.fork], [5, 3, 1, 1])[0]
            await what(session, model, interval)
        match self.chance.choice(["complete", "pause", "crash", "die"]):
            case "die":
                await abandon(app)
                with suppress(SessionLostError, satay.errors.JournalError):
                    await session.__aexit__(None, None, None)
                return True
            case "crash":
                await session.__aexit__(ValueError, ValueError("oh"), None)
            case "pause":
                session.pause()
                await session.__aexit__(None, None, None)
            case _:
                await session.__aexit__(None, None, None)
        return False

    async def check(self, session: satay.Session, model: Model) -> None:
        assert (len(model.steps), model.state) == (session.last_step, session.state)
        assert (model.intervention, model.handed) == (session.intervention, session.inherited_state)

    async def step(self, session: satay.Session, model: Model, interval: int) -> None:
        self.state = self.changed(self.state)
        step = await session.step(self.chance.choice(['a "plan"', "é"]), output=self.state)
        model.steps.append(step.name)

        assert len(model.steps) == step.number
        if step.number % interval == 0:
            model.states[step.number] = copy.deepcopy(self.state)

    def changed(self, state: Any) -> dict[str, Any]:
        changed: dict[str, Any] = (
            copy.deepcopy(state) if state else {"items": [], "text": "x" * self.chance.choice([0, 10, 3000])}
        )
        for _ in range(self.chance.randint(0, 3)):
            values = [None, True, 1, 1.0, "é☃" * self.chance.randint(0, 400), [1, 2], {"part": self.chance.random()}]
            changed[self.chance.choice("abcd")] = self.chance.choice(values)
        if self.chance.random() < 0.3:
            changed["items"].insert(self.chance.randint(0, len(changed["items"])), self.chance.randint(0, 9))
        return changed

    async def call(self, session: satay.Session, model: Model, interval: int) -> None:
        key, argument, before = self.chance.choice("abc"), self.chance.choice([1, 2]), self.effects
        try:
            receipt = await session.call("tool", self.tool, argument, key=key)
        except CallConflictError:
            fate = "conflict"
        except TaskBlockedError:
            fate = "refused"
        else:
            fate = "made" if self.effects > before else "replayed"
            assert {"argument": argument} == receipt.result

        assert model.fate(key, argument) == fate
        assert before + (fate == "made") == self.effects
        model.note(key, argument, fate)

    async def look(self, session: satay.Session, model: Model, interval: int) -> None:
        for number in range(1, len(model.steps) + 1):
            if number in model.states:
                assert json.dumps(model.states[number]) == json.dumps(await session.state_at(number))
            else:
                with pytest.raises(NoRestorableStateError):
                    await session.state_at(number)

    async def fork(self, session: satay.Session, model: Model, interval: int) -> None:
        at_step, mode = self.chance.randint(0, len(model.steps)), self.chance.choice(MODES)
        policies, intervention = self.chance.choice(POLICIES), self.chance.choice([None, {"model": "b"}])
        name, state_step = f"fork-{len(self.models)}", model.state_step(at_step, mode)
        boundary = at_step if mode == "lineage" else state_step
        asked: Any = {"name": name, "boundary": mode, "tool_policies": policies, "intervention": intervention}
        if len(self.models) > MAX_FORKS:
            return
        if self.chance.random() < 0.5:
            forking = session.fork(at_step=at_step, **asked)
        else:
            forking = satay.Session.resume(session.run_id, fork_at_step=at_step, **asked)
        if boundary is None:
            with pytest.raises(NoRestorableStateError):
                await forking
            return
        receipt = (await forking).receipt

        assert receipt is not None
        assert receipt.boundary is not None
        told = (receipt.boundary.requested_step, receipt.boundary.resolved_step, receipt.boundary.state_step)
        assert (at_step, boundary, state_step) == told
        handed = None if state_step is None else model.states[state_step]
        self.models[name] = model.fork(boundary, handed, policies, intervention)

    async def check_all(self) -> None:
        for session_id, model in self.models.items():
            assert (await satay.verify(session_id)).is_intact
            async with satay.Session.resume(session_id) as session:
                await self.check(session, model)
                await self.look(session, model, 1)
                assert model.steps == [step.name for step in await session.steps()]
        one, other = self.chance.choices(list(self.models), k=2)
        assert str(await satay.compare(one, other))
        assert one in str(await satay.decision_trail(one))


@pytest.mark.parametrize("seed", range(6))
async def test_sessions_and_forks_of_forks_are_what_was_done_to_them(seed: int, tmp_path: Path) -> None:
    world = World(seed)
    async with open_app(tmp_path), satay.Session("root"):
        pass
    visits = lives = 0
    while visits < VISITS:
        lives += 1
        async with open_app(tmp_path, seed=lives) as app:
            has_died = False
            while visits < VISITS and not has_died:
                visits += 1
                has_died = await world.visit(app)
    async with open_app(tmp_path, seed=lives + 1):
        await world.check_all()

    assert len(world.models) > 3
    assert world.effects
