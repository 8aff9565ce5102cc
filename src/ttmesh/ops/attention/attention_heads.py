"""Split fused projections into attention heads, and concatenate heads again, for prefill."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.attention.head_rules import (
    check_bert_large_concat,
    check_concat,
    check_segformer,
    check_split_fixed,
)
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import qkv_heads as goldens
from ttmesh.ops.lane_functions.lane_broadcast import pad_to_tiles
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
QueryKeyValue = tuple[Lanes, Lanes, Lanes]  # queries, keys, values


def to_heads(x: Lanes, heads: int, size: int = -1) -> Lanes:
    """[.., rows, heads · dim] → [.., heads, rows, dim]; no heads at all need their size."""
    return torch.unflatten(x, -1, (heads, size)).transpose(-3, -2)


def concat_heads(x: Lanes) -> Lanes:
    """[.., heads, rows, dim] → [.., rows, heads · dim]."""
    return x.transpose(-3, -2).flatten(-2)


def split_fused_heads(
    x: Lanes, kv: Lanes | None, heads: int, kv_heads: int, *, transpose_k: bool, tied: bool = False
) -> QueryKeyValue:
    """Query, key and value heads of [.., rows, Q | K | V] (or of Q and K | V)."""
    if kv is None:
        head_count = heads + (1 if tied else 2) * kv_heads
        size = x.shape[-1] // head_count
        q, kv = x[..., : heads * size], x[..., heads * size :]
    else:
        q, size = x, x.shape[-1] // heads
    k = kv[..., : kv_heads * size]
    v = k if tied else kv[..., kv_heads * size : 2 * kv_heads * size]
    k, v = to_heads(k, kv_heads, size), to_heads(v, kv_heads, size)
    return _pad_heads(to_heads(q, heads), k, v, transpose_k=transpose_k)


def split_interleaved_heads(
    x: Lanes, heads: int, kv_heads: int, *, transpose_k: bool, tied: bool = False
) -> QueryKeyValue:
    """Heads of [.., rows, (queries, key, value) per group of heads], the order sharded inputs have."""
    group = heads // kv_heads
    groups = torch.unflatten(x, -1, (kv_heads, group + (1 if tied else 2), -1))
    q = groups[..., :group, :].flatten(-3, -2).transpose(-3, -2)
    k, v = (groups[..., group if tied else group + i, :].transpose(-3, -2) for i in range(2))
    return _pad_heads(q, k, v, transpose_k=transpose_k)


def split_interleaved_pairs(x: Lanes, kv: Lanes, heads: int, kv_heads: int, *, tied: bool) -> QueryKeyValue:
    """Heads of queries and of [.., rows, (key, value) per group of heads], both sharded."""
    groups = torch.unflatten(kv, -1, (kv_heads, 1 if tied else 2, -1))
    k, v = (groups[..., i, :].transpose(-3, -2) for i in (0, -1))
    return _pad_heads(to_heads(x, heads), k, v, transpose_k=False)


def _pad_heads(q: Lanes, k: Lanes, v: Lanes, *, transpose_k: bool) -> QueryKeyValue:
    q, k, v = (F.pad(x, (0, -x.shape[-1] % TILE)) for x in (q, k, v))  # a head's columns fill whole tiles
    return q, k.transpose(-1, -2) if transpose_k else k, v


def _heads_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    config = call["memory_config"] or call.specs[0].memory_config
    if config.interleaved:
        return [
            make_output_spec(call, shape, layout=Layout.TILE, memory_config=config, result=i)
            for i, (shape, _) in enumerate(inferred)
        ]
    grid = call.mesh.compute_with_storage_grid_size()
    specs = []
    for i, (shape, _) in enumerate(inferred):  # TT-NN: one head per core, however the input is sharded
        cores = num_cores_to_corerangeset(shape[1], grid, row_wise=True)
        rows = -(-shape[0] * shape[2] // TILE) * TILE
        memory_config = MemoryConfig(config.memory_layout, config.buffer_type, ShardSpec(cores, (rows, shape[3])))
        output = call.outputs[i] if i < len(call.outputs) else None
        specs.append(output.spec if output else _spec(call, shape, memory_config))
    return specs


def _spec(call: Call, shape: tuple[int, ...], memory_config: MemoryConfig) -> TensorSpec:
    return TensorSpec(shape, call.specs[0].dtype, Layout.TILE, memory_config=memory_config)


def _check_rank(call: Call) -> None:
    x = call.specs[0]
    if len(x.shape) != 4 or x.shape[1] != 1:
        raise ShapeError(
            f"Unsupported input shape {x.shape}", expected="[batch, 1, rows, width]", fix="Reshape the input."
        )
    heads, kv = call["num_heads"], call["num_kv_heads"]
    if heads is None or call["input_kv"] is not None:
        return
    kv = heads if kv is None else kv
    head_count = heads + (1 if call["kv_tied"] else 2) * kv
    if call["kv_tied"]:
        _check_tied_width(x.shape[3], head_count, head_count + kv)
    elif x.shape[3] % head_count:
        raise ShapeError(
            f"input hidden dim ({x.shape[3]}) must be divisible by num_q_heads + 2 * num_kv_heads ({head_count})",
            expected=f"a multiple of {head_count}",
            fix="Check the head counts.",
        )


def _check_tied_width(width: int, tied: int, untied: int) -> None:
    """A width that would do for keys and values that are not tied too is refused."""
    require(
        width % tied == 0, "Unsupported input shape", f"a multiple of {tied}, not {width}", "Check the head counts."
    )
    counts = f"{tied} (tied) and {untied} (untied) sections"
    wrong = f"Ambiguous kv_tied fused input shape: width {width} is divisible by both {counts}"
    require(width % untied != 0, wrong, f"no multiple of {untied}", "Pass queries and keys with input_kv=.")


def _check_width_of_keys(call: Call) -> None:
    """Keys and values given as a separate tensor have heads as wide as the queries', padding included."""
    queries, keys = (spec.padded_shape[-1] for spec in call.specs[:2])
    heads = call["num_heads"]
    kv = heads if call["num_kv_heads"] is None else call["num_kv_heads"]
    sections = 1 if call["kv_tied"] else 2
    wrong, fits = "Head dims must be the same for Q and K, V", keys // (sections * kv) == queries // heads
    require(fits, wrong, f"input_kv {sections * kv * (queries // heads)} wide, not {keys}", "Check the head counts.")


