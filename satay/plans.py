"""Plans: what a fork would inherit, run again, refuse and save, before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from satay.effects import ToolPolicy
from satay.receipts import StaleCall
from satay.tables import Column, printable, show_cost, show_seconds, text_table

MAX_SHOWN_CALLS: Final = 40
"""How many calls the table of a plan has: those around the cut."""

CALLS_BEFORE_CUT: Final = 10
"""How many inherited calls the table of a plan shows, where there are more than fit."""


class PlannedCall(NamedTuple):
    """A call that the source made, and what becomes of it in the fork.

    `action` is `inherit`, or what `CallInFlight` has, or, for a call after the cut: `run`, `block`, `replay`,
    `override`. `cost` and `seconds` are what the source recorded for it; what a child spent is in the child's own
    journal, and not in `cost`. `stale_path` is the path of the first argument that would differ now.
    """

    call: str
    seq: int
    action: str
    cost: float
    seconds: float | None
    stale_path: str | None = None


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """What a fork would be, as far as its source tells.

    Calls after the cut are those that the source made: the fork may make others. `saved_cost` and `saved_seconds` are
    what the inherited calls took, `expected_cost` and `expected_seconds` what the others took in the source.
    `divergence` is the error that the fork would stop with, if the code of today does not follow the prefix.
    """

    source_id: str
    cut: str
    resolved_seq: int
    resolved_entry: str
    calls: tuple[PlannedCall, ...]
    stale_calls: tuple[StaleCall, ...]
    tool_policies: Mapping[str, ToolPolicy]
    input_overridden: bool
    divergence: str | None
    saved_cost: float
    saved_seconds: float
    expected_cost: float
    expected_seconds: float

    def of(self, *actions: str) -> tuple[PlannedCall, ...]:
        """The calls with one of these actions."""
        return tuple(call for call in self.calls if call.action in actions)

    @property
    def inherited(self) -> tuple[PlannedCall, ...]:
        """The calls that answer from the journal."""
        return self.of("inherit", "keep")

    @property
    def blocked(self) -> tuple[PlannedCall, ...]:
        """The calls that a tool policy would refuse."""
        return self.of("block")

    @property
    def rerun(self) -> tuple[PlannedCall, ...]:
        """The calls that would be made, as far as the source tells."""
        return self.of("run", "rerun", "ask", "fork")

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["calls"] = [call._asdict() for call in self.calls]
        plain["stale_calls"] = [{name: getattr(stale, name) for name in stale.__slots__} for stale in self.stale_calls]
        plain["tool_policies"] = dict(self.tool_policies)
        return plain

    def __str__(self) -> str:
        """The plan as a table, with a summary."""
        return "\n".join([*self._head(), "", *self._table(), "", *self._summary()])

    def _head(self) -> list[str]:
        lines = [
            f"A fork of {printable(self.source_id)} {printable(self.cut)}: keeps entries 1 to {self.resolved_seq} "
            f"({self.resolved_entry})" + (", with another input" if self.input_overridden else "")
        ]
        if self.tool_policies:
            policies = ", ".join(f"{name}: {policy}" for name, policy in self.tool_policies.items())
            lines.append(f"Tool policies: {printable(policies)}")
        if self.divergence is not None:
            lines.append(f"It would stop: {printable(self.divergence)}")
        return lines

    def _table(self) -> list[str]:
        calls = self.calls
        kept = sum(1 for call in calls if call.action == "inherit")
        start = max(0, kept - CALLS_BEFORE_CUT) if len(calls) > MAX_SHOWN_CALLS else 0
        shown = calls[start : start + MAX_SHOWN_CALLS]
        columns = [
            Column("call", is_wide=True),
            Column("in the fork"),
            Column("time", "right"),
            Column("cost", "right"),
        ]
        lines = [text_table(columns, [_row(call) for call in shown])]
        if start:
            lines.insert(0, f" … {start} inherited before these")
        if left := len(calls) - start - len(shown):
            lines.append(f" … and {left} more")
        return lines

    def _summary(self) -> list[str]:
        inherited, rerun, blocked = len(self.inherited), len(self.rerun), len(self.blocked)
        lines = [
            f"{inherited} of {len(self.calls)} calls reused, {rerun} run again, {blocked} blocked, "
            f"{len(self.stale_calls)} stale.",
            f"Saves {_amount(self.saved_cost, self.saved_seconds)}; what runs again took "
            f"{_amount(self.expected_cost, self.expected_seconds)} in the source.",
        ]
        lines += [
            f"Stale: {printable(stale.call)} was called with other arguments, first at {printable(stale.path)}."
            for stale in self.stale_calls[:MAX_SHOWN_CALLS]
        ]
        return lines


def _row(call: PlannedCall) -> tuple[str, str, str, str]:
    action = call.action + (" (stale)" if call.stale_path is not None else "")
    seconds = "…" if call.seconds is None else show_seconds(call.seconds)
    return (call.call, action, seconds, show_cost(call.cost) if call.cost else "")


def _amount(cost: float, seconds: float) -> str:
    return (f"{show_cost(cost)} and " if cost else "") + show_seconds(seconds)
