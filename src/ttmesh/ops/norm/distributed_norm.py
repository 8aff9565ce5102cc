"""Norms of rows that are sharded over devices: statistics before the all-gather, the norm after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import normalization as goldens
from ttmesh.ops.norm.distributed_norm_rules import check_after_gather
from ttmesh.ops.norm.layer_norm import apply_affine, average_on_cores, count_shards
from ttmesh.ops.norm.layer_norm_rules import TILE
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def _check_residual(call: Call) -> None:
    x, residual = call["input_tensor"].spec, call["residual_input_tensor"]
    if residual is not None and tuple(residual.spec.shape) != tuple(x.shape):
        raise ShapeError(
            f"Input and residual logical and padded shapes must match, got input: {x.shape} vs residual: "
            f"{residual.spec.shape}",
            expected="equal shapes",
            fix="Reshape the residual.",
        )
    sharded_config = hasattr(call["program_config"], "block_w")
    wrong = "std::get: wrong index for variant"
    fix = "Pass ttnn.LayerNormShardedMultiCoreProgramConfig, or unshard the input."
    require(x.memory_config.interleaved or sharded_config, wrong, "a program config for shards", fix)
    if _uses_welford(call["program_config"], call.specs):
        wrong = "RMSNorm with Welford's algorithm not supported in pre_all_gather"
        require(call["both"], wrong, "use_welford=False", "Leave use_welford out of the program config.")
        wrong = "Welford algorithm requires recip_tensor. Use ttnn.create_layer_norm_reciprocals() to create it."
        require(call["recip_tensor"] is not None, wrong, "recip_tensor=", "Pass its result as recip_tensor.")


def _uses_welford(program_config: Any, specs: Sequence[TensorSpec]) -> bool:
    """Whether the statistics are each device's mean and variance; sharded inputs have a kernel without that choice."""
    return not _is_sharded(specs) and bool(getattr(program_config, "use_welford", False))


def _is_sharded(specs: Sequence[TensorSpec]) -> bool:
    return not specs[0].memory_config.interleaved


def _stats_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    shape = inferred[0][0]
    if not _is_sharded(call.specs):
        dtype = call["dtype"] or DataType.BFLOAT16
        return [make_output_spec(call, shape, dtype=dtype, layout=Layout.TILE)]
    config = call.specs[0].memory_config
    assert config.shard_spec is not None, "norms take two-dimensional shards"
    first = config.shard_spec.grid.bounding_box().start
    shard = ShardSpec(CoreRangeSet([CoreRange(first, first)]), (config.shard_spec.shape[0], shape[-1]))
    memory_config = MemoryConfig(config.memory_layout, config.buffer_type, shard)  # TT-NN stores them on the first core
    return [TensorSpec(shape, DataType.BFLOAT16, Layout.TILE, memory_config=memory_config)]


def _output_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], dtype=call["dtype"] or call.specs[0].dtype, layout=Layout.TILE)]


def _pad_to_tile(values: Lanes) -> Lanes:
    """Pad values to a tile's width; they are its first column."""
    return F.pad(values, (0, TILE - 1))


def _compute_stats(x: Lanes, residual: Lanes | None, *, shards: int | None, both: bool, welford: bool) -> Lanes:
    """Sums of squares and of values (for sharded inputs means, in the opposite order), each in a tile's first column.

    Welford's method gives mean and variance.
    """
    widened = x.float() if residual is None else fpu.keep(fpu.add(x.float(), residual.float()))
    if welford:
        variance, mean = torch.var_mean(widened, -1, correction=0, keepdim=True)
        return torch.cat([_pad_to_tile(mean), _pad_to_tile(variance)], dim=-1)
    squares = fpu.multiply(widened, widened)
    if shards is None:
        columns = [fpu.total(values, (-1,), keepdim=True) for values in (squares, widened)]
    else:
        columns = [average_on_cores(values, shards) for values in (widened, squares)]
    kept = columns if both else columns[:1] if shards is None else columns[1:]
    return torch.cat([_pad_to_tile(column) for column in kept], dim=-1)


def _read_moments(stats: Lanes, width: int, *, means: bool, both: bool) -> tuple[Lanes, Lanes]:
    """Mean square and mean over all devices, from the gathered statistics."""
    tiles = torch.unflatten(stats.float(), -1, (-1, 2 if both else 1, TILE))[..., 0].mean(-2)
    tiles = tiles if means else tiles / width
    first, second = tiles[..., :1], tiles[..., -1:]
    return (second, first) if means else (first, second)


