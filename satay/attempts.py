"""One attempt of a task: fresh arguments, the function, its result through the codec, within the timeout."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

from satay.calls import TaskCall
from satay.clock import MICROSECONDS, Clock
from satay.codec import InputCodec
from satay.context import TaskContext, current_attempt
from satay.drive import Drive
from satay.effects import idempotency_key
from satay.errors import TaskTimeoutError
from satay.threads import ThreadPool


class Attempt:
    """An attempt that runs on the host's loop. `run` returns the result's text and its decoded copy."""

    __slots__ = ("_context", "_drive", "call")

    def __init__(self, drive: Drive, call: TaskCall) -> None:
        self._drive = drive
        self.call = call
        self._context: TaskContext | None = None

    def task_context(self) -> TaskContext:
        if self._context is None:
            call, drive = self.call, self._drive
            occurrence = call.occurrence
            self._context = TaskContext(
                run_id=drive.run_id,
                task=call.name,
                ordinal=occurrence if isinstance(occurrence, int) else None,
                key=occurrence if isinstance(occurrence, str) else None,
                attempt=call.attempt,
                idempotency_key=idempotency_key(drive.root_run_id, call.identity),
                fork_idempotency_key=idempotency_key(drive.run_id, call.identity),
                intervention=drive.intervention,
            )
        return self._context

    async def run(self, clock: Clock, threads: ThreadPool, allow_pickle: bool) -> tuple[str, Any]:
        """Make the attempt. Raises what the task raised, or `TaskTimeoutError`."""
        current_attempt.set(self)
        task = self.call.task
        args, kwargs = self._arguments(allow_pickle)
        if task.timeout is not None:
            result = await self._call_in_time(clock, threads, args, kwargs, task.timeout)
        elif task.is_async:
            result = await task.fn(*args, **kwargs)
        else:
            result = await threads.run(task.fn, args, kwargs)
        return task.result_codec.encode_and_decode(result, task.result_where)

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
        loop = asyncio.get_running_loop()
        scope = asyncio.timeout(None)
        alarm = clock.call_at(clock.now() + round(seconds * MICROSECONDS), lambda: scope.reschedule(loop.time()))
        try:
            async with scope:
                if task.is_async:
                    return await task.fn(*args, **kwargs)
                return await threads.run(task.fn, args, kwargs)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise TaskTimeoutError(
                f"attempt {self.call.attempt} of task {self.call.name!r} ran longer than its timeout, {seconds:g} s"
            ) from error
        finally:
            alarm.cancel()
