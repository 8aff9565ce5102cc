"""Reductions into a memory_config that names a sharding without shards: which choose shards, which refuse."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.catalogue.checks import normalize_dims
from ttmesh.ops.catalogue.spec_rules import fit_shards, refit_shards, shard_over_all_cores
from ttmesh.ops.configs.shard_requirements import check_shards_given
from ttmesh.ops.stages.movement_stages import is_reshape_view
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

BATCH_SUMS = (DataType.BFLOAT16, DataType.BFLOAT8_B)  # formats that TT-NN sums batches of by a program of its own


def check_shards(call: Call) -> None:
    """Refuse a sharding without shards unless the input has some, or dims change places first into shards chosen then."""
    config, spec = call["memory_config"], call.specs[0]
    if config is None or spec.memory_config.shard_spec is not None:
        return
    dims = sorted(normalize_dims(call["dim"], len(spec.shape)))
    if _reads_shards_at_once(call, spec, dims):
        check_shards_given(config)
    elif not _changes_places(call, dims):
        check_shards_given(
            config, f"Sharded memory layout {config.memory_layout} requires either nd_shard_spec or shard_spec"
        )


def _reads_shards_at_once(call: Call, spec: TensorSpec, dims: Sequence[int]) -> bool:
    """Results that are filled, moved as they are or summed over batches."""
    if call.name in ("ttnn.var", "ttnn.std"):
        return prod(spec.shape[dim] for dim in dims) == 1 or (
            len(dims) > 1 and list(dims) == list(range(-len(dims), 0))
        )
    return bool(dims) and dims[0] < -2 and sums_batches(call, spec.dtype)


def sums_batches(call: Call, dtype: DataType) -> bool:
    """Whether batches are summed where they are."""
    return call.name == "ttnn.sum" and dtype in BATCH_SUMS and call["scalar"] == 1.0


def _changes_places(call: Call, dims: Sequence[int]) -> bool:
    """Whether the first program permutes or transposes: dims of var and std, batches of the others, from the last."""
    if call.name in ("ttnn.var", "ttnn.std"):
        return len(dims) > 1 or dims[0] < -2
    return bool(dims) and dims[-1] < -2


def reshape_permuted_shards(call: Call, result: TensorSpec) -> TensorSpec:
    """A var or std over several dims in the shards that a reshape gives it, where the permuted input chose some."""
    config, spec = call["memory_config"], call.specs[0]
    rank = len(spec.shape)
    dims = sorted(normalize_dims(call["dim"], rank))
    held = spec.memory_config.shard_spec
    if call.name not in ("ttnn.var", "ttnn.std") or len(dims) < 2 or held is not None or config is None:
        return result
    if not config.is_sharded() or config.shard_spec is not None or config.nd_shard_spec is not None:
        return result
    others = [spec.shape[dim] for dim in range(-rank, 0) if dim not in dims]
    permuted = TensorSpec([*others, *(spec.shape[dim] for dim in dims)], spec.dtype, Layout.TILE)
    reduced = TensorSpec([*others, *[1] * len(dims)], spec.dtype, Layout.TILE)
    memory = fit_shards(config, reduced, shard_over_all_cores(config, permuted, call))
    if not is_reshape_view(reduced.with_memory_config(memory), result.shape, memory):
        memory = refit_shards(config, TensorSpec(result.shape, spec.dtype, Layout.TILE), memory)
    return result.with_memory_config(memory)
