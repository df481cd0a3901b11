"""The moments at which runs are woken."""

import asyncio
from collections.abc import Callable

from satay.testing import ManualClock
from satay.wakes import MAX_STALE_WAKES, Wakes
from tests.driving import in_loop


def never() -> None:
    raise AssertionError("nobody is to be woken")


class Bell:
    """Wakes on a clock that is moved by hand; `rang` are the moments at which the bell rang, and for whom."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.start = self.clock.now()
        self.wakes = Wakes(self.clock, self._ring)
        self.rang: list[tuple[int, list[str], bool]] = []

    def _ring(self) -> None:
        now = self.clock.now()
        self.rang.append((now - self.start, self.wakes.due(now), self.wakes.is_sweep_due(now)))

    def wake(self, run_id: str, after: int) -> None:
        self.wakes.wake(run_id, self.start + after)

    def sweep(self, after: int) -> None:
        self.wakes.sweep(self.start + after)

    async def pass_until(self, after: int) -> None:
        while (due := self.clock.next_due) is not None and due <= self.start + after:
            self.clock.jump_to(due)
            await asyncio.sleep(0)
        self.clock.jump_to(self.start + after)


def rung(prepare: Callable[[Bell], None], after: int = 100) -> list[tuple[int, list[str], bool]]:
    async def run() -> list[tuple[int, list[str], bool]]:
        bell = Bell()
        prepare(bell)
        await bell.pass_until(after)
        return bell.rang

    return in_loop(run())


def test_each_run_is_woken_at_its_moment_and_the_earliest_first() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("late", 30)
        bell.wake("early", 10)
        bell.wake("middle", 20)

    assert [(10, ["early"], False), (20, ["middle"], False), (30, ["late"], False)] == rung(prepare)


def test_runs_of_one_moment_are_woken_together() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("b", 10)
        bell.wake("a", 10)

    assert [(10, ["a", "b"], False)] == rung(prepare)


def test_an_earlier_moment_replaces_the_one_that_was_asked_for() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("a", 30)
        bell.wake("a", 10)

    told = [told for _, told, _ in rung(prepare)]

    assert ["a"] == told[0]
    assert not any(told[1:])


def test_a_later_moment_changes_nothing() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("a", 10)
        bell.wake("a", 30)

    assert [(10, ["a"], False)] == rung(prepare)


def test_a_run_that_was_woken_can_be_woken_again() -> None:
    async def run() -> list[tuple[int, list[str], bool]]:
        bell = Bell()
        bell.wake("a", 10)
        await bell.pass_until(10)
        bell.wake("a", 20)
        await bell.pass_until(100)
        return bell.rang

    assert [(10, ["a"], False), (20, ["a"], False)] == in_loop(run())


def test_a_run_that_left_memory_is_not_woken() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("gone", 10)
        bell.wake("here", 10)
        bell.wakes.forget("gone")
        bell.wakes.forget("was never here")

    assert [(10, ["here"], False)] == rung(prepare)


def test_a_run_that_comes_back_to_memory_has_the_moment_it_asks_for_then() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("a", 10)
        bell.wakes.forget("a")
        bell.wake("a", 20)

    told = [(moment, told) for moment, told, _ in rung(prepare) if told]

    assert [(20, ["a"])] == told


def test_clearing_away_the_moments_of_runs_that_left_keeps_those_of_the_others() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("last", 50)
        bell.wake("first", 40)
        for number in range(2 * MAX_STALE_WAKES):
            bell.wake(f"gone {number}", 45)
            bell.wakes.forget(f"gone {number}")

    told = [(moment, told) for moment, told, _ in rung(prepare) if told]

    assert [(40, ["first"]), (50, ["last"])] == told


def test_a_sweep_is_due_once_at_the_earliest_moment_that_was_asked_for() -> None:
    def prepare(bell: Bell) -> None:
        bell.sweep(30)
        bell.sweep(10)
        bell.sweep(20)
        bell.wake("a", 40)

    assert [(10, [], True), (40, ["a"], False)] == rung(prepare)


def test_nothing_is_due_before_its_moment() -> None:
    async def run() -> None:
        wakes = Wakes(ManualClock(), never)
        moment = ManualClock().now() + 10
        wakes.wake("a", moment)
        wakes.sweep(moment)

        assert [] == wakes.due(moment - 1)
        assert not wakes.is_sweep_due(moment - 1)
        assert ["a"] == wakes.due(moment)
        assert wakes.is_sweep_due(moment)
        assert not wakes.is_sweep_due(moment)

    in_loop(run())


def test_nobody_is_woken_after_closing() -> None:
    def prepare(bell: Bell) -> None:
        bell.wake("a", 10)
        bell.wakes.close()
        bell.wake("b", 20)
        bell.sweep(30)

    assert [] == rung(prepare)
