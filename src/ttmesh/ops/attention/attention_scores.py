"""Attention on lanes, used by every attention operation: scores, masks, windows, sinks and pages."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.chip.formats.kernels import attention
from ttmesh.chip.numerics import fpu
from ttmesh.ops.attention.fpu_attention import attend_on_fpu
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims, flatten_lanes

NEVER = float("-inf")


def attend(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    *,
    scale: float | None,
    mask: Lanes | None = None,
    causal: bool = False,
    sink: Lanes | None = None,
) -> Lanes:
    """softmax(q·kᵀ·scale + mask)·v of [batch, heads, rows, dim]; fewer key heads are shared by groups of query heads.

    A sink is one more logit per head, [.., heads, 1, 1], that takes weight and gives no value.
    """
    emulated = fpu.is_emulated(q, k, v)
    if not (emulated or causal) and sink is None and attention.supports(q, k, v) and not fpu.differentiates(q, k, v):
        return attention.attend(q, k, v, scale=scale if scale is not None else q.shape[-1] ** -0.5, mask=mask)
    dtype = q.dtype if q.dtype is k.dtype is v.dtype else torch.float32
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    k, v = (x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    if emulated:
        factor = scale if scale is not None else q.shape[-1] ** -0.5
        return attend_on_fpu(q, k, v, scale=factor, mask=mask, causal=causal, sink=sink)
    if sink is None:
        mask = None if mask is None else mask.to(dtype)
        if q.is_cuda:  # cuDNN derives the result's strides from its operands' and refuses some of them
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    scores = (q.float() @ k.float().transpose(-1, -2)) * (scale if scale is not None else q.shape[-1] ** -0.5)
    if causal:
        scores = scores + make_additive_mask(make_causal_mask(q.shape[-2], k.shape[-2], q.device))
    if mask is not None:
        scores = scores + mask
    logits = torch.cat([scores, sink.float().expand(*scores.shape[:-1], 1)], dim=-1)
    return torch.softmax(logits, -1)[..., :-1] @ v.float()


def make_additive_mask(allowed: Lanes) -> Lanes:
    """An additive mask: 0 where allowed, minus infinity elsewhere."""
    return torch.zeros(allowed.shape, device=allowed.device, dtype=torch.float32).masked_fill_(~allowed, NEVER)


def make_causal_mask(rows: int, keys: int, device: torch.device, start: int | Lanes = 0) -> Lanes:
    """A boolean mask of the keys that each row may see when row i has position start + i."""
    return torch.arange(keys, device=device) <= torch.arange(rows, device=device)[:, None] + start


def make_window_mask(rows: int, keys: int, window: int, device: torch.device, *, causal: bool, start: int = 0) -> Lanes:
    """A boolean mask of the keys in a sliding window: the last `window` (causal) or those at most half a window away."""
    distance = torch.arange(rows, device=device)[:, None] + start - torch.arange(keys, device=device)
    if causal:
        return (distance >= 0) & (distance < window)
    return distance.abs() <= window // 2


def merge_lanes_into_batch(tensor: Lanes, dims: tuple[int, ...], lane_axes: int) -> Lanes:
    """[*mesh, batch, ...] → [lanes · batch, ...] for these mesh dims."""
    expanded = tensor.expand(*dims, *tensor.shape[lane_axes:])
    return flatten_lanes(expanded, lane_axes).flatten(0, 1)


def merge_mask_into_batch(mask: Lanes, dims: tuple[int, ...], lane_axes: int, batch: int) -> Lanes:
    """An additive mask [*mesh, batch | 1, ...] for the batches of all lanes; a view when all lanes share it."""
    if mask.shape[lane_axes] == 1 and all(extent == 1 for extent in mask.shape[:lane_axes]):
        return mask.reshape(mask.shape[lane_axes:])
    expanded = mask.expand(*dims, batch, *mask.shape[lane_axes + 1 :])
    return flatten_lanes(expanded, lane_axes).flatten(0, 1)


def split_lanes_from_batch(tensor: Lanes, dims: tuple[int, ...], batch: int) -> Lanes:
    """[lanes · batch, ...] → [*mesh, batch, ...]: the inverse of `merge_lanes_into_batch`."""
    return tensor.reshape(*dims, batch, *tensor.shape[1:])


def gather_pages(cache: Lanes, table: Lanes, lane_axes: int) -> Lanes:
    """Keys or values in token order: cache [*mesh, blocks, heads, block, dim] through table [*mesh, users, pages]."""
    rank = lane_axes + 2
    index: list[Lanes] = []
    for axis, extent in enumerate(cache.shape[:lane_axes]):
        shape = [1] * rank
        shape[axis] = extent
        index.append(torch.arange(extent, device=cache.device).reshape(shape))
    index.append(table.long().clamp(0, cache.shape[lane_axes] - 1))
    pages = cache[tuple(index)]  # unused entries of the table are -1: clamped here, masked by the caller
    return pages.movedim(-3, -4).flatten(-3, -2)


def attend_prefill(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    lane_axes: int,
    *,
    scale: float | None,
    mask: Lanes | None = None,
    causal: bool = False,
    sink: Lanes | None = None,
) -> Lanes:
    """`attend` for lanes [*mesh, batch, heads, rows, dim]."""
    tensors = [x for x in (q, k, v, mask, sink) if x is not None]
    dims = common_mesh_dims(tensors, lane_axes)
    batch = q.shape[lane_axes]
    out = attend(
        merge_lanes_into_batch(q, dims, lane_axes),
        merge_lanes_into_batch(k, dims, lane_axes),
        merge_lanes_into_batch(v, dims, lane_axes),
        scale=scale,
        mask=None if mask is None else merge_mask_into_batch(mask, dims, lane_axes, batch),
        causal=causal,
        sink=None if sink is None else merge_mask_into_batch(sink, dims, lane_axes, batch),
    )
    return split_lanes_from_batch(out, dims, batch)


def attend_decode(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    lane_axes: int,
    *,
    scale: float | None,
    mask: Lanes | None,
    sink: Lanes | None,
    skipped: Lanes | None,
) -> Lanes:
    """Attention of one token per user: q [*mesh, 1, users, heads, dim], k and v [*mesh, users | 1, key heads, keys, dim].

    mask: additive, [*mesh, users | 1, 1 | heads, keys]; sink: [*mesh, heads]; skipped: users that get zeros, [*mesh, users].
    """
    tensors = [x for x in (q, k, v, mask, sink, skipped) if x is not None]
    dims = common_mesh_dims(tensors, lane_axes)
    users, heads = q.shape[lane_axes + 1], q.shape[lane_axes + 2]
    key_heads = k.shape[lane_axes + 1]
    group = heads // key_heads
    rows = torch.unflatten(merge_lanes_into_batch(q.squeeze(lane_axes), dims, lane_axes), 1, (key_heads, group))
    k, v = (x.expand(*x.shape[:lane_axes], users, *x.shape[lane_axes + 1 :]) for x in (k, v))
    if mask is not None:
        mask = mask.unsqueeze(-2) if mask.shape[-2] == 1 else torch.unflatten(mask, -2, (key_heads, group))
        mask = merge_mask_into_batch(mask, dims, lane_axes, users)
    if sink is not None:
        sink = merge_mask_into_batch(
            torch.unflatten(sink, -1, (key_heads, group)).unsqueeze(lane_axes)[..., None], dims, lane_axes, users
        )
    out = attend(
        rows,
        merge_lanes_into_batch(k, dims, lane_axes),
        merge_lanes_into_batch(v, dims, lane_axes),
        scale=scale,
        mask=mask,
        sink=sink,
    )
    out = split_lanes_from_batch(out.flatten(1, 2), dims, users).unsqueeze(lane_axes)
    if skipped is None:
        return out
    return out.masked_fill(skipped.unsqueeze(lane_axes)[..., None, None], 0.0)
