"""Where a source run is cut: what a fork asks for, and what that means in the source's journal.

A cut keeps the entries 1 to `through_seq`. With the rule `keep_siblings` one call that is outstanding there runs again,
and the others that are outstanding there keep the outcomes which the source recorded for them later: everything that
was issued before the outcome of the call reached the body is independent of that outcome.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.errors import ForkValidationError
from satay.failures import Failure, parse_failure
from satay.model import TERMINAL_ENTRIES, CallId, CallKind, Entry, EntryType
from satay.replay import OUTCOME_TYPES, open_calls, outcome_call, recorded_call, value_text
from satay.texts import to_plain

AT_FAILURE: Final = "failure"
"""What `at=` may be."""


MAX_NAMED_CALLS: Final = 10
"""How many calls a refusal names."""


class CutRule(StrEnum):
    """How a cut was found."""

    BEFORE = "before the call"
    AFTER = "after the outcome of the call"
    KEEP_SIBLINGS = "only the call runs again"
    OVERRIDE = "where the overridden outcome reached the body"
    FAILURE = "before the call that failed the run"
    BODY_FAILURE = "before the turn in which the body failed"
    STALE = "before the first call with other arguments now"
    POINT = "after the entry"


@dataclass(frozen=True, slots=True)
class RequestedCut:
    """Where a fork was asked to begin. One of the `before_…`, `after_task`, `at` and `fork_point_seq`, or none.

    In a session it is `at_step`, in one of the boundary modes.
    """

    before_task: str | None = None
    before_event: str | None = None
    before_child: str | None = None
    before_ordinal: int | None = None
    before_key: str | None = None
    after_task: str | None = None
    after_ordinal: int | None = None
    after_key: str | None = None
    at: str | None = None
    fork_point_seq: int | None = None
    keep_siblings: bool = False
    on_stale: str = "keep"
    at_step: int | None = None
    boundary: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """What was asked for, without what was left at its default."""
        return {name: value for name, default in _DEFAULTS.items() if (value := getattr(self, name)) != default}


_DEFAULTS: Final = asdict(RequestedCut())


class Cut(NamedTuple):
    """A cut in a source's journal.

    `again` is the seq of the call that runs again although it is in the prefix. `kept` are outcomes recorded after the
    cut that the fork keeps, in the order in which they reached the body.
    """

    rule: CutRule
    through_seq: int
    call: CallId | None = None
    again: int | None = None
    kept: Sequence[Entry] = ()

    @property
    def next_call(self) -> CallId | None:
        """The call that the cut was to be before: it is made, whatever its ancestors had in store for it."""
        return self.call if self.rule in (CutRule.BEFORE, CutRule.FAILURE, CutRule.STALE) else None

    def __str__(self) -> str:
        """`before the call draft:2`, `after the entry 17`."""
        match self.rule:
            case CutRule.POINT:
                return f"{self.rule} {self.through_seq}"
            case CutRule.KEEP_SIBLINGS:
                return f"only the call {self.call} runs again"
            case CutRule.OVERRIDE:
                return f"where the outcome of {self.call} reached the body"
            case CutRule.BODY_FAILURE:
                return str(self.rule)
            case CutRule.FAILURE:
                return f"before the call {self.call}, which failed the run"
            case CutRule.STALE:
                return f"before the call {self.call}, which would have other arguments now"
            case _:
                return f"{self.rule} {self.call}"


def resolve_cut(
    run_id: str,
    entries: Sequence[Entry],
    calls: Mapping[int, CallId],
    cut: RequestedCut,
    overridden: Sequence[CallId] = (),
) -> Cut:
    """Find the cut in a source's journal, whose calls are given by seq.

    `overridden` are calls whose outcome is to be replaced. Raises `ForkValidationError` for a cut that does not exist,
    or that keeps an outcome which is to be replaced.
    """
    _check_request(run_id, cut, has_overrides=bool(overridden))
    if cut.fork_point_seq is not None:
        found = Cut(CutRule.POINT, _checked_point(run_id, entries, cut.fork_point_seq))
    elif cut.at is not None:
        found = _at_failure(run_id, entries)
    elif cut.after_task is not None:
        found = _after(run_id, entries, calls, cut)
    elif _before(cut) is not None:
        found = _before_call(run_id, entries, calls, cut)
    else:
        found = _at_overrides(entries, calls, overridden)
    _check_not_kept(run_id, entries, calls, found, overridden)
    replaced = {seq for seq, call in calls.items() if call in overridden} if overridden else ()
    return found._replace(kept=[entry for entry in found.kept if outcome_call(entry) not in replaced])


# --- the request ------------------------------------------------------------------------------------------------------


def _before(cut: RequestedCut) -> CallId | None:
    """The kind and name that a cut is to be before; the occurrence means nothing here."""
    for kind, name in (
        (CallKind.TASK, cut.before_task),
        (CallKind.EVENT, cut.before_event),
        (CallKind.CHILD, cut.before_child),
    ):
        if name is not None:
            return CallId(kind, name, 0)
    return None


def _check_request(run_id: str, cut: RequestedCut, *, has_overrides: bool) -> None:
    given = [
        name
        for name in ("before_task", "before_event", "before_child", "after_task", "at", "fork_point_seq")
        if getattr(cut, name) is not None
    ]
    if len(given) > 1 or not (given or has_overrides):
        asked = f"not {' and '.join(f'{name}=' for name in given)}" if given else "and none was given"
        raise refusal(
            run_id,
            "pass exactly one of before_task=, before_event=, before_child=, after_task=, at= and fork_point_seq=, "
            f"{asked}",
        )
    how = given[0] if given else ""
    for name, where in (("before_ordinal", "before_"), ("before_key", "before_"), ("after_ordinal", "after_"),
                        ("after_key", "after_")):  # fmt: skip
        if getattr(cut, name) is not None and not how.startswith(where):
            raise refusal(run_id, f"{name}= goes with a {where}…= that names what is called")
    for ordinal, key in (("before_ordinal", "before_key"), ("after_ordinal", "after_key")):
        _check_occurrence(run_id, ordinal, getattr(cut, ordinal), key, getattr(cut, key))
        if getattr(cut, ordinal) is not None and getattr(cut, key) is not None:
            raise refusal(run_id, f"pass {ordinal}= or {key}=, not both: a call has one or the other")
    if cut.keep_siblings and not how.startswith("before_"):
        raise refusal(
            run_id, "keep_siblings=True goes with before_task=, before_event= or before_child=, which name a call"
        )
    if cut.at not in (None, AT_FAILURE):
        raise refusal(run_id, f"at={cut.at!r} is no place in a run; at={AT_FAILURE!r} is the only one")


def _check_occurrence(run_id: str, ordinal: str, number: object, key: str, text: object) -> None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise refusal(run_id, f"{ordinal}={number!r} is not a whole number; calls with a key are named by {key}=")
    if text is not None and not isinstance(text, str):
        raise refusal(run_id, f"{key}={text!r} is not a text; calls without a key are named by {ordinal}=")


def _checked_point(run_id: str, entries: Sequence[Entry], point: object) -> int:
    if isinstance(point, bool) or not isinstance(point, int) or not point >= 1:
        raise refusal(run_id, f"fork_point_seq={point!r} is not an entry; entries count from 1")
    if point > len(entries) or entries[point - 1].type in TERMINAL_ENTRIES:
        last = entries[-1]
        raise refusal(
            run_id,
            f"fork_point_seq={point} keeps the whole run, which ends with {last.type} at entry {last.seq}, so nothing "
            f"would run again; choose an entry before {last.seq}",
        )
    return point


# --- calls ------------------------------------------------------------------------------------------------------------


_VERBS: Final = {
    CallKind.TASK: ("scheduled a task named", "ran", "task"),
    CallKind.EVENT: ("waited for an event named", "waited for", "event"),
    CallKind.CHILD: ("started a child workflow named", "started", "child workflow"),
}


def _chosen_call(
    run_id: str, calls: Mapping[int, CallId], kind: CallKind, name: str, ordinal: int | None, key: str | None
) -> int:
    """The seq of the call of that kind and name with that ordinal or key; of the earliest where neither is given."""
    verb, short, noun = _VERBS[kind]
    # Numbers, and no list of records: a long run has many calls, and the garbage collector visits every record.
    named = [seq for seq, call in calls.items() if call.kind is kind and call.name == name]
    if not named:
        names = list(dict.fromkeys(call.name for call in calls.values() if call.kind is kind))
        close = get_close_matches(str(name), names, 1)
        raise ForkValidationError(
            f"run {run_id!r} never {verb} {name!r}; it {short} "
            + (", ".join(map(repr, names)) or f"no {noun}")
            + (f"; did you mean {close[0]!r}?" if close else ""),
            run_id=run_id,
        )
    wanted: int | str | None = ordinal if key is None else key
    if wanted is None:
        return named[0]
    for seq in named:
        if calls[seq].occurrence == wanted:
            return seq
    what = f"the ordinal {wanted!r}" if key is None else f"the key {wanted!r}"
    raise refusal(
        run_id, f"no call of {noun} {name!r} has {what}; it {short} {named_calls([calls[seq] for seq in named])}"
    )


def named_calls(calls: Sequence[CallId]) -> str:
    """The calls, for a refusal: of many the first ones and the last."""
    left = len(calls) - MAX_NAMED_CALLS
    if left <= 0:
        return ", ".join(map(str, calls))
    return f"{', '.join(map(str, calls[: MAX_NAMED_CALLS - 1]))}, {left} more, and {calls[-1]}"


def _closing(entries: Sequence[Entry], call_seq: int) -> Entry | None:
    """The entry that ended a call: its outcome, or that the body gave up on it."""
    for entry in entries[call_seq:]:
        if (entry.type == EntryType.CALL_CANCELLED or _answers_a_call(entry)) and outcome_call(entry) == call_seq:
            return entry
    return None


def _answers_a_call(entry: Entry) -> bool:
    return entry.type in OUTCOME_TYPES and entry.type != EntryType.WORKFLOW_CANCEL_REQUESTED


def _before_call(run_id: str, entries: Sequence[Entry], calls: Mapping[int, CallId], cut: RequestedCut) -> Cut:
    asked = _before(cut)
    assert asked is not None
    seq = _chosen_call(run_id, calls, asked.kind, asked.name, cut.before_ordinal, cut.before_key)
    if not cut.keep_siblings:
        return Cut(CutRule.BEFORE, seq - 1, calls[seq])
    through = _before_outcome(entries, seq)
    timeout = _timeout_of(entries, seq)
    kept = [outcome for outcome in _later_outcomes(entries, through, {seq}) if outcome is not timeout]
    return Cut(CutRule.KEEP_SIBLINGS, through, calls[seq], seq, kept)


def _timeout_of(entries: Sequence[Entry], call_seq: int) -> Entry | None:
    """The end of the time after which the body gave up on a call. Made again, the call has its time again."""
    closing = _closing(entries, call_seq)
    if closing is None or closing.type != EntryType.CALL_CANCELLED:
        return None
    began = entries[_turn_of(entries, closing.seq) - 1]
    return began if began.type in (EntryType.TIMER_FIRED, EntryType.EVENT_WAIT_TIMED_OUT) else None


def _before_outcome(entries: Sequence[Entry], call_seq: int) -> int:
    """The last entry before the outcome of a call, or before the end of the run where it has none.

    Before the outcome in whose turn the body gave up on the call, where it did: there it might have answered first. Not
    before the call itself, where the same turn issued it. And before the request that ended the run at once.
    """
    closing = _closing(entries, call_seq)
    if closing is not None and closing.type != EntryType.CALL_CANCELLED:
        return closing.seq - 1
    last = entries[-1]
    if closing is None and last.type not in TERMINAL_ENTRIES:
        return last.seq
    gave_up = last if closing is None else closing
    began = _turn_of(entries, gave_up.seq)
    is_given_up_there = closing is not None or entries[began - 1].type == EntryType.WORKFLOW_CANCEL_REQUESTED
    return (began if is_given_up_there and began > call_seq else gave_up.seq) - 1


def _turn_of(entries: Sequence[Entry], seq: int) -> int:
    """The outcome that began the turn of an entry, by seq; the entry itself in the first turn."""
    before = (entry.seq for entry in reversed(entries[: seq - 1]) if entry.type in OUTCOME_TYPES)
    return next(before, seq)


def _later_outcomes(entries: Sequence[Entry], through: int, without: set[int]) -> list[Entry]:
    """The outcomes after the cut of calls that are outstanding there."""
    outstanding = open_calls(entries[:through]).keys() - without
    return [entry for entry in entries[through:] if _answers_a_call(entry) and outcome_call(entry) in outstanding]


def _after(run_id: str, entries: Sequence[Entry], calls: Mapping[int, CallId], cut: RequestedCut) -> Cut:
    assert cut.after_task is not None
    seq = _chosen_call(run_id, calls, CallKind.TASK, cut.after_task, cut.after_ordinal, cut.after_key)
    closing = _closing(entries, seq)
    if closing is None or closing.type == EntryType.CALL_CANCELLED:
        raise refusal(run_id, f"the call {calls[seq]} has no outcome there, so nothing comes after it")
    return Cut(CutRule.AFTER, closing.seq, calls[seq])


# --- the failure of a run ---------------------------------------------------------------------------------------------


_FAILED_CALLS: Final = frozenset(
    {
        EntryType.TASK_FAILED,
        EntryType.TASK_BLOCKED,
        EntryType.CHILD_WORKFLOW_FAILED,
        EntryType.EVENT_WAIT_TIMED_OUT,
    }
)


def _at_failure(run_id: str, entries: Sequence[Entry]) -> Cut:
    """Before the call whose failure ended the run; where its own code did, before the turn in which it did."""
    end = entries[-1]
    if end.type != EntryType.WORKFLOW_FAILED:
        raise refusal(run_id, f"at={AT_FAILURE!r} needs a run that failed, and its last entry is {end.type}")
    outcomes = [entry for entry in entries if entry.type in OUTCOME_TYPES]
    cause = _cause(end, outcomes)
    if cause is not None:
        call = entries[outcome_call(cause) - 1]
        return Cut(CutRule.FAILURE, call.seq - 1, recorded_call(call))
    return Cut(CutRule.BODY_FAILURE, outcomes[-1].seq if outcomes else 1)


def _cause(end: Entry, outcomes: Sequence[Entry]) -> Entry | None:
    """The failed call whose error ended the run: the last one with an error that the run's error holds."""
    ended_with = set(_signatures(end))
    types = {type for type, _ in ended_with}
    for entry in reversed(outcomes):
        if entry.type in _OWN_ERRORS and _OWN_ERRORS[entry.type] in types:
            return entry
        if entry.type in _FAILED_CALLS and not ended_with.isdisjoint(_signatures(entry)):
            return entry
    last = outcomes[-1] if outcomes else None
    return last if last is not None and last.type in _FAILED_CALLS else None


