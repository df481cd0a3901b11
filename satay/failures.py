"""Failures as data: what is recorded of an exception, and the exception that is built from it again.

- Recording never fails, whatever the exception does when it is looked at, and never hides it behind another error.
  What a look raises is not obeyed, not even if it asks to end the process.
- Rebuilding runs no `__init__` and no `__new__` but those of the built-in exceptions, and is proved by type and text.
  What cannot be rebuilt faithfully is not, so a handler never meets an exception with half of its attributes.
"""

import builtins
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from satay.classes import class_name, find_class, instance_state, restore_state
from satay.errors import ChildWorkflowError, CodecError, DecodeError, TaskFailedError, WorkflowFailedError
from satay.tags import decode_tagged, encode_tagged
from satay.texts import dump_plain, to_plain

MAX_TEXT_CHARACTERS: Final = 64 * 1024
"""The most characters that are recorded of a message, a note or a traceback."""

MAX_STATE_CHARACTERS: Final = 2 * 1024 * 1024
"""The longest text of arguments or attributes that is recorded; an exception with more is not rebuilt."""

MAX_CHAIN: Final = 16
"""How many causes and groups deep a failure is recorded."""

MAX_MEMBERS: Final = 100
"""A group with more members is recorded without them and not rebuilt; of notes, so many are recorded."""

MAX_RELATIVES: Final = 500
"""How many exceptions one record holds, with all causes and members."""

_WHERE: Final = "an exception"


@dataclass(frozen=True, slots=True)
class Failure:
    """What is recorded of an exception. `type` is `module:qualname`.

    `args` and `attributes` are recorded text, None where they could not be written; only `rebuild` reads them.
    `facts` are what the engine added, plain JSON data.
    """

    type: str
    message: str
    traceback: str = ""
    args: str | None = None
    attributes: str | None = None
    notes: tuple[str, ...] = ()
    cause: "Failure | None" = None
    members: tuple["Failure", ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def is_made_of(error: BaseException, kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Whether an error is one of these kinds, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)[1] is None
    return isinstance(error, kinds)


# --- recording --------------------------------------------------------------------------------------------------------


def encode_failure(error: BaseException, *, facts: Mapping[str, Any] | None = None) -> str:
    """The JSON text that records `error`, and `facts`, which are plain JSON data. Never raises for what `error` is."""
    extra = {"traceback": _shorten_middle(_format_traceback(error)), **({"facts": dict(facts)} if facts else {})}
    try:
        return dump_plain(_record(error, frozenset(), iter(range(MAX_RELATIVES))) | extra)
    except BaseException:  # every look at an exception may run user code, and the failure must be recorded all the same
        return dump_plain(_describe(error) | extra)


def _describe(error: BaseException) -> dict[str, Any]:
    return {"type": clean_text(class_name(type(error))), "message": message_of(error)}


def _record(error: BaseException, seen: frozenset[int], budget: Iterator[int]) -> dict[str, Any]:
    """What is known of `error`. `seen` has the ids of all it is a cause or member of, `budget` an item a relative."""
    seen = seen | {id(error)}
    record = _describe(error)
    for name, value in (("args", _state_args(error)), ("attributes", _attributes(error))):
        plain = _plain_state(value)
        if plain is not None:
            record[name] = plain
    notes = getattr(error, "__notes__", None)
    own = [note for note in notes if type(note) is not _TracebackNote] if isinstance(notes, list) else []
    if own:  # The note with a traceback is in every traceback that is recorded after it.
        record["notes"] = [_shorten(clean_text(_text_of(note))) for note in own[:MAX_MEMBERS]]
    if len(seen) < MAX_CHAIN:
        record |= _record_relatives(error, seen, budget)
    return record


def _record_relatives(error: BaseException, seen: frozenset[int], budget: Iterator[int]) -> dict[str, Any]:
    relatives: dict[str, Any] = {}
    cause = error.__cause__
    if cause is not None and id(cause) not in seen and next(budget, None) is not None:
        relatives["cause"] = _record(cause, seen, budget)
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) <= MAX_MEMBERS:
        members = [member for member in error.exceptions if id(member) not in seen and next(budget, None) is not None]
        relatives["members"] = [_record(member, seen, budget) for member in members]
    return relatives


