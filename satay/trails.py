"""The decision trail of a run or a session: where it comes from, what it inherited, and every decision in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from satay.accounts import CallSide, CallState
from satay.experiments import Outcome, Promotion
from satay.histories import Reading, RecordedCall
from satay.model import MISSING, SESSION_WORKFLOW, CallId, RunStatus
from satay.phrases import MAX_CELL_CHARACTERS, show_count, show_id, show_outcome, wrapped
from satay.receipts import ForkReceipt
from satay.tables import Column, printable, shorten, shorten_middle, show_value, text_table
from satay.trail_items import Segment, TrailItem, TrailKind, recorder_of
from satay.transcripts import SessionStatus

MAX_SHOWN_ITEMS: Final = 200
"""The text of a trail shows at most so many decisions, the last ones."""


@dataclass(frozen=True, slots=True)
class TrailCall:
    """A call with all that came of it. `run_id` is the run that made it, or got its outcome last.

    `is_inherited` says that its outcome is from before the cut of the fork, or the call itself where it has none.
    `step` is the step of a session that was being worked on.
    """

    identity: CallId
    side: CallSide
    run_id: str
    is_inherited: bool
    step: int | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        failure = self.side.failure
        return {
            "call": str(self.identity),
            "run_id": self.run_id,
            "is_inherited": self.is_inherited,
            "step": self.step,
            **self.side.to_dict(),
            "input": None if self.side.input is MISSING else self.side.input,
            "result": None if self.side.result is MISSING else self.side.result,
            "error": None if failure is None else {"type": failure.type, "message": failure.message},
        }


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run in the lineage of another, or that run itself.

    `receipt` is what it inherited, None for the root. `status` and `session_status` are None, and `outcome` too, for
    one that is not in the journal any more.
    """

    run_id: str
    workflow: str | None
    status: RunStatus | None
    session_status: SessionStatus | None
    receipt: ForkReceipt | None
    outcome: Outcome | None

    @property
    def intervention(self) -> Any:
        """What the fork was given as `intervention`."""
        return None if self.receipt is None else self.receipt.intervention

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run_id": self.run_id,
            "workflow": self.workflow,
            "status": None if self.status is None else self.status.value,
            "session_status": None if self.session_status is None else self.session_status.value,
            "receipt": None if self.receipt is None else self.receipt.to_dict(),
            "outcome": None if self.outcome is None else _outcome_data(self.outcome),
        }


@dataclass(frozen=True, slots=True)
class DecisionTrail:
    """Where a run or a session comes from, and what was decided in it. `str()` of it is a report.

    `lineage` leads from the root to the run itself, which is the last. `items` are all entries of its journal, `calls`
    its calls, or ledger, in the order in which they were made; both mark what is inherited. `outcomes` are those that
    were recorded of it, oldest first; `promotions` the decisions of the experiment that it was tried in, and of the one
    whose baseline it is.
    """

    lineage: tuple[Ancestor, ...]
    items: tuple[TrailItem, ...]
    calls: tuple[TrailCall, ...]
    outcomes: tuple[Outcome, ...]
    promotions: tuple[Promotion, ...]

    @property
    def run_id(self) -> str:
        """The run whose trail it is."""
        return self.lineage[-1].run_id

    @property
    def root_id(self) -> str:
        """The run that the lineage begins with."""
        return self.lineage[0].run_id

    @property
    def boundary(self) -> ForkReceipt | None:
        """What the run inherited: its receipt, which never changes. None for a run that is no fork."""
        return self.lineage[-1].receipt

    @property
    def steps(self) -> tuple[TrailItem, ...]:
        """The steps of a session, the inherited ones too."""
        return tuple(item for item in self.items if item.kind is TrailKind.STEP)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "run_id": self.run_id,
            "lineage": [ancestor.to_dict() for ancestor in self.lineage],
            "boundary": None if self.boundary is None else self.boundary.to_dict(),
            "items": [item.to_dict() for item in self.items],
            "calls": [call.to_dict() for call in self.calls],
            "outcomes": [_outcome_data(outcome) for outcome in self.outcomes],
            "promotions": [_promotion_data(promotion) for promotion in self.promotions],
        }

    def __str__(self) -> str:
        return "\n\n".join(block for block in _blocks(self) if block)


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    return {
        "value": outcome.value.value,
        "score": outcome.score,
        "note": outcome.note,
        "at": outcome.at.isoformat(),
        "decided_in": outcome.decided_in,
    }


