"""What operations require of the shapes, formats and memory of their operands together, in the order of TT-NN's checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttmesh.base.dtypes import Layout
from ttmesh.ops.requirements.call_rules import CallRule, equal_lengths_of, padded, same_format, that
from ttmesh.ops.requirements.operand_rules import OperandRule, formats, in_dram, memory, only_for, tiles
from ttmesh.tensor.tensor import Tensor

TILE = 32
Rules = tuple[OperandRule | CallRule, ...]
A, B = "input_tensor_a", "input_tensor_b"


def _has_rank(call: Any, name: str, rank: int) -> bool:
    return len(call[name].shape) == rank


_ONE_TOKEN = that(lambda call: padded(call, A)[0] == 1, "Input q_len must be 1!", "[1, heads, users, width]")
_USERS = equal_lengths_of(A, B, (2, 0), "Num of users must match!")
_ATTN_MATMUL: Rules = (
    _ONE_TOKEN,
    that(
        lambda call: padded(call, B)[1] == 1, "Number of kv_heads must be 1!", "one kv head", "Use group_attn_matmul."
    ),
    _USERS,
    that(
        lambda call: padded(call, A)[3] == padded(call, B)[2],
        lambda call: (
            f"Dimension K (A.shape[3]and B.shape[2]) must match for A shape: Shape({list(padded(call, A))}) and B shape: "
            f"Shape({list(padded(call, B))}) in attn_matmul op"
        ),
    ),
)


def _count_cores(grid: Any) -> int:
    x, y = (grid.x, grid.y) if hasattr(grid, "x") else grid
    return int(x * y)


def _shards_of(call: Any, name: str) -> Any:
    return call[name].memory_config().shard_spec


_GROUP_ATTN_MATMUL: Rules = (
    _ONE_TOKEN,
    that(lambda call: padded(call, A)[1] % padded(call, B)[1] == 0, "Number of q_heads must be divisible by kv_heads!"),
    _USERS,
    that(lambda call: padded(call, B)[0] == TILE, "Only batch 32 is supported for group attention matmul!", "32 users"),
    that(
        lambda call: max(padded(call, A)[1], TILE) <= _count_cores(call["compute_with_storage_grid_size"]),
        "Compute grid size is too small for group attention matmul!",
        "a core per head",
        "Pass a larger compute_with_storage_grid_size.",
    ),
    *(
        memory(name, "interleaved height", f"Input tensor {letter} memory layout must be HEIGHT_SHARDED but got {{}}")
        for name, letter in ((A, "A"),)
    ),
    that(
        lambda call: _shards_of(call, A) is None or _shards_of(call, A).num_cores() == padded(call, A)[1],
        "Q heads must be sharded on number of q heads!",
        "a core per head",
        "Change the shards.",
    ),
    memory(B, "interleaved height", "Input tensor B memory layout must be HEIGHT_SHARDED but got {}"),
    that(
        lambda call: _shards_of(call, B) is None or _shards_of(call, B).num_cores() == padded(call, B)[0],
        "KV heads must be sharded on batch!",
        "a core per user",
        "Change the shards.",
    ),
    that(
        lambda call: padded(call, A)[3] == padded(call, B)[2],
        "Dimension K (A.shape[3] and B.shape[2]) must match for A and B in attn_matmul op",
    ),
)

_INPUT = "input"
_HC_SUM_REDUCE: Rules = (
    that(lambda call: padded(call, _INPUT)[:2] == (1, 1), "Dim 1 and 2 are expected to be 1 in input a!"),
    that(lambda call: padded(call, _INPUT)[2] % TILE == 0, "Batch size must be divisible by 32 for input a!"),
    that(lambda call: padded(call, _INPUT)[3] % TILE == 0, "Final dim must be a multiple of 32!"),
    that(
        lambda call: padded(call, _INPUT)[3] // TILE % TILE == 0,
        "Final dim/TILE_SIZE must be a multiple of latent size!",
    ),
)

_TOSA_GATHER: Rules = (
    that(
        lambda call: _has_rank(call, "input", 3),
        lambda call: f"Input tensor rank must be 3, got: {len(call['input'].shape)}",
        "[N, K, C]",
    ),
    that(
        lambda call: _has_rank(call, "index", 2),
        lambda call: f"Index tensor rank must be 2, got: {len(call['index'].shape)}",
        "[N, W]",
    ),
    that(
        lambda call: call["input"].shape[0] == call["index"].shape[0],
        "Index tensor first dimension must be equal to input tensor first dimension",
    ),
)


def _tosa_rank(name: str, shown: str, rank: int) -> CallRule:
    return that(
        lambda call: _has_rank(call, name, rank),
        lambda call: (
            f"According to TOSA specification, {shown} tensor must be of rank {rank}, it is "
            f"{len(call['input'].shape)} instead."
        ),
        f"{rank} dims",
    )


def _tosa_lengths(first: str, second: str, dims: tuple[int, int], letter: str) -> CallRule:
    shown = {"input": "input", "index": "index", "src": "source"}
    start = "Input" if first == "input" else "Index"
    return that(
        lambda call: call[first].shape[dims[0]] == call[second].shape[dims[1]],
        lambda call: (
            f"{start} shape has a different dimension {letter} than {shown[second]} shape ({shown[first]} shape: "
            f"{call[first].shape!r}, {shown[second]} shape: {call[second].shape!r})."
        ),
    )


_TOSA_SCATTER: Rules = (
    _tosa_rank("input", "input", 3),
    that(
        lambda call: _has_rank(call, "index", 2),
        lambda call: (
            f"According to TOSA specification, index tensor must be of rank 2, it is {len(call['input'].shape)} instead."
        ),
        "two dims",
    ),
    _tosa_rank("src", "source", 3),
    _tosa_lengths("input", "src", (0, 0), "N"),
    _tosa_lengths("input", "src", (2, 2), "C"),
    _tosa_lengths("input", "index", (0, 0), "C"),
    _tosa_lengths("index", "src", (1, 1), "W"),
)

_QKV = "input_tensor_q input_tensor_k input_tensor_v"
_JOINT_QKV = "joint_tensor_q joint_tensor_k joint_tensor_v"
_JOINT = f"{_QKV} {_JOINT_QKV}"


def _lengths(call: Any, names: str, dim: int) -> list[int]:
    return [call[name].shape[dim] for name in names.split()]


def _all_equal(names: str, dim: int, wrong: str) -> CallRule:
    return that(
        lambda call: len(set(_lengths(call, names, dim))) == 1, lambda call: wrong.format(*_lengths(call, names, dim))
    )


_JOINT_SDPA: Rules = (
    that(
        lambda call: call["joint_strategy"] == "rear",
        lambda call: f"Joint strategy must be 'rear'. Got: {call['joint_strategy']}",
        "'rear'",
        "Pass 'rear'.",
    ),
    *same_format(_JOINT.split()[0], _JOINT, "All tensors must have the same dtype. Expected {0}, got {1}"),
    *(
        rule
        for name in _JOINT.split()
        for rule in (
            tiles(name, "Inputs to Joint SDPA must be tilized"),
            formats(name, "bf16 bf8", "Inputs to Joint SDPA must be BF16 or BF8"),
            in_dram(name, "Operands to Joint SDPA need to be in DRAM"),
        )
    ),
    _all_equal(_QKV, 0, "Batch sizes must match. Got Q: {}, K: {}, V: {}"),
    _all_equal(_JOINT_QKV, 0, "Joint batch sizes must match. Got Q: {}, K: {}, V: {}"),
    _all_equal("input_tensor_q joint_tensor_q", 0, "Q and joint Q must have same batch size. Got Q: {}, joint Q: {}"),
    _all_equal(_QKV, 3, "Head dimensions must match. Got Q: {}, K: {}, V: {}"),
    _all_equal(_JOINT_QKV, 3, "Joint head dimensions must match. Got Q: {}, K: {}, V: {}"),
    _all_equal(
        "input_tensor_q joint_tensor_q", 3, "Q and joint Q must have same head dimension. Got Q: {}, joint Q: {}"
    ),
    _all_equal("input_tensor_q input_tensor_k", 1, "Q num_heads must be equal to K num_heads. Got Q: {}, K: {}"),
    _all_equal(
        "joint_tensor_q joint_tensor_k", 1, "Joint Q num_heads must be equal to Joint K num_heads. Got Q: {}, K: {}"
    ),
    _all_equal(
        "joint_tensor_k input_tensor_k", 1, "Joint K num_heads must be equal to K num_heads. Got Joint K: {}, K: {}"
    ),
)


def _of_tiles(name: str, shown: str, allowed: str, listed: str) -> Rules:
    """How the fused RMS norms check an operand."""
    return (
        tiles(name, f"{shown} tensor must have TILE layout, got: {{}}"),
        formats(name, allowed, f"{shown} tensor must be {listed}, got: {{}}"),
    )


def _differing_dim(call: Any) -> str:
    """The first dim before the last in which the statistics differ from the input, as TT-NN says it."""
    pairs = zip(padded(call, "stats")[:-1], padded(call, "input_tensor")[:-1], strict=False)
    for i, (stats, input) in enumerate(pairs):
        if stats != input:
            return f"Stats and input dim{i} must match, got stats: {stats} vs input: {input}"
    return ""


_WAN_RMS: Rules = (
    *_of_tiles("input_tensor", "Input tensor 0", "bf16", "BFLOAT16"),
    *_of_tiles("stats", "Stats tensor", "bf16 f32", "BFLOAT16 or FLOAT32"),
    that(
        lambda call: padded(call, "stats")[-1] % TILE == 0,
        lambda call: f"Stats inner dimension must be divisible by TILE_WIDTH (32), got: {padded(call, 'stats')[-1]}",
    ),
    that(
        lambda call: len(call["stats"].shape) == len(call["input_tensor"].shape),
        "Stats and input must have same number of dimensions",
        "equal ranks",
    ),
    that(lambda call: not _differing_dim(call), lambda call: _differing_dim(call)),
    that(
        lambda call: padded(call, "input_tensor")[-1] % call["num_heads_per_device"] == 0,
        lambda call: (
            "Input last dimension must be divisible by number of heads, got hidden_dim: "
            f"{padded(call, 'input_tensor')[-1]} vs num_heads: {call['num_heads_per_device']}"
        ),
    ),
    that(
        lambda call: padded(call, "input_tensor")[-1] == call["input_tensor"].shape[-1],
        lambda call: (
            "Input last dimension must be the same as padded last dimension, got logical_dim: "
            f"{call['input_tensor'].shape[-1]} vs padded_dim: {padded(call, 'input_tensor')[-1]}"
        ),
        "whole tiles",
        "Pad it with ttnn.pad.",
    ),
    that(
        lambda call: len(call["input_tensor"].shape) == 4,
        lambda call: f"Input must have rank 4, got: {len(call['input_tensor'].shape)}",
        "four dims",
    ),
    that(
        lambda call: call["input_tensor"].shape[1] == 1,
        lambda call: f"Input dim 1 must be 1, got: {call['input_tensor'].shape[1]}",
    ),
    that(
        lambda call: call["input_tensor"].shape[0] == 1,
        lambda call: f"Expecting input batch dimension to be 1, got: {call['input_tensor'].shape[0]}",
    ),
    *_of_tiles("weight", "Weight", "bf16", "BFLOAT16"),
)


def _scan_operands(call: Any) -> list[Any]:
    return [call[name] for name in ("a", "bx", "h_prev")]


_PREFIX_SCAN: Rules = (
    *same_format("a", "bx", "Expected input tensors to have the same data type"),
    tiles("a bx", "Expected input tensors to be tile layout"),
    that(lambda call: padded(call, "a") == padded(call, "bx"), "Expected input tensors to have the same shape"),
    that(lambda call: len(padded(call, "a")) == 4, "Expected input tensors to be rank 4", "four dims"),
    that(lambda call: padded(call, "a")[:2] == (1, 1), "Dimension 0 and 1 should be size 1", "[1, 1, rows, width]"),
    that(lambda call: padded(call, "a")[2] % TILE == 0, "Sequence length should be a multiple of 32"),
    formats("h_prev", "bf16", "Expected initial hidden state to be bfloat16"),
    that(
        lambda call: call["h_prev"].layout is Layout.ROW_MAJOR,
        "Expected initial hidden state to be row-major",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    ),
    memory("a bx h_prev", "height width block", "Expected input tensors to be sharded"),
)


def _rope_width(call: Any) -> int:
    return padded(call, "input_tensor")[-1]


_ROPE_HF: Rules = (
    that(
        lambda call: _rope_width(call) == TILE or _rope_width(call) % (2 * TILE) == 0,
        lambda call: (
            f"Input X dim ({_rope_width(call)}) must be either {TILE} (single tile) or divisible by {2 * TILE}"
        ),
        "halves of whole tiles",
    ),
    *same_format("cos_cache", "sin_cache", "Cos and Sin dtypes must match"),
    that(lambda call: padded(call, "cos_cache") == padded(call, "sin_cache"), "Cos and Sin shapes must match"),
    that(
        lambda call: padded(call, "cos_cache")[0] == 1 and padded(call, "cos_cache")[-1] == _rope_width(call),
        "Cos dims must match input dims",
    ),
    that(
        lambda call: call["is_decode_mode"] or padded(call, "cos_cache")[1] == 1,
        "Cos must have batch dim = 1 in prefill mode",
    ),
    that(
        lambda call: call["is_decode_mode"] or call["cos_cache"].shape[-2] >= call["input_tensor"].shape[-2],
        lambda call: (
            f"Cos seq_len must be >= input seq_len. Input seq_len: {call['input_tensor'].shape[-2]}, Cos seq_len: "
            f"{call['cos_cache'].shape[-2]}."
        ),
        "cosines for every position",
    ),
    only_for(memory("input_tensor", "interleaved height block", "Input cannot be WIDTH_SHARDED"), sharded=True),
)


def _unfit_dim(call: Any, name: str) -> str:
    """The first dim of an operand that does not broadcast to the gradient's, as TT-NN says it."""
    grad = call["grad_tensor"]
    if not isinstance(call[name], Tensor) or len(call[name].shape) > len(grad.shape):
        return ""
    shape, whole = call[name].shape, grad.shape
    for i, (length, most) in enumerate(zip(shape, tuple(whole)[len(whole) - len(shape) :], strict=True)):
        if length not in (1, most):
            return (
                f"binary_backward: operand shape {shape!r} not broadcastable to grad shape {whole!r} at axis {i} "
                f"(operand_dim={length}, grad_dim={most}); expected operand_dim == 1 or == grad_dim."
            )
    return ""


