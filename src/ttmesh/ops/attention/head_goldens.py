"""What splitting into heads and joining them means, told head by head: the goldens of every family of heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ttmesh.chip.formats.tiles import TILE_WIDTH as TILE

Three = tuple[Tensor, Tensor, Tensor]


def columns(x: Tensor, starts: Iterable[int], size: int) -> Tensor:
    """Heads that begin at these columns of [.., rows, width]: [.., heads, rows, size]."""
    return torch.stack([x[..., start : start + size] for start in starts], dim=-3)


def joined(x: Tensor) -> Tensor:
    """[batch, heads, rows, dim] → [batch, rows, heads · dim]: one head's columns after the other's."""
    return torch.cat([x[:, head] for head in range(x.shape[1])], dim=-1)


def split(
    x: Tensor,
    kv: Tensor | None,
    heads: int,
    kv_heads: int | None,
    *,
    transpose_k: bool,
    tied: bool = False,
    whole_tiles: bool = True,
) -> Three:
    """Heads of [.., rows, Q | K | V], or of Q and K | V: all queries, then all keys, then all values."""
    count = heads if kv_heads is None else kv_heads
    size = x.shape[-1] // (heads + (1 if tied else 2) * count) if kv is None else x.shape[-1] // heads
    other, first = (x, heads) if kv is None else (kv, 0)
    key = columns(other, ((first + head) * size for head in range(count)), size)
    value = key if tied else columns(other, ((first + count + head) * size for head in range(count)), size)
    query = columns(x, (head * size for head in range(heads)), size)
    if not whole_tiles:
        return query, key.mT if transpose_k else key, value
    return _tiled(query, key, value, transpose_k=transpose_k)


def split_by_group(x: Tensor, heads: int, kv_heads: int | None, *, transpose_k: bool) -> Three:
    """Heads of [.., rows, width] in which every group holds its queries, its key and its value."""
    groups = heads if kv_heads is None else kv_heads
    own = heads // groups
    size = x.shape[-1] // (groups * (own + 2))
    starts = [group * (own + 2) * size for group in range(groups)]
    query = columns(x, (start + i * size for start in starts for i in range(own)), size)
    key, value = (columns(x, (start + (own + i) * size for start in starts), size) for i in range(2))
    return _tiled(query, key, value, transpose_k=transpose_k)


def split_pairs(x: Tensor, kv: Tensor, heads: int, kv_heads: int | None, *, transpose_k: bool) -> Three:
    """Query heads of one projection, and of another that holds every key beside its value."""
    count = heads if kv_heads is None else kv_heads
    size, pair = x.shape[-1] // heads, kv.shape[-1] // (2 * count)
    query = columns(x, (head * size for head in range(heads)), size)
    key, value = (columns(kv, ((2 * head + i) * pair for head in range(count)), pair) for i in range(2))
    return query, key.mT if transpose_k else key, value


def of_users(x: Tensor, heads: int, kv_heads: int | None, offset: int, users: int | None) -> Three:
    """Heads of one token per user, [1, 1, users, width] → [1, users, heads, dim] each."""
    count = heads if kv_heads is None else kv_heads
    size = x.shape[-1] // (heads + 2 * count)
    rows = x[0, 0, offset:] if users is None else x[0, 0, offset : offset + users]
    parts, start = [], 0
    for number in (heads, count, count):
        parts.append(torch.stack([row[start : start + number * size].reshape(number, size) for row in rows])[None])
        start += number * size
    return parts[0], parts[1], parts[2]


def joined_users(input_tensor: Tensor, *, num_heads: int, **_: Any) -> Tensor:
    """[1, users, heads, dim] → [1, 1, 32 users or more, num_heads · dim]."""
    users, size = input_tensor.shape[1], input_tensor.shape[-1]
    result = input_tensor.new_zeros(1, 1, max(users, TILE), num_heads * size)
    for head in range(num_heads):
        result[0, 0, :users, head * size : (head + 1) * size] = input_tensor[0, :, head]
    return result


def _tiled(query: Tensor, key: Tensor, value: Tensor, *, transpose_k: bool) -> Three:
    """TT-NN's heads have whole tiles of columns."""

    def wide(x: Tensor) -> Tensor:
        result = x.new_zeros(*x.shape[:-1], -(-x.shape[-1] // TILE) * TILE)
        result[..., : x.shape[-1]] = x
        return result

    key = wide(key)
    return wide(query), key.mT if transpose_k else key, wide(value)
