"""Processes that work on sessions are killed for good, at any moment; nothing is lost, and no mail is sent twice.

Short as part of all tests; with SATAY_TORTURE=long hundreds of processes die.
"""

import json
import random
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

import satay
from satay.journal import chain_digest
from satay.model import EntryType, RunStatus
from satay.replay import facts
from tests.driving import in_loop
from tests.programs.effects import read_effects, read_lines
from tests.programs.starting import Program, all_of, module
from tests.programs.tormented import (
    ACKNOWLEDGED,
    FORKED_AT,
    INTERVENTION,
    STEPS,
    everything,
    output_of,
    roots,
    state_after,
)
from tests.test_crashes import (
    check_nothing_ran_after_its_completion,
    read_history,
)
from tests.test_invariants import History, check_calls, check_continued

pytestmark = pytest.mark.slow

LONGEST_LIFE_SECONDS: Final = 0.5
"""How long after its start a process is killed, at the latest."""


def start(place: Path, seed: object, *options: str) -> Program:
    return module("tormented", place, seed, *options, effects=place / "effects")


def kill_at_random(place: Path, chance: random.Random, workers: int) -> None:
    with all_of([start(place, chance.random()) for _ in range(workers)]) as programs:
        for program in programs:
            program.wait_for("ready")
        for program in chance.sample(programs, len(programs)):
            time.sleep(chance.uniform(0.05, LONGEST_LIFE_SECONDS) / workers)
            assert program.is_running, program.end()
            program.kill()


def check_chained(history: History) -> None:
    for session_id, entries in history.entries.items():
        assert list(range(1, len(entries) + 1)) == [entry.seq for entry in entries], session_id
        for before, entry in pairwise(entries):
            assert chain_digest(before.digest, entry.type, entry.at, entry.payload) == entry.digest, (session_id, entry)
        steps = [facts(entry)["step"] for entry in entries if entry.type == EntryType.STEP_RECORDED]
        assert list(range(1, len(steps) + 1)) == steps, session_id
        check_calls(session_id, entries)


def check_acknowledged(place: Path, history: History) -> None:
    """Every step that a process was told of stands where it was told, and no two were told of the same."""
    told = read_lines(place / ACKNOWLEDGED)
    for line in told:
        entry = history.entries[line["session"]][line["seq"] - 1]
        assert (EntryType.STEP_RECORDED, line["step"]) == (entry.type, facts(entry)["step"]), line

    assert len(told) == len({(line["session"], line["step"]) for line in told})


def check_prefixes(history: History) -> None:
    """A fork holds the entries of its source up to the cut, but for its creation."""
    for session_id, entries in history.entries.items():
        record = history.records[session_id]
        if record.forked_from is not None and record.fork_seq is not None:
            source = history.entries[record.forked_from]
            assert source[1 : record.fork_seq] == entries[1 : record.fork_seq], session_id


def check_effects(place: Path, history: History) -> None:
    check_nothing_ran_after_its_completion(place, history)
    check_nothing_external_was_repeated_blindly_by_key(place, history)
    for effect in read_effects(place / "effects", ["began"]):
        if effect.run_id not in roots():
            assert effect.task != "mail", effect
            if isinstance(effect.occurrence, int):
                assert effect.occurrence >= 2 * FORKED_AT, effect
            else:
                assert int(effect.occurrence.rpartition("-")[2]) > FORKED_AT, effect


def check_nothing_external_was_repeated_blindly_by_key(place: Path, history: History) -> None:
    """A mail is sent once, and once more for each time that someone decided so."""
    began = Counter(effect.call for effect in read_effects(place / "effects", ["began"]) if effect.task == "mail")
    for session_id in roots():
        entries = history.entries.get(session_id, [])
        keys = {entry.seq: facts(entry)["key"] for entry in entries if is_mail(entry.type, entry.payload)}
        decided = Counter(
            keys[facts(entry)["call"]]
            for entry in entries
            if entry.type == EntryType.DECISION_MADE and facts(entry)["decision"] == "rerun"
        )
        for key in keys.values():
            assert began[session_id, "mail", key] <= 1 + decided[key], (session_id, key)


def is_mail(type: str, payload: str) -> bool:
    return type == EntryType.TASK_SCHEDULED and '"task":"mail"' in payload


def check_ended(place: Path, history: History) -> None:
    """Everything came to its end, with every step, state and answer as it has to be."""
    assert set(everything()) == set(history.records)
    for session_id, entries in history.entries.items():
        assert RunStatus.COMPLETED is history.records[session_id].status, session_id
        outputs = [json.loads(entry.payload)["content"] for entry in entries if entry.type == EntryType.STEP_RECORDED]
        assert [{"input": n, "output": output_of(n)} for n in range(1, STEPS + 1)] == outputs, session_id
        types = Counter(entry.type for entry in entries)
        asked = types[EntryType.EVENT_WAIT_STARTED], types[EntryType.EXTERNAL_EVENT_RECEIVED]
        assert (1, 1) == asked, session_id

    async def check_states() -> None:
        async with satay.run_app(data_dir=place):
            for session_id in everything():
                assert (await satay.verify(session_id)).is_intact, session_id
                async with satay.Session.resume(session_id) as session:
                    for number in range(1, STEPS + 1):
                        assert state_after(number) == await session.state_at(number), (session_id, number)
                    if "/" in session_id:
                        handed = (session.intervention, session.inherited_state)
                        assert (INTERVENTION, state_after(FORKED_AT)) == handed, session_id

    in_loop(check_states())


def torment(place: Path, seed: str, kills: int) -> None:
    """Kill processes, look at what they leave, and let one process bring everything to its end."""
    chance = random.Random(seed)
    place.mkdir()
    before = History({}, {})
    killed = 0
    while killed < kills:
        workers = chance.choice([1, 2, 3])
        kill_at_random(place, chance, workers)
        killed += workers
        if chance.random() < 0.5:
            after = read_history(place)
            check_continued(before, after)
            check_chained(after)
            check_acknowledged(place, after)
            check_prefixes(after)
            check_effects(place, after)
            before = after
    with start(place, seed, "--settle") as last:
        ended = last.end()
        assert (0, "") == (ended.status, ended.errors), ended
    after = read_history(place)
    check_continued(before, after)
    check_chained(after)
    check_acknowledged(place, after)
    check_prefixes(after)
    check_effects(place, after)
    check_ended(place, after)


def test_no_death_of_a_process_loses_a_step_or_sends_a_mail_twice(tmp_path: Path) -> None:
    torment(tmp_path / "place", "short", kills=6)


@pytest.mark.torture
@pytest.mark.parametrize("number", range(40))
def test_no_deaths_of_hundreds_of_processes_lose_a_step_or_send_a_mail_twice(number: int, tmp_path: Path) -> None:
    seed = f"{number} {random.random()}"
    try:
        torment(tmp_path / "place", seed, kills=12)
    except BaseException as error:
        error.add_note(f"seed {seed!r}")
        raise
