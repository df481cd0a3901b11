"""What a rehearsal finds different."""

import hashlib
import json

from satay.journal import GENESIS
from satay.model import Entry, EntryType
from satay.rehearsals import Issued, Rehearsal


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
