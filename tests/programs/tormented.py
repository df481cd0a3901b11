"""Works on sessions until it is killed: `tormented.py PLACE SEED [--settle]`.

It goes on with whatever session or fork is free, makes its calls of tools, records its steps, forks it, lends it out,
asks for approvals, and notes every step that was acknowledged. With `--settle` it brings all of them to their ends.
"""

import argparse
import asyncio
import random
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import satay
from satay.errors import (
    ApprovalNotFoundError,
    CallInProgressError,
    ForkValidationError,
    LeaseHeldError,
    NeedsDecisionError,
    NoRestorableStateError,
    RunEndedError,
    RunNotFoundError,
    SessionLostError,
    TaskBlockedError,
)
from satay.model import RunStatus
from tests.programs.effects import append_line, note

ACKNOWLEDGED: Final = "acknowledged"
DECIDED: Final = "decided"

LEASE_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.02

SESSIONS: Final = 3
STEPS: Final = 12
FORKED_AT: Final = 6
ASKED_AT: Final = 8
TEXT: Final = "The agent found something worth keeping, and wrote it down. " * 12
INTERVENTION: Final = {"model": "candidate"}
POLICIES: Final = {"mail": "block", "*": "auto"}


def roots() -> list[str]:
    return [f"s{number}" for number in range(SESSIONS)]


def fork_of(session_id: str) -> str:
    return f"{session_id}/f"


def everything() -> list[str]:
    """The sessions, their forks, and the forks of those."""
    first = roots()
    second = [fork_of(one) for one in first]
    return [*first, *second, *(fork_of(one) for one in second)]


def mail_of(number: int) -> str:
    return f"mail {number}"


def state_after(number: int) -> dict[str, Any]:
    """The state after a step: most of it as before, some of it new."""
    notes = [f"{each}: {TEXT}" for each in range(1, number + 1)]
    return {"n": number, "notes": notes, "parity": number % 2}


def output_of(number: int) -> dict[str, Any]:
    return {"drafts": [f"draft {number}.0", f"draft {number}.1"], "mail": mail_of(number), "look": number * number}


@satay.task(name="look", effect="idempotent")
def look(number: int) -> int:
    note("began")
    return number * number


async def mail(number: int) -> str:
    """Something that must not happen twice."""
    note("began")
    await asyncio.sleep(0.001)
    return mail_of(number)


async def draft(number: int, which: int) -> str:
    note("began")
    await asyncio.sleep(0)
    return f"draft {number}.{which}"


