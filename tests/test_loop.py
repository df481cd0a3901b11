"""The loop of one workflow body: deterministic, and stepped from outside."""

import asyncio
import contextlib
import contextvars
import gc
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Generator
from typing import Any

import anyio
import pytest

from satay.clock import MICROSECONDS
from satay.errors import InvalidValueError, UsageError, WorkflowSideEffectError
from satay.loop import MOST_UNHANDLED, WorkflowLoop
from tests.stages import PLENTY, Body, Stage, Timers, hop, parked, run

# --- a corpus of bodies, whose traces must not depend on hashes, addresses or the garbage collector -------------------

TRACE: list[object] = []


def note(*what: object) -> None:
    task = asyncio.current_task()
    TRACE.append((asyncio.get_running_loop().time(), task.get_name() if task else None, *what))


async def noted(name: str, seconds: float = 1) -> str:
    try:
        note("start", name)
        await asyncio.sleep(seconds)
        note("end", name)
        return name
    finally:
        note("finally", name)


async def wait_all() -> None:
    done, _ = await asyncio.wait({asyncio.create_task(noted(f"w{i}")) for i in range(13)})
    note([task.result() for task in done])


async def wait_first() -> None:
    running = {asyncio.create_task(noted(f"f{i}", 1 + i % 3)) for i in range(9)}
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        note([task.result() for task in done], [task.get_name() for task in running])


async def wait_futures() -> None:
    loop = asyncio.get_running_loop()
    futures = {loop.create_future(): i for i in range(11)}
    for future in futures:
        loop.call_later(1, future.set_result, None)
    done, _ = await asyncio.wait(set(futures))
    note([futures[future] for future in done])


async def as_completed_list() -> None:
    for earliest in asyncio.as_completed([noted(f"a{i}", 1 + i % 2) for i in range(12)]):
        note(await earliest)


async def as_completed_tasks() -> None:
    for earliest in asyncio.as_completed({asyncio.create_task(noted(f"s{i}")) for i in range(12)}, timeout=9):
        note(await earliest)


async def as_completed_awaitables() -> None:
    class Promise:
        def __init__(self, name: str) -> None:
            self.name = name

        def __await__(self) -> Generator[Any, Any, str]:
            return noted(self.name).__await__()

    mixed: list[Awaitable[str]] = [Promise("p0"), noted("p1"), Promise("p2"), asyncio.create_task(noted("p3"))]
    for earliest in asyncio.as_completed(mixed):
        note(await earliest)


async def failing_group() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("no")

    try:
        async with asyncio.TaskGroup() as group:
            for i in range(12):
                group.create_task(noted(f"g{i}", 5))
            group.create_task(fail())
    except* ValueError as errors:
        note([str(error) for error in errors.exceptions])


async def gather_cancelled() -> None:
    try:
        await asyncio.wait_for(asyncio.gather(*(noted(f"c{i}", 9) for i in range(12))), 1)
    except TimeoutError:
        note("timeout")


async def all_tasks_listed() -> None:
    for i in range(6):
        asyncio.create_task(noted(f"t{i}", 3))  # noqa: RUF006  # the loop keeps it
    await asyncio.sleep(1)
    note([task.get_name() for task in asyncio.all_tasks()])


async def cyclic_generators() -> None:
    async def numbers(name: str) -> AsyncIterator[object]:
        me: list[object] = []
        try:
            while True:
                yield me
        finally:
            note("closed", name)

    for i in range(300):
        generator = numbers(f"n{i}")
        me = await anext(generator)
        assert isinstance(me, list)
        me.append(generator)
        del generator, me
        [[] for _ in range(100)]
    await asyncio.sleep(1)
    note("no generator was closed in between")


async def queues_and_locks() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(2)
    lock, condition, barrier = asyncio.Lock(), asyncio.Condition(), asyncio.Barrier(3)
    semaphore, event = asyncio.Semaphore(2), asyncio.Event()

    async def produce() -> None:
        for i in range(6):
            await queue.put(i)
        event.set()

    async def consume(name: str) -> None:
        for _ in range(3):
            async with semaphore, lock:
                note(name, await queue.get())
        await event.wait()
        async with condition:
            condition.notify_all()
        note(name, await barrier.wait())

    await asyncio.gather(consume("x"), consume("y"), produce(), barrier.wait())


