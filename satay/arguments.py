"""Checks of what users hand in: durations, counts, keys, names and ids. Each refuses with a sentence."""

import math
import sys
from datetime import timedelta
from typing import Final

from satay.errors import InvalidValueError, RunConflictError, RunNotFoundError
from satay.model import EXPERIMENT_WORKFLOW, RUN_ID_PATTERN, SESSION_WORKFLOW

LONGEST_DURATION_SECONDS: Final = 100 * 365.25 * 86_400.0
"""The longest duration that satay waits for: a hundred years."""

MAX_KEY_LENGTH: Final = 200
"""The longest key of a call or an event, in characters."""

MAX_NAME_LENGTH: Final = 200
"""The longest name of a task, workflow or event, in characters."""

_SHOWN_LENGTH: Final = 80


def checked_duration(duration: object, what: str) -> float:
    """A duration in seconds, zero for what lies in the past. `what` begins the message of a refusal."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidValueError(f"{what} is {shown(duration)}; it must be a number of seconds or a timedelta")
    if not -math.inf < seconds <= LONGEST_DURATION_SECONDS:
        raise InvalidValueError(f"{what} is {shown(duration)}; it must be finite and at most a hundred years")
    return float(max(0.0, seconds))


def checked_count(count: object, what: str, lowest: int, highest: int) -> int:
    """A whole number within bounds, both included. `what` begins the message of a refusal."""
    if isinstance(count, bool) or not isinstance(count, int) or not lowest <= count <= highest:
        raise InvalidValueError(f"{what} is {shown(count)}; it must be a whole number from {lowest} to {highest}")
    return count


def checked_amount(amount: object, what: str) -> float:
    """A finite number, zero or more. `what` begins the message of a refusal."""
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount <= sys.float_info.max:
        raise InvalidValueError(f"{what} is {shown(amount)}; it must be a finite number, zero or more")
    return float(amount)


def checked_flag(flag: object, what: str) -> bool:
    """True or False, and nothing that merely counts as one. `what` begins the message of a refusal."""
    if not isinstance(flag, bool):
        raise InvalidValueError(f"{what} is {shown(flag)}; it must be True or False")
    return flag


def checked_errors(kinds: object, what: str) -> tuple[type[BaseException], ...]:
    """One class of exceptions or a tuple of them, as a tuple. `what` begins the message of a refusal."""
    chosen = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in chosen):
        raise InvalidValueError(f"{what} is {shown(kinds)}; it must be a subclass of Exception, or a tuple of these")
    return chosen


def name_problem(name: object) -> str | None:
    """What is wrong with a name of a task, workflow or event, or None."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        return f"a name is 1 to {MAX_NAME_LENGTH} printable characters"
    return "names that begin with 'satay.' are satay's own" if name.startswith("satay.") else None


def key_problem(key: object) -> str | None:
    """What is wrong with a key, or None."""
    if not isinstance(key, str):
        return f"a key is a text, not {type(key).__name__}"
    if not key:
        return "a key is not empty"
    if len(key) > MAX_KEY_LENGTH:
        return f"a key has at most {MAX_KEY_LENGTH} characters, this one has {len(key)}"
    return None if key.isprintable() else "a key has printable characters only"


def checked_key(key: str | None, what: str) -> str | None:
    """A key that can be used, or None. `what` begins the message of a refusal."""
    problem = None if key is None else key_problem(key)
    if problem:
        raise InvalidValueError(f"{what} is {shown(key)}, which cannot be used; {problem}")
    return key


def checked_approval_key(key: object) -> str:
    """A key that an approval can be named by."""
    problem = key_problem(key)
    if problem or not isinstance(key, str):
        raise InvalidValueError(f"the key of an approval is {shown(key)}, which cannot be used; {problem}")
    return key


def checked_run_id(run_id: object) -> str:
    """A run id that can be given to a new run. `~` is satay's own: it numbers runs that continue as new ones."""
    if not isinstance(run_id, str) or not RUN_ID_PATTERN.fullmatch(run_id) or "~" in run_id:
        raise InvalidValueError(
            f"run id {shown(run_id)} cannot be used; a run id is 1 to 200 letters, digits and _.:=@+/-, begins with a "
            "letter, a digit or _, has no '..' and no '//', and does not end with '/'"
        )
    return run_id


def check_is_run(run_id: str, workflow: str) -> None:
    """Raise `RunNotFoundError` for a journal that is none of a run, and can only be read."""
    if workflow == EXPERIMENT_WORKFLOW:
        raise RunNotFoundError(
            f"{run_id!r} is an experiment and no run: nobody drives it; satay.experiment() reads it, and 'satay show' "
            "shows it",
            run_id=run_id,
        )


def check_is_no_session(run_id: str, workflow: str) -> None:
    """Raise `RunConflictError` for a session, which nothing but its owner drives."""
    if workflow == SESSION_WORKFLOW:
        raise RunConflictError(
            f"{run_id!r} is a session and no run of a workflow: the application owns its loop. To go on with it, or to "
            f"end it, enter 'async with satay.Session.resume({run_id!r})'; to fork it, use "
            f"satay.Session.resume({run_id!r}, fork_at_step=...)",
            run_id=run_id,
        )


def shown(value: object) -> str:
    """A value in a message: its repr, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."