def _promotion_data(promotion: Promotion) -> dict[str, Any]:
    return {
        "experiment_id": promotion.experiment_id,
        "run_id": promotion.run_id,
        "at": promotion.at.isoformat(),
        "closed": list(promotion.closed),
    }


def trail_call(
    reading: Reading, call: RecordedCall, segments: Sequence[Segment], steps: Mapping[int, int]
) -> TrailCall:
    """A call with all that came of it. `steps` are those that sessions worked on, by the entry of the call."""
    deciding = call.entry if call.outcome is None else call.outcome
    return TrailCall(
        identity=call.identity,
        side=reading.side(call),
        run_id=recorder_of(segments, deciding.seq),
        is_inherited=deciding.seq <= (reading.cut or 0),
        step=steps.get(call.entry.seq),
    )


# --- the report -------------------------------------------------------------------------------------------------------


def _blocks(trail: DecisionTrail) -> Iterator[str]:
    yield _heading(trail)
    if trail.boundary is not None:
        yield _lineage(trail.lineage)
        yield _boundary(trail.boundary)
    yield _decisions(trail)
    yield "\n".join(_outcomes(trail))


def _heading(trail: DecisionTrail) -> str:
    own = trail.lineage[-1]
    parts = [str(_status(own))]
    if own.workflow == SESSION_WORKFLOW:
        parts.append(show_count(len(trail.steps), "step"))
    else:
        parts.insert(0, printable(shorten(own.workflow or "", MAX_CELL_CHARACTERS)))
    return f"{show_id(trail.run_id)}: {', '.join([*parts, show_count(len(trail.calls), 'call')])}"


def _status(run: Ancestor) -> str:
    if run.session_status is not None:
        return run.session_status.value
    return "gone" if run.status is None else run.status.value.replace("_", " ")


def _lineage(lineage: Sequence[Ancestor]) -> str:
    columns = [Column("lineage", is_wide=True), Column("status"), Column("cut"), Column("intervention")]
    columns.append(Column("outcome"))
    rows = []
    for run in lineage:
        cut = "the root" if run.receipt is None else run.receipt.cut
        intervention = "" if run.receipt is None or run.intervention is None else show_value(_plain(run.receipt))
        outcome = "" if run.outcome is None else _outcome(run.outcome)
        rows.append((run.run_id, _status(run), shorten(cut, MAX_CELL_CHARACTERS), shorten(intervention, 30), outcome))
    return text_table(columns, rows)


def _plain(receipt: ForkReceipt) -> Any:
    return receipt.to_dict()["intervention"]


def _outcome(outcome: Outcome) -> str:
    return outcome.value.value + ("" if outcome.score is None else f" {outcome.score}")


def _boundary(receipt: ForkReceipt) -> str:
    text = (
        f"It inherits entries 1 to {receipt.resolved_seq:,} of {show_id(receipt.source_id)}, {receipt.cut}, with "
        f"{show_count(receipt.calls_inherited, 'call')}"
    )
    boundary = receipt.boundary
    if boundary is not None and boundary.state_step is not None:
        text += (
            f" and the state of step {boundary.state_step}, version {boundary.state_version}, "
            f"{(boundary.state_sha256 or '')[:12]}"
        )
    elif boundary is not None:
        text += " and no state"
    return wrapped(f"{text}; digest {receipt.prefix_digest[:12]}, receipt {receipt.receipt_id[:12]}.")


_TOLD_ELSEWHERE: Final = frozenset(
    {TrailKind.CALL, TrailKind.OUTCOME, TrailKind.BLOCKED, TrailKind.ATTEMPT, TrailKind.STATE, TrailKind.NOTE}
)


