"""What can be set from outside: arguments first, then environment variables, then defaults."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from pydantic import ValidationError, create_model
from pydantic_settings import BaseSettings, SettingsConfigDict

from satay.arguments import shown
from satay.errors import InvalidValueError
from satay.settings import Settings


class _Variables(BaseSettings):
    """What a setting reads, where it is not given: `SATAY_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="SATAY_", extra="forbid")


_hints: Final = get_type_hints(Settings)
_defined: Final[dict[str, Any]] = {field.name: (_hints[field.name], field.default) for field in fields(Settings)}
_Environment: Final = create_model("_Environment", __base__=_Variables, **_defined)
"""The settings as a model, which checks and converts what is given and what the environment says."""


def make_settings(url: str | None = None, data_dir: str | Path | None = None, **given: Any) -> Settings:
    """Settings from what was given, None for what was not. A directory that is given stands above a URL that is not.

    Raises `InvalidValueError` for a setting, given or in the environment, that cannot be used.
    """
    values = {"database_url": url, "data_dir": data_dir} | given
    try:
        found = _Environment(**{name: value for name, value in values.items() if value is not None}).model_dump()
    except ValidationError as error:
        problems = "; ".join(
            f"{problem['loc'][0]} is {shown(problem['input'])}: {problem['msg']}" for problem in error.errors()
        )
        raise InvalidValueError(f"the settings of the app cannot be used: {problems}") from None
    return Settings(**found | ({"database_url": None} if data_dir is not None and url is None else {}))
