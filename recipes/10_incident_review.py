"""A payout run failed at night after an hour of paid work, because a bank answered in a form unknown to the code.
Fork it at the failure with the fix: what was done is kept, what must not happen again is blocked, the evidence stays.

Run:    python recipes/10_incident_review.py

Prints:
    payout-17 failed: ValueError: cannot read the amount '1.250,00'
    the fork at the failure keeps 3 calls, which cost 0.42
    payout-17/fix: 1250 euros by 3 accounts, paid: False
    collect 1, check 1, read_amount 2, pay 0
    same evidence: True, intact: True
    payout-17 is inconclusive: a comma is a decimal point in some countries; see payout-17/fix
"""

import asyncio
import tempfile
from collections import Counter

import satay
from satay.errors import TaskBlockedError

calls: Counter[str] = Counter()
known_separators = "."


@satay.task
async def collect() -> list[str]:
    calls["collect"] += 1
    satay.task_context().record_usage(model="fake-1", input_tokens=90_000, output_tokens=9_000, cost=0.4)
    return ["DE02", "DE07", "DE11"]


@satay.task
async def check(accounts: list[str]) -> str:
    calls["check"] += 1
    satay.task_context().record_usage(model="fake-1", input_tokens=5_000, output_tokens=90, cost=0.02)
    return f"{len(accounts)} accounts"


@satay.task
async def ask_bank(accounts: list[str]) -> str:
    return "1.250,00"


@satay.task
async def read_amount(answer: str) -> int:
    calls["read_amount"] += 1
    if "," in answer and "," not in known_separators:
        raise ValueError(f"cannot read the amount {answer!r}")
    return int(answer.replace(".", "").partition(",")[0])


@satay.task(effect="external")
async def pay(euros: int) -> bool:
    calls["pay"] += 1
    return True


@satay.workflow
async def payout() -> str:
    accounts = await collect()
    checked = await check(accounts)
    euros = await read_amount(await ask_bank(accounts))
    try:
        is_paid = await pay(euros)
    except TaskBlockedError:
        is_paid = False  # In a fork nothing is paid, unless the fork was told to.
    return f"{euros} euros by {checked}, paid: {is_paid}"


async def main(data_dir: str) -> None:
    global known_separators
    async with satay.run_app(data_dir=data_dir) as app:
        try:
            await satay.start(payout, run_id="payout-17").result()
        except ValueError as error:
            print(f"payout-17 failed: ValueError: {error}")
        before = [entry async for entry in app.events("payout-17")]

        known_separators = ".,"  # The fix; in life it is another version of the code.
        fork = await satay.fork("payout-17", at="failure", run_id="payout-17/fix", reason="reads decimal commas")
        receipt = fork.receipt
        print(f"the fork at the failure keeps {receipt.calls_inherited} calls, which cost {receipt.saved_cost:.2f}")
        print(f"payout-17/fix: {await fork.result()}")
        print(", ".join(f"{name} {calls[name]}" for name in ("collect", "check", "read_amount", "pay")))

        after = [entry async for entry in app.events("payout-17")]
        print(f"same evidence: {before == after}, intact: {(await satay.verify('payout-17/fix')).is_intact}")
        note = "a comma is a decimal point in some countries; see payout-17/fix"
        await satay.set_outcome("payout-17", "inconclusive", note=note)
        reviewed = await satay.outcome("payout-17")
        assert reviewed is not None
        print(f"payout-17 is {reviewed.value}: {reviewed.note}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(main(data_dir))
