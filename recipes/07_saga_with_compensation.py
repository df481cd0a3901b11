"""A trip is booked in three places, the last one is full, and the process dies while it gives back the first two.
Each booking pushes its undoing onto an ordinary exit stack; undoing is made of durable calls, so it is finished later.

Run:    python recipes/07_saga_with_compensation.py

Prints:
    process 1
      booked the flight
      booked the hotel
      no car is left
      gave back the hotel
      the process dies
    process 2
      gave back the flight
      failed: FullyBookedError: no car is left
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack

import satay


class FullyBookedError(Exception):
    """There is nothing left to book."""


@satay.task(no_retry_on=FullyBookedError, retries=3)
async def book(what: str) -> str:
    if what == "car":
        print("  no car is left", flush=True)
        raise FullyBookedError("no car is left")
    print(f"  booked the {what}", flush=True)
    return f"{what}-1"


@satay.task(effect="idempotent", retries=100)
async def give_back(what: str, booking: str) -> None:
    """Undoing must succeed in the end, so it is retried for long."""
    if what == "flight" and "--dies" in sys.argv:
        print("  the process dies", flush=True)
        os._exit(1)
    print(f"  gave back the {what}", flush=True)


@satay.workflow
async def book_trip(parts: list[str]) -> list[str]:
    bookings: list[str] = []
    async with AsyncExitStack() as undo:
        for what in parts:
            booking = await book(what)
            undo.push_async_callback(give_back, what, booking)
            bookings.append(booking)
        undo.pop_all()  # All of it is booked: nothing is to be undone.
    return bookings


async def work(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir):
        try:
            bookings = await satay.start(book_trip, ["flight", "hotel", "car"], run_id="trip").result()
            print("  booked", *bookings)
        except FullyBookedError as error:
            print(f"  failed: {type(error).__name__}: {error}")


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        print("process 1", flush=True)
        subprocess.run([sys.executable, __file__, data_dir, "--dies"])
        print("process 2", flush=True)
        subprocess.run([sys.executable, __file__, data_dir])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
