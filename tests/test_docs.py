"""The documents tell the truth: their programs print what they say, and what they name exists.

Named programs (`# first.py` in the first line) run as they stand, as the console sessions show. The other Python blocks
run in one interpreter, in order, in the same directory afterwards; a text block after one is its output.
"""

import ast
import asyncio
import codeop
import dataclasses
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import structlog

import satay
from satay.settings import Settings
from tests.patience import patience

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
RECORDS: Final = sorted((ROOT / "adr").glob("[0-9]*.md"))
DOCUMENTS: Final = [*sorted(ROOT.glob("*.md")), ROOT / "adr" / "README.md", *RECORDS]
PATIENCE_SECONDS: Final = patience(60.0)
MAX_RECORD_LINES: Final = 60

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
each_record = pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem[:4])


# --- reading a document -----------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the document on which it begins."""

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        """The name that a program gives itself in its first line."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if self.language == "python" and found else None

    @property
    def is_typed(self) -> bool:
        """Whether it is Python that is typed into an interpreter, and no program with a name."""
        return self.language == "python" and self.file_name is None


def blocks_of(text: str) -> list[Block]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 2) for match in found]


def prose_of(text: str) -> str:
    """The document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def table_after(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of the README, without backquotes."""
    section = README.read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def normal(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: moments, how long things took, and padding."""
    dated = re.sub(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b", "<moment>", text)
    timed = re.sub(r"\b\d+(\.\d+)? ?(ms|s)\b( → \d+(\.\d+)? (ms|s)\b)?", "<time>", dated)
    return [re.sub(r"\s+", " ", re.sub("─+", "─", line)).rstrip() for line in timed.strip().splitlines()]


# --- running the README -----------------------------------------------------------------------------------------------


class Examples(NamedTuple):
    """What the README says is printed, and what is, by the line of the block that says it."""

    expected: dict[int, str]
    printed: dict[int, str]


def run_session(session: Block, place: Path) -> str:
    """The session again, with what its commands print now."""
    lines: list[str] = []
    for command in re.findall(r"^\$ (.*)$", session.text, re.MULTILINE):
        program, *arguments = shlex.split(command)
        assert program in ("python", "satay"), f"line {session.line}: a session runs Python programs and satay"
        lines += [f"$ {command}", run_python(["-m", "satay"] * (program == "satay") + arguments, place)]
    return "\n".join(line for line in lines if line)


def run_python(arguments: Sequence[str], place: Path, given: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SATAY_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(place)]),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONWARNINGS": "error",
    }
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env=environment,
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
    )
    return process.stdout.rstrip("\n")


