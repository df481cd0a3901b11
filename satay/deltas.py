"""What turns one text into another, as the places where they part: short where little has changed.

A delta is a list of splices `[start, count, inserted]`, in order: at `start`, in the first text, `count` characters
give way to others. Texts are compared and not what they say, so applying a delta gives the very text back.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from satay.errors import DecodeError
from satay.texts import json_quote

MAX_SPLICES: Final = 64
"""At most so many splices make up a delta; the last one takes in all that is left."""

PROBE_CHARACTERS: Final = 24
"""So much of both texts has to be equal for them to meet again."""

NEAREST_PROBE: Final = 8
"""How far behind a place where the texts part they are looked for to meet again, at first."""

PROBE_FACTOR: Final = 4
"""How much further behind it they are looked for, each time that they do not meet."""

LONG_ENOUGH: Final = 256
"""Where both texts are equal for so many characters, no other place to meet again is looked for."""

FIRST_STRIDE: Final = 64
"""How many characters are compared at first, to see how far two texts are equal."""

STRIDE_FACTOR: Final = 4
"""How much longer each stride reaches than the one before."""

Splice: TypeAlias = tuple[int, int, str]


def make_delta(old: str, new: str) -> list[Splice]:
    """The splices that lead from one text to another."""
    tail = _common_tail(old, new)
    old, new = old[: len(old) - tail], new[: len(new) - tail]
    splices: list[Splice] = []
    here = there = _common(old, 0, new, 0)
    while here < len(old) or there < len(new):
        met = _meet_again(old, here, new, there) if len(splices) < MAX_SPLICES - 1 else None
        if met is None:
            return [*splices, (here, len(old) - here, new[there:])]
        splices.append((here, met[0] - here, new[there : met[1]]))
        here, there = met
        equal = _common(old, here, new, there)
        here, there = here + equal, there + equal
    return splices


def dump_delta(delta: Sequence[Splice]) -> str:
    """A delta as JSON text."""
    return f"[{','.join([f'[{start},{count},{json_quote(inserted)}]' for start, count, inserted in delta])}]"


def apply_delta(text: str, delta: Any) -> str:
    """The text that a delta leads to. Raises `DecodeError` for what is no delta, or one that does not fit the text."""
    parts, done = [], 0
    for splice in delta if isinstance(delta, list) else (None,):
        match splice:
            case [int(start), int(count), str(inserted)] if done <= start <= start + count <= len(text):
                parts += [text[done:start], inserted]
                done = start + count
            case _:
                raise DecodeError(f"a recorded difference does not fit the text it is a difference to: {splice!r:.200}")
    return "".join([*parts, text[done:]])


def _common(old: str, here: int, new: str, there: int) -> int:
    """How many characters are equal from two places on, found by strides that grow and then by halving."""
    most = min(len(old) - here, len(new) - there)
    low, high = 0, FIRST_STRIDE
    while low < most and old[here + low : here + high] == new[there + low : there + high]:
        low, high = high, STRIDE_FACTOR * high
    low, high = min(low, most), min(high, most)
    while low < high:
        middle = (low + high + 1) // 2
        if old[here + low : here + middle] == new[there + low : there + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_tail(old: str, new: str) -> int:
    """How many characters are equal at the end, found likewise."""
    end, other_end = len(old), len(new)
    most = min(end, other_end)
    low, high = 0, min(FIRST_STRIDE, most)
    while low < high and old[end - high : end - low] == new[other_end - high : other_end - low]:
        low, high = high, min(STRIDE_FACTOR * high, most)
    while low < high:
        middle = (low + high + 1) // 2
        if old[end - middle : end - low] == new[other_end - middle : other_end - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _meet_again(old: str, here: int, new: str, there: int) -> tuple[int, int] | None:
    """Places, behind two at which the texts part, from which on they are equal for long, or for longest."""
    if max(len(old) - here, len(new) - there) < PROBE_CHARACTERS:
        return None
    meetings: list[tuple[int, int]] = []
    for find in _MEETINGS:
        met = find(old, here, new, there)
        if met is None:
            continue
        if _are_equal_for_long(old, met[0], new, met[1]):
            return met
        meetings.append(met)
    return max(meetings, key=lambda place: _common(old, place[0], new, place[1]), default=None)


def _are_equal_for_long(old: str, here: int, new: str, there: int) -> bool:
    """Whether the texts are equal so far that nothing better is looked for."""
    ahead = new[there : there + LONG_ENOUGH]
    return len(ahead) == LONG_ENOUGH and old.startswith(ahead, here)


def _meet_without(old: str, here: int, new: str, there: int) -> tuple[int, int] | None:
    """The nearest place where the first text goes on as the second does, after something was taken out."""
    found = _find(old, here, new, there)
    return None if found < 0 else (found, there)


def _meet_with(old: str, here: int, new: str, there: int) -> tuple[int, int] | None:
    """The nearest place where the second text goes on as the first does, after something was put in."""
    found = _find(new, there, old, here)
    return None if found < 0 else (here, found)


def _meet_behind(old: str, here: int, new: str, there: int) -> tuple[int, int] | None:
    """The nearest places where the texts are equal for a while, after something gave way to something else."""
    skipped = NEAREST_PROBE
    while there + skipped + PROBE_CHARACTERS <= len(new):
        found = there + skipped
        met = _find(old, here, new, found)
        if met >= 0:
            back = _common_tail(old[here:met], new[there:found])
            return met - back, found - back
        skipped *= PROBE_FACTOR
    return None


_MEETINGS: Final = (_meet_behind, _meet_without, _meet_with)


def _find(text: str, start: int, other: str, place: int) -> int:
    """Where in a text, from `start` on, there is what another text has at a place; -1 where there is none of it."""
    probe = other[place : place + PROBE_CHARACTERS]
    return text.find(probe, start) if len(probe) == PROBE_CHARACTERS else -1
