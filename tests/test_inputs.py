import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from satay.declarations import result_codec
from satay.errors import DecodeError, EncodeError, InvalidValueError
from satay.inputs import InputCodec, input_codec
from tests.samples import WHERE, Color, assert_same, values


class Job(BaseModel):
    name: str = Field(alias="jobName")
    tries: int = 1


async def run_job(job: Job, dry: bool = False) -> None: ...


def every_kind(a: int, /, b: str = "b", *rest: Color, c: Any = None, **options: Decimal) -> None: ...


def paint(x: Color, others: Sequence[Color] = (), by: dict[Color, int] | None = None) -> None: ...


def forward(
    x: "Later",
    y: "Nowhere",  # type: ignore[name-defined]  # noqa: F821  # a name for type checkers only
    z: Color,
) -> "list[Later]":
    return [x]


@dataclasses.dataclass
class Later:
    x: int


@pytest.mark.parametrize(
    ("args", "kwargs", "text", "call"),
    [
        ((1,), {}, '{"a":1}', ((1,), {})),
        ((1, "x"), {}, '{"a":1,"b":"x"}', ((1, "x"), {})),
        ((1,), {"b": "x"}, '{"a":1,"b":"x"}', ((1, "x"), {})),
        ((1,), {"c": [2]}, '{"a":1,"c":[2]}', ((1,), {"c": [2]})),
        (
            (1, "x", "red", Color.BLUE),
            {"c": 1, "d": Decimal("1.5")},
            '{"a":1,"b":"x","*rest":["red","blue"],"c":1,"**options":{"d":"1.5"}}',
            ((1, "x", Color.RED, Color.BLUE), {"c": 1, "d": Decimal("1.5")}),
        ),
    ],
)
def test_a_call_is_recorded_by_parameter(args: Any, kwargs: Any, text: str, call: Any) -> None:
    codec = input_codec(every_kind)

    assert text == codec.encode(args, kwargs, WHERE)
    assert_same(call, codec.decode(text, WHERE))
    assert_same((text, *call), codec.encode_and_decode(args, kwargs, WHERE))


def test_a_parameter_after_a_gap_is_passed_by_keyword() -> None:
    codec = input_codec(lambda a, b=1, c=2: None)

    assert ((1,), {"c": 3}) == codec.decode(codec.encode((1,), {"c": 3}, WHERE), WHERE)


def test_the_order_of_keywords_does_not_change_the_text() -> None:
    codec = input_codec(lambda a, b: None)

    assert codec.encode((), {"a": 1, "b": 2}, WHERE) == codec.encode((), {"b": 2, "a": 1}, WHERE)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"job": 2}), ((1,), {"wet": True}), ((), {"dry": True})]
)
def test_a_call_that_python_refuses_is_an_invalid_value(args: Any, kwargs: Any) -> None:
    with pytest.raises(InvalidValueError, match="the input of 'run_job' does not fit the function: "):
        input_codec(run_job).encode(args, kwargs, "the input of 'run_job'")


@pytest.mark.parametrize("value", [Job(jobName="x"), {"jobName": "x"}, {"name": "x", "tries": 1}])
def test_typing_applies_to_each_parameter_whatever_the_others_are(value: Any) -> None:
    codec = input_codec(run_job)
    args, kwargs = codec.decode(codec.encode((value,), {}, WHERE), WHERE)

    assert ((Job(jobName="x"),), {}) == (args, kwargs)


def test_an_argument_that_does_not_fit_is_named_with_its_field() -> None:
    with pytest.raises(EncodeError, match=r"argument 'job' of the input of 'w' does not fit.*\$\.tries") as caught:
        input_codec(run_job).encode(({"jobName": "x", "tries": "many"},), {}, "the input of 'w'")

    assert "$.tries" == caught.value.path


def test_an_enum_argument_is_the_member_or_an_error_and_never_its_letters() -> None:
    codec = input_codec(paint)
    for red in (Color.RED, "red"):
        args, _ = codec.decode(codec.encode((red, [red], {red: 1}), {}, WHERE), WHERE)

        assert (Color.RED, [Color.RED], {Color.RED: 1}) == args
        assert all(isinstance(item, Color) for item in (args[0], *args[1], *args[2]))
    with pytest.raises(EncodeError, match="argument 'x'"):
        codec.encode(("green",), {}, WHERE)


def test_an_unencodable_argument_is_named() -> None:
    with pytest.raises(EncodeError, match=r"argument '\*\*options' of the input"):
        input_codec(every_kind).encode((1,), {"d": object()}, "the input")


def test_a_hint_that_cannot_be_resolved_counts_as_none_and_spares_the_others() -> None:
    codec = input_codec(forward)
    args, _ = codec.decode(codec.encode(({"x": 1}, {1, 2}, "red"), {}, WHERE), WHERE)

    assert (Later(1), {1, 2}, Color.RED) == args
    assert [Later(1)] == result_codec(forward).decode('[{"x":1}]', WHERE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"dry":true}', "nothing was recorded for 'job'"),
        ('{"job":{"name":"x"},"fast":1}', "takes no parameter named 'fast'"),
        ('{"job":{}}', "argument 'job'"),
        ("[]", "not an object"),
        ("[", "not valid JSON"),
    ],
)
def test_a_recorded_call_that_no_longer_fits_is_a_decode_error(text: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        input_codec(run_job).decode(text, WHERE)


@pytest.mark.parametrize("text", ['{"a":1,"*rest":5}', '{"a":1,"**options":[]}'])
def test_damaged_variadic_arguments_are_decode_errors(text: str) -> None:
    with pytest.raises(DecodeError):
        input_codec(every_kind).decode(text, WHERE)


def test_each_decoding_gives_fresh_arguments() -> None:
    codec = input_codec(lambda xs: None)
    original = [1]
    text, (copy,), _ = codec.encode_and_decode((original,), {}, WHERE)
    copy.append(2)
    codec.decode(text, WHERE)[0][0].append(3)

    assert [1] == original
    assert (([1],), {}) == codec.decode(text, WHERE)


@given(st.lists(values, max_size=3), st.dictionaries(st.sampled_from("xyz"), values, max_size=2))
def test_any_arguments_read_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    codec = InputCodec(lambda *args, **kwargs: None)

    assert_same((tuple(args), kwargs), codec.decode(codec.encode(tuple(args), kwargs, WHERE), WHERE))
