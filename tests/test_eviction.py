"""A parked body is thrown away, and freed, without running any of it."""

import asyncio
import collections
import contextlib
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import anyio
import pytest

from satay.eviction import MOST_OWNED, MOST_SPECULATED
from tests.stages import PLENTY, Body, Stage, parked

RAN: collections.Counter[str] = collections.Counter()


@contextlib.contextmanager
def managed() -> Iterator[None]:
    try:
        yield
    finally:
        RAN["contextmanager"] += 1


@contextlib.asynccontextmanager
async def managed_async() -> AsyncIterator[None]:
    try:
        with managed():
            yield
    finally:
        RAN["asynccontextmanager"] += 1


class Manager:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        RAN["__exit__"] += 1

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        RAN["__aexit__"] += 1


async def endless() -> AsyncIterator[int]:
    try:
        while True:
            yield 1
    finally:
        RAN["async generator"] += 1


async def endless_awaiting() -> AsyncIterator[int]:
    try:
        with managed():
            await forever()
            yield 1
    finally:
        RAN["async generator"] += 1


def countdown() -> Iterator[int]:
    try:
        yield from (3, 2, 1)
    finally:
        RAN["generator"] += 1


async def forever() -> None:
    try:
        with managed(), Manager():
            async with Manager(), managed_async():
                await asyncio.get_running_loop().create_future()
    except GeneratorExit:
        RAN["except GeneratorExit"] += 1
        raise
    except BaseException:
        RAN["except BaseException"] += 1
        raise
    finally:
        RAN["finally"] += 1


class Ticket:
    """An awaitable of the user's own, with a generator behind it."""

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield from asyncio.get_running_loop().create_future()
        finally:
            RAN["__await__"] += 1


class Closable:
    """An awaitable of the user's own, with an iterator behind it that wants to be closed."""

    def __init__(self) -> None:
        self.future = asyncio.get_running_loop().create_future()

    def __await__(self) -> "Closable":
        return self

    def __iter__(self) -> "Closable":
        return self

    def __next__(self) -> Any:
        self.future._asyncio_future_blocking = True
        return self.future

    def close(self) -> None:
        RAN["close"] += 1


async def drop_own_iterator() -> None:
    await Closable()  # type: ignore[misc]  # it is an iterator with a `close`, which is all that a generator needs


async def drop_own_awaitable() -> None:
    await Ticket()


async def drop_async_generators() -> None:
    ahead = endless()
    await anext(ahead)
    async for _ in endless():
        async for _ in endless_awaiting():
            pass


async def drop_anext() -> None:
    await asyncio.wait_for(anext(endless_awaiting()), 5)


async def drop_generators() -> None:
    held = [countdown(), countdown()]
    for one in held:
        next(one)
    for _ in countdown():
        await forever()


async def drop_never_awaited() -> None:
    coro = forever()
    task = asyncio.create_task(forever())
    await asyncio.get_running_loop().create_future()
    await coro
    await task


async def drop_not_started() -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(asyncio.create_task, forever())
    asyncio.create_task(forever())  # noqa: RUF006  # the loop keeps it
    await forever()


async def drop_combinations() -> None:
    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        group.create_task(forever())
        await asyncio.gather(forever(), asyncio.shield(forever()), asyncio.wait_for(forever(), 5))


async def drop_waits() -> None:
    await asyncio.wait([asyncio.create_task(forever()), asyncio.create_task(forever())])


async def drop_as_completed() -> None:
    for earliest in asyncio.as_completed([forever(), forever()]):
        await earliest


async def drop_queues() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    lock, condition, semaphore = asyncio.Lock(), asyncio.Condition(), asyncio.Semaphore(1)

    async def use() -> None:
        try:
            async with semaphore, lock, condition:
                await asyncio.gather(queue.get(), condition.wait())
        finally:
            RAN["finally"] += 1

    await asyncio.gather(use(), use())


async def drop_exit_stacks() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed())
        stack.callback(RAN.update, ["callback"])
        async with contextlib.AsyncExitStack() as async_stack:
            await async_stack.enter_async_context(managed_async())
            async_stack.push_async_callback(forever)
            await forever()


