"""Reading a journal back: the history that a replay follows, and the check that the code asks for the same schedule.

A history is a sequence of *turns*: an outcome that was delivered, then the calls that the body issued because of it.
The strict check walks entries in order: the n-th durable call of the code must be the n-th recorded one, in the same
turn. The loose check, for runs that were told to tolerate other code, pairs calls by identity instead.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from satay.errors import JournalCorruptError, JournalError, NondeterminismError, UnsupportedEntryError
from satay.failures import message_of
from satay.model import APPROVAL, VALUE_FIELD, CallId, CallKind, Entry, EntryType, child_run_id
from satay.texts import dump_plain, json_quote

CALL_KIND: Final[dict[str, CallKind]] = {
    EntryType.TASK_SCHEDULED: CallKind.TASK,
    EntryType.TIMER_CREATED: CallKind.TIMER,
    EntryType.EVENT_WAIT_STARTED: CallKind.EVENT,
    EntryType.CHILD_WORKFLOW_SCHEDULED: CallKind.CHILD,
}
"""The entry types that record a durable call."""

OUTCOME_TYPES: Final[frozenset[str]] = frozenset(
    {
        EntryType.TASK_COMPLETED,
        EntryType.TASK_FAILED,
        EntryType.TASK_BLOCKED,
        EntryType.TIMER_FIRED,
        EntryType.EXTERNAL_EVENT_RECEIVED,
        EntryType.EVENT_WAIT_TIMED_OUT,
        EntryType.CHILD_WORKFLOW_COMPLETED,
        EntryType.CHILD_WORKFLOW_FAILED,
        EntryType.WORKFLOW_CANCEL_REQUESTED,
    }
)
"""The entry types that reach the body and begin a turn."""

ENDS_OF_CALLS: Final[frozenset[str]] = (OUTCOME_TYPES - {EntryType.WORKFLOW_CANCEL_REQUESTED}) | {
    EntryType.CALL_CANCELLED
}
"""The entry types after which a call is outstanding no more."""

INFORMATIONAL_PREFIX: Final = "Noted"
"""An unknown entry type that begins like this changes nothing in a replay and is passed over by older versions."""

NEEDED_VERSION: Final = "needs"
"""The fact that says, in an entry of any type that was added after a release, which version of satay added it."""

_CHILD_ENDS: Final = frozenset(
    {EntryType.CHILD_WORKFLOW_COMPLETED, EntryType.CHILD_WORKFLOW_FAILED, EntryType.CALL_CANCELLED}
)
_INHERIT_CHILDREN: Final = frozenset({EntryType.CHILD_WORKFLOW_SCHEDULED, EntryType.RUN_FORKED})
_BLOB_MARK: Final = '_blob":"'
_KNOWN: Final[frozenset[str]] = frozenset(EntryType)
_STEP_TYPES: Final[frozenset[str]] = OUTCOME_TYPES | CALL_KIND.keys()
_NOTED_VALUES: Final = frozenset(
    {EntryType.RUN_FORKED, EntryType.OUTCOME_KEPT, EntryType.OUTCOME_OVERRIDDEN, EntryType.CALL_REISSUED}
)
_PLAIN_CALL: Final = re.compile(r'\{"\w+":"([^"\\]*)","ordinal":(\d+)[,}]', re.ASCII)
"""The beginning of a payload that records a call by an ordinal, and whose name holds nothing that is escaped."""

_CALL_PREFIX: Final = '{"call":'
_CALL_PREFIX_LENGTH: Final = len(_CALL_PREFIX)
_TASK_SCHEDULED: Final = EntryType.TASK_SCHEDULED.value
_TASK_COMPLETED: Final = EntryType.TASK_COMPLETED.value
_VALUE_MARK: Final[dict[str, str]] = {type: f'"{field}":' for type, field in VALUE_FIELD.items()}
_RESULT_MARK: Final = _VALUE_MARK[_TASK_COMPLETED]


class Divergence(NamedTuple):
    """Where code and journal part: the position among durable calls, and what each of them has there.

    `recorded` is a call, or the sentence part that says which outcome comes next; `issued` is None where the code
    issued no call. Both are sentence parts where the calls are the same and what they ask for is not.
    """

    position: int
    recorded: CallId | str
    issued: CallId | str | None


class Identified(Protocol):
    """A call that can say which one it is."""

    @property
    def identity(self) -> CallId: ...


def value_text(entry: Entry) -> str | None:
    """The text of the user's value in an entry, cut out without parsing; None if it has none or keeps it in a blob."""
    mark = _VALUE_MARK.get(entry.type)
    if mark is None:
        return None
    payload = entry.payload
    if payload.startswith(mark, 1):
        return payload[1 + len(mark) : -1]
    start = payload.find("," + mark)
    return None if start < 0 else payload[start + 1 + len(mark) : -1]


