"""A fresh process: how long `import satay` takes, and how soon the result of a one-task run is there."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.rounds import interleaved

ROOT = Path(__file__).parents[2]

IMPORT = """
import time
began = time.perf_counter()
import satay
print(time.perf_counter() - began)
"""

ONE_TASK = """
import sys
import satay

@satay.task
async def greet(name: str) -> str:
    return f"hello {name}"

@satay.workflow
async def welcome(name: str) -> str:
    return await greet(name)

print(satay.run(welcome, "ada", data_dir=sys.argv[1]), flush=True)
"""


async def measure(bench: Bench) -> list[Figure]:
    """The import by the process's own clock; the result from the start of the process until it has printed it."""
    program = bench.directory / "one_task.py"
    program.write_text(ONE_TASK)

    async def import_seconds() -> float:
        line, _ = await _first_line("-c", IMPORT)
        return float(line)

    async def first_result_seconds() -> float:
        line, took = await _first_line(str(program), str(bench.directory / str(time.perf_counter())))
        assert line == "hello ada\n"
        return took

    samples = await interleaved(bench.scale.rounds, {"import": import_seconds, "first": first_result_seconds})
    return [
        Figure("import satay", "s", samples["import"], at_most(0.25)),
        Figure("fresh process to the result of its first one-task run", "s", samples["first"], at_most(0.4)),
    ]


async def _first_line(*arguments: str) -> tuple[str, float]:
    """The first line that a process prints, and how long after its start it was there, in seconds."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE, cwd=ROOT)
    assert process.stdout is not None
    line = await process.stdout.readline()
    took = time.perf_counter() - began
    await process.wait()
    return line.decode(), took
