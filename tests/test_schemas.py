import dataclasses
import operator
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, TypeAdapter

from satay.schemas import schema_facts
from tests.samples import A, B, Order


def is_same(annotation: Any, value: Any, copy: Any) -> bool:
    return schema_facts(TypeAdapter(annotation).core_schema).is_same(value, copy)


@dataclasses.dataclass
class Lax:
    x: int
    y: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass
class Careless:
    x: int

    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("annotation", "value", "copy"),
    [
        (int, 1, True),
        (list[float], [1.0], [1]),
        (dict[str, bool], {"a": True}, {"a": 1}),
        (A, A(1), A(2)),
        (Lax, Lax(1, 2), Lax(1, 3)),
        (list[Lax], [Lax(1, 2)], [Lax(1, 3)]),
        (A | B, A(1), B(1)),
        (int | str, 1, "1"),
        (list[Any], [(1,)], [[1]]),
    ],
)
def test_values_that_differ_are_told_apart_whatever_the_schema(annotation: Any, value: Any, copy: Any) -> None:
    assert is_same(annotation, value, copy) is False
    assert is_same(annotation, value, value) is True


def test_an_equality_of_the_users_own_is_not_taken_as_a_proof_of_what_it_holds() -> None:
    assert is_same(A | Lax, A(1), Lax(1)) is False
    assert schema_facts(TypeAdapter(Careless).core_schema).is_same is not operator.eq


@pytest.mark.parametrize(
    ("annotation", "facts"),
    [
        (dict[str, list[Order]], {"has_models", "runs_code"}),
        (dict[str, set[int]], {"has_sets"}),
        (list[A], {"runs_code"}),
        (int, set()),
        (list[Annotated[int, BeforeValidator(int)]], {"converts_itself", "runs_code"}),
    ],
)
def test_what_stands_anywhere_in_a_schema_is_seen(annotation: Any, facts: set[str]) -> None:
    found = schema_facts(TypeAdapter(annotation).core_schema)

    assert facts == {
        name for name in ("has_sets", "has_models", "converts_itself", "runs_code") if getattr(found, name)
    }
