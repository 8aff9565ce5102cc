"""MeshDeviceView: the devices of a mesh as a grid."""

from __future__ import annotations

from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.mesh.ranks.rank_block import RankBlock


class MeshDeviceView:
    """A mesh as a grid of devices."""

    __slots__ = ("_ids", "_rank_block", "_shape")

    def __init__(self, shape: MeshShape, physical_ids: tuple[int, ...], rank_block: RankBlock | None) -> None:
        self._shape, self._ids, self._rank_block = shape, physical_ids, rank_block

    def shape(self) -> MeshShape:
        """The extent along each axis."""
        return self._shape

    def num_devices(self) -> int:
        """The number of devices."""
        return len(self._ids)

    def is_local(self, coord: MeshCoordinate) -> bool:
        """Whether this process drives the device there."""
        coord.to_linear_index(self._shape)
        return self._rank_block is None or self._rank_block.has_chip(coord)

    def __repr__(self) -> str:
        return f"MeshDeviceView({self._shape!r}, devices={list(self._ids)})"
