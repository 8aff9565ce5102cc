"""Row-major matrices to tile order and back: tiles, the faces of a tile and the elements of a face row by row."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.nn.functional import pad

from ttmesh.base.errors import ShapeError
from ttmesh.chip.formats.kernels import tile_order
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.tiles import Tile, padded_shape


def tilize(values: torch.Tensor, tile: Tile | None = None, *, pad_value: float = 0) -> torch.Tensor:
    """Matrices [..., H, W] as [..., padded H * padded W] elements in tile order."""
    tile = tile or Tile()
    if values.dim() < 2:
        raise ShapeError(
            f"a tensor of rank {values.dim()} is not a matrix",
            expected="rank 2 or more",
            fix="Reshape to (1, W) first.",
        )
    if tile_order.supports(values, tile):
        return tile_order.tilize(values, tile, pad_value)
    lead = values.shape[:-2]
    height, width = padded_shape(tuple(values.shape[-2:]), tile)
    if (kernels := _find_kernels(values, tile)) is not None and kernels.supports(values, *values.shape[-2:]):
        reordered: torch.Tensor = kernels.reorder_tiles(values, height, width, to_tiles=True)
        return reordered.view(*lead, height * width)
    bottom, right = height - values.shape[-2], width - values.shape[-1]
    if bottom or right:
        values = pad(values, (0, right, 0, bottom), value=pad_value)
    faces = values.reshape(-1, *_split_axes(height, width, tile))
    return faces.permute(_find_axis_order(tile)).reshape(*lead, height * width)


def untilize(elements: torch.Tensor, shape: tuple[int, int], tile: Tile | None = None) -> torch.Tensor:
    """Elements [..., padded H * padded W] in tile order as matrices [..., H, W] without their padding."""
    tile = tile or Tile()
    height, width = padded_shape(shape, tile)
    if elements.shape[-1:] != (height * width,):
        raise ShapeError(
            f"{list(elements.shape)} elements are not the tiles of a {shape[0]}x{shape[1]} matrix",
            expected=f"{height * width} in the last dim",
            fix="Pass the logical shape that was tilized.",
        )
    if tile_order.supports(elements, tile):
        return tile_order.untilize(elements, shape, tile)
    lead = elements.shape[:-1]
    if (kernels := _find_kernels(elements, tile)) is not None and kernels.supports(elements, *shape):
        rows: torch.Tensor = kernels.reorder_tiles(elements, height, width, to_tiles=False)
        return rows.view(*lead, height, width)
    stored = [_split_axes(height, width, tile)[axis - 1] for axis in _find_axis_order(tile)[1:]]
    matrices = (
        elements.reshape(-1, *stored).permute(_invert_order(_find_axis_order(tile))).reshape(*lead, height, width)
    )
    return matrices[..., : shape[0], : shape[1]].contiguous()


def _find_kernels(values: torch.Tensor, tile: Tile) -> ModuleType | None:
    """Of a GPU, for the tile that nearly every tensor has."""
    return find_gpu_kernels("gpu_moves") if values.is_cuda and tile == Tile() else None


def _split_axes(height: int, width: int, tile: Tile) -> tuple[int, ...]:
    """A padded matrix's axes: tile row, face row, row in face, tile column, face column, column in face."""
    rows, columns = tile.face_shape
    return (height // tile.height, tile.height // rows, rows, width // tile.width, tile.width // columns, columns)


def _find_axis_order(tile: Tile) -> tuple[int, ...]:
    """The axes (after the batch axis 0) in the order in which they are stored."""
    return (0, 1, 4, 5, 2, 6, 3) if tile.transpose_tile else (0, 1, 4, 2, 5, 3, 6)


def _invert_order(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))
