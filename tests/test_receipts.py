"""Receipts: written once, and the same for ever."""

import json
from typing import Any

import pytest

from satay.boundaries import BoundaryMode, Reproducibility, SessionBoundary
from satay.cuts import RequestedCut
from satay.effects import ToolPolicy
from satay.errors import JournalCorruptError
from satay.receipts import CallInFlight, ForkReceipt, OverriddenCall, StaleCall


def receipt(**changes: Any) -> ForkReceipt:
    given: dict[str, Any] = {
        "run_id": "f",
        "source_id": "s",
        "root_id": "s",
        "requested": RequestedCut(before_task="draft", before_key="k", keep_siblings=True),
        "cut": "only the call draft[k] runs again",
        "resolved_seq": 7,
        "resolved_entry": "TaskCompleted",
        "source_head": 12,
        "prefix_digest": "ab" * 32,
        "calls_inherited": 3,
        "in_flight": (CallInFlight("draft[k]", 3, "rerun"), CallInFlight("draft[l]", 4, "keep")),
        "is_restorable": True,
        "input_overridden": False,
        "intervention": {"model": "candidate", "when": (1, 2)},
        "tool_policies": {"*": ToolPolicy.AUTO, "email.send": ToolPolicy.BLOCK},
        "overrides": (OverriddenCall("fetch:2", "error", "cd" * 32),),
        "reason": "why\nnot",
        "children": "fork",
        "stale_calls": tuple(StaleCall(f"draft:{number}", number, "$.topic") for number in range(5)),
        "stale_count": 5,
        "source_code_version": "v1",
        "code_version": "v2",
        "saved_cost": 0.25,
        "saved_seconds": 61.0,
    }
    return ForkReceipt(**(given | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"intervention": None, "reason": None, "overrides": (), "in_flight": (), "stale_calls": (), "stale_count": 0},
        {"intervention": {1, 2, 3}},
        {"requested": RequestedCut(at="failure")},
        {"requested": RequestedCut(fork_point_seq=3, on_stale="rerun")},
        {"tool_policies": {}},
    ],
)
def test_a_receipt_is_read_back_as_it_was_written(changes: dict[str, Any]) -> None:
    written = receipt(**changes).stored()
    read = ForkReceipt.from_json(written.to_json())

    assert written == read
    assert written.to_json() == read.to_json()
    assert written.receipt_id == read.receipt_id
    assert receipt(**changes).receipt_id == read.receipt_id


def test_a_receipt_keeps_the_text_that_a_later_version_wrote() -> None:
    data = json.loads(receipt().to_json())
    data |= {"later": {"more": 1}}
    data["in_flight"][0]["later"] = 1
    data["requested"]["later"] = 1
    text = json.dumps(data)
    read = ForkReceipt.from_json(text)

    assert text == read.to_json()
    assert receipt().in_flight == read.in_flight
    assert receipt().requested == read.requested


def test_whether_it_was_replayed_is_not_stored() -> None:
    stored = receipt().stored()
    replayed = stored.as_replayed()

    assert replayed.replayed
    assert stored == replayed
    assert stored.to_json() == replayed.to_json()
    assert "replayed" not in stored.to_dict()
    assert "was there already" in str(replayed)


def test_a_receipt_shares_nothing_with_what_the_caller_gave() -> None:
    given = {"model": ["a"]}
    stored = receipt(intervention=given).stored()
    given["model"].append("b")

    assert {"model": ["a"]} == stored.intervention


def test_a_receipt_of_a_session_tells_each_thing_that_is_missing_in_full() -> None:
    reasons = (
        "call fetch:0 was outstanding",
        "today's code version is not known; set SATAY_CODE_VERSION or pass a state_fn",
    )
    boundary = SessionBoundary("s", 1, 1, BoundaryMode.EXACT, 1, 1, "ab" * 32, Reproducibility.STATE, reasons)
    told = str(receipt(boundary=boundary))

    assert all(reason in told for reason in reasons)


def test_a_receipt_tells_its_rule_its_calls_in_flight_and_what_is_stale() -> None:
    told = str(receipt())

    assert "only the call draft[k] runs again; kept through entry 7 (TaskCompleted)" in told
    assert "draft[k]: rerun, draft[l]: keep" in told
    assert "draft:2 at $.topic, and 2 more" in told
    assert "fetch:2 by error" in told
    assert "why\nnot" not in told
    assert ("draft[k]", "draft[l]") == receipt().calls_in_flight


@pytest.mark.parametrize("text", ["", "{", "{}", "null", "[]", '{"requested": 1}'])
def test_what_is_no_receipt_is_told_as_damage(text: str) -> None:
    with pytest.raises(JournalCorruptError, match="the receipt of a fork cannot be read"):
        ForkReceipt.from_json(text)
