"""What a fork has in store for its calls."""

import json
from typing import Any

from satay.answers import Answers, recorded_identity
from satay.calls import EventCall, TaskCall
from satay.codec import ValueCodec
from satay.journal import GENESIS
from satay.model import CallId, CallKind, Entry, EntryType
from satay.replay import value_text
from tests.mailings import draft


def entry(seq: int, type: EntryType, **members: Any) -> Entry:
    return Entry(seq, type, 0, json.dumps(members, separators=(",", ":")), GENESIS)


def answers(*entries: Entry) -> Answers:
    found = Answers()
    for each in entries:
        found.note(each, value_text)
    return found


def call(seq: int, occurrence: int | str = 0) -> TaskCall:
    issued = TaskCall(draft, occurrence)
    issued.seq = seq
    return issued


def kept(seq: int, call: int, value: Any, **facts: Any) -> Entry:
    return entry(seq, EntryType.OUTCOME_KEPT, call=call, outcome="TaskCompleted", source_seq=9, **facts, value=value)


def overridden(seq: int, value: Any, **index: Any) -> Entry:
    return entry(
        seq,
        EntryType.OUTCOME_OVERRIDDEN,
        task="mailings.draft",
        **index,
        outcome="TaskFailed",
        reason=None,
        value=value,
    )


def test_a_kept_outcome_is_found_by_its_call_and_carries_its_facts() -> None:
    answer = answers(kept(7, 3, "text", usage=[{"cost": 1.0}], event_id="e")).find(call(3))

    assert answer is not None
    arrival = answer.arrival(call(3))
    assert ("TaskCompleted", '"text"') == (arrival.type, arrival.text)
    assert {"call": 3, "kept": 7, "usage": [{"cost": 1.0}], "event_id": "e"} == json.loads(f"{{{arrival.facts}}}")


def test_an_overridden_outcome_is_found_by_name_and_wins_over_a_kept_one() -> None:
    found = answers(kept(7, 3, "kept"), overridden(8, {"type": "x"}, ordinal=0), overridden(9, {"type": "y"}, key="k"))
    ordinal, key = found.find(call(3)), found.find(call(4, "k"))

    assert ordinal is not None
    assert key is not None
    assert ("TaskFailed", ',"override":8', '{"type":"x"}') == (ordinal.type, ordinal.facts, ordinal.text)
    assert 9 == key.seq


def test_other_calls_have_nothing_in_store() -> None:
    found = answers(kept(7, 3, "kept"), overridden(8, {}, ordinal=2))
    event = EventCall("mailings.draft", 2, None, ValueCodec())
    event.seq = 5

    assert found.find(call(4)) is None
    assert found.find(event) is None
    assert found.input_text(3) is None


def test_the_last_answer_holds() -> None:
    answer = answers(kept(7, 3, "old"), kept(12, 3, "new")).find(call(3))

    assert answer is not None
    assert (12, '"new"') == (answer.seq, answer.text)


def test_a_call_that_is_made_anew_forgets_what_was_in_store_for_it() -> None:
    found = answers(
        kept(7, 3, "kept"),
        overridden(8, {}, ordinal=0),
        entry(9, EntryType.CALL_REISSUED, call=3, input={"text": "old"}),
        kept(10, 4, "another"),
    )
    assert '{"text":"old"}' == found.input_text(3)
    found.forget(3, call(3).identity)

    assert found.find(call(3)) is None
    assert found.input_text(3) is None
    assert found.find(call(4, 1)) is not None


def test_an_override_names_its_call_by_kind_name_and_occurrence() -> None:
    assert CallId(CallKind.EVENT, "e", 2) == recorded_identity({"event": "e", "ordinal": 2})
    assert CallId(CallKind.CHILD, "c", "2") == recorded_identity({"child": "c", "key": "2"})
