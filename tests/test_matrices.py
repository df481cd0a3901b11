import json
from typing import Any

from satay.divergences import CallStatus, Cause
from satay.matrices import RUNS_PER_TABLE, ComparisonMatrix
from satay.model import EntryType
from satay.phrases import MAX_SHOWN_CALLS
from satay.tables import WIDTH
from tests.books import Book, compare, compare_many, sceptical_fork, source, usage


def variant(run_id: str, draft: str, **options: Any) -> Book:
    fork = source().fork(run_id, 7, **options)
    fork.task("draft", draft, {"topic": "acme"}, usage=usage(0.03))
    return fork


def words(matrix: ComparisonMatrix, call: str) -> list[str | None]:
    (row,) = [row for row in matrix.rows if call == str(row.identity)]
    return [None if cell is None else cell.status.value for cell in row.cells]


def test_the_first_run_is_compared_with_each_other_one() -> None:
    matrix = compare_many(source(), sceptical_fork(), source())

    assert compare(source(), sceptical_fork()) == matrix.pairs[0]
    assert ["different", "replayed"] == words(matrix, "draft:0")
    assert ["source", "sceptic", "source"] == [run.run_id for run in matrix.runs]
    assert [Cause.INPUT, None] == [pair.cause for pair in matrix.pairs]


def test_every_call_of_any_run_has_a_row_where_it_occurs() -> None:
    first, second = variant("first", "a"), variant("second", "b")
    first.task("send", "sent")
    second.task("check", "ok")

    matrix = compare_many(source(), first, second)

    names = [str(row.identity) for row in matrix.rows]
    assert ["plan:0", "research:0", "research:1", "draft:0"] == names[:4]
    assert {"send:0", "check:0"} == set(names[4:])
    assert ["only_other", None] == words(matrix, "send:0")
    assert [None, "only_other"] == words(matrix, "check:0")
    assert [row.reference is None for row in matrix.rows] == [False] * 4 + [True] * 2


def test_a_matrix_diverges_where_one_run_does() -> None:
    assert not compare_many(source(), source(), source()).has_divergence
    assert compare_many(source(), source(), source()).is_same
    assert compare_many(source(), source(), sceptical_fork()).has_divergence
    assert not compare_many(source(), source(), Book("a")).is_same


def test_the_report_names_each_run_by_a_number() -> None:
    lines = str(compare_many(source(), sceptical_fork(), variant("kind", "friendly").finish("friendly"))).splitlines()

    assert ["1", "source", "completed", "9.0", "s", "0.091", "0.091", "(reference)"] == lines[2].split()
    assert ["2", "sceptic", "completed", "4.0", "s", "0.081", "0.04", "draft:0", "input"] == lines[3].split()
    assert ["3", "kind", "completed", "4.0", "s", "0.071", "0.03", "draft:0", "answer"] == lines[4].split()
    (row,) = [line for line in lines if line.startswith("draft:0")]
    assert ["draft:0", "'plain'", "different", "different"] == row.split()
    assert "Run 3 parts at draft:0: with the same input, it gave another result." in lines
    assert "Cause: answer: the same call, with the same arguments, was answered differently." in lines
    assert "Result of run 3" in lines
    assert "kind: 3 of 4 calls reused; saved 0.041 and 3.0 s; spent 0.03 itself" in lines


def test_the_report_says_how_calls_out_of_the_ordinary_were_answered() -> None:
    blocked, overridden, reused, kept = (source().fork(name, 7) for name in ("w", "x", "y", "z"))
    blocked.add(EntryType.TASK_BLOCKED, call=blocked.schedule("draft"), refusal={"reason": "no"})
    overridden.complete(overridden.schedule("draft"), "given", override=8)
    reused.complete(reused.schedule("draft"), "plain", reused_from="source", reused_seq=9)
    kept.complete(kept.schedule("draft"), "plain", kept=8)
    missing = source().fork("missing", 7).finish()

    lines = str(compare_many(source(), blocked, overridden, reused, kept, missing)).splitlines()

    (row,) = [line for line in lines if line.startswith("draft:0")]
    assert ["draft:0", "'plain'", "blocked", "overridden", "reused", "kept", "missing"] == row.split()


def test_the_report_fits_its_width_with_many_runs_and_long_names() -> None:
    books = [variant(f"run-{'x' * 90}-{number}", "y" * 200).finish() for number in range(RUNS_PER_TABLE * 2 + 1)]
    for book in books:
        book.workflow = "w" * 90
        book.task("z" * 80, "last")

    text = str(compare_many(source(), *books))

    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert 3 == text.count("\nplan:0")
    assert "12" in text


def test_the_report_of_many_calls_shows_those_around_the_first_divergence() -> None:
    books = Book("a"), Book("b"), Book("c")
    for book in books:
        for index in range(MAX_SHOWN_CALLS * 2):
            book.task("page", -1 if book is books[2] and index == 300 else index)

    text = str(compare_many(*books))

    assert " … 280 calls before these, none of which differs" in text
    assert "page:300" in text
    assert "page:279 " not in text


def test_the_report_of_runs_without_calls_says_so() -> None:
    assert "No run made a durable call." in str(compare_many(Book("a"), Book("b"), Book("c")))


def test_the_report_lists_stale_calls() -> None:
    stale = [{"call": f"page:{number}", "seq": number, "path": "$.topic"} for number in range(12)]

    text = str(compare_many(source(), variant("b", "x", stale_calls=stale, stale_count=20), source()))

    assert "Inherited by b, though the arguments would differ now\n  ! page:0: first at $.topic\n" in text
    assert "  … and 10 more calls" in text


def test_a_matrix_is_json() -> None:
    data = json.loads(json.dumps(compare_many(source(), sceptical_fork(), variant("kind", "x")).to_dict()))

    assert ["source", "sceptic", "kind"] == [run["run_id"] for run in data["runs"]]
    assert ["different", "different"] == [cell["status"] for cell in data["calls"][3]["cells"]]
    assert "completed" == data["calls"][3]["reference"]["state"]
    assert ["input", "answer"] == [pair["cause"] for pair in data["pairs"]]
    assert ("source", "kind") == (data["pairs"][1]["one"], data["pairs"][1]["other"])
    assert "calls" not in data["pairs"][0]
    assert data["has_divergence"]
    assert CallStatus.DIFFERENT == data["calls"][3]["cells"][0]["status"]
