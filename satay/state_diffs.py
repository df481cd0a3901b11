"""How two states of sessions differ, and how each came from the state that both have in common.

States are compared as plain JSON data in the tagged format of the codec, never as a user's types.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from satay.differences import Difference, DifferenceKind, find_differences
from satay.model import MISSING
from satay.phrases import show_count, show_differences, show_id, wrapped
from satay.tables import printable, shorten, show_value
from satay.texts import to_plain

MAX_LISTED_CHANGES: Final = 10
"""How many differences of each sort the text of a state diff lists."""

SHOWN_DIGITS: Final = 12
"""So many digits of a state's fingerprint are shown."""


class RecordedState(NamedTuple):
    """A state as a session recorded it: its step and that step's name, its version, fingerprint and text."""

    run_id: str
    step: int
    name: str
    version: int
    sha256: str
    text: str


class SharedStep(NamedTuple):
    """Where two sessions come from: the session that recorded the last step that both have, and the state there.

    `step` is 0 where they have no step in common. `state` is that of the step, or the latest before it; None where
    there is none.
    """

    run_id: str
    step: int
    name: str
    state: RecordedState | None


class Departure(NamedTuple):
    """The first step after the common ancestor whose state is another one, and its name."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class CommonAncestor:
    """The last step that two sessions have in common, in the session that recorded it.

    `step` is 0, and `name` empty, where they share their beginning and no step. `state` is that after the step, as
    plain JSON data; where none was recorded with it, the latest before it, which belongs to `state_step`. It is
    `MISSING` where there is none, and `state_step`, `version` and `sha256` are None then.
    """

    run_id: str
    step: int
    name: str
    state_step: int | None
    version: int | None
    sha256: str | None
    state: Any = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data; a state that there is not is left out."""
        data = {name: getattr(self, name) for name in ("run_id", "step", "name", "state_step", "version", "sha256")}
        return data if self.state is MISSING else data | {"state": self.state}


