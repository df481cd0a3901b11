import asyncio
import json
import pathlib
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from satay import failures
from satay.errors import (
    ChildWorkflowError,
    DecodeError,
    DuplicateKeyError,
    EncodeError,
    EventTimeoutError,
    NondeterminismError,
    TaskCrashedError,
    TaskFailedError,
    TaskTimeoutError,
    WorkflowFailedError,
)
from satay.failures import (
    Failure,
    encode_failure,
    is_made_of,
    parse_failure,
    rebuild,
    rebuild_or_wrap,
    rebuilt_child_failure,
    rebuilt_task_failure,
    rebuilt_workflow_failure,
)

CALLS: list[str] = []


class CodedError(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        CALLS.append("init")
        super().__init__(f"{code}:{detail}")
        self.code = code
        self.detail = detail


class PickyError(Exception):
    def __new__(cls, *args: object) -> "PickyError":
        CALLS.append("new")
        return super().__new__(cls, *args)


class SlottedError(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__("slotted")
        self.code = code


class GuardedError(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        CALLS.append(name)
        super().__setattr__(name, value)


class Panic(BaseException):
    """What an extension in another language raises where it gave up."""


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class CountingError(Exception):
    """Its text depends on the process, so it cannot be rebuilt faithfully."""

    texts = iter(map(str, range(1000)))

    def __str__(self) -> str:
        return next(self.texts)


class DomainFileError(FileNotFoundError):
    pass


class BatchError(ExceptionGroup[Exception]):
    pass


class Model(BaseModel):
    x: int


def through(error: BaseException) -> BaseException | None:
    """What is left of an exception after it was recorded, once it is known that the record is strict JSON."""
    text = encode_failure(error)
    text.encode()
    json.loads(text, parse_constant=pytest.fail)
    return rebuild(parse_failure(text))


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 1),
        KeyError("k"),
        ZeroDivisionError(),
        RuntimeError("e\u0301 \U0001f600"),
        FileNotFoundError(2, "No such file", "/x"),
        OSError("just text"),
        OSError(2, "No such file", "/a", None, "/b"),
        DomainFileError(2, "No such file", "/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        StopIteration(5),
        TimeoutError(),
        AssertionError({"a": (1, 2)}),
        EventTimeoutError("no event 'paid' came within 5 seconds"),
        EncodeError("it cannot be recorded", path="$.x"),
        TaskTimeoutError("too slow", error_type="a:B", error_message="m"),
        TaskCrashedError("crashed"),
        TaskFailedError("failed", error_type="a:B", error_message="m", error_traceback="t"),
        ChildWorkflowError("failed", run_id="r1"),
        DuplicateKeyError("twice", keys=["a"]),
        NondeterminismError("other", run_id="r", position=1, recorded="a", issued=None),
    ],
)
def test_an_exception_comes_back_with_its_type_text_and_attributes(error: Exception) -> None:
    again = through(raised(error))

    assert type(error) is type(again)
    assert (str(error), error.args, error.__dict__) == (str(again), again.args, again.__dict__)
    assert getattr(error, "filename", None) == getattr(again, "filename", None)


def test_an_exception_with_its_own_init_is_rebuilt_without_calling_it() -> None:
    error = CodedError(7, detail="full")
    CALLS.clear()
    again = through(error)

    assert isinstance(again, CodedError)
    assert (7, "full", "7:full") == (again.code, again.detail, str(again))
    assert [] == CALLS


@pytest.mark.parametrize("error", [PickyError("x"), GuardedError("x")])
def test_no_code_of_the_class_runs_while_it_is_rebuilt(error: Exception) -> None:
    error.__dict__["fact"] = 1
    CALLS.clear()
    again = through(error)

    assert type(error) is type(again)
    assert [] == CALLS


def test_slots_come_back() -> None:
    again = through(SlottedError(5))

    assert isinstance(again, SlottedError)
    assert 5 == again.code


@pytest.mark.parametrize("error", [ValueError(object()), CodedError(1, detail=object())])  # type: ignore[arg-type]  # on purpose
def test_an_exception_that_holds_what_cannot_be_recorded_is_not_rebuilt_by_halves(error: Exception) -> None:
    failure = parse_failure(encode_failure(error))

    assert rebuild(failure) is None
    assert (f"{type(error).__module__}:{type(error).__qualname__}", str(error)) == (failure.type, failure.message)


def test_what_cannot_be_rebuilt_is_carried_by_a_task_failed_error() -> None:
    failure = parse_failure(encode_failure(raised(ValueError(object()))))
    wrapped = rebuild_or_wrap(failure)

    assert isinstance(wrapped, TaskFailedError)
    assert ("builtins:ValueError", failure.message) == (wrapped.error_type, wrapped.error_message)
    assert "Traceback" in wrapped.error_traceback


def test_a_failed_call_raises_the_exception_itself_or_an_error_that_names_the_call() -> None:
    plain, odd = encode_failure(ValueError("x")), encode_failure(CodedError(1, detail=object()))  # type: ignore[arg-type]  # on purpose
    of_task, of_child = rebuilt_task_failure(odd, "fetch"), rebuilt_child_failure(odd, "order", "r1")
    of_run = rebuilt_workflow_failure(odd, "r1")

    assert isinstance(rebuilt_task_failure(plain, "fetch"), ValueError)
    assert isinstance(rebuilt_child_failure(plain, "order", "r1"), ValueError)
    assert isinstance(rebuilt_workflow_failure(plain, "r1"), ValueError)
    assert isinstance(of_run, WorkflowFailedError)
    assert str(of_run).startswith("run 'r1' failed with CodedError: 1:")
    assert isinstance(of_task, TaskFailedError)
    assert str(of_task).startswith("task 'fetch' failed with CodedError: 1:")
    assert isinstance(of_child, ChildWorkflowError)
    assert "r1" == of_child.run_id
    assert "no error was recorded" in str(rebuilt_task_failure("{}", "fetch"))


def test_an_exception_class_of_a_function_is_not_rebuilt() -> None:
    class HiddenError(Exception):
        pass

    assert through(HiddenError("x")) is None


def test_an_exception_that_builds_itself_in_another_language_is_not_rebuilt() -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"x": "many"})

    assert through(caught.value) is None


