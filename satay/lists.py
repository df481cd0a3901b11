"""Lists of runs and of approvals, a line each, as rich prints them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from satay.approval_records import PendingApproval
from satay.handles import RunSummary
from satay.markup import MAX_OUTCOME_CHARACTERS, moment_text, state_text, table_of, text_of
from satay.tables import show_seconds, show_value

WHOLE_ID_CHARACTERS: Final = 36
"""Ids up to this length stay in one line, to be copied."""

_NEXT_OF_SESSIONS: Final[Mapping[str, str]] = {
    "created": "open it",
    "paused": "open it again",
    "crashed": "open it again, or fork it",
    "stranded": "open it again",
}
"""What can be done about a session, by its status."""

NO_SESSIONS: Final[Mapping[str, str]] = MappingProxyType({})


def run_list(
    runs: Sequence[RunSummary],
    stranded: Sequence[str],
    now: datetime,
    sessions: Mapping[str, str] = NO_SESSIONS,
) -> RenderableType:
    """Runs, a line each. `stranded` are those of which no driver is alive, `sessions` says what sessions are doing."""
    if not runs:
        return Text("no runs")
    is_long = any(len(run.run_id) > WHOLE_ID_CHARACTERS for run in runs)
    broken = ["workflow", "comes of", *(["run"] if is_long else [])]
    statuses = [_status_of(run, stranded, sessions) for run in runs]
    actions = [
        _NEXT_OF_SESSIONS.get(status, "") if run.run_id in sessions else ""
        for run, status in zip(runs, statuses, strict=True)
    ]
    columns = ["run", "workflow", "status", "age", "comes of", *(["next"] if any(actions) else [])]
    table = table_of(*columns, right=["age"], broken=broken)
    for run, status, action in zip(runs, statuses, actions, strict=True):
        age = show_seconds(max(0.0, (now - run.created_at).total_seconds()))
        row = (text_of(run.run_id), text_of(run.workflow), state_text(status), age, text_of(_origin(run)), action)
        table.add_row(*row[: len(columns)])
    return table


def _status_of(run: RunSummary, stranded: Sequence[str], sessions: Mapping[str, str]) -> str:
    if run.run_id in stranded:
        return "stranded"
    return sessions.get(run.run_id, run.status.value)


def _origin(run: RunSummary) -> str:
    if run.forked_from is not None:
        return f"fork of {run.forked_from} @{run.fork_seq}"
    return "" if run.parent_id is None else f"child of {run.parent_id}"


def approval_list(pending: Sequence[PendingApproval]) -> RenderableType:
    """Approvals that runs wait for, a line each."""
    if not pending:
        return Text("no approvals are pending")
    table = table_of("run", "approval", "of", "until", broken=["run", "of"])
    for one in pending:
        until = Text("") if one.deadline is None else Text(moment_text(one.deadline))
        table.add_row(
            text_of(one.run_id), text_of(one.key), text_of(show_value(one.payload, MAX_OUTCOME_CHARACTERS)), until
        )
    return table
