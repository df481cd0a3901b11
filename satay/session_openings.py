"""A session on its way: awaited it is the session, to be entered later; in an `async with` it is entered at once."""

from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

S = TypeVar("S", bound=AbstractAsyncContextManager[Any, None])


class SessionOpening(Coroutine[Any, Any, S]):
    """What `Session.resume` and `Session.fork` return, for `await` as well as for `async with`.

    It is a coroutine: `asyncio.gather`, `create_task` and the like take it, and it is awaited or entered once.

    ```python
    async with satay.Session.resume("run-42") as session: ...
    fork = await session.fork(at_step=7)
    ```
    """

    __slots__ = ("_opening", "_session")

    def __init__(self, opening: Coroutine[Any, Any, S], name: str) -> None:
        named: Any = opening
        named.__qualname__ = name  # Python warns by that name where nobody awaits it.
        self._opening = opening

    def __await__(self) -> Generator[Any, Any, S]:
        return self._opening.__await__()

    def send(self, value: Any, /) -> Any:
        """Go on with the coroutine."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """Give the coroutine up."""
        self._opening.close()

    async def __aenter__(self) -> S:
        self._session = await self._opening
        await self._session.__aenter__()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.__aexit__(kind, error, traceback)