async def anyio_groups() -> None:
    event = anyio.Event()

    async def child(name: str) -> None:
        try:
            await event.wait()
            note(name)
            await anyio.sleep(100)
        finally:
            note("gone", name)

    with anyio.move_on_after(2) as scope:
        async with anyio.create_task_group() as group:
            for i in range(9):
                group.start_soon(child, f"k{i}")
            await anyio.sleep(1)
            event.set()
    note(scope.cancelled_caught)
    try:
        with anyio.fail_after(1):
            await anyio.sleep(100)
    except TimeoutError:
        note("too late")
    async with anyio.create_task_group() as group:
        with anyio.CancelScope(shield=True):
            group.cancel_scope.cancel()
            await anyio.sleep(1)
            note("shielded")


CORPUS: tuple[Body, ...] = (
    wait_all, wait_first, wait_futures, as_completed_list, as_completed_tasks, as_completed_awaitables, failing_group,
    gather_cancelled, all_tasks_listed, cyclic_generators, queues_and_locks, anyio_groups,
)  # fmt: skip


def trace_of(body: Body) -> list[object]:
    TRACE.clear()
    run(body)
    return TRACE.copy()


def print_traces(disturbance: int) -> None:
    """What the subprocesses run: every body, in a heap that `disturbance` has shuffled."""
    junk: list[object] = [bytearray(i * disturbance % 700) for i in range(997 * disturbance)]
    del junk[:: disturbance + 2]
    gc.set_threshold(50 + 331 * disturbance)
    others = [parked(wait_all) for _ in range(3 * disturbance)]
    for body in CORPUS:
        sys.stdout.write(f"{body.__name__} {trace_of(body)}\n")
    for other in others:
        other.loop.drop()


if __name__ == "__main__":
    print_traces(int(sys.argv[1]))


