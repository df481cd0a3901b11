"""Satay's own log. Quiet unless the program configures structlog: warnings go where the standard library sends them.

structlog is loaded when something is logged: it brings more code than the engine, and most programs log nothing.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any


def log() -> Any:
    """The logger of the moment: structlog's, as the program configured it, or the standard library's `satay`."""
    import structlog  # noqa: PLC0415  # see above

    return structlog.get_logger("satay") if structlog.is_configured() else _quiet()


@functools.cache
def _quiet() -> Any:
    import structlog  # noqa: PLC0415  # see above

    return structlog.wrap_logger(
        logging.getLogger("satay"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def bound_log(is_silent: Callable[[], bool], **facts: Any) -> Any:
    """A structlog logger with facts bound, which drops what is logged while `is_silent()`."""
    import structlog  # noqa: PLC0415  # see above

    def drop(logger: Any, method: str, event: Any) -> Any:
        if is_silent():
            raise structlog.DropEvent
        return event

    config = structlog.get_config()
    return structlog.wrap_logger(
        config["logger_factory"](),
        processors=[drop, *config["processors"]],
        wrapper_class=config["wrapper_class"],
        context_class=config["context_class"],
        **facts,
    )


def plain_log() -> Any:
    """The program's structlog logger."""
    import structlog  # noqa: PLC0415  # see above

    return structlog.get_logger("satay")
