"""Caches addressed per user: by position, or through a page table."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.chip.backends.index_guard import bound_by_select, keep_extremes
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.numerics.fpu import write_packed
from ttmesh.ops.caches.kv_cache import make_writable, reinterpret_tiles
from ttmesh.ops.caches.paged_rules import check_count, check_pair, check_update, check_users, require_positions
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.goldens import cache_updates as goldens
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Coords = tuple[tuple[int, ...], ...]


def write_rows(cache: Lanes, block: Lanes, row: Lanes, values: Lanes, mask: Lanes | None, lane_axes: int) -> None:
    """cache[lane, block, :, row] = values where the mask is true; all but the cache are [*mesh, n(, heads, dim)].

    Without a mask, where the row is not negative.
    """
    if cache.is_meta:
        return
    dims = cache.shape[:lane_axes]
    count = block.shape[-1]
    block, row = (x.expand(*dims, count) for x in (block, row))
    values = values.expand(*dims, *values.shape[lane_axes:])
    chosen = None if mask is None else mask.expand(*dims, count)
    kernels = find_gpu_kernels("gpu_cache_rows") if cache.is_cuda else None
    if kernels is not None and kernels.supports(cache, values):
        blocks, size = cache.shape[lane_axes], cache.shape[-2]
        bounds = bound_by_select(blocks, lane_axes), bound_by_select(size, lane_axes + 1)
        kernels.write_rows(cache, block, row, values, chosen, keep_extremes(*bounds))
        return
    mask = row >= 0 if chosen is None else chosen
    if cache.is_cuda:
        write_rows_without_waiting(cache, block, row, values, mask)
        return
    selected = mask.nonzero(as_tuple=True)
    index: tuple[Lanes | slice, ...] = (*selected[:-1], block[selected], slice(None), row[selected])
    cache[index] = values[selected]


def write_rows_without_waiting(cache: Lanes, block: Lanes, row: Lanes, values: Lanes, mask: Lanes) -> None:
    """The same without a count of the rows, for which the host would wait: a CUDA graph cannot hold that.

    A row that is not written repeats the lane's last one that is, else what the cache holds at its beginning.
    """
    dims, count = mask.shape[:-1], mask.shape[-1]
    numbers = torch.arange(count, device=cache.device)
    last = torch.where(mask, numbers, -1).amax(-1, keepdim=True)
    writes = last >= 0
    source = torch.where(mask, numbers, last.clamp(min=0))
    block, row = (torch.where(writes, x.gather(-1, source), 0) for x in (block, row))
    lanes = [
        torch.arange(n, device=cache.device).reshape(-1, *[1] * (len(dims) - i)) for i, n in enumerate(dims)
    ]  # the last dim is that of the rows
    index: tuple[Lanes | slice, ...] = (*lanes, block, slice(None), row)
    chosen = torch.take_along_dim(values, source[..., None, None], len(dims))
    cache[index] = torch.where(writes[..., None, None], chosen, cache[index])


@functools.lru_cache(256)
def make_positions(positions: tuple[int, ...], device: torch.device) -> Lanes:
    """Positions on a device; kept, because a CUDA graph cannot hold their copy from the host. Never change them."""
    return torch.tensor(positions, device=device, dtype=torch.int64)


def to_signed_positions(stored: Lanes) -> Lanes:
    """Signed positions: unsigned formats hold -1 as their largest value."""
    if stored.dtype is torch.int32:
        return stored
    widened = stored.long()
    return torch.where(widened > 0x7FFFFFFF, widened - 0x100000000, widened)


def make_lane_mask(coords: Coords | None, mesh_shape: tuple[int, ...], device: torch.device) -> Lanes | None:
    """A mask of the lanes that write, [*mesh, 1]; None if all do."""
    if coords is None:
        return None
    mask = torch.zeros(*mesh_shape, 1, dtype=torch.bool, device=device)
    for coord in coords:
        mask[coord] = True
    return mask


def check_paging(call: Call, *, per_user: bool = True) -> None:
    """Raise for options that need a page table, and for overrides whose blocks have another size than the cache's."""
    paged = call["page_table"] is not None
    block, heads, modulo = call["block_size"], call["num_kv_heads"], call["cache_position_modulo"]
    for name, value in (
        ("block_size_override", block),
        ("num_kv_heads_override", heads),
        ("cache_position_modulo", modulo),
    ):
        if value is not None and not paged:
            raise ShapeError(
                f"{name} is only supported in paged mode",
                expected="a page_table",
                fix="Pass a page_table, or leave the option out.",
            )
    cache, x = call.specs[0], call.specs[1]
    if block is not None or heads is not None:
        cache_size = math.prod(cache.shape[1:])
        head_count = heads or (
            cache.shape[1] if per_user else x.shape[1]
        )  # prefill takes the number of heads from its input
        override_size = head_count * (block or cache.shape[2]) * x.shape[-1]
        if cache_size != override_size:
            raise ShapeError(
                f"paged cache geometry mismatch: {override_size} elems/block asked, {cache_size} in the buffer",
                expected=f"{cache_size} elements per block",
                fix="Correct block_size and num_kv_heads.",
            )
    size = block or cache.shape[2]
    if modulo is not None and (modulo <= 0 or modulo % size):
        raise ShapeError(
            f"cache_position_modulo ({modulo}) must be a positive multiple of effective block_size ({size})",
            expected=f"a multiple of {size}",
            fix="Round cache_position_modulo to whole blocks.",
        )


