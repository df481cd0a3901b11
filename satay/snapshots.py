"""The states of a session as they are stored: whole, as a difference to the one before, or as one that was there.

Every content is stored once. A difference of texts is stored where it is much shorter than the state; after so many
differences in a row a state is stored whole again.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from satay.deltas import apply_delta, dump_delta, make_delta
from satay.errors import DecodeError, JournalCorruptError
from satay.model import VALUE_FIELD, Entry, EntryType
from satay.replay import of_run
from satay.texts import to_plain

MIN_DELTA_CHARACTERS: Final = 512
"""A state whose text is shorter than this is stored whole."""

DELTA_SHARE: Final = 4
"""A difference is stored where its text is at most one part in so many of the state's."""

MAX_DELTA_CHAIN: Final = 200
"""So many differences follow each other at most before a state is stored whole."""


_FACTS: Final = re.compile(
    r'\{"step":(?P<step>\d+),"version":(?P<version>\d+),"sha256":"(?P<sha256>[0-9a-f]{64})",'
    r'"kind":"(?P<kind>full|delta|same)"(?:,"base":(?P<base>\d+))?[,}]',
    re.ASCII,
)


class SnapshotKind(StrEnum):
    """How a state is stored."""

    FULL = "full"
    DELTA = "delta"
    SAME = "same"


_KINDS: Final = {kind.value: kind for kind in SnapshotKind}
_FULL: Final = SnapshotKind.FULL.value
_SAME: Final = SnapshotKind.SAME.value
_VALUE_MARK: Final = f',"{VALUE_FIELD[EntryType.STATE_RECORDED]}":'


class Snapshot(NamedTuple):
    """A state that a journal holds.

    `seq` is its entry, `step` the step after which it held. `version` counts how often the state has changed, `sha256`
    is that of its whole text, in hexadecimal. `base` is the entry that a difference is a difference to, or that holds
    the same state.
    """

    seq: int
    step: int
    version: int
    sha256: str
    kind: SnapshotKind
    base: int | None

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


def read_snapshot(seq: int, payload: str) -> Snapshot:
    """The snapshot that an entry stores. Raises `JournalCorruptError` where it does not say how, or on what it builds.

    The payload may end before the state.
    """
    match = _FACTS.match(payload)
    if match is None:
        raise _damaged(seq, "does not say how it stores a state")
    step, version, sha256, kind, base = match.groups()
    if kind == _FULL:
        return Snapshot(seq, int(step), int(version), sha256, SnapshotKind.FULL, None)
    if base is None or int(base) >= seq:
        raise _damaged(seq, f"builds on a state at entry {base}, which is not before it")
    return Snapshot(seq, int(step), int(version), sha256, _KINDS[kind], int(base))


def _damaged(seq: int, what: str) -> JournalCorruptError:
    return JournalCorruptError(f"entry {seq} ({EntryType.STATE_RECORDED}) {what}", seq=seq)


