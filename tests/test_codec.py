from typing import Any

import pytest

from satay.declarations import value_codec
from satay.model import MISSING
from tests.samples import WHERE, Color, Level, Mood, Pair, RicherPair, Rights, Shape, assert_same, survives


def test_the_copy_shares_nothing_with_the_original() -> None:
    for annotation in (MISSING, list[list[int]], list[Any]):
        value = [[1]]
        copy = value_codec(annotation).encode_and_decode(value, WHERE)[1]
        copy[0].append(2)

        assert [[1]] == value


@pytest.mark.parametrize("annotation", [MISSING, Any, object, list, dict, list[Any], dict[str, Any]])
@pytest.mark.parametrize("value", [Mood.GOOD, Level.HIGH, Color.RED, Shape.ROUND, Rights.READ, Pair(1), RicherPair(1)])
def test_enums_and_named_tuples_keep_their_type_whatever_the_annotation(annotation: Any, value: Any) -> None:
    in_list = annotation in (list, list[Any])
    in_dict = annotation in (dict, dict[str, Any])
    holder = [value] if in_list else {"value": value} if in_dict else value

    assert_same(holder, survives(annotation, holder))
