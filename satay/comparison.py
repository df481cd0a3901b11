"""Two runs side by side: which calls one inherited from the other, which ran again, and where they part.

- Calls are aligned by identity. A call is `replayed` if both runs hold the very same entries for it: their digests
  agree from the start of the journals to its outcome, and the runs are of one lineage.
- Everything else is compared by what was recorded, but for tracebacks, which every moved line of code changes.
- It takes either order of the runs, runs that have not ended, and runs that have nothing to do with each other.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from satay.differences import Difference, find_differences
from satay.histories import CallSide, CallState, Reading, RecordedCall, RunHistory, read_head, to_plain_or_missing
from satay.model import CallId, Entry, EntryType
from satay.reports import CallComparison, CallStatus, Comparison


def compare_runs(one: RunHistory, other: RunHistory) -> Comparison:
    """Compare two runs. Raises `JournalCorruptError` for a journal that cannot be read.

    It takes time in proportion to the entries and to the values that differ.
    """
    shared = _shared_entries(one.entries, other.entries)
    ours, theirs = Reading(one), Reading(other)
    calls = tuple(_compare_call(identity, ours, theirs, shared) for identity in _merged(ours, theirs))
    inputs, more_inputs = _compare_texts(_input_text(ours), _input_text(theirs))
    results, more_results = _compare_endings(ours, theirs)
    return Comparison(
        one=ours.run(),
        other=theirs.run(),
        calls=calls,
        first_divergence=next((call for call in calls if call.is_divergent), None),
        input_differences=inputs,
        result_differences=results,
        is_truncated=more_inputs or more_results,
    )


def _shared_entries(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """The seq of the last entry that both journals have in common; 1 if there is none.

    Digests prove equal content. That it is one history, and not two that happen to be alike, is said by the root.
    """
    if not one or not other or read_head(one[0]).get("root") != read_head(other[0]).get("root"):
        return 1
    shared = 1
    for ours, theirs in zip(one[1:], other[1:], strict=False):
        if ours.digest != theirs.digest:
            break
        shared = ours.seq
    return shared


def _merged(one: Reading, other: Reading) -> Iterator[CallId]:
    """All calls in the order of `one`; what only `other` has comes before the next call that both have."""
    followers: dict[CallId | None, list[CallId]] = {None: []}
    anchor: CallId | None = None
    for identity in other.calls:
        if identity in one.calls:
            anchor = identity
            followers[anchor] = []
        else:
            followers[anchor].append(identity)
    waiting = followers[None]
    for identity in one.calls:
        if identity in followers:
            yield from waiting
            waiting = followers[identity]
        yield identity
    yield from waiting


def _compare_call(identity: CallId, one: Reading, other: Reading, shared: int) -> CallComparison:
    ours, theirs = one.calls.get(identity), other.calls.get(identity)
    if ours is None or theirs is None:
        status = CallStatus.ONLY_OTHER if ours is None else CallStatus.ONLY_ONE
        return CallComparison(identity, status, _side(one, ours), _side(other, theirs))
    side, other_side = one.side(ours), other.side(theirs)
    if ours.outcome is not None and ours.outcome.seq <= shared:
        return CallComparison(identity, CallStatus.REPLAYED, side, other_side)
    inputs, more_inputs = _compare_texts(side.input_text, other_side.input_text)
    if side.outcome_seq is None or other_side.outcome_seq is None:
        return CallComparison(identity, CallStatus.UNFINISHED, side, other_side, inputs, (), more_inputs)
    results, more_results = _compare_outcomes(side, other_side)
    is_same = side.state is other_side.state and not results
    status = CallStatus.SAME if is_same else CallStatus.DIFFERENT
    return CallComparison(identity, status, side, other_side, inputs, results, more_inputs or more_results)


def _side(reading: Reading, call: RecordedCall | None) -> CallSide | None:
    return None if call is None else reading.side(call)


_Found = tuple[tuple[Difference, ...], bool]
_NOTHING: Final[_Found] = ((), False)


def _compare_texts(one: str | None, other: str | None) -> _Found:
    return _NOTHING if one == other else find_differences(to_plain_or_missing(one), to_plain_or_missing(other))


def _compare_outcomes(one: CallSide, other: CallSide) -> _Found:
    if one.state is other.state is CallState.FAILED:
        return _compare_failures(one.outcome_text, other.outcome_text)
    texts = [side.outcome_text if side.state is CallState.COMPLETED else None for side in (one, other)]
    return _compare_texts(*texts)


def _compare_endings(one: Reading, other: Reading) -> _Found:
    ends = (one.end, other.end)
    texts = (one.text(one.end), other.text(other.end))
    if all(end is not None and end.type == EntryType.WORKFLOW_FAILED for end in ends):
        return _compare_failures(*texts)
    is_result = [end is not None and end.type == EntryType.WORKFLOW_COMPLETED for end in ends]
    return _compare_texts(texts[0] if is_result[0] else None, texts[1] if is_result[1] else None)


def _compare_failures(one: str | None, other: str | None) -> _Found:
    if one == other:
        return _NOTHING
    return find_differences(
        _without_traceback(to_plain_or_missing(one)), _without_traceback(to_plain_or_missing(other))
    )


def _without_traceback(failure: Any) -> Any:
    if not isinstance(failure, dict):
        return failure
    kept = {name: value for name, value in failure.items() if name != "traceback"}
    if "cause" in kept:
        kept["cause"] = _without_traceback(kept["cause"])
    if isinstance(kept.get("members"), list):
        kept["members"] = [_without_traceback(member) for member in kept["members"]]
    return kept


def _input_text(reading: Reading) -> str | None:
    return reading.text(reading.history.entries[0]) if reading.history.entries else None
