"""Forks: where a source run is cut, what the fork inherits, and the receipt that proves it.

A fork's entry 1 is its own creation. Entries 2 to the cut are the source's, as stored. Then comes `RunForked`, which
holds the receipt. Everything that was outstanding at the cut runs again in the fork.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Final

from satay.clock import Clock
from satay.codec import json_quote, value_codec
from satay.definitions import Workflow
from satay.errors import ForkValidationError
from satay.histories import reuse_of
from satay.journal import CHILD_ENDED, Lease, NewFork, NewRun, Wait
from satay.model import (
    TERMINAL_ENTRIES,
    CallId,
    CallKind,
    Entry,
    EntryType,
    RunRecord,
    child_run_id,
)
from satay.origin import Origin, workflow_created
from satay.recorder import Recorder
from satay.replay import CALL_KIND, facts, open_calls, recorded_call

_OPAQUE: Final = value_codec(Any)


@dataclass(frozen=True, slots=True)
class RequestedCut:
    """Where a fork was asked to begin: before a task's call, or after the entry `fork_point_seq`."""

    before_task: str | None = None
    before_ordinal: int | None = None
    before_key: str | None = None
    fork_point_seq: int | None = None


@dataclass(frozen=True, slots=True)
class ForkReceipt:
    """What a fork asked for and what it inherited. Written once, in the fork's `RunForked` entry.

    The prefix is the source's entries 1 to `resolved_seq`, of which the last is a `resolved_entry`; `prefix_digest` is
    the digest of that entry, in hexadecimal, in the source and in the fork alike. `calls_inherited` have their outcome
    in the prefix; `calls_in_flight` were outstanding at the cut and run again. `saved_cost` is what the attempts in the
    prefix recorded as their cost, `saved_seconds` the time that the inherited calls took, side by side ones once.
    """

    run_id: str
    source_id: str
    root_id: str
    requested: RequestedCut
    resolved_seq: int
    resolved_entry: str
    prefix_digest: str
    calls_inherited: int
    calls_in_flight: tuple[str, ...]
    is_restorable: bool
    input_overridden: bool
    intervention: Any
    source_code_version: str
    code_version: str
    saved_cost: float
    saved_seconds: float

    def to_json(self) -> str:
        """The receipt as it is stored."""
        data = asdict(self)
        data["intervention"] = json.loads(_OPAQUE.encode(self.intervention, "the intervention of a fork"))
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "ForkReceipt":
        """Read a stored receipt back."""
        data = json.loads(text)
        data["requested"] = RequestedCut(**data["requested"])
        data["calls_in_flight"] = tuple(data["calls_in_flight"])
        data["intervention"] = _OPAQUE.decode(json.dumps(data["intervention"]), "the intervention of a fork")
        return cls(**data)


def resolve_cut(source: RunRecord, entries: Sequence[Entry], cut: RequestedCut) -> int:
    """The seq of the last entry that the fork inherits. Raises `ForkValidationError`."""
    run_id = source.run_id
    if (cut.before_task is None) == (cut.fork_point_seq is None):
        raise _refusal(run_id, "pass exactly one of before_task= and fork_point_seq=")
    if cut.before_ordinal is not None and cut.before_key is not None:
        raise _refusal(run_id, "pass before_ordinal= or before_key=, not both: a call has one or the other")
    if cut.before_task is None:
        if cut.before_ordinal is not None or cut.before_key is not None:
            raise _refusal(run_id, "before_ordinal= and before_key= go with before_task=")
        return _checked_point(run_id, entries, cut.fork_point_seq)
    return _before_task(run_id, entries, cut) - 1


def _checked_point(run_id: str, entries: Sequence[Entry], point: int | None) -> int:
    if isinstance(point, bool) or not isinstance(point, int) or not point >= 1:
        raise _refusal(run_id, f"fork_point_seq={point!r} is not an entry; entries count from 1")
    if point > len(entries) or entries[point - 1].type in TERMINAL_ENTRIES:
        last = entries[-1]
        raise _refusal(
            run_id,
            f"fork_point_seq={point} keeps the whole run, which ends with {last.type} at entry {last.seq}, so nothing "
            f"would run again; choose an entry before {last.seq}",
        )
    return point


