"""Norms of diffusion transformers around an all-gather of statistics: layer norm, and RMS norm with heads and rotation."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import FLOATS, DataType, Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.attention.attention_heads import to_heads
from ttmesh.ops.attention.rotary_embedding import apply_pair_rotary
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import normalization as goldens
from ttmesh.ops.requirements.operand_rules import wide_destination
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
SUPPORTED = {DataType.BFLOAT16, DataType.BFLOAT8_B, DataType.FLOAT32}


def _pad_to_tiles(*values: Lanes) -> Lanes:
    """Pad each value to a tile's width and concatenate; the values are the tiles' first columns."""
    return torch.cat([F.pad(value, (0, TILE - 1)) for value in values], dim=-1)


def _stats_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], dtype=DataType.BFLOAT16, layout=Layout.TILE)]


def _check_layer_pre(call: Call) -> None:
    x = call.specs[0]
    interleaved = x.memory_config.interleaved
    wrong = "DIT layernorm pre-all-gather does not support sharded inputs."
    require(interleaved, wrong, "interleaved memory", "Move it with ttnn.to_memory_config.")
    require_layout(x, Layout.TILE, "Only tilized inputs supported.")
    wrong = "Input data format not supported."
    require(x.dtype in SUPPORTED, wrong, "bfloat16, bfloat8_b or float32", "Convert it with ttnn.typecast.")
    _check_accumulation(call, x, "pre")


def _check_accumulation(call: Call, x: TensorSpec, stage: str) -> None:
    config = call["compute_kernel_config"]
    wrong = (
        f"dit_layernorm_{stage}_all_gather with Float32 input requires fp32_dest_acc_en=true in the compute kernel config; "
        "otherwise precision is silently lost in the unpacker format conversion."
    )
    require(
        x.dtype is not DataType.FLOAT32 or config is None or config.fp32_dest_acc_en,
        wrong,
        "fp32_dest_acc_en=True",
        "Set fp32_dest_acc_en=True in compute_kernel_config.",
    )


@op(
    "ttnn.experimental.dit_layernorm_pre_allgather",
    golden=goldens.dit_layer_norm_pre,
    check=_check_layer_pre,
    out=_stats_spec,
)
def dit_layernorm_pre_allgather(input_tensor: Lanes) -> Lanes:
    """Mean and variance of each row on this device, each in the first column of a tile."""
    variance, mean = torch.var_mean(input_tensor.float(), -1, correction=0, keepdim=True)
    return _pad_to_tiles(mean, variance)


def _check_layer_post(call: Call) -> None:
    x, stats = call.specs[:2]
    weight, bias = call["weight"], call["bias"]
    interleaved = x.memory_config.interleaved
    wrong = "DIT layernorm post-all-gather does not support sharded inputs."
    require(interleaved, wrong, "interleaved memory", "Move it with ttnn.to_memory_config.")
    require_layout(x, Layout.TILE, f"Input tensor must have TILE layout, got: {x.layout}")
    wrong = f"Input tensor must be BFLOAT16, BFLOAT8_B, or FLOAT32, got: {x.dtype}"
    require(x.dtype in SUPPORTED, wrong, "bfloat16, bfloat8_b or float32", "Convert it with ttnn.typecast.")
    require_layout(stats, Layout.TILE, f"Stats tensor must have TILE layout, got: {stats.layout}")
    wrong = "Stats tensor must be BF16, BF8_B, or FLOAT32."
    require(stats.dtype in SUPPORTED, wrong, "bfloat16, bfloat8_b or float32", "Convert it with ttnn.typecast.")
    width = stats.shape[-1]
    require(
        width % (2 * TILE) == 0,
        f"Stats inner dimension must be multiple of 64 (two tiles), got: {width}",
        "a multiple of 64",
        "Compute the statistics with the pre_all_gather operation.",
    )
    for i, name in ((0, "batch sizes"), (1, "dim1"), (2, "dim2")):
        wrong = f"Stats and input {name} must match, got stats: {stats.shape[i]} vs input: {x.shape[i]}"
        require(
            stats.shape[i] == x.shape[i], wrong, f"{x.shape[i]} in dim {i}", "Compute the statistics from this input."
        )
    if weight is None:
        require(
            bias is None, "Beta must not be provided without gamma.", "weight=", "Pass weight too, or leave bias out."
        )
    for name, term in (("Gamma", weight), ("Beta", bias)):
        if term is None:
            continue
        supported = term.spec.dtype in (DataType.BFLOAT16, DataType.FLOAT32)
        require(supported, f"{name} must be BF16 or FLOAT32.", "bfloat16 or float32", "Convert it with ttnn.typecast.")
        shape = term.spec.shape
        if term.spec.layout is Layout.TILE:
            wrong = f"{name} hidden dimension must match input. Got {shape[-1]} vs {x.shape[-1]}"
            require(shape[-1] == x.shape[-1], wrong, f"{x.shape[-1]} columns", "Reshape it to that many columns.")
            batch = shape[-3] if len(shape) > 2 else 1
            wrong = f"{name} batch dimension (dim[-3]) must be 1 or match input batch ({x.shape[1]}), got: {batch}"
            require(
                batch in (1, x.shape[1]),
                wrong,
                "one row, or one per batch",
                "Expand it with ttnn.repeat, or pass one row.",
            )
        else:
            wrong = f"{name} dimensions must align with input."
            require(shape.volume() == x.shape[-1], wrong, f"{x.shape[-1]} numbers", "Reshape it to that many values.")
    if weight is not None:
        wrong = "Beta must be provided when gamma is provided."
        require(bias is not None, wrong, "bias=", "Pass bias too, or leave both out.")
    _WIDE.check(call)
    _check_accumulation(call, x, "post")


_WIDE = wide_destination(
    "input_tensor",
    "dit_layernorm_post_all_gather with Float32 input requires fp32_dest_acc_en=true in the compute kernel config; "
    "otherwise precision is silently lost in the unpacker format conversion.",
)


def _expand_terms(values: Lanes, width: int, lane_axes: int) -> Lanes:
    """Reshape one row of factors, or one per batch, to broadcast over [batch, 1, rows, width]."""
    mesh = values.shape[:lane_axes]
    rows = values.float().reshape(*mesh, -1, width)
    return rows.reshape(*mesh, 1, -1, 1, width)


@op(
    "ttnn.experimental.dit_layernorm_post_allgather",
    golden=goldens.dit_layer_norm_post,
    check=_check_layer_post,
)
def dit_layernorm_post_allgather(
    input_tensor: Lanes, stats: Lanes, epsilon: float, weight: Lanes | None, bias: Lanes | None, lane_axes: int
) -> Lanes:
    """Layer norm of rows with the gathered means and variances of all devices' shards."""
    moments = torch.unflatten(stats.float(), -1, (-1, 2, TILE))[..., 0]
    means, variances = moments[..., 0], moments[..., 1]
    mean = means.mean(-1, keepdim=True)
    variance = variances.mean(-1, keepdim=True) + (means - mean).square().mean(-1, keepdim=True)
    normed = (input_tensor.float() - mean) * torch.rsqrt(variance + epsilon)
    width = input_tensor.shape[-1]
    scaled = normed if weight is None else normed * _expand_terms(weight, width, lane_axes)
    return scaled if bias is None else scaled + _expand_terms(bias, width, lane_axes)


