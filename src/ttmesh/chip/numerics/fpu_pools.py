"""Reductions of the FPU over the rows of tiles: sums (GAPOOL) and maxima (GMPOOL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import DataType, bfloat16, float32
from ttmesh.chip.numerics.exact_matmul import dest_of_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.packer import pack
from ttmesh.chip.numerics.unpacker import unpack


def sum_rows(values: torch.Tensor, config: FpuConfig, scaler: float = 1.0) -> torch.Tensor:
    """Destination registers of the sums over dim -2 of [..., H, W], kept: data in SrcA, the scaler in SrcB."""
    ones = torch.full((*values.shape[:-2], 1, values.shape[-2]), scaler, device=values.device, dtype=torch.float32)
    return dest_of_matmul(ones, values, config)


def sum_columns(values: torch.Tensor, config: FpuConfig, scaler: float = 1.0) -> torch.Tensor:
    """Destination registers of the sums over dim -1 of [..., H, W], kept: data in SrcB, the scaler in SrcA."""
    ones = torch.full((*values.shape[:-2], values.shape[-1], 1), scaler, device=values.device, dtype=torch.float32)
    return dest_of_matmul(values, ones, config)


def max_rows(values: torch.Tensor) -> torch.Tensor:
    """Destination registers of the maxima over dim -2, kept: an exact comparison of unpacked values."""
    return _largest_pattern(values, (-2,), keepdim=True)


def largest(
    values: torch.Tensor, dims: Sequence[int], config: FpuConfig, *, keepdim: bool = False, exact: bool = False
) -> torch.Tensor:
    """The maxima over dims in float32: of float32 what the unpacker leaves, with the packer's NaN where bits count."""
    unpacked = unpack(values, float32, fp32_dest=config.fp32_dest)
    if not exact:
        return unpacked.amax(tuple(dims), keepdim)
    return pack(_largest_pattern(unpacked, dims, keepdim=keepdim), _kept_dtype(config))


def smallest(
    values: torch.Tensor, dims: Sequence[int], config: FpuConfig, *, keepdim: bool = False, exact: bool = False
) -> torch.Tensor:
    """The minima over dims in float32: minus the maxima of the negated values, which go through L1."""
    unpacked = unpack(values, float32, fp32_dest=config.fp32_dest)
    if not exact:
        return unpacked.amin(tuple(dims), keepdim)
    kept = pack(-unpacked, _kept_dtype(config))
    return 0.0 - pack(_largest_pattern(kept, dims, keepdim=keepdim), _kept_dtype(config))


def _kept_dtype(config: FpuConfig) -> DataType:
    """What keeps a maximum without loss: block floats are a part of bfloat16."""
    return float32 if config.out_dtype is float32 else bfloat16


def _largest_pattern(values: torch.Tensor, dims: Sequence[int], *, keepdim: bool) -> torch.Tensor:
    """Maxima of patterns compared as sign and magnitude: a NaN lies beyond the infinity of its sign; subnormals are +0."""
    bits = values.contiguous().view(torch.int32)
    bits = torch.where(bits & 0x7F800000 == 0, 0, bits)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as int32, the order of the patterns
    most = order.amax(tuple(dims), keepdim)
    return (most ^ ((most >> 31) & 0x7FFFFFFF)).view(torch.float32)
