"""What an app is opened with: arguments first, then environment variables, then defaults."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from pydantic_core import SchemaValidator, ValidationError, core_schema

from satay.arguments import shown
from satay.errors import InvalidValueError
from satay.model import MISSING

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

    database_url: str | None = None
    data_dir: Path = Path(".satay")
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    nondeterminism: Literal["strict", "warn", "off"] = "strict"
    allow_pickle: bool = False
    code_version: str | None = None


_PATH: Final = core_schema.union_schema(
    [
        core_schema.is_instance_schema(Path),
        core_schema.no_info_after_validator_function(Path, core_schema.str_schema(strict=True, min_length=1)),
    ],
    custom_error_type="path_type",
    custom_error_message="Input is not a valid path",
)

# Written down, because what pydantic needs to find it by itself takes longer than to open the journal.
_CHECKER: Final = SchemaValidator(
    core_schema.typed_dict_schema(
        {
            name: core_schema.typed_dict_field(schema, required=False)
            for name, schema in {
                "database_url": core_schema.str_schema(),
                "data_dir": _PATH,
                "synchronous": core_schema.literal_schema(["FULL", "NORMAL"]),
                "nondeterminism": core_schema.literal_schema(["strict", "warn", "off"]),
                "allow_pickle": core_schema.bool_schema(),
                "code_version": core_schema.str_schema(),
            }.items()
        },
        extra_behavior="forbid",
    )
)


def make_settings(url: str | None = None, data_dir: str | Path | None = None, **given: Any) -> Settings:
    """Settings from what was given, None for what was not. A directory that is given stands above a URL that is not.

    Raises `InvalidValueError` for a setting, given or in the environment, that cannot be used.
    """
    names = {field.name: f"{VARIABLE_PREFIX}{field.name.upper()}" for field in fields(Settings)}
    in_environment = {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
    found: dict[str, Any] = in_environment | {name: value for name, value in given.items() if value is not None}
    if url is not None:
        found["database_url"] = url
    if data_dir is not None:
        found["data_dir"] = data_dir
        if url is None:
            found.pop("database_url", None)
    try:
        return Settings(**_CHECKER.validate_python(found))
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            name, value = str(problem["loc"][0]), problem["input"]
            origin = f", from {names[name]}" if value is in_environment.get(name, MISSING) else ""
            problems.append(f"{name} is {shown(value)}{origin}: {problem['msg']}")
        raise InvalidValueError(f"the settings of the app cannot be used: {'; '.join(problems)}") from None
