"""Tags for parameters that lane functions do not name: used elsewhere, checked, or without effect (with the reason)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple


class Tag(NamedTuple):
    """How ttmesh treats a parameter: uses it outside the lane function, only checks it, or ignores it."""

    kind: Literal["used", "checked", "no effect"]
    reason: str


def _no_effect(reason: str) -> Tag:
    return Tag("no effect", reason)


def _tag_parameters(tag: Tag, parameters: str) -> dict[str, Tag]:
    return dict.fromkeys(parameters.split(), tag)


def _tag_operations(operations: Iterable[str], tags: dict[str, Tag]) -> dict[str, dict[str, Tag]]:
    return {f"ttnn.{name}": tags for name in operations}


CORES = (
    "Which cores compute is not emulated: values and addresses do not depend on it. Element-wise operations count a "
    "program for every choice, as TT-NN does."
)
PRECISION = (
    "How precisely the chip's vector unit approximates a function; ttmesh computes it in float32 and rounds once. Where "
    "it chooses the FPU (multiply, and max, mean and statistics of norms of float32) results follow it (docs/numerics.md)."
)

FIDELITY = _no_effect(
    "math_fidelity, fp32_dest_acc_en and packer_l1_acc choose how many bits the FPU keeps in between. Operations of "
    "the FPU follow them in the numerics realistic (the default) and exact (docs/numerics.md lists these operations). In "
    "ideal, and in functions of the vector unit, results are accumulated in float32 and rounded once. math_approx_mode "
    "and dst_full_sync_en change no value."
)
SLICES = _no_effect("How TT-NN slices the work so that it fits into L1; the result is the same.")
HALO = _no_effect("Where intermediate buffers of sliding windows are stored; they are not emulated.")
DESCRIBED = _no_effect(
    "Describes the convolution the weights are prepared for; in ttmesh their order does not depend on it."
)
CONVOLUTION = (
    "input_memory_config input_layout in_channels out_channels batch_size input_height input_width kernel_size stride "
    "padding output_padding dilation has_bias groups input_dtype output_dtype slice_config dram_slice_config"
)

COMMON = {
    "compute_config": FIDELITY,
    "compute_kernel_config": FIDELITY,
    "config_tensor_in_dram": HALO,
    "core_grid": _no_effect(CORES),
    "dram_slice_config": SLICES,
    "fast_and_approximate_mode": _no_effect(PRECISION),
    "numeric_stable": _no_effect("The largest element is always subtracted first; no input overflows."),
    "program_config": _no_effect("Cores and block sizes; operations whose buffers depend on it (matmul) read it."),
    "reallocate_halo_output": HALO,
    "reallocate_output": HALO,
    "slice_config": SLICES,
    "sub_core_grids": _no_effect(CORES),
    "sub_device_id": _no_effect(
        "Programs run in queue order whichever sub-device they name; loads and stalls are not emulated."
    ),
    "subdevice_id": _no_effect(
        "Programs run in queue order whichever sub-device they name; loads and stalls are not emulated."
    ),
    "use_low_perf": _no_effect(CORES),
    "use_multicore": _no_effect(CORES),
}

SAME_ANYWHERE = _no_effect("TT-NN returns the real or imaginary tensor itself, in its own memory.")
DEPRECATED = _no_effect("Deprecated in TT-NN, which ignores it as well.")
PREFETCH = _no_effect("The buffer of prefetched weights; ttmesh reads weights from their own memory.")
OWN_MEMORY = Tag("used", "Where that result is allocated.")
PADDING = _no_effect("ttmesh stores no padding of tiles; it is filled when a tensor is converted to bytes.")

PER_OPERATION: dict[str, dict[str, Tag]] = {
    "ttnn.argmax": {"enable_secondary_dm": _no_effect(CORES)},
    "ttnn.cumsum": {"disable_compensated_sum": _no_effect("Sums are accumulated in float32 and rounded once.")},
    "ttnn.experimental.moe_compute": _tag_parameters(FIDELITY, "math_fidelity fp32_dest_acc_en"),
    "ttnn.transformer.sparse_sdpa_msa": {
        "enable_kv_block_cache": _no_effect(
            "Whether the kernel keeps blocks in L1 to read them once; values are the same."
        )
    },
    "ttnn.experimental.deepseek_moe_fast_reduce_nc_fused": _tag_parameters(
        _no_effect("TT-NN reads it with scores_tensor= only, which is not emulated."),
        "expert_indices_tensor expert_mapping_tensor cluster_axis num_shared_experts shared_expert_scale",
    ),
    "ttnn.experimental.deepseek.moe.moe_gate_mm": {
        "column_id": _no_effect("The mesh column for which the cores also note the experts; the results are the same.")
    },
    "ttnn.topk": {"sorted": _no_effect("The chip sorts the results in both cases.")},
    **_tag_operations(("prepare_conv_weights", "prepare_conv_bias"), _tag_parameters(DESCRIBED, CONVOLUTION)),
    **_tag_operations(
        ("prepare_conv_transpose2d_weights", "prepare_conv_transpose2d_bias"), _tag_parameters(DESCRIBED, CONVOLUTION)
    ),
    "ttnn.group_norm": {
        **_tag_parameters(
            _no_effect("Masks and reciprocals for TT-NN's kernels; ttmesh derives groups from num_groups."),
            "reciprocals",
        ),
    },
    **{
        f"ttnn.experimental.{name}": {"math_fidelity": FIDELITY}
        for name in ("repeat_and_interleave_eltwise_mul", "hc_sum_reduce", "prefix_scan")
    },
    "ttnn.experimental.dit_minimal_matmul_addcmul_fused": {
        "config": _no_effect("How TT-NN splits the matmul into blocks.")
    },
    "ttnn.conj_bw": {"input_tensor": _no_effect("The gradient of a conjugate does not depend on the input.")},
    "ttnn.real": {"memory_config": SAME_ANYWHERE},
    "ttnn.imag": {"memory_config": SAME_ANYWHERE},
    "ttnn.sigmoid": {
        "vector_mode": _no_effect("Chooses the faces of a tile the vector unit visits; every element is computed."),
        "mode": _no_effect(PRECISION),
    },
    **{f"ttnn.{name}": {"correction": DEPRECATED} for name in ("sum", "mean", "max", "min")},
    "ttnn.permute": {"pad_value": PADDING},
    "ttnn.transpose": {"pad_value": PADDING},
    "ttnn.slice": {"pad_value": PADDING},
    "ttnn.experimental.padded_slice": {"pad_value": PADDING},
    "ttnn.repeat": {"implementation": _no_effect("Chooses between kernels with equal results.")},
    "ttnn.reshape": {
        "reshape_tile_mode": _no_effect("Whether TT-NN caches its index map; ttmesh has none."),
    },
    **{f"ttnn.{name}": {"global_cb": PREFETCH} for name in ("matmul", "linear")},
    "ttnn.sparse_matmul": {
        "global_cb": PREFETCH,
    },
    "ttnn.dram_prefetcher": {
        "num_layers": Tag("checked", "It must be positive: how often the weights are prefetched."),
        "global_cb": Tag("checked", "Its mapping must fit the weights' shards; no data is sent through it."),
        "enable_performance_mode": _no_effect("Speed of the chip's own kernel."),
    },
    "ttnn.transformer.sparse_sdpa": {
        "k_chunk_size": _no_effect("How many keys TT-NN's kernel takes at a time; the result is the same."),
        "block_cyclic_chunk_local": Tag("checked", "Only with block_cyclic_sp_axis, which is not emulated."),
    },
    "ttnn.moreh_group_norm": _tag_parameters(OWN_MEMORY, "mean_memory_config rstd_memory_config"),
    "ttnn.moreh_group_norm_backward": _tag_parameters(
        OWN_MEMORY, "input_grad_memory_config gamma_grad_memory_config beta_grad_memory_config"
    ),
    "ttnn.moreh_sgd": _tag_parameters(OWN_MEMORY, "param_out_memory_config momentum_buffer_out_memory_config"),
    **{
        f"ttnn.moreh_{name}": _tag_parameters(
            _no_effect("The operation's name determines the function; how the work is split changes no value."),
            "op strategy",
        )
        for kind in ("softmax", "softmin", "logsoftmax")
        for name in (kind, f"{kind}_backward")
    },
    "ttnn.copy": {"input_b": Tag("used", "The values are written into it.")},
    "ttnn.embedding": {
        "padding_idx": _no_effect("TT-NN caches this row in L1; its values are the same."),
        "embeddings_type": _no_effect("Which rows TT-NN caches in L1; their values are the same."),
    },
    **{
        f"ttnn.experimental.{name}": {"compute_with_storage_grid_size": _no_effect(CORES)}
        for name in ("attn_matmul", "attn_matmul_from_cache", "group_attn_matmul")
    },
    "ttnn.experimental.deepseek_prefill.moe_grouped_topk": {
        "stable_sort": _no_effect("Which of two equal scores comes first; ttmesh does not guarantee an order either.")
    },
    "ttnn.experimental.deepseek_prefill.unified_routed_expert_moe": {
        "max_dispatched_tokens_per_expert": _no_effect("The size of TT-NN's temporary buffers; ttmesh has none.")
    },
    "ttnn.addmm": {"output_tile": Tag("used", "The tiles of the result.")},
    "ttnn.experimental.isin": {"assume_unique": _no_effect("TT-NN ignores it as well.")},
    "ttnn.experimental.dit_layernorm_pre_allgather": {
        "recip_tensor": _no_effect("Precomputed reciprocals of counts; ttmesh divides.")
    },
    "ttnn.transformer.chunk_gated_delta_rule": {
        **_tag_parameters(
            _no_effect("Constants that TT-NN's kernel reads; ttmesh does not need them."), "eye tril ones masks"
        ),
        "wy_inverse": _no_effect("How the kernel inverts a triangular matrix; ttmesh solves with it."),
    },
    "ttnn.experimental.minimal_matmul": {"config": _no_effect(CORES)},
    "ttnn.fill_implicit_tile_padding": {"fill_value": PADDING},
    "ttnn.fold": {
        "use_transpose_as_fold": Tag(
            "checked", "Another order of dims with the same blocks; refused together with collapse_output."
        ),
        "grid_size": _no_effect(CORES),
        "override_memory_config": Tag("used", "Where the result is allocated."),
    },
    "ttnn.gather": {"sparse_grad": Tag("checked", "TT-NN refuses True.")},
    "ttnn.interleaved_to_sharded": {
        "keep_l1_aligned": _no_effect("Shards keep the alignment of their memory in both cases.")
    },
    "ttnn.matmul_batched_weights": {"global_cb": PREFETCH, "optional_output_tensor": DEPRECATED},
    "ttnn.transformer.attention_softmax": {"program_config": _no_effect(CORES)},
    "ttnn.transformer.attention_softmax_": {
        "program_config": _no_effect(CORES),
        "memory_config": _no_effect("The result is written into the input's memory."),
    },
    "ttnn.transformer.scaled_dot_product_attention_decode": {
        "share_cache": _no_effect("A cache of batch 1 is broadcast in both cases.")
    },
    "ttnn.transformer.split_query_key_value_and_split_heads": {
        "use_falcon7b_backend": _no_effect("Chooses between kernels with equal results.")
    },
    **{
        f"ttnn.experimental.{name}": {"compute_with_storage_grid_size": _no_effect(CORES)}
        for name in ("concatenate_heads", "split_query_key_value_and_split_heads")
    },
    **{
        f"ttnn.experimental.{name}": {"batch_offset": _no_effect("TT-NN's kernels take only 0, the default.")}
        for name in ("paged_update_cache", "paged_fused_update_cache")
    },
    **{
        f"ttnn.{name}": {"recip_tensor": _no_effect("Precomputed reciprocals of counts; ttmesh divides.")}
        for name in ("layer_norm", "layer_norm_pre_all_gather")
    },
    **{
        f"ttnn.{name}": {"use_2d_core_grid": _no_effect(CORES)}
        for name in ("rms_norm_pre_all_gather", "rms_norm_post_all_gather")
    },
}
