"""A workflow that sends mail in every way in which a task can be called. What is sent is a line in a file.

The mail is counted there, not in a journal: it is what the tests of tool policies are about.
"""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import satay
from satay.errors import TaskBlockedError
from satay.testing import AppUnderTest, Faults, ManualClock, open_app, pause, settle
from tests.corpus import NEVER_SECONDS

SOURCE_ID: Final = "source"
FORK_ID: Final = "fork"


@dataclass(frozen=True)
class Order:
    """What a mailing is told: where mail goes, what kind of task sends it, and in which way it is called."""

    outbox: str
    effect: str
    shape: str


def post(outbox: str, letter: str) -> None:
    """The effect: a line in a file."""
    with Path(outbox).open("a", encoding="utf-8") as file:
        file.write(letter + "\n")


def letters(outbox: Path) -> list[str]:
    """What was sent, in order."""
    return outbox.read_text(encoding="utf-8").splitlines() if outbox.exists() else []


@satay.task(name="mailings.send_external", effect="external")
async def send_external(outbox: str, letter: str) -> str:
    post(outbox, letter)
    return f"sent {letter}"


@satay.task(name="mailings.send_idempotent", effect="idempotent")
async def send_idempotent(outbox: str, letter: str) -> str:
    post(outbox, letter)
    return f"sent {letter}"


@satay.task(name="mailings.send_pure", effect="pure")
async def send_pure(outbox: str, letter: str) -> str:
    post(outbox, letter)
    return f"sent {letter}"


@satay.task(name="mailings.send")
def send(outbox: str, letter: str) -> str:
    post(outbox, letter)
    return f"sent {letter}"


@satay.task(name="mailings.send_in_the_end", effect="external", retries=3, backoff=10.0)
async def send_in_the_end(outbox: str, letter: str) -> str:
    post(outbox, letter)
    if satay.task_context().attempt < 3:
        raise ConnectionError("no answer")
    return f"sent {letter}"


@satay.task(name="mailings.notify")
async def notify(outbox: str, letter: str, effect: str) -> str:
    """A task that calls another one itself, which is a function call."""
    sending = SENDERS[effect](outbox, letter)
    sent: str = sending if isinstance(sending, str) else await sending
    return sent


@satay.task(name="mailings.notify_in_a_thread")
def notify_in_a_thread(outbox: str, letter: str) -> str:
    sent: str = send(outbox, letter)  # type: ignore[assignment]  # it is a plain function here
    return sent


@satay.workflow(name="mailings.through_a_task")
async def through_a_task(order: Order) -> list[str]:
    await draft("dear all")
    try:
        return [await notify(order.outbox, "nested", order.effect), await notify_in_a_thread(order.outbox, "again")]
    except TaskBlockedError as error:
        return [f"{error.policy}: {error.task}"]


@satay.task(name="mailings.start_a_run")
async def start_a_run(order: Order) -> list[str]:
    """A task that starts a run of its own, which sends."""
    return await satay.start(one_letter, order).result()


@satay.task(name="mailings.start_in_a_thread")
def start_in_a_thread(order: Order) -> list[str]:
    """A task that starts a run in a journal of its own, which sends."""
    return satay.run(one_letter, order, data_dir=Path(order.outbox).parent / "elsewhere")


@satay.task(name="mailings.fork_a_run")
async def fork_a_run(order: Order) -> list[str]:
    """A task that forks another run, which sends, and allows all that it can."""
    fork = await satay.fork("other", fork_point_seq=1, tool_policies={"*": "live", SENDER_NAMES[order.effect]: "auto"})
    found: list[str] = await fork.result()
    return found


@satay.task(name="mailings.sweep_a_run")
async def sweep_a_run(order: Order) -> list[str]:
    """A task that sweeps another run, which sends, and allows all that it can."""
    variants = {"one": satay.Variant(tool_policies={"*": "live"})}
    sweep = await satay.sweep("other", fork_point_seq=1, variants=variants)
    app = satay.functions.current_app()
    found: list[str] = await app.handle(sweep.best.run_id).result()
    return found


@satay.workflow(name="mailings.through_runs")
async def through_runs(order: Order) -> list[str]:
    await draft("dear all")
    found = await STARTERS[order.shape](order)
    return list(found)


@satay.task(name="mailings.draft")
async def draft(text: str) -> str:
    return text


SENDERS: Final[dict[str, Any]] = {
    "pure": send_pure,
    "idempotent": send_idempotent,
    "external": send_external,
    "undeclared": send,
    "retried": send_in_the_end,
}

SENDER_NAMES: Final = {effect: sender.name for effect, sender in SENDERS.items()}


STARTERS: Final[dict[str, Any]] = {
    "start": start_a_run,
    "start in a thread": start_in_a_thread,
    "fork": fork_a_run,
    "sweep": sweep_a_run,
}
"""The ways in which a task brings about another run."""


async def try_to_send(order: Order, letter: str) -> str:
    """What became of a letter: a body that goes on when it is not sent."""
    try:
        sent: str = await SENDERS[order.effect](order.outbox, letter)
    except TaskBlockedError as error:
        return f"{error.policy}: {letter}"
    return sent


@satay.workflow(name="mailings.one_letter")
async def one_letter(order: Order) -> list[str]:
    return [await try_to_send(order, f"{order.shape} letter")]


@satay.workflow(name="mailings.through_a_child")
async def through_a_child(order: Order) -> list[str]:
    return [await try_to_send(order, "from the child"), *await satay.start_child(one_letter, order).result()]


