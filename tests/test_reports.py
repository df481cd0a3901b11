import json
from collections.abc import Mapping
from typing import Any

from satay.differences import MAX_DIFFERENCES
from satay.model import EntryType
from satay.phrases import MAX_SHOWN_CALLS, MAX_SHOWN_DIFFERENCES
from tests.books import Book, compare, sceptical_fork, source, usage


def test_the_report_of_a_fork_says_what_differs_and_what_was_saved() -> None:
    lines = str(compare(source(), sceptical_fork())).splitlines()

    assert "one    source: brief, completed in 9.0 s, 4 calls, 440 tokens, cost 0.091" == lines[0]
    assert "       forked from source after entry 7 with another input" == lines[2]
    assert "The runs part at draft:0: with another input, it gave another result." in lines
    assert "Cause: input: the input of the workflow differs at $.topic." in lines
    assert "  ~ $.topic: 'acme' → 'acme corp'" in lines
    assert "  ~ $: 'plain' → 'sceptical'" in lines
    assert "3 of 4 calls reused; saved 0.041 and 3.0 s; spent 0.04 itself" == lines[-1]
    (row,) = [line for line in lines if line.startswith("draft:0")]
    assert ["draft:0", "different", "'plain'", "→", "'sceptical'", "1.0", "s", "0.05", "→", "0.04"] == row.split()


def test_the_report_of_two_forks_names_what_each_saved() -> None:
    one, other = source().fork("one", 3), source().fork("other", 1)

    lines = str(compare(one, other)).splitlines()

    saved = "one: 1 of 1 call reused; saved 0.001 and 1.0 s; spent 0 itself"
    assert [saved, "other: 0 of 0 calls reused; saved nothing"] == lines[-2:]


def test_the_report_says_how_calls_were_answered_and_what_the_fork_paid_itself() -> None:
    fork = source().fork("other", 7)
    kept = fork.schedule("draft")
    fork.complete(kept, "plain", kept=8, usage=usage(0.05))
    fork.complete(fork.schedule("send"), "sent", reused_from="source", reused_seq=9)
    fork.add(EntryType.TASK_BLOCKED, call=fork.schedule("pay"), refusal={"reason": "the policy\x1b of pay"})
    none = Book("none")

    lines = str(compare(source(), fork)).splitlines()

    rows = {line.split()[0]: line.split()[1] for line in lines if ":0 " in line}
    assert {"plan:0": "replayed", "research:0": "replayed", "draft:0": "kept"}.items() <= rows.items()
    assert any("(blocked: the policy\\x1b of pay)" in line for line in lines)
    assert "5 (1 kept, 1 by policy) of 6 calls reused; saved 0.091 and 3.0 s; spent 0 itself" == lines[-1]
    assert "reused" not in str(compare(none, none))


def test_the_report_of_what_was_kept_right_away_saves_no_time() -> None:
    fork = Book("a").fork("b", 1)
    fork.complete(fork.schedule("draft"), "x", kept=2, usage=usage(0.05))

    assert str(compare(Book("a"), fork)).endswith("\n1 (1 kept) of 1 call reused; saved 0.05; spent 0 itself")


def test_the_report_lists_stale_calls() -> None:
    fork = source().fork("b", 7, stale_calls=[{"call": "plan:0", "seq": 2, "path": "$.topic"}], stale_count=1)

    text = str(compare(source(), fork))

    assert "Inherited by b, though the arguments would differ now\n  ! plan:0: first at $.topic\n\n" in text


def test_the_report_escapes_what_users_recorded() -> None:
    one, other = Book("a"), Book("b")
    one.workflow = "evil\x1b[2J"
    one.task("na\nme", "\x1b[31mred", {"k\x07": "\x1b"})
    other.fail(other.schedule("na\nme"), ValueError("\x1b[31mred\nsecond line"))

    assert all(line.isprintable() for line in str(compare(one, other)).splitlines())
    assert r"na\nme:0" in str(compare(one, other))