def blob_reference(entry: Entry) -> str | None:
    """The SHA-256 of the blob that holds an entry's value, or None."""
    payload = entry.payload
    if not payload.endswith('"}'):
        return None
    field = VALUE_FIELD.get(entry.type)
    if field is None:
        return None
    mark = f'"{field}_blob":"'
    start = payload.rfind(mark)
    digest = payload[start + len(mark) : -2]
    return digest if start > 0 and len(digest) == 64 and digest.isalnum() else None


def wait_arguments(key: str | None) -> str:
    """What stands for the arguments of a wait for an event: the key that it waits for."""
    return dump_plain({"match": key})


def outcome_call(entry: Entry) -> int:
    """The seq of the call that an outcome entry answers."""
    payload = entry.payload
    end = payload.find(",", _CALL_PREFIX_LENGTH)
    digits = payload[_CALL_PREFIX_LENGTH : -1 if end < 0 else end]
    if not (payload.startswith(_CALL_PREFIX) and digits.isdecimal()):
        raise JournalCorruptError(f"{_named(entry)} does not say which call it answers", seq=entry.seq)
    return int(digits)


def read_outcome(entry: Entry) -> tuple[int, str | None]:
    """`outcome_call` and `value_text` of an entry, at the price of one where no other facts are between them."""
    payload = entry.payload
    end = payload.find(",", _CALL_PREFIX_LENGTH)
    digits = payload[_CALL_PREFIX_LENGTH:end]
    mark = _VALUE_MARK.get(entry.type)
    if mark is not None and digits.isdecimal() and payload.startswith(mark, end + 1):
        return int(digits), payload[end + 1 + len(mark) : -1]
    return outcome_call(entry), value_text(entry)


def _result_of(outcome: Entry, call: int) -> str | None:
    """The text of the result of this call; None where another one is answered, or the result is kept as a blob."""
    payload = outcome.payload
    beginning = f"{_CALL_PREFIX}{call},{_RESULT_MARK}"
    if payload.startswith(beginning):  # Nearly always; and knowing the call, it need not be read.
        return payload[len(beginning) : -1]
    seq, text = read_outcome(outcome)
    return text if seq == call else None


class _Facts(dict[str, Any]):
    """The facts of an entry. To ask for one that has to be there and is not is to find the entry damaged."""

    __slots__ = ("_entry",)

    def __init__(self, entry: Entry, told: dict[str, Any]) -> None:
        super().__init__(told)
        self._entry = entry

    def __missing__(self, name: str) -> Any:
        raise JournalCorruptError(f"{_named(self._entry)} does not say its {name!r}", seq=self._entry.seq)


def facts(entry: Entry) -> dict[str, Any]:
    """An entry's payload as plain data. Raises `JournalCorruptError`, also where a fact is asked for and not there."""
    try:
        parsed = json.loads(entry.payload)
    except ValueError as error:
        raise JournalCorruptError(f"{_named(entry)} is not valid JSON: {error}", seq=entry.seq) from None
    if not isinstance(parsed, dict):
        raise JournalCorruptError(f"{_named(entry)} is not a JSON object", seq=entry.seq)
    return _Facts(entry, parsed)


def read_head(entry: Entry) -> dict[str, Any]:
    """The facts of an entry, without parsing the value that follows them, which may be large."""
    text = value_text(entry)
    if text is None:
        return facts(entry)
    end = entry.payload.rfind(",", 0, len(entry.payload) - len(text) - 1)
    return _Facts(entry, {}) if end < 0 else facts(entry._replace(payload=entry.payload[:end] + "}"))


