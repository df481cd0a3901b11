"""Approvals as they are recorded: the request, the decision, and what a journal says of both."""

from datetime import UTC, datetime
from typing import Any

import pytest

from satay.approval_records import (
    Approval,
    decision_id,
    decode_decision,
    encode_decision,
    payload_difference,
    read_requests,
    request_facts,
    verdict_text,
)
from satay.errors import DecodeError, EncodeError
from satay.journal import BLOB_THRESHOLD_BYTES
from satay.model import Entry, EntryType
from satay.recorder import lay_out

AT = datetime(2026, 1, 1, tzinfo=UTC)


def entry(seq: int, type: str, facts: str, text: str | None = None) -> Entry:
    return Entry(seq, type, 0, lay_out(type, facts, text)[0], b"")


def request(seq: int, key: str, text: str, due: int | None = None) -> Entry:
    facts = f'"event":"satay.approval","key":"{key}",{request_facts(key, due)}'
    return entry(seq, EntryType.EVENT_WAIT_STARTED, facts, text)


@pytest.mark.parametrize("value", [None, 35, {"a": [1, {"b": "c"}]}, (1, 2), datetime(2026, 2, 1, tzinfo=UTC), b"x"])
def test_a_decision_reads_back_as_it_was_written(value: Any) -> None:
    decision = Approval("refund", True, "Mia", "fine", value, AT)

    assert decision == decode_decision(encode_decision(decision), "refund")


def test_a_decision_is_true_where_it_was_approved() -> None:
    assert [True, False] == [bool(Approval("k", approved, None, None, None, AT)) for approved in (True, False)]


def test_a_value_that_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(EncodeError, match="the decision about approval 'refund'"):
        encode_decision(Approval("refund", True, None, None, object(), AT))


def test_what_is_no_decision_is_not_read_as_one() -> None:
    with pytest.raises(DecodeError):
        decode_decision('{"approved":"maybe"}', "refund")


def test_the_id_of_the_answer_belongs_to_the_run_and_the_key() -> None:
    assert 4 == len({decision_id(run_id, key) for run_id in ("r", "s") for key in ("a", "b")})


def test_the_same_decision_has_the_same_text_whenever_it_was_made() -> None:
    texts = [encode_decision(Approval("k", True, "Mia", None, 1, AT.replace(day=day))) for day in (1, 2)]

    assert verdict_text(texts[0]) == verdict_text(texts[1]) == '{"approved":true,"by":"Mia","note":null,"value":1}'
    assert ("null", None) == (verdict_text("null"), verdict_text(None))


def test_requests_are_read_with_what_became_of_them() -> None:
    found = read_requests(
        [
            entry(1, EntryType.WORKFLOW_CREATED, ""),
            entry(2, EntryType.EVENT_WAIT_STARTED, '"event":"go","ordinal":0,"match":null,"due":null'),
            request(3, "decided", "1"),
            request(4, "late", "2", due=5),
            request(5, "withdrawn", "3"),
            request(6, "open", "4"),
            entry(7, EntryType.EXTERNAL_EVENT_RECEIVED, '"call":2', "null"),
            entry(8, EntryType.EXTERNAL_EVENT_RECEIVED, '"call":3', "{}"),
            entry(9, EntryType.EVENT_WAIT_TIMED_OUT, '"call":4'),
            entry(10, EntryType.CALL_CANCELLED, '"call":5'),
        ]
    )

    assert ["decided", "late", "withdrawn", "open"] == list(found)
    assert [8, 9, None, None] == [one.answer and one.answer.seq for one in found.values()]
    assert ["open"] == [key for key, one in found.items() if one.is_open]
    assert 5 == found["late"].due


@pytest.mark.parametrize(
    ("recorded", "issued", "path"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}', None),
        ('{"a":1}', '{"a":2}', "$.a"),
        ("1", "true", "$"),
        ("1", "1.0", "$"),
        ("null", "0", "$"),
    ],
)
def test_payloads_are_told_apart_by_what_they_say(recorded: str, issued: str, path: str | None) -> None:
    assert path == payload_difference(request(2, "k", recorded), issued)


def test_a_payload_that_is_kept_apart_is_told_by_its_digest() -> None:
    large = '"' + "x" * BLOB_THRESHOLD_BYTES + '"'

    assert [None, "$"] == [payload_difference(request(2, "k", large), text) for text in (large, large[:-1] + 'y"')]
