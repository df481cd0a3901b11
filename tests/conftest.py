"""What holds for every test."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _structlog_is_not_configured() -> Iterator[None]:
    """A test leaves structlog as it found it; `capture_logs` alone leaves it configured."""
    yield
    structlog.reset_defaults()
