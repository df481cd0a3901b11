"""Outcomes that a fork is given: recorded results, events and failures replaced by a value or an error."""

import hashlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from satay.approval_records import decision_codec
from satay.arguments import shown
from satay.codec import ValueCodec
from satay.cuts import named_calls, refusal
from satay.declarations import value_codec
from satay.definitions import default_name, tasks, workflows
from satay.failures import encode_failure
from satay.model import APPROVAL, CallId, CallKind, EntryType
from satay.receipts import OverriddenCall
from satay.replay import identity_facts
from satay.texts import dump_plain, json_quote, to_plain

Given = Mapping[tuple[str, int | str], Any]
"""What a caller gives: outcomes by the name of what was called, and its ordinal or key."""

_VALUE_TYPES: Final = {
    CallKind.TASK: EntryType.TASK_COMPLETED,
    CallKind.EVENT: EntryType.EXTERNAL_EVENT_RECEIVED,
    CallKind.CHILD: EntryType.CHILD_WORKFLOW_COMPLETED,
}
_ERROR_TYPES: Final = {CallKind.TASK: EntryType.TASK_FAILED, CallKind.CHILD: EntryType.CHILD_WORKFLOW_FAILED}


class Override(NamedTuple):
    """The outcome that a call gets in a fork: the type of its entry and the text of its value or error."""

    call: CallId
    type: str
    text: str

    @property
    def is_error(self) -> bool:
        return self.type in _ERROR_TYPES.values()

    def facts(self, reason: str | None) -> str:
        """The members of the entry that records it, but for the value."""
        why = "null" if reason is None else json_quote(reason)
        return f'{identity_facts(self.call)},"outcome":"{self.type}","reason":{why}'

    def noted(self) -> OverriddenCall:
        """The override as a receipt lists it."""
        kind = "error" if self.is_error else "value"
        text = self.text
        if self.is_error:  # The traceback says where the caller raised it, which is no part of what is asked for.
            text = dump_plain({name: part for name, part in to_plain(text).items() if name != "traceback"})
        return OverriddenCall(str(self.call), kind, hashlib.sha256(text.encode()).hexdigest())


def parse_overrides(run_id: str, calls: Sequence[CallId], values: object, errors: object) -> list[Override]:
    """Encode what a caller gave for some of a source's calls. Raises `ForkValidationError` for one it never made."""
    given = _items(run_id, values, "overrides"), _items(run_id, errors, "raises")
    recorded = [call for call in calls if call.kind is not CallKind.TIMER] if any(given) else []
    overrides: dict[CallId, Override] = {}
    for name, value in given[0]:
        call = _call(run_id, recorded, name, "overrides")
        overrides[call] = _value(call, value)
    for name, error in given[1]:
        call = _call(run_id, recorded, name, "raises")
        if not isinstance(error, Exception) or call.kind not in _ERROR_TYPES:
            problem = f"raises[{name!r}] is {shown(error)}; it takes an error, for a call of a task or a child workflow"
            raise refusal(run_id, problem)
        if call in overrides:
            raise refusal(run_id, f"{call} is given in overrides= and in raises=; a call has one outcome")
        overrides[call] = Override(call, _ERROR_TYPES[call.kind], encode_failure(error))
    return list(overrides.values())


def _items(run_id: str, given: object, name: str) -> list[tuple[Any, Any]]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise refusal(run_id, f"{name}= is {shown(given)}; it is a mapping from (name, ordinal or key) to an outcome")
    return list(given.items())


def _call(run_id: str, recorded: Sequence[CallId], wanted: object, what: str) -> CallId:
    match wanted:
        case (str(name), int() | str() as occurrence) if not isinstance(occurrence, bool):
            pass
        case _:
            problem = f"{what}= names a call {shown(wanted)}; a call is named by (name, ordinal) or (name, key)"
            raise refusal(run_id, problem)
    found = [call for call in recorded if call.name == name and call.occurrence == occurrence]
    if len(found) > 1:
        kinds = " and a ".join(call.kind for call in found)
        raise refusal(run_id, f"{what}= names {(name, occurrence)!r}, which is the name of a {kinds} there")
    if found:
        return found[0]
    names = {call.name for call in recorded}
    close = [name] if name in names else get_close_matches(str(name), names, 3)
    raise refusal(
        run_id,
        f"{what}= names the call {(name, occurrence)!r}, which it never made"
        + (f"; it made {named_calls([call for call in recorded if call.name in close])}" if close else ""),
    )


def _value(call: CallId, value: Any) -> Override:
    return Override(
        call, _VALUE_TYPES[call.kind], _codec(call, value).encode(value, f"the overridden outcome of {call}")
    )


def _codec(call: CallId, value: Any) -> ValueCodec:
    if call.kind is CallKind.EVENT:
        if call.name == APPROVAL:
            return decision_codec()
        return value_codec(type(value)) if default_name(type(value)) == call.name else value_codec(Any)
    known = tasks.get(call.name) if call.kind is CallKind.TASK else workflows.get(call.name)
    return value_codec(Any) if known is None else known.result_codec
