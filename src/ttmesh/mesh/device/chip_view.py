"""Which chips a mesh has, and which of them are this process's."""

from __future__ import annotations

from ttmesh.base import settings
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
        """How many chips, on all ranks."""
        return len(self.physical_ids)

    def get_device_ids(self) -> list[int]:
        """Physical ids of this process's chips in row-major order; the first one of the mesh coordinates."""
        return list(self.local_ids())

    def get_device_id(self, coord: MeshCoordinate) -> int:
        """The physical id at a coordinate of this process."""
        chip = self.chip_at(coord)
        if self.rank_block is not None:
            self.rank_block.to_local(coord.coords())
        return chip

    def chip_at(self, coord: MeshCoordinate) -> int:
        """The physical id at a coordinate, whichever process has it."""
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
        """How many chips this process has along each axis: the leading extents of its lanes."""
        return self._shape.to_tuple() if self.rank_block is None else self.rank_block.block_shape

    def is_local(self, coord: MeshCoordinate) -> bool:
        """Whether this process has the chip there."""
        return self.get_view().is_local(coord)

    def reference_device(self) -> int:
        """The physical id of the coordinator, logical device 0."""
        return self.physical_ids[0]

    def get_fabric_node_id(self, coord: MeshCoordinate) -> FabricNodeId:
        """The fabric's name of the chip at a coordinate: its place on the system's own mesh."""
        place = MeshCoordinate(self.system.place(self.chip_at(coord)))
        return FabricNodeId(MeshId(self.get_system_mesh_id()), place.to_linear_index(self.system.shape))

    def get_system_mesh_id(self) -> int:
        """Which mesh of a multi-mesh system this process is bound to (TT_MESH_ID)."""
        return settings.get_int("TT_MESH_ID") or 0

    def get_view(self) -> MeshDeviceView:
        """The mesh as a grid of devices."""
        return MeshDeviceView(self._shape, self.physical_ids, self.rank_block)

    def reported_ids(self) -> tuple[int, ...]:
        """What trackers call this process's chips: their ids in the whole system, whatever part of it is visible here."""
        return tuple(self.system.original_id(chip) for chip in self.local_ids())
