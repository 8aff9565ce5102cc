"""Batches that do not divide by the number of devices: padded before they are sent, trimmed when they come back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshShape
from ttmesh.tensor.spec.distribution_shape import HasMeshShape, mesh_shape_of


@dataclass(frozen=True)
class PaddedBatch:
    """A batch whose size divides by the number of devices, and how much of it is real."""

    values: torch.Tensor
    size: int  # real samples
    dim: int

    def unpad(self, result: torch.Tensor) -> torch.Tensor:
        """The real samples of a result that has as many as `values`."""
        padded = self.values.shape[self.dim]
        if result.shape[self.dim] != padded:
            raise ShapeError(
                f"a result of {result.shape[self.dim]} samples cannot be unpadded",
                expected=f"{padded} samples along dim {self.dim}",
                fix="Compose the outputs of all devices along the batch first.",
            )
        return result.narrow(self.dim, 0, self.size)


@name_wrong_types
def pad_batch(values: torch.Tensor, mesh_device: HasMeshShape | MeshShape, *, dim: int = 0) -> PaddedBatch:
    """The batch with copies of its last sample added until it divides by the number of devices."""
    devices, size = mesh_shape_of(mesh_device).mesh_size(), values.shape[dim]
    if not size:
        raise ShapeError("an empty batch cannot be padded", expected="at least one sample", fix="Skip the batch.")
    missing = -size % devices
    if missing:  # a copy of a real sample: zeros would make NaNs in layers that divide by a norm
        tail = values.narrow(dim, size - 1, 1)
        values = torch.cat([values, *[tail] * missing], dim=dim)
    return PaddedBatch(values, size, dim)
