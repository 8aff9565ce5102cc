"""The default memory config of a permuted tensor: how TT-NN permutes shards with their tensor (e4f9f0b)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import BufferType, Layout, TensorMemoryLayout
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec, shard_over_all_cores
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE_ELEMENTS = 32 * 32


def permute_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The spec of a permuted or transposed tensor; sharded memory stays sharded if the shards can be permuted too."""
    spec, shape = call.specs[0], inferred[0][0]
    input_memory = spec.memory_config
    if call["memory_config"] is not None or input_memory.shard_spec is None or input_memory.created_with_nd_shard_spec:
        return [make_output_spec(call, shape)]
    unsharded_spec = TensorSpec(shape, spec.dtype, spec.layout, tile=spec.tile if spec.layout is Layout.TILE else None)
    moved_dims = _find_moved_dims(call, len(shape))
    if _has_native_transpose(spec) and moved_dims in ((-2, -1), (-3, -2), (-4, -3)):
        memory = _transpose_shards(spec, input_memory.shard_spec, unsharded_spec, moved_dims)
    else:
        same_layout = MemoryConfig(input_memory.memory_layout, input_memory.buffer_type)
        memory = _scale_shards(spec, input_memory.shard_spec, unsharded_spec) or shard_over_all_cores(
            same_layout, unsharded_spec, call
        )
    return [make_output_spec(call, shape, memory_config=memory)]


def _find_moved_dims(call: Call, rank: int) -> tuple[int, ...]:
    """The dims whose position changes, as negative dims."""
    if call["dims"] is None:
        return tuple(sorted({call[name] % rank - rank for name in ("dim1", "dim2")}))
    return tuple(position - rank for position, dim in enumerate(call["dims"]) if dim % rank != position)


def _has_native_transpose(spec: TensorSpec) -> bool:
    """Whether TT-NN's sharded transposes take the tensor: height or width shards in L1, all of them full."""
    memory, shards = spec.memory_config, spec.memory_config.shard_spec
    assert shards is not None, "the caller checks that the tensor is sharded"
    has_full_shards = all(
        extent % shard_extent == 0
        for extent, shard_extent in zip(_matrix_shape(spec.padded_shape), shards.shape, strict=True)
    )
    has_full_tiles = spec.layout is Layout.TILE or prod(shards.shape) % TILE_ELEMENTS == 0
    one_dimensional = memory.memory_layout is not TensorMemoryLayout.BLOCK_SHARDED
    return memory.buffer_type is not BufferType.DRAM and one_dimensional and has_full_shards and has_full_tiles


def _transpose_shards(
    spec: TensorSpec, shards: ShardSpec, unsharded_spec: TensorSpec, moved_dims: tuple[int, ...]
) -> MemoryConfig:
    """Shards after two adjacent dims are swapped; interleaved L1 if they would not fill tiles."""
    memory = spec.memory_config
    if moved_dims == (-4, -3) or (moved_dims == (-3, -2) and spec.layout is Layout.ROW_MAJOR):
        return memory
    if moved_dims == (-2, -1) and prod(spec.padded_shape[:-2]) == 1 and shards.shape[1] == spec.padded_shape[-1]:
        transposed = ShardSpec(shards.grid, (shards.shape[1], shards.shape[0]), shards.orientation)
        width_sharded = MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, memory.buffer_type, transposed)
        return width_sharded if _fills_tiles(transposed, unsharded_spec) else L1_MEMORY_CONFIG
    return _scale_shards(spec, shards, unsharded_spec) or L1_MEMORY_CONFIG


def _scale_shards(spec: TensorSpec, shards: ShardSpec, unsharded_spec: TensorSpec) -> MemoryConfig | None:
    """Shards scaled with the tensor's height and width, or None if that leaves fractions of elements or tiles."""
    extents = zip(
        shards.shape, _matrix_shape(spec.padded_shape), _matrix_shape(unsharded_spec.padded_shape), strict=True
    )
    scaled = [divmod(extent * new_extent, old_extent) for extent, old_extent, new_extent in extents]
    scaled_shards = ShardSpec(shards.grid, tuple(extent for extent, _ in scaled), shards.orientation)
    if any(remainder for _, remainder in scaled) or not _fills_tiles(scaled_shards, unsharded_spec):
        return None
    return MemoryConfig(spec.memory_config.memory_layout, spec.memory_config.buffer_type, scaled_shards)


def _fills_tiles(shards: ShardSpec, spec: TensorSpec) -> bool:
    step_shape = spec.tile.tile_shape if spec.layout is Layout.TILE else (1, 1)
    return all(extent % step == 0 for extent, step in zip(shards.shape, step_shape, strict=True))


def _matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix."""
    return prod(shape[:-1]), shape[-1]
