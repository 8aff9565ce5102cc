"""A training state read from a checkpoint: full tensors by name, and how they are written into tensors on a mesh."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.parameters import ShardDims, place
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import copy_host_to_device_tensor


class SavedState:
    """The tensors of a checkpoint by name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], source: str) -> None:
        self._tensors, self._source = tensors, source

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of this name, checked against the shape that the model expects."""
        if name not in self._tensors:
            raise MeshError(
                f"{self._source} has no {name}",
                expected="a checkpoint of the same model",
                fix="Pass the path of that model's checkpoint.",
            )
        found = self._tensors[name]
        if tuple(found.shape) != shape:
            raise MeshError(
                f"{name} has shape {list(found.shape)} in {self._source}",
                expected=f"{list(shape)}, as in the model",
                fix="Build the model with the sizes it had when the checkpoint was saved.",
            )
        if not found.is_floating_point():
            raise MeshError(
                f"{name} is of {found.dtype} in {self._source}",
                expected="a floating-point dtype",
                fix="Load a file of save_checkpoint().",
            )
        return found


def refill(tensor: Tensor, values: torch.Tensor, mesh: MeshDevice, shard_dims: ShardDims) -> None:
    """Write full values into a sharded tensor in place, so that traces that read it see them."""
    fresh = place(values, mesh, shard_dims, tensor.dtype)
    copy_host_to_device_tensor(fresh.cpu(), tensor)
