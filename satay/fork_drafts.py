"""A fork before it is written: the source with the request made concrete for it, and what a rehearsal made of that."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from satay.cuts import Cut
from satay.definitions import Workflow
from satay.drive import Drive
from satay.effects import ToolPolicy
from satay.model import CallId, Entry, RunRecord
from satay.origin import Origin
from satay.overrides import Override
from satay.receipts import StaleCall
from satay.requests import ForkRequest
from satay.sources import Prefix, RecordedRun


class Draft(NamedTuple):
    """A fork as it was asked for: the source, read, and the request made concrete for it."""

    record: RunRecord
    recorded: RecordedRun
    definition: Workflow[..., Any]
    request: ForkRequest
    input_text: str | None
    overrides: Sequence[Override]
    policies: Mapping[str, ToolPolicy]
    as_of: int | None = None

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def entries(self) -> Sequence[Entry]:
        return self.recorded.entries

    @property
    def calls(self) -> Mapping[int, CallId]:
        return self.recorded.calls


class Rehearsed(NamedTuple):
    """A fork as it would be: where it is cut, what it inherits, and the drive that has replayed that."""

    cut: Cut
    prefix: Prefix
    blobs: Mapping[str, str]
    origin: Origin
    drive: Drive
    stale: Sequence[StaleCall]
    error: BaseException | None
    at: int
