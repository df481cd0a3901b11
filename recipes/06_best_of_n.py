"""The last step of an expensive run came out dull, and running all of it five times to choose costs five times as much.
Fork it from one cut, each time with another input: the expensive part is paid once, only the last step five times.

Run:    python recipes/06_best_of_n.py

Prints:
    research ran 1 time, write_title ran 5 times
    Sweep best-of-4 of dull
    ...
    wonder       1/1       8   ...
    number       1/1       3   ...
    plain        1/1       2   ...
    pun          1/1       1   ...
    the best is 'wonder'; beside the source:
    ...
    research:0      replayed    ...
    write_title:0   different   ...
    rate:0          different   ...
    ...
"""

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, replace

import satay

TITLES = {  # What a model would write in each style.
    "dull": "On the Subject of Ducks",
    "plain": "How Ducks Sleep",
    "number": "7 Ways in Which Ducks Sleep",
    "wonder": "Why Do Ducks Sleep with One Eye Open?",
    "pun": "Duck and Cover: Notes on Sleep",
}

calls: Counter[str] = Counter()


@dataclass(frozen=True)
class Brief:
    topic: str
    style: str


@dataclass(frozen=True)
class Title:
    text: str
    score: int


@satay.task
async def research(topic: str) -> list[str]:
    calls["research"] += 1
    satay.task_context().record_usage(model="fake-1", input_tokens=90_000, output_tokens=4_000, cost=0.33)
    return [f"{topic} sleep with one eye open", f"{topic} sleep in rows"]


@satay.task
async def write_title(notes: list[str], style: str) -> str:
    calls["write_title"] += 1
    satay.task_context().record_usage(model="fake-1", input_tokens=4_200, output_tokens=20, cost=0.0129)
    return TITLES[style]


@satay.task(effect="pure")
def rate(title: str, notes: list[str]) -> int:
    """How many words of the notes a title uses, and two more for a question."""
    known = set(" ".join(notes).lower().split())
    return len(known & set(title.lower().strip("?").split())) + 2 * title.endswith("?")


@satay.workflow
async def entitle(brief: Brief) -> Title:
    notes = await research(brief.topic)
    text = await write_title(notes, brief.style)
    return Title(text, await rate(text, notes))


async def main(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir):
        brief = Brief("Ducks", "dull")
        await satay.start(entitle, brief, run_id="dull").result()

        sweep = await satay.sweep(
            "dull",
            before_task=write_title,
            variants={style: replace(brief, style=style) for style in ("plain", "number", "wonder", "pun")},
            score=lambda title: title.score,
            run_id="best-of-4",
        )
        print(f"research ran {calls['research']} time, write_title ran {calls['write_title']} times")
        print(sweep)
        print(f"the best is {sweep.best.variant!r}; beside the source:")
        print(await satay.compare("dull", sweep.best.run_id))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(main(data_dir))
