"""Pauses of the garbage collector."""

import gc
from collections.abc import Iterator

import pytest

from satay.collector import collector_paused


@pytest.fixture(autouse=True)
def _left_as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_it_is_off_in_the_block_and_on_after_it_also_where_the_block_fails() -> None:
    gc.enable()
    was_on = []

    @collector_paused()
    def fail() -> None:
        was_on.append(gc.isenabled())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert [False, True] == [*was_on, gc.isenabled()]


def test_blocks_may_lie_in_blocks() -> None:
    gc.enable()
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()

    assert gc.isenabled()


def test_an_application_that_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    with collector_paused():
        pass

    assert not gc.isenabled()
