from datetime import datetime
from typing import Any

import pytest

from satay.declarations import value_codec
from satay.errors import EncodeError
from tests.samples import WHERE, Order


@pytest.mark.parametrize("annotation", [Any, int, Order, list[int], dict[str, Any]])
def test_a_forgotten_await_is_named(annotation: Any) -> None:
    async def charge() -> int:
        return 1

    coroutine = charge()
    codec = value_codec(annotation)
    with pytest.raises(EncodeError, match="did you forget 'await'"):
        codec.encode({"id": coroutine} if annotation in (Order, dict[str, Any]) else coroutine, WHERE)
    with pytest.raises(EncodeError, match="did you forget to call it"):
        codec.encode({"id": charge} if annotation in (Order, dict[str, Any]) else charge, WHERE)
    coroutine.close()


class Connection:
    pass


@pytest.mark.parametrize("value", [Connection(), ValueError("x"), {"deep": [object()]}, range(3)])
def test_a_value_without_a_form_is_refused_with_a_way_out(value: Any) -> None:
    with pytest.raises(
        EncodeError, match="has no recorded form; put plain data in its place, such as a dict or a data"
    ):
        value_codec(Any).encode(value, WHERE)


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (None, 1, "Input should be None, not int"),
        (list[int], 3, "Input should be a valid list, not int"),
        (dict[str, int], "x", "Input should be a valid dictionary, not str"),
        (Order, 3, "not int"),
        (datetime, [], "Input should be a valid datetime, not list"),
    ],
)
def test_a_value_of_another_type_is_refused_with_both_types(annotation: Any, value: Any, told: str) -> None:
    with pytest.raises(EncodeError, match=told):
        value_codec(annotation).encode(value, WHERE)
