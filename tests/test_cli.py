"""The command line: what it prints, in both forms, its exit codes, and that reading imports and writes nothing."""

import asyncio
import importlib
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from typer.testing import CliRunner

import satay
from satay.cli import MODULES, application_for, main
from satay.clock import SystemClock
from satay.errors import ApprovalPendingError
from satay.exits import MEANINGS, ExitCode
from satay.features import FEATURES
from satay.journal import GENESIS, NewRun
from satay.model import Entry, EntryType
from satay.stores.locations import DATABASE_FILE
from satay.stores.sqlite import open_sqlite
from satay.testing import abandon, open_app, settle
from tests.driving import in_loop
from tests.programs import shell
from tests.programs.starting import ROOT, Program, wait_until

MODULE: Final = "tests.programs.shell"
FRIENDLY: Final = json.dumps({"topic": "Acme", "style": "friendly"})
COMMANDS: Final = sorted(MODULES)
application: Final = application_for(())


class Answer(NamedTuple):
    """What a command wrote, and the code that it ended with."""

    code: int
    output: str
    errors: str

    @property
    def data(self) -> Any:
        """The output as JSON."""
        return json.loads(self.output)

    @property
    def error(self) -> Any:
        """The last line of the errors as JSON."""
        return json.loads(self.errors.splitlines()[-1])


