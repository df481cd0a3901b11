"""A session as its journal tells it."""

from collections.abc import Sequence

import pytest

from satay.errors import JournalCorruptError, UnsupportedEntryError
from satay.model import CallId, CallKind, Entry, EntryType
from satay.transcripts import SessionStatus, Transcript

SHA = "0" * 64

Line = tuple[str, str]

CREATED: Line = (EntryType.SESSION_CREATED, '{"workflow":"satay.session","input":{}}')
STARTED: Line = (EntryType.SESSION_STARTED, "{}")
RESUMED: Line = (EntryType.SESSION_RESUMED, '{"after":"loss"}')
FORKED: Line = (EntryType.RUN_FORKED, '{"receipt":{}}')


def step(number: int, name: str = "plan") -> Line:
    return EntryType.STEP_RECORDED, f'{{"step":{number},"name":"{name}","content":{{"input":1,"output":2}}}}'


def state(number: int, kind: str = "full", base: int | None = None) -> Line:
    based = "" if base is None else f',"base":{base}'
    return EntryType.STATE_RECORDED, f'{{"step":{number},"version":{number},"sha256":"{SHA}","kind":"{kind}"{based}}}'


def claim(ordinal: int, step: int, tool: str = "fetch") -> Line:
    return EntryType.TASK_SCHEDULED, f'{{"task":"{tool}","ordinal":{ordinal},"step":{step},"input":[]}}'


def result(call: int) -> Line:
    return EntryType.TASK_COMPLETED, f'{{"call":{call},"result":1}}'


def transcript_of(*lines: Line) -> Transcript:
    transcript = Transcript("s")
    transcript.read(entries_of(lines))
    return transcript


def entries_of(lines: Sequence[Line]) -> list[Entry]:
    return [Entry(seq, type, seq, payload, b"") for seq, (type, payload) in enumerate(lines, 1)]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([CREATED], SessionStatus.CREATED),
        ([CREATED, STARTED], SessionStatus.STARTED),
        ([CREATED, STARTED, step(1)], SessionStatus.STEPPING),
        ([CREATED, STARTED, step(1), (EntryType.SESSION_PAUSED, '{"reason":"r"}')], SessionStatus.PAUSED),
        ([CREATED, STARTED, step(1), (EntryType.SESSION_CRASHED, '{"error":{}}')], SessionStatus.CRASHED),
        ([CREATED, STARTED, (EntryType.SESSION_COMPLETED, '{"result":1}')], SessionStatus.COMPLETED),
        ([CREATED, STARTED, step(1), RESUMED], SessionStatus.STEPPING),
        ([CREATED, STARTED, RESUMED], SessionStatus.STARTED),
        ([CREATED, STARTED, step(1), FORKED], SessionStatus.CREATED),
        ([CREATED, STARTED, step(1), FORKED, STARTED], SessionStatus.STARTED),
        ([CREATED, STARTED, step(1), FORKED, STARTED, step(2)], SessionStatus.STEPPING),
    ],
)
def test_the_last_word_says_what_a_session_is_doing(lines: list[Line], status: SessionStatus) -> None:
    assert status is transcript_of(*lines).status


def test_a_journal_is_read_in_pieces_as_in_one() -> None:
    entries = entries_of([CREATED, STARTED, claim(0, 1), result(3), step(1), state(1), claim(1, 2), step(2)])
    whole, pieces = Transcript("s"), Transcript("s")
    whole.read(entries)
    for entry in entries:
        pieces.read([entry])

    assert (whole.steps, list(whole.snapshots), whole.status) == (pieces.steps, list(pieces.snapshots), pieces.status)


def test_a_step_reaches_to_its_state() -> None:
    transcript = transcript_of(CREATED, STARTED, step(1), step(2), state(2), claim(0, 3))

    assert [(1, 3, 3), (2, 4, 5)] == [(mark.number, mark.seq, transcript.end_of(mark)) for mark in transcript.steps]