@pytest.mark.slow
def test_bodies_take_the_same_steps_under_every_hash_seed_and_heap() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(disturbance)],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for disturbance, seed in enumerate((0, 1, 42, 1234567))
    ]
    outputs = [process.communicate()[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0, 0], outputs[0]
    assert len(outputs[0].splitlines()) == len(CORPUS)
    assert outputs == [outputs[0]] * 4


@pytest.mark.parametrize("body", CORPUS, ids=lambda body: str(body.__name__))
def test_a_body_takes_the_same_steps_twice_in_one_process(body: Body) -> None:
    first = trace_of(body)

    assert trace_of(body) == first
    assert first


# --- stepping ---------------------------------------------------------------------------------------------------------


def test_concurrent_chains_keep_their_own_results() -> None:
    async def chain(name: str, seconds: float) -> list[str]:
        first = await hop(name, seconds)
        return [first, await hop(first + "2", 0)]

    async def body() -> list[list[str]]:
        return list(await asyncio.gather(chain("slow", 80), chain("fast", 10)))

    assert run(body) == [["slow", "slow2"], ["fast", "fast2"]]


def test_equal_waits_are_served_in_the_order_of_their_calls() -> None:
    async def body() -> list[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        for word in ("a", "b", "c"):
            asyncio.get_running_loop().call_later(1, queue.put_nowait, word)
        return await asyncio.gather(*(queue.get() for _ in range(3)))

    assert run(body) == ["a", "b", "c"]


def test_a_cancelled_gather_is_torn_down_in_the_order_of_its_calls() -> None:
    notes: list[int] = []

    async def part(i: int) -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0)
            notes.append(i)

    async def body() -> None:
        await asyncio.gather(*(part(i) for i in range(20)))

    stage = parked(body)
    stage.task.cancel()
    stage.turn()

    assert stage.task.cancelled()
    assert notes == list(range(20))


@pytest.mark.parametrize("library", ["asyncio", "anyio"])
def test_a_failing_group_is_torn_down_in_the_order_of_its_calls(library: str) -> None:
    notes: list[int] = []

    async def part(i: int) -> None:
        try:
            await asyncio.gather(asyncio.sleep(5), asyncio.sleep(6))
        finally:
            notes.append(i)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def with_asyncio() -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(20):
                group.create_task(part(i))
            group.create_task(fail())

    async def with_anyio() -> None:
        async with anyio.create_task_group() as group:
            for i in range(20):
                group.start_soon(part, i)
            group.start_soon(fail)

    with pytest.raises(ExceptionGroup):
        run(with_asyncio if library == "asyncio" else with_anyio)

    assert notes == list(range(20))


def test_a_turn_stops_at_its_budget_and_goes_on_where_it_stopped() -> None:
    steps = 0

    async def spin() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    loop = WorkflowLoop(Timers())
    for _ in range(3):
        loop.spawn(spin(), contextvars.copy_context())

    assert not loop.run_turn(7)
    assert steps == 7
    assert not loop.run_turn(2)
    assert steps == 9
    loop.drop()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_passes_through_and_restores_the_host(interruption: type[BaseException]) -> None:
    calls: list[str] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(calls.append, "later")
        raise interruption

    hooks = sys.get_asyncgen_hooks()
    stage = Stage(body)
    with pytest.raises(interruption):
        stage.turn()
    assert (asyncio._get_running_loop(), sys.get_asyncgen_hooks(), gc.isenabled()) == (None, hooks, True)
    stage.turn()

    assert calls == ["later"]
    with pytest.raises(interruption):
        stage.task.result()


def test_a_body_runs_inside_a_callback_of_a_host_loop() -> None:
    async def body() -> tuple[object, str]:
        await asyncio.sleep(3)
        task = asyncio.current_task()
        assert task is not None
        return asyncio.get_running_loop(), task.get_name()

    async def host() -> None:
        stage = Stage(body)
        finished = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: finished.set_result(stage.finish()))

        assert await finished == (stage.loop, "Task-1")
        assert asyncio.get_running_loop() is not stage.loop

    asyncio.run(host())


def test_a_loop_cannot_be_stepped_or_dropped_by_its_own_body() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WorkflowLoop)
        with pytest.raises(UsageError):
            loop.run_turn(1)
        with pytest.raises(UsageError):
            loop.drop()

    run(body)


def test_tasks_are_listed_in_the_order_of_creation_while_they_are_not_done() -> None:
    async def body() -> None:
        for i in range(40):
            asyncio.create_task(hop("x", 1 + i % 2), name=f"part {i}")  # noqa: RUF006  # the loop keeps it
        await asyncio.sleep(9)

    stage = parked(body)
    for _ in range(20):
        stage.fire_next()
    names = [task.get_name() for task in stage.loop.tasks()]

    assert names == ["Task-1", *(f"part {i}" for i in range(1, 40, 2))]
    stage.loop.drop()


def test_a_task_that_nobody_holds_is_not_lost() -> None:
    done: list[str] = []

    async def background() -> None:
        await asyncio.sleep(1)
        done.append("background")

    async def body() -> None:
        asyncio.create_task(background())  # noqa: RUF006  # the loop keeps it
        await asyncio.sleep(2)

    stage = parked(body)
    gc.collect()
    stage.finish()

    assert done == ["background"]


def test_context_variables_belong_to_their_task() -> None:
    who = contextvars.ContextVar("who", default="nobody")

    async def child(name: str) -> str:
        before = who.get()
        who.set(name)
        await asyncio.sleep(1)
        return f"{before}>{who.get()}"

    async def body() -> list[str]:
        who.set("root")
        return [*await asyncio.gather(child("a"), child("b")), who.get()]

    assert run(body) == ["root>a", "root>b", "root"]
    assert who.get() == "nobody"


