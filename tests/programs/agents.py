"""Works on a session as a process of its own: `agents.py PLACE WHAT [ARGUMENTS]`, and says how far it is.

It makes steps and notes each in the file of effects before it records it, so that what was made twice shows.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import satay
from satay.errors import LeaseHeldError, RunConflictError, SessionLostError
from tests.programs.effects import EFFECTS_VARIABLE, append_line

LEASE_SECONDS = 0.5

STEPS = 9


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def state_after(number: int) -> dict[str, Any]:
    return {"n": number, "notes": [f"note {each} " + "x" * 50 for each in range(1, number + 1)]}


class Agent:
    """A loop whose state is what its steps add up to."""

    def __init__(self) -> None:
        self.state = state_after(0)

    async def make(self, session: satay.Session, number: int) -> None:
        append_line(Path(os.environ[EFFECTS_VARIABLE]), {"session": session.run_id, "step": number, "pid": os.getpid()})
        self.state = state_after(number)
        await session.step("work", input=number)
        say(f"made {number}")

    async def work(self, session: satay.Session) -> None:
        self.state = session.state or state_after(0)
        for number in range(session.last_step + 1, STEPS + 1):
            await self.make(session, number)


async def work(session_id: str) -> None:
    """Go on with a session to its end."""
    agent = Agent()
    async with satay.Session(session_id, state_fn=lambda: agent.state) as session:
        say("open")
        await agent.work(session)


async def hold(session_id: str, through: int) -> None:
    """Make some steps, and keep the session open until something happens to the process."""
    agent = Agent()
    async with satay.Session(session_id, state_fn=lambda: agent.state) as session:
        for number in range(session.last_step + 1, through + 1):
            await agent.make(session, number)
        say("holding")
        await asyncio.Event().wait()


async def crash(session_id: str, through: int) -> None:
    """Make some steps, and fail."""
    agent = Agent()
    async with satay.Session(session_id, state_fn=lambda: agent.state) as session:
        for number in range(session.last_step + 1, through + 1):
            await agent.make(session, number)
        raise ValueError("the agent fails")


async def step_for_ever(session_id: str) -> None:
    """Make steps until the session is lost, and say so; what is made of the loss within the block is ignored."""
    agent = Agent()
    number = 0
    try:
        async with satay.Session(session_id, state_fn=lambda: agent.state) as session:
            while True:
                number += 1
                try:
                    await agent.make(session, number)
                except SessionLostError:
                    say("lost in the block")
                    break
                await asyncio.sleep(0.005)
    except SessionLostError:
        say("lost at the exit")


async def take(session_id: str) -> None:
    """Try to open a session until it can be had, and complete it."""
    while True:
        try:
            async with satay.Session(session_id) as session:
                say(f"took at {session.last_step}")
                return
        except LeaseHeldError:
            await asyncio.sleep(0.05)


async def fork(session_id: str, at_step: int, name: str, intervention: str) -> None:
    """Fork a session by its id, and say what came of it."""
    try:
        made = await satay.Session.resume(session_id, fork_at_step=at_step, name=name, intervention=intervention)
    except RunConflictError:
        say("conflict")
        return
    assert made.receipt is not None
    say(f"fork {made.receipt.receipt_id} {'replayed' if made.receipt.replayed else 'made'}")


async def fork_and_work(session_id: str, at_step: int, name: str) -> None:
    """Fork a session, and go on with the fork to its end."""
    agent = Agent()
    made = await satay.Session.resume(session_id, fork_at_step=at_step, name=name, state_fn=lambda: agent.state)
    say("forked")
    async with made as session:
        say("open")
        await agent.work(session)


async def follow(session_id: str) -> None:
    """Say every entry of a session as it is written."""
    async with satay.run_app(data_dir=os.environ["SATAY_PLACE"], poll_seconds=0.01) as app:
        async for event in app.events(session_id):
            say(f"{event.seq} {event.type}")


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "work": work,
    "hold": hold,
    "crash": crash,
    "step-for-ever": step_for_ever,
    "take": take,
    "fork": fork,
    "fork-and-work": fork_and_work,
    "follow": follow,
}


async def run(place: Path, what: str, arguments: list[str]) -> None:
    given = [int(argument) if argument.isdecimal() else argument for argument in arguments]
    async with satay.run_app(data_dir=place, lease_seconds=LEASE_SECONDS, poll_seconds=0.02):
        await ROLES[what](*given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("what", choices=ROLES)
    parser.add_argument("arguments", nargs="*")
    chosen = parser.parse_args()
    say("ready")
    asyncio.run(run(chosen.place, chosen.what, chosen.arguments))


if __name__ == "__main__":
    main()