def _join_moments(stats: Lanes) -> tuple[Lanes, Lanes]:
    """Variance and mean over all devices, from each one's mean and variance."""
    tiles = torch.unflatten(stats.float(), -1, (-1, 2, TILE))[..., 0]
    means, variances = tiles[..., 0], tiles[..., 1]
    mean = means.mean(-1, keepdim=True)
    return (variances + (means - mean).square()).mean(-1, keepdim=True), mean


def _row_stats(
    input_tensor: Lanes,
    residual_input_tensor: Lanes | None,
    both: bool,
    program_config: Any,
    specs: Sequence[TensorSpec],
) -> Lanes:
    shards = count_shards(specs[0]) if _is_sharded(specs) else None
    welford = _uses_welford(program_config, specs)
    return _compute_stats(input_tensor, residual_input_tensor, shards=shards, both=both, welford=welford)


_ROW_STATS = {
    both: device_operation(name, out=_stats_spec, check=_check_residual, min_rank=4)(_row_stats)
    for both, name in ((True, "ttnn.layer_norm_pre_all_gather"), (False, "ttnn.rms_norm_pre_all_gather"))
}


@device_operation(
    "ttnn.layer_norm_pre_all_gather residual", out=like_written, programs=no_programs, writes="input_tensor"
)
def _add_residual(input_tensor: Lanes, residual_input_tensor: Lanes) -> Lanes:
    return input_tensor.float() + residual_input_tensor.float()


def _prepare_gather(x: Tensor, residual: Tensor | None, *, both: bool, **options: Any) -> Tensor:
    """Compute statistics; for sharded inputs the kernel also adds the residual to the input in place."""
    stats: Tensor = _ROW_STATS[both](input_tensor=x, residual_input_tensor=residual, both=both, **options)
    if residual is not None and not x.memory_config().interleaved:
        _add_residual(input_tensor=x, residual_input_tensor=residual)
    return stats


@composite("ttnn.layer_norm_pre_all_gather", golden=goldens.layer_norm_pre)
def layer_norm_pre_all_gather(
    input_tensor: Tensor,
    residual_input_tensor: Tensor | None,
    dtype: DataType | None,
    memory_config: MemoryConfig | None,
    program_config: Any,
    compute_kernel_config: Any,
    recip_tensor: Tensor | None,
) -> Tensor:
    """Sum of squares and sum of each row on this device; with use_welford mean and variance."""
    return _prepare_gather(
        input_tensor,
        residual_input_tensor,
        both=True,
        dtype=dtype,
        memory_config=memory_config,
        program_config=program_config,
        compute_kernel_config=compute_kernel_config,
        recip_tensor=recip_tensor,
    )


@composite("ttnn.rms_norm_pre_all_gather", golden=goldens.rms_norm_pre)
def rms_norm_pre_all_gather(
    input_tensor: Tensor,
    residual_input_tensor: Tensor | None,
    dtype: DataType | None,
    memory_config: MemoryConfig | None,
    program_config: Any,
    compute_kernel_config: Any,
) -> Tensor:
    """Sum of squares of each row on this device."""
    return _prepare_gather(
        input_tensor,
        residual_input_tensor,
        both=False,
        dtype=dtype,
        memory_config=memory_config,
        program_config=program_config,
        compute_kernel_config=compute_kernel_config,
    )


@op("ttnn.layer_norm_post_all_gather", golden=goldens.layer_norm_post, out=_output_spec, check=check_after_gather)
def layer_norm_post_all_gather(
    input_tensor: Lanes,
    stats: Lanes,
    epsilon: float,
    weight: Lanes | None,
    bias: Lanes | None,
    program_config: Any,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Layer norm of rows whose statistics of all devices are given."""
    if _uses_welford(program_config, specs):
        variance, mean = _join_moments(stats)
    else:
        square, mean = _read_moments(stats, input_tensor.shape[-1], means=_is_sharded(specs), both=True)
        variance = square - mean.square()
    normed = (input_tensor.float() - mean) * torch.rsqrt(variance + epsilon)
    return apply_affine(normed, weight, bias, lane_axes)


@op("ttnn.rms_norm_post_all_gather", golden=goldens.rms_norm_post, out=_output_spec, check=check_after_gather)
def rms_norm_post_all_gather(
    input_tensor: Lanes,
    stats: Lanes,
    epsilon: float,
    weight: Lanes | None,
    bias: Lanes | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """RMS norm of rows whose statistics of all devices are given."""
    square, _ = _read_moments(stats, input_tensor.shape[-1], means=_is_sharded(specs), both=False)
    return apply_affine(input_tensor.float() * torch.rsqrt(square + epsilon), weight, bias, lane_axes)
