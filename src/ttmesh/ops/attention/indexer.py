"""Indexers of sparse attention: the score of every key, or block of keys, for every query."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import Arch, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.attention.sequence_shards import Stripes, find_row_positions, find_sequence_ranks, mesh_of
from ttmesh.ops.catalogue.checks import require_dtype, require_interleaved, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.goldens import sparse_sdpa as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32
SLICE = 8  # bfloat16 numbers in the 16 bytes that a write to DRAM is aligned to
MASKED = float("-inf")
FORMATS = {DataType.BFLOAT16, DataType.BFLOAT8_B}


@dataclass(unsafe_hash=True)
class IndexerScoreProgramConfig:
    """How TT-NN's kernel splits the work; it is checked, and does not change the scores."""

    q_chunk_size: int = TILE
    k_chunk_size: int = TILE
    head_group_size: int = 1


def _check(call: Call) -> None:
    q, k, weights = call["q"].spec, call["k"].spec, call["weights"]
    arch, config = call.mesh.arch(), call["compute_kernel_config"]
    require(
        arch is Arch.BLACKHOLE,
        f"indexer_score is only supported on Blackhole, got {arch.name.lower()}",
        "a Blackhole system",
        "Choose a Blackhole system with TTMESH_SYSTEM or --system.",
    )
    if config is not None:
        wrong = (
            "indexer_score requires fp32_dest_acc_en=false (bf16 DEST; the custom LLK is not validated for fp32 DEST)"
        )
        require(
            not config.fp32_dest_acc_en,
            wrong,
            "fp32_dest_acc_en=False",
            "Set fp32_dest_acc_en=False in compute_kernel_config.",
        )
        wrong = "indexer_score requires dst_full_sync_en=false (the kernel is built half-sync)"
        require(
            not config.dst_full_sync_en,
            wrong,
            "dst_full_sync_en=False",
            "Set dst_full_sync_en=False in compute_kernel_config.",
        )
    require(len(q.shape) == len(k.shape) == 4, "q, k must be rank 4", "4 dims", "Reshape it to four dims.")
    wrong = f"k must be single-head [B, 1, T, D], got {k.shape[1]} heads"
    require(k.shape[1] == 1, wrong, "one head", "Slice one head of k with ttnn.slice.")
    wrong = f"q head dim {q.shape[3]} != k head dim {k.shape[3]}"
    require(q.shape[3] == k.shape[3], wrong, "equal lengths", "Give q and k the same last dim.")
    require(q.shape[0] == 1, f"q batch 1 only, got {q.shape[0]}", "one batch", "Call it once per batch.")
    slot = call["cache_batch_idx"]
    if slot is None:
        wrong = f"indexer_score k batch must be 1 unless cache_batch_idx is set (got {k.shape[0]})"
        require(k.shape[0] == 1, wrong, "cache_batch_idx=", "Pass cache_batch_idx, or slice one batch of the cache.")
    else:
        wrong = f"indexer_score cache_batch_idx ({slot}) must be < k batch slots ({k.shape[0]})"
        require(slot < k.shape[0], wrong, "a slot of the cache", "Pass a cache_batch_idx below the cache's first dim.")
    require_interleaved(q, "indexer_score q must use interleaved memory")
    for name, spec in (("q", q), ("k", k)):
        wrong = f"{name} must be bfloat16 or bfloat8_b (got {spec.dtype})"
        require(spec.dtype in FORMATS, wrong, "bfloat16 or bfloat8_b", "Convert it with ttnn.typecast.")
    wrong = "q, k must be TILE layout"
    require(q.layout is k.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
    rows, keys, dim = q.shape[2], k.shape[2], q.shape[3]
    tile_aligned = all(length % TILE == 0 for length in (rows, keys, dim))
    require(
        tile_aligned,
        f"Sq {rows}, T {keys}, D {dim} must be tile-aligned",
        f"multiples of {TILE}",
        "Pad them with ttnn.pad.",
    )
    if weights is not None:
        has_shape = tuple(weights.spec.shape) == (*q.shape[:3], 1)
        wrong = "weights must be [B, Hi, Sq, 1] matching q [B, Hi, Sq, D]"
        require(has_shape, wrong, str([*q.shape[:3], 1]), "Reshape weights to that shape.")
        require_dtype(weights, DataType.BFLOAT16, f"weights must be bfloat16 (got {weights.dtype})")
        require_layout(weights, Layout.TILE, "weights must be TILE layout")
    _check_blocks(call, rows, keys, q.shape[1])
    _check_window(call, rows, keys)


def _check_blocks(call: Call, rows: int, keys: int, heads: int) -> None:
    config = call["program_config"] or IndexerScoreProgramConfig()
    q_chunk, k_chunk, group = config.q_chunk_size, config.k_chunk_size, config.head_group_size
    wrong = f"q_chunk_size {q_chunk} / k_chunk_size {k_chunk} must be tile-aligned"
    require(
        q_chunk > 0 and k_chunk > 0 and q_chunk % TILE == k_chunk % TILE == 0,
        wrong,
        f"multiples of {TILE}",
        "Round both chunk sizes up to whole tiles.",
    )
    wrong = f"q_chunk_size {q_chunk} must divide Sq {rows}"
    require(rows % q_chunk == 0, wrong, f"a divisor of {rows}", "Choose a q_chunk_size that divides the queries.")
    require(
        k_chunk <= keys, f"k_chunk_size {k_chunk} out of range (T={keys})", f"at most {keys}", "Lower k_chunk_size."
    )
    require(
        heads % (group or heads) == 0,
        f"head_group_size {group} must divide Hi {heads}",
        f"a divisor of {heads}",
        "Choose a head_group_size that divides the heads.",
    )
    groups, block = call["num_groups"], call["block_size"]
    wrong = f"num_groups {groups} must be >= 1 and divide Hi {heads}"
    require(
        groups >= 1 and heads % groups == 0, wrong, f"a divisor of {heads}", "Choose num_groups that divides the heads."
    )
    if groups > 1:
        resident = group in (0, heads)
        wrong = f"num_groups {groups}>1 requires all heads resident (head_group_size 0 or Hi); got HB={group}"
        require(resident, wrong, "head_group_size=0", "Leave head_group_size at 0.")
        wrong = f"num_groups {groups}>1 requires k_chunk_size>=64 (the full-strip path); got k_chunk_size={k_chunk}"
        require(k_chunk >= 2 * TILE, wrong, "k_chunk_size=64 or more", "Raise k_chunk_size to 64.")
    if block:
        wrong = f"block_size {block} must be a multiple of {TILE}"
        require(block % TILE == 0, wrong, f"a multiple of {TILE}", "Round block_size up to whole tiles.")
        wrong = f"block_size {block} must divide T {keys}"
        require(keys % block == 0, wrong, f"a divisor of {keys}", "Choose a block_size that divides the keys.")
        wrong = f"block_size {block} must divide k_chunk_size {k_chunk} (a block can't straddle a work unit)"
        require(
            k_chunk % block == 0, wrong, f"a divisor of {k_chunk}", "Choose a block_size that divides k_chunk_size."
        )
        wrong = f"block_size pooling requires k_chunk_size {k_chunk} to divide T {keys}"
        require(keys % k_chunk == 0, wrong, f"a divisor of {keys}", "Choose a k_chunk_size that divides the keys.")
        wrong = (
            f"block_size pooling needs k_chunk_size/block_size (= {k_chunk // block}) to be a multiple of {SLICE} so each "
            f"unit's row-major output slice is 16 B-aligned; set k_chunk_size to a multiple of {SLICE}*block_size"
        )
        require(k_chunk // block % SLICE == 0, wrong, f"a multiple of {SLICE} blocks per unit", "Raise k_chunk_size.")
        wrong = f"blocks per work unit (k_chunk_size/block_size = {k_chunk // block}) must be <= {TILE}; reduce k_chunk_size"
        require(k_chunk // block <= TILE, wrong, f"at most {TILE} blocks", "Lower k_chunk_size.")


def _check_window(call: Call, rows: int, keys: int) -> None:
    first, last, length = call["first"], call["last"], call["kv_len"]
    wrong = f"chunk_start_idx {first} must be tile-aligned"
    require(first % TILE == 0, wrong, f"a multiple of {TILE}", "Start at the first key of a tile.")
    wrong = f"fullest-device chunk window [{last}, {last}+{rows}) exceeds T={keys} (base={first}, per-rank stride Sq={rows})"
    require(
        last + rows <= keys, wrong, "a window inside the keys", "Pass a smaller chunk_start_idx, or a longer cache."
    )
    if length is not None:
        wrong = f"indexer_score kv_len {length} must be tile-aligned"
        require(length % TILE == 0, wrong, f"a multiple of {TILE}", "Round kv_len up to whole tiles.")
        wrong = f"indexer_score kv_len {length} must be in (0, T={keys}] (the allocated k length)"
        require(0 < length <= keys, wrong, f"1 to {keys}", "Pass how many keys of the cache are valid.")
        wrong = (
            f"fullest-device causal window [{last}, {last}+{rows}) exceeds kv_len={length} (cannot attend past the valid "
            f"keys; base={first}, per-rank stride Sq={rows})"
        )
        require(
            last + rows <= length,
            wrong,
            f"kv_len of {last + rows} or more",
            "Raise kv_len, or pass a smaller chunk_start_idx.",
        )
        block = call["block_size"]
        wrong = (
            f"indexer_score kv_len {length} must be a multiple of block_size {block} when block-max-pooling (a kv_len "
            "splitting a block drops the boundary block's score)"
        )
        require(not block or length % block == 0, wrong, f"a multiple of {block}", "Round kv_len up to whole blocks.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [TensorSpec(inferred[0][0], DataType.BFLOAT16, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG)]


def _programs(call: Call) -> tuple[Hashable, ...]:
    """Identify the device program; starts, lengths and slots are runtime arguments and do not change it."""
    names = ("program_config", "num_groups", "block_size", "stripes", "axes", "compute_kernel_config")
    return ((call.name, call.specs, *(call[name] for name in names)),)


@device_operation("ttnn.experimental.indexer_score", check=_check, out=_spec, programs=_programs)
def _score(
    q: Lanes,
    k: Lanes,
    weights: Lanes | None,
    scale: float,
    num_groups: int,
    block_size: int,
    cache_batch_idx: int | None,
    kv_len: int | None,
    first: int,
    stripes: Stripes | None,
    axes: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    rank_block: RankBlock | None,
    lane_axes: int,
) -> Lanes:
    keys = k.select(lane_axes, cache_batch_idx or 0).select(lane_axes, 0).float()  # [*mesh, T, D]
    total, rows = keys.shape[-2], q.shape[-2]
    if stripes is not None:
        rows_in_order = stripes.find_rows(torch.arange(total, device=k.device), total)
        keys = keys.index_select(-2, rows_in_order)
    heads = q.squeeze(lane_axes).float()  # [*mesh, H, S, D]
    heads_per_group = heads.shape[-3] // num_groups
    group_scores = []
    for group in range(num_groups):
        total_scores: Lanes | None = None
        for head in range(group * heads_per_group, (group + 1) * heads_per_group):
            head_scores = fpu.matmul(heads[..., head, :, :], keys.mT)
            if weights is not None:
                head_scores = head_scores.relu_() * weights.squeeze(lane_axes)[..., head, :, :].float()
            total_scores = head_scores if total_scores is None else total_scores.add_(head_scores)
        assert total_scores is not None, "a group has at least one head"
        group_scores.append(total_scores if weights is not None else total_scores * scale)
    scores = torch.stack(group_scores, dim=-3)
    rank = find_sequence_ranks(mesh_shape, axes[0] if axes else None, rank_block, q.device)
    sub_rank = find_sequence_ranks(mesh_shape, axes[1], rank_block, q.device) if len(axes) > 1 else 0
    row_positions = find_row_positions(first, rows, rank, stripes if axes else None, sub_rank)  # [*mesh, S]
    column = torch.arange(total, device=q.device)
    hidden = column > row_positions[..., None]
    if kv_len is not None:
        hidden = hidden | (column >= kv_len)
    scores, hidden = align_mesh_dims([scores, hidden[..., None, :, :]], lane_axes)
    scores = scores.masked_fill(hidden, MASKED)
    if block_size:
        scores = torch.unflatten(scores, -1, (-1, block_size)).amax(-1)
        block = torch.arange(scores.shape[-1], device=q.device)
        own_block = block == (row_positions // block_size)[..., None]
        scores = scores.masked_fill(own_block[..., None, :, :], float("inf"))
    return scores.unsqueeze(lane_axes)


def _run(q: Tensor, k: Tensor, weights: Tensor | None, **options: Any) -> Tensor:
    mesh = mesh_of(q, "indexer_score q")
    shape, rows, keys = tuple(mesh.shape), q.shape[2], k.shape[2]
    axes = tuple(options.pop("seq_shard_axes") or ())
    sp_axis, chunk_local = options.pop("block_cyclic_sp_axis"), options.pop("block_cyclic_chunk_local")
    start = options.pop("chunk_start_idx")
    max_axes = 2 if weights is not None else 1
    axis_names = "[SP, TP]" if max_axes > 1 else "[SP]"
    wrong = f"indexer_score: seq_shard_axes takes at most {max_axes} axis/axes {axis_names}, got {len(axes)}"
    require(len(axes) <= max_axes, wrong, f"at most {max_axes}", "Name fewer mesh axes.")
    wrong = (
        "indexer_score: block_cyclic_sp_axis and block_cyclic_chunk_local must both be set or both unset "
        f"(got sp_axis={sp_axis is not None}, chunk_local={chunk_local is not None})"
    )
    require(
        (sp_axis is None) == (chunk_local is None),
        wrong,
        "both or none",
        "Pass both block_cyclic arguments, or leave both out.",
    )
    wrong = (
        "indexer_score: seq_shard_axes[1] (TP sub-shard) requires a block-cyclic layout "
        "(block_cyclic_sp_axis/chunk_local)"
    )
    require(
        len(axes) < 2 or sp_axis is not None,
        wrong,
        "block_cyclic_sp_axis=",
        "Pass block_cyclic_sp_axis and block_cyclic_chunk_local.",
    )
    stripes = None if sp_axis is None else _find_stripes(shape, rows, axes, sp_axis, chunk_local)
    ring = _count_sequence_shards(shape, axes)
    first = start
    if first is None:
        first = keys - (stripes.chunk if stripes is not None else ring * rows)
    # The device with the last rows sees the most keys, if devices hold consecutive rows.
    last = first + (ring - 1) * rows if stripes is None or not axes else first
    result: Tensor = _score(
        q=q, k=k, weights=weights, first=first, last=last, stripes=stripes, axes=axes, mesh_shape=shape,
        rank_block=mesh.rank_block, **options,
    )  # fmt: skip
    return result


def _count_sequence_shards(shape: Sequence[int], axes: Sequence[int]) -> int:
    """How many devices a sequence is sharded over."""
    if not axes:
        return torch.Size(shape).numel()
    return shape[axes[0]] if len(axes) == 1 or shape[axes[0]] > 1 else shape[axes[1]]


def _find_stripes(
    shape: tuple[int, ...], rows: int, axes: tuple[int, ...], sp_axis: int, chunk_local: int
) -> Stripes | None:
    wrong = f"indexer_score: block_cyclic_sp_axis ({sp_axis}) out of range for mesh rank {len(shape)}"
    require(0 <= sp_axis < len(shape), wrong, "a mesh axis", "Choose an axis of the mesh.")
    other_devices = torch.Size(shape).numel() // shape[sp_axis]
    wrong = (
        f"indexer_score: block_cyclic_chunk_local ({chunk_local}) must be q_isl ({rows}) or tp*q_isl "
        f"({other_devices * rows})"
    )
    require(
        chunk_local in (rows, other_devices * rows),
        wrong,
        f"{rows} or {other_devices * rows}",
        "Pass one of these numbers as block_cyclic_chunk_local.",
    )
    sharded_over_both = chunk_local == rows * other_devices and other_devices > 1
    wrong = (
        f"indexer_score: block_cyclic_chunk_local == tp*q_isl (tp={other_devices} > 1) with seq_shard_axes=[SP] "
        "needs the TP axis "
        "too (seq_shard_axes=[SP, TP]) so the second axis's seq offset is applied; or pass seq_shard_axes=[] (flat "
        "linearization)."
    )
    require(
        not (sharded_over_both and len(axes) == 1),
        wrong,
        "seq_shard_axes=[SP, TP]",
        "Add the TP axis to seq_shard_axes, or leave it empty.",
    )
    return Stripes(shape[sp_axis], chunk_local) if shape[sp_axis] > 1 else None


@composite("ttnn.experimental.indexer_score_dsa", golden=goldens.indexer_score_dsa)
def indexer_score_dsa(
    q: Tensor,
    k: Tensor,
    weights: Tensor,
    chunk_start_idx: int | None,
    program_config: IndexerScoreProgramConfig | None,
    compute_kernel_config: WormholeComputeKernelConfig | None,
    cache_batch_idx: int | None,
    kv_len: int | None,
    seq_shard_axes: Sequence[int] | None,
    block_cyclic_sp_axis: int | None,
    block_cyclic_chunk_local: int | None,
) -> Tensor:
    """relu of every head's query-key matmul, weighted and summed over heads; keys after a query are -inf."""
    return _run(
        q, k, weights, chunk_start_idx=chunk_start_idx, program_config=program_config, scale=1.0, num_groups=1,
        block_size=0, compute_kernel_config=compute_kernel_config, cache_batch_idx=cache_batch_idx, kv_len=kv_len,
        seq_shard_axes=seq_shard_axes, block_cyclic_sp_axis=block_cyclic_sp_axis,
        block_cyclic_chunk_local=block_cyclic_chunk_local,
    )  # fmt: skip


@composite("ttnn.experimental.indexer_score_msa", golden=goldens.indexer_score_msa)
def indexer_score_msa(
    q: Tensor,
    k: Tensor,
    num_groups: int,
    chunk_start_idx: int | None,
    scale: float,
    block_size: int,
    program_config: IndexerScoreProgramConfig | None,
    compute_kernel_config: WormholeComputeKernelConfig | None,
    cache_batch_idx: int | None,
    kv_len: int | None,
    seq_shard_axes: Sequence[int] | None,
    block_cyclic_sp_axis: int | None,
    block_cyclic_chunk_local: int | None,
) -> Tensor:
    """Scaled query-key scores summed over each group's heads; with blocks their maximum, +inf for a query's own block."""
    return _run(
        q, k, None, chunk_start_idx=chunk_start_idx, program_config=program_config, scale=scale, num_groups=num_groups,
        block_size=block_size, compute_kernel_config=compute_kernel_config, cache_batch_idx=cache_batch_idx,
        kv_len=kv_len, seq_shard_axes=seq_shard_axes, block_cyclic_sp_axis=block_cyclic_sp_axis,
        block_cyclic_chunk_local=block_cyclic_chunk_local,
    )  # fmt: skip
