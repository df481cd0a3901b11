import sys
from collections import OrderedDict

import pytest

from satay.classes import class_name, find_class, instance_state, restore_state
from tests.samples import Box, Color


class Outer:
    class Inner:
        pass


class Slotted:
    __slots__ = ("left", "right")


class SlottedToo(Slotted):
    __slots__ = ("__weakref__", "own")


class Guarded:
    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("it was set through the class")

    @property
    def total(self) -> int:
        raise AssertionError("it was read through the class")


ALIAS = Outer


@pytest.mark.parametrize("cls", [Outer, Outer.Inner, Color, Box[int], dict, OrderedDict])
def test_a_class_is_found_by_its_name(cls: type) -> None:
    assert cls is find_class(class_name(cls))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "tests.test_classes",
        "tests.test_classes:",
        "tests.test_classes:Nothing",
        "tests.test_classes:ALIAS",
        "tests.test_classes:Outer.Inner.deeper",
        "tests.test_classes:test_a_class_is_found_by_its_name",
        "tests.samples:Box[Nothing]",
        "tests.samples:A[int]",
        "this:Zen",
    ],
)
def test_what_is_no_class_of_that_name_is_not_found(name: str) -> None:
    assert find_class(name) is None
    assert "this" not in sys.modules


def test_the_state_of_an_instance_is_its_slots_and_its_attributes() -> None:
    slotted = SlottedToo()
    restore_state(slotted, {"left": 1, "own": 2})
    guarded = Guarded()
    restore_state(guarded, {"total": 3, "x": 4})

    assert {"left": 1, "own": 2} == instance_state(slotted)
    assert {"total": 3, "x": 4} == instance_state(guarded)
