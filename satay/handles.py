"""Handles on runs, and the records in which runs and their entries are shown."""

import asyncio
from collections.abc import Generator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar, cast

from satay.codec import ValueCodec
from satay.context import refuse_in_body
from satay.errors import AppClosedError, UsageError
from satay.model import RunStatus

if TYPE_CHECKING:
    from satay.receipts import ForkReceipt

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What can be known of a run without reading its journal. Times are aware UTC."""

    run_id: str
    workflow: str
    status: RunStatus
    created_at: datetime
    updated_at: datetime
    wake_at: datetime | None
    parent_id: str | None
    forked_from: str | None
    fork_seq: int | None
    code_version: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        moments = {"created_at": self.created_at, "updated_at": self.updated_at, "wake_at": self.wake_at}
        data = {name: None if moment is None else moment.isoformat() for name, moment in moments.items()}
        return asdict(self) | data | {"status": self.status.value}


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One entry of a run's journal, for reading: `data` is its payload as plain data."""

    seq: int
    type: str
    at: datetime
    data: dict[str, Any]


class RunReader(Protocol):
    """The app that a handle belongs to, as far as the handle needs it."""

    async def status(self, run: str) -> RunStatus: ...

    async def cancel(self, run_id: str) -> None: ...

    async def terminate(self, run_id: str) -> None: ...

    async def promote(self, run: str) -> None: ...

    async def result(self, run_id: str, codec: ValueCodec | None, *, drive: bool) -> Any: ...


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise `UsageError` on another event loop than that of an app, such as a body's: nobody would answer."""
    if asyncio.get_running_loop() is not loop:
        refuse_in_body()
        raise UsageError(
            "an app was used on another event loop than the one on which it was opened, such as one in a thread; make "
            "the call on its own loop, or open an app on this one with satay.run_app()"
        )


async def wait_created(creation: "asyncio.Task[str]", run_id: str) -> str:
    """Wait for a run that is being created, and return its id. A caller that gives up does not disturb the creation."""
    if not creation.done():
        check_loop(creation.get_loop())
    try:
        return await asyncio.shield(creation)
    except asyncio.CancelledError:
        if not creation.cancelled():
            raise
        raise AppClosedError(f"the app was closed before run {run_id!r} was created") from None


class RunReference:
    """What stands for a run wherever satay takes the id of one: a handle, or a session."""

    run_id: str


class RunHandle(RunReference, Generic[R]):
    """A run, by its id. `await handle` returns once the run is durably there, `await handle.result()` when it ended.

    Awaiting the handle raises what kept the run from being created, attached to or resumed: `RunConflictError`,
    `RunNotFoundError`, `UnknownWorkflowError`, a `JournalError`, or `AppClosedError`; and `UsageError` on another event
    loop than the app's.
    """

    def __init__(
        self,
        app: RunReader,
        run_id: str,
        result_codec: ValueCodec | None,
        created: "asyncio.Task[str] | None",
        *,
        drives: bool = True,
    ) -> None:
        self._app = app
        self._drives = drives
        self._result_codec = result_codec
        self._created = created
        self.run_id = run_id

    def __await__(self) -> Generator[Any, None, Self]:
        return self._wait_created().__await__()

    async def _wait_created(self) -> Self:
        if self._created is not None:
            self.run_id = await wait_created(self._created, self.run_id)
            self._created = None  # The handle may live long, and the task is not needed for that.
        return self

    async def result(self) -> R:
        """Wait for the run to end, and return what the workflow returned.

        Raises the workflow's own error where its type can be rebuilt, else `WorkflowFailedError`;
        `WorkflowCancelledError`; and what keeps the run from going on, such as `NondeterminismError` or
        `NeedsDecisionError`. A caller that gives up waiting does not disturb the run.
        """
        await self._wait_created()
        return cast(R, await self._app.result(self.run_id, self._result_codec, drive=self._drives))

    async def status(self) -> RunStatus:
        """What the run, or the one that goes on in its place, is doing. Raises as awaiting the handle does."""
        await self._wait_created()
        return await self._app.status(self.run_id)

    async def cancel(self) -> None:
        """Ask for the run to be cancelled. It ends after its cleanup; wait for that with `result()`.

        Asking again changes nothing; `terminate()` ends a run whose cleanup takes too long. Raises as awaiting the
        handle does.
        """
        await self._wait_created()
        await self._app.cancel(self.run_id)

    async def terminate(self) -> None:
        """Ask for the run to end at once, as cancelled: its body is dropped, and its cleanup does not run.

        Raises as awaiting the handle does.
        """
        await self._wait_created()
        await self._app.terminate(self.run_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id!r}>"


class ForkHandle(RunHandle[R]):
    """A fork. `receipt` is what it inherited."""

    def __init__(self, app: RunReader, run_id: str, result_codec: ValueCodec | None, receipt: "ForkReceipt") -> None:
        super().__init__(app, run_id, result_codec, None)
        self.receipt = receipt

    async def promote(self) -> None:
        """Say that this fork is the one to keep of the forks of its source; see `App.promote`."""
        await self._app.promote(self.run_id)


RunOrId: TypeAlias = str | RunReference
"""How a caller names a run: by its id, by a handle on it, or by the session that it is."""
