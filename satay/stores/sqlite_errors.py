"""What an error of `sqlite3` means to the user of a journal, and what to do about it."""

import sqlite3
from collections.abc import Callable
from typing import Final

from satay.errors import (
    InvalidValueError,
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalUnavailableError,
    PayloadTooLargeError,
    SatayError,
)
from satay.stores.sqlite_schema import SqliteSettings, is_lock

_UNAVAILABLE: Final = {
    sqlite3.SQLITE_FULL: "the disk, or the file's largest size, is full; make room, and write again",
    sqlite3.SQLITE_READONLY: "it is read-only; give this user the right to write the file and its directory",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that it is a file in a directory that this user may write",
    sqlite3.SQLITE_PERM: "this user has no right to it; give it the right to read and write the file",
    sqlite3.SQLITE_AUTH: "access to it was denied; give this user the right to read and write the file",
    sqlite3.SQLITE_IOERR: "reading or writing it failed; check the disk, its space and its quota",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database and was left as it is; name another file for the journal",
    sqlite3.SQLITE_PROTOCOL: "its locks do not work; keep the journal on a local disk",
    sqlite3.SQLITE_NOLFS: "its file system cannot hold files of this size; keep the journal on another disk",
    sqlite3.SQLITE_NOMEM: "there was not enough memory; free some, and write again",
}

_NO_TEXT: Final = "Could not decode to UTF-8"
"""How the message of CPython's driver begins where a column of text holds other bytes."""

CAUSES: Final = (sqlite3.Error, UnicodeEncodeError, OverflowError, OSError)
"""The errors that `explain` knows the meaning of."""


def explain(
    error: BaseException, settings: SqliteSettings, name_holders: Callable[[], str] = lambda: ""
) -> BaseException:
    """The error of satay's that says what `error` means; one that means nothing to a journal comes back as it is.

    `name_holders` is asked, where the database stayed locked, for the processes that may hold it.
    """
    explained = _explain(error, settings, name_holders)
    if explained is not error:
        explained.__cause__ = error
    return explained


def _explain(error: BaseException, settings: SqliteSettings, name_holders: Callable[[], str]) -> BaseException:
    match error:
        case sqlite3.Error():
            return _explain_sqlite(error, settings, name_holders)
        case UnicodeEncodeError():
            return InvalidValueError(
                f"the text {error.object!r} has a lone surrogate, which cannot be stored; use valid Unicode text"
            )
        case OverflowError():
            return InvalidValueError("a number is larger than the 64 bits that a journal stores; use a smaller one")
        case OSError():
            return JournalUnavailableError(
                f"the journal {str(settings.path)!r} cannot be used: {error.strerror or error}; "
                "name a file in a directory that this user may write"
            )
    return error


def _explain_sqlite(error: sqlite3.Error, settings: SqliteSettings, name_holders: Callable[[], str]) -> SatayError:
    name = repr(str(settings.path))
    if is_lock(error):
        holders = name_holders() or "another process"
        return JournalBusyError(
            f"the journal {name} stayed locked for longer than {settings.busy_timeout_seconds} s; it may be held by "
            f"{holders}; end what holds it, or allow a longer busy timeout"
        )
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if str(error).startswith(_NO_TEXT):  # No code of SQLite's, and the whole text in the message.
        return JournalCorruptError(f"the journal {name} holds text that is not valid UTF-8; restore it from a copy")
    if code == sqlite3.SQLITE_CORRUPT:
        return JournalCorruptError(f"the journal {name} is damaged ({error}); restore it from a copy")
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return PayloadTooLargeError(f"a value is larger than SQLite stores ({error}); record where it is kept")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return _explain_constraint(error, name)
    if code in _UNAVAILABLE:
        return JournalUnavailableError(f"the journal {name} cannot be used: {_UNAVAILABLE[code]} ({error})")
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return InvalidValueError(f"a value has a type that a journal cannot store ({error})")
    return JournalError(f"the journal {name} failed: {error}")


def _explain_constraint(error: sqlite3.Error, name: str) -> SatayError:
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
        return InvalidValueError(f"a value that the journal {name} needs is missing ({error})")
    return JournalCorruptError(f"the tables of the journal {name} disagree ({error}); restore it from a copy")
