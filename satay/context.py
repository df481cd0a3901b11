"""Where the running code is: in a workflow body, in an attempt of a task, or in neither.

A body is recognised by its event loop, an attempt by a context variable; so helpers called from either find their run
without being handed anything.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any, Final, Protocol

from satay.arguments import checked_amount, checked_count, shown
from satay.effects import ForkTerms
from satay.errors import InvalidValueError, UsageError
from satay.loop import WorkflowLoop

MAX_TOKENS: Final = 10**15
"""The most tokens that one `record_usage` takes."""


NOT_RECALLED: Final[Any] = object()
"""Stands for a result that cannot be handed over at once; a result may be any other value, None and `MISSING` too."""


class PendingCall(Protocol):
    """A durable call that was issued; its branch awaits `future`."""

    @property
    def future(self) -> "asyncio.Future[Any]": ...


class PendingChild(PendingCall, Protocol):
    """A child run that was started."""

    @property
    def run_id(self) -> str: ...


class Schedule(Protocol):
    """What a workflow body can ask of the run it belongs to."""

    @property
    def run_id(self) -> str: ...

    @property
    def workflow(self) -> str: ...

    @property
    def is_replaying(self) -> bool: ...

    @property
    def random(self) -> Random: ...

    @property
    def intervention(self) -> Any: ...

    def now(self) -> datetime: ...

    def recall_result(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def open_task(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None) -> PendingCall: ...

    def open_event_wait(self, name: str, codec: Any, key: str | None, timeout: float | None) -> PendingCall: ...

    def open_approval(self, key: str, payload: Any, timeout: float | None) -> PendingCall: ...

    def open_child(self, workflow: Any, args: tuple[Any, ...], key: str | None) -> PendingChild: ...

    def check_keys(self, name_fact: str, keys: Sequence[str]) -> None: ...

    def cancel_call(self, call: Any) -> None: ...


class ScheduledLoop(WorkflowLoop):
    """The loop of one workflow body; it knows the schedule that the body's calls go to, until it is dropped."""

    __slots__ = ("schedule",)

    schedule: Schedule | None

    def drop(self) -> None:
        super().drop()
        self.schedule = None  # It holds this loop: together they would be left to the garbage collector.


def current_schedule() -> Schedule | None:
    """The schedule of the body that is running, or None outside of a workflow body."""
    loop = asyncio._get_running_loop()
    return loop.schedule if type(loop) is ScheduledLoop else None


_IN_A_SESSION: Final = (
    ". The loop of a session is your own: use asyncio and plain Python there, and the methods of the session, such as "
    "session.require_approval()"
)


def require_schedule(what: str) -> Schedule:
    """The schedule of the body that is running. `what` is the call that was made."""
    schedule = current_schedule()
    if schedule is None:
        instead = "" if session_of_block.get() is None else _IN_A_SESSION
        raise UsageError(
            f"{what} was called outside a workflow body; it has a meaning only inside a @satay.workflow{instead}"
        )
    return schedule


def refuse_in_body() -> None:
    """Raise `UsageError` in a workflow body, which no app can answer."""
    if current_schedule() is not None:
        raise UsageError(
            "a workflow body cannot reach the app; start children with satay.start_child, and call the rest from a "
            "@satay.task"
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What one use of a model cost: tokens counted by the provider, cost in the user's own currency."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: float


@dataclass(slots=True)
class TaskContext:
    """What a task's body can know of the attempt that runs it.

    `idempotency_key` is the same across attempts, resumes and forks of a lineage; `fork_idempotency_key` differs from
    one fork to the next. `ordinal` is None for a call with a `key`. `attempt` counts from 1.
    """

    run_id: str
    task: str
    ordinal: int | None
    key: str | None
    attempt: int
    idempotency_key: str
    fork_idempotency_key: str
    intervention: Any = None
    usage: list[Usage] = field(default_factory=list)

    def record_usage(self, *, model: str, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0) -> None:
        """Add a use of a model to the call's record; it is kept with the call's outcome.

        Raises `InvalidValueError` for a `model` that is no text, tokens that are not counted in whole numbers, and a
        cost that is no finite number, zero or more.
        """
        if not isinstance(model, str):
            raise InvalidValueError(f"model of record_usage() is {shown(model)}; it must be a text, the model's name")
        self.usage.append(
            Usage(
                model,
                checked_count(input_tokens, "input_tokens of record_usage()", 0, MAX_TOKENS),
                checked_count(output_tokens, "output_tokens of record_usage()", 0, MAX_TOKENS),
                checked_amount(cost, "cost of record_usage()"),
            )
        )


class Attempt(Protocol):
    """An attempt that is running; it makes its `TaskContext` when that is asked for."""

    @property
    def terms(self) -> ForkTerms | None:
        """What forks impose on the attempt, and on the runs that it starts."""
        ...

    def task_context(self) -> TaskContext: ...

    def check_policy(self, task: Any) -> None:
        """Raise `TaskBlockedError` where the run may not run that task, which the task at hand calls itself."""
        ...


class ToolCaller(Protocol):
    """A session, as far as a task that is called in it needs to know."""

    @property
    def intervention(self) -> Any: ...

    def call_task(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]: ...


session_of_block: ContextVar[ToolCaller | None] = ContextVar("satay_session_of_block", default=None)
"""The session in whose `async with` block the code runs."""

attempt_of_block: ContextVar[Attempt | None] = ContextVar("satay_attempt_of_block", default=None)
"""The attempt of the tool that has entered that block; None where no tool did."""

current_attempt: ContextVar[Attempt | None] = ContextVar("satay_current_attempt", default=None)


def calling_session() -> ToolCaller | None:
    """The session whose block the code runs in; None outside of one, and in an attempt that was begun in the block."""
    session = session_of_block.get()
    return session if attempt_of_block.get() is current_attempt.get() else None


def governing_terms() -> ForkTerms | None:
    """What forks impose on runs that are started here: those of the attempt that the code runs in, if it is in one."""
    attempt = current_attempt.get()
    return None if attempt is None else attempt.terms


def task_context() -> TaskContext:
    """The context of the attempt that is running. Raises `UsageError` outside of a task."""
    attempt = current_attempt.get()
    if attempt is None or current_schedule() is not None:
        raise UsageError("task_context() was called outside a task; it has a meaning only while a @satay.task runs")
    return attempt.task_context()
