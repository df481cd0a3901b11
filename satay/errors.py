"""Every error that satay raises, in one tree under `SatayError`.

A message is a sentence: what was asked, what is true, what to do. The facts in it are attributes too.
"""

from collections.abc import Sequence
from datetime import datetime


class SatayError(Exception):
    """The root of every error that satay raises on purpose."""


class InvalidValueError(SatayError, ValueError):
    """An argument has a value that no call could honour: a negative count, an infinite duration, an id with a NUL."""


class UsageError(SatayError, RuntimeError):
    """A function was called where it has no meaning, such as a workflow primitive outside a workflow."""


class ModuleImportError(UsageError):
    """A module that was named to have its workflows imported is not there, or raised an error when it was imported."""


class RegistrationError(SatayError):
    """A function cannot be decorated as asked: the name is taken, the signature does not fit, it is a method."""


class UnknownWorkflowError(SatayError, LookupError):
    """A run belongs to a workflow that this process has not imported."""


class NotHereError(SatayError):
    """What a task needs is not in this process. The run stops as it is, and goes on in one that has it."""


class OutputError(SatayError):
    """The answer of a command could not be written: the disk is full, or the output is closed."""


class PipeClosedError(OutputError):
    """Whoever read the answer of a command has stopped reading."""


class AppClosedError(SatayError):
    """The app, or its event loop, was closed while something was awaited of it."""


# --- values -----------------------------------------------------------------------------------------------------------


class CodecError(SatayError):
    """A value could not be written to, or read from, the journal."""


class EncodeError(CodecError):
    """A value cannot be encoded so that it reads back equal. It names the place and the path. Never retried."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class DecodeError(CodecError):
    """Recorded text does not fit the type that the code declares now."""


class PickleNotAllowedError(DecodeError):
    """A recorded value is a pickle, and this process may not read pickles."""


class PayloadTooLargeError(EncodeError):
    """A value is larger than the largest payload that a journal accepts."""


# --- the journal ------------------------------------------------------------------------------------------------------


class JournalError(SatayError):
    """The journal could not do what was asked."""


class JournalConflictError(JournalError):
    """Another writer extended, took over or ended the run first. The drive that sees this stops without writing."""

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class MessageTakenError(JournalConflictError):
    """A message from the inbox was delivered to another run first."""


class JournalBusyError(JournalError):
    """The database stayed locked for longer than the busy timeout."""


class JournalUnavailableError(JournalError):
    """The database cannot be opened or written: no such directory, read-only, disk full, not a database."""


class JournalNotFoundError(JournalUnavailableError):
    """There is no journal where one was to be read."""


class JournalCorruptError(JournalError):
    """The database or an entry in it is damaged. For an entry, `seq` is its number and `run_id` its run."""

    def __init__(self, message: str, *, run_id: str | None = None, seq: int | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.seq = seq


class JournalVersionError(JournalError):
    """The database was written by a newer satay than this one."""


class UnsupportedEntryError(JournalError):
    """A journal holds an entry that this version cannot replay without changing its meaning.

    `run_id`, `seq` and `type` name the entry. `needs` is the version of satay that the entry says it needs, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        seq: int | None = None,
        type: str = "",
        needs: str | None = None,
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.seq = seq
        self.type = type
        self.needs = needs


class JournalClosedError(JournalError):
    """The journal was closed before, or while, it was asked."""


# --- runs -------------------------------------------------------------------------------------------------------------


class RunError(SatayError):
    """Something about one run, which `run_id` names."""

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFoundError(RunError, LookupError):
    """The journal holds no run with this id."""


