"""One argument taken out of a call (`ttnn.reflection`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pop_argument(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The first positional argument, else the one of this name; and the arguments without it."""
    if args:
        return args[0], list(args[1:]), kwargs
    if name not in kwargs:
        raise ValueError(f"Missing argument: {name}")
    return kwargs[name], args, {key: value for key, value in kwargs.items() if key != name}
