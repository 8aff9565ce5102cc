"""Attention over selected blocks of keys, as MiniMax's models use it."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import Arch, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.attention.fpu_attention import multiply_by_row
from ttmesh.ops.attention.sequence_shards import Stripes, find_row_positions, find_sequence_ranks, mesh_of
from ttmesh.ops.catalogue.checks import require_dtype, require_interleaved, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.goldens import sparse_sdpa as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims, common_mesh_dims, flatten_lanes, unflatten_lanes
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

OP = "sparse_sdpa_msa"
TILE = 32
ROWS_PER_STEP = 64  # rows whose keys are gathered together: 64 rows of 16 blocks of 128 keys of 128 numbers take 64 MiB


def _check(call: Call) -> None:
    q, k, v, indices = call.specs[:4]
    require(
        call.mesh.arch() is Arch.BLACKHOLE,
        f"{OP} is Blackhole-only",
        "a Blackhole system",
        "Choose a Blackhole system with TTMESH_SYSTEM or --system.",
    )
    for spec in (q, indices):
        require_layout(spec, Layout.ROW_MAJOR, f"{OP} q/indices must be ROW_MAJOR")
        require_interleaved(spec, f"{OP} q/indices must be interleaved")
    for spec in (k, v):
        require_layout(spec, Layout.TILE, f"{OP} k/v must be TILE (pre-tiled cache)")
    fix = "Move it with ttnn.to_memory_config."
    require(all(spec.memory_config.is_dram() for spec in (q, indices)), f"{OP} q/indices must be in DRAM", "DRAM", fix)
    require(all(spec.memory_config.is_dram() for spec in (k, v)), f"{OP} k/v must be in DRAM", "DRAM", fix)
    require(
        q.dtype in (DataType.BFLOAT16, DataType.FP8_E4M3),
        f"{OP}: q must be bf16 or fp8_e4m3",
        "bfloat16 or fp8_e4m3",
        "Convert it with ttnn.typecast.",
    )
    causal = call["chunk_start_idx"] is not None
    wrong = f"{OP}: causal masking (chunk_start_idx) with fp8_e4m3 q is not supported; use bf16 q"
    require(not causal or q.dtype is DataType.BFLOAT16, wrong, "bfloat16", "Convert q with ttnn.typecast.")
    for name, spec in (("k", k), ("v", v)):
        allowed = spec.dtype in (DataType.BFLOAT16, DataType.BFLOAT8_B)
        require(
            allowed, f"{OP}: {name} must be bf16 or bfp8_b", "bfloat16 or bfloat8_b", "Convert it with ttnn.typecast."
        )
    require_dtype(indices, DataType.UINT32, "indices must be uint32")
    aligned = indices.shape[-1] % 16 == 0
    require(aligned, "indices row bytes must be 64B aligned", "a multiple of 16 indices", "Pad them with 0xFFFFFFFF.")
    require(len(q.shape) == 4 and q.shape[0] == 1, "q must be [1,H,S,d]", "one batch", "Call it once per batch.")
    has_shape = len(k.shape) == 4 and k.shape[3] == q.shape[3]
    wrong = f"k must be [B,n_kv,T,d] with d matching q ({q.shape[3]})"
    require(has_shape, wrong, f"four dims, the last of length {q.shape[3]}", "Reshape k with ttnn.reshape.")
    require(
        tuple(v.shape[:3]) == tuple(k.shape[:3]),
        "v must be [B,n_kv,T,v_dim] matching k's B/n_kv/T",
        f"{list(k.shape[:3])} before the last dim",
        "Give v the batch, heads and length of k.",
    )
    heads, groups, keys, block = q.shape[1], k.shape[1], k.shape[2], call["block_size"]
    wrong = f"{OP}: H ({heads}) must be divisible by n_kv ({groups})"
    require(heads % groups == 0, wrong, f"a multiple of {groups}", "Choose heads that the number of kv heads divides.")
    heads_per_group = heads // groups
    wrong = (
        f"{OP}: H / n_kv must be 16 or a multiple of {TILE} (got H {heads}, n_kv {groups}, H/n_kv {heads_per_group})"
    )
    require(
        heads_per_group == TILE // 2 or heads_per_group % TILE == 0,
        wrong,
        f"16 or a multiple of {TILE} query heads per kv head",
        "Pad the query heads, or use other kv heads.",
    )
    has_shape = len(indices.shape) == 4 and tuple(indices.shape[:3]) == (1, groups, q.shape[2])
    require(
        has_shape,
        "indices must be [1,n_kv,S,TOPK]",
        f"[1, {groups}, {q.shape[2]}, k]",
        "Reshape indices to that shape.",
    )
    wrong = f"block_size must be a multiple of {TILE} (got {block})"
    require(
        block > 0 and block % TILE == 0,
        wrong,
        f"a multiple of {TILE}",
        "Round block_size up to a multiple of the tile size.",
    )
    require(
        keys % block == 0,
        f"block_size must divide T (got block_size {block}, T {keys})",
        f"a divisor of {keys}",
        "Choose a block_size that divides the keys, or pad the cache.",
    )
    slot, slots = call["cache_batch_idx"], k.shape[0]
    if slot is None:
        wrong = f"k/v batch must be 1 unless cache_batch_idx is set (got {slots})"
        require(slots == 1, wrong, "cache_batch_idx=", "Pass cache_batch_idx, or slice one batch of the cache.")
    else:
        wrong = f"cache_batch_idx ({slot}) must be < kv batch slots ({slots})"
        require(slot < slots, wrong, "a slot of the cache", "Pass a cache_batch_idx below the cache's first dim.")
    scale = call["scale"]
    require(
        scale is None or scale > 0, "scale must be > 0", "a positive number", "Pass a positive scale, or leave it out."
    )


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [TensorSpec(inferred[0][0], call.specs[0].dtype, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG)]


def _programs(call: Call) -> tuple[Hashable, ...]:
    """Identify the device program; the cache's length, slot and start are runtime arguments and do not change it."""
    q, k, v, indices = call.specs[:4]
    names = ("scale", "block_size", "cluster_axis", "stripes")
    causal = call["chunk_start_idx"] is not None
    caches = (k.shape[1], k.shape[3], k.dtype, v.shape[3], v.dtype)
    return ((call.name, q, indices, caches, causal, *(call[name] for name in names)),)


