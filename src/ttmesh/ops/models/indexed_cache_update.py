"""Rows of two tensors written into two paged caches at physical rows: `indexed_fused_update_cache`."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.goldens import cache_updates as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.indexed_fused_update_cache"
MOST_ROWS = 256


def _check_tensors(cache1: Tensor, input1: Tensor, cache2: Tensor, input2: Tensor, rows: Tensor) -> None:
    for first, second, name in ((cache1, cache2, "cache"), (input1, input2, "input")):
        wrong = f"{name}_tensor1 and {name}_tensor2 must not alias the same device buffer"
        require(first.buffer.root is not second.buffer.root, wrong, "two tensors", "Clone one.")
    named = {"cache_tensor1": cache1, "input_tensor1": input1, "cache_tensor2": cache2, "input_tensor2": input2}
    for name, tensor in named.items():
        right = tensor.dtype is DataType.BFLOAT16
        require(right, f"{name} must use BFLOAT16", "bfloat16", "Convert it with ttnn.typecast.")
        require(tensor.layout is Layout.TILE, f"{name} must use TILE layout", "TILE_LAYOUT", "Use ttnn.to_layout.")
        interleaved = tensor.memory_config().interleaved
        require(interleaved, f"{name} must be interleaved", "interleaved memory", "Use ttnn.to_memory_config.")
    right = rows.dtype is DataType.INT32 and rows.layout is Layout.ROW_MAJOR
    require(
        right,
        "physical_update_idxs_tensor must be row-major INT32",
        "int32 rows",
        "Convert it with ttnn.typecast and ttnn.to_layout.",
    )
    right = len(rows.shape) == 2 and rows.shape[0] == 1
    require(right, "physical_update_idxs_tensor must have shape [1, num_indices]", "[1, n]", "Use ttnn.reshape.")


def _check(call: Call) -> None:
    cache, values, rows = call.specs[:3]
    packed, given = int(values.shape[-2]), int(rows.shape[-1])
    fits = len(values.shape) == len(cache.shape) == 4 and values.shape[0] == 1
    require(fits, "inputs must have shape [1, num_heads, packed_rows, head_dim]", "four dims", "Reshape the input.")
    alike = values.shape[1] == cache.shape[1] and values.shape[3] == cache.shape[3]
    require(alike, "inputs and caches must have equal num_heads and head_dim", "equal dims", "Check the heads.")
    fits = 1 <= packed <= given <= MOST_ROWS
    wrong = f"packed_rows ({packed}) must be in [1, num_indices ({given})], both at most {MOST_ROWS}"
    require(fits, wrong, "an index per row", "Pass one index per row.")


def _write_rows(cache: Lanes, values: Lanes, rows: Lanes, lane_axes: int) -> Lanes:
    """The cache with row i of every head at physical row rows[i]; a later row wins, those outside are skipped."""
    held, new, places = align_mesh_dims([cache, values, rows], lane_axes)
    pages, heads, length, width = held.shape[lane_axes:]
    flat = held.transpose(-3, -4).reshape(*held.shape[:lane_axes], heads, pages * length, width).clone()
    for i in range(new.shape[-2]):
        place = places[..., 0, i].long()
        inside = (place >= 0) & (place < pages * length)
        index = place.clamp(0, pages * length - 1)[..., None, None, None].expand(*place.shape, heads, 1, width)
        row = new[..., 0, :, i : i + 1, :].to(flat.dtype)
        kept = torch.gather(flat, -2, index)
        flat.scatter_(-2, index, torch.where(inside[..., None, None, None], row, kept))
    return flat.reshape(*held.shape[:lane_axes], heads, pages, length, width).transpose(-3, -4)


_update = device_operation(NAME, out=like_written, check=_check, writes="cache")(_write_rows)
_update_second = device_operation(
    f"{NAME} second half", out=like_written, check=_check, programs=no_programs, writes="cache"
)(_write_rows)


@composite(NAME, golden=goldens.indexed_fused_update_cache)
def indexed_fused_update_cache(
    cache_tensor1: Tensor,
    input_tensor1: Tensor,
    cache_tensor2: Tensor,
    input_tensor2: Tensor,
    physical_update_idxs_tensor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write packed rows into two caches, in place; row i goes to physical row physical_update_idxs_tensor[0, i]."""
    rows = physical_update_idxs_tensor
    _check_tensors(cache_tensor1, input_tensor1, cache_tensor2, input_tensor2, rows)
    first: Tensor = _update(cache=cache_tensor1, values=input_tensor1, rows=rows)
    second: Tensor = _update_second(cache=cache_tensor2, values=input_tensor2, rows=rows)
    return first, second
