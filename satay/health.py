"""How a journal and the processes around it are: settings, versions, the database, owners, and runs left behind."""

import platform
from collections.abc import Collection
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from satay.archive import Archive
from satay.clock import MICROSECONDS, to_datetime
from satay.errors import JournalError, JournalNotFoundError
from satay.journal import Owner, RunQuery, StoreHealth
from satay.model import SESSION_WORKFLOW, RunStatus
from satay.processes import is_alive, left_behind
from satay.readers import open_reader
from satay.settings import Settings
from satay.states import OVERDUE_SECONDS
from satay.stores.locations import shown_url

MAX_LISTED: Final = 1000
"""At most so many runs that were left behind are listed."""

MAX_NAMED: Final = 3
"""So many of them are named in a sentence."""

LOG_LIMIT_BYTES: Final = 256 * 1024 * 1024
"""A write-ahead log that is longer is kept from being emptied by somebody."""

SPARE_BYTES: Final = 100 * 1024 * 1024
"""A disk with less room is nearly full."""

_PACKAGES: Final = ("satay", "pydantic", "aiosqlite")


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a check-up found. `problems` are sentences, none where all is well.

    `store` is None where the journal could not be opened. `owners` are the processes with a row, and whether each of
    them is alive; `stranded` are runs whose process is gone, `overdue` those that wait although their time has come.
    """

    versions: dict[str, str]
    settings: dict[str, str]
    store: StoreHealth | None
    owners: tuple[tuple[Owner, bool], ...]
    stranded: tuple[str, ...]
    overdue: tuple[str, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "versions": self.versions,
            "settings": self.settings,
            "store": None if self.store is None else self.store._asdict(),
            "owners": [_owner_data(owner, is_alive) for owner, is_alive in self.owners],
            "stranded": list(self.stranded),
            "overdue": list(self.overdue),
            "problems": list(self.problems),
        }


def _owner_data(owner: Owner, is_alive: bool) -> dict[str, Any]:
    expires_at = to_datetime(owner.expires_at).isoformat()
    return {"id": owner.id, "host": owner.host, "pid": owner.pid, "expires_at": expires_at, "is_alive": is_alive}


async def check_health(settings: Settings, now: int) -> HealthReport:
    """Check the journal that settings name, and what is around it. `now` is in microseconds.

    Raises `JournalNotFoundError`; a journal that is there and cannot be used is reported as a problem.
    """
    versions = {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    shown = _shown_settings(settings)
    try:
        async with open_reader(settings) as reader:
            return await _check_journal(reader.archive, now, versions, shown)
    except JournalNotFoundError:
        raise
    except JournalError as error:
        return HealthReport(versions, shown, None, (), (), (), (str(error),))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # It runs from its source, on the path and not installed.
        return "not installed"


def _shown_settings(settings: Settings) -> dict[str, str]:
    data = {name: str(value) for name, value in asdict(settings).items() if value is not None}
    if settings.database_url is not None:
        data["database_url"] = shown_url(settings.database_url)
    return data


async def _check_journal(
    archive: Archive, now: int, versions: dict[str, str], settings: dict[str, str]
) -> HealthReport:
    store = await archive.journal.health()
    owners = await archive.journal.owners()
    running = await archive.journal.runs(RunQuery(status=RunStatus.RUNNING, limit=MAX_LISTED))
    stranded = left_behind(running, owners, now)
    late = now - OVERDUE_SECONDS * MICROSECONDS
    overdue = left_behind(await archive.journal.due(late, None, MAX_LISTED), owners, now)
    sessions = frozenset(run.run_id for run in running if run.workflow == SESSION_WORKFLOW)
    problems = [*store.problems, *_doubts(store), *_complaints(stranded, sessions, overdue)]
    known = tuple((owner, is_alive(owner, now)) for owner in owners)
    return HealthReport(versions, settings, store, known, stranded, overdue, tuple(problems))


def _doubts(store: StoreHealth) -> list[str]:
    doubts = []
    if store.log_bytes > LOG_LIMIT_BYTES:
        doubts.append(
            f"the write-ahead log has {store.log_bytes:,} bytes, because somebody reads the database all the time; "
            "end what reads it for so long"
        )
    if store.free_bytes < SPARE_BYTES:
        doubts.append(f"the disk has {store.free_bytes:,} bytes left; make room before a run needs it")
    return doubts


def _complaints(stranded: tuple[str, ...], sessions: Collection[str], overdue: tuple[str, ...]) -> list[str]:
    hint = "resume them, or start a process that imports their code with satay.run_app(recover=True)"
    complaints = []
    runs = tuple(run_id for run_id in stranded if run_id not in sessions)
    left = tuple(run_id for run_id in stranded if run_id in sessions)
    if runs:
        complaints.append(f"the process of running runs is gone: {_named(runs)}; {hint}")
    if left:
        complaints.append(
            f"the process of open sessions is gone: {_named(left)}; open them again with satay.Session(id), which goes "
            "on after their last step"
        )
    if overdue:
        complaints.append(f"nobody is there to wake runs whose time has come: {_named(overdue)}; {hint}")
    return complaints


def _named(run_ids: tuple[str, ...]) -> str:
    more = len(run_ids) - MAX_NAMED
    return ", ".join(run_ids[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
