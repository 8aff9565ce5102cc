"""Sequences sharded over a mesh: the positions of a device's rows, and where a block-cyclic cache stores a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.attention.block_cyclic_cache import find_axis_positions, find_start_rows
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class Stripes:
    """A block-cyclic cache: every device holds `tokens_per_device` of each chunk; gathering concatenates the shards."""

    devices: int
    tokens_per_device: int

    @property
    def chunk(self) -> int:
        """Tokens of a chunk over all devices."""
        return self.devices * self.tokens_per_device

    def find_rows(self, tokens: Lanes, length: int) -> Lanes:
        """The rows that hold these tokens in a gathered cache of this length."""
        chunk_index, offset = tokens // self.chunk, tokens % self.chunk
        return (
            offset // self.tokens_per_device * (length // self.devices)
            + chunk_index * self.tokens_per_device
            + offset % self.tokens_per_device
        )


def mesh_of(tensor: Tensor, name: str) -> MeshDevice:
    """The mesh of a device tensor."""
    mesh = tensor.device()
    if mesh is None:
        raise MeshError(f"{name} must be on device", expected="a device tensor", fix="Move it with to_device().")
    return mesh


def find_sequence_ranks(
    mesh_shape: Sequence[int], axis: int | None, rank_block: RankBlock | None, device: torch.device
) -> Lanes:
    """Every device's index along an axis, or in row-major order over the full mesh: [*mesh]."""
    shape = tuple(mesh_shape)
    if axis is not None:
        ranks = find_axis_positions(shape, axis, device)
    else:
        ranks = torch.arange(torch.Size(shape).numel(), device=device).reshape(shape)
    return ranks if rank_block is None else rank_block.narrow_to_block(ranks)


def find_row_positions(
    first: int, rows: int, rank: Lanes, stripes: Stripes | None = None, sub_rank: Lanes | int = 0
) -> Lanes:
    """The positions of every device's rows, [*mesh, rows]: consecutive by device, or block-cyclic as the cache is.

    Args:
        sub_rank: which slice of a device's tokens its rows are, if a second mesh axis shards them further.
    """
    row = torch.arange(rows, device=rank.device)
    if stripes is None:
        return (first + (rank + sub_rank) * rows)[..., None] + row
    start_row = (
        find_start_rows(
            torch.tensor(first, device=rank.device, dtype=torch.int64), stripes.tokens_per_device, rank, stripes.devices
        )
        + sub_rank * rows
    )
    local_row = start_row[..., None] + row
    return (
        local_row // stripes.tokens_per_device * stripes.chunk
        + rank[..., None] * stripes.tokens_per_device
        + local_row % stripes.tokens_per_device
    )
