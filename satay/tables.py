"""Recorded values, amounts and tables as plain text for people.

The text never holds a control character, so a recorded value cannot move the cursor of the terminal that shows it.
Values read as their Python literals would; a value in the tagged format reads as what it stands for. No text here is
longer than its limit, and no more of a value is looked at than that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from io import StringIO
from typing import Any, Final, Literal, NamedTuple

from satay.model import MISSING
from satay.texts import TAG

WIDTH: Final = 100
"""How many columns a table has."""

MAX_VALUE_CHARACTERS: Final = 60
"""A value is shown with at most this many characters, unless the caller says otherwise."""

_RULED: Final = "    \n    \n ── \n    \n    \n    \n    \n    \n"
"""The box of a table: a rule below the headings, and nothing else."""


class Column(NamedTuple):
    """A column: its heading, how its cells stand, and whether it takes what width the others leave."""

    heading: str
    justify: Literal["left", "right"] = "left"
    is_wide: bool = False


def text_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """A table of one line a row, `WIDTH` columns at most, no colours. A cell that does not fit ends in `…`."""
    # Loaded when a table is made: it brings more code than the engine, and most programs print none.
    from rich.box import Box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(
        box=Box(_RULED), expand=any(column.is_wide for column in columns), padding=(0, 2, 0, 0), show_edge=False
    )
    for column in columns:
        ratio = 1 if column.is_wide else None
        table.add_column(column.heading, justify=column.justify, ratio=ratio, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=StringIO(), width=WIDTH, color_system=None, legacy_windows=False, _environ={})
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


# --- text and amounts -------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """`text` with every character that does not print, or that steers a terminal, as an escape."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def shorten(text: str, limit: int = MAX_VALUE_CHARACTERS) -> str:
    """`text` if it has at most `limit` characters, else its beginning and `…`."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shorten_middle(text: str, limit: int) -> str:
    """`text` if it has at most `limit` characters, else its beginning, `…` and its end: ids often differ at the end."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def show_seconds(seconds: float) -> str:
    """A duration in the units that suit it: `12 ms`, `3.2 s`, `5 min 2 s`, `3 d 4 h`."""
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, part, part_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {part_unit}" if rest else "")
    return f"{whole} s"


def show_cost(cost: float) -> str:
    """A cost to the millionth, without needless zeros: `0.0412`."""
    text = f"{cost:.6f}".rstrip("0").rstrip(".")
    return "<0.000001" if cost > 0 and text == "0" else text


# --- values -----------------------------------------------------------------------------------------------------------


def show_value(value: Any, limit: int = MAX_VALUE_CHARACTERS) -> str:
    """Plain data, or `MISSING`, as one line of at most `limit` characters."""
    text = ""
    for piece in _pieces(value, limit):
        text += piece
        if len(text) > limit:
            break
    return shorten(text, limit)


def show_pair(one: Any, other: Any, limit: int = MAX_VALUE_CHARACTERS) -> str:
    """`one → other`. Two long texts that begin alike are shown from shortly before where they part."""
    if isinstance(one, str) and isinstance(other, str):
        one, other, is_cut = _without_common_start(one, other, limit)
        before = "…" if is_cut else ""
        return f"{before}{show_value(one, limit)} → {before}{show_value(other, limit)}"
    return f"{show_value(one, limit)} → {show_value(other, limit)}"


def _without_common_start(one: str, other: str, limit: int) -> tuple[str, str, bool]:
    pairs = zip(one, other, strict=False)
    common = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(one), len(other)))
    lead = limit // 4
    if common <= limit // 2 or max(len(one), len(other)) < limit - 1:
        return one, other, False
    return one[common - lead :], other[common - lead :], True


def _pieces(value: Any, limit: int) -> Iterator[str]:
    """The text of a value, bit by bit, so that a reader can stop early."""
    if value is MISSING:
        yield "(nothing)"
    elif isinstance(value, str):
        yield repr(value[: limit + 1])
    elif isinstance(value, list):
        yield from _sequence("[", value, "]", limit)
    elif isinstance(value, dict):
        shown = _tagged(value, limit) if TAG in value else None
        yield from _members(value, limit) if shown is None else shown
    else:
        yield repr(value)


def _sequence(opening: str, items: Sequence[Any], closing: str, limit: int) -> Iterator[str]:
    yield opening
    for index, item in enumerate(items):
        if index:
            yield ", "
        yield from _pieces(item, limit)
    yield closing


