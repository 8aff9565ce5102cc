"""What device operations require of their operands one by one, with TT-NN's texts, in the order of its checks."""

from __future__ import annotations

from collections.abc import Mapping

from ttmesh.ops.requirements.moreh_operands import MOREH_OPERANDS
from ttmesh.ops.requirements.operand_rules import (
    OperandRule,
    equal_lengths,
    formats,
    in_dram,
    in_l1,
    index_formats,
    memory,
    only_for,
    row_major,
    tiles,
    wide_destination,
)

_ATTN_MATMUL = (
    tiles("input_tensor_a input_tensor_b", "Inputs to matmul must be tilized"),
    wide_destination(
        "input_tensor_a input_tensor_b", "when inputs/output are in fp32 format, fp32_dest_acc_en must be set"
    ),
)
_STATISTICS = "bf16 bf8 f32"


def _before_gather(name: str) -> tuple[OperandRule, ...]:
    return (
        tiles("input_tensor", "Only tilized inputs supported."),
        formats("input_tensor", _STATISTICS, "Input data format not supported."),
        only_for(
            wide_destination(
                "input_tensor",
                f"{name}_pre_all_gather with Float32 input requires fp32_dest_acc_en=true in the compute kernel config; "
                "otherwise precision is silently lost in the unpacker format conversion.",
            ),
            sharded=False,
        ),
    )


_AFTER_GATHER = (
    tiles("input_tensor", "Input tensor must have TILE layout, got: {}"),
    formats("input_tensor", _STATISTICS, "Input tensor must be BFLOAT16, BFLOAT8_B, or FLOAT32, got: {}"),
    tiles("stats", "Stats tensor must have TILE layout, got: {}"),
    formats("stats", _STATISTICS, "Stats tensor must be BFLOAT16, BFLOAT8_B, or FLOAT32, got: {}"),
    only_for(
        wide_destination(
            "input_tensor stats", "FLOAT32 input/stats require fp32_dest_acc_en=true in the compute kernel config."
        ),
        sharded=False,
    ),
)
_ATTENTION = "input_tensor_q input_tensor_k input_tensor_v"
_ATTENTION_FORMATS = "bf16 bf8 bf4"
_PREFILL = tuple(
    rule
    for operand in _ATTENTION.split()
    for rule in (
        tiles(operand, "Inputs to SDPA must be tilized"),
        formats(
            operand,
            _ATTENTION_FORMATS,
            "Data type of input tensor must be BFLOAT16, BFLOAT8_B, or BFLOAT4_B and is {}",
        ),
        memory(operand, "interleaved", "Operands to SDPA need to be DRAM/L1 interleaved"),
    )
)
_DECODE = (
    formats(_ATTENTION, _ATTENTION_FORMATS, "Unsupported data type {}."),
    tiles("input_tensor_k input_tensor_v", "Inputs to SDPA must be tilized except for Q"),
    memory(
        "input_tensor_q",
        "interleaved height",
        "Q tensor memory layout must be HEIGHT_SHARDED when sharded but got {}",
    ),
    in_dram("input_tensor_q", "Q tensor buffer type must be DRAM when not sharded but got {}", or_sharded=True),
    in_dram("input_tensor_k", "Input tensor 1 buffer type must be DRAM but got {}"),
    in_dram("input_tensor_v", "Input tensor 2 buffer type must be DRAM but got {}"),
)
_LLAMA_ROPE = tuple(
    tiles(operand, f"{name} to rotary embedding must be tilized")
    for operand, name in (
        ("input_tensor", "input tensor"),
        ("cos_cache", "cos tensor"),
        ("sin_cache", "sin tensor"),
        ("trans_mat", "transformation matrix"),
    )
)
_FUSED_ROPE_OPERANDS = (
    ("q_input_tensor", "Q input"),
    ("k_input_tensor", "K input"),
    ("cos_cache", "Cos"),
    ("sin_cache", "Sin"),
    ("trans_mat", "Trans mat"),
)
_FUSED_ROPE = tuple(
    rule
    for operand, name in _FUSED_ROPE_OPERANDS
    for rule in (
        memory(operand, "height", f"{name} tensor must be HEIGHT_SHARDED."),
        formats(operand, "bf16", f"{name} tensor must be bfloat16"),
    )
)