@pytest.mark.parametrize("error", [asyncio.CancelledError("x"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_exception_is_recorded_and_never_rebuilt(error: BaseException) -> None:
    failure = parse_failure(encode_failure(error))

    assert rebuild(failure) is None
    assert isinstance(rebuild_or_wrap(failure), TaskFailedError)


def test_a_text_that_changes_is_not_rebuilt() -> None:
    assert through(CountingError()) is None


@pytest.mark.parametrize(
    "name",
    ["subprocess:Popen", "subprocess.Popen", "builtins:eval", "builtins:int", "this:Zen", "", "builtins:nothing"],
)
def test_a_record_that_names_something_else_is_inert(name: str, tmp_path: pathlib.Path) -> None:
    witness = tmp_path / "x"
    args = f'{{"$satay":"tuple","items":["touch {witness}"]}}'

    assert rebuild(Failure(type=name, message="", args=args, attributes='{"shell":true}')) is None
    assert not witness.exists()
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "args", ["[", "5", '{"$satay":"pickle","data":""}', '{"$satay":"tuple","items":[1,2,3,4,5,6,7]}']
)
def test_damaged_arguments_are_not_rebuilt(args: str) -> None:
    assert rebuild(Failure(type="builtins:UnicodeDecodeError", message="x", args=args, attributes="{}")) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "5", '{"type":"a:B","message":"","cause":5}'])
def test_text_that_records_no_failure_is_a_decode_error(text: str) -> None:
    with pytest.raises(DecodeError):
        parse_failure(text)


def test_a_record_with_a_type_that_is_no_name_is_not_rebuilt() -> None:
    assert rebuild(parse_failure('{"type":5,"message":null,"args":[],"attributes":{}}')) is None


def test_notes_and_the_cause_come_back() -> None:
    error = ValueError("outer")
    error.add_note("while cooking")
    error.__cause__ = KeyError("inner")
    again = through(error)

    assert again is not None
    assert ["while cooking"] == again.__notes__
    assert isinstance(again.__cause__, KeyError)


