"""Processes that drive runs are killed for good, at any moment, again and again; nothing is lost, and nothing repeats.

Short as part of all tests; with SATAY_TORTURE=long hundreds of processes die.
"""

import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from satay.model import TERMINAL_ENTRIES, EntryType
from satay.replay import facts, outcome_call
from tests.programs.effects import read_effects, read_lines
from tests.programs.starting import Program, all_of, module
from tests.programs.worker import RESULTS
from tests.programs.workload import expected
from tests.test_invariants import History, check_calls, check_continued, check_well_formed

pytestmark = pytest.mark.slow

RUNS: Final = 16
"""How many runs the processes drive, forks and children apart."""

LONGEST_LIFE_SECONDS: Final = 0.3
"""How long after its start a process is killed, at the latest."""


def start_worker(place: Path, *options: str) -> Program:
    return module("worker", place, RUNS, *options, effects=place / "effects")


def kill_at_random(place: Path, chance: random.Random, workers: int) -> None:
    """Start some processes on the same file, and kill each of them at some moment."""
    with all_of([start_worker(place, *random_options(chance)) for _ in range(workers)]) as programs:
        for program in programs:
            program.wait_for("ready")
        for program in chance.sample(programs, len(programs)):
            time.sleep(chance.uniform(0, LONGEST_LIFE_SECONDS) / workers)
            program.kill()


def random_options(chance: random.Random) -> list[str]:
    recover = ["--recover"] if chance.random() < 0.5 else []
    return [
        *recover,
        f"--nondeterminism={chance.choice(['strict', 'warn', 'off'])}",
        f"--max-resident={chance.choice([0, 2, 4096])}",
    ]


def read_history(place: Path) -> History:
    return History.of(place) if has_tables(place) else History({}, {})


def has_tables(place: Path) -> bool:
    """Whether a process lived long enough to make a journal."""
    with closing(sqlite3.connect(place / "satay.db")) as connection:
        return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone() is not None


def read_acknowledged(place: Path) -> dict[str, Any]:
    """The results that a process was handed. Every process that was handed one was handed the same."""
    results: dict[str, Any] = {}
    for line in read_lines(place / RESULTS):
        assert line["result"] == results.setdefault(line["run_id"], line["result"]), line
    return results


def check_nothing_ran_after_its_completion(place: Path, history: History) -> None:
    began: dict[tuple[str, str, int | str], list[int]] = {}
    for effect in read_effects(place / "effects", ["began"]):
        began.setdefault(effect.call, []).append(effect.at)
    for run_id, entries in history.entries.items():
        for entry in entries:
            if entry.type in (EntryType.TASK_COMPLETED, EntryType.TASK_FAILED):
                known = facts(entries[outcome_call(entry) - 1])
                call = (run_id, known["task"], known["key"] if "key" in known else known["ordinal"])

                assert all(at <= entry.at for at in began.get(call, [])), (call, entry, began[call])


def check_nothing_external_was_repeated_blindly(place: Path, history: History) -> None:
    """An external call is made once, and once more for each time that someone decided so."""
    began = Counter(effect.call for effect in read_effects(place / "effects", ["began"]))
    for run_id, entries in history.entries.items():
        for entry in entries:
            if entry.type == EntryType.TASK_SCHEDULED and facts(entry).get("effect") == "external":
                known = facts(entry)
                decisions = sum(
                    other.type == EntryType.DECISION_MADE and facts(other)["call"] == entry.seq for other in entries
                )

                assert began[run_id, known["task"], known["ordinal"]] <= 1 + decisions, (run_id, entry)


def check_unfinished(history: History) -> None:
    """What a killed process leaves: entries in a row, and nothing after the end of a run."""
    for run_id, entries in history.entries.items():
        types = [entry.type for entry in entries]

        assert list(range(1, len(entries) + 1)) == [entry.seq for entry in entries], run_id
        assert not any(type in TERMINAL_ENTRIES for type in types[:-1]), (run_id, types)
        assert history.records[run_id].status.is_terminal == (types[-1] in TERMINAL_ENTRIES), (run_id, types)
        check_calls(run_id, entries)


def torment(place: Path, seed: str, kills: int) -> None:
    """Kill processes, look at what they leave, and let one process end everything."""
    chance = random.Random(seed)
    place.mkdir()
    before = History({}, {})
    killed = 0
    while killed < kills:
        workers = chance.choice([1, 1, 2, 3])
        kill_at_random(place, chance, workers)
        killed += workers
        if chance.random() < 0.5:
            after = read_history(place)
            check_continued(before, after)
            check_unfinished(after)
            before = after
    acknowledged_by_killed = read_acknowledged(place)
    with start_worker(place, "--only-recover") as recoverer:
        ended = recoverer.end()
        assert 0 == ended.status, ended
    recovered = read_history(place)
    check_continued(before, recovered)
    check_well_formed(recovered)
    with start_worker(place) as last:
        ended = last.end()
        assert 0 == ended.status, ended
    after = read_history(place)
    check_continued(recovered, after)
    check_well_formed(after)
    check_nothing_ran_after_its_completion(place, after)
    check_nothing_external_was_repeated_blindly(place, after)
    acknowledged = read_acknowledged(place)

    assert expected(RUNS) == acknowledged
    assert acknowledged_by_killed.items() <= acknowledged.items()
    assert "" == ended.errors


def test_no_death_of_a_process_loses_or_repeats_anything(tmp_path: Path) -> None:
    torment(tmp_path / "place", "short", kills=9)


@pytest.mark.torture
@pytest.mark.parametrize("number", range(40))
def test_no_deaths_of_hundreds_of_processes_lose_or_repeat_anything(number: int, tmp_path: Path) -> None:
    seed = f"{number} {random.random()}"
    try:
        torment(tmp_path / "place", seed, kills=12)
    except BaseException as error:
        error.add_note(f"seed {seed!r}")
        raise