def _state_args(error: BaseException) -> object:
    """The arguments that make the built-in part of `error` again: `OSError` keeps its file name outside of `args`."""
    if isinstance(error, BaseExceptionGroup):
        return (error.message,)
    base = _builtin_base(type(error))
    try:
        reduced = base.__reduce__(error)
    except BaseException:  # reading it touches user code in odd classes only; then there is nothing to rebuild from
        return None
    return reduced[1] if isinstance(reduced, tuple) else None


def _attributes(error: BaseException) -> dict[str, Any] | None:
    try:
        state = instance_state(error)
    except BaseException:  # a user's __dict__
        return None
    state.pop("__notes__", None)
    return state


def _plain_state(value: object) -> Any:
    """Arguments or attributes as plain data, None if they cannot be recorded."""
    try:
        text, _ = encode_tagged(value, _WHERE)
    except CodecError:
        return None
    return to_plain(text) if len(text) <= MAX_STATE_CHARACTERS else None


def _format_traceback(error: BaseException) -> str:
    try:
        return clean_text("".join(traceback.format_exception(error)))
    except BaseException as reason:  # formatting asks the exception for its text, which is a user's code
        return f"(no traceback: formatting it raised {type(reason).__name__})"


# --- text -------------------------------------------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """The text of an exception, cleaned and shortened to `MAX_TEXT_CHARACTERS`."""
    return _shorten(clean_text(_text_of(error)))