def recorded_call(entry: Entry) -> CallId:
    """The identity of the call that an entry records."""
    kind = CALL_KIND[entry.type]
    plain = _PLAIN_CALL.match(entry.payload)
    if plain is not None:
        return CallId(kind, plain[1], int(plain[2]))
    known = facts(entry)
    index = known["key"] if "key" in known else known["ordinal"]
    return CallId(kind, known[kind.value], index)


def identity_facts(call: CallId) -> str:
    """The members of a payload that name a call."""
    index = (
        f'"ordinal":{call.occurrence}' if isinstance(call.occurrence, int) else f'"key":{json_quote(call.occurrence)}'
    )
    return f'"{call.kind}":{json_quote(call.name)},{index}'


def _named(entry: Entry) -> str:
    return f"entry {entry.seq} ({entry.type})"


def of_run(error: BaseException, run_id: str) -> BaseException:
    """The same error; if it is about an entry of a run that it does not name yet, it names the run."""
    if isinstance(error, JournalCorruptError | UnsupportedEntryError) and error.run_id is None and error.seq:
        error.run_id = run_id
        error.args = (f"run {run_id!r} cannot be read: {error}",)
    return error


@contextmanager
def reading(run_id: str) -> Iterator[None]:
    """Errors about entries name the run whose entries are read in the block."""
    try:
        yield
    except JournalError as error:
        raise of_run(error, run_id)  # noqa: B904  # it is the same error


def check_understood(entries: Sequence[Entry]) -> None:
    """Raise `UnsupportedEntryError` for an entry that must not be passed over: here, not in the middle of a body."""
    _check_types({entry.type for entry in entries}, entries)


def _check_types(types: Set[str], entries: Iterable[Entry]) -> None:
    if types <= _KNOWN:
        return
    unknown = {type for type in types - _KNOWN if not type.startswith(INFORMATIONAL_PREFIX)}
    for entry in entries if unknown else ():
        if entry.type in unknown:
            raise _not_understood(entry)


def _not_understood(entry: Entry) -> UnsupportedEntryError:
    needs = facts(entry).get(NEEDED_VERSION)
    told = (
        f"it needs satay {needs} or later; update satay, and drive the run again"
        if isinstance(needs, str)
        else "it does not say which version it needs; drive the run with the version that wrote it, or a later one"
    )
    return UnsupportedEntryError(
        f"{_named(entry)} is of a type that this version of satay does not know and must not ignore; {told}",
        seq=entry.seq,
        type=entry.type,
        needs=needs if isinstance(needs, str) else None,
    )


Answered: TypeAlias = tuple[str, int, Entry, Entry, str]
"""A call of a task that is answered at once: how it is named, the call, its outcome, and the text of the result.

No record, because to make one of those takes as long as to find what is in it.
"""


class History(NamedTuple):
    """A journal as replays follow it, any number of times.

    `steps` are its calls and outcomes. `notes` are its other entries, without the first. `types` are those of all.
    `answered` is what strict replays found out of calls, by the number of the step; None where there is only one.
    """

    entries: Sequence[Entry]
    steps: Sequence[Entry]
    notes: Sequence[Entry]
    types: Set[str]
    answered: dict[int, Answered] | None = None

    def of_fork(self, first: Entry, after: Sequence[Entry]) -> "History":
        """The journal of a fork that inherits this one: with an entry 1 of its own, and with notes that follow."""
        types = self.types | {entry.type for entry in after}
        return History([first, *self.entries[1:], *after], self.steps, [*self.notes, *after], types, self.answered)

    def inherited_children(self) -> "dict[int, InheritedChild]":
        """`inherited_children` of the entries. Most runs have no children, and then nothing is looked at."""
        return inherited_children(self.entries) if self.types >= _INHERIT_CHILDREN else {}


