"""Moreh's reductions, matmuls, norms and softmax with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttmesh.ops.goldens.autodiff import compute_gradients

Dims = int | Sequence[int] | None


def full(shape: Sequence[int], fill_value: float, *_: Any, **__: Any) -> Tensor:
    return torch.full(tuple(shape), fill_value)


def full_like(input: Tensor, fill_value: float, **_: Any) -> Tensor:
    return torch.full(input.shape, fill_value, dtype=input.dtype)


def arange(start: int, end: int, step: int, *_: Any, **__: Any) -> Tensor:
    return torch.arange(start, end, step)[None]


def group_norm(
    input: Tensor,
    num_groups: int,
    eps: float = 1e-5,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    are_required_outputs: Sequence[bool] = (True, False, False),
    **_: Any,
) -> list[Tensor | None]:
    scale, shift = (None if p is None else p.flatten() for p in (gamma, beta))
    out = F.group_norm(input, num_groups, scale, shift, eps)
    flat = input.reshape(input.shape[0], num_groups, -1)
    statistics = flat.mean(-1)[None, None], torch.rsqrt(flat.var(-1, unbiased=False) + eps)[None, None]
    return [
        value if is_required else None
        for value, is_required in zip((out, *statistics), are_required_outputs, strict=True)
    ]


def group_norm_backward(
    output_grad: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    *,
    are_required_outputs: Sequence[bool] = (True, False, False),
    gamma: Tensor | None = None,
    **_: Any,
) -> list[Tensor | None]:
    n, c, h, w = input.shape
    scale = None if gamma is None else gamma.flatten()
    statistics = (value.reshape(n, num_groups) for value in (mean, rstd))
    grads = torch.ops.aten.native_group_norm_backward(
        output_grad, input, *statistics, scale, n, c, h * w, num_groups, [True, True, True]
    )
    shaped = (grads[0], *(None if value is None else value.reshape(1, 1, 1, c) for value in grads[1:]))
    return [value if is_required else None for value, is_required in zip(shaped, are_required_outputs, strict=True)]


def layer_norm(
    input: Tensor,
    normalized_dims: int,
    eps: float = 1e-5,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    **_: Any,
) -> list[Tensor]:
    return [F.layer_norm(input, input.shape[input.dim() - normalized_dims :], gamma, beta, eps)]


def layer_norm_backward(
    output_grad: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    normalized_dims: int,
    *,
    gamma: Tensor | None = None,
    **_: Any,
) -> list[Tensor]:
    first = input.dim() - normalized_dims
    statistics = (value.reshape(*input.shape[:first], *[1] * normalized_dims) for value in (mean, rstd))
    scale = None if gamma is None else gamma.reshape(input.shape[first:])
    grads = torch.ops.aten.native_layer_norm_backward(
        output_grad, input, input.shape[first:], *statistics, scale, None, [True, False, False]
    )
    return [grads[0]]


def matmul(
    input: Tensor,
    other: Tensor,
    transpose_input: bool = False,
    transpose_other: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    result = torch.matmul(input.mT if transpose_input else input, other.mT if transpose_other else other)
    return result if bias is None else result + bias


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result = F.linear(input, weight)
    return result if bias is None else result + bias


def matmul_backward(output_grad: Tensor, a: Tensor, b: Tensor, **_: Any) -> list[Tensor]:
    return compute_gradients(torch.matmul, output_grad, a, b)


def linear_backward(
    output_grad: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any
) -> list[Tensor]:
    operands = [input, weight] if bias is None else [input, weight, bias]
    return compute_gradients(linear, output_grad, *operands)


def getitem(input: Tensor, index_tensors: Sequence[Tensor], index_dims: Sequence[int]) -> Tensor:
    indices: list[Any] = [slice(None)] * input.dim()
    for dim, index in zip(index_dims, index_tensors, strict=True):
        indices[dim] = index.flatten().long()
    return input[tuple(indices)]


def fold(
    input: Tensor,
    output_size: tuple[int, int],
    kernel_size: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    stride: tuple[int, int] = (1, 1),
) -> Tensor:
    return F.fold(input, output_size, kernel_size, dilation, padding, stride)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    return torch.einsum("...ik,...kj->...ij", input, mat2)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.flatten(), b.flatten()).reshape([1] * a.dim())


def dot_backward(output_grad: Tensor, input: Tensor, other: Tensor, **_: Any) -> list[Tensor]:
    return compute_gradients(dot, output_grad, input, other)


def _dims(dim: Dims, values: Tensor) -> tuple[int, ...]:
    if isinstance(dim, int):
        return (dim,)
    return tuple(dim or range(values.dim()))


def sum_backward(output_grad: Tensor, input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    total = torch.sum(input, _dims(dim, input), keepdim)
    return compute_gradients(lambda x: torch.sum(x, _dims(dim, x), keepdim), output_grad.reshape(total.shape), input)[0]


def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, divisor: int | None = None) -> Tensor:
    dims = _dims(dim, input)
    averaged = torch.mean(input, dims, True) if divisor is None else torch.sum(input, dims, True) / divisor
    return _drop_dims(averaged, dims, keepdim)


def mean_backward(
    output_grad: Tensor, dim: Dims = None, keepdim: bool = False, input_grad_shape: Sequence[int] | None = None
) -> Tensor:
    zeros = torch.zeros(tuple(output_grad.shape if input_grad_shape is None else input_grad_shape))
    reduced = mean(zeros, dim, keepdim)
    return compute_gradients(lambda x: mean(x, dim, keepdim), output_grad.reshape(reduced.shape), zeros)[0]


def norm(input: Tensor, p: float, dim: Dims = None, keepdim: bool = False) -> Tensor:
    dims = _dims(dim, input)
    return _drop_dims(torch.linalg.vector_norm(input, p, dims, True), dims, keepdim)


def norm_backward(
    input: Tensor,
    output: Tensor,
    output_grad: Tensor,
    p: float,
    dim: Dims = None,
    keepdim: bool = False,
) -> Tensor:
    """torch's gradient of the sum of powers, divided by a power of the given norm."""
    norm_, grad = (value.reshape(norm(input, p, dim, keepdim).shape) for value in (output, output_grad))
    if p == 0 or abs(p) == float("inf"):
        return compute_gradients(lambda x: norm(x, p, dim, keepdim), grad, input)[0]
    dims = _dims(dim, input)
    return compute_gradients(lambda x: (x.abs() ** p).sum(dims, keepdim) / p, grad / norm_ ** (p - 1), input)[0]


