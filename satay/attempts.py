"""One attempt of a task: fresh arguments, the function, its result through the codec, within the timeout."""

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

from satay.calls import TaskCall
from satay.clock import MICROSECONDS, Alarm, Clock
from satay.context import Attempt as Enclosing
from satay.context import TaskContext, current_attempt
from satay.definitions import Task, declared_effect
from satay.effects import Effect, ForkTerms, Ruling, ToolPolicy, idempotency_key, restrict
from satay.errors import EncodeError, TaskTimeoutError
from satay.inputs import InputCodec
from satay.model import CallId
from satay.outcomes import blocked_error, encode_refusal
from satay.threads import ThreadPool


class AttemptedRun(Protocol):
    """The run or the session that an attempt belongs to."""

    @property
    def run_id(self) -> str: ...

    @property
    def root_run_id(self) -> str: ...

    @property
    def intervention(self) -> Any: ...

    @property
    def terms(self) -> ForkTerms | None: ...

    def ruling(self, task: Task[..., Any]) -> Ruling | None: ...


class Hold(Protocol):
    """That nobody else makes the call of an attempt meanwhile."""

    @property
    def is_certain(self) -> bool:
        """Whether that is known to be so. Asked from any thread."""
        ...

    async def make_certain(self) -> None:
        """Find out. Raises where others have taken over, or may have: then nothing has begun."""
        ...


