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

FIRST_STRIDE: Final = 64
"""How many characters are compared at first, to see how far two texts are equal."""

Splice: TypeAlias = tuple[int, int, str]


def make_delta(old: str, new: str) -> list[Splice]:
    """The splices that lead from one text to another."""
    tail = _common_tail(old, new)
    old, new = old[: len(old) - tail], new[: len(new) - tail]
    splices: list[Splice] = []
    here, there = 0, 0
    while True:
        equal = _common(old, here, new, there)
        here, there = here + equal, there + equal
        if here == len(old) and there == len(new):
            return splices
        met = _meet_again(old, here, new, there) if len(splices) < MAX_SPLICES - 1 else None
        if met is None:
            return [*splices, (here, len(old) - here, new[there:])]
        splices.append((here, met[0] - here, new[there : met[1]]))
        here, there = met


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
    equal, stride = 0, FIRST_STRIDE
    while equal < most and old[here + equal : here + equal + stride] == new[there + equal : there + equal + stride]:
        equal += stride
        stride *= 2
    low, high = min(equal, most), min(equal + stride, most)
    while low < high:
        middle = (low + high + 1) // 2
        if old[here + low : here + middle] == new[there + low : there + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_tail(old: str, new: str) -> int:
    """How many characters are equal at the end, found likewise; only where they part is a text turned round."""
    end, other_end, most = len(old), len(new), min(len(old), len(new))
    equal, stride = 0, min(FIRST_STRIDE, most)
    while stride and old[end - stride : end] == new[other_end - stride : other_end]:
        equal, end, other_end = equal + stride, end - stride, other_end - stride
        stride = min(stride * 2, most - equal)
    return equal + _common(old[end - stride : end][::-1], 0, new[other_end - stride : other_end][::-1], 0)


def _meet_again(old: str, here: int, new: str, there: int) -> tuple[int, int] | None:
    """The places, behind two at which the texts part, from which on they are equal for longest."""
    taken_out = _find(old, here, new, there)
    put_in = _find(new, there, old, here)
    places = [(taken_out, there), (here, put_in), _meet_behind(old, here, new, there)]
    meetings = [place for place in places if place is not None and min(place) >= 0]
    if len(meetings) < 2:
        return meetings[0] if meetings else None
    return max(meetings, key=lambda place: _common(old, place[0], new, place[1]))


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


def _find(text: str, start: int, other: str, place: int) -> int:
    """Where in a text, from `start` on, there is what another text has at a place; -1 where there is none of it."""
    probe = other[place : place + PROBE_CHARACTERS]
    return text.find(probe, start) if len(probe) == PROBE_CHARACTERS else -1
