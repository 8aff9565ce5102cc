"""Operations that take memory_config= with a sharding only together with its shards: they do not choose shards."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ttmesh.base.dtypes import TensorMemoryLayout
from ttmesh.tensor.calls.operation import Call, SpecRule
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.spec_checks import ShardMisfitError
from ttmesh.tensor.spec.tensor_spec import TensorSpec

# observed on TT-NN 0.81.1; the others (element-wise operations, slice, repeat, transpose …) choose cores and shards
_NAMES = (
    "add_bw addalpha_bw argmax assign batch_norm bernoulli bias_gelu_bw clone concat concat_bw cumprod cumsum div_bw "
    "ema embedding embedding_bw exp_bw experimental.attn_matmul experimental.attn_matmul_from_cache "
    "experimental.deepseek_grouped_gate experimental.deepseek_prefill.moe_grouped_topk "
    "experimental.deepseek_prefill.moe_hash_gate experimental.dit_layernorm_post_allgather "
    "experimental.dit_minimal_matmul_addcmul_fused experimental.dit_rms_norm_unary_fused experimental.dropout "
    "experimental.fast_reduce_nc experimental.hc_sum_reduce experimental.minimal_matmul "
    "experimental.minimal_matmul_split experimental.multi_scale_deformable_attn experimental.nlp_concat_heads_boltz "
    "experimental.rotate_half experimental.wan_fused_rmsnorm_post_allgather gelu_bw group_norm index_fill layer_norm "
    "layer_norm_post_all_gather layer_norm_pre_all_gather moe moreh_abs_pow moreh_adam moreh_adamw moreh_bmm "
    "moreh_clip_grad_norm moreh_cumsum moreh_cumsum_backward moreh_dot moreh_fold moreh_full_like moreh_getitem "
    "moreh_group_norm moreh_layer_norm moreh_linear moreh_logsoftmax moreh_logsoftmax_backward moreh_matmul "
    "moreh_mean moreh_mean_backward moreh_nll_loss moreh_norm moreh_norm_backward moreh_softmax "
    "moreh_softmax_backward moreh_softmin moreh_softmin_backward moreh_sum moreh_sum_backward neg_bw pad pow_bw "
    "prod prod_bw repeat_interleave rms_norm rms_norm_post_all_gather rms_norm_pre_all_gather roll rotate rpow_bw "
    "rsqrt_bw rsub_bw scale_mask_softmax scatter scatter_add sigmoid_bw silu_bw softmax sort sqrt_bw sub_bw "
    "subalpha_bw tanh_bw topk tosa_scatter transformer.attention_softmax transformer.chunked_flash_mla_prefill "
    "transformer.chunked_scaled_dot_product_attention transformer.concatenate_heads transformer.flash_mla_prefill "
    "transformer.flash_multi_latent_attention_decode transformer.paged_flash_multi_latent_attention_decode "
    "transformer.paged_scaled_dot_product_attention_decode "
    "transformer.ring_distributed_scaled_dot_product_attention transformer.scaled_dot_product_attention tril triu "
    "typecast untilize untilize_with_unpadding"
)
NEEDS_SHARDS = frozenset(f"ttnn.{name}" for name in _NAMES.split())
CONFIGS = ("memory_config", "output_memory_config", "output_mem_config")
# these take the cores of an input in shards
FROM_INPUT = frozenset({"ttnn.layer_norm", "ttnn.rms_norm", "ttnn.transformer.concatenate_heads"})
FROM_SAME_LAYOUT = "ttnn.untilize_with_unpadding"


def require_shards(name: str, out: SpecRule) -> SpecRule:
    """The rule of an operation's results, which refuses a sharding without shards where the operation needs them."""
    if name not in NEEDS_SHARDS:
        return out

    def check_and_infer(call: Call, inferred: Sequence[Any]) -> Sequence[TensorSpec]:
        for argument in CONFIGS:
            if not _takes_input_shards(name, call.specs[0], call[argument]):
                check_shards_given(call[argument])
        return out(call, inferred)

    return check_and_infer


def _takes_input_shards(name: str, spec: TensorSpec, config: MemoryConfig | None) -> bool:
    """Whether an operation divides its result like its input, where memory_config= names a sharding alone."""
    held = spec.memory_config
    if config is None or held.shard_spec is None:
        return False
    if name == FROM_SAME_LAYOUT:
        is_matrix = prod(spec.padded_shape[:-2]) == 1
        return held.memory_layout is config.memory_layout and (
            is_matrix or held.memory_layout is not TensorMemoryLayout.BLOCK_SHARDED
        )
    return name in FROM_INPUT


def check_shards_given(config: MemoryConfig | None, wrong: str = "bad optional access") -> None:
    """Refuse a sharding without shards, in TT-NN's words."""
    if config is None or not config.is_sharded() or config.shard_spec is not None or config.nd_shard_spec is not None:
        return
    if wrong == "bad optional access":
        wrong += f": MemoryConfig must have Shard Spec specified for sharded memory layout; got {config}"
    raise ShardMisfitError(wrong, expected="a shard_spec or nd_shard_spec", fix="Use create_sharded_memory_config.")