def _decisions(trail: DecisionTrail) -> str:
    """What was decided, a line each: a call is one line with all that came of it, a state stands with its step.

    What was only noted by the way is left out.
    """
    calls = {call.side.seq: call for call in trail.calls}
    states = {item.step: item for item in trail.items if item.kind is TrailKind.STATE}
    told = [item for item in trail.items if item.kind not in _TOLD_ELSEWHERE or item.seq in calls]
    left = max(0, len(told) - MAX_SHOWN_ITEMS)
    columns = [
        Column("entry", "right"),
        Column("from"),
        Column("what"),
        Column("status"),
        Column("value", is_wide=True),
    ]
    table = text_table(columns, (_row(item, calls.get(item.seq), states) for item in told[left:]))
    return f" … {left:,} before these\n{table}" if left else table


def _row(
    item: TrailItem, call: TrailCall | None, states: Mapping[int | None, TrailItem]
) -> tuple[str, str, str, str, str]:
    recorder = shorten_middle(item.run_id, 20) if item.is_inherited else ""
    if call is not None and item.kind is TrailKind.CALL:
        status = call.side.state.value.replace("_", " ")
        status += "" if call.side.attempts == 1 else f", {call.side.attempts} attempts"
        return str(item.seq), recorder, shorten_middle(item.name, MAX_CELL_CHARACTERS), status, show_outcome(call.side)
    return str(item.seq), recorder, _what(item), _word(item, states), _shown(item)


def _what(item: TrailItem) -> str:
    name = printable(shorten_middle(item.name, MAX_CELL_CHARACTERS))
    match item.kind:
        case TrailKind.STEP:
            return f"step {item.step}: {name}"
        case TrailKind.APPROVAL_REQUESTED | TrailKind.APPROVAL:
            return f"approval {name}"
        case TrailKind.WAKE_UP | TrailKind.WOKEN:
            return f"wake-up {name}".rstrip()
        case TrailKind.FORKED:
            return f"fork {name}"
        case _:
            return name or item.kind.value.replace("_", " ")


_WORDS: Final[Mapping[TrailKind, str]] = {
    TrailKind.APPROVAL_REQUESTED: "requested",
    TrailKind.DECISION_REQUESTED: "undecided",
    TrailKind.WAKE_UP: "set",
    TrailKind.WOKEN: "woken",
    TrailKind.FORKED: "forked",
}


def _word(item: TrailItem, states: Mapping[int | None, TrailItem]) -> str:
    if item.kind is TrailKind.STEP:
        state = states.get(item.step)
        return "no state" if state is None else f"state v{state.facts['version']}"
    if item.kind is TrailKind.APPROVAL:
        return _verdict(item)
    if item.kind is TrailKind.DECISION:
        return f"decided: {item.facts.get('decision')}"
    return _WORDS.get(item.kind, "" if not item.name else item.kind.value.replace("_", " "))


def _verdict(item: TrailItem) -> str:
    if item.status is not CallState.COMPLETED or not isinstance(item.value, dict):
        return "not decided" if item.status is None else item.status.value.replace("_", " ")
    return "approved" if item.value.get("approved") else "rejected"


def _shown(item: TrailItem) -> str:
    if item.blob is not None:
        return "(a large value)"
    if item.kind is TrailKind.STEP and isinstance(item.value, dict):
        return "" if item.value["output"] is None else show_value(item.value["output"])
    if item.kind is TrailKind.CREATED:
        return ""
    if item.kind is TrailKind.PAUSED and "reason" in item.facts:
        return str(item.facts["reason"])
    if item.kind is TrailKind.RESUMED and "after" in item.facts:
        return f"after {item.facts['after']}"
    return "" if item.value is MISSING or item.value is None else show_value(item.value)


def _outcomes(trail: DecisionTrail) -> Iterator[str]:
    for outcome in trail.outcomes:
        note = "" if outcome.note is None else f": {printable(shorten(outcome.note))}"
        decided = "" if outcome.decided_in is None else f", decided in {printable(outcome.decided_in)}"
        yield f"{outcome.at:%Y-%m-%d %H:%M:%S}  {_outcome(outcome)}{decided}{note}"
    for promotion in trail.promotions:
        closed = f", which closed {', '.join(map(show_id, promotion.closed))}" if promotion.closed else ""
        yield f"{promotion.at:%Y-%m-%d %H:%M:%S}  {show_id(promotion.run_id)} was promoted{closed}"