_PAGE_TABLE = (
    row_major("page_table_tensor", "Page table must be row major"),
    index_formats("page_table_tensor", "i32", "Page table must be int32"),
)


OPERAND_RULES: Mapping[str, tuple[OperandRule, ...]] = {
    **MOREH_OPERANDS,
    "ttnn.transformer.concatenate_heads": (formats("input_tensor", "f32 bf16 bf8", "Unsupported data format"),),
    "ttnn.experimental.nlp_create_qkv_heads_boltz": (
        formats("input", "f32 bf16 bf8", "Unsupported data type"),
        tiles("input", "Input tensor layout must be TILE but got {}"),
    ),
    "ttnn.experimental.nlp_kv_cache_load_slice": (
        tiles("input_tensor", "Input tensor layout must be TILE but got {}"),
    ),
    "ttnn.addmm": (tiles("mat1_tensor mat2_tensor", "Inputs to matmul must be tilized"),),
    "ttnn.experimental.rotary_embedding_hf": (
        tiles("input_tensor", "Input must be tilized"),
        tiles("cos_cache", "Cos must be tilized"),
        tiles("sin_cache", "Sin must be tilized"),
    ),
    "ttnn.moe_expert_token_remap": (
        row_major("topk_tensor", "topk tensor must be in row major layout"),
        row_major("expert_metadata_tensor", "Metadata tensor must be in row major layout"),
    ),
    "ttnn.experimental.nlp_concat_heads_boltz": (
        tiles("input_tensor", "Input tensor layout must be TILE but got {}"),
    ),
    "ttnn.experimental.attn_matmul": _ATTN_MATMUL,
    "ttnn.experimental.attn_matmul_from_cache": _ATTN_MATMUL,
    "ttnn.experimental.group_attn_matmul": _ATTN_MATMUL,
    "ttnn.layer_norm_pre_all_gather": _before_gather("layer_norm"),
    "ttnn.rms_norm_pre_all_gather": _before_gather("rms_norm"),
    "ttnn.layer_norm_post_all_gather": _AFTER_GATHER,
    "ttnn.rms_norm_post_all_gather": _AFTER_GATHER,
    "ttnn.experimental.dit_layernorm_pre_allgather": (
        memory(
            "input_tensor",
            "interleaved",
            "DIT layernorm pre-all-gather does not support sharded inputs.",
        ),
        *_before_gather("dit_layernorm"),
        in_l1("recip_tensor", "Only L1 buffers can have an associated circular buffer!"),
    ),
    "ttnn.experimental.dit_layernorm_post_allgather": (
        memory("input_tensor", "interleaved", "DIT layernorm post-all-gather does not support sharded inputs."),
        *_AFTER_GATHER[:3],
        formats("stats", _STATISTICS, "Stats tensor must be BF16, BF8_B, or FLOAT32."),
        formats("weight", "bf16 f32", "Gamma must be BF16 or FLOAT32."),
        formats("bias", "bf16 f32", "Beta must be BF16 or FLOAT32."),
    ),
    "ttnn.experimental.wan_fused_rmsnorm_pre_allgather": (
        tiles("input_tensor", "Input tensor must have TILE layout, got: {}"),
        memory("input_tensor", "interleaved", "Input tensor must use INTERLEAVED memory layout, got: {}"),
        formats("input_tensor", "bf16", "Input tensor must be BFLOAT16, got: {}"),
    ),
    "ttnn.experimental.deepseek_grouped_gate": (
        formats("scores", "bf16", "Scores tensor must be BFLOAT16"),
        tiles("scores", "Scores tensor must be TILE layout"),
        formats("bias", "bf16", "Bias tensor must be BFLOAT16"),
        tiles("bias", "Bias tensor must be TILE layout"),
    ),
    "ttnn.experimental.repeat_and_interleave_eltwise_mul": (
        tiles("a b", "Inputs to ssm_eltwise_mul must be tilized"),
        memory("a", "interleaved", "Unsupported memory layout for input a!"),
        memory("b", "interleaved", "Unsupported memory layout for input b!"),
        formats("a", "bf16 bf8", "Unsupported data format for input a!"),
        formats("b", "bf16 bf8", "Unsupported data format for input b!"),
    ),
    **dict.fromkeys(
        (
            "ttnn.transformer.chunked_scaled_dot_product_attention", "ttnn.transformer.chunked_flash_mla_prefill",
        ),
        (*_PREFILL, *_PAGE_TABLE),
    ),
    "ttnn.transformer.flash_mla_prefill": (*_PREFILL, equal_lengths()),
    **dict.fromkeys(
        (
            "ttnn.transformer.scaled_dot_product_attention_decode",
            "ttnn.transformer.paged_scaled_dot_product_attention_decode",
            "ttnn.transformer.flash_multi_latent_attention_decode",
            "ttnn.transformer.paged_flash_multi_latent_attention_decode",
        ),
        _DECODE,
    ),
    "ttnn.transformer.ring_distributed_scaled_dot_product_attention": (
        tiles(_ATTENTION, "Inputs to ring-distributed SDPA must be tilized"),
        formats(_ATTENTION, _ATTENTION_FORMATS, "Inputs to ring-distributed SDPA must be BF16, BF8, or BF4"),
        in_dram(_ATTENTION, "Operands to ring-distributed SDPA need to be in DRAM"),
    ),
    "ttnn.experimental.rotary_embedding_llama": _LLAMA_ROPE,
    "ttnn.experimental.rotary_embedding_llama_fused_qk": _FUSED_ROPE,
    "ttnn.embedding": (
        formats("weight", "bf16 bf8 bf4", "Weights tensor must have BFLOAT16 dtype"),
        memory("input_tensor", "interleaved", "Embedding does not currently support sharded inputs"),
        memory("weight", "interleaved", "Embedding does not currently support sharded weights"),
    ),
    "ttnn.plus_one": (
        formats("input_tensor", "i32 u32", "Only INT32 and UINT32 is supported for inputs!"),
        row_major("input_tensor", "Only ROW_MAJOR layout is supported for inputs!"),
    ),
    "ttnn.bernoulli": (
        tiles("input", "Bernoulli: Input tensor must be tilized"),
        formats("input", "f32 bf16", "Bernoulli: Input tensor must be Float32 or Bfloat16"),
    ),
    "ttnn.experimental.hc_sum_reduce": (
        tiles("input", "Inputs to ssm_1d_sum_reduce must be tilized"),
        memory("input", "interleaved", "Unsupported memory layout for input a!"),
        formats("input", "bf16 bf8", "Unsupported data format for input a!"),
    ),
    **dict.fromkeys(
        ("ttnn.experimental.minimal_matmul", "ttnn.experimental.dit_minimal_matmul_addcmul_fused"),
        (
            tiles(
                "input_tensor weight_tensor matmul_input_tensor matmul_weight_tensor",
                "minimal_matmul requires TILE layout for activation and weight",
            ),
            formats(
                "input_tensor weight_tensor matmul_input_tensor matmul_weight_tensor",
                "bf16 bf8 bf4 f32",
                "minimal_matmul supports only BFLOAT16, BFLOAT8_B, BFLOAT4_B, and FLOAT32 for inputs",
            ),
        ),
    ),
    "ttnn.experimental.fast_reduce_nc": (
        formats(
            "input input_tensor",
            "bf16 bf8 f32",
            "FastReduceNC input only supports specific data types. [BFLOAT16, BFLOAT8_B, FLOAT32] ",
        ),
    ),
    "ttnn.uniform": (tiles("input", "Uniform: Input tensor must be tilized"),),
    "ttnn.fill_implicit_tile_padding": (tiles("input_tensor", "FillPad should only be used for tile layout"),),
}  # fmt: skip
