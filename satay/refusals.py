"""What is said of a value that cannot be recorded, or of a text that cannot be read: the path to the place, and why."""

from collections.abc import Awaitable, Callable

from satay.errors import EncodeError


def path_step(key: object) -> str:
    """One step of a path: `.name`, or `['any other key']`."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_short(key)}]"


def _short(key: object) -> str:
    try:
        text = repr(key)
    except Exception:  # a user's __repr__; the path only loses one step's name
        text = f"<{type(key).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def forgotten_call(cls: type) -> str:
    """What ends a message about a value that is the beginning of a call instead of its result."""
    if issubclass(cls, Awaitable):
        return "; did you forget 'await'?"
    return "; did you forget to call it, with 'await'?" if issubclass(cls, Callable) else ""  # type: ignore[arg-type]  # an abstract class


def way_out(cls: type) -> str:
    """What ends a message about a value of a class that has no recorded form."""
    return forgotten_call(cls) or "; put plain data in its place, such as a dict or a data class"


def unrecordable(where: str, reason: str, *, path: str) -> EncodeError:
    """The refusal of a value that has no recorded form."""
    return EncodeError(f"{where} cannot be recorded: at {path}, {reason}", path=path)


def misfit(where: str, reason: str, *, path: str) -> EncodeError:
    """The refusal of a value that is not what was declared."""
    return EncodeError(f"{where} does not fit its declared type: at {path}, {reason}", path=path)


class UnencodableError(Exception):
    """Why a value cannot be written; `steps` is the path to it, innermost step first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    @property
    def path(self) -> str:
        return "$" + "".join(reversed(self.steps))


class MalformedTagError(Exception):
    """A recorded tag that cannot be read here."""
