"""Workflows and tasks as they are defined: the decorators, the names, and the registry by which a run finds its code.

A definition is made once, when its function is decorated. Two different functions under one name would make a journal
ambiguous, so that is an error at decoration; `satay.redefinitions` says which functions are different ones.
"""

import functools
import gc
import hashlib
import inspect
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from satay.arguments import (
    check_is_no_session,
    check_is_run,
    checked_count,
    checked_duration,
    checked_errors,
    name_problem,
    shown,
)
from satay.codec import ValueCodec
from satay.context import NOT_RECALLED, Schedule, calling_session, current_attempt, current_schedule
from satay.declarations import result_codec
from satay.effects import Effect, parse_effect, unclear_errors
from satay.errors import InvalidValueError, RegistrationError, UnknownWorkflowError, UsageError
from satay.features import DEFINED_IN
from satay.inputs import InputCodec, input_codec
from satay.model import MISSING, UNKNOWN_VERSION
from satay.pickles import PickleCodec
from satay.redefinitions import Site, site_of
from satay.retries import MAX_RETRIES, Backoff, RetryPolicy
from satay.texts import json_quote

P = ParamSpec("P")
R = TypeVar("R")

_LOCALS = re.compile(r"\.<locals>")
_CODE_VERSION_LENGTH = 12


