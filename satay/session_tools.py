"""The tools of an open session: what is called becomes a task, and its calls go through the ledger.

A session that is opened in a tool of a fork, or in its block, calls nothing that the fork may not call.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from satay.arguments import checked_duration, checked_key, name_problem, shown
from satay.claims import ToolCall
from satay.context import Attempt
from satay.declarations import OPAQUE
from satay.definitions import Task, tasks
from satay.definitions import effect as wrapped
from satay.effects import ToolPolicy
from satay.errors import InvalidValueError, UsageError
from satay.inputs import signature_of
from satay.ledgers import Claim, Ledger, ToolReceipt
from satay.outcomes import blocked_error, encode_refusal
from satay.texts import json_quote

MAX_WRAPPED: Final = 1_000
"""How many callables a session keeps ready as tools."""


class SessionTools:
    """Calls tools for one session.

    `enclosing` is the attempt of a tool, and `outer` those of the session, in which the session was opened.
    """

    def __init__(self, ledger: Ledger, enclosing: Attempt | None, outer: "SessionTools | None") -> None:
        self.ledger = ledger
        self._enclosing = enclosing
        self._outer = outer
        self._wrapped: dict[Any, Task[..., Any]] = {}

    async def call(
        self,
        tool: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        key: str | None,
        effect: object,
        dedup_fields: Sequence[str] | None,
    ) -> ToolReceipt[Any]:
        """Call a tool by its name and the function that makes the call; see `Session.call`."""
        _check_callable(tool, fn)
        task = self._tool(fn, tool, effect)
        checked_key(key, f"key of a call of tool {tool!r}")
        fields = None if dedup_fields is None else _checked_fields(dedup_fields, task, kwargs)
        return await self._made(task, args, kwargs, key, fields)

    async def call_task(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call of a task gives."""
        return (await self._made(task, args, kwargs, None, None)).result

    async def claim(
        self, tool: str, arguments: Mapping[str, Any], *, key: str | None, effect: object, ttl: float | timedelta
    ) -> Claim:
        """Claim a call that is made by other means; see `Session.claim`."""
        task = self._claimed_tool(tool, effect)
        checked_key(key, f"key of a claim on tool {tool!r}")
        seconds = checked_duration(ttl, f"ttl of a claim on tool {tool!r}")
        if not seconds:
            raise InvalidValueError(f"ttl of a claim on tool {tool!r} is {shown(ttl)}; it must be longer than nothing")
        text = _arguments_text(task, arguments)
        self._check_enclosing(task)
        return await self.ledger.claim(ToolCall(task, text, key), seconds)

    async def _made(
        self,
        task: Task[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str | None,
        fields: tuple[str, ...] | None,
    ) -> ToolReceipt[Any]:
        self._check_enclosing(task)
        text = task.input_codec.encode(args, kwargs, task.input_where)
        return await self.ledger.call(ToolCall(task, text, key, fields))

    def _check_enclosing(self, task: Task[..., Any]) -> None:
        """A session that a tool opens, or the block of a fork, does not call what that fork may not."""
        if self._enclosing is not None:
            self._enclosing.check_policy(task)
        if self._outer is not None:
            self._outer._check_inner(task, self.ledger.root_run_id)

    def _check_inner(self, task: Task[..., Any], root_id: str) -> None:
        """Raise `TaskBlockedError` where a session of another lineage, opened in this one's block, may not call a task.

        One of the same lineage has tool policies of its own.
        """
        if self._outer is not None:
            self._outer._check_inner(task, root_id)
        ruling, terms = self.ledger.ruling(task), self.ledger.terms
        if root_id == self.ledger.root_run_id or ruling is None or terms is None:
            return
        if ruling.policy in (ToolPolicy.BLOCK, ToolPolicy.REPLAY):
            reason = f"{ruling.reason}, and another session called it that was opened in the block of the fork"
            raise blocked_error(task.name, encode_refusal(terms, ruling, reason))

    def _tool(self, fn: Any, tool: str, kind: Any) -> Task[..., Any]:
        """The task that makes a call. Those that were made of a callable are kept: it costs more than the call."""
        _check_tool(tool)
        if isinstance(fn, Task):
            if kind is not None:
                raise UsageError(f"tool {tool!r} is a @satay.task and declares its own effect; leave effect= away")
            return fn if fn.name == tool else fn.renamed(tool)
        # A method is a new object each time, and equals those of its own object only. Any other may equal a stranger.
        given = fn if isinstance(fn, MethodType | BuiltinMethodType) else id(fn)
        try:
            made = self._wrapped.get((given, tool, kind))
        except TypeError:  # The effect is none: it cannot even be hashed.
            return wrapped(fn, name=tool, effect=kind)
        if made is None:
            made = wrapped(fn, name=tool, effect=kind)
            if len(self._wrapped) < MAX_WRAPPED:
                self._wrapped[given, tool, kind] = made
        return made

    def _claimed_tool(self, tool: str, kind: Any) -> Task[..., Any]:
        _check_tool(tool)
        known = tasks.get(tool)
        return self._tool(_made_elsewhere if known is None else known, tool, kind)


def _check_tool(tool: object) -> None:
    problem = name_problem(tool)
    if problem:
        raise InvalidValueError(f"tool name {shown(tool)} cannot be used; {problem}")


def _check_callable(tool: object, fn: object) -> None:
    if callable(fn):
        return
    if callable(tool):
        raise InvalidValueError(
            f"session.call() was given {shown(tool)} first; give the tool's name, then the function"
        )
    if isinstance(fn, Coroutine):
        fn.close()
    raise InvalidValueError(
        f"tool {tool!r} was given {shown(fn)}, which cannot be called; give the function itself, then its arguments, "
        f"as in session.call({tool!r}, send, 'ada')"
    )


def _made_elsewhere(**arguments: Any) -> Any:
    """Stands for a tool that is no task: whoever claims its calls makes them."""


def _arguments_text(task: Task[..., Any], arguments: Mapping[str, Any]) -> str:
    """The arguments of a claimed call as they are recorded: like those of a call with keywords."""
    given: object = arguments
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidValueError(
            f"the arguments of a claim on tool {task.name!r} are {shown(arguments)}; give a dict of them by name"
        )
    if task.fn is not _made_elsewhere:
        return task.input_codec.encode((), dict(arguments), task.input_where)
    members = [
        f"{json_quote(name)}:{OPAQUE.encode(value, f'argument {name!r} of {task.input_where}')}"
        for name, value in arguments.items()
    ]
    return "{" + ",".join(members) + "}"


def _checked_fields(fields: Sequence[str], task: Task[..., Any], options: Mapping[str, Any]) -> tuple[str, ...]:
    given: object = fields
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise InvalidValueError(f"dedup_fields of tool {task.name!r} is {shown(fields)}; give a list of argument names")
    parameters = signature_of(task.fn).parameters.values()
    labels = {
        ("*" if parameter.kind is parameter.VAR_POSITIONAL else "") + parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    takes_options = len(labels) < len(parameters)
    known = labels.union(options) if takes_options else labels
    unknown = sorted(set(fields) - known)
    if unknown and not (takes_options and known.intersection(fields)):  # Of options some may be left out, and not all.
        raise InvalidValueError(
            f"dedup_fields of tool {task.name!r} names {', '.join(map(repr, unknown))}, and the tool has no such "
            f"argument; it has {', '.join(map(repr, sorted(known))) or 'none'}"
        )
    return tuple(fields)