def view_cache(cache: Lanes, block_size: int | None, num_kv_heads: int | None, head_dim: int) -> Lanes:
    """The cache, or a copy with other heads and blocks over the same tiles."""
    if block_size is None and num_kv_heads is None:
        return cache
    return reinterpret_tiles(cache, num_kv_heads or cache.shape[-3], block_size or cache.shape[-2], head_dim)


def _check_update(call: Call) -> None:
    check_update(call)
    check_paging(call)
    check_users(call)


def _write_tokens(
    cache: Lanes,
    input: Lanes,
    update_idxs: Sequence[int],
    update_idxs_tensor: Lanes | None,
    share_cache: bool | None,
    page_table: Lanes | None,
    coords: Coords | None,
    mesh_shape: tuple[int, ...],
    block_size: int | None,
    num_kv_heads: int | None,
    cache_position_modulo: int | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Write one token of every user at that user's position."""
    lane_mask = make_lane_mask(coords, mesh_shape, cache.device)
    others = [x for x in (input, update_idxs_tensor, page_table, lane_mask) if x is not None]
    cache = make_writable(cache, others, lane_axes)
    users = input.shape[lane_axes + 1]
    if update_idxs_tensor is not None:
        positions = to_signed_positions(update_idxs_tensor.flatten(lane_axes)[..., :users])
    else:
        positions = make_positions(tuple(update_idxs), cache.device).reshape(*[1] * lane_axes, -1)[..., :users]
    valid = None if lane_mask is None and page_table is None else positions >= 0
    valid = valid if lane_mask is None or valid is None else valid & lane_mask
    if cache_position_modulo is not None:
        positions = positions % cache_position_modulo
    view = view_cache(cache, block_size, num_kv_heads, input.shape[-1])
    heads, size = view.shape[-3], view.shape[-2]
    if page_table is None:
        user_blocks = make_positions((0,) * users if share_cache else tuple(range(users)), cache.device)
        block, row = user_blocks.reshape(*[1] * lane_axes, -1), positions
    else:
        assert valid is not None, "with a table pages are looked at"
        table = to_signed_positions(page_table).long()
        page = (positions.long().clamp(min=0) // size).expand(*common_mesh_dims([positions, table], lane_axes), users)
        table = table.expand(*page.shape[:lane_axes], *table.shape[lane_axes:])[..., :users, :]
        block = table.gather(-1, page[..., None])[..., 0]
        valid, row = valid & (block >= 0), positions % size
    rows = write_packed(input.squeeze(lane_axes)[..., :heads, :], specs[0].dtype)
    write_rows(view, block, row, rows, valid, lane_axes)
    return cache if view is cache else reinterpret_tiles(view, *cache.shape[-3:])


_update = device_operation(
    "ttnn.experimental.paged_update_cache",
    out=like_written,
    check=_check_update,
    runtime=("update_idxs",),
    writes="cache",
    in_place=True,
)(_write_tokens)
_update_second = device_operation(
    "ttnn.experimental.paged_fused_update_cache second half",
    out=like_written,
    check=_check_update,
    runtime=("update_idxs",),
    programs=no_programs,
    writes="cache",
    in_place=True,
)(_write_tokens)


def _read_positions(input: Tensor, update_idxs: Sequence[int], update_idxs_tensor: Tensor | None) -> list[int]:
    """The positions as a list, one per user."""
    positions = require_positions(update_idxs, update_idxs_tensor)
    if positions:
        check_count(len(positions), input.shape[1] if len(input.shape) > 1 else 0)
    return positions


def find_writing_lanes(
    mesh_coords: Iterable[MeshCoordinate] | None, cache: Tensor
) -> tuple[Coords | None, tuple[int, ...]]:
    """The lanes of this process that write (None: all), and the number of lanes along each mesh axis."""
    mesh = cache.device()
    assert mesh is not None, "checked by launch"
    if mesh_coords is None:
        return None, mesh.lane_shape
    coords = frozenset(tuple(coord) for coord in mesh_coords)
    if mesh.rank_block is not None:
        coords = mesh.rank_block.find_local_positions(coords)
    return (None if len(coords) == math.prod(mesh.lane_shape) else tuple(sorted(coords))), mesh.lane_shape


@composite("ttnn.experimental.paged_update_cache", golden=goldens.paged_update_cache)
def paged_update_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    update_idxs: Sequence[int],
    update_idxs_tensor: Tensor | None,
    share_cache: bool | None,
    page_table: Tensor | None,
    mesh_coords: Iterable[MeshCoordinate] | None,
    block_size: int | None,
    num_kv_heads: int | None,
    cache_position_modulo: int | None,
) -> Tensor:
    """Write one token of every user at that user's position, in place."""
    coords, shape = find_writing_lanes(mesh_coords, cache_tensor)
    positions = _read_positions(input_tensor, update_idxs, update_idxs_tensor)
    result: Tensor = _update(
        cache=cache_tensor,
        input=input_tensor,
        update_idxs=positions,
        update_idxs_tensor=update_idxs_tensor,
        share_cache=share_cache,
        page_table=page_table,
        coords=coords,
        mesh_shape=shape,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        cache_position_modulo=cache_position_modulo,
    )
    return result


@composite("ttnn.experimental.paged_fused_update_cache", golden=goldens.paged_fused_update_cache)
def paged_fused_update_cache(
    cache_tensor1: Tensor,
    input_tensor1: Tensor,
    cache_tensor2: Tensor,
    input_tensor2: Tensor,
    update_idxs: Sequence[int],
    update_idxs_tensor: Tensor | None,
    share_cache: bool | None,
    page_table: Tensor | None,
    mesh_coords: Iterable[MeshCoordinate] | None,
) -> tuple[Tensor, Tensor]:
    """`paged_update_cache` of two caches (keys and values) at once."""
    coords, shape = find_writing_lanes(mesh_coords, cache_tensor1)
    check_pair(input_tensor1, input_tensor2)
    results = []
    for run, cache, values in ((_update, cache_tensor1, input_tensor1), (_update_second, cache_tensor2, input_tensor2)):
        results.append(
            run(
                cache=cache,
                input=values,
                update_idxs=_read_positions(values, update_idxs, update_idxs_tensor),
                update_idxs_tensor=update_idxs_tensor,
                share_cache=share_cache,
                page_table=page_table,
                coords=coords,
                mesh_shape=shape,
                block_size=None,
                num_kv_heads=None,
                cache_position_modulo=None,
                fused=True,
            )
        )
    return results[0], results[1]
