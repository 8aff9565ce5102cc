"""Reductions of the FPU over the rows of tiles: sums (GAPOOL) and maxima (GMPOOL)."""

from __future__ import annotations

import torch

from ttmesh.chip.numerics.exact_matmul import dest_of_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig


def sum_rows(values: torch.Tensor, config: FpuConfig, scaler: float = 1.0) -> torch.Tensor:
    """Destination registers of the sums over dim -2 of [..., H, W], kept: data in SrcA, the scaler in SrcB."""
    ones = torch.full((*values.shape[:-2], 1, values.shape[-2]), scaler, device=values.device, dtype=torch.float32)
    return dest_of_matmul(ones, values, config)


def sum_columns(values: torch.Tensor, config: FpuConfig, scaler: float = 1.0) -> torch.Tensor:
    """Destination registers of the sums over dim -1 of [..., H, W], kept: data in SrcB, the scaler in SrcA."""
    ones = torch.full((*values.shape[:-2], values.shape[-1], 1), scaler, device=values.device, dtype=torch.float32)
    return dest_of_matmul(values, ones, config)


def max_rows(values: torch.Tensor) -> torch.Tensor:
    """Destination registers of the maxima over dim -2, kept: an exact comparison of unpacked values.

    Patterns are compared as sign and magnitude, so a NaN lies beyond the infinity of its sign. Subnormals are +0.
    """
    bits = values.contiguous().view(torch.int32)
    bits = torch.where(bits & 0x7F800000 == 0, 0, bits)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as int32, the order of the patterns
    most = order.amax(-2, keepdim=True)
    return (most ^ ((most >> 31) & 0x7FFFFFFF)).view(torch.float32)
