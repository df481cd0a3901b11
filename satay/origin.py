"""The constants of a run, as the first entries of its journal give them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from satay.codec import json_quote, value_codec
from satay.definitions import Workflow
from satay.errors import JournalCorruptError
from satay.journal import GENESIS, Blob
from satay.model import Entry, EntryType
from satay.recorder import first_entry
from satay.replay import blob_reference, facts, value_text

_OPAQUE = value_codec(Any)


class Origin(NamedTuple):
    """What does not change in the life of a run.

    Forks inherit it, but for the input, the intervention and, where they inherit nothing but the creation, the start.

    `root_run_id` is the run at the beginning of the lineage of forks; idempotency keys are derived from it.
    `started_at` is where the body's time begins, in microseconds since the epoch.
    """

    root_run_id: str
    seed: int
    started_at: int
    input_text: str
    parent_id: str | None = None
    intervention: Any = None


def workflow_created(definition: Workflow[..., Any], origin: Origin, at: int) -> tuple[Entry, list[Blob]]:
    """The first entry of a run."""
    parent = "" if origin.parent_id is None else f',"parent":{json_quote(origin.parent_id)}'
    head = (
        f'"workflow":{json_quote(definition.name)},"code_version":{json_quote(definition.code_version)},'
        f'"root":{json_quote(origin.root_run_id)},"seed":{origin.seed},"started_at":{origin.started_at}{parent}'
    )
    return first_entry(EntryType.WORKFLOW_CREATED, at, head, origin.input_text, GENESIS)


def origin_of(run_id: str, entries: Sequence[Entry], blobs: Mapping[str, str]) -> Origin:
    """Read the constants back. Raises `JournalCorruptError` where the first entry is not what it must be."""
    first = entries[0] if entries else None
    if first is None or first.seq != 1 or first.type != EntryType.WORKFLOW_CREATED:
        raise JournalCorruptError(f"the journal of run {run_id!r} does not begin with its creation")
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
        intervention=_intervention(run_id, entries, blobs),
    )


def own_fork(run_id: str, entries: Sequence[Entry]) -> Entry | None:
    """The entry that made this run a fork; an inherited one belongs to an ancestor."""
    for entry in entries:
        if entry.type == EntryType.RUN_FORKED and facts(entry)["run_id"] == run_id:
            return entry
    return None


def _intervention(run_id: str, entries: Sequence[Entry], blobs: Mapping[str, str]) -> Any:
    entry = own_fork(run_id, entries)
    if entry is None:
        return None
    receipt = value_text(entry) or blobs[blob_reference(entry) or ""]
    recorded = json.loads(receipt)["intervention"]
    return None if recorded is None else _OPAQUE.decode(json.dumps(recorded), f"the intervention of run {run_id!r}")
