"""What an app is opened with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


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