def clean_text(text: str) -> str:
    """`text` without what some databases and terminals refuse: lone surrogates and NUL become escapes."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\0", "\\x00")


def _text_of(value: object) -> str:
    try:
        return str.__str__(str(value))
    except BaseException as reason:  # a user's __str__
        return f"(no message: __str__ of {type(value).__name__} raised {type(reason).__name__})"


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    return f"{text[:MAX_TEXT_CHARACTERS]}… (shortened, {len(text)} characters in all)"


def _shorten_middle(text: str) -> str:
    """Both ends of a traceback: where it began, and what it ended with."""
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    half = MAX_TEXT_CHARACTERS // 2
    return f"{text[:half]}\n… (shortened, {len(text)} characters in all)\n{text[-half:]}"


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_failure(text: str) -> Failure:
    """The recorded failure, without building any user's type. Raises `DecodeError` for text that records none."""
    try:
        return _parse(to_plain(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"the text does not record a failure: {error!r}") from None


def read_failure(text: str | None) -> Failure:
    """What was recorded of an error, or that it cannot be read."""
    try:
        return parse_failure(text or "")
    except DecodeError:
        return Failure(type="", message="no error was recorded")


def _parse(data: Mapping[str, Any]) -> Failure:
    cause = data.get("cause")
    return Failure(
        type=str(data["type"]),
        message=str(data["message"]),
        traceback=data.get("traceback", ""),
        args=_text_or_none(data, "args"),
        attributes=_text_or_none(data, "attributes"),
        notes=tuple(data.get("notes", ())),
        cause=None if cause is None else _parse(cause),
        members=tuple(_parse(member) for member in data.get("members", ())),
        facts=data.get("facts", {}),
    )


def _text_or_none(data: Mapping[str, Any], name: str) -> str | None:
    return dump_plain(data[name]) if name in data else None


def rebuild(failure: Failure) -> BaseException | None:
    """An exception of the recorded type with the recorded text, arguments, attributes, notes, cause and members.

    None if the class is not imported, is no `Exception`, or an exception with the same text cannot be made of what was
    recorded. A cause or a member that cannot be rebuilt itself is a `TaskFailedError`.
    """
    cls = find_class(failure.type)
    if cls is None or not issubclass(cls, Exception) or failure.args is None or failure.attributes is None:
        return None
    try:
        error = _build(cls, failure)
        if type(error) is not cls or message_of(error) != failure.message:
            return None
    except Exception:  # recorded data meets the user's classes of today, which may refuse it in their own way
        return None
    with suppress(Exception):  # a user's __notes__
        for note in failure.notes:
            BaseException.add_note(error, note)
    if failure.cause is not None:
        error.__cause__ = rebuild_or_wrap(failure.cause)
    return error


def rebuild_or_wrap(failure: Failure) -> BaseException:
    """`rebuild`, or a `TaskFailedError` that carries type, message and traceback."""
    return rebuild(failure) or TaskFailedError(f"{failure.type}: {failure.message}", **_facts(failure))


class _TracebackNote(str):
    """The note with a recorded traceback, which is not recorded again as a note of the user's."""

    __slots__ = ()


def rebuilt_task_failure(text: str, task: str) -> BaseException:
    """What a workflow sees of the recorded failure of a task: the exception itself or a `TaskFailedError`.

    This and the next two have a note with the recorded traceback: the line that raised is in no traceback of theirs.
    """
    failure = _parse_leniently(text)
    what = f"task {task!r}"
    error = rebuild(failure) or TaskFailedError(f"{what} failed with {_briefly(failure)}", **_facts(failure))
    return _noted(error, failure, what)


def rebuilt_child_failure(text: str, workflow: str, run_id: str) -> BaseException:
    """What a workflow sees of the recorded failure of a child: the exception itself or a `ChildWorkflowError`."""
    failure = _parse_leniently(text)
    what = f"child workflow {workflow!r}, run {run_id!r},"
    error = rebuild(failure) or ChildWorkflowError(
        f"{what} failed with {_briefly(failure)}", run_id=run_id, **_facts(failure)
    )
    return _noted(error, failure, what)


def rebuilt_workflow_failure(text: str, run_id: str) -> BaseException:
    """What awaits the result of a failed run: the exception itself or a `WorkflowFailedError`."""
    failure = _parse_leniently(text)
    what = f"run {run_id!r}"
    error = rebuild(failure) or WorkflowFailedError(
        f"{what} failed with {_briefly(failure)}", run_id=run_id, **_facts(failure)
    )
    return _noted(error, failure, what)


def _noted(error: BaseException, failure: Failure, what: str) -> BaseException:
    if failure.traceback:
        note = _TracebackNote(f"{what} failed with this recorded traceback:\n{failure.traceback.rstrip()}")
        with suppress(Exception):  # a user's __notes__
            BaseException.add_note(error, note)
    return error


def _parse_leniently(text: str) -> Failure:
    """The recorded failure; where there is none to read, one that says so, since the call failed all the same."""
    try:
        return parse_failure(text)
    except DecodeError:
        return Failure(type="", message="no error was recorded")


def _briefly(failure: Failure) -> str:
    name = failure.type.rpartition(":")[2].rpartition(".")[2]
    return f"{name or 'an unknown error'}: {failure.message}"


def _facts(failure: Failure) -> dict[str, str]:
    return {
        "error_type": failure.type,
        "error_message": failure.message,
        "error_traceback": failure.traceback,
    }


def _build(cls: type[Exception], failure: Failure) -> Exception:
    args = decode_tagged(failure.args or "", _WHERE)
    if issubclass(cls, ExceptionGroup):
        args = (*args, [rebuild_or_wrap(member) for member in failure.members])
    base = _builtin_base(cls)
    error: Exception = base.__new__(cls, *args)
    base.__init__(error, *args)
    restore_state(error, decode_tagged(failure.attributes or "", _WHERE))
    return error


def _builtin_base(cls: type) -> Any:
    """The nearest class of the interpreter's own: its constructor runs no user code."""
    return next(base for base in cls.__mro__ if vars(builtins).get(base.__name__) is base)
