"""Whole tensors of a training state by name, and tensors on a mesh filled from them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.parameters import Cut, place
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import copy_host_to_device_tensor


class Saved:
    """What a checkpoint holds."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], source: str) -> None:
        self._tensors, self._source = tensors, source

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of this shape."""
        if name not in self._tensors:
            raise MeshError(
                f"{self._source} has no {name}", expected="a checkpoint of the same model", fix="Check the file."
            )
        found = self._tensors[name]
        if tuple(found.shape) != shape:
            raise MeshError(
                f"{name} has shape {list(found.shape)} in {self._source}",
                expected=f"{list(shape)}",
                fix="Load the model it is of.",
            )
        if not found.is_floating_point():
            raise MeshError(
                f"{name} is of {found.dtype} in {self._source}",
                expected="a floating-point dtype",
                fix="Load a file of save_checkpoint().",
            )
        return found


def refill(tensor: Tensor, values: torch.Tensor, mesh: MeshDevice, cut: Cut) -> None:
    """Write whole values into a tensor that is cut like this; a trace that reads it sees them."""
    fresh = place(values, mesh, cut, tensor.dtype)
    copy_host_to_device_tensor(fresh.cpu(), tensor)