# -- RMS norm with heads -----------------------------------------------------------------------------------------------


def _check_rms_pre(call: Call) -> None:
    x = call.specs[0]
    require_layout(x, Layout.TILE, "Only tilized inputs supported.")
    wrong = "Input data format not supported."
    require(x.dtype in FLOATS, wrong, "a floating point format", "Convert it with ttnn.typecast.")


@op(
    "ttnn.experimental.wan_fused_rmsnorm_pre_allgather",
    golden=goldens.wan_rms_norm_pre,
    min_rank=1,
    check=_check_rms_pre,
    out=_stats_spec,
)
def wan_fused_rmsnorm_pre_allgather(input_tensor: Lanes) -> Lanes:
    """Sum of squares of each row on this device, in the first column of a tile."""
    return _pad_to_tiles(fpu.total(fpu.multiply(input_tensor.float(), input_tensor.float()), (-1,), keepdim=True))


def _check_rms_post(call: Call) -> None:
    x, stats = call["input_tensor"].spec, call["stats"].spec
    heads, weight = call["num_heads_per_device"], call["weight"]
    rope = {name: call[name] for name in ("transformation_mat", "rope_cos", "rope_sin")}
    require_layout(x, Layout.TILE, f"Input tensor 0 tensor must have TILE layout, got: {x.layout}")
    require_dtype(x, DataType.BFLOAT16, f"Input tensor 0 tensor must be BFLOAT16, got: {x.dtype}")
    width = stats.shape[-1]
    require(
        width % TILE == 0,
        f"Stats inner dimension must be divisible by TILE_WIDTH (32), got: {width}",
        f"a multiple of {TILE}",
        "Compute the statistics with the pre_all_gather operation.",
    )
    wrong = "Stats and input must have same number of dimensions"
    require(len(stats.shape) == len(x.shape), wrong, "equal ranks", "Reshape one with ttnn.reshape.")
    for i in range(len(x.shape) - 1):
        wrong = f"Stats and input dim{i} must match, got stats: {stats.shape[i]} vs input: {x.shape[i]}"
        require(
            stats.shape[i] == x.shape[i], wrong, f"{x.shape[i]} in dim {i}", "Compute the statistics from this input."
        )
    wrong = f"Number of heads must be greater than 0, got: {heads}"
    require(heads > 0, wrong, "a number of heads", "Pass num_heads of 1 or more.")
    wrong = f"Input last dimension must be divisible by number of heads, got hidden_dim: {x.shape[-1]} vs num_heads: {heads}"
    require(x.shape[-1] % heads == 0, wrong, f"a multiple of {heads}", "Choose num_heads that divides the last dim.")
    require(len(x.shape) == 4, f"Input must have rank 4, got: {len(x.shape)}", "rank 4", "Reshape it to four dims.")
    wrong = f"Input dim 1 must be 1, got: {x.shape[1]}"
    require(x.shape[1] == 1, wrong, "[1, 1, rows, columns]", "Reshape it to [1, 1, rows, columns].")
    wrong = f"Expecting input batch dimension to be 1, got: {x.shape[0]}"
    require(x.shape[0] == 1, wrong, "[1, 1, rows, columns]", "Reshape it to [1, 1, rows, columns].")
    if weight is not None:
        shape = weight.spec.shape
        wrong = f"Weight tensor must have 2 dimensions, got: {len(shape)}"
        require(len(shape) == 2, wrong, "[1, columns]", "Reshape it to [1, columns].")
        wrong = f"Weight tensor must have same last dimension as input, got: {shape[-1]} vs {x.shape[-1]}"
        require(shape[-1] == x.shape[-1], wrong, f"{x.shape[-1]} columns", "Reshape it to that many columns.")
    if rope["transformation_mat"] is not None:
        wrong = "Rope cos tensor is required when ROPE fusion is enabled"
        require(rope["rope_cos"] is not None, wrong, "rope_cos=", "Pass rope_cos.")
        wrong = "Rope sin tensor is required when ROPE fusion is enabled"
        require(rope["rope_sin"] is not None, wrong, "rope_sin=", "Pass rope_sin.")
    elif rope["rope_cos"] is not None or rope["rope_sin"] is not None:
        raise ShapeError(
            "rope_cos and rope_sin have no effect without transformation_mat",
            expected="all three or none",
            fix="Pass transformation_mat too.",
        )


@op("ttnn.experimental.wan_fused_rmsnorm_post_allgather", golden=goldens.wan_rms_norm_post, check=_check_rms_post)
def wan_fused_rmsnorm_post_allgather(
    input_tensor: Lanes,
    stats: Lanes,
    epsilon: float,
    num_heads_per_device: int,
    weight: Lanes | None,
    transformation_mat: Lanes | None,
    rope_cos: Lanes | None,
    rope_sin: Lanes | None,
    lane_axes: int,
) -> Lanes:
    """RMS norm of rows with the gathered sums of all devices, scaled, split into heads and rotated."""
    width = input_tensor.shape[-1]
    sums = torch.unflatten(stats.float(), -1, (-1, TILE))[..., 0]
    normed = input_tensor.float() * torch.rsqrt(sums.mean(-1, keepdim=True) / width + epsilon)
    scaled = normed if weight is None else normed * _expand_terms(weight, width, lane_axes)
    heads = to_heads(scaled.squeeze(-3), num_heads_per_device)
    if transformation_mat is None or rope_cos is None or rope_sin is None:
        return heads
    return apply_pair_rotary(heads, rope_cos.float(), rope_sin.float(), transformation_mat.float())
