"""Block floats: 16 neighbours share an exponent; values are rounded to that grid and kept in bfloat16."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, bfloat8_b
from ttmesh.base.errors import NotEmulatedError, one_of
from ttmesh.chip.formats.kernels import block_tiles
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.tiles import FACE_WIDTH, Tile

PACKERS = ("host", "device")
_HIDDEN = 1 << 23
_FRACTION = _HIDDEN - 1
_CHUNK_ROWS = 4096  # 256 KiB of float32: the dozen temporaries stay in cache, half the time
_MAGNITUDE_BITS = {DataType.BFLOAT8_B: 7, DataType.BFLOAT4_B: 3}


def quantise(
    values: torch.Tensor,
    dtype: DataType,
    *,
    packer: str = "host",
    tile: Tile | None = None,
    pad_value: float = 0.0,
    narrow: bool = False,
) -> torch.Tensor:
    """Values (last two dims a matrix) on the grid of a block float, as bfloat16; `narrow` rounds to bfloat16 first."""
    if dtype not in BLOCK_FLOATS or packer not in PACKERS:
        raise NotEmulatedError(
            f"no {packer!r} packer for {dtype}",
            expected=f"{one_of(PACKERS)} and {one_of(BLOCK_FLOATS)}",
            fix="Correct the name.",
        )
    if values.is_meta or values.numel() == 0:
        return torch.empty(values.shape, dtype=torch.bfloat16, device=values.device)
    if tile is not None and tile.transpose_tile:  # its faces are stored transposed, so columns share exponents
        columns = quantise(values.transpose(-1, -2), dtype, packer=packer, pad_value=pad_value, narrow=narrow)
        return columns.transpose(-1, -2).contiguous()
    if values.is_cuda and values.is_floating_point():
        kernels = find_gpu_kernels("gpu_block_float")
        if kernels is not None:
            result: torch.Tensor = kernels.quantise(values, dtype, packer, pad_value, narrow=narrow)
            return result
    if narrow:
        values = values.to(torch.bfloat16)
    if block_tiles.supports(values):
        return block_tiles.quantise(values, dtype, packer, pad_value)
    width = values.shape[-1] if values.dim() else 1
    rows = pad(values.reshape(-1, width), (0, -width % FACE_WIDTH), value=pad_value).view(-1, FACE_WIDTH)
    exponents, fields = encode(rows, dtype, packer)
    lanes = decode(exponents, fields, dtype).view(-1, width + -width % FACE_WIDTH)[:, :width]
    return lanes.reshape(values.shape)


def combine_and_quantise(a: torch.Tensor, b: torch.Tensor, operation: str, dtype: DataType) -> torch.Tensor | None:
    """add, subtract or multiply of bfloat16 lanes, rounded to bfloat16 and packed as the device does, in one kernel.

    None where there is no such kernel: off the GPU, for operands of unequal shape, for rows of broken groups.
    """
    if not a.is_cuda or a.shape != b.shape or not a.numel() or a.shape[-1] % FACE_WIDTH:
        return None
    kernels = find_gpu_kernels("gpu_block_float") if a.dtype is b.dtype is torch.bfloat16 else None
    if kernels is None:
        return None
    result: torch.Tensor = kernels.quantise(a, dtype, "device", 0.0, narrow=True, operation=operation, other=b)
    return result


def encode(rows: torch.Tensor, dtype: DataType, packer: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Shared exponents [n, 1] and sign-and-magnitude fields [n, 16] of rows [n, 16], both uint8."""
    if rows.device.type == "cpu" and len(rows) > _CHUNK_ROWS:
        exponents, fields = zip(*(encode(piece, dtype, packer) for piece in _split_rows(rows)), strict=True)
        return torch.cat(exponents), torch.cat(fields)
    bits = rows.float().view(torch.int32)
    own = (bits >> 23) & 0xFF
    shared = own.amax(-1, keepdim=True)
    behind = shared - own
    mantissa = (bits & _FRACTION) | _HIDDEN
    magnitude = (
        _round_like_host(mantissa, behind, dtype) if packer == "host" else _round_like_device(mantissa, behind, dtype)
    )
    normal = _make_mask(own != 0)
    magnitude &= normal
    # The host drops the sign of what rounds to zero, the chip keeps it; both drop it of zeros and denormals.
    signed = _make_mask(magnitude != 0) if packer == "host" else normal
    sign = (bits >> 31) & signed & (1 << _MAGNITUDE_BITS[dtype])
    return shared.to(torch.uint8), (magnitude | sign).to(torch.uint8)


def decode(exponents: torch.Tensor, fields: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """The bfloat16 values of shared exponents [n, 1] and fields [n, 16]."""
    if fields.device.type == "cpu" and len(fields) > _CHUNK_ROWS:
        pieces = zip(_split_rows(exponents), _split_rows(fields), strict=True)
        return torch.cat([decode(*piece, dtype) for piece in pieces])
    width = _MAGNITUDE_BITS[dtype]
    fields = fields.to(torch.int32)
    magnitude = fields & ((1 << width) - 1)
    # The magnitude as a float has its leading one where the value's is, width - 1 exponents too large.
    bits = magnitude.float().view(torch.int32) + ((exponents.to(torch.int32) - 127 - (width - 1)) << 23)
    bits &= _make_mask((magnitude != 0) & (bits >= _HIDDEN))  # a magnitude below the normals has no value
    bits |= (fields >> width) << 31
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def _split_rows(rows: torch.Tensor) -> list[torch.Tensor]:
    return [rows[start : start + _CHUNK_ROWS] for start in range(0, len(rows), _CHUNK_ROWS)]


def _make_mask(condition: torch.Tensor) -> torch.Tensor:
    """All bits or none: torch.where with a scalar takes eight times a bitwise and."""
    return -condition.to(torch.int32)


def _round_like_host(mantissa: torch.Tensor, behind: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """TT-NN's host code: align by truncation, then to nearest even, saturating (the bits lost first are not sticky)."""
    width = _MAGNITUDE_BITS[dtype]
    shift = 24 - width
    aligned = mantissa >> behind.clamp(max=31)
    half_less_one = (1 << (shift - 1)) - 1
    rounded = (aligned + half_less_one + ((aligned >> shift) & 1)) >> shift
    return rounded.clamp(max=(1 << width) - 1)


def _round_like_device(mantissa: torch.Tensor, behind: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """The chip's packer: 7 bits by truncation, aligned to nearest with ties up; bfloat4_b truncates that to 3 bits."""
    behind = behind.clamp(max=9)
    half = (1 << behind) >> 1
    magnitude = ((mantissa >> 17) + half) >> behind
    return magnitude if dtype == bfloat8_b else magnitude >> 4