def test_a_cause_that_leads_back_is_cut() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    again = through(first)

    assert isinstance(again, ValueError)
    assert isinstance(again.__cause__, KeyError)
    assert again.__cause__.__cause__ is None


def test_a_long_chain_is_cut() -> None:
    error: Exception = ValueError(0)
    for number in range(2000):
        outer = ValueError(number)
        outer.__cause__ = error
        error = outer
    depth = 0
    again = through(error)
    while again is not None:
        depth, again = depth + 1, again.__cause__

    assert failures.MAX_CHAIN == depth


@pytest.mark.parametrize("cls", [ExceptionGroup, BatchError])
def test_a_group_comes_back_with_its_members(cls: type[ExceptionGroup[Exception]]) -> None:
    again = through(raised(cls("many", [ValueError(1), cls("inner", [KeyError("k")]), ValueError(object())])))

    assert type(again) is cls
    assert [ValueError, cls, TaskFailedError] == [type(member) for member in again.exceptions]
    assert "many (3 sub-exceptions)" == str(again)


def test_a_group_of_cancellations_is_recorded_and_not_rebuilt() -> None:
    assert through(BaseExceptionGroup("many", [asyncio.CancelledError()])) is None


def test_a_group_that_branches_without_end_is_recorded_in_bounds() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("leaf", [ValueError(1)])
    for _ in range(12):
        group = ExceptionGroup("twice", [group, group])
    text = encode_failure(group)

    assert text.count('"message"') <= failures.MAX_RELATIVES + 1


def test_a_very_long_message_is_shortened_and_its_exception_still_rebuilt() -> None:
    error = raised(ValueError("x" * 1_000_000))
    failure = parse_failure(encode_failure(error))

    assert failure.message.endswith("(shortened, 1000000 characters in all)")
    assert len(failure.message) < failures.MAX_TEXT_CHARACTERS + 100
    assert len(failure.traceback) < failures.MAX_TEXT_CHARACTERS + 100
    assert str(error) == str(rebuild(failure))


def test_an_exception_with_arguments_beyond_the_limit_is_recorded_without_them() -> None:
    failure = parse_failure(encode_failure(ValueError("x" * (failures.MAX_STATE_CHARACTERS + 1))))

    assert failure.args is None
    assert rebuild(failure) is None


def test_a_message_that_cannot_be_had_does_not_hide_the_failure() -> None:
    failure = parse_failure(encode_failure(raised(SilentError())))

    assert failure.type.endswith(":SilentError")
    assert "__str__ of SilentError raised RuntimeError" in failure.message


@pytest.mark.parametrize("kind", [Panic, KeyboardInterrupt, SystemExit])
def test_an_error_whose_text_raises_what_is_no_exception_is_recorded(kind: type[BaseException]) -> None:
    def refuse(self: object) -> str:
        raise kind

    hostile = type("HostileError", (Exception,), {"__str__": refuse, "__repr__": refuse, "__module__": __name__})
    itself = parse_failure(encode_failure(raised(hostile())))
    inside = parse_failure(encode_failure(raised(ValueError(hostile()))))

    assert f"(no message: __str__ of HostileError raised {kind.__name__})" == itself.message
    assert f"(no message: __str__ of ValueError raised {kind.__name__})" == inside.message
    assert "Traceback" in itself.traceback


def test_nul_and_lone_surrogates_are_escaped_in_the_message_and_kept_in_the_exception() -> None:
    error = raised(ValueError("a\0b \ud800"))
    failure = parse_failure(encode_failure(error))

    assert "a\\x00b \\ud800" == failure.message
    assert "\0" not in failure.traceback
    assert str(error) == str(rebuild(failure))


def test_a_recursion_error_is_recorded() -> None:
    def descend() -> None:
        descend()

    with pytest.raises(RecursionError) as caught:
        descend()

    assert isinstance(through(caught.value), RecursionError)


