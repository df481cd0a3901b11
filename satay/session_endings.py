"""How a session's block ended, as the entry that says so."""

from satay.errors import ApprovalPendingError
from satay.experiments import Draft
from satay.failures import encode_failure, is_made_of
from satay.model import EntryType, RunStatus
from satay.texts import json_quote


def ending(error: BaseException | None, pause_reason: str | None, result_text: str) -> tuple[Draft, RunStatus]:
    """The last entry of a block, and the status that goes with it, by the error that it ended with, if any."""
    interruption = None if error is None else _interruption(error)
    reason = interruption if pause_reason is None else pause_reason
    if error is not None and interruption is None:
        return Draft(EntryType.SESSION_CRASHED, "", encode_failure(error)), RunStatus.FAILED
    if reason is not None:
        return Draft(EntryType.SESSION_PAUSED, f'"reason":{json_quote(reason)}'), RunStatus.WAITING
    return Draft(EntryType.SESSION_COMPLETED, "", result_text), RunStatus.COMPLETED


def _interruption(error: BaseException) -> str | None:
    """What interrupted a block that ends with an error; None where it crashed."""
    if is_made_of(error, ApprovalPendingError):
        return ApprovalPendingError.__name__
    return None if isinstance(error, Exception) else type(error).__name__
