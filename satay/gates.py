"""The gate before every attempt of a task: in a fork, a tool policy may refuse it or answer it from the source.

All attempts begin here, first ones, retries, and those after a crash, so that nothing slips by.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

from satay.archive import Archive
from satay.calls import Arrival, TaskCall
from satay.drive import Drive
from satay.effects import WHOLE_SOURCE, ForkTerms, Ruling, ToolPolicy
from satay.errors import JournalError, RunNotFoundError
from satay.model import CallId, Entry, EntryType
from satay.outcomes import encode_refusal
from satay.replay import blob_reference, outcome_call, read_head, recorded_call, reissued_calls, value_text
from satay.texts import json_quote, to_plain

MAX_REMEMBERED_SOURCES: Final = 8
"""Of so many sources the recorded calls of tasks stay in memory, for policies that replay them."""


class _Recorded(NamedTuple):
    """A call of a task in a source: the entry that holds its arguments, and its outcome."""

    call: Entry
    outcome: Entry | None


class GateHost(Protocol):
    """What a gate needs of the scheduler."""

    archive: Archive

    def step(self, callback: Callable[..., None], *args: Any) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Gate:
    """Lets attempts begin, or not, for the runs that one scheduler drives."""

    def __init__(self, host: GateHost) -> None:
        self._host = host
        self._sources: OrderedDict[tuple[str, int], Mapping[CallId, _Recorded]] = OrderedDict()

    def lets_run(self, drive: Drive, call: TaskCall) -> bool:
        """Whether an attempt may begin. If not, the call is being answered otherwise."""
        ruling = drive.ruling(call.task)
        if ruling is None or ruling.policy in (ToolPolicy.AUTO, ToolPolicy.LIVE):
            return True
        assert drive.terms is not None
        if ruling.policy is ToolPolicy.BLOCK:
            self._refuse(drive, call, drive.terms, ruling, ruling.reason)
        else:
            self._host.spawn(self._replay(drive, call, drive.terms, ruling))
        return False

    def _refuse(self, drive: Drive, call: TaskCall, terms: ForkTerms, ruling: Ruling, reason: str) -> None:
        refusal = encode_refusal(terms, ruling, reason)
        self._host.step(drive.arrive, Arrival(EntryType.TASK_BLOCKED, call, f'"call":{call.seq}', refusal))

    async def _replay(self, drive: Drive, call: TaskCall, terms: ForkTerms, ruling: Ruling) -> None:
        """Answer a call with what the source recorded for it, if the arguments are equal; else refuse it."""
        try:
            recorded = await self._recorded(terms, call)
            reason = await self._mismatch(terms, recorded, call)
            if reason is not None or recorded is None or recorded.outcome is None:
                self._refuse(drive, call, terms, ruling, f"{ruling.reason}, and {reason}")
                return
            text = await self._text(terms, recorded.outcome)
        except RunNotFoundError:
            reason = f"{ruling.reason}, and there is no run {terms.source_id!r} in this journal"
            self._refuse(drive, call, terms, ruling, reason)
            return
        except JournalError as error:
            self._host.step(drive.stop, error)
            return
        outcome = recorded.outcome
        used = read_head(outcome).get("usage")
        usage = "" if used is None else f',"usage":{json.dumps(used, separators=(",", ":"))}'
        facts = f'"call":{call.seq},"reused_from":{json_quote(str(terms.source_id))},"reused_seq":{outcome.seq}{usage}'
        self._host.step(drive.arrive, Arrival(outcome.type, call, facts, text))

    async def _recorded(self, terms: ForkTerms, call: TaskCall) -> _Recorded | None:
        if terms.source_id is None:
            return None
        known = (terms.source_id, terms.source_head)
        calls = self._sources.get(known)
        if calls is None:
            record = await self._host.archive.record(terms.source_id)
            entries = await self._host.archive.entries(terms.source_id)
            calls = _task_calls(entries[: terms.source_head])
            if terms.source_head == WHOLE_SOURCE and not record.status.is_terminal:
                return calls.get(call.identity)  # It may record more.
            self._sources[known] = calls
            while len(self._sources) > MAX_REMEMBERED_SOURCES:
                self._sources.popitem(last=False)
        self._sources.move_to_end(known)
        return calls.get(call.identity)

    async def _mismatch(self, terms: ForkTerms, recorded: _Recorded | None, call: TaskCall) -> str | None:
        """Why the source has no answer for a call; None if it has."""
        if terms.source_id is None:
            return "the source has no such run"
        if recorded is None:
            return "the source made no such call"
        if recorded.outcome is None:
            return "the call has no outcome in the source"
        text = call.input_text or "{}"
        if blob_reference(recorded.call) == hashlib.sha256(text.encode()).hexdigest():
            return None
        from satay.differences import find_differences

        differences, _ = find_differences(to_plain(await self._text(terms, recorded.call)), to_plain(text), 1)
        return f"its arguments differ from the source's at {differences[0].path}" if differences else None

    async def _text(self, terms: ForkTerms, entry: Entry) -> str:
        text, reference = value_text(entry), blob_reference(entry)
        if reference is None:
            return text or "null"
        return (await self._host.archive.values(str(terms.source_id), [entry], {reference}))[reference]


def _task_calls(entries: list[Entry]) -> Mapping[CallId, _Recorded]:
    outcomes = {
        outcome_call(entry): entry
        for entry in entries
        if entry.type in (EntryType.TASK_COMPLETED, EntryType.TASK_FAILED)
    }
    reissued = reissued_calls(entries)
    scheduled = (entry for entry in entries if entry.type == EntryType.TASK_SCHEDULED)
    return {
        recorded_call(entry): _Recorded(reissued.get(entry.seq, entry), outcomes.get(entry.seq)) for entry in scheduled
    }
