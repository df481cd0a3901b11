"""What a user types, as values."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import satay
from satay.argument_values import decode_input, parse_call, parse_json, parse_pairs, parse_steps
from satay.errors import InvalidValueError
from tests.programs.shell import Brief, await_answer, echo, report


@satay.workflow(name="argument_values.deep")
async def deep(options: dict[str, list[int]]) -> None: ...


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "é\n", [1, [2]], {"a": {"b": []}}])
def test_json_is_read_from_an_argument_and_from_a_file(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "value.json"
    file.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")

    assert value == parse_json(json.dumps(value), "X")
    assert value == parse_json(f"@{file}", "X")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("text", "X is no JSON: .*text is written in quotes: '\"text\"'"),
        ("", "X is no JSON"),
        ("NaN", "NaN is no number in JSON"),
        ("-Infinity", "-Infinity is no number in JSON"),
        ("{'a': 1}", r"X is no JSON: .*\)$"),
        ("it's", "text is written in quotes: '\"it'\"'\"'s\"'"),
        ("[" * 100_000, "X is nested too deeply; a value has at most 200 levels"),
        ("@nowhere", "X cannot be read from 'nowhere': No such file"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(InvalidValueError, match=complaint):
        parse_json(text, "X")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InvalidValueError, match="it is no UTF-8 text"):
        parse_json(f"@{tmp_path / 'image'}", "X")


def test_a_standard_input_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00"), encoding="utf-8"))

    with pytest.raises(InvalidValueError, match="X cannot be read from the standard input: it is no UTF-8 text"):
        parse_json("-", "X")


def test_data_becomes_what_the_workflow_declares() -> None:
    assert Brief("a", "b") == decode_input(report, {"topic": "a", "style": "b"}, "X")
    assert {"x": [1]} == decode_input(deep, {"x": [1]}, "X")
    assert {"$satay": "dataclass", "type": "x:Y"} == decode_input(echo, {"$satay": "dataclass", "type": "x:Y"}, "X")


@pytest.mark.parametrize(
    ("workflow", "data", "complaint"),
    [
        (report, {"topic": "a"}, r"^X cannot be used: .* at \$\.style"),
        (report, "a", r"at \$"),
        (deep, {"x": ["one"]}, r"at \$\.x\[0\]"),
        (await_answer, None, "takes no input; leave X away"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_its_path(
    workflow: satay.Workflow[..., Any], data: Any, complaint: str
) -> None:
    with pytest.raises(InvalidValueError, match=complaint):
        decode_input(workflow, data, "X")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("draft", ("draft", 0)),
        ("draft:2", ("draft", 2)),
        ("email.send[page-7]", ("email.send", "page-7")),
        ("draft[a:1]", ("draft", "a:1")),
        ("odd:name:3", ("odd:name", 3)),
        ("draft[]", ("draft", "")),
        (f"draft:{'1' * 5000}", (f"draft:{'1' * 5000}", 0)),
    ],
)
def test_a_call_is_named_as_it_is_shown(text: str, expected: tuple[str, int | str]) -> None:
    assert expected == parse_call(text)


def test_no_text_names_no_call() -> None:
    with pytest.raises(InvalidValueError, match="names no call"):
        parse_call("")


def test_pairs_are_a_name_and_a_value() -> None:
    assert {"a": "b=c", "*": ""} == parse_pairs(["a=b=c", "*="], "--x")
    assert {"a[b=c]": "d", "e": "[f]=g\n", "h[i": "j"} == parse_pairs(["a[b=c]=d", "e=[f]=g\n", "h[i=j"], "--x")


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a=1", "a=2"]])
def test_what_is_no_pair_is_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="--x"):
        parse_pairs(texts, "--x")


def test_steps_are_one_number_or_two() -> None:
    assert (7, (7, 9), (0, 1)) == (parse_steps("7"), parse_steps("7, 9"), parse_steps("0,1"))


@pytest.mark.parametrize("text", ["", "a", "1,2,3", "-1", "1,", "٣", "1.5", "1" * 5000])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="is no step; write one number"):
        parse_steps(text)
