"""A replay hands a recorded result over at once, but never to code that would see a difference to the first time."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Coroutine, Generator
from pathlib import Path
from typing import Any, cast

import pytest

import satay
from satay.drive import Drive
from satay.errors import DecodeError
from satay.replay import Answered, StrictReplay
from satay.revivals import TURNS_PER_SLICE
from satay.testing import open_app, pause
from tests.driving import drive_twice, in_loop

seen: list[Any] = []
asked: list[str] = []

Body = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()
    asked.clear()


@satay.task(name="chains.step")
async def step(number: int) -> int:
    await pause(1)
    return number + 1


@satay.task(name="chains.fails")
async def fails(number: int) -> int:
    raise ValueError(f"not {number}")


@satay.task(name="chains.large")
async def large(number: int) -> str:
    return f"{number}" * 200_000


@satay.task(name="chains.costly")
async def costly(number: int) -> int:
    satay.task_context().record_usage(model="m", cost=0.5)
    return number + 1


@satay.task(name="chains.given")
async def given(what: str) -> Any:
    return satay.MISSING if what == "missing" else None


@satay.task(name="chains.pickled", codec="pickle")
async def pickled(number: int) -> Any:
    return {number, number + 1}


def see(*values: Any) -> None:
    """Note what a body sees, once a drive."""
    seen.append(values)


def drive(place: Path, body: Body) -> tuple[list[Any], list[Any]]:
    """What a body saw the first time, and what it saw when it was replayed to its end."""

    @satay.workflow(name="chains.body")
    async def observed() -> Any:
        result = await body()
        await satay.sleep(1.0)  # So that every outcome of the body comes from the journal the second time.
        return result

    async def both() -> tuple[list[Any], list[Any]]:
        result = await drive_twice(place, observed, allow_pickle=True)
        half = len(seen) // 2
        first, second = seen[:half], seen[half:]
        return [*first, result], [*second, result]

    return in_loop(both())


def count_turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The outcomes that take a turn of their own in replays, noted as they are delivered."""
    delivered: list[str] = []
    deliver = Drive._resolve_from_history

    def noting(self: Drive, entry: Any) -> None:
        delivered.append(entry.type)
        deliver(self, entry)

    monkeypatch.setattr(Drive, "_resolve_from_history", noting)
    return delivered


# --- bodies that see how an outcome reaches them ----------------------------------------------------------------------


async def a_loop() -> int:
    number = 0
    while number < 20:
        number = await step(number)
        see(number, satay.now(), satay.random().random())
    return number


async def helpers() -> int:
    async def twice(number: int) -> int:
        return await step(await step(number))

    return await twice(await twice(0))


async def what_a_call_costs_and_keeps() -> Any:
    first = [await costly(1), len(await large(1)), sorted(await pickled(1)), await step(1)]
    try:
        await fails(1)
    except ValueError as error:
        see(str(error))
    return first


async def results_that_are_nothing() -> list[Any]:
    """What stands for no value is a value where a task returns it."""
    return [await given("missing"), await step(1), await given("none"), await step(2)]


async def driven_by_hand() -> int:
    """What `send` gives is the future of the call, whose outcome has not come."""
    coroutine = step(1)
    waits_for = coroutine.send(None)
    see(type(waits_for).__name__, waits_for.done())
    waits_for._asyncio_future_blocking = False
    result = await waits_for
    coroutine.close()
    return int(result)


async def driven_by_a_callback() -> None:
    """Nobody takes it further than to its first await."""

    async def starts() -> None:
        see("starts")
        await step(1)
        see("goes on")

    coroutine = starts()
    asyncio.get_running_loop().call_soon(coroutine.send, None)
    await satay.sleep(10)
    coroutine.close()


class Noisy:
    """An awaitable that runs code of its own whenever what it awaits is suspended."""

    def __init__(self, inner: Awaitable[Any]) -> None:
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        value = None
        while True:
            try:
                waits_for = steps.send(value)
            except StopIteration as ended:
                return ended.value
            see("suspended", satay.now())
            value = yield waits_for


async def an_awaitable_in_between() -> int:
    first = await Noisy(step(1))
    see(satay.now())
    return int(await Noisy(step(int(first))))


class Transparent:
    """An awaitable that only hands on."""

    def __init__(self, inner: Awaitable[Any]) -> None:
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._inner.__await__())


async def a_transparent_one() -> int:
    return int(await Transparent(step(int(await Transparent(step(1))))))


async def numbers(calls: int) -> AsyncGenerator[int, None]:
    number = 0
    for _ in range(calls):
        number = await step(number)
        yield number


async def an_async_generator() -> list[int]:
    return [number async for number in numbers(5)]


async def a_generator_that_changes_hands() -> int:
    """It is awaited for its first number, and driven by hand for the second."""
    stream = numbers(2)
    first = await anext(stream)
    second: Any = stream.__anext__()
    waits_for = second.send(None)
    see(type(waits_for).__name__, waits_for.done(), satay.now())
    waits_for._asyncio_future_blocking = False
    await waits_for
    try:
        second.send(None)
    except StopIteration as ended:
        see(ended.value)
    return first


async def a_callback_that_is_ready() -> int:
    asyncio.get_running_loop().call_soon(lambda: see("ready", satay.now()))
    number = await step(1)
    see("answered", satay.now())
    return number


async def another_branch_that_is_ready() -> int:
    async def other() -> None:
        see("other", satay.now())

    task = asyncio.create_task(other())
    number = await step(1)
    see("answered", task.done(), satay.now())
    return number