@dataclass(frozen=True, slots=True)
class StateSide:
    """One of the two states: its session and step, and how it came from the common ancestor's state.

    `state` is plain JSON data. `left_at` is the first step after the ancestor whose state is another than the
    ancestor's, and `left_by` that step's name; None where the state is still the same, or there is no ancestor.
    `changes` lead from the ancestor's state to this one; `is_truncated` says that there are more of them.
    """

    run_id: str
    step: int
    name: str
    version: int
    sha256: str
    state: Any = field(repr=False)
    left_at: int | None
    left_by: str | None
    changes: tuple[Difference, ...]
    is_truncated: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, with the state."""
        plain = ("run_id", "step", "name", "version", "sha256", "state", "left_at", "left_by", "is_truncated")
        data = {name: getattr(self, name) for name in plain}
        return data | {"changes": [change.to_dict() for change in self.changes]}


@dataclass(frozen=True, slots=True)
class ListEdit:
    """Items that are side by side and were put into a list (`added`), or taken out of it (`removed`).

    `index` is that of the first, in the state that has them; `path` is the list's.
    """

    path: str
    kind: DifferenceKind
    index: int
    items: tuple[Any, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {"path": self.path, "kind": self.kind.value, "index": self.index, "items": list(self.items)}


@dataclass(frozen=True, slots=True)
class StateDiff:
    """Two states of sessions compared. `str()` of it is a report.

    `differences` lead from `one` to `other`; `is_truncated` says that there are more than are listed. `ancestor` is
    where both sessions come from, which may be one of the two; None for sessions that have nothing to do with each
    other.
    """

    one: StateSide
    other: StateSide
    ancestor: CommonAncestor | None
    differences: tuple[Difference, ...]
    is_truncated: bool

    @property
    def is_same(self) -> bool:
        """Whether the states are equal."""
        return not self.differences

    @property
    def added(self) -> tuple[Difference, ...]:
        """What only the other state has."""
        return self._of_kind(DifferenceKind.ADDED)

    @property
    def removed(self) -> tuple[Difference, ...]:
        """What only the one state has."""
        return self._of_kind(DifferenceKind.REMOVED)

    @property
    def changed(self) -> tuple[Difference, ...]:
        """Values that are others, of the same type."""
        return self._of_kind(DifferenceKind.CHANGED)

    @property
    def type_changed(self) -> tuple[Difference, ...]:
        """Values that are of another type."""
        return self._of_kind(DifferenceKind.TYPE_CHANGED)

    @property
    def list_edits(self) -> tuple[ListEdit, ...]:
        """Items that were put into lists or taken out of them; they are among `added` and `removed` too."""
        return tuple(_list_edits(self.differences))

    def _of_kind(self, kind: DifferenceKind) -> tuple[Difference, ...]:
        return tuple(difference for difference in self.differences if difference.kind is kind)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "one": self.one.to_dict(),
            "other": self.other.to_dict(),
            "ancestor": None if self.ancestor is None else self.ancestor.to_dict(),
            "is_same": self.is_same,
            "differences": [difference.to_dict() for difference in self.differences],
            "list_edits": [edit.to_dict() for edit in self.list_edits],
            "is_truncated": self.is_truncated,
        }

    def __str__(self) -> str:
        return "\n\n".join(block for block in _blocks(self) if block)


def compare_states(
    one: RecordedState,
    other: RecordedState,
    shared: SharedStep | None,
    departures: tuple[Departure | None, Departure | None],
) -> StateDiff:
    """Compare two states. `departures` say where each side left the state that both come from."""
    plain, other_plain = to_plain(one.text), to_plain(other.text)
    base = MISSING if shared is None or shared.state is None else to_plain(shared.state.text)
    differences, is_truncated = find_differences(plain, other_plain)
    return StateDiff(
        one=_side(one, plain, base, departures[0]),
        other=_side(other, other_plain, base, departures[1]),
        ancestor=None if shared is None else _ancestor(shared, base),
        differences=differences,
        is_truncated=is_truncated,
    )


def _side(recorded: RecordedState, plain: Any, base: Any, departure: Departure | None) -> StateSide:
    changes, is_truncated = ((), False) if base is MISSING else find_differences(base, plain)
    return StateSide(
        run_id=recorded.run_id,
        step=recorded.step,
        name=recorded.name,
        version=recorded.version,
        sha256=recorded.sha256,
        state=plain,
        left_at=None if departure is None else departure.step,
        left_by=None if departure is None else departure.name,
        changes=changes,
        is_truncated=is_truncated,
    )


def _ancestor(shared: SharedStep, base: Any) -> CommonAncestor:
    state = shared.state
    return CommonAncestor(
        run_id=shared.run_id,
        step=shared.step,
        name=shared.name,
        state_step=None if state is None else state.step,
        version=None if state is None else state.version,
        sha256=None if state is None else state.sha256,
        state=base,
    )


def _list_edits(differences: Sequence[Difference]) -> Iterator[ListEdit]:
    """Differences that are items, those side by side together."""
    open_edit: ListEdit | None = None
    for difference in differences:
        index = difference.index
        if index is None:
            continue
        path = difference.path.removesuffix(f"[{index}]")
        item = difference.other if difference.kind is DifferenceKind.ADDED else difference.one
        if open_edit is not None:
            following = (open_edit.path, open_edit.kind, open_edit.index + len(open_edit.items))
            if (path, difference.kind, index) == following:
                open_edit = ListEdit(path, difference.kind, open_edit.index, (*open_edit.items, item))
                continue
            yield open_edit
        open_edit = ListEdit(path, difference.kind, index, (item,))
    if open_edit is not None:
        yield open_edit


# --- the report -------------------------------------------------------------------------------------------------------


def _blocks(diff: StateDiff) -> Iterator[str]:
    yield "\n".join([f"one    {_heading(diff.one)}", f"other  {_heading(diff.other)}", *_ancestor_lines(diff.ancestor)])
    if diff.is_same:
        yield "The states are the same."
    else:
        title = f"{show_count(len(diff.differences), 'difference')}{' and more' if diff.is_truncated else ''}"
        yield show_differences(title, diff.differences, diff.is_truncated, MAX_LISTED_CHANGES)
    if diff.ancestor is None or diff.ancestor.state is MISSING:
        return
    for side in (diff.one, diff.other):
        yield _departure(side, diff.ancestor)


def _heading(side: StateSide) -> str:
    return f"{show_id(side.run_id)} at {_step(side.step, side.name)}: version {side.version}, {_digits(side.sha256)}"


def _step(step: int, name: str) -> str:
    return f"step {step}" + (f" ({printable(shorten(name, 30))})" if name else "")


def _digits(sha256: str) -> str:
    return sha256[:SHOWN_DIGITS]


def _ancestor_lines(ancestor: CommonAncestor | None) -> Iterator[str]:
    if ancestor is None:
        yield "from   nothing in common: the sessions are not of one lineage"
        return
    what = f"{show_id(ancestor.run_id)} at {_step(ancestor.step, ancestor.name)}"
    if ancestor.step == 0:
        what = f"{show_id(ancestor.run_id)}, before its first step"
    if ancestor.sha256 is None:
        yield f"from   {what}, where no state was recorded"
    else:
        late = "" if ancestor.state_step == ancestor.step else f", that of step {ancestor.state_step}"
        yield f"from   {what}: version {ancestor.version}, {_digits(ancestor.sha256)}{late}"
        yield f"       {show_value(ancestor.state, 80)}"


def _departure(side: StateSide, ancestor: CommonAncestor) -> str:
    name = show_id(side.run_id)
    if side.left_at is None:
        return wrapped(f"{name} still has the state of {_step(ancestor.step, ancestor.name)} at step {side.step}.")
    title = f"{name} left it at {_step(side.left_at, side.left_by or '')}"
    if not side.changes:
        return f"{title}, and has come back to it at step {side.step}."
    return show_differences(title, side.changes, side.is_truncated, MAX_LISTED_CHANGES)
