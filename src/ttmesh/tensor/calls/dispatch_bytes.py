"""What the programs of a call take in a trace: a rule for every operation, and the sum over a call's programs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ttmesh.mesh.queue.dispatch_commands import (
    CapturedProgram,
    Group,
    compute_argument_bytes,
    compute_program_bytes,
    host_alignment,
)
from ttmesh.tensor.calls.dispatch_factories import (
    ProgramCall,
    Rule,
    attend_decode,
    by_layout,
    count_input_rows,
    count_result_rows,
    count_rows,
    count_users,
    find_largest,
    gather_over_links,
    join_tensors,
    move_shards,
    multiply_minimally,
    multiply_tiles,
    normalise_rows,
    on_cores,
    on_grid,
    on_rows,
    on_tiles,
    rotate_pairs,
    rotate_queries_and_keys,
    sample_users,
    scatter_over_links,
)
from ttmesh.tensor.spec.tensor_spec import TensorSpec

UNARY = """
    abs acos acosh asin asinh atan atanh bitwise_not cbrt ceil celu cos cosh deg2rad elu eqz erf erfc erfinv exp exp2
    expm1 fill floor frac full_like gelu gez gtz hardmish hardshrink hardsigmoid hardswish hardtanh heaviside i0 i1
    identity isfinite isinf isnan leaky_relu lez log log10 log1p log2 log_sigmoid logical_not ltz mish neg nez ones_like
    rad2deg reciprocal relu relu6 relu_max relu_min round rsqrt selu sigmoid sign signbit silu sin sinh softplus
    softshrink softsign sqrt square swish tan tanh tanhshrink threshold trunc unary unary_chain zeros_like
"""
BINARY = """
    add atan2 bias_gelu binary bitwise_and bitwise_or bitwise_xor div divide eq floor_div fmod gcd ge gt hypot isclose
    ldexp le logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul multiply ne pow remainder
    rsub squared_difference sub subtract xlogy
