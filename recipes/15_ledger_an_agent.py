"""An agent loop of your own, in which a model chooses the tools, dies between two calls after it has booked a train.
Its session kept what was done: the same program goes on from the last state, and no call of a tool is made twice.

Run:    python recipes/15_ledger_an_agent.py

Prints:
    process 1
      ask the model
      search trains to Bern
      ask the model
      book 9:15
      ask the model ... and the power fails
    process 1 ended with SIGKILL

    process 2
      goes on after step 2
      ask the model
      answer: the 9:15 to Bern is booked
    process 2 ended well
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import satay

SCRIPT = [
    {"tool": "search", "argument": "trains to Bern"},
    {"tool": "book", "argument": "9:15"},
    {"answer": "the 9:15 to Bern is booked"},
]
"""What the fake model says, by the number of tool results that it has seen."""


@satay.task
async def ask_model(messages: list[str]) -> dict[str, str]:
    reply = SCRIPT[len(messages) - 1]
    if "answer" in reply and "--power-fails" in sys.argv:
        print("  ask the model ... and the power fails", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    print("  ask the model", flush=True)
    return reply


@satay.task
def search(argument: str) -> str:
    print(f"  search {argument}", flush=True)
    return "8:15, 9:15 and 10:15"


@satay.task(effect="external")
async def book(argument: str) -> str:
    print(f"  book {argument}", flush=True)
    return f"booked {argument}"


TOOLS: dict[str, Any] = {"search": search, "book": book}


async def agent(question: str) -> str:
    """The loop is the agent's own; the session keeps what comes of each turn of it."""
    messages = [question]
    async with satay.Session("trip-1", state_fn=lambda: messages) as session:
        if session.last_step:
            messages = session.state
            print(f"  goes on after step {session.last_step}")
        while True:
            reply = await ask_model(messages)
            if "answer" in reply:
                session.complete(reply["answer"])
                return reply["answer"]
            result = await TOOLS[reply["tool"]](reply["argument"])
            messages.append(f"{reply['tool']}: {result}")
            await session.step(reply["tool"], input=reply["argument"], output=result)


async def work(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir):
        print(f"  answer: {await agent('Get me to Bern tomorrow morning.')}")


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        for number, options in enumerate((["--power-fails"], []), start=1):
            print(f"process {number}", flush=True)
            process = subprocess.run([sys.executable, __file__, data_dir, *options])
            ending = "well" if process.returncode == 0 else f"with {signal.Signals(-process.returncode).name}"
            print(f"process {number} ended {ending}" + "\n" * (number == 1), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
