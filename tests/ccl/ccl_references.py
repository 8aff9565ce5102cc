"""Collectives on [*mesh, *local] by plain torch, one chip after the other."""

from __future__ import annotations

import torch


def all_reduce(values: torch.Tensor, axis: int) -> torch.Tensor:
    widened = values.double() if values.is_floating_point() else values.long()
    return widened.sum(axis, keepdim=True).expand(values.shape)


def reduce_scatter(values: torch.Tensor, axis: int, dim: int) -> torch.Tensor:
    n = values.shape[axis]
    total = all_reduce(values, axis)
    result = torch.stack(total.select(axis, 0).chunk(n, dim + 1))  # [n, other, *local / n]
    return result if axis == 0 else result.transpose(0, 1)


def all_gather(values: torch.Tensor, axis: int, dim: int) -> torch.Tensor:
    n = values.shape[axis]
    concatenated = torch.cat(list(values.unbind(axis)), dim + 1)  # [other, *local * n]
    return torch.stack([concatenated] * n, axis)


def broadcast(values: torch.Tensor, axis: int, root: int) -> torch.Tensor:
    return values.narrow(axis, root, 1).expand(values.shape)


def all_to_all(values: torch.Tensor, axis: int, in_dim: int, out_dim: int) -> torch.Tensor:
    n = values.shape[axis]
    received = []
    for target in range(n):
        mine = [shard.chunk(n, out_dim + 1)[target] for shard in values.unbind(axis)]
        received.append(torch.cat(mine, in_dim + 1))
    return torch.stack(received, axis)


def partition(values: torch.Tensor, axis: int, dim: int) -> torch.Tensor:
    n = values.shape[axis]
    return torch.stack([shard.chunk(n, dim + 1)[i] for i, shard in enumerate(values.unbind(axis))], axis)
