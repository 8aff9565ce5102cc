"""The default memory config of a permuted tensor: how TT-NN permutes shards with their tensor (e4f9f0b)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import BufferType, Layout, TensorMemoryLayout
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec, shard_over_all_cores
from ttmesh.tensor.calls.launch_op import Call
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE_ELEMENTS = 32 * 32


def permuted_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The spec of a permuted or transposed tensor: sharded memory stays sharded where shards can follow."""
    spec, shape = call.specs[0], inferred[0][0]
    held = spec.memory_config
    if call["memory_config"] is not None or held.shard_spec is None or held.created_with_nd_shard_spec:
        return [make_output_spec(call, shape)]
    after = TensorSpec(shape, spec.dtype, spec.layout, tile=spec.tile if spec.layout is Layout.TILE else None)
    moved = _find_moved_dims(call, len(shape))
    if _native(spec) and moved in ((-2, -1), (-3, -2), (-4, -3)):
        memory = _transpose_shards(spec, held.shard_spec, after, moved)
    else:
        anew = MemoryConfig(held.memory_layout, held.buffer_type)
        memory = _scale_shards(spec, held.shard_spec, after) or shard_over_all_cores(anew, after, call)
    return [make_output_spec(call, shape, memory_config=memory)]


def _find_moved_dims(call: Call, rank: int) -> tuple[int, ...]:
    """The dims whose position changes, as negative dims."""
    if call["dims"] is None:
        return tuple(sorted({call[name] % rank - rank for name in ("dim1", "dim2")}))
    return tuple(at - rank for at, dim in enumerate(call["dims"]) if dim % rank != at)


def _native(spec: TensorSpec) -> bool:
    """Whether TT-NN's sharded transposes take it: whole rows of shards in L1, none of them partly filled."""
    held, shards = spec.memory_config, spec.memory_config.shard_spec
    assert shards is not None, "only sharded tensors are asked about"
    even = all(side % part == 0 for side, part in zip(_sides(spec.padded_shape), shards.shape, strict=True))
    whole = spec.layout is Layout.TILE or prod(shards.shape) % TILE_ELEMENTS == 0
    by_lines = held.memory_layout is not TensorMemoryLayout.BLOCK_SHARDED
    return held.buffer_type is not BufferType.DRAM and by_lines and even and whole


def _transpose_shards(spec: TensorSpec, shards: ShardSpec, after: TensorSpec, moved: tuple[int, ...]) -> MemoryConfig:
    """Shards after two neighbouring dims are swapped; interleaved L1 if they are not whole tiles."""
    held = spec.memory_config
    if moved == (-4, -3) or (moved == (-3, -2) and spec.layout is Layout.ROW_MAJOR):
        return held
    if moved == (-2, -1) and prod(spec.padded_shape[:-2]) == 1 and shards.shape[1] == spec.padded_shape[-1]:
        turned = ShardSpec(shards.grid, (shards.shape[1], shards.shape[0]), shards.orientation)
        columns = MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, held.buffer_type, turned)
        return columns if _in_whole_tiles(turned, after) else L1_MEMORY_CONFIG
    return _scale_shards(spec, shards, after) or L1_MEMORY_CONFIG


def _scale_shards(spec: TensorSpec, shards: ShardSpec, after: TensorSpec) -> MemoryConfig | None:
    """Shards that grow and shrink with their sides of the tensor, or None where that leaves fractions."""
    sides = zip(shards.shape, _sides(spec.padded_shape), _sides(after.padded_shape), strict=True)
    parts = [divmod(part * now, before) for part, before, now in sides]
    fitted = ShardSpec(shards.grid, tuple(part for part, _ in parts), shards.orientation)
    if any(rest for _, rest in parts) or not _in_whole_tiles(fitted, after):
        return None
    return MemoryConfig(spec.memory_config.memory_layout, spec.memory_config.buffer_type, fitted)


def _in_whole_tiles(shards: ShardSpec, spec: TensorSpec) -> bool:
    grain = spec.tile.tile_shape if spec.layout is Layout.TILE else (1, 1)
    return all(part % step == 0 for part, step in zip(shards.shape, grain, strict=True))


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix."""
    return prod(shape[:-1]), shape[-1]
