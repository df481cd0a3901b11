"""How whoever awaits something goes on in the very callback that says it is done, without a turn of the loop between.

An ordinary future has its task called in the loop's next turn. Where each step of a program waits for the disk, that
turn is a good part of what a step costs.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, NoReturn, TypeAlias

Callback: TypeAlias = Callable[[Any], object]


class Resumption(asyncio.Future[None]):
    """A future for one task to await; `resume` runs the task on at once."""

    _wake: tuple[Callback, Context | None] | None = None

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        """Take note of the task: it is who awaits a future that asks to be told."""
        assert self._wake is None, "one task awaits it"
        self._wake = fn, context

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel as any future: the task is told in the loop's next turn."""
        if not super().cancel(msg):
            return False
        if self._wake is not None:
            fn, context = self._wake
            self.get_loop().call_soon(fn, self, context=context)
        return True

    def resume(self) -> None:
        """Be done, and run the task up to where it waits next. Call this where no task is running.

        What a task raises to end the process, it raises in the loop's next turn: the caller has others to tell.
        """
        if self.done():
            return
        self.set_result(None)
        if self._wake is not None:
            fn, context = self._wake
            try:
                if context is None:
                    fn(self)
                else:
                    context.run(fn, self)
            except (KeyboardInterrupt, SystemExit) as error:
                self.get_loop().call_soon(_raise, error)


def _raise(error: BaseException) -> NoReturn:
    raise error
