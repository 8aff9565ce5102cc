"""Float32 patterns as sign, exponent and fraction, and the FPU's two roundings of a shift."""

from __future__ import annotations

import torch

NOTHING = -1000  # the exponent of what is not there: far below every real one
MOST_SHIFT = 30  # what is shifted further is zero, for magnitudes below 2^29
BIAS = 127


def fields(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sign (1 or -1), biased exponent and 23-bit fraction of float32 values, as int32."""
    bits = values.contiguous().view(torch.int32)
    return 1 - 2 * ((bits >> 31) & 1), (bits >> 23) & 0xFF, bits & 0x7FFFFF


def shift_away(values: torch.Tensor, shift: torch.Tensor | int) -> torch.Tensor:
    """Integers shifted right, to nearest, ties away from zero."""
    return values.sign() * shift_up(values.abs(), shift)


def shift_up(values: torch.Tensor, shift: torch.Tensor | int) -> torch.Tensor:
    """Integers shifted right, to nearest, ties towards plus infinity."""
    shift = torch.as_tensor(shift, dtype=torch.int32, device=values.device).clamp(max=MOST_SHIFT)
    half = (torch.ones_like(shift) << shift) >> 1
    return (values + half) >> shift


def compose(total: torch.Tensor, exponent: torch.Tensor, precision: int) -> torch.Tensor:
    """Float32 of total * 2^(exponent - 127 - 23), to `precision` bits, ties away; below the normals +0, above infinity."""
    mantissa, place = torch.frexp(total.double())
    rounded = torch.floor(mantissa.abs() * 2.0**precision + 0.5) * total.sign()
    power = place + exponent - (precision + BIAS + 23)
    value = torch.ldexp(rounded, power.clamp(-400, 400))
    value = torch.where(value.abs() < 2.0**-126, 0.0, value)
    return torch.where(value.abs() >= 2.0**128, value.sign() * torch.inf, value).float()
