"""Promotes one fork of each of so many runs, as `promoting.py PLACE COUNT SUFFIX`, once the file `PLACE/go` is there.

It prints, as JSON, the run that was promoted of each: its own, or the one that the refusal names.
"""

import asyncio
import json
import sys
from pathlib import Path

import satay
from satay.errors import ExperimentConflictError


async def promote_each(place: Path, count: int, suffix: str) -> list[str | None]:
    winners: list[str | None] = []
    async with satay.run_app(data_dir=place) as app:
        print("ready", flush=True)  # noqa: T201  # The test waits for this line.
        while not (place / "go").exists():  # noqa: ASYNC110  # Another process makes it.
            await asyncio.sleep(0.001)
        for number in range(count):
            try:
                await app.promote(f"run-{number}/{suffix}")
                winners.append(f"run-{number}/{suffix}")
            except ExperimentConflictError as error:
                winners.append(error.winner)
    return winners


if __name__ == "__main__":
    print(json.dumps(asyncio.run(promote_each(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))))  # noqa: T201
