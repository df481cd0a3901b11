"""Someone has to approve an expense, which may take a second or a week, and no process should have to stay up for that.
The workflow waits for an event with a timeout beside a durable timer that reminds; while it waits, it is a row on disk.

Run:    python recipes/04_timers_and_events.py

Prints:
    the laptop
      mail: please approve laptop, $1800
      the app closes; the run waits on disk
      another app opens
      mail: reminder: laptop, $1800 still waits for you
      the manager approves
      result: laptop was approved by Mia
    the yacht
      mail: please approve yacht, $990000
      mail: reminder: yacht, $990000 still waits for you
      result: yacht was not approved in time
"""

import asyncio
import tempfile
from dataclasses import dataclass

import satay
from satay.errors import EventTimeoutError

REMIND_AFTER_SECONDS = 0.1  # A day, outside of a recipe.


@dataclass(frozen=True)
class Expense:
    item: str
    dollars: int
    give_up_after_seconds: float


@dataclass(frozen=True)
class Decision:
    is_approved: bool
    by: str


mails: asyncio.Queue[str] = asyncio.Queue()


@satay.task
async def send_mail(text: str) -> None:
    mails.put_nowait(text)


async def remind(expense: Expense) -> None:
    await satay.sleep(REMIND_AFTER_SECONDS)
    await send_mail(f"reminder: {expense.item}, ${expense.dollars} still waits for you")


@satay.workflow
async def approve(expense: Expense) -> str:
    await send_mail(f"please approve {expense.item}, ${expense.dollars}")
    async with asyncio.TaskGroup() as group:
        reminder = group.create_task(remind(expense))
        try:
            decision = await satay.wait_for_event(Decision, key=expense.item, timeout=expense.give_up_after_seconds)
        except EventTimeoutError:
            return f"{expense.item} was not approved in time"
        finally:
            reminder.cancel()
    return f"{expense.item} was {'approved' if decision.is_approved else 'refused'} by {decision.by}"


async def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        print("the laptop")
        async with satay.run_app(data_dir=data_dir):
            satay.start(approve, Expense("laptop", 1_800, give_up_after_seconds=60), run_id="laptop")
            print(f"  mail: {await mails.get()}")
        print("  the app closes; the run waits on disk")

        async with satay.run_app(data_dir=data_dir):
            print("  another app opens")
            handle = satay.resume("laptop")
            print(f"  mail: {await mails.get()}")
            print("  the manager approves")
            await satay.send_event(Decision(is_approved=True, by="Mia"), key="laptop")
            print(f"  result: {await handle.result()}")

            print("the yacht")
            handle = satay.start(approve, Expense("yacht", 990_000, give_up_after_seconds=2), run_id="yacht")
            print(f"  mail: {await mails.get()}")
            print(f"  mail: {await mails.get()}")
            print(f"  result: {await handle.result()}")


if __name__ == "__main__":
    asyncio.run(main())
