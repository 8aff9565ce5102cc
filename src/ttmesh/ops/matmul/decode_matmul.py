"""Matmuls of decoding, one row per user: with one matrix per user, from caches, and with weights that stay in L1."""

from __future__ import annotations

import torch

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.dtypes import BufferType, Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_tiles
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_like_rule, make_output_spec
from ttmesh.ops.goldens import linear_algebra as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up, round_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
MOST_ROWS = 8  # tiles of a column that fit into the registers

# -- attention's matmuls -----------------------------------------------------------------------------------------------


def _matmul_per_user(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[1, heads, users, K] x [users, kv heads, K, N] → [1, heads, users, N]: every user's rows times that user's matrix."""
    heads, groups = a.shape[-3], b.shape[-3]
    rows = a.squeeze(-4).transpose(-3, -2)  # [users, heads, K]
    rows_of_groups = rows.reshape(*rows.shape[:-2], groups, heads // groups, rows.shape[-1])
    result = fpu.matmul(rows_of_groups, b)  # [users, groups, heads / groups, N]
    merged = result.reshape(*result.shape[:-3], heads, result.shape[-1])
    return merged.transpose(-3, -2).unsqueeze(-4)


@op("ttnn.experimental.attn_matmul", golden=goldens.attn_matmul, out=make_like_rule(layout=Layout.TILE))
def attn_matmul(input_tensor_a: torch.Tensor, input_tensor_b: torch.Tensor) -> torch.Tensor:
    """Attention of one new token: every user's heads times that user's matrix."""
    return _matmul_per_user(input_tensor_a, input_tensor_b)


def _group_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = DRAM_MEMORY_CONFIG if call["memory_config"] is None else None
    return [make_output_spec(call, inferred[0][0], layout=Layout.TILE, memory_config=memory)]


@op("ttnn.experimental.group_attn_matmul", golden=goldens.attn_matmul, out=_group_spec)
def group_attn_matmul(input_tensor_a: torch.Tensor, input_tensor_b: torch.Tensor) -> torch.Tensor:
    """attn_matmul with groups of heads that share one kv head."""
    return _matmul_per_user(input_tensor_a, input_tensor_b)


def _check_cached(call: Call) -> None:
    a, b = (spec.shape for spec in call.specs[:2])
    num_tokens = call["num_tokens"]
    require_tiles(call, "Inputs to matmul must be tilized")
    require(num_tokens > 0, "Number of tokens must be at least 1!", "a number of tokens", "Count the new token.")
    wrong = "Number of tokens must be smaller or equal to the max cache length (B.shape[2])!"
    require(num_tokens <= b[2], wrong, f"at most {b[2]}", "Allocate a longer cache.")
    require(a[0] == 1, "Input q_len must be 1!", "one new token", "Use ttnn.matmul.")
    require(b[1] == 1, "Number of kv_heads must be 1!", "one kv head", "Use group_attn_matmul.")
    require(
        round_up(a[2], TILE) == b[0],
        "Num of users must match!",
        f"{b[0]} users",
        "Pad the input to as many users as the cache has.",
    )
    if call["transpose_hw"]:
        wrong = "For pre-attention matmul, dimension K for B is in B.shape[3], so A.shape[3] must match B.shape[3]"
        require(a[3] == b[3], wrong, f"{b[3]} columns", "Reshape A to the head size of B.")
    else:
        wrong = (
            "For post-attention matmul, dimension K (A.shape[3]) is the kv_seq_len in this case and must match the "
            "length of the cache we read"
        )
        require(
            round_up(a[3], TILE) == round_up(num_tokens, TILE),
            wrong,
            f"{round_up(num_tokens, TILE)}",
            "Pad the scores.",
        )


@op(
    "ttnn.experimental.attn_matmul_from_cache",
    golden=goldens.attn_matmul_from_cache,
    check=_check_cached,
    out=make_like_rule(layout=Layout.TILE),
)
def attn_matmul_from_cache(
    input_tensor_a: torch.Tensor, input_tensor_b: torch.Tensor, num_tokens: int, transpose_hw: bool
) -> torch.Tensor:
    """attn_matmul with the first tokens (rounded up to tiles) of every user's cache, or with their transpose."""
    tokens = input_tensor_b[..., : round_up(num_tokens, TILE), :]
    return _matmul_per_user(input_tensor_a, tokens.transpose(-2, -1) if transpose_hw else tokens)


# -- weights that stay in L1 -------------------------------------------------------------------------------------------


def _unfold_weights(b: torch.Tensor, rows: int, batch: int, *, partial: bool) -> torch.Tensor:
    """Reshape weights that are stored as blocks side by side to [.., K, N] or [.., batch, K, N]."""
    if batch > 1:  # [Bc · K, blocks · N] → [blocks · Bc, K, N]
        per_block = b.shape[-2] // rows
        blocks = torch.unflatten(torch.unflatten(b, -2, (per_block, rows)), -1, (batch // per_block, -1))
        return blocks.movedim(-2, -4).flatten(-4, -3)
    if partial and rows >= b.shape[-2]:  # [Kc, blocks · N] → [blocks · Kc, N]
        return torch.unflatten(b, -1, (rows // b.shape[-2], -1)).transpose(-3, -2).flatten(-3, -2)
    return b


def _batch(a: TensorSpec) -> int:
    return int(a.shape[0] * a.shape[1]) if len(a.shape) == 4 else 1


def _check_decode(call: Call) -> None:
    a, b = call.specs[:2]
    rows, batch = a.shape[-1], _batch(a)
    for name, spec in (("A", a), ("B", b)):
        wrong = f"Input tensor {name} must be in tile layout"
        require(spec.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
        memory_layout = spec.memory_config.memory_layout
        wrong = f"Input tensor {name} must be in width sharded memory layout, but got {memory_layout}"
        width_sharded = memory_layout is TensorMemoryLayout.WIDTH_SHARDED
        require(width_sharded, wrong, "WIDTH_SHARDED memory", "Use create_sharded_memory_config.")
    m_tiles = div_up(a.shape[-2], a.tile.tile_shape[0])
    variant = "batched" if batch > 1 else "partial_width_sharded" if call["partial_width_sharded"] else ""
    limit = (
        f"{variant or 'full_width_sharded'} matmul_decode requires {'M_tiles' if variant else 'out_block_h'} (= "
        f"{'ceil(M / tile_height)' if variant else 'M_tiles'}) <= {MOST_ROWS}"
    )
    require(
        m_tiles <= MOST_ROWS,
        f"{limit}, but got M_tiles={m_tiles}",
        f"at most {MOST_ROWS} tiles of rows",
        "Slice the rows with ttnn.slice.",
    )
    if batch > 1:
        wrong = f"batched matmul_decode with batch {batch} > 1 requires rank-4 weights, but got rank {len(b.shape)}"
        require(len(b.shape) == 4, wrong, "rank-4 weights", "Reshape them to four dims.")
        wrong = f"batched matmul_decode: weight height {b.shape[-2]} must be a multiple of K {rows}"
        require(
            b.shape[-2] % rows == 0,
            f"{wrong} (weight height = Bc * K)",
            f"a multiple of {rows}",
            "Fold the weights again.",
        )
        per_block = b.shape[-2] // rows
        wrong = f"batched matmul_decode: batch {batch} must be a multiple of Bc {per_block} (Bc = weight_height / K)"
        require(batch % per_block == 0, wrong, f"a multiple of {per_block}", "Fold the weights again.")
        return
    if call["partial_width_sharded"] and rows >= b.shape[-2]:
        require(rows % b.shape[-2] == 0, "K_a must be divisible by K_b", "whole blocks", "Fold the weights again.")
        blocks = rows // b.shape[-2]
        wrong = (
            "partial_width_sharded matmul_decode requires an even number of K-blocks (the cross-core reduction sums "
            f"partials pairwise), but got K_blocks={blocks}"
        )
        require(blocks == 1 or blocks % 2 == 0, wrong, "an even number", "Choose shards of another height.")
        return
    wrong = "Input tensor B must have the same K dimension as the operation attributes"
    require(b.shape[-2] == rows, wrong, f"{rows} rows", "Reshape B to that height.")


def _decode_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    a, b = call.specs[:2]
    shape, dtype = inferred[0][0], call["dtype"] or a.dtype
    memory_config = call["output_mem_config"]
    if memory_config is None and len(a.shape) == 4:
        memory_config = DRAM_MEMORY_CONFIG
    if memory_config is None:
        shard_spec = b.memory_config.shard_spec
        assert shard_spec is not None, "the weights are sharded"
        cores = shard_spec.grid
        if call["partial_width_sharded"]:
            grid_size = call.mesh.compute_with_storage_grid_size()
            blocks = div_up(shape[-1], TILE) // (shard_spec.shape[1] // TILE)
            cores = num_cores_to_corerangeset(blocks, grid_size, row_wise=True)
        shard_shape = (round_up(shape[-2], a.tile.tile_shape[0]), div_up(shape[-1], cores.num_cores()))
        memory_config = MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, BufferType.L1, ShardSpec(cores, shard_shape))
    return [TensorSpec(shape, dtype, Layout.TILE, tile=a.tile, memory_config=memory_config)]


@op("ttnn.experimental.matmul_decode", golden=goldens.matmul_decode, check=_check_decode, out=_decode_spec)
def matmul_decode(
    input_tensor_a: torch.Tensor, input_tensor_b: torch.Tensor, partial_width_sharded: bool, lane_axes: int
) -> torch.Tensor:
    """A few rows times weights in the L1 of many cores: width-sharded, also sharded along K, or one matrix per batch."""
    a, b = equalize_ranks([input_tensor_a, input_tensor_b], lane_axes)
    rows = a.shape[-1]
    batch = int(a.shape[-4] * a.shape[-3]) if input_tensor_a.dim() == lane_axes + 4 else 1
    weights = _unfold_weights(b, rows, batch, partial=partial_width_sharded)
    if batch == 1:
        return fpu.matmul(a, weights)
    flat = a.flatten(-4, -3)
    result = fpu.matmul(flat, weights.reshape(*weights.shape[:lane_axes], *weights.shape[-3:]))
    return torch.unflatten(result, -3, tuple(a.shape[-4:-2]))