@satay.workflow(name="mailings.slow_child")
async def slow_child(order: Order) -> list[str]:
    await satay.sleep(5)
    first = await try_to_send(order, "early")
    grandchild = satay.start_child(slow_grandchild, order)
    await satay.sleep(20)
    return [first, await try_to_send(order, "late"), *await grandchild.result()]


@satay.workflow(name="mailings.slow_grandchild")
async def slow_grandchild(order: Order) -> list[str]:
    first = await try_to_send(order, "early from the grandchild")
    await satay.sleep(30)
    return [first, await try_to_send(order, "late from the grandchild")]


@satay.workflow(name="mailings.rounds")
async def rounds(order: Order) -> list[str]:
    """Goes on as a new run twice."""
    sent = await try_to_send(order, order.shape)
    await satay.sleep(1)
    if order.shape != "round 3":
        satay.continue_as_new(replace(order, shape=f"round {int(order.shape[-1]) + 1}"))
    return [sent]


async def in_sequence(order: Order) -> list[str]:
    return [await try_to_send(order, "one"), await try_to_send(order, "two")]


async def gathered(order: Order) -> list[str]:
    return list(await satay.gather(*(try_to_send(order, letter) for letter in ("one", "two", "three"))))


async def grouped(order: Order) -> list[str]:
    async with asyncio.TaskGroup() as group:
        sides = [group.create_task(try_to_send(order, letter)) for letter in ("one", "two")]
    return [side.result() for side in sides]


async def mapped(order: Order) -> list[str]:
    args = [(order.outbox, letter) for letter in ("one", "two")]
    results: list[Any] = await satay.map(
        send_pair, [[*pair] for pair in args], key=lambda pair: pair[1], return_exceptions=True
    )
    return [f"{each.policy}: mapped" if isinstance(each, TaskBlockedError) else each for each in results]


@satay.task(name="mailings.send_pair", effect="external")
async def send_pair(pair: list[str]) -> str:
    post(*pair)
    return f"sent {pair[1]}"


async def in_children(order: Order) -> list[str]:
    found = await asyncio.gather(
        satay.start_child(one_letter, order).result(), satay.start_child(through_a_child, order, key="k").result()
    )
    return [letter for letters in found for letter in letters]


async def while_cleaning_up(order: Order) -> list[str]:
    try:
        async with asyncio.timeout(5):
            await satay.sleep(60)
    except TimeoutError:
        return [await try_to_send(order, "too late")]
    return []


async def in_children_that_go_on(order: Order) -> list[str]:
    return await satay.start_child(rounds, replace(order, shape="round 1")).result()


WAYS: Final[dict[str, Callable[[Order], Any]]] = {
    "sequence": in_sequence,
    "gather": gathered,
    "group": grouped,
    "map": mapped,
    "children": in_children,
    "cleanup": while_cleaning_up,
    "continued": in_children_that_go_on,
}


@satay.workflow(name="mailings.mailing")
async def mailing(order: Order) -> list[str]:
    text = await draft("dear all")
    found: list[str] = await WAYS[order.shape](order)
    return [text, *found]


@satay.workflow(name="mailings.with_a_slow_child")
async def with_a_slow_child(order: Order) -> list[str]:
    child = satay.start_child(slow_child, order)
    await satay.sleep(10)
    await draft("meanwhile")
    return await child.result()


@satay.task(name="mailings.wait")
async def wait(seconds: float) -> None:
    await pause(seconds)


# --- running them -----------------------------------------------------------------------------------------------------


async def run_source(
    place: Path, workflow: "satay.Workflow[[Order], list[str]]", order: Order, **options: Any
) -> list[str]:
    """Run a mailing to its end: its result."""
    async with open_app(place, poll_seconds=NEVER_SECONDS, **options) as app:
        return await app.start(workflow, order, run_id=SOURCE_ID).result()


async def fork_until_crash(
    place: Path, faults: Faults, clock: ManualClock, source_id: str, fork_id: str, **options: Any
) -> list[str] | None:
    """Ask for a fork and await it: its result, or None where the app crashed before."""

    async def forked(app: AppUnderTest) -> list[str]:
        fork = await app.fork(source_id, run_id=fork_id, **options)
        result: list[str] = await fork.result()
        await settle(app)
        return result

    async with open_app(place, clock=clock, faults=faults, recover=True, poll_seconds=NEVER_SECONDS) as app:
        ending = asyncio.ensure_future(forked(app))
        await asyncio.wait((ending, faults.crashed), return_when=asyncio.FIRST_COMPLETED)
        if faults.is_crashed:
            ending.cancel()
            await asyncio.wait({ending})
            return None
        return await ending


async def fork_crashing_everywhere(
    place: Path, expected: list[str], *, source_id: str = SOURCE_ID, start: Any = None, **options: Any
) -> int:
    """Fork with a crash after each entry that is written meanwhile, in turn, and again to the end. How many crashes."""
    crashes = 0
    while True:
        copy = place.with_name(f"{place.name}-crashed")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        clock = ManualClock(start, autojump=True)
        faults = Faults().crash_after(entries=crashes + 1)
        result = await fork_until_crash(copy, faults, clock, source_id, FORK_ID, **options)
        if not faults.is_crashed:
            assert expected == result
            return crashes
        crashes += 1
        again = ManualClock(satay.clock.to_datetime(clock.now()), autojump=True)
        assert expected == await fork_until_crash(copy, Faults(), again, source_id, FORK_ID, **options)
