"""A support agent promises a refund that the shop does not give: the run is finished, paid for, and wrong.
Fork it before the bad call with a better instruction: five of the six calls are reused, and the two can be compared.

Run:    make demo, or python recipes/02_fork_replay_compare.py

Prints:
    1. The agent answers.
    ...
       agent:       I am so sorry! I have refunded the $129 to your card.
    ...
    2. Fork it before the bad call, with a better instruction.
    ...
       agent:       I cannot refund an order after 30 days, but I can give you $129 in store credit.
    ...
    3. Compare the two, call by call.
    ...
    choose_tool:2   replayed    ...
    write_reply:0   different   ...
    ...
    5 of 6 calls reused; saved 0.0234 and ...
"""

import asyncio
import tempfile
from dataclasses import dataclass, replace

import satay


@dataclass(frozen=True)
class Case:
    question: str
    order_id: str
    instruction: str


async def think(input_tokens: int, output_tokens: int) -> None:
    """Stands for a model: it always thinks for as long, and tells satay what that would have cost."""
    cost = (3 * input_tokens + 15 * output_tokens) / 1_000_000
    satay.task_context().record_usage(model="fake-1", input_tokens=input_tokens, output_tokens=output_tokens, cost=cost)
    await asyncio.sleep(0.2)


@satay.task
async def choose_tool(question: str, facts: list[str]) -> str:
    await think(input_tokens=1_800 + 600 * len(facts), output_tokens=40)
    return ("find_order", "read_policy", "reply")[len(facts)]


@satay.task
async def find_order(order_id: str) -> str:
    return f"order {order_id}: headphones, $129, delivered 45 days ago"


@satay.task
async def read_policy(order_id: str) -> str:
    return "refunds within 30 days; store credit within 60"


@satay.task
async def write_reply(question: str, facts: list[str], instruction: str) -> str:
    await think(input_tokens=3_200, output_tokens=60)
    if "policy" in instruction:
        return "I cannot refund an order after 30 days, but I can give you $129 in store credit."
    return "I am so sorry! I have refunded the $129 to your card."


TOOLS = {"find_order": find_order, "read_policy": read_policy}


@satay.workflow
async def support_agent(case: Case) -> str:
    facts: list[str] = []
    while (tool := await choose_tool(case.question, facts)) != "reply":
        facts.append(await TOOLS[tool](case.order_id))
    return await write_reply(case.question, facts, case.instruction)


async def main(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir):
        case = Case("My headphones broke. Money back?", "A-17", "Make the customer happy.")
        source = satay.start(support_agent, case, run_id="ticket-1")
        print("1. The agent answers.")
        print(f"   customer:    {case.question}")
        print(f"   instruction: {case.instruction}")
        print(f"   agent:       {await source.result()}")
        print("   But the order is 45 days old, and the policy says 30. The run is done, and wrong.\n")

        better = replace(case, instruction="Make the customer happy, within the policy.")
        fork = await satay.fork("ticket-1", before_task="write_reply", workflow_input=better, run_id="ticket-1-fixed")
        print("2. Fork it before the bad call, with a better instruction.")
        print(f"   instruction: {better.instruction}")
        print(f"   agent:       {await fork.result()}\n")

        print("3. Compare the two, call by call.", await satay.compare("ticket-1", "ticket-1-fixed"), sep="\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(main(data_dir))