def _members(members: Mapping[str, Any], limit: int) -> Iterator[str]:
    return _pairs("{", members.items(), "}", limit)


def _pairs(opening: str, pairs: Iterable[Sequence[Any]], closing: str, limit: int) -> Iterator[str]:
    yield opening
    for index, (key, item) in enumerate(pairs):
        if index:
            yield ", "
        yield from _pieces(key, limit)
        yield ": "
        yield from _pieces(item, limit)
    yield closing


def _fields(name: str, fields: Mapping[str, Any], limit: int) -> Iterator[str]:
    yield f"{name}("
    for index, (field, item) in enumerate(fields.items()):
        yield f"{', ' if index else ''}{printable(field[:limit])}="
        yield from _pieces(item, limit)
    yield ")"


def _tagged(tag: Mapping[str, Any], limit: int) -> Iterator[str] | None:
    """What a tag stands for; None for an object that only looks like one."""
    match tag:
        case {"$satay": "value", "value": value}:
            return _pieces(value, limit)
        case {"$satay": "tuple", "items": [item]}:
            return _sequence("(", [item], ",)", limit)
        case {"$satay": "tuple", "items": list(items)}:
            return _sequence("(", items, ")", limit)
        case {"$satay": "set", "items": [_, *_] as items}:
            return _sequence("{", items, "}", limit)
        case {"$satay": "dict", "items": list(items)} if _are_pairs(items):
            return _pairs("{", items, "}", limit)
        case {"$satay": ("OrderedDict" | "Counter" | "defaultdict") as kind, "items": list(items)} if _are_pairs(items):
            return _pairs(f"{kind}({{", items, "})", limit)
        case {"$satay": ("set" | "frozenset" | "deque") as kind, "items": list(items)}:
            return _sequence(f"{kind}([", items, "])", limit) if items else iter([f"{kind}()"])
        case {"$satay": "dataclass" | "model" | "namedtuple", "type": str(type), "fields": dict(fields)}:
            return _fields(_class_name(type, limit), fields, limit)
        case _:
            text = _tagged_scalar(tag, limit)
            return None if text is None else iter([printable(text)])


def _tagged_scalar(tag: Mapping[str, Any], limit: int) -> str | None:
    match tag:
        case {"$satay": "datetime" | "time", "value": str(value)}:
            return f"{value[:limit]}{_zone(tag.get('zone'))}"
        case {"$satay": "date" | "Decimal" | "UUID" | "float", "value": str(value)}:
            return value[: limit + 1]
        case {"$satay": "timedelta", "days": int(days), "seconds": int(seconds), "microseconds": int(microseconds)}:
            return _duration(days, seconds, microseconds)
        case {"$satay": "path", "path": str(path)}:
            return path[: limit + 1]
        case {"$satay": "enum", "type": str(type), "name": str(name)}:
            return f"{_class_name(type, limit)}.{name}"
        case {"$satay": "flag", "type": str(type), "value": value}:
            return f"{_class_name(type, limit)}({value!r})"
        case {"$satay": "int", "hex": str(digits)}:
            return digits[: limit + 1]
        case {"$satay": ("bytes" | "bytearray") as kind, "base64": str(data)}:
            return f"<{kind}, {len(data) // 4 * 3 - data.count('=')} bytes>"
        case {"$satay": "pickle", "data": str()}:
            return "<a pickled value>"
        case _:
            return None


def _duration(days: int, seconds: int, microseconds: int) -> str | None:
    try:
        return str(timedelta(days, seconds, microseconds))
    except OverflowError:  # no timedelta was recorded like this
        return None


def _are_pairs(items: Sequence[Any]) -> bool:
    return all(isinstance(item, list) and len(item) == 2 for item in items)


def _zone(zone: Any) -> str:
    """The zone of a tagged moment: `+02:00` or `[Europe/Berlin]`."""
    match zone:
        case {"seconds": int(seconds)}:
            sign = "-" if seconds < 0 else "+"
            return f"{sign}{abs(seconds) // 3600:02}:{abs(seconds) % 3600 // 60:02}"
        case str(name):
            return f"[{name}]"
        case _:
            return ""


def _class_name(type: str, limit: int) -> str:
    """The bare name of a class that is recorded as `module:qualname`."""
    return printable(type.rpartition(":")[2].rpartition(".")[2][:limit])
