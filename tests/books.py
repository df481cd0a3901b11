"""Journals written by hand, of runs that can be compared."""

import hashlib
import json
from typing import Any

from satay.comparison import compare_all, compare_readings
from satay.divergences import CallComparison
from satay.failures import encode_failure
from satay.histories import Reading, RunHistory
from satay.journal import GENESIS, chain_digest
from satay.matrices import ComparisonMatrix
from satay.model import Entry, EntryType, RunRecord, RunStatus
from satay.reports import Comparison

START = 1_767_225_600_000_000
SECOND = 1_000_000


class Book:
    """A journal in the making. Every entry comes one second after the one before it, but for `pass_seconds`."""

    def __init__(self, run_id: str = "a", *, input: Any = None, root: str | None = None, at: int = START) -> None:
        self.run_id = run_id
        self.root = root or run_id
        self.at = at
        self.entries: list[Entry] = []
        self.blobs: dict[str, str] = {}
        self.status = RunStatus.RUNNING
        self.workflow = "brief"
        self.code_version = "v1"
        self.forked_from: str | None = None
        self.fork_seq: int | None = None
        self._occurrences: dict[str, int] = {}
        self._create({"topic": "acme"} if input is None else input)

    def _create(self, input: Any) -> None:
        facts = {"workflow": "brief", "code_version": "v1", "root": self.root, "seed": 7, "started_at": START}
        self.add(EntryType.WORKFLOW_CREATED, **facts, input=input)

    def add(self, type: str, **members: Any) -> int:
        payload = json.dumps(members, separators=(",", ":"))
        if not self.entries:
            self.entries.append(Entry(1, type, self.at, payload, GENESIS))
            return 1
        self.at += SECOND
        digest = chain_digest(self.entries[-1].digest, type, self.at, payload)
        self.entries.append(Entry(len(self.entries) + 1, type, self.at, payload, digest))
        return len(self.entries)

    def pass_seconds(self, seconds: int) -> None:
        self.at += (seconds - 1) * SECOND

    def next_occurrence(self, name: str) -> int:
        self._occurrences[name] = self._occurrences.get(name, -1) + 1
        return self._occurrences[name]

    def schedule(self, name: str, input: Any = None, key: str | None = None) -> int:
        index = {"ordinal": self.next_occurrence(name)} if key is None else {"key": key}
        return self.add(EntryType.TASK_SCHEDULED, task=name, **index, input={} if input is None else input)

    def complete(self, call: int, result: Any, **facts: Any) -> int:
        return self.add(EntryType.TASK_COMPLETED, call=call, **facts, result=result)

    def fail(self, call: int, error: BaseException, **facts: Any) -> int:
        return self.add(EntryType.TASK_FAILED, call=call, **facts, error=json.loads(encode_failure(error)))

    def task(self, name: str, result: Any, input: Any = None, key: str | None = None, **facts: Any) -> int:
        return self.complete(self.schedule(name, input, key), result, **facts)

    def finish(self, result: Any = None) -> "Book":
        self.add(EntryType.WORKFLOW_COMPLETED, result=result)
        self.status = RunStatus.COMPLETED
        return self

    def break_down(self, error: BaseException) -> "Book":
        self.add(EntryType.WORKFLOW_FAILED, error=json.loads(encode_failure(error)))
        self.status = RunStatus.FAILED
        return self

    def cancel(self) -> "Book":
        self.add(EntryType.WORKFLOW_CANCELLED)
        self.status = RunStatus.CANCELLED
        return self

    def keep_in_blob(self, text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.blobs[digest] = text
        return digest

    def fork(self, run_id: str, cut: int, /, *, input: Any = None, intervention: Any = None, **receipt: Any) -> "Book":
        """A fork made a day later, with the entries 2 to `cut` of this run."""
        book = Book(run_id, input=input, root=self.root, at=self.entries[-1].at + 86_400 * SECOND)
        book.entries += self.entries[1:cut]
        book.blobs = dict(self.blobs)
        book.forked_from, book.fork_seq = self.run_id, cut
        for entry in book.entries:
            if entry.type == EntryType.TASK_SCHEDULED:
                book.next_occurrence(json.loads(entry.payload)["task"])
        receipt |= {"input_overridden": input is not None, "intervention": intervention}
        book.add(EntryType.RUN_FORKED, run_id=run_id, source_id=self.run_id, receipt=receipt)
        return book

    def history(self) -> RunHistory:
        at = self.entries[0].at
        record = RunRecord(
            key=1,
            run_id=self.run_id,
            workflow=self.workflow,
            status=self.status,
            created_at=at,
            updated_at=self.at,
            wake_at=None,
            owner=None,
            epoch=1,
            parent_id=None,
            forked_from=self.forked_from,
            fork_seq=self.fork_seq,
            start_key=None,
            code_version=self.code_version,
        )
        return RunHistory(record, self.entries, self.blobs)


def compare(one: Book, other: Book) -> Comparison:
    return compare_readings(Reading(one.history()), Reading(other.history()))


def statuses(comparison: Comparison) -> dict[str, str]:
    return {str(call.identity): call.status.value for call in comparison.calls}


def compare_many(*books: Book) -> ComparisonMatrix:
    reference, *others = [Reading(book.history()) for book in books]
    return compare_all(reference, others)


def only_call(comparison: Comparison) -> CallComparison:
    (call,) = comparison.calls
    return call


def usage(cost: float, model: str = "m1") -> list[dict[str, Any]]:
    return [{"model": model, "input_tokens": 100, "output_tokens": 10, "cost": cost}]


def source() -> Book:
    """plan, two calls of research, draft: entries 2 to 9."""
    book = Book("source")
    book.task("plan", ["q1", "q2"], usage=usage(0.001))
    book.task("research", {"text": "one"}, {"question": "q1"}, usage=usage(0.02))
    book.task("research", {"text": "two"}, {"question": "q2"}, usage=usage(0.02))
    book.task("draft", "plain", {"topic": "acme"}, usage=usage(0.05))
    return book.finish("plain")


def sceptical_fork() -> Book:
    """A fork of `source()` before its draft."""
    book = source().fork("sceptic", 7, input={"topic": "acme corp"})
    book.task("draft", "sceptical", {"topic": "acme corp"}, usage=usage(0.04))
    return book.finish("sceptical")
