"""A workflow that waits for weeks, and that must survive a crash at any moment, cannot be tested in real time.
`satay.testing` gives a test an app whose clock jumps to what is due next, and that crashes at the entry you choose.

Run:    python recipes/08_test_your_workflow.py, or pytest recipes/08_test_your_workflow.py

Prints:
    ok: a customer who does not pay is reminded and then reported
    ok: a customer who pays hears no more
    ok: a crash after a mail does not send it again
"""

import asyncio
import functools
import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta

import satay
from satay.errors import EventTimeoutError
from satay.testing import Faults, ManualClock, open_app, settle

outbox: list[str] = []


@satay.task
async def send_mail(text: str) -> None:
    outbox.append(text)


@satay.workflow
async def collect(customer: str) -> str:
    for text in ("invoice", "reminder"):
        await send_mail(f"{text} for {customer}")
        try:
            await satay.wait_for_event("payment", key=customer, timeout=timedelta(days=14))
        except EventTimeoutError:
            continue
        return "paid"
    return "reported"


def async_test(scenario: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A plain test function, for any test runner, that begins with an empty outbox."""

    @functools.wraps(scenario)
    def test() -> None:
        outbox.clear()
        asyncio.run(asyncio.wait_for(scenario(), timeout=20))

    return test


@async_test
async def test_a_customer_who_does_not_pay_is_reminded_and_then_reported() -> None:
    async with open_app() as app:
        began = app.clock.now()
        assert await satay.start(collect, "ada").result() == "reported"
        passed = timedelta(microseconds=app.clock.now() - began)

    assert passed == timedelta(days=28)
    assert outbox == ["invoice for ada", "reminder for ada"]


@async_test
async def test_a_customer_who_pays_hears_no_more() -> None:
    async with open_app(clock=ManualClock()) as app:  # This clock moves only when it is told to.
        handle = await satay.start(collect, "bob")
        await app.clock.advance(timedelta(days=13))
        assert await handle.status() == satay.RunStatus.WAITING
        await satay.send_event("payment", 40, key="bob")
        await settle(app)

        assert await handle.result() == "paid"
    assert outbox == ["invoice for bob"]


@async_test
async def test_a_crash_after_a_mail_does_not_send_it_again() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        faults = Faults().crash_after(type="TaskCompleted")
        async with open_app(data_dir, faults=faults):
            satay.start(collect, "eve", run_id="eve")
            await faults.crashed
        async with open_app(data_dir):
            assert await satay.resume("eve").result() == "reported"

    assert outbox == ["invoice for eve", "reminder for eve"]


if __name__ == "__main__":
    for test in (
        test_a_customer_who_does_not_pay_is_reminded_and_then_reported,
        test_a_customer_who_pays_hears_no_more,
        test_a_crash_after_a_mail_does_not_send_it_again,
    ):
        test()
        print(f"ok: {test.__name__.removeprefix('test_').replace('_', ' ')}")
