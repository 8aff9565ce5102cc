"""The rules for output specs that most families share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import ShapeError
from ttmesh.tensor.calls.operation import Call, SpecRule
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.page_extents import RECOMMENDED_ALIGNMENT_BYTES, element_bytes
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Inferred = Sequence[tuple[tuple[int, ...], torch.dtype]]


def like_first(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The spec of the first tensor, changed by dtype=, memory_config= or an output tensor."""
    return [make_output_spec(call, shape, result=i) for i, (shape, _) in enumerate(inferred)]


def make_like_rule(position: int = 0, *, dtype: DataType | None = None, layout: Layout | None = None) -> SpecRule:
    """A rule that copies the spec of the tensor argument at a position, except for the given dtype and layout."""

    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        return [
            make_output_spec(call, shape, source=position, dtype=dtype, layout=layout, result=i)
            for i, (shape, _) in enumerate(inferred)
        ]

    return rule


def make_output_spec(
    call: Call,
    shape: Sequence[int],
    *,
    source: int = 0,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    memory_config: MemoryConfig | None = None,
    result: int = 0,
) -> TensorSpec:
    """One output spec: from the caller's arguments, else from the rule, else from the source tensor."""
    given = call.outputs[result] if result < len(call.outputs) else None
    if given is not None:
        if len(shape) == 0 and given.shape.volume() == 1:  # a scalar result may be written into a tensor of one element
            return given.spec.with_shape(shape)
        if tuple(given.shape) != tuple(shape):
            raise ShapeError(
                f"{call.name}: the output tensor has shape {given.shape!r}, the result {list(shape)}",
                expected="equal shapes",
                fix="Allocate the output with the result's shape.",
            )
        return given.spec
    spec = call.specs[source]
    result_dtype = call["dtype"] or call["output_dtype"] or dtype or spec.dtype
    config = (
        call["memory_config"] or call["output_memory_config"] or memory_config or inherit_memory_config(spec, shape)
    )
    result_layout = layout if layout is not None else spec.layout
    tile = spec.tile if spec.layout is Layout.TILE and result_layout is Layout.TILE else None
    if config.is_sharded() and config.shard_spec is None and config.nd_shard_spec is None:
        unsharded, held = TensorSpec(shape, result_dtype, result_layout, tile=tile), spec.memory_config.shard_spec
        if held is None:
            config = shard_over_all_cores(config, unsharded, call)
        elif tuple(shape) == tuple(spec.shape):
            config = MemoryConfig(config.memory_layout, config.buffer_type, held)
        else:
            config = fit_shards(config, unsharded, spec.memory_config)
    return TensorSpec(shape, result_dtype, result_layout, tile=tile, memory_config=config)


def shard_over_all_cores(
    config: MemoryConfig, spec: TensorSpec, call: Call, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
) -> MemoryConfig:
    """Complete a sharded config for a result whose source is not sharded: shards over as many cores as are needed."""
    by_rows = orientation is ShardOrientation.ROW_MAJOR
    size = call.mesh.compute_with_storage_grid_size()
    all_cores = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(size.x - 1, size.y - 1))])
    everywhere = ShardSpec(all_cores, [0, 0], orientation)
    full_grid_config = MemoryConfig(config.memory_layout, config.buffer_type, everywhere)
    shard = fit_shards(config, spec, full_grid_config).shard_spec
    assert shard is not None, "fit_shards returns a shard spec"
    shards_down, shards_across = (
        div_up(extent, shard_extent) for extent, shard_extent in zip(spec.physical_shape, shard.shape, strict=True)
    )
    if config.memory_layout is TensorMemoryLayout.BLOCK_SHARDED:
        columns, rows = (shards_across, shards_down) if by_rows else (shards_down, shards_across)
        cores = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(columns - 1, rows - 1))])
    else:
        cores = num_cores_to_corerangeset(shards_down * shards_across, size, row_wise=by_rows)
    return MemoryConfig(config.memory_layout, config.buffer_type, ShardSpec(cores, shard.shape, shard.orientation))


def fit_shards(config: MemoryConfig, spec: TensorSpec, source: MemoryConfig) -> MemoryConfig:
    """Complete a sharded config that has no shard spec: the source's cores, with shards that fit this shape."""
    shards = source.shard_spec
    if shards is None:
        raise ShapeError(
            f"bad optional access: MemoryConfig must have Shard Spec specified for sharded memory layout; got {config}",
            expected="a shard_spec, or a sharded input to take the cores from",
            fix="Use create_sharded_memory_config.",
        )
    if config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED:
        fitted = spec.height_sharded(shards.grid, shards.orientation)
    elif config.memory_layout is TensorMemoryLayout.WIDTH_SHARDED:
        fitted = spec.width_sharded(shards.grid, shards.orientation)
    else:
        fitted = spec.block_sharded(shards.grid, shards.orientation)
    return MemoryConfig(config.memory_layout, config.buffer_type, fitted.memory_config.shard_spec)


def refit_shards(config: MemoryConfig, spec: TensorSpec, source: MemoryConfig) -> MemoryConfig:
    """The shards of a tensor that a reshape moved: blocks on as many of their cores as share it evenly.

    Shards on cores that are no rectangle become interleaved.
    """
    shards = source.shard_spec
    if shards is None:
        return fit_shards(config, spec, source)
    box = shards.grid.bounding_box()
    if box.size() != shards.grid.num_cores():
        return MemoryConfig(buffer_type=config.buffer_type)
    if config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED:  # one shard alone is called a column of shards
        fitted = spec.height_sharded(shards.grid, shards.orientation).memory_config
        return MemoryConfig(fitted.memory_layout, config.buffer_type, fitted.shard_spec)
    if config.memory_layout is not TensorMemoryLayout.BLOCK_SHARDED:
        return fit_shards(config, spec, source)
    by_rows = shards.orientation is ShardOrientation.ROW_MAJOR
    size = box.grid_size()
    steps = (32, 32) if spec.layout is Layout.TILE else (1, RECOMMENDED_ALIGNMENT_BYTES // element_bytes(spec.dtype))
    down, across = (
        next(n for n in range(most, 0, -1) if n == 1 or (extent % n == 0 and extent // n % step == 0))
        for most, extent, step in zip(
            (size.y, size.x) if by_rows else (size.x, size.y), spec.physical_shape, steps, strict=True
        )
    )
    x, y = (across, down) if by_rows else (down, across)
    start = box.start
    cores = CoreRangeSet([CoreRange(start, CoreCoord(start.x + x - 1, start.y + y - 1))])
    blocks = spec.block_sharded(cores, shards.orientation).memory_config.shard_spec
    return MemoryConfig(config.memory_layout, config.buffer_type, blocks)


def inherit_memory_config(spec: TensorSpec, shape: Sequence[int]) -> MemoryConfig:
    """The source's memory config; interleaved if the source is sharded and the shape changes."""
    config = spec.memory_config
    if config.interleaved or tuple(spec.shape) == tuple(shape):
        return config
    return MemoryConfig(buffer_type=config.buffer_type)
