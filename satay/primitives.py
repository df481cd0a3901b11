"""What a workflow body calls: waiting, composing, and time, ids and chance that come from the journal."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from random import Random
from types import UnionType
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar, Union, cast, get_origin, overload

from satay.approval_records import Approval
from satay.arguments import (
    checked_approval_key,
    checked_count,
    checked_duration,
    checked_flag,
    checked_key,
    key_problem,
    name_problem,
    shown,
)
from satay.codec import is_encoding
from satay.context import (
    PendingCall,
    PendingChild,
    calling_session,
    current_attempt,
    current_schedule,
    require_schedule,
)
from satay.declarations import value_codec
from satay.definitions import P, R, Task, Workflow, check_is_workflow, default_name
from satay.drive import ContinueAsNew
from satay.errors import DuplicateKeyError, InvalidValueError, UsageError
from satay.logs import bound_log, plain_log
from satay.model import MISSING

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")

MAX_CONCURRENCY: Final = 1_000_000
"""The largest `concurrency` of a map."""


async def sleep(duration: float | timedelta) -> None:
    """Sleep for a duration in seconds, durably: the run costs a row meanwhile and survives the process.

    Zero and less return at once. Raises `InvalidValueError` for NaN, infinity and more than a hundred years, and
    `UsageError` outside of a body.
    """
    require_schedule("satay.sleep()")
    await asyncio.sleep(checked_duration(duration, "the duration of satay.sleep()"))


@overload
async def wait_for_event(event: type[T], *, key: str | None = None, timeout: float | timedelta | None = None) -> T: ...
@overload
async def wait_for_event(event: str, *, key: str | None = None, timeout: float | timedelta | None = None) -> Any: ...
async def wait_for_event(
    event: type[Any] | str, *, key: str | None = None, timeout: float | timedelta | None = None
) -> Any:
    """Wait for an event of a type, given as its class or its name, that was sent with the same `key`.

    An event that was sent before waits in the inbox; each is delivered once, first in, first out; waits that match the
    same event are served in the order they began. Raises `EventTimeoutError` if none comes within `timeout` seconds; an
    event that is there wins over a timeout that is due. Raises `InvalidValueError`, with nothing recorded, for what is
    neither a class nor a name, and for a key or a timeout that cannot be used; `UsageError` outside of a body.
    """
    schedule = require_schedule("satay.wait_for_event()")
    origin = get_origin(event)
    is_generic = isinstance(origin, type) and origin not in (UnionType, Union)
    if not isinstance(event, str | type) and not is_generic:
        raise InvalidValueError(
            f"satay.wait_for_event() was given {shown(event)}; give the class of the event, or its name"
        )
    name = event_name(event)
    seconds = None if timeout is None else checked_duration(timeout, f"timeout of the wait for event {name!r}")
    codec = value_codec(Any if isinstance(event, str) else event)
    return await _outcome(
        schedule.open_event_wait(name, codec, checked_key(key, f"key of the wait for event {name!r}"), seconds)
    )


async def require_approval(key: str, payload: Any = None, *, timeout: float | timedelta | None = None) -> Approval:
    """Ask for an approval, and wait until somebody has decided with `satay.decide_approval`, which may take days.

    `key` names the request in its run: the same key asks for the same, and gets the same answer. `payload` is what is
    to be approved, for those who decide to see. Both ways to decide are an answer, which is true where it was approved.
    Giving up the wait does not take the request back.

    Raises `ApprovalTimeoutError` where nobody decides within `timeout` seconds of the first request, whether a process
    is there or not; `CallConflictError` for a key that stands for another payload; `EncodeError` and
    `InvalidValueError`, with nothing recorded, for a payload, key or timeout that cannot be used; `UsageError` outside
    of a body.
    """
    schedule = require_schedule("satay.require_approval()")
    checked_approval_key(key)
    seconds = None if timeout is None else checked_duration(timeout, f"timeout of approval {key!r}")
    decision: Approval = await asyncio.shield(schedule.open_approval(key, payload, seconds).future)
    return decision


@overload
async def map(
    task: Task[[T], R],
    items: Iterable[T],
    *,
    key: Callable[[T], str] | None = None,
    concurrency: int | None = None,
    return_exceptions: Literal[False] = False,
) -> list[R]: ...
@overload
async def map(
    task: Task[[T], R],
    items: Iterable[T],
    *,
    key: Callable[[T], str] | None = None,
    concurrency: int | None = None,
    return_exceptions: bool,
) -> list[R | BaseException]: ...
async def map(
    task: Task[[T], R],
    items: Iterable[T],
    *,
    key: Callable[[T], str] | None = None,
    concurrency: int | None = None,
    return_exceptions: bool = False,
) -> list[Any]:
    """Call a task for each item, side by side, and return the results in the order of the items.

    With `key`, a call is named by its item's key instead of its ordinal, so items may come in another order later.
    At most `concurrency` calls are outstanding at a time. When a call fails, the others are cancelled and its error is
    raised; with `return_exceptions` errors take the place of results instead.

    Raises `UsageError` outside of a body and for what is no task and, before anything is scheduled,
    `InvalidValueError` where `items` cannot be iterated over, `concurrency` is not at least 1, or keys are missing, not
    texts, too long, or not unique: the message lists all of them.
    """
    schedule = require_schedule("satay.map()")
    if not isinstance(task, Task):
        raise UsageError(f"satay.map() was given {shown(task)}; it calls functions decorated with @satay.task")
    if concurrency is not None:
        checked_count(concurrency, "concurrency of satay.map()", 1, MAX_CONCURRENCY)
    checked_flag(return_exceptions, "return_exceptions of satay.map()")
    if not isinstance(items, Iterable):
        raise InvalidValueError(f"satay.map() was given {shown(items)} as items; give a list of them")
    everything = list(items)
    keys: Sequence[str | None] = [None] * len(everything) if key is None else _item_keys(everything, key)
    if key is not None:
        schedule.check_keys(task.head, cast("Sequence[str]", keys))
    gate = asyncio.Semaphore(concurrency if concurrency is not None else max(1, len(everything)))

    async def branch(item: T, item_key: str | None) -> R:
        async with gate:
            return await task.call_durably(schedule, (item,), {}, item_key)

    return await _gather([branch(*pair) for pair in zip(everything, keys, strict=True)], return_exceptions)


@overload
async def gather(one: Awaitable[T1], /) -> tuple[T1]: ...
@overload
async def gather(one: Awaitable[T1], two: Awaitable[T2], /) -> tuple[T1, T2]: ...
@overload
async def gather(one: Awaitable[T1], two: Awaitable[T2], three: Awaitable[T3], /) -> tuple[T1, T2, T3]: ...
@overload
async def gather(
    one: Awaitable[T1], two: Awaitable[T2], three: Awaitable[T3], four: Awaitable[T4], /
) -> tuple[T1, T2, T3, T4]: ...
@overload
async def gather(*awaitables: Awaitable[T], return_exceptions: Literal[False] = False) -> tuple[T, ...]: ...
@overload
async def gather(*awaitables: Awaitable[T], return_exceptions: bool) -> tuple[T | BaseException, ...]: ...
async def gather(*awaitables: Awaitable[Any], return_exceptions: bool = False) -> tuple[Any, ...]:
    """Await several things side by side, as `asyncio.gather` does, but leave none behind.

    When one fails, the others are cancelled, and awaited, before its error is raised; with `return_exceptions` errors
    take the place of results instead. Raises `InvalidValueError`, with nothing begun, for what cannot be awaited, and
    `UsageError` outside of a body.
    """
    require_schedule("satay.gather()")
    try:
        checked_flag(return_exceptions, "return_exceptions of satay.gather()")
        _check_awaitable(awaitables)
    except InvalidValueError:
        for awaitable in awaitables:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()  # Else Python warns that nobody awaited it, which is not what went wrong.
        raise
    return tuple(await _gather(awaitables, return_exceptions))


class ChildHandle(Generic[R]):
    """A child run, as its parent sees it. It runs already; `await child.result()` waits for it."""

    def __init__(self, call: PendingChild) -> None:
        self._call = call

    @property
    def run_id(self) -> str:
        """The id of the child."""
        return self._call.run_id

    async def result(self) -> R:
        """The child's result. Raises the child's error; giving up the wait does not cancel the child."""
        return cast(R, await asyncio.shield(self._call.future))

    def cancel(self) -> None:
        """Cancel the child; a `result()` that waits raises `asyncio.CancelledError`."""
        require_schedule("ChildHandle.cancel()").cancel_call(self._call)
        self._call.future.cancel()

    def __repr__(self) -> str:
        return f"<satay.ChildHandle {self.run_id!r}>"


def start_child(workflow: Workflow[P, R], input: Any = MISSING, *, key: str | None = None) -> ChildHandle[R]:
    """Start a workflow as a run of its own, linked to this one. It is cancelled when this run ends before it.

    Its identity is the ordinal among the children of that workflow, or `key`. A child that has finished answers from
    its own journal. Raises `UsageError` outside of a body and for what is no workflow, `InvalidValueError` for a key
    that cannot be used; an input that does not fit is raised by `result()`, and so is a child that cannot be created.
    """
    schedule = require_schedule("satay.start_child()")
    check_is_workflow(workflow, "satay.start_child")
    checked_key(key, f"key of child workflow {workflow.name!r}")
    call = schedule.open_child(workflow, () if input is MISSING else (input,), key)
    return ChildHandle(call)


def continue_as_new(input: Any = MISSING) -> NoReturn:
    """End this run and go on as a new one of the same workflow, so that an endless one keeps a short journal.

    Handles and parents follow to the new run. Events that were sent to this run and not taken go over to it. It does
    not return: it raises what ends the body, which only code that catches `BaseException` can hold up. Raises
    `UsageError` outside of a body. An input that does not fit fails the run with an `EncodeError`.
    """
    require_schedule("satay.continue_as_new()")
    raise ContinueAsNew(() if input is MISSING else (input,))


def now() -> datetime:
    """The moment, aware UTC, as the journal has it: the same on every replay. Raises `UsageError` outside of a body."""
    return require_schedule("satay.now()").now()


def random() -> Random:
    """The run's own source of chance: seeded from the journal, the same on every replay. Forks inherit the seed.

    Raises `UsageError` outside of a body, and in a validator or a default that runs because a call's values are
    recorded: a replay records nothing, so it would draw less.
    """
    return _chance("satay.random()")


def uuid4() -> uuid.UUID:
    """A random UUID from the run's own source of chance. Raises as `random`."""
    return uuid.UUID(int=_chance("satay.uuid4()").getrandbits(128), version=4)


