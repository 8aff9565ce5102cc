"""How the FPU is set where a call names no compute config: TT-NN 0.81.1's defaults, one line per operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ttmesh.base.dtypes import BLOCK_FLOATS, Arch, DataType, MathFidelity, bfloat16, float32
from ttmesh.chip.numerics.fpu_config import PHASES, FpuConfig
from ttmesh.ops.catalogue.checks import normalize_dims
from ttmesh.tensor.calls.operation import Case

FORMATS = BLOCK_FLOATS | {bfloat16, float32}
LOFI, HIFI2, HIFI4 = MathFidelity.LoFi, MathFidelity.HiFi2, MathFidelity.HiFi4
Fidelity = Callable[[Case], MathFidelity]
Wide = Callable[[Case], bool]
FpuRule = Callable[[Case], FpuConfig | None]


def follow(
    fidelity: MathFidelity | Fidelity, *, wide: bool | Wide = False, l1_acc: bool = False, fixed: bool = False
) -> FpuRule:
    """The rule of an operation with these defaults.

    Args:
        wide: whether the destination has 32 bits.
        fixed: whether the program does not look at a call's compute config.
    """

    def resolve(case: Case) -> FpuConfig | None:
        formats = [spec.dtype for spec in case.specs if spec.dtype in FORMATS]
        results = [spec.dtype for spec in case.results if spec.dtype in FORMATS]
        if not formats or case.specs[0].dtype not in FORMATS or not results:
            return None  # integers take the vector unit
        given = None if fixed else _compute_config_of(case)
        if given is not None:
            chosen = given.math_fidelity if given.math_fidelity in PHASES else HIFI4
            return FpuConfig(case.arch, chosen, given.fp32_dest_acc_en, given.packer_l1_acc, out_dtype=results[0])
        own = fidelity(case) if callable(fidelity) else fidelity
        width = wide(case) if callable(wide) else wide
        return FpuConfig(case.arch, own, width, l1_acc, out_dtype=results[0])

    return resolve


def _compute_config_of(case: Case) -> Any:
    """The compute config of the call; a matmul's can be in either of two options."""
    for name in ("compute_kernel_config", "compute_config"):
        if case[name] is not None:
            return case[name]
    return None


def is_float32(case: Case) -> bool:
    """Whether the first operand is float32."""
    return case.specs[0].dtype is float32


def are_float32(case: Case) -> bool:
    """Whether the first two operands are float32."""
    return {spec.dtype for spec in case.specs[:2]} == {float32}


def hifi3_on_wormhole(case: Case) -> MathFidelity:
    """HiFi4, but HiFi3 on Wormhole, whose 32-bit registers have a fault that HiFi4 meets more often."""
    return MathFidelity.HiFi3 if case.arch is Arch.WORMHOLE_B0 else HIFI4


def _indexer_fidelity(case: Case) -> MathFidelity:
    return LOFI if {spec.dtype for spec in case.specs[:2]} == {DataType.BFLOAT8_B} else HIFI2


def _pool_wide(case: Case) -> bool:
    """Windows that take more than one step of the reduction are summed in 32 bits (tt-metal e4f9f0b)."""
    return _is_tall_window(case, *case["window"])


