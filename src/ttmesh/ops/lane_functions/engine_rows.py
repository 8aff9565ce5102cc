"""Softmax and moments of rows by the steps of TT-NN's kernels, packed to circular buffers in between."""

from __future__ import annotations

import torch

from ttmesh.chip.numerics import engine


def take_softmax(values: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax along a dim (which counts from the end); on the chip exponentials are packed before they are summed."""
    if not engine.is_emulated(values):
        return torch.softmax(values, dim, dtype=dtype)
    wide = values.float()
    exponentials = engine.keep(torch.exp(wide - wide.amax(dim, keepdim=True)))
    return engine.multiply(exponentials, engine.keep(engine.total(exponentials, (dim,), keepdim=True).reciprocal()))


def engine_moments(rows: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and reciprocal deviation along the last dim."""
    mean = engine.keep(engine.mean(rows, (-1,), keepdim=True))
    centred = engine.keep(engine.subtract(rows, mean))
    variance = engine.keep(engine.mean(engine.multiply(centred, centred), (-1,), keepdim=True))
    return mean.squeeze(-1), engine.keep(torch.rsqrt(variance + eps)).squeeze(-1)
