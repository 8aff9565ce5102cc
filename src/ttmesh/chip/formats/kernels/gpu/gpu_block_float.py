"""Block floats on a GPU: rounding to the grid, packed tiles and back, each in one pass over memory."""

from __future__ import annotations

import torch
import triton

from ttmesh.base.dtypes import DataType, bfloat8_b
from ttmesh.chip.formats.kernels.gpu.gpu_block_float_kernels import (
    pack_groups,
    pack_strip,
    quantise_groups,
    unpack_groups,
    unpack_strip,
)
from ttmesh.chip.formats.tiles import FACE_WIDTH, Tile, exponent_bytes, padded_shape, tile_bytes

STRIP_TILES = 8  # whole tiles side by side in one program
GROUPS = 256  # groups of 16 values per program; on an H200 128 take 3 % longer, 512 25 %


def quantise(
    values: torch.Tensor,
    dtype: DataType,
    packer: str,
    pad_value: float,
    *,
    narrow: bool = False,
    operation: str | None = None,
    other: torch.Tensor | None = None,
) -> torch.Tensor:
    """Values on the grid of a block float, as bfloat16; `narrow` rounds them to bfloat16 first.

    Args:
        operation: add, subtract or multiply: computed with `other`, of the same shape, before that.
    """
    source = values.contiguous()
    second = source if other is None else other.contiguous()
    target = torch.empty(source.shape, dtype=torch.bfloat16, device=source.device)
    columns = source.shape[-1] if source.dim() else 1
    per_row = -(-columns // FACE_WIDTH)
    groups = source.numel() // columns * per_row
    halves = narrow or source.dtype is torch.bfloat16
    options = operation, _width(dtype), packer == "device", narrow, halves, columns % FACE_WIDTH != 0, GROUPS
    quantise_groups[(triton.cdiv(groups, GROUPS),)](
        source, second, target, groups, per_row, columns, pad_value, *options, num_warps=4
    )
    return target


def pack(matrices: torch.Tensor, dtype: DataType, tile: Tile, pad_value: float) -> torch.Tensor:
    """Matrices [n, H, W] as packed tiles [n, bytes], by the host's rounding."""
    source = matrices.contiguous()
    count, rows, columns = source.shape
    down, across = _count_tiles(rows, columns, tile)
    padded = tile.height * tile.width // FACE_WIDTH != exponent_bytes(tile)  # bytes between exponents and fields are 0
    make = torch.zeros if padded else torch.empty
    target = make((count, down * across * tile_bytes(dtype, tile)), dtype=torch.uint8, device=source.device)
    tiles = count * down * across
    if _are_whole(rows, columns, tile):
        strips = (triton.cdiv(across, STRIP_TILES), count * down)
        halves = source.dtype is torch.bfloat16
        pack_strip[strips](source, target, columns, halves, tile_bytes(dtype, tile), _width(dtype), STRIP_TILES)
        return target
    options = _describe(dtype, tile)
    pack_groups[_grid(tiles, tile)](
        source, target, rows, columns, tiles, down, across, pad_value, *options, num_warps=4
    )
    return target


def unpack(packed: torch.Tensor, shape: tuple[int, int], dtype: DataType, tile: Tile) -> torch.Tensor:
    """Packed tiles [n, bytes] as matrices [n, H, W]."""
    source = packed.contiguous()
    target = torch.empty((source.shape[0], *shape), dtype=torch.bfloat16, device=source.device)
    down, across = _count_tiles(*shape, tile)
    tiles = source.shape[0] * down * across
    if _are_whole(*shape, tile):
        strips = (triton.cdiv(across, STRIP_TILES), source.shape[0] * down)
        unpack_strip[strips](source, target, shape[1], tile_bytes(dtype, tile), _width(dtype), STRIP_TILES)
        return target
    unpack_groups[_grid(tiles, tile)](source, target, *shape, tiles, down, across, *_describe(dtype, tile), num_warps=4)
    return target


def _are_whole(rows: int, columns: int, tile: Tile) -> bool:
    """Whether matrices are whole tiles of the size that nearly every tensor has."""
    return tile.tile_shape == (32, 32) and rows % 32 == 0 and columns % 32 == 0


def _describe(dtype: DataType, tile: Tile) -> tuple[int, ...]:
    return (
        *tile.tile_shape,
        tile.face_shape[0],
        exponent_bytes(tile),
        tile_bytes(dtype, tile),
        _width(dtype),
        GROUPS,
    )


def _grid(tiles: int, tile: Tile) -> tuple[int]:
    return (triton.cdiv(tiles * (tile.height * tile.width // FACE_WIDTH), GROUPS),)


def _count_tiles(rows: int, columns: int, tile: Tile) -> tuple[int, int]:
    height, width = padded_shape((rows, columns), tile)
    return height // tile.height, width // tile.width


def _width(dtype: DataType) -> int:
    return 7 if dtype == bfloat8_b else 3


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    quantise(torch.ones((1, 16), device="cuda", dtype=torch.float32), bfloat8_b, "device", 0.0)
