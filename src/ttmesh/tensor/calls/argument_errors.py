"""Errors for arguments that do not fit together: they name TT-NN's parameters where torch or Python raised first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import numpy
import torch

from ttmesh.base.argument_types import explain_plain_value
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError, suggest_names
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

# Parameters that have one type in every operation; what to pass for them.
TYPES: dict[str, tuple[type, str]] = {
    "memory_config": (MemoryConfig, "ttnn.DRAM_MEMORY_CONFIG or ttnn.L1_MEMORY_CONFIG"),
    "dtype": (DataType, "ttnn.bfloat16, say"),
    "output_dtype": (DataType, "ttnn.bfloat16, say"),
    "layout": (Layout, "ttnn.TILE_LAYOUT or ttnn.ROW_MAJOR_LAYOUT"),
    "device": (MeshDevice, "what open_mesh_device() returned"),
    "mesh_device": (MeshDevice, "what open_mesh_device() returned"),
    "output_tensor": (Tensor, "a tensor on the device"),
    "optional_output_tensor": (Tensor, "a tensor on the device"),
}

# Keywords of torch, numpy and JAX -> TT-NN's.
OTHER_LIBRARIES = {
    "axis": "dim",
    "axes": "dims",
    "keepdims": "keepdim",
    "mem_config": "memory_config",
    "out": "output_tensor",
    "device": "mesh_device",
    "eps": "epsilon",
    "input": "input_tensor",
    "x": "input_tensor",
}


def shapes_misfit(name: str, arguments: Mapping[str, Any], problem: Exception) -> ShapeError:
    """The error for tensors that the operation cannot be computed on."""
    given = ", ".join(
        f"{key} {_describe_tensor(value)}" for key, value in arguments.items() if isinstance(value, Tensor)
    )
    return ShapeError(
        f"{name} cannot be computed: {str(problem).partition(chr(10))[0].rstrip('.')}",
        expected="tensors and options that fit each other",
        fix=f"Got {given}." if given else "Pass arguments that this operation takes; help() of it lists them.",
    )


def check_types(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of types that no operation takes there."""
    for key, value in arguments.items():
        if reason := _foreign(key, value):
            raise types_misfit(name, arguments, reason)


def check_plain_values(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse strings and numbers for parameters that take objects."""
    for key, value in arguments.items():
        if isinstance(value, (str, int, float, dict, Enum)) and (reason := explain_plain_value(key, value)):
            raise types_misfit(name, arguments, reason)


def explain_keyword(given: Iterable[str], known: Iterable[str]) -> str | None:
    """What is wrong with a keyword that a function does not have, and which one may have been meant."""
    names = list(known)
    for word in given:
        if word not in names:
            other = OTHER_LIBRARIES.get(word)
            hint = f"Did you mean {other}?" if other in names else suggest_names(word, names)
            return f"unexpected keyword argument {word!r}. {hint}"
    return None


def types_misfit(name: str, arguments: Mapping[str, Any], reason: object) -> TypeError:
    """The error for an argument of a type that the operation does not take."""
    return TypeError(f"{name}(): incompatible function arguments. {reason}. {list_types(arguments)}")


def list_types(arguments: Mapping[str, Any]) -> str:
    """The types of the arguments that a caller gave."""
    types = ", ".join(
        f"{key}: {'torch.' * isinstance(value, torch.Tensor)}{type(value).__qualname__}"
        for key, value in arguments.items()
        if value is not None and value is not False and not (isinstance(value, tuple) and not value)  # defaults
    )
    return f"Invoked with types: {types}"


def _foreign(key: str, value: Any) -> str | None:
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return f"{key} is a {type(value).__module__}.{type(value).__qualname__}; convert it with ttnn.from_torch"
    wanted = TYPES.get(key)
    if wanted is None or value is None or isinstance(value, (wanted[0], list, tuple)):
        return None
    return f"{key}={value!r} is not a {wanted[0].__name__}; pass {wanted[1]}"


def _describe_tensor(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype.name.lower()}"
