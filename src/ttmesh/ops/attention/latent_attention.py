"""Multi-head latent attention: values are the first columns of the keys."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor as Lanes

from ttmesh.ops.attention.attention_scores import attend_prefill
from ttmesh.ops.attention.decode_buffers import decode_scratch, select_local_queries
from ttmesh.ops.attention.sdpa_decode import attend_cached, check_latent_decode, find_user_positions
from ttmesh.ops.attention.sdpa_prefill import attend_chunk, attention_spec, prefill_scratch
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.configs.program_configs import SDPAProgramConfig
from ttmesh.ops.goldens import sdpa as goldens
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _select_values(k: Lanes, v: Lanes | None, head_dim_v: int | None) -> Lanes:
    return k[..., :head_dim_v] if v is None else v if head_dim_v is None else v[..., :head_dim_v]


@op("ttnn.transformer.flash_mla_prefill", golden=goldens.mla_prefill, out=attention_spec, scratch=prefill_scratch)
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
    """Latent attention over full sequences."""
    if isinstance(head_dim_v, Lanes):  # the overload with values takes them third
        head_dim_v, input_tensor_v = None, head_dim_v
    v = _select_values(input_tensor_k, input_tensor_v, head_dim_v)
    return attend_prefill(input_tensor_q, input_tensor_k, v, lane_axes, scale=scale, mask=attn_mask, causal=is_causal)


@op(
    "ttnn.transformer.chunked_flash_mla_prefill",
    golden=goldens.chunked_mla_prefill,
    out=attention_spec,
    scratch=prefill_scratch,
)
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


@op(
    "ttnn.transformer.flash_multi_latent_attention_decode",
    golden=goldens.mla_decode,
    out=attention_spec,
    check=check_latent_decode,
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
    program_config: SDPAProgramConfig | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Latent attention of one token per user."""
    users = input_tensor_k.shape[lane_axes]
    input_tensor_q = select_local_queries(input_tensor_q, specs[0], users, program_config, lane_axes)
    return attend_cached(
        input_tensor_q,
        input_tensor_k,
        _select_values(input_tensor_k, input_tensor_v, head_dim_v),
        lane_axes,
        positions=find_user_positions(cur_pos, cur_pos_tensor, input_tensor_q, lane_axes) if is_causal else None,
        mask=attn_mask,
        sink=attention_sink,
        scale=scale,
        window=sliding_window_size,
    )


@op(
    "ttnn.transformer.paged_flash_multi_latent_attention_decode",
    golden=goldens.mla_decode,
    out=attention_spec,
    check=check_latent_decode,
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
    program_config: SDPAProgramConfig | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Latent attention of one token per user over keys in pages."""
    users = page_table_tensor.shape[lane_axes]
    input_tensor_q = select_local_queries(input_tensor_q, specs[0], users, program_config, lane_axes)
    return attend_cached(
        input_tensor_q,
        input_tensor_k,
        _select_values(input_tensor_k, input_tensor_v, head_dim_v),
        lane_axes,
        positions=find_user_positions((), cur_pos_tensor, input_tensor_q, lane_axes) if is_causal else None,
        mask=attn_mask,
        sink=attention_sink,
        scale=scale,
        window=sliding_window_size,
        table=page_table_tensor,
    )
