"""Arguments of wrong types: strings and numbers where TT-NN takes objects, and what to pass instead."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from ttmesh.base.errors import suggest_names

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

# How a parameter's name ends -> what to pass for it.
OBJECTS = {
    "memory_config": "ttnn.DRAM_MEMORY_CONFIG or ttnn.L1_MEMORY_CONFIG",
    "mem_config": "ttnn.DRAM_MEMORY_CONFIG or ttnn.L1_MEMORY_CONFIG",
    "dtype": "ttnn.bfloat16, say",
    "layout": "ttnn.TILE_LAYOUT or ttnn.ROW_MAJOR_LAYOUT",
    "mesh_mapper": "ttnn.ShardTensorToMesh(mesh_device, dim=0) or ttnn.ReplicateTensorToMesh(mesh_device)",
    "mesh_composer": "ttnn.ConcatMeshToTensor(mesh_device, dim=0), say",
    "program_config": "a program config such as ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(...), or leave it out",
    "compute_kernel_config": "ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4), say",
    "compute_config": "ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4), say",
    "conv_config": "ttnn.Conv2dConfig(...)",
    "slice_config": "ttnn.Conv2dSliceConfig(...)",
    "topology": "ttnn.Topology.Ring or ttnn.Topology.Linear",
    "core_grid": "ttnn.CoreGrid(y=8, x=8), say",
    "sub_core_grids": "a ttnn.CoreRangeSet",
    "mesh_device": "what ttnn.open_mesh_device() returned",
    "output_tensor": "a tensor on the device",
    "tile": "ttnn.Tile((32, 32)), say",
}
NUMBERS = ("core_grid", "tile")  # some functions take numbers under names that end like these
ENUMS = ("dtype", "layout", "topology")
# Parameters of operations whose values are words.
WORDS = frozenset(
    ("activation", "activation_type", "approximate", "fused_activation", "implementation", "interpolation_mode",
     "joint_strategy", "mode", "padding_mode", "precision", "reduce", "reduction", "reference_mode", "rounding_mode",
     "score_func", "weights_format")
)  # fmt: skip


@cache
def suggest_object(name: str) -> str | None:
    """What to pass for a parameter of this name, if it takes an object."""
    if name == "device":
        name = "mesh_device"
    return next((hint for ending, hint in OBJECTS.items() if name.endswith(ending)), None)


def explain_plain_value(name: str, value: object) -> str | None:
    """What is wrong with a string, a number, a dict or an enum for a parameter of this name; None for anything else."""
    if isinstance(value, (str, bytes)):
        if name in WORDS:
            return None
        hint = suggest_object(name)
    elif isinstance(value, (int, float, dict, Enum)):
        hint = suggest_object(name)
        allowed = ENUMS if isinstance(value, Enum) else NUMBERS
        if hint is None or name.endswith(allowed):
            return None
    else:
        return None
    shown = f"{name}={value!r} is a {type(value).__name__}"
    return f"{shown}; pass {hint}" if hint else f"{shown}, which this parameter does not take"


def refuse_plain_values(function: str, **arguments: object) -> None:
    """Raise TT-NN's type error where an argument is a string or a number instead of an object."""
    for name, value in arguments.items():
        if value is not None and (reason := explain_plain_value(name, value)):
            raise misfit(function, ", ".join(arguments), reason)


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
            raise misfit(function.__name__, ", ".join(inspect.signature(function).parameters), reason) from problem

    return call


def refuse_wrong_types(function: Callable[P, R]) -> Callable[P, R]:
    """The function; arguments of another type than annotated are refused before it runs, as TT-NN's bindings do."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        reason = explain_arguments(function, args, kwargs)
        if reason is not None:
            raise misfit(function.__name__, ", ".join(inspect.signature(function).parameters), reason)
        return function(*args, **kwargs)

    return call


def refuse_wrong_fields(made: type[C]) -> type[C]:
    """The class; its constructor refuses arguments of other types than annotated."""
    made.__init__ = refuse_wrong_types(made.__init__)  # type: ignore[method-assign]
    return made


def misfit(function: str, parameters: str, reason: str) -> TypeError:
    """TT-NN's error for arguments that a function does not take."""
    return TypeError(
        f"{function}(): incompatible function arguments. The following argument types are supported: "
        f"{function}({parameters}). {reason}"
    )


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
        if not wanted and isinstance(value, str) and (reason := explain_plain_value(name, value)):
            return reason
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
    classes = tuple(
        part
        for part in parts
        if isinstance(part, type) and part is not typing.Any and typing.get_origin(part) is None  # type: ignore[comparison-overlap]  # a class since Python 3.11
    )
    return () if len(classes) < len(parts) or any(getattr(part, "_is_protocol", False) for part in classes) else classes
