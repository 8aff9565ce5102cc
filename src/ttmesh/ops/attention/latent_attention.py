"""Multi-head latent attention: values are the first columns of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor as Lanes

from ttmesh.ops.attention.attention_scores import attend_prefill, banned, causal_allowed, gathered_pages
from ttmesh.ops.attention.sdpa_decode import attend_cached, decode_scratch, golden_decode, positions_of
from ttmesh.ops.attention.sdpa_prefill import attend_chunk, attention_spec, golden_attention, prefill_scratch
from ttmesh.ops.catalogue.definition import op


def _values(k: Lanes, v: Lanes | None, head_dim_v: int | None) -> Lanes:
    return k[..., :head_dim_v] if v is None else v if head_dim_v is None else v[..., :head_dim_v]


def _golden_prefill(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    head_dim_v: int | None = None,
    *,
    input_tensor_v: Lanes | None = None,
    attn_mask: Lanes | None = None,
    is_causal: bool = True,
    scale: float | None = None,
    **_: Any,
) -> Lanes:
    if isinstance(head_dim_v, Lanes):
        head_dim_v, input_tensor_v = None, head_dim_v
    v = _values(input_tensor_k, input_tensor_v, head_dim_v)
    return golden_attention(input_tensor_q, input_tensor_k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)


@op("ttnn.transformer.flash_mla_prefill", golden=_golden_prefill, out=attention_spec, scratch=prefill_scratch)
def flash_mla_prefill(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    attn_mask: Lanes | None,
    is_causal: bool,
    scale: float | None,
    lane_axes: int,
    head_dim_v: int | Lanes | None = None,
    input_tensor_v: Lanes | None = None,
) -> Lanes:
    """Latent attention over whole sequences."""
    if isinstance(head_dim_v, Lanes):  # the overload with values takes them third
        head_dim_v, input_tensor_v = None, head_dim_v
    v = _values(input_tensor_k, input_tensor_v, head_dim_v)
    return attend_prefill(input_tensor_q, input_tensor_k, v, lane_axes, scale=scale, mask=attn_mask, causal=is_causal)


def _golden_chunked(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    head_dim_v: int,
    page_table_tensor: Lanes,
    chunk_start_idx: int,
    *,
    scale: float | None = None,
    **_: Any,
) -> Lanes:
    k = gathered_pages(input_tensor_k, page_table_tensor, 0)
    mask = banned(causal_allowed(input_tensor_q.shape[-2], k.shape[-2], k.device, chunk_start_idx))
    return golden_attention(input_tensor_q, k, k[..., :head_dim_v], attn_mask=mask, is_causal=False, scale=scale)


@op("ttnn.transformer.chunked_flash_mla_prefill", golden=_golden_chunked, out=attention_spec, scratch=prefill_scratch)
def chunked_flash_mla_prefill(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    head_dim_v: int,
    page_table_tensor: Lanes,
    chunk_start_idx: int,
    scale: float | None,
    lane_axes: int,
) -> Lanes:
    """Latent attention of a chunk over keys in pages."""
    values = input_tensor_k[..., :head_dim_v]
    return attend_chunk(input_tensor_q, input_tensor_k, values, page_table_tensor, chunk_start_idx, scale, lane_axes)


def _golden_decode(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes | None = None,
    head_dim_v: int | None = None,
    page_table_tensor: Lanes | None = None,
    *,
    cur_pos: Sequence[int] = (),
    cur_pos_tensor: Lanes | None = None,
    attn_mask: Lanes | None = None,
    scale: float | None = None,
    **_: Any,
) -> Lanes:
    v = _values(input_tensor_k, input_tensor_v, head_dim_v)
    k = input_tensor_k
    if page_table_tensor is not None:
        k, v = gathered_pages(k, page_table_tensor, 0), gathered_pages(v, page_table_tensor, 0)
    positions = list(cur_pos) if cur_pos_tensor is None else cur_pos_tensor.flatten().tolist()
    return golden_decode(input_tensor_q, k, v, positions, scale, attn_mask)


@op(
    "ttnn.transformer.flash_multi_latent_attention_decode",
    golden=_golden_decode,
    out=attention_spec,
    scratch=decode_scratch,
)
def flash_multi_latent_attention_decode(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes | None,
    head_dim_v: int,
    is_causal: bool,
    attn_mask: Lanes | None,
    cur_pos: Sequence[int],
    cur_pos_tensor: Lanes | None,
    attention_sink: Lanes | None,
    scale: float | None,
    sliding_window_size: int | None,
    lane_axes: int,
) -> Lanes:
    """Latent attention of one token per user."""
    return attend_cached(
        input_tensor_q,
        input_tensor_k,
        _values(input_tensor_k, input_tensor_v, head_dim_v),
        lane_axes,
        positions=positions_of(cur_pos, cur_pos_tensor, input_tensor_q, lane_axes) if is_causal else None,
        mask=attn_mask,
        sink=attention_sink,
        scale=scale,
        window=sliding_window_size,
    )


@op(
    "ttnn.transformer.paged_flash_multi_latent_attention_decode",
    golden=_golden_decode,
    out=attention_spec,
    scratch=decode_scratch,
)
def paged_flash_multi_latent_attention_decode(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes | None,
    head_dim_v: int,
    page_table_tensor: Lanes,
    is_causal: bool,
    attn_mask: Lanes | None,
    cur_pos_tensor: Lanes | None,
    attention_sink: Lanes | None,
    scale: float | None,
    sliding_window_size: int | None,
    lane_axes: int,
) -> Lanes:
    """Latent attention of one token per user over keys in pages."""
    return attend_cached(
        input_tensor_q,
        input_tensor_k,
        _values(input_tensor_k, input_tensor_v, head_dim_v),
        lane_axes,
        positions=positions_of((), cur_pos_tensor, input_tensor_q, lane_axes) if is_causal else None,
        mask=attn_mask,
        sink=attention_sink,
        scale=scale,
        window=sliding_window_size,
        table=page_table_tensor,
    )