def _check_create(call: Call) -> None:
    _check_rank(call)
    if call["num_heads"] is not None and call["input_kv"] is not None:
        _check_width_of_keys(call)
    shards = call.specs[0].memory_config.shard_spec
    if shards is None:
        return
    heads, cores = call["num_heads"], shards.num_cores()
    kv = heads if call["num_kv_heads"] is None else call["num_kv_heads"]
    wrong = None
    if call["transpose_k_heads"]:
        wrong = "Transpose K heads must be false"
    elif heads % cores:
        wrong = f"Number of Q heads ({heads}) must be divisible by number of cores ({cores})"
    elif call["input_kv"] is None and kv % cores:
        wrong = f"Number of KV heads ({kv}) must be divisible by number of cores ({cores})"
    if wrong:
        raise ShapeError(wrong, expected="as many heads on every core", fix="Change the shards or unshard the input.")


@op(
    "ttnn.experimental.nlp_create_qkv_heads",
    golden=goldens.create_qkv_heads_of_nlp,
    out=_heads_spec,
    check=_check_create,
)
def nlp_create_qkv_heads(
    input: Lanes,
    input_kv: Lanes | None,
    num_heads: int,
    num_kv_heads: int | None,
    transpose_k_heads: bool,
    kv_tied: bool,
    specs: Sequence[TensorSpec],
) -> QueryKeyValue:
    """Query, key and value heads of a fused projection [batch, 1, rows, width]; sharded inputs hold whole heads per core."""
    kv = num_heads if num_kv_heads is None else num_kv_heads
    x, other = input.squeeze(-3), None if input_kv is None else input_kv.squeeze(-3)
    if specs[0].memory_config.is_sharded():
        if other is not None:
            return split_interleaved_pairs(x, other, num_heads, kv, tied=kv_tied)
        return split_interleaved_heads(x, num_heads, kv, transpose_k=transpose_k_heads, tied=kv_tied)
    return split_fused_heads(x, other, num_heads, kv, transpose_k=transpose_k_heads, tied=kv_tied)


def _falcon_lane(input: Lanes) -> QueryKeyValue:
    """Falcon-7B's 71 query heads and one key and value head."""
    return split_fused_heads(pad_to_tiles(input).squeeze(-3), None, 71, 1, transpose_k=False)


def _vit_lane(input: Lanes) -> QueryKeyValue:
    """ViT's 12 heads of each kind."""
    return split_fused_heads(pad_to_tiles(input).squeeze(-3), None, 12, 12, transpose_k=False)


nlp_create_qkv_heads_falcon7b = op(
    "ttnn.experimental.nlp_create_qkv_heads_falcon7b",
    golden=goldens.split_fixed(71, 1),
    out=_heads_spec,
    check=check_split_fixed(4672),
)(_falcon_lane)
nlp_create_qkv_heads_vit = op(
    "ttnn.experimental.nlp_create_qkv_heads_vit",
    golden=goldens.split_fixed(12, 12),
    out=_heads_spec,
    check=check_split_fixed(2304),
)(_vit_lane)


