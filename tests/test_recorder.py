"""The entries of one run: numbers, digests and layout, gathered into one append a turn."""

import hashlib
import json

from satay.journal import BLOB_THRESHOLD_BYTES, GENESIS, Lease, NewRun, Wait, chain_digest
from satay.model import Entry, EntryType, RunStatus
from satay.recorder import Recorder, first_entry, lay_out
from satay.replay import blob_reference, facts, value_text
from satay.testing import ManualClock

LEASE = Lease("r", 1, 1)
LAST = Entry(4, EntryType.TASK_COMPLETED, 0, '{"call":2,"result":1}', b"\1" * 32)
LARGE = json.dumps("x" * BLOB_THRESHOLD_BYTES)


def recorder(clock: ManualClock | None = None) -> Recorder:
    return Recorder(LEASE, clock or ManualClock(), LAST)


def test_a_payload_is_the_facts_and_then_the_value() -> None:
    assert ('{"call":2,"result":[1]}', None) == lay_out(EntryType.TASK_COMPLETED, '"call":2', "[1]")
    assert ('{"input":{}}', None) == lay_out(EntryType.WORKFLOW_CREATED, "", "{}")
    assert ('{"call":2}', None) == lay_out(EntryType.TIMER_FIRED, '"call":2', None)


def test_a_large_value_is_kept_in_a_blob_and_named_by_its_digest() -> None:
    payload, blob = lay_out(EntryType.TASK_COMPLETED, '"call":2', LARGE)

    assert blob is not None
    assert LARGE == blob.text
    assert hashlib.sha256(LARGE.encode()).hexdigest() == blob.sha256
    assert {"call": 2, "result_blob": blob.sha256} == json.loads(payload)


def test_a_value_of_the_threshold_stays_in_its_entry() -> None:
    _, blob = lay_out(EntryType.TASK_COMPLETED, '"call":2', "1" * BLOB_THRESHOLD_BYTES)

    assert blob is None


def test_the_first_entry_has_the_digest_that_every_journal_begins_with() -> None:
    entry, blobs = first_entry(EntryType.WORKFLOW_CREATED, 7, '"workflow":"w"', "{}", GENESIS)

    assert Entry(1, EntryType.WORKFLOW_CREATED, 7, '{"workflow":"w","input":{}}', GENESIS) == entry
    assert [] == blobs


def test_a_first_entry_with_a_large_value_comes_with_its_blob() -> None:
    entry, blobs = first_entry(EntryType.WORKFLOW_CREATED, 7, "", LARGE, GENESIS)

    assert [blob_reference(entry)] == [blob.sha256 for blob in blobs]


def test_entries_are_numbered_and_chained_after_the_last_one() -> None:
    made = recorder()
    one = made.record(EntryType.TIMER_FIRED, '"call":2')
    two = made.record(EntryType.TASK_COMPLETED, '"call":3', "true")

    assert [5, 6] == [one.seq, two.seq]
    assert chain_digest(LAST.digest, one.type, one.at, one.payload) == one.digest
    assert chain_digest(one.digest, two.type, two.at, two.payload) == two.digest
    assert (6, two.digest) == (made.head, made.digest)


def test_what_was_recorded_is_what_replay_reads() -> None:
    entry = recorder().record(EntryType.TASK_COMPLETED, '"call":3', '{"a":1}')

    assert {"call": 3, "result": {"a": 1}} == facts(entry)
    assert '{"a":1}' == value_text(entry)


def test_an_entry_has_the_moment_at_which_it_was_recorded_and_the_append_that_of_the_last() -> None:
    clock = ManualClock()
    made = recorder(clock)
    start = clock.now()
    made.record(EntryType.TIMER_FIRED, '"call":2')
    clock.jump_to(start + 5)
    made.record(EntryType.TIMER_FIRED, '"call":3')
    clock.jump_to(start + 9)
    append = made.turn(None, None)

    assert [start, start + 5] == [entry.at for entry in append.entries]
    assert start + 5 == append.at


def test_a_turn_without_entries_has_the_moment_at_which_it_ended() -> None:
    clock = ManualClock()
    made = recorder(clock)
    clock.jump_to(clock.now() + 5)

    assert clock.now() == made.turn(RunStatus.WAITING, None).at


def test_a_turn_is_everything_that_was_gathered_in_its_order() -> None:
    made = recorder()
    made.record(EntryType.TIMER_FIRED, '"call":2')
    made.record(EntryType.TASK_COMPLETED, '"call":3', LARGE)
    made.open_wait(Wait(7, "go", None))
    made.open_wait(Wait(8, "go", "k"))
    made.close_wait(3)
    made.take_message(11)
    made.take_message(10)
    append = made.turn(RunStatus.WAITING, 99)

    assert LEASE == append.lease
    assert [5, 6] == [entry.seq for entry in append.entries]
    assert (RunStatus.WAITING, 99) == (append.status, append.wake_at)
    assert [Wait(7, "go", None), Wait(8, "go", "k")] == append.opened
    assert [3] == append.closed
    assert [11, 10] == append.taken
    assert [LARGE] == [blob.text for blob in append.blobs]
    assert append.successor is None


def test_the_turn_after_a_turn_begins_empty_and_goes_on_counting() -> None:
    made = recorder()
    made.record(EntryType.TASK_COMPLETED, '"call":2', LARGE)
    made.take_message(11)
    made.turn(None, None)

    assert made.is_empty
    assert 0 == made.pending
    again = made.turn(None, None)
    assert [[], [], [], [], []] == [
        list(part) for part in (again.entries, again.opened, again.closed, again.taken, again.blobs)
    ]
    assert 6 == made.record(EntryType.TIMER_FIRED, '"call":3').seq


def test_a_message_or_a_wait_is_something_to_write_also_without_an_entry() -> None:
    dropped, opened, closed = recorder(), recorder(), recorder()
    assert dropped.is_empty

    dropped.take_message(11)
    opened.open_wait(Wait(7, "go", None))
    closed.close_wait(3)

    assert [False, False, False] == [made.is_empty for made in (dropped, opened, closed)]
    assert 0 == dropped.pending
    assert [11] == dropped.turn(None, None).taken


def test_a_run_that_goes_on_in_place_of_this_one_is_created_with_the_turn_and_its_blobs() -> None:
    made = recorder()
    run = NewRun("r~2", "w", 7, "o", "v")
    entry, blobs = first_entry(EntryType.WORKFLOW_CREATED, 7, "", LARGE, GENESIS)
    made.record(EntryType.WORKFLOW_COMPLETED, '"continued_as":"r~2"')
    made.continue_as(run, [entry], blobs)
    append = made.turn(RunStatus.COMPLETED, None)

    assert (run, [entry]) == append.successor
    assert [LARGE] == [blob.text for blob in append.blobs]
    assert made.turn(None, None).successor is None
