"""What the packer writes to L1: destination registers rounded to a format, or added to the values in L1."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, bfloat8_b, bfloat16, float32
from ttmesh.chip.formats.block_float import quantise
from ttmesh.chip.formats.kernels import fpu_gemm, fpu_matmul
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.numerics.float_bits import fields, shift_up
from ttmesh.chip.numerics.unpacker import FACE_COLUMNS

_INFINITY = 0x7F800000
_MAGNITUDE = 0x7FFF  # of a bfloat16


def pack(dest: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Destination registers as values of a format, in float32."""
    if dtype == float32:
        return dest
    return pack_block_floats(dest, dtype).float() if dtype in BLOCK_FLOATS else to_bfloat16(dest)


def pack_block_floats(dest: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Registers as values of a block float, in bfloat16: cut to bfloat16, half up to 6 fraction bits, then aligned.

    A NaN is written as an infinity.
    """
    if dest.is_meta:
        return dest.to(torch.bfloat16)
    half = dest if dest.dtype is torch.bfloat16 else (dest.float().view(torch.int32) >> 16).to(torch.int16)
    bits = half.contiguous().view(torch.int16)
    rounded = (bits & _MAGNITUDE).clamp_(max=_INFINITY >> 16).add_(1).bitwise_and_(~1).bitwise_or_(bits & ~_MAGNITUDE)
    packed = quantise(rounded.view(torch.bfloat16), dtype, packer="device")
    return packed.masked_fill(packed == 0, 0.0)  # no -0


def pack_lanes(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Destination registers as lanes of a format."""
    if dtype in BLOCK_FLOATS:
        return pack_block_floats(values, dtype)
    if values.dtype is lane_dtype(dtype):
        return values
    wide = values.float()
    if dtype is bfloat16:
        if fpu_gemm.supports(wide):
            return fpu_gemm.pack_bfloat16(wide)
        if wide.is_cuda and (kernels := find_gpu_kernels("gpu_fpu_gemm")) is not None:
            packed: torch.Tensor = kernels.pack_bfloat16(wide)
            return packed
    return pack(wide, dtype).to(lane_dtype(dtype))


def to_bfloat16(dest: torch.Tensor) -> torch.Tensor:
    """Nearest bfloat16, ties away; NaN becomes infinity, subnormals and -0 become +0. In float32."""
    bits = dest.contiguous().view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    rounded = magnitude.clamp(max=_INFINITY).add(0x8000).bitwise_and(~0xFFFF).clamp(max=_INFINITY)
    signed = rounded | (bits & -0x80000000)
    return signed.masked_fill(magnitude < 0x800000, 0).view(torch.float32)


def pack_codes(dest: torch.Tensor, dtype: DataType, *, precise: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Sign-and-magnitude codes [..., n] and shared exponents [..., n / 16] of registers, as uint8.

    Args:
        precise: tt-metal's bfp8_pack_precise: one rounding, without the step through 6 fraction bits.
    """
    bits = dest.contiguous().view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    if not precise:
        magnitude = ((magnitude.clamp(max=_INFINITY) & ~0xFFFF) + 0x10000) & ~0x1FFFF
    exponent = magnitude >> 23
    mantissa = torch.where(exponent > 0, (magnitude & 0x7FFFFF) | 0x800000, 0)
    shared = exponent.view(*exponent.shape[:-1], -1, FACE_COLUMNS).amax(-1)
    behind = shared.repeat_interleave(FACE_COLUMNS, -1) - exponent
    code = shift_up(mantissa, behind + 17).clamp(max=127)
    width = 7
    if dtype != bfloat8_b:
        code, width = code >> 4, 3
    sign = ((bits >> 31) & 1) << width
    return torch.where(code == 0, 0, code | sign).to(torch.uint8), shared.to(torch.uint8)


def accumulate(held: torch.Tensor, packed: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """L1 accumulation: the packed value added to the value in L1, nearest even, subnormals flushed. In float32.

    Infinities of both signs give the NaN 0x7fc00000. A NaN that L1 holds stays one in float32; in bfloat16 it counts as a
    huge number and becomes infinity.
    """
    total = _flush(held) + _flush(packed)
    rounded = total if dtype == float32 else total.bfloat16().float()
    rounded = rounded.masked_fill(total.isnan(), torch.nan)  # its sign differs from processor to processor
    rounded = torch.where(fields(total)[1] == 0, torch.zeros_like(total).copysign(total), rounded)
    if dtype == float32:
        return rounded
    huge = torch.where(packed.isinf(), packed, torch.full_like(total, torch.inf).copysign(held))
    return torch.where(held.isnan(), huge, rounded)


def _flush(values: torch.Tensor) -> torch.Tensor:
    """Subnormals as zeros of their sign."""
    return torch.where(fields(values)[1] == 0, torch.zeros_like(values).copysign(values), values)


def add_block(held: torch.Tensor | None, dest: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """A block's registers packed and added to what L1 holds, which is changed in place if a kernel is available."""
    if dtype is bfloat16 and fpu_matmul.supports(dest):
        target = torch.empty_like(dest, memory_format=torch.contiguous_format) if held is None else held
        fpu_matmul.accumulate_block(target, dest.contiguous(), first=held is None)
        return target
    packed = pack(dest, dtype)
    return packed if held is None else accumulate(held, packed, dtype)