def _adaptive_pool_wide(case: Case) -> bool:
    """The same of the windows that a result of this size takes."""
    down, across = (-(-extent // count) for extent, count in zip(case["size"][1:3], case["window"], strict=True))
    return _is_tall_window(case, down, across)


def _is_tall_window(case: Case, down: int, across: int) -> bool:
    most = 16 if 0 < case["size"][3] % 32 <= 16 else 32
    return down * across > most or is_float32(case)


def _group_norm_wide(case: Case) -> bool:
    return bool(case["use_welford"]) or is_float32(case)


def takes_one_program(dims: Sequence[int]) -> bool:
    """Whether one reduction does it: over the width, the height or both. Dims count from the end."""
    return set(dims) <= {-1, -2}


def _mean(case: Case) -> FpuConfig | None:
    """Like a sum; of float32 with a 32-bit destination those of one program take the vector unit, unless told to be fast."""
    config = follow(hifi3_on_wormhole, wide=True)(case)
    one_program = takes_one_program(normalize_dims(case["dim"], len(case.specs[0].shape)))
    accurate = is_float32(case) and one_program and not case["fast_and_approximate_mode"]
    return None if config is None or (accurate and config.fp32_dest) else config


def _extreme(*, largest: bool) -> FpuRule:
    """Like a sum; of float32 accurate maxima with a 32-bit destination take the vector unit, minima never do."""

    def resolve(case: Case) -> FpuConfig | None:
        config = follow(hifi3_on_wormhole, wide=True)(case)
        seeks_largest = largest == (case["scalar"] >= 0)  # minus the smallest is the largest of the negated values
        accurate = is_float32(case) and seeks_largest and not case["fast_and_approximate_mode"]
        return None if config is None or (accurate and config.fp32_dest) else config

    return resolve


def _row_statistics(case: Case) -> FpuConfig | None:
    """Of float32 in a 32-bit destination they take the vector unit unless told to be fast; Welford's method always does."""
    config = follow(HIFI4)(case)
    welford = bool(getattr(case["program_config"], "use_welford", False))
    accurate = is_float32(case) and (welford or not case["fast_and_approximate_mode"])
    return None if config is None or (accurate and config.fp32_dest) else config


def _attention(case: Case) -> FpuConfig | None:
    """HiFi2 in 16-bit destinations, the program config's keys at a time."""
    config = follow(HIFI2)(case)
    chunk = getattr(case["program_config"], "k_chunk_size", None)
    return config if config is None or not chunk else replace(config, k_block=chunk)


def _table(rule: FpuRule, names: str, prefix: str = "ttnn.") -> Iterable[tuple[str, FpuRule]]:
    return ((prefix + name, rule) for name in names.split())


_TRANSFORMER, _EXPERIMENTAL = "ttnn.transformer.", "ttnn.experimental."
_PREFILL = "ttnn.experimental.deepseek_prefill."

fpu_rules: dict[str, FpuRule] = dict([
    *_table(follow(hifi3_on_wormhole, wide=True), "sum var std global_avg_pool2d batch_norm"),
    ("ttnn.batch_norm running statistics", follow(hifi3_on_wormhole, wide=True)),
    *_table(_mean, "mean"),
    *_table(_extreme(largest=True), "max"),
    *_table(_extreme(largest=False), "min"),
    *_table(
        follow(HIFI4), "fast_reduce_nc fast_reduce_nc_split hc_sum_reduce multi_scale_deformable_attn", _EXPERIMENTAL
    ),
    *_table(follow(HIFI4, fixed=True), "post_combine_reduce", _PREFILL),
    *_table(follow(HIFI4, wide=is_float32), "dit_rms_norm_unary_fused", _EXPERIMENTAL),
    *_table(
        follow(HIFI4, wide=True), "wan_fused_rmsnorm_pre_allgather wan_fused_rmsnorm_post_allgather", _EXPERIMENTAL
    ),
    *_table(follow(HIFI4, wide=True), "sigmoid_gated_rms_norm", "ttnn.experimental.kda."),
    *_table(follow(HIFI4, wide=True), "chunk_gated_delta_rule fused_recurrent_gated_delta_rule", _TRANSFORMER),
    *_table(follow(HIFI2, wide=True), "gated_delta_attn_seq", _TRANSFORMER),
    *_table(follow(HIFI4), "moreh_dot moreh_sum moreh_mean moreh_norm"),
    *_table(follow(LOFI), "moreh_bmm moreh_matmul moreh_linear moreh_left moreh_right moreh_weight"),
    *_table(follow(LOFI), "fill_cache update_cache"),
    *_table(follow(LOFI), "paged_update_cache paged_fill_cache", _EXPERIMENTAL),
    ("ttnn.experimental.paged_fused_update_cache second half", follow(LOFI)),
    *_table(follow(LOFI), "update_padded_kv_cache", _PREFILL),
    *_table(
        follow(HIFI4),
        "bias nll_loss layer_norm group_norm group_norm_backward softmax_backward softmin_backward "
        "logsoftmax_backward clip_grad_norm",
        "ttnn.moreh_",
    ),
    *_table(follow(HIFI4, wide=is_float32), "softmax softmin logsoftmax", "ttnn.moreh_"),
    *((f"ttnn.moreh_norm{part}", follow(HIFI4)) for part in (" statistics", "_backward input", "_backward parameters")),
    *_table(follow(HIFI2, wide=True, l1_acc=True), "minimal_matmul dit_minimal_matmul_addcmul_fused", _EXPERIMENTAL),
    *_table(follow(LOFI), "attn_matmul group_attn_matmul attn_matmul_from_cache", _EXPERIMENTAL),
    *_table(follow(HIFI4, fixed=True), "matmul_decode", _EXPERIMENTAL),
    *_table(follow(LOFI, fixed=True), "topk_router_gpt", _EXPERIMENTAL),
    *_table(follow(LOFI), "routed_expert_ffn unified_routed_expert_moe", _PREFILL),
    *_table(follow(_indexer_fidelity), "indexer_score", _EXPERIMENTAL),
    *_table(follow(HIFI4), "rotary_embedding_llama rotary_embedding_llama_fused_qk", _EXPERIMENTAL),
    *_table(
        _attention,
        "scaled_dot_product_attention scaled_dot_product_attention_decode paged_scaled_dot_product_attention_decode "
        "chunked_scaled_dot_product_attention joint_scaled_dot_product_attention windowed_scaled_dot_product_attention "
        "ring_distributed_scaled_dot_product_attention ring_joint_scaled_dot_product_attention "
        "ring_mla flash_mla_prefill chunked_flash_mla_prefill "
        "flash_multi_latent_attention_decode paged_flash_multi_latent_attention_decode sparse_sdpa sparse_sdpa_msa",
        _TRANSFORMER,
    ),
    *_table(follow(HIFI4, wide=are_float32), "conv2d"),
    *_table(follow(HIFI2), "conv3d", _EXPERIMENTAL),
    *_table(follow(HIFI4, wide=_pool_wide), "avg_pool2d"),
    *_table(follow(HIFI4, wide=_adaptive_pool_wide), "adaptive_pool2d"),
    *_table(follow(HIFI4, wide=True), "layer_norm"),
    *_table(follow(HIFI4), "rms_norm layer_norm_post_all_gather rms_norm_post_all_gather"),
    *_table(_row_statistics, "layer_norm_pre_all_gather rms_norm_pre_all_gather"),
    *_table(follow(HIFI4, wide=_group_norm_wide), "group_norm"),
    *_table(
        follow(hifi3_on_wormhole, wide=True),
        "softmax softmax_in_place scale_mask_softmax scale_mask_softmax_in_place "
        "scale_causal_mask_hw_dims_softmax_in_place",
    ),
])  # fmt: skip


def _reasons(reason: str, names: str, prefix: str = "ttnn.") -> dict[str, str]:
    return {prefix + name: reason for name in names.split()}


_VECTOR = "sums on the vector unit: as in ideal"
_ACCUMULATOR = "a float32 accumulator on the vector unit, 32-bit destination: as in ideal"
_WELFORD = "Welford's method on the vector unit: as in ideal"

# Operations that multiply matrices or sum and are not in the table above, or not always, with the reason.
NOT_IN_TABLE: dict[str, str] = {
    **_reasons("follows; the call's program decides", "matmul linear matmul_batched_weights addmm sparse_matmul"),
    **_reasons("a difference, then ttnn.sum or ttnn.mean, which follow", "mse_loss l1_loss"),
    **_reasons("follows, but float32 is averaged on the vector unit", "mean"),
    **_reasons("follows, but the sum of the weights is as in ideal", "moreh_nll_loss"),
    **_reasons(_WELFORD, "var_hw std_hw normalize_hw normalize_global"),
    **_reasons(_WELFORD, "dit_layernorm_pre_allgather dit_layernorm_post_allgather", _EXPERIMENTAL),
    **_reasons(_ACCUMULATOR, "cumsum moreh_cumsum moreh_cumsum_backward"),
    **_reasons(_VECTOR, "intimg deepseek_grouped_gate", _EXPERIMENTAL),
    **_reasons(_VECTOR, "moe_grouped_topk moe_hash_gate", _PREFILL),
    **_reasons(_VECTOR, "deepseek_moe_gate generalized_moe_gate", "ttnn.experimental.deepseek.moe."),
    **_reasons("softmax of a few experts: as in ideal", "moe"),
    **_reasons("means of four pixels: as in ideal", "rgb_to_yuv", _EXPERIMENTAL),
}
