"""Names of TT-NN 0.81.1 that ttmesh does not emulate: they can be imported and named, and raise when they are used.

not_emulated.txt lists them; enumerations and plain numbers among them have TT-NN's values.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from ttmesh.base.errors import NotEmulatedError


class NotEmulated:
    """The base of classes that exist by name only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise _error(f"{type(self).__module__}.{type(self).__qualname__}")


def find(module: str, name: str) -> Any:
    """The placeholder for a name of a module that is not emulated; None where TT-NN has no such name either."""
    line = _read_table().get(module, {}).get(name)
    return None if line is None else _make(module, name, line)


def is_placeholder(value: object) -> bool:
    """Whether a function or class exists by name only."""
    return getattr(value, "__module__", None) == __name__ or (
        isinstance(value, type) and issubclass(value, NotEmulated)
    )


def list_modules() -> list[str]:
    """The modules of the table."""
    return list(_read_table())


def list_names(module: str) -> list[str]:
    """The names of a module that are not emulated."""
    return list(_read_table().get(module, {}))


@functools.cache
def _make(module: str, name: str, line: str) -> Any:
    kind, _, rest = line.partition(" ")
    if kind == "function":
        return _make_function(f"{module}.{name}")
    if kind == "number":
        return int(rest)
    if kind == "enum":
        pairs = (pair.partition("=") for pair in rest.split())
        return enum.Enum(name, {key: int(value) for key, _, value in pairs}, module=module)
    methods: dict[str, Any] = {key: _make_function(f"{module}.{name}.{key}") for key in rest.split()}
    return type(name, (NotEmulated,), {**methods, "__module__": module})


def _make_function(path: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _error(path)

    refuse.__name__ = refuse.__qualname__ = path.rpartition(".")[2]
    refuse.__doc__ = "Not emulated."
    return refuse


def _error(path: str) -> NotEmulatedError:
    return NotEmulatedError(
        f"{path} is not emulated", expected="a name that ttmesh emulates", fix="Run this part on cards."
    )


@functools.cache
def _read_table() -> dict[str, dict[str, str]]:
    """Module -> name -> its kind and what belongs to it."""
    table: dict[str, dict[str, str]] = {}
    module = ""
    for line in files("ttmesh.ttnn").joinpath("not_emulated.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        if line.endswith(":"):
            module = line[:-1]
            table[module] = {}
        else:
            kind, name, *rest = line.split(" ", 2)
            if kind == "functions":
                table[module] |= dict.fromkeys([name, *" ".join(rest).split()], "function")
            else:
                table[module][name] = " ".join([kind, *rest])
    return table
