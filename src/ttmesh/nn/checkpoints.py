"""Training states on disk: whole tensors in safetensors, so that a run can go on, also on another mesh shape."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ttmesh.base.dtypes import float32
from ttmesh.base.errors import MeshError
from ttmesh.nn.optimisers import Optimiser
from ttmesh.nn.parameters import Parameter, collect, place, whole
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfers import copy_host_to_device_tensor


def save_checkpoint(path: str | Path, optimiser: Optimiser) -> None:
    """Write parameters and optimiser state; the file is complete or not there."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in optimiser.parameters.items():
        tensors[f"parameter.{name}"] = parameter.to_torch()
        for state, tensor in optimiser.states[name].items():
            if tensor is not parameter.tensor:
                tensors[f"state.{state}.{name}"] = collect(tensor, parameter.cut)
    mesh = next(iter(optimiser.parameters.values())).mesh
    tensors["step"] = collect(optimiser.step_count, whole(mesh))
    tensors["lr"] = collect(optimiser.lr, whole(mesh))
    target = Path(path)
    unfinished = target.with_suffix(".unfinished")
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, str(unfinished))
    os.replace(unfinished, target)


def load_checkpoint(path: str | Path, optimiser: Optimiser) -> None:
    """Fill parameters and optimiser state from a file, cut for the mesh they are on now."""
    found = load_file(str(path))
    for name, parameter in optimiser.parameters.items():
        _fill(parameter.tensor, _taken(found, f"parameter.{name}", parameter.shape, path), parameter)
        for state, tensor in optimiser.states[name].items():
            if tensor is not parameter.tensor:
                _fill(tensor, _taken(found, f"state.{state}.{name}", parameter.shape, path), parameter)
    mesh = next(iter(optimiser.parameters.values())).mesh
    for tensor, name in ((optimiser.step_count, "step"), (optimiser.lr, "lr")):
        fresh = place(found[name], mesh, whole(mesh), float32)
        copy_host_to_device_tensor(fresh.cpu(), tensor)


def _taken(found: dict[str, torch.Tensor], name: str, shape: tuple[int, ...], path: str | Path) -> torch.Tensor:
    if name not in found:
        raise MeshError(f"{path} has no {name}", expected="a checkpoint of the same model", fix="Check the file.")
    if tuple(found[name].shape) != shape:
        raise MeshError(
            f"{name} has shape {list(found[name].shape)} in {path}",
            expected=f"{list(shape)}",
            fix="Load the model it is of.",
        )
    return found[name]


def _fill(tensor: Tensor, values: torch.Tensor, parameter: Parameter) -> None:
    fresh = place(values, parameter.mesh, parameter.cut, tensor.dtype)
    copy_host_to_device_tensor(fresh.cpu(), tensor)
