"""Dispatch commands of a program: what it takes in a trace, from its kernels' runtime arguments and the cores they run on.

A captured program is written to DRAM as the commands that start it: runtime arguments of every core, each core's own
(packed behind a list of the cores), circular buffers and semaphores by multicast, where its binaries lie, launch
messages and the go signal. Sizes of runtime arguments per core are those of TT-NN 0.81.1's program factories.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from ttmesh.base.dtypes import BufferType
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Specs = Sequence[TensorSpec]

HOST_ALIGNMENT = 32  # of every sequence of commands
L1_ALIGNMENT = 16
PACKED_WRITE_BYTES = 32  # the headers of a write to a list of cores
CORE_BYTES = 4  # one entry of that list
# Offsets 64, a stall 32, circular buffers and semaphores about 128, binaries out of DRAM about 288, launch messages
# 192 and the go signal 64: every program has these.
PROGRAM_BYTES = 768
TILE = 32

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


class Cores(NamedTuple):
    """The cores of one program and the bytes of runtime arguments of each."""

    number: int
    argument_bytes: int


def _align(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def compute_argument_bytes(cores: Cores) -> int:
    """The bytes of the commands that write every core's own runtime arguments."""
    if not cores.number or not cores.argument_bytes:
        return 0
    places = _align(cores.number * CORE_BYTES, L1_ALIGNMENT)
    arguments = cores.number * _align(cores.argument_bytes, L1_ALIGNMENT)
    return _align(PACKED_WRITE_BYTES + places + arguments, HOST_ALIGNMENT)


