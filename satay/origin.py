"""The constants of a run, as the first entries of its journal give them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from satay.declarations import value_codec
from satay.definitions import Workflow
from satay.effects import ForkTerms, ToolPolicy
from satay.errors import JournalCorruptError
from satay.journal import BLOB_THRESHOLD_BYTES, GENESIS, Blob
from satay.model import CREATION_ENTRIES, FORK_ENTRIES, SESSION_WORKFLOW, Entry, EntryType
from satay.recorder import first_entry
from satay.replay import blob_reference, facts, value_text
from satay.texts import json_quote

_OPAQUE = value_codec(Any)


class Origin(NamedTuple):
    """What does not change in the life of a run.

    Forks inherit it, but for the input, the terms and, where they inherit nothing but the creation, the start.

    `root_run_id` is the run at the beginning of the lineage of forks; idempotency keys are derived from it.
    `started_at` is where the body's time begins, in microseconds since the epoch. `terms` are what a fork imposes on
    the run: on itself, on the children that it starts and on the runs that go on in their place.
    """

    root_run_id: str
    seed: int
    started_at: int
    input_text: str
    parent_id: str | None = None
    terms: ForkTerms | None = None


def workflow_created(definition: Workflow[..., Any], origin: Origin, at: int) -> tuple[Entry, list[Blob]]:
    """The first entry of a run."""
    return _created(EntryType.WORKFLOW_CREATED, definition.name, definition.code_version, origin, at)


def session_created(code_version: str, origin: Origin, at: int) -> Entry:
    """The first entry of a session."""
    entry, _ = _created(EntryType.SESSION_CREATED, SESSION_WORKFLOW, code_version, origin, at)
    return entry


def _created(type: EntryType, workflow: str, code_version: str, origin: Origin, at: int) -> tuple[Entry, list[Blob]]:
    parent = "" if origin.parent_id is None else f',"parent":{json_quote(origin.parent_id)}'
    head = (
        f'"workflow":{json_quote(workflow)},"code_version":{json_quote(code_version)},'
        f'"root":{json_quote(origin.root_run_id)},"seed":{origin.seed},"started_at":{origin.started_at}{parent}'
        f"{_terms_fact(origin.terms)}"
    )
    return first_entry(type, at, head, origin.input_text, GENESIS)


def origin_of(run_id: str, entries: Sequence[Entry], blobs: Mapping[str, str]) -> Origin:
    """Read the constants back. Raises `JournalCorruptError` where the first entry is not what it must be."""
    first = entries[0] if entries else None
    if first is None or first.seq != 1 or first.type not in CREATION_ENTRIES:
        raise JournalCorruptError(f"the journal of run {run_id!r} does not begin with its creation", run_id=run_id)
    known = facts(first)
    text = value_text(first)
    if text is None:
        reference = blob_reference(first)
        text = "{}" if reference is None else blobs[reference]
    return Origin(
        root_run_id=known["root"],
        seed=known["seed"],
        started_at=known["started_at"],
        input_text=text,
        parent_id=known.get("parent"),
        terms=_terms(run_id, recorded_terms(first)),
    )


def has_input(first: Entry, text: str) -> bool:
    """Whether the first entry of a run holds this input. The order of members of an object does not matter."""
    recorded = value_text(first) or blob_reference(first)
    if len(text) > BLOB_THRESHOLD_BYTES:
        return recorded == hashlib.sha256(text.encode()).hexdigest()
    return recorded == text or (recorded is not None and _sorted(recorded) == _sorted(text))


def _sorted(text: str) -> str:
    """JSON text with its members in order, so that `1`, `1.0` and `true` stay apart."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def fresh_fork(entries: Sequence[Entry]) -> Entry | None:
    """The entry that made a fork, where nothing has happened in it since."""
    for entry in reversed(entries):
        if entry.type not in FORK_ENTRIES:
            break
        if entry.type == EntryType.RUN_FORKED:
            return entry
    return None


def _terms_fact(terms: ForkTerms | None) -> str:
    if terms is None:
        return ""
    plain = {
        "fork_id": terms.fork_id,
        "source_id": terms.source_id,
        "source_head": terms.source_head,
        "cut": terms.cut,
        "receipt_id": terms.receipt_id,
        "policies": terms.policies,
        "intervention": json.loads(_OPAQUE.encode(terms.intervention, "the intervention of a fork")),
    }
    # As a text: members of an intervention must not look like the member that holds the input.
    return f',"terms":{json_quote(json.dumps(plain, separators=(",", ":")))}'


def recorded_terms(first: Entry) -> dict[str, Any] | None:
    """The terms that the first entry of a run holds, as plain data. Raises `JournalCorruptError`."""
    text = facts(first).get("terms") if '"terms":' in first.payload else None
    if text is None:
        return None
    try:
        recorded: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError) as error:
        raise JournalCorruptError(f"entry 1 ({first.type}) holds terms that cannot be read: {error}") from None
    return recorded


def _terms(run_id: str, recorded: dict[str, Any] | None) -> ForkTerms | None:
    if recorded is None:
        return None
    policies = {name: ToolPolicy(policy) for name, policy in recorded["policies"].items()}
    intervention = _OPAQUE.decode(json.dumps(recorded["intervention"]), f"the intervention of run {run_id!r}")
    return ForkTerms(**(recorded | {"policies": policies, "intervention": intervention}))
