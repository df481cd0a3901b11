"""Where settings say that the journal is, and how it is opened there."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from satay.errors import InvalidValueError
from satay.journal import Journal, ReadableJournal
from satay.settings import Settings
from satay.stores.sqlite import open_sqlite, open_sqlite_for_reading

DATABASE_FILE: Final = "satay.db"
"""The journal's file name in a data directory."""

_PASSWORD_OPTION: Final = re.compile(r"([?&]password=)[^&]*")


async def open_journal(settings: Settings) -> Journal:
    """Open the journal that settings name, which is made where there is none."""
    return await open_sqlite(journal_path(settings), synchronous=settings.synchronous)


async def open_journal_for_reading(settings: Settings) -> ReadableJournal:
    """Open the journal that settings name, which has to be there. Nothing is written, while others may write."""
    return await open_sqlite_for_reading(journal_path(settings))


def journal_path(settings: Settings) -> Path:
    """The file of the journal that settings name. Raises `InvalidValueError` for a URL that names none."""
    url = settings.database_url
    if url is None:
        return settings.data_dir / DATABASE_FILE
    try:
        parts = urlsplit(url, allow_fragments=False)
    except ValueError:  # Its place is no host, such as one with a single bracket.
        parts = urlsplit("")
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2:
        is_postgresql = parts.scheme.partition("+")[0] in ("postgres", "postgresql")
        raise InvalidValueError(
            f"database URL {shown_url(url)!r} cannot be opened; "
            + ("PostgreSQL is not supported yet: " if is_postgresql else "")
            + "it has the form sqlite:///relative/path or sqlite:////absolute/path"
        )
    if "?" in url:
        raise InvalidValueError(
            f"database URL {shown_url(url)!r} has options behind its '?', and a journal in SQLite takes none; leave "
            "them away, or write a '?' in the name of the file as %3F"
        )
    return Path(unquote(parts.path[1:]))


def shown_url(url: str) -> str:
    """A URL as it may be shown; of one that has no form of a URL, nothing is told."""
    if "://" not in url:
        return "***" if "@" in url else url
    user, at, place = url.rpartition("@")
    name, colon, _ = user.partition("://")[2].partition(":")
    if at and colon:
        user = f"{user.partition('://')[0]}://{name}:***"
    return _PASSWORD_OPTION.sub(r"\1***", f"{user}{at}{place}")