@op(
    "ttnn.experimental.nlp_create_qkv_heads_segformer",
    golden=goldens.create_qkv_heads_segformer,
    out=_heads_spec,
    check=check_segformer,
)
def nlp_create_qkv_heads_segformer(input: Lanes) -> QueryKeyValue:
    """Heads of 32 columns; query, key and value are the same."""
    split = to_heads(pad_to_tiles(input).squeeze(-3), input.shape[-1] // TILE)
    return split, split, split


@op("ttnn.experimental.nlp_create_qkv_heads_boltz", golden=goldens.create_qkv_heads_boltz)
def nlp_create_qkv_heads_boltz(
    input: Lanes,
    input_kv: Lanes | None,
    num_heads: int,
    num_kv_heads: int | None,
    transpose_k_heads: bool,
    lane_axes: int,
) -> QueryKeyValue:
    """Heads of pair representations [1, rows, rows, width]: [heads, rows, rows, dim]."""
    kv = num_heads if num_kv_heads is None else num_kv_heads
    x, other = input.squeeze(lane_axes), None if input_kv is None else input_kv.squeeze(lane_axes)
    q, k, v = (heads.transpose(-4, -3) for heads in split_fused_heads(x, other, num_heads, kv, transpose_k=False))
    return q, k.transpose(-1, -2) if transpose_k_heads else k, v


@op(
    "ttnn.experimental.nlp_concat_heads_boltz",
    golden=goldens.concat_heads_boltz,
    min_rank=4,
)
def nlp_concat_heads_boltz(input_tensor: Lanes, lane_axes: int) -> Lanes:
    """[heads, rows, rows, dim] → [1, rows, rows, heads · dim]."""
    return input_tensor.movedim(-4, -2).flatten(-2).unsqueeze(lane_axes)


# -- concatenated heads ------------------------------------------------------------------------------------------------


def _concat_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    x, shape = call.specs[0], inferred[0][0]
    config = call["memory_config"] or x.memory_config
    shard = x.memory_config.shard_spec
    if config.interleaved or (config.shard_spec is not None and call["memory_config"] is not None) or shard is None:
        return [make_output_spec(call, shape, layout=Layout.TILE, memory_config=config)]
    per_shard = max(shard.shape[0] // x.padded_shape[-2], 1)  # the heads of one shard become its columns
    shard_spec = ShardSpec(shard.grid, (shard.shape[0] // per_shard, shard.shape[1] * per_shard), shard.orientation)
    return [_spec(call, shape, MemoryConfig(config.memory_layout, config.buffer_type, shard_spec))]


@op(
    "ttnn.experimental.nlp_concat_heads",
    golden=goldens.concat_heads_4d,
    out=_concat_spec,
    check=check_concat,
    min_rank=4,
)
def nlp_concat_heads(input_tensor: Lanes) -> Lanes:
    """[batch, heads, rows, dim] → [batch, 1, rows, heads · dim]."""
    return concat_heads(input_tensor).unsqueeze(-3)


@op(
    "ttnn.experimental.concatenate_heads",
    golden=goldens.concat_heads_4d,
    out=_concat_spec,
    check=check_bert_large_concat,
    min_rank=4,
)
def concatenate_heads_on_grid(input_tensor: Lanes) -> Lanes:
    """[batch, heads, rows, dim] → [batch, 1, rows, heads · dim]."""
    return concat_heads(input_tensor).unsqueeze(-3)


def _check_head_size(call: Call) -> None:
    x = call.specs[0]
    if x.shape[-1] % TILE:
        raise ShapeError(
            f"Head size must be a multiple of {TILE} but was found to be {x.shape[-1]}. Update the matmul that uses the "
            "output of this operation to include padding in the weights",
            expected=f"a multiple of {TILE}",
            fix="Pad the weights.",
        )


def _check_tiled_heads(call: Call) -> None:
    _check_head_size(call)
    wrong = "Input tensor layout must be TILE but got Layout::ROW_MAJOR"
    require(call.specs[0].layout is Layout.TILE, wrong, "TILE layout", "Convert it with ttnn.to_layout.")


@op(
    "ttnn.transformer.concatenate_heads",
    golden=goldens.concatenate_heads,
    out=_concat_spec,
    check=_check_tiled_heads,
    min_rank=4,
)
def concatenate_heads(input_tensor: Lanes) -> Lanes:
    """[batch, heads, rows, dim] → [batch, rows, heads · dim]."""
    return concat_heads(input_tensor)
