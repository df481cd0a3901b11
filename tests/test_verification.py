import hashlib
import json
from typing import Any

import pytest

from satay.journal import GENESIS
from satay.model import Entry, EntryType, RunRecord
from satay.verification import JournalCheck, Problem, Verification
from tests.books import Book, source


def check(book: Book, *, later: RunRecord | None = None, source: Book | None = None) -> Verification:
    """What is said of a book as a run; of a fork, beside its source."""
    record = book.history().record
    check = JournalCheck(record, has_source=source is not None)
    check.read(book.entries, () if source is None else source.entries)
    return check.finish(later or record)


def test_the_text_of_an_intact_run_is_a_sentence() -> None:
    book = source()

    assert f"Run 'source' is intact: 10 entries, digest {book.entries[-1].digest.hex()[:12]}." == str(check(book))


def test_the_text_of_a_damaged_run_names_the_entry_and_what_was_expected() -> None:
    book = source()
    book.entries[3] = book.entries[3]._replace(at=5)
    digest = book.entries[3].digest.hex()[:12]

    verification = check(book)

    assert str(verification).startswith(
        "Run 'source' is damaged: entry 4 (TaskScheduled) does not fit: expected the digest "
    )
    assert str(verification).endswith(f"found the digest {digest}…. Entries 1 to 3 fit.")


def test_the_text_says_what_is_before_a_damage_at_the_beginning() -> None:
    one, none = source(), source()
    one.entries[1] = one.entries[1]._replace(at=5)
    none.entries[0] = none.entries[0]._replace(digest=b"x")

    assert str(check(one)).endswith("Entry 1 fits.")
    assert str(check(none)).endswith("No entry before it.")


def test_a_verification_is_json() -> None:
    book = source()
    del book.entries[4]

    data = json.loads(json.dumps(check(book).to_dict()))

    assert data == {
        "run_id": "source",
        "is_intact": False,
        "entries": 4,
        "head_digest": None,
        "source_id": None,
        "inherited": None,
        "prefix": None,
        "receipt_id": None,
        "problem": {
            "seq": 5,
            "type": None,
            "expected": "an entry with the number 5",
            "found": "the entry 6 (TaskScheduled)",
        },
    }


def test_a_run_that_ended_while_it_was_read_is_held_against_its_later_row() -> None:
    ended = source()
    going_on = ended.history().record._replace(status=Book().status)
    last, ended.entries[-1:] = ended.entries[-1], []

    before_the_end = JournalCheck(going_on, has_source=False)
    before_the_end.read(ended.entries)
    after_the_end = JournalCheck(going_on, has_source=False)
    after_the_end.read([*ended.entries, last])

    assert before_the_end.finish(source().history().record).is_intact
    assert after_the_end.finish(source().history().record).is_intact
    assert not after_the_end.finish(going_on).is_intact


def test_the_journal_of_an_experiment_is_one_too() -> None:
    book = Book("a~experiment")
    book.entries = [Entry(1, EntryType.EXPERIMENT_CREATED, book.at, "{}", GENESIS)]
    book.add(EntryType.MEMBER_ADDED, run_id="a")

    assert check(book).is_intact


def test_what_is_no_creation_cannot_come_first() -> None:
    book = source()
    book.entries[0] = book.entries[0]._replace(type=EntryType.TASK_SCHEDULED)

    assert Problem(1, "TaskScheduled", "WorkflowCreated", "TaskScheduled") == check(book).problem


def forked(fork_id: str = "fork", /, **terms: Any) -> Book:
    """A fork of `source()` with a whole receipt, and the terms that go with it but for those that are given."""
    told = {"source_id": "source", "source_head": 10, "cut": "before draft:0", "intervention": {"model": "m"}}
    cut = source().entries[6]
    fork = source().fork(
        "fork",
        7,
        input=None,
        run_id="fork",
        resolved_seq=7,
        resolved_entry=cut.type,
        prefix_digest=cut.digest.hex(),
        tool_policies={"send": "block"},
        **told,
    )
    receipt = fork.entries[-1].payload.partition('"receipt":')[2][:-1]
    told |= {"policies": {"send": "block"}, "fork_id": fork_id}
    told["receipt_id"] = hashlib.sha256(receipt.encode()).hexdigest()
    created = json.loads(fork.entries[0].payload)
    created = {name: value for name, value in created.items() if name != "input"}
    created |= {"terms": json.dumps(told | terms), "input": {"topic": "acme"}}
    fork.entries[0] = fork.entries[0]._replace(payload=json.dumps(created, separators=(",", ":")))
    return fork


def test_a_fork_whose_terms_are_those_of_its_receipt_is_intact() -> None:
    verification = check(forked(), source=source())

    assert verification.problem is None
    assert "Entries 1 to 7 are inherited from 'source' and as in the source. The receipt " in str(verification)


def test_a_fork_whose_source_is_gone_is_held_against_its_receipt() -> None:
    assert "are inherited from 'source' and as in the receipt; the source is gone." in str(check(forked()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source_id", "other"),
        ("source_head", 9),
        ("cut", "elsewhere"),
        ("policies", {"send": "live"}),
        ("intervention", None),
        ("receipt_id", "0" * 64),
    ],
)
def test_terms_that_are_not_those_of_the_receipt_are_found(name: str, value: object) -> None:
    problem = check(forked(**{name: value})).problem

    assert problem is not None
    assert (1, repr(value)) == (problem.seq, problem.found)


@pytest.mark.parametrize("terms", [None, "{", "[]", 5])
def test_a_fork_whose_terms_cannot_be_read_is_found(terms: object) -> None:
    fork = forked()
    created = json.loads(fork.entries[0].payload)
    del created["terms"]
    if terms is not None:
        created["terms"] = terms
    fork.entries[0] = fork.entries[0]._replace(payload=json.dumps(created, separators=(",", ":")))

    problem = check(fork).problem
    assert problem is not None
    assert (1, "the terms of the fork") == (problem.seq, problem.expected)


def test_a_child_that_was_forked_with_its_parent_has_the_parents_receipt_and_cut() -> None:
    assert check(forked("parent", receipt_id="1" * 64, cut="elsewhere")).is_intact
    assert not check(forked("parent", policies={})).is_intact


def test_the_text_shows_no_control_character_and_not_all_of_what_was_found() -> None:
    text = str(check(forked(intervention="\x1b[2J" * 1000)))

    assert text.isprintable()
    assert len(text) < 1000
