"""The places where two values differ, each with the way that leads there.

Values are plain JSON data in the tagged format of the codec: a tag is compared as what it stands for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from satay.model import MISSING
from satay.texts import TAG, dump_plain

MAX_DIFFERENCES: Final = 100
"""How many differences between two values are listed."""

MAX_ALIGNED_ITEMS: Final = 200
"""Lists that differ in more items than this are compared item by item, by position."""


class DifferenceKind(StrEnum):
    """How a place differs: only the other value has it, only the one has it, or both do."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    TYPE_CHANGED = "type_changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two values differ, such as `$.notes[2].text`. Both sides are plain JSON data, or `MISSING`.

    Tags add no step to a path: `$.when` is a datetime. Indices count in the value that has the item, so items that
    were put into a list or taken out of it are listed with the index they have there. That is `index` too, which is
    None for everything else; it repeats what the path says, so it is not compared.
    """

    path: str
    one: Any
    other: Any
    kind: DifferenceKind
    index: int | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data; a side that is missing is left out."""
        sides = {side: value for side, value in (("one", self.one), ("other", self.other)) if value is not MISSING}
        return {"path": self.path, "kind": self.kind.value, **sides}


def find_differences(one: Any, other: Any, limit: int = MAX_DIFFERENCES) -> tuple[tuple[Difference, ...], bool]:
    """The first `limit` differences between two values, which are plain JSON data or `MISSING`; whether there are more.

    The order of an object's members does not matter; `1`, `1.0` and `true` are different.
    """
    try:
        found = tuple(islice(_walk("$", one, other), limit + 1))
    except RecursionError:  # nested more deeply than can be followed from here
        found = (Difference("$", one, other, DifferenceKind.CHANGED),)
    return found[:limit], len(found) > limit


def _walk(path: str, one: Any, other: Any) -> Iterator[Difference]:
    kind, other_kind = type(one), type(other)
    if kind is not other_kind:
        yield Difference(path, one, other, _kind_of_change(one, other))
    elif kind is dict:
        yield from _walk_objects(path, one, other)
    elif kind is list:
        yield from _walk_lists(path, one, other)
    elif one != other:
        yield Difference(path, one, other, DifferenceKind.CHANGED)


def _kind_of_change(one: Any, other: Any) -> DifferenceKind:
    if one is MISSING:
        return DifferenceKind.ADDED
    if other is MISSING:
        return DifferenceKind.REMOVED
    are_numbers = {type(one), type(other)} == {int, float}
    return DifferenceKind.CHANGED if are_numbers and one != other else DifferenceKind.TYPE_CHANGED


