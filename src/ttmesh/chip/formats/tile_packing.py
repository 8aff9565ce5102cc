"""Functions that pack a matrix on the host into tiles of a block float format."""

from __future__ import annotations

import numpy as np
import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError
from ttmesh.chip.formats.packing import pack
from ttmesh.chip.formats.tiles import Tile


def tilize_and_pack_bfp8_b(data: np.ndarray, H: int, W: int, tile_h: int = 32, tile_w: int = 32) -> bytes:
    """The bytes of a float32 matrix [H, W] in tiles of bfloat8_b."""
    return _pack_matrix(data, (H, W), Tile((tile_h, tile_w)), DataType.BFLOAT8_B)


def tilize_and_pack_bfp4_b(data: np.ndarray, H: int, W: int, tile_h: int = 32, tile_w: int = 32) -> bytes:
    """The bytes of a float32 matrix [H, W] in tiles of bfloat4_b."""
    return _pack_matrix(data, (H, W), Tile((tile_h, tile_w)), DataType.BFLOAT4_B)


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
