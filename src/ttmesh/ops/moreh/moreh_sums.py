"""The sums and means of moreh's programs: one dim after the other from the last, with a tensor in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import float32
from ttmesh.chip.numerics import fpu
from ttmesh.chip.numerics.unpacker import unpack

HEIGHT = -2
TILE = 32


def sum_dims(values: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The sum over dims (negative), which stay with length 1, in float32."""
    if not fpu.is_emulated(values):
        return values.sum(tuple(dims), keepdim=True, dtype=torch.float32)
    for step, dim in enumerate(sorted(dims, reverse=True)):
        tiles = fpu.keep_in_tensor(values) if step else values
        values = fpu.add_up(tiles, (dim,)) if dim < HEIGHT else fpu.total(tiles, (dim,), keepdim=True)
    return values


def average_dims(values: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The mean over dims (negative), which stay with length 1, in float32."""
    if not fpu.is_emulated(values):
        return values.float().mean(tuple(dims), keepdim=True)
    for step, dim in enumerate(sorted(dims, reverse=True)):
        values = _average(fpu.keep_in_tensor(values) if step else values, dim)
    return values


def _average(tiles: torch.Tensor, dim: int) -> torch.Tensor:
    """The mean over one dim. Over W the host rounds 1/count to bfloat16; over the others the kernel truncates it."""
    share = 1.0 / max(1, tiles.shape[dim])
    if dim > HEIGHT:
        return fpu.total(tiles, (dim,), keepdim=True, scaler=share)
    factor = unpack(torch.tensor(share, dtype=torch.float32, device=tiles.device), float32, fp32_dest=False)
    if dim == HEIGHT:
        return fpu.total(tiles, (dim,), keepdim=True, scaler=float(factor))
    held = fpu.add_up_through_l1(tiles, dim)
    return fpu.multiply(held, factor.expand_as(held))


def sum_channels(values: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The sum of [*mesh, batch, channels, ...] for every channel: tiles are added first, then the elements of one."""
    planes = values.movedim(lane_axes + 1, lane_axes)
    if not fpu.is_emulated(values):
        return planes.flatten(lane_axes + 1).sum(-1, dtype=torch.float32)
    padded = torch.nn.functional.pad(planes, (0, -planes.shape[-1] % TILE, 0, -planes.shape[-2] % TILE))
    tiles = torch.unflatten(torch.unflatten(padded, -1, (-1, TILE)), -3, (-1, TILE)).transpose(-3, -2)
    one = fpu.add_up_through_l1(fpu.keep(tiles.flatten(lane_axes + 1, -3)), -3)
    return fpu.total(one.squeeze(-3), (-2, -1))