@dataclass
class Agent:
    """A loop whose every step makes the same calls, whoever makes it."""

    place: Path
    chance: random.Random
    number: int = 0
    background: set[asyncio.Task[None]] = field(default_factory=set)

    def state(self) -> dict[str, Any]:
        return state_after(self.number)

    async def work(self, session: satay.Session, *, to_the_end: bool) -> None:
        while session.last_step < STEPS:
            await self.make(session, session.last_step + 1)
            if session.last_step > FORKED_AT and self.chance.random() < 0.2:
                await self.fork(session)
            if not to_the_end and self.chance.random() < 0.05:
                session.pause()
                return
        await self.fork(session)

    async def make(self, session: satay.Session, number: int) -> None:
        first, second, sent, seen = await asyncio.gather(
            session.call("draft", draft, number, 0),
            session.call("draft", draft, number, 1),
            self.sent(session, number),
            self.lent(session, number),
        )
        if number == ASKED_AT:
            approval = await self.approved(session)
            assert approval.approved
        output = {"drafts": [first.result, second.result], "mail": sent, "look": seen}
        self.number = number
        step = await session.step("work", input=number, output=output)
        assert number == step.number
        append_line(self.place / ACKNOWLEDGED, {"session": session.run_id, "step": number, "seq": step.seq})

    async def sent(self, session: satay.Session, number: int) -> str:
        """Call the tool that must not be called twice; a fork may not call it at all."""
        key = f"mail-{number}"
        while True:
            try:
                return (await session.call("mail", mail, number, key=key, effect="external")).result
            except TaskBlockedError:
                return mail_of(number)
            except NeedsDecisionError:
                rerun = self.chance.random() < 0.5
                append_line(self.place / DECIDED, {"session": session.run_id, "key": key, "rerun": rerun})
                if rerun:
                    await satay.decide(session.run_id, "rerun")
                else:
                    await satay.decide(session.run_id, value=mail_of(number))

    async def lent(self, session: satay.Session, number: int) -> int:
        """The same call by the owner, and by one that takes part by a carrier."""
        carrier = session.carrier()
        if self.chance.random() < 0.3:
            async with satay.Session.join(carrier) as part:
                seen = await asyncio.gather(
                    part.call("look", look, number, key=f"look-{number}"),
                    session.call("look", look, number, key=f"look-{number}"),
                )
                assert seen[0].result == seen[1].result
                return seen[0].result
        return (await session.call("look", look, number, key=f"look-{number}")).result

    async def approved(self, session: satay.Session) -> satay.Approval:
        async def approve() -> None:
            while True:
                with suppress(ApprovalNotFoundError):
                    await satay.decide_approval(session.run_id, "go on", approved=True, by="somebody")
                    return
                await asyncio.sleep(LOOK_SECONDS)

        asking = asyncio.ensure_future(session.require_approval("go on", {"step": ASKED_AT}, timeout=3600))
        deciding = asyncio.ensure_future(approve())
        try:
            return await asking
        finally:
            deciding.cancel()
            await asyncio.wait((deciding,))

    async def fork(self, session: satay.Session) -> None:
        if session.run_id.count("/") < 2:
            name = fork_of(session.run_id)
            await session.fork(at_step=FORKED_AT, name=name, intervention=INTERVENTION, tool_policies=POLICIES)


async def go_on(place: Path, session_id: str, chance: random.Random, *, to_the_end: bool) -> None:
    """Open a session that is free, and work on it."""
    agent = Agent(place, chance)
    if session_id in roots():
        session = satay.Session(session_id, state_fn=agent.state)
    else:
        parent = session_id.removesuffix("/f")
        try:
            session = await satay.Session.resume(
                parent,
                fork_at_step=FORKED_AT,
                name=session_id,
                intervention=INTERVENTION,
                tool_policies=POLICIES,
                state_fn=agent.state,
            )
        except (RunNotFoundError, ForkValidationError, NoRestorableStateError):
            return  # Its parent has not come so far.
    try:
        async with session:
            assert session.intervention == (INTERVENTION if "/" in session_id else None)
            await agent.work(session, to_the_end=to_the_end)
    except RunEndedError:
        return
    except (LeaseHeldError, SessionLostError, CallInProgressError):
        await asyncio.sleep(LOOK_SECONDS)


async def work_on(place: Path, seed: str) -> None:
    """Work on two sessions at a time, for ever."""
    chance = random.Random(seed)

    async def one() -> None:
        while True:
            await go_on(place, chance.choice(everything()), chance, to_the_end=False)
            await asyncio.sleep(0)

    await asyncio.gather(one(), one())


async def settle(app: satay.App, place: Path, seed: str) -> None:
    """Bring every session to its end, the parents first."""
    for session_id in everything():
        while True:
            await go_on(place, session_id, random.Random(seed), to_the_end=True)
            if await app.status(session_id) is RunStatus.COMPLETED:
                break


async def run(place: Path, seed: str, *, is_last: bool) -> None:
    async with satay.run_app(data_dir=place, lease_seconds=LEASE_SECONDS, poll_seconds=LOOK_SECONDS) as app:
        await (settle(app, place, seed) if is_last else work_on(place, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("seed")
    parser.add_argument("--settle", action="store_true")
    chosen = parser.parse_args()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    asyncio.run(run(chosen.place, chosen.seed, is_last=chosen.settle))


if __name__ == "__main__":
    main()
