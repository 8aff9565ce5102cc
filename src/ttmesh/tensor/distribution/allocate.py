"""Memory for a spec on a mesh."""

from __future__ import annotations

from functools import lru_cache

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError, NotEmulatedError, OutOfMemoryError
from ttmesh.chip.cells import Room
from ttmesh.chip.memory import Banks, MemoryMap
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.spec.shard_layout import ShardLayout
from ttmesh.tensor.spec.tensor_spec import TensorSpec


class Footprint(Room):
    """The memory that a spec takes on a mesh with this map."""

    __slots__ = ()

    def __init__(self, spec: TensorSpec, memory_map: MemoryMap) -> None:
        kind = spec.buffer_type
        banks = memory_map.banks[kind]
        if not banks.size:
            raise _refuse_missing_region(spec, kind, banks)
        shards = spec.shard_layout
        if shards is not None and spec.memory_config.per_core_allocation:
            raise NotEmulatedError(
                "per_core_allocation is not emulated: buffers have one address on all cores",
                expected="a memory configuration in lock step",
                fix="Leave experimental_set_per_core_allocation out.",
            )
        super().__init__(
            kind,
            spec.packed_size_bytes,
            spec.page_size_bytes,
            spec.bytes_per_bank(banks.page_alignment, banks.count),
            banks.count if shards is None else len(shards.cores),
        )
        if shards is not None:
            _check_grid(shards, kind, banks.count, memory_map)

    def allocate(self, mesh: MeshDevice, label: str) -> Buffer:
        """A buffer of this size."""
        return mesh.heap.take(self, label)


def _refuse_missing_region(spec: TensorSpec, buffer_type: BufferType, banks: Banks) -> MeshError:
    """The error for a tensor in a region that the mesh was opened without."""
    option = "l1_small_size" if buffer_type is BufferType.L1_SMALL else "trace_region_size"
    bank_bytes = spec.bytes_per_bank(banks.page_alignment, banks.count)
    shards = spec.shard_layout
    count = banks.count if shards is None else len(shards.cores)
    return OutOfMemoryError(
        f"Out of Memory: Not enough space to allocate {bank_bytes * count} B {buffer_type.name} buffer across {count} "
        f"banks, where each bank needs to store {bank_bytes} B, but bank size is 0 B (allocated: 0 B, free: 0 B, largest "
        f"free block: 0 B). The {buffer_type.name} region is 0 B because it is reserved at device open; set {option} "
        "large enough for this allocation when opening the device.",
        expected=f"a mesh opened with {option}",
        fix="Open it with that option, or use another buffer type.",
    )


@lru_cache(maxsize=1024)
def footprint_of(spec: TensorSpec, memory_map: MemoryMap) -> Footprint:
    """The footprint of a spec, computed once: programs allocate the same few specs again and again."""
    return Footprint(spec, memory_map)


def _check_grid(shards: ShardLayout, buffer_type: BufferType, count: int, memory_map: MemoryMap) -> None:
    """Refuse shards on cores or banks that the chip does not have."""
    if buffer_type is not BufferType.DRAM and len(shards.cores) > count:
        raise MeshError(
            f"Expected number of shards {len(shards.cores)} to be less than or equal to total number of L1 banks {count} "
            "in compute cores",
            expected="a grid of compute cores",
            fix="Derive the grid from compute_with_storage_grid_size().",
        )
    columns, rows = (
        (count, 1) if buffer_type is BufferType.DRAM else (memory_map.compute_grid.x, memory_map.compute_grid.y)
    )
    for core in shards.cores:
        if buffer_type is BufferType.DRAM and core.y:
            raise MeshError(
                f"Invalid DRAM shard grid: shard core ({core.x}, {core.y}) is not on row 0. DRAM banks are 1D (bank_id == "
                "logical x-coordinate), so every shard core must have y == 0.",
                expected=f"cores (0, 0) to ({columns - 1}, 0)",
                fix="Derive the grid from dram_grid_size().",
            )
        if core.x >= columns or core.y >= rows:
            raise MeshError(
                f"Invalid shard grid: shard core ({core.x}, {core.y}) has no {buffer_type.name} bank on this device, which "
                f"has {count} of them.",
                expected=f"cores (0, 0) to ({columns - 1}, {rows - 1})",
                fix="Derive the grid from dram_grid_size() for DRAM, compute_with_storage_grid_size() for L1.",
            )
