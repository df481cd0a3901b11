"""Receipts: what a fork asked for and what it inherited, written once and re-read for ever.

A receipt keeps the very text that was stored, so that it shows the same bytes whatever version reads it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from satay.boundaries import SessionBoundary
from satay.cuts import RequestedCut
from satay.declarations import OPAQUE
from satay.effects import ToolPolicy
from satay.errors import JournalCorruptError
from satay.failures import message_of
from satay.tables import Column, printable, show_cost, show_seconds, show_value, text_table

MAX_LISTED_STALE_CALLS: Final = 100
"""How many stale calls a receipt lists; it counts all of them."""

_INTERVENTION: Final = "the intervention of a fork"


@dataclass(frozen=True, slots=True)
class CallInFlight:
    """A call that was outstanding at the cut, and what becomes of it in the fork.

    `action` is `rerun`, `wait`, `ask` (a decision is needed first), `block`, `replay`, `keep`, `override`, `fork` or
    `share` (a child run).
    """

    call: str
    seq: int
    action: str


@dataclass(frozen=True, slots=True)
class StaleCall:
    """An inherited call whose arguments would be others now. `path` is the JSON path of the first difference."""

    call: str
    seq: int
    path: str


@dataclass(frozen=True, slots=True)
class OverriddenCall:
    """A call whose outcome was given with the fork: `kind` is `value` or `error`.

    `sha256` is that of its text, of an error's without the traceback.
    """

    call: str
    kind: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ForkReceipt:
    """What a fork asked for and what it inherited. Written once, in the fork's `RunForked` entry.

    The prefix is the source's entries 1 to `resolved_seq`, of which the last is a `resolved_entry`; `prefix_digest` is
    the digest of that entry, in hexadecimal, in the source and in the fork alike. `cut` says in words which rule found
    it; the source had `source_head` entries. `calls_inherited` have their outcome in the prefix, or keep it;
    `in_flight` were outstanding at the cut. `stale_calls` are the first of `stale_count` inherited calls whose
    arguments would be others now. `tool_policies` are those that hold, the ones inherited from a source that is a fork
    included. `saved_cost` is what the attempts behind the inherited outcomes recorded as their cost, `saved_seconds`
    the time that they took, side by side ones once.

    `boundary` says of a fork of a session which step and which state it begins with; None for a fork of a run.

    `replayed` says that the fork was there already when it was asked for; it is not stored.
    """

    run_id: str
    source_id: str
    root_id: str
    requested: RequestedCut
    cut: str
    resolved_seq: int
    resolved_entry: str
    source_head: int
    prefix_digest: str
    calls_inherited: int
    in_flight: tuple[CallInFlight, ...]
    is_restorable: bool
    input_overridden: bool
    intervention: Any
    tool_policies: Mapping[str, ToolPolicy]
    overrides: tuple[OverriddenCall, ...]
    reason: str | None
    children: str
    stale_calls: tuple[StaleCall, ...]
    stale_count: int
    source_code_version: str
    code_version: str
    saved_cost: float
    saved_seconds: float
    boundary: SessionBoundary | None = None
    replayed: bool = field(default=False, compare=False)
    text: str = field(default="", repr=False, compare=False)

    @property
    def receipt_id(self) -> str:
        """The SHA-256 of the stored text, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def calls_in_flight(self) -> tuple[str, ...]:
        """The calls that were outstanding at the cut."""
        return tuple(call.call for call in self.in_flight)

    def to_json(self) -> str:
        """The receipt as it is stored, byte for byte."""
        return self.text or json.dumps(self._data(), separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """The stored receipt as plain JSON data."""
        data: dict[str, Any] = json.loads(self.to_json())
        return data

    def _data(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__slots__ if name not in _NOT_STORED}
        data["requested"] = self.requested.to_dict()
        data["intervention"] = json.loads(OPAQUE.encode(self.intervention, _INTERVENTION))
        if self.boundary is None:
            del data["boundary"]
        else:
            data["boundary"] = asdict(self.boundary)
        for name in _LISTS:
            data[name] = [{part: getattr(item, part) for part in item.__slots__} for item in data[name]]
        return data

    @classmethod
    def from_json(cls, text: str) -> "ForkReceipt":
        """Read a stored receipt back. Members that a later version added are left out.

        Raises `JournalCorruptError` for what is no receipt.
        """
        try:
            return cls._from_plain(json.loads(text), text)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise JournalCorruptError(f"the receipt of a fork cannot be read: {message_of(error)}") from error

    @classmethod
    def _from_plain(cls, stored: Any, text: str) -> "ForkReceipt":
        data = {name: stored[name] for name in cls.__slots__ if name in stored}
        data["requested"] = _known(RequestedCut, stored["requested"])
        data["intervention"] = OPAQUE.decode(json.dumps(stored["intervention"]), _INTERVENTION)
        data["tool_policies"] = {name: ToolPolicy(policy) for name, policy in stored["tool_policies"].items()}
        for name, record in _LISTS.items():
            data[name] = tuple(_known(record, item) for item in stored[name])
        if "boundary" in stored:
            data["boundary"] = SessionBoundary.from_plain(stored["boundary"])
        return cls(**data, text=text)

    def stored(self) -> "ForkReceipt":
        """A copy that keeps its text, and shares nothing with what the caller gave."""
        return ForkReceipt.from_json(self.to_json())

    def as_replayed(self) -> "ForkReceipt":
        """The receipt of a fork that was there already."""
        return replace(self, replayed=True)

    def __str__(self) -> str:
        """The receipt as a table."""
        rows = [(name, printable(value)) for name, value in self._lines() if value]
        return text_table([Column("receipt"), Column(self.receipt_id[:16], is_wide=True)], rows)

    def _lines(self) -> list[tuple[str, str]]:
        policies = ", ".join(f"{name}: {policy}" for name, policy in self.tool_policies.items())
        stale = ", ".join(f"{stale.call} at {stale.path}" for stale in self.stale_calls[:3])
        more = f", and {self.stale_count - 3} more" if self.stale_count > 3 else ""
        cost = f"{show_cost(self.saved_cost)} and " if self.saved_cost else ""
        return [
            ("fork", self.run_id + (" (was there already)" if self.replayed else "")),
            ("of", self.source_id),
            ("cut", f"{self.cut}; kept through entry {self.resolved_seq} ({self.resolved_entry})"),
            ("state", _show_state(self.boundary)),
            *_reproducibility_lines(self.boundary),
            ("prefix digest", self.prefix_digest),
            ("inherited", f"{self.calls_inherited} calls; saved {cost}{show_seconds(self.saved_seconds)}"),
            ("in flight", ", ".join(f"{call.call}: {call.action}" for call in self.in_flight)),
            ("input", "another than the source's" if self.input_overridden else ""),
            ("intervention", "" if self.intervention is None else show_value(self._data()["intervention"])),
            ("tool policies", policies),
            ("overridden", ", ".join(f"{call.call} by {call.kind}" for call in self.overrides)),
            ("reason", self.reason or ""),
            ("stale", stale + more),
            ("code", f"{self.source_code_version} → {self.code_version}"),
        ]


def intervention_key(intervention: Any) -> str:
    """A text that is the same for equal interventions; the order of members does not matter."""
    return json.dumps(json.loads(OPAQUE.encode(intervention, _INTERVENTION)), sort_keys=True)


def _show_state(boundary: SessionBoundary | None) -> str:
    if boundary is None:
        return ""
    if boundary.state_step is None:
        return f"none; goes on after step {boundary.resolved_step}"
    return f"of step {boundary.state_step}, version {boundary.state_version}, {(boundary.state_sha256 or '')[:16]}"


def _reproducibility_lines(boundary: SessionBoundary | None) -> list[tuple[str, str]]:
    """The grade, and a line for each thing that is missing for a better one: together they do not fit in one."""
    if boundary is None:
        return []
    return [("reproducible", boundary.reproducibility.value), *(("missing", reason) for reason in boundary.missing[:3])]


def _known(record: Any, stored: Mapping[str, Any]) -> Any:
    """A record of what was stored, without members that a later version added."""
    return record(**{name: stored[name] for name in record.__slots__ if name in stored})


_NOT_STORED: Final = ("replayed", "text")
_LISTS: Final[dict[str, Any]] = {"in_flight": CallInFlight, "overrides": OverriddenCall, "stale_calls": StaleCall}
