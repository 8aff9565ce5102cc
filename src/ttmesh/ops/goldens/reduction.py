"""Reductions, scans, ranking and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Dims = int | Sequence[int] | None

TILE = 32


def argmax(input_tensor: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    if dim is None:
        return torch.argmax(input_tensor).reshape([1] * input_tensor.dim() if keepdim else [])
    return torch.argmax(input_tensor, dim, keepdim)


def topk(
    input_tensor: Tensor, k: int = 32, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, indices = torch.topk(input_tensor, k, dim, largest)
    return values, indices


def sort(input_tensor: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return torch.sort(input_tensor, stable=True, dim=dim, descending=descending)


def cumsum(input: Tensor, dim: int, reverse_order: bool = False) -> Tensor:
    total = torch.cumsum(input.double() if input.is_floating_point() else input.long(), dim)
    if reverse_order:  # the sum of this element and all later ones
        total = total.select(dim, -1).unsqueeze(dim) - total + input
    return total.to(input.dtype) if input.is_floating_point() else total


def cumprod(input_tensor: Tensor, dim: int, reverse_order: bool = False) -> Tensor:
    if not reverse_order:
        return torch.cumprod(input_tensor, dim)
    return torch.flip(torch.cumprod(torch.flip(input_tensor, (dim,)), dim), (dim,))


def ema(input_tensor: Tensor, alpha: float) -> Tensor:
    """By a matrix of weights: x[s] has the weight (1 - alpha) alpha^(t - s) in y[t]."""
    steps = torch.arange(input_tensor.shape[-1], dtype=torch.float64)
    weights = torch.tril((1 - alpha) * alpha ** (steps[:, None] - steps).clamp(min=0))
    return (input_tensor.double() @ weights.T).to(input_tensor.dtype)


def intimg(input_tensor: Tensor) -> Tensor:
    return torch.cumsum(torch.cumsum(input_tensor, 1), 2)


def softmax(input_tensor: Tensor, dim: int | None = -1, **_: Any) -> Tensor:
    return torch.softmax(input_tensor, -1 if dim is None else dim)


def scale_mask_softmax(
    input_tensor: Tensor, scale: float | None = None, mask: Tensor | None = None, **_: Any
) -> Tensor:
    x = input_tensor.float() if scale is None else input_tensor.float() * scale
    return torch.softmax(x if mask is None else x + mask.reshape(*mask.shape[:-2], -1, x.shape[-1]), -1)


def attention_softmax(
    tensor: Tensor, *, head_size: int | None = None, attention_mask: Tensor | None = None, **_: Any
) -> Tensor:
    x = tensor.float() if head_size is None else tensor.float() / math.sqrt(head_size)
    return torch.softmax(x if attention_mask is None else x + attention_mask, -1)


def _reduce(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def golden(input_tensor: Tensor, dim: Dims = None, keepdim: bool = False, scalar: float = 1.0) -> Tensor:
        dims = tuple(range(input_tensor.dim())) if dim is None else dim
        return reduce(input_tensor, dims, keepdim=keepdim) * scalar

    return golden


def _extreme(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def golden(input_tensor: Tensor, dim: Dims = None, keepdim: bool = False, scalar: float = 1.0) -> Tensor:
        dims = tuple(range(input_tensor.dim())) if dim is None else dim
        return reduce(input_tensor if scalar == 1 else input_tensor * scalar, dims, keepdim=keepdim)

    return golden


def _variance(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def golden(input_tensor: Tensor, dim: Dims = None, keepdim: bool = False, correction: bool = True) -> Tensor:
        dims = tuple(range(input_tensor.dim())) if dim is None else dim
        return reduce(input_tensor, dims, correction=int(correction), keepdim=keepdim)

    return golden


def prod(input_tensor: Tensor, dim: int | None = None, keepdim: bool = False, dims: Sequence[int] = ()) -> Tensor:
    if dims:
        for position in dims:
            input_tensor = input_tensor.prod(position, keepdim=True)
        return input_tensor
    if dim is not None:
        return input_tensor.prod(dim, keepdim=keepdim)
    return input_tensor.prod().reshape([1] * input_tensor.dim() if keepdim else [])


sum_, mean = _reduce(torch.sum), _reduce(torch.mean)
max_, min_ = _extreme(torch.amax), _extreme(torch.amin)
var, std = _variance(torch.var), _variance(torch.std)


def fast_reduce_nc(input: Tensor, dims: Sequence[int] = ()) -> Tensor:
    rows, columns = (-n % TILE for n in input.shape[-2:])
    return torch.nn.functional.pad(input, (0, columns, 0, rows)).sum(tuple(dims), keepdim=True)


def fast_reduce_nc_split(input: Tensor, *, dim: int, split_output_width: int) -> tuple[Tensor, ...]:
    total = input.sum(dim, keepdim=True)
    return torch.split(total, [split_output_width, total.shape[-1] - split_output_width], dim=-1)


def fast_reduce_experts(input_tensor: Tensor, dim: int, *, split_size: int, **_: Any) -> list[Tensor]:
    """The sum over a dim that stays with length 1, split along the columns."""
    total = torch.zeros_like(input_tensor.select(dim, 0))
    for term in input_tensor.unbind(dim):
        total = total + term
    return list(torch.split(total.unsqueeze(dim), split_size, dim=-1))


def var_hw(x: Tensor) -> Tensor:
    return torch.square(x - x.mean((-2, -1), True)).mean((-2, -1), True)


def std_hw(x: Tensor) -> Tensor:
    return torch.std(x, (-2, -1), unbiased=False, keepdim=True)


def normalize_hw(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-2:], eps=0.0)


def normalize_global(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape, eps=0.0)


def fast_reduce_experts_fused(
    input_tensor: Tensor, indices: Tensor, mapping: Tensor, reduce_dim: int, *, split_size: int, **_: Any
) -> list[Tensor]:
    """Without scores: the sum alone."""
    return fast_reduce_experts(input_tensor, reduce_dim, split_size=split_size)
