"""The states of a session as they are stored: whole, as a difference to the one before, or as one that was there.

Every content is stored once. A difference of texts is stored where it is much shorter than the state; after so many
differences in a row a state is stored whole again.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from satay.deltas import apply_delta, dump_delta, make_delta
from satay.errors import DecodeError, JournalCorruptError
from satay.model import Entry
from satay.texts import to_plain

MIN_DELTA_CHARACTERS: Final = 512
"""A state whose text is shorter than this is stored whole."""

DELTA_SHARE: Final = 4
"""A difference is stored where its text is at most one part in so many of the state's."""

MAX_DELTA_CHAIN: Final = 200
"""So many differences follow each other at most before a state is stored whole."""


_FACTS: Final = re.compile(
    r'\{"step":(\d+),"version":(\d+),"sha256":"([0-9a-f]{64})","kind":"(full|delta|same)"(?:,"base":(\d+))?[,}]',
    re.ASCII,
)


class SnapshotKind(StrEnum):
    """How a state is stored."""

    FULL = "full"
    DELTA = "delta"
    SAME = "same"


_KINDS: Final = {kind.value: kind for kind in SnapshotKind}


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
    """A state in memory: the snapshot that stores it, and its text."""

    snapshot: Snapshot
    text: str


def sha256_of(text: str) -> str:
    """The fingerprint of a state."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_snapshot(entry: Entry, before: Mapping[int, Snapshot]) -> Snapshot:
    """The snapshot that an entry stores. `before` are those before it, by their entry."""
    match = _FACTS.match(entry.payload)
    if match is None:
        raise JournalCorruptError(f"entry {entry.seq} ({entry.type}) does not say how it stores a state", seq=entry.seq)
    step, version, sha256, named, based = match.groups()
    kind, base, chain = _KINDS[named], None if based is None else int(based), 0
    if kind is not SnapshotKind.FULL:
        beneath = None if base is None else before.get(base)
        if beneath is None:
            raise JournalCorruptError(
                f"entry {entry.seq} ({entry.type}) builds on a state at entry {base!r}, which is not there",
                seq=entry.seq,
            )
        chain = beneath.chain + (1 if kind is SnapshotKind.DELTA else 0)
    return Snapshot(entry.seq, int(step), int(version), sha256, kind, base, chain)


class StoredState(NamedTuple):
    """What an entry is to hold so that it stores a state: facts, and the text of a whole state or a difference.

    `sha256` is that of the state.
    """

    sha256: str
    facts: str
    text: str | None


def store_state(
    step: int, text: str, before: Snapshot | None, base: StateText | None, known: Mapping[str, Snapshot]
) -> StoredState:
    """How a state is stored best.

    `before` is the last state of the journal, `base` one whose text is at hand, for a difference to it; `known` are the
    snapshots that hold a state of their own, by its fingerprint.
    """
    sha256 = sha256_of(text)
    version = 1 if before is None else before.version + (before.sha256 != sha256)
    head = f'"step":{step},"version":{version},"sha256":"{sha256}"'
    same = known.get(sha256)
    if same is not None:
        return StoredState(sha256, f'{head},"kind":"same","base":{same.seq}', None)
    if base is not None and base.snapshot.chain < MAX_DELTA_CHAIN and len(text) >= MIN_DELTA_CHARACTERS:
        delta = dump_delta(make_delta(base.text, text))
        if len(delta) * DELTA_SHARE <= len(text):
            return StoredState(sha256, f'{head},"kind":"delta","base":{base.snapshot.holder}', delta)
    return StoredState(sha256, f'{head},"kind":"full"', text)


def rebuild_state(whole: str, deltas: Sequence[str], sha256: str) -> str:
    """The text of a state from a whole one and the differences that follow it. Raises `JournalCorruptError`."""
    text = whole
    try:
        for delta in deltas:
            text = apply_delta(text, to_plain(delta))
    except DecodeError as error:
        raise JournalCorruptError(f"a stored state cannot be put together: {error}") from error
    if sha256_of(text) != sha256:
        raise JournalCorruptError(f"a stored state has another fingerprint than {sha256!r}, which was recorded with it")
    return text