def history_of(entries: Sequence[Entry]) -> History:
    """A journal, ready to be followed. Raises `UnsupportedEntryError`."""
    types = {entry.type for entry in entries}
    _check_types(types, entries)
    if len(entries) == 1:  # A new run: nothing is followed.
        return History(entries, (), (), types)
    steps = [entry for entry in entries if entry.type in _STEP_TYPES]
    has_notes = len(steps) < len(entries) - 1
    notes = [entry for entry in entries[1:] if entry.type not in _STEP_TYPES] if has_notes else []
    return History(entries, steps, notes, types)


class StrictReplay:
    """Follows a history and insists on the recorded schedule.

    The driver alternates: `match` for each call that the body issues in a turn, then `next_outcome` once the body is
    idle. `match` answers None for a call beyond the history, which is to be made for real.
    """

    def __init__(self, history: History, passed_over: Callable[[Entry], None]) -> None:
        self._steps = history.steps
        self._answered = history.answered
        self._at = 0
        self._matched = 0
        for note in history.notes:
            passed_over(note)

    @property
    def matched(self) -> int:
        """How many calls of the code were looked up."""
        return self._matched

    def match(self, entry_type: str, head: str, call: Identified) -> Entry | Divergence | None:
        """The entry that records the issued call, a divergence, or None beyond the history.

        `head` is the first members of the payload, without a brace, which name the call.
        """
        if self._at >= len(self._steps):
            return None
        entry = self._steps[self._at]
        payload = entry.payload
        if entry.type != entry_type or not payload.startswith(head, 1) or payload[len(head) + 1] not in ",}":
            return Divergence(self._matched, _recorded(entry), call.identity)
        self._matched += 1
        self._at += 1
        return entry

    def take_answered(self, name_fact: str, ordinal: int, but: Container[int]) -> Answered | None:
        """The call of a task that these name, with its outcome.

        None where that call does not come next or is not answered before another one is issued, where the result is
        kept as a blob, and for a seq that is in `but`.
        """
        at = self._at
        if at + 1 >= len(self._steps):
            return None
        known: Answered | None = None if self._answered is None else self._answered.get(at)
        if known is None or known[0] != name_fact or known[1] != ordinal:
            known = self._find_answered(at, name_fact, ordinal)
        if known is None or known[2].seq in but:
            return None
        self._matched += 1
        self._at = at + 2
        return known

    def _find_answered(self, at: int, name_fact: str, ordinal: int) -> Answered | None:
        call, outcome = self._steps[at], self._steps[at + 1]
        if outcome.type != _TASK_COMPLETED or call.type != _TASK_SCHEDULED:
            return None
        payload, head = call.payload, f'{name_fact},"ordinal":{ordinal}'
        if not payload.startswith(head, 1) or payload[len(head) + 1] not in ",}":
            return None
        text = _result_of(outcome, call.seq)
        if text is None:
            return None
        found = (name_fact, ordinal, call, outcome, text)
        if self._answered is not None:
            self._answered[at] = found
        return found

    def next_outcome(self, is_body_done: bool) -> Entry | Divergence | None:
        """The outcome that begins the next turn; a divergence if the body should have issued another call first."""
        if self._at >= len(self._steps):
            return None
        entry = self._steps[self._at]
        if entry.type in CALL_KIND or is_body_done:
            return Divergence(self._matched, _recorded(entry), None)
        self._at += 1
        return entry