def test_a_name_that_has_to_be_quoted_is_read() -> None:
    assert ['say "a", then "b"'] == [
        mark.name for mark in transcript_of(CREATED, step(1, 'say \\"a\\", then \\"b\\"')).steps
    ]


def test_entries_come_with_their_values_or_without() -> None:
    plain = transcript_of(CREATED, (EntryType.STEP_RECORDED, '{"step":1,"name":"plan"}'))
    quoted = (EntryType.STEP_RECORDED, '{"step":1,"name":"\\"plan\\""}')

    assert transcript_of(CREATED, step(1)).steps == plain.steps
    assert transcript_of(CREATED, step(1, '\\"plan\\"')).steps == transcript_of(CREATED, quoted).steps


def test_a_step_without_a_name_is_said_to_be_damaged_when_it_is_asked_for() -> None:
    transcript = transcript_of(CREATED, step(1), (EntryType.STEP_RECORDED, '{"step":2,"content":{}}'), step(3))

    assert transcript.step_mark(3) is not None
    with pytest.raises(JournalCorruptError, match="run 's' cannot be read: entry 3"):
        transcript.step_mark(2)


def test_what_is_at_or_before_the_cut_of_a_fork_is_inherited() -> None:
    transcript = transcript_of(CREATED, STARTED, step(1), FORKED, STARTED, step(2))

    assert [True, False, False] == [transcript.is_inherited(seq) for seq in (3, 4, 6)]
    assert 1 == transcript.fork_step


def test_a_call_is_lost_once_the_session_was_opened_anew() -> None:
    outstanding = transcript_of(CREATED, STARTED, claim(0, 1))
    reopened = transcript_of(CREATED, STARTED, claim(0, 1), RESUMED)
    forked = transcript_of(CREATED, STARTED, claim(0, 1), step(1), FORKED)
    answered = transcript_of(CREATED, STARTED, claim(0, 1), result(3), RESUMED)

    assert [False, True, True, False] == [
        one.is_lost(one.ledger[CallId(CallKind.TASK, "fetch", 0)]) for one in (outstanding, reopened, forked, answered)
    ]


def test_the_calls_of_a_step_that_is_begun_anew_have_the_same_ordinals() -> None:
    begun = transcript_of(CREATED, STARTED, claim(0, 1), step(1), claim(1, 2), claim(2, 2))
    done = transcript_of(CREATED, STARTED, claim(0, 1), step(1), claim(1, 2), claim(2, 2), step(2))

    assert (1, 3, 0) == (begun.first_ordinal("fetch"), done.first_ordinal("fetch"), done.first_ordinal("other"))


def test_a_wake_up_is_pending_until_it_has_fired() -> None:
    asked = (EntryType.TIMER_CREATED, '{"timer":"wake","ordinal":0,"due":7,"note":"look"}')
    fired = (EntryType.TIMER_FIRED, '{"call":3}')

    assert [(3, 7, "look")] == list(transcript_of(CREATED, STARTED, asked).wake_ups.values())
    assert {} == transcript_of(CREATED, STARTED, asked, fired).wake_ups
    assert 1 == transcript_of(CREATED, STARTED, asked, fired).wakes_asked


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([STARTED], "does not begin with its creation"),
        ([CREATED, step(2)], "is step 2, and step 0 was before it"),
        ([CREATED, step(1), step(3)], "is step 3, and step 1 was before it"),
        ([CREATED, (EntryType.DECISION_MADE, '{"call":5,"decision":"rerun"}')], "answers a call that is not there"),
    ],
)
def test_a_journal_that_cannot_be_is_refused_with_the_entry(lines: list[Line], told: str) -> None:
    with pytest.raises(JournalCorruptError, match=told):
        transcript_of(*lines)


def test_an_entry_of_an_unknown_type_is_refused_before_anything_is_made_of_it() -> None:
    transcript = Transcript("s")
    with pytest.raises(UnsupportedEntryError, match="satay 9"):
        transcript.read(entries_of([CREATED, step(1), ("StepUndone", '{"needs":"9"}')]))

    assert [] == transcript.steps
