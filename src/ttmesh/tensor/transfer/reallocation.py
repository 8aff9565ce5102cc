"""How `reallocate` moves a tensor: which of its device programs copies the values."""

from __future__ import annotations

from ttmesh.base.dtypes import BufferType
from ttmesh.chip.memory import MemoryMap
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def copies_through_circular_buffer(
    spec: TensorSpec, source: BufferType, old_address: int, address: int, memory: MemoryMap
) -> bool:
    """Whether the new memory overlaps the old, so that every core first reads its share into a circular buffer.

    Memory in L1 moves up and memory in DRAM down. A share that does not fit beside the new memory is copied directly.
    """
    grid = memory.compute_grid
    if not spec.memory_config.interleaved or spec.buffer_type is not source or 1 in (grid.x, grid.y):
        return False
    in_l1 = source is BufferType.L1
    lower, upper = (old_address, address) if in_l1 else (address, old_address)
    bank_bytes = footprint_of(spec, memory).bank_bytes
    share = footprint_of(spec.with_memory_config(L1_MEMORY_CONFIG), memory).bank_bytes
    room = (address if in_l1 else memory.l1_bytes) - memory.banks[BufferType.L1].start
    return lower + bank_bytes > upper and share <= room
