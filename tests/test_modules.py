"""The user's modules, found by name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from satay.errors import ModuleImportError, UsageError
from satay.modules import find_function, find_target, import_modules
from tests.programs import shell

MODULE = "tests.programs.shell"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules of its own, that are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_workflow_is_found_by_its_variable_and_by_its_name() -> None:
    assert shell.report is find_target(f"{MODULE}:report")
    assert shell.report is find_target(f"{MODULE}:shell.report")


def test_a_module_with_one_workflow_names_it(place: Path) -> None:
    (place / "modules_single.py").write_text(
        "import satay\nfrom tests.programs.shell import echo\n"
        "@satay.workflow(name='modules.single')\nasync def single() -> None: ...\n"
    )

    assert "modules.single" == find_target("modules_single").name


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (f"{MODULE}:repotr", "did you mean 'report'"),
        (f"{MODULE}:pay", "has no workflow named 'pay'; it has 'report', "),
        (f"{MODULE}:", "has no workflow named ''"),
        (MODULE, "as in 'module:workflow'"),
        ("json:dumps", "it has none"),
    ],
)
def test_a_workflow_that_is_not_there_is_answered_with_those_that_are(target: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        find_target(target)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("modules_nowhere", "there is no module 'modules_nowhere' in '.*' or where Python looks"),
        ("modules_nowhere.inner", "there is no module 'modules_nowhere.inner'"),
        ("modules_fine.py", "is named without its .py"),
        ("modules_broken", "cannot be imported: RuntimeError: not today"),
        ("modules_needy", "needs 'modules_absent', which is not installed here"),
        ("modules_typo", "cannot be imported: SyntaxError"),
        ("modules_done", "cannot be imported: SystemExit: 0"),
        ("", "'' names no module; write it as it is imported"),
        ("./modules_fine.py", "'./modules_fine.py' names no module; write it as it is imported"),
        (".modules_fine:report", "'.modules_fine' names no module"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(place: Path, name: str, complaint: str) -> None:
    (place / "modules_broken.py").write_text("raise RuntimeError('not today')\n")
    (place / "modules_needy.py").write_text("import modules_absent\n")
    (place / "modules_fine.py").write_text("")
    (place / "modules_typo.py").write_text("def :\n")
    (place / "modules_done.py").write_text("import sys\nsys.exit(0)\n")

    with pytest.raises(ModuleImportError, match=complaint):
        import_modules([name])


def test_modules_are_looked_for_in_the_working_directory(place: Path) -> None:
    (place / "modules_here.py").write_text("")
    import_modules(["modules_here"])

    assert "modules_here" in sys.modules


def test_a_function_is_found_by_its_name() -> None:
    assert shell.judge is find_function(f"{MODULE}:judge")


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (f"{MODULE}:jugde", "did you mean 'judge'"),
        (f"{MODULE}:outages", "names no function; module .* has none of that name"),
        (MODULE, "write it as 'module:function'"),
        (f"{MODULE}:", "write it as 'module:function'"),
    ],
)
def test_what_is_no_function_is_refused(target: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        find_function(target)


def test_a_working_directory_that_was_deleted_has_no_modules(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "gone").mkdir()
    monkeypatch.chdir(place / "gone")
    (place / "gone").rmdir()
    with pytest.raises(ModuleImportError, match="no module 'modules_gone' where Python looks, and the working dir"):
        find_target("modules_gone:story")

    assert shell.report is find_target(f"{MODULE}:report")
