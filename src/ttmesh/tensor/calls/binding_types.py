"""Types that TT-NN's bindings check before an operation runs, read from binding_types.txt on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

Types = Mapping[str, str]
NO_TYPES: Types = MappingProxyType({})
NUMBERS = ("int", "unsigned", "float", "bool")
CONVERTED = {  # what the bindings convert to a class
    "CoreCoord": (tuple, list),
    "CoreRangeSet": (set, list),
    "CoreGrid": (tuple,),
}
COMPLEX = "ComplexTensor"  # taken in place of a tensor; the operation decides what it does with it


class StandIn:
    """An argument of which only the position matters; its type is that of the value it stands for."""

    __slots__ = ("place", "value")

    def __init__(self, place: int, value: object) -> None:
        self.place, self.value = place, value


_NAMES: dict[type, frozenset[str]] = {}


def find_types(name: str, parameters: Sequence[str]) -> Types:
    """The types of an overload: those of TT-NN's overload with the most similar parameters."""
    overloads = _read_table().get(name)
    if overloads is None:
        return NO_TYPES
    own = set(parameters)
    return max(overloads, key=lambda types: len(own & types.keys()) - len(types.keys() - own))


def explain_type(types: Types, given: Mapping[str, Any]) -> str | None:
    """Which of the arguments that a caller passed has a type that TT-NN's bindings do not take."""
    for name, value in given.items():
        kind = types.get(name)
        if kind is not None and not is_taken(value, kind):
            return f"{name}={value!r}"[:80] + f" is a {type(value).__name__}; expected {kind.rstrip('?')}"
    return None


def is_taken(value: object, kind: str) -> bool:
    """Whether the bindings take a value for a parameter of this type."""
    if type(value) is StandIn:
        value = value.value
    if value is None:
        return kind.endswith("?")
    names = _list_names(type(value))
    return any(part in names or _is_one(value, part) for part in _list_alternatives(kind))


@cache
def _list_alternatives(kind: str) -> tuple[str, ...]:
    return tuple(kind.rstrip("?").split("|"))


def _list_names(given: type) -> frozenset[str]:
    """The names of a class and its bases; numbers are checked by their values."""
    names = _NAMES.get(given)
    if names is None:
        names = _NAMES[given] = frozenset(base.__name__ for base in given.__mro__).difference(NUMBERS)
    return names


def _is_one(value: object, kind: str) -> bool:
    if kind == "any":
        return True
    if kind.startswith("["):
        listed = (isinstance(value, Sequence) and not isinstance(value, str)) or type(value).__name__ == "Shape"
        return listed and all(is_taken(item, kind[1:-1]) for item in value)  # type: ignore[attr-defined]
    if kind in NUMBERS:
        return _is_number(value, kind)
    if kind == "str":
        return isinstance(value, str)
    if kind == "Tensor" and type(value).__name__ == COMPLEX:
        return True
    return isinstance(value, CONVERTED.get(kind, ()))


def _is_number(value: object, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "float":
        return isinstance(value, int | float) or hasattr(value, "__float__")
    return not isinstance(value, float) and hasattr(value, "__index__") and (kind == "int" or int(value) >= 0)  # type: ignore[call-overload]


@cache
def _read_table() -> dict[str, list[dict[str, str]]]:
    table: dict[str, list[dict[str, str]]] = {}
    text = files("ttmesh.tensor.calls").joinpath("binding_types.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line.startswith("#"):
            name, *pairs = line.split()
            table.setdefault(name, []).append(dict(pair.split(":") for pair in pairs))
    return table
