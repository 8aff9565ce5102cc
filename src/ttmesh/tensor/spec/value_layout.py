"""The layout of a spec's values in memory: to bytes and back, and the values of one spec read through another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ttmesh.base import settings
from ttmesh.base.dtypes import FLOATS, Layout
from ttmesh.chip.formats.packing import pack, unpack
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.formats.tiles import padded_shape as tile_padded
from ttmesh.tensor.spec.host_shapes import box, pad_values

if TYPE_CHECKING:
    from ttmesh.tensor.spec.tensor_spec import TensorSpec


def to_bytes(spec: TensorSpec, values: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Lanes of values → lanes of packed pages."""
    shape = _stored_shape(spec)
    stored = pad_values(values, shape, spec.pad_value) if shape != tuple(spec.shape) else values
    return pack(stored, spec.dtype, spec.layout, spec.tile, spec.pad_value, rank=len(shape))


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
    """The values of memory that was never written: zeros, or poison (NaN, or the largest integer) on request."""
    dtype = lane_dtype(spec.dtype)
    shape = (*[1] * lane_axes, *spec.shape)
    if settings.get_str("TTMESH_UNWRITTEN") == "zeros":
        return torch.zeros(shape, dtype=dtype, device=device)
    poison = math.nan if spec.dtype in FLOATS else torch.iinfo(dtype).max if dtype != torch.int64 else 0xFFFFFFFF
    return torch.full(shape, poison, dtype=dtype, device=device)


def view_of(spec: TensorSpec, values: torch.Tensor, held: TensorSpec, lane_axes: int) -> torch.Tensor | None:
    """Values written under one spec as another reads them, or None where they must be converted through bytes."""
    if spec.dtype is not held.dtype or spec.layout is not held.layout or spec.tile != held.tile:
        return None
    if math.prod(spec.shape) != math.prod(held.shape):
        return None
    if tuple(spec.shape) == tuple(held.shape) and spec.padded_shape == held.padded_shape:
        return values
    if _rows(spec) != _rows(held):
        return None
    return values.reshape(*values.shape[:lane_axes], *spec.shape)


def _rows(spec: TensorSpec) -> tuple[int, ...]:
    """What must be equal for folding dims to change no byte: row lengths, and the rows of a block that is padded."""
    width = spec.shape[-1] if spec.shape else 1
    height = spec.shape[-2] if len(spec.shape) > 1 else 1
    if len(spec.alignment) > 2:  # outer dims are padded too
        return (*spec.shape, *spec.alignment)
    if spec.layout is Layout.TILE:
        return (width, *spec.alignment, 0 if height % spec.alignment[0] == 0 else height)
    if len(spec.alignment) == 2 and height % spec.alignment[0]:
        return (*spec.shape, *spec.alignment)
    across = spec.padded_shape[-1]
    return () if across == width else (width, across)


def _stored_shape(spec: TensorSpec) -> tuple[int, ...]:
    """What is packed: the logical shape where tiles are the only padding, else the shape with its own padding."""
    if spec.layout is Layout.TILE and tuple(spec.padded_shape) == tile_padded(tuple(spec.shape), spec.tile):
        return tuple(spec.shape)
    return tuple(spec.padded_shape)
