"""A test with made-up inputs misses what reality has in store, and one that calls the real services is slow and dear.
Start from a recorded run: fork it, inherit what the services answered, and assert what the new logic makes of that.

Run:    python recipes/11_regression_test.py, or pytest recipes/11_regression_test.py

Prints:
    ok: an invoice in pence is not read as pounds
    ok: an invoice that was never seen is not booked without a person
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable

import satay
from satay.testing import open_app

UNITS = {"GBP": 1}
"""How many make a pound. The recorded run knew no pence."""

services: list[str] = []


@satay.task
async def fetch_invoice(number: str) -> dict[str, str]:
    services.append("fetch_invoice")  # It costs money, and answers otherwise tomorrow.
    return {"number": number, "total": "129900", "unit": "GBX"}


@satay.task
async def book(number: str, pounds: float) -> str:
    services.append("book")
    return f"{number}: {pounds:.2f} GBP"


@satay.workflow
async def take_invoice(number: str) -> str:
    invoice = await fetch_invoice(number)
    if invoice["unit"] not in UNITS and len(UNITS) > 1:
        return f"{number}: ask a person"
    return await book(number, int(invoice["total"]) / UNITS.get(invoice["unit"], 1))


def from_record(scenario: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A plain test function, for any test runner, that begins with a recorded run and the new logic.

    In life the record is a copy of last week's journal, and the new logic is a new version of the code.
    """

    async def begin() -> None:
        async with open_app() as app:
            UNITS.pop("GBX", None)
            assert await app.start(take_invoice, "A-17", run_id="recorded").result() == "A-17: 129900.00 GBP"
            services.clear()
            UNITS["GBX"] = 100
            await scenario()

    @functools.wraps(scenario)
    def test() -> None:
        asyncio.run(asyncio.wait_for(begin(), timeout=20))

    return test


@from_record
async def test_an_invoice_in_pence_is_not_read_as_pounds() -> None:
    fork = await satay.fork("recorded", after_task=fetch_invoice, tool_policies={"book": "live"})

    assert await fork.result() == "A-17: 1299.00 GBP"
    assert services == ["book"]


@from_record
async def test_an_invoice_that_was_never_seen_is_not_booked_without_a_person() -> None:
    odd = {"number": "A-17", "total": "7", "unit": "EUR"}
    fork = await satay.fork("recorded", overrides={("fetch_invoice", 0): odd}, tool_policies={"book": "block"})

    assert await fork.result() == "A-17: ask a person"
    assert services == []


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok:", name.removeprefix("test_").replace("_", " "))
