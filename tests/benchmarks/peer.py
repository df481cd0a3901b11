"""The peer, DBOS: installed into an environment of its own, and driven as a subprocess that does the same work."""

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.benchmarks.rounds import Measure

ENVIRONMENT = Path(__file__).parents[2] / ".bench-venv"
PROGRAM = Path(__file__).with_name("peer_program.py")
REQUIREMENTS = ("dbos>=2,<4", "pysqlite3-binary; sys_platform == 'linux'")
INSTALL_SECONDS = 300
LAUNCH_SECONDS = 60
WORK_SECONDS = 600


class PeerError(Exception):
    """The peer cannot be measured, for the reason in the message."""


def install() -> Path:
    """The interpreter of an environment with the peer in it, made where there is none. Raises `PeerError`."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / ".installed"
    wanted = "\n".join(REQUIREMENTS)
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.strip()] or [f"exit status {error.returncode}"]
            raise PeerError(f"DBOS could not be installed: {lines[-1].strip()}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PeerError(f"DBOS could not be installed: {error}") from error
    stamp.write_text(wanted)
    return python


class Peer:
    """DBOS twice: on the journal's settings, and as it comes. Made by `open_peer`."""

    def __init__(self, alike: Process, as_it_comes: Process, settings: tuple[str, str]) -> None:
        self._alike = alike
        self._as_it_comes = as_it_comes
        self.settings = settings

    def seconds_of(self, work: str, calls: int, *, runs: int = 1, as_it_comes: bool = False) -> Measure:
        """A measure of how long the peer takes for a work of its program."""
        process = self._as_it_comes if as_it_comes else self._alike

        async def measure() -> float:
            assert process.stdin is not None
            process.stdin.write(f"{work} {runs} {calls}\n".encode())
            return float(await _answer(process, WORK_SECONDS))

        return measure

    def rate_of(self, work: str, calls: int, *, runs: int = 1, as_it_comes: bool = False) -> Measure:
        """A measure of how many calls a second the peer makes."""
        seconds = self.seconds_of(work, calls, runs=runs, as_it_comes=as_it_comes)

        async def measure() -> float:
            return runs * calls / await seconds()

        return measure


@asynccontextmanager
async def open_peer(python: Path, directory: Path) -> AsyncIterator[Peer]:
    """The peer, with databases in the directory. Raises `PeerError` if it does not start."""
    processes: list[Process] = []
    settings: list[str] = []
    try:
        for mode in ("wal", "default"):
            command = (str(python), "-P", str(PROGRAM), str(directory / f"peer-{mode}.db"), mode)
            with (directory / f"peer-{mode}.log").open("wb") as log:
                processes.append(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=log))
            settings.append(json.loads(await _answer(processes[-1], LAUNCH_SECONDS)))
        yield Peer(processes[0], processes[1], (settings[0], settings[1]))
    finally:
        for process in processes:
            await _end(process)


async def _answer(process: Process, seconds: float) -> bytes:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), seconds)
    except TimeoutError:
        raise PeerError(f"DBOS did not answer within {seconds:g} seconds") from None
    if not line:
        raise PeerError(f"DBOS ended with exit status {await process.wait()}")
    return line


async def _end(process: Process) -> None:
    """Close the peer's input, at which it ends; kill it if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), LAUNCH_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
