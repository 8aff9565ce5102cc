"""Contiguous key-value caches, written in place: a prompt, or one token per user."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import ShapeError
from ttmesh.chip.numerics.engine import write_packed
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written
from ttmesh.ops.goldens import cache_updates as goldens
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.tensor.calls.launch_op import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def make_writable(cache: Lanes, others: Sequence[Lanes], lane_axes: int) -> Lanes:
    """Expand the cache to the lanes of the other tensors; it is copied only if devices shared one lane."""
    dims = common_mesh_dims([cache, *others], lane_axes)
    if cache.shape[:lane_axes] == dims:
        return cache
    return cache.expand(*dims, *cache.shape[lane_axes:]).clone(memory_format=torch.contiguous_format)


# -- contiguous caches -------------------------------------------------------------------------------------------------


def _check_fill(call: Call) -> None:
    cache, x = call.specs[0], call.specs[1]
    if x.shape[-1] != cache.shape[-1] or x.shape[1] != cache.shape[1]:
        raise ShapeError(
            f"fill_cache got an input of shape {x.shape} for a cache of shape {cache.shape}",
            expected="equal heads and widths",
            fix="Give the input the heads and head size of the cache.",
        )
    if call["update_idx"] % 32:
        raise ShapeError(
            f"Update index ({call['update_idx']}) must be a multiple of tile height",
            expected="a multiple of 32",
            fix="Start at the first row of a tile.",
        )
    if call["update_idx"] + x.shape[-2] > cache.padded_shape[-2]:
        raise ShapeError(
            f"Input seq len ({x.shape[-2]}) must be within cache seq len ({cache.shape[-2]})",
            expected=f"at most {cache.shape[-2]} rows",
            fix="Allocate a longer cache, or slice the input.",
        )
    if not 0 <= call["batch_idx"] < cache.shape[0]:
        raise ShapeError(
            f"Batch idx ({call['batch_idx']}) must be within cache batch size ({cache.shape[0]})",
            expected=f"0 to {cache.shape[0] - 1}",
            fix="Pass the index of a user of the cache.",
        )


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
    cache, x = call.specs[0], call.specs[1]
    if x.shape[-1] != cache.shape[-1] or x.shape[1] != cache.shape[1]:
        raise ShapeError(
            f"update_cache got an input of shape {x.shape} for a cache of shape {cache.shape}",
            expected="equal heads and widths",
            fix="Give the input the heads and head size of the cache.",
        )
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
