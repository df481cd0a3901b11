"""What a value holds: its parts and the way to them, a copy of it, and the models in it."""

import copy as copying
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from satay.classes import instance_state
from satay.refusals import path_step

_Path = tuple[int | str, ...]
"""The way to a part of a value: names of fields, and positions in lists and mappings."""

IMMUTABLE_TYPES: Final = frozenset({type(None), bool, int, float, complex, str, bytes, date, datetime, Decimal, UUID})
"""The common types of which no copy needs to be made."""


def parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a container or an object holds, each with the key, position or field name that leads there."""
    if isinstance(value, list | tuple | set | frozenset | deque):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, BaseModel):
        yield from value.__dict__.items()
        yield from (value.__pydantic_extra__ or {}).items()
    elif is_dataclass(type(value)):
        yield from instance_state(value).items()


def find_iterator(value: Any) -> str | None:
    """The path to an iterator in `value`, None if there is none: writing it may have exhausted it already."""
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return None
    if hasattr(kind, "__next__"):
        return ""
    for step, item in parts_of(value):
        path = find_iterator(item)
        if path is not None:
            return f"{path_step(step)}{path}"
    return None


def detach(value: Any) -> Any:
    """A copy for the user's validators, which may change what they are given."""
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is dict:
        return {detach(key): detach(item) for key, item in value.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(map(detach, value))
    try:
        return copying.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # a lock, a file, a coroutine: there is no second one, and what to say of it is not said here
        return value


def find_fields_set(value: Any) -> dict[_Path, set[str]]:
    """The fields that were given to each model in `value`, where those are not all, by the way to the model."""
    return {
        path: model.__pydantic_fields_set__
        for path, model in _find_models(value).items()
        if model.__pydantic_fields_set__ != _field_names(model)
    }


def restore_fields_set(copy: Any, fields_set: Mapping[_Path, set[str]]) -> None:
    """Mark as given what `find_fields_set` found. What the type of `copy` has lost since then is passed over."""
    models = _find_models(copy)
    for path, names in fields_set.items():
        model = models.get(path)
        if model is not None:
            object.__setattr__(model, "__pydantic_fields_set__", _field_names(model) & names)


def _field_names(model: BaseModel) -> set[str]:
    return vars(model).keys() | (model.__pydantic_extra__ or {}).keys()


def _find_models(value: Any) -> dict[_Path, BaseModel]:
    """Every model in `value`, itself included, by the way to it. A member of a mapping is told by its position."""
    models: dict[_Path, BaseModel] = {}
    _collect_models(value, (), models)
    return models


def _collect_models(value: Any, path: _Path, models: dict[_Path, BaseModel]) -> None:
    if isinstance(value, BaseModel):
        models[path] = value
    are_keys = isinstance(value, Mapping)
    for position, (step, item) in enumerate(parts_of(value)):
        if type(item) not in IMMUTABLE_TYPES:
            _collect_models(item, (*path, position if are_keys else step), models)


def without_surrogates(value: Any) -> Any:
    """A copy of plain data, with a question mark in place of every lone surrogate."""
    kind = type(value)
    if kind is str:
        return value.encode("utf-8", "replace").decode()
    if kind is dict:
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(map(without_surrogates, value))
    return value
