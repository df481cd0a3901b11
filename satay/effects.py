"""What a task does to the world, and what follows from it when a crash leaves a call unfinished."""

import hashlib
from enum import StrEnum

from satay.errors import RegistrationError
from satay.model import CallId


class Effect(StrEnum):
    """What a task declares about its effect.

    `pure` may run again at will; `idempotent` may be repeated under its idempotency key; `external` must not be
    repeated blindly; `undeclared` runs at least once.
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


def idempotency_key(root_run_id: str, call: CallId) -> str:
    """A key for one call of a lineage: the same across attempts, resumes and forks."""
    text = "\x1f".join((root_run_id, call.kind, call.name, type(call.occurrence).__name__, str(call.occurrence)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