class LooseReplay:
    """Follows a history by identity: a call that was recorded anywhere is answered from there, others are new.

    The first difference is told to `differed`.
    """

    def __init__(
        self,
        history: History,
        passed_over: Callable[[Entry], None],
        differed: Callable[[Divergence], None],
    ) -> None:
        self._calls: dict[CallId, Entry] = {}
        self._order: list[CallId] = []
        self._outcomes: list[Entry] = []
        self._differed: Callable[[Divergence], None] | None = differed
        for step in history.steps:
            if step.type in CALL_KIND:
                self._order.append(recorded_call(step))
                self._calls[self._order[-1]] = step
            else:
                self._outcomes.append(step)
        for note in history.notes:
            passed_over(note)
        self._at = 0
        self._issued = 0

    @property
    def matched(self) -> int:
        """How many calls of the code were looked up."""
        return self._issued

    def match(self, entry_type: str, head: str, call: Identified) -> Entry | Divergence | None:
        identity = call.identity
        entry = self._calls.pop(identity, None)
        if self._issued < len(self._order):
            if self._order[self._issued] != identity:
                self._tell(Divergence(self._issued, self._order[self._issued], identity))
        elif self._at < len(self._outcomes):
            self._tell(Divergence(self._issued, _recorded(self._outcomes[self._at]), identity))
        self._issued += 1
        return entry

    def next_outcome(self, is_body_done: bool) -> Entry | Divergence | None:
        if self._at >= len(self._outcomes):
            return None
        if is_body_done:
            self._tell(Divergence(self._issued, _recorded(self._outcomes[self._at]), None))
            return None
        self._at += 1
        return self._outcomes[self._at - 1]

    @property
    def is_used_up(self) -> bool:
        """Whether every recorded call was issued."""
        return not self._calls

    def _tell(self, divergence: Divergence) -> None:
        if self._differed is not None:
            self._differed(divergence)
            self._differed = None


def divergence_error(
    divergence: Divergence, run_id: str, source_line: str | None, ended: bool, ending: BaseException | None
) -> NondeterminismError:
    """The error that says where the code left the recorded schedule, and what to do about it.

    `ending` is the error that ended the body, if one did; it is the cause.
    """
    recorded, issued = _spell(divergence.recorded, divergence.issued), _spell(divergence.issued, divergence.recorded)
    told = f"code issued {issued}" if issued else "code ended" if ended else "code issued nothing"
    told += "" if ending is None else f" with {type(ending).__name__}: {message_of(ending)}"
    where = f" at {source_line}" if source_line else ""
    error = NondeterminismError(
        f"durable call {divergence.position} diverged: journal recorded {recorded}, {told}{where}. "
        f"Nothing was executed or recorded; drive run {run_id!r} with code that makes the recorded calls in the "
        "recorded order, or fork it before this call",
        run_id=run_id,
        position=divergence.position,
        recorded=recorded,
        issued=issued,
        source_line=source_line,
    )
    error.__cause__ = ending
    return error


_SPELLING: Final[dict[CallKind, str]] = {
    CallKind.TASK: "{!r}",
    CallKind.TIMER: "a timer",
    CallKind.EVENT: "a wait for {!r}",
    CallKind.CHILD: "child workflow {!r}",
}


def _spell(call: CallId | str | None, other: CallId | str | None) -> str | None:
    """A call in words; with its ordinal or key only where the name alone would not tell it from the other one."""
    if not isinstance(call, CallId):
        return call
    is_same_name = isinstance(other, CallId) and call[:2] == other[:2]
    if call.name == APPROVAL:
        return f"approval {call.occurrence!r}"
    return _SPELLING[call.kind].format(str(call) if is_same_name else call.name)


def _recorded(entry: Entry) -> CallId | str:
    if entry.type in CALL_KIND:
        return recorded_call(entry)
    if entry.type == EntryType.WORKFLOW_CANCEL_REQUESTED:
        return "the request to cancel"
    return f"the outcome of the call at entry {outcome_call(entry)}"


def cancelled_calls(history: History) -> frozenset[int]:
    """The calls that the body gave up on, by seq."""
    return frozenset([outcome_call(note) for note in history.notes if note.type == EntryType.CALL_CANCELLED])


class InheritedChild(NamedTuple):
    """What a fork makes of a child that was outstanding at its cut.

    `run_id` is the run that answers the call in the fork. It is `source_id` itself where the child is shared, else a
    fork of `source_id` as it stood at `at`, in microseconds since the epoch; a fresh run where `source_id` is None.
    """

    run_id: str
    source_id: str | None
    at: int

    @property
    def is_shared(self) -> bool:
        return self.run_id == self.source_id


SHARE_CHILDREN: Final = "share"
"""What `RunForked` says under `children` where the fork shares the children of its source."""


