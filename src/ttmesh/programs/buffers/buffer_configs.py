"""How a mesh buffer is distributed: over the chips (replicated, sharded) and on each chip (pages over banks)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ttmesh.base.dtypes import BufferType, PrintedEnum, ShardOrientation
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.buffers.page_layout import BufferShardingArgs

Extent2d = tuple[int, int]


class MeshBufferLayout(PrintedEnum):
    """What the chips of a mesh buffer hold."""

    REPLICATED = 0
    SHARDED = 1


@dataclass(frozen=True)
class DeviceLocalBufferConfig:
    """How a chip stores its shard or copy: pages of this size over the banks of a memory, or sharded over cores."""

    page_size: int
    buffer_type: BufferType = BufferType.DRAM
    sharding_args: BufferShardingArgs | None = None
    bottom_up: bool | None = None


@dataclass(frozen=True)
class ReplicatedBufferConfig:
    """Every chip holds `size` bytes."""

    size: int

    @property
    def device_local_size(self) -> int:
        """Bytes per chip."""
        return self.size


@dataclass(frozen=True)
class ShardedBufferConfig:
    """A two-dimensional buffer split into shards, one per chip; an extent of 0 in `shard_shape` means replicate."""

    global_size: int
    global_buffer_shape: Extent2d
    shard_shape: Extent2d
    shard_orientation: ShardOrientation = ShardOrientation.ROW_MAJOR

    def compute_datum_size_bytes(self) -> int:
        """Bytes per element."""
        return self.global_size // prod(self.global_buffer_shape)

    @property
    def physical_shard_shape(self) -> Extent2d:
        """The extents that a chip stores."""
        (height, width), (rows, columns) = self.shard_shape, self.global_buffer_shape
        return height or rows, width or columns

    @property
    def replicated_dims(self) -> tuple[bool, bool]:
        """Whether height and width are replicated."""
        return self.shard_shape[0] == 0, self.shard_shape[1] == 0

    @property
    def device_local_size(self) -> int:
        """Bytes per chip."""
        return self.compute_datum_size_bytes() * prod(self.physical_shard_shape)

    def shards(self, mesh: MeshDevice) -> list[tuple[Extent2d, list[MeshCoordinate]]]:
        """Each shard's first element and the chips that hold it, in TT-Metal's order."""
        rows, columns = mesh.shape[0], mesh.shape[1]
        (height, width), by_rows = self.physical_shard_shape, self.shard_orientation is ShardOrientation.ROW_MAJOR
        firsts = [
            (y, x)
            for y in range(0, self.global_buffer_shape[0], height)
            for x in range(0, self.global_buffer_shape[1], width)
        ]
        if all(self.replicated_dims):
            return [(first, MeshCoordinateRange(mesh.shape).coords()) for first in firsts]
        if any(self.replicated_dims):
            lines = [
                [MeshCoordinate(y, i) for y in range(rows)]
                if by_rows
                else [MeshCoordinate(i, x) for x in range(columns)]
                for i in range(len(firsts))
            ]
            return list(zip(firsts, lines, strict=True))
        coords = [(i // columns, i % columns) if by_rows else (i % rows, i // rows) for i in range(len(firsts))]
        return [(first, [MeshCoordinate(coord)]) for first, coord in zip(firsts, coords, strict=True)]


MeshBufferConfig = ReplicatedBufferConfig | ShardedBufferConfig
