"""What a rehearsal finds different."""

import hashlib
import json
from typing import Any, Final

import pytest

from satay.errors import EncodeError
from satay.journal import GENESIS
from satay.model import Entry, EntryType
from satay.rehearsals import ArgumentCodec, Issued, Rehearsal, SameArguments


def scheduled(text: str, *, is_blob: bool = False) -> Entry:
    digest = hashlib.sha256(text.encode()).hexdigest()
    member = f'"input_blob":"{digest}"' if is_blob else f'"input":{text}'
    return Entry(2, EntryType.TASK_SCHEDULED, 0, f'{{"task":"t","ordinal":0,{member}}}', GENESIS)


def compared(entry: Entry, text: str) -> list[Issued]:
    rehearsal = Rehearsal(lambda error: None)
    rehearsal.compare(entry, text)
    return rehearsal.differing


def test_equal_arguments_are_not_collected() -> None:
    text = json.dumps({"topic": "tea"})

    assert [] == compared(scheduled(text), text)
    assert [] == compared(scheduled(text, is_blob=True), text)


def test_other_arguments_are_collected_with_their_call() -> None:
    entry, blob = scheduled('{"topic":"tea"}'), scheduled('{"topic":"tea"}', is_blob=True)

    assert [Issued(entry, '{"topic":"cake"}')] == compared(entry, '{"topic":"cake"}')
    assert [Issued(blob, '{"topic":"cake"}')] == compared(blob, '{"topic":"cake"}')


class _Writer:
    """Writes the only argument as JSON under a name, and counts how often it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> str:
        self.asked += 1
        if kwargs or isinstance(args[0], Plain):
            raise EncodeError("it cannot be recorded")
        return json.dumps({self.name: args[0]})


class Plain:
    """A value that is no plain one."""


ALIKE: Final[list[Any]] = [
    1,
    True,
    1.0,
    "1",
    [1],
    (True,),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    0.0,
    -0.0,
    "\ud800",
    None,
]


@pytest.mark.parametrize("recorded", ALIKE, ids=repr)
def test_what_is_known_to_be_the_same_is_no_other_value_that_is_like_it(recorded: Any) -> None:
    writer, same = _Writer("x"), SameArguments()
    entry = scheduled(writer.encode((recorded,), {}, ""))

    def is_same(*args: Any, codec: ArgumentCodec = writer, **kwargs: Any) -> bool:
        rehearsal = Rehearsal(lambda error: None, same=same)
        rehearsal.compare_arguments(entry, codec, args, kwargs, "")
        return not rehearsal.differing

    for _ in range(3):  # The second time from what the first has found.
        for value in ALIKE:
            assert is_same(value) == (writer.encode((value,), {}, "") == writer.encode((recorded,), {}, "")), value
        assert not is_same(recorded, codec=_Writer("y"))
        assert is_same(Plain())
        assert is_same(recorded, topic="tea")  # What cannot be encoded cannot be compared.


def test_what_is_known_to_be_the_same_is_not_written_again() -> None:
    writer, same = _Writer("x"), SameArguments()
    entry = scheduled('{"x": [1, {"a": 2.5}]}')
    for _ in range(5):
        rehearsal = Rehearsal(lambda error: None, same=same)
        rehearsal.compare_arguments(entry, writer, ([1, {"a": 2.5}],), {}, "")
        assert [] == rehearsal.differing

    assert 1 == writer.asked
