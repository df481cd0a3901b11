"""What benchmarks report: figures with their samples, and the limits that they are held to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

REFERENCE = "L"
"""The unit of a rate that is compared with the reference's."""

PEER = "× DBOS"
"""The unit of a rate that is compared with the peer's."""

PEER_AS_IT_COMES = "× DBOS as it comes"
"""The same, where the peer runs on its own default settings."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The least, or the most, that a figure may be."""

    bound: float
    is_floor: bool

    def is_met(self, value: float) -> bool:
        """Whether `value` is on the right side of the bound, or on it."""
        return value >= self.bound if self.is_floor else value <= self.bound


def at_least(bound: float) -> Limit:
    """A figure must not be below the bound."""
    return Limit(bound, is_floor=True)


def at_most(bound: float) -> Limit:
    """A figure must not be above the bound."""
    return Limit(bound, is_floor=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: some work and a number in `unit` for it, measured several times.

    Without a limit it is only shown. Without samples it could not be measured, for the reason in `missing`; that is
    shown too, and is no failure.
    """

    work: str
    unit: str
    samples: Sequence[float]
    limit: Limit | None = None
    missing: str = ""

    @property
    def median(self) -> float:
        """The median of the samples, by which the figure is judged."""
        return statistics.median(self.samples)

    @property
    def is_missed(self) -> bool:
        """Whether the figure was measured and is on the wrong side of its limit."""
        return bool(self.samples) and self.limit is not None and not self.limit.is_met(self.median)
