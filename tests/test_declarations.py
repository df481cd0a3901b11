import io
from inspect import Parameter
from typing import Annotated, Any

import pytest

from satay.codec import ValueCodec
from satay.declarations import value_codec
from tests.samples import Order


@pytest.mark.parametrize(
    "annotation", [None, Parameter.empty, int, "unresolvable", Annotated[int, {"unit": "m"}], io.IOBase]
)
def test_any_annotation_has_a_codec(annotation: Any) -> None:
    assert isinstance(value_codec(annotation), ValueCodec)


def test_codecs_are_made_once() -> None:
    assert value_codec(list[Order]) is value_codec(list[Order])
