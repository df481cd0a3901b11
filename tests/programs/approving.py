"""Asks for approvals, and decides them: `approving.py PLACE WHAT ARGUMENT`.

`session KEY` and `workflow KEY` ask, say `asked` once that is on disk, and print who decided what. `decide VERDICT`
waits for the file `PLACE/go`, decides about the keys `0`, `1`, ... of the session in order, and prints, as JSON, what
holds.
"""

import asyncio
import json
import sys
from pathlib import Path

import satay
from satay.errors import ApprovalConflictError

RUN_ID = "asks"
COUNT = 20


@satay.workflow(name="approving.refund")
async def refund(key: str) -> str:
    return told(await satay.require_approval(key, {"key": key}))


def told(decision: satay.Approval) -> str:
    return f"{decision.key} {'approved' if decision else 'rejected'} by {decision.by}"


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # The test waits for this line.


async def say_when_asked(app: satay.App) -> None:
    async for event in app.events(RUN_ID):
        if event.type == "EventWaitStarted":
            say("asked")


async def ask_in_session(place: Path, key: str) -> None:
    async with satay.run_app(data_dir=place, poll_seconds=0.05) as app, satay.Session(RUN_ID) as session:
        telling = asyncio.create_task(say_when_asked(app))
        decision = await session.require_approval(key, {"key": key})
        telling.cancel()
        say(told(decision))


async def ask_in_workflow(place: Path, key: str) -> None:
    async with satay.run_app(data_dir=place, poll_seconds=0.05, recover=True) as app:
        handle = await app.start(refund, key, run_id=RUN_ID)
        telling = asyncio.create_task(say_when_asked(app))
        result = await handle.result()
        telling.cancel()
        say(result)


async def decide_each(place: Path, verdict: str) -> None:
    holding: list[tuple[bool | None, str | None]] = []
    async with satay.run_app(data_dir=place) as app:
        say("ready")
        while not (place / "go").exists():  # noqa: ASYNC110  # Another process makes it.
            await asyncio.sleep(0.001)
        for number in range(COUNT):
            try:
                made = await app.decide_approval(RUN_ID, str(number), approved=verdict == "approve", by=verdict)
                holding.append((made.approved, made.by))
            except ApprovalConflictError as error:
                holding.append((error.approved, error.by))
    say(json.dumps(holding))


WORK = {"session": ask_in_session, "workflow": ask_in_workflow, "decide": decide_each}

if __name__ == "__main__":
    asyncio.run(WORK[sys.argv[2]](Path(sys.argv[1]), sys.argv[3]))
