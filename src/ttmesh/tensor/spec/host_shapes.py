"""Shapes and shards on the host: lanes hold logical values only, so padding is added when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.tensor.spec.distribution_shape import Coord


class HasLane(Protocol):
    """A host tensor whose shards can be read."""

    def lane(self, coord: Coord) -> torch.Tensor:
        """The shard of one device."""


def pad_values(values: torch.Tensor, shape: Sequence[int], fill: float = 0) -> torch.Tensor:
    """Values [..., *logical] with `fill` behind each dim up to this shape (which may have a rank more)."""
    rank = min(len(shape), values.dim()) if values.dim() else 0
    while rank < len(shape):
        values = values.unsqueeze(-rank - 1 if rank else 0)
        rank += 1
    grow = [extent - have for extent, have in zip(shape, values.shape[values.dim() - len(shape) :], strict=True)]
    if not any(grow):
        return values
    return torch.nn.functional.pad(values, [n for extra in reversed(grow) for n in (0, extra)], value=fill)


def shift_values(values: torch.Tensor, shape: Sequence[int], start: Sequence[int], fill: float) -> torch.Tensor:
    """Lanes whose logical window shows the values shifted by `start`, with `fill` before them."""
    if len(start) != len(shape):
        raise ShapeError(
            f"start {list(start)} of {list(shape)}", expected="one number per dim", fix="Pass one start per dim."
        )
    if not any(start):
        return values
    window = torch.full_like(values, fill)
    into: tuple[Any, ...] = (..., *(slice(min(at, n), None) for at, n in zip(start, shape, strict=True)))
    take: tuple[Any, ...] = (..., *(slice(0, max(n - at, 0)) for at, n in zip(start, shape, strict=True)))
    window[into] = values[take]
    return window


def box(values: torch.Tensor, rank: int, start: Sequence[int], end: Sequence[int]) -> torch.Tensor:
    """The box in the last `rank` dims between two corners (the end is exclusive)."""
    if len(start) != rank or len(end) != rank:
        raise ShapeError(
            f"a box from {list(start)} to {list(end)}",
            expected=f"{rank} numbers in each corner",
            fix="Pass corners of the tensor's rank.",
        )
    index: tuple[Any, ...] = (..., *(slice(a, b) for a, b in zip(start, end, strict=True)))
    return values[index].contiguous()


class HostBuffer:
    """The shards of a host tensor by coordinate."""

    __slots__ = ("_coords", "_mesh_shape", "_rank_block", "_tensor")

    def __init__(
        self, tensor: HasLane, mesh_shape: MeshShape, rank_block: RankBlock | None, coords: Sequence[Coord]
    ) -> None:
        self._tensor, self._mesh_shape, self._rank_block = tensor, mesh_shape, rank_block
        self._coords = frozenset(coords)

    def shape(self) -> MeshShape:
        """The mesh the tensor was sharded for."""
        return self._mesh_shape

    def is_local(self, coord: MeshCoordinate) -> bool:
        """Whether this process holds the shard there."""
        coord.to_linear_index(self._mesh_shape)
        return self._rank_block is None or self._rank_block.has_chip(coord)

    def get_shard(self, coord: MeshCoordinate) -> torch.Tensor | None:
        """A copy of the shard at a coordinate, or None if this process has none there."""
        return self._tensor.lane(coord.coords()).clone() if coord.coords() in self._coords else None
