"""Plans, as they are told."""

import json
from typing import Any

from satay.effects import ToolPolicy
from satay.plans import MAX_SHOWN_CALLS, ForkPlan, PlannedCall
from satay.receipts import StaleCall


def planned(number: int, action: str, stale: str | None = None) -> PlannedCall:
    return PlannedCall(f"draft:{number}", number + 2, action, 0.5, None if action == "wait" else 2.0, stale)


def plan(*calls: PlannedCall, **changes: Any) -> ForkPlan:
    given: dict[str, Any] = {
        "source_id": "s",
        "cut": "before the call draft:2",
        "resolved_seq": 5,
        "resolved_entry": "TaskCompleted",
        "calls": calls,
        "stale_calls": (),
        "tool_policies": {"*": ToolPolicy.BLOCK},
        "input_overridden": True,
        "divergence": None,
        "saved_cost": 1.0,
        "saved_seconds": 4.0,
        "expected_cost": 0.5,
        "expected_seconds": 2.0,
    }
    return ForkPlan(**(given | changes))


def test_calls_are_told_apart_by_what_becomes_of_them() -> None:
    actions = ("inherit", "keep", "run", "rerun", "ask", "fork", "block", "replay", "wait", "override", "share")
    found = plan(*(planned(number, action) for number, action in enumerate(actions)))

    assert ["inherit", "keep"] == [call.action for call in found.inherited]
    assert ["run", "rerun", "ask", "fork"] == [call.action for call in found.rerun]
    assert ["block"] == [call.action for call in found.blocked]
    assert ["wait", "share"] == [call.action for call in found.of("share", "wait")]


def test_a_plan_is_told_as_a_table_with_what_it_saves() -> None:
    stale = StaleCall("draft:0", 2, "$.topic")
    told = str(plan(planned(0, "inherit", "$.topic"), planned(1, "block"), stale_calls=(stale,)))

    assert "A fork of s before the call draft:2: keeps entries 1 to 5 (TaskCompleted), with another input" in told
    assert "Tool policies: *: block" in told
    assert "inherit (stale)" in told
    assert "1 of 2 calls reused, 0 run again, 1 blocked, 1 stale." in told
    assert "Stale: draft:0 was called with other arguments, first at $.topic." in told


def test_a_plan_that_would_stop_says_so() -> None:
    assert "It would stop: durable call 0 diverged" in str(plan(divergence="durable call 0 diverged"))


def test_a_long_plan_shows_the_calls_around_the_cut() -> None:
    calls = [planned(number, "inherit" if number < 500 else "run") for number in range(1000)]
    told = str(plan(*calls))

    assert MAX_SHOWN_CALLS + 12 > len(told.splitlines())
    assert "draft:499" in told
    assert "draft:500" in told
    assert "490 inherited before these" in told
    assert "and 470 more" in told


def test_a_plan_is_plain_data() -> None:
    found = plan(planned(0, "inherit", "$.topic"), stale_calls=(StaleCall("draft:0", 2, "$.topic"),))
    data = json.loads(json.dumps(found.to_dict()))

    assert "draft:0" == data["calls"][0]["call"]
    assert "$.topic" == data["stale_calls"][0]["path"]
    assert {"*": "block"} == data["tool_policies"]
    assert 5 == data["resolved_seq"]
