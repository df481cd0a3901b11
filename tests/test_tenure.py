"""A process that was stopped, or blocked, for longer than its lease begins no effect that others may be making."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from satay.app import App
from satay.clock import MICROSECONDS, Chance, SystemClock
from satay.errors import ClaimLostError, SessionLostError
from satay.scheduler import SchedulerSettings
from satay.settings import make_settings
from satay.threads import DEFAULT_THREADS
from tests.driving import in_loop

LEASE_SECONDS: Final = 15.0
LATER_SECONDS: Final = 60.0

sent: list[str] = []
"""What was sent, and by which app."""

meanwhile: list[Callable[[], None]] = []
"""What happens to the process in the first call of `idle`, while its loop is blocked."""

gate = threading.Event()
"""Holds the threads of the first app until it is opened."""

busy: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    sent.clear()
    meanwhile.clear()
    busy.clear()
    gate.clear()


@satay.task(name="tenure.idle")
async def idle() -> None:
    if meanwhile:
        meanwhile.pop()()


@satay.task(name="tenure.send", effect="idempotent")
async def send(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"


@satay.task(name="tenure.occupy")
def occupy(number: int) -> None:
    busy.append(number)
    gate.wait()


@satay.task(name="tenure.post", effect="idempotent", timeout=3600)
def post(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"


@satay.workflow(name="tenure.side_by_side")
async def side_by_side(to: str) -> str:
    _, answer = await asyncio.gather(idle(), send(to))
    return str(answer)


@satay.workflow(name="tenure.behind_others")
async def behind_others(to: str) -> str:
    *_, answer = await asyncio.gather(*[occupy(number) for number in range(DEFAULT_THREADS)], post(to))
    return str(answer)


class ShiftedClock(SystemClock):
    """The clock of the machine, so many seconds ahead."""

    def __init__(self, shift_seconds: float = 0.0) -> None:
        self.shift_seconds = shift_seconds

    def now(self) -> int:
        return super().now() + round(self.shift_seconds * MICROSECONDS)


def app_at(place: Path, clock: ShiftedClock) -> App:
    return App(make_settings(data_dir=place), SchedulerSettings(lease_seconds=LEASE_SECONDS), clock, Chance())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # threads do what is waited for
        await asyncio.sleep(0.001)


def elsewhere(work: Callable[[], Any]) -> None:
    """Do it on another loop in another thread, as another process would, while this loop is blocked."""
    errors: list[BaseException] = []

    def do() -> None:
        try:
            in_loop(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    thread.join()
    assert not errors, errors


async def finish_run(place: Path) -> None:
    """Take the run over, a minute later, and bring it to its end."""
    async with app_at(place, ShiftedClock(LATER_SECONDS)) as app:
        assert "sent to anna" == await app.resume("r").result()


@pytest.mark.parametrize("is_taken_over", [True, False])
def test_a_call_that_a_blocked_loop_delayed_is_not_made_where_others_made_it(
    is_taken_over: bool, tmp_path: Path
) -> None:
    clock = ShiftedClock()

    def sleep_long() -> None:
        clock.shift_seconds = LATER_SECONDS
        if is_taken_over:
            elsewhere(lambda: finish_run(tmp_path))

    async def run() -> str:
        meanwhile.append(sleep_long)
        async with app_at(tmp_path, clock) as app:
            app.start(side_by_side, "anna", run_id="r")
            return str(await app.handle("r").result())

    assert "sent to anna" == in_loop(run())
    assert ["anna"] == sent


@pytest.mark.parametrize("is_taken_over", [True, False])
def test_a_plain_function_that_waited_for_a_thread_is_not_called_where_others_called_it(
    is_taken_over: bool, tmp_path: Path
) -> None:
    clock = ShiftedClock()

    async def run() -> str:
        async with app_at(tmp_path, clock) as app:
            app.start(behind_others, "anna", run_id="r")
            await until(lambda: len(busy) == DEFAULT_THREADS)
            clock.shift_seconds = LATER_SECONDS
            if is_taken_over:
                other = asyncio.create_task(finish_run(tmp_path))
                await until(lambda: len(busy) == 2 * DEFAULT_THREADS)
                gate.set()
                await other
            gate.set()
            return str(await app.handle("r").result())

    assert "sent to anna" == in_loop(run())
    assert ["anna"] == sent


async def mail(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"


def mail_from_thread(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"


async def make_the_calls(session: satay.Session, tool: Callable[[str], Any]) -> str:
    _, receipt = await asyncio.gather(idle(), session.call("mail", tool, "anna", key="mail", effect="idempotent"))
    return str(receipt.result)


async def finish_session(place: Path, tool: Callable[[str], Any]) -> None:
    async with app_at(place, ShiftedClock(LATER_SECONDS)), satay.Session("s") as session:
        assert "sent to anna" == await make_the_calls(session, tool)


@pytest.mark.parametrize("tool", [mail, mail_from_thread])
@pytest.mark.parametrize("is_taken_over", [True, False])
def test_a_tool_that_a_blocked_loop_delayed_is_not_called_where_others_called_it(
    is_taken_over: bool, tool: Callable[[str], Any], tmp_path: Path
) -> None:
    clock = ShiftedClock()

    def sleep_long() -> None:
        clock.shift_seconds = LATER_SECONDS
        if is_taken_over:
            elsewhere(lambda: finish_session(tmp_path, tool))

    async def run() -> str:
        async with app_at(tmp_path, clock), satay.Session("s") as session:
            meanwhile.append(sleep_long)
            return await make_the_calls(session, tool)

    if is_taken_over:
        with pytest.raises(SessionLostError):
            in_loop(run())
    else:
        assert "sent to anna" == in_loop(run())
    assert ["anna"] == sent


async def occupy_all(session: satay.Session) -> "asyncio.Future[Any]":
    """Have calls of the session wait in all threads."""
    calls = [session.call("occupy", occupy.fn, number, key=str(number)) for number in range(DEFAULT_THREADS)]
    occupying = asyncio.gather(*calls)
    await until(lambda: len(busy) == DEFAULT_THREADS)
    return occupying


@pytest.mark.parametrize("is_taken_over", [True, False])
def test_the_tool_of_a_participant_whose_claim_ran_out_is_not_called_where_others_called_it(
    is_taken_over: bool, tmp_path: Path
) -> None:
    clock = ShiftedClock()

    async def run() -> str:
        async with app_at(tmp_path, clock), satay.Session("s") as session:
            occupying = await occupy_all(session)
            async with satay.Session.join(session.carrier()) as part:
                late = part.call("mail", mail_from_thread, "anna", key="mail", effect="idempotent")
                calling = asyncio.ensure_future(late)
                await until(lambda: "mail" in [task.get_name() for task in asyncio.all_tasks()])
                await asyncio.sleep(0)  # It has looked at its claim, and waits for a thread.
                clock.shift_seconds = LATER_SECONDS
                if is_taken_over:
                    receipt = await session.call("mail", mail, "anna", key="mail", effect="idempotent")
                    assert "reclaimed" == receipt.status
                gate.set()
                await occupying
                return (await calling).result

    if is_taken_over:
        with pytest.raises(ClaimLostError):
            in_loop(run())
    else:
        assert "sent to anna" == in_loop(run())
    assert ["anna"] == sent