class Snapshots:
    """The states that a journal holds, in order. What an entry says of one is read when it is asked for.

    Whatever asks raises `JournalCorruptError` as `read_snapshot` does.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._heads: dict[int, str] = {}
        self._by_content: dict[str, int] = {}
        self._unsorted: list[int] = []
        self._depths: dict[int, int] = {}
        self._latest: Snapshot | None = None
        self._expected: StoredState | None = None

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Snapshot]:
        return map(self.at, self._heads)

    def __contains__(self, seq: int) -> bool:
        """Whether an entry stores a state."""
        return seq in self._heads

    def expect(self, state: "StoredState") -> None:
        """Know how a state is to be stored, so that its entry tells nothing new once it is there."""
        self._expected = state

    def read(self, entry: Entry) -> None:
        """Take in an entry that stores a state. Of its text nothing is kept."""
        seq, payload = entry.seq, entry.payload
        end = payload.find(_VALUE_MARK)
        head = self._heads[seq] = payload if end < 0 else payload[: end + 1]
        self._unsorted.append(seq)
        expected, self._expected = self._expected, None
        self._latest = expected.at(seq) if expected is not None and head[1:-1] == expected.facts else None

    def at(self, seq: int) -> Snapshot:
        """The one that an entry stores."""
        if self._latest is not None and self._latest.seq == seq:
            return self._latest
        head = self._heads.get(seq)
        try:
            if head is None:
                raise JournalCorruptError(f"entry {seq}, on which a state builds, holds none", seq=seq)
            return read_snapshot(seq, head)
        except JournalCorruptError as error:
            raise of_run(error, self._run_id) from None

    @property
    def latest(self) -> Snapshot | None:
        """The last one."""
        if self._latest is None and self._heads:
            self._latest = self.at(next(reversed(self._heads)))
        return self._latest

    def latest_through(self, step: int) -> Snapshot | None:
        """The last one of a step that is not after `step`."""
        seqs = list(self._heads)
        found = bisect_right(seqs, step, key=lambda seq: self.at(seq).step)
        return self.at(seqs[found - 1]) if found else None

    def holding(self, sha256: str) -> Snapshot | None:
        """The one that holds a state of its own with this fingerprint."""
        for seq in self._unsorted:
            kind, content = self._content(seq)
            if kind != _SAME:
                self._by_content.setdefault(content, seq)
        self._unsorted.clear()
        holder = self._by_content.get(sha256)
        return None if holder is None else self.at(holder)

    def _content(self, seq: int) -> tuple[str, str]:
        """How an entry stores a state, and the fingerprint of that; without making a snapshot of each of thousands."""
        match = None if self._latest is not None and self._latest.seq == seq else _FACTS.match(self._heads[seq])
        if match is None:
            snapshot = self.at(seq)
            return snapshot.kind, snapshot.sha256
        return match["kind"], match["sha256"]

    def chain(self, snapshot: Snapshot) -> list[Snapshot]:
        """Those whose texts put a state together: a whole one, and the differences that lead from it to the state."""
        chain = [snapshot]
        while chain[-1].base is not None:
            chain.append(self.at(chain[-1].base))
        return [one for one in reversed(chain) if one.kind is not SnapshotKind.SAME]

    def depth(self, seq: int) -> int:
        """How many differences lead from a whole state to the one at an entry."""
        unknown: list[Snapshot] = []
        while seq not in self._depths:
            unknown.append(self.at(seq))
            base = unknown[-1].base
            if base is None:
                break
            seq = base
        depth = self._depths.get(seq, 0)
        for snapshot in reversed(unknown):
            depth += snapshot.kind is SnapshotKind.DELTA
            self._depths[snapshot.seq] = depth
        return depth


class StoredState(NamedTuple):
    """What an entry is to hold so that it stores a state: facts, and the text of a whole state or a difference.

    The rest is what the facts say, as in a `Snapshot`.
    """

    facts: str
    text: str | None
    step: int
    version: int
    sha256: str
    kind: SnapshotKind
    base: int | None

    def at(self, seq: int) -> Snapshot:
        """The snapshot that an entry which holds this stores."""
        return Snapshot(seq, self.step, self.version, self.sha256, self.kind, self.base)


def store_state(step: int, text: str, before: Snapshots, base: StateText | None) -> StoredState:
    """How a state is stored best, after those `before` it. `base` is one whose text is at hand, for a difference."""
    sha256 = sha256_of(text)
    last = before.latest
    version = 1 if last is None else last.version + (last.sha256 != sha256)
    head = f'"step":{step},"version":{version},"sha256":"{sha256}"'
    same = before.holding(sha256)
    if same is not None:
        facts = f'{head},"kind":"same","base":{same.seq}'
        return StoredState(facts, None, step, version, sha256, SnapshotKind.SAME, same.seq)
    if base is not None and len(text) >= MIN_DELTA_CHARACTERS and before.depth(base.snapshot.seq) < MAX_DELTA_CHAIN:
        delta = dump_delta(make_delta(base.text, text))
        if len(delta) * DELTA_SHARE <= len(text):
            holder = base.snapshot.holder
            facts = f'{head},"kind":"delta","base":{holder}'
            return StoredState(facts, delta, step, version, sha256, SnapshotKind.DELTA, holder)
    return StoredState(f'{head},"kind":"full"', text, step, version, sha256, SnapshotKind.FULL, None)


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
