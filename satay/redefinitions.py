"""Whether a function that claims a name is the one that has it, defined again, or another one.

Source that is executed again defines its functions again: a module that is reloaded or imported once more under
another name, a cell of a notebook that is run again as it was or edited, a factory that is called again. A function
that comes out of one execution of a module beside another is another one, whatever the two are called.

An execution is told by the namespace that it fills and by the namespace's `__spec__`, of which the import system makes
a new one for each execution, also for a reload (`importlib.reload`). Within one execution
- the same code is a factory's, called again;
- another function name is another function;
- another file is a cell of a notebook or a line of a console, and replaces what it rebinds; but in the namespace of an
  imported module, a file that can be read is source of its own;
- the same file at the same line is a cell that was run again, and at another line it is a second function, unless the
  file was edited and holds no such function at the earlier line any more.

A function behind decorators is known by what it wraps: `functools.wraps` keeps its name, and all share the wrapper's
code.
"""

import ast
import linecache
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Where a function was defined. `fn` is what its decorators wrap, `codes` the code of each, outermost first."""

    fn: FunctionType
    codes: tuple[CodeType, ...]
    spec: object

    def __str__(self) -> str:
        """`file:line`."""
        return f"{self.fn.__code__.co_filename}:{self.fn.__code__.co_firstlineno}"

    def replaces(self, earlier: "Site") -> bool:
        """Whether this is the earlier function defined again."""
        if self.is_made_like(earlier):
            return True
        one, other = earlier.fn, self.fn
        is_same_file = _file(one) == _file(other)
        if one.__globals__ is not other.__globals__ or earlier.spec is not self.spec:
            return is_same_file
        if one.__qualname__ != other.__qualname__:
            return False
        if not is_same_file:
            return self.spec is None or not os.path.isfile(_file(other))
        return one.__code__.co_firstlineno == other.__code__.co_firstlineno or not _is_still_there(one)

    def is_made_like(self, other: "Site") -> bool:
        """Whether both are made of the same code, as by one factory."""
        return len(self.codes) == len(other.codes) and all(map(operator.is_, self.codes, other.codes))


def site_of(fn: Callable[..., Any]) -> Site:
    """Where a function is defined. It is asked while the module that defines it is executed."""
    assert isinstance(fn, FunctionType), "only functions are decorated"
    codes = [fn.__code__]
    while isinstance(wrapped := getattr(fn, "__wrapped__", None), FunctionType):
        fn = wrapped
        codes.append(fn.__code__)
    return Site(fn, tuple(codes), fn.__globals__.get("__spec__"))


def _file(fn: FunctionType) -> str:
    return os.path.realpath(fn.__code__.co_filename)


def _is_still_there(fn: FunctionType) -> bool:
    """Whether the source as it is now holds a function of that name at that line, or cannot be looked at."""
    file, line = fn.__code__.co_filename, fn.__code__.co_firstlineno
    linecache.checkcache(file)
    lines = linecache.getlines(file, fn.__globals__)
    try:
        nodes = ast.walk(ast.parse("".join(lines)))
    except (SyntaxError, ValueError):
        return True
    return not lines or any(_first_line(node, fn.__name__) == line for node in nodes)


def _first_line(node: ast.AST, name: str) -> int | None:
    """The line at which a function of that name begins, decorators included; None for any other node."""
    if isinstance(node, ast.Lambda):
        return node.lineno if name == "<lambda>" else None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != name:
        return None
    return node.decorator_list[0].lineno if node.decorator_list else node.lineno