@device_operation(
    f"ttnn.transformer.{OP}",
    check=_check,
    out=_spec,
    programs=_programs,
    runtime=("cache_batch_idx", "chunk_start_idx"),
    recheck=True,
)
def _compute_attention(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    indices: Lanes,
    scale: float | None,
    block_size: int,
    cache_batch_idx: int | None,
    chunk_start_idx: int | None,
    cluster_axis: int | None,
    stripes: Stripes | None,
    mesh_shape: tuple[int, ...],
    rank_block: RankBlock | None,
    lane_axes: int,
) -> Lanes:
    rows, groups = q.shape[-2], k.shape[-3]
    inputs = [q, k, v, indices]
    row_positions: Lanes | None = None
    if chunk_start_idx is not None:
        row_positions = find_row_positions(
            chunk_start_idx, rows, find_sequence_ranks(mesh_shape, cluster_axis, rank_block, q.device)
        )
        row_positions = row_positions if cluster_axis is not None else row_positions[(slice(0, 1),) * lane_axes]
        inputs.append(row_positions)
    dims = common_mesh_dims(inputs, lane_axes)
    lanes = [flatten_lanes(x, lane_axes) for x in align_mesh_dims(inputs, lane_axes)]
    slot = cache_batch_idx or 0
    # Lanes and groups of kv heads become one batch dim; a batch has [rows, blocks] block ids.
    keys, values = (x[:, slot].flatten(0, 1).float() for x in lanes[1:3])
    queries = torch.unflatten(lanes[0][:, 0].float(), 1, (groups, -1)).flatten(0, 1)  # [N, heads, S, d]
    block_ids = lanes[3][:, 0].flatten(0, 1).long()  # [N, S, blocks]
    own_positions = None if row_positions is None else lanes[4].repeat_interleave(groups, 0)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    outputs = [
        _compute_rows(queries[:, :, i : i + ROWS_PER_STEP] * scale, keys, values, block_ids[:, i : i + ROWS_PER_STEP],
              None if own_positions is None else own_positions[:, i : i + ROWS_PER_STEP], block_size, stripes)
        for i in range(0, rows, ROWS_PER_STEP)
    ]  # fmt: skip
    out = torch.unflatten(torch.cat(outputs, 2), 0, (-1, groups)).flatten(1, 2)
    return unflatten_lanes(out.unsqueeze(1), dims)


