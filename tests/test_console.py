"""How a command answers: text or JSON, and its errors in the same form."""

import json
import sys
from io import BytesIO, TextIOWrapper

import pytest
from rich.text import Text

from satay.console import Output, report_error, report_problem
from satay.errors import AmbiguousRunError, ModuleImportError, RunNotFoundError
from satay.exits import ExitCode

NASTY = "\x1b[31m\u202e\n"


def test_people_get_text_and_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=False).show({"a": 1}, lambda: Text("one   "))
    Output(is_json=True).show({"a": NASTY}, lambda: Text("one"))
    text, data = capsys.readouterr().out.splitlines()

    assert "one" == text
    assert {"a": NASTY} == json.loads(data)
    assert data.isascii()
    assert data.isprintable()


def test_a_value_is_written_as_json_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=False).write_value({"text": "é\x9b\u202e", "list": [1]})
    lines = capsys.readouterr().out.splitlines()

    assert ["{", r'  "text": "é\x9b\u202e",', '  "list": [', "    1", "  ]", "}"] == lines


def test_stored_json_is_written_byte_for_byte_whatever_the_encoding_of_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, "ascii", errors="backslashreplace"))
    Output(is_json=True).write_stored('{"a":"é →"}')

    assert '{"a":"é →"}\n'.encode() == written.getvalue()


def test_programs_are_not_told_what_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=True).tell("run r")
    Output(is_json=False).tell(f"run {NASTY}")
    captured = capsys.readouterr()

    assert ("", "run \\x1b[31m\\u202e\\n\n") == (captured.out, captured.err)


def test_rows_that_change_are_written_once_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    with Output(is_json=True).changing() as show:
        show([{"id": 2}, {"id": 1}], Text)
        show([{"id": 2}, {"id": 1}], Text)
        show([{"id": 3}, {"id": 2, "is_done": True}, {"id": 1}], Text)
    written = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [{"id": 1}, {"id": 2}, {"id": 2, "is_done": True}, {"id": 3}] == written


def test_an_error_is_told_with_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    code = report_error(AmbiguousRunError("which?", candidates=["a", "b"]), is_json=True)
    told = json.loads(capsys.readouterr().err)

    assert ExitCode.USAGE is code
    assert {
        "error": "AmbiguousRunError",
        "message": "which?",
        "exit_code": 2,
        "candidates": ["a", "b"],
    } == told


def test_an_error_is_told_to_people_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    code = report_error(RunNotFoundError(f"no run {NASTY}", run_id=NASTY), is_json=False)

    assert ExitCode.NOT_FOUND is code
    assert "satay: no run \\x1b[31m\\u202e\\n\n" == capsys.readouterr().err


def test_where_a_module_failed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    error = ModuleImportError("it cannot be imported")
    error.__cause__ = ZeroDivisionError("division")
    report_error(error, is_json=False)
    to_people = capsys.readouterr().err
    report_error(error, is_json=True)

    assert "ZeroDivisionError: division" in to_people
    assert to_people.endswith("satay: it cannot be imported\n")
    assert "it cannot be imported" == json.loads(capsys.readouterr().err)["message"]


def test_a_problem_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report_problem("UsageError", "first\nsecond", ExitCode.USAGE, is_json=False, facts={})

    assert "satay: first\\nsecond\n" == capsys.readouterr().err