class AmbiguousRunError(InvalidValueError):
    """A shortened id is the beginning of several run ids; `candidates` lists some of them."""

    def __init__(self, message: str, *, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class RunExistsError(RunError):
    """A run with this id, or with this idempotency key, is there already; `run_id` is the one that is there."""


class RunConflictError(RunError):
    """An id was used again for something else than what it names."""


class RunEndedError(RunError):
    """A run was sent an event, and has ended."""


class ForkValidationError(RunError, ValueError):
    """A fork was asked for that cannot be made as asked; nothing was written."""


class NoRestorableStateError(ForkValidationError):
    """The state of a step was asked for, to fork a session or to look at it, and none was recorded with that step.

    `step` is that step; `before` and `after` are the nearest steps that have a state, or None.
    """

    def __init__(self, message: str, *, run_id: str, step: int, before: int | None, after: int | None) -> None:
        super().__init__(message, run_id=run_id)
        self.step = step
        self.before = before
        self.after = after


class PromotionError(RunError, ValueError):
    """A run cannot be promoted: it is no fork, has not completed, or is no member of the experiment."""


class ExperimentConflictError(SatayError):
    """An experiment says otherwise already, for ever: it has another winner, or a member under other terms.

    `experiment_id` names it, `winner` the run that was promoted, if one was and it is known.
    """

    def __init__(self, message: str, *, experiment_id: str, winner: str | None) -> None:
        super().__init__(message)
        self.experiment_id = experiment_id
        self.winner = winner


class ExperimentNotFoundError(UsageError, LookupError):
    """The journal holds no experiment of this name, which `name` is."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class StalePrefixError(ForkValidationError):
    """A fork with `on_stale="error"` would inherit calls whose arguments would differ now; `calls` names them."""

    def __init__(self, message: str, *, run_id: str, calls: Sequence[str]) -> None:
        super().__init__(message, run_id=run_id)
        self.calls = tuple(calls)


class NondeterminismError(RunError):
    """The code asked for another schedule than the one the journal recorded; nothing was executed or recorded.

    `position` counts durable calls from zero; `recorded` and `issued` name the calls, or are None where one side
    has none; `source_line` is the line of the workflow that issued the call, where it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        position: int,
        recorded: str | None,
        issued: str | None,
        source_line: str | None = None,
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.position = position
        self.recorded = recorded
        self.issued = issued
        self.source_line = source_line


class WorkflowFailedError(RunError):
    """A workflow ended with an error whose own type cannot be rebuilt here.

    `error_type` is `module:qualname`, `error_message` its text, `error_traceback` the recorded traceback.
    """

    def __init__(
        self, message: str, *, run_id: str, error_type: str, error_message: str, error_traceback: str = ""
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.error_type = error_type
        self.error_message = error_message
        self.error_traceback = error_traceback


class WorkflowCancelledError(RunError):
    """The run whose result was awaited ended `cancelled`."""


class WorkflowStuckError(SatayError):
    """A workflow body waits for something that nothing outstanding can ever resolve, or never waits at all."""


class NeedsDecisionError(RunError):
    """The run stopped at an external call of which nobody knows whether it happened; `satay.decide` continues it."""


class LeaseHeldError(RunError):
    """Another live process drives the run."""


# --- sessions ---------------------------------------------------------------------------------------------------------


class SessionLostError(RunError):
    """Another process took the session over; what this one still wanted to write was not written."""


class SessionStateError(RunError):
    """The function that gives a session's state failed, or gave what cannot be encoded. The step was not recorded."""


class CallConflictError(RunError):
    """A key names a call of a tool, or an approval, with other arguments than those of now; `call` names the call.

    `path` is the JSON path of the first difference.
    """

    def __init__(self, message: str, *, run_id: str, call: str, path: str) -> None:
        super().__init__(message, run_id=run_id)
        self.call = call
        self.path = path


class CallInProgressError(RunError):
    """A call of a tool is being made by somebody else who has claimed it; `call` names it."""

    def __init__(self, message: str, *, run_id: str, call: str) -> None:
        super().__init__(message, run_id=run_id)
        self.call = call


class ClaimLostError(RunError):
    """A claim on a call of a tool does not hold any more: the call has ended, or somebody else has claimed it."""


class UnreadableResultError(RunError):
    """A call of a tool was made, and what it returned could not be recorded. It is not made again."""


# --- approvals --------------------------------------------------------------------------------------------------------


class ApprovalTimeoutError(SatayError, TimeoutError):
    """Nobody decided about an approval within its `timeout`; `key` names it."""

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ApprovalPendingError(RunError):
    """An approval was asked for, is not decided yet, and was not to be waited for; `key` names it.

    A session whose block ends with it is paused.
    """

    def __init__(self, message: str, *, run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id)
        self.key = key


class ApprovalNotFoundError(RunError, LookupError):
    """A decision was made about an approval that the run never asked for; `pending` are those that it waits for."""

    def __init__(self, message: str, *, run_id: str, key: str, pending: Sequence[str]) -> None:
        super().__init__(message, run_id=run_id)
        self.key = key
        self.pending = tuple(pending)


class ApprovalConflictError(RunError):
    """A decision about an approval came too late: there is another one, or the time was up. What was holds.

    `approved`, `by` and `at` are of the decision that holds; `approved` is None where the time was up, at `at`.
    """

    def __init__(
        self, message: str, *, run_id: str, key: str, approved: bool | None, by: str | None, at: datetime
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.key = key
        self.approved = approved
        self.by = by
        self.at = at


# --- inside a workflow ------------------------------------------------------------------------------------------------


class WorkflowSideEffectError(UsageError):
    """A workflow body reached for a socket, a file, a subprocess or a thread; that belongs in a `@satay.task`."""


class TaskFailedError(SatayError):
    """A task failed for good, and its own exception type cannot be rebuilt from the journal.

    `error_type` is `module:qualname`, `error_message` its text, `error_traceback` the recorded traceback.
    """

    def __init__(
        self, message: str, *, error_type: str = "", error_message: str = "", error_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.error_message = error_message
        self.error_traceback = error_traceback


class TaskTimeoutError(TaskFailedError, TimeoutError):
    """An attempt of a task ran longer than the `timeout` of the task."""


class TaskBlockedError(SatayError):
    """A tool policy refused a call in a fork; nothing was executed.

    `task` is the name of the task, `policy` what applied, `reason` why, `cut` where the fork `fork_id` was cut, and
    `receipt_id` the receipt that holds the policies.
    """

    def __init__(
        self, message: str, *, task: str, policy: str, reason: str, cut: str, fork_id: str, receipt_id: str
    ) -> None:
        super().__init__(message)
        self.task = task
        self.policy = policy
        self.reason = reason
        self.cut = cut
        self.fork_id = fork_id
        self.receipt_id = receipt_id


class TaskCrashedError(TaskFailedError):
    """The process died during an attempt more often than the limit for one call allows."""


class ChildWorkflowError(SatayError):
    """A child workflow failed or was cancelled, and its own error type cannot be rebuilt; `run_id` names the child."""

    def __init__(
        self, message: str, *, run_id: str, error_type: str = "", error_message: str = "", error_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.error_type = error_type
        self.error_message = error_message
        self.error_traceback = error_traceback


class EventTimeoutError(SatayError, TimeoutError):
    """No event arrived within the `timeout` of a `wait_for_event`."""


class DuplicateKeyError(InvalidValueError):
    """A key that must name one call names several; `keys` lists them."""

    def __init__(self, message: str, *, keys: Sequence[str]) -> None:
        super().__init__(message)
        self.keys = tuple(keys)
