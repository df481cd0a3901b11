"""The states that one session records: what the application's function gives, as the text that is stored.

The text that was recorded last is kept, because the next state is stored as a difference to it.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from satay.arguments import checked_count, shown
from satay.declarations import OPAQUE
from satay.errors import CodecError, InvalidValueError, SessionStateError
from satay.experiments import Draft
from satay.failures import message_of
from satay.model import EntryType
from satay.receipts import ForkReceipt
from satay.session_journals import SessionJournal
from satay.snapshots import Snapshot, StateText, store_state
from satay.transcripts import Transcript

MAX_STATE_INTERVAL: Final = 1_000_000
"""The largest `state_interval`."""

_PLAIN: Final = (dict, list, str)
"""Of these types most states are. For any other class Python asks it whether what it gave can be awaited."""


class StateRecords:
    """Records a state with every `interval`-th step; none where `state_fn` is None."""

    def __init__(self, run_id: str, state_fn: Callable[[], Any] | None, interval: int) -> None:
        if state_fn is not None and not callable(state_fn):
            raise InvalidValueError(f"state_fn is {shown(state_fn)}; it must be a function that returns the state")
        self.run_id = run_id
        self.state_fn = state_fn
        self.interval = checked_count(interval, "state_interval", 1, MAX_STATE_INTERVAL)
        self._latest: StateText | None = None
        self._written: tuple[str, str] | None = None
        self._inherited_text: str | None = None

    async def load(self, journal: SessionJournal, receipt: ForkReceipt | None) -> None:
        """Read the latest state, and the one that a fork was handed."""
        transcript = journal.transcript
        snapshot = transcript.snapshots.latest
        handed = None if receipt is None else _handed_state(transcript, receipt)
        if snapshot is not None and (handed is not None or not transcript.is_inherited(snapshot.seq)):
            self._latest = StateText(snapshot, await journal.state_text(snapshot))
        if self._latest is not None and handed == self._latest.snapshot:
            self._inherited_text = self._latest.text
        elif handed is not None:
            self._inherited_text = await journal.state_text(handed)

    def draft(self, transcript: Transcript, number: int, where: str) -> Draft | None:
        """The entry of the state after a step; None where none is recorded with it. Raises `SessionStateError`."""
        if self.state_fn is None or number % self.interval:
            return None
        text = self._text(self.state_fn, where)
        kept = store_state(number, text, transcript.snapshots, self.note_written(transcript))
        transcript.snapshots.expect(kept)
        self._written = kept.sha256, text
        return Draft(EntryType.STATE_RECORDED, kept.facts, kept.text)

    def note_written(self, transcript: Transcript) -> StateText | None:
        """The latest state whose text is at hand: the one that was written last, once it is known to be recorded."""
        written, snapshot = self._written, transcript.snapshots.latest
        if written is not None and snapshot is not None and written[0] == snapshot.sha256:
            self._latest, self._written = StateText(snapshot, written[1]), None
        return self._latest

    def latest(self, transcript: Transcript) -> Any:
        """A copy of the latest state that was recorded here, or found; None in a fork that was handed none."""
        latest = self.note_written(transcript)
        if latest is None or (self._inherited_text is None and transcript.is_inherited(latest.snapshot.seq)):
            return None
        return self.decode(latest.text)

    @property
    def inherited(self) -> Any:
        """A copy of the state that a fork was handed; None where none was."""
        return None if self._inherited_text is None else self.decode(self._inherited_text)

    def decode(self, text: str) -> Any:
        """A state, read back."""
        return OPAQUE.decode(text, f"a state of session {self.run_id!r}")

    def _text(self, state_fn: Callable[[], Any], where: str) -> str:
        try:
            return OPAQUE.encode(_checked_state(state_fn()), "the state")
        except CodecError as error:
            raise SessionStateError(
                f"{where} was not recorded: its state cannot be encoded: {error}", run_id=self.run_id
            ) from error
        except Exception as error:
            raise SessionStateError(
                f"{where} was not recorded: state_fn raised {type(error).__name__}: {message_of(error)}",
                run_id=self.run_id,
            ) from error


def _checked_state(state: Any) -> Any:
    if type(state) not in _PLAIN and isinstance(state, Awaitable):
        if isinstance(state, Coroutine):
            state.close()
        raise TypeError("it gave something to await, and must be a plain function that returns the state")
    return state


def _handed_state(transcript: Transcript, receipt: ForkReceipt) -> Snapshot | None:
    step = None if receipt.boundary is None else receipt.boundary.state_step
    return None if step is None else transcript.snapshots.latest_through(step)
