"""Attention of sequences, chunks and single tokens, with the softmax as explicit exponentials in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TILE = 32
NEVER = float("-inf")


def weighted_values(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Tensor,
    scale: float | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """softmax(q·k)·v for [batch, heads, rows, dim]; a group of query heads shares a head of k and v.

    Args:
        visible: which keys a row sees, [.., rows, keys].
        bias: added to the scores, [batch | 1, heads | 1, rows, keys].
        sink: a score per head that takes weight and gives no value, [heads].
    """
    batch, heads, rows = q.shape[:3]
    grouped_q = q.double().reshape(batch, k.shape[1], -1, rows, q.shape[-1])
    scores = torch.einsum("bgnrd,bgkd->bgnrk", grouped_q, k.double()).flatten(1, 2)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.where(visible, scores * factor, NEVER)
    if bias is not None:
        scores = scores + bias.double()
    largest = scores.amax(-1, keepdim=True)
    sink_scores = torch.full((heads,), NEVER) if sink is None else sink.double() * factor
    largest = torch.maximum(largest, sink_scores.reshape(-1, 1, 1))
    powers = torch.exp(scores - largest)
    total = powers.sum(-1, keepdim=True) + torch.exp(sink_scores.reshape(-1, 1, 1) - largest)
    grouped = (powers / total).reshape(batch, v.shape[1], -1, rows, k.shape[-2])
    return torch.einsum("bgnrk,bgkd->bgnrd", grouped, v.double()).flatten(1, 2).float()


def _causal_mask(rows: int, keys: int, start: int = 0) -> Tensor:
    """Row i has position start + i and sees the keys up to that position."""
    return torch.ones(rows, keys).tril(start).bool()


def _window_mask(rows: int, keys: int, size: int, *, causal: bool) -> Tensor:
    """The last `size` keys of a causal row; else those at most half the size away on both sides."""
    if causal:
        return torch.ones(rows, keys).tril().triu(1 - size).bool()
    return torch.ones(rows, keys).tril(size // 2).triu(-(size // 2)).bool()


def _sequence_mask(ends: Sequence[int], rows: int, keys: int) -> Tensor:
    """A mask for packed sequences, by their cumulative lengths: each row sees its own sequence only."""
    visible = torch.zeros(rows, keys, dtype=torch.bool)
    for first, last in zip([0, *ends], [*ends, max(rows, keys)], strict=True):
        visible[first:last, first:last] = True
    return visible


def sdpa(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = True,
    scale: float | None = None,
    sliding_window_size: int | None = None,
    attention_sink: Tensor | None = None,
    cu_window_seqlens: Tensor | None = None,
    **_: Any,
) -> Tensor:
    rows, keys = input_tensor_q.shape[-2], input_tensor_k.shape[-2]
    visible = torch.ones(rows, keys, dtype=torch.bool)
    if sliding_window_size:
        visible = _window_mask(rows, keys, sliding_window_size, causal=is_causal)
    elif is_causal and cu_window_seqlens is None:
        visible = _causal_mask(rows, keys)
    if cu_window_seqlens is not None:
        visible = visible & _sequence_mask([int(end) for end in cu_window_seqlens.flatten()], rows, keys)
    sink = None if attention_sink is None else attention_sink.flatten()
    qkv = (input_tensor_q, input_tensor_k, input_tensor_v)
    return weighted_values(*qkv, visible=visible, scale=scale, bias=attn_mask, sink=sink)


def gather_pages(cache: Tensor, table: Tensor) -> Tensor:
    """Concatenate pages [pages, heads, page, dim] in the order of every user's page table [users, n]."""
    empty = torch.zeros_like(cache[0])
    return torch.stack([torch.cat([cache[p] if p >= 0 else empty for p in pages], 1) for pages in table.long()])


def _regroup(cache: Tensor, geometry: Any, head_dim: int) -> Tensor:
    """Copy the tiles of each page, in memory order, to pages of other heads, lengths and widths."""
    if geometry is None:
        return cache
    regrouped = cache.new_zeros(len(cache), geometry.num_kv_heads, geometry.block_size, head_dim)
    for old, new in zip(cache, regrouped, strict=True):
        for source, target in zip(_tiles(old), _tiles(new), strict=True):
            target.copy_(source)
    return regrouped


def _tiles(page: Tensor) -> list[Tensor]:
    """Views of the tiles of [heads, rows, columns], in memory order."""
    heads, rows, columns = page.shape
    return [
        page[head, row : row + TILE, column : column + TILE]
        for head in range(heads)
        for row in range(0, rows, TILE)
        for column in range(0, columns, TILE)
    ]


def chunked_sdpa(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    chunk_start_idx: int | None = None,
    *,
    chunk_start_idx_tensor: Tensor | None = None,
    scale: float | None = None,
    paged_cache_geometry: Any = None,
    **_: Any,
) -> Tensor:
    start = int(chunk_start_idx_tensor.flatten()[0]) if chunk_start_idx_tensor is not None else chunk_start_idx or 0
    caches = (_regroup(x, paged_cache_geometry, input_tensor_q.shape[-1]) for x in (input_tensor_k, input_tensor_v))
    k, v = (gather_pages(cache, page_table_tensor) for cache in caches)
    visible = _causal_mask(input_tensor_q.shape[-2], k.shape[-2], start)
    return weighted_values(input_tensor_q, k, v, visible=visible, scale=scale)


