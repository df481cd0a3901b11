"""An agent that owns its own loop takes a bad turn at step 3. Fork its session before that turn, change the decision,
go on from there, compare the two realities, and keep the better one: nothing before the turn happens again.

Run:    python recipes/12_fork_a_session.py

Prints:
    run-7: 4 steps, outcome: refused
    run-7/model-b goes on after step 2 with 2 notes; complete
    blocked in the fork: email.send
    run-7/model-b: 4 steps, outcome: approved
    they differ at $.notes[2], $.model, $.outcome
    searches made: 2, e-mails sent: 1
    run-7/model-b is promoted, score 0.92
"""

import asyncio
import tempfile
from typing import Any

import satay
from satay.errors import TaskBlockedError

searches: list[str] = []
mails: list[str] = []


@satay.task(name="search")
def search(topic: str) -> str:
    searches.append(topic)
    return f"what is known of {topic}"


@satay.task(name="email.send", effect="external")
async def send_mail(to: str, text: str) -> str:
    mails.append(to)
    return f"sent to {to}"


async def decide(session: satay.Session, state: dict[str, Any]) -> None:
    """Steps 3 and 4: what the model concludes, and what follows."""
    choice = session.intervention or {"model": "small"}
    state["model"] = choice["model"]
    state["outcome"] = "approved" if choice["model"] == "candidate" else "refused"
    state["notes"].append(f"the {choice['model']} model says {state['outcome']}")
    await session.step("decide", output=state["outcome"])
    try:
        await send_mail("customer@example.org", f"Your claim is {state['outcome']}.")
    except TaskBlockedError as error:
        print(f"blocked in the fork: {error.task}")
    await session.step("tell", output=state["outcome"])


async def main(data_dir: str) -> None:
    state: dict[str, Any] = {"notes": []}
    async with satay.run_app(data_dir=data_dir):
        async with satay.Session("run-7", state_fn=lambda: state) as session:
            for topic in ("the claim", "the contract"):
                state["notes"].append(await search(topic))
                await session.step("research", input=topic)
            await decide(session, state)
            print(f"run-7: {session.last_step} steps, outcome: {state['outcome']}")

            fork = await session.fork(
                at_step=2,
                name="run-7/model-b",
                intervention={"model": "candidate"},
                tool_policies={"email.send": "block", "*": "auto"},
            )
        assert fork.receipt is not None
        assert fork.receipt.boundary is not None
        grade = fork.receipt.boundary.reproducibility
        async with fork:
            state = fork.inherited_state
            print(f"{fork.run_id} goes on after step {fork.last_step} with {len(state['notes'])} notes; {grade}")
            await decide(fork, state)
        print(f"{fork.run_id}: {fork.last_step} steps, outcome: {state['outcome']}")

        difference = await satay.diff_states("run-7", "run-7/model-b")
        print("they differ at", ", ".join(change.path for change in difference.differences))
        print(f"searches made: {len(searches)}, e-mails sent: {len(mails)}")
        await satay.set_outcome("run-7/model-b", "promoted", score=0.92)
        await fork.promote()
        kept = await satay.outcome("run-7/model-b")
        assert kept is not None
        print(f"{fork.run_id} is {kept.value}, score {kept.score}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(main(data_dir))
