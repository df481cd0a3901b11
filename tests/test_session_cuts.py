"""Where a session is cut for a fork: never later than was asked for."""

import pytest

from satay.boundaries import BoundaryMode, Reproducibility
from satay.errors import ForkValidationError, NoRestorableStateError
from satay.model import UNKNOWN_VERSION, EntryType
from satay.session_cuts import Boundary, boundary_at, find_boundary, judge
from satay.transcripts import Transcript
from tests.test_transcripts import CREATED, STARTED, Line, claim, entries_of, result, state, step, transcript_of

EXACT, NEAREST, LINEAGE = BoundaryMode


def with_states_at(*steps: int, last: int = 9) -> Transcript:
    """A session with `last` steps, some of them with a state."""
    lines: list[Line] = [CREATED, STARTED]
    for number in range(1, last + 1):
        lines.append(step(number))
        if number in steps:
            lines.append(state(number))
    return transcript_of(*lines)


def found(boundary: Boundary) -> tuple[int, int | None]:
    """The last step that is kept, and the one whose state is handed over."""
    return boundary.step, None if boundary.snapshot is None else boundary.snapshot.step


@pytest.mark.parametrize("asked", [3, 6, 9])
@pytest.mark.parametrize("mode", [EXACT, NEAREST])
def test_a_step_with_a_state_is_cut_at_in_both_modes(asked: int, mode: BoundaryMode) -> None:
    assert (asked, asked) == found(find_boundary(with_states_at(3, 6, 9), asked, mode))


@pytest.mark.parametrize(
    ("asked", "before", "after"), [(1, None, 3), (2, None, 3), (4, 3, 6), (5, 3, 6), (7, 6, 9), (8, 6, 9), (0, None, 3)]
)
def test_exact_refuses_a_step_without_a_state_and_names_the_nearest(
    asked: int, before: int | None, after: int | None
) -> None:
    with pytest.raises(NoRestorableStateError) as refused:
        find_boundary(with_states_at(3, 6, 9), asked, EXACT)

    assert (asked, before, after) == (refused.value.step, refused.value.before, refused.value.after)
    assert all(f"step {near}" in str(refused.value) for near in (before, after) if near is not None)


@pytest.mark.parametrize(("asked", "state_step"), [(4, 3), (5, 3), (7, 6), (8, 6)])
def test_nearest_takes_the_latest_state_before_and_goes_on_after_its_step(asked: int, state_step: int) -> None:
    assert (state_step, state_step) == found(find_boundary(with_states_at(3, 6, 9), asked, NEAREST))


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_nearest_never_takes_a_later_state(asked: int) -> None:
    with pytest.raises(NoRestorableStateError, match="lineage"):
        find_boundary(with_states_at(3, 6, 9), asked, NEAREST)


@pytest.mark.parametrize("asked", range(10))
def test_lineage_keeps_every_step_that_was_asked_for_and_no_state(asked: int) -> None:
    assert (asked, None) == found(find_boundary(with_states_at(3, 6, 9), asked, LINEAGE))


@pytest.mark.parametrize("asked", range(1, 10))
@pytest.mark.parametrize("mode", BoundaryMode)
def test_a_step_and_what_follows_it_say_where_the_cut_is_or_that_more_must_be_read(
    asked: int, mode: BoundaryMode
) -> None:
    lines = [CREATED, STARTED]
    for number in range(1, 10):
        lines += [step(number), state(number)] if number % 3 == 0 else [step(number)]
    entries = entries_of(lines)
    transcript = transcript_of(*lines)
    mark = transcript.step_mark(asked)
    assert mark is not None
    follower = entries[mark.seq] if mark.seq < len(entries) else None
    boundary = boundary_at(entries[mark.seq - 1], follower, mode)

    assert (boundary is None) == (mode is not LINEAGE and asked % 3 != 0)
    assert boundary is None or boundary == find_boundary(transcript, asked, mode)


def test_the_state_of_another_step_is_no_boundary() -> None:
    at, follower = entries_of([step(1), state(2)])

    assert boundary_at(at, follower, EXACT) is None


