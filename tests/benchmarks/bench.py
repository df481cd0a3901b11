"""What every benchmark is handed: how much to do, where, and beside which peer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figures import PEER, PEER_AS_IT_COMES, Figure, Limit
from tests.benchmarks.peer import Peer
from tests.benchmarks.rounds import Measure, against


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

    def against_peer(self, measure: Measure, work: str, calls: int, *, runs: int = 1) -> dict[str, Measure]:
        """Measures of a rate in multiples of the peer's at a work, for `peer_figures`; none where there is no peer."""
        if self.peer is None:
            return {}
        alike = self.peer.rate_of(work, calls, runs=runs)
        as_it_comes = self.peer.rate_of(work, calls, runs=runs, as_it_comes=True)
        return {PEER: against(alike, measure), PEER_AS_IT_COMES: against(as_it_comes, measure)}

    def peer_figures(
        self, work: str, samples: Mapping[str, Sequence[float]], limit: Limit | None = None
    ) -> list[Figure]:
        """What those measured. The limit is for the peer on the journal's settings."""
        if self.peer is None:
            return [Figure(work, PEER, (), limit, self.missing_peer)]
        return [Figure(work, PEER, samples[PEER], limit), Figure(work, PEER_AS_IT_COMES, samples[PEER_AS_IT_COMES])]
