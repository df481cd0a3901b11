"""Waiting for the end of a run: nothing that is told is missed, whatever was being read at that moment."""

from pathlib import Path
from typing import Final

import satay
from satay.model import RunRecord
from satay.testing import open_app, settle
from tests.driving import in_loop

NEVER_SECONDS: Final = 1e6
"""Who looks no more often than that is told, or hangs."""


@satay.workflow(name="endings.waiting")
async def waiting() -> str:
    return str(await satay.wait_for_event("endings.go"))


def test_a_run_that_ends_while_its_row_is_read_is_not_waited_for(tmp_path: Path) -> None:
    async def run() -> str:
        async with open_app(tmp_path, max_resident=0, poll_seconds=NEVER_SECONDS) as app:
            await app.start(waiting, run_id="r")
            await settle(app)
            archive = (await app.scheduler()).archive
            read = archive.run

            async def read_slowly(run_id: str) -> RunRecord:
                record = await read(run_id)
                archive.run = read  # type: ignore[method-assign]
                await app.send_event("endings.go", "came", run_id="r")
                await settle(app)
                assert (await read(run_id)).status.is_terminal
                return record

            archive.run = read_slowly  # type: ignore[method-assign]
            return str(await app.handle("r").result())

    assert "came" == in_loop(run())
