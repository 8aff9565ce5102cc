"""Sums and differences of the FPU's element-wise unit on a GPU, in one pass (see fpu_elements.c)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def _term(values):
    """Magnitude of 11 bits, sign and biased exponent; subnormals are zero."""
    bits = values.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    magnitude = tl.where(exponent == 0, 0, 0x400 | ((bits >> 13) & 0x3FF))
    return magnitude, bits >> 31, exponent


@triton.jit
def _align(magnitude, sign, gap):
    """Shifted right, to nearest, ties away from zero."""
    shifted = (((magnitude << 1) >> tl.minimum(gap, 31)) + 1) >> 1
    return (shifted ^ sign) - sign


@triton.jit
def _add(first, second, target, count, NEGATE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Both operands at the larger exponent, added, and rounded to 8 bits unless the destination is WIDE."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a, a_sign, a_exponent = _term(tl.load(first + at, mask=inside, other=0.0).to(tl.float32))
    b, b_sign, b_exponent = _term(tl.load(second + at, mask=inside, other=0.0).to(tl.float32))
    if NEGATE:
        b_sign = ~b_sign
    common = tl.maximum(a_exponent, b_exponent)
    total = _align(a, a_sign, common - a_exponent) + _align(b, b_sign, common - b_exponent)
    # 2^23 + total, less 2^23: an addition, where the GPU converts integers at a quarter of that speed.
    number = ((tl.abs(total) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0).to(tl.int32, bitcast=True)
    if not WIDE:
        number = (number + 0x8000) & -0x10000
    exponent = (number >> 23) + common - 137
    bits = number + ((common - 137) << 23)
    bits = tl.where(exponent > 254, 0x7F800000, bits) | (total & -0x80000000)
    result = tl.where((total == 0) | (exponent <= 0), 0, bits).to(tl.float32, bitcast=True)
    tl.store(target + at, result.to(target.dtype.element_ty), mask=inside)


def add(a: torch.Tensor, b: torch.Tensor, *, negate: bool) -> torch.Tensor:
    """Registers of a + b or a - b of equal shape: of a 16-bit destination for bfloat16, of a 32-bit one for float32."""
    first, second = a.contiguous(), b.contiguous()
    target = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    count = first.numel()
    if count:
        grid = (triton.cdiv(count, BLOCK),)
        _add[grid](first, second, target, count, NEGATE=negate, WIDE=first.dtype is torch.float32, BLOCK=BLOCK)
    return target


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    ones = torch.ones(16, device="cuda", dtype=torch.bfloat16)
    add(ones, ones, negate=False)