async def two_branches_of_one_round() -> Any:
    async def calls() -> int:
        number = await step(1)
        see("answered", satay.now())
        return number

    async def sees() -> int:
        see("other", satay.now())
        return 0

    return await asyncio.gather(calls(), sees())


async def a_task_that_cancels_itself() -> str:
    current = asyncio.current_task()
    assert current is not None
    await step(1)
    current.cancel()
    try:
        await step(2)
    except asyncio.CancelledError:
        current.uncancel()
        see("cancelled")
    return "went on"


async def timeouts() -> int:
    async with asyncio.timeout(60):
        number = await step(1)
    return await asyncio.wait_for(step(number), 60)


async def sets_of_tasks() -> list[int]:
    """The order of a set of tasks follows from how many futures and tasks were made before."""
    await step(0)
    await step(1)
    tasks = {asyncio.create_task(step(number)) for number in range(10, 19)}
    done, _ = await asyncio.wait(tasks)
    see([task.result() for task in done], [hash(task) for task in done])
    return sorted(task.result() for task in done)


async def branches() -> list[int]:
    async def branch(number: int) -> int:
        for _ in range(3):
            number = await step(number)
            see(number, satay.now())
        return number

    return await asyncio.gather(*[branch(number) for number in range(4)])


async def an_eager_task() -> int:
    """What started it goes on first."""
    loop = asyncio.get_running_loop()
    task = asyncio.Task(step(1), loop=loop, eager_start=True)  # type: ignore[call-arg,unused-ignore]  # since 3.12
    see("started", task.done(), satay.now())
    return await task


BODIES: list[Body] = [
    a_loop,
    helpers,
    what_a_call_costs_and_keeps,
    results_that_are_nothing,
    driven_by_hand,
    driven_by_a_callback,
    an_awaitable_in_between,
    a_transparent_one,
    an_async_generator,
    a_generator_that_changes_hands,
    a_callback_that_is_ready,
    another_branch_that_is_ready,
    two_branches_of_one_round,
    a_task_that_cancels_itself,
    timeouts,
    sets_of_tasks,
    branches,
    pytest.param(an_eager_task, marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="since 3.12")),  # type: ignore[list-item]
]


@pytest.mark.parametrize("body", BODIES)
def test_a_body_sees_the_same_on_replay(body: Body, tmp_path: Path) -> None:
    first, second = drive(tmp_path, body)
    assert first == second


@pytest.mark.parametrize("body", [a_loop, helpers, a_transparent_one, an_async_generator])
def test_a_branch_that_goes_on_alone_takes_no_turns(
    body: Body, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = count_turns(monkeypatch)
    drive(tmp_path, body)
    assert delivered == []


@pytest.mark.parametrize(
    ("body", "turns"),
    [
        (driven_by_hand, 1),
        (an_awaitable_in_between, 2),
        (a_callback_that_is_ready, 1),
        (another_branch_that_is_ready, 1),
        (two_branches_of_one_round, 1),
        (branches, 12),
    ],
)
def test_whoever_could_see_the_turn_gets_it(
    body: Body, turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = count_turns(monkeypatch)
    drive(tmp_path, body)
    assert delivered == ["TaskCompleted"] * turns


def typed_as(kind: object) -> Any:
    """The same task under another annotation, as after an edit."""

    async def typed() -> Any:
        return "a text"

    typed.__annotations__["return"] = kind
    return satay.task(name="chains.typed")(typed)


current: dict[str, Any] = {}


@satay.workflow(name="chains.reads")
async def reads(is_alone: bool) -> str:
    try:
        if is_alone:
            await current["typed"]()
        else:
            first = (await asyncio.gather(current["typed"](), step(1), return_exceptions=True))[0]
            if isinstance(first, DecodeError):
                raise first
    except DecodeError as error:
        await satay.sleep(1.0)
        return str(error)
    await satay.sleep(1.0)
    return "read"


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_no_longer_fits_the_code_is_an_error_in_the_body(is_alone: bool, tmp_path: Path) -> None:
    async def fork_after_an_edit() -> str:
        async with open_app(tmp_path) as app:
            current["typed"] = typed_as(Any)
            assert await app.start(reads, is_alone, run_id="source").result() == "read"
            current["typed"] = typed_as(int)
            types = [entry.type async for entry in app.events("source")]
            fork = await app.fork("source", fork_point_seq=types.index("TimerFired"))
            return cast(str, await fork.result())

    assert "the result of task 'chains.typed'" in in_loop(fork_after_an_edit())


def test_a_long_replay_lets_others_of_its_loop_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 5 * TURNS_PER_SLICE

    @satay.workflow(name="chains.long")
    async def long() -> int:
        number = 0
        for _ in range(calls):
            number = await step(number)
        return number

    async def replay() -> int:
        async with open_app(tmp_path) as app:
            await app.start(long, run_id="source").result()
        async with open_app(tmp_path) as app:
            await app.start(long, run_id="warm").status()  # The journal is open.
            steps: list[int] = []
            take = StrictReplay.take_answered

            async def tick() -> None:
                while True:
                    steps.append(len(asked))
                    await asyncio.sleep(0)

            def noting(self: StrictReplay, name_fact: str, ordinal: int, but: Container[int]) -> Answered | None:
                asked.append(name_fact)
                return take(self, name_fact, ordinal, but)

            monkeypatch.setattr(StrictReplay, "take_answered", noting)
            ticking = asyncio.create_task(tick())
            plan = await app.plan_fork("source", before_task="chains.step", before_ordinal=calls - 1)
            ticking.cancel()
            assert len(plan.calls) == calls
            return len({count for count in steps if 0 < count < len(asked)})

    assert in_loop(replay()) >= 3
