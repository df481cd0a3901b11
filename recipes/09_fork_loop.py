"""A newsletter that was sent reads like a brochure, and nobody may get it twice while it is made better.
Plan a fork, try two voices with the mailing blocked, have them judged, compare the best with the original, promote it.

Run:    python recipes/09_fork_loop.py

Prints:
    sent: To 3 customers: Synergy! Acme unveils a paradigm.
    A fork of issue-7 before the call draft:0: keeps entries 1 to 3 (TaskCompleted), with another input
    ...
    1 of 3 calls reused, 1 run again, 1 blocked, 0 stale.
    ...
    Sweep voices of issue-7
    ...
    plain ... 2/2   100% ...
    sceptical ... 2/2       0% ...
    the first difference: input
    promoted: voices/plain:0, and e-mails sent in all: 1
"""

import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import satay
from satay.errors import TaskBlockedError

VOICES = {  # What a model would write in each voice.
    "brochure": "Synergy! Acme unveils a paradigm.",
    "plain": "Acme ships the fast kettle on Monday.",
    "sceptical": "Acme says its kettle is fast. We shall see.",
}


@dataclass(frozen=True)
class Issue:
    customers: int
    voice: str
    outbox: str


@satay.task
async def gather() -> list[str]:
    satay.task_context().record_usage(model="fake-1", input_tokens=50_000, output_tokens=900, cost=0.16)
    return ["the kettle boils in 40 seconds", "it ships on Monday"]


@satay.task
async def draft(facts: list[str], voice: str) -> str:
    satay.task_context().record_usage(model="fake-1", input_tokens=1_000, output_tokens=40, cost=0.004)
    return VOICES[voice]


@satay.task(effect="external")
def send(text: str, customers: int, outbox: str) -> str:
    with Path(outbox).open("a", encoding="utf-8") as file:
        file.write(f"To {customers} customers: {text}\n")
    return text


@satay.workflow
async def newsletter(issue: Issue) -> str:
    text = await draft(await gather(), issue.voice)
    try:
        return await send(text, issue.customers, issue.outbox)
    except TaskBlockedError:
        return text  # In a fork it is only written.


def reads_well(text: str) -> bool:
    return "Monday" in text


async def main(place: Path) -> None:
    outbox = place / "outbox.txt"
    async with satay.run_app(data_dir=place):
        issue = Issue(3, "brochure", str(outbox))
        await satay.start(newsletter, issue, run_id="issue-7").result()
        print("sent:", outbox.read_text(encoding="utf-8"), end="")

        policies = {"send": "block"}
        plain, sceptical = replace(issue, voice="plain"), replace(issue, voice="sceptical")
        print(await satay.plan_fork("issue-7", before_task=draft, workflow_input=plain, tool_policies=policies))

        voices = {"plain": plain, "sceptical": sceptical}
        cut: satay.ForkOptions = {"before_task": draft, "tool_policies": policies}
        sweep = await satay.sweep("issue-7", variants=voices, repeats=2, score=reads_well, run_id="voices", **cut)
        print(sweep)

        print(f"the first difference: {(await satay.compare('issue-7', sweep.best.run_id)).cause}")
        await satay.promote(sweep.best.run_id)
        emails = len(outbox.read_text(encoding="utf-8").splitlines())
        print(f"promoted: {sweep.best.run_id}, and e-mails sent in all: {emails}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
