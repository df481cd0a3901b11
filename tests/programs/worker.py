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

import satay
from satay.model import RunStatus
from tests.programs.effects import append_line
from tests.programs.workload import FORKABLE, SHAPES, fork, run_id_of, send_events

RESULTS = "results"


async def drive_one(app: satay.App, place: Path, number: int) -> None:
    workflow, _ = SHAPES[number % len(SHAPES)]
    handle = app.start(workflow, number, run_id=run_id_of(number))
    await handle
    await send_events(app, number)
    acknowledge(place, handle.run_id, await handle.result())
    if number % len(SHAPES) == FORKABLE:
        forked = await fork(app, number)
        acknowledge(place, forked.run_id, await forked.result())


def acknowledge(place: Path, run_id: str, result: object) -> None:
    append_line(place / RESULTS, {"run_id": run_id, "result": result, "pid": os.getpid()})


async def drive(place: Path, count: int, recover: bool) -> None:
    numbers = list(range(count))
    random.shuffle(numbers)
    app = satay.run_app(data_dir=place, recover=recover, lease_seconds=2, poll_seconds=0.05)
    async with app, asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(drive_one(app, place, number))


async def send_events_to_all(app: satay.App, count: int) -> None:
    there = {run.run_id for run in await app.runs(limit=1000)}
    for number in range(count):
        if run_id_of(number) in there:
            await send_events(app, number)


async def keep_recovering(place: Path, count: int) -> None:
    async with satay.run_app(data_dir=place, recover=True, lease_seconds=2, poll_seconds=0.05) as app:
        say("open")
        while True:
            await send_events_to_all(app, count)
            await asyncio.sleep(0.05)


async def only_recover(place: Path, count: int) -> None:
    async with satay.run_app(data_dir=place, recover=True, lease_seconds=2, poll_seconds=0.05) as app:
        await send_events_to_all(app, count)
        for status in (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.NEEDS_DECISION):
            while await app.runs(status=status, limit=1):
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
    chosen = parser.parse_args(arguments)
    say("ready")
    if chosen.keep_recovering:
        asyncio.run(keep_recovering(chosen.place, chosen.count))
    elif chosen.only_recover:
        asyncio.run(only_recover(chosen.place, chosen.count))
    else:
        asyncio.run(drive(chosen.place, chosen.count, chosen.recover))


if __name__ == "__main__":
    main()