def _before_task(run_id: str, entries: Sequence[Entry], cut: RequestedCut) -> int:
    calls = [(entry.seq, recorded_call(entry)) for entry in entries if entry.type == EntryType.TASK_SCHEDULED]
    named = [(seq, call) for seq, call in calls if call.name == cut.before_task]
    if not named:
        names = list(dict.fromkeys(call.name for _, call in calls))
        close = get_close_matches(str(cut.before_task), names, 1)
        raise ForkValidationError(
            f"run {run_id!r} never scheduled a task named {cut.before_task!r}; it ran "
            + (", ".join(map(repr, names)) or "no task")
            + (f"; did you mean {close[0]!r}?" if close else ""),
            run_id=run_id,
        )
    wanted: int | str | None = cut.before_ordinal if cut.before_key is None else cut.before_key
    if cut.before_key is not None and not isinstance(cut.before_key, str):
        raise _refusal(run_id, f"before_key={cut.before_key!r} is not a text; calls without a key have an ordinal")
    if wanted is None:
        return named[0][0]
    for seq, call in named:
        if call.occurrence == wanted and type(call.occurrence) is type(wanted):
            return seq
    what = f"the ordinal {wanted!r}" if cut.before_key is None else f"the key {wanted!r}"
    raise _refusal(
        run_id, f"no call of task {cut.before_task!r} has {what}; it ran {', '.join(str(call) for _, call in named)}"
    )


def _refusal(run_id: str, problem: str) -> ForkValidationError:
    return ForkValidationError(f"run {run_id!r} cannot be forked like this: {problem}", run_id=run_id)


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What a fork is asked to be. `input_text` is None where the source's input is kept."""

    cut: RequestedCut
    input_text: str | None = None
    intervention: Any = None


def plan_new_fork(
    source: RunRecord,
    origin: Origin,
    prefix: Sequence[Entry],
    definition: Workflow[..., Any],
    request: ForkRequest,
    run_id: str,
    owner: str,
    clock: Clock,
) -> tuple[NewFork, ForkReceipt, Origin]:
    """Everything that a journal needs to create the fork, the receipt, and the constants of the new run.

    `prefix` is what the fork inherits: the source's entries up to the cut.
    """
    through = len(prefix)
    in_flight = open_calls(prefix)
    receipt_text = _receipt(source, origin, prefix, in_flight, definition, request, run_id).to_json()
    receipt = ForkReceipt.from_json(receipt_text)  # A copy: the caller may change what it gave as the intervention.
    now = clock.now()
    new_origin = origin._replace(
        # Where nothing but the creation is inherited, no time of the source's has passed.
        started_at=now if len(prefix) == 1 else origin.started_at,
        input_text=origin.input_text if request.input_text is None else request.input_text,
        parent_id=None,
        intervention=receipt.intervention,
    )
    first, blobs = workflow_created(definition, new_origin, now)
    recorder = Recorder(Lease(run_id, 0, 0), clock, prefix[-1])
    recorder.record(
        EntryType.RUN_FORKED,
        f'"run_id":{json_quote(run_id)},"source_id":{json_quote(source.run_id)}',
        receipt_text,
    )
    turn = recorder.turn(None, None)
    new_run = NewRun(
        run_id=run_id,
        workflow=definition.name,
        created_at=now,
        owner=owner,
        code_version=definition.code_version,
        forked_from=source.run_id,
        fork_seq=through,
    )
    fork = NewFork(
        run=new_run,
        source_id=source.run_id,
        through_seq=through,
        prefix_digest=prefix[-1].digest,
        first=first,
        after=turn.entries,
        waits=[wait for entry in in_flight.values() if (wait := _wait(run_id, entry)) is not None],
        blobs=[*blobs, *turn.blobs],
    )
    return fork, receipt, new_origin


def _receipt(
    source: RunRecord,
    origin: Origin,
    prefix: Sequence[Entry],
    in_flight: Mapping[int, Entry],
    definition: Workflow[..., Any],
    request: ForkRequest,
    run_id: str,
) -> ForkReceipt:
    reuse = reuse_of(prefix)
    return ForkReceipt(
        run_id=run_id,
        source_id=source.run_id,
        root_id=origin.root_run_id,
        requested=request.cut,
        resolved_seq=prefix[-1].seq,
        resolved_entry=prefix[-1].type,
        prefix_digest=prefix[-1].digest.hex(),
        calls_inherited=reuse.calls,
        calls_in_flight=tuple(str(recorded_call(entry)) for entry in in_flight.values()),
        is_restorable=True,
        input_overridden=request.input_text is not None,
        intervention=request.intervention,
        source_code_version=source.code_version,
        code_version=definition.code_version,
        saved_cost=reuse.usage.cost,
        saved_seconds=reuse.seconds,
    )


def _wait(run_id: str, entry: Entry) -> Wait | None:
    """The wait that an outstanding call of the prefix needs in the fork."""
    kind = CALL_KIND[entry.type]
    if kind is CallKind.EVENT:
        known = facts(entry)
        return Wait(entry.seq, known["event"], known["match"])
    if kind is CallKind.CHILD:
        call: CallId = recorded_call(entry)
        return Wait(entry.seq, CHILD_ENDED, child_run_id(run_id, call.name, call.occurrence))
    return None
