"""Output specs of repeat and expand: where the shards of a repeated tensor are."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import Layout, TensorMemoryLayout
from ttmesh.ops.catalogue.spec_rules import Inferred, fit_shards, make_output_spec, shard_over_all_cores
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def repeat_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """A repeated tensor is sharded again over the whole grid; width shards keep their cores."""
    shape, spec = inferred[0][0], call.specs[0]
    config: MemoryConfig = call["memory_config"] or spec.memory_config
    grown = tuple(shape) != (1,) * (len(shape) - len(spec.shape)) + tuple(spec.shape)
    if not config.is_sharded() or call["memory_config"] is not None or not grown or any(call.outputs):
        return [make_output_spec(call, shape)]
    shards = config.shard_spec
    if shards is None:
        return [make_output_spec(call, shape)]
    plain = TensorSpec(shape, spec.dtype, spec.layout)
    rows = prod(shape[:-1]) // max(prod(spec.shape[:-1]), 1)
    by_height = config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED
    if spec.layout is Layout.ROW_MAJOR and not by_height and shards.shape[1] == spec.shape[-1] == shape[-1]:
        taller = ShardSpec(shards.grid, (shards.shape[0] * rows, shards.shape[1]), shards.orientation)
        return [plain.with_memory_config(MemoryConfig(config.memory_layout, config.buffer_type, taller))]
    if config.memory_layout is TensorMemoryLayout.WIDTH_SHARDED:
        return [plain.with_memory_config(fit_shards(config, plain, config))]
    return [plain.with_memory_config(shard_over_all_cores(config, plain, call))]
