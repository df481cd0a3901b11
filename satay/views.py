"""What is shown of runs on a terminal: lists, timelines, trees, receipts and the health of a journal.

Every function takes records and answers what rich prints. Text that comes from a journal goes through `_text`, so no
control character of it reaches the terminal, and is never read as markup.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal

from rich.box import Box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from satay.accounts import CallSide, ComparedRun
from satay.approval_records import Approval, PendingApproval
from satay.experiments import Outcome
from satay.handles import RunSummary
from satay.health import HealthReport
from satay.inspections import Inspection, Kinship, Relative, SessionOverview, Timeline, TimelineItem
from satay.journal import Owner, StoreHealth
from satay.model import MISSING, EntryType
from satay.receipts import ForkReceipt
from satay.states import StateReport
from satay.tables import printable, shorten, show_cost, show_seconds, show_value
from satay.transcripts import SessionStatus

MAX_OUTCOME_CHARACTERS: Final = 60
"""A result or an error in a timeline is shown with at most this many characters."""

WHOLE_ID_CHARACTERS: Final = 36
"""Ids up to this length stay in one line, to be copied."""

_RULED: Final = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")

_STYLES: Final[Mapping[str, str]] = {
    "running": "cyan",
    "retrying": "yellow",
    "waiting": "blue",
    "sleeping": "blue",
    "waiting for an event": "blue",
    "waiting for an approval": "magenta",
    "waiting for a child": "blue",
    "overdue": "red",
    "cancelling": "yellow",
    "needs_decision": "magenta",
    "needs a decision": "magenta",
    "decided": "yellow",
    "crashed": "red",
    "stranded": "red",
    "suspended": "yellow",
    "stopped": "yellow",
    "created": "blue",
    "started": "cyan",
    "stepping": "cyan",
    "paused": "blue",
    "completed": "green",
    "continued": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "timed_out": "yellow",
    "open": "cyan",
    "blocked": "magenta",
}
"""The colours of states and statuses. The word is always there too."""


def _text(value: object, style: str = "") -> Text:
    return Text(printable(str(value)), style=style)


def _state(name: str) -> Text:
    return Text(printable(name.replace("_", " ")), style=_STYLES.get(name, ""))


def _table(*columns: str, right: Sequence[str] = (), broken: Sequence[str] = ()) -> Table:
    """A table. Where a terminal has no room for all of it, the cells of `broken` columns are broken into lines."""
    table = Table(box=_RULED, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    for column in columns:
        side: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=side, no_wrap=column not in broken, overflow="fold")
    return table


_FOR_PROGRAMS: Final = frozenset({"as_of"})
"""Facts of entries that say nothing to a person: moments in microseconds."""


def _facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and values, one a line; a long value is broken into several."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(_text(name), value)
    return table


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def report(text: str) -> RenderableType:
    """A report that is text already, line by line."""
    return Text("\n".join(map(printable, text.split("\n"))))


# --- lists ------------------------------------------------------------------------------------------------------------


_NEXT_OF_SESSIONS: Final[Mapping[str, str]] = {
    "created": "open it",
    "paused": "open it again",
    "crashed": "open it again, or fork it",
    "stranded": "open it again",
}
"""What can be done about a session, by its status."""

NO_SESSIONS: Final[Mapping[str, SessionStatus]] = MappingProxyType({})


def run_list(
    runs: Sequence[RunSummary],
    stranded: Sequence[str],
    now: datetime,
    sessions: Mapping[str, SessionStatus] = NO_SESSIONS,
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
    table = _table(*columns, right=["age"], broken=broken)
    for run, status, action in zip(runs, statuses, actions, strict=True):
        age = show_seconds(max(0.0, (now - run.created_at).total_seconds()))
        row = (_text(run.run_id), _text(run.workflow), _state(status), age, _text(_origin(run)), action)
        table.add_row(*row[: len(columns)])
    return table


def _status_of(run: RunSummary, stranded: Sequence[str], sessions: Mapping[str, SessionStatus]) -> str:
    if run.run_id in stranded:
        return "stranded"
    return sessions[run.run_id].value if run.run_id in sessions else run.status.value


def _origin(run: RunSummary) -> str:
    if run.forked_from is not None:
        return f"fork of {run.forked_from} @{run.fork_seq}"
    return "" if run.parent_id is None else f"child of {run.parent_id}"


# --- one run ----------------------------------------------------------------------------------------------------------


def run_page(inspection: Inspection) -> RenderableType:
    """A run: what it is, what to do about it, and a page of what happened."""
    return Group(
        _facts(_header(inspection)), Text(), state_block(inspection.state), Text(), timeline(inspection.timeline)
    )


def _header(inspection: Inspection) -> Iterable[tuple[str, RenderableType]]:
    run, record = inspection.run, inspection.record
    yield "run", _text(run.run_id)
    yield "workflow", _text(f"{run.workflow}, code {run.code_version}")
    if inspection.session is not None:
        yield from _session_header(inspection.session)
    yield "created", Text(f"{_moment(run.created_at)} UTC")
    yield "journal", Text(f"{_count(inspection.entries, 'entry').replace('entrys', 'entries')}, {_amounts(run)}")
    if record.parent_id is not None:
        yield "child of", _text(record.parent_id)
    if run.forked_from is not None:
        yield "fork of", _text(run.forked_from)
    if inspection.receipt is not None:
        yield "receipt", _text(receipt_line(inspection.receipt))
    if run.continued_as is not None:
        yield "goes on as", _text(run.continued_as)


def _session_header(session: SessionOverview) -> Iterable[tuple[str, RenderableType]]:
    last = "" if session.last_step is None else f", the last one {session.last_step!r}"
    yield "steps", _text(f"{_count(session.steps, 'step')}{last}")
    if session.state_bytes is not None:
        large = f", {_count(session.large_states, 'large one')} beside it" if session.large_states else ""
        yield (
            "states",
            Text(
                f"{_count(session.states, 'state')} in {_count(session.versions, 'version')}, "
                f"{_size(session.stored_bytes)} in the journal{large}; that of step {session.state_step} has "
                f"{_size(session.state_bytes)}"
            ),
        )
    if session.calls:
        told = ", ".join(f"{number:,} {state.value.replace('_', ' ')}" for state, number in session.calls.items())
        yield "ledger", Text(f"{_count(sum(session.calls.values()), 'call')}: {told}")
    for fork in session.forks:
        status = "" if fork.status is None else f", {fork.status.value}"
        yield "fork", _text(f"{fork.run_id}, after step {fork.after_step}{status}")
    if session.has_more_forks:
        yield "fork", Text("… more are not shown", style="dim")


def _amounts(run: ComparedRun) -> str:
    parts = [_count(run.calls, "call"), show_seconds(run.seconds)]
    tokens = run.usage.input_tokens + run.usage.output_tokens
    if tokens:
        parts.append(_count(tokens, "token"))
    if run.usage.cost:
        parts.append(f"cost {show_cost(run.usage.cost)}")
    return ", ".join(parts)


def state_block(report: StateReport) -> RenderableType:
    """What a run is up to, why, and what to do about it."""
    rows: list[tuple[str, RenderableType]] = [
        ("state", _state(report.state.value)),
        ("because", _text(report.reason)),
        ("next", _text(report.advice)),
    ]
    rows += [("", _text(f"$ {command}")) for command in report.commands]
    return _facts(rows)


def timeline(page: Timeline) -> RenderableType:
    """A page of what happened: calls with their outcome, and what else was recorded."""
    broken, right = ["call", "outcome"], ["entry", "at", "took"]
    table = _table("entry", "at", "call", "state", "took", "outcome", right=right, broken=broken)
    for item in page.items:
        table.add_row(*_timeline_row(item))
    parts: list[RenderableType] = [table]
    if page.earlier:
        parts.insert(0, Text(f"{page.earlier:,} earlier not shown; --after 0 shows the first", style="dim"))
    if page.later:
        parts.append(Text(f"{page.later:,} later not shown; --after {page.items[-1].seq} shows the next", style="dim"))
    return Group(*parts)


def _timeline_row(item: TimelineItem) -> tuple[RenderableType, ...]:
    at = "inherited" if item.seconds_in is None else f"+{show_seconds(max(0.0, item.seconds_in))}"
    if item.type == EntryType.STEP_RECORDED:
        output = item.facts.get("output")
        shown = "" if output is None else show_value(output, MAX_OUTCOME_CHARACTERS)
        return (
            str(item.seq),
            at,
            _text(f"step {item.facts['step']}: {item.facts['name']}", "bold"),
            "",
            "",
            _text(shown),
        )
    if item.type == EntryType.STATE_RECORDED:
        return str(item.seq), at, _text(f"state v{item.facts['version']}", "dim"), "", "", _text(_stored(item), "dim")
    if item.side is None:
        return str(item.seq), at, _text(item.type, "dim"), "", "", _text(_told(item), "dim")
    took = "" if item.side.seconds is None else show_seconds(item.side.seconds)
    return str(item.seq), at, _text(item.call), _side_state(item.side), took, _text(_outcome(item.side))


def _stored(item: TimelineItem) -> str:
    """How a state is stored."""
    size_bytes = item.facts["stored_bytes"]
    kind = "the same as before" if item.facts["kind"] == "same" else item.facts["kind"]
    return str(kind) if size_bytes is None else f"{kind}, {_size(size_bytes)}"


def _side_state(side: CallSide) -> Text:
    state = _state(side.state.value)
    return state if side.attempts == 1 else state.append(f", {side.attempts} attempts", style="yellow")


def _outcome(side: CallSide) -> str:
    failure = side.failure
    if failure is not None:
        return shorten(f"{failure.type.rpartition(':')[2]}: {failure.message}", MAX_OUTCOME_CHARACTERS)
    return "" if side.result is MISSING else show_value(side.result, MAX_OUTCOME_CHARACTERS)


def _told(item: TimelineItem) -> str:
    if item.type == EntryType.WORKFLOW_CREATED:
        return ""
    shown = ((name, fact) for name, fact in item.facts.items() if name not in _FOR_PROGRAMS)
    facts = ", ".join(f"{name}={show_value(fact)}" for name, fact in shown)
    return shorten(facts, MAX_OUTCOME_CHARACTERS)


# --- forks ------------------------------------------------------------------------------------------------------------


def receipt_line(receipt: ForkReceipt) -> str:
    """What a fork inherited, in a line."""
    there = "there already, " if receipt.replayed else ""
    parts = [f"{there}{receipt.cut}: entries 1 to {receipt.resolved_seq}", _count(receipt.calls_inherited, "call")]
    if receipt.in_flight:
        actions = Counter(call.action for call in receipt.in_flight)
        parts.append("in flight " + ", ".join(f"{count} {action}" for action, count in actions.items()))
    if receipt.input_overridden:
        parts.append("another input")
    saved = f"saved {show_seconds(receipt.saved_seconds)}"
    return ", ".join([*parts, saved + (f" and {show_cost(receipt.saved_cost)}" if receipt.saved_cost else "")])


def receipt_page(receipt: Mapping[str, Any]) -> RenderableType:
    """A stored receipt, a fact a line."""
    return _facts((name, _text(show_value(value, 1000))) for name, value in receipt.items())


def tree(root: Relative) -> RenderableType:
    """A run with the runs that came of it; a shared child is marked as inherited."""
    shown = Tree(_tree_line(root), guide_style="dim")
    _add_relatives(shown, root)
    return shown


def _add_relatives(branch: Tree, run: Relative) -> None:
    for relative in run.relatives:
        _add_relatives(branch.add(_tree_line(relative)), relative)
    if run.is_cut:
        branch.add(Text("… more are not shown", style="dim"))


def _tree_line(run: Relative) -> Text:
    record = run.record
    line = Text.assemble(_text(record.run_id, "bold"), "  ", _text(record.workflow), "  ", _state(record.status.value))
    if run.kinship is Kinship.FORK:
        line.append(f"  fork after entry {record.fork_seq}", style="cyan")
    elif run.kinship is not Kinship.ROOT:
        line.append(f"  {run.kinship.value}", style="dim")
    if run.is_inherited:
        line.append(", inherited: it belongs to the source", style="yellow")
    return line


def outcome_data(outcome: Outcome) -> dict[str, Any]:
    """What became of a run, as plain JSON data."""
    return {
        "run_id": outcome.run_id,
        "value": outcome.value.value,
        "score": outcome.score,
        "note": outcome.note,
        "at": outcome.at.isoformat(),
        "decided_in": outcome.decided_in,
    }


def approval_list(pending: Sequence[PendingApproval]) -> RenderableType:
    """Approvals that runs wait for, a line each."""
    if not pending:
        return Text("no approvals are pending")
    table = _table("run", "approval", "of", "until", broken=["run", "of"])
    for one in pending:
        until = Text("") if one.deadline is None else Text(_moment(one.deadline))
        table.add_row(_text(one.run_id), _text(one.key), _text(show_value(one.payload, MAX_OUTCOME_CHARACTERS)), until)
    return table


def approval_line(run_id: str, decision: Approval) -> RenderableType:
    """A decision, in a line."""
    verdict = "approved" if decision.approved else "rejected"
    by = "" if decision.by is None else f" by {decision.by}"
    return _text(f"{decision.key} of run {run_id} was {verdict}{by} at {_moment(decision.at)} UTC")


def outcome_page(outcome: Outcome | None) -> RenderableType:
    """What became of a run, a fact a line."""
    if outcome is None:
        return Text("no outcome was recorded")
    facts = {name: fact for name, fact in outcome_data(outcome).items() if fact is not None}
    return _facts((name.replace("_", " "), _text(fact)) for name, fact in facts.items())


# --- health -----------------------------------------------------------------------------------------------------------


def health_page(report: HealthReport) -> RenderableType:
    """What a check-up found."""
    rows: list[tuple[str, RenderableType]] = [(name, _text(value)) for name, value in report.versions.items()]
    rows += [(name.replace("_", " "), _text(value)) for name, value in report.settings.items()]
    if report.store is not None:
        rows += _store_rows(report.store)
    rows += [("owner", _owner_line(owner, is_alive)) for owner, is_alive in report.owners]
    rows += [("problem", _text(problem, "red")) for problem in report.problems]
    return Group(_facts(rows), *([] if report.problems else [Text("no problems", style="green")]))


def _store_rows(store: StoreHealth) -> Iterable[tuple[str, RenderableType]]:
    yield "journal", _text(store.place)
    yield "schema", Text(f"version {store.schema_version}")
    yield "size", Text(f"{_size(store.size_bytes)}, write-ahead log {_size(store.log_bytes)}")
    yield "free disk", Text(_size(store.free_bytes))
    runs = ", ".join(f"{number:,} {status.replace('_', ' ')}" for status, number in sorted(store.runs.items()))
    yield "runs", _text(runs or "none")
    yield "inbox", Text(_count(store.pending, "message") + " not taken")


def _owner_line(owner: Owner, is_alive: bool) -> Text:
    return _text(f"process {owner.pid} on {owner.host}: ").append(
        *(("alive", "green") if is_alive else ("gone", "red"))
    )


def _size(size_bytes: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.1f} {unit}"
    return f"{size_bytes} bytes"
