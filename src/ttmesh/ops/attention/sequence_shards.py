"""Sequences sharded over a mesh: the positions of a device's rows, and where a block-cyclic cache stores a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.attention.block_cyclic_cache import find_axis_positions, starts
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class Stripes:
    """A block-cyclic cache: every device holds `piece` tokens of each chunk; gathered, it is shard after shard."""

    devices: int
    piece: int

    @property
    def chunk(self) -> int:
        """Tokens of a whole chunk."""
        return self.devices * self.piece

    def physical(self, tokens: Lanes, length: int) -> Lanes:
        """The rows that hold these tokens in a gathered cache of this length."""
        slab, inside = tokens // self.chunk, tokens % self.chunk
        return inside // self.piece * (length // self.devices) + slab * self.piece + inside % self.piece


def mesh_of(tensor: Tensor, name: str) -> MeshDevice:
    """The mesh of a device tensor."""
    mesh = tensor.device()
    if mesh is None:
        raise MeshError(f"{name} must be on device", expected="a device tensor", fix="Move it with to_device().")
    return mesh


def ranks(mesh_shape: Sequence[int], axis: int | None, part: RankBlock | None, device: torch.device) -> Lanes:
    """Every device's number along an axis, or row by row over the whole mesh: [*mesh]."""
    shape = tuple(mesh_shape)
    if axis is not None:
        found = find_axis_positions(shape, axis, device)
    else:
        found = torch.arange(torch.Size(shape).numel(), device=device).reshape(shape)
    return found if part is None else part.narrow_to_block(found)


def positions(first: int, rows: int, rank: Lanes, stripes: Stripes | None = None, within: Lanes | int = 0) -> Lanes:
    """The positions of every device's rows, [*mesh, rows]: consecutive by device, or block-cyclic as the cache is.

    Args:
        within: which part of a device's piece its rows are, where a second axis cuts it.
    """
    row = torch.arange(rows, device=rank.device)
    if stripes is None:
        return (first + (rank + within) * rows)[..., None] + row
    begin = starts(torch.tensor(first, device=rank.device), stripes.piece, rank, stripes.devices) + within * rows
    local = begin[..., None] + row
    return local // stripes.piece * stripes.chunk + rank[..., None] * stripes.piece + local % stripes.piece
