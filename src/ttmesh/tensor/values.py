"""How a spec's values lie in memory: to bytes and back, and one spec seen through another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ttmesh.base import settings
from ttmesh.base.dtypes import FLOATS, Layout
from ttmesh.chip.formats.packing import pack, unpack
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.formats.tiles import padded_shape as tile_padded
from ttmesh.tensor.host_shapes import box, padded

if TYPE_CHECKING:
    from ttmesh.tensor.spec import TensorSpec


def to_bytes(spec: TensorSpec, values: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Lanes of values → lanes of packed pages."""
    shape = _stored_shape(spec)
    stored = padded(values, shape) if shape != tuple(spec.shape) else values
    return pack(stored, spec.dtype, spec.layout, spec.tile, rank=len(shape))


def from_bytes(spec: TensorSpec, raw: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Lanes of packed pages, possibly with more behind them, → lanes of values."""
    size, shape = spec.packed_size_bytes, _stored_shape(spec)
    if raw.shape[-1] < size:
        raw = torch.nn.functional.pad(raw, (0, size - raw.shape[-1]))
    values = unpack(raw[..., :size], shape, spec.dtype, spec.layout, spec.tile)
    if shape != tuple(spec.shape):
        values = box(values, len(shape), [0] * len(shape), spec.shape.to_rank(len(shape)))
    return values.reshape(*raw.shape[:lane_axes], *spec.shape)


def blank(spec: TensorSpec, lane_axes: int, device: torch.device) -> torch.Tensor:
    """What memory reads as that nobody wrote: zeros, or poison (NaN, or the largest integer) on request."""
    dtype = lane_dtype(spec.dtype)
    shape = (*[1] * lane_axes, *spec.shape)
    if settings.get_str("TTMESH_UNWRITTEN") == "zeros":
        return torch.zeros(shape, dtype=dtype, device=device)
    poison = math.nan if spec.dtype in FLOATS else torch.iinfo(dtype).max if dtype != torch.int64 else 0xFFFFFFFF
    return torch.full(shape, poison, dtype=dtype, device=device)


def view_of(spec: TensorSpec, values: torch.Tensor, held: TensorSpec, lane_axes: int) -> torch.Tensor | None:
    """Values held under one spec seen through another without going through bytes, or None where bytes are needed."""
    if spec.dtype is not held.dtype or spec.layout is not held.layout or spec.tile != held.tile:
        return None
    if tuple(spec.shape) == tuple(held.shape):
        return values if spec.alignment == held.alignment or spec.layout is Layout.TILE else None
    if spec.layout is Layout.ROW_MAJOR:
        same = math.prod(spec.shape) == math.prod(held.shape)
    else:
        same = math.prod(spec.shape) == math.prod(held.shape) and _whole_rows(spec) == _whole_rows(held) is not None
    return values.reshape(*values.shape[:lane_axes], *spec.shape) if same else None


def _whole_rows(spec: TensorSpec) -> int | None:
    """The row length when rows fill whole tiles downwards, so that folding dims changes no byte; else None."""
    if len(spec.shape) < 2 or spec.shape[-2] % spec.tile.tile_shape[0]:
        return None
    return spec.shape[-1]


def _stored_shape(spec: TensorSpec) -> tuple[int, ...]:
    """What is packed: the logical shape where tiles are the only padding, else the shape with its own padding."""
    if spec.layout is Layout.TILE and tuple(spec.padded_shape) == tile_padded(tuple(spec.shape), spec.tile):
        return tuple(spec.shape)
    return tuple(spec.padded_shape)
