"""The pieces that views are made of: words in their colours, moments, amounts, and tables of a fixed look.

Text that comes from a journal goes through `text_of`, so no control character of it reaches the terminal, and is never
read as markup.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from rich.box import Box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from satay.tables import printable

MAX_OUTCOME_CHARACTERS: Final = 60
"""A result or an error in a timeline is shown with at most this many characters."""

_RULED: Final = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")

_STYLES: Final[Mapping[str, str]] = {
    "running": "cyan",
    "retrying": "yellow",
    "waiting": "blue",
    "sleeping": "blue",
    "waiting for an event": "blue",
    "waiting for an approval": "magenta",
    "waiting for a child": "blue",
    "overdue": "red",
    "cancelling": "yellow",
    "needs_decision": "magenta",
    "needs a decision": "magenta",
    "decided": "yellow",
    "crashed": "red",
    "stranded": "red",
    "suspended": "yellow",
    "created": "blue",
    "started": "cyan",
    "stepping": "cyan",
    "paused": "blue",
    "completed": "green",
    "continued": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "timed_out": "yellow",
    "open": "cyan",
    "blocked": "magenta",
}
"""The colours of states and statuses. The word is always there too."""


def text_of(value: object, style: str = "") -> Text:
    """What somebody wrote, harmless."""
    return Text(printable(str(value)), style=style)


def state_text(name: str) -> Text:
    """The name of a state or a status, in its colour."""
    return Text(printable(name.replace("_", " ")), style=_STYLES.get(name, ""))


def table_of(*columns: str, right: Sequence[str] = (), broken: Sequence[str] = ()) -> Table:
    """A table. Where a terminal has no room for all of it, the cells of `broken` columns are broken into lines."""
    table = Table(box=_RULED, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    for column in columns:
        side: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=side, no_wrap=column not in broken, overflow="fold")
    return table


def facts_table(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and values, one a line; a long value is broken into several."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(text_of(name), value)
    return table


def moment_text(moment: datetime) -> str:
    """A moment, to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def count_text(number: int, noun: str) -> str:
    """So many of something: `1 call`, `2,000 calls`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def report(text: str) -> RenderableType:
    """A report that is text already, line by line."""
    return Text("\n".join(map(printable, text.split("\n"))))


def size_text(size_bytes: int) -> str:
    """An amount of bytes, in the unit that suits it."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.1f} {unit}"
    return f"{size_bytes} bytes"