class Task(Generic[P, R]):
    """A function whose calls inside a workflow are durable.

    Inside a workflow body, and in the block of a session, `await task(...)` is recorded, retried, and answered from the
    journal when it is asked for again. Anywhere else, and inside another task, `task(...)` is the plain function call.
    `fn` is the function itself.
    """

    def __init__(
        self,
        fn: Callable[P, Any],
        name: str,
        effect: Effect,
        policy: RetryPolicy,
        timeout: float | None,
        codec: Literal["json", "pickle"],
        *,
        is_wrapped: bool = False,
    ) -> None:
        # First, and without the attributes of an object that can be called, which would hide the task's own.
        functools.update_wrapper(self, fn, updated=("__dict__",) if isinstance(fn, FunctionType) else ())
        self.fn = fn
        self.name = name
        self.effect = effect
        self.policy = policy
        self.timeout = timeout
        self.codec_name = codec
        self.is_wrapped = is_wrapped
        self.is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
        self.head = f'"task":{json_quote(name)}'
        self.tail = ("" if effect is Effect.UNDECLARED else f',"effect":"{effect}"') + (
            ',"codec":"pickle"' if codec == "pickle" else ""
        )
        self.input_where = f"the input of task {name!r}"
        self.result_where = f"the result of task {name!r}"
        self._call = _under_name(Task.call_durably, f"satay.task {name}")

    def renamed(self, name: str) -> "Task[P, R]":
        """The same task under another name, which is not registered."""
        return Task(self.fn, name, self.effect, self.policy, self.timeout, self.codec_name, is_wrapped=self.is_wrapped)

    @functools.cached_property
    def input_codec(self) -> "InputCodec | PickledInputCodec":
        """How arguments are written and read back. Made at the first call, when all annotations can be resolved."""
        return PickledInputCodec(self.fn) if self.codec_name == "pickle" else input_codec(self.fn)

    @functools.cached_property
    def result_codec(self) -> "ValueCodec | PickleCodec":
        """How results are written and read back."""
        return PickleCodec() if self.codec_name == "pickle" else result_codec(self.fn)

    def _begin_call(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        schedule = current_schedule()
        if schedule is None:
            session = calling_session()
            if session is not None:
                return session.call_task(self, args, kwargs)
            attempt = current_attempt.get()
            if attempt is not None:
                attempt.check_policy(self)
            return cast("Coroutine[Any, Any, R]", self.fn(*args, **kwargs))
        call: Coroutine[Any, Any, R] = self._call(self, schedule, args, kwargs, None)
        return call

    if TYPE_CHECKING:  # Where a coroutine is declared with Any, mypy 1.20 finds no overload of asyncio.gather for it.

        async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:
        __call__ = _begin_call

    async def call_durably(
        self, schedule: Schedule, args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None
    ) -> R:
        """Open the call when this is first awaited, and wait for its outcome."""
        if key is None:
            recalled: R = schedule.recall_result(self, args, kwargs)
            if recalled is not NOT_RECALLED:
                return recalled
        call = schedule.open_task(self, args, kwargs, key)
        try:
            return cast(R, await call.future)
        except BaseException:
            schedule.cancel_call(call)
            raise

    def __repr__(self) -> str:
        return f"<satay.task {self.name!r}>"


def _under_name(fn: Any, name: str) -> Any:
    """The same function under a name of its own, which its coroutines have in the warning about a forgotten await."""
    named = FunctionType(fn.__code__, fn.__globals__, name)
    named.__qualname__ = name
    return named


class PickledInputCodec:
    """Arguments as one pickle, for tasks with `codec="pickle"`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._signature = inspect.signature(fn)
        self._codec = PickleCodec()

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> str:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidValueError(f"{where} does not fit: {error}") from None
        return self._codec.encode((args, kwargs), where)

    def decode(self, text: str, where: str, *, allow_pickle: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return cast(
            "tuple[tuple[Any, ...], dict[str, Any]]", self._codec.decode(text, where, allow_pickle=allow_pickle)
        )


class Workflow(Generic[P, R]):
    """An async function whose runs are durable. Started with `satay.start`, `satay.run`, or as a child.

    Called directly it is the plain coroutine function: inside another workflow's body it runs as part of that body.
    """

    def __init__(self, fn: Callable[P, Coroutine[Any, Any, R]], name: str) -> None:
        self.fn = fn
        self.name = name
        _check_signature(fn, name)
        functools.update_wrapper(self, fn)

    @functools.cached_property
    def input_codec(self) -> InputCodec:
        return input_codec(self.fn)

    @property
    def input_name(self) -> str | None:
        """The name of the parameter that takes the input; None for a workflow that takes none."""
        parameters = inspect.signature(self.fn).parameters.values()
        positional = (p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
        return next(positional, None)

    @functools.cached_property
    def result_codec(self) -> ValueCodec:
        return result_codec(self.fn)

    @functools.cached_property
    def code_version(self) -> str:
        """What `SATAY_CODE_VERSION` says, else a digest of the source file that defines the workflow."""
        return os.environ.get("SATAY_CODE_VERSION") or source_version(self.fn)

    def encode_input(self, input: Any) -> str:
        """An input as recorded; `MISSING` is recorded as no input, which is not the same as None."""
        where = f"the input of workflow {self.name!r}"
        return self.input_codec.encode(() if input is MISSING else (input,), {}, where)

    def decode_input(self, text: str) -> Any:
        """An input from what was recorded; `MISSING` where it is none."""
        args, kwargs = self.input_codec.decode(text, f"the input of workflow {self.name!r}")
        return next(iter([*args, *kwargs.values()]), MISSING)

    if TYPE_CHECKING:  # As for a task.

        async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:

        def __call__(self, *args, **kwargs):
            return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<satay.workflow {self.name!r}>"


class TaskDecorator(Protocol):
    """What `@satay.task(...)` with options returns."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class WorkflowDecorator(Protocol):
    """What `@satay.workflow(...)` with options returns."""

    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


@overload
def task(fn: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
@overload
def task(fn: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    retries: int = 0,
    backoff: Backoff | float | None = None,
    timeout: float | timedelta | None = None,
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
    no_retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    effect: Literal["pure", "idempotent", "external"] | None = None,
    codec: Literal["json", "pickle"] = "json",
) -> TaskDecorator: ...
def task(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retries: int = 0,
    backoff: Backoff | float | None = None,
    timeout: float | timedelta | None = None,
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
    no_retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    effect: Literal["pure", "idempotent", "external"] | None = None,
    codec: Literal["json", "pickle"] = "json",
) -> Any:
    """Make a function, `async def` or plain `def`, a task: a call that a workflow records.

    `retries` attempts follow a failed first one, for errors in `retry_on` and not in `no_retry_on`, after delays that
    `backoff` gives (a `Backoff`, or the first delay in seconds). `timeout` bounds each attempt, in seconds. `effect`
    says what a repeated attempt would do: nothing (`"pure"`), the same thing once (`"idempotent"`, keyed on
    `task_context().idempotency_key`), or something that must not happen twice (`"external"`). An external attempt that
    runs out of time is not followed by another: nobody knows whether it took effect. `codec="pickle"` is for values
    that have no better form. Plain functions run in satay's own threads.

    Raises `RegistrationError` if the name is taken by another function, the function is a method or a generator, or an
    `effect` or a `codec` is none of these; `InvalidValueError` for a number that cannot be honoured, and for what is no
    class of exceptions.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        task_name = _checked_name(name, fn, "task")
        _refuse_method(fn, "task")
        _refuse_generator(fn, "task")
        if codec not in ("json", "pickle"):
            raise RegistrationError(f"task {task_name!r} asks for codec={codec!r}; it can be 'json' or 'pickle'")
        declared = parse_effect(effect, task_name)
        policy = _retry_policy(task_name, declared, retries, backoff, retry_on, no_retry_on)
        return tasks.add(Task(fn, task_name, declared, policy, _checked_timeout(timeout, task_name), codec))

    return decorate if fn is None else decorate(fn)


@overload
def effect(
    fn: Callable[P, Awaitable[R]],
    /,
    *,
    name: str | None = None,
    effect: Literal["pure", "idempotent", "external"] | None = None,
    retries: int = 0,
    backoff: Backoff | float | None = None,
    timeout: float | timedelta | None = None,
) -> Task[P, R]: ...
@overload
def effect(
    fn: Callable[P, R],
    /,
    *,
    name: str | None = None,
    effect: Literal["pure", "idempotent", "external"] | None = None,
    retries: int = 0,
    backoff: Backoff | float | None = None,
    timeout: float | timedelta | None = None,
) -> Task[P, R]: ...
def effect(
    fn: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    effect: Literal["pure", "idempotent", "external"] | None = None,
    retries: int = 0,
    backoff: Backoff | float | None = None,
    timeout: float | timedelta | None = None,
) -> Task[..., Any]:
    """Wrap any callable, also a method or one of a library's, so that sessions ledger its calls as those of a task.

    Everywhere else it stays as it is. The options are those of `@satay.task`. `name` is needed where the callable has
    none of its own. Plain functions run in satay's own threads; what they return to be awaited is awaited.

    Raises `RegistrationError` for what cannot be called, has no name, or is a task, which has options of its own, and
    for an `effect` that there is not; `InvalidValueError` for a number that cannot be honoured.
    """
    if isinstance(fn, Task):
        raise RegistrationError(f"satay.effect() was given {fn!r}, which is a task already: call it as it is")
    if not callable(fn):
        raise RegistrationError(f"satay.effect() was given {shown(fn)}, which cannot be called")
    found = getattr(fn, "__qualname__", None) if name is None else name
    chosen = _LOCALS.sub("", found) if isinstance(found, str) else found
    problem = name_problem(chosen)
    if problem:
        raise RegistrationError(f"satay.effect({shown(fn)}) needs name=, a name for the tool; {problem}")
    tool = str(chosen)
    declared = parse_effect(effect, tool)
    policy = _retry_policy(tool, declared, retries, backoff, Exception, ())
    return Task(fn, tool, declared, policy, _checked_timeout(timeout, tool), "json", is_wrapped=True)


def _retry_policy(
    name: str,
    effect: Effect,
    retries: int,
    backoff: Backoff | float | None,
    retry_on: object,
    no_retry_on: object,
) -> RetryPolicy:
    return RetryPolicy(
        retries=checked_count(retries, f"retries of task {name!r}", 0, MAX_RETRIES),
        backoff=_parse_backoff(backoff, name),
        retry_on=checked_errors(retry_on, f"retry_on of task {name!r}"),
        no_retry_on=(*checked_errors(no_retry_on, f"no_retry_on of task {name!r}"), *unclear_errors(effect)),
    )


def _checked_timeout(timeout: object, name: str) -> float | None:
    if timeout is None:
        return None
    seconds = checked_duration(timeout, f"timeout of task {name!r}")
    if not seconds:
        raise InvalidValueError(
            f"timeout of task {name!r} is {shown(timeout)}, which leaves no time for an attempt; give a time above "
            "zero, or None for attempts without a bound"
        )
    return seconds


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(*, name: str | None = None) -> WorkflowDecorator: ...
def workflow(fn: Callable[..., Coroutine[Any, Any, Any]] | None = None, /, *, name: str | None = None) -> Any:
    """Make an `async def` function a workflow.

    It takes no parameter or one, the input; further parameters need defaults. Its body may use asyncio freely but does
    no input or output of its own: that belongs in tasks.

    Raises `RegistrationError` if the name is taken by another function, the function is a method or not async, or the
    signature does not fit.
    """

    def decorate(fn: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        workflow_name = _checked_name(name, fn, "workflow")
        _refuse_method(fn, "workflow")
        _refuse_generator(fn, "workflow")
        if not inspect.iscoroutinefunction(fn):
            raise RegistrationError(f"workflow {workflow_name!r} is not an async function; define it with 'async def'")
        return workflows.add(Workflow(fn, workflow_name))

    return decorate if fn is None else decorate(fn)


DefinitionT = TypeVar("DefinitionT", bound="Task[..., Any] | Workflow[..., Any]")


class Registry(Generic[DefinitionT]):
    """The definitions of one kind that this process has imported, by name."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._by_name: dict[str, DefinitionT] = {}
        self._sites: dict[str, Site] = {}
        self._offered: dict[str, DefinitionT] = {}
        self._earlier: dict[str, list[weakref.ref[Any]]] = {}

    def offer(self, definition: DefinitionT) -> None:
        """Have a definition of satay's own at hand: `get` does not know it before `find` was asked for it.

        A process that merely recovers runs leaves those alone that nobody in it has asked for.
        """
        self._offered[definition.name] = definition

    def find(self, name: str) -> DefinitionT | None:
        """A definition that is asked for by its name."""
        if name in DEFINED_IN and name not in self._by_name:
            import_module(DEFINED_IN[name])  # It offers the definition.
        offered = self._offered.pop(name, None)
        return self.get(name) if offered is None else self.add(offered)

    def add(self, definition: DefinitionT) -> DefinitionT:
        """Register under its name. A function that is defined again (a reload, a cell run again) replaces itself."""
        name, site = definition.name, site_of(definition.fn)
        there, earlier = self._by_name.get(name), self._sites.get(name)
        if there is not None and earlier is not None:
            if not site.replaces(earlier):
                raise RegistrationError(
                    f"{self._kind} {name!r} is defined twice: at {earlier} and at {site}; give one of them a "
                    f'name of its own, @satay.{self._kind}(name="...")'
                )
            if site.is_made_like(earlier) and there.fn.__closure__ != definition.fn.__closure__:
                in_use = [ref for ref in self._earlier.get(name, ()) if ref() is not None]
                self._earlier[name] = [*in_use, weakref.ref(there)]
        self._by_name[name], self._sites[name] = definition, site
        return definition

    def check_unambiguous(self, name: str) -> None:
        """Refuse a name under which one function was defined several times over other variables, all still in use.

        Which of them a run belongs to cannot be told by its name.
        """
        earlier = self._earlier.pop(name, [])
        if any(ref() is not None for ref in earlier):
            gc.collect()
        in_use = [ref for ref in earlier if ref() is not None]
        if in_use:
            self._earlier[name] = in_use
            raise RegistrationError(
                f"{self._kind} {name!r} was defined {len(in_use) + 1} times, at {self._sites[name]}, "
                "over different variables, and a run does not say which it belongs to; give each a name of its own, "
                f'@satay.{self._kind}(name="...")'
            )

    def get(self, name: str) -> DefinitionT | None:
        return self._by_name.get(name)

    def names(self) -> list[str]:
        return sorted(self._by_name)


tasks: Registry[Any] = Registry("task")
workflows: Registry[Any] = Registry("workflow")


def declared_effect(task_name: str) -> Effect:
    """The effect that a task declares; of one that is not imported, nothing is known."""
    known = tasks.get(task_name)
    return Effect.UNDECLARED if known is None else Effect(known.effect)


def find_workflow(name: str, run_id: str) -> Workflow[..., Any]:
    """The workflow that a run belongs to.

    Raises `UnknownWorkflowError` where it was not imported, `RunConflictError` for a session, which belongs to none.
    """
    check_is_run(run_id, name)
    check_is_no_session(run_id, name)
    definition = workflows.find(name)
    if definition is None:
        known = ", ".join(repr(known) for known in workflows.names()) or "none"
        raise UnknownWorkflowError(
            f"run {run_id!r} belongs to workflow {name!r}, which this process has not imported; it knows {known}. "
            f"If it was renamed, give it that name again, @satay.workflow(name={name!r}); else import the module that "
            "defines it first"
        )
    workflows.check_unambiguous(name)
    return cast("Workflow[..., Any]", definition)


def check_is_workflow(given: object, what: str) -> None:
    """Raise `UsageError` for what is no workflow; `what` is the function that it was given to."""
    if isinstance(given, Workflow):
        return
    problem = f"{what}() was given {shown(given)}; it starts functions decorated with @satay.workflow"
    if inspect.iscoroutine(given):
        given.close()  # Else Python warns that nobody awaited it, which is not what went wrong.
        problem += f", and calls them itself: {what}(workflow, input)"
    raise UsageError(problem)


def default_name(fn: Callable[..., Any]) -> str:
    """A function's qualified name without module noise."""
    return _LOCALS.sub("", fn.__qualname__)


def _checked_name(name: str | None, fn: Callable[..., Any], kind: str) -> str:
    if not isinstance(fn, FunctionType):
        raise RegistrationError(f"@satay.{kind} was put on {fn!r}; it decorates plain functions and async functions")
    chosen = default_name(fn) if name is None else name
    problem = name_problem(chosen)
    if problem:
        raise RegistrationError(f"{kind} name {shown(chosen)} cannot be used; {problem}")
    return chosen


def _refuse_generator(fn: Callable[..., Any], kind: str) -> None:
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise RegistrationError(
            f"{fn.__qualname__!r} yields, and a {kind} has one result, which is recorded as a whole; return a list, or "
            "record each part with a call of its own"
        )


def _refuse_method(fn: Callable[..., Any], kind: str) -> None:
    parameters = list(inspect.signature(fn).parameters)
    owner, _, _ = fn.__qualname__.rpartition(".")
    if parameters and parameters[0] in ("self", "cls") and owner and not owner.endswith("<locals>"):
        raise RegistrationError(
            f"{fn.__qualname__!r} is a method, and the object that it belongs to is not in the journal, so a run could "
            f"not be resumed; make it a function (or a static method) that takes what it needs as arguments and put "
            f"@satay.{kind} on that"
        )


def _check_signature(fn: Callable[..., Any], name: str) -> None:
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if (
        len(required) > 1
        or any(p not in positional for p in required)
        or (required and required[0] is not positional[0])
    ):
        raise RegistrationError(
            f"workflow {name!r} requires {', '.join(repr(p.name) for p in required)}; a workflow takes one input, so "
            "gather them in one record and give every other parameter a default"
        )


def _parse_backoff(backoff: Backoff | float | None, task_name: str) -> Backoff:
    if backoff is None:
        return Backoff()
    if isinstance(backoff, Backoff):
        return backoff
    return Backoff(first=checked_duration(backoff, f"backoff of task {task_name!r}"))


def source_version(fn: Callable[..., Any] | None) -> str:
    """A digest of the source file that defines a function; `unknown` where there is none to read."""
    try:
        path = None if fn is None else inspect.getsourcefile(fn)
    except TypeError:  # Built in, or an object that can be called.
        path = None
    return _file_version(path)


@functools.cache
def _file_version(path: str | None) -> str:
    if path is None or not Path(path).is_file():
        return UNKNOWN_VERSION
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:_CODE_VERSION_LENGTH]