def _broadcasts(name: str) -> CallRule:
    return that(lambda call: not _unfit_dim(call, name), lambda call: _unfit_dim(call, name))


_NO_PRODUCT = "Input tensor {} dtype DataType::UINT8 is not supported for binary operation BinaryOpType::MUL"

CALL_RULES: Mapping[str, Rules] = {
    "ttnn.experimental.attn_matmul": _ATTN_MATMUL,
    "ttnn.experimental.group_attn_matmul": _GROUP_ATTN_MATMUL,
    "ttnn.experimental.hc_sum_reduce": _HC_SUM_REDUCE,
    "ttnn.tosa_gather": _TOSA_GATHER,
    "ttnn.tosa_scatter": _TOSA_SCATTER,
    "ttnn.transformer.joint_scaled_dot_product_attention": _JOINT_SDPA,
    "ttnn.experimental.wan_fused_rmsnorm_post_allgather": _WAN_RMS,
    "ttnn.experimental.prefix_scan": _PREFIX_SCAN,
    "ttnn.experimental.rotary_embedding_hf": _ROPE_HF,
    "ttnn.experimental.deepseek_grouped_gate": (
        that(
            lambda call: tuple(call["scores"].shape) == tuple(call["bias"].shape),
            "Scores and bias must have the same shape",
        ),
    ),
    "ttnn.index_fill": (
        that(
            lambda call: call["input"].layout is not Layout.ROW_MAJOR or _has_rank(call, "index", 1),
            "Index fill: Index tensor must be 1D",
            "a vector",
        ),
    ),
    "ttnn.transformer.split_query_key_value_and_split_heads": (
        that(
            lambda call: call["input_tensor"].layout is Layout.TILE,
            "Invalid layout: input tensor must use TILE_LAYOUT, but found 0.",
            "TILE_LAYOUT",
            "Convert it with ttnn.to_layout.",
        ),
        only_for(formats("input_tensor", "f32 bf16 bf8", "Unsupported data format"), sharded=False),
    ),
    "ttnn.experimental.nlp_create_qkv_heads_boltz": (
        that(lambda call: _has_rank(call, "input", 4), "Unsupported input shape", "[1, rows, rows, width]"),
    ),
    **dict.fromkeys(
        (
            "ttnn.transformer.scaled_dot_product_attention_decode",
            "ttnn.transformer.paged_scaled_dot_product_attention_decode",
            "ttnn.transformer.flash_multi_latent_attention_decode",
            "ttnn.transformer.paged_flash_multi_latent_attention_decode",
        ),
        (
            that(
                lambda call: (
                    call["input_tensor_q"].layout is Layout.TILE or _shards_of(call, "input_tensor_q") is not None
                ),
                "ROW_MAJOR Q is only supported when Q is HEIGHT_SHARDED in L1; interleaved ROW_MAJOR Q is not supported. "
                "Convert Q to TILE layout or shard it.",
                "TILE_LAYOUT",
                "Convert it with ttnn.to_layout.",
            ),
        ),
    ),
    "ttnn.clamped_silu_glu": (
        formats("gate", "bf16 f32 bf8 bf4 i32 u32 u16", _NO_PRODUCT.format("A")),
        formats("up", "bf16 f32 bf8 bf4 i32 u32 u16", _NO_PRODUCT.format("B")),
    ),
    "ttnn.mul_bw": tuple(_broadcasts(name) for name in ("input_tensor", "other_tensor")),
}
