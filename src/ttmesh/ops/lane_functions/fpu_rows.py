"""Softmax and moments of rows by the steps of TT-NN's kernels, packed to circular buffers in between."""

from __future__ import annotations

import torch

from ttmesh.chip.numerics import fpu


def sum_along(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum along one dim (which counts from the end), which stays: tiles of outer dims are added through L1."""
    return fpu.add_up_through_l1(values, dim) if dim < -2 else fpu.total(values, (dim,), keepdim=True)


def take_softmax(values: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax along a dim (which counts from the end); on the chip exponentials are packed before they are summed."""
    if not fpu.is_emulated(values) or not values.numel():
        return torch.softmax(values, dim, dtype=dtype)
    wide = values.float()
    exponentials = fpu.keep(torch.exp(wide - wide.amax(dim, keepdim=True)))
    return fpu.multiply(exponentials, fpu.keep(sum_along(exponentials, dim).reciprocal()))


def fpu_moments(rows: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and reciprocal deviation along the last dim."""
    mean = fpu.keep(fpu.mean(rows, (-1,), keepdim=True))
    centred = fpu.keep(fpu.subtract(rows, mean))
    variance = fpu.keep(fpu.mean(fpu.multiply(centred, centred), (-1,), keepdim=True))
    return mean.squeeze(-1), fpu.keep(torch.rsqrt(variance + eps)).squeeze(-1)
