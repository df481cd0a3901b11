"""Two apps at work on sessions against a model: approvals, wake-ups, claims, dedup fields, and who takes part."""

import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from satay.errors import (
    ApprovalConflictError,
    ApprovalNotFoundError,
    ApprovalPendingError,
    ApprovalTimeoutError,
    CallConflictError,
    JournalError,
    LeaseHeldError,
    RunEndedError,
    SessionLostError,
    TaskBlockedError,
)
from satay.testing import AppUnderTest, ManualClock, abandon, open_app
from tests.driving import types_of
from tests.test_claims import enter, used

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

VISITS: Final = 40
"""How often a session is opened."""

MAX_FORKS: Final = 12
TTL_SECONDS: Final = 60
LEASE_SECONDS: Final = 1e9
POLICIES: Final = (None, {"*": "block"}, {"mail": "live"}, {"*": "replay"}, {"claimed": "block", "*": "auto"})


@dataclass(frozen=True)
class Call:
    """A call in the ledger. It was claimed before the step `since`; `ended` is the step before which it had `outcome`.

    One that is `held` has no outcome, and is somebody's until then; a claim of a participant stays when the session is
    opened anew.
    """

    argument: tuple[int, int]
    since: int
    outcome: str | None = None
    ended: int = 0
    result: int | None = None
    held: float | None = None
    opening: int | None = None
    is_inherited: bool = False
    is_outcome_own: bool = True


@dataclass(frozen=True)
class Request:
    """A request for an approval. `posted` is what lies in the inbox, `answer` what the session has recorded."""

    payload: int
    since: int
    due: float | None
    posted: bool | None = None
    answer: bool | str | None = None
    answered: int = 0


@dataclass(frozen=True)
class Wake:
    due: float
    since: int
    fired: int | None = None


@dataclass
class Model:
    """What a session has to be. Everything is counted in steps: what comes after step 3 is before step 4."""

    source: "Model | None" = None
    boundary: int = 0
    policies: dict[str, str] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    calls: dict[tuple[str, str | int], list[Call]] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    wakes: list[Wake] = field(default_factory=list)
    openings: int = 0
    first: tuple[int, int] = (0, 0)
    next: int = 0
    is_completed: bool = False

    @property
    def at(self) -> int:
        return len(self.steps) + 1

    def may_run(self, tool: str) -> bool:
        return self.source is None or self.policies.get(tool, self.policies.get("*", "auto")) in ("auto", "live")

    def is_live(self, tool: str) -> bool:
        return self.policies.get(tool, self.policies.get("*", "auto")) == "live"

    def known(self, tool: str, key: str | int) -> Call | None:
        calls = self.calls.get((tool, key))
        return calls[-1] if calls else None

    def begin(self, tool: str, key: str | int, call: Call) -> None:
        self.calls.setdefault((tool, key), []).append(call)

    def change(self, tool: str, key: str | int, **changes: Any) -> None:
        calls = self.calls[tool, key]
        calls[-1] = replace(calls[-1], **changes)

    def count(self) -> int:
        return max((int(key) + 1 for tool, key in self.calls if tool == "counted"), default=0)

    def first_ordinal(self) -> int:
        return self.first[1] if self.first[0] == self.at else self.count()

    def fork(self, boundary: int, now: float, policies: dict[str, str] | None) -> "Model":
        if self.source is not None and boundary <= self.boundary:
            fork = self.source.fork(boundary, now, None)
            return replace(fork, policies={**self.policies, **(policies or {})})
        cut = self.steps[boundary - 1] if boundary else 0.0
        calls = {
            name: [self.inherited(call, boundary) for call in calls if call.since <= boundary]
            for name, calls in self.calls.items()
        }
        return Model(
            source=self,
            boundary=boundary,
            policies={**self.policies, **(policies or {})},
            steps=self.steps[:boundary],
            calls={name: found for name, found in calls.items() if found},
            requests={
                key: self.asked_again(request, boundary, now - cut)
                for key, request in self.requests.items()
                if request.since <= boundary
            },
            wakes=[
                replace(wake, fired=wake.fired if (wake.fired or self.at) <= boundary else None)
                for wake in self.wakes
                if wake.since <= boundary
            ],
        )

    def inherited(self, call: Call, boundary: int) -> Call:
        if call.outcome is None or call.ended > boundary:
            return replace(call, outcome=None, held=None, opening=-1, is_inherited=True)
        return replace(call, is_inherited=True, is_outcome_own=False)

    def asked_again(self, request: Request, boundary: int, later: float) -> Request:
        if request.answer is not None and request.answered <= boundary:
            return replace(request, posted=None)
        return replace(request, posted=None, answer=None, due=None if request.due is None else request.due + later)

    def pass_time(self, now: float) -> None:
        self.wakes = [
            replace(wake, fired=self.at) if wake.fired is None and wake.due <= now else wake for wake in self.wakes
        ]


