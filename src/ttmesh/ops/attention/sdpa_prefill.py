"""Attention over sequences: prefill, chunked prefill and joint attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import BLOCK_FLOATS, Arch, BufferType, DataType, Layout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.chip.memory import align_up
from ttmesh.ops.attention.attention_scores import (
    attend_prefill,
    gather_pages,
    make_additive_mask,
    make_causal_mask,
    make_window_mask,
)
from ttmesh.ops.caches.kv_cache import reinterpret_tiles
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.definition import device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.configs.program_configs import PagedCacheGeometryOverride
from ttmesh.ops.goldens import sdpa as goldens
from ttmesh.ops.stages.conversion_stages import masked_attention_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
FORMATS = frozenset({DataType.BFLOAT16, *BLOCK_FLOATS})
BFLOAT16_TILE = tile_bytes(DataType.BFLOAT16, Tile((32, 32)))
FLOAT32_TILE = tile_bytes(DataType.FLOAT32, Tile((32, 32)))


def attention_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The query's spec, in DRAM unless memory_config gives another memory."""
    return [make_output_spec(call, shape, memory_config=DRAM_MEMORY_CONFIG) for shape, _ in inferred]


def prefill_scratch(call: Call) -> int:
    """Circular buffers per core, as TT-NN's program factory sizes them."""
    latent = call["head_dim_v"]  # of attention whose values are the first columns of its keys; or a tensor of values
    latent = latent if isinstance(latent, int) else None
    q, k, v = (call.specs[i] for i in (0, 1, 2 if latent is None else 1))
    config, kernel, mask = call["program_config"], call["compute_kernel_config"], call["attn_mask"]
    rows = max((config.q_chunk_size if config else TILE) // TILE, 1)
    keys = max((config.k_chunk_size if config else TILE) // TILE, 1)
    width, value_width = (math.ceil(columns / TILE) for columns in (q.shape[-1], latent or v.shape[-1]))
    size_q, size_k, size_v = (tile_bytes(spec.dtype, spec.tile) for spec in (q, k, v))
    wide = kernel is not None and kernel.fp32_dest_acc_en  # sums in float32; otherwise results leave two rows at a time
    exact = FLOAT32_TILE if wide else BFLOAT16_TILE
    is_blackhole = call.mesh.arch() is Arch.BLACKHOLE
    inputs = rows * width * size_q * _count_query_buffers(call, q, rows)
    inputs += 2 * (keys * width * size_k + keys * value_width * size_v)
    if (table := call["page_table_tensor"]) is not None:
        inputs += align_up((table.shape[-1] if len(table.shape) else 1) * 4, 64 if is_blackhole else 32)
    if mask is not None:
        inputs += 2 * rows * keys * tile_bytes(mask.spec.dtype, mask.spec.tile)
    elif call["is_causal"] is not False:
        inputs += 2 * BFLOAT16_TILE  # minus infinity, and a tile of the diagonal
    scalars = (2 if wide else 3) * BFLOAT16_TILE
    plain = mask is None and call["is_causal"] is not False and call["page_table_tensor"] is None
    if is_blackhole and not wide and plain and math.ceil(q.shape[-2] / TILE / rows) > 2:
        scalars += 96  # which chunks a core has
    scores = rows * keys * exact + 2 * rows * value_width * BFLOAT16_TILE
    statistics = rows * (3 * BFLOAT16_TILE + 2 * exact)  # two maxima, their difference, two sums
    results = (rows if wide else 2 * min(rows, 2)) * value_width * size_q
    return inputs + scalars + scores + statistics + results


def _count_query_buffers(call: Call, q: TensorSpec, rows: int) -> int:
    """Two where a core gets more than one chunk of queries; causal attention gives every core two."""
    config, grid = call["program_config"], call.mesh.compute_with_storage_grid_size()
    size = getattr(config, "compute_with_storage_grid_size", None)
    x, y = (grid.x, grid.y) if size is None else size if isinstance(size, (tuple, list)) else (size.x, size.y)
    chunks = math.prod(q.shape[:-2]) * math.ceil(math.ceil(q.shape[-2] / TILE) / rows)
    return 2 if call["is_causal"] is not False or chunks > int(x) * int(y) else 1


def check_attention(call: Call) -> None:
    """Raise TT-NN's errors for inputs of attention over sequences."""
    q, k, v = (call[name].spec for name in ("input_tensor_q", "input_tensor_k", "input_tensor_v"))
    for spec in (q, k, v):
        rank = len(spec.shape)
        if rank != 4:
            raise ShapeError(
                f"ShapeBase[] index out of range. 3 not in [-4, {rank}); attention got {spec.shape}",
                expected="[batch, heads, sequence, head size]",
                fix="Convert it with ttnn.reshape.",
            )
        if spec.layout is not Layout.TILE:
            raise ShapeError(
                f"Inputs to SDPA must be tilized; got {spec.layout}",
                expected="TILE layout",
                fix="Convert it with ttnn.to_layout.",
            )
        name = f"DataType::{spec.dtype.name}"
        require_dtype(
            spec, FORMATS, f"Data type of input tensor must be BFLOAT16, BFLOAT8_B, or BFLOAT4_B and is {name}"
        )
        wrong = "Operands to SDPA need to be DRAM/L1 interleaved"
        require(spec.memory_config.interleaved, wrong, "interleaved memory", "Move it with ttnn.to_memory_config.")
    if q.shape[1] % k.shape[1]:
        raise ShapeError(
            "Q num_heads must be >= K num_heads and divisible by K num_heads, and K num_heads must be greater than 0. "
            f"Got Q: {q.shape[1]}, K: {k.shape[1]}",
            expected=f"a multiple of {k.shape[1]} query heads",
            fix="Check the head counts.",
        )
    window, mask = call["sliding_window_size"], call["attn_mask"]
    if call.name.endswith(".scaled_dot_product_attention") and window and mask is not None and not call["is_causal"]:
        raise MeshError(
            "sliding_window_size and attn_mask cannot both be present; bake the sliding-window mask into attn_mask. Got "
            f"sliding_window_size: {window}, attn_mask: true",
            expected="a window or a mask",
            fix="Add the window to the mask.",
        )
    if call["is_causal"] and call["attn_mask"] is not None:
        raise MeshError(
            "is_causal and attn_mask cannot both be present. Got is_causal: true, attn_mask: true",
            expected="is_causal or attn_mask",
            fix="Pass is_causal=False, or no mask.",
        )
    if mask is not None and call.name.endswith(".scaled_dot_product_attention"):
        _check_mask(mask.spec, q, k)
    if call["is_causal"] and q.shape[-2] != k.shape[-2]:
        raise ShapeError(
            f"Causal SDPA requires Q and K to have the same sequence length. Got Q: {q.shape[-2]}, K: {k.shape[-2]}",
            expected="equal lengths",
            fix="Use chunked_scaled_dot_product_attention for a slice of a sequence.",
        )


def _check_mask(mask: TensorSpec, q: TensorSpec, k: TensorSpec) -> None:
    convert, move = "Convert it with ttnn.to_layout.", "Move it with ttnn.to_memory_config."
    require(mask.layout is Layout.TILE, "When mask is provided to SDPA, it must be tilized", "TILE_LAYOUT", convert)
    wrong = "When mask is provided to SDPA, it must be in BF16, BFP8, or BFP4 dataformat"
    require_dtype(mask, FORMATS, wrong)
    in_dram = mask.memory_config.buffer_type is BufferType.DRAM
    require(in_dram, "When mask is provided to SDPA, it must be in DRAM", "DRAM_MEMORY_CONFIG", move)
    shape, (batch, heads, rows, _), keys = tuple(mask.shape), q.shape, k.shape[2]
    expected = f"a mask of [1 or {batch}, 1 or {heads}, {rows}, {keys}], not {list(shape)}"
    rules = (
        (
            (1, batch),
            "Mask batch dim must either be 1 (to be broadcasted across all batches) or must match Q batch dimension",
        ),
        (
            (1, heads),
            "Mask num_heads must either be 1 (to be broadcasted across all heads) or must match Q heads dimension",
        ),
        ((rows,), "Mask sequence length must match Q sequence length"),
        ((keys,), "Mask sequence length must match K sequence length"),
    )
    for i, (allowed, wrong) in enumerate(rules):
        out_of_range = f"ShapeBase[] index out of range. {i} not in [-4, {len(shape)})"
        require(i < len(shape), out_of_range, expected, "Convert it with ttnn.reshape.")
        require(
            shape[i] in allowed, wrong, expected, "Give the mask as many rows as queries and as many columns as keys."
        )


def _check_prefill(call: Call) -> None:
    check_attention(call)
    q, k, v = (call[name].spec.shape for name in ("input_tensor_q", "input_tensor_k", "input_tensor_v"))
    require(
        q[3] == k[3] == v[3],
        f"K and V hidden dim must match. Got K: {k[3]}, V: {v[3]}",
        f"{q[3]}, the head size of Q",
        "Split the heads of Q, K and V in the same way.",
    )
    wrong = "Padding is not supported on the head_dim dimension"
    require(q[3] % TILE == 0, wrong, f"a head size of a multiple of {TILE}", "Pad the head size with ttnn.pad.")


@op(
    "ttnn.transformer.scaled_dot_product_attention",
    golden=goldens.sdpa,
    out=attention_spec,
    check=_check_prefill,
    scratch=prefill_scratch,
    stages=masked_attention_stages,
)
def scaled_dot_product_attention(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes,
    attn_mask: Lanes | None,
    is_causal: bool,
    scale: float | None,
    sliding_window_size: int | None,
    attention_sink: Lanes | None,
    cu_window_seqlens: Lanes | None,
    lane_axes: int,
) -> Lanes:
    """softmax(q·kᵀ·scale + mask)·v."""
    q, k = input_tensor_q, input_tensor_k
    rows, keys, device = q.shape[-2], k.shape[-2], q.device
    mask, causal = attn_mask, is_causal
    if sliding_window_size:
        window = make_additive_mask(make_window_mask(rows, keys, sliding_window_size, device, causal=is_causal))
        mask = _add_masks(mask, window, lane_axes)
        causal = False
    if cu_window_seqlens is not None:
        mask, causal = _add_masks(mask, _make_windows_mask(cu_window_seqlens, rows, keys, lane_axes), lane_axes), False
    sink = None if attention_sink is None else _scale_sink(attention_sink, q, scale)
    return attend_prefill(q, k, input_tensor_v, lane_axes, scale=scale, mask=mask, causal=causal, sink=sink)


@device_operation("ttnn.transformer.scaled_dot_product_attention", out=attention_spec, scratch=prefill_scratch)
def causal_attention(input_tensor_q: Lanes, input_tensor_k: Lanes, input_tensor_v: Lanes, lane_axes: int) -> Lanes:
    """Attention over the tokens so far in any float format; TT-NN's own takes no float32, which training may use."""
    mask, sink = None, None
    return attend_prefill(
        input_tensor_q, input_tensor_k, input_tensor_v, lane_axes, scale=None, mask=mask, causal=True, sink=sink
    )


def _scale_sink(sink: Lanes, q: Lanes, scale: float | None) -> Lanes:
    """TT-NN multiplies the sink by the scale like any other score."""
    return sink.float() * (scale if scale is not None else q.shape[-1] ** -0.5)


def _add_masks(mask: Lanes | None, shared_mask: Lanes, lane_axes: int) -> Lanes:
    """Add a mask that all heads share to one that may differ by lane, batch and head."""
    expanded = (
        shared_mask.reshape(*[1] * (lane_axes + 4 - shared_mask.dim()), *shared_mask.shape)
        if shared_mask.dim() < lane_axes + 4
        else shared_mask
    )
    return expanded if mask is None else expanded + mask.float()


def _make_windows_mask(ends: Lanes, rows: int, keys: int, lane_axes: int) -> Lanes:
    """A mask in which rows see the keys of their own window; windows end at the given cumulative lengths."""
    ends = ends.reshape(*ends.shape[:lane_axes], 1, 1, 1, -1)
    row_window = (torch.arange(rows, device=ends.device)[:, None] >= ends).sum(-1)
    key_window = (torch.arange(keys, device=ends.device)[:, None] >= ends).sum(-1)
    return make_additive_mask(row_window[..., :, None] == key_window[..., None, :])


# -- a chunk of a sequence over a paged cache --------------------------------------------------------------------------


def view_paged(cache: Lanes, geometry: PagedCacheGeometryOverride | None, head_dim: int) -> Lanes:
    """The cache, with the override's heads and block size where there is one."""
    if geometry is None:
        return cache
    return reinterpret_tiles(cache, geometry.num_kv_heads, geometry.block_size, head_dim)


def check_geometry(call: Call, cache: TensorSpec, head_dim: int) -> None:
    """Raise for an override whose blocks have another size than the cache's blocks."""
    geometry = call["paged_cache_geometry"]
    if geometry is None:
        return
    if geometry.block_size <= 0 or geometry.num_kv_heads <= 0:
        raise MeshError(
            f"paged_cache_geometry.block_size must be > 0; got {geometry}", expected="positive sizes", fix="Set both."
        )
    have, want = math.prod(cache.shape[1:]), geometry.num_kv_heads * geometry.block_size * head_dim
    if have != want:
        raise ShapeError(
            f"paged cache geometry mismatch: the override has {want} elems/block, the buffer {have} elems/block",
            expected="equal sizes",
            fix="Check block_size and num_kv_heads.",
        )


def _check_chunked(call: Call) -> None:
    check_geometry(call, call.specs[1], call.specs[0].shape[-1])
    if (call["chunk_start_idx"] is None) == (call["chunk_start_idx_tensor"] is None):
        raise MeshError(
            "chunked SDPA needs exactly one of chunk_start_idx and chunk_start_idx_tensor",
            expected="a start as a number or as a tensor",
            fix="Pass one of the two and leave the other out.",
        )


@op(
    "ttnn.transformer.chunked_scaled_dot_product_attention",
    golden=goldens.chunked_sdpa,
    out=attention_spec,
    check=_check_chunked,
    scratch=prefill_scratch,
)
def chunked_scaled_dot_product_attention(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes,
    page_table_tensor: Lanes,
    chunk_start_idx: int | None,
    chunk_start_idx_tensor: Lanes | None,
    scale: float | None,
    paged_cache_geometry: PagedCacheGeometryOverride | None,
    lane_axes: int,
) -> Lanes:
    """Attention of rows that begin at chunk_start_idx of their sequence, over keys in pages."""
    return attend_chunk(
        input_tensor_q,
        view_paged(input_tensor_k, paged_cache_geometry, input_tensor_q.shape[-1]),
        view_paged(input_tensor_v, paged_cache_geometry, input_tensor_q.shape[-1]),
        page_table_tensor,
        chunk_start_idx if chunk_start_idx_tensor is None else chunk_start_idx_tensor,
        scale,
        lane_axes,
    )


def attend_chunk(
    q: Lanes, k: Lanes, v: Lanes, table: Lanes, start: int | Lanes | None, scale: float | None, lane_axes: int
) -> Lanes:
    """Causal attention of a chunk whose first row has position `start`."""
    rows, block = q.shape[-2], k.shape[-2]
    if isinstance(start, int):
        table = table[..., : -(-(start + rows) // block)]
        first: int | Lanes = start
    else:
        assert start is not None, "checked before"
        first = start.reshape(*start.shape[:lane_axes], 1, 1, 1, 1)
    k, v = gather_pages(k, table, lane_axes), gather_pages(v, table, lane_axes)
    allowed = make_causal_mask(rows, k.shape[-2], q.device, first)
    mask = make_additive_mask(allowed.reshape(*[1] * (lane_axes + 4 - allowed.dim()), *allowed.shape))
    return attend_prefill(q, k, v, lane_axes, scale=scale, mask=mask)


# -- joint attention of two sequences ---------------------------------------------------------------------------------


def _joint_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [
        make_output_spec(call, shape, source=source, memory_config=DRAM_MEMORY_CONFIG, result=i)
        for i, ((shape, _), source) in enumerate(zip(inferred, (0, 3), strict=True))
    ]


def _check_joint(call: Call) -> None:
    if call["joint_strategy"] != "rear":
        raise MeshError(
            f"Joint strategy must be 'rear'. Got: {call['joint_strategy']}", expected="'rear'", fix="Pass 'rear'."
        )


@op(
    "ttnn.transformer.joint_scaled_dot_product_attention",
    golden=goldens.joint_sdpa,
    out=_joint_spec,
    check=_check_joint,
    scratch=prefill_scratch,
)
def joint_scaled_dot_product_attention(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes,
    joint_tensor_q: Lanes,
    joint_tensor_k: Lanes,
    joint_tensor_v: Lanes,
    scale: float | None,
    lane_axes: int,
) -> tuple[Lanes, Lanes]:
    """Full attention over two concatenated sequences; the result of each."""
    return attend_joint(
        (input_tensor_q, input_tensor_k, input_tensor_v),
        (joint_tensor_q, joint_tensor_k, joint_tensor_v),
        scale,
        lane_axes,
    )


def attend_joint(
    first: Sequence[Lanes], second: Sequence[Lanes], scale: float | None, lane_axes: int
) -> tuple[Lanes, Lanes]:
    """Attention of (q, k, v) concatenated with a second (q, k, v); the result of each."""
    rows = first[0].shape[-2]
    q, k, v = (_concat_rows(a, b, lane_axes) for a, b in zip(first, second, strict=True))
    out = attend_prefill(q, k, v, lane_axes, scale=scale)
    return out[..., :rows, :], out[..., rows:, :]


def _concat_rows(first: Lanes, second: Lanes, lane_axes: int) -> Lanes:
    dims = [max(a, b) for a, b in zip(first.shape[:lane_axes], second.shape[:lane_axes], strict=True)]
    both = [x.expand(*dims, *x.shape[lane_axes:]) for x in (first, second)]
    return torch.cat(both, dim=-2)
