"""A step of a session as the application sees it, and the text that records what it was given and has made."""

from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Any, Final

from satay.clock import to_datetime
from satay.declarations import OPAQUE
from satay.errors import CodecError
from satay.transcripts import StepMark, Transcript

_UNCHANGING: Final = frozenset({NoneType, bool, int, float, str})


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a session as it was recorded. `input` and `output` are what was given, read back through the codec.

    `number` counts from 1; `seq` is its entry. `is_inherited` says that it is from before the cut of the fork that the
    session is.
    """

    number: int
    name: str
    input: Any
    output: Any
    at: datetime
    seq: int
    is_inherited: bool


def encode_content(given: Any, made: Any, where: str) -> str:
    """The text of what a step was given and has made. Raises `EncodeError`, which says which of the two it is."""
    try:
        return OPAQUE.encode({"input": given, "output": made}, where)
    except CodecError:
        OPAQUE.encode(given, f"the input of {where}")
        OPAQUE.encode(made, f"the output of {where}")
        raise


def decode_content(text: str, where: str) -> tuple[Any, Any]:
    """What a step was given and has made, read back."""
    read: dict[str, Any] = OPAQUE.decode(text, where)
    return read["input"], read["output"]


def is_unchanging(value: object) -> bool:
    """Whether a value stays as it is, whatever becomes of it in the hands of who gave it."""
    return type(value) in _UNCHANGING


def recorded_step(transcript: Transcript, mark: StepMark, text: str) -> Step:
    """A step that was recorded, by the text of what it was given and has made."""
    given, made = decode_content(text, f"step {mark.number} of session {transcript.run_id!r}")
    is_inherited = transcript.is_inherited(mark.seq)
    return Step(mark.number, mark.name, given, made, to_datetime(mark.at), mark.seq, is_inherited)
