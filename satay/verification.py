"""Whether the journal of a run is what was written into it: numbers, digests, receipts, and what its row repeats.

- Entries go in page by page and in order; the first one that does not fit comes out. Nothing here reads or raises.
- The chain of digests does not cover entry 1. Of that, what the run's row repeats is checked, and in a fork what it
  has from its source and what its receipt says too. Not found is another input of a run that has none from a source.
- Entries that were taken off the end are found where the run has ended, or is a fork of which the receipt is gone.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Any, Final

from satay.errors import JournalCorruptError
from satay.journal import GENESIS, chain_digest
from satay.model import CREATION_ENTRIES, STATUS_OF_ENDING, TERMINAL_ENTRIES, Entry, EntryType, RunRecord
from satay.replay import blob_reference, facts, value_text
from satay.tables import printable, shorten

_CREATIONS: Final = CREATION_ENTRIES | {EntryType.EXPERIMENT_CREATED}
_TELLING: Final = TERMINAL_ENTRIES | {EntryType.RUN_FORKED}
_TERMS: Final = ("source_id", "source_head", "policies", "intervention")
_IN_RECEIPT: Final = {"policies": "tool_policies"}
SHOWN_DIGITS: Final = 12
"""How many digits of a digest are shown in text."""

SHOWN_CHARACTERS: Final = 200
"""How much of what was expected, and of what was found, is shown in text."""


class PrefixCheck(StrEnum):
    """What the inherited entries of a fork were held against: the source's own, or, where that is gone, nothing."""

    SOURCE = "source"
    SOURCE_GONE = "source_gone"


