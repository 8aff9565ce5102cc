"""Attention over selected keys, and the scores that select them, row by row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
    """Queries [heads, dim] of one row over the same keys; zeros without keys."""
    if not len(keys):
        return torch.zeros(len(queries), values.shape[-1])
    logits = queries.double() @ keys.double().T * (queries.shape[-1] ** -0.5 if scale is None else scale)
    powers = torch.exp(logits - logits.amax(-1, keepdim=True))
    return (powers @ values.double() / powers.sum(-1, keepdim=True)).float()


def sparse_sdpa(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    v_dim: int,
    *,
    scale: float | None = None,
    cache_batch_idx: int | None = None,
    **_: Any,
) -> Tensor:
    """Every row over the keys at its indices, whose first columns are the values; too large indices select none."""
    keys = kv[cache_batch_idx or 0, 0]
    result = torch.zeros(*q.shape[:3], v_dim)
    for row in range(q.shape[2]):
        selected = [int(i) for i in indices[0, 0, row] if 0 <= int(i) < len(keys)]
        result[0, :, row] = _attend(q[0, :, row], keys[selected], keys[selected, :v_dim], scale)
    return result


def sparse_sdpa_msa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    *,
    scale: float | None = None,
    block_size: int = 128,
    chunk_start_idx: int | None = None,
    cache_batch_idx: int | None = None,
    **_: Any,
) -> Tensor:
    """Every row over the blocks of keys at its group's indices, up to its own position."""
    slot, total, heads_per_group = cache_batch_idx or 0, k.shape[2], q.shape[1] // k.shape[1]
    out = torch.zeros(*q.shape[:3], v.shape[-1])
    for group in range(k.shape[1]):
        heads = slice(group * heads_per_group, (group + 1) * heads_per_group)
        for row in range(q.shape[2]):
            blocks = [int(b) for b in indices[0, group, row] if int(b) < total // block_size]
            tokens = [t for b in blocks for t in range(b * block_size, (b + 1) * block_size)]
            tokens = [t for t in tokens if chunk_start_idx is None or t <= chunk_start_idx + row]
            out[0, heads, row] = _attend(q[0, heads, row], k[slot, group, tokens], v[slot, group, tokens], scale)
    return out


def _mask_later(scores: Tensor, chunk_start_idx: int, kv_len: int | None) -> Tensor:
    """Set scores after every row's position, and after the keys in use, to -inf."""
    for row in range(scores.shape[-2]):
        scores[..., row, chunk_start_idx + row + 1 :] = float("-inf")
    if kv_len is not None:
        scores[..., kv_len:] = float("-inf")
    return scores


def indexer_score_dsa(
    q: Tensor,
    k: Tensor,
    weights: Tensor,
    *,
    chunk_start_idx: int,
    cache_batch_idx: int | None = None,
    kv_len: int | None = None,
    **_: Any,
) -> Tensor:
    """relu of every head's query-key scores, weighted and summed."""
    scores = torch.relu(torch.einsum("bhsd,td->bhst", q, k[cache_batch_idx or 0, 0]))
    return _mask_later((scores * weights).sum(1, keepdim=True), chunk_start_idx, kv_len)


def indexer_score_msa(
    q: Tensor,
    k: Tensor,
    *,
    num_groups: int,
    chunk_start_idx: int,
    scale: float = 1.0,
    block_size: int = 0,
    cache_batch_idx: int | None = None,
    kv_len: int | None = None,
    **_: Any,
) -> Tensor:
    """Query-key scores of a group's heads, summed (without relu the queries can be summed first); per block the maximum."""
    groups = torch.stack(q.chunk(num_groups, 1), 1).sum(2)
    group_scores = torch.einsum("bgsd,td->bgst", groups, k[cache_batch_idx or 0, 0]) * scale
    scores = _mask_later(group_scores, chunk_start_idx, kv_len)
    if not block_size:
        return scores
    best = torch.stack([block.max(-1).values for block in torch.split(scores, block_size, dim=-1)], -1)
    for row in range(best.shape[-2]):
        best[..., row, (chunk_start_idx + row) // block_size] = float("inf")
    return best
