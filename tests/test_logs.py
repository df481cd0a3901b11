"""Satay's own log."""

import io
import logging

import pytest
import structlog

from satay.logs import log


def test_without_configuration_a_warning_goes_to_the_logger_satay(caplog: pytest.LogCaptureFixture) -> None:
    log().warning("run.diverged", run_id="r", position=3)

    (record,) = caplog.records
    assert ("satay", logging.WARNING) == (record.name, record.levelno)
    assert "event='run.diverged' run_id='r' position=3" == record.getMessage()


def test_without_configuration_what_is_less_than_a_warning_is_not_even_written_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log().info("run.lost", run_id="r")
    log().debug("run.parked", run_id="r")

    assert [] == caplog.records


def test_the_levels_of_the_standard_library_hold(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "satay"):
        log().info("run.lost", run_id="r")
    with caplog.at_level(logging.CRITICAL, "satay"):
        log().error("run.stopped", run_id="r")

    assert ["event='run.lost' run_id='r'"] == [record.getMessage() for record in caplog.records]


def test_where_the_program_configures_structlog_its_configuration_holds(caplog: pytest.LogCaptureFixture) -> None:
    written = io.StringIO()
    structlog.configure(
        processors=[structlog.processors.JSONRenderer(sort_keys=True)],
        logger_factory=structlog.PrintLoggerFactory(written),
    )
    log().info("run.parked", run_id="r")

    assert '{"event": "run.parked", "run_id": "r"}\n' == written.getvalue()
    assert [] == caplog.records


def test_a_configuration_that_comes_later_holds_from_then_on() -> None:
    log()
    with structlog.testing.capture_logs() as captured:
        structlog.configure(processors=structlog.get_config()["processors"])
        log().warning("turn.blocks", seconds=1.5)

    assert [{"event": "turn.blocks", "seconds": 1.5, "log_level": "warning"}] == captured