def sum_(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    dims = _dims(dim, input)
    return _drop_dims(torch.sum(input, dims, True), dims, keepdim)


def _drop_dims(values: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Remove the reduced dims except height and width."""
    outer = [n for i, n in enumerate(values.shape[:-2]) if keepdim or i not in dims]
    return values.reshape(*outer, *values.shape[-2:])


def cumsum(input: Tensor, dim: int) -> Tensor:
    return torch.cumsum(input.float(), dim)


def cumsum_backward(grad: Tensor, dim: int) -> Tensor:
    return compute_gradients(lambda x: torch.cumsum(x, dim), grad, torch.zeros_like(grad))[0]


def abs_pow(input: Tensor, p: float) -> Tensor:
    return input.abs() ** p


def clip_grad_norm(inputs: Sequence[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    return norm(torch.cat([tensor.flatten() for tensor in inputs]), norm_type, 0, True).reshape(1, 1)


def softmax(input_tensor: Tensor, dim: int, **_: Any) -> Tensor:
    result: Tensor = nn.Softmax(dim)(input_tensor)
    return result


def softmin(input_tensor: Tensor, dim: int, **_: Any) -> Tensor:
    result: Tensor = nn.Softmin(dim)(input_tensor)
    return result


def logsoftmax(input_tensor: Tensor, dim: int, **_: Any) -> Tensor:
    result: Tensor = nn.LogSoftmax(dim)(input_tensor)
    return result


def _make_backward(jacobian: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The gradient of the input from a result [.., i] and the matrix of its derivatives, [.., i, j]."""

    def golden(output_tensor: Tensor, output_grad_tensor: Tensor, dim: int, **_: Any) -> Tensor:
        y, dy = (value.movedim(dim, -1) for value in (output_tensor, output_grad_tensor))
        return torch.einsum("...i,...ij->...j", dy, jacobian(y)).movedim(-1, dim)

    return golden


def _softmax_jacobian(y: Tensor) -> Tensor:
    return torch.diag_embed(y) - y[..., :, None] * y[..., None, :]


softmax_backward = _make_backward(_softmax_jacobian)
softmin_backward = _make_backward(lambda y: -_softmax_jacobian(y))
logsoftmax_backward = _make_backward(lambda y: torch.eye(y.shape[-1]) - y.exp()[..., None, :])
