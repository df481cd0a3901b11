"""An agent wants to refund a large sum, somebody has to agree, and that may take days in which no process should run.
The request is recorded in the agent's session: the process asks and exits, and another one asks again and is answered.

Run:    python recipes/13_approve_across_restarts.py

Prints:
    first process: looked up order 7, $900
    first process: paused, waits for approval 'refund-7'
    pending: refund-7 of support-7: {'order': 7, 'dollars': 900}
    Mia decides: approved, up to $450
    Ada decides otherwise: refused, 'Mia' was first
    second process: paid $450, approved by Mia
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import satay
from satay.errors import ApprovalConflictError, ApprovalPendingError

SESSION = "support-7"


def pay(order: int, dollars: int, ledger: str) -> int:
    """The effect: money leaves the house."""
    with Path(ledger).open("a", encoding="utf-8") as file:
        file.write(f"order {order}: ${dollars}\n")
    return dollars


async def agent(name: str, place: Path) -> None:
    """The application's own loop: it runs from the top in each process, and goes on where the session is."""
    async with satay.run_app(data_dir=place), satay.Session(SESSION) as session:
        if session.last_step == 0:
            print(f"{name}: looked up order 7, $900")
            await session.step("look_up", output={"order": 7, "dollars": 900})
        order = (await session.steps())[0].output
        decision = await session.require_approval("refund-7", order, timeout=7 * 86_400, wait=False)
        if decision:
            paid = await session.call("pay", pay, 7, decision.value, str(place / "ledger"), key="refund-7")
            print(f"{name}: paid ${paid.result}, approved by {decision.by}")
        else:
            print(f"{name}: {decision.by} said no")


async def decide(place: Path) -> None:
    async with satay.run_app(data_dir=place):
        for pending in await satay.approvals():
            print(f"pending: {pending.key} of {pending.run_id}: {pending.payload}")
        await satay.decide_approval(SESSION, "refund-7", approved=True, by="Mia", value=450)
        print("Mia decides: approved, up to $450")
        try:
            await satay.decide_approval(SESSION, "refund-7", approved=False, by="Ada")
        except ApprovalConflictError as conflict:
            print(f"Ada decides otherwise: refused, {conflict.by!r} was first")


def main(place: Path) -> None:
    command = [sys.executable, __file__, str(place)]
    print(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout, end="")
    asyncio.run(decide(place))
    asyncio.run(agent("second process", place))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        try:
            asyncio.run(agent("first process", Path(sys.argv[1])))
        except ApprovalPendingError as pending:
            print(f"first process: paused, waits for approval {pending.key!r}")
    else:
        with tempfile.TemporaryDirectory() as data_dir:
            main(Path(data_dir))
