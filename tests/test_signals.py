"""What SIGTERM does to a process that drives runs; how such a process ends is in the tests of processes."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from satay.signals import TerminationHandler
from tests.driving import HANG_SECONDS, in_loop


@pytest.fixture(autouse=True)
def _default_action() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def in_block(body: Coroutine[Any, Any, None], handler: TerminationHandler) -> None:
    async def run() -> None:
        handler.install()
        try:
            await body
        finally:
            handler.remove()

    in_loop(run())


def is_handled() -> bool:
    return signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_the_first_signal_cancels_the_block_and_nothing_more() -> None:
    async def body() -> None:
        assert is_handled()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()

    in_block(body(), TerminationHandler())

    assert not is_handled()


def test_a_block_that_was_not_asked_to_end_goes_on_in_its_process() -> None:
    handler = TerminationHandler()

    async def body() -> None:
        await asyncio.sleep(0)

    in_block(body(), handler)
    handler.end_process_if_asked()

    assert not is_handled()


def test_removing_twice_or_without_installing_changes_nothing() -> None:
    handler = TerminationHandler()
    handler.remove()

    async def body() -> None:
        handler.remove()
        assert not is_handled()

    in_block(body(), handler)


def test_a_handler_of_the_programs_own_stays() -> None:
    def own(number: int, frame: object) -> None: ...

    signal.signal(signal.SIGTERM, own)

    async def body() -> None:
        assert own is signal.getsignal(signal.SIGTERM)

    in_block(body(), TerminationHandler())

    assert own is signal.getsignal(signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    async def body() -> None:
        assert signal.SIG_IGN is signal.getsignal(signal.SIGTERM)

    in_block(body(), TerminationHandler())

    assert signal.SIG_IGN is signal.getsignal(signal.SIGTERM)


def test_the_inner_of_two_blocks_leaves_the_signal_to_the_outer() -> None:
    async def body() -> None:
        outer = signal.getsignal(signal.SIGTERM)
        inner = TerminationHandler()
        inner.install()
        inner.remove()

        assert outer is signal.getsignal(signal.SIGTERM)
        assert is_handled()

    in_block(body(), TerminationHandler())


def test_a_block_in_another_thread_handles_no_signal() -> None:
    handled: list[bool] = []

    async def body() -> None:
        handled.append(is_handled())

    thread = threading.Thread(target=in_block, args=(body(), TerminationHandler()))
    thread.start()
    thread.join()

    assert [False] == handled


def status_of(child: int) -> int:
    """Wait for a child to end: its exit status, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_ends_by_the_signal_and_its_parent_hears_nothing_of_it() -> None:
    async def body() -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(round(HANG_SECONDS))
            signal.pause()
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        status = status_of(child)
        await asyncio.sleep(0.001)  # A turn in which the loop looks at what it was told.
        await asyncio.sleep(0)

        assert -signal.SIGTERM == status
        assert is_handled()
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    in_block(body(), TerminationHandler())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_with_the_signal_blocked_keeps_it_blocked() -> None:
    async def body() -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        child = os.fork()
        if child == 0:
            os._exit(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        is_blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_SETMASK, before)

        assert is_blocked
        assert 1 == status_of(child)

    in_block(body(), TerminationHandler())
