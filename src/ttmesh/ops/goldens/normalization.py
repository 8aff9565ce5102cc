"""Normalisation over columns, groups and batches, and the statistics that devices exchange for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 32


def batch_norm(
    input: Tensor,
    *,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    training: bool = False,
    eps: float = 1e-5,
    momentum: float = 0.1,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    old, scale = (running_mean, running_var), (weight, bias)
    mean, var = (None if p is None else p.reshape(-1).clone() for p in old)
    gamma, beta = (None if p is None else p.reshape(-1) for p in scale)
    return F.batch_norm(input, mean, var, gamma, beta, training, momentum, eps)


def dit_layer_norm_pre(input_tensor: Tensor, recip_tensor: Tensor | None = None, **_: Any) -> Tensor:
    stats = torch.zeros(*input_tensor.shape[:-1], 2 * TILE)
    stats[..., 0], stats[..., TILE] = input_tensor.mean(-1), input_tensor.var(-1, correction=0)
    return stats


def dit_layer_norm_post(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    means, variances = stats[..., :: 2 * TILE], stats[..., TILE :: 2 * TILE]
    mean = means.mean(-1, keepdim=True)
    variance = (variances + (means - mean) ** 2).mean(-1, keepdim=True)
    normed = (input_tensor - mean) / torch.sqrt(variance + epsilon)
    width = input_tensor.shape[-1]
    scaled = normed if weight is None else normed * weight.reshape(1, -1, 1, width)
    return scaled if bias is None else scaled + bias.reshape(1, -1, 1, width)


def wan_rms_norm_pre(input_tensor: Tensor, **_: Any) -> Tensor:
    stats = torch.zeros(*input_tensor.shape[:-1], TILE)
    stats[..., 0] = torch.linalg.vector_norm(input_tensor, dim=-1) ** 2
    return stats


def wan_rms_norm_post(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-5,
    num_heads_per_device: int = 1,
    weight: Tensor | None = None,
    transformation_mat: Tensor | None = None,
    rope_cos: Tensor | None = None,
    rope_sin: Tensor | None = None,
    **_: Any,
) -> Tensor:
    count = stats.shape[-1] // TILE * input_tensor.shape[-1]
    root = torch.sqrt(stats[..., ::TILE].sum(-1, keepdim=True) / count + epsilon)
    normed = input_tensor / root * (1 if weight is None else weight)
    heads = torch.stack(normed[:, 0].chunk(num_heads_per_device, dim=-1), dim=1)
    if transformation_mat is None or rope_cos is None or rope_sin is None:
        return heads
    swapped = torch.stack([-heads[..., 1::2], heads[..., ::2]], -1).flatten(-2)
    return heads * rope_cos + swapped * rope_sin


def rms_norm_pre(input_tensor: Tensor, *, residual_input_tensor: Tensor | None = None, **_: Any) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    stats = torch.zeros(*x.shape[:-1], TILE)
    stats[..., 0] = torch.linalg.vector_norm(x, dim=-1) ** 2
    return stats


def layer_norm_pre(input_tensor: Tensor, *, residual_input_tensor: Tensor | None = None, **_: Any) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    stats = torch.zeros(*x.shape[:-1], 2 * TILE)
    stats[..., 0], stats[..., TILE] = torch.linalg.vector_norm(x, dim=-1) ** 2, x.sum(-1)
    return stats


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    weighted = x if weight is None else torch.einsum("...w,w->...w", x, weight.flatten())
    return weighted if bias is None else weighted + bias.flatten()


def layer_norm_post(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    count = stats.shape[-1] // (2 * TILE) * input_tensor.shape[-1]  # columns of all devices
    square, mean = stats[..., :: 2 * TILE].sum(-1) / count, stats[..., TILE :: 2 * TILE].sum(-1) / count
    normed = (input_tensor - mean[..., None]) / torch.sqrt(square - mean**2 + epsilon)[..., None]
    return _affine(normed, weight, bias)


def rms_norm_post(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    count = stats.shape[-1] // TILE * input_tensor.shape[-1]
    root = torch.sqrt(stats[..., ::TILE].sum(-1) / count + epsilon)
    return _affine(input_tensor / root[..., None], weight, bias)


def group_norm(
    input_tensor: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    x = input_tensor.squeeze(1).transpose(-1, -2)
    scale, shift = (None if p is None else p.flatten()[: x.shape[1]] for p in (weight, bias))
    return F.group_norm(x, num_groups, scale, shift, epsilon).transpose(-1, -2).unsqueeze(1)


def layer_norm(
    input_tensor: Tensor,
    *,
    epsilon: float = 1e-12,
    residual_input_tensor: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    **_: object,
) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    scale, shift = (None if p is None else p.reshape(-1)[: x.shape[-1]].to(x.dtype) for p in (weight, bias))
    return F.layer_norm(x, (x.shape[-1],), scale, shift, epsilon)


def rms_norm(
    input_tensor: Tensor,
    weight: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    residual_input_tensor: Tensor | None = None,
    bias: Tensor | None = None,
    **_: object,
) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    normed = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    if weight is not None:
        row = weight.reshape(-1)[: x.shape[-1]]
        is_half = row.dtype in (torch.float16, torch.bfloat16)  # TT-NN's golden multiplies in the weight's type
        normed = (normed.to(row.dtype) if is_half else normed) * row
    return normed if bias is None else normed + bias.reshape(-1)[: x.shape[-1]]
