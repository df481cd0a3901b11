"""What a fork is asked to be: the options that callers give, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, TypedDict

from satay.arguments import checked_flag, shown
from satay.cuts import RequestedCut
from satay.definitions import Task, Workflow, default_name
from satay.errors import InvalidValueError, UsageError
from satay.model import MISSING
from satay.replay import SHARE_CHILDREN

ON_STALE: Final = ("keep", "error", "rerun")
"""What `on_stale=` may be; the first is the default."""

CHILDREN: Final = ("fork", SHARE_CHILDREN)
"""What `children=` may be; the first is the default."""


class ForkOptions(TypedDict, total=False):
    """What `fork`, `plan_fork` and `sweep` take by keyword; see `App.fork`."""

    before_task: str | Task[..., Any]
    before_event: str | type[Any]
    before_child: str | Workflow[..., Any]
    before_ordinal: int | None
    before_key: str | None
    after_task: str | Task[..., Any]
    after_ordinal: int | None
    after_key: str | None
    at: Literal["failure"]
    fork_point_seq: int
    keep_siblings: bool
    workflow_input: Any
    intervention: Any
    tool_policies: Mapping[str, str]
    overrides: Mapping[tuple[str, int | str], Any]
    raises: Mapping[tuple[str, int | str], BaseException]
    reason: str | None
    on_stale: Literal["keep", "error", "rerun"]
    children: Literal["fork", "share"]
    expected_head: int | None
    allow_unfinished: bool


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What a fork is asked to be."""

    cut: RequestedCut
    workflow_input: Any = MISSING
    intervention: Any = None
    tool_policies: object = None
    overrides: object = None
    raises: object = None
    reason: str | None = None
    children: str = "fork"
    expected_head: int | None = None
    allow_unfinished: bool = False

    def to_options(self) -> dict[str, Any]:
        """What `parse_options` makes this request of, without what is at its default."""
        others = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "cut"}
        for name in ("tool_policies", "overrides"):
            if isinstance(others[name], Mapping):  # Any mapping is taken; a plain one can be recorded.
                others[name] = dict(others[name])
        return {
            **self.cut.to_dict(),
            **{name: given for name, given in others.items() if given is not _DEFAULTS[name]},
        }


_SESSION_OPTIONS: Final = ("at_step", "fork_at_step", "boundary")
_ELSEWHERE: Final = {"input": "workflow_input"}  # What `start` calls it.
_DEFAULTS: Final = {part.name: part.default for part in fields(ForkRequest)}


def _instead(name: str) -> str:
    known = ForkOptions.__annotations__
    close = get_close_matches(name, [*known, *_ELSEWHERE], 1)
    if name in _SESSION_OPTIONS:
        return "only sessions have steps: session.fork(at_step=...), or satay.Session.resume(id, fork_at_step=...)"
    if name == "run_id":
        return "a plan makes no run, and a sweep names its forks itself"
    if close:
        return f"did you mean {_ELSEWHERE.get(close[0], close[0])!r}?"
    return f"it has {', '.join(map(repr, sorted(known)))}"


def parse_options(options: Mapping[str, Any]) -> ForkRequest:
    """Check what a caller gave by keyword. Raises `UsageError` for an option that there is not."""
    known = ForkOptions.__annotations__
    for name in options:
        if name not in known:
            raise UsageError(f"a fork has no option {name!r}; {_instead(name)}")
    given = {name: option for name, option in options.items() if name not in _CUT_OPTIONS}
    cut = {name: option for name, option in options.items() if name in _CUT_OPTIONS}
    for name, kind in (("before_task", Task), ("after_task", Task), ("before_child", Workflow)):
        if name in cut:
            cut[name] = _name(cut[name], name, kind)
    event = cut.get("before_event")
    if isinstance(event, type):
        cut["before_event"] = default_name(event)
    elif event is not None and not isinstance(event, str):
        raise UsageError(f"before_event={shown(event)} names no event; give its class, or its name")
    _check_choice("on_stale", cut.get("on_stale", ON_STALE[0]), ON_STALE)
    _check_choice("children", given.get("children", CHILDREN[0]), CHILDREN)
    checked_flag(given.get("allow_unfinished", False), "allow_unfinished of fork()")
    checked_flag(cut.get("keep_siblings", False), "keep_siblings of fork()")
    head = given.get("expected_head")
    if head is not None and (isinstance(head, bool) or not isinstance(head, int)):
        raise InvalidValueError(f"expected_head={shown(head)} is not a whole number")
    reason = given.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise InvalidValueError(f"reason={shown(reason)} is not a text")
    return ForkRequest(RequestedCut(**cut), **given)


_CUT_OPTIONS: Final = frozenset(RequestedCut.__dataclass_fields__) & ForkOptions.__annotations__.keys()


def _name(given: object, option: str, kind: type[Task[..., Any] | Workflow[..., Any]]) -> object:
    name = given.name if isinstance(given, kind) else given
    if name is not None and not isinstance(name, str):
        noun = "task" if kind is Task else "workflow"
        raise UsageError(f"{option}={shown(given)} names no {noun}; give a @satay.{noun}, or its name")
    return name


def _check_choice(name: str, given: object, choices: Sequence[str]) -> None:
    if given not in choices:
        raise InvalidValueError(f"{name}={shown(given)} is none of {', '.join(map(repr, choices))}")
