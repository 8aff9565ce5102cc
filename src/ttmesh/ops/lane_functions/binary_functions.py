"""Functions of two operands where the chip differs from torch, or where a number may be the second one."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ttmesh.ops.lane_functions.unary_functions import pack_nan, to_float32


def shift_right_logical(a: Tensor, b: Any) -> Tensor:
    """Shift in zeros: the bits of int32 are treated as unsigned."""
    return torch.bitwise_right_shift(a.long() & 0xFFFFFFFF, b)


def shift_right_arithmetic(a: Tensor, b: Any) -> Tensor:
    """Shift in the sign bit; uint32 is shifted as int32, as the chip does."""
    if a.dtype is torch.int64:
        a, b = a.to(torch.int32), b.to(torch.int32) if isinstance(b, Tensor) else b
    return torch.bitwise_right_shift(a, b)


def _truncate_to_bfloat16(number: float) -> float:
    """Truncate to the upper half of a float32, which is how the chip receives scalars."""
    with contextlib.suppress(OverflowError):
        (bits,) = struct.unpack("<I", struct.pack("<f", number))
        (number,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return number


def make_extremum(choose: Callable[[Tensor, Tensor], Tensor], side: str) -> Callable[[Tensor, Any], Tensor]:
    """A function for the maximum or minimum; a scalar may be outside the range of the tensor's format."""

    def compute(a: Tensor, b: Any) -> Tensor:
        if isinstance(b, Tensor):
            return choose(a, b)
        if isinstance(b, float) and a.dtype is torch.bfloat16:
            b = _truncate_to_bfloat16(b)
        if a.requires_grad:  # at the bound half of the gradient flows to each operand, as for two tensors
            return choose(to_float32(a), torch.full((), b, device=a.device, dtype=torch.float32))
        return (to_float32(a) if isinstance(b, float) else a).clamp(**{side: b})

    return compute


def raise_to_power(a: Any, b: Any) -> Tensor:
    """Negative powers of 0 are NaN if the chip computes with logarithms: for all exponents but integers."""
    base, exponent = (to_float32(value) if isinstance(value, Tensor) else value for value in (a, b))
    result = torch.pow(base, exponent)
    if not isinstance(a, Tensor) or not (isinstance(b, Tensor) or (b < 0 and b != int(b))):
        return result
    return pack_nan(torch.where((base == 0) & (exponent < 0), math.nan, result), a.dtype)


def scale_by_power_of_two(a: Tensor, b: Any) -> Tensor:
    """ldexp: a times 2 to the power of b."""
    return to_float32(a) * torch.exp2(
        to_float32(b) if isinstance(b, Tensor) else torch.tensor(float(b), dtype=torch.float32, device="cpu")
    )


def accept_number(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Make a function of two tensors accept a number as its second operand."""
    return lambda a, b: function(a, b if isinstance(b, Tensor) else torch.full_like(a, b))


def make_remainder(function: Callable[..., Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Make remainder or fmod give an integer itself where the divisor is 0, as the chip does; torch raises there."""

    def compute(a: Tensor, b: Any) -> Tensor:
        if a.dtype.is_floating_point:
            return function(to_float32(a), b)
        if not isinstance(b, Tensor):
            return function(a, b) if b else a.clone()
        is_zero = b == 0
        return torch.where(is_zero, a, function(a, b.masked_fill(is_zero, 1)))

    return compute
