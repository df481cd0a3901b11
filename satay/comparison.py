"""Runs side by side: which calls one inherited from the other, which ran again, where they part, and why.

- Calls are aligned by identity. A call is `replayed` if both runs hold the very same entries for it: their digests
  agree from the start of the journals to its outcome, and the runs are of one lineage.
- Steps of sessions are aligned by their number; a session and a run of a workflow have calls in common only.
- Everything else is compared by what was recorded, but for tracebacks, which every moved line of code changes.
- It takes either order of the runs, runs that have not ended, and runs that have nothing to do with each other.
- Large values are read where two differ, and at most `MAX_LARGE_VALUES` pairs of them; beyond those, other bytes are
  another value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple

from satay.accounts import CallSide, CallState, to_plain_or_missing
from satay.collector import collector_paused
from satay.differences import Difference, find_differences
from satay.divergences import (
    CallComparison,
    CallStatus,
    Explanation,
    StepComparison,
    explain_call,
    explain_ending,
    explain_step,
)
from satay.histories import Reading, RecordedCall
from satay.matrices import ComparisonMatrix, MatrixRow
from satay.model import STATUS_OF_ENDING, CallId, Entry, RunStatus
from satay.replay import blob_reference, read_head
from satay.reports import Comparison
from satay.transcripts import StepMark

MAX_LARGE_VALUES: Final = 20
"""How many pairs of arguments or outcomes are compared by their large values, in the order of the calls."""


class WantedValues(NamedTuple):
    """The large values of two runs that a comparison of the two reads, by digest."""

    one: set[str]
    other: set[str]


@collector_paused()
def compare_readings(ours: Reading, theirs: Reading) -> Comparison:
    """Compare two runs. Raises `JournalCorruptError` for a journal that cannot be read.

    It takes time in proportion to the entries and to the values that differ.
    """
    shared = shared_entries(ours.history.entries, theirs.history.entries)
    calls = tuple(_compare_call(identity, ours, theirs, shared) for identity in _merged(ours.calls, theirs.calls))
    inputs, more_inputs = _compare_values(_input_of(ours), _input_of(theirs))
    results, more_results = _compare_endings(ours, theirs)
    steps = tuple(_compare_steps(ours, theirs, shared))
    states, more_states = _compare_states(ours, theirs)
    first = next((call for call in calls if call.is_divergent), None)
    first_step = next((step for step in steps if step.is_divergent), None)
    one, other = ours.run(), theirs.run()
    has_ended = one.status.is_terminal and other.status.is_terminal
    ends_differ = has_ended and (one.status is not other.status or bool(results) or more_results)
    explanation: Explanation | None = None
    if first is not None:
        explanation = explain_call(first, one, other, inputs)
    elif first_step is not None:
        explanation = explain_step(first_step, one, other, inputs)
    elif ends_differ:
        explanation = explain_ending(one, other, inputs)
    return Comparison(
        one=one,
        other=other,
        calls=calls,
        first_divergence=first,
        cause=None if explanation is None else explanation.cause,
        explanation=None if explanation is None else explanation.clause,
        has_divergence=first is not None or first_step is not None or ends_differ,
        input_differences=inputs,
        result_differences=results,
        is_truncated=more_inputs or more_results or more_states,
        steps=steps,
        first_divergent_step=first_step,
        state_differences=states,
    )


def compare_all(reference: Reading, others: Sequence[Reading]) -> ComparisonMatrix:
    """Compare runs with the first of them."""
    pairs = tuple(compare_readings(reference, other) for other in others)
    order: Mapping[CallId, Any] = reference.calls
    for other in others:
        order = dict.fromkeys(_merged(order, other.calls))
    by_identity = [{call.identity: call for call in pair.calls} for pair in pairs]
    rows = []
    for identity in order:
        call = reference.calls.get(identity)
        side = None if call is None else reference.side(call)
        rows.append(MatrixRow(identity, side, tuple(cells.get(identity) for cells in by_identity)))
    return ComparisonMatrix(pairs=pairs, rows=tuple(rows))


def wanted_values(one: Reading, other: Reading) -> WantedValues:
    """The large values that are to be read before the two are compared."""
    wanted = WantedValues(set(), set())
    for reading, digests in ((one, wanted.one), (other, wanted.other)):
        digests |= _references(reading.own_fork, reading.end)
    for ours, theirs in islice(_unlike(one, other), MAX_LARGE_VALUES):
        wanted.one.update(ours)
        wanted.other.update(theirs)
    return wanted


def _unlike(one: Reading, other: Reading) -> Iterator[tuple[set[str], set[str]]]:
    """The large values of whatever is compared and differs."""
    for entry, counterpart in _compared(one, other):
        if _may_be_large(entry) or _may_be_large(counterpart):
            found, other_found = _references(entry), _references(counterpart)
            if found != other_found:
                yield found, other_found


def _compared(one: Reading, other: Reading) -> Iterator[tuple[Entry | None, Entry | None]]:
    """The entries that are compared by their values, but for calls all of whose values were seen in passing."""
    shared = shared_entries(one.history.entries, other.history.entries)
    yield _first(one), _first(other)
    for identity, ours in one.calls.items():
        theirs = other.calls.get(identity)
        if theirs is None or (ours.is_seen and theirs.is_seen) or _is_shared(ours, theirs, shared):
            continue
        yield ours.input_entry, theirs.input_entry
        yield ours.outcome, theirs.outcome
    if one.steps and other.steps:
        for mark, counterpart in zip(one.steps, other.steps, strict=False):
            if mark.seq > shared:
                yield one.step_entry(mark), other.step_entry(counterpart)


def _references(*entries: Entry | None) -> set[str]:
    return {digest for entry in entries if entry is not None and (digest := blob_reference(entry)) is not None}


def _may_be_large(entry: Entry | None) -> bool:
    """Whether an entry looks as if its value were kept in a blob. Quicker than to ask which."""
    return entry is not None and entry.payload[_BLOB_MARK_PLACE] == _BLOB_MARK


_BLOB_MARK: Final = '_blob":"'
_BLOB_MARK_PLACE: Final = slice(-66 - len(_BLOB_MARK), -66)
"""Where the mark stands: before 64 digits, a quotation mark and a brace."""


def shared_entries(one: Sequence[Entry], other: Sequence[Entry]) -> int:
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


def _is_shared(ours: RecordedCall, theirs: RecordedCall, shared: int) -> bool:
    """Whether a call is one in both. A fork of a session may have made it anew under the same name."""
    return ours.outcome is not None and ours.outcome.seq <= shared and ours.entry.seq == theirs.entry.seq


def _merged(one: Mapping[CallId, Any], other: Mapping[CallId, Any]) -> Iterable[CallId]:
    """All calls in the order of `one`; what only `other` has comes before the next call that both have."""
    return one if other.keys() <= one.keys() else _interleaved(one, other)


def _interleaved(one: Mapping[CallId, Any], other: Mapping[CallId, Any]) -> Iterator[CallId]:
    followers: dict[CallId | None, list[CallId]] = {}
    anchor: CallId | None = None
    for identity in other:
        if identity in one:
            anchor = identity
        else:
            followers.setdefault(anchor, []).append(identity)
    waiting = followers.get(None, ())
    for identity in one:
        if identity in other:
            yield from waiting
            waiting = followers.get(identity, ())
        yield identity
    yield from waiting


def _compare_call(identity: CallId, one: Reading, other: Reading, shared: int) -> CallComparison:
    ours, theirs = one.calls.get(identity), other.calls.get(identity)
    if ours is None or theirs is None:
        status = CallStatus.ONLY_OTHER if ours is None else CallStatus.ONLY_ONE
        return CallComparison(identity, status, _side(one, ours), _side(other, theirs))
    side = one.side(ours)
    if _is_shared(ours, theirs, shared):  # The entries are the same, and so is what they say.
        return CallComparison(identity, CallStatus.REPLAYED, side, side)
    other_side = other.side(theirs)
    if _is_same(side, other_side):
        return CallComparison(identity, CallStatus.SAME, side, other_side)
    inputs, more_inputs = _compare_values(_input(side), _input(other_side))
    has_other_input = bool(inputs) or more_inputs
    if side.outcome_seq is None or other_side.outcome_seq is None:
        status, results, more_results = CallStatus.UNFINISHED, _NO_DIFFERENCES, False
    else:
        results, more_results = _compare_outcomes(side, other_side)
        is_same = side.state is other_side.state and not results and not more_results
        status = CallStatus.SAME if is_same else CallStatus.DIFFERENT
    is_truncated = more_inputs or more_results
    return CallComparison(identity, status, side, other_side, inputs, results, is_truncated, has_other_input)


def _is_same(one: CallSide, other: CallSide) -> bool:
    """Whether both completed, and text for text with the same arguments and the same result: most calls are so."""
    return (
        one.state is other.state is _COMPLETED
        and one.outcome_text == other.outcome_text is not None
        and one.input_text == other.input_text is not None
    )


def _side(reading: Reading, call: RecordedCall | None) -> CallSide | None:
    return None if call is None else reading.side(call)


_COMPLETED: Final = CallState.COMPLETED


class _Value(NamedTuple):
    """A recorded value: its text, or the digest of one that was not read; neither where there is none."""

    text: str | None
    digest: str | None


_NO_VALUE: Final = _Value(None, None)
_Found = tuple[tuple[Difference, ...], bool]
_NO_DIFFERENCES: Final[tuple[Difference, ...]] = ()
_NOTHING: Final[_Found] = (_NO_DIFFERENCES, False)
_NOT_READ: Final[_Found] = (_NO_DIFFERENCES, True)


def _input(side: CallSide) -> _Value:
    return _Value(side.input_text, side.input_blob)


def _outcome(side: CallSide) -> _Value:
    return _Value(side.outcome_text, side.outcome_blob)


def _value(reading: Reading, entry: Entry | None) -> _Value:
    text = reading.text(entry)
    return _Value(text, blob_reference(entry) if text is None and entry is not None else None)


def _compare_values(one: _Value, other: _Value) -> _Found:
    if one == other:
        return _NOTHING
    if one.digest is not None or other.digest is not None:
        return _NOT_READ
    return find_differences(to_plain_or_missing(one.text), to_plain_or_missing(other.text))


def _compare_steps(one: Reading, other: Reading, shared: int) -> Iterator[StepComparison]:
    """The steps of two sessions by their number; none where one of the two is no session."""
    if one.transcript is None or other.transcript is None:
        return
    for number, (ours, theirs) in enumerate(zip_longest(one.steps, other.steps), 1):
        yield _compare_step(number, one, other, ours, theirs, is_shared=ours is not None and ours.seq <= shared)


def _compare_step(
    number: int, one: Reading, other: Reading, ours: StepMark | None, theirs: StepMark | None, *, is_shared: bool
) -> StepComparison:
    side = None if ours is None else one.step_side(ours)
    other_side = None if theirs is None else other.step_side(theirs)
    if side is None or other_side is None:
        status = CallStatus.ONLY_OTHER if side is None else CallStatus.ONLY_ONE
        return StepComparison(number, status, side, other_side)
    if is_shared:
        return StepComparison(number, CallStatus.REPLAYED, side, side)
    if (side.content_text, side.content_blob) == (other_side.content_text, other_side.content_blob):
        inputs, outputs, is_truncated = _NO_DIFFERENCES, _NO_DIFFERENCES, False
    elif side.content_text is None or other_side.content_text is None:
        inputs, outputs, is_truncated = _NO_DIFFERENCES, _NO_DIFFERENCES, True
    else:
        inputs, more_inputs = find_differences(side.input, other_side.input)
        outputs, more_outputs = find_differences(side.output, other_side.output)
        is_truncated = more_inputs or more_outputs
    is_same = side.name == other_side.name and not inputs and not outputs and not is_truncated
    status = CallStatus.SAME if is_same else CallStatus.DIFFERENT
    return StepComparison(number, status, side, other_side, inputs, outputs, is_truncated)


def _compare_states(one: Reading, other: Reading) -> _Found:
    """The latest states of two sessions that have recorded some."""
    if one.state_text is None or other.state_text is None:
        return _NOTHING
    return _compare_values(_Value(one.state_text, None), _Value(other.state_text, None))


def _compare_outcomes(one: CallSide, other: CallSide) -> _Found:
    if one.state is other.state is CallState.FAILED:
        return _compare_failures(_outcome(one), _outcome(other))
    if one.state is other.state is CallState.BLOCKED:  # A refusal names its fork, which is another one each time.
        return find_differences(one.reason, other.reason)
    values = [_outcome(side) if side.state is CallState.COMPLETED else _NO_VALUE for side in (one, other)]
    return _compare_values(*values)


def _compare_endings(one: Reading, other: Reading) -> _Found:
    statuses = [None if end is None else STATUS_OF_ENDING[end.type] for end in (one.end, other.end)]
    values = (_value(one, one.end), _value(other, other.end))
    if statuses == [RunStatus.FAILED, RunStatus.FAILED]:
        return _compare_failures(*values)
    results = [
        value if status is RunStatus.COMPLETED else _NO_VALUE for status, value in zip(statuses, values, strict=True)
    ]
    return _compare_values(*results)


def _compare_failures(one: _Value, other: _Value) -> _Found:
    if one == other:
        return _NOTHING
    if one.digest is not None or other.digest is not None:
        return _NOT_READ
    return find_differences(
        _without_traceback(to_plain_or_missing(one.text)), _without_traceback(to_plain_or_missing(other.text))
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


def _first(reading: Reading) -> Entry | None:
    return reading.history.entries[0] if reading.history.entries else None


def _input_of(reading: Reading) -> _Value:
    return _value(reading, _first(reading))
