"""Resuming: a run with a long journal is taken over by a new app, replays it, and ends."""

import shutil
import time

import satay
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.rounds import NOISE, Measure, against, interleaved
from tests.benchmarks.workloads import tally_purely

CALLS = 10_000
TIMES_LONGER = 10
PEER_CALLS = 1_000
"""The peer replays fewer: recording more would take it minutes."""

GO = "benchmarks.go"


@satay.workflow(name="benchmarks.count_then_wait")
async def count_then_wait(calls: int) -> int:
    number = 0
    for _ in range(calls):
        number = await tally_purely(number)
    await satay.wait_for_event(GO)
    return number


async def measure(bench: Bench) -> list[Figure]:
    """The time for each recorded call, from `resume` to the result; ten times as many; and the peer's."""
    calls = bench.scale.of(CALLS)
    longer = calls * TIMES_LONGER
    for size in (calls, longer):
        await _record(bench, size)
    small = _microseconds_a_call(bench, calls)
    measures: dict[str, Measure] = {"resume": small, "longer": against(small, _microseconds_a_call(bench, longer))}
    if bench.peer is not None:
        peer_calls = bench.scale.of(PEER_CALLS)
        seconds = bench.peer.seconds_of("replay", peer_calls)

        async def peer_microseconds() -> float:
            return await seconds() / peer_calls * 1e6

        measures["peer"] = peer_microseconds
    samples = await interleaved(bench.scale.rounds, measures)
    unit = f"time of a call in {calls:,}"
    figures = [
        Figure(f"resume after {calls:,} recorded calls", "µs a call", samples["resume"], at_most(25)),
        Figure(f"resume after {longer:,}", unit, samples["longer"], at_most(NOISE)),
    ]
    if bench.peer is not None:
        figures.append(Figure(f"DBOS, replay of {peer_calls:,} recorded calls", "µs a call", samples["peer"]))
    return figures


async def _record(bench: Bench, calls: int) -> None:
    """A journal whose run made its calls and was left waiting for an event that has been sent since."""
    async with satay.run_app(data_dir=bench.directory / str(calls)) as app:
        handle = await satay.start(count_then_wait, calls, run_id="waits")
        async for event in app.events(handle.run_id):
            if event.type == "EventWaitStarted":
                break
    async with satay.run_app(data_dir=bench.directory / str(calls)):
        await satay.send_event(GO, run_id="waits")


def _microseconds_a_call(bench: Bench, calls: int) -> Measure:
    async def measure() -> float:
        copy = bench.directory / "copy"
        shutil.copytree(bench.directory / str(calls), copy)
        async with satay.run_app(data_dir=copy):
            began = time.perf_counter()
            result = await satay.resume("waits").result()
            took = time.perf_counter() - began
        assert result == calls
        shutil.rmtree(copy)
        return took / calls * 1e6

    return measure
