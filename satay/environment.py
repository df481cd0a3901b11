"""What can be set from outside: arguments first, then environment variables, then defaults."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from satay.arguments import shown
from satay.errors import InvalidValueError
from satay.settings import Settings


class _Environment(BaseSettings, Settings):
    """Settings of which each reads `SATAY_<NAME>` where it is not given."""

    model_config = SettingsConfigDict(env_prefix="SATAY_", frozen=True, extra="forbid")


def make_settings(url: str | None = None, data_dir: str | Path | None = None, **given: Any) -> Settings:
    """Settings from what was given, None for what was not. A directory that is given stands above a URL that is not.

    Raises `InvalidValueError` for a setting, given or in the environment, that cannot be used.
    """
    values = {"database_url": url, "data_dir": data_dir} | given
    try:
        settings = _Environment(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"{problem['loc'][0]} is {shown(problem['input'])}: {problem['msg']}" for problem in error.errors()
        )
        raise InvalidValueError(f"the settings of the app cannot be used: {problems}") from None
    if data_dir is not None and url is None:
        return settings.model_copy(update={"database_url": None})
    return settings