def _chance(what: str) -> Random:
    if is_encoding():
        raise UsageError(
            f"{what} was called while the values of a call were recorded, which a replay does not do; draw chance in "
            "the body and pass it, instead of in a validator or a default"
        )
    return require_schedule(what).random


def intervention() -> Any:
    """What the fork that runs was given as its `intervention`, in a body, a session or a task; None where it has none.

    Raises `UsageError` outside of them.
    """
    schedule = current_schedule()
    if schedule is not None:
        return schedule.intervention
    session = calling_session()
    if session is not None:
        return session.intervention
    attempt = current_attempt.get()
    if attempt is None:
        raise UsageError("satay.intervention() was called outside a workflow, session and task; it belongs to a run")
    return attempt.task_context().intervention


def get_logger() -> Any:
    """A structlog logger, bound to run and workflow in a body, where it is silent while history is replayed."""
    schedule = current_schedule()
    if schedule is None:
        return plain_log()
    return bound_log(lambda: schedule.is_replaying, run_id=schedule.run_id, workflow=schedule.workflow)


def _check_awaitable(things: Iterable[object]) -> None:
    for thing in things:
        if isinstance(thing, Awaitable):
            continue
        match thing:
            case list() | tuple():
                hint = "; unpack what a list holds, satay.gather(*calls)"
            case ChildHandle():
                hint = "; hand over its child.result()"
            case Task() | Workflow():
                hint = "; call it, with its arguments"
            case _:
                hint = ""
        raise InvalidValueError(f"satay.gather() was given {shown(thing)}, which cannot be awaited{hint}")