def test_errors_that_nobody_handled_are_collected_up_to_a_limit(capfd: pytest.CaptureFixture[str]) -> None:
    async def fail(i: int) -> None:
        raise ValueError(i)

    async def body() -> None:
        asyncio.get_running_loop().call_soon(math.sqrt, -1)
        for i in range(MOST_UNHANDLED + 20):
            asyncio.create_task(fail(i))  # noqa: RUF006  # to lose it is the point
        await asyncio.sleep(1)

    stage = Stage(body)
    stage.finish()
    stage.loop.tasks()
    errors = [str(context["exception"]) for context in stage.loop.unhandled]

    assert errors[0] in ("math domain error", "expected a nonnegative input, got -1.0")
    assert set(errors[1:]) < {str(i) for i in range(MOST_UNHANDLED + 20)}
    assert len(errors) == MOST_UNHANDLED
    assert capfd.readouterr() == ("", "")


def test_an_async_generator_is_closed_when_the_body_lets_go_of_it() -> None:
    closed: list[float] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(3)
            closed.append(asyncio.get_running_loop().time())

    async def body() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(10)

    run(body)

    assert closed == [3]


def test_a_loop_and_its_parked_body_are_small() -> None:
    async def body() -> None:
        await asyncio.get_running_loop().create_future()

    context = contextvars.copy_context()
    timers = Timers()
    loops = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            loop = WorkflowLoop(timers)
            loop.spawn(body(), context)
            loop.run_turn(PLENTY)
            loops.append(loop)
        size_bytes = (tracemalloc.get_traced_memory()[0] - before) / len(loops)
    finally:
        tracemalloc.stop()
    for loop in loops:
        loop.drop()

    assert size_bytes < 2048


# --- timers -----------------------------------------------------------------------------------------------------------


def test_time_is_the_journals_and_never_goes_back() -> None:
    loop = WorkflowLoop(Timers())
    loop.advance_to(50 * MICROSECONDS)
    loop.advance_to(20 * MICROSECONDS)

    assert loop.time() == 50


def test_a_timer_only_fires_when_it_is_fired() -> None:
    calls: list[str] = []
    timers = Timers()
    loop = WorkflowLoop(timers)
    loop.advance_to(100 * MICROSECONDS)
    timer = loop.call_later(5, calls.append, "due")
    loop.advance_to(200 * MICROSECONDS)
    loop.run_turn(PLENTY)

    assert (calls, timers.told, timer.when(), timer.call) == ([], ["created 105"], 105, -1)
    loop.fire(timer)
    loop.fire(timer)
    loop.run_turn(PLENTY)
    assert calls == ["due"]


def test_a_timer_that_was_called_off_is_announced_once_and_never_fires() -> None:
    calls: list[str] = []
    timers = Timers()
    loop = WorkflowLoop(timers)
    timer = loop.call_later(5, calls.append, "due")
    timer.cancel()
    timer.cancel()
    loop.fire(timer)
    loop.run_turn(PLENTY)

    assert (calls, timers.told) == ([], ["created 5", "cancelled 5"])


def test_a_timer_cancelled_after_it_fired_does_not_run_and_is_not_announced() -> None:
    calls: list[str] = []
    timers = Timers()
    loop = WorkflowLoop(timers)
    timer = loop.call_later(5, calls.append, "due")
    loop.fire(timer)
    timer.cancel()
    loop.run_turn(PLENTY)

    assert (calls, timers.told) == ([], ["created 5"])


@pytest.mark.parametrize("delay", [0, -1, -0.5, -math.inf])
def test_a_delay_that_is_not_ahead_means_in_this_turn_without_a_timer(delay: float) -> None:
    calls: list[str] = []
    timers = Timers()
    loop = WorkflowLoop(timers)
    loop.call_later(delay, calls.append, "a")
    loop.call_at(delay, calls.append, "b")
    loop.call_later(delay, calls.append, "never").cancel()
    loop.run_turn(PLENTY)

    assert (calls, timers.told) == (["a", "b"], [])


