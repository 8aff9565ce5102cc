"""Lanes to the bytes that a chip holds, and back."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from ttmesh.base.dtypes import BLOCK_FLOATS, ELEMENT_BYTES, DataType, Layout, bfloat8_b
from ttmesh.base.errors import ShapeError
from ttmesh.chip.formats import block_float
from ttmesh.chip.formats.kernels import block_tiles
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.storage import lane_dtype, to_lane
from ttmesh.chip.formats.tiles import FACE_WIDTH, Tile, exponent_bytes, padded_shape, tile_bytes
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
        packed = _pack_blocks(matrices, dtype, tile, pad_value)
    else:
        filler = _to_stored(to_lane(torch.tensor(pad_value), dtype), dtype).item()
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
        return _unpack_blocks(packed, (height, width), dtype, tile).reshape(*lead, *shape)
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


def _pack_blocks(matrices: torch.Tensor, dtype: DataType, tile: Tile, pad_value: float) -> torch.Tensor:
    if matrices.dtype not in (torch.float32, torch.bfloat16):
        matrices = matrices.float()
    if block_tiles.supports(matrices, tile):
        return block_tiles.pack(matrices, dtype, tile, pad_value)
    kernels = find_gpu_kernels("gpu_block_float") if matrices.is_cuda and not tile.transpose_tile else None
    if kernels is not None:
        result: torch.Tensor = kernels.pack(matrices, dtype, tile, pad_value)
        return result
    rows = tilize(matrices, tile, pad_value=pad_value).view(-1, FACE_WIDTH)
    exponents, fields = block_float.encode(rows, dtype, "host")
    tile_count = rows.numel() // (tile.height * tile.width)
    shared = exponents.view(tile_count, -1)
    shared = pad(shared, (0, exponent_bytes(tile) - shared.shape[1]))
    if dtype != bfloat8_b:
        fields = fields[:, 0::2] | (fields[:, 1::2] << 4)
    return torch.cat([shared, fields.reshape(tile_count, -1)], -1)


def _unpack_blocks(packed: torch.Tensor, shape: tuple[int, int], dtype: DataType, tile: Tile) -> torch.Tensor:
    if block_tiles.supports(packed, tile):
        return block_tiles.unpack(packed, shape, dtype, tile)
    kernels = find_gpu_kernels("gpu_block_float") if packed.is_cuda and not tile.transpose_tile else None
    if kernels is not None:
        result: torch.Tensor = kernels.unpack(packed, shape, dtype, tile)
        return result
    count = packed.shape[0]
    tiles = packed.reshape(-1, tile_bytes(dtype, tile))
    start = exponent_bytes(tile)
    exponents = tiles[:, : tile.face_shape[0] * tile.num_faces].reshape(-1, 1)
    fields = tiles[:, start:].reshape(-1, FACE_WIDTH if dtype == bfloat8_b else FACE_WIDTH // 2)
    if dtype != bfloat8_b:
        fields = torch.stack([fields & 0xF, fields >> 4], -1).view(-1, FACE_WIDTH)
    return untilize(block_float.decode(exponents, fields, dtype).view(count, -1), shape, tile)
