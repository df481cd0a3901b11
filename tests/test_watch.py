"""The watch over turns that block the event loop."""

import threading

import pytest

from satay.watch import SLOW_TURN_SECONDS, TurnWatch
from tests.driving import HANG_SECONDS


def watching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "satay-turn-watch"]


def test_a_watch_has_a_thread_until_it_is_closed() -> None:
    before = watching_threads()
    watch = TurnWatch(lambda run_id, seconds, line: None)
    (thread,) = [thread for thread in watching_threads() if thread not in before]
    watch.close()

    assert thread.daemon
    assert not thread.is_alive()


def test_turns_that_are_short_are_not_told_of() -> None:
    told: list[str] = []
    watch = TurnWatch(lambda run_id, seconds, line: told.append(run_id))
    for _ in range(1000):
        watch.begin("r")
        watch.end()
    watch.close()

    assert [] == told


def test_closing_twice_is_allowed_and_a_turn_that_goes_on_does_not_hold_it_up() -> None:
    watch = TurnWatch(lambda run_id, seconds, line: None)
    watch.begin("r")
    watch.close()
    watch.close()


@pytest.mark.slow
def test_a_turn_that_blocks_is_told_of_with_the_line_of_the_user_that_blocks() -> None:
    told: list[tuple[str, float, str]] = []
    is_told = threading.Event()

    def tell(run_id: str, seconds: float, line: str) -> None:
        told.append((run_id, seconds, line))
        is_told.set()

    def block_the_loop() -> None:
        is_told.wait(HANG_SECONDS)

    watch = TurnWatch(tell)
    watch.begin("r")
    block_the_loop()
    watch.end()
    watch.close()

    ((run_id, seconds, line),) = told
    assert "r" == run_id
    assert seconds >= SLOW_TURN_SECONDS
    assert line.startswith(f"{__file__}:")
    assert line.endswith(" in block_the_loop")
