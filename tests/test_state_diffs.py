"""How two states differ, and what the records of it say."""

import json
from typing import Any

from satay.differences import DifferenceKind
from satay.model import MISSING
from satay.state_diffs import Departure, ListEdit, RecordedState, SharedStep, StateDiff, compare_states
from satay.texts import dump_plain


def state(value: Any, run_id: str = "a", step: int = 1, version: int = 1) -> RecordedState:
    return RecordedState(run_id, step, f"s{step}", version, "f" * 64, dump_plain(value))


def diff(one: Any, other: Any, base: Any = MISSING) -> StateDiff:
    """Two states of step 9 of two sessions, which come from step 7 of `a` if there is a `base`."""
    shared = None if base is MISSING else SharedStep("a", 7, "s7", state(base, step=7))
    left = None if base is MISSING else Departure(8, "decide")
    return compare_states(state(one, "a", 9), state(other, "b", 9), shared, (left, left))


def paths(differences: Any) -> list[str]:
    return [difference.path for difference in differences]


def test_what_differs_is_told_by_its_kind() -> None:
    found = diff({"gone": 1, "same": 2, "n": 3, "kind": 4}, {"same": 2, "n": 30, "kind": "4", "new": 5})

    assert ["$.new"] == paths(found.added)
    assert ["$.gone"] == paths(found.removed)
    assert ["$.n"] == paths(found.changed)
    assert ["$.kind"] == paths(found.type_changed)
    assert 4 == len(found.differences)
    assert not found.is_same


def test_items_that_are_side_by_side_are_one_edit_of_their_list() -> None:
    found = diff({"log": ["a", "b", "c", "d"], "x": {"5": 1}}, {"log": ["b", "d", "e", "f"], "x": {}})

    assert (
        ListEdit("$.log", DifferenceKind.REMOVED, 0, ("a",)),
        ListEdit("$.log", DifferenceKind.REMOVED, 2, ("c",)),
        ListEdit("$.log", DifferenceKind.ADDED, 2, ("e", "f")),
    ) == found.list_edits


def test_each_side_tells_what_it_changed_since_both_were_one() -> None:
    found = diff({"model": "a", "n": 9}, {"model": "b", "n": 7}, {"model": "a", "n": 7})

    assert ["$.n"] == paths(found.one.changes)
    assert ["$.model"] == paths(found.other.changes)
    assert (8, "decide") == (found.one.left_at, found.one.left_by)
    assert found.ancestor is not None
    assert {"model": "a", "n": 7} == found.ancestor.state


def test_states_without_an_ancestor_are_compared_all_the_same() -> None:
    found = diff({"n": 1}, {"n": 2})

    assert found.ancestor is None
    assert () == found.one.changes
    assert "nothing in common" in str(found)


def test_the_text_tells_where_both_come_from_and_what_each_made_of_it() -> None:
    text = str(diff({"model": "a", "n": 9}, {"model": "b", "n": 7}, {"model": "a", "n": 7}))

    assert "one    a at step 9 (s9): version 1, ffffffffffff" in text
    assert "from   a at step 7 (s7)" in text
    assert "2 differences\n  ~ $.model: 'a' → 'b'\n  ~ $.n: 9 → 7" in text
    assert "b left it at step 8 (decide)\n  ~ $.model: 'a' → 'b'" in text


def test_the_text_says_where_states_are_the_same() -> None:
    text = str(compare_states(state(1), state(1, "b"), SharedStep("a", 1, "s1", state(1)), (None, None)))

    assert "The states are the same." in text
    assert "b still has the state of step 1 (s1) at step 1." in text


def test_a_state_with_control_characters_is_shown_without_them() -> None:
    text = str(diff({"\x1b[2J": "\x9b"}, {"\x1b[2J": "\x07"}, {"\x1b": 1}))

    assert all(line.isprintable() for line in text.split("\n"))


def test_a_diff_is_plain_data() -> None:
    found = diff({"log": [1], "n": 1}, {"log": [1, 2]}, {"log": []})
    data = json.loads(json.dumps(found.to_dict()))

    assert data == found.to_dict()
    assert {"path": "$.log", "kind": "added", "index": 1, "items": [2]} == data["list_edits"][0]
    assert {"log": []} == data["ancestor"]["state"]
    assert not data["is_same"]


def test_a_diff_of_unrelated_states_is_plain_data() -> None:
    data = json.loads(json.dumps(diff(1, 1).to_dict()))

    assert data["ancestor"] is None
    assert data["is_same"]
