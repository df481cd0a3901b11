"""One call in two runs, whether they part there, and why, as far as the journals tell.

A cause is read off, never guessed: of what differs between the runs, the first in this order that can have led there:
what was given to the fork for this call, what a policy did, the input of the workflow, the intervention, the code, an
event from outside; else it is the same call that was answered differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from satay.accounts import AnswerSource, CallSide, CallState, ComparedRun, StepSide
from satay.differences import Difference
from satay.model import CallId, CallKind


class CallStatus(StrEnum):
    """What became of a call in the other run.

    `REPLAYED`: both runs hold the same entries for it. `SAME`, `DIFFERENT`: both have an outcome, the same or not.
    `UNFINISHED`: one run, or both, has no outcome for it.
    """

    REPLAYED = "replayed"
    SAME = "same"
    DIFFERENT = "different"
    ONLY_ONE = "only_one"
    ONLY_OTHER = "only_other"
    UNFINISHED = "unfinished"


class CallComparison(NamedTuple):
    """One call in both runs. A side is None where the run did not make the call.

    The differences lead from `one` to `other`; `is_truncated` says that there are more than are listed. They are empty
    unless the call ran in both runs, and those of the results also where an outcome is still to come. `has_other_input`
    also where a large input was not read and only its bytes are known to differ.
    """

    identity: CallId
    status: CallStatus
    one: CallSide | None
    other: CallSide | None
    input_differences: tuple[Difference, ...] = ()
    result_differences: tuple[Difference, ...] = ()
    is_truncated: bool = False
    has_other_input: bool = False

    @property
    def kind(self) -> CallKind:
        """The kind of the call."""
        return self.identity.kind

    @property
    def sides(self) -> list[CallSide]:
        """The sides that there are."""
        return [side for side in (self.one, self.other) if side is not None]

    @property
    def is_divergent(self) -> bool:
        """Whether the runs have not come to the same here. Two calls that are both outstanding have not parted."""
        if self.status in _ALIKE:
            return False
        if self.status is CallStatus.UNFINISHED:
            return state_of(self.one) is not state_of(self.other)
        return True

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "call": str(self.identity),
            "kind": self.kind.value,
            "name": self.identity.name,
            "occurrence": self.identity.occurrence,
            "status": self.status.value,
            "one": None if self.one is None else self.one.to_dict(),
            "other": None if self.other is None else self.other.to_dict(),
            "input_differences": [difference.to_dict() for difference in self.input_differences],
            "result_differences": [difference.to_dict() for difference in self.result_differences],
            "is_truncated": self.is_truncated,
        }


_ALIKE: Final = frozenset({CallStatus.REPLAYED, CallStatus.SAME})


@dataclass(frozen=True, slots=True)
class StepComparison:
    """One step in two sessions, by its number. A side is None where the session has no such step.

    `REPLAYED` says that both hold the same entry for it, `SAME` that name, input and output are equal. The differences
    lead from `one` to `other`; `is_truncated` says that there are more than are listed.
    """

    number: int
    status: CallStatus
    one: StepSide | None
    other: StepSide | None
    input_differences: tuple[Difference, ...] = ()
    output_differences: tuple[Difference, ...] = ()
    is_truncated: bool = False

    @property
    def is_divergent(self) -> bool:
        """Whether the sessions are not the same here."""
        return self.status not in _ALIKE

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "step": self.number,
            "status": self.status.value,
            "one": None if self.one is None else self.one.to_dict(),
            "other": None if self.other is None else self.other.to_dict(),
            "input_differences": [difference.to_dict() for difference in self.input_differences],
            "output_differences": [difference.to_dict() for difference in self.output_differences],
            "is_truncated": self.is_truncated,
        }


def state_of(side: CallSide | None) -> CallState | None:
    """How a call ended, if the run made it."""
    return None if side is None else side.state


class Cause(StrEnum):
    """Why two runs part.

    `INPUT`, `INTERVENTION`, `CODE`: these differ between the runs. `OVERRIDE`: a fork was given another outcome.
    `POLICY`: a tool policy refused the call, or answered it. `EVENT`: another event came, or a request to cancel.
    `ANSWER`: none of these; the same call was answered differently.
    """

    INPUT = "input"
    OVERRIDE = "override"
    INTERVENTION = "intervention"
    CODE = "code"
    EVENT = "event"
    POLICY = "policy"
    ANSWER = "answer"


class Explanation(NamedTuple):
    """A cause, and a clause that says what it is here."""

    cause: Cause
    clause: str


def explain_call(
    call: CallComparison, one: ComparedRun, other: ComparedRun, inputs: Sequence[Difference]
) -> Explanation | None:
    """Why two runs part at a call. None where one of them is still on its way there.

    `inputs` are the differences between the inputs of the workflows.
    """
    given = _of_override(call, one, other) or _of_policy(call, one, other)
    if given is not None:
        return given
    if call.one is None or call.other is None or call.has_other_input:
        return _of_other_call(call, one, other, inputs)
    return _of_outcome(call, one, other)


def explain_step(
    step: StepComparison, one: ComparedRun, other: ComparedRun, inputs: Sequence[Difference]
) -> Explanation | None:
    """Why two sessions whose calls are alike part at a step. None where one of them is still on its way there."""
    if (step.one is None and _goes_on(one)) or (step.other is None and _goes_on(other)):
        return None
    return _of_run(one, other, inputs) or _BY_CHANCE


def explain_ending(one: ComparedRun, other: ComparedRun, inputs: Sequence[Difference]) -> Explanation:
    """Why two runs whose calls are alike ended differently."""
    return _of_cancelling(one, other) or _of_run(one, other, inputs) or _BY_CHANCE


def _of_override(call: CallComparison, one: ComparedRun, other: ComparedRun) -> Explanation | None:
    for side, run in ((call.other, other), (call.one, one)):
        if side is not None and side.answer is AnswerSource.OVERRIDDEN:
            because = "" if side.reason is None else f", because: {side.reason}"
            return Explanation(Cause.OVERRIDE, f"its outcome was given to {run.run_id}{because}")
    return None


def _of_policy(call: CallComparison, one: ComparedRun, other: ComparedRun) -> Explanation | None:
    for side, run in ((call.other, other), (call.one, one)):
        if side is not None and side.state is CallState.BLOCKED:
            because = "" if side.reason is None else f": {side.reason}"
            return Explanation(Cause.POLICY, f"a tool policy refused it in {run.run_id}{because}")
        if side is not None and side.answer is AnswerSource.REUSED:
            return Explanation(Cause.POLICY, f"a tool policy answered it in {run.run_id} from {side.reused_from}")
    return None


def _of_other_call(
    call: CallComparison, one: ComparedRun, other: ComparedRun, inputs: Sequence[Difference]
) -> Explanation | None:
    """Where the runs parted before the call was answered: with other arguments, or by making it at all."""
    if (call.one is None and _goes_on(one)) or (call.other is None and _goes_on(other)):
        return None
    return _of_run(one, other, inputs) or _of_cancelling(one, other) or _BY_CHANCE


def _of_outcome(call: CallComparison, one: ComparedRun, other: ComparedRun) -> Explanation | None:
    """Where the same call with the same arguments has another outcome. The input cannot have led there."""
    states = [state_of(call.one), state_of(call.other)]
    if call.kind is CallKind.EVENT and CallState.CANCELLED not in states:
        return _of_event(call)
    if (states[0] is CallState.OPEN and _goes_on(one)) or (states[1] is CallState.OPEN and _goes_on(other)):
        return None
    cancelling = _of_cancelling(one, other) if CallState.CANCELLED in states else None
    answered = Explanation(Cause.ANSWER, "the same call, with the same arguments, was answered differently")
    return cancelling or _of_surroundings(one, other) or answered


def _of_run(one: ComparedRun, other: ComparedRun, inputs: Sequence[Difference]) -> Explanation | None:
    """What differs between the runs as a whole."""
    if (one.session_status is None) is not (other.session_status is None):
        session, run = (other, one) if one.session_status is None else (one, other)
        return Explanation(Cause.CODE, f"{session.run_id} is a session, {run.run_id} a run of workflow {run.workflow}")
    if one.workflow != other.workflow:
        return Explanation(Cause.CODE, f"they are runs of different workflows, {one.workflow} and {other.workflow}")
    if inputs:
        return Explanation(Cause.INPUT, f"the input of the workflow differs at {inputs[0].path}")
    return _of_surroundings(one, other)


def _of_surroundings(one: ComparedRun, other: ComparedRun) -> Explanation | None:
    if one.intervention != other.intervention:
        return Explanation(Cause.INTERVENTION, "the interventions differ")
    if one.code_version != other.code_version:
        return Explanation(Cause.CODE, f"the code differs: {one.code_version} and {other.code_version}")
    return None


def _of_event(call: CallComparison) -> Explanation:
    if state_of(call.one) is state_of(call.other):
        paths = [difference.path for difference in call.result_differences]
        return Explanation(Cause.EVENT, f"another event came: it differs at {paths[0] if paths else '$'}")
    return Explanation(Cause.EVENT, "the event came in one of the runs only")


def _of_cancelling(one: ComparedRun, other: ComparedRun) -> Explanation | None:
    if one.is_cancel_requested == other.is_cancel_requested:
        return None
    cancelled = one if one.is_cancel_requested else other
    return Explanation(Cause.EVENT, f"{cancelled.run_id} was asked to cancel")


def _goes_on(run: ComparedRun) -> bool:
    return not run.status.is_terminal


_BY_CHANCE: Final = Explanation(
    Cause.ANSWER, "nothing else that the journals record differs; what is left is the time and chance of each run"
)
