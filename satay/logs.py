"""Satay's own log. Quiet unless the program configures structlog: warnings go where the standard library sends them."""

import logging
from typing import Any

import structlog

_quiet = structlog.wrap_logger(
    logging.getLogger("satay"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)


def log() -> Any:
    """The logger of the moment: structlog's, as the program configured it, or the standard library's `satay`."""
    return structlog.get_logger("satay") if structlog.is_configured() else _quiet
