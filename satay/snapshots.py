"""The states of a session as they are stored: whole, as a difference to the one before, or as one that was there.

Every content is stored once. A difference is stored where it is much shorter than the state, and only if applying it
gives the very text back; after so many differences in a row a state is stored whole again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.deltas import apply_delta, make_delta
from satay.errors import JournalCorruptError
from satay.model import Entry
from satay.replay import read_head
from satay.texts import dump_plain, to_plain

MIN_DELTA_CHARACTERS: Final = 4096
"""A state whose text is shorter than this is stored whole."""

DELTA_SHARE: Final = 4
"""A difference is stored where its text is at most one part in so many of the state's."""

MAX_DELTA_CHAIN: Final = 200
"""So many differences follow each other at most before a state is stored whole."""


class SnapshotKind(StrEnum):
    """How a state is stored."""

    FULL = "full"
    DELTA = "delta"
    SAME = "same"


class Snapshot(NamedTuple):
    """A state that a journal holds.

    `seq` is its entry, `step` the step after which it held. `version` counts how often the state has changed, `sha256`
    is that of its whole text, in hexadecimal. `base` is the entry that a difference is a difference to, or that holds
    the same state; `chain` how many differences lead from a whole state to it.
    """

    seq: int
    step: int
    version: int
    sha256: str
    kind: SnapshotKind
    base: int | None
    chain: int

    @property
    def holder(self) -> int:
        """The entry that holds the state: this one, or the one that holds the same."""
        return self.base if self.kind is SnapshotKind.SAME and self.base is not None else self.seq


class StateText(NamedTuple):
    """A state in memory: the snapshot that stores it, its text and the same as plain data."""

    snapshot: Snapshot
    text: str
    plain: Any


def sha256_of(text: str) -> str:
    """The fingerprint of a state."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_snapshot(entry: Entry, before: Mapping[int, Snapshot]) -> Snapshot:
    """The snapshot that an entry stores. `before` are those before it, by their entry."""
    told = read_head(entry)
    kind, base = SnapshotKind(told["kind"]), told.get("base")
    chain = 0
    if kind is not SnapshotKind.FULL:
        beneath = before.get(base if isinstance(base, int) else -1)
        if beneath is None:
            raise JournalCorruptError(
                f"entry {entry.seq} ({entry.type}) builds on a state at entry {base!r}, which is not there",
                seq=entry.seq,
            )
        chain = beneath.chain + (1 if kind is SnapshotKind.DELTA else 0)
    return Snapshot(entry.seq, told["step"], told["version"], told["sha256"], kind, base, chain)


class StoredState(NamedTuple):
    """What an entry is to hold so that it stores a state: facts, and the text of a whole state or a difference.

    `plain` is the state as plain data, where that was read.
    """

    facts: str
    text: str | None
    plain: Any


def store_state(step: int, text: str, latest: StateText | None, known: Mapping[str, Snapshot]) -> StoredState:
    """How a state is stored best. `known` are the snapshots that hold a state of their own, by its fingerprint."""
    sha256 = sha256_of(text)
    version = 1 if latest is None else latest.snapshot.version + (latest.snapshot.sha256 != sha256)
    head = f'"step":{step},"version":{version},"sha256":"{sha256}"'
    same = known.get(sha256)
    if same is not None:
        return StoredState(f'{head},"kind":"same","base":{same.seq}', None, None)
    if len(text) < MIN_DELTA_CHARACTERS:
        return StoredState(f'{head},"kind":"full"', text, None)
    plain = to_plain(text)
    delta = None if latest is None or latest.snapshot.chain >= MAX_DELTA_CHAIN else _short_delta(latest, plain, text)
    if latest is None or delta is None:
        return StoredState(f'{head},"kind":"full"', text, plain)
    return StoredState(f'{head},"kind":"delta","base":{latest.snapshot.holder}', delta, plain)


def _short_delta(latest: StateText, plain: Any, text: str) -> str | None:
    before = to_plain(latest.text) if latest.plain is None else latest.plain
    delta = dump_plain(make_delta(before, plain))
    if len(delta) * DELTA_SHARE > len(text):
        return None
    return delta if dump_plain(apply_delta(to_plain(latest.text), to_plain(delta))) == text else None


def rebuild_state(whole: str, deltas: Sequence[str], sha256: str) -> str:
    """The text of a state from a whole one and the differences that follow it. Raises `JournalCorruptError`."""
    text = whole
    if deltas:
        plain = to_plain(whole)
        for delta in deltas:
            plain = apply_delta(plain, to_plain(delta))
        text = dump_plain(plain)
    if sha256_of(text) != sha256:
        raise JournalCorruptError(f"a stored state has another fingerprint than {sha256!r}, which was recorded with it")
    return text
