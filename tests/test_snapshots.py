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
        self.snapshots: dict[int, Snapshot] = {}
        self.contents: dict[str, Snapshot] = {}
        self.texts: dict[int, str] = {}
        self.latest: StateText | None = None

    def store(self, state: Any) -> Snapshot:
        text, seq = dump_plain(state), len(self.snapshots) + 1
        before = None if self.latest is None else self.latest.snapshot
        kept = store_state(seq, text, before, self.latest, self.contents)
        value = "" if kept.text is None else f',"state":{kept.text}'
        entry = Entry(seq, EntryType.STATE_RECORDED, 0, f"{{{kept.facts}{value}}}", b"")
        snapshot = self.snapshots[seq] = read_snapshot(entry, self.snapshots)
        if kept.text is not None:
            self.texts[seq] = kept.text
            self.contents[snapshot.sha256] = snapshot
        self.latest = StateText(snapshot, text)
        return snapshot

    def text_of(self, seq: int) -> str:
        chain = [self.snapshots[seq]]
        while chain[-1].base is not None:
            chain.append(self.snapshots[chain[-1].base])
        whole, *deltas = (self.texts[one.seq] for one in reversed(chain) if one.kind is not SnapshotKind.SAME)
        return rebuild_state(whole, deltas, self.snapshots[seq].sha256)


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

    assert [dump_plain(state) for state in padded] == [shelf.text_of(seq) for seq in shelf.snapshots]


def test_a_state_that_was_there_before_is_stored_once() -> None:
    shelf = shelf_of([large(n=1), large(n=2), large(n=1)])

    assert [1, 2] == list(shelf.texts)
    assert (SnapshotKind.SAME, 1) == (shelf.snapshots[3].kind, shelf.snapshots[3].base)


def test_the_version_counts_changes_and_not_steps() -> None:
    shelf = shelf_of([1, 1, 2, 1, 1])

    assert [1, 1, 2, 3, 3] == [snapshot.version for snapshot in shelf.snapshots.values()]


def test_a_small_change_at_one_place_is_stored_as_a_difference() -> None:
    shelf = shelf_of([large(n=1), large(n=2)])

    assert SnapshotKind.DELTA is shelf.snapshots[2].kind
    assert len(shelf.texts[2]) < 40


def test_small_changes_at_both_ends_are_stored_as_a_difference() -> None:
    shelf = shelf_of([{"n": 1} | large(m=1), {"n": 2} | large(m=2)])

    assert SnapshotKind.DELTA is shelf.snapshots[2].kind
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

    assert {SnapshotKind.FULL} == {snapshot.kind for snapshot in shelf.snapshots.values()}


def test_a_difference_is_at_most_a_part_of_its_state() -> None:
    shelf = shelf_of([large(n=""), large(n="x" * 20_000)])

    assert SnapshotKind.FULL is shelf.snapshots[2].kind
    assert len(shelf.texts[2]) < DELTA_SHARE * 20_000 * 2


def test_after_many_differences_a_state_is_stored_whole_again() -> None:
    shelf = shelf_of([large(n=number) for number in range(MAX_DELTA_CHAIN + 5)])
    whole = [seq for seq, snapshot in shelf.snapshots.items() if snapshot.kind is SnapshotKind.FULL]

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
        f'{{"step":1,"version":1,"sha256":"{"0" * 64}","kind":"same"}}',
    ],
)
def test_an_entry_that_stores_no_state_that_can_be_read_is_named(payload: str) -> None:
    with pytest.raises(JournalCorruptError, match="entry 4"):
        read_snapshot(Entry(4, EntryType.STATE_RECORDED, 0, payload, b""), {})
