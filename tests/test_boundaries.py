"""How a fork of a session treats its boundary, and what is told of it."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from satay.boundaries import BoundaryMode, Reproducibility, SessionBoundary, parse_mode
from satay.errors import InvalidValueError

BOUNDARY = SessionBoundary(
    asked_of="s",
    requested_step=7,
    resolved_step=6,
    mode=BoundaryMode.NEAREST,
    state_step=6,
    state_version=2,
    state_sha256="0" * 64,
    reproducibility=Reproducibility.APPROXIMATE,
    missing=("step 7 has no state",),
)


@pytest.mark.parametrize("mode", BoundaryMode)
def test_a_mode_is_named_by_its_value(mode: BoundaryMode) -> None:
    assert mode is parse_mode(mode.value)


@pytest.mark.parametrize("given", ["", "EXACT", "latest", None, 1, ["exact"]])
def test_another_mode_is_refused_and_the_choices_are_named(given: Any) -> None:
    with pytest.raises(InvalidValueError, match="'exact', 'nearest', 'lineage'"):
        parse_mode(given)


def test_a_boundary_is_read_back_as_it_was_told() -> None:
    assert SessionBoundary.from_plain(asdict(BOUNDARY)) == BOUNDARY


def test_a_boundary_without_a_state_is_read_back() -> None:
    bare = replace(BOUNDARY, state_step=None, state_version=None, state_sha256=None, missing=())

    assert SessionBoundary.from_plain(asdict(bare)) == bare


def test_what_a_later_version_tells_besides_is_left_out() -> None:
    assert SessionBoundary.from_plain(asdict(BOUNDARY) | {"colour": "red"}) == BOUNDARY