async def drop_traceback_cycle() -> None:
    last: Exception | None = None
    with managed():
        for _ in range(3):
            generator = countdown()
            next(generator)
            try:
                raise ValueError
            except ValueError as error:
                last = error
            await asyncio.get_running_loop().create_future()
    assert last


async def drop_failed_task() -> None:
    async def fail() -> None:
        generator = countdown()
        next(generator)
        raise ValueError

    failed = asyncio.create_task(fail())
    asyncio.create_task(fail())  # noqa: RUF006  # to lose it is the point
    await asyncio.wait([failed])
    await asyncio.get_running_loop().create_future()


async def drop_object_cycle() -> None:
    class Agent:
        def __init__(self) -> None:
            self.parts: dict[str, Any] = {"me": self, "work": self.work(), "stream": self.stream()}

        def work(self) -> Iterator[int]:
            with managed():
                yield from countdown()

        async def stream(self) -> AsyncIterator["Agent"]:
            with managed():
                yield self

    agent = Agent()
    next(agent.parts["work"])
    await anext(agent.parts["stream"])
    await asyncio.get_running_loop().create_future()


async def drop_closure() -> None:
    generator = countdown()
    next(generator)

    def callback() -> object:
        return generator, callback

    asyncio.create_task(forever()).add_done_callback(lambda _: callback())
    await asyncio.get_running_loop().create_future()


async def drop_anyio() -> None:
    with anyio.move_on_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(forever)
            with anyio.CancelScope(shield=True):
                await forever()


async def drop_deep_chain() -> None:
    async def down(depth: int) -> None:
        try:
            await (down(depth - 1) if depth else forever())
        finally:
            RAN["finally"] += 1

    await down(100)


DROPS: tuple[Body, ...] = (
    forever, drop_own_iterator, drop_own_awaitable, drop_async_generators, drop_anext, drop_generators,
    drop_never_awaited, drop_not_started, drop_combinations, drop_waits, drop_as_completed, drop_queues,
    drop_exit_stacks, drop_traceback_cycle, drop_failed_task, drop_object_cycle, drop_closure, drop_anyio,
    drop_deep_chain,
)  # fmt: skip


