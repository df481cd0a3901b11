"""What a task does to the world, and what follows from it: after a crash, and under the tool policies of a fork."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.arguments import name_problem, shown
from satay.errors import InvalidValueError, RegistrationError, TaskTimeoutError
from satay.model import CallId, continued_run_id

ALIKE: Final = 0.8
"""How much alike the names of two tools are, from 0 to 1, where one looks like the other misspelled."""


class Effect(StrEnum):
    """What a task declares about its effect.

    `pure` may run again at will; `idempotent` may be repeated under its idempotency key; `external` must not be
    repeated blindly, neither after a crash nor after a timeout; `undeclared` runs at least once.
    """

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    EXTERNAL = "external"
    UNDECLARED = "undeclared"


def parse_effect(effect: str | None, task_name: str) -> Effect:
    """The effect that a decorator's argument names."""
    if effect is None:
        return Effect.UNDECLARED
    choices = [choice for choice in Effect if choice is not Effect.UNDECLARED]
    if effect not in choices:
        named = ", ".join(repr(choice.value) for choice in choices)
        raise RegistrationError(f"task {task_name!r} declares effect={effect!r}, which is none of {named}")
    return Effect(effect)


def unclear_errors(effect: Effect) -> tuple[type[Exception], ...]:
    """The errors of an attempt that leave open whether it took effect, where that decides about another attempt."""
    return (TaskTimeoutError,) if effect is Effect.EXTERNAL else ()


