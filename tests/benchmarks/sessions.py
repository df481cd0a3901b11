"""Sessions: steps with their states against bare inserts, forking and reopening a long one, replayed calls, disk."""

import itertools
import time
from pathlib import Path
from typing import Any

import satay
from satay.stores.locations import DATABASE_FILE
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import REFERENCE, Figure, at_least, at_most
from tests.benchmarks.reference import INSERTS, open_reference
from tests.benchmarks.rounds import Measure, against, beyond, interleaved

STEPS = 1_000
LONG = 10_000
REPLAYS = 1_000
LARGE_STEPS = 300
FEWEST_LARGE_STEPS = 50
STATE_BYTES = 2_000
LARGE_STATE_BYTES = 100_000
CHANGE_BYTES = 100


def state_of(size_bytes: int, number: int) -> dict[str, Any]:
    """A state of about so many bytes in which every step changes something, as agents keep them: notes and counters."""
    return {
        "step": number,
        "notes": [f"{line:05d} what was found there, and why it matters" for line in range(size_bytes // 50)],
        "last": f"{number:0{CHANGE_BYTES}d}",
    }


def look_up(number: int) -> int:
    return number


async def measure(bench: Bench) -> list[Figure]:
    """All of them, on one journal; the disk on journals of its own."""
    steps, long, replays = bench.scale.of(STEPS), bench.scale.of(LONG), bench.scale.of(REPLAYS)
    step_rate = _steps_per_second(steps)
    async with (
        open_reference(bench.directory, bench.scale.of(INSERTS)) as reference,
        satay.run_app(data_dir=bench.journal),
    ):
        await _record("long", long, STATE_BYTES)
        async with satay.Session("calls") as session:
            for number in range(replays):
                await session.call("look_up", look_up, number, key=str(number))
        samples = await interleaved(
            bench.scale.rounds,
            {
                "steps": against(reference.rate, step_rate),
                "step": beyond(reference.rate, step_rate),
                "fork": _fork_seconds(long // 2),
                "fork by id": _fork_by_id_seconds(long // 2),
                "resume": _resume_seconds(long),
                "first step": _first_step_seconds(long),
                "replay": _replay_seconds(replays),
            },
        )
    larger = max(FEWEST_LARGE_STEPS, bench.scale.of(LARGE_STEPS))
    large = [await _disk_bytes(bench.directory / str(number), larger) for number in range(bench.scale.rounds)]
    return [
        Figure(f"{steps:,} steps of a session with a state of 2 KB", REFERENCE, samples["steps"], at_least(0.6)),
        Figure("a step takes more than a bare insert", "µs", samples["step"]),
        Figure(
            f"fork a session at step {long // 2:,} of {long:,}",
            "ms",
            [seconds * 1e3 for seconds in samples["fork"]],
            at_most(60),
        ),
        Figure(
            "the same by its id, in a process that has not read it",
            "ms",
            [seconds * 1e3 for seconds in samples["fork by id"]],
            at_most(60),
        ),
        Figure(f"open a session of {long:,} steps", "s", samples["resume"], at_most(0.15)),
        Figure("the first step in one", "ms", [seconds * 1e3 for seconds in samples["first step"]]),
        Figure("replay of a call from the ledger", "µs", [one * 1e6 for one in samples["replay"]], at_most(150)),
        Figure("disk for a step with a state of 100 KB of which 100 bytes change", "bytes", large, at_most(2_000)),
    ]


async def _record(session_id: str, steps: int, size_bytes: int) -> None:
    state: dict[str, Any] = {}
    async with satay.Session(session_id, state_fn=lambda: state) as session:
        for number in range(steps):
            state = state_of(size_bytes, number)
            await session.step("work", input=number, output=number)


def _steps_per_second(steps: int) -> Measure:
    numbers = itertools.count()
    states = [state_of(STATE_BYTES, number) for number in range(steps)]

    async def measure() -> float:
        current = states[0]
        async with satay.Session(f"steps-{next(numbers)}", state_fn=lambda: current) as session:
            began = time.perf_counter()
            for number in range(steps):
                current = states[number]
                await session.step("work", input=number, output=number)
            return steps / (time.perf_counter() - began)

    return measure


def _fork_seconds(step: int) -> Measure:
    """From the session itself, while it is open."""
    numbers = itertools.count()

    async def measure() -> float:
        async with satay.Session.resume("long") as session:
            began = time.perf_counter()
            fork = await session.fork(at_step=step, name=f"long/live/{next(numbers)}")
            took = time.perf_counter() - began
        assert fork.receipt is not None
        assert fork.receipt.is_restorable
        return took

    return measure


def _fork_by_id_seconds(step: int) -> Measure:
    """From nothing but the id."""
    numbers = itertools.count()

    async def measure() -> float:
        began = time.perf_counter()
        fork = await satay.Session.resume("long", fork_at_step=step, name=f"long/{next(numbers)}")
        took = time.perf_counter() - began
        assert fork.receipt is not None
        assert fork.receipt.is_restorable
        return took

    return measure


def _resume_seconds(steps: int) -> Measure:
    """From when it is asked for until its block is entered, its latest state in hand."""

    async def measure() -> float:
        began = time.perf_counter()
        session = await satay.Session.resume("long")
        async with session:
            took = time.perf_counter() - began
            assert session.state["step"] == steps - 1
        return took

    return measure


def _first_step_seconds(steps: int) -> Measure:
    """A step with its state, which is looked for among all that are recorded."""
    numbers = itertools.count()

    async def measure() -> float:
        state = state_of(STATE_BYTES, steps)
        name = f"long/first/{next(numbers)}"
        async with satay.Session.resume("long", fork_at_step=steps, name=name, state_fn=lambda: state) as session:
            began = time.perf_counter()
            await session.step("work", input=steps, output=steps)
            return time.perf_counter() - began

    return measure


def _replay_seconds(calls: int) -> Measure:
    """One call that has an outcome, made again."""

    async def measure() -> float:
        async with satay.Session.resume("calls") as session:
            began = time.perf_counter()
            for number in range(calls):
                receipt = await session.call("look_up", look_up, number, key=str(number))
            took = time.perf_counter() - began
            assert receipt.status == "replayed"
            return took / calls

    return measure


async def _disk_bytes(directory: Path, steps: int) -> float:
    """What one step adds to the file of a closed journal."""
    sizes = []
    for number in (1, steps + 1):
        async with satay.run_app(data_dir=directory / str(number)):
            await _record("large", number, LARGE_STATE_BYTES)
        sizes.append((directory / str(number) / DATABASE_FILE).stat().st_size)
    return (sizes[1] - sizes[0]) / steps
