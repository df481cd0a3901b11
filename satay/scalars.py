"""The tags of values that hold no others, numbers, bytes, moments, paths, as they are written and as they are read."""

import base64
import math
import pathlib
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic_core import TzInfo

from satay.classes import class_name
from satay.refusals import MalformedTagError, UnencodableError
from satay.texts import TAG, is_utf8

_THIS_PATH: Final = type(pathlib.Path())
_MAX_JSON_INTEGER_BITS: Final = 14_000  # Python reads and writes at most 4300 decimal digits


def tag_text(value: str) -> Any:
    """`value` itself, or the tag of a text that UTF-8 cannot hold."""
    if value.isascii() or is_utf8(value):
        return value
    return {TAG: "str", "utf8": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def tag_int(value: int) -> Any:
    """`value` itself, or the tag of one that Python does not write in decimal."""
    return value if value.bit_length() <= _MAX_JSON_INTEGER_BITS else {TAG: "int", "hex": hex(value)}


def _tag_float(value: float) -> Any:
    return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}


def _tag_complex(value: complex) -> Any:
    return {TAG: "complex", "real": _tag_float(value.real), "imag": _tag_float(value.imag)}


def _tag_bytes(value: bytes | bytearray) -> Any:
    return {TAG: type(value).__name__, "base64": base64.b64encode(value).decode()}


def _tag_timedelta(value: timedelta) -> Any:
    return {TAG: "timedelta", "days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}


def _tag_moment(value: datetime | time) -> Any:
    tag: dict[str, Any] = {TAG: type(value).__name__, "value": value.replace(tzinfo=None).isoformat()}
    if value.tzinfo is not None:
        tag["zone"] = tag_zone(value.tzinfo)
    if value.fold:
        tag["fold"] = value.fold
    return tag


def tag_zone(zone: tzinfo) -> Any:
    """The key of a named zone; seconds, microseconds and name of a fixed offset."""
    if type(zone) is ZoneInfo and zone.key:
        return zone.key
    offset = zone.utcoffset(None) if type(zone) in (timezone, TzInfo) else None
    if offset is None:
        raise UnencodableError(f"a time zone of type {class_name(type(zone))!r} has no recorded form; use ZoneInfo")
    tag: dict[str, Any] = {"seconds": offset.days * 86_400 + offset.seconds, "microseconds": offset.microseconds}
    name = zone.tzname(None)
    if type(zone) is timezone and name != timezone(offset).tzname(None):
        tag["name"] = name
    return tag


def _tag_path(value: pathlib.PurePath) -> Any:
    kind = "Path" if type(value) is _THIS_PATH else type(value).__name__
    return {TAG: "path", "flavour": kind, "path": tag_text(str(value))}


def _tag_text_of(value: object) -> Any:
    return {TAG: type(value).__name__, "value": str(value)}


def _tag_date(value: date) -> Any:
    return {TAG: "date", "value": value.isoformat()}


def _read_datetime(data: dict[str, Any]) -> datetime:
    moment = datetime.fromisoformat(data["value"])
    return moment.replace(tzinfo=_read_zone(data), fold=data.get("fold", 0))


def _read_time(data: dict[str, Any]) -> time:
    moment = time.fromisoformat(data["value"])
    return moment.replace(tzinfo=_read_zone(data), fold=data.get("fold", 0))


def _read_zone(data: dict[str, Any]) -> tzinfo | None:
    zone = data.get("zone")
    if zone is None:
        return None
    if isinstance(zone, str):
        return ZoneInfo(zone)
    offset = timedelta(seconds=zone["seconds"], microseconds=zone["microseconds"])
    return timezone(offset, zone["name"]) if "name" in zone else timezone(offset)


def _read_path(data: dict[str, Any]) -> pathlib.PurePath:
    path: pathlib.PurePath = _PATHS[data["flavour"]](data["path"])
    return path


def _read_decimal(data: dict[str, Any]) -> Decimal:
    try:
        return Decimal(data["value"])
    except InvalidOperation:
        raise MalformedTagError(f"{data['value']!r} is no decimal number") from None


_PATHS: Final[dict[str, Any]] = {
    "Path": pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}


SCALAR_TAGGERS: Final[dict[type, Callable[[Any], Any]]] = {
    float: _tag_float,
    complex: _tag_complex,
    bytes: _tag_bytes,
    bytearray: _tag_bytes,
    timedelta: _tag_timedelta,
    datetime: _tag_moment,
    time: _tag_moment,
    date: _tag_date,
    Decimal: _tag_text_of,
    UUID: _tag_text_of,
    _THIS_PATH: _tag_path,
    pathlib.PurePosixPath: _tag_path,
    pathlib.PureWindowsPath: _tag_path,
}


SCALAR_READERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "str": lambda data: base64.b64decode(data["utf8"]).decode("utf-8", "surrogatepass"),
    "int": lambda data: int(data["hex"], 16),
    "float": lambda data: float(data["value"]),
    "complex": lambda data: complex(data["real"], data["imag"]),
    "bytes": lambda data: base64.b64decode(data["base64"], validate=True),
    "bytearray": lambda data: bytearray(base64.b64decode(data["base64"], validate=True)),
    "datetime": _read_datetime,
    "date": lambda data: date.fromisoformat(data["value"]),
    "time": _read_time,
    "timedelta": lambda data: timedelta(data["days"], data["seconds"], data["microseconds"]),
    "Decimal": _read_decimal,
    "UUID": lambda data: UUID(data["value"]),
    "path": _read_path,
}
