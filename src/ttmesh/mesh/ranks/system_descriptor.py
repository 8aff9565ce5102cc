"""SystemMeshDescriptor: the full system as a mesh, and the block of it that this process drives."""

from __future__ import annotations

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.chip.system import System
from ttmesh.mesh.ranks.rank_block import load_shared_system, make_rank_block


class SystemMeshDescriptor:
    """The full system (by default the configured one) as a mesh; `local` is the range that this process drives."""

    def __init__(self, system: System | None = None, local: MeshCoordinateRange | None = None) -> None:
        self._system = load_shared_system() if system is None else system
        if local is None and system is None:
            block = make_rank_block(self._system.shape)
            local = None if block is None else block.local_range
        self._local = MeshCoordinateRange(self._system.shape) if local is None else local

    def shape(self) -> MeshShape:
        """The extent of the full system."""
        return self._system.shape

    def local_shape(self) -> MeshShape:
        """The extent of the range that this process drives."""
        return self._local.shape

    def get_device_id(self, coord: MeshCoordinate) -> int:
        """The physical id at a coordinate that this process drives."""
        if not self.is_local(coord):
            raise ShapeError(
                f"Device at {coord!r} is remote.",
                expected=f"a coordinate in {self._local!r}",
                fix="Ask in the rank that drives the device.",
            )
        return self._system.grid[coord[0]][coord[1]]

    def is_local(self, coord: MeshCoordinate) -> bool:
        """Whether this process drives the chip at a coordinate."""
        coord.to_linear_index(self._system.shape)  # a coordinate outside the system is an error, not remote
        return self._local.contains(coord)

    def all_local(self) -> bool:
        """Whether this process drives every chip."""
        return self.local_shape() == self.shape()
