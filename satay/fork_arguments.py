"""The options that say where a run is forked and what is to be otherwise: one group for `fork`, `plan` and `sweep`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypedDict, TypeVar, cast

import typer

from satay.argument_values import decode_input, parse_call, parse_json, parse_pairs
from satay.boundaries import parse_mode
from satay.commandline import complete_task
from satay.definitions import Workflow
from satay.errors import InvalidValueError
from satay.model import MISSING
from satay.requests import ForkOptions
from satay.translation import OPTIONS

T = TypeVar("T")

CUT_PANEL: Final = "Where to cut"
"""The panel of the options that say where a fork is cut."""

_CHANGE: Final = "What to change"
_CARE: Final = "What to do about it"


@dataclass(frozen=True, slots=True)
class ForkArguments:
    """What was asked for on the command line. The input waits for the workflow that says what it has to be."""

    options: ForkOptions
    input: Any

    def options_for(self, workflow: Workflow[..., Any]) -> ForkOptions:
        """The options of a fork of a run of this workflow. Raises `InvalidValueError` for an unfit input."""
        if self.input is MISSING:
            return self.options
        return {**self.options, "workflow_input": decode_input(workflow, self.input, "--input")}


class SessionForkOptions(TypedDict):
    """The options of a fork of a session, as `Session.resume` takes them."""

    fork_at_step: int
    boundary: Literal["exact", "nearest", "lineage"]
    intervention: Any
    tool_policies: Mapping[str, str] | None
    reason: str | None


_OF_SESSIONS: Final = frozenset({"intervention", "tool_policies", "reason"})
"""The options that forks of sessions and of runs have in common."""


@dataclass(frozen=True, slots=True)
class SessionCut:
    """Where a session is to be cut, if that was said."""

    at_step: int | None
    boundary: str | None

    def options(self, arguments: ForkArguments) -> SessionForkOptions:
        """The options of a fork of a session. Raises `InvalidValueError` for those that only a fork of a run has."""
        given: dict[str, Any] = dict(arguments.options)
        names = [*sorted(given.keys() - _OF_SESSIONS), *([] if arguments.input is MISSING else ["workflow_input"])]
        others = [OPTIONS[name] for name in names]
        if others:
            raise InvalidValueError(f"a session is forked after a step; {', '.join(others)} is for a run of a workflow")
        if self.at_step is None:
            raise InvalidValueError("a session is forked after a step; say which with --at-step")
        mode = parse_mode("exact" if self.boundary is None else self.boundary)
        return {
            "fork_at_step": self.at_step,
            "boundary": mode.value,
            "intervention": given.get("intervention"),
            "tool_policies": given.get("tool_policies"),
            "reason": given.get("reason"),
        }

    def refuse(self, run_id: str) -> None:
        """Raise `InvalidValueError` where a cut of a session was asked for a run that is none."""
        if self.at_step is not None or self.boundary is not None:
            raise InvalidValueError(
                f"run {run_id!r} is no session and has no steps; cut it with --before-task, --after-task or --at-entry"
            )


def fork_arguments(
    before_task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Before this task's first call.",
            rich_help_panel=CUT_PANEL,
            autocompletion=complete_task,
        ),
    ] = None,
    before_event: Annotated[
        str | None, typer.Option(metavar="EVENT", help="Before the first wait for it.", rich_help_panel=CUT_PANEL)
    ] = None,
    before_child: Annotated[
        str | None, typer.Option(metavar="WORKFLOW", help="Before its first child run.", rich_help_panel=CUT_PANEL)
    ] = None,
    before_ordinal: Annotated[
        int | None,
        typer.Option(metavar="N", help="Not the first of them but this one, from 0.", rich_help_panel=CUT_PANEL),
    ] = None,
    before_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The one with this key.", rich_help_panel=CUT_PANEL)
    ] = None,
    after_task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="After the outcome of its first call.",
            rich_help_panel=CUT_PANEL,
            autocompletion=complete_task,
        ),
    ] = None,
    after_ordinal: Annotated[
        int | None, typer.Option(metavar="N", help="Not the first of them but this one.", rich_help_panel=CUT_PANEL)
    ] = None,
    after_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The one with this key.", rich_help_panel=CUT_PANEL)
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="failure", help="Before what failed the run.", rich_help_panel=CUT_PANEL)
    ] = None,
    at_entry: Annotated[
        int | None, typer.Option(metavar="SEQ", help="After this entry of the journal.", rich_help_panel=CUT_PANEL)
    ] = None,
    keep_siblings: Annotated[
        bool, typer.Option("--keep-siblings", help="Only the named call runs again.", rich_help_panel=CUT_PANEL)
    ] = False,
    input: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Another input: JSON, @file, or -.", rich_help_panel=_CHANGE),
    ] = None,
    intervention: Annotated[
        str | None, typer.Option(metavar="JSON", help="What satay.intervention() answers.", rich_help_panel=_CHANGE)
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="CALL=JSON", help="Another result of a call, draft:0=...", rich_help_panel=_CHANGE),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="CALL=TEXT", help="An error in place of a call's result.", rich_help_panel=_CHANGE),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why results are replaced; it is recorded.", rich_help_panel=_CHANGE)
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=POLICY",
            help="auto, replay, block or live; for a task or for '*'.",
            rich_help_panel=_CARE,
        ),
    ] = None,
    on_stale: Annotated[
        str | None,
        typer.Option(
            metavar="keep|error|rerun", help="Where inherited calls would have other arguments.", rich_help_panel=_CARE
        ),
    ] = None,
    children: Annotated[
        str | None, typer.Option(metavar="fork|share", help="What becomes of open children.", rich_help_panel=_CARE)
    ] = None,
    expected_head: Annotated[
        int | None,
        typer.Option(metavar="SEQ", help="Refuse if the source has another last entry.", rich_help_panel=_CARE),
    ] = None,
    allow_unfinished: Annotated[
        bool, typer.Option("--allow-unfinished", help="Also a run that has not ended.", rich_help_panel=_CARE)
    ] = False,
) -> ForkArguments:
    """The builder of the options of a fork."""
    given = {
        "before_task": before_task,
        "before_event": before_event,
        "before_child": before_child,
        "before_ordinal": before_ordinal,
        "before_key": before_key,
        "after_task": after_task,
        "after_ordinal": after_ordinal,
        "after_key": after_key,
        "at": at,
        "fork_point_seq": at_entry,
        "keep_siblings": keep_siblings or None,
        "intervention": None if intervention is None else parse_json(intervention, "--intervention"),
        "overrides": _by_call(override, "--override", parse_json),
        "raises": _by_call(fail, "--fail", lambda text, _: RuntimeError(text)),
        "reason": reason,
        "tool_policies": parse_pairs(policy, "--policy") if policy else None,
        "on_stale": on_stale,
        "children": children,
        "expected_head": expected_head,
        "allow_unfinished": allow_unfinished or None,
    }
    options = {name: option for name, option in given.items() if option is not None}
    data = MISSING if input is None else parse_json(input, "--input")
    return ForkArguments(cast("ForkOptions", options), data)  # The names above are those of the options.


def _by_call(
    texts: list[str] | None, what: str, parse: Callable[[str, str], T]
) -> dict[tuple[str, int | str], T] | None:
    """Values by the call they stand for; None where none were given."""
    if not texts:
        return None
    found: dict[tuple[str, int | str], T] = {}
    for name, text in parse_pairs(texts, what).items():
        call = parse_call(name)
        if call in found:
            raise InvalidValueError(f"{what} names the call {name!r} twice; give one value for it")
        found[call] = parse(text, f"{what} {name}")
    return found
