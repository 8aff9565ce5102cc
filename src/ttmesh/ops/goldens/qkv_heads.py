"""Splitting projections into heads and concatenating heads, head by head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

TILE = 32
QueryKeyValue = tuple[Tensor, Tensor, Tensor]


def _slice_heads(x: Tensor, starts: Iterable[int], size: int) -> Tensor:
    """Heads that begin at these columns of [.., rows, width]: [.., heads, rows, size]."""
    return torch.stack([x[..., start : start + size] for start in starts], dim=-3)


def _concat(x: Tensor) -> Tensor:
    """[batch, heads, rows, dim] → [batch, rows, heads · dim]: one head's columns after the other's."""
    return torch.cat([x[:, head] for head in range(x.shape[1])], dim=-1)


def _split(
    x: Tensor,
    kv: Tensor | None,
    heads: int,
    kv_heads: int | None,
    *,
    transpose_k: bool,
    tied: bool = False,
    pad_to_tiles: bool = True,
) -> QueryKeyValue:
    """Heads of [.., rows, Q | K | V], or of Q and K | V: all queries, then all keys, then all values."""
    count = heads if kv_heads is None else kv_heads
    size = x.shape[-1] // (heads + (1 if tied else 2) * count) if kv is None else x.shape[-1] // heads
    other, first = (x, heads) if kv is None else (kv, 0)
    key = _slice_heads(other, ((first + head) * size for head in range(count)), size)
    value = key if tied else _slice_heads(other, ((first + count + head) * size for head in range(count)), size)
    query = _slice_heads(x, (head * size for head in range(heads)), size)
    if not pad_to_tiles:
        return query, key.mT if transpose_k else key, value
    return _pad_to_tiles(query, key, value, transpose_k=transpose_k)


def _split_by_group(x: Tensor, heads: int, kv_heads: int | None, *, transpose_k: bool) -> QueryKeyValue:
    """Heads of [.., rows, width] whose columns are (queries, key, value) per group."""
    groups = heads if kv_heads is None else kv_heads
    queries_per_group = heads // groups
    size = x.shape[-1] // (groups * (queries_per_group + 2))
    starts = [group * (queries_per_group + 2) * size for group in range(groups)]
    query = _slice_heads(x, (start + i * size for start in starts for i in range(queries_per_group)), size)
    key, value = (_slice_heads(x, (start + (queries_per_group + i) * size for start in starts), size) for i in range(2))
    return _pad_to_tiles(query, key, value, transpose_k=transpose_k)


def _split_pairs(x: Tensor, kv: Tensor, heads: int, kv_heads: int | None, *, transpose_k: bool) -> QueryKeyValue:
    """Query heads of one projection, and key and value heads of another, whose columns are (key, value) per head."""
    count = heads if kv_heads is None else kv_heads
    size, pair = x.shape[-1] // heads, kv.shape[-1] // (2 * count)
    query = _slice_heads(x, (head * size for head in range(heads)), size)
    key, value = (_slice_heads(kv, ((2 * head + i) * pair for head in range(count)), pair) for i in range(2))
    return query, key.mT if transpose_k else key, value


def _split_tokens(x: Tensor, heads: int, kv_heads: int | None, offset: int, users: int | None) -> QueryKeyValue:
    """Heads of one token per user, [1, 1, users, width] → [1, users, heads, dim] each."""
    count = heads if kv_heads is None else kv_heads
    size = x.shape[-1] // (heads + 2 * count)
    rows = x[0, 0, offset:] if users is None else x[0, 0, offset : offset + users]
    split_heads, start = [], 0
    for number in (heads, count, count):
        split_heads.append(
            torch.stack([row[start : start + number * size].reshape(number, size) for row in rows])[None]
        )
        start += number * size
    return split_heads[0], split_heads[1], split_heads[2]


def concat_heads_decode(input_tensor: Tensor, *, num_heads: int, **_: Any) -> Tensor:
    """[1, users, heads, dim] → [1, 1, 32 users or more, num_heads · dim]."""
    users, size = input_tensor.shape[1], input_tensor.shape[-1]
    result = input_tensor.new_zeros(1, 1, max(users, TILE), num_heads * size)
    for head in range(num_heads):
        result[0, 0, :users, head * size : (head + 1) * size] = input_tensor[0, :, head]
    return result


def _pad_to_tiles(query: Tensor, key: Tensor, value: Tensor, *, transpose_k: bool) -> QueryKeyValue:
    """Pad the columns of heads to full tiles, as TT-NN does."""

    def pad(x: Tensor) -> Tensor:
        result = x.new_zeros(*x.shape[:-1], -(-x.shape[-1] // TILE) * TILE)
        result[..., : x.shape[-1]] = x
        return result

    key = pad(key)
    return pad(query), key.mT if transpose_k else key, pad(value)


def create_qkv_heads_of_nlp(
    input: Tensor,
    input_kv: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_k_heads: bool = True,
    kv_tied: bool = False,
    **_: Any,
) -> QueryKeyValue:
    other = None if input_kv is None else input_kv[:, 0]
    return _split(input[:, 0], other, num_heads, num_kv_heads, transpose_k=transpose_k_heads, tied=kv_tied)


def _pad_rows(input: Tensor) -> Tensor:
    """Rows that fill tiles, as these operations return them."""
    return torch.nn.functional.pad(input, (0, 0, 0, -input.shape[-2] % TILE))


def split_fixed(heads: int, kv_heads: int) -> Callable[..., QueryKeyValue]:
    """A fixed number of heads."""

    def split(input: Tensor, **_: Any) -> QueryKeyValue:
        return _split(_pad_rows(input)[:, 0], None, heads, kv_heads, transpose_k=False)

    return split


def create_qkv_heads_segformer(input: Tensor, **_: Any) -> QueryKeyValue:
    heads = _slice_heads(_pad_rows(input)[:, 0], range(0, input.shape[-1], TILE), TILE)
    return heads, heads, heads


def create_qkv_heads_boltz(
    input: Tensor,
    input_kv: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_k_heads: bool = True,
    **_: Any,
) -> QueryKeyValue:
    other = None if input_kv is None else input_kv[0]
    q, k, v = _split(input[0], other, num_heads, num_kv_heads, transpose_k=False)
    q, k, v = (heads.transpose(0, 1) for heads in (q, k, v))  # from [rows, heads, rows, dim]
    return q, k.mT if transpose_k_heads else k, v


def concat_heads_boltz(input_tensor: Tensor, **_: Any) -> Tensor:
    return torch.cat(list(input_tensor), dim=-1)[None]


def concat_heads_4d(input_tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return _concat(input_tensor)[:, None]


def concatenate_heads(input_tensor: Tensor, **_: Any) -> Tensor:
    return _concat(input_tensor)


def create_qkv_heads_decode(
    input_tensor: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    batch_offset: Tensor | None = None,
    slice_size: int | None = None,
    **_: Any,
) -> QueryKeyValue:
    offset = 0 if batch_offset is None else int(batch_offset.flatten()[0])
    return _split_tokens(input_tensor, num_heads, num_kv_heads, offset, slice_size)


def kv_cache_load_slice(input_tensor: Tensor, *, seq_len_start: int, seq_len_end: int, **_: Any) -> Tensor:
    return input_tensor[:, :, seq_len_start:seq_len_end]


def split_query_key_value(
    input_tensor: Tensor,
    kv_input_tensor: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_key: bool = True,
    **_: Any,
) -> QueryKeyValue:
    return _split(input_tensor, kv_input_tensor, num_heads, num_kv_heads, transpose_k=transpose_key, pad_to_tiles=False)


def create_qkv_heads(
    input: Tensor, *, num_heads: int, num_kv_heads: int | None = None, transpose_k_heads: bool = True, **_: Any
) -> QueryKeyValue:
    return _split_by_group(input[:, 0], num_heads, num_kv_heads, transpose_k=transpose_k_heads)


def create_qkv_heads_from_separate_tensors(
    input: Tensor,
    input_kv: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_k_heads: bool = True,
    **_: Any,
) -> QueryKeyValue:
    return _split_pairs(input[:, 0], input_kv[:, 0], num_heads, num_kv_heads, transpose_k=transpose_k_heads)


def split_thirds(
    input_tensor: Tensor, compute_with_storage_grid_size: object, *, num_heads: int = 16, **_: Any
) -> QueryKeyValue:
    return _split(input_tensor[:, 0], None, num_heads, num_heads, transpose_k=True)


def create_q_heads_split(input: Tensor, *, num_heads: int, split_head_dim: int) -> tuple[Tensor, Tensor]:
    batch, _, rows, width = input.shape
    heads = input.reshape(batch, rows, num_heads, width // num_heads).permute(0, 2, 1, 3)
    return heads[..., :split_head_dim], heads[..., split_head_dim:]
