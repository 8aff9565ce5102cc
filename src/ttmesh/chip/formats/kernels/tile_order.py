"""Calls the compiled tilize and untilize."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import library
from ttmesh.chip.formats.tiles import FACE_WIDTH, Tile, padded_shape


class _TileWork(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("rows", "columns", "tile_rows", "tile_columns", "face_rows")]


_COMMON = [threads.POINTER, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_TileWork), ctypes.c_int]
_SIGNATURES: dict[str, list[Any]] = {"tilize": [*_COMMON, ctypes.c_void_p], "untilize": _COMMON}


def supports(values: torch.Tensor, tile: Tile) -> bool:
    """Whether the kernels can take these values."""
    return not tile.transpose_tile and values.device.type == "cpu" and library("tile_order") is not None


def tilize(values: torch.Tensor, tile: Tile, pad_value: float) -> torch.Tensor:
    """Matrices [..., H, W] as [..., padded H * padded W] elements in tile order."""
    source = values.contiguous()
    rows, columns = source.shape[-2:]
    height, width = padded_shape((rows, columns), tile)
    target = torch.empty((*source.shape[:-2], height * width), dtype=source.dtype, device="cpu")
    if target.numel() == 0:
        return target
    padding = torch.full((FACE_WIDTH,), pad_value, dtype=source.dtype, device="cpu")
    if source.numel() == 0:
        return target.copy_(padding[0])
    tiling = _TileWork(rows, columns, *tile.tile_shape, tile.face_shape[0])
    strips = target.numel() // (tile.height * width)
    team = threads.share(strips, source.nbytes)
    options = ctypes.byref(tiling), source.element_size(), padding.data_ptr()
    _function("tilize")(ctypes.byref(team), source.data_ptr(), target.data_ptr(), strips, *options)
    return target


def untilize(elements: torch.Tensor, shape: tuple[int, int], tile: Tile) -> torch.Tensor:
    """Elements [..., padded H * padded W] in tile order as matrices [..., H, W]."""
    source = elements.contiguous()
    target = torch.empty((*source.shape[:-1], *shape), dtype=source.dtype, device="cpu")
    if target.numel() == 0:
        return target
    tiling = _TileWork(*shape, *tile.tile_shape, tile.face_shape[0])
    strips = source.numel() // (tile.height * padded_shape(shape, tile)[1])
    team = threads.share(strips, source.nbytes)
    options = ctypes.byref(tiling), source.element_size()
    _function("untilize")(ctypes.byref(team), source.data_ptr(), target.data_ptr(), strips, *options)
    return target


@functools.cache
def _function(name: str) -> ctypes._NamedFuncPointer:
    compiled = library("tile_order")
    assert compiled is not None, "called without asking supports()"
    function: ctypes._NamedFuncPointer = getattr(compiled, name)
    function.argtypes, function.restype = _SIGNATURES[name], None
    return function
