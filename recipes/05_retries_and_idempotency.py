"""When a payment service does not answer, nobody knows whether it took the money, and the same goes for a crash.
A call that can be repeated under its idempotency key is retried; one that cannot is left to a person to decide.

Run:    python recipes/05_retries_and_idempotency.py

Prints:
    process 1
      charge attempt 1: charged $40, but the answer was lost
      charge attempt 2: paid already, nothing charged
      courier: parcel picked up, and the process dies before it knows
    process 2
      NeedsDecisionError: run 'order-1' stopped at an external call of which nobody knows whether it took effect
      the courier's book says: parcel-1, so that is the result
      order-1: paid with receipt-1, sent as parcel-1
    the world
      charges: receipt-1
      parcels: parcel-1
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import satay
from satay.errors import NeedsDecisionError


class Book:
    """Stands for what a service outside has on its books: a file, so that it outlives the processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> dict[str, str]:
        text = self.path.read_text() if self.path.exists() else ""
        return dict(line.split() for line in text.splitlines())

    def write(self, key: str, value: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{key} {value}\n")


@satay.task(effect="idempotent", retries=3, backoff=satay.Backoff(first=0.05, longest=1.0))
async def charge(order_id: str, world: Path) -> str:
    call, payments = satay.task_context(), Book(world / "charges")
    if receipt := payments.lines().get(call.idempotency_key):
        print(f"  charge attempt {call.attempt}: paid already, nothing charged", flush=True)
        return receipt
    payments.write(call.idempotency_key, "receipt-1")
    print(f"  charge attempt {call.attempt}: charged $40, but the answer was lost", flush=True)
    raise TimeoutError("the payment service did not answer")


@satay.task(effect="external")
async def ship(order_id: str, world: Path) -> str:
    Book(world / "parcels").write(order_id, "parcel-1")
    print("  courier: parcel picked up, and the process dies before it knows", flush=True)
    os._exit(1)


@satay.workflow
async def fulfil(world: Path) -> str:
    receipt = await charge("order-1", world)
    parcel = await ship("order-1", world)
    return f"order-1: paid with {receipt}, sent as {parcel}"


async def work(world: Path) -> None:
    async with satay.run_app(data_dir=world):
        handle = satay.start(fulfil, world, run_id="order-1")
        try:
            print(f"  {await handle.result()}")
        except NeedsDecisionError as error:
            print(f"  NeedsDecisionError: {str(error).partition(';')[0]}")
            parcel = Book(world / "parcels").lines()["order-1"]
            print(f"  the courier's book says: {parcel}, so that is the result")
            await satay.decide("order-1", value=parcel)
            print(f"  {await handle.result()}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as world:
        for number in (1, 2):
            print(f"process {number}", flush=True)
            subprocess.run([sys.executable, __file__, world])
        print("the world")
        for name in ("charges", "parcels"):
            print(f"  {name}: {', '.join(Book(Path(world, name)).lines().values())}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(Path(sys.argv[1])))
    else:
        main()
