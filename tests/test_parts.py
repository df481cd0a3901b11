import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from satay.declarations import value_codec
from satay.errors import EncodeError
from tests.samples import WHERE, Frozen, Order, survives


class Once:
    def __iter__(self) -> "Once":
        return self

    def __next__(self) -> int:
        raise StopIteration


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (list[int], (x for x in [1]), "$"),
        (list[int], map(int, "12"), "$"),
        (tuple[int, ...], filter(None, [1]), "$"),
        (set[int], iter([1]), "$"),
        (Sequence[int], zip([1], strict=True), "$"),
        (Iterable[int], iter([1]), "$"),
        (list[int], itertools.count(), "$"),
        (list[int], Once(), "$"),
        (list[int] | None, iter([1]), "$"),
        (int, iter([1]), "$"),
        (list[list[int]], [[1], iter([1])], "$[1]"),
        (dict[str, list[int]], {"a b": iter([1])}, "$['a b']"),
        (dict[str, list[int]], OrderedDict(a=iter([1])), "$.a"),
        (Order, {"id": 1, "items": iter([])}, "$.items"),
        (list[Order], [Order.model_construct(uid=1, items=iter([]))], "$[0].items"),  # type: ignore[arg-type]  # wrong on purpose
        (Frozen, Frozen(name="x", sizes=iter([1])), "$.sizes"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_an_iterator_is_refused_where_a_type_is_declared(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(EncodeError, match=r"an iterator can be read once only; pass list\(\.\.\.\)") as caught:
        value_codec(annotation).encode(value, WHERE)

    assert path == caught.value.path


class Options(BaseModel):
    n: int
    mode: str = "none"

    @model_validator(mode="before")
    @classmethod
    def rename(cls, data: Any) -> Any:
        if isinstance(data, dict) and "type" in data:
            data["mode"] = data.pop("type")
        elif isinstance(data, Options):
            data.n += 1
        return data


@pytest.mark.parametrize("annotation", [Options, list[Options], dict[str, Options], set[int] | Options])
def test_a_validator_that_changes_its_input_changes_a_copy(annotation: Any) -> None:
    options: Any = {"n": 1, "type": "fast"}
    value = {list[Options]: [options], dict[str, Options]: {"a": options}}.get(annotation, options)
    copy = survives(annotation, value)

    assert {"n": 1, "type": "fast"} == options
    assert "fast" in repr(copy)


def test_a_validator_that_changes_an_object_changes_a_copy() -> None:
    options = Options(n=1)
    value_codec(set[int] | list[Options]).encode([options], WHERE)

    assert 1 == options.n
