"""Drives the workload on one file, and appends each result that it is handed to another: `worker.py PLACE COUNT`.

With `--only-recover` it starts nothing: it waits until nothing is left to be done in the file. With
`--keep-recovering` it does so until it is killed.
"""

import argparse
import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

import satay
from satay.errors import NeedsDecisionError, WorkflowCancelledError
from satay.model import RunStatus
from tests.programs.effects import append_line
from tests.programs.workload import CANCELLED, FORKABLE, SHAPES, decide, fork, run_id_of, send_events

RESULTS = "results"


async def drive_one(app: satay.App, place: Path, number: int) -> None:
    workflow, _ = SHAPES[number % len(SHAPES)]
    handle = app.start(workflow, number, run_id=run_id_of(number))
    await handle
    await send_events(app, number)
    acknowledge(place, handle.run_id, await result_of(app, handle))
    if number % len(SHAPES) == FORKABLE:
        forked = await fork(app, number)
        acknowledge(place, forked.run_id, await forked.result())


async def result_of(app: satay.App, handle: satay.RunHandle[Any]) -> Any:
    while True:
        try:
            return await handle.result()
        except WorkflowCancelledError:
            return CANCELLED
        except NeedsDecisionError:
            await decide(app, handle.run_id)


def acknowledge(place: Path, run_id: str, result: object) -> None:
    append_line(place / RESULTS, {"run_id": run_id, "result": result, "pid": os.getpid()})


def open_app(place: Path, **options: Any) -> satay.App:
    return satay.run_app(data_dir=place, poll_seconds=0.05, **{"lease_seconds": 2.0, **options})


async def drive(place: Path, count: int, **options: Any) -> None:
    numbers = list(range(count))
    random.shuffle(numbers)
    async with open_app(place, **options) as app, asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(drive_one(app, place, number))


async def send_events_to_all(app: satay.App, count: int) -> None:
    there = {run.run_id for run in await app.runs(limit=1000)}
    for number in range(count):
        if run_id_of(number) in there:
            await send_events(app, number)


async def keep_recovering(place: Path, count: int) -> None:
    async with open_app(place, recover=True) as app:
        say("open")
        while True:
            await send_events_to_all(app, count)
            await decide_all(app)
            await asyncio.sleep(0.05)


async def decide_all(app: satay.App) -> None:
    for run in await app.runs(status=RunStatus.NEEDS_DECISION, limit=1000):
        await decide(app, run.run_id)


async def only_recover(place: Path, count: int) -> None:
    async with open_app(place, recover=True) as app:
        await send_events_to_all(app, count)
        # In one look: a run that wakes between two looks at one status each is in neither.
        while any(not run.status.is_terminal for run in await app.runs(limit=1000)):
            await decide_all(app)
            await asyncio.sleep(0.02)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--recover", action="store_true")
    parser.add_argument("--only-recover", action="store_true")
    parser.add_argument("--keep-recovering", action="store_true")
    parser.add_argument("--nondeterminism", default="strict")
    parser.add_argument("--max-resident", type=int, default=4096)
    parser.add_argument("--lease-seconds", type=float, default=2.0)
    chosen = parser.parse_args(arguments)
    say("ready")
    if chosen.keep_recovering:
        asyncio.run(keep_recovering(chosen.place, chosen.count))
    elif chosen.only_recover:
        asyncio.run(only_recover(chosen.place, chosen.count))
    else:
        options = {
            name: getattr(chosen, name) for name in ("recover", "nondeterminism", "max_resident", "lease_seconds")
        }
        asyncio.run(drive(chosen.place, chosen.count, **options))


if __name__ == "__main__":
    main()