@pytest.fixture
def nothing_is_reported(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    """Nothing on stderr, no warning, and no unraisable error that a hook would hear of."""
    unraisable: list[str] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda report: unraisable.append(str(report.exc_value))
    RAN.clear()
    yield
    sys.unraisablehook = hook
    assert unraisable == []
    assert [str(warning.message) for warning in recwarn] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("nothing_is_reported")
@pytest.mark.parametrize("turns", [0, 1], ids=["ready", "parked"])
@pytest.mark.parametrize("body", DROPS, ids=lambda body: str(body.__name__))
def test_dropping_runs_none_of_the_bodys_code(body: Body, turns: int) -> None:
    stage = Stage(body)
    stage.loop.run_turn(PLENTY if turns else 1)
    stage.loop.drop()
    del stage
    gc.collect()

    assert RAN == {}


@pytest.mark.usefixtures("nothing_is_reported")
@pytest.mark.parametrize("body", DROPS, ids=lambda body: str(body.__name__))
def test_the_collector_finds_nothing_to_run_when_it_comes_before_the_driver_lets_go(body: Body) -> None:
    stage = parked(body)
    stage.loop.drop()
    gc.collect()
    stage.loop.drop()

    assert RAN == {}
    assert stage.loop.is_closed()
    assert stage.loop.tasks() == []


@pytest.mark.usefixtures("nothing_is_reported")
def test_dropping_frees_the_memory_at_once() -> None:
    class Large: ...

    freed: list[weakref.ref[Any]] = []

    async def body() -> None:
        large = Large()
        freed.append(weakref.ref(large))
        await asyncio.gather(forever(), asyncio.Event().wait(), asyncio.sleep(9))
        del large

    stage = parked(body)
    freed += [weakref.ref(stage.task), weakref.ref(stage.loop)]
    gc.disable()
    try:
        stage.loop.drop()
        del stage
        alive = [one() for one in freed]
    finally:
        gc.enable()

    assert alive == [None, None, None]


@pytest.mark.usefixtures("nothing_is_reported")
def test_dropping_leaves_alone_what_others_hold_as_well() -> None:
    shared = countdown()
    next(shared)
    box = [countdown()]
    next(box[0])

    async def body() -> None:
        mine = [shared, box]
        await asyncio.get_running_loop().create_future()
        del mine

    stage = parked(body)
    stage.loop.drop()
    del stage, body

    assert [next(shared), next(box[0])] == [2, 2]
    assert RAN == {}


@pytest.mark.usefixtures("nothing_is_reported")
def test_weak_dictionaries_and_destructors_work_while_a_body_is_dropped() -> None:
    class Key:
        def __del__(self) -> None:
            gone.append("key")

    gone: list[str] = []
    names: weakref.WeakKeyDictionary[Key, str] = weakref.WeakKeyDictionary()

    async def body() -> None:
        keys = [Key(), Key()]
        names.update((key, "named") for key in keys)
        await forever()

    stage = parked(body)
    assert len(names) == 2
    stage.loop.drop()

    assert (len(names), gone) == (0, ["key", "key"])
    assert RAN == {}


@pytest.mark.usefixtures("nothing_is_reported")
def test_dropping_forgets_the_tasks_that_asyncio_knows() -> None:
    async def body() -> None:
        await asyncio.gather(*(forever() for _ in range(20)))

    # asyncio has no public name for this set, and another private one since 3.12.
    registry = getattr(asyncio.tasks, "_scheduled_tasks" if sys.version_info >= (3, 12) else "_all_tasks")
    gc.collect()
    known = len(registry.data)
    stages = [parked(body) for _ in range(5)]
    for stage in stages:
        stage.loop.drop()
    del stages, stage
    gc.collect()

    assert len(registry.data) == known


@pytest.mark.usefixtures("nothing_is_reported")
@pytest.mark.parametrize("body", DROPS, ids=lambda body: str(body.__name__))
def test_what_was_dropped_can_be_freed(body: Body) -> None:
    stage = parked(body)
    dropped: list[weakref.ref[Any]] = [weakref.ref(stage.loop), weakref.ref(stage.task)]
    stage.loop.drop()
    del stage
    gc.collect()

    assert [one() for one in dropped] == [None, None]


@pytest.mark.usefixtures("nothing_is_reported")
def test_dropping_works_from_a_deep_stack_and_restores_the_process() -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            stage.loop.drop()

    stage = parked(drop_combinations)
    state = sys.getrecursionlimit(), sys.unraisablehook, gc.isenabled()
    deep(500)

    assert (sys.getrecursionlimit(), sys.unraisablehook, gc.isenabled()) == state
    assert RAN == {}


@pytest.mark.usefixtures("nothing_is_reported")
def test_dropping_works_under_a_debugger() -> None:
    calls: list[str] = []

    def trace(frame: Any, event: str, argument: object) -> Any:
        calls.append(frame.f_code.co_name)
        return trace

    stage = parked(drop_combinations)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        stage.loop.drop()
        is_still_tracing = sys.gettrace() is trace
    finally:
        sys.settrace(before)

    assert is_still_tracing
    assert "forever" not in calls
    assert RAN == {}


@pytest.mark.usefixtures("nothing_is_reported")
def test_dropping_does_not_search_what_belongs_to_the_process() -> None:
    application = [[i] for i in range(100_000)]
    generator = countdown()
    next(generator)
    shared = [application, generator]

    async def body() -> None:
        own = countdown()
        next(own)
        mine = [shared, {"generator": own}]
        await forever()
        del mine

    stage = parked(body)
    stage.loop.drop()
    del stage, body

    assert next(generator) == 2
    assert RAN == {}


@pytest.mark.usefixtures("nothing_is_reported")
@pytest.mark.parametrize("size", [MOST_SPECULATED * 2, MOST_OWNED + 1])
def test_dropping_a_body_that_holds_much_runs_none_of_it_either(size: int) -> None:
    async def body() -> None:
        generator = countdown()
        next(generator)
        box: list[object] = [generator]
        del generator
        for _ in range(size):
            box = [box]
        await forever()
        del box

    stage = parked(body)
    stage.loop.drop()
    del stage
    gc.collect()

    assert RAN == {}
