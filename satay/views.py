"""What is shown of one run on a terminal: its state, its timeline, its tree, its receipt; and of a journal, its health.

Every function takes records and answers what rich prints.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from satay.accounts import CallSide, ComparedRun
from satay.approval_records import Approval
from satay.experiments import Outcome
from satay.health import HealthReport
from satay.inspections import Inspection, Kinship, Relative, SessionOverview, Timeline, TimelineItem
from satay.journal import Owner, StoreHealth
from satay.markup import (
    MAX_OUTCOME_CHARACTERS,
    count_text,
    facts_table,
    moment_text,
    size_text,
    state_text,
    table_of,
    text_of,
)
from satay.model import MISSING, EntryType
from satay.receipts import ForkReceipt
from satay.states import StateReport
from satay.tables import shorten, show_cost, show_seconds, show_value

_FOR_PROGRAMS: Final = frozenset({"as_of", "cut_at"})
"""Facts of entries that say nothing to a person: moments in microseconds."""


# --- one run ----------------------------------------------------------------------------------------------------------


def run_page(inspection: Inspection) -> RenderableType:
    """A run: what it is, what to do about it, and a page of what happened."""
    return Group(
        facts_table(_header(inspection)), Text(), state_block(inspection.state), Text(), timeline(inspection.timeline)
    )


def _header(inspection: Inspection) -> Iterable[tuple[str, RenderableType]]:
    run, record = inspection.run, inspection.record
    yield "run", text_of(run.run_id)
    yield "workflow", text_of(f"{run.workflow}, code {run.code_version}")
    if inspection.session is not None:
        yield from _session_header(inspection.session)
    yield "created", Text(f"{moment_text(run.created_at)} UTC")
    yield "journal", Text(f"{count_text(inspection.entries, 'entry').replace('entrys', 'entries')}, {_amounts(run)}")
    if record.parent_id is not None:
        yield "child of", text_of(record.parent_id)
    if run.forked_from is not None:
        yield "fork of", text_of(run.forked_from)
    if inspection.receipt is not None:
        yield "receipt", text_of(receipt_line(inspection.receipt))
    if run.continued_as is not None:
        yield "goes on as", text_of(run.continued_as)


def _session_header(session: SessionOverview) -> Iterable[tuple[str, RenderableType]]:
    last = "" if session.last_step is None else f", the last one {session.last_step!r}"
    yield "steps", text_of(f"{count_text(session.steps, 'step')}{last}")
    if session.state_bytes is not None:
        large = f", {count_text(session.large_states, 'large one')} beside it" if session.large_states else ""
        yield (
            "states",
            Text(
                f"{count_text(session.states, 'state')} in {count_text(session.versions, 'version')}, "
                f"{size_text(session.stored_bytes)} in the journal{large}; that of step {session.state_step} has "
                f"{size_text(session.state_bytes)}"
            ),
        )
    if session.calls:
        told = ", ".join(f"{number:,} {state.value.replace('_', ' ')}" for state, number in session.calls.items())
        yield "ledger", Text(f"{count_text(sum(session.calls.values()), 'call')}: {told}")
    for fork in session.forks:
        status = "" if fork.status is None else f", {fork.status.value}"
        yield "fork", text_of(f"{fork.run_id}, after step {fork.after_step}{status}")
    if session.has_more_forks:
        yield "fork", Text("… more are not shown", style="dim")


def _amounts(run: ComparedRun) -> str:
    parts = [count_text(run.calls, "call"), show_seconds(run.seconds)]
    tokens = run.usage.input_tokens + run.usage.output_tokens
    if tokens:
        parts.append(count_text(tokens, "token"))
    if run.usage.cost:
        parts.append(f"cost {show_cost(run.usage.cost)}")
    return ", ".join(parts)


def state_block(report: StateReport) -> RenderableType:
    """What a run is up to, why, and what to do about it."""
    rows: list[tuple[str, RenderableType]] = [
        ("state", state_text(report.state.value)),
        ("because", text_of(report.reason)),
        ("next", text_of(report.advice)),
    ]
    rows += [("", text_of(f"$ {command}")) for command in report.commands]
    return facts_table(rows)


def timeline(page: Timeline) -> RenderableType:
    """A page of what happened: calls with their outcome, and what else was recorded."""
    broken, right = ["call", "outcome"], ["entry", "at", "took"]
    table = table_of("entry", "at", "call", "state", "took", "outcome", right=right, broken=broken)
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
            text_of(f"step {item.facts['step']}: {item.facts['name']}", "bold"),
            "",
            "",
            text_of(shown),
        )
    if item.type == EntryType.STATE_RECORDED:
        return (
            str(item.seq),
            at,
            text_of(f"state v{item.facts['version']}", "dim"),
            "",
            "",
            text_of(_stored(item), "dim"),
        )
    if item.side is None:
        return str(item.seq), at, text_of(item.type, "dim"), "", "", text_of(_told(item), "dim")
    took = "" if item.side.seconds is None else show_seconds(item.side.seconds)
    return str(item.seq), at, text_of(item.call), _side_state(item.side), took, text_of(_outcome(item.side))


def _stored(item: TimelineItem) -> str:
    """How a state is stored."""
    size_bytes = item.facts["stored_bytes"]
    kind = "the same as before" if item.facts["kind"] == "same" else item.facts["kind"]
    return str(kind) if size_bytes is None else f"{kind}, {size_text(size_bytes)}"


def _side_state(side: CallSide) -> Text:
    state = state_text(side.state.value)
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
    parts = [f"{there}{receipt.cut}: entries 1 to {receipt.resolved_seq}", count_text(receipt.calls_inherited, "call")]
    if receipt.in_flight:
        actions = Counter(call.action for call in receipt.in_flight)
        parts.append("in flight " + ", ".join(f"{count} {action}" for action, count in actions.items()))
    if receipt.input_overridden:
        parts.append("another input")
    saved = f"saved {show_seconds(receipt.saved_seconds)}"
    return ", ".join([*parts, saved + (f" and {show_cost(receipt.saved_cost)}" if receipt.saved_cost else "")])


def receipt_page(receipt: Mapping[str, Any]) -> RenderableType:
    """A stored receipt, a fact a line."""
    return facts_table((name, text_of(show_value(value, 1000))) for name, value in receipt.items())


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
    line = Text.assemble(
        text_of(record.run_id, "bold"), "  ", text_of(record.workflow), "  ", state_text(record.status.value)
    )
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


def approval_line(run_id: str, decision: Approval) -> RenderableType:
    """A decision, in a line."""
    verdict = "approved" if decision.approved else "rejected"
    by = "" if decision.by is None else f" by {decision.by}"
    return text_of(f"{decision.key} of run {run_id} was {verdict}{by} at {moment_text(decision.at)} UTC")


def outcome_page(outcome: Outcome | None) -> RenderableType:
    """What became of a run, a fact a line."""
    if outcome is None:
        return Text("no outcome was recorded")
    facts = {name: fact for name, fact in outcome_data(outcome).items() if fact is not None}
    return facts_table((name.replace("_", " "), text_of(fact)) for name, fact in facts.items())


# --- health -----------------------------------------------------------------------------------------------------------


def health_page(report: HealthReport) -> RenderableType:
    """What a check-up found."""
    rows: list[tuple[str, RenderableType]] = [(name, text_of(value)) for name, value in report.versions.items()]
    rows += [(name.replace("_", " "), text_of(value)) for name, value in report.settings.items()]
    if report.store is not None:
        rows += _store_rows(report.store)
    rows += [("owner", _owner_line(owner, is_alive)) for owner, is_alive in report.owners]
    rows += [("problem", text_of(problem, "red")) for problem in report.problems]
    return Group(facts_table(rows), *([] if report.problems else [Text("no problems", style="green")]))


def _store_rows(store: StoreHealth) -> Iterable[tuple[str, RenderableType]]:
    yield "journal", text_of(store.place)
    yield "schema", Text(f"version {store.schema_version}")
    yield "size", Text(f"{size_text(store.size_bytes)}, write-ahead log {size_text(store.log_bytes)}")
    yield "free disk", Text(size_text(store.free_bytes))
    runs = ", ".join(f"{number:,} {status.replace('_', ' ')}" for status, number in sorted(store.runs.items()))
    yield "runs", text_of(runs or "none")
    yield "inbox", Text(count_text(store.pending, "message") + " not taken")


def _owner_line(owner: Owner, is_alive: bool) -> Text:
    return text_of(f"process {owner.pid} on {owner.host}: ").append(
        *(("alive", "green") if is_alive else ("gone", "red"))
    )
