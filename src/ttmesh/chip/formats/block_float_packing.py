"""Tiles of bfloat8_b and bfloat4_b to bytes and back; block_float.py rounds, kernels/ has the compiled and GPU forms."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ttmesh.base.dtypes import DataType, bfloat8_b
from ttmesh.chip.formats import block_float
from ttmesh.chip.formats.kernels import block_tiles
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.tiles import FACE_WIDTH, Tile, exponent_bytes, tile_bytes
from ttmesh.chip.formats.tilize import tilize, untilize


def pack_blocks(matrices: torch.Tensor, dtype: DataType, tile: Tile, pad_value: float) -> torch.Tensor:
    """Matrices to the bytes of their tiles: shared exponents, then signs and mantissas."""
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


def unpack_blocks(packed: torch.Tensor, shape: tuple[int, int], dtype: DataType, tile: Tile) -> torch.Tensor:
    """Matrices of this shape from the bytes of their tiles."""
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
