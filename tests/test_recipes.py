"""Recipes are documentation that runs: each one keeps to its form, and prints what its docstring says."""

import ast
import doctest
import os
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import satay
from tests.patience import patience, patience_now

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
MAX_LINES = 100
MAX_SECONDS = 5.0
PUBLIC_MODULES = ("satay", "satay.errors", "satay.testing", "satay.server", "satay.adapters")

each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.stem for recipe in RECIPES])


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    output: str
    complaints: str
    seconds: float
    left_behind: list[str]


def run_python(*arguments: str, place: Path) -> Outcome:
    """Run a program in a directory of its own, with temporary files in another, and see what is left in both."""
    work, temporary = place / "work", place / "temporary"
    work.mkdir()
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SATAY_", "PYTEST_"))}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONWARNINGS": "error",
        "TMPDIR": str(temporary),
    }
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=work,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=patience(60.0),
    )
    seconds = time.perf_counter() - began
    left_behind = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path not in (work, temporary))
    return Outcome(done.returncode, done.stdout, done.stderr, seconds, left_behind)


def docstring(recipe: Path) -> str:
    return ast.get_docstring(ast.parse(recipe.read_text(encoding="utf-8"))) or ""


def promised_output(recipe: Path) -> str:
    """What the docstring says is printed; `...` in it stands for anything."""
    return textwrap.dedent(docstring(recipe).partition("\nPrints:\n")[2]).strip("\n") + "\n"


@pytest.mark.slow
@each_recipe
def test_a_recipe_prints_what_its_docstring_says_and_leaves_nothing_behind(recipe: Path, tmp_path: Path) -> None:
    before = patience_now(MAX_SECONDS)
    outcome = run_python(str(recipe), place=tmp_path)
    after = patience_now(MAX_SECONDS)

    assert (0, "") == (outcome.exit_code, outcome.complaints)
    wanted = promised_output(recipe)
    if not doctest.OutputChecker().check_output(wanted, outcome.output, doctest.ELLIPSIS):
        assert wanted == outcome.output
    assert [] == outcome.left_behind
    assert outcome.seconds < max(before, after)


@pytest.mark.slow
def test_the_demo_tells_its_story_within_one_screen(tmp_path: Path) -> None:
    outcome = run_python(str(ROOT / "recipes" / "02_fork_replay_compare.py"), place=tmp_path)

    lines = outcome.output.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["08_test_your_workflow", "11_regression_test"])
def test_a_recipe_about_tests_is_a_test_file_that_passes(name: str, tmp_path: Path) -> None:
    recipe = ROOT / "recipes" / f"{name}.py"
    outcome = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(recipe), place=tmp_path)

    assert (0, "") == (outcome.exit_code, outcome.complaints), outcome.output
    assert re.search(r"^\d+ passed", outcome.output, re.MULTILINE)
    assert [] == outcome.left_behind


@each_recipe
def test_a_recipe_has_at_most_a_hundred_lines(recipe: Path) -> None:
    assert len(recipe.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@each_recipe
def test_a_recipe_is_named_by_a_number_and_its_idea(recipe: Path) -> None:
    assert re.fullmatch(r"\d\d(_[a-z]+)+", recipe.stem)


@each_recipe
def test_a_recipe_says_the_problem_in_two_sentences_and_how_to_run_it(recipe: Path) -> None:
    problem, running, *rest = docstring(recipe).split("\n\n")

    assert 2 == len(re.findall(r"[.!?](?=\s|$)", problem)), problem
    assert running.startswith("Run:    ")
    assert f"python recipes/{recipe.name}" in running
    assert rest[0].startswith("Prints:\n")


@each_recipe
def test_a_recipe_uses_public_names_only(recipe: Path) -> None:
    tree = ast.parse(recipe.read_text(encoding="utf-8"))
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add(node.module or "")
            if node.module == "satay":
                used |= {f"satay.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "satay":
            used.add(f"satay.{node.attr}")

    public = {*PUBLIC_MODULES, *(f"satay.{name}" for name in satay.__all__)}
    assert set() == {name for name in used if name.partition(".")[0] == "satay"} - public
    assert {name.partition(".")[0] for name in used} <= {*sys.stdlib_module_names, "satay", "pytest"}


def test_the_index_has_one_line_for_each_recipe_in_order() -> None:
    index = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")

    assert [recipe.name for recipe in RECIPES] == re.findall(r"^- \[.+\]\((\d\d_.+\.py)\): \S", index, re.MULTILINE)
