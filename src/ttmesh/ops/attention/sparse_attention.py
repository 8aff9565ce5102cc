"""Attention over selected keys, and attention of the rows that one device of a ring computes."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import Arch, DataType, Layout, PrintedEnum
from ttmesh.base.errors import MeshError, NotEmulatedError, ShapeError, require
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.attention.attention_scores import attend_prefill
from ttmesh.ops.attention.fpu_attention import multiply_by_row
from ttmesh.ops.attention.sdpa_prefill import attend_chunk, attention_spec, prefill_scratch
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import sdpa
from ttmesh.ops.goldens import sparse_sdpa as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


class SparseKVFormat(PrintedEnum):
    """The format of a sparse cache's rows."""

    BF16 = 0
    FP8_E4M3 = 1
    SCALED_FP8 = 2


def _check_sparse(call: Call) -> None:
    q, kv, indices = call.specs[:3]
    if call.mesh.arch() is not Arch.BLACKHOLE:
        raise ShapeError(
            "sparse_sdpa is Blackhole-only",
            expected="a Blackhole system",
            fix="Choose a Blackhole system with TTMESH_SYSTEM or --system.",
        )
    for spec in (q, kv, indices):
        if spec.layout is not Layout.ROW_MAJOR:
            raise ShapeError(
                "sparse_sdpa q/indices and KV cache must be ROW_MAJOR",
                expected="ROW_MAJOR tensors",
                fix="Convert them with ttnn.to_layout.",
            )
    fix = "Move it with ttnn.to_memory_config."
    in_dram = q.memory_config.is_dram() and indices.memory_config.is_dram()
    require(in_dram, "sparse_sdpa q/indices must be in DRAM", "DRAM", fix)
    require(kv.memory_config.is_dram(), "sparse_sdpa KV cache must be in DRAM", "DRAM", fix)
    divides = indices.shape[-1] % call["k_chunk_size"] == 0
    require(divides, "k_chunk_size must divide TOPK", "a divisor of the indices' width", "Change k_chunk_size.")
    if len(kv.shape) != 4 or kv.shape[1] != 1 or kv.shape[3] != q.shape[3]:
        raise ShapeError(
            f"kv must be [B,1,T,{q.shape[3]}] (got {kv.shape})",
            expected=f"one head with a last dim of {q.shape[3]}",
            fix="Reshape kv with ttnn.reshape.",
        )
    if not 0 < call["v_dim"] <= q.shape[3]:
        raise ShapeError(
            f"v_dim must be in (0, K_DIM={q.shape[3]}] (got {call['v_dim']})",
            expected=f"1 to {q.shape[3]}",
            fix="Pass the length of the values.",
        )
    slot = call["cache_batch_idx"]
    if slot is None and kv.shape[0] != 1:
        raise ShapeError(
            f"kv batch must be 1 unless cache_batch_idx is set (got {kv.shape[0]})",
            expected="cache_batch_idx=",
            fix="Pass cache_batch_idx, or slice one batch of the cache.",
        )
    if slot is not None and slot >= kv.shape[0]:
        raise ShapeError(
            f"cache_batch_idx ({slot}) must be < kv batch slots ({kv.shape[0]})",
            expected="a slot of the cache",
            fix="Pass a cache_batch_idx below the cache's first dim.",
        )
    if call["kv_format"] is SparseKVFormat.SCALED_FP8 or call["block_cyclic_sp_axis"] is not None:
        raise NotEmulatedError(
            "sparse_sdpa with scaled fp8 rows or block-cyclic caches is not emulated",
            expected="BF16 or FP8_E4M3 rows in order",
            fix="Store the rows in order, in one of these formats.",
        )


