"""What can be set from outside: arguments first, then environment variables, then defaults."""

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from satay.arguments import shown
from satay.errors import InvalidValueError


class Settings(BaseSettings):
    """Settings that an app is opened with. Each reads `SATAY_<NAME>` where it is not given.

    `database_url`: where the journal is, `sqlite:///path`; without it, the file `satay.db` in `data_dir`.
    `synchronous`: `FULL` survives a power cut, `NORMAL` may lose the last commits in one (never in a crash of the
    process). `nondeterminism`: what happens when code and journal part. `allow_pickle`: whether payloads of tasks with
    `codec="pickle"` are read. `code_version`: what is recorded as the version of the code, instead of a digest of the
    source file.
    """

    model_config = SettingsConfigDict(env_prefix="SATAY_", frozen=True, extra="forbid")

    database_url: str | None = None
    data_dir: Path = Path(".satay")
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    nondeterminism: Literal["strict", "warn", "off"] = "strict"
    allow_pickle: bool = False
    code_version: str | None = None


def make_settings(url: str | None = None, data_dir: str | Path | None = None, **given: Any) -> Settings:
    """Settings from what was given, None for what was not. A directory that is given stands above a URL that is not.

    Raises `InvalidValueError` for a setting, given or in the environment, that cannot be used.
    """
    values = {"database_url": url, "data_dir": data_dir} | given
    try:
        settings = Settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"{problem['loc'][0]} is {shown(problem['input'])}: {problem['msg']}" for problem in error.errors()
        )
        raise InvalidValueError(f"the settings of the app cannot be used: {problems}") from None
    if data_dir is not None and url is None:
        return settings.model_copy(update={"database_url": None})
    return settings
