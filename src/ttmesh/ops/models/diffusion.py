"""Fused pieces of diffusion transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.configs.activations import Activation, UnaryWithParam, apply, as_unary
from ttmesh.ops.lane_functions.lane_broadcast import ranked
from ttmesh.ops.norm.layer_norm import affine, check_parameters, rms_normed

GOLDEN_ACTIVATIONS: dict[str, Callable[[Lanes], Lanes]] = {"SILU": F.silu, "GELU": F.gelu, "RELU": F.relu}


def _golden_norm(
    input_tensor: Lanes,
    epsilon: float = 1e-5,
    weight: Lanes | None = None,
    bias: Lanes | None = None,
    residual_input_tensor: Lanes | None = None,
    *,
    activation: Activation | None = None,
    **_: Any,
) -> Lanes:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    normed = F.rms_norm(x, x.shape[-1:], None if weight is None else weight.flatten(), epsilon)
    normed = normed if bias is None else normed + bias.flatten()
    if activation is None:
        return normed
    named: UnaryWithParam = as_unary(activation)
    return GOLDEN_ACTIVATIONS[named.op_type.name](normed)


@op("ttnn.experimental.dit_rms_norm_unary_fused", golden=_golden_norm, check=check_parameters)
def dit_rms_norm_unary_fused(
    input_tensor: Lanes,
    epsilon: float,
    weight: Lanes | None,
    bias: Lanes | None,
    residual_input_tensor: Lanes | None,
    activation: Activation | None,
    lane_axes: int,
) -> Lanes:
    """RMS norm with an activation behind it."""
    x = input_tensor.float()
    if residual_input_tensor is not None:
        x = x + residual_input_tensor.float()
    normed = affine(rms_normed(x, epsilon), weight, bias, lane_axes)
    return normed if activation is None else apply(normed, [activation])


def _golden_product(
    matmul_input_tensor: Lanes,
    matmul_weight_tensor: Lanes,
    scalar: float,
    addcmul_input_tensor1: Lanes,
    addcmul_input_tensor2: Lanes,
    bias_tensor: Lanes | None = None,
    **_: Any,
) -> Lanes:
    weight = matmul_weight_tensor.reshape(matmul_weight_tensor.shape[-2:])
    product = F.linear(matmul_input_tensor, weight.T, None if bias_tensor is None else bias_tensor.flatten())
    return torch.addcmul(addcmul_input_tensor1, product, addcmul_input_tensor2, value=scalar)


@op("ttnn.experimental.dit_minimal_matmul_addcmul_fused", golden=_golden_product, runtime=("scalar",))
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
    given = [matmul_input_tensor, matmul_weight_tensor, addcmul_input_tensor1, addcmul_input_tensor2]
    x, weight, base, gate = (t.float() for t in ranked(given, lane_axes))
    product = x @ weight
    if bias_tensor is not None:
        rank = product.dim() - lane_axes
        product = product + bias_tensor.float().reshape(*bias_tensor.shape[:lane_axes], *[1] * (rank - 1), -1)
    return base + scalar * product * gate
