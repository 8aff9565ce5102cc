"""Attention by the chip's arithmetic: two matmuls in chunks of keys, bfloat16 in between.

Scores are packed to bfloat16, exponentials too; a chunk of keys is multiplied into fresh registers and added to the sum
of the chunks before it. The row's maximum is taken once, not chunk by chunk as the kernels do: rescaling is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor as Lanes
from torch.nn.functional import pad

from ttmesh.chip.numerics import fpu

SCORES_AT_ONCE = 1 << 24
DEFAULT_CHUNK = 32  # keys, where no program config says


def attend_on_fpu(
    q: Lanes, k: Lanes, v: Lanes, *, scale: float, mask: Lanes | None, causal: bool, sink: Lanes | None
) -> Lanes:
    """`attend` of [batch, heads, rows, dim] with as many heads of keys, slices of rows at a time."""
    rows, keys = q.shape[-2], k.shape[-2]
    if not rows:
        return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=torch.float32)
    at_once = max(32, SCORES_AT_ONCE // max(1, q.shape[:-2].numel() * keys))
    weighted = torch.cat([v, v.new_ones((*v.shape[:-1], 1))], -1)
    parts = []
    for row in range(0, rows, at_once):
        some = slice(row, row + at_once)
        own = mask[..., some, :] if mask is not None and mask.shape[-2] > 1 else mask
        if causal:
            at = torch.arange(row, min(row + at_once, rows), device=q.device)[:, None]
            later = torch.arange(keys, device=q.device) > at
            own = torch.zeros(later.shape, device=q.device, dtype=torch.float32).masked_fill_(later, float("-inf"))
        parts.append(_attend_rows(q[..., some, :], k, weighted, scale, own, sink))
    return torch.cat(parts, -2)


def _attend_rows(q: Lanes, k: Lanes, weighted: Lanes, scale: float, mask: Lanes | None, sink: Lanes | None) -> Lanes:
    """The last column of `weighted` is ones: its sum is what softmax divides by."""
    logits = fpu.keep(fpu.matmul(q, k.mT, k_block=q.shape[-1])) * scale
    if mask is not None:
        logits = logits + mask
    largest = logits.amax(-1, keepdim=True)
    if sink is not None:
        largest = torch.maximum(largest, sink.float())
    weights = fpu.keep(torch.exp(logits - largest))
    both = fpu.keep(_multiply_chunks(weights, weighted, chunk_of_keys()))
    total = both[..., -1:]
    if sink is not None:
        total = total + torch.exp(sink.float() - largest)
    return both[..., :-1] * fpu.keep(total.reciprocal())


def _multiply_chunks(weights: Lanes, values: Lanes, chunk: int) -> Lanes:
    """Chunks of keys multiplied and added up, so that keys without weight behind a row's own leave its bits alone.

    A matmul computes its last block on top of the sum; here a tile of no keys is that block.
    """
    config, keys = fpu.active_config(), values.shape[-2]
    if config is not None and not config.fp32_dest and keys > chunk:
        none = -keys % chunk + DEFAULT_CHUNK
        weights, values = pad(weights, (0, none)), pad(values, (0, 0, 0, none))
    return fpu.matmul(weights, values, k_block=chunk)


def chunk_of_keys() -> int:
    """How many keys the active FPU takes at a time."""
    config = fpu.active_config()
    return DEFAULT_CHUNK if config is None or not config.k_block else config.k_block


def multiply_by_row(a: Lanes, b: Lanes) -> Lanes:
    """[.., heads, rows, K] times a matrix per row, [.., rows, K, N]."""
    if not fpu.is_emulated(a, b):
        return torch.einsum("...hsk,...skn->...hsn", a, b)
    return fpu.matmul(fpu.keep(a).transpose(-3, -2), b, k_block=chunk_of_keys()).transpose(-3, -2)
