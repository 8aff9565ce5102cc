"""Lanes to the bytes that a chip holds, and back; tiles of bfloat8_b and bfloat4_b: block_float_packing.py."""

from __future__ import annotations

import math

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, ELEMENT_BYTES, DataType, Layout
from ttmesh.base.errors import ShapeError
from ttmesh.chip.formats.block_float_packing import pack_blocks, unpack_blocks
from ttmesh.chip.formats.storage import lane_dtype, to_lane
from ttmesh.chip.formats.tiles import Tile, padded_shape, tile_bytes
from ttmesh.chip.formats.tilize import tilize, untilize

# Formats whose elements are narrower in the chip's memory than in lanes.
_STORED = {DataType.UINT32: torch.int32, DataType.UINT16: torch.int16}
_UNSIGNED_MASK = {DataType.UINT32: 0xFFFFFFFF, DataType.UINT16: 0xFFFF}


def packed_bytes(shape: tuple[int, ...], dtype: DataType, layout: Layout, tile: Tile | None = None) -> int:
    """Bytes of a tensor of this logical shape, without the alignment of its pages."""
    tile = tile or Tile()
    if layout == Layout.ROW_MAJOR:
        _refuse_row_major(dtype)
        return math.prod(shape) * ELEMENT_BYTES[dtype]
    return math.prod(padded_shape(shape, tile)) // (tile.height * tile.width) * tile_bytes(dtype, tile)


def pack(
    values: torch.Tensor,
    dtype: DataType,
    layout: Layout,
    tile: Tile | None = None,
    pad_value: float = 0,
    *,
    rank: int = 2,
) -> torch.Tensor:
    """Lanes [..., *shape] as new bytes [..., n]; the last `rank` dims are a tensor, its matrices padded one by one."""
    tile = tile or Tile()
    if rank > values.dim():
        raise ShapeError(
            f"rank {rank} of a {values.dim()}-dim tensor",
            expected=f"at most {values.dim()}",
            fix="Pass a rank that fits.",
        )
    split = values.dim() - rank
    lead, shape = tuple(values.shape[:split]), tuple(values.shape[split:])
    if layout == Layout.ROW_MAJOR:
        _refuse_row_major(dtype)
        elements = _to_stored(values, dtype).reshape(*lead, math.prod(shape))
        shared = elements.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        return (elements.clone() if shared else elements).contiguous().view(torch.uint8)
    total = packed_bytes(shape, dtype, layout, tile)
    if total == 0 or values.numel() == 0:
        return torch.empty((*lead, total), dtype=torch.uint8, device=values.device)
    matrices = values.reshape(-1, *((1,) * (2 - rank) + shape)[-2:])
    if dtype in BLOCK_FLOATS:
        packed = pack_blocks(matrices, dtype, tile, pad_value)
    else:
        dtype_of_number = torch.float32 if isinstance(pad_value, float) else torch.int64
        filler = _to_stored(to_lane(torch.tensor(pad_value, dtype=dtype_of_number, device="cpu"), dtype), dtype).item()
        packed = tilize(_to_stored(matrices, dtype), tile, pad_value=filler).view(torch.uint8)
    return packed.reshape(*lead, total)


def unpack(
    raw: torch.Tensor, shape: tuple[int, ...], dtype: DataType, layout: Layout, tile: Tile | None = None
) -> torch.Tensor:
    """Bytes [..., n] as new lanes [..., *shape]."""
    tile = tile or Tile()
    total = packed_bytes(shape, dtype, layout, tile)
    if raw.dtype != torch.uint8 or raw.shape[-1:] != (total,):
        raise ShapeError(
            f"{list(raw.shape)} {raw.dtype} are not the bytes of a {list(shape)} {dtype} tensor",
            expected=f"{total} uint8 in the last dim",
            fix="Pass the shape, dtype, layout and tile they were packed with.",
        )
    lead = tuple(raw.shape[:-1])
    if raw.numel() == 0:
        return torch.empty((*lead, *shape), dtype=lane_dtype(dtype), device=raw.device)
    if layout == Layout.ROW_MAJOR:
        return _from_stored(_elements(raw.clone(), dtype), dtype).reshape(*lead, *shape)
    height, width = (1, 1, *shape)[-2:]
    count = math.prod(lead) * math.prod(shape[:-2])
    packed = raw.reshape(count, -1)
    if dtype in BLOCK_FLOATS:
        return unpack_blocks(packed, (height, width), dtype, tile).reshape(*lead, *shape)
    return _from_stored(untilize(_elements(packed, dtype), (height, width), tile), dtype).reshape(*lead, *shape)


def _refuse_row_major(dtype: DataType) -> None:
    if dtype in BLOCK_FLOATS:
        raise ShapeError(
            "Layout must be Layout::TILE for bfloat8_b or bfloat4_b!",
            expected="TILE_LAYOUT",
            fix="Leave the layout out or name TILE_LAYOUT.",
        )


def _to_stored(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Lanes as the elements that memory holds (8-bit floats as bytes: torch pads and moves those)."""
    lanes = values.to(_STORED.get(dtype, lane_dtype(dtype)))
    return lanes.view(torch.uint8) if dtype == DataType.FP8_E4M3 else lanes


def _from_stored(elements: torch.Tensor, dtype: DataType) -> torch.Tensor:
    if dtype == DataType.FP8_E4M3:
        return elements.view(torch.float8_e4m3fn)
    return elements.to(lane_dtype(dtype)) & _UNSIGNED_MASK[dtype] if dtype in _UNSIGNED_MASK else elements


def _elements(raw: torch.Tensor, dtype: DataType) -> torch.Tensor:
    aligned = raw.contiguous()
    if aligned.storage_offset() % 8:
        aligned = aligned.clone()  # torch views bytes as wider elements only at offsets that divide
    return aligned.view(torch.uint8 if dtype == DataType.FP8_E4M3 else _STORED.get(dtype, lane_dtype(dtype)))
