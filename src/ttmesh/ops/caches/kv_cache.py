"""Contiguous key-value caches, written in place: a prompt, or one token per user."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.chip.numerics.fpu import write_packed
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written
from ttmesh.ops.goldens import cache_updates as goldens
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def make_writable(cache: Lanes, others: Sequence[Lanes], lane_axes: int) -> Lanes:
    """Expand the cache to the lanes of the other tensors; it is copied only if devices shared one lane."""
    dims = common_mesh_dims([cache, *others], lane_axes)
    if cache.shape[:lane_axes] == dims:
        return cache
    return cache.expand(*dims, *cache.shape[lane_axes:]).clone(memory_format=torch.contiguous_format)


MOVE = "Move it with ttnn.to_memory_config."

# -- contiguous caches -------------------------------------------------------------------------------------------------


def _check_shapes(call: Call) -> None:
    cache, x = call.specs[0], call.specs[1]
    allowed = (DataType.FLOAT32, DataType.BFLOAT16, DataType.BFLOAT8_B)
    for spec in (x, cache):
        require_layout(spec, Layout.TILE, "Inputs to update_cache must be tilized")
    for spec, name in ((x, "Input"), (cache, "Cache")):
        wrong = f"{name} tensor dtype must be FLOAT32, BFLOAT16, or BFLOAT8_B but got DataType::{spec.dtype.name}"
        require_dtype(spec, allowed, wrong)
    given, held, fix = x.padded_shape, cache.padded_shape, "Give the input the heads and head size of the cache."
    wrong = f"Input tensor width ({given[-1]}) must equal cache tensor width ({held[-1]})"
    require(given[-1] == held[-1], wrong, f"{held[-1]}", fix)
    wrong = f"Input tensor batch size must be 1 but got {given[0]}"
    require(given[0] == 1, wrong, "1", "Pass one batch at a time.")
    wrong = f"Input tensor height ({given[1]}) must equal cache tensor height ({held[1]})"
    require(given[1] == held[1], wrong, f"{held[1]}", fix)


def _check_shards(x: TensorSpec) -> None:
    shards, layout = x.memory_config.shard_spec, x.memory_config.memory_layout
    if shards is None:
        return
    fix = "Move it with ttnn.to_memory_config."
    wrong = f"Input tensor memory layout must not be WIDTH_SHARDED but got TensorMemoryLayout::{layout.name}"
    require(layout is not TensorMemoryLayout.WIDTH_SHARDED, wrong, "shards of whole rows", fix)
    wrong = f"Input tensor shard width ({shards.shape[1]}) must equal padded width ({x.padded_shape[-1]})"
    require(shards.shape[1] == x.padded_shape[-1], wrong, "shards of whole rows", fix)


def _check_fill(call: Call) -> None:
    _check_shapes(call)
    cache, x, update_idx = call.specs[0], call.specs[1], call["update_idx"]
    layout = cache.memory_config.memory_layout
    wrong = (
        "Cache tensor memory layout must be INTERLEAVED, ND_SHARDED, or HEIGHT_SHARDED (created from ND shard spec) but "
        f"got TensorMemoryLayout::{layout.name}"
    )
    taken = layout in (TensorMemoryLayout.INTERLEAVED, TensorMemoryLayout.ND_SHARDED)
    require(taken or cache.memory_config.created_with_nd_shard_spec, wrong, "an interleaved cache", MOVE)
    wrong = "Input and cache tensors must have same dtype!"
    require(x.dtype is cache.dtype, wrong, str(cache.dtype), "Convert it with ttnn.typecast.")
    _check_shards(x)
    shards, rows, held = x.memory_config.shard_spec, x.padded_shape[-2], cache.padded_shape[-2]
    wrong = "Seq len must be divisible by shard height!"
    require(shards is None or rows % shards.shape[0] == 0, wrong, "equal shards", "Change the shards.")
    wrong = f"Batch index ({call['batch_idx']}) must be less than cache tensor batch size ({cache.shape[0]})"
    fits = 0 <= call["batch_idx"] < cache.shape[0]
    require(fits, wrong, f"0 to {cache.shape[0] - 1}", "Pass the index of a user of the cache.")
    wrong = f"Fill update_idx ({update_idx}) must be a multiple of TILE_HEIGHT (32)"
    require(update_idx % 32 == 0, wrong, "a multiple of 32", "Start at the first row of a tile.")
    wrong = f"Fill update_idx ({update_idx}) + input tensor height ({rows}) must be <= cache tensor height ({held})"
    require(update_idx + rows <= held, wrong, f"at most {held} rows", "Allocate a longer cache, or slice the input.")


@device_operation(
    "ttnn.fill_cache", out=like_written, check=_check_fill, runtime=("batch_idx", "update_idx"), writes="cache",
    in_place=True, recheck=True,
)  # fmt: skip
def _fill(
    cache: Lanes, input: Lanes, batch_idx: int, update_idx: int, lane_axes: int, specs: Sequence[TensorSpec]
) -> Lanes:
    """Put a prompt's keys or values into one user's rows."""
    cache = make_writable(cache, [input], lane_axes)
    rows = write_packed(input.squeeze(-4), specs[0].dtype)
    cache.select(-4, batch_idx).narrow(-2, update_idx, rows.shape[-2]).copy_(rows)
    return cache


def _check_update(call: Call) -> None:
    _check_shapes(call)
    cache, x = call.specs[0], call.specs[1]
    _check_shards(x)
    users, rows, offset = cache.padded_shape[0], x.padded_shape[-2], call["batch_offset"]
    wrong = f"Cache tensor batch size ({users}) must be <= input tensor height ({rows})"
    require(users <= rows, wrong, f"{users} rows or more", "Pass a row per user.")
    batch = -(-users // 32) * 32
    wrong = f"Input batch height ({rows}) must equal cache batch ({users}) rounded up to a tile"
    require(rows == batch, wrong, f"{batch} rows", "Pass a row per user, in whole tiles.")
    wrong = f"Batch offset ({offset}) + cache tensor batch size ({users}) must be <= 32"
    require(users >= 32 or offset + users <= 32, wrong, "32 or less", "Pass a smaller batch_offset.")
    wrong = "Batch offset must be 0 when cache tensor batch size >= 32"
    require(users < 32 or offset == 0, wrong, "0", "Leave batch_offset out.")
    if not 0 <= call["update_idx"] < cache.padded_shape[-2]:
        raise ShapeError(
            f"Update idx ({call['update_idx']}) must be within cache length ({cache.shape[-2]})",
            expected=f"0 to {cache.shape[-2] - 1}",
            fix="Allocate a longer cache, or pass a smaller update_idx.",
        )


@device_operation(
    "ttnn.update_cache", out=like_written, check=_check_update, runtime=("update_idx",), writes="cache", in_place=True,
    recheck=True,
)  # fmt: skip
def _update(
    cache: Lanes, input: Lanes, update_idx: int, batch_offset: int, lane_axes: int, specs: Sequence[TensorSpec]
) -> Lanes:
    """Put one token of every user into the cache, all at the same position."""
    cache = make_writable(cache, [input], lane_axes)
    users = min(cache.shape[-4], input.shape[-2] - batch_offset)
    rows = input.squeeze(-4).transpose(-3, -2).narrow(-3, batch_offset, users)
    cache.narrow(-4, 0, users).select(-2, update_idx).copy_(write_packed(rows, specs[0].dtype))
    return cache


@composite(
    "ttnn.fill_cache",
    golden=goldens.fill_cache,
)
def fill_cache(cache_tensor: Tensor, input_tensor: Tensor, batch_idx: int, update_idx: int) -> Tensor:
    """Put a prompt's keys or values into one user's rows."""
    result: Tensor = _fill(cache=cache_tensor, input=input_tensor, batch_idx=batch_idx, update_idx=update_idx)
    return result


@composite("ttnn.kv_cache.fill_cache_for_user_", golden=goldens.fill_cache)
def fill_cache_for_user_(cache: Tensor, input: Tensor, batch_index: int, update_idx: int) -> Tensor:
    """Put a prompt's keys or values into one user's rows."""
    result: Tensor = _fill(cache=cache, input=input, batch_idx=batch_index, update_idx=update_idx)
    return result


@composite("ttnn.update_cache", golden=goldens.update_cache)
def update_cache(cache: Tensor, input: Tensor, update_idx: int, batch_offset: int) -> Tensor:
    """Put one token of every user into the cache."""
    result: Tensor = _update(cache=cache, input=input, update_idx=update_idx, batch_offset=batch_offset)
    return result


@composite("ttnn.kv_cache.update_cache_for_token_", golden=goldens.update_cache)
def update_cache_for_token_(cache: Tensor, input: Tensor, update_index: int, batch_offset: int) -> Tensor:
    """Put one token of every user into the cache."""
    result: Tensor = _update(cache=cache, input=input, update_idx=update_index, batch_offset=batch_offset)
    return result


def reinterpret_tiles(cache: Lanes, heads: int, block: int, head_dim: int) -> Lanes:
    """View a tiled cache [.., blocks, heads', block', dim'] as [.., blocks, heads, block, dim] over the same tiles."""
    if tuple(cache.shape[-3:]) == (heads, block, head_dim):
        return cache
    tiles = torch.unflatten(torch.unflatten(cache, -2, (-1, 32)), -1, (-1, 32)).transpose(-3, -2)
    lead = tiles.shape[:-5]
    reordered = tiles.reshape(*lead, heads, block // 32, head_dim // 32, 32, 32)
    return reordered.transpose(-3, -2).flatten(-2, -1).flatten(-3, -2)
