"""Memory for a spec on a mesh."""

from __future__ import annotations

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.chip.memory import MemoryMap
from ttmesh.mesh.buffer import Buffer
from ttmesh.mesh.mesh_device import MeshDevice
from ttmesh.tensor.spec import TensorSpec


class Footprint:
    """What the allocator needs to know of a spec: sizes per chip, per page and per bank."""

    __slots__ = ("bank_bytes", "banks", "buffer_type", "page_bytes", "size_bytes")

    def __init__(self, spec: TensorSpec, memory_map: MemoryMap) -> None:
        kind = spec.buffer_type
        banks = memory_map.banks[kind]
        if not banks.size:
            raise MeshError(
                f"this mesh has no {kind.name} region",
                expected=f"a mesh opened with {'l1_small_size' if kind is BufferType.L1_SMALL else 'trace_region_size'}",
                fix="Open it with that option, or use another buffer type.",
            )
        self.buffer_type = kind
        self.size_bytes = spec.packed_size_bytes
        self.page_bytes = spec.page_size_bytes
        self.bank_bytes = spec.bytes_per_bank(banks.page_alignment, banks.count)
        shards = spec.shard_layout
        self.banks = banks.count if shards is None else len(shards.cores)

    def allocate(self, mesh: MeshDevice, label: str) -> Buffer:
        """A buffer of this size."""
        return mesh.heap.allocate(
            self.buffer_type, self.size_bytes, self.page_bytes, self.bank_bytes, self.banks, label
        )