@dataclass(frozen=True, slots=True)
class Problem:
    """The first entry that does not fit. `seq` is None where it is the run's row that does not.

    `type` is what stands there; None where nothing does. `expected` and `found` are phrases.
    """

    seq: int | None
    type: str | None
    expected: str
    found: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {"seq": self.seq, "type": self.type, "expected": self.expected, "found": self.found}

    def __str__(self) -> str:
        place = (
            "its row" if self.seq is None else f"entry {self.seq}" + ("" if self.type is None else f" ({self.type})")
        )
        expected, found = (shorten(printable(text), SHOWN_CHARACTERS) for text in (self.expected, self.found))
        return f"{place} does not fit: expected {expected}, found {found}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check of a run's journal found. `str()` of it is one paragraph.

    So many `entries` fit, from the first one on. `head_digest` is that of the last entry, in hexadecimal, and stands
    for all but the first; None where one does not fit. `source_id`, `inherited` (the last entry that is the source's),
    `prefix` and `receipt_id` are None for a run that is no fork.
    """

    run_id: str
    entries: int
    head_digest: str | None
    source_id: str | None
    inherited: int | None
    prefix: PrefixCheck | None
    receipt_id: str | None
    problem: Problem | None

    @property
    def is_intact(self) -> bool:
        """Whether everything fits."""
        return self.problem is None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run_id": self.run_id,
            "is_intact": self.is_intact,
            "entries": self.entries,
            "head_digest": self.head_digest,
            "source_id": self.source_id,
            "inherited": self.inherited,
            "prefix": None if self.prefix is None else self.prefix.value,
            "receipt_id": self.receipt_id,
            "problem": None if self.problem is None else self.problem.to_dict(),
        }

    def __str__(self) -> str:
        if self.problem is not None:
            return f"Run {self.run_id!r} is damaged: {self.problem}. {_those_before(self.entries)}"
        sentences = [
            f"Run {self.run_id!r} is intact: {self.entries:,} entries, digest {_short(self.head_digest or '')}."
        ]
        if self.inherited is not None:
            those = "Entry 1 is" if self.inherited == 1 else f"Entries 1 to {self.inherited:,} are"
            held = "as in the source" if self.prefix is PrefixCheck.SOURCE else "as in the receipt; the source is gone"
            sentences.append(f"{those} inherited from {self.source_id!r} and {held}.")
        if self.receipt_id is not None:
            sentences.append(f"The receipt {_short(self.receipt_id)} fits.")
        return " ".join(sentences)


def _those_before(entries: int) -> str:
    match entries:
        case 0:
            return "No entry before it."
        case 1:
            return "Entry 1 fits."
        case _:
            return f"Entries 1 to {entries:,} fit."


def _short(digest: str) -> str:
    return digest[:SHOWN_DIGITS]


def doubt_of_row(record: RunRecord) -> str | None:
    """Why a run's row cannot be used to check its journal, if it cannot."""
    if (record.forked_from is None) != (record.fork_seq is None):
        return f"a fork of {record.forked_from!r} with the cut {record.fork_seq!r}"
    return None if record.fork_seq.__class__ in (int, NoneType) else f"the cut {record.fork_seq!r}"


def unreadable(run_id: str, why: str) -> Verification:
    """What is to be said of a run whose row cannot be read."""
    problem = Problem(None, None, "a row that can be read", why)
    return Verification(run_id, 0, None, None, None, None, None, problem)


class JournalCheck:
    """Checks one journal: give it pages with `read`, the text of each blob it asks for, and call `finish`."""

    def __init__(self, record: RunRecord, *, has_source: bool) -> None:
        self._record = record
        self._has_source = has_source
        self._problem: Problem | None = None
        self._receipt_id: str | None = None
        self._seq = 0
        self._digest = GENESIS
        self._last: Entry | None = None
        self._first: Mapping[str, Any] = {}
        self._inputs: tuple[str | None, str | None] = (None, None)
        self._is_input_kept = False
        self._cuts: dict[int, Entry] = {}

    @property
    def is_settled(self) -> bool:
        """Whether an entry was found that does not fit, so that no later one matters."""
        return self._problem is not None

    def read(self, page: Sequence[Entry], source: Sequence[Entry] = ()) -> list[Entry]:
        """Take the next entries, and the source's with the same numbers as far as the fork has inherited them.

        Answers the entries whose value is kept in a blob, in order. What is found of it is told to `read_value` or
        to `lose`.
        """
        start = self._seq
        self._follow(page)
        fitting = page[: self._seq - start]
        if self._has_source:
            self._compare(fitting, source)
        return [entry for entry in fitting if blob_reference(entry) is not None]

    def read_value(self, entry: Entry, text: str) -> None:
        """Take the text of a blob."""
        if entry.type == EntryType.RUN_FORKED:
            self._check_receipt(entry, text)

    def lose(self, entry: Entry, why: str) -> None:
        """Take note that the blob of an entry is gone or damaged."""
        self._doubt(entry, f"its value in the blob {blob_reference(entry)!r}", why)

    def stop(self, why: str) -> None:
        """Take note that the entry after the last one cannot be read."""
        self._find(Problem(self._seq + 1, None, "an entry that can be read", why))

    def finish(self, later: RunRecord) -> Verification:
        """What was found. `later` is the run's row, read after its last entry."""
        if self._is_input_kept and self._inputs[0] != self._inputs[1]:
            expected = f"the input of the source {self._record.forked_from!r}, which the receipt says was kept"
            self._find(Problem(1, EntryType.WORKFLOW_CREATED, expected, "another input"))
        if self._problem is None:
            self._check_end(later)
        problem, record = self._problem, self._record
        prefix = PrefixCheck.SOURCE if self._has_source else PrefixCheck.SOURCE_GONE
        return Verification(
            run_id=record.run_id,
            entries=self._seq if problem is None or problem.seq is None else problem.seq - 1,
            head_digest=self._digest.hex() if problem is None else None,
            source_id=record.forked_from,
            inherited=record.fork_seq,
            prefix=None if record.forked_from is None else prefix,
            receipt_id=self._receipt_id,
            problem=problem,
        )

    # --- the chain ----------------------------------------------------------------------------------------------------

    def _follow(self, page: Sequence[Entry]) -> None:
        """Follow numbers and digests as far as they fit."""
        for entry in page:
            seq, type, at, payload, digest = entry
            expected = self._seq + 1
            if seq != expected:
                self._doubt_number(entry)
                return
            if payload[:1] != "{":  # Also where it is bytes: a column takes any type.
                self._doubt(entry, "a JSON object", repr(payload[:SHOWN_DIGITS]))
                return
            chained = GENESIS if expected == 1 else chain_digest(self._digest, type, at, payload)
            if digest != chained:
                self._doubt(entry, f"the digest {_shown(chained)}", f"the digest {_shown(digest)}")
                return
            if expected == 1 or type in _TELLING or self._is_over:
                self._look_at(entry)
                if self._problem is not None and self._problem.seq == expected:
                    return
            self._seq, self._digest, self._last = expected, chained, entry

    def _doubt_number(self, entry: Entry) -> None:
        """A number that is there and is not the next one; where it is higher, the next one is missing."""
        expected = self._seq + 1
        is_gap = entry.seq.__class__ is int and entry.seq > expected
        found = f"the entry {entry.seq} ({entry.type})"
        self._find(Problem(expected, None if is_gap else entry.type, f"an entry with the number {expected}", found))

    @property
    def _is_over(self) -> bool:
        return self._last is not None and self._last.type in TERMINAL_ENTRIES

    def _look_at(self, entry: Entry) -> None:
        if self._last is None:
            self._check_first(entry)
        elif self._last.type in TERMINAL_ENTRIES:
            self._doubt(entry, f"nothing after {self._last.type} at entry {self._last.seq}", f"{entry.type}")
        elif entry.type == EntryType.RUN_FORKED:
            self._cuts[entry.seq] = self._last
            text = value_text(entry)
            if text is not None:
                self._check_receipt(entry, text)
            elif blob_reference(entry) is None:
                self._doubt(entry, "a receipt", "none")

    # --- the first entry ----------------------------------------------------------------------------------------------

    def _check_first(self, entry: Entry) -> None:
        if entry.type not in _CREATIONS:
            self._doubt(entry, EntryType.WORKFLOW_CREATED.value, entry.type)
            return
        try:
            self._first = facts(entry)
        except JournalCorruptError as error:
            self._doubt(entry, "a JSON object", str(error))
            return
        if entry.type in CREATION_ENTRIES:
            self._check_row(entry)

    def _check_row(self, entry: Entry) -> None:
        """What the run's row repeats of its creation."""
        record = self._record
        told = {
            "workflow": record.workflow,
            "code_version": record.code_version,
            "parent": record.parent_id,
        }
        if record.forked_from is None:
            told["root"] = record.run_id
        for name, value in told.items():
            if self._first.get(name) != value:
                self._doubt(entry, f"the {name} {value!r}, as in the run's row", repr(self._first.get(name)))
                return
        if entry.at != record.created_at:
            self._doubt(entry, f"the time {record.created_at!r}, as in the run's row", repr(entry.at))

    # --- the source ---------------------------------------------------------------------------------------------------

    def _compare(self, page: Sequence[Entry], source: Sequence[Entry]) -> None:
        """The inherited entries with the source's. Entry 1 is the fork's own, but for what it has from the source."""
        cut = self._record.fork_seq or 0
        for index, entry in enumerate(page):
            if entry.seq > cut:
                return
            theirs = source[index] if index < len(source) else None
            if theirs is None or theirs.seq != entry.seq:
                self._doubt(entry, f"the same entry in the source {self._record.forked_from!r}", "none")
                return
            if entry.seq == 1:
                self._compare_first(entry, theirs)
            elif entry != theirs:
                self._doubt(entry, f"what the source {self._record.forked_from!r} has there", _contrast(entry, theirs))
                return

    def _compare_first(self, entry: Entry, theirs: Entry) -> None:
        try:
            source = facts(theirs)
        except JournalCorruptError as error:
            self._doubt(entry, f"the creation of the source {self._record.forked_from!r}", str(error))
            return
        self._inputs = (_input_of(entry), _input_of(theirs))
        for name in ("root", "seed"):
            if self._first.get(name) != source.get(name):
                expected = f"the {name} {source.get(name)!r} of the source {self._record.forked_from!r}"
                self._doubt(entry, expected, repr(self._first.get(name)))
                return

    # --- receipts -----------------------------------------------------------------------------------------------------

    def _check_receipt(self, entry: Entry, text: str) -> None:
        """Every receipt tells where its fork was cut, which is right before it, in whichever run it stands."""
        try:
            receipt = json.loads(text)
            known = facts(entry)
        except (ValueError, JournalCorruptError) as error:
            self._doubt(entry, "a receipt in JSON", str(error))
            return
        if not isinstance(receipt, dict):
            self._doubt(entry, "a receipt that is a JSON object", text[:SHOWN_DIGITS])
            return
        told = self._told(entry, known)
        for name, value in told.items():
            if receipt.get(name) != value:
                self._doubt(entry, f"the {name} {value!r} in the receipt", repr(receipt.get(name)))
                return
        if known.get("run_id") == self._record.run_id:
            self._check_own_receipt(entry, receipt, hashlib.sha256(text.encode()).hexdigest())

    def _told(self, entry: Entry, known: Mapping[str, Any]) -> dict[str, Any]:
        before, record = self._cuts[entry.seq], self._record
        is_own = entry.seq == (record.fork_seq or 0) + 1
        return {
            "run_id": record.run_id if is_own else known.get("run_id"),
            "source_id": record.forked_from if is_own else known.get("source_id"),
            "resolved_seq": before.seq,
            "resolved_entry": before.type,
            "prefix_digest": before.digest.hex(),
        }

    def _check_own_receipt(self, entry: Entry, receipt: Mapping[str, Any], receipt_id: str) -> None:
        record = self._record
        if entry.seq != (record.fork_seq or 0) + 1:
            cut = "a run that is no fork" if record.fork_seq is None else f"a cut after entry {record.fork_seq}"
            self._doubt(entry, f"{cut}, as in the run's row", f"a cut after entry {entry.seq - 1}")
        else:
            self._receipt_id = receipt_id
            self._is_input_kept = not receipt.get("input_overridden")
            self._check_terms(receipt, receipt_id)

    def _check_terms(self, receipt: Mapping[str, Any], receipt_id: str) -> None:
        """What entry 1 says of the fork. A child that was forked with its parent has its parent's cut and receipt."""
        terms = _parsed(self._first.get("terms"))
        if not isinstance(terms, dict):
            if "tool_policies" in receipt:
                self._find(Problem(1, EntryType.WORKFLOW_CREATED, "the terms of the fork", repr(terms)))
            return
        told = {name: receipt.get(_IN_RECEIPT.get(name, name)) for name in _TERMS}
        if terms.get("fork_id") == self._record.run_id:
            told |= {"cut": receipt.get("cut"), "receipt_id": receipt_id}
        for name, value in told.items():
            if terms.get(name) != value:
                expected = f"the {name} {value!r} in its terms, as in the receipt"
                self._find(Problem(1, EntryType.WORKFLOW_CREATED, expected, repr(terms.get(name))))
                return

    # --- the end ------------------------------------------------------------------------------------------------------

    def _check_end(self, later: RunRecord) -> None:
        """A run that is going on may end while it is read: an end is in its row from then on, and never before."""
        last = self._last
        if last is None:
            self._find(Problem(1, None, EntryType.WORKFLOW_CREATED.value, "no entry"))
        elif self._record.fork_seq is not None and self._receipt_id is None:
            self._find(Problem(self._record.fork_seq + 1, None, "the fork's receipt", "none"))
        elif last.type in STATUS_OF_ENDING:
            if later.status is not STATUS_OF_ENDING[last.type]:
                self._doubt(last, f"an end that is {later.status.value!r}, as in the run's row", last.type)
        elif self._record.status.is_terminal:
            expected = f"the end of a run that is {self._record.status.value!r}, as in its row"
            self._find(Problem(last.seq + 1, None, expected, f"no entry after {last.type} at entry {last.seq}"))

    # --- findings -----------------------------------------------------------------------------------------------------

    def _doubt(self, entry: Entry, expected: str, found: str) -> None:
        self._find(Problem(entry.seq, entry.type, expected, found))

    def _find(self, problem: Problem) -> None:
        """Keep the first one."""
        known = self._problem
        if known is None or (problem.seq or 0) < (known.seq or 0):
            self._problem = problem


def _parsed(text: object) -> object:
    try:
        return json.loads(str(text)) if text is not None else None
    except ValueError:
        return text


def _input_of(entry: Entry) -> str | None:
    return value_text(entry) or blob_reference(entry)


def _contrast(entry: Entry, theirs: Entry) -> str:
    names = [name for name in Entry._fields if getattr(entry, name) != getattr(theirs, name)]
    return f"another {' and '.join(names)}; one of the two was changed, so verify the source too"


def _shown(digest: object) -> str:
    return f"{digest.hex()[:SHOWN_DIGITS]}…" if isinstance(digest, bytes) else repr(digest)