def run_blocks(texts: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """What each block prints, as if all were typed into one interpreter."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    module = types.ModuleType("readme")
    sys.modules["readme"] = module
    for line, text in texts:
        with redirect_stdout(io.StringIO()) as printed:
            code = compile(text, "<console>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            awaited = eval(code, vars(module))
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(awaited)
        yield line, printed.getvalue()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    place = tmp_path_factory.mktemp("readme")
    blocks = blocks_of(README.read_text(encoding="utf-8"))
    for program in blocks:
        if program.file_name is not None:
            (place / program.file_name).write_text(program.text, encoding="utf-8")
    sessions = [block for block in blocks if block.language == "console"]
    printed = {session.line: run_session(session, place) for session in sessions}
    given = json.dumps([(block.line, block.text) for block in blocks if block.is_typed])
    outputs = dict(json.loads(run_python([__file__], place, given)))
    expected = {session.line: session.text for session in sessions}
    for block, after in zip(blocks, [*blocks[1:], Block("", "", 0)], strict=True):
        if block.is_typed:
            printed[block.line] = outputs[block.line]
            expected[block.line] = after.text if after.language == "text" else ""
    return Examples(expected, printed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(block.line, id=f"line {block.line}")
        for block in blocks_of(README.read_text(encoding="utf-8"))
        if block.is_typed or block.language == "console"
    ],
)
def test_an_example_prints_what_the_readme_shows(line: int, examples: Examples) -> None:
    expected = normal(examples.expected[line])

    assert expected == normal(examples.printed[line])


def test_every_program_in_the_readme_is_run_by_a_session() -> None:
    blocks = blocks_of(README.read_text(encoding="utf-8"))
    commands = " ".join(block.text for block in blocks if block.language == "console").split()

    assert [] == [block.file_name for block in blocks if block.file_name and block.file_name not in commands]


@each_document
def test_python_in_a_document_is_valid(path: Path) -> None:
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.language == "python":
            compile(block.text, f"{path}:{block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@each_document
def test_python_that_is_typed_can_be_pasted_into_an_interpreter(path: Path) -> None:
    """Before CPython 3.13 a blank line ends a statement there, and only a blank line does."""
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.is_typed:
            console = codeop.CommandCompiler()
            console.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            typed: list[str] = []
            for line in [*block.text.splitlines(), ""]:
                typed.append(line)
                if console("\n".join(typed), f"{path}:{block.line}", "single") is not None:
                    typed.clear()


# --- what is named exists ---------------------------------------------------------------------------------------------


def headings_of(path: Path) -> set[str]:
    """The anchors of a document, as a forge makes them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_a_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(path.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path

        assert there.is_relative_to(ROOT), target
        assert there.exists(), target
        assert not anchor or anchor in headings_of(there), target


@each_document
def test_a_make_target_in_a_document_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    code = [*re.findall(r"`([^`\n]+)`", prose_of(text)), *(block.text for block in blocks_of(text))]
    named = {name for part in code for name in re.findall(r"^make ([a-z]+)", part, re.MULTILINE)}

    assert named <= targets


def is_known(name: str) -> bool:
    """Whether a dotted name that begins with `satay` can be imported or is an attribute of what can."""
    found: Any = satay
    reached = "satay"
    for part in name.split(".")[1:]:
        reached += f".{part}"
        if not hasattr(found, part):
            try:
                found = importlib.import_module(reached)
            except ImportError:
                return False
        else:
            found = getattr(found, part)
    return True


@pytest.mark.parametrize("path", [README, ROOT / "CONTRIBUTING.md"], ids=lambda path: str(path.name))
def test_an_api_name_in_a_document_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [block.text for block in blocks_of(text) if block.language == "python"]
    code += re.findall(r"`([^`\n]+)`", prose_of(text))
    names = {name.rstrip(".") for part in code for name in re.findall(r"(?<![\w./])satay(?:\.[A-Za-z_]\w*)+", part)}
    files = {"satay.db"}

    assert [] == sorted(name for name in names - files if not is_known(name))


@pytest.mark.parametrize("path", [README, ROOT / "CONTRIBUTING.md"], ids=lambda path: str(path.name))
def test_a_file_in_a_document_exists(path: Path) -> None:
    named = re.findall(r"`((?:satay|tests|recipes|adr|\.ci)/[\w./]*)`", prose_of(path.read_text(encoding="utf-8")))
    real = [name for name in named if "NN" not in name]

    assert [] == [name for name in real if not (ROOT / name).exists()]


def test_every_public_function_is_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    functions = [name for name in satay.__all__ if inspect.isfunction(getattr(satay, name))]

    assert [] == [name for name in functions if f"satay.{name}" not in text]


# --- tables -----------------------------------------------------------------------------------------------------------


def constants() -> dict[str, object]:
    """Every module-level constant of satay, by name."""
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(satay.__path__, "satay.")
        if not module.name.startswith("satay.testing")
    ]
    return {name: value for module in modules for name, value in vars(module).items() if name.isupper()}


def number(text: str) -> int:
    """`64 MiB` and `10,000` as numbers."""
    digits, _, unit = text.partition(" ")
    return int(digits.replace(",", "")) * {"": 1, "KiB": 1024, "MiB": 1024**2}[unit]


def test_the_limits_in_the_readme_are_those_of_the_code() -> None:
    shown = {name: number(value) for name, value, _ in table_after("Limits")}
    known = constants()

    assert {name: known.get(name) for name in shown} == shown


SETTINGS = {field.name: field for field in dataclasses.fields(Settings)}


def test_the_settings_in_the_readme_are_those_of_the_code() -> None:
    rows = table_after("Configuration")
    parameters = inspect.signature(satay.run_app).parameters
    for_tests = {"clock", "chance"}
    defaults = {argument: default for argument, _, default, _ in rows if argument}
    by_variable = {variable: default for _, variable, default, _ in rows if variable}

    assert set(parameters) - for_tests == set(defaults)
    assert {f"SATAY_{name.upper()}" for name in SETTINGS} == set(by_variable)
    for name, field in SETTINGS.items():
        default = "none" if field.default is None else str(field.default)
        assert default == by_variable[f"SATAY_{name.upper()}"], name
    for name, default in defaults.items():
        if parameters[name].default is not None and name != "max_threads":
            assert str(parameters[name].default) == default, name


# --- decisions --------------------------------------------------------------------------------------------------------


@each_record
def test_a_decision_is_recorded_in_the_agreed_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    title = text.partition("\n")[0]
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)

    assert re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", path.name)
    assert title.startswith(f"# {path.name[:4]} ")
    assert path.stem[5:] == re.sub(r"[^a-z0-9]+", "-", title[7:].lower().replace("'", "")).strip("-")
    assert re.search(r"^Status: (proposed|accepted|superseded by \d{4}) · \d{4}-\d{2}-\d{2}$", text, re.MULTILINE)
    assert ["Context", "Decision", "Consequences", "Considered"] == sections
    assert text.count("\n") <= MAX_RECORD_LINES


def test_decisions_are_numbered_without_gaps_and_listed_in_order() -> None:
    listed = re.findall(r"\]\((\d{4}-[^)]+\.md)\)", (ROOT / "adr" / "README.md").read_text(encoding="utf-8"))

    assert [path.name for path in RECORDS] == listed
    assert list(range(1, len(RECORDS) + 1)) == [int(path.name[:4]) for path in RECORDS]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(run_blocks(json.load(sys.stdin)))))
