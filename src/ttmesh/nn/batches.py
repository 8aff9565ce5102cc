"""Batches of any length on meshes: padded to a multiple of the chips, with row weights that are 0 for the padding.

    for batch in batches(images, labels, size=128, parts=8):
        x, y, weights = (place_rows(tensor, mesh, axis=1) for tensor in (*batch.tensors, batch.weights))
        loss = cross_entropy(model(x), y, weights)

The mean over chips of each chip's weighted mean is then the mean over the real rows; the same holds for gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ttmesh.base.dtypes import DataType, Layout, bfloat16, float32, uint32
from ttmesh.base.errors import ShapeError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.parameters import make_mapper, replicate, shard_along
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import from_torch


@dataclass(frozen=True)
class WeightedBatch:
    """Padded tensors, the weight of each row, and how many rows are real."""

    tensors: tuple[torch.Tensor, ...]
    weights: torch.Tensor  # float32 [rows]: rows / count for real rows, 0 for padding
    count: int

    def unpad(self, result: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """The rows of a result that belong to real rows of the batch."""
        return result.narrow(dim, 0, self.count)


def pad_batch(*tensors: torch.Tensor, parts: int) -> WeightedBatch:
    """Tensors with the last row (dim 0) repeated until the number of rows is a multiple of `parts`.

    A copy of a real row, unlike zeros, is a valid input of every model.
    """
    counts = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
    if len(counts) != 1 or counts == {0}:
        raise ShapeError(
            f"a batch of tensors with {sorted(counts)} rows",
            expected="the same number of rows in each, one at least",
            fix="Slice all tensors along dim 0 in the same way.",
        )
    if parts < 1:
        raise ShapeError(
            f"a batch for {parts} parts",
            expected="one part or more",
            fix="Pass the number of chips that share the batch.",
        )
    (count,) = counts
    extra = -count % parts
    padded = tuple(torch.cat([t, t[-1:].expand(extra, *t.shape[1:])]) if extra else t for t in tensors)
    weights = torch.zeros(count + extra, dtype=torch.float32, device="cpu")
    weights[:count] = (count + extra) / count
    return WeightedBatch(padded, weights, count)


def batches(*tensors: torch.Tensor, size: int, parts: int) -> Iterator[WeightedBatch]:
    """Tensors in batches of `size` rows, the last one shorter; each has a multiple of `parts` rows."""
    if size < 1:
        raise ShapeError(f"batches of {size} rows", expected="one row or more", fix="Pass a positive size.")
    for start in range(0, tensors[0].shape[0], size):
        yield pad_batch(*(tensor[start : start + size] for tensor in tensors), parts=parts)


def place_rows(
    values: torch.Tensor,
    mesh: MeshDevice,
    axis: int | None,
    *,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    on_host: bool = False,
) -> Tensor:
    """Rows (dim 0) sharded along a mesh axis and replicated along the others; without an axis every chip has all rows.

    By default integers become uint32 and row-major, floats bfloat16 and tiled, one-dim floats float32 and row-major.
    With `on_host` the sharded tensor stays on the host: for pipelines, or to be copied to where a trace reads it.
    """
    shards = 1 if axis is None else mesh.shape[axis]
    if values.shape[0] % shards:
        raise ShapeError(
            f"{values.shape[0]} rows cannot be sharded over {shards} chips",
            expected=f"a multiple of {shards}",
            fix=f"Pad them with pad_batch(..., parts={shards}).",
        )
    shard_dims = replicate(mesh) if axis is None else shard_along(mesh, axis, 0)
    if not values.dtype.is_floating_point:
        values, dtype, layout = values.int(), dtype or uint32, layout or Layout.ROW_MAJOR
    elif values.dim() == 1:
        dtype, layout = dtype or float32, layout or Layout.ROW_MAJOR
    tensor = from_torch(
        values, dtype=dtype or bfloat16, layout=layout or Layout.TILE, device=None if on_host else mesh,
        mesh_mapper=make_mapper(mesh, shard_dims),
    )  # fmt: skip
    assert tensor is not None, "only None gives None"
    return tensor
