"""What a user types after a command, as values: JSON, inputs of workflows, names of calls."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from satay.declarations import OPAQUE
from satay.definitions import Workflow
from satay.errors import DecodeError, InvalidValueError
from satay.tag_writers import MAX_DEPTH

MAX_DIGITS: Final = 18
"""The most digits of a number that counts something in a journal."""

_PAIR: Final = re.compile(r"(?P<name>[^=\[]*(?:\[.*?\])?[^=]*?)=(?P<value>.*)", re.DOTALL)
"""A name, which may hold `=` in brackets only, and a value."""

_CALL: Final = re.compile(rf"(?P<name>.+?)(?::(?P<ordinal>\d{{1,{MAX_DIGITS}}})|\[(?P<key>.*)\])?")


def parse_json(text: str, what: str) -> Any:
    """JSON, or what stands in a file for `@file`, or on the standard input for `-`. Raises `InvalidValueError`."""
    read = _read(text, what)
    try:
        return json.loads(read, parse_constant=_refuse_constant)
    except ValueError as error:
        is_meant = text == "-" or text.startswith(("@", "{", "[", '"'))
        hint = "" if is_meant else f"; text is written in quotes: {shlex.quote(json.dumps(text))}"
        raise InvalidValueError(f"{what} is no JSON: {error}{hint}") from None
    except RecursionError:
        raise InvalidValueError(f"{what} is nested too deeply; a value has at most {MAX_DEPTH} levels") from None


def _read(text: str, what: str) -> str:
    if text != "-" and not text.startswith("@"):
        return text
    try:
        return sys.stdin.read() if text == "-" else Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is no {error.encoding.upper()} text"
        place = "the standard input" if text == "-" else repr(text[1:])
        raise InvalidValueError(f"{what} cannot be read from {place}: {reason}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def decode_input(workflow: Workflow[..., Any], data: Any, what: str) -> Any:
    """Plain data as the input that a workflow declares. Raises `InvalidValueError` naming the path that is wrong."""
    name = workflow.input_name
    if name is None:
        raise InvalidValueError(f"workflow {workflow.name!r} takes no input; leave {what} away")
    try:
        # What looks like a tag of the format for recorded values is no tag: it is written as what it stands for.
        text = f"{{{json.dumps(name)}:{OPAQUE.encode(data, what)}}}"
        args, options = workflow.input_codec.decode(text, f"the input of {workflow.name!r}")
    except DecodeError as error:
        raise InvalidValueError(f"{what} cannot be used: {error}") from None
    return args[0] if args else options[name]


def parse_call(text: str) -> tuple[str, int | str]:
    """A call as it is shown, `draft:2` or `draft[page-7]`, as name and ordinal or key; `draft` is its first call."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise InvalidValueError(f"{text!r} names no call; write it as it is shown, such as draft:2 or draft[page-7]")
    if found["key"] is not None:
        return found["name"], found["key"]
    return found["name"], int(found["ordinal"] or 0)


def parse_pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """`NAME=VALUE`, each once. Raises `InvalidValueError`."""
    pairs: dict[str, str] = {}
    for text in texts:
        found = _PAIR.fullmatch(text)
        if found is None or not found["name"]:
            raise InvalidValueError(f"{what} {text!r} has not the form NAME=VALUE")
        name, value = found["name"], found["value"]
        if name in pairs:
            raise InvalidValueError(f"{what} names {name!r} twice; give one value for it")
        pairs[name] = value
    return pairs


def parse_steps(text: str) -> int | tuple[int, int]:
    """The number of a step, `7`, or of two steps, `7,9`. Raises `InvalidValueError`."""
    numbers = [part.strip() for part in text.split(",")]
    are_numbers = all(part.isascii() and part.isdecimal() and len(part) <= MAX_DIGITS for part in numbers)
    if len(numbers) > 2 or not are_numbers:
        raise InvalidValueError(f"--at {text!r} is no step; write one number, 7, or one for each session, 7,9")
    first, *second = map(int, numbers)
    return (first, second[0]) if second else first