class Attempt:
    """An attempt that runs on the host's loop. `run` returns the result's text and its decoded copy.

    `has_begun` says that the function was called, `has_returned` that it returned: an error after that is about its
    result.
    """

    __slots__ = ("_context", "_enclosing", "_hold", "_run", "call", "has_begun", "has_returned")

    def __init__(self, run: AttemptedRun, call: TaskCall, hold: Hold) -> None:
        self._run = run
        self._hold = hold
        self.call = call
        self.has_begun = False
        self.has_returned = False
        self._context: TaskContext | None = None
        self._enclosing: Enclosing | None = None

    @property
    def terms(self) -> ForkTerms | None:
        own, outer = self._run.terms, None if self._enclosing is None else self._enclosing.terms
        if own is None or outer is None:
            return own or outer
        return replace(own, policies=restrict(own.policies, outer.policies, declared_effect))

    def task_context(self) -> TaskContext:
        if self._context is None:
            call, run = self.call, self._run
            occurrence = call.occurrence
            self._context = TaskContext(
                run_id=run.run_id,
                task=call.name,
                ordinal=occurrence if isinstance(occurrence, int) else None,
                key=occurrence if isinstance(occurrence, str) else None,
                attempt=call.attempt,
                idempotency_key=idempotency_key(run.root_run_id, call.identity),
                fork_idempotency_key=idempotency_key(run.run_id, call.identity),
                intervention=run.intervention,
            )
        return self._context

    def check_policy(self, task: Task[..., Any]) -> None:
        """Raise `TaskBlockedError` where a fork may not run a task that the task of this attempt calls itself.

        There is no recorded call that could be refused or replayed; so what must not run is an error there. What holds
        for an attempt holds for the sessions that it opens, too.
        """
        if self._enclosing is not None:
            self._enclosing.check_policy(task)
        ruling, terms = self._run.ruling(task), self._run.terms
        if ruling is None or terms is None or ruling.policy in (ToolPolicy.AUTO, ToolPolicy.LIVE):
            return
        reason = f"{ruling.reason}, and task {self.call.name!r} called it itself"
        raise blocked_error(task.name, encode_refusal(terms, ruling, reason))

    def is_part_of(self, run: AttemptedRun, identity: CallId) -> bool:
        """Whether it is an attempt of that very call, or was made by one."""
        if self._run is run and self.call.identity == identity:
            return True
        return isinstance(self._enclosing, Attempt) and self._enclosing.is_part_of(run, identity)

    async def run(self, clock: Clock, threads: ThreadPool, allow_pickle: bool) -> tuple[str, Any]:
        """Make the attempt. Raises what the task raised, or `TaskTimeoutError`."""
        self._enclosing = current_attempt.get()
        current_attempt.set(self)
        task = self.call.task
        args, kwargs = self._arguments(allow_pickle)
        if task.timeout is not None:
            result = await self._call_in_time(clock, threads, args, kwargs, task.timeout)
        else:
            result = await self._call(threads, args, kwargs)
        if not task.is_async and inspect.isawaitable(result):
            raise _refused(result, task.name)
        self.has_returned = True
        return task.result_codec.encode_and_decode(result, task.result_where)

    async def _call(
        self,
        threads: ThreadPool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        on_begin: Callable[[], None] | None = None,
    ) -> Any:
        """Call the function. `on_begin` is told when it begins: a call that waits for a thread has not.

        It begins only where nobody else can be making the call. A process that was stopped, or whose loop was blocked,
        may have lost it since the call was recorded.
        """
        task = self.call.task
        while not self._hold.is_certain:  # It may lapse again while that is found out.
            await self._hold.make_certain()
        if task.is_async:
            self.has_begun = True
            if on_begin is not None:
                on_begin()
            return await task.fn(*args, **kwargs)
        try:
            result = await threads.run(partial(self._begin, args, kwargs), task.name, on_begin)
        except _LapsedError:
            return await self._call(threads, args, kwargs, on_begin)
        return await result if task.is_wrapped and inspect.isawaitable(result) else result

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a plain function, in its thread, for which it may have waited long."""
        if not self._hold.is_certain:
            raise _LapsedError
        self.has_begun = True
        return self.call.task.fn(*args, **kwargs)

    def usage_facts(self) -> str:
        """What the attempt recorded of models used, as payload members."""
        if self._context is None or not self._context.usage:
            return ""
        return f',"usage":{json.dumps([asdict(usage) for usage in self._context.usage], separators=(",", ":"))}'

    def _arguments(self, allow_pickle: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments that are this attempt's own."""
        task = self.call.task
        codec = task.input_codec
        text = self.call.input_text or "{}"
        if isinstance(codec, InputCodec):
            return codec.decode(text, task.input_where)
        return codec.decode(text, task.input_where, allow_pickle=allow_pickle)

    async def _call_in_time(
        self, clock: Clock, threads: ThreadPool, args: tuple[Any, ...], kwargs: dict[str, Any], seconds: float
    ) -> Any:
        task = self.call.task
        scope = asyncio.timeout(None)
        limit = _TimeLimit(clock, round(seconds * MICROSECONDS), scope)
        try:
            async with scope:
                return await self._call(threads, args, kwargs, limit.begin)
        except TimeoutError as error:
            if not scope.expired():
                raise
            unclear = (
                "; it is external, so nobody knows whether it took effect, and it is not tried again: find out, or "
                "catch this error and make good for it"
                if task.effect is Effect.EXTERNAL
                else ""
            )
            raise TaskTimeoutError(
                f"attempt {self.call.attempt} of task {self.call.name!r} ran longer than its timeout, {seconds:g} s"
                f"{unclear}"
            ) from error
        finally:
            limit.end()


class _LapsedError(Exception):
    """A function was not called, because others may be making the call."""


class _TimeLimit:
    """The time that an attempt has, from when its function begins."""

    __slots__ = ("_alarm", "_clock", "_duration", "_scope")

    def __init__(self, clock: Clock, duration: int, scope: asyncio.Timeout) -> None:
        self._clock = clock
        self._duration = duration
        self._scope = scope
        self._alarm: Alarm | None = None

    def begin(self) -> None:
        self.end()
        self._alarm = self._clock.call_at(self._clock.now() + self._duration, self._run_out)

    def end(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _run_out(self) -> None:
        self._scope.reschedule(asyncio.get_running_loop().time())


def _refused(result: Any, name: str) -> EncodeError:
    """The error of a plain function that gave something to await: what it was to do has not happened."""
    kind = type(result).__name__
    if inspect.iscoroutine(result):
        result.close()  # Else Python warns that nobody awaited it.
    return EncodeError(
        f"task {name!r} is a plain function and returned a {kind}, which nothing awaits; make the function, or the "
        "wrapper that a decorator put around it, an 'async def' that awaits it"
    )
