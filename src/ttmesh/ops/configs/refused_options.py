"""Options of TT-NN 0.81.1 that are taken with their default and refused with any other value: they are not emulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttmesh.base.errors import NotEmulatedError

_EXPERIMENTAL, _PREFILL, _TRANSFORMER = (
    "ttnn.experimental.",
    "ttnn.experimental.deepseek_prefill.",
    "ttnn.transformer.",
)

# operation -> its options
REFUSED: dict[str, tuple[str, ...]] = {
    name: tuple(options.split())
    for name, options in {
        "ttnn.bias_gelu_bw": "variant",
        "ttnn.dram_prefetcher": "prefetcher_pipes",
        "ttnn.geglu": "variant",
        "ttnn.linear": "prefetcher_pipes in0_column_offset",
        "ttnn.matmul": "prefetcher_pipes",
        "ttnn.sparse_matmul": "bias",
        f"{_EXPERIMENTAL}conv3d": "weight_lo_tensor",
        f"{_PREFILL}moe_grouped_topk": "weights_layout",
        f"{_PREFILL}rotary_embedding_indexed": "seq_subshard_axis rotary_dim rotary_offset concat_prefix",
        f"{_PREFILL}unified_routed_expert_moe": "min_active_tokens max_active_tokens",
        f"{_PREFILL}update_padded_kv_cache": "valid_global tp_axis rope scales",
        f"{_EXPERIMENTAL}dit_fused_distributed_rmsnorm": "affine_tile_row_map",
        f"{_EXPERIMENTAL}high_bw_all_gather": (
            "input_batch_index_tensor batch_slot_num_layers batch_slot_layer_idx gathered_prefix_tensor "
            "gathered_slab_global ready_semaphore data_valid_semaphore"
        ),
        f"{_EXPERIMENTAL}indexer_score_dsa": "key_compression_ratio block_cyclic_cache_tp_sharded",
        f"{_EXPERIMENTAL}indexer_score_msa": "block_cyclic_cache_tp_sharded",
        f"{_EXPERIMENTAL}kda.sigmoid_gated_rms_norm": "gate_column_offset",
        f"{_EXPERIMENTAL}moe_compute": "activation_limit",
        f"{_EXPERIMENTAL}topk_large_indices": "valid_length_tensor valid_length_offset valid_end_tensor",
        f"{_TRANSFORMER}chunked_scaled_dot_product_attention": "sliding_window_size attention_sink",
        f"{_TRANSFORMER}paged_scaled_dot_product_attention_decode": "spec_multi_pos_tiles",
        f"{_TRANSFORMER}ring_joint_scaled_dot_product_attention": (
            "circular_kv_cache slot_id kv_actual_isl_tensor kv_cache_num_layers kv_cache_layer_idx kv_valid_end_tensor"
        ),
        f"{_TRANSFORMER}scaled_dot_product_attention": (
            "windowed_q_token_offset windowed_q_token_offset_tensor output_concat_heads attn_mask_block_map"
        ),
        f"{_TRANSFORMER}sparse_sdpa": "block_cyclic_cache_tp_sharded attention_sink",
    }.items()
}
DEFAULTS = {"variant": "Accurate", "weights_layout": "TILE"}  # of options whose default is an object, by its name


def check_options(
    operation: str, options: tuple[str, ...], arguments: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Refuse a value other than the default of an option that is not emulated."""
    for name in options:
        value, default = arguments.get(name), defaults.get(name)
        plain = tuple(value) if isinstance(value, list) else value
        is_plain = isinstance(plain, bool | int | tuple)
        if value is None or (is_plain and plain == default) or getattr(value, "name", "") == DEFAULTS.get(name):
            continue
        raise NotEmulatedError(
            f"{operation}: {name} is not emulated",
            expected=f"its default, {default}",
            fix="Leave it out.",
        )
