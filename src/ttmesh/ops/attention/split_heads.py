"""Split projections whose order depends on their sharding: `transformer.split_…` and `create_qkv_heads`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.attention.attention_heads import (
    TILE,
    QueryKeyValue,
    split_fused_heads,
    split_interleaved_heads,
    to_heads,
)
from ttmesh.ops.attention.head_rules import (
    check_bert_large,
    check_create,
    check_create_separate,
    check_create_shards,
)
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import qkv_heads as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _check_split(call: Call) -> None:
    x, kv = call["input_tensor"].spec, call["kv_input_tensor"]
    if len(x.shape) != 3:
        raise ShapeError(
            f"Invalid input tensor: expected 3 dimensions, but found {len(x.shape)}.",
            expected="[batch, rows, width]",
            fix="Reshape the input.",
        )
    heads, kv_heads = call["num_heads"], call["num_kv_heads"] or call["num_heads"]
    if kv is not None:
        if kv.shape[0] != x.shape[0]:
            raise ShapeError(
                f"Dimension mismatch: KV tensor batch dimension ({kv.shape[0]}) must match Q tensor batch dimension "
                f"({x.shape[0]}).",
                expected="equal batches",
                fix="Pass keys and values of the same batch.",
            )
        size = x.shape[2] // heads
    else:
        size = x.shape[2] // (heads + 2 * kv_heads)
    if size % TILE:
        raise ShapeError(
            f"Invalid head size: {size}. The head size must be a multiple of the tile width ({TILE}). Please adjust the "
            "dimensions accordingly.",
            expected=f"a multiple of {TILE}",
            fix="Pad the weights of the projection.",
        )
    if x.memory_config.is_sharded():
        wrong = (
            "Invalid operation: KV tensor should not be provided when the input tensor is sharded. Please ensure that the "
            "KV tensor is only used in non-sharded configurations."
        )
        require(kv is None, wrong, "a fused projection", "Unshard the input.")
        check_create_shards(call, (x.padded_shape[0], 1, x.padded_shape[2]))


def _heads_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Heads of a sharded input stay on its cores, in equal shards; heads of an interleaved input are interleaved."""
    x = call.specs[0]
    config = call["memory_config"] or x.memory_config
    shard = x.memory_config.shard_spec
    if shard is None or config.interleaved:
        memory_config = config if config.interleaved else MemoryConfig(buffer_type=config.buffer_type)
        return [
            make_output_spec(call, shape, layout=Layout.TILE, memory_config=memory_config, result=i)
            for i, (shape, _) in enumerate(inferred)
        ]
    cores = shard.grid.bounding_box().size()
    specs = []
    for shape, _ in inferred:
        rows = -(-shape[0] * shape[1] * (-(-shape[2] // TILE) * TILE) // cores)
        shard_spec = ShardSpec(shard.grid, (-(-rows // TILE) * TILE, -(-shape[3] // TILE) * TILE), shard.orientation)
        memory_config = MemoryConfig(config.memory_layout, config.buffer_type, shard_spec)
        specs.append(TensorSpec(shape, x.dtype, Layout.TILE, memory_config=memory_config))
    return specs


@op(
    "ttnn.transformer.split_query_key_value_and_split_heads",
    golden=goldens.split_query_key_value,
    out=_heads_spec,
    check=_check_split,
)
def split_query_key_value_and_split_heads(
    input_tensor: Lanes,
    kv_input_tensor: Lanes | None,
    num_heads: int,
    num_kv_heads: int | None,
    transpose_key: bool,
    specs: tuple[TensorSpec, ...],
) -> QueryKeyValue:
    """Query, key and value heads of a fused projection [batch, rows, width]; keys transposed by default."""
    kv = num_heads if num_kv_heads is None else num_kv_heads
    if not specs[0].memory_config.interleaved:
        return split_interleaved_heads(input_tensor, num_heads, kv, transpose_k=transpose_key)
    return split_fused_heads(input_tensor, kv_input_tensor, num_heads, kv, transpose_k=transpose_key)


@op("ttnn.experimental.create_qkv_heads", golden=goldens.create_qkv_heads, out=_heads_spec, check=check_create)
def create_qkv_heads(input: Lanes, num_heads: int, num_kv_heads: int | None, transpose_k_heads: bool) -> QueryKeyValue:
    """Heads of a projection whose columns are (queries, key, value) per group of heads."""
    kv = num_heads if num_kv_heads is None else num_kv_heads
    return split_interleaved_heads(input.squeeze(-3), num_heads, kv, transpose_k=transpose_k_heads)


@op(
    "ttnn.experimental.create_qkv_heads_from_separate_tensors",
    golden=goldens.create_qkv_heads_from_separate_tensors,
    out=_heads_spec,
    check=check_create_separate,
)
def create_qkv_heads_from_separate_tensors(
    input: Lanes, input_kv: Lanes, num_heads: int, num_kv_heads: int | None, transpose_k_heads: bool
) -> QueryKeyValue:
    """Heads of a query projection and of one whose columns are (key, value) per head."""
    kv = num_heads if num_kv_heads is None else num_kv_heads
    pairs = torch.unflatten(input_kv.squeeze(-3), -1, (kv, 2, -1))
    k, v = (pairs[..., i, :].transpose(-3, -2) for i in range(2))
    return to_heads(input.squeeze(-3), num_heads), k.transpose(-1, -2) if transpose_k_heads else k, v


@op(
    "ttnn.experimental.split_query_key_value_and_split_heads",
    golden=goldens.split_thirds,
    out=_heads_spec,
    check=check_bert_large,
)
def split_on_grid(input_tensor: Lanes, num_heads: int, specs: Sequence[TensorSpec]) -> QueryKeyValue:
    """Heads of [batch, 1, rows, Q | K | V] with as many key as query heads; keys transposed.

    Every shard of a sharded input is Q | K | V of its own heads.
    """
    shard = specs[0].memory_config.shard_spec
    shards_across = 1 if shard is None else -(-input_tensor.shape[-1] // shard.shape[1])
    thirds = torch.unflatten(input_tensor.squeeze(-3), -1, (shards_across, 3, -1))
    q, k, v = (to_heads(thirds[..., i, :].flatten(-2), num_heads) for i in range(3))
    return q, k.transpose(-1, -2), v


def _check_q_split(call: Call) -> None:
    spec, heads, split = call.specs[0], call["num_heads"], call["split_head_dim"]
    wrong = "Expected rank-4 input and nonzero head count"
    require(len(spec.shape) == 4 and heads > 0, wrong, "[batch, 1, rows, width]", "Reshape the input.")
    width = int(spec.shape[-1])
    wrong = "Q width must be unpadded and divisible by num_heads"
    require(width == spec.padded_shape[-1] and width % heads == 0, wrong, f"a multiple of {heads}", "Pad the weights.")
    size = width // heads
    wrong = "Q head split requires two nonempty tile-aligned channel regions"
    aligned = 0 < split < size and split % TILE == 0 and size % TILE == 0
    require(aligned, wrong, f"a multiple of {TILE} below {size}", "Change split_head_dim.")
    wrong = f"Input tensor layout must be TILE but got Layout::{spec.layout.name}"
    require(spec.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Use ttnn.to_layout.")
    wrong = f"Unsupported input sequence length {spec.shape[1]} is not equal to 1"
    require(spec.shape[1] == 1, wrong, "[batch, 1, rows, width]", "Reshape the input.")


def _q_split_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, shape) for shape, _ in inferred]


@op(
    "ttnn.experimental.nlp_create_q_heads_split",
    golden=goldens.create_q_heads_split,
    check=_check_q_split,
    out=_q_split_spec,
)
def nlp_create_q_heads_split(input: Lanes, num_heads: int, split_head_dim: int) -> tuple[Lanes, Lanes]:
    """Query heads of a projection in two tensors: the first columns of every head, and the others."""
    heads = to_heads(input.squeeze(-3), num_heads)
    return heads[..., :split_head_dim], heads[..., split_head_dim:]
