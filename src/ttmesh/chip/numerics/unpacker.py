"""What the unpacker makes of L1's formats: float32 patterns whose low fraction bits are truncated, never rounded."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, float32

TF32_MASK = ~0x1FFF  # 10 fraction bits stay
BF16_MASK = ~0xFFFF  # 7 fraction bits stay
_MAGNITUDE_BITS = {DataType.BFLOAT8_B: 7, DataType.BFLOAT4_B: 3}
FACE_COLUMNS = 16


def unpack(values: torch.Tensor, dtype: DataType, *, fp32_dest: bool) -> torch.Tensor:
    """Lanes as operand registers hold them, in float32: float32 truncated to TF32, for a 16-bit destination to bfloat16."""
    floats = values.float()
    if dtype is not float32 or values.dtype is torch.bfloat16:
        return floats  # bfloat16 and block floats fit
    return (floats.view(torch.int32) & (TF32_MASK if fp32_dest else BF16_MASK)).view(torch.float32)


def unpack_codes(codes: torch.Tensor, exponents: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Float32 of block-float codes [..., n] and their exponents [..., n / 16], as the chip reads any code.

    A sign without a magnitude reads as minus infinity, and exponents wrap around: values that no packer writes.
    """
    width = _MAGNITUDE_BITS[dtype]
    code, shared = codes.to(torch.int32), exponents.to(torch.int32).repeat_interleave(FACE_COLUMNS, -1)
    magnitude, sign = code & ((1 << width) - 1), code >> width
    normal = magnitude.float().view(torch.int32)  # its leading one is hidden, its exponent 127 + place
    exponent = (shared + (normal >> 23) - 127 - (width - 1)) & 0xFF
    bits = (exponent << 23) | (normal & 0x7FFFFF)
    bits = torch.where(magnitude == 0, sign * 0x7F800000, bits)
    return (bits | (sign << 31)).view(torch.float32)
