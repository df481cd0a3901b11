"""What the peer, DBOS, is measured with. Runs in an environment of its own, with nothing of this project but this file.

Takes the path of its database as argument, and whether DBOS is used as it comes. Says on the standard output who it is;
then, for each line `<work> <runs> <calls>` on the standard input, does that work and answers how many seconds it took.
"""

import asyncio
import importlib
import json
import os
import sys
import time
import uuid
from typing import Any, TextIO


def load_dbos() -> Any:
    """DBOS needs SQLite 3.42; pysqlite3 brings one where the interpreter's own is older."""
    try:
        newer = importlib.import_module("pysqlite3")
    except ImportError:
        newer = importlib.import_module("sqlite3")
    sys.modules["sqlite3"], sys.modules["sqlite3.dbapi2"] = newer, newer.dbapi2
    return importlib.import_module("dbos")


dbos = load_dbos()
DBOS: Any = dbos.DBOS
replay_seconds: dict[str, float] = {}
"""How long the last pass through the body of a `replayed` workflow took, by workflow id."""


async def _increment(number: int) -> int:
    return number + 1


increment = DBOS.step()(_increment)


async def _count(calls: int) -> int:
    number = 0
    for _ in range(calls):
        number = await increment(number)
    return number


async def _fan_out(calls: int) -> int:
    return sum(await asyncio.gather(*[increment(number) for number in range(calls)]))


async def _replayed(calls: int) -> int:
    began = time.perf_counter()
    number = await _count(calls)
    replay_seconds[DBOS.workflow_id] = time.perf_counter() - began
    return number


count = DBOS.workflow()(_count)
fan_out = DBOS.workflow()(_fan_out)
replayed = DBOS.workflow()(_replayed)
recorded: dict[int, str] = {}
"""The ids of `replayed` workflows that are recorded, by their number of calls."""


async def sequential(runs: int, calls: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*[count(calls) for _ in range(runs)])
    return time.perf_counter() - began


async def parallel(runs: int, calls: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*[fan_out(calls) for _ in range(runs)])
    return time.perf_counter() - began


async def replay(runs: int, calls: int) -> float:
    """The time in the body while it replays all its calls, without the queue that resumes it, once a second."""
    if calls not in recorded:
        recorded[calls] = str(uuid.uuid4())
        with dbos.SetWorkflowID(recorded[calls]):
            await replayed(calls)
    handle = await DBOS.fork_workflow_async(recorded[calls], calls + 1)
    await handle.get_result()
    return replay_seconds[handle.get_workflow_id()]


WORKS = {"sequential": sequential, "parallel": parallel, "replay": replay}


def use_wal() -> None:
    """Give DBOS the journal's settings. It has none for this, but leaves the connections to SQLAlchemy."""
    sqlalchemy: Any = importlib.import_module("sqlalchemy")

    def on_connect(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", on_connect)


def settings_of(path: str) -> str:
    """Versions, and the settings that a connection finds."""
    connection = sys.modules["sqlite3"].connect(path)
    try:
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        synchronous = {1: "NORMAL", 2: "FULL"}.get(connection.execute("PRAGMA synchronous").fetchone()[0], "other")
    finally:
        connection.close()
    version = importlib.import_module("importlib.metadata").version("dbos")
    sqlite = sys.modules["sqlite3"].sqlite_version
    return f"DBOS {version}, SQLite {sqlite}, journal_mode={mode}, synchronous={synchronous}"


async def serve(path: str, answers: TextIO) -> None:
    DBOS.launch()
    try:
        print(json.dumps(settings_of(path)), file=answers, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            work, runs, calls = line.split()
            print(await WORKS[work](int(runs), int(calls)), file=answers, flush=True)
    finally:
        DBOS.destroy()


def main() -> None:
    path, mode = sys.argv[1:]
    # Whatever DBOS prints goes to the standard error; the answers have the standard output to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if mode == "wal":
        use_wal()
    DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{path}", "log_level": "CRITICAL"})
    asyncio.run(serve(path, answers))


if __name__ == "__main__":
    main()