def _count_tiles(spec: TensorSpec) -> int:
    height, width = spec.physical_shape
    return max(-(-height // TILE) * -(-width // TILE), 1)


def _count_rows(spec: TensorSpec) -> int:
    return max(-(-spec.physical_shape[0] // TILE), 1)


def _count_shards(spec: TensorSpec) -> int:
    shards = spec.memory_config.shard_spec
    return 0 if shards is None else shards.num_cores()


Rule = Callable[[Specs, Specs, int], Sequence[Cores]]  # inputs, results, cores of the grid


def _on_grid(argument_bytes: int) -> Rule:
    """Every core of the grid gets arguments, also one without work."""
    return lambda inputs, results, grid: [Cores(grid, argument_bytes)]


def _on_tiles(argument_bytes: int) -> Rule:
    return lambda inputs, results, grid: [Cores(min(grid, _count_tiles(results[0])), argument_bytes)]


def _on_rows(argument_bytes: int) -> Rule:
    return lambda inputs, results, grid: [Cores(min(grid, _count_rows(inputs[0])), argument_bytes)]


def _on_users(argument_bytes: int, copies: int = 1) -> Rule:
    """One core per user of a decode step: the second dimension of the last input of rank 4."""

    def rule(inputs: Specs, results: Specs, grid: int) -> Sequence[Cores]:
        users = next((spec.shape[1] for spec in reversed(inputs) if len(spec.shape) == 4), TILE)
        return [Cores(min(grid, users), argument_bytes)] * copies

    return rule


def _on_heads(argument_bytes: int) -> Rule:
    return lambda inputs, results, grid: [Cores(min(grid, inputs[0].shape[1] * _count_rows(inputs[0])), argument_bytes)]


def _move_shards(inputs: Specs, results: Specs, grid: int) -> Sequence[Cores]:
    """Between shards and pages, or from shards to other shards."""
    sources, targets = _count_shards(inputs[0]), _count_shards(results[0])
    if sources and targets:
        return [Cores(targets, 176)]
    if sources:
        return [Cores(sources, 48)]
    if targets:
        return [Cores(targets, 32)]
    return [Cores(min(grid, _count_tiles(results[0])), 16)]


def _normalise(inputs: Specs, results: Specs, grid: int) -> Sequence[Cores]:
    shards = _count_shards(inputs[0])
    return [Cores(shards, 64), Cores(TILE, 16)] if shards else [Cores(min(grid, _count_rows(inputs[0])), 32)]


def _multiply(inputs: Specs, results: Specs, grid: int) -> Sequence[Cores]:
    """Matmuls: weights in shards in DRAM, one row of tiles by multicast along one axis, else along two."""
    weights, shards = inputs[1].memory_config if len(inputs) > 1 else None, _count_shards(inputs[0])
    if shards and weights is not None and weights.is_sharded() and weights.buffer_type is BufferType.DRAM:
        return [Cores(grid, 8 * shards + 80)]  # every core learns where the input's shards are
    if _count_rows(results[0]) == 1:
        return [Cores(1, 112), Cores(min(grid, _count_tiles(results[0])) - 1, 80)]
    edge = max(int(min(grid, _count_tiles(results[0])) ** 0.5) - 1, 1)
    return [Cores(1, 112), Cores(edge, 80), Cores(edge, 80), Cores(edge * edge, 64), Cores(TILE, 16)]


def _attend_decode(inputs: Specs, results: Specs, grid: int) -> Sequence[Cores]:
    """Every core learns which cores hold the parts of every user's result."""
    users, heads = inputs[0].shape[1], inputs[1].shape[1]
    return [Cores(grid, 192 + users * (24 if heads == 1 else 32))]


def _on_links(argument_bytes: int) -> Rule:
    """Workers and multiplexers of a collective."""
    return lambda inputs, results, grid: [Cores(4, argument_bytes), Cores(4, argument_bytes)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY.split(), _on_grid(80)),
    **dict.fromkeys(BINARY.split(), _on_grid(160)),
    **dict.fromkeys(("where", "addcmul", "addcdiv", "lerp", "mac"), _on_grid(176)),
    **dict.fromkeys(("matmul", "linear", "addmm"), _multiply),
    **dict.fromkeys(("rms_norm", "layer_norm"), _normalise),
    **dict.fromkeys(
        ("to_memory_config", "interleaved_to_sharded", "sharded_to_interleaved", "reshard", "clone", "copy"), _move_shards
    ),
    **dict.fromkeys(("softmax", "softmax_in_place", "scale_mask_softmax_in_place"), _on_rows(64)),
    **dict.fromkeys(("sum", "mean", "max", "min", "reduce", "prod", "std", "var"), _on_rows(16)),
    **dict.fromkeys(("rms_norm_pre_all_gather", "layer_norm_pre_all_gather"), _on_rows(32)),
    **dict.fromkeys(("tilize", "tilize_with_val_padding", "embedding"), _on_rows(32)),
    **dict.fromkeys(("transpose", "untilize", "untilize_with_unpadding", "concat", "repeat"), _on_tiles(48)),
    **dict.fromkeys(("reshape", "reshape_view"), _on_grid(16)),
    "typecast": _on_tiles(16),
    "pad": _on_tiles(144),
    "minimal_matmul": lambda inputs, results, grid: [Cores(1, 112), Cores(7, 112), Cores(7, 112), Cores(grid - 15, 112)],
    "scaled_dot_product_attention": _on_grid(144),
    "chunked_scaled_dot_product_attention": _on_grid(144),
    "scaled_dot_product_attention_decode": _attend_decode,
    "paged_scaled_dot_product_attention_decode": _attend_decode,
    "paged_flash_multi_latent_attention_decode": _attend_decode,
    "flash_multi_latent_attention_decode": _attend_decode,
    "rotary_embedding_llama": lambda inputs, results, grid: [] if _count_shards(inputs[0]) else [Cores(grid, 80)],
    "rotary_embedding_llama_fused_qk": _on_users(16, copies=2),
    "nlp_create_qkv_heads": lambda inputs, results, grid: [
        Cores(min(grid, _count_rows(inputs[0]) * max(inputs[0].shape[-1] // 128, 1)), 32)
    ],
    "nlp_create_qkv_heads_decode": lambda inputs, results, grid: [Cores(min(grid, inputs[0].shape[-2]), 16)],
    "nlp_concat_heads": _on_tiles(16),
    "nlp_concat_heads_decode": lambda inputs, results, grid: [Cores(min(grid, max(results[0].shape[-1] // 128, 1)), 112)],
    "paged_fill_cache": lambda inputs, results, grid: [Cores(min(grid, _count_rows(inputs[1])), 32)],
    "paged_update_cache": lambda inputs, results, grid: [Cores(min(grid, inputs[1].shape[1]), 48)],
    "sampling": lambda inputs, results, grid: [Cores(TILE, 64), Cores(TILE, 144)],
    "argmax": _on_grid(48),
    "all_gather": _on_links(64),
    **dict.fromkeys(("all_to_all_dispatch", "all_to_all_combine"), lambda inputs, results, grid: [Cores(1, 96)]),
    **dict.fromkeys(("all_gather_async", "all_gather_async_reversed", "reduce_scatter_minimal_async"), _on_links(192)),
    **dict.fromkeys(("reduce_scatter", "all_reduce", "all_reduce_async"), _on_links(320)),
    "all_gather_matmul_async": lambda inputs, results, grid: [
        *_on_links(192)(inputs, results, grid), *_multiply(inputs, results, grid)
    ],
}  # fmt: skip


DATA_MOVEMENT, COLLECTIVE = _on_tiles(32), _on_links(64)  # operations without a rule of their own


def compute_program_bytes(name: str, inputs: Specs, results: Specs, grid: int, other: Rule = DATA_MOVEMENT) -> int:
    """The bytes that one program takes in a trace; operations without a rule follow the other one."""
    rule = RULES.get(name.rpartition(".")[2].rstrip("_"), other)
    known = inputs or results
    groups = rule(known, results or known, grid) if known else ()
    return PROGRAM_BYTES + sum(map(compute_argument_bytes, groups))


def compute_dispatch_bytes(
    name: str, inputs: Specs, results: Specs, grid: int, programs: Sequence[Hashable], other: Rule = DATA_MOVEMENT
) -> int:
    """The bytes that the programs of a call take in a trace; stages of a composite say what each of them is."""
    total = 0
    for key in programs:
        match key:
            case (str() as stage, tuple() as given, TensorSpec() as made, _) if len(programs) > 1:
                total += compute_program_bytes(stage, [s for s in given if isinstance(s, TensorSpec)], (made,), grid)
            case _:
                total += compute_program_bytes(name, inputs, results, grid, other)
    return total
