"""What every benchmark is handed: how much to do, where, and beside which peer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figures import PEER, Figure, Limit
from tests.benchmarks.peer import Peer
from tests.benchmarks.rounds import Measure, ratios


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: the full numbers divided by `divisor`, in `rounds` rounds."""

    rounds: int
    divisor: int = 1

    def of(self, full: int) -> int:
        """A full number at this scale, at least one."""
        return max(1, full // self.divisor)


FULL = Scale(rounds=5)
SHORT = Scale(rounds=3, divisor=20)
TINY = Scale(rounds=1, divisor=500)


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark's surroundings. `directory` is its own and empty. Without a peer, `missing_peer` says why."""

    scale: Scale
    directory: Path
    peer: Peer | None
    missing_peer: str

    @property
    def journal(self) -> Path:
        """The directory of the app that is measured."""
        return self.directory / "journal"

    def peer_rates(self, work: str, calls: int, *, runs: int = 1) -> dict[str, Measure]:
        """Measures of the peer's rate at a work, for `peer_figures`; none where there is no peer."""
        if self.peer is None:
            return {}
        return {
            PEER: self.peer.rate_of(work, calls, runs=runs),
            f"{PEER} as it comes": self.peer.rate_of(work, calls, runs=runs, as_it_comes=True),
        }

    def peer_figures(
        self, work: str, rates: Sequence[float], samples: Mapping[str, Sequence[float]], limit: Limit | None = None
    ) -> list[Figure]:
        """Rates held against the peer's: against the peer on the journal's settings, by the limit."""
        if self.peer is None:
            return [Figure(work, PEER, (), limit, self.missing_peer)]
        as_it_comes = f"{PEER} as it comes"
        return [
            Figure(work, PEER, ratios(rates, samples[PEER]), limit),
            Figure(work, as_it_comes, ratios(rates, samples[as_it_comes])),
        ]
