"""What an app is opened with: arguments first, then environment variables, then defaults."""

import functools
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from satay.arguments import shown
from satay.errors import InvalidValueError

VARIABLE_PREFIX: Final = "SATAY_"
"""What the name of an environment variable begins with; the name of the setting follows, in capitals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that an app is opened with, as `make_settings` has checked them.

    `database_url`: where the journal is, `sqlite:///path`; without it, the file `satay.db` in `data_dir`.
    `synchronous`: `FULL` survives a power cut, `NORMAL` may lose the last commits in one (never in a crash of the
    process). `nondeterminism`: what happens when code and journal part. `allow_pickle`: whether payloads of tasks with
    `codec="pickle"` are read. `code_version`: what is recorded as the version of the code, instead of a digest of the
    source file.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    database_url: str | None = None
    data_dir: Path = Path(".satay")
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    nondeterminism: Literal["strict", "warn", "off"] = "strict"
    allow_pickle: bool = False
    code_version: str | None = None


@functools.cache
def _checker() -> TypeAdapter[Settings]:
    return TypeAdapter(Settings)


def make_settings(url: str | None = None, data_dir: str | Path | None = None, **given: Any) -> Settings:
    """Settings from what was given, None for what was not. A directory that is given stands above a URL that is not.

    Raises `InvalidValueError` for a setting, given or in the environment, that cannot be used.
    """
    names = {field.name: f"{VARIABLE_PREFIX}{field.name.upper()}" for field in fields(Settings)}
    found: dict[str, Any] = {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
    found |= {name: value for name, value in given.items() if value is not None}
    if url is not None:
        found["database_url"] = url
    if data_dir is not None:
        found["data_dir"] = data_dir
        if url is None:
            found.pop("database_url", None)
    try:
        return _checker().validate_python(found)
    except ValidationError as error:
        problems = "; ".join(
            f"{problem['loc'][0]} is {shown(problem['input'])}: {problem['msg']}" for problem in error.errors()
        )
        raise InvalidValueError(f"the settings of the app cannot be used: {problems}") from None
