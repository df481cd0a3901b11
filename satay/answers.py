"""What a fork has in store for calls of its own: outcomes that it keeps or was given, and arguments of today.

They are entries of the fork's journal. Each is used when its call is taken up or issued, and then an ordinary outcome
follows in the journal, which says where it comes from.
"""

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from satay.calls import Arrival, Call
from satay.model import VALUE_FIELD, CallId, CallKind, Entry, EntryType
from satay.replay import facts

ANSWER_NOTES: Final[frozenset[str]] = frozenset(
    {EntryType.OUTCOME_KEPT, EntryType.OUTCOME_OVERRIDDEN, EntryType.CALL_REISSUED}
)
"""The entry types that are read here."""


class Answer(NamedTuple):
    """An outcome in store, from entry `seq`. `facts` are the members that its outcome carries over."""

    seq: int
    type: str
    facts: str
    text: str | None

    def arrival(self, call: Call) -> Arrival:
        return Arrival(self.type, call, f'"call":{call.seq}{self.facts}', self.text)


class Answers:
    """The outcomes and arguments that a journal has in store."""

    __slots__ = ("_inputs", "_kept", "_overridden")

    def __init__(self) -> None:
        self._kept: dict[int, Answer] = {}
        self._overridden: dict[CallId, Answer] = {}
        self._inputs: dict[int, str] = {}

    def note(self, entry: Entry, value: Callable[[Entry], str | None]) -> None:
        """Keep what an entry says. `value` reads the value of an entry."""
        known = facts(entry)
        text = value(entry)
        match entry.type:
            case EntryType.CALL_REISSUED:
                self._inputs[known["call"]] = text or "{}"
            case EntryType.OUTCOME_KEPT:
                carried = f',"kept":{entry.seq}{_carried(known)}'
                self._kept[known["call"]] = Answer(entry.seq, known["outcome"], carried, text)
            case EntryType.OUTCOME_OVERRIDDEN:
                call = recorded_identity(known)
                self._overridden[call] = Answer(entry.seq, known["outcome"], f',"override":{entry.seq}', text)

    def forget(self, seq: int, call: CallId) -> None:
        """A fork makes a call anew: what its ancestors had in store for that is not meant any more."""
        self._kept.pop(seq, None)
        self._inputs.pop(seq, None)
        self._overridden.pop(call, None)

    def find(self, call: Call) -> Answer | None:
        """The outcome in store for a call that is outstanding."""
        return self._overridden.get(call.identity) or self._kept.get(call.seq)

    def input_text(self, seq: int) -> str | None:
        """The arguments with which a call of the prefix was issued again."""
        return self._inputs.get(seq)


def recorded_identity(known: dict[str, object]) -> CallId:
    """The call that an override names, or a fork that makes it although an ancestor was given its outcome."""
    kind = next(kind for kind in CallKind if kind.value in known)
    occurrence = known["key"] if "key" in known else known["ordinal"]
    assert isinstance(occurrence, int | str)
    return CallId(kind, str(known[kind.value]), occurrence)


_OWN_FACTS: Final = frozenset({"call", "outcome", "source_seq", "kept", "override", *VALUE_FIELD.values()})


def _carried(known: dict[str, object]) -> str:
    """What an outcome says besides its call and value, such as the usage of models, as members of a payload."""
    carried = {name: fact for name, fact in known.items() if name not in _OWN_FACTS and not name.endswith("_blob")}
    return f",{json.dumps(carried, separators=(',', ':'))[1:-1]}" if carried else ""
