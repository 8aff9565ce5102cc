"""Fused operations of diffusion transformers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.configs.activations import Activation, apply
from ttmesh.ops.configs.block_buffers import check_buffers
from ttmesh.ops.goldens import model_blocks as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.norm.layer_norm import apply_affine, normalize_rms
from ttmesh.ops.norm.layer_norm_rules import FORMATS, check_parameters
from ttmesh.tensor.calls.operation import Call

GOLDEN_ACTIVATIONS: dict[str, Callable[[Lanes], Lanes]] = {"SILU": F.silu, "GELU": F.gelu, "RELU": F.relu}


def _check_norm(call: Call) -> None:
    x = call["input_tensor"].spec
    require_dtype(x, FORMATS, f"Input tensor must be FLOAT32, BFLOAT16, or BFLOAT8_B, got: DataType::{x.dtype.name}")
    check_parameters(call)
    memory = call["memory_config"]
    kept = not call.specs[0].memory_config.is_sharded() or memory is None or memory.is_sharded()
    require(kept, "Sharded inputs require sharded outputs.", "a sharded memory_config", "Leave memory_config out.")


@op(
    "ttnn.experimental.dit_rms_norm_unary_fused",
    golden=goldens.rms_norm_with_activation,
    check=_check_norm,
    min_rank=1,
)
def dit_rms_norm_unary_fused(
    input_tensor: Lanes,
    epsilon: float,
    weight: Lanes | None,
    bias: Lanes | None,
    residual_input_tensor: Lanes | None,
    activation: Activation | None,
    lane_axes: int,
) -> Lanes:
    """RMS norm followed by an activation."""
    x = input_tensor.float()
    if residual_input_tensor is not None:
        x = x + residual_input_tensor.float()
    normed = apply_affine(normalize_rms(x, epsilon), weight, bias, lane_axes)
    return normed if activation is None else apply(normed, [activation])


def _check_fused(call: Call) -> None:
    check_buffers(call, *call.specs[:2], rows=1 if call["bias_tensor"] is None else 2, blocks=1)


@op(
    "ttnn.experimental.dit_minimal_matmul_addcmul_fused",
    golden=goldens.matmul_addcmul,
    check=_check_fused,
    runtime=("scalar",),
)
def dit_minimal_matmul_addcmul_fused(
    matmul_input_tensor: Lanes,
    matmul_weight_tensor: Lanes,
    scalar: float,
    addcmul_input_tensor1: Lanes,
    addcmul_input_tensor2: Lanes,
    bias_tensor: Lanes | None,
    lane_axes: int,
) -> Lanes:
    """base + scalar · (x @ w + bias) · gate."""
    operands = [matmul_input_tensor, matmul_weight_tensor, addcmul_input_tensor1, addcmul_input_tensor2]
    x, weight, base, gate = (t.float() for t in equalize_ranks(operands, lane_axes))
    result = fpu.matmul(x, weight)
    if bias_tensor is not None:
        rank = result.dim() - lane_axes
        result = result + bias_tensor.float().reshape(*bias_tensor.shape[:lane_axes], *[1] * (rank - 1), -1)
    return base + scalar * result * gate
