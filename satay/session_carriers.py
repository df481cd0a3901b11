"""What is handed to another process, or put into a queue, so that it takes part in a session."""

from typing import Any, Final, NamedTuple

from satay.arguments import checked_count, checked_key, shown
from satay.errors import InvalidValueError
from satay.transcripts import MAX_STEP

_SESSION: Final = "satay_session"


class Carrier(NamedTuple):
    """One share of the work in a session. `part` names it, `epoch` says who has the session open."""

    session_id: str
    epoch: int
    part: str

    def to_dict(self) -> dict[str, Any]:
        """The carrier as plain data."""
        return {_SESSION: self.session_id, "epoch": self.epoch, "part": self.part}


def read_carrier(carrier: object) -> Carrier:
    """The carrier that plain data is. Raises `InvalidValueError` for what is none."""
    session_id, part = (carrier.get(_SESSION), carrier.get("part")) if isinstance(carrier, dict) else (None, None)
    if not isinstance(session_id, str) or not isinstance(carrier, dict) or part is None:
        raise InvalidValueError(f"{shown(carrier)} is no carrier of a session; Session.carrier() makes one")
    epoch = checked_count(carrier.get("epoch"), "epoch of a carrier", 1, MAX_STEP)
    named = checked_key(part, "part of a carrier")
    assert named is not None, "it is there"
    return Carrier(session_id, epoch, named)
