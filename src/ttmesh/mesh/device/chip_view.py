"""The chips of a mesh, and those of them that this process holds."""

from __future__ import annotations

from ttmesh.base import settings
from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.chip.system import System
from ttmesh.fabric.nodes import FabricNodeId, MeshId
from ttmesh.mesh.device.mesh_view import MeshDeviceView
from ttmesh.mesh.ranks.rank_block import RankBlock


class ChipView:
    """The chips of a MeshDevice by coordinate and by id."""

    _shape: MeshShape
    physical_ids: tuple[int, ...]
    system: System
    rank_block: RankBlock | None

    def get_num_devices(self) -> int:
        """The number of chips, on all ranks."""
        return len(self.physical_ids)

    def get_device_ids(self) -> list[int]:
        """Physical ids of this process's chips in row-major order; the first one of the mesh is the coordinator."""
        return list(self.local_ids())

    def get_device_id(self, coord: MeshCoordinate) -> int:
        """The physical id at a coordinate that this process holds."""
        if not (len(coord) == self._shape.dims() and all(0 <= c < n for c, n in zip(coord, self._shape, strict=True))):
            raise ShapeError(
                f"Device ID requested for MeshCoord {coord!r} not found.",
                expected=f"a coordinate inside {self._shape!r}",
                fix="Pass a coordinate of this mesh.",
            )
        chip = self.chip_at(coord)
        if self.rank_block is not None:
            self.rank_block.to_local(coord.coords())
        return chip

    def chip_at(self, coord: MeshCoordinate) -> int:
        """The physical id at a coordinate, on any process."""
        return self.physical_ids[coord.to_linear_index(self._shape)]

    def local_ids(self) -> tuple[int, ...]:
        """Physical ids of this process's chips."""
        return self.physical_ids if self.rank_block is None else self.rank_block.select_local(self.physical_ids)

    @property
    def local_range(self) -> MeshCoordinateRange | None:
        """The coordinates of this process's chips: all of them unless ranks divide the mesh; None when it has none."""
        return MeshCoordinateRange(self._shape) if self.rank_block is None else self.rank_block.local_range

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """The number of this process's chips along each axis: the leading extents of its lanes."""
        return self._shape.to_tuple() if self.rank_block is None else self.rank_block.block_shape

    def is_local(self, coord: MeshCoordinate) -> bool:
        """Whether this process holds the chip at a coordinate."""
        return self.get_view().is_local(coord)

    def reference_device(self) -> int:
        """The physical id of the coordinator, logical device 0."""
        return self.physical_ids[0]

    def get_fabric_node_id(self, coord: MeshCoordinate) -> FabricNodeId:
        """The fabric's id of the chip at a coordinate: its index on the system's mesh."""
        position = MeshCoordinate(self.system.find_position(self.chip_at(coord)))
        return FabricNodeId(MeshId(self.get_system_mesh_id()), position.to_linear_index(self.system.shape))

    def get_system_mesh_id(self) -> int:
        """The mesh of a multi-mesh system that this process belongs to (TT_MESH_ID)."""
        return settings.get_int("TT_MESH_ID") or 0

    def get_view(self) -> MeshDeviceView:
        """The mesh as a grid of devices."""
        return MeshDeviceView(self._shape, self.physical_ids, self.rank_block)

    def reported_ids(self) -> tuple[int, ...]:
        """The ids of this process's chips in reports: those of the full system, whichever chips are visible."""
        return tuple(self.system.original_id(chip) for chip in self.local_ids())