def _compute_sparse_attention(
    q: Lanes, kv: Lanes, indices: Lanes, v_dim: int, scale: float | None, slot: int, lane_axes: int
) -> Lanes:
    """q [*mesh, 1, heads, rows, d] over the keys at indices [*mesh, 1, 1, rows, k]; indices past the end select none."""
    q, kv, indices = align_mesh_dims([q, kv, indices], lane_axes)
    keys = kv.select(lane_axes, slot).squeeze(lane_axes).float()
    key_ids = indices.squeeze(lane_axes).squeeze(lane_axes).long()
    exists = key_ids < keys.shape[-2]
    rows = key_ids.clamp(max=keys.shape[-2] - 1).flatten(lane_axes)
    selected_keys = torch.take_along_dim(keys, rows[..., None], dim=-2)
    selected_keys = torch.unflatten(selected_keys, -2, key_ids.shape[-2:])
    scores = multiply_by_row(q.squeeze(lane_axes).float(), selected_keys.mT)
    scores = scores * (scale if scale is not None else q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~exists.unsqueeze(-3), float("-inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return multiply_by_row(weights, selected_keys[..., :v_dim]).unsqueeze(lane_axes)


def _sparse_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    dtype = DataType.BFLOAT16 if call.specs[0].dtype is DataType.FP8_E4M3 else call.specs[0].dtype
    return [TensorSpec(inferred[0][0], dtype, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG)]


@op(
    "ttnn.transformer.sparse_sdpa",
    golden=goldens.sparse_sdpa,
    out=_sparse_spec,
    check=_check_sparse,
    runtime=("cache_batch_idx",),
    recheck=True,
)
def sparse_sdpa(
    q: Lanes, kv: Lanes, indices: Lanes, v_dim: int, scale: float | None, cache_batch_idx: int | None, lane_axes: int
) -> Lanes:
    """Attention of every row over the keys selected for it; values are the keys' first columns."""
    return _compute_sparse_attention(q, kv, indices, v_dim, scale, cache_batch_idx or 0, lane_axes)


# -- one device's rows of a causal sequence ----------------------------------------------------------------------------


def assign_ring_rows(rows: int, ring: int, device: torch.device) -> Lanes:
    """The rows that each device of a ring computes, [ring, rows / ring]: one early and one late chunk."""
    chunks = torch.arange(rows, device=device).reshape(2 * ring, -1)
    return torch.stack([torch.cat([chunks[i], chunks[2 * ring - 1 - i]]) for i in range(ring)])


def _check_ring(call: Call) -> None:
    first = call.specs[0]
    for spec in call.specs[1:3]:
        names = (f"DataType::{dtype.name}" for dtype in (first.dtype, spec.dtype))
        wrong = "All tensors must have the same dtype. Expected {}, got {}".format(*names)
        require(spec.dtype is first.dtype, wrong, "one format", "Convert them with ttnn.typecast.")
    taken = first.dtype in (DataType.BFLOAT16, DataType.BFLOAT8_B, DataType.BFLOAT4_B)
    wrong = "Inputs to ring-distributed SDPA must be BF16, BF8, or BF4"
    require(taken, wrong, "bfloat16, bfloat8_b or bfloat4_b", "Convert them with ttnn.typecast.")
    in_dram = all(spec.memory_config.is_dram() for spec in call.specs[:3])
    wrong = "Operands to ring-distributed SDPA need to be in DRAM"
    require(in_dram, wrong, "tensors in DRAM", "Move them with ttnn.to_memory_config.")
    rows, ring = call.specs[0].shape[-2], call["ring_size"]
    if (own := call["ring_id"]) is not None and own >= ring:
        raise ShapeError(
            f"ring_id must be less than ring_size, got ring_id={own}, ring_size={ring}",
            expected=f"0 to {ring - 1}",
            fix="Change ring_id.",
        )
    queries, keys, values = (spec.shape for spec in call.specs[:3])
    if len({queries[0], keys[0], values[0]}) > 1 and call["page_table"] is None:
        raise ShapeError(
            f"Batch sizes must match. Got Q: {queries[0]}, K: {keys[0]}, V: {values[0]}",
            expected="queries, keys and values of one batch",
            fix="Pass tensors of four dims.",
        )
    widths = queries[-1], keys[-1], values[-1]
    wrong = "Head dimensions must match. Got Q: {}, K: {}, V: {}".format(*widths)
    require(len(set(widths)) == 1, wrong, "heads of one size", "Pass queries, keys and values of one head size.")
    if keys[1] != values[1]:
        raise ShapeError(
            f"K and V num_heads must match. Got K: {keys[1]}, V: {values[1]}",
            expected="keys and values of as many heads",
            fix="Pass keys and values of one cache.",
        )
    if rows != keys[-2] and call["page_table"] is None and call["chunk_start_idx"] is None:
        raise ShapeError(
            "Ring-distributed SDPA is causal and requires Q and K to have the same sequence length when not using prefix "
            f"caching. Got Q: {rows}, K: {keys[-2]}",
            expected=f"{keys[-2]} rows of queries",
            fix="Pass the queries of the full sequence.",
        )
    if ring % 2:
        raise ShapeError(
            f"ring_size must be even for balanced distribution, got {ring}",
            expected="an even number of chips",
            fix="Change ring_size.",
        )
    if rows // 32 < 2 * ring:
        raise ShapeError(
            f"Sequence length tiles must be at least 2*ring_size for ring distribution. Got seq_len: {rows}, ring_size: "
            f"{ring}",
            expected=f"{64 * ring} rows or more",
            fix="Pad the sequence.",
        )
    if rows % (2 * ring):
        raise ShapeError(
            f"a sequence of {rows} rows cannot be split into 2 x {ring} chunks",
            expected=f"a multiple of {2 * ring}",
            fix="Pad the sequence.",
        )


@device_operation(
    "ttnn.transformer.ring_distributed_scaled_dot_product_attention",
    out=attention_spec,
    check=_check_ring,
    scratch=prefill_scratch,
)
def _compute_ring_rows(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    page_table: Lanes | None,
    ring_size: int,
    ring_id: int | None,
    chunk_start_idx: int | None,
    scale: float | None,
    mesh_shape: tuple[int, ...],
    rank_block: RankBlock | None,
    lane_axes: int,
) -> Lanes:
    if page_table is not None:
        output = attend_chunk(q, k, v, page_table, chunk_start_idx or 0, scale, lane_axes)
    else:
        output = attend_prefill(q, k, v, lane_axes, scale=scale, causal=True)
    rows = assign_ring_rows(q.shape[-2], ring_size, q.device)
    if ring_id is not None:
        return output.index_select(-2, rows[ring_id])
    devices = torch.Size(mesh_shape).numel()
    local_rows = rows[torch.arange(devices, device=q.device) % ring_size].reshape(*mesh_shape, 1, 1, -1, 1)
    if rank_block is not None:
        local_rows = rank_block.narrow_to_block(local_rows)
    output = output.expand(*local_rows.shape[:lane_axes], *output.shape[lane_axes:])
    return output.gather(-2, local_rows.expand(*output.shape[:-2], local_rows.shape[-2], output.shape[-1]))


@composite("ttnn.transformer.ring_distributed_scaled_dot_product_attention", golden=sdpa.ring_distributed_sdpa)
def ring_distributed_scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    ring_size: int,
    ring_id: int | None,
    scale: float | None,
    memory_config: MemoryConfig | None,
    program_config: object,
    page_table: Tensor | None,
    chunk_start_idx: int | None,
    compute_kernel_config: object,
) -> Tensor:
    """Causal attention of the two chunks of rows that this device of a ring computes."""
    mesh = input_tensor_q.device()
    if mesh is None:
        raise MeshError("the query is on the host", expected="device tensors", fix="Move it with to_device() first.")
    result: Tensor = _compute_ring_rows(
        q=input_tensor_q,
        k=input_tensor_k,
        v=input_tensor_v,
        page_table=page_table,
        ring_size=ring_size,
        ring_id=ring_id,
        chunk_start_idx=chunk_start_idx,
        scale=scale,
        mesh_shape=tuple(mesh.shape),
        rank_block=mesh.rank_block,
        memory_config=memory_config,
        program_config=program_config,
        compute_kernel_config=compute_kernel_config,
    )
    return result
