"""The constants of a run."""

import json
from decimal import Decimal
from typing import Any

import pytest

import satay
from satay.declarations import value_codec
from satay.effects import ForkTerms, ToolPolicy
from satay.errors import JournalCorruptError
from satay.journal import BLOB_THRESHOLD_BYTES, GENESIS
from satay.model import Entry, EntryType
from satay.origin import Origin, fresh_fork, origin_of, workflow_created
from satay.replay import facts


@satay.workflow(name="origin.story")
async def story(topic: str) -> str:
    return topic


ORIGIN = Origin("root", 2**63 - 1, 1_767_225_600_000_000, '{"topic":"acme"}')


def created(origin: Origin = ORIGIN) -> Entry:
    return workflow_created(story, origin, 7)[0]


def forked(seq: int, run_id: str, intervention: Any = None) -> Entry:
    encoded = None if intervention is None else json.loads(value_codec(Any).encode(intervention, "a value"))
    receipt = json.dumps({"intervention": encoded}, separators=(",", ":"))
    payload = f'{{"run_id":{json.dumps(run_id)},"source_id":"source","receipt":{receipt}}}'
    return Entry(seq, EntryType.RUN_FORKED, 7, payload, GENESIS)


@pytest.mark.parametrize(
    "origin",
    [
        ORIGIN,
        ORIGIN._replace(parent_id="the/parent"),
        ORIGIN._replace(seed=0, input_text="{}"),
        ORIGIN._replace(input_text='{"topic":"\\",\\"input\\":{}"}'),
    ],
)
def test_what_a_run_was_created_with_is_read_back(origin: Origin) -> None:
    assert origin == origin_of("r", [created(origin)], {})


def test_the_first_entry_tells_workflow_and_version_of_the_code() -> None:
    entry = created()

    assert (1, EntryType.WORKFLOW_CREATED, 7, GENESIS) == (entry.seq, entry.type, entry.at, entry.digest)
    assert "origin.story" == facts(entry)["workflow"]
    assert story.code_version == facts(entry)["code_version"]
    assert {"topic": "acme"} == facts(entry)["input"]
    assert "parent" not in facts(entry)


def test_a_large_input_is_read_back_from_its_blob() -> None:
    origin = ORIGIN._replace(input_text=json.dumps({"topic": "x" * BLOB_THRESHOLD_BYTES}))
    entry, blobs = workflow_created(story, origin, 7)

    assert 1 == len(blobs)
    assert len(entry.payload) < 1000
    assert origin == origin_of("r", [entry], {blob.sha256: blob.text for blob in blobs})


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [Entry(1, EntryType.TIMER_FIRED, 0, "{}", GENESIS)],
        [created()._replace(seq=2)],
    ],
)
def test_a_journal_that_does_not_begin_with_its_creation_is_damaged(entries: list[Entry]) -> None:
    with pytest.raises(JournalCorruptError, match="the journal of run 'r' does not begin with its creation"):
        origin_of("r", entries, {})


def terms(intervention: Any = None) -> ForkTerms:
    policies = {"email.send": ToolPolicy.BLOCK, "input": ToolPolicy.LIVE, "*": ToolPolicy.AUTO}
    return ForkTerms("fork", "source", 17, "before the call draft:2", "ab12", policies, intervention)


def test_a_run_that_no_fork_has_to_do_with_has_no_terms() -> None:
    assert origin_of("r", [created()], {}).terms is None
    assert "terms" not in facts(created())


INTERVENTIONS = [
    None,
    "be sceptical",
    {"n": 1},
    (1, 2),
    Decimal("1.5"),
    0,
    False,
    "",
    {"n": 1, "input": {"topic": "x"}},
]


@pytest.mark.parametrize("intervention", INTERVENTIONS)
def test_the_terms_of_a_fork_are_read_back_as_they_were_given(intervention: Any) -> None:
    origin = ORIGIN._replace(terms=terms(intervention))
    read = origin_of("fork", [created(origin)], {})

    assert origin == read
    assert read.terms is not None
    assert type(intervention) is type(read.terms.intervention)
    assert ToolPolicy.BLOCK is read.terms.policies["email.send"]


def test_terms_do_not_come_between_a_large_input_and_its_blob() -> None:
    origin = ORIGIN._replace(terms=terms(), input_text=json.dumps({"topic": "x" * BLOB_THRESHOLD_BYTES}))
    entry, blobs = workflow_created(story, origin, 7)

    assert origin == origin_of("r", [entry], {blob.sha256: blob.text for blob in blobs})


def test_a_fork_is_fresh_until_something_happens_in_it() -> None:
    kept = Entry(3, EntryType.OUTCOME_KEPT, 7, '{"call":2}', GENESIS)
    resumed = Entry(4, EntryType.WORKFLOW_RESUMED, 7, "{}", GENESIS)
    entries = [created(), forked(2, "fork")]

    assert entries[1] is fresh_fork(entries)
    assert entries[1] is fresh_fork([*entries, kept])
    assert fresh_fork([*entries, kept, resumed]) is None
    assert fresh_fork([created()]) is None