@pytest.mark.parametrize("mode", BoundaryMode)
@pytest.mark.parametrize("asked", [10, 99])
def test_a_step_that_there_is_not_is_refused(asked: int, mode: BoundaryMode) -> None:
    with pytest.raises(ForkValidationError, match="its steps are 1 to 9"):
        find_boundary(with_states_at(3, 6, 9), asked, mode)


def test_a_session_without_a_step_says_how_it_can_be_forked() -> None:
    with pytest.raises(ForkValidationError, match="boundary='lineage'"):
        find_boundary(transcript_of(CREATED), 1, EXACT)


def test_calls_after_the_step_are_not_kept() -> None:
    transcript = transcript_of(CREATED, STARTED, step(1), state(1), claim(0, 2), result(5))

    assert 4 == find_boundary(transcript, 1, EXACT).through_seq


# --- how reproducible a fork is ---------------------------------------------------------------------------------------


UNREADABLE: Line = (EntryType.TASK_COMPLETED, '{"call":3,"unreadable":"why","result":null}')
USED = '{"model":"a","input_tokens":0,"output_tokens":0,"cost":0.0}'
USED_AND_UNREADABLE: Line = (
    EntryType.TASK_COMPLETED,
    f'{{"call":3,"usage":[{",".join([USED] * 9)}],"unreadable":"why","result":null}}',
)
TOLD_UNREADABLE: Line = (EntryType.TASK_COMPLETED, '{"call":3,"result":{"unreadable":"page 3"}}')


@pytest.mark.parametrize(
    ("lines", "versions", "asked", "mode", "grade", "missing"),
    [
        ([claim(0, 1), result(3), step(1), state(1)], ("a", "a"), 1, EXACT, Reproducibility.COMPLETE, None),
        ([claim(0, 1), step(1), state(1)], ("a", "a"), 1, EXACT, Reproducibility.STATE, "fetch:0 was outstanding"),
        ([claim(0, 1), UNREADABLE, step(1), state(1)], ("a", "a"), 1, EXACT, Reproducibility.STATE, "cannot be read"),
        (
            [claim(0, 1), USED_AND_UNREADABLE, step(1), state(1)],
            ("a", "a"),
            1,
            EXACT,
            Reproducibility.STATE,
            "cannot be read",
        ),
        ([claim(0, 1), TOLD_UNREADABLE, step(1), state(1)], ("a", "a"), 1, EXACT, Reproducibility.COMPLETE, None),
        ([step(1), state(1)], ("a", "b"), 1, EXACT, Reproducibility.STATE, "version 'b' now and was 'a'"),
        ([step(1), state(1)], (UNKNOWN_VERSION,) * 2, 1, EXACT, Reproducibility.STATE, "not known"),
        (
            [step(1), state(1)],
            ("a", UNKNOWN_VERSION),
            1,
            EXACT,
            Reproducibility.STATE,
            "today's code version is not known; set",
        ),
        (
            [step(1), state(1)],
            (UNKNOWN_VERSION, "a"),
            1,
            EXACT,
            Reproducibility.STATE,
            "source's code version is not known",
        ),
        ([step(1), state(1), step(2)], ("a", "a"), 2, NEAREST, Reproducibility.APPROXIMATE, "step 2 has no state"),
        ([step(1), state(1)], ("a", "a"), 1, LINEAGE, Reproducibility.LINEAGE, "no state is handed over"),
    ],
)
def test_the_grade_says_what_is_missing_for_the_next_better_one(
    lines: list[Line],
    versions: tuple[str, str],
    asked: int,
    mode: BoundaryMode,
    grade: Reproducibility,
    missing: str | None,
) -> None:
    transcript = transcript_of(CREATED, STARTED, *lines)
    judged, reasons = judge(transcript, find_boundary(transcript, asked, mode), asked, versions)

    assert grade is judged
    assert (missing is None) == (not reasons)
    assert missing is None or missing in reasons[0]