def _compute_rows(
    q: Lanes,
    keys: Lanes,
    values: Lanes,
    block_ids: Lanes,
    own_positions: Lanes | None,
    block: int,
    stripes: Stripes | None,
) -> Lanes:
    total = keys.shape[1]
    exists = block_ids < total // block
    token = (block_ids.where(exists, 0)[..., None] * block + torch.arange(block, device=q.device)).flatten(
        -2
    )  # [N, S, K]
    visible = exists.repeat_interleave(block, -1)
    if own_positions is not None:
        visible = visible & (token <= own_positions[..., None])
    cache_rows = token if stripes is None else stripes.find_rows(token, total)
    batch = torch.arange(len(keys), device=q.device)[:, None, None]
    scores = multiply_by_row(q, keys[batch, cache_rows].mT).masked_fill(~visible[:, None], float("-inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return multiply_by_row(weights, values[batch, cache_rows])


@composite(f"ttnn.transformer.{OP}", golden=goldens.sparse_sdpa_msa)
def sparse_sdpa_msa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    scale: float | None,
    block_size: int,
    compute_kernel_config: WormholeComputeKernelConfig | None,
    cache_batch_idx: int | None,
    chunk_start_idx: int | None,
    cluster_axis: int | None,
    block_cyclic_sp_axis: int | None,
    block_cyclic_chunk_local: int | None,
) -> Tensor:
    """Attention of every row over the blocks of keys selected for it; chunk_start_idx makes it causal."""
    mesh = mesh_of(q, OP)
    shape, rows = tuple(mesh.shape), q.shape[2]
    sp_axis, chunk_local, stripes = block_cyclic_sp_axis, block_cyclic_chunk_local, None
    wrong = "block_cyclic_sp_axis and block_cyclic_chunk_local must be set together"
    require(
        (sp_axis is None) == (chunk_local is None),
        wrong,
        "both or none",
        "Pass both block_cyclic arguments, or leave both out.",
    )
    if sp_axis is not None and chunk_local is not None:
        wrong = f"block_cyclic_sp_axis ({sp_axis}) out of range for mesh dims ({len(shape)})"
        require(0 <= sp_axis < len(shape), wrong, "a mesh axis", "Choose an axis of the mesh.")
        other_devices = torch.Size(shape).numel() // shape[sp_axis]
        wrong = (
            f"block_cyclic_chunk_local ({chunk_local}) must equal q seq-len ({rows}) or tp*q seq-len "
            f"({other_devices * rows})"
        )
        require(
            chunk_local in (rows, other_devices * rows),
            wrong,
            f"{rows} or {other_devices * rows}",
            "Pass one of these numbers as block_cyclic_chunk_local.",
        )
        shard_length = k.shape[2] // shape[sp_axis]
        wrong = f"block_cyclic: chunk_local ({chunk_local}) must divide shard_len T/sp ({shard_length})"
        require(
            shard_length % chunk_local == 0,
            wrong,
            f"a divisor of {shard_length}",
            "Choose a chunk that divides the shard.",
        )
        wrong = f"block_cyclic: block_size ({block_size}) must divide chunk_local ({chunk_local})"
        require(
            chunk_local % block_size == 0,
            wrong,
            f"a divisor of {chunk_local}",
            "Choose a block_size that divides the chunk.",
        )
        stripes = Stripes(shape[sp_axis], chunk_local)
    config = compute_kernel_config
    exact = q.dtype is not DataType.FP8_E4M3 or config is None or config.fp32_dest_acc_en
    wrong = "fp8 q requires fp32_dest_acc_en=true (32-bit DEST for the fp8 tilize)"
    require(exact, wrong, "fp32_dest_acc_en=True", "Set fp32_dest_acc_en=True in compute_kernel_config.")
    result: Tensor = _compute_attention(
        q=q, k=k, v=v, indices=indices, scale=scale, block_size=block_size, cache_batch_idx=cache_batch_idx,
        chunk_start_idx=chunk_start_idx, cluster_axis=cluster_axis, stripes=stripes, mesh_shape=shape,
        rank_block=mesh.rank_block, compute_kernel_config=config,
    )  # fmt: skip
    return result