def test_the_report_of_many_calls_shows_those_around_the_first_divergence() -> None:
    one, other = Book("a"), Book("b")
    for index in range(MAX_SHOWN_CALLS * 2):
        one.task("page", index)
        other.task("page", index if index < 300 else -1)

    text = str(compare(one, other))

    assert " … 280 calls before these, none of which differs" in text
    assert "page:300" in text
    assert "page:279 " not in text
    assert MAX_SHOWN_CALLS * 2 > text.count("page:")


def test_the_report_shows_a_few_differences_and_counts_the_others() -> None:
    one = Book("a").finish(list(range(MAX_SHOWN_DIFFERENCES + 3)))
    other = Book("b").finish([-1] * (MAX_SHOWN_DIFFERENCES + 3))
    many = Book("c").finish([0] * (MAX_DIFFERENCES + 1))
    more = Book("d").finish([1] * (MAX_DIFFERENCES + 1))

    assert "  … and 3 more differences" in str(compare(one, other))
    assert "  … and at least 90 more differences" in str(compare(many, more))


def test_the_report_covers_every_way_to_end() -> None:
    one, other = Book("a"), Book("b")
    other.code_version = "v2"
    for book in (one, other):
        book.add(EntryType.TIMER_FIRED, call=book.add(EntryType.TIMER_CREATED, timer="timer", ordinal=0, due=0))
    wait = one.add(EntryType.EVENT_WAIT_STARTED, event="go", ordinal=0, match=None, due=1)
    one.add(EntryType.EVENT_WAIT_TIMED_OUT, call=wait)
    other.add(EntryType.EVENT_WAIT_STARTED, event="go", ordinal=0, match=None, due=1)
    one.fail(one.schedule("shaky"), ValueError("x"))
    other.add(EntryType.CALL_CANCELLED, call=other.schedule("shaky"))

    text = str(compare(one, other))

    assert "(fired)" in text
    assert "(timed out) → (no outcome)" in text
    assert "ValueError: x → (cancelled)" in text
    assert "The runs part at go:0: it timed out in a and has no outcome in b." in text
    assert "code   v1 → v2" in text
    assert "reused" not in text


def test_the_report_of_runs_alike_says_so() -> None:
    assert "No call differs." in str(compare(source(), source()))
    assert "No call differs so far." in str(compare(Book("a"), Book("b")))
    assert "Neither run made a durable call." in str(compare(Book("a"), Book("b")))


def test_the_report_shows_the_interventions_of_forks() -> None:
    one, other = source().fork("one", 7, intervention={"model": "m2"}), source().fork("other", 7)

    assert "intervention  {'model': 'm2'} → None" in str(compare(one, other))


def test_the_report_says_nothing_of_the_result_while_a_run_goes_on() -> None:
    assert "of the run" not in str(compare(Book("a").finish(1), Book("b")))


def test_a_recorded_failure_that_cannot_be_read_is_reported_all_the_same() -> None:
    one, other = Book("a"), Book("b")
    one.task("shaky", 1)
    other.add(EntryType.TASK_FAILED, call=other.schedule("shaky"), error=[])

    assert "1 → unknown error: no error" in str(compare(one, other))


def test_a_comparison_is_json() -> None:
    comparison = compare(source(), sceptical_fork())
    data: Mapping[str, Any] = json.loads(json.dumps(comparison.to_dict()))

    assert "draft:0" == data["first_divergence"]
    assert ("input", "the input of the workflow differs at $.topic") == (data["cause"], data["explanation"])
    assert (False, True) == (data["is_same"], data["has_divergence"])
    assert ["replayed", "replayed", "replayed", "different"] == [call["status"] for call in data["calls"]]
    assert {"path": "$.topic", "kind": "changed", "one": "acme", "other": "acme corp"} == data["input_differences"][0]
    assert 3 == data["other"]["reused"]["calls"]
    assert "2026-01-01T00:00:00+00:00" == data["one"]["created_at"]
    assert ["m1"] == data["calls"][0]["one"]["usage"]["models"]
    assert "completed" == data["calls"][0]["one"]["state"]


def test_a_side_that_is_missing_is_left_out_of_json() -> None:
    comparison = compare(Book("a").finish({}), Book("b").finish({"x": None}))

    assert [{"path": "$.x", "kind": "added", "other": None}] == comparison.to_dict()["result_differences"]