Act = Callable[[satay.Session, Model], Coroutine[Any, Any, None]]
"""Something that is done to a session that is open, by whoever takes part in it."""


class World:
    """Sessions and their models, and two apps that work on them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.models = {"root": Model()}
        self.made = 0
        self.told: list[str] = []

    @property
    def now(self) -> float:
        return self.clock.now() / 1e6

    async def visit(self, apps: tuple[AppUnderTest, AppUnderTest]) -> bool:
        """Open a session in one app, do something there and in the other, and leave it; whether an app died."""
        session_id = self.chance.choice(list(self.models))
        model = self.models[session_id]
        home, away = self.chance.sample(apps, 2)
        self.tell("visit", session_id)
        with used(home):
            session = await satay.Session.resume(session_id, state_fn=lambda: {"at": model.at})
            await session.__aenter__()
        model.openings += 1
        model.is_completed = False
        model.next = model.first_ordinal()
        model.pass_time(self.now)
        await self.check(home, session, model)
        with used(away), pytest.raises(LeaseHeldError):
            await satay.Session(session_id).__aenter__()
        for _ in range(self.chance.randint(1, 7)):
            with used(home):
                await self.act(session, model, away)
        with used(home):
            return await self.leave(home, session, model)

    def tell(self, *what: object) -> None:
        self.told.append(" ".join(map(str, what)))

    async def act(self, session: satay.Session, model: Model, away: AppUnderTest) -> None:
        acts: list[Act] = [self.step, self.mail, self.claim, self.ask, self.wake, self.count]
        match self.chance.choice(["here", "here", "here", "join", "decide", "wait", "fork"]):
            case "here":
                await self.chance.choice(acts)(session, model)
            case "join":
                part = await enter(away, satay.Session.join(session.carrier(), state_fn=lambda: {"at": model.at}))
                with used(away):
                    for _ in range(self.chance.randint(1, 3)):
                        await self.chance.choice(acts[:-1])(part, model)
                    await part.__aexit__(None, None, None)
                await session.steps()  # It reads what was written there.
                model.next = max(model.next, model.first_ordinal())
            case "decide":
                await self.decide(away)
            case "wait":
                await self.wait()
            case _:
                await self.fork(session, model, away)

    async def leave(self, app: AppUnderTest, session: satay.Session, model: Model) -> bool:
        way = self.chance.choice(["complete", "pause", "crash", "die"])
        self.tell("leave", way)
        match way:
            case "die":
                await abandon(app)
                with suppress(SessionLostError, JournalError):
                    await session.__aexit__(None, None, None)
            case "crash":
                await session.__aexit__(ValueError, ValueError("oh"), None)
            case "pause":
                session.pause()
                await session.__aexit__(None, None, None)
            case _:
                await session.__aexit__(None, None, None)
                model.is_completed = True
                model.first = (0, 0)
        return way == "die"

    async def check(self, app: AppUnderTest, session: satay.Session, model: Model) -> None:
        types = await types_of(app, session.run_id)
        fired = sum(wake.fired is not None for wake in model.wakes)

        assert len(model.steps) == session.last_step, self.told
        assert (len(model.wakes), fired) == (types.count("TimerCreated"), types.count("TimerFired")), self.told

    # --- what is done -------------------------------------------------------------------------------------------------

    async def step(self, session: satay.Session, model: Model) -> None:
        self.tell("step", model.at)
        step = await session.step("step", output=model.at)
        model.steps.append(self.now)

        assert len(model.steps) == step.number, self.told
        model.next = max(model.next, model.first_ordinal())

    async def wait(self) -> None:
        seconds = self.chance.choice([1, 20, 70])
        self.tell("wait", seconds)
        await self.clock.advance(seconds)
        for model in self.models.values():
            model.pass_time(self.now)

    async def wake(self, session: satay.Session, model: Model) -> None:
        seconds = self.chance.choice([-5, 0, 30, 100])
        self.tell("wake", seconds)
        model.wakes.append(Wake(self.now + max(0, seconds), model.at))
        await session.wake_at(seconds)
        await self.clock.until_idle()
        model.pass_time(self.now)

    async def mail(self, session: satay.Session, model: Model) -> None:
        """A call of which only one argument has to be the same."""
        await self.call(session, model, "mail", self.chance.choice("ab"), ["to"])

    async def count(self, session: satay.Session, model: Model) -> None:
        """A call without a key."""
        ordinal, model.next = model.next, model.next + 1
        await self.call(session, model, "counted", ordinal, None)

    async def call(
        self, session: satay.Session, model: Model, tool: str, key: str | int, fields: list[str] | None
    ) -> None:
        to, body = self.chance.choice([1, 1, 2]), self.chance.choice([1, 1, 2])
        before = self.made

        async def work(to: int, body: int) -> int:
            self.made += 1
            return self.made

        expected, result = self.fate(model, tool, key, (to, body), fields)
        try:
            named = None if isinstance(key, int) else key
            receipt = await session.call(tool, work, to, body, key=named, dedup_fields=fields)
        except CallConflictError:
            fate = "conflict"
        except TaskBlockedError:
            fate = "refused"
        else:
            fate = "made" if self.made > before else "replayed"
            assert fate == "made" or result == receipt.result, self.told
        self.tell("call", session.run_id, tool, key, to, body, fate, expected)

        assert expected == fate, self.told
        known = model.known(tool, key)
        is_new = known is None or known.is_inherited
        if fate == "made" or (fate == "refused" and is_new):
            made = Call((to, body), model.at, fate, model.at, self.made if fate == "made" else None)
            self.begin(model, tool, key, made)

    def begin(self, model: Model, tool: str, key: str | int, call: Call) -> None:
        if isinstance(key, int) and model.first[0] != model.at:
            model.first = model.at, key
        model.begin(tool, key, call)

    def fate(
        self, model: Model, tool: str, key: str | int, argument: tuple[int, int], fields: list[str] | None
    ) -> tuple[str, int | None]:
        known = model.known(tool, key)
        anew = "made" if model.may_run(tool) else "refused"
        if known is None:
            return anew, None
        if known.argument != argument and not (fields and known.argument[0] == argument[0]):
            return (anew if known.is_inherited or known.outcome == "cancelled" else "conflict"), None
        if known.is_inherited and (self.was_refused_before(known) or model.is_live(tool)):
            return anew, None
        if known.outcome == "cancelled":
            return anew, None
        return ("refused" if known.outcome == "refused" else "replayed"), known.result

    def was_refused_before(self, known: Call) -> bool:
        """Whether the source of a fork refused a call."""
        return known.outcome == "refused" and not known.is_outcome_own

    async def claim(self, session: satay.Session, model: Model) -> None:
        key, argument = self.chance.choice("cd"), (self.chance.choice([1, 1, 1, 2]), 0)
        ending = self.chance.choice(["complete", "fail", "cancel", "leave", "leave", "renew"])
        expected, result = self.claim_fate(model, key, argument)
        try:
            claim = await session.claim("claimed", {"n": argument[0]}, key=key, ttl=TTL_SECONDS)
            fate = str(claim.status)
        except CallConflictError:
            fate = "conflict"
        except TaskBlockedError:
            fate = "refused"
        except OSError:
            fate = "failed"
        self.tell("claim", session.run_id, key, argument[0], fate, expected, ending)

        assert expected == fate, self.told
        if fate == "replayed":
            assert result == claim.result, self.told
        if fate == "refused":
            known = model.known("claimed", key)
            if known is not None and known.outcome is None and known.argument == argument:
                model.change("claimed", key, outcome="refused", ended=model.at, is_outcome_own=True)
            elif known is None or (known.is_inherited and (known.argument != argument or not known.is_outcome_own)):
                model.begin("claimed", key, Call(argument, model.at, "refused", model.at))
        if fate not in ("claimed", "reclaimed"):
            return
        if fate == "claimed":
            model.begin("claimed", key, Call(argument, model.at))
        opening = None if session._epoch is not None else model.openings
        model.change("claimed", key, held=self.now + TTL_SECONDS, opening=opening)
        match ending:
            case "complete":
                self.made += 1
                await claim.complete(self.made)
                model.change("claimed", key, outcome="made", ended=model.at, result=self.made)
            case "fail":
                await claim.fail(OSError("oh"))
                model.change("claimed", key, outcome="failed", ended=model.at)
            case "cancel":
                await claim.cancel()
                model.change("claimed", key, outcome="cancelled", ended=model.at)
            case "renew":
                await self.wait()
                await claim.heartbeat()
                model.change("claimed", key, held=self.now + TTL_SECONDS)
            case _:
                pass

    def claim_fate(self, model: Model, key: str, argument: tuple[int, int]) -> tuple[str, int | None]:
        known = model.known("claimed", key)
        anew = "claimed" if model.may_run("claimed") else "refused"
        if known is None:
            return anew, None
        if known.argument != argument:
            return (anew if known.is_inherited or known.outcome == "cancelled" else "conflict"), None
        begins = known.outcome == "cancelled" or (
            known.is_inherited and (self.was_refused_before(known) or model.is_live("claimed"))
        )
        if known.outcome is not None and not begins:
            return {"made": "replayed"}.get(known.outcome, known.outcome), known.result
        is_held = known.outcome is None and known.held is not None and self.now < known.held
        if is_held and known.opening in (None, model.openings):
            return "in_progress", None
        if begins:
            return anew, None
        if known.is_inherited and not model.may_run("claimed"):
            return "refused", None
        return "reclaimed", None

    # --- approvals ----------------------------------------------------------------------------------------------------

    async def ask(self, session: satay.Session, model: Model) -> None:
        key, payload = self.chance.choice("xy"), self.chance.choice([1, 1, 1, 2])
        timeout = self.chance.choice([None, 0, 50, 200])
        known = model.requests.get(key)
        if known is None:
            due = None if timeout is None else self.now + timeout
            known = model.requests[key] = Request(payload, model.at, due)
        self.tell("ask", session.run_id, key, payload, timeout, known, self.now)
        try:
            decision = await session.require_approval(key, payload, timeout=timeout, wait=False)
        except CallConflictError:
            assert known.payload != payload, self.told
            return
        except ApprovalPendingError:
            answer: bool | str | None = None
        except ApprovalTimeoutError:
            answer = "timeout"
        else:
            answer = decision.approved
        expected = known.answer if known.answer is not None else known.posted
        if expected is None and known.due is not None and self.now >= known.due:
            expected = "timeout"

        assert (known.payload, expected) == (payload, answer), self.told
        if known.answer is None and answer is not None:
            model.requests[key] = replace(known, answer=answer, answered=model.at)

    async def decide(self, app: AppUnderTest) -> None:
        session_id, key = self.chance.choice(list(self.models)), self.chance.choice("xy")
        verdict = self.chance.choice([True, False])
        model = self.models[session_id]
        known = model.requests.get(key)
        self.tell("decide", session_id, key, verdict, known)
        told: str
        try:
            await app.decide_approval(session_id, key, approved=verdict)
            told = "decided"
        except ApprovalNotFoundError:
            told = "unknown"
        except ApprovalConflictError:
            told = "conflict"
        except RunEndedError:
            told = "ended"
        there = None if known is None else known.posted if known.answer is None else known.answer
        if known is None:
            expected = "unknown"
        elif known.answer is None and model.is_completed:
            expected = "ended"
        elif there is not None:
            expected = "decided" if there is verdict else "conflict"
        else:
            expected = "decided" if known.due is None or self.now < known.due else "conflict"

        assert expected == told, self.told
        if told == "decided" and known is not None and there is None:
            model.requests[key] = replace(known, posted=verdict)

    # --- forks --------------------------------------------------------------------------------------------------------

    async def fork(self, session: satay.Session, model: Model, away: AppUnderTest) -> None:
        if not model.steps or len(self.models) > MAX_FORKS:
            return
        at_step, policies = self.chance.randint(1, len(model.steps)), self.chance.choice(POLICIES)
        name = f"fork-{len(self.models)}"
        self.tell("fork", session.run_id, at_step, name, policies)
        with suppress(satay.errors.InvalidValueError):  # A tool that nobody has called is not known.
            if self.chance.random() < 0.5:
                await session.fork(at_step=at_step, name=name, tool_policies=policies)
            else:
                with used(away):
                    await satay.Session.resume(session.run_id, fork_at_step=at_step, name=name, tool_policies=policies)
            self.models[name] = model.fork(at_step, self.now, policies)

    async def check_all(self, app: AppUnderTest) -> None:
        for session_id, model in self.models.items():
            assert (await app.verify(session_id)).is_intact
            pending = {request.key for request in await app.approvals(session_id)}
            open_keys = {
                key
                for key, request in model.requests.items()
                if request.answer is None
                and request.posted is None
                and (request.due is None or self.now < request.due)
                and not model.is_completed
            }
            assert open_keys == pending, (session_id, self.told)
            assert session_id in str(await app.decision_trail(session_id))
            if model.steps and self.models["root"].steps:
                assert str(await app.diff_states("root", session_id))
            async with satay.Session.resume(session_id) as session:
                model.pass_time(self.now)
                await self.check(app, session, model)


@asynccontextmanager
async def two_apps(place: Path, clock: ManualClock, seed: int) -> AsyncIterator[tuple[AppUnderTest, AppUnderTest]]:
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                open_app(place, clock=clock, seed=seed + number, lease_seconds=LEASE_SECONDS, poll_seconds=1e9)
            )
            for number in range(2)
        ]
        yield opened[0], opened[1]


@pytest.mark.parametrize("seed", range(6))
async def test_sessions_that_two_apps_work_on_are_what_was_done_to_them(seed: int, tmp_path: Path) -> None:
    world = World(seed)
    async with open_app(tmp_path), satay.Session("root", state_fn=lambda: 1):
        pass
    world.models["root"].is_completed = True
    world.models["root"].openings = 1
    visits = lives = 0
    while visits < VISITS:
        lives += 1
        async with two_apps(tmp_path, world.clock, 10 * lives) as apps:
            has_died = False
            while visits < VISITS and not has_died:
                visits += 1
                has_died = await world.visit(apps)
    async with open_app(tmp_path, clock=world.clock, seed=1) as app:
        await world.check_all(app)

    assert len(world.models) > 3
