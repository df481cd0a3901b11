"""Where a session is cut for a fork: after which step, and with which state. Never later than was asked for."""

from typing import NamedTuple

from satay.boundaries import BoundaryMode, Reproducibility
from satay.errors import ForkValidationError, InvalidValueError, NoRestorableStateError
from satay.model import UNKNOWN_VERSION, Entry, EntryType
from satay.replay import read_head
from satay.session_calls import LedgerCall, SessionCalls
from satay.snapshots import Snapshot, read_snapshot
from satay.transcripts import MAX_STEP, Transcript, step_number


class Boundary(NamedTuple):
    """A boundary found in a transcript: the last step and the last entry that are kept, and the state there."""

    step: int
    through_seq: int
    snapshot: Snapshot | None


def find_boundary(transcript: Transcript, step: int, mode: BoundaryMode) -> Boundary:
    """Where a session is cut so that it is kept up to a step; 0 keeps nothing but its creation.

    Raises `ForkValidationError` for a step that it has not recorded, `NoRestorableStateError` where a state is asked
    for and there is none.
    """
    if not 0 <= step <= transcript.last_step:
        raise ForkValidationError(
            f"session {transcript.run_id!r} has no step {step}; "
            + (
                f"its steps are 1 to {transcript.last_step}"
                if transcript.last_step
                else "it has recorded no step, so fork it at_step=0 with boundary='lineage'"
            ),
            run_id=transcript.run_id,
        )
    match mode:
        case BoundaryMode.LINEAGE:
            return Boundary(step, _last_seq(transcript, step), None)
        case BoundaryMode.EXACT:
            snapshot = transcript.snapshots.latest_through(step)
            if snapshot is None or snapshot.step != step:
                raise _not_restorable(transcript, step, "no state was recorded with it")
        case BoundaryMode.NEAREST:
            snapshot = transcript.snapshots.latest_through(step)
            if snapshot is None:
                raise _not_restorable(transcript, step, "no state was recorded at it or before it")
    return Boundary(snapshot.step, _last_seq(transcript, snapshot.step), snapshot)


def find_state(transcript: Transcript, step: int | None) -> Snapshot:
    """The state of exactly this step, or the latest one.

    Raises `InvalidValueError` for a step that there is not, `NoRestorableStateError` for one without a state.
    """
    run_id, snapshots = transcript.run_id, transcript.snapshots
    if step is not None and step > transcript.last_step:
        has = f"its steps are 1 to {transcript.last_step}" if transcript.last_step else "it has recorded no step"
        raise InvalidValueError(f"session {run_id!r} has no step {step}; {has}")
    found = snapshots.latest if step is None else snapshots.latest_through(step)
    if found is not None and (step is None or found.step == step):
        return found
    before, after = _nearest(transcript, MAX_STEP if step is None else step)
    near = _named(before, after)
    told = f"no state with step {step}; the nearest with a state: {near}" if near else "no state; give it a state_fn"
    raise NoRestorableStateError(
        f"session {run_id!r} has recorded {told}", run_id=run_id, step=step or 0, before=before, after=after
    )


def boundary_at(step: Entry, follower: Entry | None, mode: BoundaryMode) -> Boundary | None:
    """The boundary at the entry of a step, by the entry that follows it; None where the step lacks the state for it."""
    number = step_number(step)
    if follower is None or follower.type != EntryType.STATE_RECORDED:
        return Boundary(number, step.seq, None) if mode is BoundaryMode.LINEAGE else None
    if mode is BoundaryMode.LINEAGE:
        return Boundary(number, follower.seq, None)
    snapshot = read_snapshot(follower.seq, follower.payload)
    return Boundary(number, follower.seq, snapshot) if snapshot.step == number else None


def _last_seq(transcript: Transcript, step: int) -> int:
    mark = transcript.step_mark(step)
    return 1 if mark is None else transcript.end_of(mark)


def _nearest(transcript: Transcript, step: int) -> tuple[int | None, int | None]:
    """The last step before a step that has a state, and the first one after it."""
    steps = [snapshot.step for snapshot in transcript.snapshots]
    before = max((one for one in steps if one < step), default=None)
    after = min((one for one in steps if one > step), default=None)
    return before, after


def _named(before: int | None, after: int | None) -> str:
    return " and ".join(f"step {one}" for one in (before, after) if one is not None)


def _not_restorable(transcript: Transcript, step: int, why: str) -> NoRestorableStateError:
    before, after = _nearest(transcript, step)
    near = _named(before, after)
    return NoRestorableStateError(
        f"session {transcript.run_id!r} cannot be forked with its state at step {step}: {why}; "
        + (f"the nearest with a state: {near}. " if near else "it has recorded no state at all. ")
        + ("Fork there, or pass boundary='nearest'" if before is not None else "Pass boundary='lineage'")
        + (" or 'lineage', which hands over no state" if before is not None else ", which hands over no state"),
        run_id=transcript.run_id,
        step=step,
        before=before,
        after=after,
    )


def open_calls_at(calls: SessionCalls, seq: int) -> list[LedgerCall]:
    """The calls of tools that were outstanding after an entry."""
    return [call for call in calls.calls if call.entry.seq <= seq and (call.outcome is None or call.outcome.seq > seq)]


def judge(
    calls: SessionCalls, boundary: Boundary, requested_step: int, code_versions: tuple[str, str]
) -> tuple[Reproducibility, tuple[str, ...]]:
    """How reproducible a fork is, and what is missing for more. `code_versions` are the source's and today's."""
    if boundary.snapshot is None:
        return Reproducibility.LINEAGE, ("no state is handed over; fork with boundary='exact' or 'nearest'",)
    if boundary.step != requested_step:
        return Reproducibility.APPROXIMATE, (
            f"step {requested_step} has no state; the state is that of step {boundary.step}",
        )
    missing = [f"call {call.identity} was outstanding" for call in open_calls_at(calls, boundary.through_seq)]
    missing += [
        f"the result of call {call.identity} cannot be read"
        for call in calls.calls
        if call.outcome is not None
        and call.outcome.seq <= boundary.through_seq
        and call.outcome.type == EntryType.TASK_COMPLETED
        and '"unreadable":' in call.outcome.payload
        and "unreadable" in read_head(call.outcome)
    ]
    if code_versions[1] == UNKNOWN_VERSION:
        missing.append("today's code version is not known; set SATAY_CODE_VERSION or pass a state_fn")
    elif code_versions[0] == UNKNOWN_VERSION:
        missing.append("the source's code version is not known")
    elif code_versions[0] != code_versions[1]:
        missing.append(f"the code is version {code_versions[1]!r} now and was {code_versions[0]!r}")
    return (Reproducibility.STATE, tuple(missing)) if missing else (Reproducibility.COMPLETE, ())
