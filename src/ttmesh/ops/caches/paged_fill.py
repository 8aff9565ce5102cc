"""Write a prompt's keys or values into the pages of one or more users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import BufferType, DataType
from ttmesh.base.errors import ShapeError, require
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.chip.numerics.fpu import write_packed
from ttmesh.ops.caches.kv_cache import make_writable, reinterpret_tiles
from ttmesh.ops.caches.paged_cache_update import (
    Coords,
    check_paging,
    find_writing_lanes,
    make_lane_mask,
    to_signed_positions,
    view_cache,
    write_rows,
)
from ttmesh.ops.caches.paged_rules import CACHE_FORMATS
from ttmesh.ops.catalogue.checks import require_dtype, require_interleaved
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written
from ttmesh.ops.goldens import cache_updates as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

PAGE_NUMBER_BYTES, L1_ALIGNMENT, DRAM_ALIGNMENT = 4, 16, 32


def _check(call: Call) -> None:
    cache, x, table = call["cache"].spec, call["input"].spec, call["page_table"].spec
    shown = f"DataType::{cache.dtype.name}"
    listed = "FLOAT32, BFLOAT16, BFLOAT8_B, or BFLOAT4_B"
    wrong = f"Data type of cache tensor for paged_fill_cache must be {listed} and is {shown}"
    require_dtype(cache, CACHE_FORMATS, wrong)
    wrong = (
        f"Input tensor dtype (DataType::{x.dtype.name}) must match cache tensor dtype ({shown}) for paged_fill_cache; "
        "cast prefill K/V to the cache's dtype"
    )
    require_dtype(x, cache.dtype, wrong)
    require_interleaved(x, "Expect input_tensor to have memory layout INTERLEAVED")
    require_interleaved(table, "Expect page_table_tensor to have memory layout INTERLEAVED")
    require_dtype(table, DataType.INT32, "Expect page_table_tensor to have datatype INT32")
    check_paging(call, per_user=False)
    size = call["block_size"] or cache.shape[2]
    pages = table.shape[-1]
    if x.shape[-2] > pages * size and call["cache_position_modulo"] is None:
        raise ShapeError(
            f"Input seq_len ({x.shape[-2]}) must fit in max_num_blocks_per_seq ({pages}) * block_size ({size})",
            expected=f"at most {pages * size} tokens",
            fix="Give the user more pages.",
        )
    index = call["batch_idx_tensor"]
    if index is not None and index.shape.volume() != x.shape[0]:
        raise ShapeError(
            f"batch_idx_tensor must have exactly {x.shape[0]} element{'s' if x.shape[0] > 1 else ''}, "
            f"got {index.shape.volume()}",
            expected="one user per input batch",
            fix="Pass one index per batch.",
        )
    length = call["valid_seq_len_tensor"]
    if length is not None and length.shape.volume() != 1:
        raise ShapeError(
            f"valid_seq_len_tensor must have exactly 1 element, got {length.shape.volume()}",
            expected="one length",
            fix="Pass a tensor of one element.",
        )
    row_bytes = -(-pages * PAGE_NUMBER_BYTES // L1_ALIGNMENT) * L1_ALIGNMENT
    aligned = table.buffer_type is not BufferType.L1 or row_bytes % DRAM_ALIGNMENT == 0
    wrong = "page table page size in bytes must be a multiple of 32 due to address alignment"
    require(aligned, wrong, "a page table in DRAM", "Move it with ttnn.to_memory_config.")


@device_operation(
    "ttnn.experimental.paged_fill_cache",
    out=like_written,
    check=_check,
    runtime=("batch_idx",),
    writes="cache",
    in_place=True,
)
def _fill(
    cache: Lanes,
    input: Lanes,
    page_table: Lanes,
    batch_idx_tensor: Lanes | None,
    batch_idx: int,
    coords: Coords | None,
    mesh_shape: tuple[int, ...],
    block_size: int | None,
    cache_position_modulo: int | None,
    valid_seq_len_tensor: Lanes | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Write token t of each input batch to page t // block of its user."""
    lane_mask = make_lane_mask(coords, mesh_shape, cache.device)
    others = [x for x in (input, page_table, batch_idx_tensor, valid_seq_len_tensor, lane_mask) if x is not None]
    cache = make_writable(cache, others, lane_axes)
    heads = None if block_size is None else input.shape[lane_axes + 1]
    view = view_cache(cache, block_size, heads, input.shape[-1])
    size, tokens = view.shape[-2], input.shape[-2]
    rows = write_packed(input, specs[0].dtype).transpose(-3, -2)
    token = torch.arange(tokens, device=cache.device).reshape(*[1] * lane_axes, -1)
    mask = torch.ones_like(token, dtype=torch.bool) if lane_mask is None else lane_mask
    if valid_seq_len_tensor is not None:
        length = valid_seq_len_tensor.flatten(lane_axes)
        mask = mask & (token < length)
        if cache_position_modulo is not None:  # the ring keeps the newest tokens; older ones would overwrite them
            mask = mask & (token >= length - cache_position_modulo)
    elif cache_position_modulo is not None:
        mask = mask & (token >= tokens - cache_position_modulo)
    slot = token if cache_position_modulo is None else token % cache_position_modulo
    table = to_signed_positions(page_table).long()
    for batch in range(input.shape[lane_axes]):
        if batch_idx_tensor is None:
            pages = table.select(lane_axes, batch_idx + batch)
        else:
            user = batch_idx_tensor.flatten(lane_axes).narrow(lane_axes, batch, 1).long()
            pages = torch.take_along_dim(table, user[..., None], dim=lane_axes).squeeze(lane_axes)
        page = (slot // size).expand(*pages.shape[:lane_axes], tokens)
        block = pages.gather(-1, page)
        write_rows(view, block, slot % size, rows.select(lane_axes, batch), mask & (block >= 0), lane_axes)
    return cache if view is cache else reinterpret_tiles(view, *cache.shape[-3:])


@composite("ttnn.experimental.paged_fill_cache", golden=goldens.paged_fill_cache)
def paged_fill_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    page_table: Tensor,
    batch_idx_tensor: Tensor | None,
    batch_idx: int,
    mesh_coords: Iterable[MeshCoordinate] | None,
    block_size: int | None,
    cache_position_modulo: int | None,
    valid_seq_len_tensor: Tensor | None,
) -> Tensor:
    """Write a prompt's keys or values into the pages of its user, in place."""
    coords, shape = find_writing_lanes(mesh_coords, cache_tensor)
    result: Tensor = _fill(
        cache=cache_tensor,
        input=input_tensor,
        page_table=page_table,
        batch_idx_tensor=batch_idx_tensor,
        batch_idx=batch_idx,
        coords=coords,
        mesh_shape=shape,
        block_size=block_size,
        cache_position_modulo=cache_position_modulo,
        valid_seq_len_tensor=valid_seq_len_tensor,
    )
    return result
