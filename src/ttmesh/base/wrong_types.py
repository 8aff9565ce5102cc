"""A decorator for functions users call: an argument of a wrong type is named, instead of what Python missed in it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ttmesh.base.errors import suggest_names
from ttmesh.base.object_parameters import suggest_object

P = ParamSpec("P")
R = TypeVar("R")


def name_wrong_types(function: Callable[P, R]) -> Callable[P, R]:
    """The function; where it fails for an argument of another type than annotated, the error names the argument."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError) as problem:
            reason = None if "; pass " in str(problem) else explain_arguments(function, args, kwargs)
            if reason is None:
                raise
            raise TypeError(f"{function.__name__}(): incompatible function arguments. {reason}") from problem

    return call


def explain_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Which argument does not fit the signature of a function, and what would; None where all of them do."""
    signature = inspect.signature(function)
    for word in kwargs:
        if word not in signature.parameters:
            return f"unexpected keyword argument {word!r}. {suggest_names(word, signature.parameters)}"
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as problem:
        return f"{problem}: {function.__name__}({', '.join(signature.parameters)})"
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # a name that only type checkers import
        return None
    for name, value in given.items():
        wanted = _list_classes(hints.get(name))
        if wanted and not isinstance(value, wanted):
            names = " or ".join(f"ttnn.{kind.__name__}" for kind in wanted if kind is not type(None))
            module = type(value).__module__.partition(".")[0]
            own = type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"
            return f"{name}={value!r} is a {own}; pass {suggest_object(name) or f'a {names}'}"
    return None


def _list_classes(hint: object) -> tuple[type, ...]:
    """The classes that an annotation allows; none where it allows more than classes can say."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    parts = typing.get_args(hint) if is_union else (hint,)
    classes = tuple(part for part in parts if isinstance(part, type) and typing.get_origin(part) is None)
    return () if len(classes) < len(parts) or any(getattr(part, "_is_protocol", False) for part in classes) else classes