@pytest.mark.parametrize("delay", [math.nan, math.inf, 1e30, 999_999_999 * 86_400.0])
def test_a_delay_that_no_calendar_holds_is_refused_before_anything_is_created(delay: float) -> None:
    timers = Timers()
    loop = WorkflowLoop(timers)
    with pytest.raises(InvalidValueError, match="under a thousand years"):
        loop.call_later(delay, print)
    with pytest.raises(InvalidValueError):
        loop.call_at(delay, print)

    assert timers.told == []


def test_timeouts_of_asyncio_are_timers() -> None:
    async def body() -> list[str]:
        seen = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(60)
        seen.append(f"timeout at {asyncio.get_running_loop().time():g}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        seen.append(await asyncio.wait_for(hop("quick", 1), 10))
        shielded = asyncio.ensure_future(hop("shielded", 3))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(shielded), 1)
        seen.append(await shielded)
        return seen

    stage = Stage(body)

    assert stage.finish() == ["timeout at 5", "quick", "shielded"]
    assert stage.timers.outstanding == []


# --- what is refused --------------------------------------------------------------------------------------------------


async def in_thread() -> None:
    await asyncio.to_thread(print)


async def in_executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, print)


async def open_socket() -> None:
    await asyncio.open_connection("localhost", 1)


async def run_program() -> None:
    await asyncio.create_subprocess_exec("true")


async def run_shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def serve() -> None:
    await asyncio.start_server(lambda reader, writer: None, port=1)


async def resolve_name() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 1)


async def handle_signal() -> None:
    asyncio.get_running_loop().add_signal_handler(2, print)


async def call_from_thread() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(print)


async def use_anyio_thread() -> None:
    await anyio.to_thread.run_sync(print)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (in_thread, "run_in_executor"),
        (in_executor, "run_in_executor"),
        (open_socket, "create_connection"),
        (run_program, "subprocess_exec"),
        (run_shell, "subprocess_shell"),
        (serve, "create_server"),
        (resolve_name, "getaddrinfo"),
        (handle_signal, "add_signal_handler"),
        (use_anyio_thread, "run_in_executor"),
        (call_from_thread, "call_soon_threadsafe"),
    ],
)
def test_side_effects_are_refused_with_what_was_asked_and_where_it_belongs(body: Body, name: str) -> None:
    with pytest.raises(WorkflowSideEffectError, match=rf"`loop\.{name}`.*@satay\.task"):
        run(body)


async def in_thread_of_a_task() -> None:
    await asyncio.create_task(asyncio.to_thread(print))


async def in_executor_itself() -> None:
    await asyncio.get_running_loop().run_in_executor(None, print)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (in_thread, r"by `asyncio\.to_thread` at \S*test_loop\.py:\d+ in in_thread,"),
        (run_program, r"by `asyncio\.create_subprocess_exec` at \S*test_loop\.py:\d+ in run_program,"),
        (use_anyio_thread, r"by `anyio\.to_thread\.run_sync` at \S*test_loop\.py:\d+ in use_anyio_thread,"),
        (in_executor_itself, r"`loop\.run_in_executor` at \S*test_loop\.py:\d+ in in_executor_itself,"),
        (in_thread_of_a_task, r"by `asyncio\.to_thread`, which"),
    ],
)
def test_a_refusal_names_what_the_body_wrote_and_where(body: Body, named: str) -> None:
    with pytest.raises(WorkflowSideEffectError, match=named):
        run(body)


def test_the_loop_cannot_be_run_stopped_or_reconfigured_by_a_body() -> None:
    loop = WorkflowLoop(Timers())
    for name in ("run_forever", "stop", "close", "set_task_factory"):
        with pytest.raises(WorkflowSideEffectError, match=rf"`loop\.{name}`"):
            getattr(loop, name)()

    assert (loop.is_running(), loop.is_closed()) == (False, False)


def test_no_method_of_a_loop_is_left_out() -> None:
    missing = [
        name
        for name, method in vars(asyncio.AbstractEventLoop).items()
        if callable(method) and not name.startswith("_") and getattr(WorkflowLoop, name) is method
    ]

    assert missing == []
