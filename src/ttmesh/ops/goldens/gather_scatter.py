"""Values by index: gather, scatter, embedding, nonzero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

TRUE = 2**32 - 1  # as uint32


def embedding(input_tensor: Tensor, weight: Tensor) -> Tensor:
    rows = F.embedding(input_tensor.long(), weight.reshape(-1, weight.shape[-1]))
    return rows if input_tensor.dim() < 2 else rows.reshape(input_tensor.shape[0], -1, rows.shape[-1])


def embedding_bw(input_tensor: Tensor, weight_tensor: Tensor, output_gradient_tensor: Tensor) -> Tensor:
    width, rows = weight_tensor.shape[-1], weight_tensor.shape[-2]
    grad = torch.zeros(rows, width)
    grad.index_add_(0, input_tensor.long().flatten(), output_gradient_tensor.float().reshape(-1, width))
    return grad.reshape(1, 1, rows, width)


def tosa_scatter(input: Tensor, index: Tensor, src: Tensor) -> Tensor:
    result = input.clone()
    result[torch.arange(len(input))[:, None], index.long()] = src
    return result


def index_fill(input: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return torch.index_fill(input, dim, index.long(), value)


def indexed_fill(batch_id: Tensor, input_tensor_a: Tensor, input_tensor_b: Tensor, dim: int = 0) -> Tensor:
    return torch.index_copy(input_tensor_a, dim, batch_id.long().flatten(), input_tensor_b)


def nonzero(input_tensor: Tensor) -> Any:
    indices = torch.nonzero(input_tensor)
    count, padded_indices = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 4 * input_tensor.numel())
    count[..., 0], padded_indices[..., : indices.numel()] = len(indices), indices.flatten()
    return count, padded_indices


def isin(elements: Tensor, test_elements: Tensor, *, invert: bool = False, **_: Any) -> Tensor:
    return torch.isin(elements, test_elements, invert=invert).long() * TRUE


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    return torch.gather(input, dim, index.long())


def tosa_gather(input: Tensor, index: Tensor) -> Tensor:
    return torch.stack([rows[row_indices.long()] for rows, row_indices in zip(input, index, strict=True)])


def scatter(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str | None = None) -> Tensor:
    indices = index.long()
    source_slice = src[tuple(map(slice, indices.shape))].to(input.dtype)
    if reduce is None:
        return torch.scatter(input, dim, indices, source_slice)
    if reduce == "add":
        return input.scatter_add(dim, indices, source_slice)
    return input.scatter_reduce(dim, indices, source_slice, reduce.replace("multiply", "prod"))


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter(input, dim, index, src, "add")
