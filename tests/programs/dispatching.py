"""A session that sends one letter, for tests that kill it: `dispatching.py PLACE ROLE POINT EFFECT`.

What is sent is a line in the file that `SATAY_TEST_EFFECTS` names. At its point the program says so and stands still.
The role `open` opens the session, `lend` opens it and hands its carrier out, `join` takes part in it.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import satay
from satay.errors import LeaseHeldError, NeedsDecisionError
from tests.programs.effects import EFFECTS_VARIABLE, append_line

CARRIER: Final = "carrier.json"
LEASE_SECONDS: Final = 2.0


class Post:
    """The tool. It runs in a thread, so that it stands still without the loop, whose heartbeats go on."""

    def __init__(self, place: Path, point: str) -> None:
        self.place = place
        self.point = point

    def send(self, to: str) -> str:
        self.stop_at("before")
        append_line(Path(os.environ[EFFECTS_VARIABLE]), to)
        self.stop_at("during")
        if self.point in ("slow", "held"):
            say("sending")
            time.sleep(1.5 * LEASE_SECONDS)
        if self.point == "held":
            wait_for(self.place / "finish")
        return f"sent to {to} by {os.getpid()}"

    def stop_at(self, point: str) -> None:
        if self.point == point:
            say(point)
            time.sleep(600)


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


async def send(session: satay.Session, post: Post, effect: Any) -> None:
    try:
        receipt = await session.call("post.send", post.send, "ada", key="welcome", effect=effect)
    except NeedsDecisionError:
        say("undecided")
    else:
        say(f"{receipt.status} {receipt.attempts} {receipt.result.rpartition(' by ')[0] or receipt.result}")
    post.stop_at("after")


async def main(place: Path, role: str, point: str, effect: str) -> None:
    post, declared = Post(place, point), None if effect == "undeclared" else effect
    async with satay.run_app(data_dir=place, lease_seconds=LEASE_SECONDS, poll_seconds=0.05):
        if role == "join":
            carrier = json.loads((place / CARRIER).read_text(encoding="utf-8"))
            async with satay.Session.join(carrier) as session:
                say("joined")
                await send(session, post, declared)
            return
        async with AsyncExitStack() as stack:
            session = await open_when_free(stack)
            if role == "lend":
                (place / CARRIER).write_text(json.dumps(session.carrier()), encoding="utf-8")
                say("lent")
                await asyncio.to_thread(wait_for, place / "go on")
            await send(session, post, declared)
            await session.step("sent")


async def open_when_free(stack: AsyncExitStack) -> satay.Session:
    """Enter the session, once whoever has it has lost it."""
    while True:
        try:
            return await stack.enter_async_context(satay.Session("letters"))
        except LeaseHeldError:
            await asyncio.sleep(0.05)


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
