"""What a pydantic schema says of the values that it takes, and how to prove that one was read back as it was."""

import marshal
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import fields as dataclass_fields
from typing import Any, Final, NamedTuple

from pydantic import BaseModel
from pydantic_core import core_schema

from satay.equality import MARSHAL_VERSION, find_difference

_EXACT_SCHEMAS: Final = frozenset(
    {"none", "bool", "int", "float", "str", "bytes", "date", "timedelta", "uuid", "decimal", "enum", "nullable"}
    | {"list", "tuple", "dict", "default", "definitions", "definition-ref"}
    | {"typed-dict", "typed-dict-field", "model", "model-fields", "model-field"}
    | {"dataclass", "dataclass-args", "dataclass-field"}
)
"""Kinds of pydantic schema that leave one type for each place, so that `==` is enough to prove a round trip."""

_NUMBERS: Final = frozenset({"bool", "int", "float"})
_OBJECTS: Final = frozenset({"model", "dataclass"})
_SETS: Final = frozenset({"set", "frozenset"})
_NO_SCHEMAS: Final = frozenset({"metadata", "default", "config", "cls", "members", "ref"})


class SchemaFacts(NamedTuple):
    """What a schema says of the values that it takes.

    `is_same` is the quickest way to prove that a value was read back as it was. `converts_itself` says that the user's
    functions take part in reading, `runs_code` that the user's code may: those, or validators and defaults of a class.
    """

    is_same: Callable[[Any, Any], bool]
    has_sets: bool
    has_models: bool
    converts_itself: bool
    runs_code: bool


def schema_facts(schema: object) -> SchemaFacts:
    """The facts of a pydantic schema."""
    nodes = list(_schema_nodes(schema))
    kinds = {node["type"] for node in nodes}
    converts_itself = any(kind.startswith("function-") for kind in kinds)
    return SchemaFacts(
        is_same=_comparison(nodes, kinds),
        has_sets=bool(kinds & _SETS),
        has_models="model" in kinds,
        converts_itself=converts_itself,
        runs_code=converts_itself or bool(kinds & _OBJECTS),
    )


def _comparison(nodes: Sequence[Mapping[str, Any]], kinds: Set[str]) -> Callable[[Any, Any], bool]:
    if not all(_is_exact_node(node) for node in nodes):
        return _is_same_value
    if kinds & _NUMBERS and not kinds & _OBJECTS:
        return _is_same_data
    return operator.eq


def _is_same_value(value: Any, copy: Any) -> bool:
    return find_difference(value, copy) is None


def _is_same_data(value: Any, copy: Any) -> bool:
    """`True == 1 == 1.0`, and pydantic writes the one for the other; the bytes of `marshal` tell them apart.

    It refuses what is of no built-in type, such as an `IntEnum` for an int: there the declared type decides.
    """
    if copy != value:
        return False
    try:
        return marshal.dumps(copy, MARSHAL_VERSION) == marshal.dumps(value, MARSHAL_VERSION)
    except ValueError:
        return True


def _is_exact_node(node: Mapping[str, Any]) -> bool:
    if node["type"] not in _EXACT_SCHEMAS or "serialization" in node:
        return False
    if node["type"] == "model":
        return bool(node["cls"].__eq__ is BaseModel.__eq__)
    if node["type"] == "dataclass":
        return _has_generated_equality(node["cls"])
    return True


def _has_generated_equality(cls: type) -> bool:
    """Whether `==` is the one that `dataclass` wrote, which it compiles from a string, and compares every field."""
    code = getattr(vars(cls).get("__eq__"), "__code__", None)
    return code is not None and code.co_filename == "<string>" and all(f.compare for f in dataclass_fields(cls))


def has_iterables(schema: object) -> bool:
    """Whether an `Iterable` is declared somewhere, for which pydantic hands over a one-shot iterator."""
    return any(node["type"] == "generator" for node in _schema_nodes(schema))


def with_containers(schema: Any) -> Any:
    """The schema with a container wherever an `Iterable` is declared."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(with_containers, schema))
    if not isinstance(schema, dict):
        return schema
    inner = {name: part if name in _NO_SCHEMAS else with_containers(part) for name, part in schema.items()}
    if schema.get("type") != "generator":
        return inner
    items = inner.get("items_schema", core_schema.any_schema())
    return core_schema.union_schema(
        [
            core_schema.list_schema(items),
            core_schema.tuple_variable_schema(items),
            core_schema.set_schema(items),
            core_schema.frozenset_schema(items),
        ]
    )


def _schema_nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """Every schema inside a pydantic schema, itself included."""
    if isinstance(schema, list | tuple):
        for item in schema:
            yield from _schema_nodes(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
            parts = [part for name, part in schema.items() if name not in _NO_SCHEMAS]
        else:
            parts = list(schema.values())  # fields by name
        yield from _schema_nodes(parts)
