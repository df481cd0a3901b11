"""States as they are stored: once for each content, and as differences where these are much shorter."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satay.errors import JournalCorruptError
from satay.model import Entry, EntryType
from satay.snapshots import (
    DELTA_SHARE,
    MAX_DELTA_CHAIN,
    MIN_DELTA_CHARACTERS,
    Snapshot,
    SnapshotKind,
    Snapshots,
    StateText,
    read_snapshot,
    rebuild_state,
    sha256_of,
    store_state,
)
from satay.texts import dump_plain
from tests.values import PLAIN


class Shelf:
    """Stores states one after the other, and reads each back from what was stored."""

    def __init__(self) -> None:
        self.stored = Snapshots("s")
        self.texts: dict[int, str] = {}
        self.latest: StateText | None = None

    def store(self, state: Any) -> Snapshot:
        text, seq = dump_plain(state), len(self.stored) + 1
        kept = store_state(seq, text, self.stored, self.latest)
        value = "" if kept.text is None else f',"state":{kept.text}'
        entry = Entry(seq, EntryType.STATE_RECORDED, 0, f"{{{kept.facts}{value}}}", b"")
        self.stored.expect(kept)
        self.stored.read(entry)
        snapshot = self.stored.at(seq)
        assert read_snapshot(seq, entry.payload) == snapshot
        if kept.text is not None:
            self.texts[seq] = kept.text
        self.latest = StateText(snapshot, text)
        return snapshot

    def text_of(self, seq: int) -> str:
        snapshot = self.stored.at(seq)
        whole, *deltas = (self.texts[one.seq] for one in self.stored.chain(snapshot))
        return rebuild_state(whole, deltas, snapshot.sha256)


def shelf_of(states: Sequence[Any]) -> Shelf:
    shelf = Shelf()
    for state in states:
        shelf.store(state)
    return shelf


def large(**members: Any) -> dict[str, Any]:
    return {"notes": [f"note {number}" for number in range(1000)], **members}


@settings(max_examples=50)
@given(st.lists(PLAIN, max_size=12))
def test_every_state_is_read_back_to_the_letter(states: list[Any]) -> None:
    padded = [{"padding": "x" * 600, "state": state, "more": ["y" * 10] * 400} for state in states]
    shelf = shelf_of(padded)

    assert [dump_plain(state) for state in padded] == [shelf.text_of(seq) for seq in range(1, len(states) + 1)]


def test_a_state_that_was_there_before_is_stored_once() -> None:
    shelf = shelf_of([large(n=1), large(n=2), large(n=1)])

    assert [1, 2] == list(shelf.texts)
    assert (SnapshotKind.SAME, 1) == (shelf.stored.at(3).kind, shelf.stored.at(3).base)


def test_an_entry_that_is_not_the_one_expected_is_read_for_what_it_says() -> None:
    shelf = shelf_of([large(n=1), large(n=2)])
    expected = store_state(3, dump_plain(large(n=1)), shelf.stored, shelf.latest)
    shelf.stored.expect(expected)
    assert expected.facts.endswith('"base":1')
    shelf.stored.read(Entry(200, EntryType.STATE_RECORDED, 0, f"{{{expected.facts}0}}", b""))

    assert shelf.stored.latest is not None
    assert 10 == shelf.stored.latest.base


def test_the_version_counts_changes_and_not_steps() -> None:
    shelf = shelf_of([1, 1, 2, 1, 1])

    assert [1, 1, 2, 3, 3] == [snapshot.version for snapshot in shelf.stored]


def test_a_small_change_at_one_place_is_stored_as_a_difference() -> None:
    shelf = shelf_of([large(n=1), large(n=2)])

    assert SnapshotKind.DELTA is shelf.stored.at(2).kind
    assert len(shelf.texts[2]) < 40


def test_small_changes_at_both_ends_are_stored_as_a_difference() -> None:
    shelf = shelf_of([{"n": 1} | large(m=1), {"n": 2} | large(m=2)])

    assert SnapshotKind.DELTA is shelf.stored.at(2).kind
    assert len(shelf.texts[2]) < 80
    assert {"n": 2} | large(m=2) == json.loads(shelf.text_of(2))


def test_a_change_of_kind_that_python_calls_none_is_stored() -> None:
    shelf = shelf_of([{"n": 1} | large(m=0), {"n": True} | large(m=1)])

    assert dump_plain({"n": True} | large(m=1)) == shelf.text_of(2)


def test_another_order_of_members_is_stored() -> None:
    one, other = {"a": LONG, "b": LONG}, {"b": LONG, "a": LONG}
    shelf = shelf_of([one, other])

    assert dump_plain(other) == shelf.text_of(2)


LONG = "x" * 5000


def test_a_small_state_and_one_that_changed_much_are_stored_whole() -> None:
    small = "x" * (MIN_DELTA_CHARACTERS - 10)
    shelf = shelf_of([small, small + "y", [str(number) for number in range(2000)], ["y"] * 2000])

    assert {SnapshotKind.FULL} == {snapshot.kind for snapshot in shelf.stored}


def test_a_difference_is_at_most_a_part_of_its_state() -> None:
    shelf = shelf_of([large(n=""), large(n="x" * 20_000)])

    assert SnapshotKind.FULL is shelf.stored.at(2).kind
    assert len(shelf.texts[2]) < DELTA_SHARE * 20_000 * 2


def test_after_many_differences_a_state_is_stored_whole_again() -> None:
    shelf = shelf_of([large(n=number) for number in range(MAX_DELTA_CHAIN + 5)])
    whole = [snapshot.seq for snapshot in shelf.stored if snapshot.kind is SnapshotKind.FULL]

    assert [1, MAX_DELTA_CHAIN + 2] == whole
    assert large(n=MAX_DELTA_CHAIN + 4) == json.loads(shelf.text_of(MAX_DELTA_CHAIN + 5))


@pytest.mark.parametrize("deltas", [['[[0,1,"x"]]'], ['[[99,1,"x"]]'], ['{"items":{}}']])
def test_a_state_that_cannot_be_put_together_is_said_to_be_damaged(deltas: list[str]) -> None:
    with pytest.raises(JournalCorruptError, match="stored state"):
        rebuild_state("[1]", deltas, sha256_of("[1]"))


@pytest.mark.parametrize(
    "payload",
    [
        "{}",
        '{"step":1,"version":1,"sha256":"00","kind":"full"}',
        f'{{"step":1,"version":1,"sha256":"{"0" * 64}","kind":"delta","base":7,"state":{{}}}}',
        f'{{"step":1,"version":1,"sha256":"{"0" * 64}","kind":"delta","base":4,"state":{{}}}}',
        f'{{"step":1,"version":1,"sha256":"{"0" * 64}","kind":"same"}}',
    ],
)
def test_an_entry_that_stores_no_state_that_can_be_read_is_named(payload: str) -> None:
    stored = Snapshots("s")
    stored.read(Entry(4, EntryType.STATE_RECORDED, 0, payload, b""))

    with pytest.raises(JournalCorruptError, match="run 's' cannot be read: entry 4") as refused:
        _ = stored.latest
    with pytest.raises(JournalCorruptError, match="run 's' cannot be read: entry 4"):
        list(stored)
    assert ("s", 4) == (refused.value.run_id, refused.value.seq)


def test_a_state_builds_on_another_that_is_there() -> None:
    stored = Snapshots("s")
    head = f'{{"step":1,"version":1,"sha256":"{"0" * 64}","kind":"delta","base":3'
    stored.read(Entry(4, EntryType.STATE_RECORDED, 0, f'{head},"state":[]}}', b""))

    for ask in (stored.chain, lambda snapshot: stored.depth(snapshot.seq)):
        with pytest.raises(JournalCorruptError, match="run 's' cannot be read: entry 3, on which a state builds"):
            ask(stored.at(4))


def test_states_are_found_by_step_and_by_content() -> None:
    shelf = Shelf()
    first, second, again = (shelf.store(large(n=number)) for number in (1, 2, 1))

    assert [None, first, second, again, again] == [shelf.stored.latest_through(step) for step in range(5)]
    assert [first, second, None] == [shelf.stored.holding(sha) for sha in (again.sha256, second.sha256, "0" * 64)]
    assert [first, second, again] == list(shelf.stored)
    assert [0, 1, 0] == [shelf.stored.depth(one.seq) for one in shelf.stored]
