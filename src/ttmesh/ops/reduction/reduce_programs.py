"""Sums and means in the order of TT-NN's programs: batches of tiles are added, then a dim at a time, packed in between."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ttmesh.base.dtypes import DataType, bfloat16, float32
from ttmesh.chip.numerics import fpu
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.packer import pack
from ttmesh.ops.catalogue.fpu_defaults import takes_one_program

HEIGHT = -2
ADDED_AS_TILES = (bfloat16, DataType.BFLOAT8_B)


def sum_dims(values: torch.Tensor, dims: Sequence[int], rank: int, *, keepdim: bool, scaler: float) -> torch.Tensor:
    """The emulated sum over dims, which count from the end, times a scaler."""
    config = fpu.active_config()
    assert config is not None, "sums in float32 have one step"
    dtype, whole = config.out_dtype, len(dims) == rank
    wide_between = dtype is bfloat16 and len(dims) > 1 and not whole
    left, between = sorted(dims), float32 if wide_between else dtype
    if dtype in ADDED_AS_TILES and scaler == 1.0:
        batches, left = [dim for dim in left if dim < HEIGHT], [dim for dim in left if dim >= HEIGHT]
        for dim in reversed(batches):
            values = pack(fpu.add_up(values, (dim,)), between)
    if takes_one_program(left):
        values = _reduce_tiles(values, left, scaler)
    else:
        values = _reduce_each(values, left, scaler, between)
    return values if keepdim else values.squeeze(tuple(dims))


def mean_dims(values: torch.Tensor, dims: Sequence[int], *, keepdim: bool, scaler: float) -> torch.Tensor:
    """The emulated mean over dims: a sum whose scaler holds 1 / N, packed to the result's format between two programs."""
    config = fpu.active_config()
    assert config is not None, "means in float32 have one step"
    factor = scaler / prod(values.shape[dim] for dim in dims)
    if takes_one_program(dims):
        values = fpu.total(values, dims, keepdim=True, scaler=factor, between=lambda config: config.out_dtype)
    else:
        values = _reduce_each(values, sorted(dims), factor, config.out_dtype)
    return values if keepdim else values.squeeze(tuple(dims))


def _reduce_tiles(values: torch.Tensor, dims: Sequence[int], scaler: float) -> torch.Tensor:
    """Over the width and then the height; bfloat16 stays as wide as the destination in between."""

    def between(config: FpuConfig) -> DataType | None:
        return None if config.out_dtype is bfloat16 else config.out_dtype

    return fpu.total(values, dims, keepdim=True, scaler=scaler, between=between) if dims else values


def _reduce_each(values: torch.Tensor, dims: Sequence[int], scaler: float, between: DataType) -> torch.Tensor:
    """A program per dim, from the last; an outer one changes places with the height. The first has the scaler."""
    for step, dim in enumerate(reversed(dims)):
        kept = pack(values, between) if step else values
        over = kept.transpose(dim, HEIGHT) if dim < HEIGHT else kept
        values = fpu.total(over, (max(dim, HEIGHT),), keepdim=True, scaler=1.0 if step else scaler)
        values = values.transpose(dim, HEIGHT) if dim < HEIGHT else values
    return values
