"""Calls the compiled block-float kernels."""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import torch

from ttmesh.base.dtypes import DataType, bfloat8_b
from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import library
from ttmesh.chip.formats.tiles import Tile, exponent_bytes, padded_shape, tile_bytes


class _BlockWork(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "rows",
            "columns",
            "tile_rows",
            "tile_columns",
            "face_rows",
            "exponent_bytes",
            "tile_bytes",
        )
    ]


_POINTER, _COUNT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_SIGNATURES: dict[str, list[Any]] = {
    "quantise": [threads.POINTER, _POINTER, _POINTER, _COUNT, _COUNT, _INT, _INT, _INT, ctypes.c_uint32],
    "pack_tiles": [
        threads.POINTER,
        _POINTER,
        _POINTER,
        _COUNT,
        ctypes.POINTER(_BlockWork),
        _INT,
        _INT,
        ctypes.c_uint32,
    ],
    "unpack_tiles": [threads.POINTER, _POINTER, _POINTER, _COUNT, ctypes.POINTER(_BlockWork), _INT],
}


def supports(values: torch.Tensor, tile: Tile | None = None) -> bool:
    """Whether the kernels can take these values."""
    plain = tile is None or not tile.transpose_tile
    return plain and values.device.type == "cpu" and library("block_tiles") is not None


def quantise(values: torch.Tensor, dtype: DataType, packer: str, pad_value: float) -> torch.Tensor:
    """Values on the grid of a block float, as bfloat16."""
    source = values.contiguous()
    target = torch.empty(source.shape, dtype=torch.bfloat16, device="cpu")
    columns = source.shape[-1] if source.dim() else 1
    rows = source.numel() // columns
    # Results of small ops come here: every microsecond shows.
    team = ctypes.byref(threads.share(rows, source.nbytes)) if source.nbytes >= threads.SPLIT_BYTES else threads.ALONE
    options = columns, _narrow(source), _width(dtype), int(packer == "device"), _bits(pad_value)
    _function("quantise")(team, source.data_ptr(), target.data_ptr(), rows, *options)
    return target


def pack(matrices: torch.Tensor, dtype: DataType, tile: Tile, pad_value: float) -> torch.Tensor:
    """Matrices [n, H, W] as packed tiles [n, bytes], by the host's rounding."""
    source = matrices.contiguous()
    count, rows, columns = source.shape
    down, across = _tiles(rows, columns, tile)
    target = torch.empty((count, down * across * tile_bytes(dtype, tile)), dtype=torch.uint8, device="cpu")
    tiling = _make_tiling(rows, columns, dtype, tile)
    team = threads.share(count * down, source.nbytes)
    options = ctypes.byref(tiling), _narrow(source), _width(dtype), _bits(pad_value)
    _function("pack_tiles")(ctypes.byref(team), source.data_ptr(), target.data_ptr(), count * down, *options)
    return target


def unpack(packed: torch.Tensor, shape: tuple[int, int], dtype: DataType, tile: Tile) -> torch.Tensor:
    """Packed tiles [n, bytes] as matrices [n, H, W]."""
    source = packed.contiguous()
    target = torch.empty((source.shape[0], *shape), dtype=torch.bfloat16, device="cpu")
    tiling = _make_tiling(*shape, dtype, tile)
    strips = source.shape[0] * _tiles(*shape, tile)[0]
    team = threads.share(strips, target.nbytes)
    options = ctypes.byref(tiling), _width(dtype)
    _function("unpack_tiles")(ctypes.byref(team), source.data_ptr(), target.data_ptr(), strips, *options)
    return target


@functools.cache
def _function(name: str) -> ctypes._NamedFuncPointer:
    compiled = library("block_tiles")
    assert compiled is not None, "called without asking supports()"
    function: ctypes._NamedFuncPointer = getattr(compiled, name)
    function.argtypes, function.restype = _SIGNATURES[name], None
    return function


def _make_tiling(rows: int, columns: int, dtype: DataType, tile: Tile) -> _BlockWork:
    return _BlockWork(
        rows, columns, *tile.tile_shape, tile.face_shape[0], exponent_bytes(tile), tile_bytes(dtype, tile)
    )


def _tiles(rows: int, columns: int, tile: Tile) -> tuple[int, int]:
    height, width = padded_shape((rows, columns), tile)
    return height // tile.height, width // tile.width


def _narrow(source: torch.Tensor) -> int:
    return int(source.dtype == torch.bfloat16)


def _width(dtype: DataType) -> int:
    return 7 if dtype == bfloat8_b else 3


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