def event_name(event: type[Any] | str) -> str:
    """The name by which senders and waiters of an event find each other."""
    name = event if isinstance(event, str) else default_name(event)
    problem = name_problem(name)
    if problem:
        raise InvalidValueError(f"event name {shown(name)} cannot be used; {problem}")
    return name


def _item_keys(items: Sequence[T], key: Callable[[T], str]) -> list[str]:
    keys: list[str] = []
    seen: set[str] = set()
    problems: list[str] = []
    bad: list[str] = []
    for position, item in enumerate(items):
        try:
            item_key = key(item)
        except Exception as error:
            problems.append(f"item {position}: key raised {error!r}")
            continue
        problem = key_problem(item_key) or ("this key came before" if item_key in seen else None)
        if problem:
            problems.append(f"item {position}: key {shown(item_key)}: {problem}")
            bad.append(str(item_key))
        else:
            seen.add(item_key)
        keys.append(item_key)
    if problems:
        raise DuplicateKeyError(f"satay.map() was given keys that it cannot use: {'; '.join(problems)}", keys=bad)
    return keys


async def _outcome(call: PendingCall) -> Any:
    try:
        return await call.future
    except BaseException:
        require_schedule("a durable call").cancel_call(call)
        raise


async def _gather(awaitables: Iterable[Awaitable[Any]], return_exceptions: bool) -> list[Any]:
    branches = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*branches, return_exceptions=return_exceptions)
    except BaseException:
        for branch in branches:
            branch.cancel()
        if branches:
            await asyncio.wait(branches)
        raise
