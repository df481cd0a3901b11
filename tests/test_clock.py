"""The system's time, ids and chance."""

import ast
import asyncio
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import satay
from satay.clock import MICROSECONDS, Chance, SystemClock, monotonic, to_datetime, to_microseconds
from tests.driving import in_loop

PACKAGE = Path(satay.__file__).parent


def test_the_system_clock_tells_microseconds_since_the_epoch() -> None:
    before = datetime.now(UTC)
    now = SystemClock().now()
    after = datetime.now(UTC)

    assert before <= to_datetime(now) <= after


def test_an_alarm_rings_once_the_moment_has_come() -> None:
    async def run() -> tuple[int, int]:
        clock = SystemClock()
        rang: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        due = clock.now() + 2_000
        clock.call_at(due, lambda: rang.set_result(clock.now()))
        return due, await rang

    due, rang = in_loop(run())

    assert rang >= due


def test_an_alarm_that_is_due_already_rings_from_the_event_loop_and_not_at_once() -> None:
    async def run() -> list[str]:
        order: list[str] = []
        rang = asyncio.Event()

        def ring() -> None:
            order.append("rang")
            rang.set()

        clock = SystemClock()
        clock.call_at(clock.now() - MICROSECONDS, ring)
        order.append("asked for")
        await rang.wait()
        return order

    assert ["asked for", "rang"] == in_loop(run())


def test_an_alarm_that_was_called_off_does_not_ring() -> None:
    async def run() -> list[str]:
        rang: list[str] = []
        last = asyncio.Event()
        clock = SystemClock()
        alarm = clock.call_at(clock.now(), lambda: rang.append("called off"))
        clock.call_at(clock.now() + 1_000, last.set)
        alarm.cancel()
        await last.wait()
        return rang

    assert [] == in_loop(run())


def test_chance_with_a_seed_repeats_itself() -> None:
    def drawn(chance: Chance) -> list[object]:
        return [chance.new_id(), chance.new_seed(), chance.uniform(0.0, 1.0)]

    assert drawn(Chance(7)) == drawn(Chance(7))
    assert drawn(Chance(7)) != drawn(Chance(8))
    assert drawn(Chance()) != drawn(Chance())


def test_an_id_is_thirty_two_hexadecimal_digits() -> None:
    ids = {Chance(seed).new_id() for seed in range(50)}

    assert 50 == len(ids)
    assert {32} == {len(id) for id in ids}
    assert set("".join(ids)) <= set("0123456789abcdef")


def test_a_seed_fits_a_signed_number_of_sixty_four_bits() -> None:
    seeds = [Chance(seed).new_seed() for seed in range(50)]

    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_number_is_drawn_between_its_bounds() -> None:
    chance = Chance(7)

    assert all(2.0 <= chance.uniform(2.0, 3.0) <= 3.0 for _ in range(100))
    assert 2.0 == chance.uniform(2.0, 2.0)


ASKED_OF_THE_SYSTEM = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime", "gmtime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "uuid": {"uuid1", "uuid4"},
    "random": {"random", "randint", "uniform", "choice", "SystemRandom", "getrandbits", "randbytes"},
    "os": {"urandom"},
    "secrets": {"token_hex", "token_bytes", "token_urlsafe", "randbits"},
}


def test_only_the_clock_asks_the_system_for_time_ids_or_chance() -> None:
    asking = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value.id}.{node.attr}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "clock.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.attr in ASKED_OF_THE_SYSTEM.get(node.value.id, ())
    ]

    assert [] == asking


def test_monotonic_time_never_goes_back() -> None:
    moments = [monotonic() for _ in range(100)]

    assert sorted(moments) == moments


def test_a_moment_goes_to_a_datetime_and_back_without_loss() -> None:
    for moment in (0, 1, 1_767_225_600_000_001, 253_402_300_799_999_999, -1):
        assert moment == to_microseconds(to_datetime(moment))


def test_a_datetime_of_any_zone_is_the_same_moment() -> None:
    here = datetime(2026, 1, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    assert to_microseconds(datetime(2026, 1, 1, tzinfo=UTC)) == to_microseconds(here)
    assert UTC is to_datetime(to_microseconds(here)).tzinfo
