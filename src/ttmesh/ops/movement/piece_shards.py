"""Where the pieces of a split tensor are: on the cores of the tensor where shards of it divide evenly, else in DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.dtypes import BufferType, Layout
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def piece_memory(tensor: Tensor, dim: int, sizes: Sequence[int]) -> MemoryConfig:
    """The memory of pieces of these sizes along a dim, where none is asked for; DRAM where L1 would not hold them all."""
    spec = tensor.spec
    found = _scaled_memory(spec, dim, sizes)
    if found.buffer_type is not BufferType.L1 or len(sizes) <= 2:
        return found
    heap = tensor.buffer.heap
    bank = heap.map.banks[BufferType.L1]
    lowest = heap.lowest_used(BufferType.L1)
    room = bank.size if lowest is None else lowest - bank.start
    page = spec.page_size_bytes if spec.layout is Layout.TILE else 32 * 32 * element_bytes(spec.dtype)
    pieces = spec.page_size_bytes * spec.num_pages
    return found if pieces + len(sizes) * 4 * page <= room else DRAM_MEMORY_CONFIG


def _scaled_memory(spec: TensorSpec, dim: int, sizes: Sequence[int]) -> MemoryConfig:
    held = spec.memory_config
    if not held.is_sharded():
        return held
    shards = held.shard_spec
    extent = spec.padded_shape[dim]
    if shards is None or min(sizes) != max(sizes) or extent % len(sizes):
        return DRAM_MEMORY_CONFIG
    axis = 1 if dim in (-1, len(spec.shape) - 1) else 0
    extents = list(shards.shape)
    if extents[axis] % len(sizes):
        return DRAM_MEMORY_CONFIG
    extents[axis] //= len(sizes)
    if spec.layout is Layout.TILE and any(n % 32 for n in extents):
        return DRAM_MEMORY_CONFIG
    return MemoryConfig(held.memory_layout, held.buffer_type, ShardSpec(shards.grid, extents, shards.orientation))