class Shell:
    """Runs commands on the journal in a directory."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, *arguments: str, given: str | None = None) -> Answer:
        options = ["--data-dir", str(self.place)]
        result = CliRunner().invoke(application, [*arguments, *options], input=given, catch_exceptions=False)
        return Answer(result.exit_code, result.stdout, result.stderr)

    def report(self, run_id: str, style: str = "friendly") -> Answer:
        """Run the workflow that most tests look at."""
        return self("run", f"{MODULE}:report", json.dumps({"topic": "Acme", "style": style}), "--run-id", run_id)


@pytest.fixture
def cli(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "journal")


def program(place: Path, *arguments: str, variables: dict[str, str] | None = None) -> Program:
    """A command as a process of its own."""
    command = ["-m", "satay", *arguments, "--data-dir", str(place)]
    return Program(command, variables={"TERM": "dumb"} | (variables or {}))


async def leave_waiting(place: Path, run_id: str = "waits") -> None:
    """A run that waits for an event, and that no process drives."""
    async with open_app(place) as app:
        await app.start(shell.await_answer, run_id=run_id)
        await settle(app)


async def leave_asking(place: Path, run_id: str = "asks") -> None:
    """A run that waits for an approval, and that no process drives."""
    async with open_app(place) as app:
        await app.start(shell.refund, run_id=run_id)
        await settle(app)


async def leave_session_asking(place: Path) -> None:
    """A session that waits for an approval, and that no process has open."""
    async with open_app(place), satay.Session("s") as session:
        with pytest.raises(ApprovalPendingError):
            await session.require_approval("refund", {"dollars": 40}, wait=False)
        session.pause()


async def leave_crashed(place: Path, run_id: str = "pays") -> None:
    """A run whose process was killed in the middle of an external call."""
    shell.outages.append("the power failed")
    async with open_app(place) as app:
        await app.start(shell.order, run_id=run_id)
        await settle(app)
        await abandon(app)


async def record_session(place: Path, run_id: str = "chat") -> None:
    """A session of three steps, with a call of a tool in each but the last."""
    box: dict[str, Any] = {"turns": []}
    async with satay.run_app(data_dir=place), satay.Session(run_id, state_fn=lambda: box) as session:
        for number in (1, 2, 3):
            if number < 3:
                await shell.pay()
            box["turns"].append(number)
            await session.step("turn", output={"turn": number})


async def go_on(place: Path, run_id: str) -> None:
    """One more step of a session."""
    state = {"turns": "none"}
    async with (
        satay.run_app(data_dir=place),
        satay.Session.resume(run_id, state_fn=lambda: state) as session,
    ):
        await session.step("other", output="done")


# --- running ----------------------------------------------------------------------------------------------------------


def test_run_prints_the_result_and_nothing_else(cli: Shell) -> None:
    answer = cli.report("r")

    assert (ExitCode.DONE, '"Acme grew"\n') == (answer.code, answer.output)
    assert "run r\n" in answer.errors
    assert "researching Acme\n" in answer.errors


def test_run_answers_in_json(cli: Shell) -> None:
    answer = cli("run", f"{MODULE}:report", FRIENDLY, "--run-id", "r", "--json")

    assert ExitCode.DONE == answer.code
    assert {"run_id": "r", "status": "completed", "result": "Acme grew", "error": None} == answer.data


def test_run_attaches_to_a_run_that_is_there(cli: Shell) -> None:
    cli.report("r")
    again = cli.report("r")
    other = cli.report("r", style="sceptical")

    assert (ExitCode.DONE, '"Acme grew"\n') == (again.code, again.output)
    assert "researching" not in again.errors
    assert ExitCode.REFUSED == other.code
    assert "another input" in other.errors


def test_a_failed_run_ends_with_its_error_and_the_code_for_no(cli: Shell) -> None:
    answer = cli.report("r", style="none")

    assert (ExitCode.NO, "") == (answer.code, answer.output)
    assert r"run r failed with ValueError: no such style: \x1b[31m" in answer.errors
    assert "\x1b" not in answer.errors


def test_a_failed_run_tells_programs_its_error(cli: Shell) -> None:
    answer = cli("run", f"{MODULE}:report", '{"topic": "a", "style": "none"}', "--json")

    assert ExitCode.NO == answer.code
    assert "failed" == answer.data["status"]
    assert "builtins:ValueError" == answer.data["error"]["type"]


@pytest.mark.parametrize("value", [None, 1, "text", [1, {"a": None}], {"$satay": "trap"}])
def test_an_input_is_json_from_an_argument_a_file_or_the_standard_input(cli: Shell, tmp_path: Path, value: Any) -> None:
    (tmp_path / "input.json").write_text(json.dumps(value))
    echo = f"{MODULE}:echo"
    answers = [
        cli("run", echo, json.dumps(value), "--json"),
        cli("run", echo, f"@{tmp_path / 'input.json'}", "--json"),
        cli("run", echo, "-", "--json", given=json.dumps(value)),
    ]

    assert [0, 0, 0] == [answer.code for answer in answers]
    assert 1 == len({json.dumps(answer.data["result"]) for answer in answers})


@pytest.mark.parametrize(
    ("target", "given", "complaint"),
    [
        (f"{MODULE}:report", "Acme", "INPUT is no JSON"),
        (f"{MODULE}:report", '{"topic": 1, "style": "x"}', "at $.topic"),
        (f"{MODULE}:report", "@nowhere.json", "cannot be read from 'nowhere.json'"),
        (f"{MODULE}:await_answer", "1", "takes no input"),
        (f"{MODULE}:reprot", "1", "did you mean 'report'?"),
        (MODULE, "1", "as in 'module:workflow'"),
        ("tests.programs.shel:report", "1", "there is no module 'tests.programs.shel'"),
        ("json:loads", "1", "has no workflow named 'loads'; it has none"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    cli: Shell, target: str, given: str, complaint: str
) -> None:
    answer = cli("run", target, given)

    assert (ExitCode.USAGE, "") == (answer.code, answer.output)
    assert complaint in answer.errors
    assert not cli.place.exists() or [] == cli("runs", "--json").data


def test_a_module_that_raises_is_named_with_its_error(
    cli: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_for_cli.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = cli("run", "broken_for_cli:report")

    assert ExitCode.USAGE == answer.code
    assert "module 'broken_for_cli' needs 'no_such_package', which is not installed here" in answer.errors
    assert "broken_for_cli.py" in answer.errors


# --- lists ------------------------------------------------------------------------------------------------------------


def test_runs_lists_the_newest_first(cli: Shell) -> None:
    for run_id in ("a", "b", "c"):
        cli.report(run_id)
    listed = cli("runs", "--json").data

    assert ["c", "b", "a"] == [run["run_id"] for run in listed]
    assert ["c", "b"] == [run["run_id"] for run in cli("runs", "--limit", "2", "--json").data]
    assert ["a"] == [run["run_id"] for run in cli("runs", "--before", "b", "--json").data]
    assert re.search(r"(?s)run .*workflow.*status.*\nc .*completed.*\nb .*\na ", cli("runs").output)


def test_runs_are_filtered_by_status_workflow_and_source(cli: Shell) -> None:
    cli.report("good")
    cli.report("bad", style="none")
    in_loop(make_fork(cli.place, "good", "fork"))

    assert ["bad"] == [run["run_id"] for run in cli("runs", "--status", "failed", "--json").data]
    assert ["fork"] == [run["run_id"] for run in cli("runs", "--forked-from", "go", "--json").data]
    assert [] == cli("runs", "--workflow", "other", "--json").data
    assert "no runs\n" == cli("runs", "--workflow", "other").output
    assert ExitCode.USAGE == cli("runs", "--status", "done").code


async def make_fork(place: Path, source: str, run_id: str) -> None:
    async with satay.run_app(data_dir=place) as app:
        await (await app.fork(source, before_task="shell.write", run_id=run_id)).result()


async def leave_running(place: Path, number: int) -> None:
    """So many runs that a process had begun which is gone, `r0` the first of them."""
    now = SystemClock().now()
    first = Entry(1, EntryType.WORKFLOW_CREATED, now, '{"input":null}', GENESIS)
    journal = await open_sqlite(place / DATABASE_FILE, synchronous="NORMAL")
    try:
        new = [NewRun(f"r{each}", "story", now, "nobody", "v1") for each in range(number)]
        await asyncio.gather(*(journal.create(run, [first]) for run in new))
    finally:
        await journal.close()


def test_every_run_that_is_listed_is_known_to_be_stranded_however_many_there_are(cli: Shell) -> None:
    in_loop(leave_running(cli.place, 1003))
    oldest = cli("runs", "--json", "--before", "r2").data

    assert [("r1", True), ("r0", True)] == [(run["run_id"], run["is_stranded"]) for run in oldest]


def test_a_run_whose_process_is_gone_is_listed_as_stranded(cli: Shell) -> None:
    in_loop(leave_crashed(cli.place))

    assert "stranded" in cli("runs").output
    assert [True] == [run["is_stranded"] for run in cli("runs", "--json").data]


# --- naming a run -----------------------------------------------------------------------------------------------------


def test_a_run_id_may_be_shortened_while_it_is_unique(cli: Shell) -> None:
    cli.report("report-2024")
    cli.report("report-2025")
    cli("run", f"{MODULE}:parent", "--run-id", "report-parent")
    unique = cli("show", "report-p", "--json")
    ambiguous = cli("show", "report-20", "--json")

    assert "report-parent" == unique.data["run"]["run_id"]
    assert ExitCode.USAGE == ambiguous.code
    assert ["report-2025", "report-2024"] == ambiguous.error["candidates"]


def test_an_id_that_is_the_beginning_of_others_means_itself(cli: Shell) -> None:
    cli.report("r")
    cli.report("r-2")

    assert "r" == cli("show", "r", "--json").data["run"]["run_id"]


def test_a_run_that_is_not_there_is_answered_with_those_that_are_like_it(cli: Shell) -> None:
    cli.report("quarterly")
    answer = cli("show", "quaterly")

    assert (ExitCode.NOT_FOUND, "") == (answer.code, answer.output)
    assert "there is no run 'quaterly' in this journal; did you mean 'quarterly'?" in answer.errors


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    variables = {
        "_SATAY_COMPLETE": "complete_bash",
        "COMP_CWORD": str(len(words)),
        "COMP_WORDS": f"satay {shlex.join(words)}",
    }
    with Program(["-m", "satay"], variables=variables) as process:
        ended = process.end()
    assert (0, "") == (ended.status, ended.errors)
    return ended.output.split()


def test_the_shell_is_offered_the_ids_in_the_journal(cli: Shell) -> None:
    for run_id in ("acme-1", "acme-2", "other"):
        cli.report(run_id)

    assert ["acme-2", "acme-1"] == completed("show", "--data-dir", str(cli.place), "acme")


def test_the_shell_is_offered_the_tasks_of_the_run(cli: Shell) -> None:
    cli.report("acme")
    line = ["plan", "acm", "--data-dir", str(cli.place), "--before-task"]

    assert ["shell.research", "shell.write"] == completed(*line, "shell.")
    assert ["shell.write"] == completed(*line, "shell.w")


def test_the_shell_is_offered_commands_and_statuses() -> None:
    assert {"run", "runs", "resume"} <= set(completed("r"))
    assert ["completed"] == completed("runs", "--status", "co")


def test_the_shell_is_told_how_to_complete() -> None:
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # So it is told for the shell that is named.
    with Program(["-m", "satay", "--show-completion", "bash"], variables=variables) as process:
        ended = process.end()

    assert (0, "", True) == (ended.status, ended.errors, "_SATAY_COMPLETE=complete_bash" in ended.output)


def test_the_shell_is_offered_nothing_where_there_is_no_journal(tmp_path: Path) -> None:
    assert [] == completed("show", "--data-dir", str(tmp_path / "nowhere"), "a")
    assert [] == list(tmp_path.iterdir())


# --- one run ----------------------------------------------------------------------------------------------------------


def test_show_says_what_happened_and_what_to_do(cli: Shell) -> None:
    cli.report("bad", style="none")
    shown = cli("show", "bad").output

    assert r"because   it ended with ValueError: no such style: \x1b[31m" in re.sub(r"(because) +", r"\1   ", shown)
    assert "$ satay fork bad --at failure -m MODULE" in shown
    assert re.search(r"2 .* shell.research:0 +completed .*\['Acme grew', 'Acme shrank'\]", shown)
    assert re.search(r"4 .* shell.write:0 +failed .*ValueError: no such style", shown)


def test_show_tells_programs_the_same(cli: Shell) -> None:
    cli.report("r")
    data = cli("show", "r", "--json").data
    calls = [item for item in data["timeline"]["items"] if "call" in item]

    assert "completed" == data["state"]["state"]
    assert ["shell.research:0", "shell.write:0"] == [call["call"] for call in calls]
    assert "Acme grew" == calls[1]["result"]
    assert {"topic": "Acme"} == calls[0]["input"]


def test_show_has_pages(cli: Shell) -> None:
    cli.report("r")
    last = cli("show", "r", "--limit", "1", "--json").data["timeline"]
    first = cli("show", "r", "--after", "0", "--limit", "2", "--json").data["timeline"]

    assert [("WorkflowCompleted", 3, 0)] == [(item["type"], last["earlier"], last["later"]) for item in last["items"]]
    assert ([1, 2], 0, 2) == ([item["seq"] for item in first["items"]], first["earlier"], first["later"])
    assert "3 earlier not shown" in cli("show", "r", "--limit", "1").output
    assert "--after 2 shows the next" in cli("show", "r", "--after", "0", "--limit", "2").output


def test_show_marks_what_a_fork_inherited(cli: Shell) -> None:
    cli.report("source")
    in_loop(make_fork(cli.place, "source", "fork"))
    data = cli("show", "fork", "--json").data

    assert "source" == data["run"]["forked_from"]
    assert 1 == data["receipt"]["calls_inherited"]
    assert [2, 3] == [item["seq"] for item in data["timeline"]["items"] if item["is_inherited"]] + [3]
    assert "inherited" in cli("show", "fork").output


def test_a_receipt_is_shown_as_it_is_stored(cli: Shell) -> None:
    cli.report("source")
    in_loop(make_fork(cli.place, "source", "fork"))
    stored = cli("show", "fork", "--receipt", "--json").output

    async def receipt() -> str:
        async with satay.run_app(data_dir=cli.place) as app:
            found = await app.receipt("fork")
            assert found is not None
            return found.to_json()

    assert f"{in_loop(receipt())}\n" == stored
    assert re.search(r"source_id +'source'", cli("show", "fork", "--receipt").output)
    assert ExitCode.USAGE == cli("show", "source", "--receipt").code


def test_a_tree_shows_children_and_forks(cli: Shell) -> None:
    cli("run", f"{MODULE}:parent", "--run-id", "top")
    data = cli("show", "top", "--tree", "--json").data

    assert [("top/shell.echo:0", "child", False)] == [
        (run["run_id"], run["kinship"], run["is_inherited"]) for run in data["relatives"]
    ]
    assert "└── top/shell.echo:0" in cli("show", "top", "--tree").output


def test_a_tree_marks_the_children_that_a_fork_shares(cli: Shell) -> None:
    cli("run", f"{MODULE}:parent", "--run-id", "top")

    async def fork() -> None:
        async with satay.run_app(data_dir=cli.place) as app:
            await (await app.fork("top", fork_point_seq=3, run_id="fork")).result()

    in_loop(fork())
    data = cli("show", "fork", "--tree", "--json").data

    assert [("top/shell.echo:0", True)] == [(run["run_id"], run["is_inherited"]) for run in data["relatives"]]
    assert "inherited" in cli("show", "fork", "--tree").output


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_a_fork_would_do_and_writes_nothing(cli: Shell) -> None:
    cli.report("r")
    before = (cli.place / DATABASE_FILE).read_bytes()
    options = ("--before-task", "shell.write", "--input", '{"topic": "Acme", "style": "sceptical"}', "-m", MODULE)
    shown = cli("plan", "r", *options)
    planned = cli("plan", "r", *options, "--json").data

    assert ExitCode.DONE == shown.code
    assert re.search(r"shell.research:0 +inherit", shown.output)
    assert "shell.write:0" in shown.output
    assert planned["input_overridden"]
    assert ["r"] == [run["run_id"] for run in cli("runs", "--json").data]
    assert before == (cli.place / DATABASE_FILE).read_bytes()


def test_a_fork_is_driven_to_its_end_and_prints_its_result(cli: Shell) -> None:
    cli.report("r")
    options = ("--before-task", "shell.write", "--input", '{"topic": "Acme", "style": "sceptical"}', "-m", MODULE)
    forked = cli("fork", "r", *options, "--run-id", "fork")
    again = cli("fork", "r", *options, "--run-id", "fork", "--json")
    told = cli("fork", "r", *options, "--run-id", "fork")
    other = cli("fork", "r", "--at-entry", "1", "--run-id", "fork", "-m", MODULE)

    assert (ExitCode.DONE, '"Acme shrank"\n') == (forked.code, forked.output)
    assert "researching" not in forked.errors
    assert "Acme shrank" == again.data["result"]
    assert "r" == again.data["receipt"]["source_id"]
    assert again.data["replayed"]
    assert "fork fork: before the call" in forked.errors
    assert "fork fork: there already, before the call" in told.errors
    assert (ExitCode.REFUSED, "") == (other.code, other.output)


def test_a_failed_run_is_forked_at_its_failure_with_another_result(cli: Shell) -> None:
    cli.report("bad", style="none")
    override = ("--override", 'shell.write:0="by hand"', "--reason", "it was urgent")
    forked = cli("fork", "bad", "--at", "failure", *override, "-m", MODULE)
    failed = cli("fork", "bad", "--fail", "shell.research=no network", "-m", MODULE, "--json")

    assert (ExitCode.DONE, '"by hand"\n') == (forked.code, forked.output)
    assert ExitCode.NO == failed.code
    assert "no network" in failed.data["error"]["message"]


def test_a_policy_refuses_what_must_not_happen_again(cli: Shell) -> None:
    cli.report("r")
    forked = cli("fork", "r", "--before-task", "shell.write", "--policy", "shell.write=block", "-m", MODULE)
    misspelt = cli("fork", "r", "--before-task", "shell.write", "--policy", "shell.wirte=block", "-m", MODULE)

    assert ExitCode.NO == forked.code
    assert "TaskBlockedError" in forked.errors
    assert "to have the task run, fork with --policy shell.write=live" in forked.errors
    assert ExitCode.USAGE == misspelt.code
    assert "did you mean 'shell.write'?" in misspelt.errors


def test_a_sweep_ranks_its_variants(cli: Shell) -> None:
    cli.report("r")
    options = ["--before-task", "shell.write", "-m", MODULE, "--score", f"{MODULE}:judge", "--run-id", "sweep"]
    variants = [f'{style}={{"topic": "Acme", "style": "{style}"}}' for style in ("sceptical", "friendly")]
    arguments = [*options, *(word for variant in variants for word in ("--variant", variant))]
    swept = cli("sweep", "r", *arguments, "--json")
    shown = cli("sweep", "r", *arguments)

    assert ExitCode.DONE == swept.code
    assert ["friendly", "sceptical"] == [row["variant"] for row in swept.data["rows"]]
    assert shown.output.index("friendly") < shown.output.index("sceptical")
    assert ["sweep/friendly:0", "sweep/sceptical:0", "sweep", "r"] == [
        run["run_id"] for run in cli("runs", "--json").data
    ]


def test_a_sweep_is_told_the_option_that_it_lacks_and_the_variant_that_cannot_be_read(cli: Shell) -> None:
    cli.report("r")
    variants = ["--variant", "one=1", "--variant", "two=text", "-m", MODULE]

    assert "satay: Missing option '--variant'" in cli("sweep", "r").errors
    assert "satay: --variant two is no JSON" in cli("sweep", "r", "--at-entry", "1", *variants).errors


@pytest.mark.parametrize(
    "options",
    [[], ["--variant", "a"], ["--variant", "a={}"], ["--variant", "a=1", "--variant", "a=2"], ["--score", "x"]],
)
def test_a_sweep_that_cannot_be_made_is_refused(cli: Shell, options: Sequence[str]) -> None:
    cli.report("r")
    answer = cli("sweep", "r", "--before-task", "shell.write", "-m", MODULE, *options)

    assert (ExitCode.USAGE, "") == (answer.code, answer.output)
    assert ["r"] == [run["run_id"] for run in cli("runs", "--json").data]


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["--before-task", "shell.wirte"], ExitCode.REFUSED, "did you mean 'shell.write'?"),
        (["--at-entry", "99"], ExitCode.REFUSED, "99"),
        (["--before-task", "shell.write", "--input", "{}"], ExitCode.USAGE, "--input cannot be used"),
        (["--before-task", "shell.write", "--override", "shell.write"], ExitCode.USAGE, "NAME=VALUE"),
        (["--before-task", "shell.write", "--on-stale", "sigh"], ExitCode.USAGE, "--on-stale sigh is none of"),
        (
            [],
            ExitCode.REFUSED,
            "pass exactly one of --before-task, --before-event, --before-child, --after-task, --at and",
        ),
        (["--at-entry", "4", "--at", "failure"], ExitCode.REFUSED, "not --at and --at-entry"),
        (["--before-task", "shell.write", "--expected-head", "2"], ExitCode.REFUSED, "--expected-head 2, and its last"),
        (["--before-task", "shell.write", "--policy", "shell.write=x"], ExitCode.USAGE, "--policy of 'shell.write' is"),
        (
            ["--before-task", "shell.write", "--override", "nosuch=1"],
            ExitCode.REFUSED,
            "--override names the call nosuch:0",
        ),
    ],
)
def test_a_fork_that_cannot_be_made_is_refused_and_nothing_is_written(
    cli: Shell, options: Sequence[str], code: ExitCode, complaint: str
) -> None:
    cli.report("r")
    for command in ("plan", "fork"):
        answer = cli(command, "r", *options, "-m", MODULE)

        assert (code, "") == (answer.code, answer.output)
        assert complaint in answer.errors
    assert ["r"] == [run["run_id"] for run in cli("runs", "--json").data]


def test_a_run_that_has_not_ended_is_forked_where_the_option_that_is_named_is_given(cli: Shell) -> None:
    in_loop(leave_waiting(cli.place))
    refused = cli("plan", "waits", "--at-entry", "1", "-m", MODULE)
    planned = cli("plan", "waits", "--at-entry", "1", "-m", MODULE, "--allow-unfinished")

    assert (ExitCode.REFUSED, True) == (refused.code, "or pass --allow-unfinished to fork what is" in refused.errors)
    assert ExitCode.DONE == planned.code


def test_a_session_is_not_planned_and_the_command_that_forks_it_is_named(cli: Shell) -> None:
    in_loop(record_session(cli.place))
    answer = cli("plan", "chat", "--at-entry", "1", "-m", MODULE)

    assert ExitCode.DONE != answer.code
    assert "satay fork chat --at-step N" in answer.errors


# --- experiments ------------------------------------------------------------------------------------------------------


def test_an_outcome_is_recorded_and_shown(cli: Shell) -> None:
    cli.report("r")
    none = cli("outcome", "r", "--json")
    recorded = cli("outcome", "r", "rejected", "--score", "0.25", "--note", "too kind", "--json")
    shown = cli("outcome", "r")

    assert (0, None) == (none.code, none.data)
    assert ("rejected", 0.25) == (recorded.data["value"], recorded.data["score"])
    assert re.search("value +rejected", shown.output)
    assert ExitCode.USAGE == cli("outcome", "r", "splendid").code
    assert ExitCode.USAGE == cli("outcome", "r", "rejected", "--score", "nan").code


def test_a_fork_is_promoted_once(cli: Shell) -> None:
    cli.report("r")
    for run_id in ("fork-1", "fork-2"):
        in_loop(make_fork(cli.place, "r", run_id))
    first = cli("promote", "fork-1")
    again = cli("promote", "fork-1")
    second = cli("promote", "fork-2")

    assert [0, 0, ExitCode.REFUSED] == [first.code, again.code, second.code]
    assert re.search("value +promoted", first.output)
    assert ExitCode.REFUSED == cli("promote", "r").code


def test_an_experiment_that_is_not_there_is_named_as_it_was_given_and_answered_with_one_that_is_like_it(
    cli: Shell,
) -> None:
    cli.report("r")
    in_loop(make_fork(cli.place, "r", "fork"))
    none = cli("promote", "fork", "--experiment", "nosuch", "--json")
    in_loop(make_experiment(cli.place, "tone"))
    close = cli("promote", "fork", "--experiment", "tnoe")
    no_member = cli("promote", "fork", "--experiment", "tone")

    assert (ExitCode.NOT_FOUND, "ExperimentNotFoundError", "nosuch") == (
        none.code,
        none.error["error"],
        none.error["name"],
    )
    assert "there is no experiment 'nosuch' in this journal;" in none.error["message"]
    assert (ExitCode.NOT_FOUND, True) == (close.code, "'tnoe' in this journal; did you mean 'tone'?" in close.errors)
    assert (ExitCode.REFUSED, True) == (no_member.code, "is no member of experiment 'tone'" in no_member.errors)


async def make_experiment(place: Path, name: str) -> None:
    async with satay.run_app(data_dir=place) as app:
        await app.experiment(name)


# --- messages ---------------------------------------------------------------------------------------------------------


def test_an_event_is_sent_to_a_run_that_nobody_drives_and_taken_when_it_is_resumed(cli: Shell) -> None:
    in_loop(leave_waiting(cli.place))
    before = cli("show", "waits", "--json").data["state"]
    sent = cli("send", "answer", '{"yes": true}', "--run", "waits", "--key", "k", "--event-id", "1")
    again = cli("send", "answer", '{"yes": true}', "--run", "waits", "--key", "k", "--event-id", "1", "--json")
    resumed = cli("resume", "waits", "-m", MODULE, "--json")
    late = cli("send", "answer", "1", "--run", "waits")

    assert "satay send answer JSON --run waits --key k" in before["commands"]
    assert (0, "sent\n") == (sent.code, sent.output)
    assert {"is_sent": False, "run_id": "waits"} == again.data
    assert {"yes": True} == resumed.data["result"]
    assert (ExitCode.REFUSED, "it takes no more events" in late.errors) == (late.code, True)


def test_a_cancelled_run_ends_when_it_is_resumed(cli: Shell) -> None:
    in_loop(leave_waiting(cli.place))
    asked = cli("cancel", "waits", "--json")
    ended = cli("resume", "waits", "-m", MODULE, "--json")

    assert (0, "cancelling") == (asked.code, asked.data["state"])
    assert (ExitCode.NO, "cancelled") == (ended.code, ended.data["status"])
    assert "cancelled" == cli("show", "waits", "--json").data["state"]["state"]


def test_a_crash_in_an_external_call_is_decided(cli: Shell) -> None:
    in_loop(leave_crashed(cli.place))
    crashed = cli("show", "pays", "--json").data["state"]
    stopped = cli("resume", "pays", "-m", MODULE, "--json")
    advised = "call satay decide pays rerun, satay decide pays fail or satay decide pays --value JSON"
    undecided = cli("show", "pays", "--json").data["state"]
    both = cli("decide", "pays", "rerun", "--value", "1").errors
    decided = cli("decide", "pays", "--value", '"paid by hand"', "--json")
    resumed = cli("resume", "pays", "-m", MODULE, "--json")

    assert "crashed" == crashed["state"]
    assert (ExitCode.REFUSED, "NeedsDecisionError") == (stopped.code, stopped.error["error"])
    assert advised in stopped.error["message"]
    assert 'satay decide takes "rerun", "fail" or --value, and one of them only' in both
    assert "needs a decision" == undecided["state"]
    assert (0, "decided") == (decided.code, decided.data["state"])
    assert "paid by hand" == resumed.data["result"]
    assert ExitCode.USAGE == cli("decide", "pays", "rerun").code


def test_an_approval_is_listed_and_decided(cli: Shell) -> None:
    in_loop(leave_asking(cli.place))
    listed = cli("approvals", "--json").data
    page = cli("approvals", "asks")
    state = cli("show", "asks", "--json").data["state"]
    decided = cli("approve", "asks", "refund", "--reject", "--by", "Mia", "--note", "no", "--value", "[1]", "--json")
    again = cli("approve", "asks", "refund", "--reject", "--value", "[1]")
    otherwise = cli("approve", "asks", "refund")
    unknown = cli("approve", "asks", "other", "--json")
    resumed = cli("resume", "asks", "-m", MODULE, "--json")

    assert [("asks", "refund", {"dollars": 40})] == [(one["run_id"], one["key"], one["payload"]) for one in listed]
    assert re.search(r"asks +refund +{'dollars': 40}", page.output)
    assert "satay approve asks refund --reject" in state["commands"]
    assert (False, "Mia", "no", [1]) == tuple(decided.data[name] for name in ("approved", "by", "note", "value"))
    assert (0, True) == (again.code, "refund of run asks was rejected by Mia at" in again.output)
    assert (ExitCode.REFUSED, True) == (otherwise.code, "was rejected with the value [1] by 'Mia'" in otherwise.errors)
    assert (ExitCode.REFUSED, "ApprovalNotFoundError") == (unknown.code, unknown.error["error"])
    assert "rejected by Mia" == resumed.data["result"]
    assert "no approvals are pending\n" == cli("approvals").output


def test_an_approval_of_a_session_is_decided(cli: Shell) -> None:
    in_loop(leave_session_asking(cli.place))
    approved = cli("approve", "s", "refund", "--by", "Mia")
    state = cli("show", "s", "--json").data["state"]

    assert (0, True) == (approved.code, approved.output.startswith("refund of run s was approved by Mia at"))
    assert "decided" == state["state"]
    assert [] == cli("approvals", "--json").data


def test_a_run_whose_code_is_not_imported_is_not_resumed(cli: Shell) -> None:
    in_loop(leave_waiting(cli.place))
    with closing(sqlite3.connect(cli.place / DATABASE_FILE)) as connection, connection:
        connection.execute("UPDATE runs SET workflow = 'shell.unknown'")
    answer = cli("resume", "waits")

    assert ExitCode.NOT_FOUND == answer.code
    assert "which this process has not imported" in answer.errors
    assert "-m MODULE" in answer.errors


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_is_forked_without_its_code_and_left_to_be_opened(cli: Shell) -> None:
    in_loop(record_session(cli.place))
    options = ["--policy", "shell.pay=block", "--intervention", '{"model": "m"}', "--json"]
    made = cli("fork", "ch", "--at-step", "2", "--boundary", "exact", "--name", "chat/b", *options)
    again = cli("fork", "ch", "--at-step", "2", "--boundary", "exact", "--name", "chat/b", *options)
    other = cli("fork", "chat", "--at-step", "1", "--name", "chat/b")

    assert (ExitCode.DONE, "chat/b") == (made.code, made.data["run_id"])
    assert ("after step 2", {"model": "m"}) == (made.data["receipt"]["cut"], made.data["receipt"]["intervention"])
    assert made.data["receipt"] == again.data["receipt"]
    assert ExitCode.REFUSED == other.code
    assert "was asked for differently" in other.errors
    assert ["created", "completed"] == [run["session_status"] for run in cli("runs", "--json").data]


def test_a_fork_of_a_session_is_shown_as_its_receipt(cli: Shell) -> None:
    in_loop(record_session(cli.place))
    answer = cli("fork", "chat", "--at-step", "2", "--name", "chat/b")

    assert ExitCode.DONE == answer.code
    assert re.search(r"(?m)^state +of step 2, version 2", answer.output)


@pytest.mark.parametrize(
    ("line", "code", "problem"),
    [
        ("fork chat --name b", ExitCode.USAGE, "say which with --at-step"),
        (
            "fork chat --at-step 1 --before-task shell.pay",
            ExitCode.USAGE,
            "after a step; --before-task is for a run of a workflow",
        ),
        ("fork chat --at-step 9", ExitCode.REFUSED, "has no step 9; its steps are 1 to 3"),
        ("fork chat --at-step 1 --boundary near", ExitCode.USAGE, "is none of"),
        ("fork r --at-step 1", ExitCode.USAGE, "is no session and has no steps"),
        ("diff chat r", ExitCode.USAGE, "only sessions record states"),
        ("diff chat chat --at 9", ExitCode.USAGE, "has no step 9"),
        ("diff chat chat --at now", ExitCode.USAGE, "is no step"),
        ("diff chat nowhere", ExitCode.NOT_FOUND, "there is no run 'nowhere'"),
        ("trail nowhere", ExitCode.NOT_FOUND, "there is no run 'nowhere'"),
    ],
)
def test_what_cannot_be_asked_of_a_session_is_refused_and_nothing_is_written(
    cli: Shell, line: str, code: ExitCode, problem: str
) -> None:
    cli.report("r")
    in_loop(record_session(cli.place))
    answer = cli(*line.split())

    assert (code, "") == (answer.code, answer.output)
    assert problem in answer.errors
    assert 2 == len(cli("runs", "--json").data)


def test_the_states_of_sessions_are_compared(cli: Shell) -> None:
    in_loop(record_session(cli.place))
    cli("fork", "chat", "--at-step", "2", "--name", "chat/b")
    in_loop(go_on(cli.place, "chat/b"))
    latest, same = cli("diff", "chat", "chat/b", "--json"), cli("diff", "chat", "chat/b", "--at", "2")
    steps = cli("diff", "chat", "chat", "--at", "1,3")

    assert (ExitCode.NO, ExitCode.DONE, ExitCode.NO) == (latest.code, same.code, steps.code)
    assert ("chat", 2) == tuple(latest.data["ancestor"][name] for name in ("run_id", "step"))
    assert (3, 3) == (latest.data["one"]["left_at"], latest.data["other"]["left_at"])
    assert "The states are the same." in same.output
    assert "+ $.turns[1]: 2" in steps.output


def test_a_trail_tells_the_lineage_and_every_decision(cli: Shell) -> None:
    in_loop(record_session(cli.place))
    cli("fork", "chat", "--at-step", "1", "--name", "chat/b")
    in_loop(go_on(cli.place, "chat/b"))
    told, data = cli("trail", "chat/b"), cli("trail", "chat/b", "--json").data

    assert ExitCode.DONE == told.code
    assert re.search(r"(?m)^ +3 +chat +shell.pay:0 +completed +'paid'$", told.output)
    assert re.search(r"(?m)^ +\d+ +step 2: other +state v2 +'done'$", told.output)
    assert ["chat", "chat/b"] == [run["run_id"] for run in data["lineage"]]
    assert [True, False] == [item["is_inherited"] for item in data["items"] if item["kind"] == "step"]


def test_a_run_of_a_workflow_has_a_trail_too(cli: Shell) -> None:
    cli.report("r")
    answer = cli("trail", "r")

    assert ExitCode.DONE == answer.code
    assert answer.output.startswith("r: shell.report, completed, 2 calls\n")


def test_runs_says_what_sessions_are_doing_and_what_to_do(cli: Shell) -> None:
    cli.report("r")
    in_loop(record_session(cli.place))
    cli("fork", "chat", "--at-step", "2", "--name", "chat/b")
    lines = [line.split() for line in cli("runs").output.splitlines()]

    assert ["created", "open", "it"] == [lines[2][2], *lines[2][-2:]]
    assert "completed" == lines[3][2]
    assert [None] == [run.get("session_status") for run in cli("runs", "--workflow", "shell.report", "--json").data]


def test_show_tells_what_a_session_adds_up_to(cli: Shell) -> None:
    in_loop(record_session(cli.place))
    cli("fork", "chat", "--at-step", "2", "--name", "chat/b")
    shown, data = cli("show", "chat"), cli("show", "chat", "--json").data["session"]

    assert re.search(r"(?m)^steps +3 steps, the last one 'turn'$", shown.output)
    assert re.search(
        r"(?m)^states +3 states in 3 versions, .* in the journal; that of step 3 has 17 bytes$", shown.output
    )
    assert re.search(r"(?m)^ledger +2 calls: 2 completed$", shown.output)
    assert re.search(r"(?m)^fork +chat/b, after step 2, created$", shown.output)
    assert re.search(r"(?m)step 1: turn +\{'turn': 1\}$", shown.output)
    assert "satay fork chat --at-step 3" in shown.output
    assert (3, 3, 17, {"completed": 2}) == tuple(data[name] for name in ("steps", "states", "state_bytes", "calls"))


# --- comparing and checking -------------------------------------------------------------------------------------------


def test_compare_ends_with_the_code_for_no_where_runs_differ(cli: Shell) -> None:
    cli.report("a")
    cli.report("b")
    cli.report("c", style="sceptical")

    assert ExitCode.DONE == cli("compare", "a", "b").code
    assert ExitCode.NO == cli("compare", "a", "c").code
    assert "shell.write:0" == cli("compare", "a", "c", "--json").data["first_divergence"]


def test_several_runs_are_compared_with_the_first(cli: Shell) -> None:
    cli.report("a")
    cli.report("b")
    cli.report("c", style="sceptical")
    same = cli("compare", "a", "b", "b", "--json")
    other = cli("compare", "a", "b", "c")

    assert (ExitCode.DONE, ["a", "b", "b"]) == (same.code, [run["run_id"] for run in same.data["runs"]])
    assert ExitCode.NO == other.code
    assert "shell.write:0" in other.output


def test_verify_finds_what_was_changed(cli: Shell) -> None:
    cli.report("r")
    sound = cli("verify", "r")
    with closing(sqlite3.connect(cli.place / DATABASE_FILE)) as connection, connection:
        connection.execute("UPDATE events SET payload = replace(payload, 'grew', 'fell') WHERE seq = 3")
    damaged = cli("verify", "r")

    assert ExitCode.DONE == sound.code
    assert "is intact" in sound.output
    assert ExitCode.NO == damaged.code
    assert not cli("verify", "r", "--json").data["is_intact"]


def test_doctor_finds_nothing_wrong_with_a_sound_journal(cli: Shell) -> None:
    cli.report("r")
    answer = cli("doctor", "--json")

    assert (ExitCode.DONE, []) == (answer.code, answer.data["problems"])
    assert {"completed": 1} == answer.data["store"]["runs"]
    assert "no problems" in cli("doctor").output


def test_doctor_names_the_runs_that_were_left_behind(cli: Shell) -> None:
    in_loop(leave_crashed(cli.place))
    answer = cli("doctor", "--json")

    assert ExitCode.NO == answer.code
    assert ["pays"] == answer.data["stranded"]
    assert [False] == [owner["is_alive"] for owner in answer.data["owners"]]
    assert "pays" in answer.data["problems"][0]


def test_doctor_reports_a_journal_that_cannot_be_read(cli: Shell) -> None:
    cli.report("r")
    (cli.place / DATABASE_FILE).write_bytes(b"this is no database, whatever its name says" * 100)
    answer = cli("doctor", "--json")

    assert ExitCode.JOURNAL == answer.code
    assert ["name another file" in problem for problem in answer.data["problems"]] == [True]


def test_doctor_finds_a_damaged_page(cli: Shell) -> None:
    cli.report("r")
    path = cli.place / DATABASE_FILE
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs_status'").fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(root - 1) * page_bytes : root * page_bytes] = b"\0" * page_bytes
    path.write_bytes(content)
    answer = cli("doctor", "--json")

    assert answer.code in (ExitCode.NO, ExitCode.JOURNAL)
    assert answer.data["problems"]


# --- every command ----------------------------------------------------------------------------------------------------

READING: Final = [
    ["runs"],
    ["show", "r"],
    ["compare", "r", "r"],
    ["trail", "r"],
    ["verify", "r"],
    ["doctor"],
    ["approvals"],
]


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: str(arguments[0]))
def test_reading_makes_no_journal(cli: Shell, tmp_path: Path, arguments: Sequence[str]) -> None:
    answer = cli(*arguments, "--json")

    assert (ExitCode.JOURNAL, "") == (answer.code, answer.output)
    assert ("JournalNotFoundError", 5) == (answer.error["error"], answer.error["exit_code"])
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line",
    [
        "cancel r",
        "send e",
        "send e --run r",
        "outcome r rejected",
        "promote r",
        "sweep r --variant a=1",
        "fork r",
        "decide r fail",
        "resume r",
        "approve r k",
    ],
)
def test_acting_on_a_run_makes_no_journal(cli: Shell, tmp_path: Path, line: str) -> None:
    answer = cli(*line.split())

    assert ExitCode.JOURNAL == answer.code
    assert "there is no journal at" in answer.errors
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: str(arguments[0]))
def test_reading_changes_nothing_in_the_journal(cli: Shell, arguments: Sequence[str]) -> None:
    cli.report("r")
    before = (cli.place / DATABASE_FILE).read_bytes()

    assert ExitCode.DONE == cli(*arguments).code
    assert before == (cli.place / DATABASE_FILE).read_bytes()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("show r --tree --receipt", "--tree and --receipt each show something instead"),
        ("show r --tree --limit 3", "--after and --limit are for the timeline"),
        ("show r --receipt --after 3", "--after and --limit are for the timeline"),
        ("runs --db sqlite:///other.db", "--db and --data-dir name a journal each"),
        ("sweep r --at-entry 1 --variant a=1 --input 2", "leave --input away"),
    ],
)
def test_two_options_that_do_not_go_together_are_refused(cli: Shell, line: str, problem: str) -> None:
    cli.report("r")
    answer = cli(*line.split(), "-m", MODULE) if line.startswith("sweep") else cli(*line.split())

    assert (ExitCode.USAGE, "") == (answer.code, answer.output)
    assert problem in answer.errors
    assert ["r"] == [run["run_id"] for run in cli("runs", "--json").data]


def test_a_command_that_is_misspelt_is_answered_with_the_one_that_was_meant(cli: Shell) -> None:
    answer = cli("shw", "r")
    as_json = cli("runs", "--limt", "3", "--json")

    assert (ExitCode.USAGE, "") == (answer.code, answer.output)
    assert "Did you mean 'show'?" in answer.errors
    assert ("UsageError", ExitCode.USAGE) == (as_json.error["error"], as_json.code)
    assert "--limit" in as_json.error["message"]
    assert "such option: --fork-point-seq. Did you mean --at-entry?" in cli("fork", "r", "--fork-point-seq", "1").errors
    assert "value for 'VALUE': 'good' is not one of 'promoted'" in cli("outcome", "r", "good").errors


@pytest.mark.parametrize("option", ["--db", "--data-dir", "--json"])
def test_an_option_of_a_command_before_its_name_is_answered_with_its_place(option: str, cli: Shell) -> None:
    answer = cli(option, "x", "runs")

    assert ExitCode.USAGE == answer.code
    assert f"{option} stands before the command; options follow it, as in 'satay runs {option}'" in answer.errors


def test_a_database_url_stands_in_an_option_or_in_the_environment(
    cli: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.report("r")
    url = f"sqlite:///{cli.place / DATABASE_FILE}"
    monkeypatch.setenv("SATAY_DATABASE_URL", url)
    by_option = CliRunner().invoke(application, ["runs", "--json", "--db", url])
    by_environment = CliRunner().invoke(application, ["runs", "--json"])
    bad = CliRunner().invoke(application, ["runs", "--json", "--db", "mysql://me:secret@host/runs"])

    assert by_option.stdout == by_environment.stdout
    assert ["r"] == [run["run_id"] for run in json.loads(by_option.stdout)]
    assert ExitCode.USAGE == bad.exit_code
    assert "secret" not in bad.output


def test_a_directory_without_a_name_is_refused() -> None:
    answer = CliRunner().invoke(application, ["run", f"{MODULE}:echo", "1", "--data-dir", ""])

    assert (ExitCode.USAGE, True) == (answer.exit_code, "--data-dir '' names no directory" in answer.stderr)


@pytest.mark.parametrize("line", ["runs", "doctor", "send e", f"run {MODULE}:echo 1"])
def test_a_working_directory_that_was_deleted_is_told_where_the_journal_is_named_from_it(
    cli: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    cli.report("r")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    by_default = CliRunner().invoke(application, line.split(), catch_exceptions=False)

    assert (ExitCode.JOURNAL, True) == (
        by_default.exit_code,
        "the working directory, which was deleted" in by_default.output,
    )
    assert ExitCode.DONE == cli(*line.split()).code


def test_help_names_every_command_and_every_exit_code() -> None:
    shown = CliRunner().invoke(application, ["--help"])
    words = " ".join(shown.output.split())

    assert 0 == shown.exit_code
    assert all(re.search(rf"\b{command}\b", words) for command in COMMANDS)
    assert [] == [code for code, meaning in MEANINGS.items() if f"{code.value} {meaning}" not in words]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_answers_in_json(command: str) -> None:
    shown = CliRunner().invoke(application, [command, "--help"], env={"COLUMNS": "200"})

    assert 0 == shown.exit_code
    assert "--json" in shown.output
    assert "--data-dir" in shown.output


def test_the_command_that_is_asked_for_is_built_alone() -> None:
    asked = [["runs", "--json"], ["--help"], ["nonsense", "runs"]]

    assert [1, len(COMMANDS), len(COMMANDS)] == [len(application_for(line).registered_commands) for line in asked]


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert [] == [command for command in COMMANDS if f"`satay {command}" not in text]


@pytest.mark.parametrize("state", ["completed", "failed", "waiting", "crashed", "session"])
def test_every_command_that_is_advised_is_understood(cli: Shell, state: str) -> None:
    match state:
        case "completed":
            cli.report("r")
        case "failed":
            cli.report("r", style="none")
        case "waiting":
            in_loop(leave_waiting(cli.place, "r"))
        case "crashed":
            in_loop(leave_crashed(cli.place, "r"))
        case "session":
            in_loop(record_session(cli.place, "r"))
    for command in cli("show", "r", "--json").data["state"]["commands"]:
        program, name, *arguments = shlex.split(command)
        understood = CliRunner().invoke(application, [name, *arguments, "--help"])

        assert ("satay", 0) == (program, understood.exit_code), command


def test_the_command_that_is_installed_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["scripts"]["satay"].partition(":")

    assert main is getattr(importlib.import_module(module), name)


# --- as a process -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_reading_imports_none_of_the_users_code(cli: Shell) -> None:
    cli.report("r")
    code = (
        "import sys; from satay.cli import application_for\n"
        "try: application_for(['show'])(['show', 'r', '--data-dir', sys.argv[1]])\n"
        f"except SystemExit: assert {MODULE!r} not in sys.modules, 'it was imported'"
    )
    with Program(["-c", code, str(cli.place)]) as process:
        ended = process.end()

    assert (0, "") == (ended.status, ended.errors)


@pytest.mark.slow
def test_listing_loads_neither_rich_nor_a_feature_for_programs(cli: Shell) -> None:
    cli.report("r")
    code = (
        "import sys; from satay.cli import main; sys.argv[1:1] = ['runs', '--json', '--data-dir']\n"
        "try: main()\n"
        "finally: print(*sys.modules)"
    )
    with Program(["-c", code, str(cli.place)]) as process:
        ended = process.end()
    listed, modules = ended.output.splitlines()

    assert ["r"] == [run["run_id"] for run in json.loads(listed)]
    assert set() == {"rich.console", "satay.views", *FEATURES} & set(modules.split())


@pytest.mark.slow
def test_a_result_is_told_where_the_encoding_of_the_output_lacks_its_characters(cli: Shell) -> None:
    arguments = ("run", f"{MODULE}:echo", '"\u00e9 \u2192"')
    with program(cli.place, *arguments, variables={"PYTHONIOENCODING": "ascii"}) as process:
        ended = process.end()

    assert (0, '"\\xe9 \\u2192"\n') == (ended.status, ended.output)


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_quietly(cli: Shell) -> None:
    for number in range(3):
        cli.report(f"r{number}")
    command = [sys.executable, "-W", "error", "-m", "satay", "runs", "--watch", "--json", "--data-dir", str(cli.place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        cli.report("another")
        errors = process.stderr.read()
        status = process.wait()

    assert "r0" == first["run_id"]
    assert (ExitCode.PIPE_CLOSED, b"") == (status, errors)


def ended(place: Path, output: str, *arguments: str) -> tuple[int, str]:
    """The code and the errors of a command whose output a shell has put there."""
    options = [] if "--help" in arguments else ["--data-dir", str(place)]
    command = shlex.join([sys.executable, "-W", "error", "-m", "satay", *arguments, *options])
    done = subprocess.run(["sh", "-c", f"{command} {output}"], capture_output=True, cwd=ROOT, check=False)
    return done.returncode, done.stderr.decode()


FULL: Final = Path("/dev/full")

ANSWERING: Final = [
    ["runs"],
    ["runs", "--json"],
    ["show", "f", "--receipt", "--json"],
    ["run", f"{MODULE}:echo", '"a"', "--json"],
    ["runs", "--help"],
]


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no device here is always full")
@pytest.mark.parametrize("arguments", ANSWERING, ids=" ".join)
def test_an_answer_that_cannot_be_written_is_one_sentence_and_a_code_of_its_own(
    cli: Shell, arguments: Sequence[str]
) -> None:
    cli.report("r")
    in_loop(make_fork(cli.place, "r", "f"))
    code, errors = ended(cli.place, f">{FULL}", *arguments)
    *told, problem = errors.splitlines()

    assert ExitCode.OUTPUT == code
    assert "the answer cannot be written to the standard output: No space left on device" in problem
    assert [] == told
    assert ("--json" in arguments) == problem.startswith('{"error": "OutputError"')


@pytest.mark.slow
def test_an_output_that_is_closed_is_told_and_the_run_has_ended(cli: Shell) -> None:
    code, errors = ended(cli.place, ">&-", "run", f"{MODULE}:echo", '"a"', "--run-id", "r")

    assert (ExitCode.OUTPUT, "run r\nsatay: the answer cannot be written: the standard output is closed\n") == (
        code,
        errors,
    )
    assert "completed" == cli("show", "r", "--json").data["state"]["state"]


@pytest.mark.slow
@pytest.mark.parametrize("errors", [*([f"2>{FULL}"] if FULL.exists() else []), "2>&-"])
def test_a_run_ends_though_nobody_can_be_told_what_goes_on(cli: Shell, errors: str) -> None:
    code, _ = ended(cli.place, errors, "run", f"{MODULE}:echo", '"a"', "--run-id", "r")
    refused, _ = ended(cli.place, errors, "show", "nowhere")

    assert (ExitCode.DONE, ExitCode.NOT_FOUND) == (code, refused)
    assert "completed" == cli("show", "r", "--json").data["state"]["state"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ANSWERING, ids=" ".join)
def test_a_pipe_that_nobody_reads_ends_every_answer_quietly(cli: Shell, arguments: Sequence[str]) -> None:
    cli.report("r")
    in_loop(make_fork(cli.place, "r", "f"))
    options = [] if "--help" in arguments else ["--data-dir", str(cli.place)]
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-W", "error", "-m", "satay", *arguments, *options]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(writing)

    assert (ExitCode.PIPE_CLOSED, b"") == (done.returncode, done.stderr)


@pytest.mark.slow
def test_watching_ends_with_ctrl_c(cli: Shell) -> None:
    cli.report("r")
    with program(cli.place, "runs", "--watch") as process:
        process.wait_for('"is_stranded": false}')
        process.send_signal(signal.SIGINT)
        ended = process.end()

    assert (ExitCode.INTERRUPTED, "") == (ended.status, ended.errors)


@pytest.mark.slow
def test_a_run_that_is_interrupted_is_resumed(cli: Shell) -> None:
    with program(cli.place, "run", f"{MODULE}:await_answer", "--run-id", "r") as process:
        wait_until(lambda: (cli.place / DATABASE_FILE).exists() and "waiting" in cli("runs").output)
        live = cli("show", "r", "--json").data["state"]
        process.send_signal(signal.SIGINT)
        ended = process.end()
    cli("send", "answer", "7", "--run", "r", "--key", "k")
    resumed = cli("resume", "r", "-m", MODULE)

    assert "waiting for an event" == live["state"]
    assert ["satay send answer JSON --run r --key k"] == live["commands"]
    assert (ExitCode.INTERRUPTED, "") == (ended.status, ended.output)
    assert f"interrupted; satay resume r -m {MODULE} goes on with it" in ended.errors
    assert "7\n" == resumed.output


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_is_resumed(cli: Shell) -> None:
    with program(cli.place, "run", f"{MODULE}:ask", '"how?"', "--run-id", "r") as process:
        wait_until(lambda: (cli.place / DATABASE_FILE).exists() and "waiting" in cli("runs").output)
        cli("send", "answer", '"well"', "--run", "r", "--key", "k")
        process.end()
    options = [
        "--before-event",
        "answer",
        "--variant",
        'why="why?"',
        "-m",
        MODULE,
        "--score",
        f"{MODULE}:judge",
        "--run-id",
        "sweep",
    ]
    with program(cli.place, "sweep", "r", *options) as process:
        wait_until(lambda: "waiting" in cli("runs", "--forked-from", "r").output)
        process.send_signal(signal.SIGINT)
        interrupted = process.end()
    cli("send", "answer", '"so"', "--run", "sweep/why:0", "--key", "k")
    resumed = cli("resume", "sweep", "-m", MODULE, "--json")

    assert ExitCode.INTERRUPTED == interrupted.status
    assert f"interrupted; satay resume sweep -m {MODULE} goes on with it\n" in interrupted.errors
    assert (ExitCode.DONE, "completed") == (resumed.code, resumed.data["status"])
    assert "why? so" == cli("resume", "sweep/why:0", "-m", MODULE, "--json").data["result"]


@pytest.mark.slow
def test_commands_work_on_a_journal_that_another_process_writes(cli: Shell) -> None:
    with program(cli.place, "run", f"{MODULE}:await_answer", "--run-id", "r") as process:
        wait_until(lambda: (cli.place / DATABASE_FILE).exists() and "waiting" in cli("runs").output)
        sent = cli("send", "answer", '"from another process"', "--run", "r", "--key", "k")
        ended = process.end()

    assert 0 == sent.code
    assert (0, '"from another process"\n') == (ended.status, ended.output)


@pytest.mark.slow
def test_messages_are_left_by_a_process_that_knows_no_code(cli: Shell) -> None:
    in_loop(leave_crashed(cli.place, "pays"))
    in_loop(leave_waiting(cli.place, "waits"))
    cli("resume", "pays", "-m", MODULE)
    commands = [
        ["decide", "pays", "--value", '"by hand"'],
        ["approvals"],
        ["send", "answer", "1", "--run", "waits", "--key", "k"],
        ["cancel", "waits"],
    ]
    for arguments in commands:
        with program(cli.place, *arguments, "--json") as process:
            ended = process.end()
        assert (0, "") == (ended.status, ended.errors), arguments

    assert "by hand" == cli("resume", "pays", "-m", MODULE, "--json").data["result"]
    assert "cancelling" == cli("show", "waits", "--json").data["state"]["state"]


@pytest.mark.slow
def test_modules_are_named_in_the_environment(cli: Shell) -> None:
    in_loop(leave_waiting(cli.place))
    cli("send", "answer", "1", "--run", "waits", "--key", "k")
    with program(cli.place, "resume", "waits", variables={"SATAY_MODULES": f" {MODULE} ,json"}) as process:
        ended = process.end()

    assert (0, "1\n") == (ended.status, ended.output)
