"""What can be set from outside."""

import os
from dataclasses import FrozenInstanceError, asdict, fields
from pathlib import Path
from typing import Any

import pytest

from satay.errors import InvalidValueError
from satay.settings import Settings, make_settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SATAY_"):
            monkeypatch.delenv(name)


def test_without_arguments_and_environment_the_defaults_hold() -> None:
    assert {
        "database_url": None,
        "data_dir": Path(".satay"),
        "synchronous": "FULL",
        "nondeterminism": "strict",
        "allow_pickle": False,
        "code_version": None,
    } == asdict(make_settings())


FROM_ENVIRONMENT: dict[str, tuple[str, Any]] = {
    "database_url": ("sqlite:///a.db", "sqlite:///a.db"),
    "data_dir": ("/there", Path("/there")),
    "synchronous": ("NORMAL", "NORMAL"),
    "nondeterminism": ("warn", "warn"),
    "allow_pickle": ("1", True),
    "code_version": ("v7", "v7"),
}


def test_every_setting_has_a_variable() -> None:
    assert {field.name for field in fields(Settings)} == set(FROM_ENVIRONMENT)


@pytest.mark.parametrize("name", FROM_ENVIRONMENT)
def test_a_setting_that_is_not_given_is_read_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = FROM_ENVIRONMENT[name]
    monkeypatch.setenv(f"SATAY_{name.upper()}", text)

    assert value == getattr(make_settings(), name)


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_NONDETERMINISM", "off")
    monkeypatch.setenv("SATAY_SYNCHRONOUS", "NORMAL")
    settings = make_settings(nondeterminism="warn")

    assert ("warn", "NORMAL") == (settings.nondeterminism, settings.synchronous)


@pytest.mark.parametrize(
    ("name", "text"),
    [("synchronous", "OFF"), ("synchronous", "full"), ("nondeterminism", "lax"), ("allow_pickle", "perhaps")],
)
def test_a_variable_that_cannot_be_used_is_refused(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SATAY_{name.upper()}", text)

    with pytest.raises(InvalidValueError, match=f"{name} is '{text}', from SATAY_{name.upper()}: "):
        make_settings()


def test_a_variable_that_names_no_setting_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_TORTURE", "long")

    assert make_settings().database_url is None


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="sychronous"):
        make_settings(sychronous="FULL")


@pytest.mark.parametrize("place", ["here", Path("here")])
def test_a_directory_is_a_path_or_its_text(place: str | Path) -> None:
    assert Path("here") == make_settings(data_dir=place).data_dir


def test_a_variable_that_was_left_empty_does_not_put_the_journal_into_the_working_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SATAY_DATA_DIR", "")

    with pytest.raises(InvalidValueError, match="data_dir is '', from SATAY_DATA_DIR: Input is not a valid path"):
        make_settings()


@pytest.mark.parametrize("place", [3, b"here", ""])
def test_what_is_no_path_is_refused(place: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"data_dir is .*: Input is not a valid path"):
        make_settings(data_dir=place)


@pytest.mark.parametrize("text", ["1", "true", "Yes", "ON"])
def test_a_flag_is_read_from_its_words(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATAY_ALLOW_PICKLE", text)

    assert make_settings().allow_pickle is True


def test_settings_do_not_change() -> None:
    settings = make_settings()

    with pytest.raises(FrozenInstanceError):
        settings.allow_pickle = True  # type: ignore[misc]  # that is what is tested