"""


RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY.split(), on_grid(68, 80)),
    **dict.fromkeys(BINARY.split(), on_grid(152, 80)),
    **dict.fromkeys(("where", "addcmul", "addcdiv", "lerp", "mac"), on_grid(168, 80)),
    **dict.fromkeys(("matmul", "linear", "addmm"), multiply_tiles),
    **dict.fromkeys(("rms_norm", "layer_norm"), normalise_rows),
    **dict.fromkeys(
        ("to_memory_config", "interleaved_to_sharded", "sharded_to_interleaved", "reshard", "clone", "copy"), move_shards
    ),
    **dict.fromkeys(("softmax", "softmax_in_place", "scale_mask_softmax_in_place"), on_rows(56, 176)),
    **dict.fromkeys(("sum", "mean", "max", "min", "reduce", "prod", "std", "var"), on_rows(20, 112)),
    **dict.fromkeys(("rms_norm_pre_all_gather", "layer_norm_pre_all_gather"), on_rows(32, 176)),
    **dict.fromkeys(("rms_norm_post_all_gather", "layer_norm_post_all_gather"), on_rows(32, 176)),
    **dict.fromkeys(("tilize", "tilize_with_val_padding", "tilize_with_zero_padding"),
        on_cores(count_result_rows, 28, 80),
    ),
    "embedding": on_cores(count_result_rows, 24, 80),
    "transpose": by_layout(on_tiles(40, 80), on_tiles(100, 80)),
    "permute": by_layout(on_tiles(24, 80), on_cores(lambda program: program.inputs[0].physical_shape[0], 64, 48, 2)),
    "untilize": on_tiles(36, 272),
    "untilize_with_unpadding": on_rows(40, 80),
    "concat": join_tensors,
    "repeat": on_tiles(36, 16, 2),
    "slice": by_layout(on_tiles(32, 80, 2), on_cores(lambda program: program.results[0].physical_shape[0], 132, 48, 2)),
    **dict.fromkeys(("reshape", "reshape_view"), by_layout(on_tiles(16, 80, 2), on_grid(48, 48, 2))),
    "typecast": on_tiles(16, 80),
    "pad": by_layout(on_tiles(144, 48, 2), on_grid(48, 48, 2)),
    "plus_one": lambda program: CapturedProgram([Group(1, 0)], 48, 2),
    "manual_seed": on_grid(4, 80),
    "cumsum": on_rows(64, 80),
    "topk": find_largest,
    "argmax": on_cores(lambda program: program.inputs[0].shape[-1] // 16, 40, 144),
    "sort": on_rows(12, 144),
    "minimal_matmul": multiply_minimally,
    **dict.fromkeys(
        ("scaled_dot_product_attention", "chunked_scaled_dot_product_attention"),
        lambda program: CapturedProgram([Group(program.cores, 140)], 240),
    ),
    **dict.fromkeys(
        ("scaled_dot_product_attention_decode", "paged_scaled_dot_product_attention_decode",
         "flash_multi_latent_attention_decode", "paged_flash_multi_latent_attention_decode"), attend_decode,
    ),
    "rotary_embedding_llama": rotate_pairs,
    "rotary_embedding_llama_fused_qk": rotate_queries_and_keys,
    "nlp_create_qkv_heads": on_cores(
        lambda program: count_rows(program.inputs[0]) * max(program.inputs[0].shape[-1] // 128, 1), 32, 48, 2
    ),
    "nlp_create_qkv_heads_decode": on_cores(count_users, 8, 80, 2),
    "nlp_concat_heads": on_cores(count_input_rows, 16, 48, 2),
    "nlp_concat_heads_decode": on_cores(
        lambda program: program.results[0].shape[-1] // program.inputs[0].shape[-1], 104, 48, 2
    ),
    "paged_fill_cache": on_cores(lambda program: count_rows(program.inputs[1]), 28, 80, 2),
    **dict.fromkeys(
        ("paged_update_cache", "paged_fused_update_cache second half"),
        on_cores(lambda program: program.inputs[1].shape[1], 48, 176),
    ),
    "sampling": sample_users,
    "all_gather": lambda program: CapturedProgram([Group(1, 232)], 80, 2),
    **dict.fromkeys(("all_to_all_dispatch", "all_to_all_combine"), lambda program: CapturedProgram([Group(1, 96)], 80, 2)),
    **dict.fromkeys(("all_gather_async", "all_gather_async_reversed", "all_gather_matmul_async"), gather_over_links(136)),
    "reduce_scatter_minimal_async": scatter_over_links,
    **dict.fromkeys(("reduce_scatter", "all_reduce", "all_reduce_async"), gather_over_links(320)),
}  # fmt: skip


DATA_MOVEMENT, COLLECTIVE = on_tiles(32, 80, 2), gather_over_links(64)  # operations without a rule of their own


def compute_call_bytes(name: str, program: ProgramCall, other: Rule = DATA_MOVEMENT) -> int:
    """The bytes that one program takes in a trace; operations without a rule follow the other program."""
    known = program.inputs or program.results
    if not known:
        return compute_program_bytes(CapturedProgram([Group(1, 0)]), host_alignment(program.arch))
    rule = RULES.get(name.rpartition(".")[2].rstrip("_"), other)
    return compute_program_bytes(
        rule(program._replace(inputs=known, results=program.results or known)), host_alignment(program.arch)
    )


def compute_dispatch_bytes(
    name: str, program: ProgramCall, programs: Sequence[Hashable], other: Rule = DATA_MOVEMENT
) -> int:
    """The bytes that the programs of a call take in a trace; stages of a composite say what each of them is.

    A call without a program of its own adds its cores' arguments to the program of the call before.
    """
    if not programs:
        rule = RULES.get(name.rpartition(".")[2])
        return sum(compute_argument_bytes(group) for group in rule(program).groups) if rule and program.inputs else 0
    total = 0
    for key in programs:
        match key:
            case (str() as stage, tuple() as given, TensorSpec() as made, _) if len(programs) > 1:
                specs = [spec for spec in given if isinstance(spec, TensorSpec)]
                total += compute_call_bytes(stage, program._replace(inputs=specs, results=(made,), options={}))
            case _:
                total += compute_call_bytes(name, program, other)
    return total
