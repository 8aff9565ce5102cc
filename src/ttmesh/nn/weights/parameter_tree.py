"""Trees of parameters with attribute access, made by preprocessing and passed to models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import torch

from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import to_device


class DotAccessDict(dict[Any, Any]):
    """A dict whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name!r} here; expected one of {sorted(map(str, self))}") from None

    def __delattr__(self, name: str) -> None:
        del self[name]


class ModuleArgs(DotAccessDict):
    """The arguments of one module of a torch model, found by running it."""


class Conv2dArgs(ModuleArgs):
    """The arguments of a Conv2d."""


class ConvTranspose2dArgs(ModuleArgs):
    """The arguments of a ConvTranspose2d."""


class MaxPool2dArgs(ModuleArgs):
    """The arguments of a MaxPool2d."""


class GroupNormArgs(ModuleArgs):
    """The arguments of a GroupNorm."""


class ParameterDict(DotAccessDict):
    """Named parameters and subtrees."""

    def __repr__(self) -> str:
        return format_tree(self)


class ParameterList(list[Any]):
    """The subtrees of a ModuleList; `3 in parameters` asks whether there is a fourth one, as in TT-NN."""

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and 0 <= index < len(self)

    def __repr__(self) -> str:
        return format_tree(self)


def make_dot_access_dict(dictionary: Mapping[Any, Any], *, ignore_types: tuple[type, ...] | None = None) -> Any:
    """The same mapping with attribute access, inner mappings included."""
    if isinstance(dictionary, DotAccessDict) or (ignore_types and isinstance(dictionary, ignore_types)):
        return dictionary
    inner = {
        key: make_dot_access_dict(value, ignore_types=ignore_types) if isinstance(value, dict) else value
        for key, value in dictionary.items()
    }
    return DotAccessDict(inner)


def make_parameter_dict(dictionary: Mapping[Any, Any]) -> ParameterDict:
    """The same mapping as a tree of parameters."""
    if isinstance(dictionary, ParameterDict):
        return dictionary
    return ParameterDict(
        {
            key: make_parameter_dict(value) if isinstance(value, dict) and not isinstance(value, ModuleArgs) else value
            for key, value in dictionary.items()
        }
    )


def move_to_device(parameters: Any, device: MeshDevice) -> Any:
    """The tree with every tensor on the device; dicts and lists are changed in place."""
    if isinstance(parameters, ParameterDict):
        parameters.update({key: move_to_device(value, device) for key, value in parameters.items()})
        return parameters
    if isinstance(parameters, ParameterList):
        parameters[:] = [move_to_device(value, device) for value in parameters]
        return parameters
    if isinstance(parameters, Tensor) and parameters.device() is None:
        return to_device(parameters, device)
    return parameters


def repr_parameters(file: TextIO, parameters: Any, indentation: str = "") -> None:
    """Write a tree to a file as `repr` prints it."""
    file.write(format_tree(parameters, indentation))


def merge_ttnn_module_args_into_parameters(
    parameters: dict[str, Any], ttnn_module_args: dict[str, Any], path: Sequence[str] = ()
) -> dict[str, Any]:
    """Put the arguments of modules into the tree of their parameters, under `ttnn_module_args`, without their device."""
    if isinstance(ttnn_module_args, ModuleArgs):
        ttnn_module_args.pop("device", None)
        parameters["ttnn_module_args"] = ttnn_module_args
        return parameters
    for key in parameters:
        if key not in ttnn_module_args:
            continue
        mine, theirs, place = parameters[key], ttnn_module_args[key], (*path, str(key))
        if isinstance(mine, dict) and isinstance(theirs, dict):
            merge_ttnn_module_args_into_parameters(mine, theirs, place)
        elif mine != theirs:
            raise MeshError(
                f"Conflict at {'.'.join(place)}",
                expected="arguments of the same modules as the parameters",
                fix="Take both from the same model.",
            )
    return parameters


def format_tree(parameters: Any, indent: str = "") -> str:
    """A tree as indented text: shapes and formats instead of values."""
    deeper = indent + "  "
    if isinstance(parameters, Mapping) and parameters:
        lines = [f"{deeper}{key}: {format_tree(value, deeper)}" for key, value in parameters.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(parameters, ParameterList) and parameters:
        return "[\n" + ",\n".join(deeper + format_tree(value, deeper) for value in parameters) + f"\n{indent}]"
    if isinstance(parameters, Tensor):
        return f"ttnn.Tensor(shape={parameters.shape}, layout={parameters.layout}, dtype={parameters.dtype})"
    if isinstance(parameters, torch.Tensor):
        return f"torch.Tensor(shape={parameters.shape}, dtype={parameters.dtype})"
    return "{}" if isinstance(parameters, Mapping) else "[]" if isinstance(parameters, list) else repr(parameters)