_OWN_ERRORS: Final[dict[str, str]] = {
    EntryType.TASK_BLOCKED: "satay.errors:TaskBlockedError",
    EntryType.EVENT_WAIT_TIMED_OUT: "satay.errors:EventTimeoutError",
}
"""The errors that are made of an outcome which records none."""


_STAND_INS: Final = frozenset({"satay.errors:TaskFailedError", "satay.errors:ChildWorkflowError"})


def _signatures(entry: Entry) -> Iterator[tuple[str, str]]:
    """Type and message of the recorded error, its causes and its members. Nothing for one that is kept as a blob.

    Where another error stands in for one that could not be rebuilt, those of that one too.
    """
    text = value_text(entry)
    waiting: list[Failure] = [] if text is None or entry.type in _OWN_ERRORS else [parse_failure(text)]
    while waiting:
        failure = waiting.pop()
        yield failure.type, failure.message
        if failure.type in _STAND_INS and failure.attributes is not None:
            known = to_plain(failure.attributes)
            yield known["error_type"], known["error_message"]
        waiting += failure.members
        if failure.cause is not None:
            waiting.append(failure.cause)


# --- overrides --------------------------------------------------------------------------------------------------------


def _at_overrides(entries: Sequence[Entry], calls: Mapping[int, CallId], overridden: Sequence[CallId]) -> Cut:
    seqs = _seqs(calls, overridden)
    through, call = min(
        ((_before_outcome(entries, seqs[call]), call) for call in overridden), key=lambda found: found[0]
    )
    kept = _later_outcomes(entries, through, {seqs[other] for other in overridden})
    return Cut(CutRule.OVERRIDE, through, call, None, kept)


def _check_not_kept(
    run_id: str, entries: Sequence[Entry], calls: Mapping[int, CallId], cut: Cut, overridden: Sequence[CallId]
) -> None:
    seqs = _seqs(calls, overridden)
    for call in overridden:
        closing = _closing(entries, seqs[call])
        if closing is not None and closing.seq <= cut.through_seq:
            raise refusal(
                run_id,
                f"the cut keeps the outcome of {call}, entry {closing.seq}, which is to be overridden; cut before "
                f"entry {closing.seq}, or leave the cut away: then it is made there",
            )


def _seqs(calls: Mapping[int, CallId], wanted: Sequence[CallId]) -> dict[CallId, int]:
    """Where calls are recorded."""
    return {call: seq for seq, call in calls.items() if call in wanted} if wanted else {}


def refusal(run_id: str, problem: str) -> ForkValidationError:
    """The error for a fork that cannot be made as asked."""
    return ForkValidationError(f"run {run_id!r} cannot be forked like this: {problem}", run_id=run_id)
