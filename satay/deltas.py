"""What turns one value into another, as plain JSON data: short where little has changed.

A delta is one of: `{"replace": value}`; `{"members": {name: delta}, "removed": [name]}` for an object;
`{"items": {index: delta}}` for a list of the same length; `{"splice": [start, count, inserted]}` for a list or a text
in which `count` items or characters from `start` on gave way to others. What is found so by looking at the JSON text
of both values is `{"text": [start, count, inserted]}`.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from satay.errors import DecodeError

Items = TypeVar("Items", list[Any], str)

MIN_SPLICED_CHARACTERS: Final = 64
"""A text shorter than this is replaced rather than spliced."""


def make_delta(old: Any, new: Any) -> dict[str, Any]:
    """A delta from `old` to `new`, which are plain JSON data.

    Values that Python calls equal count as unchanged, `1` and `true` and the order of members among them; so whoever
    needs the text to be the same compares it once the delta is applied.
    """
    if type(old) is not type(new):
        return {"replace": new}
    match new:
        case dict():
            return _object_delta(old, new)
        case list():
            return _list_delta(old, new)
        case str() if len(old) >= MIN_SPLICED_CHARACTERS and len(new) >= MIN_SPLICED_CHARACTERS:
            return _splice(old, new)
        case _:
            return {"replace": new}


def apply_delta(value: Any, delta: Any) -> Any:
    """The value that a delta leads to. Objects and lists of `value` are changed in place.

    Raises `DecodeError` for what is no delta, or one that does not fit the value.
    """
    try:
        return _apply(value, delta)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DecodeError(
            f"a recorded difference does not fit the state that it is a difference to: {error!r}"
        ) from None


def make_text_delta(old: str, new: str) -> dict[str, Any]:
    """A delta from one JSON text to another, found without reading them: short where they differ in one place."""
    start, count, inserted = _find_splice(old, new)
    return {"text": [start, count, inserted]}


def is_text_delta(delta: Any) -> bool:
    """Whether a delta is one of `make_text_delta`."""
    return isinstance(delta, dict) and "text" in delta


def apply_text_delta(text: str, delta: Any) -> str:
    """The JSON text that a delta of `make_text_delta` leads to. Raises `DecodeError` for what is none."""
    match delta:
        case {"text": [int(start), int(count), str(inserted)]} if 0 <= start <= start + count <= len(text):
            return text[:start] + inserted + text[start + count :]
        case _:
            raise DecodeError(f"a recorded difference does not fit the text that it is a difference to: {delta!r:.200}")


def _object_delta(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    members = {
        name: make_delta(old[name], value) if name in old else {"replace": value}
        for name, value in new.items()
        if name not in old or old[name] != value
    }
    removed = [name for name in old if name not in new]
    return {"members": members, **({"removed": removed} if removed else {})}


def _list_delta(old: list[Any], new: list[Any]) -> dict[str, Any]:
    if len(old) != len(new):
        return _splice(old, new)
    changed = (index for index, (one, other) in enumerate(zip(old, new, strict=True)) if one != other)
    return {"items": {str(index): make_delta(old[index], new[index]) for index in changed}}


def _splice(old: Items, new: Items) -> dict[str, Any]:
    return {"splice": list(_find_splice(old, new))}


def _find_splice(old: Items, new: Items) -> tuple[int, int, Items]:
    """Where and how much gave way to what: what both have at the beginning, and then at the end, stays."""
    shorter = min(len(old), len(new))
    start = _common(old, new, shorter)
    tail = _common(old[::-1], new[::-1], shorter - start)
    return start, len(old) - tail - start, new[start : len(new) - tail]


def _common(one: Sequence[Any], other: Sequence[Any], most: int) -> int:
    """How many items at the beginning are equal, found by halving: comparing slices is quick."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _apply(value: Any, delta: Any) -> Any:
    match delta:
        case {"replace": new}:
            return new
        case {"members": dict(members)}:
            for name in delta.get("removed", ()):
                del value[name]
            for name, inner in members.items():
                value[name] = _apply(value.get(name), inner)
            return value
        case {"items": dict(items)}:
            for index, inner in items.items():
                value[int(index)] = _apply(value[int(index)], inner)
            return value
        case {"splice": [int(start), int(count), str(inserted)]}:
            return value[:start] + inserted + value[start + count :]
        case {"splice": [int(start), int(count), list(inserted)]}:
            value[start : start + count] = inserted
            return value
        case _:
            raise ValueError(f"{delta!r} is no difference")