@pytest.mark.parametrize("kind", [LookupError, Panic, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("attribute", ["__cause__", "__notes__", "__dict__", "args", "__reduce__"])
def test_an_exception_that_fights_back_is_recorded_all_the_same(attribute: str, kind: type[BaseException]) -> None:
    def refuse(self: object) -> Any:
        raise kind("leave me alone")

    hostile = type("HostileError", (Exception,), {attribute: property(refuse)})
    failure = parse_failure(encode_failure(hostile("text")))

    assert failure.type.endswith("HostileError")
    assert "text" == failure.message


def test_facts_travel_beside_the_failure() -> None:
    failure = parse_failure(encode_failure(ValueError("x"), facts={"attempt": 3, "will_retry": False}))

    assert {"attempt": 3, "will_retry": False} == failure.facts


@given(st.text(), st.lists(st.integers() | st.floats(allow_nan=False) | st.binary() | st.dates()))
def test_any_exception_with_recordable_arguments_comes_back(text: str, args: list[Any]) -> None:
    error = ValueError(text, *args)
    again = through(error)

    assert isinstance(again, ValueError)
    assert error.args == again.args


# --- the recorded traceback, as a note --------------------------------------------------------------------------------


def test_the_error_of_a_run_shows_the_run_and_the_line_that_raised() -> None:
    error = rebuilt_workflow_failure(encode_failure(raised(ValueError("bad"))), "r1")

    assert 1 == len(error.__notes__)
    assert error.__notes__[0].startswith("run 'r1' failed with this recorded traceback:\nTraceback (most recent call")
    assert "raise error" in error.__notes__[0]


def test_a_body_sees_the_line_of_a_task_or_a_child_that_raised() -> None:
    text = encode_failure(raised(ValueError("bad")))
    of_task, of_child = rebuilt_task_failure(text, "fetch"), rebuilt_child_failure(text, "order", "r1")

    assert of_task.__notes__[0].startswith("task 'fetch' failed with this recorded traceback:\nTraceback")
    assert of_child.__notes__[0].startswith("child workflow 'order', run 'r1', failed with this recorded traceback:\n")


def test_an_error_that_is_recorded_again_has_the_first_traceback_once() -> None:
    error = ValueError("bad")
    error.add_note("while cooking")
    of_task = rebuilt_task_failure(encode_failure(raised(error)), "fetch")
    of_run = rebuilt_workflow_failure(encode_failure(raised(of_task)), "r1")

    assert ["while cooking", "task"] == [of_task.__notes__[0], of_task.__notes__[1][:4]]
    assert ["while cooking", "run "] == [of_run.__notes__[0], of_run.__notes__[1][:4]]
    assert 2 == len(of_run.__notes__)
    assert 1 == of_run.__notes__[1].count("task 'fetch' failed with this recorded traceback")


def test_an_error_that_cannot_be_rebuilt_shows_the_recorded_traceback_as_well() -> None:
    error = rebuilt_workflow_failure(encode_failure(raised(ValueError(object()))), "r1")

    assert isinstance(error, WorkflowFailedError)
    assert "raise error" in error.__notes__[0]


def test_a_failure_without_a_traceback_has_no_note() -> None:
    assert not hasattr(rebuilt_workflow_failure("{}", "r1"), "__notes__")


class UnnotableError(Exception):
    __notes__ = ()  # type: ignore[assignment]  # on purpose


def test_an_error_that_takes_no_notes_is_raised_all_the_same() -> None:
    assert isinstance(rebuilt_workflow_failure(encode_failure(UnnotableError("x")), "r1"), UnnotableError)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("a"), True),
        (ValueError("a"), False),
        (ExceptionGroup("of one kind", [KeyError("a"), IndexError("b")]), True),
        (ExceptionGroup("nested", [KeyError("a"), ExceptionGroup("inner", [KeyError("b")])]), True),
        (ExceptionGroup("mixed", [KeyError("a"), ExceptionGroup("inner", [ValueError("b")])]), False),
        (BaseExceptionGroup("with an interruption", [KeyError("a"), KeyboardInterrupt()]), False),
    ],
)
def test_a_group_is_made_of_kinds_if_all_its_members_are(error: BaseException, expected: bool) -> None:
    assert expected is is_made_of(error, (KeyError, IndexError))