def inherited_children(entries: Iterable[Entry]) -> dict[int, InheritedChild]:
    """The children of calls that were outstanding when the run, or an ancestor of it, was forked, by seq of the call.

    Every other call is answered by the child that its entry names.
    """
    outstanding: dict[int, Entry] = {}
    children: dict[int, InheritedChild] = {}
    at = 0
    scheduled = EntryType.CHILD_WORKFLOW_SCHEDULED.value
    for entry in entries:
        type = entry.type
        if type == scheduled:
            outstanding[entry.seq] = entry
        elif not outstanding:
            continue  # Most runs have no children, and then this is all there is to be done.
        elif type in _CHILD_ENDS:
            outstanding.pop(outcome_call(entry), None)
        elif type == EntryType.RUN_FORKED:
            known = facts(entry)
            for seq, call in outstanding.items():
                before = children.get(seq)
                source_id = facts(call)["run_id"] if before is None else before.run_id
                moment = known.get("as_of", at)
                is_again = known.get("again") == seq
                children[seq] = inherited_child(
                    known["run_id"], call, None if is_again else source_id, known.get("children"), moment
                )
        at = entry.at
    return children


def inherited_child(fork_id: str, call: Entry, source_id: str | None, children: str | None, at: int) -> InheritedChild:
    """What a fork makes of the child `source_id` of a call that was outstanding at the cut; None: it starts another."""
    if source_id is not None and children == SHARE_CHILDREN:
        return InheritedChild(source_id, source_id, at)
    identity = recorded_call(call)
    return InheritedChild(child_run_id(fork_id, identity.name, identity.occurrence), source_id, at)


class MadeAgain(NamedTuple):
    """A call of the prefix that the fork `fork_id`, which began at `at`, makes anew."""

    fork_id: str
    at: int
    call: CallId


def calls_made_again(history: History) -> dict[int, MadeAgain]:
    """The calls that forks, this run or its ancestors, make anew with the arguments of their time, by seq.

    Also those that another fork of their lineage made, where they keep the outcome: that comes with its arguments.
    """
    again: dict[int, MadeAgain] = {}
    for note in history.notes:
        if note.type == EntryType.RUN_FORKED:
            known = facts(note)
            seq = known.get("again")
            if seq is not None:
                again[seq] = MadeAgain(known["run_id"], note.at, recorded_call(history.entries[seq - 1]))
        elif note.type == EntryType.CALL_REISSUED:
            call = outcome_call(note)
            again.setdefault(call, MadeAgain("", note.at, recorded_call(history.entries[call - 1])))
    return again


def reissued_calls(entries: Iterable[Entry]) -> dict[int, Entry]:
    """The entries with the arguments of calls that a fork made again with others than were recorded, by seq."""
    reissued: dict[int, Entry] = {}
    for entry in entries:
        if entry.type == EntryType.CALL_REISSUED:
            reissued[outcome_call(entry)] = entry
        elif entry.type == EntryType.RUN_FORKED and reissued:
            reissued.pop(read_head(entry).get("again", 0), None)
    return reissued


def needed_blobs(entries: Sequence[Entry]) -> set[str]:
    """The blobs that a replay of these entries reads: the input of the run, receipts, outcomes, and open calls."""
    referring = [entry for entry in entries if _BLOB_MARK in entry.payload]
    if not referring:
        return set()
    outstanding = open_calls(entries)
    needed = (
        blob_reference(entry)
        for entry in referring
        if entry.seq == 1 or entry.seq in outstanding or entry.type in OUTCOME_TYPES or entry.type in _NOTED_VALUES
    )
    return {digest for digest in needed if digest is not None}


def referenced_blobs(entries: Iterable[Entry]) -> set[str]:
    """Every blob that these entries refer to."""
    return {digest for entry in entries if (digest := blob_reference(entry)) is not None}


def open_calls(entries: Iterable[Entry]) -> dict[int, Entry]:
    """The recorded calls that no outcome answers and no cancellation ended, by seq, in order."""
    outstanding: dict[int, Entry] = {}
    for entry in entries:
        type = entry.type
        if type in CALL_KIND:
            outstanding[entry.seq] = entry
        elif type in ENDS_OF_CALLS:
            outstanding.pop(outcome_call(entry), None)
    return outstanding
