"""What holds for every test."""

import os
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest
import structlog

from tests.patience import patience

hypothesis.settings.register_profile("satay", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("satay")  # How long the machine takes is no property of what is tested.


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Stretch the limit that `--timeout` sets on a test, before it is read; let programs share their bytecode."""
    if config.option.timeout:
        config.option.timeout = patience(config.option.timeout)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        # Tests start hundreds of programs. Each would compile all of satay for itself; so it is kept, but elsewhere.
        bytecode = tempfile.TemporaryDirectory(prefix="satay-bytecode-", ignore_cleanup_errors=True)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode.name
        config.add_cleanup(bytecode.cleanup)


@pytest.fixture(autouse=True)
def _structlog_is_not_configured() -> Iterator[None]:
    """A test leaves structlog as it found it; `capture_logs` alone leaves it configured."""
    yield
    structlog.reset_defaults()