def joint_sdpa(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    joint_tensor_q: Tensor,
    joint_tensor_k: Tensor,
    joint_tensor_v: Tensor,
    *,
    scale: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    k = torch.cat([input_tensor_k, joint_tensor_k], -2)
    v = torch.cat([input_tensor_v, joint_tensor_v], -2)
    all_keys = torch.ones(k.shape[-2], dtype=torch.bool)
    first, joint = (weighted_values(q, k, v, visible=all_keys, scale=scale) for q in (input_tensor_q, joint_tensor_q))
    return first, joint


def ring_distributed_sdpa(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    ring_size: int,
    ring_id: int | None = None,
    *,
    scale: float | None = None,
    page_table: Tensor | None = None,
    chunk_start_idx: int | None = None,
    **_: Any,
) -> Tensor:
    """A device's chunk counted from the front of the sequence and the one counted from its end."""
    qkv = (input_tensor_q, input_tensor_k, input_tensor_v)
    if page_table is None:
        output = sdpa(*qkv, scale=scale)
    else:
        output = chunked_sdpa(*qkv, page_table, chunk_start_idx, scale=scale)
    chunks = output.chunk(2 * ring_size, -2)
    return torch.cat([chunks[ring_id or 0], chunks[-1 - (ring_id or 0)]], -2)


def mla_prefill(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    head_dim_v: int | Tensor | None = None,
    *,
    input_tensor_v: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Values are the first columns of the keys, or a tensor passed instead of head_dim_v."""
    if isinstance(head_dim_v, Tensor):
        return sdpa(input_tensor_q, input_tensor_k, head_dim_v, **options)
    values = input_tensor_k if input_tensor_v is None else input_tensor_v
    return sdpa(input_tensor_q, input_tensor_k, values[..., :head_dim_v], **options)


def ring_mla(
    input_tensor_q: Tensor, input_tensor_kv: Tensor, *, head_dim_v: int, scale: float | None = None, **_: Any
) -> Tensor:
    """Causal attention over the sequences of all devices, in order."""
    return sdpa(input_tensor_q, input_tensor_kv, input_tensor_kv[..., :head_dim_v], is_causal=True, scale=scale)


def chunked_mla_prefill(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    head_dim_v: int,
    page_table_tensor: Tensor,
    chunk_start_idx: int,
    *,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    values = input_tensor_k[..., :head_dim_v]
    return chunked_sdpa(input_tensor_q, input_tensor_k, values, page_table_tensor, chunk_start_idx, scale=scale)


def sdpa_decode(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    *,
    is_causal: bool = True,
    attn_mask: Tensor | None = None,
    cur_pos: Sequence[int] = (),
    cur_pos_tensor: Tensor | None = None,
    attention_sink: Tensor | None = None,
    scale: float | None = None,
    sliding_window_size: int | None = None,
    cache_position_modulo: int | None = None,
    **_: Any,
) -> Tensor:
    """One token per user, [1, users, heads, dim], user by user; users at negative positions get zeros."""
    q, keys = input_tensor_q, input_tensor_k.shape[-2]
    positions = [int(p) for p in (cur_pos if cur_pos_tensor is None else cur_pos_tensor.flatten())]
    positions = [p - 2**32 if p >= 2**31 else p for p in positions]
    sink = None if attention_sink is None else attention_sink.flatten(0, -2)[: q.shape[2], 0]
    rows = []
    for user in range(q.shape[1]):
        visible = torch.ones(keys, dtype=torch.bool)
        if is_causal and positions and positions[user] < 0:
            rows.append(torch.zeros(q.shape[2], input_tensor_v.shape[-1]))
            continue
        if is_causal and positions:
            last = positions[user]
            ring = cache_position_modulo or last + 1
            first = max(0, last + 1 - (sliding_window_size or last + 1))
            visible = torch.zeros(keys, dtype=torch.bool)
            visible[sorted({position % ring for position in range(max(first, last + 1 - ring), last + 1)})] = True
        cache_user = 0 if len(input_tensor_k) == 1 else user
        bias = None if attn_mask is None else attn_mask[0 if len(attn_mask) == 1 else user, 0][None, :, None]
        token = q[0, user][None, :, None]
        k, v = input_tensor_k[cache_user][None], input_tensor_v[cache_user][None]
        attended = weighted_values(token, k, v, visible=visible, scale=scale, bias=bias, sink=sink)
        rows.append(attended[0, :, 0])
    return torch.stack(rows)[None]


def paged_sdpa_decode(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    *,
    paged_cache_geometry: Any = None,
    **options: Any,
) -> Tensor:
    caches = (_regroup(x, paged_cache_geometry, input_tensor_q.shape[-1]) for x in (input_tensor_k, input_tensor_v))
    k, v = (gather_pages(cache, page_table_tensor) for cache in caches)
    return sdpa_decode(input_tensor_q, k, v, **options)


def mla_decode(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor | None = None,
    head_dim_v: int | None = None,
    page_table_tensor: Tensor | None = None,
    **options: Any,
) -> Tensor:
    values = (input_tensor_k if input_tensor_v is None else input_tensor_v)[..., :head_dim_v]
    if page_table_tensor is None:
        return sdpa_decode(input_tensor_q, input_tensor_k, values, **options)
    return paged_sdpa_decode(input_tensor_q, input_tensor_k, values, page_table_tensor, **options)