def idempotency_key(root_run_id: str, call: CallId) -> str:
    """A key for one call of a lineage: the same across attempts, resumes and forks."""
    text = "\x1f".join((root_run_id, call.kind, call.name, type(call.occurrence).__name__, str(call.occurrence)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- tool policies ----------------------------------------------------------------------------------------------------


class ToolPolicy(StrEnum):
    """What a fork does with calls of a task after its cut.

    `auto` runs them, and asks before it repeats an external one that was in flight at the cut. `replay` answers from
    what the source recorded for the same call with equal arguments, and refuses any other. `block` refuses. `live`
    always runs.
    """

    AUTO = "auto"
    REPLAY = "replay"
    BLOCK = "block"
    LIVE = "live"


EVERY_TASK: Final = "*"
"""Stands in tool policies for each task that has no entry of its own."""


@dataclass(frozen=True, slots=True)
class ForkTerms:
    """What a fork imposes on itself, on what it and its tasks start, and on the runs that go on in its place.

    `source_id` is the run whose recorded outcomes the policy `replay` reads, up to entry `source_head`; None where the
    source has no such run. `cut` says where the fork begins, `receipt_id` which receipt holds the terms.
    """

    fork_id: str
    source_id: str | None
    source_head: int
    cut: str
    receipt_id: str
    policies: Mapping[str, ToolPolicy]
    intervention: Any = None

    def for_other_run(self) -> "ForkTerms":
        """The terms of a run that a task starts: there is none like it in the source."""
        return replace(self, source_id=None, source_head=0)

    def for_successor(self) -> "ForkTerms":
        """The terms of the run that goes on in place of this one; what it replays is where its source went on."""
        if self.source_id is None:
            return self
        return replace(self, source_id=continued_run_id(self.source_id), source_head=WHOLE_SOURCE)


WHOLE_SOURCE: Final = 2**62
"""A `source_head` beyond the end of any journal."""


class Ruling(NamedTuple):
    """The policy that holds for a task under some terms, and why."""

    policy: ToolPolicy
    reason: str


def ruling_for(policies: Mapping[str, ToolPolicy], task: str, effect: Effect) -> Ruling:
    """Which policy of a fork holds for a task: its own, else that of every task, else what its effect asks for."""
    for name in (task, EVERY_TASK):
        policy = policies.get(name)
        if policy is not None:
            return Ruling(policy, f"tool_policies={{{name!r}: {policy.value!r}}}")
    if effect is Effect.EXTERNAL:
        return Ruling(ToolPolicy.BLOCK, "a task with effect='external' is blocked unless tool_policies name it or '*'")
    return Ruling(ToolPolicy.AUTO, "no tool policy")


_STRICTEST_FIRST: Final = (ToolPolicy.BLOCK, ToolPolicy.REPLAY, ToolPolicy.AUTO, ToolPolicy.LIVE)


def restrict(
    policies: Mapping[str, ToolPolicy], within: Mapping[str, ToolPolicy], effect_of: Callable[[str], Effect]
) -> dict[str, ToolPolicy]:
    """The policies of a fork that was made under `within`: for each task the stricter one that holds for it."""
    restricted = {}
    for name in sorted({*policies, *within} - {EVERY_TASK}):
        holding = {ruling_for(each, name, effect_of(name)).policy for each in (policies, within)}
        restricted[name] = min(holding, key=_STRICTEST_FIRST.index)
    for_every_task = {each[EVERY_TASK] for each in (policies, within) if EVERY_TASK in each}
    if for_every_task:
        strictest = min(for_every_task, key=_STRICTEST_FIRST.index)
        is_in_both = EVERY_TASK in policies and EVERY_TASK in within
        # Where one of them leaves it to the effect of a task, so must both, unless the other lets nothing run.
        if is_in_both or strictest in (ToolPolicy.BLOCK, ToolPolicy.REPLAY):
            restricted[EVERY_TASK] = strictest
    return restricted


def parse_policies(given: object, known_tasks: Collection[str]) -> dict[str, ToolPolicy]:
    """Check tool policies as they were given. Raises `InvalidValueError` for a value or a task that there is not."""
    parsed = {}
    for name, policy in _named(given):
        if name != EVERY_TASK and name not in known_tasks:
            close = get_close_matches(name, known_tasks, 1)
            raise InvalidValueError(
                f"tool_policies names a task {name!r}, which is neither registered nor recorded in the source; "
                + (f"did you mean {close[0]!r}?" if close else f"{EVERY_TASK!r} stands for every task")
            )
        parsed[name] = policy
    return parsed


def parse_tool_policies(given: object, known_tools: Collection[str]) -> dict[str, ToolPolicy]:
    """Check the tool policies of a fork of a session. Its tools are named where they are called, so they may be new.

    Raises `InvalidValueError` for a value that there is not, for what is no name of a tool, and for a name that is much
    like that of a known tool, which has no policy: it looks misspelled.
    """
    parsed = {}
    for name, policy in _named(given):
        problem = None if name == EVERY_TASK else name_problem(name)
        if problem:
            raise InvalidValueError(f"tool_policies names a tool {shown(name)}, which cannot be used; {problem}")
        parsed[name] = policy
    for name in parsed:
        if name != EVERY_TASK and name not in known_tools:
            close = [one for one in get_close_matches(name, known_tools, 1, ALIKE) if one not in parsed]
            if close:
                raise InvalidValueError(
                    f"tool_policies names a tool {name!r}, which is neither registered nor called in the source; did "
                    f"you mean {close[0]!r}? If it is a tool of its own, give {close[0]!r} a policy too"
                )
    return parsed


def _named(given: object) -> Iterator[tuple[str, ToolPolicy]]:
    if not isinstance(given, Mapping):
        raise InvalidValueError(f"tool_policies is {given!r}; it is a mapping of task names to policies")
    for name, policy in given.items():
        if not isinstance(name, str):
            raise InvalidValueError(f"tool_policies has the key {shown(name)}; a key is the name of a task, or '*'")
        if not isinstance(policy, str) or policy not in tuple(ToolPolicy):
            choices = ", ".join(repr(choice.value) for choice in ToolPolicy)
            raise InvalidValueError(f"tool_policies[{name!r}] is {policy!r}, which is none of {choices}")
        yield name, ToolPolicy(policy)
