"""The same agent twice: as a workflow, where satay owns the loop, and as a session, where the agent owns it. Both make
the same calls of the same tasks, so they can be compared call by call, and a fork of either pays only for what is new.

Run:    python recipes/16_agent_both_ways.py

Prints:
    as a workflow: 3 sources, 2 of them good
    as a session:  3 sources, 2 of them good
    the same calls with the same outcomes: True
    fork of the workflow before the last rating: 2 tasks run
    fork of the session after step 2: 2 tasks run
"""

import asyncio
import tempfile

import satay

runs: list[str] = []


@satay.task
async def find(topic: str) -> list[str]:
    runs.append("find")
    return [f"{topic} in the news", f"{topic} at home", f"{topic} by law"]


@satay.task
async def rate(source: str) -> bool:
    runs.append("rate")
    return "news" not in source


@satay.task
def write(ratings: list[bool]) -> str:
    runs.append("write")
    return f"{len(ratings)} sources, {sum(ratings)} of them good"


@satay.workflow
async def as_workflow(topic: str) -> str:
    """After a crash satay runs this again from the top, and recorded calls answer from the journal."""
    ratings = []
    for source in await find(topic):
        ratings.append(await rate(source))
    return await write(ratings)


async def go_on(session: satay.Session, sources: list[str], ratings: list[bool]) -> str:
    """After a crash, or in a fork, the agent goes on from the state that it recorded itself."""
    for source in sources[len(ratings) :]:
        ratings.append(await rate(source))
        await session.step("rate", input=source, output=ratings[-1])
    return await write(ratings)


async def as_session(topic: str) -> str:
    sources: list[str] = []
    ratings: list[bool] = []
    async with satay.Session("session", state_fn=lambda: {"sources": sources, "ratings": ratings}) as session:
        sources = await find(topic)
        return await go_on(session, sources, ratings)


async def main(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir):
        workflow = satay.start(as_workflow, "housing", run_id="workflow")
        print("as a workflow:", await workflow.result())
        print("as a session: ", await as_session("housing"))
        compared = await satay.compare("workflow", "session")
        tasks = [call for call in compared.calls if call.kind == "task"]
        print("the same calls with the same outcomes:", all(call.status == "same" for call in tasks))

        runs.clear()
        fork = await satay.fork("workflow", before_task=rate, before_ordinal=2)
        await fork.result()
        print(f"fork of the workflow before the last rating: {len(runs)} tasks run")

        runs.clear()
        async with satay.Session.resume("session", fork_at_step=2, state_fn=lambda: state) as forked:
            state = forked.inherited_state
            await go_on(forked, **state)
        print(f"fork of the session after step 2: {len(runs)} tasks run")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(main(data_dir))
