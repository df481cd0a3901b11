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
