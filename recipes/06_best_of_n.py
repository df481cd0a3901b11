"""One run of an expensive pipeline gave a dull last step, and running all of it five times to pick the best costs five times.
Fork it several times from one cut, each with another input: the expensive part is paid once, the last step five times.

Run:    python recipes/06_best_of_n.py

Prints:
    research ran once, write_title ran 5 times
      score  1  source   On the Subject of Ducks
      score  3  plain    How Ducks Sleep
      score  5  number   7 Ways in Which Ducks Sleep
      score  9  wonder   Why Do Ducks Sleep with One Eye Open?
      score  4  pun      Duck and Cover: Notes on Sleep
    the best is wonder; it differs from the source in this:
    ...
"""

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, replace

import satay

TITLES = {
    "dull": "On the Subject of Ducks",
    "plain": "How Ducks Sleep",
    "number": "7 Ways in Which Ducks Sleep",
    "wonder": "Why Do Ducks Sleep with One Eye Open?",
    "pun": "Duck and Cover: Notes on Sleep",
}
"""What a model would write in each style."""

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


async def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        async with satay.run_app(data_dir=data_dir):
            brief = Brief("Ducks", "dull")
            source = satay.start(entitle, brief, run_id="dull")
            titles = {"dull": await source.result()}

            styles = ["plain", "number", "wonder", "pun"]
            forks = [
                await satay.fork(
                    "dull", before_task="write_title", workflow_input=replace(brief, style=style), run_id=style
                )
                for style in styles
            ]
            titles.update(zip(styles, await asyncio.gather(*[fork.result() for fork in forks]), strict=True))

            print(f"research ran {calls['research']} time, write_title ran {calls['write_title']} times")
            for style, title in titles.items():
                print(f"  score {title.score}  {style:<7} {title.text}")
            best = max(titles, key=lambda style: titles[style].score)
            print(f"the best is {best!r}; beside the source:")
            print(await satay.compare("dull", best))


if __name__ == "__main__":
    asyncio.run(main())
