"""How a fork of a session treats its boundary, and what its receipt says of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from satay.errors import InvalidValueError


class BoundaryMode(StrEnum):
    """What a fork of a session does where the step that was asked for has no state.

    `exact` refuses. `nearest` takes the latest state at or before that step, and begins after the step that it belongs
    to. `lineage` hands over no state at all, and begins after the step that was asked for.
    """

    EXACT = "exact"
    NEAREST = "nearest"
    LINEAGE = "lineage"


class Reproducibility(StrEnum):
    """How much of what was there at a boundary a fork of a session begins with, the most first.

    `complete`: the state of the very step that was asked for, and a result that can be read for every call before it.
    `state`: that state, and something about calls or code is missing. `approximate`: the state of an earlier step.
    `lineage`: no state.
    """

    COMPLETE = "complete"
    STATE = "state"
    APPROXIMATE = "approximate"
    LINEAGE = "lineage"


@dataclass(frozen=True, slots=True)
class SessionBoundary:
    """Where a fork of a session begins, as its receipt tells it.

    `asked_of` is the session that was to be forked; the receipt's `source_id` is the one that recorded the step.
    `resolved_step` is the last step that is inherited, `state_step` the one whose state is handed over; that state is
    the source's version `state_version`, and its text has the fingerprint `state_sha256`; all three are None where none
    is handed over. `missing` says what keeps `reproducibility` from being one better.
    """

    asked_of: str
    requested_step: int
    resolved_step: int
    mode: BoundaryMode
    state_step: int | None
    state_version: int | None
    state_sha256: str | None
    reproducibility: Reproducibility
    missing: tuple[str, ...]

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> "SessionBoundary":
        """Read a boundary back from plain data. Members that a later version added are left out."""
        known = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(
            **known
            | {
                "mode": BoundaryMode(data["mode"]),
                "reproducibility": Reproducibility(data["reproducibility"]),
                "missing": tuple(data["missing"]),
            }
        )


def parse_mode(given: object) -> BoundaryMode:
    """The boundary mode that a caller names. Raises `InvalidValueError`."""
    if not isinstance(given, str) or given not in tuple(BoundaryMode):
        choices = ", ".join(repr(mode.value) for mode in BoundaryMode)
        raise InvalidValueError(f"boundary={given!r} is none of {choices}")
    return BoundaryMode(given)
