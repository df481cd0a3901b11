"""Large results: each is more than a row should hold, and is stored beside the journal's entries, once a content."""

import base64
import random

import satay
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure, at_least
from tests.benchmarks.rounds import Measure, interleaved
from tests.benchmarks.workloads import rate_of

RESULTS = 100
RESULT_BYTES = 1_000_000
VOCABULARY = 500

chance = random.Random(1)


def prose() -> str:
    """Words at random, which compress to less than half."""
    vocabulary = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 11))) for _ in range(VOCABULARY)]
    return " ".join(chance.choices(vocabulary, k=RESULT_BYTES // 3))


def noise() -> str:
    """What hardly compresses, such as an image in base64."""
    return base64.b64encode(chance.randbytes(RESULT_BYTES)).decode()


CONTENTS = {"text that compresses": prose(), "text that does not": noise()}

texts: list[str] = []
"""What the tasks return, by the number of the call."""


@satay.task(name="benchmarks.write_text")
async def write_text(number: int) -> str:
    return texts[number]


@satay.workflow(name="benchmarks.write_texts")
async def write_texts(calls: int) -> int:
    return sum([len(await write_text(number)) for number in range(calls)])


async def measure(bench: Bench) -> list[Figure]:
    """Sequential tasks that return a megabyte each."""
    results = bench.scale.of(RESULTS)
    async with satay.run_app(data_dir=bench.journal):
        measures = {name: _megabytes_a_second(content, results) for name, content in CONTENTS.items()}
        samples = await interleaved(bench.scale.rounds, measures)
    texts.clear()
    return [Figure(f"{results:,} results of 1 MB, {name}", "MB/s", samples[name], at_least(70)) for name in CONTENTS]


def _megabytes_a_second(content: str, results: int) -> Measure:
    rate = rate_of(write_texts, results)

    async def measure() -> float:
        # Every text is new to the journal, which stores a content that it knows only once.
        texts[:] = [f"{chance.random()} {content}"[:RESULT_BYTES] for _ in range(results)]
        return await rate() * RESULT_BYTES / 1e6

    return measure