def _walk_objects(path: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    if TAG not in one and TAG not in other:
        yield from _walk_members(path, one, other)
        return
    opened, other_opened = _open_tag(one), _open_tag(other)
    if opened is None and other_opened is None:
        yield from _walk_members(path, one, other)
    elif opened is None or other_opened is None or opened.frame != other_opened.frame:
        yield Difference(path, one, other, DifferenceKind.TYPE_CHANGED)
    elif isinstance(opened.content, _Steps) and isinstance(other_opened.content, _Steps):
        yield from _walk_members(path, opened.content.by_step, other_opened.content.by_step, are_steps=True)
    elif isinstance(opened.content, _Atom):
        if next(_walk_members("", one, other), None) is not None:
            yield Difference(path, one, other, DifferenceKind.CHANGED)
    else:
        yield from _walk(path, opened.content, other_opened.content)


def _walk_members(
    path: str, one: Mapping[str, Any], other: Mapping[str, Any], *, are_steps: bool = False
) -> Iterator[Difference]:
    for name, value in one.items():
        theirs = other.get(name, MISSING)
        if value is not theirs:
            yield from _walk(path + (name if are_steps else _step(name)), value, theirs)
    for name, value in other.items():
        if name not in one:
            yield Difference(path + (name if are_steps else _step(name)), MISSING, value, DifferenceKind.ADDED)


def _walk_lists(path: str, one: list[Any], other: list[Any]) -> Iterator[Difference]:
    """What both have at the beginning and at the end is passed over; what is between is aligned, or paired."""
    shorter = min(len(one), len(other))
    start, tail = 0, 0
    while start < shorter and _is_same(one[start], other[start]):
        start += 1
    while tail < shorter - start and _is_same(one[-1 - tail], other[-1 - tail]):
        tail += 1
    middle, other_middle = one[start : len(one) - tail], other[start : len(other) - tail]
    for left, right, other_left, other_right in _aligned(middle, other_middle):
        paired = left + min(right - left, other_right - other_left) if left == other_left else left
        other_paired = other_left + paired - left
        for index in range(start + left, start + paired):
            yield from _walk(f"{path}[{index}]", one[index], other[index])
        for index in range(start + paired, start + right):
            yield Difference(f"{path}[{index}]", one[index], MISSING, DifferenceKind.REMOVED, index)
        for index in range(start + other_paired, start + other_right):
            yield Difference(f"{path}[{index}]", MISSING, other[index], DifferenceKind.ADDED, index)


_Block = tuple[int, int, int, int]
"""Items of two lists that stand in the place of each other: from where to where in the one, and in the other."""


def _aligned(one: Sequence[Any], other: Sequence[Any]) -> list[_Block]:
    """The blocks between the items that both lists have in common; one block where they have none."""
    whole = [(0, len(one), 0, len(other))]
    if not one or not other or max(len(one), len(other)) > MAX_ALIGNED_ITEMS:
        return whole
    texts, other_texts = [_canonical(item) for item in one], [_canonical(item) for item in other]
    if set(texts).isdisjoint(other_texts):
        return whole
    if texts > other_texts:  # So that it makes no difference which of the two is the one.
        return [(left, right, begin, end) for begin, end, left, right in _blocks(other_texts, texts)]
    return _blocks(texts, other_texts)


def _blocks(one: list[str], other: list[str]) -> list[_Block]:
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return [(left, right, begin, end) for tag, left, right, begin, end in matcher.get_opcodes() if tag != "equal"]


def _canonical(item: Any) -> str:
    """A text that equal items share."""
    return json.dumps(item, sort_keys=True)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two items are equal, in time that does not grow with every list that is nested in them."""
    return bool(one == other) and _canonical(one) == _canonical(other)


def _step(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{name!r}]"


@dataclass(frozen=True, slots=True)
class _Steps:
    """Parts of a value by the step that leads to each, for what is neither an object nor a list in JSON."""

    by_step: dict[str, Any]


class _Atom:
    """A value without parts."""


@dataclass(frozen=True, slots=True)
class _OpenedTag:
    """A tag taken apart. Only tags with the same frame are of one type and compared by content."""

    frame: object
    content: Any


def _open_tag(tag: dict[str, Any]) -> _OpenedTag | None:
    """None for an object that is no tag, though it may look like one."""
    match tag:
        case {"$satay": "value", "value": value}:
            return _OpenedTag("value", value)
        case {"$satay": ("tuple" | "deque") as kind, "items": list(items)}:
            return _OpenedTag((kind, tag.get("maxlen")), items)
        case {"$satay": ("set" | "frozenset") as kind, "items": list(items)}:
            return _OpenedTag(kind, _Steps({_item_step(item): item for item in items}))
        case {"$satay": ("dict" | "OrderedDict" | "Counter" | "defaultdict") as kind, "items": list(pairs)}:
            if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                return None
            return _OpenedTag((kind, tag.get("factory")), _Steps({_key_step(key): value for key, value in pairs}))
        case {"$satay": ("dataclass" | "namedtuple" | "model") as kind, "type": str(type), "fields": dict(parts)}:
            return _OpenedTag((kind, type), {**parts, **_rest_of_model(tag)})
        case {"$satay": str(kind)} if kind in _ATOMS:
            return _OpenedTag((kind, tag.get("type")), _Atom())
        case _:
            return None


_ATOMS: Final = frozenset(
    {"float", "complex", "int", "str", "bytes", "bytearray", "datetime", "date", "time", "timedelta", "Decimal", "UUID"}
    | {"path", "enum", "flag", "pickle"}
)


def _key_step(key: Any) -> str:
    return _step(key) if isinstance(key, str) else _item_step(key)


def _item_step(item: Any) -> str:
    return f"[{item!r}]" if isinstance(item, str) else f"[{dump_plain(item)}]"


def _rest_of_model(tag: dict[str, Any]) -> dict[str, Any]:
    return {f"model_{name}": tag[name] for name in ("set", "extra", "private") if tag.get(name)}
