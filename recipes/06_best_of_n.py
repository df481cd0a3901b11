"""The last step of an expensive run came out dull, and running all of it five times to choose costs five times as much.
Fork it from one cut, each time with another input: the expensive part is paid once, only the last step five times.

Run:    python recipes/06_best_of_n.py

Prints:
    research ran 1 time, write_title ran 5 times
      score 1  dull    On the Subject of Ducks
      score 2  plain   How Ducks Sleep
      score 3  number  7 Ways in Which Ducks Sleep
      score 8  wonder  Why Do Ducks Sleep with One Eye Open?
      score 1  pun     Duck and Cover: Notes on Sleep
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
        source = satay.start(entitle, brief, run_id="dull")
        titles = {"dull": await source.result()}

        for style in ("plain", "number", "wonder", "pun"):
            other = replace(brief, style=style)
            fork = await satay.fork("dull", before_task="write_title", workflow_input=other, run_id=style)
            titles[style] = await fork.result()

        print(f"research ran {calls['research']} time, write_title ran {calls['write_title']} times")
        for style, title in titles.items():
            print(f"  score {title.score}  {style:<7} {title.text}")
        best = max(titles, key=lambda style: titles[style].score)
        print(f"the best is {best!r}; beside the source:")
        print(await satay.compare("dull", best))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(main(data_dir))
