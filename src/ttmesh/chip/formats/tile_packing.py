"""Functions that pack a matrix on the host into tiles of a block float format."""

from __future__ import annotations

import numpy as np
import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import NotEmulatedError, ShapeError
from ttmesh.chip.formats.packing import pack, packed_bytes, unpack
from ttmesh.chip.formats.tiles import Tile

TILE_VALUES = 32 * 32


def tilize_and_pack_bfp8_b(data: np.ndarray, H: int, W: int, tile_h: int = 32, tile_w: int = 32) -> bytes:
    """The bytes of a float32 matrix [H, W] in tiles of bfloat8_b."""
    return _pack_matrix(data, (H, W), Tile((tile_h, tile_w)), DataType.BFLOAT8_B)


def tilize_and_pack_bfp4_b(data: np.ndarray, H: int, W: int, tile_h: int = 32, tile_w: int = 32) -> bytes:
    """The bytes of a float32 matrix [H, W] in tiles of bfloat4_b."""
    return _pack_matrix(data, (H, W), Tile((tile_h, tile_w)), DataType.BFLOAT4_B)


def pack_bfp8(input: np.ndarray, row_major_input: bool = False, is_exp_a: bool = False) -> np.ndarray:
    """The 32-bit words of bfloat8_b tiles; what is left after the last whole tile of 1024 values is not packed."""
    return _pack_tiles(input, DataType.BFLOAT8_B, row_major_input, is_exp_a)


def pack_bfp4(input: np.ndarray, row_major_input: bool = False, is_exp_a: bool = False) -> np.ndarray:
    """The 32-bit words of bfloat4_b tiles; what is left after the last whole tile of 1024 values is not packed."""
    return _pack_tiles(input, DataType.BFLOAT4_B, row_major_input, is_exp_a)


def unpack_bfp8(input: np.ndarray, row_major_output: bool = False, is_exp_a: bool = False) -> np.ndarray:
    """The values of bfloat8_b tiles."""
    return _unpack_tiles(input, DataType.BFLOAT8_B, row_major_output, is_exp_a)


def unpack_bfp4(input: np.ndarray, row_major_output: bool = False, is_exp_a: bool = False) -> np.ndarray:
    """The values of bfloat4_b tiles."""
    return _unpack_tiles(input, DataType.BFLOAT4_B, row_major_output, is_exp_a)


def _pack_tiles(values: np.ndarray, dtype: DataType, row_major: bool, short_exponents: bool) -> np.ndarray:
    _check_vector(values, short_exponents)
    count = len(values) // TILE_VALUES
    tiles = torch.from_numpy(np.ascontiguousarray(values[: count * TILE_VALUES], dtype=np.float32))
    rows = tiles if row_major else tiles.reshape(count, 2, 2, 16, 16).transpose(2, 3)
    packed = (
        pack(rows.reshape(count * 32, 32), dtype, Layout.TILE)
        if count
        else torch.empty(0, dtype=torch.uint8, device="cpu")
    )
    return packed.numpy().view(np.uint32)


def _unpack_tiles(words: np.ndarray, dtype: DataType, row_major: bool, short_exponents: bool) -> np.ndarray:
    _check_vector(words, short_exponents)
    tile_words = packed_bytes((32, 32), dtype, Layout.TILE) // 4
    count = len(words) // tile_words
    if not count:
        return np.empty(0, dtype=np.float32)
    raw = torch.from_numpy(np.ascontiguousarray(words[: count * tile_words], dtype=np.uint32).view(np.uint8).copy())
    rows = unpack(raw, (count * 32, 32), dtype, Layout.TILE).float()
    tiles = rows if row_major else rows.reshape(count, 2, 16, 2, 16).transpose(2, 3)
    return tiles.reshape(-1).numpy()


def _check_vector(values: np.ndarray, short_exponents: bool) -> None:
    if np.ndim(values) != 1:
        raise TypeError(
            f"expected an array of one dim, tile after tile, not {type(values).__name__} of {np.ndim(values)}"
        )
    if short_exponents:
        raise NotEmulatedError(
            "is_exp_a=True is not emulated",
            expected="exponents of 8 bits (bfloat8_b, bfloat4_b)",
            fix="Leave is_exp_a out.",
        )


def _pack_matrix(data: np.ndarray, shape: tuple[int, int], tile: Tile, dtype: DataType) -> bytes:
    height, width = shape
    values = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
    if height % tile.height or width % tile.width or values.numel() != height * width:
        raise ShapeError(
            f"data of {values.numel()} elements is not a [{height}, {width}] matrix of {tile.height}x{tile.width} tiles",
            expected="a matrix of whole tiles",
            fix="Pad it, or change H, W, tile_h or tile_w.",
        )
    packed = pack(values.reshape(shape), dtype, Layout.TILE, tile)
    return packed.numpy().tobytes()
