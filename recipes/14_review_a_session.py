"""An agent crashed in production after its second step. Read the trail of its decisions, fork the session before the
wrong one with the fix, block what must not happen, and keep both as evidence.

Run:    python recipes/14_review_a_session.py

Prints:
      step 1 classify -> gold
      step 2 reclassify -> gold+
      crashed: no limit for 'gold+'
    claim-9/fix goes on after step 1, with the class 'gold'
    claim-9/fix: completed after step 3; pay.out was blocked
    they differ at $.class, $.limit; both come from step 1
    same evidence: True, claim-9 is inconclusive: see claim-9/fix
"""

import asyncio
import contextlib
import tempfile
from typing import Any

import satay
from satay.errors import TaskBlockedError

LIMITS = {"silver": 100, "gold": 1_000}


@satay.task(name="pay.out", effect="external")
async def pay_out(claim: str, euros: int) -> str:
    return f"paid {euros} for {claim}"


async def settle(session: satay.Session, state: dict[str, Any]) -> None:
    """What follows the classification; a model that is allowed to reclassify goes too far."""
    if session.intervention != {"reclassify": False}:
        state["class"] += "+"
        await session.step("reclassify", output=state["class"])
    if state["class"] not in LIMITS:
        raise ValueError(f"no limit for {state['class']!r}")
    state["limit"] = LIMITS[state["class"]]
    await session.step("limit", output=state["limit"])
    try:
        await pay_out("claim 9", state["limit"])
    except TaskBlockedError as error:
        session.complete(f"{error.task} was blocked")
    await session.step("pay")


async def production(data_dir: str) -> None:
    state = {"class": "gold", "limit": None}
    async with satay.run_app(data_dir=data_dir), satay.Session("claim-9", state_fn=lambda: state) as session:
        await session.step("classify", output=state["class"])
        await settle(session, state)


async def review(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir) as app:
        trail = await satay.decision_trail("claim-9")
        for item in trail.items:
            if item.kind == "step":
                print(f"  step {item.step} {item.name} -> {item.value['output']}")
            elif item.kind == "crashed":
                print(f"  crashed: {item.value['message']}")
        evidence = await satay.verify("claim-9")

        state: dict[str, Any] = {}
        async with satay.Session.resume(
            "claim-9",
            fork_at_step=1,
            name="claim-9/fix",
            intervention={"reclassify": False},
            tool_policies={"pay.out": "block"},
            state_fn=lambda: state,
        ) as fork:
            state = fork.inherited_state
            print(f"claim-9/fix goes on after step {fork.last_step}, with the class {state['class']!r}")
            await settle(fork, state)
        print(f"claim-9/fix: {fork.status} after step {fork.last_step}; {(await app.ending('claim-9/fix')).result}")

        found = await satay.diff_states("claim-9", "claim-9/fix")
        assert found.ancestor is not None
        paths = ", ".join(difference.path for difference in found.differences)
        print(f"they differ at {paths}; both come from step {found.ancestor.step}")
        await satay.set_outcome("claim-9", "inconclusive", note="see claim-9/fix")
        reviewed = await satay.outcome("claim-9")
        assert reviewed is not None
        is_same = evidence == await satay.verify("claim-9")
        print(f"same evidence: {is_same}, claim-9 is {reviewed.value}: {reviewed.note}")


async def main(data_dir: str) -> None:
    with contextlib.suppress(ValueError):  # That was last night.
        await production(data_dir)
    await review(data_dir)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        asyncio.run(main(data_dir))
