"""torch's shape functions for the meta device, called without loading torch's compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch

COMPILER = "torch._dynamo"


@cache
def defer_compiler() -> int:
    """Let torch's meta functions run without the compiler until the program loads it; how many functions there are.

    torch decorates them so that its compiler never traces them. The decorator imports the compiler at the first call: 340
    modules and over a second, in programs that compile nothing.
    """
    decorator = getattr(getattr(torch, "_compile", None), "_disable_dynamo", None)
    if decorator is None:  # a torch that does it otherwise: its first call takes as long as it takes
        return 0
    wrapper = decorator(lambda: None).__code__
    count = 0
    for function in _reachable_functions():
        if function.__code__ is wrapper:
            inner = _closure(function).get("fn")
            if inner is not None and not hasattr(inner, "__dynamo_disable"):
                setattr(inner, "__dynamo_disable", _Undecorated(inner))  # where the decorator keeps its result
                count += 1
    return count


class _Undecorated:
    """Calls a function directly, and leaves it to torch's decorator once torch's compiler is loaded."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if COMPILER in sys.modules:
            vars(self.function).pop("__dynamo_disable", None)
        return self.function(*args, **kwargs)


def _reachable_functions() -> set[FunctionType]:
    """Functions of torch's tables of decompositions and references, and those in their closures."""
    tables = getattr(getattr(torch, "_decomp", None), "global_decomposition_table", {})
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("torch._refs")]
    waiting: list[Any] = [function for table in tables.values() for function in table.values()]
    waiting += [value for module in modules for value in vars(module).values()]
    found: set[FunctionType] = set()
    while waiting:
        function = waiting.pop()
        if isinstance(function, FunctionType) and function not in found:
            found.add(function)
            waiting += _closure(function).values()
    return found


def _closure(function: FunctionType) -> dict[str, Any]:
    """A function's closure by the names of its variables."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    """Whether a closure's variable has a value yet."""
    try:
        cell.cell_contents  # noqa: B018  raises where it has none
    except ValueError:
        return False
    return True
