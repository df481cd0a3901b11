import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from satay.errors import UsageError
from tests.stages import hop, run


@pytest.mark.parametrize("collect", [set, iter], ids=["set", "iterator"])
def test_as_completed_refuses_coroutines_that_have_no_order(collect: Callable[[Any], Any]) -> None:
    async def body() -> None:
        coros = [hop("a"), hop("b")]
        try:
            for earliest in asyncio.as_completed(collect(coros)):
                await earliest
        finally:
            for coro in coros:
                coro.close()

    with pytest.raises(UsageError, match=r"pass a list, or wrap each in asyncio\.create_task"):
        run(body)


def test_as_completed_takes_an_iterator_that_makes_the_tasks() -> None:
    async def body() -> list[str]:
        made = map(lambda name, seconds: asyncio.ensure_future(hop(name, seconds)), ("slow", "quick"), (2, 1))
        return [await earliest for earliest in asyncio.as_completed(made)]

    assert run(body) == ["quick", "slow"]
