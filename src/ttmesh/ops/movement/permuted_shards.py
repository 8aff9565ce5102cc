"""The default memory config of a permuted tensor: how TT-NN permutes shards with their tensor (e4f9f0b)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import BufferType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec, shard_over_all_cores
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE_ELEMENTS = 32 * 32


def permute_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The spec of a permuted or transposed tensor; sharded memory stays sharded if the shards can be permuted too."""
    spec, shape = call.specs[0], inferred[0][0]
    input_memory = spec.memory_config
    wanted = call["memory_config"]
    if wanted is not None and not any(call.outputs) and _lacks_shards(wanted, spec, shape):
        tile = spec.tile if spec.layout is Layout.TILE else None
        memory = _spread_tiles(call, wanted, spec, shape)
        return [TensorSpec(shape, spec.dtype, spec.layout, tile=tile, memory_config=memory)]
    if call["memory_config"] is not None or input_memory.shard_spec is None or input_memory.created_with_nd_shard_spec:
        return [make_output_spec(call, shape)]
    memory = permuted_memory(call, spec, shape, _find_moved_dims(call, len(shape)))
    return [make_output_spec(call, shape, memory_config=memory)]


def _lacks_shards(wanted: MemoryConfig, spec: TensorSpec, shape: Sequence[int]) -> bool:
    """Whether shards are requested without a shape, and the input has no such shards that can be scaled."""
    held = spec.memory_config
    if not wanted.is_sharded() or wanted.shard_spec is not None or wanted.nd_shard_spec is not None:
        return False
    if held.memory_layout is not wanted.memory_layout or held.shard_spec is None:
        return True
    return _scale_shards(spec, held.shard_spec, TensorSpec(shape, spec.dtype, spec.layout)) is None


def _spread_tiles(call: Call, wanted: MemoryConfig, spec: TensorSpec, shape: Sequence[int]) -> MemoryConfig:
    """Shards of whole tiles, rows too, over as many cores as there are, in the order of the input's shards."""
    shards = spec.memory_config.shard_spec
    orientation = ShardOrientation.ROW_MAJOR if shards is None else shards.orientation
    return shard_over_all_cores(wanted, TensorSpec(shape, spec.dtype, Layout.TILE), call, orientation)


def permuted_memory(call: Call, spec: TensorSpec, shape: Sequence[int], moved_dims: tuple[int, ...]) -> MemoryConfig:
    """The default memory of a tensor in shards whose dims change places, inside a call."""
    held = spec.memory_config
    if held.shard_spec is None:
        return held
    unsharded_spec = TensorSpec(shape, spec.dtype, spec.layout, tile=spec.tile if spec.layout is Layout.TILE else None)
    if _has_native_transpose(spec) and moved_dims in ((-2, -1), (-3, -2), (-4, -3)):
        return _transpose_shards(spec, held.shard_spec, unsharded_spec, moved_dims)
    same_layout = MemoryConfig(held.memory_layout, held.buffer_type)
    return _scale_shards(spec, held.shard_spec, unsharded_spec) or shard_over_all_cores(
        same_layout, unsharded_spec, call
    )


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
